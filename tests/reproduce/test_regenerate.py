"""Headless regeneration: what is refused beforehand, what goes on after a failure, what is not done twice."""

import concurrent.futures
import contextlib
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from nclib import data
from nclib.config import ConfigError, DataConfig, ModelConfig, RunConfig, run_id
from nclib.engine import jobs, profiles, runs
from nclib.engine.store import default_store
from nclib.papers import experiments
from nclib.publish.artefacts import save_table
from nclib.reproduce import regenerate
from nclib.system import other_parameters, paths

PARAMETERS = """\
profile: str = "quick"  # the size
epochs: int = 0  # 0 = the profile's
lr: float = 0.0
dataset: str = ""  # "" = the profile's
"""


def write_notebook(name: str, *cells: str, parameters: str | None = PARAMETERS) -> Path:
    """A notebook in the test's project, its parameters cell first."""
    sources = ([(parameters, ["parameters"])] if parameters is not None else []) + [(cell, []) for cell in cells]
    content = {
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell-{number}",
                "metadata": {"tags": tags} if tags else {},
                "source": text.splitlines(keepends=True),
                "outputs": [],
                "execution_count": None,
            }
            for number, (text, tags) in enumerate(sources)
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = paths.notebooks() / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project, which a test fills with notebooks."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("NCLIB_ROOT", str(folder))
    return folder


class Bench:
    """Counts trainings and executions, both done here and in no time."""

    def __init__(self):
        self.trained: Counter[str] = Counter()
        self.executed: Counter[str] = Counter()
        self.broken: dict[str, Exception] = {}  # run id -> what its training raises
        self.environment: dict[str, str] = {}
        self.said: list[str] = []

    def train(self, config, store, device, progress):
        run = run_id(config)
        self.trained[run] += 1
        if run in self.broken:
            raise self.broken[run]
        rows = [(1, "test", "accuracy_balanced", 0.5 + self.trained[run] / 100)]
        history = pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])
        store.save(config, {"history": history}, {}, {}, {})

    def execute(self, name, values, profile):
        """Run the cells of a notebook in this process, with the outcome `regenerate.execute` would give."""
        self.executed[name] += 1
        self.environment = dict(os.environ)
        started, namespace, error, before = time.time(), {}, "", regenerate._sidecars(profile)
        notebook = json.loads(regenerate.source(name).read_text(encoding="utf-8"))
        for number, cell in enumerate(notebook["cells"], 1):
            try:
                exec("".join(cell["source"]), namespace)
            except Exception as fault:
                error = f"{type(fault).__name__}: {fault} (cell {number})"
                break
            if "parameters" in cell["metadata"].get("tags", []):
                namespace |= values
        written = regenerate.source(name).with_suffix(".written")
        written.write_text(json.dumps(notebook), encoding="utf-8")
        digest = regenerate._publish(written, name, profile, failed=bool(error))
        files = {} if error else regenerate._files(name, profile, before, digest)
        return regenerate.Execution(time.time() - started, error, files)

    def reproduce(self, *names, **options):
        return regenerate.reproduce(names, **({"profile": "smoke", "workers": 1} | options), echo=self.said.append)


@contextlib.contextmanager
def _here(*_):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool


def _runs(seeds, dataset="digits"):
    def make(profile):
        images = DataConfig(dataset=profile.dataset or dataset, n_max=profile.images_per_class)
        return [RunConfig(data=images, model=ModelConfig(width=profile.width), seed=seed) for seed in seeds]

    return make


@pytest.fixture
def bench(project, monkeypatch):
    bench = Bench()
    monkeypatch.setattr(jobs, "make", bench.train)
    monkeypatch.setattr(regenerate.Place, "executor", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(regenerate, "_notebook_pool", _here)
    monkeypatch.setattr(regenerate, "execute", bench.execute)
    wanted = {"neural_collapse/fig1": _runs([0, 1]), "neural_collapse/fig2": _runs([1, 2])}
    monkeypatch.setattr(experiments, "EXPERIMENTS", wanted)
    return bench


DRAW = """
import pandas as pd
from nclib.publish.artefacts import save_table
save_table(pd.DataFrame({{"x": [1.0]}}), "{name}", f"profile {{profile}}", [], profile)
"""


def figure(name, *more):
    return write_notebook(name, DRAW.format(name=name), *more)


def run_of(seed):
    return run_id(_runs([seed])(profiles.get_profile("smoke"))[0])


# --- names and parameters ---------------------------------------------------------------------------------------


@pytest.fixture
def many(project):
    names = ["neural_collapse/fig10", "neural_collapse/fig2", "walkthrough/01_start", "kernels/fig2"]
    for name in names:
        write_notebook(name)
    write_notebook("index")
    write_notebook("neural_collapse/.ipynb_checkpoints/fig2-checkpoint")
    return names


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ([], ["neural_collapse/fig2", "neural_collapse/fig10", "kernels/fig2", "walkthrough/01_start"]),
        (["fig2"], ["neural_collapse/fig2"]),
        (["kernels/fig2"], ["kernels/fig2"]),
        (["neural_collapse"], ["neural_collapse/fig2", "neural_collapse/fig10"]),
        (["neural_collapse/"], ["neural_collapse/fig2", "neural_collapse/fig10"]),
        (["fig10", "neural_collapse"], ["neural_collapse/fig10", "neural_collapse/fig2"]),
        (["notebooks/kernels/fig2.ipynb"], ["kernels/fig2"]),
    ],
)
def test_names_are_understood(many, typed, meant):
    assert regenerate.select(typed) == meant


@pytest.mark.parametrize(
    ("typed", "near"),
    [("fgi2", "'fig2'"), ("neural_colapse", "'neural_collapse'"), ("kernels/fig3", "'kernels/fig2'"), ("index", "")],
)
def test_an_unknown_name_is_refused_with_the_nearest(many, typed, near):
    with pytest.raises(ConfigError, match=f"unknown notebook '{typed}'.*{near}"):
        regenerate.select([typed])


def test_a_project_without_notebooks_says_so(project):
    with pytest.raises(ConfigError, match="no notebook"):
        regenerate.reproduce()


def test_parameters_are_read_with_type_default_and_help(project):
    path = write_notebook(
        "a/b", parameters='n: int = -3  # how many\n\n# a remark\nlr: float = 1\nok: bool = True\ns: str = "#"\n'
    )
    found = regenerate.parameters(path)
    assert [(p.name, p.type, p.default, p.help) for p in found.values()] == [
        ("n", int, -3, "how many"),
        ("lr", float, 1, ""),
        ("ok", bool, True, ""),
        ("s", str, "#", ""),
    ]


def test_a_notebook_without_parameters_has_none(project):
    assert regenerate.parameters(write_notebook("a/b", "x = 1", parameters=None)) == {}


@pytest.mark.parametrize(
    "line",
    [
        "n = 3",
        "n: int = 2 * width",
        "n: int = 2; m: int = 3",
        "n: int",
        "n: int = 1.5",
        "n: int = True",
        "n: list = []",
        "n: int | None = None",
        "n: int = (\n    3)",
        "import os",
        "width: int = 4",
    ],
)
def test_anything_but_a_plain_literal_is_refused_with_its_line(project, line):
    path = write_notebook("a/b", parameters=f"width: int = 2  # first\n{line}\n")
    with pytest.raises(ConfigError, match=r"b\.ipynb: line 2 of the parameters cell"):
        regenerate.parameters(path)


def test_a_cell_that_is_no_python_and_a_file_that_is_no_notebook_are_refused(project):
    with pytest.raises(ConfigError, match="line 1 of the parameters cell is no Python"):
        regenerate.parameters(write_notebook("a/b", parameters="n: int ="))
    path = write_notebook("a/c")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"c\.ipynb is no notebook"):
        regenerate.parameters(path)


def test_values_are_typed_and_reach_only_where_they_are_declared(project):
    write_notebook("a/one", parameters='n: int = 0\nlr: float = 0.0\nname: str = ""\nok: bool = False\n')
    write_notebook("a/two", parameters="n: float = 0.0\n")
    values = regenerate.parse_overrides(["n=3", "lr=1e-3", "name=7", "ok=true"], ["a/one", "a/two"])
    assert values == {"a/one": {"n": 3, "lr": 1e-3, "name": "7", "ok": True}, "a/two": {"n": 3.0}}
    assert type(values["a/one"]["n"]) is int and type(values["a/two"]["n"]) is float


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch=3", "unknown parameter 'epoch'. Did you mean 'epochs'"),
        ("epochs=three", "epochs of a/one must be int, got 'three'"),
        ("epochs=3.0", "must be int"),
        ("epochs=true", "must be int"),
        ("epochs=", "must be int"),
        ("epochs=[1", "must be int"),
        ("lr=fast", "must be float"),
        ("epochs", "no assignment"),
        ("=3", "no assignment"),
        ("profile=lite", "use the option --profile"),
    ],
)
def test_a_bad_value_is_refused(project, text, message):
    write_notebook("a/one")
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        regenerate.parse_overrides([text], ["a/one"])


def test_a_value_given_twice_is_refused(project):
    write_notebook("a/one")
    with pytest.raises(ConfigError, match="given twice"):
        regenerate.parse_overrides(["epochs=1", "epochs=2"], ["a/one"])


# --- before anything starts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overrides": ["epoch=3"]}, "Did you mean 'epochs'"),
        ({"overrides": ["epochs=x"]}, "must be int"),
        ({"overrides": ["dataset=digit"]}, "Did you mean 'digits'"),
        ({"profile": "smok"}, "Did you mean 'smoke'"),
        ({"train": "nver"}, "Did you mean 'never'"),
        ({"workers": 0}, "at least 1"),
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
    monkeypatch.setitem(experiments.EXPERIMENTS, "neural_collapse/fig1", lambda profile: _runs([0])(narrow))
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


# --- a whole call -----------------------------------------------------------------------------------------------


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


def test_a_second_call_trains_and_executes_nothing(bench):
    figure("neural_collapse/fig1")
    first, second = bench.reproduce(), bench.reproduce()
    assert bench.executed["neural_collapse/fig1"] == 1
    assert sum(bench.trained.values()) == 2
    (row,) = second.rows
    assert (row.status, row.runs_trained, row.runs_reused) == ("unchanged", 0, 2)
    assert sorted(row.files) == sorted(first.rows[0].files)
    assert bench.reproduce(force=True).rows[0].status == "executed"


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

    regenerate.execute = interrupted  # undone with that of `bench`
    bench.reproduce(overrides=["epochs=1"])
    assert bench.reproduce(overrides=["epochs=1"]).rows[0].status == "unchanged"
    assert seen(("epochs", 1)) == 1 and seen(("epochs", 2)) == 2


def test_the_stamp_speaks_of_what_the_notebook_wrote_even_when_somebody_else_writes_at_once(bench):
    figure("neural_collapse/fig1")
    execute, table = bench.execute, paths.results("smoke") / "tables/neural_collapse/fig1.csv"

    def disturbed(*arguments):
        done = execute(*arguments)
        table.write_text("x\n2.0\n")
        return done

    regenerate.execute = disturbed
    bench.reproduce()
    regenerate.execute = execute
    assert bench.reproduce().rows[0].status == "executed"
    assert table.read_text() == "x\n1.0\n"


def test_a_second_client_waits_for_the_one_that_draws_and_says_so(bench):
    figure("neural_collapse/fig1")
    drawing, waiting = threading.Event(), threading.Event()
    execute = bench.execute

    def slow(*arguments):
        drawing.set()
        assert waiting.wait(60)
        return execute(*arguments)

    regenerate.execute = slow
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        first = other.submit(bench.reproduce)
        assert drawing.wait(60)
        said = []

        def hear(line):
            said.append(line)
            if "waiting for it" in line:
                waiting.set()

        second = regenerate.reproduce(profile="smoke", workers=1, echo=hear)
        assert first.result().rows[0].status == "executed"
    assert second.rows[0].status == "unchanged" and bench.executed["neural_collapse/fig1"] == 1
    assert any("at work on the drawing of" in line for line in said)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, ""),
        ({"seeds": 5, "epochs": 3}, "epochs=3,seeds=5"),
        ({"lr": 1e-05}, "lr=1e-05"),
        ({"ratio": 3.0}, "ratio=3"),
        ({"ratio": 3}, "ratio=3"),
    ],
)
def test_folders_of_other_parameters_are_named_plainly(values, name):
    assert other_parameters.folder_name(values) == name


def test_folders_of_parameters_that_cannot_stand_in_a_name_differ_all_the_same():
    hard = ["a/b", "a:b", "../../x", "A", "a", "größe", "x" * 300, "x" * 301, "-", "a\nb"]
    names = {other_parameters.folder_name({"dataset": value}) for value in hard}
    assert len({name.casefold() for name in names}) == len(hard)
    for name in names:
        with other_parameters.results_with(name):
            assert paths.results("smoke").parent == paths.results() / "smoke" / "with"
            assert paths.results("smoke").name == name and len(name) < 130


def test_a_damaged_run_is_trained_again_and_drawn_again(bench):
    figure("neural_collapse/fig1")
    bench.reproduce()
    (paths.runs() / run_of(1) / "history.csv").write_text("epoch,split,metric,value\n")
    with pytest.warns(UserWarning, match="set-aside"):
        (row,) = bench.reproduce().rows
    assert (row.status, row.runs_trained) == ("executed", 1)


def test_a_failed_notebook_is_kept_apart_and_does_not_stop_the_others(bench):
    figure("neural_collapse/fig1", "x = 1", "raise ValueError('too dark')")
    figure("neural_collapse/fig2")
    summary = bench.reproduce()
    assert not summary.ok
    failed, good = summary.rows
    assert (failed.status, good.status) == ("failed", "executed")
    assert failed.message == "ValueError: too dark (cell 4)"
    assert failed.files == ["notebooks/neural_collapse/fig1.failed.ipynb"]
    assert not regenerate.executed("neural_collapse/fig1", "smoke").exists()
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
    monkeypatch.setitem(experiments.EXPERIMENTS, "neural_collapse/fig1", lambda profile: elsewhere)
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


def test_the_summary_on_disk_is_the_table_that_is_said(bench):
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
        assert line.split()[1:5] == [
            row["status"],
            f"{row['seconds']:.1f}",
            str(row["runs_trained"]),
            str(row["runs_reused"]),
        ]
        assert all(file.rsplit(".", 1)[0] in table for file in row["files"])
    assert "failed: neural_collapse/fig1: KeyError: 'x' (cell 3)" in table


def test_files_belong_to_the_notebook_with_the_longest_fitting_name(bench):
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig1_more")
    write_notebook("neural_collapse/fig11")
    before = regenerate._sidecars("smoke")
    for name in ("fig1", "fig1_tsne", "fig1_more", "fig11"):
        save_table(pd.DataFrame({"x": [1]}), f"neural_collapse/{name}", "profile smoke", [], "smoke")

    def tables_of(name):
        return {Path(file).stem for file in regenerate._files(name, "smoke", before, "") if file.startswith("tables")}

    assert tables_of("neural_collapse/fig1") == {"fig1", "fig1_tsne"}
    assert tables_of("neural_collapse/fig1_more") == {"fig1_more"}
    now = regenerate._sidecars("smoke")
    assert [*regenerate._files("neural_collapse/fig1", "smoke", now, "")] == ["notebooks/neural_collapse/fig1.ipynb"]


def test_a_clock_that_is_set_back_hides_no_file(bench):
    """Before a notebook is executed and again while it is."""
    figure("neural_collapse/fig1")
    write_notebook("neural_collapse/fig2")
    bench.reproduce("fig1")
    sidecar = paths.results("smoke") / "tables" / "neural_collapse" / "fig1.json"
    back = "import os, pathlib\nfrom nclib.system import paths\n"
    back += "for file in paths.results('smoke').rglob('fig1.*'): os.utime(file, (1, 1))"
    figure("neural_collapse/fig1", back)
    rows = bench.reproduce("fig1").rows
    assert sidecar.stat().st_mtime == 1
    assert "tables/neural_collapse/fig1.csv" in rows[0].files and "tables/neural_collapse/fig1.json" in rows[0].files


def test_processes_inherit_absolute_folders_and_one_thread(bench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCLIB_RESULTS", "elsewhere")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    figure("neural_collapse/fig1")
    bench.reproduce()
    assert bench.environment["NCLIB_RESULTS"] == str(tmp_path / "elsewhere")
    assert bench.environment["OMP_NUM_THREADS"] == "1"
    assert os.environ["NCLIB_RESULTS"] == "elsewhere" and "OMP_NUM_THREADS" not in os.environ


def test_an_account_without_a_home_has_one_for_its_notebooks(bench, monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(regenerate.Path, "home", home)
    monkeypatch.delenv("HOME", raising=False)
    figure("neural_collapse/fig1")
    bench.reproduce()
    assert bench.environment["HOME"] == str(paths.results() / ".home") and "HOME" not in os.environ


# --- being stopped ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("number", regenerate._ENDINGS)
def test_a_signal_stops_like_ctrl_c_and_the_next_call_goes_on(bench, number, request, monkeypatch):
    figure("neural_collapse/fig1")
    request.addfinalizer(functools.partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))  # not nohup's
    train, handler = bench.train, signal.getsignal(number)

    def stopped(config, store, device, progress):
        if config.seed == 1:
            os.kill(os.getpid(), number)
            time.sleep(5)
        train(config, store, device, progress)

    monkeypatch.setattr(jobs, "make", stopped)
    with pytest.raises(regenerate.Terminated):
        bench.reproduce()
    assert signal.getsignal(number) == handler
    assert not (paths.results("smoke") / "summary.json").exists() and not bench.executed
    monkeypatch.setattr(jobs, "make", train)
    (row,) = bench.reproduce().rows
    assert (row.status, row.runs_trained, row.runs_reused) == ("executed", 1, 1)


CLOSED_TERMINAL = """
import multiprocessing, signal, time
from nclib.reproduce import regenerate
from nclib.system import processes

processes.keep_tracker()
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
with regenerate.terminable():
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    print(f"sem.{semaphore._semlock.name[1:]}", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="semaphores are files there")
def test_a_closed_terminal_leaves_no_semaphore():
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    client = subprocess.Popen([sys.executable, "-c", CLOSED_TERMINAL], **options)
    semaphore = Path("/dev/shm", client.stdout.readline().strip())
    assert semaphore.is_file()
    os.killpg(client.pid, signal.SIGHUP)
    _, said = client.communicate(timeout=30)
    assert "Terminated" in said and "resource_tracker" not in said and not semaphore.exists()


def test_nohup_holds():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with regenerate.terminable():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_among_the_notebooks_leaves_no_trace_of_the_unfinished_one(bench, monkeypatch):
    figure("neural_collapse/fig1")

    def interrupted(name, values, profile):
        target = regenerate._failed(name, profile)
        target.parent.mkdir(parents=True)
        target.write_text("a kernel that was stopped looks like one that died")
        raise KeyboardInterrupt

    monkeypatch.setattr(regenerate, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.reproduce()
    assert not list(paths.results("smoke").rglob("*.ipynb"))


def test_children_are_ended_and_others_left_alone():
    context = multiprocessing.get_context("spawn")
    mine, other = (context.Process(target=time.sleep, args=(120,), daemon=True) for _ in range(2))
    other.start()
    before = set(multiprocessing.active_children())
    mine.start()
    try:
        regenerate._end_children(before)
        assert not mine.is_alive() and other.is_alive()
    finally:
        other.kill()
        other.join()


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys):
    said = []
    with regenerate.progress_bar("training", said.append) as tell:
        tell(1, 10, "at once")
    assert said == []
    tell = regenerate._lines("training", said.append, every=0.0)
    tell(5, 10, "2 of 4 runs")
    assert said == ["training: 50 % (2 of 4 runs)"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such sockets")
def test_sockets_lie_in_a_folder_whose_name_has_room_for_them_in_bytes():
    assert "KernelManager" in regenerate._transport("/tmp/" + "x" * 60)
    assert "KernelManager" not in regenerate._transport("/tmp/" + "🎉" * 25)


# --- for real -----------------------------------------------------------------------------------------------------


def test_two_notebooks_run_side_by_side_in_kernels_of_their_own(project, monkeypatch):
    monkeypatch.setattr(experiments, "EXPERIMENTS", {})
    look = "from pathlib import Path\nimport os\nprint(epochs, end='!')\nprint(profile, Path.cwd().name)"
    threads = "assert os.environ['OMP_NUM_THREADS'] == '1'\nimport nclib.system.paths"
    good = write_notebook("walkthrough/01", look, threads)
    write_notebook("walkthrough/02", look, "raise ArithmeticError('on purpose')")
    before = good.read_bytes()
    summary = regenerate.reproduce(profile="smoke", overrides=["epochs=7"], workers=2, echo=lambda line: None)
    assert [row.status for row in summary.rows] == ["executed", "failed"]
    assert summary.rows[1].message == "ArithmeticError: on purpose (cell 4)"  # the injected cell is the second
    for row in summary.rows:
        kept = json.loads((paths.results("smoke") / "with" / "epochs=7" / row.files[0]).read_text(encoding="utf-8"))
        printed = [output["text"] for cell in kept["cells"] for output in cell.get("outputs", []) if "text" in output]
        assert ["".join(text) for text in printed] == ["7!smoke walkthrough\n"]
        assert str(project) not in json.dumps(kept["metadata"])
    assert good.read_bytes() == before
    assert multiprocessing.active_children() == []


def test_a_summary_is_executed_last_and_again_when_a_table_it_sums_up_changed(bench, monkeypatch):
    order = []
    execute = bench.execute
    monkeypatch.setattr(regenerate, "execute", lambda name, *rest: order.append(name) or execute(name, *rest))
    figure("neural_collapse/scorecard")
    figure("neural_collapse/table9")
    bench.reproduce()
    assert order == ["neural_collapse/table9", "neural_collapse/scorecard"]
    assert {row.status for row in bench.reproduce().rows} == {"unchanged"}
    write_notebook("neural_collapse/table9", DRAW.format(name="neural_collapse/table9").replace("1.0", "2.0"))
    assert {row.status for row in bench.reproduce().rows} == {"executed"}


def test_a_changed_certificate_redraws_the_notebooks(monkeypatch):
    before, read = regenerate._library(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == "imbalanced.py"))
    assert regenerate._library() != before
