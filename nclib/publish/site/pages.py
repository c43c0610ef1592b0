"""The page of a notebook: facts under its title, folded code, and at its end how it was made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nclib.publish.site.elsewhere import elsewhere_links
from nclib.publish.site.fragments import date_text, download_link, link_list, named_table, plain
from nclib.publish.site.sources import OPEN_CODE, Page, Sources, cell_text
from nclib.system import other_parameters, paths, provenance


def with_facts(page: Page, sources: Sources) -> dict[str, Any]:
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
        return {**cell, "source": _link_next(cell_text(cell), folder, names)}
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


def _facts(page: Page, sources: Sources) -> str:
    profile = other_parameters.in_words(sources.profile, page.parameters)
    facts = [f"profile <b>{plain(profile)}</b>", *map(plain, _when(page))]
    if page.runs:
        facts.append(plain(f"{len(page.runs)} trained runs{_training(page.runs)}"))
    files = [(f"{page.up}notebooks/{page.name}.ipynb", "notebook (.ipynb)")]
    for artefact in page.artefacts:
        ending = "pdf" if artefact.kind == "figures" else "csv"
        if ending in artefact.endings:
            files.append((f"{page.up}{artefact.path(ending)}", f"{artefact.name.split('/')[-1]}.{ending}"))
    links = " ".join([*(download_link(*file) for file in files), *elsewhere_links(page.name)])
    lines = [f"<span>{fact}</span>" for fact in facts]
    lines.append(f'<span class="nc-links">{links} <a href="#how-this-page-was-made">how it was made</a></span>')
    alert = ""
    if page.name in sources.failed:
        said = f"The last attempt to execute this notebook failed: {sources.failed[page.name] or 'see its failed copy'}"
        alert = f'<div class="nc-alert">{plain(said)}. Shown is the last complete execution.</div>\n'
    return alert + f'<div class="nc-facts">{"".join(lines)}</div>'


def _when(page: Page) -> list[str]:
    noted = page.execution
    if not noted.get("end_time"):
        return ["executed by hand"]
    return [f"executed {date_text(noted['end_time'])}", f"{noted['duration']:.0f} s for its cells"]


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
        parts.append(named_table(circumstances, "nc-record"))
    if page.artefacts:
        parts += ["### Figures and tables to download", _files(page)]
    return "\n\n".join(parts)


def _parameters(page: Page) -> str:
    """The values in force: those of the parameters cell, overruled by the injected ones."""
    cells = page.notebook["cells"]
    tagged = {tag: cell_text(cell) for cell in cells for tag in cell["metadata"].get("tags", [])}
    injected = page.execution.get("parameters", {})
    line = re.compile(r"^(\w+): *\w+ *= *(.+?)(?: +# *(.*))?$", flags=re.MULTILINE)
    rows = [("parameter", "value", "meaning")]
    for name, default, meaning in line.findall(tagged.get("parameters", "")):
        value = json.dumps(injected[name], ensure_ascii=False) if name in injected else default
        rows.append((name, value, meaning))
    return named_table(rows, "nc-parameters", header=True) if len(rows) > 1 else ""


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
        links = " ".join(download_link(page.up + artefact.path(ending), ending) for ending in artefact.endings)
        caption = plain(artefact.record["caption"])
        items.append(f"<li><b>{plain(artefact.name.split('/')[-1])}</b> {link_list(links)}<p>{caption}</p></li>")
    return f'<ul class="nc-files">{"".join(items)}</ul>'
