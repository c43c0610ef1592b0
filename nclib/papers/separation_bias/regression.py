"""The small trainings of Wu et al. (2024), and an audit of what was trained.

A `RegressionConfig` is a run like any other: stored, cached, exported. Every equilibrium model is
iterated again after training, from 0, up to 300 times: its error and residual after each number of
iterations show whether what was trained is an equilibrium at all. Everything runs on the CPU, where
networks this small are fastest.
"""

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import pydantic
import torch
from torch import Tensor

from nclib.config import StoredConfig
from nclib.models import count_parameters
from nclib.papers.separation_bias.diagonal import participation_ratio
from nclib.papers.separation_bias.regressors import FNN, RegressorConfig, ReluDEQ, SelfLoopDEQ
from nclib.papers.separation_bias.steep import steep_points, steep_target
from nclib.papers.separation_bias.tasks import Samples, Task, TaskConfig
from nclib.runs import Job, Result
from nclib.solvers import EPSILON
from nclib.store import HISTORY

LAST_ITERATION = 300
REPORTED_ITERATIONS = (*range(1, 21), 25, 30, 40, 50, 75, 100, 150, 200, LAST_ITERATION)
AUDITED_POINTS = 1024
"""Test points on which a trained cell is iterated again."""

Regressor = ReluDEQ | FNN | SelfLoopDEQ
Row = tuple[int, str, str, float]
"""Of a history: epoch, split, metric, value."""


class RegressionConfig(StoredConfig):
    """One training: task, network, and a budget of Adam steps on batches of new or sampled points.

    Parameters
    ----------
    task, model : what is learned, and by what
    steps, batch_size : of Adam, and the points of each
    lr : learning rate
    scale_lr : that of scale parameters (self-loops, layer scales)
    schedule : "onecycle" is PyTorch's OneCycleLR up to `lr`
    clip : largest norm of the gradient
    """

    on_cpu: ClassVar[bool] = True

    kind: Literal["regression"] = "regression"
    task: TaskConfig
    model: RegressorConfig
    steps: int = pydantic.Field(ge=1)
    batch_size: int = pydantic.Field(default=256, ge=1)
    lr: float = pydantic.Field(gt=0)
    scale_lr: float | None = pydantic.Field(default=None, gt=0)
    schedule: Literal["constant", "onecycle"] = "constant"
    clip: float | None = pydantic.Field(default=None, gt=0)

    def label(self) -> str:
        shape = f"L{self.model.depth}" if self.model.kind == "fnn" else ""
        task = self.task.label().replace("^", "")
        return f"{task}-{self.model.kind}{self.model.width}{shape}"

    def seconds(self) -> float:
        model = self.model
        if model.kind == "fnn":
            one_step = 0.8e-3 + 0.2e-3 * model.depth
        elif model.kind == "self_loop_deq":
            one_step = 2.7e-3
        elif model.iterations:
            one_step = 1.5e-3 + 0.15e-3 * model.iterations
        else:
            one_step = 13e-3
        return self.steps * one_step

    def execute(self, job: Job) -> Result:
        return train_regression(self, job.progress)


# --- training -------------------------------------------------------------------------------------


def train_regression(
    config: RegressionConfig, progress: Callable[[int, int], None] | None = None
) -> Result:
    """Train one regressor and audit it.

    Parameters
    ----------
    config : the training
    progress : called as ``progress(steps done, all steps)``

    Returns
    -------
    Result
        Rows of the history, split/metric: test/mse along the training; at the end also train/mse
        (Boolean tasks), test/sup_error (steep), test/snr in dB (audio), train/density, the
        participation ratio of the features averaged over inputs, train/heat, the mean of the
        features' mean sizes over the largest; and in the split "audit": parameters, flops (a
        sample), steps (T), residual (mean over samples of ‖f(z) − z‖/‖f(z)‖ after the trained
        number of steps), largest (weight) and rebalanced (geometric mean of the layers' largest
        weights). `epoch` counts steps of Adam, or iterations in the split "iterations".

        Arrays: "features" (k,), the mean size of each feature on training points, and, of a sound,
        "fit" (3, N): inputs, values and predictions.

    Raises
    ------
    FloatingPointError
        When the loss becomes NaN or infinite.
    """
    task = Task(config.task, config.seed)
    model = config.model.build(task.inputs, config.seed).to(task.dtype)
    optimiser = _optimiser(config, model)
    if config.schedule == "onecycle":
        rates = [group["lr"] for group in optimiser.param_groups]
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rates, total_steps=config.steps)
    else:
        schedule = torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0)
    report_every = max(1, config.steps // 25)

    rows = []
    for step in range(1, config.steps + 1):
        x, y = task.batch(config.batch_size)
        loss = (model(x).values - y).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimiser.step()
        schedule.step()
        if isinstance(model, ReluDEQ):
            model.project()
        if step % report_every == 0 or step == config.steps:
            if not math.isfinite(loss.item()):
                raise FloatingPointError(
                    f"{config.label()} diverged at step {step}; use a lower lr, or clip=1.0"
                )
            rows.append((step, "test", "mse", _mse(model, task.test)))
            if progress is not None:
                progress(step, config.steps)

    with torch.no_grad():
        measured = _of_the_task(config, task, model) + _audit(config, task, model)
        rows += [(config.steps, *row) for row in measured]
        if isinstance(model, ReluDEQ):
            rows += _iterated(model, task.test)
        x, y = task.train or task.test
        out = model(x)
    arrays = {"features": out.features.double().abs().mean(0).numpy()}
    if config.task.name == "audio":
        arrays["fit"] = torch.stack([x[:, 0], y, out.values]).numpy()
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    history = pd.DataFrame(rows, columns=HISTORY)
    return Result({"history": history}, arrays, weights)


def _optimiser(config: RegressionConfig, model: Regressor) -> torch.optim.Adam:
    """Adam with the scale parameters in a group of their own."""
    weights = []
    scales = []
    for name, parameter in model.named_parameters():
        is_scale = name in ("log_scale", "loops")
        (scales if is_scale else weights).append(parameter)
    groups = [{"params": weights, "lr": config.lr}]
    if scales:
        groups.append({"params": scales, "lr": config.scale_lr or config.lr})
    return torch.optim.Adam(groups, fused=True)


# --- the audit ------------------------------------------------------------------------------------


def _mse(model: Regressor, samples: Samples) -> float:
    x, y = samples
    with torch.no_grad():
        return float((model(x).values - y).double().square().mean())


def _of_the_task(
    config: RegressionConfig, task: Task, model: Regressor
) -> list[tuple[str, str, float]]:
    """(split, metric, value) that only some tasks have."""
    if config.task.name == "boolean":
        features = model(task.train[0]).features.double().numpy()
        sizes = np.abs(features).mean(axis=0)
        return [
            ("train", "mse", _mse(model, task.train)),
            ("train", "density", float(np.nanmean(participation_ratio(features)))),
            ("train", "heat", float(sizes.mean() / sizes.max())),
        ]
    if config.task.name == "steep":
        s = steep_points(config.task.level)
        values = model(torch.from_numpy(s)[:, None]).values.numpy()
        error = np.abs(values - steep_target(s, config.task.level)).max()
        return [("test", "sup_error", float(error))]
    if config.task.name == "audio":
        x, y = task.test
        noise = (model(x).values - y).double().square().mean()
        ratio = y.double().square().mean() / noise
        return [("test", "snr", float(10 * torch.log10(ratio)))]
    return []


def _audit(config: RegressionConfig, task: Task, model: Regressor) -> list[tuple[str, str, float]]:
    """(split, metric, value) of every network."""
    rows = []
    steps = 1.0
    if isinstance(model, ReluDEQ):
        solution = model(task.test[0]).solution
        steps = float(config.model.iterations or solution.steps.double().mean())
        rows.append(("audit", "residual", float(solution.residual.double().mean())))
    largest = [float(matrix.abs().max()) for matrix in model.matrices()]
    rows.append(("audit", "largest", max(largest)))
    if isinstance(model, FNN):
        geometric_mean = math.exp(float(np.mean(np.log(largest))))
        rows.append(("audit", "rebalanced", geometric_mean))
    rows.append(("audit", "parameters", float(count_parameters(model))))
    rows.append(("audit", "flops", config.model.flops(task.inputs, steps)))
    rows.append(("audit", "steps", steps))
    return rows


def _iterated(model: ReluDEQ, samples: Samples) -> list[Row]:
    """Plain iteration of the trained cell from 0: error and mean residual after each number."""
    x = samples[0][:AUDITED_POINTS]
    y = samples[1][:AUDITED_POINTS]
    injection = model.injection(x)
    z = torch.zeros_like(injection)
    rows = []
    for iteration in range(1, LAST_ITERATION + 1):
        z = model.deq.cell(z, injection)
        if iteration in REPORTED_ITERATIONS:
            mse = (model.read_out(z)[:, 0] - y).double().square().mean()
            residual = _relative_residual(model, z, injection).double().mean()
            rows.append((iteration, "iterations", "mse", float(mse)))
            rows.append((iteration, "iterations", "residual", float(residual)))
    return rows


def _relative_residual(model: ReluDEQ, z: Tensor, injection: Tensor) -> Tensor:
    fz = model.deq.cell(z, injection)
    return (fz - z).norm(dim=1) / (fz.norm(dim=1) + EPSILON)
