"""What protocol 2 found, for the pages of docs/: the words of its analysis, its estimates and its sensitivity."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from companion.neural_collapse import replication
from companion.neural_collapse.collapse_tables import EVERY, FRESH, PARTS, changes, compared, parts, percent, spoken
from nclib.config import StoredConfig, run_id
from nclib.publish.numbers import table
from nclib.system import paths

# The rows of `EVERY` in the order of the protocol's page.
_ROWS = ("nc2c", "nc3c", "eq14", "eq13", "cosc", "acc", "nc1", "trace", "cos", "majority", "minority", "loss")


def words() -> dict[str, str]:
    """The word that the rule gives of each metric that it names; "estimated" where it makes no test."""
    found = replication.found()
    return dict(pd.concat([found.primary, found.secondary])[["metric", "verdict"]].itertuples(index=False))


@functools.cache
def numbers() -> dict[str, str]:
    """Numbers and tables by name."""
    found, listing = replication.found(), paths.reference() / replication.COLLECTION / "runs.json"
    return {
        "replication-verdict": found.verdict,
        "replication-seeds": str(len(found.seeds)),
        "replication-diverged": f"{found.replaced['explicit']} and {found.replaced['deq']}",
        "replication-mixed": mixed(json.loads(listing.read_text("utf-8"))),
        "replication-tests": _tests(),
        "replication-sensitivity": _sensitivity(),
        **{f"replication-word-{name}": words()[EVERY[name].metric] for name in _ROWS[:7]},
    }


def repeats(networks: Sequence[StoredConfig]) -> bool:
    """Whether protocol 2 trained these networks with other seeds."""
    given, again = {run_id(config) for config in networks}, replication.of_seed(0, "folder:cifar10-jpeg@ef1101d4a992")
    return given >= {run_id(config) for config in again}


def claims(scale: str) -> pd.DataFrame:
    """The changes in percent that were tested, with their words, as notebooks save them; the first one leads."""
    found = replication.found()
    rows = pd.concat([found.primary.assign(claim="lower"), found.secondary])
    rows = rows[(rows["unit"] == "%") & (rows["verdict"] != "estimated")].assign(scale=scale, remark="protocol 2")
    rows["settings_found"] = rows["settings_planned"] = len(replication.TENTHS)
    rows = rows.assign(compared="R = 100, fresh seeds", lead=rows["metric"] == rows["metric"].iloc[0])
    return rows.assign(printed="DEQ " + rows.pop("claim")).drop(columns=["split", "unit"])


def _tests() -> str:
    lines = []
    for name in _ROWS:
        between = compared(EVERY[name], "fresh").by_setting["difference"].std(ddof=1)
        spread = f"{100 * between:.0f} %" if EVERY[name].relative else f"{between:.2f}"
        *cells, before = changes(name, (*FRESH, "r100"))
        lines.append([EVERY[name].label, words().get(EVERY[name].metric, "–"), *cells, spread, before])
        for part in PARTS if name == "eq14" else ():
            *cells, before = (percent(parts(group, "NC3, eq. 14")[part]) for group in (*FRESH, "r100"))
            lines.append([f"– {PARTS[part]}", "–", *cells, "–", before])
    heads = ["word", "protocol 2", "K_A = 3", "K_A = 5", "K_A = 7", "between settings", "protocol 1"]
    return table(["", *heads], lines)


def _sensitivity() -> str:
    """Both primary metrics of the pairs that each analysis keeps."""
    lines = []
    for (analysis, k_a), rows in replication.found().sensitivity.groupby(["analysis", "K_A"], dropna=False):
        which = f"{analysis}, K_A = {k_a:g}" if k_a == k_a else analysis
        cells = [spoken(row.change, row.low, row.high, row.seeds) for row in rows.itertuples()]
        lines.append([which, str(rows["seeds"].iloc[0]), *cells])
    return table(["", "seeds", *(EVERY[name].label for name in _ROWS[:2])], lines)


def mixed(records: Mapping[str, Any]) -> str:
    """The pairs whose runs were made on two kinds of processor; run id → what is stored of it."""
    kinds: dict[str, set[tuple[str, str | None]]] = {}
    for run, record in records.items():
        made = record["provenance"]
        pair = kinds.setdefault(re.sub(r"-(?:deq|explicit)(-s\d+)-.*", r"\1", run), set())
        pair |= {(one["cpu"], one.get("bfloat16")) for one in (made, *made["facts"].get("earlier_sessions", []))}
    return ", ".join(pair for pair, found in kinds.items() if len(found) > 1) or "no pair"
