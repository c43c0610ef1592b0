"""A project of the test's own, and a bench that trains and executes in it."""

import pytest
from reproduction import Bench, runs_of_seeds

from nclib import profiles, runs
from nclib.reproduce import drawing


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project, which a test fills with notebooks."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("NCLIB_ROOT", str(folder))
    return folder


@pytest.fixture
def bench(project, monkeypatch):
    bench = Bench()
    monkeypatch.setattr(runs, "_make", bench.train)
    monkeypatch.setattr(drawing, "AT_ONCE", 1)
    monkeypatch.setattr(drawing, "execute", bench.execute)
    monkeypatch.setattr(drawing, "FIRST", ())
    wanted = {"neural_collapse/fig1": runs_of_seeds([0, 1]), "neural_collapse/fig2": runs_of_seeds([1, 2])}
    monkeypatch.setattr(profiles, "makers", lambda: wanted)
    bench.wanted = wanted
    return bench
