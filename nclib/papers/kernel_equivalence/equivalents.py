"""What the kernels of a DEQ approach in high dimension: XᵀX, class statistics and four numbers.

For x_i from a Gaussian mixture the kernels of `kernels` equal such a matrix up to a vanishing
spectral error. Here are the mixture of the paper, the moments of its classes, and the matrix.

Data are matrices x (p, n), a sample in a column, scaled so that ‖x_i‖² = O(1).
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy

from nclib import data
from nclib.papers.kernel_equivalence.kernels import AnyActivation, coefficients, empirical_tau0

Kernel = Literal["ck", "ntk", "ntk_full"]


# --- samples --------------------------------------------------------------------------------------


class MixtureMoments(NamedTuple):
    """Of classes √p x = μ_a + ζ, ζ ~ (0, C_a).

    Parameters
    ----------
    means : (K, p) the μ_a
    traces : (K,) tr C_a
    products : (K, K) tr C_a C_b
    """

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
    x (p, n) and labels (n,), class by class, and the moments of the population

    Source: caption of Figure 1.

    Examples
    --------
    >>> x, labels, moments = gaussian_mixture(10, 20)
    >>> x.shape, labels.tolist()
    ((20, 10), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    """
    if means is None:
        means = np.zeros((2, p))
        means[0, 0] = 8
        means[1, 8] = 8
    num_classes = len(means)
    if covariances is None:
        covariances = [1 + 8 * a / math.sqrt(p) for a in range(num_classes)]
    if shares is None:
        shares = [1 / num_classes] * num_classes
    ends = np.ceil(n * np.cumsum([0, *shares]) - 1e-9)
    counts = np.diff(ends).astype(int)

    are_matrices = np.ndim(covariances[0]) == 2
    stream = np.random.default_rng(seed)
    parts = []
    for mean, covariance, count in zip(means, covariances, counts, strict=True):
        noise = stream.standard_normal((p, count))
        if are_matrices:
            noise = scipy.linalg.cholesky(covariance, lower=True) @ noise
        else:
            noise = math.sqrt(covariance) * noise
        parts.append(mean[:, None] + noise)
    x = np.concatenate(parts, axis=1) / math.sqrt(p)
    labels = np.repeat(np.arange(num_classes), counts)

    products = np.empty((num_classes, num_classes))
    if are_matrices:
        traces = np.array([np.diag(c).sum() for c in covariances])
        for a, b in itertools.product(range(num_classes), repeat=2):
            products[a, b] = (covariances[a] * covariances[b].T).sum()
    else:
        diagonals = [np.broadcast_to(float(c), p) for c in covariances]
        traces = np.array([diagonal.sum() for diagonal in diagonals])
        for a, b in itertools.product(range(num_classes), repeat=2):
            products[a, b] = diagonals[a] @ diagonals[b]
    return x, labels, MixtureMoments(means, traces, products)


def estimate_moments(x: np.ndarray, labels: Sequence[int]) -> MixtureMoments:
    """Unbiased estimates of the class moments from samples of any distribution.

        tr C_a:      tr S_a,   S_a the sample covariance of √p x with divisor n_a − 1
        tr C_a C_b:  tr S_a S_b
        tr C_a²:     (n−1)/(n(n−2)(n−3)) [(n−1)(n−2) tr S² + (tr S)² − n Q],
                     Q = Σ_i ‖x_i − x̄‖⁴/(n−1)

    The plain tr S_a² is too large by (tr C_a)²/n_a, which does not vanish when p grows with n.

    Parameters
    ----------
    x : (p, n)
    labels : (n,) classes 0 … K−1, of at least 4 samples each

    Raises
    ------
    ValueError
        Where a class has fewer than 4 samples.

    Source: Himeno & Yamada (2014) for tr C².
    """
    labels = np.asarray(labels)
    counts = np.bincount(labels)
    if counts.min() < 4:
        raise ValueError(
            f"class {counts.argmin()} has {counts.min()} samples; give each class at least 4"
        )
    x = x * math.sqrt(len(x))
    num_classes = len(counts)
    means = np.array([x[:, labels == a].mean(axis=1) for a in range(num_classes)])
    centred = [x[:, labels == a] - means[a][:, None] for a in range(num_classes)]
    traces = np.array([(centred[a] ** 2).sum() / (counts[a] - 1) for a in range(num_classes)])
    products = np.empty((num_classes, num_classes))
    for a, b in itertools.combinations_with_replacement(range(num_classes), 2):
        square = float(((centred[a].T @ centred[b]) ** 2).sum())
        products[a, b] = square / ((counts[a] - 1) * (counts[b] - 1))
        products[b, a] = products[a, b]
    for a, n in enumerate(counts):
        quartic = ((centred[a] ** 2).sum(axis=0) ** 2).sum() / (n - 1)
        bracket = (n - 1) * (n - 2) * products[a, a] + traces[a] ** 2 - n * quartic
        products[a, a] = (n - 1) / (n * (n - 2) * (n - 3)) * bracket
    return MixtureMoments(means, traces, products)


def image_samples(
    dataset: str, classes: Sequence[str], n: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Images as columns: mean image subtracted, rescaled so that the mean of ‖x_i‖² is 1 (τ_0 = 1).

    Parameters
    ----------
    dataset : a name of `nclib.data.load_dataset`; both splits are used
    classes : class names; labels are their positions
    n : samples in all, the same number of each class; 0 takes all there are

    Returns
    -------
    x (p, n) and labels (n,), class by class

    Raises
    ------
    ValueError
        For a class that the data set does not have.
    """
    splits = [data.load_dataset(dataset, split) for split in data.SPLITS]
    images = np.concatenate([split.images.flatten(1).numpy() for split in splits])
    labels = np.concatenate([split.labels.numpy() for split in splits])
    names = list(splits[0].class_names)
    stream = np.random.default_rng(0)
    chosen = []
    for name in classes:
        if name not in names:
            raise ValueError(f"{dataset} has no class {name!r}; its classes are {names}")
        rows = np.flatnonzero(labels == names.index(name))
        if n > 0:
            rows = np.sort(stream.permutation(rows)[: n // len(classes)])
        chosen.append(rows)
    x = images[np.concatenate(chosen)].astype(float).T / 255
    x -= x.mean(axis=1, keepdims=True)
    x /= math.sqrt((x**2).sum() / x.shape[1])
    counts = [len(rows) for rows in chosen]
    return x, np.repeat(np.arange(len(classes)), counts)


# --- the equivalent -------------------------------------------------------------------------------


def resolve_tau0(
    x: np.ndarray, labels: Sequence[int], convention: str, moments: MixtureMoments
) -> float:
    """τ_0 by convention: "empirical" √(mean ‖x_i‖²), or "trace" √(tr C°/p), C° the mean of the C_a.

    Both have the same limit; in most cases the error is smaller with the first.
    """
    if convention == "empirical":
        return empirical_tau0(x)
    if convention == "trace":
        weights = np.bincount(labels) / len(labels)
        return math.sqrt(float(weights @ moments.traces) / len(x))
    raise ValueError(f'no convention {convention!r}; use "empirical" or "trace"')


def equivalent(
    x: np.ndarray,
    labels: Sequence[int],
    moments: MixtureMoments,
    activation: AnyActivation,
    sigma_a2: float,
    tau0: float | None = None,
    kernel: Kernel = "ck",
) -> np.ndarray:
    """The matrix that a kernel of a DEQ approaches on a Gaussian mixture.

        Ḡ = α_1 XᵀX + V C_* Vᵀ + (γ_*² − τ_0² α_1) I,   V = [J/√p, ψ]
        C_* = [[α_2 ttᵀ + α_3 T, α_2 t], [α_2 tᵀ, α_2]]
        t_a = tr(C_a − C°)/√p,   T_ab = tr(C_a C_b)/p,   C° = Σ_a (n_a/n) C_a
        ψ_i = (‖ζ_i‖² − tr C_a)/p

    This is that of the conjugate kernel; for a tangent kernel β stands for α and κ² for γ_*².

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
    (n, n). The spectral norm of its difference from the kernel tends to 0, in practice about like
    n^−½.

    Source: for theorems 3.3 and 3.4, with the uncentred T of Gu et al. (2022); "ntk_full" is
    derived here.
    """
    p, n = x.shape
    tau0 = empirical_tau0(x) if tau0 is None else tau0
    numbers = coefficients(activation, sigma_a2, tau0, full=kernel == "ntk_full")
    if kernel == "ck":
        first = numbers.alpha1
        second = numbers.alpha2
        third = numbers.alpha3
        power = numbers.gamma2
    else:
        first = numbers.beta1
        second = numbers.beta2
        third = numbers.beta3
        power = numbers.kappa2
    weights = np.bincount(labels) / n
    offsets = moments.traces - weights @ moments.traces
    noise = math.sqrt(p) * x - moments.means.T[:, labels]
    psi = ((noise**2).sum(axis=0) - moments.traces[labels]) / p
    radius = offsets[labels] / p + psi
    products = moments.products[np.ix_(labels, labels)]
    matrix = first * (x.T @ x) + second * np.outer(radius, radius) + third / p**2 * products
    matrix[np.diag_indices(n)] += power - tau0**2 * first
    return matrix


def spectral_norm(matrix: np.ndarray) -> float:
    """Largest |eigenvalue| of a symmetric real matrix (n, n)."""
    if len(matrix) <= 400:
        return float(np.abs(scipy.linalg.eigvalsh(matrix)).max())
    start = np.random.default_rng(0).standard_normal(len(matrix))
    largest = scipy.sparse.linalg.eigsh(matrix, k=1, v0=start, tol=1e-8, return_eigenvectors=False)
    return float(np.abs(largest).max())
