"""Activations as functions of real numbers, their Gaussian moments, and whether a DEQ with them is well-posed.

Derivatives are taken in the weak sense, by Stein's identity, so that ReLU has a second one:

    E[φ'(τξ)] = E[ξ φ(τξ)]/τ,   E[φ''(τξ)] = E[(ξ²−1) φ(τξ)]/τ²,   ξ standard normal

Quadrature is Gauss–Legendre on panels that end at the kinks, with the normal density as a weight: it converges
spectrally where Gauss–Hermite quadrature of a kink does not. Everything is numpy in float64.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from nclib.config import suggest

_NODES = 160  # of each panel
_REACH = 12.0  # the normal density is 1e-32 there
_STEEPEST = 1e5


@dataclasses.dataclass(frozen=True)
class Activation:
    """A function of real numbers, before centring.

    Parameters
    ----------
    function : maps an array to an array, elementwise
    kinks : where it is continuous and not smooth; without them quadrature loses its precision
    derivative : elementwise; left out, the function is differentiated numerically
    """

    function: Callable[[np.ndarray], np.ndarray]
    kinks: tuple[float, ...] = (0.0,)
    derivative: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.function(x)

    def slope(self, x: np.ndarray) -> np.ndarray:
        """The derivative at x, of any shape."""
        if self.derivative is not None:
            return self.derivative(x)
        step = 6e-6 * np.maximum(1.0, np.abs(x))
        return (self(x + step) - self(x - step)) / (2 * step)


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


def _swish_slope(x: np.ndarray) -> np.ndarray:
    return scipy.special.expit(x) * (1 + x * scipy.special.expit(-x))


ACTIVATIONS: dict[str, Activation | LeakyReLU | HardTanh] = {
    "relu": LeakyReLU(1.0, 0.0),
    "leaky_relu": LeakyReLU(1.0, 0.01),
    "tanh": Activation(np.tanh, (), lambda x: 1 - np.tanh(x) ** 2),
    "erf": Activation(scipy.special.erf, (), lambda x: 2 / math.sqrt(math.pi) * np.exp(-(np.asarray(x) ** 2))),
    "elu": Activation(
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), (0.0,), lambda x: np.exp(np.minimum(x, 0))
    ),
    "swish": Activation(lambda x: x * scipy.special.expit(x), (), _swish_slope),
}
"""The activations that have names; leaky_relu has slope 0.01, elu α = 1."""

AnyActivation = str | Activation | LeakyReLU | HardTanh | Callable[[np.ndarray], np.ndarray]


def activation(which: AnyActivation) -> Activation | LeakyReLU | HardTanh:
    """The activation of a name, or a callable made into one.

    Raises
    ------
    ValueError
        For an unknown name; for a callable that is not elementwise, real and finite, that is not Lipschitz on
        [−30, 30] to the eye of a grid, or whose integrals do not converge because it has kinks that were not named.
    """
    if isinstance(which, str):
        if which not in ACTIVATIONS:
            raise ValueError(suggest(which, ACTIVATIONS, "activation"))
        return ACTIVATIONS[which]
    if isinstance(which, (LeakyReLU, HardTanh)) or any(which is known for known in ACTIVATIONS.values()):
        return which
    made = which if isinstance(which, Activation) else Activation(which)
    steepest = lipschitz(made)
    if steepest > _STEEPEST:
        raise ValueError(f"not well-posed: no Lipschitz constant, the slope reaches {steepest:.3g} on [−30, 30]")
    few, many = (gaussian_moments(made, np.array([0.5, 1.0, 2.0]), nodes) for nodes in (_NODES * 5 // 8, _NODES))
    worst = max(float(np.abs(a - b).max()) for a, b in zip(few, many, strict=True))
    if worst > 1e-10 * (1 + many.square.max()):
        raise ValueError(
            f"the integrals of this activation have not converged (two rules differ by {worst:.1e}); it is not smooth "
            "away from 0. Name the places: Activation(function, kinks=(-1.0, 1.0))"
        )
    return made


def lipschitz(which: AnyActivation) -> float:
    """L = sup |φ(x) − φ(y)|/|x − y|, read off a grid of 60,001 points in [−30, 30].

    Raises
    ------
    ValueError
        Where the function is not elementwise, real and finite there.
    """
    function = activation(which) if isinstance(which, str) else which
    grid = np.linspace(-30, 30, 60_001)
    with np.errstate(all="ignore"):
        values = np.asarray(function(grid))
    if values.shape != grid.shape or values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise ValueError(
            "an activation maps an array of numbers to an array of finite real numbers of the same shape; on [−30, 30] "
            f"this one gives shape {values.shape} for {grid.shape}, type {values.dtype}, or values that are not finite"
        )
    return float(np.abs(np.diff(values)).max() / (grid[1] - grid[0]))


class WellPosedness(NamedTuple):
    """Lipschitz constant L; kernel_rate σ_a²L², below 1 the kernels exist and are unique; forward_rate 2σ_aL, below 1 a
    wide DEQ of any input contracts. The second is sufficient, not necessary: erf at σ_a² = 0.2 has 1.01 and works."""

    lipschitz: float
    kernel_rate: float
    forward_rate: float


def well_posedness(which: AnyActivation, sigma_a2: float) -> WellPosedness:
    """How far activation and σ_a² are from ill-posedness; see `WellPosedness`.

    Source: argued from ‖A‖/√m → 2, Poincaré's inequality and |∂κ/∂Cov| ≤ L²; the paper's assumption is not at hand.
    """
    slope = lipschitz(which)
    return WellPosedness(slope, sigma_a2 * slope**2, 2 * math.sqrt(sigma_a2) * slope)


def well_posed(which: AnyActivation, sigma_a2: float) -> Activation | LeakyReLU | HardTanh:
    """The activation, once it and σ_a² are found usable."""
    if not 0 <= sigma_a2 < 1:
        raise ValueError(f"σ_a² must lie in [0, 1), so that σ_b² = 1 − σ_a² is positive; got {sigma_a2}")
    found = activation(which)
    posed = well_posedness(found, sigma_a2)
    if posed.kernel_rate >= 1:
        limit = 1 / posed.lipschitz**2
        raise ValueError(
            f"not well-posed: σ_a² L² = {posed.kernel_rate:.4g} ≥ 1 with Lipschitz constant L = {posed.lipschitz:.4g}, "
            f"so the fixed points τ_* and G* need not exist; use σ_a² < {limit:.4g}, or < {limit / 4:.4g} for a DEQ "
            "that contracts"
        )
    return found


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


class GaussRule(NamedTuple):
    """Points ξ and weights w, (1 or n, panels, nodes), with Σ w f(ξ) = E[f(ξ)]; half the lengths of the panels."""

    points: np.ndarray
    weights: np.ndarray
    half: np.ndarray


def gauss_rule(kinks: Sequence[float], tau: np.ndarray, nodes: int = _NODES) -> GaussRule:
    """Panels that end at 0 and at the kinks of ξ ↦ φ(τξ); the same for all τ where 0 is the only kink."""
    inner = [kink / tau for kink in kinks if kink != 0]
    columns = [np.zeros_like(tau), *inner] if inner else [np.zeros(1)]
    ends = np.full_like(columns[0], _REACH)
    edges = np.sort(np.clip(np.stack([-ends, *columns, ends], axis=-1), -_REACH, _REACH), axis=-1)
    half = np.diff(edges, axis=-1)[..., None] / 2
    x, w, _ = _legendre(nodes)
    points = (edges[:, :-1, None] + edges[:, 1:, None]) / 2 + half * x
    return GaussRule(points, half * w * np.exp(-(points**2) / 2) / math.sqrt(2 * math.pi), half)


class GaussianMoments(NamedTuple):
    """E of φ̃, φ̃², φ̃', φ̃'', (φ̃²)'' and φ̃'² at τξ, an entry for each τ."""

    mean: np.ndarray
    square: np.ndarray
    first: np.ndarray
    second: np.ndarray
    square_second: np.ndarray
    slope_square: np.ndarray


def gaussian_moments(phi: Activation | LeakyReLU | HardTanh, tau: np.ndarray, nodes: int = _NODES) -> GaussianMoments:
    """By Stein's identity, so that no second derivative is needed: E φ'' = E[(ξ²−1) φ]/τ²."""
    tau = np.atleast_1d(np.asarray(tau, dtype=float))
    rule, scale = gauss_rule(phi.kinks, tau, nodes), tau[:, None, None]
    points, weights = rule.points, rule.weights
    values = np.asarray(phi(scale * points), dtype=float)
    if isinstance(phi, Activation) and phi.derivative is None:
        inner = np.where(rule.half > 0, rule.half, 1.0) * scale
        slopes = values @ _legendre(nodes)[2].T / inner
    else:
        slopes = phi.slope(scale * points)
    curve = points**2 - 1

    def mean(f: np.ndarray) -> np.ndarray:
        return (weights * f).sum(axis=(1, 2))

    return GaussianMoments(
        mean(values),
        mean(values**2),
        mean(points * values) / tau,
        mean(curve * values) / tau**2,
        mean(curve * values**2) / tau**2,
        mean(slopes**2),
    )


class ActivationMoments(NamedTuple):
    """Gaussian moments of φ = φ̃ − E φ̃ at τξ: mean of φ̃, first E φ', second E φ'', square_second E (φ²)'', variance
    E φ², slope_square E φ'²."""

    mean: float
    first: float
    second: float
    square_second: float
    variance: float
    slope_square: float


def activation_moments(which: AnyActivation, tau: float) -> ActivationMoments:
    """The moments of an activation that enter the kernels, at scale τ > 0; derivatives in the weak sense."""
    m = GaussianMoments(*(float(v[0]) for v in gaussian_moments(activation(which), np.array([float(tau)]))))
    bent = m.square_second - 2 * m.mean * m.second
    return ActivationMoments(m.mean, m.first, m.second, bent, m.square - m.mean**2, m.slope_square)
