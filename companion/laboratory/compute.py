"""What the laboratory looks at besides curves: solvers in the plane, solvers on one image, three classes in space."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nclib import metrics, training
from nclib.config import ConfigError, RunConfig, suggest
from nclib.data import Batches, Split, make_split
from nclib.engine.experiments import experiment
from nclib.engine.reference import load_run
from nclib.models import Classifier, build_model
from nclib.solver import Anderson, Broyden, FixedPointIteration, Solution, Solver, fixed_point

Map = Callable[[Tensor], Tensor]

METHODS: dict[str, type[Solver]] = {"fixed_point": FixedPointIteration, "anderson": Anderson, "broyden": Broyden}


def _solvers(tol: float, max_steps: int) -> dict[str, Solver]:
    return {name: method(tol=tol, max_steps=max_steps) for name, method in METHODS.items()}


# --- maps of the plane ---------------------------------------------------------------------------------------


def _linear(rows: Sequence[Sequence[float]]) -> Map:
    """A linear map whose fixed point is (1, 0.5)."""
    matrix = torch.tensor(rows, dtype=torch.float64)
    answer = torch.tensor((1.0, 0.5), dtype=torch.float64)
    return lambda z: answer + (z - answer) @ matrix.T


def _symmetric(rho: float) -> Map:
    """Eigenvalues ρ and −ρ/2, on axes turned by 30°."""
    c, s = math.cos(math.pi / 6), math.sin(math.pi / 6)
    turn = np.array([[c, -s], [s, c]])
    return _linear((turn @ np.diag([rho, -rho / 2]) @ turn.T).tolist())


def _two_neurons(rho: float) -> Map:
    weight = torch.tensor([[0.9, -0.8], [0.7, 0.6]], dtype=torch.float64)
    bias = torch.tensor([0.3, -0.2], dtype=torch.float64)
    return lambda z: torch.tanh(rho * z @ weight.T + bias)


MAPS: dict[str, Callable[[float], Map]] = {
    "symmetric": _symmetric,
    "rotation": lambda rho: _linear([[0.0, -rho], [rho, 0.0]]),
    "shear": lambda rho: _linear([[rho, 2.0], [0.0, rho]]),
    "tanh": _two_neurons,
    "cosine": lambda rho: lambda z: torch.cos(rho * z.flip(1)),
}
"""Maps of the plane by their strength ρ: those of walkthrough 01 and 02 in two dimensions."""


def plane_map(name: str, rho: float) -> Map:
    """The map of that name and strength: f takes (B, 2) float64 to (B, 2).

    Raises
    ------
    ConfigError
        For an unknown name, with the nearest one.
    """
    if name not in MAPS:
        raise ConfigError(suggest(name, MAPS, "map"))
    return MAPS[name](rho)


class Walk(NamedTuple):
    """What a solver did from one start: points (T, 2), where it evaluated f, in order; the solution of that one row,
    whose trace (T, 1) holds the residuals at those points."""

    points: np.ndarray
    solution: Solution


def walks(name: str, rho: float, start: Sequence[float], tol: float = 1e-6, max_steps: int = 30) -> dict[str, Walk]:
    """Solve z = f(z) for a `plane_map` by every method, and keep each point on the way.

    Parameters
    ----------
    name, rho : of the map
    start : (2,)
    tol, max_steps : of the solvers
    """
    f = plane_map(name, rho)
    return {method: _walk(f, solver, start) for method, solver in _solvers(tol, max_steps).items()}


def _walk(f: Map, solver: Solver, start: Sequence[float]) -> Walk:
    points: list[Tensor] = []

    def recorded(z: Tensor) -> Tensor:
        points.append(z[0].clone())
        return f(z)

    solution = fixed_point(recorded, solver, torch.tensor([list(start)], dtype=torch.float64))
    return Walk(torch.stack(points).numpy(), solution)


# --- the solvers on one image --------------------------------------------------------------------------------


class ImageTraces(NamedTuple):
    """One image through one equilibrium network: image (C, H, W) uint8, the name of its class; by method the `Solution`
    and the predicted class."""

    image: np.ndarray
    label: str
    solutions: dict[str, Solution]
    predicted: dict[str, str]


def image_traces(run: str | None, image: int, tol: float = 1e-5, max_steps: int = 40) -> ImageTraces:
    """Solve the equilibrium of one test image by every method, from the network's own start.

    Parameters
    ----------
    run : id of a stored DEQ run; None for a small network that is not trained
    image : number of the test image
    tol, max_steps : of the solvers

    Raises
    ------
    ConfigError
        For a run without an equilibrium or with code of your own, or a number that no test image has.
    CorruptRun
        For a run that is damaged, or not in the run store.
    """
    config, model, split = open_network(run)
    if not 0 <= image < len(split.test_labels):
        raise ConfigError(f"test image {image} does not exist; type a number from 0 to {len(split.test_labels) - 1}")
    names, solutions, predicted = split.class_names, {}, {}
    with training.arithmetic(config.train, torch.device("cpu")), torch.no_grad():
        x = _block_input(model, split, image)
        start = x if model.block.z0 == "x" else torch.zeros_like(x)
        for method, solver in _solvers(tol, max_steps).items():
            solutions[method] = fixed_point(model.block.cell, solver, start, (x,))
            logits = model.read_out(solutions[method].value, solutions[method]).logits
            predicted[method] = names[int(logits.argmax())]
    return ImageTraces(split.test_images[image].numpy(), names[int(split.test_labels[image])], solutions, predicted)


def _block_input(model: Classifier, split: Split, image: int) -> Tensor:
    """The encoder's output for one test image, (1, d, H, W), as `Classifier.transform` hands it to the block."""
    dtype = next(model.block.parameters()).dtype
    one = slice(image, image + 1)
    batches = Batches(
        split.test_images[one], split.test_labels[one], batch_size=1, mean=split.mean, std=split.std, dtype=dtype
    )
    pixels, _ = next(batches.in_order())
    return model.encoder(pixels).to(dtype).contiguous()


@functools.lru_cache(maxsize=4)
def open_network(run: str | None) -> tuple[RunConfig, Classifier, Split]:
    """Configuration, network in evaluation mode and images of a stored DEQ run; of an untrained one for None."""
    stored = None if run is None else load_run(run)
    config = experiment("fig2", "smoke")[1] if stored is None else RunConfig(**stored.config)
    if config.model.kind != "deq":
        raise ConfigError(f"{config.label()} has no equilibrium to solve; choose a run of kind 'deq'")
    with training.arithmetic(config.train, torch.device("cpu")):
        split = make_split(config.data, config.seed)
        if stored is not None:
            return config, stored.network(), split
        channels = split.train_images.shape[1]
        return config, build_model(config.model, len(split.counts), channels, config.seed).eval(), split


# --- three classes -------------------------------------------------------------------------------------------


class Triangle(NamedTuple):
    """Three classes in three dimensions: the plane of their means, and across it the direction in which the features
    of a class spread most.

    points (N, 3), labels (N,) in 0, 1, 2; means, ideal (3, 3): class means and the simplex ETF nearest to them;
    weights (3, 3): classifier rows. Centred at the mean of the means; lengths in units of the mean distance of the
    means from there, those of the rows in units of their own mean length.

    Parameters
    ----------
    facts : NC1 (trace ratio), NC2 (ETF distance of the means) and NC3 (self-duality of the centred rows) of the three
        classes alone
    """

    points: np.ndarray
    labels: np.ndarray
    means: np.ndarray
    weights: np.ndarray
    ideal: np.ndarray
    facts: dict[str, float]


def class_triangle(
    features: np.ndarray, labels: np.ndarray, classifier: np.ndarray, classes: Sequence[int]
) -> Triangle:
    """Features (N, d), d ≥ 3, and classifier rows (K, d) of three classes, seen in the span of their means.

    Raises
    ------
    ConfigError
        Where classes are not three different ones that occur among the labels, or their means lie on one line.
    """
    present = np.unique(labels).tolist()
    if len(set(classes)) != 3 or not set(classes) <= set(present):
        raise ConfigError(f"choose three different classes, of these: {', '.join(map(str, present))}")
    chosen = np.isin(labels, classes)
    h = np.asarray(features, dtype=np.float64)[chosen]
    own = np.array([list(classes).index(k) for k in labels[chosen]])
    raw = np.stack([h[own == k].mean(0) for k in range(3)])
    means, within = raw - raw.mean(0), h - raw[own]
    basis = _basis(means, within)
    scale = np.linalg.norm(means, axis=1).mean()
    rows = np.asarray(classifier, dtype=np.float64)[list(classes)]
    weights = rows - rows.mean(0)
    weights = weights / max(np.linalg.norm(weights, axis=1).mean(), 1e-30)
    moments = metrics.class_moments(torch.from_numpy(h), torch.from_numpy(own), 3)
    facts = {
        "NC1": metrics.nc1_trace_ratio(moments),
        "NC2": metrics.nc2_etf_distance(moments.centred_means),
        "NC3": metrics.nc3_self_duality(torch.from_numpy(weights), moments),
    }
    seen = means @ basis.T / scale
    return Triangle((h - raw.mean(0)) @ basis.T / scale, own, seen, weights @ basis.T, _nearest_etf(seen), facts)


def _basis(means: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Three axes (3, d): two span the means, the third is the direction across them in which `within` is largest."""
    _, sizes, axes = np.linalg.svd(means, full_matrices=False)
    if sizes[1] < 1e-9 * sizes[0] or not sizes[0]:
        raise ConfigError("the means of these three classes lie on one line and form no triangle; choose others")
    plane = axes[:2]
    _, spreads, directions = np.linalg.svd(within - within @ plane.T @ plane, full_matrices=False)
    collapsed = spreads[0] < 1e-9 * sizes[0]  # no spread across the plane: any direction across it will do
    return np.stack([*plane, np.linalg.svd(plane)[2][2] if collapsed else directions[0]])


def _nearest_etf(means: np.ndarray) -> np.ndarray:
    etf = metrics.simplex_etf(3, 2).numpy()
    u, _, v = np.linalg.svd(etf.T @ means[:, :2])
    return np.column_stack([etf @ u @ v, np.zeros(3)])
