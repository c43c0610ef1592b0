"""The usual metrics of collapse in one report: ``nc_report``, and the values that they can have.

Other metrics, such as ``nc2_uniformity`` and those of SELI, are called by their own names.

To add a metric, define it in ``definitions.py`` and give it a row in ``METRICS``.
"""

import math
import warnings
from collections.abc import Callable, Iterable
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


# --- The table ------------------------------------------------------------------------------------


class Case(NamedTuple):
    """What a report is computed from; None where it is not given."""

    moments: ClassMoments
    features: Tensor | None = None  # (N, d)
    labels: Tensor | None = None  # (N,)
    mismatches: Tensor | None = None  # (N,) bool, by the logits: see ``ncc_mismatches``
    w: Tensor | None = None  # (K, d), classifier rows
    minority: Tensor | None = None  # (K,) bool

    @property
    def given(self) -> set[str]:
        """Those of logits, w and minority that are known."""
        values = {"logits": self.mismatches, "w": self.w, "minority": self.minority}
        return {name for name, value in values.items() if value is not None}

    @property
    def means(self) -> Tensor:
        """(C, d), centred means of the classes that have samples, for NC2."""
        means = self.moments.centred_means[self.moments.present]
        if len(means) == 2:
            return torch.zeros_like(means)  # two are opposite whatever they are: every NC2 is NaN
        return means


class Ideal(NamedTuple):
    """What a metric is under perfect collapse, and the closed range it lies in (NaN aside)."""

    value: float
    low: float
    high: float


class Bounds(NamedTuple):
    """What the metrics of ``classes`` classes can be, whose centred means span ``rank`` dimensions
    at most.

    A simplex has the Gram matrix P = I − 11ᵀ/K, of rank K − 1 and norm √(K − 1). A matrix A of rank
    r that has norm 1 has ⟨A, P⟩ ≤ √r, as it has for the projection on r directions in the range of
    P, over √r.
    """

    classes: int
    rank: int

    @property
    def simplex_fits(self) -> bool:
        return self.rank == self.classes - 1

    @property
    def distance(self) -> Ideal:
        """Of the distance between a Gram matrix and that of a simplex, both of norm 1."""
        least = math.sqrt(2 - 2 * math.sqrt(self.rank / (self.classes - 1)))
        return Ideal(least, least, math.sqrt(2))

    @property
    def printed_distance(self) -> Ideal:
        """Of the same distance, with the paper's constant."""
        k = self.classes
        least = math.sqrt(1 - (2 * math.sqrt(self.rank) - 1) / (k - 1))
        if self.simplex_fits:
            least = 1 - 1 / math.sqrt(k - 1)
        return Ideal(least, least, math.sqrt(k / (k - 1)))

    @property
    def equinorm(self) -> Ideal:
        """Of unequal lengths. They can be equal, as in a regular polygon, but not on a line for an
        odd number of classes."""
        k = self.classes
        least = 0.0
        if self.rank == 1 and k % 2 == 1:
            # The sum on each side of 0 is the same, S, so that the mean of |v| is 2S/k. The mean of
            # v² is least where (k − 1)/2 equal values face (k + 1)/2 equal ones.
            least = 1 / math.sqrt(k**2 - 1)
        return Ideal(least, 0.0, math.sqrt(k - 1))

    @property
    def equiangular(self) -> Ideal:
        least = 0.0 if self.simplex_fits else math.nan
        return Ideal(least, 0.0, self.classes / (self.classes - 1))

    @property
    def cosine(self) -> Ideal:
        least = -1 / (self.classes - 1) if self.simplex_fits else math.nan
        return Ideal(least, -1.0, 1.0)


class Metric(NamedTuple):
    """A row of the report.

    Parameters
    ----------
    name : in the report
    formula : from a ``Case`` to the value
    ideal : from ``Bounds`` to the ideal value and the range
    needs : which of logits, w and minority it cannot be computed without
    centred : whether it is of centred class means, and so depends on how the classes are weighted;
        an evaluation logs it for the sample mean as centre too
    of_groups : whether it is reported of majority and minority alone too
    label : what readers call it, where that is not its name
    """

    name: str
    formula: Callable[[Case], float]
    ideal: Callable[[Bounds], Ideal]
    needs: tuple[str, ...] = ()
    centred: bool = False
    of_groups: bool = False
    label: str | None = None


METRICS = (
    Metric(
        name="nc1_pinv",
        formula=lambda c: nc1_pinv(c.moments),
        ideal=lambda b: Ideal(0.0, 0.0, math.inf),
        centred=True,
        label="NC1, eq. 12",
    ),
    Metric(
        name="nc1_pinv_class_balanced",
        formula=lambda c: nc1_pinv_class_balanced(c.features, c.labels, c.moments),
        ideal=lambda b: Ideal(0.0, 0.0, math.inf),
        of_groups=True,
        label="NC1, class-balanced",
    ),
    Metric(
        name="nc1_trace_ratio",
        formula=lambda c: nc1_trace_ratio(c.moments),
        ideal=lambda b: Ideal(0.0, 0.0, math.inf),
        centred=True,
        of_groups=True,
        label="NC1, trace ratio",
    ),
    Metric(
        name="nc1_cdnv",
        formula=lambda c: nc1_cdnv(c.moments),
        ideal=lambda b: Ideal(0.0, 0.0, math.inf),
        centred=True,  # it does not depend on the weights, but stored runs have it for both
        of_groups=True,
        label="NC1, CDNV",
    ),
    Metric(
        name="nc2_etf_distance",
        formula=lambda c: nc2_etf_distance(c.means),
        ideal=lambda b: b.distance,
        centred=True,
        of_groups=True,
        label="NC2, centred",
    ),
    Metric(
        name="nc2_equinorm",
        formula=lambda c: nc2_equinorm(c.means),
        ideal=lambda b: b.equinorm,
        centred=True,
        of_groups=True,
        label="NC2, lengths",
    ),
    Metric(
        name="nc2_equiangular",
        formula=lambda c: nc2_equiangular(c.means),
        ideal=lambda b: b.equiangular,
        centred=True,
        of_groups=True,
        label="NC2, angles",
    ),
    Metric(
        name="nc3_self_duality",
        formula=lambda c: nc3_self_duality(c.w, c.moments),
        ideal=lambda b: Ideal(0.0, 0.0, 2.0),
        needs=("w",),
        centred=True,
        of_groups=True,
        label="NC3, centred",
    ),
    Metric(
        name="nc3_alignment",
        formula=lambda c: nc3_alignment(c.w, c.moments),
        ideal=lambda b: b.distance._replace(high=2.0),
        needs=("w",),
        centred=True,
        of_groups=True,
        label="NC3, alignment",
    ),
    Metric(
        name="nc4_ncc_mismatch",
        formula=lambda c: float(c.mismatches.double().mean()),
        ideal=lambda b: Ideal(0.0, 0.0, 1.0),
        needs=("logits",),
        of_groups=True,
        label="NC4, not the nearest mean",
    ),
    Metric(
        name="nc2_etf_distance_classifier",
        formula=lambda c: nc2_etf_distance(c.w),
        ideal=lambda b: b.distance,
        needs=("w",),
    ),
    Metric(
        name="nc2_equinorm_classifier",
        formula=lambda c: nc2_equinorm(c.w),
        ideal=lambda b: b.equinorm._replace(value=0.0),
        needs=("w",),
    ),
    Metric(
        name="nc2_equiangular_classifier",
        formula=lambda c: nc2_equiangular(c.w),
        ideal=lambda b: b.equiangular,
        needs=("w",),
    ),
    Metric(
        name="rank_between",
        formula=lambda c: float(c.moments.rank_between),
        ideal=lambda b: Ideal(float(b.rank), 0.0, float(b.rank)),
    ),
    Metric(
        name="paper_eq13_uncentred",
        formula=lambda c: paper_eq13_uncentred(c.moments),
        ideal=lambda b: b.distance,
        label="NC2, eq. 13",
    ),
    Metric(
        name="paper_eq13_uncentred_printed_constant",
        formula=lambda c: paper_eq13_uncentred_printed_constant(c.moments),
        ideal=lambda b: b.printed_distance,
    ),
    Metric(
        name="paper_eq14_uncentred",
        formula=lambda c: paper_eq14_uncentred(c.w, c.moments),
        ideal=lambda b: Ideal(0.0, 0.0, 2.0),
        needs=("w",),
        label="NC3, eq. 14",
    ),
    Metric(
        name="absent_classes",
        formula=lambda c: float((~c.moments.present).sum()),
        ideal=lambda b: Ideal(0.0, 0.0, float(b.classes)),
    ),
    Metric(
        name="small_classes",
        formula=lambda c: float((c.moments.present & (c.moments.counts < SMALL_CLASS)).sum()),
        ideal=lambda b: Ideal(0.0, 0.0, float(b.classes)),
    ),
    Metric(
        name="minority_cosine",
        formula=lambda c: minority_cosine(c.w, c.minority),
        ideal=lambda b: b.cosine,
        needs=("w", "minority"),
        label="cosine among minority classes",
    ),
    Metric(
        name="classifier_norm_ratio",
        formula=lambda c: classifier_norm_ratio(c.w, c.minority),
        ideal=lambda b: Ideal(1.0, 0.0, math.inf),
        needs=("w", "minority"),
    ),
)
"""Every metric of the report, in its order."""

LABELS = {metric.name: metric.label for metric in METRICS if metric.label}
"""What readers call the metrics, and what else a run logs; others keep their names."""

for _metric in METRICS:
    for _group in GROUPS:
        if _metric.of_groups:
            LABELS[f"{_metric.name}_{_group}"] = f"{_metric.label}, {_group} classes"

LABELS |= {
    "accuracy_balanced": "accuracy",
    "accuracy_majority": "majority accuracy",
    "accuracy_minority": "minority accuracy",
    "loss": "loss",
    "solver_steps": "solver evaluations",
    "not_converged": "share not converged",
}


# --- The report -----------------------------------------------------------------------------------


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
        for metric in METRICS:
            if metric.of_groups and metric.name in report:
                report[f"{metric.name}_{group}"] = of_group.get(metric.name, math.nan)
    return report


def centred_report(m: ClassMoments, w: Tensor) -> dict[str, float]:
    """The metrics of centred class means alone; the weighting of the moments is their centre."""
    case = Case(m, w=w.to(m.device, torch.float64))
    return _values(case, [metric for metric in METRICS if metric.centred])


def _values(case: Case, metrics: Iterable[Metric] = METRICS) -> dict[str, float]:
    """The values of these metrics, without those that need what is not given."""
    values = {}
    for metric in metrics:
        if case.given.issuperset(metric.needs):
            values[metric.name] = metric.formula(case)
    return values


def _values_of_group(case: Case, classes: Tensor) -> dict[str, float]:
    """The metrics ``of_groups`` of some classes alone, which are numbered anew; nothing of none."""
    if not classes.any():
        return {}
    m = case.moments.select(classes)
    rows = classes[case.labels]
    number = classes.cumsum(0) - 1  # (K,), of each class within the group
    mismatches = None
    if case.mismatches is not None:
        mismatches = case.mismatches[rows]
    w = None
    if case.w is not None:
        w = case.w[classes]
        w = w - m.weights @ w
    labels = number[case.labels[rows]]
    group = Case(m, case.features[rows], labels, mismatches, w)
    return _values(group, [metric for metric in METRICS if metric.of_groups])


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
    values = _ideals(Bounds(num_classes, rank))

    of_group = _ideals(Bounds(num_classes, full))
    # k/(k − 1) for three classes; for two there is no value.
    of_group["nc2_equiangular"] = of_group["nc2_equiangular"]._replace(high=1.5)
    if rank < full:  # whether the simplex of a group fits depends on its classes
        for name in ("nc2_etf_distance", "nc2_equiangular", "nc3_alignment"):
            of_group[name] = of_group[name]._replace(value=math.nan)
        if rank == 1:  # then it depends on whether the number of classes is even
            of_group["nc2_equinorm"] = of_group["nc2_equinorm"]._replace(value=math.nan)
    for group in GROUPS:
        for metric in METRICS:
            if metric.of_groups:
                values[f"{metric.name}_{group}"] = of_group[metric.name]
    return values


def _ideals(bounds: Bounds) -> dict[str, Ideal]:
    return {metric.name: metric.ideal(bounds) for metric in METRICS}
