"""Conjugate and tangent kernels of infinitely wide DEQs and shallow networks, and what they are in high dimension.

    z_i = φ(σ_a A z_i + σ_b B x_i)/√m,   f(x_i) = aᵀ z_i,   σ_b² = 1 − σ_a²,   A, B, a standard normal,   m → ∞

Implicit-CK  G* = E[z_iᵀ z_j]; Implicit-NTK K*, read here as the tangent kernel with B frozen. For x_i from a
high-dimensional Gaussian mixture both are, up to a vanishing spectral error, matrices made of XᵀX, class statistics and
four numbers, and a network of one or two explicit layers can be given the same numbers. Kernels are computed to machine
precision: each entry is a scalar fixed point, solved by Newton's method with closed forms or with the Mehler series

    E[φ(u)φ(v)] = Σ_k c_k(τ_u) c_k(τ_v) ρ^k,   c_k(τ) = E[φ(τξ) h_k(ξ)],   ξ standard normal, h_k normalised Hermite.

Data are matrices x (p, n), a sample in a column, scaled so that ‖x_i‖² = O(1). Everything is numpy in float64.

Source: Ling et al. (ICML 2024), by their released scripts and derivations of our own; no printed formula of the paper
is at hand. Where the scripts deviate from what is derived here, the notebook ``corrections`` shows it.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy
import torch

from nclib.config import suggest
from nclib.papers.kernel_equivalence.activations import (
    ACTIVATIONS,
    Activation,
    AnyActivation,
    HardTanh,
    LeakyReLU,
    activation,
    activation_moments,
    gauss_rule,
    gaussian_moments,
    lipschitz,
    well_posed,
)
from nclib.solver import FixedPointIteration, fixed_point

_TILE = 256  # entries of a side: four such matrices stay in a processor's cache
_TERM_NODES = 320  # h_1000 oscillates 30 times as fast as φ
_MOST_TERMS = {False: 1024, True: 8192}  # by quadrature; where there is a closed form
_WORTH_A_WARNING = 1e-13
_FEW_TERMS = 64
_TAIL = 2e-16
_SMALLEST_SCALE = 1e-8
_MOST_SWEEPS = 20_000
_NOT_CENTRED = 1e-8

Centring = Literal["subtract", "check", "none"]
"""What happens to the mean E[φ̃(τ_*ξ)]: it is subtracted; the activation is taken as it is, and refused unless that mean
is 0; or it is taken as it is (exact kernels only, the theorems need mean 0)."""


# --- the four numbers --------------------------------------------------------------------------------------------


class Coefficients(NamedTuple):
    """What a kernel is made of in high dimension.

    tau : τ_*, scale of the pre-activations (of an explicit network, of its last layer)
    bias : E[φ̃(τ_*ξ)], subtracted from the activation
    alpha1, alpha2, alpha3 : of XᵀX and of the class statistics in the CK; alpha4 : of the diagonal
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


def coefficients(
    activation: AnyActivation,
    sigma_a2: float,
    tau0: float = 1.0,
    *,
    full: bool = False,
    centring: Centring = "subtract",
) -> Coefficients:
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
    centring : "subtract" or "check", see `Centring`

    Raises
    ------
    ValueError
        For an activation that is not well-posed at this σ_a² or, with "check", not centred; for impossible numbers.

    Source: the released scripts; derivatives are weak (Stein's identity), so ReLU has them. β with ``full`` is ours.
    """
    phi = well_posed(activation, sigma_a2)
    tau = _scale(phi, sigma_a2, tau0, centring)
    m = activation_moments(phi, tau)
    if centring != "subtract" and abs(m.mean) > _NOT_CENTRED * max(1.0, math.sqrt(m.variance)):
        raise ValueError(
            f"the activation is not centred: E[φ(τ_*ξ)] = {m.mean:.4g} at τ_* = {tau:.4g}, so the kernel has an "
            f"eigenvalue that grows like n and the theorem does not apply; leave centring='subtract', or subtract "
            f"{m.mean:.6g}"
        )
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
    bias = m.mean if centring == "subtract" else 0.0
    alphas = alpha1, alpha2, alpha3, alpha4, m.variance
    return Coefficients(tau, bias, *alphas, top / rest, alpha2 / rest, beta3, kappa2)


def _scale(phi: Activation | LeakyReLU | HardTanh, sigma_a2: float, tau0: float, centring: Centring) -> float:
    """τ_*: a contraction of rate at most σ_a² L² in τ²."""
    if not (isinstance(tau0, (int, float, np.floating)) and 0 < tau0 < math.inf):
        raise ValueError(f"τ_0 must be a positive, finite number, got {tau0!r}")
    if centring not in ("subtract", "check", "none"):
        raise ValueError(suggest(str(centring), ("subtract", "check", "none"), "centring"))
    fixed = (1 - sigma_a2) * tau0**2
    found = fixed
    for _ in range(_MOST_SWEEPS):
        m = gaussian_moments(phi, np.array([math.sqrt(found)]))
        power = m.square[0] - (m.mean[0] ** 2 if centring == "subtract" else 0.0)
        new = float(sigma_a2 * power + fixed)
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
    if not len(layers):
        raise ValueError("an explicit network needs at least one layer")
    if not 0 < tau0 < math.inf:
        raise ValueError(f"τ_0 must be a positive, finite number, got {tau0!r}")
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


# --- exact kernels -----------------------------------------------------------------------------------------------


class _Pairs:
    """κ = E[φ(u)φ(v)] and E[φ'(u)φ'(v)] for scales τ and covariances, with φ = φ̃ − bias; n scales at a time."""

    def __init__(self, phi: Activation | LeakyReLU | HardTanh, tau: np.ndarray, bias: float) -> None:
        self.phi, self.tau, self.bias = phi, tau, bias
        m = gaussian_moments(phi, tau)
        self.shifted = m.mean - bias
        self.diagonal = m.square - 2 * bias * m.mean + bias**2
        self.slope_square = m.slope_square
        self._spread = m.square - m.mean**2
        self._terms = np.empty((0, len(tau)))
        self._left = np.empty((2, 0))

    def __call__(self, rows: slice, columns: slice, cov: np.ndarray, slopes: bool) -> tuple[np.ndarray, np.ndarray]:
        """For the samples in rows and columns with covariances cov (r, c): κ and E, (r, c) each; `slopes` asks for E to
        full precision, else it is what Newton's method needs."""
        ti, tj = self.tau[rows, None], self.tau[None, columns]
        mean = self.shifted[rows, None] * self.shifted[None, columns]
        if isinstance(self.phi, LeakyReLU):
            kappa, slope = _leaky_pair(self.phi, ti, tj, cov)
        elif self.phi is ACTIVATIONS["erf"]:
            kappa, slope = _erf_pair(ti, tj, cov)
        else:
            kappa, slope = self._series(rows, columns, np.clip(cov / (ti * tj), -1, 1), slopes)
            slope /= ti * tj
        kappa += mean
        return kappa, slope

    def _series(self, rows: slice, columns: slice, rho: np.ndarray, slopes: bool) -> tuple[np.ndarray, np.ndarray]:
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
        size, most = max(_FEW_TERMS, len(self._terms)), _MOST_TERMS[isinstance(self.phi, HardTanh)]
        while True:
            if len(self._terms) < size:
                self._extend(size)
            bounds = rho ** np.arange(1, size + 1) * self._left[: 1 + slopes].max(axis=0)
            enough = np.flatnonzero(bounds <= _TAIL)
            if len(enough):
                return int(enough[0]) + 1
            if size >= most:
                if bounds[-1] > _WORTH_A_WARNING:
                    warnings.warn(
                        f"Mehler series cut after {size} terms: pairs of samples with correlation up to {rho:.6f} have "
                        f"an error of at most {bounds[-1]:.1e} in their entries of the kernel",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                return size
            size *= 2

    def _extend(self, size: int) -> None:
        """c_1 … c_size, (size, n), and what they leave of Var φ and of E φ'² at worst, (2, size)."""
        hard = isinstance(self.phi, HardTanh)
        self._terms = _hard_tanh_terms(self.phi, self.tau, size) if hard else _hermite_terms(self.phi, self.tau, size)
        squares = self._terms**2
        orders = np.arange(1, size + 1)[:, None]
        rest = self._spread - np.cumsum(squares, axis=0)
        rest_slope = self.slope_square - np.cumsum(orders * squares, axis=0) / self.tau**2
        self._left = np.stack([np.maximum(r, 0).max(axis=1) for r in (rest, rest_slope)])


def _horner(left: np.ndarray, right: np.ndarray, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def _leaky_pair(phi: LeakyReLU, ti: np.ndarray, tj: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """φ = u x + v |x|, without the product of the means."""
    u, v = (phi.a + phi.b) / 2, (phi.a - phi.b) / 2
    rho = np.clip(cov / (ti * tj), -1, 1)
    angle = np.arcsin(rho)
    even = np.sqrt((1 - rho) * (1 + rho)) + rho * angle - 1
    return u**2 * cov + 2 * v**2 / math.pi * ti * tj * even, u**2 + 2 * v**2 / math.pi * angle


def _erf_pair(ti: np.ndarray, tj: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale = (1 + 2 * ti**2) * (1 + 2 * tj**2)
    kappa = 2 / math.pi * np.arcsin(2 * cov / np.sqrt(scale))
    return kappa, 4 / math.pi / np.sqrt(scale - 4 * cov**2)


def _hermite_terms(phi: Activation, tau: np.ndarray, size: int) -> np.ndarray:
    """c_k(τ) for k = 1 … size by quadrature, (size, n)."""
    rule = gauss_rule(phi.kinks, tau, _TERM_NODES)
    points = rule.points.reshape(len(rule.points), -1)
    weighted = rule.weights.reshape(points.shape) * np.asarray(phi(tau[:, None] * points), dtype=float)
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


def _data(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, dtype=float)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"x must be (p, n) with p ≥ 1 features and n ≥ 1 samples in columns, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"x has {int((~np.isfinite(x)).sum())} entries that are not finite")
    return x


def _labels(labels: Sequence[int], n: int) -> tuple[np.ndarray, int]:
    labels = np.asarray(labels)
    if labels.shape != (n,) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"labels must be {n} class numbers from 0, one a column of x; got {labels.dtype} {labels.shape}"
        )
    counts = np.bincount(labels)
    if (counts == 0).any():
        raise ValueError(f"class {int((counts == 0).argmax())} of {len(counts)} has no sample; number classes 0 … K−1")
    return labels.astype(int), len(counts)


def empirical_tau0(x: np.ndarray) -> float:
    """τ_0 = √(mean ‖x_i‖²) of the samples in the columns of x (p, n)."""
    x = _data(x)
    found = math.sqrt(float((x**2).sum() / x.shape[1]))
    if found == 0:
        raise ValueError("all samples are zero, so the scale τ_0 is 0 and there is no kernel")
    return found


def _tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """Squares that cover the upper triangle."""
    parts = [slice(start, min(start + _TILE, n)) for start in range(0, n, _TILE)]
    return itertools.combinations_with_replacement(parts, 2)


def _symmetric_fill(matrix: np.ndarray, rows: slice, columns: slice, values: np.ndarray) -> None:
    if rows == columns:
        values = (values + values.T) / 2  # to the bit
    matrix[rows, columns] = values
    matrix[columns, rows] = values.T


class ImplicitKernels(NamedTuple):
    """ck : G*; ntk : K*, B frozen; ntk_full : B trained as well; all (n, n). coefficients : those of the data's τ_0."""

    ck: np.ndarray
    ntk: np.ndarray
    ntk_full: np.ndarray
    coefficients: Coefficients


def implicit_kernels(
    x: np.ndarray,
    activation: AnyActivation,
    sigma_a2: float,
    tau0: float | None = None,
    *,
    centring: Centring = "subtract",
) -> ImplicitKernels:
    """All three kernels of a DEQ at the price of one; see `implicit_ck`, `implicit_ntk` and `implicit_ntk_full`."""
    x = _data(x)
    ck, slope, found = _implicit(x, activation, sigma_a2, tau0, centring, slopes=True)
    return ImplicitKernels(ck, ck / (1 - sigma_a2 * slope), _full(x, ck, slope, sigma_a2), found)


def _full(x: np.ndarray, ck: np.ndarray, slope: np.ndarray, sigma_a2: float) -> np.ndarray:
    return (ck + (1 - sigma_a2) * (x.T @ x) * slope) / (1 - sigma_a2 * slope)


def implicit_ck(
    x: np.ndarray,
    activation: AnyActivation,
    sigma_a2: float,
    tau0: float | None = None,
    *,
    centring: Centring = "subtract",
) -> np.ndarray:
    """The conjugate kernel of an infinitely wide DEQ.

        G*_ij = E[φ(u_i)φ(u_j)],   (u_i, u_j) ~ N(0, Λ restricted to i, j),   Λ = σ_a² G* + σ_b² XᵀX

    Parameters
    ----------
    x : (p, n), a sample in a column, ‖x_i‖² = O(1)
    activation, sigma_a2 : as in `coefficients`
    tau0 : scale at which the activation is centred; left out, `empirical_tau0` of x
    centring : see `Centring`; "none" gives the kernel of the activation as it is

    Returns
    -------
    (n, n), symmetric, to about 1e-14; in time O(terms · n²).

    Raises
    ------
    ValueError
        For p or n of 0, an activation that is not well-posed or not centred.

    Source: proposition 2.6, post-activation convention; activation centred at τ_* as in remark 3.5.
    """
    return _implicit(_data(x), activation, sigma_a2, tau0, centring, slopes=False)[0]


def implicit_ntk(
    x: np.ndarray,
    activation: AnyActivation,
    sigma_a2: float,
    tau0: float | None = None,
    *,
    centring: Centring = "subtract",
) -> np.ndarray:
    """The tangent kernel (n, n) of an infinitely wide DEQ whose readout a and matrix A are trained, B being frozen.

        K*_ij = G*_ij/(1 − Ġ*_ij),   Ġ*_ij = σ_a² E[φ'(u_i)φ'(u_j)] at Λ*

    Arguments and errors are those of `implicit_ck`. Source: the released scripts, for proposition 2.6; that B is frozen
    is our reading, from networks of finite width.
    """
    ck, slope, _ = _implicit(_data(x), activation, sigma_a2, tau0, centring, slopes=True)
    return ck / (1 - sigma_a2 * slope)


def implicit_ntk_full(
    x: np.ndarray,
    activation: AnyActivation,
    sigma_a2: float,
    tau0: float | None = None,
    *,
    centring: Centring = "subtract",
) -> np.ndarray:
    """The tangent kernel with all weights trained, B too, (n, n).

        K_ij = (G*_ij + σ_b² x_iᵀx_j E_ij)/(1 − σ_a² E_ij),   E_ij = E[φ'(u_i)φ'(u_j)]

    Arguments and errors are those of `implicit_ck`. Source: derived here, verified at finite width.
    """
    x = _data(x)
    ck, slope, _ = _implicit(x, activation, sigma_a2, tau0, centring, slopes=True)
    return _full(x, ck, slope, sigma_a2)


def _implicit(
    x: np.ndarray, which: AnyActivation, sigma_a2: float, tau0: float | None, centring: Centring, slopes: bool
) -> tuple[np.ndarray, np.ndarray, Coefficients | None]:
    """G*, E (only its sign of life without `slopes`) and the coefficients where the activation is centred."""
    phi = well_posed(which, sigma_a2)
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    found = None if centring == "none" else coefficients(phi, sigma_a2, tau0, centring=centring)
    bias = found.bias if found else 0.0
    gram = x.T @ x
    tau = _sample_scales(phi, bias, sigma_a2, (1 - sigma_a2) * np.diag(gram))
    pairs = _Pairs(phi, tau, bias)
    n = len(gram)
    ck, slope = np.empty((n, n)), np.empty((n, n) if slopes else (0, 0))
    for rows, columns in _tiles(n):
        drive = (1 - sigma_a2) * gram[rows, columns]
        on_diagonal = rows == columns
        if on_diagonal:
            np.fill_diagonal(drive, 0)
        kernel, derivative = _newton(pairs, rows, columns, drive, sigma_a2, slopes)
        _symmetric_fill(ck, rows, columns, kernel)
        if slopes:
            _symmetric_fill(slope, rows, columns, derivative)
    np.fill_diagonal(ck, pairs.diagonal)
    if slopes:
        np.fill_diagonal(slope, pairs.slope_square)
    return ck, slope, found


def _sample_scales(
    phi: Activation | LeakyReLU | HardTanh, bias: float, sigma_a2: float, drive: np.ndarray
) -> np.ndarray:
    """τ_i = √Λ_ii of each sample: τ² = σ_a² E φ(τξ)² + drive, a contraction."""
    found = np.maximum(drive, _SMALLEST_SCALE**2)
    for _ in range(_MOST_SWEEPS):
        m = gaussian_moments(phi, np.sqrt(found))
        new = np.maximum(sigma_a2 * (m.square - 2 * bias * m.mean + bias**2) + drive, _SMALLEST_SCALE**2)
        change = np.abs(new - found).max()
        found = new
        if change <= 4e-16 * new.max():
            break
    return np.sqrt(found)


def _newton(
    pairs: _Pairs, rows: slice, columns: slice, drive: np.ndarray, sigma_a2: float, slopes: bool
) -> tuple[np.ndarray, np.ndarray]:
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


def explicit_ck(x: np.ndarray, layers: Sequence[AnyActivation], tau0: float | None = None) -> np.ndarray:
    """The conjugate kernel Σ^(L) of an infinitely wide explicit network.

        Σ^(ℓ)_ij = E[σ_ℓ(u)σ_ℓ(v)],   (u, v) ~ N(0, Σ^(ℓ−1) restricted to i, j),   Σ^(0) = XᵀX

    Parameters
    ----------
    x : (p, n), a sample in a column
    layers : activations, first layer first, as in `coefficients`; each is centred at the scale of its own input
    tau0 : scale of the first layer's input; left out, `empirical_tau0` of x

    Returns
    -------
    (n, n), symmetric

    Source: definition 3.6 and proposition 3.7.
    """
    return _explicit(_data(x), layers, tau0)[0]


def explicit_ntk(x: np.ndarray, layers: Sequence[AnyActivation], tau0: float | None = None) -> np.ndarray:
    """The tangent kernel of an explicit network with all weights trained, (n, n).

        K^(ℓ) = Σ^(ℓ) + K^(ℓ−1) ∘ Σ̇^(ℓ),   Σ̇^(ℓ)_ij = E[σ_ℓ'(u)σ_ℓ'(v)],   K^(0) = XᵀX

    Arguments are those of `explicit_ck`. Source: proposition 3.7.
    """
    return _explicit(_data(x), layers, tau0)[1]


def _explicit(x: np.ndarray, layers: Sequence[AnyActivation], tau0: float | None) -> tuple[np.ndarray, np.ndarray]:
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    if not len(layers):
        raise ValueError("an explicit network needs at least one layer")
    cov = x.T @ x
    tangent = cov.copy()
    for depth, layer in enumerate(layers, 1):
        phi = activation(layer)
        tau = np.sqrt(np.maximum(np.diag(cov), _SMALLEST_SCALE**2))
        pairs = _Pairs(phi, tau, explicit_coefficients(layers[:depth], tau0).bias)
        new, slope = np.empty_like(cov), np.empty_like(cov)
        for rows, columns in _tiles(len(cov)):
            part = cov[rows, columns].copy()
            if rows == columns:
                np.fill_diagonal(part, 0)
            kernel, derivative = pairs(rows, columns, part, True)
            _symmetric_fill(new, rows, columns, kernel)
            _symmetric_fill(slope, rows, columns, derivative)
        np.fill_diagonal(new, pairs.diagonal)
        np.fill_diagonal(slope, pairs.slope_square)
        cov, tangent = new, new + tangent * slope
    return cov, tangent


# --- Gaussian mixtures -------------------------------------------------------------------------------------------


class MixtureMoments(NamedTuple):
    """Of the classes √p x = μ_a + ζ, ζ ~ (0, C_a): means (K, p), traces tr C_a (K,), products tr C_a C_b (K, K)."""

    means: np.ndarray
    traces: np.ndarray
    products: np.ndarray


Covariance = float | np.ndarray


def _mixture(
    n: int,
    p: int,
    means: np.ndarray | None,
    covariances: Sequence[Covariance] | None,
    shares: Sequence[float] | None,
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Means (K, p), covariances as numbers, diagonals (p,) or matrices (p, p), and samples of each class (K,)."""
    if n < 1 or p < 1:
        raise ValueError(f"need n ≥ 1 samples and p ≥ 1 features, got n = {n} and p = {p}")
    if means is None:
        classes = len(covariances) if covariances is not None else 2
        if p < 8 * classes - 7:
            raise ValueError(
                f"the means of the paper's mixture need p ≥ {8 * classes - 7} features, got {p}; give means="
            )
        means = np.zeros((classes, p))
        means[np.arange(classes), 8 * np.arange(classes)] = 8
    means = np.asarray(means, dtype=float)
    if means.ndim != 2 or means.shape[1] != p:
        raise ValueError(f"means must be (K, {p}), got {means.shape}")
    if covariances is None:
        covariances = [1 + 8 * a / math.sqrt(p) for a in range(len(means))]
    found = [np.asarray(c, dtype=float) for c in covariances]
    if len(found) != len(means) or any(c.shape not in ((), (p,), (p, p)) for c in found):
        shapes = ", ".join(str(c.shape) for c in found)
        raise ValueError(
            f"need a covariance for each of {len(means)} classes: a number, ({p},) or ({p}, {p}); got {shapes}"
        )
    weights = np.full(len(means), 1 / len(means)) if shares is None else np.asarray(shares, dtype=float)
    if weights.shape != (len(means),) or (weights <= 0).any() or abs(weights.sum() - 1) > 1e-9:
        raise ValueError(f"shares must be {len(means)} positive numbers with sum 1, got {shares}")
    counts = np.floor(n * weights + 1e-9).astype(int)
    counts[np.argsort(counts - n * weights, kind="stable")[: n - counts.sum()]] += 1
    if (counts == 0).any():
        raise ValueError(f"n = {n} leaves a class without samples: {counts.tolist()}")
    return means, found, counts


def gaussian_mixture(
    n: int,
    p: int,
    seed: int = 0,
    means: np.ndarray | None = None,
    covariances: Sequence[Covariance] | None = None,
    shares: Sequence[float] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Samples of a Gaussian mixture, √p x_i = μ_a + ζ_i, ζ_i ~ N(0, C_a).

    Parameters
    ----------
    n, p : samples and features
    seed : of the draw
    means : (K, p); left out, the paper's: an 8 at index 8a of class a = 0, 1, …
    covariances : of each class a number (times I), a diagonal (p,) or a matrix (p, p); left out, 1 + 8a/√p
    shares : n_a/n; left out, equal

    Returns
    -------
    x (p, n) and labels (n,), class by class; `mixture_moments` of the same arguments are its population moments.

    Raises
    ------
    ValueError
        For n or p of 0 and for arguments that do not fit one another.

    Source: caption of Figure 1.
    """
    means, covariances, counts = _mixture(n, p, means, covariances, shares)
    rng = np.random.default_rng(seed)
    parts = []
    for mean, covariance, count in zip(means, covariances, counts, strict=True):
        noise = rng.standard_normal((p, count))
        if covariance.ndim == 2:
            noise = scipy.linalg.cholesky(covariance, lower=True) @ noise
        else:
            noise *= np.sqrt(covariance)[..., None] if covariance.ndim else math.sqrt(covariance)
        parts.append(mean[:, None] + noise)
    return np.concatenate(parts, axis=1) / math.sqrt(p), np.repeat(np.arange(len(means)), counts)


def mixture_moments(
    n: int,
    p: int,
    means: np.ndarray | None = None,
    covariances: Sequence[Covariance] | None = None,
    shares: Sequence[float] | None = None,
) -> MixtureMoments:
    """Population moments of `gaussian_mixture` with the same arguments."""
    means, covariances, _ = _mixture(n, p, means, covariances, shares)
    traces = np.array([float(np.trace(c)) if c.ndim == 2 else float(np.broadcast_to(c, p).sum()) for c in covariances])
    products = [[_trace_product(a, b, p) for b in covariances] for a in covariances]
    return MixtureMoments(means, traces, np.array(products))


def _trace_product(a: np.ndarray, b: np.ndarray, p: int) -> float:
    if a.ndim == b.ndim == 2:
        return float((a * b.T).sum())
    diagonals = [np.diag(c) if c.ndim == 2 else np.broadcast_to(c, p) for c in (a, b)]
    return float(diagonals[0] @ diagonals[1])


def estimate_moments(x: np.ndarray, labels: Sequence[int]) -> MixtureMoments:
    """Unbiased estimates of the class moments from samples of any distribution.

        tr C_a:  tr S_a,     tr C_a C_b:  tr S_a S_b,     S_a the sample covariance of √p x with divisor n_a − 1
        tr C_a²:  (n−1)/(n(n−2)(n−3)) [(n−1)(n−2) tr S² + (tr S)² − n Q],   Q = Σ_i ‖x_i − x̄‖⁴/(n−1)

    The plain tr S_a² is too large by (tr C_a)²/n_a, which does not vanish when p grows with n.

    Raises
    ------
    ValueError
        For labels that do not fit and classes of fewer than 4 samples.

    Source: Himeno & Yamada (2014) for tr C².
    """
    x = _data(x)
    labels, classes = _labels(labels, x.shape[1])
    counts = np.bincount(labels)
    if counts.min() < 4:
        raise ValueError(
            f"class {int(counts.argmin())} has {counts.min()} samples; estimating tr C² needs 4. Give moments= instead"
        )
    x = x * math.sqrt(len(x))
    centred, means, traces = [], [], []
    for a, count in enumerate(counts):
        part = x[:, labels == a]
        means.append(part.mean(axis=1))
        centred.append(part - means[-1][:, None])
        traces.append((centred[-1] ** 2).sum() / (count - 1))
    products = np.empty((classes, classes))
    for a, b in itertools.combinations_with_replacement(range(classes), 2):
        cross = float(((centred[a].T @ centred[b]) ** 2).sum()) / ((counts[a] - 1) * (counts[b] - 1))
        products[a, b] = products[b, a] = cross
    for a, n in enumerate(counts):
        quartic = ((centred[a] ** 2).sum(axis=0) ** 2).sum() / (n - 1)
        bracket = (n - 1) * (n - 2) * products[a, a] + traces[a] ** 2 - n * quartic
        products[a, a] = (n - 1) / (n * (n - 2) * (n - 3)) * bracket
    return MixtureMoments(np.array(means), np.array(traces), products)


# --- what the kernels are in high dimension ----------------------------------------------------------------------

Tau0 = Literal["empirical", "trace"] | float
Version = Literal["derived", "centred_T", "minus_tau4"]
"""Of the formula: as derived here; with T from the centred C_a − C°, as in the released scripts; with −τ_0⁴ α_3 I, as
in an earlier code of the same group (multiplied by 0 in the released scripts). The last two differ from the first by
matrices that do not vanish, and are kept to show their errors."""


def ck_equivalent(
    x: np.ndarray,
    labels: Sequence[int],
    activation: AnyActivation,
    sigma_a2: float,
    tau0: Tau0 = "empirical",
    moments: MixtureMoments | None = None,
    *,
    version: Version = "derived",
) -> np.ndarray:
    """The matrix that the conjugate kernel of a DEQ approaches on a Gaussian mixture.

        Ḡ = α_1 XᵀX + V C_* Vᵀ + (γ_*² − τ_0² α_1) I,   V = [J/√p, ψ],   C_* = [[α_2 ttᵀ + α_3 T, α_2 t], [α_2 tᵀ, α_2]]
        t_a = tr(C_a − C°)/√p,   T_ab = tr(C_a C_b)/p,   ψ_i = (‖ζ_i‖² − tr C_a)/p,   C° = Σ_a (n_a/n) C_a

    Parameters
    ----------
    x : (p, n); labels : (n,) classes 0 … K−1
    activation, sigma_a2 : as in `coefficients`
    tau0 : "empirical" √(mean ‖x_i‖²), "trace" √(tr C°/p), or a number; the same limit, the first has the smaller error
    moments : of the population; left out, `estimate_moments` of the samples
    version : see `Version`

    Returns
    -------
    (n, n). ‖G* − Ḡ‖ → 0 in spectral norm, in practice about like n^−½.

    Source: for theorem 3.3, with the uncentred T of Gu et al. (2022); the coefficients are those of `coefficients`.
    """
    return _equivalent(x, labels, activation, sigma_a2, tau0, moments, version, "ck")


def ntk_equivalent(
    x: np.ndarray,
    labels: Sequence[int],
    activation: AnyActivation,
    sigma_a2: float,
    tau0: Tau0 = "empirical",
    moments: MixtureMoments | None = None,
    *,
    full: bool = False,
    version: Version = "derived",
) -> np.ndarray:
    """The matrix that the tangent kernel of a DEQ approaches: `ck_equivalent` with β for α and κ² for γ_*².

    full : of the kernel in which B is trained as well, `implicit_ntk_full`

    Source: theorem 3.4; with ``full``, derived here.
    """
    return _equivalent(x, labels, activation, sigma_a2, tau0, moments, version, "ntk_full" if full else "ntk")


def _equivalent(
    x: np.ndarray,
    labels: Sequence[int],
    which: AnyActivation,
    sigma_a2: float,
    tau0: Tau0,
    moments: MixtureMoments | None,
    version: Version,
    kernel: str,
) -> np.ndarray:
    x = _data(x)
    moments = estimate_moments(x, labels) if moments is None else moments
    scale = resolve_tau0(x, labels, tau0, moments)
    found = coefficients(which, sigma_a2, scale, full=kernel == "ntk_full")
    return assemble(x, labels, found, scale, moments, "ck" if kernel == "ck" else "ntk", version=version)


def resolve_tau0(
    x: np.ndarray, labels: Sequence[int], tau0: Tau0 = "empirical", moments: MixtureMoments | None = None
) -> float:
    """τ_0 as a number: "empirical" √(mean ‖x_i‖²), "trace" √(tr C°/p) of the moments or their estimate, or itself."""
    if tau0 == "empirical":
        return empirical_tau0(x)
    if tau0 == "trace":
        x = _data(x)
        labels, _ = _labels(labels, x.shape[1])
        moments = estimate_moments(x, labels) if moments is None else moments
        return math.sqrt(float(np.bincount(labels) / len(labels) @ moments.traces) / len(x))
    if isinstance(tau0, str):
        raise ValueError(suggest(tau0, ("empirical", "trace"), "convention of τ_0"))
    return float(tau0)


def assemble(
    x: np.ndarray,
    labels: Sequence[int],
    coefficients: Coefficients,
    tau0: float,
    moments: MixtureMoments | None = None,
    kernel: Literal["ck", "ntk"] = "ck",
    *,
    version: Version = "derived",
) -> np.ndarray:
    """The matrix (n, n) of `ck_equivalent` or `ntk_equivalent` for given coefficients, of a DEQ or an explicit network.

    tau0 : the number that the coefficients were computed with. The other arguments are those of `ck_equivalent`.
    """
    if version not in ("derived", "centred_T", "minus_tau4"):
        raise ValueError(suggest(str(version), ("derived", "centred_T", "minus_tau4"), "version"))
    if kernel not in ("ck", "ntk"):
        raise ValueError(suggest(str(kernel), ("ck", "ntk"), "kernel"))
    x = _data(x)
    p, n = x.shape
    labels, classes = _labels(labels, n)
    estimated = moments is None
    moments = estimate_moments(x, labels) if estimated else moments
    if moments.means.shape != (classes, p):
        raise ValueError(
            f"moments of {len(moments.traces)} classes in {moments.means.shape[1]} dimensions do not fit {classes} "
            f"classes in {p}"
        )
    c = coefficients
    first, second, third, power = (
        (c.alpha1, c.alpha2, c.alpha3, c.gamma2) if kernel == "ck" else (c.beta1, c.beta2, c.beta3, c.kappa2)
    )
    counts = np.bincount(labels)
    weights = counts / n
    # a sample's distance to its own class mean is too small by 1 − 1/n_a when that mean is estimated from it
    correction = counts / (counts - 1) if estimated else np.ones(classes)
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


def ck_entrywise(x: np.ndarray, activation: AnyActivation, sigma_a2: float, tau0: float | None = None) -> np.ndarray:
    """The equivalent of the conjugate kernel entry by entry, without labels.

        α_1 s_ij + α_2 δ_i δ_j + α_3 s_ij²  (i ≠ j),   γ_*² + α_1 δ_i  (i = j),   s = XᵀX,   δ_i = ‖x_i‖² − τ_0²

    tau0 : left out, `empirical_tau0`, which is what it is accurate for. At finite n it is closer to G* than
    `ck_equivalent`, up to 5 times for ReLU; the same limit. Source: derived here, a step of the proof.
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
    """Largest |eigenvalue| of a symmetric matrix (n, n)."""
    n = len(matrix)
    if n <= 400:
        return float(np.abs(scipy.linalg.eigvalsh(matrix)).max())
    start = np.random.default_rng(0).standard_normal(n)
    return float(np.abs(scipy.sparse.linalg.eigsh(matrix, k=1, v0=start, tol=1e-8, return_eigenvectors=False)).max())


# --- explicit networks with the same kernel ----------------------------------------------------------------------

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
        For an activation that is not odd in this sense, or where no c > 0 solves the equation (the right side must lie
        between 1 and π/2).

    Source: Example Tanh-DEQ to H-Tanh; the scalar equation, which has one root, is derived here. 0.764297 and 1.196485
    for σ_a² = 0.2, τ_0 = 1.
    """
    c = coefficients(activation, sigma_a2, tau0)
    if max(c.alpha2, c.alpha3) > 1e-10 * c.alpha1:
        raise ValueError(
            f"α_2 = {c.alpha2:.3g} and α_3 = {c.alpha3:.3g} must be 0 for a hard tanh, which is odd; use match_layers"
        )
    if kernel not in ("ck", "ntk"):
        raise ValueError(suggest(str(kernel), ("ck", "ntk"), "kernel"))
    linear, power = (c.alpha1, c.gamma2) if kernel == "ck" else (c.beta1 / 2, c.kappa2 / 2)
    wanted = power / (tau0**2 * linear)
    if not 1 < wanted < math.pi / 2:
        raise ValueError(f"no hard tanh has power/linear part {wanted:.4g}: it lies between 1 and π/2 for all of them")

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
    roots = _leaky_roots(s, q, c.alpha1)
    if not roots:
        raise ValueError(f"no two leaky ReLU layers have S = {s:.6g} and Q = {q:.6g}: no root has r, q ≥ 0")
    return roots


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
        layers: tuple[HardTanh | LeakyReLU, ...] = (HardTanh(*_hard_tanh(activation, sigma_a2, tau0, c)),)
    else:
        layers = _nearest_leaky(c, tau0).layers
    e = explicit_coefficients(layers, tau0)
    found = e.alpha1, e.alpha2, e.alpha3, e.gamma2
    units = np.array([1, tau0**2, tau0**2, tau0**-2])
    off = np.abs((np.array(found) - np.array(wanted)) * units).max() / np.abs(np.array(wanted) * units).max()
    return Match(layers, wanted, found, float(off))


def _hard_tanh(which: AnyActivation, sigma_a2: float, tau0: float, c: Coefficients) -> tuple[float, float]:
    if c.gamma2 <= tau0**2 * c.alpha1 * (1 + 1e-12):  # linear: a clip that never acts
        return math.sqrt(c.alpha1), 38.0 * tau0
    return match_htanh(sigma_a2, tau0, which)


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


# --- networks of finite width ------------------------------------------------------------------------------------


def finite_width_kernels(
    x: np.ndarray,
    activation: AnyActivation,
    sigma_a2: float,
    width: int,
    draws: int = 1,
    seed: int = 0,
    tau0: float | None = None,
    solver: FixedPointIteration | None = None,
) -> ImplicitKernels:
    """Monte-Carlo estimates of the kernels: real DEQs of finite width, solved by `nclib.solver.fixed_point`.

    For each draw of A, B and a the equilibria z_i, then g_i = D_i (I − σ_a Aᵀ D_i)^−1 a with D_i = diag φ'(u_i)/√m, and

        CK  z_iᵀz_j,   NTK of (a, A)  z_iᵀz_j (1 + σ_a² g_iᵀg_j),   NTK of (a, A, B)  the same + σ_b² x_iᵀx_j g_iᵀg_j

    Parameters
    ----------
    width, draws, seed : m, number of independent networks, seed of the first
    solver : of both fixed points; left out, plain iteration to 1e-10

    Returns
    -------
    means over the draws; the errors fall like 1/√(width · draws)

    Raises
    ------
    ValueError
        Where an equilibrium or its gradient was not found, which is ill-posedness at this width.
    """
    x = _data(x)
    found, networks = _networks(x, activation, sigma_a2, width, draws, seed, tau0, solver)
    gram, totals = x.T @ x, np.zeros((3, x.shape[1], x.shape[1]))
    for network in networks:
        z = network.equilibria(x)
        g = network.pull_back(z)
        ck, back = z @ z.T, g @ g.T
        totals += np.stack([ck, ck * (1 + sigma_a2 * back), ck + back * (sigma_a2 * ck + (1 - sigma_a2) * gram)])
    return ImplicitKernels(*(totals / draws), found)


def finite_width_ck(
    x: np.ndarray,
    activation: AnyActivation,
    sigma_a2: float,
    width: int,
    draws: int = 1,
    seed: int = 0,
    tau0: float | None = None,
    solver: FixedPointIteration | None = None,
) -> np.ndarray:
    """The conjugate kernel (n, n) of `finite_width_kernels` alone, at half the price: how the paper estimates G*."""
    x = _data(x)
    total = np.zeros((x.shape[1], x.shape[1]))
    for network in _networks(x, activation, sigma_a2, width, draws, seed, tau0, solver)[1]:
        z = network.equilibria(x)
        total += z @ z.T
    return total / draws


def _networks(
    x: np.ndarray,
    which: AnyActivation,
    sigma_a2: float,
    width: int,
    draws: int,
    seed: int,
    tau0: float | None,
    solver: FixedPointIteration | None,
) -> tuple[Coefficients, Iterator[_Network]]:
    phi = well_posed(which, sigma_a2)
    if width < 1 or draws < 1:
        raise ValueError(f"width and draws must be at least 1, got {width} and {draws}")
    found = coefficients(phi, sigma_a2, empirical_tau0(x) if tau0 is None else tau0)
    method = FixedPointIteration(tol=1e-10, max_steps=400) if solver is None else solver
    return found, (_Network(phi, found.bias, sigma_a2, len(x), width, (seed, draw), method) for draw in range(draws))


class _Network:
    """One DEQ of finite width with its random weights."""

    def __init__(
        self,
        phi: Activation | LeakyReLU | HardTanh,
        bias: float,
        sigma_a2: float,
        features: int,
        width: int,
        seed: tuple[int, int],
        method: FixedPointIteration,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.phi, self.bias, self.method, self.root = phi, bias, method, math.sqrt(width)
        self.inputs = math.sqrt(1 - sigma_a2) * rng.standard_normal((width, features))
        self.matrix = math.sqrt(sigma_a2) * rng.standard_normal((width, width))
        self.readout = rng.standard_normal(width)

    def equilibria(self, x: np.ndarray) -> np.ndarray:
        """z (n, m) of the samples in x (p, n)."""
        self.drive = (self.inputs @ x).T

        def forward(z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy((self.phi(z.numpy() @ self.matrix.T + u.numpy()) - self.bias) / self.root)

        return self._solve(forward, np.zeros_like(self.drive), self.drive)

    def pull_back(self, z: np.ndarray) -> np.ndarray:
        """g (n, m), the gradient of aᵀz with respect to the pre-activations, at the equilibria just found."""
        slope = self.phi.slope(z @ self.matrix.T + self.drive) / self.root

        def backward(w: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(self.readout + (w.numpy() * d.numpy()) @ self.matrix)

        return slope * self._solve(backward, np.tile(self.readout, (len(z), 1)), slope)

    def _solve(self, f: Callable[..., torch.Tensor], start: np.ndarray, args: np.ndarray) -> np.ndarray:
        solved = fixed_point(f, self.method, torch.from_numpy(start), (torch.from_numpy(args),))
        lost = int((~solved.converged).sum())
        if lost:
            limit = 0.25 / lipschitz(self.phi) ** 2
            raise ValueError(
                f"{lost} of {len(start)} fixed points at width {len(self.readout)} were not found (worst relative "
                f"residual {float(solved.residual.max()):.1e}): the DEQ is not well-posed there. σ_a² < {limit:.4g} "
                "makes it contract"
            )
        return solved.value.numpy()
