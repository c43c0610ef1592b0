"""Small trainings: they learn, repeat to the bit, and are audited."""

import numpy as np
import pandas as pd
import pytest
import torch
from marks import slow

from nclib.papers.separation_bias.regression import RegressionConfig, train_regression
from nclib.papers.separation_bias.regressors import RegressorConfig
from nclib.papers.separation_bias.tasks import Task, TaskConfig

SAWTOOTH = TaskConfig(name="sawtooth", level=1)
FNN = RegressorConfig(kind="fnn", width=6, depth=3)
SOLVED = RegressorConfig(kind="deq", width=6, tol=1e-3, spread=1.0)
UNROLLED = RegressorConfig(kind="unrolled_deq", width=6, iterations=4, spread=0.5)


def config_of(model, steps=20, task=SAWTOOTH, **options):
    return RegressionConfig(task=task, model=model, steps=steps, lr=1e-2, **options)


def last_values(result):
    history = result.tables["history"].drop_duplicates(["split", "metric"], keep="last")
    return history.set_index(["split", "metric"])["value"]


@pytest.mark.parametrize("model", [FNN, *slow(SOLVED, UNROLLED)])
def test_training_learns_and_is_the_same_each_time(model):
    config = config_of(model, steps=150, schedule="onecycle", clip=1.0)
    first = train_regression(config)
    again = train_regression(config)
    pd.testing.assert_frame_equal(
        first.tables["history"], again.tables["history"], check_exact=True
    )
    curve = first.tables["history"].query("split == 'test' and metric == 'mse'")["value"]
    assert curve.iloc[-1] < 0.3 * curve.iloc[0]
    assert first.arrays["features"].shape == (6,)


def test_the_audit_is_the_iteration_of_the_trained_cell():
    config = config_of(UNROLLED, steps=30)
    result = train_regression(config)
    model = UNROLLED.build(1, 0)
    model.load_state_dict(result.weights)
    x, y = Task(SAWTOOTH, 0).test
    history = result.tables["history"].query("split == 'iterations'")
    rows = history.pivot(index="epoch", columns="metric", values="value")
    assert rows.index.max() == 300
    with torch.no_grad():
        out = model(x[:1024])
    mse = float((out.values - y[:1024]).square().mean())
    assert rows["mse"][4] == pytest.approx(mse, rel=1e-5)
    assert rows["residual"][4] == pytest.approx(float(out.solution.residual.mean()), rel=1e-4)
    largest = max(float(matrix.detach().abs().max()) for matrix in model.matrices())
    assert last_values(result)["audit", "largest"] == pytest.approx(largest)


def test_a_contracting_deq_stays_within_its_norm():
    result = train_regression(config_of(SOLVED, steps=30, batch_size=32))
    norm = np.linalg.norm(result.weights["deq.cell.weight"].numpy(), 2)
    assert norm <= 0.95 + 1e-6
    assert last_values(result)["audit", "residual"] <= 1e-3


def test_what_only_some_tasks_have():
    boolean = TaskConfig(name="boolean", target="product", variables=3)
    values = last_values(train_regression(config_of(FNN, task=boolean)))
    assert 1 / 6 <= values["train", "density"] <= 1
    assert 0 < values["train", "heat"] <= 1
    loops = RegressorConfig(kind="self_loop_deq", width=4)
    steep = TaskConfig(name="steep", level=6)
    values = last_values(train_regression(config_of(loops, task=steep, scale_lr=0.1)))
    assert values["test", "sup_error"] ** 2 >= values["test", "mse"]
    sound = TaskConfig(name="audio", target="tone")
    result = train_regression(config_of(FNN, task=sound))
    _, y, made = result.arrays["fit"]
    ratio = 10 * np.log10(np.mean(y**2) / np.mean((made - y) ** 2))
    assert last_values(result)["test", "snr"] == pytest.approx(ratio, abs=1e-4)
    assert "rebalanced" in last_values(result)["audit"]


def test_scale_parameters_learn_at_their_own_rate():
    model = FNN.replace(scaled=True)
    slow_scales = train_regression(config_of(model, steps=5, scale_lr=1e-6)).weights
    fast_scales = train_regression(config_of(model, steps=5, scale_lr=1e-1)).weights
    assert slow_scales["log_scale"].abs().max() < 1e-5
    assert fast_scales["log_scale"].abs().max() > 1e-2


def test_a_training_that_diverges_says_what_to_change():
    config = config_of(FNN, steps=25).replace(lr=1e30)
    with pytest.raises(FloatingPointError, match=r"diverged at step .*; use a lower lr, or clip"):
        train_regression(config)
