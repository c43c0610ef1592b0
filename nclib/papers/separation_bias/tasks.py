"""The functions that the networks of Wu et al. (2024) learn, and where they are tested."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pydantic
import torch
from torch import Tensor

from nclib.config import Config
from nclib.papers.separation_bias.regions import LARGEST_LEVEL, tent_map
from nclib.papers.separation_bias.steep import steep_target

F1 = (1.0, 1.0, 1.0, *[0.0] * 17)
F2 = tuple(float(c) for c in np.linspace(1, 0.2, 20))
"""Coefficients of the two linear Boolean targets of 20 variables.

The paper's eqs. (14) and (15) are not known.
"""

Samples = tuple[Tensor, Tensor]
"""Inputs (N, d) and values (N,)."""


class TaskConfig(Config):
    """The function to learn, and where it is tested.

    Parameters
    ----------
    name :
        "sawtooth" — T^m on [0, 1], 2^m pieces; new uniform points, input 2x − 1; the constant has
        error 1/12
        "steep" — δ/(δ + s), δ = 2^−d, of s = 1 − x₁; half of the points uniform in [0, 1], half
        log-uniform from δ/30
        "boolean" — a function of ±1 variables, tested on points that training never sees (GOTU)
        "audio" — amplitude as a function of time in [−1, 1], tested on the training samples
    level : m or d, of the first two
    target : of "boolean": "linear" (Σ c_i x_i, unseen x₁ = −1), "product" (x₁x₂), "majority" (of
        x₁, x₂, x₃), both unseen x₁ = x₂ = −1, or "abbe" (x₁x₂ − 1.25 x₂x₃ + 1.5 x₃x₁, unseen
        x₁x₂x₃ = −1; Abbe et al. 2023). Of "audio": "tone"
    variables : of "boolean"
    coefficients : of target "linear", one for each variable
    """

    name: Literal["sawtooth", "steep", "boolean", "audio"]
    level: int | None = pydantic.Field(default=None, ge=1, le=LARGEST_LEVEL)
    target: Literal["linear", "product", "majority", "abbe", "tone"] | None = None
    variables: int | None = pydantic.Field(default=None, ge=1, le=60)
    coefficients: tuple[float, ...] | None = pydantic.Field(default=None, strict=False)

    def label(self) -> str:
        """Short name for run ids and tables."""
        if self.name == "sawtooth":
            return f"sawtooth-2^{self.level}"
        if self.name == "steep":
            return f"steep-d{self.level}"
        if self.coefficients == F1:
            return "f1"
        if self.coefficients == F2:
            return "f2"
        return self.target or self.name


def _product(x: Tensor) -> Tensor:
    return x[:, 0] * x[:, 1]


def _majority(x: Tensor) -> Tensor:
    return torch.sign(x[:, :3].sum(1))


def _abbe(x: Tensor) -> Tensor:
    return x[:, 0] * x[:, 1] - 1.25 * x[:, 1] * x[:, 2] + 1.5 * x[:, 2] * x[:, 0]


def _both_negative(x: Tensor) -> Tensor:
    return x[:, :2].amax(1) < 0


def _negative_product_of_three(x: Tensor) -> Tensor:
    return x[:, :3].prod(1) < 0


def _first_negative(x: Tensor) -> Tensor:
    return x[:, 0] < 0


BOOLEAN: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "product": (_product, _both_negative),
    "majority": (_majority, _both_negative),
    "abbe": (_abbe, _negative_product_of_three),
}
"""Function and unseen domain of the Boolean targets that are not linear."""


class Task:
    """Training batches from a seed, and fixed points to test on.

    Parameters
    ----------
    config : the task
    seed : of the batches, and of the points of Boolean tasks

    Attributes
    ----------
    inputs : number of inputs d
    train : samples that batches are drawn from; None where every batch is new
    test : samples to test on
    dtype : of both
    """

    def __init__(self, config: TaskConfig, seed: int) -> None:
        self.config = config
        self.generator = torch.Generator().manual_seed(104_729 * seed + 1)
        self.dtype = torch.float64 if config.name == "steep" else torch.float32
        self.inputs = config.variables or 1
        self.train = None
        if config.name == "audio":
            sound = torch.from_numpy(synthetic_tone())
            time = torch.linspace(-1, 1, len(sound), dtype=torch.float64)
            self.train = (time[:, None].float(), sound.float())
            self.test = self.train
        elif config.name == "boolean":
            self.train = self._boolean(4000, seen=True)
            self.test = self._boolean(2000, seen=False)
        else:
            self.test = self._new(4096, torch.Generator().manual_seed(7))

    def batch(self, size: int) -> Samples:
        """New or sampled points to train on."""
        if self.train is None:
            return self._new(size, self.generator)
        x, y = self.train
        rows = torch.randint(len(y), (size,), generator=self.generator)
        return x[rows], y[rows]

    def _new(self, size: int, generator: torch.Generator) -> Samples:
        level = self.config.level
        uniform = torch.rand(size, generator=generator, dtype=torch.float64)
        if self.config.name == "sawtooth":
            x = 2 * uniform - 1
            y = tent_map(uniform.numpy(), level)
        else:
            x = uniform
            lowest = math.log(2.0**-level / 30)
            half = size // 2
            x[half:] = torch.exp(lowest * (1 - x[half:]))
            y = steep_target(x.numpy(), level)
        return x[:, None].to(self.dtype), torch.from_numpy(y).to(self.dtype)

    def _boolean(self, count: int, seen: bool) -> Samples:
        if self.config.target == "linear":
            function = self._linear
            unseen = _first_negative
        else:
            function, unseen = BOOLEAN[self.config.target]
        kept = torch.empty(0, self.inputs)
        while len(kept) < count:
            bits = torch.randint(2, (4 * count, self.inputs), generator=self.generator)
            x = 2.0 * bits - 1
            kept = torch.cat([kept, x[unseen(x) != seen]])
        return kept[:count], function(kept[:count])

    def _linear(self, x: Tensor) -> Tensor:
        return x @ torch.tensor(self.config.coefficients)


def synthetic_tone(samples: int = 1000) -> np.ndarray:
    """A sound at 8 kHz: harmonics of 220 Hz with a vibrato of 5 Hz and a tremolo of 9 Hz.

    Harmonics 1, 2, 3, 5, 8 and 11 have the weights 1/h.

    Parameters
    ----------
    samples : how many

    Returns
    -------
    (samples,) of largest size 1
    """
    t = np.arange(samples) / 8000.0
    phase = 2 * np.pi * 220 * t + 0.5 * np.sin(2 * np.pi * 5 * t)
    harmonics = sum(np.sin(h * phase) / h for h in (1, 2, 3, 5, 8, 11))
    sound = harmonics * (1 + 0.3 * np.sin(2 * np.pi * 9 * t))
    return sound / np.abs(sound).max()
