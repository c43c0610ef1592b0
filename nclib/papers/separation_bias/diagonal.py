"""What gradient flow prefers on a diagonal linear DEQ, exactly (Wu et al. 2024, Theorem 3, GOTU).

The flow is integrated and compared with the minimum of the regulariser Q among the interpolators.
How dense its limits are is compared with the diagonal network and the minimum norm. Last comes the
error of diagonal linear models on the inputs that training never sees.

Everything is numpy in float64.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy

# --- the flow and its regulariser -----------------------------------------------------------------


def diagonal_flow(x: np.ndarray, y: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Limit of gradient flow on the diagonal linear DEQ z = Diag(w) z + x, f(x) = ±1·z = ⟨β, x⟩.

        L(w) = ½‖Xβ − y‖²,   β_i = ±1/(1 − w_i),   ẇ_i = ∓(Xᵀr)_i β_i²,   r = Xβ − y
        hence  β̇ = −(Xᵀr) ⊙ β⁴

    The differential equation of w is integrated until the residual is below 1e-12 of y (LSODA, rtol
    1e-12).

    Parameters
    ----------
    x : (N, d) of full row rank, N ≤ d
    y : (N,)
    start : (d,) β(0), entries ≠ 0. A negative entry stands for a read-out of −1

    Returns
    -------
    (d,) the limit β̂

    Raises
    ------
    RuntimeError
        When the flow has not arrived after a very long time: where no interpolator has the signs of
        β(0) it never does (see `orthant_margin`).

    Source: Wu et al. (2024), eq. (9) and section 5; signs as in the rebuttal.
    """
    signs = np.sign(start)

    def speed(_: float, w: np.ndarray) -> np.ndarray:
        beta = signs / (1 - w)
        return -signs * (x.T @ (x @ beta - y)) * beta**2

    def jacobian(_: float, w: np.ndarray) -> np.ndarray:
        beta = signs / (1 - w)
        force = x.T @ (x @ beta - y)
        change = signs * beta**2
        across = change[:, None] * (x.T @ x) * change[None, :]
        return -across - np.diag(2 * force * beta**3)

    w = 1 - signs / start
    span = 10.0
    scale = np.abs(y).max() or 1.0
    for _ in range(60):
        path = scipy.integrate.solve_ivp(
            speed, (0, span), w, method="LSODA", rtol=1e-12, atol=1e-14, jac=jacobian
        )
        w = path.y[:, -1]
        span = 2 * span
        beta = signs / (1 - w)
        residual = np.abs(x @ beta - y).max()
        if residual <= 1e-12 * scale:
            return beta
    raise RuntimeError(
        f"the flow has not arrived after time {span:.1e}: residual {residual:.1e}; "
        "is there an interpolator with the signs of start?"
    )


def orthant_margin(x: np.ndarray, y: np.ndarray) -> float:
    """Largest τ ≤ 1 such that some β with Xβ = y has β_i ≥ τ for all i; −inf without interpolator.

    The flow of a diagonal DEQ keeps its signs, so from β(0) > 0 it can only fit where this is
    positive.
    """
    d = x.shape[1]
    # β = γ + τ with γ ≥ 0
    equations = np.hstack([x, x.sum(axis=1, keepdims=True)])
    cost = np.append(np.zeros(d), -1.0)
    bounds = [(0, None)] * d + [(None, 1.0)]
    program = scipy.optimize.linprog(cost, A_eq=equations, b_eq=y, bounds=bounds, method="highs")
    return float(program.x[-1]) if program.status == 0 else -math.inf


def diagonal_regulariser(
    beta: np.ndarray, beta0: np.ndarray | float, sign: Literal[1, -1] = 1
) -> float:
    """Q(β) = Σ_i 1/(2β_i²) + sign · β_i(0)^−3 β_i.

    Parameters
    ----------
    beta, beta0 : β and β(0), (d,)
    sign : 1 is what the dynamics give, for positive and negative entries alike: q' vanishes at β(0)
        and q is convex on its side of 0. −1 is what a post of the discussion prints for negative
        entries: there it is true of |β_i|.

    Examples
    --------
    >>> import numpy as np
    >>> diagonal_regulariser(np.array([1.0]), 1.0)
    1.5
    """
    return float(np.sum(0.5 / beta**2 + sign * np.asarray(beta0) ** -3.0 * beta))


def regulariser_stationarity(
    beta: np.ndarray, beta0: np.ndarray, x: np.ndarray, sign: Literal[1, -1] = 1
) -> float:
    """Largest entry of ∇Q(β) along the null space of X: 0 at a minimum among interpolators."""
    gradient = -(beta**-3.0) + sign * beta0**-3.0
    in_row_space = np.linalg.pinv(x) @ (x @ gradient)
    return float(np.abs(gradient - in_row_space).max())


class _Primal(NamedTuple):
    """What a dual variable η = Xᵀν stands for."""

    beta: np.ndarray
    curvature: np.ndarray  # −dβ/dη > 0
    value: float  # of the dual, −inf outside its domain


def _dual_newton(
    x: np.ndarray, y: np.ndarray, primal: Callable[[np.ndarray], _Primal]
) -> np.ndarray:
    """Solve Xβ(Xᵀν) = y by damped Newton ascent of the concave dual."""
    nu = np.zeros(len(x))
    point = primal(x.T @ nu)
    best = math.inf
    for _ in range(500):
        residual = x @ point.beta - y
        error = np.abs(residual).max()
        step = np.linalg.solve((x * point.curvature) @ x.T, residual)
        scale = (np.abs(x) @ np.abs(point.beta)).max()
        if error >= best and error <= 1e-7 * scale:
            # Only rounding of Xᵀν is left, large where β is; one step in β itself takes it away.
            return point.beta - point.curvature * (x.T @ step)
        best = min(best, error)
        length = 1.0
        slope = residual @ step
        before = point.value - nu @ y
        while length > 1e-14:
            trial = nu + length * step
            trial_point = primal(x.T @ trial)
            # Near the solution the dual value no longer distinguishes steps, but the residual does.
            is_closer = np.isfinite(trial_point.value) and (
                np.abs(x @ trial_point.beta - y).max() < (1 - 0.1 * length) * error
            )
            rises = trial_point.value - trial @ y > before + 1e-4 * length * slope
            if is_closer or rises:
                break
            length /= 2
        nu = trial
        point = trial_point
    raise RuntimeError(
        f"Newton's method has not arrived: residual {best:.1e}; "
        "is there an interpolator with the signs of beta0?"
    )


def diagonal_regulariser_minimum(
    x: np.ndarray, y: np.ndarray, beta0: np.ndarray | float
) -> np.ndarray:
    """The interpolator that minimises `diagonal_regulariser` in the orthant of beta0.

        min Q(β)  s.t.  Xβ = y,  sign β = sign β(0)   ⟺   X (β(0)^−3 + Xᵀν)^{−1/3} = y

    By Newton's method on the dual. Parameters, returns and errors as in `diagonal_flow`, whose
    limit it is; beta0 may be a number.

    Source: Wu et al. (2024), Theorem 3, with the sign that the dynamics give.
    """
    start = np.broadcast_to(np.asarray(beta0, dtype=float), (x.shape[1],))
    signs = np.sign(start)
    origin = start**-3.0

    def primal(eta: np.ndarray) -> _Primal:
        p = origin + eta
        if (p * signs <= 0).any():
            return _Primal(p, p, -math.inf)
        beta = np.cbrt(1 / p)
        value = float(1.5 * np.sum(np.abs(p) ** (2 / 3)))
        return _Primal(beta, np.abs(beta / p) / 3, value)

    return _dual_newton(x, y, primal)


def diagonal_network_limit(x: np.ndarray, y: np.ndarray, beta0: np.ndarray | float) -> np.ndarray:
    """Limit of gradient flow on the diagonal linear network f(x) = ⟨u ⊙ u, x⟩.

        β = β(0) ⊙ exp(−Xᵀν),   Xβ = y

    The comparison of `diagonal_flow`; small β(0) prefers sparse solutions.

    Parameters
    ----------
    x, y : as of `diagonal_flow`
    beta0 : β(0) = u(0)² > 0

    Returns
    -------
    (d,)

    Source: Woodworth et al. (2020), the entropic regulariser of the squared parametrisation.
    """

    def primal(eta: np.ndarray) -> _Primal:
        if (eta < -600).any():  # exp would overflow
            return _Primal(eta, eta, -math.inf)
        beta = beta0 * np.exp(-eta)
        return _Primal(beta, beta, float(-beta.sum()))

    return _dual_newton(x, y, primal)


def flow_trials(count: int, signs: Literal["positive", "mixed"], seed: int = 0) -> pd.DataFrame:
    """Random interpolation problems, and what Theorem 3 says of each.

    Gaussian X (5, 20) with a planted β in ±[0.2, 2].

    Parameters
    ----------
    count, seed : number of problems, and the seed of all
    signs : of the planted β

    Returns
    -------
    DataFrame
        A row for each: trial, signs, gap (largest |flow − minimum|), plus and minus
        (`regulariser_stationarity` of the flow's limit for either sign of the linear term), and
        rise, the least increase of Q over 200 random feasible perturbations. `plus` is also the
        part of β̂^−3 − β(0)^−3 outside the row space of X.
    """
    stream = np.random.default_rng(seed)
    rows = []
    for trial in range(count):
        x = stream.normal(size=(5, 20))
        sides = np.ones(20)
        if signs == "mixed":
            sides = stream.choice([-1.0, 1.0], size=20)
        y = x @ (sides * stream.uniform(0.2, 2, size=20))
        start = sides * stream.uniform(0.5, 1.5, size=20)
        limit = diagonal_flow(x, y, start)
        minimum = diagonal_regulariser_minimum(x, y, start)
        least = diagonal_regulariser(limit, start)
        null_space = np.eye(20) - np.linalg.pinv(x) @ x
        rise = math.inf
        for _ in range(200):
            step = null_space @ stream.normal(size=20)
            step *= 0.3 * np.abs(limit).min() / np.abs(step).max()  # stays in the orthant
            rise = min(rise, diagonal_regulariser(limit + step, start) - least)
        rows.append(
            {
                "trial": trial,
                "signs": signs,
                "gap": float(np.abs(limit - minimum).max()),
                "plus": regulariser_stationarity(limit, start, x, 1),
                "minus": regulariser_stationarity(limit, start, x, -1),
                "rise": rise,
            }
        )
    return pd.DataFrame(rows)


# --- density --------------------------------------------------------------------------------------


def participation_ratio(values: np.ndarray, axis: int = -1) -> np.ndarray | float:
    """How evenly a quantity is spread over n entries, ‖v‖₁²/(n ‖v‖₂²).

    1 where all are equal in size, 1/n for a single one, NaN for a zero vector.

    Parameters
    ----------
    values : any shape; the ratio is taken along `axis`

    Examples
    --------
    >>> import numpy as np
    >>> participation_ratio(np.array([3.0, 0.0, 0.0, 0.0]))
    0.25
    """
    size = np.abs(np.asarray(values, dtype=float))
    with np.errstate(invalid="ignore"):
        ratio = size.sum(axis=axis) ** 2 / (size.shape[axis] * (size**2).sum(axis=axis))
    return float(ratio) if np.ndim(ratio) == 0 else ratio


def density_table(draws: int, seed: int = 0) -> pd.DataFrame:
    """Is the bias of a diagonal DEQ dense? Participation ratios of interpolators of a sparse truth.

    The truth has 3 of 20 entries; there are 5 samples. Draws without an interpolator whose entries
    are all above 0.01 are passed over.

    Parameters
    ----------
    draws, seed : number of problems, and the seed of all

    Returns
    -------
    DataFrame
        A row for each model and start: model ("truth", "network", "deq", "min-norm"), beta0, mean,
        std, draws. w(0) = 0 is β(0) = 1.
    """
    stream = np.random.default_rng(seed)
    ratios = []
    while len(ratios) < draws:
        x = stream.normal(size=(5, 20))
        truth = np.zeros(20)
        truth[stream.choice(20, size=3, replace=False)] = stream.uniform(0.5, 2, size=3)
        y = x @ truth
        if orthant_margin(x, y) < 0.01:
            continue
        limits = {("truth", math.nan): truth, ("min-norm", math.nan): np.linalg.pinv(x) @ y}
        for start in (1e-3, 1e-1):
            limits["network", start] = diagonal_network_limit(x, y, start)
        for start in (0.1, 0.5, 1.0, 10.0):
            limits["deq", start] = diagonal_regulariser_minimum(x, y, start)
        ratios.append([participation_ratio(beta) for beta in limits.values()])
    table = pd.DataFrame(limits.keys(), columns=["model", "beta0"])
    table["mean"] = np.mean(ratios, axis=0)
    table["std"] = np.std(ratios, axis=0, ddof=1)
    table["draws"] = draws
    return table


# --- the unseen half ------------------------------------------------------------------------------


class Unseen(NamedTuple):
    """Limit of training without the points x_k = −1.

    Parameters
    ----------
    beta : β_k
    gotu : generalisation on the unseen, the mean squared error on those points
    """

    beta: float
    gotu: float


def gotu_diagonal(
    f_empty: float, f_k: float, model: str = "deq", beta0: float | None = None
) -> Unseen:
    """Generalisation on the unseen of diagonal linear models, exact gradient flow.

    Target f(x) = f̂(∅) + Σ_i f̂({i}) x_i, trained on the points with x_k = 1 alone. There only
    b + β_k is determined: it goes to c = f̂(∅) + f̂({k}), and

        GOTU = E[(f_θ − f)² | x_k = −1] = 4 (f̂({k}) − β_k)²

    "network"           β = u ⊙ v, u = v:  β_k = β(0) e^{−2V},         b = −V
    "deq"               β = 1/(1 − w):     β_k = (β(0)^−3 + 3V)^−1/3,  b = −V
    "deq_bias_feature"  the bias is a diagonal DEQ feature as well:  β_k = b = c/2 for equal starts

    with V fixed by b + β_k = c.

    Parameters
    ----------
    f_empty, f_k : f̂(∅) and f̂({k})
    model : as above
    beta0 : β(0) > 0; None for the natural start, 10^−6 for the network (u = v = 10^−3) and 1 for
        the DEQ (w = 0)

    Returns
    -------
    Unseen

    Source: the setting is Abbe et al. (2023); the flows are derived here. Wu et al. (2024) claim
    that the DEQ's GOTU is smaller; which bias they use is not known here.

    Examples
    --------
    >>> gotu_diagonal(0.0, 1.0, "deq_bias_feature")
    Unseen(beta=0.5, gotu=1.0)
    """
    c = f_empty + f_k
    if model == "deq_bias_feature":
        return Unseen(c / 2, 4 * (f_k - c / 2) ** 2)
    if model not in ("network", "deq"):
        raise ValueError(f'no model {model!r}; use "network", "deq" or "deq_bias_feature"')
    if beta0 is None:
        beta0 = 1e-6 if model == "network" else 1.0

    def excess(log_beta: float) -> float:
        """b + β_k − c. V falls as β grows; in terms of log β everything stays finite."""
        if model == "network":
            v = (math.log(beta0) - log_beta) / 2
        else:
            v = (math.exp(-3 * log_beta) - beta0**-3.0) / 3
        return math.exp(log_beta) - v - c

    low = math.log(beta0)
    high = math.log(beta0)
    while excess(low) > 0:
        low -= 1.0 if low > -200 else 100.0
    while excess(high) < 0:
        high += 1.0
    root = low
    if low < high:
        root = scipy.optimize.brentq(excess, low, high, xtol=1e-15, rtol=1e-14)
    beta = math.exp(root)
    return Unseen(beta, 4 * (f_k - beta) ** 2)


GOTU_CASES = (
    (0.0, 1.0), (0.0, 2.0), (0.5, 1.0), (0.0, 0.5), (0.0, 0.25), (1.0, 1.0), (2.0, 0.5), (3.0, 2.0)
)  # fmt: skip
"""(f̂(∅), f̂({k})) of `gotu_table`."""


def gotu_table() -> pd.DataFrame:
    """GOTU of the diagonal network and of both diagonal DEQs at natural starts.

    Returns
    -------
    DataFrame
        A row for each case: f_empty, f_k, network, deq, deq_bias_feature, and predicted, whether
        0 < β_k < 2 f̂({k}), the condition under which "deq" must be the better one
    """
    rows = []
    for f_empty, f_k in GOTU_CASES:
        deq = gotu_diagonal(f_empty, f_k, "deq")
        rows.append(
            {
                "f_empty": f_empty,
                "f_k": f_k,
                "network": gotu_diagonal(f_empty, f_k, "network").gotu,
                "deq": deq.gotu,
                "deq_bias_feature": gotu_diagonal(f_empty, f_k, "deq_bias_feature").gotu,
                "predicted": 0 < deq.beta < 2 * f_k,
            }
        )
    return pd.DataFrame(rows)
