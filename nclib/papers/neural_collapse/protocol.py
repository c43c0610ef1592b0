"""The pooled tests that the protocol of profile `full` fixed before its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from nclib.comparison import SETTING, by_run, paired, percent, pooled, pooled_table, ratios
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
    without_known: bool = False,
) -> pd.DataFrame:
    """One network's metrics over the other's, pooled over the imbalanced settings that have every planned seed of both.

    Parameters
    ----------
    frame : tidy frame
    planned : all runs, finished or not
    claims : metrics, or what is claimed of each
    scale : of the runs (`nclib.scale_of`)
    pair : the model compared with, and the model
    without_known : leave out the setting of `KNOWN`

    Returns
    -------
    DataFrame of `nclib.comparison.ratios`, with a column settings in words; empty where no setting is whole.
    """
    rows, planned = _imbalanced(frame[frame["model"].isin(pair)], planned, without_known)
    settings = whole(paired(by_run(rows, next(iter(claims)), "train"), *reversed(pair)), planned)
    if settings.empty:
        return pd.DataFrame()
    kept = rows.merge(settings[[*SETTING, "seed"]], on=[*SETTING, "seed"])
    found = ratios(kept, claims, scale, arm=pair[1], against=pair[0])
    return found.assign(settings=of_settings(settings, planned) + _without(without_known))


def accuracy_tests(
    frame: pd.DataFrame, planned: Sequence[StoredConfig], scale: str, profile: str, recipe: str = ""
) -> pd.DataFrame:
    """Class-balanced test accuracy, DEQ − ResNet-18 in points at the last epoch, pooled over the imbalanced settings
    that have every planned seed, and the same without the setting of `KNOWN`.

    Parameters
    ----------
    frame : tidy frame, accuracies as fractions
    planned : all runs, finished or not
    scale : of the runs (`nclib.scale_of`)
    profile, recipe : of the runs; see `secondary`

    Returns
    -------
    DataFrame of `nclib.comparison.pooled_table`, with a column settings in words; empty where no setting is whole.
    """
    points, found = by_run(percent(frame), "accuracy_balanced", "test"), []
    for left_out in (False, True):
        rows, mine = _imbalanced(points, planned, left_out)
        settings = whole(paired(rows), mine)
        if len(settings):
            table = pooled_table(pooled(settings), scale, "higher", secondary(profile, recipe))
            found.append(table.assign(settings=of_settings(settings, mine) + _without(left_out)))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def secondary(profile: str, recipe: str = "") -> str:
    """The remark on a test of accuracy whose networks were trained by the protocol for collapse; "" of others."""
    in_force = recipe or get_profile(profile).recipe
    return "secondary: trained without augmentation, recipe collapse" if in_force == "collapse" else ""


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
