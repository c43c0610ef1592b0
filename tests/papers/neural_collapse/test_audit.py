"""The arithmetic of the printed tables: counts made by hand, and tables that are sound."""

import math

import numpy as np
import pandas as pd
import pytest

from nclib.papers.neural_collapse import accuracy_tables, audit

PRINTED = accuracy_tables.published()


def test_spreads_of_really_simulated_epochs_are_possible():
    """The rule accepts what ten epochs can do, whatever their correlation."""
    rng = np.random.default_rng(0)
    rows = []
    for trial in range(300):
        minority = rng.uniform(0, 100, 10)
        majority = rng.uniform(-1, 1) * minority + rng.uniform(0, 100, 10) * rng.uniform(0, 1)
        parts = {
            "majority": majority,
            "minority": minority,
            "overall": 0.3 * majority + 0.7 * minority,
        }
        for split, values in parts.items():
            rows.append(
                (
                    2,
                    "cifar10",
                    3,
                    trial,
                    "deq",
                    split,
                    round(values.mean(), 2),
                    round(values.std(ddof=1), 2),
                )
            )
    frame = pd.DataFrame(rows, columns=PRINTED.columns)
    assert audit.audit_overall_std(frame)["possible"].all()
    assert (audit.audit_overall(frame)["fits"] != "neither").all()


def test_largest_spread_of_values_between_0_and_100():
    assert audit.largest_std(0.40) == pytest.approx(0.40 * math.sqrt(10))
    assert audit.largest_std(50, 10) == pytest.approx(np.std([0, 100] * 5, ddof=1))
    assert audit.largest_std(0) == audit.largest_std(100) == 0
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.uniform(0, 100, 10) ** rng.uniform(0.1, 3) % 100
        assert values.std(ddof=1) <= audit.largest_std(values.mean()) + 1e-9


def test_axes_against_tables():
    last = {(3, "a"): 80, (3, "b"): 40, (4, ""): 28, (5, ""): 50}
    assert {key: accuracy_tables.published_ticks(*key, "accuracy")[1] for key in last} == last
    table = audit.audit_axes(PRINTED, last)
    outside = table[table["says"] == "outside"]
    assert outside[["figure", "printed"]].to_numpy().tolist() == [
        ["3b", 46.09],
        ["4", 32.14],
        ["4", 34.18],
    ]
    assert len(table) == 8
    inside = audit.audit_axes(PRINTED, dict.fromkeys(last, 100))
    assert (inside["says"] == "inside").all()
