"""DEQs and shallow explicit networks of finite width, trained: the arms of Ling et al.'s Figure 3.

    tanh_deq, relu_deq         z = φ(σ_a A z + σ_b B x)/√m
    h_tanh_enn, tanh_enn       σ(B x)/√m, one hidden layer
    l_relu_enn, relu_enn       σ_2(A σ_1(B x)/√m)/√m, two hidden layers

and logits W z. A and B start standard normal, the same for all arms of a seed and width, W at zero.
First the readout W is trained on the features of the random weights, then all weights are trained
from there, both by plain stochastic gradient descent. Images are centred by the mean training image
and scaled so that the mean of ‖x‖² is 1.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import pandas as pd
import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nclib import training
from nclib.config import Config, ConfigError, DataConfig, RunConfig, SolverConfig, StoredConfig
from nclib.data import make_split
from nclib.deq import DEQ
from nclib.models import build_solver
from nclib.runs import Job, Result
from nclib.solvers import Solution
from nclib.store import HISTORY

ShallowKind = Literal["tanh_deq", "h_tanh_enn", "tanh_enn", "relu_deq", "l_relu_enn", "relu_enn"]
DEQS = ("tanh_deq", "relu_deq")
EVALUATION_BATCH = 1024

Samples = tuple[Tensor, Tensor]
"""In rows x (N, p) float32, centred and scaled by the training ones, and labels (N,)."""


# --- configuration --------------------------------------------------------------------------------


class ShallowModelConfig(Config):
    """One arm.

    Parameters
    ----------
    kind : see the head of this module
    width : m, units of each hidden layer
    numbers : parameters of the activations, from the matching for τ_0 = 1: a and c of
        a·clip(x, −c, c); a, b and shift of max(a x, b x) − shift, layer by layer; shift of
        ReLU(x) − shift, layer by layer
    sigma_a2, solver : of the DEQs; σ_b² = 1 − σ_a²
    """

    kind: ShallowKind
    width: int = pydantic.Field(ge=1)
    numbers: tuple[float, ...] = pydantic.Field(default=(), strict=False)
    sigma_a2: float | None = pydantic.Field(default=None, ge=0, lt=1)
    solver: SolverConfig | None = None


class ShallowTrainConfig(Config):
    """How an arm is trained: by SGD without momentum on the mean cross-entropy.

    Parameters
    ----------
    readout_epochs : of the readout alone, on random features
    epochs : of all weights afterwards; 0 leaves that out
    batch_size : images of a step
    lr : learning rate of both, in the scaling above, in which it does not depend on the width
    clip : largest norm of the gradient when all weights are trained
    """

    readout_epochs: int = pydantic.Field(default=100, ge=1)
    epochs: int = pydantic.Field(default=20, ge=0)
    batch_size: int = pydantic.Field(default=128, ge=1)
    lr: float = pydantic.Field(default=1.0, gt=0)
    clip: float = pydantic.Field(default=1.0, gt=0)


class ShallowConfig(StoredConfig):
    """One training: images, arm, protocol and seed.

    The seed sets subset, weights and order of the images, so that arms with equal seed and width
    are a pair.

    Parameters
    ----------
    data : the images
    model : the arm
    train : the protocol
    encoder : a run whose ResNet-18 turns images into features, as VGG-19 does in the paper; None
        takes the pixels
    """

    kind: Literal["shallow"] = "shallow"
    data: DataConfig = pydantic.Field(default_factory=DataConfig)
    model: ShallowModelConfig
    train: ShallowTrainConfig = pydantic.Field(default_factory=ShallowTrainConfig)
    encoder: RunConfig | None = None

    def label(self) -> str:
        dataset = self.data.dataset.removeprefix("folder:").split("@")[0]
        return f"{dataset}-{self.model.kind}-m{self.model.width}"

    def needs(self) -> RunConfig | None:
        return self.encoder

    def seconds(self) -> float:
        return 2.6 if self.model.kind in DEQS else 0.5

    def execute(self, job: Job) -> Result:
        return train_shallow(self, job)


# --- the networks ---------------------------------------------------------------------------------


def _shifted_relu(shift: float, x: Tensor) -> Tensor:
    return F.relu(x) - shift


def _scaled_hard_tanh(a: float, c: float, x: Tensor) -> Tensor:
    return a * x.clamp(-c, c)


def _shifted_leaky_relu(a: float, b: float, shift: float, x: Tensor) -> Tensor:
    return torch.maximum(a * x, b * x) - shift


def activations_of(kind: str, numbers: Sequence[float]) -> list[Callable[[Tensor], Tensor]]:
    """The activations of an arm, first layer first; a DEQ has one."""
    if kind in ("tanh_deq", "tanh_enn"):
        return [torch.tanh]
    if kind == "h_tanh_enn":
        return [functools.partial(_scaled_hard_tanh, *numbers)]
    if kind in ("relu_deq", "relu_enn"):
        return [functools.partial(_shifted_relu, shift) for shift in numbers]
    return [
        functools.partial(_shifted_leaky_relu, *numbers[:3]),
        functools.partial(_shifted_leaky_relu, *numbers[3:]),
    ]


class ShallowCell(nn.Module):
    """(z, u) ↦ φ(σ_a A z + u)/√m."""

    def __init__(self, matrix: Tensor, phi: Callable[[Tensor], Tensor], sigma_a: float) -> None:
        super().__init__()
        self.matrix = nn.Parameter(matrix)
        self.phi = phi
        self.sigma_a = sigma_a

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        before = torch.addmm(u, z, self.matrix.T, alpha=self.sigma_a)
        return self.phi(before) / math.sqrt(len(self.matrix))


class ShallowNetwork(nn.Module):
    """An arm, with weights from `seed` alone.

    Parameters
    ----------
    config : the arm
    num_features, num_classes : p and K
    seed : of the initial weights
    """

    def __init__(
        self, config: ShallowModelConfig, num_features: int, num_classes: int, seed: int
    ) -> None:
        super().__init__()
        width = config.width
        generator = torch.Generator().manual_seed(2 * seed)
        self.inputs = nn.Parameter(torch.randn(width, num_features, generator=generator))
        generator = torch.Generator().manual_seed(2 * seed + 1)
        self.activations = activations_of(config.kind, config.numbers)
        self.deq = None
        self.matrix = None
        if config.kind in DEQS:
            matrix = torch.randn(width, width, generator=generator)
            cell = ShallowCell(matrix, self.activations[0], math.sqrt(config.sigma_a2))
            # The history has the share of what did not converge.
            solver = build_solver(config.solver)
            self.deq = DEQ(cell, solver, z0="zeros", on_failure="ignore")
            self.sigma_b = math.sqrt(1 - config.sigma_a2)
        elif len(self.activations) == 2:
            self.matrix = nn.Parameter(torch.randn(width, width, generator=generator))
        self.readout = nn.Parameter(torch.zeros(num_classes, width))

    def features(self, x: Tensor) -> tuple[Tensor, Solution | None]:
        """x (B, p) to what the readout sees, z (B, m), with the evidence of the solve of a DEQ."""
        u = x @ self.inputs.T
        if self.deq is not None:
            return self.deq(self.sigma_b * u)
        root = math.sqrt(len(self.inputs))
        z = self.activations[0](u) / root
        if self.matrix is not None:
            z = self.activations[1](z @ self.matrix.T) / root
        return z, None

    def forward(self, x: Tensor) -> Tensor:
        """x (B, p) to logits (B, K)."""
        z, _ = self.features(x)
        return z @ self.readout.T


# --- training -------------------------------------------------------------------------------------


def load_inputs(
    config: ShallowConfig, weights: dict[str, Tensor] | None, device: torch.device
) -> dict[str, Samples]:
    """Pixels, or features of the encoder with these weights, of "train" and "test"."""
    if config.encoder is None:
        split = make_split(config.data, config.seed)
        train = split.train_images.flatten(1).double()
        test = split.test_images.flatten(1).double()
    else:
        with training.arithmetic(config.encoder.train, device), torch.no_grad():
            model, split, loaders = training.reopen(config.encoder, weights, device)
            model.eval()
            encoded = {}
            for name in ("train", "test"):
                batches = [model(x.to(device)).features for x, _ in loaders[name].in_order()]
                encoded[name] = torch.cat(batches).double().cpu()
        train = encoded["train"]
        test = encoded["test"]
    mean = train.mean(dim=0)
    train = train - mean
    test = test - mean
    scale = train.square().sum(dim=1).mean().sqrt()
    return {
        "train": ((train / scale).float().to(device), split.train_labels.to(device)),
        "test": ((test / scale).float().to(device), split.test_labels.to(device)),
    }


def train_shallow(config: ShallowConfig, job: Job) -> Result:
    """Train one arm.

    Returns
    -------
    Result
        With the weights of the readout alone. Metrics of its history: accuracy_readout and
        accuracy_all (share of right answers when only the readout, and when all weights have been
        trained), loss_readout and loss_all and, for a DEQ, solver_converged and solver_steps after
        each of the two. Facts: numbers of inputs, of images, and of epochs that a checkpoint had.

    Raises
    ------
    ConfigError
        When the loss becomes NaN: a smaller lr helps.
    """
    weights = None if job.base is None else job.store.open(job.base).weights
    inputs = load_inputs(config, weights, job.device)
    x, labels = inputs["train"]
    train = config.train
    num_classes = int(labels.max()) + 1
    net = ShallowNetwork(config.model, x.shape[1], num_classes, config.seed).to(job.device)

    state = job.checkpoint.load()
    if state is None:
        fit_readout(net, x, labels, config)
        rows = _measure(net, inputs, "readout", train.readout_epochs)
        done = 0
    else:
        net.load_state_dict(state["net"])
        rows = [tuple(row) for row in state["rows"]]
        done = state["done"]

    optimiser = torch.optim.SGD(net.parameters(), lr=train.lr)
    for epoch in range(done, train.epochs):
        for batch in order_of(len(x), train.batch_size, config.seed, epoch, job.device):
            loss = F.cross_entropy(net(x[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), train.clip)
            optimiser.step()
        if epoch + 1 < train.epochs:
            rows_so_far = [list(row) for row in rows]
            state = {"net": net.state_dict(), "rows": rows_so_far, "done": epoch + 1}
            job.checkpoint.save(state)
        job.progress(epoch + 1, train.epochs)
    if train.epochs > 0:
        rows += _measure(net, inputs, "all", train.readout_epochs + train.epochs)
    history = pd.DataFrame(rows, columns=HISTORY)
    facts = {"inputs": x.shape[1], "train": len(x), "test": len(inputs["test"][0]), "resumed": done}
    readout = net.readout.detach().cpu()
    return Result({"history": history}, weights={"readout": readout}, facts=facts)


def fit_readout(net: ShallowNetwork, x: Tensor, labels: Tensor, config: ShallowConfig) -> None:
    """SGD on the readout alone.

    The gradient of the softmax regression is written out, for it is all that this loop does.
    """
    z, _ = _features(net, x)
    train = config.train
    onehot = F.one_hot(labels, len(net.readout)).to(z.dtype)
    with torch.no_grad():
        for epoch in range(train.readout_epochs):
            for batch in order_of(len(z), train.batch_size, config.seed, -1 - epoch, z.device):
                part = z[batch]
                error = torch.softmax(part @ net.readout.T, dim=1) - onehot[batch]
                net.readout.addmm_(error.T, part, alpha=-train.lr / len(part))


def order_of(
    n: int, batch_size: int, seed: int, epoch: int, device: torch.device
) -> Iterator[Tensor]:
    """Batches of row numbers, in an order that follows from seed and epoch alone.

    Epochs of the readout count down from −1.
    """
    entropy = [seed, abs(epoch), int(epoch < 0)]
    state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(state[0]))
    return iter(torch.randperm(n, generator=generator).to(device).split(batch_size))


@torch.no_grad()
def _features(net: ShallowNetwork, x: Tensor) -> tuple[Tensor, list[Solution]]:
    features = []
    solutions = []
    for part in x.split(EVALUATION_BATCH):
        z, solution = net.features(part)
        features.append(z)
        if solution is not None:
            solutions.append(solution)
    return torch.cat(features), solutions


@torch.no_grad()
def _measure(
    net: ShallowNetwork, inputs: dict[str, Samples], phase: str, epoch: int
) -> list[tuple[int, str, str, float]]:
    """Rows of the history; `phase` is "readout" or "all"."""
    rows = []
    for split, (x, labels) in inputs.items():
        z, solutions = _features(net, x)
        logits = z @ net.readout.T
        accuracy = (logits.argmax(1) == labels).double().mean().item()
        loss = F.cross_entropy(logits.double(), labels).item()
        if not math.isfinite(loss):
            raise ConfigError("the loss became NaN; use a smaller lr")
        rows.append((epoch, split, f"accuracy_{phase}", accuracy))
        rows.append((epoch, split, f"loss_{phase}", loss))
        if solutions:
            converged = torch.cat([solution.converged for solution in solutions])
            steps = torch.cat([solution.steps for solution in solutions])
            rows.append((epoch, split, "solver_converged", converged.double().mean().item()))
            rows.append((epoch, split, "solver_steps", steps.double().mean().item()))
    return rows


def describe_shallow(configs: Sequence[ShallowConfig]) -> str:
    """A few sentences for captions: profile, data, protocol, widths, seeds."""
    first = configs[0]
    images = first.data
    train = first.train
    dataset = images.dataset.split("@")[0]
    count = "all" if images.n_max is None else images.n_max
    inputs = "pixels"
    if first.encoder is not None:
        inputs = f"features of a ResNet-18 of width {first.encoder.model.width}"
    widths = sorted({config.model.width for config in configs})
    seeds = len({config.seed for config in configs})
    seeds_in_words = "1 seed" if seeds == 1 else f"{seeds} seeds"
    text = (
        f"Profile {first.profile}: {dataset}, {count} training images a class, {inputs}, "
        f"widths {', '.join(map(str, widths))}, {seeds_in_words}; "
        f"SGD, lr {train.lr:g}, batch {train.batch_size}: "
        f"{train.readout_epochs} epochs of the readout on random features, "
        f"then {train.epochs} of all weights."
    )
    for config in configs:
        solver = config.model.solver
        if solver is not None:
            return f"{text} Equilibria by {solver.method} to relative residual {solver.tol:g}."
    return text
