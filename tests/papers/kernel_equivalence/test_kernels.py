"""Kernels of DEQs: fixtures of an independent script, brute-force integrals, limits at finite width, and refusals."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from marks import slow
from scipy import linalg

from nclib.papers import kernel_equivalence as ke
from nclib.papers.kernel_equivalence.activations import ACTIVATIONS, Activation, HardTanh, LeakyReLU, activation
from nclib.papers.kernel_equivalence.exact import _Pairs, explicit_kernels, implicit_ck, implicit_kernels

NAMES = list(ACTIVATIONS)
FIXTURES = {  # τ_*, bias, E φ', E φ'', E (φ²)''; α_1 … α_4, γ²; β_1, β_2, β_3, κ² at τ_0 = 1, σ_a² = 0.2
    "relu": """.926566 .369646 .5 .430560 .681690
        .210526 .035957 .069190 .292624 .292624 .221607 .037850 .080115 .325138""",
    "leaky_relu": """.926886 .366076 .505 .426107 .688124
        .214985 .035304 .067982 .295590 .295590 .226540 .037201 .078944 .328437""",
    "tanh": ".934872 0 .630075 0 .411683 .344988 0 0 .171743 .369925 .374742 0 0 .409995",
    "erf": ".942553 0 .677145 0 .429749 .403856 0 0 .179619 .442027 .444631 0 0 .501924",
    "elu": """.956393 .149234 .767689 .267689 1.079688
        .534475 .016334 .033405 .484148 .573436 .605890 .018516 .046795 .662739""",
    "swish": """.923321 .180228 .5 .365264 .679129
        .210526 .025864 .049796 .291444 .262611 .221607 .027225 .057658 .283510""",
}


def _gap(exact, other):
    return float(np.abs(exact - other).max())


# ---- the numbers


@pytest.mark.parametrize("name", NAMES)
def test_coefficients_have_the_digits_of_an_independent_script(name):
    c = ke.coefficients(name, 0.2)
    m = ke.activation_moments(name, c.tau)
    found = (c.tau, c.bias, m.first, m.second, m.square_second, *c[2:7], *c[7:])
    for value, expected in zip(found, map(float, FIXTURES[name].split()), strict=True):
        assert value == pytest.approx(expected, abs=5.01e-7)


@pytest.mark.parametrize("sigma_a2", [0.0, 0.2, 0.6, 0.9])
@pytest.mark.parametrize("tau0", [0.5, 1.0, 1.7])
def test_relu_has_closed_forms(sigma_a2, tau0):
    c, k, b2 = ke.coefficients("relu", sigma_a2, tau0), 1 - 2 / math.pi, 1 - sigma_a2
    tau2 = b2 * tau0**2 / (1 - sigma_a2 * (1 + k) / 4)
    alpha1, gamma2, rest = b2 / (4 - sigma_a2), (1 + k) / 4 * tau2, 1 - sigma_a2 / 4
    alpha2, alpha3 = tau2 / (8 * math.pi * tau0**4 * rest), b2**2 / (4 * math.pi * tau2 * rest**3)
    wanted = math.sqrt(tau2), math.sqrt(tau2 / 2 / math.pi), alpha1, alpha2, alpha3, gamma2 / tau0**2, gamma2
    np.testing.assert_allclose(c[:7], wanted, rtol=1e-13)


@pytest.mark.parametrize(
    ("name", "function"),
    [("tanh", np.tanh), ("relu", lambda x: np.maximum(x, 0)), ("swish", lambda x: x / (1 + np.exp(-x)))],
)
def test_a_function_of_ones_own_gives_the_same_as_a_name(name, function):
    np.testing.assert_allclose(ke.coefficients(function, 0.2), ke.coefficients(name, 0.2), rtol=1e-11, atol=1e-14)
    own, named = (implicit_kernels(ke.gaussian_mixture(30, 24)[0], which, 0.2) for which in (function, name))
    np.testing.assert_allclose(own.ntk, named.ntk, atol=1e-11)


# ---- exact kernels against brute force

_LEGENDRE = np.polynomial.legendre.leggauss(200)


def _panels(edges):
    x, w = _LEGENDRE
    edges = np.unique(np.clip(edges, -12, 12))
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    points = (middle[:, None] + half[:, None] * x).ravel()
    return points, (half[:, None] * w).ravel() * np.exp(-(points**2) / 2) / math.sqrt(2 * math.pi)


def _brute(function, kinks, ti, tj, rho):
    """E[f(u) f(v)] by Gauss–Legendre panels in two dimensions that end at every kink."""
    rest = math.sqrt(1 - rho**2)
    outer = [-12, -6, -2, -0.5, 0, 0.5, 2, 6, 12, *(k / ti for k in kinks), *(k / tj / rho for k in kinks)]
    total = 0.0
    for x, w in zip(*_panels(outer), strict=True):
        y, v = _panels([-12, 0, 12, *((k / tj - rho * x) / rest for k in kinks)])
        total += w * function(ti * x) * (v @ function(tj * (rho * x + rest * y)))
    return total


@pytest.mark.parametrize("which", [*NAMES, HardTanh(0.76, 1.2), LeakyReLU(1.35, 0.4)], ids=str)
@pytest.mark.parametrize(("ti", "tj", "rho"), [(0.9, 1.1, 0.3), (0.7, 1.3, -0.62), (1.0, 1.02, 0.9)])
def test_both_integrals_agree_with_quadrature_in_two_dimensions(which, ti, tj, rho):
    phi, bias = activation(which), 0.1
    kappa, slope = _Pairs(phi, np.array([ti, tj]), bias)(slice(0, 1), slice(1, 2), np.array([[rho * ti * tj]]), True)
    assert kappa[0, 0] == pytest.approx(_brute(lambda z: phi(z) - bias, phi.kinks, ti, tj, rho), abs=1e-13)
    assert slope[0, 0] == pytest.approx(_brute(phi.slope, phi.kinks, ti, tj, rho), abs=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_is_a_fixed_point_of_its_definition(name):
    x = ke.gaussian_mixture(4, 12)[0]
    kernels, phi = implicit_kernels(x, name, 0.2), activation(name)
    bias, cov = ke.coefficients(name, 0.2, ke.empirical_tau0(x)).bias, 0.2 * kernels.ck + 0.8 * x.T @ x
    tau = np.sqrt(np.diag(cov))
    for i, j in ((0, 1), (0, 3), (2, 3)):
        at = phi.kinks, tau[i], tau[j], cov[i, j] / tau[i] / tau[j]
        again, slope = _brute(lambda z: phi(z) - bias, *at), _brute(phi.slope, *at)
        full = (again + 0.8 * x[:, i] @ x[:, j] * slope) / (1 - 0.2 * slope)
        found = [kernel[i, j] for kernel in kernels]
        assert found == pytest.approx([again, again / (1 - 0.2 * slope), full], abs=1e-12)
    points, weights = _panels([-12, 0, 12])
    for i in range(4):
        assert kernels.ck[i, i] == pytest.approx(float(weights @ (phi(tau[i] * points) - bias) ** 2), abs=1e-13)


def test_the_mehler_series_meets_the_closed_forms():
    """The same functions under another name take the series."""
    x = ke.gaussian_mixture(50, 40)[0]
    for name in ("erf", "relu", "leaky_relu"):
        hidden = Activation(lambda z, phi=ACTIVATIONS[name]: phi(z), (0.0,), ACTIVATIONS[name].slope)
        assert _gap(implicit_ck(x, hidden, 0.2), implicit_ck(x, name, 0.2)) < 1e-13
        assert _gap(implicit_kernels(x, hidden, 0.2).ntk, implicit_kernels(x, name, 0.2).ntk) < 1e-12
    hard = HardTanh(0.8, 1.1)
    hidden = Activation(hard, hard.kinks, hard.slope)
    assert _gap(explicit_kernels(x, [hidden])[1], explicit_kernels(x, [hard])[1]) < 1e-12


@pytest.mark.parametrize("which", ["swish", HardTanh(0.76, 1.2)], ids=str)
def test_strongly_correlated_samples_are_as_exact_as_others(which):
    """Beyond the usual number of terms, entry by entry; a tile with a few such pairs takes two sums."""
    x = ke.gaussian_mixture(80, 40)[0]
    x[:, 1] = x[:, 0] + 0.2 * x[:, 1]
    phi, bias = activation(which), ke.explicit_coefficients([which], ke.empirical_tau0(x)).bias
    (ti, tj), cov = np.linalg.norm(x[:, :2], axis=0), x[:, 0] @ x[:, 1]
    assert cov / ti / tj > 0.95
    wanted = _brute(lambda z: phi(z) - bias, phi.kinks, ti, tj, cov / ti / tj)
    assert explicit_kernels(x, [which])[0][0, 1] == pytest.approx(wanted, abs=1e-13)


def test_a_series_that_is_cut_says_by_how_much():
    x = np.random.default_rng(0).standard_normal((5, 3)) / math.sqrt(5)
    x[:, 1] = x[:, 0] * 1.001
    with pytest.warns(RuntimeWarning, match=r"cut after 1024 terms: .* correlation 1.0.* at most [0-9.]+e-"):
        explicit_kernels(x, ["elu"])


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_entries_do_not_depend_on_the_other_samples_or_their_order(name):
    x = ke.gaussian_mixture(300, 60)[0]
    order = np.random.default_rng(1).permutation(300)
    whole, moved, part = (implicit_kernels(data, name, 0.2, 1.0) for data in (x, x[:, order], x[:, 200:280]))
    for reference, other, few in zip(whole, moved, part, strict=True):
        np.testing.assert_array_equal(reference, reference.T)
        assert _gap(other, reference[np.ix_(order, order)]) < 1e-13
        assert _gap(few, reference[200:280, 200:280]) < 1e-13
    rotation = linalg.qr(np.random.default_rng(2).standard_normal((60, 60)))[0]
    assert _gap(implicit_ck(rotation @ x, name, 0.2, 1.0), whole.ck) < 1e-13


# ---- the theorems: errors of an independent script

ERRORS = {  # relative, on the mixture of the captions, p = 0.8 n, population moments; n = 100, 200, 400, 800
    ("ck", "relu", "empirical", "derived"): (0.1211, 0.0776, 0.0497, 0.0294),
    ("ck", "tanh", "empirical", "derived"): (0.1532, 0.1322, 0.1065, 0.0807),
    ("ck", "swish", "empirical", "derived"): (0.1116, 0.0657, 0.0406, 0.0240),
    ("ck", "erf", "empirical", "derived"): (0.1682, 0.1457, 0.1178, 0.0895),
    ("ck", "relu", "empirical", "entrywise"): (0.0255, 0.0163, 0.0098, 0.0053),
    ("ck", "relu", "trace", "derived"): (0.2201, 0.1525, 0.1068, 0.0717),
    ("ck", "tanh", "trace", "derived"): (0.3799, 0.2747, 0.1826, 0.1214),
    ("ntk", "relu", "empirical", "derived"): (0.1335, 0.0852, 0.0542, 0.0317),
    ("ntk", "tanh", "empirical", "derived"): (0.1624, 0.1406, 0.1137, 0.0864),
    ("ntk", "swish", "empirical", "derived"): (0.1231, 0.0719, 0.0442, 0.0259),
    ("ntk", "erf", "empirical", "derived"): (0.1796, 0.1561, 0.1268, 0.0967),
    ("ntk_full", "relu", "empirical", "derived"): (0.1786, 0.1154, 0.0733, 0.0414),
    ("ntk_full", "tanh", "empirical", "derived"): (0.1687, 0.1397, 0.1109, 0.0835),
}
MATCHES = {
    "H-Tanh": (3.2e-3, 4.0e-3, 3.4e-3, 2.7e-3),
    "H-Tanh, NTK-matched": (5.5e-2, 4.9e-2, 3.9e-2, 2.9e-2),
    "L-ReLU, root 0": (4.8e-5, 2.6e-5, 1.3e-5, 5.7e-6),
    "L-ReLU, root 1": (1.1e-4, 7.4e-5, 4.9e-5, 3.1e-5),
    "Tanh, unmatched": (0.056, 0.060, 0.062, 0.063),
    "ReLU, unmatched": (0.661, 0.669, 0.672, 0.674),
}
SIZES = ((100, (0, 1, 2)), (200, (0, 1)), (400, (0,)), (800, (0,)))


@pytest.mark.parametrize("at", [0, *slow(1, 2, 3)])
def test_errors_are_those_of_an_independent_script(at):
    n, seeds = SIZES[at]
    names, both = ["relu", "tanh", "swish", "erf"], ("empirical", "trace")
    parts = [ke.equivalence_errors(names, [n], seeds, tau0=both, kernels=("ck", "ntk", "ntk_full"))]
    parts += [ke.equivalence_errors(["relu"], [n], seeds, versions=("entrywise",))]
    means = pd.concat(parts).groupby(["kernel", "activation", "tau0", "version"])["error"].mean()
    for key, expected in ERRORS.items():
        assert means[key] == pytest.approx(expected[at], rel=0.2), key


@pytest.mark.parametrize("at", range(4))
def test_errors_of_matched_networks_are_those_of_an_independent_script(at):
    n, seeds = SIZES[at]
    means = ke.matching_errors([n], seeds).groupby("network")["error"].mean()
    assert set(means.index) == set(MATCHES)
    for network, expected in MATCHES.items():
        assert means[network] == pytest.approx(expected[at], rel=0.2), network


# ---- mixtures and their moments


def test_the_mixture_of_the_captions():
    x, labels, moments = ke.gaussian_mixture(4000, 100)
    assert x.shape == (100, 4000) and np.bincount(labels).tolist() == [2000, 2000]
    assert np.argwhere(moments.means).tolist() == [[0, 0], [1, 8]] and moments.means.max() == 8
    np.testing.assert_allclose(moments.products, [[100, 180], [180, 324]])
    for a in (0, 1):
        part = 10 * x[:, labels == a]
        np.testing.assert_allclose(part.mean(axis=1), moments.means[a], atol=0.15)
        assert np.trace(np.cov(part)) == pytest.approx(moments.traces[a], rel=0.02)


def test_estimated_moments_are_unbiased():
    """For skewed noise too, and where a class has fewer samples than features."""
    rng, p, counts = np.random.default_rng(0), 6, (5, 8)
    roots = [np.diag([1, 2, 0.5, 1, 1, 3.0]), np.tril(np.full((p, p), 0.6))]
    truths = [root @ root.T for root in roots]
    labels, draws = np.repeat([0, 1], counts), []
    for _ in range(6000):
        noise = [root @ (rng.exponential(size=(p, n)) - 1) for root, n in zip(roots, counts, strict=True)]
        found = ke.estimate_moments(np.concatenate(noise, axis=1) / math.sqrt(p), labels)
        draws.append([*found.traces, *found.products.ravel()])
    wanted = [*map(np.trace, truths), *((a * b.T).sum() for a in truths for b in truths)]
    error = np.std(draws, axis=0) / math.sqrt(len(draws))
    assert (np.abs(np.mean(draws, axis=0) - wanted) < 4 * error).all()
    assert (error < 0.06 * np.array(wanted)).all()


# ---- networks with the same kernel


def test_hard_tanh_of_the_papers_example():
    assert ke.match_htanh(0.2, 1.0) == pytest.approx((0.764297, 1.196485), abs=5e-7)
    assert ke.match_htanh(0.2, 1.0, kernel="ntk") == pytest.approx((0.498523, 1.507400), abs=5e-7)


def test_both_leaky_relu_pairs_of_the_papers_example():
    found = [[layer.a, layer.b] for root in ke.match_leaky_relu(0.2, 1.0) for layer in root]
    wanted = [[0.83873, 0.51601], [1.35334, 0.00140], [1.34940, 0.00534], [0.85067, 0.50407]]
    np.testing.assert_allclose(found, wanted, atol=5.1e-6)


@pytest.mark.parametrize(("sigma_a2", "tau0"), [(0.2, 1.0), (0.2, 2.5), (0.4, 0.7)])
def test_matched_leaky_relu_pairs_have_the_four_numbers(sigma_a2, tau0):
    deq = ke.coefficients("relu", sigma_a2, tau0)
    roots = ke.match_leaky_relu(sigma_a2, tau0)
    assert len(roots) == 2
    for root in roots:
        own = ke.explicit_coefficients(root, tau0)
        np.testing.assert_allclose(own[2:5] + own[6:7], deq[2:5] + deq[6:7], rtol=1e-11)


def test_the_nearest_layers_for_any_activation():
    exact = [("tanh", 1, 1e-12), ("erf", 1, 1e-12), ("relu", 2, 1e-12), ("leaky_relu", 2, 1e-12)]
    for name, layers, limit in (*exact, ("elu", 2, 2e-3), ("swish", 2, 1e-2)):
        match = ke.match_layers(name, 0.2, 1.2)
        assert len(match.layers) == layers and match.residual < limit
    with pytest.raises(ValueError, match="no linear part"):
        ke.match_layers(np.abs, 0.2)


# ---- networks of finite width


def test_the_tangent_kernel_of_a_network_is_that_of_automatic_differentiation():
    """z and g of one narrow network against autograd through many steps."""
    x, width, a2 = ke.gaussian_mixture(3, 10)[0], 12, 0.2
    drawn = ke.finite_width_kernels(x, "tanh", a2, width, 1, 5)
    rng = np.random.default_rng((5, 0))
    b = torch.tensor(rng.standard_normal((width, 10)), requires_grad=True)
    a = torch.tensor(rng.standard_normal((width, width)), requires_grad=True)
    readout = torch.tensor(rng.standard_normal(width), requires_grad=True)
    rows, frozen = [], []
    for sample in torch.tensor(x.T):
        z = torch.zeros(width, dtype=torch.float64)
        for _ in range(60):
            z = torch.tanh(a2**0.5 * a @ z + (1 - a2) ** 0.5 * b @ sample) / width**0.5
        grads = torch.autograd.grad(readout @ z, (readout, a, b))
        rows.append(torch.cat([g.flatten() for g in grads]))
        frozen.append(torch.cat([g.flatten() for g in grads[:2]]))
    rows, frozen = torch.stack(rows).numpy(), torch.stack(frozen).numpy()
    np.testing.assert_allclose(drawn.ntk_full, rows @ rows.T, rtol=1e-8)
    np.testing.assert_allclose(drawn.ntk, frozen @ frozen.T, rtol=1e-8)


# ---- images


def test_digits_have_the_errors_of_an_independent_script():
    x, labels = ke.image_samples("digits", ("6", "8"))
    for name, expected in (("relu", 0.128), ("tanh", 0.087)):
        exact = implicit_ck(x, name, 0.2)
        near = ke.equivalent(x, labels, ke.estimate_moments(x, labels), name, 0.2)
        assert ke.spectral_norm(exact - near) == pytest.approx(expected * ke.spectral_norm(exact), rel=0.02)
        shallow = explicit_kernels(x, ke.match_layers(name, 0.2).layers)[0]
        assert ke.spectral_norm(exact - shallow) < 6e-3 * ke.spectral_norm(exact)


# ---- refusals


@pytest.mark.parametrize(
    ("function", "sigma_a2", "says"),
    [
        ("rleu", 0.2, "Did you mean 'relu'"),
        ("relu", 1.0, r"σ_a² must lie in \[0, 1\)"),
        (lambda x: 3 * x, 0.2, r"not well-posed: σ_a² L² = 1.8 ≥ 1"),
        (np.exp, 0.2, "not well-posed"),
        (np.log, 0.2, "finite real numbers"),
        (lambda x: np.clip(x, -1, 1), 0.2, "name the kinks"),
    ],
)
def test_an_activation_that_has_no_kernel_is_refused(function, sigma_a2, says):
    with pytest.raises(ValueError, match=says):
        ke.coefficients(function, sigma_a2)
