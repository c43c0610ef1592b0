"""The page "Does a DEQ collapse better?" says in words what the tracked runs give. Its numbers are generated."""

import numpy as np
import pytest
import scipy.stats

from companion.neural_collapse import collapse_tables
from companion.neural_collapse.collapse_tables import GROUPS, ROWS, SPLITS, compared, tracked


def value(run_rows, metric, split="train"):
    rows = run_rows[(run_rows["metric"] == metric) & (run_rows["split"] == split)]
    return rows.loc[rows["epoch"].idxmax(), "value"]


def logs_by_hand(metric, settings, relative=True):
    """Differences by seed and setting, from the frame alone."""
    frame, found = tracked(), np.zeros((3, len(settings)))
    for seed, place in np.ndindex(found.shape):
        K_A, R = settings[place]
        here = frame[(frame["K_A"].fillna(0) == K_A) & (frame["R"] == R) & (frame["seed"] == seed)]
        both = np.array([value(here[here["model"] == model], metric) for model in ("deq", "explicit")])
        found[seed, place] = -np.diff(np.log(both) if relative else both)[0]
    return found


@pytest.mark.parametrize("group", ["r100", "balanced", "four"])
@pytest.mark.parametrize("name", ["nc2c", "cosc"])
def test_changes_and_intervals_are_those_of_the_runs(name, group):
    row, found = ROWS[name], compared(ROWS[name], group).interval
    seeds = logs_by_hand(row.metric, GROUPS[group], row.relative).mean(axis=1)
    ends = scipy.stats.t.interval(0.95, 2, seeds.mean(), scipy.stats.sem(seeds))
    assert np.allclose([found.mean, *found.ends()], [seeds.mean(), *ends], atol=1e-12)


def test_the_exchange_of_lengths_and_angles_starts_from_eq_14_itself():
    for group in GROUPS:
        whole, stored = collapse_tables._parts(group, "NC3, eq. 14")["whole"], compared(ROWS["eq14"], group).interval
        assert np.allclose([whole.mean, whole.half], [stored.mean, stored.half], atol=1e-4)  # arrays are stored rounded


def side(name, group):
    """−1 or 1 where the interval lies below or above 0, 0 where it contains it."""
    found = compared(ROWS[name], group).interval
    return int(np.sign(found.mean)) * found.significant


def test_the_answer_of_the_page_is_that_of_the_intervals():
    assert [side(name, "r100") for name in ("nc2c", "nc3c", "eq14", "eq13", "nc1", "trace")] == [-1, -1, -1, -1, 0, 1]
    assert [side(name, "r10") for name in ("eq13", "eq14", "nc3c", "nc2c")] == [1, 0, 0, 0]
    assert [side(name, "balanced") for name in ("nc2c", "nc3c")] == [1, 1]
    assert [side(name, "four") for name in ("acc", "minority", "majority")] == [1, 1, -1]
    assert [side(name, "r100") for name in ("traceclasses", "traceimages", "nc1class")] == [1, -1, 1]
    assert [side("cos", group) for group in ("r100", "r10", "balanced")] == [-1, -1, -1]
    assert [side("cosc", group) for group in ("r100", "r10", "balanced")] == [1, 0, -1]


@pytest.mark.parametrize("metric", [metric for metric in SPLITS.values() if "before" not in metric])
def test_what_is_nearer_at_R_100_comes_from_lengths(metric):
    parts = collapse_tables._parts("r100", metric)
    assert parts["lengths"].ends()[1] < 0 < parts["angles"].ends()[1]
    whole, length = parts["whole"].mean, parts["lengths"].mean
    assert length < 0.95 * whole and abs(parts["angles"].mean) < 0.2 * abs(whole)


def test_every_network_that_misses_training_images_is_a_DEQ():
    found = collapse_tables._missed()
    assert found["collapse-missing-explicit"] == "0" and {"collapse-missed-0", "collapse-missed-2"} < set(found)


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


def cells(group):
    """Signs of the cells of the gate's table: −1 or 1 where the interval excludes 0, 0 where it does not."""
    found = {}
    for line in collapse_tables._gate(group).splitlines()[2:]:
        label, *shown = line.strip("| ").split(" | ")
        ends = [cell.partition("(")[2].strip(")").split(" to ") for cell in (shown[0], *shown[2:])]
        found[label] = [(low[0] != "−") + (high[0] != "−") - 1 for low, high in ends]
    return list(found.values())


def test_the_gate_decides_at_R_100_alone():
    assert cells("four")[:4] == [[0, 0, 0], *[[-1, -1, -1]] * 3]
    first, *others = cells("r100")
    assert (
        first == [-1, 0, -1] and others[:3] == [[-1, -1, -1]] * 3 and all(0 in row[:2] != [0, 0] for row in others[3:])
    )
    assert collapse_tables._below_the_gate() == {0, 2}
