"""The equilibrium layer: closed forms, finite differences, the rules for the gradient, then use and
guards."""

import copy
import io
import warnings

import pytest
import torch
from cells import EXACT, ConvCell, LinearCell, TanhCell, linear_layer, random, with_rule
from marks import slow
from torch import nn
from torch.autograd import gradcheck
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import nclib as nc
from nclib.deq import (
    DEQ,
    BackwardNotConverged,
    ForwardNotConverged,
    Implicit,
    Neumann,
    Phantom,
    Unrolled,
    jacobian_frobenius_sq,
)
from nclib.solvers import Anderson, Broyden, FixedPointIteration, Status, paper_solver

# Closed forms


@pytest.mark.parametrize("solver", EXACT, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("rho", [0.5, 0.95])
def test_a_linear_cell_has_its_equilibrium_and_gradient_in_closed_form(solver, rho):
    """z* = (I − A)⁻¹ x, u = (I − Aᵀ)⁻¹ g, and the gradients are u for x and u z*ᵀ for A."""
    layer, a = linear_layer(Implicit(), rho, solver)
    x, g = random(4, 3, seed=6).requires_grad_(), random(4, 3, seed=7)
    z, solution = layer(x)
    inverse = torch.linalg.inv(torch.eye(3).double() - a.detach())
    assert solution.converged.all() and torch.equal(z, solution.value)
    assert torch.allclose(z, x @ inverse.T, rtol=1e-9)
    z.backward(g)
    assert torch.allclose(x.grad, g @ inverse, rtol=1e-8)
    assert torch.allclose(a.grad, (g @ inverse).T @ z, rtol=1e-8)


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
    unrolled = solution.value
    y = x.detach().requires_grad_()
    for _ in range(steps):
        unrolled = damping * unrolled + (1 - damping) * layer.cell(unrolled, y)
    grad_a, grad_y = torch.autograd.grad(unrolled, (a, y), g)
    assert torch.allclose(x.grad, grad_y, rtol=0, atol=1e-10)
    assert torch.allclose(a.grad, grad_a, rtol=0, atol=1e-10)


def test_few_products_leave_their_error_on_record_and_do_not_warn():
    a = 0.5 * torch.linalg.qr(random(6, 6, seed=1))[0]
    x, g = random(3, 6).requires_grad_(), random(3, 6, seed=2)
    exact = torch.linalg.solve(torch.eye(6).double() - a.T, g.T).T
    for steps in (1, 2, 5):
        rule = Implicit(FixedPointIteration(1e-12), steps)
        layer = DEQ(lambda z, x: z @ a.T + x, EXACT[2], rule, on_failure="raise")
        (u,) = torch.autograd.grad(layer(x)[0], x, g)
        record = layer.last_backward
        assert record.num_evals == steps and not record.converged.any()
        size = (g + u @ a).norm(dim=1)
        assert torch.allclose(record.residual, (g + u @ a - u).norm(dim=1) / size, rtol=1e-6)
        assert ((u - exact).norm(dim=1) <= record.residual * size / (1 - 0.5) * (1 + 1e-9)).all(), (
            "as documented"
        )
        series = torch.autograd.grad(layer(x, gradient=Neumann(steps))[0], x, g)[0]
        assert torch.allclose(u, series, rtol=0, atol=1e-12)


def test_small_large_and_zero_gradients_are_solved_like_any_other():
    """Rows are scaled to norm 1: a constant in a denominator must not end the solve early."""
    layer, a = linear_layer(Implicit(), rho=0.95)
    sizes = torch.tensor([1.0, 1e-12, 0.0, 1e-200, 1e200], dtype=torch.float64)  # squared: 0 and ∞
    x = random(5, 3, seed=6).requires_grad_()
    g = random(5, 3, seed=7) * sizes.unsqueeze(1)
    (got,) = torch.autograd.grad(layer(x)[0], x, g)
    exact = torch.linalg.solve(torch.eye(3).double() - a.detach().T, g.T).T
    assert torch.equal(got[2], torch.zeros(3).double())
    for row in (0, 1, 3, 4):
        assert torch.allclose(got[row] / sizes[row], exact[row] / sizes[row], rtol=1e-8)


# Finite differences


@pytest.mark.parametrize(
    "solver", [EXACT[1], *slow(EXACT[0], EXACT[2])], ids=lambda solver: type(solver).__name__
)
def test_gradients_are_those_of_finite_differences(solver):
    cell = TanhCell()
    layer = DEQ(cell, solver)
    x = random(3, 4, seed=3).requires_grad_()
    assert gradcheck(lambda x, *parameters: layer(x)[0], (x, *cell.parameters()))


def test_a_state_of_another_shape_needs_its_start():
    mix = random(5, 3, seed=4)
    layer, x = (
        DEQ(lambda z, x: torch.tanh(0.3 * z + x @ mix.T), EXACT[2]),
        random(2, 3).requires_grad_(),
    )
    start = torch.zeros(2, 5).double()
    assert layer(x, z0=start)[0].shape == (2, 5) and gradcheck(lambda x: layer(x, start)[0], (x,))
    with pytest.raises((ValueError, RuntimeError)):
        layer(x)


def test_conditions_stay_with_their_rows():
    """A mask of features that are held at 0, and a gain of each row's own, so that rows leave at
    their own time."""
    a = 0.4 * random(4, 4, seed=1)
    keep = random(6, 4, seed=3) > -0.5
    x = random(6, 4, seed=2).requires_grad_()
    gain = torch.tensor([[0.01], [1.9], [0.2], [1.5], [0.05], [0.8]]).double().requires_grad_()

    def cell(z, x, keep, gain):
        return torch.where(keep, torch.tanh(gain * (z @ a.T)) + x, 0.0)

    layer = DEQ(cell, Broyden(1e-12, 200))
    z, solution = layer(x, args=(keep, gain))
    assert solution.converged.all() and len(set(solution.steps.tolist())) > 2
    for row in range(6):
        alone = slice(row, row + 1)
        assert torch.allclose(
            layer(x[alone], args=(keep[alone], gain[alone]))[0], z[alone], rtol=1e-9
        )
    assert gradcheck(lambda x, gain: layer(x, args=(keep, gain))[0], (x, gain))


# Against plain steps


def test_unrolled_is_backpropagation_through_the_steps():
    cell, x = TanhCell(), random(3, 4, seed=3).requires_grad_()
    z, solution = DEQ(cell, gradient=Unrolled(3))(x)
    by_hand = cell(cell(cell(x, x), x), x)
    assert (
        torch.equal(z, by_hand)
        and torch.equal(solution.value, z)
        and not solution.value.requires_grad
    )
    grads = torch.autograd.grad(z.sum(), (x, cell.w), create_graph=True)
    torch.testing.assert_close(
        grads, torch.autograd.grad(by_hand.sum(), (x, cell.w)), rtol=0, atol=0
    )
    assert torch.autograd.grad(grads[0].sum(), x)[0].abs().sum() > 0, "it is differentiated twice"
    assert (
        solution.num_evals == 4
        and torch.equal(solution.trace, solution.residual[None])
        and solution.steps.tolist() == [4] * 3
    )
    residual = (cell(z, x) - z).norm(dim=1) / (cell(z, x).norm(dim=1) + 1e-8)
    assert torch.allclose(solution.residual, residual, rtol=0, atol=1e-12)


def test_rows_of_the_backward_solve_leave_the_work():
    """Rows of very different contraction, the Jacobian evaluated afresh each time half of them are
    done."""
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


def test_a_rule_for_one_call_takes_the_place_of_the_layers():
    layer, x = DEQ(TanhCell(), EXACT[2]), random(3, 4).requires_grad_()
    for rule in (Neumann(3), Phantom(2), Implicit(EXACT[1]), Unrolled(4)):
        z, solution = layer(x, gradient=rule)
        other, expected = with_rule(layer.cell, EXACT[2], rule)(x)
        assert torch.equal(z, other) and torch.equal(solution.trace, expected.trace)
        grads = [torch.autograd.grad(value.sum(), (x, layer.cell.w)) for value in (z, other)]
        assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    assert layer.gradient == Implicit()
    z, solution = DEQ(TanhCell(), gradient=Unrolled(2))(
        x, gradient=Phantom(), solver=Broyden(1e-9, 90)
    )
    assert solution.converged.all(), "beside another rule the solver has something to do"


def test_a_solver_for_one_call_takes_the_place_of_the_layers():
    layer, x = DEQ(TanhCell(), FixedPointIteration(1e-1)), random(3, 4)
    assert layer(x, solver=Broyden(1e-8))[1].residual.max() <= 1e-8 < layer(x)[1].residual.max()


# The start, the modes and the types


def test_the_start_is_x_or_zeros_or_a_tensor():
    starts = []

    def cell(z, x):
        starts.append(z.clone())
        return 0.5 * torch.tanh(z) + x

    x, given = random(2, 3), random(2, 3, seed=9)
    with torch.no_grad():
        DEQ(cell)(x)
        assert torch.equal(starts[0], x)
        starts.clear()
        DEQ(cell, z0="zeros")(x)
        assert not starts[0].any()
        starts.clear()
        DEQ(cell)(x, given)
        assert torch.equal(starts[0], given)


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


@pytest.mark.parametrize("gradient", [Implicit(), Unrolled(3)], ids=str)
def test_a_bfloat16_input_under_autocast_is_solved_in_float32(gradient):
    w = 0.5 * torch.linalg.qr(random(16, 16, seed=1, dtype=torch.float32))[0]
    dtypes = set()

    def cell(z, x):
        dtypes.update((z.dtype, x.dtype))
        return torch.tanh(z @ w + x)

    layer, x = DEQ(cell, gradient=gradient), random(8, 16).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        z, solution = layer(x)
        same, _ = layer(x.float())
    assert layer.solver == paper_solver() and dtypes == {torch.float32}
    assert torch.equal(z, same) and z.dtype == solution.residual.dtype == torch.float32
    z.square().sum().backward()
    assert x.grad.dtype == torch.bfloat16 and (x.grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize("rule", [Implicit(), Phantom()], ids=str)
def test_weights_that_autocast_keeps_have_their_gradient(rule):
    """Cast in the solve, which records nothing, they would come back without one."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, z, x):
            return 0.3 * torch.tanh(self.linear(z)) + x

    layer = DEQ(Cell(), Broyden(1e-2), rule, on_failure="ignore")
    with torch.autocast("cpu", torch.bfloat16):
        z, _ = layer(random(3, 4, dtype=torch.float32))
    z.sum().backward()
    assert layer.cell.linear.weight.grad.abs().sum() > 0


# What else a network does with its layers


@pytest.mark.parametrize("gradient", [Implicit(), Phantom(), Unrolled(3)], ids=str)
def test_a_layer_can_be_checkpointed(gradient):
    layer, x = with_rule(TanhCell(), EXACT[2], gradient), random(3, 4).requires_grad_()
    (expected,) = torch.autograd.grad(layer(x)[0].sum(), x)
    layer.checked_cells = []  # the first call evaluates the cell once more
    recomputed = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(recomputed.sum(), x)[0], expected)


@pytest.mark.parametrize("gradient", [Implicit(), Neumann(60), Phantom(60)], ids=str)
def test_parameters_given_by_functional_call_are_those_of_the_backward_pass(gradient):
    """The parameters given got a gradient of 0, and x one that mixed both sets."""
    cell, other = TanhCell(), TanhCell(rho=0.4)
    x = random(3, 4, seed=3).requires_grad_()
    given = {
        f"cell.{name}": p.detach().clone().requires_grad_() for name, p in other.named_parameters()
    }
    z, _ = torch.func.functional_call(with_rule(cell, EXACT[2], gradient), given, (x,))
    expected, _ = with_rule(other, EXACT[2], gradient)(x)
    assert torch.equal(z, expected)
    grads = torch.autograd.grad(z.square().sum(), (x, *given.values()))
    wanted = torch.autograd.grad(expected.square().sum(), (x, *other.parameters()))
    for a, b in zip(grads, wanted, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-13) and b.abs().sum() > 0


class NormedCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4).double())

    def forward(self, z, x):
        return torch.tanh(0.3 * self.linear(z) + x)


@pytest.mark.parametrize("rule", [Implicit(), Phantom(2), Unrolled(6)], ids=str)
def test_parametrised_weights_that_are_cached_have_their_gradient(rule):
    """Computed within the solve, which records nothing, they came back without one, and the
    backward pass used them."""
    torch.manual_seed(0)
    cell, x = NormedCell(), random(3, 4)
    layer = with_rule(cell, EXACT[2], rule)
    wanted = torch.autograd.grad(layer(x)[0].sum(), list(cell.parameters()))
    with nn.utils.parametrize.cached():
        with torch.no_grad():
            layer(x)  # leaves nothing in the cache
        grads = torch.autograd.grad(layer(x)[0].sum(), list(cell.parameters()), retain_graph=True)
        outside = torch.autograd.grad(cell(x, x).sum(), list(cell.parameters()))
    assert all(grad.abs().sum() > 0 for grad in outside)
    for a, b in zip(grads, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=0) and b.abs().sum() > 0


def test_pruned_tied_and_frozen_parameters_have_the_gradients_of_plain_steps():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            linear = nn.Linear(4, 4).double()
            self.steps = nn.ModuleList([linear, linear])
            self.tied = nn.Linear(4, 4).double()
            self.tied.weight = linear.weight
            self.pruned = prune.random_unstructured(nn.Linear(4, 4).double(), "weight", 0.5)
            self.frozen = nn.Linear(4, 4).double().requires_grad_(False)

        def forward(self, z, x):
            for linear in (*self.steps, self.tied, self.pruned, self.frozen):
                z = torch.tanh(0.3 * linear(z) + x)
            return z

    torch.manual_seed(0)
    cell, x = Cell(), random(3, 4)
    layer, weight = DEQ(cell, EXACT[2]), cell.steps[0].weight
    learnt = [p for p in cell.parameters() if p.requires_grad]
    for _ in range(2):
        grads = torch.autograd.grad(layer(x)[0].sum(), learnt)
        plain = torch.autograd.grad(layer(x, gradient=Unrolled(60))[0].sum(), learnt)
        torch.testing.assert_close(grads, plain, rtol=1e-6, atol=1e-9)
        assert cell.steps[1].weight is cell.tied.weight is weight and isinstance(
            weight, nn.Parameter
        )


def test_a_hook_on_a_parameter_runs_once():
    layer, x = DEQ(TanhCell(), EXACT[2]), random(3, 4)
    (expected,) = torch.autograd.grad(layer(x)[0].sum(), layer.cell.w)
    layer.cell.w.register_hook(lambda grad: 2 * grad)
    layer(x)[0].sum().backward()
    assert torch.allclose(layer.cell.w.grad, 2 * expected, rtol=1e-12)


def test_a_parameter_that_changes_before_the_backward_pass_is_refused():
    layer = DEQ(TanhCell(), EXACT[2])
    z, _ = layer(random(3, 4))
    with torch.no_grad():
        layer.cell.w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.parametrize("how", ["module", *slow("method", "function")])
def test_a_compiled_cell_is_compiled_few_times_and_gives_the_same_gradients(how):
    torch._dynamo.reset()
    graphs, cell = [], ConvCell()
    x = random(16, 8, 4, 4, dtype=torch.float32) * torch.logspace(-1, 1, 16).view(-1, 1, 1, 1)
    x.requires_grad_()
    solver = Broyden(1e-2, 40)
    expected, _ = DEQ(cell, solver)(x)
    (grad,) = torch.autograd.grad(expected.square().mean(), x)

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    if how == "module":
        compiled = torch.compile(cell, backend=backend)
    elif how == "method":
        compiled = copy.deepcopy(cell)
        compiled.compile(backend=backend)
    else:
        weights = copy.deepcopy(cell).requires_grad_(False)
        compiled = torch.compile(lambda z, x: weights(z, x), backend=backend)
    z, _ = DEQ(compiled, solver)(x)
    assert torch.allclose(z, expected, rtol=1e-3, atol=1e-3)
    assert torch.allclose(torch.autograd.grad(z.square().mean(), x)[0], grad, rtol=1e-2, atol=1e-5)
    assert 1 <= len(graphs) <= 3
    count = len(graphs)
    nc.spectral_radius(lambda z: compiled(z, x), z.detach(), 1)
    assert len(graphs) == count, "it runs eager"


def test_a_cell_with_a_compiled_part_has_the_gradient_that_it_has_without():
    """Compiled code gives its buffers away after one backward pass; a solve makes many."""
    torch._dynamo.reset()
    torch.manual_seed(0)

    class Cell(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, z, x):
            return 0.5 * self.part(z) + x

    part, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double(), random(3, 4)
    grads = []
    for each in (part, torch.compile(part, backend="aot_eager")):
        z, _ = DEQ(Cell(each), EXACT[2])(x)
        grads.append(torch.autograd.grad(z.sum(), part[0].weight)[0])
    assert torch.allclose(*grads, rtol=1e-8)


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # which torch hides
def test_a_compiled_network_gives_what_it_gives_without():
    torch._dynamo.reset()
    layer = DEQ(TanhCell(dtype=torch.float32), Anderson(1e-3, 30), return_solution=False)
    network = nn.Sequential(nn.Linear(4, 4), layer)
    compiled, x = torch.compile(network, backend="eager"), random(3, 4, dtype=torch.float32)
    assert torch.equal(compiled(x), network(x))


def test_copies_and_files_do_not_carry_the_last_batch():
    """A model of 0.2 MB became a file of 32 MB."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 4), DEQ(TanhCell(dtype=torch.float32), Broyden(1e-3), return_solution=False)
    )

    def size():
        file = io.BytesIO()
        torch.save(model, file)
        return file.tell()

    before = size()
    model(torch.ones(2000, 64)).sum().backward()
    assert model[1].last_solution is not None and model[1].last_backward is not None
    model.zero_grad(set_to_none=True)
    assert abs(size() - before) < 100
    average = torch.optim.swa_utils.AveragedModel(model)
    for copied in (copy.deepcopy(model)[1], average.module[1]):
        assert copied.last_solution is None and copied.last_backward is None
    assert model[1].last_solution is not None


def test_data_parallel_says_what_to_use_instead():
    """Its replicas have no parameters, so that gradients would be lost."""
    replica = DEQ(TanhCell(), EXACT[2])._replicate_for_data_parallel()
    with pytest.raises(RuntimeError, match="use DistributedDataParallel"):
        replica(random(3, 4))


def test_an_implicit_backward_keeps_at_most_two_evaluations_of_the_cell():
    """Whatever the number of steps, and while rows leave and the Jacobian is taken afresh."""
    cell = ConvCell()
    parameters = {p.data_ptr() for p in cell.parameters()}
    x = random(16, 8, 4, 4, dtype=torch.float32) * torch.logspace(-1, 1, 16).view(-1, 1, 1, 1)
    x.requires_grad_()
    alive, most = [0], [0]

    class Kept:
        def __init__(self, t):
            self.t = t.detach()  # an output holds the graph that holds it
            self.size = t.numel() * (t.data_ptr() not in parameters)
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
        rule = Implicit(Broyden(1e-4, steps))
        layer = DEQ(cell, Broyden(1e-2, steps), rule, on_failure="ignore")
        assert one < peak(lambda: layer(x)[0].sum().backward()) <= 2 * one  # noqa: B023


# Failed solves


BY_ROW = torch.tensor([[0.1], [0.999], [0.999], [0.2]]).double()


def contracting_by_row(z, x):
    """Factors of 0.1 and of 0.999: of two rows one is solved in 20 steps."""
    return x * z + 1.0


@pytest.mark.parametrize("train", [True, False])
def test_a_solve_that_failed_warns_once_a_layer_in_training_and_in_evaluation(train):
    layer = DEQ(contracting_by_row, FixedPointIteration(1e-9, 20)).train(train)
    message = r"forward solve: 2 of 4 rows missed tol=1e-09, .*Allow more max_steps"
    with torch.no_grad(), pytest.warns(ForwardNotConverged, match=message) as caught:
        layer(BY_ROW)
    assert len(caught) == 1
    assert layer.last_solution.converged.tolist() == [True, False, False, True]
    layer(BY_ROW)  # once
    with pytest.warns(ForwardNotConverged):
        copy.deepcopy(layer)(BY_ROW)  # its first
    DEQ(contracting_by_row, Broyden(1e-9, 100))(BY_ROW)  # solved


def test_a_backward_solve_that_fails_warns_once():
    """Such a failure gave a gradient that was wrong by 59 % without a word."""
    layer, _ = linear_layer(Implicit(FixedPointIteration(1e-10, 2)), rho=0.99)
    x = random(4, 3, seed=6).requires_grad_()
    with pytest.warns(BackwardNotConverged, match=r"rows missed tol=1e-10"):
        layer(x)[0].sum().backward()
    assert not layer.last_backward.converged.all() and layer.last_backward.num_evals == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)[0].sum().backward()


def test_a_warning_names_the_line_of_the_user():
    """It named one of nclib/deq.py, as every other layer's."""
    layer, _ = linear_layer(Implicit(FixedPointIteration(1e-10, 2)), 0.99, Broyden(1e-12, 3))
    network = nn.Sequential(layer)
    with pytest.warns(RuntimeWarning) as caught:
        z, _ = network(random(4, 3, seed=6).requires_grad_())
        z.sum().backward()
    assert [warning.category for warning in caught] == [ForwardNotConverged, BackwardNotConverged]
    assert [warning.filename for warning in caught] == [__file__, __file__]
    assert caught[1].lineno == caught[0].lineno + 1


def test_a_failed_solve_raises_or_is_ignored_where_that_is_asked_for():
    layer = DEQ(contracting_by_row, FixedPointIteration(1e-9, 20), on_failure="ignore")
    layer(BY_ROW)
    layer.on_failure = "raise"
    with pytest.raises(ForwardNotConverged, match="2 of 4 rows"):
        layer(BY_ROW)
    assert layer.last_solution.converged.tolist() == [True, False, False, True], (
        "the evidence is there after the error"
    )
    layer = DEQ(
        contracting_by_row,
        Broyden(1e-9, 99),
        Implicit(FixedPointIteration(1e-9, 20)),
        on_failure="raise",
    )
    with pytest.raises(BackwardNotConverged, match="2 of 4 rows"):
        layer(BY_ROW.clone().requires_grad_())[0].sum().backward()


def test_a_broken_network_is_nan_and_said_to_be():
    layer = DEQ(TanhCell()).eval()
    with torch.no_grad():
        layer.cell.w.fill_(torch.nan)
        with pytest.warns(ForwardNotConverged, match=r"z\* is NaN for 3 of them"):
            z, solution = layer(random(3, 4))
    assert z.isnan().all() and solution.status.tolist() == [Status.DIVERGED] * 3


@pytest.mark.parametrize("rule", [Implicit(), Neumann(3), Phantom(2)], ids=str)
def test_a_row_that_is_nan_and_left_out_of_the_loss_adds_nothing(rule):
    """Zero times NaN made the gradients of all parameters NaN."""
    x = random(4, 4)
    x[1] = torch.nan
    grads = []
    for rows in (x, x[[0, 2, 3]]):
        layer = DEQ(TanhCell(), EXACT[2], rule, on_failure="ignore")
        z, solution = layer(rows.requires_grad_())
        z[solution.converged].square().sum().backward()
        grads.append(layer.cell.w.grad)
    assert torch.allclose(*grads, rtol=1e-10) and (rows.grad != 0).all() and (x.grad[1] == 0).all()
    z, solution = layer(torch.full_like(x, torch.nan))
    assert torch.autograd.grad(z[solution.converged].sum(), layer.cell.w, allow_unused=True) == (
        None,
    ), "of NaN alone"
    if isinstance(rule, Implicit):
        assert layer.last_backward.residual.isinf().tolist() == [True] * 4, "and on record"


# Guards


@pytest.mark.parametrize("gradient", [Implicit(), Neumann(4), Phantom(3, 0.4)], ids=str)
def test_a_second_derivative_is_refused_and_not_wrong(gradient):
    x = random(3, 4).requires_grad_()
    z, _ = DEQ(TanhCell(), EXACT[2], gradient)(x)
    with pytest.raises(RuntimeError, match=r"not differentiated twice .* use Unrolled\(steps\)"):
        torch.autograd.grad(z.sum(), x, create_graph=True)


class WithContext(TanhCell):
    def forward(self, z, x):
        return super().forward(z, x + self.context)


def test_a_tensor_that_the_cell_does_not_own_is_refused_where_its_gradient_would_be_lost():
    cell, weight = WithContext(), random(4).requires_grad_()
    cell.context = torch.sin(weight)
    for requires_grad in (True, False):
        cell.requires_grad_(requires_grad)
        with pytest.raises(RuntimeError, match=r"shape \(4,\).*args=\(tensor,\)"):
            DEQ(cell, EXACT[2])(random(3, 4))
    with pytest.raises(RuntimeError, match="make the cell a module"):
        DEQ(lambda z, x: 0.5 * z + weight * x, EXACT[2])(random(3, 4))
    with torch.no_grad():
        DEQ(cell, EXACT[2])(random(3, 4))
    cell.requires_grad_(True)
    cell.context = torch.sin(weight).detach()
    DEQ(cell, EXACT[2])(random(3, 4))[0].sum().backward()


def test_a_cell_that_takes_the_place_of_another_is_looked_through_too():
    """The gradient of the tensor was lost without a word."""
    layer = DEQ(TanhCell(), EXACT[2])
    parts = len(list(layer.modules()))
    layer(random(3, 4))
    assert len(list(layer.modules())) == parts
    copied = copy.deepcopy(layer)
    for changed in (layer, copied):
        changed.cell = WithContext()
        changed.cell.context = torch.sin(random(4).requires_grad_())
        with pytest.raises(RuntimeError, match="make the cell a module"):
            changed(random(3, 4))


class DropPath(nn.Module):
    """As that of timm."""

    drop_prob = 0.1

    def forward(self, x):
        return nn.functional.dropout2d(x, self.drop_prob, self.training)


LIVE = [
    (nn.BatchNorm2d(8), "GroupNorm"),
    (nn.InstanceNorm2d(8, track_running_stats=True), "track_running_stats=False"),
    (nn.Dropout(0.1), "set its rate to 0"),
    (nn.Dropout2d(0.5), "set its rate to 0"),
    (nn.RReLU(), "LeakyReLU"),
    (DropPath(), "set its rate to 0"),
    (nn.TransformerEncoderLayer(8, 2, batch_first=True), "dropout=0"),
    (nn.MultiheadAttention(8, 2, dropout=0.1), "dropout=0"),
    (
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 1)),
        "spectral_norm moves its estimate",
    ),
    (nn.utils.spectral_norm(nn.Conv2d(8, 8, 1)), "spectral_norm moves its estimate"),
]


@pytest.mark.parametrize(("module", "remedy"), LIVE, ids=lambda value: type(value).__name__)
def test_modules_that_change_from_one_evaluation_to_the_next_are_refused(module, remedy):
    """One forward solve moved BatchNorm's running statistics 41 times and coupled the rows by
    0.18."""
    cell = ConvCell()
    cell.extra = copy.deepcopy(module)
    x = random(4, 8, 4, 4, dtype=torch.float32)
    with pytest.raises(ValueError, match=rf"^cell.extra, a \w+, .*{remedy}"):
        DEQ(cell)(x)
    DEQ(cell, on_failure="ignore").eval()(x)


@pytest.mark.parametrize(
    "module",
    [
        nn.TransformerEncoderLayer(8, 2, dropout=0, batch_first=True),
        nn.Dropout(0),
        nn.InstanceNorm2d(8),
    ],
)
def test_modules_that_stay_what_they_are_are_taken(module):
    cell = ConvCell().train()
    cell.extra = module
    DEQ(cell)(random(4, 8, 4, 4, dtype=torch.float32))


def test_spectral_norm_is_taken_as_its_error_says():
    torch.manual_seed(0)
    cell = ConvCell()
    cell.conv2 = nn.utils.parametrizations.spectral_norm(cell.conv2)
    layer = DEQ(cell).train()
    with pytest.raises(ValueError, match=r"^cell.conv2, a ParametrizedConv2d, .* \.eval\(\)"):
        layer(random(4, 8, 4, 4, dtype=torch.float32))
    cell.conv2.eval()
    z, solution = layer(random(4, 8, 4, 4, dtype=torch.float32))
    assert solution.converged.all()
    z.sum().backward()
    assert cell.conv2.parametrizations.weight.original.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"z0": "ones"}, "allowed are 'x' and 'zeros'"),
        ({"on_failure": "error"}, "allowed are 'warn', 'raise' and 'ignore'"),
        ({"solver": Broyden(), "gradient": Unrolled(2)}, "has nothing to do"),
    ],
)
def test_an_option_that_is_none_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DEQ(TanhCell(), **options)


def test_an_argument_of_a_call_that_cannot_be_is_refused():
    layer, x = DEQ(TanhCell()), random(3, 4)
    with pytest.raises(ValueError, match="has nothing to do"):
        layer(x, solver=Broyden(), gradient=Unrolled(2))
    with pytest.raises(TypeError, match="give an Implicit"):
        layer(x, gradient="implicit")
    with pytest.raises(TypeError, match=r"x is a tuple; give one tensor"):
        layer((x, x))
    with pytest.raises(ValueError, match=r"z0 is a tuple; give one tensor with a start for each"):
        layer(x, z0=(x, x))
    with pytest.raises(
        ValueError, match=r"z0 is a tensor of shape \(1, 4\); .* each of the 3 rows"
    ):
        layer(x, z0=x[:1])
    with pytest.raises(TypeError, match=r"args is one tensor; give a tuple"):
        layer(x, args=x)
    with pytest.raises(
        ValueError, match=r"args\[0\] has shape \(2, 4\); its first axis must be the 3 rows"
    ):
        layer(x, args=(x[:2],))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (Implicit, {"steps": 0}),
        (Implicit, {"steps": True}),
        (Neumann, {"terms": 0}),
        (Phantom, {"damping": 1.0}),
        (Phantom, {"steps": 2.0}),
        (Unrolled, {"steps": -1}),
        (Unrolled, {"steps": 2, "tol": 1.0}),
    ],
)
def test_a_number_that_a_rule_cannot_have_is_refused(rule, options):
    with pytest.raises(ValueError, match=rf"{list(options)[-1]} must be"):
        rule(**options)


# The size of the Jacobian


def test_the_frobenius_norm_of_the_jacobian_is_estimated_without_bias():
    a, z = random(4, 4, seed=3), random(5, 4)
    estimate = jacobian_frobenius_sq(lambda z: z @ a.T, z, 4000, torch.Generator().manual_seed(1))
    assert estimate.shape == (5,) and torch.allclose(estimate, a.square().sum().expand(5), rtol=0.1)
    assert torch.equal(jacobian_frobenius_sq(torch.ones_like, z), torch.zeros(5).double())
    half = jacobian_frobenius_sq(
        lambda z: 0.5 * z, torch.zeros(1, 4, dtype=torch.bfloat16), num_probes=600
    )
    assert half.item() == 1 and half.dtype == torch.float32, "probes are summed in single precision"
    with pytest.raises(ValueError, match="at least 1"):
        jacobian_frobenius_sq(torch.cos, z, 0)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"with torch.no_grad\(\):"):
        jacobian_frobenius_sq(torch.cos, torch.zeros(1, 2))


def test_the_frobenius_norm_is_a_differentiable_regulariser():
    cell, x = TanhCell(), random(3, 4)

    def penalty(w):
        generator = torch.Generator().manual_seed(1)
        return jacobian_frobenius_sq(
            lambda z: torch.tanh(z @ w.T + x), torch.zeros(3, 4).double(), 2, generator
        )

    assert gradcheck(penalty, (cell.w,))
    with torch.no_grad():
        assert not penalty(cell.w).requires_grad


def test_a_linear_layer_in_a_network_is_trained_to_its_target():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(3, 3), DEQ(LinearCell(0.5), return_solution=False), nn.Linear(3, 1)
    ).double()
    x, y = random(64, 3, seed=1), random(64, 3, seed=1) @ random(3, 1, seed=2)
    optimiser = torch.optim.LBFGS(network.parameters(), max_iter=50)

    def loss():
        optimiser.zero_grad()
        value = (network(x) - y).square().mean()
        value.backward()
        return value

    optimiser.step(loss)
    assert float(loss().detach()) < 1e-6
