"""Explicit networks with the kernel of a DEQ: one or two layers that have the same four numbers."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import scipy

from companion.kernel_equivalence.activations import AnyActivation, HardTanh, LeakyReLU
from companion.kernel_equivalence.kernel_numbers import Coefficients, coefficients, explicit_coefficients

_K = 1 - 2 / math.pi  # Var |ξ|


def match_htanh(
    sigma_a2: float, tau0: float = 1.0, activation: AnyActivation = "tanh", kernel: Literal["ck", "ntk"] = "ck"
) -> tuple[float, float]:
    """(a, c) of the one-layer network with activation a·clip(x, −c, c) that has the kernel of a DEQ.

        N(s)/erf(s/√2)² = γ_*²/(τ_0² α_1),   a = √α_1/erf(s/√2),   c = s τ_0
        N(s) = erf(s/√2) − √(2/π) s e^{−s²/2} + s² erfc(s/√2)

    Parameters
    ----------
    sigma_a2, tau0 : of the DEQ and its data
    activation : of the DEQ, an odd one: α_2 = α_3 = 0, which is all that such a network can have
    kernel : "ck" or "ntk", then with β_1/2 and κ², both for the network and the DEQ with B frozen

    Raises
    ------
    ValueError
        For an activation that is not odd in this sense, or where no c > 0 solves the equation.

    Source: Example Tanh-DEQ to H-Tanh; the scalar equation, which has one root, is derived here. 0.764297 and 1.196485
    for σ_a² = 0.2, τ_0 = 1.
    """
    c = coefficients(activation, sigma_a2, tau0)
    if max(c.alpha2, c.alpha3) > 1e-10 * c.alpha1:
        raise ValueError(
            f"α_2 = {c.alpha2:.3g} and α_3 = {c.alpha3:.3g} must be 0 for a hard tanh, which is odd; use match_layers"
        )
    linear, power = (c.alpha1, c.gamma2) if kernel == "ck" else (c.beta1 / 2, c.kappa2 / 2)
    wanted = power / (tau0**2 * linear)

    def excess(s: float) -> float:
        inner = scipy.special.erf(s / math.sqrt(2))
        power = inner - math.sqrt(2 / math.pi) * s * math.exp(-(s**2) / 2) + s**2 * scipy.special.erfc(s / math.sqrt(2))
        return ((power + inner) / 2 if kernel == "ntk" else power) / inner**2 - wanted

    s = scipy.optimize.brentq(excess, 1e-6, 38.0, xtol=1e-15, rtol=8.9e-16)
    return math.sqrt(linear) / float(scipy.special.erf(s / math.sqrt(2))), s * tau0


class LeakyMatch(NamedTuple):
    """Two layers max(a x, b x): r = v_1²/u_1² and q = v_2²/u_2² with u = (a+b)/2, v = (a−b)/2, and their slopes."""

    r: float
    q: float
    a1: float
    b1: float
    a2: float
    b2: float

    @property
    def layers(self) -> tuple[LeakyReLU, LeakyReLU]:
        return LeakyReLU(self.a1, self.b1), LeakyReLU(self.a2, self.b2)


def match_leaky_relu(sigma_a2: float, tau0: float = 1.0, activation: AnyActivation = "relu") -> tuple[LeakyMatch, ...]:
    """Both two-layer networks with activations max(a x, b x) that have the conjugate kernel of a (leaky) ReLU-DEQ.

        r + (S − r)/(1 + kr)² = Q,   q = (S − r)/(1 + kr),   P = u_1²u_2² = α_1,   k = 1 − 2/π
        S = 2π τ_0² α_2/α_1,   Q = π τ_0² α_3/α_1;   split evenly: u_1 = u_2 = P^¼

    One layer cannot do it: it has α_3/α_2 = 2, a DEQ 1.924 at σ_a² = 0.2. Three numbers meet four equations because
    γ_*²/(τ_0² α_1) = 1 + kS holds for (leaky) ReLU.

    Returns
    -------
    the roots with r, q ≥ 0 in the order of r; two for ReLU. They do not depend on τ_0.

    Raises
    ------
    ValueError
        For an activation without that identity (then no such network has the same kernel; see `match_layers`), and
        where no root exists.

    Source: Example ReLU-DEQ to L-ReLU; the cubic and the identity are derived here.
    """
    c = coefficients(activation, sigma_a2, tau0)
    s, q = _ratios(c, tau0)
    off = c.gamma2 / (tau0**2 * c.alpha1) - 1 - _K * s
    if abs(off) > 1e-9:
        raise ValueError(
            f"γ_*²/(τ_0² α_1) − 1 − kS = {off:.3g} is not 0, so two leaky ReLU layers cannot match all four numbers; "
            "match_layers finds the nearest ones"
        )
    return _leaky_roots(s, q, c.alpha1)


def _ratios(c: Coefficients, tau0: float) -> tuple[float, float]:
    return 2 * math.pi * tau0**2 * c.alpha2 / c.alpha1, math.pi * tau0**2 * c.alpha3 / c.alpha1


def _leaky_roots(s: float, q: float, linear: float) -> tuple[LeakyMatch, ...]:
    # (r − Q)(1 + kr)² + S − r = 0
    cubic = np.polynomial.Polynomial([-q, 1]) * np.polynomial.Polynomial([1, _K]) ** 2
    roots = (cubic + np.polynomial.Polynomial([s, -1])).roots()
    real = sorted(float(root.real) for root in roots if abs(root.imag) < 1e-9 and -1e-12 <= root.real <= s + 1e-12)
    return tuple(_leaky(max(r, 0.0), max((s - r) / (1 + _K * r), 0.0), linear) for r in real)


def _leaky(r: float, q: float, linear: float) -> LeakyMatch:
    u = linear**0.25
    slopes = [u * (1 + sign * math.sqrt(part)) for part in (r, q) for sign in (1, -1)]
    return LeakyMatch(float(r), float(q), *map(float, slopes))


class Match(NamedTuple):
    """Layers of an explicit network and, for (α_1, α_2, α_3, γ_*²), the DEQ's values, the network's, and the largest
    difference over the largest of the DEQ's values."""

    layers: tuple[HardTanh | LeakyReLU, ...]
    wanted: tuple[float, float, float, float]
    found: tuple[float, float, float, float]
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
        raise ValueError(
            f"α_1 = {c.alpha1:.3g} is no more than rounding: an even or constant activation has no linear part, which "
            "both families of layers need"
        )
    wanted = c.alpha1, c.alpha2, c.alpha3, c.gamma2
    if max(c.alpha2, c.alpha3) <= 1e-10 * c.alpha1:
        layers: tuple[HardTanh | LeakyReLU, ...] = (HardTanh(*match_htanh(sigma_a2, tau0, activation)),)
    else:
        layers = _nearest_leaky(c, tau0).layers
    e = explicit_coefficients(layers, tau0)
    found = e.alpha1, e.alpha2, e.alpha3, e.gamma2
    units = np.array([1, tau0**2, tau0**2, tau0**-2])
    off = np.abs((np.array(found) - np.array(wanted)) * units).max() / np.abs(np.array(wanted) * units).max()
    return Match(layers, wanted, found, float(off))


def _nearest_leaky(c: Coefficients, tau0: float) -> LeakyMatch:
    s, q = _ratios(c, tau0)
    roots = _leaky_roots(s, q, c.alpha1)
    if roots and abs(c.gamma2 / (tau0**2 * c.alpha1) - 1 - _K * s) <= 1e-9:
        return roots[-1]
    wanted = np.array([c.alpha1, tau0**2 * c.alpha2, tau0**2 * c.alpha3, c.gamma2 / tau0**2])

    def off(point: np.ndarray) -> np.ndarray:
        r, q, linear = point
        k = _K
        alpha2 = linear / (2 * math.pi) * (r + q * (1 + k * r))
        alpha3 = linear / math.pi * (r + q / (1 + k * r))
        return np.array([linear, alpha2, alpha3, linear * (1 + k * r) * (1 + k * q)]) - wanted

    starts = [(root.r, root.q) for root in roots] + [(0.05, 1.0), (1.0, 0.05), (0.3, 0.3)]
    options = {"bounds": ([0, 0, 0], np.inf), "xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    tries = [scipy.optimize.least_squares(off, [*start, c.alpha1], **options) for start in starts]
    return _leaky(*min(tries, key=lambda result: result.cost).x)
