"""The box under a claim says what the tables of its own notebook say, and of no older execution."""

import os
import time

import IPython
import pandas as pd
import pytest

from nclib.publish import answer, artefacts
from nclib.system import paths, words

FIG3 = "neural_collapse/fig3"
NTK = "kernel_equivalence/ntk"


def claims(lead=True):
    """Claims of Figure 3: the row named beforehand and two others."""
    rows = [("nc1_pinv", "DEQ equal", 0.5, "not significant"), ("paper_eq13_uncentred", "DEQ lower", 0.0937, "lower")]
    rows += [("nc3_self_duality", "DEQ lower", 0.25, "not significant")]
    table = pd.DataFrame(rows, columns=["metric", "printed", "difference", "verdict"])
    table = table.assign(half=0.0612, detectable=0.1, seeds=3, scale="toy", remark="", panel="b")
    return table.assign(lead=lead & (table["metric"] == "paper_eq13_uncentred"))


def save(table, name=f"{FIG3}_claims"):
    artefacts.save_table(pd.DataFrame(table), name, "Claims, smoke.", ["run-1"], "smoke")


def lines(name=FIG3, since=0.0):
    found = answer.read_answer(name, "smoke", since)
    return [] if found is None else found.table.to_dict("records")


def test_the_row_named_beforehand_comes_first_and_the_others_are_counted():
    save(claims())
    lead = {"item": "b, NC2, eq. 13, DEQ − ResNet-18", "the paper": "DEQ lower", "verdict": "lower", "scale": "toy"}
    assert lines()[0] == lead | {"found": "+0.0937 ± 0.0612", "seeds": 3, "rows alike": 1}
    assert [(line["verdict"], line["rows alike"]) for line in lines()] == [("lower", 1), ("not significant", 2)]
    box = answer.read_answer(FIG3, "smoke")
    assert words.SCALES["toy"] in box.note and "toy scale" in box._repr_html_()


def test_of_statements_the_false_one_comes_first_and_of_experiments_the_most_frequent():
    def order(verdicts, scale):
        save({"claim": "a", "evidence": "b", "scale": scale, "verdict": verdicts}, f"{NTK}_checks")
        return [line["verdict"] for line in lines(NTK)]

    assert order(["holds", "holds", "not run", "typo", "false"], "") == ["false", "typo", "holds", "not run"]
    assert order(["supported", "contradicted"] + ["not significant"] * 3, "paper")[0] == "not significant"


def test_what_an_earlier_execution_saved_is_left_out_and_nothing_judged_has_no_answer():
    save(claims())
    os.utime(paths.results("smoke") / f"tables/{FIG3}_claims.json", (time.time() - 60,) * 2)
    assert lines() and not lines(since=time.time() - 30) and not lines("neural_collapse/fig4")


@pytest.fixture
def shown(monkeypatch):
    """What a kernel would show: the first value, and each later one of the same place."""
    boxes = []
    for name in ("display", "update_display"):
        monkeypatch.setattr(IPython.display, name, lambda value, display_id: boxes.append((display_id, value)))
    return boxes


def test_the_box_fills_in_when_the_tables_are_saved(shown, monkeypatch):
    monkeypatch.setattr(answer, "_began", {})
    answer.answer(FIG3, "smoke")
    save({"a": [1]}, f"{FIG3}_other")
    save(claims(), f"{FIG3}0_claims")  # of Figure 30
    assert [box.note for _, box in shown] == [answer.WAITING]
    save(claims())
    assert [name for name, _ in shown] == [FIG3, FIG3] and shown[1][1].table["verdict"][0] == "lower"
