"""Neural-collapse metrics: one definition, one name, one reference.

Read from top to bottom: the moments that every metric is a function of, the ideal geometry, NC1 … NC4,
minority collapse, the paper's own uncentred equations, and the report that puts them side by side.

Symbols: N samples, K classes, d feature dimension; h (N, d) features, w (K, d) classifier rows, μ_k class
means, μ their mean under the chosen weighting. Everything is computed in float64, chunk by chunk, on the
device of the input, whatever the precision of the input is; no gradient is recorded. NumPy arrays are
accepted wherever tensors are. Features may be as large as 1e150 and as small as 1e-150, where their squares still
are float64 numbers; classifier rows, and vectors given to ``nc2_*``, may have any size.
"""

import copy
import math
import numbers
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

Weighting = Literal["class", "sample"]
Array = Tensor | np.ndarray
Classes = Array | Sequence[int] | Sequence[bool]

RANK_RTOL = 1e-10  # eigenvalues of Σ_B below this fraction of the largest count as zero, always
SMALL_CLASS = 5  # below it, the within-class trace is too small by more than a fifth (factor 1 − 1/n)
_COINCIDE = 1e-12  # class means closer than this fraction of ``_resolution``'s scale differ by rounding only
_STRIP = 128  # rows of the scatter per product: what lies above its diagonal is left out
_CHUNK_NUMBERS = 2**21  # float64 numbers per chunk: 16 MiB


class EmptyClassWarning(UserWarning):
    """A class without samples has no mean and is left out of every metric."""


# ---------------------------------------------------------------------------------------------------- moments


@dataclass
class _Sums:
    """What is accumulated, relative to ``shift``, the first sample: a common shift is never squared."""

    shift: Tensor  # (d,)
    counts: Tensor  # (K,) int64
    means: Tensor  # (K, d), class means minus shift; 0 where there is no sample
    squares: Tensor  # (K,) Σ_i ‖h_i − μ_k‖²
    scatter: Tensor | None  # (d, d) lower half of Σ_k Σ_i (h_i − μ_k)(h_i − μ_k)ᵀ; None where it is not kept
    version: int = 0  # counts the changes, so that derived quantities know when they are stale


class ClassMoments:
    """Class counts, class means and covariances of features, accumulated batch by batch in one pass.

        Σ_W = (1/N) Σ_k Σ_i (h_{k,i} − μ_k)(h_{k,i} − μ_k)ᵀ    mean over samples under either weighting
        Σ_B = Σ_k a_k (μ_k − μ)(μ_k − μ)ᵀ,  μ = Σ_k a_k μ_k    a_k = 1/K ("class") or n_k/N ("sample")

    Batches and accumulators are combined by Chan's update: no large number is ever subtracted
    from another, so neither a common shift of the features nor class means far apart cost any digit.
    Splitting, ordering and merging change the result by rounding only. A class without samples is left out (K
    above is then the number of the others) with an ``EmptyClassWarning``; its rows in ``class_means`` and
    ``class_variances`` are NaN.

    Args:
        num_classes: K ≥ 1.
        dim: d ≥ 1.
        weighting: "class" or "sample", the weights a_k. ``with_weighting`` gives the other view of the same
            sums.
        covariance: False keeps no (d, d) matrix, for features too wide for one: there is no ``within_cov`` then, and
            what needs it (``nc1_pinv``, ``effective_rank``) is refused.

    Raises:
        ValueError: an unknown weighting, sizes below 1; in ``update``, see there; in a property, no samples
        yet.

    Source: Sun & Shi 2024, eq. (11); Chan, Golub & LeVeque 1983.
    """

    def __init__(
        self, num_classes: int, dim: int, weighting: Weighting = "class", *, covariance: bool = True
    ) -> None:
        if not (_whole(num_classes) and _whole(dim) and num_classes >= 1 and dim >= 1):
            raise ValueError(
                f"num_classes and dim must be whole numbers of at least 1, got {num_classes!r} and {dim!r}"
            )
        self.num_classes, self.dim = num_classes, dim
        self.weighting = _check_weighting(weighting)
        self._sums = _Sums(
            shift=torch.zeros(dim, dtype=torch.float64),
            counts=torch.zeros(num_classes, dtype=torch.int64),
            means=torch.zeros(num_classes, dim, dtype=torch.float64),
            squares=torch.zeros(num_classes, dtype=torch.float64),
            scatter=torch.zeros(dim, dim, dtype=torch.float64) if covariance else None,
        )
        self._selected = False
        self._derived: dict[str, tuple] = {}

    def update(self, h: Array, labels: Array) -> "ClassMoments":
        """Add a batch.

        Args:
            h: (B, d) floating-point features. The first batch decides the device; later ones follow it.
            labels: (B,) integers 0 … K−1.

        Returns:
            self.

        Raises:
            ValueError: wrong shape or dtype, a label out of range, a NaN or infinite feature. Nothing is
            added then.
        """
        h, labels = _check_batch(h, labels, self.num_classes, self.dim)
        if self._selected:
            raise ValueError("a selection of classes is read-only; update the moments it was selected from")
        if self._sums.version == 0:
            self.to(h.device)
        device = self._sums.means.device
        for rows in _chunks(h):
            self._add(h[rows].to(device), labels[rows].to(device))
        return self

    def merge(self, other: "ClassMoments") -> "ClassMoments":
        """Add the samples of another accumulator, in place; ``other`` stays as it is.

        Args:
            other: moments with the same K and d, its weighting and device do not matter.

        Returns:
            self.

        Raises:
            ValueError: K or d differ.
        """
        if (self.num_classes, self.dim) != (other.num_classes, other.dim):
            raise ValueError(
                f"cannot merge moments of {other.num_classes} classes × {other.dim} features "
                f"into {self.num_classes} × {self.dim}"
            )
        mine, theirs = self._sums, other._sums
        if self._selected or other._selected:
            raise ValueError(
                "a selection of classes cannot be merged; merge the moments it was selected from"
            )
        if (mine.scatter is None) != (theirs.scatter is None):
            raise ValueError("moments with a covariance cannot be merged with moments made with covariance=False")
        if theirs.version == 0:
            return self
        if mine.version == 0:
            self.to(theirs.means.device)
            mine.shift.copy_(theirs.shift)
        device = mine.means.device
        n_mine, n_theirs = mine.counts, theirs.counts.to(device)
        total = (n_mine + n_theirs).clamp(min=1)
        gap = theirs.means.to(device) + (theirs.shift.to(device) - mine.shift) - mine.means  # (K, d)
        weight = (n_mine * n_theirs / total.double())[:, None]  # (K, 1)
        if mine.scatter is not None:
            mine.scatter += theirs.scatter.to(device) + (weight * gap).T @ gap
        mine.squares += theirs.squares.to(device) + (weight * gap * gap).sum(1)
        mine.means += gap * (n_theirs / total.double())[:, None]
        mine.counts += n_theirs
        mine.version += 1
        return self

    def to(self, device: torch.device | str) -> "ClassMoments":
        """Move the sums to a device, in place; to the CPU before they are sent to another process.

        Returns:
            self.
        """
        sums = self._sums
        for name in ("shift", "counts", "means", "squares", "scatter"):
            if getattr(sums, name) is not None:
                setattr(sums, name, getattr(sums, name).to(device))
        self._derived = {}
        return self

    def with_weighting(self, weighting: Weighting) -> "ClassMoments":
        """The same sums seen under another weighting: a view, it follows later updates.

        Args:
            weighting: "class" (a_k = 1/K) or "sample" (a_k = n_k/N).

        Raises:
            ValueError: an unknown weighting.
        """
        view = copy.copy(self)
        view.weighting = _check_weighting(weighting)
        view._derived = {key: value for key, value in self._derived.items() if key != "eigen"}
        return view

    def select(self, classes: Classes) -> "ClassMoments":
        """A copy with some of the classes alone, renumbered 0, 1, … in ascending order.

        Σ_W is kept only as the sum over all classes, so a selection has no ``within_cov`` (and no
        ``nc1_pinv``), and it cannot be updated; all else is as if there were no other classes.

        Args:
            classes: (K,) boolean mask, or a list of class ids.

        Raises:
            ValueError: the mask has the wrong length, an id is out of range or named twice.
        """
        mask, sums = _class_mask(classes, self.num_classes).to(self.device), self._sums
        part = copy.copy(self)
        part.num_classes, part._selected, part._derived = int(mask.sum()), True, {}
        part._sums = _Sums(
            sums.shift, sums.counts[mask], sums.means[mask], sums.squares[mask], None, sums.version
        )
        return part

    @property
    def device(self) -> torch.device:
        """Where the sums live: the device of the first batch."""
        return self._sums.means.device

    @property
    def counts(self) -> Tensor:
        """(K,) int64, samples per class."""
        return self._sums.counts

    @property
    def present(self) -> Tensor:
        """(K,) bool, the classes that have samples. Warns once (``EmptyClassWarning``) of the others."""
        return self._derive("present", self._present)

    @property
    def class_means(self) -> Tensor:
        """(K, d), μ_k; NaN rows for classes without samples."""
        return self._sums.shift + self._relative_means()

    @property
    def global_mean(self) -> Tensor:
        """(d,), μ = Σ_k a_k μ_k: the mean of class means, or the sample mean."""
        return self._sums.shift + self._weights() @ self._sums.means

    @property
    def centred_means(self) -> Tensor:
        """(K, d), μ_k − μ, exact at any common shift; NaN rows for classes without samples.

        A row that is nothing but the rounding of the sums is 0, so that class means which coincide are seen as such:
        one shorter than 1e-12 of the largest root mean square distance, over the classes, of samples from the first
        sample. What rounding did to the features before they came here is taken as data.
        """
        centred = self._relative_means() - self._weights() @ self._sums.means
        noise = torch.linalg.vector_norm(centred, dim=1, keepdim=True) <= self._resolution()
        return centred.masked_fill_(noise, 0.0)

    @property
    def within_cov(self) -> Tensor:
        """(d, d), Σ_W: mean over all samples of (h − μ_k)(h − μ_k)ᵀ."""
        scatter = self._sums.scatter
        if scatter is None:
            raise ValueError(
                "the within-class covariance is kept for all classes together, not for a selection of them"
                if self._selected
                else "these moments were made with covariance=False and have no within-class covariance"
            )
        return (scatter.tril() + scatter.tril(-1).T) / self._num_samples()

    @property
    def between_cov(self) -> Tensor:
        """(d, d), Σ_B = Σ_k a_k (μ_k − μ)(μ_k − μ)ᵀ."""
        rows = self._weighted_rows()
        return rows.T @ rows

    @property
    def class_variances(self) -> Tensor:
        """(K,), mean of ‖h − μ_k‖² over the samples of class k; NaN for classes without samples."""
        return torch.where(self.present, self._sums.squares / self.counts.clamp(min=1), torch.nan)

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

    def _add(self, h: Tensor, labels: Tensor) -> None:
        sums = self._sums
        if sums.version == 0:
            sums.shift.copy_(h[0])
        h = h.to(torch.float64, copy=True).sub_(sums.shift)  # (B, d)
        classes, place, added = torch.unique(labels, return_inverse=True, return_counts=True)  # (C,), (B,), (C,)
        before = sums.counts[classes]
        total = (before + added).double()  # two integer tensors would divide in float32
        h -= sums.means.index_select(0, labels)
        gap = h.new_zeros(len(classes), self.dim).index_add_(0, place, h).div_(added[:, None])  # (C, d)
        # gap is the mean of h in its class, whose scatter grows by Σ h hᵀ − n_added² gap gapᵀ / n_total. That is Σ x xᵀ
        # with x = h − (1 − √(n_before / n_total)) gap: no squares are subtracted, and one symmetric product serves.
        part = 1 - (before / total).sqrt()
        h.addcmul_(gap.index_select(0, place), part.index_select(0, place)[:, None], value=-1)
        sums.means.index_add_(0, classes, gap.mul_((added / total)[:, None]))
        sums.counts.index_add_(0, classes, added)
        sums.squares.index_add_(0, labels, torch.linalg.vector_norm(h, dim=1).square_())
        for start in range(0, self.dim if sums.scatter is not None else 0, _STRIP):
            end = start + _STRIP
            sums.scatter[start:end, :end].addmm_(h[:, start:end].T, h[:, :end])
        sums.version += 1

    def _derive(self, name: str, compute) -> object:
        version, value = self._derived.get(name, (None, None))
        if version != self._sums.version:
            value = compute()
            self._derived[name] = (self._sums.version, value)
        return value

    def _num_samples(self) -> int:
        total = int(self.counts.sum())
        if total == 0:
            raise ValueError("there are no samples in these moments yet; call update(h, labels) first")
        return total

    def _present(self) -> Tensor:
        self._num_samples()
        present = self.counts > 0
        if not present.all():
            absent = (~present).nonzero().flatten().tolist()
            warnings.warn(
                f"{len(absent)} of {self.num_classes} classes have no samples and are left out: "
                f"{', '.join(map(str, absent[:10]))}{' …' if len(absent) > 10 else ''}",
                EmptyClassWarning,
                stacklevel=2,
            )
        return present

    def _weights(self) -> Tensor:
        weights = (self.present if self.weighting == "class" else self.counts).double()
        return weights / weights.sum()  # (K,)

    def _relative_means(self) -> Tensor:
        return torch.where(self.present[:, None], self._sums.means, torch.nan)

    def _resolution(self) -> Tensor:
        """(), the distance below which class means differ by rounding only: that of a mean grows with the numbers it
        is the mean of, which are samples minus shift, not with the distances between the means."""
        spread = (self._sums.squares / self.counts.clamp(min=1)).sqrt()  # (K,)
        return _COINCIDE * torch.hypot(torch.linalg.vector_norm(self._sums.means, dim=1), spread).max()

    def _weighted_rows(self) -> Tensor:
        rows = self._weights().sqrt()[:, None] * self.centred_means  # (K, d), Σ_B = rowsᵀ rows
        return rows[self.present]

    def _between_eigen(self) -> tuple[Tensor, Tensor]:
        _, singular, directions = torch.linalg.svd(self._weighted_rows(), full_matrices=False)
        values = singular**2
        keep = (values > RANK_RTOL * values[0]) & (values > 0)
        return values[keep], directions[keep].T


def class_moments(h: Array, labels: Array, num_classes: int, weighting: Weighting = "class") -> ClassMoments:
    """Moments of a whole set of features.

    Args:
        h: (N, d) floating-point features, on any device.
        labels: (N,) integers 0 … K−1.
        num_classes: K.
        weighting: "class": μ is the mean of class means and Σ_B = (1/K) Σ_k (μ_k−μ)(μ_k−μ)ᵀ;
            "sample": μ is the sample mean and Σ_B = Σ_k (n_k/N) (μ_k−μ)(μ_k−μ)ᵀ.
            Σ_W is the mean over samples in both.

    Returns:
        ClassMoments, float64, on the device of h.

    Raises:
        ValueError: as ``ClassMoments.update``, or no samples at all.

    Source: Sun & Shi 2024, eq. (11), whose μ is the mean of class means ("class").
    """
    h = _tensor(h)
    if h.ndim != 2 or 0 in h.shape:
        raise ValueError(f"h must have shape (N, d) with N, d ≥ 1, got {tuple(h.shape)}")
    moments = ClassMoments(num_classes, h.shape[1], weighting).update(h, labels)
    _ = moments.present  # warn here, where the data is named, and not at the first metric
    return moments


def simplex_etf(num_classes: int, dim: int) -> Tensor:
    """The simplex equiangular tight frame: K unit vectors that sum to zero, every two at cosine −1/(K−1).

        V Vᵀ = K/(K−1) · (I − 11ᵀ/K)

    Args:
        num_classes: K ≥ 2.
        dim: d ≥ K − 1; fewer dimensions cannot hold K such vectors.

    Returns:
        (K, d) float64, always the same one (Helmert's basis, zero beyond dimension K − 1).

    Raises:
        ValueError: K < 2 or d < K − 1.

    Source: Papyan, Han & Donoho 2020, definition 1.
    """
    if not (_whole(num_classes) and _whole(dim) and 2 <= num_classes <= dim + 1):
        raise ValueError(
            f"a simplex ETF needs whole numbers K ≥ 2 and dim ≥ K - 1, got K = {num_classes!r} and dim = {dim!r}"
        )
    v = torch.zeros(num_classes, dim, dtype=torch.float64)
    for j in range(1, num_classes):  # column j − 1: the first j entries against entry j
        v[:j, j - 1], v[j, j - 1] = 1.0, -j
        v[:, j - 1] *= math.sqrt(num_classes / (num_classes - 1) / (j * (j + 1)))
    return v


# ------------------------------------------------------------------------ NC1: variability within the classes


def nc1_pinv(m: ClassMoments) -> float:
    """Within-class covariance measured in units of the between-class covariance, averaged over samples.

        NC1 = tr(Σ_W Σ_B†) / K,   eigenvalues of Σ_B below 1e-10 of the largest dropped

    Directions in which the class means do not differ are not seen: where class means merge, their direction
    drops out and NC1 *falls*; just before, it explodes. Read it together with ``rank_between`` and
    ``nc1_trace_ratio``.

    Args:
        m: moments of all classes.

    Returns:
        float; NaN where all class means coincide.

    Ideal value 0, range [0, ∞). Source: Sun & Shi 2024, eq. (12); Papyan, Han & Donoho 2020.
    """
    values, directions = m.between_eigen()
    along = ((m.within_cov @ directions) * directions).sum(0)  # (r,) variance along each direction
    return _ratio((along / values).sum(), m.present.sum()) if len(values) else math.nan


def nc1_pinv_class_balanced(h: Array, labels: Array, m: ClassMoments) -> float:
    """``nc1_pinv`` with Σ_W as the mean of the class covariances, so that small classes count as much as
    large ones.

        NC1 = tr(Σ̄_W Σ_B†) / K,   Σ̄_W = (1/K) Σ_k (1/n_k) Σ_i (h_{k,i} − μ_k)(h_{k,i} − μ_k)ᵀ

    At K_A = 3, R = 100 the seven minority classes carry 2.3 % of the sample-averaged Σ_W, and 70 % of this
    one.

    Args:
        h: (N, d) the features that ``m`` was computed from.
        labels: (N,) integers 0 … K−1.
        m: their moments; its weighting decides Σ_B.

    Returns:
        float; NaN where all class means coincide.

    Raises:
        ValueError: as ``ClassMoments.update``.

    Ideal value 0, range [0, ∞). Equal to ``nc1_pinv`` for balanced classes. Source: eq. (12) with
    class-balanced Σ_W.
    """
    h, labels = _check_batch(h, labels, m.num_classes, m.dim)
    return _class_balanced_pinv(h, labels, m)


def _class_balanced_pinv(h: Tensor, labels: Tensor, m: ClassMoments) -> float:
    """As above; samples labelled −1 belong to no class of ``m``."""
    values, directions = m.between_eigen()
    if not len(values):
        return math.nan
    whiten = directions / values.sqrt()  # (d, r), Σ_B† = whiten whitenᵀ
    means = m._sums.means @ whiten  # (K, r)
    squares = torch.zeros_like(m._sums.squares)  # (K,)
    for rows in _chunks(h):
        x, y = h[rows].to(m.device, torch.float64), labels[rows].to(m.device)
        x, y = x[y >= 0], y[y >= 0]
        squares.index_add_(0, y, ((x - m._sums.shift) @ whiten - means[y]).square().sum(1))
    return _ratio((squares / m.counts.clamp(min=1)).sum(), m.present.sum() ** 2)


def nc1_trace_ratio(m: ClassMoments) -> float:
    """Within-class variance over between-class variance.

        NC1 = tr Σ_W / tr Σ_B

    Args:
        m: moments.

    Returns:
        float; inf where all class means coincide (NaN if nothing varies at all).

    Ideal value 0, range [0, ∞]. Needs no pseudo-inverse and no rank decision. Source: Tirer, Huang &
    Niles-Weed 2023.
    """
    return _ratio(m._sums.squares.sum() / m._num_samples(), m._weighted_rows().square().sum())


def nc1_cdnv(m: ClassMoments) -> float:
    """Class-distance normalised variance, averaged over pairs of classes.

        CDNV = mean over k < l of (v_k + v_l) / (2 ‖μ_k − μ_l‖²),   v_k = mean ‖h_{k,i} − μ_k‖²

    Args:
        m: moments; the weighting does not matter.

    Returns:
        float; inf where two class means coincide (but for rounding, as in ``ClassMoments.centred_means``); NaN for
        fewer than two classes.

    Ideal value 0, range [0, ∞]. Source: Galanti, György & Hutter 2022.
    """
    if m.present.sum() < 2:
        return math.nan
    means, variances = m._sums.means[m.present], m.class_variances[m.present]
    i, j = torch.triu_indices(len(means), len(means), offset=1, device=m.device)
    # Differences, not a Gram matrix: means that nearly coincide keep their digits.
    distances = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")[i, j]
    if bool((distances <= m._resolution()).any()):
        return math.inf
    return float(((variances[i] + variances[j]) / (2 * distances**2)).mean())


# -------------------------------------------------------------------- NC2: the class means form a simplex ETF


def nc2_etf_distance(v: Array) -> float:
    """Distance of the Gram matrix of K vectors from that of a simplex ETF, both scaled to Frobenius norm 1.

        NC2 = ‖ VVᵀ/‖VVᵀ‖_F − (I − 11ᵀ/K)/√(K−1) ‖_F

    The rows are taken as they are. Give centred means (``m.centred_means``) for the geometry around the
    global mean; uncentred ones are the paper's eq. (13), see ``paper_eq13_uncentred``.

    Args:
        v: (K, d) class means or classifier rows.

    Returns:
        float; NaN for K = 1 or V = 0.

    Raises:
        ValueError: v is not a finite (K, d) matrix.

    Ideal value 0, range [0, √2]. For K = 10: orthonormal rows 0.320 (also the floor for non-negative
    uncentred rows), two opposite clusters 1.155, all rows equal 1.414. Source: Sun & Shi 2024, eq. (13), with
    1/√(K−1) in place of the printed 1/(K−1).
    """
    v = _rows(v, "v")
    return _distance_of_directions(v @ v.T, _etf_gram(len(v), v.device))


def nc2_equinorm(v: Array) -> float:
    """How unequal the lengths of K vectors are.

        std_k ‖v_k‖ / mean_k ‖v_k‖,   population standard deviation (divisor K)

    Args:
        v: (K, d) centred class means or classifier rows, taken as they are.

    Returns:
        float; NaN for V = 0.

    Raises:
        ValueError: v is not a finite (K, d) matrix.

    Ideal value 0, range [0, √(K−1)]: the square is K Σ‖v‖² / (Σ‖v‖)² − 1, largest where one vector alone is not 0.
    Source: Papyan, Han & Donoho 2020, figure 2. Public code often takes the unbiased standard deviation (divisor
    K − 1, the default of torch.std), which is √(K/(K−1)) larger.
    """
    norms = torch.linalg.norm(_rows(v, "v"), dim=1)
    return _ratio(norms.std(correction=0), norms.mean())


def nc2_equiangular(v: Array) -> float:
    """How far the angles between K vectors are from those of a simplex ETF.

        mean over k ≠ l of | cos(v_k, v_l) + 1/(K−1) |

    Args:
        v: (K, d) centred class means or classifier rows, taken as they are.

    Returns:
        float; NaN for K = 1 or where a row is zero.

    Raises:
        ValueError: v is not a finite (K, d) matrix.

    Ideal value 0, range [0, K/(K−1)]: each term is largest at cosine 1, so all rows along one direction give the
    upper end. Source: Papyan, Han & Donoho 2020, figure 4; their figure 3 shows the standard deviation of the
    cosines, which is 0 for equal angles of any size.
    """
    v = _rows(v, "v")
    if len(v) < 2:
        return math.nan
    return float((_cosines(v) + 1 / (len(v) - 1)).abs().mean())


# --------------------------------------------------- NC3: classifier and class means become each other's dual


def nc3_self_duality(w: Array, m: ClassMoments) -> float:
    """Distance between the classifier and the centred class means, both scaled to Frobenius norm 1.

        NC3 = ‖ W/‖W‖_F − M/‖M‖_F ‖_F,   M = rows μ_k − μ

    Args:
        w: (K, d) classifier rows, taken as they are.
        m: moments; its weighting decides μ.

    Returns:
        float; NaN where W = 0 or all class means coincide.

    Raises:
        ValueError: w is not a finite (K, d) matrix.

    Ideal value 0, range [0, 2], unrelated √2 = 1.414. Source: Papyan, Han & Donoho 2020, figure 5, whose public
    code takes the square; Sun & Shi 2024, eq. (14), transposed and centred (uncentred: ``paper_eq14_uncentred``).
    """
    return _distance_of_directions(_classifier(w, m), m.centred_means[m.present])


def nc3_alignment(w: Array, m: ClassMoments) -> float:
    """Distance of the logits of the centred class means from the pattern of a simplex ETF.

        NC3 = ‖ WMᵀ/‖WMᵀ‖_F − (I − 11ᵀ/K)/√(K−1) ‖_F,   M = rows μ_k − μ

    Args:
        w: (K, d) classifier rows, taken as they are.
        m: moments; its weighting decides μ.

    Returns:
        float; NaN where W Mᵀ = 0 or K = 1.

    Raises:
        ValueError: w is not a finite (K, d) matrix.

    Ideal value 0, range [0, 2], unrelated √2 = 1.414. Unlike ``nc3_self_duality`` it is 0 only if NC2 holds
    as well. Source: Zhu et al. 2021.
    """
    logits = _classifier(w, m) @ m.centred_means[m.present].T  # (K, K)
    return _distance_of_directions(logits, _etf_gram(len(logits), logits.device))


# ------------------------------------------------------------------- NC4: the nearest class mean is predicted


def nc4_ncc_mismatch(h: Array, logits: Array, m: ClassMoments) -> float:
    """Fraction of samples whose nearest class mean is not the class that the classifier predicts.

        NC4 = mean_i [ argmax_k logits_{ik} ≠ argmin_k ‖h_i − μ_k‖ ]

    Where the predicted class is as near as the nearest, it counts as the nearest. Common shifts, outliers and class
    means far apart cost no digit that the class means themselves have.

    Args:
        h: (N, d) features.
        logits: (N, K) of the same samples, including any bias.
        m: moments; the weighting does not matter.

    Returns:
        float.

    Raises:
        ValueError: wrong shapes or dtypes, NaN or infinite values.

    Ideal value 0, range [0, 1]. Source: Papyan, Han & Donoho 2020, figure 7.
    """
    h, logits = _check_features(h, m.dim), _check_logits(logits, len(h), m.num_classes)
    return float(_ncc_mismatches(h, logits.argmax(1), m).double().mean())


def _ncc_mismatches(h: Tensor, predicted: Tensor, m: ClassMoments) -> Tensor:
    """(N,) bool, from the predicted classes (N,). ‖h − μ_k‖² = ‖h‖² − 2 (h·μ_k − ‖μ_k‖²/2), so the nearest mean has
    the largest score."""
    means = m._sums.means
    norms = torch.linalg.vector_norm(means, dim=1)  # (K,)
    offset = torch.where(m.present, norms.square() / 2, torch.inf)
    rounding = torch.finfo(torch.float64).eps * (m.dim + 3) * norms.max()  # times ‖h‖ + ‖μ‖: of a score, at most
    mismatches = []
    for rows in _chunks(h, also=m.num_classes):
        x = h[rows].to(m.device, torch.float64, copy=True).sub_(m._sums.shift)  # (B, d)
        scores = x @ means.T - offset  # (B, K)
        reach = rounding * (torch.linalg.vector_norm(x, dim=1, keepdim=True) + norms.max())  # (B, 1)
        near = (scores >= scores.amax(1, keepdim=True) - reach) & m.present  # may be the nearest
        chosen = predicted[rows].to(m.device)[:, None]
        mismatch = ~near.gather(1, chosen)[:, 0]
        unsure = (~mismatch & (near.sum(1) > 1)).nonzero()[:, 0]  # none in ordinary features
        mismatch[unsure] = _farther(x[unsure], means, near[unsure], chosen[unsure])
        mismatches.append(mismatch)
    return torch.cat(mismatches)


def _farther(x: Tensor, means: Tensor, near: Tensor, predicted: Tensor) -> Tensor:
    """(B,) bool, whether another of the ``near`` (B, K) means is nearer than that of the predicted class (B, 1)."""
    distances = torch.cdist(x, means, compute_mode="donot_use_mm_for_euclid_dist").masked_fill_(~near, torch.inf)
    return distances.gather(1, predicted)[:, 0] > distances.amin(1)


# ----------------------------------------------------------- beside NC1 to NC4: chance, rank, the classifier alone


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
        classes, whatever the features and their dimension.
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
    >>> chance = nc.nc1_chance(nc.class_moments(h, labels, 10))
    >>> round(chance["nc1_trace_ratio_shuffled"], 2)  # (1200 - 10) / 9
    132.22
    """
    counts = m.counts[m.present].double()
    n, k = counts.sum(), len(counts)
    shares = counts / n if m.weighting == "sample" else torch.full_like(counts, 1 / k)
    # shuffled class means have the covariances S (δ_kl/n_k − 1/N), S = N/(N − 1) Σ_T; Σ_W the mean S (N − K)/N
    between = (shares * (1 - shares) / counts).sum()
    found = {"nc1_trace_ratio_shuffled": _ratio((n - k) / n, between)}
    if m._sums.scatter is None:
        return found
    values = _total_eigenvalues(m)
    values = values[values > values.max() * torch.finfo(torch.float64).eps * m.dim][-max(int(n) - 1, 1) :].cpu().numpy()
    if k < 2 or not len(values):
        return {"nc1_pinv_shuffled": math.nan, "nc1_trace_ratio_shuffled": math.nan}
    rng, draws = np.random.default_rng(seed), max(2000 // k, 8) | 1  # many classes are an average in themselves
    drawn = [_pinv_of_shuffle(values, counts.cpu().numpy(), shares.cpu().numpy(), rng) for _ in range(draws)]
    return {"nc1_pinv_shuffled": float(np.median(drawn)), **found}


def _pinv_of_shuffle(values: np.ndarray, counts: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> float:
    """NC1 where the K − 1 dimensions that labels span among the N − 1 of the samples are drawn uniformly.

    values: (r,) eigenvalues of Σ_T that are not 0; in their basis Σ_B = C'C between them, C (K − 1, r) a corner of a
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
    rows = np.sqrt(shares)[:, None] * (means - shares @ means)  # Σ_B = rowsᵀ rows
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
    >>> round(nc.effective_rank(nc.class_moments(nc.simplex_etf(10, 64)[labels], labels, 10)), 3)
    9.0
    """
    values = _total_eigenvalues(m)
    sigma = values[values > values.max() * torch.finfo(torch.float64).eps * m.dim].sqrt()
    p = sigma / sigma.sum()
    return float(torch.exp(-(p * p.log()).sum())) if len(p) else math.nan


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

    Raises
    ------
    ValueError
        w is not a finite (K, d) matrix.

    Notes
    -----
    Source: Zhao, Cheng, Masarczyk & Lucchi, ICLR 2026 (arXiv 2602.16642), α_t of their theorem 3.1. Their appendix,
    eq. (12), has the norm, not squared, over d instead: ``(nc0(w) * K) ** 0.5 / d``. Neither is free of the size of
    w, so compare values of one network over time, not networks.

    Examples
    --------
    >>> import torch, nclib as nc
    >>> round(nc.nc0(nc.simplex_etf(10, 64)), 12), nc.nc0(torch.ones(4, 3))
    (0.0, 12.0)
    """
    _rows(w, "w")  # refuses what is not a matrix
    w = _tensor(w).double()
    return _ratio(w.sum(0).square().sum(), torch.tensor(len(w)))


# ------------------------------------------------------------------------------------------ minority collapse


def minority_cosine(w: Array, minority: Classes) -> float:
    """Mean cosine between the classifier rows of the minority classes.

        mean over k ≠ l in the minority of cos(w_k, w_l)

    Args:
        w: (K, d) classifier rows, taken as they are.
        minority: (K,) boolean mask, or a list of class ids.

    Returns:
        float; NaN where a minority row is zero or there are fewer than two.

    Raises:
        ValueError: w is not a finite (K, d) matrix, or the minority is not made of its classes.

    1 = minority collapse; −1/(K−1) for a simplex ETF; range [−1/(K_B−1), 1]. Source: Fang et al. 2021.
    """
    w = _rows(w, "w")
    rows = w[_class_mask(minority, len(w)).to(w.device)]
    return float(_cosines(rows).mean()) if len(rows) > 1 else math.nan


def classifier_norm_ratio(w: Array, minority: Classes) -> float:
    """Mean length of the minority classifier rows over that of the majority ones.

        mean_{k minority} ‖w_k‖ / mean_{k majority} ‖w_k‖

    Args:
        w: (K, d) classifier rows.
        minority: (K,) boolean mask, or a list of class ids.

    Returns:
        float; NaN where one of the two groups is empty or the classifier is zero.

    Raises:
        ValueError: as ``minority_cosine``.

    Ideal value 1, 0 = the minority has lost its classifiers, range [0, ∞]. Source: Fang et al. 2021.
    """
    w = _rows(w, "w")
    norms, mask = torch.linalg.norm(w, dim=1), _class_mask(minority, len(w)).to(w.device)
    return _ratio(norms[mask].mean(), norms[~mask].mean())


# ----------------------------------------------- the paper's own equations, uncentred, for comparison with it


def paper_eq13_uncentred(m: ClassMoments) -> float:
    """The paper's NC2: ``nc2_etf_distance`` of the class means *without* subtracting the global mean,
    constant corrected.

        ‖ H̄ᵀH̄/‖H̄ᵀH̄‖_F − (I − 11ᵀ/K)/√(K−1) ‖_F,   H̄ = columns μ_k

    Args:
        m: moments; the weighting does not matter.

    Ideal value 0, range [0, √2]; not below 0.320 (K = 10) for non-negative features; 1.169 for an ETF around
    a common mean of equal length. Source: Sun & Shi 2024, eq. (13), with the 1/√(K−1) that its figure 3
    implies.
    """
    return nc2_etf_distance(m.class_means[m.present])


def paper_eq13_uncentred_printed_constant(m: ClassMoments) -> float:
    """The paper's NC2 exactly as printed: uncentred, with 1/(K−1) where 1/√(K−1) is meant.

        ‖ H̄ᵀH̄/‖H̄ᵀH̄‖_F − (I − 11ᵀ/K)/(K−1) ‖_F

    Args:
        m: moments; the weighting does not matter.

    Never 0: a perfect ETF scores 1 − 1/√(K−1), which is the minimum (0.667 for K = 10, 0.899 for K = 100); at
    most √(K/(K−1)). Source: Sun & Shi 2024, eq. (13).
    """
    means = _rows(m.class_means[m.present], "class means")
    gram, classes = means @ means.T, len(means)
    target = _etf_gram(classes, gram.device) / math.sqrt(max(classes - 1, 1))
    return float(torch.linalg.norm(gram / torch.linalg.norm(gram) - target))


def paper_eq14_uncentred(w: Array, m: ClassMoments) -> float:
    """The paper's NC3: ``nc3_self_duality`` *without* subtracting the global mean (and with the missing
    transpose).

        ‖ W/‖W‖_F − H̄ᵀ/‖H̄‖_F ‖_F,   H̄ = columns μ_k

    Args:
        w: (K, d) classifier rows.
        m: moments; the weighting does not matter.

    Ideal value 0, range [0, 2], unrelated 1.414; a common mean twice as long as the deviations alone gives
    1.05. Source: Sun & Shi 2024, eq. (14), read with Frobenius norms.
    """
    return _distance_of_directions(_classifier(w, m), m.class_means[m.present])


# ------------------------------------------------------------------------------------------------- the report


class Ideal(NamedTuple):
    """What a report value is under perfect collapse, and the closed range it lies in (NaN aside)."""

    value: float
    low: float
    high: float


_BLOCK_KEYS = {  # reported of the whole and of each block: upper end of the range; ideal and lower end are 0
    "nc1_pinv_class_balanced": math.inf,
    "nc1_trace_ratio": math.inf,
    "nc1_cdnv": math.inf,
    "nc2_etf_distance": math.sqrt(2),
    "nc2_equinorm": math.inf,  # √(K−1), as ``ideal_values`` says
    "nc2_equiangular": 1.5,  # K/(K−1) of the block, which is NaN for two classes; of the whole, see ``ideal_values``
    "nc3_self_duality": 2.0,
    "nc3_alignment": 2.0,
    "nc4_ncc_mismatch": 1.0,
}


def ideal_values(num_classes: int) -> dict[str, Ideal]:
    """Ideal value and range of every key that ``nc_report`` can have, in its order.

    Args:
        num_classes: K ≥ 2; a few ideals and ranges depend on it. Where classes are absent, those of the class means
            are those of the remaining number of classes.

    Returns:
        key -> Ideal(value, low, high).

    Raises:
        ValueError: K < 2, or no whole number.
    """
    if not isinstance(num_classes, numbers.Integral):
        raise ValueError(f"num_classes must be a whole number, got {num_classes!r}")
    if num_classes < 2:
        raise ValueError(f"neural collapse needs at least 2 classes, got {num_classes}")
    k = num_classes
    block = {key: Ideal(0.0, 0.0, high) for key, high in _BLOCK_KEYS.items()}
    block["nc2_equinorm"] = Ideal(0.0, 0.0, math.sqrt(k - 1))
    keys = block | {"nc2_equiangular": Ideal(0.0, 0.0, k / (k - 1))}
    printed_minimum = 1 - 1 / math.sqrt(k - 1)
    return {
        "nc1_pinv": Ideal(0.0, 0.0, math.inf),
        **keys,
        **{f"{key}_classifier": value for key, value in keys.items() if key.startswith("nc2")},
        "rank_between": Ideal(k - 1, 0, k - 1),
        "paper_eq13_uncentred": keys["nc2_etf_distance"],
        "paper_eq13_uncentred_printed_constant": Ideal(
            printed_minimum, printed_minimum, math.sqrt(k / (k - 1))
        ),
        "paper_eq14_uncentred": keys["nc3_self_duality"],
        "absent_classes": Ideal(0, 0, k),
        "small_classes": Ideal(0, 0, k),
        "minority_cosine": Ideal(-1 / (k - 1), -1.0, 1.0),
        "classifier_norm_ratio": Ideal(1.0, 0.0, math.inf),
        **{f"{key}_majority": value for key, value in block.items()},
        **{f"{key}_minority": value for key, value in block.items()},
    }


def _same_sums(h: Tensor, labels: Tensor, m: ClassMoments) -> bool:
    """Whether the features have the class means of the moments, up to the rounding of sums in float64."""
    sums, size = torch.zeros_like(m._sums.means), torch.zeros_like(m._sums.shift)
    for rows in _chunks(h):
        part = h[rows].to(m.device).double()
        sums.index_add_(0, labels[rows].to(m.device), part)
        size += part.abs().sum(0)
    theirs = m.counts.unsqueeze(1) * m.class_means.nan_to_num()
    return bool(((sums - theirs).abs() <= 1e-9 * size).all())


def nc_report(
    h: Array,
    labels: Array,
    logits: Array | None = None,
    w: Array | None = None,
    weighting: Weighting = "class",
    minority: Classes | None = None,
    *,
    moments: ClassMoments | None = None,
    num_classes: int | None = None,
) -> dict[str, float]:
    """Every metric of this module at once, each under the name of its function.

    ``nc2_*`` are of the centred class means, ``nc2_*_classifier`` of the classifier rows as they are,
    ``paper_*`` of the uncentred means. ``absent_classes`` counts classes without samples (left out),
    ``small_classes`` those with 1 to 4 samples, whose within-class variance is too small by 25 % or more.

    What is not given is left out: without ``logits`` every ``nc4_*``; without ``w`` every ``nc3_*``, the names ending
    in ``_classifier``, ``paper_eq14_uncentred``, ``minority_cosine`` and ``classifier_norm_ratio``.

    With ``minority``, also ``minority_cosine``, ``classifier_norm_ratio`` and two blocks, ``*_majority`` and
    ``*_minority``: the classes of a block alone, as if they were the whole problem. Means and classifier rows
    are then centred at the block's own mean, because a face of a simplex ETF is a simplex ETF: perfect
    collapse has 0 in both blocks. Only ``nc4_ncc_mismatch_*`` compares with all class means. A block of one
    class has NaN where pairs are needed. Σ_W of a block is class-balanced.

    Of two classes, in all or in a block, the centred means form a simplex whatever the features are: there
    ``nc2_*`` of the means is NaN.

    Args:
        h: (N, d) features.
        labels: (N,) integers 0 … K−1.
        logits: (N, K), including any bias.
        w: (K, d) classifier rows.
        weighting: "class" or "sample", see ``class_moments``.
        minority: None, a (K,) boolean mask, or a list of class ids: neither none nor all of the classes.
        moments: of these very features, if they are known already (in either weighting): the second weighting
            then costs no second pass for the covariances.
        num_classes: K; left out, it is the number of rows of w, of columns of the logits, the moments', or one more
            than the largest label, the first of these that is given.

    Returns:
        dict of floats in the order of ``ideal_values``; NaN where a quantity is undefined.

    Raises:
        ValueError: shapes, dtypes or labels that do not fit together, NaN or infinite values, and finite ones so large
            that the squares of their distances are not.

    Warns:
        EmptyClassWarning: a class has no samples.

    Ideal values and ranges: ``ideal_values(K)``.

    Examples:
        >>> import torch, nclib as nc
        >>> labels = torch.arange(100) % 10
        >>> features = nc.simplex_etf(10, 16)[labels]
        >>> report = nc.nc_report(features, labels)
        >>> "nc1_trace_ratio" in report, "nc3_alignment" in report
        (True, False)
        >>> round(report["nc2_etf_distance"], 6)
        0.0
    """
    w = None if w is None else _rows(w, "w")
    if num_classes is None:
        num_classes = _count_classes(w, logits, moments, labels)
    h = _tensor(h)
    if w is not None and h.ndim == 2 and w.shape != (num_classes, h.shape[1]):
        turned = w.shape[0] == h.shape[1]
        expected, hint = (w.shape[1], "; pass w.T") if turned else (num_classes, "")
        raise ValueError(
            f"w must have shape ({expected}, {h.shape[1]}) as the moments have, got {tuple(w.shape)}{hint}"
        )
    given = moments is not None
    m = moments.with_weighting(weighting) if given else class_moments(h, labels, num_classes, weighting)
    h, labels = _check_batch(h, labels, num_classes, m.dim)
    counts = torch.bincount(labels, minlength=num_classes).to(m.device)
    same = m.num_classes == num_classes and torch.equal(counts, m.counts)
    if not same or (given and not _same_sums(h, labels, m)):
        raise ValueError(
            f"moments are of other data: {m.num_classes} classes and {int(m.counts.sum())} samples, not "
            f"{num_classes} and {int(counts.sum())}, or other labels or features; leave moments out to have them "
            "recomputed"
        )
    if h.dtype == torch.float64:  # the squares of all other types fit
        squares = m._sums.squares.sum() + m._weighted_rows().square().sum() * m._num_samples()
        if not math.isfinite(squares):
            raise ValueError("h is too large: squares of its distances overflow; dividing it changes no metric")
    w = None if w is None else w.to(m.device)
    mismatches = None
    if logits is not None:
        logits = _check_logits(logits, len(h), num_classes)
        mismatches = torch.zeros_like(m._sums.squares)  # (K,) samples of each class, exact
        wrong = _ncc_mismatches(h, logits.argmax(1), m).double()
        mismatches.index_add_(0, labels.to(m.device), wrong)
    report = _moments_report(m, w)
    report["nc1_pinv_class_balanced"] = _class_balanced_pinv(h, labels, m)
    if mismatches is not None:
        report["nc4_ncc_mismatch"] = _ratio(mismatches.sum(), m.counts.sum())
    if minority is not None:
        mask = _class_mask(minority, num_classes).to(m.device)
        if mask.all() or not mask.any():
            raise ValueError(
                f"minority must be some but not all of the {num_classes} classes, got {int(mask.sum())}"
            )
        if w is not None:
            report["minority_cosine"] = minority_cosine(w, mask)
            report["classifier_norm_ratio"] = classifier_norm_ratio(w, mask)
        for name, block in (("majority", ~mask), ("minority", mask)):
            values = _block(h, labels, mismatches, m, w, block)
            report |= {f"{key}_{name}": value for key, value in values.items()}
    return _in_order(report, num_classes)


def _in_order(report: dict[str, float], num_classes: int) -> dict[str, float]:
    return {key: report[key] for key in ideal_values(max(num_classes, 2)) if key in report}


def _count_classes(
    w: Tensor | None, logits: Array | None, moments: ClassMoments | None, labels: Array
) -> int:
    if w is not None:
        return len(w)
    if logits is not None:
        logits = _tensor(logits)
        if logits.ndim != 2:
            raise ValueError(f"logits must have shape (N, K), got {tuple(logits.shape)}")
        return logits.shape[1]
    if moments is not None:
        return moments.num_classes
    labels = _tensor(labels)
    return int(labels.max()) + 1 if labels.numel() else 1  # what is no label is refused with the features


def _moments_report(m: ClassMoments, w: Tensor | None) -> dict[str, float]:
    """What follows from moments and classifier without the features; ``nc1_pinv`` only where there is a covariance."""
    report = {
        **_distances(m, w),
        "rank_between": float(m.rank_between),
        "paper_eq13_uncentred": paper_eq13_uncentred(m),
        "paper_eq13_uncentred_printed_constant": paper_eq13_uncentred_printed_constant(m),
        "absent_classes": float((m.counts == 0).sum()),
        "small_classes": float(((m.counts > 0) & (m.counts < SMALL_CLASS)).sum()),
    }
    if m._sums.scatter is not None:
        report["nc1_pinv"] = nc1_pinv(m)
    if w is not None:
        report |= {
            "nc2_etf_distance_classifier": nc2_etf_distance(w),
            "nc2_equinorm_classifier": nc2_equinorm(w),
            "nc2_equiangular_classifier": nc2_equiangular(w),
            "paper_eq14_uncentred": paper_eq14_uncentred(w, m),
        }
    return report


def _distances(m: ClassMoments, w: Tensor | None) -> dict[str, float]:
    means = m.centred_means[m.present]
    told = len(means) != 2  # two centred means are opposite, whatever the features are
    duality = {} if w is None else {"nc3_self_duality": nc3_self_duality(w, m), "nc3_alignment": nc3_alignment(w, m)}
    return {
        "nc1_trace_ratio": nc1_trace_ratio(m),
        "nc1_cdnv": nc1_cdnv(m),
        "nc2_etf_distance": nc2_etf_distance(means) if told else math.nan,
        "nc2_equinorm": nc2_equinorm(means) if told else math.nan,
        "nc2_equiangular": nc2_equiangular(means) if told else math.nan,
        **duality,
    }


def _block(
    h: Tensor,
    labels: Tensor,
    mismatches: Tensor | None,
    m: ClassMoments,
    w: Tensor | None,
    block: Tensor,
) -> dict[str, float]:
    block = block & m.present
    if not block.any():
        lacking = ("nc3",) * (w is None) + ("nc4",) * (mismatches is None)
        return {key: math.nan for key in _BLOCK_KEYS if not key.startswith(lacking)}
    part = m.select(block)
    renumber = torch.where(block, block.cumsum(0) - 1, -1)  # (K,), −1 outside the block
    labels = renumber[labels.to(m.device)]
    w = None if w is None else w[block] - part._weights() @ w[block]
    values = {"nc1_pinv_class_balanced": _class_balanced_pinv(h, labels, part), **_distances(part, w)}
    if mismatches is not None:
        values["nc4_ncc_mismatch"] = _ratio(mismatches[block].sum(), part.counts.sum())
    return values


# ----------------------------------------------------------------------------------------- small shared parts


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    return float(numerator / denominator)  # in tensors: x/0 is inf and 0/0 NaN, where Python would raise


def _etf_gram(num_classes: int, device: torch.device) -> Tensor:
    """(K, K), Gram matrix of a simplex ETF at Frobenius norm 1; NaN for K = 1, where there is none."""
    eye = torch.eye(num_classes, dtype=torch.float64, device=device)
    return (eye - 1 / num_classes) / (math.sqrt(num_classes - 1) or math.nan)


def _cosines(v: Tensor) -> Tensor:
    """(K (K−1),) cosines between different rows; NaN where a row is zero."""
    unit = v / torch.linalg.norm(v, dim=1, keepdim=True)
    off_diagonal = ~torch.eye(len(v), dtype=torch.bool, device=v.device)
    return (unit @ unit.T)[off_diagonal]


def _distance_of_directions(a: Tensor, b: Tensor) -> float:
    """‖a/‖a‖ − b/‖b‖‖ in the Frobenius norm; NaN where one of them is zero."""
    return float(torch.linalg.norm(a / torch.linalg.norm(a) - b / torch.linalg.norm(b)))


def _chunks(h: Tensor, also: int = 0) -> Iterator[slice]:
    """Row ranges of h that take about 16 MiB in float64, ``also`` further numbers per row included."""
    step = max(1, _CHUNK_NUMBERS // (h.shape[1] + also))
    return (slice(start, start + step) for start in range(0, len(h), step))


# ----------------------------------------------------------------------------------------------- input checks


def _tensor(x: Array) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach()
    x = np.asarray(x)
    if x.dtype.kind not in "biufc":
        kind = type(x.item()).__name__ if x.ndim == 0 else f"array of {x.dtype}"
        raise ValueError(f"give a tensor or an array of numbers, not {kind}")
    return torch.from_numpy(x if x.flags.writeable and x.flags.c_contiguous else x.copy())


def _whole(number: object) -> bool:
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def _check_weighting(weighting: Weighting) -> Weighting:
    if weighting not in ("class", "sample"):
        raise ValueError(
            f"weighting must be 'class' (mean of class means) or 'sample' (sample mean), got {weighting!r}"
        )
    return weighting


def _check_finite(x: Tensor, name: str) -> None:
    if math.isfinite(x.sum()):  # shows any NaN or infinity, and needs no second array of the size of x
        return
    bad = (~torch.isfinite(x)).any(1).nonzero().flatten()
    if len(bad):  # none: the sum of finite numbers overflowed
        raise ValueError(
            f"{name} has NaN or infinite values in {len(bad)} of {len(x)} rows, the first is row {bad[0]}"
        )


def _check_features(h: Array, dim: int) -> Tensor:
    h = _tensor(h)
    if h.ndim != 2 or h.shape[1] != dim:
        raise ValueError(f"h must have shape (N, {dim}), got {tuple(h.shape)}")
    if not h.is_floating_point():
        raise ValueError(f"h must be floating point, got {h.dtype}; convert it with h.double()")
    _check_finite(h, "h")
    return h


def _check_batch(h: Array, labels: Array, num_classes: int, dim: int) -> tuple[Tensor, Tensor]:
    h, labels = _check_features(h, dim), _tensor(labels)
    if labels.shape != h.shape[:1]:
        raise ValueError(
            f"labels must have shape ({len(h)},) as h has {len(h)} rows, got {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}; convert them with labels.long()")
    labels = labels.long()
    if len(labels):
        low, high = torch.stack(labels.aminmax()).tolist()  # one wait for a device
        if low < 0 or high >= num_classes:
            raise ValueError(f"labels must lie in 0 … {num_classes - 1}, got {low} … {high}")
    return h, labels


def _check_logits(logits: Array, num_samples: int, num_classes: int) -> Tensor:
    logits = _tensor(logits)
    if logits.shape != (num_samples, num_classes):
        raise ValueError(f"logits must have shape ({num_samples}, {num_classes}), got {tuple(logits.shape)}")
    if logits.dtype == torch.bool or logits.is_complex():
        raise ValueError(f"logits must be real numbers, got {logits.dtype}; convert them with logits.double()")
    _check_finite(logits, "logits")
    return logits


def _rows(v: Array, name: str) -> Tensor:
    """(K, d) float64 vectors of which only directions and relative lengths matter, so that they come times a power of
    two, the largest entry between 1/2 and 1: no square over- or underflows, and no digit changes."""
    v = _tensor(v)
    if v.ndim != 2 or 0 in v.shape:
        raise ValueError(f"{name} must have shape (K, d) with K, d ≥ 1, got {tuple(v.shape)}")
    _check_finite(v, name)
    v = v.double()
    exponent = math.frexp(torch.linalg.vector_norm(v, ord=math.inf))[1]
    return v * math.ldexp(1.0, min(-exponent, 1023))


def _classifier(w: Array, m: ClassMoments) -> Tensor:
    w = _rows(w, "w")
    if w.shape != (m.num_classes, m.dim):
        raise ValueError(
            f"w must have shape ({m.num_classes}, {m.dim}) as the moments have, got {tuple(w.shape)}"
        )
    return w.to(m.device)[m.present]


def _class_mask(classes: Classes, num_classes: int) -> Tensor:
    """(K,) bool from a mask or from class ids."""
    if isinstance(classes, str) or not isinstance(classes, Iterable) or getattr(classes, "ndim", 1) == 0:
        raise ValueError(f"classes must be a boolean mask or a list of class ids such as [3], got {classes!r}")
    classes = _tensor(classes if isinstance(classes, (Tensor, np.ndarray)) else list(classes))
    if classes.dtype == torch.bool:
        if classes.shape != (num_classes,):
            raise ValueError(
                f"a mask of classes must have shape ({num_classes},), got {tuple(classes.shape)}"
            )
        return classes
    if len(classes) and (classes.is_floating_point() or classes.ndim != 1):
        raise ValueError(
            f"classes must be a boolean mask or a row of class ids, got {classes.dtype} {tuple(classes.shape)}"
        )
    ids = [int(k) for k in classes]
    if len(set(ids)) < len(ids) or not all(0 <= k < num_classes for k in ids):
        raise ValueError(f"class ids must be different and lie in 0 … {num_classes - 1}, got {ids}")
    mask = torch.zeros(num_classes, dtype=torch.bool)
    mask[ids] = True
    return mask
