"""What equilibrium models can express and what they prefer to learn: the constructions of Wu et al. (2024) and their
theory, exactly.

    z = σ(W z + u x₁ + b),   y = a·z,   σ = ReLU

Matrices and vectors are numpy in float64. W is lower triangular in every construction, so an equilibrium is found by
forward substitution, also where a neuron feeds itself (w_tt < 1): z = σ(w z + p) is σ(p)/(1 − w).

The printed equations (5), (9) and (13)–(15) are not at hand here: what rests on the discussion of the paper is marked
with the source "rebuttal", what was derived or chosen here with "ours".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from nclib.models import Classifier
from nclib.solver import FixedPointIteration, fixed_point

LARGEST_LEVEL = 52
"""Sawtooth levels m up to which float64 holds the weights and the dyadic points between two kinks."""
_MOST_REGIONS = 1 << 20


# ---------------------------------------------------------------------------------------------- linear regions


def _level(m: int) -> int:
    if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 1:
        raise ValueError(f"m={m!r}: the number of neurons is an integer of at least 1")
    if m > LARGEST_LEVEL:
        beyond = "overflow float64" if m > 1022 else "need more than the 53 binary digits of float64"
        raise ValueError(
            f"m={m}: weights of size 2^{m} and kinks 2^-{m} apart {beyond}; use m ≤ {LARGEST_LEVEL}, up to which "
            "everything is exact"
        )
    return int(m)


def linear_regions_deq(m: int, eta: float | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A DEQ of width m with exactly 2^m linear regions on [0, 1].

        z_t = σ(2^t x − Σ_{i<t} 2^{t−i+1} z_i − 1),   t = 1 … m

    The pre-activation of neuron t is a triangle wave that crosses 0 at the odd multiples of 2^−t, so the neurons
    together have 2^m − 1 kinks. No well-posed ReLU DEQ of width m has more regions: each pattern of active neurons
    allows one affine solution on one convex set.

    Parameters
    ----------
    m : width, 1 … 52
    eta : None for the weights above. A number for the balanced form 2^−t z_t, whose weights are −2(1 − eta), 1 and
        −2^−t: the same function at eta = 0, where ½[(I−W) + (I−W)ᵀ] = 11ᵀ ⪰ 0; above 0 the DEQ is strongly monotone
        (⪰ eta I), and loses regions as eta grows

    Returns
    -------
    W (m, m) strictly lower triangular, u (m,), b (m,)

    Raises
    ------
    ValueError
        For m that is no integer in 1 … 52, or eta outside [0, 1).

    Source: Wu et al. (2024), Proposition 1, weights from the rebuttal; the balanced form is ours.
    """
    m = _level(m)
    t = np.arange(1, m + 1)
    if eta is None:
        w = np.tril(-np.exp2(t[:, None] - t[None, :] + 1.0), -1)
        return w, np.exp2(t.astype(float)), -np.ones(m)
    if not 0 <= eta < 1:
        raise ValueError(f"eta={eta!r} must lie in [0, 1); eta=0 is the construction itself, balanced")
    return np.tril(np.full((m, m), -2 * (1 - eta)), -1), np.ones(m), -np.exp2(-t.astype(float))


def sawtooth_deq(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A DEQ of width m + 1 that equals the m-fold tent map T^m on [0, 1], T(x) = 2 min(x, 1 − x).

        T^m(x) = 2^m σ(x) − Σ_{i≤m} 2^{m+1−i} z_i

    with the neurons of `linear_regions_deq`. The first neuron passes x through, because y = a·z has no skip.

    Returns
    -------
    W (m+1, m+1), u (m+1,), b (m+1,), a (m+1,)

    Raises
    ------
    ValueError
        For m that is no integer in 1 … 52.

    Source: derived here from Proposition 1 of Wu et al. (2024).
    """
    inner, u, b = linear_regions_deq(m)
    w = np.zeros((m + 1, m + 1))
    w[1:, 1:] = inner
    a = np.concatenate([[2.0**m], -np.exp2(m + 1.0 - np.arange(1, m + 1))])
    return w, np.concatenate([[1.0], u]), np.concatenate([[0.0], b]), a


def tent_map(x: np.ndarray, m: int) -> np.ndarray:
    """T^m(x), the sawtooth with 2^m linear pieces, from its definition; x in [0, 1]. T^0 is x."""
    y = np.asarray(x, dtype=float)
    for _ in range(m):
        y = 2 * np.minimum(y, 1 - y)
    return y


def lower_triangular_equilibrium(w: np.ndarray, injection: np.ndarray) -> np.ndarray:
    """The equilibrium of z = σ(W z + injection) for lower triangular W with diagonal below 1, by forward substitution.

    Parameters
    ----------
    w : (n, n)
    injection : (n, N), for instance ``np.outer(u, x) + b[:, None]``

    Returns
    -------
    (n, N)

    Raises
    ------
    ValueError
        Where W has entries above its diagonal, or a self-loop of 1 or more, whose equilibrium need not exist.
    """
    w = np.asarray(w, dtype=float)
    if np.triu(w, 1).any():
        raise ValueError("W has entries above its diagonal: forward substitution needs a lower triangular matrix")
    loops = np.diag(w)
    if (loops >= 1).any():
        raise ValueError(f"a self-loop of {loops.max():g}: it must be below 1 for the equilibrium to exist and be one")
    z = np.zeros_like(np.asarray(injection, dtype=float))
    for t in range(len(w)):
        z[t] = np.maximum(w[t, :t] @ z[:t] + injection[t], 0) / (1 - loops[t])
    return z


class Iterated(NamedTuple):
    """What plain iteration from 0 did: equilibria z (n, N), the number of iterations after which nothing changes any
    more, and the largest relative residual then."""

    z: np.ndarray
    iterations: int
    residual: float


def iterate_from_zero(w: np.ndarray, u: np.ndarray, b: np.ndarray, x: np.ndarray, most: int = 1000) -> Iterated:
    """Plain fixed-point iteration of z = σ(W z + u x + b) from z = 0, to the last bit, by `nclib.solver`.

    Parameters
    ----------
    w, u, b : (n, n), (n,), (n,)
    x : (N,) inputs
    most : iterations allowed

    Returns
    -------
    Iterated; a strictly lower triangular W needs at most n iterations, as the k-th is exact in the first k neurons
    """
    weight, start = torch.from_numpy(np.asarray(w, dtype=float)), torch.zeros(len(x), len(b), dtype=torch.float64)
    injection = torch.from_numpy(np.outer(x, u) + b)
    solver = FixedPointIteration(tol=1e-300, max_steps=most + 1)  # a residual of 0 and nothing else
    found = fixed_point(lambda z, c: F.relu(z @ weight.T + c), solver, start, (injection,))
    # the last call only finds that nothing changes
    return Iterated(found.value.T.numpy(), int(found.steps.max()) - 1, float(found.residual.max()))


def fnn_as_deq(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """A feed-forward ReLU network of one input as a DEQ of as many neurons: W block sub-diagonal, read-out on the last.

    Parameters
    ----------
    weights : W_1 (k, 1), W_2 … W_H (k, k), W_{H+1} (1, k)
    biases : of the H hidden layers, (k,) each

    Returns
    -------
    W (n, n), u (n,), b (n,), a (n,) with n neurons in all

    Source: Wu et al. (2024), section 3.
    """
    sizes = [len(bias) for bias in biases]
    ends = np.cumsum([0, *sizes])
    w, u, a = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1]), np.zeros(ends[-1])
    u[: sizes[0]] = weights[0][:, 0]
    for layer in range(1, len(sizes)):
        w[ends[layer] : ends[layer + 1], ends[layer - 1] : ends[layer]] = weights[layer]
    a[ends[-2] :] = weights[-1][0]
    return w, u, np.concatenate(biases), a


def count_regions(
    w: np.ndarray, u: np.ndarray, b: np.ndarray, a: np.ndarray | None = None, most: int = _MOST_REGIONS
) -> int:
    """How many linear regions z = σ(W z + u x + b) has on x ∈ [0, 1], for lower triangular W.

    Neuron by neuron, every interval is cut where a pre-activation crosses 0; what is left is affine. Exact as long as
    the crossings are, which for `linear_regions_deq` are dyadic.

    Parameters
    ----------
    w, u, b : (n, n), (n,), (n,)
    a : None counts intervals of one activation pattern; (n,) counts the affine pieces of y = a·z, intervals whose
        slopes differ by more than rounding
    most : more intervals than this are refused

    Returns
    -------
    int between 1 and 2^n

    Raises
    ------
    ValueError
        Where W is not lower triangular or there are more than `most` intervals.

    Source: the count is ours; that a DEQ of width n has at most 2^n regions is in Wu et al. (2024).
    """
    w = np.asarray(w, dtype=float)
    if np.triu(w, 1).any() or (np.diag(w) >= 1).any():
        raise ValueError("regions are counted for lower triangular W with self-loops below 1")
    # each neuron as slope and intercept on each of the intervals [edges[j], edges[j+1]]
    edges = np.array([0.0, 1.0])
    slopes, values = np.zeros((0, 1)), np.zeros((0, 1))
    for t in range(len(w)):
        slope, value = w[t, :t] @ slopes + u[t], w[t, :t] @ values + b[t]
        left, right = slope * edges[:-1] + value, slope * edges[1:] + value
        cut = np.flatnonzero(left * right < 0)
        if len(cut) + len(slope) > most:
            raise ValueError(
                f"more than {most} regions after {t + 1} of {len(w)} neurons; count a smaller network, or raise most"
            )
        pieces = np.sort(np.concatenate([np.arange(len(slope)), cut]))
        edges = np.sort(np.concatenate([edges, -value[cut] / slope[cut]]))
        slopes, values, slope, value = slopes[:, pieces], values[:, pieces], slope[pieces], value[pieces]
        active = slope * (edges[:-1] + edges[1:]) / 2 + value > 0
        gain = active / (1 - w[t, t])
        slopes, values = np.vstack([slopes, gain * slope]), np.vstack([values, gain * value])
    if a is None:
        return len(edges) - 1
    final = np.asarray(a, dtype=float) @ slopes
    scale = np.abs(a) @ np.abs(slopes)
    return 1 + int(np.sum(np.abs(np.diff(final)) > 1e-9 * np.maximum(scale[1:], scale[:-1])))


def sawtooth_l1_bound(m: int, pieces: int) -> float:
    """Least L¹[0, 1] distance of a continuous function with so many affine pieces from T^m.

        ¼ (1 − (P − 1)/2^{m−1})

    A tooth without a breakpoint inside costs at least a quarter of its width (the best affine fit is a constant).
    Negative values say nothing.

    Source: derived here, sharper than Telgarsky-type constants; plays the part of Theorem 1 of Wu et al. (2024).
    """
    return 0.25 * (1 - (pieces - 1) / 2.0 ** (m - 1))


def fnn_width_needed(m: int, hidden_layers: int) -> float:
    """Width below which no ReLU network of one input and H hidden layers comes within 1/8 of T^m in L¹.

        (k + 1)^H ≤ 2^{m−2}  ⇒  ‖T^m − f‖ ≥ 1/8,   so  k ≥ 2^{(m−2)/H} − 1 is needed

    Source: derived here; such a network has at most (k + 1)^H pieces. A DEQ needs m + 1 neurons.
    """
    return 2.0 ** ((m - 2) / hidden_layers) - 1


def regions_table(levels: Sequence[int]) -> pd.DataFrame:
    """The construction at each level m.

    Columns m, regions, pieces (of y = 1·z), iterations (from 0), residual, restart (whether one more iteration from the
    equilibrium changes anything, 0 or 1), sawtooth_error (largest |a·z − T^m| of `sawtooth_deq`), largest_weight and
    balanced_weight (hidden weights of both forms). Regions are counted up to m = 16, NaN beyond.

    Evaluated at (j + ¼)/2^m and (j + ¾)/2^m for all j, for m > 11 for 2048 random ones, where all arithmetic is exact.
    """
    rows = []
    for m in levels:
        w, u, b = linear_regions_deq(m)
        x = _inside_the_pieces(m)
        found = iterate_from_zero(w, u, b, x)
        again = np.maximum(w @ found.z + np.outer(u, x) + b[:, None], 0)
        saw = sawtooth_deq(m)
        z = iterate_from_zero(*saw[:3], x).z
        error = float(np.abs(saw[3] @ z - tent_map(x, m)).max())
        countable = m <= 16
        counts = [count_regions(w, u, b, a) if countable else np.nan for a in (None, np.ones(m))]
        largest, balanced = (
            max(np.abs(part).max() for part in parts) for parts in ((w, u, b), linear_regions_deq(m, eta=0))
        )
        changed = int((again != found.z).any())
        rows.append((m, *counts, found.iterations, found.residual, changed, error, largest, balanced))
    names = ["m", "regions", "pieces", "iterations", "residual", "restart", "sawtooth_error"]
    return pd.DataFrame(rows, columns=[*names, "largest_weight", "balanced_weight"])


def _inside_the_pieces(m: int) -> np.ndarray:
    """Two points of each of the 2^m pieces, or of some of them, one where there is no binary digit for two: dyadic, and
    never a kink."""
    j = np.arange(2**m) if m <= 11 else np.random.default_rng(m).integers(0, 2**m, size=2048)
    inside = (0.25, 0.75) if m < LARGEST_LEVEL else (0.5,)
    return np.sort(np.concatenate([(j + part) / 2.0**m for part in inside]))


def random_fnn_table(m: int, shapes: Sequence[tuple[int, int]], draws: int, seed: int = 0) -> pd.DataFrame:
    """Random ReLU networks of one input: their pieces against the bound, their L¹ distance from T^m against the bound.

    shapes: (k, H), width and hidden layers. A row for each: k, H, bound (k + 1)^H, most (pieces of the best draw), and
    margin, the least of ‖T^m − f‖ − `sawtooth_l1_bound` over the draws, f scaled to T^m by least squares.
    """
    stream = np.random.default_rng(seed)
    x = (np.arange(1 << (m + 6)) + 0.5) / (1 << (m + 6))
    target = tent_map(x, m)
    rows = []
    for k, layers in shapes:
        most, margin = 0, math.inf
        for _ in range(draws):
            weights = [stream.normal(size=(k, k if i else 1)) for i in range(layers)] + [stream.normal(size=(1, k))]
            net = fnn_as_deq(weights, [stream.normal(size=k) for _ in range(layers)])
            pieces = count_regions(*net)
            y = net[3] @ lower_triangular_equilibrium(net[0], np.outer(net[1], x) + net[2][:, None])
            basis = np.stack([y, np.ones_like(y)], axis=1)
            fit = basis @ np.linalg.lstsq(basis, target, rcond=None)[0]
            most = max(most, pieces)
            margin = min(margin, float(np.abs(target - fit).mean()) - sawtooth_l1_bound(m, pieces))
        rows.append((k, layers, (k + 1) ** layers, most, margin))
    return pd.DataFrame(rows, columns=["k", "H", "bound", "most", "margin"])


# ---------------------------------------------------------------------------------------------- a steep function


def steep_target(s: np.ndarray, d: int) -> np.ndarray:
    """g(x) = δ/(1 + δ − x₁) = δ/(δ + s) with δ = 2^−d, as a function of s = 1 − x₁ ≥ 0.

    1 at s = 0, near 0 for s ≫ δ; its largest slope is 2^d. Source: ours, consistent with all that is said of the
    paper's eq. (5).
    """
    delta = 2.0**-d
    return delta / (delta + np.asarray(s, dtype=float))


def _steep(d: int, eps: float) -> tuple[float, float]:
    if isinstance(d, bool) or not isinstance(d, (int, np.integer)) or not 1 <= d <= 1022:
        raise ValueError(f"d={d!r}: an integer from 1 to 1022, as the slope 2^d must fit into float64")
    if not 0 < eps < 0.25:
        raise ValueError(f"eps={eps!r}: a sup error between 0 and 1/4 (a constant reaches 1/2)")
    return 2.0 ** -int(d), float(eps)


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

    Raises
    ------
    ValueError
        For d outside 1 … 1022 or eps outside (0, ¼).

    Source: ours, in the role of Theorem 2 of Wu et al. (2024).
    """
    delta, eps = _steep(d, eps)
    t, a = _knots(eps)
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

    Parameters and errors as in `steep_deq_triangular`; 2^−d ≤ 2 eps.

    Returns
    -------
    ScalarDEQ of width ≈ 1/eps + 2 with weights at most 1/eps. `bisect_scalar` evaluates it.

    Source: ours, after the second part of Theorem 2 of Wu et al. (2024).
    """
    delta, eps = _steep(d, eps)
    if delta > 2 * eps:
        raise ValueError(f"2^-{d} = {delta:g} is larger than 2 eps = {2 * eps:g}: nothing is steep here; raise d")
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
    delta, eps = _steep(d, eps)
    t, a = _knots(eps)
    scale = np.sqrt(np.abs(a) / delta)
    u = -scale
    b = scale * (1 - delta * t)
    return (
        np.concatenate([[0.0], u]),
        np.concatenate([[1.0], b]),
        np.concatenate([[1.0], np.sign(a) * scale]),
    )


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
    delta, eps = _steep(d, eps)
    if width < 1 or depth < 1:
        raise ValueError(f"width={width} and depth={depth} (hidden layers) must be at least 1")
    return ((0.5 - 2 * eps) / delta / float(width) ** depth) ** (1 / (depth + 1))


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


# ---------------------------------------------------------------------------------------------- implicit regulariser


def _problem(x: np.ndarray, y: np.ndarray, beta0: np.ndarray | float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x.ndim != 2 or y.shape != (len(x),):
        raise ValueError(f"need x (N, d) and y (N,), got {x.shape} and {y.shape}")
    if len(x) > x.shape[1] or np.linalg.matrix_rank(x) < len(x):
        raise ValueError(f"x {x.shape} must have full row rank, N ≤ d: otherwise the data cannot all be fitted")
    start = np.broadcast_to(np.asarray(beta0, dtype=float), (x.shape[1],)).copy()
    if not np.isfinite(start).all() or (start == 0).any():
        raise ValueError("every entry of beta0 must be finite and not 0; its sign is kept for ever")
    return x, y, start


def orthant_margin(x: np.ndarray, y: np.ndarray, signs: np.ndarray | float = 1.0) -> float:
    """Largest τ ≤ 1 such that some β with Xβ = y has sign_i β_i ≥ τ for all i; −inf where there is no interpolator.

    The flow of a diagonal DEQ keeps its signs, so it can only fit where this is positive.
    """
    x = np.asarray(x, dtype=float) * np.sign(signs)
    d = x.shape[1]
    equal = np.hstack([x, x.sum(axis=1, keepdims=True)])  # β = γ + τ with γ ≥ 0
    found = scipy.optimize.linprog(
        np.append(np.zeros(d), -1.0), A_eq=equal, b_eq=y, bounds=[(0, None)] * d + [(None, 1.0)], method="highs"
    )
    return float(found.x[-1]) if found.status == 0 else -math.inf


def _refuse_infeasible(x: np.ndarray, y: np.ndarray, start: np.ndarray) -> None:
    margin = orthant_margin(x, y, start)
    if margin <= 1e-9:
        raise ValueError(
            f"no interpolator has the signs of beta0 (margin {margin:.1e}), and a diagonal DEQ cannot change a sign: "
            "it will not fit these data. Change the signs of beta0, or the data"
        )


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
    ValueError
        For shapes that do not fit, or where no interpolator has the signs of beta0, so that the flow cannot fit.
    RuntimeError
        When the flow has not arrived after a very long time.

    Source: Wu et al. (2024), eq. (9) and section 5; signs as in the rebuttal.
    """
    x, y, start = _problem(x, y, beta0)
    _refuse_infeasible(x, y, start)
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
    x, y, start = _problem(x, y, beta0)
    _refuse_infeasible(x, y, start)
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

    The comparison of `diagonal_flow`; small β(0) prefers sparse solutions. Errors as there.

    Source: Woodworth et al. (2020), the entropic regulariser of the squared parametrisation.
    """
    x, y, start = _problem(x, y, beta0)
    if (start < 0).any():
        raise ValueError("the squared parametrisation is positive: give beta0 > 0")
    _refuse_infeasible(x, y, start)

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

    values: any shape; the ratio is taken along `axis`.
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


# ---------------------------------------------------------------------------------------------- the unseen half


class Unseen(NamedTuple):
    """Limit of training without the points x_k = −1: β_k, the bias, and GOTU, the mean squared error on those."""

    beta: float
    bias: float
    gotu: float


GotuModel = Literal["network", "deq", "deq_bias_feature"]


def gotu_diagonal(
    f_empty: float, f_k: float, model: GotuModel = "deq", beta0: float | None = None, bias0: float = 0.0
) -> Unseen:
    """Generalisation on the unseen of diagonal linear models, exact gradient flow.

    Target f(x) = f̂(∅) + Σ_i f̂({i}) x_i, trained on the points with x_k = 1 alone. There only b + β_k is determined: it
    goes to c = f̂(∅) + f̂({k}), and

        GOTU = E[(f_θ − f)² | x_k = −1] = 4 (f̂({k}) − β_k)²

    "network"           β = u ⊙ v, u = v:  β_k = β(0) e^{−2V},         b = b(0) − V
    "deq"               β = 1/(1 − w):     β_k = (β(0)^−3 + 3V)^−1/3,  b = b(0) − V
    "deq_bias_feature"  the bias is a diagonal DEQ feature as well:  β_k = b = c/2 for equal starts

    with V fixed by b + β_k = c.

    Parameters
    ----------
    f_empty, f_k : f̂(∅) and f̂({k})
    model : as above
    beta0 : β(0) > 0; None for the natural start, 10^−6 for the network (u = v = 10^−3) and 1 for the DEQ (w = 0)
    bias0 : b(0), of the first two

    Returns
    -------
    Unseen

    Raises
    ------
    ValueError
        For an unknown model, a start that is not positive, or "deq_bias_feature" with c ≤ 0, which it cannot fit.

    Source: the setting is Abbe et al. (2023); the flows are derived here. Wu et al. (2024) claim that the DEQ's GOTU
    is smaller; which bias they use is not known here.
    """
    c = f_empty + f_k
    start = (1e-6 if model == "network" else 1.0) if beta0 is None else beta0
    if not 0 < start < math.inf:
        raise ValueError(f"beta0={beta0!r} must be positive: neither model can leave 0 or change its sign")
    if model == "deq_bias_feature":
        if c <= 0:
            raise ValueError(f"f̂(∅) + f̂(k) = {c:g}: two positive features cannot add up to that; use model 'deq'")
        beta = bias = c / 2
    elif model in ("network", "deq"):
        # in terms of log β everything stays finite: V is a decreasing function of β
        def spent(log_beta: float) -> float:
            if model == "network":
                return (math.log(start) - log_beta) / 2
            return (math.exp(-3 * log_beta) - start**-3.0) / 3

        def excess(log_beta: float) -> float:
            return bias0 - spent(log_beta) + math.exp(log_beta) - c

        low = high = math.log(start)
        while excess(low) > 0:
            low -= 1.0 if low > -200 else 100.0
        while excess(high) < 0:
            high += 1.0
        root = scipy.optimize.brentq(excess, low, high, xtol=1e-15, rtol=1e-14) if low < high else low
        beta, bias = math.exp(root), bias0 - spent(root)
    else:
        raise ValueError(f"model {model!r} is none of network, deq, deq_bias_feature")
    return Unseen(beta, bias, 4 * (f_k - beta) ** 2)


GOTU_CASES = ((0.0, 1.0), (0.0, 2.0), (0.5, 1.0), (0.0, 0.5), (0.0, 0.25), (1.0, 1.0), (2.0, 0.5), (3.0, 2.0))
"""(f̂(∅), f̂({k})) of `gotu_table`."""


def gotu_table(cases: Sequence[tuple[float, float]] = GOTU_CASES) -> pd.DataFrame:
    """GOTU of the diagonal network and of both diagonal DEQs at natural starts, a row for each case: f_empty, f_k,
    network, deq, deq_bias_feature, and predicted, whether 0 < β_k < 2 f̂({k}), the condition under which "deq" must be
    the better one."""
    rows = []
    for f_empty, f_k in cases:
        found = {name: gotu_diagonal(f_empty, f_k, name) for name in ("network", "deq", "deq_bias_feature")}
        predicted = 0 < found["deq"].beta < 2 * f_k
        rows.append((f_empty, f_k, *(value.gotu for value in found.values()), predicted))
    return pd.DataFrame(rows, columns=["f_empty", "f_k", "network", "deq", "deq_bias_feature", "predicted"])


# ---------------------------------------------------------------------------------------------- where a network looks


def grad_cam(model: Classifier, images: Tensor, classes: Tensor | None = None) -> Tensor:
    """Grad-CAM of any `Classifier` at its last feature map, at the images' size.

        CAM = ReLU(Σ_c α_c z_c),   α_c = mean over places of ∂(logit of the class)/∂z_c

    For an equilibrium z is z* itself, so nothing is differentiated through the solver.

    Parameters
    ----------
    model : a `Classifier`, taken in evaluation mode and left as it was
    images : (B, C, H, W), normalised as in training
    classes : (B,) class each map speaks of; None for the predicted one

    Returns
    -------
    (B, H, W) in [0, 1], bilinearly enlarged and divided by its maximum; 0 where no place speaks for the class

    Source: Selvaraju et al. (2017).
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            z, solution = model.transform(model.encoder(images))
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            logits = model.read_out(z, solution).logits
            chosen = logits.argmax(1) if classes is None else classes
            (slope,) = torch.autograd.grad(logits.gather(1, chosen[:, None]).sum(), z)
    finally:
        model.train(was_training)
    cam = F.relu((slope.mean(dim=(2, 3), keepdim=True) * z.detach()).sum(1, keepdim=True))
    cam = F.interpolate(cam, size=images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    top = cam.amax(dim=(1, 2), keepdim=True)
    return torch.where(top > 0, cam / top.clamp_min(torch.finfo(cam.dtype).tiny), 0)


def cam_spread(cam: Tensor) -> pd.DataFrame:
    """How diffuse class-activation maps (B, H, W) are: coverage, the share of pixels above half of the maximum, and
    entropy of CAM/ΣCAM over log(H·W), 0 for one pixel and 1 for an even map; NaN for a map of zeros."""
    flat = cam.double().flatten(1)
    share = flat / flat.sum(1, keepdim=True)
    entropy = -torch.xlogy(share, share).sum(1) / math.log(flat.shape[1])
    return pd.DataFrame({"coverage": (flat > 0.5).double().mean(1).numpy(), "entropy": entropy.numpy()})


# ---------------------------------------------------------------------------------------------- what it says

LEDGER = ["place", "part", "claim", "reading", "evidence", "rule", "verdict", "scale", "remark", "certificate"]
LEDGER += ["computed"]
"""Columns of a table of verdicts.

place : where the paper, its captions or its discussion say it
part : "statement", what the paper says; "beyond the paper", what has a target, constraint, threshold or setting of ours
reading : "as printed", or "ours" where a choice of ours decides what is tested
scale : of `nclib.system.words`, "toy" for trainings of ours; "" for what is computed
remark : costs, conditions, and what is ours
certificate : id for ``nclib certify``, where there is one
computed : from what, "exact", "trained, n seeds" or "reported, n seeds"
"""
STATEMENT, BEYOND = "statement", "beyond the paper"
PRINTED, OURS = "as printed", "ours"


def separation_ledger(
    regions: pd.DataFrame | None = None,
    networks: pd.DataFrame | None = None,
    steep: pd.DataFrame | None = None,
    eps: float = 0.05,
    trials: pd.DataFrame | None = None,
    density: pd.DataFrame | None = None,
    gotu: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Verdicts on what the theory says, from the tables of this module; those left out are not judged.

    Parameters
    ----------
    regions, networks : of `regions_table` and `random_fnn_table`
    steep, eps : of `steep_table`, and the error it was made for
    trials : of `flow_trials`, of both signs one after the other
    density, gotu : of `density_table` and `gotu_table`

    Returns
    -------
    DataFrame with the columns `LEDGER`. Verdicts: "holds", in every case computed; "holds if …", exactly where the
    condition is met; "typo", a misprint, with its correction as remark; "not shown", where a case computed here fails;
    "reported", numbers without a verdict. "False" is never said: nothing of the paper itself is at hand.
    """
    rows: list[dict[str, str]] = []

    def add(
        place: str,
        claim: str,
        evidence: str,
        rule: str,
        verdict: str | bool,
        reading: str = PRINTED,
        part: str = STATEMENT,
        remark: str = "",
        certificate: str = "",
    ) -> None:
        said = verdict if isinstance(verdict, str) else "holds" if verdict else "not shown"
        row = dict(place=place, part=part, claim=claim, reading=reading, evidence=evidence, rule=rule, verdict=said)
        rows.append(row | dict(scale="", remark=remark, certificate=certificate, computed="exact"))

    if regions is not None:
        _judge_regions(add, regions)
    if networks is not None:
        evidence = f"{len(networks)} shapes; least distance beyond the bound {networks['margin'].min():.3f}"
        evidence += f"; pieces at most {(networks['most'] / networks['bound']).max():.2f} of (k+1)^H"
        holds = bool((networks["margin"] >= -1e-9).all() and (networks["most"] <= networks["bound"]).all())
        remark = "our bound ¼(1 − (P−1)/2^(m−1)), proved tooth by tooth; the theorem's constant is not at hand"
        where = dict(reading=OURS, part=BEYOND, remark=remark)
        rule = "no random network violates the bound"
        add("Theorem 1", "our sawtooth T^m: few pieces cannot approximate it", evidence, rule, holds, **where)
    if steep is not None:
        _judge_steep(add, steep, eps)
    if trials is not None:
        _judge_flows(add, trials)
    if density is not None:
        _judge_density(add, density)
    if gotu is not None:
        _judge_gotu(add, gotu)
    return pd.DataFrame(rows, columns=LEDGER)


def _judge_regions(add: Callable[..., None], regions: pd.DataFrame) -> None:
    counted = regions.dropna(subset=["regions"])
    same = bool((counted["regions"] == 2.0 ** counted["m"]).all())
    evidence = f"regions = 2^m for m = {', '.join(map(str, counted['m']))}" if same else "counts differ from 2^m"
    rule = "equal at every m counted"
    add("Proposition 1", "a DEQ of width m has 2^m linear regions", evidence, rule, same, certificate="wu_prop1")
    within = bool((regions["iterations"] <= regions["m"]).all() and (regions["residual"] == 0).all())
    most = (regions["iterations"] - regions["m"]).max()
    evidence = f"iterations − m at most {most}, residual {regions['residual'].max():g}"
    claim = "plain iteration from 0 ends after at most m steps"
    where = dict(certificate="wu_thm1_iterations")
    add("Theorem 1, rebuttal", claim, evidence, "at most m, residual exactly 0", within, **where)
    restart = not regions["restart"].any()
    evidence = f"one more iteration from z* {'changes nothing' if restart else 'changes z*'}"
    claim = "one iteration is enough from z*"
    add("Theorem 1, rebuttal", claim, evidence, "nothing changes at any m", restart, **where)
    error = regions["sawtooth_error"].max()
    where = dict(reading=OURS, part=BEYOND, certificate="wu_prop1", remark="our read-out and our pass-through neuron")
    claim = "our sawtooth: width m + 1 gives T^m"
    add("Theorem 1", claim, f"largest error {error:g}", "exactly 0", bool(error == 0), **where)


def _judge_steep(add: Callable[..., None], steep: pd.DataFrame, eps: float) -> None:
    remark = "eq. (5) is not at hand; the theorem says that a g exists, ours is δ/(1 + δ − x₁)"
    for name, slack in (("triangular", 0.0), ("scalar", 2e-4)):
        error, weight = steep[f"{name}_error"], steep[f"{name}_weight"]
        ratio = weight.iloc[-1] / weight.iloc[0]
        evidence = (
            f"sup error at most {error.max():.4f}, weight at most {weight.max():.3g}, its growth over d {ratio:.2f}"
        )
        rule = f"error ≤ {eps:g}{' + 2e-4' if slack else ''}, weights ≤ 1/ε + 1, growth ≤ 1.3"
        holds = bool((error <= eps + slack + 1e-12).all() and (weight <= 1 / eps + 1).all() and ratio <= 1.3)
        claim = f"our g: a DEQ of bounded weights is ε-close ({name})"
        exact = "wu_thm2" if name == "triangular" else ""
        add("Theorem 2", claim, evidence, rule, holds, OURS, remark=remark, certificate=exact)
    growth = steep["fnn_weight"].iloc[-1] / steep["fnn_weight"].iloc[0]
    below = bool((steep["fnn_bound"] <= steep["fnn_weight"]).all())
    evidence = f"built weights grow by {growth:.0f}; lower bound {steep['fnn_bound'].iloc[0]:.1f} to "
    evidence += f"{steep['fnn_bound'].iloc[-1]:.0f}, built {steep['fnn_weight'].iloc[-1]:.0f}"
    rule = "growth ≥ 100 and the bound below what was built"
    claim = "our g: one hidden layer needs weights that grow like 2^(d/2)"
    add("Theorem 2", claim, evidence, rule, below and growth >= 100, OURS, remark=remark, certificate="wu_thm2")
    error = steep["scalar_error"].max()
    evidence = f"15 bisections on [−½, 3/2] leave 2^−15; sup error {error:.4f}"
    claim = "our g: log₂(1/tolerance) + log₂(b − a) bisections find the scalar fixed point"
    remark = f"plain iteration of our amplifier takes {steep['picard_steps'].iloc[0]} steps at d = "
    remark += f"{steep['d'].iloc[0]} and {steep['picard_steps'].iloc[-1]:.1e} at d = {steep['d'].iloc[-1]}"
    add("Theorem 2, rebuttal", claim, evidence, "error ≤ ε + 2e-4", bool(error <= eps + 2e-4), OURS, remark=remark)


def _judge_flows(add: Callable[..., None], trials: pd.DataFrame) -> None:
    for signs, group in trials.groupby("signs", sort=False):
        evidence = f"largest |flow − minimum| {group['gap'].max():.0e} in {len(group)} trials"
        rule = "below 1e-8, and Q rises under every feasible perturbation"
        holds = bool((group["gap"] <= 1e-8).all() and (group["rise"] > 0).all())
        place, claim = "Theorem 3", f"gradient flow ends at the minimum of Q, with the plus, {signs} entries"
        if signs == "positive":
            add(place, claim, evidence, rule, holds, certificate="wu_thm3_sign")
            continue
        add(f"{place}, rebuttal", claim, evidence, rule, holds, certificate="wu_thm3_sign")
        plus, minus = group["plus"].max(), group["minus"].min()
        evidence = f"null-space gradient of Q at the limit: + {plus:.0e}, − {minus:.1f}"
        slip = bool(plus <= 1e-8 < minus)
        add(
            f"{place}, rebuttal",
            "q_i(x) = 1/(2x²) − β_i(0)^−3 x for β_i(0) < 0",
            evidence,
            "a typo where the minus is not stationary and the plus is, within 1e-8",
            "typo" if slip else "not shown",
            remark="in a discussion post, not in the theorem: true for x = |β_i|; for x = β_i the sign is +",
            certificate="wu_thm3_sign",
        )


def _judge_density(add: Callable[..., None], density: pd.DataFrame) -> None:
    found = density.set_index(["model", "beta0"])["mean"]
    sparse, least = found["network", 1e-3], found["min-norm"].iloc[0]
    deq = found["deq"]
    dense = [start for start in deq.index if deq[start] > 2 * sparse]
    evidence = ", ".join(f"β(0) = {start:g}: {value:.2f}" for start, value in deq.items())
    evidence += f"; diagonal network {sparse:.2f} (1e-3), {found['network', 1e-1]:.2f} (0.1); minimum norm {least:.2f}"
    remark = f"above our threshold from β(0) = {min(dense):g} on" if dense else "below our threshold at every start"
    where = dict(reading=OURS, part=BEYOND, remark=f"{remark}; the paper names no number")
    rule = "our threshold: participation ratio above twice the network's from 1e-3"
    add("Density", "the bias of a diagonal DEQ is dense", evidence, rule, "reported", **where)


def _judge_gotu(add: Callable[..., None], gotu: pd.DataFrame) -> None:
    wins = gotu["deq"] < gotu["network"]
    evidence = f"the DEQ is better in {int(wins.sum())} of {len(gotu)} cases, as 0 < β_k < 2 f̂_k predicts in "
    evidence += f"{int((wins == gotu['predicted']).sum())}; with the bias as a feature in "
    evidence += f"{int((gotu['deq_bias_feature'] < gotu['network']).sum())}"
    as_predicted = bool((wins == gotu["predicted"]).all())
    said = "holds" if wins.all() else "holds if 0 < β_k < 2 f̂_k" if as_predicted else "not shown"
    rule = "better in every case; else exactly where predicted"
    claim = "our plain bias and natural starts: the diagonal DEQ generalises better on the unseen half"
    remark = "our condition; those of the theorem are not at hand"
    where = dict(reading=OURS, part=BEYOND)
    add("GOTU theorem", claim, evidence, rule, said, remark=remark, certificate="wu_gotu", **where)
    both = [gotu_diagonal(0, 2, model, 1.0).gotu for model in ("deq", "network")]
    small = [gotu_diagonal(0, 2, model, start).gotu for model, start in (("deq", 1e-2), ("network", 1e-6))]
    evidence = f"f̂ = (0, 2), both from β(0) = 1: {both[0]:.3f} and {both[1]:.3f}; DEQ from 0.01 {small[0]:.2f}, "
    evidence += f"network from 1e-6 {small[1]:.2f}"
    remark = "equal starts give nearly equal errors; the authors too say that the start influences the bias"
    rule = "both models from equal starts"
    claim = "our control: the advantage of the model apart from its start"
    add("GOTU theorem, control", claim, evidence, rule, "reported", remark=remark, **where)
