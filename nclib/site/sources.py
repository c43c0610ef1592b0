"""What Sphinx reads: executed notebooks and pages of docs, copied, and a front page with all of them."""

import inspect
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

import nclib
from nclib import paths
from nclib.profiles import MAIN_PAPER
from nclib.publish import notebooks

COURSE = "walkthrough"
RESULTS = ("docs/results", "docs/theory", "docs/beyond")
"""Pages that are listed above the course and the notebooks."""
BELOW = {
    "Use": ("docs/start", "docs/library", "reference"),
    "Method": ("docs/method", "docs/protocol", "docs/protocol-3", "docs/record"),
    "Numbers and internals": ("docs/tables", "docs/internals"),
}
"""Headings and pages of the list below them; a page that is in no list comes last."""
OLD_PATH = """:::{note}
This page is as it was committed before the runs. Code has moved since: the registered analysis is now
`nclib/papers/neural_collapse/replication.py`, and its test `tests/papers/neural_collapse/test_replication.py`.
[Results](results.md) reports what came out.
:::
"""


class ReportError(RuntimeError):
    """The site cannot be made; the message names what to do."""

    exit_code = 1


class Page(NamedTuple):
    """An executed notebook: its name "paper/notebook", the results it is part of, and these in words."""

    name: str
    results: Path
    said: str

    @property
    def file(self) -> Path:
        return self.results / "notebooks" / f"{self.name}.ipynb"

    @property
    def images(self) -> list[Path]:
        """Pictures beside the executed notebook, for its text and for that of others in its folder."""
        return sorted(self.file.parent.glob("images/*.png"))

    @property
    def docname(self) -> str:
        return f"notebooks/{self.name}"

    @property
    def figure(self) -> Path | None:
        """The first of its pictures."""
        own = self.results / "figures" / f"{self.name}.png"
        return own if own.exists() else next(iter(sorted(own.parent.glob(f"{own.stem}_*.png"))), None)


def executed(profile: str) -> list[Page]:
    """The notebooks that were executed in a profile, each at its largest scale (``largest.json``), in the order of the
    site. Raises `ReportError` where there is none."""
    folder = paths.results(profile)
    words = f"Profile {folder.relative_to(paths.results()).as_posix().replace('/with/', ' with ')}"
    files = folder.glob("notebooks/*/[!.]*.ipynb")
    names = [f"{file.parent.name}/{file.stem}" for file in files if not file.stem.endswith(".failed")]
    found = {name: Page(name, folder, words) for name in names}
    listing = folder / "largest.json"
    for name, said in json.loads(listing.read_bytes()).items() if listing.exists() else ():
        words = f"Profile {said['folder'].replace('/with/', ' with ')}: {said['images']}"
        words += f" ({said['scale']} scale)" * bool(said["scale"])
        page = Page(name, paths.results() / said["folder"], words)
        found |= {name: page} if page.file.exists() else {}
    if not found:
        raise ReportError(f"no notebook has been executed in {folder} yet; type: nclib reproduce --profile {profile}")
    return sorted(found.values(), key=lambda page: (page.name.startswith(COURSE), notebooks.reading_order(page.name)))


def lay_out(pages: list[Page], folder: Path, more: Iterable[str]) -> None:
    """Write the sources of a site.

    Parameters
    ----------
    more : pages that are there already, such as the reference.
    """
    docs = paths.root() / "docs"
    shutil.copytree(docs, folder / "docs", ignore=shutil.ignore_patterns("index.md", "_*", "conf.py"))
    _explain_old_path(folder / "docs/protocol.md")
    for kind in ("figures", "bench"):
        shutil.copytree(paths.reference() / kind, folder / "results/reference" / kind)
    for page in pages:
        target = folder / f"{page.docname}.ipynb"
        _write(target, json.dumps(shown(page)))
        if page.images:
            shutil.copytree(page.file.parent / "images", target.parent / "images", dirs_exist_ok=True)
        if page.figure:
            _thumbnail(page.figure, folder / f"thumbnails/{page.name}.png")
    text = (docs / "index.md").read_text("utf-8")
    text = re.sub(r"\]\((?!https?:)([^)]+)\)", lambda link: f"]({os.path.normpath('docs/' + link[1])})", text)
    shutil.copy(paths.notebooks() / "nano.py", folder / "notebooks")
    notes = [f"docs/{note.stem}" for note in sorted((folder / "docs").glob("*.md"))]
    _write(folder / "index.md", "\n\n".join([text, *front(pages, [*more, *notes])]))
    for page in (folder / "index.md", *(folder / "docs").glob("*.md")):
        _unlink_absent_notebooks(page)


def _unlink_absent_notebooks(page: Path) -> None:
    """Links to notebooks that are not part of these results become plain text."""

    def shown(link: re.Match[str]) -> str:
        return link[0] if (page.parent / link[2]).exists() else link[1]

    text = page.read_text("utf-8")
    page.write_text(re.sub(r"\[([^\]]*)\]\(([^)#]+\.ipynb)\)", shown, text), encoding="utf-8")


def _explain_old_path(protocol: Path) -> None:
    """Put `OLD_PATH` below the title of the page, which is frozen in the repository."""
    title, _, rest = protocol.read_text("utf-8").partition("\n")
    protocol.write_text(f"{title}\n\n{OLD_PATH}{rest}", encoding="utf-8")


def front(pages: list[Page], notes: list[str]) -> list[str]:
    """The front page below its text: pictures that lead to the notebooks, what is not plotted, and the lists of pages.

    At the side the results come first, then the course, the other notebooks, and the pages `BELOW`.
    """
    parts, lists = [], {}
    for part in dict.fromkeys(page.name.partition("/")[0] for page in pages):
        title = notebooks.PARTS.get(part, part)
        own = [page for page in pages if page.name.startswith(f"{part}/")]
        cards = "\n".join(_card(page) for page in own if page.figure)
        links = " · ".join(f"[{_short(page)}]({page.docname}.ipynb)" for page in own if not page.figure)
        shown = [f"::::{{grid}} 3 4 6 9\n:gutter: 1\n{cards}\n::::" * bool(cards), links]
        main = part in (MAIN_PAPER, COURSE)
        parts += [f"## {title}", *shown] if main else [f":::::{{dropdown}} {title}", *shown, ":::::"]
        lists[part] = _toctree(title, [f"{_short(page)} <{page.docname}>" for page in own])
    left = [name for name in notebooks.available() if name not in {page.name for page in pages}]
    fold = f":::{{dropdown}} {len(left)} notebooks are not rendered in these results\n"
    parts.append(f"{fold}`nclib reproduce NAME` renders one: {', '.join(left)}.\n:::" * bool(left))
    above = [_toctree("Results", [name for name in RESULTS if name in notes]), lists.pop(COURSE, "")]
    below = {title: [name for name in names if name in notes] for title, names in BELOW.items()}
    listed = {*RESULTS, *(name for names in below.values() for name in names)}
    below["More"] = [name for name in notes if name not in listed]
    return [*parts, *above, *lists.values(), *(_toctree(*each) for each in below.items() if each[1])]


def _toctree(caption: str, entries: list[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```"])


def _card(page: Page) -> str:
    head = f":::{{grid-item-card}}\n:img-top: thumbnails/{page.name}.png\n:img-alt: {_short(page)}"
    return f"{head}\n:link: {page.docname}\n:link-type: doc\n\n{_short(page)}\n:::"


def _short(page: Page) -> str:
    """The title up to its first point, in letters that mean nothing to Markdown."""
    title = notebooks.title(notebooks.read_cells(page.file)) or page.name.partition("/")[2].replace("_", " ")
    head = title.partition(" · ")[0]
    return re.sub(r"[^\w .,:&()?'’–-]", "", title if head.isdigit() else head)


def shown(page: Page) -> dict[str, Any]:
    """The notebook as the site shows it: under its title where it was run; code folded (course: as in the source)."""
    notebook = json.loads(page.file.read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if "injected-parameters" not in cell["metadata"].get("tags", [])]
    for cell in [cell for cell in cells if cell["cell_type"] == "code"]:
        folded = cell["metadata"].get("jupyter", {})
        if folded.get("source_hidden") or not page.name.startswith(f"{COURSE}/"):
            hidden = "hide-cell" if folded.get("outputs_hidden") else "hide-input"
            cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), hidden]
    place = page.results.relative_to(paths.results()).as_posix()
    facts = f"*{page.said}.* Figures as PDF and their numbers: `results/{place}/figures/{page.name}*`"
    cells.insert(1, {"cell_type": "markdown", "id": "nclib-facts", "metadata": {}, "source": facts})
    return notebook | {"cells": cells}


def reference() -> str:
    """The page of the reference: every public name."""
    public = [name for name in nclib.__all__ if not inspect.ismodule(getattr(nclib, name))]
    names = "\n".join(f"   nclib.{name}" for name in public)
    return f"Reference\n=========\n\n.. autosummary::\n   :toctree: api\n   :nosignatures:\n\n{names}\n"


def _thumbnail(picture: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(picture) as image:
        image.thumbnail((360, 220))
        image.convert("RGB").quantize(64).save(target, optimize=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
