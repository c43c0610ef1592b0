"""What equilibrium models can express, built and counted exactly (Wu et al. 2024, Proposition 1, Theorems 1 and 2).

    z = σ(W z + u x₁ + b),   y = a·z,   σ = ReLU

Linear regions come first, then the steep function g(x) = δ/(1 + δ − x₁), δ = 2^−d: two equilibrium models come within
eps of it with weights below a bound without d, and a network of one hidden layer with weights that grow like 2^{d/2}.

Matrices and vectors are numpy in float64, in this module and in `diagonal`. W is lower triangular in every
construction, so an equilibrium is found by forward substitution, also where a neuron feeds itself (w_tt < 1): z =
σ(w z + p) is σ(p)/(1 − w).

The paper's equations (5), (9) and (13)–(15) are not available here: what rests on the discussion of the paper is marked
with the source "rebuttal", what was derived or chosen here with "ours".
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from nclib.solvers import FixedPointIteration, fixed_point

LARGEST_LEVEL = 51
"""Sawtooth levels m up to which float64 holds the weights and the dyadic points between two kinks."""


def linear_regions_deq(m: int, eta: float | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A DEQ of width m with exactly 2^m linear regions on [0, 1].

        z_t = σ(2^t x − Σ_{i<t} 2^{t−i+1} z_i − 1),   t = 1 … m

    The pre-activation of neuron t is a triangle wave that crosses 0 at the odd multiples of 2^−t, so the neurons
    together have 2^m − 1 kinks. No well-posed ReLU DEQ of width m has more regions: each pattern of active neurons
    allows one affine solution on one convex set.

    Parameters
    ----------
    m : width, 1 … 51
    eta : None for the weights above. A number for the balanced form 2^−t z_t, whose weights are −2(1 − eta), 1 and
        −2^−t: the same function at eta = 0, where ½[(I−W) + (I−W)ᵀ] = 11ᵀ ⪰ 0; above 0 the DEQ is strongly monotone
        (⪰ eta I), and loses regions as eta grows

    Returns
    -------
    W (m, m) strictly lower triangular, u (m,), b (m,)

    Source: Wu et al. (2024), Proposition 1, weights from the rebuttal; the balanced form is ours.
    """
    if not 1 <= m <= LARGEST_LEVEL:
        raise ValueError(f"m = {m}: give 1 to {LARGEST_LEVEL}, up to which float64 is exact")
    t = np.arange(1.0, m + 1)
    if eta is None:
        return np.tril(-np.exp2(t[:, None] - t + 1), -1), np.exp2(t), -np.ones(m)
    return np.tril(np.full((m, m), -2 * (1 - eta)), -1), np.ones(m), -np.exp2(-t)


def sawtooth_deq(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A DEQ of width m + 1 that equals the m-fold tent map T^m on [0, 1], T(x) = 2 min(x, 1 − x).

        T^m(x) = 2^m σ(x) − Σ_{i≤m} 2^{m+1−i} z_i

    with the neurons of `linear_regions_deq`. The first neuron passes x through, because y = a·z has no skip.

    Returns
    -------
    W (m+1, m+1), u (m+1,), b (m+1,), a (m+1,)

    Source: derived here from Proposition 1 of Wu et al. (2024).
    """
    inner, u, b = linear_regions_deq(m)
    w = np.zeros((m + 1, m + 1))
    w[1:, 1:] = inner
    return w, np.append(1.0, u), np.append(0.0, b), np.append(2.0**m, -np.exp2(m - np.arange(m)))


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

    """
    z = np.zeros_like(injection)
    for t in range(len(w)):
        z[t] = np.maximum(w[t, :t] @ z[:t] + injection[t], 0) / (1 - w[t, t])
    return z


def iterate_from_zero(w: np.ndarray, u: np.ndarray, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, int, float]:
    """Plain fixed-point iteration of z = σ(W z + u x + b) from z = 0, to the last bit, by `nclib.solvers`.

    Parameters
    ----------
    w, u, b : (n, n), (n,), (n,)
    x : (N,) inputs

    Returns
    -------
    equilibria (n, N), the number of iterations after which nothing changes any more, and the largest relative residual
    then; a strictly lower triangular W needs at most n iterations, as the k-th is exact in the first k neurons
    """
    weight, injection = torch.from_numpy(w), torch.from_numpy(np.outer(x, u) + b)
    solver = FixedPointIteration(tol=1e-300, max_steps=1001)  # a residual of 0 and nothing else
    found = fixed_point(lambda z, c: F.relu(z @ weight.T + c), solver, torch.zeros_like(injection), (injection,))
    # the last call only finds that nothing changes
    return found.value.T.numpy(), int(found.steps.max()) - 1, float(found.residual.max())


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


def count_regions(w: np.ndarray, u: np.ndarray, b: np.ndarray, a: np.ndarray | None = None) -> int:
    """How many linear regions z = σ(W z + u x + b) has on x ∈ [0, 1], for lower triangular W.

    Neuron by neuron, every interval is cut where a pre-activation crosses 0; what is left is affine. Exact as long as
    the crossings are, which for `linear_regions_deq` are dyadic.

    Parameters
    ----------
    w, u, b : (n, n), (n,), (n,)
    a : None counts intervals of one activation pattern; (n,) counts the affine pieces of y = a·z, intervals whose
        slopes differ by more than rounding

    Returns
    -------
    int between 1 and 2^n

    Source: the count is ours; that a DEQ of width n has at most 2^n regions is in Wu et al. (2024).
    """
    # each neuron as slope and intercept on each of the intervals [edges[j], edges[j+1]]
    edges = np.array([0.0, 1.0])
    slopes, values = np.zeros((0, 1)), np.zeros((0, 1))
    for t in range(len(w)):
        slope, value = w[t, :t] @ slopes + u[t], w[t, :t] @ values + b[t]
        left, right = slope * edges[:-1] + value, slope * edges[1:] + value
        cut = np.flatnonzero(left * right < 0)
        pieces = np.sort(np.concatenate([np.arange(len(slope)), cut]))
        edges = np.sort(np.concatenate([edges, -value[cut] / slope[cut]]))
        slopes, values, slope, value = slopes[:, pieces], values[:, pieces], slope[pieces], value[pieces]
        active = slope * (edges[:-1] + edges[1:]) / 2 + value > 0
        gain = active / (1 - w[t, t])
        slopes, values = np.vstack([slopes, gain * slope]), np.vstack([values, gain * value])
    if a is None:
        return len(edges) - 1
    final, scale = a @ slopes, np.abs(a) @ np.abs(slopes)
    return 1 + int(np.sum(np.abs(np.diff(final)) > 1e-9 * np.maximum(scale[1:], scale[:-1])))


def sawtooth_l1_bound(m: int, pieces: int) -> float:
    """Least L¹[0, 1] distance of a continuous function with this number of affine pieces from T^m.

        ¼ (1 − (P − 1)/2^{m−1})

    A tooth without a breakpoint inside costs at least a quarter of its width (the best affine fit is a constant).
    Negative values are no evidence.

    Source: derived here, sharper than Telgarsky-type constants; plays the part of Theorem 1 of Wu et al. (2024).
    """
    return 0.25 * (1 - (pieces - 1) / 2.0 ** (m - 1))


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
        z, iterations, residual = iterate_from_zero(w, u, b, x)
        again = np.maximum(w @ z + np.outer(u, x) + b[:, None], 0)
        *saw, read_out = sawtooth_deq(m)
        error = float(np.abs(read_out @ iterate_from_zero(*saw, x)[0] - tent_map(x, m)).max())
        counts = [count_regions(w, u, b, a) if m <= 16 else np.nan for a in (None, np.ones(m))]
        weights = [max(np.abs(part).max() for part in net) for net in ((w, u, b), linear_regions_deq(m, eta=0))]
        rows.append((m, *counts, iterations, residual, int((again != z).any()), error, *weights))
    names = ["m", "regions", "pieces", "iterations", "residual", "restart", "sawtooth_error"]
    return pd.DataFrame(rows, columns=[*names, "largest_weight", "balanced_weight"])


def _inside_the_pieces(m: int) -> np.ndarray:
    """Two points of each of the 2^m pieces, or of some of them: dyadic, and never a kink."""
    j = np.arange(2**m) if m <= 11 else np.random.default_rng(m).integers(0, 2**m, size=2048)
    return np.sort(np.concatenate([(j + part) / 2.0**m for part in (0.25, 0.75)]))


def random_fnn_table(m: int, shapes: Sequence[tuple[int, int]], draws: int, seed: int = 0) -> pd.DataFrame:
    """Random ReLU networks of one input: their pieces against the bound, their L¹ distance from T^m against the bound.

    Parameters
    ----------
    shapes : (k, H), width and hidden layers. A row for each: k, H, bound (k + 1)^H, most (pieces of the best draw), and
        margin, the least of ‖T^m − f‖ − `sawtooth_l1_bound` over the draws, f scaled to T^m by least squares.
    """
    stream = np.random.default_rng(seed)
    x = (np.arange(1 << (m + 6)) + 0.5) / (1 << (m + 6))
    target = tent_map(x, m)
    rows = []
    for k, layers in shapes:
        found = []
        for _ in range(draws):
            weights = [stream.normal(size=(k, k if i else 1)) for i in range(layers)] + [stream.normal(size=(1, k))]
            w, u, b, a = fnn_as_deq(weights, [stream.normal(size=k) for _ in range(layers)])
            pieces = count_regions(w, u, b, a)
            y = a @ lower_triangular_equilibrium(w, np.outer(u, x) + b[:, None])
            basis = np.stack([y, np.ones_like(y)], axis=1)
            distance = np.abs(target - basis @ np.linalg.lstsq(basis, target, rcond=None)[0]).mean()
            found.append((pieces, float(distance) - sawtooth_l1_bound(m, pieces)))
        most, margin = zip(*found, strict=True)
        rows.append((k, layers, (k + 1) ** layers, max(most), min(margin)))
    return pd.DataFrame(rows, columns=["k", "H", "bound", "most", "margin"])


# --- a steep function ---------------------------------------------------------------------------------------------


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


def steep_deq_scalar(d: int, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A revised DEQ z = Vσ(W z + U x₁ + b) with one state, within eps of `steep_target`, solved by bisection.

        z = z + c (S(z) − s),   s = 1 − x₁,   c = eps

    S interpolates g⁻¹(z) = δ(1/z − 1) at z = eps, 2 eps, …, 1, with slope −1/eps below and −δ above. It falls strictly,
    so the root is unique and lies in [−½, 3/2].

    Parameters as in `steep_deq_triangular`; 2^−d ≤ 2 eps.

    Returns
    -------
    v, w, u, b, (n,) each: width n ≈ 1/eps + 2 and weights at most 1/eps. `bisect_scalar` evaluates it.

    Source: ours, after the second part of Theorem 2 of Wu et al. (2024).
    """
    delta = 2.0**-d
    knots = np.linspace(eps, 1, math.ceil((1 - eps) / eps - 1e-12) + 1)
    heights = delta * (1 / knots - 1)
    slopes = np.concatenate([[-1 / eps], np.diff(heights) / np.diff(knots), [-delta]])
    # S(z) = heights₀ + slopes₀ (z − eps) + Σ_j Δ_j σ(z − knots_j)
    offset = eps * (heights[0] - slopes[0] * eps)
    # (1 + c slopes₀) z − c s + offset, kept positive by a shift that the constant neuron takes away again
    shift, zeros = 2.0, np.zeros(len(knots))
    v = np.concatenate([[1.0, offset - shift], eps * np.diff(slopes)])
    w = np.concatenate([[1 + eps * slopes[0], 0.0], zeros + 1])
    return v, w, np.concatenate([[eps, 0.0], zeros]), np.concatenate([[shift - eps, 1.0], -knots])


def bisect_scalar(net: Sequence[np.ndarray], s: np.ndarray) -> np.ndarray:
    """The equilibrium of `steep_deq_scalar` at x₁ = 1 − s by 15 bisections of z − Vσ(·) on [−½, 3/2]: (N,).

    Source: the number of steps, log₂(1/ε) + log₂(b − a), is the rebuttal's.
    """
    v, w, u, b = net
    injection = (u + b)[:, None] - np.outer(u, s)
    low, high = np.full(s.shape, -0.5), np.full(s.shape, 1.5)
    for _ in range(15):
        middle = (low + high) / 2
        above = middle - v @ np.maximum(np.outer(w, middle) + injection, 0) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


def steep_fnn(d: int, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A network of one hidden layer with the same knots, hence the same error, whose weights grow like 2^{d/2}.

    Each neuron's scale is shared out evenly between its two layers, which makes the largest weight smallest.

    Returns
    -------
    W = 0 (k, k), u (k,), b (k,), a (k,): y = a·σ(u x₁ + b); the first neuron is constant
    """
    delta, (t, a) = 2.0**-d, _knots(eps)
    scale = np.sqrt(np.abs(a) / delta)
    u, b = np.append(0.0, -scale), np.append(1.0, scale * (1 - delta * t))
    return np.zeros((len(u), len(u))), u, b, np.append(1.0, np.sign(a) * scale)


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


NETWORKS = ("triangular", "scalar", "fnn")


def steep_table(ds: Sequence[int], eps: float) -> pd.DataFrame:
    """The three constructions at each d: d, and for triangular, scalar and fnn the sup error, largest weight and width;
    with fnn_bound, `fnn_weight_bound` at the FNN's own width and error, and picard_steps, how many plain iterations the
    triangular one's amplifier needs for a relative error of 1e-3."""
    rows = []
    for d in ds:
        s = steep_points(d)
        nets = steep_deq_triangular(d, eps), steep_deq_scalar(d, eps), steep_fnn(d, eps)
        values = steep_values(nets[0], s), bisect_scalar(nets[1], s), steep_values(nets[2], s)
        row = {"d": d}
        for name, net, y in zip(NETWORKS, nets, values, strict=True):
            row[f"{name}_error"] = float(np.abs(y - steep_target(s, d)).max())
            row[f"{name}_weight"] = float(max(np.abs(part).max() for part in net))
            row[f"{name}_width"] = len(net[-1])
        row["fnn_bound"] = fnn_weight_bound(d, row["fnn_width"], 1, min(row["fnn_error"], 0.2499))
        row["picard_steps"] = math.ceil(math.log(1e3) / -math.log1p(-(2.0**-d)))
        rows.append(row)
    return pd.DataFrame(rows)
