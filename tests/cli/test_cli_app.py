"""The command line: what it refuses, what it prints, how it ends."""

import errno
import subprocess
import sys

import pytest
import torch
from command import as_typed, nclib

from nclib import data, paths, runs, training
from nclib.config import ConfigError, run_id
from nclib.profiles import experiment


def test_help_needs_nothing_heavy():
    code = (
        "import sys, nclib.cli.app as cli\n"
        "sys.argv = ['nclib', '--help']\n"
        "try:\n    cli.main()\n"
        "finally:\n"
        "    assert not {'torch', 'pandas', 'numpy', 'matplotlib', 'papermill'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    commands = "reproduce", "report", "train", "measure", "runs", "data", "verify", "certify"
    assert all(command in done.stdout for command in commands)


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["reprodcue"], "'reproduce'"),
        (["reproduce", "--profile", "smok"], "'smoke'"),
        (["train", "--model", "dqe"], "'deq'"),
        (["train", "--dataset", "digit"], "'digits'"),
        (["data", "fetch", "cifar"], "'cifar10'"),
    ],
)
def test_a_misspelt_word_is_refused_with_the_nearest(trained, arguments, near):
    result = nclib(*arguments)
    assert result.exit_code == 2 and near in result.output
    assert not trained and not paths.results().exists()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (ConfigError("wrong word"), 2, "wrong word"),
        (data.DataError("no images"), 2, "no images"),
        (runs.RunsFailed({"run-1": "diverged"}), 1, "run-1: diverged"),
        (training.TrainingDiverged("lower lr"), 1, "lower lr"),
        (torch.OutOfMemoryError("out of memory"), 1, "out of memory"),
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


def test_data_are_fetched():
    assert "digits: complete" in nclib("data", "fetch", "digits").stdout


@pytest.mark.parametrize("bug", [ValueError("shapes"), RuntimeError("a bug"), TypeError("a bug")])
def test_a_bug_keeps_its_traceback(monkeypatch, bug):
    def stop(name):
        raise bug

    monkeypatch.setattr(data, "fetch", stop)
    with pytest.raises(type(bug)):
        nclib("data", "fetch", "digits")


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


@pytest.mark.parametrize("name", ["fig3", "table1", "table3", "controls"])
def test_training_with_a_profile_makes_the_run_of_a_figure(name):
    """And of no other: the same id, so what is stored is found."""
    for config in (c for c in experiment(name, "quick", seeds=2) if c.kind == "classifier"):
        typed = ["--profile", "quick", "--model", config.model.kind, "--seed", config.seed]
        if config.data.dataset != "digits":
            typed += ["--dataset", config.data.dataset]
        if config.data.num_majority:
            typed += ["--K_A", config.data.num_majority, "--R", config.data.ratio]
        assert run_id(as_typed(typed)) == run_id(config)


def test_a_profile_follows_options_as_a_notebook_its_parameters():
    wanted = experiment("fig3", "quick", dataset="mnist", epochs=3, width=4, seeds=1)[1]
    typed = ["--profile", "quick", "--model", "deq", "--dataset", "mnist", "--epochs", 3, "--width", 4]
    assert run_id(as_typed(typed)) == run_id(wanted)


def test_training_prints_id_and_final_metrics_and_happens_once(trained):
    first = nclib("train", "--dataset", "digits", "--width", 2, "--epochs", 2)
    again = nclib("train", "--dataset", "digits", "--width", 2, "--epochs", 2)
    assert len(trained) == 1
    assert f"run {trained[0]}" in first.stdout and again.stdout == first.stdout
    (line,) = [line for line in first.stdout.splitlines() if "accuracy_balanced" in line]
    assert line.split()[1:] == ["0.8", "0.9"]
