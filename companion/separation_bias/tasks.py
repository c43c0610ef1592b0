"""The functions that the small regressors of Wu et al. (2024) learn: a configuration of each, and samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pydantic
import torch
from torch import Tensor

from companion.separation_bias import regions, steep
from nclib.config import Config


class TaskConfig(Config):
    """The function to learn, and where it is tested.

    Parameters
    ----------
    name :
        "sawtooth" — T^m on [0, 1], 2^m pieces; fresh uniform points, input 2x − 1; the constant has error 1/12
        "steep" — δ/(δ + s), δ = 2^−d, of s = 1 − x₁; half of the points uniform in [0, 1], half log-uniform from δ/30
        "boolean" — a function of ±1 variables, tested on points that training never sees (GOTU)
        "audio" — amplitude as a function of time in [−1, 1], tested on the training samples
    level : m or d, of the first two
    target : of "boolean": "linear" (Σ c_i x_i, unseen x₁ = −1), "product" (x₁x₂), "majority" (of x₁, x₂, x₃), both
        unseen x₁ = x₂ = −1, or "abbe" (x₁x₂ − 1.25 x₂x₃ + 1.5 x₃x₁, unseen x₁x₂x₃ = −1; Abbe et al. 2023). Of "audio":
        "tone"
    variables : of "boolean"
    coefficients : of target "linear", one for each variable
    """

    name: Literal["sawtooth", "steep", "boolean", "audio"]
    level: int | None = pydantic.Field(default=None, ge=1, le=regions.LARGEST_LEVEL)
    target: Literal["linear", "product", "majority", "abbe", "tone"] | None = None
    variables: int | None = pydantic.Field(default=None, ge=1, le=60)
    coefficients: tuple[float, ...] | None = None

    @pydantic.field_validator("coefficients", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(float(part) for part in value) if isinstance(value, (list, tuple)) else value

    def label(self) -> str:
        """Short name for run ids and tables."""
        level = {"sawtooth": f"sawtooth-2^{self.level}", "steep": f"steep-d{self.level}"}.get(self.name)
        linear = {F1: "f1", F2: "f2"}.get(self.coefficients, "linear") if self.coefficients else None
        return level or linear or self.target or self.name


F1 = (1.0, 1.0, 1.0, *[0.0] * 17)
F2 = tuple(float(c) for c in np.linspace(1, 0.2, 20))
"""Coefficients of the two linear Boolean targets of 20 variables; the paper's eqs. (14) and (15) are not known."""


def _both_negative(x: Tensor) -> Tensor:
    return (x[:, 0] < 0) & (x[:, 1] < 0)


_BOOLEAN: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "product": (lambda x: x[:, 0] * x[:, 1], _both_negative),
    "majority": (lambda x: torch.sign(x[:, :3].sum(1)), _both_negative),
    "abbe": (
        lambda x: x[:, 0] * x[:, 1] - 1.25 * x[:, 1] * x[:, 2] + 1.5 * x[:, 2] * x[:, 0],
        lambda x: x[:, :3].prod(1) < 0,
    ),
}
"""Function and unseen domain of targets that are not linear."""


class _Samples(NamedTuple):
    """Inputs (N, d) and values (N,)."""

    x: Tensor
    y: Tensor


class _Task:
    """Training batches from a seed, and fixed points to test on."""

    def __init__(self, config: TaskConfig, seed: int) -> None:
        self.config, self.generator = config, torch.Generator().manual_seed(104_729 * seed + 1)
        self.dtype = torch.float64 if config.name == "steep" else torch.float32
        self.train: _Samples | None = None  # None where every batch is fresh
        self.inputs = config.variables or 1
        if config.name == "audio":
            self.train = self.test = _tone()
        elif config.name == "boolean":
            self.function, self.unseen = _BOOLEAN.get(config.target, (self._linear, lambda x: x[:, 0] < 0))
            self.train, self.test = self._boolean(4000, seen=True), self._boolean(2000, seen=False)
        else:
            self.test = self._fresh(4096, torch.Generator().manual_seed(7))

    def _linear(self, x: Tensor) -> Tensor:
        return x @ torch.tensor(self.config.coefficients)

    def batch(self, size: int) -> _Samples:
        if self.train is None:
            return self._fresh(size, self.generator)
        rows = torch.randint(len(self.train.y), (size,), generator=self.generator)
        return _Samples(self.train.x[rows], self.train.y[rows])

    def _fresh(self, size: int, generator: torch.Generator) -> _Samples:
        level = self.config.level or 0
        at = torch.rand(size, generator=generator, dtype=torch.float64)
        if self.config.name == "sawtooth":
            x, y = 2 * at - 1, regions.tent_map(at.numpy(), level)
        else:
            lowest = math.log(2.0**-level / 30)
            at[size // 2 :] = torch.exp(lowest * (1 - at[size // 2 :]))
            x, y = at, steep.steep_target(at.numpy(), level)
        return _Samples(x[:, None].to(self.dtype), torch.from_numpy(y).to(self.dtype))

    def _boolean(self, count: int, seen: bool) -> _Samples:
        kept = torch.empty(0, self.inputs)
        while len(kept) < count:
            x = 2.0 * torch.randint(2, (4 * count, self.inputs), generator=self.generator) - 1
            kept = torch.cat([kept, x[self.unseen(x) != seen]])
        return _Samples(kept[:count], self.function(kept[:count]))


def synthetic_tone(samples: int = 1000, rate: float = 8000.0) -> np.ndarray:
    """Harmonics 1, 2, 3, 5, 8 and 11 of 220 Hz with weights 1/h, a vibrato of 5 Hz and a tremolo of 9 Hz: (samples,)
    of largest size 1."""
    t = np.arange(samples) / rate
    phase = 2 * np.pi * 220 * t + 0.5 * np.sin(2 * np.pi * 5 * t)
    sound = sum(np.sin(h * phase) / h for h in (1, 2, 3, 5, 8, 11)) * (1 + 0.3 * np.sin(2 * np.pi * 9 * t))
    return sound / np.abs(sound).max()


def _tone() -> _Samples:
    sound = torch.from_numpy(synthetic_tone())
    return _Samples(torch.linspace(-1, 1, len(sound), dtype=torch.float64)[:, None].float(), sound.float())
