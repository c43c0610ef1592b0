"""Small pieces of HTML that the pages of the site share."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any


def plain(text: str) -> str:
    """Text as HTML on one line: a blank line would end the block that stands in the Markdown."""
    return html.escape(" ".join(str(text).split()))


def as_markdown(text: str) -> str:
    """Text that Markdown shows letter for letter on one line, formulas aside."""
    parts = re.split(r"(\$[^$]*\$)", " ".join(text.split()))
    return "".join(part if at % 2 else re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", part) for at, part in enumerate(parts))


def download_link(target: str, text: str) -> str:
    return f'<a href="{html.escape(target)}" download>{plain(text)}</a>'


def scale_line(drawn: Any) -> str:
    """Images and scale of a `Drawn`; "" where nothing is said of them."""
    scale = f' <span class="nc-scale">{plain(drawn.scale)} scale</span>' if drawn.scale else ""
    return f'<div class="nc-images"><b>{plain(drawn.images)}</b>{scale}</div>' if drawn.images else ""


def link_list(links: str) -> str:
    return f'<span class="nc-links">{links}</span>'


def named_table(rows: Sequence[Sequence[str]], kind: str, header: bool = False) -> str:
    """Rows whose first cell names them."""
    head, body = (rows[:1], rows[1:]) if header else ([], rows)
    lines = "".join(f"<tr><th>{plain(name)}</th>{table_cells(rest)}</tr>" for name, *rest in body)
    return f'<div class="nc-scroll"><table class="{kind}">{table_rows(head, "th")}{lines}</table></div>'


def table_rows(rows: Iterable[Sequence[str]], tag: str) -> str:
    return "".join(f"<tr>{table_cells(row, tag)}</tr>" for row in rows)


def table_cells(cells: Iterable[str], tag: str = "td") -> str:
    return "".join(f"<{tag}>{plain(cell)}</{tag}>" for cell in cells)


def date_text(text: str) -> str:
    moment = datetime.fromisoformat(text)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def fold(title: str, content: str, kind: str = "") -> str:
    """HTML or Markdown behind a line to click on."""
    return f'<details class="nc-fold{kind and f" {kind}"}"><summary>{plain(title)}</summary>\n\n{content}\n\n</details>'


class _InScript(json.JSONEncoder):
    """JSON in which no text, such as the name of a class, can end the script that it stands in."""

    def encode(self, o: Any) -> str:
        return super().encode(o).replace("<", r"\u003c")


def stand_alone(chart: Any, head: str) -> str:
    """An Altair chart as one HTML file that asks for nothing outside itself; head: of that file."""
    options = {"renderer": "svg", "actions": False}
    made = chart.to_html(inline=True, embed_options=options, json_kwds={"cls": _InScript})
    return made.replace('<meta charset="UTF-8">', head, 1)
