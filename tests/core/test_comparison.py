"""Statements: intervals against closed forms, every branch of the verdicts."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from tidy import rows as _rows
from tidy import stack as _stack

from nclib import comparison
from nclib.comparison import Interval, verdict
from nclib.system import words

NAN = float("nan")


# ---- intervals


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_interval_is_the_t_interval(n):
    values = np.random.default_rng(n).normal(3, 2, size=n)
    found = comparison.interval(values)
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert found.n == n


def test_interval_of_three_in_closed_form():
    found = comparison.interval([1.0, 2.0, 3.0])
    assert found.mean == 2 and found.half == pytest.approx(4.302652729911275 / math.sqrt(3))


def test_interval_of_one_value_and_of_none():
    one, none = comparison.interval([4.0]), comparison.interval([])
    assert (one.mean, one.n) == (4.0, 1) and math.isnan(one.half)
    assert none.n == 0 and math.isnan(none.mean) and math.isnan(none.half)
    assert not one.significant and not none.significant


def test_significant_is_zero_outside():
    assert Interval(1.0, 0.9, 3).significant and Interval(-1.0, 0.9, 3).significant
    assert not Interval(1.0, 1.1, 3).significant and not Interval(NAN, NAN, 3).significant
    assert comparison.interval([0.0, 0.0, 0.0]).significant is False


@pytest.mark.parametrize("n", [3, 5])
def test_a_detectable_difference_is_found_in_80_percent_of_the_cases(n):
    rng = np.random.default_rng(n)
    half = stats.t.ppf(0.975, n - 1) * 2.0 / math.sqrt(n)  # of values with standard deviation 2
    least = Interval(0.0, half, n).detectable
    draws = rng.normal(least, 2.0, size=(20_000, n))
    found = np.abs(draws.mean(1)) > stats.t.ppf(0.975, n - 1) * draws.std(1, ddof=1) / math.sqrt(n)
    assert found.mean() == pytest.approx(0.8, abs=0.015)
    assert math.isnan(Interval(0.0, half, 2).detectable)
    assert math.isnan(Interval(0.0, 0.0, n).detectable) and math.isnan(Interval(-0.5, 1e-17, n).detectable)


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = [abs(found.mean) <= found.half for found in map(comparison.interval, rng.normal(size=(2000, 3)))]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)


# ---- selection


def test_percent_touches_accuracies_alone():
    frame = _stack(_rows(values=[0.5]), _rows("nc1_pinv", values=[0.5]), _rows("solver_converged", values=[0.5]))
    assert comparison.percent(frame)["value"].tolist() == [50, 0.5, 0.5]
    assert frame["value"].tolist() == [0.5, 0.5, 0.5]


def test_cell_takes_one_setting():
    frame = _stack(
        _rows(), _rows(k_a=5, ratio=10), _rows(k_a=5, ratio=100), _rows(k_a=3, ratio=100), _rows(dataset="digit_pairs")
    )
    assert len(comparison.setting(frame, "digits")) == 1
    chosen = comparison.setting(frame, "digits", 5, 100)
    assert (chosen["K_A"].tolist(), chosen["R"].tolist()) == ([5], [100])
    assert comparison.setting(frame, "digits", 7, 100).empty
    assert len(comparison.setting(_rows(dataset="folder:cats"), "folder:cats@0123456789ab")) == 1


def test_by_run_takes_the_last_epoch_whatever_the_order():
    frame = _rows(values=[0.1, 0.2, 0.9], epochs=[1, 10, 5])
    out = comparison.by_run(frame, "accuracy_balanced", "test")
    assert out["value"].tolist() == [0.2] and out["n"].tolist() == [1] and out["std"].isna().all()


def test_by_run_over_the_last_ten_logged_epochs():
    values = np.arange(14.0)
    out = comparison.by_run(_rows(values=values), "accuracy_balanced", "test", "last_epochs")
    assert out["value"].item() == values[4:].mean() and out["std"].item() == pytest.approx(values[4:].std(ddof=1))
    assert out["n"].item() == 10
    short = comparison.by_run(_rows(values=[1.0, 3.0]), "accuracy_balanced", "test", "last_epochs")
    assert (short["value"].item(), short["n"].item()) == (2.0, 2)


def test_by_run_keeps_runs_and_splits_apart():
    frame = _stack(*(_rows(seed=s, model=m, values=[s + 1]) for s in range(3) for m in ("explicit", "deq")))
    frame = _stack(frame, _rows(split="train", values=[99]), _rows(k_a=5, ratio=10, values=[7]))
    out = comparison.by_run(frame, "accuracy_balanced", "test")
    assert len(out) == 7 and 99 not in out["value"].tolist()
    assert comparison.by_run(frame, "no such metric", "test").empty
    with pytest.raises(ValueError, match=r"no column run_id, K_A; see help"):
        comparison.by_run(frame.drop(columns=["run_id", "K_A"]), "accuracy_balanced", "test")


@pytest.mark.parametrize("kind", [float, np.float32, np.float16, torch.tensor])
def test_a_claim_that_is_no_number_is_none_of_whatever_kind(kind):
    found = comparison.interval([1.0, 1.1, 1.2])
    assert verdict(found, "paper", kind(NAN)) == verdict(found, "paper", None)
    assert verdict(found, "paper", kind(1.0)) == verdict(found, "paper", 1.0)


def test_over_seeds_is_an_interval_for_each_cell_and_model():
    runs = [(model, seed, base + seed) for model, base in (("explicit", 0), ("deq", 5)) for seed in range(3)]
    frame = _stack(*(_rows(seed=seed, model=model, values=[v, v + 1]) for model, seed, v in runs))
    out = comparison.over_seeds(comparison.by_run(frame, "accuracy_balanced", "test", "last_epochs")).set_index("model")
    assert out.loc["explicit", "value"] == 1.5 and out.loc["deq", "value"] == 6.5
    assert out.loc["deq", "half"] == pytest.approx(comparison.interval([5, 6, 7]).half)
    assert out.loc["deq", "seeds"] == 3 and out.loc["deq", "within_std"] == pytest.approx(math.sqrt(0.5))


# ---- verdicts


@pytest.mark.parametrize(
    ("found", "claim", "says"),
    [
        (Interval(1, 0.1, 2), 1.0, "reported (paper scale; 2 seeds)"),
        (Interval(1, NAN, 1), 1.0, "reported (paper scale; 1 seed)"),
        (Interval(NAN, NAN, 0), None, "reported (paper scale; 0 seeds)"),
        (Interval(NAN, NAN, 3), 1.0, "reported (paper scale; not measured)"),
        (Interval(0, 0, 3), 1.0, "equal (paper scale; the same value in every seed)"),
        (Interval(-0.5, 1e-17, 3), 1.0, "reported (paper scale; the same difference in every seed)"),
        (Interval(1, 1.1, 3), 1.0, "not significant (paper scale)"),
        (Interval(-1, 0.1, 3), 1.0, "contradicted (paper scale)"),
        (Interval(1, 0.1, 3), -1.0, "contradicted (paper scale)"),
        (Interval(1, 0.1, 3), 0.0, "reported (paper scale; higher, where the printed difference is 0)"),
        (Interval(1, 0.1, 3), 1.05, "supported (paper scale; compatible in size)"),
        (Interval(-1, 0.1, 3), -1.05, "supported (paper scale; compatible in size)"),
        (Interval(1, 0.1, 3), 1.2, "supported (paper scale; other size)"),
        (Interval(-1, 0.1, 3), None, "lower (paper scale)"),
        (Interval(1, 0.1, 3), None, "higher (paper scale)"),
        (Interval(1, 1.1, 3), None, "not significant (paper scale)"),
    ],
)
def test_verdict_on_a_printed_difference(found, claim, says):
    assert str(verdict(found, "paper", claim)) == says


@pytest.mark.parametrize(
    ("found", "claim", "terminal", "says"),
    [
        (Interval(-1, 0.1, 2), "lower", False, "reported (reduced scale; 2 seeds)"),
        (Interval(-1, 0.1, 3), "lower", False, "reported (reduced scale; before the terminal phase)"),
        (Interval(NAN, NAN, 3), "equal", True, "reported (reduced scale; not measured)"),
        (Interval(NAN, NAN, 3), "lower", True, "reported (reduced scale; not measured)"),
        (Interval(-1, 0.1, 3), "lower", True, "supported (reduced scale)"),
        (Interval(1, 0.1, 3), "lower", True, "contradicted (reduced scale)"),
        (Interval(1, 0.1, 3), "higher", True, "supported (reduced scale)"),
        (Interval(-1, 0.1, 3), "higher", True, "contradicted (reduced scale)"),
        (Interval(-1, 1.1, 3), "lower", True, "not significant (reduced scale)"),
        (Interval(1, 1.1, 3), "higher", True, "not significant (reduced scale)"),
        (Interval(0.5, 0.6, 3), "equal", True, "not significant (reduced scale)"),
        (Interval(1, 0.1, 3), "equal", True, "reported (reduced scale; higher, where equality is claimed)"),
        (Interval(-1, 0.1, 3), "equal", True, "reported (reduced scale; lower, where equality is claimed)"),
        (Interval(0.1, 0.8, 3), "equal", True, "equal (reduced scale; within 10 %)"),
        (Interval(0.5, 0.4, 3), "equal", True, "equal (reduced scale; within 10 %)"),  # whichever is larger
        (Interval(0, 0, 3), "equal", True, "equal (reduced scale; the same value in every seed)"),
    ],
)
def test_verdict_on_a_claim_about_collapse(found, claim, terminal, says):
    assert str(verdict(found, "reduced", claim, terminal, size=10.0)) == says


@pytest.mark.parametrize("claim", ["lower", "higher", "equal", -1.0, 0.0, 1.0, None])
@pytest.mark.parametrize("mean", [-1.0, 0.0, 1.0, NAN])
@pytest.mark.parametrize("half", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("seeds", [1, 3])
def test_the_scale_changes_two_words_and_no_rule(claim, mean, half, seeds):
    """On digits nothing is said of the paper, and everywhere the words are those of the vocabulary."""
    said = {scale: verdict(Interval(mean, half, seeds), scale, claim, size=10.0) for scale in words.SCALES}
    assert {each.word for each in said.values()} <= {*words.CLAIMS, *words.COMPARISONS}
    assert said["toy"].word not in ("supported", "contradicted")
    assert said["toy"].word == words.ON_TOYS.get(said["paper"].word, said["paper"].word)
    assert said["reduced"].word == said["paper"].word and not {*words.ON_TOYS.values()} & {said["paper"].word}


def test_sizes_are_compared_at_the_papers_scale_alone():
    found = Interval(1, 0.1, 3)
    assert verdict(found, "toy", 1.05) == ("as claimed here", "toy", "size not comparable")
    assert verdict(found, "reduced", 1.05) == ("supported", "reduced", "size not comparable")


def test_nothing_is_equal_to_an_unknown_size():
    assert verdict(Interval(0.1, 0.2, 3), "toy", "equal").word == "not significant"


def test_an_unknown_claim_or_scale_is_refused():
    with pytest.raises(ValueError, match=r"'smaller' is not one of lower, higher, equal"):
        verdict(Interval(1, 0.1, 3), "toy", "smaller")
    with pytest.raises(ValueError, match=r"scale 'large' is not one of paper, reduced, toy"):
        verdict(Interval(1, 0.1, 3), "large", "lower")


def _trained(model, seed, accuracy, balanced=None, **metrics_):
    frames = [
        _rows("accuracy_train_prior", "train", model, seed, [accuracy]),
        _rows("accuracy_balanced", "train", model, seed, [accuracy if balanced is None else balanced]),
    ]
    return _stack(*frames, *(_rows(name, "train", model, seed, [value]) for name, value in metrics_.items()))


def test_terminal_phase_is_a_training_accuracy_of_99_9_percent():
    frame = _stack(_trained("explicit", 0, 0.999), _trained("deq", 0, 0.9989))
    out = comparison.terminal_phase(frame).set_index("model")
    assert bool(out.loc["explicit", "reached"]) and not bool(out.loc["deq", "reached"])


def test_errors_in_small_classes_keep_a_run_out_of_the_terminal_phase():
    frame = _stack(_trained("explicit", 0, 0.9995, balanced=0.95), _trained("deq", 0, 0.95, balanced=0.9995))
    out = comparison.terminal_phase(frame)
    assert out["value"].tolist() == [0.95, 0.95] and not out["reached"].any()


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [(1.0, ["as claimed here", "toy", ""]), (0.9, ["reported", "toy", "before the terminal phase"])],
)
def test_claims_table(accuracy, expected):
    frame = _stack(
        *(_trained("explicit", s, 1.0, nc1=2.0 + s / 10, nc2=1.0) for s in range(3)),
        *(_trained("deq", s, accuracy, nc1=1.0 + s / 9, nc2=1.0 + s / 1000) for s in range(3)),
    )
    table = comparison.claims_table(frame, {"nc1": "lower", "nc2": "equal"}, "toy").set_index("metric")
    row = table.loc["nc1"]
    assert (row["explicit"], row["deq"]) == pytest.approx((2.1, 1.0 + 1 / 9))
    wanted = comparison.interval([-1.0, -1.0 + 1 / 90, -1.0 + 2 / 90])
    assert tuple(row[["difference", "half", "detectable"]]) == pytest.approx((*wanted[:2], wanted.detectable))
    assert (row["seeds"], row["claim"]) == (3, "DEQ lower")
    assert row[["verdict", "scale", "remark"]].tolist() == expected
    if accuracy == 1:
        assert table.loc["nc2", ["verdict", "remark"]].tolist() == ["equal", "within 10 %"]


def test_means_beside_a_difference_are_over_the_seeds_that_both_have():
    seeds = _stack(*(_trained("explicit", s, 1.0, nc1=float(s)) for s in range(3)))
    table = comparison.claims_table(_stack(seeds, _trained("deq", 0, 1.0, nc1=5.0)), {"nc1": "lower"}, "toy")
    assert table[["explicit", "deq", "difference"]].to_numpy().tolist() == [[0.0, 5.0, 5.0]]


def test_claims_table_of_runs_without_the_metric_says_so():
    table = comparison.claims_table(_trained("explicit", 0, 1.0), {"nc1": "lower"}, "toy")
    assert table[["verdict", "remark"]].to_numpy().tolist() == [["reported", "not measured"]]


def test_ratios_are_pooled_over_cells_and_seeds():
    cells, shrink = [{}, {"k_a": 3, "ratio": 10.0}], np.array([[0.5, 0.6, 0.4], [0.9, 1.1, 1.0]])
    frame = _stack(
        *(
            _trained(model, s, 1.0, nc1=2.0 * (shrink[c, s] if model == "deq" else 1.0)).assign(
                K_A=cell.get("k_a"), R=cell.get("ratio", 1.0), run_id=f"{model}-{c}-{s}"
            )
            for c, cell in enumerate(cells)
            for s in range(3)
            for model in ("explicit", "deq")
        )
    )
    (row,) = comparison.ratios(frame, ["nc1"], "toy").itertuples()
    wanted = comparison.interval(np.log(shrink).mean(axis=0))
    assert row.change == pytest.approx(100 * (math.exp(wanted.mean) - 1))
    ends = [100 * (math.exp(wanted.mean + half) - 1) for half in (-wanted.half, wanted.half)]
    assert (row.low, row.high) == pytest.approx(ends)
    assert (row.cells, row.lower_in, row.seeds, row.verdict) == (2, 2, 3, "lower")
    (back,) = comparison.ratios(frame, ["nc1"], "toy", arm="explicit", against="deq").itertuples()
    assert back.change == pytest.approx(100 * (math.exp(-wanted.mean) - 1)) and back.verdict == "higher"
    third = frame[frame["model"] == "explicit"].assign(model="explicit_matched", value=0.5)
    assert comparison.ratios(pd.concat([frame, third]), ["nc1"], "toy")["verdict"].tolist() == ["lower"], (
        "its phase is not asked"
    )
    young = frame.assign(value=frame["value"].where(frame["metric"] != "accuracy_balanced", 0.9))
    assert comparison.ratios(young, ["nc1"], "toy")["remark"].tolist() == ["before the terminal phase"]
    gone = frame.assign(value=frame["value"].where(frame["metric"] != "nc1", 0.0))
    assert comparison.ratios(gone, ["nc1"], "toy")["remark"].tolist() == ["not measured"]


# ---- tables of results


def test_solver_audit():
    def run(seed, converged):
        common = {"model": "deq", "seed": seed}
        return _stack(
            _rows("solver_converged", "train", values=[0.1, converged], **common),
            _rows("solver_converged", "test", values=[0.2, 0.9], **common),
            _rows("solver_steps", "train", values=[20, 12 + seed], **common),
            _rows("not_converged", "steps", values=[0.9, 0.25], **common),
            _rows("skipped", "steps", values=[0.5, 0.125], **common),
            _rows("backward_not_converged", "steps", values=[0.9, 0.0625], **common),
        )

    explicit = _rows("skipped", "steps", values=[0.0])
    audit = comparison.solver_audit(_stack(run(0, 1.0), run(1, 0.5), explicit))
    assert audit["model"].tolist() == ["deq"]
    row = audit.iloc[0]
    assert row["train_converged"] == 75 and row["test_converged"] == 90 and row["evaluations"] == 12.5
    assert (row["step_not_converged"], row["skipped"], row["backward_not_converged"]) == (25, 12.5, 6.25)


def test_solver_audit_without_any_equilibrium_is_empty():
    assert comparison.solver_audit(_rows("skipped", "steps", values=[0.0])).empty


def test_differences_of_several_arms_need_three_seeds_and_for_collapse_the_terminal_phase():
    def arm(model, accuracy, nc2, trained):
        return [
            _rows(metric, split, values=[min(value + seed / scale, 1)], model=model, seed=seed)
            for seed in range(3)
            for scale in [900 if model == "deq" else 1000]
            for metric, split, value in [
                ("accuracy_balanced", "test", accuracy),
                ("nc2_etf_distance", "train", nc2),
                ("accuracy_train_prior", "train", trained),
                ("accuracy_balanced", "train", trained),
            ]
        ]

    frame = _stack(*arm("deq", 0.9, 0.3, 1.0), *arm("explicit", 0.8, 0.2, 1.0), *arm("weight_tied", 0.95, 0.4, 0.5))
    metrics = {"accuracy_balanced": "test", "nc2_etf_distance": "train"}
    found = comparison.differences(frame, metrics, "toy", against=["explicit", "weight_tied"])
    found = found.set_index(["metric", "model"])
    row = found.loc[("accuracy_balanced", "explicit")]
    assert row["difference"] == pytest.approx(10, abs=0.1) and row["verdict"] == "higher"
    assert 1.3 * row["half"] < row["detectable"] < 1.4 * row["half"]
    assert found.loc[("accuracy_balanced", "weight_tied"), "verdict"] == "lower"
    assert found.loc[("nc2_etf_distance", "explicit"), "verdict"] == "higher"
    assert found.loc[("nc2_etf_distance", "weight_tied"), "remark"] == "before the terminal phase"
    assert found.loc[("nc2_etf_distance", "explicit"), "difference"] == pytest.approx(0.1, abs=1e-3), "no accuracy"
    alone = comparison.differences(frame[frame["seed"] == 0], metrics, "toy")
    assert set(alone["verdict"]) == {"reported"} and set(alone["remark"]) == {"1 seed"}
    with pytest.raises(ValueError, match="before `percent`"):
        comparison.differences(comparison.percent(frame), metrics, "toy")


def test_spread_is_the_chi_square_interval_of_a_standard_deviation():
    deviation, low, high = comparison.spread([1.0, 2.0, 3.0])
    assert deviation == 1
    assert (low, high) == pytest.approx((1 / np.sqrt(7.377759 / 2), 1 / np.sqrt(0.050636 / 2)), rel=1e-5)
    assert all(np.isnan(comparison.spread([1.0])))


def test_a_printed_number_that_is_missing_claims_nothing():
    found = comparison.interval([1.0, 1.1, 1.2])
    assert verdict(found, "paper", float("nan")) == verdict(found, "paper", None)


def test_masked_values_are_refused():
    with pytest.raises(ValueError, match=r"values\.compressed"):
        comparison.interval(np.ma.masked_array([1.0, 2.0, 9.0], [False, False, True]))
