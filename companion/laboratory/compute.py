"""What the laboratory looks at besides curves: solvers in the plane, solvers on one image, three classes as a triangle.

Everything here computes and nothing draws; `companion.laboratory.figures` has the pictures.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nclib import metrics, training
from nclib.config import ConfigError, RunConfig, suggest
from nclib.data import Batches, Split, make_split
from nclib.deq import DEQ
from nclib.engine.store import default_store
from nclib.models import Classifier, build_model
from nclib.solver import Anderson, Broyden, FixedPointIteration, Solution, Solver, fixed_point
from nclib.system import own_code

Map = Callable[[Tensor], Tensor]


# --- maps of the plane ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlaneMap:
    """A family of maps of the plane to itself.

    Parameters
    ----------
    formula : what it computes, in words and symbols
    strength, lowest, highest : its parameter, its usual value and range
    build : strength -> f, which maps (B, 2) to (B, 2) in float64
    """

    formula: str
    strength: float
    lowest: float
    highest: float
    build: Callable[[float], Map]


_ANSWER = (1.0, 0.5)  # the fixed point of every linear map here, so that their pictures can be compared


def _linear(rows: Callable[[float], Sequence[Sequence[float]]]) -> Callable[[float], Map]:
    def build(strength: float) -> Map:
        matrix = torch.tensor(rows(strength), dtype=torch.float64)
        answer = torch.tensor(_ANSWER, dtype=torch.float64)
        return lambda z: answer + (z - answer) @ matrix.T

    return build


def _symmetric(strength: float) -> list[list[float]]:
    """Eigenvalues ρ and −ρ/2, on axes turned by 30°."""
    c, s = math.cos(math.pi / 6), math.sin(math.pi / 6)
    return [
        [strength * (c * c - s * s / 2), strength * 1.5 * c * s],
        [strength * 1.5 * c * s, strength * (s * s - c * c / 2)],
    ]


def _network(gain: float) -> Map:
    weight = torch.tensor([[0.9, -0.8], [0.7, 0.6]], dtype=torch.float64)
    bias = torch.tensor([0.3, -0.2], dtype=torch.float64)
    return lambda z: torch.tanh(gain * z @ weight.T + bias)


MAPS: dict[str, PlaneMap] = {
    "symmetric": PlaneMap("z* + W(z − z*), eigenvalues ρ and −ρ/2", 0.9, -1.5, 1.5, _linear(_symmetric)),
    "rotation": PlaneMap(
        "z* + W(z − z*), a quarter turn times ρ", 0.9, -1.5, 1.5, _linear(lambda rho: [[0.0, -rho], [rho, 0.0]])
    ),
    "shear": PlaneMap(
        "z* + W(z − z*), both eigenvalues ρ, pulled sideways by 2", 0.8, -1.5, 1.5,
        _linear(lambda rho: [[rho, 2.0], [0.0, rho]]),
    ),
    "tanh": PlaneMap("tanh(ρ V z + b), a layer of two neurons", 1.0, 0.0, 4.0, _network),
    "cosine": PlaneMap(
        "(cos ρ z₂, cos ρ z₁), each coordinate from the other", 1.0, 0.0, 2.5,
        lambda rho: lambda z: torch.cos(rho * z.flip(1)),
    ),
}  # fmt: skip
"""Maps of the playground; those of walkthrough 01 and 02 in two dimensions."""


def plane_map(name: str, strength: float) -> Map:
    """The map of that name and strength: f takes (B, 2) float64 to (B, 2).

    Raises
    ------
    ConfigError
        For an unknown name, with the nearest one.
    """
    if name not in MAPS:
        raise ConfigError(suggest(name, MAPS, "map"))
    return MAPS[name].build(strength)


def solver_methods(tol: float, max_steps: int) -> dict[str, Solver]:
    """Plain iteration, Anderson and Broyden with the same tolerance and number of evaluations, by their names.

    Raises
    ------
    ValueError
        For a tolerance or number that no solver can have.
    """
    return {
        "fixed_point": FixedPointIteration(tol=tol, max_steps=max_steps),
        "anderson": Anderson(tol=tol, max_steps=max_steps),
        "broyden": Broyden(tol=tol, max_steps=max_steps),
    }


class Walk(NamedTuple):
    """What a solver did from one start: points (T, n), where it evaluated f, in order; solution of that one row, whose
    trace (T, 1) holds the residuals at those points."""

    points: np.ndarray
    solution: Solution


def solver_walk(f: Map, solver: Solver, start: Sequence[float]) -> Walk:
    """Solve z = f(z) from one start and keep every point on the way.

    Parameters
    ----------
    f : maps (1, n) float64 to (1, n)
    solver : any of `nclib.solver`
    start : (n,)
    """
    points: list[Tensor] = []

    def recorded(z: Tensor) -> Tensor:
        points.append(z[0].clone())
        return f(z)

    solution = fixed_point(recorded, solver, torch.tensor([list(start)], dtype=torch.float64))
    return Walk(torch.stack(points).numpy(), solution)


def residual_field(f: Map, xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """‖f(z) − z‖₂ on the grid of xs and ys, (len(ys), len(xs))."""
    grid = np.stack(np.meshgrid(xs, ys), axis=-1)
    z = torch.from_numpy(grid.reshape(-1, 2).astype(np.float64))
    return (f(z) - z).norm(dim=1).numpy().reshape(len(ys), len(xs))


# --- the solvers on one image --------------------------------------------------------------------------------


class ImageTraces(NamedTuple):
    """One image through one equilibrium network: image (C, H, W) uint8, its class and the names of all; by method the
    `Solution` and the predicted class, a number."""

    image: np.ndarray
    label: int
    class_names: tuple[str, ...]
    solutions: dict[str, Solution]
    predicted: dict[str, int]


def image_traces(run: str | RunConfig, image: int, solvers: Mapping[str, Solver]) -> ImageTraces:
    """Solve the equilibrium of one test image with each of these solvers, from the network's own start.

    Parameters
    ----------
    run : id of a stored DEQ run; or a configuration, whose network is then taken untrained
    image : number of the test image
    solvers : by name, such as `solver_methods` gives them

    Raises
    ------
    ConfigError
        For a run without an equilibrium, or a number that no test image has.
    CorruptRun
        When the run is not in the run store.
    """
    config, model, split = open_network(run)
    if not 0 <= image < len(split.test_labels):
        raise ConfigError(f"there is no test image {image}; type a number from 0 to {len(split.test_labels) - 1}")
    with training.arithmetic(config.train, torch.device("cpu")), torch.no_grad():
        x = _block_input(model, split, image)
        solutions, predicted = {}, {}
        for name, solver in solvers.items():
            start = x if model.block.z0 == "x" else torch.zeros_like(x)
            solution = fixed_point(model.block.cell, solver, start, (x,))
            solutions[name] = solution
            predicted[name] = int(model.read_out(solution.value, solution).logits.argmax())
    pixels = split.test_images[image].numpy()
    return ImageTraces(pixels, int(split.test_labels[image]), split.class_names, solutions, predicted)


def _block_input(model: Classifier, split: Split, image: int) -> Tensor:
    """The encoder's output for one test image, (1, d, H, W), as `Classifier.transform` hands it to the block."""
    dtype = next(model.block.parameters()).dtype
    one = Batches(
        split.test_images[image : image + 1], split.test_labels[image : image + 1],
        batch_size=1, mean=split.mean, std=split.std, dtype=dtype,
    )  # fmt: skip
    pixels, _ = next(one.in_order())
    return model.encoder(pixels).to(dtype).contiguous()


def _refuse_unknown_code(config: RunConfig) -> None:
    """Code that a stored run names is used where the user has imported it, and is never imported for the run's sake."""
    if name := config.model.own_code:
        made = own_code.imported(name)
        if not (isinstance(made, type) and issubclass(made, torch.nn.Module)):
            module, _, cell = name.partition(":")
            raise ConfigError(
                f"this run has the cell {name}, and a stored run imports no code. If you trust it, say it yourself: "
                f"from {module} import {cell}"
            )


@functools.lru_cache(maxsize=4)
def open_network(run: str | RunConfig) -> tuple[RunConfig, Classifier, Split]:
    """Configuration, network in evaluation mode and images of a stored DEQ run, or of an untrained one."""
    if isinstance(run, RunConfig):
        config, weights = run, None
    else:
        config, weights = RunConfig(**default_store().load(run).config), default_store().weights(run)
        _refuse_unknown_code(config)
    if config.model.kind != "deq":
        raise ConfigError(f"{config.label()} has no equilibrium to solve; choose a run of kind 'deq'")
    with training.arithmetic(config.train, torch.device("cpu")):
        if weights is None:
            split = make_split(config.data, config.seed)
            weights = build_model(
                config.model, len(split.counts), split.train_images.shape[1], config.seed
            ).state_dict()
        model, split, _ = training.reopen(config, weights, torch.device("cpu"))
    assert isinstance(model.block, DEQ)
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
        Where classes are not three different ones that occur among the labels, or their means lie on one line.
    """
    present = np.unique(labels).tolist()
    if len(set(classes)) != 3 or not set(classes) <= set(present):
        raise ConfigError(f"choose three different classes, of these: {', '.join(map(str, present))}")
    chosen = np.isin(labels, classes)
    h = np.asarray(features, dtype=np.float64)[chosen]
    own = np.array([list(classes).index(k) for k in labels[chosen]])
    raw = np.stack([h[own == k].mean(0) for k in range(3)])
    centre = raw.mean(0)
    means = raw - centre
    _, sizes, axes = np.linalg.svd(means, full_matrices=False)
    if sizes[1] < 1e-9 * sizes[0] or not sizes[0]:
        raise ConfigError("the means of these three classes lie on one line and form no triangle; choose others")
    plane = axes[:2]
    within = h - raw[own]
    _, spreads, directions = np.linalg.svd(within - within @ plane.T @ plane, full_matrices=False)
    collapsed = spreads[0] < 1e-9 * sizes[0]  # no spread across the plane: any direction across it will do
    across = np.linalg.svd(plane)[2][2] if collapsed else directions[0]
    basis = np.stack([*plane, across])
    scale = np.linalg.norm(means, axis=1).mean()
    rows = np.asarray(classifier, dtype=np.float64)[list(classes)]
    weights = rows - rows.mean(0)
    weights = weights / max(np.linalg.norm(weights, axis=1).mean(), 1e-30)
    flat = means @ plane.T / scale
    etf = metrics.simplex_etf(3, 2).numpy()
    u, _, v = np.linalg.svd(etf.T @ flat)
    ideal = np.column_stack([etf @ u @ v, np.zeros(3)])
    moments = metrics.class_moments(torch.from_numpy(h), torch.from_numpy(own), 3)
    facts = {
        "NC1": metrics.nc1_trace_ratio(moments),
        "NC2": metrics.nc2_etf_distance(moments.centred_means),
        "NC3": metrics.nc3_self_duality(torch.from_numpy(weights), moments),
    }
    return Triangle((h - centre) @ basis.T / scale, own, means @ basis.T / scale, weights @ basis.T, ideal, facts)
