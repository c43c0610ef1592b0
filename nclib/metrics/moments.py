"""Class counts, class means and covariances of features: what every metric is a function of.

Below them are the checks of features, labels and classes that all of ``nclib.metrics`` shares.
"""

import copy
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nclib.solvers import is_whole

Weighting = Literal["class", "sample", "mixed"]
Array = Tensor | np.ndarray
Classes = Array | Sequence[int] | Sequence[bool]

RANK_RTOL = 1e-10  # eigenvalues of Σ_B below this fraction of the largest count as zero, always
CHUNK_NUMBERS = 2**21  # float64 numbers that are worked on at once: 16 MiB


class EmptyClassWarning(UserWarning):
    """A class without samples has no mean and is left out of every metric of features."""


class ClassMoments:
    """Class counts, class means and covariances of features, added up batch by batch in one pass.

        Σ_W = (1/N) Σ_k Σ_i (h_{k,i} − μ_k)(h_{k,i} − μ_k)ᵀ    under every weighting
        Σ_B = Σ_k a_k (μ_k − μ)(μ_k − μ)ᵀ,   μ = Σ_k c_k μ_k

    =========  =========  =========  ===============================================
    weighting  c_k        a_k
    =========  =========  =========  ===============================================
    "class"    1/K        1/K        every class counts alike
    "sample"   n_k/N      n_k/N      every sample counts alike
    "mixed"    n_k/N      1/K        as in many public scripts
    =========  =========  =========  ===============================================

    The three are the same for balanced classes.

    Everything is float64. How the samples are split into batches changes the result by rounding
    only, and a common shift of the features costs no digit. A class without samples is left out:
    K above is then the number of the other classes, and its rows in ``class_means``,
    ``centred_means`` and ``class_variances`` are NaN.

    Parameters
    ----------
    num_classes : K ≥ 1
    dim : d ≥ 1
    weighting : "class", "sample" or "mixed", see above

    Attributes
    ----------
    counts : (K,) int64, samples per class
    origin : (d,) the first sample, around which everything is added up
    means_from_origin : (K, d), μ_k minus the origin; 0 for a class without samples
    squares : (K,), Σ_i ‖h_i − μ_k‖²
    scatter : (d, d), Σ_k Σ_i (h_i − μ_k)(h_i − μ_k)ᵀ

    Raises
    ------
    ValueError
        For an unknown weighting, or sizes that are no whole numbers of at least 1.

    Notes
    -----
    Source: Sun & Shi 2024, eq. (11), whose μ is the mean of class means ("class"). Batches are
    combined as in Chan, Golub & LeVeque 1983.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(30) % 3
    >>> moments = nc.ClassMoments(num_classes=3, dim=4)
    >>> for rows in torch.arange(30).split(8):
    ...     moments = moments.update(nc.simplex_etf(3, 4)[labels[rows]], labels[rows])
    >>> moments
    <ClassMoments: 30 samples, 3 classes, 4 features>
    """

    def __init__(self, num_classes: int, dim: int, weighting: Weighting = "class") -> None:
        if not (is_whole(num_classes) and is_whole(dim) and num_classes >= 1 and dim >= 1):
            raise ValueError(
                "num_classes and dim must be integers of at least 1, "
                f"got {num_classes!r} and {dim!r}"
            )
        self.num_classes = num_classes
        self.dim = dim
        self.weighting = check_weighting(weighting)
        self.counts = torch.zeros(num_classes, dtype=torch.int64)
        self.origin = torch.zeros(dim, dtype=torch.float64)
        self.means_from_origin = torch.zeros(num_classes, dim, dtype=torch.float64)
        self.squares = torch.zeros(num_classes, dtype=torch.float64)
        self.scatter = torch.zeros(dim, dim, dtype=torch.float64)

    def __repr__(self) -> str:
        samples = int(self.counts.sum())
        return f"<ClassMoments: {samples} samples, {self.num_classes} classes, {self.dim} features>"

    # Adding samples

    def update(self, h: Array, labels: Array) -> "ClassMoments":
        """Add a batch.

        Parameters
        ----------
        h : (B, d) floating-point features; the first batch decides the device
        labels : (B,) integers 0 … K−1

        Returns
        -------
        ClassMoments
            This one.

        Raises
        ------
        ValueError
            For a wrong shape or dtype, a label out of range, a NaN or infinite feature. Nothing is
            added then.
        """
        h, labels = check_batch(h, labels, self.num_classes, self.dim)
        if not self.counts.any():
            self._begin(h[0])
        for rows in chunks(h):
            self._add(h[rows].to(self.device, torch.float64), labels[rows].to(self.device))
        return self

    def _begin(self, first: Tensor) -> None:
        """On the device of the first sample, and around it."""
        self.counts = self.counts.to(first.device)
        self.origin = first.to(torch.float64, copy=True)
        self.means_from_origin = self.means_from_origin.to(first.device)
        self.squares = self.squares.to(first.device)
        self.scatter = self.scatter.to(first.device)

    def _add(self, h: Tensor, labels: Tensor) -> None:
        """Two sets of n₁ and n₂ samples with means m₁ and m₂ have together the scatter
        S₁ + S₂ + (n₁ n₂ / n) (m₂ − m₁)(m₂ − m₁)ᵀ, so no large number is subtracted from another."""
        h = h - self.origin
        added = torch.bincount(labels, minlength=self.num_classes)
        sums = torch.zeros_like(self.means_from_origin).index_add_(0, labels, h)
        means = sums / added.clamp(min=1)[:, None]
        h = h - means[labels]

        total = self.counts + added
        share = added.double() / total.clamp(min=1)
        joint = self.counts * share  # n₁ n₂ / n
        gap = means - self.means_from_origin
        self.scatter += h.T @ h + gap.T @ (joint[:, None] * gap)
        self.squares.index_add_(0, labels, h.square().sum(1))
        self.squares += joint * gap.square().sum(1)
        self.means_from_origin += share[:, None] * gap
        self.counts = total

    def with_weighting(self, weighting: Weighting) -> "ClassMoments":
        """A copy under another weighting.

        Parameters
        ----------
        weighting : "class", "sample" or "mixed"

        Returns
        -------
        ClassMoments

        Raises
        ------
        ValueError
            For an unknown weighting.
        """
        other = copy.deepcopy(self)
        other.weighting = check_weighting(weighting)
        return other

    def select(self, classes: Classes) -> "ClassMoments":
        """A copy of some of the classes alone, numbered anew in ascending order.

        The scatter is kept as a sum over all classes. So Σ_W of some of them is not known: NaN.

        Parameters
        ----------
        classes : (K,) boolean mask, or a list of class ids

        Returns
        -------
        ClassMoments

        Raises
        ------
        ValueError
            For a mask of the wrong length, no class, or an id that is out of range or named twice.
        """
        mask = class_mask(classes, self.num_classes).to(self.device)
        part = ClassMoments(int(mask.sum()), self.dim, self.weighting)
        part.counts = self.counts[mask]
        part.origin = self.origin.clone()
        part.means_from_origin = self.means_from_origin[mask]
        part.squares = self.squares[mask]
        part.scatter = torch.full_like(self.scatter, torch.nan)
        return part

    # What follows from the sums

    @property
    def device(self) -> torch.device:
        """Where the sums are: the device of the first batch."""
        return self.counts.device

    @property
    def num_samples(self) -> int:
        """N."""
        total = int(self.counts.sum())
        if total == 0:
            raise ValueError("these moments have no samples yet; call update(h, labels) first")
        return total

    @property
    def present(self) -> Tensor:
        """(K,) bool, the classes that have samples."""
        return self.counts > 0

    @property
    def weights(self) -> Tensor:
        """(K,), c_k."""
        weights = self.present if self.weighting == "class" else self.counts
        return weights.double() / weights.sum()

    @property
    def shares(self) -> Tensor:
        """(K,), a_k."""
        shares = self.counts if self.weighting == "sample" else self.present
        return shares.double() / shares.sum()

    @property
    def class_means(self) -> Tensor:
        """(K, d), μ_k; NaN rows for classes without samples."""
        return self.origin + self._without_absent(self.means_from_origin)

    @property
    def global_mean(self) -> Tensor:
        """(d,), μ = Σ_k c_k μ_k."""
        return self.origin + self.weights @ self.means_from_origin

    @property
    def centred_means(self) -> Tensor:
        """(K, d), μ_k − μ; NaN rows for classes without samples."""
        centred = self.means_from_origin - self.weights @ self.means_from_origin
        return self._without_absent(centred)

    @property
    def class_variances(self) -> Tensor:
        """(K,), mean of ‖h − μ_k‖² over the samples of class k; NaN for classes without samples."""
        return self.squares / self.counts  # 0/0 is NaN

    @property
    def within_cov(self) -> Tensor:
        """(d, d), Σ_W: mean of (h − μ_k)(h − μ_k)ᵀ over all samples."""
        return self.scatter / self.num_samples

    @property
    def between_cov(self) -> Tensor:
        """(d, d), Σ_B = Σ_k a_k (μ_k − μ)(μ_k − μ)ᵀ."""
        return self.between_rows.T @ self.between_rows

    @property
    def between_rows(self) -> Tensor:
        """(C, d), √a_k (μ_k − μ) of the C classes that have samples: rowsᵀ rows = Σ_B."""
        return (self.shares.sqrt()[:, None] * self.centred_means)[self.present]

    def between_eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (r,) and eigenvectors (d, r) of Σ_B, those above 1e-10 of the largest.

        They come from the singular values of ``between_rows``, which have the digits that squares
        would lose.
        """
        _, singular, directions = torch.linalg.svd(self.between_rows, full_matrices=False)
        values = singular**2
        keep = (values > RANK_RTOL * values[0]) & (values > 0)
        return values[keep], directions[keep].T

    @property
    def rank_between(self) -> int:
        """How many eigenvalues of Σ_B are above 1e-10 of the largest: K − 1 for a simplex ETF."""
        values, _ = self.between_eigen()
        return len(values)

    def _without_absent(self, rows: Tensor) -> Tensor:
        return torch.where(self.present[:, None], rows, torch.nan)


def class_moments(
    h: Array, labels: Array, num_classes: int, weighting: Weighting = "class"
) -> ClassMoments:
    """Moments of a whole set of features.

    Parameters
    ----------
    h : (N, d) floating-point features, on any device
    labels : (N,) integers 0 … K−1
    num_classes : K
    weighting : "class", "sample" or "mixed": how classes count in μ and Σ_B, see ``ClassMoments``

    Returns
    -------
    ClassMoments
        In float64, on the device of h.

    Raises
    ------
    ValueError
        As ``ClassMoments.update``.

    Warns
    -----
    EmptyClassWarning
        A class has no samples.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(30) % 3
    >>> moments = nc.class_moments(nc.simplex_etf(3, 4)[labels], labels, 3)
    >>> moments.centred_means.shape
    torch.Size([3, 4])
    """
    h = check_features(h)
    moments = ClassMoments(num_classes, h.shape[1], weighting).update(h, labels)
    absent = (~moments.present).nonzero().flatten().tolist()
    if absent:
        named = ", ".join(str(k) for k in absent[:10])
        more = ", …" if len(absent) > 10 else ""
        warnings.warn(
            f"{len(absent)} of {num_classes} classes have no samples and are left out: "
            f"{named}{more}",
            EmptyClassWarning,
            stacklevel=2,
        )
    return moments


def chunks(h: Tensor) -> list[slice]:
    """Row ranges of h that take about 16 MiB each in float64."""
    step = max(1, CHUNK_NUMBERS // h.shape[1])
    return [slice(start, start + step) for start in range(0, len(h), step)]


# What is accepted as features, labels, logits, classes and weighting


def as_tensor(x: Array | Sequence) -> Tensor:
    """Without gradient; an array is copied only if torch cannot share it."""
    if isinstance(x, Tensor):
        return x.detach()
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))


def check_weighting(weighting: Weighting) -> Weighting:
    if weighting not in ("class", "sample", "mixed"):
        raise ValueError(
            f"weighting must be 'class', 'sample' or 'mixed', got {weighting!r}; see ClassMoments"
        )
    return weighting


def check_finite(x: Tensor, name: str) -> None:
    bad = (~torch.isfinite(x)).any(dim=1).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"{name} has NaN or infinite values in {len(bad)} of {len(x)} rows, "
            f"the first is row {bad[0]}"
        )


def check_features(h: Array, dim: int | None = None) -> Tensor:
    """(N, d), finite, N ≥ 1."""
    h = as_tensor(h)
    if h.ndim != 2 or h.shape[1] != (dim or h.shape[1]) or not h.is_floating_point():
        raise ValueError(
            f"h must be floating-point features of shape (N, {dim or 'd'}), "
            f"got {h.dtype} {tuple(h.shape)}"
        )
    if 0 in h.shape:
        raise ValueError(f"h has shape {tuple(h.shape)}; give at least one sample and one feature")
    check_finite(h, "h")
    return h


def check_batch(h: Array, labels: Array, num_classes: int, dim: int) -> tuple[Tensor, Tensor]:
    """Features (N, d) and labels (N,) int64 in 0 … K−1."""
    h = check_features(h, dim)
    labels = as_tensor(labels)
    whole = not labels.is_floating_point() and labels.dtype != torch.bool
    if labels.shape != h.shape[:1] or not whole:
        raise ValueError(
            f"labels must be integers of shape ({len(h)},), "
            f"got {labels.dtype} {tuple(labels.shape)}"
        )
    labels = labels.long()
    lowest = int(labels.min())
    highest = int(labels.max())
    if lowest < 0 or highest >= num_classes:
        raise ValueError(f"labels must lie in 0 … {num_classes - 1}, got {lowest} … {highest}")
    return h, labels


def check_logits(logits: Array, num_samples: int, num_classes: int) -> Tensor:
    logits = as_tensor(logits)
    if logits.shape != (num_samples, num_classes):
        raise ValueError(
            f"logits must have shape ({num_samples}, {num_classes}), got {tuple(logits.shape)}"
        )
    check_finite(logits, "logits")
    return logits


def class_mask(classes: Classes, num_classes: int) -> Tensor:
    """(K,) bool from such a mask or from class ids."""
    classes = as_tensor(classes)
    if classes.dtype == torch.bool and classes.shape == (num_classes,):
        return classes
    ids = classes.flatten().tolist()
    in_range = all(k in range(num_classes) for k in ids)
    if classes.dtype == torch.bool or len(set(ids)) < len(ids) or not in_range:
        raise ValueError(
            f"give a ({num_classes},) mask or different class ids in 0 … {num_classes - 1}, "
            f"got {ids}"
        )
    mask = torch.zeros(num_classes, dtype=torch.bool)
    mask[[int(k) for k in ids]] = True
    return mask
