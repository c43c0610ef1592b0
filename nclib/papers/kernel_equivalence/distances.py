"""What the kernel notebooks measure, as tidy tables.

Three distances in spectral norm: of a kernel from its equivalent, of a DEQ's kernel from that of a
matched explicit network, and of networks of finite width from the infinite one. With them the
numbers that the captions of Ling et al. (2024) print.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch

from nclib import paths
from nclib.papers.kernel_equivalence.equivalents import (
    equivalent,
    gaussian_mixture,
    resolve_tau0,
    spectral_norm,
)
from nclib.papers.kernel_equivalence.kernels import (
    AnyActivation,
    HardTanh,
    ImplicitKernels,
    coefficients,
    empirical_tau0,
    explicit_kernels,
    implicit_ck,
    implicit_kernels,
    well_posed,
)
from nclib.papers.kernel_equivalence.matching import match_htanh, match_leaky_relu
from nclib.solvers import FixedPointIteration, fixed_point


def equivalence_errors(
    activations: Sequence[str],
    sizes: Sequence[int],
    seeds: Sequence[int],
    sigma_a2: float = 0.2,
    ratio: float = 0.8,
    tau0: Sequence[str] = ("empirical",),
    kernels: Sequence[str] = ("ck",),
) -> pd.DataFrame:
    """Spectral errors of the equivalents on the mixture of the captions, with population moments.

    Parameters
    ----------
    activations, sizes, seeds : names, numbers of samples n, seeds of the draws
    sigma_a2 : of the DEQs
    ratio : p/n
    tau0 : conventions of `resolve_tau0`
    kernels : of "ck", "ntk", "ntk_full"

    Returns
    -------
    DataFrame
        A row each: activation, n, p, seed, kernel, tau0, error (‖difference‖/‖kernel‖), norm
    """
    rows = []
    for n, seed in itertools.product(sizes, seeds):
        p = round(ratio * n)
        x, labels, moments = gaussian_mixture(n, p, seed)
        for name, convention in itertools.product(activations, tau0):
            scale = resolve_tau0(x, labels, convention, moments)
            if set(kernels) == {"ck"}:
                exact = {"ck": implicit_ck(x, name, sigma_a2, scale)}
            else:
                exact = implicit_kernels(x, name, sigma_a2, scale)._asdict()
            for kernel in kernels:
                near = equivalent(x, labels, moments, name, sigma_a2, scale, kernel)
                norm = spectral_norm(exact[kernel])
                error = spectral_norm(exact[kernel] - near) / norm
                rows.append((name, n, p, seed, kernel, convention, error, norm))
    columns = ["activation", "n", "p", "seed", "kernel", "tau0", "error", "norm"]
    return pd.DataFrame(rows, columns=columns)


def matching_errors(
    sizes: Sequence[int],
    seeds: Sequence[int],
    sigma_a2: float = 0.2,
    ratio: float = 0.8,
    tau0: str = "empirical",
) -> pd.DataFrame:
    """Relative spectral distance of explicit networks' kernels from those of DEQs.

    On the mixture of the captions: networks that are matched for the data's τ_0, and unmatched ones
    with the DEQ's own activation, in one (tanh) or two (ReLU) layers.

    Parameters
    ----------
    sizes, seeds, sigma_a2, ratio : as of `equivalence_errors`
    tau0 : a convention of `resolve_tau0`

    Returns
    -------
    DataFrame: deq, network, kernel, n, p, seed, error
    """
    rows = []
    for n, seed in itertools.product(sizes, seeds):
        p = round(ratio * n)
        x, labels, moments = gaussian_mixture(n, p, seed)
        scale = resolve_tau0(x, labels, tau0, moments)
        tanh = implicit_kernels(x, "tanh", sigma_a2, scale)
        relu = implicit_ck(x, "relu", sigma_a2, scale)
        hard_tanh = HardTanh(*match_htanh(sigma_a2, scale))
        hard_tanh_ntk = HardTanh(*match_htanh(sigma_a2, scale, "ntk"))
        networks = [
            ("tanh", "H-Tanh", "ck", tanh.ck, [hard_tanh]),
            ("tanh", "H-Tanh, NTK-matched", "ntk", tanh.ntk, [hard_tanh_ntk]),
            ("tanh", "Tanh, unmatched", "ck", tanh.ck, ["tanh"]),
        ]
        for number, layers in enumerate(match_leaky_relu(sigma_a2, scale)):
            networks.append(("relu", f"L-ReLU, root {number}", "ck", relu, layers))
        networks.append(("relu", "ReLU, unmatched", "ck", relu, ["relu", "relu"]))
        for deq, network, kernel, wanted, layers in networks:
            ck, ntk = explicit_kernels(x, layers, scale)
            difference = wanted - (ntk if kernel == "ntk" else ck)
            error = spectral_norm(difference) / spectral_norm(wanted)
            rows.append((deq, network, kernel, n, p, seed, error))
    return pd.DataFrame(rows, columns=["deq", "network", "kernel", "n", "p", "seed", "error"])


# --- finite width ---------------------------------------------------------------------------------


def finite_width_kernels(
    x: np.ndarray,
    activation: AnyActivation,
    sigma_a2: float,
    width: int,
    draws: int,
    seed: int,
    tangent: bool = True,
) -> ImplicitKernels:
    """Monte-Carlo estimates of the kernels, from DEQs of finite width solved by `fixed_point`.

    For each draw of A, B and a the equilibria z_i, then g_i = D_i (I − σ_a Aᵀ D_i)^−1 a with
    D_i = diag φ'(u_i)/√m, and

        conjugate               z_iᵀz_j
        tangent of (a, A)       z_iᵀz_j (1 + σ_a² g_iᵀg_j)
        tangent of (a, A, B)    the same + σ_b² x_iᵀx_j g_iᵀg_j

    Parameters
    ----------
    x, activation, sigma_a2 : as of `implicit_ck`
    width, draws, seed : m, number of independent networks, seed of the first
    tangent : False leaves the tangent kernels at 0 and computes in single precision, in a fifth of
        the time

    Returns
    -------
    ImplicitKernels
        Means over the draws; the errors fall like 1/√(width · draws)

    Raises
    ------
    ValueError
        Where an equilibrium or its gradient was not found, which is ill-posedness at this width,
        and for tangent kernels of an activation without a derivative.
    """
    phi = well_posed(activation, sigma_a2)
    if tangent and phi.slope is None:
        raise ValueError(
            "tangent kernels need the derivative of the activation: give "
            "Activation(function, slope=…), or tangent=False"
        )
    bias = coefficients(phi, sigma_a2, empirical_tau0(x)).bias
    n = x.shape[1]
    root = math.sqrt(width)
    precision = np.float64 if tangent else np.float32
    gram = x.T @ x
    ck_sum = np.zeros((n, n))
    ntk_sum = np.zeros((n, n))
    ntk_full_sum = np.zeros((n, n))
    for draw in range(draws):
        stream = np.random.default_rng((seed, draw))
        inputs = math.sqrt(1 - sigma_a2) * stream.standard_normal((width, len(x)))
        matrix = math.sqrt(sigma_a2) * stream.standard_normal((width, width))
        matrix = matrix.astype(precision)
        readout = stream.standard_normal(width)
        drive = (inputs @ x).T.astype(precision)

        def cell(z: np.ndarray, u: np.ndarray, matrix: np.ndarray = matrix) -> np.ndarray:
            return (phi(z @ matrix.T + u) - bias) / root

        z = _solve(cell, np.zeros_like(drive), drive)
        ck = z @ z.T
        ck_sum += ck
        if not tangent:
            continue

        def adjoint(
            w: np.ndarray, d: np.ndarray, matrix: np.ndarray = matrix, a: np.ndarray = readout
        ) -> np.ndarray:
            return a + (w * d) @ matrix

        slope = phi.slope(z @ matrix.T + drive) / root
        g = slope * _solve(adjoint, np.tile(readout, (n, 1)), slope)
        back = g @ g.T
        ntk_sum += ck * (1 + sigma_a2 * back)
        ntk_full_sum += ck + back * (sigma_a2 * ck + (1 - sigma_a2) * gram)
    return ImplicitKernels(ck_sum / draws, ntk_sum / draws, ntk_full_sum / draws)


def _solve(
    f: Callable[[np.ndarray, np.ndarray], np.ndarray], start: np.ndarray, args: np.ndarray
) -> np.ndarray:
    def step(z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(f(z.numpy(), u.numpy()))

    tol = 1e-10 if start.dtype == np.float64 else 1e-6
    solver = FixedPointIteration(tol=tol, max_steps=400)
    solution = fixed_point(step, solver, torch.from_numpy(start), (torch.from_numpy(args),))
    if not solution.converged.all():
        raise ValueError(
            "a fixed point was not found: the DEQ is not well-posed at this width; "
            "use a smaller σ_a²"
        )
    return solution.value.numpy()


def finite_width_errors(
    activations: Sequence[str],
    widths: Sequence[int],
    draws: int,
    n: int = 60,
    p: int = 75,
    sigma_a2: float = 0.2,
) -> pd.DataFrame:
    """How far the kernels of single DEQs of finite width are from the infinite ones.

    Parameters
    ----------
    activations, widths : names and widths m
    draws : networks of each width
    n, p, sigma_a2 : of the mixture and the DEQs

    Returns
    -------
    DataFrame
        activation, width, draw, estimate ("ck", "ntk", "ntk_full"), against (likewise), error
        relative in spectral norm. ntk_full is compared with both tangent kernels, to find which of
        them it is.
    """
    x = gaussian_mixture(n, p)[0]
    compared = [("ck", "ck"), ("ntk", "ntk"), ("ntk_full", "ntk_full"), ("ntk_full", "ntk")]
    rows = []
    for name in activations:
        limits = implicit_kernels(x, name, sigma_a2)._asdict()
        for width, draw in itertools.product(widths, range(draws)):
            drawn = finite_width_kernels(x, name, sigma_a2, width, 1, draw)._asdict()
            for estimate, against in compared:
                limit = limits[against]
                error = spectral_norm(drawn[estimate] - limit) / spectral_norm(limit)
                rows.append((name, width, draw, estimate, against, error))
    columns = ["activation", "width", "draw", "estimate", "against", "error"]
    return pd.DataFrame(rows, columns=columns)


def published_kernels(figure: str) -> pd.DataFrame:
    """What the captions of Ling et al. (2024) print.

    Parameters
    ----------
    figure : "1", "2", "ntk" or "density"

    Returns
    -------
    DataFrame: figure, quantity, activation, data, p, n, value
    """
    frame = pd.read_csv(paths.published() / "ling_2024.csv", dtype={"figure": str})
    return frame[frame["figure"] == figure].reset_index(drop=True)
