"""What runs cost: seconds of each from a model fitted to finished ones, what a grid of them will take, GPU memory."""

from __future__ import annotations

import heapq
import math
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from nclib.config import RunConfig, StoredConfig
from nclib.engine.experiments import class_counts, outline
from nclib.papers.kernel_equivalence.shallow import ShallowConfig
from nclib.papers.neural_collapse.probes import ProbeConfig
from nclib.system.provenance import duration

# Seconds on one core of the machine the quick profile was developed on: a fixed part for each layer call and batch,
# and one for the arithmetic. They are the start of the fit, and what is used where nothing has finished yet.
_SECONDS_PER_BATCH = 0.022
_SECONDS_PER_GMAC = 0.021
_DEQ_OVER_EXPLICIT = 2.1
_SECONDS_PER_SOLVE = 0.025

_FEWEST = 3
"""Finished runs of a kind before they say more than the constants above, scaled to this machine."""
_PRIOR = 0.1
"""Weight of those constants in the fit: runs of one size alone cannot tell batches from arithmetic."""
_LATEST = 300
"""Finished runs that the model is fitted to, the latest ones."""
_TYPICAL_ERROR = 0.1
"""Relative error beyond which a run weighs less and less: an outlier, such as one that went on from its checkpoint."""


def _features(config: StoredConfig) -> tuple[str, tuple[float, ...], tuple[float, ...]]:
    """Group of a run, the numbers its seconds are a sum of, and the built-in seconds of one of each."""
    if isinstance(config, ProbeConfig):
        return config.kind, _probe_features(config), (_SECONDS_PER_SOLVE, _SECONDS_PER_GMAC)
    if isinstance(config, ShallowConfig):
        return config.kind, (config.work() * int(class_counts(config.data).sum()) / 1400,), (1.0,)
    if not isinstance(config, RunConfig):
        return config.kind, (config.work(),), (1.0,)
    images = int(class_counts(config.data).sum())
    batches = config.train.epochs * -(-images // config.train.batch_size)
    evaluations = len([e for e in range(1, config.train.epochs + 1) if e % config.train.log_every == 0])
    passes = 3 * config.train.epochs * images + evaluations * images
    factor = _DEQ_OVER_EXPLICIT if config.model.kind == "deq" else 1.0
    constants = (factor * _SECONDS_PER_BATCH, factor * _SECONDS_PER_GMAC)
    return config.model.kind, (batches, passes * _gigamacs(config.model.width, config.data.dataset)), constants


def _probe_features(config: ProbeConfig) -> tuple[float, float]:
    """Solves with their neural-collapse report, and billions of multiplications of the cell, of whose evaluations most
    images need a third of those allowed."""
    test = outline(config.data.dataset).classes * (config.data.test_per_class or 50)
    evaluations = (int(class_counts(config.data).sum()) + test) * config.evaluations() / 3
    return float(len(list(config.settings()))), evaluations * 0.14 * _gigamacs(config.model.width, config.data.dataset)


def _gigamacs(width: int, dataset: str) -> float:
    """Billions of multiplications of one forward pass: 0.555 for ResNet-18 of width 64 on 32×32 pixels."""
    return 0.555 * (width / 64) ** 2 * math.prod(outline(dataset).size) / 1024


@dataclass(frozen=True)
class CostModel:
    """Seconds of a run before it starts: a sum over batches and multiplications, with weights for each kind of network.

    weights : for each kind, seconds of one of each feature; kinds that are not in it have the built-in ones times
        `speed`
    speed : seconds here over seconds by the built-in constants
    runs : finished runs that it was fitted to
    """

    weights: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    speed: float = 1.0
    runs: int = 0

    @classmethod
    def fit(cls, finished: Iterable[tuple[StoredConfig, float]]) -> CostModel:
        """The model of finished runs and their seconds.

        Least squares on logarithms of the ratio, robust against outliers, drawn weakly towards the built-in constants.
        A kind with fewer than three finished runs keeps those, scaled by the median over all runs.
        """
        groups: dict[str, list[tuple[tuple[float, ...], float]]] = {}
        constants: dict[str, tuple[float, ...]] = {}
        ratios = []
        for config, seconds in finished:
            if seconds > 0:
                group, features, built_in = _features(config)
                groups.setdefault(group, []).append((features, seconds))
                constants[group] = built_in
                ratios.append(seconds / max(float(np.dot(features, built_in)), 1e-9))
        if not ratios:
            return cls()
        weights = {group: _fit_group(rows, constants[group]) for group, rows in groups.items() if len(rows) >= _FEWEST}
        return cls(weights, statistics.median(ratios), len(ratios))

    def seconds(self, config: StoredConfig) -> float:
        """Estimated seconds of a run on one core of this machine."""
        group, features, built_in = _features(config)
        weights = self.weights.get(group)
        return float(np.dot(features, built_in)) * self.speed if weights is None else float(np.dot(features, weights))


def _fit_group(rows: list[tuple[tuple[float, ...], float]], built_in: tuple[float, ...]) -> tuple[float, ...]:
    features, seconds = np.array([row[0] for row in rows], dtype=float), np.array([row[1] for row in rows])
    scale = np.median(seconds / np.maximum(features @ np.array(built_in), 1e-9))
    relative = features * (np.array(built_in) * scale) / seconds[:, None]  # weights in units of scaled constants

    def residuals(weights: np.ndarray) -> np.ndarray:
        return np.concatenate([np.log(np.maximum(relative @ weights, 1e-9)), _PRIOR * (weights - 1.0)])

    start = np.ones(features.shape[1])
    options = {"bounds": (0.0, np.inf), "loss": "soft_l1", "f_scale": _TYPICAL_ERROR}
    fitted = scipy.optimize.least_squares(residuals, start, **options)
    return tuple(float(value) for value in fitted.x * np.array(built_in) * scale)


def makespan(seconds: Iterable[float], workers: int) -> float:
    """Seconds until the last of these runs ends, when each starts, in this order, at the first worker that is free."""
    free = [0.0] * max(1, workers)
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


class Forecast:
    """How long the rest of a grid takes, told while it runs and scored when it has ended.

    configs : the runs that are to be trained, by id
    finished : earlier runs and their seconds, which the model is fitted to
    longest_first : hand the longest runs out first: what is left for the end is short, so that no worker waits long for
        the last. Otherwise in the order of `configs`
    """

    POINTS = (0.0, 0.25, 0.5, 0.75)
    """Shares of the work at which the forecast is noted, to be scored."""

    def __init__(
        self,
        configs: Mapping[str, StoredConfig],
        finished: Iterable[tuple[StoredConfig, float]] = (),
        longest_first: bool = True,
    ) -> None:
        self._configs = dict(configs)
        self._longest_first = longest_first
        self._finished = list(finished)
        self._started = time.monotonic()
        self._workers = 1
        self._noted: list[dict[str, float]] = []
        self._took: float | None = None
        self._not_trained = 0
        self._refit()

    def _refit(self) -> None:
        self._fitted = len(self._finished)
        self.model = CostModel.fit(self._finished[-_LATEST:])
        self._seconds = {run: self.model.seconds(config) for run, config in self._configs.items()}

    def order(self) -> list[str]:
        """The runs as they are to be handed out."""
        return sorted(self._seconds, key=lambda run: -self._seconds[run]) if self._longest_first else [*self._configs]

    def seconds(self, run: str) -> float:
        return self._seconds[run]

    def done(self, run: str, seconds: float | None) -> None:
        """Learn from a run that has finished; None where its seconds are not known."""
        if seconds:
            self._finished.append((self._configs[run], seconds))
            if len(self._finished) >= 1.1 * self._fitted:
                self._refit()

    def remaining(self, progress: Mapping[str, float], workers: int) -> float:
        """Seconds until the last run ends.

        progress : finished share, 0 to 1, of each run that has begun; the others wait
        workers : runs at once
        """
        left = {run: seconds * (1.0 - progress.get(run, 0.0)) for run, seconds in self._seconds.items()}
        begun = [left[run] for run in left if progress.get(run, 0.0) > 0]
        waiting = [left[run] for run in self.order() if not progress.get(run, 0.0)]
        forecast, self._workers = makespan([*begun, *waiting], workers), max(1, workers)
        total = sum(self._seconds.values())
        share = 1.0 - sum(left.values()) / total if total else 1.0
        if len(self._noted) < len(self.POINTS) and share >= self.POINTS[len(self._noted)]:
            self._noted.append({"elapsed": self._elapsed(), "remaining": round(forecast, 1)})
        return forecast

    def _elapsed(self) -> float:
        return round(time.monotonic() - self._started, 1)

    def close(self, not_trained: int = 0) -> None:
        """The grid has ended, so many of its runs without a result; what was forecast is compared with this moment."""
        self._took, self._not_trained = self._elapsed(), not_trained

    def text(self) -> str:
        """One line: what it took, and what was said at the start and half way."""
        facts = self.as_dict()
        notes = facts["forecasts"]
        said = [f"forecast at the start {duration(notes[0]['remaining'])}"] if notes else []
        if len(notes) > 2:
            said.append(f"half way {duration(notes[2]['remaining'])} more, which took {duration(notes[2]['lasted'])}")
        runs = f"{facts['runs'] - self._not_trained} of {facts['runs']}" if self._not_trained else facts["runs"]
        return f"trained {runs} runs in {duration(facts['seconds'])}" + "".join(f"; {part}" for part in said)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: runs, workers, seconds, fitted_to (finished runs), and forecasts, each with the seconds elapsed,
        those it took the rest to last, and those the rest lasted."""
        took = self._elapsed() if self._took is None else self._took
        forecasts = [note | {"lasted": round(took - note["elapsed"], 1)} for note in self._noted]
        return {
            "runs": len(self._configs),
            "workers": self._workers,
            "seconds": took,
            "fitted_to": self.model.runs,
            "forecasts": forecasts,
        }


# --- GPU memory -----------------------------------------------------------------------------------------------------

_CONTEXT_GIB = 1.0
_SAFETY = 1.5


def estimate_gpu_gib(config: StoredConfig) -> float:
    """GPU memory of a run in GiB, to plan how many share a device.

        1.5 (16 P + 12 B A + I) + 1 GiB

    P parameters in four copies (weight, gradient, momentum, the optimiser's temporary), each 4 bytes; A outputs of
    convolutions of one image, each kept as it is, normalised and rectified, for B images; I bytes of images; half as
    much again for the memory of the solver and of cuDNN, and 1 GiB for CUDA itself. Configurations that look into a run
    need as much as that run, small regressions CUDA alone. Reckoned, not measured.
    """
    base = getattr(config, "base", None) or getattr(config, "encoder", None) or config
    if not isinstance(base, RunConfig):
        return _CONTEXT_GIB
    about, width = outline(base.data.dataset), base.model.width / 64
    pixels = math.prod(about.size)
    parameters = 11.2e6 * width**2
    outputs = 614e3 * width * pixels / 1024
    images = 3.0 * pixels * int(class_counts(base.data).sum()) * 1.2
    return _SAFETY * (16 * parameters + 12 * base.train.batch_size * outputs + images) / 2**30 + _CONTEXT_GIB
