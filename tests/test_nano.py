"""notebooks/nano.py is the library's run of Figure 3, seed 0, balanced digits: the same bits, in one file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from marks import slow

import nclib as nc

FILE = Path(__file__).resolve().parents[1] / "notebooks" / "nano.py"


def test_it_does_not_need_the_library():
    text = FILE.read_text(encoding="utf-8")
    assert "import nclib" not in text
    assert "from nclib" not in text


def _library(kind, epochs):
    """The library's run, and its metrics of the last epoch under the names of nano."""
    (config,) = [
        config
        for config in nc.experiment("fig3", "quick", epochs=epochs)
        if (config.seed, config.data.imbalance, config.model.kind) == (0, "balanced", kind)
    ]
    run = nc.training.train(config, device="cpu")
    last = run.history[run.history["epoch"] == epochs]
    return run, {(row.split, row.metric): row.value for row in last.itertuples()}


def _compare(found, expected):
    for metric, value in found.items():
        on = "test" if metric == "accuracy_balanced" else "train"
        assert value == pytest.approx(expected[on, metric], rel=0, abs=1e-9), metric


@pytest.mark.parametrize(("kind", "epochs"), [("explicit", 2), *slow(("deq", 1))])
def test_the_first_epochs_have_the_bits_of_the_library(kind, epochs, monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)
    import nano

    monkeypatch.setattr(nano, "EPOCHS", epochs)
    run, expected = _library(kind, epochs)
    with torch.random.fork_rng():
        network, history = nano.train(kind, *nano.digits(), say=lambda text: None)
    weights = network.state_dict()
    assert weights.keys() == run.weights.keys()
    different = [name for name in weights if not torch.equal(weights[name], run.weights[name])]
    assert different == []
    if epochs == 2:  # it measures every second epoch
        _compare(history[2], expected)


@pytest.mark.slow
def test_the_command_prints_the_metrics_of_the_library(tmp_path):
    """Of two epochs, in which the learning rate goes its whole way; twenty differ in their number."""
    script = "import nano; nano.EPOCHS = 2; nano.main()"
    environment = os.environ | {"PYTHONPATH": str(FILE.parent)}
    command = [sys.executable, "-c", script, "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert list(found) == ["explicit", "deq"]
    for kind, metrics in found.items():
        _compare(metrics, _library(kind, 2)[1])
