"""The pooled tests that the protocol of profile `full` fixed before its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from nclib.comparison import MIN_SEEDS, NotMeasured, Pairs, pairs, pooled_table, ratios
from nclib.config import StoredConfig
from nclib.engine.partial import PAIR, of_settings, whole
from nclib.engine.profiles import get_profile

COLLAPSE = {
    "paper_eq13_uncentred": "lower",
    "paper_eq14_uncentred": "lower",
    "nc1_pinv": "equal",
    "nc2_etf_distance": "lower",
    "nc3_self_duality": "lower",
    "nc1_trace_ratio": "equal",
}
"""What the paper claims of the DEQ under imbalance; the first metric carries the claim."""
BLOCK = ("nc1_trace_ratio", "paper_eq13_uncentred")
"""In these the equilibrium is compared with its own cell applied once."""
KNOWN = (3, 100.0)
"""K_A and R of the setting whose direction the pilot had shown: each pooled test is also given without it."""


def pooled_ratios(
    frame: pd.DataFrame,
    planned: Sequence[StoredConfig],
    claims: Sequence[str] | Mapping[str, str],
    scale: str,
    pair: tuple[str, str] = PAIR,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One network's metrics over the other's, pooled over the imbalanced settings that have every planned seed of both,
    and the same without the setting of `KNOWN`.

    Parameters
    ----------
    frame : tidy frame
    planned : all runs, finished or not
    claims : metrics, or what is claimed of each
    scale : of the runs (`nclib.scale_of`)
    pair : the model compared with, and the model

    Returns
    -------
    two DataFrames of `nclib.comparison.ratios`, with a column compared; empty where no setting has three
    seeds. The remark says how many settings there are so far, unless all are there.
    """
    found, name = [], f"DEQ / {'its cell applied once' if 'explicit_matched' in pair else 'ResNet-18'}"
    for left_out in (False, True):
        rows, mine = _imbalanced(frame[frame["model"].isin(pair)], planned, left_out)
        kept, table = whole(rows, mine, pair), pd.DataFrame()
        if kept["seed"].nunique() >= MIN_SEEDS:
            table = ratios(kept, claims, scale, arm=pair[1], against=pair[0])
            table.insert(0, "compared", name + _without(left_out))
            table["remark"] = [_remarks(remark, of_settings(kept, mine)) for remark in table["remark"]]
        found.append(table)
    return found[0], found[1]


def accuracy_tests(frame: pd.DataFrame, planned: Sequence[StoredConfig], scale: str, remark: str = "") -> pd.DataFrame:
    """Class-balanced test accuracy, DEQ − ResNet-18 in points at the last epoch, pooled over the imbalanced settings
    that have every planned seed, and the same without the setting of `KNOWN`.

    Parameters
    ----------
    frame : tidy frame, accuracies as fractions
    planned : all runs, finished or not
    scale : of the runs (`nclib.scale_of`)
    remark : on both tests, such as `accuracy_remark`

    Returns
    -------
    DataFrame of `nclib.comparison.pooled_table`, with a column compared; empty where no setting has three
    seeds. The remark says how many settings there are so far, unless all are there.
    """
    found = []
    for left_out in (False, True):
        rows, mine = _imbalanced(frame, planned, left_out)
        kept = whole(rows, mine)
        if kept["seed"].nunique() >= MIN_SEEDS:
            remarks = _remarks(of_settings(kept, mine), remark)
            table = pooled_table(pairs(kept, "accuracy_balanced", "test"), scale, "higher", remarks)
            table.insert(0, "compared", "accuracy, DEQ − ResNet-18 in points" + _without(left_out))
            found.append(table)
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def overall_accuracy(frame: pd.DataFrame, planned: Sequence[StoredConfig]) -> tuple[Pairs | None, str]:
    """Class-balanced test accuracy of both networks over the last ten epochs, paired over the settings that have every
    planned seed (None: no setting has), and how many of the planned settings these are (`of_settings`).

    Parameters
    ----------
    frame : tidy frame, accuracies as fractions
    planned : all runs, finished or not
    """
    kept = whole(frame, planned)
    try:
        return pairs(kept, "accuracy_balanced", "test", "last_epochs"), of_settings(kept, planned)
    except NotMeasured:
        return None, of_settings(kept, planned)


def accuracy_remark(profile: str, recipe: str = "", over: str = "") -> str:
    """What is to be remarked on a pooled test of accuracy.

    Parameters
    ----------
    profile, recipe : of the runs. With profile `full` the protocol lets the networks of recipe `accuracy` carry the
        claim, and no others
    over : how many settings it is over (`of_settings`)

    Returns
    -------
    str
    """
    recipe = recipe or get_profile(profile).recipe
    secondary = f"secondary: recipe {recipe}" if profile == "full" and recipe != "accuracy" else ""
    return _remarks(over, secondary)


def _remarks(*said: str) -> str:
    """Remarks one after the other; that all of several settings are there is none."""
    return "; ".join(remark for remark in said if remark and not remark.startswith("all "))


def _without(left_out: bool) -> str:
    return f", without K_A = {KNOWN[0]}, R = {KNOWN[1]:g}" * left_out


def _imbalanced(
    frame: pd.DataFrame, planned: Sequence[StoredConfig], without_known: bool
) -> tuple[pd.DataFrame, list[StoredConfig]]:
    """The rows, and the runs, of imbalanced settings."""
    known = frame["K_A"].eq(KNOWN[0]) & frame["R"].eq(KNOWN[1]) & without_known
    kept = [config for config in planned if config.data.imbalance != "balanced"]
    kept = [c for c in kept if not (without_known and (c.data.num_majority, c.data.ratio) == KNOWN)]
    return frame[frame["K_A"].notna() & ~known.fillna(False)], kept
