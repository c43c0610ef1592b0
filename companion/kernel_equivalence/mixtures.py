"""Gaussian mixtures: samples, population moments and estimates of them; the checks of data and labels.

Data are matrices x (p, n), a sample in a column, scaled so that ‖x_i‖² = O(1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy


def _data(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, dtype=float)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise ValueError(f"x must be finite numbers (p, n), a sample in each column, got shape {x.shape}")
    return x


def empirical_tau0(x: np.ndarray) -> float:
    """τ_0 = √(mean ‖x_i‖²) of the samples in the columns of x (p, n)."""
    x = _data(x)
    return math.sqrt(float((x**2).sum() / x.shape[1]))


class MixtureMoments(NamedTuple):
    """Of the classes √p x = μ_a + ζ, ζ ~ (0, C_a): means (K, p), traces tr C_a (K,), products tr C_a C_b (K, K)."""

    means: np.ndarray
    traces: np.ndarray
    products: np.ndarray


def gaussian_mixture(
    n: int,
    p: int,
    seed: int = 0,
    means: np.ndarray | None = None,
    covariances: Sequence[float] | Sequence[np.ndarray] | None = None,
    shares: Sequence[float] | None = None,
) -> tuple[np.ndarray, np.ndarray, MixtureMoments]:
    """Samples of a Gaussian mixture, √p x_i = μ_a + ζ_i, ζ_i ~ N(0, C_a).

    Parameters
    ----------
    n, p : samples and features
    seed : of the draw
    means : (K, p); left out, the paper's: an 8 at index 8a of class a = 0, 1, …
    covariances : of the classes, all numbers (times I) or all matrices (p, p); left out, 1 + 8a/√p
    shares : n_a/n; left out, equal

    Returns
    -------
    x (p, n) and labels (n,), class by class, and the population moments

    Source: caption of Figure 1.
    """
    if means is None:
        classes = 2 if covariances is None else len(covariances)
        means = np.zeros((classes, p))
        means[np.arange(classes), 8 * np.arange(classes)] = 8
    if covariances is None:
        covariances = [1 + 8 * a / math.sqrt(p) for a in range(len(means))]
    weights = np.full(len(means), 1 / len(means)) if shares is None else np.asarray(shares)
    counts = np.floor(n * weights + 1e-9).astype(int)
    counts[np.argsort(counts - n * weights, kind="stable")[: n - counts.sum()]] += 1
    rng, parts = np.random.default_rng(seed), []
    matrices = np.ndim(covariances[0]) == 2
    for mean, covariance, count in zip(means, covariances, counts, strict=True):
        noise = rng.standard_normal((p, count))
        noise = scipy.linalg.cholesky(covariance, lower=True) @ noise if matrices else math.sqrt(covariance) * noise
        parts.append(mean[:, None] + noise)
    x = np.concatenate(parts, axis=1) / math.sqrt(p)
    if matrices:
        traces = [np.trace(c) for c in covariances]
        products = [[(a * b.T).sum() for b in covariances] for a in covariances]
    else:
        diagonals = [np.broadcast_to(float(c), p) for c in covariances]
        traces, products = [d.sum() for d in diagonals], [[a @ b for b in diagonals] for a in diagonals]
    moments = MixtureMoments(means, np.array(traces), np.array(products))
    return x, np.repeat(np.arange(len(means)), counts), moments


def estimate_moments(x: np.ndarray, labels: Sequence[int]) -> MixtureMoments:
    """Unbiased estimates of the class moments from samples of any distribution.

        tr C_a:  tr S_a,     tr C_a C_b:  tr S_a S_b,     S_a the sample covariance of √p x with divisor n_a − 1
        tr C_a²:  (n−1)/(n(n−2)(n−3)) [(n−1)(n−2) tr S² + (tr S)² − n Q],   Q = Σ_i ‖x_i − x̄‖⁴/(n−1)

    The plain tr S_a² is too large by (tr C_a)²/n_a, which does not vanish when p grows with n.

    Raises
    ------
    ValueError
        For classes of fewer than 4 samples.

    Source: Himeno & Yamada (2014) for tr C².
    """
    x = _data(x)
    labels, counts = np.asarray(labels), np.bincount(labels)
    if counts.min() < 4:
        raise ValueError("estimating tr C² needs 4 samples of each class; give moments= instead")
    x = x * math.sqrt(len(x))
    centred, means, traces = [], [], []
    for a, count in enumerate(counts):
        part = x[:, labels == a]
        means.append(part.mean(axis=1))
        centred.append(part - means[-1][:, None])
        traces.append((centred[-1] ** 2).sum() / (count - 1))
    products = np.empty((len(counts), len(counts)))
    for a, b in itertools.combinations_with_replacement(range(len(counts)), 2):
        cross = float(((centred[a].T @ centred[b]) ** 2).sum()) / ((counts[a] - 1) * (counts[b] - 1))
        products[a, b] = products[b, a] = cross
    for a, n in enumerate(counts):
        quartic = ((centred[a] ** 2).sum(axis=0) ** 2).sum() / (n - 1)
        bracket = (n - 1) * (n - 2) * products[a, a] + traces[a] ** 2 - n * quartic
        products[a, a] = (n - 1) / (n * (n - 2) * (n - 3)) * bracket
    return MixtureMoments(np.array(means), np.array(traces), products)
