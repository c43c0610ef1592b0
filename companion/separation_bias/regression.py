"""The small trainings of Wu et al. (2024): functions of a few inputs, a DEQ or a feed-forward network, and an audit.

A `RegressionConfig` is a run like any other: stored, cached, exported. Every equilibrium model is iterated again after
training, from 0, up to 300 times: its error and residual after each number of iterations say whether what was trained
is an equilibrium at all. Everything runs on the CPU, where networks this small are fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import pydantic
import torch
from torch import Tensor

from companion.separation_bias import constructions as built
from companion.separation_bias.diagonal import participation_ratio
from companion.separation_bias.networks import FNN, RegressorConfig, ReluDEQ, SelfLoopDEQ
from nclib.config import Config, StoredConfig
from nclib.engine.jobs import Job, Result
from nclib.models import count_parameters
from nclib.solver import EPSILON


class TaskConfig(Config):
    """The function to learn, and where it is tested.

    Parameters
    ----------
    name :
        "sawtooth" — T^m on [0, 1], 2^m pieces; fresh uniform points, input 2x − 1; the constant has error 1/12
        "steep" — δ/(δ + s), δ = 2^−d, of s = 1 − x₁; half of the points uniform in [0, 1], half log-uniform from δ/30
        "boolean" — a function of ±1 variables, tested on points that training never sees (GOTU)
        "audio" — amplitude as a function of time in [−1, 1], tested on the training samples
    level : m or d, of the first two
    target : of "boolean": "linear" (Σ c_i x_i, unseen x₁ = −1), "product" (x₁x₂), "majority" (of x₁, x₂, x₃), both
        unseen x₁ = x₂ = −1, or "abbe" (x₁x₂ − 1.25 x₂x₃ + 1.5 x₃x₁, unseen x₁x₂x₃ = −1; Abbe et al. 2023). Of "audio":
        "tone"
    variables : of "boolean"
    coefficients : of target "linear", one for each variable
    """

    name: Literal["sawtooth", "steep", "boolean", "audio"]
    level: int | None = pydantic.Field(default=None, ge=1, le=built.LARGEST_LEVEL)
    target: Literal["linear", "product", "majority", "abbe", "tone"] | None = None
    variables: int | None = pydantic.Field(default=None, ge=1, le=60)
    coefficients: tuple[float, ...] | None = pydantic.Field(default=None, strict=False)

    def label(self) -> str:
        """Short name for run ids and tables."""
        level = {"sawtooth": f"sawtooth-2^{self.level}", "steep": f"steep-d{self.level}"}.get(self.name)
        return level or {F1: "f1", F2: "f2"}.get(self.coefficients) or self.target or self.name


F1 = (1.0, 1.0, 1.0, *[0.0] * 17)
F2 = tuple(float(c) for c in np.linspace(1, 0.2, 20))
"""Coefficients of the two linear Boolean targets of 20 variables; the paper's eqs. (14) and (15) are not known."""


Samples = tuple[Tensor, Tensor]
"""Inputs (N, d) and values (N,)."""
_Function = Callable[[Tensor], Tensor]
BOOLEAN: dict[str, tuple[_Function, _Function]] = {
    "product": (lambda x: x[:, 0] * x[:, 1], lambda x: x[:, :2].amax(1) < 0),
    "majority": (lambda x: torch.sign(x[:, :3].sum(1)), lambda x: x[:, :2].amax(1) < 0),
    "abbe": (
        lambda x: x[:, 0] * x[:, 1] - 1.25 * x[:, 1] * x[:, 2] + 1.5 * x[:, 2] * x[:, 0],
        lambda x: x[:, :3].prod(1) < 0,
    ),
}
"""Function and unseen domain of targets that are not linear."""


class Task:
    """Training batches from a seed, and fixed points to test on; `train` is None where every batch is fresh."""

    def __init__(self, config: TaskConfig, seed: int) -> None:
        self.config, self.generator = config, torch.Generator().manual_seed(104_729 * seed + 1)
        self.dtype = torch.float64 if config.name == "steep" else torch.float32
        self.inputs, self.train = config.variables or 1, None
        if config.name == "audio":
            sound = torch.from_numpy(synthetic_tone())
            time = torch.linspace(-1, 1, len(sound), dtype=torch.float64)
            self.train = self.test = time[:, None].float(), sound.float()
        elif config.name == "boolean":
            self.train, self.test = self._boolean(4000, seen=True), self._boolean(2000, seen=False)
        else:
            self.test = self._fresh(4096, torch.Generator().manual_seed(7))

    def batch(self, size: int) -> Samples:
        if self.train is None:
            return self._fresh(size, self.generator)
        x, y = self.train
        rows = torch.randint(len(y), (size,), generator=self.generator)
        return x[rows], y[rows]

    def _fresh(self, size: int, generator: torch.Generator) -> Samples:
        level = self.config.level
        at = torch.rand(size, generator=generator, dtype=torch.float64)
        if self.config.name == "sawtooth":
            x, y = 2 * at - 1, built.tent_map(at.numpy(), level)
        else:
            lowest = math.log(2.0**-level / 30)
            at[size // 2 :] = torch.exp(lowest * (1 - at[size // 2 :]))
            x, y = at, built.steep_target(at.numpy(), level)
        return x[:, None].to(self.dtype), torch.from_numpy(y).to(self.dtype)

    def _boolean(self, count: int, seen: bool) -> Samples:
        linear = lambda x: x @ torch.tensor(self.config.coefficients), lambda x: x[:, 0] < 0
        function, unseen = BOOLEAN.get(self.config.target, linear)
        kept = torch.empty(0, self.inputs)
        while len(kept) < count:
            x = 2.0 * torch.randint(2, (4 * count, self.inputs), generator=self.generator) - 1
            kept = torch.cat([kept, x[unseen(x) != seen]])
        return kept[:count], function(kept[:count])


def synthetic_tone(samples: int = 1000) -> np.ndarray:
    """Harmonics 1, 2, 3, 5, 8 and 11 of 220 Hz with weights 1/h, a vibrato of 5 Hz and a tremolo of 9 Hz, at 8 kHz:
    (samples,) of largest size 1."""
    t = np.arange(samples) / 8000.0
    phase = 2 * np.pi * 220 * t + 0.5 * np.sin(2 * np.pi * 5 * t)
    sound = sum(np.sin(h * phase) / h for h in (1, 2, 3, 5, 8, 11)) * (1 + 0.3 * np.sin(2 * np.pi * 9 * t))
    return sound / np.abs(sound).max()


# --- the run ------------------------------------------------------------------------------------------------


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

    def label(self) -> str:
        shape = f"L{self.model.depth}" if self.model.kind == "fnn" else ""
        return f"{self.task.label().replace('^', '')}-{self.model.kind}{self.model.width}{shape}"

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
    largest (weight) and rebalanced (geometric mean of the layers' largest weights).

    The result has the arrays "features" (k,), the mean size of each feature on training points, and, of a sound, "fit"
    (3, N): inputs, values and predictions. `epoch` counts steps of Adam, or iterations in the split "iterations".
    """
    task, total = Task(config.task, config.seed), config.work()
    model = config.model.build(task.inputs, config.seed).to(task.dtype)
    weights = dict(model.named_parameters())
    scales = [weights.pop(name) for name in ("log_scale", "loops") if name in weights]
    groups = [{"params": [*weights.values()], "lr": config.lr}, {"params": scales, "lr": config.scale_lr or config.lr}]
    optimiser = torch.optim.Adam([group for group in groups if group["params"]], fused=True)
    schedule, top = torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0), [g["lr"] for g in optimiser.param_groups]
    if config.schedule == "onecycle":
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, top, total_steps=config.steps)
    rows: list[tuple[int, str, str, float]] = []
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
        if step % max(1, config.steps // _LOGS) == 0 or step == config.steps:
            if not math.isfinite(loss.item()):
                raise FloatingPointError(f"{config.label()} diverged at step {step}; use a lower lr, or clip=1.0")
            rows.append((step, "test", "mse", _mse(model, task.test)))
            progress(math.ceil(total * step / config.steps), math.ceil(total))
    with torch.no_grad():
        rows += [(config.steps, *row) for row in _final(config, task, model)]
        rows += _iterated(model, task.test) if isinstance(model, ReluDEQ) else []
        x, y = task.train or task.test
        out = model(x)
    arrays = {"features": out.features.double().abs().mean(0).numpy()}
    if config.task.name == "audio":
        arrays["fit"] = torch.stack([x[:, 0], y, out.values]).numpy()
    return Result(
        {"history": pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])},
        arrays,
        {name: value.detach().clone() for name, value in model.state_dict().items()},
        {"parameters": count_parameters(model), "label": config.model.label()},
    )


def _mse(model: torch.nn.Module, samples: Samples) -> float:
    with torch.no_grad():
        return float((model(samples[0]).values - samples[1]).double().square().mean())


def _final(config: RegressionConfig, task: Task, model: ReluDEQ | FNN | SelfLoopDEQ) -> list[tuple[str, str, float]]:
    """(split, metric, value) of the finished network."""
    (x, y), name, level = task.test, config.task.name, config.task.level
    rows, steps, out = [], 1.0, model(x)
    if name == "boolean":
        features = model(task.train[0]).features.double().numpy()
        sizes = np.abs(features).mean(axis=0)
        rows.append(("train", "mse", _mse(model, task.train)))
        rows.append(("train", "density", float(np.nanmean(participation_ratio(features)))))
        rows.append(("train", "heat", float(sizes.mean() / sizes.max())))
    if name == "steep":
        s = built.steep_points(level)
        found = model(torch.from_numpy(s)[:, None]).values.numpy()
        rows.append(("test", "sup_error", float(np.abs(found - built.steep_target(s, level)).max())))
    if name == "audio":
        power = y.double().square().mean() / (out.values - y).double().square().mean()
        rows.append(("test", "snr", float(10 * torch.log10(power))))
    if isinstance(model, ReluDEQ):
        steps = float(config.model.iterations or out.solution.steps.double().mean())
        rows.append(("audit", "residual", float(out.solution.residual.double().mean())))
    largest = [float(matrix.abs().max()) for matrix in model.matrices()]
    rows.append(("audit", "largest", max(largest)))
    if isinstance(model, FNN):
        rows.append(("audit", "rebalanced", math.exp(float(np.mean(np.log(largest))))))
    rows.append(("audit", "parameters", float(count_parameters(model))))
    rows.append(("audit", "flops", config.model.flops(task.inputs, steps)))
    return [*rows, ("audit", "steps", steps)]


def _iterated(model: ReluDEQ, samples: Samples) -> list[tuple[int, str, str, float]]:
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
