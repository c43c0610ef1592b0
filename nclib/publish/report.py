"""The book: a static web site made of the executed notebooks of a profile.

Sphinx, myst-nb and sphinx-book-theme make the pages (`book/conf.py`); here their sources are laid out: the notebooks
with two cells of facts each, a landing page with the scorecard and all figures, the pages of ``book/``. Figures,
tables and notebooks lie in the site as they are on the disk, to be downloaded. No page asks for anything outside its
folder, so the site opens from a file as well as from a server.
"""

from __future__ import annotations

import hashlib
import html
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from nclib.system import other_parameters, paths, provenance, words

PARTS = {
    "walkthrough": "The course",
    "neural_collapse": "Sun & Shi: neural collapse",
    "kernel_equivalence": "Ling et al.: equivalent kernels",
    "separation_bias": "Wu et al.: separation and bias",
}
"""Folders of notebooks in the order of the book, and their headings; other folders follow under their own names."""

OPEN_CODE = ("walkthrough",)
"""Folders whose pages show their code; on the others it is folded away."""

BRANCH = "main"
"""Where Colab finds the notebooks."""

COLAB = """\
!git clone -q --depth 1 {address} nclib
%cd nclib
%pip install -q ".[notebooks]\""""
"""The first cell on Colab, which has only the notebook: the project, its folder as the working one, its packages."""

VERDICT_COLUMNS = ("verdict", "slope is", "printed against ours")
"""What tables of the sister papers call their verdicts."""

_NEEDED = {
    "sphinx": "sphinx",
    "myst-nb": "myst_nb",
    "sphinx-book-theme": "sphinx_book_theme",
    "latex2mathml": "latex2mathml",
}


class ReportError(RuntimeError):
    """There is no site to be had, with what to do; an older one is left as it was."""

    exit_code = 1


class SphinxMissing(ReportError):
    """What makes the pages is not installed."""


# --- what there is ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Artefact:
    """A figure or table of the profile: its record, and the endings that are on the disk."""

    kind: str  # "figures" or "tables"
    record: dict[str, Any]
    endings: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.record["name"]

    def path(self, ending: str) -> str:
        """Relative to the profile's results, and to the site."""
        return f"{self.kind}/{self.name}.{ending}"


@dataclass(frozen=True)
class Page:
    """An executed notebook and what it left behind."""

    name: str  # "paper/notebook"
    content: bytes
    artefacts: tuple[Artefact, ...]

    @cached_property
    def notebook(self) -> dict[str, Any]:
        return json.loads(self.content)

    @cached_property
    def title(self) -> str:
        """Its first heading; its name where it has none."""
        texts = (_text(cell) for cell in self.notebook["cells"] if cell["cell_type"] == "markdown")
        found = re.search(r"^# +(.+)$", next(texts, ""), flags=re.MULTILINE)
        return found[1].strip() if found else self.name.split("/")[-1].replace("_", " ")

    @property
    def short(self) -> str:
        """The title up to its first point: what fits into a list. A number alone says too little."""
        head = self.title.partition(" · ")[0]
        return self.title if head.isdigit() else head

    @property
    def execution(self) -> dict[str, Any]:
        """Parameters, start, end and duration, as noted by what executed it; empty when run by hand."""
        return self.notebook["metadata"].get("papermill", {})

    @property
    def parameters(self) -> dict[str, Any]:
        """Those that are not the profile's own."""
        return other_parameters.other_values([self.execution.get("parameters", {})])

    @property
    def runs(self) -> list[str]:
        return sorted({run for artefact in self.artefacts for run in artefact.record["runs"]})

    @property
    def up(self) -> str:
        """From the page to the root of the site."""
        return "../" * self.name.count("/")


@dataclass(frozen=True)
class Sources:
    """All that a site is made of."""

    profile: str
    pages: tuple[Page, ...]
    others: tuple[Artefact, ...]  # figures and tables whose notebook has not been executed as a whole
    failed: dict[str, str]  # notebooks whose last execution failed, and why

    @property
    def title(self) -> str:
        """The profile, and all parameters that are not its own."""
        others = other_parameters.other_values(page.parameters for page in self.pages)
        return other_parameters.in_words(self.profile, others)


def collect(profile: str) -> Sources:
    """What was executed in a profile, or of it with other parameters (`nclib.system.other_parameters`), in the order of
    the book.

    Raises: ConfigError for an unknown profile, ReportError where nothing has been executed or a file is damaged.
    """
    folder = paths.results(profile)
    found = {path.relative_to(folder / "notebooks").with_suffix("").as_posix(): path for path in _notebooks(folder)}
    if not found:
        from nclib.engine import profiles

        profiles.get_profile(profile)
        raise ReportError(f"no notebook has been executed in {folder} yet; type: nclib reproduce --profile {profile}")
    owned: dict[str, list[Artefact]] = {name: [] for name in found}
    others = []
    for artefact in _artefacts(folder):
        owners = [name for name in found if re.fullmatch(rf"{re.escape(name)}([_./-].*)?", artefact.name)]
        (owned[max(owners, key=len)] if owners else others).append(artefact)
    names = sorted(found, key=_reading_order)
    pages = tuple(Page(name, paths.content(found[name]), tuple(owned[name])) for name in names)
    for page in pages:
        try:
            page.notebook["cells"], page.execution
        except (ValueError, KeyError, TypeError) as error:
            again = f"nclib reproduce {page.name} --profile {profile} --force"
            raise ReportError(f"{found[page.name]} is no notebook that can be read ({error}); type: {again}") from None
    return Sources(profile, pages, tuple(others), _failures(folder))


def _notebooks(folder: Path) -> Iterator[Path]:
    found = (path for path in folder.glob("notebooks/*/[!.]*.ipynb") if path.is_file())
    return (path for path in found if not path.stem.endswith(".failed"))


def _artefacts(folder: Path) -> Iterator[Artefact]:
    for kind in ("figures", "tables"):
        for path in sorted((folder / kind).glob("**/[!.]*.json")):
            record = _record_beside(path, path.relative_to(folder / kind).with_suffix("").as_posix())
            endings = (file.rpartition(".")[2] for file in record["files"])
            there = tuple(ending for ending in endings if path.with_name(f"{path.stem}.{ending}").is_file())
            yield Artefact(kind, record, there)


def _record_beside(path: Path, name: str) -> dict[str, Any]:
    """The record of a figure or table, which must be the one of this name and of files beside it."""
    try:
        record = json.loads(paths.content(path))
        record["caption"], record["runs"]
        if record["name"] != name or not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name):
            raise ValueError(f"it is that of {record['name']!r:.100}")
        if foreign := [file for file in record["files"] if not re.fullmatch(rf"{re.escape(path.stem)}\.\w+", file)]:
            raise ValueError(f"it lists {foreign[0]!r:.100}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportError(f"{path} is damaged ({error}); execute its notebook again, with --force") from None
    return record


def _reading_order(name: str) -> list[Any]:
    part, _, notebook = name.partition("/")
    place = list(PARTS).index(part) if part in PARTS else len(PARTS)
    numbers = [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", notebook)]
    printed = 0 if re.match(r"\d|fig|table|theorem", notebook) else 1
    return [place, part, printed, numbers]


def _failures(folder: Path) -> dict[str, str]:
    said: dict[str, str] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # it may lack, or be older
        rows = json.loads(paths.content(folder / "summary.json"))["notebooks"]
        said = {row["notebook"]: row["message"] for row in rows if row["message"]}
    kept = (path.relative_to(folder / "notebooks").as_posix() for path in folder.glob("notebooks/*/*.failed.ipynb"))
    return {name: "" for name in sorted(file.removesuffix(".failed.ipynb") for file in kept)} | said


# --- building -----------------------------------------------------------------------------------------------


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
        _lay_out(sources, aside / "sources", echo)
        _run_sphinx(sources.title, aside, echo)
        _add_downloads(sources, aside / "html")
        (aside / "html" / _NOTE).write_text(key, encoding="utf-8")
        _swap(aside / "html", site, aside / "old")
    echo(f"{len(sources.pages)} notebooks and {len(_figures(sources))} figures in {landing}")
    return landing


_NOTE = ".inputs"  # in the site: the key of what it was made from


def _require_sphinx() -> None:
    lacking = [name for name, module in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if lacking:
        raise SphinxMissing(
            f'the site is made by Sphinx, and {", ".join(lacking)} is not installed; type: pip install "nclib[book]"'
        )


def _key(sources: Sources) -> str:
    """Changes with notebooks, figures, tables, the book's own pages, and what makes them. Figures and tables count
    by their records, which hold their digests."""
    package = Path(__file__).resolve().parents[1]
    makers = [package / f"{name}.py" for name in ("publish/report", "publish/scorecard", "system/words")]
    files = [*makers, *sorted(_book().glob("**/*.*"))]
    files += [picture for page in _book().glob("*.md") for picture in _pictures(page).values()]
    artefacts = [*sources.others, *(artefact for page in sources.pages for artefact in page.artefacts)]
    parts = [
        sources.failed,
        {page.name: _sha256(page.content) for page in sources.pages},
        [(artefact.record, artefact.endings) for artefact in artefacts],
        [(file.name, _sha256(file.read_bytes())) for file in files if file.is_file()],
        _repository(),
        {name: importlib.metadata.version(name) for name in _NEEDED},
    ]
    return _sha256(json.dumps(parts, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace")
    said = done.stderr.replace(f"{aside / 'sources'}{os.sep}", "").strip().splitlines()
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


# --- sources for Sphinx -------------------------------------------------------------------------------------


def _book() -> Path:
    return paths.root() / "book"


def _lay_out(sources: Sources, folder: Path, echo: Callable[[str], None]) -> None:
    for page in sources.pages:
        _write(folder / f"{page.name}.ipynb", json.dumps(_with_facts(page, sources)))
    notes = sorted(_book().glob("*.md"))
    for note in notes:
        _write(folder / "book" / note.name, note.read_text(encoding="utf-8"))
        for link, picture in _pictures(note).items():
            target = Path(os.path.normpath(folder / "book" / link))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, target)
    _write(folder / "index.md", _landing(sources, [note.stem for note in notes], echo))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _pictures(page: Path) -> dict[str, Path]:
    """Files that a page of the book shows, by their links."""
    links = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return {link: path for link in links if (path := page.parent / link).exists()}


def _with_facts(page: Page, sources: Sources) -> dict[str, Any]:
    """The notebook as it is shown: facts under its title, how it was made at its end, code folded, links to the next.

    The cell of injected values is left out, since they stand in the table at the end.
    """
    names = {other.name for other in sources.pages}
    cells = [_shown(cell, page, names) for cell in page.notebook["cells"]]
    facts = {"cell_type": "markdown", "id": "nclib-facts", "metadata": {}, "source": _facts(page, sources)}
    record = {"cell_type": "markdown", "id": "nclib-record", "metadata": {}, "source": _record(page)}
    return {**page.notebook, "cells": [*cells[:1], facts, *cells[1:], record]}


def _shown(cell: Mapping[str, Any], page: Page, names: set[str]) -> dict[str, Any]:
    folder = page.name.split("/")[0]
    if cell["cell_type"] != "code":
        return {**cell, "source": _link_next(_text(cell), folder, names)}
    tags = list(cell["metadata"].get("tags", []))
    tags += ["remove-cell"] * ("injected-parameters" in tags) + ["hide-input"] * (folder not in OPEN_CODE)
    picture = {"image": {"alt": f"drawn by the code above; captions of {page.short} stand at the end of the page"}}
    return {**cell, "metadata": {**cell["metadata"], "tags": tags, "mystnb": picture}}


def _link_next(text: str, folder: str, names: set[str]) -> str:
    """Notebooks that a line beginning with "Next" names as `code` become links, where they are in the book."""

    def link(code: re.Match[str]) -> str:
        name = code[1] if "/" in code[1] else f"{folder}/{code[1]}"
        return f"[{code[0]}](/{name}.ipynb)" if name in names else code[0]

    return re.sub(r"^Next\b.*$", lambda line: re.sub(r"`([\w/]+)`", link, line[0]), text, flags=re.MULTILINE)


def _text(cell: Mapping[str, Any]) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


# --- pages of notebooks -------------------------------------------------------------------------------------


def _facts(page: Page, sources: Sources) -> str:
    profile = other_parameters.in_words(sources.profile, page.parameters)
    facts = [f"profile <b>{_plain(profile)}</b>", *map(_plain, _when(page))]
    if page.runs:
        facts.append(_plain(f"{len(page.runs)} trained runs{_training(page.runs)}"))
    files = [(f"{page.up}notebooks/{page.name}.ipynb", "notebook (.ipynb)")]
    for artefact in page.artefacts:
        ending = "pdf" if artefact.kind == "figures" else "csv"
        if ending in artefact.endings:
            files.append((f"{page.up}{artefact.path(ending)}", f"{artefact.name.split('/')[-1]}.{ending}"))
    links = " ".join([*(_download(*file) for file in files), *_elsewhere(page.name)])
    lines = [f"<span>{fact}</span>" for fact in facts]
    lines.append(f'<span class="nc-links">{links} <a href="#how-this-page-was-made">how it was made</a></span>')
    alert = ""
    if page.name in sources.failed:
        said = f"The last attempt to execute this notebook failed: {sources.failed[page.name] or 'see its failed copy'}"
        alert = f'<div class="nc-alert">{_plain(said)}. Shown is the last complete execution.</div>\n'
    return alert + f'<div class="nc-facts">{"".join(lines)}</div>'


def _when(page: Page) -> list[str]:
    noted = page.execution
    if not noted.get("end_time"):
        return ["executed by hand"]
    return [f"executed {_date(noted['end_time'])}", f"{noted['duration']:.0f} s for its cells"]


def _date(text: str) -> str:
    moment = datetime.fromisoformat(text)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def _training(runs: Sequence[str]) -> str:
    """What training took, where all records are here: reference runs come without."""
    try:
        records = [json.loads(paths.content(paths.runs() / run / "provenance.json")) for run in runs]
        seconds = sum(provenance.processor_seconds(record) for record in records)
        return f", {seconds / 60:.1f} min of processor time"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return ""


def _record(page: Page) -> str:
    """The last section of a page."""
    parts = ["## How this page was made", _parameters(page)]
    circumstances = _circumstances(page)
    if circumstances:
        parts.append(_table(circumstances, "nc-record"))
    if page.artefacts:
        parts += ["### Figures and tables to download", _files(page)]
    return "\n\n".join(parts)


def _parameters(page: Page) -> str:
    """The values in force: those of the parameters cell, overruled by the injected ones."""
    cells = page.notebook["cells"]
    tagged = {tag: _text(cell) for cell in cells for tag in cell["metadata"].get("tags", [])}
    injected = page.execution.get("parameters", {})
    line = re.compile(r"^(\w+): *\w+ *= *(.+?)(?: +# *(.*))?$", flags=re.MULTILINE)
    rows = [("parameter", "value", "meaning")]
    for name, default, meaning in line.findall(tagged.get("parameters", "")):
        value = json.dumps(injected[name], ensure_ascii=False) if name in injected else default
        rows.append((name, value, meaning))
    return _table(rows, "nc-parameters", header=True) if len(rows) > 1 else ""


def _circumstances(page: Page) -> list[tuple[str, str]]:
    """Where and with what the figures and tables were made: every value that occurs in their records."""
    records = [artefact.record for artefact in page.artefacts]
    rows = [("executed", ", ".join(_when(page)))]
    if page.runs:
        rows.append(("runs", f"{len(page.runs)}{_training(page.runs)}: {', '.join(page.runs)}"))

    def values(of: Callable[[dict[str, Any]], Any]) -> str:
        found = {str(of(record)) for record in records} - {"None"}
        return ", ".join(sorted(found))

    rows += [
        ("commit", values(lambda record: _commit(record))),
        ("versions", values(lambda record: ", ".join(f"{k} {v}" for k, v in record["versions"].items()))),
        ("machine", values(lambda record: f"Python {record['python']}, {record['platform']}, {record['cpu']}")),
        ("device", values(lambda record: record["device"].get("name") or record["device"]["type"])),
        ("threads", values(lambda record: record["threads"])),
        ("cost", values(lambda record: record["cost"] and ", ".join(f"{k} {v}" for k, v in record["cost"].items()))),
    ]
    return [row for row in rows if row[1]]


def _commit(record: Mapping[str, Any]) -> str | None:
    return record["commit"] and record["commit"][:12] + " with changes" * bool(record["dirty"])


def _files(page: Page) -> str:
    items = []
    for artefact in page.artefacts:
        links = " ".join(_download(page.up + artefact.path(ending), ending) for ending in artefact.endings)
        caption = _plain(artefact.record["caption"])
        items.append(f"<li><b>{_plain(artefact.name.split('/')[-1])}</b> {_links(links)}<p>{caption}</p></li>")
    return f'<ul class="nc-files">{"".join(items)}</ul>'


# --- landing page -------------------------------------------------------------------------------------------


def _landing(sources: Sources, notes: Sequence[str], echo: Callable[[str], None]) -> str:
    dates = sorted(page.execution["end_time"] for page in sources.pages if page.execution.get("end_time"))
    span = f", executed between {_date(dates[0])} and {_date(dates[-1])}" if dates else ""
    title = "Deep equilibrium models and neural collapse"
    about = (
        "This is the companion of three papers on what deep equilibrium models learn, made from "
        f"{len(sources.pages)} notebooks of profile <b>{_plain(sources.title)}</b>{span}. "
        "Every figure, table and number below was computed; its caption says with which data, network and seeds, and "
        "its page how."
    )
    parts = [f"# {title}", about, _alerts(sources)]
    scorecards = [*_scorecard(sources, echo), *_verdicts_of_others(sources, echo)]
    parts += ["## Scorecard", _legend(), *scorecards] if scorecards else []
    parts += ["## Notebooks", *_contents(sources), "## Figures", *_gallery(sources), *_in_a_browser()]
    for part, pages in _by_part(sources).items():
        parts.append(_toctree(part, [f"{page.short} <{page.name}>" for page in pages]))
    if notes:
        parts.append(_toctree("Notes", [f"book/{note}" for note in notes]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _toctree(caption: str, entries: Iterable[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```"])


def _by_part(sources: Sources) -> dict[str, list[Page]]:
    parts: dict[str, list[Page]] = {}
    for page in sources.pages:
        parts.setdefault(_heading(page.name), []).append(page)
    return parts


def _heading(name: str) -> str:
    folder = name.split("/")[0]
    return PARTS.get(folder, folder.replace("_", " "))


def _alerts(sources: Sources) -> str:
    said = [f"{name}{f': {message}' if message else ''}" for name, message in sources.failed.items()]
    lines = "".join(f"<li>{_plain(line)}</li>" for line in said)
    text = "The last attempt to execute these notebooks failed; the book lacks them, or shows an earlier execution."
    return f'<div class="nc-alert">{text}<ul>{lines}</ul></div>' if said else ""


def _scorecard(sources: Sources, echo: Callable[[str], None]) -> list[str]:
    """What became of the main paper's claims; empty where none of its notebooks has been executed."""
    from nclib.publish import scorecard

    pages = {page.name for page in sources.pages if page.name.startswith("neural_collapse/")}
    if not pages:
        return []
    heading = f"### {PARTS['neural_collapse']}"
    try:
        card = scorecard.score_claims(sources.profile)
    except scorecard.StaleTable as error:
        return [heading, _no_scorecard(error, echo)]
    parts = [
        heading,
        "What was stated, what came out here, and the verdict by the notebook's rule. Open a part to read.",
    ]
    head = ("claim or cell", "printed", "regenerated", "± 95 %", "seeds", "verdict", "scale", "remark")
    idle = card["remark"] == "not regenerated"
    for part, rows in card[~idle].groupby("part", sort=False):
        chips = _count_chips(rows["verdict"], rows["scale"], part)
        parts.append(_fold(part, chips, head, [_score_row(row, pages) for row in rows.itertuples()]))
    lacking = list(dict.fromkeys(card.loc[idle, "notebook"]))
    if lacking:
        parts.append(f"Not regenerated in this profile yet: {', '.join(f'`{name}`' for name in lacking)}.")
    return parts


def _verdicts_of_others(sources: Sources, echo: Callable[[str], None]) -> list[str]:
    """The tables of the sister papers that give verdicts, as their notebooks saved them. Where a notebook of the name
    ``verdicts`` has collected those of its folder, only its."""
    from nclib.publish import scorecard

    parts: list[str] = []
    for heading, pages in _by_part(sources).items():
        others = [page for page in pages if page.name.split("/")[0] not in ("neural_collapse", *OPEN_CODE)]
        folds: list[str] = []
        for page in [page for page in others if page.name.endswith("/verdicts")] or others:
            names = [artefact.name for artefact in page.artefacts if artefact.kind == "tables"]
            try:
                tables = [found[0] for name in names if (found := scorecard.read_table(name, sources.profile))]
            except scorecard.StaleTable as error:
                folds.append(_no_scorecard(error, echo))
                continue
            folds += [fold for table in tables for fold in _verdict_table(page, table)]
        parts += [f"### {heading}", *folds] if folds else []
    return parts


def _no_scorecard(error: Exception, echo: Callable[[str], None]) -> str:
    echo(f"no scorecard: {error}")
    return f'<div class="nc-alert">No scorecard: {_plain(str(error))}</div>'


def _verdict_table(page: Page, table: Any) -> list[str]:
    """Nothing for a table without verdicts. The rules stand on the page."""
    table = table.drop(columns=["rule", "computed"], errors="ignore")
    for column in set(table) & set(VERDICT_COLUMNS):
        lines = []
        for row in table.to_dict("records"):
            cells = (_verdict(value) if name == column else _value(value) for name, value in row.items())
            lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        title = f'<a href="{page.name}.html">{_plain(page.short)}</a>'
        chips = _count_chips(table[column], table.get("scale", [""] * len(table)))
        return [_fold(title, chips, list(table), lines)]
    return []


def _value(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.3g}"
    return _plain(str(value))


def _legend() -> str:
    """What every word of a verdict means."""
    groups = {
        "theorems and steps of proofs": words.STATEMENTS,
        "claims from experiments": words.CLAIMS,
        "comparisons of our own": words.COMPARISONS,
        "scale of the evidence": words.SCALES,
    }
    lines = [
        f"<tr><td>{_plain(kind)}</td><td>{_verdict(word)}</td><td>{_plain(meaning)}</td></tr>"
        for kind, meanings in groups.items()
        for word, meaning in meanings.items()
    ]
    return _fold("what the words mean", "", ("said of", "word", "meaning"), lines)


def _count_chips(verdicts: Iterable[str], scales: Iterable[Any], part: str = "") -> str:
    """How often each verdict was given at each scale, the most frequent first."""
    pairs = zip(verdicts, (scale if isinstance(scale, str) else "" for scale in scales), strict=True)
    return " ".join(
        _verdict(text, part, f"{count} ", f" · {scale}" if scale else "")
        for (text, scale), count in Counter(pairs).most_common()
    )


def _fold(title: str, chips: str, head: Sequence[str], lines: Sequence[str]) -> str:
    """Rows behind a line that counts their verdicts."""
    return (
        f'<details class="nc-score"><summary><b>{title}</b> {chips}</summary>'
        f'<div class="nc-scroll"><table>{_rows([head], "th")}{"".join(lines)}</table></div></details>'
    )


def _score_row(row: Any, pages: set[str]) -> str:
    item, page = _plain(row.item), f"neural_collapse/{row.notebook}"
    linked = f'<a href="{page}.html">{item}</a>' if page in pages else item
    half = "" if row.interval != row.interval else f"{row.interval:.3g}"
    seeds = "" if row.seeds != row.seeds else f"{row.seeds:.0f}"
    texts = (row.printed, row.regenerated, row.scale, row.remark)
    printed, ours, scale, remark = (_plain(text) if isinstance(text, str) else "" for text in texts)
    cells = f"<td>{linked}</td><td>{printed}</td><td>{ours}</td>"
    cells += f'<td class="nc-number">{half}</td><td>{seeds}</td><td>{_verdict(row.verdict, row.part)}</td>'
    return f"<tr>{cells}<td>{scale}</td><td>{remark}</td></tr>"


def _verdict(text: str, part: str = "", before: str = "", after: str = "") -> str:
    """A chip in the tone of its word; beyond the paper nothing is a claim of it, so nothing is red."""
    tone = words.tone(text)
    tone = "" if tone is None or (tone, part) == ("against", "beyond the paper") else f" nc-{tone}"
    return f'<span class="nc-verdict{tone}">{before}{_plain(text)}{after}</span>'


def _contents(sources: Sources) -> list[str]:
    parts = []
    for part, pages in _by_part(sources).items():
        parts.append(f"### {part}")
        parts.append("\n".join(f"- [{page.title}]({page.name}.ipynb)" for page in pages))
    return parts


def _figures(sources: Sources) -> list[tuple[Page | None, Artefact]]:
    found: list[tuple[Page | None, Artefact]] = [(page, made) for page in sources.pages for made in page.artefacts]
    found += [(None, made) for made in sources.others]
    return [(page, made) for page, made in found if made.kind == "figures" and "png" in made.endings]


def _gallery(sources: Sources) -> list[str]:
    cards: dict[str, list[str]] = {}
    for page, artefact in _figures(sources):
        cards.setdefault(_heading(artefact.name), []).append(_card(page, artefact))
    parts = []
    for part, figures in cards.items():
        parts += [f"### {part}", f'<div class="nc-gallery">{"".join(figures)}</div>']
    return parts


def _card(page: Page | None, artefact: Artefact) -> str:
    caption = _plain(artefact.record["caption"])
    first = re.split(r"(?<=[^\WA-Z_])\. (?=[A-Z])|(?<=[)\]])\. (?=[A-Z])", artefact.record["caption"], maxsplit=1)[0]
    target = html.escape(f"{page.name}.html" if page else artefact.path("png"))
    title = artefact.name
    if page:  # a notebook's further figures by what their names add to its own
        added = artefact.name.removeprefix(page.name).strip("_./-").replace("_", " ")
        title = f"{page.short} · {added}" if added else page.short
    picture = f'<img loading="lazy" src="{html.escape(artefact.path("png"))}" alt="{caption}">'
    links = " ".join(_download(artefact.path(ending), ending) for ending in artefact.endings)
    return (
        f'<figure><a href="{target}">{picture}</a><figcaption><b><a href="{target}">{_plain(title)}</a></b>'
        f"<p>{_plain(first).rstrip('.')}.</p>{_links(links)}</figcaption></figure>"
    )


# --- running a notebook without installing anything ---------------------------------------------------------


def _repository() -> str | None:
    """``owner/name`` of the repository on GitHub that this one was cloned from: Binder and Colab read from there."""
    found = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", provenance.git_origin() or "")
    return found[1] if found else None


def _elsewhere(name: str) -> list[str]:
    """Links that open a notebook on Binder and Colab; none where the repository has no address there."""
    repository = _repository()
    if not repository:
        return []
    return [f'<a href="{link}">open in {service}</a>' for service, link in _services(repository, name).items()]


def _services(repository: str, name: str) -> dict[str, str]:
    file = f"notebooks/{name}.ipynb"
    return {
        "Binder": f"https://mybinder.org/v2/gh/{repository}/HEAD?urlpath=lab/tree/{file}",
        "Colab": f"https://colab.research.google.com/github/{repository}/blob/{BRANCH}/{file}",
    }


def _in_a_browser() -> list[str]:
    """The section of the landing page for readers who have installed nothing."""
    repository = _repository()
    if not repository:
        return []
    return [
        "## In a browser, with nothing installed",
        "Each page has links that open its notebook, to be run and changed, on Binder and Colab; "
        f"[GitHub Codespaces](https://codespaces.new/{repository}) opens the whole project. On Binder and in a "
        "codespace everything is installed. On Colab this comes first, as a cell of its own:",
        f"```\n{COLAB.format(address=f'https://github.com/{repository}')}\n```",
    ]


# --- fragments of HTML --------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """Text as HTML on one line: a blank line would end the block that stands in the Markdown."""
    return html.escape(" ".join(str(text).split()))


def _download(target: str, text: str) -> str:
    return f'<a href="{html.escape(target)}" download>{_plain(text)}</a>'


def _links(links: str) -> str:
    return f'<span class="nc-links">{links}</span>'


def _table(rows: Sequence[Sequence[str]], kind: str, header: bool = False) -> str:
    """Rows whose first cell names them."""
    head, body = (rows[:1], rows[1:]) if header else ([], rows)
    lines = "".join(f"<tr><th>{_plain(name)}</th>{_cells(rest)}</tr>" for name, *rest in body)
    return f'<div class="nc-scroll"><table class="{kind}">{_rows(head, "th")}{lines}</table></div>'


def _rows(rows: Iterable[Sequence[str]], tag: str) -> str:
    return "".join(f"<tr>{_cells(row, tag)}</tr>" for row in rows)


def _cells(cells: Iterable[str], tag: str = "td") -> str:
    return "".join(f"<{tag}>{_plain(cell)}</{tag}>" for cell in cells)
