"""The laboratory: what its panels print gives what they draw, and a training can be stopped and goes on."""

import re
import time

import numpy as np
import pytest
import torch

import nclib as nc
from companion import laboratory
from companion.laboratory import compute, panels
from nclib import training
from nclib.config import ConfigError
from nclib.engine.store import default_store
from nclib.metrics import simplex_etf
from nclib.models import build_solver
from nclib.solver import fixed_point
from nclib.system import paths


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
    return str(panel.result)


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
    assert "choose runs from the list" in _answer(laboratory.compare())
    assert "Not drawn" in _answer(laboratory.three_classes())
    assert "predicted: plain iteration" in _answer(laboratory.one_image())
    assert all(picture.png.startswith(b"\x89PNG") for picture in pictures) and pictures


@pytest.mark.slow
def test_a_training_is_stopped_goes_on_and_is_the_run_of_the_printed_command(pictures):
    panel = laboratory.train("smoke")
    (go, halt), inner = panel.children[0].children, panel.children[1]
    _answer(panel, epochs="20")
    go.click()
    command = "nclib train --profile smoke --model deq --K_A 3 --R 10 --epochs 20 --seed 0"
    _until(lambda: "**training**, epoch" in _answer(panel))
    halt.click()
    assert "**stopped" in inner.result and command in inner.result and default_store().ids() == []
    before = len(pictures)
    go.click()
    _until(lambda: "**finished**, epoch 20" in _answer(panel))
    assert len(pictures) > before
    (run,) = default_store().ids()
    assert run in inner.result and nc.load_run(run).provenance["facts"]["continued_from"]
    _as_the_network_itself(run)


def _as_the_network_itself(run):
    found = _printed(_answer(laboratory.one_image(), run=run, image=5))
    assert set(found.solutions) == {"fixed_point", "anderson", "broyden"}
    config, model, split = compute.open_network(run)
    _, _, loaders = training.reopen(config, default_store().open(run).weights, torch.device("cpu"))
    with training.arithmetic(config.train, torch.device("cpu")), torch.no_grad():
        images, _ = next(loaders["test"].in_order())
        own = model(images[5:6])
        x = compute._block_input(model, split, 5)
        again = fixed_point(model.block.cell, build_solver(config.model.solver), x, (x,))
    assert torch.equal(again.trace, own.solution.trace) and found.label == split.class_names[split.test_labels[5]]


def test_a_damaged_run_gives_a_sentence():
    run = "digits-balanced-deq-s0-0123456789ab"
    (paths.runs() / run).mkdir(parents=True)
    (paths.runs() / run / "DONE").write_text("{}")
    for panel, chosen in (
        (laboratory.compare(), [run]),
        (laboratory.one_image(), run),
        (laboratory.three_classes(), run),
    ):
        said = _answer(panel, **{"runs" if isinstance(chosen, list) else "run": chosen})
        assert said.startswith("**Not drawn:**") and run in said and "is damaged" in said


@pytest.mark.parametrize("name", compute.MAPS)
def test_a_walk_is_what_the_solver_does_and_what_is_printed(name):
    said = _answer(laboratory.plane(), name=name, rho=0.7, z1=-1.5, z2=0.8)
    for method, walk in _printed(said).items():
        f, solver = laboratory.plane_map(name, 0.7), compute.METHODS[method](tol=1e-6, max_steps=30)
        solution = fixed_point(f, solver, torch.tensor([[-1.5, 0.8]], dtype=torch.float64))
        assert torch.equal(walk.solution.trace, solution.trace) and len(walk.points) == solution.num_evals
    if name in ("symmetric", "rotation", "shear"):
        point = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
        assert torch.allclose(f(point), point)


def test_three_classes_at_a_simplex_are_the_ideal_triangle():
    means = simplex_etf(3, 6).numpy() @ np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    labels, rows = np.repeat([4, 7, 9], 5), np.zeros((10, 6))
    rows[[4, 7, 9]] = 3 * means
    seen = laboratory.class_triangle(means[np.repeat(range(3), 5)] + 5.0, labels, rows, [4, 7, 9])
    assert np.allclose(seen.means, seen.ideal, atol=1e-12) and np.allclose(seen.weights, seen.means, atol=1e-12)
    assert all(value < 1e-7 for value in seen.facts.values())
    with pytest.raises(ConfigError, match="three different classes"):
        laboratory.class_triangle(means, labels[::5], rows, [4, 4, 9])
