"""Kernels of infinitely wide DEQs and explicit networks, and the numbers that govern them.

    z_i = φ(σ_a A z_i + σ_b B x_i)/√m,   f(x_i) = aᵀ z_i,   σ_b² = 1 − σ_a²
    A, B, a standard normal,   m → ∞

The file goes from activations to kernels: activations, when a DEQ with them is well-posed, their
Gaussian moments, the numbers that are left of them in high dimension, expectations of pairs of
pre-activations, and last the kernels.

φ = φ̃ − E φ̃(τ_*ξ) is centred at the scale τ_* of the pre-activations. Data are matrices x (p, n), a
sample in a column, scaled so that ‖x_i‖² = O(1). Everything is numpy in float64.

Source: Ling et al. (ICML 2024), by their released scripts and derivations of our own; no formula of
the paper itself is available.
"""

import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from nclib.config import one_of

PANEL_NODES = 160
"""Gauss–Legendre nodes of each panel of an integral."""
TERM_NODES = 320
"""The same for coefficients of the Mehler series, where h_1000 oscillates 30 times as fast as φ."""
REACH = 12.0
"""Integrals end at ±12 standard deviations, where the normal density is 1e-32."""
SMALLEST_SCALE = 1e-8
MOST_SWEEPS = 20_000
FEW_TERMS = 64
MOST_TERMS = 1024
MOST_TERMS_HARD_TANH = 8192
"""Of a Mehler series; `HardTanh` has its terms in closed form, so more of them are affordable."""
NEGLIGIBLE_TAIL = 2e-16
TAIL_TO_WARN_OF = 1e-13
TILE = 256
"""Side of the blocks in which kernels are computed: four such matrices fit a processor's cache."""

Matrices = tuple[np.ndarray, np.ndarray]


# --- activations ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Activation:
    """A function of real numbers, before centring.

    Parameters
    ----------
    function : maps an array to an array, elementwise
    kinks : where it is continuous and not smooth; integrals are inaccurate without them
    slope : the derivative, elementwise; left out, integrals of it are computed from values of the
        function. Networks of finite width need it

    Examples
    --------
    >>> import numpy as np
    >>> clipped = Activation(lambda x: np.clip(x, -1, 1), kinks=(-1.0, 1.0))
    >>> clipped(np.array([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
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


def _tanh_slope(x: np.ndarray) -> np.ndarray:
    return 1 - np.tanh(x) ** 2


def _erf_slope(x: np.ndarray) -> np.ndarray:
    return 2 / math.sqrt(math.pi) * np.exp(-(np.asarray(x) ** 2))


def _elu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, np.expm1(np.minimum(x, 0)))


def _elu_slope(x: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(x, 0))


def _swish(x: np.ndarray) -> np.ndarray:
    return x * scipy.special.expit(x)


def _swish_slope(x: np.ndarray) -> np.ndarray:
    return scipy.special.expit(x) * (1 + x * scipy.special.expit(-x))


Phi = Activation | LeakyReLU | HardTanh
AnyActivation = str | Phi | Callable[[np.ndarray], np.ndarray]
ACTIVATIONS: dict[str, Phi] = {
    "relu": LeakyReLU(1.0, 0.0),
    "leaky_relu": LeakyReLU(1.0, 0.01),
    "tanh": Activation(np.tanh, (), _tanh_slope),
    "erf": Activation(scipy.special.erf, (), _erf_slope),
    "elu": Activation(_elu, (0.0,), _elu_slope),
    "swish": Activation(_swish, (), _swish_slope),
}
"""The activations that have names; leaky_relu has slope 0.01, elu α = 1."""


def activation(which: AnyActivation) -> Phi:
    """The activation of a name, or a function made into one.

    Raises
    ------
    ValueError
        For an unknown name, for a function that is not elementwise, real and finite on [−30, 30],
        and where integrals do not converge because the function has kinks that were not named.
    """
    if isinstance(which, str):
        return ACTIVATIONS[one_of(which, ACTIVATIONS, "activation")]
    if isinstance(which, (LeakyReLU, HardTanh)) or which in ACTIVATIONS.values():
        return which
    made = which if isinstance(which, Activation) else Activation(which)
    lipschitz(made)
    scales = np.array([0.5, 1.0, 2.0])
    coarse = gaussian_moments(made, scales, PANEL_NODES * 5 // 8)
    fine = gaussian_moments(made, scales, PANEL_NODES)
    difference = np.abs(np.array(coarse) - np.array(fine)).max()
    if difference > 1e-10 * (1 + fine.square.max()):
        raise ValueError(
            f"integrals differ by {difference:.1e}: "
            "name the kinks, Activation(function, kinks=(-1.0, 1.0))"
        )
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
    is_real = values.dtype.kind in "fiu"
    if values.shape != grid.shape or not is_real or not np.isfinite(values).all():
        raise ValueError(
            "an activation maps real numbers to finite real numbers, elementwise; this one does not"
        )
    return float(np.abs(np.diff(values)).max() / (grid[1] - grid[0]))


def well_posedness(which: AnyActivation, sigma_a2: float) -> dict[str, float]:
    """How far activation and σ_a² are from ill-posedness.

    Returns
    -------
    dict
        ``lipschitz`` L; ``kernel_rate`` σ_a²L²: below 1 the kernels exist and are unique;
        ``forward_rate`` 2σ_aL: below 1 a wide DEQ contracts for any input. The last is sufficient,
        not necessary: erf at σ_a² = 0.2 has 1.01 and works.

    Source: argued from ‖A‖/√m → 2, Poincaré's inequality and |∂κ/∂Cov| ≤ L²; the paper's assumption
    is not at hand.

    Examples
    --------
    >>> well_posedness("relu", 0.2)["kernel_rate"]
    0.2...
    """
    phi = activation(which) if isinstance(which, str) else which
    slope = lipschitz(phi)
    return {
        "lipschitz": slope,
        "kernel_rate": sigma_a2 * slope**2,
        "forward_rate": 2 * math.sqrt(sigma_a2) * slope,
    }


def well_posed(which: AnyActivation, sigma_a2: float) -> Phi:
    """The activation, once it and σ_a² are found usable."""
    if not 0 <= sigma_a2 < 1:
        raise ValueError(
            f"σ_a² must lie in [0, 1), so that σ_b² = 1 − σ_a² is positive; got {sigma_a2}"
        )
    posed = well_posedness(which, sigma_a2)
    if posed["kernel_rate"] >= 1:
        slope = posed["lipschitz"]
        raise ValueError(
            f"not well-posed: σ_a² L² = {posed['kernel_rate']:.4g} ≥ 1 for L = {slope:.4g}; "
            f"use σ_a² < {slope**-2:.4g}"
        )
    return activation(which)


# --- Gaussian moments -----------------------------------------------------------------------------
#
# Quadrature is Gauss–Legendre on panels that end at the kinks, with the normal density as a weight:
# it converges spectrally, where Gauss–Hermite quadrature of a kink does not.


@functools.cache
def _legendre(nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes and weights on [−1, 1], and the matrix that differentiates a polynomial given there."""
    x, weights = np.polynomial.legendre.leggauss(nodes)
    barycentric = (-1.0) ** np.arange(nodes) * np.sqrt((1 - x**2) * weights)
    gaps = x[:, None] - x[None, :] + np.eye(nodes)
    derivative = barycentric[None, :] / barycentric[:, None] / gaps
    np.fill_diagonal(derivative, 0)
    np.fill_diagonal(derivative, -derivative.sum(axis=1))
    return x, weights, derivative


def gauss_rule(
    kinks: Sequence[float], tau: np.ndarray, nodes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points ξ and weights w with Σ w f(ξ) = E[f(ξ)], and half the lengths of the panels.

    The panels end at 0 and at the kinks of ξ ↦ φ(τξ). Shapes are (n, panels, nodes) for n scales τ;
    where 0 is the only kink, all scales share one rule, (1, panels, nodes).
    """
    inner = [kink / tau for kink in kinks if kink != 0]
    zeros = np.zeros_like(tau) if inner else np.zeros(1)
    ends = np.full_like(zeros, REACH)
    edges = np.stack([-ends, zeros, *inner, ends], axis=-1)
    edges = np.sort(np.clip(edges, -REACH, REACH), axis=-1)
    half = np.diff(edges, axis=-1)[..., None] / 2
    x, weights, _ = _legendre(nodes)
    points = (edges[:, :-1, None] + edges[:, 1:, None]) / 2 + half * x
    density = half * weights * np.exp(-(points**2) / 2) / math.sqrt(2 * math.pi)
    return points, density, half


class GaussianMoments(NamedTuple):
    """E of φ̃, φ̃², φ̃', φ̃'', (φ̃²)'' and φ̃'² at τξ, ξ standard normal: an entry for each τ."""

    mean: np.ndarray
    square: np.ndarray
    first: np.ndarray
    second: np.ndarray
    square_second: np.ndarray
    slope_square: np.ndarray


def gaussian_moments(phi: Phi, tau: np.ndarray, nodes: int = PANEL_NODES) -> GaussianMoments:
    """Moments of φ̃(τξ), derivatives in the weak sense, so that ReLU has a second one.

    By Stein's identity E[φ'(τξ)] = E[ξ φ(τξ)]/τ and E[φ''(τξ)] = E[(ξ² − 1) φ(τξ)]/τ².
    """
    points, weights, half = gauss_rule(phi.kinks, tau, nodes)
    scale = tau[:, None, None]
    values = np.asarray(phi(scale * points), dtype=float)
    if phi.slope is None:
        derivative = _legendre(nodes)[2]
        length = np.where(half > 0, half, 1.0)
        slopes = values @ derivative.T / (length * scale)
    else:
        slopes = phi.slope(scale * points)

    def mean(of: np.ndarray) -> np.ndarray:
        return (weights * of).sum(axis=(1, 2))

    curve = points**2 - 1
    return GaussianMoments(
        mean=mean(values),
        square=mean(values**2),
        first=mean(points * values) / tau,
        second=mean(curve * values) / tau**2,
        square_second=mean(curve * values**2) / tau**2,
        slope_square=mean(slopes**2),
    )


def activation_moments(which: AnyActivation, tau: float) -> GaussianMoments:
    """The moments of φ = φ̃ − E φ̃ at one scale τ > 0, as numbers; `mean` is that of φ̃."""
    arrays = gaussian_moments(activation(which), np.array([float(tau)]))
    moments = GaussianMoments(*(float(array[0]) for array in arrays))
    return moments._replace(
        square=moments.square - moments.mean**2,
        square_second=moments.square_second - 2 * moments.mean * moments.second,
    )


# --- the four numbers -----------------------------------------------------------------------------


class Coefficients(NamedTuple):
    """What a kernel is made of in high dimension.

    Parameters
    ----------
    tau : τ_*, scale of the pre-activations (of an explicit network, of its last layer)
    bias : E[φ̃(τ_*ξ)], subtracted from the activation
    alpha1, alpha2, alpha3 : of XᵀX and of the class statistics in the conjugate kernel
    alpha4 : of the diagonal
    gamma2 : γ_*², limit of the diagonal of the conjugate kernel
    beta1, beta2, beta3, kappa2 : the same for the tangent kernel
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


def coefficients(
    activation: AnyActivation, sigma_a2: float, tau0: float = 1.0, full: bool = False
) -> Coefficients:
    """The numbers that govern the kernels of a DEQ.

        τ_*² = σ_a² γ_*² + σ_b² τ_0²,   γ_*² = E φ²,   D = 1 − σ_a² E[φ']²,   λ_1 = σ_b²/D
        α_1 = E[φ']² λ_1,   α_4 = E[(φ²)''] λ_4/2,   λ_4 = σ_b²/(1 − σ_a² E[(φ²)'']/2)
        α_2 = E[φ'']² λ_4²/(4D),   α_3 = E[φ'']² λ_1²/(2D)
        β_1, β_2 = (α_1, α_2)/D,   β_3 = (α_3 + β_1 σ_a² E[φ'']² λ_1)/D
        κ² = γ_*²/(1 − σ_a² E φ'²)

    Parameters
    ----------
    activation : a name of `ACTIVATIONS`, an `Activation`, `LeakyReLU`, `HardTanh` or any function
        of arrays
    sigma_a2 : σ_a² in [0, 1); σ_b² = 1 − σ_a²
    tau0 : τ_0 > 0, scale of the data
    full : β and κ² of the tangent kernel in which B is trained as well

    Raises
    ------
    ValueError
        For an activation that is not well-posed at this σ_a².

    Source: the released scripts; β with ``full`` is derived here.

    Examples
    --------
    >>> round(coefficients("relu", 0.2).alpha1, 6)
    0.210526
    """
    phi = well_posed(activation, sigma_a2)
    sigma_b2 = 1 - sigma_a2
    tau = float(fixed_scales(phi, sigma_a2, np.array([sigma_b2 * tau0**2]))[0])
    moments = activation_moments(phi, tau)
    slope2 = moments.first**2
    bend2 = moments.second**2
    rest = 1 - sigma_a2 * slope2
    lambda1 = sigma_b2 / rest
    lambda4 = sigma_b2 / (1 - sigma_a2 * moments.square_second / 2)
    alpha1 = slope2 * lambda1
    alpha2 = bend2 * lambda4**2 / 4 / rest
    alpha3 = bend2 * lambda1**2 / 2 / rest
    alpha4 = moments.square_second * lambda4 / 2

    bent = bend2 * lambda1
    if full:
        top = alpha1 + sigma_b2 * slope2
        beta1 = top / rest
        beta3 = (alpha3 + sigma_b2 * bent) / rest + top * sigma_a2 * bent / rest**2
        power = moments.square + sigma_b2 * tau0**2 * moments.slope_square
    else:
        beta1 = alpha1 / rest
        beta3 = (alpha3 + beta1 * sigma_a2 * bent) / rest
        power = moments.square
    return Coefficients(
        tau=tau,
        bias=moments.mean,
        alpha1=alpha1,
        alpha2=alpha2,
        alpha3=alpha3,
        alpha4=alpha4,
        gamma2=moments.square,
        beta1=beta1,
        beta2=alpha2 / rest,
        beta3=beta3,
        kappa2=power / (1 - sigma_a2 * moments.slope_square),
    )


def fixed_scales(
    phi: Phi, sigma_a2: float, drive: np.ndarray, bias: float | None = None
) -> np.ndarray:
    """τ with τ² = σ_a² E(φ̃(τξ) − bias)² + drive, an entry for each of `drive`.

    The right side contracts in τ² with a rate of at most σ_a² L². Without a bias, φ̃ is centred at
    each τ.
    """
    square_tau = np.maximum(drive, SMALLEST_SCALE**2)
    for _ in range(MOST_SWEEPS):
        tau = np.sqrt(square_tau)
        points, weights, _ = gauss_rule(phi.kinks, tau, PANEL_NODES)
        values = np.asarray(phi(tau[:, None, None] * points), dtype=float)
        mean = (weights * values).sum(axis=(1, 2))
        square = (weights * values**2).sum(axis=(1, 2))
        power = _power(mean, square, bias)
        before = square_tau
        square_tau = np.maximum(sigma_a2 * power + drive, SMALLEST_SCALE**2)
        if np.abs(square_tau - before).max() <= 4e-16 * square_tau.max():
            break
    return np.sqrt(square_tau)


def _power(mean: np.ndarray, square: np.ndarray, bias: float | None) -> np.ndarray:
    """E(φ̃ − bias)² from the moments of φ̃; without a bias, its variance."""
    if bias is None:
        return square - mean**2
    return square - 2 * bias * mean + bias**2


def explicit_coefficients(layers: Sequence[AnyActivation], tau0: float = 1.0) -> Coefficients:
    """The same numbers for explicit layers x ↦ σ_ℓ(W_ℓ x)/√m_ℓ, each centred at its own scale.

        α_1 ← E[σ']² α_1,   α_2 ← E[σ']² α_2 + E[σ'']² α_4²/4,   α_3 ← E[σ']² α_3 + E[σ'']² α_1²/2
        α_4 ← E[(σ²)''] α_4/2,   β_k ← α_k + β_k E[σ']²  (+ β_1 E[σ'']² α_1 for k = 3)
        κ² ← τ² + κ² E σ'²,   from α = (1, 0, 0, 1), β = (1, 0, 0), κ² = τ_0²

    Parameters
    ----------
    layers : activations, first layer first, as in `coefficients`
    tau0 : scale of the data

    Source: proposition 3.7 in the high-dimensional regime; the recursions are those of Gu et al.
    (NeurIPS 2022).

    Examples
    --------
    >>> round(explicit_coefficients(["relu"]).alpha1, 9)
    0.25
    """
    tau = tau0
    bias = 0.0
    power = tau0**2
    kappa2 = tau0**2
    alpha1 = 1.0
    alpha2 = 0.0
    alpha3 = 0.0
    alpha4 = 1.0
    beta1 = 1.0
    beta2 = 0.0
    beta3 = 0.0
    for layer in layers:
        tau = math.sqrt(power)
        moments = activation_moments(layer, tau)
        slope2 = moments.first**2
        bend2 = moments.second**2
        new_alpha2 = slope2 * alpha2 + bend2 * alpha4**2 / 4
        new_alpha3 = slope2 * alpha3 + bend2 * alpha1**2 / 2
        beta3 = new_alpha3 + beta3 * slope2 + beta1 * bend2 * alpha1
        beta2 = new_alpha2 + beta2 * slope2
        alpha1 = slope2 * alpha1
        alpha2 = new_alpha2
        alpha3 = new_alpha3
        alpha4 = moments.square_second * alpha4 / 2
        beta1 = alpha1 + beta1 * slope2
        bias = moments.mean
        power = moments.square
        kappa2 = power + kappa2 * moments.slope_square
    return Coefficients(
        tau, bias, alpha1, alpha2, alpha3, alpha4, power, beta1, beta2, beta3, kappa2
    )


# --- expectations of pairs ------------------------------------------------------------------------


class PairExpectations:
    """E[φ(u)φ(v)] and E[φ'(u)φ'(v)] of Gaussian pre-activations u, v of n samples.

    LeakyReLU and erf have closed forms. The others take the Mehler series

        E[φ(u)φ(v)] = Σ_k c_k(τ_u) c_k(τ_v) ρ^k,   c_k(τ) = E[φ(τξ) h_k(ξ)]

    with the normalised Hermite polynomials h_k and the correlation ρ of u and v.

    Parameters
    ----------
    phi : the activation φ̃
    tau : (n,) standard deviations of the pre-activations
    bias : φ = φ̃ − bias
    """

    def __init__(self, phi: Phi, tau: np.ndarray, bias: float) -> None:
        moments = gaussian_moments(phi, tau)
        self.phi = phi
        self.tau = tau
        self.mean = moments.mean - bias
        self.square = moments.square - 2 * bias * moments.mean + bias**2
        self.slope_square = moments.slope_square
        self._variance = moments.square - moments.mean**2
        self._terms = np.empty((0, len(tau)))
        self._unexplained = np.empty((2, 0))

    def block(self, rows: slice, columns: slice, cov: np.ndarray, exact_slopes: bool) -> Matrices:
        """Both expectations for some samples against others.

        Parameters
        ----------
        rows, columns : of the samples
        cov : (r, c) covariances of their pre-activations
        exact_slopes : E[φ'φ'] to full precision; without it, as precise as Newton's method needs

        Returns
        -------
        E[φφ] and E[φ'φ'], (r, c) each
        """
        tau_rows = self.tau[rows, None]
        tau_columns = self.tau[None, columns]
        if isinstance(self.phi, LeakyReLU):
            values, slopes = _leaky_relu_pair(self.phi, tau_rows, tau_columns, cov)
        elif self.phi is ACTIVATIONS["erf"]:
            values, slopes = _erf_pair(tau_rows, tau_columns, cov)
        else:
            rho = np.clip(cov / (tau_rows * tau_columns), -1, 1)
            values, slopes = self._series(rows, columns, rho, exact_slopes)
            slopes /= tau_rows * tau_columns
        return values + self.mean[rows, None] * self.mean[None, columns], slopes

    def _series(self, rows: slice, columns: slice, rho: np.ndarray, exact_slopes: bool) -> Matrices:
        """Σ_{k≥1} c_k c_k ρ^k and its derivative in ρ.

        The few most correlated pairs need many more terms than the rest. They are summed apart.
        """
        size = np.abs(rho)
        largest = float(size.max())
        most = self._terms_needed(largest, exact_slopes)
        usual = 1.0
        count = most
        if most > FEW_TERMS:
            usual = float(np.quantile(size, 0.95))
            count = min(most, self._terms_needed(usual, exact_slopes))
        left = self._terms[:count, rows, None]
        right = self._terms[:count, None, columns]
        values, slopes = _horner(left, right, rho)
        if most > count:
            i, j = np.nonzero(size > usual)
            left = self._terms[:most, rows][:, i]
            right = self._terms[:most, columns][:, j]
            values[i, j], slopes[i, j] = _horner(left, right, rho[i, j])
        return values, slopes

    def _terms_needed(self, rho: float, exact_slopes: bool) -> int:
        """Terms after which the rest of the series is rounding.

        The rest is at most ρ^k times the variance that the first k terms do not explain.
        """
        if len(self._terms) == 0:
            self._compute_terms(FEW_TERMS)
        most = MOST_TERMS_HARD_TANH if isinstance(self.phi, HardTanh) else MOST_TERMS
        while True:
            size = len(self._terms)
            unexplained = self._unexplained.max(axis=0) if exact_slopes else self._unexplained[0]
            bounds = rho ** np.arange(1, size + 1) * unexplained
            small = np.flatnonzero(bounds <= NEGLIGIBLE_TAIL)
            if len(small) > 0:
                return int(small[0]) + 1
            if size >= most:
                break
            self._compute_terms(2 * size)
        if bounds[-1] > TAIL_TO_WARN_OF:
            warnings.warn(
                f"Mehler series cut after {size} terms: entries of the kernel at correlation "
                f"{rho:.6f} are off by at most {bounds[-1]:.1e}",
                RuntimeWarning,
                stacklevel=2,
            )
        return size

    def _compute_terms(self, size: int) -> None:
        """c_1 … c_size, (size, n), and what they leave of Var φ and E φ'² at worst, (2, size)."""
        if isinstance(self.phi, HardTanh):
            self._terms = _hard_tanh_terms(self.phi, self.tau, size)
        else:
            self._terms = _hermite_terms(self.phi, self.tau, size)
        squares = self._terms**2
        orders = np.arange(1, size + 1)[:, None]
        variance = self._variance - np.cumsum(squares, axis=0)
        slope_square = self.slope_square - np.cumsum(orders * squares, axis=0) / self.tau**2
        worst = [np.maximum(rest, 0).max(axis=1) for rest in (variance, slope_square)]
        self._unexplained = np.stack(worst)


def _horner(left: np.ndarray, right: np.ndarray, rho: np.ndarray) -> Matrices:
    """Σ_{k≥1} left_k right_k ρ^k and its derivative; left and right, (K, …), broadcast to ρ."""
    total = np.broadcast_to(left[-1] * right[-1], rho.shape).copy()
    derivative = np.zeros_like(rho)
    product = np.empty_like(rho)
    for left_k, right_k in zip(left[-2::-1], right[-2::-1], strict=True):
        derivative *= rho
        derivative += total
        total *= rho
        np.multiply(left_k, right_k, out=product)
        total += product
    derivative *= rho
    derivative += total
    total *= rho
    return total, derivative


def _leaky_relu_pair(
    phi: LeakyReLU, tau_rows: np.ndarray, tau_columns: np.ndarray, cov: np.ndarray
) -> Matrices:
    """φ = u x + v |x|, without the product of the means."""
    u = (phi.a + phi.b) / 2
    v = (phi.a - phi.b) / 2
    rho = np.clip(cov / (tau_rows * tau_columns), -1, 1)
    angle = np.arcsin(rho)
    even = np.sqrt((1 - rho) * (1 + rho)) + rho * angle - 1
    values = u**2 * cov + 2 * v**2 / math.pi * tau_rows * tau_columns * even
    slopes = u**2 + 2 * v**2 / math.pi * angle
    return values, slopes


def _erf_pair(tau_rows: np.ndarray, tau_columns: np.ndarray, cov: np.ndarray) -> Matrices:
    scale = (1 + 2 * tau_rows**2) * (1 + 2 * tau_columns**2)
    values = 2 / math.pi * np.arcsin(2 * cov / np.sqrt(scale))
    slopes = 4 / math.pi / np.sqrt(scale - 4 * cov**2)
    return values, slopes


def _hermite_terms(phi: Phi, tau: np.ndarray, size: int) -> np.ndarray:
    """c_k(τ) for k = 1 … size by quadrature, (size, n)."""
    rule = gauss_rule(phi.kinks, tau, TERM_NODES)
    points = rule[0].reshape(len(rule[0]), -1)
    weights = rule[1].reshape(len(rule[1]), -1)
    weighted = weights * np.asarray(phi(tau[:, None] * points), dtype=float)
    all_scales_share_points = len(points) == 1
    before = np.ones_like(points)
    hermite = points.copy()
    terms = np.empty((size, len(tau)))
    for k in range(1, size + 1):
        if all_scales_share_points:
            terms[k - 1] = weighted @ hermite[0]
        else:
            terms[k - 1] = np.einsum("ij,ij->i", weighted, hermite)
        following = (points * hermite - math.sqrt(k) * before) / math.sqrt(k + 1)
        before = hermite
        hermite = following
    return terms


def _hard_tanh_terms(phi: HardTanh, tau: np.ndarray, size: int) -> np.ndarray:
    """c_1 = aτ erf(s/√2), and c_k = −2aτ h_{k−2}(s) pdf(s)/√(k(k−1)) for odd k, with s = c/τ.

    Those of even k are 0.
    """
    s = phi.c / tau
    density = np.exp(-(s**2) / 2) / math.sqrt(2 * math.pi)
    terms = np.zeros((size, len(tau)))
    terms[0] = phi.a * tau * scipy.special.erf(s / math.sqrt(2))
    before = np.ones_like(s)
    hermite = s
    for k in range(3, size + 1):
        if k % 2 == 1:
            terms[k - 1] = -2 * phi.a * tau / math.sqrt(k * (k - 1)) * hermite * density
        following = (s * hermite - math.sqrt(k - 2) * before) / math.sqrt(k - 1)
        before = hermite
        hermite = following
    return terms


# --- kernels --------------------------------------------------------------------------------------


class ImplicitKernels(NamedTuple):
    """Three (n, n) kernels of one DEQ.

        conjugate       G*_ij = E[φ(u_i)φ(u_j)]
        tangent         K*_ij = G*_ij/(1 − σ_a² E_ij),   E_ij = E[φ'(u_i)φ'(u_j)]
        B trained too   (G*_ij + σ_b² x_iᵀx_j E_ij)/(1 − σ_a² E_ij)

    Parameters
    ----------
    ck : G*
    ntk : K*, with B frozen; that B is frozen is our reading of proposition 2.6, from networks of
        finite width
    ntk_full : with B trained as well; derived here, verified at finite width
    """

    ck: np.ndarray
    ntk: np.ndarray
    ntk_full: np.ndarray


def empirical_tau0(x: np.ndarray) -> float:
    """τ_0 = √(mean ‖x_i‖²) of the samples in the columns of x (p, n)."""
    return math.sqrt(float((x**2).sum() / x.shape[1]))


def implicit_ck(
    x: np.ndarray, activation: AnyActivation, sigma_a2: float, tau0: float | None = None
) -> np.ndarray:
    """The conjugate kernel of an infinitely wide DEQ.

        G*_ij = E[φ(u_i)φ(u_j)],   (u_i, u_j) ~ N(0, Λ restricted to i, j)
        Λ = σ_a² G* + σ_b² XᵀX

    Parameters
    ----------
    x : (p, n), a sample in a column, ‖x_i‖² = O(1)
    activation, sigma_a2 : as in `coefficients`
    tau0 : scale at which the activation is centred; left out, `empirical_tau0` of x

    Returns
    -------
    (n, n), symmetric, to about 1e-14; in time O(terms · n²)

    Raises
    ------
    ValueError
        For an activation that is not well-posed.

    Source: proposition 2.6, post-activation convention; activation centred at τ_* as in remark 3.5.

    Examples
    --------
    >>> import numpy as np
    >>> implicit_ck(np.eye(3), "relu", 0.2).shape
    (3, 3)
    """
    return _implicit(x, activation, sigma_a2, tau0, exact_slopes=False)[0]


def implicit_kernels(
    x: np.ndarray, activation: AnyActivation, sigma_a2: float, tau0: float | None = None
) -> ImplicitKernels:
    """All three kernels of a DEQ at the price of one; arguments as of `implicit_ck`."""
    ck, slopes = _implicit(x, activation, sigma_a2, tau0, exact_slopes=True)
    rest = 1 - sigma_a2 * slopes
    sigma_b2 = 1 - sigma_a2
    return ImplicitKernels(ck, ck / rest, (ck + sigma_b2 * (x.T @ x) * slopes) / rest)


def explicit_kernels(
    x: np.ndarray, layers: Sequence[AnyActivation], tau0: float | None = None
) -> Matrices:
    """Conjugate and tangent kernel of an infinitely wide explicit network, all weights trained.

        Σ^(ℓ)_ij = E[σ_ℓ(u)σ_ℓ(v)],   (u, v) ~ N(0, Σ^(ℓ−1) restricted to i, j)
        K^(ℓ) = Σ^(ℓ) + K^(ℓ−1) ∘ Σ̇^(ℓ),   Σ̇^(ℓ)_ij = E[σ_ℓ'(u)σ_ℓ'(v)],   Σ^(0) = K^(0) = XᵀX

    Parameters
    ----------
    x : (p, n), a sample in a column
    layers : activations, first layer first, as in `coefficients`; each is centred at the scale of
        its own input
    tau0 : scale of the first layer's input; left out, `empirical_tau0` of x

    Returns
    -------
    Σ^(L) and K^(L), (n, n) each

    Source: definition 3.6 and proposition 3.7.
    """
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    cov = x.T @ x
    tangent = cov.copy()
    for depth, layer in enumerate(layers, start=1):
        tau = np.sqrt(np.maximum(np.diag(cov), SMALLEST_SCALE**2))
        bias = explicit_coefficients(layers[:depth], tau0).bias
        pairs = PairExpectations(activation(layer), tau, bias)
        entries = functools.partial(pairs.block, exact_slopes=True)
        cov, slopes = _by_tiles(pairs, cov, entries)
        tangent = cov + tangent * slopes
    return cov, tangent


def _implicit(
    x: np.ndarray, which: AnyActivation, sigma_a2: float, tau0: float | None, exact_slopes: bool
) -> Matrices:
    """G* and E, the latter to full precision only with `exact_slopes`."""
    phi = well_posed(which, sigma_a2)
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    bias = coefficients(phi, sigma_a2, tau0).bias
    drive = (1 - sigma_a2) * (x.T @ x)
    pairs = PairExpectations(phi, fixed_scales(phi, sigma_a2, np.diag(drive), bias), bias)
    entries = functools.partial(_newton, pairs, sigma_a2, exact_slopes)
    return _by_tiles(pairs, drive, entries)


def _newton(
    pairs: PairExpectations,
    sigma_a2: float,
    exact_slopes: bool,
    rows: slice,
    columns: slice,
    drive: np.ndarray,
) -> Matrices:
    """G with G = κ(σ_a² G + drive), entry by entry, and E.

    The derivative of the right side is σ_a² E with |σ_a² E| < 1.
    """
    kernel = np.zeros_like(drive)
    last = math.inf
    for _ in range(100):
        cov = sigma_a2 * kernel + drive
        values, slopes = pairs.block(rows, columns, cov, exact_slopes=False)
        step = (values - kernel) / (1 - sigma_a2 * slopes)
        kernel += step
        size = float(np.abs(step).max())
        if size <= 1e-16 or (size <= 1e-14 and size >= last / 2):
            break
        last = size
    if exact_slopes:
        return pairs.block(rows, columns, sigma_a2 * kernel + drive, exact_slopes=True)
    return kernel, slopes


def _by_tiles(
    pairs: PairExpectations,
    cov: np.ndarray,
    entries: Callable[[slice, slice, np.ndarray], Matrices],
) -> Matrices:
    """Both matrices from `entries`, tile by tile, with the diagonals that `pairs` has.

    `entries` takes rows, columns and their part of cov, whose diagonal is set to 0.
    """
    n = len(cov)
    cov = cov.copy()
    np.fill_diagonal(cov, 0)
    tiles = [slice(start, min(start + TILE, n)) for start in range(0, n, TILE)]
    values = np.empty((n, n))
    slopes = np.empty((n, n))
    for rows, columns in itertools.combinations_with_replacement(tiles, 2):
        parts = entries(rows, columns, cov[rows, columns])
        for matrix, part in zip((values, slopes), parts, strict=True):
            if rows == columns:
                part = (part + part.T) / 2  # symmetric to the last bit
            matrix[rows, columns] = part
            matrix[columns, rows] = part.T
    np.fill_diagonal(values, pairs.square)
    np.fill_diagonal(slopes, pairs.slope_square)
    return values, slopes
