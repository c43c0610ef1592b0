"""The page "Does a DEQ collapse better?" says in words what the tracked runs give. Its numbers are generated."""

import numpy as np
import pytest
import scipy.stats

from companion.neural_collapse import collapse_tables
from companion.neural_collapse.collapse_tables import GROUPS, R10, R100, ROWS, compared, tracked
from companion.neural_collapse.duality import COSINES


def value(run_rows, metric, split="train"):
    rows = run_rows[(run_rows["metric"] == metric) & (run_rows["split"] == split)]
    return rows.loc[rows["epoch"].idxmax(), "value"]


def by_hand(metric, settings, relative=True):
    """Mean and ends of the 95 % interval over seeds 0, 1, 2, from the frame alone."""
    frame, seeds = tracked(), []
    for seed in range(3):
        differences = []
        for K_A, R in settings:
            here = frame[(frame["K_A"].fillna(0) == K_A) & (frame["R"] == R) & (frame["seed"] == seed)]
            both = [value(here[here["model"] == model], metric) for model in ("deq", "explicit")]
            differences.append(np.log(both[0] / both[1]) if relative else both[0] - both[1])
        seeds.append(np.mean(differences))
    ends = scipy.stats.t.interval(0.95, 2, np.mean(seeds), scipy.stats.sem(seeds))
    return np.array([np.mean(seeds), *ends])


@pytest.mark.parametrize("group", ["r100", "balanced", "four"])
@pytest.mark.parametrize("name", ["nc2c", "cosc"])
def test_changes_and_intervals_are_those_of_the_runs(name, group):
    row, found = ROWS[name], compared(ROWS[name], group).interval
    assert np.allclose([found.mean, *found.ends()], by_hand(row.metric, GROUPS[group], row.relative), atol=1e-12)


def test_the_exchange_of_lengths_and_angles_starts_from_eq_14_itself():
    for group in GROUPS:
        whole, stored = collapse_tables._parts(group, centred=False)["whole"], compared(ROWS["eq14"], group).interval
        assert np.allclose([whole.mean, whole.half], [stored.mean, stored.half], atol=1e-4)  # arrays are stored rounded


def test_the_centred_cosine_is_that_of_every_run():
    found = tracked()[tracked()["metric"].isin(COSINES)]
    assert len(found) == 2 * tracked()["run_id"].nunique() and found["value"].between(-1, 1).all()


def side(name, group):
    """−1 or 1 where the interval lies below or above 0, 0 where it contains it."""
    found = compared(ROWS[name], group).interval
    return int(np.sign(found.mean)) * found.significant


def test_the_answer_of_the_page_is_that_of_the_intervals():
    assert [side(name, "r100") for name in ("nc2c", "nc3c", "eq14", "eq13", "nc1", "trace")] == [-1, -1, -1, -1, 0, 1]
    assert [side(name, "r10") for name in ("eq13", "eq14", "nc3c", "nc2c")] == [1, 0, 0, 0]
    assert [side(name, "balanced") for name in ("nc2c", "nc3c")] == [1, 1]
    assert [side(name, "four") for name in ("acc", "minority", "majority")] == [1, 1, -1]
    assert [side("cos", group) for group in ("r100", "r10", "balanced")] == [-1, -1, -1]
    assert [side("cosc", group) for group in ("r100", "r10", "balanced")] == [1, 0, -1]


def test_the_lower_eq_14_at_R_100_comes_from_lengths():
    parts = collapse_tables._parts("r100", centred=False)
    assert parts["lengths"].ends()[1] < 0 < parts["angles"].ends()[0]
    centred = collapse_tables._parts("r100", centred=True)
    assert abs(centred["lengths"].mean - centred["angles"].mean) < 0.02  # "both contribute alike"


def words(one, names):
    rows = [ROWS[name]._replace(relative=False) for name in names]
    return [collapse_tables._compared(row, (one,)).verdict("reduced", row.claim).word for row in rows]


def test_the_settings_that_are_judged():
    for one in ((5, 100), (3, 100)):
        assert words(one, ("eq14", "nc2c", "nc3c", "eq13")) == ["supported"] * 3 + ["not significant"]
    assert words(R10[0], ("eq14", "nc2c", "nc3c", "eq13")) == ["not significant"] * 3 + ["contradicted"]
    assert set(words((7, 100), ("eq13", "eq14", "nc2c", "nc3c", "nc1", "trace"))) == {"reported"}
    assert collapse_tables._below_the_gate() == {0, 2}


def test_the_gate_does_not_decide():
    lines = [line.split(" | ")[1:] for line in collapse_tables._gate().splitlines()[2:]]
    for first, *others in lines[:1]:
        for cell in (first, *others[1:]):
            low, high = cell.strip(" |").partition(" (")[2].rstrip(")").split(" to ")
            assert low.startswith("−") and not high.startswith("−")
    assert len(lines) == 4
    for cells in lines[1:]:
        assert all(cell.startswith("−") and " to −" in cell for cell in (cells[0], *cells[2:])), cells


def test_every_network_that_misses_training_images_is_a_DEQ():
    found = collapse_tables._missed()
    assert found["collapse-missing-explicit"] == "0" and {"collapse-missed-0", "collapse-missed-2"} < set(found)


def test_collapse_begins_at_no_norm_and_equilibria_do_not_stay():
    rising = {"explicit": [], "deq": []}
    for (_, model), rows in tracked().groupby(["run_id", "model"]):
        logged = {
            names: one.set_index("epoch")["value"].sort_index() for names, one in rows.groupby(["split", "metric"])
        }
        nc1, norm = logged["train", "nc1_pinv"], logged["train", "feature_norm"]
        assert nc1.is_monotonic_decreasing
        after = nc1[nc1 < 0.1].index[0]
        rising[model].append(norm[after] > norm[nc1.index[nc1.index.get_loc(after) - 1]])
        if model == "deq":
            assert logged["steps", "start_distance"].idxmin() <= 16
    assert not any(rising["explicit"]) and rising["deq"].count(False) == 1  # "all DEQs but one"


def test_the_pooled_spread_and_the_one_within_settings():
    logs = np.array([[by_hand_one("paper_eq13_uncentred", one, seed) for one in (*R100, *R10)] for seed in range(3)])
    (pooled, _, _), implied, *_ = collapse_tables._deviations("eq13")
    assert np.isclose(pooled, logs.mean(axis=1).std(ddof=1))
    assert np.isclose(implied, np.sqrt(logs.var(axis=0, ddof=1).sum()) / 4)


def by_hand_one(metric, one, seed):
    frame = tracked()
    here = frame[(frame["K_A"] == one[0]) & (frame["R"] == one[1]) & (frame["seed"] == seed)]
    return np.log(np.divide(*(value(here[here["model"] == model], metric) for model in ("deq", "explicit"))))
