"""The answer under a claim: the verdicts of a notebook in a small table, the same in the notebook and on its page."""

import textwrap
import time

from nclib.publish.claims import claims_of
from nclib.publish.readable import Readable, readable
from nclib.system import words

_SHOWN = ["item", "verdict", "scale", "regenerated", "interval", "seeds", "settings_found", "settings_planned"]
_SHOWN += ["printed", "remark", "rows"]
_MOST_LETTERS = 90
"""Of a cell of the answer; the tables below it have the whole text."""
WAITING = "The answer appears here once the tables below have been computed."
_began: dict[str, float] = {}
"""When the answer of each notebook of this process was asked for."""


def read_answer(name: str, profile: str, since: float = 0.0) -> Readable | None:
    """The answer of a notebook, from the tables that it has saved: the row that the notebook names beforehand, then one
    for each other verdict, and how many rows got it. Those on experiments stand by how often they were given, so that
    none is singled out; those on statements, of which one may be false, by their tone.

    Parameters
    ----------
    name : "paper/notebook"
    profile : whose tables are read
    since : seconds since the epoch; tables written before are left out

    Returns
    -------
    None where the notebook judges nothing.
    """
    claims = claims_of(name, profile, since)
    if claims.empty:
        return None
    tones = ["against", "partly", "for", None]
    ranked = claims.assign(
        rows=claims.groupby(["verdict", "scale"])["verdict"].transform("size"),
        named=claims["lead"].eq(True),
        idle=claims["verdict"].eq("not run"),
        tone=[tones.index(words.tone(row.verdict)) * (row.scale == "") for row in claims.itertuples()],
    ).sort_values(["named", "idle", "tone", "rows"], ascending=[False, True, True, False], ignore_index=True)
    shown = ranked[ranked["named"] | ~ranked.duplicated(["verdict", "scale"])][_SHOWN].head(5)
    scales = [f"{scale} scale: {words.SCALES[scale]}" for scale in dict.fromkeys(claims["scale"]) if scale]
    texts = shown[["regenerated", "remark"]].fillna("").astype(str)
    shown[texts.columns] = texts.map(textwrap.shorten, width=_MOST_LETTERS, placeholder=" …")
    shown["regenerated"] += ["" if half != half else f" ± {half:.3g}" for half in shown.pop("interval")]
    shown = shown.mask(shown.eq("")).dropna(axis="columns", how="all")
    return readable(shown, note="; ".join([*scales, *["intervals: 95 %"][: len(scales)]]))


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
