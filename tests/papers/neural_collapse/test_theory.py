"""Tables of verdicts on theory: "false" needs a certificate, each statement counts once."""

import dataclasses

import pandas as pd
import pytest
from certified import uncertified

from nclib import paths
from nclib.papers import certify
from nclib.papers.neural_collapse import theory


@pytest.mark.parametrize(
    ("outcomes", "options", "says"),
    [
        ([True, True], {}, "holds"),
        ([True, False], {}, "not shown"),
        ([True, False], {"condition": [True, False]}, "holds if"),
        ([], {}, "not shown"),
        ([False], {"certificate": "thm_b3"}, "false"),
        ([False], {"certificate": "thm31_nc2"}, "not shown"),  # it holds
        (
            [False],
            {"certificate": "nc31_proofs_reading"},
            "not shown",
        ),  # false at a reading of the proofs alone
    ],
)
def test_a_verdict_follows_from_cases_and_false_from_a_certificate_alone(outcomes, options, says):
    assert theory.judge(outcomes, **options) == says


def test_a_certificate_that_fails_certifies_nothing(monkeypatch):
    (record,) = theory.certify(["thm_b3"])
    assert theory.judge([False], certificate="thm_b3") == "false"
    monkeypatch.setattr(theory, "certify", lambda names: [dataclasses.replace(record, ok=False)])
    with pytest.raises(ValueError, match="thm_b3 fails, so no verdict"):
        theory.theory_statements()
    assert theory.judge([False], certificate="thm_b3") == "not shown"


def test_the_ten_statements():
    table = theory.theory_statements()
    verdicts = dict(zip(table["certificate"], table["verdict"], strict=True))
    assert verdicts.pop("prop42").startswith("holds if ")
    wanted = {"remark_b2": "typo", "thm_b3": "false", "thm41_nc2": "vacuous", "thm41_nc3": "false"}
    assert {name: verdict for name, verdict in verdicts.items() if verdict != "holds"} == wanted
    assert (table["reading"] == "as printed").all()
    assert (table.loc[~table["verdict"].str.startswith("holds"), "defect"] != "").all()
    counts = {
        "holds": 5,
        "holds if": 1,
        "false": 2,
        "typo": 1,
        "vacuous": 1,
        "independent defects": 6,
    }
    assert theory.theory_counts() == counts


def test_defects_point_to_certificates_that_do_not_hold():
    named = []
    for _, failing in theory.DEFECTS.values():
        named += failing
    assert len(set(named)) == len(named), "one cause for each"
    certified = [name for name in named if name in certify.ids()]
    assert all(record.ok for record in theory.certify(certified))
    assert set(named) <= {*certified, *theory.theory_steps()["certificate"]}
    accused = pd.concat([theory.theory_statements(), theory.theory_steps()]).query("defect != ''")
    assert not accused["verdict"].str.startswith("holds").any()


def test_the_steps_stand_in_the_order_of_the_paper():
    steps = theory.theory_steps()
    assert len(steps) == 34 and steps["certificate"].is_unique
    assert steps["certificate"].tolist()[:3] == ["step_15", "step_19", "after_19"]
    assert steps["certificate"].tolist()[-1] == "step_60_62"
    assert {text.partition(" if ")[0] for text in steps["verdict"]} <= {*certify.VERDICTS}


REFERENCE = paths.notebooks().parent / "results" / "reference"
STORED = [
    path
    for path in sorted(REFERENCE.rglob("*.csv"))
    if "verdict" in path.read_text(encoding="utf-8")[:2000]
]


def test_a_row_that_says_false_without_a_certificate_is_found():
    table = pd.DataFrame({"claim": ["a", "b"], "verdict": ["holds", "false"]})
    said = (
        {},
        {"certificate": "thm31_nc1"},
        {"remark": "nclib certify thm31_nc1"},
        {"certificate": "thm_b3"},
    )
    assert [len(uncertified(table.assign(**more))) for more in said] == [1, 1, 1, 0]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_no_stored_table_says_false_without_a_certificate(path):
    assert uncertified(pd.read_csv(path)) == []


def _measured(**options):
    return {"evidence": "seen", "rule": "r"} | options


def test_the_ledger_takes_its_verdicts_from_the_certificates():
    measured = {
        "thm31_nc1": _measured(cases=[True]),
        "thm_b3": _measured(cases=[False]),
        "thm41_nc2": _measured(),
        "prop42": _measured(cases=[True, False], condition=[True, False]),
    }
    control = (
        "Theorem 3.1, NC2",
        "proofs'",
        "rank one",
        "r",
        "reported",
        "D6",
        "nc31_proofs_reading",
    )
    table = theory.theory_ledger(measured, [control])
    assert table["kind"].tolist() == ["statement"] * 4 + ["control"]
    assert [verdict.split()[0] for verdict in table["verdict"]] == [
        "holds",
        "false",
        "vacuous",
        "holds",
        "reported",
    ]
    assert table["defect"].tolist() == ["", "D1", "D2", "", "D6"]
    assert uncertified(table) == []


@pytest.mark.parametrize(("name", "cases"), [("thm31_nc1", [False]), ("thm_b3", [True])])
def test_the_ledger_refuses_cases_that_do_not_agree_with_the_certificate(name, cases):
    with pytest.raises(ValueError, match="the certificate"):
        theory.theory_ledger({name: _measured(cases=cases)}, [])
