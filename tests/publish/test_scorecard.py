"""The scorecard: built from saved tables and their records alone, and honest about what is missing."""

import pandas as pd
import pytest
from tidy import accuracy_pairs, trained

from companion.neural_collapse import accuracy_tables
from nclib import comparison
from nclib.comparison import interval
from nclib.publish import scorecard
from nclib.publish.artefacts import save_table
from nclib.system import paths


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path))
    return tmp_path


def _accuracies():
    rows = [
        (model, seed, epoch, metric, value + seed / (100 if model == "deq" else 90))
        for model, values in {"explicit": (0.4, 0.7, 0.1), "deq": (0.5, 0.7, 0.3)}.items()
        for seed in range(3)
        for epoch in (1, 2)
        for metric, value in zip(accuracy_tables.ACCURACIES.values(), values, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["model", "seed", "epoch", "metric", "value"])
    frame["run_id"] = frame["model"] + "-s" + frame["seed"].astype(str)
    return trained(frame.assign(dataset="digits", K_A=5, R=100.0, split="test"))


def _save(name, table, runs=()):
    save_table(table, f"neural_collapse/{name}", "Profile quick: a caption", list(runs), "quick")


def test_nothing_regenerated_says_so(results):
    card = scorecard.score_claims("quick")
    assert set(card["verdict"]) == {"not run"} and set(card["remark"]) == {"not regenerated"} and len(card) > 10
    assert list(dict.fromkeys(card["part"])) == list(scorecard.PARTS)


def test_cells_stand_beside_the_printed_ones_with_their_runs(results):
    table = accuracy_tables.accuracy_table(_accuracies(), accuracy_tables.published(3), {"digits": "cifar10"}, "toy")
    _save("table3", table, ["deq-s0"])
    card = scorecard.score_claims("quick")
    row = card[card["item"] == "Table 3: digits K_A=5, R=100, overall"].iloc[0]
    assert (row["printed"], row["regenerated"], row["seeds"]) == ("+1.23 points", "+9.89 points", 3)
    wanted = interval([10 - 10 * seed / 90 for seed in range(3)])
    assert (row["interval"], row["detectable"]) == pytest.approx((wanted.half, wanted.detectable))
    said = row[["verdict", "scale", "remark", "notebook"]].tolist()
    assert said == ["as claimed here", "toy", "size not comparable", "table3"]
    assert row["runs"].split() == sorted({"deq-s0", "deq-s1", "deq-s2", "explicit-s0", "explicit-s1", "explicit-s2"})
    absent = card[card["item"] == "Table 3: CIFAR-100 K_A=50, R=10, minority"].iloc[0]
    assert absent[["verdict", "scale", "runs"]].tolist() == ["not run", "", ""] and "points" in absent["printed"]
    assert len(card[card["part"] == "tables"]) == 18 + 7  # Table 3's cells; three tables and four tests not run


def test_claims_theorems_findings_and_comparisons(results):
    claim = {"metric": "paper_eq13_uncentred", "explicit": 1.0, "deq": 1.2, "difference": 0.2, "half": 0.1}
    claim |= {"detectable": 0.13, "seeds": 3, "scale": "toy", "remark": None}
    _save("fig4_claims", pd.DataFrame([claim | {"claim": "DEQ lower", "verdict": "opposite here"}]), ["a", "b"])
    statement = {"claim": "Theorem B.3", "place": "App. B.2", "kind": "statement", "reading": "as printed"}
    statement |= {"evidence": "equal", "verdict": "false", "defect": "D1", "certificate": "thm_b3"}
    control = {"claim": "DEQ below residual", "place": "", "kind": "control", "reading": "ours", "evidence": "lower"}
    ledger = pd.DataFrame([statement, control | {"verdict": "reported"}])
    _save("theory_layer_peeled_ledger", ledger)
    findings = {"number": [1, 2], "finding": ["Thirteen are impossible.", "So."], "certificate": ["eq13", None]}
    _save("audit_findings", pd.DataFrame(findings))
    compared = claim | {"metric": "accuracy_balanced", "model": "weight_tied", "setting": "R=10", "verdict": "lower"}
    _save("controls_differences", pd.DataFrame([compared]))
    step = {"step": "DEQ / cell", "metric": "nc1_pinv", "change": -20.0, "low": -30.0, "high": -8.6, "detectable": 18.0}
    step |= {"seeds": 3, "verdict": "lower", "scale": "reduced", "remark": None}
    one = step | {"step": "cell / explicit", "low": None, "high": None, "detectable": None, "seeds": 1}
    one |= {"verdict": "reported", "remark": "1 seed"}
    _save("equilibrium_or_cell", pd.DataFrame([step, one]))
    _save("table2_pooled", comparison.pooled_table(accuracy_pairs(-1.06, 0.69), "toy", "higher"))
    card = scorecard.score_claims("quick").set_index("item")
    row = card.loc["Table 2: all cells, overall"]
    assert row[["printed", "regenerated", "verdict"]].tolist() == ["DEQ higher", "-1.06", "opposite here"]
    row = card.loc["all cells, DEQ / cell: NC1, eq. 12"]
    assert row[["regenerated", "verdict"]].tolist() == ["-20.0 % (-30.0 to -8.6)", "lower"] and row["detectable"] == 18
    assert row[["scale", "remark"]].tolist() == ["reduced", ""]
    alone = card.loc["all cells, cell / explicit: NC1, eq. 12"]
    assert alone[["regenerated", "remark"]].tolist() == ["-20.0 %", "1 seed"]
    row = card.loc["Figure 4: NC2, eq. 13"]
    assert row[["printed", "regenerated", "runs"]].tolist() == ["DEQ lower", "+0.2", "a b"]
    row = card.loc["Theorem B.3"]
    assert row[["part", "printed", "verdict"]].tolist() == ["theory", "App. B.2", "false"]
    assert row[["regenerated", "remark"]].tolist() == ["equal", "reading: as printed; defect D1; nclib certify thm_b3"]
    row = card.loc["DEQ below residual"]
    assert row[["part", "regenerated", "verdict"]].tolist() == ["beyond the paper", "lower", "reported"]
    assert row["remark"] == "control; reading: ours"
    assert list(dict.fromkeys(card["part"])) == list(scorecard.PARTS), "controls stand with their part"
    row = card.loc["Finding 1"]
    assert row[["regenerated", "remark"]].tolist() == ["Thirteen are impossible.", "nclib certify eq13"]
    assert card.loc["Finding 2", "remark"] == "computed from the printed numbers"
    assert card.loc["controls, R=10: accuracy, DEQ − weight tied", "verdict"] == "lower"


@pytest.mark.parametrize(
    ("remark", "rows"), [("the one setting; secondary: recipe collapse", 0), ("1 of 3 settings", 1)]
)
def test_the_pooled_test_of_one_setting_is_not_counted_beside_its_row(results, remark, rows):
    found = comparison.pooled_table(accuracy_pairs(-1.3, 0.9), "reduced", "higher", remark)
    _save("table1_pooled", found)
    card = scorecard.score_claims("quick")
    assert (card["item"] == "Table 1: all cells, overall").sum() == rows


def test_tables_of_other_runs_are_named_instead_of_mixed_in(results):
    row = {
        "metric": "nc1_pinv",
        "difference": 0.2,
        "half": 0.1,
        "detectable": 0.13,
        "seeds": 3,
        "claim": "",
        "verdict": "equal",
        "scale": "toy",
        "remark": "within 10 %",
    }
    for number, runs in ((4, ["a", "b"]), (5, ["c", "d"])):
        _save(f"fig{number}_claims", pd.DataFrame([row]), runs)
    known = {"fig4": {"a", "b", "e"}, "fig5": {"d"}}
    card = scorecard.score_claims("quick", known.__getitem__).set_index("item")
    assert card.loc["Figure 4: NC1, eq. 12", "verdict"] == "equal" and "Figure 5: NC1, eq. 12" not in card.index
    said = card.loc["fig5 claims", ["verdict", "remark", "runs"]].tolist()
    assert said == ["not run", "made at other parameters", "c d"]  # one of its two runs is not enough


def test_what_rounding_leaves_of_nothing_is_shown_as_nothing():
    assert [scorecard._signed(value) for value in (4.74e-15, -1e-14, 1e-9, None)] == ["+0", "+0", "+1e-09", ""]


def test_verdicts_are_counted_by_part_and_scale():
    card = pd.DataFrame({"part": ["b", "a", "b", "b", "b"], "verdict": ["x", "x", "y", "y", "y"]})
    counted = scorecard.count_verdicts(card.assign(scale=["toy", "", "toy", "toy", "paper"]))
    b = [["b", "y", "toy", 2], ["b", "x", "toy", 1], ["b", "y", "paper", 1]]
    assert counted.to_numpy().tolist() == [*b, ["a", "x", "", 1]]


def test_a_table_without_the_scale_of_its_evidence_is_refused(results):
    row = {"metric": "nc1_pinv", "difference": 0.2, "half": 0.1, "detectable": 0.13, "seeds": 3, "claim": "DEQ lower"}
    _save("fig4_claims", pd.DataFrame([row | {"verdict": "contradicted"}]))
    with pytest.raises(scorecard.StaleTable, match=r"another version.*nclib reproduce fig4"):
        scorecard.score_claims("quick")


def test_a_table_changed_by_hand_or_of_another_version_is_refused(results):
    _save("audit_findings", pd.DataFrame({"number": [1], "finding": ["So."], "certificate": ["eq13"]}))
    path = paths.results("quick") / "tables" / "neural_collapse" / "audit_findings.csv"
    path.write_text(path.read_text().replace("So.", "Not so."))
    with pytest.raises(scorecard.StaleTable, match="nclib reproduce neural_collapse/audit_findings --force"):
        scorecard.score_claims("quick")
    _save("audit_findings", pd.DataFrame({"no": [1], "finding": ["So."]}))
    with pytest.raises(scorecard.StaleTable, match=r"another version.*nclib reproduce audit"):
        scorecard.score_claims("quick")
