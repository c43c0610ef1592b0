"""Linear regions: a DEQ of width m has 2^m, a feed-forward network of similar size has few.

    z = σ(W z + u x + b),   y = a·z,   σ = ReLU

Everything is built and counted exactly (Wu et al. 2024, Proposition 1 and Theorem 1). W is lower
triangular in every construction, so an equilibrium is found by forward substitution, also where a
neuron feeds itself (w_tt < 1): z = σ(w z + p) is σ(p)/(1 − w).

The paper's equations are not available here: what rests on the discussion of the paper has the
source "rebuttal", what was derived or chosen here "ours". Everything is numpy in float64.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from nclib.solvers import FixedPointIteration, fixed_point

LARGEST_LEVEL = 51
"""Levels m up to which float64 holds the weights and the dyadic points between two kinks."""
LARGEST_COUNTED = 16
"""Levels m up to which the 2^m regions are counted one by one."""

Network = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""W (n, n), u (n,), b (n,) and the read-out a (n,)."""


def linear_regions_deq(
    m: int, eta: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A DEQ of width m with exactly 2^m linear regions on [0, 1].

        z_t = σ(2^t x − Σ_{i<t} 2^{t−i+1} z_i − 1),   t = 1 … m

    The pre-activation of neuron t is a triangle wave that crosses 0 at the odd multiples of 2^−t,
    so the neurons together have 2^m − 1 kinks. No well-posed ReLU DEQ of width m has more regions:
    each pattern of active neurons allows one affine solution on one convex set.

    Parameters
    ----------
    m : width, 1 … 51
    eta : None for the weights above. A number for the balanced form 2^−t z_t, whose weights are
        −2(1 − eta), 1 and −2^−t: the same function at eta = 0, where ½[(I−W) + (I−W)ᵀ] = 11ᵀ ⪰ 0;
        above 0 the DEQ is strongly monotone (⪰ eta I), and loses regions as eta grows

    Returns
    -------
    W (m, m) strictly lower triangular, u (m,), b (m,)

    Raises
    ------
    ValueError
        For an m beyond which float64 is not exact.

    Source: Wu et al. (2024), Proposition 1, weights from the rebuttal; the balanced form is ours.

    Examples
    --------
    >>> w, u, b = linear_regions_deq(3)
    >>> count_regions(w, u, b)
    8
    """
    if not 1 <= m <= LARGEST_LEVEL:
        raise ValueError(f"m = {m}: give 1 to {LARGEST_LEVEL}, up to which float64 is exact")
    t = np.arange(1.0, m + 1)
    if eta is None:
        powers = np.exp2(t[:, None] - t + 1)
        return np.tril(-powers, -1), np.exp2(t), -np.ones(m)
    weights = np.full((m, m), -2 * (1 - eta))
    return np.tril(weights, -1), np.ones(m), -np.exp2(-t)


def sawtooth_deq(m: int) -> Network:
    """A DEQ of width m + 1 that equals the m-fold tent map T^m on [0, 1], T(x) = 2 min(x, 1 − x).

        T^m(x) = 2^m σ(x) − Σ_{i≤m} 2^{m+1−i} z_i

    with the neurons of `linear_regions_deq`. The first neuron passes x through, because y = a·z has
    no skip.

    Parameters
    ----------
    m : level, 1 … 51

    Returns
    -------
    W (m+1, m+1), u (m+1,), b (m+1,), a (m+1,)

    Source: derived here from Proposition 1 of Wu et al. (2024).
    """
    inner, u, b = linear_regions_deq(m)
    w = np.zeros((m + 1, m + 1))
    w[1:, 1:] = inner
    read_out = np.append(2.0**m, -np.exp2(m - np.arange(m)))
    return w, np.append(1.0, u), np.append(0.0, b), read_out


def tent_map(x: np.ndarray, m: int) -> np.ndarray:
    """T^m(x), the sawtooth with 2^m linear pieces, from its definition.

    Parameters
    ----------
    x : in [0, 1]
    m : level; T^0 is x

    Examples
    --------
    >>> import numpy as np
    >>> tent_map(np.array([0.25, 0.5]), 1).tolist()
    [0.5, 1.0]
    """
    y = np.asarray(x, dtype=float)
    for _ in range(m):
        y = 2 * np.minimum(y, 1 - y)
    return y


def lower_triangular_equilibrium(w: np.ndarray, injection: np.ndarray) -> np.ndarray:
    """The equilibrium of z = σ(W z + injection), by forward substitution.

    Parameters
    ----------
    w : (n, n) lower triangular with diagonal below 1
    injection : (n, N), for instance ``np.outer(u, x) + b[:, None]``

    Returns
    -------
    (n, N)
    """
    z = np.zeros_like(injection)
    for t in range(len(w)):
        z[t] = np.maximum(w[t, :t] @ z[:t] + injection[t], 0) / (1 - w[t, t])
    return z


def iterate_from_zero(
    w: np.ndarray, u: np.ndarray, b: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, int, float]:
    """Plain iteration of z = σ(W z + u x + b) from z = 0, to the last bit, by `nclib.solvers`.

    Parameters
    ----------
    w, u, b : (n, n), (n,), (n,)
    x : (N,) inputs

    Returns
    -------
    equilibria (n, N), the number of iterations after which nothing changes any more, and the
    largest relative residual then. A strictly lower triangular W needs at most n iterations, as the
    k-th is exact in the first k neurons.
    """
    weight = torch.from_numpy(w)
    injection = torch.from_numpy(np.outer(x, u) + b)

    def cell(z: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return F.relu(z @ weight.T + c)

    solver = FixedPointIteration(tol=1e-300, max_steps=1001)  # a residual of 0 and nothing else
    solution = fixed_point(cell, solver, torch.zeros_like(injection), (injection,))
    # The last evaluation only finds that nothing changes.
    iterations = int(solution.steps.max()) - 1
    return solution.value.T.numpy(), iterations, float(solution.residual.max())


def fnn_as_deq(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> Network:
    """A feed-forward ReLU network of one input as a DEQ of as many neurons.

    W is block sub-diagonal, and the read-out is on the last layer.

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
    neurons = ends[-1]
    w = np.zeros((neurons, neurons))
    u = np.zeros(neurons)
    read_out = np.zeros(neurons)
    u[: sizes[0]] = weights[0][:, 0]
    for layer in range(1, len(sizes)):
        rows = slice(ends[layer], ends[layer + 1])
        columns = slice(ends[layer - 1], ends[layer])
        w[rows, columns] = weights[layer]
    read_out[ends[-2] :] = weights[-1][0]
    return w, u, np.concatenate(biases), read_out


def count_regions(
    w: np.ndarray, u: np.ndarray, b: np.ndarray, read_out: np.ndarray | None = None
) -> int:
    """How many linear regions z = σ(W z + u x + b) has on x ∈ [0, 1].

    Neuron by neuron, every interval is cut where a pre-activation crosses 0; what is left is
    affine. Exact as long as the crossings are, which for `linear_regions_deq` are dyadic.

    Parameters
    ----------
    w, u, b : (n, n) lower triangular, (n,), (n,)
    read_out : None counts intervals of one activation pattern; a (n,) counts the affine pieces of
        y = a·z, intervals whose slopes differ by more than rounding

    Returns
    -------
    int between 1 and 2^n

    Source: the count is ours; that a DEQ of width n has at most 2^n regions is in Wu et al. (2024).
    """
    # Each neuron as slope and intercept on each of the intervals [edges[j], edges[j+1]].
    edges = np.array([0.0, 1.0])
    slopes = np.zeros((0, 1))
    intercepts = np.zeros((0, 1))
    for t in range(len(w)):
        slope = w[t, :t] @ slopes + u[t]
        intercept = w[t, :t] @ intercepts + b[t]
        left = slope * edges[:-1] + intercept
        right = slope * edges[1:] + intercept
        crossed = np.flatnonzero(left * right < 0)
        pieces = np.sort(np.concatenate([np.arange(len(slope)), crossed]))
        crossings = -intercept[crossed] / slope[crossed]
        edges = np.sort(np.concatenate([edges, crossings]))
        slope = slope[pieces]
        intercept = intercept[pieces]
        active = slope * (edges[:-1] + edges[1:]) / 2 + intercept > 0
        gain = active / (1 - w[t, t])
        slopes = np.vstack([slopes[:, pieces], gain * slope])
        intercepts = np.vstack([intercepts[:, pieces], gain * intercept])
    if read_out is None:
        return len(edges) - 1
    final = read_out @ slopes
    scale = np.abs(read_out) @ np.abs(slopes)
    rounding = 1e-9 * np.maximum(scale[1:], scale[:-1])
    return 1 + int(np.sum(np.abs(np.diff(final)) > rounding))


def sawtooth_l1_bound(m: int, pieces: int) -> float:
    """Least L¹[0, 1] distance of a continuous function with P affine pieces from T^m.

        ¼ (1 − (P − 1)/2^{m−1})

    A tooth without a breakpoint inside costs at least a quarter of its width (the best affine fit
    is a constant). Negative values are no evidence.

    Parameters
    ----------
    m : level of the sawtooth
    pieces : P

    Source: derived here, sharper than Telgarsky-type constants; plays the part of Theorem 1 of Wu
    et al. (2024).
    """
    return 0.25 * (1 - (pieces - 1) / 2.0 ** (m - 1))


def regions_table(levels: Sequence[int]) -> pd.DataFrame:
    """The construction at each level m.

    Parameters
    ----------
    levels : the m

    Returns
    -------
    DataFrame
        m, regions, pieces (of y = 1·z), iterations (from 0), residual, restart (whether one more
        iteration from the equilibrium changes anything, 0 or 1), sawtooth_error (largest
        |a·z − T^m| of `sawtooth_deq`), largest_weight and balanced_weight (of both forms). Regions
        are counted up to m = 16, NaN beyond.

    Evaluated at (j + ¼)/2^m and (j + ¾)/2^m for all j, for m > 11 for 2048 random ones, where all
    arithmetic is exact.
    """
    rows = []
    for m in levels:
        w, u, b = linear_regions_deq(m)
        x = _inside_the_pieces(m)
        z, iterations, residual = iterate_from_zero(w, u, b, x)
        again = np.maximum(w @ z + np.outer(u, x) + b[:, None], 0)
        saw_w, saw_u, saw_b, read_out = sawtooth_deq(m)
        sawtooth = read_out @ iterate_from_zero(saw_w, saw_u, saw_b, x)[0]
        is_counted = m <= LARGEST_COUNTED
        rows.append(
            {
                "m": m,
                "regions": count_regions(w, u, b) if is_counted else np.nan,
                "pieces": count_regions(w, u, b, np.ones(m)) if is_counted else np.nan,
                "iterations": iterations,
                "residual": residual,
                "restart": int((again != z).any()),
                "sawtooth_error": float(np.abs(sawtooth - tent_map(x, m)).max()),
                "largest_weight": largest_weight((w, u, b)),
                "balanced_weight": largest_weight(linear_regions_deq(m, eta=0)),
            }
        )
    return pd.DataFrame(rows)


def largest_weight(network: Sequence[np.ndarray]) -> float:
    """The largest |entry| of its matrices and vectors."""
    return max(np.abs(part).max() for part in network)


def _inside_the_pieces(m: int) -> np.ndarray:
    """Two points of each of the 2^m pieces, or of some of them: dyadic, and never a kink."""
    if m <= 11:
        pieces = np.arange(2**m)
    else:
        pieces = np.random.default_rng(m).integers(0, 2**m, size=2048)
    points = [(pieces + 0.25) / 2.0**m, (pieces + 0.75) / 2.0**m]
    return np.sort(np.concatenate(points))


def random_fnn_table(
    m: int, shapes: Sequence[tuple[int, int]], draws: int, seed: int = 0
) -> pd.DataFrame:
    """Random ReLU networks of one input against the bounds on pieces and on distance from T^m.

    Parameters
    ----------
    m : level of the sawtooth
    shapes : (k, H), width and number of hidden layers
    draws, seed : networks of each shape, and the seed of all

    Returns
    -------
    DataFrame
        A row for each shape: k, H, bound (k + 1)^H, most (pieces of the best draw), and margin, the
        least of ‖T^m − f‖ − `sawtooth_l1_bound` over the draws, f scaled to T^m by least squares
    """
    stream = np.random.default_rng(seed)
    count = 1 << (m + 6)
    x = (np.arange(count) + 0.5) / count
    target = tent_map(x, m)
    rows = []
    for k, layers in shapes:
        most = 0
        margin = np.inf
        for _ in range(draws):
            weights = [stream.normal(size=(k, 1))]
            weights += [stream.normal(size=(k, k)) for _ in range(layers - 1)]
            weights.append(stream.normal(size=(1, k)))
            biases = [stream.normal(size=k) for _ in range(layers)]
            w, u, b, read_out = fnn_as_deq(weights, biases)
            pieces = count_regions(w, u, b, read_out)
            y = read_out @ lower_triangular_equilibrium(w, np.outer(u, x) + b[:, None])
            basis = np.stack([y, np.ones_like(y)], axis=1)
            fitted = basis @ np.linalg.lstsq(basis, target, rcond=None)[0]
            distance = float(np.abs(target - fitted).mean())
            most = max(most, pieces)
            margin = min(margin, distance - sawtooth_l1_bound(m, pieces))
        rows.append((k, layers, (k + 1) ** layers, most, margin))
    return pd.DataFrame(rows, columns=["k", "H", "bound", "most", "margin"])
