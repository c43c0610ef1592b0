"""What is not done twice, and what is drawn again."""

import contextlib
import os
import shutil
import signal

import pytest
from reproduction import DRAW, figure, run_of, write_notebook

from nclib.engine.store import default_store
from nclib.publish import notebooks
from nclib.reproduce import drawing, sources, stamps
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

    drawing.execute = disturbed
    bench.reproduce()
    drawing.execute = execute
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
    monkeypatch.setattr(drawing, "execute", lambda name, *rest: order.append(name) or execute(name, *rest))
    figure("neural_collapse/scorecard")
    figure("neural_collapse/table9")
    bench.reproduce()
    assert order == ["neural_collapse/table9", "neural_collapse/scorecard"]
    assert {row.status for row in bench.reproduce().rows} == {"unchanged"}
    write_notebook("neural_collapse/table9", DRAW.format(name="neural_collapse/table9").replace("1.0", "2.0"))
    assert {row.status for row in bench.reproduce().rows} == {"executed"}


# --- the library ------------------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path):
    """A copy of the package, whose files a test may edit."""
    shutil.copytree(sources.PACKAGE, tmp_path / "nclib", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "nclib"


def _changed(folder, edited):
    """The notebooks whose stamps change with a comment added to a file."""
    names = ("neural_collapse/fig3", "kernel_equivalence/fig2", "walkthrough/07_imbalance", "explore")
    cells = {name: notebooks.read_cells(paths.root() / f"notebooks/{name}.ipynb") for name in names}
    before = {name: sources.Library(folder).digests(name, cells[name]) for name in names}
    with (folder / edited).open("a", encoding="utf-8") as file:
        file.write("\n# edited\n")
    return {name for name in names if sources.Library(folder).digests(name, cells[name]) != before[name]}


@pytest.mark.parametrize(
    ("edited", "redrawn"),
    [
        ("laboratory/panels.py", {"explore"}),
        ("course/answers.py", {"walkthrough/07_imbalance"}),
        ("papers/kernel_equivalence/exact.py", {"kernel_equivalence/fig2"}),
        ("papers/neural_collapse/imbalanced.py", {"neural_collapse/fig3", "walkthrough/07_imbalance"}),
        ("publish/site/pages.py", set()),
        ("cli/app.py", set()),
        ("reproduce/reproduce.py", set()),
    ],
)
def test_an_edit_in_a_wing_redraws_the_notebooks_that_use_it_and_no_other(library, edited, redrawn):
    assert _changed(library, edited) == redrawn


@pytest.mark.parametrize(
    "edited",
    ["solver.py", "__init__.py", "data/sets.py", "engine/runs.py", "system/words.py", "publish/plots/style.py"],
)
def test_an_edit_in_what_all_use_redraws_all(library, edited):
    assert len(_changed(library, edited)) == 4


def test_an_edit_draws_again_only_what_reaches_it(bench, library, monkeypatch):
    monkeypatch.setattr(drawing, "Library", lambda: sources.Library(library))
    figure("neural_collapse/fig1")
    bench.reproduce()
    for edited, status in (("laboratory/panels.py", "unchanged"), ("solver.py", "executed")):
        with (library / edited).open("a", encoding="utf-8") as file:
            file.write("\n# edited\n")
        assert bench.reproduce().rows[0].status == status


@pytest.mark.parametrize(
    ("cell", "wing"),
    [
        ("import nclib as nc\nnc.laboratory.train()", "laboratory"),
        ("from companion import laboratory", "laboratory"),
        ("from companion.laboratory.panels import train", "laboratory"),
        ("import companion.laboratory", "laboratory"),
        ("import nclib as nc\nnc.laboratory.panels.train()", "laboratory"),
        ("from companion import separation_bias as sb", "papers.separation_bias"),
        ("from nclib.publish import plotting", "publish"),
        ("%matplotlib inline", "laboratory"),  # no Python: whatever it calls is not known
    ],
)
def test_the_wings_a_cell_names_are_found_however_it_names_them(cell, wing):
    found = sources.Library().digests("walkthrough/x", [{"cell_type": "code", "source": cell}])
    assert f"nclib.{wing}" in found
    assert "companion.laboratory" not in sources.Library().digests("walkthrough/x", [])


def test_what_draws_as_far_as_runs_are_there_is_drawn_again_with_each_and_trains_none(bench, monkeypatch):
    monkeypatch.setitem(stamps.DRAWN_AS_FAR_AS_THERE, "neural_collapse/fig9", "neural_collapse/fig1")
    for name in ("fig1", "fig9"):
        figure(f"neural_collapse/{name}")
    bench.reproduce("fig9")
    assert not bench.trained
    bench.reproduce("fig1")
    assert bench.reproduce("fig9").rows[0].status == "executed"
    assert bench.reproduce("fig9").rows[0].status == "unchanged"
