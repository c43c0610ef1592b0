"""Every metric once: how it is computed, what readers call it, its ideal value and its range."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from nclib.metrics import definitions as d
from nclib.metrics.alone import classifier_norm_ratio, minority_cosine
from nclib.metrics.moments import ClassMoments
from nclib.solvers import is_whole

SMALL_CLASS = 5  # below it, the within-class trace is too small by more than a fifth (factor 1 − 1/n)
Number = float | Callable[[int, int], float]


class Given(NamedTuple):
    """What metrics are computed from; None where it is not known."""

    moments: ClassMoments
    classifier: Tensor | None = None  # (K, d), of ``scaled_rows``
    whitened: Tensor | None = None  # (K,), ``whitened_squares`` of all samples
    mismatches: Tensor | None = None  # (K,), how many samples NC4 counts
    minority: Tensor | None = None  # (K,) bool

    @property
    def means(self) -> Tensor:
        """Centred means of the classes that have samples; 0, which is NaN in every NC2, where there are two: those are
        opposite whatever the features are."""
        means = self.moments.centred_means[self.moments.present]
        return means if len(means) != 2 else torch.zeros_like(means)


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Parameters
    ----------
    of : the function that computes it
    given : the function's arguments, as ``Given`` calls them; without one of these the metric does not exist
    label : what readers call it; empty where it goes by the name of its function
    ideal : the value under perfect collapse, a number or a function of K and r = min(d, K − 1), how many dimensions K
        centred means can have; where r < K − 1 the least value that exists
    low, high : the closed range (NaN aside), alike
    centred : whether it depends on where the class means are centred
    block : whether it is reported of majority and minority alone too
    block_high : the upper end of the range there, where it is another one: 1.5 = k/(k − 1) for k = 3, NaN for two
    """

    of: Callable[..., float]
    given: str
    label: str = ""
    ideal: Number = 0.0
    low: Number = 0.0
    high: Number = math.inf
    centred: bool = False
    block: bool = False
    block_high: Number | None = None


# A simplex has the Gram matrix P = I − 11ᵀ/K, of rank K − 1 and norm √(K − 1). A matrix A of rank r that has norm 1 has
# ⟨A, P⟩ ≤ √r, as it has for the projection on r directions in the range of P, over √r.


def _least_distance(k: int, r: int) -> float:
    return math.sqrt(2 - 2 * math.sqrt(r / (k - 1)))


def _printed_minimum(k: int, r: int) -> float:
    return 1 - 1 / math.sqrt(k - 1) if r == k - 1 else math.sqrt(1 - (2 * math.sqrt(r) - 1) / (k - 1))


def _of_a_simplex(value: Number) -> Callable[[int, int], float]:
    """Unknown below K − 1 dimensions."""
    return lambda k, r: math.nan if r < k - 1 else value(k, r) if callable(value) else value


_SIMPLEX = {"ideal": _least_distance, "low": _least_distance, "high": math.sqrt(2)}
_ALIGNED = _SIMPLEX | {"high": 2.0}
_LENGTHS = {"high": lambda k, r: math.sqrt(k - 1)}
_ANGLES = {"ideal": _of_a_simplex(0.0), "high": lambda k, r: k / (k - 1)}
_PRINTED = {"ideal": _printed_minimum, "low": _printed_minimum, "high": lambda k, r: math.sqrt(k / (k - 1))}
_COSINE = {"ideal": _of_a_simplex(lambda k, r: -1 / (k - 1)), "low": -1.0, "high": 1.0}
_FEW = {"high": lambda k, r: k}
_BOTH = {"centred": True, "block": True}

METRICS = {
    "nc1_pinv": Metric(lambda m, _: d.nc1_pinv(m), "moments moments.scatter", "NC1, eq. 12", centred=True),
    "nc1_pinv_class_balanced": Metric(d.mean_of_whitened, "whitened moments", "NC1, class-balanced", block=True),
    "nc1_trace_ratio": Metric(d.nc1_trace_ratio, "moments", "NC1, trace ratio", **_BOTH),
    "nc1_cdnv": Metric(d.nc1_cdnv, "moments", "NC1, CDNV", **_BOTH),
    "nc2_etf_distance": Metric(d.nc2_etf_distance, "means", "NC2, centred", **_SIMPLEX, **_BOTH),
    "nc2_equinorm": Metric(d.nc2_equinorm, "means", "NC2, lengths", ideal=_of_a_simplex(0.0), **_LENGTHS, **_BOTH),
    "nc2_equiangular": Metric(d.nc2_equiangular, "means", "NC2, angles", **_ANGLES, **_BOTH, block_high=1.5),
    "nc3_self_duality": Metric(d.nc3_self_duality, "classifier moments", "NC3, centred", high=2.0, **_BOTH),
    "nc3_alignment": Metric(d.nc3_alignment, "classifier moments", "NC3, alignment", **_ALIGNED, **_BOTH),
    "nc4_ncc_mismatch": Metric(d.share, "mismatches moments", "NC4, not the nearest mean", high=1.0, block=True),
    "nc2_etf_distance_classifier": Metric(d.nc2_etf_distance, "classifier", **_SIMPLEX),
    "nc2_equinorm_classifier": Metric(d.nc2_equinorm, "classifier", **_LENGTHS),
    "nc2_equiangular_classifier": Metric(d.nc2_equiangular, "classifier", **_ANGLES),
    "rank_between": Metric(lambda m: float(m.rank_between), "moments", ideal=lambda k, r: r, high=lambda k, r: r),
    "paper_eq13_uncentred": Metric(d.paper_eq13_uncentred, "moments", "NC2, eq. 13", **_SIMPLEX),
    "paper_eq13_uncentred_printed_constant": Metric(d.paper_eq13_uncentred_printed_constant, "moments", **_PRINTED),
    "paper_eq14_uncentred": Metric(d.paper_eq14_uncentred, "classifier moments", "NC3, eq. 14", high=2.0),
    "absent_classes": Metric(lambda m: float((m.counts == 0).sum()), "moments", **_FEW),
    "small_classes": Metric(lambda m: float(((m.counts > 0) & (m.counts < SMALL_CLASS)).sum()), "moments", **_FEW),
    "minority_cosine": Metric(minority_cosine, "classifier minority", "cosine among minority classes", **_COSINE),
    "classifier_norm_ratio": Metric(classifier_norm_ratio, "classifier minority", ideal=1.0),
}
"""What ``nc_report`` can have of all classes together, in its order."""

LABELS = {name: metric.label for name, metric in METRICS.items() if metric.label} | {
    "accuracy_balanced": "accuracy",
    "accuracy_majority": "majority accuracy",
    "accuracy_minority": "minority accuracy",
    "loss": "loss",
    "solver_steps": "solver evaluations",
    "not_converged": "share not converged",
}
LABELS |= {
    f"{name}_{group}": f"{label}, {group} classes"
    for name, label in LABELS.items()
    for group in ("majority", "minority")
    if name.startswith("nc")
}
"""What readers call the metrics, and what else a run logs; others keep their names."""


def computed(given: Given, block: bool = False) -> dict[str, float]:
    """Every metric that follows from what is given; ``block``: those of a block of classes alone."""
    values = {}
    for name, metric in METRICS.items():
        arguments = [attrgetter(argument)(given) for argument in metric.given.split()]
        if (metric.block or not block) and not any(argument is None for argument in arguments):
            values[name] = metric.of(*arguments)
    return values


class Ideal(NamedTuple):
    """What a report value is under perfect collapse, and the closed range it lies in (NaN aside)."""

    value: float
    low: float
    high: float


def ideal_values(num_classes: int, dim: int | None = None) -> dict[str, Ideal]:
    """Ideal value and range of every key that ``nc_report`` can have, in its order.

    Parameters
    ----------
    num_classes : K ≥ 2; a few ideals and ranges depend on it. Where classes are absent, those of the class means
        are those of the remaining number of classes.
    dim : d, the number of features. Below K − 1 a simplex of K classes does not fit, and the values are the least that
        exist in so few dimensions. Left out, there is room for a simplex.

    Returns
    -------
    key -> Ideal(value, low, high).

    Raises
    ------
    ValueError
        K < 2 or dim < 1, or not whole numbers.

    Notes
    -----
    For d < K − 1, ``nc2_etf_distance``, ``nc3_alignment`` and ``paper_eq13_uncentred`` cannot be less than
    √(2 − 2√(d/(K − 1))), which K vectors reach whose Gram matrix is a projection. NC1, ``nc3_self_duality`` and NC4
    can still be 0. The least ``nc2_equinorm``, ``nc2_equiangular`` and ``minority_cosine`` are NaN, not reckoned here;
    so is, of majority and minority, what depends on d: ask for the number of classes in the block.

    Examples
    --------
    >>> import nclib as nc
    >>> nc.ideal_values(10)["nc1_trace_ratio"]
    Ideal(value=0.0, low=0.0, high=inf)
    >>> round(nc.ideal_values(1000, dim=256)["nc2_etf_distance"].value, 3)
    0.994
    """
    if not (is_whole(num_classes) and num_classes >= 2 and (dim is None or (is_whole(dim) and dim >= 1))):
        raise ValueError(f"neural collapse needs at least 2 classes and 1 dimension, got {num_classes!r} and {dim!r}")
    full = num_classes - 1
    rank = full if dim is None else min(dim, full)

    def ideal(metric: Metric, rank: int, high: Number) -> Ideal:
        return Ideal(*(end(num_classes, rank) if callable(end) else end for end in (metric.ideal, metric.low, high)))

    values = {name: ideal(metric, rank, metric.high) for name, metric in METRICS.items()}
    for group in ("majority", "minority"):
        for name, metric in METRICS.items():
            if metric.block:
                of_block = ideal(metric, full, metric.block_high or metric.high)
                known = rank == full or not callable(metric.ideal)
                values[f"{name}_{group}"] = of_block if known else of_block._replace(value=math.nan)
    return values
