"""Solvers against closed-form fixed points, then the evidence they return, then what they do when
things go wrong."""

import math

import pytest
import torch
from marks import slow

from nclib.solvers import Anderson, Broyden, FixedPointIteration, Status, fixed_point

METHODS = [FixedPointIteration, Anderson, Broyden]
ACCELERATED = [Anderson, Broyden]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def symmetric(eigenvalues, seed=1):
    q = torch.linalg.qr(random(len(eigenvalues), len(eigenvalues), seed=seed))[0]
    return q @ torch.diag(eigenvalues) @ q.T


def spread(low, high, size=50):
    return torch.linspace(low, high, size, dtype=torch.float64)


def rotation(angle, rho=1.0):
    c, s = rho * math.cos(angle), rho * math.sin(angle)
    return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def non_normal(size=30):
    return (
        torch.diag(torch.full((size,), 0.5)).double()
        + torch.diag(torch.full((size - 1,), 0.45), 1).double()
    )


LINEAR = {
    "symmetric 0.5": symmetric(spread(-0.5, 0.5)),
    "symmetric 0.9": symmetric(spread(-0.9, 0.9)),
    "symmetric 0.99": symmetric(spread(0.0, 0.99)),
    "symmetric ±0.99": symmetric(spread(-0.99, 0.99)),
    "non-normal": non_normal(),
    "expansive": symmetric(spread(-1.5, 0.5)),
    "quarter turn": rotation(math.pi / 2),
    "shrinking turn": rotation(0.5, 0.9),
}


def affine(a, b):
    return lambda z: z @ a.T.to(z) + b.to(z)


def tanh_cell(rho, size=40):
    w = random(size, size, seed=3)
    w = rho * w / torch.linalg.matrix_norm(w, 2)
    return lambda z, x: torch.tanh(z @ w.T.to(z) + x)


def conv_cell(channels=8, dtype=torch.float64, seed=5, gain=1.0):
    weights = random(2, channels, channels, 3, 3, seed=seed, dtype=dtype) / math.sqrt(9 * channels)

    def cell(z, x):
        w1, w2 = weights.to(z.dtype)
        hidden = torch.relu(torch.group_norm(torch.conv2d(z, w1, padding=1), 2))
        return torch.relu(gain * torch.group_norm(torch.conv2d(hidden, w2, padding=1), 2) + x)

    return cell


IMAGES = random(64, 8, 4, 4)


def residual_of(f, z, *args):
    fz = f(z, *args)
    return (fz - z).flatten(1).norm(dim=1) / (fz.flatten(1).norm(dim=1) + 1e-8)


@pytest.mark.parametrize("method", ACCELERATED)
def test_linear_maps_are_solved_to_1e_10(method):
    for name, a in LINEAR.items():
        b = random(3, len(a), seed=2)
        exact = torch.linalg.solve(torch.eye(len(a), dtype=a.dtype) - a, b.T).T
        solver = method(tol=1e-10, max_steps=600)
        answer = fixed_point(affine(a, b), solver, torch.zeros_like(b))
        assert answer.converged.all() and (answer.status == Status.CONVERGED).all(), name
        assert (answer.residual <= 1e-10).all(), name
        assert (answer.value - exact).norm() <= 1e-7 * exact.norm(), name


@pytest.mark.parametrize("method", METHODS)
def test_cos_has_its_known_fixed_point(method):
    answer = fixed_point(
        torch.cos, method(tol=1e-13, max_steps=200), torch.zeros(2, 3, dtype=torch.float64)
    )
    assert (answer.value - 0.7390851332151607).abs().max() <= 1e-12


def solved_at(scale, method, f, x):
    """The problem, and what it is to D f D⁻¹ with D = scale."""
    solver, z0 = method(tol=1e-6, max_steps=200), torch.zeros_like(x)
    plain = fixed_point(f, solver, z0, (x,))
    return plain, fixed_point(
        lambda z, x: scale * f(z / scale, x / scale), solver, z0, (scale * x,)
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_power_of_two_times_the_problem_gives_that_times_the_answer_to_the_bit(method):
    problems = {
        "tanh 0.9": (tanh_cell(0.9), 0.5 * random(2, 40, seed=8)),
        "tanh 3": (tanh_cell(3.0), 0.5 * random(2, 40, seed=8)),
        "cos": (lambda z, x: torch.cos(z + x), random(2, 3)),
        "convolution": (conv_cell(gain=0.5), random(2, 8, 4, 4)),
    }
    for name in ("symmetric 0.99", "non-normal", "expansive", "quarter turn"):
        a = LINEAR[name]
        problems[name] = (lambda z, x, a=a: z @ a.T + x, random(2, len(a)))
    for name, (f, x) in problems.items():
        for scale in (2.0**-13, 2.0**13):
            plain, scaled = solved_at(scale, method, f, x)
            assert torch.equal(plain.steps, scaled.steps), name
            assert torch.equal(plain.status, scaled.status), name
            assert torch.equal(plain.value * scale, scaled.value), name


def test_damping_does_not_loosen_the_tolerance():
    """A test on the damped step would stop at a true residual of 0.1."""
    a, b = symmetric(spread(0.0, 0.5)), random(2, 50)
    answer = fixed_point(
        affine(a, b),
        FixedPointIteration(tol=1e-3, max_steps=3000, damping=0.99),
        torch.zeros_like(b),
    )
    assert answer.converged.all()
    assert (residual_of(affine(a, b), answer.value) <= 1e-3).all()
    assert answer.num_evals > 500


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_anderson_equals_its_formula(damping):
    """Against least squares in float64, step by step, without the ridge, which is 1e-8 of the
    diagonal."""
    a, b = symmetric(spread(-0.6, 0.6, 12)), random(1, 12, seed=3)
    z, points, values = torch.zeros(1, 12).double(), [], []
    for _ in range(6):
        points.append(z)
        values.append(z @ a.T + b)
        r = [f - p for f, p in zip(values, points, strict=True)]
        new, last = values[-1], r[-1]
        if len(r) > 1:
            dr = torch.cat([r[i + 1] - r[i] for i in range(len(r) - 1)]).T
            df = torch.cat([values[i + 1] - values[i] for i in range(len(r) - 1)]).T
            gamma = torch.linalg.lstsq(dr, last.T).solution
            new, last = new - (df @ gamma).T, last - (dr @ gamma).T
        z = new - damping * last
    seen = []
    solver = Anderson(tol=1e-14, max_steps=6, history=5, ridge=1e-12, damping=damping)
    fixed_point(lambda z: seen.append(z.clone()) or z @ a.T + b, solver, torch.zeros_like(b))
    assert torch.allclose(torch.cat(seen), torch.cat(points), rtol=1e-6, atol=1e-8)


def test_broyden_equals_the_textbook_recursion():
    """Against B kept as a matrix, in its own words: B⁻¹ += (s − B⁻¹y) sᵀB⁻¹ / (sᵀB⁻¹y)."""
    cell, x = tanh_cell(3.0, size=12), random(1, 12, seed=4)
    z, inverse, textbook = torch.zeros(12).double(), -torch.eye(12).double(), []
    r = cell(z, x[0]) - z
    for _ in range(12):
        textbook.append(z)
        s = -inverse @ r
        z = z + s
        new = cell(z, x[0]) - z
        y, r = new - r, new
        inverse = inverse + torch.outer(s - inverse @ y, s @ inverse) / (s @ inverse @ y)
    seen = []
    f = lambda z: seen.append(z[0].clone()) or cell(z, x)  # noqa: E731
    fixed_point(f, Broyden(tol=1e-14, max_steps=12), torch.zeros_like(x))
    assert torch.allclose(torch.stack(seen), torch.stack(textbook), rtol=1e-7, atol=1e-9)


def test_broyden_damps_an_update_that_would_make_it_singular():
    """Where r stays what it is, B s = Δr = 0; damped by θ = 0.9, each step is ten times the one
    before."""
    seen = []
    f = lambda z: seen.append(float(z[0, 0])) or z + 1  # noqa: E731
    fixed_point(f, Broyden(tol=1e-12, max_steps=5), torch.zeros(1, 1).double())
    assert seen == pytest.approx([0, 1, 11, 111, 1111])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("halve", [False, True])
def test_the_residual_reported_is_that_of_the_point_returned(method, halve):
    cell = conv_cell(gain=2.0)
    sizes = torch.logspace(-2, 1, 6).double().view(-1, 1, 1, 1)
    for dtype, tol, rounding in ((torch.float64, 1e-6, 1e-12), (torch.float32, 1e-4, 5e-7)):
        x = (random(6, 8, 4, 4) * sizes).to(dtype)
        for max_steps in (1, 6, 300):
            solver = method(tol=tol, max_steps=max_steps)
            answer = fixed_point(cell, solver, x, (x,), halve=halve)
            assert answer.value.dtype == answer.residual.dtype == answer.trace.dtype == dtype
            assert (residual_of(cell, answer.value, x) - answer.residual).abs().max() <= rounding
            assert torch.equal(answer.converged, answer.residual <= tol)
            assert torch.equal(answer.converged, answer.status == Status.CONVERGED)
            assert torch.equal(answer.residual, answer.trace.amin(0))


@pytest.mark.parametrize("method", METHODS)
def test_steps_evaluations_and_trace_count_real_calls(method):
    cell, calls = tanh_cell(0.9), []
    x = random(5, 40) * torch.logspace(-2, 1, 5).double().unsqueeze(1)

    def counted(z, x):
        calls.append(len(z))
        return cell(z, x)

    answer = fixed_point(counted, method(tol=1e-8, max_steps=200), torch.zeros_like(x), (x,))
    assert answer.num_evals == len(calls) == len(answer.trace) == int(answer.steps.max())
    assert (
        sum(calls) == int(answer.steps.sum())
        and calls == sorted(calls, reverse=True)
        and calls[-1] < 5
    )
    for b, steps in enumerate(answer.steps.tolist()):
        assert (answer.trace[steps - 1 :, b] == answer.trace[steps - 1, b]).all()
        assert (answer.trace[: steps - 1, b] > 1e-8).all()
    assert answer.trace.isfinite().all()


def in_other_company(cell, solver, x):
    """Answers of the rows together, alone, in another order, and beside one that diverges, which
    comes back as NaN."""
    together = fixed_point(cell, solver, x, (x,))
    alone = torch.cat([fixed_point(cell, solver, row, (row,)).value for row in x.split(1)])
    order = torch.randperm(len(x), generator=seeded(0))
    shuffled = fixed_point(cell, solver, x[order], (x[order],)).value[order.argsort()]
    poisoned = x.clone()
    poisoned[4] = math.nan
    beside = fixed_point(cell, solver, poisoned, (poisoned,))
    assert beside.status[4] == Status.DIVERGED
    return together, torch.stack((alone, shuffled, beside.value)).flatten(2)


def contraction(kind, rho, seed):
    """A cell whose derivative has norm ρ at most, and the size of its state."""
    if kind == "convolution":
        w = random(8, 8, 3, 3, seed=seed)
        conv = torch.conv2d(torch.eye(128).double().view(-1, 8, 4, 4), w, padding=1).flatten(1)
        w = rho * w / torch.linalg.matrix_norm(conv, 2)
        return lambda z, x: torch.relu(torch.conv2d(z, w.to(z), padding=1) + x), (8, 4, 4)
    if kind == "tanh":
        return tanh_cell(rho), (40,)
    a = symmetric(spread(-rho, rho), seed=seed)
    return lambda z, x: z @ a.to(z) + x, (50,)


CONTRACTIONS = [("linear", 0.5), ("linear", 0.9), ("tanh", 0.9), ("convolution", 0.9)]
TOLERANCES = [(torch.float64, 1e-6), (torch.float32, 1e-4), (torch.float32, 1e-5)]


@pytest.mark.parametrize("seed", [1, *slow(2, 3)])
@pytest.mark.parametrize(("kind", "rho"), CONTRACTIONS)
def test_answers_of_a_contraction_are_within_two_tolerances_over_one_less_rho(kind, rho, seed):
    """Whatever the batch mates, and half of that from the fixed point. Rounding may change the
    number of steps: on the linear map of ρ = 0.9 Broyden's answers in float32 differ by up to a
    quarter of the bound."""
    cell, shape = contraction(kind, rho, seed)
    sizes = torch.logspace(-2, 1, 7).double().view(-1, *(1 for _ in shape))
    x = random(7, *shape, seed=20 + seed) * sizes
    exact = fixed_point(cell, FixedPointIteration(1e-13, 2000), x, (x,))
    assert exact.converged.all()
    size = cell(exact.value, x).flatten(1).norm(dim=1)
    for method in METHODS:
        for dtype, tol in TOLERANCES:
            together, others = in_other_company(cell, method(tol=tol, max_steps=400), x.to(dtype))
            assert together.converged.all()
            answer = together.value.double().flatten(1)
            # ‖f(z)‖ at the answers is that close to its size at the fixed point
            bound = tol / (1 - rho) * size * (1 + 10 * tol / (1 - rho))
            assert ((answer - exact.value.flatten(1)).norm(dim=1) <= bound).all(), (method, tol)
            near = (others - answer).norm(dim=2) <= 2 * bound
            assert (near | others.isnan().any(2)).all(), (method, tol)


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_leave_at_once_or_by_halves_or_stay_have_one_answer(method):
    cell, x = tanh_cell(0.9), random(9, 40) * torch.logspace(-2, 1, 9).double().unsqueeze(1)
    solver, z0 = method(tol=1e-8, max_steps=200), torch.zeros(9, 40).double()
    sizes = {"leave": [], "halve": [], "stay": []}

    def counted(name):
        return lambda z, x: sizes[name].append(len(z)) or cell(z, x)

    leave = fixed_point(counted("leave"), solver, z0, (x,))
    halve = fixed_point(counted("halve"), solver, z0, (x,), halve=True)
    stay = fixed_point(lambda z: counted("stay")(z, x), solver, z0)
    for other in (halve, stay):
        assert torch.equal(other.steps, leave.steps) and other.num_evals == leave.num_evals
        assert torch.allclose(other.value, leave.value, rtol=1e-10, atol=1e-12)
    assert (
        set(sizes["halve"]) <= {9, 4, 2, 1}
        and set(sizes["stay"]) == {9}
        and len(set(sizes["leave"])) > 2
    )


@pytest.mark.parametrize("method", ACCELERATED)
def test_few_steps_need_little_memory(method):
    memory = method(max_steps=2, history=5).start(torch.zeros(2, 3))
    states = memory.rings[0] if method is Anderson else memory.states
    assert states.shape[1] <= 3


@pytest.mark.parametrize("method", METHODS)
def test_a_diverged_row_keeps_its_best_finite_iterate(method):
    """Mixing with a mask by multiplication would turn it into NaN."""
    calls = [0]

    def f(z, x):
        calls[0] += 1
        return torch.where((x > 1) & (calls[0] >= 3), math.nan, 0.5 * torch.cos(z) + x)

    x = torch.tensor([[0.1], [2.0], [0.3]]).double()
    answer = fixed_point(f, method(tol=1e-12, max_steps=60), torch.zeros_like(x), (x,))
    assert answer.status.tolist() == [Status.CONVERGED, Status.DIVERGED, Status.CONVERGED]
    assert answer.value.isfinite().all() and answer.steps[1] == 3
    assert float(answer.residual[1]) == float(answer.trace[:2, 1].min())
    assert math.isinf(answer.trace[-1, 1])


@pytest.mark.parametrize("method", METHODS)
def test_without_any_finite_evaluation_a_row_is_nan_and_no_other(method):
    """It was its start, so that a broken network looked healthy."""
    z0 = random(2, 3)
    answer = fixed_point(lambda z: z * math.nan, method(), z0)
    assert answer.value.isnan().all() and answer.residual.isinf().all() and z0.isfinite().all()
    for halve in (False, True):
        bad = torch.tensor([[1.0], [0.0], [1.0], [0.0]]).double()
        some = fixed_point(
            lambda z, bad: 0.5 * z + 0 / bad, method(1e-6), random(4, 3), (bad,), halve=halve
        )
        assert (
            some.value.isnan().all(1).tolist()
            == some.value.isnan().any(1).tolist()
            == [False, True, False, True]
        )
        assert some.converged.tolist() == [True, False, True, False]
        assert (some.num_failed, some.num_undefined) == (2, 2)
    assert (answer.status == Status.DIVERGED).all() and answer.num_evals == 1


def test_growth_without_bound_is_noticed_before_overflow():
    answer = fixed_point(
        lambda z: 1.5 * z + 1.0, FixedPointIteration(1e-6, 10_000), torch.zeros(1, 3).double()
    )
    assert answer.status.tolist() == [Status.DIVERGED] and answer.num_evals < 60
    assert answer.value.isfinite().all() and answer.residual.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_autocast_does_not_reach_the_arithmetic_of_the_solver(method):
    x = random(3, 40, dtype=torch.float32)
    w = symmetric(spread(-0.9, 0.9, 40)).float()

    def f(z, x):
        with torch.autocast("cpu", enabled=False):
            return z @ w + x

    solver = method(tol=1e-3, max_steps=100)
    plain = fixed_point(f, solver, torch.zeros_like(x), (x,))
    with torch.autocast("cpu", torch.bfloat16):
        inside = fixed_point(f, solver, torch.zeros_like(x), (x,))
    assert torch.equal(plain.value, inside.value)


def test_a_map_that_closes_over_the_batch_is_told_where_its_tensors_go():
    rho = torch.tensor([[0.01], [0.9]]).double()
    with pytest.raises(
        ValueError, match=r"maps \(1, 1\) to \(2, 1\)"
    ) as caught:  # it broadcasts, and would go on
        fixed_point(
            lambda z, x: rho * z + x,
            FixedPointIteration(1e-6, 90),
            torch.zeros(2, 1).double(),
            (rho,),
        )
    assert "f was given 1 of 2 rows" in caught.value.__notes__[0]


def test_what_is_no_batch_of_numbers_is_refused():
    for z0 in (torch.zeros(()), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 0)):
        with pytest.raises(
            ValueError, match=r"z0 must be rows \(B, \*\) of floating-point numbers"
        ):
            fixed_point(torch.cos, Broyden(), z0)
    with pytest.raises(
        ValueError, match=r"args\[0\] has shape \(3, 2\); its first axis must be the 2 rows"
    ):
        fixed_point(torch.add, Broyden(), torch.zeros(2, 2), (torch.zeros(3, 2),))
    with pytest.raises(TypeError, match="give tensors, as in args="):
        fixed_point(torch.add, Broyden(), torch.zeros(2, 2), (1.0,))
    with pytest.raises(ValueError, match="both shapes must be the same"):
        fixed_point(lambda z: z[:, :1], Broyden(), torch.zeros(2, 2))
    with pytest.raises(TypeError, match=r"give FixedPointIteration\(...\)"):
        fixed_point(torch.cos, "broyden", torch.zeros(2, 2))


def test_options_that_cannot_be_are_refused():
    of_all = [("tol", 0), ("tol", math.nan), ("tol", "1e-3")]
    of_all += [("max_steps", 0), ("max_steps", 2.0), ("max_steps", True)]
    wrong = [(method, *option) for method in METHODS for option in of_all]
    wrong += [(FixedPointIteration, "damping", 1.0), (Anderson, "damping", -0.1)]
    wrong += [(Anderson, "ridge", 0.0), (Anderson, "history", 0), (Broyden, "history", 1.5)]
    for method, option, value in wrong:
        with pytest.raises(ValueError, match=f"{option} must be"):
            method(**{option: value})


def test_the_summary_counts_rows_by_status():
    x = torch.tensor([[0.1], [0.999], [3.0]]).double()
    solution = fixed_point(
        lambda z, x: x * z + 1, FixedPointIteration(1e-6, 20), torch.zeros(3, 1).double(), (x,)
    )
    summary = solution.summary()
    assert (summary["converged"], summary["max_steps"], summary["diverged"]) == (1, 1, 1)
    assert (solution.num_failed, solution.num_undefined) == (2, 0)
    assert summary["rows"] == 3 and summary["worst_residual"] == float(solution.residual.max())
    assert repr(solution).startswith(
        "Solution(3 rows: 1 converged, 1 max_steps, 1 diverged; worst residual "
    )
