"""Explicit networks with the kernel of a DEQ: one or two layers that have the same four numbers."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import scipy

from companion.kernel_equivalence.activations import (
    AnyActivation,
    Coefficients,
    HardTanh,
    LeakyReLU,
    coefficients,
    explicit_coefficients,
)

_K = 1 - 2 / math.pi  # Var |ξ|


def match_htanh(sigma_a2: float, tau0: float = 1.0, kernel: Literal["ck", "ntk"] = "ck") -> tuple[float, float]:
    """(a, c) of the one-layer network with activation a·clip(x, −c, c) that has the kernel of a Tanh-DEQ.

        N(s)/erf(s/√2)² = γ_*²/(τ_0² α_1),   a = √α_1/erf(s/√2),   c = s τ_0
        N(s) = erf(s/√2) − √(2/π) s e^{−s²/2} + s² erfc(s/√2)

    Parameters
    ----------
    sigma_a2, tau0 : of the DEQ and its data
    kernel : "ck" or "ntk", then with β_1/2 and κ², both for the network and the DEQ with B frozen

    Source: Example Tanh-DEQ to H-Tanh; the scalar equation, which has one root, is derived here. 0.764297 and 1.196485
    for σ_a² = 0.2, τ_0 = 1.
    """
    return _hard_tanh(coefficients("tanh", sigma_a2, tau0), tau0, kernel)


def _hard_tanh(c: Coefficients, tau0: float, kernel: str = "ck") -> tuple[float, float]:
    linear, power = (c.alpha1, c.gamma2) if kernel == "ck" else (c.beta1 / 2, c.kappa2 / 2)
    wanted = power / (tau0**2 * linear)

    def excess(s: float) -> float:
        inner = scipy.special.erf(s / math.sqrt(2))
        power = inner - math.sqrt(2 / math.pi) * s * math.exp(-(s**2) / 2) + s**2 * scipy.special.erfc(s / math.sqrt(2))
        return ((power + inner) / 2 if kernel == "ntk" else power) / inner**2 - wanted

    s = scipy.optimize.brentq(excess, 1e-6, 38.0, xtol=1e-15, rtol=8.9e-16)
    return math.sqrt(linear) / float(scipy.special.erf(s / math.sqrt(2))), s * tau0


def match_leaky_relu(sigma_a2: float, tau0: float = 1.0) -> list[tuple[LeakyReLU, LeakyReLU]]:
    """Both two-layer networks with activations max(a x, b x) that have the conjugate kernel of a ReLU-DEQ. In terms of
    r = v_1²/u_1² and q = v_2²/u_2², u = (a+b)/2, v = (a−b)/2:

        r + (S − r)/(1 + kr)² = Q,   q = (S − r)/(1 + kr),   P = u_1²u_2² = α_1,   k = 1 − 2/π
        S = 2π τ_0² α_2/α_1,   Q = π τ_0² α_3/α_1;   split evenly: u_1 = u_2 = P^¼

    One layer cannot do it: it has α_3/α_2 = 2, a DEQ 1.924 at σ_a² = 0.2. Three numbers meet four equations because
    γ_*²/(τ_0² α_1) = 1 + kS holds for (leaky) ReLU.

    Returns
    -------
    the layers of both roots with r, q ≥ 0, in the order of r. They do not depend on τ_0.

    Source: Example ReLU-DEQ to L-ReLU; the cubic and the identity are derived here.
    """
    c = coefficients("relu", sigma_a2, tau0)
    return [_leaky(*root, c.alpha1) for root in _leaky_roots(c, tau0)]


def _leaky_roots(c: Coefficients, tau0: float) -> list[tuple[float, float]]:
    """r and q of the networks with the α_1, α_2, α_3 of a DEQ."""
    s, q = 2 * math.pi * tau0**2 * c.alpha2 / c.alpha1, math.pi * tau0**2 * c.alpha3 / c.alpha1
    # (r − Q)(1 + kr)² + S − r = 0
    cubic = np.polynomial.Polynomial([-q, 1]) * np.polynomial.Polynomial([1, _K]) ** 2
    roots = (cubic + np.polynomial.Polynomial([s, -1])).roots()
    real = sorted(float(root.real) for root in roots if abs(root.imag) < 1e-9 and -1e-12 <= root.real <= s + 1e-12)
    return [(max(r, 0.0), max((s - r) / (1 + _K * r), 0.0)) for r in real]


def _leaky(r: float, q: float, linear: float) -> tuple[LeakyReLU, LeakyReLU]:
    u = linear**0.25
    first, second = ([float(u * (1 + sign * math.sqrt(part))) for sign in (1, -1)] for part in (r, q))
    return LeakyReLU(*first), LeakyReLU(*second)


class Match(NamedTuple):
    """Layers of an explicit network and, for (α_1, α_2, α_3, γ_*²), the DEQ's values, the network's, and the largest
    difference over the largest of the DEQ's values."""

    layers: tuple[HardTanh | LeakyReLU, ...]
    wanted: tuple[float, ...]
    found: tuple[float, ...]
    residual: float


def match_layers(activation: AnyActivation, sigma_a2: float, tau0: float = 1.0) -> Match:
    """The shallow explicit network whose conjugate kernel is nearest to that of a DEQ with any activation.

    An odd activation gets one `HardTanh` layer, any other two `LeakyReLU` layers: exact for (leaky) ReLU, otherwise the
    r, q, P of `match_leaky_relu` that minimise the squared differences of (α_1, α_2, α_3, γ_*²), each in units of its
    effect on the kernel (1, τ_0², τ_0² and 1/τ_0²).

    Returns
    -------
    Match; its residual is 0 up to rounding where the match is exact.

    Raises
    ------
    ValueError
        For an even or constant activation, whose kernel does not see XᵀX.
    """
    c = coefficients(activation, sigma_a2, tau0)
    if c.alpha1 * tau0**2 <= 1e-10 * c.gamma2 or c.gamma2 == 0:
        raise ValueError("an even or constant activation has no linear part (α_1 = 0), which all layers here need")
    odd = max(c.alpha2, c.alpha3) <= 1e-10 * c.alpha1
    layers = (HardTanh(*_hard_tanh(c, tau0)),) if odd else _nearest_leaky(c, tau0)
    e = explicit_coefficients(layers, tau0)
    wanted, found = ((k.alpha1, k.alpha2, k.alpha3, k.gamma2) for k in (c, e))
    units = np.array([1, tau0**2, tau0**2, tau0**-2])
    off = np.abs((np.array(found) - np.array(wanted)) * units).max() / np.abs(np.array(wanted) * units).max()
    return Match(layers, wanted, found, float(off))


def _nearest_leaky(c: Coefficients, tau0: float) -> tuple[LeakyReLU, LeakyReLU]:
    roots = _leaky_roots(c, tau0)
    s = 2 * math.pi * tau0**2 * c.alpha2 / c.alpha1
    if roots and abs(c.gamma2 / (tau0**2 * c.alpha1) - 1 - _K * s) <= 1e-9:
        return _leaky(*roots[-1], c.alpha1)
    wanted = np.array([c.alpha1, tau0**2 * c.alpha2, tau0**2 * c.alpha3, c.gamma2 / tau0**2])

    def off(point: np.ndarray) -> np.ndarray:
        r, q, linear = point
        alpha2 = linear / (2 * math.pi) * (r + q * (1 + _K * r))
        alpha3 = linear / math.pi * (r + q / (1 + _K * r))
        return np.array([linear, alpha2, alpha3, linear * (1 + _K * r) * (1 + _K * q)]) - wanted

    starts = [*roots, (0.05, 1.0), (1.0, 0.05), (0.3, 0.3)]
    options = {"bounds": ([0, 0, 0], np.inf), "xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    tries = [scipy.optimize.least_squares(off, [*start, c.alpha1], **options) for start in starts]
    return _leaky(*min(tries, key=lambda result: result.cost).x)
