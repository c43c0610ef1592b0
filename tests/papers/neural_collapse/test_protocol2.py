"""Protocol 2 on simulated runs: power, false positives, and what may not be analysed."""

import numpy as np
import pandas as pd
import pytest

from nclib import compare, paths, profiles
from nclib.compare import Interval
from nclib.config import run_id
from nclib.papers.neural_collapse import protocol2

SPREAD = {"nc2_etf_distance": 0.036, "nc3_self_duality": 0.012}
"""Standard deviation of a seed's mean over the three settings, from protocol 1."""
DETECTABLE = {"nc2_etf_distance": -0.048, "nc3_self_duality": -0.017}
"""Changes that eight seeds find in 90 of 100 cases, as the protocol's page says."""
OTHERS = {
    "paper_eq14_uncentred": ("train", 0.8),
    "paper_eq13_uncentred": ("train", 1.1),
    "nc1_pinv": ("train", 0.1),
    "nc1_trace_ratio": ("train", 0.1),
    "accuracy_majority": ("test", 0.8),
    "accuracy_minority": ("test", 0.1),
}


def frame(effects, seeds, generator, others=False):
    """Runs of three settings and both networks, with these mean log ratios."""
    rows = []
    for seed in seeds:
        for tenths in protocol2.TENTHS:
            shared = {name: generator.normal(0, 0.1) for name in SPREAD}
            for model in ("explicit", "deq"):
                facts = {
                    "run_id": f"sim-KA{tenths}-R100-{model}-s{seed}-0",
                    "dataset": "sim",
                    "K_A": float(tenths),
                }
                facts |= {"R": 100.0, "model": model, "seed": seed, "epoch": 40}
                values = {
                    ("train", "accuracy_balanced"): 0.995,
                    ("train", "accuracy_train_prior"): 0.9995,
                }
                values |= {
                    ("train", "loss"): 0.002,
                    ("steps", "loss"): 0.002,
                    ("test", "accuracy_balanced"): 0.4,
                }
                for name, deviation in SPREAD.items():
                    # a seed's mean over three settings has the stated spread
                    noise = generator.normal(0, deviation * np.sqrt(3)) + np.log1p(
                        effects.get(name, 0.0)
                    )
                    values["train", name] = np.exp(
                        shared[name] + (noise if model == "deq" else 0.0)
                    )
                if others:
                    for name, (split, value) in OTHERS.items():
                        values[split, name] = value * np.exp(generator.normal(0, 0.01))
                rows += [
                    {**facts, "split": split, "metric": name, "value": v}
                    for (split, name), v in values.items()
                ]
    return pd.DataFrame(rows)


def arrays(runs, generator):
    return {
        run: {
            "class_means": generator.normal(size=(10, 16)),
            "classifier": generator.normal(size=(10, 16)),
            "missed": np.zeros(10, int),
        }
        for run in runs["run_id"].unique()
    }


def shares(effects, repeats=500):
    """How often each word comes out, and how often each metric is lower, of eight seeds whose mean
    log ratios are independent and normal."""
    generator = np.random.default_rng(0)
    words, lower = [], []
    for _ in range(repeats):
        intervals = []
        for metric in protocol2.PRIMARY:
            mean = np.log1p(effects.get(metric, 0.0))
            ratios = generator.normal(mean, SPREAD[metric], len(protocol2.SEEDS))
            intervals.append(compare.interval(ratios))
        words.append(protocol2.joint(intervals))
        lower.append([each.ends()[1] < 0 for each in intervals])
    return pd.Series(words).value_counts(normalize=True), np.mean(lower, axis=0)


def test_effects_of_the_stated_size_are_found_with_the_stated_power():
    words, alone = shares(DETECTABLE)
    assert (alone > 0.86).all()  # 90 of 100, less three standard errors of 500 simulations
    assert words["supported"] > 0.76


def test_without_an_effect_the_claim_is_hardly_ever_supported():
    assert shares({})[0].get("supported", 0) <= 0.05
    one_only = {"nc2_etf_distance": -0.2}
    assert shares(one_only)[0].get("supported", 0) <= 0.05, "both metrics are needed"


@pytest.mark.parametrize("effects", [{}, DETECTABLE, {"nc2_etf_distance": -0.2}])
def test_a_frame_of_runs_gives_the_word_of_its_log_ratios(effects):
    """Links the simulations above, which draw the log ratios of seeds, to the registered code."""
    runs = frame(effects, protocol2.SEEDS, np.random.default_rng(6))
    table, word = protocol2.co_primary(runs)
    intervals = []
    for metric in protocol2.PRIMARY:
        values = runs[runs["metric"] == metric].pivot(
            index=["seed", "K_A"], columns="model", values="value"
        )
        ratios = np.log(values["deq"] / values["explicit"])
        intervals.append(compare.interval(ratios.groupby("seed").mean()))
    changes = [100 * np.expm1(each.mean) for each in intervals]
    assert word == protocol2.joint(intervals)
    assert table["change"].tolist() == pytest.approx(changes)


def interval(low, high, n=8):
    return Interval((low + high) / 2, (high - low) / 2, n)


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ((-0.3, -0.1), (-0.2, -0.1), "supported"),
        ((-0.3, -0.1), (-0.2, 0.1), "partly"),
        ((-0.3, -0.1), (0.1, 0.2), "contradicted"),
        ((0.1, 0.3), (-0.2, 0.1), "contradicted"),
        ((-0.05, 0.05), (-0.04, 0.06), "equal"),
        ((-0.05, 0.05), (-0.3, 0.3), "not significant"),
    ],
)
def test_joint_verdict(first, second, word):
    assert protocol2.joint([interval(*first), interval(*second)]) == word


@pytest.mark.parametrize(("effect", "word"), [(-0.3, "supported"), (0.3, "contradicted")])
def test_the_deq_is_compared_with_resnet_18(effect, word):
    generator = np.random.default_rng(7)
    runs = frame(dict.fromkeys(protocol2.PRIMARY, effect), protocol2.SEEDS, generator)
    table, verdict = protocol2.co_primary(runs)
    assert verdict == word and set(table["verdict"]) == {word}
    assert table["change"].tolist() == pytest.approx([100 * effect] * 2, abs=5)


def test_five_seeds_need_the_committed_reason_and_four_are_never_analysed():
    generator = np.random.default_rng(1)
    five = frame(DETECTABLE, range(10, 15), generator, others=True)
    known = arrays(five, generator)
    with pytest.raises(protocol2.TooEarly, match="5 of 8 seeds"):
        protocol2.analyse(five, known)
    found = protocol2.analyse(five, known, reason="the machines are gone")
    assert found.seeds == tuple(range(10, 15)) and found.reason
    assert found.primary["metric"].tolist() == list(protocol2.PRIMARY)
    assert set(found.sensitivity["analysis"]) == {
        "at most one miss in a class",
        "equal training loss",
    }
    four = five[five["seed"] < 14]
    with pytest.raises(protocol2.TooEarly):
        protocol2.analyse(four, known, reason="the machines are gone")


def test_a_missing_seed_or_setting_stops_the_count_there():
    runs = frame({}, protocol2.SEEDS, np.random.default_rng(2))
    assert protocol2.population(runs)[0] == protocol2.SEEDS
    with pytest.raises(ValueError, match="seed 13 is complete and an earlier one is not"):
        protocol2.population(runs[runs["seed"] != 12])
    lone = runs[~((runs["seed"] == 17) & (runs["K_A"] == 5) & (runs["model"] == "deq"))]
    assert protocol2.population(lone)[0] == protocol2.SEEDS[:-1]


def test_a_diverged_run_replaces_its_whole_seed():
    runs = frame({}, [*protocol2.SEEDS, 18], np.random.default_rng(3))
    runs.loc[
        ((runs["run_id"] == "sim-KA5-R100-deq-s11-0") & (runs["metric"] == "accuracy_train_prior")),
        "value",
    ] = 0.3
    seeds, counts = protocol2.population(runs)
    assert seeds == (10, 12, 13, 14, 15, 16, 17, 18) and counts == {"explicit": 0, "deq": 1}
    failed = ["sim-KA3-R100-explicit-s10-0"]
    lacking = runs[runs["seed"] != 10]
    assert protocol2.population(lacking, failed) == (
        (12, 13, 14, 15, 16, 17, 18),
        {"explicit": 1, "deq": 1},
    )


def test_secondary_metrics_are_tested_until_the_first_that_fails():
    generator = np.random.default_rng(4)
    runs = frame(DETECTABLE, protocol2.SEEDS, generator, others=True)
    known = protocol2.add_cosines(runs, arrays(runs, generator))
    lower = (known["metric"] == "paper_eq14_uncentred") & (known["model"] == "deq")
    words = protocol2.secondary(
        known.assign(value=known["value"].where(~lower, known["value"] * 0.8)), True
    )
    assert words["verdict"].tolist()[:2] == ["supported", "equal"]
    assert "estimated" in words["verdict"].tolist()[3:], (
        "random cosines are not higher, so accuracy is not tested"
    )
    assert set(protocol2.secondary(known, False)["verdict"]) == {"estimated"}


def test_runs_are_those_of_the_recipe_with_fresh_seeds():
    mine, old = protocol2.of_seed(0), profiles.experiment("fig4", "full")
    assert {run_id(run) for run in old if run.seed == 0} <= {run_id(run) for run in mine}
    assert [run.model.kind for run in protocol2.of_seed(10)] == ["explicit", "deq"] * 3


def test_what_is_shown_is_what_the_analysis_found():
    found, saved = (
        protocol2.tracked_analysis(),
        protocol2.tracked_claims("reduced").set_index("metric")["verdict"],
    )
    words = pd.concat([found.primary, found.secondary]).set_index("metric")["verdict"]
    assert set(protocol2.PRIMARY) <= set(saved.index) and saved.equals(words.loc[saved.index])
    assert len(found.seeds) >= protocol2.LEAST
    page = (paths.root() / "docs/protocol.md").read_text(encoding="utf-8")
    assert protocol2.REASON in page and "no such line yet" not in page


def test_a_pair_from_two_kinds_of_processor_is_named():
    new, old = ({"cpu": "A", "bfloat16": unit, "facts": {}} for unit in ("AMX", None))
    made = [old, old, new | {"facts": {"earlier_sessions": [old]}}, new]
    names = [f"data-KA3-R100-{kind}-s{seed}-0" for seed in range(2) for kind in ("explicit", "deq")]
    records = {name: {"provenance": one} for name, one in zip(names, made, strict=True)}
    assert protocol2.mixed(records) == "data-KA3-R100-s1"
    unknown = {"cpu": "A", "facts": {}}
    records = {name: {"provenance": unknown} for name in names}
    assert protocol2.mixed(records) == "data-KA3-R100-s0, data-KA3-R100-s1", (
        "absent is unknown, not equal to none"
    )
