"""What gradient flow prefers on a diagonal linear DEQ, exactly (Wu et al. 2024, Theorem 3).

The flow is integrated and compared with the minimum of the regulariser Q among the interpolators; how dense its limits
are is compared with the diagonal network and the minimum norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pandas as pd
import scipy


def orthant_margin(x: np.ndarray, y: np.ndarray, signs: np.ndarray | float = 1.0) -> float:
    """Largest τ ≤ 1 such that some β with Xβ = y has sign_i β_i ≥ τ for all i; −inf without an interpolator.

    The flow of a diagonal DEQ keeps its signs, so it can only fit where this is positive.
    """
    x = np.asarray(x, dtype=float) * np.sign(signs)
    d = x.shape[1]
    equal = np.hstack([x, x.sum(axis=1, keepdims=True)])  # β = γ + τ with γ ≥ 0
    found = scipy.optimize.linprog(
        np.append(np.zeros(d), -1.0), A_eq=equal, b_eq=y, bounds=[(0, None)] * d + [(None, 1.0)], method="highs"
    )
    return float(found.x[-1]) if found.status == 0 else -math.inf


def diagonal_flow(x: np.ndarray, y: np.ndarray, beta0: np.ndarray | float) -> np.ndarray:
    """Limit of gradient flow on the diagonal linear DEQ z = Diag(w) z + x, f(x) = ±1·z = ⟨β, x⟩, β_i = ±1/(1 − w_i).

        L(w) = ½‖Xβ − y‖²,   ẇ_i = ∓(Xᵀr)_i β_i²,   hence  β̇ = −(Xᵀr) ⊙ β⁴,   r = Xβ − y

    The differential equation of w is integrated until the residual is below 1e-12 of y (LSODA, rtol 1e-12).

    Parameters
    ----------
    x : (N, d) of full row rank, N ≤ d
    y : (N,)
    beta0 : (d,) or a number: β(0), entries ≠ 0. A negative entry stands for a read-out of −1

    Returns
    -------
    (d,) the limit β̂

    Raises
    ------
    RuntimeError
        When the flow has not arrived after a very long time: where no interpolator has the signs of beta0 it never
        does (see `orthant_margin`).

    Source: Wu et al. (2024), eq. (9) and section 5; signs as in the rebuttal.
    """
    start = np.broadcast_to(np.asarray(beta0, dtype=float), (x.shape[1],))
    signs = np.sign(start)

    def speed(_: float, w: np.ndarray) -> np.ndarray:
        beta = signs / (1 - w)
        return -signs * (x.T @ (x @ beta - y)) * beta**2

    def gradient(_: float, w: np.ndarray) -> np.ndarray:
        beta = signs / (1 - w)
        force = x.T @ (x @ beta - y)
        across = (signs * beta**2)[:, None] * (x.T @ x) * (signs * beta**2)[None, :]
        return -across - np.diag(2 * force * beta**3)

    w, span, scale = 1 - signs / start, 10.0, np.abs(y).max() or 1.0
    for _ in range(60):
        found = scipy.integrate.solve_ivp(speed, (0, span), w, method="LSODA", rtol=1e-12, atol=1e-14, jac=gradient)
        w, span = found.y[:, -1], 2 * span
        beta = signs / (1 - w)
        if np.abs(x @ beta - y).max() <= 1e-12 * scale:
            return beta
    raise RuntimeError(f"the flow has not arrived after time {span:.1e}: residual {np.abs(x @ beta - y).max():.1e}")


def diagonal_regulariser(beta: np.ndarray, beta0: np.ndarray | float, sign: Literal[1, -1] = 1) -> float:
    """Q(β) = Σ_i 1/(2β_i²) + sign · β_i(0)^−3 β_i.

    sign=1 is what the dynamics give, for positive and negative entries alike: q' vanishes at β(0) and q is convex on
    its side of 0. sign=−1 is what a post of the discussion prints for negative entries: there it is true of |β_i|.
    """
    beta = np.asarray(beta, dtype=float)
    return float(np.sum(0.5 / beta**2 + sign * np.asarray(beta0, dtype=float) ** -3.0 * beta))


def regulariser_stationarity(
    beta: np.ndarray, beta0: np.ndarray | float, x: np.ndarray, sign: Literal[1, -1] = 1
) -> float:
    """Largest entry of ∇Q(β) along the null space of X: 0 at a minimum of Q among interpolators."""
    beta = np.asarray(beta, dtype=float)
    gradient = -(beta**-3.0) + sign * np.broadcast_to(np.asarray(beta0, dtype=float) ** -3.0, beta.shape)
    across = gradient - np.linalg.pinv(x) @ (x @ gradient)
    return float(np.abs(across).max())


def _dual_newton(
    x: np.ndarray,
    y: np.ndarray,
    primal: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, float]],
) -> np.ndarray:
    """Solve Xβ(Xᵀν) = y by damped Newton ascent of the concave dual; `primal` maps η = Xᵀν to β, −dβ/dη > 0 and the
    dual value, −inf outside its domain."""
    nu = np.zeros(len(x))
    beta, curvature, value = primal(x.T @ nu)
    best = math.inf
    for _ in range(500):
        residual = x @ beta - y
        error = np.abs(residual).max()
        if error >= best and error <= 1e-7 * (np.abs(x) @ np.abs(beta)).max():
            # only rounding of Xᵀν is left, large where β is; one step in β itself takes it away
            return beta - curvature * (x.T @ np.linalg.solve((x * curvature) @ x.T, residual))
        best = min(best, error)
        step = np.linalg.solve((x * curvature) @ x.T, residual)
        length, slope, before = 1.0, residual @ step, value - nu @ y
        while length > 1e-14:
            trial = nu + length * step
            found = primal(x.T @ trial)
            # near the solution the dual value no longer tells steps apart, but the residual does
            closer = np.isfinite(found[2]) and np.abs(x @ found[0] - y).max() < (1 - 0.1 * length) * error
            if closer or found[2] - trial @ y > before + 1e-4 * length * slope:
                break
            length /= 2
        nu, (beta, curvature, value) = trial, found
    raise RuntimeError(f"Newton's method has not arrived: residual {best:.1e}")


def diagonal_regulariser_minimum(x: np.ndarray, y: np.ndarray, beta0: np.ndarray | float) -> np.ndarray:
    """The interpolator that minimises `diagonal_regulariser` in the orthant of beta0, by Newton's method on the dual.

        min Q(β)  s.t.  Xβ = y,  sign β = sign β(0)   ⟺   X (β(0)^−3 + Xᵀν)^{−1/3} = y

    Parameters, returns and errors as in `diagonal_flow`, whose limit it is.

    Source: Wu et al. (2024), Theorem 3, with the sign that the dynamics give.
    """
    start = np.broadcast_to(np.asarray(beta0, dtype=float), (x.shape[1],))
    signs, origin = np.sign(start), start**-3.0

    def primal(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        p = origin + eta
        if (p * signs <= 0).any():
            return p, p, -math.inf
        beta = np.cbrt(1 / p)
        return beta, np.abs(beta / p) / 3, float(1.5 * np.sum(np.abs(p) ** (2 / 3)))

    return _dual_newton(x, y, primal)


def diagonal_network_limit(x: np.ndarray, y: np.ndarray, beta0: np.ndarray | float) -> np.ndarray:
    """Limit of gradient flow on the diagonal linear network f(x) = ⟨u ⊙ u, x⟩ from β(0) = u(0)² > 0.

        β = β(0) ⊙ exp(−Xᵀν),   Xβ = y

    The comparison of `diagonal_flow`; small β(0) prefers sparse solutions.

    Source: Woodworth et al. (2020), the entropic regulariser of the squared parametrisation.
    """
    start = np.broadcast_to(np.asarray(beta0, dtype=float), (x.shape[1],))

    def primal(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        if (eta < -600).any():
            return eta, eta, -math.inf
        beta = start * np.exp(-eta)
        return beta, beta, float(-beta.sum())

    return _dual_newton(x, y, primal)


def flow_trials(count: int, signs: Literal["positive", "mixed"], seed: int = 0) -> pd.DataFrame:
    """Random interpolation problems, Gaussian X (5, 20) with a planted β in ±[0.2, 2], and what Theorem 3 says of each.

    A row for each: trial, signs, gap (largest |flow − minimum|), plus and minus (`regulariser_stationarity` of the
    flow's limit for either sign of the linear term), row_space (part of β̂^−3 − β(0)^−3 outside the row space of X), and
    rise, the least increase of Q over 200 random feasible perturbations.
    """
    stream, rows = np.random.default_rng(seed), []
    for trial in range(count):
        x = stream.normal(size=(5, 20))
        sides = np.ones(20) if signs == "positive" else stream.choice([-1.0, 1.0], size=20)
        y = x @ (sides * stream.uniform(0.2, 2, size=20))
        start = sides * stream.uniform(0.5, 1.5, size=20)
        limit, minimum = diagonal_flow(x, y, start), diagonal_regulariser_minimum(x, y, start)
        plus, minus = (regulariser_stationarity(limit, start, x, sign) for sign in (1, -1))
        moved = limit**-3.0 - start**-3.0
        outside = float(np.abs(moved - np.linalg.pinv(x) @ (x @ moved)).max())
        least, floor = diagonal_regulariser(limit, start), math.inf
        null = np.eye(20) - np.linalg.pinv(x) @ x
        for _ in range(200):
            way = null @ stream.normal(size=20)
            way *= 0.3 * np.abs(limit).min() / np.abs(way).max()  # stays in the orthant
            floor = min(floor, diagonal_regulariser(limit + way, start) - least)
        rows.append((trial, signs, float(np.abs(limit - minimum).max()), plus, minus, outside, floor))
    return pd.DataFrame(rows, columns=["trial", "signs", "gap", "plus", "minus", "row_space", "rise"])


def participation_ratio(values: np.ndarray, axis: int = -1) -> np.ndarray | float:
    """How evenly a quantity is spread over n entries, ‖v‖₁²/(n ‖v‖₂²): 1 where all are equal in size, 1/n for a single
    one. NaN for a zero vector.

    Parameters
    ----------
    values : any shape; the ratio is taken along `axis`.
    """
    size = np.abs(np.asarray(values, dtype=float))
    with np.errstate(invalid="ignore"):
        ratio = size.sum(axis=axis) ** 2 / (size.shape[axis] * (size**2).sum(axis=axis))
    return float(ratio) if np.ndim(ratio) == 0 else ratio


DENSITY_STARTS = (0.1, 0.5, 1.0, 10.0)
"""β(0) of the diagonal DEQ in `density_table`; w(0) = 0 is β(0) = 1."""


def density_table(draws: int, seed: int = 0) -> pd.DataFrame:
    """Is the bias of a diagonal DEQ dense? Participation ratios of interpolators of a sparse truth (3 of 20 entries, 5
    samples), over draws that have an interpolator with all entries above 0.01.

    A row for each model and start: model ("truth", "network", "deq", "min-norm"), beta0, mean, std, draws.
    """
    stream = np.random.default_rng(seed)
    found: dict[tuple[str, float], list[float]] = {}
    done = 0
    while done < draws:
        x, truth = stream.normal(size=(5, 20)), np.zeros(20)
        truth[stream.choice(20, size=3, replace=False)] = stream.uniform(0.5, 2, size=3)
        y = x @ truth
        if orthant_margin(x, y) < 0.01:
            continue
        done += 1
        solutions = {("truth", math.nan): truth, ("min-norm", math.nan): np.linalg.pinv(x) @ y}
        for start in (1e-3, 1e-1):
            solutions["network", start] = diagonal_network_limit(x, y, start)
        for start in DENSITY_STARTS:
            solutions["deq", start] = diagonal_regulariser_minimum(x, y, start)
        for key, beta in solutions.items():
            found.setdefault(key, []).append(participation_ratio(beta))
    rows = [
        (model, start, np.mean(values), np.std(values, ddof=1) if draws > 1 else math.nan, draws)
        for (model, start), values in found.items()
    ]
    return pd.DataFrame(rows, columns=["model", "beta0", "mean", "std", "draws"])
