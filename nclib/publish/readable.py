"""Tables as people read them: the claim and its verdict first, in names that need no list."""

import html
import re
from dataclasses import dataclass, field

import pandas as pd

from nclib.publish.claims import LABELS, VERDICT_COLUMNS
from nclib.publish.numbers import minus

NAMES = {"half": "± 95 %", "interval": "± 95 %", "arm_value": "DEQ", "deq": "DEQ", "explicit": "ResNet-18"}
NAMES |= {"value": "the other", "model": "compared with", "detectable": "detectable difference"}
NAMES |= {"lower_in": "lower in", "settings_found": "settings", "printed": "the paper", "regenerated": "found"}
"""Columns that readers call by another name."""

_SAVED = {r"(?<=[−/] )explicit(?=$|[:,] (?!same))|^explicit$": "ResNet-18", "^deq$": "DEQ"}
_SAVED |= {r"(?<!-)\bexplicit[ _]matched\b|explicit, same cell": "same block, once"}
_SAVED |= {r"(?<!-)\bweight[ _]tied\b": "weight-tied", r"(?<!-)\bexplicit[ _]flops\b": "explicit, same compute"}
_SAVED |= {"NC1, class-balanced": "NC1, eq. 12, class-balanced"}
_SAVED |= {"cosine among minority classes": "cos(w_j, w_k) of minority classes"}

_WHERE = ("panel", "item", "setting", "step", "way", "place", "part", "data", "stands for", "dataset", "K_A", "R")
_CLAIM = ("remedy", "arm", "printed", "claim", "metric", "quantity", "accuracy", "measure", "model", "split")
_FIRST = (*_WHERE, *_CLAIM, *VERDICT_COLUMNS, "scale")
_LAST = ("remark", "reading", "rule", "defect", "certificate", "computed", "command", "notebook", "runs")


def for_readers(text: str) -> str:
    """The text with the names of networks and metrics that pictures use for those in saved tables; ids stay.

    Examples
    --------
    >>> for_readers("controls: NC1, class-balanced, DEQ − explicit matched")
    'controls: NC1, eq. 12, class-balanced, DEQ − same block, once'
    >>> for_readers("DEQ / explicit: NC1"), for_readers("explicit layers, digits-explicit_matched-s0-3e1")
    ('DEQ / ResNet-18: NC1', 'explicit layers, digits-explicit_matched-s0-3e1')
    """
    for saved, said in _SAVED.items():
        text = re.sub(saved, said, text)
    return text


def claim_first(table: pd.DataFrame) -> pd.DataFrame:
    """The same columns, without those that are for programs: where and what is claimed, the verdict and its scale, the
    numbers, remarks and records. Where more settings are planned than found, it says so."""
    if "settings_planned" in table:
        counts = zip(table["settings_found"], table["settings_planned"], strict=True)
        found = ["" if pd.isna(a) else f"{a:.0f}" + f" of {b:.0f}" * pd.notna(b) for a, b in counts]
        table = table.assign(settings_found=found)
    table = table.drop(columns=["id", "lead", "saved", "settings_planned"], errors="ignore")
    order = [*_FIRST, *(name for name in table if name not in (*_FIRST, *_LAST)), *_LAST]
    return table[[name for name in order if name in table]]


@dataclass(frozen=True, eq=False)
class Readable:
    """A table that a notebook shows, without an index, and a note below it."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    note: str = ""

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            table = self.table.to_html(index=False, border=0, classes="nc-readable") if len(self.table) else ""
        return table + f"<p>{html.escape(self.note)}</p>" * bool(self.note)

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self.table.to_string(index=False) if len(self.table) else "", self.note]))


def readable(table: pd.DataFrame, note: str = "") -> Readable:
    """A table of verdicts for readers: panel, claim and verdict first, in the names that captions use.

    Parameters
    ----------
    table : with a column "verdict"; it is not changed, and what is saved is the table itself
    note : a sentence below it

    Returns
    -------
    What a notebook shows as the value of a cell.

    Examples
    --------
    >>> import pandas as pd
    >>> readable(pd.DataFrame({"metric": ["nc1_pinv"], "half": [0.12345], "verdict": ["equal"]}))
         metric verdict  ± 95 %
    NC1, eq. 12   equal   0.123
    """
    return Readable(claim_first(table).replace({"metric": LABELS}).map(_text).rename(columns=NAMES), note)


def _text(value: object) -> object:
    if isinstance(value, str):
        return minus(for_readers(value))
    return "" if pd.isna(value) else minus(f"{value:.3g}") if isinstance(value, float) else value
