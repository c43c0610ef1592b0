"""What notebooks find about their claims: the paper's value, ours with its interval, the verdict.

Built from the tables that they wrote and the records beside them, never from numbers kept anywhere else.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from nclib import paths
from nclib.metrics.table import LABELS
from nclib.profiles import TITLES

COLUMNS = ["id", "part", "item", "printed", "regenerated", "interval", "detectable", "seeds"]
COLUMNS += ["settings_found", "settings_planned", "verdict", "scale", "remark", "lead", "saved", "notebook", "runs"]

VERDICT_COLUMNS = ("verdict", "slope is", "printed against ours")
"""What tables of the sister papers call their verdicts."""

BEYOND = "beyond the paper"
"""The part of what no paper claims."""

SUMMARY = "neural_collapse/scorecard"
"""The notebook that shows all of this."""


def read_table(name: str, profile: str) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """A table written by `save_table` and its record, or None where there is none.

    Parameters
    ----------
    name : as it was saved, for instance "neural_collapse/table1"
    profile : whose results
    """
    path = paths.results(profile) / "tables" / f"{name}.csv"
    record = path.with_suffix(".json")
    return (pd.read_csv(path), json.loads(record.read_bytes())) if record.exists() else None


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
    keys = re.findall(r"{(\w+)}", item)
    numbers = ["detectable", "seeds", "settings_found", "settings_planned"]
    for row in table.to_dict("records") if "verdict" in table else ():
        if row.get("settings_planned") == 1:
            continue  # a pooled test of one setting, which has its row already
        own = {"part": BEYOND} if row.get("kind") == "control" else {}
        own |= {"runs": _text(row, "runs")} if "runs" in row else {}
        said = {key: _label(key, row[key]) for key in keys}
        difference = _signed(row.get("printed_difference"), " points")
        yield (
            {key: row.get(key, math.nan) for key in numbers}
            | own
            | {
                "id": "/".join([name, *(str(row[key]) for key in keys)]),
                "item": item.format_map(said),
                "printed": _text(row, "place") or _text(row, "printed") or difference,
                "regenerated": _regenerated(row),
                "interval": row.get("half", math.nan),
                "verdict": row["verdict"],
                "scale": _text(row, "scale"),
                "remark": _remark(row),
                "lead": row.get("lead") is True,
            }
        )


def _label(column: str, value: Any) -> str:
    """A value as readers call it; what is empty in a table is read as a missing number."""
    text = "" if value != value else str(value)
    named = {"metric": LABELS, "dataset": TITLES}.get(column, {})
    return text.replace("_", " ") if column == "model" else named.get(value, text)


def _regenerated(row: Mapping[str, Any]) -> str:
    """Ours: evidence in words, a change in percent with its interval, which is not symmetric, or a difference."""
    if "evidence" in row:
        return _text(row, "evidence")
    if "low" in row and not pd.isna(row["change"]):
        return f"{row['change']:+.1f} %" + f" ({row['low']:+.1f} to {row['high']:+.1f})" * pd.notna(row["low"])
    number = next((row[name] for name in ("difference", "change", "slope") if name in row), None)
    return _signed(number, " points" * ("printed_difference" in row))


def _remark(row: Mapping[str, Any]) -> str:
    """The rest of the remark; of statements, how they were read and what certifies the verdict."""
    if "kind" not in row:
        return _text(row, "remark")
    known = {"reading": "reading: {}", "defect": "defect {}", "certificate": "nclib certify {}"}
    said = [text.format(row[name]) for name, text in known.items() if _text(row, name)]
    return "; ".join(["control"] * (row["kind"] == "control") + said)


def _text(row: Mapping[str, Any], name: str) -> str:
    return row[name] if isinstance(row.get(name), str) else ""


def _signed(value: float | None, unit: str = "") -> str:
    """Three digits; what rounding leaves of a 0 is shown as 0."""
    return "" if value is None or pd.isna(value) else f"{value if abs(value) > 1e-12 else 0.0:+.3g}{unit}"
