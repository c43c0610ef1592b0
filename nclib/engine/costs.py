"""What runs cost: seconds of each, scaled to finished ones; what a grid of them will take; GPU memory."""

from __future__ import annotations

import heapq
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nclib.config import RunConfig, StoredConfig
from nclib.engine.outline import class_counts, outline
from nclib.system.terminal import duration

# Seconds on one core of the machine the quick profile was developed on: a fixed part for each layer call and batch,
# and one for the arithmetic.
_SECONDS_PER_BATCH = 0.022
SECONDS_PER_GMAC = 0.021
_DEQ_OVER_EXPLICIT = 2.1

_TINY, _TINY_TOOK = 1.0, 5.0
"""Seconds by the constants, and as they were: a run below both mostly starts up, and tells of its like alone."""
_FEWEST = 3
"""Finished runs of a kind before they say more than those of the other kinds."""
_LATEST = 300
"""Finished runs that the model is scaled to, the latest ones."""


def _reckoned(config: StoredConfig) -> tuple[str, float]:
    """Kind of a run, and its seconds by what its configuration says, for classifiers by the constants above."""
    if not isinstance(config, RunConfig):
        return config.kind, config.seconds()
    images = int(class_counts(config.data).sum())
    batches = config.train.epochs * -(-images // config.train.batch_size)
    evaluations = config.train.epochs // config.train.log_every
    passes = 3 * config.train.epochs * images + evaluations * images
    seconds = _SECONDS_PER_BATCH * batches
    seconds += SECONDS_PER_GMAC * passes * gigamacs(config.model.width, config.data.dataset)
    return config.model.kind, seconds * (_DEQ_OVER_EXPLICIT if config.model.kind == "deq" else 1.0)


def gigamacs(width: int, dataset: str) -> float:
    """Billions of multiplications of one forward pass: 0.555 for ResNet-18 of width 64 on 32×32 pixels."""
    return 0.555 * (width / 64) ** 2 * math.prod(outline(dataset).size) / 1024


@dataclass(frozen=True)
class CostModel:
    """Seconds of a run before it starts: those of another machine, times the median ratio of finished runs of its kind.

    Parameters
    ----------
    ratios : for each kind, and for tiny runs of it (True) and others, seconds here over seconds there
    speed : the same over all classifiers, for the kinds that are not in `ratios`
    """

    ratios: Mapping[tuple[str, bool], float] = field(default_factory=dict)
    speed: Mapping[bool, float] = field(default_factory=dict)

    @classmethod
    def fit(cls, finished: Iterable[tuple[StoredConfig, float]]) -> CostModel:
        """The model of finished runs and their seconds. A kind counts for itself from its third finished run on."""
        kinds: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
        classifiers: defaultdict[bool, list[float]] = defaultdict(list)
        for config, seconds in finished:
            kind, reckoned = _reckoned(config)
            tiny = reckoned < _TINY and seconds < _TINY_TOOK
            if seconds > 0:
                ratio = seconds / max(reckoned, 1e-9)
                kinds[kind, tiny].append(ratio)
                if isinstance(config, RunConfig):  # the seconds of other kinds are in units of their own
                    classifiers[tiny].append(ratio)
        ratios = {kind: statistics.median(each) for kind, each in kinds.items() if len(each) >= _FEWEST}
        return cls(ratios, {tiny: statistics.median(each) for tiny, each in classifiers.items()})

    def seconds(self, config: StoredConfig) -> float:
        """Estimated seconds of a run on one core of this machine."""
        kind, reckoned = _reckoned(config)
        tiny = reckoned < _TINY
        known = [self.ratios.get((kind, tiny)), self.ratios.get((kind, False))]
        known += [self.speed.get(tiny), self.speed.get(False), 1.0]
        return reckoned * next(ratio for ratio in known if ratio is not None)


def makespan(seconds: Iterable[float], workers: int) -> float:
    """Seconds until the last of these runs ends, when each starts, in this order, at the first worker that is free."""
    free = [0.0] * max(1, workers)
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


class Forecast:
    """How long the rest of a grid takes, told while it runs.

    Parameters
    ----------
    configs : the runs that are to be trained, by id
    finished : earlier runs and their seconds, which the model is scaled to
    longest_first : hand the longest runs out first: what is left for the end is short, so that no worker waits long for
        the last. Otherwise in the order of `configs`
    urgency : rank of the runs that come before all others, 0 first; longest first within a rank
    """

    def __init__(
        self,
        configs: Mapping[str, StoredConfig],
        finished: Iterable[tuple[StoredConfig, float]] = (),
        longest_first: bool = True,
        urgency: Mapping[str, int] | None = None,
    ) -> None:
        self._configs = dict(configs)
        self._longest_first = longest_first
        self._urgency = urgency or {}
        self._finished = list(finished)
        self._started = time.monotonic()
        self._workers = 1
        self._took = 0.0
        self._not_trained = 0
        self._refit()

    def _refit(self) -> None:
        self._fitted = len(self._finished)
        self.model = CostModel.fit(self._finished[-_LATEST:])
        self._seconds = {run: self.model.seconds(config) for run, config in self._configs.items()}

    def order(self) -> list[str]:
        """The runs as they are to be handed out."""
        if not self._longest_first:
            return [*self._configs]
        return sorted(self._seconds, key=lambda run: (self._urgency.get(run, math.inf), -self._seconds[run]))

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

        Parameters
        ----------
        progress : finished share, 0 to 1, of each run that has begun; the others wait
        workers : runs at once
        """
        left = {run: seconds * (1.0 - progress.get(run, 0.0)) for run, seconds in self._seconds.items()}
        begun = [left[run] for run in left if progress.get(run, 0.0) > 0]
        waiting = [left[run] for run in self.order() if not progress.get(run, 0.0)]
        self._workers = max(1, workers)
        return makespan([*begun, *waiting], workers)

    def close(self, not_trained: int = 0) -> None:
        """The grid has ended, so many of its runs without a result."""
        self._took, self._not_trained = round(time.monotonic() - self._started, 1), not_trained

    def text(self) -> str:
        """One line, of a grid that has ended: how many runs, and how long they took."""
        runs = len(self._configs)
        trained = f"{runs - self._not_trained} of {runs}" if self._not_trained else runs
        return f"trained {trained} runs in {duration(self._took)}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, of a grid that has ended: runs, workers and seconds."""
        return {"runs": len(self._configs), "workers": self._workers, "seconds": self._took}


# --- GPU memory -----------------------------------------------------------------------------------------------------

_CONTEXT_GIB = 1.0
_SAFETY = 1.5


def estimate_gpu_gib(config: StoredConfig) -> float:
    """GPU memory of a run in GiB, to plan how many share a device.

        1.5 (16 P + 12 B A + I) + 1 GiB

    P parameters in four copies (weight, gradient, momentum, the optimiser's temporary), each 4 bytes; A outputs of
    convolutions of one image, each kept as it is, normalised and rectified, for B images; I bytes of images; half as
    much again for the memory of the solver and of cuDNN, and 1 GiB for CUDA itself. Configurations that need
    a run take as much as that run, small regressions CUDA alone. Reckoned, not measured.
    """
    base = config.needs() or config
    if not isinstance(base, RunConfig):
        return _CONTEXT_GIB
    about, width = outline(base.data.dataset), base.model.width / 64
    pixels = math.prod(about.size)
    parameters = 11.2e6 * width**2
    outputs = 614e3 * width * pixels / 1024
    images = 3.0 * pixels * int(class_counts(base.data).sum()) * 1.2
    return _SAFETY * (16 * parameters + 12 * base.train.batch_size * outputs + images) / 2**30 + _CONTEXT_GIB
