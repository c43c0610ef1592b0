"""Explicit networks of one or two layers that have the kernel of a DEQ."""

import math
from typing import Literal, NamedTuple

import numpy as np
import scipy

from nclib.papers.kernel_equivalence.kernels import (
    AnyActivation,
    Coefficients,
    HardTanh,
    LeakyReLU,
    coefficients,
    explicit_coefficients,
)

VARIANCE_OF_ABS = 1 - 2 / math.pi
"""k = Var |ξ|, ξ standard normal."""


def match_htanh(
    sigma_a2: float, tau0: float = 1.0, kernel: Literal["ck", "ntk"] = "ck"
) -> tuple[float, float]:
    """(a, c) of the layer with activation a·clip(x, −c, c) that has the kernel of a Tanh-DEQ.

        N(s)/erf(s/√2)² = γ_*²/(τ_0² α_1),   a = √α_1/erf(s/√2),   c = s τ_0
        N(s) = erf(s/√2) − √(2/π) s e^{−s²/2} + s² erfc(s/√2)

    Parameters
    ----------
    sigma_a2, tau0 : of the DEQ and its data
    kernel : "ck" or "ntk", then with β_1/2 and κ², for the network and the DEQ with B frozen

    Source: Example Tanh-DEQ to H-Tanh; the scalar equation, which has one root, is derived here.

    Examples
    --------
    >>> a, c = match_htanh(0.2)
    >>> round(a, 6), round(c, 6)
    (0.764297, 1.196485)
    """
    return _hard_tanh(coefficients("tanh", sigma_a2, tau0), tau0, kernel)


def _hard_tanh(numbers: Coefficients, tau0: float, kernel: str = "ck") -> tuple[float, float]:
    if kernel == "ck":
        linear = numbers.alpha1
        power = numbers.gamma2
    else:
        linear = numbers.beta1 / 2
        power = numbers.kappa2 / 2
    wanted = power / (tau0**2 * linear)

    def excess(s: float) -> float:
        inner = scipy.special.erf(s / math.sqrt(2))
        outer = s**2 * scipy.special.erfc(s / math.sqrt(2))
        square = inner - math.sqrt(2 / math.pi) * s * math.exp(-(s**2) / 2) + outer
        if kernel == "ntk":
            square = (square + inner) / 2
        return square / inner**2 - wanted

    s = scipy.optimize.brentq(excess, 1e-6, 38.0, xtol=1e-15, rtol=8.9e-16)
    return math.sqrt(linear) / float(scipy.special.erf(s / math.sqrt(2))), s * tau0


def match_leaky_relu(sigma_a2: float, tau0: float = 1.0) -> list[tuple[LeakyReLU, LeakyReLU]]:
    """Both two-layer networks with activations max(a x, b x) that have the kernel of a ReLU-DEQ.

    In terms of r = v_1²/u_1² and q = v_2²/u_2², u = (a+b)/2, v = (a−b)/2:

        r + (S − r)/(1 + kr)² = Q,   q = (S − r)/(1 + kr),   u_1²u_2² = α_1,   k = 1 − 2/π
        S = 2π τ_0² α_2/α_1,   Q = π τ_0² α_3/α_1;   split evenly: u_1 = u_2 = α_1^¼

    One layer cannot do it: it has α_3/α_2 = 2, a DEQ 1.924 at σ_a² = 0.2. Three numbers meet four
    equations because γ_*²/(τ_0² α_1) = 1 + kS holds for (leaky) ReLU.

    Parameters
    ----------
    sigma_a2, tau0 : of the DEQ and its data

    Returns
    -------
    the layers of both roots with r, q ≥ 0, in the order of r. They do not depend on τ_0.

    Source: Example ReLU-DEQ to L-ReLU; the cubic and the identity are derived here.

    Examples
    --------
    >>> [len(layers) for layers in match_leaky_relu(0.2)]
    [2, 2]
    """
    numbers = coefficients("relu", sigma_a2, tau0)
    roots = _leaky_roots(numbers, tau0)
    return [_leaky_layers(r, q, numbers.alpha1) for r, q in roots]


def _leaky_roots(numbers: Coefficients, tau0: float) -> list[tuple[float, float]]:
    """r and q of the networks with the α_1, α_2, α_3 of a DEQ."""
    total = 2 * math.pi * tau0**2 * numbers.alpha2 / numbers.alpha1
    level = math.pi * tau0**2 * numbers.alpha3 / numbers.alpha1
    # (r − Q)(1 + kr)² + S − r = 0
    linear = np.polynomial.Polynomial([-level, 1])
    square = np.polynomial.Polynomial([1, VARIANCE_OF_ABS]) ** 2
    roots = (linear * square + np.polynomial.Polynomial([total, -1])).roots()
    real = [float(root.real) for root in roots if abs(root.imag) < 1e-9]
    pairs = []
    for r in sorted(real):
        if -1e-12 <= r <= total + 1e-12:
            q = (total - r) / (1 + VARIANCE_OF_ABS * r)
            pairs.append((max(r, 0.0), max(q, 0.0)))
    return pairs


def _leaky_layers(r: float, q: float, linear: float) -> tuple[LeakyReLU, LeakyReLU]:
    u = linear**0.25

    def layer(ratio: float) -> LeakyReLU:
        return LeakyReLU(float(u * (1 + math.sqrt(ratio))), float(u * (1 - math.sqrt(ratio))))

    return layer(r), layer(q)


class Match(NamedTuple):
    """The shallow network that comes closest to a DEQ.

    Parameters
    ----------
    layers : of the network
    wanted, found : (α_1, α_2, α_3, γ_*²) of the DEQ and of the network
    residual : the largest difference over the largest of the DEQ's values
    """

    layers: tuple[HardTanh | LeakyReLU, ...]
    wanted: tuple[float, ...]
    found: tuple[float, ...]
    residual: float


def match_layers(activation: AnyActivation, sigma_a2: float, tau0: float = 1.0) -> Match:
    """The shallow explicit network whose conjugate kernel is closest to that of a DEQ.

    An odd activation gets one `HardTanh` layer, any other two `LeakyReLU` layers: exact for (leaky)
    ReLU, otherwise the r, q, u_1²u_2² of `match_leaky_relu` that minimise the squared differences
    of (α_1, α_2, α_3, γ_*²), each in units of its effect on the kernel (1, τ_0², τ_0² and 1/τ_0²).

    Parameters
    ----------
    activation, sigma_a2, tau0 : as in `coefficients`

    Returns
    -------
    Match; its residual is 0 up to rounding where the match is exact.

    Raises
    ------
    ValueError
        For an even or constant activation, whose kernel does not see XᵀX.

    Examples
    --------
    >>> len(match_layers("tanh", 0.2).layers)
    1
    """
    deq = coefficients(activation, sigma_a2, tau0)
    if deq.alpha1 * tau0**2 <= 1e-10 * deq.gamma2 or deq.gamma2 == 0:
        raise ValueError(
            "an even or constant activation has no linear part (α_1 = 0), which all layers here "
            "need; use one that is neither"
        )
    is_odd = max(deq.alpha2, deq.alpha3) <= 1e-10 * deq.alpha1
    layers = (HardTanh(*_hard_tanh(deq, tau0)),) if is_odd else _nearest_leaky(deq, tau0)
    network = explicit_coefficients(layers, tau0)
    wanted = (deq.alpha1, deq.alpha2, deq.alpha3, deq.gamma2)
    found = (network.alpha1, network.alpha2, network.alpha3, network.gamma2)
    units = np.array([1, tau0**2, tau0**2, tau0**-2])
    difference = np.abs((np.array(found) - np.array(wanted)) * units).max()
    residual = difference / np.abs(np.array(wanted) * units).max()
    return Match(layers, wanted, found, float(residual))


def _nearest_leaky(numbers: Coefficients, tau0: float) -> tuple[LeakyReLU, LeakyReLU]:
    roots = _leaky_roots(numbers, tau0)
    total = 2 * math.pi * tau0**2 * numbers.alpha2 / numbers.alpha1
    excess = numbers.gamma2 / (tau0**2 * numbers.alpha1) - 1 - VARIANCE_OF_ABS * total
    if roots and abs(excess) <= 1e-9:
        r, q = roots[-1]
        return _leaky_layers(r, q, numbers.alpha1)
    wanted = np.array(
        [
            numbers.alpha1,
            tau0**2 * numbers.alpha2,
            tau0**2 * numbers.alpha3,
            numbers.gamma2 / tau0**2,
        ]
    )

    def difference(point: np.ndarray) -> np.ndarray:
        r, q, linear = point
        alpha2 = linear / (2 * math.pi) * (r + q * (1 + VARIANCE_OF_ABS * r))
        alpha3 = linear / math.pi * (r + q / (1 + VARIANCE_OF_ABS * r))
        gamma2 = linear * (1 + VARIANCE_OF_ABS * r) * (1 + VARIANCE_OF_ABS * q)
        return np.array([linear, alpha2, alpha3, gamma2]) - wanted

    fits = []
    for r, q in [*roots, (0.05, 1.0), (1.0, 0.05), (0.3, 0.3)]:
        fit = scipy.optimize.least_squares(
            difference,
            [r, q, numbers.alpha1],
            bounds=([0, 0, 0], np.inf),
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
        )
        fits.append(fit)
    best = min(fits, key=lambda fit: fit.cost)
    return _leaky_layers(*best.x)
