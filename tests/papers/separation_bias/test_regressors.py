"""The networks of the regressions: sizes, and equilibria that solve the equations they name."""

import pytest
import torch

from nclib.models import count_parameters
from nclib.papers.separation_bias.regressors import ACTIVATIONS, RegressorConfig
from nclib.solvers import FixedPointIteration

FNN = RegressorConfig(kind="fnn", width=40, depth=3)
RECURRENT = RegressorConfig(kind="unrolled_deq", width=40, iterations=10, spread=0.5)
LOOPS = RegressorConfig(kind="self_loop_deq", width=10)


@pytest.mark.parametrize("activation", ["relu", "sine"])
def test_a_contracting_deq_is_solved_at_its_norm(activation):
    config = RegressorConfig(kind="deq", width=6, tol=1e-3, activation=activation, spread=2.0)
    model = config.build(3, seed=0).double()
    model.deq.solver = FixedPointIteration(tol=1e-13, max_steps=2000)
    w = model.deq.cell.weight
    assert torch.linalg.matrix_norm(w, 2).item() == pytest.approx(0.95)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(5)).double()
    out = model(x)
    again = ACTIVATIONS[activation](out.features @ w.T + model.injection(x))
    torch.testing.assert_close(again, out.features, atol=1e-10, rtol=0)
    torch.testing.assert_close(model.read_out(out.features)[:, 0], out.values)


def test_an_unrolled_deq_takes_its_steps_from_zero():
    model = RECURRENT.replace(width=5, iterations=2).build(2, seed=1)
    x = torch.randn(3, 2)
    injection = model.injection(x)
    z = model.deq.cell(torch.relu(injection), injection)
    torch.testing.assert_close(model(x).features, z)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_feed_forward_network_is_the_product_it_names(scaled):
    model = FNN.replace(width=4, scaled=scaled).build(2, seed=0)
    if scaled:
        with torch.no_grad():
            model.log_scale.copy_(torch.tensor([0.5, -0.3, 0.2]))
    first, second, last = model.matrices()
    biases = [layer.bias for layer in model.layers]
    x = torch.randn(5, 2)
    z = torch.relu(torch.relu(x @ first.T + biases[0]) @ second.T + biases[1])
    out = model(x)
    torch.testing.assert_close(out.features, z)
    torch.testing.assert_close(out.values, (z @ last.T + biases[2])[:, 0])


def test_the_self_loop_deq_is_a_fixed_point_of_the_matrices_it_names():
    model = LOOPS.replace(width=6).build(1, seed=3).double()
    x = torch.rand(7, 1, dtype=torch.float64)
    out = model(x)
    w, u, b, read_out = model.matrices()
    assert not torch.triu(w, 1).any()
    assert (torch.diagonal(w) < 1).all()
    again = torch.relu(out.features @ w.T + x * u + b)
    torch.testing.assert_close(again, out.features, atol=1e-12, rtol=0)
    torch.testing.assert_close(out.features @ read_out + model.constant, out.values)
    assert torch.autograd.gradcheck(lambda q: model(q).values, x.requires_grad_())


@pytest.mark.parametrize(
    ("config", "parameters", "name", "flops"),
    [
        (FNN, 1761, "FNN 40×L3", 160 + 3200),
        (FNN.replace(scaled=True), 1764, "FNN 40×L3, scaled", 160 + 3200),
        (FNN.replace(depth=6), 6681, "FNN 40×L6", 160 + 4 * 3200),
        (RECURRENT, 1721, "DEQ-40, free W, T = 10", 160 + 7 * 3200),
        (LOOPS, 86, "DEQ-10, self-loops", 40 + 90),
    ],
)
def test_sizes_names_and_costs(config, parameters, name, flops):
    assert count_parameters(config.build(1, 0)) == parameters
    assert config.label() == name
    assert config.flops(1, steps=7) == flops
