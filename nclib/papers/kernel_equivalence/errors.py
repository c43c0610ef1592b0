"""The measurements behind the kernel notebooks, as tidy tables: errors of equivalents, of matched networks, at finite
width; images as samples; and what the captions of Ling et al. (2024) print."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch

from nclib import data, paths
from nclib.papers.kernel_equivalence import activations, equivalents, exact
from nclib.papers.kernel_equivalence.activations import AnyActivation
from nclib.papers.kernel_equivalence.equivalents import gaussian_mixture, match_htanh, match_leaky_relu, spectral_norm
from nclib.solvers import FixedPointIteration, fixed_point

_TOLERANCE = {np.float64: 1e-10, np.float32: 1e-6}


def equivalence_errors(
    activations: Sequence[str],
    sizes: Sequence[int],
    seeds: Sequence[int],
    sigma_a2: float = 0.2,
    ratio: float = 0.8,
    tau0: Sequence[str] = ("empirical",),
    kernels: Sequence[str] = ("ck",),
    versions: Sequence[str] = ("derived",),
) -> pd.DataFrame:
    """Spectral errors of the equivalents on the mixture of the captions, with population moments.

    Parameters
    ----------
    activations, sizes, seeds : names, numbers of samples n, seeds of the draws
    ratio : p/n
    tau0 : conventions
    kernels : of "ck", "ntk", "ntk_full"
    versions : "derived" (`equivalent`), and "entrywise" (`ck_entrywise`, of the CK alone)

    Returns
    -------
    DataFrame, a row each: activation, n, p, seed, kernel, tau0, version, error (‖difference‖/‖kernel‖), norm
    """
    rows = []
    for n, seed in itertools.product(sizes, seeds):
        p = round(ratio * n)
        x, labels, moments = gaussian_mixture(n, p, seed)
        for name, convention in itertools.product(activations, tau0):
            scale = equivalents.resolve_tau0(x, labels, convention, moments)
            if set(kernels) == {"ck"}:
                kernel_of = {"ck": exact.implicit_ck(x, name, sigma_a2, scale)}
            else:
                kernel_of = exact.implicit_kernels(x, name, sigma_a2, scale)._asdict()
            for kernel in kernels:
                norm = spectral_norm(kernel_of[kernel])
                for version in versions:
                    if version == "entrywise":
                        near = equivalents.ck_entrywise(x, name, sigma_a2, scale)
                    else:
                        near = equivalents.equivalent(x, labels, moments, name, sigma_a2, scale, kernel)
                    error = spectral_norm(kernel_of[kernel] - near) / norm
                    rows.append((name, n, p, seed, kernel, convention, version, error, norm))
    return pd.DataFrame(rows, columns=["activation", "n", "p", "seed", "kernel", "tau0", "version", "error", "norm"])


def matching_errors(
    sizes: Sequence[int], seeds: Sequence[int], sigma_a2: float = 0.2, ratio: float = 0.8, tau0: str = "empirical"
) -> pd.DataFrame:
    """Relative spectral distance of explicit networks' kernels to those of DEQs, on the mixture of the captions.

    Returns
    -------
    DataFrame: deq, network, kernel, n, p, seed, error; matched networks for the data's τ_0, and the unmatched ones: the
    same activation in one (tanh) or two (ReLU) explicit layers.
    """
    rows = []
    for n, seed in itertools.product(sizes, seeds):
        p = round(ratio * n)
        x, labels, moments = gaussian_mixture(n, p, seed)
        scale = equivalents.resolve_tau0(x, labels, tau0, moments)
        tanh = exact.implicit_kernels(x, "tanh", sigma_a2, scale)
        relu = exact.implicit_ck(x, "relu", sigma_a2, scale)
        roots = match_leaky_relu(sigma_a2, scale)
        hard = {kernel: [activations.HardTanh(*match_htanh(sigma_a2, scale, kernel))] for kernel in ("ck", "ntk")}
        plans = [
            ("tanh", "H-Tanh", "ck", tanh.ck, hard["ck"]),
            ("tanh", "H-Tanh, NTK-matched", "ntk", tanh.ntk, hard["ntk"]),
            ("tanh", "Tanh, unmatched", "ck", tanh.ck, ["tanh"]),
            *(("relu", f"L-ReLU, root {i}", "ck", relu, root) for i, root in enumerate(roots)),
            ("relu", "ReLU, unmatched", "ck", relu, ["relu", "relu"]),
        ]
        for deq, network, kernel, wanted, layers in plans:
            other = exact.explicit_kernels(x, layers, scale)[kernel == "ntk"]
            rows.append((deq, network, kernel, n, p, seed, spectral_norm(wanted - other) / spectral_norm(wanted)))
    return pd.DataFrame(rows, columns=["deq", "network", "kernel", "n", "p", "seed", "error"])


def finite_width_kernels(
    x: np.ndarray, activation: AnyActivation, sigma_a2: float, width: int, draws: int, seed: int, tangent: bool = True
) -> exact.ImplicitKernels:
    """Monte-Carlo estimates of the kernels: real DEQs of finite width, solved by `nclib.solvers.fixed_point`.

    For each draw of A, B and a the equilibria z_i, then g_i = D_i (I − σ_a Aᵀ D_i)^−1 a with D_i = diag φ'(u_i)/√m, and

        CK  z_iᵀz_j,   NTK of (a, A)  z_iᵀz_j (1 + σ_a² g_iᵀg_j),   NTK of (a, A, B)  the same + σ_b² x_iᵀx_j g_iᵀg_j

    Parameters
    ----------
    width, draws, seed : m, number of independent networks, seed of the first
    tangent : False leaves the tangent kernels at 0 and computes in single precision, in a fifth of the time

    Returns
    -------
    means over the draws; the errors fall like 1/√(width · draws)

    Raises
    ------
    ValueError
        Where an equilibrium or its gradient was not found, which is ill-posedness at this width.
    """
    phi = activations.well_posed(activation, sigma_a2)
    bias = activations.coefficients(phi, sigma_a2, equivalents.empirical_tau0(x)).bias
    gram, totals, root = x.T @ x, np.zeros((3, x.shape[1], x.shape[1])), math.sqrt(width)
    kind = np.float64 if tangent else np.float32
    for draw in range(draws):
        rng = np.random.default_rng((seed, draw))
        inputs = math.sqrt(1 - sigma_a2) * rng.standard_normal((width, len(x)))
        matrix = (math.sqrt(sigma_a2) * rng.standard_normal((width, width))).astype(kind)
        readout, drive = rng.standard_normal(width), (inputs @ x).T.astype(kind)
        z = _solve(lambda z, u, a=matrix: (phi(z @ a.T + u) - bias) / root, np.zeros_like(drive), drive)
        ck = z @ z.T
        totals[0] += ck
        if tangent:
            slope, start = phi.slope(z @ matrix.T + drive) / root, np.tile(readout, (len(z), 1))
            g = slope * _solve(lambda w, d, a=matrix, b=readout: b + (w * d) @ a, start, slope)
            back = g @ g.T
            totals[1:] += [ck * (1 + sigma_a2 * back), ck + back * (sigma_a2 * ck + (1 - sigma_a2) * gram)]
    return exact.ImplicitKernels(*(totals / draws))


def _solve(f: Callable[[np.ndarray, np.ndarray], np.ndarray], start: np.ndarray, args: np.ndarray) -> np.ndarray:
    def step(z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(f(z.numpy(), u.numpy()))

    solver = FixedPointIteration(tol=_TOLERANCE[start.dtype.type], max_steps=400)
    solved = fixed_point(step, solver, torch.from_numpy(start), (torch.from_numpy(args),))
    if not solved.converged.all():
        raise ValueError("a fixed point was not found: the DEQ is not well-posed at this width; use a smaller σ_a²")
    return solved.value.numpy()


def finite_width_errors(
    activations: Sequence[str], widths: Sequence[int], draws: int, n: int = 60, p: int = 75, sigma_a2: float = 0.2
) -> pd.DataFrame:
    """How far the kernels of DEQs of finite width are from the infinite ones: single networks, one a draw.

    Returns
    -------
    DataFrame: activation, width, draw, estimate ("ck", "ntk", "ntk_full"), against (likewise), error relative in
    spectral norm. ntk_full is compared with both tangent kernels, to find which of them it is.
    """
    x = gaussian_mixture(n, p)[0]
    rows = []
    for name in activations:
        limit = exact.implicit_kernels(x, name, sigma_a2)._asdict()
        for width, draw in itertools.product(widths, range(draws)):
            drawn = finite_width_kernels(x, name, sigma_a2, width, 1, draw)._asdict()
            for one, other in (("ck", "ck"), ("ntk", "ntk"), ("ntk_full", "ntk_full"), ("ntk_full", "ntk")):
                error = spectral_norm(drawn[one] - limit[other]) / spectral_norm(limit[other])
                rows.append((name, width, draw, one, other, error))
    return pd.DataFrame(rows, columns=["activation", "width", "draw", "estimate", "against", "error"])


def image_samples(dataset: str, classes: Sequence[str], n: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images as columns: global mean image subtracted, rescaled so that the mean of ‖x_i‖² is 1 (τ_0 = 1).

    Parameters
    ----------
    dataset : a name of `nclib.data.load_dataset`; both splits are used
    classes : class names; labels are their positions
    n : samples in all, the same number of each class; 0 takes all there are

    Returns
    -------
    x (p, n) and labels (n,), class by class
    """
    parts = [data.load_dataset(dataset, split) for split in data.SPLITS]
    images = np.concatenate([part.images.flatten(1).numpy() for part in parts])
    labels = np.concatenate([part.labels.numpy() for part in parts])
    rng, chosen = np.random.default_rng(0), []
    for name in classes:
        rows = np.flatnonzero(labels == parts[0].class_names.index(name))
        chosen.append(np.sort(rng.permutation(rows)[: n // len(classes)]) if n else rows)
    x = images[np.concatenate(chosen)].astype(float).T / 255
    x -= x.mean(axis=1, keepdims=True)
    x /= math.sqrt((x**2).sum() / x.shape[1])
    return x, np.repeat(np.arange(len(classes)), [len(rows) for rows in chosen])


def published_kernels(figure: str) -> pd.DataFrame:
    """What the captions of Ling et al. (2024) print: figure, quantity, activation, data, p, n, value."""
    frame = pd.read_csv(paths.published() / "ling_2024.csv", dtype={"figure": str})
    return frame[frame["figure"] == figure].reset_index(drop=True)
