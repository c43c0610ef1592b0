"""What the laboratory looks at besides curves: solvers in the plane, solvers on one image, three classes in space."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import orthogonal_procrustes
from torch import Tensor

from nclib import metrics, training
from nclib.config import ConfigError, RunConfig
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


def _two_neurons(rho: float) -> Map:
    weight = torch.tensor([[0.9, -0.8], [0.7, 0.6]], dtype=torch.float64)
    bias = torch.tensor([0.3, -0.2], dtype=torch.float64)
    return lambda z: torch.tanh(rho * z @ weight.T + bias)


MAPS: dict[str, Callable[[float], Map]] = {
    "rotation": lambda rho: _linear([[0.0, -rho], [rho, 0.0]]),
    "shear": lambda rho: _linear([[rho, 2.0], [0.0, rho]]),
    "tanh": _two_neurons,
    "cosine": lambda rho: lambda z: torch.cos(rho * z.flip(1)),
}
"""Maps of the plane by their strength ρ: those of walkthrough 01 and 02 in two dimensions. f takes (B, 2) float64."""


def walks(
    name: str, rho: float, start: Sequence[float], tol: float = 1e-6, max_steps: int = 30
) -> dict[str, tuple[np.ndarray, Solution]]:
    """Solve z = f(z) for one of `MAPS` by every method.

    Parameters
    ----------
    name, rho : of the map
    start : (2,)
    tol, max_steps : of the solvers

    Returns
    -------
    By method the points (T, 2) where it evaluated f, in order, and the solution of that one row, whose trace (T, 1)
    holds the residuals at those points.
    """
    f = MAPS[name](rho)
    return {method: _walk(f, solver, start) for method, solver in _solvers(tol, max_steps).items()}


def _walk(f: Map, solver: Solver, start: Sequence[float]) -> tuple[np.ndarray, Solution]:
    points: list[Tensor] = []

    def recorded(z: Tensor) -> Tensor:
        points.append(z[0].clone())
        return f(z)

    solution = fixed_point(recorded, solver, torch.tensor([list(start)], dtype=torch.float64))
    return torch.stack(points).numpy(), solution


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
    CorruptRun
        For a run that is damaged, or not in the run store.
    """
    config, model, split = open_network(run)
    names, solutions, predicted, one = split.class_names, {}, {}, slice(image, image + 1)
    batches = Batches(
        split.test_images[one], split.test_labels[one], batch_size=1, mean=split.mean, std=split.std
    ).in_order()
    with training.arithmetic(config.train, torch.device("cpu")), torch.no_grad():
        x = model.encoder(next(batches)[0]).float().contiguous()
        for method, solver in _solvers(tol, max_steps).items():
            z, solutions[method] = model.block(x, solver=solver)
            predicted[method] = names[int(model.read_out(z, solutions[method]).logits.argmax())]
    return ImageTraces(split.test_images[image].numpy(), names[int(split.test_labels[image])], solutions, predicted)


@functools.lru_cache(maxsize=4)
def open_network(run: str | None) -> tuple[RunConfig, Classifier, Split]:
    """Configuration, network in evaluation mode and images of a stored DEQ run; of an untrained one for None."""
    stored = None if run is None else load_run(run)
    config = experiment("fig2", "smoke")[1] if stored is None else RunConfig(**stored.config)
    with training.arithmetic(config.train, torch.device("cpu")):
        split = make_split(config.data, config.seed)
        channels = split.train_images.shape[1]
        model = stored.network() if stored else build_model(config.model, len(split.counts), channels, config.seed)
    model.block.on_failure = "ignore"
    return config, model.eval(), split


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
        Where classes are not three different ones that occur among the labels.
    """
    present = np.unique(labels).tolist()
    if len(set(classes)) != 3 or not set(classes) <= set(present):
        raise ConfigError(f"choose three different classes, of these: {', '.join(map(str, present))}")
    chosen = np.isin(labels, classes)
    h = np.asarray(features, dtype=np.float64)[chosen]
    own = np.array([list(classes).index(k) for k in labels[chosen]])
    raw = np.stack([h[own == k].mean(0) for k in range(3)])
    means = raw - raw.mean(0)
    basis = _basis(means, h - raw[own])
    scale = np.linalg.norm(means, axis=1).mean()
    rows = np.asarray(classifier, dtype=np.float64)[list(classes)]
    weights = rows - rows.mean(0)
    weights = weights / np.linalg.norm(weights, axis=1).mean()
    moments = metrics.class_moments(torch.from_numpy(h), torch.from_numpy(own), 3)
    facts = {
        "NC1": metrics.nc1_trace_ratio(moments),
        "NC2": metrics.nc2_etf_distance(moments.centred_means),
        "NC3": metrics.nc3_self_duality(torch.from_numpy(weights), moments),
    }
    seen, etf = means @ basis.T / scale, metrics.simplex_etf(3, 3).numpy()
    ideal = etf @ orthogonal_procrustes(etf, seen)[0]
    return Triangle((h - raw.mean(0)) @ basis.T / scale, own, seen, weights @ basis.T, ideal, facts)


def _basis(means: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Three axes (3, d): two span the means, the third is the direction across them in which `within` is largest."""
    _, sizes, axes = np.linalg.svd(means)
    _, spreads, directions = np.linalg.svd(within - within @ axes[:2].T @ axes[:2], full_matrices=False)
    collapsed = spreads[0] < 1e-9 * sizes[0]  # no spread across the plane: any direction across it will do
    return np.stack([*axes[:2], axes[2] if collapsed else directions[0]])
