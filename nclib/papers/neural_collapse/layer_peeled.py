"""The layer-peeled model and its exact optimum under step imbalance.

    min_{W, H}  Σ_k (n_k/N) CE(W h_k, k)   s.t.   (1/K) Σ_k ‖w_k‖² ≤ E_W,   (1/K) Σ_k ‖h_k‖² ≤ E_H

One feature a class is enough: for a fixed W the loss is convex in each feature, so replacing the
features of a class by their mean lowers both loss and norm (Jensen). With at least K feature
dimensions the problem is the convex one

    min_Z  Σ_k (n_k/N) CE(Z e_k, k)   s.t.   ‖Z‖_* ≤ B = K √(E_W E_H),   Z = W H,

whose solution is symmetric within majority and minority: four numbers, found here from the
optimality conditions and certified for *all* matrices Z by the Frank–Wolfe gap. Everything is numpy
in float64.

First the public functions, then the four numbers (`_solve`), then small helpers.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

_LARGEST_EXPONENT = 700.0
"""Beyond it exp leaves float64."""


class Optimum(NamedTuple):
    """Solution of the layer-peeled model.

    Parameters
    ----------
    loss : Σ_k (n_k/N) CE
    gap : upper bound on how far `loss` lies above the minimum over all K×K logit matrices in the
        nuclear-norm ball
    logits : (K, K), column k holds the logits w_j·h_k of a sample of class k, majority classes
        first
    classifier_gram : (K, K) inner products w_j·w_k
    minority_cosine : cosine between two minority classifiers; NaN where they are zero or there is
        only one
    """

    loss: float
    gap: float
    logits: np.ndarray
    classifier_gram: np.ndarray
    minority_cosine: float


class _Symmetric(NamedTuple):
    """Z = a C_A ⊕ e C_B + u [x 1_Aᵀ, −t 1_Bᵀ] with u ∝ (1_A/K_A, −1_B/K_B) of norm 1 and C the
    centring matrices."""

    a: float
    e: float
    x: float
    t: float


def reference_optimum(
    num_classes: int, num_majority: int, n_major: float, n_minor: float, e_w: float, e_h: float
) -> Optimum:
    """The global optimum of the layer-peeled model with K_A classes of n_A and K_B = K − K_A of n_B
    samples.

        W Wᵀ = √(E_W/E_H) (a C_A ⊕ e C_B + σ u uᵀ),   σ = √(K_A x² + K_B t²)

    Feature dimension at least K.

    Parameters
    ----------
    num_classes, num_majority : K and K_A, 1 ≤ K_A < K
    n_major, n_minor : n_A ≥ n_B > 0; only their ratio R matters
    e_w, e_h : the budgets E_W, E_H > 0

    Returns
    -------
    Optimum; its gap is at rounding level, below 1e-9.

    Source: the model is Fang et al. (2021), eq. 7; the solution by four numbers is derived here.
    """
    k_a = num_majority
    k_b = num_classes - num_majority
    ratio = n_major / n_minor
    budget = nuclear_budget(num_classes, e_w, e_h)
    z, root = _matrices(k_a, k_b, _solve(k_a, k_b, ratio, budget))
    loss, gradient = _cross_entropy(z, class_weights(k_a, k_b, ratio))
    gap = max(float((gradient * z).sum() + budget * np.linalg.norm(gradient, 2)), 0.0)
    gram = math.sqrt(e_w / e_h) * root
    return Optimum(loss, gap, z, gram, _off_diagonal_cosine(gram[k_a:, k_a:]))


def collapse_ratio(num_classes: int, num_majority: int, e_w: float, e_h: float) -> float:
    """R*: from this imbalance n_A/n_B on, all minority classifiers coincide (minority collapse).

        R* = 1/(1 − s_A),   s_A = p_kk − p_kk' at R = R*

    of a majority sample of class k, with k' another majority class.

    Returns
    -------
    float ≥ 1, inf where it is beyond what float64 holds; it depends on E_W and E_H through their
    product alone.

    Source: derived here; the transition is Fang et al. (2021), theorem 5. 12.19 for K=10, K_A=5,
    E_W=1, E_H=5.
    """
    k_a = num_majority
    k_b = num_classes - num_majority
    budget = nuclear_budget(num_classes, e_w, e_h)

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        return _spent(k_a, k_b, _stationary(k_a, k_b, 1 / mu, mu)) - budget

    coincide = _exp(-_decreasing_root(excess))
    return min(coincide, total_collapse_ratio(num_classes, num_majority, e_w, e_h))


def total_collapse_ratio(num_classes: int, num_majority: int, e_w: float, e_h: float) -> float:
    """R0: from this imbalance on, classifiers and features of all minority classes are zero.

        R0 = max{ √( s² K_B K_A²/K² / ((1−s_A)² − s² K_A P_B²) ), 1/(1−s_A) },   s² = K/(K_A K_B)

    with s_A and P_B, the probability that a majority sample gives to the minority classes, at
    Z = a C_A ⊕ 0 and a = B/(K_A−1). inf where the denominator is not positive: the budget is too
    large for a total collapse.

    Source: derived here, from the optimality of w_B = h_B = 0.
    """
    budget = nuclear_budget(num_classes, e_w, e_h)
    return _total_ratio(num_majority, num_classes - num_majority, budget)


def total_collapse_budget(num_classes: int, num_majority: int) -> float:
    """E0: total collapse (w_B = h_B = 0, Proposition 4.2) happens at a finite imbalance iff
    √(E_W E_H) < E0.

        E0 = (K_A(K_A−1)/K) log( K_A σ / (K_B (1−σ)) ),   σ = √(K_B/K)

    It is where P_B √(K/K_B) = 1 − s_A. Above it the minority classifiers tend to a common vector
    that is not zero.

    Source: derived here. 0.472, 1.763, 4.363 for K = 10 and K_A = 3, 5, 7.
    """
    k_a = num_majority
    k_b = num_classes - num_majority
    share = math.sqrt(k_b / num_classes)
    return k_a * (k_a - 1) / num_classes * math.log(k_a * share / ((1 - share) * k_b))


def loss_lower_bound(num_classes: int, e_w: float, e_h: float) -> float:
    """Least mean cross-entropy of balanced classes under the budgets, attained by a simplex ETF.

        log(1 + (K−1) e^−m),   m = √(E_W E_H) K/(K−1)

    The probability of the right class at the optimum is exp(−loss), the same for all samples.

    Returns
    -------
    float in (0, log K); 2.292590665 for K=10, E_W = E_H = 0.01, where log K = 2.302585093.

    Source: Fang et al. (2021), theorem 1; the margin m follows from w_k·h_k = √(E_W E_H).
    """
    margin = nuclear_budget(num_classes, e_w, e_h) / (num_classes - 1)
    return math.log1p((num_classes - 1) * math.exp(-margin))


def threshold_table(
    num_classes: Sequence[int], num_majority: Sequence[int], budgets: Sequence[float]
) -> pd.DataFrame:
    """R*, R0 and E0 for each setting and budget √(E_W E_H): K, K_A, budget, collapse_ratio,
    total_collapse_ratio, total_collapse_budget."""
    rows = []
    for k, k_a in zip(num_classes, num_majority, strict=True):
        for budget in budgets:
            row = {
                "K": k,
                "K_A": k_a,
                "budget": budget,
                "collapse_ratio": collapse_ratio(k, k_a, budget, budget),
                "total_collapse_ratio": total_collapse_ratio(k, k_a, budget, budget),
                "total_collapse_budget": total_collapse_budget(k, k_a),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def imbalance_curve(
    num_classes: int, num_majority: int, ratios: Sequence[float], e_w: float, e_h: float
) -> pd.DataFrame:
    """The optimum along the imbalance: ratio, loss, gap, minority_cosine, majority_cosine,
    norm_ratio (‖w_B‖/‖w_A‖) and feature_ratio (‖h_B‖/‖h_A‖)."""
    rows = []
    for ratio in ratios:
        optimum = reference_optimum(num_classes, num_majority, ratio, 1.0, e_w, e_h)
        gram = optimum.classifier_gram
        row = {
            "ratio": ratio,
            "loss": optimum.loss,
            "gap": optimum.gap,
            "minority_cosine": optimum.minority_cosine,
            "majority_cosine": _off_diagonal_cosine(gram[:num_majority, :num_majority]),
            "norm_ratio": _minority_over_majority(gram),
            "feature_ratio": _minority_over_majority(features_gram(optimum, e_w, e_h)),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _minority_over_majority(gram: np.ndarray) -> float:
    """The length of the last vector over that of the first."""
    return math.sqrt(max(gram[-1, -1], 0) / gram[0, 0])


def features_gram(optimum: Optimum, e_w: float, e_h: float) -> np.ndarray:
    """HᵀH (K, K) of an optimum: √(E_H/E_W) (ZᵀZ)^½."""
    _, sizes, right = np.linalg.svd(optimum.logits)
    return math.sqrt(e_h / e_w) * (right.T * sizes) @ right


def factors(optimum: Optimum, e_w: float, e_h: float) -> tuple[np.ndarray, np.ndarray]:
    """Classifier rows W (K, K) and features H (K, K), class in columns, of an optimum; Z = W H."""
    left, sizes, right = np.linalg.svd(optimum.logits)
    root = np.sqrt(sizes)
    w = (e_w / e_h) ** 0.25 * left * root
    h = (e_h / e_w) ** 0.25 * root[:, None] * right
    return w, h


def simplex_gram(num_classes: int) -> np.ndarray:
    """S = K/(K−1) (I − 11ᵀ/K), (K, K): the Gram matrix of a simplex ETF of unit vectors."""
    return (np.eye(num_classes) - 1 / num_classes) * num_classes / (num_classes - 1)


def nuclear_budget(num_classes: int, e_w: float, e_h: float) -> float:
    """B, the radius of the nuclear-norm ball."""
    return num_classes * math.sqrt(e_w) * math.sqrt(e_h)


def class_weights(k_a: int, k_b: int, ratio: float) -> np.ndarray:
    """n_k/N (K,)."""
    counts = np.repeat([ratio, 1.0], [k_a, k_b])
    return counts / counts.sum()


def _cross_entropy(z: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """Σ_k weights_k CE(z[:, k], k) and its gradient, (K, K) each."""
    # (logsumexp − own) as log1p of the others, exact also where it is tiny
    margins = z - np.diag(z)
    np.fill_diagonal(margins, -np.inf)
    loss = float(weights @ np.logaddexp(0, scipy.special.logsumexp(margins, axis=0)))
    gradient = scipy.special.softmax(z, axis=0)
    np.fill_diagonal(gradient, 0)
    np.fill_diagonal(gradient, -gradient.sum(axis=0))
    return loss, gradient * weights


# --- the four numbers -----------------------------------------------------------------------------


def _solve(k_a: int, k_b: int, ratio: float, budget: float) -> _Symmetric:
    """The optimality conditions are solved for a given multiplier μ = λN/n_A in (0, 1); the nuclear
    norm falls with μ, and the μ that spends the budget is the solution."""
    if ratio >= _total_ratio(k_a, k_b, budget):
        return _Symmetric(budget / (k_a - 1), 0.0, 0.0, 0.0)

    def excess(log_mu: float) -> float:
        return _spent(k_a, k_b, _stationary(k_a, k_b, ratio, math.exp(log_mu))) - budget

    mu = math.exp(_decreasing_root(excess))
    solution = _stationary(k_a, k_b, ratio, mu)
    spent = _spent(k_a, k_b, solution)
    return _Symmetric(*(value * budget / spent for value in solution))


def _total_ratio(k_a: int, k_b: int, budget: float) -> float:
    """R0, divided by 1 − s_A throughout and computed in logarithms, since 1 − s_A is 1e-16 long
    before the budget is large."""
    # A single class has no other to be separated from once the minority is zero.
    if k_a == 1:
        return math.inf
    a = budget / (k_a - 1)
    log_q = math.log(k_b) + a / k_a
    share = scipy.special.expit(log_q - math.log(k_a))  # P_B/(1 − s_A)
    spare = 1 - (k_a + k_b) / k_b * share**2
    if spare <= 0:
        return math.inf
    log_sum = scipy.special.logsumexp([a, math.log(k_a - 1), log_q])
    log_rest = np.logaddexp(math.log(k_a), log_q) - log_sum
    log_ratio = 0.5 * math.log(k_a / (k_a + k_b) / spare)
    return _exp(max(log_ratio, 0.0) - log_rest)


def _exp(value: float) -> float:
    """Like math.exp; inf where it does not fit into a float."""
    return math.exp(value) if value < _LARGEST_EXPONENT else math.inf


def _spent(k_a: int, k_b: int, numbers: _Symmetric) -> float:
    """Nuclear norm of Z."""
    a, e, x, t = numbers
    return (k_a - 1) * a + (k_b - 1) * e + math.hypot(math.sqrt(k_a) * x, math.sqrt(k_b) * t)


def _stationary(k_a: int, k_b: int, ratio: float, mu: float) -> _Symmetric:
    """Solution of the optimality conditions for a multiplier μ = λN/n_A.

    With q = K_B e^{−v}, v = s x − a/K_A the margin between majority and minority logits,
    1 − s_A = μ gives a(v), and the gradient along x over μ is s ρ with ρ = q/(K_A + q). The same
    holds for the minority with μR in place of μ, unless μR ≥ 1, where e = 0. Both gradients
    together form a unit vector in the norm of the ball, (cos θ, sin θ); each θ gives everything in
    closed form, and x, t must lie in that same direction: one monotone equation in θ.
    """
    s = math.sqrt((k_a + k_b) / (k_a * k_b))
    steep = mu * ratio  # 1 − s_B at e = 0 is 1
    alone = k_a == 1
    frozen = k_b == 1 or steep >= 1
    shrink_major = mu if alone else 1.0
    shrink_minor = steep if frozen else 1.0
    limit = s * math.sqrt(k_b) / shrink_minor
    widest = math.pi / 2 if limit >= 1 else math.asin(limit)

    def at(where: float) -> tuple[_Symmetric, float, float]:
        """The four numbers at the angle that the logistic function gives, and its direction."""
        theta = widest * scipy.special.expit(where)
        along = math.cos(theta) / math.sqrt(k_a)
        across = math.sin(theta) / math.sqrt(k_b)
        q = _odds(along * shrink_major / s) * k_a
        q_minor = _odds(across * shrink_minor / s) * k_b
        a = 0.0 if alone else math.log1p((1 - mu) * (k_a + q) / mu)
        e = 0.0 if frozen else math.log1p((1 - steep) * (k_b + q_minor) / steep)
        x = (math.log(k_b / q) + a / k_a) / s
        t = (math.log(k_a / q_minor) + e / k_b) / s
        return _Symmetric(a, e, x, t), along, across

    def mismatch(where: float) -> float:
        numbers, along, across = at(where)
        return numbers.x * across - numbers.t * along

    root = scipy.optimize.brentq(mismatch, -36.0, 36.0, xtol=1e-14, rtol=8.9e-16)
    numbers, _, _ = at(root)
    if numbers.x >= 0 and numbers.t >= 0:
        return numbers
    return _Symmetric(_majority_only(k_a, k_b, mu), 0.0, 0.0, 0.0)


def _odds(p: float) -> float:
    """p/(1−p), finite where rounding makes p = 1."""
    return p / max(1 - p, 1e-16)


def _majority_only(k_a: int, k_b: int, mu: float) -> float:
    """a with 1 − s_A = μ where x = 0."""

    if mu >= 1 or k_a == 1:
        return 0.0

    def miss(a: float) -> float:
        minority = k_b * math.exp(a / k_a)
        return (k_a + minority) / (math.exp(a) + k_a - 1 + minority) - mu

    return scipy.optimize.brentq(miss, 0.0, _LARGEST_EXPONENT)


def _decreasing_root(function: Callable[[float], float]) -> float:
    """log μ < 0 where a decreasing function of it vanishes."""
    low = -1.0
    high = -1e-3
    while function(low) < 0:
        low *= 2
        if low < -_LARGEST_EXPONENT:
            return -_LARGEST_EXPONENT
    while function(high) > 0:
        high /= 10
        if high > -1e-15:
            return high
    return scipy.optimize.brentq(function, low, high, xtol=1e-16, rtol=8.9e-16)


def _matrices(k_a: int, k_b: int, numbers: _Symmetric) -> tuple[np.ndarray, np.ndarray]:
    """Z and (Z Zᵀ)^½."""
    a, e, x, t = numbers
    of_majority = a * (np.eye(k_a) - 1 / k_a)
    of_minority = e * (np.eye(k_b) - 1 / k_b)
    blocks = scipy.linalg.block_diag(of_majority, of_minority)
    u = np.repeat([1 / k_a, -1 / k_b], [k_a, k_b])
    u /= np.linalg.norm(u)
    size = math.hypot(math.sqrt(k_a) * x, math.sqrt(k_b) * t)
    z = blocks + np.outer(u, np.repeat([x, -t], [k_a, k_b]))
    return z, blocks + size * np.outer(u, u)


def _off_diagonal_cosine(gram: np.ndarray, tiny: float = 0.0) -> float:
    """Mean cosine between different vectors of a Gram matrix; NaN for fewer than two, or where one
    is zero."""
    squares = np.diag(gram)
    if len(gram) < 2 or squares.min() <= tiny:
        return math.nan
    cosines = gram / np.sqrt(np.outer(squares, squares))
    different = ~np.eye(len(gram), dtype=bool)
    return float(cosines[different].mean().clip(-1, 1))
