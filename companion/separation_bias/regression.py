"""The small trainings of Wu et al. (2024): one function of a few inputs, a DEQ or a feed-forward network, and an audit.

A `RegressionConfig` is a run like any other: stored, cached, exported. Every equilibrium model is iterated again after
training, from 0, up to 300 times: its error and residual after each number of iterations say whether what was trained
is an equilibrium at all. Everything runs on the CPU, where networks this small are fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import pydantic
import torch

from companion.separation_bias import diagonal, steep
from companion.separation_bias.networks import FNN, ReluDEQ, SelfLoopDEQ
from companion.separation_bias.tasks import TaskConfig, _Samples, _Task
from nclib.config import Config, StoredConfig, nested
from nclib.deq import Implicit, Unrolled
from nclib.engine.jobs import Job, Result
from nclib.models import count_parameters
from nclib.solver import EPSILON, FixedPointIteration


class RegressorConfig(Config):
    """The network.

    Parameters
    ----------
    kind :
        "deq" — `ReluDEQ` with ‖W‖₂ ≤ 0.95, an equilibrium: solved by plain iteration to `tol` with the implicit
            gradient, or by `iterations` steps from 0 and differentiated through them, which is cheaper
        "unrolled_deq" — the same with W free, `iterations` steps from 0, differentiated through them
        "fnn" — `FNN` of `depth` weight matrices
        "self_loop_deq" — `SelfLoopDEQ`, solved exactly
    width : neurons of a layer
    depth : of "fnn" | iterations : of "unrolled_deq" | tol or iterations : of "deq"
    activation : "relu" or "sine"
    spread : of W at the start, of both DEQs with W
    input_scale, bias_scale : largest entries of the first layer at the start; None for PyTorch's
    scaled : of "fnn", a trained scale for each layer
    """

    kind: Literal["deq", "unrolled_deq", "fnn", "self_loop_deq"]
    width: int = pydantic.Field(ge=1)
    depth: int | None = pydantic.Field(default=None, ge=2)
    iterations: int | None = pydantic.Field(default=None, ge=1)
    tol: float | None = pydantic.Field(default=None, gt=0, lt=1)
    activation: Literal["relu", "sine"] = "relu"
    spread: float | None = pydantic.Field(default=None, gt=0)
    input_scale: float | None = pydantic.Field(default=None, gt=0)
    bias_scale: float | None = pydantic.Field(default=None, gt=0)
    scaled: bool = False

    def build(self, inputs: int, seed: int) -> ReluDEQ | FNN | SelfLoopDEQ:
        """The network with initial weights from `seed`."""
        start = dict(input_scale=self.input_scale, bias_scale=self.bias_scale, activation=self.activation, seed=seed)
        if self.kind == "fnn":
            return FNN(inputs, self.width, self.depth, scaled=self.scaled, **start)
        if self.kind == "self_loop_deq":
            return SelfLoopDEQ(self.width, steep=min(7, self.width), seed=seed)
        norm = NORM if self.kind == "deq" else None
        if self.iterations is None:
            solver, gradient = FixedPointIteration(tol=self.tol, max_steps=100), Implicit()
        else:
            solver, gradient = None, Unrolled(self.iterations, tol=EQUILIBRIUM)
        return ReluDEQ(inputs, self.width, solver, gradient, norm=norm, spread=self.spread, **start)

    def label(self) -> str:
        """Readable name of the arm, such as "DEQ-80 ‖W‖≤0.95"."""
        if self.kind == "fnn":
            return f"FNN {self.width}×L{self.depth}" + (", scaled" if self.scaled else "")
        return {
            "deq": f"DEQ-{self.width}, ‖W‖ ≤ {NORM:g}",
            "unrolled_deq": f"DEQ-{self.width}, free W, T = {self.iterations}",
            "self_loop_deq": f"DEQ-{self.width}, self-loops",
        }[self.kind]

    def flops(self, inputs: int, steps: float) -> float:
        """Additions and multiplications of a forward pass of one sample, without activations; `steps` is T."""
        k = self.width
        ends = 2 * k * inputs + 2 * k
        if self.kind == "fnn":
            return ends + 2 * (self.depth - 2) * k**2
        return ends + (k * (k - 1) if self.kind == "self_loop_deq" else 2 * steps * k**2)


NORM = 0.95
"""Largest ‖W‖₂ of kind "deq"."""
EQUILIBRIUM = 1e-2
"""Largest mean relative residual, at the trained number of steps and at 300 iterations, of a network that is called an
equilibrium model; above it is a weight-tied recurrent network."""


class RegressionConfig(StoredConfig):
    """One training: task, network, and a budget of Adam steps on batches of fresh or drawn points.

    schedule "onecycle" is PyTorch's OneCycleLR up to `lr`; scale parameters (self-loops, layer scales) learn at
    `scale_lr`. clip is the largest norm of the gradient.
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

    @pydantic.field_validator("task", "model", mode="before")
    @classmethod
    def _read(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        return nested({"task": TaskConfig, "model": RegressorConfig}[info.field_name or ""], value)

    def label(self) -> str:
        model = self.model
        shape = f"L{model.depth}" if model.kind == "fnn" else ""
        return f"{self.task.label().replace('^', '')}-{model.kind}{model.width}{shape}"

    def work(self) -> float:
        """Rough seconds."""
        model = self.model
        repeats = {"deq": 25, "unrolled_deq": model.iterations or 0, "self_loop_deq": 4}.get(model.kind, 0)
        each = 4e-4 + 1.2e-4 * (model.depth or 0) + 2e-4 * repeats
        each += 3 * self.batch_size * model.flops(1, repeats or 1) / 2e10
        return round(self.steps * each, 2)

    def execute(self, job: Job) -> Result:
        return train_regression(self, job.progress)


# --- training -----------------------------------------------------------------------------------------------

LAST_ITERATION = 300
_SWEEP = (*range(1, 21), 25, 30, 40, 50, 75, 100, 150, 200, LAST_ITERATION)
_AUDITED = 1024
"""Test points on which a trained cell is iterated again."""
_LOGS = 25


def train_regression(config: RegressionConfig, progress: Callable[[int, int], None] = lambda *_: None) -> Result:
    """Train one regressor and audit it.

    Rows of the history, split/metric: test/mse along the training; at the end also train/mse (Boolean tasks),
    test/sup_error (steep), test/snr in dB (audio), train/density, the participation ratio of the features averaged over
    inputs, train/heat, the mean of the features' mean sizes over the largest; and in the split "audit": parameters,
    flops (a sample), steps (T), residual (mean over samples of ‖f(z) − z‖/‖f(z)‖ after the trained number of steps),
    residual_300, mse_300, backward_missed (share of training steps whose backward solve missed its tolerance), norm
    (‖W‖₂), largest (weight) and rebalanced (geometric mean of the layers' largest weights).

    The result has the arrays "features" (k,), the mean size of each feature on training points, and, of a sound, "fit"
    (3, N): inputs, values and predictions. `epoch` counts steps of Adam, or iterations in the split "iterations".
    """
    task = _Task(config.task, config.seed)
    model = config.model.build(task.inputs, config.seed).to(task.dtype)
    groups = [{"params": [], "lr": config.lr}, {"params": [], "lr": config.scale_lr or config.lr}]
    for name, parameter in model.named_parameters():
        groups[name in ("log_scale", "loops")]["params"].append(parameter)
    optimiser = torch.optim.Adam([group for group in groups if group["params"]], fused=True)
    top = [group["lr"] for group in optimiser.param_groups]
    schedule = torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0)
    if config.schedule == "onecycle":
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, top, total_steps=config.steps)
    rows: list[tuple[int, str, str, float]] = []
    every, missed = max(1, config.steps // _LOGS), 0
    for step in range(1, config.steps + 1):
        x, y = task.batch(config.batch_size)
        loss = (model(x).values - y).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimiser.step()
        schedule.step()
        if config.model.kind == "deq":
            model.project()
            missed += config.model.tol is not None and not bool(model.deq.last_backward.converged.all())
        if step % every == 0 or step == config.steps:
            if not math.isfinite(loss.item()):
                raise FloatingPointError(f"{config.label()} diverged at step {step}; use a lower lr, or clip=1.0")
            rows.append((step, "test", "mse", _mse(model, task.test)))
            progress(math.ceil(config.work() * step / config.steps), math.ceil(config.work()))
    with torch.no_grad():
        rows += [(config.steps, *row) for row in _final(config, task, model, missed / config.steps)]
        if isinstance(model, ReluDEQ):
            rows += _iterated(model, task.test)
        seen = task.train or task.test
        arrays = {"features": model(seen.x).features.double().abs().mean(0).numpy()}
        if config.task.name == "audio":
            arrays["fit"] = torch.stack([seen.x[:, 0], seen.y, model(seen.x).values]).numpy()
    return Result(
        {"history": pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])},
        arrays,
        {name: value.detach().clone() for name, value in model.state_dict().items()},
        {"parameters": count_parameters(model), "label": config.model.label()},
    )


def _mse(model: torch.nn.Module, samples: _Samples) -> float:
    with torch.no_grad():
        return float((model(samples.x).values - samples.y).double().square().mean())


def _final(
    config: RegressionConfig, task: _Task, model: ReluDEQ | FNN | SelfLoopDEQ, missed: float
) -> list[tuple[str, str, float]]:
    """(split, metric, value) of the finished network."""
    rows, steps, out = [], 1.0, model(task.test.x)
    if config.task.name == "boolean":
        rows.append(("train", "mse", _mse(model, task.train)))
        features = model(task.train.x).features.double().numpy()
        sizes = np.abs(features).mean(axis=0)
        rows.append(("train", "density", float(np.nanmean(diagonal.participation_ratio(features)))))
        rows.append(("train", "heat", float(sizes.mean() / sizes.max())))
    if config.task.name == "steep":
        s = steep.steep_points(config.task.level)
        y = model(torch.from_numpy(s)[:, None]).values.numpy()
        rows.append(("test", "sup_error", float(np.abs(y - steep.steep_target(s, config.task.level)).max())))
    if config.task.name == "audio":
        error = (out.values - task.test.y).double()
        power = task.test.y.double().square().mean() / error.square().mean()
        rows.append(("test", "snr", float(10 * torch.log10(power))))
    if isinstance(model, ReluDEQ):
        steps = float(config.model.iterations or out.solution.steps.double().mean())
        rows.append(("audit", "residual", float(out.solution.residual.double().mean())))
        rows.append(("audit", "norm", float(torch.linalg.matrix_norm(model.deq.cell.weight, 2))))
    if config.model.tol is not None:
        rows.append(("audit", "backward_missed", missed))
    largest = [float(matrix.abs().max()) for matrix in model.matrices()]
    rows.append(("audit", "largest", max(largest)))
    if isinstance(model, FNN):
        rows.append(("audit", "rebalanced", math.exp(float(np.mean(np.log(largest))))))
    facts = {"parameters": float(count_parameters(model)), "flops": config.model.flops(task.inputs, steps)}
    return rows + [("audit", *fact) for fact in (facts | {"steps": steps}).items()]


def _iterated(model: ReluDEQ, samples: _Samples) -> list[tuple[int, str, str, float]]:
    """Plain iteration of the trained cell from 0: error and mean residual after each number of iterations."""
    x, y = (part[:_AUDITED] for part in samples)
    injection = model.injection(x)
    z, rows = torch.zeros_like(injection), []
    for iteration in range(1, LAST_ITERATION + 1):
        z = model.deq.cell(z, injection)
        if iteration in _SWEEP:
            after = model.deq.cell(z, injection)
            residual = (after - z).norm(dim=1) / (after.norm(dim=1) + EPSILON)
            mse = (model.read_out(z)[:, 0] - y).double().square().mean()
            rows += [(iteration, "iterations", "mse", float(mse))]
            rows += [(iteration, "iterations", "residual", float(residual.double().mean()))]
    return rows
