"""One table over the notebooks of `SOURCES`: the claim, the paper's value, ours with its interval, the verdict.

A notebook that has not been run in a profile stands in the table as "not run".
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

_LISTED = pd.read_csv(Path(__file__).with_name("scorecard.csv"), index_col="table")
SOURCES = {part: rows.to_dict() for part, rows in _LISTED.groupby("part", sort=False)["item"]}
"""By part: the tables of the main paper's notebooks, and how their rows are named by their columns."""
PARTS = tuple(SOURCES)
_ENDS = re.compile("_(pooled|claims|ledger|findings|differences|inside|minority)$")
"""What the name of a table adds to that of its notebook."""
COLUMNS = ["id", "part", "item", "printed", "regenerated", "interval", "detectable", "seeds"]
COLUMNS += ["settings_found", "settings_planned", "verdict", "scale", "remark", "lead", "saved", "notebook", "runs"]

BEYOND = "beyond the paper"
"""The part of what no paper claims."""


def score_claims(profile: str) -> pd.DataFrame:
    """What the notebooks of `SOURCES` found in a profile, a row for each claim or cell.

    Parameters
    ----------
    profile : whose tables are read

    Returns
    -------
    DataFrame
        id, the table and the columns that distinguish its rows; part, one of `PARTS` ("theory" holds statements of the
        paper, one row each; what was tested besides them, at another reading or on maps of our own, is "beyond the
        paper"); item; printed, what the paper states; regenerated, ours; interval, half the 95 % t-interval over seeds;
        detectable, the smallest difference that these seeds would find in 80 % of the cases; seeds; settings_found
        and settings_planned; verdict, a word of `nclib.compare.VERDICTS` or `nclib.papers.certify.VERDICTS`, by
        the rule named in the notebook; scale, how far the evidence reaches; remark; lead, whether it carries the claim
        of its notebook; saved, whether the notebook has been run; notebook; runs, the ids of the runs behind the row,
        separated by spaces.
    """
    places = [(part, *place) for part, tables in SOURCES.items() for place in tables.items()]
    card = pd.DataFrame([row for place in places for row in _rows_of(*place, profile)], columns=COLUMNS)
    return card.sort_values("part", key=lambda part: part.map(PARTS.index), kind="stable", ignore_index=True)


def _rows_of(part: str, table: str, item: str, profile: str) -> list[dict[str, Any]]:
    """The rows of `score_claims` from one of its tables."""
    found, facts = read_table(f"neural_collapse/{table}", profile), {"part": part, "notebook": _ENDS.sub("", table)}
    if found is None:
        idle = {"id": table, "item": table.replace("_", " "), "verdict": "not run", "scale": "", "lead": False}
        return [facts | idle | {"remark": "not regenerated", "saved": False, "runs": ""}]
    facts |= {"runs": " ".join(found[1]["runs"]), "saved": True}
    return [facts | row for row in judged(found[0], table, item)]


def count_verdicts(card: pd.DataFrame) -> pd.DataFrame:
    """How often each verdict was given in each part of `score_claims`, at each scale ("" where none applies): part,
    verdict, scale, rows, the most frequent first."""
    parts = card.groupby("part", sort=False)[["verdict", "scale"]]
    return pd.concat({part: rows.value_counts() for part, rows in parts}, names=["part"]).rename("rows").reset_index()


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
