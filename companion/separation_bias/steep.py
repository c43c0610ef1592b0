"""A steep function by networks with small and with large weights, exactly (Wu et al. 2024, Theorem 2).

Each construction comes within eps of g(x) = δ/(1 + δ − x₁), δ = 2^−d: two equilibrium models whose weights stay
below a bound without d, and a network of one hidden layer whose weights grow like 2^{d/2}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from companion.separation_bias.regions import lower_triangular_equilibrium


def steep_target(s: np.ndarray, d: int) -> np.ndarray:
    """g(x) = δ/(1 + δ − x₁) = δ/(δ + s) with δ = 2^−d, as a function of s = 1 − x₁ ≥ 0.

    1 at s = 0, near 0 for s ≫ δ; its largest slope is 2^d. Source: ours, consistent with all that is said of the
    paper's eq. (5).
    """
    delta = 2.0**-d
    return delta / (delta + np.asarray(s, dtype=float))


def _knots(eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Knots t_j and slope changes a_j of the interpolant of 1/(1 + t) at the values 1, 1 − 2ε, … , ε; flat beyond."""
    values = np.linspace(1, eps, math.ceil((1 - eps) / (2 * eps) - 1e-12) + 1)
    t = 1 / values - 1
    slopes = np.concatenate([[0.0], np.diff(values) / np.diff(t), [0.0]])
    return t, np.diff(slopes)


def steep_deq_triangular(d: int, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A lower triangular DEQ within eps of `steep_target` in sup norm, with weights that do not depend on d.

        t = σ((1 − δ) t + 1 − x₁) = (1 − x₁)/δ,   y = 1 + Σ_j a_j σ(t − t_j) ≈ 1/(1 + t)

    One neuron with a self-loop makes the slope 1/δ. Its price: plain iteration needs of the order of 1/δ steps, and
    I − W has the singular value δ or less.

    Parameters
    ----------
    d : δ = 2^−d
    eps : sup error, in (0, ¼)

    Returns
    -------
    W (n, n), u (n,), b (n,), a (n,) with z = σ(W z + u x₁ + b), y = a·z; n ≈ 1/(2 eps) + 2, weights at most 1/eps.
    `steep_values` evaluates it.

    Source: ours, in the role of Theorem 2 of Wu et al. (2024).
    """
    delta, (t, a) = 2.0**-d, _knots(eps)
    n = len(t) + 2
    w, u, b = np.zeros((n, n)), np.zeros(n), np.zeros(n)
    w[0, 0], u[0], b[0] = 1 - delta, -1.0, 1.0
    b[1] = 1.0  # a constant neuron, because y = a·z has no bias
    w[2:, 0], b[2:] = 1.0, -t
    return w, u, b, np.concatenate([[0.0, 1.0], a])


def steep_values(net: Sequence[np.ndarray], s: np.ndarray) -> np.ndarray:
    """y of a lower triangular (W, u, b, a) at x₁ = 1 − s, without forming 1 − s, which would round s away: (N,)."""
    w, u, b, a = net
    return a @ lower_triangular_equilibrium(w, (u + b)[:, None] - np.outer(u, s))


class ScalarDEQ(NamedTuple):
    """A revised DEQ z = Vσ(W z + U x₁ + b) with a single state: v, w, u, b are (n,)."""

    v: np.ndarray
    w: np.ndarray
    u: np.ndarray
    b: np.ndarray


def steep_deq_scalar(d: int, eps: float) -> ScalarDEQ:
    """A revised DEQ with one state within eps of `steep_target` in sup norm, solved by bisection.

        z = z + c (S(z) − s),   s = 1 − x₁,   c = eps

    S interpolates g⁻¹(z) = δ(1/z − 1) at z = eps, 2 eps, …, 1, with slope −1/eps below and −δ above. It falls strictly,
    so the root is unique and lies in [−½, 3/2].

    Parameters as in `steep_deq_triangular`; 2^−d ≤ 2 eps.

    Returns
    -------
    ScalarDEQ of width ≈ 1/eps + 2 with weights at most 1/eps. `bisect_scalar` evaluates it.

    Source: ours, after the second part of Theorem 2 of Wu et al. (2024).
    """
    delta = 2.0**-d
    knots = np.linspace(eps, 1, math.ceil((1 - eps) / eps - 1e-12) + 1)
    heights = delta * (1 / knots - 1)
    slopes = np.concatenate([[-1 / eps], np.diff(heights) / np.diff(knots), [-delta]])
    # S(z) = heights₀ + slopes₀ (z − eps) + Σ_j Δ_j σ(z − knots_j)
    c = eps
    offset = c * (heights[0] - slopes[0] * eps)
    # (1 + c slopes₀) z − c s + offset, kept positive by a shift that the constant neuron takes away again
    linear, shift = 1 + c * slopes[0], 2.0
    v = np.concatenate([[1.0, offset - shift], c * np.diff(slopes)])
    w = np.concatenate([[linear, 0.0], np.ones(len(knots))])
    u = np.concatenate([[c, 0.0], np.zeros(len(knots))])
    b = np.concatenate([[shift - c, 1.0], -knots])
    return ScalarDEQ(v, w, u, b)


def bisect_scalar(net: ScalarDEQ, s: np.ndarray, steps: int = 15) -> np.ndarray:
    """The equilibrium of a `ScalarDEQ` at x₁ = 1 − s by bisection of z − Vσ(·) on [−½, 3/2]: (N,), within 2^−steps.

    Source: the number of steps, log₂(1/ε) + log₂(b − a), is the rebuttal's.
    """
    s = np.asarray(s, dtype=float)
    injection = (net.u + net.b)[:, None] - np.outer(net.u, s)
    low, high = np.full(s.shape, -0.5), np.full(s.shape, 1.5)
    for _ in range(steps):
        middle = (low + high) / 2
        above = middle - net.v @ np.maximum(np.outer(net.w, middle) + injection, 0) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


def steep_fnn(d: int, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A network of one hidden layer with the same knots, hence the same error, whose weights grow like 2^{d/2}.

    Each neuron's scale is shared out evenly between its two layers, which makes the largest weight smallest.

    Returns
    -------
    u (k,), b (k,), a (k,): y = a·σ(u x₁ + b); the first neuron is constant. As a DEQ its W is 0.
    """
    delta, (t, a) = 2.0**-d, _knots(eps)
    scale = np.sqrt(np.abs(a) / delta)
    u, b = np.append(0.0, -scale), np.append(1.0, scale * (1 - delta * t))
    return u, b, np.append(1.0, np.sign(a) * scale)


def fnn_weight_bound(d: int, width: int, depth: int, eps: float) -> float:
    """Least largest weight of a network of H hidden layers and width k within eps of `steep_target`.

        M ≥ ( (½ − 2ε) 2^d / k^H )^{1/(H+1)}

    Its slope is at most k^H M^{H+1}, and g falls by ½ over δ.

    Parameters
    ----------
    d : δ = 2^−d
    width, depth : k and H, the number of hidden layers, at least 1 each
    eps : sup error, in (0, ¼)

    Source: derived here.
    """
    return ((0.5 - 2 * eps) / 2.0**-d / float(width) ** depth) ** (1 / (depth + 1))


def steep_points(d: int, count: int = 4001) -> np.ndarray:
    """s = 1 − x₁ in [0, 1]: half evenly spaced, half evenly in the logarithm from 2^−d/30 on, where g changes."""
    return np.unique(np.concatenate([np.linspace(0, 1, count), np.geomspace(2.0**-d / 30, 1, count)]))


def largest_weight(*parts: np.ndarray) -> float:
    """Largest absolute entry of all arrays."""
    return float(max(np.abs(part).max() for part in parts))


def steep_table(ds: Sequence[int], eps: float, bisections: int = 15) -> pd.DataFrame:
    """The three constructions at each d: d, and for triangular, scalar and fnn the sup error, largest weight and width;
    with fnn_bound, `fnn_weight_bound` at the FNN's own width and error, and picard_steps, how many plain iterations the
    triangular one's amplifier needs for a relative error of 1e-3."""
    if not 0 < eps < 0.25:
        raise ValueError(f"eps = {eps}: give a sup error between 0 and 1/4 (a constant reaches 1/2)")
    rows = []
    for d in ds:
        s = steep_points(d)
        g = steep_target(s, d)
        triangular, scalar, fnn = steep_deq_triangular(d, eps), steep_deq_scalar(d, eps), steep_fnn(d, eps)
        flat = np.zeros((len(fnn[0]), len(fnn[0])))
        found = {
            "triangular": (steep_values(triangular, s), triangular, len(triangular[1])),
            "scalar": (bisect_scalar(scalar, s, bisections), scalar, len(scalar.v)),
            "fnn": (steep_values((flat, *fnn), s), fnn, len(fnn[0])),
        }
        row = {"d": d}
        for name, (values, parts, width) in found.items():
            row |= {f"{name}_error": float(np.abs(values - g).max()), f"{name}_weight": largest_weight(*parts)}
            row |= {f"{name}_width": width}
        row["fnn_bound"] = fnn_weight_bound(d, row["fnn_width"], 1, min(row["fnn_error"], 0.2499))
        row["picard_steps"] = math.ceil(math.log(1e3) / -math.log1p(-(2.0**-d)))
        rows.append(row)
    return pd.DataFrame(rows)
