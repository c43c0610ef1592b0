"""Out-of-distribution scores from the geometry of collapse."""

from typing import Literal

import torch
from torch import Tensor

from nclib.metrics.checks import Array, check_features
from nclib.metrics.measuring import Features
from nclib.metrics.moments import ClassMoments

Scores = Literal["neco", "mahalanobis"]


def ood_scores(
    features: Array | Features, moments: ClassMoments, method: Scores = "neco", dim: int | None = None
) -> Tensor:
    """Scores of samples from the geometry of collapse: the larger, the more like the training data.

        "neco"         ‖P h‖ / ‖h‖, P the projection onto ``dim`` principal components of the training features
        "mahalanobis"  −min_k (h − μ_k)ᵀ Σ_W⁻¹ (h − μ_k)

    "neco" supposes that the features have collapsed; "mahalanobis" does not.

    Parameters
    ----------
    features : (N, d), or what ``nc.features`` returned
    moments : of the training features, ``class_moments`` or ``ClassMoments``, with a covariance
    method : "neco" or "mahalanobis"
    dim : of "neco", below d; left out, K − 1 for the K classes that have samples, the dimension of their simplex

    Returns
    -------
    Tensor
        (N,) float64, on the device of the moments. A sample for which a ratio is 0/0 has 0 there.

    Raises
    ------
    ValueError
        An unknown method, shapes that do not fit, moments without a covariance, "neco" without a dim where K − 1 ≥ d.

    Notes
    -----
    Sources: NECO, Ben Ammar et al. 2024, eq. (6), neither standardised nor centred; for transformers the authors
    multiply by the largest logit. Mahalanobis, Lee et al. 2018, eq. (2). Directions in which
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
    if method not in ("neco", "mahalanobis"):
        raise ValueError(f"method must be 'neco' or 'mahalanobis', got {method!r}")
    h = features.h if isinstance(features, Features) else features
    h = check_features(h, moments.dim).to(moments.device).double()
    if method == "mahalanobis":
        values, directions = torch.linalg.eigh(moments.within_cov)
        keep = values > max(1e-12 * float(values[-1]), 0.0)
        if not keep.any():
            raise ValueError("the training features do not vary in their classes, as the Mahalanobis distance needs")
        whiten = directions[:, keep] / values[keep].sqrt()
        means = moments.means_from_origin[moments.present] @ whiten  # around the first sample, as the features
        gaps = torch.cdist((h - moments.origin) @ whiten, means, compute_mode="donot_use_mm_for_euclid_dist")
        return -gaps.amin(1).square()
    dim = int((moments.counts > 0).sum()) - 1 if dim is None else dim
    if not 1 <= dim < moments.dim:
        raise ValueError(f"dim must lie in 1 … {moments.dim - 1}, or every score is 1; got {dim} (left out: K - 1)")
    components = torch.linalg.eigh(moments.within_cov + moments.with_weighting("sample").between_cov)[1][:, -dim:]
    return (torch.linalg.vector_norm(h @ components, dim=1) / torch.linalg.vector_norm(h, dim=1)).nan_to_num(0.0)
