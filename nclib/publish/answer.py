"""The answer under a claim: the verdicts of a notebook in a box, the same in the notebook and on its page."""

from __future__ import annotations

import html
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nclib.publish import scorecard
from nclib.system import words

_COLOURS = {"for": "#2e7d32", "against": "#c62828", "partly": "#b26a00", None: "#757575"}
_LONGEST = 120
"""Letters of evidence in words; the table below has the whole."""
_MOST_LINES = 5
WAITING = "The answer appears here once the tables below have been computed."


@dataclass(frozen=True)
class Answer:
    """A box: what was said of the claim, how often each verdict was given besides, and what the scales mean.

    Parameters
    ----------
    lines : verdict, scale, and what it was said of
    others : verdict, scale, and how many more rows have it
    note : what else there is to say
    """

    lines: tuple[tuple[str, str, str], ...] = ()
    others: tuple[tuple[str, str, int], ...] = ()
    note: str = ""

    @property
    def _counted(self) -> str:
        return "Other rows of this page" if self.lines else "Rows of this page"

    def _repr_html_(self) -> str:
        parts = [f"{_chip(verdict, scale)} {html.escape(said)}" for verdict, scale, said in self.lines]
        if self.others:
            chips = " ".join(_chip(verdict, scale, f"{count} ") for verdict, scale, count in self.others)
            parts.append(f"{self._counted}: {chips}")
        parts += [f'<span style="opacity:.75">{html.escape(self.note)}</span>'] * bool(self.note)
        colour = _COLOURS[words.tone(self.lines[0][0]) if self.lines else None]
        style = f"border:1px solid {colour};border-left-width:5px;padding:.4rem .9rem;margin:.6rem 0"
        inner = "".join(f'<div style="margin:.2rem 0">{part}</div>' for part in parts)
        return f'<div class="nc-answer" style="{style}">{inner}</div>'

    def __repr__(self) -> str:
        said = [f"{_said(verdict, scale)}: {text}" for verdict, scale, text in self.lines]
        others = ", ".join(f"{count} {_said(verdict, scale)}" for verdict, scale, count in self.others)
        counted = f"{self._counted}: {others}" if others else ""
        return "\n".join(filter(None, [*said, counted, self.note]))


def read_answer(name: str, profile: str, since: float = 0.0) -> Answer:
    """The answer of a notebook, from the same rows as the scorecard.

    First the row that the notebook names beforehand, with the number of the others by verdict. Where it names none,
    the first row of each verdict; where these would be many, their numbers alone.

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
    lead = claims[claims["lead"]]
    lines = [(row.verdict, row.scale, _in_words(row)) for row in lead.itertuples()]
    groups = [(*said, rows) for said, rows in claims.drop(lead.index).groupby(["verdict", "scale"], sort=False)]
    groups.sort(key=_place)
    if not lines and len(groups) <= _MOST_LINES:
        for verdict, scale, rows in groups:
            more = f"; and {len(rows) - 1} more" if len(rows) > 1 else ""
            lines.append((verdict, scale, _in_words(next(rows.itertuples())) + more))
        groups = []
    others = [(verdict, scale, len(rows)) for verdict, scale, rows in groups]
    scales = [f"{scale} scale: {words.SCALES[scale]}" for scale in dict.fromkeys(claims["scale"]) if scale]
    return Answer(tuple(lines), tuple(others), "; ".join(scales))


def answer(name: str, profile: str) -> None:
    """Show the answer of a notebook where this is called, and fill it in when its tables have been saved.

    Parameters
    ----------
    name : "paper/notebook"
    profile : whose tables are read

    Examples
    --------
    >>> import nclib as nc
    >>> nc.answer("neural_collapse/fig3", "quick")
    The answer appears here once the tables below have been computed.
    """
    from IPython import get_ipython
    from IPython.display import display

    began, shown = time.time(), Answer(note=WAITING)
    handle, shell = display(shown, display_id=True), get_ipython()
    if handle is None or shell is None:  # no front end that could change it later
        return

    def refresh(*_: Any) -> None:
        nonlocal shown
        now = read_answer(name, profile, began)
        if now not in (shown, Answer()):
            shown = now
            handle.update(now)

    for old in [call for call in shell.events.callbacks["post_run_cell"] if call.__module__ == __name__]:
        shell.events.unregister("post_run_cell", old)  # of this cell, run before
    shell.events.register("post_run_cell", refresh)


def _place(group: tuple[str, str, Any]) -> tuple[bool, int, int]:
    """Where a verdict stands: those on experiments by how often they were given, so that none is singled out; those on
    statements, of which one may be false, by their tone."""
    verdict, scale, rows = group
    order = ("against", "partly", "for", None)
    return verdict == "not run", 0 if scale else order.index(words.tone(verdict)), -len(rows)


def _said(verdict: str, scale: str) -> str:
    return f"{verdict} ({scale} scale)" if scale else verdict


def _chip(verdict: str, scale: str, before: str = "") -> str:
    style = f"border:1px solid {_COLOURS[words.tone(verdict)]};border-radius:.7rem;padding:0 .5rem;font-weight:600"
    text = html.escape(f"{before}{verdict} · {scale}" if scale else f"{before}{verdict}")
    title = html.escape(words.meaning(verdict), quote=True)
    return f'<span class="nc-verdict" style="{style}" title="{title}">{text}</span>'


def _in_words(row: Any) -> str:
    """What a row was said of, the number with its interval and seeds, what the paper says, and what else there is."""
    return "; ".join(filter(None, _parts(row)))


def _parts(row: Any) -> Iterator[str]:
    number, interval, seeds = row.regenerated, row.interval, row.seeds
    measured = bool(seeds) and seeds == seeds
    difference = "DEQ − explicit " if row.item.startswith(("Figure", "Table")) else ""
    over = f"{seeds:.0f} seed{'' if seeds == 1 else 's'}" if measured else ""
    if measured and interval == interval:
        yield f"{row.item}: {difference}{number} ± {interval:.3g} (95 % interval, {over})"
    elif measured and number:
        yield f"{row.item}: {difference}{number}, {over}"
    else:
        yield f"{row.item}: {textwrap.shorten(number, _LONGEST, placeholder=' …')}" if number else row.item
    yield f"the paper: {row.printed}" if measured and row.printed else ""
    yield row.remark if row.remark != over else ""
