"""The web site of a profile: its executed notebooks, the pages of docs and the reference.

Everything that Sphinx reads is copied into a folder, with a front page that shows a gallery; then
Sphinx makes the site, with the extensions that ``docs/conf.py`` names.
"""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

import nclib
from nclib import paths, reproduce

ABOVE = {"Results": ("docs/results", "docs/theory", "docs/beyond")}
BELOW = {
    "Use": ("docs/start", "docs/library", "reference"),
    "Method": ("docs/method", "docs/protocol", "docs/protocol-3", "docs/record"),
    "Numbers and internals": ("docs/tables", "docs/internals"),
}
"""Headings and pages of the list at the side, above and below the notebooks."""

OF_PROTOCOL_2 = """:::{note}
This page is as it was committed before the runs. Code has moved since: the registered analysis is
now `nclib/papers/neural_collapse/protocol2.py`, and its test
`tests/papers/neural_collapse/test_protocol2.py`. [Results](results.md) reports what came out.
:::
"""
"""Shown below the title of ``docs/protocol.md``, which is frozen in the repository."""

OPTIONS = ("-q",)
"""Of Sphinx; the tests add ``-W``, which makes a warning an error."""


class ReportError(RuntimeError):
    """The site cannot be made; the message names what to do."""

    exit_code = 1


@dataclass(frozen=True)
class Page:
    """An executed notebook: its name "paper/notebook", the results that it is part of, and these in
    words."""

    name: str
    results: Path
    described: str

    @property
    def file(self) -> Path:
        return self.results / "notebooks" / f"{self.name}.ipynb"

    @property
    def figure(self) -> Path | None:
        """The first of its pictures."""
        figures = sorted(self.results.glob(f"figures/{self.name}[._]*png"))
        return figures[0] if figures else None

    @property
    def label(self) -> str:
        """Its title up to the first point; of a lesson, which begins with its number, all of it."""
        title = reproduce.title(self.file)
        return title if title[0].isdigit() else title.partition(" · ")[0]


def build(profile: str = "quick") -> Path:
    """Make the site of a profile from what has been executed in it.

    It is made aside and takes the place of the old one when it is complete.

    Parameters
    ----------
    profile : whose results; the site lies in ``site`` among them

    Returns
    -------
    Path
        The front page, ``index.html``.

    Raises
    ------
    ReportError
        Where nothing has been executed, Sphinx is not installed, or fails.
    """
    pages = executed_pages(profile)
    site = paths.results(profile) / "site"
    aside = site.with_name(".site")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        lay_out(pages, aside / "sources")
        _run_sphinx(aside / "sources", aside / "html")
        shutil.rmtree(site, ignore_errors=True)
        (aside / "html").rename(site)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return site / "index.html"


def is_newest(profile: str) -> bool:
    """Whether there is a site, and no notebook in it was executed again since it was made."""
    front = paths.results(profile) / "site/index.html"
    if not front.exists():
        return False
    made = front.stat().st_mtime
    return all(page.file.stat().st_mtime < made for page in executed_pages(profile))


def executed_pages(profile: str) -> list[Page]:
    """The notebooks that were executed in a profile, each at its largest scale (``largest.json``),
    in reading order, the course last."""
    folder = paths.results(profile)
    place = folder.relative_to(paths.results()).as_posix()
    listing = folder / "largest.json"
    largest = json.loads(listing.read_bytes()) if listing.exists() else {}
    pages = []
    for name in reproduce.available():
        page = Page(name, folder, f"Profile {place.replace('/with/', ' with ')}")
        if name in largest:
            scale = largest[name]
            described = f"Profile {scale['folder'].replace('/with/', ' with ')}: {scale['images']}"
            larger = Page(name, paths.results() / scale["folder"], described)
            page = larger if larger.file.exists() else page
        if page.file.exists():
            pages.append(page)
    if not pages:
        raise ReportError(f"nothing is executed; type: nclib reproduce --profile {profile}")
    return sorted(pages, key=lambda page: page.name.startswith(reproduce.COURSE))


def lay_out(pages: Sequence[Page], folder: Path) -> None:
    """Write the sources of a site: docs, notebooks, thumbnails, front page and reference."""
    docs = paths.root() / "docs"
    notebooks = {f"notebooks/{page.name}.ipynb" for page in pages}
    (folder / "docs").mkdir(parents=True)
    for file in docs.glob("*.md"):
        text = file.read_text("utf-8")
        if file.name == "protocol.md":
            title, _, rest = text.partition("\n")
            text = f"{title}\n\n{OF_PROTOCOL_2}{rest}"
        if file.name != "index.md":
            (folder / "docs" / file.name).write_text(unlink(text, "docs", notebooks), "utf-8")
            continue
        text = re.sub(r"\]\((?!https?:)", "](docs/", text)  # its links begin in docs/
        text = unlink(text, "", notebooks)
        (folder / file.name).write_text(f"{text}\n\n{front(pages)}", "utf-8")
    for kind in ("figures", "bench"):
        shutil.copytree(paths.reference() / kind, folder / "results/reference" / kind)
    for page in pages:
        target = folder / f"notebooks/{page.name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(shown(page, notebooks)), "utf-8")
        images = reproduce.source(page.name).parent / "images"
        if images.is_dir():
            shutil.copytree(images, target.parent / "images", dirs_exist_ok=True)
        if page.figure is not None:
            thumbnail = folder / f"thumbnails/{page.name}.png"
            thumbnail.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(page.figure) as image:
                image.thumbnail((360, 220))
                image.convert("RGB").quantize(64).save(thumbnail, optimize=True)
    shutil.copy(paths.notebooks() / "nano.py", folder / "notebooks")
    (folder / "reference.rst").write_text(reference(), "utf-8")


def unlink(text: str, folder: str, notebooks: Collection[str]) -> str:
    """Markdown of a folder in which links to notebooks that are not among these are plain text."""

    def keep(link: re.Match[str]) -> str:
        return link[0] if os.path.normpath(os.path.join(folder, link[2])) in notebooks else link[1]

    return re.sub(r"\[([^\]]*)\]\(([^)#]+\.ipynb)\)", keep, text)


def shown(page: Page, notebooks: Collection[str]) -> dict[str, Any]:
    """The notebook as the site shows it: where it was run below its title, and code folded, but not
    that of a lesson."""
    notebook = json.loads(page.file.read_text("utf-8"))
    cells = []
    for cell in notebook["cells"]:
        tags = cell["metadata"].setdefault("tags", [])
        folded = cell["metadata"].get("jupyter", {})
        if "injected-parameters" in tags:
            continue
        if cell["cell_type"] == "markdown":
            folder = f"notebooks/{page.name.partition('/')[0]}"
            cell["source"] = unlink("".join(cell["source"]), folder, notebooks)
        else:
            if folded.get("outputs_hidden"):
                tags.append("hide-cell")
            elif folded.get("source_hidden") or not page.name.startswith(reproduce.COURSE):
                tags.append("hide-input")
        cells.append(cell)
    place = page.results.relative_to(paths.results()).as_posix()
    facts = f"*{page.described}.* Figures and numbers: `results/{place}/figures/{page.name}*`"
    cells.insert(1, {"cell_type": "markdown", "id": "facts", "metadata": {}, "source": facts})
    return notebook | {"cells": cells}


def front(pages: Sequence[Page]) -> str:
    """The front page below its text: pictures that lead to the notebooks, what is not executed, and
    the lists of pages."""
    parts = []
    lists = dict(ABOVE)
    for folder, heading in reproduce.PARTS.items():
        chosen = [page for page in pages if page.name.startswith(f"{folder}/")]
        if chosen:
            parts.append(f"## {heading}")
            parts.append(_gallery(chosen))
            lists[heading] = [f"{page.label} <notebooks/{page.name}>" for page in chosen]
    absent = set(reproduce.available()).difference(page.name for page in pages)
    if absent:
        names = ", ".join(sorted(absent, key=reproduce.reading_order))
        parts.append(f"Not executed here; `nclib reproduce NAME` executes one: {names}.")
    for caption, entries in (lists | BELOW).items():
        lines = ["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _gallery(pages: Sequence[Page]) -> str:
    """A grid of pictures, and below it links to the notebooks without one."""
    cards = []
    links = []
    for page in pages:
        if page.figure is None:
            links.append(f"[{page.label}](notebooks/{page.name}.ipynb)")
            continue
        cards.append(":::{grid-item-card}")
        cards.append(f":img-top: thumbnails/{page.name}.png")
        cards.append(f":img-alt: {page.label}")
        cards.append(f":link: notebooks/{page.name}")
        cards.append(":link-type: doc")
        cards.append(f"\n{page.label}\n:::")
    if cards:
        cards = ["::::{grid} 2 3 4 6", ":gutter: 1", *cards, "::::"]
    return "\n".join([*cards, "", " · ".join(links)])


def reference() -> str:
    """The page of the reference: every public name that is not a module."""
    names = [name for name in nclib.__all__ if not inspect.ismodule(getattr(nclib, name))]
    listed = "\n".join(f"   nclib.{name}" for name in names)
    title = "Reference\n========="
    return f"{title}\n\n.. autosummary::\n   :toctree: api\n   :nosignatures:\n\n{listed}\n"


def _run_sphinx(sources: Path, target: Path) -> None:
    # -P: a file of this folder that is named like a module of Python is not run
    command = [sys.executable, "-P", "-m", "sphinx", "-j", "auto", *OPTIONS]
    command += ["-c", str(paths.root() / "docs"), "-d", str(sources.with_name("doctrees"))]
    command += ["-b", "html", str(sources), str(target)]
    # Its reports of errors go with the folder. It fails where LC_ALL names a locale that is not
    # installed, as a terminal on another machine may have set it.
    environment = os.environ | {"TMPDIR": str(sources.parent), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment)
    message = done.stderr.replace(f"{sources}{os.sep}", "").strip()
    if "No module named" in message:
        message += '\nin the clone, type: pip install ".[docs]"'
    if done.returncode:
        raise ReportError(
            "only the web site could not be made; notebooks, figures and tables are in "
            f"{paths.results()}. Sphinx says:\n{message[-2000:]}"
        )
    if message:
        print(message)
