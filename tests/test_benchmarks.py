"""The measurements run, at tiny sizes; whether a machine is fast is no test."""

import importlib
import math
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["solver", "training"])
def test_each_script_measures_and_writes_nothing_when_quick(name, load, monkeypatch, tmp_path):
    monkeypatch.setattr("nclib.paths.reference", lambda: tmp_path)
    frame = load(f"bench_{name}").main(quick=True)
    assert len(frame) >= 4
    assert (
        frame.ratio.map(math.isfinite).all()
        and (frame.low <= frame.high).all()
        and not list(tmp_path.iterdir())
    )
    assert {"part", "what", "case", "ratio", "low", "high", "target", "note", "met"} <= set(frame)
