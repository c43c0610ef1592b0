"""Class counts, class means and covariances of features: what every metric is a function of."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nclib.metrics.checks import Array, Classes, Weighting, as_tensor, check_batch, check_weighting, class_mask
from nclib.solvers import is_whole
from nclib.system.warning import warn

RANK_RTOL = 1e-10  # eigenvalues of Σ_B below this fraction of the largest count as zero, always
_COINCIDE = 1e-12  # class means closer than this fraction of ``resolution``'s scale differ by rounding only
_STRIP = 128  # rows of the within-class scatter per product: what lies above its diagonal is left out
CHUNK_NUMBERS = 2**21  # float64 numbers per chunk: 16 MiB


class EmptyClassWarning(UserWarning):
    """A class without samples has no mean and is left out of every metric."""


class ClassMoments:
    """Class counts, class means and covariances of features, accumulated batch by batch in one pass.

        Σ_W = (1/N) Σ_k Σ_i (h_{k,i} − μ_k)(h_{k,i} − μ_k)ᵀ    mean over samples under every weighting
        Σ_B = Σ_k a_k (μ_k − μ)(μ_k − μ)ᵀ,  μ = Σ_k c_k μ_k

    =========  =========  =========  ==========================================================
    weighting  c_k        a_k
    =========  =========  =========  ==========================================================
    "class"    1/K        1/K        every class counts alike
    "sample"   n_k/N      n_k/N      every sample counts alike
    "mixed"    n_k/N      1/K        sample mean and equal classes, as many public scripts have
    =========  =========  =========  ==========================================================

    They are the same for balanced classes.

    Batches are combined by Chan's update: no large number is ever subtracted from another, so neither a common shift
    of the features nor class means far apart cost any digit. Splitting and ordering change the result by rounding
    only. A class without samples is left out (K above is then the number of the others) with an
    ``EmptyClassWarning``; its rows in ``class_means`` and ``class_variances`` are NaN.

    Parameters
    ----------
    num_classes : K ≥ 1.
    dim : d ≥ 1.
    weighting : "class", "sample" or "mixed", see above. ``with_weighting`` gives another view of the same sums.
    covariance : False keeps no (d, d) matrix, for features too wide for one: there is no ``within_cov`` then, and
        what needs it (``nc1_pinv``, ``effective_rank``) is refused.

    Attributes
    ----------
    origin : (d,), the first sample, around which everything is added up: a common shift is never squared.
    counts : (K,) int64, samples per class.
    means_from_origin : (K, d), μ_k minus the origin; 0 for classes without samples.
    squares : (K,), Σ_i ‖h_i − μ_k‖².
    scatter : (d, d), lower half of Σ_k Σ_i (h_i − μ_k)(h_i − μ_k)ᵀ; None where it is not kept.

    Raises
    ------
    ValueError
        An unknown weighting or sizes below 1. ``update`` documents what it refuses; properties raise where there are no
        samples yet.

    Source: Sun & Shi 2024, eq. (11); Chan, Golub & LeVeque 1983.

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

    def __init__(self, num_classes: int, dim: int, weighting: Weighting = "class", *, covariance: bool = True) -> None:
        if not (is_whole(num_classes) and is_whole(dim) and min(num_classes, dim) >= 1):
            raise ValueError(f"num_classes and dim must be integers of at least 1, got {num_classes!r} and {dim!r}")
        self.num_classes, self.dim = num_classes, dim
        self.weighting = check_weighting(weighting)
        with torch.inference_mode(False):  # tensors made in that mode could not be updated outside of it
            self.origin = torch.zeros(dim, dtype=torch.float64)
            self.counts = torch.zeros(num_classes, dtype=torch.int64)
            self.means_from_origin = torch.zeros(num_classes, dim, dtype=torch.float64)
            self.squares = torch.zeros(num_classes, dtype=torch.float64)
            self.scatter = torch.zeros(dim, dim, dtype=torch.float64) if covariance else None
        self._derived: dict[str, tuple[int, Any]] = {}

    def __repr__(self) -> str:
        return f"<ClassMoments: {self.counts.sum()} samples, {self.num_classes} classes, {self.dim} features>"

    def update(self, h: Array, labels: Array) -> "ClassMoments":
        """Add a batch.

        Parameters
        ----------
        h : (B, d) floating-point features. The first batch decides the device; later ones follow it.
        labels : (B,) integers 0 … K−1.

        Returns
        -------
        self.

        Raises
        ------
        ValueError
            Wrong shape or dtype, a label out of range, a NaN or infinite feature. Nothing is added then.
        """
        h, labels = check_batch(h, labels, self.num_classes, self.dim)
        with torch.inference_mode(False):
            for rows in chunks(h):
                if not self.counts.any():
                    self._begin(h[0])
                self._add(h[rows].to(self.device), labels[rows].to(self.device))
        return self

    def with_weighting(self, weighting: Weighting) -> "ClassMoments":
        """The same sums seen under another weighting: a view, it follows later updates of what has samples.

        Parameters
        ----------
        weighting : "class", "sample" or "mixed".

        Raises
        ------
        ValueError
            An unknown weighting.
        """
        view = copy.copy(self)
        view.weighting = check_weighting(weighting)
        view._derived = {key: value for key, value in self._derived.items() if key != "eigen"}
        return view

    def select(self, classes: Classes) -> "ClassMoments":
        """A copy with some of the classes alone, renumbered 0, 1, … in ascending order.

        Σ_W is kept only as the sum over all classes, so a selection has no ``within_cov`` (and no ``nc1_pinv``); all
        else is as if only these classes existed.

        Parameters
        ----------
        classes : (K,) boolean mask, or a list of class ids.

        Raises
        ------
        ValueError
            The mask has the wrong length, an id is out of range or named twice.
        """
        mask = class_mask(classes, self.num_classes).to(self.device)
        part = copy.copy(self)
        part.num_classes, part.scatter, part._derived = int(mask.sum()), None, {}
        part.origin = self.origin.clone()
        for name in ("counts", "means_from_origin", "squares"):
            setattr(part, name, getattr(self, name)[mask])
        return part

    device = property(lambda self: self.counts.device, doc="Where the sums live: the device of the first batch.")

    @property
    def num_samples(self) -> int:
        """N."""
        total = int(self.counts.sum())
        if total == 0:
            raise ValueError("these moments have no samples yet; call update(h, labels) first")
        return total

    @property
    def weights(self) -> Tensor:
        """(K,), c_k."""
        weights = (self.present if self.weighting == "class" else self.counts).double()
        return weights / weights.sum()

    @property
    def shares(self) -> Tensor:
        """(K,), a_k."""
        shares = (self.counts if self.weighting == "sample" else self.present).double()
        return shares / shares.sum()

    @property
    def between_rows(self) -> Tensor:
        """(K, d) of the classes that have samples, rowsᵀ rows = Σ_B."""
        return (self.shares.sqrt()[:, None] * self.centred_means)[self.present]

    @property
    def resolution(self) -> Tensor:
        """(), the distance below which class means differ by rounding only: that of a mean grows with the numbers it
        is the mean of, which are samples minus the origin, not with the distances between the means."""
        spread = (self.squares / self.counts.clamp(min=1)).sqrt()  # (K,)
        return _COINCIDE * torch.hypot(torch.linalg.vector_norm(self.means_from_origin, dim=1), spread).max()

    @property
    def present(self) -> Tensor:
        """(K,) bool, the classes that have samples. Warns once (``EmptyClassWarning``) of the others."""
        return self._derive("present", self._find_present)

    @property
    def class_means(self) -> Tensor:
        """(K, d), μ_k; NaN rows for classes without samples."""
        return torch.where(self.present[:, None], self.origin + self.means_from_origin, torch.nan)

    @property
    def global_mean(self) -> Tensor:
        """(d,), μ = Σ_k c_k μ_k: the mean of class means, or the sample mean."""
        return self.origin + self.weights @ self.means_from_origin

    @property
    def centred_means(self) -> Tensor:
        """(K, d), μ_k − μ, exact at any common shift; NaN rows for classes without samples.

        A row that is nothing but the rounding of the sums is 0, so that class means which coincide are seen as such:
        one shorter than 1e-12 of the largest root mean square distance, over the classes, of samples from the first
        sample. What rounding did to the features before they came here is taken as data.
        """
        means = torch.where(self.present[:, None], self.means_from_origin, torch.nan)
        centred = means - self.weights @ self.means_from_origin
        return centred.masked_fill_(torch.linalg.vector_norm(centred, dim=1, keepdim=True) <= self.resolution, 0.0)

    @property
    def within_cov(self) -> Tensor:
        """(d, d), Σ_W: mean over all samples of (h − μ_k)(h − μ_k)ᵀ."""
        if self.scatter is None:
            raise ValueError("a selection of classes, or covariance=False, has no within_cov")
        return (self.scatter.tril() + self.scatter.tril(-1).T) / self.num_samples

    @property
    def between_cov(self) -> Tensor:
        """(d, d), Σ_B = Σ_k a_k (μ_k − μ)(μ_k − μ)ᵀ."""
        rows = self.between_rows
        return rows.T @ rows

    @property
    def class_variances(self) -> Tensor:
        """(K,), mean of ‖h − μ_k‖² over the samples of class k; NaN for classes without samples."""
        return torch.where(self.present, self.squares / self.counts.clamp(min=1), torch.nan)

    @property
    def rank_between(self) -> int:
        """How many eigenvalues of Σ_B exceed 1e-10 of the largest: K − 1 for a simplex ETF, 0 where all class means
        coincide."""
        return self.between_eigen()[0].numel()

    def between_eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (r,) and eigenvectors (d, r) of Σ_B that count: those above 1e-10 of the largest.

        Computed from the singular values of the centred means, which keep the digits that squaring them would
        lose.
        """
        return self._derive("eigen", self._between_eigen)

    # -- how it is done

    def _begin(self, first: Tensor) -> None:
        """On the device of the first sample, and around it."""
        for name in ("origin", "counts", "means_from_origin", "squares", "scatter"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name).to(first.device))
        self.origin.copy_(first)

    def _add(self, h: Tensor, labels: Tensor) -> None:
        h = h.to(torch.float64, copy=True).sub_(self.origin)  # (B, d)
        classes, place, added = torch.unique(labels, return_inverse=True, return_counts=True)  # (C,), (B,), (C,)
        before = self.counts[classes]
        total = (before + added).double()  # two integer tensors would divide in float32
        h -= self.means_from_origin.index_select(0, labels)
        gap = h.new_zeros(len(classes), self.dim).index_add_(0, place, h).div_(added[:, None])  # (C, d)
        # gap is the mean of h in its class, whose scatter grows by Σ h hᵀ − n_added² gap gapᵀ / n_total. That is Σ x xᵀ
        # with x = h − (1 − √(n_before / n_total)) gap: no squares are subtracted, and one symmetric product serves.
        h.addcmul_(gap.index_select(0, place), (1 - (before / total).sqrt()).index_select(0, place)[:, None], value=-1)
        self.means_from_origin.index_add_(0, classes, gap.mul_((added / total)[:, None]))
        self.counts.index_add_(0, classes, added)
        self.squares.index_add_(0, labels, torch.linalg.vector_norm(h, dim=1).square_())
        for start in range(0, self.dim if self.scatter is not None else 0, _STRIP):
            end = start + _STRIP
            self.scatter[start:end, :end].addmm_(h[:, start:end].T, h[:, :end])

    def _derive(self, name: str, compute: Callable[[], Any]) -> Any:
        """What was computed when there were as many samples as now, or else is computed now."""
        samples = int(self.counts.sum())
        if name not in self._derived or self._derived[name][0] != samples:
            self._derived[name] = samples, compute()
        return self._derived[name][1]

    def _find_present(self) -> Tensor:
        present = self.counts > 0
        if self.num_samples and not present.all():
            ids = [str(k) for k in (~present).nonzero().flatten().tolist()]
            said = f"{len(ids)} of {self.num_classes} classes have no samples and are left out: {', '.join(ids[:10])}"
            warn(said + ", …" * (len(ids) > 10), EmptyClassWarning)
        return present

    def _between_eigen(self) -> tuple[Tensor, Tensor]:
        _, singular, directions = torch.linalg.svd(self.between_rows, full_matrices=False)
        values = singular**2
        keep = (values > RANK_RTOL * values[0]) & (values > 0)
        return values[keep], directions[keep].T


def class_moments(h: Array, labels: Array, num_classes: int, weighting: Weighting = "class") -> ClassMoments:
    """Moments of a whole set of features.

    Parameters
    ----------
    h : (N, d) floating-point features, on any device.
    labels : (N,) integers 0 … K−1.
    num_classes : K.
    weighting : "class": μ is the mean of class means and Σ_B = (1/K) Σ_k (μ_k−μ)(μ_k−μ)ᵀ;
        "sample": μ is the sample mean and Σ_B = Σ_k (n_k/N) (μ_k−μ)(μ_k−μ)ᵀ;
        "mixed": μ is the sample mean and Σ_B = (1/K) Σ_k (μ_k−μ)(μ_k−μ)ᵀ.
        Σ_W is the mean over samples in all.

    Returns
    -------
    ClassMoments, float64, on the device of h.

    Raises
    ------
    ValueError
        As ``ClassMoments.update``, or no samples at all.

    Source: Sun & Shi 2024, eq. (11), whose μ is the mean of class means ("class").

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(30) % 3
    >>> moments = nc.class_moments(nc.simplex_etf(3, 4)[labels], labels, 3)
    >>> moments.centred_means.shape
    torch.Size([3, 4])
    """
    h = as_tensor(h)
    moments = ClassMoments(num_classes, h.shape[-1], weighting).update(h, labels)
    _ = moments.present  # warn here, where the data is named, and not at the first metric
    return moments


def chunks(h: Tensor, also: int = 0) -> Iterator[slice]:
    """Row ranges of h that take about 16 MiB in float64, ``also`` further numbers per row included."""
    step = max(1, CHUNK_NUMBERS // (h.shape[1] + also))
    return (slice(start, start + step) for start in range(0, len(h), step))
