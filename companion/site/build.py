"""Make the site: lay its sources out, call Sphinx, and put the new site in the place of the old one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from companion.site import explore, kept, points
from companion.site.elsewhere import github_repository
from companion.site.landing import TITLE, all_figures, landing_page, toctree
from companion.site.pages import with_facts
from companion.site.sources import Sources, collect
from nclib.engine.reading import CorruptRun, StoredRun
from nclib.engine.reference import reference_store
from nclib.publish.sites import ReportError, SphinxMissing
from nclib.system import other_parameters, paths, provenance
from nclib.system.files import sha256
from nclib.system.lazy import install

_NEEDED = {
    "sphinx": "sphinx",
    "myst-nb": "myst_nb",
    "sphinx-book-theme": "sphinx_book_theme",
    "latex2mathml": "latex2mathml",
    "altair": "altair",
    "vl-convert-python": "vl_convert",
}


def build(
    profile: str = "quick", force: bool = False, echo: Callable[[str], None] = print, draft: bool = False
) -> Path:
    """Make the site of a profile from what has been executed in it, if anything has changed.

    Parameters
    ----------
    profile : whose results; the site lies in ``site`` among them.
    force : make it again, changed or not.
    echo : receives each line that is said.
    draft : leave out the reference and the curves where they would have to be made first.

    Returns
    -------
    the site's landing page, ``index.html``.

    Raises
    ------
    ConfigError
        For an unknown profile.
    ReportError
        Where nothing has been executed, a file is damaged or Sphinx failed (an older site then stays).
    SphinxMissing
        When it is not installed.
    """
    sources = collect(profile)
    _require_sphinx()
    digests = _digests()
    lasting = {"reference": digests["library"], "curves": [*digests["library"], *digests["runs"]]}
    whole = not draft or all(kept.place(name, made_from).exists() for name, made_from in lasting.items())
    site, key = paths.results(profile) / "site", _key(sources, digests, whole)
    landing = site / "index.html"
    if not force and landing.exists() and _noted(site) == key:
        echo(f"the site is up to date: {landing}")
        return landing
    with _aside(profile, echo) as aside:
        if not force and landing.exists() and _noted(site) == key:
            echo(f"another process has made the site meanwhile: {landing}")
            return landing
        reference = curves = None
        if whole:
            reference = kept.kept("reference", lasting["reference"], lambda folder: _reference(folder, echo), echo)
            curves = kept.kept("curves", lasting["curves"], _curves, echo) / explore.FILE
            curves = curves if curves.exists() else None
        _lay_out(sources, aside / "sources", reference, curves is not None, echo)
        _run_sphinx(sources.title, aside, echo)
        _add_downloads(sources, aside / "html")
        if reference:
            kept.join(reference, aside / "html")
        if curves:
            shutil.copyfile(curves, aside / "html" / explore.FILE)
        (aside / "html" / _NOTE).write_text(key, encoding="utf-8")
        _swap(aside / "html", site, aside / "old")
    echo(f"{len(sources.pages)} notebooks and {len(all_figures(sources))} figures in {landing}")
    return landing


REFERENCE = "Names and docstrings <api/index>"
_NOTE = ".inputs"  # in the site: the key of what it was made from


def _require_sphinx() -> None:
    lacking = [name for name, module in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if lacking:
        raise SphinxMissing(f"the site is made by Sphinx, and {', '.join(lacking)} is not installed; {install('book')}")


def _digests() -> dict[str, list[Any]]:
    """What the site depends on besides what was executed: the library and how Sphinx is called, the pages of the book,
    the tracked runs."""
    book = sorted(_book().glob("*.md"))
    groups = {
        "library": [
            *(
                file
                for package in ("nclib", *provenance.packages())
                for file in sorted(provenance.folder(package).rglob("*.py"))
            ),
            _book() / "conf.py",
            *sorted(_book().glob("_static/*.*")),
        ],
        "book": [*book, *(picture for page in book for picture in _pictures(page).values())],
        "runs": sorted(paths.reference().glob("*/*.*")),
    }
    found: dict[str, list[Any]] = {
        name: [(file.name, sha256(file.read_bytes())) for file in files if file.is_file()]
        for name, files in groups.items()
    }
    found["library"].append({name: importlib.metadata.version(name) for name in _NEEDED})
    return found


def _key(sources: Sources, digests: dict[str, list[Any]], whole: bool) -> str:
    """Changes with notebooks, figures, tables, the book's own pages, and the library. Figures and tables count
    by their records, which hold their digests."""
    parts = [
        sources.failed,
        [(page.file, str(page.drawn), sha256(page.content)) for page in sources.drawings],
        [(artefact.path(""), artefact.record, artefact.endings) for artefact in sources.artefacts],
        digests,
        github_repository(),
        whole,
    ]
    return sha256(json.dumps(parts, sort_keys=True).encode())


def _reference(folder: Path, echo: Callable[[str], None]) -> None:
    """The pages of the reference, a site of their own until they are joined to one."""
    _write(folder / "sources" / "index.md", f"# {TITLE}\n\n{toctree('Reference', [REFERENCE])}\n")
    _run_sphinx("reference", folder, echo, "-t", "reference", "-D", "html_theme_options.show_navbar_depth=2")
    for made in (folder / "html").iterdir():
        made.rename(folder / made.name)
    for left in ("sources", "doctrees", "html"):
        shutil.rmtree(folder / left)


def _curves(folder: Path) -> None:
    page = explore.page(_tracked())
    if page is not None:
        (folder / explore.FILE).write_text(page, encoding="utf-8")


def _noted(site: Path) -> str:
    try:
        return paths.content(site / _NOTE).decode()
    except (OSError, ValueError):
        return ""


@contextmanager
def _aside(profile: str, echo: Callable[[str], None]) -> Iterator[Path]:
    """An empty folder beside the site, for one build at a time. What a killed build left in it is removed."""
    folder = paths.results(profile) / ".site"
    with other_parameters.alone_in(folder.parent, "site", echo):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _run_sphinx(title: str, aside: Path, echo: Callable[[str], None], *options: str) -> None:
    # -P and the folder it starts in: a sphinx.py of the folder one stands in is not run
    command = [sys.executable, "-P", "-m", "sphinx", "-b", "html", "-q"]
    command += ["-c", str(_book()), "-d", str(aside / "doctrees")]
    encoding = sys.getfilesystemencoding()  # that of arguments: ASCII has no room for some names of data sets
    title = f"nclib: {title}".encode(encoding, "replace").decode(encoding)
    command += [*options, "-D", f"html_title={title}", str(aside / "sources"), str(aside / "html")]
    own = os.environ | {"TMPDIR": str(aside)}  # for its report of an error, which goes with the folder
    read = {"capture_output": True, "text": True, "encoding": "utf-8", "errors": "replace"}
    done = subprocess.run(command, **read, env=own, cwd=aside)
    said, *_ = done.stderr.partition("The full traceback has been saved in:")
    said = said.replace(f"{aside / 'sources'}{os.sep}", "").strip().splitlines()
    if done.returncode or not (aside / "html" / "index.html").exists():
        raise ReportError("\n".join([f"Sphinx could not make the site (exit code {done.returncode}):", *said[-20:]]))
    for line in said:
        echo(f"sphinx: {line}")


def _swap(new: Path, site: Path, old: Path) -> None:
    if site.exists():
        site.rename(old)
    try:
        new.rename(site)
    except OSError:
        if old.exists():
            old.rename(site)
        raise


def _add_downloads(sources: Sources, site: Path) -> None:
    """Notebooks, figures and tables as they are, at the same places as in the results."""
    for page in sources.drawings:
        target = site / page.file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(page.content)
        table = points.table_of(page, sources.profile)
        if table is not None:
            _write(site / points.place(page), points.file(table))
    for artefact in sources.artefacts:
        for ending in artefact.endings:
            target = site / artefact.path(ending)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artefact.file(ending, sources.profile), target)


def _tracked() -> Iterator[StoredRun]:
    """The reference runs of all profiles; a damaged one is left out here and told where it is drawn."""
    store = reference_store()
    for run in store.ids():
        with suppress(CorruptRun):
            yield store.load(run)


def _book() -> Path:
    return paths.root() / "book"


def _lay_out(sources: Sources, folder: Path, reference: Path | None, curves: bool, echo: Callable[[str], None]) -> None:
    for page in sources.pages:
        _write(folder / f"{page.name}.ipynb", json.dumps(with_facts(page, sources)))
    if reference:
        shutil.copyfile(reference / "names.json", folder / "names.json")
        _write(folder / "api" / "index.md", "# Reference\n")  # its place in the menu; the page itself is joined later
    if curves:
        _write(folder / "explore.md", explore.TEXT)
    notes = sorted(_book().glob("*.md"))
    for note in notes:
        _write(folder / "book" / note.name, note.read_text(encoding="utf-8"))
        for link, picture in _pictures(note).items():
            target = Path(os.path.normpath(folder / "book" / link))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, target)
    shown = ["explore"] * curves + [f"book/{note.stem}" for note in notes]
    _write(folder / "index.md", landing_page(sources, shown, echo, [REFERENCE] * bool(reference)))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _pictures(page: Path) -> dict[str, Path]:
    """Files that a page of the book shows, by their links."""
    links = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return {link: path for link in links if (path := page.parent / link).exists()}
