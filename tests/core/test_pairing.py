"""The one door from a frame to a statement: what it refuses, and that no such frame gets a verdict."""

import dataclasses

import numpy as np
import pytest
from scipy import stats
from tidy import rows, stack, trained

from nclib import comparison
from nclib.comparison import NotMeasured, interval, pairs

SETTINGS = ((3, 100.0), (5, 100.0), (7, 100.0))


def run(model, seed, value, setting=(3, 100.0), metric="nc1", split="train", **more):
    return rows(metric, split, model, seed, [value], k_a=setting[0], ratio=setting[1], **more)


def study(settings=SETTINGS[:1], seeds=range(3), ratio=0.5, accuracy=1.0, metric="nc1", split="train"):
    """Both networks; the DEQ's values are about this share of the other's."""
    generator = np.random.default_rng(0)
    runs = [
        run(model, seed, (ratio if model == "deq" else 1.0) * (1 + generator.normal(0, 0.01)), setting, metric, split)
        for setting in settings
        for seed in seeds
        for model in ("explicit", "deq")
    ]
    return trained(stack(*runs), accuracy)


def test_pairs_are_by_seed_whatever_the_order_of_rows():
    frame = study(settings=[(None, 1.0)])
    found, shuffled = pairs(frame, "nc1"), pairs(frame.sample(frac=1, random_state=1), "nc1")
    assert sorted(found.table["difference"]) == sorted(shuffled.table["difference"])
    table = found.table
    assert list(table) == ["dataset", "K_A", "R", "seed", "deq", "explicit", "difference"]
    assert np.allclose(table["difference"], table["deq"] - table["explicit"]) and found.terminal is True
    table.loc[:, "difference"] = 0.0
    assert found.interval.mean != 0, "what is shown can be changed, the pairs cannot"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.terminal = True


def test_several_settings_are_a_mean_for_each_seed():
    frame = study(SETTINGS, seeds=range(4))
    found = pairs(frame, "nc1", relative=True)
    means = np.log(found.table["deq"] / found.table["explicit"]).groupby(found.table["seed"]).mean()
    assert found.interval == pytest.approx(interval(means)) and found.interval.n == 4
    assert found.settings == 3 and found.by_setting["seeds"].tolist() == [4, 4, 4]


def test_settings_are_never_counted_as_seeds():
    frame = study(SETTINGS, seeds=[0])
    found = pairs(frame, "nc1", relative=True)
    assert found.interval.n == 1 and found.verdict("reduced", "lower").word == "reported"
    for table, asked in ((comparison.claims_table, "lower"), (comparison.differences, "train")):
        with pytest.raises(ValueError, match="holds 3 settings, and this table is of one"):
            table(frame, {"nc1": asked}, "reduced")


def test_seeds_need_the_same_settings_and_not_only_as_many():
    parts = [study(SETTINGS[:2], seeds=[0]), study(SETTINGS[1:], seeds=[1]), study(SETTINGS[::2], seeds=[2])]
    with pytest.raises(ValueError, match="each seed needs the same settings"):
        pairs(stack(*parts), "nc1")


@pytest.mark.parametrize("phase", ["required", "described"])
@pytest.mark.parametrize("lost", ["accuracy_train_prior", "accuracy_balanced", "of one run", "of the last epoch"])
def test_an_unknown_phase_is_never_judged(phase, lost):
    frame = study()
    accuracies = frame["metric"].str.startswith("accuracy")
    if lost == "of one run":
        frame = frame[~(accuracies & (frame["model"] == "deq") & (frame["seed"] == 1))]
    elif lost == "of the last epoch":
        frame["epoch"] = frame["epoch"].where(accuracies, 100)
    else:
        frame = frame[frame["metric"] != lost]
    found = pairs(frame, "nc1", relative=True)
    assert found.terminal is None and found.verdict("reduced", "lower", phase).word == "reported"
    assert pairs(study(), "nc1", relative=True).verdict("reduced", "lower", phase).word == "supported"
    assert comparison.claims_table(frame, {"nc1": "lower"}, "reduced")["verdict"].tolist() == ["reported"]
    assert comparison.ratios(frame, {"nc1": "lower"}, "reduced")["verdict"].tolist() == ["reported"]


def test_a_phase_may_be_described_where_a_protocol_says_so():
    found = pairs(study(accuracy=0.998), "nc1", relative=True)
    assert found.terminal is False and found.verdict("reduced", "lower").remark == "before the terminal phase"
    assert found.verdict("reduced", "lower", phase="described").word == "supported"
    with pytest.raises(ValueError, match="'required' or 'described'"):
        found.verdict("reduced", "lower", phase="ignored")


def test_repeated_rows_are_refused():
    frame = study()
    with pytest.raises(ValueError, match=r"run .* has nc1 \(train\) of epoch 1 twice"):
        pairs(stack(frame, frame.iloc[:1].assign(value=9.0)), "nc1")


@pytest.mark.parametrize(("column", "value"), [("epoch", np.nan), ("epoch", "9"), ("epoch", 1.5), ("seed", np.nan)])
def test_epochs_and_seeds_are_whole_numbers(column, value):
    frame = study()
    frame[column] = frame[column].astype(object)
    frame.loc[0, column] = value
    with pytest.raises(ValueError, match=rf"{column} .* is not a whole number"):
        pairs(frame, "nc1")


@pytest.mark.parametrize("value", [np.nan, np.inf, "half"])
def test_a_value_that_is_not_a_number_is_not_skipped(value):
    frame = study()
    frame["value"] = frame["value"].astype(object)
    frame.loc[0, "value"] = value
    with pytest.raises(NotMeasured):
        pairs(frame, "nc1")
    assert comparison.claims_table(frame, {"nc1": "lower"}, "reduced")["remark"].tolist() == ["not measured"]


def test_several_runs_of_one_arm_and_seed_are_refused():
    frame = study()
    other = frame[frame["model"] == "deq"].assign(run_id=lambda each: each["run_id"] + "-other")
    with pytest.raises(ValueError, match="deq has several runs of one setting and seed"):
        pairs(stack(frame, other), "nc1")


@pytest.mark.parametrize("column", ["width", "epochs", "batch_size", "lr", "recipe", "epoch", "protocol"])
def test_the_runs_of_a_setting_differ_in_network_and_seed_alone(column):
    frame = study()
    one, two = ('{"model.width":16}', '{"model.width":64}') if column == "protocol" else (1, 2)
    said = r"model\.width 16 and 64" if column == "protocol" else f"{column} 1 and 2"
    with pytest.raises(ValueError, match=f"cannot be compared: {said}"):
        pairs(frame.assign(**{column: frame["model"].map({"deq": one, "explicit": two})}), "nc1")
    with pytest.raises(ValueError, match="cannot be compared"):
        pairs(frame.assign(**{column: frame["seed"].map({0: one, 1: one, 2: two})}), "nc1")


def test_no_pair_at_all_is_refused_and_a_lone_run_enters_nothing():
    frame = study()
    with pytest.raises(NotMeasured, match="of 'deq' and of 'explicit'; models: explicit"):
        pairs(frame[frame["model"] == "explicit"], "nc1")
    assert pairs(frame[~((frame["model"] == "deq") & (frame["seed"] == 2))], "nc1").interval.n == 2


def test_logarithms_need_positive_values():
    frame = study()
    frame.loc[0, "value"] = 0.0
    with pytest.raises(NotMeasured, match="is 0, which has no logarithm"):
        pairs(frame, "nc1", relative=True)
    assert len(pairs(frame, "nc1").table) == 3


def test_accuracies_are_in_percent_and_percent_is_not_taken_twice():
    frame = study(metric="accuracy_balanced", split="test")
    found = pairs(frame, "accuracy_balanced", "test")
    assert found.table["explicit"].between(90, 110).all()
    with pytest.raises(ValueError, match="before `percent`"):
        pairs(comparison.percent(frame), "accuracy_balanced", "test")


def test_equality_by_the_whole_interval_or_by_two_one_sided_tests():
    generator = np.random.default_rng(3)
    spread = generator.normal(0, 1, 8)
    spread = (spread - spread.mean()) / spread.std(ddof=1)
    half95, half90 = (stats.t.ppf(p, 7) / np.sqrt(8) for p in (0.975, 0.95))
    size = 0.1 / (half95 + half90) * 2 * 0.97  # between both: the 90 % interval fits into 10 %, the 95 % one does not
    runs = [run("explicit", s, 1.0) for s in range(8)] + [
        run("deq", s, float(np.exp(size * spread[s]))) for s in range(8)
    ]
    found = pairs(trained(stack(*runs)), "nc1", relative=True)
    assert found.verdict("reduced", "equal").word == "not significant"
    assert found.verdict("reduced", "equal", equality="tost").word == "equal"
    assert found.verdict("reduced", "equal", equality="tost", within=0.03).word == "not significant"
    assert found.interval.ends(0.9)[1] == pytest.approx(size * half90)


def test_an_accuracy_that_stands_twice_does_not_replace_the_one_that_is_missing():
    frame = study()
    prior = frame[frame["metric"] == "accuracy_train_prior"]
    assert len(prior)
    doubled = stack(frame[frame["metric"] != "accuracy_balanced"], prior)
    with pytest.raises(ValueError, match="stands in several rows"):
        pairs(doubled, "nc1")


def test_settings_relabelled_as_seeds_of_one_are_refused_by_their_names():
    frame = study(SETTINGS, seeds=[0])
    frame["setting"] = "K_A=" + frame["K_A"].astype(str)
    frame["seed"] = frame["K_A"].astype(int)
    frame["K_A"] = 3
    with pytest.raises(ValueError, match="are of several settings: K_A=3"):
        pairs(frame, "nc1")
