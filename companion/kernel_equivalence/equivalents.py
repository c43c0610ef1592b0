"""What the kernels are in high dimension: for x_i from a Gaussian mixture, matrices made of XᵀX, class statistics and
four numbers, up to a vanishing spectral error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import scipy

from companion.kernel_equivalence.activations import AnyActivation
from companion.kernel_equivalence.kernel_numbers import coefficients
from companion.kernel_equivalence.mixtures import MixtureMoments, _data, empirical_tau0, estimate_moments

Tau0 = Literal["empirical", "trace"] | float
Version = Literal["derived", "centred_T", "minus_tau4"]
"""Of the formula: as derived here; with T from the centred C_a − C°, as in the released scripts; with −τ_0⁴ α_3 I, as
in an earlier code of the same group (multiplied by 0 in the released scripts). The last two differ from the first by
matrices that do not vanish, and are kept to show their errors."""


def equivalent(
    x: np.ndarray,
    labels: Sequence[int],
    activation: AnyActivation,
    sigma_a2: float,
    tau0: Tau0 = "empirical",
    moments: MixtureMoments | None = None,
    kernel: Literal["ck", "ntk", "ntk_full"] = "ck",
    version: Version = "derived",
) -> np.ndarray:
    """The matrix that a kernel of a DEQ approaches on a Gaussian mixture, here for the conjugate kernel.

        Ḡ = α_1 XᵀX + V C_* Vᵀ + (γ_*² − τ_0² α_1) I,   V = [J/√p, ψ],   C_* = [[α_2 ttᵀ + α_3 T, α_2 t], [α_2 tᵀ, α_2]]
        t_a = tr(C_a − C°)/√p,   T_ab = tr(C_a C_b)/p,   ψ_i = (‖ζ_i‖² − tr C_a)/p,   C° = Σ_a (n_a/n) C_a

    For a tangent kernel β stands for α and κ² for γ_*².

    Parameters
    ----------
    x : (p, n)
    labels : (n,) classes 0 … K−1
    activation, sigma_a2 : as in `coefficients`
    tau0 : "empirical" √(mean ‖x_i‖²), "trace" √(tr C°/p), or a number; the same limit, the first has the smaller error
    moments : of the population; left out, `estimate_moments` of the samples
    kernel : "ck", "ntk", or "ntk_full", in which B is trained as well
    version : see `Version`

    Returns
    -------
    (n, n). The spectral norm of its difference from the kernel tends to 0, in practice about like n^−½.

    Source: for theorems 3.3 and 3.4, with the uncentred T of Gu et al. (2022); "ntk_full" is derived here.
    """
    x = _data(x)
    p, n = x.shape
    estimated = moments is None
    moments = estimate_moments(x, labels) if estimated else moments
    tau0 = resolve_tau0(x, labels, tau0, moments)
    c = coefficients(activation, sigma_a2, tau0, full=kernel == "ntk_full")
    first, second, third, power = (
        (c.alpha1, c.alpha2, c.alpha3, c.gamma2) if kernel == "ck" else (c.beta1, c.beta2, c.beta3, c.kappa2)
    )
    counts = np.bincount(labels)
    weights = counts / n
    # a sample's distance to its own class mean is too small by 1 − 1/n_a when that mean is estimated from it
    correction = counts / (counts - 1) if estimated else np.ones(len(counts))
    offsets = moments.traces - weights @ moments.traces
    products = moments.products
    if version == "centred_T":
        mixed = products @ weights
        products = products - mixed[:, None] - mixed[None, :] + weights @ mixed
    noise = math.sqrt(p) * x - moments.means.T[:, labels]
    psi = ((noise**2).sum(axis=0) * correction[labels] - moments.traces[labels]) / p
    radius = offsets[labels] / p + psi
    found = first * (x.T @ x) + second * np.outer(radius, radius) + third / p**2 * products[np.ix_(labels, labels)]
    shift = power - tau0**2 * first - (tau0**4 * third if version == "minus_tau4" else 0.0)
    found[np.diag_indices(n)] += shift
    return found


def resolve_tau0(
    x: np.ndarray, labels: Sequence[int], tau0: Tau0 = "empirical", moments: MixtureMoments | None = None
) -> float:
    """τ_0 as a number: "empirical" √(mean ‖x_i‖²), "trace" √(tr C°/p) of the moments or their estimate, or itself."""
    if tau0 == "empirical":
        return empirical_tau0(x)
    if tau0 == "trace":
        moments = estimate_moments(x, labels) if moments is None else moments
        return math.sqrt(float(np.bincount(labels) / len(labels) @ moments.traces) / len(x))
    return float(tau0)


def ck_entrywise(x: np.ndarray, activation: AnyActivation, sigma_a2: float, tau0: float | None = None) -> np.ndarray:
    """The equivalent of the conjugate kernel entry by entry, without labels.

        α_1 s_ij + α_2 δ_i δ_j + α_3 s_ij²  (i ≠ j),   γ_*² + α_1 δ_i  (i = j),   s = XᵀX,   δ_i = ‖x_i‖² − τ_0²

    At finite n it is closer to G* than `equivalent`, up to 5 times for ReLU; the limit is the same. Source: derived
    here, a step of the proof.

    Parameters
    ----------
    tau0 : left out, `empirical_tau0`, which is what it is accurate for.
    """
    x = _data(x)
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    c = coefficients(activation, sigma_a2, tau0)
    gram = x.T @ x
    delta = np.diag(gram) - tau0**2
    found = c.alpha1 * gram + c.alpha2 * np.outer(delta, delta) + c.alpha3 * gram**2
    np.fill_diagonal(found, c.gamma2 + c.alpha1 * delta)
    return found


def spectral_norm(matrix: np.ndarray) -> float:
    """Largest |eigenvalue| of a symmetric real matrix (n, n); raises ValueError for another."""
    n = len(matrix)
    if np.iscomplexobj(matrix) or not np.allclose(matrix, np.transpose(matrix), rtol=1e-8, atol=1e-12):
        raise ValueError("the matrix must be real and symmetric; of another, take np.linalg.norm(matrix, 2)")
    if n <= 400:
        return float(np.abs(scipy.linalg.eigvalsh(matrix)).max())
    start = np.random.default_rng(0).standard_normal(n)
    return float(np.abs(scipy.sparse.linalg.eigsh(matrix, k=1, v0=start, tol=1e-8, return_eigenvectors=False)).max())
