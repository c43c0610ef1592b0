"""The behaviour of the equilibrium layer."""

import copy
import doctest
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from cells import EXACT, ConvCell, TanhCell, TwoPartCell, random, tanh_layer, with_rule, zeros_of_two_parts
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from nclib import deq
from nclib.deq import (
    DEQ,
    BackwardNotConverged,
    ForwardNotConverged,
    Implicit,
    Neumann,
    Phantom,
    Reversible,
    Unrolled,
    failures_counted,
    jacobian_frobenius_sq,
    row_jacobians,
    spectral_radius,
)
from nclib.solver import Anderson, Broyden, FixedPointIteration, Status, paper_solver

# ---- starts, shapes, precision


def test_default_start_is_x_and_zeros_or_a_tensor_can_be_asked_for():
    seen = []

    def cell(z, x):
        seen.append(z.clone())
        return 0.5 * torch.tanh(z) + x

    x, own = random(2, 3), random(2, 3, seed=9)
    with torch.no_grad():
        for layer, args, start in (
            (DEQ(cell), (x,), x),
            (DEQ(cell, z0="zeros"), (x,), torch.zeros_like(x)),
            (DEQ(cell), (x, own), own),
        ):
            seen.clear()
            layer(*args)
            assert torch.equal(seen[0], start)


def test_a_warm_start_saves_evaluations_and_keeps_the_answer():
    cell, x = TanhCell(16, 0.9), random(8, 16, seed=3)
    layer = DEQ(cell, Broyden(1e-8, 100))
    with torch.no_grad():
        before, cold = layer(x)
        cell.w.mul_(0.999)
        new, cold = layer(x)
        warm, solution = layer(x, z0=before)
    assert solution.converged.all() and (solution.steps < cold.steps).all()
    assert (warm - new).norm() <= 1e-6 * new.norm() < (before - new).norm() * 1e-1


def test_a_state_of_another_shape_needs_its_start():
    mix = random(5, 3, seed=4)
    layer, x = DEQ(lambda z, x: torch.tanh(0.3 * z + x @ mix.T), EXACT[2]), random(2, 3).requires_grad_()
    z, _ = layer(x, z0=torch.zeros(2, 5).double())
    assert z.shape == (2, 5) and gradcheck(lambda x: layer(x, torch.zeros(2, 5).double())[0], (x,))
    with pytest.raises((ValueError, RuntimeError)) as caught:
        layer(x)
    assert "give the start: layer(x, z0=" in "".join(caught.value.__notes__)
    with pytest.raises(ValueError, match="give the start"):
        layer(torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.parametrize("gradient", [Implicit(), Neumann(60), Phantom(60), Unrolled(60)], ids=str)
def test_states_without_a_feature_axis(gradient):
    x = random(5).requires_grad_()
    z, solution = with_rule(lambda z, x: 0.5 * torch.sin(z) + x, EXACT[2], gradient)(x)
    (grad,) = torch.autograd.grad(z.sum(), x)
    assert z.shape == solution.residual.shape == (5,)
    assert torch.allclose(grad, 1 / (1 - 0.5 * torch.cos(z)), rtol=1e-8)
    slope = torch.cos(x.detach())
    assert torch.allclose(spectral_radius(torch.sin, x), slope.abs())
    assert torch.allclose(jacobian_frobenius_sq(torch.sin, x), slope.square())


def masked(a):
    """A cell with two conditions: a mask of features that are held at 0, and a gain of each row's own."""
    return lambda z, x, keep, gain: torch.where(keep, torch.tanh(gain * (z @ a.T)) + x, 0.0)


@pytest.mark.parametrize("gradient", [Implicit(), Neumann(40), Phantom(60, 0.2), Unrolled(60)], ids=str)
def test_conditions_stay_with_their_rows(gradient):
    a, x, keep = 0.4 * random(4, 4, seed=1), random(6, 4, seed=2), random(6, 4, seed=3) > -0.5
    gain = torch.tensor([0.01, 1.9, 0.2, 1.5, 0.05, 0.8]).double().unsqueeze(1)  # so that rows leave at their own time
    layer = with_rule(masked(a), Broyden(1e-12, 200), gradient)
    inputs = [t.clone().requires_grad_() for t in (x, gain)]
    z, solution = layer(inputs[0], args=(keep, inputs[1]))
    assert solution.converged.all()
    if not isinstance(gradient, Unrolled):
        assert len(set(solution.steps.tolist())) > 2
    got = torch.autograd.grad(z.square().sum(), inputs)
    for row in range(len(x)):
        one = [t[row : row + 1].clone().requires_grad_() for t in (x, gain)]
        own, _ = layer(one[0], args=(keep[row : row + 1], one[1]))
        assert (own - z[row]).abs().max() < 1e-10
        for whole, part in zip(got, torch.autograd.grad(own.square().sum(), one), strict=True):
            assert (whole[row] - part).abs().max() < 1e-7
    if isinstance(gradient, Implicit):
        value = lambda x, gain: layer(x, args=(keep, gain))[0]  # noqa: E731
        assert gradcheck(value, inputs) and gradgradcheck(value, inputs)


def test_a_cell_that_closes_over_the_batch_is_told_where_to_put_it():
    x, gain = random(6, 3), torch.linspace(0.1, 0.9, 6).double().unsqueeze(1)
    with pytest.raises(RuntimeError) as caught:
        DEQ(lambda z, x: torch.tanh(gain * z) + x, Broyden(1e-10, 100))(x)
    (note,) = caught.value.__notes__
    assert re.search(r"given [1-5] of 6 rows.*go into args", note)


def test_autocast_keeps_the_state_in_float32_and_the_gradients_alive():
    layer, x = DEQ(ConvCell(), Broyden(1e-2, 30)), random(4, 8, 4, 4, dtype=torch.float32)
    layer(x)[0].square().mean().backward()
    full = layer.cell.conv1.weight.grad.clone()
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        z, solution = layer(x.bfloat16())
        loss = z.square().mean()
    assert z.dtype == solution.residual.dtype == torch.float32 and solution.converged.all()
    loss.backward()
    half = layer.cell.conv1.weight.grad
    assert torch.nn.functional.cosine_similarity(full.flatten(), half.flatten(), 0) > 0.98


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(3)], ids=str)
def test_a_bfloat16_input_under_autocast_is_solved_in_float32(gradient):
    """It came from a layer before this one, and the tolerance of the paper was refused for it."""
    seen, w = [], 0.5 * torch.linalg.qr(random(16, 16, seed=1, dtype=torch.float32))[0]

    def cell(z, x):
        seen.extend((z.dtype, x.dtype))
        return torch.tanh(z @ w + x)

    layer, x = DEQ(cell, gradient=gradient), random(8, 16).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        z, solution = layer(x)
        same, _ = layer(x.float())
    assert layer.solver == paper_solver() and set(seen) == {torch.float32}
    assert torch.equal(z, same) and z.dtype == solution.residual.dtype == torch.float32
    if isinstance(gradient, Implicit):
        assert solution.converged.all()
    z.square().sum().backward()
    assert x.grad.dtype == torch.bfloat16 and (x.grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize("gradient", [Implicit(), Neumann(3)], ids=str)
def test_the_backward_pass_evaluates_the_cell_under_the_autocast_of_the_forward(gradient):
    cell, seen = ConvCell(), []
    cell.conv2.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    x = (random(16, 8, 4, 4, dtype=torch.float32) * torch.logspace(-1, 1, 16).view(-1, 1, 1, 1)).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        z, solution = with_rule(cell, Broyden(1e-2, 30), gradient)(x)
    forward = len(seen)
    (grad,) = torch.autograd.grad(z.square().sum(), x, create_graph=True)
    grad.sum().backward()
    assert forward == solution.num_evals < len(seen) - 1 and set(seen) == {torch.bfloat16}


@pytest.mark.parametrize("how", ["module", "method", "function"])
def test_a_compiled_cell_is_compiled_few_times_and_gives_the_same_gradients(how):
    torch._dynamo.reset()
    graphs, cell = [], ConvCell()
    x = random(16, 8, 4, 4, dtype=torch.float32) * torch.logspace(-1, 1, 16).view(-1, 1, 1, 1)
    solver = Broyden(1e-2, 40)
    expected, _ = DEQ(cell, solver)(x)
    (grad,) = torch.autograd.grad(expected.square().mean(), cell.conv1.weight)

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    if how == "method":
        compiled = copy.deepcopy(cell)
        compiled.compile(backend=backend)
        weight = compiled.conv1.weight
    else:
        compiled = torch.compile(cell if how == "module" else lambda z, x: cell(z, x), backend=backend)
        weight = cell.conv1.weight
    z, _ = DEQ(compiled, solver)(x)
    assert torch.allclose(z, expected, rtol=1e-3, atol=1e-3)
    assert torch.allclose(torch.autograd.grad(z.square().mean(), weight)[0], grad, rtol=1e-2, atol=1e-5)
    assert 1 <= len(graphs) <= 3


# ---- live modules


@pytest.mark.parametrize("module", [nn.BatchNorm2d(8), nn.Dropout(0.1), nn.Dropout2d(0.5)])
def test_live_modules_inside_the_cell_are_refused(module):
    """One forward solve moved BatchNorm's running statistics 41 times and coupled the rows by 0.18."""

    class Cell(ConvCell):
        def __init__(self):
            super().__init__()
            self.extra = copy.deepcopy(module)

        def forward(self, z, x):
            return self.extra(super().forward(z, x))

    x = random(4, 8, 4, 4, dtype=torch.float32)
    with pytest.raises(ValueError, match=rf"cell.extra is a live {type(module).__name__}"):
        DEQ(Cell())(x)
    DEQ(Cell()).eval()(x)
    DEQ(Cell(), Broyden(1e-1, 3), allow_live=True, on_failure="ignore")(x)


def test_batch_norm_without_running_statistics_is_live_even_in_evaluation():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3, track_running_stats=False)

        def forward(self, z, x):
            return self.norm(z) + x

    with pytest.raises(ValueError, match="live BatchNorm1d"):
        DEQ(Cell()).eval()(torch.zeros(2, 3))


@pytest.mark.parametrize("inner", [nn.MultiheadAttention(4, 2, dropout=0.1), nn.GRU(4, 4, num_layers=2, dropout=0.1)])
def test_dropout_inside_of_other_modules_is_live(inner):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = copy.deepcopy(inner)

        def forward(self, z, x):
            return 0.1 * z + x

    x = random(2, 4)
    with pytest.raises(ValueError, match=f"cell.inner is a live {type(inner).__name__}"):
        DEQ(Cell())(x)
    DEQ(Cell()).eval()(x)
    still = Cell()
    still.inner.dropout = 0.0
    DEQ(still)(x)


@pytest.mark.parametrize(
    "make, name",
    [
        (nn.RReLU, "cell.inner is a live RReLU"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), "parametrizations.weight.0 is a live"),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, 4)), "cell.inner is a live Linear"),
    ],
    ids=["RReLU", "parametrised spectral norm", "hooked spectral norm"],
)
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*deprecated:FutureWarning")
def test_modules_that_draw_or_iterate_at_each_call_are_live(make, name):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make()

        def forward(self, z, x):
            return 0.3 * self.inner(z) + x

    layer, x = DEQ(Cell()), random(2, 4, dtype=torch.float32).requires_grad_()
    with pytest.raises(ValueError, match=name):
        layer(x)
    layer.eval()(x)[0].sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("gradient", [Implicit(), Phantom()], ids=str)
def test_modules_that_come_to_life_before_the_backward_pass_are_refused(gradient):
    class Cell(TanhCell):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, z, x):
            return self.drop(super().forward(z, x))

    for allow_live in (False, True):
        layer = with_rule(Cell(), Broyden(1e-6, 50), gradient, allow_live=allow_live).eval()
        layer.on_failure = "ignore"
        z, _ = layer(random(3, 4))
        layer.train()
        if allow_live:
            z.sum().backward()
        else:
            with pytest.raises(ValueError, match=r"live Dropout.*until backward\(\) is done"):
                z.sum().backward()


def test_dropout_of_nothing_is_not_live():
    cell = nn.Sequential(nn.Dropout(0.0))
    DEQ(type("Cell", (nn.Module,), {"forward": lambda self, z, x: 0.5 * z + x, "inner": cell})())(random(2, 3))


# ---- arguments


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: Neumann(0), "terms must be"),
        (lambda: Phantom(0), "steps must be"),
        (lambda: Neumann(True), "terms must be"),
        (lambda: Neumann(np.float64(2)), "terms must be"),
        (lambda: Phantom(np.True_), "steps must be"),
        (lambda: Phantom(1, 1.0), "damping must be"),
        (lambda: Phantom(1, np.float32(1.0)), "damping must be"),
        (lambda: Unrolled(0), "steps must be"),
        (lambda: DEQ(torch.cos, z0="ones"), "allowed are 'x', 'zeros' and a function"),
        (lambda: DEQ(torch.cos, z0=(0, 0)), "allowed are 'x', 'zeros' and a function"),
    ],
)
def test_impossible_settings_are_refused(make, error):
    with pytest.raises(ValueError, match=error):
        make()


@pytest.mark.parametrize(
    "given, same",
    [
        (lambda: Neumann(np.int64(3)), Neumann(3)),
        (lambda: Phantom(np.int32(2), np.float32(0.5)), Phantom(2, 0.5)),
        (lambda: Unrolled(np.int64(2)), Unrolled(2)),
    ],
    ids=["Neumann", "Phantom", "Unrolled"],
)
def test_numbers_of_numpy_are_settings_like_others(given, same):
    x = random(3, 4).requires_grad_()
    got, expected = (torch.autograd.grad(with_rule(TanhCell(), EXACT[2], g)(x)[0].sum(), x)[0] for g in (given(), same))
    assert torch.equal(got, expected)


def test_wrong_kinds_are_refused():
    for wrong in ("broyden", Broyden, 5):
        with pytest.raises(TypeError, match=r"Implicit\(solver=.*give a FixedPointIteration"):
            Implicit(wrong)
    with pytest.raises(TypeError, match="Broyden"):
        DEQ(torch.cos, solver="broyden")
    with pytest.raises(TypeError, match="Implicit"):
        DEQ(torch.cos, gradient="implicit")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda layer, x: layer((x, x)), "x is a tuple.*args=\\(tensor, tensor\\)"),
        (lambda layer, x: layer(x, (x,)), "z0 is a tuple"),
        (lambda layer, x: layer(x, args=x), "args=\\(tensor,\\)"),
        (lambda layer, x: layer(x, args=(x, None)), "args\\[1\\] is a NoneType"),
    ],
)
def test_wrong_kinds_in_a_call_are_refused(call, message):
    with pytest.raises(TypeError, match=message):
        call(DEQ(lambda z, x, *args: 0.5 * z + x), random(2, 3))


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(2)], ids=str)
@pytest.mark.parametrize("value", [lambda z: (z, z), lambda z: z.sum(1, keepdim=True)], ids=["tuple", "shape"])
def test_cells_that_return_something_else_are_refused(gradient, value):
    with pytest.raises((TypeError, ValueError), match="must return"):
        DEQ(lambda z, x: value(0.5 * z + x), gradient=gradient)(random(2, 3))


def test_status_codes_reach_the_layer():
    _, solution = DEQ(lambda z, x: 2 * z + x, FixedPointIteration(1e-6, 5), on_failure="ignore")(random(2, 3))
    assert (solution.status == Status.MAX_STEPS).all()


# ---- which solver, and what is returned


def test_the_examples_of_the_docstrings_run():
    modules = (deq.layer, deq.gradients, deq.jacobian)
    tests = [test for module in modules for test in doctest.DocTestFinder().find(module) if test.examples]
    assert {"layer.DEQ", "gradients.Reversible", "jacobian.row_jacobians"} <= {
        test.name.removeprefix("nclib.deq.") for test in tests
    }
    for test in tests:
        assert doctest.DocTestRunner().run(test).failed == 0, test.name


def test_a_call_and_the_evaluation_mode_can_have_a_solver_of_their_own():
    cell, x = TanhCell(), random(3, 4, seed=3).requires_grad_()
    rough, fine, own = FixedPointIteration(1e-1, 9), Broyden(1e-8, 90), Anderson(1e-5, 90)
    layer = DEQ(cell, rough, eval_solver=fine)
    expected = {solver: DEQ(cell, solver)(x) for solver in (rough, fine, own)}
    for training in (True, False):
        layer.train(training)
        for given, used in ((None, rough if training else fine), (own, own)):
            z, solution = layer(x, solver=given)
            assert torch.equal(z, expected[used][0]) and solution.num_evals == expected[used][1].num_evals
            got, same = (torch.autograd.grad(t.sum(), x, retain_graph=True)[0] for t in (z, expected[used][0]))
            assert z.requires_grad and torch.equal(got, same)
    assert len({solution.num_evals for _, solution in expected.values()}) == 3
    assert "eval_solver=Broyden(tol=1e-08" in repr(layer) and "eval_solver" not in repr(DEQ(cell))
    assert torch.equal(DEQ(cell, rough).eval()(x)[0], expected[rough][0]), "without one, evaluation changes nothing"


def test_the_backward_pass_uses_the_solver_of_its_forward_pass_unless_it_has_its_own():
    x = random(3, 4, seed=3).requires_grad_()
    for gradient, tol in ((Implicit(), 1e-9), (Implicit(Broyden(1e-3, 90)), 1e-3)):
        layer = with_rule(TanhCell(), Broyden(1e-2, 90), gradient)
        layer(x, solver=Broyden(1e-9, 90))[0].sum().backward()
        worst = layer.last_backward.residual.max()
        assert worst <= tol and (worst > 1e-9) == (tol > 1e-9)


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(2)], ids=str)
def test_a_layer_that_returns_its_value_alone_stands_in_a_sequence(gradient):
    cell, x = TanhCell(), random(3, 4, seed=3)
    layer = DEQ(cell, gradient=gradient, return_solution=False)
    z, solution = DEQ(cell, gradient=gradient)(x)
    network = nn.Sequential(nn.Identity(), layer, nn.Flatten())
    assert layer.last_solution is None and torch.equal(network(x), z)
    kept = layer.last_solution
    assert torch.equal(kept.value, solution.value) and torch.equal(kept.trace, solution.trace)
    assert not kept.value.requires_grad and not kept.residual.requires_grad
    copy.deepcopy(network)
    network(random(5, 4))
    assert len(layer.last_solution.converged) == 5


def test_what_is_no_solver_is_refused():
    for make in (lambda: DEQ(torch.cos, eval_solver="fine"), lambda: DEQ(torch.cos)(random(2, 3), solver=Broyden)):
        with pytest.raises(TypeError, match=r"solver=.*give a FixedPointIteration"):
            make()


# ---- what a wrong call is told


def test_args_are_counted_as_the_user_counts_them_and_a_shared_tensor_has_a_place():
    layer, x = DEQ(lambda z, x, pad, mask: torch.tanh(0.5 * z + x)), random(8, 12)
    for gradient in (Implicit(), Unrolled(2)):
        layer.gradient = gradient
        with pytest.raises(ValueError, match=r"args\[1\] has shape \(12, 12\).*8 rows of x.*register_buffer"):
            layer(x, args=(x, torch.ones(12, 12)))


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(40)], ids=str)
def test_a_causal_mask_is_a_buffer_of_the_cell_or_closed_over(gradient):
    mask = torch.tril(random(4, 4, seed=1)) / 8

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", mask)

        def forward(self, z, x):
            return torch.tanh(z @ self.mask.T + x)

    x = random(6, 4) * torch.logspace(-3, 1, 6).double().unsqueeze(1)
    z, solution = with_rule(Cell(), EXACT[2], gradient)(x)
    assert torch.equal(z, with_rule(lambda z, x: torch.tanh(z @ mask.T + x), EXACT[2], gradient)(x)[0])
    assert solution.converged.all() or isinstance(gradient, Unrolled)


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(2)], ids=str)
@pytest.mark.parametrize("mask", [torch.ones(6, 4, dtype=torch.bool), torch.ones(6, 4, dtype=torch.long)])
def test_a_mask_given_as_the_start_is_told_about_args(gradient, mask):
    with pytest.raises(ValueError, match=r"z0 is torch\.(bool|int64).*did you mean layer\(x, args=\(mask,\)\)"):
        DEQ(lambda z, x, mask: 0.5 * z + x, gradient=gradient)(random(6, 4), mask)


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(2)], ids=str)
def test_an_input_without_a_batch_axis_is_refused(gradient):
    """Its 64 features were taken for 64 rows, and the cell failed once one of them was solved: "1x63 and 64x64"."""
    layer = DEQ(TanhCell(), gradient=gradient)
    with pytest.raises(ValueError, match=r"x has shape \(4,\).*4 rows of one number.*layer\(x\.unsqueeze\(0\)\)"):
        layer(random(4))
    assert layer(random(4).unsqueeze(0))[0].shape == (1, 4)
    with pytest.raises(ValueError, match="single number"):
        layer(torch.tensor(1.0))


def test_a_start_with_other_rows_is_refused():
    with pytest.raises(ValueError, match=r"z0 has shape \(5, 4\); its first axis must be the 6 rows of x"):
        DEQ(TanhCell())(random(6, 4), random(5, 4))


def test_only_errors_of_shapes_are_told_about_the_start():
    def cell(z, x):
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError) as caught:
        DEQ(cell)(random(2, 3))
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(ValueError, match="unpack") as caught:
        DEQ(unpacking)(random(6, 3))
    assert "give the start" in caught.value.__notes__[0]


def unpacking(z, x):
    first, second = z
    return first + second


def test_no_option_is_recommended_that_the_layer_does_not_have():
    x, keep = random(6, 3), random(6, 3) > 0
    gain = torch.linspace(0.1, 0.9, 6).double().unsqueeze(1)
    with pytest.raises(RuntimeError) as caught:
        DEQ(lambda z, x: torch.tanh(gain * z) + x * keep, Broyden(1e-10, 100))(x)
    assert "stay" not in "".join(caught.value.__notes__)


# ---- a transformer block with padding


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
        self.norm = nn.LayerNorm(8, dtype=torch.float64)

    def forward(self, z, x, pad):
        h = self.norm(z + x)
        mixed = self.attention(h, h, h, key_padding_mask=pad, need_weights=False)[0]
        return torch.tanh(0.3 * mixed + x).masked_fill(pad.unsqueeze(2), 0.0)


def test_a_transformer_block_with_padding_leaks_nothing_and_its_mask_is_told_where_to_go():
    torch.manual_seed(0)
    cell, x = Block(), random(6, 5, 8).requires_grad_()
    pad = torch.arange(5) >= torch.tensor([5, 3, 2, 5, 4, 1]).unsqueeze(1)
    z, solution = DEQ(cell, Anderson(1e-8, 60))(x, args=(pad,))
    assert solution.converged.all() and (z[pad] == 0).all()
    (along,) = torch.autograd.grad(z[1].sum(), x)
    assert (along[1, :3] != 0).any() and (along[[0, 2, 3, 4, 5]] == 0).all() and (along[1, 3:] == 0).all()
    # Rows that are all solved at once never leave, so that nothing fails before the layer looks at the first one.
    same, masks = x[:1].detach().expand(6, 5, 8), pad[1:2].expand(6, 5)
    with pytest.raises(AssertionError) as caught:
        DEQ(lambda z, x: cell(z, x, masks), Anderson(1e-8, 60))(same)
    assert "given 1 of 6 rows" in caught.value.__notes__[0] and "args=(tensor,)" in caught.value.__notes__[0]


# ---- a state of several tensors


def joined(z):
    return torch.cat([part.flatten(1) for part in z], 1)


ALL_RULES = [Implicit(), Neumann(60), Phantom(60, 0.1), Unrolled(60)]


@pytest.mark.parametrize("gradient", ALL_RULES, ids=str)
@pytest.mark.parametrize("module", [True, False])
def test_a_state_of_several_tensors_has_the_value_and_the_gradients_of_one_that_holds_them(gradient, module):
    cell, x = TwoPartCell(), random(4, 7, seed=2).requires_grad_()
    one = with_rule(lambda z, x: torch.tanh(z @ cell.w.T + x), EXACT[2], gradient)
    z, solution = with_rule(cell if module else cell.forward, EXACT[2], gradient)(x, z0=zeros_of_two_parts(4))
    expected, _ = one(x, z0=torch.zeros(4, 7).double())
    assert [tuple(part.shape) for part in z] == [(4, 3), (4, 2, 2)] and solution.converged.all()
    assert torch.allclose(joined(z), expected, rtol=0, atol=1e-11)
    assert all(torch.equal(part, value) for part, value in zip(z, solution.value, strict=True))
    assert not any(value.requires_grad for value in solution.value)
    g = random(4, 7, seed=3)
    for a, b in zip(
        torch.autograd.grad((joined(z) * g).sum(), (x, cell.w), retain_graph=True),
        torch.autograd.grad((expected * g).sum(), (x, cell.w)),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)
    (alone,) = torch.autograd.grad(z[1].sum(), x)  # the other part is not used
    assert alone.abs().sum() > 0


@pytest.mark.parametrize("solver", EXACT, ids=lambda s: type(s).__name__)
def test_gradients_of_a_state_of_several_tensors_and_their_gradients(solver):
    cell, x = TwoPartCell(), random(2, 7, seed=2).requires_grad_()
    layer = DEQ(cell, solver)

    def value(x, *parameters):
        return layer(x, z0=zeros_of_two_parts(len(x)))[0]

    inputs = (x, *cell.parameters())
    assert gradcheck(value, inputs, fast_mode=True) and gradgradcheck(value, inputs, fast_mode=True)
    assert [tuple(part.shape) for part in layer.last_backward.value] == [(2, 3), (2, 2, 2)]


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(3)], ids=str)
@pytest.mark.parametrize("solver", [FixedPointIteration(1e-4, 100), Anderson(1e-4, 100), Broyden(1e-4, 100)], ids=str)
def test_a_row_is_solved_when_every_part_is(solver, gradient):
    """Of one tensor that held both parts the large one, which is solved at once, would hide the small one."""
    x = torch.cat((torch.full((5, 1), 1e6), random(5, 1, dtype=torch.float32)), 1).double()

    def cell(z, x):
        return x[:, :1] + 0.0 * z[0], 0.9 * torch.cos(z[1]) + x[:, 1:]

    layer = with_rule(cell, solver, gradient)
    z, solution = layer(x, z0=(torch.zeros(5, 1).double(),) * 2)
    by_hand = torch.stack([(f - z).abs()[:, 0] / (f.abs()[:, 0] + 1e-8) for f, z in zip(cell(z, x), z, strict=True)], 1)
    assert torch.allclose(solution.part_residual, by_hand, rtol=1e-4, atol=1e-9)
    assert torch.equal(solution.residual, solution.part_residual.amax(1))
    assert torch.equal(solution.converged, (solution.part_residual <= 1e-4).all(1))
    if isinstance(gradient, Implicit):
        assert solution.converged.all() and solution.num_evals > 3
        packed = DEQ(lambda z, x: torch.cat(cell(z.split(1, 1), x), 1), solver)(x)[1]
        assert packed.num_evals < solution.num_evals, "one residual for both is met too early"
    else:
        assert not solution.converged.any() and (solution.part_residual[:, 0] <= 1e-4).all()
    assert "(5, 1), (5, 1): " in repr(solution)
    assert DEQ(lambda z, x: torch.cos(z))(x)[1].part_residual is None


def test_a_state_of_several_tensors_keeps_its_rows_and_starts_warm():
    cell, x = TwoPartCell(0.9), random(6, 7, seed=2) * torch.logspace(-3, 1, 6).double().unsqueeze(1)

    def held(z, x, keep):
        return [part * keep.view(-1, *[1] * (part.dim() - 1)) for part in cell(z, x)]

    layer = DEQ(held, Broyden(1e-9, 90))
    keep = torch.linspace(0.1, 1, 6).double()
    with torch.no_grad():
        z, solution = layer(x, z0=zeros_of_two_parts(6), args=(keep,))
        assert solution.converged.all() and len(set(solution.steps.tolist())) > 2
        for row in range(6):
            own, _ = layer(x[row : row + 1], z0=zeros_of_two_parts(1), args=(keep[row : row + 1],))
            assert all((a[0] - b[row]).abs().max() < 1e-7 for a, b in zip(own, z, strict=True))
        assert layer(x, z0=z, args=(keep,))[1].num_evals == 1


def test_a_state_of_several_tensors_under_autocast_is_float32():
    x, half = random(4, 7).bfloat16(), [part.bfloat16() for part in zeros_of_two_parts(4)]
    cell = TwoPartCell().float()
    with torch.autocast("cpu", torch.bfloat16):
        z, solution = DEQ(cell, Broyden(1e-2, 30))(x, z0=half)
    assert {part.dtype for part in z} == {torch.float32} and solution.converged.all()


@pytest.mark.parametrize(
    "z0, error, message",
    [
        ((), TypeError, "at least two"),
        (lambda x: (x, None), TypeError, "z0 is a tuple of 2: Tensor, NoneType.*at least two"),
        (lambda x: (x, x[:2]), ValueError, r"z0\[1\] has shape \(2, 7\); its first axis must be the 4 rows of x"),
        (lambda x: (x, x[:, :0]), ValueError, r"z0\[1\] has shape \(4, 0\)"),
        (lambda x: (x, x.float()), ValueError, r"z0\[1\] is torch.float32.*must have one floating-point type"),
        (lambda x: (x > 0, x > 0), ValueError, "floating-point"),
    ],
)
def test_starts_that_are_no_state_of_several_tensors_are_refused(z0, error, message):
    x = random(4, 7)
    with pytest.raises(error, match=message):
        DEQ(lambda z, x: z)(x, z0=z0(x) if callable(z0) else z0)


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(30), Reversible(30)], ids=str)
def test_a_start_made_of_x_lets_a_state_of_several_tensors_stand_in_a_sequential(gradient):
    def cell(z, x):
        return 0.5 * z[1] + x, 0.5 * z[0]

    def zeros(x):
        return torch.zeros_like(x), torch.zeros_like(x)

    x = random(4, 3)
    inside = with_rule(cell, EXACT[2], gradient, z0=zeros, return_solution=False)
    first, second = nn.Sequential(nn.Identity(), inside)(x)
    expected, _ = with_rule(cell, EXACT[2], gradient)(x, z0=zeros(x))
    assert torch.equal(first, expected[0]) and torch.equal(second, expected[1])
    other = with_rule(cell, EXACT[2], gradient, z0=lambda x: 1 / 0)  # a start in the call comes first
    assert torch.equal(other(x, z0=zeros(x))[0][0], first)
    single = with_rule(TanhCell(), EXACT[2], gradient, z0=lambda x: x + 1)
    assert torch.equal(single(x_ := random(4, 4))[1].trace, single(x_, z0=x_ + 1)[1].trace)
    with pytest.raises(ValueError, match="z0 has shape"):
        DEQ(cell, gradient=gradient, z0=lambda x: x[:2])(x)
    with pytest.raises(TypeError, match="z0 is a tuple of 2: Tensor, int"):
        DEQ(cell, gradient=gradient, z0=lambda x: (x, 1))(x)


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(2)], ids=str)
def test_a_cell_that_cannot_take_z_and_x_is_told_so(gradient):
    x = random(4, 3)
    for cell, args, called in (
        (lambda z: 0.5 * z, (), "cell(z, x)"),
        (nn.Linear(3, 3).double(), (), "cell(z, x)"),
        (torch.cos, (), "cell(z, x)"),
        (lambda z, x, mask: z, (), "cell(z, x)"),
        (lambda z, x: z, (x,), "cell(z, x, args[0])"),
    ):
        with pytest.raises(TypeError) as caught:
            DEQ(cell, gradient=gradient)(x, args=args)
        assert f"calls its cell as {called}: it must take these" in "".join(caught.value.__notes__)

    def broken(z, x):
        return len(1)

    with pytest.raises(TypeError, match="has no len") as caught:
        DEQ(broken, gradient=gradient)(x)
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(2)], ids=str)
def test_cells_that_return_other_parts_are_refused(gradient):
    x = random(4, 7)
    for cell, error, message in (
        (lambda z, x: z[0], TypeError, "the cell returned a Tensor; z0 is a tuple of 2 tensors"),
        (lambda z, x: (z[0], None), TypeError, "must return a tuple of tensors"),
        (lambda z, x: (*z, x), ValueError, "it must return the shapes it is given"),
        (lambda z, x: z[::-1], ValueError, r"shapes \[\(4, 3\), \(4, 2, 2\)\] to \[\(4, 2, 2\), \(4, 3\)\]"),
    ):
        with pytest.raises(error, match=message):
            DEQ(cell, gradient=gradient)(x, z0=zeros_of_two_parts(4))
    with pytest.raises(TypeError, match="returned a tuple") as caught:
        DEQ(lambda z, x: (z, z), gradient=gradient)(x)
    assert "layer(x, z0=(z1, z2))" in "".join(caught.value.__notes__)


def test_a_part_that_starts_at_zero_may_grow():
    """Its first change was 0, and so was what it was allowed to grow to."""
    (first, second), solution = DEQ(lambda z, x: (0.5 * z[1] + x, 0.5 * z[0]), EXACT[0])(
        x := random(3, 2), z0=(torch.zeros_like(x), torch.zeros_like(x))
    )
    assert solution.converged.all() and torch.allclose(first, x / 0.75) and torch.allclose(second, x / 1.5)
    up = DEQ(lambda z, x: (0.5 * z[0], 9.0 * z[1] + x), FixedPointIteration(1e-6, 90), on_failure="ignore")
    assert (up(x, z0=(x, torch.zeros_like(x)))[1].status == Status.DIVERGED).all()


# ---- transforms of torch


# Of torch's own forward mode.
scripted = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")

TRANSFORMS = {
    "vmap": (r"put the\s+mapped axis into the rows", lambda f, x: torch.func.vmap(lambda x: f(x.unsqueeze(0))[0])(x)),
    "grad": (r"use backward\(\)", lambda f, x: torch.func.grad(lambda x: f(x).sum())(x)),
    "vjp": (r"use backward\(\)", lambda f, x: torch.func.vjp(f, x)[1](x)[0]),
    "jacrev": (r"nclib\.deq\.row_jacobians", lambda f, x: torch.func.jacrev(f)(x)),
    "hessian": (r"use backward\(\)", lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x)),
    "jvp": (r"use torch\.autograd\.functional\.jvp", lambda f, x: torch.func.jvp(f, (x,), (x,))[1]),
    "jacobian by jvp": (
        r"nclib\.deq\.row_jacobians",
        lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True, strategy="forward-mode"),
    ),
}


@scripted
@pytest.mark.parametrize("gradient", [Implicit(), Neumann(3), Phantom(), Reversible(3)], ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torch_are_refused_with_what_to_use_instead(name, gradient):
    message, transform = TRANSFORMS[name]
    layer, _ = tanh_layer(gradient)
    with pytest.raises(RuntimeError, match=message) as caught:
        transform(lambda x: layer(x)[0], random(2, 3))
    assert "cannot pass through" in str(caught.value) and not hasattr(caught.value, "__notes__")


@scripted
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torch_pass_through_unrolled_steps(name):
    (layer, a), x = tanh_layer(Unrolled(3)), random(2, 3)

    def by_hand(x):
        z = x
        for _ in range(3):
            z = torch.tanh(z @ a.T) + x
        return z

    transform = TRANSFORMS[name][1]
    assert torch.allclose(transform(lambda x: layer(x)[0], x), transform(by_hand, x), rtol=0, atol=1e-12)


def test_transforms_in_the_parameters_or_in_what_a_callable_closes_over_are_refused():
    x, layer = random(2, 4), DEQ(TanhCell())
    with pytest.raises(RuntimeError, match=r"torch\.func\.grad.*cannot pass"):
        torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,))[0].sum())(dict(layer.named_parameters()))
    for transform, name in ((torch.func.grad, "grad"), (torch.func.vmap, "vmap")):
        w = torch.zeros(4, 4).double() if name == "grad" else torch.zeros(2, 4, 4).double()
        with pytest.raises(RuntimeError, match=rf"torch\.func\.{name}.*cannot pass"):
            transform(lambda w: DEQ(lambda z, x: torch.tanh(z @ w) + x)(x)[0].sum())(w)
    outside, _ = tanh_layer(Implicit())  # nothing of it is transformed
    x = random(2, 3)
    with torch.no_grad():
        doubled = torch.func.vmap(lambda scale: scale * outside(x)[0])(torch.ones(2).double())
    assert torch.equal(doubled[1], outside(x)[0])


@pytest.mark.parametrize("gradient", [Implicit(), Neumann(3), Phantom(), Reversible(3)], ids=str)
def test_vectorised_backward_passes_work_or_are_refused(gradient):
    (layer, _), x = tanh_layer(gradient), random(2, 3)

    def jacobian(vectorize):
        return torch.autograd.functional.jacobian(lambda x: layer(x)[0], x, vectorize=vectorize)

    if isinstance(gradient, Implicit):
        with pytest.raises(RuntimeError, match=r"vectorised backward pass.*nclib\.deq\.row_jacobians"):
            jacobian(True)
        y = x.clone().requires_grad_()
        with pytest.raises(RuntimeError, match="is_grads_batched"):
            torch.autograd.grad(layer(y)[0], y, torch.eye(6).double().view(6, 2, 3), is_grads_batched=True)
    else:
        assert torch.allclose(jacobian(True), jacobian(False))


def test_the_recommended_ways_give_the_derivatives():
    (layer, _), x, v = tanh_layer(Implicit()), random(2, 3), random(2, 3, seed=9)
    f = lambda x: layer(x)[0]  # noqa: E731
    whole = torch.autograd.functional.jacobian(f, x)
    assert torch.allclose(torch.autograd.functional.jvp(f, x, v)[1], torch.einsum("bidj,dj->bi", whole, v))
    assert torch.allclose(torch.autograd.functional.vjp(f, x, v)[1], torch.einsum("bidj,bi->dj", whole, v))
    jacobians = row_jacobians(layer, x)
    assert torch.allclose(jacobians, torch.stack([whole[b, :, b] for b in range(2)]), rtol=0, atol=1e-9)


# ---- torch.compile of a network around the layer


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 2)
        self.layer = DEQ(TanhCell(dtype=torch.float32), Anderson(1e-3, 30))

    def forward(self, x):
        return self.after(torch.relu(self.layer(torch.relu(self.before(x)))[0]))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # which torch hides
def test_a_compiled_network_breaks_at_the_layer_and_nowhere_else(caplog):
    """Its solver was traced piece by piece, with warnings that the limit of recompilations was hit."""
    torch._dynamo.reset()
    graphs, network = [], Around()

    def backend(graph, examples):
        graphs.append([node for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    compiled = torch.compile(network, backend=backend)
    for rows in (3, 5, 8, 2):
        x = random(rows, 4, dtype=torch.float32)
        got, expected = compiled(x), network(x)
        assert torch.equal(got, expected)
        grads = (torch.autograd.grad(t.sum(), network.before.weight)[0] for t in (got, expected))
        assert torch.equal(*grads)
    assert 2 <= len(graphs) <= 4, "before and after, once for a shape and once for any"
    assert not [record for record in caplog.records if record.levelno >= 30 and "torch._dynamo" in record.name]
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"DEQ\._call"):
        torch.compile(network, backend=backend, fullgraph=True)(x)


def test_export_is_refused():
    ours = r"torch\.export cannot record an equilibrium layer"
    with pytest.raises(RuntimeError, match=ours if hasattr(torch.compiler, "is_exporting") else "skip function"):
        torch.export.export(Around(), (random(3, 4, dtype=torch.float32),))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # which torch hides
@pytest.mark.slow
def test_a_network_of_many_layers_compiles_without_warnings(caplog):
    torch._dynamo.reset()
    compiled = torch.compile(nn.Sequential(*(nn.Sequential(Around(), nn.Linear(2, 4)) for _ in range(10))))
    for rows in range(2, 12):
        compiled(random(rows, 4, dtype=torch.float32)).sum().backward()
    assert not [record for record in caplog.records if record.levelno >= 30 and "torch._dynamo" in record.name]


def test_the_compiler_is_not_imported_until_it_is_asked_for():
    code = "import sys, torch; from nclib import DEQ; DEQ(lambda z, x: 0.5 * z + x)(torch.ones(2, 3)); "
    code += "sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_state_and_its_evidence_are_one_tensor_as_the_docstring_says():
    layer, x = DEQ(lambda z, x: 0.5 * z + x, Anderson(tol=1e-6)), torch.ones(2, 3)
    with torch.no_grad():
        z, solution = layer(x)
    assert z.data_ptr() == solution.value.data_ptr() and "clone z* before" in DEQ.__doc__


# ---- what is said of a solve that failed


def contracting_by_row(z, x):
    """Factors of 0.1 and of 0.999: of two rows one is solved in 20 steps."""
    return x * z + 1.0


BY_ROW = torch.tensor([[0.1], [0.999], [0.999], [0.2]]).double()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("returns", [True, False])
def test_a_solve_that_failed_warns_once_a_layer_in_training_and_in_evaluation(train, returns):
    """A network whose weights were NaN looked healthy in evaluation."""
    layer = DEQ(contracting_by_row, FixedPointIteration(1e-9, 20), return_solution=returns).train(train)
    said = r"forward solve: 2 of 4 rows missed tol=1e-09, worst relative residual .*best iterate\. Allow more max_steps"
    with torch.no_grad(), pytest.warns(ForwardNotConverged, match=said) as caught:
        layer(BY_ROW)
    assert len(caught) == 1 and caught[0].filename == __file__, "the line that calls the layer"
    assert layer.last_solution.converged.tolist() == [True, False, False, True]
    layer(BY_ROW)  # once
    layer.on_failure = "warn"
    with pytest.warns(ForwardNotConverged):
        layer(BY_ROW)
    DEQ(contracting_by_row, Broyden(1e-9, 100))(BY_ROW)  # solved


def test_a_failed_solve_raises_or_is_ignored_where_that_is_asked_for():
    layer = DEQ(contracting_by_row, FixedPointIteration(1e-9, 20), on_failure="ignore")
    _, solution = layer(BY_ROW)
    layer.on_failure = "raise"
    for _ in range(2):
        with pytest.raises(ForwardNotConverged, match="2 of 4 rows"):
            layer(BY_ROW)
        assert torch.equal(layer.last_solution.residual, solution.residual), "the evidence is there after the error"
    layer = DEQ(contracting_by_row, Broyden(1e-9, 99), Implicit(FixedPointIteration(1e-9, 20)), on_failure="raise")
    with pytest.raises(BackwardNotConverged, match="2 of 4 rows"):
        layer(BY_ROW.clone().requires_grad_())[0].sum().backward()
    for make in (lambda: DEQ(TanhCell(), on_failure="error"), lambda: setattr(layer, "on_failure", None)):
        with pytest.raises(ValueError, match="allowed are 'warn', 'raise' and 'ignore'"):
            make()


def test_a_broken_network_is_nan_and_said_to_be():
    layer = DEQ(TanhCell()).eval()
    with torch.no_grad():
        layer.cell.w.fill_(torch.nan)
        with pytest.warns(ForwardNotConverged, match=r"Of 3 no evaluation was finite.*look for NaN and inf"):
            z, solution = layer(random(3, 4))
    assert z.isnan().all() and solution.status.tolist() == [Status.DIVERGED] * 3


@pytest.mark.parametrize("parts", [False, True])
def test_a_cell_that_draws_at_each_call_is_told_why_it_has_no_fixed_point(parts):
    drop = nn.functional.dropout
    if parts:
        layer = DEQ(lambda z, x: (drop(0.5 * z[0] + x), 0.5 * z[1]), Anderson(1e-4, 30))
        options = {"z0": (torch.zeros(8, 6).double(), torch.zeros(8, 2).double())}
    else:
        layer, options = DEQ(lambda z, x: drop(0.5 * z + x), Anderson(1e-4, 30)), {}
    with pytest.warns(ForwardNotConverged, match=r"another value each time.*nn\.functional\.dropout.*args=\(mask,\)"):
        layer(random(8, 6), **options)


def test_steps_of_a_fixed_number_are_no_failure():
    for rule in (Unrolled(2), Reversible(2)):
        _, solution = DEQ(TanhCell(), gradient=rule, on_failure="raise")(random(3, 4))
        assert not solution.converged.any()


def test_failures_that_somebody_counts_are_not_said():
    network = nn.Sequential(DEQ(contracting_by_row, FixedPointIteration(1e-9, 20), return_solution=False))
    with failures_counted(network):
        network(BY_ROW)
    assert network[0].on_failure == "warn"
    with pytest.warns(ForwardNotConverged):
        network(BY_ROW)


def test_a_compiled_network_says_that_a_solve_failed():
    torch._dynamo.reset()
    network = nn.Sequential(
        nn.Identity(), DEQ(contracting_by_row, FixedPointIteration(1e-9, 20), return_solution=False)
    )
    with torch.no_grad(), pytest.warns(ForwardNotConverged, match="2 of 4 rows"):
        torch.compile(network, backend="eager")(BY_ROW)


def test_the_summary_of_a_solution_is_of_plain_numbers():
    layer = DEQ(contracting_by_row, FixedPointIteration(1e-9, 20), on_failure="ignore")
    told = layer(BY_ROW)[1].summary()
    assert told.pop("worst_residual") == pytest.approx(0.05, rel=0.2)
    assert told == {"rows": 4, "converged": 2, "max_steps": 2, "diverged": 0, "num_evals": 20}
    assert {type(number) for number in layer(BY_ROW)[1].summary().values()} == {int, float}


# ---- a rule for one call


def test_a_rule_for_one_call_takes_the_place_of_the_layers():
    layer, x = DEQ(TanhCell(), EXACT[2]), random(3, 4).requires_grad_()
    for rule in (Neumann(3), Phantom(2), Implicit(EXACT[1]), Unrolled(4), Reversible(4)):
        (z, solution), (other, expected) = layer(x, gradient=rule), with_rule(layer.cell, EXACT[2], rule)(x)
        assert torch.equal(z, other) and torch.equal(solution.trace, expected.trace)
        grads = [torch.autograd.grad(value.sum(), (x, layer.cell.w)) for value in (z, other)]
        assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    assert layer.gradient == Implicit()
    loose = DEQ(TanhCell(), gradient=Unrolled(2))(x, gradient=Phantom(), solver=Broyden(1e-9, 90))
    assert loose[1].converged.all(), "of a call with another rule the solver has something to do"


@pytest.mark.parametrize("rule", [Unrolled(2), Reversible(2)])
@pytest.mark.parametrize("name", ["solver", "eval_solver", "in the call", "of a layer with such a rule"])
def test_a_solver_that_would_do_nothing_is_refused(name, rule):
    """It was taken and ignored."""
    x = random(3, 4)
    calls = {
        "solver": lambda: DEQ(TanhCell(), solver=Broyden(), gradient=rule),
        "eval_solver": lambda: DEQ(TanhCell(), gradient=rule, eval_solver=Broyden()),
        "in the call": lambda: DEQ(TanhCell())(x, solver=Broyden(), gradient=rule),
        "of a layer with such a rule": lambda: DEQ(TanhCell(), gradient=rule)(x, solver=Broyden()),
    }
    with pytest.raises(ValueError, match=r"solver=Broyden.*has nothing to do: gradient=(Unrolled|Reversible)"):
        calls[name]()
    assert "solver=" not in repr(DEQ(TanhCell(), gradient=rule))
    with pytest.raises(TypeError, match="give an Implicit"):
        DEQ(TanhCell())(x, gradient="implicit")


def test_what_counts_as_converged_after_steps_belongs_to_their_rule():
    x = random(3, 4)
    for rule in (Unrolled, Reversible):
        loose, tight = (DEQ(TanhCell(), gradient=rule(6, tol=tol))(x)[1] for tol in (1.0, 1e-9))
        assert loose.converged.all() and not tight.converged.any()
        for tol in (0, -1.0, torch.inf, "1"):
            with pytest.raises(ValueError, match="tol must be a finite number above 0"):
                rule(6, tol=tol)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Anderson(m=5), "Anderson has no option 'm'; it takes tol, max_steps, history, ridge, damping"),
        (lambda: Broyden(damping=0.5), "Broyden has no option 'damping'; it takes tol, max_steps, history"),
        (lambda: Phantom(tau=0.5), "Phantom has no option 'tau'; it takes steps, damping"),
        (lambda: Implicit(tol=1e-3), "Implicit has no option 'tol'; it takes solver, steps"),
    ],
)
def test_an_unknown_option_is_answered_with_those_there_are(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_state_with_names_is_asked_for_as_a_tuple():
    x = random(3, 4)
    start = lambda x: {"a": torch.zeros_like(x), "b": torch.zeros_like(x)}  # noqa: E731
    for call in (lambda: DEQ(TanhCell())(x, z0=start(x)), lambda: DEQ(TanhCell(), z0=start)(x)):
        with pytest.raises(TypeError, match=r"z0 is a dict.*z0=tuple\(state\.values\(\)\)"):
            call()


def test_a_start_made_of_x_in_another_shape_than_the_state_is_told_so():
    mix = random(5, 3, seed=4)
    with pytest.raises((RuntimeError, ValueError)) as caught:
        DEQ(lambda z, x: torch.tanh(0.3 * z + x @ mix.T), z0=torch.zeros_like)(random(2, 3))
    assert "a state (2, 3) of x (2, 3). If the state has another shape" in "".join(caught.value.__notes__)


# ---- states on the way


@pytest.mark.parametrize("rows", [1, 4])
def test_states_on_the_way_are_those_of_the_trajectory(rows):
    x, seen = BY_ROW[:rows], []

    def cell(z, x):
        seen.append(z)
        return contracting_by_row(z, x)

    def iterate(count):
        z = x
        for _ in range(count):
            z = contracting_by_row(z, x)
        return z

    layer = DEQ(cell, FixedPointIteration(1e-12, 40), on_failure="ignore")
    (five, ten, late, last), solution = layer(x, at=[5, 10, 99])
    assert torch.equal(five, iterate(5)) and torch.equal(ten, iterate(10))
    assert torch.equal(last, layer(x)[0]) and torch.equal(late, last) and torch.equal(solution.value, last)
    for solver in EXACT[1:]:
        seen.clear()
        (two, one, last), solution = DEQ(lambda z, x: cell(z, x), solver)(x[:1], at=(2, 1))
        assert torch.equal(torch.cat((one, two)), torch.cat(seen[1:3])) and solution.converged.all()
    states = DEQ(cell, FixedPointIteration(1e-12, 40), return_solution=False, on_failure="ignore")(x, at=range(1, 3))
    assert isinstance(states, list) and len(states) == 3 and torch.equal(states[1], iterate(2))
    assert len(DEQ(cell, FixedPointIteration(1e-2, 900))(x, at=[])[0]) == 1


def test_a_row_that_has_stopped_has_its_final_state_on_the_way():
    slow = lambda z, x: 0.5 * torch.tanh(z) * x + 0.1 * torch.sin(3 * z) + x  # noqa: E731
    x = random(6, 3) * torch.logspace(-3, 1, 6).double().unsqueeze(1)
    (state, last), solution = DEQ(slow, Anderson(1e-9, 90))(x, at=[6])
    stopped = solution.steps <= 7  # the seventh evaluation measured what there was after six
    assert stopped.any() and not stopped.all()
    assert torch.equal((state == last).all(1), stopped)


@pytest.mark.parametrize("rule", [Unrolled(8), Implicit(), Phantom(2), Neumann(3)], ids=str)
def test_a_loss_on_the_way_has_the_gradient_of_the_rule_at_each_state(rule):
    cell, x = TanhCell(), random(3, 4, seed=3).requires_grad_()
    inputs, weights = (x, cell.w, cell.u), random(3, 3, 4, seed=7)
    layer = with_rule(cell, FixedPointIteration(1e-12, 200), rule)
    states, _ = layer(x, at=[2, 5])
    got = torch.autograd.grad(sum((w * z).sum() for w, z in zip(weights, states, strict=True)), inputs)

    def iterate(z, count):
        for _ in range(count):
            z = cell(z, x)
        return z

    if isinstance(rule, Unrolled):
        expected = [iterate(x, 2), iterate(x, 5), iterate(x, 8)]
    else:
        expected = []
        for state in states:
            terms = {Implicit: 1 if state is not states[-1] else 200, Phantom: 2, Neumann: 3}[type(rule)]
            at = state.detach().requires_grad_()
            fz = cell(at, x)
            g = u = weights[len(expected)]
            for _ in range(terms - 1):
                u = g + torch.autograd.grad(fz, at, u, retain_graph=True)[0]
            expected.append((fz, u))
        loss = sum((u * fz).sum() for fz, u in expected)
    if isinstance(rule, Unrolled):
        loss = sum((w * z).sum() for w, z in zip(weights, expected, strict=True))
    for a, b in zip(got, torch.autograd.grad(loss, inputs), strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


def test_states_on_the_way_of_several_tensors_and_impossible_ones():
    cell, x = TwoPartCell(), random(4, 7, seed=2)
    layer = DEQ(cell, EXACT[0])
    ((first, second), last), _ = layer(x, z0=zeros_of_two_parts(4), at=[1])
    expected = cell(zeros_of_two_parts(4), x)
    assert torch.equal(first, expected[0]) and torch.equal(second, expected[1]) and len(last) == 2
    for at in ([0], [2.0], 5, [True], "5"):
        with pytest.raises(ValueError, match=r"such as at=\[5, 10\]"):
            layer(x, z0=zeros_of_two_parts(4), at=at)
    with pytest.raises(ValueError, match=r"Reversible.*keeps no states"):
        layer(x, z0=zeros_of_two_parts(4), at=[1], gradient=Reversible(3))
