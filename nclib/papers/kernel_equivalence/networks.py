"""Fully connected DEQs and shallow explicit networks of finite width, trained: the arms of Ling et al.'s Figure 3.

    tanh_deq, relu_deq         z = φ(σ_a A z + σ_b B x)/√m
    h_tanh_enn, tanh_enn       σ(B x)/√m, one hidden layer
    l_relu_enn, relu_enn       σ_2(A σ_1(B x)/√m)/√m, two hidden layers

and logits W z. A and B start standard normal, the same for all arms of a seed and width, W at zero. First the readout W
is trained on the features of the random weights, then all weights are trained from there, both by plain stochastic
gradient descent. Images are centred by the mean training image and scaled so that the mean of ‖x‖² is 1.
"""

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

ShallowKind = Literal["tanh_deq", "h_tanh_enn", "tanh_enn", "relu_deq", "l_relu_enn", "relu_enn"]

_DEQS = ("tanh_deq", "relu_deq")
_EVALUATION_BATCH = 1024


class ShallowModelConfig(Config):
    """One arm.

    Parameters
    ----------
    kind : see the head of this module
    width : m, units of each hidden layer
    numbers : parameters of the activations, from the matching for τ_0 = 1: a and c of a·clip(x, −c, c); a, b and
        shift of max(a x, b x) − shift, layer by layer; shift of ReLU(x) − shift, layer by layer
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
    lr : learning rate of both, in the scaling above, in which it does not depend on the width
    clip : largest norm of the gradient when all weights are trained
    """

    readout_epochs: int = pydantic.Field(default=100, ge=1)
    epochs: int = pydantic.Field(default=20, ge=0)
    batch_size: int = pydantic.Field(default=128, ge=1)
    lr: float = pydantic.Field(default=1.0, gt=0)
    clip: float = pydantic.Field(default=1.0, gt=0)


class ShallowConfig(StoredConfig):
    """One training: images, arm, protocol and seed. The seed sets subset, weights and order of the images, so that arms
    with equal seed and width are a pair.

    Parameters
    ----------
    encoder : a run whose ResNet-18 turns images into features, as VGG-19 does in the paper; None takes the pixels
    """

    kind: Literal["shallow"] = "shallow"
    data: DataConfig = pydantic.Field(default_factory=DataConfig)
    model: ShallowModelConfig
    train: ShallowTrainConfig = pydantic.Field(default_factory=ShallowTrainConfig)
    encoder: RunConfig | None = None

    def label(self) -> str:
        name = self.data.dataset.removeprefix("folder:").split("@")[0]
        return f"{name}-{self.model.kind}-m{self.model.width}"

    def needs(self) -> RunConfig | None:
        return self.encoder

    def execute(self, job: Job) -> Result:
        return train_shallow(self, job)


# --- the networks ------------------------------------------------------------------------------------------------


def _layers(kind: str, numbers: Sequence[float]) -> list[Callable[[Tensor], Tensor]]:
    """The activations of an arm, first layer first; a DEQ has one."""
    if kind in ("tanh_deq", "tanh_enn"):
        return [torch.tanh]
    if kind == "h_tanh_enn":
        a, c = numbers
        return [lambda x: a * x.clamp(-c, c)]
    if kind in ("relu_deq", "relu_enn"):
        return [lambda x, shift=shift: F.relu(x) - shift for shift in numbers]
    slopes = [numbers[:3], numbers[3:]]
    return [lambda x, s=s: torch.maximum(s[0] * x, s[1] * x) - s[2] for s in slopes]


class _Cell(nn.Module):
    """(z, u) ↦ φ(σ_a A z + u)/√m."""

    def __init__(self, matrix: Tensor, phi: Callable[[Tensor], Tensor], sigma_a: float) -> None:
        super().__init__()
        self.matrix, self.phi, self.sigma_a = nn.Parameter(matrix), phi, sigma_a

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        return self.phi(torch.addmm(u, z, self.matrix.T, alpha=self.sigma_a)) / math.sqrt(len(self.matrix))


class ShallowNetwork(nn.Module):
    """An arm with K logits for inputs of p features, weights from `seed` alone; `features` is what the readout sees."""

    def __init__(self, config: ShallowModelConfig, num_features: int, num_classes: int, seed: int) -> None:
        super().__init__()
        m = config.width
        inputs, matrix = (torch.Generator().manual_seed(2 * seed + i) for i in (0, 1))
        self.inputs = nn.Parameter(torch.randn(m, num_features, generator=inputs))
        layers = _layers(config.kind, config.numbers)
        self.phi, self.deq, self.matrix = layers, None, None
        if config.kind in _DEQS:
            cell = _Cell(torch.randn(m, m, generator=matrix), layers[0], math.sqrt(config.sigma_a2))
            # The history has the share of what did not converge.
            self.deq = DEQ(cell, build_solver(config.solver), z0="zeros", on_failure="ignore")
            self.sigma_b = math.sqrt(1 - config.sigma_a2)
        elif len(layers) == 2:
            self.matrix = nn.Parameter(torch.randn(m, m, generator=matrix))
        self.readout = nn.Parameter(torch.zeros(num_classes, m))

    def features(self, x: Tensor) -> tuple[Tensor, Solution | None]:
        """x (B, p) to z (B, m), with the evidence of the solve for a DEQ."""
        u, root = x @ self.inputs.T, math.sqrt(len(self.inputs))
        if self.deq is not None:
            return self.deq(self.sigma_b * u)
        z = self.phi[0](u) / root
        return (z if self.matrix is None else self.phi[1](z @ self.matrix.T) / root), None

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0] @ self.readout.T


# --- training ----------------------------------------------------------------------------------------------------


Samples = tuple[Tensor, Tensor]
"""In rows x (N, p) float32, centred and scaled by the training ones, and labels (N,)."""


def load_inputs(config: ShallowConfig, weights: dict[str, Tensor] | None, device: torch.device) -> dict[str, Samples]:
    """Pixels, or features of the encoder with these weights, of "train" and "test"."""
    if config.encoder is None:
        split = make_split(config.data, config.seed)
        raw = [part.flatten(1).double() for part in (split.train_images, split.test_images)]
    else:
        with training.arithmetic(config.encoder.train, device), torch.no_grad():
            model, split, loaders = training.reopen(config.encoder, weights, device)
            model.eval()
            batches = [loaders[name].in_order() for name in ("train", "test")]
            raw = [torch.cat([model(x.to(device)).features for x, _ in part]).double().cpu() for part in batches]
    mean = raw[0].mean(dim=0)
    raw = [part - mean for part in raw]
    scale = raw[0].square().sum(dim=1).mean().sqrt()
    train, test = ((part / scale).float().to(device) for part in raw)
    return {"train": (train, split.train_labels.to(device)), "test": (test, split.test_labels.to(device))}


def train_shallow(config: ShallowConfig, job: Job) -> Result:
    """Train one arm.

    Returns
    -------
    Result with the weights of the readout alone. Metrics of its history: accuracy_readout and accuracy_all (share of
    right answers when only the readout, and when all weights have been trained), loss_readout and loss_all and, for a
    DEQ, solver_converged and solver_steps after each of the two. Facts: numbers of inputs, of images, and of epochs
    that a checkpoint had.

    Raises
    ------
    ConfigError
        When the loss becomes NaN: a smaller lr helps.
    """
    weights = None if job.base is None else job.store.open(job.base).weights
    inputs = load_inputs(config, weights, job.device)
    (x, labels), train = inputs["train"], config.train
    net = ShallowNetwork(config.model, x.shape[1], int(labels.max()) + 1, config.seed).to(job.device)
    state = job.checkpoint.load()
    if state is None:
        _fit_readout(net, x, labels, config)
        rows, done = _measure(net, inputs, "readout", train.readout_epochs), 0
    else:
        net.load_state_dict(state["net"])
        rows, done = [tuple(row) for row in state["rows"]], state["done"]
    optimiser = torch.optim.SGD(net.parameters(), lr=train.lr)
    for epoch in range(done, train.epochs):
        for batch in _order(len(x), train.batch_size, config.seed, epoch, job.device):
            loss = F.cross_entropy(net(x[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), train.clip)
            optimiser.step()
        if epoch + 1 < train.epochs:
            job.checkpoint.save({"net": net.state_dict(), "rows": [list(row) for row in rows], "done": epoch + 1})
        job.progress(epoch + 1, train.epochs)
    if train.epochs:
        rows += _measure(net, inputs, "all", train.readout_epochs + train.epochs)
    history = pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])
    facts = {"inputs": x.shape[1], "train": len(x), "test": len(inputs["test"][0]), "resumed": done}
    return Result({"history": history}, weights={"readout": net.readout.detach().cpu()}, facts=facts)


def _fit_readout(net: ShallowNetwork, x: Tensor, labels: Tensor, config: ShallowConfig) -> None:
    """SGD on the readout; the gradient of the softmax regression is written out, for it is all that this loop does."""
    z, train = _features(net, x)[0], config.train
    onehot = F.one_hot(labels, len(net.readout)).to(z.dtype)
    with torch.no_grad():
        for epoch in range(train.readout_epochs):
            for batch in _order(len(z), train.batch_size, config.seed, -1 - epoch, z.device):
                part = z[batch]
                error = torch.softmax(part @ net.readout.T, dim=1) - onehot[batch]
                net.readout.addmm_(error.T, part, alpha=-train.lr / len(part))


def _order(n: int, size: int, seed: int, epoch: int, device: torch.device) -> Iterator[Tensor]:
    """Batches of row numbers in an order that follows from seed and epoch alone (epochs of the readout count down)."""
    state = np.random.SeedSequence([seed, abs(epoch), int(epoch < 0)]).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(state[0]))
    return iter(torch.randperm(n, generator=generator).to(device).split(size))


@torch.no_grad()
def _features(net: ShallowNetwork, x: Tensor) -> tuple[Tensor, list[Solution]]:
    parts = [net.features(part) for part in x.split(_EVALUATION_BATCH)]
    return torch.cat([z for z, _ in parts]), [solution for _, solution in parts if solution is not None]


@torch.no_grad()
def _measure(net: ShallowNetwork, inputs: dict[str, Samples], phase: str, epoch: int) -> list[tuple]:
    rows = []
    for split, (x, labels) in inputs.items():
        z, solutions = _features(net, x)
        logits = z @ net.readout.T
        rows.append((epoch, split, f"accuracy_{phase}", (logits.argmax(1) == labels).double().mean().item()))
        rows.append((epoch, split, f"loss_{phase}", F.cross_entropy(logits.double(), labels).item()))
        if not math.isfinite(rows[-1][-1]):
            raise ConfigError("the loss became NaN; use a smaller lr")
        for name in ("converged", "steps") if solutions else ():
            values = torch.cat([getattr(solution, name) for solution in solutions])
            rows.append((epoch, split, f"solver_{name}", values.double().mean().item()))
    return rows


def describe_shallow(configs: Sequence[ShallowConfig]) -> str:
    """One sentence for captions: profile, data, protocol, widths, seeds."""
    first, seeds = configs[0], len({config.seed for config in configs})
    images, train, encoder = first.data, first.train, first.encoder
    widths = ", ".join(str(width) for width in sorted({config.model.width for config in configs}))
    many = "all" if images.n_max is None else images.n_max
    what = "pixels" if encoder is None else f"features of a ResNet-18 of width {encoder.model.width}"
    text = f"Profile {first.profile}: {images.dataset.split('@')[0]}, {many} training images a class, {what}, widths "
    text += f"{widths}, {seeds} seed{'s' if seeds > 1 else ''}; SGD, lr {train.lr:g}, batch {train.batch_size}: "
    text += f"{train.readout_epochs} epochs of the readout on random features, then {train.epochs} of all weights."
    solver = next((config.model.solver for config in configs if config.model.solver), None)
    return text + (f" Equilibria by {solver.method} to relative residual {solver.tol:g}." if solver else "")
