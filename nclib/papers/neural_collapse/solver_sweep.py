"""What happens to collapse inside the equilibrium solver.

A `SolverSweepConfig` names one finished DEQ run: its weights stay as they are, and its equilibria are solved again by
every method, with 1, 2, 3, … evaluations of the cell and to ever smaller tolerances. That is a stored run like any
other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
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

# The methods a probe compares: plain iteration, Anderson, Broyden.
METHODS = ("fixed_point", "anderson", "broyden")

PROBED = ("nc1_pinv", "nc1_trace_ratio", "nc1_cdnv", "nc1_pinv_class_balanced", "nc2_etf_distance")
PROBED += ("nc2_equiangular", "nc3_self_duality", "nc3_alignment", "nc4_ncc_mismatch")
PROBED += ("paper_eq13_uncentred", "paper_eq14_uncentred")
"""The part of the neural-collapse report that a probe keeps: what depends on the features, of all classes together."""

_STEPS = (*range(1, 11), 12, 15, 20, 25, 30, 40, 50, 70, 100)


class SolverSweepConfig(PostHocConfig):
    """A solver sweep of one finished DEQ run.

    Parameters
    ----------
    base : the run, of kind "deq" with a gradient that uses a solver
    last_step : the equilibria are solved with at most 1, 2, 3, … up to this many evaluations of the cell
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
        """(sweep, number, solver) of every solve: the run's own, then each method with few evaluations, then each with
        small tolerances. The number stands in the column `epoch` of the history."""
        own = self.model.solver
        yield "own", self.train.epochs, own
        for method in METHODS:
            base = own if method == own.method else SolverConfig(method=method)
            for steps in (t for t in _STEPS if t <= self.last_step):
                yield "steps", steps, base.replace(tol=10.0**-self.last_digit, max_steps=steps)
            for digit in range(1, self.last_digit + 1):
                yield "tolerance", digit, base.replace(tol=10.0**-digit, max_steps=self.limit)

    def execute(self, job: Job) -> Result:
        return Result({"history": measure(self, job)})


def measure(config: SolverSweepConfig, job: Job) -> pd.DataFrame:
    """The history of a probe.

    Returns
    -------
    DataFrame
        Columns epoch, split, metric, value, as in every history. `split` holds three parts, "split/sweep/method", so
        that no row can be taken for one of an ordinary run; `probe_rows` takes them apart. Sweeps, and what `epoch`
        holds in them:

        own        the solver of the run; the last epoch. Must repeat the run's own last evaluation
        steps      the number of evaluations T allowed; T = 1 returns the start of the solve, T = 2 the better of it
                   and the first iterate, f(x, x) where the start is x
        tolerance  the digit n of the tolerance 10⁻ⁿ
        epochs     the epoch; means over the majority and the minority classes of what the run noted while it trained

        Metrics are those of `nclib.evaluation.evaluate`, the neural-collapse report on training images alone, and
        solver_steps and solver_residual_median of both groups of classes. In the sweep "steps" solver_converged is the
        share of images whose residual is within the *run's own* tolerance after T evaluations.
    """
    classes = job.store.open(job.base).tables["classes"]
    with training.arithmetic(config.train, job.device), torch.no_grad():
        model, split, loaders = training.reopen(config.base, job.store.open(job.base).weights, job.device)
        model.eval()
        inputs = {name: [(model.encoder(x), y) for x, y in loader.in_order()] for name, loader in loaders.items()}
        model.encoder = nn.Identity()  # the block's inputs are computed once, for all solvers
        rows = list(_group_rows(classes, split.minority, config.model.solver.method))
        for sweep, number, solver in config.settings():
            model.block.solver = build_solver(solver)
            for name, batches in inputs.items():
                outputs = evaluation.collect(model, batches)
                if sweep == "steps":
                    outputs = outputs._replace(converged=outputs.residual <= config.model.solver.tol)
                report = evaluation.summarise(outputs, split.counts, split.minority, with_nc=name == "train")
                report |= _by_group(outputs, split.minority)
                key = f"{name}/{sweep}/{solver.method}"
                rows += [(number, key, metric, value) for metric, value in report.items() if _kept(metric)]
    return pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])


def _kept(metric: str) -> bool:
    return metric in PROBED or (metric.startswith(("loss", "accuracy", "solver")) and "." not in metric)


def _groups(minority: Tensor) -> dict[str, Tensor]:
    """Classes (K,) of each group; none where no class is in the minority."""
    minority = torch.as_tensor(minority).cpu()
    return {"majority": ~minority, "minority": minority} if minority.any() else {}


def _by_group(outputs: evaluation.Outputs, minority: Tensor) -> dict[str, float]:
    steps = evaluation.class_means(outputs.steps, outputs.labels, len(minority)).cpu()
    report = {}
    for group, members in _groups(minority).items():
        rows = members.to(outputs.labels.device)[outputs.labels]
        report[f"solver_steps_{group}"] = steps[members].mean().item()
        report[f"solver_residual_median_{group}"] = outputs.residual[rows].double().median().item()
    return report


def _group_rows(classes: pd.DataFrame, minority: Tensor, method: str) -> Iterator[tuple[int, str, str, float]]:
    """A run's table of classes as means over the two groups."""
    for group, members in _groups(minority).items():
        chosen = classes[classes["class"].isin(torch.nonzero(members).flatten().tolist())]
        means = chosen.groupby(["epoch", "split", "metric"], sort=False)["value"].mean()
        for (epoch, split, metric), value in means.items():
            yield epoch, f"{split}/epochs/{method}", f"{metric}_{group}", value


# --- what the probes show ------------------------------------------------------------------------------------


def probe_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of probes in a tidy frame, with the parts of `split` in columns of their own.

    Returns
    -------
    the columns of the frame, `split` now "train", "test" or "steps" (averages over training steps); and sweep, method,
    and at: evaluations T, tolerance, or epoch, whatever the sweep goes over (see `measure`).
    """
    rows = frame[frame["split"].str.count("/") == 2]
    parts = rows["split"].str.split("/", expand=True).reindex(columns=range(3))
    at = rows["epoch"].astype(float).where(parts[1] != "tolerance", [float(f"1e-{int(n)}") for n in rows["epoch"]])
    return rows.assign(split=parts[0], sweep=parts[1], method=parts[2], at=at)


def probe_consistency(frame: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Whether each probe repeats the last evaluation of the run it looked into.

    Parameters
    ----------
    frame : tidy frame of runs and their probes.
    metrics : of training images.

    Returns
    -------
    a row for each seed and metric with run (what the run noted), probe, and difference, the relative one.
    """
    keys, probes = ["seed", "metric", "epoch"], probe_rows(frame).query("sweep == 'own' and split == 'train'")
    runs = frame.query("split == 'train' and model == 'deq' and metric in @metrics").rename(columns={"value": "run"})
    both = runs.merge(probes.rename(columns={"value": "probe"})[[*keys, "probe"]], on=keys)
    difference = (both["probe"] - both["run"]).abs() / both["run"].abs().clip(lower=1e-12)
    return both[["seed", "metric", "run", "probe"]].assign(difference=difference)


def probe_groups(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The rows of a quantity of both groups of classes, for instance "accuracy" or "solver_converged", with the column
    group, "majority" or "minority"."""
    chosen = rows[rows["metric"].isin([f"{quantity}_majority", f"{quantity}_minority"])]
    return chosen.assign(group=chosen["metric"].str.removeprefix(f"{quantity}_"))


def _at(rows: pd.DataFrame, sweep: str, method: str, at: float | None = None) -> pd.DataFrame:
    """Values (seed × metric) of training images at one point of a sweep, by default its least."""
    found = rows.query("sweep == @sweep and method == @method and split == 'train'")
    at = found["at"].min() if at is None else at
    return found[(found["at"] - at).abs() <= 1e-9 * abs(at)].pivot(index="seed", columns="metric", values="value")


_NEARER = {"lower": "nearer to collapse", "higher": "farther from collapse"}
_WORSE = {"lower": "better", "higher": "worse"}


def collapse_inside(frame: pd.DataFrame, metrics: Sequence[str], scale: str, method: str = "broyden") -> pd.DataFrame:
    """How far collapse comes between the start of the solve, the first iterate and the equilibrium.

    Rule: `nclib.verdict` on the paired change over seeds. The remark is "nearer to collapse" where it is lower,
    "farther from collapse" where it is higher.

    Parameters
    ----------
    frame : tidy frame that holds probes of one setting
    metrics : of training images, each 0 at collapse
    scale : of the runs (`nclib.profiles.scale_of`)
    method : whose iterates

    Returns
    -------
    DataFrame with a row for each metric and way: metric, way, before, after (means over seeds), change, half,
    detectable (see `nclib.compare.Interval`), seeds, verdict, scale, remark. The equilibrium is that at the smallest
    tolerance.
    """
    rows = probe_rows(frame)
    points = {"start": _at(rows, "steps", method, 1), "one evaluation": _at(rows, "steps", method, 2)}
    points["equilibrium"] = _at(rows, "tolerance", method)
    ways = [("start", "one evaluation"), ("one evaluation", "equilibrium"), ("start", "equilibrium")]
    found = [
        (metric, f"{before} → {after}", *_change(points[before][metric], points[after][metric], scale, _NEARER))
        for metric, (before, after) in product(metrics, ways)
    ]
    return _changes(found, "metric", "way", "before", "after", "change")


def _change(before: pd.Series, after: pd.Series, scale: str, words: Mapping[str, str]) -> tuple[Any, ...]:
    """Means over seeds, the interval of the change, and its verdict, with a remark of the words for it."""
    result = interval(after - before)
    said = verdict(result, scale)
    said = said._replace(remark=words.get(said.word, said.remark))
    return before.mean(), after.mean(), *result.columns, *said


def _changes(rows: list[tuple[Any, ...]], *names: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*names, "half", "detectable", "seeds", *VERDICT_COLUMNS])


# A tolerance is enough for a metric when it moves it by at most this share of the metric's s.d. over seeds.
TOLERANCE_SHARE = 0.1


def tolerance_effect(
    frame: pd.DataFrame, metrics: Sequence[str], scale: str, tol: float = 1e-3, method: str = "broyden"
) -> pd.DataFrame:
    """Whether a tolerance is small enough for numbers that are reported with their s.d. over seeds.

    Rule: the largest change over seeds from `tol` to the smallest tolerance, as a share of the standard deviation over
    seeds at the smallest. At most 0.1, or a metric that does not move at all: "equal", with the remark "enough". More
    is "reported": at most 1, "below the spread over seeds"; above, "not enough". So are fewer than three seeds.

    Returns
    -------
    DataFrame with a row for each metric: metric, value (mean over seeds at `tol`), tightest (the same at the smallest
    tolerance), change (largest, absolute), relative (to the value), seed_std, share, seeds, verdict,
    scale, remark.
    """
    rows = probe_rows(frame)
    loose, tight = _at(rows, "tolerance", method, tol), _at(rows, "tolerance", method)
    found = []
    for metric in metrics:
        change = (loose[metric] - tight[metric]).abs().max()
        mean, std, seeds = loose[metric].mean(), tight[metric].std(ddof=1), tight[metric].count()
        share = 0.0 if change == 0 else change / std if std > 0 else math.inf
        remark = "enough" if share <= TOLERANCE_SHARE else "below the spread over seeds" if share <= 1 else "not enough"
        said = Verdict("equal" if remark == "enough" else "reported", scale, remark)
        if seeds < MIN_SEEDS:
            share, said = math.nan, verdict(interval(loose[metric]), scale)
        relative = change / abs(mean) if mean else math.nan
        found.append((metric, mean, tight[metric].mean(), change, relative, std, share, seeds, *said))
    columns = ["metric", "value", "tightest", "change", "relative", "seed_std", "share", "seeds", *VERDICT_COLUMNS]
    return pd.DataFrame(found, columns=columns)


def minority_effect(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Whether the equilibria of minority images are harder to find, by the run's own solver.

    Rule: `nclib.verdict` on minority − majority (means over the classes of each group), paired by seed. The remark is
    "worse" where it is higher, "better" where it is lower, and "no failures" where both are 0 in every seed.

    Returns
    -------
    DataFrame with a row for each quantity and split: quantity, split, majority, minority (means over seeds),
    difference, half, detectable (see `nclib.compare.Interval`), seeds, verdict, scale, remark.
    Rows of the split "steps" are means over all training steps.
    """
    rows = probe_rows(frame)
    own, course = rows[rows["sweep"] == "own"], rows[(rows["sweep"] == "epochs") & (rows["split"] == "steps")]
    wanted = [("not converged (%)", own, split, "solver_converged", -100.0, 100.0) for split in ("train", "test")]
    wanted += [("evaluations", own, split, "solver_steps", 1.0, 0.0) for split in ("train", "test")]
    wanted += [("not converged (%)", course, "steps", "not_converged", 100.0, 0.0)]
    wanted += [("left out of the loss (%)", course, "steps", "skipped", 100.0, 0.0)]
    found = []
    for quantity, source, split, metric, factor, shift in wanted:
        chosen = probe_groups(source[source["split"] == split], metric)
        values = shift + factor * chosen.pivot_table(index="seed", columns="group", values="value", aggfunc="mean")
        said = _WORSE if values.to_numpy().any() else {"equal": "no failures"}
        found.append((quantity, split, *_change(values["majority"], values["minority"], scale, said)))
    return _changes(found, "quantity", "split", "majority", "minority", "difference")
