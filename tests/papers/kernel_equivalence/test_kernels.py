"""Kernels of DEQs: closed forms, integrals by brute force, invariances, and refusals."""

import math

import numpy as np
import pytest
from marks import thinned

from nclib.papers.kernel_equivalence.equivalents import gaussian_mixture
from nclib.papers.kernel_equivalence.kernels import (
    ACTIVATIONS,
    Activation,
    HardTanh,
    LeakyReLU,
    PairExpectations,
    activation,
    activation_moments,
    coefficients,
    empirical_tau0,
    explicit_coefficients,
    explicit_kernels,
    implicit_ck,
    implicit_kernels,
    well_posedness,
)

NAMES = list(ACTIVATIONS)
OTHERS = [HardTanh(0.76, 1.2), LeakyReLU(1.35, 0.4)]


# --- the numbers ----------------------------------------------------------------------------------

# Of a script that shares no code with the library: τ_*, bias, E φ', E φ'', E (φ²)'';
# α_1 … α_4, γ²; β_1, β_2, β_3, κ² at τ_0 = 1, σ_a² = 0.2.
FIXTURES = {
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


@pytest.mark.parametrize("sigma_a2", [0.0, 0.2, 0.9])
@pytest.mark.parametrize("tau0", [0.5, 1.7])
def test_the_numbers_of_relu_have_closed_forms(sigma_a2, tau0):
    numbers = coefficients("relu", sigma_a2, tau0)
    sigma_b2 = 1 - sigma_a2
    variance = (2 - 2 / math.pi) / 4  # of ReLU(ξ)
    tau2 = sigma_b2 * tau0**2 / (1 - sigma_a2 * variance)
    rest = 1 - sigma_a2 / 4
    assert numbers.tau**2 == pytest.approx(tau2, rel=1e-13)
    assert numbers.bias == pytest.approx(math.sqrt(tau2 / 2 / math.pi), rel=1e-13)
    assert numbers.gamma2 == pytest.approx(variance * tau2, rel=1e-13)
    assert numbers.alpha1 == pytest.approx(sigma_b2 / (4 - sigma_a2), rel=1e-13)
    alpha2 = tau2 / (8 * math.pi * tau0**4 * rest)
    assert numbers.alpha2 == pytest.approx(alpha2, rel=1e-13)
    alpha3 = sigma_b2**2 / (4 * math.pi * tau2 * rest**3)
    assert numbers.alpha3 == pytest.approx(alpha3, rel=1e-13)
    assert numbers.beta1 == pytest.approx(numbers.alpha1 / rest, rel=1e-13)
    assert numbers.kappa2 == pytest.approx(numbers.gamma2 / (1 - sigma_a2 / 2), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_are_those_of_an_independent_script(name):
    c = coefficients(name, 0.2)
    m = activation_moments(name, c.tau)
    found = [c.tau, c.bias, m.first, m.second, m.square_second, *c[2:]]
    expected = [float(digits) for digits in FIXTURES[name].split()]
    assert found == pytest.approx(expected, abs=5.01e-7)


def test_the_numbers_of_a_deq_without_recurrence_are_those_of_one_layer():
    deq = coefficients("swish", 0.0, full=True)
    layer = explicit_coefficients(["swish"])
    for name in ("tau", "bias", "alpha1", "alpha2", "alpha3", "gamma2", "beta1", "beta3", "kappa2"):
        assert getattr(deq, name) == pytest.approx(getattr(layer, name), rel=1e-12), name


@pytest.mark.parametrize("name", ["tanh", "relu", "swish"])
def test_a_function_of_ones_own_gives_the_same_as_a_name(name):
    def function(x):
        return ACTIVATIONS[name](x)

    own = coefficients(function, 0.2)
    np.testing.assert_allclose(own, coefficients(name, 0.2), rtol=1e-11, atol=1e-14)
    x = gaussian_mixture(20, 16)[0]
    own_kernels = implicit_kernels(x, function, 0.2)
    np.testing.assert_allclose(own_kernels.ntk, implicit_kernels(x, name, 0.2).ntk, atol=1e-11)


def test_rates_of_well_posedness():
    posed = well_posedness(LeakyReLU(2.0, 0.5), 0.09)
    assert posed["lipschitz"] == pytest.approx(2)
    assert posed["kernel_rate"] == pytest.approx(0.36)
    assert posed["forward_rate"] == pytest.approx(1.2)


# --- integrals ------------------------------------------------------------------------------------

LEGENDRE = np.polynomial.legendre.leggauss(200)


def panels(edges):
    """Points and weights of standard normal integrals on panels with these ends."""
    x, weights = LEGENDRE
    edges = np.unique(np.clip(edges, -12, 12))
    middle = (edges[1:] + edges[:-1]) / 2
    half = (edges[1:] - edges[:-1]) / 2
    points = (middle[:, None] + half[:, None] * x).ravel()
    density = np.exp(-(points**2) / 2) / math.sqrt(2 * math.pi)
    return points, (half[:, None] * weights).ravel() * density


def brute_force(function, kinks, tau_u, tau_v, rho):
    """E[f(u) f(v)] by quadrature in two dimensions with panels that end at every kink."""
    rest = math.sqrt(1 - rho**2)
    edges = [-12, -6, -2, -0.5, 0, 0.5, 2, 6, 12]
    edges += [kink / tau_u for kink in kinks] + [kink / tau_v / rho for kink in kinks]
    total = 0.0
    for x, weight in zip(*panels(edges), strict=True):
        inner = [(kink / tau_v - rho * x) / rest for kink in kinks]
        y, weights = panels([-12, 0, 12, *inner])
        values = function(tau_v * (rho * x + rest * y))
        total += weight * function(tau_u * x) * (weights @ values)
    return total


PLACES = [(which, 0.7, 1.3, -0.62) for which in (*NAMES, *OTHERS)]
PLACES += [(which, 0.9, 1.1, 0.3) for which in ("relu", "tanh")]
PLACES += [(which, 1.0, 1.02, 0.9) for which in ("relu", "tanh")]


@pytest.mark.parametrize(("which", "tau_u", "tau_v", "rho"), PLACES, ids=str)
def test_both_expectations_agree_with_quadrature_in_two_dimensions(which, tau_u, tau_v, rho):
    phi = activation(which)
    pairs = PairExpectations(phi, np.array([tau_u, tau_v]), bias=0.1)
    cov = np.array([[rho * tau_u * tau_v]])
    values, slopes = pairs.block(slice(0, 1), slice(1, 2), cov, exact_slopes=True)

    def shifted(x):
        return phi(x) - 0.1

    value = brute_force(shifted, phi.kinks, tau_u, tau_v, rho)
    slope = brute_force(phi.slope, phi.kinks, tau_u, tau_v, rho)
    assert values[0, 0] == pytest.approx(value, abs=1e-13)
    assert slopes[0, 0] == pytest.approx(slope, abs=1e-13)


# --- kernels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", thinned(NAMES))
def test_the_kernels_solve_the_equations_that_define_them(name):
    x = gaussian_mixture(4, 12)[0]
    kernels = implicit_kernels(x, name, 0.2)
    phi = activation(name)
    bias = coefficients(name, 0.2, empirical_tau0(x)).bias
    cov = 0.2 * kernels.ck + 0.8 * x.T @ x
    tau = np.sqrt(np.diag(cov))

    def shifted(u):
        return phi(u) - bias

    for i, j in ((0, 1), (0, 3), (2, 3)):
        where = (phi.kinks, tau[i], tau[j], cov[i, j] / tau[i] / tau[j])
        value = brute_force(shifted, *where)
        slope = brute_force(phi.slope, *where)
        rest = 1 - 0.2 * slope
        assert kernels.ck[i, j] == pytest.approx(value, abs=1e-12)
        assert kernels.ntk[i, j] == pytest.approx(value / rest, abs=1e-12)
        full = (value + 0.8 * x[:, i] @ x[:, j] * slope) / rest
        assert kernels.ntk_full[i, j] == pytest.approx(full, abs=1e-12)
    points, weights = panels([-12, 0, 12])
    for i in range(4):
        square = weights @ shifted(tau[i] * points) ** 2
        assert kernels.ck[i, i] == pytest.approx(square, abs=1e-13)


@pytest.mark.parametrize("which", ["erf", "relu", "leaky_relu", HardTanh(0.8, 1.1)], ids=str)
def test_the_mehler_series_meets_the_closed_forms(which):
    """The same function under another name takes the series."""
    phi = activation(which)
    hidden = Activation(lambda z: phi(z), phi.kinks, phi.slope)
    x = gaussian_mixture(50, 40)[0]
    for series, closed in zip(
        explicit_kernels(x, [hidden]), explicit_kernels(x, [which]), strict=True
    ):
        np.testing.assert_allclose(series, closed, atol=1e-12)


@pytest.mark.parametrize("which", ["swish", HardTanh(0.76, 1.2)], ids=str)
def test_strongly_correlated_samples_are_as_exact_as_others(which):
    """They need more terms of the series than the rest of their tile."""
    x = gaussian_mixture(80, 40)[0]
    x[:, 1] = x[:, 0] + 0.2 * x[:, 1]
    phi = activation(which)
    bias = explicit_coefficients([which], empirical_tau0(x)).bias
    tau_u, tau_v = np.linalg.norm(x[:, :2], axis=0)
    rho = x[:, 0] @ x[:, 1] / tau_u / tau_v
    assert rho > 0.95

    def shifted(u):
        return phi(u) - bias

    wanted = brute_force(shifted, phi.kinks, tau_u, tau_v, rho)
    assert explicit_kernels(x, [which])[0][0, 1] == pytest.approx(wanted, abs=1e-13)


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_entries_do_not_depend_on_the_other_samples_on_their_order_or_on_a_rotation(name):
    x = gaussian_mixture(300, 60)[0]
    stream = np.random.default_rng(1)
    order = stream.permutation(300)
    rotation = np.linalg.qr(stream.standard_normal((60, 60)))[0]
    kernel = implicit_ck(x, name, 0.2, 1.0)
    np.testing.assert_array_equal(kernel, kernel.T)
    moved = implicit_ck(x[:, order], name, 0.2, 1.0)
    np.testing.assert_allclose(moved, kernel[np.ix_(order, order)], atol=1e-13)
    part = implicit_ck(x[:, 200:280], name, 0.2, 1.0)
    np.testing.assert_allclose(part, kernel[200:280, 200:280], atol=1e-13)
    np.testing.assert_allclose(implicit_ck(rotation @ x, name, 0.2, 1.0), kernel, atol=1e-13)


# --- guards ---------------------------------------------------------------------------------------


def test_a_series_that_is_cut_says_by_how_much():
    x = np.random.default_rng(0).standard_normal((5, 3)) / math.sqrt(5)
    x[:, 1] = x[:, 0] * 1.001
    with pytest.warns(RuntimeWarning, match=r"cut after 1024 terms: .* at most [0-9.]+e-"):
        explicit_kernels(x, ["elu"])


@pytest.mark.parametrize(
    ("function", "sigma_a2", "message"),
    [
        ("rleu", 0.2, "Did you mean 'relu'"),
        ("relu", 1.0, r"σ_a² must lie in \[0, 1\)"),
        (lambda x: 3 * x, 0.2, r"not well-posed: σ_a² L² = 1.8 ≥ 1"),
        (np.log, 0.2, "finite real numbers"),
        (lambda x: np.clip(x, -1, 1), 0.2, "name the kinks"),
    ],
)
def test_an_activation_that_has_no_kernel_is_refused(function, sigma_a2, message):
    with pytest.raises(ValueError, match=message):
        coefficients(function, sigma_a2)
