"""What `--dry-run` says: each run and notebook that is due, and why."""

import re

import pytest
from reproduction import DRAW, figure, run_of, write_notebook

from nclib.reproduce import reproduce
from nclib.system import paths


@pytest.fixture
def said(bench):
    def run(*names, **options):
        lines = []
        reproduce.dry_run(names, "smoke", **options, echo=lines.append)
        return lines

    return run


def test_it_names_what_is_due_and_changes_nothing(bench, said):
    figure("neural_collapse/fig1")
    write_notebook("walkthrough/01", "x = 1")
    lines = said()
    trained = [re.sub(r", \d+ s:", ":", line) for line in lines if line.startswith("  train")]
    assert trained == [f"  train {run_of(seed)}: not stored; for neural_collapse/fig1" for seed in (0, 1)]
    assert "  draw neural_collapse/fig1: 2 of its 2 runs are to be trained" in lines
    assert "  draw walkthrough/01: not executed yet" in lines and lines[-1] == "0 of 2 notebooks are unchanged"
    assert not paths.results().exists() and not bench.trained and not bench.executed


def _edit_cells():
    figure("neural_collapse/fig1", "1")


def _edit_table():
    (paths.results("smoke") / "tables/neural_collapse/fig1.csv").write_text("x\n2.0\n")


def _damage_stamp():
    (paths.results("smoke") / "notebooks/neural_collapse/fig1.json").write_text("[]")


def _edit_printed():
    paths.published().mkdir(parents=True)
    (paths.published() / "table.csv").write_text("x\n")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_edit_cells, "changed since: its cells"),
        (_edit_printed, "changed since: the printed numbers"),
        (_edit_table, "not what was written: tables/neural_collapse/fig1.csv"),
        (_damage_stamp, "its stamp is damaged"),
    ],
)
def test_it_says_why_a_notebook_is_due(bench, said, change, why):
    figure("neural_collapse/fig1")
    bench.reproduce()
    assert said()[-1] == "1 of 1 notebooks are unchanged"
    change()
    assert said()[-2:] == [f"  draw neural_collapse/fig1: {why}", "0 of 1 notebooks are unchanged"]


def test_a_summary_is_due_with_the_table_it_sums_up(bench, said):
    figure("neural_collapse/table9")
    figure("neural_collapse/scorecard")
    bench.reproduce()
    write_notebook("neural_collapse/table9", DRAW.format(name="neural_collapse/table9").replace("1.0", "2.0"))
    bench.reproduce("table9")
    assert "  draw neural_collapse/scorecard: changed since: the table table9" in said()


def test_other_parameters_are_looked_for_in_their_folder(bench, said):
    figure("neural_collapse/fig1")
    bench.reproduce(overrides=["epochs=3"])
    other, own = said(overrides=["epochs=3"]), said()
    assert other[-1] == "1 of 1 notebooks are unchanged" and own[-1] == "0 of 1 notebooks are unchanged"
    assert f"results would lie in {paths.results('smoke') / 'with' / 'epochs=3'}" in other
    assert f"results would lie in {paths.results('smoke')}" in own
