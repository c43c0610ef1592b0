"""Explicit networks with the kernel of a DEQ: the examples of the paper, and the four numbers."""

import numpy as np
import pytest

from nclib.papers.kernel_equivalence.kernels import HardTanh, coefficients, explicit_coefficients
from nclib.papers.kernel_equivalence.matching import match_htanh, match_layers, match_leaky_relu

FOUR = ("alpha1", "alpha2", "alpha3", "gamma2")


def four(numbers):
    return [getattr(numbers, name) for name in FOUR]


def test_the_papers_examples():
    assert match_htanh(0.2) == pytest.approx((0.764297, 1.196485), abs=5e-7)
    assert match_htanh(0.2, kernel="ntk") == pytest.approx((0.498523, 1.507400), abs=5e-7)
    roots = match_leaky_relu(0.2)
    slopes = [[first.a, first.b, second.a, second.b] for first, second in roots]
    wanted = [[0.83873, 0.51601, 1.35334, 0.00140], [1.34940, 0.00534, 0.85067, 0.50407]]
    np.testing.assert_allclose(slopes, wanted, atol=5.1e-6)


@pytest.mark.parametrize(("sigma_a2", "tau0"), [(0.2, 1.0), (0.2, 2.5), (0.4, 0.7)])
def test_matched_networks_have_the_numbers_of_the_deq(sigma_a2, tau0):
    relu = coefficients("relu", sigma_a2, tau0)
    roots = match_leaky_relu(sigma_a2, tau0)
    assert len(roots) == 2
    for layers in roots:
        network = explicit_coefficients(layers, tau0)
        np.testing.assert_allclose(four(network), four(relu), rtol=1e-11)
    tanh = coefficients("tanh", sigma_a2, tau0)
    network = explicit_coefficients([HardTanh(*match_htanh(sigma_a2, tau0))], tau0)
    np.testing.assert_allclose(four(network), four(tanh), rtol=1e-11, atol=1e-14)
    network = explicit_coefficients([HardTanh(*match_htanh(sigma_a2, tau0, "ntk"))], tau0)
    assert network.beta1 == pytest.approx(tanh.beta1, rel=1e-11)
    assert network.kappa2 == pytest.approx(tanh.kappa2, rel=1e-11)


@pytest.mark.parametrize(
    ("name", "layers", "residual"),
    [
        ("erf", 1, 1e-12),
        ("relu", 2, 1e-12),
        ("leaky_relu", 2, 1e-12),
        ("elu", 2, 2e-3),
        ("swish", 2, 1e-2),
    ],
)
def test_the_nearest_layers_for_any_activation(name, layers, residual):
    match = match_layers(name, 0.2, 1.2)
    assert len(match.layers) == layers
    assert match.residual < residual
    assert list(match.wanted) == four(coefficients(name, 0.2, 1.2))
    assert list(match.found) == four(explicit_coefficients(match.layers, 1.2))


def test_an_even_activation_is_refused():
    with pytest.raises(ValueError, match=r"no linear part .* use one that is neither"):
        match_layers(np.abs, 0.2)
