"""The answer under a claim: the verdicts of a notebook in a box, the same in the notebook and on its page."""

from __future__ import annotations

import html
import textwrap
import time
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nclib.publish import scorecard
from nclib.system import words

_COLOURS = {"for": "#2e7d32", "against": "#c62828", "partly": "#b26a00", None: "#757575"}
_LONGEST = 120
"""Letters of evidence in words; the table below has the whole."""
_MOST_LINES = 5
WAITING = "The answer appears here once the tables below have been computed."
_began: dict[str, float] = {}
"""When the answer of each notebook of this process was asked for."""


@dataclass(frozen=True)
class Answer:
    """A box: what was said of the claim, and what the scales mean.

    Parameters
    ----------
    lines : verdict, scale, and what it was said of
    note : what else there is to say
    """

    lines: tuple[tuple[str, str, str], ...] = ()
    note: str = ""

    def _repr_html_(self) -> str:
        parts = [f"{_chip(verdict, scale)} {html.escape(said)}" for verdict, scale, said in self.lines]
        parts += [f'<span style="opacity:.75">{html.escape(self.note)}</span>'] * bool(self.note)
        colour = _COLOURS[words.tone(self.lines[0][0]) if self.lines else None]
        style = f"border:1px solid {colour};border-left-width:5px;padding:.4rem .9rem;margin:.6rem 0"
        inner = "".join(f'<div style="margin:.2rem 0">{part}</div>' for part in parts)
        return f'<div class="nc-answer" style="{style}">{inner}</div>'

    def __repr__(self) -> str:
        said = [f"{_said(verdict, scale)}: {text}" for verdict, scale, text in self.lines]
        return "\n".join(filter(None, [*said, self.note]))


def read_answer(name: str, profile: str, since: float = 0.0) -> Answer:
    """The answer of a notebook, from the tables that it has saved: the row that the notebook names beforehand, then the
    first of the others for each verdict, and how many more there are.

    Parameters
    ----------
    name : "paper/notebook"
    profile : whose tables are read
    since : seconds since the epoch; tables written before are left out

    Returns
    -------
    Answer. It has no lines where the notebook judges nothing.
    """
    try:
        claims = scorecard.claims_of(name, profile, since)
    except scorecard.StaleTable as error:
        return Answer(note=f"No answer: {error}")
    lead = claims[claims["lead"].eq(True)]
    lines = [(row.verdict, row.scale, _in_words(row)) for row in lead.itertuples()]
    groups = [(*said, rows) for said, rows in claims.drop(lead.index).groupby(["verdict", "scale"], sort=False)]
    for verdict, scale, rows in sorted(groups, key=_place):
        more = f"; and {len(rows) - 1} more" if len(rows) > 1 else ""
        lines.append((verdict, scale, _in_words(next(rows.itertuples())) + more))
    scales = [f"{scale} scale: {words.SCALES[scale]}" for scale in dict.fromkeys(claims["scale"]) if scale]
    return Answer(tuple(lines[:_MOST_LINES]), "; ".join(scales))


def answer(name: str, profile: str) -> None:
    """Show the answer of a notebook where this is called; `save_table` fills it in.

    Parameters
    ----------
    name : "paper/notebook"
    profile : whose tables are read

    Examples
    --------
    >>> import nclib as nc
    >>> nc.publish.notes.answer("neural_collapse/fig3", "quick")
    The answer appears here once the tables below have been computed.
    """
    from IPython.display import display

    _began[name] = time.time()
    display(Answer(note=WAITING), display_id=name)


def fill_in(table: str, profile: str) -> None:
    """Show the answer that a notebook gives once this table of it is saved, where it asked for one."""
    from IPython import get_ipython
    from IPython.display import update_display

    for name in [name for name in _began if table.startswith(name)] if get_ipython() else []:
        if (now := read_answer(name, profile, _began[name])) != Answer():
            update_display(now, display_id=name)


def _place(group: tuple[str, str, Any]) -> tuple[bool, int, int]:
    """Where a verdict stands: those on experiments by how often they were given, so that none is singled out; those on
    statements, of which one may be false, by their tone."""
    verdict, scale, rows = group
    order = ("against", "partly", "for", None)
    return verdict == "not run", 0 if scale else order.index(words.tone(verdict)), -len(rows)


def _said(verdict: str, scale: str) -> str:
    return f"{verdict} ({scale} scale)" if scale else verdict


def _chip(verdict: str, scale: str) -> str:
    style = f"border:1px solid {_COLOURS[words.tone(verdict)]};border-radius:.7rem;padding:0 .5rem;font-weight:600"
    text = html.escape(f"{verdict} · {scale}" if scale else verdict)
    title = html.escape(words.meaning(verdict), quote=True)
    return f'<span class="nc-verdict" style="{style}" title="{title}">{text}</span>'


def _in_words(row: Any) -> str:
    """What a row was said of, the number with its interval, how many seeds and settings, what the paper says, and what
    else there is."""
    number = textwrap.shorten(row.regenerated, _LONGEST, placeholder=" …")
    number += f" ± {row.interval:.3g} (95 % interval)" if pd.notna(row.interval) and number else ""
    counts = [f"{row.seeds:.0f} seed{'' if row.seeds == 1 else 's'}" if row.seeds > 0 else ""]
    if pd.notna(row.settings_found):
        planned = f" of {row.settings_planned:.0f}" if pd.notna(row.settings_planned) else ""
        counts.append(f"{row.settings_found:.0f}{planned} settings")
    paper = f"the paper: {row.printed}" if row.printed else ""
    said = f"{row.item}: {number}" if number else row.item
    return "; ".join(filter(None, [said, ", ".join(filter(None, counts)), paper, row.remark]))
