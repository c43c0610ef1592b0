"""Make the site: lay its sources out, call Sphinx, and put the new site in the place of the old one."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from nclib import paths, provenance
from nclib.site.sources import Page, ReportError, executed, lay_out, reference

NEEDED = ("numpydoc", "sphinx", "myst_nb", "sphinx_book_theme", "sphinx_design", "sphinx-mathjax-offline")
"""Modules that make the site."""

OPTIONS = ("-q",)
"""Of Sphinx; the tests add ``-W``."""

_NOTE = ".inputs"  # in the site: the digest of what it was made from


def build(
    profile: str = "quick", force: bool = False, echo: Callable[[str], None] = print, draft: bool = False
) -> Path:
    """Make the site of a profile from what has been executed in it, if anything has changed.

    Parameters
    ----------
    profile : whose results; the site lies in ``site`` among them.
    force : make it again, changed or not.
    echo : receives each line that is said.
    draft : leave out the reference, which takes longest.

    Returns
    -------
    the site's front page, ``index.html``.

    Raises
    ------
    ReportError
        Where nothing has been executed or Sphinx failed (an older site then stays).
    ModuleNotFoundError
        When it is not installed.
    """
    pages, site = executed(profile), paths.results(profile) / "site"
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    landing, note, aside = site / "index.html", site / _NOTE, site.with_name(".site")
    inputs = _digest(pages, draft)
    if not force and landing.exists() and note.exists() and note.read_text() == inputs:
        echo(f"the site is up to date: {landing}")
        return landing
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _make(pages, aside, draft, echo)
        (aside / "html" / _NOTE).write_text(inputs)
        shutil.rmtree(site, ignore_errors=True)
        (aside / "html").rename(site)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    echo(f"{len(pages)} notebooks in {landing}")
    return landing


def _make(pages: list[Page], aside: Path, draft: bool, echo: Callable[[str], None]) -> None:
    sources, more = aside / "sources", []
    sources.mkdir(parents=True)
    if not draft:
        (sources / "reference.rst").write_text(reference(), encoding="utf-8")
        more = ["reference"]
    lay_out(pages, sources, more)
    _run_sphinx(aside, echo)


def _run_sphinx(aside: Path, echo: Callable[[str], None]) -> None:
    # -P and the folder it starts in: a sphinx.py of the folder one stands in is not run
    command = [sys.executable, "-P", "-m", "sphinx", "-j", "auto", *OPTIONS, "-c", str(paths.root() / "docs")]
    command += ["-b", "html", "-d", str(aside / "doctrees"), str(aside / "sources"), str(aside / "html")]
    own = os.environ | {"TMPDIR": str(aside)}  # for its report of an error, which goes with the folder
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=own, cwd=aside)
    said = done.stderr.replace(f"{aside / 'sources'}{os.sep}", "").strip().splitlines()
    if done.returncode:
        raise ReportError("\n".join([f"Sphinx could not make the site (exit code {done.returncode}):", *said[-20:]]))
    for line in said:
        echo(f"sphinx: {line}")


def _digest(pages: list[Page], draft: bool) -> str:
    """Of all that the site is made from: notebooks and their pictures, docs, the code, the tracked runs."""
    found = hashlib.sha256(repr((draft, [(page.name, page.said) for page in pages])).encode())
    code = [provenance.folder("nclib")]
    files = [file for folder in code for file in folder.rglob("*.py")]
    files += [*(paths.root() / "docs").rglob("*.*"), *paths.reference().glob("*/*.*"), paths.notebooks() / "nano.py"]
    files += {image for page in pages for image in page.images}
    for file in [page.file for page in pages] + [page.figure for page in pages if page.figure] + sorted(files):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()
