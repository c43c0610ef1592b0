"""The one door from a frame to a statement: what it refuses, and that no such frame gets a verdict."""

import contextlib
import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tidy import rows, stack, trained

from nclib import comparison
from nclib.comparison import interval, pairs

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


def test_pairs_are_by_seed_whatever_the_order_of_rows_and_their_types():
    frame = study(settings=[(None, 1.0)])
    found, shuffled = pairs(frame, "nc1"), pairs(frame.sample(frac=1, random_state=1).convert_dtypes(), "nc1")
    assert sorted(found.table["difference"]) == sorted(shuffled.table["difference"])
    table = found.table
    assert list(table) == ["dataset", "K_A", "R", "seed", "deq", "explicit", "difference"]
    assert np.allclose(table["difference"], table["deq"] - table["explicit"]) and found.terminal is True
    table.loc[:, "difference"] = 0.0
    assert found.interval.mean != 0, "what is shown can be changed, the pairs cannot"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.terminal = True


def test_several_settings_are_a_mean_for_each_seed():
    found = pairs(study(SETTINGS, seeds=range(4)), "nc1", relative=True)
    means = np.log(found.table["deq"] / found.table["explicit"]).groupby(found.table["seed"]).mean()
    assert found.interval == pytest.approx(interval(means)) and found.interval.n == 4
    assert found.settings == 3 and found.by_setting["seeds"].tolist() == [4, 4, 4]


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
    found = pairs(study(accuracy=[1.0] * 5 + [0.998]), "nc1", relative=True)  # one run is short of it
    assert found.terminal is False and found.verdict("reduced", "lower").remark == "before the terminal phase"
    assert found.verdict("reduced", "lower", phase="described").word == "supported"
    with pytest.raises(ValueError, match="'required' or 'described'"):
        found.verdict("reduced", "lower", phase="ignored")


def test_equality_by_the_whole_interval_or_by_two_one_sided_tests():
    spread = np.random.default_rng(3).normal(0, 1, 8)
    spread = (spread - spread.mean()) / spread.std(ddof=1)
    half95, half90 = (stats.t.ppf(p, 7) / np.sqrt(8) for p in (0.975, 0.95))
    size = 0.1 / (half95 + half90) * 2 * 0.97  # between both: the 90 % interval fits into 10 %, the 95 % one does not
    runs = [run("explicit", s, 1.0) for s in range(8)] + [
        run("deq", s, float(np.exp(size * spread[s]))) for s in range(8)
    ]
    found = pairs(trained(stack(*runs)), "nc1", relative=True)
    assert found.verdict("reduced", "equal").word == "not significant"
    assert found.verdict("reduced", "equal", equality="tost").word == "equal"
    assert found.verdict("reduced", "equal", equality="tost", within=0.08).word == "not significant"
    assert found.interval.ends(0.9)[1] == pytest.approx(size * half90)
    for within in (-1, float("nan")):
        with pytest.raises(ValueError, match=f"within={within}: give a share"):
            found.verdict("reduced", "equal", within=within)


def only(frame, model="deq", seed=None, metric=None):
    """Which rows are of this network, seed and metric."""
    rows = frame["model"] == model
    for name, value in (("seed", seed), ("metric", metric)):
        rows &= value is None or frame[name] == value
    return rows


def put(column, value, **rows):
    def change(frame):
        frame[column] = frame[column].astype(object) if column in frame else None
        chosen = only(frame, **rows)
        frame.loc[chosen, column] = [value] * chosen.sum()
        return frame

    return change


def differ(column, one, two, name="model", second="deq"):
    return lambda frame: frame.assign(**{column: np.where(frame[name] == second, two, one)})


def without(**rows):
    return lambda frame: frame[~only(frame, **rows)]


def twice(**rows):
    """The rows once more, with other columns."""
    return lambda frame: stack(frame, frame[only(frame)].assign(**rows))


def copied(column="seed", one=0, other=1, put=lambda values: values):
    """The DEQ's runs of one seed or setting, entered as those of another, their values by this rule."""

    def change(frame):
        own, rest = frame[only(frame) & (frame[column] == one)], frame[~only(frame) | (frame[column] != other)]
        return stack(rest, own.assign(**{column: other, "run_id": "copy " + own["run_id"], "value": put(own["value"])}))

    return change


def both_deq(frame, last=1.0):
    """The DEQ's runs entered as those of the other network, too, there with other values at the last epoch."""
    own = frame[only(frame)]
    values = own["value"].mask((own["epoch"] == 12) & (own["metric"] == "nc1"), own["value"] * last)
    return stack(own, own.assign(model="explicit", run_id="x " + own["run_id"], value=values))


def stored(frame, name="-s{0}-0123456789ab"):
    """With ids as stored runs have them."""
    return frame.assign(run_id=frame["K_A"].map("KA{}-".format) + frame["model"] + frame["seed"].map(name.format))


JSON = ('{"model.width":16,"data.n_max":50}', '{"model.width":64,"data.n_max":50}', '{"model.width":16}')
REFUSED = {
    "rows of one epoch twice": (twice(value=9.0), "of epoch 1 twice"),
    "epoch missing": (put("epoch", np.nan, seed=0), "epoch nan .* is not a whole number"),
    "epoch as text": (put("epoch", "9", seed=0), "epoch '9' .* is not a whole number"),
    "epoch as date": (put("epoch", pd.Timestamp(2024, 1, 1)), "is not a whole number"),
    "epoch below 0": (put("epoch", -1), "epoch -1 .* is not a whole number"),
    "rate of one network": (differ("train.lr", None, 0.1), "train.lr none and 0.1|train.lr 0.1 and none"),
    "half an epoch": (put("epoch", 1.5), "epoch 1.5 .* is not a whole number"),
    "seed missing": (put("seed", np.nan, seed=0), "seed nan .* is not a whole number"),
    "seed true": (put("seed", True, seed=1), "seed True .* is not a whole number"),
    "value missing": (put("value", np.nan, seed=0, metric="nc1"), "is nan"),
    "value infinite": (put("value", np.inf, seed=0, metric="nc1"), "is inf"),
    "value 0": (put("value", 0.0, seed=0, metric="nc1"), "is 0, which has no logarithm"),
    "value as text": (put("value", "half", seed=0, metric="nc1"), "not numbers"),
    "value true": (put("value", True, metric="nc1"), "not numbers"),
    "accuracy as text": (put("value", "1.0", metric="accuracy_balanced"), "not numbers"),
    "accuracy in percent": (lambda frame: comparison.percent(frame), "before `percent`"),
    "accuracy twice": (twice(metric="accuracy_balanced"), "of epoch 1 twice"),
    "two runs of a seed": (
        lambda f: stack(f, f[only(f)].assign(run_id=f["run_id"] + "-other")),
        "digits, K_A = 3.0, R = 100.0 has 2 runs of seed 0 with nc1 .train. of deq",
    ),
    "a run with two seeds": (lambda f: stack(f, f[only(f, seed=0)].assign(seed=3, epoch=2)), "different seeds"),
    "a run with two widths": (put("width", 64, seed=0, metric="nc1"), "different seeds, settings or options"),
    "one seed copied, at another cost": (
        lambda f: stack(
            copied()(f), *(f[only(f, seed=n, metric="nc1")].assign(metric="seconds", value=5 + n / 10) for n in (0, 2))
        ),
        "have the same values|different seeds",
    ),
    "one network twice": (both_deq, "the same in deq and explicit in every pair"),
    "all copied to other data": (lambda f: stack(f, f.assign(dataset="x", run_id=f["run_id"] + "x")), "entered twice"),
    "a setting not measured": (lambda f: f[(f["K_A"] == 3) | (f["metric"] != "nc1")], "and none of nc1 .train."),
    "a seed not measured": (lambda f: f[(f["seed"] != 2) | (f["metric"] != "nc1")], "and none of nc1 .train."),
    "run id missing": (put("run_id", None, seed=0), "column run_id is empty"),
    "seeds of stored runs": (lambda f: stored(f).assign(seed=(f["seed"] + 1) % 3), "a name of different seeds"),
    "epochs as seeds": (lambda f: stored(f, "-s0-0123456789ab-{0}"), "a name of different seeds"),
    "settings of seeds": (lambda f: stored(f)[(f["K_A"] == 3) == (f["seed"] < 2)].assign(K_A=3), "a name of different"),
    "R below 1": (lambda f: f.assign(R=0.1), "is a number of at least 1"),
    "a seed without partner": (without(seed=2), "has 0 runs of seed 2 with nc1 .train. of deq"),
    "a setting without partner": (lambda f: f[~(only(f) & (f["K_A"] == 5))], "K_A = 5.0, R = 100.0 has 0 runs"),
    "no pair": (without(), "of 'deq' and of 'explicit'; models: explicit"),
    "other settings": (lambda f: f[(f["seed"] != 1) | (f["K_A"] == 3)], "K_A = 5.0, R = 100.0 has 0 runs of seed 1"),
    "balanced written in two ways": (
        lambda f: f.assign(K_A=f["K_A"].mask(f["K_A"] == 5, pd.NA).replace(3, 0)),
        "K_A is 0",
    ),
    "settings as seeds": (differ("setting", "KA3-R100", "KA5-R100", "seed", 1), "setting KA3-R100 and KA5-R100"),
    "epochs judged": (put("epoch", 2), r"epochs judged \[1\] and \[2\]"),
    "protocols": (differ("protocol", *JSON[:2]), "model.width 16 and 64"),
    "protocol with more": (differ("protocol", JSON[0], JSON[2]), "data.n_max .* and none"),
    "protocol of one network": (put("protocol", JSON[0]), "model.width none and 16"),
    "protocol that nests": (differ("protocol", '{"train":{"lr":1}}', '{"train":{"lr":2}}'), r"train\.lr 1 and 2"),
    "rate of the networks": (differ("model.lr", 1, 2), "model.lr 1 and 2"),
    "dataset missing": (put("dataset", np.nan, seed=0), "dataset is empty"),
    "R written in two ways": (lambda f: f.assign(K_A=3, R=f["R"] + 1e-7 * (f["K_A"] == 5)), "R is written in two ways"),
    "solver of seeds": (
        differ("protocol", '{"model.solver":{"tol":0.1}}', '{"model.solver":{"tol":0.2}}', "seed", 1),
        r"model\.solver\.tol 0\.1 and 0\.2 \(seeds \[1\]\)",
    ),
    "protocol in words": (differ("protocol", "ours", "theirs"), "protocol ours and theirs"),
}
for name, rule in {
    "copied": lambda values: values,
    "copied and rounded": lambda values: values.map(lambda value: float(f"{value:.8g}")),
    "copied in single precision": lambda values: values.astype("float32").astype(float),
}.items():
    REFUSED[f"one seed {name}"] = (copied(put=rule), "of deq have the same values: one run entered twice")
    REFUSED[f"one setting {name}"] = (copied("K_A", 3, 5, rule), "have the same values")
for name, other in (("dataset", "digits "), ("model", "DEQ")):
    REFUSED[f"{name} written in two ways"] = (put(name, other, seed=1), f"{name} is written in two ways")
for count in ("3", 3.5, -3, np.inf, True):
    REFUSED[f"K_A {count!r}"] = (put("K_A", count, seed=1), f"K_A {count!r} is not a number of classes")
for name in ("model.width", "train.weight_decay", "profile", "width", "epochs", "batch_size", "lr", "recipe", "commit"):
    REFUSED[f"{name} of the networks"] = (differ(name, 1, 2), f"cannot be compared: {name} 1 and 2")
    REFUSED[f"{name} of seeds"] = (differ(name, 1, 2, "seed", 1), f"{name} 1 and 2")
    REFUSED[f"{name} of settings"] = (differ(name, 1, 2, "K_A", 5.0), f"{name} 1 and 2")


@pytest.mark.parametrize("name", REFUSED)
def test_a_frame_that_cannot_be_judged_is_refused(name):
    change, said = REFUSED[name]
    frame = study(SETTINGS[:2])
    assert pairs(frame, "nc1", relative=True).verdict("reduced", "lower").word == "supported"
    with pytest.raises(ValueError, match=said):
        pairs(change(frame), "nc1", relative=True)
    with contextlib.suppress(ValueError):
        assert comparison.ratios(change(frame), {"nc1": "lower"}, "reduced")["remark"].tolist() == ["not measured"]


def test_an_accuracy_in_percent_or_below_0_is_not_judged():
    frame = study(metric="accuracy_minority", split="test")
    for metric, value in (("accuracy_minority", 90.0), ("accuracy_minority", -0.5), ("accuracy_balanced", 90.0)):
        with pytest.raises(ValueError, match="before `percent`"):
            pairs(put("value", value, metric=metric)(frame.copy()), "accuracy_minority", "test")


def test_the_last_epochs_of_both_networks_are_the_same():
    frame = stack(*(study().assign(epoch=epoch) for epoch in range(1, 13)))
    assert len(pairs(frame, "nc1", how="last_epochs").table) == 3
    with pytest.raises(ValueError, match="cannot be compared: epochs judged"):
        pairs(frame[~(only(frame) & (frame["epoch"] == 7))], "nc1", how="last_epochs")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model.solver.tol", (None, 1e-3)),
        ("unroll", (3, None)),
        ("model.solver.method", ("anderson", "broyden")),
        ("model.kind", ("explicit", "deq")),
    ],
)
def test_what_only_one_network_has_may_differ(name, values):
    assert len(pairs(differ(name, *values)(study()), "nc1").table) == 3
    if name == "model.solver.tol":
        with pytest.raises(ValueError, match=r"model\.solver\.tol none and 0.001"):
            pairs(put(name, 1e-3, seed=1)(study()), "nc1")


def test_data_sets_may_differ_in_their_data_and_in_nothing_else():
    def of(name, width, n):
        protocol = f'{{"model.width":{width},"data.n_max":{n}}}'
        frame = study().assign(dataset=name, protocol=protocol, run_id=lambda rows: name + rows["run_id"])
        return frame.assign(value=frame["value"].mask(frame["metric"] == "nc1", frame["value"] * n / 50))

    assert pairs(stack(of("digits", 16, 50), of("digit_pairs", 16, 20)), "nc1").settings == 2
    with pytest.raises(ValueError, match=r"model\.width 16 and 64"):
        pairs(stack(of("digits", 16, 50), of("digit_pairs", 64, 20)), "nc1")


def test_few_values_may_be_equal_by_chance():
    last = study(SETTINGS[:2], metric="accuracy_balanced", split="test").assign(epoch=2)
    last["value"] = last["value"].where(last["split"] == "train", last["value"].round(1) * 0.97)
    frame = stack(last, last.assign(epoch=1, value=0.5))
    found = pairs(frame, "accuracy_balanced", "test")
    assert found.table["explicit"].tolist() == pytest.approx([97.0] * 6), "in percent"
    with pytest.raises(ValueError, match="entered twice"):
        pairs(stack(frame, last.assign(epoch=0, value=0.25)), "accuracy_balanced", "test")
    near = copied(put=lambda values: values * (1 - 3e-6))
    assert len(pairs(near(study()), "nc1").table) == 3, "one number may be near another by chance, three are not"
    curve = stack(*(study(ratio=n / 20).assign(epoch=n) for n in range(1, 13)))
    one_moved = copied(put=lambda values: values * curve["epoch"].map({12: 1.01}).fillna(1)[values.index])(curve)
    nc1 = curve[curve["metric"] == "nc1"]
    more = both_deq(stack(curve, *(nc1.assign(metric=f"nc{k}", value=nc1["value"] / k) for k in (2, 3, 4))))
    judged = more.assign(value=more["value"].where((more["metric"] != "nc1") | only(more), 1.1 * more["value"]))
    for twice_there in (near(curve), one_moved, both_deq(curve), both_deq(curve, 1.01), judged):
        with pytest.raises(ValueError, match="entered twice"):
            pairs(twice_there, "nc1")


def test_settings_are_never_counted_as_seeds_and_names_are_checked():
    frame = study(SETTINGS, seeds=[0])
    found = pairs(frame, "nc1", relative=True)
    assert found.interval.n == 1 and found.verdict("reduced", "lower").word == "reported"
    for table, asked in ((comparison.claims_table, "lower"), (comparison.differences, "train")):
        with pytest.raises(ValueError, match="holds 3 settings, and this table is of one"):
            table(frame, {"nc1": asked}, "reduced")
    with pytest.raises(ValueError, match="name two networks"):
        pairs(frame, "nc1", arm="deq", against="deq")
    with pytest.raises(ValueError, match=r"value of how 'mean of last 10'.*Allowed: last, last_epochs"):
        pairs(frame, "nc1", how="mean of last 10")
