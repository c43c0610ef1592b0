"""The four numbers that govern a kernel in high dimension, for a DEQ and for explicit layers.

The network, its kernels and the sources are in the module ``exact``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from companion.kernel_equivalence.activations import (
    Activation,
    AnyActivation,
    HardTanh,
    LeakyReLU,
    activation_moments,
    gaussian_moments,
    well_posed,
)

_MOST_SWEEPS = 20_000


class Coefficients(NamedTuple):
    """What a kernel is made of in high dimension.

    Parameters
    ----------
    tau : τ_*, scale of the pre-activations (of an explicit network, of its last layer)
    bias : E[φ̃(τ_*ξ)], subtracted from the activation
    alpha1, alpha2, alpha3 : of XᵀX and of the class statistics in the CK
    alpha4 : of the diagonal
    gamma2 : γ_*², limit of the diagonal of the CK
    beta1, beta2, beta3, kappa2 : the same for the NTK
    """

    tau: float
    bias: float
    alpha1: float
    alpha2: float
    alpha3: float
    alpha4: float
    gamma2: float
    beta1: float
    beta2: float
    beta3: float
    kappa2: float


def coefficients(activation: AnyActivation, sigma_a2: float, tau0: float = 1.0, full: bool = False) -> Coefficients:
    """The numbers that govern the kernels of a DEQ.

        τ_*² = σ_a² γ_*² + σ_b² τ_0²,   γ_*² = E φ²,   D = 1 − σ_a² E[φ']²,   λ_1 = σ_b²/D
        α_1 = E[φ']² λ_1,   α_4 = E[(φ²)''] λ_4/2,   λ_4 = σ_b²/(1 − σ_a² E[(φ²)'']/2)
        α_2 = E[φ'']² λ_4²/(4D),   α_3 = E[φ'']² λ_1²/(2D)
        β_1, β_2 = (α_1, α_2)/D,   β_3 = (α_3 + β_1 σ_a² E[φ'']² λ_1)/D,   κ² = γ_*²/(1 − σ_a² E φ'²)

    Parameters
    ----------
    activation : a name of `ACTIVATIONS`, an `Activation`, `LeakyReLU`, `HardTanh` or any function of arrays
    sigma_a2 : σ_a² in [0, 1); σ_b² = 1 − σ_a²
    tau0 : τ_0 > 0, scale of the data
    full : β and κ² of the tangent kernel in which B is trained as well

    Raises
    ------
    ValueError
        For an activation that is not well-posed at this σ_a².

    Source: the released scripts; derivatives are weak (Stein's identity), so ReLU has them. β with ``full`` is ours.
    """
    phi = well_posed(activation, sigma_a2)
    tau = _scale(phi, sigma_a2, tau0)
    m = activation_moments(phi, tau)
    sigma_b2 = 1 - sigma_a2
    slope2, bend2 = m.first**2, m.second**2
    rest = 1 - sigma_a2 * slope2
    lambda1 = sigma_b2 / rest
    lambda4 = sigma_b2 / (1 - sigma_a2 * m.square_second / 2)
    alpha1, alpha4 = slope2 * lambda1, m.square_second * lambda4 / 2
    alpha2, alpha3 = bend2 * lambda4**2 / 4 / rest, bend2 * lambda1**2 / 2 / rest
    bent = bend2 * lambda1
    if full:
        top = alpha1 + sigma_b2 * slope2
        beta3 = (alpha3 + sigma_b2 * bent) / rest + top * sigma_a2 * bent / rest**2
        kappa2 = (m.variance + sigma_b2 * tau0**2 * m.slope_square) / (1 - sigma_a2 * m.slope_square)
    else:
        top = alpha1
        beta3 = (alpha3 + alpha1 / rest * sigma_a2 * bent) / rest
        kappa2 = m.variance / (1 - sigma_a2 * m.slope_square)
    alphas = alpha1, alpha2, alpha3, alpha4, m.variance
    return Coefficients(tau, m.mean, *alphas, top / rest, alpha2 / rest, beta3, kappa2)


def _scale(phi: Activation | LeakyReLU | HardTanh, sigma_a2: float, tau0: float) -> float:
    """τ_*: a contraction of rate at most σ_a² L² in τ²."""
    fixed = (1 - sigma_a2) * tau0**2
    found = fixed
    for _ in range(_MOST_SWEEPS):
        m = gaussian_moments(phi, np.array([math.sqrt(found)]))
        new = float(sigma_a2 * (m.square[0] - m.mean[0] ** 2) + fixed)
        if abs(new - found) <= 1e-16 * new:
            return math.sqrt(new)
        found, last = new, found
        if abs(new - last) <= 4e-16 * new:
            break
    return math.sqrt(found)


def explicit_coefficients(layers: Sequence[AnyActivation], tau0: float = 1.0) -> Coefficients:
    """The same numbers for explicit layers x ↦ σ_ℓ(W_ℓ x)/√m_ℓ, each centred at the scale of its own input.

        α_1 ← E[σ']² α_1,   α_2 ← E[σ']² α_2 + E[σ'']² α_4²/4,   α_3 ← E[σ']² α_3 + E[σ'']² α_1²/2
        α_4 ← E[(σ²)''] α_4/2,   β_k ← α_k + β_k E[σ']²  (+ β_1 E[σ'']² α_1 for k = 3),   κ² ← τ² + κ² E σ'²
        from α = (1, 0, 0, 1), β = (1, 0, 0), κ² = τ_0²

    Source: proposition 3.7 in the high-dimensional regime; the recursions are Gu et al.'s (NeurIPS 2022).
    """
    alpha, beta = (1.0, 0.0, 0.0, 1.0), (1.0, 0.0, 0.0)
    tau, bias, power, kappa2 = tau0, 0.0, tau0**2, tau0**2
    for layer in layers:
        tau = math.sqrt(power)
        m = activation_moments(layer, tau)
        slope2, bend2, (a1, a2, a3, a4) = m.first**2, m.second**2, alpha
        alpha = slope2 * a1, slope2 * a2 + bend2 * a4**2 / 4, slope2 * a3 + bend2 * a1**2 / 2, m.square_second * a4 / 2
        b1, b2, b3 = beta
        beta = alpha[0] + b1 * slope2, alpha[1] + b2 * slope2, alpha[2] + b3 * slope2 + b1 * bend2 * a1
        bias, power, kappa2 = m.mean, m.variance, m.variance + kappa2 * m.slope_square
    return Coefficients(tau, bias, *alpha, power, *beta, kappa2)
