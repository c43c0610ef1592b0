"""A steep function: two DEQs come close to it with bounded weights, a network of one layer cannot.

The function is g(x) = δ/(1 + δ − x₁), δ = 2^−d. The weights of both equilibrium models have a bound
without d, those of a network of one hidden layer grow like 2^{d/2} (Wu et al. 2024, Theorem 2).

All of it is ours, in the role of the paper's equation (5), which is not available here.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from nclib.papers.separation_bias.regions import (
    Network,
    largest_weight,
    lower_triangular_equilibrium,
)

NETWORKS = ("triangular", "scalar", "fnn")
BISECTIONS = 15
"""log₂(1/ε) + log₂(b − a) on [−½, 3/2], rounded up; the formula is the rebuttal's."""


def steep_target(s: np.ndarray, d: int) -> np.ndarray:
    """g(x) = δ/(1 + δ − x₁) = δ/(δ + s) with δ = 2^−d, as a function of s = 1 − x₁ ≥ 0.

    1 at s = 0, near 0 for s ≫ δ; its largest slope is 2^d.

    Source: ours, consistent with all that is said of the paper's eq. (5).
    """
    delta = 2.0**-d
    return delta / (delta + np.asarray(s, dtype=float))


def _knots(eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Knots t_j and slope changes a_j of the interpolant of 1/(1 + t) at 1, 1 − 2ε, … , ε.

    It is flat beyond the last.
    """
    count = math.ceil((1 - eps) / (2 * eps) - 1e-12) + 1
    values = np.linspace(1, eps, count)
    t = 1 / values - 1
    slopes = np.concatenate([[0.0], np.diff(values) / np.diff(t), [0.0]])
    return t, np.diff(slopes)


def steep_deq_triangular(d: int, eps: float) -> Network:
    """A lower triangular DEQ within eps of `steep_target`, with weights that do not depend on d.

        t = σ((1 − δ) t + 1 − x₁) = (1 − x₁)/δ,   y = 1 + Σ_j a_j σ(t − t_j) ≈ 1/(1 + t)

    One neuron with a self-loop makes the slope 1/δ. Its price: plain iteration needs of the order
    of 1/δ steps, and I − W has the singular value δ or less.

    Parameters
    ----------
    d : δ = 2^−d
    eps : sup error, in (0, ¼)

    Returns
    -------
    W (n, n), u (n,), b (n,), a (n,) with z = σ(W z + u x₁ + b), y = a·z; n ≈ 1/(2 eps) + 2, weights
    at most 1/eps. `steep_values` evaluates it.

    Source: ours, in the role of Theorem 2 of Wu et al. (2024).
    """
    delta = 2.0**-d
    t, changes = _knots(eps)
    n = len(t) + 2
    w = np.zeros((n, n))
    u = np.zeros(n)
    b = np.zeros(n)
    # neuron 0: the amplifier
    w[0, 0] = 1 - delta
    u[0] = -1.0
    b[0] = 1.0
    # neuron 1: constant, because y = a·z has no bias
    b[1] = 1.0
    # the others: σ(t − t_j)
    w[2:, 0] = 1.0
    b[2:] = -t
    return w, u, b, np.concatenate([[0.0, 1.0], changes])


def steep_values(network: Network, s: np.ndarray) -> np.ndarray:
    """y of a lower triangular (W, u, b, a) at x₁ = 1 − s.

    1 − s itself is not formed: that would round s away.

    Parameters
    ----------
    network : of `steep_deq_triangular` or `steep_fnn`
    s : (N,)

    Returns
    -------
    (N,)
    """
    w, u, b, read_out = network
    injection = (u + b)[:, None] - np.outer(u, s)
    return read_out @ lower_triangular_equilibrium(w, injection)


def steep_deq_scalar(d: int, eps: float) -> Network:
    """A revised DEQ z = Vσ(W z + U x₁ + b) with one state, within eps of `steep_target`.

        z = z + c (S(z) − s),   s = 1 − x₁,   c = eps

    S interpolates g⁻¹(z) = δ(1/z − 1) at z = eps, 2 eps, …, 1, with slope −1/eps below and −δ
    above. It falls strictly, so the root is unique and lies in [−½, 3/2].

    Parameters
    ----------
    d : δ = 2^−d ≤ 2 eps
    eps : sup error, in (0, ¼)

    Returns
    -------
    v, w, u, b, (n,) each: width n ≈ 1/eps + 2 and weights at most 1/eps. `bisect_scalar` evaluates
    it.

    Source: ours, after the second part of Theorem 2 of Wu et al. (2024).
    """
    delta = 2.0**-d
    count = math.ceil((1 - eps) / eps - 1e-12) + 1
    knots = np.linspace(eps, 1, count)
    heights = delta * (1 / knots - 1)
    slopes = np.concatenate([[-1 / eps], np.diff(heights) / np.diff(knots), [-delta]])
    # S(z) = heights₀ + slopes₀ (z − eps) + Σ_j Δ_j σ(z − knots_j)
    offset = eps * (heights[0] - slopes[0] * eps)
    # Neuron 0 is (1 + c slopes₀) z − c s + offset, kept positive by a shift that the constant
    # neuron 1 takes away again.
    shift = 2.0
    zeros = np.zeros(len(knots))
    v = np.concatenate([[1.0, offset - shift], eps * np.diff(slopes)])
    w = np.concatenate([[1 + eps * slopes[0], 0.0], zeros + 1])
    u = np.concatenate([[eps, 0.0], zeros])
    b = np.concatenate([[shift - eps, 1.0], -knots])
    return v, w, u, b


def bisect_scalar(network: Network, s: np.ndarray) -> np.ndarray:
    """The equilibrium of `steep_deq_scalar` at x₁ = 1 − s, by 15 bisections of z − Vσ(·).

    Parameters
    ----------
    network : v, w, u, b
    s : (N,)

    Returns
    -------
    (N,) in [−½, 3/2]
    """
    v, w, u, b = network
    injection = (u + b)[:, None] - np.outer(u, s)
    low = np.full(s.shape, -0.5)
    high = np.full(s.shape, 1.5)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        value = v @ np.maximum(np.outer(w, middle) + injection, 0)
        root_is_below = middle - value > 0
        low = np.where(root_is_below, low, middle)
        high = np.where(root_is_below, middle, high)
    return (low + high) / 2


def steep_fnn(d: int, eps: float) -> Network:
    """A network of one hidden layer with the same knots, hence the same error.

    Its weights grow like 2^{d/2}: each neuron's scale is shared out evenly between its two layers,
    which makes the largest weight smallest.

    Parameters
    ----------
    d, eps : as of `steep_deq_triangular`

    Returns
    -------
    W = 0 (k, k), u (k,), b (k,), a (k,): y = a·σ(u x₁ + b); the first neuron is constant
    """
    delta = 2.0**-d
    t, changes = _knots(eps)
    scale = np.sqrt(np.abs(changes) / delta)
    u = np.append(0.0, -scale)
    b = np.append(1.0, scale * (1 - delta * t))
    read_out = np.append(1.0, np.sign(changes) * scale)
    return np.zeros((len(u), len(u))), u, b, read_out


def fnn_weight_bound(d: int, width: int, depth: int, eps: float) -> float:
    """Least largest weight of a network of H hidden layers and width k within eps of the target.

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
    """s = 1 − x₁ in [0, 1]: half evenly spaced, half evenly in the logarithm, where g changes."""
    even = np.linspace(0, 1, count)
    logarithmic = np.geomspace(2.0**-d / 30, 1, count)
    return np.unique(np.concatenate([even, logarithmic]))


def steep_table(ds: Sequence[int], eps: float) -> pd.DataFrame:
    """The three constructions at each d.

    Parameters
    ----------
    ds : the d
    eps : sup error, in (0, ¼)

    Returns
    -------
    DataFrame
        d, and for triangular, scalar and fnn the sup error, largest weight and width; with
        fnn_bound, `fnn_weight_bound` at the FNN's own width and error, and picard_steps, how many
        plain iterations the triangular one's amplifier needs for a relative error of 1e-3

    Examples
    --------
    >>> table = steep_table([6, 10], 0.05)
    >>> bool((table["triangular_error"] <= 0.05 + 1e-12).all())
    True
    """
    rows = []
    for d in ds:
        s = steep_points(d)
        triangular = steep_deq_triangular(d, eps)
        scalar = steep_deq_scalar(d, eps)
        fnn = steep_fnn(d, eps)
        networks = {
            "triangular": (triangular, steep_values(triangular, s)),
            "scalar": (scalar, bisect_scalar(scalar, s)),
            "fnn": (fnn, steep_values(fnn, s)),
        }
        row = {"d": d}
        for name, (network, values) in networks.items():
            row[f"{name}_error"] = float(np.abs(values - steep_target(s, d)).max())
            row[f"{name}_weight"] = float(largest_weight(network))
            row[f"{name}_width"] = len(network[-1])
        error = min(row["fnn_error"], 0.2499)
        row["fnn_bound"] = fnn_weight_bound(d, row["fnn_width"], 1, error)
        row["picard_steps"] = math.ceil(math.log(1e3) / -math.log1p(-(2.0**-d)))
        rows.append(row)
    return pd.DataFrame(rows)
