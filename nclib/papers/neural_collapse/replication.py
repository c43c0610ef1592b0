"""Protocol 2: does the DEQ collapse better at R = 100? Its runs, its population and its one analysis.

The rules are those of docs/protocol.md, which was committed with this code before the first run. The runs were made by
a clone of that commit (recipes/protocol-2.sh) and lay apart from all others until the analysis had been made.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nclib import paths
from nclib.compare import SETTING, Interval, pairs
from nclib.config import RunConfig
from nclib.papers.neural_collapse.duality import add_cosines
from nclib.papers.neural_collapse.experiments import step_imbalanced
from nclib.profiles import classifiers, get_profile, override
from nclib.store import reference_store

TENTHS, RATIO = (3, 5, 7), 100.0
SEEDS = tuple(range(10, 18))
SPARE = tuple(range(18, 30))
"""Seeds that replace, one by one, those of a diverged run."""
COLLECTION = "protocol-2"
LEAST = 5
"""Complete seeds without which nothing is analysed."""
REASON = "the time set aside for these runs, 28 to 36 core-hours, holds five seeds and no sixth"
"""Why no more seeds can be run, as the protocol's page says it."""
DIVERGED = 0.5
"""Training accuracy at the last epoch below which a run counts as diverged."""

PRIMARY = ("nc2_etf_distance", "nc3_self_duality")
SECONDARY: tuple[tuple[str, str, str, bool, float], ...] = (
    ("paper_eq14_uncentred", "train", "lower", True, 0.0),
    ("paper_eq13_uncentred", "train", "lower", True, 0.03),
    ("class_cosine_centred", "train", "higher", False, 0.0),
    ("accuracy_balanced", "test", "higher", False, 0.0),
    ("nc1_pinv", "train", "equal", True, 0.1),
)
"""In this order: metric, split, claim, whether logarithms are compared, and the share within which it counts as equal
(0 where equality is not tested)."""


def of_seed(seed: int, dataset: str = "cifar10") -> list[RunConfig]:
    """The six runs of a seed: recipe `collapse` of profile `full`, three settings, both networks."""
    profile = override(get_profile("full"), dataset=dataset)
    runs = [run for tenths in TENTHS for run in classifiers(profile, step_imbalanced(profile, tenths, RATIO))]
    return [run.replace(seed=seed) for run in runs if run.seed == 0]


def _ended_badly(history: pd.DataFrame) -> bool:
    train = history[(history["split"] == "train") & (history["metric"] == "accuracy_train_prior")]
    losses = history[(history["split"] == "steps") & (history["metric"] == "loss")]["value"]
    return bool(not np.isfinite(losses).all() or train.sort_values("epoch")["value"].iloc[-1] < DIVERGED)


class TooEarly(ValueError):
    """Fewer seeds are complete than the protocol allows to be analysed."""


@dataclass(frozen=True)
class Analysis:
    """What the protocol's one analysis found; see `analyse`."""

    verdict: str
    seeds: tuple[int, ...]
    reason: str
    replaced: Mapping[str, int]
    primary: pd.DataFrame
    secondary: pd.DataFrame
    sensitivity: pd.DataFrame


def population(frame: pd.DataFrame, failed: Sequence[str] = ()) -> tuple[tuple[int, ...], dict[str, int]]:
    """The seeds that enter: the first eight, in the order 10, 11, …, none of whose runs diverged and all of whose runs
    are there; and how many runs of each network diverged.

    Parameters
    ----------
    frame : tidy frame of all runs
    failed : ids of runs whose loss was not finite

    Raises
    ------
    ValueError
        For a seed that is complete while an earlier one is neither complete nor diverged.
    """
    runs = frame.drop_duplicates("run_id")
    ends = {run for run, rows in frame.groupby("run_id") if _ended_badly(rows)}
    bad, counts = set(), {"explicit": 0, "deq": 0}
    for run in {*ends, *failed}:
        kind, seed = (run.rsplit("-", 3)[1], int(run.rsplit("-", 2)[1].removeprefix("s")))
        bad.add(seed)
        counts[kind] += 1
    cells = {(float(tenths), RATIO, kind) for tenths in TENTHS for kind in counts}
    there = {
        seed: {(float(row.K_A), float(row.R), row.model) for row in rows.itertuples()}
        for seed, rows in runs.groupby("seed")
    }
    complete: list[int] = []
    for seed in (*SEEDS, *SPARE):
        if seed in bad or len(complete) == len(SEEDS):
            continue
        if there.get(seed) != cells:
            break
        complete.append(seed)
    later = [seed for seed, found in there.items() if found == cells and seed not in bad and seed not in complete]
    if later and len(complete) < len(SEEDS):
        raise ValueError(f"seed {min(later)} is complete and an earlier one is not: seeds enter in their order")
    return tuple(complete), counts


def analyse(
    frame: pd.DataFrame, arrays: Mapping[str, Mapping[str, Any]], failed: Sequence[str] = (), reason: str = ""
) -> Analysis:
    """The analysis of the protocol.

    Parameters
    ----------
    frame : tidy frame of the runs
    arrays : run id → class_means, classifier and missed (training images of each class that are missed at the end)
    failed : ids of runs whose loss was not finite
    reason : why no more than five to seven seeds can be run, as committed on the protocol's page

    Raises
    ------
    TooEarly
        With fewer than eight complete seeds, unless there are five and a reason.
    """
    seeds, replaced = population(frame, failed)
    if len(seeds) < (LEAST if reason.strip() else len(SEEDS)):
        raise TooEarly(
            f"{len(seeds)} of {len(SEEDS)} seeds are complete; with {LEAST} to {len(SEEDS) - 1} the analysis needs the "
            "line on the protocol's page that says why no more can be run"
        )
    entering = frame[frame["seed"].isin(seeds)]
    known = add_cosines(entering, arrays)
    primary, verdict = co_primary(known)
    return Analysis(
        verdict,
        seeds,
        reason,
        replaced,
        primary,
        secondary(known, verdict == "supported"),
        _sensitivity(entering, arrays),
    )


def co_primary(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Both primary metrics with their own words, and the joint verdict."""
    found = [pairs(frame, metric, relative=True) for metric in PRIMARY]
    if any(one.terminal is None for one in found):
        raise ValueError("a run's training accuracy at its last epoch is not known")
    rows = [(one.metric, one.split, *_estimate(frame, one.metric, one.split, True)) for one in found]
    words = [one.verdict("reduced", "lower", phase="described").word for one in found]
    return _table(rows).assign(verdict=words), joint([one.interval for one in found])


def joint(found: Sequence[Interval]) -> str:
    """The word that both intervals of log ratios give together."""
    below = [one.ends()[1] < 0 for one in found]
    if all(below):
        return "supported"
    if any(one.ends()[0] > 0 for one in found):
        return "contradicted"
    if any(below):
        return "partly"
    near = [np.log(0.9) <= one.ends(0.9)[0] and one.ends(0.9)[1] <= np.log(1.1) for one in found]
    return "equal" if all(near) else "not significant"


def secondary(frame: pd.DataFrame, tested: bool) -> pd.DataFrame:
    """The secondary metrics in their order: tested until the first that fails, then estimated; all estimated where the
    co-primary claim is not supported."""
    rows = []
    for metric, split, claim, logs, within in SECONDARY:
        found = pairs(frame, metric, split, relative=logs)
        word = "estimated"
        if tested:
            word = found.verdict("reduced", claim, phase="described", equality="tost", within=within).word
            if word == "not significant" and within and claim != "equal":
                word = found.verdict("reduced", "equal", phase="described", equality="tost", within=within).word
            tested = word in ("supported", "equal")
        rows.append((metric, split, *_estimate(frame, metric, split, logs), claim, word))
    return _table(rows, "claim", "verdict")


def _estimate(frame: pd.DataFrame, metric: str, split: str, logs: bool) -> tuple[str, float, float, float, int]:
    """Unit, mean, ends and seeds: a change in percent where logarithms are compared, else the difference."""
    found = pairs(frame, metric, split, relative=logs).interval
    values = (found.mean, *found.ends())
    unit = "%" if logs else "points" if metric.startswith("accuracy") else ""
    return unit, *(100 * float(np.expm1(value)) if logs else value for value in values), found.n


def _table(rows: Sequence[tuple[Any, ...]], *more: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["metric", "split", "unit", "change", "low", "high", "seeds", *more])


def _sensitivity(frame: pd.DataFrame, arrays: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The primary metrics of pairs that miss at most one image in every class, by setting as seeds may differ in
    settings; and of both networks at the first evaluated epoch at which the training loss is at most the larger of
    their two final losses."""
    rows = []
    few = {run for run in frame["run_id"].unique() if "missed" in arrays[run] and max(arrays[run]["missed"]) <= 1}
    kept = frame.groupby([*SETTING, "seed"], dropna=False)["run_id"].transform(lambda runs: few.issuperset(runs))
    for keys, group in frame[kept.astype(bool)].groupby(SETTING, dropna=False):
        for metric in PRIMARY:
            if len(group):
                found = _estimate(group, metric, "train", True)
                rows.append(("at most one miss in a class", *keys[1:], metric, *found))
    for metric in PRIMARY:
        found = _estimate(_equal_loss(frame), metric, "train", True)
        rows.append(("equal training loss", pd.NA, pd.NA, metric, *found))
    return pd.DataFrame(rows, columns=["analysis", "K_A", "R", "metric", "unit", "change", "low", "high", "seeds"])


def _equal_loss(frame: pd.DataFrame) -> pd.DataFrame:
    """Each run's rows of the epoch at which it first has a training loss of at most its pair's larger final one."""
    kept = []
    train = frame[frame["split"] == "train"]
    for _, pair in train.groupby([*SETTING, "seed"], dropna=False):
        losses = pair[pair["metric"] == "loss"].sort_values("epoch")
        limit = losses.groupby("run_id")["value"].last().max()
        for run, mine in losses.groupby("run_id"):
            epoch = mine[mine["value"] <= limit]["epoch"].iloc[0]
            kept.append(pair[(pair["run_id"] == run) & (pair["epoch"] == epoch)].assign(epoch=0))
    return pd.concat(kept, ignore_index=True)


@functools.cache
def found() -> Analysis:
    """The protocol's analysis, of its tracked runs."""
    store, folder = reference_store(), paths.reference() / COLLECTION
    ids = json.loads((folder / "runs.json").read_text("utf-8"))
    listing = folder / "diverged.json"  # runs whose loss was not finite
    failed = json.loads(listing.read_text("utf-8")) if listing.exists() else []
    return analyse(store.frame(ids), {run: store.open(run).arrays for run in ids}, failed, REASON)
