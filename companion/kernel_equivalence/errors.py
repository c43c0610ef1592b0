"""The measurements behind the kernel notebooks, as tidy tables: errors of equivalents, of matched networks, at finite
width; images as samples; and what the captions of Ling et al. (2024) print."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import scipy

from companion.kernel_equivalence.activations import HardTanh
from companion.kernel_equivalence.equivalents import ck_entrywise, equivalent, resolve_tau0, spectral_norm
from companion.kernel_equivalence.exact import explicit_ck, explicit_ntk, implicit_ck, implicit_kernels
from companion.kernel_equivalence.finite_width import finite_width_kernels
from companion.kernel_equivalence.matching import match_htanh, match_leaky_relu
from companion.kernel_equivalence.mixtures import gaussian_mixture
from nclib import data
from nclib.system import paths

MIXTURES = ("figure", "zero_mean", "toeplitz")
"""The mixture of the captions; the same with μ = 0; three unbalanced classes with Toeplitz covariances, dense means."""


def mixture_options(name: str, p: int) -> dict[str, object]:
    """Options of `gaussian_mixture` for one of `MIXTURES`."""
    if name == "zero_mean":
        return {"means": np.zeros((2, p))}
    if name == "toeplitz":
        decay = [scipy.linalg.toeplitz(r ** np.arange(p)) for r in (0.2, 0.4, 0.1)]
        scale = [1.0, 1 + 4 / math.sqrt(p), 1 - 3 / math.sqrt(p)]
        direction = np.stack([np.cos(a + np.arange(p) * (a + 1)) for a in range(3)])
        means = 3 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        covariances = [s * c for s, c in zip(scale, decay, strict=True)]
        return {"means": means, "covariances": covariances, "shares": (0.5, 0.3, 0.2)}
    return {}


def equivalence_errors(
    activations: Sequence[str],
    sizes: Sequence[int],
    seeds: Sequence[int],
    sigma_a2: float = 0.2,
    ratio: float = 0.8,
    tau0: Sequence[str] = ("empirical",),
    kernels: Sequence[str] = ("ck",),
    versions: Sequence[str] = ("derived",),
    mixture: str = "figure",
) -> pd.DataFrame:
    """Spectral errors of the equivalents on Gaussian mixtures with population moments.

    Parameters
    ----------
    activations, sizes, seeds : names, numbers of samples n, seeds of the draws
    ratio : p/n
    tau0 : conventions
    kernels : of "ck", "ntk", "ntk_full"
    versions : see `Version`, and "entrywise" (`ck_entrywise`, CK and empirical τ_0 only)
    mixture : of `MIXTURES`

    Returns
    -------
    DataFrame, a row each: activation, n, p, seed, kernel, tau0, version, error (‖difference‖/‖kernel‖), norm
    """
    rows = []
    for n, seed in itertools.product(sizes, seeds):
        p = round(ratio * n)
        x, labels, moments = gaussian_mixture(n, p, seed, **mixture_options(mixture, p))
        for name, convention in itertools.product(activations, tau0):
            scale = resolve_tau0(x, labels, convention, moments)
            if set(kernels) == {"ck"}:
                exact = {"ck": implicit_ck(x, name, sigma_a2, scale)}
            else:
                exact = implicit_kernels(x, name, sigma_a2, scale)._asdict()
            for kernel in kernels:
                norm = spectral_norm(exact[kernel])
                for version in versions:
                    if version == "entrywise":
                        if kernel != "ck" or convention != "empirical":
                            continue
                        near = ck_entrywise(x, name, sigma_a2, scale)
                    else:
                        near = equivalent(x, labels, name, sigma_a2, scale, moments, kernel, version)
                    error = spectral_norm(exact[kernel] - near) / norm
                    rows.append((name, n, p, seed, kernel, convention, version, error, norm))
    names = ["activation", "n", "p", "seed", "kernel", "tau0", "version", "error", "norm"]
    return pd.DataFrame(rows, columns=names)


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
        scale = resolve_tau0(x, labels, tau0, moments)
        tanh = implicit_kernels(x, "tanh", sigma_a2, scale)
        relu = implicit_ck(x, "relu", sigma_a2, scale)
        roots = match_leaky_relu(sigma_a2, scale)
        plans = [
            ("tanh", "H-Tanh", "ck", tanh.ck, [HardTanh(*match_htanh(sigma_a2, scale))]),
            ("tanh", "H-Tanh, NTK-matched", "ntk", tanh.ntk, [HardTanh(*match_htanh(sigma_a2, scale, kernel="ntk"))]),
            ("tanh", "Tanh, unmatched", "ck", tanh.ck, ["tanh"]),
            *(("relu", f"L-ReLU, root {i}", "ck", relu, root.layers) for i, root in enumerate(roots)),
            ("relu", "ReLU, unmatched", "ck", relu, ["relu", "relu"]),
        ]
        for deq, network, kernel, exact, layers in plans:
            other = (explicit_ck if kernel == "ck" else explicit_ntk)(x, layers, scale)
            rows.append((deq, network, kernel, n, p, seed, spectral_norm(exact - other) / spectral_norm(exact)))
    return pd.DataFrame(rows, columns=["deq", "network", "kernel", "n", "p", "seed", "error"])


def finite_width_errors(
    activations: Sequence[str], widths: Sequence[int], draws: int, n: int = 60, p: int = 75, sigma_a2: float = 0.2
) -> pd.DataFrame:
    """How far the kernels of DEQs of finite width are from the infinite ones: single networks, one a draw.

    Returns
    -------
    DataFrame: activation, width, draw, estimate ("ck", "ntk", "ntk_full"), against (likewise), error relative in
    spectral norm. ntk_full stands against both tangent kernels, to tell which of them it is.
    """
    x = gaussian_mixture(n, p)[0]
    rows = []
    for name in activations:
        exact = implicit_kernels(x, name, sigma_a2)._asdict()
        for width, draw in itertools.product(widths, range(draws)):
            drawn = finite_width_kernels(x, name, sigma_a2, width, 1, draw)._asdict()
            for one, other in (("ck", "ck"), ("ntk", "ntk"), ("ntk_full", "ntk_full"), ("ntk_full", "ntk")):
                error = spectral_norm(drawn[one] - exact[other]) / spectral_norm(exact[other])
                rows.append((name, width, draw, one, other, error))
    return pd.DataFrame(rows, columns=["activation", "width", "draw", "estimate", "against", "error"])


def image_samples(dataset: str, classes: Sequence[str], n: int = 0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images as columns: global mean image subtracted, rescaled so that the mean of ‖x_i‖² is 1 (τ_0 = 1).

    Parameters
    ----------
    dataset : a name of `nclib.data.load_dataset`; both splits are used
    classes : class names; labels are their positions
    n : samples in all, the same number of each class; 0 takes all there are
    seed : of the draw

    Returns
    -------
    x (p, n) and labels (n,), class by class
    """
    parts = [data.load_dataset(dataset, split) for split in data.SPLITS]
    names = parts[0].class_names
    images = np.concatenate([part.images.flatten(1).numpy() for part in parts])
    labels = np.concatenate([part.labels.numpy() for part in parts])
    rng, chosen = np.random.default_rng(seed), []
    for name in classes:
        rows = np.flatnonzero(labels == names.index(name))
        wanted = n // len(classes) if n else len(rows)
        chosen.append(rows if wanted == len(rows) else np.sort(rng.permutation(rows)[:wanted]))
    x = images[np.concatenate(chosen)].astype(float).T / 255
    x -= x.mean(axis=1, keepdims=True)
    x /= math.sqrt((x**2).sum() / x.shape[1])
    return x, np.repeat(np.arange(len(classes)), [len(rows) for rows in chosen])


def kernel_row(
    claim: str,
    evidence: str,
    rule: str,
    cases: Iterable[bool],
    place: str = "here",
    remark: str = "our advice",
    certificate: str = "",
) -> dict[str, str]:
    """A row of the ledger of the released scripts: "holds" where the rule is met in every case, else "not shown". All
    are beyond the paper, because none of its formulas is at hand.

    Parameters
    ----------
    place : where the claim is from
    certificate : id for ``nclib certify``, where there is one
    """
    said = dict(evidence=evidence, rule=rule, verdict="holds" if all(cases) else "not shown")
    row = dict(place=place, part="beyond the paper", claim=claim, reading="ours")
    return row | said | dict(remark=remark, certificate=certificate)


def published_kernels(figure: str | None = None) -> pd.DataFrame:
    """What the captions of Ling et al. (2024) print: figure, quantity, activation, data, p, n, value."""
    frame = pd.read_csv(paths.published() / "ling_2024.csv", dtype={"figure": str})
    return frame if figure is None else frame[frame["figure"] == figure].reset_index(drop=True)
