"""What each value of a report is under perfect collapse, and the range it lies in."""

import math
import numbers
from typing import NamedTuple


class Ideal(NamedTuple):
    """What a report value is under perfect collapse, and the closed range it lies in (NaN aside)."""

    value: float
    low: float
    high: float


BLOCK_KEYS = {  # reported of the whole and of each block: upper end of the range; ideal and lower end are 0
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
    block = {key: Ideal(0.0, 0.0, high) for key, high in BLOCK_KEYS.items()}
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
