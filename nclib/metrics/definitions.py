"""Every metric of neural collapse: one definition, one name, one reference.

In the order NC1, NC2, SELI, NC3, NC4, the paper's own equations, the classifier alone.

Class means and covariances come in a ``ClassMoments``. Vectors that are not finite, real and of
shape (K, d) are refused with ValueError.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nclib.metrics.moments import (
    Array,
    Classes,
    ClassMoments,
    as_tensor,
    check_batch,
    check_features,
    check_finite,
    check_logits,
    chunks,
    class_mask,
)
from nclib.solvers import is_whole


def simplex_etf(num_classes: int, dim: int) -> Tensor:
    """The simplex equiangular tight frame: K unit vectors that sum to zero, every two at cosine
    −1/(K−1).

        V Vᵀ = K/(K−1) · (I − 11ᵀ/K)

    Parameters
    ----------
    num_classes : K ≥ 2
    dim : d ≥ K − 1; fewer dimensions cannot hold K such vectors

    Returns
    -------
    Tensor
        (K, d) float64, always the same one: Helmert's basis, zero beyond dimension K − 1.

    Raises
    ------
    ValueError
        For K < 2 or d < K − 1.

    Notes
    -----
    Source: Papyan, Han & Donoho 2020, definition 1.

    Examples
    --------
    >>> import nclib as nc
    >>> means = nc.simplex_etf(4, 6)
    >>> (means @ means.T).round(decimals=3).tolist()[0]
    [1.0, -0.333, -0.333, -0.333]
    """
    if not (is_whole(num_classes) and is_whole(dim) and 2 <= num_classes <= dim + 1):
        raise ValueError(
            "a simplex ETF needs whole K ≥ 2 and dim ≥ K - 1, "
            f"got K = {num_classes!r}, dim = {dim!r}"
        )
    v = torch.zeros(num_classes, dim, dtype=torch.float64)
    for j in range(1, num_classes):  # column j − 1: the first j entries against entry j
        v[:j, j - 1] = 1.0
        v[j, j - 1] = -j
        v[:, j - 1] *= math.sqrt(num_classes / (num_classes - 1) / (j * (j + 1)))
    return v


# --- NC1: variability within the classes ----------------------------------------------------------


def nc1_pinv(m: ClassMoments) -> float:
    """Within-class covariance in units of the between-class covariance, averaged over samples.

        NC1 = tr(Σ_W Σ_B†) / K,   eigenvalues of Σ_B below 1e-10 of the largest dropped

    Ideal value 0, range [0, ∞).

    Parameters
    ----------
    m : moments of all classes

    Returns
    -------
    float
        NaN where all class means coincide.

    Notes
    -----
    Directions in which the class means do not differ are not seen. Where class means merge, their
    direction drops out and NC1 *falls*; just before, it explodes. Read it together with
    ``rank_between`` and ``nc1_trace_ratio``.

    Do not compare layers of different d: isotropic noise has about (K − 1) N / (K d) for d well
    above K. Compare ``nc1_trace_ratio`` or ``nc1_cdnv``, or each value with that of shuffled
    labels.

    Source: Sun & Shi 2024, eq. (12); Papyan, Han & Donoho 2020.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(40) % 4
    >>> round(nc.nc1_pinv(nc.class_moments(nc.simplex_etf(4, 8)[labels], labels, 4)), 9)
    0.0
    """
    values, directions = m.between_eigen()
    if len(values) == 0:
        return math.nan
    variances = ((m.within_cov @ directions) * directions).sum(0)  # (r,) along each direction
    return float((variances / values).sum() / m.present.sum())


def nc1_pinv_class_balanced(h: Array, labels: Array, m: ClassMoments) -> float:
    """``nc1_pinv`` with the mean of the class covariances as Σ_W, so that small classes count as
    much as large ones.

        NC1 = tr(Σ̄_W Σ_B†) / K,   Σ̄_W = (1/K) Σ_k (1/n_k) Σ_i (h_{k,i} − μ_k)(h_{k,i} − μ_k)ᵀ

    Ideal value 0, range [0, ∞). Equal to ``nc1_pinv`` for balanced classes.

    Parameters
    ----------
    h : (N, d) the features that ``m`` was computed from
    labels : (N,) integers 0 … K−1
    m : their moments; the weighting decides Σ_B

    Returns
    -------
    float
        NaN where all class means coincide.

    Raises
    ------
    ValueError
        As ``ClassMoments.update``.

    Notes
    -----
    At K_A = 3, R = 100 the seven minority classes carry 2.3 % of the Σ_W that is averaged over
    samples, and 70 % of this one. Source: Sun & Shi 2024, eq. (12), with class-balanced Σ_W.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(40) % 4
    >>> h = nc.simplex_etf(4, 8)[labels]
    >>> round(nc.metrics.nc1_pinv_class_balanced(h, labels, nc.class_moments(h, labels, 4)), 9)
    0.0
    """
    h, labels = check_batch(h, labels, m.num_classes, m.dim)
    values, directions = m.between_eigen()
    if len(values) == 0:
        return math.nan
    whiten = directions / values.sqrt()  # (d, r), Σ_B† = whiten whitenᵀ
    means = m.means_from_origin @ whiten  # (K, r)
    squares = torch.zeros_like(m.squares)  # (K,), Σ_i (h_i − μ_k)ᵀ Σ_B† (h_i − μ_k)
    for rows in chunks(h):
        x = h[rows].to(m.device, torch.float64) - m.origin
        y = labels[rows].to(m.device)
        squares.index_add_(0, y, (x @ whiten - means[y]).square().sum(1))
    of_classes = (squares / m.counts)[m.present]
    return float(of_classes.mean() / len(of_classes))


def nc1_trace_ratio(m: ClassMoments) -> float:
    """Within-class variance over between-class variance.

        NC1 = tr Σ_W / tr Σ_B

    Ideal value 0, range [0, ∞]. It needs no pseudo-inverse and no decision on a rank.

    Parameters
    ----------
    m : moments; the weighting decides Σ_B

    Returns
    -------
    float
        inf where all class means coincide, NaN where nothing varies at all.

    Notes
    -----
    Source: Tirer, Huang & Niles-Weed 2023.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(40) % 4
    >>> round(nc.nc1_trace_ratio(nc.class_moments(nc.simplex_etf(4, 8)[labels], labels, 4)), 9)
    0.0
    """
    within = m.squares.sum() / m.num_samples
    return float(within / m.between_rows.square().sum())


def nc1_cdnv(m: ClassMoments) -> float:
    """Class-distance normalised variance, averaged over pairs of classes.

        CDNV = mean over k < l of (v_k + v_l) / (2 ‖μ_k − μ_l‖²),   v_k = mean ‖h_{k,i} − μ_k‖²

    Ideal value 0, range [0, ∞].

    Parameters
    ----------
    m : moments; the weighting does not matter

    Returns
    -------
    float
        inf where two class means coincide; NaN for fewer than two classes.

    Notes
    -----
    Source: Galanti, György & Hutter 2022.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> h = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])  # variances 1, means 10 apart
    >>> nc.metrics.nc1_cdnv(nc.class_moments(h, torch.tensor([0, 0, 1, 1]), 2))
    0.01
    """
    means = m.means_from_origin[m.present]
    variances = m.class_variances[m.present]
    i, j = torch.triu_indices(len(means), len(means), offset=1, device=m.device)
    distances = _distances(means, means)[i, j]
    return float(((variances[i] + variances[j]) / (2 * distances**2)).mean())


# --- NC2: the class means form a simplex ETF ------------------------------------------------------


def nc2_etf_distance(v: Array) -> float:
    """Distance of the Gram matrix of K vectors from that of a simplex ETF, both scaled to Frobenius
    norm 1.

        NC2 = ‖ VVᵀ/‖VVᵀ‖_F − (I − 11ᵀ/K)/√(K−1) ‖_F

    Ideal value 0, range [0, √2]; at least √(2 − 2√(d/(K − 1))) for d < K − 1, see ``ideal_values``.

    Parameters
    ----------
    v : (K, d) class means or classifier rows, taken as they are. Give ``m.centred_means`` for the
        geometry around the global mean; for uncentred means see ``paper_eq13_uncentred``

    Returns
    -------
    float
        NaN for K = 1 or V = 0.

    Notes
    -----
    For K = 10: orthonormal rows have 0.320 (also the least value of non-negative uncentred rows),
    two opposite clusters 1.155, rows that are all equal 1.414.

    Source: Sun & Shi 2024, eq. (13), with 1/√(K−1) in place of the paper's 1/(K−1).

    Examples
    --------
    >>> import nclib as nc
    >>> round(nc.nc2_etf_distance(nc.simplex_etf(4, 8)), 9)
    0.0
    """
    v = _vectors(v, "v")
    return _distance_of_directions(v @ v.T, _etf_gram(len(v), v.device))


def nc2_equinorm(v: Array) -> float:
    """How unequal the norms of K vectors are.

        std_k ‖v_k‖ / mean_k ‖v_k‖,   population standard deviation (divisor K)

    Ideal value 0, range [0, √(K−1)], whose upper end is one vector beside zeros.

    Parameters
    ----------
    v : (K, d) centred class means or classifier rows, taken as they are

    Returns
    -------
    float
        NaN for V = 0.

    Notes
    -----
    Source: Papyan, Han & Donoho 2020, figure 2. Public code often has the divisor K − 1, the
    default of torch.std, and values √(K/(K−1)) times as large.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> nc.metrics.nc2_equinorm(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    0.5
    """
    norms = torch.linalg.norm(_vectors(v, "v"), dim=1)
    return float(norms.std(correction=0) / norms.mean())


def nc2_equiangular(v: Array) -> float:
    """How far the angles between K vectors are from those of a simplex ETF.

        mean over k ≠ l of | cos(v_k, v_l) + 1/(K−1) |

    Ideal value 0, range [0, K/(K−1)], whose upper end is all vectors along one direction.

    Parameters
    ----------
    v : (K, d) centred class means or classifier rows, taken as they are

    Returns
    -------
    float
        NaN for K = 1 or where a row is zero.

    Notes
    -----
    Source: Papyan, Han & Donoho 2020, figure 4. Their figure 3 has the standard deviation of the
    cosines, which is 0 for equal cosines of any size.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> nc.metrics.nc2_equiangular(torch.eye(3))  # cosines 0 instead of −1/2
    0.5
    """
    v = _vectors(v, "v")
    if len(v) < 2:
        return math.nan
    return float((_cosines(v) + 1 / (len(v) - 1)).abs().mean())


def nc2_uniformity(v: Array, log: bool = False) -> float:
    """How unequal the distances between K directions are: generalised NC2, uniformity on the
    sphere.

        var over k < l of ‖v_k/‖v_k‖ − v_l/‖v_l‖‖,   divisor K(K−1)/2

    Ideal value 0, range [0, 1].

    Parameters
    ----------
    v : (K, d) centred class means or classifier rows, taken as they are
    log : the variance of the logarithms of these distances, which has no upper end

    Returns
    -------
    float
        NaN for K = 1, where a row is zero, and of logarithms where two directions coincide.

    Notes
    -----
    Source: Liu et al. 2023 (arXiv 2303.06484); as the package neural-collapse computes
    ``nc2g_dist`` and, with the logarithm, ``nc2g_log``.

    Examples
    --------
    >>> import nclib as nc
    >>> round(nc.metrics.nc2_uniformity(nc.simplex_etf(4, 8)), 9)
    0.0
    """
    v = _vectors(v, "v")
    if len(v) < 2:
        return math.nan
    unit = v / torch.linalg.norm(v, dim=1, keepdim=True)
    i, j = torch.triu_indices(len(v), len(v), offset=1, device=v.device)
    distances = _distances(unit, unit)[i, j]
    if log:
        distances = distances.log()
    return float(distances.var(correction=0))


# --- SELI: what is optimal for classes of unequal size --------------------------------------------


class SELIGeometry(NamedTuple):
    """Gram matrices of the SELI geometry, each at Frobenius norm 1; see ``seli_geometry``.

    Attributes
    ----------
    means : (K, K), of the class means
    classifier : (K, K), of the classifier rows
    """

    means: Tensor
    classifier: Tensor


class SELIDistance(NamedTuple):
    """Distances from the SELI geometry; see ``seli_distance``.

    Attributes
    ----------
    means : of the class means
    classifier : of the classifier rows
    """

    means: float
    classifier: float


def seli_geometry(counts: Array | Sequence[int]) -> SELIGeometry:
    """The class means and the classifier that are optimal where classes have different sizes.

        Z = Y − 1/K = V Λ Uᵀ,   W Wᵀ ∝ V Λ Vᵀ,   H Hᵀ ∝ U Λ Uᵀ

    Y (K, N) are one-hot labels, W (K, d) the classifier rows and H (N, d) the features.
    Thrampoulidis et al. show that this *simplex-encoded-labels interpolation* (SELI) is the optimum
    of freely chosen features under cross-entropy as weight decay vanishes. Features of one class
    coincide, so class sizes suffice. With P = I − 11ᵀ/K, D = diag(counts) and M the rows μ_k,

        W Wᵀ ∝ (P D P)^(1/2),   M Mᵀ ∝ (P D P)^(−1/2)   (pseudo-inverse)

    Parameters
    ----------
    counts : (K,) samples of each class, every one ≥ 1, for K ≥ 2; only their ratios matter

    Returns
    -------
    SELIGeometry
        A NamedTuple of means and classifier: (K, K) float64, each at Frobenius norm 1.

    Raises
    ------
    ValueError
        For what is no vector of K ≥ 2 numbers, or a count that is below 1, NaN or infinite.

    Notes
    -----
    The rows of W sum to zero, and so do those of M: the class means are centred at their mean over
    classes, not over samples. Balanced classes give a simplex ETF in both. Otherwise small classes
    have class means of larger norm and classifier rows of smaller norm: for classes of two sizes
    with ratio R, both ratios of norms tend to R^(1/4) as both groups grow.

    Source: Thrampoulidis, Kini, Vakilian & Behnia 2022, definition 2.

    Examples
    --------
    >>> import nclib as nc
    >>> nc.metrics.seli_geometry([50, 50, 50]).means.round(decimals=3).tolist()[0]
    [0.471, -0.236, -0.236]
    >>> means, classifier = nc.metrics.seli_geometry([5000, 5000, 50, 50])
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
    singular = squares.sqrt()
    v = basis @ directions
    means = (v / singular) @ v.T
    classifier = (v * singular) @ v.T
    return SELIGeometry(
        means=means / torch.linalg.norm(means),
        classifier=classifier / torch.linalg.norm(classifier),
    )


def seli_distance(
    class_means: Array, classifier: Array, counts: Array | Sequence[int]
) -> SELIDistance:
    """Distances of class means and of a classifier from the SELI geometry of these class sizes.

        ‖ VVᵀ/‖VVᵀ‖_F − G ‖_F,   V the centred rows, G their Gram matrix in ``seli_geometry``

    Ideal value 0, range [0, √2]; above 0 for d < K − 1.

    Parameters
    ----------
    class_means : (K, d) mean feature of each class, centred or not
    classifier : (K, d) classifier rows
    counts : (K,) samples of each class, every one ≥ 1, in the order of the rows

    Returns
    -------
    SELIDistance
        A NamedTuple of means and classifier: two floats; NaN where all rows are zero.

    Raises
    ------
    ValueError
        For shapes that do not fit, NaN or infinite values, or counts that ``seli_geometry``
        refuses.

    Notes
    -----
    Class means and classifier rows are centred at the mean of their rows, as in SELI. So a common
    shift of all features does not matter, nor one of all classifier rows, which changes no
    prediction. For balanced classes each distance is the ``nc2_etf_distance`` of the centred rows.
    The distances of a simplex ETF, as in the example, give a scale.

    Source: Thrampoulidis, Kini, Vakilian & Behnia 2022.

    Examples
    --------
    >>> import nclib as nc
    >>> etf = nc.simplex_etf(10, 10)
    >>> [round(distance, 2) for distance in nc.metrics.seli_distance(etf, etf, [5000] * 3 + [50] * 7)]
    [0.53, 0.79]
    """
    means = _vectors(class_means, "class_means")
    rows = _vectors(classifier, "classifier")
    if means.shape != rows.shape:
        raise ValueError(
            "class_means and classifier must have the same shape (K, d), "
            f"got {tuple(means.shape)} and {tuple(rows.shape)}"
        )
    geometry = seli_geometry(counts)
    if len(geometry.means) != len(means):
        raise ValueError(
            f"give one count for each of the {len(means)} classes, got {len(geometry.means)}"
        )
    return SELIDistance(
        means=_distance_from_gram(means, geometry.means),
        classifier=_distance_from_gram(rows, geometry.classifier),
    )


# --- NC3: classifier and class means become each other's dual -------------------------------------


def nc3_self_duality(w: Array, m: ClassMoments) -> float:
    """Distance between the classifier and the centred class means, both scaled to Frobenius norm 1.

        NC3 = ‖ W/‖W‖_F − M/‖M‖_F ‖_F,   M = rows μ_k − μ

    Ideal value 0, range [0, 2], unrelated √2 = 1.414.

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are
    m : moments; the weighting decides μ

    Returns
    -------
    float
        NaN where W = 0 or all class means coincide.

    Notes
    -----
    Source: Papyan, Han & Donoho 2020, figure 5, whose public
    code takes the square; Sun & Shi 2024, eq. (14), transposed and centred. Uncentred it is
    ``paper_eq14_uncentred``.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(40) % 4
    >>> means = nc.simplex_etf(4, 8)
    >>> round(nc.nc3_self_duality(3 * means, nc.class_moments(means[labels], labels, 4)), 9)
    0.0
    """
    return _distance_of_directions(_classifier(w, m), m.centred_means[m.present])


def nc3_alignment(w: Array, m: ClassMoments) -> float:
    """Distance of the logits of the centred class means from the pattern of a simplex ETF.

        NC3 = ‖ WMᵀ/‖WMᵀ‖_F − (I − 11ᵀ/K)/√(K−1) ‖_F,   M = rows μ_k − μ

    Ideal value 0, range [0, 2], unrelated √2 = 1.414; at least √(2 − 2√(d/(K − 1))) for d < K − 1.

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are
    m : moments; the weighting decides μ

    Returns
    -------
    float
        NaN where W Mᵀ = 0 or K = 1.

    Notes
    -----
    Unlike ``nc3_self_duality`` it is 0 only if NC2 holds as well. Source: Zhu et al. 2021, whose
    public code calls it the relation of W and H.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> means = nc.simplex_etf(4, 8)
    >>> round(nc.metrics.nc3_alignment(3 * means, nc.class_moments(means, torch.arange(4), 4)), 9)
    0.0
    """
    logits = _classifier(w, m) @ m.centred_means[m.present].T  # (K, K)
    return _distance_of_directions(logits, _etf_gram(len(logits), logits.device))


def nc3_unnormalised_duality(w: Array, m: ClassMoments) -> float:
    """How unequal the inner products of classifier rows and centred class means are.

        var over k of w_k · (μ_k − μ),   divisor K − 1

    Ideal value 0, range [0, ∞).

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are
    m : moments; the weighting decides μ

    Returns
    -------
    float
        NaN for K = 1.

    Notes
    -----
    It grows with the fourth power of the scale of W and M together, and it is 0 wherever all
    products are equal. So read it beside ``nc3_self_duality``. Source: as the package
    neural-collapse computes ``nc3u_uni_dual``.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> moments = nc.class_moments(torch.tensor([[-1.0], [1.0]]), torch.arange(2), 2)
    >>> nc.metrics.nc3_unnormalised_duality(torch.tensor([[-1.0], [3.0]]), moments)  # 1 and 3
    2.0
    """
    products = (_classifier(w, m) * m.centred_means[m.present]).sum(1)
    if len(products) < 2:
        return math.nan
    return float(products.var(correction=1))


# --- NC4: the nearest class mean is predicted -----------------------------------------------------


def nc4_ncc_mismatch(h: Array, logits: Array, m: ClassMoments) -> float:
    """Share of samples whose nearest class mean is not the class that the classifier predicts.

        NC4 = mean_i [ argmax_k logits_{ik} ≠ argmin_k ‖h_i − μ_k‖ ]

    Ideal value 0, range [0, 1]. Where the predicted class is as near as the nearest, it counts as
    the nearest.

    Parameters
    ----------
    h : (N, d) features, of the samples behind ``m`` or of others
    logits : (N, K) of the same samples, including any bias
    m : moments; the weighting does not matter

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For wrong shapes or dtypes, NaN or infinite values.

    Notes
    -----
    Source: Papyan, Han & Donoho 2020, figure 7.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(40) % 4
    >>> means = nc.simplex_etf(4, 8)
    >>> h = means[labels]
    >>> nc.nc4_ncc_mismatch(h, h @ means.T, nc.class_moments(h, labels, 4))
    0.0
    """
    h = check_features(h, m.dim)
    logits = check_logits(logits, len(h), m.num_classes)
    return float(ncc_mismatches(h, logits.argmax(1), m).double().mean())


def ncc_mismatches(h: Tensor, predicted: Tensor, m: ClassMoments) -> Tensor:
    """(N,) bool, whether another class mean is nearer than that of the predicted class.

    ‖h − μ_k‖² = ‖h‖² − 2 (h·μ_k − ‖μ_k‖²/2), so the nearest mean has the largest score.
    """
    means = m.means_from_origin
    norms = torch.linalg.norm(means, dim=1)  # (K,)
    largest = norms.max()
    rounding = 2 * torch.finfo(torch.float64).eps * m.dim * largest
    mismatches = []
    for rows in chunks(h):
        x = h[rows].to(m.device, torch.float64) - m.origin
        scores = x @ means.T - norms.square() / 2  # (B, K)
        scores[:, ~m.present] = -torch.inf
        of_predicted = scores.gather(1, predicted[rows].to(m.device)[:, None])[:, 0]
        tie = rounding * (torch.linalg.norm(x, dim=1) + largest)  # scores that may be equal
        mismatches.append(of_predicted < scores.amax(1) - tie)
    return torch.cat(mismatches)


# --- The paper's own equations, uncentred, for comparison with it ---------------------------------


def paper_eq13_uncentred(m: ClassMoments) -> float:
    """The paper's NC2: ``nc2_etf_distance`` of the class means *without* subtracting the global
    mean, constant corrected.

        ‖ H̄ᵀH̄/‖H̄ᵀH̄‖_F − (I − 11ᵀ/K)/√(K−1) ‖_F,   H̄ = columns μ_k

    Ideal value 0, range [0, √2]; not below 0.320 (K = 10) for non-negative features; 1.169 for an
    ETF around a common mean of equal norm.

    Parameters
    ----------
    m : moments; the weighting does not matter

    Returns
    -------
    float
        NaN for K = 1 or where all class means are 0.

    Notes
    -----
    Source: Sun & Shi 2024, eq. (13), with the 1/√(K−1) that its figure 3 implies.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> orthonormal = nc.class_moments(torch.eye(10), torch.arange(10), 10)
    >>> round(nc.metrics.paper_eq13_uncentred(orthonormal), 3)
    0.32
    """
    return nc2_etf_distance(m.class_means[m.present])


def paper_eq13_uncentred_printed_constant(m: ClassMoments) -> float:
    """The paper's NC2 exactly as it stands in the paper: uncentred, with 1/(K−1) where 1/√(K−1) is
    meant.

        ‖ H̄ᵀH̄/‖H̄ᵀH̄‖_F − (I − 11ᵀ/K)/(K−1) ‖_F

    Never 0: a perfect ETF has 1 − 1/√(K−1), which is the minimum (0.667 for K = 10, 0.899 for
    K = 100); at most √(K/(K−1)).

    Parameters
    ----------
    m : moments; the weighting does not matter

    Returns
    -------
    float
        NaN for K = 1 or where all class means are 0.

    Notes
    -----
    Source: Sun & Shi 2024, eq. (13).

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> etf = nc.class_moments(nc.simplex_etf(10, 10), torch.arange(10), 10)
    >>> round(nc.metrics.paper_eq13_uncentred_printed_constant(etf), 3)
    0.667
    """
    means = m.class_means[m.present]
    if len(means) < 2:
        return math.nan
    gram = means @ means.T
    printed = _etf_gram(len(means), m.device) / math.sqrt(len(means) - 1)
    return float(torch.linalg.norm(gram / torch.linalg.norm(gram) - printed))


def paper_eq14_uncentred(w: Array, m: ClassMoments) -> float:
    """The paper's NC3: ``nc3_self_duality`` *without* subtracting the global mean, and with the
    missing transpose.

        ‖ W/‖W‖_F − H̄ᵀ/‖H̄‖_F ‖_F,   H̄ = columns μ_k

    Ideal value 0, range [0, 2], unrelated √2 = 1.414; a common mean twice as long as the deviations
    alone gives 1.05.

    Parameters
    ----------
    w : (K, d) classifier rows
    m : moments; the weighting does not matter

    Returns
    -------
    float
        NaN where W = 0 or all class means are 0.

    Notes
    -----
    Source: Sun & Shi 2024, eq. (14), read with Frobenius norms.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> etf = nc.simplex_etf(4, 8)
    >>> moments = nc.class_moments(etf, torch.arange(4), 4)
    >>> round(nc.metrics.paper_eq14_uncentred(3 * etf, moments), 9)
    0.0
    """
    return _distance_of_directions(_classifier(w, m), m.class_means[m.present])


# --- The classifier alone -------------------------------------------------------------------------


def nc0(w: Array) -> float:
    """How far the classifier's rows are from adding up to zero.

        NC0 = ‖Σ_k w_k‖² / K

    Ideal value 0, which NC2 and NC3 together need and which is not enough for them; range [0, ∞).

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are

    Returns
    -------
    float

    Notes
    -----
    Source: Zhao, Cheng, Masarczyk & Lucchi, ICLR 2026 (arXiv 2602.16642), α_t of their theorem 3.1.
    Their appendix, eq. (12), has the norm, not squared, over d: ``(nc0(w) * K) ** 0.5 / d``. Both
    grow with w, so compare values of one network over time, not networks.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> round(nc.metrics.nc0(nc.simplex_etf(10, 64)), 12), nc.metrics.nc0(torch.ones(4, 3))
    (0.0, 12.0)
    """
    w = _vectors(w, "w")
    return float(w.sum(0).square().sum() / len(w))


def minority_cosine(w: Array, minority: Classes) -> float:
    """Mean cosine between the classifier rows of the minority classes.

        mean over k ≠ l in the minority of cos(w_k, w_l)

    −1/(K−1) for a simplex ETF, 1 for minority collapse; range [−1/(K_B−1), 1].

    Parameters
    ----------
    w : (K, d) classifier rows, taken as they are
    minority : (K,) boolean mask, or a list of class ids

    Returns
    -------
    float
        NaN where a minority row is zero or there are fewer than two.

    Notes
    -----
    Source: Fang et al. 2021.

    Examples
    --------
    >>> import nclib as nc
    >>> round(nc.metrics.minority_cosine(nc.simplex_etf(4, 8), [2, 3]), 3)
    -0.333
    """
    w = _vectors(w, "w")
    rows = w[class_mask(minority, len(w)).to(w.device)]
    return float(_cosines(rows).mean())


def classifier_norm_ratio(w: Array, minority: Classes) -> float:
    """Mean norm of the minority classifier rows over that of the majority rows.

        mean_{k minority} ‖w_k‖ / mean_{k majority} ‖w_k‖

    Ideal value 1; 0 where the minority has lost its classifiers; range [0, ∞].

    Parameters
    ----------
    w : (K, d) classifier rows
    minority : (K,) boolean mask, or a list of class ids

    Returns
    -------
    float
        NaN where one of the two groups is empty or the classifier is zero.

    Notes
    -----
    Source: Fang et al. 2021.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> nc.metrics.classifier_norm_ratio(torch.tensor([[4.0], [2.0], [1.0]]), [2])
    0.3333333333333333
    """
    w = _vectors(w, "w")
    norms = torch.linalg.norm(w, dim=1)
    mask = class_mask(minority, len(w)).to(w.device)
    return float(norms[mask].mean() / norms[~mask].mean())


# --- Small shared parts ---------------------------------------------------------------------------


def _vectors(v: Array, name: str) -> Tensor:
    """(K, d) in float64."""
    v = as_tensor(v)
    if v.ndim != 2 or 0 in v.shape:
        raise ValueError(f"{name} must have shape (K, d) with K, d ≥ 1, got {tuple(v.shape)}")
    if name in ("v", "class_means") and v.isnan().all(dim=1).any():
        raise ValueError(
            f"{name} has a row of NaN, as class means have for a class without samples: give "
            "m.centred_means[m.present], and the same rows of what it is compared with"
        )
    check_finite(v, name)
    return v.double()


def _classifier(w: Array, m: ClassMoments) -> Tensor:
    """The rows of the classes that have samples."""
    w = _vectors(w, "w")
    if w.shape != (m.num_classes, m.dim):
        raise ValueError(
            f"w must have shape ({m.num_classes}, {m.dim}) as the moments have, "
            f"got {tuple(w.shape)}"
        )
    return w.to(m.device)[m.present]


def _etf_gram(num_classes: int, device: torch.device) -> Tensor:
    """(K, K), Gram matrix of a simplex ETF at Frobenius norm 1; NaN for K = 1, where there is
    none."""
    centring = torch.eye(num_classes, dtype=torch.float64, device=device) - 1 / num_classes
    return centring / torch.linalg.norm(centring)  # which is √(K − 1)


def _cosines(v: Tensor) -> Tensor:
    """(K (K−1),) cosines between different rows; NaN where a row is zero."""
    unit = v / torch.linalg.norm(v, dim=1, keepdim=True)
    different = ~torch.eye(len(v), dtype=torch.bool, device=v.device)
    return (unit @ unit.T)[different]


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Between rows, from their differences: rows that nearly coincide keep their digits."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _distance_of_directions(a: Tensor, b: Tensor) -> float:
    """‖a/‖a‖ − b/‖b‖‖ in the Frobenius norm; NaN where one of them is zero."""
    return float(torch.linalg.norm(a / torch.linalg.norm(a) - b / torch.linalg.norm(b)))


def _distance_from_gram(v: Tensor, gram: Tensor) -> float:
    centred = v - v.mean(0)
    return _distance_of_directions(centred @ centred.T, gram.to(v.device))
