"""Metrics of the classifier alone, and of the features without their labels."""

import math

import torch

from nclib.metrics.checks import Array, Classes, as_tensor, class_mask, scaled_rows
from nclib.metrics.definitions import cosines, ratio
from nclib.metrics.moments import ClassMoments


def nc0(w: Array) -> float:
    """How far the classifier's rows are from adding up to zero.

        NC0 = ‖Σ_k w_k‖² / K

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are

    Returns
    -------
    float
        0 is necessary for NC2 and NC3 together, and not sufficient; the value grows with the square of w.

    Notes
    -----
    Source: Zhao, Cheng, Masarczyk & Lucchi, ICLR 2026 (arXiv 2602.16642), α_t of their theorem 3.1. Their appendix,
    eq. (12), has the norm, not squared, over d instead: ``(nc0(w) * K) ** 0.5 / d``. Neither is free of the size of
    w, so compare values of one network over time, not networks.

    Examples
    --------
    >>> import torch, nclib as nc
    >>> round(nc.metrics.nc0(nc.simplex_etf(10, 64)), 12), nc.metrics.nc0(torch.ones(4, 3))
    (0.0, 12.0)
    """
    scaled_rows(w, "w")  # refuses what is not a matrix
    w = as_tensor(w).double()
    return ratio(w.sum(0).square().sum(), torch.tensor(len(w)))


def minority_cosine(w: Array, minority: Classes) -> float:
    """Mean cosine between the classifier rows of the minority classes.

        mean over k ≠ l in the minority of cos(w_k, w_l)

    1 = minority collapse; −1/(K−1) for a simplex ETF; range [−1/(K_B−1), 1]. Source: Fang et al. 2021.

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are.
    minority : (K,) boolean mask, or a list of class ids.

    Returns
    -------
    float; NaN where a minority row is zero or there are fewer than two.
    """
    w = scaled_rows(w, "w")
    rows = w[class_mask(minority, len(w)).to(w.device)]
    return float(cosines(rows).mean()) if len(rows) > 1 else math.nan


def classifier_norm_ratio(w: Array, minority: Classes) -> float:
    """Mean norm of the minority classifier rows over that of the majority rows.

        mean_{k minority} ‖w_k‖ / mean_{k majority} ‖w_k‖

    Ideal value 1, 0 = the minority has lost its classifiers, range [0, ∞]. Source: Fang et al. 2021.

    Parameters
    ----------
    w : (K, d) classifier rows.
    minority : (K,) boolean mask, or a list of class ids.

    Returns
    -------
    float; NaN where one of the two groups is empty or the classifier is zero.
    """
    w = scaled_rows(w, "w")
    norms, mask = torch.linalg.norm(w, dim=1), class_mask(minority, len(w)).to(w.device)
    return ratio(norms[mask].mean(), norms[~mask].mean())


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
    # the covariance of all samples around their mean
    values = torch.linalg.eigvalsh(m.within_cov + m.with_weighting("sample").between_cov).clamp(min=0)
    sigma = values[values > values.max() * torch.finfo(torch.float64).eps * m.dim].sqrt()
    p = sigma / sigma.sum()
    return float(torch.exp(-(p * p.log()).sum())) if len(p) else math.nan
