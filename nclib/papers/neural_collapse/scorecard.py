"""One table over the notebooks of `SOURCES`: the claim, the paper's value, ours with its interval, the verdict.

A notebook that has not been run in a profile stands in the table as "not run".
"""

import re
from pathlib import Path
from typing import Any

import pandas as pd

from nclib.publish.claims import COLUMNS, judged, read_table

_LISTED = pd.read_csv(Path(__file__).with_name("scorecard.csv"), index_col="table")
SOURCES = {part: rows.to_dict() for part, rows in _LISTED.groupby("part", sort=False)["item"]}
"""By part: the tables of the main paper's notebooks, and how their rows are named by their columns."""
PARTS = tuple(SOURCES)
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
        id, the table and the columns that distinguish its rows; part, one of `PARTS` ("theory" holds statements of the
        paper, one row each; what was tested besides them, at another reading or on maps of our own, is "beyond the
        paper"); item; printed, what the paper states; regenerated, ours; interval, half the 95 % t-interval over seeds;
        detectable, the smallest difference that these seeds would find in 80 % of the cases; seeds; settings_found
        and settings_planned; verdict, a word of `nclib.system.words`, by the rule named in the notebook; scale, how far
        the evidence reaches; remark; lead, whether it carries the claim of its notebook; saved, whether the notebook
        has been run; notebook; runs, the ids of the runs behind the row, separated by spaces.
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
