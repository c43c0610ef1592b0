"""Statements: intervals against closed forms, every branch of the verdicts, tables of both."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from tidy import rows, stack, trained

from nclib import comparison
from nclib.comparison import Interval, interval, verdict

NAN = float("nan")


@pytest.mark.parametrize("n", [2, 3, 20])
def test_interval_is_the_t_interval(n):
    values = np.random.default_rng(n).normal(3, 2, size=n)
    found = interval(values)
    assert found.ends() == pytest.approx(stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values)))
    assert found.ends(0.9) == pytest.approx(stats.t.interval(0.9, n - 1, loc=values.mean(), scale=stats.sem(values)))
    for size in (1e-200, 1e200):  # whose squares are no numbers
        assert interval(size * values).half / size == pytest.approx(found.half)


def test_one_value_and_none_have_no_interval():
    one, none = interval([4.0]), interval([])
    assert (one.mean, one.n, none.n) == (4.0, 1, 0)
    assert np.isnan([one.half, none.mean, none.half, *one.ends()]).all() and not one.side and not none.side


def test_a_table_and_masked_values_are_refused():
    with pytest.raises(ValueError, match=r"one number for each seed, not an array of shape \(3, 2\)"):
        interval(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"values\.compressed"):
        interval(np.ma.masked_array([1.0, 2.0, 9.0], [False, False, True]))


def test_significant_is_zero_outside():
    assert [Interval(mean, 0.9, 3).side for mean in (1.0, -1.0, 0.8, NAN)] == ["higher", "lower", "", ""]
    assert interval([0.0, 0.0, 0.0]).significant is False


@pytest.mark.parametrize("n", [3, 5])
def test_a_detectable_difference_is_found_in_80_percent_of_the_cases(n):
    half = stats.t.ppf(0.975, n - 1) * 2.0 / math.sqrt(n)  # of values with standard deviation 2
    draws = np.random.default_rng(n).normal(Interval(0.0, half, n).detectable, 2.0, size=(20_000, n))
    found = np.abs(draws.mean(1)) > stats.t.ppf(0.975, n - 1) * draws.std(1, ddof=1) / math.sqrt(n)
    assert found.mean() == pytest.approx(0.8, abs=0.015)
    few, same = Interval(0.0, half, 2), Interval(-0.5, 1e-17, n)
    assert math.isnan(few.detectable) and math.isnan(same.detectable)


def test_spread_is_the_chi_square_interval_of_a_standard_deviation():
    deviation, low, high = comparison.spread([1.0, 2.0, 3.0])
    assert deviation == 1 and np.isnan(comparison.spread([1.0])).all()
    assert (low, high) == pytest.approx((1 / np.sqrt(7.377759 / 2), 1 / np.sqrt(0.050636 / 2)), rel=1e-5)


@pytest.mark.parametrize(
    ("found", "claim", "terminal", "says"),
    [
        (Interval(-1, 0.1, 2), "lower", False, "reported (paper scale; 2 seeds)"),
        (Interval(1, NAN, 1), 1.0, True, "reported (paper scale; 1 seed)"),
        (Interval(-1, 0.1, 3), "lower", False, "reported (paper scale; before the terminal phase)"),
        (Interval(-1, 0.1, 3), "lower", None, "reported (paper scale; terminal phase not known)"),
        (Interval(NAN, NAN, 3), "equal", True, "reported (paper scale; not measured)"),
        (Interval(0, 0, 3), "equal", True, "equal (paper scale; the same value in every seed)"),
        (Interval(-0.5, 1e-17, 3), 1.0, True, "reported (paper scale; the same difference in every seed)"),
        (Interval(-1, 0.1, 3), "lower", True, "supported (paper scale)"),
        (Interval(1, 0.1, 3), "lower", True, "contradicted (paper scale)"),
        (Interval(1, 0.1, 3), "higher", True, "supported (paper scale)"),
        (Interval(-1, 0.1, 3), "higher", True, "contradicted (paper scale)"),
        (Interval(-1, 1.1, 3), "lower", True, "not significant (paper scale)"),
        (Interval(0.5, 0.6, 3), "equal", True, "not significant (paper scale)"),
        (Interval(1, 0.1, 3), "equal", True, "reported (paper scale; higher, where equality is claimed)"),
        (Interval(0.5, 0.4, 3), "equal", True, "equal (paper scale; within 10 %)"),
        (Interval(-1, 0.1, 3), 1.0, True, "contradicted (paper scale)"),
        (Interval(1, 0.1, 3), 0.0, True, "reported (paper scale; higher, where the paper's difference is 0)"),
        (Interval(-1, 0.1, 3), -1.05, True, "supported (paper scale; compatible in size)"),
        (Interval(1, 0.1, 3), 1.2, True, "supported (paper scale; other size)"),
        (Interval(-1, 0.1, 3), None, True, "lower (paper scale)"),
        (Interval(1, 1.1, 3), None, True, "not significant (paper scale)"),
    ],
)
def test_every_branch_of_the_verdict(found, claim, terminal, says):
    assert [str(verdict(found, "paper", claim, terminal, size=size)) for size in (10.0, -10.0)] == [says] * 2


def test_sizes_are_compared_at_the_papers_scale_alone_and_nothing_is_equal_to_an_unknown_size():
    assert verdict(Interval(1, 0.1, 3), "reduced", 1.05) == ("supported", "reduced", "size not comparable")
    assert verdict(Interval(0.1, 0.2, 3), "toy", "equal").word == "not significant"


@pytest.mark.parametrize("kind", [float, np.float32, torch.tensor])
def test_a_printed_number_that_is_missing_claims_nothing(kind):
    found = interval([1.0, 1.1, 1.2])
    assert verdict(found, "paper", kind(NAN)) == verdict(found, "paper", None)
    assert verdict(found, "paper", kind(1.0)) == verdict(found, "paper", 1.0)


def test_an_unknown_claim_or_scale_is_refused():
    with pytest.raises(ValueError, match=r"claim 'smaller'.*Allowed: equal, higher, lower"):
        verdict(Interval(1, 0.1, 3), "toy", "smaller")
    with pytest.raises(ValueError, match=r"scale 'large'.*Allowed: paper, reduced, toy"):
        verdict(Interval(1, 0.1, 3), "large", "lower")


def study(deq=(0.5, 0.6, 0.4), metric="nc1", split="train", accuracy=1.0, model="deq", **setting):
    """Both networks, the explicit one at 1."""
    values = {"explicit": [1.0] * len(deq), model: deq}
    runs = [rows(metric, split, name, s, [x], **setting) for name, each in values.items() for s, x in enumerate(each)]
    return trained(stack(*runs), accuracy)


def test_percent_touches_accuracies_alone_and_setting_takes_one():
    frame = stack(rows(values=[0.5]), rows("loss", values=[0.5]), rows(k_a=5, ratio=10), rows(dataset="folder:cats"))
    assert comparison.percent(frame)["value"].tolist() == [50, 0.5, 50, 50] and frame["value"].max() == 0.5
    assert len(comparison.setting(frame, "digits")) == 2
    assert comparison.setting(frame, "digits", 5, 10)["K_A"].tolist() == [5]
    assert comparison.setting(frame, "digits", 7, 10).empty
    assert len(comparison.setting(frame, "folder:cats@0123456789ab")) == 1


def test_by_run_takes_the_last_epoch_or_the_last_ten_logged_ones():
    frame = rows(values=[0.1, 0.2, 0.9], epochs=[1, 10, 5])
    out = comparison.by_run(frame, "accuracy_balanced", "test")
    assert out["value"].tolist() == [0.2] and out["n"].tolist() == [1] and out["std"].isna().all()
    values = np.arange(14.0)
    out = comparison.by_run(rows(values=values), "accuracy_balanced", "test", "last_epochs")
    assert (out["value"].item(), out["n"].item()) == (values[4:].mean(), 10)
    assert out["std"].item() == pytest.approx(values[4:].std(ddof=1))
    assert comparison.by_run(frame, "accuracy_balanced", "train").empty
    with pytest.raises(ValueError, match=r"no column run_id, K_A; see help"):
        comparison.by_run(frame.drop(columns=["run_id", "K_A"]), "accuracy_balanced", "test")


def test_over_seeds_is_an_interval_for_each_setting_and_model():
    frame = stack(*(rows(seed=s, model=m, values=[s, s + 1]) for s in range(3) for m in ("explicit", "deq")))
    frame = stack(frame, rows(k_a=5, ratio=10, values=[7, 7]))
    out = comparison.over_seeds(comparison.by_run(frame, "accuracy_balanced", "test", "last_epochs"))
    wanted = interval([0.5, 1.5, 2.5])
    assert out[["value", "half", "seeds"]].iloc[0].tolist() == pytest.approx([wanted.mean, wanted.half, 3])
    assert len(out) == 3 and out["within_std"].iloc[0] == pytest.approx(math.sqrt(0.5))


def test_terminal_phase_is_both_training_accuracies_at_999_of_1000_at_the_last_epoch():
    def run(model, overall, balanced, epochs=(1,)):
        values = {"accuracy_train_prior": overall, "accuracy_balanced": balanced}
        return stack(*(rows(name, "train", model, values=v, epochs=epochs) for name, v in values.items() if v))

    frame = stack(run("a", [0.999], [0.999]), run("b", [0.9995], [0.95]), run("c", [0.95], [1]), run("d", [1], []))
    found = comparison.terminal_phase(frame).set_index("model")
    assert found["reached"].to_dict() == {"a": True, "b": False, "c": False, "d": False}
    assert found["value"].to_dict() == pytest.approx({"a": 0.999, "b": 0.95, "c": 0.95, "d": NAN}, nan_ok=True)
    with pytest.raises(ValueError, match="before `percent`"):
        comparison.terminal_phase(comparison.percent(frame))


def test_claims_table_has_both_means_the_difference_and_the_claim():
    frame = stack(study((0.5, 0.6, 0.4)), study((1.01, 1.02, 1.0), "nc2"))
    table = comparison.claims_table(frame.drop_duplicates(), {"nc1": "lower", "nc2": "equal"}, "toy")
    wanted = interval([-0.5, -0.4, -0.6])
    assert table.iloc[0, 1:7].tolist() == pytest.approx([0.5, 1, *wanted[:2], wanted.detectable, 3])
    said = table[["verdict", "scale", "remark", "printed"]].to_numpy().tolist()
    assert said == [["as claimed here", "toy", "", "DEQ lower"], ["equal", "toy", "within 10 %", "DEQ equal"]]
    lone = comparison.claims_table(rows("nc1", "train"), {"nc1": "lower"}, "toy")
    assert lone[["verdict", "remark"]].to_numpy().tolist() == [["reported", "not measured"]]


def test_differences_are_with_each_other_network_and_collapse_needs_the_terminal_phase():
    frames = [
        study((0.3, 0.31, 0.32), "nc1", accuracy=0),
        study((0.9, 0.92, 0.94), "accuracy_balanced", "test", accuracy=0),
    ]
    other = frames[1][frames[1]["model"] == "explicit"].assign(model="weight_tied", run_id=lambda f: f["run_id"] + "t")
    frame = stack(*frames, other).drop_duplicates()
    metrics = {"accuracy_balanced": "test", "nc1": "train"}
    found = comparison.differences(frame, metrics, "toy", against=["explicit", "weight_tied"])
    assert found[["metric", "model"]].to_numpy().tolist()[1] == ["accuracy_balanced", "weight_tied"]
    assert found["difference"].tolist()[:3] == pytest.approx([-8, -8, -0.69]), "accuracies in points"
    assert found["verdict"].tolist() == ["lower", "lower", "reported", "reported"]
    assert found["remark"].tolist()[2:] == ["before the terminal phase", "not measured"]


def test_ratios_are_pooled_over_settings_and_seeds():
    shrink = np.array([[0.5, 0.6, 0.4], [0.9, 1.1, 1.0]])
    frame = stack(study(shrink[0]), study(shrink[1], k_a=3, ratio=10.0))
    (row,) = comparison.ratios(frame, ["nc1"], "toy").itertuples()
    wanted = interval(np.log(shrink).mean(axis=0))
    assert (row.change, row.low, row.high) == pytest.approx(100 * np.expm1([wanted.mean, *wanted.ends()]))
    assert (row.settings_found, row.lower_in, row.seeds, row.verdict) == (2, 2, 3, "lower")
    (back,) = comparison.ratios(frame, ["nc1"], "toy", arm="explicit", against="deq").itertuples()
    assert back.change == pytest.approx(100 * np.expm1(-wanted.mean)) and back.verdict == "higher"
    third = study(model="explicit_matched", accuracy=0.5)
    third = third[third["model"] == "explicit_matched"]
    assert comparison.ratios(stack(frame, third), ["nc1"], "toy")["verdict"].tolist() == ["lower"], (
        "its phase is not asked"
    )
    gone = frame.assign(value=frame["value"].where(frame["metric"] != "nc1", 0.0))
    assert comparison.ratios(gone, ["nc1"], "toy")["remark"].tolist() == ["not measured"]


def test_solver_audit():
    def run(seed, converged):
        values = {("solver_converged", "train"): [0.1, converged], ("solver_converged", "test"): [0.2, 0.9]}
        values |= {("solver_steps", "train"): [20, 12 + seed], ("not_converged", "steps"): [0.9, 0.25]}
        values |= {("skipped", "steps"): [0.5, 0.125], ("backward_not_converged", "steps"): [0.9, 0.0625]}
        return stack(*(rows(*name, "deq", seed, value) for name, value in values.items()))

    explicit = rows("skipped", "steps", values=[0.0])
    (row,) = comparison.solver_audit(stack(run(0, 1.0), run(1, 0.5), explicit)).to_dict("records")
    assert (row["model"], row["train_converged"], row["test_converged"], row["evaluations"]) == ("deq", 75, 90, 12.5)
    assert (row["step_not_converged"], row["skipped"], row["backward_not_converged"]) == (25, 12.5, 6.25)
    assert comparison.solver_audit(explicit).empty and isinstance(explicit, pd.DataFrame)
