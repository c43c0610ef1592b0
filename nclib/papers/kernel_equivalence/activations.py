"""Activations as functions of real numbers, their Gaussian moments, whether a DEQ with them is well-posed, and the
numbers that govern its kernels in high dimension. The network, its kernels and the sources are in the module ``exact``.

Derivatives are taken in the weak sense, by Stein's identity, so that ReLU has a second one:

    E[φ'(τξ)] = E[ξ φ(τξ)]/τ,   E[φ''(τξ)] = E[(ξ²−1) φ(τξ)]/τ²,   ξ standard normal

Quadrature is Gauss–Legendre on panels that end at the kinks, with the normal density as a weight: it converges
spectrally where Gauss–Hermite quadrature of a kink does not. Everything is numpy in float64.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from nclib.config import one_of

_NODES = 160  # of each panel
_REACH = 12.0  # the normal density is 1e-32 there
_MOST_SWEEPS = 20_000
SMALLEST_SCALE = 1e-8


@dataclasses.dataclass(frozen=True)
class Activation:
    """A function of real numbers, before centring.

    Parameters
    ----------
    function : maps an array to an array, elementwise
    kinks : where it is continuous and not smooth; without them quadrature loses its precision
    slope : the derivative, elementwise; left out, integrals of it are computed from values of the function. Networks of
        finite width need it
    """

    function: Callable[[np.ndarray], np.ndarray]
    kinks: tuple[float, ...] = (0.0,)
    slope: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.function(x)


@dataclasses.dataclass(frozen=True)
class LeakyReLU:
    """max(a x, b x) with a ≥ b; ReLU is (1, 0)."""

    a: float
    b: float
    kinks = (0.0,)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(self.a * x, self.b * x)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, self.a, self.b)


@dataclasses.dataclass(frozen=True)
class HardTanh:
    """a · clip(x, −c, c) with c > 0."""

    a: float
    c: float

    @property
    def kinks(self) -> tuple[float, ...]:
        return (-self.c, self.c)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.a * np.clip(x, -self.c, self.c)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return self.a * (np.abs(x) < self.c)


Phi = Activation | LeakyReLU | HardTanh
AnyActivation = str | Phi | Callable[[np.ndarray], np.ndarray]
_expit = scipy.special.expit
ACTIVATIONS: dict[str, Phi] = {
    "relu": LeakyReLU(1.0, 0.0),
    "leaky_relu": LeakyReLU(1.0, 0.01),
    "tanh": Activation(np.tanh, (), lambda x: 1 - np.tanh(x) ** 2),
    "erf": Activation(scipy.special.erf, (), lambda x: 2 / math.sqrt(math.pi) * np.exp(-(np.asarray(x) ** 2))),
    "elu": Activation(lambda x: np.maximum(x, np.expm1(np.minimum(x, 0))), (0.0,), lambda x: np.exp(np.minimum(x, 0))),
    "swish": Activation(lambda x: x * _expit(x), (), lambda x: _expit(x) * (1 + x * _expit(-x))),
}
"""The activations that have names; leaky_relu has slope 0.01, elu α = 1."""


def activation(which: AnyActivation) -> Phi:
    """The activation of a name, or a callable made into one.

    Raises
    ------
    ValueError
        For an unknown name; for a callable that is not elementwise, real and finite on [−30, 30], or whose integrals do
        not converge because it has kinks that were not named.
    """
    if isinstance(which, str):
        return ACTIVATIONS[one_of(which, ACTIVATIONS, "activation")]
    if isinstance(which, (LeakyReLU, HardTanh)) or which in ACTIVATIONS.values():
        return which
    made = which if isinstance(which, Activation) else Activation(which)
    lipschitz(made)
    few, many = (gaussian_moments(made, np.array([0.5, 1.0, 2.0]), nodes) for nodes in (_NODES * 5 // 8, _NODES))
    worst = np.abs(np.array(few) - np.array(many)).max()
    if worst > 1e-10 * (1 + many.square.max()):
        raise ValueError(f"integrals differ by {worst:.1e}: name the kinks, Activation(function, kinks=(-1.0, 1.0))")
    return made


def lipschitz(phi: Phi) -> float:
    """L = sup |φ(x) − φ(y)|/|x − y|, read off a grid of 60,001 points in [−30, 30].

    Raises
    ------
    ValueError
        Where the function is not elementwise, real and finite there.
    """
    grid = np.linspace(-30, 30, 60_001)
    with np.errstate(all="ignore"):
        values = np.asarray(phi(grid))
    if values.shape != grid.shape or values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise ValueError("an activation maps real numbers to finite real numbers, elementwise; this one does not")
    return float(np.abs(np.diff(values)).max() / (grid[1] - grid[0]))


def well_posedness(which: AnyActivation, sigma_a2: float) -> dict[str, float]:
    """How far activation and σ_a² are from ill-posedness: the Lipschitz constant L; kernel_rate σ_a²L², below 1 the
    kernels exist and are unique; forward_rate 2σ_aL, below 1 a wide DEQ of any input contracts. The last is sufficient,
    not necessary: erf at σ_a² = 0.2 has 1.01 and works.

    Source: argued from ‖A‖/√m → 2, Poincaré's inequality and |∂κ/∂Cov| ≤ L²; the paper's assumption is not at hand.
    """
    slope = lipschitz(activation(which) if isinstance(which, str) else which)
    return {"lipschitz": slope, "kernel_rate": sigma_a2 * slope**2, "forward_rate": 2 * math.sqrt(sigma_a2) * slope}


def well_posed(which: AnyActivation, sigma_a2: float) -> Phi:
    """The activation, once it and σ_a² are found usable."""
    if not 0 <= sigma_a2 < 1:
        raise ValueError(f"σ_a² must lie in [0, 1), so that σ_b² = 1 − σ_a² is positive; got {sigma_a2}")
    slope, rate, _ = well_posedness(which, sigma_a2).values()
    if rate >= 1:
        raise ValueError(f"not well-posed: σ_a² L² = {rate:.4g} ≥ 1 for L = {slope:.4g}; use σ_a² < {slope**-2:.4g}")
    return activation(which)


@functools.cache
def _legendre(nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gauss–Legendre nodes and weights on [−1, 1] and the matrix that differentiates a polynomial given there."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    barycentric = (-1.0) ** np.arange(nodes) * np.sqrt((1 - x**2) * w)
    gaps = x[:, None] - x[None, :] + np.eye(nodes)
    matrix = barycentric[None, :] / barycentric[:, None] / gaps
    np.fill_diagonal(matrix, 0)
    np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return x, w, matrix


def gauss_rule(kinks: Sequence[float], tau: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points ξ and weights w, (1 or n, panels, nodes), with Σ w f(ξ) = E[f(ξ)], and half the lengths of the panels.
    These end at 0 and at the kinks of ξ ↦ φ(τξ); they are the same for all τ where 0 is the only kink."""
    inner = [kink / tau for kink in kinks if kink != 0]
    columns = [np.zeros_like(tau), *inner] if inner else [np.zeros(1)]
    ends = np.full_like(columns[0], _REACH)
    edges = np.sort(np.clip(np.stack([-ends, *columns, ends], axis=-1), -_REACH, _REACH), axis=-1)
    half = np.diff(edges, axis=-1)[..., None] / 2
    x, w, _ = _legendre(nodes)
    points = (edges[:, :-1, None] + edges[:, 1:, None]) / 2 + half * x
    return points, half * w * np.exp(-(points**2) / 2) / math.sqrt(2 * math.pi), half


class GaussianMoments(NamedTuple):
    """E of φ̃, φ̃², φ̃', φ̃'', (φ̃²)'' and φ̃'² at τξ, an entry for each τ."""

    mean: np.ndarray
    square: np.ndarray
    first: np.ndarray
    second: np.ndarray
    square_second: np.ndarray
    slope_square: np.ndarray


def gaussian_moments(phi: Phi, tau: np.ndarray, nodes: int = _NODES) -> GaussianMoments:
    """By Stein's identity, so that no second derivative is needed: E φ'' = E[(ξ²−1) φ]/τ²."""
    (points, weights, half), scale = gauss_rule(phi.kinks, tau, nodes), tau[:, None, None]
    values = np.asarray(phi(scale * points), dtype=float)
    if phi.slope is None:
        slopes = values @ _legendre(nodes)[2].T / (np.where(half > 0, half, 1.0) * scale)
    else:
        slopes = phi.slope(scale * points)
    curve = points**2 - 1
    averaged = values, values**2, points * values, curve * values, curve * values**2, slopes**2
    mean, square, first, second, bent, slope = ((weights * f).sum(axis=(1, 2)) for f in averaged)
    return GaussianMoments(mean, square, first / tau, second / tau**2, bent / tau**2, slope)


def activation_moments(which: AnyActivation, tau: float) -> GaussianMoments:
    """The moments of φ = φ̃ − E φ̃ that enter the kernels, numbers, at scale τ > 0; `mean` is that of φ̃."""
    m = GaussianMoments(*(float(v[0]) for v in gaussian_moments(activation(which), np.array([float(tau)]))))
    return m._replace(square=m.square - m.mean**2, square_second=m.square_second - 2 * m.mean * m.second)


# --- the four numbers ---------------------------------------------------------------------------------------------


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
    sigma_b2 = 1 - sigma_a2
    tau = float(fixed_scales(phi, sigma_a2, np.array([sigma_b2 * tau0**2]))[0])
    m = activation_moments(phi, tau)
    slope2, bend2 = m.first**2, m.second**2
    rest = 1 - sigma_a2 * slope2
    lambda1 = sigma_b2 / rest
    lambda4 = sigma_b2 / (1 - sigma_a2 * m.square_second / 2)
    alpha1, alpha4 = slope2 * lambda1, m.square_second * lambda4 / 2
    alpha2, alpha3 = bend2 * lambda4**2 / 4 / rest, bend2 * lambda1**2 / 2 / rest
    bent = bend2 * lambda1
    extra = sigma_b2 if full else 0.0
    top = alpha1 + extra * slope2
    kappa2 = (m.square + extra * tau0**2 * m.slope_square) / (1 - sigma_a2 * m.slope_square)
    beta3 = (alpha3 + alpha1 / rest * sigma_a2 * bent) / rest
    if full:
        beta3 = (alpha3 + sigma_b2 * bent) / rest + top * sigma_a2 * bent / rest**2
    alphas = alpha1, alpha2, alpha3, alpha4, m.square
    return Coefficients(tau, m.mean, *alphas, top / rest, alpha2 / rest, beta3, kappa2)


def fixed_scales(phi: Phi, sigma_a2: float, drive: np.ndarray, bias: float | None = None) -> np.ndarray:
    """τ with τ² = σ_a² E(φ̃(τξ) − bias)² + drive, an entry for each of `drive`: a contraction of rate at most σ_a² L² in
    τ². No bias means the one that centres φ̃ at each τ."""
    found = np.maximum(drive, SMALLEST_SCALE**2)
    for _ in range(_MOST_SWEEPS):
        tau = np.sqrt(found)
        points, weights, _ = gauss_rule(phi.kinks, tau, _NODES)  # of the moments, these two alone are needed
        values = np.asarray(phi(tau[:, None, None] * points), dtype=float)
        mean, square = ((weights * f).sum(axis=(1, 2)) for f in (values, values**2))
        power = square - mean**2 if bias is None else square - 2 * bias * mean + bias**2
        before, found = found, np.maximum(sigma_a2 * power + drive, SMALLEST_SCALE**2)
        if np.abs(found - before).max() <= 4e-16 * found.max():
            break
    return np.sqrt(found)


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
        bias, power, kappa2 = m.mean, m.square, m.square + kappa2 * m.slope_square
    return Coefficients(tau, bias, *alpha, power, *beta, kappa2)
