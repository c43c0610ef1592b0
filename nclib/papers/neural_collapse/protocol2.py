"""Protocol 2: does the DEQ collapse better at R = 100? Its runs, which enter, and its one analysis.

The rules are those of docs/protocol.md, which was committed with this code before the first run;
the page names this file by its name of then, ``replication.py``. The runs were made by a clone of
that commit (recipes/protocol-2.sh) and lay apart from all others until the analysis had been made.

In the order of the page: `of_seed` makes the runs, `population` says which seeds enter, `analyse`
tests the two primary metrics together, then the secondary ones in their order. `tracked_analysis`
does so with the runs in the repository.
"""

import functools
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nclib import paths
from nclib.compare import SETTING, Interval, pairs
from nclib.config import RunConfig, StoredConfig, run_id
from nclib.papers.neural_collapse.experiments import step_imbalanced
from nclib.papers.neural_collapse.norms_and_directions import add_cosines
from nclib.profiles import classifiers, get_profile, override
from nclib.provenance import processor_kinds
from nclib.store import reference_store

TENTHS = (3, 5, 7)
"""Majority classes of ten, one setting each."""
RATIO = 100.0
NETWORKS = ("explicit", "deq")
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
"""The claim is that the DEQ is lower in both: changes of the logarithm, on training images."""


class SecondaryTest(NamedTuple):
    """One test of the secondary metrics.

    Parameters
    ----------
    metric, split : what is compared
    claim : of the DEQ against ResNet-18
    logarithms : whether logarithms are compared, or values
    equal_within : the share within which it counts as equal; 0 where equality is not tested
    """

    metric: str
    split: str
    claim: str
    logarithms: bool
    equal_within: float


SECONDARY = (
    SecondaryTest("paper_eq14_uncentred", "train", "lower", True, 0.0),
    SecondaryTest("paper_eq13_uncentred", "train", "lower", True, 0.03),
    SecondaryTest("class_cosine_centred", "train", "higher", False, 0.0),
    SecondaryTest("accuracy_balanced", "test", "higher", False, 0.0),
    SecondaryTest("nc1_pinv", "train", "equal", True, 0.1),
)
"""In the order in which they are tested."""


# --- the runs -------------------------------------------------------------------------------------


def of_seed(seed: int, dataset: str = "cifar10") -> list[RunConfig]:
    """The six runs of a seed: recipe `collapse` of profile `full`, three settings, two networks."""
    profile = override(get_profile("full"), dataset=dataset)
    runs = []
    for tenths in TENTHS:
        runs += classifiers(profile, step_imbalanced(profile, tenths, RATIO))
    return [run.replace(seed=seed) for run in runs if run.seed == 0]


def repeats(networks: Sequence[StoredConfig]) -> bool:
    """Whether protocol 2 trained these networks with other seeds."""
    given = {run_id(config) for config in networks}
    again = {run_id(config) for config in of_seed(0, "folder:cifar10-jpeg@ef1101d4a992")}
    return given >= again


def population(
    frame: pd.DataFrame, failed: Sequence[str] = ()
) -> tuple[tuple[int, ...], dict[str, int]]:
    """The seeds that enter, and how many runs of each network diverged.

    The first eight enter, in the order 10, 11, …, none of whose runs diverged and all of whose runs
    are there.

    Parameters
    ----------
    frame : tidy frame of all runs
    failed : ids of runs whose loss was not finite

    Raises
    ------
    ValueError
        For a seed that is complete while an earlier one is neither complete nor diverged.
    """
    diverged = set(failed)
    for run, rows in frame.groupby("run_id"):
        if _has_diverged(rows):
            diverged.add(run)
    bad_seeds = set()
    counts = dict.fromkeys(NETWORKS, 0)
    for run in diverged:
        _, network, seed, _ = run.rsplit("-", 3)  # for instance "…-deq-s11-0123abcd"
        bad_seeds.add(int(seed.removeprefix("s")))
        counts[network] += 1

    wanted = set(itertools.product(map(float, TENTHS), [RATIO], NETWORKS))
    cells_of_seed = {}
    for seed, rows in frame.drop_duplicates("run_id").groupby("seed"):
        cells = zip(rows["K_A"].astype(float), rows["R"].astype(float), rows["model"], strict=True)
        cells_of_seed[seed] = set(cells)

    entering: list[int] = []
    for seed in (*SEEDS, *SPARE):
        if seed in bad_seeds or len(entering) == len(SEEDS):
            continue
        if cells_of_seed.get(seed) != wanted:
            break
        entering.append(seed)
    later = [
        seed
        for seed, cells in cells_of_seed.items()
        if cells == wanted and seed not in bad_seeds and seed not in entering
    ]
    if later and len(entering) < len(SEEDS):
        raise ValueError(
            f"seed {min(later)} is complete and an earlier one is not: seeds enter in their order"
        )
    return tuple(entering), counts


def _has_diverged(history: pd.DataFrame) -> bool:
    """Whether a run's loss was not finite, or its training accuracy ended below a half."""
    losses = history[(history["split"] == "steps") & (history["metric"] == "loss")]["value"]
    if not np.isfinite(losses).all():
        return True
    of_training = history["split"] == "train"
    accuracy = history[of_training & (history["metric"] == "accuracy_train_prior")]
    return bool(accuracy.sort_values("epoch")["value"].iloc[-1] < DIVERGED)


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
    for pair, of_pair in kinds.items():
        unknown = any("unknown" in kind for kind in of_pair)
        if len(of_pair) > 1 or unknown:
            named.append(pair)
    return ", ".join(named) or "no pair"


# --- the analysis ---------------------------------------------------------------------------------


class TooEarly(ValueError):
    """Fewer seeds are complete than the protocol allows to be analysed."""


@dataclass(frozen=True)
class Analysis:
    """What the protocol's one analysis says.

    Parameters
    ----------
    verdict : the joint word of both primary metrics
    seeds : those that entered
    reason : why there are fewer than eight; empty where there are eight
    replaced : how many runs of each network diverged
    primary, secondary : a row for each test: metric, split, unit, change, low, high (95 % interval
        over seeds), seeds, verdict; of the secondary ones also claim
    sensitivity : both primary metrics of some pairs alone, and at equal training loss
    """

    verdict: str
    seeds: tuple[int, ...]
    reason: str
    replaced: Mapping[str, int]
    primary: pd.DataFrame
    secondary: pd.DataFrame
    sensitivity: pd.DataFrame


def analyse(
    frame: pd.DataFrame,
    arrays: Mapping[str, Mapping[str, Any]],
    failed: Sequence[str] = (),
    reason: str = "",
) -> Analysis:
    """The analysis of the protocol.

    Parameters
    ----------
    frame : tidy frame of the runs
    arrays : run id → class_means, classifier and missed (training images of each class that are
        missed at the end)
    failed : ids of runs whose loss was not finite
    reason : why no more than five to seven seeds can be run, as committed on the protocol's page

    Raises
    ------
    TooEarly
        With fewer than eight complete seeds, unless there are five and a reason.
    """
    seeds, replaced = population(frame, failed)
    needed = LEAST if reason.strip() else len(SEEDS)
    if len(seeds) < needed:
        raise TooEarly(
            f"{len(seeds)} of {len(SEEDS)} seeds are complete; with {LEAST} to {len(SEEDS) - 1} "
            "the analysis needs the line on the protocol's page that says why no more can be run"
        )
    entering = frame[frame["seed"].isin(seeds)]
    with_cosines = add_cosines(entering, arrays)
    primary, word = co_primary(with_cosines)
    return Analysis(
        verdict=word,
        seeds=seeds,
        reason=reason,
        replaced=replaced,
        primary=primary,
        secondary=secondary(with_cosines, tested=word == "supported"),
        sensitivity=_sensitivity(entering, arrays),
    )


def co_primary(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Both primary metrics with their own words, and the joint verdict."""
    rows = []
    words = []
    intervals = []
    for metric in PRIMARY:
        compared = pairs(frame, metric, relative=True)
        if compared.terminal is None:
            raise ValueError("a run's training accuracy at its last epoch is not known")
        rows.append((metric, "train", *_estimate(frame, metric, "train", logarithms=True)))
        words.append(compared.judge("reduced", "lower", phase="described").word)
        intervals.append(compared.mean_difference)
    return _table(rows).assign(verdict=words), joint(intervals)


def joint(intervals: Sequence[Interval]) -> str:
    """The word that both intervals of log ratios give together."""
    below = [interval.ends()[1] < 0 for interval in intervals]
    above = [interval.ends()[0] > 0 for interval in intervals]
    if all(below):
        return "supported"
    if any(above):
        return "contradicted"
    if any(below):
        return "partly"
    equal = []
    for interval in intervals:
        low, high = interval.ends(0.9)
        equal.append(np.log(0.9) <= low and high <= np.log(1.1))
    return "equal" if all(equal) else "not significant"


def secondary(frame: pd.DataFrame, tested: bool) -> pd.DataFrame:
    """The secondary metrics in their order.

    They are tested until the first one that fails, then estimated.

    Parameters
    ----------
    frame : tidy frame with the cosines of `add_cosines`
    tested : whether the co-primary claim is supported; if not, all are estimated
    """
    rows = []
    for test in SECONDARY:
        word = "estimated"
        if tested:
            word = _secondary_word(frame, test)
            tested = word in ("supported", "equal")
        estimate = _estimate(frame, test.metric, test.split, test.logarithms)
        rows.append((test.metric, test.split, *estimate, test.claim, word))
    return _table(rows, "claim", "verdict")


def _secondary_word(frame: pd.DataFrame, test: SecondaryTest) -> str:
    """The verdict on the claim; where that is not significant, on equality, if it is tested."""
    compared = pairs(frame, test.metric, test.split, relative=test.logarithms)

    def word_on(claim: str) -> str:
        verdict = compared.judge(
            "reduced", claim, phase="described", equality="tost", within=test.equal_within
        )
        return verdict.word

    word = word_on(test.claim)
    if word == "not significant" and test.equal_within and test.claim != "equal":
        return word_on("equal")
    return word


def _estimate(
    frame: pd.DataFrame, metric: str, split: str, logarithms: bool
) -> tuple[str, float, float, float, int]:
    """Unit, mean, ends and seeds: a change in percent where logarithms are compared, else the
    difference."""
    interval = pairs(frame, metric, split, relative=logarithms).mean_difference
    mean = interval.mean
    low, high = interval.ends()
    if logarithms:
        return "%", _percent(mean), _percent(low), _percent(high), interval.n
    unit = "points" if metric.startswith("accuracy") else ""
    return unit, mean, low, high, interval.n


def _percent(log_ratio: float) -> float:
    return 100 * float(np.expm1(log_ratio))


_ESTIMATE_COLUMNS = ["unit", "change", "low", "high", "seeds"]


def _table(rows: Sequence[tuple[Any, ...]], *more: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["metric", "split", *_ESTIMATE_COLUMNS, *more])


# --- sensitivity ----------------------------------------------------------------------------------


def _sensitivity(frame: pd.DataFrame, arrays: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The primary metrics of the pairs that miss at most one image in every class, by setting as
    seeds may differ in settings; and of all pairs at equal training loss."""
    rows = []
    for keys, group in _with_few_misses(frame, arrays).groupby(SETTING, dropna=False):
        _, k_a, ratio = keys
        for metric in PRIMARY:
            estimate = _estimate(group, metric, "train", logarithms=True)
            rows.append(("at most one miss in a class", k_a, ratio, metric, *estimate))
    at_equal_loss = _at_equal_loss(frame)
    for metric in PRIMARY:
        estimate = _estimate(at_equal_loss, metric, "train", logarithms=True)
        rows.append(("equal training loss", pd.NA, pd.NA, metric, *estimate))
    return pd.DataFrame(rows, columns=["analysis", "K_A", "R", "metric", *_ESTIMATE_COLUMNS])


def _with_few_misses(frame: pd.DataFrame, arrays: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of pairs of which both runs miss at most one training image in every class."""
    few = set()
    for run in frame["run_id"].unique():
        if "missed" in arrays[run] and max(arrays[run]["missed"]) <= 1:
            few.add(run)
    by_pair = frame.groupby([*SETTING, "seed"], dropna=False)["run_id"]
    kept = by_pair.transform(lambda runs: few.issuperset(runs))
    return frame[kept.astype(bool)]


def _at_equal_loss(frame: pd.DataFrame) -> pd.DataFrame:
    """Each run's rows of the first evaluated epoch at which its training loss is at most the larger
    of its pair's two final losses."""
    kept = []
    train = frame[frame["split"] == "train"]
    for _, pair in train.groupby([*SETTING, "seed"], dropna=False):
        losses = pair[pair["metric"] == "loss"].sort_values("epoch")
        limit = losses.groupby("run_id")["value"].last().max()
        for run, of_run in losses.groupby("run_id"):
            epoch = of_run[of_run["value"] <= limit]["epoch"].iloc[0]
            rows = pair[(pair["run_id"] == run) & (pair["epoch"] == epoch)]
            kept.append(rows.assign(epoch=0))
    return pd.concat(kept, ignore_index=True)


# --- the tracked runs -----------------------------------------------------------------------------


@functools.cache
def tracked_analysis() -> Analysis:
    """The protocol's analysis, of its tracked runs."""
    store = reference_store()
    folder = paths.reference() / COLLECTION
    ids = json.loads((folder / "runs.json").read_text("utf-8"))
    failed = []
    listing = folder / "diverged.json"  # runs whose loss was not finite
    if listing.exists():
        failed = json.loads(listing.read_text("utf-8"))
    arrays = {run: store.open(run).arrays for run in ids}
    return analyse(store.frame(ids), arrays, failed, REASON)


def tracked_verdicts() -> dict[str, str]:
    """The word that the rule gives of each metric that it names; "estimated" where it makes no
    test."""
    analysis = tracked_analysis()
    rows = pd.concat([analysis.primary, analysis.secondary])
    return dict(zip(rows["metric"], rows["verdict"], strict=True))


def tracked_claims(scale: str) -> pd.DataFrame:
    """The changes in percent that were tested, with their words, as notebooks save them; the first
    one leads.

    Parameters
    ----------
    scale : of the runs (`nclib.profiles.scale_of`)
    """
    analysis = tracked_analysis()
    rows = pd.concat([analysis.primary.assign(claim="lower"), analysis.secondary])
    rows = rows[(rows["unit"] == "%") & (rows["verdict"] != "estimated")]
    rows = rows.drop(columns=["split", "unit"])
    rows["scale"] = scale
    rows["remark"] = "protocol 2"
    rows["settings_found"] = len(TENTHS)
    rows["settings_planned"] = len(TENTHS)
    rows["compared"] = "100 : 1, new seeds"
    rows["lead"] = rows["metric"] == rows["metric"].iloc[0]
    rows["printed"] = "DEQ " + rows.pop("claim")
    return rows
