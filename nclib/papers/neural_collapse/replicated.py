"""What the replication (protocol 2) found: the words of its analysis, its tests and sensitivity."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from nclib.config import StoredConfig, run_id
from nclib.figures import markdown_table
from nclib.papers.neural_collapse import replication
from nclib.papers.neural_collapse.collapse_tables import EVERY, FRESH, PARTS, change, compared, exchange, spoken
from nclib.provenance import processor_kinds

# The rows of `EVERY` in the order of the protocol's page; the first two are primary.
PRIMARY = ("nc2c", "nc3c")
SECONDARY = ("eq14", "eq13", "cosc", "acc", "nc1")
ESTIMATED = ("trace", "cos", "majority", "minority", "loss")


def words() -> dict[str, str]:
    """The word that the rule gives of each metric that it names; "estimated" where it makes no
    test."""
    found = replication.found()
    rows = pd.concat([found.primary, found.secondary])
    return dict(rows[["metric", "verdict"]].itertuples(index=False))


def repeats(networks: Sequence[StoredConfig]) -> bool:
    """Whether protocol 2 trained these networks with other seeds."""
    given = {run_id(config) for config in networks}
    again = replication.of_seed(0, "folder:cifar10-jpeg@ef1101d4a992")
    return given >= {run_id(config) for config in again}


def claims(scale: str) -> pd.DataFrame:
    """The changes in percent that were tested, with their words, as notebooks save them; the first
    one leads."""
    found = replication.found()
    rows = pd.concat([found.primary.assign(claim="lower"), found.secondary])
    rows = rows[(rows["unit"] == "%") & (rows["verdict"] != "estimated")]
    rows = rows.assign(scale=scale, remark="protocol 2")
    rows["settings_found"] = rows["settings_planned"] = len(replication.TENTHS)
    leads = rows["metric"] == rows["metric"].iloc[0]
    rows = rows.assign(compared="100 : 1, new seeds", lead=leads)
    return rows.assign(printed="DEQ " + rows.pop("claim")).drop(columns=["split", "unit"])


def tests_table() -> str:
    """The primary, the secondary and the estimated metrics of the protocol, by setting."""
    lines = []
    for name in (*PRIMARY, *SECONDARY, *ESTIMATED):
        between = compared(EVERY[name], "fresh").by_setting["difference"].std(ddof=1)
        spread = f"{100 * between:.0f} %" if EVERY[name].relative else f"{between:.2f}"
        word = words().get(EVERY[name].metric, "–")
        cells = [change(name, group) for group in FRESH]
        lines.append([EVERY[name].label, word, *cells, spread, change(name, "r100")])
        if name == "eq14":
            for part, text in PARTS.items():
                *cells, before = (exchange(name, part, group) for group in (*FRESH, "r100"))
                lines.append([f"{EVERY[name].label}, {text}", "–", *cells, "–", before])
    heads = ["verdict", "mean of the three settings", "K_A = 3", "K_A = 5", "K_A = 7"]
    heads += ["s.d. between settings", "first experiment"]
    return markdown_table(["", *heads], lines)


def sensitivity_table() -> str:
    """Both primary metrics of the pairs that each sensitivity analysis keeps."""
    lines = []
    rows = replication.found().sensitivity
    for (analysis, k_a), kept in rows.groupby(["analysis", "K_A"], dropna=False):
        which = analysis.replace("one miss", "one misclassified image")
        if not pd.isna(k_a):
            which = f"{which}, K_A = {k_a:g}"
        cells = [spoken(row.change, row.low, row.high, row.seeds) for row in kept.itertuples()]
        lines.append([which, str(kept["seeds"].iloc[0]), *cells])
    return markdown_table(["", "seeds", *(EVERY[name].label for name in PRIMARY)], lines)


def mixed(records: Mapping[str, Any]) -> str:
    """The pairs whose runs were not all made on one known kind of processor.

    Parameters
    ----------
    records : run id → its config and provenance
    """
    kinds: dict[str, set[str]] = {}
    for run, record in records.items():
        pair = re.sub(r"-(?:deq|explicit)(-s\d+)-.*", r"\1", run)
        kinds.setdefault(pair, set()).update(processor_kinds(record["provenance"]))
    named = []
    for pair, found in kinds.items():
        if len(found) > 1 or any("unknown" in kind for kind in found):
            named.append(pair)
    return ", ".join(named) or "no pair"
