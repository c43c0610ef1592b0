"""Verdicts on the claims of Wu et al.: the rules, and the tracked table."""

import numpy as np
import pandas as pd
import pytest

from nclib import compare, paths
from nclib.papers import certify
from nclib.papers.separation_bias import diagonal, regions, steep, verdicts
from nclib.papers.separation_bias.experiments import STEEP_DIMENSIONS
from nclib.papers.separation_bias.verdicts import LEDGER, separation_ledger, trained_ledger

# --- the theory -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables():
    both = [diagonal.flow_trials(1, signs) for signs in ("positive", "mixed")]
    return {
        "regions": regions.regions_table([1, 2, 5]),
        "networks": regions.random_fnn_table(5, [(3, 2)], draws=5),
        "steep": steep.steep_table([6, 20], 0.05),
        "trials": pd.concat(both, ignore_index=True),
        "density": diagonal.density_table(5),
        "gotu": diagonal.gotu_table(),
    }


def test_the_ledger_tells_what_holds_from_what_is_misprinted_and_what_is_ours(tables):
    ledger = separation_ledger(**tables)
    assert list(ledger.columns) == LEDGER
    assert len(ledger) == len(verdicts.STATEMENTS)
    statements = ledger[ledger["part"] == "statement"]
    assert statements["verdict"].value_counts().to_dict() == {"holds": 9, "typo": 1}
    (typo,) = statements[statements["verdict"] == "typo"].itertuples()
    assert typo.place == "Theorem 3, rebuttal"
    assert "|β_i|" in typo.remark
    assert typo.certificate == "wu_thm3_sign"
    word = ledger.set_index("place")["verdict"]
    assert word["GOTU theorem"] == "holds if 0 < β_k < 2 f̂_k"
    assert word["Density"] == "reported"
    assert word["GOTU theorem, control"] == "reported"


@pytest.mark.parametrize(
    ("name", "column", "value", "claims"),
    [
        ("regions", "regions", 31, 1),
        ("regions", "residual", 1e-9, 1),
        ("regions", "restart", 1, 1),
        ("regions", "sawtooth_error", 1e-9, 1),
        ("networks", "margin", -0.1, 1),
        ("networks", "most", 1000, 1),
        ("steep", "triangular_error", 0.06, 1),
        ("steep", "scalar_weight", 30.0, 1),
        ("steep", "scalar_error", 0.06, 2),
        ("steep", "fnn_bound", 1e9, 1),
        ("trials", "gap", 1e-3, 2),
        ("trials", "minus", 0.0, 1),
    ],
)
def test_a_case_that_fails_is_not_shown(tables, name, column, value, claims):
    ledger = separation_ledger(**{name: tables[name].assign(**{column: value})})
    assert (ledger["verdict"] == "not shown").sum() == claims


def test_when_the_deq_is_better_everywhere_or_not_as_predicted(tables):
    better = tables["gotu"].assign(network=100.0)
    assert separation_ledger(gotu=better)["verdict"].iloc[0] == "holds"
    other = tables["gotu"].assign(predicted=~tables["gotu"]["predicted"])
    assert separation_ledger(gotu=other)["verdict"].iloc[0] == "not shown"


# --- the trainings --------------------------------------------------------------------------------

FREE = "DEQ-40, free W, T = 10"
CONSTRAINED = "DEQ-40, ‖W‖ ≤ 0.95"
LOW = [1e-4, 2e-4, 1.5e-4]
HIGH = [1e-2, 2e-2, 1.6e-2]


def runs(ours, theirs, arm=FREE, equilibrium="equilibrium", task="sawtooth-2^3"):
    """A regression table with these errors of the DEQ and of the better rival."""
    claims = [c for c in verdicts.CLAIMS if c.task == task and c.arm == arm]
    better, worse = claims[0].rivals
    rows = []
    for seed, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        for model, value in ((arm, own), (better, other), (worse, 2 * other)):
            row = {"task": task, "model": model, "seed": seed, "mse": value, "flops": 1.0}
            row["equilibrium"] = equilibrium if model == arm else "feed-forward"
            rows.append(row | {"residual": np.nan, "residual_300": np.nan})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("table", "verdict", "remark"),
    [
        (runs(LOW, HIGH), "as claimed here", ""),
        (runs(LOW, HIGH, equilibrium="weight-tied recurrent"), "as claimed here", "weight-tied"),
        (runs(HIGH, LOW), "opposite here", ""),
        (runs([1e-2, 1e-4, 1e-3], [1e-3, 1e-3, 1e-3]), "not significant", ""),
        (runs([0.083, 0.084, 0.082], [0.084, 0.083, 0.083]), "reported", "no network here learns"),
        (runs(LOW[:2], HIGH[:2]), "reported", "2 seeds"),
        (runs(LOW, HIGH, CONSTRAINED), "lower", "DEQ better; our constraint"),
        (runs(HIGH, LOW, CONSTRAINED), "higher", "DEQ worse; our constraint"),
        (runs(HIGH, HIGH, CONSTRAINED), "equal", "same value"),
    ],
)
def test_statements_are_judged_and_what_is_beyond_the_paper_is_measured(table, verdict, remark):
    ledger = trained_ledger(table, "fig3")
    assert list(ledger.columns) == LEDGER
    (row,) = ledger.itertuples()
    is_ours = CONSTRAINED in set(table["model"])
    assert row.verdict == verdict
    assert remark in row.remark
    assert bool(row.remark) == bool(remark)
    assert row.scale == "toy"
    assert row.part == ("beyond the paper" if is_ours else "statement")
    assert row.reading == ("ours" if is_ours else "as printed")


def test_evidence_names_means_ranges_difference_and_costs():
    evidence = trained_ledger(runs([1e-3, 1e-3, 4e-3], [1e-2] * 3), "fig3")["evidence"].iloc[0]
    assert evidence.startswith(
        f"{FREE} 0.002 (0.001 to 0.004), best rival 0.01 (0.01 to 0.01); difference -0.80 ± "
    )
    assert evidence.endswith(" (3 seeds) decades; FLOPs 1 and 1, 1")


@pytest.mark.parametrize("task", ["f1", "f2"])
def test_three_seeds_of_f1_and_f2_get_no_verdict_and_eight_do(task):
    errors = [1.0 + seed / 9 for seed in range(8)]
    table = runs(errors, [0.1] * 8, "DEQ-20, ‖W‖ ≤ 0.95", task=task)
    few = trained_ledger(table[table["seed"] < 7], "fig1").iloc[0]
    enough = trained_ledger(table, "fig1").iloc[0]
    assert few["verdict"] == "reported"
    assert few["remark"].startswith("7 seeds")
    assert enough["verdict"] == "higher"
    assert f"our {task}" in enough["claim"]


def test_weights_are_judged_over_the_dimensions():
    rows = []
    for d in STEEP_DIMENSIONS:
        for seed in range(3):
            row = {"task": f"steep-d{d}", "seed": seed, "mse": 1e-4, "rebalanced": 2.0}
            rows.append(row | {"model": verdicts.SELF_LOOPS, "largest": 1 + d / 20})
            rows.append(row | {"model": verdicts.SCALED_FNN, "largest": 2.0**d / 64})
    table = pd.DataFrame(rows)
    ledger = trained_ledger(table, "theorem2_steep")
    assert ledger["verdict"].tolist() == ["reported", "reported"]
    assert ledger["remark"].str.startswith("met in the mean of 3 seeds").all()
    assert ledger["evidence"].iloc[0] == "d = 6 to 20: DEQ ×1.54, FNN ×16384, rebalanced ×1"
    far = table.assign(largest=2.0, mse=table["largest"])
    remarks = trained_ledger(far, "theorem2_steep")["remark"]
    assert remarks.str.startswith("not met").all()
    assert trained_ledger(table[table["task"] != "steep-d20"], "theorem2_steep").empty


# --- the tracked table ----------------------------------------------------------------------------


def test_the_tracked_table_holds_nothing_against_the_paper_but_one_misprint():
    path = paths.reference() / "sister-papers/wu-verdicts-quick.csv"
    table = pd.read_csv(path, keep_default_na=False)
    assert list(table.columns) == LEDGER
    word = table["verdict"].str.split(" if ").str[0]
    assert word.isin([*certify.VERDICTS, *compare.VERDICTS]).all()
    assert not word.isin(["false", "contradicted", "vacuous", "proof gap"]).any()
    assert table.loc[word == "typo", "place"].tolist() == ["Theorem 3, rebuttal"]
    trained = table[table["computed"].str.startswith("trained")]
    assert len(trained) == len(verdicts.CLAIMS) + 3  # Figure 4 twice, and Figure 6
    assert set(trained["scale"]) == {"toy"}
    eight = trained.loc[trained["claim"].str.contains("our f[12]", regex=True), "computed"]
    assert len(eight) == 10
    assert set(eight) == {"trained, 8 seeds"}
