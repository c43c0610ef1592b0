"""The behaviour of the equilibrium layer."""

import copy
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from cells import EXACT, ConvCell, TanhCell, TwoPartCell, random, with_rule, zeros_of_two_parts
from torch import nn
from torch.autograd import forward_ad, gradcheck
from torchvision import ops

import nclib
from nclib.deq import DEQ, BackwardNotConverged, ForwardNotConverged, Implicit, Neumann, Phantom, Reversible, Unrolled
from nclib.solver import Anderson, Broyden, FixedPointIteration, Status, paper_solver


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


def test_a_state_of_another_shape_needs_its_start():
    mix = random(5, 3, seed=4)
    layer, x = DEQ(lambda z, x: torch.tanh(0.3 * z + x @ mix.T), EXACT[2]), random(2, 3).requires_grad_()
    z, _ = layer(x, z0=torch.zeros(2, 5).double())
    assert z.shape == (2, 5) and gradcheck(lambda x: layer(x, torch.zeros(2, 5).double())[0], (x,))
    with pytest.raises((ValueError, RuntimeError)):
        layer(x)
    for given, more in (((x, x), ()), (x, (None,))):
        with pytest.raises(TypeError, match=r"(x is a tuple|args.0. is a NoneType); give .*args=\(tensor,\)"):
            layer(given, z0=x, args=more)


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
        assert gradcheck(value, inputs)


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


@pytest.mark.parametrize("how", ["module", "method", "function"])
def test_a_compiled_cell_is_compiled_few_times_and_gives_the_same_gradients(how):
    torch._dynamo.reset()
    graphs, cell = [], ConvCell()
    if how == "method":
        cell.register_forward_hook(lambda module, args, value: 0.5 * value)
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
    assert 1 <= len(graphs) <= (6 if how == "method" else 3), "a hook breaks graphs in two"
    seen = len(graphs)
    nclib.spectral_radius(lambda z: compiled(z, x), z.detach(), 1)
    assert len(graphs) == seen, "it runs eager"


class DropPath(nn.Module):
    """As that of timm."""

    drop_prob = 0.1

    def forward(self, x):
        return nn.functional.dropout2d(x, self.drop_prob, self.training)


class NoDropCell(ConvCell):
    """Of no drops."""


LIVE = [nn.BatchNorm2d(8), nn.Dropout(0.1), nn.Dropout2d(0.5), DropPath()]


@pytest.mark.parametrize("module", [*LIVE, ops.StochasticDepth(0.1, "row"), ops.DropBlock2d(0.1, 3)])
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
    DEQ(NoDropCell().train())(x)
    if isinstance(module, DropPath):
        module.drop_prob = 0.0
        DEQ(Cell())(x)
    DEQ(Cell(), Broyden(1e-1, 3), allow_live=True, on_failure="ignore")(x)


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
    assert torch.equal(DEQ(cell, rough).eval()(x)[0], expected[rough][0]), "without one, evaluation changes nothing"


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
    got = torch.autograd.grad((joined(z) * g).sum(), (x, cell.w), retain_graph=True)
    torch.testing.assert_close(got, torch.autograd.grad((expected * g).sum(), (x, cell.w)), rtol=1e-8, atol=1e-10)
    (alone,) = torch.autograd.grad(z[1].sum(), x)  # the other part is not used
    assert alone.abs().sum() > 0


@pytest.mark.parametrize("solver", [FixedPointIteration(1e-4, 100), Anderson(1e-4, 100), Broyden(1e-4, 100)], ids=str)
def test_a_row_is_solved_when_every_part_is(solver):
    """Of one tensor that held both parts the large one, which is solved at once, would hide the small one."""
    x = torch.cat((torch.full((5, 1), 1e6), random(5, 1, dtype=torch.float32)), 1).double()

    def cell(z, x):
        return x[:, :1] + 0.0 * z[0], 0.9 * torch.cos(z[1]) + x[:, 1:]

    z, solution = DEQ(cell, solver)(x, z0=(torch.zeros(5, 1).double(),) * 2)
    by_hand = torch.stack([(f - z).abs()[:, 0] / (f.abs()[:, 0] + 1e-8) for f, z in zip(cell(z, x), z, strict=True)], 1)
    assert torch.allclose(solution.part_residual, by_hand, rtol=1e-4, atol=1e-9)
    assert torch.equal(solution.residual, solution.part_residual.amax(1))
    assert torch.equal(solution.converged, (solution.part_residual <= 1e-4).all(1))
    assert solution.converged.all() and solution.num_evals > 3
    packed = DEQ(lambda z, x: torch.cat(cell(z.split(1, 1), x), 1), solver)(x)[1]
    assert packed.num_evals < solution.num_evals, "one residual for both is met too early"
    assert DEQ(lambda z, x: torch.cos(z))(x)[1].part_residual is None


def _dual(f, x):
    with torch.no_grad(), forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, x))).tangent


TRANSFORMS = {
    "dual": _dual,
    "vmap": lambda f, x: torch.func.vmap(lambda x: f(x.unsqueeze(0))[0])(x),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
}


@pytest.mark.parametrize("gradient", [Implicit(), Neumann(3), Phantom(), Reversible(3)], ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:FutureWarning")  # which the import of jvp's rules says
def test_transforms_of_torch_fail_and_give_no_wrong_numbers(name, gradient):
    layer, x = with_rule(TanhCell(), EXACT[2], gradient), random(2, 4)
    given = dict(layer.named_parameters())
    of_parameters = torch.func.grad(lambda given: torch.func.functional_call(layer, given, (x,))[0].sum())
    for call in (lambda: TRANSFORMS[name](lambda x: layer(x)[0], x), lambda: of_parameters(given)):
        with pytest.raises(RuntimeError, match=r"give gradient=nclib.Unrolled\(50\)"):
            call()
    TRANSFORMS[name](lambda x: layer(x, gradient=Unrolled(50))[0], x)


def test_the_compiler_is_not_imported_until_it_is_asked_for():
    code = "import sys, torch; from nclib import DEQ; DEQ(lambda z, x: 0.5 * z + x)(torch.ones(2, 3)); "
    code += "sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def contracting_by_row(z, x):
    """Factors of 0.1 and of 0.999: of two rows one is solved in 20 steps."""
    return x * z + 1.0


BY_ROW = torch.tensor([[0.1], [0.999], [0.999], [0.2]]).double()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("returns", [True, False])
def test_a_solve_that_failed_warns_once_a_layer_in_training_and_in_evaluation(train, returns):
    """A network whose weights were NaN looked healthy in evaluation."""
    layer = DEQ(contracting_by_row, FixedPointIteration(1e-9, 20), return_solution=returns).train(train)
    said = r"forward solve: 2 of 4 rows missed tol=1e-09, worst relative residual .*Allow more max_steps"
    with torch.no_grad(), pytest.warns(ForwardNotConverged, match=said) as caught:
        layer(BY_ROW)
    assert len(caught) == 1 and caught[0].filename == __file__, "the line that calls the layer"
    assert layer.last_solution.converged.tolist() == [True, False, False, True]
    layer(BY_ROW)  # once
    layer.told.clear()
    with pytest.warns(ForwardNotConverged):
        layer(BY_ROW)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with pytest.warns(ForwardNotConverged):  # its first
            other(BY_ROW)
    DEQ(contracting_by_row, Broyden(1e-9, 100))(BY_ROW)  # solved


STARTS = {
    "no fixed point": (lambda z, x: z + torch.sigmoid(x), "x"),
    "no fixed point of a part": (lambda z, x: (0.5 * z[0] + 1e6, z[1] + x.exp()), lambda x: (x, x)),
    "an unstable one": (lambda z, x: torch.tanh(3 * z + 1e-6 * x), "zeros"),
    "of a part that rests at first": (
        lambda z, x: (torch.tanh(0.3 * z[0] + x), 0.995 * z[1] + 0.005 * z[0]),
        lambda x: (0 * x, 0 * x),
    ),
    "itself": (lambda z, x: 0.5 * z + x, lambda x: 2 * x),
    "near": (lambda z, x: 0.5 * z + x, lambda x: 2.005 * x),
}


@pytest.mark.parametrize("solver", [FixedPointIteration(1e-3, 2000), Anderson(1e-3, 60), Broyden(1e-3, 60)], ids=str)
@pytest.mark.parametrize("start", STARTS)
def test_a_row_that_is_solved_because_its_state_grew_is_told_as_one_that_is_not(start, solver):
    """Without a fixed point all rows of a looped transformer block converged, at a residual as large as at first."""
    cell, z0 = STARTS[start]
    layer, x = DEQ(cell, solver, z0=z0, on_failure="raise"), 1 + random(5, 3).abs()
    if not start.startswith("no"):
        assert layer(x)[1].converged.all()
        return
    with pytest.raises(ForwardNotConverged, match=r"0 of 5 rows missed.*; 5 met it only because their state grew"):
        layer(x)
    layer.on_failure = "ignore"
    assert (layer(x)[1].status == Status.DIVERGED).all(), "in the numbers, too"


@pytest.mark.parametrize("causal", [False, True])
def test_rows_that_are_mixed_are_said_to_be_at_the_first_call(causal):
    """Attention along the first axis: tokens left one by one, and those that stayed lost them."""

    def cell(z, x):
        scores = z @ z.mT
        mask = torch.ones_like(scores, dtype=torch.bool)
        return 0.5 * torch.softmax(scores.where(mask.tril() if causal else mask, -torch.inf), -1) @ z + x

    layer, tokens = DEQ(cell, Anderson(1e-5, 100)), random(6, 4) * torch.logspace(1, -1, 6).double()[:, None]
    with pytest.warns(ForwardNotConverged, match="the cell mixes rows.*as .B, T, D., batch first"):
        layer(tokens)
    layer(tokens)  # once
    DEQ(cell, Anderson(1e-5, 100))(torch.stack([tokens, 0.1 * tokens]))


def test_each_layer_tells_once_also_in_equal_words():
    layers = [DEQ(lambda z, x: x / 0, return_solution=False) for _ in range(3)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for layer in layers * 2:
            nn.Sequential(layer)(torch.ones(4, 2))
    assert [each.filename for each in said] == 3 * [__file__]
    layer = DEQ(lambda z, x: x / 0, return_solution=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=__name__)
        for _ in range(2):  # an error is raised each time
            with pytest.raises(ForwardNotConverged):
                layer(torch.ones(4, 2))


def test_a_failed_solve_raises_or_is_ignored_where_that_is_asked_for():
    layer = DEQ(contracting_by_row, FixedPointIteration(1e-9, 20), on_failure="ignore")
    layer.on_failure, solution = "warn", layer(BY_ROW)[1]
    with pytest.warns(ForwardNotConverged):
        layer(BY_ROW)
    layer.on_failure = "raise"  # also of what was told before
    with pytest.raises(ForwardNotConverged, match="2 of 4 rows"):
        layer(BY_ROW)
    assert torch.equal(layer.last_solution.residual, solution.residual), "the evidence is there after the error"
    layer = DEQ(contracting_by_row, Broyden(1e-9, 99), Implicit(FixedPointIteration(1e-9, 20)), on_failure="raise")
    with pytest.raises(BackwardNotConverged, match="2 of 4 rows"):
        layer(BY_ROW.clone().requires_grad_())[0].sum().backward()
    with pytest.raises(ValueError, match="allowed are 'warn', 'raise' and 'ignore'"):
        DEQ(TanhCell(), on_failure="error")


def test_a_broken_network_is_nan_and_said_to_be():
    layer = DEQ(TanhCell()).eval()
    with torch.no_grad():
        layer.cell.w.fill_(torch.nan)
        with pytest.warns(ForwardNotConverged, match=r"z\* is NaN for 3 of them"):
            z, solution = layer(random(3, 4))
    assert z.isnan().all() and solution.status.tolist() == [Status.DIVERGED] * 3


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
    with pytest.raises(TypeError, match="give an Implicit"):
        DEQ(TanhCell())(x, gradient="implicit")


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
    (five, ten, end, late, last), solution = layer(x, at=[5, 10, 40, 99])
    assert torch.equal(five, iterate(5)) and torch.equal(ten, iterate(10))
    assert torch.equal(end[1:3], iterate(40)[1:3]) and torch.equal(end[solution.converged], last[solution.converged])
    wandering = DEQ(lambda z, x: -1.1 * z + x, FixedPointIteration(1e-12, 3), z0="zeros", on_failure="ignore")
    end, best = wandering(torch.ones(2, 1), at=[3])[0]
    assert torch.allclose(end, torch.tensor(1.11)) and torch.equal(best, torch.zeros(2, 1))
    assert torch.equal(last, layer(x)[0]) and torch.equal(late, last) and torch.equal(solution.value, last)
    states = DEQ(cell, FixedPointIteration(1e-12, 40), return_solution=False, on_failure="ignore")(x, at=range(1, 3))
    assert isinstance(states, list) and len(states) == 3 and torch.equal(states[1], iterate(2))
    assert len(DEQ(cell, FixedPointIteration(1e-2, 900))(x, at=[])[0]) == 1


@pytest.mark.parametrize("rule", [Unrolled(8), Implicit(), Phantom(2), Neumann(3)], ids=str)
def test_a_loss_on_the_way_has_the_gradient_of_the_rule_at_each_state(rule):
    cell, x = TanhCell(), random(3, 4, seed=3).requires_grad_()
    inputs, weights = (x, cell.w, cell.u), random(3, 3, 4, seed=7)
    states, _ = with_rule(cell, FixedPointIteration(1e-12, 200), rule)(x, at=[2, 5])
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
    torch.testing.assert_close(got, torch.autograd.grad(loss, inputs), rtol=1e-8, atol=1e-10)


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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # which torch hides
def test_a_compiled_network_gives_what_it_gives_without():
    torch._dynamo.reset()
    layer = DEQ(TanhCell(dtype=torch.float32), Anderson(1e-3, 30), return_solution=False)
    network = nn.Sequential(nn.Linear(4, 4), layer)
    compiled, x = torch.compile(network, backend="eager"), random(3, 4, dtype=torch.float32)
    assert torch.equal(compiled(x), network(x))
