"""Comparisons: intervals against closed forms, every branch of the verdicts, the five checks of `pairs`, tables."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tidy import rows, stack, trained

from nclib import compare
from nclib.compare import Interval, interval, pairs, verdict

NAN = float("nan")
SETTINGS = ((3, 100.0), (5, 100.0), (7, 100.0))


def study(
    settings=SETTINGS[:1], seeds=range(3), ratio=0.5, accuracy=1.0, metric="nc1", split="train"
):
    """Both networks; the DEQ's values are about this share of the other's."""
    generator = np.random.default_rng(0)
    runs = []
    for k_a, imbalance in settings:
        for seed in seeds:
            for model in ("explicit", "deq"):
                value = (ratio if model == "deq" else 1.0) * (1 + generator.normal(0, 0.01))
                runs.append(rows(metric, split, model, seed, [value], k_a=k_a, ratio=imbalance))
    return trained(stack(*runs), accuracy)


def of_values(deq, metric="nc1", split="train", accuracy=1.0, **setting):
    """Both networks in one setting, the explicit one at 1."""
    runs = []
    for model, values in (("explicit", [1.0] * len(deq)), ("deq", deq)):
        runs += [
            rows(metric, split, model, seed, [value], **setting)
            for seed, value in enumerate(values)
        ]
    return trained(stack(*runs), accuracy)


# --- intervals --------------------------------------------------------------------------------------------------------


def test_interval_by_hand():
    """Of 1, 2, 3: s = 1, and t with two degrees of freedom is 4.302653 at 0.975."""
    found = interval([1.0, 2.0, 3.0])
    assert found == pytest.approx((2.0, 4.302653 / math.sqrt(3), 3), rel=1e-6)
    assert str(found) == "+2.00 ± 2.48 (3 seeds)"


@pytest.mark.parametrize("n", [2, 3, 20])
def test_interval_is_the_t_interval(n):
    values = np.random.default_rng(n).normal(3, 2, size=n)
    found = interval(values)
    for level in (0.95, 0.9):
        wanted = stats.t.interval(level, n - 1, loc=values.mean(), scale=stats.sem(values))
        assert found.ends(level) == pytest.approx(wanted)


def test_one_value_and_none_have_no_interval():
    one = interval([4.0])
    none = interval([])
    assert (one.mean, one.n, none.n) == (4.0, 1, 0)
    assert np.isnan([one.half, none.mean, none.half, *one.ends()]).all()
    assert not one.side and not none.side
    assert str(one) == "+4.00 (1 seed)"


def test_significant_is_zero_outside():
    assert [Interval(mean, 0.9, 3).side for mean in (1.0, -1.0, 0.8, NAN)] == [
        "higher",
        "lower",
        "",
        "",
    ]
    assert interval([0.0, 0.0, 0.0]).significant is False


@pytest.mark.parametrize("n", [3, 5])
def test_a_detectable_difference_is_found_in_80_percent_of_the_cases(n):
    half = stats.t.ppf(0.975, n - 1) * 2.0 / math.sqrt(n)  # of values with standard deviation 2
    draws = np.random.default_rng(n).normal(
        Interval(0.0, half, n).detectable, 2.0, size=(20_000, n)
    )
    found = np.abs(draws.mean(1)) > stats.t.ppf(0.975, n - 1) * draws.std(1, ddof=1) / math.sqrt(n)
    assert found.mean() == pytest.approx(0.8, abs=0.015)
    few, same = Interval(0.0, half, 2), Interval(-0.5, 1e-17, n)
    assert math.isnan(few.detectable) and math.isnan(same.detectable)


def test_spread_is_the_chi_square_interval_of_a_standard_deviation():
    deviation, low, high = compare.spread([1.0, 2.0, 3.0])
    assert deviation == 1
    assert (low, high) == pytest.approx(
        (1 / np.sqrt(7.377759 / 2), 1 / np.sqrt(0.050636 / 2)), rel=1e-5
    )
    assert np.isnan(compare.spread([1.0])).all()


def test_a_table_is_refused():
    with pytest.raises(
        ValueError, match=r"one number for each seed, not an array of shape \(3, 2\)"
    ):
        interval(np.ones((3, 2)))


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("difference", "claim", "terminal", "says"),
    [
        (Interval(-1, 0.1, 2), "lower", False, "reported (paper scale; 2 seeds)"),
        (Interval(1, NAN, 1), 1.0, True, "reported (paper scale; 1 seed)"),
        (Interval(-1, 0.1, 3), "lower", False, "reported (paper scale; before the terminal phase)"),
        (Interval(-1, 0.1, 3), "lower", None, "reported (paper scale; terminal phase not known)"),
        (Interval(NAN, NAN, 3), "equal", True, "reported (paper scale; not measured)"),
        (Interval(0, 0, 3), "equal", True, "equal (paper scale; the same value in every seed)"),
        (
            Interval(-0.5, 1e-17, 3),
            1.0,
            True,
            "reported (paper scale; the same difference in every seed)",
        ),
        (Interval(-1, 0.1, 3), "lower", True, "supported (paper scale)"),
        (Interval(1, 0.1, 3), "lower", True, "contradicted (paper scale)"),
        (Interval(1, 0.1, 3), "higher", True, "supported (paper scale)"),
        (Interval(-1, 0.1, 3), "higher", True, "contradicted (paper scale)"),
        (Interval(-1, 1.1, 3), "lower", True, "not significant (paper scale)"),
        (
            Interval(-1, 1.0, 3),
            "lower",
            True,
            "not significant (paper scale)",
        ),  # 0 is the end of the interval
        (Interval(-1, 0.999, 3), "lower", True, "supported (paper scale)"),
        (Interval(0.5, 0.6, 3), "equal", True, "not significant (paper scale)"),
        (
            Interval(1, 0.1, 3),
            "equal",
            True,
            "reported (paper scale; higher, where equality is claimed)",
        ),
        (Interval(0.5, 0.4, 3), "equal", True, "equal (paper scale; within 10 %)"),
        (Interval(0.5, 0.5, 3), "equal", True, "equal (paper scale; within 10 %)"),
        (Interval(0.5, 0.501, 3), "equal", True, "not significant (paper scale)"),
        (Interval(-1, 0.1, 3), 1.0, True, "contradicted (paper scale)"),
        (
            Interval(1, 0.1, 3),
            0.0,
            True,
            "reported (paper scale; higher, where the paper's difference is 0)",
        ),
        (Interval(-1, 0.1, 3), -1.05, True, "supported (paper scale; compatible in size)"),
        (Interval(1, 0.1, 3), 1.2, True, "supported (paper scale; other size)"),
        (Interval(-1, 0.1, 3), None, True, "lower (paper scale)"),
        (Interval(1, 1.1, 3), None, True, "not significant (paper scale)"),
    ],
)
def test_every_branch_of_the_verdict(difference, claim, terminal, says):
    for size in (10.0, -10.0):
        assert str(verdict(difference, "paper", claim, terminal, size=size)) == says


def test_equal_ratios_are_from_09_to_11():
    for end, word in (
        (0.9001, "equal"),
        (0.8999, "not significant"),
        (1.0999, "equal"),
        (1.1001, "not significant"),
    ):
        difference = Interval(math.log(end) / 2, abs(math.log(end)) / 2, 3)  # from this end to 0
        assert verdict(difference, "paper", "equal", of_logs=True).word == word


def test_sizes_are_compared_at_the_papers_scale_alone_and_nothing_is_equal_to_an_unknown_size():
    assert verdict(Interval(1, 0.1, 3), "reduced", 1.05) == (
        "supported",
        "reduced",
        "size not comparable",
    )
    assert verdict(Interval(0.1, 0.2, 3), "toy", "equal").word == "not significant"


def test_at_toy_scale_words_speak_of_this_data_only():
    assert verdict(Interval(1, 0.1, 3), "toy", "higher").word == "as claimed here"
    assert verdict(Interval(1, 0.1, 3), "toy", "lower").word == "opposite here"


@pytest.mark.parametrize("kind", [float, np.float32, torch.tensor])
def test_a_printed_number_that_is_missing_claims_nothing(kind):
    difference = interval([1.0, 1.1, 1.2])
    assert verdict(difference, "paper", kind(NAN)) == verdict(difference, "paper", None)
    assert verdict(difference, "paper", kind(1.0)) == verdict(difference, "paper", 1.0)


def test_an_unknown_claim_scale_or_share_is_refused():
    with pytest.raises(ValueError, match=r"claim 'smaller'.*Allowed: equal, higher, lower"):
        verdict(Interval(1, 0.1, 3), "toy", "smaller")
    with pytest.raises(ValueError, match=r"scale 'large'.*Allowed: paper, reduced, toy"):
        verdict(Interval(1, 0.1, 3), "large", "lower")
    with pytest.raises(ValueError, match="within=-1: give a share"):
        verdict(Interval(1, 0.1, 3), "toy", "equal", within=-1)


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_pairs_are_by_seed_whatever_the_order_of_rows_and_their_types():
    frame = study(settings=[(None, 1.0)])
    table = pairs(frame, "nc1").table
    shuffled = pairs(frame.sample(frac=1, random_state=1).convert_dtypes(), "nc1").table
    assert sorted(table["difference"]) == sorted(shuffled["difference"])
    assert list(table) == ["dataset", "K_A", "R", "seed", "deq", "explicit", "difference"]
    by_seed = frame[frame["metric"] == "nc1"].pivot(index="seed", columns="model", values="value")
    wanted = by_seed["deq"] - by_seed["explicit"]
    assert table.set_index("seed")["difference"].to_dict() == pytest.approx(wanted.to_dict())


def test_several_settings_are_a_mean_for_each_seed():
    both = pairs(study(SETTINGS, seeds=range(4)), "nc1", relative=True)
    means = np.log(both.table["deq"] / both.table["explicit"]).groupby(both.table["seed"]).mean()
    assert both.mean_difference == pytest.approx(interval(means)) and both.mean_difference.n == 4
    assert both.settings == 3 and both.by_setting["seeds"].tolist() == [4, 4, 4]


def test_seeds_with_the_same_value_are_an_honest_frame():
    """Small test sets give equal accuracies; copies of a run are not looked for."""
    frame = of_values([0.5, 0.5, 0.5], "accuracy_minority", "test")
    both = pairs(frame, "accuracy_minority", "test")
    assert both.judge("reduced", "higher").remark == "the same difference in every seed"
    same = pairs(of_values([1.0, 1.0, 1.0]), "nc1")
    assert same.judge("reduced", "equal") == ("equal", "reduced", "the same value in every seed")


def test_two_seeds_get_no_verdict_and_settings_are_not_counted_as_seeds():
    both = pairs(study(SETTINGS, seeds=[0, 1]), "nc1", relative=True)
    assert both.judge("reduced", "lower") == ("reported", "reduced", "2 seeds")


def test_a_metric_that_some_settings_lack_is_compared_in_the_others():
    frame = study(SETTINGS[:2])
    frame = frame[(frame["K_A"] == 3) | (frame["metric"] != "nc1")]
    assert pairs(frame, "nc1").settings == 1


@pytest.mark.parametrize(
    "lost", ["accuracy_train_prior", "accuracy_balanced", "of one run", "of the last epoch"]
)
def test_an_unknown_phase_is_never_judged(lost):
    frame = study()
    accuracies = frame["metric"].str.startswith("accuracy")
    if lost == "of one run":
        frame = frame[~(accuracies & (frame["model"] == "deq") & (frame["seed"] == 1))]
    elif lost == "of the last epoch":
        frame["epoch"] = frame["epoch"].where(accuracies, 100)
    else:
        frame = frame[frame["metric"] != lost]
    both = pairs(frame, "nc1", relative=True)
    assert both.terminal is None
    for phase in ("required", "described"):
        assert both.judge("reduced", "lower", phase).remark == "terminal phase not known"


def test_a_phase_may_be_described_where_a_protocol_says_so():
    both = pairs(
        study(accuracy=[1.0] * 5 + [0.998]), "nc1", relative=True
    )  # one run is short of it
    assert both.terminal is False
    assert both.judge("reduced", "lower").remark == "before the terminal phase"
    assert both.judge("reduced", "lower", phase="described").word == "supported"
    with pytest.raises(ValueError, match="Allowed: described, required"):
        both.judge("reduced", "lower", phase="ignored")


def test_equality_by_the_whole_interval_or_by_two_one_sided_tests():
    spread = np.random.default_rng(3).normal(0, 1, 8)
    spread = (spread - spread.mean()) / spread.std(ddof=1)
    half95 = stats.t.ppf(0.975, 7) / np.sqrt(8)
    half90 = stats.t.ppf(0.95, 7) / np.sqrt(8)
    size = (
        0.1 / (half95 + half90) * 2 * 0.97
    )  # between both: the 90 % interval fits into 10 %, the 95 % one does not
    both = pairs(of_values(np.exp(size * spread)), "nc1", relative=True)
    assert both.judge("reduced", "equal").word == "not significant"
    assert both.judge("reduced", "equal", equality="tost").word == "equal"
    assert both.judge("reduced", "equal", equality="tost", within=0.08).word == "not significant"


def differ(column, one, two, by="model", second="deq"):
    return lambda frame: frame.assign(**{column: np.where(frame[by] == second, two, one)})


def put(value, metric="nc1"):
    """This value in seed 0 of the DEQ."""

    def change(frame):
        chosen = (frame["model"] == "deq") & (frame["seed"] == 0) & (frame["metric"] == metric)
        return frame.assign(value=frame["value"].mask(chosen, value))

    return change


def is_deq(frame, seed):
    return (frame["model"] == "deq") & (frame["seed"] == seed)


NARROW, WIDE = '{"model.width":16,"data.n_max":50}', '{"model.width":64,"data.n_max":50}'
REFUSED = {
    "a column missing": (
        lambda f: f.drop(columns=["run_id", "K_A"]),
        "no column run_id, K_A; see help",
    ),
    "rows of one epoch twice": (lambda f: stack(f, f.assign(value=9.0)), "of epoch 1 twice"),
    "a seed of one network missing": (
        lambda f: f[~is_deq(f, 2)],
        r"digits, K_A = 3.0, R = 100.0: deq has no run of seed 2 with nc1 .train.",
    ),
    "a seed not measured": (
        lambda f: f[(f["seed"] != 2) | (f["metric"] != "nc1")],
        "has no run of seed 2 with nc1",
    ),
    "a setting of one network missing": (
        lambda f: f[~((f["model"] == "deq") & (f["K_A"] == 5))],
        "K_A = 5.0, R = 100.0: deq has no run of seed 0, 1, 2",
    ),
    "two runs of a seed": (
        lambda f: stack(f, f[f["model"] == "deq"].assign(run_id=lambda g: g["run_id"] + "-other")),
        "deq has 2 runs of seed 0",
    ),
    "a network missing": (
        lambda f: f[f["model"] != "deq"],
        r"no run of 'deq' has nc1 .train.; models in the frame: explicit",
    ),
    "seeds made in two ways": (
        differ("protocol", NARROW, WIDE, "seed", 1),
        "model.width 16 and 64",
    ),
    "settings made in two ways": (
        differ("protocol", "ours", "theirs", "K_A", 5.0),
        "protocol ours and theirs",
    ),
    "a run without the metric, made in another way": (
        lambda f: stack(
            f.assign(protocol="ours"),
            f[is_deq(f, 1)].assign(run_id="other", metric="loss", protocol="theirs"),
        ),
        "protocol ours and theirs",
    ),
    "a run that is shorter": (
        lambda f: f.assign(epoch=np.where(is_deq(f, 1), 1, 2)),
        r"end at epochs \[1, 2\]",
    ),
    "value missing": (put(np.nan), "is nan"),
    "value infinite": (put(np.inf), "is inf"),
    "value 0": (put(0.0), "is 0, which has no logarithm"),
    "accuracies in percent": (compare.percent, "before `percent`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_frame_that_cannot_be_judged_is_refused(name):
    change, message = REFUSED[name]
    frame = study(SETTINGS[:2])
    assert pairs(frame, "nc1", relative=True).judge("reduced", "lower").word == "supported"
    with pytest.raises(ValueError, match=message):
        pairs(change(frame), "nc1", relative=True)


def test_networks_may_be_made_in_different_ways():
    assert len(pairs(differ("protocol", NARROW, WIDE)(study()), "nc1").table) == 3


def test_accuracies_are_in_points_and_percent_is_refused():
    frame = of_values([0.9, 0.92, 0.94], "accuracy_minority", "test")
    assert pairs(frame, "accuracy_minority", "test").mean_difference.mean == pytest.approx(-8)
    with pytest.raises(ValueError, match="before `percent`"):
        pairs(compare.percent(frame), "accuracy_minority", "test")


def test_misspelt_arguments_are_refused():
    with pytest.raises(ValueError, match="name two networks"):
        pairs(study(), "nc1", arm="deq", against="deq")
    with pytest.raises(
        ValueError, match=r"value of how 'mean of last 10'.*Allowed: last, last_epochs"
    ):
        pairs(study(), "nc1", how="mean of last 10")


# --- tables -----------------------------------------------------------------------------------------------------------


def test_percent_touches_accuracies_alone_and_setting_takes_one():
    frame = stack(
        rows(values=[0.5]),
        rows("loss", values=[0.5]),
        rows(k_a=5, ratio=10),
        rows(dataset="folder:cats"),
    )
    assert (
        compare.percent(frame)["value"].tolist() == [50, 0.5, 50, 50]
        and frame["value"].max() == 0.5
    )
    assert len(compare.setting(frame, "digits")) == 2
    assert compare.setting(frame, "digits", 5, 10)["K_A"].tolist() == [5]
    assert compare.setting(frame, "digits", 7, 10).empty
    assert len(compare.setting(frame, "folder:cats@0123456789ab")) == 1


def test_by_run_takes_the_last_epoch_or_the_last_ten_logged_ones():
    frame = rows(values=[0.1, 0.2, 0.9], epochs=[1, 10, 5])
    out = compare.by_run(frame, "accuracy_balanced", "test")
    assert out["value"].tolist() == [0.2] and out["n"].tolist() == [1] and out["std"].isna().all()
    values = np.arange(14.0)
    out = compare.by_run(rows(values=values), "accuracy_balanced", "test", "last_epochs")
    assert (out["value"].item(), out["n"].item()) == (values[4:].mean(), 10)
    assert out["std"].item() == pytest.approx(values[4:].std(ddof=1))
    assert compare.by_run(frame, "accuracy_balanced", "train").empty


def test_by_run_keeps_the_order_of_the_runs():
    seeds = [3, 0, 2, 1]
    frame = stack(*(rows(seed=seed, values=np.linspace(0, 1, 10)) for seed in seeds))
    assert compare.by_run(frame, "accuracy_balanced", "test")["seed"].tolist() == seeds


def test_over_seeds_is_an_interval_for_each_setting_and_model():
    frame = stack(
        *(rows(seed=s, model=m, values=[s, s + 1]) for s in range(3) for m in ("explicit", "deq"))
    )
    frame = stack(frame, rows(k_a=5, ratio=10, values=[7, 7]))
    out = compare.over_seeds(compare.by_run(frame, "accuracy_balanced", "test", "last_epochs"))
    wanted = interval([0.5, 1.5, 2.5])
    assert out[["value", "half", "seeds"]].iloc[0].tolist() == pytest.approx(
        [wanted.mean, wanted.half, 3]
    )
    assert len(out) == 3 and out["within_std"].iloc[0] == pytest.approx(math.sqrt(0.5))


def test_terminal_phase_is_both_training_accuracies_at_999_of_1000_at_the_last_epoch():
    def run(model, overall, balanced):
        values = {"accuracy_train_prior": overall, "accuracy_balanced": balanced}
        return stack(
            *(rows(name, "train", model, values=[v]) for name, v in values.items() if v is not None)
        )

    frame = stack(
        run("a", 0.999, 0.999), run("b", 0.9995, 0.95), run("c", 0.95, 1), run("d", 1, None)
    )
    found = compare.terminal_phase(frame).set_index("model")
    assert found["reached"].to_dict() == {"a": True, "b": False, "c": False, "d": False}
    assert found["value"].to_dict() == pytest.approx(
        {"a": 0.999, "b": 0.95, "c": 0.95, "d": NAN}, nan_ok=True
    )
    assert compare.checks(frame)["terminal phase"] == "1 of 4 runs"
    with pytest.raises(ValueError, match="before `percent`"):
        compare.terminal_phase(compare.percent(frame))


def test_claims_table_has_both_means_the_difference_and_the_claim():
    frame = stack(of_values((0.5, 0.6, 0.4)), of_values((1.01, 1.02, 1.0), "nc2")).drop_duplicates()
    table = compare.claims_table(frame, {"nc1": "lower", "nc2": "equal"}, "toy")
    wanted = interval([-0.5, -0.4, -0.6])
    assert table.iloc[0, 1:7].tolist() == pytest.approx([0.5, 1, *wanted[:2], wanted.detectable, 3])
    judged = table[["verdict", "scale", "remark", "printed"]].to_numpy().tolist()
    assert judged == [
        ["as claimed here", "toy", "", "DEQ lower"],
        ["equal", "toy", "within 10 %", "DEQ equal"],
    ]
    alone = compare.claims_table(rows("nc1", "train"), {"nc1": "lower"}, "toy")
    assert alone[["verdict", "remark"]].to_numpy().tolist() == [["reported", "not measured"]]
    with pytest.raises(ValueError, match="holds 3 settings, and this table is of one"):
        compare.claims_table(study(SETTINGS), {"nc1": "lower"}, "reduced")


def test_differences_are_with_each_other_network_and_collapse_needs_the_terminal_phase():
    nc1 = of_values((0.3, 0.31, 0.32), "nc1", accuracy=0)
    accuracy = of_values((0.9, 0.92, 0.94), "accuracy_balanced", "test", accuracy=0)
    tied = accuracy[accuracy["model"] == "explicit"]
    tied = tied.assign(model="weight_tied", run_id=tied["run_id"] + "t")
    frame = stack(nc1, accuracy, tied).drop_duplicates()
    metrics = {"accuracy_balanced": "test", "nc1": "train"}
    found = compare.differences(frame, metrics, "toy", against=["explicit", "weight_tied"])
    assert found[["metric", "model"]].to_numpy().tolist()[1] == ["accuracy_balanced", "weight_tied"]
    assert found["difference"].tolist()[:3] == pytest.approx([-8, -8, -0.69]), (
        "accuracies in points"
    )
    assert found["verdict"].tolist() == ["lower", "lower", "reported", "reported"]
    assert found["remark"].tolist()[2:] == ["before the terminal phase", "not measured"]


def test_ratios_are_pooled_over_settings_and_seeds():
    shrink = np.array([[0.5, 0.6, 0.4], [0.9, 1.1, 1.0]])
    frame = stack(of_values(shrink[0]), of_values(shrink[1], k_a=3, ratio=10.0))
    (row,) = compare.ratios(frame, ["nc1"], "toy").itertuples()
    wanted = interval(np.log(shrink).mean(axis=0))
    assert (row.change, row.low, row.high) == pytest.approx(
        100 * np.expm1([wanted.mean, *wanted.ends()])
    )
    assert row.detectable == pytest.approx(-100 * np.expm1(-wanted.detectable))
    assert (row.settings_found, row.lower_in, row.seeds, row.verdict) == (2, 2, 3, "lower")
    (back,) = compare.ratios(frame, ["nc1"], "toy", arm="explicit", against="deq").itertuples()
    assert back.change == pytest.approx(100 * np.expm1(-wanted.mean)) and back.verdict == "higher"
    assert compare.ratios(frame, ["nc2"], "toy")["remark"].tolist() == ["not measured"]


def test_pooled_table_has_the_claim_and_both_remarks():
    frame = of_values((0.9, 0.92, 0.94), "accuracy_balanced", "test", accuracy=0.9)
    (row,) = compare.pooled_table(
        pairs(frame, "accuracy_balanced", "test"), "reduced", "lower", "a note"
    ).itertuples()
    assert (row.difference, row.verdict, row.remark, row.printed) == (
        pytest.approx(-8),
        "supported",
        "a note",
        "DEQ lower",
    )
    (none,) = compare.pooled_table(None, "reduced").itertuples()
    assert (none.verdict, none.remark, none.settings_found) == ("reported", "0 seeds", 0)


def test_solver_audit():
    def run(seed, converged):
        values = {
            ("solver_converged", "train"): [0.1, converged],
            ("solver_converged", "test"): [0.2, 0.9],
        }
        values |= {
            ("solver_steps", "train"): [20, 12 + seed],
            ("not_converged", "steps"): [0.9, 0.25],
        }
        values |= {
            ("skipped", "steps"): [0.5, 0.125],
            ("backward_not_converged", "steps"): [0.9, 0.0625],
        }
        return stack(*(rows(*name, "deq", seed, value) for name, value in values.items()))

    explicit = rows("skipped", "steps", values=[0.0])
    (row,) = compare.solver_audit(stack(run(0, 1.0), run(1, 0.5), explicit)).to_dict("records")
    assert (row["model"], row["train_converged"], row["test_converged"], row["evaluations"]) == (
        "deq",
        75,
        90,
        12.5,
    )
    assert (row["step_not_converged"], row["skipped"], row["backward_not_converged"]) == (
        25,
        12.5,
        6.25,
    )
    assert compare.checks(run(0, 0.5))["equilibria solved"] == "50 %"
    assert compare.solver_audit(explicit).empty
    assert compare.checks(explicit)["equilibria solved"] == "–"
