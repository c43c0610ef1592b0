"""Cells and layers that the tests of the equilibrium layer share."""

import math

import torch
from torch import nn

from nclib.deq import DEQ, Unrolled
from nclib.solvers import Anderson, Broyden, FixedPointIteration

EXACT = [FixedPointIteration(1e-13, 500), Anderson(1e-13, 300), Broyden(1e-13, 300)]


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class TanhCell(nn.Module):
    def __init__(self, size=4, rho=0.6, dtype=torch.float64):
        super().__init__()
        w = random(size, size, seed=1)
        self.w = nn.Parameter((rho * w / torch.linalg.matrix_norm(w, 2)).to(dtype))
        self.u = nn.Parameter(random(size, size, seed=2).to(dtype))

    def forward(self, z, x):
        return torch.tanh(z @ self.w.T + x @ self.u.T)


class ConvCell(nn.Module):
    """The equilibrium cell of the paper's network, small."""

    def __init__(self, channels=8):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, channels), nn.GroupNorm(2, channels)
        for seed, conv in enumerate((self.conv1, self.conv2)):
            conv.weight.data = random(
                *conv.weight.shape, seed=seed, dtype=torch.float32
            ) / math.sqrt(9 * channels)
        nn.init.constant_(self.norm2.weight, 0.5)

    def forward(self, z, x):
        return torch.relu(self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(z))))) + x)


def with_rule(cell, solver, gradient, **options):
    """A layer with the rule, and with the solver where the rule takes one."""
    return DEQ(cell, None if isinstance(gradient, Unrolled) else solver, gradient, **options)


class LinearCell(nn.Module):
    """z ↦ A z + x with ‖A‖ = rho: z* = (I − A)⁻¹ x."""

    def __init__(self, rho=0.8, size=3):
        super().__init__()
        a = random(size, size, seed=5)
        self.a = nn.Parameter(rho * a / torch.linalg.matrix_norm(a, 2))

    def forward(self, z, x):
        return z @ self.a.T + x


def linear_layer(gradient, rho=0.8, solver=EXACT[2]):
    cell = LinearCell(rho)
    return with_rule(cell, solver, gradient), cell.a
