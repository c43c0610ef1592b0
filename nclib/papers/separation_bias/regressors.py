"""The networks that learn the functions of `tasks`: a DEQ, an FNN, and a DEQ of self-loops."""

import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nclib.config import Config
from nclib.deq import DEQ, Implicit, Unrolled
from nclib.solvers import FixedPointIteration, Solution

NORM = 0.95
"""Largest ‖W‖₂ of kind "deq"."""
EQUILIBRIUM = 1e-2
"""Largest mean relative residual of a network that is called an equilibrium model.

At the trained number of steps and at 300 iterations; above it is a weight-tied recurrent network.
"""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "sine": torch.sin}


class RegressorConfig(Config):
    """The network.

    Parameters
    ----------
    kind :
        "deq" — `ReluDEQ` with ‖W‖₂ ≤ 0.95, an equilibrium: solved by plain iteration to `tol` with
        the implicit gradient, or by `iterations` steps from 0 and differentiated through them,
        which is cheaper
        "unrolled_deq" — the same with W free, `iterations` steps from 0, differentiated through
        them
        "fnn" — `FNN` of `depth` weight matrices
        "self_loop_deq" — `SelfLoopDEQ`, solved exactly
    width : neurons of a layer
    depth : of "fnn"
    iterations, tol : iterations of "unrolled_deq"; one of the two of "deq"
    activation : "relu" or "sine"
    spread : of both DEQs with W, whose entries start as normal with deviation spread/√k
    input_scale, bias_scale : largest entries of the first layer at the start, uniform; None for
        PyTorch's
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
        with torch.random.fork_rng(devices=[]):  # PyTorch's own start is overwritten
            if self.kind == "fnn":
                return FNN(inputs, self, generator)
            if self.kind == "self_loop_deq":
                return SelfLoopDEQ(self, generator)
            return ReluDEQ(inputs, self, generator)

    def label(self) -> str:
        """Readable name of the arm, such as "DEQ-80, ‖W‖ ≤ 0.95"."""
        if self.kind == "fnn":
            name = f"FNN {self.width}×L{self.depth}"
            return f"{name}, scaled" if self.scaled else name
        if self.kind == "self_loop_deq":
            return f"DEQ-{self.width}, self-loops"
        if self.kind == "deq":
            return f"DEQ-{self.width}, ‖W‖ ≤ {NORM:g}"
        return f"DEQ-{self.width}, free W, T = {self.iterations}"

    def flops(self, inputs: int, steps: float) -> float:
        """Additions and multiplications of a forward pass of one sample, without activations.

        Parameters
        ----------
        inputs : number of inputs
        steps : T, evaluations of the cell
        """
        k = self.width
        ends = 2 * k * inputs + 2 * k
        if self.kind == "fnn":
            return ends + 2 * (self.depth - 2) * k**2
        if self.kind == "self_loop_deq":
            return ends + k * (k - 1)
        return ends + 2 * steps * k**2


class Regression(NamedTuple):
    """What a regressor returns.

    Parameters
    ----------
    values : (B,)
    features : (B, k), before the read-out
    solution : of an equilibrium that a solver looked for, else None
    """

    values: Tensor
    features: Tensor
    solution: Solution | None


def _uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    """Entries uniform in [−bound, bound]."""
    draws = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        parameter.copy_((2 * draws - 1) * bound)


class DenseCell(nn.Module):
    """f(z, x) = φ(W z + x), all (B, k)."""

    def __init__(self, weight: Tensor, activation: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.activation = ACTIVATIONS[activation]

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.activation(F.linear(z, self.weight) + x)


class ReluDEQ(nn.Module):
    """z = φ(W z + U x + b), y = a·z + c; φ = ReLU or sine. It has k² + (d + 2) k + 1 parameters.

    Of kind "deq" ‖W‖₂ is kept below 1 by `project` after each step of training: the equilibrium
    exists, is one, and plain iteration finds it (φ is 1-Lipschitz). Of kind "unrolled_deq" it is a
    weight-tied recurrent network unless its steps happen to reach the equilibrium.

    Source: Wu et al. (2024), eqs. (1)–(2); start and constraint are ours.
    """

    def __init__(self, inputs: int, config: RegressorConfig, generator: torch.Generator) -> None:
        super().__init__()
        width = config.width
        self.norm = NORM if config.kind == "deq" else None
        self.injection = nn.Linear(inputs, width)
        self.read_out = nn.Linear(width, 1)
        _uniform(self.injection.weight, config.input_scale or inputs**-0.5, generator)
        _uniform(self.injection.bias, config.bias_scale or inputs**-0.5, generator)
        for parameter in self.read_out.parameters():
            _uniform(parameter, width**-0.5, generator)
        draws = torch.randn(width, width, generator=generator, dtype=torch.float64)
        cell = DenseCell((draws * config.spread * width**-0.5).float(), config.activation)
        if config.iterations is None:
            solver = FixedPointIteration(tol=config.tol, max_steps=100)
            gradient = Implicit()
        else:
            solver = None
            gradient = Unrolled(config.iterations, tol=EQUILIBRIUM)
        # The audit has the residual.
        self.deq = DEQ(cell, solver, gradient, z0="zeros", on_failure="ignore")
        self.project()

    def project(self) -> None:
        """Scale W back onto ‖W‖₂ ≤ norm."""
        if self.norm is None:
            return
        with torch.no_grad():
            size = torch.linalg.matrix_norm(self.deq.cell.weight, 2)
            self.deq.cell.weight *= (self.norm / size).clamp_max(1.0)

    def matrices(self) -> list[Tensor]:
        """W, U and a."""
        return [self.deq.cell.weight, self.injection.weight, self.read_out.weight]

    def forward(self, x: Tensor) -> Regression:
        z, solution = self.deq(self.injection(x))
        return Regression(self.read_out(z)[:, 0], z, solution)


class FNN(nn.Module):
    """z¹ = φ(W₁ x + b₁), z^{i+1} = φ(W_{i+1} z^i + b_{i+1}), y = W_L z^{L−1} + c.

    Layers after the first start as in PyTorch, with sine uniform within √(6/k) as is usual there
    (Sitzmann et al. 2020). Where it is `scaled`, each weight matrix has a factor e^p of its own
    that is trained, so that Adam can reach large weights; `matrices` returns the products.
    """

    def __init__(self, inputs: int, config: RegressorConfig, generator: torch.Generator) -> None:
        super().__init__()
        sizes = [inputs, *[config.width] * (config.depth - 1), 1]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        gain = 6**0.5 if config.activation == "sine" else 1.0
        for number, layer in enumerate(self.layers):
            usual = layer.in_features**-0.5
            if number == 0:
                weight_bound = config.input_scale or usual
                bias_bound = config.bias_scale or usual
            else:
                weight_bound = gain * usual
                bias_bound = usual
            _uniform(layer.weight, weight_bound, generator)
            _uniform(layer.bias, bias_bound, generator)
        self.log_scale = nn.Parameter(torch.zeros(config.depth)) if config.scaled else None
        self.activation = ACTIVATIONS[config.activation]

    def matrices(self) -> list[Tensor]:
        """The weight matrices as they act, W_1 … W_L."""
        if self.log_scale is None:
            return [layer.weight for layer in self.layers]
        scales = self.log_scale.exp()
        return [layer.weight * scale for layer, scale in zip(self.layers, scales, strict=True)]

    def forward(self, x: Tensor) -> Regression:
        weights = self.matrices()
        for weight, layer in zip(weights[:-1], self.layers[:-1], strict=True):
            x = self.activation(F.linear(x, weight, layer.bias))
        values = F.linear(x, weights[-1], self.layers[-1].bias)
        return Regression(values[:, 0], x, None)


class SelfLoopDEQ(nn.Module):
    """A ReLU DEQ of one input with lower triangular W and self-loops w_tt = 1 − e^{−softplus(q_t)}.

        z_t = σ( (u_t x + Σ_{i<t} w_ti z_i)/(1 − w_tt) + b̃_t )

    The loops are below 1, and the DEQ's own bias is (1 − w_tt) b̃_t. Solved exactly, neuron by
    neuron, and differentiated through that. The first seven neurons start with u = −1 and b̃ in
    [0.2, 1], spread evenly: others tried here did not learn the steepest targets.

    Source: ours, the trained counterpart of `steep.steep_deq_triangular`.
    """

    def __init__(self, config: RegressorConfig, generator: torch.Generator) -> None:
        super().__init__()
        width = config.width
        self.lower = nn.Parameter(torch.empty(width * (width - 1) // 2))
        self.loops = nn.Parameter(torch.empty(width))
        self.inputs = nn.Parameter(torch.empty(width))
        self.biases = nn.Parameter(torch.empty(width))
        self.weights = nn.Parameter(torch.empty(width))
        self.constant = nn.Parameter(torch.zeros(()))
        _uniform(self.lower, 0.1, generator)
        _uniform(self.loops, 0.5, generator)
        _uniform(self.inputs, 1.0, generator)
        _uniform(self.biases, 1.0, generator)
        _uniform(self.weights, width**-0.5, generator)
        steep = min(7, width)
        with torch.no_grad():
            self.inputs[:steep] = -1.0
            self.biases[:steep] = torch.linspace(0.2, 1.0, steep)

    def _slack_and_lower(self) -> tuple[Tensor, Tensor]:
        """1 − w_tt (k,), and the entries of W below the diagonal (k, k)."""
        slack = torch.exp(-F.softplus(self.loops))
        width = len(slack)
        below = torch.tril_indices(width, width, -1)
        zeros = slack.new_zeros(width, width)
        return slack, zeros.index_put(tuple(below), self.lower)

    def matrices(self) -> list[Tensor]:
        """W, u, b and a of z = σ(W z + u x + b), y = a·z + c."""
        slack, lower = self._slack_and_lower()
        return [lower + torch.diag(1 - slack), self.inputs, slack * self.biases, self.weights]

    def forward(self, x: Tensor) -> Regression:
        slack, lower = self._slack_and_lower()
        direct = x * (self.inputs / slack) + self.biases
        coupling = lower / slack[:, None]
        z = torch.relu(direct[:, :1])
        for t in range(1, len(slack)):
            new = torch.relu(torch.addmv(direct[:, t], z, coupling[t, :t]))
            z = torch.cat([z, new[:, None]], dim=1)
        return Regression(z @ self.weights + self.constant, z, None)
