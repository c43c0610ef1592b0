"""The maps that Sun & Shi (2024) put before the layer-peeled model: their optima, found by L-BFGS.

    min_{W, H0, M}  (1/N) Σ_k n_k CE(W h_k, k),   h = map(M) h0

with M the explicit layer or the weight of the linear DEQ. `layer_peeled` has the model without a map and its exact
optimum; these are local optima, certified only where a lower bound is attained.
"""

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy

from nclib import metrics
from nclib.papers.neural_collapse.layer_peeled import class_weights, factors, reference_optimum, simplex_gram


@dataclasses.dataclass(frozen=True)
class PeeledProblem:
    """min (1/N) Σ n_k CE(W h_k, k) with (1/K) ‖W‖² ≤ E_W, ‖M‖_F ≤ E_H and a mean square norm of h or h0 ≤ E_H.

    Parameters
    ----------
    map : "none", h = h0; "explicit", h = M h0 (the paper's explicit layer); "residual", h = (I+M) h0 (a residual block,
        our control); "deq0", h = Σ_{i≥0} Mⁱ h0 (the linear DEQ of section 3.2 and eq. 28); "deq1", h = Σ_{i≥1} Mⁱ h0
        (the linear DEQ of eq. 27)
    reading : where the budget E_H binds: "V1", the features h, as problems (7) and (9) say; "V2", the inputs h0, as
        eqs. 21 and 32 use it; "V4", fixed random inputs h0 within that budget, the same for all maps ("we assume H0 are
        the same")
    copies : feature columns that each class has; 1 is enough for everything but NC1
    dim : feature dimension, more than K, or the optimisers stop at points of lower rank
    """

    map: Literal["none", "explicit", "residual", "deq0", "deq1"]
    reading: Literal["V1", "V2", "V4"]
    e_w: float
    e_h: float
    num_classes: int = 10
    num_majority: int = 5
    ratio: float = 1.0
    copies: int = 1
    dim: int = 12


class PeeledFit(NamedTuple):
    """The best local optimum found: loss, classifier (K, d), inputs (d, n), features (d, n), matrix M (d, d), with the
    columns of a class side by side. Not certified, except where a lower bound is attained."""

    loss: float
    classifier: np.ndarray
    inputs: np.ndarray
    features: np.ndarray
    matrix: np.ndarray


class _Objective:
    """Loss and gradient over `scale`, in unconstrained variables: each block is scaled to its sphere."""

    def __init__(self, problem: PeeledProblem) -> None:
        p = self.problem = problem
        self.labels = np.repeat(np.arange(p.num_classes), p.copies)
        weights = class_weights(p.num_majority, p.num_classes - p.num_majority, p.ratio)
        self.weights = weights[self.labels] / p.copies
        n = len(self.labels)
        self.shapes = (p.num_classes, p.dim), (p.dim, n), (p.dim, p.dim)
        ends = np.cumsum([0, *map(math.prod, self.shapes)]).tolist()
        self.parts = [(slice(*cut), shape) for cut, shape in zip(pairwise(ends), self.shapes, strict=True)]
        self.radii = math.sqrt(p.num_classes * p.e_w), math.sqrt(n * p.e_h), p.e_h
        self.scale = min(math.sqrt(p.e_w * p.e_h), 1.0)  # a small budget makes a flat loss: keep its slope visible
        self.identity, self.columns, self.fixed = np.eye(p.dim), np.arange(n), None
        if p.reading == "V4":
            self.fixed = _scaled(np.random.default_rng(0).standard_normal(self.shapes[1]), self.radii[1])

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        return [flat[cut].reshape(shape) for cut, shape in self.parts]

    def forward(self, flat: np.ndarray) -> PeeledFit:
        w, h0, m = self.split(flat)
        w, m = _scaled(w, self.radii[0]), _scaled(m, self.radii[2])
        if self.fixed is not None:
            h0 = self.fixed
        elif self.problem.reading == "V2":
            h0 = _scaled(h0, self.radii[1])
        self.operator = self._operator(m)
        h = self.raw = self.operator @ h0
        if self.problem.reading == "V1":
            h = _scaled(h, self.radii[1])
        z = w @ h
        logs, self.softmax = _softmax(z)
        return PeeledFit(float(self.weights @ (logs - z[self.labels, self.columns])), w, h0, h, m)

    def _operator(self, m: np.ndarray) -> np.ndarray:
        identity, kind = self.identity, self.problem.map
        if kind in ("deq0", "deq1"):
            return np.linalg.inv(identity - m) - (identity if kind == "deq1" else 0)
        return {"none": identity, "explicit": m, "residual": identity + m}[kind]

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        w_free, h0_free, m_free = self.split(flat)
        fit, kind = self.forward(flat), self.problem.map
        slope, operator = self.softmax, self.operator
        slope[self.labels, self.columns] -= 1
        slope *= self.weights
        d_w, d_h = slope @ fit.features.T, fit.classifier.T @ slope
        if self.problem.reading == "V1":
            d_h = _pull(d_h, self.raw, self.radii[1])
        d_m, d_h0 = d_h @ fit.inputs.T, operator.T @ d_h
        if kind == "none":
            d_m = np.zeros_like(m_free)
        elif kind in ("deq0", "deq1"):
            inverse = operator if kind == "deq0" else operator + self.identity
            d_m = inverse.T @ d_m @ inverse.T
        if self.fixed is not None:
            d_h0 = np.zeros_like(h0_free)
        elif self.problem.reading == "V2":
            d_h0 = _pull(d_h0, h0_free, self.radii[1])
        parts = _pull(d_w, w_free, self.radii[0]), d_h0, _pull(d_m, m_free, self.radii[2])
        return fit.loss / self.scale, _flat(*parts) / self.scale


def _softmax(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of the sum of exponentials, and softmax, of each column: bit for bit SciPy's, in a sixth of the time."""
    top = z.max(axis=0)
    powers, largest = np.exp(z - top), z == top
    rest, count = np.where(largest, 0, powers).sum(axis=0), largest.sum(axis=0)
    return np.log1p(rest / count) + np.log(count) + top, powers / powers.sum(axis=0)


def _scaled(x: np.ndarray, radius: float) -> np.ndarray:
    return x * (radius / np.linalg.norm(x))


def _pull(slope: np.ndarray, x: np.ndarray, radius: float) -> np.ndarray:
    """Gradient with respect to x of a function of radius · x/‖x‖ whose gradient there is `slope`."""
    size = np.linalg.norm(x)
    return radius / size * (slope - x * ((x * slope).sum() / size**2))


def peeled_fit(problem: PeeledProblem, starts: int = 8, iterations: int = 1500, also: Sequence[Any] = ()) -> PeeledFit:
    """The best local optimum of several L-BFGS runs.

    Parameters
    ----------
    problem : what to minimise
    starts : random starts, besides one at the optimum of the layer-peeled model and, where there are any and the
        features are not bounded themselves, one at the optimum for a tenth of E_W, which is of lower rank
    iterations : at most; the three best of an eighth of them are followed to the end
    also : solutions of other maps of the same shape to start from as well
    """
    rng = np.random.default_rng(1)
    found = _descend(problem, [_peeled_start(problem, rng), *also], starts, iterations, rng)
    if starts and problem.reading != "V1":
        lower = dataclasses.replace(problem, e_w=problem.e_w / 10)
        below = _descend(lower, [_peeled_start(lower, rng)], starts, iterations, rng)
        found = min(found, _descend(problem, [below], 0, iterations, rng), key=lambda f: f.loss)
    return found


def _flat(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([part.ravel() for part in parts])


def _descend(
    problem: PeeledProblem, points: Sequence[Any], starts: int, iterations: int, rng: np.random.Generator
) -> PeeledFit:
    """The best of L-BFGS from the given points and from random ones."""
    objective = _Objective(problem)
    size = sum(math.prod(shape) for shape in objective.shapes)
    fits = [_flat(p.classifier, p.inputs, p.matrix) if isinstance(p, PeeledFit) else p for p in points]
    flat = fits + [rng.standard_normal(size) for _ in range(starts)]
    # blocks of one size, so that no block moves much faster than another
    flat = [_flat(*(_scaled(part, 10) for part in objective.split(point))) for point in flat]

    def descend(point: np.ndarray, steps: int) -> scipy.optimize.OptimizeResult:
        options = {"maxiter": steps, "maxfun": 3 * steps, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 20}
        return scipy.optimize.minimize(objective, point, jac=True, method="L-BFGS-B", options=options)

    first = sorted((descend(point, -(-iterations // 8)) for point in flat), key=lambda result: result.fun)
    best = min((descend(result.x, iterations) for result in first[:3]), key=lambda result: result.fun)
    return objective.forward(best.x)


def _peeled_start(problem: PeeledProblem, rng: np.random.Generator) -> np.ndarray:
    """Classifier and features of the layer-peeled optimum, M the projection on their span, a little noise."""
    p, k, more = problem, problem.num_classes, problem.dim - problem.num_classes
    w, h = factors(reference_optimum(k, p.num_majority, p.ratio, 1.0, p.e_w, p.e_h), p.e_w, p.e_h)
    w, h, m = np.pad(w, ((0, 0), (0, more))), np.pad(h, ((0, more), (0, 0))), np.pad(np.eye(k), ((0, more), (0, more)))
    parts = _scaled(w, 10), _scaled(np.repeat(h, problem.copies, axis=1), 10), _scaled(m, 10)
    return _flat(*(part + 1e-2 * rng.standard_normal(part.shape) for part in parts))


def peeled_fits(
    problems: Sequence[PeeledProblem], starts: int = 8, iterations: int = 1500
) -> dict[PeeledProblem, PeeledFit]:
    """`peeled_fit` for each problem; then once more from the solutions that the other maps of the same setting found,
    so that no map stays at a poorer kind of optimum than its neighbours.

    Returns
    -------
    dict from problem to fit, in the order asked for
    """
    first = {p: peeled_fit(p, starts, iterations) for p in dict.fromkeys(problems)}
    found = {}
    for problem, own in first.items():
        others = [f for p, f in first.items() if p != problem and dataclasses.replace(p, map=problem.map) == problem]
        again = peeled_fit(problem, 0, iterations, others) if others else own
        found[problem] = min(own, again, key=lambda f: f.loss)
    return found


def peeled_table(fits: dict[PeeledProblem, PeeledFit]) -> pd.DataFrame:
    """What the optima look like, a row for each: the options of the problem, then

    loss; rank, the number of singular values of the features above 1e-3 of the largest; nc2 and nc3, eqs. 13 and 14 of
    the class means as the paper has them (uncentred, constant corrected); etf_distance, ‖HᵀH − S‖_F of theorem 4.1 with
    S = K/(K−1) (I − 11ᵀ/K); least_cosine, the smallest cos(h_k, w_k); nc1, tr Σ_W / tr Σ_B (0 by construction for one
    copy); separable, the number of classes whose own logit is the largest.
    """
    return pd.DataFrame([dataclasses.asdict(problem) | _measure(problem, found) for problem, found in fits.items()])


def _measure(problem: PeeledProblem, found: PeeledFit) -> dict[str, float]:
    k = problem.num_classes
    means = class_means(problem, found)
    spread = found.features - np.repeat(means, problem.copies, axis=1)
    centred = means - means.mean(axis=1, keepdims=True)
    values = np.linalg.svd(found.features, compute_uv=False)
    logits = found.classifier @ means
    return {
        "loss": found.loss,
        "rank": int((values > 1e-3 * values[0]).sum()),
        "nc2": metrics.nc2_etf_distance(means.T),
        "nc3": float(np.linalg.norm(_scaled(found.classifier, 1) - _scaled(means.T, 1))),
        "etf_distance": float(np.linalg.norm(means.T @ means - simplex_gram(k))),
        "least_cosine": float(np.nanmin(peeled_alignment(problem, found))),
        "nc1": float((spread**2).sum() / problem.copies / (centred**2).sum()),
        "separable": int((logits.argmax(axis=0) == np.arange(k)).sum()),
    }


def class_means(problem: PeeledProblem, found: PeeledFit) -> np.ndarray:
    """Class means of the features (d, K)."""
    return found.features.reshape(problem.dim, problem.num_classes, problem.copies).mean(axis=2)


def peeled_alignment(problem: PeeledProblem, found: PeeledFit) -> np.ndarray:
    """cos(h_k, w_k) for each class (K,), the quantity of theorem 4.1, NC3; NaN where one of them is zero (shorter than
    a thousandth of the longest)."""
    means, w = class_means(problem, found), found.classifier
    sizes = np.linalg.norm(means, axis=0), np.linalg.norm(w, axis=1)
    # a vector shorter than a thousandth of the longest is what an optimiser leaves of zero: it has no direction
    present = np.logical_and(*(size > 1e-3 * size.max() for size in sizes))
    cosines = np.full(len(w), np.nan)
    cosines[present] = (means.T * w).sum(axis=1)[present] / (sizes[0] * sizes[1])[present]
    return cosines
