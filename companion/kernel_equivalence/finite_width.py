"""Kernels of DEQs of finite width, by Monte Carlo: random networks whose equilibria are solved for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from companion.kernel_equivalence.activations import AnyActivation, well_posed
from companion.kernel_equivalence.exact import ImplicitKernels
from companion.kernel_equivalence.kernel_numbers import coefficients
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
    tangent: bool = True,
) -> ImplicitKernels:
    """Monte-Carlo estimates of the kernels: real DEQs of finite width, solved by `nclib.solver.fixed_point`.

    For each draw of A, B and a the equilibria z_i, then g_i = D_i (I − σ_a Aᵀ D_i)^−1 a with D_i = diag φ'(u_i)/√m, and

        CK  z_iᵀz_j,   NTK of (a, A)  z_iᵀz_j (1 + σ_a² g_iᵀg_j),   NTK of (a, A, B)  the same + σ_b² x_iᵀx_j g_iᵀg_j

    Parameters
    ----------
    width, draws, seed : m, number of independent networks, seed of the first
    tangent : False leaves the tangent kernels at 0 and takes half of the time

    Returns
    -------
    means over the draws; the errors fall like 1/√(width · draws)

    Raises
    ------
    ValueError
        Where an equilibrium or its gradient was not found, which is ill-posedness at this width.
    """
    x = _data(x)
    phi = well_posed(activation, sigma_a2)
    found = coefficients(phi, sigma_a2, empirical_tau0(x))
    gram, totals, root = x.T @ x, np.zeros((3, x.shape[1], x.shape[1])), math.sqrt(width)
    for draw in range(draws):
        rng = np.random.default_rng((seed, draw))
        inputs = math.sqrt(1 - sigma_a2) * rng.standard_normal((width, len(x)))
        matrix = math.sqrt(sigma_a2) * rng.standard_normal((width, width))
        readout, drive = rng.standard_normal(width), (inputs @ x).T
        z = _solve(lambda z, u, a=matrix: (phi(z @ a.T + u) - found.bias) / root, np.zeros_like(drive), drive)
        ck = z @ z.T
        totals[0] += ck
        if tangent:
            slope, start = phi.slope(z @ matrix.T + drive) / root, np.tile(readout, (len(z), 1))
            g = slope * _solve(lambda w, d, a=matrix, b=readout: b + (w * d) @ a, start, slope)
            back = g @ g.T
            totals[1:] += [ck * (1 + sigma_a2 * back), ck + back * (sigma_a2 * ck + (1 - sigma_a2) * gram)]
    return ImplicitKernels(*(totals / draws), found)


def _solve(f: Callable[[np.ndarray, np.ndarray], np.ndarray], start: np.ndarray, args: np.ndarray) -> np.ndarray:
    def step(z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(f(z.numpy(), u.numpy()))

    solved = fixed_point(step, _SOLVER, torch.from_numpy(start), (torch.from_numpy(args),))
    lost = int((~solved.converged).sum())
    if lost:
        raise ValueError(
            f"{lost} of {len(start)} fixed points at width {start.shape[1]} were not found (worst relative residual "
            f"{float(solved.residual.max()):.1e}): the DEQ is not well-posed there; use a smaller σ_a²"
        )
    return solved.value.numpy()
