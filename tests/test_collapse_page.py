"""The page "Does a DEQ collapse better?" says in words what the tracked runs give. Its numbers are generated."""

import numpy as np
import pytest
import scipy.stats

from companion.neural_collapse import collapse_tables
from companion.neural_collapse.collapse_tables import FRESH, GROUPS, PARTS, ROWS, SPLITS, compared, parts, tracked


def value(run_rows, metric, split="train"):
    rows = run_rows[(run_rows["metric"] == metric) & (run_rows["split"] == split)]
    return rows.loc[rows["epoch"].idxmax(), "value"]


def logs_by_hand(metric, group, relative=True):
    frame, seeds = tracked(group in FRESH), range(10, 15) if group in FRESH else range(3)
    found = np.zeros((len(seeds), len(GROUPS[group])))
    for row, place in np.ndindex(found.shape):
        K_A, R = GROUPS[group][place]
        here = frame[(frame["K_A"].fillna(0) == K_A) & (frame["R"] == R) & (frame["seed"] == seeds[row])]
        both = np.array([value(here[here["model"] == model], metric) for model in ("deq", "explicit")])
        found[row, place] = -np.diff(np.log(both) if relative else both)[0]
    return found


@pytest.mark.parametrize("group", ["fresh", "r100", "balanced", "four"])
@pytest.mark.parametrize("name", ["nc2c", "cosc"])
def test_changes_and_intervals_are_those_of_the_runs(name, group):
    row, found = ROWS[name], compared(ROWS[name], group).interval
    seeds = logs_by_hand(row.metric, group, row.relative).mean(axis=1)
    ends = scipy.stats.t.interval(0.95, len(seeds) - 1, seeds.mean(), scipy.stats.sem(seeds))
    assert np.allclose([found.mean, *found.ends()], [seeds.mean(), *ends], atol=1e-12)


def test_the_exchange_of_lengths_and_angles_starts_from_eq_14_itself():
    for group in GROUPS:
        whole, stored = parts(group, "NC3, eq. 14")["whole"], compared(ROWS["eq14"], group).interval
        assert np.allclose([whole.mean, whole.half], [stored.mean, stored.half], atol=1e-4)  # arrays are stored rounded


def side(name, group):
    """−1 or 1 where the interval lies below or above 0, 0 where it contains it."""
    found = compared(ROWS[name], group).interval
    return int(np.sign(found.mean)) * found.significant


def test_the_answer_of_the_page_is_that_of_the_intervals():
    lower = ("nc2c", "nc3c", "eq14", "eq13", "traceimages", "cos", "accadj", "majority", "nc2amajor")
    higher = ("nc1", "trace", "traceclasses", "cosc", "acc", "minority", "nc2cmajor")
    assert {side(name, "fresh") for name in lower} == {-1} and {side(name, "fresh") for name in higher} == {1}
    assert [side(name, "r10") for name in ("eq13", "eq14", "nc3c", "nc2c", "nc1", "acc")] == [1, 0, 0, 0, -1, 0]
    assert [side(name, "balanced") for name in ("nc2c", "nc3c", "cosc", "cos")] == [1, 1, -1, -1]
    assert collapse_tables.numbers()["collapse-missing-explicit"] == "0"


@pytest.mark.parametrize("metric", [metric for metric in SPLITS.values() if "before" not in metric])
def test_what_is_nearer_at_R_100_comes_from_lengths(metric):
    lengths, angles = (parts("fresh", metric)[name].mean / parts("fresh", metric)["whole"].mean for name in PARTS)
    assert lengths > 0.95 and abs(angles) < 0.2


def test_collapse_begins_at_no_norm_and_equilibria_do_not_stay():
    rising = {"explicit": [], "deq": []}
    for (_, model), rows in tracked().groupby(["run_id", "model"]):
        logged = dict(tuple(rows.set_index("epoch").sort_index().groupby(["split", "metric"])["value"]))
        nc1, norm = logged["train", "nc1_pinv"], logged["train", "feature_norm"]
        assert nc1.is_monotonic_decreasing
        after = nc1[nc1 < 0.1].index[0]
        rising[model].append(norm[after] > norm[nc1.index[nc1.index.get_loc(after) - 1]])
        if model == "deq":
            assert logged["steps", "start_distance"].idxmin() <= 16
    assert not any(rising["explicit"]) and rising["deq"].count(False) == 1  # "all DEQs but one"
