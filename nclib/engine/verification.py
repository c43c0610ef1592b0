"""Whether this installation computes what it should: closed forms, and its runs against the tracked reference results.

The same configuration is compared with itself, in two ways that share `FALSE_ALARMS` in halves:

by setting     means over seeds. The bound is deliberately wide, what other seeds would do; a run repeated on another
               processor lies closer than that. It sees one arm or setting that is far off.
mean shifts    the mean over all runs of an arm of here − reference, run by run. Deviations of single runs cancel, so
               it sees the small error that all runs share.

A post-hoc analysis (a configuration with a ``base``) measures again what is compared anyway, and is left out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from nclib import deq, metrics, solver
from nclib.engine.reading import StoredRun, dotted
from nclib.engine.reference import reference_store
from nclib.engine.store import default_store

FALSE_ALARMS = 0.01
"""How often a sound installation may be called broken, over all comparisons together."""
ACCURACIES = ("accuracy_balanced", "accuracy_readout", "accuracy_all")
ACCURACY_TOLERANCE = 0.02
"""By setting: two points of accuracy, on the mean over seeds."""
FACTORS = {"loss": 2.0, "nc1_pinv": 3.0, "nc1_trace_ratio": 3.0, "nc2_etf_distance": 2.0, "nc3_self_duality": 2.0}
"""By setting: by which factor a mean over seeds may differ from the reference's."""
FLOORS = {"loss": 0.02, "nc1_pinv": 0.02, "nc1_trace_ratio": 0.02, "nc2_etf_distance": 0.05, "nc3_self_duality": 0.05}
"""By setting: differences below these are none, as near zero a factor means nothing. Mean shifts: added to both sides
of a ratio."""
LEAST_SHIFT, LEAST_LOG_SHIFT = 0.005, 0.05
"""Mean shifts: half a point of accuracy and 5 % of any other metric are no error."""
LEAST_RUNS = 6
"""Mean shifts of fewer runs say nothing."""

_COMPARED = [*FACTORS, *ACCURACIES]
_CELL = ["setting", "split", "metric"]


# --- closed forms ---------------------------------------------------------------------------------------------


def self_checks() -> pd.DataFrame:
    """Closed forms that need no runs: name, error, largest error allowed, ok."""
    rows = [*_solver_errors(), *_gradient_errors(), *_metric_errors()]
    frame = pd.DataFrame(rows, columns=["check", "error", "allowed"])
    return frame.assign(ok=frame["error"] <= frame["allowed"])


def _solver_errors() -> Iterator[tuple[str, float, float]]:
    """The solution of z = A z + b, a contraction with spectral radius 0.9, by each method."""
    matrix, b = _linear_map()
    exact = torch.linalg.solve(torch.eye(len(matrix)).double() - matrix, b.T).T
    for method in (
        solver.FixedPointIteration(tol=1e-10, max_steps=400),
        solver.Anderson(tol=1e-10, max_steps=100),
        solver.Broyden(tol=1e-10, max_steps=100, history=50),
    ):
        found = solver.fixed_point(lambda z, x: z @ matrix.T + x, method, torch.zeros_like(b), (b,))
        yield f"solver: {type(method).__name__} on a linear map", float((found.value - exact).abs().max()), 1e-7


def _linear_map() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(12, 12, generator=generator, dtype=torch.float64))
    matrix = basis @ torch.diag(torch.linspace(-0.9, 0.9, 12, dtype=torch.float64)) @ basis.T
    return matrix, torch.randn(4, 12, generator=generator, dtype=torch.float64)


def _gradient_errors() -> Iterator[tuple[str, float, float]]:
    """∂/∂b of Σ z* for z* = A z* + b is (I − A)⁻ᵀ 1."""
    matrix, b = _linear_map()
    b.requires_grad_()
    layer = deq.DEQ(lambda z, x: z @ matrix.T + x, solver.Anderson(tol=1e-10, max_steps=100))
    value, _ = layer(b)
    value.sum().backward()
    exact = torch.linalg.solve((torch.eye(len(matrix)).double() - matrix).T, torch.ones(len(matrix)).double())
    yield "equilibrium layer: implicit gradient", float((b.grad - exact).abs().max()), 1e-6


def _metric_errors() -> Iterator[tuple[str, float, float]]:
    """Perfect collapse scores 0 everywhere; known variances around an exact simplex ETF give their closed forms."""
    classes, each, spread = 5, 4, 0.1
    means = metrics.simplex_etf(classes, 8).double() + 3.0
    labels = torch.arange(classes).repeat_interleave(each)
    collapsed = means[labels]
    moments = metrics.class_moments(collapsed, labels, classes)
    centred = means - means.mean(0)
    yield "metrics: NC1 of collapsed features", abs(metrics.nc1_trace_ratio(moments)), 1e-12
    yield "metrics: NC2 of a simplex ETF", abs(metrics.nc2_etf_distance(centred)), 1e-6
    yield "metrics: NC3 of a self-dual classifier", abs(metrics.nc3_self_duality(2.0 * centred, moments)), 1e-6
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(len(labels) // 2)
    scattered = collapsed + spread * signs[:, None] * torch.eye(8, dtype=torch.float64)[0]
    moments = metrics.class_moments(scattered, labels, classes)
    # Class means keep their places at distance 1 from the global mean: tr Σ_B = 1, tr Σ_W = spread².
    yield "metrics: NC1 of known variances", abs(metrics.nc1_trace_ratio(moments) - spread**2), 1e-6


# --- the reference --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """What `compare_with_reference` found.

    Parameters
    ----------
    runs : how many are both here and in the reference
    identical : how many of them are equal to the bit
    shifts : the table of `mean_shifts`
    settings : the table of `by_setting`
    """

    runs: int
    identical: int
    shifts: pd.DataFrame
    settings: pd.DataFrame


def compare_with_reference(profile: str | None = None) -> Comparison:
    """Final metrics of the runs stored here against the tracked reference of the same runs.

    Parameters
    ----------
    profile : only runs first asked for by this one; None for all

    Raises
    ------
    CorruptRun
        When a reference run cannot be read.
    """
    pairs = [frame for here, there in _common(profile) if len(frame := pair(here, there))]
    both = pd.concat(pairs, ignore_index=True) if pairs else pd.DataFrame(columns=[*_CELL, "arm", "here", "reference"])
    identical = sum(frame["here"].equals(frame["reference"]) for frame in pairs)
    return Comparison(len(pairs), identical, mean_shifts(both), by_setting(both))


def _common(profile: str | None) -> Iterator[tuple[StoredRun, StoredRun]]:
    store, reference = default_store(), reference_store()
    for run in reference.ids():
        if "base" in reference.open(run).config or not store.is_sound(run):
            continue
        there = reference.load(run)
        if profile is None or there.provenance.get("profile") == profile:
            yield store.load(run), there


def pair(here: StoredRun, reference: StoredRun) -> pd.DataFrame:
    """Two executions of one configuration beside each other.

    Returns
    -------
    DataFrame
        A row for each compared metric that the reference has: setting (everything but the seed), arm ("deq" or
        "other"), split, metric, here, reference. What is infinite or lacks here is NaN; rows without a number on
        either side are left out.
    """
    there = final_values(reference)
    there = there[there.index.isin(_COMPARED, level="metric")].rename("reference")
    both = there.to_frame().assign(here=final_values(here).reindex(there.index)).reset_index()
    both = both.replace([math.inf, -math.inf], math.nan).dropna(how="all", subset=["here", "reference"])
    # the equilibrium arms: "deq" of the classifiers, "tanh_deq" and "relu_deq" of the shallow networks
    arm = "deq" if str(dotted(reference.config, "model.kind")).endswith("deq") else "other"
    return both.assign(setting=_setting(reference), arm=arm)[[*_CELL, "arm", "here", "reference"]]


def final_values(run: StoredRun) -> pd.Series:
    """The last logged value of every metric of a run, by split and metric; NaN where that is NaN."""
    last = run.history.sort_values("epoch", kind="stable").drop_duplicates(["split", "metric"], keep="last")
    return last.set_index(["split", "metric"])["value"].astype(float)


def _setting(run: StoredRun) -> str:
    options = json.dumps(_without_seeds(run.config), sort_keys=True)
    return f"{run.run_id.rsplit('-s', 1)[0]}-{hashlib.sha256(options.encode()).hexdigest()[:4]}"


def _without_seeds(options: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without its seed and that of the run whose features it takes."""
    return {
        key: _without_seeds(value) if isinstance(value, Mapping) else value
        for key, value in options.items()
        if key != "seed"
    }


def mean_shifts(both: pd.DataFrame) -> pd.DataFrame:
    """The mean over runs of here − reference, for each arm, split (train, test) and metric with `LEAST_RUNS` or more.

    Parameters
    ----------
    both : rows of `pair` of all runs

    Returns
    -------
    DataFrame
        arm, split, metric, runs, shift, allowed, ok. Run r gives d_r = here − reference for accuracies (fractions)
        and log((here + f)/(reference + f)), f of `FLOORS`, for other metrics; shift is its mean. Allowed is
        max(δ, t_{1−α/2m, N−1} s_d/√N), the two-sided t-interval around no shift at α = `FALSE_ALARMS`/2 for m rows
        together, and never less than δ, `LEAST_SHIFT` or `LEAST_LOG_SHIFT`. One number lost here is a shift of NaN,
        which is not ok.
    """
    rows = both[both["split"].isin(["train", "test"])]
    cells = _distances(rows).groupby([rows[name] for name in ("arm", "split", "metric")])
    enough = {where: cell.to_numpy(float) for where, cell in cells if len(cell) >= LEAST_RUNS}
    table = [(*where, len(found), *_judge_shift(where[-1], found, len(enough))) for where, found in enough.items()]
    return pd.DataFrame(table, columns=["arm", "split", "metric", "runs", "shift", "allowed", "ok"])


def _distances(both: pd.DataFrame) -> pd.Series:
    """Here − reference of accuracies, log ratios of other metrics; NaN where either has no number."""
    here, there, floors = both["here"], both["reference"], both["metric"].map(FLOORS).astype(float)
    ratios = (here + floors) / (there + floors)
    return (here - there).where(both["metric"].isin(ACCURACIES), np.log(ratios.where(ratios > 0)))


def _judge_shift(metric: str, found: np.ndarray, comparisons: int) -> tuple[float, float, bool]:
    runs, shift = len(found), float(found.mean())
    quantile = stats.t.ppf(1 - FALSE_ALARMS / 2 / (2 * comparisons), runs - 1)
    least = LEAST_SHIFT if metric in ACCURACIES else LEAST_LOG_SHIFT
    allowed = max(least, float(quantile * found.std(ddof=1) / math.sqrt(runs)))
    return shift, allowed, abs(shift) <= allowed


def by_setting(both: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds of each setting, here and in the reference.

    Parameters
    ----------
    both : rows of `pair` of all runs

    Returns
    -------
    DataFrame
        setting, split, metric, here, reference, allowed, ok. Accuracies may differ by `ACCURACY_TOLERANCE`, other
        metrics by `FACTORS`, and either by z·s·√(2/n): as far as n other seeds would be off. s is the larger of the
        setting's own standard deviation over the reference's seeds and the metric's over all settings, z the normal
        quantile at `FALSE_ALARMS`/2 for all rows together. One number lost here makes the mean NaN, which is not ok.
    """
    cells = both.groupby(_CELL, sort=False)
    spreads = cells["reference"].var().groupby(level=_CELL[1:]).mean().pow(0.5).to_dict()
    quantile = NormalDist().inv_cdf(1 - FALSE_ALARMS / 2 / (2 * max(1, cells.ngroups)))
    table = []
    for where, cell in cells:
        here, there = cell["here"].mean(skipna=False), cell["reference"].mean(skipna=False)
        spread = float(np.nanmax([0.0, cell["reference"].std(), spreads[where[1:]]]))
        low, high = _allowed(where[-1], there, quantile * spread * math.sqrt(2 / len(cell)))
        table.append((*where, here, there, f"{low:.4g} to {high:.4g}", low <= here <= high))
    return pd.DataFrame(table, columns=[*_CELL, "here", "reference", "allowed", "ok"])


def _allowed(metric: str, reference: float, error: float) -> tuple[float, float]:
    if metric in ACCURACIES:
        margin = max(ACCURACY_TOLERANCE, error)
        return reference - margin, reference + margin
    margin = max(FLOORS[metric], error)
    return min(reference / FACTORS[metric], reference - margin), max(reference * FACTORS[metric], reference + margin)
