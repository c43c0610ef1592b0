"""The usual metrics of collapse in one report: ``nc_report``, and the values that they can have.

Other metrics, such as ``nc2_uniformity`` and those of SELI, are called by their own names.

To add a metric, define it in ``definitions.py`` and give it a line in ``_values`` and in
``_ideals``, where they stand in the order of the report.
"""

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from nclib.metrics.definitions import (
    classifier_norm_ratio,
    minority_cosine,
    nc1_cdnv,
    nc1_pinv,
    nc1_pinv_class_balanced,
    nc1_trace_ratio,
    nc2_equiangular,
    nc2_equinorm,
    nc2_etf_distance,
    nc3_alignment,
    nc3_self_duality,
    ncc_mismatches,
    paper_eq13_uncentred,
    paper_eq13_uncentred_printed_constant,
    paper_eq14_uncentred,
)
from nclib.metrics.moments import (
    Array,
    Classes,
    ClassMoments,
    Weighting,
    as_tensor,
    check_logits,
    class_mask,
    class_moments,
)
from nclib.solvers import is_whole

SMALL_CLASS = 5
"""Samples below which the variance of a class is too small by more than a fifth (1 − 1/n)."""

GROUPS = ("majority", "minority")

CENTRED = (
    "nc1_pinv",
    "nc1_trace_ratio",
    "nc1_cdnv",
    "nc2_etf_distance",
    "nc2_equinorm",
    "nc2_equiangular",
    "nc3_self_duality",
    "nc3_alignment",
)
"""Metrics of centred class means: what is logged for the sample mean as centre too."""

OF_GROUPS = (
    "nc1_pinv_class_balanced",
    "nc1_trace_ratio",
    "nc1_cdnv",
    "nc2_etf_distance",
    "nc2_equinorm",
    "nc2_equiangular",
    "nc3_self_duality",
    "nc3_alignment",
    "nc4_ncc_mismatch",
)
"""Metrics that are reported of majority and minority alone too."""

LABELS = {
    "nc1_pinv": "NC1, eq. 12",
    "nc1_pinv_class_balanced": "NC1, class-balanced",
    "nc1_trace_ratio": "NC1, trace ratio",
    "nc1_cdnv": "NC1, CDNV",
    "nc2_etf_distance": "NC2, centred",
    "nc2_equinorm": "NC2, lengths",
    "nc2_equiangular": "NC2, angles",
    "nc3_self_duality": "NC3, centred",
    "nc3_alignment": "NC3, alignment",
    "nc4_ncc_mismatch": "NC4, not the nearest mean",
    "paper_eq13_uncentred": "NC2, eq. 13",
    "paper_eq14_uncentred": "NC3, eq. 14",
    "minority_cosine": "cosine among minority classes",
    "accuracy_balanced": "accuracy",
    "accuracy_majority": "majority accuracy",
    "accuracy_minority": "minority accuracy",
    "loss": "loss",
    "solver_steps": "solver evaluations",
    "not_converged": "share not converged",
}
"""What readers call the metrics, and what else a run logs; others keep their names."""

for _name in [name for name in LABELS if name.startswith("nc")]:
    for _group in GROUPS:
        LABELS[f"{_name}_{_group}"] = f"{LABELS[_name]}, {_group} classes"


class Case(NamedTuple):
    """What a report is computed from; None where it is not given."""

    moments: ClassMoments
    features: Tensor  # (N, d)
    labels: Tensor  # (N,)
    mismatches: Tensor | None  # (N,) bool, see ``ncc_mismatches``
    classifier: Tensor | None  # (K, d)
    minority: Tensor | None = None  # (K,) bool


def _values(case: Case) -> dict[str, float]:
    """Every metric of a case, in the order of the report."""
    m = case.moments
    w = case.classifier
    means = m.centred_means[m.present]
    if len(means) == 2:
        means = torch.zeros_like(means)  # two are opposite whatever they are: every NC2 is NaN

    values = {}
    values["nc1_pinv"] = nc1_pinv(m)
    values["nc1_pinv_class_balanced"] = nc1_pinv_class_balanced(case.features, case.labels, m)
    values["nc1_trace_ratio"] = nc1_trace_ratio(m)
    values["nc1_cdnv"] = nc1_cdnv(m)
    values["nc2_etf_distance"] = nc2_etf_distance(means)
    values["nc2_equinorm"] = nc2_equinorm(means)
    values["nc2_equiangular"] = nc2_equiangular(means)
    if w is not None:
        values["nc3_self_duality"] = nc3_self_duality(w, m)
        values["nc3_alignment"] = nc3_alignment(w, m)
    if case.mismatches is not None:
        values["nc4_ncc_mismatch"] = float(case.mismatches.double().mean())
    if w is not None:
        values["nc2_etf_distance_classifier"] = nc2_etf_distance(w)
        values["nc2_equinorm_classifier"] = nc2_equinorm(w)
        values["nc2_equiangular_classifier"] = nc2_equiangular(w)
    values["rank_between"] = float(m.rank_between)
    values["paper_eq13_uncentred"] = paper_eq13_uncentred(m)
    values["paper_eq13_uncentred_printed_constant"] = paper_eq13_uncentred_printed_constant(m)
    if w is not None:
        values["paper_eq14_uncentred"] = paper_eq14_uncentred(w, m)
    values["absent_classes"] = float((~m.present).sum())
    values["small_classes"] = float((m.present & (m.counts < SMALL_CLASS)).sum())
    if w is not None and case.minority is not None:
        values["minority_cosine"] = minority_cosine(w, case.minority)
        values["classifier_norm_ratio"] = classifier_norm_ratio(w, case.minority)
    return values


def nc_report(
    h: Array,
    labels: Array,
    logits: Array | None = None,
    w: Array | None = None,
    weighting: Weighting = "class",
    minority: Classes | None = None,
    *,
    num_classes: int | None = None,
) -> dict[str, float]:
    """All metrics of neural collapse of a set of features.

    Each is under the name of its function. ``nc2_*`` are of the centred class means,
    ``nc2_*_classifier`` of the classifier rows as they are, ``paper_*`` of the uncentred means.
    ``absent_classes`` counts classes without samples, which are left out. ``small_classes`` counts
    those with 1 to 4 samples, whose variance is too small by 25 % or more.

    What is not given is left out: without ``logits`` every ``nc4_*``; without ``w`` every
    ``nc3_*``, the names ending in ``_classifier``, ``paper_eq14_uncentred``, ``minority_cosine``
    and ``classifier_norm_ratio``.

    Parameters
    ----------
    h : (N, d) features
    labels : (N,) integers 0 … K−1
    logits : (N, K), including any bias
    w : (K, d) classifier rows
    weighting : "class", "sample" or "mixed", see ``ClassMoments``
    minority : (K,) boolean mask, or a list of class ids: neither none nor all of the classes. Adds
        the names ending in ``_majority`` and ``_minority``, ``minority_cosine`` and
        ``classifier_norm_ratio``
    num_classes : K; left out, it is the number of columns of the logits, of rows of w, or one more
        than the largest label, the first of these that is given

    Returns
    -------
    dict
        Floats in the order of ``ideal_values``, which has their ideal values and ranges; NaN where
        a quantity is undefined.

    Raises
    ------
    ValueError
        For shapes, dtypes or labels that do not fit together, NaN or infinite values.

    Warns
    -----
    EmptyClassWarning
        A class has no samples.
    UserWarning
        Classes have one sample and so no variance. Or there are more than d + 1 classes: then no
        simplex exists, and ``nc2_etf_distance`` and ``nc3_alignment`` cannot be 0.

    Notes
    -----
    ``*_majority`` and ``*_minority`` are of those classes alone, as if they were the whole problem.
    Means and classifier rows are centred at the group's own mean: a face of a simplex ETF is a
    simplex ETF, so perfect collapse has 0 in both groups. ``nc4_ncc_mismatch_*`` alone compares
    with all class means. A group of one class has NaN where pairs are needed.

    Of two classes, in all or in a group, the centred means form a simplex whatever the features
    are. There ``nc2_*`` of the means is NaN.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> labels = torch.arange(100) % 10
    >>> features = nc.simplex_etf(10, 16)[labels]
    >>> report = nc.nc_report(features, labels)
    >>> "nc1_trace_ratio" in report, "nc3_alignment" in report
    (True, False)
    >>> round(report["nc2_etf_distance"], 6)
    0.0
    """
    labels = as_tensor(labels)
    if num_classes is None:
        if logits is not None:
            num_classes = as_tensor(logits).shape[-1]
        elif w is not None:
            num_classes = as_tensor(w).shape[0]
        else:
            num_classes = int(labels.max()) + 1 if labels.numel() else 1
    moments = class_moments(h, labels, num_classes, weighting)
    return report_of(moments, as_tensor(h), labels, logits, w, minority)


def report_of(
    m: ClassMoments,
    h: Tensor,
    labels: Tensor,
    logits: Array | None,
    w: Array | None,
    minority: Classes | None = None,
) -> dict[str, float]:
    """``nc_report`` of the features whose moments are known, in their weighting."""
    _warn_of_limits(m)
    mismatches = None
    if logits is not None:
        logits = check_logits(logits, len(h), m.num_classes)
        mismatches = ncc_mismatches(h, logits.argmax(1), m)
    if w is not None:
        w = as_tensor(w).to(m.device, torch.float64)
    case = Case(m, h, labels.to(m.device, torch.int64), mismatches, w)
    if minority is None:
        return _values(case)

    minority = class_mask(minority, m.num_classes).to(m.device)
    if minority.all() or not minority.any():
        raise ValueError(
            f"minority must be some but not all of the {m.num_classes} classes, "
            f"got {int(minority.sum())}"
        )
    report = _values(case._replace(minority=minority))
    for group, classes in zip(GROUPS, (~minority, minority), strict=True):
        of_group = _values_of_group(case, classes & m.present)
        for name in OF_GROUPS:
            if name in report:
                report[f"{name}_{group}"] = of_group.get(name, math.nan)
    return report


def _values_of_group(case: Case, classes: Tensor) -> dict[str, float]:
    """Of some classes alone, which are numbered anew; nothing of none."""
    if not classes.any():
        return {}
    m = case.moments.select(classes)
    rows = classes[case.labels]
    h = case.features[rows]
    number = classes.cumsum(0) - 1  # (K,), of each class within the group
    labels = number[case.labels[rows]]
    mismatches = None
    if case.mismatches is not None:
        mismatches = case.mismatches[rows]
    w = None
    if case.classifier is not None:
        w = case.classifier[classes]
        w = w - m.weights @ w
    return _values(Case(m, h, labels, mismatches, w))


def _warn_of_limits(m: ClassMoments) -> None:
    """Of classes with one sample, and of more classes than a simplex has corners."""
    num_classes = int(m.present.sum())
    single = int((m.counts == 1).sum())
    if single:
        warnings.warn(
            f"{single} of {num_classes} classes have one sample, and so no variance in NC1",
            stacklevel=4,
        )
    if num_classes > m.dim + 1:
        least = ideal_values(num_classes, m.dim)["nc2_etf_distance"].value
        warnings.warn(
            f"{num_classes} classes form no simplex in d = {m.dim} dimensions, so that "
            f"nc2_etf_distance and nc3_alignment are at least {least:.3f} here: "
            f"see nclib.ideal_values({num_classes}, dim={m.dim})",
            stacklevel=4,
        )


# --- What the values can be -----------------------------------------------------------------------


class Ideal(NamedTuple):
    """What a metric is under perfect collapse, and the closed range it lies in (NaN aside)."""

    value: float
    low: float
    high: float


def ideal_values(num_classes: int, dim: int | None = None) -> dict[str, Ideal]:
    """Ideal value and range of every name that ``nc_report`` can have, in its order.

    Parameters
    ----------
    num_classes : K ≥ 2. Where classes are absent, give the number of the others for what is of
        class means
    dim : d, the number of features. Below K − 1 a simplex of K classes does not fit, and the values
        are the least that exist in so few dimensions. Left out, there is room for a simplex

    Returns
    -------
    dict
        From the name to ``Ideal(value, low, high)``.

    Raises
    ------
    ValueError
        For K < 2 or dim < 1, or no whole numbers.

    Notes
    -----
    For d < K − 1, ``nc2_etf_distance``, ``nc3_alignment`` and ``paper_eq13_uncentred`` cannot be
    less than √(2 − 2√(d/(K − 1))), which K vectors reach whose Gram matrix is a projection. NC1,
    ``nc3_self_duality`` and NC4 can still be 0. So can ``nc2_equinorm``: the corners of a regular
    polygon are centred and equally long. For d = 1 and an odd K it is at least 1/√(K² − 1) where
    all classes weigh the same: equal lengths would need as many means on one side of 0 as on the
    other. The least ``nc2_equiangular`` and ``minority_cosine`` are not known, that is NaN. So is,
    of majority and minority, what depends on d: ask for the number of classes in the group.

    Examples
    --------
    >>> import nclib as nc
    >>> nc.ideal_values(10)["nc1_trace_ratio"]
    Ideal(value=0.0, low=0.0, high=inf)
    >>> round(nc.ideal_values(1000, dim=256)["nc2_etf_distance"].value, 3)
    0.994
    """
    known_dim = dim is None or (is_whole(dim) and dim >= 1)
    if not (is_whole(num_classes) and num_classes >= 2 and known_dim):
        raise ValueError(
            "neural collapse needs at least 2 classes and 1 dimension, "
            f"got {num_classes!r} and {dim!r}"
        )
    full = num_classes - 1
    rank = full if dim is None else min(dim, full)
    values = _ideals(num_classes, rank)

    of_group = _ideals(num_classes, full)
    # k/(k − 1) for three classes; for two there is no value.
    of_group["nc2_equiangular"] = of_group["nc2_equiangular"]._replace(high=1.5)
    if rank < full:  # whether the simplex of a group fits depends on its classes
        for name in ("nc2_etf_distance", "nc2_equiangular", "nc3_alignment"):
            of_group[name] = of_group[name]._replace(value=math.nan)
        if rank == 1:  # then it depends on whether the number of classes is even
            of_group["nc2_equinorm"] = of_group["nc2_equinorm"]._replace(value=math.nan)
    for group in GROUPS:
        for name in OF_GROUPS:
            values[f"{name}_{group}"] = of_group[name]
    return values


def _ideals(k: int, r: int) -> dict[str, Ideal]:
    """Of k classes whose centred means can span r = min(d, k − 1) dimensions.

    A simplex has the Gram matrix P = I − 11ᵀ/k, of rank k − 1 and norm √(k − 1). A matrix A of rank
    r that has norm 1 has ⟨A, P⟩ ≤ √r, as it has for the projection on r directions in the range of
    P, over √r.
    """
    inf = math.inf
    simplex_fits = r == k - 1
    least = math.sqrt(2 - 2 * math.sqrt(r / (k - 1)))
    printed = math.sqrt(1 - (2 * math.sqrt(r) - 1) / (k - 1))
    if simplex_fits:
        printed = 1 - 1 / math.sqrt(k - 1)
    least_equinorm = 0.0  # as of a regular k-gon
    if r == 1 and k % 2 == 1:
        # The sum on each side of 0 is the same, S, so that the mean of |v| is 2S/k. The mean of v²
        # is least where (k − 1)/2 equal values face (k + 1)/2 equal ones.
        least_equinorm = 1 / math.sqrt(k**2 - 1)
    zero = 0.0 if simplex_fits else math.nan
    cosine = -1 / (k - 1) if simplex_fits else math.nan

    values = {}
    values["nc1_pinv"] = Ideal(0.0, 0.0, inf)
    values["nc1_pinv_class_balanced"] = Ideal(0.0, 0.0, inf)
    values["nc1_trace_ratio"] = Ideal(0.0, 0.0, inf)
    values["nc1_cdnv"] = Ideal(0.0, 0.0, inf)
    values["nc2_etf_distance"] = Ideal(least, least, math.sqrt(2))
    values["nc2_equinorm"] = Ideal(least_equinorm, 0.0, math.sqrt(k - 1))
    values["nc2_equiangular"] = Ideal(zero, 0.0, k / (k - 1))
    values["nc3_self_duality"] = Ideal(0.0, 0.0, 2.0)
    values["nc3_alignment"] = Ideal(least, least, 2.0)
    values["nc4_ncc_mismatch"] = Ideal(0.0, 0.0, 1.0)
    values["nc2_etf_distance_classifier"] = Ideal(least, least, math.sqrt(2))
    values["nc2_equinorm_classifier"] = Ideal(0.0, 0.0, math.sqrt(k - 1))
    values["nc2_equiangular_classifier"] = Ideal(zero, 0.0, k / (k - 1))
    values["rank_between"] = Ideal(float(r), 0.0, float(r))
    values["paper_eq13_uncentred"] = Ideal(least, least, math.sqrt(2))
    values["paper_eq13_uncentred_printed_constant"] = Ideal(
        printed, printed, math.sqrt(k / (k - 1))
    )
    values["paper_eq14_uncentred"] = Ideal(0.0, 0.0, 2.0)
    values["absent_classes"] = Ideal(0.0, 0.0, float(k))
    values["small_classes"] = Ideal(0.0, 0.0, float(k))
    values["minority_cosine"] = Ideal(cosine, -1.0, 1.0)
    values["classifier_norm_ratio"] = Ideal(1.0, 0.0, inf)
    return values
