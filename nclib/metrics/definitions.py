"""NC1 to NC4 and the paper's own uncentred equations: one definition, one name, one reference.

A matrix of vectors that is not finite, real and (K, d) is refused with ValueError.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nclib.metrics.checks import Array, as_tensor, check_batch, check_features, check_logits, scaled_rows
from nclib.metrics.moments import ClassMoments, chunks
from nclib.solvers import is_whole


def simplex_etf(num_classes: int, dim: int) -> Tensor:
    """The simplex equiangular tight frame: K unit vectors that sum to zero, every two at cosine −1/(K−1).

        V Vᵀ = K/(K−1) · (I − 11ᵀ/K)

    Parameters
    ----------
    num_classes : K ≥ 2.
    dim : d ≥ K − 1; fewer dimensions cannot hold K such vectors.

    Returns
    -------
    (K, d) float64, always the same one (Helmert's basis, zero beyond dimension K − 1).

    Raises
    ------
    ValueError
        K < 2 or d < K − 1.

    Source: Papyan, Han & Donoho 2020, definition 1.

    Examples
    --------
    >>> import nclib as nc
    >>> means = nc.simplex_etf(4, 6)
    >>> (means @ means.T).round(decimals=3).tolist()[0]
    [1.0, -0.333, -0.333, -0.333]
    """
    if not (is_whole(num_classes) and is_whole(dim) and 2 <= num_classes <= dim + 1):
        raise ValueError(f"a simplex ETF needs whole K ≥ 2 and dim ≥ K - 1, got K = {num_classes!r}, dim = {dim!r}")
    v = torch.zeros(num_classes, dim, dtype=torch.float64)
    for j in range(1, num_classes):  # column j − 1: the first j entries against entry j
        v[:j, j - 1], v[j, j - 1] = 1.0, -j
        v[:, j - 1] *= math.sqrt(num_classes / (num_classes - 1) / (j * (j + 1)))
    return v


# ---------------------------------------------------------------------------------- NC1: variability within the classes


def nc1_pinv(m: ClassMoments) -> float:
    """Within-class covariance measured in units of the between-class covariance, averaged over samples.

        NC1 = tr(Σ_W Σ_B†) / K,   eigenvalues of Σ_B below 1e-10 of the largest dropped

    Directions in which the class means do not differ are not seen: where class means merge, their direction
    drops out and NC1 *falls*; just before, it explodes. Read it together with ``rank_between`` and
    ``nc1_trace_ratio``.

    Do not compare layers of different d: isotropic noise has about (K − 1) N / (K d) for d well above K. Compare
    ``nc1_trace_ratio`` or ``nc1_cdnv``, or each value with that of shuffled labels.

    Parameters
    ----------
    m : moments of all classes.

    Returns
    -------
    float; NaN where all class means coincide.

    Ideal value 0, range [0, ∞). Source: Sun & Shi 2024, eq. (12); Papyan, Han & Donoho 2020.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(40) % 4
    >>> round(nc.nc1_pinv(nc.class_moments(nc.simplex_etf(4, 8)[labels], labels, 4)), 9)
    0.0
    """
    values, directions = m.between_eigen()
    along = ((m.within_cov @ directions) * directions).sum(0)  # (r,) variance along each direction
    return ratio((along / values).sum(), m.present.sum()) if len(values) else math.nan


def nc1_pinv_class_balanced(h: Array, labels: Array, m: ClassMoments) -> float:
    """``nc1_pinv`` with Σ_W as the mean of the class covariances, so that small classes count as much as
    large ones.

        NC1 = tr(Σ̄_W Σ_B†) / K,   Σ̄_W = (1/K) Σ_k (1/n_k) Σ_i (h_{k,i} − μ_k)(h_{k,i} − μ_k)ᵀ

    At K_A = 3, R = 100 the seven minority classes carry 2.3 % of the sample-averaged Σ_W, and 70 % of this
    one.

    Ideal value 0, range [0, ∞). Equal to ``nc1_pinv`` for balanced classes. Source: eq. (12) with
    class-balanced Σ_W.

    Parameters
    ----------
    h : (N, d) the features that ``m`` was computed from.
    labels : (N,) integers 0 … K−1.
    m : their moments; its weighting decides Σ_B.

    Returns
    -------
    float; NaN where all class means coincide.

    Raises
    ------
    ValueError
        As ``ClassMoments.update``.
    """
    h, labels = check_batch(h, labels, m.num_classes, m.dim)
    return mean_of_whitened(whitened_squares(h, labels, m), m)


def whitened_squares(h: Tensor, labels: Tensor, m: ClassMoments) -> Tensor:
    """(K,) Σ_i (h_i − μ_k)ᵀ Σ_B† (h_i − μ_k), to be added up over batches; samples labelled −1 are in no class."""
    values, directions = m.between_eigen()
    whiten = directions / values.sqrt()  # (d, r), Σ_B† = whiten whitenᵀ
    means = m.means_from_origin @ whiten  # (K, r)
    squares = torch.zeros_like(m.squares)  # (K,)
    for rows in chunks(h):
        x, y = h[rows].to(m.device, torch.float64), labels[rows].to(m.device)
        x, y = x[y >= 0], y[y >= 0]
        squares.index_add_(0, y, ((x - m.origin) @ whiten - means[y]).square().sum(1))
    return squares


def mean_of_whitened(squares: Tensor, m: ClassMoments) -> float:
    """`nc1_pinv_class_balanced` of the sums over all batches."""
    return ratio((squares / m.counts.clamp(min=1)).sum(), m.present.sum() ** 2) if m.rank_between else math.nan


def nc1_trace_ratio(m: ClassMoments) -> float:
    """Within-class variance over between-class variance.

        NC1 = tr Σ_W / tr Σ_B

    Ideal value 0, range [0, ∞]. Needs no pseudo-inverse and no rank decision. Source: Tirer, Huang &
    Niles-Weed 2023.

    Parameters
    ----------
    m : moments; within classes each sample counts alike, the weighting is that of the between-class variance.

    Returns
    -------
    float; inf where all class means coincide, NaN where nothing varies at all.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(40) % 4
    >>> round(nc.nc1_trace_ratio(nc.class_moments(nc.simplex_etf(4, 8)[labels], labels, 4)), 9)
    0.0
    """
    return ratio(m.squares.sum() / m.num_samples, m.between_rows.square().sum())


def nc1_cdnv(m: ClassMoments) -> float:
    """Class-distance normalised variance, averaged over pairs of classes.

        CDNV = mean over k < l of (v_k + v_l) / (2 ‖μ_k − μ_l‖²),   v_k = mean ‖h_{k,i} − μ_k‖²

    Ideal value 0, range [0, ∞]. Source: Galanti, György & Hutter 2022.

    Parameters
    ----------
    m : moments; the weighting does not matter.

    Returns
    -------
    float; inf where two class means coincide (but for rounding, as in ``ClassMoments.centred_means``); NaN for fewer
    than two classes.
    """
    if m.present.sum() < 2:
        return math.nan
    means, variances = m.means_from_origin[m.present], m.class_variances[m.present]
    i, j = torch.triu_indices(len(means), len(means), offset=1, device=m.device)
    # Differences, not a Gram matrix: means that nearly coincide keep their digits.
    distances = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")[i, j]
    if bool((distances <= m.resolution).any()):
        return math.inf
    return float(((variances[i] + variances[j]) / (2 * distances**2)).mean())


# ------------------------------------------------------------------------------ NC2: the class means form a simplex ETF


def nc2_etf_distance(v: Array) -> float:
    """Distance of the Gram matrix of K vectors from that of a simplex ETF, both scaled to Frobenius norm 1.

        NC2 = ‖ VVᵀ/‖VVᵀ‖_F − (I − 11ᵀ/K)/√(K−1) ‖_F

    The rows are taken as they are. Give centred means (``m.centred_means``) for the geometry around the
    global mean; uncentred ones are the paper's eq. (13), see ``paper_eq13_uncentred``.

    Parameters
    ----------
    v : (K, d) class means or classifier rows.

    Returns
    -------
    float; NaN for K = 1 or V = 0.

    Ideal value 0, range [0, √2]; at least √(2 − 2√(d/(K − 1))) for d < K − 1 (``ideal_values``). For K = 10:
    orthonormal rows 0.320 (also the floor for non-negative uncentred rows), two opposite clusters 1.155, all rows
    equal 1.414. Source: Sun & Shi 2024, eq. (13), with
    1/√(K−1) in place of the paper's 1/(K−1).

    Examples
    --------
    >>> import nclib as nc
    >>> round(nc.nc2_etf_distance(nc.simplex_etf(4, 8)), 9)
    0.0
    """
    v = scaled_rows(v, "v")
    return _distance_of_directions(v @ v.T, _etf_gram(len(v), v.device))


def nc2_equinorm(v: Array) -> float:
    """How unequal the norms of K vectors are.

        std_k ‖v_k‖ / mean_k ‖v_k‖,   population standard deviation (divisor K)

    Ideal value 0, range [0, √(K−1)]: the square is K Σ‖v‖² / (Σ‖v‖)² − 1, largest where one vector alone is not 0.
    Source: Papyan, Han & Donoho 2020, figure 2. Public code often takes the unbiased standard deviation (divisor
    K − 1, the default of torch.std), which is √(K/(K−1)) larger.

    Parameters
    ----------
    v : (K, d) centred class means or classifier rows, taken as they are.

    Returns
    -------
    float; NaN for V = 0.
    """
    norms = torch.linalg.norm(scaled_rows(v, "v"), dim=1)
    return ratio(norms.std(correction=0), norms.mean())


def nc2_equiangular(v: Array) -> float:
    """How far the angles between K vectors are from those of a simplex ETF.

        mean over k ≠ l of | cos(v_k, v_l) + 1/(K−1) |

    Ideal value 0, range [0, K/(K−1)]: each term is largest at cosine 1, so all rows along one direction give the
    upper end. Source: Papyan, Han & Donoho 2020, figure 4; their figure 3 shows the standard deviation of the
    cosines, which is 0 for equal cosines of any size.

    Parameters
    ----------
    v : (K, d) centred class means or classifier rows, taken as they are.

    Returns
    -------
    float; NaN for K = 1 or where a row is zero.
    """
    v = scaled_rows(v, "v")
    return math.nan if len(v) < 2 else float((cosines(v) + 1 / (len(v) - 1)).abs().mean())


def nc2_uniformity(v: Array, log: bool = False) -> float:
    """How unequal the distances between K directions are: generalised NC2, uniformity on the sphere.

        var over k < l of ‖v_k/‖v_k‖ − v_l/‖v_l‖‖,   or of its logarithm; divisor K(K−1)/2

    Ideal value 0, range [0, 1] without the logarithm. Source: Liu et al. 2023 (arXiv 2303.06484); as the package
    neural-collapse computes ``nc2g_dist`` and, with the logarithm, ``nc2g_log``.

    Parameters
    ----------
    v : (K, d) centred class means or classifier rows, taken as they are.
    log : the variance of the logarithms; inf − inf, that is NaN, where two directions coincide.

    Returns
    -------
    float; NaN for K = 1 or where a row is zero.

    Examples
    --------
    >>> import nclib as nc
    >>> round(nc.metrics.nc2_uniformity(nc.simplex_etf(4, 8)), 9)
    0.0
    """
    v = scaled_rows(v, "v")
    if len(v) < 2:
        return math.nan
    unit = v / torch.linalg.norm(v, dim=1, keepdim=True)
    distances = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
    of_pairs = distances[tuple(torch.triu_indices(len(v), len(v), offset=1, device=v.device))]
    return float((of_pairs.log() if log else of_pairs).var(correction=0))


# -------------------------------------------------------------------- SELI: what is optimal for classes of unequal size


class SELIGeometry(NamedTuple):
    """Gram matrices of the SELI geometry, each at Frobenius norm 1; see ``seli_geometry``.

    Attributes
    ----------
    means : (K, K), of the class means.
    classifier : (K, K), of the classifier rows.
    """

    means: Tensor
    classifier: Tensor


class SELIDistance(NamedTuple):
    """Distances from the SELI geometry; see ``seli_distance``.

    Attributes
    ----------
    means : of the class means.
    classifier : of the classifier rows.
    """

    means: float
    classifier: float


def seli_geometry(counts: Array | Sequence[int]) -> SELIGeometry:
    """The class means and the classifier that are optimal where classes have different sizes.

        Z = Y − 1/K = V Λ Uᵀ,   W Wᵀ ∝ V Λ Vᵀ,   H Hᵀ ∝ U Λ Uᵀ

    Y (K, N) are one-hot labels, W (K, d) the classifier rows and H (N, d) the features. Thrampoulidis
    et al. show that this *simplex-encoded-labels interpolation* (SELI) is the optimum of freely chosen
    features under cross-entropy as weight decay vanishes. Features of one class coincide, so class
    sizes suffice. With P = I − 11ᵀ/K, D = diag(counts) and M the rows μ_k,

        W Wᵀ ∝ (P D P)^(1/2),   M Mᵀ ∝ (P D P)^(−1/2)   (pseudo-inverse)

    The rows of W sum to zero, and so do those of M: the class means are centred at their mean over
    classes, not over samples. Balanced classes give a simplex ETF in both. Otherwise small classes have
    class means of larger norm and classifier rows of smaller norm: for classes of two sizes with ratio
    R, both ratios of norms tend to R^(1/4) as both groups grow.

    Parameters
    ----------
    counts : (K,) samples of each class, every one ≥ 1, for K ≥ 2. Only their ratios matter.

    Returns
    -------
    SELIGeometry, a NamedTuple of means and classifier: (K, K) float64, each at Frobenius norm 1.

    Raises
    ------
    ValueError
        Not a vector of K ≥ 2 numbers, or a count that is below 1, NaN or infinite.

    Source: Thrampoulidis, Kini, Vakilian & Behnia 2022, definition 2.

    Examples
    --------
    >>> import nclib as nc
    >>> nc.seli_geometry([50, 50, 50]).means.round(decimals=3).tolist()[0]
    [0.471, -0.236, -0.236]
    >>> means, classifier = nc.seli_geometry([5000, 5000, 50, 50])
    >>> (means.diag() / means[0, 0]).sqrt().round(decimals=2).tolist()
    [1.0, 1.0, 2.51, 2.51]
    >>> (classifier.diag() / classifier[0, 0]).sqrt().round(decimals=2).tolist()
    [1.0, 1.0, 0.58, 0.58]
    """
    counts = as_tensor(counts)
    if counts.ndim != 1 or len(counts) < 2:
        raise ValueError(f"counts must have shape (K,) with K ≥ 2, got {tuple(counts.shape)}")
    counts = counts.double().cpu()
    if not bool((counts.isfinite() & (counts >= 1)).all()):
        raise ValueError(f"every class needs a finite count ≥ 1, got {counts.tolist()}")
    basis = simplex_etf(len(counts), len(counts) - 1)
    basis = basis / torch.linalg.norm(basis, dim=0)  # orthonormal columns, all orthogonal to 1
    squares, directions = torch.linalg.eigh(basis.T @ (counts[:, None] * basis))  # squares of Λ
    v, singular = basis @ directions, squares.sqrt()
    means, classifier = (v / singular) @ v.T, (v * singular) @ v.T
    return SELIGeometry(means / torch.linalg.norm(means), classifier / torch.linalg.norm(classifier))


def seli_distance(class_means: Array, classifier: Array, counts: Array | Sequence[int]) -> SELIDistance:
    """Distances of class means and of a classifier from the SELI geometry of these class sizes.

        ‖ VVᵀ/‖VVᵀ‖_F − G ‖_F,   V the centred rows, G their Gram matrix in ``seli_geometry``

    Class means and classifier rows are centred at the mean of their rows, as in SELI. So a common shift
    of all features does not matter, nor one of all classifier rows, which changes no prediction. For
    balanced classes each distance is the ``nc2_etf_distance`` of the centred rows. The distances of a
    simplex ETF, as in the example, give a scale.

    Parameters
    ----------
    class_means : (K, d) mean feature of each class, centred or not.
    classifier : (K, d) classifier rows.
    counts : (K,) samples of each class, every one ≥ 1, in the order of the rows.

    Returns
    -------
    SELIDistance, a NamedTuple of means and classifier: two floats; NaN where all rows are equal.

    Raises
    ------
    ValueError
        Shapes that do not fit, NaN or infinite values, or counts that ``seli_geometry`` refuses.

    Ideal value 0, range [0, √2]; above 0 for d < K − 1. Source: Thrampoulidis, Kini, Vakilian & Behnia
    2022.

    Examples
    --------
    >>> import nclib as nc
    >>> etf = nc.simplex_etf(10, 10)
    >>> [round(distance, 2) for distance in nc.seli_distance(etf, etf, [5000] * 3 + [50] * 7)]
    [0.53, 0.79]
    """
    means, rows = scaled_rows(class_means, "class_means"), scaled_rows(classifier, "classifier")
    if means.shape != rows.shape:
        shapes = f"{tuple(means.shape)} and {tuple(rows.shape)}"
        raise ValueError(f"class_means and classifier must have the same shape (K, d), got {shapes}")
    geometry = seli_geometry(counts)
    if len(geometry.means) != len(means):
        raise ValueError(f"give one count for each of the {len(means)} classes, got {len(counts)}")
    return SELIDistance(
        means=_distance_from_gram(means, geometry.means), classifier=_distance_from_gram(rows, geometry.classifier)
    )


def _distance_from_gram(v: Tensor, gram: Tensor) -> float:
    v = v - v[0]  # where all rows are equal the next line would leave rounding
    v = v - v.mean(0)
    return _distance_of_directions(v @ v.T, gram.to(v.device))


# ------------------------------------------------------------- NC3: classifier and class means become each other's dual


def nc3_self_duality(w: Array, m: ClassMoments) -> float:
    """Distance between the classifier and the centred class means, both scaled to Frobenius norm 1.

        NC3 = ‖ W/‖W‖_F − M/‖M‖_F ‖_F,   M = rows μ_k − μ

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are.
    m : moments; its weighting decides μ.

    Returns
    -------
    float; NaN where W = 0 or all class means coincide.

    Ideal value 0, range [0, 2], unrelated √2 = 1.414. Source: Papyan, Han & Donoho 2020, figure 5, whose public
    code takes the square; Sun & Shi 2024, eq. (14), transposed and centred (uncentred: ``paper_eq14_uncentred``).

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels, means = torch.arange(40) % 4, nc.simplex_etf(4, 8)
    >>> round(nc.nc3_self_duality(3 * means, nc.class_moments(means[labels], labels, 4)), 9)
    0.0
    """
    return _distance_of_directions(_classifier(w, m), m.centred_means[m.present])


def nc3_alignment(w: Array, m: ClassMoments) -> float:
    """Distance of the logits of the centred class means from the pattern of a simplex ETF.

        NC3 = ‖ WMᵀ/‖WMᵀ‖_F − (I − 11ᵀ/K)/√(K−1) ‖_F,   M = rows μ_k − μ

    Ideal value 0, range [0, 2], unrelated √2 = 1.414; at least √(2 − 2√(d/(K − 1))) for d < K − 1. Unlike
    ``nc3_self_duality`` it is 0 only if NC2 holds as well. Source: Zhu et al. 2021, whose public code calls it the
    relation of W and H.

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are.
    m : moments; its weighting decides μ.

    Returns
    -------
    float; NaN where W Mᵀ = 0 or K = 1.
    """
    logits = _classifier(w, m) @ m.centred_means[m.present].T  # (K, K)
    return _distance_of_directions(logits, _etf_gram(len(logits), logits.device))


def nc3_unnormalised_duality(w: Array, m: ClassMoments) -> float:
    """How unequal the inner products of classifier rows and centred class means are.

        var over k of w_k · (μ_k − μ),   divisor K − 1

    Ideal value 0, range [0, ∞). It grows with the fourth power of the scale of W and M together and is 0 wherever all
    products are equal, so read it beside ``nc3_self_duality``. Source: as the package neural-collapse computes
    ``nc3u_uni_dual``.

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are.
    m : moments; its weighting decides μ.

    Returns
    -------
    float; NaN for K = 1.
    """
    _classifier(w, m)  # refuses what does not fit
    products = (as_tensor(w).to(m.device).double()[m.present] * m.centred_means[m.present]).sum(1)
    return float(products.var()) if len(products) > 1 else math.nan


# ----------------------------------------------------------------------------- NC4: the nearest class mean is predicted


def nc4_ncc_mismatch(h: Array, logits: Array, m: ClassMoments) -> float:
    """Fraction of samples whose nearest class mean is not the class that the classifier predicts.

        NC4 = mean_i [ argmax_k logits_{ik} ≠ argmin_k ‖h_i − μ_k‖ ]

    Where the predicted class is as near as the nearest, it counts as the nearest. Common shifts, outliers and class
    means far apart cost no digit that the class means themselves have.

    Parameters
    ----------
    h : (N, d) features.
    logits : (N, K) of the same samples, including any bias.
    m : moments; the weighting does not matter.

    Returns
    -------
    float.

    Raises
    ------
    ValueError
        Wrong shapes or dtypes, NaN or infinite values.

    Ideal value 0, range [0, 1]. Source: Papyan, Han & Donoho 2020, figure 7.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels, means = torch.arange(40) % 4, nc.simplex_etf(4, 8)
    >>> h = means[labels]
    >>> nc.nc4_ncc_mismatch(h, h @ means.T, nc.class_moments(h, labels, 4))
    0.0
    """
    h, logits = check_features(h, m.dim), check_logits(logits, len(h), m.num_classes)
    return float(ncc_mismatches(h, logits.argmax(1), m).double().mean())


def ncc_mismatches(h: Tensor, predicted: Tensor, m: ClassMoments) -> Tensor:
    """(N,) bool, from the predicted classes (N,). ‖h − μ_k‖² = ‖h‖² − 2 (h·μ_k − ‖μ_k‖²/2), so the nearest mean has
    the largest score."""
    means = m.means_from_origin
    norms = torch.linalg.vector_norm(means, dim=1)  # (K,)
    offset = torch.where(m.present, norms.square() / 2, torch.inf)
    rounding = torch.finfo(torch.float64).eps * (m.dim + 3) * norms.max()  # times ‖h‖ + ‖μ‖: of a score, at most
    mismatches = []
    for rows in chunks(h, also=m.num_classes):
        x = h[rows].to(m.device, torch.float64, copy=True).sub_(m.origin)  # (B, d)
        scores = x @ means.T - offset  # (B, K)
        reach = rounding * (torch.linalg.vector_norm(x, dim=1, keepdim=True) + norms.max())  # (B, 1)
        near = (scores >= scores.amax(1, keepdim=True) - reach) & m.present  # may be the nearest
        chosen = predicted[rows].to(m.device)[:, None]
        mismatch = ~near.gather(1, chosen)[:, 0]
        unsure = (~mismatch & (near.sum(1) > 1)).nonzero()[:, 0]  # none in ordinary features
        distances = torch.cdist(x[unsure], means, compute_mode="donot_use_mm_for_euclid_dist")
        distances.masked_fill_(~near[unsure], torch.inf)
        mismatch[unsure] = distances.gather(1, chosen[unsure])[:, 0] > distances.amin(1)
        mismatches.append(mismatch)
    return torch.cat(mismatches)


# --------------------------------------------------------- the paper's own equations, uncentred, for comparison with it


def paper_eq13_uncentred(m: ClassMoments) -> float:
    """The paper's NC2: ``nc2_etf_distance`` of the class means *without* subtracting the global mean,
    constant corrected.

        ‖ H̄ᵀH̄/‖H̄ᵀH̄‖_F − (I − 11ᵀ/K)/√(K−1) ‖_F,   H̄ = columns μ_k

    Ideal value 0, range [0, √2]; not below 0.320 (K = 10) for non-negative features; 1.169 for an ETF around
    a common mean of equal norm. Source: Sun & Shi 2024, eq. (13), with the 1/√(K−1) that its figure 3
    implies.

    Parameters
    ----------
    m : moments; the weighting does not matter.
    """
    return nc2_etf_distance(m.class_means[m.present])


def paper_eq13_uncentred_printed_constant(m: ClassMoments) -> float:
    """The paper's NC2 exactly as it stands in the paper: uncentred, with 1/(K−1) where 1/√(K−1) is meant.

        ‖ H̄ᵀH̄/‖H̄ᵀH̄‖_F − (I − 11ᵀ/K)/(K−1) ‖_F

    Never 0: a perfect ETF scores 1 − 1/√(K−1), which is the minimum (0.667 for K = 10, 0.899 for K = 100); at
    most √(K/(K−1)). Source: Sun & Shi 2024, eq. (13).

    Parameters
    ----------
    m : moments; the weighting does not matter.
    """
    means = scaled_rows(m.class_means[m.present], "class means")
    gram, classes = means @ means.T, len(means)
    target = _etf_gram(classes, gram.device) / math.sqrt(max(classes - 1, 1))
    return float(torch.linalg.norm(gram / torch.linalg.norm(gram) - target))


def paper_eq14_uncentred(w: Array, m: ClassMoments) -> float:
    """The paper's NC3: ``nc3_self_duality`` *without* subtracting the global mean (and with the missing
    transpose).

        ‖ W/‖W‖_F − H̄ᵀ/‖H̄‖_F ‖_F,   H̄ = columns μ_k

    Ideal value 0, range [0, 2], unrelated 1.414; a common mean twice as long as the deviations alone gives
    1.05. Source: Sun & Shi 2024, eq. (14), read with Frobenius norms.

    Parameters
    ----------
    w : (K, d) classifier rows.
    m : moments; the weighting does not matter.
    """
    return _distance_of_directions(_classifier(w, m), m.class_means[m.present])


# --------------------------------------------------------------------------------------------------- small shared parts


def ratio(numerator: Tensor, denominator: Tensor) -> float:
    return float(numerator / denominator)  # in tensors: x/0 is inf and 0/0 NaN, where Python would raise


def share(of_classes: Tensor, m: ClassMoments) -> float:
    return ratio(of_classes.sum(), m.counts.sum())


def _etf_gram(num_classes: int, device: torch.device) -> Tensor:
    """(K, K), Gram matrix of a simplex ETF at Frobenius norm 1; NaN for K = 1, where there is none."""
    eye = torch.eye(num_classes, dtype=torch.float64, device=device)
    return (eye - 1 / num_classes) / (math.sqrt(num_classes - 1) or math.nan)


def cosines(v: Tensor) -> Tensor:
    """(K (K−1),) cosines between different rows; NaN where a row is zero."""
    unit = v / torch.linalg.norm(v, dim=1, keepdim=True)
    return (unit @ unit.T)[~torch.eye(len(v), dtype=torch.bool, device=v.device)]


def _distance_of_directions(a: Tensor, b: Tensor) -> float:
    """‖a/‖a‖ − b/‖b‖‖ in the Frobenius norm; NaN where one of them is zero."""
    return float(torch.linalg.norm(a / torch.linalg.norm(a) - b / torch.linalg.norm(b)))


def _classifier(w: Array, m: ClassMoments) -> Tensor:
    w = scaled_rows(w, "w")
    if w.shape != (m.num_classes, m.dim):
        raise ValueError(f"w must have shape ({m.num_classes}, {m.dim}) as the moments have, got {tuple(w.shape)}")
    return w.to(m.device)[m.present]
