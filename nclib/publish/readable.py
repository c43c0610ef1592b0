"""Tables as people read them: the claim and its verdict first, in names that need no list."""

import html
from dataclasses import dataclass, field

import pandas as pd

from nclib.publish.claims import LABELS, VERDICT_COLUMNS

NAMES = {"half": "± 95 %", "interval": "± 95 %", "arm_value": "DEQ", "deq": "DEQ", "explicit": "ResNet-18"}
NAMES |= {"value": "the other", "model": "compared with", "detectable": "detectable difference"}
NAMES |= {"lower_in": "lower in", "settings_found": "settings", "printed": "the paper", "regenerated": "found"}
"""Columns that readers call by another name."""

_WHERE = ("panel", "item", "setting", "step", "way", "place", "part", "data", "printed for", "dataset", "K_A", "R")
_CLAIM = ("remedy", "arm", "printed", "claim", "metric", "quantity", "accuracy", "measure", "model", "split")
_FIRST = (*_WHERE, *_CLAIM, *VERDICT_COLUMNS, "scale")
_LAST = ("remark", "reading", "rule", "defect", "certificate", "computed", "command", "notebook", "runs")


def claim_first(table: pd.DataFrame) -> pd.DataFrame:
    """The same columns, without those that are for programs: where and what is claimed, the verdict and its scale, the
    numbers, remarks and records. Where more settings are planned than found, it says so."""
    if "settings_planned" in table:
        counts = zip(table["settings_found"], table["settings_planned"], strict=True)
        found = ["" if pd.isna(a) else f"{a:.0f} of {b:.0f}" for a, b in counts]
        table = table.assign(settings_found=found)
    table = table.drop(columns=["id", "lead", "saved", "settings_planned"], errors="ignore")
    first = [name for name in _FIRST if name in table]
    last = [name for name in _LAST if name in table]
    return table[[*first, *(name for name in table if name not in (*first, *last)), *last]]


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
        table = self.table.to_string(index=False) if len(self.table) else ""
        return "\n".join(filter(None, [table, self.note]))


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
    shown = claim_first(table)
    if "metric" in shown:
        shown = shown.assign(metric=shown["metric"].replace(LABELS))
    if "model" in shown:
        shown = shown.assign(model=shown["model"].str.replace("_", " "))
    numbers = shown.select_dtypes("floating").columns
    texts = {name: ["" if pd.isna(value) else f"{value:.3g}" for value in shown[name]] for name in numbers}
    return Readable(shown.assign(**texts).fillna("").rename(columns=NAMES), note)
