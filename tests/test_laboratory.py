"""The laboratory: its cells run, and its panels show what solver and training do."""

import json

import pytest
import torch

import nclib as nc
from nclib import paths


@pytest.fixture(scope="module")
def lab():
    """The names that the notebook defines; no picture is encoded."""
    cells = json.loads((paths.notebooks() / "laboratory.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    namespace = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "laboratory", "exec"), namespace)
    return namespace


def test_the_train_button_trains_the_run_of_the_fields_and_draws_each_epoch(lab, monkeypatch):
    drawn = []
    monkeypatch.setitem(lab, "draw", lambda run, history: drawn.append((run, sorted(history))))
    for name, value in {"kind": "explicit", "width": 2, "epochs": 2, "R": 10}.items():
        lab["fields"][name].value = value
    lab["button"].click()
    config = lab["chosen"]()
    assert (config.data.num_majority, config.data.ratio, config.train.epochs) == (3, 10, 2)
    run = nc.run_id(config)
    assert nc.load_run(run).config == config.canonical()
    assert drawn[0] == (run, [1]) and drawn[-1] == (run, [1, 2])


def test_curves_are_those_of_the_history(lab, monkeypatch):
    shown = []
    monkeypatch.setattr(nc.plots, "picture", lambda fig, alt: shown.append(fig))
    lab["draw"]("a run", {1: {"steps/loss": 2.0}, 3: {"steps/loss": 0.5, "train/solver_steps": 7}})
    first = shown[0].axes[0].get_lines()[0]
    assert list(first.get_xdata()) == [1, 3] and list(first.get_ydata()) == [2.0, 0.5]


def test_one_image_is_solved_as_the_network_solves_it(lab):
    residuals, predicted, split = lab["solve_image"](None, 3, tol=1e-5, max_steps=40)
    model, _ = lab["open_network"](None)
    batches = nc.data.Batches(
        split.test_images[3:4], split.test_labels[3:4], batch_size=1, mean=split.mean, std=split.std
    )
    with torch.no_grad():
        x = model.encoder(next(batches.in_order())[0]).contiguous()
        _, solution = model.block(x, solver=nc.Broyden(tol=1e-5, max_steps=40))
    assert residuals["broyden"].tolist() == solution.trace[:, 0].tolist()
    assert set(predicted) == {"fixed_point", "anderson", "broyden"}


@pytest.mark.parametrize("name", ["rotation", "shear", "tanh", "cosine"])
def test_a_walk_ends_where_its_residual_is_least(lab, name):
    f = lab["MAPS"][name](0.7)
    points, residuals = lab["walk"](f, nc.Broyden(tol=1e-6, max_steps=30), [-1.5, 0.8])
    best = points[residuals.argmin()][None]
    assert len(points) == len(residuals) and torch.allclose(f(best), best, atol=1e-4)
    if name in ("rotation", "shear"):
        assert torch.allclose(best, torch.tensor([[1.0, 0.5]], dtype=torch.float64), atol=1e-4)
