"""Protocol 1: the pooled tests that the protocol of profile `full` fixed before its runs."""

from collections.abc import Mapping, Sequence

import pandas as pd

from nclib.compare import MIN_SEEDS, SETTING, Pairs, pairs, pooled_table, ratios, terminal_phase
from nclib.config import StoredConfig
from nclib.profiles import get_profile
from nclib.runs import PAIR, counted, settings, whole

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
"""In these the equilibrium is compared with the same block applied once."""
KNOWN = (3, 100.0)
"""K_A and R of the setting whose direction the pilot had shown: each pooled test is also given
without it."""


def described_settings(frame: pd.DataFrame, planned: Sequence[StoredConfig]) -> pd.DataFrame:
    """The settings that are planned, the seeds that are there, and which of them are tested.

    Parameters
    ----------
    frame : tidy frame of both networks
    planned : all runs of both networks, finished or not

    Returns
    -------
    DataFrame
        A row for each setting: dataset, K_A, R, planned and seeds (how many), terminal explicit and
        terminal deq (whether every run reached the terminal phase), judged (tested: three seeds,
        all of them in the terminal phase), name, and setting, which is name and data set.
    """
    phases = terminal_phase(frame)
    reached = phases.groupby([*SETTING, "model"], dropna=False)["reached"].all().unstack("model")
    seeds = frame.groupby(SETTING, dropna=False)["seed"].nunique().rename("seeds")
    table = settings(planned).rename(columns={"seed": "planned"})
    table = table.merge(seeds, how="left", on=SETTING)
    table = table.fillna({"seeds": 0}).astype({"seeds": int})
    table = table.merge(reached.add_prefix("terminal "), how="left", on=SETTING)
    terminal = table[["terminal explicit", "terminal deq"]].eq(True).all(axis=1)
    table["judged"] = terminal & (table["seeds"] >= MIN_SEEDS)
    names = []
    for row in table.itertuples():
        if pd.isna(row.K_A):
            names.append("balanced")
        else:
            names.append(f"K_A = {row.K_A:g}, R = {row.R:g}")
    table["name"] = names
    table["setting"] = table["dataset"].str.removeprefix("folder:") + ", " + table["name"]
    return table


def pooled_ratios(
    frame: pd.DataFrame,
    planned: Sequence[StoredConfig],
    claims: Sequence[str] | Mapping[str, str],
    scale: str,
    pair: tuple[str, str] = PAIR,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One network's metrics over the other's, pooled over the imbalanced settings that have every
    planned seed of both, and the same without the setting of `KNOWN`.

    Parameters
    ----------
    frame : tidy frame
    planned : all runs, finished or not
    claims : metrics, or what is claimed of each
    scale : of the runs (`nclib.profiles.scale_of`)
    pair : the model compared with, and the model

    Returns
    -------
    two DataFrames of `nclib.compare.ratios`, with the columns compared and settings_planned; empty
    where no setting has three seeds.
    """
    against, model = pair
    name = "its cell applied once" if "explicit_matched" in pair else "ResNet-18"
    tables = []
    for without_known in (False, True):
        entering = _entering(frame[frame["model"].isin(pair)], planned, pair, without_known)
        if entering is None:
            tables.append(pd.DataFrame())
            continue
        kept, settings_planned = entering
        table = ratios(kept, claims, scale, arm=model, against=against)
        compared = _named(f"DEQ / {name}", without_known)
        tables.append(table.assign(compared=compared, settings_planned=settings_planned))
    with_all, without = tables
    return with_all, without


def accuracy_tests(
    frame: pd.DataFrame, planned: Sequence[StoredConfig], scale: str, remark: str = ""
) -> pd.DataFrame:
    """Class-balanced test accuracy, DEQ − ResNet-18 in percentage points at the last epoch, pooled
    over the imbalanced settings that have every planned seed, and without the setting of `KNOWN`.

    Parameters
    ----------
    frame : tidy frame, accuracies as fractions
    planned : all runs, finished or not
    scale : of the runs (`nclib.profiles.scale_of`)
    remark : on both tests, such as `accuracy_remark`

    Returns
    -------
    DataFrame of `nclib.compare.pooled_table`, with the columns compared and settings_planned; empty
    where no setting has three seeds.
    """
    tables = [pd.DataFrame()]
    for without_known in (False, True):
        entering = _entering(frame, planned, PAIR, without_known)
        if entering is None:
            continue
        kept, settings_planned = entering
        both = pairs(kept, "accuracy_balanced", "test")
        table = pooled_table(both, scale, "higher", remark)
        compared = _named("DEQ − ResNet-18 in points", without_known)
        tables.append(table.assign(compared=compared, settings_planned=settings_planned))
    return pd.concat(tables, ignore_index=True)


def overall_accuracy(
    frame: pd.DataFrame, planned: Sequence[StoredConfig]
) -> tuple[Pairs | None, tuple[int, int]]:
    """Class-balanced test accuracy of both networks over the last ten epochs, paired over the
    settings that have every planned seed.

    Parameters
    ----------
    frame : tidy frame, accuracies as fractions
    planned : all runs, finished or not

    Returns
    -------
    the pairs (None: no setting has every seed), and how many settings have them and are planned
    """
    kept = whole(frame, planned)
    number = counted(kept, planned)
    if kept.empty:
        return None, number
    return pairs(kept, "accuracy_balanced", "test", "last_epochs"), number


def accuracy_remark(profile: str, recipe: str = "") -> str:
    """What is to be remarked on a pooled test of accuracy: with profile `full` the protocol lets
    the networks of recipe `accuracy` carry the claim, and no others."""
    recipe = recipe or get_profile(profile).recipe
    if profile == "full" and recipe != "accuracy":
        return f"secondary: recipe {recipe}"
    return ""


def _named(compared: str, without_known: bool) -> str:
    if not without_known:
        return compared
    k_a, ratio = KNOWN
    return f"{compared}, without K_A = {k_a}, R = {ratio:g}"


def _entering(
    frame: pd.DataFrame, planned: Sequence[StoredConfig], pair: tuple[str, str], without_known: bool
) -> tuple[pd.DataFrame, int] | None:
    """The rows of the imbalanced settings that have every planned seed of both networks, and how
    many settings are planned; None with fewer than three seeds."""
    wanted = []
    for config in planned:
        known = (config.data.num_majority, config.data.ratio) == KNOWN
        if config.data.imbalance != "balanced" and not (without_known and known):
            wanted.append(config)
    kept = whole(frame, wanted, pair)
    if kept["seed"].nunique() < MIN_SEEDS:
        return None
    return kept, len(settings(wanted))
