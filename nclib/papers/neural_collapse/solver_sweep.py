"""What happens to collapse inside the equilibrium solver.

A `SolverSweepConfig` names one finished DEQ run: its weights stay as they are, and its equilibria
are solved again by every method, with 1, 2, 3, … evaluations of the cell and to ever smaller
tolerances. That is a stored run like any other, a *probe*. The functions below the line "what the
probes show" read probes from a tidy frame.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pandas as pd
import pydantic
import torch
from torch import Tensor, nn

from nclib import evaluation, training
from nclib.compare import MIN_SEEDS, VERDICT_COLUMNS, Verdict, interval, verdict
from nclib.config import PostHocConfig, SolverConfig
from nclib.models import build_solver
from nclib.runs import Job, Result

METHODS = ("fixed_point", "anderson", "broyden")
"""The methods a probe compares: plain iteration, Anderson, Broyden."""
PROBED = (
    "nc1_pinv",
    "nc1_trace_ratio",
    "nc1_cdnv",
    "nc1_pinv_class_balanced",
    "nc2_etf_distance",
    "nc2_equiangular",
    "nc3_self_duality",
    "nc3_alignment",
    "nc4_ncc_mismatch",
    "paper_eq13_uncentred",
    "paper_eq14_uncentred",
)
"""The part of the neural-collapse report that a probe keeps: what depends on the features, of all
classes together."""
TOLERANCE_SHARE = 0.1
"""A tolerance is enough for a metric when it moves it by at most this share of the metric's s.d.
over seeds."""

_STEPS = (*range(1, 11), 12, 15, 20, 25, 30, 40, 50, 70, 100)


class SolverSweepConfig(PostHocConfig):
    """A solver sweep of one finished DEQ run.

    Parameters
    ----------
    base : the run, of kind "deq" with a gradient that uses a solver
    last_step : the equilibria are solved with at most 1, 2, 3, … up to this many evaluations of the
        cell
    last_digit : and to the tolerances 1e-1, 1e-2, … up to this digit
    limit : evaluations allowed for the latter
    """

    kind: Literal["solver_probe"] = "solver_probe"
    last_step: int = pydantic.Field(default=50, ge=1)
    last_digit: int = pydantic.Field(default=6, ge=1, le=15)
    limit: int = pydantic.Field(default=100, ge=1)

    def label(self) -> str:
        return f"{self.base.label()}-solver"

    def settings(self) -> Iterator[tuple[str, int, SolverConfig]]:
        """(sweep, number, solver) of every solve: the run's own, then each method with few
        evaluations, then each with small tolerances. The number stands in the column `epoch` of the
        history."""
        of_run = self.model.solver
        yield "own", self.train.epochs, of_run
        for method in METHODS:
            solver = of_run if method == of_run.method else SolverConfig(method=method)
            for steps in _STEPS:
                if steps <= self.last_step:
                    few = solver.replace(tol=10.0**-self.last_digit, max_steps=steps)
                    yield "steps", steps, few
            for digit in range(1, self.last_digit + 1):
                exact = solver.replace(tol=10.0**-digit, max_steps=self.limit)
                yield "tolerance", digit, exact

    def execute(self, job: Job) -> Result:
        return Result({"history": measure(self, job)})


def measure(config: SolverSweepConfig, job: Job) -> pd.DataFrame:
    """The history of a probe.

    Returns
    -------
    DataFrame
        Columns epoch, split, metric, value, as in every history. `split` holds three parts,
        "split/sweep/method", so that no row can be taken for one of an ordinary run; `probe_rows`
        takes them apart. Sweeps, and what `epoch` holds in them:

        own        the solver of the run; the last epoch. Must repeat the run's own last evaluation
        steps      the number of evaluations T allowed; T = 1 returns the start of the solve, T = 2
                   the better of it and the first iterate, f(x, x) where the start is x
        tolerance  the digit n of the tolerance 10⁻ⁿ
        epochs     the epoch; means over the majority and the minority classes of what the run noted
                   while it trained

        Metrics are those of `nclib.evaluation.evaluate`, the neural-collapse report on training
        images alone, and solver_steps and solver_residual_median of both groups of classes. In the
        sweep "steps" solver_converged is the share of images whose residual is within the *run's
        own* tolerance after T evaluations.
    """
    stored = job.store.open(job.base)
    classes = stored.tables["classes"]
    of_run = config.model.solver
    with training.arithmetic(config.train, job.device), torch.no_grad():
        model, split, loaders = training.reopen(config.base, stored.weights, job.device)
        model.eval()
        # the block's inputs are computed once, for all solvers
        inputs = {}
        for name, loader in loaders.items():
            inputs[name] = [(model.encoder(images), labels) for images, labels in loader.in_order()]
        model.encoder = nn.Identity()
        rows = list(_group_rows(classes, split.minority, of_run.method))
        for sweep, number, solver in config.settings():
            model.block.solver = build_solver(solver)
            for name, batches in inputs.items():
                outputs = evaluation.collect(model, batches)
                if sweep == "steps":
                    outputs = outputs._replace(converged=outputs.residual <= of_run.tol)
                report = evaluation.summarise(
                    outputs, split.counts, split.minority, with_nc=name == "train"
                )
                report |= _by_group(outputs, split.minority)
                for metric, value in report.items():
                    if _kept(metric):
                        rows.append((number, f"{name}/{sweep}/{solver.method}", metric, value))
    return pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])


def _kept(metric: str) -> bool:
    if metric in PROBED:
        return True
    return metric.startswith(("loss", "accuracy", "solver")) and "." not in metric


def _groups(minority: Tensor) -> dict[str, Tensor]:
    """Classes (K,) of each group; none where no class is in the minority."""
    minority = torch.as_tensor(minority).cpu()
    if not minority.any():
        return {}
    return {"majority": ~minority, "minority": minority}


def _by_group(outputs: evaluation.Outputs, minority: Tensor) -> dict[str, float]:
    steps = evaluation.class_means(outputs.steps, outputs.labels, len(minority)).cpu()
    report = {}
    for group, members in _groups(minority).items():
        images = members.to(outputs.labels.device)[outputs.labels]
        residual = outputs.residual[images].double().median()
        report[f"solver_steps_{group}"] = steps[members].mean().item()
        report[f"solver_residual_median_{group}"] = residual.item()
    return report


def _group_rows(
    classes: pd.DataFrame, minority: Tensor, method: str
) -> Iterator[tuple[int, str, str, float]]:
    """A run's table of classes as means over the two groups."""
    for group, members in _groups(minority).items():
        numbers = torch.nonzero(members).flatten().tolist()
        chosen = classes[classes["class"].isin(numbers)]
        means = chosen.groupby(["epoch", "split", "metric"], sort=False)["value"].mean()
        for (epoch, split, metric), value in means.items():
            yield epoch, f"{split}/epochs/{method}", f"{metric}_{group}", value


# --- what the probes show -------------------------------------------------------------------------


def probe_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of probes in a tidy frame, with the parts of `split` in columns of their own.

    Returns
    -------
    the columns of the frame, `split` now "train", "test" or "steps" (averages over training steps);
    and sweep, method, and at: evaluations T, tolerance, or epoch, whatever the sweep goes over (see
    `measure`).
    """
    rows = frame[frame["split"].str.count("/") == 2]
    parts = rows["split"].str.split("/", expand=True).reindex(columns=range(3))
    tolerances = [float(f"1e-{int(digit)}") for digit in rows["epoch"]]
    at = rows["epoch"].astype(float).where(parts[1] != "tolerance", tolerances)
    return rows.assign(split=parts[0], sweep=parts[1], method=parts[2], at=at)


def probe_consistency(frame: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Whether each probe repeats the last evaluation of the run it looked into.

    Parameters
    ----------
    frame : tidy frame of runs and their probes.
    metrics : of training images.

    Returns
    -------
    a row for each seed and metric with run (what the run noted), probe, and difference, the
    relative one.
    """
    keys = ["seed", "metric", "epoch"]
    probes = probe_rows(frame).query("sweep == 'own' and split == 'train'")
    probes = probes.rename(columns={"value": "probe"})[[*keys, "probe"]]
    runs = frame.query("split == 'train' and model == 'deq' and metric in @metrics")
    both = runs.rename(columns={"value": "run"}).merge(probes, on=keys)
    difference = (both["probe"] - both["run"]).abs() / both["run"].abs().clip(lower=1e-12)
    return both[["seed", "metric", "run", "probe"]].assign(difference=difference)


def probe_groups(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The rows of a quantity of both groups of classes, for instance "accuracy" or
    "solver_converged", with the column group, "majority" or "minority"."""
    chosen = rows[rows["metric"].isin([f"{quantity}_majority", f"{quantity}_minority"])]
    return chosen.assign(group=chosen["metric"].str.removeprefix(f"{quantity}_"))


def _at(rows: pd.DataFrame, sweep: str, method: str, at: float | None = None) -> pd.DataFrame:
    """Values (seed × metric) of training images at one point of a sweep, by default its least."""
    of_sweep = rows.query("sweep == @sweep and method == @method and split == 'train'")
    if at is None:
        at = of_sweep["at"].min()
    here = (of_sweep["at"] - at).abs() <= 1e-9 * abs(at)
    return of_sweep[here].pivot(index="seed", columns="metric", values="value")


_NEARER = {"lower": "nearer to collapse", "higher": "farther from collapse"}
_WORSE = {"lower": "better", "higher": "worse"}


def collapse_inside(
    frame: pd.DataFrame, metrics: Sequence[str], scale: str, method: str = "broyden"
) -> pd.DataFrame:
    """How far collapse comes between the start of the solve, the first iterate and the equilibrium.

    Rule: `nclib.verdict` on the paired change over seeds. The remark is "nearer to collapse" where
    it is lower, "farther from collapse" where it is higher.

    Parameters
    ----------
    frame : tidy frame that holds probes of one setting
    metrics : of training images, each 0 at collapse
    scale : of the runs (`nclib.profiles.scale_of`)
    method : whose iterates

    Returns
    -------
    DataFrame with a row for each metric and way: metric, way, before, after (means over seeds),
    change, half, detectable (see `nclib.compare.Interval`), seeds, verdict, scale, remark. The
    equilibrium is that at the smallest tolerance.
    """
    rows = probe_rows(frame)
    start = _at(rows, "steps", method, 1)
    once = _at(rows, "steps", method, 2)
    equilibrium = _at(rows, "tolerance", method)
    ways = {
        "start → one evaluation": (start, once),
        "one evaluation → equilibrium": (once, equilibrium),
        "start → equilibrium": (start, equilibrium),
    }
    lines = []
    for metric in metrics:
        for way, (before, after) in ways.items():
            change = _change(before[metric], after[metric], scale, _NEARER)
            lines.append((metric, way, *change))
    return _changes(lines, "metric", "way", "before", "after", "change")


def _change(
    before: pd.Series, after: pd.Series, scale: str, words: Mapping[str, str]
) -> tuple[Any, ...]:
    """Means over seeds, the interval of the change, and its verdict, with a remark of the words for
    it."""
    difference = interval(after - before)
    judged = verdict(difference, scale)
    judged = judged._replace(remark=words.get(judged.word, judged.remark))
    return before.mean(), after.mean(), *difference.columns, *judged


def _changes(lines: list[tuple[Any, ...]], *names: str) -> pd.DataFrame:
    columns = [*names, "half", "detectable", "seeds", *VERDICT_COLUMNS]
    return pd.DataFrame(lines, columns=columns)


def tolerance_effect(
    frame: pd.DataFrame,
    metrics: Sequence[str],
    scale: str,
    tol: float = 1e-3,
    method: str = "broyden",
) -> pd.DataFrame:
    """Whether a tolerance is small enough for numbers that are reported with their s.d. over seeds.

    Rule: the largest change over seeds from `tol` to the smallest tolerance, as a share of the
    standard deviation over seeds at the smallest. At most 0.1, or a metric that does not move at
    all: "equal", with the remark "enough". More is "reported": at most 1, "below the spread over
    seeds"; above, "not enough". So are fewer than three seeds.

    Returns
    -------
    DataFrame with a row for each metric: metric, value (mean over seeds at `tol`), tightest (the
    same at the smallest tolerance), change (largest, absolute), relative (to the value), seed_std,
    share, seeds, verdict, scale, remark.
    """
    rows = probe_rows(frame)
    loose = _at(rows, "tolerance", method, tol)
    tight = _at(rows, "tolerance", method)
    lines = []
    for metric in metrics:
        change = (loose[metric] - tight[metric]).abs().max()
        mean = loose[metric].mean()
        std = tight[metric].std(ddof=1)
        seeds = tight[metric].count()
        share = _share(change, std)
        judged = _enough(share, scale)
        if seeds < MIN_SEEDS:
            share = math.nan
            judged = verdict(interval(loose[metric]), scale)
        line = {
            "metric": metric,
            "value": mean,
            "tightest": tight[metric].mean(),
            "change": change,
            "relative": change / abs(mean) if mean else math.nan,
            "seed_std": std,
            "share": share,
            "seeds": seeds,
        }
        line.update(zip(VERDICT_COLUMNS, judged, strict=True))
        lines.append(line)
    return pd.DataFrame(lines)


def _share(change: float, std: float) -> float:
    if change == 0:
        return 0.0
    return change / std if std > 0 else math.inf


def _enough(share: float, scale: str) -> Verdict:
    if share <= TOLERANCE_SHARE:
        return Verdict("equal", scale, "enough")
    if share <= 1:
        return Verdict("reported", scale, "below the spread over seeds")
    return Verdict("reported", scale, "not enough")


def minority_effect(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Whether the equilibria of minority images are harder to find, by the run's own solver.

    Rule: `nclib.verdict` on minority − majority (means over the classes of each group), paired by
    seed. The remark is "worse" where it is higher, "better" where it is lower, and "no failures"
    where both are 0 in every seed.

    Returns
    -------
    DataFrame with a row for each quantity and split: quantity, split, majority, minority (means
    over seeds), difference, half, detectable (see `nclib.compare.Interval`), seeds, verdict, scale,
    remark. Rows of the split "steps" are means over all training steps.
    """
    rows = probe_rows(frame)
    at_end = rows[rows["sweep"] == "own"]
    in_training = rows[(rows["sweep"] == "epochs") & (rows["split"] == "steps")]
    not_converged = "not converged (%)"
    # quantity, rows, split, metric, and the quantity as shift + factor · metric
    wanted = (
        (not_converged, at_end, "train", "solver_converged", 100.0, -100.0),
        (not_converged, at_end, "test", "solver_converged", 100.0, -100.0),
        ("evaluations", at_end, "train", "solver_steps", 0.0, 1.0),
        ("evaluations", at_end, "test", "solver_steps", 0.0, 1.0),
        (not_converged, in_training, "steps", "not_converged", 0.0, 100.0),
        ("left out of the loss (%)", in_training, "steps", "skipped", 0.0, 100.0),
    )
    lines = []
    for quantity, source, split, metric, shift, factor in wanted:
        groups = probe_groups(source[source["split"] == split], metric)
        means = groups.pivot_table(index="seed", columns="group", values="value", aggfunc="mean")
        values = shift + factor * means
        words = _WORSE if values.to_numpy().any() else {"equal": "no failures"}
        change = _change(values["majority"], values["minority"], scale, words)
        lines.append((quantity, split, *change))
    return _changes(lines, "quantity", "split", "majority", "minority", "difference")
