"""What the Jacobian at a point tells, and the Jacobian of every row."""

import math

import pytest
import torch
from cells import TanhCell, TwoPartCell, random, zeros_of_two_parts
from torch.autograd import gradcheck

from nclib.deq import DEQ, jacobian_frobenius_sq, row_jacobians, spectral_radius
from nclib.solver import Anderson


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
        (torch.triu(random(12, 12, seed=5), 1) + torch.diag(torch.linspace(0.1, 0.8, 12).double()), 0.8),
    ],
)
def test_spectral_radius(matrix, expected):
    if expected is None:
        expected = float(torch.linalg.eigvals(matrix).abs().max())
    generator = torch.Generator().manual_seed(0)
    z = torch.zeros(3, len(matrix)).double()
    rho = spectral_radius(lambda z: z @ matrix.T, z, generator=generator)
    assert rho.shape == (3,) and rho.dtype == torch.float64 and rho.isfinite().all()
    assert (rho - expected).abs().max() <= 0.02 * expected


@pytest.mark.parametrize("index", [2, 3, 5])
def test_spectral_radius_of_a_defective_jacobian_is_right_to_the_root_of_rounding(index):
    jordan = 0.8 * torch.eye(index).double() + torch.diag(torch.ones(index - 1), 1).double()
    z = torch.zeros(1, index).double()
    rho = spectral_radius(lambda z: z @ jordan.T, z, generator=torch.Generator().manual_seed(0))
    assert abs(float(rho) - 0.8) <= 10 * torch.finfo(torch.float64).eps ** (1 / index)


@pytest.mark.parametrize("kind", ["orthogonal", "rotations"])
def test_spectral_radius_is_within_two_per_cent_where_features_outnumber_the_default_of_80_products(kind):
    if kind == "orthogonal":
        matrix = 0.9 * torch.linalg.qr(random(512, 512, seed=3))[0]
    else:
        matrix = block(*(turn(math.pi * i / 256, 0.9) for i in range(256)))
    z = torch.zeros(8, 512).double()
    rho = spectral_radius(lambda z: z @ matrix.T, z, generator=torch.Generator().manual_seed(0))
    assert (rho >= 0.98 * 0.9).all() and (rho <= 0.9 * (1 + 1e-12)).all()


def test_jacobian_frobenius_norm():
    a = random(4, 4, seed=3)
    z = random(5, 4)
    estimate = jacobian_frobenius_sq(lambda z: z @ a.T, z, 4000, torch.Generator().manual_seed(1))
    assert estimate.shape == (5,) and torch.allclose(estimate, a.square().sum().expand(5), rtol=0.1)
    assert torch.equal(jacobian_frobenius_sq(torch.ones_like, z), torch.zeros(5).double())
    with pytest.raises(ValueError, match="at least 1"):
        jacobian_frobenius_sq(torch.cos, z, 0)


def test_probes_are_summed_in_single_precision():
    found = jacobian_frobenius_sq(lambda z: 0.5 * z, torch.zeros(1, 4, dtype=torch.bfloat16), num_probes=600)
    assert found.item() == 1 and found.dtype == torch.float32


def test_the_jacobian_norm_is_a_differentiable_regulariser():
    cell, x = TanhCell(), random(3, 4)

    def penalty(w):
        generator = torch.Generator().manual_seed(1)
        return jacobian_frobenius_sq(lambda z: torch.tanh(z @ w.T + x), torch.zeros(3, 4).double(), 2, generator)

    assert gradcheck(penalty, (cell.w,))
    with torch.no_grad():
        assert not penalty(cell.w).requires_grad


def test_inference_mode_records_no_jacobian():
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"with torch.no_grad\(\):"):
        spectral_radius(torch.cos, torch.zeros(1, 2))


def test_the_jacobians_of_rows_are_those_of_the_closed_form():
    x, mix = random(4, 5, seed=2), random(3, 5, seed=3)
    a = 0.2 * random(3, 3, seed=1)
    layer = DEQ(lambda z, x: z @ a.T + x, Anderson(tol=1e-12, max_steps=100))
    inverse = torch.linalg.inv(torch.eye(3).double() - a)
    got = row_jacobians(lambda x, gain: layer(gain * (x @ mix.T))[0], x, gain := random(4, 1, seed=4))
    assert got.shape == (4, 3, 5) and not got.requires_grad
    assert torch.allclose(got, gain.unsqueeze(2) * (inverse @ mix), rtol=1e-8)
    maps = DEQ(lambda z, x: 0.5 * z + x.flip(2), Anderson(tol=1e-12), return_solution=False)
    with torch.no_grad():
        images = row_jacobians(maps, random(2, 2, 3))
    expected = 2 * torch.eye(6).double().view(2, 3, 2, 3).flip(1)
    assert images.shape == (2, 2, 3, 2, 3) and torch.allclose(images, expected.expand_as(images))
    assert torch.equal(row_jacobians(lambda x: x.detach(), x), torch.zeros(4, 5, 5).double())
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"with torch.no_grad\(\):"):
        row_jacobians(layer, x)


def test_a_state_of_several_tensors_is_one_state_to_the_jacobian():
    cell, x = TwoPartCell(), random(3, 7, seed=2)
    z = random(3, 3, seed=4), random(3, 2, 2, seed=5)
    packed = torch.cat([part.flatten(1) for part in z], 1)

    def of_parts(z):
        return cell(z, x)

    def of_one(z):
        return torch.cat([part.flatten(1) for part in cell((z[:, :3], z[:, 3:].view(-1, 2, 2)), x)], 1)

    dense = torch.stack([torch.autograd.functional.jacobian(of_one, packed)[b, :, b] for b in range(3)])
    assert torch.allclose(spectral_radius(of_parts, z), torch.linalg.eigvals(dense).abs().amax(1), rtol=1e-8)
    found = jacobian_frobenius_sq(of_parts, z, 4000, torch.Generator().manual_seed(1))
    assert torch.allclose(found, dense.square().sum((1, 2)), rtol=0.1)
    (grad,) = torch.autograd.grad(found.sum(), cell.w)
    assert grad.abs().sum() > 0
    layer = DEQ(cell, Anderson(tol=1e-12, max_steps=100))
    gains = 1 - torch.cat([part.flatten(1) for part in layer(x, z0=zeros_of_two_parts(3))[0]], 1).square()
    exact = torch.linalg.solve(torch.eye(7).double() - gains.unsqueeze(2) * cell.w, torch.diag_embed(gains))
    for f in (lambda x: layer(x, z0=zeros_of_two_parts(len(x))), lambda x: layer(x, z0=zeros_of_two_parts(len(x)))[0]):
        assert torch.allclose(row_jacobians(f, x), exact, rtol=1e-8)
    with pytest.raises(ValueError, match="the cell must return a tuple"):
        spectral_radius(lambda z: z[0], z)
    with pytest.raises(ValueError, match=r"z\[1\] has shape \(2, 3\)"):
        spectral_radius(of_parts, (z[0], z[0][:2]))
