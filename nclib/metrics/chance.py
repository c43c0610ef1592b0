"""What chance alone gives, and how many dimensions the features use."""

import math

import numpy as np
import torch
from torch import Tensor

from nclib.metrics.definitions import ratio
from nclib.metrics.moments import RANK_RTOL, ClassMoments


def nc1_chance(m: ClassMoments, seed: int = 0) -> dict[str, float]:
    """NC1 of the same features with shuffled labels: what chance alone gives, to be read beside NC1.

    Parameters
    ----------
    m : moments of the features with their true labels; the class sizes are kept
    seed : of the shuffles, which have a generator of their own

    Returns
    -------
    dict
        ``nc1_trace_ratio_shuffled``, the ratio of the expectations of tr Σ_W and tr Σ_B over all shuffles, exactly:
        (N − K)/N · K²/((K − 1) Σ_k 1/n_k) with the "class" weighting, (N − K)/(K − 1) with "sample" or equal
        classes, (N − K)/N · K/(Σ_k 1/n_k − K/N) with "mixed", whatever the features and their dimension.
        ``nc1_pinv_shuffled``, the median over an odd number of shuffles, 201 for ten classes. Their class means are
        drawn from the covariance of all samples, so the features need not be seen again. Isotropic features with
        K ≪ d ≪ N have about (K − 1) N/(K d). Left out where the moments have no covariance.

    Notes
    -----
    Do not compare ``nc1_pinv`` between layers of different dimension d. It adds up Σ_W along the K − 1 directions of
    Σ_B only, so with more dimensions less of the noise is seen: even without any structure it falls like 1/d. Compare
    ``nc1_trace_ratio`` or ``nc1_cdnv``, or each value with its own chance level.

    Examples
    --------
    >>> import torch, nclib as nc
    >>> h, labels = torch.randn(1200, 64, generator=torch.Generator().manual_seed(0)), torch.arange(1200) % 10
    >>> chance = nc.metrics.nc1_chance(nc.class_moments(h, labels, 10))
    >>> round(chance["nc1_trace_ratio_shuffled"], 2)  # (1200 - 10) / 9
    132.22
    """
    counts = m.counts[m.present].double()
    n, k = counts.sum(), len(counts)
    centre, shares = m.weights[m.present], m.shares[m.present]
    # shuffled class means have the covariances S (δ_kl/n_k − 1/N), S = N/(N − 1) Σ_T; Σ_W the mean S (N − K)/N
    between = ((shares * (1 - 2 * centre) + centre.square()) / counts).sum()
    found = {"nc1_trace_ratio_shuffled": ratio((n - k) / n, between)}
    if m.scatter is None:
        return found
    values = _total_eigenvalues(m)
    values = values[values > values.max() * torch.finfo(torch.float64).eps * m.dim][-max(int(n) - 1, 1) :].cpu().numpy()
    if k < 2 or not len(values):
        return {"nc1_pinv_shuffled": math.nan, "nc1_trace_ratio_shuffled": math.nan}
    rng, draws = np.random.default_rng(seed), max(2000 // k, 8) | 1  # many classes are an average in themselves
    sizes = [x.cpu().numpy() for x in (counts, centre, shares)]
    drawn = [_pinv_of_shuffle(values, *sizes, rng) for _ in range(draws)]
    return {"nc1_pinv_shuffled": float(np.median(drawn)), **found}


def _pinv_of_shuffle(
    values: np.ndarray, counts: np.ndarray, centre: np.ndarray, shares: np.ndarray, rng: np.random.Generator
) -> float:
    """NC1 where the K − 1 dimensions that labels span among the N − 1 of the samples are drawn uniformly.

    Parameters
    ----------
    values : (r,) eigenvalues of Σ_T that are not 0; in their basis Σ_B = C'C between them, C (K − 1, r) a corner of a
        random orthogonal matrix of size N − 1.
    """
    n, k, r = counts.sum(), len(counts), len(values)
    corner, others = rng.standard_normal((k - 1, r)), int(n) - 1 - r
    lower = np.tril(rng.standard_normal((k - 1, k - 1)), -1)  # Bartlett: of the Gram matrix of the other columns
    if others >= k - 1:
        lower[np.diag_indices(k - 1)] = np.sqrt(rng.chisquare(others - np.arange(k - 1)))
    else:
        lower = rng.standard_normal((k - 1, others))
    corner = np.linalg.solve(np.linalg.cholesky(corner @ corner.T + lower @ lower.T), corner) * np.sqrt(values)
    basis = np.linalg.svd(np.sqrt(counts / n)[None])[2][1:].T  # (K, K − 1), orthogonal to the sizes
    means = np.sqrt(n / counts)[:, None] * (basis @ corner)
    rows = np.sqrt(shares)[:, None] * (means - centre @ means)  # Σ_B = rowsᵀ rows
    between, u = np.linalg.eigh(rows @ rows.T)
    keep = between > max(RANK_RTOL * between[-1], 0)
    along = u.T[keep] @ rows
    within = along**2 @ values - ((along @ corner.T) ** 2).sum(1)  # uᵀ rows Σ_W rowsᵀ u, Σ_W = Σ_T − cornerᵀ corner
    return float((within / between[keep] ** 2).sum() / k)


def _total_eigenvalues(m: ClassMoments) -> Tensor:
    """(d,) eigenvalues of the covariance of all samples around their mean, Σ_W + Σ_B with sample weights."""
    total = m.within_cov + m.with_weighting("sample").between_cov
    return torch.linalg.eigvalsh(total).clamp(min=0)


def effective_rank(m: ClassMoments) -> float:
    """How many dimensions the features use, a number between 1 and d.

        exp(−Σ_i p_i log p_i),   p_i = σ_i / Σ_j σ_j

    with σ_i the singular values of the features around their mean, over all samples.

    Parameters
    ----------
    m : moments with a covariance

    Returns
    -------
    float
        K − 1 for a collapsed simplex of K balanced classes; r for r equal variances; NaN where nothing varies.

    Notes
    -----
    Source: Roy & Vetterli 2007. Some authors take the squares of the σ_i, which gives a smaller number.

    Examples
    --------
    >>> import torch, nclib as nc
    >>> labels = torch.arange(100) % 10
    >>> round(nc.metrics.effective_rank(nc.class_moments(nc.simplex_etf(10, 64)[labels], labels, 10)), 3)
    9.0
    """
    values = _total_eigenvalues(m)
    sigma = values[values > values.max() * torch.finfo(torch.float64).eps * m.dim].sqrt()
    p = sigma / sigma.sum()
    return float(torch.exp(-(p * p.log()).sum())) if len(p) else math.nan
