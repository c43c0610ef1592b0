"""What is not done twice, and what is drawn again."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from reproduction import DRAW, figure, run_of, write_notebook

from nclib.engine.store import default_store
from nclib.reproduce import reproduce, stamps
from nclib.system import paths


def _edit_figure(bench):
    (paths.results("smoke") / "tables/neural_collapse/fig1.csv").write_text("x\n2.0\n")


def _delete_figure(bench):
    (paths.results("smoke") / "tables/neural_collapse/fig1.md").unlink()


def _damage_stamp(bench):
    (paths.results("smoke") / "notebooks/neural_collapse/fig1.json").write_text("[]")


def _edit_notebook(bench):
    figure("neural_collapse/fig1", "1")


def _edit_published(bench):
    paths.published().mkdir(parents=True)
    (paths.published() / "table.csv").write_text("x\n")


def _retrain(bench):
    default_store().remove(run_of(0))


@pytest.mark.parametrize(
    "change", [_edit_figure, _delete_figure, _damage_stamp, _edit_notebook, _edit_published, _retrain]
)
def test_what_changed_is_drawn_again(bench, change):
    figure("neural_collapse/fig1")
    bench.reproduce()
    change(bench)
    assert bench.reproduce().rows[0].status == "executed"
    assert bench.reproduce().rows[0].status == "unchanged"


@contextlib.contextmanager
def at_once(seconds=60):
    """Whoever waits longer for something that never comes gets an exception."""

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
@pytest.mark.parametrize(
    "file",
    [
        "summary.json",
        "notebooks/neural_collapse/fig1.json",
        "notebooks/neural_collapse/fig1.ipynb",
        "tables/neural_collapse/fig1.csv",
        "tables/neural_collapse/fig1.json",
    ],
)
def test_a_pipe_in_the_place_of_a_result_is_replaced_and_not_waited_for(bench, file):
    figure("neural_collapse/fig1")
    figure("neural_collapse/scorecard")
    bench.reproduce()
    path = paths.results("smoke") / file
    path.unlink()
    os.mkfifo(path)
    with at_once():
        assert bench.reproduce().ok
    assert path.is_file()


def test_the_stamp_speaks_of_what_the_notebook_wrote_even_when_somebody_else_writes_at_once(bench):
    figure("neural_collapse/fig1")
    execute, table = bench.execute, paths.results("smoke") / "tables/neural_collapse/fig1.csv"

    def disturbed(*arguments):
        done = execute(*arguments)
        table.write_text("x\n2.0\n")
        return done

    reproduce.execute = disturbed
    bench.reproduce()
    reproduce.execute = execute
    assert bench.reproduce().rows[0].status == "executed"
    assert table.read_text() == "x\n1.0\n"


def test_a_damaged_run_is_trained_again_and_drawn_again(bench):
    figure("neural_collapse/fig1")
    bench.reproduce()
    (paths.runs() / run_of(1) / "history.csv").write_text("epoch,split,metric,value\n")
    with pytest.warns(UserWarning, match="set-aside"):
        (row,) = bench.reproduce().rows
    assert (row.status, row.runs_trained) == ("executed", 1)


def test_a_summary_is_executed_last_and_again_when_a_table_it_sums_up_changed(bench, monkeypatch):
    order = []
    execute = bench.execute
    monkeypatch.setattr(reproduce, "execute", lambda name, *rest: order.append(name) or execute(name, *rest))
    figure("neural_collapse/scorecard")
    figure("neural_collapse/table9")
    bench.reproduce()
    assert order == ["neural_collapse/table9", "neural_collapse/scorecard"]
    assert {row.status for row in bench.reproduce().rows} == {"unchanged"}
    write_notebook("neural_collapse/table9", DRAW.format(name="neural_collapse/table9").replace("1.0", "2.0"))
    assert {row.status for row in bench.reproduce().rows} == {"executed"}


def test_a_changed_certificate_redraws_the_notebooks(monkeypatch):
    before, read = stamps._library(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == "imbalanced.py"))
    assert stamps._library() != before


def test_a_second_call_trains_and_executes_nothing(bench):
    figure("neural_collapse/fig1")
    first, second = bench.reproduce(), bench.reproduce()
    assert bench.executed["neural_collapse/fig1"] == 1
    assert sum(bench.trained.values()) == 2
    (row,) = second.rows
    assert (row.status, row.runs_trained, row.runs_reused) == ("unchanged", 0, 2)
    assert sorted(row.files) == sorted(first.rows[0].files)
    assert bench.reproduce(force=True).rows[0].status == "executed"
