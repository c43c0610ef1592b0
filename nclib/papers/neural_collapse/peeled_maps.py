"""The maps that Sun & Shi (2024) put before the layer-peeled model: their optima, found by L-BFGS.

    min_{W, H0, M}  (1/N) Σ_k n_k CE(W h_k, k),   h = map(M) h0

with M the explicit layer or the weight of the linear DEQ. `layer_peeled` has the model without a
map and its exact optimum; these are local optima, certified only where a lower bound is attained.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy

from nclib import metrics
from nclib.papers.neural_collapse.layer_peeled import (
    class_weights,
    factors,
    reference_optimum,
    simplex_gram,
)


@dataclasses.dataclass(frozen=True)
class PeeledProblem:
    """min (1/N) Σ n_k CE(W h_k, k) with (1/K) ‖W‖² ≤ E_W, ‖M‖_F ≤ E_H and a mean square norm of h
    or h0 ≤ E_H.

    Parameters
    ----------
    map : "none", h = h0; "explicit", h = M h0 (the paper's explicit layer); "residual",
        h = (I+M) h0 (a residual block, our control); "deq0", h = Σ_{i≥0} Mⁱ h0 (the linear DEQ of
        section 3.2 and eq. 28); "deq1", h = Σ_{i≥1} Mⁱ h0 (the linear DEQ of eq. 27)
    reading : where the budget E_H binds: "V1", the features h, as problems (7) and (9) say; "V2",
        the inputs h0, as eqs. 21 and 32 use it; "V4", fixed random inputs h0 within that budget,
        the same for all maps ("we assume H0 are the same")
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
    """The best local optimum found. Not certified, except where a lower bound is attained.

    Parameters
    ----------
    loss : at the optimum
    classifier : (K, d)
    inputs, features : (d, n), with the columns of a class side by side
    matrix : M (d, d)
    """

    loss: float
    classifier: np.ndarray
    inputs: np.ndarray
    features: np.ndarray
    matrix: np.ndarray


# --- the loss and its gradient --------------------------------------------------------------------


class _Objective:
    """Loss and gradient over `scale`, in unconstrained variables: each block of variables, W, H0
    and M, is scaled to its sphere."""

    def __init__(self, problem: PeeledProblem) -> None:
        self.problem = problem
        k = problem.num_classes
        dim = problem.dim
        self.labels = np.repeat(np.arange(k), problem.copies)
        of_class = class_weights(problem.num_majority, k - problem.num_majority, problem.ratio)
        self.weights = of_class[self.labels] / problem.copies
        n = len(self.labels)
        self.shapes = ((k, dim), (dim, n), (dim, dim))
        self.w_radius = math.sqrt(k * problem.e_w)
        self.h_radius = math.sqrt(n * problem.e_h)  # of the features or of the inputs
        self.m_radius = problem.e_h
        # a small budget makes a flat loss: keep its slope visible
        self.scale = min(math.sqrt(problem.e_w * problem.e_h), 1.0)
        self.identity = np.eye(dim)
        self.columns = np.arange(n)
        self.given_inputs = None
        if problem.reading == "V4":
            random_inputs = np.random.default_rng(0).standard_normal((dim, n))
            self.given_inputs = _scaled(random_inputs, self.h_radius)

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        """W (K, d), H0 (d, n) and M (d, d) of one vector."""
        blocks = []
        start = 0
        for shape in self.shapes:
            end = start + math.prod(shape)
            blocks.append(flat[start:end].reshape(shape))
            start = end
        return blocks

    def forward(self, flat: np.ndarray) -> PeeledFit:
        w, h0, m = self.split(flat)
        w = _scaled(w, self.w_radius)
        m = _scaled(m, self.m_radius)
        if self.given_inputs is not None:
            h0 = self.given_inputs
        elif self.problem.reading == "V2":
            h0 = _scaled(h0, self.h_radius)
        self.operator = self._operator(m)
        self.unscaled = self.operator @ h0
        h = self.unscaled
        if self.problem.reading == "V1":
            h = _scaled(h, self.h_radius)
        z = w @ h
        logs, self.softmax = _softmax(z)
        loss = self.weights @ (logs - z[self.labels, self.columns])
        return PeeledFit(float(loss), w, h0, h, m)

    def _operator(self, m: np.ndarray) -> np.ndarray:
        """The matrix (d, d) that maps inputs to features."""
        kind = self.problem.map
        if kind == "none":
            return self.identity
        if kind == "explicit":
            return m
        if kind == "residual":
            return self.identity + m
        inverse = np.linalg.inv(self.identity - m)
        if kind == "deq0":
            return inverse
        return inverse - self.identity

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        w_free, h0_free, m_free = self.split(flat)
        fit = self.forward(flat)
        kind = self.problem.map
        reading = self.problem.reading
        slope = self.softmax
        slope[self.labels, self.columns] -= 1
        slope *= self.weights
        d_w = slope @ fit.features.T
        d_h = fit.classifier.T @ slope
        if reading == "V1":
            d_h = _pull(d_h, self.unscaled, self.h_radius)
        d_m = d_h @ fit.inputs.T
        d_h0 = self.operator.T @ d_h
        if kind == "none":
            d_m = np.zeros_like(m_free)
        elif kind in ("deq0", "deq1"):
            inverse = self.operator if kind == "deq0" else self.operator + self.identity
            d_m = inverse.T @ d_m @ inverse.T
        if self.given_inputs is not None:
            d_h0 = np.zeros_like(h0_free)
        elif reading == "V2":
            d_h0 = _pull(d_h0, h0_free, self.h_radius)
        d_w = _pull(d_w, w_free, self.w_radius)
        d_m = _pull(d_m, m_free, self.m_radius)
        return fit.loss / self.scale, _flat(d_w, d_h0, d_m) / self.scale


def _softmax(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of the sum of exponentials, and softmax, of each column: bit for bit SciPy's, in a sixth
    of the time."""
    top = z.max(axis=0)
    powers = np.exp(z - top)
    largest = z == top
    rest = np.where(largest, 0, powers).sum(axis=0)
    count = largest.sum(axis=0)
    return np.log1p(rest / count) + np.log(count) + top, powers / powers.sum(axis=0)


def _scaled(x: np.ndarray, radius: float) -> np.ndarray:
    return x * (radius / np.linalg.norm(x))


def _pull(slope: np.ndarray, x: np.ndarray, radius: float) -> np.ndarray:
    """Gradient in x of a function of radius · x/‖x‖ whose gradient there is `slope`."""
    size = np.linalg.norm(x)
    return radius / size * (slope - x * ((x * slope).sum() / size**2))


# --- the optima -----------------------------------------------------------------------------------


def peeled_fits(
    problems: Sequence[PeeledProblem], starts: int = 8, iterations: int = 1500
) -> dict[PeeledProblem, PeeledFit]:
    """`peeled_fit` for each problem; then once more from the solutions that the other maps of the
    same setting found, so that no map stays at a poorer kind of optimum than its neighbours.

    Returns
    -------
    dict from problem to fit, in the order asked for
    """
    first = {}
    for problem in dict.fromkeys(problems):
        first[problem] = peeled_fit(problem, starts, iterations)
    best = {}
    for problem, fit in first.items():
        others = []
        for other, its_fit in first.items():
            if other != problem and dataclasses.replace(other, map=problem.map) == problem:
                others.append(its_fit)
        best[problem] = fit
        if others:
            again = peeled_fit(problem, 0, iterations, others)
            best[problem] = min(fit, again, key=_loss)
    return best


def peeled_fit(
    problem: PeeledProblem, starts: int = 8, iterations: int = 1500, also: Sequence[Any] = ()
) -> PeeledFit:
    """The best local optimum of several L-BFGS runs.

    Parameters
    ----------
    problem : what to minimise
    starts : random starts, besides one at the optimum of the layer-peeled model and, where there
        are any and the features are not bounded themselves, one at the optimum for a tenth of E_W,
        which is of lower rank
    iterations : at most; the three best of an eighth of them are followed to the end
    also : solutions of other maps of the same shape to start from as well
    """
    rng = np.random.default_rng(1)
    fit = _descend(problem, [_peeled_start(problem, rng), *also], starts, iterations, rng)
    if starts and problem.reading != "V1":
        lower = dataclasses.replace(problem, e_w=problem.e_w / 10)
        below = _descend(lower, [_peeled_start(lower, rng)], starts, iterations, rng)
        again = _descend(problem, [below], 0, iterations, rng)
        fit = min(fit, again, key=_loss)
    return fit


def _loss(fit: PeeledFit) -> float:
    return fit.loss


def _flat(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([part.ravel() for part in parts])


def _descend(
    problem: PeeledProblem,
    points: Sequence[Any],
    starts: int,
    iterations: int,
    rng: np.random.Generator,
) -> PeeledFit:
    """The best of L-BFGS from the given points and from random ones."""
    objective = _Objective(problem)
    size = sum(math.prod(shape) for shape in objective.shapes)
    from_points = []
    for point in points:
        if isinstance(point, PeeledFit):
            point = _flat(point.classifier, point.inputs, point.matrix)
        from_points.append(point)
    for _ in range(starts):
        from_points.append(rng.standard_normal(size))

    def descend(point: np.ndarray, steps: int) -> scipy.optimize.OptimizeResult:
        options = {
            "maxiter": steps,
            "maxfun": 3 * steps,
            "ftol": 1e-16,
            "gtol": 1e-11,
            "maxcor": 20,
        }
        return scipy.optimize.minimize(
            objective, point, jac=True, method="L-BFGS-B", options=options
        )

    def value(result: scipy.optimize.OptimizeResult) -> float:
        return result.fun

    short = []
    for point in from_points:
        # blocks of one size, so that no block moves much faster than another
        even = _flat(*(_scaled(block, 10) for block in objective.split(point)))
        short.append(descend(even, -(-iterations // 8)))
    long = [descend(result.x, iterations) for result in sorted(short, key=value)[:3]]
    return objective.forward(min(long, key=value).x)


def _peeled_start(problem: PeeledProblem, rng: np.random.Generator) -> np.ndarray:
    """Classifier and features of the layer-peeled optimum, M the projection on their span, a little
    noise."""
    k = problem.num_classes
    more = problem.dim - k
    optimum = reference_optimum(
        k, problem.num_majority, problem.ratio, 1.0, problem.e_w, problem.e_h
    )
    w, h = factors(optimum, problem.e_w, problem.e_h)
    w = np.pad(w, ((0, 0), (0, more)))
    h = np.repeat(np.pad(h, ((0, more), (0, 0))), problem.copies, axis=1)
    m = np.pad(np.eye(k), ((0, more), (0, more)))
    noisy = []
    for block in (w, h, m):
        noisy.append(_scaled(block, 10) + 1e-2 * rng.standard_normal(block.shape))
    return _flat(*noisy)


# --- what they look like --------------------------------------------------------------------------


def peeled_table(fits: dict[PeeledProblem, PeeledFit]) -> pd.DataFrame:
    """What the optima look like, a row for each: the options of the problem, then

    loss; rank, the number of singular values of the features above 1e-3 of the largest; nc2 and
    nc3, eqs. 13 and 14 of the class means as the paper has them (uncentred, constant corrected);
    etf_distance, ‖HᵀH − S‖_F of theorem 4.1 with S = K/(K−1) (I − 11ᵀ/K); least_cosine, the
    smallest cos(h_k, w_k); nc1, tr Σ_W / tr Σ_B (0 by construction for one copy); separable, the
    number of classes whose own logit is the largest.
    """
    rows = []
    for problem, fit in fits.items():
        rows.append({**dataclasses.asdict(problem), **_measure(problem, fit)})
    return pd.DataFrame(rows)


def _measure(problem: PeeledProblem, fit: PeeledFit) -> dict[str, float]:
    k = problem.num_classes
    means = class_means(problem, fit)
    spread = fit.features - np.repeat(means, problem.copies, axis=1)
    centred = means - means.mean(axis=1, keepdims=True)
    values = np.linalg.svd(fit.features, compute_uv=False)
    logits = fit.classifier @ means
    return {
        "loss": fit.loss,
        "rank": int((values > 1e-3 * values[0]).sum()),
        "nc2": metrics.nc2_etf_distance(means.T),
        "nc3": float(np.linalg.norm(_scaled(fit.classifier, 1) - _scaled(means.T, 1))),
        "etf_distance": float(np.linalg.norm(means.T @ means - simplex_gram(k))),
        "least_cosine": float(np.nanmin(peeled_alignment(problem, fit))),
        "nc1": float((spread**2).sum() / problem.copies / (centred**2).sum()),
        "separable": int((logits.argmax(axis=0) == np.arange(k)).sum()),
    }


def class_means(problem: PeeledProblem, fit: PeeledFit) -> np.ndarray:
    """Class means of the features (d, K)."""
    by_class = fit.features.reshape(problem.dim, problem.num_classes, problem.copies)
    return by_class.mean(axis=2)


def peeled_alignment(problem: PeeledProblem, fit: PeeledFit) -> np.ndarray:
    """cos(h_k, w_k) for each class (K,), the quantity of theorem 4.1, NC3; NaN where one of them is
    zero."""
    means = class_means(problem, fit)
    w = fit.classifier
    h_sizes = np.linalg.norm(means, axis=0)
    w_sizes = np.linalg.norm(w, axis=1)
    # a vector shorter than a thousandth of the longest is what an optimiser leaves of zero: it has
    # no direction
    present = (h_sizes > 1e-3 * h_sizes.max()) & (w_sizes > 1e-3 * w_sizes.max())
    cosines = np.full(len(w), np.nan)
    products = (means.T * w).sum(axis=1)
    cosines[present] = products[present] / (h_sizes * w_sizes)[present]
    return cosines
