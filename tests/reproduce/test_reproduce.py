"""Headless regeneration: what is refused beforehand, what goes on after a failure, what is trained once."""

import concurrent.futures
import functools
import json
import os
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from reproduction import figure, run_of, runs_of_seeds, write_notebook

from nclib import data
from nclib.config import ConfigError, DataConfig, ModelConfig, RunConfig, TrainConfig
from nclib.engine import experiments, jobs, profiles, runs
from nclib.engine.store import default_store
from nclib.publish import notebooks
from nclib.reproduce import drawing, reproduce
from nclib.system import other_parameters, paths, terminal


def test_a_project_without_notebooks_says_so(project):
    with pytest.raises(ConfigError, match="no notebook"):
        reproduce.reproduce()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overrides": ["epoch=3"]}, "Did you mean 'epochs'"),
        ({"overrides": ["epochs=x"]}, "must be int"),
        ({"overrides": ["dataset=digit"]}, "Did you mean 'digits'"),
        ({"profile": "smok"}, "Did you mean 'smoke'"),
        ({"train": "nver"}, "Did you mean 'never'"),
        ({"workers": 0}, "from 1 to 1000"),
    ],
)
def test_a_bad_call_is_refused_before_any_training(bench, options, message):
    figure("neural_collapse/fig1")
    with pytest.raises(ConfigError, match=message):
        bench.reproduce(**options)
    assert not bench.trained and not bench.executed and not paths.results().exists()


@pytest.mark.parametrize(("change", "message"), [({"images_per_class": 5000}, "5000"), ({"width": 1}, "width=2")])
def test_runs_that_cannot_be_are_refused_before_any_training(bench, monkeypatch, change, message):
    figure("neural_collapse/fig1")
    narrow = profiles.override(profiles.get_profile("smoke"), **change)
    monkeypatch.setitem(experiments.known(), "neural_collapse/fig1", lambda profile: runs_of_seeds([0])(narrow))
    with pytest.raises(ConfigError, match=message):
        bench.reproduce()
    assert not bench.trained


def test_a_relative_folder_starts_at_the_callers_directory_and_is_injected_resolved(bench, monkeypatch, tmp_path):
    asked = []

    def resolve(name, base=None):
        asked.append((name, base))
        return "digits"

    monkeypatch.setattr(data, "resolve_dataset", resolve)
    monkeypatch.chdir(tmp_path)
    figure("neural_collapse/fig1", "assert dataset == 'digits'")
    figure("neural_collapse/fig2", "assert dataset == 'digits'")
    assert bench.reproduce(overrides=["dataset=folder:images"]).ok
    assert asked[0] == ("folder:images", tmp_path)
    assert [name for name, _ in asked].count("folder:images") == 1


def test_runs_are_trained_once_and_shared(bench):
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig2")
    summary = bench.reproduce()
    assert summary.ok
    assert bench.trained == {run_of(0): 1, run_of(1): 1, run_of(2): 1}
    assert [(row.runs_trained, row.runs_reused) for row in summary.rows] == [(2, 0), (1, 1)]
    assert any("3 runs, 0 of them stored" in line for line in bench.said)


def test_profile_and_values_are_injected(bench):
    figure("neural_collapse/fig1", "assert (profile, epochs, lr) == ('smoke', 3, 0.5)")
    write_notebook("walkthrough/01", "assert 'epochs' not in globals()", parameters='profile: str = "quick"\n')
    assert bench.reproduce(overrides=["epochs=3", "lr=0.5"]).ok


SEEN = """
import pandas as pd
from nclib.publish.artefacts import save_table
save_table(pd.DataFrame({"epochs": [epochs]}), "neural_collapse/fig1", f"profile {profile}", [], profile)
"""


def seen(*given):
    """The epochs in the table that a call with these parameters has left."""
    with other_parameters.results_with(other_parameters.folder_name(dict(given))):
        return int(pd.read_csv(paths.results("smoke") / "tables/neural_collapse/fig1.csv")["epochs"].item())


def test_results_of_other_parameters_never_replace_the_profiles_own(bench):
    write_notebook("neural_collapse/fig1", SEEN)
    bench.reproduce()
    (row,) = bench.reproduce(overrides=["epochs=3"]).rows
    assert row.status == "executed"
    assert seen() == 0 and seen(("epochs", 3)) == 3
    assert (paths.results("smoke") / "with" / "epochs=3" / row.files[0]).exists()
    assert bench.reproduce().rows[0].status == "unchanged"
    assert bench.reproduce(overrides=["epochs=3"]).rows[0].status == "unchanged"
    assert bench.reproduce(overrides=["epochs=0"]).rows[0].status == "unchanged"  # the profile's own value


def test_a_second_call_with_other_parameters_in_the_middle_of_the_first_leaves_each_its_own_tables(bench):
    """As Ctrl-Z, a second command and fg do."""
    write_notebook("neural_collapse/fig1", SEEN)
    execute = bench.execute

    def interrupted(name, values, profile):
        done = execute(name, values, profile)
        if values["epochs"] == 1:
            bench.reproduce(overrides=["epochs=2"])
        return done

    drawing.execute = interrupted  # undone with that of `bench`
    bench.reproduce(overrides=["epochs=1"])
    assert bench.reproduce(overrides=["epochs=1"]).rows[0].status == "unchanged"
    assert seen(("epochs", 1)) == 1 and seen(("epochs", 2)) == 2


def test_a_second_client_waits_for_the_one_that_draws_and_says_so(bench):
    figure("neural_collapse/fig1")
    begun, waiting = threading.Event(), threading.Event()
    execute = bench.execute

    def slow(*arguments):
        begun.set()
        assert waiting.wait(60)
        return execute(*arguments)

    drawing.execute = slow
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        first = other.submit(bench.reproduce)
        assert begun.wait(60)
        said = []

        def hear(line):
            said.append(line)
            if "waiting for it" in line:
                waiting.set()

        second = reproduce.reproduce(profile="smoke", workers=1, echo=hear)
        assert first.result().rows[0].status == "executed"
    assert second.rows[0].status == "unchanged" and bench.executed["neural_collapse/fig1"] == 1
    assert any("at work on the drawing of" in line for line in said)


def test_a_failed_notebook_is_kept_apart_and_does_not_stop_the_others(bench):
    figure("neural_collapse/fig1", "x = 1", "raise ValueError('too dark')")
    figure("neural_collapse/fig2")
    summary = bench.reproduce()
    assert not summary.ok
    failed, good = summary.rows
    assert (failed.status, good.status) == ("failed", "executed")
    assert failed.message == "ValueError: too dark (cell 4)"
    assert failed.files == ["notebooks/neural_collapse/fig1.failed.ipynb"]
    assert not notebooks.executed("neural_collapse/fig1", "smoke").exists()
    figure("neural_collapse/fig1")
    assert bench.reproduce().ok
    assert not (paths.results("smoke") / failed.files[0]).exists()


def test_a_failed_run_fails_only_the_notebooks_that_need_it(bench):
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig2")
    write_notebook("walkthrough/01", "x = 1")
    bench.broken[run_of(0)] = RuntimeError("loss is not finite; lower lr")
    summary = bench.reproduce()
    assert [row.status for row in summary.rows] == ["failed", "executed", "executed"]
    assert "1 of its 2 runs" in summary.rows[0].message and "lower lr" in summary.rows[0].message
    assert list(summary.failed_runs) == [run_of(0)]
    assert bench.trained[run_of(2)] == 1
    bench.broken.clear()
    assert bench.reproduce().ok
    assert bench.trained[run_of(1)] == 1


def test_results_that_cannot_be_written_are_refused_before_any_training(bench, monkeypatch):
    figure("neural_collapse/fig1")
    access = os.access
    paths.results().mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != paths.results() and access(path, mode))
    with pytest.raises(PermissionError, match="set NCLIB_RESULTS to a folder that is yours"):
        bench.reproduce()
    assert not bench.trained and not bench.executed and list(paths.results().iterdir()) == []


def test_what_was_trained_is_counted_without_what_failed(bench):
    figure("neural_collapse/fig1")
    bench.broken = {run_of(seed): RuntimeError("on purpose") for seed in (0, 1)}
    bench.reproduce()
    assert any(line.startswith("trained 0 of 2 runs in") for line in bench.said)
    del bench.broken[run_of(0)]
    bench.reproduce()
    assert any(line.startswith("trained 1 of 2 runs in") for line in bench.said)


def test_when_the_minutes_are_over_what_is_there_is_drawn(bench, monkeypatch):
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig2")
    write_notebook("walkthrough/01", "x = 1")
    clock = time.monotonic
    monkeypatch.setattr(runs.time, "monotonic", lambda: clock() + 100 * (sum(bench.trained.values()) >= 2))
    summary = bench.reproduce("fig2", "fig1", "walkthrough", minutes=1)
    assert list(bench.trained) == [run_of(0), run_of(1)]  # by seed, although fig2 was named first
    assert [(row.notebook[-4:], row.status) for row in summary.rows] == [
        ("fig2", "unfinished"),
        ("fig1", "executed"),
        ("h/01", "executed"),
    ]
    assert not summary.ok and "1 of its 2 runs are missing" in summary.rows[0].message
    assert "1 of 3 runs are left: the minutes given were over; the same command goes on" in bench.said
    assert "unfinished: neural_collapse/fig2: " in summary.text()
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"minutes": 0.0}, "minutes must be a number above 0, got 0"),
        ({"minutes": float("nan")}, "minutes must be a number above 0"),
        ({"minutes": 5.0, "train": "never"}, "leave one of them out"),
    ],
)
def test_a_time_that_cannot_be_kept_is_refused(bench, options, says):
    with pytest.raises(ConfigError, match=says):
        bench.reproduce(**options)
    assert not bench.trained


def test_data_that_cannot_be_had_fails_only_the_runs_that_need_it(bench, monkeypatch):
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig2")
    original = data.fetch

    def fetch(name):
        if name == "mnist":
            raise data.DataError("mnist could not be downloaded; no network")
        return original(name)

    monkeypatch.setattr(data, "fetch", fetch)
    elsewhere = [RunConfig(data=DataConfig(dataset="mnist", n_max=5), model=ModelConfig(width=2))]
    monkeypatch.setitem(experiments.known(), "neural_collapse/fig1", lambda profile: elsewhere)
    summary = bench.reproduce()
    assert [row.status for row in summary.rows] == ["failed", "executed"]
    assert "no network" in summary.rows[0].message


def test_never_training_uses_what_is_there(bench):
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig2")
    bench.reproduce("fig1")
    bench.trained.clear()
    summary = bench.reproduce(train="never")
    assert [row.status for row in summary.rows] == ["unchanged", "failed"]
    assert "--train never" in summary.rows[1].message
    assert not bench.trained


def test_what_is_finished_is_drawn_again_when_another_run_is(bench, monkeypatch):
    monkeypatch.setattr(reproduce, "DRAW_A_PART", ("neural_collapse/fig2",))
    for name in ("neural_collapse/fig1", "neural_collapse/fig2"):
        figure(name)
    bench.reproduce("fig1")  # seeds 0 and 1; Figure 2 has 1 and 2
    default_store().remove(run_of(0))
    bench.trained.clear()
    first, again = (bench.reproduce(train="finished").rows for _ in range(2))
    assert [row.status for row in first] == ["failed", "executed"] and "--train finished" in first[0].message
    assert (again[1].status, again[1].runs_reused) == ("unchanged", 1) and not bench.trained
    bench.reproduce("fig2")
    assert bench.reproduce("fig2", train="finished").rows[0].status == "executed"


def test_runs_that_logged_more_often_are_reused(bench, monkeypatch):
    figure("neural_collapse/fig1")
    bench.reproduce()
    bench.trained.clear()
    made, seldom = runs_of_seeds([0, 1]), TrainConfig(log_every=2)
    less = {"neural_collapse/fig1": lambda profile: [config.replace(train=seldom) for config in made(profile)]}
    before = experiments.known()
    monkeypatch.setattr(experiments, "known", lambda: before | less)
    rows = [bench.reproduce(train=train).rows[0] for train in ("never", "never", "missing")]
    assert [row.status for row in rows] == ["executed", "unchanged", "unchanged"] and not bench.trained
    assert {(row.runs_trained, row.runs_reused) for row in rows} == {(0, 2)} and len(default_store().ids()) == 4


def test_the_summary_on_disk_is_the_table_that_is_said(bench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # a worker of the tests has its own
    figure("neural_collapse/fig1", "raise KeyError('x')")
    figure("neural_collapse/fig2")
    summary = bench.reproduce(overrides=["epochs=2"])
    folder = paths.results("smoke") / "with" / "epochs=2"
    stored = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    stored.pop("provenance")
    assert stored == json.loads(json.dumps(summary.as_dict()))
    assert stored["parameters"] == {"epochs": 2} and not stored["ok"]
    table = next(line for line in bench.said if "trained" in line and "reused" in line)
    for row in stored["notebooks"]:
        (line,) = [line for line in table.splitlines() if line.split()[:1] == [row["notebook"]]]
        counts = row["seconds"], row["runs_trained"], row["runs_reused"]
        tables = sum(file.endswith(".html") for file in row["files"])
        assert line.split()[1:] == [row["status"], f"{counts[0]:.1f}", *map(str, (*counts[1:], 0, tables))]
    assert len(table.strip().splitlines()) == 5  # head, rule, a line a notebook, the failure
    assert "failed: neural_collapse/fig1: KeyError: 'x' (cell 3)" in table


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("number", terminal.ENDINGS)
def test_a_signal_stops_like_ctrl_c_and_the_next_call_goes_on(bench, number, request, monkeypatch):
    figure("neural_collapse/fig1")
    request.addfinalizer(functools.partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))  # not nohup's
    train, handler = bench.train, signal.getsignal(number)

    def stopped(config, store, device, progress, log=None):
        if config.seed == 1:
            os.kill(os.getpid(), number)
            time.sleep(5)
        train(config, store, device, progress)

    monkeypatch.setattr(jobs, "make", stopped)
    with pytest.raises(terminal.Terminated):
        bench.reproduce()
    assert signal.getsignal(number) == handler
    assert not (paths.results("smoke") / "summary.json").exists() and not bench.executed
    monkeypatch.setattr(jobs, "make", train)
    (row,) = bench.reproduce().rows
    assert (row.status, row.runs_trained, row.runs_reused) == ("executed", 1, 1)
