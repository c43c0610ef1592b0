"""The command line: what it refuses, what it hands on, how it ends."""

import errno
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from command import as_typed, nclib
from reproduction import figure, run_of, write_notebook

from nclib import cli, data, paths, runs, site, training
from nclib.config import ConfigError, run_id
from nclib.metrics import nc_report
from nclib.profiles import experiment
from nclib.store import reference_store

FIG1 = "neural_collapse/fig1"
COMMANDS = ("reproduce", "report", "train", "verify", "measure", "certify", "runs", "data")


# --- how it begins and ends -----------------------------------------------------------------------


def test_help_names_every_command_and_loads_nothing_heavy():
    code = (
        "import sys, nclib.cli as cli\n"
        "sys.argv = ['nclib', '--help']\n"
        "try:\n    cli.main()\n"
        "finally:\n"
        "    heavy = {'torch', 'pandas', 'numpy', 'matplotlib', 'papermill'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


def test_python_m_nclib_is_the_command_in_any_locale():
    """Also where its locale lacks the letters of what it prints, or is not installed."""
    for variables in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "de_DE.UTF-8", "LANG": "xx"}):
        command = [sys.executable, "-m", "nclib", "certify", "lemma_b1"]
        environment = os.environ | variables
        done = subprocess.run(command, capture_output=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        assert b"1 of 1 certificates checked" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["reprodcue"], "'reproduce'"),
        (["reproduce", "--profile", "smok"], "'smoke'"),
        (["train", "--model", "dqe"], "'deq'"),
        (["train", "--dataset", "digit"], "'digits'"),
        (["data", "fetch", "cifar"], "'cifar10'"),
    ],
)
def test_a_misspelt_word_is_refused_with_the_nearest(bench, arguments, nearest):
    result = nclib(*arguments)
    assert result.exit_code == 2 and nearest in result.output
    assert not bench.trained and not paths.results().exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (ConfigError("wrong word"), 2),
        (data.DataError("no images"), 2),
        (runs.RunsFailed({"run-1": "diverged"}), 1),
        (training.TrainingDiverged("lower lr"), 1),
        (site.ReportError("no Sphinx"), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
    ],
)
def test_each_expected_end_is_one_message_and_a_code(monkeypatch, error, code):
    def stop(name):
        raise error

    monkeypatch.setattr(data, "fetch", stop)
    result = nclib("data", "fetch", "digits")
    assert result.exit_code == code and "Traceback" not in result.output
    assert str(error) in result.output and "error: " in result.output


def test_a_folder_that_cannot_be_written_has_a_way_out(monkeypatch):
    def stop(name):
        raise PermissionError(errno.EACCES, "Permission denied", "/clone/data")

    monkeypatch.setattr(data, "fetch", stop)
    result = nclib("data", "fetch", "digits")
    assert "Permission denied: '/clone/data'. NCLIB_RESULTS=FOLDER" in result.stderr


@pytest.mark.parametrize("bug", [ValueError("shapes"), RuntimeError("a bug"), TypeError("a bug")])
def test_a_bug_keeps_its_traceback(monkeypatch, bug):
    def stop(name):
        raise bug

    monkeypatch.setattr(data, "fetch", stop)
    with pytest.raises(type(bug)):
        nclib("data", "fetch", "digits")


# --- train ----------------------------------------------------------------------------------------


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
def test_numbers_that_cannot_be_are_refused_before_training(bench, arguments, message):
    result = nclib("train", *arguments)
    assert result.exit_code == 2 and message in result.output and not bench.trained


@pytest.mark.parametrize("name", ["fig3", "table3", "controls"])
def test_training_with_a_profile_makes_the_run_of_a_figure(name):
    """And of no other: the same id, so what is stored is found."""
    for config in experiment(name, "quick", seeds=2):
        words = ["--profile", "quick", "--model", config.model.kind, "--seed", config.seed]
        if config.data.dataset != "digits":
            words += ["--dataset", config.data.dataset]
        if config.data.num_majority:
            words += ["--K_A", config.data.num_majority, "--R", config.data.ratio]
        assert run_id(as_typed(words)) == run_id(config)


def test_training_follows_options_as_a_notebook_its_parameters():
    wanted = experiment("fig3", "quick", dataset="mnist", epochs=3, width=4, seeds=1)[1]
    words = ["--profile", "quick", "--model", "deq", "--dataset", "mnist"]
    assert run_id(as_typed([*words, "--epochs", 3, "--width", 4])) == run_id(wanted)


def test_training_prints_id_and_final_metrics_and_happens_once(bench):
    first = nclib("train", "--dataset", "digits", "--width", 2, "--epochs", 2)
    again = nclib("train", "--dataset", "digits", "--width", 2, "--epochs", 2)
    (run,) = bench.trained
    assert bench.trained[run] == 1 and f"run {run}" in first.stdout
    assert again.stdout == first.stdout
    (line,) = [line for line in first.stdout.splitlines() if "accuracy_balanced" in line]
    assert line.split()[1:] == ["0.51"]


# --- reproduce, runs, data ------------------------------------------------------------------------

QUIET = ("--profile", "smoke", "--workers", 1, "--no-report")


def test_the_exit_code_says_whether_a_notebook_failed(bench):
    figure(FIG1)
    assert nclib("reproduce", "fig1", *QUIET).exit_code == 0
    figure(FIG1, "raise ValueError('too dark')")
    failed = nclib("reproduce", "fig1", *QUIET)
    assert failed.exit_code == 1 and f"{FIG1}: failed: cell 3: ValueError" in failed.stdout


def test_options_reach_the_notebooks(bench):
    figure(FIG1, "assert epochs == 3")
    assert nclib("reproduce", "fig1", *QUIET, "-p", "epochs=3").exit_code == 0
    assert nclib("reproduce", "fig1", *QUIET, "-p", "epochs=4").exit_code == 1
    bench.executed.clear()
    assert nclib("reproduce", "fig1", *QUIET, "-p", "epochs=3").exit_code == 0
    assert not bench.executed
    nclib("reproduce", "fig1", *QUIET, "-p", "epochs=3", "--force")
    assert bench.executed == [FIG1]
    assert FIG1 in nclib("reproduce", "--list").stdout


def test_the_end_says_what_was_made_where_it_is_and_what_is_next(bench):
    figure(FIG1)
    figure("neural_collapse/fig2", "1 / 0")
    lines = nclib("reproduce", *QUIET).stdout.splitlines()[-5:]
    assert lines[0] == "notebooks: 1 executed, 1 failed; 3 runs trained"
    folder = paths.results("smoke")
    assert lines[1] == f"look first at {folder / 'notebooks'}; pictures are in {folder / 'figures'}"
    assert lines[2].startswith("it took 0.") and lines[3].endswith("every equilibrium was found")
    assert lines[4].startswith("next: make lab")


def test_where_no_terminal_is_a_line_is_printed_each_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(cli.time, "monotonic", lambda: now[0])
    with cli._live_line() as update:
        for second in (30, 61, 90, 122):
            now[0] = second
            update(1, 2, f"at {second} s")
    assert capsys.readouterr().out.split("\n")[:2] == ["at 61 s", "at 122 s"]


def test_the_site_is_made_once_and_again_after_a_notebook_was_executed(bench, monkeypatch):
    made = []

    def build(profile):
        front = paths.results(profile) / "site/index.html"
        front.parent.mkdir(exist_ok=True)
        front.write_text("made")
        made.append(front)
        return front

    monkeypatch.setattr(site, "build", build)
    words = ("reproduce", "fig1", "--profile", "smoke", "--workers", 1)
    figure(FIG1)
    nclib(*words)
    nclib(*words)
    assert len(made) == 1
    figure(FIG1, "1")
    nclib(*words)
    assert len(made) == 2
    nclib(*words, "-p", "epochs=3")
    assert "with/epochs=3" in str(made[2])
    nclib("report", "--profile", "smoke")
    assert len(made) == 4


def test_runs_behind_a_notebook_are_exported(bench):
    write_notebook(FIG1)
    words = ("runs", "export", "fig1", "--profile", "smoke")
    refused = nclib(*words)
    assert refused.exit_code == 1 and "not trained yet" in refused.output
    assert nclib(*words, "--finished").stdout == ""
    bench.reproduce("fig1")
    exported = sorted([run_of(0), run_of(1)])
    assert sorted(nclib(*words).stdout.split()) == exported == reference_store().ids()


def test_a_clone_that_git_refuses_to_read_is_named(bench, monkeypatch):
    """As in a container whose user does not own the clone; all else goes on."""
    figure(FIG1)
    assert "records have no commit" not in nclib("reproduce", "fig1", *QUIET).output
    # of git itself: every folder is then taken for that of another user
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    done = nclib("reproduce", "fig1", *QUIET)
    assert "git config --global --add safe.directory" in done.stderr
    assert done.exit_code == 0, done.output


def test_data_are_fetched():
    assert "digits: complete" in nclib("data", "fetch", "digits").stdout


# --- measure --------------------------------------------------------------------------------------

OWN_NETWORK = """
import torch
def load():
    torch.manual_seed(0)
    hidden = [torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6), torch.nn.ReLU()]
    net = torch.nn.Sequential(*hidden, torch.nn.Linear(6, 3))
    return net, [(torch.randn(60, 5), torch.arange(60) % 3)]
def embedding():
    return torch.nn.Sequential(torch.nn.Linear(5, 8)), load()[1]
def wrong():
    return 1
"""


@pytest.fixture
def own_network(tmp_path, monkeypatch):
    (tmp_path / "own_network.py").write_text(OWN_NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    sys.modules.pop("own_network", None)


def test_measure_prints_and_writes_the_table_of_a_network(own_network):
    done = nclib("measure", "own_network:load", "--csv", "table.csv")
    header = done.stdout.splitlines()[0].split()
    assert done.exit_code == 0 and header == ["metric", "0", "1", "2", "3", "4.input"]
    table = pd.read_csv("table.csv", dtype={"layer": str})
    assert list(table) == ["layer", "metric", "value"] and set(table["layer"]) == set(header[1:])
    named = nclib("measure", "own_network:load", "--layer", "1", "--layer", "4.input")
    assert named.stdout.splitlines()[0].split() == ["metric", "1", "4.input"]


def test_measure_of_an_embedding_network_asks_for_its_classifier(own_network):
    refused = nclib("measure", "own_network:embedding")
    assert refused.exit_code == 2 and "pass classifier=None" in refused.stderr
    assert nclib("measure", "own_network:embedding", "--classifier", "none").exit_code == 0
    with pytest.warns(UserWarning, match="5 of 8 classes have no samples"):
        named = nclib("measure", "own_network:embedding", "--classifier", "0")
    assert "absent_classes" in named.stdout


def test_measure_reads_arrays(tmp_path):
    rng = np.random.default_rng(0)
    h = rng.normal(size=(60, 5))
    w = rng.normal(size=(3, 5))
    labels = np.arange(60) % 3
    np.savez(tmp_path / "features.npz", h=h, labels=labels, logits=h @ w.T, w=w)
    done = nclib("measure", tmp_path / "features.npz", "--csv", tmp_path / "table.csv")
    assert done.exit_code == 0
    table = pd.read_csv(tmp_path / "table.csv").set_index("metric")["value"]
    report = nc_report(h, labels, h @ w.T, w)
    assert {name: table[name] for name in report} == pytest.approx(report, rel=1e-9)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no_such_module_anywhere:load", "No module named 'no_such_module_anywhere'"),
        ("own_network", "MODULE:FUNCTION"),
        ("own_network:laod", "has no attribute 'laod'"),
        ("own_network:wrong", "must return (model, loader), got <class"),
        ("objects.npz", "objects.npz cannot be read"),
        ("damaged.npz", "damaged.npz cannot be read"),
        ("strange.npz", "it holds ['h', 'x']"),
        ("short.npz", "labels must be integers of shape (6,)"),
    ],
)
def test_measure_refuses_by_a_sentence(own_network, source, message):
    h = np.ones((6, 2))
    np.savez("objects.npz", h=np.array([{}], dtype=object), labels=np.arange(6))
    np.savez("strange.npz", h=h, x=h)
    np.savez("short.npz", h=h, labels=np.arange(5))
    with open("damaged.npz", "wb") as file:
        file.write(b"PK\x03\x04 and no more")
    done = nclib("measure", source)
    assert done.exit_code == 2 and message in done.stderr
