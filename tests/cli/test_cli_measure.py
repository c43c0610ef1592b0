"""``nclib measure``: a network of one's own, saved features."""

import sys

import numpy as np
import pandas as pd
import pytest
from command import nclib

from nclib.metrics import nc_report

OWN_NETWORK = """
import torch
def load():
    torch.manual_seed(0)
    hidden = [torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6), torch.nn.ReLU()]
    net = torch.nn.Sequential(*hidden, torch.nn.Linear(6, 3))
    return net, [(torch.randn(60, 5), torch.arange(60) % 3)]
def wrong():
    return 1
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    name = f"own_network_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN_NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield name
    sys.modules.pop(name, None)


def test_measure_prints_and_writes_the_table_of_a_network(own):
    done = nclib("measure", f"{own}:load", "--csv", "table.csv")
    assert done.exit_code == 0
    header = done.stdout.splitlines()[0].split()
    assert header == ["metric", "0", "1", "2", "3", "4.input"]
    table = pd.read_csv("table.csv", dtype={"layer": str})
    assert list(table) == ["layer", "metric", "value"] and set(table["layer"]) == set(header[1:])
    named = nclib("measure", f"{own}:load", "--layer", "1", "--layer", "4.input")
    assert named.exit_code == 0 and named.stdout.splitlines()[0].split() == ["metric", "1", "4.input"]
    row = next(line for line in named.stdout.splitlines() if line.strip().startswith("nc3_alignment"))
    assert row.split()[1] == "–"


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
        (["no_such_module_anywhere:load"], "No module named 'no_such_module_anywhere'"),
        (["OWN:laod"], "has no attribute 'laod'"),
        (["OWN:wrong"], "must return (model, loader), got <class"),
        (["objects.npz"], "objects.npz cannot be read"),
        (["strange.npz"], "must hold h and labels, and may hold logits and w; it holds ['h', 'x']"),
        (["short.npz"], "labels must be integers of shape (6,)"),
    ],
)
def test_measure_refuses_by_a_sentence(own, arguments, message):
    h = np.ones((6, 2))
    np.savez("objects.npz", h=np.array([{}], dtype=object), labels=np.arange(6))
    np.savez("strange.npz", h=h, x=h)
    np.savez("short.npz", h=h, labels=np.arange(5))
    done = nclib("measure", *[part.replace("OWN", own) for part in arguments])
    assert done.exit_code == 2 and message in done.stderr
