"""The small regressors of Wu et al. (2024): an equilibrium model, a feed-forward network and a DEQ of self-loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nclib.deq import DEQ, Gradient
from nclib.solver import Solution, Solver


class Regression(NamedTuple):
    """What a regressor returns: values (B,), features (B, k) before the read-out and, for an equilibrium that a solver
    looked for, its `Solution`."""

    values: Tensor
    features: Tensor
    solution: Solution | None


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "sine": torch.sin}


def _uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        parameter.copy_((2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1) * bound)


class DenseCell(nn.Module):
    """f(z, x) = φ(W z + x), all (B, k)."""

    def __init__(self, width: int, activation: Literal["relu", "sine"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, width))
        self.activation = _ACTIVATIONS[activation]

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.activation(F.linear(z, self.weight) + x)


class ReluDEQ(nn.Module):
    """z = φ(W z + U x + b), y = a·z + c; φ = ReLU or sine. (B, inputs) to a `Regression`.

    Parameters
    ----------
    inputs, width : d and k; k² + (d + 2) k + 1 parameters
    solver, gradient : of the `nclib.deq.DEQ` inside, started at 0. ``Unrolled(T)`` makes it a weight-tied recurrent
        network unless T steps happen to reach the equilibrium
    activation : φ
    norm : largest ‖W‖₂, kept by `project` after each step of training; below 1 the equilibrium exists, is one, and
        plain iteration finds it (φ is 1-Lipschitz). None leaves W free
    spread : entries of W start as normal with deviation spread/√k
    input_scale, bias_scale : entries of U and b start uniform within ±; None for 1/√d, as in PyTorch
    seed : of the initial weights, alone

    Source: Wu et al. (2024), eqs. (1)–(2); start and constraint are ours.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        solver: Solver | None = None,
        gradient: Gradient | None = None,
        *,
        activation: Literal["relu", "sine"] = "relu",
        norm: float | None = None,
        spread: float = 0.5,
        input_scale: float | None = None,
        bias_scale: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            self.injection, self.read_out = nn.Linear(inputs, width), nn.Linear(width, 1)
        # trainings count the solves that fail instead
        self.deq = DEQ(DenseCell(width, activation), solver, gradient, z0="zeros", on_failure="ignore")
        self.norm = norm
        usual = inputs**-0.5
        _uniform(self.injection.weight, usual if input_scale is None else input_scale, generator)
        _uniform(self.injection.bias, usual if bias_scale is None else bias_scale, generator)
        for parameter in self.read_out.parameters():
            _uniform(parameter, width**-0.5, generator)
        with torch.no_grad():
            draws = torch.randn(width, width, generator=generator, dtype=torch.float64)
            self.deq.cell.weight.copy_(draws * spread * width**-0.5)
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

    Parameters
    ----------
    inputs, width, depth : d, k and L ≥ 2, the number of weight matrices, so L − 1 hidden layers
    activation : φ
    input_scale, bias_scale : of the first layer, as in `ReluDEQ`; the others start as in PyTorch, with sine uniform
        within √(6/k) as is usual there (Sitzmann et al. 2020)
    scaled : each weight matrix has a factor e^p of its own that is trained, so that Adam can reach large weights;
        `matrices` returns the products
    seed : of the initial weights, alone
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        depth: int,
        *,
        activation: Literal["relu", "sine"] = "relu",
        input_scale: float | None = None,
        bias_scale: float | None = None,
        scaled: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        sizes = [inputs, *[width] * (depth - 1), 1]
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        for number, layer in enumerate(self.layers):
            gain = 6**0.5 if activation == "sine" else 1.0
            bounds = (input_scale, bias_scale) if number == 0 else (gain * layer.in_features**-0.5, None)
            for parameter, bound in zip((layer.weight, layer.bias), bounds, strict=True):
                _uniform(parameter, layer.in_features**-0.5 if bound is None else bound, generator)
        self.log_scale = nn.Parameter(torch.zeros(depth)) if scaled else None
        self.activation = _ACTIVATIONS[activation]

    def matrices(self) -> list[Tensor]:
        """The weight matrices as they act, W_1 … W_L."""
        weights = [layer.weight for layer in self.layers]
        if self.log_scale is None:
            return weights
        return [weight * p.exp() for weight, p in zip(weights, self.log_scale, strict=True)]

    def forward(self, x: Tensor) -> Regression:
        *hidden, last = zip(self.matrices(), self.layers, strict=True)
        for weight, layer in hidden:
            x = self.activation(F.linear(x, weight, layer.bias))
        return Regression(F.linear(x, last[0], last[1].bias)[:, 0], x, None)


class SelfLoopDEQ(nn.Module):
    """A ReLU DEQ of one input with lower triangular W and self-loops w_tt = 1 − e^{−softplus(q_t)} below 1.

        z_t = σ( (u_t x + Σ_{i<t} w_ti z_i)/(1 − w_tt) + b̃_t ),   the DEQ's own bias is (1 − w_tt) b̃_t

    Solved exactly, neuron by neuron, and differentiated through that. (B, 1) to a `Regression`.

    Parameters
    ----------
    width : k; the first `steep` neurons start with u = −1 and b̃ in [0.2, 1], spread evenly
    steep : neurons that start so; others tried here did not learn the steepest targets
    seed : of the initial weights, alone

    Source: ours, the trained counterpart of `companion.separation_bias.steep.steep_deq_triangular`.
    """

    def __init__(self, width: int, steep: int = 7, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.lower, self.loops = nn.Parameter(torch.empty(width * (width - 1) // 2)), nn.Parameter(torch.empty(width))
        self.inputs, self.biases = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.weights, self.constant = nn.Parameter(torch.empty(width)), nn.Parameter(torch.zeros(()))
        for parameter, bound in ((self.lower, 0.1), (self.loops, 0.5), (self.inputs, 1.0), (self.biases, 1.0)):
            _uniform(parameter, bound, generator)
        _uniform(self.weights, width**-0.5, generator)
        with torch.no_grad():
            self.inputs[:steep] = -1.0
            self.biases[:steep] = torch.linspace(0.2, 1.0, steep)

    def _coupling(self) -> Tensor:
        """Entries of W below the diagonal, (k, k)."""
        width = len(self.loops)
        matrix = self.lower.new_zeros(width, width)
        rows, columns = torch.tril_indices(width, width, -1)
        return matrix.index_put((rows, columns), self.lower)

    def matrices(self) -> list[Tensor]:
        """W, u, b and a of z = σ(W z + u x + b), y = a·z + c."""
        slack = torch.exp(-F.softplus(self.loops))  # 1 − w_tt
        return [self._coupling() + torch.diag(1 - slack), self.inputs, slack * self.biases, self.weights]

    def forward(self, x: Tensor) -> Regression:
        slack = torch.exp(-F.softplus(self.loops))
        direct = x * (self.inputs / slack) + self.biases
        coupling = self._coupling() / slack[:, None]
        z = torch.relu(direct[:, :1])
        for t in range(1, len(slack)):
            new = torch.relu(torch.addmv(direct[:, t], z, coupling[t, :t]))
            z = torch.cat([z, new[:, None]], dim=1)
        return Regression(z @ self.weights + self.constant, z, None)
