"""What readers need to know of each metric: label, ideal value and range, where it is read, and how."""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

Number = float | Callable[[int], float]


@dataclass(frozen=True)
class Metric:
    """One row of the tables below.

    Parameters
    ----------
    label : what readers call it; empty where it goes by the name of its function
    ideal : the value under perfect collapse, a number or a function of K
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


def _printed_minimum(k: int) -> float:
    return 1 - 1 / math.sqrt(k - 1)


METRICS = {
    "nc1_pinv": Metric("NC1, eq. 12", log=True, centred=True),
    "nc1_pinv_class_balanced": Metric("NC1, class-balanced", log=True, block=True),
    "nc1_trace_ratio": Metric("NC1, trace ratio", log=True, centred=True, block=True),
    "nc1_cdnv": Metric("NC1, CDNV", log=True, centred=True, block=True),
    "nc2_etf_distance": Metric("NC2, centred", high=math.sqrt(2), centred=True, block=True),
    "nc2_equinorm": Metric("NC2, lengths", high=lambda k: math.sqrt(k - 1), centred=True, block=True),
    "nc2_equiangular": Metric(
        "NC2, angles",
        high=lambda k: k / (k - 1),
        centred=True,
        block=True,
        block_high=1.5,  # NaN for two classes
    ),
    "nc3_self_duality": Metric("NC3, centred", high=2.0, centred=True, block=True),
    "nc3_alignment": Metric("NC3, alignment", high=2.0, centred=True, block=True),
    "nc4_ncc_mismatch": Metric("NC4, not the nearest mean", high=1.0, block=True),
    "nc2_etf_distance_classifier": Metric(high=math.sqrt(2)),
    "nc2_equinorm_classifier": Metric(high=lambda k: math.sqrt(k - 1)),
    "nc2_equiangular_classifier": Metric(high=lambda k: k / (k - 1)),
    "rank_between": Metric(ideal=lambda k: k - 1, low=0, high=lambda k: k - 1),
    "paper_eq13_uncentred": Metric("NC2, eq. 13", high=math.sqrt(2)),
    "paper_eq13_uncentred_printed_constant": Metric(
        ideal=_printed_minimum, low=_printed_minimum, high=lambda k: math.sqrt(k / (k - 1))
    ),
    "paper_eq14_uncentred": Metric("NC3, eq. 14", high=2.0),
    "absent_classes": Metric(ideal=0, low=0, high=lambda k: k),
    "small_classes": Metric(ideal=0, low=0, high=lambda k: k),
    "minority_cosine": Metric("cosine among minority classes", ideal=lambda k: -1 / (k - 1), low=-1.0, high=1.0),
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


def ideal_values(num_classes: int) -> dict[str, Ideal]:
    """Ideal value and range of every key that ``nc_report`` can have, in its order.

    Parameters
    ----------
    num_classes : K ≥ 2; a few ideals and ranges depend on it. Where classes are absent, those of the class means
        are those of the remaining number of classes.

    Returns
    -------
    key -> Ideal(value, low, high).

    Raises
    ------
    ValueError
        K < 2, or no whole number.

    Examples
    --------
    >>> import nclib as nc
    >>> nc.ideal_values(10)["nc1_trace_ratio"]
    Ideal(value=0.0, low=0.0, high=inf)
    """
    if not isinstance(num_classes, numbers.Integral):
        raise ValueError(f"num_classes must be a whole number, got {num_classes!r}")
    if num_classes < 2:
        raise ValueError(f"neural collapse needs at least 2 classes, got {num_classes}")

    def ideal(metric: Metric, high: Number) -> Ideal:
        return Ideal(*(end(num_classes) if callable(end) else end for end in (metric.ideal, metric.low, high)))

    values = {name: ideal(metric, metric.high) for name, metric in METRICS.items()}
    for group in ("majority", "minority"):
        for name, metric in METRICS.items():
            if metric.block:
                high = metric.high if metric.block_high is None else metric.block_high
                values[f"{name}_{group}"] = ideal(metric, high)
    return values
