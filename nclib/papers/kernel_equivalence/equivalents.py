"""What the kernels are in high dimension: for x_i from a Gaussian mixture, matrices made of XᵀX, class statistics and
four numbers, up to a vanishing spectral error; and the explicit networks of one or two layers that have these numbers.

Data are matrices x (p, n), a sample in a column, scaled so that ‖x_i‖² = O(1).
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy

from nclib.papers.kernel_equivalence import activations as act
from nclib.papers.kernel_equivalence.activations import AnyActivation, Coefficients, HardTanh, LeakyReLU

_K = 1 - 2 / math.pi  # Var |ξ|


def empirical_tau0(x: np.ndarray) -> float:
    """τ_0 = √(mean ‖x_i‖²) of the samples in the columns of x (p, n)."""
    return math.sqrt(float((x**2).sum() / x.shape[1]))


class MixtureMoments(NamedTuple):
    """Of the classes √p x = μ_a + ζ, ζ ~ (0, C_a): means (K, p), traces tr C_a (K,), products tr C_a C_b (K, K)."""

    means: np.ndarray
    traces: np.ndarray
    products: np.ndarray


def gaussian_mixture(
    n: int,
    p: int,
    seed: int = 0,
    means: np.ndarray | None = None,
    covariances: Sequence[float] | Sequence[np.ndarray] | None = None,
    shares: Sequence[float] | None = None,
) -> tuple[np.ndarray, np.ndarray, MixtureMoments]:
    """Samples of a Gaussian mixture, √p x_i = μ_a + ζ_i, ζ_i ~ N(0, C_a).

    Parameters
    ----------
    n, p : samples and features
    seed : of the draw
    means : (K, p); left out, the paper's: an 8 at index 8a of class a = 0, 1
    covariances : of the classes, all numbers (times I) or all matrices (p, p); left out, 1 + 8a/√p
    shares : n_a/n; left out, equal

    Returns
    -------
    x (p, n) and labels (n,), class by class, and the population moments

    Source: caption of Figure 1.
    """
    if means is None:
        means = np.zeros((2, p))
        means[[0, 1], [0, 8]] = 8
    if covariances is None:
        covariances = [1 + 8 * a / math.sqrt(p) for a in range(len(means))]
    shares = [1 / len(means)] * len(means) if shares is None else shares
    counts = np.diff(np.ceil(n * np.cumsum([0, *shares]) - 1e-9)).astype(int)
    rng, parts = np.random.default_rng(seed), []
    matrices = np.ndim(covariances[0]) == 2
    for mean, covariance, count in zip(means, covariances, counts, strict=True):
        noise = rng.standard_normal((p, count))
        noise = scipy.linalg.cholesky(covariance, lower=True) @ noise if matrices else math.sqrt(covariance) * noise
        parts.append(mean[:, None] + noise)
    x = np.concatenate(parts, axis=1) / math.sqrt(p)
    if not matrices:  # what their products and traces need, their diagonals
        covariances = [np.broadcast_to(float(c), p) for c in covariances]
    traces = [(np.diag(c) if matrices else c).sum() for c in covariances]
    products = [[(a * b.T).sum() if matrices else a @ b for b in covariances] for a in covariances]
    return x, np.repeat(np.arange(len(means)), counts), MixtureMoments(means, np.array(traces), np.array(products))


def estimate_moments(x: np.ndarray, labels: Sequence[int]) -> MixtureMoments:
    """Unbiased estimates of the class moments from samples of any distribution.

        tr C_a:  tr S_a,     tr C_a C_b:  tr S_a S_b,     S_a the sample covariance of √p x with divisor n_a − 1
        tr C_a²:  (n−1)/(n(n−2)(n−3)) [(n−1)(n−2) tr S² + (tr S)² − n Q],   Q = Σ_i ‖x_i − x̄‖⁴/(n−1)

    The plain tr S_a² is too large by (tr C_a)²/n_a, which does not vanish when p grows with n.

    Classes need 4 samples. Source: Himeno & Yamada (2014) for tr C².
    """
    x, counts = x * math.sqrt(len(x)), np.bincount(labels)
    means = np.array([x[:, labels == a].mean(axis=1) for a in range(len(counts))])
    centred = [x[:, labels == a] - means[a][:, None] for a in range(len(counts))]
    traces = np.array([(part**2).sum() / (n - 1) for part, n in zip(centred, counts, strict=True)])
    products = np.empty((len(counts), len(counts)))
    for a, b in itertools.combinations_with_replacement(range(len(counts)), 2):
        cross = float(((centred[a].T @ centred[b]) ** 2).sum()) / ((counts[a] - 1) * (counts[b] - 1))
        products[a, b] = products[b, a] = cross
    for a, n in enumerate(counts):
        quartic = ((centred[a] ** 2).sum(axis=0) ** 2).sum() / (n - 1)
        bracket = (n - 1) * (n - 2) * products[a, a] + traces[a] ** 2 - n * quartic
        products[a, a] = (n - 1) / (n * (n - 2) * (n - 3)) * bracket
    return MixtureMoments(means, traces, products)


def equivalent(
    x: np.ndarray,
    labels: Sequence[int],
    moments: MixtureMoments,
    activation: AnyActivation,
    sigma_a2: float,
    tau0: float | None = None,
    kernel: Literal["ck", "ntk", "ntk_full"] = "ck",
) -> np.ndarray:
    """The matrix that a kernel of a DEQ approaches on a Gaussian mixture, here for the conjugate kernel.

        Ḡ = α_1 XᵀX + V C_* Vᵀ + (γ_*² − τ_0² α_1) I,   V = [J/√p, ψ],   C_* = [[α_2 ttᵀ + α_3 T, α_2 t], [α_2 tᵀ, α_2]]
        t_a = tr(C_a − C°)/√p,   T_ab = tr(C_a C_b)/p,   ψ_i = (‖ζ_i‖² − tr C_a)/p,   C° = Σ_a (n_a/n) C_a

    For a tangent kernel β stands for α and κ² for γ_*².

    Parameters
    ----------
    x : (p, n)
    labels : (n,) classes 0 … K−1
    moments : of the population, or `estimate_moments` of the samples
    activation, sigma_a2 : as in `coefficients`
    tau0 : scale of the data; left out, `empirical_tau0`
    kernel : "ck", "ntk", or "ntk_full", in which B is trained as well

    Returns
    -------
    (n, n). The spectral norm of its difference from the kernel tends to 0, in practice about like n^−½.

    Source: for theorems 3.3 and 3.4, with the uncentred T of Gu et al. (2022); "ntk_full" is derived here.
    """
    p, n = x.shape
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    c = act.coefficients(activation, sigma_a2, tau0, full=kernel == "ntk_full")
    alphas, betas = (c.alpha1, c.alpha2, c.alpha3, c.gamma2), (c.beta1, c.beta2, c.beta3, c.kappa2)
    first, second, third, power = alphas if kernel == "ck" else betas
    weights = np.bincount(labels) / n
    offsets, products = moments.traces - weights @ moments.traces, moments.products
    noise = math.sqrt(p) * x - moments.means.T[:, labels]
    psi = ((noise**2).sum(axis=0) - moments.traces[labels]) / p
    radius = offsets[labels] / p + psi
    found = first * (x.T @ x) + second * np.outer(radius, radius) + third / p**2 * products[np.ix_(labels, labels)]
    found[np.diag_indices(n)] += power - tau0**2 * first
    return found


def resolve_tau0(x: np.ndarray, labels: Sequence[int], convention: str, moments: MixtureMoments) -> float:
    """τ_0 by convention: "empirical" √(mean ‖x_i‖²) or "trace" √(tr C°/p). Both have the same limit; in most cases the
    error is smaller with the first."""
    if convention == "empirical":
        return empirical_tau0(x)
    return math.sqrt(float(np.bincount(labels) / len(labels) @ moments.traces) / len(x))


def ck_entrywise(x: np.ndarray, activation: AnyActivation, sigma_a2: float, tau0: float | None = None) -> np.ndarray:
    """The equivalent of the conjugate kernel entry by entry, without labels.

        α_1 s_ij + α_2 δ_i δ_j + α_3 s_ij²  (i ≠ j),   γ_*² + α_1 δ_i  (i = j),   s = XᵀX,   δ_i = ‖x_i‖² − τ_0²

    At finite n it is closer to G* than `equivalent`, up to 5 times for ReLU; the limit is the same. Source: derived
    here, a step of the proof.

    Parameters
    ----------
    tau0 : left out, `empirical_tau0`, which is what it is accurate for.
    """
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    c = act.coefficients(activation, sigma_a2, tau0)
    gram = x.T @ x
    delta = np.diag(gram) - tau0**2
    found = c.alpha1 * gram + c.alpha2 * np.outer(delta, delta) + c.alpha3 * gram**2
    np.fill_diagonal(found, c.gamma2 + c.alpha1 * delta)
    return found


def spectral_norm(matrix: np.ndarray) -> float:
    """Largest |eigenvalue| of a symmetric real matrix (n, n)."""
    if len(matrix) <= 400:
        return float(np.abs(scipy.linalg.eigvalsh(matrix)).max())
    start = np.random.default_rng(0).standard_normal(len(matrix))
    return float(np.abs(scipy.sparse.linalg.eigsh(matrix, k=1, v0=start, tol=1e-8, return_eigenvectors=False)).max())


# --- networks with the same kernel --------------------------------------------------------------------------------


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
    return _hard_tanh(act.coefficients("tanh", sigma_a2, tau0), tau0, kernel)


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
    c = act.coefficients("relu", sigma_a2, tau0)
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
    """The shallow explicit network whose conjugate kernel is closest to that of a DEQ with any activation.

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
    c = act.coefficients(activation, sigma_a2, tau0)
    if c.alpha1 * tau0**2 <= 1e-10 * c.gamma2 or c.gamma2 == 0:
        raise ValueError("an even or constant activation has no linear part (α_1 = 0), which all layers here need")
    odd = max(c.alpha2, c.alpha3) <= 1e-10 * c.alpha1
    layers = (HardTanh(*_hard_tanh(c, tau0)),) if odd else _nearest_leaky(c, tau0)
    e = act.explicit_coefficients(layers, tau0)
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
