"""The page of a notebook: facts under its title, folded code, and at its end how it was made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from companion.site import points
from companion.site.elsewhere import elsewhere_links
from companion.site.fragments import date_text, download_link, fold, link_list, named_table, plain, scale_line
from companion.site.sources import Page, Sources
from nclib.publish.answer import Answer, read_answer
from nclib.publish.notebooks import text_of
from nclib.system import other_parameters, paths, provenance

RECORDS = ("nc.plan(", "nc.runs_provenance(", 'pd.read_json(files["json"]')
"""How a line begins whose table lists runs, versions and machines: on a page it stands folded at the end."""


def with_facts(page: Page, sources: Sources) -> dict[str, Any]:
    """The notebook as it is shown: the answer under its claim, and at its end, folded, how it was made.

    The course keeps its code where it is. Elsewhere the code, and tables of runs and versions, come at the end.
    The cell of injected values is left out, since they stand in the table of parameters. Where the notebook was drawn
    at a larger scale than the profile's, its page shows that, and below it what the profile's own scale gave.
    """
    names = {other.name for other in sources.pages}
    cells = [_shown(cell, page, names) for cell in page.notebook["cells"]]
    last = [] if page.in_course else [cell for cell in cells if _is_record(cell)]
    body = [cell for cell in cells[1:] if cell not in last]
    if points.table_of(page, sources.profile) is not None:
        body.append(_markdown("points", f"## Point at an image\n\n{points.frame(page)}"))
    if page.beside:
        below = [_shown(cell, page.beside, names) for cell in page.beside.notebook["cells"]]
        below = [{**cell, "id": f"beside-{number}"} for number, cell in enumerate(below)]
        body += [_markdown("beside", f"## The same on {page.beside.drawn.images}"), *_outputs(below)]
        if points.table_of(page.beside, sources.profile) is not None:
            body.append(_markdown("points-beside", f"### Point at an image\n\n{points.frame(page.beside)}"))
        last += [cell for cell in below if _is_record(cell)]
    facts, record = _markdown("facts", _facts(page, sources)), _markdown("record", _record(page))
    # The rest of its metadata are settings of what makes the page, and could start a kernel or evaluate text.
    metadata = {name: value for name, value in page.notebook["metadata"].items() if name in _METADATA}
    return {**page.notebook, "metadata": metadata, "cells": [*cells[:1], facts, *body, record, *last]}


_METADATA = ("kernelspec", "language_info")


def _markdown(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": f"nclib-{name}", "metadata": {}, "source": text}


def _outputs(cells: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Cells that show something, each under the last heading before it; the text stands above already."""
    heading = ""
    for cell in cells[1:]:
        if cell["cell_type"] == "markdown":
            found = re.findall(r"^## +(.+)$", cell["source"], flags=re.MULTILINE)
            heading = found[-1] if found else heading
        elif cell["outputs"] and "remove-cell" not in cell["metadata"]["tags"] and not _is_record(cell):
            if heading:
                yield _markdown(f"{cell['id']}-heading", f"### {heading}")
            heading = ""
            yield cell


def _is_record(cell: Mapping[str, Any]) -> bool:
    return cell["cell_type"] == "code" and any(line.startswith(RECORDS) for line in text_of(cell).splitlines())


def _shown(cell: Mapping[str, Any], page: Page, names: set[str]) -> dict[str, Any]:
    if cell["cell_type"] != "code":
        return {**cell, "source": _link_next(text_of(cell), page.name.split("/")[0], names)}
    tags = list(cell["metadata"].get("tags", []))
    shown = {"image": {"alt": f"drawn by the code of this page; captions of {page.short} stand at its end"}}
    if "injected-parameters" in tags or text_of(cell).startswith("nc.answer("):  # the page has its own box
        tags.append("remove-cell")
    elif not page.in_course:
        tags += ["remove-input"] + ["hide-output"] * _is_record(cell)
        shown |= {"code_prompt_show": "Show the record", "code_prompt_hide": "Hide the record"}
    return {**cell, "metadata": {"tags": tags, "mystnb": shown}}


def _link_next(text: str, folder: str, names: set[str]) -> str:
    """Notebooks that a line beginning with "Next" names as `code` become links, where they are in the book."""

    def link(code: re.Match[str]) -> str:
        name = code[1] if "/" in code[1] else f"{folder}/{code[1]}"
        return f"[{code[0]}](/{name}.ipynb)" if name in names else code[0]

    return re.sub(r"^Next\b.*$", lambda line: re.sub(r"`([\w/]+)`", link, line[0]), text, flags=re.MULTILINE)


def _facts(page: Page, sources: Sources) -> str:
    """What stands under the claim: the answer, the profile, and where the rest is."""
    profile = other_parameters.in_words(page.drawn.profile or sources.profile, page.parameters)
    links = [download_link(page.up + page.file, "notebook (.ipynb)"), *elsewhere_links(page.name)]
    links.append('<a href="#how-this-page-was-made">how it was made</a>')
    facts = f'<div class="nc-facts"><span>profile <b>{plain(profile)}</b></span>{link_list(" ".join(links))}</div>'
    alert = ""
    if page.name in sources.failed:
        said = f"The last attempt to execute this notebook failed: {sources.failed[page.name] or 'see its failed copy'}"
        alert = f'<div class="nc-alert">{plain(said)}. Shown is the last complete execution.</div>\n'
    return alert + "".join(_box(drawing, sources) for drawing in page.drawings) + facts


def _box(page: Page, sources: Sources) -> str:
    """The answer at the scale of one drawing."""
    with page.drawn.results(sources.profile):
        box = read_answer(page.name, page.drawn.profile or sources.profile)
    if box == Answer():
        return "" if page.in_course else Answer(note="No claim is judged on this page.")._repr_html_()
    return scale_line(page.drawn) * bool(page.runs) + box._repr_html_()


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
    parts = ["## How this page was made"]
    for drawing in page.drawings:
        on = f", {drawing.drawn.images}" if page.beside else ""
        parts += [fold(f"When, where and with which runs{on}", named_table(_circumstances(drawing), "nc-record"))]
        parts += [fold(f"Parameters{on}", table) for table in [_parameters(drawing)] if table]
        parts += [fold(f"Figures and tables to download{on}", _files(drawing))] * bool(drawing.artefacts)
    if not page.in_course:
        code = [cell for cell in page.notebook["cells"] if cell["cell_type"] == "code"]
        shown = (cell for cell in code if "injected-parameters" not in cell["metadata"].get("tags", []))
        listing = "```python\n" + "\n\n".join(map(text_of, shown)) + "\n```"
        parts.append(fold("Show the code", listing, "nc-code"))  # which is not printed while it is folded
    return "\n\n".join(parts)


def _parameters(page: Page) -> str:
    """The values in force: those of the parameters cell, overruled by the injected ones."""
    cells = page.notebook["cells"]
    tagged = {tag: text_of(cell) for cell in cells for tag in cell["metadata"].get("tags", [])}
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
