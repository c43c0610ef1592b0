"""The pooled tests that the protocol of profile `full` fixed before its runs."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from nclib.compare import MIN_SEEDS, Pairs, pairs, pooled_table, ratios
from nclib.config import StoredConfig
from nclib.profiles import get_profile
from nclib.runs import PAIR, counted, settings, whole

# What the paper claims of the DEQ under imbalance; the first metric carries the claim.
COLLAPSE = {
    "paper_eq13_uncentred": "lower",
    "paper_eq14_uncentred": "lower",
    "nc1_pinv": "equal",
    "nc2_etf_distance": "lower",
    "nc3_self_duality": "lower",
    "nc1_trace_ratio": "equal",
}
# In these the equilibrium is compared with the same block applied once.
BLOCK = ("nc1_trace_ratio", "paper_eq13_uncentred")
# K_A and R of the setting whose direction the pilot had shown: each pooled test is also given without it.
KNOWN = (3, 100.0)


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
    scale : of the runs (`nclib.profiles.scale_of`)
    pair : the model compared with, and the model

    Returns
    -------
    two DataFrames of `nclib.compare.ratios`, with the columns compared and settings_planned; empty where no setting
    has three seeds.
    """
    name = f"DEQ / {'its cell applied once' if 'explicit_matched' in pair else 'ResNet-18'}"
    found = [pd.DataFrame(), pd.DataFrame()]
    for left_out, kept, wanted in _complete(frame[frame["model"].isin(pair)], planned, pair):
        table = ratios(kept, claims, scale, arm=pair[1], against=pair[0])
        found[left_out] = table.assign(compared=name + _WITHOUT * left_out, settings_planned=wanted)
    return found[0], found[1]


def accuracy_tests(frame: pd.DataFrame, planned: Sequence[StoredConfig], scale: str, remark: str = "") -> pd.DataFrame:
    """Class-balanced test accuracy, DEQ − ResNet-18 in percentage points at the last epoch, pooled over the imbalanced
    settings that have every planned seed, and the same without the setting of `KNOWN`.

    Parameters
    ----------
    frame : tidy frame, accuracies as fractions
    planned : all runs, finished or not
    scale : of the runs (`nclib.profiles.scale_of`)
    remark : on both tests, such as `accuracy_remark`

    Returns
    -------
    DataFrame of `nclib.compare.pooled_table`, with the columns compared and settings_planned; empty where no setting
    has three seeds.
    """
    found = [pd.DataFrame()]
    for left_out, kept, wanted in _complete(frame, planned):
        table = pooled_table(pairs(kept, "accuracy_balanced", "test"), scale, "higher", remark)
        compared = "DEQ − ResNet-18 in points" + _WITHOUT * left_out
        found.append(table.assign(compared=compared, settings_planned=wanted))
    return pd.concat(found, ignore_index=True)


def overall_accuracy(frame: pd.DataFrame, planned: Sequence[StoredConfig]) -> tuple[Pairs | None, tuple[int, int]]:
    """Class-balanced test accuracy of both networks over the last ten epochs, paired over the settings that have every
    planned seed (None: no setting has), and how many settings have them and are planned.

    Parameters
    ----------
    frame : tidy frame, accuracies as fractions
    planned : all runs, finished or not
    """
    kept = whole(frame, planned)
    found = None if kept.empty else pairs(kept, "accuracy_balanced", "test", "last_epochs")
    return found, counted(kept, planned)


def accuracy_remark(profile: str, recipe: str = "") -> str:
    """What is to be remarked on a pooled test of accuracy: with profile `full` the protocol lets the networks of recipe
    `accuracy` carry the claim, and no others."""
    recipe = recipe or get_profile(profile).recipe
    return f"secondary: recipe {recipe}" if profile == "full" and recipe != "accuracy" else ""


_WITHOUT = f", without K_A = {KNOWN[0]}, R = {KNOWN[1]:g}"


def _complete(
    frame: pd.DataFrame, planned: Sequence[StoredConfig], pair: tuple[str, str] = PAIR
) -> Iterator[tuple[bool, pd.DataFrame, int]]:
    """With the setting of `KNOWN` and without it, where three seeds are there: whether it is left out, the rows of the
    imbalanced settings that have every planned seed of both networks, and how many settings are planned."""
    planned = [config for config in planned if config.data.imbalance != "balanced"]
    known = (frame["K_A"].eq(KNOWN[0]) & frame["R"].eq(KNOWN[1])).fillna(False)
    for left_out in (False, True):
        mine = [c for c in planned if not (left_out and (c.data.num_majority, c.data.ratio) == KNOWN)]
        kept = whole(frame[frame["K_A"].notna() & ~(known & left_out)], mine, pair)
        if kept["seed"].nunique() >= MIN_SEEDS:
            yield left_out, kept, len(settings(mine))
