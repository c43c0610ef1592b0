"""The pages for readers of other packages name what is there, here and where the other package is installed."""

import inspect
import re
from operator import attrgetter

import pytest
import torch

import nclib as nc
from nclib.system import paths

PAGES = ("coming_from_torchdeq", "coming_from_neural_collapse")


def text_of(page):
    return (paths.root() / f"book/{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_ours_is_public(page):
    named = set(re.findall(r"\bnc\.([\w.]*\w)", text_of(page)))
    assert len(named) > 8 and all(attrgetter(name)(nc) for name in named)


@pytest.mark.parametrize("page", PAGES)
def test_the_program_of_the_page_runs(page, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL)
    exec(compile(code, page, "exec"), {})


def test_attributes_and_options_of_ours_are_there():
    text = text_of("coming_from_torchdeq")
    for name in set(re.findall(r"`solution\.(\w+)`", text)):
        assert name in nc.Solution.__annotations__, name
    options = {nc.DEQ: {"eval_solver", "return_solution", "allow_live", "z0"}, nc.Anderson: {"history", "ridge"}}
    options |= {nc.Broyden: {"history"}, nc.Phantom: {"steps", "damping"}, nc.Implicit: {"solver"}}
    for value, names in options.items():
        assert names <= set(inspect.signature(value).parameters) and all(name in text for name in names)
    moments = nc.class_moments(torch.randn(20, 3), torch.arange(20) % 2, 2)
    for name in set(re.findall(r"`moments\.(\w+)", text_of("coming_from_neural_collapse"))):
        assert hasattr(moments, name), name


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
    torchdeq = pytest.importorskip("torchdeq", reason='the peer is not installed: pip install ".[peers]"')
    limits = {"f_tol": 1e-12, "b_tol": 1e-12, "f_max_iter": 200, "b_max_iter": 200}

    def solve_theirs(f, x):
        layer = torchdeq.get_deq(f_solver="anderson", **limits, **theirs)
        return layer(lambda z: f(z, x), torch.zeros_like(x))[0][-1]

    solver = nc.Anderson(tol=1e-12, max_steps=200)
    found = gradient(lambda f, x: nc.DEQ(f, solver, ours, z0="zeros")(x)[0])
    torch.testing.assert_close(found, gradient(solve_theirs), atol=1e-10, rtol=0)
