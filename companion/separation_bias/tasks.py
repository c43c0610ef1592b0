"""The functions that the small regressors of Wu et al. (2024) learn: a configuration of each, samples, sounds."""

from __future__ import annotations

import hashlib
import math
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pydantic
import torch
from torch import Tensor

from companion.separation_bias import regions, steep
from nclib.config import Config
from nclib.data import DataError
from nclib.system import paths
from nclib.system.files import write_atomic

_SOUND = re.compile(r"wav:[A-Za-z0-9._-]+@[0-9a-f]{12}")
_SOUND_SAMPLES = 1000
_FEWEST_SAMPLES = 100


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
        "tone", or a recording in its resolved form ``wav:NAME@FINGERPRINT`` (`resolve_sound` makes it)
    variables : of "boolean"
    coefficients : of target "linear", one for each variable
    """

    name: Literal["sawtooth", "steep", "boolean", "audio"]
    level: int | None = None
    target: str | None = None
    variables: int | None = pydantic.Field(default=None, ge=1, le=60)
    coefficients: tuple[float, ...] | None = None

    @pydantic.field_validator("coefficients", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(float(part) for part in value) if isinstance(value, (list, tuple)) else value

    @pydantic.model_validator(mode="after")
    def _fits(self) -> TaskConfig:
        if self.name in ("sawtooth", "steep"):
            most = regions.LARGEST_LEVEL if self.name == "sawtooth" else 40
            if self.level is None or not 1 <= self.level <= most:
                raise ValueError(f"task {self.name!r} needs a level from 1 to {most}, got {self.level}")
            self._refuse("target", "variables", "coefficients")
        elif self.name == "audio":
            if self.target != "tone" and not _SOUND.fullmatch(self.target or ""):
                raise ValueError(
                    f"target {self.target!r} is no sound: 'tone', or what "
                    "companion.separation_bias.resolve_sound(path) returns"
                )
            self._refuse("level", "variables", "coefficients")
        else:
            self._boolean()
        return self

    def _boolean(self) -> None:
        self._refuse("level")
        if self.target == "linear":
            number = len(self.coefficients or ())
            if number == 0 or number != self.variables:
                raise ValueError(
                    f"a linear Boolean target of {self.variables} variables needs as many coefficients, got {number}"
                )
        elif self.target in _BOOLEAN:
            self._refuse("coefficients")
            if self.variables is None or self.variables < 3:
                raise ValueError(f"target {self.target!r} needs at least 3 variables, got {self.variables}")
        else:
            raise ValueError(f"target {self.target!r} is none of linear, {', '.join(_BOOLEAN)}")

    def _refuse(self, *names: str) -> None:
        given = [name for name in names if getattr(self, name) is not None]
        if given:
            raise ValueError(f"{', '.join(given)} does not apply to task {self.name!r}; leave it out")

    def label(self) -> str:
        """Short name for run ids and tables."""
        if self.name == "sawtooth":
            return f"sawtooth-2^{self.level}"
        if self.name == "steep":
            return f"steep-d{self.level}"
        if self.target == "linear":
            digest = hashlib.sha256(repr(self.coefficients).encode()).hexdigest()[:4]
            return {"f1": "f1", "f2": "f2"}.get(_linear_name(self), f"linear-{digest}")
        return (self.target or "").replace(":", "-").split("@")[0]


F1 = (1.0, 1.0, 1.0, *[0.0] * 17)
F2 = tuple(float(c) for c in np.linspace(1, 0.2, 20))
"""Coefficients of the two linear Boolean targets of 20 variables; the paper's eqs. (14) and (15) are not known."""


def _linear_name(task: TaskConfig) -> str:
    return {F1: "f1", F2: "f2"}.get(task.coefficients or (), "")


def _product(x: Tensor) -> Tensor:
    return x[:, 0] * x[:, 1]


def _majority(x: Tensor) -> Tensor:
    return torch.sign(x[:, :3].sum(1))


def _abbe(x: Tensor) -> Tensor:
    return x[:, 0] * x[:, 1] - 1.25 * x[:, 1] * x[:, 2] + 1.5 * x[:, 2] * x[:, 0]


def _both_negative(x: Tensor) -> Tensor:
    return (x[:, 0] < 0) & (x[:, 1] < 0)


_BOOLEAN: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "product": (_product, _both_negative),
    "majority": (_majority, _both_negative),
    "abbe": (_abbe, lambda x: x[:, :3].prod(1) < 0),
}
"""Function and unseen domain."""


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
        fixed = torch.Generator().manual_seed(7)
        if config.name in ("sawtooth", "steep"):
            self.inputs, self.test = 1, self._fresh(4096, fixed)
        elif config.name == "audio":
            self.train = self.test = _sound(config.target or "")
            self.inputs = 1
        else:
            self.inputs = config.variables or 0
            self.train, self.test = (self._boolean(count, seen) for count, seen in ((4000, True), (2000, False)))

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
        d = self.config.variables or 0
        kept = torch.empty(0, d)
        while len(kept) < count:
            x = 2.0 * torch.randint(2, (4 * count, d), generator=self.generator) - 1
            unseen = x[:, 0] < 0 if self.config.target == "linear" else _BOOLEAN[self.config.target or ""][1](x)
            kept = torch.cat([kept, x[unseen != seen]])
        x = kept[:count]
        if self.config.target == "linear":
            return _Samples(x, x @ torch.tensor(self.config.coefficients))
        return _Samples(x, _BOOLEAN[self.config.target or ""][0](x))


# --- sounds -------------------------------------------------------------------------------------------------


def synthetic_tone(samples: int = _SOUND_SAMPLES, rate: float = 8000.0) -> np.ndarray:
    """Harmonics 1, 2, 3, 5, 8 and 11 of 220 Hz with weights 1/h, a vibrato of 5 Hz and a tremolo of 9 Hz: (samples,)
    of largest size 1."""
    t = np.arange(samples) / rate
    phase = 2 * np.pi * 220 * t + 0.5 * np.sin(2 * np.pi * 5 * t)
    sound = sum(np.sin(h * phase) / h for h in (1, 2, 3, 5, 8, 11)) * (1 + 0.3 * np.sin(2 * np.pi * 9 * t))
    return sound / np.abs(sound).max()


def read_wav(path: str | Path) -> np.ndarray:
    """The first 1000 samples of a mono WAV file from where it is first heard (1 % of its peak), of largest size 1.

    Raises
    ------
    DataError
        For a file that is missing, no WAV file, stereo, silent, or of fewer than 100 such samples.
    """
    from scipy.io import wavfile

    path = Path(os.path.expanduser(path))
    if not os.path.isfile(path):  # unlike Path.is_file never an error, such as that of a name too long
        raise DataError(f"{path} is no file (looked from {Path.cwd()}); give the path of a mono WAV file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that hold no sound
            _, sound = wavfile.read(path)
    except Exception as error:  # SciPy raises whatever its parser ran into
        raise DataError(f"{path.name} cannot be read as a WAV file ({error}); give an uncompressed one") from None
    if sound.ndim != 1:
        raise DataError(f"{path.name} has {sound.shape[1]} channels, one is allowed; mix it down to mono first")
    middle = 128.0 if sound.dtype == np.uint8 else 0.0
    sound = sound.astype(float) - middle
    peak = np.abs(sound).max() if len(sound) else 0.0
    if not np.isfinite(peak) or peak == 0:
        raise DataError(f"{path.name} is silent: {len(sound)} samples, all 0; give one with a sound")
    loud = np.abs(sound) >= max(0.01 * peak, np.finfo(float).smallest_subnormal)
    heard = sound[np.flatnonzero(loud)[0] :][:_SOUND_SAMPLES]
    if len(heard) < _FEWEST_SAMPLES:
        raise DataError(
            f"{path.name} has {len(heard)} samples from its first sound on; at least {_FEWEST_SAMPLES} needed"
        )
    return heard / np.abs(heard).max()


def resolve_sound(path: str | Path) -> str:
    """The name under which a configuration holds a WAV file, ``wav:NAME@FINGERPRINT``; its samples are kept in the data
    folder, so that they are found by every process and after the file has moved.

    Raises
    ------
    DataError
        As `read_wav`.
    """
    sound = read_wav(path).astype("<f8")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem).strip("-.") or "sound"
    name = f"wav:{plain}@{hashlib.sha256(sound.tobytes()).hexdigest()[:12]}"
    write_atomic(_sound_cache(name), sound.tobytes())
    return name


def _sound_cache(name: str) -> Path:
    return paths.data() / "cache" / f"{name.replace(':', '-').replace('@', '-')}.f8"


def _sound(name: str) -> _Samples:
    if name == "tone":
        sound = synthetic_tone()
    else:
        try:
            content = _sound_cache(name).read_bytes()
        except OSError:
            content = b""
        if hashlib.sha256(content).hexdigest()[:12] != name.rpartition("@")[2]:
            raise DataError(
                f"{name} is not whole in the data folder; call companion.separation_bias.resolve_sound with the WAV "
                "file again"
            )
        sound = np.frombuffer(content, "<f8")
    t = torch.linspace(-1, 1, len(sound), dtype=torch.float64)
    return _Samples(t[:, None].float(), torch.from_numpy(sound.copy()).float())
