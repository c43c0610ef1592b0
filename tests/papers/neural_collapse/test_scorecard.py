"""Each notebook saves its claims in the same columns; the scorecard is all of them."""

import re

import pandas as pd
import pytest
from tidy import rows, stack, trained

from nclib import paths
from nclib.compare import pooled_table
from nclib.figures import save_table
from nclib.papers.neural_collapse import accuracy_tables, scorecard

CLAIM = {"metric": "nc1_pinv", "model": "weight_tied", "difference": 0.2, "half": 0.1, "seeds": 3}
CLAIM |= {"detectable": 0.13, "printed": "DEQ lower", "verdict": "opposite here", "scale": "toy"}


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path))


def table(**changes):
    return pd.DataFrame([CLAIM | changes])


def test_a_claim_has_what_the_paper_says_and_what_we_found():
    card = scorecard.claims(table(lead=True), "fig4", "Figure 4: {metric}", paper="printed")
    assert list(card) == scorecard.COLUMNS
    (row,) = card.to_dict("records")
    assert (row["notebook"], row["part"], row["item"]) == (
        "fig4",
        "figures",
        "Figure 4: NC1, eq. 12",
    )
    assert (row["printed"], row["regenerated"], row["interval"]) == ("DEQ lower", "+0.2", 0.1)
    assert (row["detectable"], row["seeds"], row["verdict"]) == (0.13, 3, "opposite here")
    assert row["lead"] is True


def test_what_no_paper_claims_has_nothing_printed():
    card = scorecard.claims(table(), "controls", "controls: {metric}, DEQ − {model}")
    (row,) = card.to_dict("records")
    assert row["part"] == "beyond the paper" and row["printed"] == "" and row["lead"] is False
    assert row["item"] == "controls: NC1, eq. 12, DEQ − weight tied"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.123456, "+0.123 points"), (-1e-15, "+0 points"), (float("nan"), ""), ("equal", "equal")],
)
def test_numbers_have_three_digits_and_a_sign(value, shown):
    card = scorecard.claims(table(difference=value), "controls", "{metric}", unit=" points")
    assert card.loc[0, "regenerated"] == shown


def test_changes_in_percent_have_their_intervals_where_there_are_any():
    nan = float("nan")
    changes = {"change": [-20.0, -20.0, nan], "low": [-30.0, nan, nan], "high": [-8.6, nan, nan]}
    shown = ["-20.0 % (-30.0 to -8.6)", "-20.0 %", ""]
    assert scorecard.percent_changes(pd.DataFrame(changes)) == shown


def test_a_notebook_that_is_not_listed_and_a_column_that_is_missing_are_refused():
    with pytest.raises(KeyError, match="fig9"):
        scorecard.claims(table(), "fig9", "{metric}")
    with pytest.raises(KeyError, match="setting"):
        scorecard.claims(table(), "controls", "{setting}")


def test_settings_stand_beside_the_printed_ones_and_below_their_pooled_test():
    runs = [
        rows(metric, model=model, seed=seed, values=[value + seed / scale], k_a=5, ratio=100.0)
        for model, value, scale in (("explicit", 0.4, 90), ("deq", 0.5, 100))
        for metric in accuracy_tables.ACCURACIES.values()
        for seed in range(3)
    ]
    frame = trained(stack(*runs)).drop_duplicates()
    printed = accuracy_tables.published(3)
    single = accuracy_tables.accuracy_table(frame, printed, {"digits": "cifar10"}, "toy")
    pooled = pooled_table(None, "toy", "higher")
    card = scorecard.accuracy_claims(3, single, pooled.assign(settings_planned=5))
    assert card["item"].iloc[0] == "Table 3: all cells, overall"
    card = card.set_index("item")
    row = card.loc["Table 3: digits K_A=5, R=100, overall"]
    assert row[["printed", "regenerated", "seeds"]].tolist() == ["+1.23 points", "+9.89 points", 3]
    assert row[["verdict", "scale"]].tolist() == ["as claimed here", "toy"]
    absent = card.loc["Table 3: CIFAR-100 K_A=50, R=10, minority"]
    assert absent["verdict"] == "not run" and "points" in absent["printed"]
    of_one_setting = pooled.assign(settings_planned=1)
    alone = scorecard.accuracy_claims(3, single, of_one_setting)
    assert not alone["item"].str.contains("all cells").any(), "it has its row already"


def test_statements_are_theory_and_controls_are_beyond_the_paper():
    statement = {
        "claim": "Theorem B.3",
        "place": "App. B.2",
        "kind": "statement",
        "reading": "as printed",
        "evidence": "equal",
        "verdict": "false",
        "defect": "D1",
        "certificate": "thm_b3",
    }
    control = dict.fromkeys(statement, "") | {"claim": "DEQ below residual", "kind": "control"}
    ledger = pd.DataFrame([statement, control | {"reading": "ours", "verdict": "reported"}])
    card = scorecard.theory_claims(ledger, "theory_layer_peeled")
    assert card["part"].tolist() == ["theory", "beyond the paper"]
    assert card.loc[0, ["printed", "regenerated", "verdict"]].tolist() == [
        "App. B.2",
        "equal",
        "false",
    ]
    reading = "reading: as printed; defect D1; nclib certify thm_b3"
    assert card["remark"].tolist() == [reading, "control; reading: ours"]


def save(card, notebook):
    save_table(card, f"neural_collapse/{notebook}_claims", "Profile quick.", [], "quick")


def test_the_scorecard_is_every_saved_table_part_by_part():
    figure = scorecard.claims(table(scale=""), "fig4", "Figure 4: {metric}", paper="printed")
    ledger = {"claim": "b", "place": "", "kind": "control", "reading": "", "evidence": "7"}
    ledger = pd.DataFrame([ledger | {"verdict": "holds", "defect": "", "certificate": ""}])
    statement = ledger.assign(claim="a", kind="statement")
    theory = scorecard.theory_claims(pd.concat([ledger, statement]), "theory_imbalance")
    save(figure, "fig4")
    save(theory, "theory_imbalance")
    card = scorecard.all_claims("quick")
    assert list(card) == scorecard.COLUMNS and list(card["part"].unique()) == scorecard.PARTS
    run = card[card["verdict"] != "not run"]
    assert run["item"].tolist() == ["Figure 4: NC1, eq. 12", "a", "b"]
    assert run["regenerated"].tolist() == ["+0.2", "7", "7"], "text stays text"
    absent = sorted(card.loc[card["verdict"] == "not run", "notebook"])
    assert absent == sorted(set(scorecard.NOTEBOOKS) - {"fig4", "theory_imbalance"})
    assert set(card["scale"]) == {""} and not card["lead"].any()


def test_an_edited_scorecard_reads_the_claims_of_its_own_parameters(monkeypatch):
    save(scorecard.claims(table(), "fig4", "Figure 4: {metric}"), "fig4")
    monkeypatch.setattr("nclib.figures._edited_parameters", lambda name: {"seeds": 5})
    assert set(scorecard.all_claims("quick")["verdict"]) == {"not run"}
    save(scorecard.claims(table(seeds=5), "fig4", "Figure 4: {metric}"), "fig4")
    (row,) = scorecard.all_claims("quick").query("notebook == 'fig4'").to_dict("records")
    assert row["seeds"] == 5


def test_the_notebooks_that_save_claims_are_those_that_are_listed():
    saving = []
    for file in (paths.notebooks() / "neural_collapse").glob("*.ipynb"):
        if re.search(r"sun_shi\.(accuracy_|theory_)?claims\(", file.read_text(encoding="utf-8")):
            saving.append(file.stem)
    assert sorted(saving) == sorted(scorecard.NOTEBOOKS)


def test_the_registered_tests_are_those_of_both_protocols():
    tests = scorecard.registered_tests()
    assert not tests.isna().any().any() and set(tests["scale"]) == {"reduced"}
    first = tests[tests["experiment"] == "protocol 2: CIFAR-10"]
    assert first["verdict"].tolist() == [*["supported"] * 6, "reported"]
    assert first["metric"].tolist()[:2] == ["NC2, centred", "NC3, centred"]
    assert not first["metric"].str.contains("_").any()
    hundred = tests[tests["experiment"] == "protocol 3, E2: CIFAR-100"]
    assert hundred["verdict"].tolist() == ["contradicted", "contradicted", "not significant"]
    assert hundred["claim"].tolist() == ["DEQ lower", "DEQ lower", "DEQ higher"]
    assert (hundred["change"][:2] > 0).all() and (first["change"][:2] < 0).all()
