"""The small trainings of Wu et al. (2024): functions of a few inputs, networks that learn them (an equilibrium model, a
feed-forward network and a DEQ of self-loops), and an audit.

A `RegressionConfig` is a run like any other: stored, cached, exported. Every equilibrium model is iterated again after
training, from 0, up to 300 times: its error and residual after each number of iterations show whether what was trained
is an equilibrium at all. Everything runs on the CPU, where networks this small are fastest.
"""

import itertools
import math
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nclib.config import Config, StoredConfig
from nclib.deq import DEQ, Implicit, Unrolled
from nclib.models import count_parameters
from nclib.papers.separation_bias import constructions as built
from nclib.papers.separation_bias.diagonal import participation_ratio
from nclib.runs import Job, Result
from nclib.solvers import EPSILON, FixedPointIteration, Solution
from nclib.store import HISTORY


class TaskConfig(Config):
    """The function to learn, and where it is tested.

    Parameters
    ----------
    name :
        "sawtooth" — T^m on [0, 1], 2^m pieces; new uniform points, input 2x − 1; the constant has error 1/12
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
BOOLEAN: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "product": (lambda x: x[:, 0] * x[:, 1], lambda x: x[:, :2].amax(1) < 0),
    "majority": (lambda x: torch.sign(x[:, :3].sum(1)), lambda x: x[:, :2].amax(1) < 0),
    "abbe": (
        lambda x: x[:, 0] * x[:, 1] - 1.25 * x[:, 1] * x[:, 2] + 1.5 * x[:, 2] * x[:, 0],
        lambda x: x[:, :3].prod(1) < 0,
    ),
}
"""Function and unseen domain of targets that are not linear."""


class Task:
    """Training batches from a seed, and fixed points to test on; `train` is None where every batch is new."""

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


# --- the networks -------------------------------------------------------------------------------------------------

NORM = 0.95
"""Largest ‖W‖₂ of kind "deq"."""
EQUILIBRIUM = 1e-2
"""Largest mean relative residual, at the trained number of steps and at 300 iterations, of a network that is called an
equilibrium model; above it is a weight-tied recurrent network."""


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
    spread : of both DEQs with W, whose entries start as normal with deviation spread/√k
    input_scale, bias_scale : largest entries of the first layer at the start, uniform; None for PyTorch's
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

    def build(self, inputs: int, seed: int) -> "ReluDEQ | FNN | SelfLoopDEQ":
        """The network with initial weights from `seed` alone."""
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            return {"fnn": FNN, "self_loop_deq": SelfLoopDEQ}.get(self.kind, ReluDEQ)(inputs, self, generator)

    def label(self) -> str:
        """Readable name of the arm, such as "DEQ-80, ‖W‖ ≤ 0.95"."""
        if self.kind == "fnn":
            return f"FNN {self.width}×L{self.depth}" + (", scaled" if self.scaled else "")
        kinds = {"deq": f"‖W‖ ≤ {NORM:g}", "unrolled_deq": f"free W, T = {self.iterations}"}
        return f"DEQ-{self.width}, {kinds.get(self.kind, 'self-loops')}"

    def flops(self, inputs: int, steps: float) -> float:
        """Additions and multiplications of a forward pass of one sample, without activations; `steps` is T."""
        k = self.width
        ends = 2 * k * inputs + 2 * k
        if self.kind == "fnn":
            return ends + 2 * (self.depth - 2) * k**2
        return ends + (k * (k - 1) if self.kind == "self_loop_deq" else 2 * steps * k**2)


class Regression(NamedTuple):
    """What a regressor returns: values (B,), features (B, k) before the read-out and, for an equilibrium that a solver
    looked for, its `Solution`."""

    values: Tensor
    features: Tensor
    solution: Solution | None


_ACTIVATIONS = {"relu": torch.relu, "sine": torch.sin}


def _uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        parameter.copy_((2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1) * bound)


class DenseCell(nn.Module):
    """f(z, x) = φ(W z + x), all (B, k)."""

    def __init__(self, weight: Tensor, activation: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.activation = _ACTIVATIONS[activation]

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.activation(F.linear(z, self.weight) + x)


class ReluDEQ(nn.Module):
    """z = φ(W z + U x + b), y = a·z + c; φ = ReLU or sine. (B, d) to a `Regression`; k² + (d + 2) k + 1 parameters.

    Of kind "deq" ‖W‖₂ is kept below 1 by `project` after each step of training: the equilibrium exists, is one, and
    plain iteration finds it (φ is 1-Lipschitz). Of kind "unrolled_deq" it is a weight-tied recurrent network unless its
    steps happen to reach the equilibrium.

    Source: Wu et al. (2024), eqs. (1)–(2); start and constraint are ours.
    """

    def __init__(self, inputs: int, config: RegressorConfig, generator: torch.Generator) -> None:
        super().__init__()
        width, self.norm = config.width, NORM if config.kind == "deq" else None
        self.injection, self.read_out = nn.Linear(inputs, width), nn.Linear(width, 1)
        _uniform(self.injection.weight, config.input_scale or inputs**-0.5, generator)
        _uniform(self.injection.bias, config.bias_scale or inputs**-0.5, generator)
        for parameter in self.read_out.parameters():
            _uniform(parameter, width**-0.5, generator)
        draws = torch.randn(width, width, generator=generator, dtype=torch.float64)
        cell = DenseCell((draws * config.spread * width**-0.5).float(), config.activation)
        if config.iterations is None:
            solved = FixedPointIteration(tol=config.tol, max_steps=100), Implicit()
        else:
            solved = None, Unrolled(config.iterations, tol=EQUILIBRIUM)
        self.deq = DEQ(cell, *solved, z0="zeros", on_failure="ignore")  # the audit has the residual
        self.project()

    def project(self) -> None:
        """Scale W back onto ‖W‖₂ ≤ norm."""
        if self.norm is not None:
            with torch.no_grad():
                size = torch.linalg.matrix_norm(self.deq.cell.weight, 2)
                self.deq.cell.weight *= (self.norm / size).clamp_max(1.0)

    def matrices(self) -> list[Tensor]:
        return [self.deq.cell.weight, self.injection.weight, self.read_out.weight]

    def forward(self, x: Tensor) -> Regression:
        z, solution = self.deq(self.injection(x))
        return Regression(self.read_out(z)[:, 0], z, solution)


class FNN(nn.Module):
    """z¹ = φ(W₁ x + b₁), z^{i+1} = φ(W_{i+1} z^i + b_{i+1}), y = W_L z^{L−1} + c. (B, inputs) to a `Regression`.

    Layers after the first start as in PyTorch, with sine uniform within √(6/k) as is usual there (Sitzmann et al.
    2020). Where it is `scaled`, each weight matrix has a factor e^p of its own that is trained, so that Adam can reach
    large weights; `matrices` returns the products.
    """

    def __init__(self, inputs: int, config: RegressorConfig, generator: torch.Generator) -> None:
        super().__init__()
        sizes = [inputs, *[config.width] * (config.depth - 1), 1]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        gain = 6**0.5 if config.activation == "sine" else 1.0
        for number, layer in enumerate(self.layers):
            usual = layer.in_features**-0.5
            weight, bias = (gain * usual, None) if number else (config.input_scale, config.bias_scale)
            _uniform(layer.weight, weight or usual, generator)
            _uniform(layer.bias, bias or usual, generator)
        self.log_scale = nn.Parameter(torch.zeros(config.depth)) if config.scaled else None
        self.activation = _ACTIVATIONS[config.activation]

    def matrices(self) -> list[Tensor]:
        """The weight matrices as they act, W_1 … W_L."""
        scales = [1.0] * len(self.layers) if self.log_scale is None else self.log_scale.exp()
        return [layer.weight * scale for layer, scale in zip(self.layers, scales, strict=True)]

    def forward(self, x: Tensor) -> Regression:
        *hidden, last = zip(self.matrices(), self.layers, strict=True)
        for weight, layer in hidden:
            x = self.activation(F.linear(x, weight, layer.bias))
        return Regression(F.linear(x, last[0], last[1].bias)[:, 0], x, None)


class SelfLoopDEQ(nn.Module):
    """A ReLU DEQ of one input with lower triangular W and self-loops w_tt = 1 − e^{−softplus(q_t)} below 1.

        z_t = σ( (u_t x + Σ_{i<t} w_ti z_i)/(1 − w_tt) + b̃_t ),   the DEQ's own bias is (1 − w_tt) b̃_t

    Solved exactly, neuron by neuron, and differentiated through that. (B, 1) to a `Regression`. The first seven neurons
    start with u = −1 and b̃ in [0.2, 1], spread evenly: others tried here did not learn the steepest targets.

    Source: ours, the trained counterpart of `nclib.papers.separation_bias.constructions.steep_deq_triangular`.
    """

    def __init__(self, inputs: int, config: RegressorConfig, generator: torch.Generator) -> None:
        super().__init__()
        width, steep = config.width, min(7, config.width)
        self.lower, self.loops = nn.Parameter(torch.empty(width * (width - 1) // 2)), nn.Parameter(torch.empty(width))
        self.inputs, self.biases = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.weights, self.constant = nn.Parameter(torch.empty(width)), nn.Parameter(torch.zeros(()))
        starts = {self.lower: 0.1, self.loops: 0.5, self.inputs: 1.0, self.biases: 1.0, self.weights: width**-0.5}
        for parameter, bound in starts.items():
            _uniform(parameter, bound, generator)
        with torch.no_grad():
            self.inputs[:steep] = -1.0
            self.biases[:steep] = torch.linspace(0.2, 1.0, steep)

    def _solved_for(self) -> tuple[Tensor, Tensor]:
        """1 − w_tt (k,), and the entries of W below the diagonal (k, k)."""
        slack = torch.exp(-F.softplus(self.loops))
        below = torch.tril_indices(len(slack), len(slack), -1)
        return slack, slack.new_zeros(len(slack), len(slack)).index_put(tuple(below), self.lower)

    def matrices(self) -> list[Tensor]:
        """W, u, b and a of z = σ(W z + u x + b), y = a·z + c."""
        slack, below = self._solved_for()
        return [below + torch.diag(1 - slack), self.inputs, slack * self.biases, self.weights]

    def forward(self, x: Tensor) -> Regression:
        slack, below = self._solved_for()
        direct = x * (self.inputs / slack) + self.biases
        coupling = below / slack[:, None]
        z = torch.relu(direct[:, :1])
        for t in range(1, len(slack)):
            new = torch.relu(torch.addmv(direct[:, t], z, coupling[t, :t]))
            z = torch.cat([z, new[:, None]], dim=1)
        return Regression(z @ self.weights + self.constant, z, None)


# --- the run ------------------------------------------------------------------------------------------------


class RegressionConfig(StoredConfig):
    """One training: task, network, and a budget of Adam steps on batches of new or sampled points.

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

    def execute(self, job: Job) -> Result:
        return train_regression(self, job.progress)


# --- training -----------------------------------------------------------------------------------------------

LAST_ITERATION = 300
_SWEEP = (*range(1, 21), 25, 30, 40, 50, 75, 100, 150, 200, LAST_ITERATION)
_AUDITED = 1024
"""Test points on which a trained cell is iterated again."""


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
    task = Task(config.task, config.seed)
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
        if step % max(1, config.steps // 25) == 0 or step == config.steps:
            if not math.isfinite(loss.item()):
                raise FloatingPointError(f"{config.label()} diverged at step {step}; use a lower lr, or clip=1.0")
            rows.append((step, "test", "mse", _mse(model, task.test)))
            progress(step, config.steps)
    with torch.no_grad():
        rows += [(config.steps, *row) for row in _final(config, task, model)]
        rows += _iterated(model, task.test) if isinstance(model, ReluDEQ) else []
        x, y = task.train or task.test
        out = model(x)
    arrays = {"features": out.features.double().abs().mean(0).numpy()}
    if config.task.name == "audio":
        arrays["fit"] = torch.stack([x[:, 0], y, out.values]).numpy()
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Result({"history": pd.DataFrame(rows, columns=HISTORY)}, arrays, state)


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
    return [*rows, ("audit", "flops", config.model.flops(task.inputs, steps)), ("audit", "steps", steps)]


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
