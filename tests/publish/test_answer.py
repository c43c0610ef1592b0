"""The box under a claim says what the scorecard says, of its own notebook and of no older execution."""

import json
import os
import time

import IPython
import pandas as pd
import pytest
from executed import fill

import nclib
from nclib.publish import answer, artefacts, notebooks, scorecard
from nclib.system import paths, words

FIG3 = "neural_collapse/fig3"


def claims(verdict="opposite here", panel="b"):
    """Claims of Figure 3: the row named beforehand and two others."""
    rows = [("nc1_pinv", "DEQ equal", 0.5, "not significant"), ("paper_eq13_uncentred", "DEQ lower", 0.0937, verdict)]
    rows += [("nc3_self_duality", "DEQ lower", 0.25, "not significant")]
    table = pd.DataFrame(rows, columns=["metric", "claim", "difference", "verdict"])
    return table.assign(half=0.0612, detectable=0.1, seeds=3, scale="toy", remark="", panel=panel)


def save(table, name=f"{FIG3}_claims"):
    artefacts.save_table(table, name, "Claims, smoke.", ["run-1"], "smoke")


def test_the_row_named_beforehand_comes_first_and_the_others_are_counted():
    save(claims())
    box = answer.read_answer(FIG3, "smoke")
    said = "Figure 3b: NC2, eq. 13: DEQ − explicit +0.0937 ± 0.0612 (95 % interval, 3 seeds); the paper: DEQ lower"
    assert box.lines == (("opposite here", "toy", said),)
    assert box.others == (("not significant", "toy", 2),)
    assert words.SCALES["toy"] in box.note and words.CLAIMS["opposite here"] in box._repr_html_()


def test_without_such_a_row_each_verdict_has_a_line():
    save(claims(panel="a"))
    box = answer.read_answer(FIG3, "smoke")
    assert [line[0] for line in box.lines] == ["not significant", "opposite here"] and box.others == ()
    assert box.lines[0][2].endswith("and 1 more")


def test_of_statements_the_false_one_comes_first_and_of_experiments_the_most_frequent():
    def order(verdicts, scale):
        rows = {"claim": "a", "evidence": "b", "scale": scale, "verdict": verdicts}
        save(pd.DataFrame(rows), "kernel_equivalence/ntk_checks")
        return [line[0] for line in answer.read_answer("kernel_equivalence/ntk", "smoke").lines]

    assert order(["holds", "holds", "not run", "typo", "false"], "") == ["false", "typo", "holds", "not run"]
    assert order(["supported", "contradicted"] + ["not significant"] * 3, "paper")[0] == "not significant"


def test_many_verdicts_are_counted_alone():
    verdicts = [*words.STATEMENTS, "holds"]
    save(pd.DataFrame({"claim": "a", "evidence": "b", "verdict": verdicts}), "kernel_equivalence/ntk_checks")
    box = answer.read_answer("kernel_equivalence/ntk", "smoke")
    assert not box.lines and ("holds", "", 2) in box.others and "Rows of this page" in repr(box)
    assert sum(count for *_, count in box.others) == len(verdicts)


def test_rows_are_those_of_the_scorecard():
    save(claims())
    card = scorecard.score_claims("smoke")
    mine = card[(card["notebook"] == "fig3") & (card["remark"] != scorecard.NOT_THERE)]
    said = ["item", "printed", "regenerated", "interval", "seeds", "verdict", "scale"]
    found = scorecard.claims_of(FIG3, "smoke")[said]
    pd.testing.assert_frame_equal(found, mine[said].reset_index(drop=True), check_dtype=False)


def test_a_sister_paper_speaks_through_its_own_table():
    rows = {"claim": ["a < b", "c"], "evidence": ["all 12 cases", "x " * 400], "verdict": ["holds", "not shown"]}
    save(pd.DataFrame(rows), "kernel_equivalence/ntk_checks")
    save(pd.DataFrame(rows), "kernel_equivalence/ntk2_checks")  # of another notebook
    box = answer.read_answer("kernel_equivalence/ntk", "smoke")
    assert box.lines[0] == ("holds", "", "a < b: all 12 cases") and len(box.lines) == 2
    assert len(box.lines[1][2]) < 250 and "a &lt; b" in box._repr_html_()


def test_what_an_earlier_execution_saved_is_left_out():
    save(claims())
    record = paths.results("smoke") / f"tables/{FIG3}_claims.json"
    os.utime(record, (time.time() - 60,) * 2)
    assert answer.read_answer(FIG3, "smoke").lines
    assert not answer.read_answer(FIG3, "smoke", since=time.time() - 30).lines


def test_rows_of_settings_and_changes_are_said_in_words():
    pooled = {"metric": ["nc1_pinv"], "change": [-25.8], "low": [-34.0], "high": [-16.5], "verdict": ["reported"]}
    save(pd.DataFrame(pooled | {"seeds": 3}), "neural_collapse/collapse_pooled")
    each = {"setting": ["K_A = 5, R = 100"], "metric": ["paper_eq13_uncentred"], "claim": ["DEQ lower"]}
    each |= {"difference": [-0.0209], "half": [float("nan")], "seeds": [1], "verdict": ["not run"]}
    each |= {"remark": ["1 seed"]}
    save(pd.DataFrame(each), "neural_collapse/collapse_settings")
    said = [line[2] for line in answer.read_answer("neural_collapse/collapse", "smoke").lines]
    assert said == [
        "NC1, eq. 12: -25.8 % (-34.0 to -16.5), 3 seeds",
        "K_A = 5, R = 100, NC2, eq. 13, DEQ lower: -0.0209, 1 seed",
    ]


def test_a_table_changed_by_hand_has_no_answer():
    save(claims())
    (paths.results("smoke") / f"tables/{FIG3}_claims.csv").write_text("changed")
    box = answer.read_answer(FIG3, "smoke")
    assert not box.lines and "No answer" in box.note and "nclib reproduce" in box.note


def test_nothing_judged_is_an_empty_answer():
    fill()
    assert answer.read_answer("neural_collapse/fig4", "smoke") == answer.Answer()


def test_a_row_named_beforehand_is_a_row_of_the_scorecard():
    card = pd.read_csv(paths.reference() / "tables/scorecard-quick.csv")
    for notebook, item in scorecard.LEADS.items():
        assert (card[card["notebook"] == notebook]["item"] == item).sum() == 1, notebook


@pytest.mark.parametrize("notebook", scorecard.OTHER_LEADS)
def test_a_notebook_with_rows_of_its_own_names_one_beforehand(notebook):
    """And has none in the scorecard."""
    (file,) = (paths.reference() / "tables").glob(f"{notebook}*-quick.csv")
    table = pd.read_csv(file, keep_default_na=False)
    save(table, f"neural_collapse/{notebook}")
    box = answer.read_answer(f"neural_collapse/{notebook}", "smoke")
    (line,) = box.lines
    assert line[2].startswith(scorecard.OTHER_LEADS[notebook]) and sum(row[2] for row in box.others) == len(table) - 1
    assert notebook not in set(pd.read_csv(paths.reference() / "tables/scorecard-quick.csv")["notebook"])


def test_a_change_in_percent_stands_with_its_interval():
    row = {"claim": "a / b", "change": 12.34, "low": 1.0, "high": 25.0, "seeds": 3, "scale": "toy", "remark": ""}
    save(pd.DataFrame([row | {"verdict": "higher"}]), "neural_collapse/optimisers")
    said = answer.read_answer("neural_collapse/optimisers", "smoke").lines[0][2]
    assert said == "a / b: +12.3 % (+1.0 to +25.0), 3 seeds"


class Events:
    """The events of a kernel."""

    def __init__(self):
        self.callbacks = {"post_run_cell": []}

    def register(self, event, call):
        self.callbacks[event].append(call)

    def unregister(self, event, call):
        self.callbacks[event].remove(call)


@pytest.fixture
def kernel(monkeypatch):
    """What a kernel would show: the first value, and each later one of the same place."""
    shell = type("Shell", (), {"events": Events()})()
    shell.shown = []
    handle = type("Handle", (), {"update": lambda self, value: shell.shown.append(value)})()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(IPython.display, "display", lambda value, **_: shell.shown.append(value) or handle)
    return shell


def after_a_cell(kernel):
    for call in kernel.events.callbacks["post_run_cell"]:
        call(None)


def test_the_box_fills_in_when_the_tables_are_saved(kernel):
    answer.answer(FIG3, "smoke")
    after_a_cell(kernel)
    assert [box.note for box in kernel.shown] == [answer.WAITING]
    save(claims())
    after_a_cell(kernel)
    after_a_cell(kernel)
    assert len(kernel.shown) == 2 and kernel.shown[1].lines[0][0] == "opposite here"


def test_the_cell_run_twice_fills_in_one_box(kernel):
    answer.answer(FIG3, "smoke")
    answer.answer(FIG3, "smoke")
    assert len(kernel.events.callbacks["post_run_cell"]) == 1


def test_without_a_front_end_it_is_a_line_of_text(capsys):
    nclib.answer(FIG3, "smoke")
    assert capsys.readouterr().out.strip() == answer.WAITING


def judges(name, codes):
    """Whether a notebook saves verdicts: rows of the scorecard, or a table of verdicts that it makes or shows."""
    folder, _, notebook = name.partition("/")
    listed = {source[1] for source in scorecard._SOURCES} | {"scorecard", *scorecard.OTHER_LEADS}
    if folder == "neural_collapse" and notebook in listed:
        return True
    return any("nc.readable(" in code or "nc.claims_table(" in code for code in codes)


@pytest.mark.parametrize("name", [name for name in notebooks.available() if not name.startswith("walkthrough/")])
def test_a_notebook_that_judges_begins_with_its_answer(name):
    cells = json.loads(notebooks.source(name).read_text(encoding="utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    found = [place for place, code in enumerate(codes) if "nc.answer(" in code]
    assert found == [2] * judges(name, codes)  # after the parameters and the imports, which show nothing
    assert not found or codes[2] == f'nc.answer("{name}", profile)'
