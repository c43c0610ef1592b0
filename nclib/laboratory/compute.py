"""What the laboratory looks at besides curves: solvers in the plane, and on one image."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nclib import training
from nclib.config import RunConfig
from nclib.data import Batches, Split, make_split
from nclib.models import Classifier, build_model
from nclib.profiles import experiment
from nclib.solvers import Anderson, Broyden, FixedPointIteration, Solution, Solver, fixed_point
from nclib.store import load_run

Map = Callable[[Tensor], Tensor]

METHODS: dict[str, type[Solver]] = {"fixed_point": FixedPointIteration, "anderson": Anderson, "broyden": Broyden}


def _solvers(tol: float, max_steps: int) -> dict[str, Solver]:
    return {name: method(tol=tol, max_steps=max_steps) for name, method in METHODS.items()}


# --- maps of the plane ---------------------------------------------------------------------------------------


def _linear(rows: Sequence[Sequence[float]]) -> Map:
    """A linear map whose fixed point is (1, 0.5)."""
    matrix, answer = (torch.tensor(numbers, dtype=torch.float64) for numbers in (rows, (1.0, 0.5)))
    return lambda z: answer + (z - answer) @ matrix.T


def _two_neurons(rho: float) -> Map:
    weight = torch.tensor([[0.9, -0.8], [0.7, 0.6]], dtype=torch.float64)
    return lambda z: torch.tanh(rho * z @ weight.T + torch.tensor([0.3, -0.2], dtype=torch.float64))


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
    batches = Batches(split.test_images[one], split.test_labels[one], batch_size=1, mean=split.mean, std=split.std)
    with training.arithmetic(config.train, torch.device("cpu")), torch.no_grad():
        x = model.encoder(next(batches.in_order())[0]).float().contiguous()
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
