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

from nclib.engine.reading import CorruptRun, StoredRun
from nclib.engine.reference import reference_store
from nclib.publish.site import explore
from nclib.publish.site.elsewhere import github_repository
from nclib.publish.site.landing import all_figures, landing_page
from nclib.publish.site.pages import with_facts
from nclib.publish.site.sources import ReportError, Sources, collect
from nclib.system import other_parameters, paths
from nclib.system.files import sha256

_NEEDED = {
    "sphinx": "sphinx",
    "myst-nb": "myst_nb",
    "sphinx-book-theme": "sphinx_book_theme",
    "latex2mathml": "latex2mathml",
    "altair": "altair",
    "vl-convert-python": "vl_convert",
}


class SphinxMissing(ReportError):
    """What makes the pages is not installed."""


def build(profile: str = "quick", force: bool = False, echo: Callable[[str], None] = print) -> Path:
    """Make the site of a profile from what has been executed in it, if anything has changed.

    profile: whose results; the site lies in ``site`` among them.
    force: make it again, changed or not.
    echo: receives each line that is said.
    Returns: the site's landing page, ``index.html``.
    Raises: ConfigError for an unknown profile; ReportError where nothing has been executed, a file is damaged or
        Sphinx failed (an older site then stays); SphinxMissing when it is not installed.
    """
    sources = collect(profile)
    _require_sphinx()
    site, key = paths.results(profile) / "site", _key(sources)
    landing = site / "index.html"
    if not force and landing.exists() and _noted(site) == key:
        echo(f"the site is up to date: {landing}")
        return landing
    with _aside(profile, echo) as aside:
        if not force and landing.exists() and _noted(site) == key:
            echo(f"another process has made the site meanwhile: {landing}")
            return landing
        curves = explore.page(_tracked())
        _lay_out(sources, aside / "sources", curves is not None, echo)
        _run_sphinx(sources.title, aside, echo)
        _add_downloads(sources, aside / "html")
        if curves is not None:
            (aside / "html" / explore.FILE).write_text(curves, encoding="utf-8")
        (aside / "html" / _NOTE).write_text(key, encoding="utf-8")
        _swap(aside / "html", site, aside / "old")
    echo(f"{len(sources.pages)} notebooks and {len(all_figures(sources))} figures in {landing}")
    return landing


_NOTE = ".inputs"  # in the site: the key of what it was made from


def _require_sphinx() -> None:
    lacking = [name for name, module in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if lacking:
        raise SphinxMissing(
            f'the site is made by Sphinx, and {", ".join(lacking)} is not installed; type: pip install "nclib[book]"'
        )


def _key(sources: Sources) -> str:
    """Changes with notebooks, figures, tables, the book's own pages, and the library. Figures and tables count
    by their records, which hold their digests."""
    package = Path(__file__).resolve().parents[2]
    files = [*sorted(package.rglob("*.py")), *sorted(_book().glob("**/*.*"))]  # the reference shows every docstring
    files += [picture for page in _book().glob("*.md") for picture in _pictures(page).values()]
    files += sorted(paths.reference().glob("*/*.*"))
    artefacts = [*sources.others, *(artefact for page in sources.pages for artefact in page.artefacts)]
    parts = [
        sources.failed,
        {page.name: sha256(page.content) for page in sources.pages},
        [(artefact.record, artefact.endings) for artefact in artefacts],
        [(file.name, sha256(file.read_bytes())) for file in files if file.is_file()],
        github_repository(),
        {name: importlib.metadata.version(name) for name in _NEEDED},
    ]
    return sha256(json.dumps(parts, sort_keys=True).encode())


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


def _run_sphinx(title: str, aside: Path, echo: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-c", str(_book()), "-d", str(aside / "doctrees")]
    encoding = sys.getfilesystemencoding()  # that of arguments: ASCII has no room for some names of data sets
    title = f"nclib: {title}".encode(encoding, "replace").decode(encoding)
    command += ["-D", f"html_title={title}", str(aside / "sources"), str(aside / "html")]
    own = os.environ | {"TMPDIR": str(aside)}  # for its report of an error, which goes with the folder
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", env=own)
    said, *_ = done.stderr.partition("The full traceback has been saved in:")
    said = said.replace(f"{aside / 'sources'}{os.sep}", "").strip().splitlines()
    if done.returncode:
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
    folder = paths.results(sources.profile)
    for page in sources.pages:
        target = site / "notebooks" / f"{page.name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(page.content)
    for artefact in [*sources.others, *(artefact for page in sources.pages for artefact in page.artefacts)]:
        for ending in artefact.endings:
            target = site / artefact.path(ending)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / artefact.path(ending), target)


def _tracked() -> Iterator[StoredRun]:
    """The reference runs of all profiles; a damaged one is left out here and told where it is drawn."""
    store = reference_store()
    for run in store.ids():
        with suppress(CorruptRun):
            yield store.load(run)


def _book() -> Path:
    return paths.root() / "book"


def _lay_out(sources: Sources, folder: Path, curves: bool, echo: Callable[[str], None]) -> None:
    for page in sources.pages:
        _write(folder / f"{page.name}.ipynb", json.dumps(with_facts(page, sources)))
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
    _write(folder / "index.md", landing_page(sources, shown, echo))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _pictures(page: Path) -> dict[str, Path]:
    """Files that a page of the book shows, by their links."""
    links = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return {link: path for link in links if (path := page.parent / link).exists()}
