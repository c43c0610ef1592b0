"""The sections for users of other packages name what is there, here and where the other package is installed."""

import re
from operator import attrgetter

import pytest
import torch

import nclib as nc
from nclib import paths

LIBRARY = (paths.root() / "docs/library.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("title", ["Coming from torchdeq", "Coming from neural-collapse scripts"])
def test_every_name_of_ours_is_public(title):
    section = re.search(rf"^## {title}\n.*?(?=^## |\Z)", LIBRARY, re.DOTALL | re.MULTILINE)[0]
    named = set(re.findall(r"\bnc\.([\w.]*\w)", section))
    assert len(named) > 8 and all(attrgetter(name)(nc) for name in named)


def gradient(solve):
    """Of the sum of squares of an equilibrium with respect to its weight."""
    generator = torch.Generator().manual_seed(0)
    weight = (0.15 * torch.randn(6, 6, dtype=torch.float64, generator=generator)).requires_grad_()
    x = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    solve(lambda z, x: torch.tanh(z @ weight + x), x).square().sum().backward()
    return weight.grad


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"ift": True}, nc.Implicit()),
        ({"grad": 1}, nc.Phantom()),
        ({"grad": 3}, nc.Phantom(3)),
        ({"grad": 3, "tau": 0.5}, nc.Phantom(3, damping=0.5)),
    ],
)
def test_gradients_are_those_of_torchdeq(theirs, ours):
    torchdeq = pytest.importorskip(
        "torchdeq", reason='the peer is not installed: pip install ".[peers]"'
    )
    limits = {"f_tol": 1e-12, "b_tol": 1e-12, "f_max_iter": 200, "b_max_iter": 200}

    def solve_theirs(f, x):
        layer = torchdeq.get_deq(f_solver="anderson", **limits, **theirs)
        return layer(lambda z: f(z, x), torch.zeros_like(x))[0][-1]

    found = gradient(
        lambda f, x: nc.DEQ(f, nc.Anderson(tol=1e-12, max_steps=200), ours, z0="zeros")(x)[0]
    )
    torch.testing.assert_close(found, gradient(solve_theirs), atol=1e-10, rtol=0)


def stopped_early(steps, k):
    """The problem of the page's last section: a tanh cell of spectral norm 0.95, and a solve of so many plain steps."""
    generator = torch.Generator().manual_seed(0)
    q = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64, generator=generator))[0]
    weight = 0.95 * (q + q.T) / torch.linalg.matrix_norm(q + q.T, 2)
    x = 0.3 * torch.randn(32, 16, dtype=torch.float64, generator=generator)
    weight.requires_grad_()

    def cell(z, x):
        return torch.tanh(z @ weight + x)

    solver = nc.FixedPointIteration(tol=1e-14, max_steps=steps)
    layer = nc.DEQ(cell, solver, nc.Phantom(k), z0="zeros", on_failure="ignore")
    with torch.no_grad():
        z = cell(layer(x)[0], x)
    ported, _ = layer(x, z0=z, gradient=nc.Unrolled(k))
    return cell, x, weight, ported


@pytest.mark.parametrize("steps", [1, 8])
def test_the_port_of_grad_k_is_that_of_torchdeq(steps):
    cell, x, weight, ported = stopped_early(steps, 5)
    z = torch.zeros_like(x)
    with torch.no_grad():
        for _ in range(steps):
            z = cell(z, x)
    for _ in range(5):
        z = cell(z, x)
    outputs = [z]
    try:
        import torchdeq
    except ModuleNotFoundError:
        pass  # by hand it is what theirs does
    else:
        deq = torchdeq.get_deq(f_solver="fixed_point_iter", f_max_iter=steps, f_tol=1e-14, grad=5)
        outputs.append(deq(lambda z: cell(z, x), torch.zeros_like(x))[0][-1])
    (got,) = torch.autograd.grad(ported.square().sum(), weight)
    for output in outputs:
        torch.testing.assert_close(ported, output, atol=1e-14, rtol=0)
        (expected,) = torch.autograd.grad(output.square().sum(), weight)
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
