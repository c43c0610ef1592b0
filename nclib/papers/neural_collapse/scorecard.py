"""One table over the notebooks of `SOURCES`: the claim, the paper's value, ours with its interval,
the verdict.

Built from the tables that the notebooks wrote and the records beside them, never from numbers kept
anywhere else. A notebook that has not been run in a profile stands in the table as "not run".
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from nclib import paths
from nclib.metrics import LABELS
from nclib.profiles import TITLES

SOURCES: dict[str, dict[str, str]] = {}
"""By part: the tables of the main paper's notebooks, and how their rows are named by their
columns."""
for _row in pd.read_csv(Path(__file__).with_name("scorecard.csv")).itertuples():
    SOURCES.setdefault(_row.part, {})[_row.table] = _row.item
PARTS = tuple(SOURCES)
BEYOND = "beyond the paper"
"""The part of what no paper claims."""
COLUMNS = [
    "id",
    "part",
    "item",
    "printed",
    "regenerated",
    "interval",
    "detectable",
    "seeds",
    "settings_found",
    "settings_planned",
    "verdict",
    "scale",
    "remark",
    "lead",
    "saved",
    "notebook",
    "runs",
]
_ENDS = re.compile("_(pooled|claims|ledger|findings|differences|inside|minority)$")
"""What the name of a table adds to that of its notebook."""


def score_claims(profile: str) -> pd.DataFrame:
    """What the notebooks of `SOURCES` found in a profile, a row for each claim or cell.

    Parameters
    ----------
    profile : whose tables are read

    Returns
    -------
    DataFrame
        id, the table and the columns that distinguish its rows; part, one of `PARTS` ("theory"
        holds statements of the paper, one row each; what was tested besides them, at another
        reading or on maps of our own, is "beyond the paper"); item; printed, what the paper states;
        regenerated, ours; interval, half the 95 % t-interval over seeds; detectable, the smallest
        difference that these seeds would find in 80 % of the cases; seeds; settings_found and
        settings_planned; verdict, a word of `nclib.compare.VERDICTS` or
        `nclib.papers.certify.VERDICTS`, by the rule named in the notebook; scale, how far the
        evidence reaches; remark; lead, whether it carries the claim of its notebook; saved, whether
        the notebook has been run; notebook; runs, the ids of the runs behind the row, separated by
        spaces.
    """
    rows = []
    for part, tables in SOURCES.items():
        for table, item in tables.items():
            rows += _rows_of(part, table, item, profile)
    card = pd.DataFrame(rows, columns=COLUMNS)

    def place(parts: pd.Series) -> pd.Series:
        return parts.map(PARTS.index)

    return card.sort_values("part", key=place, kind="stable", ignore_index=True)


def count_verdicts(card: pd.DataFrame) -> pd.DataFrame:
    """How often each verdict was given in each part of `score_claims`, at each scale ("" where none
    applies): part, verdict, scale, rows, the most frequent first."""
    counts = {}
    for part, rows in card.groupby("part", sort=False)[["verdict", "scale"]]:
        counts[part] = rows.value_counts()
    return pd.concat(counts, names=["part"]).rename("rows").reset_index()


def _rows_of(part: str, table: str, item: str, profile: str) -> list[dict[str, Any]]:
    """The rows of `score_claims` from one of its tables."""
    shared = {"part": part, "notebook": _ENDS.sub("", table)}
    path = paths.results(profile) / "tables" / "neural_collapse" / f"{table}.csv"
    record = path.with_suffix(".json")
    if not record.exists():
        not_run = {
            "id": table,
            "item": table.replace("_", " "),
            "verdict": "not run",
            "scale": "",
            "lead": False,
            "remark": "not regenerated",
            "saved": False,
            "runs": "",
        }
        return [{**shared, **not_run}]
    shared["runs"] = " ".join(json.loads(record.read_bytes())["runs"])
    shared["saved"] = True
    return [{**shared, **row} for row in judged(pd.read_csv(path), table, item)]


# --- one table ------------------------------------------------------------------------------------


def judged(table: pd.DataFrame, name: str, item: str) -> Iterator[dict[str, Any]]:
    """The rows of a table with verdicts.

    Parameters
    ----------
    table : as it was saved
    name : of the table
    item : how its rows are named, such as "Figure 2: {metric}"

    Yields
    ------
    Rows with `COLUMNS`, but for those that are the same in the whole table.
    """
    if "verdict" not in table:
        return
    keys = re.findall(r"{(\w+)}", item)
    for row in table.to_dict("records"):
        if row.get("settings_planned") == 1:
            continue  # a pooled test of one setting, which has its row already
        line = {
            "id": "/".join([name, *(str(row[key]) for key in keys)]),
            "item": item.format_map({key: _label(key, row[key]) for key in keys}),
            "printed": _printed(row),
            "regenerated": _regenerated(row),
            "interval": row.get("half", math.nan),
            "verdict": row["verdict"],
            "scale": _text(row, "scale"),
            "remark": _remark(row),
            "lead": row.get("lead") is True,
        }
        for number in ("detectable", "seeds", "settings_found", "settings_planned"):
            line[number] = row.get(number, math.nan)
        if row.get("kind") == "control":
            line["part"] = BEYOND
        if "runs" in row:
            line["runs"] = _text(row, "runs")
        yield line


def _label(column: str, value: Any) -> str:
    """A value as readers call it; what is empty in a table is read as a missing number."""
    text = "" if pd.isna(value) else str(value)
    if column == "model":
        return text.replace("_", " ")
    if column == "metric":
        return LABELS.get(value, text)
    if column == "dataset":
        return TITLES.get(value, text)
    return text


def _printed(row: Mapping[str, Any]) -> str:
    """What the paper states: where a statement stands, a claim in words, or a difference."""
    difference = _signed(row.get("printed_difference"), " points")
    return _text(row, "place") or _text(row, "printed") or difference


def _regenerated(row: Mapping[str, Any]) -> str:
    """Ours: evidence in words, a change in percent with its interval, which is not symmetric, or a
    difference."""
    if "evidence" in row:
        return _text(row, "evidence")
    if "low" in row and not pd.isna(row["change"]):
        text = f"{row['change']:+.1f} %"
        if pd.notna(row["low"]):
            text = f"{text} ({row['low']:+.1f} to {row['high']:+.1f})"
        return text
    unit = " points" if "printed_difference" in row else ""
    for name in ("difference", "change", "slope"):
        if name in row:
            return _signed(row[name], unit)
    return ""


def _remark(row: Mapping[str, Any]) -> str:
    """The rest of the remark; of statements, how they were read and what certifies the verdict."""
    if "kind" not in row:
        return _text(row, "remark")
    remarks = []
    if row["kind"] == "control":
        remarks.append("control")
    if _text(row, "reading"):
        remarks.append(f"reading: {row['reading']}")
    if _text(row, "defect"):
        remarks.append(f"defect {row['defect']}")
    if _text(row, "certificate"):
        remarks.append(f"nclib certify {row['certificate']}")
    return "; ".join(remarks)


def _text(row: Mapping[str, Any], name: str) -> str:
    """The text in a column; "" where there is none, or a missing number."""
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _signed(value: float | None, unit: str = "") -> str:
    """Three digits; what rounding leaves of a 0 is shown as 0."""
    if value is None or pd.isna(value):
        return ""
    if abs(value) <= 1e-12:
        value = 0.0
    return f"{value:+.3g}{unit}"
