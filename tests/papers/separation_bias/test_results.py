"""Tables from finished regressions."""

import numpy as np
import pytest

from nclib.papers.separation_bias import results
from nclib.papers.separation_bias.regression import RegressionConfig
from nclib.papers.separation_bias.regressors import RegressorConfig
from nclib.papers.separation_bias.tasks import TaskConfig
from nclib.runs import ensure_runs

MODELS = [
    RegressorConfig(kind="deq", width=6, tol=1e-3, spread=1.0),
    RegressorConfig(kind="unrolled_deq", width=6, iterations=4, spread=0.5),
    RegressorConfig(kind="fnn", width=6, depth=3),
]


@pytest.fixture
def trained():
    task = TaskConfig(name="sawtooth", level=1)
    configs = [RegressionConfig(task=task, model=model, steps=20, lr=1e-2) for model in MODELS]
    return configs, ensure_runs(configs)


def test_a_row_for_each_run_says_what_the_network_is(trained):
    configs, frame = trained
    table = results.regression_table(configs, frame)
    assert table["model"].tolist() == [config.model.label() for config in configs]
    assert table["equilibrium"].tolist()[::2] == ["equilibrium", "feed-forward"]
    assert table["residual"][0] <= 1e-3
    assert np.isnan(table["residual"][2])
    last = frame.query("split == 'iterations' and metric == 'mse' and epoch == 300")["value"]
    assert table["mse_300"][:2].tolist() == last.tolist()

    for split in ("audit", "iterations"):
        is_residual = (frame["split"] == split) & (frame["metric"] == "residual")
        wild = frame.assign(value=frame["value"].mask(is_residual, 0.3))
        table = results.regression_table(configs, wild)
        assert table["equilibrium"][1] == "weight-tied recurrent"
    names = results.arm_names(table)
    assert names["DEQ-6, free W, T = 4"] == "weight-tied RNN-6, free W, T = 4"
    assert names["FNN 6×L3"] == "FNN 6×L3"


def test_curves_and_captions(trained):
    configs, frame = trained
    curves = results.curve_rows(configs, frame, "sawtooth-2^1")
    assert curves["at"].max() == 20
    assert curves["kind"].nunique() == 3
    swept = results.curve_rows(configs, frame, "sawtooth-2^1", "iterations", "residual")
    assert swept["at"].max() == 300
    assert swept["kind"].unique().tolist() == ["deq", "unrolled_deq"]
    more = configs[0].replace(seed=1)
    text = results.describe_regressions([*configs, more])
    assert text.endswith("sawtooth-2^1 (20 steps of Adam, 2 seeds).")
