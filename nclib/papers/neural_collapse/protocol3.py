"""Protocol 3: is it the equilibrium or its block, does CIFAR-100 agree, is it only later?

The rules are those of docs/protocol-3.md, which was committed with this code before the first run.

    python -m nclib.papers.neural_collapse.protocol3 EXPERIMENT IMAGES

trains what an experiment lacks, in the order of the page, and exports each finished run to
results/sealed/. Two such processes take turns. recipes/protocol-3.sh sets everything up.
E2-tables, the single seeds that the page only describes, came after the page's commit: this code
trains them, the frozen clone does not.
"""

import contextlib
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import pandas as pd

from nclib import paths
from nclib.compare import MIN_SEEDS, SETTING, Interval, interval, pairs, verdict
from nclib.config import RunConfig, run_id
from nclib.data import resolve_dataset
from nclib.metrics import LABELS, seli_distance
from nclib.papers.neural_collapse import protocol2
from nclib.papers.neural_collapse.experiments import step_imbalanced
from nclib.papers.neural_collapse.protocol2 import PRIMARY, RATIO, TENTHS, joint
from nclib.paths import json_bytes, write_atomic
from nclib.profiles import classifiers, data_config, get_profile, model_config, outline, override
from nclib.provenance import processor_kinds
from nclib.runs import train_missing
from nclib.store import ReferenceStore, default_store, identity_columns, reference_store

NC2, NC3 = PRIMARY
TRACE_RATIO = "nc1_trace_ratio"
DIVERGED = 0.5
"""Training accuracy at the last epoch below which a run counts as diverged."""

# --- the runs -------------------------------------------------------------------------------------


def block_runs(
    seed: int, images: str, models: Sequence[str] = ("explicit_matched",)
) -> list[RunConfig]:
    """E1: the DEQ's block applied once, three settings at R = 100, as protocol 2 trained the
    others."""
    profile = override(get_profile("full"), dataset=images)
    networks = [model_config(profile, kind) for kind in models]
    runs = []
    for tenths in TENTHS:
        runs += classifiers(profile, step_imbalanced(profile, tenths, RATIO), networks)
    return _with_seed(runs, seed)


def hundred_runs(
    seed: int, images: str, ratio: float | None, lr: float = 0.1, tenths: int = 5
) -> list[RunConfig]:
    """E2: both networks on CIFAR-100, K_A = 50 (or other tenths of the classes) at this R, or
    balanced where it is None; float32."""
    profile = override(get_profile("full"), hundred_dataset=images, precision="float32", lr=lr)
    if ratio is None:
        data = data_config(profile, hundred=True)
    else:
        data = step_imbalanced(profile, tenths, ratio, hundred=True)
    return _with_seed(classifiers(profile, data), seed)


def longer_runs(seed: int, images: str) -> list[RunConfig]:
    """E3: ResNet-18, the DEQ's block applied once, and the DEQ; K_A = 5, R = 100, 120 epochs;
    float32."""
    profile = override(get_profile("full"), dataset=images, precision="float32", epochs=120)
    kinds = ("explicit", "explicit_matched", "deq")
    networks = [model_config(profile, kind) for kind in kinds]
    return _with_seed(classifiers(profile, step_imbalanced(profile, 5, RATIO), networks), seed)


def bridge_runs(images: str) -> list[RunConfig]:
    """The DEQs of K_A = 3 and seeds 10 to 12 of protocol 2, to be trained again on another
    processor."""
    return [block_runs(seed, images, ["deq"])[0] for seed in (10, 11, 12)]


def _with_seed(runs: Iterable[RunConfig], seed: int) -> list[RunConfig]:
    return [run.replace(seed=seed) for run in runs if run.seed == 0]


Cell = tuple[float, float, str]
"""K_A (0 where classes are balanced), R and model of a run."""


@dataclass(frozen=True)
class Experiment:
    """What is trained for one experiment.

    Parameters
    ----------
    collection : folder of its runs in results/sealed/, and in results/reference/ after its analysis
    seeds : in their order
    cells : what a complete seed has, with the runs of protocol 2 that E1's are compared with
    runs : seed, images and learning rate → the runs of that seed
    replaced : the same for a seed that replaces one with a diverged run; None: no seed is replaced
    """

    collection: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    runs: Callable[[int, str, float], list[RunConfig]]
    replaced: Callable[[int, str, float], list[RunConfig]] | None = None

    def spare_seeds(self) -> range:
        """Seeds that replace, one by one, those with a diverged run."""
        first = self.seeds[-1] + 1
        return range(first, first + 10) if self.replaced else range(0)


BOTH = ("explicit", "deq")
ALL_THREE = ("explicit", "explicit_matched", "deq")


def _imbalanced_hundred(seed: int, images: str, lr: float) -> list[RunConfig]:
    return hundred_runs(seed, images, 100.0, lr) + hundred_runs(seed, images, 10.0, lr)


def _rest_of_the_tables(seed: int, images: str, lr: float) -> list[RunConfig]:
    runs = hundred_runs(seed, images, 100.0, lr, tenths=3)
    runs += hundred_runs(seed, images, 100.0, lr, tenths=7)
    return runs + hundred_runs(seed, images, 50.0, lr)


def _cells(
    majority: Sequence[float], ratios: Sequence[float], models: Sequence[str]
) -> tuple[Cell, ...]:
    return tuple(itertools.product(map(float, majority), ratios, models))


EXPERIMENTS = {
    "E1": Experiment(
        "protocol-3-block",
        (10, 11, 12, 13, 14),
        _cells(TENTHS, [RATIO], ALL_THREE),
        lambda seed, images, lr: block_runs(seed, images),
        lambda seed, images, lr: block_runs(seed, images, ALL_THREE),
    ),
    "E1-bridge": Experiment(
        "protocol-3-bridge",
        (10, 11, 12),
        _cells([3], [RATIO], ["deq"]),
        lambda seed, images, lr: [block_runs(seed, images, ["deq"])[0]],
    ),
    "E2-pilot": Experiment(
        "protocol-3-pilot",
        (90,),
        _cells([50], [100.0], BOTH),
        lambda seed, images, lr: hundred_runs(seed, images, 100.0, lr),
    ),
    "E2": Experiment(
        "protocol-3-cifar100",
        (30, 31, 32),
        _cells([50], [100.0, 10.0], BOTH),
        _imbalanced_hundred,
        _imbalanced_hundred,
    ),
    "E2-balanced": Experiment(
        "protocol-3-cifar100",
        (30, 31, 32),
        _cells([0], [1.0], BOTH),
        lambda seed, images, lr: hundred_runs(seed, images, None, lr),
    ),
    "E2-tables": Experiment(
        "protocol-3-cifar100",
        (30,),
        (*_cells([30, 70], [100.0], BOTH), *_cells([50], [50.0], BOTH)),
        _rest_of_the_tables,
    ),
    "E3": Experiment(
        "protocol-3-longer",
        (20, 21, 22),
        _cells([5], [RATIO], ALL_THREE),
        lambda seed, images, lr: longer_runs(seed, images),
        lambda seed, images, lr: longer_runs(seed, images),
    ),
}


def sealed() -> ReferenceStore:
    """Where finished runs are kept until their analysis: results/sealed/."""
    return ReferenceStore(paths.results() / "sealed")


def go_on(name: str, images: str, lr: float = 0.1) -> None:
    """Train what an experiment lacks, seeds outermost, and export each run once it is finished.

    Several processes may do so at once: each takes the first run that no other one holds.
    """
    experiment = EXPERIMENTS[name]
    claims = paths.results() / "claims"
    claims.mkdir(parents=True, exist_ok=True)
    while True:
        claimed = _claim(_waiting(experiment, images, lr), claims)
        if claimed is None:
            return
        config, lock = claimed
        with lock:
            _train(config, experiment)


def _waiting(experiment: Experiment, images: str, lr: float) -> list[RunConfig]:
    """The runs that are neither exported nor diverged, of the wanted seeds; of no seed that a
    diverged run ended."""
    there = set(sealed().ids())
    bad = diverged_runs(experiment.collection)
    waiting: list[RunConfig] = []
    wanted = len(experiment.seeds)
    for seed in (*experiment.seeds, *experiment.spare_seeds()):
        if wanted == 0:
            break
        original = seed in experiment.seeds or experiment.replaced is None
        runs = (experiment.runs if original else experiment.replaced)(seed, images, lr)
        if not bad.isdisjoint(map(run_id, runs)):
            continue
        wanted -= 1
        waiting += [run for run in runs if run_id(run) not in there]
    return waiting


def _claim(waiting: Sequence[RunConfig], folder: Any) -> tuple[RunConfig, filelock.FileLock] | None:
    for config in waiting:
        lock = filelock.FileLock(folder / f"{run_id(config)}.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            continue
        if run_id(config) not in sealed().ids():
            return config, lock
        lock.release()
    return None


def _train(config: RunConfig, experiment: Experiment) -> None:
    run = run_id(config)
    print(f"{time.strftime('%d %B %H:%M:%S', time.gmtime())} {run}", flush=True)
    failures = train_missing([config]).get(run, "")
    folder = sealed().root / experiment.collection
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(paths.results() / "claims" / "export.lock"):
        if not failures:
            finished = default_store().open(run)
            name = config.data.dataset
            sealed().add(experiment.collection, [finished], {name: outline(name)._asdict()})
            if has_diverged(finished.history):
                _note_diverged(folder, run, "training accuracy below 50 %")
        elif "diverged" in failures.lower():
            _note_diverged(folder, run, failures.splitlines()[0])
        else:
            raise SystemExit(failures)


def diverged_runs(collection: str) -> set[str]:
    """Ids of the runs of a collection that diverged, as `go_on` noted them."""
    listing = sealed().root / collection / "diverged.json"
    return set(json.loads(listing.read_text("utf-8"))) if listing.exists() else set()


def _note_diverged(folder: Any, run: str, why: str) -> None:
    listing = folder / "diverged.json"
    known = json.loads(listing.read_text("utf-8")) if listing.exists() else {}
    write_atomic(listing, json_bytes({**known, run: why}))


def has_diverged(history: pd.DataFrame) -> bool:
    """Whether a finished run's loss was not finite, or its training accuracy ended below 50 %."""
    losses = history[(history["split"] == "steps") & (history["metric"] == "loss")]["value"]
    train = history[(history["split"] == "train") & (history["metric"] == "accuracy_train_prior")]
    final = train.sort_values("epoch")["value"].iloc[-1]
    return bool(not np.isfinite(losses).all() or final < DIVERGED)


# --- the analyses ---------------------------------------------------------------------------------


class TooEarly(ValueError):
    """An experiment is not complete, and the page does not say yet why it ends here."""


@dataclass(frozen=True)
class Found:
    """What the analysis of an experiment found.

    Parameters
    ----------
    word : the joint verdict of both primary metrics; "described" with fewer than three seeds
    seeds : those that entered
    tests : a row for each test: what, mean, low, high (95 % interval over seeds), seeds, verdict
    estimates : the same columns without a verdict
    pairs : for E1 a row for each pair: setting, seed, log ratios, processors of both runs
    """

    word: str
    seeds: tuple[int, ...]
    tests: pd.DataFrame
    estimates: pd.DataFrame
    pairs: pd.DataFrame | None = None


def complete_seeds(frame: pd.DataFrame, cells: Sequence[Cell]) -> tuple[int, ...]:
    """The seeds that have a run of every cell (K_A, R, model), none of it diverged."""
    diverged = {run for run, rows in frame.groupby("run_id") if has_diverged(rows)}
    return _seeds_with(frame.drop_duplicates("run_id"), cells, diverged)


def _seeds_with(runs: pd.DataFrame, cells: Sequence[Cell], bad: set[str]) -> tuple[int, ...]:
    """The seeds of these runs, a row for each, that have every cell and no bad run in one."""
    keys = zip(runs["K_A"].fillna(0), runs["R"].fillna(0), runs["model"], strict=True)
    runs = runs.assign(cell=[(float(k_a), float(r), model) for k_a, r, model in keys])
    seeds = []
    for seed, rows in runs.groupby("seed"):
        wanted = rows[rows["cell"].isin(cells)]
        if set(wanted["cell"]) == set(cells) and bad.isdisjoint(wanted["run_id"]):
            seeds.append(int(seed))
    return tuple(seeds)


def check_precision(records: Mapping[str, Any]) -> None:
    """Raises ValueError where runs that are compared were not all made in one precision.

    Parameters
    ----------
    records : run id → its config and provenance
    """
    precisions = {record["config"]["train"]["precision"] for record in records.values()}
    if len(precisions) > 1:
        raise ValueError(
            f"runs in {' and in '.join(sorted(precisions))} cannot be compared; leave out one kind"
        )


def entering(
    name: str, frame: pd.DataFrame, reason: str = ""
) -> tuple[pd.DataFrame, tuple[int, ...]]:
    """The rows of the seeds of an experiment that enter its analysis, and these seeds.

    Parameters
    ----------
    name : of the experiment
    frame : tidy frame of its runs
    reason : why no more seeds can be run, as committed on the page

    Raises
    ------
    TooEarly
        With fewer complete seeds than planned and no reason, or none at all.
    """
    cells = EXPERIMENTS[name].cells
    planned = len(EXPERIMENTS[name].seeds)
    seeds = complete_seeds(frame, cells)[:planned]
    if len(seeds) < planned and not reason.strip():
        raise TooEarly(
            f"{len(seeds)} of {planned} seeds are complete; before that the analysis needs the "
            "line on docs/protocol-3.md that says why no more can be run"
        )
    if not seeds:
        raise TooEarly("no seed is complete")
    wanted = {(k_a, r) for k_a, r, _ in cells}
    settings = zip(frame["K_A"].fillna(0), frame["R"].fillna(0), strict=True)
    here = pd.Series([(float(k_a), float(r)) in wanted for k_a, r in settings], index=frame.index)
    return frame[frame["seed"].isin(seeds) & here], seeds


def _word(intervals: Sequence[Interval]) -> str:
    return "described" if intervals[0].n < MIN_SEEDS else joint(intervals)


def _row(what: str, difference: Interval, word: str = "") -> dict[str, Any]:
    low, high = difference.ends()
    if word and difference.n < MIN_SEEDS:
        word = "described"
    return {
        "what": what,
        "mean": difference.mean,
        "low": low,
        "high": high,
        "seeds": difference.n,
        "verdict": word,
    }


def _estimate(
    frame: pd.DataFrame,
    metric: str,
    against: str,
    what: str,
    arm: str = "deq",
    split: str = "train",
):
    """An estimate of one metric: of the log ratio, for accuracies of the difference in
    percentage points."""
    logs = not metric.startswith("accuracy")
    compared = pairs(frame, metric, split, arm=arm, against=against, relative=logs)
    return _row(f"{what}: {metric}", compared.mean_difference)


def _primary(frame: pd.DataFrame, against: str) -> tuple[list[Interval], list[dict[str, Any]]]:
    intervals = []
    rows = []
    for metric in PRIMARY:
        compared = pairs(frame, metric, relative=True, against=against)
        intervals.append(compared.mean_difference)
        alone = compared.judge("reduced", "lower", phase="described").word
        rows.append(_row(metric, compared.mean_difference, alone))
    return intervals, rows


def analyse_block(frame: pd.DataFrame, records: Mapping[str, Any], reason: str = "") -> Found:
    """E1: the DEQ against its own block applied once.

    Parameters
    ----------
    frame : tidy frame of the matched runs, and of protocol 2's runs of both networks
    records : run id → its config and provenance
    reason : why no more seeds can be run, as committed on the page
    """
    check_precision(records)
    frame, seeds = entering("E1", frame, reason)
    primary, tests = _primary(frame, "explicit_matched")
    estimates = []
    for metric in PRIMARY:
        what = "the block applied once against ResNet-18"
        estimates.append(_estimate(frame, metric, "explicit", what, arm="explicit_matched"))
    for metric in ("paper_eq13_uncentred", "paper_eq14_uncentred", TRACE_RATIO):
        estimates.append(
            _estimate(frame, metric, "explicit_matched", "DEQ against the block applied once")
        )
    what = "DEQ against the block applied once"
    estimates.append(_estimate(frame, "accuracy_balanced", "explicit_matched", what, split="test"))
    for metric in PRIMARY:
        block = pairs(frame, metric, relative=True, against="explicit_matched").mean_difference.mean
        whole = pairs(frame, metric, relative=True).mean_difference.mean
        share = Interval(block / whole, float("nan"), len(seeds))
        estimates.append(
            _row(f"share of the difference from ResNet-18 that remains: {metric}", share)
        )
    paired = processor_pairs(frame, records)
    for kind, rows in paired[paired["one kind"]].groupby("deq kind"):
        for metric in PRIMARY:
            by_seed = rows.groupby("seed")[metric].mean()
            estimates.append(_row(f"only the pairs on {kind}: {metric}", interval(by_seed)))
    return Found(_word(primary), seeds, pd.DataFrame(tests), pd.DataFrame(estimates), paired)


def processor_pairs(frame: pd.DataFrame, records: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each pair of a DEQ and its block applied once: setting, seed, log ratios of both
    primary metrics, the processors of both runs, and whether they are of one known kind."""
    merged = None
    for metric in PRIMARY:
        table = pairs(frame, metric, relative=True, against="explicit_matched").table
        table = table[[*SETTING, "seed", "difference"]].rename(columns={"difference": metric})
        merged = table if merged is None else merged.merge(table, on=[*SETTING, "seed"])
    runs = frame.drop_duplicates("run_id").set_index(["K_A", "seed", "model"])["run_id"]
    rows = []
    for row in merged.to_dict("records"):
        kinds = {}
        for model in ("deq", "explicit_matched"):
            record = records[runs[row["K_A"], row["seed"], model]]
            kinds[model] = " and ".join(sorted(processor_kinds(record["provenance"])))
        same = kinds["deq"] == kinds["explicit_matched"]
        known = "unknown" not in kinds["deq"] and " and " not in kinds["deq"]
        rows.append(
            {
                **row,
                **{f"{model} kind": kind for model, kind in kinds.items()},
                "one kind": same and known,
            }
        )
    return pd.DataFrame(rows)


MOVED = (*PRIMARY, TRACE_RATIO)
"""The metrics of `moved` and `bridges`."""


def moved(again: pd.DataFrame, tracked: pd.DataFrame, epoch: int = 40) -> pd.DataFrame:
    """How far runs move on another processor.

    Parameters
    ----------
    again, tracked : histories of the same runs, with columns run_id, epoch, split, metric and
        value; those tracked also have model and seed
    epoch : at which they are compared

    Returns
    -------
    DataFrame
        A row for each run: run_id, model, seed, and for each metric of `MOVED`, measured on training
        images, the log of its value there over the tracked one.
    """
    keys = ["run_id", "epoch", "split", "metric"]
    both = tracked.merge(again[[*keys, "value"]], on=keys, suffixes=("", "_there"))
    both = both[(both["split"] == "train") & (both["epoch"] == epoch) & both["metric"].isin(MOVED)]
    both["moved"] = np.log(both["value_there"] / both["value"])
    index = ["run_id", "model", "seed"]
    return both.pivot(index=index, columns="metric", values="moved").reset_index()


def bridges(epoch: int = 40) -> pd.DataFrame:
    """`moved` for all runs of protocol 2 that were trained again on another kind of processor.

    Their histories lie in results/reference/bridge/, a file for each kind. A further column, unit,
    names what multiplied in bfloat16 there.
    """
    tables = []
    for described in sorted((paths.reference() / "bridge").glob("*.json")):
        again = pd.read_csv(described.with_suffix(".csv.xz"))
        tracked = reference_store().frame(sorted(again["run_id"].unique()))
        unit = json.loads(described.read_text("utf-8"))["bfloat16"]
        tables.append(moved(again, tracked, epoch).assign(unit=unit))
    return pd.concat(tables, ignore_index=True)


def analyse_hundred(
    frame: pd.DataFrame, records: Mapping[str, Any], reason: str = "", balanced_reason: str = ""
) -> Found:
    """E2: CIFAR-100, K_A = 50. Parameters as of `analyse_block`; the frame may hold other runs.
    Balanced ones are estimated where all planned seeds of them are complete, or no more can be run
    for the reason given."""
    check_precision(records)
    imbalanced, seeds = entering("E2", frame, reason)
    highest = imbalanced[imbalanced["R"] == 100.0]
    primary, tests = _primary(highest, "explicit")
    compared = pairs(imbalanced, "accuracy_balanced", "test", "last_epochs")
    word = compared.judge("reduced", "higher", phase="described").word
    tests.append(
        _row(
            "accuracy_balanced, last ten epochs, R = 100 and R = 10", compared.mean_difference, word
        )
    )
    estimates = []
    for metric in (TRACE_RATIO, "nc1_pinv"):
        estimates.append(_estimate(highest, metric, "explicit", "R = 100"))
    lower = imbalanced[imbalanced["R"] == 10.0]
    for metric in (*PRIMARY, TRACE_RATIO, "nc1_pinv"):
        estimates.append(_estimate(lower, metric, "explicit", "R = 10"))
    with contextlib.suppress(TooEarly):
        balanced, _ = entering("E2-balanced", frame, balanced_reason)
        for metric in (*PRIMARY, TRACE_RATIO, "nc1_pinv"):
            estimates.append(_estimate(balanced, metric, "explicit", "balanced"))
        estimates.append(
            _estimate(balanced, "accuracy_balanced", "explicit", "balanced", split="test")
        )
    return Found(_word(primary), seeds, pd.DataFrame(tests), pd.DataFrame(estimates))


def analyse_longer(
    frame: pd.DataFrame,
    records: Mapping[str, Any],
    reason: str = "",
    arrays: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> Found:
    """E3: 120 epochs, three networks. Parameters as of `analyse_block`; arrays, run id →
    class_means, classifier and counts, give the distances to the SELI geometry."""
    check_precision(records)
    frame, seeds = entering("E3", frame, reason)
    primary, tests = _primary(frame, "explicit")
    rises = rise_by_run(frame).pivot(index="seed", columns="model", values="rise")
    turned = interval(rises["deq"] - rises["explicit"])
    word = verdict(turned, "reduced", "lower", of_logs=True).word
    tests.append(_row("rise of centred NC3 from its minimum to the end", turned, word))
    estimates = []
    for metric in PRIMARY:
        what = "DEQ against the block applied once"
        estimates.append(_estimate(frame, metric, "explicit_matched", what))
    if arrays is not None:
        distances = seli_by_run(frame, arrays)
        for part in ("means", "classifier"):
            logs = np.log(distances.pivot(index="seed", columns="model", values=part))
            ratio = interval(logs["deq"] - logs["explicit"])
            estimates.append(_row(f"distance to SELI, {part}: DEQ against ResNet-18", ratio))
    return Found(_word(primary), seeds, pd.DataFrame(tests), pd.DataFrame(estimates))


def seli_by_run(
    frame: pd.DataFrame, arrays: Mapping[str, Mapping[str, np.ndarray]]
) -> pd.DataFrame:
    """A row for each run: model, seed, and the distances of class means and classifier to the SELI
    geometry of its class sizes."""
    rows = []
    for run in frame.drop_duplicates("run_id").itertuples():
        kept = arrays[run.run_id]
        means = kept["class_means"].astype(float)
        distance = seli_distance(means, kept["classifier"].astype(float), kept["counts"])
        row = {"model": run.model, "seed": run.seed}
        rows.append(row | {"means": distance.means, "classifier": distance.classifier})
    return pd.DataFrame(rows)


def rise_by_run(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each run: model, seed and rise, the log of centred NC3 at the last epoch over its
    least value."""
    rows = []
    here = frame[(frame["metric"] == NC3) & (frame["split"] == "train")]
    for (model, seed), run in here.groupby(["model", "seed"]):
        values = run.sort_values("epoch")["value"]
        rows.append(
            {"model": model, "seed": seed, "rise": float(np.log(values.iloc[-1] / values.min()))}
        )
    return pd.DataFrame(rows)


# --- the tracked runs -----------------------------------------------------------------------------

IMAGES = {
    "E1": "folder:cifar10-jpeg@ef1101d4a992",
    "E2": "folder:cifar100@fcbadf139f9d",
    "E3": "folder:cifar10@37c2b614a182",
}
"""The images of each experiment, by their fingerprints."""

REASONS: dict[str, str] = {}
"""Why no more seeds of an experiment can be run, as docs/protocol-3.md says it, by experiment."""


@dataclass(frozen=True)
class Standing:
    """How far an experiment is.

    Parameters
    ----------
    name : of the experiment
    planned : how many seeds
    trained : how many of them are complete, sealed or tracked
    frame : tidy frame of the seeds that enter, once they are tracked and may be analysed, else None
    found : its analysis, else None; that of balanced CIFAR-100 is part of E2's
    """

    name: str
    planned: int
    trained: int
    frame: pd.DataFrame | None = None
    found: Found | None = None

    def __str__(self) -> str:
        """For instance "E1: 1 of 5 seeds is trained"."""
        verb = "is" if self.trained == 1 else "are"
        text = f"{self.name}: {self.trained} of {self.planned} seeds {verb} trained"
        if self.frame is None:
            return f"{text}; nothing of them is plotted or tested yet"
        if self.found is None:
            return text
        text = f"{text}; {self.found.word}"
        pairs_found = self.found.pairs
        if pairs_found is None:
            return text
        alike = pairs_found["one kind"].sum()
        return f"{text}; {alike} of {len(pairs_found)} pairs are from one known kind of processor"


@functools.cache
def standing(name: str) -> Standing:
    """How far one of the experiments E1, E2, E2-balanced and E3 is, with its analysis once its runs
    are tracked. Sealed runs are counted and not read."""
    experiment = EXPERIMENTS[name]
    here = Standing(name, len(experiment.seeds), len(trained_seeds(name)))
    records = _listed(paths.reference() / experiment.collection)
    if not records:
        return here
    if name == "E1":  # its runs pair with those of protocol 2
        records = _listed(paths.reference() / protocol2.COLLECTION) | records
    store = reference_store()
    frame = store.frame(records)
    reason = REASONS.get(name, "")
    try:
        kept, _ = entering(name, frame, reason)
        found = None
        if name == "E1":
            found = analyse_block(frame, records, reason)
        elif name == "E2":
            found = analyse_hundred(frame, records, reason, REASONS.get("E2-balanced", ""))
        elif name == "E3":
            arrays = {run: store.open(run).arrays for run in records}
            found = analyse_longer(frame, records, reason, arrays)
    except TooEarly:
        return here
    return replace(here, frame=kept, found=found)


ANALYSED = ("E1", "E2", "E2-balanced", "E3")
"""Experiments that are tested or estimated; the pilot, the bridge and the rest of the tables are
not."""


def results(standings: Sequence[Standing]) -> pd.DataFrame:
    """What the analyses found, as tables show it.

    Parameters
    ----------
    standings : of the experiments; those that are not analysed have no rows

    Returns
    -------
    DataFrame
        A row for each test, then for each estimate: experiment, what, change, low and high (95 %
        interval over seeds), unit ("%", or "points" of accuracy), seeds, verdict, which is
        "reported" where nothing is tested, remark, which then is "estimated" or "described", and
        scale.
    """
    rows = []
    for standing in standings:
        if standing.found is None:
            continue
        estimates = standing.found.estimates.assign(verdict="estimated")
        for row in pd.concat([standing.found.tests, estimates]).to_dict("records"):
            rows.append({"experiment": standing.name, **_for_readers(row)})
    return pd.DataFrame(rows)


def _for_readers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of tests or estimates in percent or points, its metric by the name that readers know.
    The share that remains is a ratio of means, and stays one."""
    what = row["what"]
    place, separator, metric = what.rpartition(": ")
    is_accuracy = what.startswith("accuracy_balanced")
    if is_accuracy:
        what = what.replace("accuracy_balanced", LABELS["accuracy_balanced"])
    elif metric in LABELS:
        what = f"{place}{separator}{LABELS[metric]}"
    ends = {"change": row["mean"], "low": row["low"], "high": row["high"]}
    unit = "%"
    if is_accuracy or metric.startswith("accuracy"):
        unit = "points"
    elif place.startswith("share"):
        ends = {name: 100 * value for name, value in ends.items()}
    else:
        ends = {name: 100 * float(np.expm1(value)) for name, value in ends.items()}
    verdict = row["verdict"]
    remark = ""
    if verdict in ("estimated", "described"):
        verdict, remark = "reported", verdict
    words = {"verdict": verdict, "remark": remark, "scale": "reduced"}
    return {"what": what, **ends, "unit": unit, "seeds": row["seeds"], **words}


def trained_seeds(name: str) -> tuple[int, ...]:
    """The seeds of an experiment all of whose runs are there, sealed or tracked, and not
    diverged."""
    experiment = EXPERIMENTS[name]
    collections = [experiment.collection]
    if name == "E1":
        collections.append(protocol2.COLLECTION)
    # Sealed runs are tracked beside the reference results, also where results lie elsewhere.
    roots = (sealed().root, paths.reference().parent / "sealed", paths.reference())
    rows = []
    for root, collection in itertools.product(roots, collections):
        for run, record in _listed(root / collection).items():
            rows.append({"run_id": run, **identity_columns(record["config"])})
    if not rows:
        return ()
    runs = pd.DataFrame(rows).drop_duplicates("run_id").astype({"K_A": "Float64", "R": "Float64"})
    return _seeds_with(runs, experiment.cells, diverged_runs(experiment.collection))


def _listed(folder: Path) -> dict[str, Any]:
    """Configurations and provenance of the runs of a collection, by run id; none where it is not
    there."""
    listing = folder / "runs.json"
    return json.loads(listing.read_text("utf-8")) if listing.exists() else {}


def hundred_beside(planned: Sequence[RunConfig]) -> list[RunConfig]:
    """The tracked runs of E2 in the settings of a table, for its CIFAR-100 column: those that were
    trained as the table's own, but for precision, learning rate and seeds.

    Parameters
    ----------
    planned : the runs of a table on a data set of ten classes; with one of a hundred among them the
        column is theirs, and nothing is returned
    """
    settings = set()
    for config in planned:
        if outline(config.data.dataset).classes != 10:
            return []
        settings.add((10 * (config.data.num_majority or 0), config.data.ratio or 1.0))
    beside = []
    for config in tracked_hundred():
        setting = (config.data.num_majority or 0, config.data.ratio or 1.0)
        if setting in settings and _trained_alike(config, planned[0]):
            beside.append(config)
    return beside


def tracked_hundred() -> list[RunConfig]:
    """The runs on CIFAR-100 that may be shown: those of E2 once they enter its analysis, of balanced
    classes likewise, and those of single seeds that are only described."""
    records = _listed(paths.reference() / EXPERIMENTS["E2"].collection)
    shown: set[str] = set()
    for name in ("E2", "E2-balanced"):
        frame = standing(name).frame
        if frame is not None:
            shown.update(frame["run_id"])
    if shown:
        described = EXPERIMENTS["E2-tables"].cells
        for run, record in records.items():
            columns = identity_columns(record["config"])
            if (float(columns["K_A"] or 0), columns["R"], columns["model"]) in described:
                shown.add(run)
    return [RunConfig(**records[run]["config"], profile="full") for run in sorted(shown)]


def _trained_alike(one: RunConfig, other: RunConfig) -> bool:
    train = one.train.replace(precision=other.train.precision, lr=other.train.lr)
    same_network = one.model.width == other.model.width
    return train == other.train and same_network and one.data.augment == other.data.augment


def estimated(table: pd.DataFrame, beside: Sequence[RunConfig]) -> pd.DataFrame:
    """An accuracy table whose rows of these runs have no verdict of their own: E2 tests accuracy
    once, over R = 100 and R = 10 together."""
    ids = set(map(run_id, beside))
    theirs = [bool(ids & set(str(runs).split())) for runs in table["runs"]]
    remark = "protocol 3: estimated"
    return table.assign(
        verdict=table["verdict"].mask(theirs, "reported"),
        remark=table["remark"].mask(theirs, remark),
    )


# --- how they are drawn ---------------------------------------------------------------------------


class Line(NamedTuple):
    """A comparison of two networks, as a line of the figure.

    Parameters
    ----------
    label : of the line
    frame : tidy frame of its runs
    arm, against : the network, and the one it is compared with
    tested : whether the verdict rests on it; the others are estimated
    """

    label: str
    frame: pd.DataFrame
    arm: str = "deq"
    against: str = "explicit"
    tested: bool = False


def lines(name: str) -> list[Line]:
    """The comparisons of an experiment, once it may be analysed; none before."""
    frame = standing(name).frame
    if frame is None:
        return []
    block = "explicit_matched"
    if name == "E1":
        drawn = []
        for k_a in map(float, TENTHS):
            of_setting = frame[frame["K_A"] == k_a]
            drawn.append(Line(f"DEQ / same block once, K_A = {k_a:g}", of_setting, against=block))
        drawn.append(Line("DEQ / same block once, mean", frame, against=block, tested=True))
        drawn.append(Line("same block once / ResNet-18, mean", frame, arm=block))
        return drawn
    if name == "E2":
        drawn = []
        beside = _listed(paths.reference() / protocol2.COLLECTION)
        if beside:
            before = reference_store().frame(beside)
            drawn.append(Line("DEQ / ResNet-18, mean", before, tested=True))
        for ratio in (100.0, 10.0):
            label = f"DEQ / ResNet-18, CIFAR-100, R = {ratio:g}"
            drawn.append(Line(label, frame[frame["R"] == ratio], tested=ratio == 100.0))
        return drawn
    if name == "E2-balanced":
        return [Line("DEQ / ResNet-18, CIFAR-100, balanced", frame)]
    longer = Line("120 epochs, DEQ / ResNet-18", frame, tested=True)
    return [longer, Line("120 epochs, DEQ / same block once", frame, against=block)]


if __name__ == "__main__":
    name, images = sys.argv[1:3]
    rate = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1
    go_on(name, resolve_dataset(images), rate)
