"""The answer under a claim: the verdicts of a notebook in a small table, the same in the notebook and on its page."""

from __future__ import annotations

import textwrap
import time
from typing import Any

import pandas as pd

from nclib.publish import scorecard
from nclib.publish.readable import Readable
from nclib.system import words

_LONGEST = 120
"""Letters of evidence in words; the table below has the whole."""
_MOST_LINES = 5
WAITING = "The answer appears here once the tables below have been computed."
_began: dict[str, float] = {}
"""When the answer of each notebook of this process was asked for."""


def read_answer(name: str, profile: str, since: float = 0.0) -> Readable | None:
    """The answer of a notebook, from the tables that it has saved: the row that the notebook names beforehand, then the
    first of the others for each verdict, and how many more there are.

    Parameters
    ----------
    name : "paper/notebook"
    profile : whose tables are read
    since : seconds since the epoch; tables written before are left out

    Returns
    -------
    None where the notebook judges nothing.
    """
    claims = scorecard.claims_of(name, profile, since)
    lead = claims["lead"].eq(True)
    lines = [(row.verdict, row.scale, _in_words(row)) for row in claims[lead].itertuples()]
    groups = [(*said, rows) for said, rows in claims[~lead].groupby(["verdict", "scale"], sort=False)]
    for verdict, scale, rows in sorted(groups, key=_place):
        more = f"; and {len(rows) - 1} more" if len(rows) > 1 else ""
        lines.append((verdict, scale, _in_words(next(rows.itertuples())) + more))
    scales = [f"{scale} scale: {words.SCALES[scale]}" for scale in dict.fromkeys(claims["scale"]) if scale]
    shown = pd.DataFrame(lines[:_MOST_LINES], columns=["verdict", "scale", "what was found"])
    return Readable(shown, "; ".join(scales)) if lines else None


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
    display(Readable(note=WAITING), display_id=name)


def fill_in(table: str, profile: str) -> None:
    """Show the answer that a notebook gives once this table of it is saved, where it asked for one."""
    for name in [name for name in _began if table.startswith(name)]:
        from IPython.display import update_display

        if now := read_answer(name, profile, _began[name]):
            update_display(now, display_id=name)


def _place(group: tuple[str, str, Any]) -> tuple[bool, int, int]:
    """Where a verdict stands: those on experiments by how often they were given, so that none is singled out; those on
    statements, of which one may be false, by their tone."""
    verdict, scale, rows = group
    order = ("against", "partly", "for", None)
    return verdict == "not run", 0 if scale else order.index(words.tone(verdict)), -len(rows)


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
