"""A project of the test's own, in which training takes no time."""

import pandas as pd
import pytest

from nclib import runs
from nclib.config import run_id


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

    def train(config, store, device, progress, log=None):
        ids.append(run_id(config))
        table = pd.DataFrame(HISTORY, columns=["epoch", "split", "metric", "value"])
        store.save(config, runs.Result({"history": table}), {"commit": "abc"})

    monkeypatch.setattr(runs, "_make", train)
    return ids
