"""Out-of-distribution scores from the geometry of collapse."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nclib.metrics.checks import as_tensor, check_features, check_logits
from nclib.metrics.measuring import Features
from nclib.metrics.moments import ClassMoments

Scores = Literal["neco", "nci", "mahalanobis"]


def ood_scores(
    features: Tensor | np.ndarray | Features,
    moments: ClassMoments,
    w: Tensor | np.ndarray | None = None,
    method: Scores = "neco",
    *,
    logits: Tensor | np.ndarray | None = None,
    dim: int | None = None,
    alpha: float = 0.0,
) -> Tensor:
    """Scores of samples from the geometry of collapse: the larger, the more like the training data.

        "neco"         ‖P h‖ / ‖h‖, P the projection onto ``dim`` principal components of the training features
        "nci"          (h − μ)·w_c / ‖h − μ‖ + alpha ‖h‖₁, c the predicted class, μ the mean of the training features
        "mahalanobis"  −min_k (h − μ_k)ᵀ Σ_W⁻¹ (h − μ_k)

    "neco" and "nci" suppose that the features have collapsed; "mahalanobis" does not.

    Parameters
    ----------
    features : (N, d), or what ``nc.features`` returned, whose logits and w then count where none are given
    moments : of the training features, ``class_moments`` or ``ClassMoments``; with a covariance, except for "nci"
    w : (K, d) classifier rows; "nci" alone needs them
    method : "neco", "nci" or "mahalanobis"
    logits : (N, K) of the samples; "nci" predicts with them, without them with h wᵀ, that is, without a bias
    dim : of "neco", below d; left out, K − 1 for the K classes that have samples, the dimension of their simplex
    alpha : of "nci", the weight of ‖h‖₁; the paper tunes it on validation data

    Returns
    -------
    Tensor
        (N,) float64, on the device of the moments. A sample for which a ratio is 0/0 has 0 there.

    Raises
    ------
    ValueError
        An unknown method, shapes that do not fit, w missing for "nci", moments without a covariance, "neco" without a
        dim where K − 1 ≥ d.

    Notes
    -----
    Sources: NECO, Ben Ammar et al. 2024, eq. (6), neither standardised nor centred; for transformers the authors
    multiply by the largest logit. NCI, Liu & Qin 2025. Mahalanobis, Lee et al. 2018, eq. (2). Directions in which
    Σ_W has less than 1e-12 of its largest eigenvalue do not count in the Mahalanobis distance.

    Examples
    --------
    >>> import torch, nclib as nc
    >>> labels, noise = torch.arange(100) % 10, torch.Generator().manual_seed(0)
    >>> train = nc.simplex_etf(10, 32)[labels] + 0.01 * torch.randn(100, 32, generator=noise)
    >>> moments = nc.class_moments(train, labels, 10)
    >>> other = torch.randn(100, 32, generator=noise)
    >>> bool(nc.ood_scores(train, moments).min() > nc.ood_scores(other, moments).max())
    True
    """
    if method not in ("neco", "nci", "mahalanobis"):
        raise ValueError(f"method must be 'neco', 'nci' or 'mahalanobis', got {method!r}")
    if isinstance(features, Features):
        logits = features.logits if logits is None else logits
        w, features = features.w if w is None else w, features.h
    h = check_features(features, moments.dim).to(moments.device).double()
    if method == "mahalanobis":
        return _mahalanobis(h, moments)
    sampled = moments.with_weighting("sample")
    if method == "neco":
        dim = int((moments.counts > 0).sum()) - 1 if dim is None else dim
        if not 1 <= dim < moments.dim:
            raise ValueError(
                f"dim must lie in 1 … {moments.dim - 1}, since all {moments.dim} components hold the whole of h and "
                f"every score is 1; got {dim}. Left out, it is one less than the classes that have samples"
            )
        components = torch.linalg.eigh(moments.within_cov + sampled.between_cov)[1][:, -dim:]
        return (torch.linalg.vector_norm(h @ components, dim=1) / torch.linalg.vector_norm(h, dim=1)).nan_to_num(0.0)
    if w is None:
        raise ValueError('"nci" compares features with the classifier: pass w, its (K, d) weight')
    w = as_tensor(w).to(h)
    scores = h @ w.T if logits is None else check_logits(logits, len(h), len(w)).to(h.device)
    centred = h - sampled.global_mean
    proximity = (centred * w[scores.argmax(1)]).sum(1)
    return (proximity / torch.linalg.vector_norm(centred, dim=1)).nan_to_num(0.0) + alpha * h.abs().sum(1)


def _mahalanobis(h: Tensor, m: ClassMoments) -> Tensor:
    values, directions = torch.linalg.eigh(m.within_cov)
    keep = values > max(1e-12 * float(values[-1]), 0.0)
    if not keep.any():
        raise ValueError("the training features do not vary within their classes, as the Mahalanobis distance needs")
    whiten = directions[:, keep] / values[keep].sqrt()
    means = m.means_from_origin[m.present] @ whiten  # around the first sample, as the features
    gaps = torch.cdist((h - m.origin) @ whiten, means, compute_mode="donot_use_mm_for_euclid_dist")
    return -gaps.amin(1).square()
