"""One table over the notebooks of `SOURCES`: the claim, the printed value, ours with its interval, the verdict.

Built from the tables that the notebooks wrote and the records beside them, never from numbers kept anywhere else. A
notebook that has not been run in a profile stands in the table as "not run".
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from nclib.engine.outline import TITLES
from nclib.metrics.table import LABELS
from nclib.system import paths, words

COLUMNS = ["id", "part", "item", "printed", "regenerated", "interval", "detectable", "seeds"]
COLUMNS += ["settings_found", "settings_planned", "verdict", "scale", "remark", "lead", "saved", "notebook", "runs"]

VERDICT_COLUMNS = ("verdict", "slope is", "printed against ours")
"""What tables of the sister papers call their verdicts."""

SUMMARY = "neural_collapse/scorecard"
"""The notebook that shows all of this."""

_DIFFERENCE = "{metric}, DEQ − {model}"
SOURCES = {
    "tables": {
        table: item
        for n in (1, 2, 3, 4)
        for table, item in (
            (f"table{n}_pooled", f"Table {n}: all cells, overall"),
            (f"table{n}", f"Table {n}: {{dataset}} {{cell}}, {{accuracy}}"),
        )
    },
    "figures": {
        "fig2_claims": "Figure 2: {metric}",
        "fig3_claims": "Figure 3{panel}: {metric}",
        "fig4_claims": "Figure 4: {metric}",
        "fig5_claims": "Figure 5: {metric}",
    },
    "theory": {"theory_layer_peeled_ledger": "{claim}", "theory_imbalance_ledger": "{claim}"},
    "audit": {"audit_findings": "{claim}"},
    "beyond the paper": {
        "controls_differences": f"controls: {_DIFFERENCE}",
        **{
            f"{name.replace(' ', '_')}_differences": f"{name}, {{setting}}: {_DIFFERENCE}"
            for name in ("nc definitions", "remedies", "long tail", "seeds and subsets")
        },
        "remedies_pooled": "remedies: all five, DEQ − explicit, overall accuracy",
        "long_tail_pooled": "long tail: all R, DEQ − explicit, overall accuracy",
        "equilibrium_or_cell": "all cells, {step}: {metric}",
        "solver_and_collapse_inside": "inside the solver, {way}: {metric}",
        "solver_and_collapse_minority": "solver, minority − majority, {split}: {quantity}",
    },
}
"""By part: the tables of the main paper's notebooks, and how their rows are named by their columns."""
PARTS = tuple(SOURCES)
_ENDS = re.compile("_(pooled|claims|ledger|findings|differences|inside|minority)$")
"""What the name of a table adds to that of its notebook."""

_ROUNDING = 1e-12


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


def score_claims(profile: str) -> pd.DataFrame:
    """What the notebooks of `SOURCES` found in a profile, a row for each claim or cell.

    Parameters
    ----------
    profile : whose tables are read

    Returns
    -------
    DataFrame
        id, the table and the columns that tell its rows apart; part, one of `PARTS` ("theory" holds statements of the
        paper, one row each; what was tested besides them, at another reading or on maps of our own, is "beyond the
        paper"); item; printed, what the paper states; regenerated, ours; interval, half the 95 % t-interval over seeds;
        detectable, the smallest difference that these seeds would find in 80 % of the cases; seeds; settings_found
        and settings_planned; verdict, a word of `nclib.system.words`, by the rule named in the notebook; scale, how far
        the evidence reaches; remark; lead, whether it carries the claim of its notebook; saved, whether the notebook
        has been run; notebook; runs, the ids of the runs behind the row, separated by spaces.
    """
    rows = []
    for part, tables in SOURCES.items():
        for table, item in tables.items():
            facts = {"part": part, "notebook": _ENDS.sub("", table)}
            rows += [facts | row for row in _rows_of(table, item, profile)]
    card = pd.DataFrame(rows, columns=COLUMNS)
    return card.sort_values("part", key=lambda part: part.map(PARTS.index), kind="stable", ignore_index=True)


def _rows_of(table: str, item: str, profile: str) -> list[dict[str, Any]]:
    """The rows of `score_claims` from one of its tables."""
    found = read_table(f"neural_collapse/{table}", profile)
    if found is None:
        idle = {"id": table, "item": table.replace("_", " "), "verdict": "not run", "scale": "", "lead": False}
        return [idle | {"remark": "not regenerated", "saved": False, "runs": ""}]
    runs = " ".join(found[1]["runs"])
    return [{"runs": runs, "saved": True} | row for row in _judged(found[0], table, item)]


def claims_of(name: str, profile: str, since: float = 0.0) -> pd.DataFrame:
    """What one notebook says of its claims: the rows of its tables with verdicts.

    Parameters
    ----------
    name : "paper/notebook"
    profile : whose tables are read
    since : seconds since the epoch; tables written before are left out

    Returns
    -------
    DataFrame with the columns of `score_claims`. Empty where the notebook judges nothing, or has not yet.
    """
    folder, _, notebook = name.partition("/")
    parts = "" if name == SUMMARY else "(_.*)?"
    rows = []
    for file in sorted(paths.results(profile).glob(f"tables/{name}*.csv")):
        own, record = re.fullmatch(re.escape(notebook) + parts, file.stem), file.with_suffix(".json")
        if own and record.is_file() and record.stat().st_mtime >= since:
            rows += _judged(read_table(f"{folder}/{file.stem}", profile)[0], file.stem)
    return pd.DataFrame(rows, columns=COLUMNS)


def _judged(table: pd.DataFrame, name: str, item: str = "") -> Iterator[dict[str, Any]]:
    """The rows of a table with verdicts, named as `item` says or by the columns that such tables have."""
    column = next((name for name in VERDICT_COLUMNS if name in table), None)
    keys = re.findall(r"{(\w+)}", item) or ([] if item else _naming(table, column))
    numbers = ["detectable", "seeds", "settings_found", "settings_planned"]
    compared = "DEQ − explicit" if {"printed", "printed_difference"} & {*table} else ""
    for row in table.to_dict("records") if column else ():
        if row.get("settings_planned") == 1:
            continue  # a pooled test of one setting, which has its row already
        own = {"part": PARTS[-1]} if row.get("kind") == "control" else {}
        own |= {"runs": _text(row, "runs")} if "runs" in row else {}
        said = {key: _label(key, row[key]) for key in keys}
        yield (
            {key: row.get(key, math.nan) for key in numbers}
            | own
            | {
                "id": "/".join([name, *(str(row[key]) for key in keys)]),
                "item": item.format_map(said) if item else ", ".join(filter(None, [*said.values(), compared])),
                "printed": _text(row, "place")
                or _text(row, "printed")
                or _signed(row.get("printed_difference"), " points"),
                "regenerated": _regenerated(row),
                "interval": row.get("half", math.nan),
                "verdict": row[column],
                "scale": _text(row, "scale"),
                "remark": _remark(row),
                "lead": row.get("lead") is True,
            }
        )


def _naming(table: pd.DataFrame, verdict: str | None) -> list[str]:
    """The columns that tell the rows of a table apart, where the scorecard does not say it."""
    if "claim" in table:
        return ["claim"]
    order = ("item", "panel", "setting", "compared", "step", "way", "dataset", "cell", "accuracy", "metric", "model")
    known = [name for name in order[:1] if name in table] or [name for name in order if name in table]
    texts = [name for name in table if table[name].map(type).eq(str).all() and name not in (verdict, *words.JUDGED)]
    return known or texts


def _label(column: str, value: Any) -> str:
    """A value as readers call it; what is empty in a table is read as a missing number."""
    if value != value:
        return ""
    if column == "model":
        return value.replace("_", " ")
    return {"metric": LABELS, "dataset": TITLES}.get(column, {}).get(value, str(value))


def _regenerated(row: Mapping[str, Any]) -> str:
    """Ours: evidence in words, a change in percent with its interval, which is not symmetric, or a difference."""
    if "evidence" in row:
        return _text(row, "evidence")
    if "low" in row:
        interval = "" if pd.isna(row["low"]) else f" ({row['low']:+.1f} to {row['high']:+.1f})"
        return f"{row['change']:+.1f} %{interval}"
    number = next((row[name] for name in ("difference", "change", "slope") if name in row), None)
    return _signed(number, " points" * ("printed_difference" in row))


def _remark(row: Mapping[str, Any]) -> str:
    """What else there is to say; of statements, how they were read and what certifies the verdict."""
    if "kind" not in row:
        return _text(row, "remark")
    known = {"reading": "reading: {}", "defect": "defect {}", "certificate": "nclib certify {}"}
    said = [text.format(row[name]) for name, text in known.items() if _text(row, name)]
    return "; ".join(["control"] * (row["kind"] == "control") + said)


def _text(row: Mapping[str, Any], name: str) -> str:
    return row[name] if isinstance(row.get(name), str) else ""


def _signed(value: float | None, unit: str = "") -> str:
    """Three digits; what rounding leaves of a 0 is shown as 0."""
    if value is None or pd.isna(value):
        return ""
    return f"{value if abs(value) > _ROUNDING else 0.0:+.3g}{unit}"


def count_verdicts(card: pd.DataFrame) -> pd.DataFrame:
    """How often each verdict was given in each part of `score_claims`, at each scale ("" where none applies): part,
    verdict, scale, rows, the most frequent first."""
    parts = card.groupby("part", sort=False)[["verdict", "scale"]]
    return pd.concat({part: rows.value_counts() for part, rows in parts}, names=["part"]).rename("rows").reset_index()
