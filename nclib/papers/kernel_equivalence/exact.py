"""Conjugate and tangent kernels of infinitely wide DEQs and explicit networks, to machine precision.

    z_i = φ(σ_a A z_i + σ_b B x_i)/√m,   f(x_i) = aᵀ z_i,   σ_b² = 1 − σ_a²,   A, B, a standard normal,   m → ∞

Implicit-CK  G* = E[z_iᵀ z_j]; Implicit-NTK K*, read here as the tangent kernel with B frozen. Each entry is a scalar
fixed point, solved by Newton's method with closed forms or with the Mehler series

    E[φ(u)φ(v)] = Σ_k c_k(τ_u) c_k(τ_v) ρ^k,   c_k(τ) = E[φ(τξ) h_k(ξ)],   ξ standard normal, h_k normalised Hermite.

Data are matrices x (p, n), a sample in a column, scaled so that ‖x_i‖² = O(1). Everything is numpy in float64.

Source: Ling et al. (ICML 2024), by their released scripts and derivations of our own; no formula of the paper
is available.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from nclib.papers.kernel_equivalence import activations as act
from nclib.papers.kernel_equivalence.activations import AnyActivation, HardTanh, LeakyReLU, Phi
from nclib.papers.kernel_equivalence.equivalents import empirical_tau0

Two = tuple[np.ndarray, np.ndarray]
_TILE = 256  # entries of a side: four such matrices stay in a processor's cache
_TERM_NODES = 320  # h_1000 oscillates 30 times as fast as φ
_MOST_TERMS = {False: 1024, True: 8192}  # by quadrature; where there is a closed form
_WORTH_A_WARNING = 1e-13
_FEW_TERMS = 64
_TAIL = 2e-16


class _Pairs:
    """κ = E[φ(u)φ(v)] and E[φ'(u)φ'(v)] for scales τ and covariances, with φ = φ̃ − bias; n scales at a time."""

    def __init__(self, phi: Phi, tau: np.ndarray, bias: float) -> None:
        self.phi, self.tau, self.bias = phi, tau, bias
        m = act.gaussian_moments(phi, tau)
        self.shifted = m.mean - bias
        self.diagonal = m.square - 2 * bias * m.mean + bias**2
        self.slope_square = m.slope_square
        self._spread = m.square - m.mean**2
        self._terms = self._left = np.empty((0, len(tau)))

    def __call__(self, rows: slice, columns: slice, cov: np.ndarray, slopes: bool) -> Two:
        """For the samples in rows and columns with covariances cov (r, c): κ and E, (r, c) each; `slopes` asks for E to
        full precision, else it is what Newton's method needs."""
        ti, tj = self.tau[rows, None], self.tau[None, columns]
        if isinstance(self.phi, LeakyReLU):
            kappa, slope = _leaky_pair(self.phi, ti, tj, cov)
        elif self.phi is act.ACTIVATIONS["erf"]:
            kappa, slope = _erf_pair(ti, tj, cov)
        else:
            kappa, slope = self._series(rows, columns, np.clip(cov / (ti * tj), -1, 1), slopes)
            slope /= ti * tj
        return kappa + self.shifted[rows, None] * self.shifted[None, columns], slope

    def _series(self, rows: slice, columns: slice, rho: np.ndarray, slopes: bool) -> Two:
        """Σ_{k≥1} c_k c_k ρ^k and its derivative in ρ. The few most correlated pairs need many more terms than the
        rest, so they are summed on their own."""
        size = np.abs(rho)
        most = self._how_many(float(size.max()), slopes)
        usual, count = 1.0, most
        if most > _FEW_TERMS:
            usual = float(np.quantile(size, 0.95))
            count = min(most, self._how_many(usual, slopes))
        left, right = self._terms[:count, rows, None], self._terms[:count, None, columns]
        total, change = _horner(left, right, rho)
        if most > count:
            i, j = np.nonzero(size > usual)
            left, right = self._terms[:most, rows][:, i], self._terms[:most, columns][:, j]
            total[i, j], change[i, j] = _horner(left, right, rho[i, j])
        return total, change

    def _how_many(self, rho: float, slopes: bool) -> int:
        """Terms after which what is left, at most ρ^k times the variance that they do not explain, is rounding."""
        if not len(self._terms):
            self._extend(_FEW_TERMS)
        while True:
            size = len(self._terms)
            bounds = rho ** np.arange(1, size + 1) * self._left[: 1 + slopes].max(axis=0)
            enough = np.flatnonzero(bounds <= _TAIL)
            if len(enough):
                return int(enough[0]) + 1
            if size >= _MOST_TERMS[isinstance(self.phi, HardTanh)]:
                break
            self._extend(2 * size)
        if bounds[-1] > _WORTH_A_WARNING:
            said = f"entries of the kernel at correlation {rho:.6f} are off by at most {bounds[-1]:.1e}"
            warnings.warn(f"Mehler series cut after {size} terms: {said}", RuntimeWarning, stacklevel=2)
        return size

    def _extend(self, size: int) -> None:
        """c_1 … c_size, (size, n), and what they leave of Var φ and of E φ'² at worst, (2, size)."""
        hard = isinstance(self.phi, HardTanh)
        self._terms = _hard_tanh_terms(self.phi, self.tau, size) if hard else _hermite_terms(self.phi, self.tau, size)
        squares = self._terms**2
        orders = np.arange(1, size + 1)[:, None]
        rest = self._spread - np.cumsum(squares, axis=0)
        rest_slope = self.slope_square - np.cumsum(orders * squares, axis=0) / self.tau**2
        self._left = np.stack([np.maximum(r, 0).max(axis=1) for r in (rest, rest_slope)])


def _horner(left: np.ndarray, right: np.ndarray, rho: np.ndarray) -> Two:
    """Σ_{k≥1} left_k right_k ρ^k and its derivative, in place; left and right are (K, …) and broadcast to ρ."""
    total = np.broadcast_to(left[-1] * right[-1], rho.shape).copy()
    change, product = np.zeros_like(rho), np.empty_like(rho)
    for one, other in zip(left[-2::-1], right[-2::-1], strict=True):
        change *= rho
        change += total
        total *= rho
        np.multiply(one, other, out=product)
        total += product
    change *= rho
    change += total
    total *= rho
    return total, change


def _leaky_pair(phi: LeakyReLU, ti: np.ndarray, tj: np.ndarray, cov: np.ndarray) -> Two:
    """φ = u x + v |x|, without the product of the means."""
    u, v = (phi.a + phi.b) / 2, (phi.a - phi.b) / 2
    rho = np.clip(cov / (ti * tj), -1, 1)
    angle = np.arcsin(rho)
    even = np.sqrt((1 - rho) * (1 + rho)) + rho * angle - 1
    return u**2 * cov + 2 * v**2 / math.pi * ti * tj * even, u**2 + 2 * v**2 / math.pi * angle


def _erf_pair(ti: np.ndarray, tj: np.ndarray, cov: np.ndarray) -> Two:
    scale = (1 + 2 * ti**2) * (1 + 2 * tj**2)
    kappa = 2 / math.pi * np.arcsin(2 * cov / np.sqrt(scale))
    return kappa, 4 / math.pi / np.sqrt(scale - 4 * cov**2)


def _hermite_terms(phi: Phi, tau: np.ndarray, size: int) -> np.ndarray:
    """c_k(τ) for k = 1 … size by quadrature, (size, n)."""
    points, weights, _ = (part.reshape(len(part), -1) for part in act.gauss_rule(phi.kinks, tau, _TERM_NODES))
    weighted = weights * np.asarray(phi(tau[:, None] * points), dtype=float)
    shared = len(points) == 1
    before, now = np.ones_like(points), points.copy()
    found = np.empty((size, len(tau)))
    for k in range(1, size + 1):
        found[k - 1] = weighted @ now[0] if shared else np.einsum("ij,ij->i", weighted, now)
        before, now = now, (points * now - math.sqrt(k) * before) / math.sqrt(k + 1)
    return found


def _hard_tanh_terms(phi: HardTanh, tau: np.ndarray, size: int) -> np.ndarray:
    """c_1 = aτ erf(s/√2), c_k = −2aτ h_{k−2}(s) pdf(s)/√(k(k−1)) for odd k, s = c/τ; the even ones are 0."""
    s = phi.c / tau
    density = np.exp(-(s**2) / 2) / math.sqrt(2 * math.pi)
    found = np.zeros((size, len(tau)))
    found[0] = phi.a * tau * scipy.special.erf(s / math.sqrt(2))
    before, now = np.ones_like(s), s
    for k in range(3, size + 1):
        if k % 2:
            found[k - 1] = -2 * phi.a * tau / math.sqrt(k * (k - 1)) * now * density
        before, now = now, (s * now - math.sqrt(k - 2) * before) / math.sqrt(k - 1)
    return found


def _by_tiles(pairs: _Pairs, cov: np.ndarray, entries: Callable[[slice, slice, np.ndarray], Two]) -> Two:
    """κ and E from `entries`, a function of rows, columns and their part of cov, its diagonal at 0; those of `pairs` on
    their diagonals."""
    n, cov = len(cov), cov.copy()
    np.fill_diagonal(cov, 0)
    parts = [slice(start, min(start + _TILE, n)) for start in range(0, n, _TILE)]
    found = np.empty((n, n)), np.empty((n, n))
    for rows, columns in itertools.combinations_with_replacement(parts, 2):
        for matrix, values in zip(found, entries(rows, columns, cov[rows, columns]), strict=True):
            if rows == columns:
                values = (values + values.T) / 2  # to the bit
            matrix[rows, columns], matrix[columns, rows] = values, values.T
    for matrix, values in zip(found, (pairs.diagonal, pairs.slope_square), strict=True):
        np.fill_diagonal(matrix, values)
    return found


class ImplicitKernels(NamedTuple):
    """Three (n, n) kernels of one implicit network.

        NTK        K*_ij = G*_ij/(1 − σ_a² E_ij),   E_ij = E[φ'(u_i)φ'(u_j)] at Λ*
        with B     (G*_ij + σ_b² x_iᵀx_j E_ij)/(1 − σ_a² E_ij)

    Parameters
    ----------
    ck : G*
    ntk : K*, B frozen; that B is frozen is our reading of proposition 2.6, from networks of finite width
    ntk_full : of B trained as well; derived here, verified at finite width
    """

    ck: np.ndarray
    ntk: np.ndarray
    ntk_full: np.ndarray


def implicit_kernels(
    x: np.ndarray, activation: AnyActivation, sigma_a2: float, tau0: float | None = None
) -> ImplicitKernels:
    """All three kernels of a DEQ at the price of one; arguments as of `implicit_ck`."""
    ck, slope = _implicit(x, activation, sigma_a2, tau0, slopes=True)
    rest = 1 - sigma_a2 * slope
    return ImplicitKernels(ck, ck / rest, (ck + (1 - sigma_a2) * (x.T @ x) * slope) / rest)


def implicit_ck(x: np.ndarray, activation: AnyActivation, sigma_a2: float, tau0: float | None = None) -> np.ndarray:
    """The conjugate kernel of an infinitely wide DEQ.

        G*_ij = E[φ(u_i)φ(u_j)],   (u_i, u_j) ~ N(0, Λ restricted to i, j),   Λ = σ_a² G* + σ_b² XᵀX

    Parameters
    ----------
    x : (p, n), a sample in a column, ‖x_i‖² = O(1)
    activation, sigma_a2 : as in `coefficients`
    tau0 : scale at which the activation is centred; left out, `empirical_tau0` of x

    Returns
    -------
    (n, n), symmetric, to about 1e-14; in time O(terms · n²).

    Raises
    ------
    ValueError
        For an activation that is not well-posed.

    Source: proposition 2.6, post-activation convention; activation centred at τ_* as in remark 3.5.
    """
    return _implicit(x, activation, sigma_a2, tau0)[0]


def _implicit(x: np.ndarray, which: AnyActivation, sigma_a2: float, tau0: float | None, slopes: bool = False) -> Two:
    """G* and E, to full precision only with `slopes`."""
    phi = act.well_posed(which, sigma_a2)
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    bias = act.coefficients(phi, sigma_a2, tau0).bias
    drive = (1 - sigma_a2) * (x.T @ x)
    pairs = _Pairs(phi, act.fixed_scales(phi, sigma_a2, np.diag(drive), bias), bias)
    return _by_tiles(pairs, drive, lambda *at: _newton(pairs, *at, sigma_a2, slopes))


def _newton(pairs: _Pairs, rows: slice, columns: slice, drive: np.ndarray, sigma_a2: float, slopes: bool) -> Two:
    """G = κ(σ_a² G + drive) entry by entry; the derivative of the right side is σ_a² E with |σ_a² E| < 1."""
    kernel, last = np.zeros_like(drive), math.inf
    for _ in range(100):
        value, slope = pairs(rows, columns, sigma_a2 * kernel + drive, False)
        step = (value - kernel) / (1 - sigma_a2 * slope)
        kernel += step
        size = float(np.abs(step).max())
        if size <= 1e-16 or (size <= 1e-14 and size >= last / 2):
            break
        last = size
    return pairs(rows, columns, sigma_a2 * kernel + drive, slopes) if slopes else (kernel, slope)


def explicit_kernels(x: np.ndarray, layers: Sequence[AnyActivation], tau0: float | None = None) -> Two:
    """The conjugate kernel Σ^(L) of an infinitely wide explicit network, and its tangent kernel K^(L) with all weights
    trained, (n, n) each.

        Σ^(ℓ)_ij = E[σ_ℓ(u)σ_ℓ(v)],   (u, v) ~ N(0, Σ^(ℓ−1) restricted to i, j),   Σ^(0) = K^(0) = XᵀX
        K^(ℓ) = Σ^(ℓ) + K^(ℓ−1) ∘ Σ̇^(ℓ),   Σ̇^(ℓ)_ij = E[σ_ℓ'(u)σ_ℓ'(v)]

    Parameters
    ----------
    x : (p, n), a sample in a column
    layers : activations, first layer first, as in `coefficients`; each is centred at the scale of its own input
    tau0 : scale of the first layer's input; left out, `empirical_tau0` of x

    Source: definition 3.6 and proposition 3.7.
    """
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    cov = x.T @ x
    tangent = cov.copy()
    for depth, layer in enumerate(layers, 1):
        tau = np.sqrt(np.maximum(np.diag(cov), act.SMALLEST_SCALE**2))
        pairs = _Pairs(act.activation(layer), tau, act.explicit_coefficients(layers[:depth], tau0).bias)
        cov, slope = _by_tiles(pairs, cov, lambda *at, pairs=pairs: pairs(*at, True))
        tangent = cov + tangent * slope
    return cov, tangent
