"""Headless regeneration: what is refused beforehand, what goes on after a failure, what is trained and drawn once."""

import shutil
import time

import pandas as pd
import pytest
from reproduction import DRAW, figure, run_of, runs_of_seeds, write_notebook

from nclib import data, paths, runs
from nclib.config import ConfigError
from nclib.reproduce import drawing, reproduce
from nclib.store import default_store


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overrides": ["epoch=3"]}, "Did you mean 'epochs'"),
        ({"overrides": ["dataset=digit"]}, "Did you mean 'digits'"),
        ({"profile": "smok"}, "Did you mean 'smoke'"),
        ({"train": "nver"}, "Did you mean 'never'"),
    ],
)
def test_a_bad_call_is_refused_before_any_training(bench, options, message):
    figure("neural_collapse/fig1")
    with pytest.raises(ConfigError, match=message):
        bench.reproduce(**options)
    assert not bench.trained and not bench.executed and not paths.results().exists()


def test_runs_are_trained_once_and_shared(bench):
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig2")
    assert bench.reproduce().ok and bench.trained == {run_of(0): 1, run_of(1): 1, run_of(2): 1}


def test_a_failed_run_fails_only_the_notebooks_that_need_it(bench):
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig2")
    write_notebook("walkthrough/01", "x = 1")
    bench.broken[run_of(0)] = RuntimeError("loss is not finite; lower lr")
    summary = bench.reproduce()
    assert [row.status for row in summary.rows] == ["failed", "executed", "executed"] and not summary.ok
    assert "1 of its 2 runs" in summary.rows[0].message and "lower lr" in summary.rows[0].message
    bench.broken.clear()
    assert bench.reproduce().ok and bench.trained[run_of(1)] == 1


def test_never_training_draws_what_is_there_lists_the_others_and_fails_for_what_is_broken(bench, monkeypatch):
    monkeypatch.setitem(reproduce.DRAWN_AS_FAR_AS_THERE, "neural_collapse/fig9", "neural_collapse/fig2")
    bench.wanted["neural_collapse/fig2"] = runs_of_seeds([2])
    for name in ("fig1", "fig2", "fig9"):
        figure(f"neural_collapse/{name}")
    bench.reproduce("fig1")
    bench.trained.clear()
    summary = bench.reproduce(train="never")
    assert [row.status for row in summary.rows] == ["unchanged", "not drawn", "not drawn"] and not bench.trained
    assert "not rendered, as some of their runs are missing: neural_collapse/fig2, neural_collapse/fig9" in bench.said
    assert summary.ok and not any("failed" in line for line in bench.said)
    write_notebook("walkthrough/01", "1 / 0")
    assert not bench.reproduce(train="never").ok and any("failed: walkthrough/01: Zero" in line for line in bench.said)


def test_what_is_finished_is_drawn_again_when_another_run_is(bench, monkeypatch):
    monkeypatch.setattr(reproduce, "DRAW_A_PART", ("neural_collapse/fig2",))
    for name in ("neural_collapse/fig1", "neural_collapse/fig2"):
        figure(name)
    bench.reproduce("fig1")  # seeds 0 and 1; Figure 2 has 1 and 2
    shutil.rmtree(default_store().root / run_of(0))
    bench.trained.clear()
    first, again = (bench.reproduce(train="finished").rows for _ in range(2))
    assert [row.status for row in first] == ["executed", "not drawn"]
    assert again[0].status == "unchanged" and not bench.trained
    assert bench.reproduce("fig2").rows[0].status == "executed"


def test_profile_and_values_are_injected_where_they_are_declared(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "resolve_dataset", lambda name, base=None: "digits" if base == tmp_path else name)
    monkeypatch.chdir(tmp_path)
    figure("neural_collapse/fig1", "assert (profile, epochs, lr, dataset) == ('smoke', 3, 0.5, 'digits')")
    write_notebook("walkthrough/01", "assert 'epochs' not in globals()", parameters='profile: str = "quick"\n')
    assert bench.reproduce(overrides=["epochs=3", "lr=0.5", "dataset=folder:images"]).ok


SEEN = """
import pandas as pd
from nclib.figures import save_table
save_table(pd.DataFrame({"epochs": [epochs]}), "neural_collapse/fig1", f"profile {profile}", [], profile)
"""


def seen(*given):
    """The epochs in the table that a call with these parameters has left."""
    with paths.results_with(paths.folder_name(dict(given))):
        return int(pd.read_csv(paths.results("smoke") / "tables/neural_collapse/fig1.csv")["epochs"].item())


def test_results_of_other_parameters_never_replace_the_profiles_own(bench):
    write_notebook("neural_collapse/fig1", SEEN)
    bench.reproduce()
    (row,) = bench.reproduce(overrides=["epochs=3"]).rows
    assert row.status == "executed" and seen() == 0 and seen(("epochs", 3)) == 3
    for overrides in ([], ["epochs=3"], ["epochs=0"]):  # the last is the profile's own value
        assert bench.reproduce(overrides=overrides).rows[0].status == "unchanged"


def test_a_notebook_is_drawn_and_said_while_the_runs_of_others_are_trained(bench, monkeypatch):
    """And what comes first is trained before all else."""
    monkeypatch.setattr(drawing, "FIRST", ("neural_collapse/fig2",))  # seeds 1 and 2; fig1 has 0 and 1
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig2")
    begun = []

    def train(config, store, device, progress, log=None):
        begun.append(config.seed)
        limit = time.monotonic() + 60
        while config.seed == 0 and not any(line.startswith("neural_collapse/fig2: executed") for line in bench.said):
            assert time.monotonic() < limit
            time.sleep(0.01)
            progress(0, 1)  # an epoch
        bench.train(config, store, device, progress)

    monkeypatch.setattr(runs, "_make", train)
    assert bench.reproduce().ok and begun[-1] == 0 and len(begun) == 3


def test_what_comes_first_is_drawn_first_and_the_main_paper_before_the_course(bench, monkeypatch):
    monkeypatch.setattr(drawing, "FIRST", ("neural_collapse/fig2", "neural_collapse/fig1"))
    order = []
    monkeypatch.setattr(drawing, "execute", lambda name, *rest: order.append(name) or bench.execute(name, *rest))
    write_notebook("walkthrough/01", "x = 1")
    for name in ("fig1", "fig2", "fig3"):
        figure(f"neural_collapse/{name}")
    wanted = [*drawing.FIRST, "neural_collapse/fig3", "walkthrough/01"]
    bench.reproduce()
    bench.reproduce(force=True, train="never")  # all runs are there from the beginning
    assert order == wanted * 2 and [row.notebook for row in bench.reproduce().rows] == wanted


def test_a_failed_notebook_is_kept_apart_and_does_not_stop_the_others(bench):
    figure("neural_collapse/fig1", "x = 1", "raise ValueError('too dark')")
    figure("neural_collapse/fig2")
    failed, good = bench.reproduce().rows
    assert (failed.status, good.status) == ("failed", "executed")
    assert failed.message == "ValueError: too dark (cell 4)"
    assert "failed: neural_collapse/fig1: ValueError: too dark (cell 4)" in bench.said[-2]


def test_ctrl_c_leaves_no_trace_of_the_unfinished_notebook_and_the_next_call_goes_on(bench, monkeypatch):
    figure("neural_collapse/fig1")
    monkeypatch.setattr(drawing, "execute", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.reproduce()
    assert not list(paths.results("smoke").rglob("*.ipynb"))
    monkeypatch.setattr(drawing, "execute", bench.execute)
    bench.trained.clear()
    assert bench.reproduce().rows[0].status == "executed" and not bench.trained


def _interrupt(*_):
    raise KeyboardInterrupt


def _edit(name, text):
    def change():
        path = paths.results("smoke") / name
        path.unlink() if text is None else path.write_text(text)

    return change


def _edit_printed():
    paths.published().mkdir(parents=True)
    (paths.published() / "table.csv").write_text("x\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda: figure("neural_collapse/fig1", "1"),
        _edit_printed,
        _edit("tables/neural_collapse/fig1.csv", "x\n2.0\n"),
        _edit("tables/neural_collapse/fig1.md", None),
        _edit("notebooks/neural_collapse/fig1.json", "[]"),
        lambda: shutil.rmtree(default_store().root / run_of(0)),
    ],
    ids=["cells", "printed", "table", "deleted", "stamp", "run"],
)
def test_what_changed_is_drawn_again(bench, change):
    figure("neural_collapse/fig1")
    bench.reproduce()
    assert bench.reproduce().rows[0].status == "unchanged"
    change()
    assert [bench.reproduce().rows[0].status for _ in range(2)] == ["executed", "unchanged"]


def test_an_edit_of_the_code_draws_everything_again(bench, monkeypatch):
    figure("neural_collapse/fig1")
    bench.reproduce()
    monkeypatch.setattr(drawing, "code", lambda: "edited")
    assert bench.reproduce().rows[0].status == "executed"


def test_the_summary_waits_for_its_folder_and_is_executed_again_when_a_table_changed(bench, monkeypatch):
    order = []
    monkeypatch.setattr(drawing, "execute", lambda name, *rest: order.append(name) or bench.execute(name, *rest))
    for name in (drawing.SUMMARY, "neural_collapse/table9", "walkthrough/01"):
        figure(name)
    bench.reproduce()
    assert order.index(drawing.SUMMARY) > order.index("neural_collapse/table9")
    assert {row.status for row in bench.reproduce().rows} == {"unchanged"}
    write_notebook("neural_collapse/table9", DRAW.format(name="neural_collapse/table9").replace("1.0", "2.0"))
    bench.reproduce("table9")
    assert bench.reproduce("scorecard").rows[0].status == "executed"


def test_what_draws_as_far_as_runs_are_there_is_drawn_again_with_each_and_trains_none(bench, monkeypatch):
    monkeypatch.setitem(reproduce.DRAWN_AS_FAR_AS_THERE, "neural_collapse/fig9", "neural_collapse/fig1")
    for name in ("fig1", "fig9"):
        figure(f"neural_collapse/{name}")
    bench.reproduce("fig9")
    assert not bench.trained
    for statuses in ({"executed"}, {"unchanged"}):  # it waits for the runs of this call
        assert {row.status for row in bench.reproduce("fig9", "fig1").rows} == statuses
