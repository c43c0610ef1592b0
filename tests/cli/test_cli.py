"""The command line: what it refuses, what it prints, how it ends."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from nclib import data, measuring, models
from nclib.cli import commands as cli
from nclib.config import ConfigError, RunConfig, run_id
from nclib.engine import jobs, profiles, runs
from nclib.engine.reference import reference_store
from nclib.engine.store import default_store
from nclib.metrics import nc_report
from nclib.papers import experiments
from nclib.reproduce import regenerate
from nclib.system import paths


def nclib(*arguments, typed=None):
    """Run a command; errors that are no messages pass through."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=typed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    (folder / "notebooks/neural_collapse").mkdir(parents=True)
    monkeypatch.setenv("NCLIB_ROOT", str(folder))
    return folder


HISTORY = [
    (1, "test", "accuracy_balanced", 0.5),
    (2, "test", "accuracy_balanced", 0.8),
    (2, "train", "accuracy_balanced", 0.9),
    (2, "train", "loss", 0.5),
    (2, "train", "nc1_trace_ratio", 0.4),
    (2, "train", "nc2_equinorm", 0.3),
]


@pytest.fixture
def trained(project, monkeypatch):
    """Ids of what gets trained; training itself takes no time."""
    ids = []

    def train(config, store, device, progress):
        ids.append(run_id(config))
        table = pd.DataFrame(HISTORY, columns=["epoch", "split", "metric", "value"])
        store.save(config, {"history": table}, {}, {}, {"commit": "abc"})

    monkeypatch.setattr(jobs, "make", train)
    return ids


# --- asking ---------------------------------------------------------------------------------------------------


def test_help_needs_nothing_heavy():
    code = (
        "import sys, nclib.cli.commands as cli\n"
        "sys.argv = ['nclib', '--help']\n"
        "try:\n    cli.main()\n"
        "finally:\n    assert not {'torch', 'pandas', 'numpy', 'matplotlib', 'papermill'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    commands = "reproduce", "report", "train", "measure", "runs", "data", "doctor", "verify", "certify"
    assert all(command in done.stdout for command in commands)


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["reprodcue"], "'reproduce'"),
        (["runs", "lst"], "'list'"),
        (["reproduce", "--proflie", "smoke"], "--profile"),
        (["reproduce", "--profile", "smok"], "'smoke'"),
        (["verify", "--profile", "quik"], "'quick'"),
        (["train", "--modle", "deq"], "--model"),
        (["train", "--model", "dqe"], "'deq'"),
        (["train", "--recipe", "papr"], "'paper'"),
        (["train", "--dataset", "digit"], "'digits'"),
        (["train", "-s", "model.widht=4"], "'width'"),
        (["train", "-s", "modle.width=4"], "'model'"),
        (["data", "check", "cifar"], "'cifar10'"),
    ],
)
def test_a_misspelt_word_is_refused_with_the_nearest(trained, arguments, near):
    result = nclib(*arguments)
    assert result.exit_code == 2
    assert near in result.output
    assert not trained and not paths.results().exists()


def test_a_misspelt_parameter_stops_before_anything_starts(trained, project):
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": "epochs: int = 0", "outputs": []}
    (project / "notebooks/neural_collapse/fig3.ipynb").write_text(json.dumps({"cells": [cell]}))
    result = nclib("reproduce", "fig3", "-p", "epoch=3", "--profile", "smoke")
    assert (result.exit_code, trained) == (2, [])
    assert "unknown parameter 'epoch'. Did you mean 'epochs'?" in result.output


def test_the_exit_code_says_whether_every_notebook_is_there(monkeypatch):
    asked = []

    def reproduce(*arguments):
        asked.append(arguments)
        row = regenerate.Row("a/b", "failed" if len(asked) > 1 else "executed", 1.0, 0, 0)
        return regenerate.Summary("smoke", [], [row], {}, 1.0)

    monkeypatch.setattr(regenerate, "reproduce", reproduce)
    command = ["reproduce", "fig1", "fig2", "--profile", "lite", "-p", "a=1", "-p", "b=2", "--workers", 3, "--force"]
    assert nclib(*command, "--no-report").exit_code == 0
    assert asked[0] == (["fig1", "fig2"], "lite", ["a=1", "b=2"], 3, "missing", True, None, None, None, False)
    assert nclib("reproduce", "--no-report").exit_code == 1


# --- ending ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (regenerate.Terminated(), 143, "stopped by SIGTERM"),
        (regenerate.Terminated(signal.SIGHUP), 129, "stopped by SIGHUP"),
        (ConfigError("wrong word"), 2, "wrong word"),
        (data.DataError("no images"), 2, "no images"),
        (runs.RunsFailed({"run-1": "diverged"}), 1, "run-1: diverged"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left"),
    ],
)
def test_each_expected_end_is_one_message_and_a_code(monkeypatch, error, code, said):
    def stop(*_, **__):
        raise error

    monkeypatch.setattr(data, "fetch", stop)
    result = nclib("data", "fetch", "digits")
    assert result.exit_code == code
    assert said in result.output and "Traceback" not in result.output
    assert ("type the same again" in result.output) == (code > 2)


@pytest.mark.parametrize("bug", [ValueError("shapes"), RuntimeError("a bug"), TypeError("a bug")])
def test_a_bug_keeps_its_traceback(monkeypatch, bug):
    def stop(name):
        raise bug

    monkeypatch.setattr(data, "fetch", stop)
    with pytest.raises(type(bug)):
        nclib("data", "fetch", "digits")


# --- train ----------------------------------------------------------------------------------------------------


def test_options_become_a_configuration():
    given = {"data.dataset": "digits", "data.num_majority": 3, "data.ratio": 10.0, "model.kind": "deq", "seed": 2}
    run = cli.build_config(None, "paper", given, ["model.solver.tol=1e-4", "train.epochs=5"])
    assert (run.data.imbalance, run.data.num_majority, run.data.ratio, run.seed) == ("step", 3, 10.0, 2)
    assert (run.train.lr, run.train.schedule, run.train.epochs) == (1e-4, "constant", 5)
    assert run.model.solver.tol == 1e-4
    assert cli.build_config(None, None, {}, []) == RunConfig()


def test_a_recipe_that_fixes_the_augmentation_sets_it():
    assert cli.build_config(None, "collapse", {}, []).data.augment == "none"
    assert cli.build_config(None, "collapse", {}, ["data.augment=dataset"]).data.augment == "dataset"
    assert cli.build_config(None, "workable", {}, []).data.augment == "dataset"


def test_a_stored_configuration_can_be_changed_and_trained_again(tmp_path):
    first = cli.build_config(None, None, {"data.num_majority": 3, "data.ratio": 10.0, "model.kind": "deq"}, [])
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"schema": 1, "config": first.canonical()}))
    assert run_id(cli.build_config(file, None, {}, [])) == run_id(first)
    assert cli.build_config(file, None, {"seed": 1, "data.ratio": 5.0}, []).data.ratio == 5.0
    for text, message in (("{", "not valid JSON"), ("[]", "no JSON object")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            cli.build_config(file, None, {}, [])


@pytest.mark.parametrize("text", ["model.width", "=3", "seed.first=1"])
def test_a_setting_that_is_none_is_refused(text):
    with pytest.raises(ConfigError):
        cli.build_config(None, None, {"seed": 1}, [text])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-max", 5000], "5000"),
        (["--K_A", 12, "--R", 10], "got 12"),
        (["--K_A", 3], "needs ratio"),
        (["--width", 1], "width=2 or more"),
        (["--dataset", "folder:nowhere"], "does not exist"),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_training(trained, arguments, message):
    result = nclib("train", *arguments)
    assert (result.exit_code, trained) == (2, [])
    assert message in result.output


def test_training_prints_id_and_final_metrics_and_happens_once(trained):
    first = nclib("train", "--dataset", "digits", "--width", 2, "--epochs", 2)
    again = nclib("train", "--dataset", "digits", "--width", 2, "--epochs", 2)
    assert len(trained) == 1
    assert f"run {trained[0]}" in first.stdout and "stored already" in again.stdout
    (line,) = [line for line in first.stdout.splitlines() if "accuracy_balanced" in line]
    assert line.split()[1:] == ["0.8", "0.9"]


# --- runs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(trained):
    for seed in (0, 1):
        nclib("train", "--width", 2, "--seed", seed)
    return trained


def test_runs_are_listed_finished_and_unfinished(stored):
    unfinished = paths.runs() / "digits-balanced-deq-s0-0123.partial"
    unfinished.mkdir()
    (unfinished / "progress.json").write_text('{"epoch": 1, "epochs": 4}')
    lines = nclib("runs", "list").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == [*sorted(stored), "digits-balanced-deq-s0-0123"]
    assert "25 %" in lines[-1]
    assert len(nclib("runs", "list", "s1").stdout.splitlines()) == 1


def test_no_runs_are_said_to_be_none(project):
    result = nclib("runs", "list")
    assert result.exit_code == 0 and "no finished runs" in result.output


def test_a_beginning_that_fits_one_run_is_enough(stored):
    result = nclib("runs", "show", stored[1][:-6])
    assert (
        f"run {stored[1]}" in result.stdout and '"commit": "abc"' in result.stdout and "nc2_equinorm" in result.stdout
    )
    assert '"num_majority"' not in result.stdout  # what does not apply is left out


@pytest.mark.parametrize(("typed", "message"), [("digits", "fits 2 runs"), ("mnist", "unknown run 'mnist'")])
def test_a_beginning_that_fits_several_or_none_is_refused(stored, typed, message):
    for command in ("show", "remove"):
        result = nclib("runs", command, typed)
        assert result.exit_code == 2 and message in result.output
    assert default_store().ids() == sorted(stored)


def test_removing_asks_first(stored):
    store = default_store()
    nclib("runs", "remove", stored[0], typed="n\n")
    assert store.has(stored[0])
    nclib("runs", "remove", stored[0], typed="y\n")
    assert store.ids() == [stored[1]]
    nclib("runs", "remove", stored[1], "--yes")
    assert store.ids() == []


def test_removed_is_said_only_of_what_is_gone(stored, tmp_path):
    store = default_store()
    (store.root / stored[0]).rename(tmp_path / "moved")
    (store.root / stored[0]).symlink_to(tmp_path / "moved")
    result = nclib("runs", "remove", stored[0], "--yes")
    assert result.exit_code == 2 and "symbolic link" in result.output and f"removed {stored[0]}" not in result.output
    assert store.has(stored[0])


def test_check_names_what_is_damaged_and_sets_it_aside(stored):
    assert nclib("runs", "check").stdout == "2 of 2 runs are sound\n"
    (default_store().root / stored[0] / "config.json").write_text("junk")
    with pytest.warns(UserWarning, match=f"{stored[0]}.*left out"):
        plan = runs.plan([cli.build_config(None, None, {"model.width": 2, "seed": 5}, [])])
    assert plan["state"].tolist() == ["missing"]
    result = nclib("runs", "check")
    assert result.exit_code == 1 and f"run {stored[0]}: config.json" in result.stdout and "1 of 2" in result.stdout
    assert default_store().ids() == [stored[1]] and nclib("runs", "check").exit_code == 0


def test_runs_behind_a_notebook_are_exported(trained, project, monkeypatch):
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": "seeds: int = 2", "outputs": []}
    (project / "notebooks/neural_collapse/fig9.ipynb").write_text(json.dumps({"cells": [cell]}))

    def make(profile):
        return [cli.build_config(None, None, {"model.width": 2, "seed": seed}, []) for seed in range(profile.seeds)]

    monkeypatch.setattr(experiments, "EXPERIMENTS", {"neural_collapse/fig9": make})
    refused = nclib("runs", "export", "fig9", "--profile", "smoke")
    assert refused.exit_code == 1 and "not trained yet" in refused.output and "--finished" in refused.output
    assert nclib("runs", "export", "fig9", "--profile", "smoke", "--finished").stdout == ""
    runs.ensure_runs(make(profiles.override(profiles.get_profile("smoke"), seeds=2)))
    result = nclib("runs", "export", "fig9", "--profile", "smoke")
    assert sorted(result.stdout.split()) == sorted(trained) == reference_store().ids()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--n-max", 99999999999999999999999, "DataConfig.n_max: Input should be less than"),
        ("--width", 99999999999999999999, "ModelConfig.width: Input should be less than"),
        ("--device", "meta", "is none that runs are trained on"),
        ("--device", "xpu", "is none that runs are trained on"),
    ],
)
def test_absurd_values_are_refused_in_one_message(option, value, says):
    result = nclib("train", "--width", 2, "--epochs", 1, option, value)
    assert result.exit_code == 2 and says in result.output and default_store().ids() == []


def test_a_network_that_does_not_fit_into_memory_is_refused_in_one_message(monkeypatch):
    def allocate(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 360000000000 bytes.")

    monkeypatch.setattr(models, "build_model", allocate)
    result = nclib("train", "--width", 100000, "--epochs", 1)
    assert result.exit_code == 2 and "width 100000 does not fit into the memory" in result.output


# --- closed streams -------------------------------------------------------------------------------------------


def closed(redirection, *arguments):
    """A command in a process whose streams are closed by the shell."""
    words = shlex.join([sys.executable, "-m", "nclib", *map(str, arguments)])
    return subprocess.run(["sh", "-c", f"exec {words} {redirection}"], capture_output=True, text=True, timeout=120)


needs_sh = pytest.mark.skipif(os.name != "posix", reason="streams as POSIX has them")


@needs_sh
@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_with_closed_streams_the_work_is_done(redirection):
    done = closed(redirection, "train", "--epochs", 1, "--width", 2, "--n-max", 6)
    assert done.returncode == 0, done
    assert len(default_store().ids()) == 1 and "Traceback" not in done.stdout + done.stderr
    (run,) = default_store().ids()
    assert default_store().is_sound(run)


@needs_sh
def test_a_question_that_nobody_can_answer_changes_nothing(stored):
    done = closed("<&-", "runs", "remove", stored[0])
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert default_store().has(stored[0])


def test_progress_is_no_bar_where_stderr_is_closed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    with regenerate.progress_bar("training") as tell:
        tell(1, 2, "one")


# --- data and doctor ------------------------------------------------------------------------------------------


def test_data_is_fetched_checked_and_described(monkeypatch):
    assert "digits: complete" in nclib("data", "fetch", "digits").stdout
    assert nclib("data", "check", "digits").exit_code == 0
    described = nclib("data", "describe", "digits").stdout
    assert "1397 images, 134 to 143 in each of 10 classes" in described and "400 images, 40 in each" in described
    monkeypatch.setattr(data, "check", lambda name: {"a": "ok", "b": "damaged"})
    result = nclib("data", "check", "digits")
    assert result.exit_code == 1 and "damaged  b" in result.stdout


def test_the_doctor_tells_what_there_is_and_what_it_costs(project):
    result = nclib("doctor")
    assert result.exit_code == 0
    assert torch.__version__.split("+")[0] in result.stdout and "this Python" in result.stdout
    assert str(project) in result.stdout and "embedded in scikit-learn" in result.stdout
    for profile in profiles.PROFILES:
        assert f"  {profile} " in result.stdout


# --- measuring ------------------------------------------------------------------------------------------------

OWN_NETWORK = """
import torch
def load():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    return net, [(torch.randn(60, 5), torch.arange(60) % 3)]
def wrong():
    return 1
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    name = f"own_network_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN_NETWORK)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_measure_prints_and_writes_the_table_of_a_network(own):
    before = list(sys.path)
    done = nclib("measure", f"{own}:load", "--csv", "table.csv")
    assert done.exit_code == 0 and sys.path == before
    header = done.stdout.splitlines()[0].split()
    assert header == ["metric", "1", "2.input"]
    table = pd.read_csv("table.csv", dtype={"layer": str})
    assert list(table) == ["layer", "metric", "value"] and set(table["layer"]) == {"1", "2.input"}
    row = next(line for line in done.stdout.splitlines() if line.strip().startswith("nc3_alignment"))
    assert row.split()[1] == "–"
    classes = nclib("measure", f"{own}:load", "--layer", "0", "--per-class", "--csv", "table.csv")
    assert classes.exit_code == 0 and classes.stdout.splitlines()[0].split() == ["metric", "class", "0"]
    assert set(pd.read_csv("table.csv")["class"].dropna()) == {0, 1, 2}


def test_measure_reads_arrays(tmp_path):
    rng = np.random.default_rng(0)
    h, labels, w = rng.normal(size=(60, 5)), np.arange(60) % 3, rng.normal(size=(3, 5))
    np.savez(tmp_path / "features.npz", h=h, labels=labels, logits=h @ w.T, w=w)
    done = nclib("measure", tmp_path / "features.npz", "--csv", tmp_path / "table.csv")
    assert done.exit_code == 0 and "nc4_ncc_mismatch" in done.stdout
    got = pd.read_csv(tmp_path / "table.csv").set_index("metric")["value"]
    report = nc_report(h, labels, h @ w.T, w)
    assert {key: got[key] for key in report} == pytest.approx(report, rel=1e-9)
    np.savez(tmp_path / "few.npz", h=h, labels=labels)
    assert "nc3_alignment" not in nclib("measure", tmp_path / "few.npz").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["own"], "neither MODULE:FUNCTION"),
        (["own:"], "neither MODULE:FUNCTION"),
        (["no_such_module_anywhere:load"], "there is no module 'no_such_module_anywhere'"),
        (["OWN:laod"], "has no function 'laod'"),
        (["OWN:wrong"], r"must return (model, loader), got int"),
        (["OWN:load", "--layer", "7"], "no module '7'"),
        (["OWN:load", "--pool", "max"], "pool must be 'mean', 'flatten'"),
        (["text.npz"], "text.npz is not an .npz file"),
        (["objects.npz"], "objects.npz cannot be read"),
        (["strange.npz"], "must hold h and labels, and may hold logits and w; it holds 'h', 'x'"),
        (["short.npz"], "labels must have shape (6,)"),
        (["short.npz", "--per-class"], "a file holds one layer"),
    ],
)
def test_measure_refuses_by_a_sentence(own, arguments, message):
    h = np.ones((6, 2))
    with open("text.npz", "w") as file:
        file.write("h, labels")
    np.savez("objects.npz", h=np.array([{}], dtype=object), labels=np.arange(6))
    np.savez("strange.npz", h=h, x=h)
    np.savez("short.npz", h=h, labels=np.arange(5))
    done = nclib("measure", *[part.replace("OWN", own) for part in arguments])
    assert done.exit_code == 2
    assert message in done.stderr


def test_measure_unpacks_no_more_than_it_may(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, h=np.zeros((1000, 1000)), labels=np.arange(1000))
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"take 0\.0 GiB, more than the 0\.0 GiB allowed"):
        measuring._arrays(str(path), 10**6)
