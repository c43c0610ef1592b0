"""Linear regions of equilibrium models, counted and built exactly (Wu et al. 2024, Proposition 1 and Theorem 1).

    z = σ(W z + u x₁ + b),   y = a·z,   σ = ReLU

Matrices and vectors are numpy in float64, in this module and in `steep`, `diagonal` and `gotu`. W is lower triangular
in every construction, so an equilibrium is found by forward substitution, also where a neuron feeds itself (w_tt < 1):
z = σ(w z + p) is σ(p)/(1 − w).

The printed equations (5), (9) and (13)–(15) are not at hand here: what rests on the discussion of the paper is marked
with the source "rebuttal", what was derived or chosen here with "ours".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from nclib.solver import FixedPointIteration, fixed_point

LARGEST_LEVEL = 52
"""Sawtooth levels m up to which float64 holds the weights and the dyadic points between two kinks."""


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

    Source: Wu et al. (2024), Proposition 1, weights from the rebuttal; the balanced form is ours.
    """
    if not 1 <= m <= LARGEST_LEVEL:
        raise ValueError(f"m = {m}: give 1 to {LARGEST_LEVEL}, up to which float64 is exact")
    t = np.arange(1, m + 1)
    if eta is None:
        w = np.tril(-np.exp2(t[:, None] - t[None, :] + 1.0), -1)
        return w, np.exp2(t.astype(float)), -np.ones(m)
    return np.tril(np.full((m, m), -2 * (1 - eta)), -1), np.ones(m), -np.exp2(-t.astype(float))


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

    """
    loops = np.diag(w)
    z = np.zeros_like(np.asarray(injection, dtype=float))
    for t in range(len(w)):
        z[t] = np.maximum(w[t, :t] @ z[:t] + injection[t], 0) / (1 - loops[t])
    return z


def iterate_from_zero(w: np.ndarray, u: np.ndarray, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, int, float]:
    """Plain fixed-point iteration of z = σ(W z + u x + b) from z = 0, to the last bit, by `nclib.solver`.

    Parameters
    ----------
    w, u, b : (n, n), (n,), (n,)
    x : (N,) inputs

    Returns
    -------
    equilibria (n, N), the number of iterations after which nothing changes any more, and the largest relative residual
    then; a strictly lower triangular W needs at most n iterations, as the k-th is exact in the first k neurons
    """
    weight, start = torch.from_numpy(np.asarray(w, dtype=float)), torch.zeros(len(x), len(b), dtype=torch.float64)
    injection = torch.from_numpy(np.outer(x, u) + b)
    solver = FixedPointIteration(tol=1e-300, max_steps=1001)  # a residual of 0 and nothing else
    found = fixed_point(lambda z, c: F.relu(z @ weight.T + c), solver, start, (injection,))
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
        saw = sawtooth_deq(m)
        error = float(np.abs(saw[3] @ iterate_from_zero(*saw[:3], x)[0] - tent_map(x, m)).max())
        countable = m <= 16
        counts = [count_regions(w, u, b, a) if countable else np.nan for a in (None, np.ones(m))]
        largest, balanced = (
            max(np.abs(part).max() for part in parts) for parts in ((w, u, b), linear_regions_deq(m, eta=0))
        )
        changed = int((again != z).any())
        rows.append((m, *counts, iterations, residual, changed, error, largest, balanced))
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
