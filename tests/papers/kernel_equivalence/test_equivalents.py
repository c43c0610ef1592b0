"""Mixtures, their moments, and the matrices that kernels approach."""

import numpy as np
import pytest

from nclib.papers.kernel_equivalence.equivalents import (
    equivalent,
    estimate_moments,
    gaussian_mixture,
    image_samples,
    resolve_tau0,
    spectral_norm,
)
from nclib.papers.kernel_equivalence.kernels import (
    coefficients,
    empirical_tau0,
    explicit_kernels,
    implicit_ck,
)
from nclib.papers.kernel_equivalence.matching import match_layers


def test_the_mixture_of_the_captions():
    x, labels, moments = gaussian_mixture(4000, 100)
    assert x.shape == (100, 4000)
    assert np.bincount(labels).tolist() == [2000, 2000]
    assert np.argwhere(moments.means == 8).tolist() == [[0, 0], [1, 8]]
    np.testing.assert_allclose(moments.products, [[100, 180], [180, 324]])
    for a in (0, 1):
        part = 10 * x[:, labels == a]
        np.testing.assert_allclose(part.mean(axis=1), moments.means[a], atol=0.15)
        assert np.trace(np.cov(part)) == pytest.approx(moments.traces[a], rel=0.02)


def test_a_mixture_of_given_covariances():
    covariances = [np.diag([1.0, 2.0, 3.0]), np.eye(3) + 0.5]
    x, labels, moments = gaussian_mixture(
        30_000, 3, means=np.zeros((2, 3)), covariances=covariances, shares=[0.25, 0.75]
    )
    assert np.bincount(labels).tolist() == [7500, 22500]
    for a in (0, 1):
        sample = np.cov(np.sqrt(3) * x[:, labels == a])
        np.testing.assert_allclose(sample, covariances[a], atol=0.1)
    assert moments.traces.tolist() == [6, 4.5]
    assert moments.products.tolist() == [[14, 9], [9, 8.25]]


def test_estimated_moments_are_unbiased():
    """For skewed noise too, and where a class has fewer samples than features."""
    stream = np.random.default_rng(0)
    p = 6
    counts = (5, 8)
    roots = [np.diag([1, 2, 0.5, 1, 1, 3.0]), np.tril(np.full((p, p), 0.6))]
    covariances = [root @ root.T for root in roots]
    labels = np.repeat([0, 1], counts)
    draws = []
    for _ in range(4000):
        noise = []
        for root, n in zip(roots, counts, strict=True):
            noise.append(root @ (stream.exponential(size=(p, n)) - 1))
        moments = estimate_moments(np.concatenate(noise, axis=1) / np.sqrt(p), labels)
        draws.append([*moments.traces, *moments.products.ravel()])
    wanted = [np.trace(c) for c in covariances]
    for a in covariances:
        wanted += [(a * b.T).sum() for b in covariances]
    error = np.std(draws, axis=0) / np.sqrt(len(draws))
    assert (np.abs(np.mean(draws, axis=0) - wanted) < 4 * error).all()
    assert (error < 0.08 * np.array(wanted)).all()


def test_the_equivalent_is_the_block_form_of_the_theorem():
    x, labels, moments = gaussian_mixture(30, 24)
    p, n = x.shape
    tau0 = empirical_tau0(x)
    c = coefficients("relu", 0.2, tau0)
    onehot = np.eye(2)[labels]
    mean_trace = moments.traces @ np.bincount(labels) / n
    t = (moments.traces - mean_trace) / np.sqrt(p)
    noise = np.sqrt(p) * x - moments.means.T[:, labels]
    psi = ((noise**2).sum(axis=0) - moments.traces[labels]) / p
    v = np.column_stack([onehot / np.sqrt(p), psi])
    corner = c.alpha2 * np.outer(t, t) + c.alpha3 * moments.products / p
    row = c.alpha2 * t[None]
    block = np.block([[corner, row.T], [row, np.array([[c.alpha2]])]])
    wanted = c.alpha1 * x.T @ x + v @ block @ v.T + (c.gamma2 - tau0**2 * c.alpha1) * np.eye(n)
    found = equivalent(x, labels, moments, "relu", 0.2)
    np.testing.assert_allclose(found, wanted, atol=1e-13)


def test_digits_have_the_errors_of_an_independent_script():
    x, labels = image_samples("digits", ("6", "8"))
    assert (x**2).sum() / x.shape[1] == pytest.approx(1)
    moments = estimate_moments(x, labels)
    for name, expected in (("relu", 0.128), ("tanh", 0.087)):
        exact = implicit_ck(x, name, 0.2)
        near = equivalent(x, labels, moments, name, 0.2)
        error = spectral_norm(exact - near) / spectral_norm(exact)
        assert error == pytest.approx(expected, rel=0.02)
        shallow = explicit_kernels(x, match_layers(name, 0.2).layers)[0]
        assert spectral_norm(exact - shallow) < 6e-3 * spectral_norm(exact)


@pytest.mark.parametrize("n", [60, 450])
def test_the_spectral_norm_is_the_largest_eigenvalue_of_either_sign(n):
    matrix = np.random.default_rng(0).standard_normal((n, n))
    matrix = matrix + matrix.T - 3 * n * np.eye(n) / 10
    assert spectral_norm(matrix) == pytest.approx(np.abs(np.linalg.eigvalsh(matrix)).max())


def test_the_scale_of_the_data_by_either_convention():
    x, labels, moments = gaussian_mixture(2000, 1600)
    empirical = resolve_tau0(x, labels, "empirical", moments)
    trace = resolve_tau0(x, labels, "trace", moments)
    assert empirical == pytest.approx(np.sqrt((x**2).sum(axis=0).mean()))
    assert trace == pytest.approx(np.sqrt(1 + 4 / 40))


def test_what_cannot_be_computed_is_refused():
    x, labels, moments = gaussian_mixture(10, 20)
    with pytest.raises(ValueError, match='use "empirical" or "trace"'):
        resolve_tau0(x, labels, "mean", moments)
    with pytest.raises(ValueError, match="class 1 has 3 samples; give each class at least 4"):
        estimate_moments(x[:, :8], labels[:8])
    with pytest.raises(ValueError, match="digits has no class '10'"):
        image_samples("digits", ("1", "10"))
