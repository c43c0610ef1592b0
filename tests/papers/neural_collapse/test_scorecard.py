"""The scorecard: from saved tables and their records alone, and honest about what is missing."""

import pandas as pd
import pytest
from tidy import rows, stack, trained

from nclib.figures import save_table
from nclib.papers.neural_collapse import accuracy_tables, scorecard


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path))


def save(name, table, runs=()):
    save_table(
        pd.DataFrame(table),
        f"neural_collapse/{name}",
        "Profile quick: a caption",
        list(runs),
        "quick",
    )


CLAIM = {
    "metric": "nc1_pinv",
    "difference": 0.2,
    "half": 0.1,
    "detectable": 0.13,
    "seeds": 3,
    "printed": "DEQ lower",
}
CLAIM |= {"verdict": "opposite here", "scale": "toy", "remark": None}


def card_by(column="item"):
    return scorecard.score_claims("quick").set_index(column)


def test_nothing_regenerated_says_so():
    card = scorecard.score_claims("quick")
    assert set(card["verdict"]) == {"not run"} and not card["saved"].any() and len(card) > 10
    assert list(dict.fromkeys(card["part"])) == list(scorecard.PARTS)


def test_cells_stand_beside_the_printed_ones_with_their_runs():
    runs = [
        rows(metric, model=model, seed=seed, values=[value + seed / scale], k_a=5, ratio=100.0)
        for model, value, scale in (("explicit", 0.4, 90), ("deq", 0.5, 100))
        for metric in accuracy_tables.ACCURACIES.values()
        for seed in range(3)
    ]
    frame = trained(stack(*runs)).drop_duplicates()
    table = accuracy_tables.accuracy_table(
        frame, accuracy_tables.published(3), {"digits": "cifar10"}, "toy"
    )
    save("table3", table, ["deq-s0"])
    card = card_by()
    row = card.loc["Table 3: digits K_A=5, R=100, overall"]
    assert row[["printed", "regenerated", "seeds"]].tolist() == ["+1.23 points", "+9.89 points", 3]
    assert row["id"] == "table3/digits/K_A=5, R=100/overall" and len(row["runs"].split()) == 6
    assert row[["verdict", "scale", "notebook"]].tolist() == ["as claimed here", "toy", "table3"]
    absent = card.loc["Table 3: CIFAR-100 K_A=50, R=10, minority"]
    assert (
        absent[["verdict", "scale", "runs"]].tolist() == ["not run", "", ""]
        and "points" in absent["printed"]
    )


def test_claims_theorems_findings_and_comparisons():
    save("fig4_claims", [CLAIM | {"lead": True}], ["a", "b"])
    statement = {
        "claim": "Theorem B.3",
        "place": "App. B.2",
        "kind": "statement",
        "reading": "as printed",
    }
    statement |= {"evidence": "equal", "verdict": "false", "defect": "D1", "certificate": "thm_b3"}
    control = {
        "claim": "DEQ below residual",
        "kind": "control",
        "reading": "ours",
        "verdict": "reported",
    }
    save("theory_layer_peeled_ledger", [statement, control])
    save("controls_differences", [CLAIM | {"model": "weight_tied"}])
    step = {
        "step": "DEQ / cell",
        "metric": "nc1_pinv",
        "change": -20.0,
        "low": -30.0,
        "high": -8.6,
        "seeds": 3,
    }
    step |= {"settings_found": 13, "verdict": "lower", "scale": "reduced", "remark": None}
    save(
        "equilibrium_or_cell",
        [step, step | {"step": "cell", "low": None}, step | {"step": "block", "change": None}],
    )
    card = card_by()
    row = card.loc["Figure 4: NC1, eq. 12"]
    assert row[["printed", "regenerated", "runs", "lead"]].tolist() == [
        "DEQ lower",
        "+0.2",
        "a b",
        True,
    ]
    row = card.loc["Theorem B.3"]
    assert row[["part", "printed", "regenerated", "verdict"]].tolist() == [
        "theory",
        "App. B.2",
        "equal",
        "false",
    ]
    assert row["remark"] == "reading: as printed; defect D1; nclib certify thm_b3"
    assert card.loc["DEQ below residual", "part"] == "beyond the paper"
    assert (
        card.loc["controls: NC1, eq. 12, DEQ − weight tied", "id"]
        == "controls_differences/nc1_pinv/weight_tied"
    )
    found = card.filter(like="all cells", axis=0)
    assert found["regenerated"].tolist() == ["-20.0 % (-30.0 to -8.6)", "-20.0 %", ""]
    assert found[["settings_found", "remark"]].drop_duplicates().values.tolist() == [[13, ""]]
    assert list(dict.fromkeys(card["part"])) == list(scorecard.PARTS), (
        "controls stand with their part"
    )
