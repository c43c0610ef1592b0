"""What a notebook says about the paper's claims, in one table of fixed columns; the notebook
`scorecard` puts these tables below one another.

A notebook of `NOTEBOOKS` saves its table as ``<notebook>_claims``.
"""

import math
from typing import Any

import pandas as pd

from nclib.figures import results_of
from nclib.metrics import LABELS
from nclib.papers.neural_collapse import collapse_tables, protocol2, protocol3
from nclib.profiles import TITLES

BEYOND = "beyond the paper"
"""The part of what no paper claims."""
NOTEBOOKS = {
    "table1": "tables",
    "table2": "tables",
    "table3": "tables",
    "table4": "tables",
    "fig2": "figures",
    "fig3": "figures",
    "fig4": "figures",
    "fig5": "figures",
    "theory_layer_peeled": "theory",
    "theory_imbalance": "theory",
    "audit": "audit",
    "controls": BEYOND,
    "nc_definitions": BEYOND,
    "remedies": BEYOND,
    "long_tail": BEYOND,
    "seeds_and_subsets": BEYOND,
    "equilibrium_or_cell": BEYOND,
    "solver_and_collapse": BEYOND,
}
"""The notebooks that save their claims, and the part of the scorecard where these stand."""
PARTS = list(dict.fromkeys(NOTEBOOKS.values()))
SAVED = {
    "half": "interval",
    "detectable": "detectable",
    "seeds": "seeds",
    "verdict": "verdict",
    "scale": "scale",
    "remark": "remark",
    "lead": "lead",
}
"""Columns of a table with verdicts, and what they are called in a table of claims."""
COLUMNS = ["notebook", "part", "item", "printed", "regenerated", *SAVED.values()]
TEXTS = dict.fromkeys(["printed", "regenerated", "scale", "remark"], str)
"""Columns that hold text although it may look like a number, or be empty."""


def claims(
    table: pd.DataFrame,
    notebook: str,
    item: str,
    ours: str = "difference",
    paper: str = "",
    unit: str = "",
) -> pd.DataFrame:
    """The claims of a notebook, in the columns of the scorecard.

    Parameters
    ----------
    table : a row for each claim, with verdict and, where they apply, half, detectable, seeds,
        scale, remark and lead
    notebook : its name, one of `NOTEBOOKS`
    item : how a row is called by its columns, such as "Figure 2: {metric}"
    ours : the column with what we found, a number or words
    paper : the column with what the paper states; "" where it states nothing
    unit : of the numbers in these two columns, such as " points"

    Returns
    -------
    DataFrame
        A row for each claim: notebook; part, one of `PARTS`; item; printed, what the paper states;
        regenerated, ours; interval, half the 95 % t-interval over seeds; detectable, the smallest
        difference that these seeds would find in 80 % of the cases; seeds; verdict, a word of
        `nclib.compare.VERDICTS` or `nclib.papers.certify.VERDICTS`, by the rule that the notebook
        names; scale, how far the evidence reaches; remark; lead, whether the row carries the claim
        of its notebook.

    Examples
    --------
    >>> import pandas as pd
    >>> row = {"metric": "nc1_pinv", "difference": 0.2, "half": 0.1, "seeds": 3}
    >>> table = pd.DataFrame([row | {"printed": "DEQ lower", "verdict": "opposite here"}])
    >>> card = claims(table, "fig4", "Figure 4: {metric}", paper="printed")
    >>> card.loc[0, ["item", "printed", "regenerated", "verdict"]].tolist()
    ['Figure 4: NC1, eq. 12', 'DEQ lower', '+0.2', 'opposite here']
    """
    card = table.reindex(columns=list(SAVED)).rename(columns=SAVED)
    card["notebook"] = notebook
    card["part"] = NOTEBOOKS[notebook]
    items = []
    for row in table.to_dict("records"):
        names = {column: _name(column, value) for column, value in row.items()}
        items.append(item.format_map(names))
    card["item"] = items
    card["printed"] = [_words(value, unit) for value in table[paper]] if paper else ""
    card["regenerated"] = [_words(value, unit) for value in table[ours]]
    card["lead"] = card["lead"].eq(True)
    return card[COLUMNS]


def accuracy_claims(number: int, table: pd.DataFrame, pooled: pd.DataFrame) -> pd.DataFrame:
    """The claims of one of Tables 1 to 4: all settings together, then each accuracy by itself.

    Parameters
    ----------
    number : of the table
    table : of `accuracy_table`
    pooled : of `nclib.compare.pooled_table`, with the column settings_planned; left out where one
        setting is planned, which has its row already
    """
    notebook = f"table{number}"
    item = f"Table {number}: {{dataset}} {{cell}}, {{accuracy}}"
    single = claims(table, notebook, item, paper="printed_difference", unit=" points")
    pooled = pooled[pooled["settings_planned"] > 1]
    if pooled.empty:
        return single
    item = f"Table {number}: all cells, overall"
    return pd.concat([claims(pooled, notebook, item, paper="printed"), single], ignore_index=True)


def theory_claims(ledger: pd.DataFrame, notebook: str) -> pd.DataFrame:
    """The claims of a notebook on theory; what was tested at another reading, or on maps of our
    own, is "beyond the paper".

    Parameters
    ----------
    ledger : of `theory_ledger`
    notebook : its name
    """
    card = claims(ledger, notebook, "{claim}", ours="evidence", paper="place")
    card.loc[ledger["kind"] == "control", "part"] = BEYOND
    remarks = []
    for row in ledger.to_dict("records"):
        remarks.append(_how_it_was_read(row))
    return card.assign(remark=remarks)


def percent_changes(table: pd.DataFrame) -> list[str]:
    """Changes in percent with their intervals, which are not symmetric, in words.

    Parameters
    ----------
    table : of `nclib.compare.ratios`

    Examples
    --------
    >>> import pandas as pd
    >>> percent_changes(pd.DataFrame({"change": [-20.0], "low": [-30.0], "high": [-8.6]}))
    ['-20.0 % (-30.0 to -8.6)']
    """
    texts = []
    for row in table.itertuples():
        if pd.isna(row.change):
            texts.append("")
        elif pd.isna(row.low):
            texts.append(f"{row.change:+.1f} %")
        else:
            texts.append(f"{row.change:+.1f} % ({row.low:+.1f} to {row.high:+.1f})")
    return texts


def all_claims(profile: str) -> pd.DataFrame:
    """The tables of `claims` that the notebooks saved with a profile, below one another.

    Parameters
    ----------
    profile : among whose results they are; with parameters other than the scorecard's own, among
        the results of these

    Returns
    -------
    DataFrame with the columns of `claims`, part by part. A notebook of `NOTEBOOKS` without a table
    has one row, with the verdict "not run".
    """
    folder = results_of("neural_collapse/scorecard", profile) / "tables" / "neural_collapse"
    empty = dict.fromkeys(TEXTS, "")
    tables = []
    for notebook, part in NOTEBOOKS.items():
        file = folder / f"{notebook}_claims.csv"
        if file.exists():
            tables.append(pd.read_csv(file, dtype=TEXTS))
        else:
            row = {"notebook": notebook, "part": part, "item": notebook.replace("_", " ")}
            row |= {"verdict": "not run", "lead": False}
            tables.append(pd.DataFrame([row | empty]))
    card = pd.concat(tables, ignore_index=True).reindex(columns=COLUMNS)
    # rows of a notebook on theory belong to two parts
    card = card.sort_values("part", key=lambda parts: parts.map(PARTS.index), kind="stable")
    return card.fillna(empty).reset_index(drop=True)


EXPERIMENTS = {
    "E1": "protocol 3, E1: the DEQ against its block applied once, CIFAR-10",
    "E2": "protocol 3, E2: CIFAR-100",
    "E3": "protocol 3, E3: 120 epochs, CIFAR-10",
}
"""What the scorecard calls the experiments of protocol 3."""


def registered_tests() -> pd.DataFrame:
    """The tests of protocols 2 and 3, whose rules were committed before their runs, on the tracked
    runs.

    Returns
    -------
    DataFrame
        A row for each test: experiment; metric; claim, which the verdict is about; change, low and
        high, in the unit of the row (percent, percentage points, or none for a cosine); seeds;
        verdict; scale. An experiment that is not analysed yet has no rows.
    """
    analysis = protocol2.tracked_analysis()
    primary = analysis.primary.assign(claim="lower")
    replication = pd.concat([primary, analysis.secondary], ignore_index=True)
    replication["experiment"] = "protocol 2: CIFAR-10"
    names = {row.metric: row.label for row in collapse_tables.EVERY.values()}
    replication["metric"] = replication["metric"].replace(names | LABELS)
    replication["scale"] = "reduced"

    found = protocol3.results([protocol3.standing(name) for name in EXPERIMENTS])
    found = found[found["remark"] == ""].rename(columns={"what": "metric"})
    found["experiment"] = found["experiment"].replace(EXPERIMENTS)
    found["claim"] = (found["unit"] == "points").map({True: "higher", False: "lower"})

    tests = pd.concat([replication, found], ignore_index=True)
    tests["claim"] = "DEQ " + tests["claim"]
    columns = ["experiment", "metric", "claim", "change", "low", "high", "unit", "seeds"]
    return tests[[*columns, "verdict", "scale"]]


# --- helpers --------------------------------------------------------------------------------------


def _name(column: str, value: Any) -> str:
    """A value of a column as readers call it."""
    text = "" if pd.isna(value) else str(value)
    if column == "model":
        return text.replace("_", " ")
    if column == "metric":
        return LABELS.get(value, text)
    if column == "dataset":
        return TITLES.get(value, text)
    return text


def _words(value: Any, unit: str) -> str:
    """Words as they are, and three digits of a number; what rounding leaves of a 0 is shown as 0."""
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return ""
    if abs(value) <= 1e-12:
        value = 0.0
    return f"{value:+.3g}{unit}"


def _how_it_was_read(row: dict[str, Any]) -> str:
    """How a statement was read, why it fails, and what certifies the verdict."""
    remarks = []
    if row["kind"] == "control":
        remarks.append("control")
    if row["reading"]:
        remarks.append(f"reading: {row['reading']}")
    if row["defect"]:
        remarks.append(f"defect {row['defect']}")
    if row["certificate"]:
        remarks.append(f"nclib certify {row['certificate']}")
    return "; ".join(remarks)
