"""One table over everything that was regenerated: the claim, the printed value, ours with its interval, the verdict.

Built from the tables that the notebooks wrote and the records beside them, never from numbers kept anywhere else. A
notebook that has not been run in a profile stands in the table as "not run".
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pandas as pd

from nclib.system import paths, words

COLUMNS = ["part", "item", "printed", "regenerated", "interval", "detectable", "seeds", "verdict", "scale", "remark"]
COLUMNS += ["notebook", "runs"]
PARTS = ("tables", "figures", "theory", "audit", "beyond the paper")
PAPERS_DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
METRICS = {
    "accuracy_balanced": "accuracy",
    "accuracy_majority": "majority accuracy",
    "accuracy_minority": "minority accuracy",
    "nc1_pinv": "NC1, eq. 12",
    "nc1_pinv_class_balanced": "NC1, class-balanced",
    "nc1_trace_ratio": "NC1, trace ratio",
    "paper_eq13_uncentred": "NC2, eq. 13",
    "paper_eq14_uncentred": "NC3, eq. 14",
    "nc1_cdnv": "NC1, CDNV",
    "nc2_etf_distance": "NC2, centred",
    "nc2_equiangular": "NC2, angles",
    "nc3_self_duality": "NC3, centred",
    "minority_cosine": "cosine among minority classes",
}
METRICS |= {
    f"{name}_{group}": f"{label}, {group} classes"
    for name, label in METRICS.items()
    for group in ("majority", "minority")
    if name.startswith("nc")
}
"""What readers call the metrics; others keep the name of their function."""

LEADS = {
    **{f"table{n}": f"Table {n}: all cells, overall" for n in (1, 2, 3, 4)},
    "fig2": "Figure 2: NC2, centred",
    "fig3": "Figure 3b: NC2, eq. 13",
    "fig4": "Figure 4: NC2, eq. 13",
    "fig5": "Figure 5: NC2, eq. 13",
    "controls": "controls: accuracy, DEQ − explicit matched",
    "equilibrium_or_cell": "all cells, DEQ / cell: NC1, trace ratio",
    "remedies": "remedies: all five, DEQ − explicit, overall accuracy",
    "long_tail": "long tail: all R, DEQ − explicit, overall accuracy",
    "solver_and_collapse": "inside the solver, start → equilibrium: NC2, centred",
}
"""The row that carries the claim of a notebook, as its text names it beforehand. Other notebooks name none."""

OTHER_LEADS = {
    "collapse": "DEQ / ResNet-18, NC2, eq. 13",
    "internalization": "T = 1, all classes: accuracy, without the solver − with it, in points",
    "residual_and_error": "AUROC − 0.5 of the residual of the solve, all classes",
    "depth_and_rank": "class means of the DEQ use fewer dimensions than with its cell applied once",
    "optimisers": "ResNet-18, AdamW / SGD: NC3, centred",
}
"""The same of notebooks whose rows are their own and not the scorecard's: those about claims of other papers, and
`collapse`, which pools over settings."""

VERDICT_COLUMNS = ("verdict", "slope is", "printed against ours")
"""What tables of the sister papers call their verdicts."""

SUMMARY = "neural_collapse/scorecard"
"""The notebook that shows all of this."""

NOT_THERE = "not regenerated"
"""The remark on a table that no notebook has saved yet."""

_ROUNDING = 1e-12
_Reader = Callable[[str, pd.DataFrame], Iterator[dict[str, Any]]]


class StaleTable(RuntimeError):
    """A table on the disk is not the one its record speaks of."""


def read_table(name: str, profile: str) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """A table written by `save_table` and its record, or None where there is none.

    Parameters
    ----------
    name : as it was saved, for instance "neural_collapse/table1"
    profile : whose results

    Raises
    ------
    StaleTable
        When the file is not what the record says, with what to type.
    """
    path = paths.results(profile) / "tables" / f"{name}.csv"
    record = path.with_suffix(".json")
    if not record.exists():
        return None
    sidecar = json.loads(paths.content(record))
    content = paths.content(path) if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != sidecar["files"][path.name]["sha256"]:
        raise StaleTable(f"{path} was changed after it was written; type: nclib reproduce {name} --force")
    return pd.read_csv(io.BytesIO(content)), sidecar


def score_claims(profile: str, runs_of: Callable[[str], Collection[str]] | None = None) -> pd.DataFrame:
    """Everything regenerated in a profile, a row for each claim or cell.

    Parameters
    ----------
    profile : whose tables are read
    runs_of : gives the ids of the runs that a notebook is made from. A table with other runs, made at another size or
        on other data, is then "not run" with that remark; left out: every table is taken

    Returns
    -------
    DataFrame
        part, one of `PARTS` ("theory" holds statements of the paper, one row each; what was tested besides them, at
        another reading or on maps of our own, is "beyond the paper"); item; printed, what the paper states;
        regenerated, ours; interval, half the 95 % t-interval over seeds; detectable, the smallest difference that so
        many seeds would find in 80 % of the cases; seeds; verdict, a word of `nclib.system.words`, by the rule
        named in the notebook; scale, how far the evidence reaches; remark; notebook; runs, the ids of the runs
        behind the row, separated by spaces.

    Raises
    ------
    StaleTable
        When a table was changed by hand or written by another version.
    """
    sources = (_rows_of(*source, profile, runs_of) for source in _SOURCES)
    rows = [row for found in sources for row in found]
    card = pd.DataFrame(rows, columns=COLUMNS)
    return card.sort_values("part", key=lambda part: part.map(PARTS.index), kind="stable", ignore_index=True)


def _rows_of(
    part: str, notebook: str, table: str, read: _Reader, profile: str, runs_of: Callable[[str], Collection[str]] | None
) -> Iterator[dict[str, Any]]:
    """The rows of `score_claims` from one of its tables."""
    found = read_table(f"neural_collapse/{table}", profile)
    facts = {"part": part, "notebook": notebook, "scale": "", "remark": ""}
    if found is None:
        yield facts | {"item": table.replace("_", " "), "verdict": "not run", "remark": NOT_THERE}
        return
    runs = " ".join(found[1]["runs"])
    if runs_of and runs and not set(found[1]["runs"]) <= set(runs_of(notebook)):
        said = {"verdict": "not run", "remark": "made at other parameters", "runs": runs}
        yield facts | {"item": table.replace("_", " ")} | said
        return
    try:
        yield from [facts | {"runs": runs} | row for row in read(notebook, found[0])]
    except AttributeError as error:  # columns came and went with versions of the library
        said = f"{table} was written by another version ({error}); type: nclib reproduce {notebook}"
        raise StaleTable(said) from error


def claims_of(name: str, profile: str, since: float = 0.0) -> pd.DataFrame:
    """What one notebook says of its claims: its rows of `score_claims`, or those of its tables with verdicts.

    Parameters
    ----------
    name : "paper/notebook"
    profile : whose tables are read
    since : seconds since the epoch; tables written before are left out

    Returns
    -------
    DataFrame
        item, printed, regenerated, interval, seeds, verdict, scale, remark, and lead: whether the notebook names the
        row beforehand as the one that carries its claim. Empty where the notebook judges nothing, or has not yet.

    Raises
    ------
    StaleTable
        When a table was changed by hand or written by another version.
    """
    folder, _, notebook = name.partition("/")
    mine = [source for source in _SOURCES if (folder, notebook) == ("neural_collapse", source[1])]
    if mine:
        there = [source for source in mine if _written(f"{folder}/{source[2]}", profile, since)]
        rows = [row for source in there for row in _rows_of(*source, profile, None)]
    elif name == SUMMARY:
        rows = score_claims(profile).to_dict("records") if _written(name, profile, since) else []
    else:
        tables = sorted(paths.results(profile).glob(f"tables/{name}*.csv"))
        names = [f"{folder}/{path.stem}" for path in tables if re.fullmatch(rf"{re.escape(notebook)}(_.*)?", path.stem)]
        found = [read_table(table, profile) for table in names if _written(table, profile, since)]
        rows = [row for table in found if table for row in _judged(table[0])]
    claims = pd.DataFrame(rows, columns=COLUMNS)
    texts = ["item", "printed", "regenerated", "verdict", "scale", "remark"]
    leads = LEADS | OTHER_LEADS if folder == "neural_collapse" else {}
    lead = claims["item"].eq(leads[notebook]) if notebook in leads else False
    return claims.assign(lead=lead, **{name: claims[name].fillna("") for name in texts})


def _written(table: str, profile: str, since: float) -> bool:
    record = paths.results(profile) / "tables" / f"{table}.json"
    return record.is_file() and record.stat().st_mtime >= since


def _judged(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of any table with verdicts, whatever else it holds."""
    column = next((name for name in VERDICT_COLUMNS if name in table), None)
    texts = [name for name in table if table[name].map(type).eq(str).all() and name not in (column, *words.JUDGED)]
    if {"metric", "setting"} <= {*table}:
        texts = ["setting", "metric", *(["claim"] if "claim" in table else [])]
    elif "claim" in table:
        texts = ["claim"]
    for row in table.to_dict("records") if column else ():
        named = [METRICS.get(row[name], row[name]) for name in texts]
        number = next((row[name] for name in ("difference", "change", "slope") if name in table), None)
        shown = row.get("evidence", _changed(row) if {"change", "low", "high"} <= row.keys() else _signed(number))
        shown = shown if isinstance(shown, str) else ""
        facts = {"item": ", ".join(map(str, named)), "printed": "", "regenerated": shown}
        numbers = {"interval": row.get("half", math.nan), "seeds": row.get("seeds", math.nan)}
        facts |= numbers | {"verdict": str(row[column])}
        yield facts | {name: row[name] if isinstance(row.get(name), str) else "" for name in ("scale", "remark")}


def count_verdicts(card: pd.DataFrame) -> pd.DataFrame:
    """How often each verdict was given in each part of `score_claims`, at each scale ("" where none applies): part,
    verdict, scale, rows, the most frequent first."""
    counts = card.groupby(["part", "verdict", "scale"], sort=False, dropna=False).size()
    counts = counts.rename("rows").reset_index()
    order = {part: place for place, part in enumerate(dict.fromkeys(card["part"]))}
    return counts.sort_values(["part", "rows"], key=lambda c: c.map(order) if c.name == "part" else -c).reset_index(
        drop=True
    )


def _cells(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of Tables 1–4."""
    for row in table.itertuples():
        cell = "balanced" if pd.isna(row.K_A) else f"K_A={row.K_A:.0f}, R={row.R:g}"
        data = PAPERS_DATA.get(row.dataset, row.dataset)
        yield {
            "item": f"Table {notebook[-1]}: {data} {cell}, {row.accuracy}",
            "printed": _signed(row.printed_difference, " points"),
            "regenerated": _signed(row.difference, " points"),
            "interval": row.difference_half,
            "detectable": row.detectable,
            "seeds": row.seeds,
            **_said(row),
            "runs": row.runs if isinstance(row.runs, str) else "",
        }


def _one_test(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The pooled test of each of Tables 1–4. Over one setting it is none: that setting has its row already."""
    for row in table.itertuples():
        item = f"Table {notebook[-1]}: all cells, overall"
        found = {"item": item, "printed": "DEQ higher", **_measured(row, row.difference)}
        if words.ONE_SETTING not in found["remark"].split("; "):
            yield found


def _pooled_accuracy(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The pooled test of a notebook beyond the paper."""
    for row in table.itertuples():
        yield {"item": LEADS[notebook], "printed": "", **_measured(row, row.difference)}


def _claims(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Claims about collapse in Figures 2–5."""
    for row in table.itertuples():
        panel = getattr(row, "panel", "")
        yield {
            "item": f"Figure {notebook[-1]}{panel}: {METRICS.get(row.metric, row.metric)}",
            "printed": row.claim,
            **_measured(row, row.difference),
        }


def _ledger(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Statements of the paper, with the evidence in words; what is not the paper's own goes beyond it."""
    for row in table.fillna("").itertuples():
        control = row.kind != "statement"
        remark = ["control"] * control + [f"reading: {row.reading}"]
        remark += [f"defect {row.defect}"] * bool(row.defect)
        remark += [f"nclib certify {row.certificate}"] * bool(row.certificate)
        facts = {"item": row.claim, "printed": row.place, "regenerated": row.evidence, "verdict": row.verdict}
        yield facts | {"remark": "; ".join(remark)} | ({"part": "beyond the paper"} if control else {})


def _findings(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for row in table.fillna("").itertuples():
        remark = f"nclib certify {row.certificate}" if row.certificate else "computed from the printed numbers"
        facts = {"item": f"Finding {row.number}", "printed": "", "regenerated": row.finding}
        yield facts | {"verdict": "reported", "remark": remark}


def _compared(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of `comparison.differences`, with the setting where the table has one."""
    for row in table.itertuples():
        setting = f", {row.setting}" if "setting" in table else ""
        against = row.model.replace("_", " ")
        yield {
            "item": f"{notebook.replace('_', ' ')}{setting}: {METRICS.get(row.metric, row.metric)}, DEQ − {against}",
            "printed": "",
            **_measured(row, row.difference),
        }


def _inside(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """What the solver does to collapse."""
    for row in table.itertuples():
        yield {
            "item": f"inside the solver, {row.way}: {METRICS.get(row.metric, row.metric)}",
            "printed": "",
            **_measured(row, row.change),
        }


def _by_group(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Minority against majority in the solver."""
    for row in table.itertuples():
        yield {
            "item": f"solver, minority − majority, {row.split}: {row.quantity}",
            "printed": "",
            **_measured(row, row.difference),
        }


def _pooled(notebook: str, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of `comparison.ratios`, whose intervals are not symmetric."""
    for row in table.itertuples():
        yield {
            "item": f"all cells, {row.step}: {METRICS.get(row.metric, row.metric)}",
            "printed": "",
            "regenerated": _changed(row._asdict()),
            "detectable": row.detectable,
            "seeds": row.seeds,
            **_said(row),
        }


def _changed(row: dict[str, Any]) -> str:
    """A change in percent with its interval, which is not symmetric."""
    interval = "" if pd.isna(row["low"]) else f" ({row['low']:+.1f} to {row['high']:+.1f})"
    return f"{row['change']:+.1f} %{interval}"


def _measured(row: Any, value: float) -> dict[str, Any]:
    """The columns that every row with an interval over seeds has."""
    shown = {"regenerated": _signed(value), "interval": row.half, "detectable": row.detectable}
    return shown | {"seeds": row.seeds} | _said(row)


def _said(row: Any) -> dict[str, str]:
    """Verdict, scale and remark; what is empty in a table is read as a missing number."""
    found = {name: getattr(row, name) for name in words.JUDGED}
    return {name: said if isinstance(said, str) else "" for name, said in found.items()}


def _signed(value: float | None, unit: str = "") -> str:
    """Three digits; what rounding leaves of a 0 is shown as 0."""
    if value is None or pd.isna(value):
        return ""
    return f"{value if abs(value) > _ROUNDING else 0.0:+.3g}{unit}"


_SOURCES: tuple[tuple[str, str, str, _Reader], ...] = (
    *(
        ("tables", f"table{n}", f"table{n}{part}", read)
        for n in (1, 2, 3, 4)
        for part, read in (("_pooled", _one_test), ("", _cells))
    ),
    *(("figures", f"fig{n}", f"fig{n}_claims", _claims) for n in (2, 3, 4, 5)),
    *(("theory", name, f"{name}_ledger", _ledger) for name in ("theory_layer_peeled", "theory_imbalance")),
    ("audit", "audit", "audit_findings", _findings),
    *(
        ("beyond the paper", name, f"{name}_differences", _compared)
        for name in ("controls", "nc_definitions", "remedies", "long_tail", "seeds_and_subsets")
    ),
    *(("beyond the paper", name, f"{name}_pooled", _pooled_accuracy) for name in ("remedies", "long_tail")),
    ("beyond the paper", "equilibrium_or_cell", "equilibrium_or_cell", _pooled),
    ("beyond the paper", "solver_and_collapse", "solver_and_collapse_inside", _inside),
    ("beyond the paper", "solver_and_collapse", "solver_and_collapse_minority", _by_group),
)
"""Part, notebook, the table it saves, and how its rows read."""
