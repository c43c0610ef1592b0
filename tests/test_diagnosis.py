"""The spectral radius against matrices whose eigenvalues are known, and the six numbers of layers
with known faults."""

import math

import pytest
import torch
from cells import TanhCell, random

from nclib.deq import DEQ, Implicit, Phantom
from nclib.diagnosis import diagnose, spectral_radius
from nclib.solvers import Anderson, Broyden, FixedPointIteration


def block(*matrices):
    return torch.block_diag(*(torch.as_tensor(m, dtype=torch.float64) for m in matrices))


def turn(angle, rho):
    c, s = rho * math.cos(angle), rho * math.sin(angle)
    return [[c, -s], [s, c]]


@pytest.mark.parametrize(
    "matrix, expected",
    [
        (block(turn(math.pi / 2, 0.9)), 0.9),
        (block(turn(0.3, 1.1), turn(1.0, 1.05), [[0.5]]), 1.1),
        (block([[0.7]], [[-0.7]], [[0.2]]), 0.7),
        (block([[-1.5]], [[0.5]]), 1.5),
        (torch.zeros(5, 5).double(), 0.0),
        (0.9 * random(60, 60, seed=3) / math.sqrt(60), None),
        (random(200, 200, seed=4) / math.sqrt(200), None),
        (
            torch.triu(random(12, 12, seed=5), 1)
            + torch.diag(torch.linspace(0.1, 0.8, 12).double()),
            0.8,
        ),
    ],
)
def test_spectral_radius(matrix, expected):
    if expected is None:
        expected = float(torch.linalg.eigvals(matrix).abs().max())
    z = torch.zeros(3, len(matrix)).double()
    rho = spectral_radius(lambda z: z @ matrix.T, z, generator=torch.Generator().manual_seed(0))
    assert rho.shape == (3,) and rho.dtype == torch.float64 and rho.isfinite().all()
    assert (rho - expected).abs().max() <= 0.02 * expected


@pytest.mark.parametrize("index", [2, 3, 5])
def test_spectral_radius_of_a_defective_jacobian_is_right_to_the_root_of_rounding(index):
    jordan = 0.8 * torch.eye(index).double() + torch.diag(torch.ones(index - 1), 1).double()
    z = torch.zeros(1, index).double()
    rho = spectral_radius(lambda z: z @ jordan.T, z, generator=torch.Generator().manual_seed(0))
    assert abs(float(rho) - 0.8) <= 10 * torch.finfo(torch.float64).eps ** (1 / index)


@pytest.mark.parametrize("kind", ["orthogonal", "rotations"])
def test_spectral_radius_is_within_two_per_cent_where_features_outnumber_the_default_of_80_products(
    kind,
):
    if kind == "orthogonal":
        matrix = 0.9 * torch.linalg.qr(random(512, 512, seed=3))[0]
    else:
        matrix = block(*(turn(math.pi * i / 256, 0.9) for i in range(256)))
    z = torch.zeros(8, 512).double()
    rho = spectral_radius(lambda z: z @ matrix.T, z, generator=torch.Generator().manual_seed(0))
    assert (rho >= 0.98 * 0.9).all() and (rho <= 0.9 * (1 + 1e-12)).all()


def test_inference_mode_and_an_impossible_number_of_products_are_refused():
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"with torch.no_grad\(\):"):
        spectral_radius(torch.cos, torch.zeros(1, 2))
    with pytest.raises(ValueError, match="at least 1"):
        spectral_radius(torch.cos, torch.zeros(1, 2), num_iters=0)


# Six numbers


X = random(6, 4)


def test_a_healthy_layer_has_healthy_numbers_and_stays_as_it_is():
    layer = DEQ(TanhCell(rho=0.6), Broyden(1e-8, 50))
    solution, weights = layer(X)[1], layer.cell.w.detach().clone()
    random_state = torch.get_rng_state()
    health = diagnose(layer, X)
    assert (health.rows, health.converged) == (6, 6) and 1 < health.evaluations < 50
    assert health.starts_apart < 1e-6 and health.spectral_radius < 0.7
    assert health.moved_by_input > 0.1 and health.gradient_error < 1e-6 and health.cost > 1
    lines = str(health).splitlines()
    assert len(lines) == 7 and all(len(line.split("  ")) > 2 for line in lines)
    assert (
        layer.last_solution.value.equal(solution.value)
        and layer.last_backward is None
        and not layer.warned
    )
    assert (
        layer.on_failure == "warn"
        and layer.cell.w.grad is None
        and torch.equal(layer.cell.w, weights)
    )
    assert torch.equal(torch.get_rng_state(), random_state)


def test_the_spectral_radius_and_the_series_error_are_those_of_a_linear_cell():
    a = 0.5 * torch.eye(4).double()
    layer = DEQ(lambda z, x: z @ a + x, Broyden(1e-10, 50), Phantom())
    health = diagnose(layer, X)
    assert health.spectral_radius == pytest.approx(0.5, abs=1e-6)
    assert health.gradient_error == pytest.approx(0.5, abs=1e-6)  # g in place of 2 g


def test_several_fixed_points_are_seen_from_two_starts():
    layer = DEQ(lambda z, x: torch.tanh(3 * z + 0.01 * x), Anderson(1e-6, 100), z0="zeros")
    assert diagnose(layer, X).starts_apart > 0.1


def test_a_cell_that_ignores_x_is_seen():
    assert diagnose(DEQ(lambda z, x: torch.cos(z), Broyden(1e-8)), X).moved_by_input < 1e-6


def test_an_expansive_cell_that_is_solved_has_a_radius_above_one():
    layer = DEQ(lambda z, x: x - 1.5 * z, Broyden(1e-10, 50))
    health = diagnose(layer, X)
    assert health.converged == 6 and health.spectral_radius == pytest.approx(1.5)


def test_a_backward_solve_that_ends_early_is_seen():
    layer = DEQ(
        lambda z, x: 0.9 * z + x, Broyden(1e-10, 50), Implicit(FixedPointIteration(1e-10, 2))
    )
    assert diagnose(layer, X).gradient_error > 0.5


def test_rows_that_attend_to_one_another_do_not_converge_together():
    """Attention along the first axis, as nn.TransformerEncoderLayer has it without
    batch_first=True."""

    def cell(z, x):
        return 0.5 * torch.softmax(z @ z.mT, -1) @ z + x

    tokens = random(6, 4) * torch.logspace(1, -1, 6).double()[:, None]
    assert diagnose(DEQ(cell, Anderson(1e-5, 100)), tokens).converged < 6


def test_without_a_converged_row_the_first_number_speaks_alone():
    health = diagnose(DEQ(lambda z, x: 3 * z + x, FixedPointIteration(1e-6, 10)), X)
    assert (
        health.converged == 0
        and math.isnan(health.starts_apart)
        and math.isnan(health.spectral_radius)
    )
    assert math.isnan(health.gradient_error) and "0 of 6" in str(health)


def test_what_is_no_layer_is_refused():
    with pytest.raises(TypeError, match="give the DEQ itself"):
        diagnose(torch.nn.Linear(2, 2), X)
