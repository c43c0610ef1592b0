"""Kernels of DEQs of finite width, by Monte Carlo: random networks whose equilibria are solved for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

from companion.kernel_equivalence.activations import (
    Activation,
    AnyActivation,
    HardTanh,
    LeakyReLU,
    lipschitz,
    well_posed,
)
from companion.kernel_equivalence.exact import ImplicitKernels
from companion.kernel_equivalence.kernel_numbers import Coefficients, coefficients
from companion.kernel_equivalence.mixtures import _data, empirical_tau0
from nclib.solver import FixedPointIteration, fixed_point

_SOLVER = FixedPointIteration(tol=1e-10, max_steps=400)


def finite_width_kernels(
    x: np.ndarray,
    activation: AnyActivation,
    sigma_a2: float,
    width: int,
    draws: int = 1,
    seed: int = 0,
    tau0: float | None = None,
) -> ImplicitKernels:
    """Monte-Carlo estimates of the kernels: real DEQs of finite width, solved by `nclib.solver.fixed_point`.

    For each draw of A, B and a the equilibria z_i, then g_i = D_i (I − σ_a Aᵀ D_i)^−1 a with D_i = diag φ'(u_i)/√m, and

        CK  z_iᵀz_j,   NTK of (a, A)  z_iᵀz_j (1 + σ_a² g_iᵀg_j),   NTK of (a, A, B)  the same + σ_b² x_iᵀx_j g_iᵀg_j

    Parameters
    ----------
    width, draws, seed : m, number of independent networks, seed of the first

    Returns
    -------
    means over the draws; the errors fall like 1/√(width · draws)

    Raises
    ------
    ValueError
        Where an equilibrium or its gradient was not found, which is ill-posedness at this width.
    """
    x = _data(x)
    found, networks = _networks(x, activation, sigma_a2, width, draws, seed, tau0)
    gram, totals = x.T @ x, np.zeros((3, x.shape[1], x.shape[1]))
    for network in networks:
        z = network.equilibria(x)
        g = network.pull_back(z)
        ck, back = z @ z.T, g @ g.T
        totals += np.stack([ck, ck * (1 + sigma_a2 * back), ck + back * (sigma_a2 * ck + (1 - sigma_a2) * gram)])
    return ImplicitKernels(*(totals / draws), found)


def finite_width_ck(
    x: np.ndarray,
    activation: AnyActivation,
    sigma_a2: float,
    width: int,
    draws: int = 1,
    seed: int = 0,
    tau0: float | None = None,
) -> np.ndarray:
    """The conjugate kernel (n, n) of `finite_width_kernels` alone, at half the price: how the paper estimates G*."""
    x = _data(x)
    total = np.zeros((x.shape[1], x.shape[1]))
    for network in _networks(x, activation, sigma_a2, width, draws, seed, tau0)[1]:
        z = network.equilibria(x)
        total += z @ z.T
    return total / draws


def _networks(
    x: np.ndarray,
    which: AnyActivation,
    sigma_a2: float,
    width: int,
    draws: int,
    seed: int,
    tau0: float | None,
) -> tuple[Coefficients, Iterator[_Network]]:
    phi = well_posed(which, sigma_a2)
    found = coefficients(phi, sigma_a2, empirical_tau0(x) if tau0 is None else tau0)
    return found, (_Network(phi, found.bias, sigma_a2, len(x), width, (seed, draw)) for draw in range(draws))


class _Network:
    """One DEQ of finite width with its random weights."""

    def __init__(
        self,
        phi: Activation | LeakyReLU | HardTanh,
        bias: float,
        sigma_a2: float,
        features: int,
        width: int,
        seed: tuple[int, int],
    ) -> None:
        rng = np.random.default_rng(seed)
        self.phi, self.bias, self.root = phi, bias, math.sqrt(width)
        self.inputs = math.sqrt(1 - sigma_a2) * rng.standard_normal((width, features))
        self.matrix = math.sqrt(sigma_a2) * rng.standard_normal((width, width))
        self.readout = rng.standard_normal(width)

    def equilibria(self, x: np.ndarray) -> np.ndarray:
        """z (n, m) of the samples in x (p, n)."""
        self.drive = (self.inputs @ x).T

        def forward(z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy((self.phi(z.numpy() @ self.matrix.T + u.numpy()) - self.bias) / self.root)

        return self._solve(forward, np.zeros_like(self.drive), self.drive)

    def pull_back(self, z: np.ndarray) -> np.ndarray:
        """g (n, m), the gradient of aᵀz with respect to the pre-activations, at the equilibria just found."""
        slope = self.phi.slope(z @ self.matrix.T + self.drive) / self.root

        def backward(w: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(self.readout + (w.numpy() * d.numpy()) @ self.matrix)

        return slope * self._solve(backward, np.tile(self.readout, (len(z), 1)), slope)

    def _solve(self, f: Callable[..., torch.Tensor], start: np.ndarray, args: np.ndarray) -> np.ndarray:
        solved = fixed_point(f, _SOLVER, torch.from_numpy(start), (torch.from_numpy(args),))
        lost = int((~solved.converged).sum())
        if lost:
            limit = 0.25 / lipschitz(self.phi) ** 2
            raise ValueError(
                f"{lost} of {len(start)} fixed points at width {len(self.readout)} were not found (worst relative "
                f"residual {float(solved.residual.max()):.1e}): the DEQ is not well-posed there. σ_a² < {limit:.4g} "
                "makes it contract"
            )
        return solved.value.numpy()
