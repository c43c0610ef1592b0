"""The tables of the kernel notebooks, against a script that shares no code with the library."""

import numpy as np
import pytest
import torch
from marks import slow

from nclib.papers.kernel_equivalence.distances import (
    equivalence_errors,
    finite_width_kernels,
    matching_errors,
    published_kernels,
)
from nclib.papers.kernel_equivalence.equivalents import gaussian_mixture
from nclib.papers.kernel_equivalence.kernels import Activation

SIZES = ((100, (0, 1, 2)), (200, (0, 1)), (400, (0,)), (800, (0,)))
ERRORS = {  # relative, on the mixture of the captions, p = 0.8 n; n = 100, 200, 400, 800
    ("ck", "relu", "empirical"): (0.1211, 0.0776, 0.0497, 0.0294),
    ("ck", "tanh", "empirical"): (0.1532, 0.1322, 0.1065, 0.0807),
    ("ck", "swish", "empirical"): (0.1116, 0.0657, 0.0406, 0.0240),
    ("ck", "erf", "empirical"): (0.1682, 0.1457, 0.1178, 0.0895),
    ("ck", "relu", "trace"): (0.2201, 0.1525, 0.1068, 0.0717),
    ("ck", "tanh", "trace"): (0.3799, 0.2747, 0.1826, 0.1214),
    ("ntk", "relu", "empirical"): (0.1335, 0.0852, 0.0542, 0.0317),
    ("ntk", "tanh", "empirical"): (0.1624, 0.1406, 0.1137, 0.0864),
    ("ntk", "swish", "empirical"): (0.1231, 0.0719, 0.0442, 0.0259),
    ("ntk", "erf", "empirical"): (0.1796, 0.1561, 0.1268, 0.0967),
    ("ntk_full", "relu", "empirical"): (0.1786, 0.1154, 0.0733, 0.0414),
    ("ntk_full", "tanh", "empirical"): (0.1687, 0.1397, 0.1109, 0.0835),
}
MATCHES = {
    "H-Tanh": (3.2e-3, 4.0e-3, 3.4e-3, 2.7e-3),
    "H-Tanh, NTK-matched": (5.5e-2, 4.9e-2, 3.9e-2, 2.9e-2),
    "L-ReLU, root 0": (4.8e-5, 2.6e-5, 1.3e-5, 5.7e-6),
    "L-ReLU, root 1": (1.1e-4, 7.4e-5, 4.9e-5, 3.1e-5),
    "Tanh, unmatched": (0.056, 0.060, 0.062, 0.063),
    "ReLU, unmatched": (0.661, 0.669, 0.672, 0.674),
}


@pytest.mark.parametrize("at", [0, *slow(1, 2, 3)])
def test_errors_of_the_equivalents(at):
    n, seeds = SIZES[at]
    names = ["relu", "tanh", "swish", "erf"]
    kernels = ("ck", "ntk", "ntk_full")
    table = equivalence_errors(names, [n], seeds, tau0=("empirical", "trace"), kernels=kernels)
    means = table.groupby(["kernel", "activation", "tau0"])["error"].mean()
    for key, expected in ERRORS.items():
        assert means[key] == pytest.approx(expected[at], rel=0.2), key


@pytest.mark.parametrize("at", [0, 1, *slow(2, 3)])
def test_errors_of_matched_networks(at):
    n, seeds = SIZES[at]
    means = matching_errors([n], seeds).groupby("network")["error"].mean()
    assert set(means.index) == set(MATCHES)
    for network, expected in MATCHES.items():
        assert means[network] == pytest.approx(expected[at], rel=0.2), network


def test_the_kernels_of_a_network_are_those_of_automatic_differentiation():
    """z and g of one narrow network against autograd through many steps."""
    x = gaussian_mixture(3, 10)[0]
    width = 12
    drawn = finite_width_kernels(x, "tanh", 0.2, width, draws=1, seed=5)
    stream = np.random.default_rng((5, 0))
    b = torch.tensor(stream.standard_normal((width, 10)), requires_grad=True)
    a = torch.tensor(stream.standard_normal((width, width)), requires_grad=True)
    readout = torch.tensor(stream.standard_normal(width), requires_grad=True)
    features = []
    frozen = []
    full = []
    for sample in torch.tensor(x.T):
        z = torch.zeros(width, dtype=torch.float64)
        for _ in range(60):
            z = torch.tanh(0.2**0.5 * a @ z + 0.8**0.5 * b @ sample) / width**0.5
        gradients = [g.flatten() for g in torch.autograd.grad(readout @ z, (readout, a, b))]
        features.append(z.detach())
        frozen.append(torch.cat(gradients[:2]))
        full.append(torch.cat(gradients))
    for kernel, rows in ((drawn.ck, features), (drawn.ntk, frozen), (drawn.ntk_full, full)):
        rows = torch.stack(rows).numpy()
        np.testing.assert_allclose(kernel, rows @ rows.T, rtol=1e-8)
    single = finite_width_kernels(x, "tanh", 0.2, width, draws=1, seed=5, tangent=False)
    np.testing.assert_allclose(single.ck, drawn.ck, rtol=1e-5)


def test_a_width_at_which_no_equilibrium_is_found_is_named():
    x = 0.1 * gaussian_mixture(20, 25)[0]
    steep = Activation(lambda z: 2.2 * np.tanh(z), (), lambda z: 2.2 / np.cosh(z) ** 2)
    with pytest.raises(ValueError, match="not well-posed at this width; use a smaller σ_a²"):
        finite_width_kernels(x, steep, 0.2, width=20, draws=20, seed=0)


def test_a_tangent_kernel_needs_a_derivative():
    x = gaussian_mixture(3, 10)[0]
    with pytest.raises(ValueError, match=r"give Activation\(function, slope=…\)"):
        finite_width_kernels(x, lambda z: np.tanh(z), 0.2, width=5, draws=1, seed=0)


def test_the_captions_of_the_paper():
    published = published_kernels("2").set_index("quantity")["value"]
    assert published["sigma_a2"] == 0.2
    assert published["p/n"] == 0.8
