"""The laboratory: what its panels print gives what they draw, and a training can be stopped and goes on."""

import re
import time

import pytest
import torch

import nclib as nc
from nclib import laboratory, training
from nclib.laboratory import compute, panels
from nclib.models import build_solver
from nclib.solvers import fixed_point
from nclib.store import default_store


@pytest.fixture(autouse=True)
def pictures(monkeypatch):
    """What the panels display."""
    shown = []
    monkeypatch.setattr(panels, "display", shown.append)
    return shown


def _answer(panel, **values):
    """What a panel says once its controls have these values; given again each time."""
    panel = panel if hasattr(panel, "kwargs_widgets") else panel.children[-1]
    for name, value in values.items():
        next(control for control in panel.kwargs_widgets if control._kwarg == name).value = value
    panel.update()
    return panel.result.data


def _printed(said):
    """The value of the Python lines below a panel."""
    *lines, last = re.search(r"```python\n(.*)\n```", said, re.DOTALL)[1].splitlines()
    namespace = {}
    exec("\n".join(lines), namespace)
    return eval(last, namespace)


def _until(condition, seconds=400):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def test_every_panel_stands_without_any_run(isolated, monkeypatch, pictures):
    monkeypatch.setenv("NCLIB_ROOT", str(isolated))  # no tracked runs either
    assert "nclib train --profile smoke --model deq --K_A 3 --R 10 --seed 0\n" in _answer(laboratory.train("smoke"))
    assert "predicted: plain iteration" in _answer(laboratory.one_image())
    assert all("data:image/png" in picture.data for picture in pictures) and pictures


@pytest.mark.slow
def test_a_training_is_stopped_goes_on_and_is_the_run_of_the_printed_command(pictures):
    panel = laboratory.train("smoke")
    (go, halt), inner = panel.children[0].children, panel.children[1]
    _answer(panel, epochs="20")
    go.click()
    command = "nclib train --profile smoke --model deq --K_A 3 --R 10 --epochs 20 --seed 0"
    _until(lambda: "**training**, epoch" in _answer(panel))
    halt.click()
    assert "**stopped" in inner.result.data and command in inner.result.data and default_store().ids() == []
    before = len(pictures)
    go.click()
    _until(lambda: "**finished**, epoch 20" in _answer(panel))
    assert len(pictures) > before
    (run,) = default_store().ids()
    assert run in inner.result.data and nc.load_run(run).provenance["facts"]["continued_from"]
    _as_the_network_itself(run)


def _as_the_network_itself(run):
    found = _printed(_answer(laboratory.one_image(), run=run, image=5))
    assert set(found.solutions) == {"fixed_point", "anderson", "broyden"}
    config, model, split = compute.open_network(run)
    solver = build_solver(config.model.solver)
    mine = laboratory.image_traces(run, 5, solver.tol, solver.max_steps).solutions[config.model.solver.method]
    _, _, loaders = training.reopen(config, default_store().open(run).weights, torch.device("cpu"))
    with training.arithmetic(config.train, torch.device("cpu")), torch.no_grad():
        images, _ = next(loaders["test"].in_order())
        own = model(images[5:6])
    assert torch.equal(mine.trace, own.solution.trace) and found.label == split.class_names[split.test_labels[5]]


@pytest.mark.parametrize("name", compute.MAPS)
def test_a_walk_is_what_the_solver_does_and_what_is_printed(name):
    said = _answer(laboratory.plane(), name=name, rho=0.7, z1=-1.5, z2=0.8)
    for method, (points, found) in _printed(said).items():
        f, solver = compute.MAPS[name](0.7), compute.METHODS[method](tol=1e-6, max_steps=30)
        solution = fixed_point(f, solver, torch.tensor([[-1.5, 0.8]], dtype=torch.float64))
        assert torch.equal(found.trace, solution.trace) and len(points) == solution.num_evals
        assert points[found.trace.argmin()].tolist() == found.value[0].tolist()
    point = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    assert name not in ("rotation", "shear") or torch.allclose(f(point), point)
