"""What the hostile cases stand on: a project of their own, beside which nothing may change, and a count of them."""

import concurrent.futures
import contextlib
import json

import faults
import pandas as pd
import pytest

from nclib.config import DataConfig, ModelConfig, RunConfig
from nclib.engine import experiments, jobs
from nclib.reproduce import drawing
from nclib.reproduce.execute import Execution

PARAMETERS = "n: int = 0\nlr: float = 0.0\nok: bool = True\ntext: str = ''\ndataset: str = ''\n"
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": "# Figure 9"},
        {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": PARAMETERS, "outputs": []},
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}
HISTORY = [(1, "test", "accuracy_balanced", 0.5), (1, "train", "loss", 0.5)]


@pytest.fixture(scope="module", autouse=True)
def _counted():
    yield
    faults.LEDGER.write()


@pytest.fixture
def counted():
    """The row that cases of an area are counted in."""
    return lambda area, cases: faults.LEDGER.fault(f"hostile {area}", cases)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one notebook in a folder that holds other things too; training and drawing take no time."""
    root = tmp_path / "home" / "project"
    (root / "notebooks/neural_collapse").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nname = "nclib-deq"\n')
    (root / "notebooks/neural_collapse/fig9.ipynb").write_text(json.dumps(NOTEBOOK))
    for name in ("thesis.tex", "escaped.keep", "x/keep.txt"):
        (tmp_path / "home" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "home" / name).write_text("keep")
    monkeypatch.setenv("NCLIB_ROOT", str(root))
    monkeypatch.setenv("NCLIB_RESULTS", str(root / "results"))
    monkeypatch.setenv("NCLIB_DATA", str(root / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(root)

    def train(config, store, device, progress, log=None):
        table = pd.DataFrame(HISTORY, columns=["epoch", "split", "metric", "value"])
        store.save(config, {"history": table}, {}, {}, {"commit": "abc"})

    def drawn(self, work, *arguments):
        future = concurrent.futures.Future()
        future.set_result(Execution(0.0))
        return future

    def two(profile):
        data = DataConfig(dataset=profile.dataset or "digits", n_max=4)
        return [RunConfig(data=data, model=ModelConfig(width=2), seed=seed, profile="smoke") for seed in (0, 1)]

    monkeypatch.setattr(experiments, "known", lambda: {"neural_collapse/fig9": two})
    monkeypatch.setattr("nclib.reproduce.reproduce.place", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(jobs, "make", train)
    monkeypatch.setattr(drawing.Drawing, "_submit", drawn)
    return root
