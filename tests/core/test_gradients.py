"""Gradients of the equilibrium layer against finite differences and closed forms, and in use."""

import warnings

import pytest
import torch
from cells import EXACT, ConvCell, TanhCell, linear_layer, random, with_rule
from marks import slow
from torch import nn
from torch.autograd import gradcheck
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from nclib.deq import DEQ, BackwardNotConverged, Implicit, Neumann, Phantom, Reversible, Unrolled, row_jacobians
from nclib.solver import Broyden, FixedPointIteration


@pytest.mark.parametrize("solver", [EXACT[1], *slow(EXACT[0], EXACT[2])], ids=lambda s: type(s).__name__)
def test_gradients_through_every_solver(solver):
    cell = TanhCell()
    layer, x = DEQ(cell, solver), random(3, 4, seed=3).requires_grad_()

    def value(x, *parameters):
        return layer(x)[0]

    inputs = (x, *cell.parameters())
    assert gradcheck(value, inputs)


@pytest.mark.parametrize("terms", [1, 2, 5])
def test_neumann_equals_its_series(terms):
    layer, a = linear_layer(Neumann(terms))
    x, g = random(4, 3, seed=6).requires_grad_(), random(4, 3, seed=7)
    z, solution = layer(x)
    z.backward(g)
    u = sum(g @ torch.linalg.matrix_power(a.detach(), i) for i in range(terms))
    assert torch.allclose(x.grad, u, rtol=0, atol=1e-12)
    assert torch.allclose(a.grad, u.T @ solution.value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps, damping", [(1, 0.0), (1, 0.3), (3, 0.0), (4, 0.6)])
def test_phantom_equals_its_series_and_backpropagation_through_damped_steps(steps, damping):
    layer, a = linear_layer(Phantom(steps, damping))
    x, g = random(4, 3, seed=6).requires_grad_(), random(4, 3, seed=7)
    z, solution = layer(x)
    z.backward(g)
    m = damping * torch.eye(3).double() + (1 - damping) * a.detach()
    u = (1 - damping) * sum(g @ torch.linalg.matrix_power(m, i) for i in range(steps))
    assert torch.allclose(x.grad, u, rtol=0, atol=1e-12)
    unrolled, y = solution.value, x.detach().requires_grad_()
    for _ in range(steps):
        unrolled = damping * unrolled + (1 - damping) * layer.cell(unrolled, y)
    ga, gy = torch.autograd.grad(unrolled, (a, y), g)
    assert torch.allclose(x.grad, gy, rtol=0, atol=1e-10) and torch.allclose(a.grad, ga, rtol=0, atol=1e-10)


@pytest.mark.parametrize("gradient", [Implicit(), Neumann(4), Phantom(3, 0.4), Reversible(3)], ids=str)
def test_a_second_derivative_is_refused_and_not_wrong(gradient):
    x = random(3, 4).requires_grad_()
    z, _ = with_rule(TanhCell(), EXACT[2], gradient)(x)
    with pytest.raises(RuntimeError, match="not differentiated twice"):
        torch.autograd.grad(z.sum(), x, create_graph=True)


def test_unrolled_is_backpropagation_through_the_steps():
    cell, x = TanhCell(), random(3, 4, seed=3).requires_grad_()
    z, solution = DEQ(cell, gradient=Unrolled(3))(x)
    by_hand = cell(cell(cell(x, x), x), x)
    assert torch.equal(z, by_hand) and torch.equal(solution.value, z) and not solution.value.requires_grad
    got = torch.autograd.grad(z.sum(), (x, cell.w))
    torch.testing.assert_close(got, torch.autograd.grad(by_hand.sum(), (x, cell.w)), rtol=0, atol=0)
    assert solution.num_evals == 4 and solution.trace.shape == (4, 3) and solution.steps.tolist() == [4] * 3
    true = (cell(z, x) - z).norm(dim=1) / (cell(z, x).norm(dim=1) + 1e-8)
    assert torch.allclose(solution.residual, true, rtol=0, atol=1e-12)


def test_gradients_follow_the_recording_and_not_the_mode():
    layer, x = DEQ(ConvCell()), random(4, 8, 4, 4, dtype=torch.float32)
    grads = []
    for mode in (True, False):
        layer.train(mode).zero_grad()
        layer(x)[0].square().sum().backward()
        grads.append(layer.cell.conv1.weight.grad.clone())
        with torch.no_grad():
            z, solution = layer(x)
        assert not z.requires_grad and z.grad_fn is None and solution.converged.any()
    assert torch.equal(*grads) and grads[0].abs().sum() > 0


def test_small_and_zero_cotangents_are_solved_like_any_other():
    """Rows are scaled to norm 1 first: a constant in a denominator must not end the solve early."""
    layer, a = linear_layer(Implicit(), rho=0.95)
    x = random(4, 3, seed=6).requires_grad_()
    sizes = [1.0, 1e-12, 0.0, 1e-200, 1e200]  # the squares of the last two are 0 and ∞
    x = torch.cat((x, x[:1])).detach().requires_grad_()
    g = random(5, 3, seed=7) * torch.tensor(sizes, dtype=torch.float64).unsqueeze(1)
    assert (g[[3, 4]] != 0).all()
    (got,) = torch.autograd.grad(layer(x)[0], x, g)
    exact = torch.linalg.solve(torch.eye(3).double() - a.detach().T, g.T).T
    assert torch.equal(got[2], torch.zeros(3).double())
    for row in (0, 1, 3, 4):
        assert torch.allclose(got[row] / sizes[row], exact[row] / sizes[row], rtol=1e-8)


def test_a_backward_solve_that_fails_warns_once_and_says_so():
    """Such a failure gave a gradient that was wrong by 59 % without a word."""
    layer, _ = linear_layer(Implicit(FixedPointIteration(1e-10, 2)), rho=0.99)
    x = random(4, 3, seed=6).requires_grad_()
    with pytest.warns(BackwardNotConverged, match=r"rows missed tol=1e-10"):
        layer(x)[0].sum().backward()
    assert not layer.last_backward.converged.all() and layer.last_backward.num_evals == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)[0].sum().backward()
    layer.told.clear()
    with pytest.warns(BackwardNotConverged):
        layer(x)[0].sum().backward()


@pytest.mark.parametrize("rule", [Implicit(), Neumann(3), Phantom(2)], ids=str)
def test_a_row_that_is_nan_and_left_out_of_the_loss_adds_nothing(rule):
    """Zero times NaN made the gradients of all parameters NaN."""
    grads, x = [], random(4, 4)
    x[1] = torch.nan
    for rows in (x, x[[0, 2, 3]]):
        layer = DEQ(TanhCell(), EXACT[2], rule, on_failure="ignore")
        z, solution = layer(rows.requires_grad_())
        z[solution.converged].square().sum().backward()
        grads.append(layer.cell.w.grad)
    assert torch.allclose(*grads, rtol=1e-10) and (rows.grad != 0).all() and (x.grad[1] == 0).all()
    z, solution = layer(torch.full_like(x, torch.nan))
    assert torch.autograd.grad(z[solution.converged].sum(), layer.cell.w, allow_unused=True) == (None,), "of NaN alone"


def test_rows_of_the_backward_solve_leave_the_work():
    """Rows of very different contraction, the Jacobian evaluated afresh each time half of them are done."""
    sizes = []

    def cell(z, x):
        sizes.append(len(z))
        return torch.sin(z) * x[:, :1] + x

    x = torch.cat((torch.full((12, 1), 0.01), torch.full((4, 1), 0.9)))
    x = torch.cat((x, random(16, 3, dtype=torch.float32)), 1).double().requires_grad_()
    z, _ = DEQ(cell, FixedPointIteration(1e-12, 1000))(x)
    sizes.clear()
    (got,) = torch.autograd.grad(z.sum(), x)
    assert sizes == [16, 4, 2, 1]
    y = x.detach().requires_grad_()
    unrolled = y
    for _ in range(1000):
        unrolled = cell(unrolled, y)
    assert torch.allclose(got, torch.autograd.grad(unrolled.sum(), y)[0], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("gradient", [Implicit(), Neumann(60), Phantom(60)], ids=str)
def test_parameters_given_by_functional_call_are_those_of_the_backward_pass(gradient):
    """The parameters given got a gradient of 0, and x one that mixed both sets."""
    own, other = TanhCell(), TanhCell(rho=0.4)
    x = random(3, 4, seed=3).requires_grad_()
    given = {f"cell.{name}": p.detach().clone().requires_grad_() for name, p in other.named_parameters()}
    z, _ = torch.func.functional_call(with_rule(own, EXACT[2], gradient), given, (x,))
    expected, _ = with_rule(other, EXACT[2], gradient)(x)
    assert torch.equal(z, expected)
    got = torch.autograd.grad(z.square().sum(), (x, *given.values()))
    for a, b in zip(got, torch.autograd.grad(expected.square().sum(), (x, *other.parameters())), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-13) and b.abs().sum() > 0


class WithContext(TanhCell):
    def forward(self, z, x):
        return super().forward(z, x + self.context)


def test_a_differentiable_tensor_that_a_module_cell_does_not_own_is_refused():
    """Its gradient was lost without a word."""
    cell, weight = WithContext(), random(4).requires_grad_()
    cell.context = torch.sin(weight)
    z, _ = DEQ(cell, EXACT[2])(random(3, 4))
    with pytest.raises(RuntimeError, match=r"shape \(4,\).*args=\(tensor,\)"):
        z.sum().backward()
    cell.requires_grad_(False)
    for layer in (DEQ(cell, EXACT[2]), DEQ(cell, gradient=Reversible(5))):
        with pytest.raises(RuntimeError, match="would be lost"):  # no backward pass would come here
            layer(random(3, 4))
    cell.requires_grad_(True)
    cell.context = torch.sin(weight).detach()
    DEQ(cell, EXACT[2])(random(3, 4))[0].sum().backward()


def test_an_implicit_backward_keeps_at_most_two_evaluations_of_the_cell():
    """Whatever the number of steps, and while rows leave and the Jacobian is taken afresh for the rest. Parameters are
    there anyway and not counted."""
    cell = ConvCell()
    own = {p.data_ptr() for p in cell.parameters()}
    x = (random(16, 8, 4, 4, dtype=torch.float32) * torch.logspace(-1, 1, 16).view(-1, 1, 1, 1)).requires_grad_()
    alive, most = [0], [0]

    class Kept:
        def __init__(self, t):
            self.t = t.detach()  # an output holds the graph that holds it
            self.size = t.numel() * (t.data_ptr() not in own)
            alive[0] += self.size
            most[0] = max(most[0], alive[0])

        def __del__(self):
            alive[0] -= self.size

    def peak(work):
        alive[0] = most[0] = 0
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.t):
            work()
        return most[0]

    one = peak(lambda: cell(x, x))
    for steps in (5, 40):
        layer = DEQ(cell, Broyden(1e-2, steps), Implicit(Broyden(1e-4, steps)))
        layer.on_failure = "ignore"
        assert one < peak(lambda: layer(x)[0].sum().backward()) <= 2 * one  # noqa: B023


@pytest.mark.parametrize("gradient", [Implicit(), Phantom(), Unrolled(3), Reversible(3)], ids=str)
def test_layers_can_be_checkpointed(gradient):
    layer, x = with_rule(TanhCell(), EXACT[2], gradient), random(3, 4).requires_grad_()
    (expected,) = torch.autograd.grad(layer(x)[0].sum(), x)
    kept = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(kept.sum(), x)[0], expected)


def reversible_by_hand(cell, z, x, steps, beta):
    y = z
    for _ in range(steps):
        y = (1 - beta) * y + beta * cell(z, x)
        z = (1 - beta) * z + beta * cell(y, x)
    return z


@pytest.mark.parametrize("steps, beta", [(1, 0.5), (6, 0.5), (5, 0.8), (5, 1.4)])
@pytest.mark.parametrize("module", [True, False])
def test_reversible_steps_have_the_gradient_of_backpropagation_through_them(module, steps, beta):
    cell, x = TanhCell(), random(3, 4, seed=3).requires_grad_()
    z0 = random(3, 4, seed=4).requires_grad_()
    layer = DEQ(cell if module else cell.forward, gradient=Reversible(steps, beta))
    z, solution = layer(x, z0=z0)
    by_hand = reversible_by_hand(cell, z0, x, steps, beta)
    assert torch.equal(z, by_hand) and torch.equal(solution.value, z) and not solution.value.requires_grad
    g, inputs = random(3, 4, seed=5), (x, z0, cell.w, cell.u)
    got = torch.autograd.grad(z, inputs, g)
    torch.testing.assert_close(got, torch.autograd.grad(by_hand, inputs, g), rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        alone, found = layer(x, z0=z0)
    assert torch.equal(alone, z) and not alone.requires_grad
    assert found.num_evals == 2 * steps + 1 and found.trace.shape == (2 * steps + 1, 3)
    true = (cell(z, x) - z).norm(dim=1) / (cell(z, x).norm(dim=1) + 1e-8)
    assert torch.allclose(found.residual, true.detach(), rtol=0, atol=1e-12)


def test_too_many_reversible_steps_warn():
    layer, x = DEQ(TanhCell(), gradient=Reversible(40, beta=0.9)), random(3, 4).requires_grad_()
    z, _ = layer(x)
    with pytest.warns(BackwardNotConverged, match=r"3 of 3 rows missed.*Take fewer steps"):
        z.sum().backward()
    assert not layer.last_backward.converged.any() and layer.last_backward.num_evals == 80
    layer(x)[0].sum().backward()  # once


class GainCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.eye(4))
        self.register_buffer("gain", torch.tensor(0.5))

    def forward(self, z, x):
        return torch.tanh(self.gain * (z @ self.weight) + x)


RULES = [Implicit(), Neumann(3), Phantom(2), Reversible(3)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_buffer_that_changes_before_the_backward_pass_is_refused(rule):
    layer = with_rule(GainCell(), FixedPointIteration(tol=1e-6, max_steps=50), rule)
    z, _ = layer(torch.ones(2, 4))
    layer.cell.gain.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    gradients = []
    for another in (False, True):
        layer.zero_grad()
        z, _ = layer(torch.ones(2, 4))
        if another:
            layer.cell.gain = torch.tensor(0.1)  # the old one is still there to be computed with
        z.sum().backward()
        gradients.append(layer.cell.weight.grad)
    assert torch.equal(*gradients)


def test_few_products_on_purpose_do_not_warn_and_leave_their_error_on_record():
    a = 0.5 * torch.linalg.qr(random(6, 6, seed=1))[0]
    for steps in (1, 2, 5):
        layer, x = DEQ(lambda z, x: z @ a.T + x, EXACT[2], Implicit(FixedPointIteration(1e-12), steps)), random(3, 6)
        layer.on_failure, g = "raise", random(3, 6, seed=2)
        (got,) = torch.autograd.grad(layer(x.requires_grad_())[0], x, g)
        record, exact = layer.last_backward, torch.linalg.solve(torch.eye(6).double() - a.T, g.T).T
        assert record.num_evals == steps and not record.converged.any()
        size = (g + got @ a).norm(dim=1)
        assert torch.allclose(record.residual, (g + got @ a - got).norm(dim=1) / size, rtol=1e-6)
        assert ((got - exact).norm(dim=1) <= record.residual * size / (1 - 0.5) * (1 + 1e-9)).all(), "as documented"
        series = torch.autograd.grad(layer(x, gradient=Neumann(steps))[0], x, g)[0]
        assert torch.allclose(got, series, rtol=0, atol=1e-12)
    for steps in (0, 2.0, True):
        with pytest.raises(ValueError, match="steps must be"):
            Implicit(steps=steps)
    assert Implicit(steps=5).solver is None


@pytest.mark.parametrize("rule", [Implicit(), Phantom(2), Reversible(6), Unrolled(6)], ids=str)
@pytest.mark.parametrize("module", [True, False])
def test_parametrised_weights_that_are_cached_have_their_gradient(rule, module):
    """Computed within the solve, which records nothing, they came back without one, and the backward pass used them."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4).double())

        def forward(self, z, x):
            return torch.tanh(0.3 * self.linear(z) + x)

    torch.manual_seed(0)
    cell, x = Cell(), random(3, 4)
    layer, new = (with_rule(cell if module else cell.forward, EXACT[2], rule) for _ in range(2))
    wanted = torch.autograd.grad(layer(x)[0].sum(), list(cell.parameters()))
    with nn.utils.parametrize.cached():
        row_jacobians(lambda x: cell(x, x), x)
        assert cell(x, x).requires_grad, "at its first evaluation, which records nothing, neither"
    with nn.utils.parametrize.cached():
        with torch.no_grad():
            layer(x)  # leaves nothing in the cache
        got = torch.autograd.grad(new(x)[0].sum(), list(cell.parameters()), retain_graph=True)
        own = torch.autograd.grad(cell(x, x).sum(), list(cell.parameters()))
    assert all(g.abs().sum() > 0 for g in own)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=0) and b.abs().sum() > 0 for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("rule", [Implicit(), Phantom(2), Reversible(6)], ids=str)
def test_a_leaf_that_other_rows_than_the_first_use_is_refused_of_a_function_and_learnt_of_a_module(rule):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4).double() for _ in range(2))

        def forward(self, z, x, which):
            value = [torch.tanh(0.3 * one(z) + x) for k, one in enumerate(self.experts) if (which == k).any()]
            return torch.where(which[:, None] == 0, value[0], value[-1])

    cell, x, args = Cell(), random(3, 4), (torch.tensor([0, 1, 1]),)
    with_rule(cell, EXACT[2], rule)(x, args=args)[0].sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in cell.parameters())
    with pytest.raises(RuntimeError, match="that the cell does not own would be lost"):
        with_rule(cell.forward, EXACT[2], rule)(x, args=args)[0].sum().backward()


@pytest.mark.parametrize("rule", [Implicit(), Phantom(2), Reversible(6)], ids=str)
def test_a_module_under_two_names_keeps_its_parameters(rule):
    """torch.func.functional_call took its replacement for the original the second time, and never gave it back."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            linear = nn.Linear(4, 4).double()
            self.steps, self.tied = nn.ModuleList([linear, linear]), nn.Linear(4, 4).double()
            self.tied.weight = linear.weight

        def forward(self, z, x):
            for linear in (*self.steps, self.tied):
                z = torch.tanh(0.3 * linear(z) + x)
            return z

    torch.manual_seed(0)
    cell, x = Cell(), random(3, 4)
    layer, weight = with_rule(cell, EXACT[2], rule), cell.steps[0].weight
    for _ in range(2):
        with FlopCounterMode(display=False):  # whose hooks on modules follow no leaf
            (found,) = torch.autograd.grad(layer(x)[0].sum(), weight)
        (exact,) = torch.autograd.grad(layer(x, gradient=Unrolled(60))[0].sum(), weight)
        assert cell.steps[1].weight is cell.tied.weight is weight and isinstance(weight, nn.Parameter)
        if isinstance(rule, Implicit):
            torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-9)
