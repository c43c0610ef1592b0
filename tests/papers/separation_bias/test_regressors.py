"""The networks of the regressions: sizes, and equilibria that solve the equations they name."""

import pytest
import torch

from nclib.models import count_parameters
from nclib.papers.separation_bias.regression import RegressorConfig
from nclib.solvers import FixedPointIteration


@pytest.mark.parametrize("activation", ["relu", "sine"])
def test_a_constrained_relu_deq_is_solved_at_its_norm(activation):
    config = RegressorConfig(kind="deq", width=6, tol=1e-3, activation=activation, spread=2.0)
    model = config.build(3, seed=0).double()
    model.deq.solver = FixedPointIteration(tol=1e-13, max_steps=2000)
    w, x = model.deq.cell.weight, torch.randn(4, 3, generator=torch.Generator().manual_seed(5)).double()
    assert torch.linalg.matrix_norm(w, 2).item() == pytest.approx(0.95)
    out, act = model(x), {"relu": torch.relu, "sine": torch.sin}[activation]
    torch.testing.assert_close(act(out.features @ w.T + model.injection(x)), out.features, atol=1e-10, rtol=0)
    torch.testing.assert_close(model.read_out(out.features)[:, 0], out.values)


def test_sizes_of_the_regressors():
    fnn = RegressorConfig(kind="fnn", width=40, depth=3)
    recurrent = RegressorConfig(kind="unrolled_deq", width=40, iterations=10, spread=0.5)
    loops = RegressorConfig(kind="self_loop_deq", width=10)
    configs = fnn, fnn.replace(scaled=True), fnn.replace(depth=6), recurrent, loops
    assert [count_parameters(config.build(1, 0)) for config in configs] == [1761, 1764, 6681, 1721, 45 + 4 * 10 + 1]


def test_the_self_loop_deq_is_a_fixed_point_of_the_matrices_it_names():
    model = RegressorConfig(kind="self_loop_deq", width=6).build(1, seed=3).double()
    x = torch.rand(7, 1, dtype=torch.float64)
    out = model(x)
    w, u, b, a = model.matrices()
    assert not torch.triu(w, 1).any() and (torch.diagonal(w) < 1).all()
    torch.testing.assert_close(torch.relu(out.features @ w.T + x * u + b), out.features, atol=1e-12, rtol=0)
    torch.testing.assert_close(out.features @ a + model.constant, out.values)
    assert torch.autograd.gradcheck(lambda q: model(q).values, x.requires_grad_())
