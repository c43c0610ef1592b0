"""Tables of the CIFAR-10 runs: numbers as text, and parts of NC1 against closed forms.

That the tables are those of docs/tables.md is asked by tests/test_docs.py.
"""

import numpy as np
import pandas as pd
import pytest

import nclib as nc
from nclib.compare import Interval
from nclib.papers.neural_collapse import collapse_tables
from nclib.papers.neural_collapse.collapse_tables import EVERY, GROUPS, PARTS_OF_NC1


@pytest.mark.parametrize(
    ("values", "seeds", "text"),
    [
        ((-17.2, -21.0, -13.1), 5, "−17 % (−21 to −13)"),
        ((1.14, 0.6, 1.6), 5, "+1.1 % (0.6 to 1.6)"),
        ((-4.0, -12.0, 4.2), 3, "−4.0 % (−12 to 4.2)"),
        ((9.96, 3.0, 17.0), 3, "+10 % (3 to 17)"),
        ((-17.2, np.nan, np.nan), 1, "−17 %"),
    ],
)
def test_a_change_in_percent(values, seeds, text):
    assert collapse_tables.percent_text(*values, seeds) == text


@pytest.mark.parametrize(
    ("row", "difference", "text"),
    [
        ("acc", Interval(1.1, 0.5, 5), "+1.1 (0.6 to 1.6) points"),
        ("cos", Interval(-0.026, 0.002, 5), "−0.026 (−0.028 to −0.024)"),
        ("cos", Interval(-0.026, 0.002, 2), "−0.026"),
        ("nc2c", Interval(np.log(0.8), 0.0, 5), "−20 % (−20 to −20)"),
    ],
)
def test_a_difference_as_its_row_is_compared(row, difference, text):
    assert collapse_tables.interval_text(EVERY[row], difference) == text


def test_groups_of_settings():
    assert GROUPS["four"] == (*GROUPS["r100"], *GROUPS["r10"])
    assert GROUPS["fresh"] == GROUPS["r100"]
    fresh = [GROUPS[f"fresh{k_a}"] for k_a in (3, 5, 7)]
    assert sum(fresh, ()) == GROUPS["fresh"]


def from_arrays(ratio, minority, means, **metrics):
    rows = [{"R": float(ratio), "metric": name, "value": value} for name, value in metrics.items()]
    arrays = {"class_means": means, "classifier": 2 * means, "minority": np.array(minority)}
    return collapse_tables._from_arrays(pd.DataFrame(rows), arrays)


def test_parts_of_nc1_at_a_perfect_simplex():
    means = nc.simplex_etf(4, 4).numpy()
    within = {"nc1_trace_ratio": 0.5, "nc1_trace_ratio_minority": 0.2}
    of_run = from_arrays(
        10, [False, False, True, True], means, **within, nc1_trace_ratio_majority=0.1
    )
    for name in ("nc2_minority_in_all", "nc3_minority_in_all", "nc2_majority_in_all"):
        assert of_run[name] == pytest.approx(0, abs=1e-12)
    between = means.var(axis=0).sum()
    pair = means[:2].var(axis=0).sum()  # of two classes, the same for both groups
    assert of_run[PARTS_OF_NC1[0]] == pytest.approx(1)
    assert of_run[PARTS_OF_NC1[1]] == pytest.approx(between)
    assert of_run[PARTS_OF_NC1[2]] == pytest.approx(0.5 * between)
    assert of_run[PARTS_OF_NC1[3]] == pytest.approx(0.2 * pair)
    assert of_run[PARTS_OF_NC1[4]] == pytest.approx(0.1 * pair)
    mean_within = (0.2 + 0.1) / 2 * pair
    assert of_run["trace_ratio_of_classes"] == pytest.approx(mean_within / between)


def test_balanced_classes_have_one_weighting():
    means = np.random.default_rng(0).normal(size=(4, 6))
    of_run = from_arrays(1, [False] * 4, means, nc1_trace_ratio=0.3)
    assert of_run["trace_ratio_of_classes"] == 0.3
    assert of_run["trace_ratio_of_images"] == pytest.approx(0.3)
    assert PARTS_OF_NC1[0] not in of_run
