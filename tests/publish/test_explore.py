"""The page Explore: what it holds and what it says of a run."""

import json

import pandas as pd
import pytest

from companion.site import explore
from nclib.config import RunConfig
from nclib.engine.reading import StoredRun

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


def run(seed=0, values=(0.5, 0.25), metric="nc1_trace_ratio", **fields):
    config = json.loads(RunConfig(seed=seed, **fields).model_dump_json())
    rows = [(epoch, "train", metric, value) for epoch, value in enumerate(values, 1)]
    history = pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])
    return StoredRun(f"run-{seed}-{config['model']['kind']}", config, {"history.csv": history})


def test_a_curve_keeps_its_epochs_and_values():
    (fact,), (line,) = explore.records([run(seed=3)])
    assert fact["run"] == "run-3-explicit" and fact["s"] == 3 and fact["v"] == "ResNet-18"
    assert line == {"i": 0, "m": "nc1_trace_ratio", "p": "train", "e": [1, 2], "y": [0.5, 0.25]}


def test_accuracies_are_percent_and_what_is_not_finite_is_left_out():
    _, (line,) = explore.records([run(values=(float("nan"), 0.123456), metric="accuracy_balanced")])
    assert line["e"] == [2] and line["y"] == [12.35]


def test_metrics_that_cannot_be_chosen_are_left_out():
    assert explore.records([run(metric="skipped")])[1] == []


def test_what_would_end_the_script_of_the_page_is_left_out():
    attack = "</script><script>alert(1)</script>"
    stranger = run(seed=1)
    split = stranger.history.assign(split=attack)
    named, written = (attack, stranger.files), ("run-1", {"history.csv": split})
    runs = [run(), *(StoredRun(name, stranger.config, files) for name, files in (named, written))]
    assert "alert(1)" not in str(explore.records(runs))


def test_setting_and_variant_are_said_in_words():
    data = {"dataset": "digits", "imbalance": "step", "num_majority": 3, "ratio": 10.0}
    plain = run(data=data).config
    assert explore.setting(plain, "toy") == "digits (toy) · K_A = 3, R = 10"
    assert explore.setting(run(data={"dataset": "digits", "imbalance": "balanced"}).config, "toy").endswith("balanced")
    fixed = run(data=data, model={"kind": "deq", "head": "etf"}).config
    assert explore.variant(fixed) == "DEQ, ETF classifier"


def test_runs_without_curves_make_no_page():
    assert explore.page([]) is None


def test_the_page_is_one_file_that_asks_for_nothing():
    text = explore.page([run(seed, model={"kind": kind}) for kind in ("explicit", "deq") for seed in (0, 1)])
    assert "run-1-deq" in text and "<script" in text
    assert "<script src" not in text and "<link" not in text
    assert len(text) < 6_000_000
