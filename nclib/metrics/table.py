"""What readers need to know of each metric: label, ideal value and range, where it is read, and how."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nclib.metrics.checks import is_whole

Number = float | Callable[[int, int], float]


@dataclass(frozen=True)
class Metric:
    """One row of the tables below.

    Parameters
    ----------
    label : what readers call it; empty where it goes by the name of its function
    ideal : the value under perfect collapse, a number or a function of K and r = min(d, K − 1), how many dimensions K
        centred means can have; where r < K − 1 the least value that exists
    low, high : the closed range (NaN aside), alike
    splits : the splits of a run's history in which it is looked for, in this order
    log : whether its axis is logarithmic
    centred : whether it depends on where the class means are centred
    block : whether it is reported of majority and minority alone too
    block_high : the upper end of the range there, where it is another one
    """

    label: str = ""
    ideal: Number = 0.0
    low: Number = 0.0
    high: Number = math.inf
    splits: tuple[str, ...] = ("train",)
    log: bool = False
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
    """Nobody knows what it is where there is no simplex."""
    return lambda k, r: math.nan if r < k - 1 else value(k, r) if callable(value) else value


METRICS = {
    "nc1_pinv": Metric("NC1, eq. 12", log=True, centred=True),
    "nc1_pinv_class_balanced": Metric("NC1, class-balanced", log=True, block=True),
    "nc1_trace_ratio": Metric("NC1, trace ratio", log=True, centred=True, block=True),
    "nc1_cdnv": Metric("NC1, CDNV", log=True, centred=True, block=True),
    "nc2_etf_distance": Metric(
        "NC2, centred", ideal=_least_distance, low=_least_distance, high=math.sqrt(2), centred=True, block=True
    ),
    "nc2_equinorm": Metric(
        "NC2, lengths", ideal=_of_a_simplex(0.0), high=lambda k, r: math.sqrt(k - 1), centred=True, block=True
    ),
    "nc2_equiangular": Metric(
        "NC2, angles",
        ideal=_of_a_simplex(0.0),
        high=lambda k, r: k / (k - 1),
        centred=True,
        block=True,
        block_high=1.5,  # NaN for two classes
    ),
    "nc3_self_duality": Metric("NC3, centred", high=2.0, centred=True, block=True),
    "nc3_alignment": Metric(
        "NC3, alignment", ideal=_least_distance, low=_least_distance, high=2.0, centred=True, block=True
    ),
    "nc4_ncc_mismatch": Metric("NC4, not the nearest mean", high=1.0, block=True),
    "nc2_etf_distance_classifier": Metric(ideal=_least_distance, low=_least_distance, high=math.sqrt(2)),
    "nc2_equinorm_classifier": Metric(high=lambda k, r: math.sqrt(k - 1)),
    "nc2_equiangular_classifier": Metric(ideal=_of_a_simplex(0.0), high=lambda k, r: k / (k - 1)),
    "rank_between": Metric(ideal=lambda k, r: r, low=0, high=lambda k, r: r),
    "paper_eq13_uncentred": Metric("NC2, eq. 13", ideal=_least_distance, low=_least_distance, high=math.sqrt(2)),
    "paper_eq13_uncentred_printed_constant": Metric(
        ideal=_printed_minimum, low=_printed_minimum, high=lambda k, r: math.sqrt(k / (k - 1))
    ),
    "paper_eq14_uncentred": Metric("NC3, eq. 14", high=2.0),
    "absent_classes": Metric(ideal=0, low=0, high=lambda k, r: k),
    "small_classes": Metric(ideal=0, low=0, high=lambda k, r: k),
    "minority_cosine": Metric(
        "cosine among minority classes", ideal=_of_a_simplex(lambda k, r: -1 / (k - 1)), low=-1.0, high=1.0
    ),
    "classifier_norm_ratio": Metric(ideal=1.0),
}
"""What ``nc_report`` can have of all classes together, in its order."""

LOGGED = {
    "accuracy_balanced": Metric("accuracy", ideal=1.0, high=1.0, splits=("test", "train")),
    "accuracy_majority": Metric("majority accuracy", ideal=1.0, high=1.0, splits=("test",)),
    "accuracy_minority": Metric("minority accuracy", ideal=1.0, high=1.0, splits=("test",)),
    "loss": Metric("loss", splits=("train", "test"), log=True),
    "solver_steps": Metric("solver evaluations", splits=("steps",)),
    "not_converged": Metric("share not converged", high=1.0, splits=("steps",)),
}
"""What a run logs beside it and readers look at."""


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
    dim : d, the number of features. Below K − 1 there is no simplex of K classes, and the values are the least that
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
    if not is_whole(num_classes) or num_classes < 2 or not is_whole(1 if dim is None else dim) or (dim or 1) < 1:
        raise ValueError(f"neural collapse needs at least 2 classes and 1 dimension, got {num_classes!r} and {dim!r}")
    full = num_classes - 1
    rank = full if dim is None else min(dim, full)

    def ideal(metric: Metric, rank: int, high: Number) -> Ideal:
        return Ideal(*(end(num_classes, rank) if callable(end) else end for end in (metric.ideal, metric.low, high)))

    values = {name: ideal(metric, rank, metric.high) for name, metric in METRICS.items()}
    for group in ("majority", "minority"):
        for name, metric in METRICS.items():
            if metric.block:
                high = metric.high if metric.block_high is None else metric.block_high
                of_block = ideal(metric, full, high)
                known = rank == full or not callable(metric.ideal)
                values[f"{name}_{group}"] = of_block if known else of_block._replace(value=math.nan)
    return values
