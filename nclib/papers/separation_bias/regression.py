"""The small trainings of Wu et al. (2024): one function of a few inputs, a DEQ or a feed-forward network, and an audit.

A `RegressionConfig` is a run like any other: stored, cached, exported. Every equilibrium model is iterated again after
training, from 0, up to 300 times: its error and residual after each number of iterations say whether what was trained
is an equilibrium at all. Everything runs on the CPU, where networks this small are fastest.

Widths, depths, optimisers and budgets of the paper are not known here; those below are ours, the same for both
families, and no seed or budget was chosen by what came out.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pydantic
import torch
from torch import Tensor

from nclib import comparison
from nclib.config import Config, StoredConfig, nested, run_id
from nclib.data import DataError
from nclib.deq import Implicit, Unrolled
from nclib.models import FNN, ReluDEQ, SelfLoopDEQ, count_parameters
from nclib.papers.separation_bias import separation
from nclib.publish.artefacts import write_atomic
from nclib.solver import EPSILON, FixedPointIteration
from nclib.system import paths

# --- what is learned ----------------------------------------------------------------------------------------

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
            most = separation.LARGEST_LEVEL if self.name == "sawtooth" else 40
            if self.level is None or not 1 <= self.level <= most:
                raise ValueError(f"task {self.name!r} needs a level from 1 to {most}, got {self.level}")
            self._refuse("target", "variables", "coefficients")
        elif self.name == "audio":
            if self.target != "tone" and not _SOUND.fullmatch(self.target or ""):
                raise ValueError(
                    f"target {self.target!r} is no sound: 'tone', or what nclib.resolve_sound(path) returns"
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
            x, y = 2 * at - 1, separation.tent_map(at.numpy(), level)
        else:
            lowest = math.log(2.0**-level / 30)
            at[size // 2 :] = torch.exp(lowest * (1 - at[size // 2 :]))
            x, y = at, separation.steep_target(at.numpy(), level)
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
        if not _sound_cache(name).is_file():
            raise DataError(f"{name} is not in the data folder; call nclib.resolve_sound with the WAV file again")
        sound = np.frombuffer(_sound_cache(name).read_bytes(), "<f8")
    t = torch.linspace(-1, 1, len(sound), dtype=torch.float64)
    return _Samples(t[:, None].float(), torch.from_numpy(sound.copy()).float())


# --- what learns --------------------------------------------------------------------------------------------


class RegressorConfig(Config):
    """The network.

    Parameters
    ----------
    kind :
        "deq" — `ReluDEQ` with ‖W‖₂ ≤ 0.95, an equilibrium: solved by plain iteration to `tol` with the implicit
            gradient, or by `iterations` steps from 0 and differentiated through them, which is cheaper
        "unrolled_deq" — the same with W free, `iterations` steps from 0, differentiated through them
        "fnn" — `FNN` of `depth` weight matrices
        "self_loop_deq" — `SelfLoopDEQ`, solved exactly
    width : neurons of a layer
    depth : of "fnn" | iterations : of "unrolled_deq" | tol or iterations : of "deq"
    activation : "relu" or "sine"
    spread : of W at the start, of both DEQs with W
    input_scale, bias_scale : largest entries of the first layer at the start; None for PyTorch's
    scaled : of "fnn", a trained scale for each layer
    """

    kind: Literal["deq", "unrolled_deq", "fnn", "self_loop_deq"]
    width: int = pydantic.Field(ge=1)
    depth: int | None = pydantic.Field(default=None, ge=2)
    iterations: int | None = pydantic.Field(default=None, ge=1)
    tol: float | None = pydantic.Field(default=None, gt=0, lt=1)
    activation: Literal["relu", "sine"] = "relu"
    spread: float | None = pydantic.Field(default=None, gt=0)
    input_scale: float | None = pydantic.Field(default=None, gt=0)
    bias_scale: float | None = pydantic.Field(default=None, gt=0)
    scaled: bool = False

    @pydantic.model_validator(mode="after")
    def _fits(self) -> RegressorConfig:
        solved = "tol" if self.iterations is None else "iterations"
        needed = {"deq": {solved, "spread"}, "unrolled_deq": {"iterations", "spread"}, "fnn": {"depth"}}
        needs = needed.get(self.kind, set())
        for name in ("depth", "iterations", "tol", "spread"):
            if (getattr(self, name) is not None) != (name in needs):
                what = "needs" if name in needs else "has no"
                raise ValueError(f"kind {self.kind!r} {what} {name}")
        if self.scaled and self.kind != "fnn":
            raise ValueError("scaled applies to kind 'fnn' alone")
        return self

    def build(self, inputs: int, seed: int) -> ReluDEQ | FNN | SelfLoopDEQ:
        """The network with initial weights from `seed`."""
        start = dict(input_scale=self.input_scale, bias_scale=self.bias_scale, activation=self.activation, seed=seed)
        if self.kind == "fnn":
            return FNN(inputs, self.width, self.depth, scaled=self.scaled, **start)
        if self.kind == "self_loop_deq":
            return SelfLoopDEQ(self.width, steep=min(7, self.width), seed=seed)
        norm = NORM if self.kind == "deq" else None
        if self.iterations is None:
            solver, gradient = FixedPointIteration(tol=self.tol, max_steps=100), Implicit()
        else:
            solver, gradient = FixedPointIteration(tol=EQUILIBRIUM), Unrolled(self.iterations)
        return ReluDEQ(inputs, self.width, solver, gradient, norm=norm, spread=self.spread, **start)

    def label(self) -> str:
        """Readable name of the arm, such as "DEQ-80 ‖W‖≤0.95"."""
        if self.kind == "fnn":
            return f"FNN {self.width}×L{self.depth}" + (", scaled" if self.scaled else "")
        return {
            "deq": f"DEQ-{self.width}, ‖W‖ ≤ {NORM:g}",
            "unrolled_deq": f"DEQ-{self.width}, free W, T = {self.iterations}",
            "self_loop_deq": f"DEQ-{self.width}, self-loops",
        }[self.kind]

    def flops(self, inputs: int, steps: float) -> float:
        """Additions and multiplications of a forward pass of one sample, without activations; `steps` is T."""
        k = self.width
        ends = 2 * k * inputs + 2 * k
        if self.kind == "fnn":
            return ends + 2 * (self.depth - 2) * k**2
        return ends + (k * (k - 1) if self.kind == "self_loop_deq" else 2 * steps * k**2)


NORM = 0.95
"""Largest ‖W‖₂ of kind "deq"."""
EQUILIBRIUM = 1e-2
"""Largest mean relative residual, at the trained number of steps and at 300 iterations, of a network that is called an
equilibrium model; above it is a weight-tied recurrent network."""


class RegressionConfig(StoredConfig):
    """One training: task, network, and a budget of Adam steps on batches of fresh or drawn points.

    schedule "onecycle" is PyTorch's OneCycleLR up to `lr`; scale parameters (self-loops, layer scales) learn at
    `scale_lr`. clip is the largest norm of the gradient.
    """

    kind: Literal["regression"] = "regression"
    task: TaskConfig
    model: RegressorConfig
    steps: int = pydantic.Field(ge=1)
    batch_size: int = pydantic.Field(default=256, ge=1)
    lr: float = pydantic.Field(gt=0)
    scale_lr: float | None = pydantic.Field(default=None, gt=0)
    schedule: Literal["constant", "onecycle"] = "constant"
    clip: float | None = pydantic.Field(default=None, gt=0)

    @pydantic.field_validator("task", "model", mode="before")
    @classmethod
    def _read(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        return nested({"task": TaskConfig, "model": RegressorConfig}[info.field_name or ""], value)

    def label(self) -> str:
        model = self.model
        shape = f"L{model.depth}" if model.kind == "fnn" else ""
        return f"{self.task.label().replace('^', '')}-{model.kind}{model.width}{shape}"

    def work(self) -> float:
        """Rough seconds."""
        model = self.model
        repeats = {"deq": 25, "unrolled_deq": model.iterations or 0, "self_loop_deq": 4}.get(model.kind, 0)
        each = 4e-4 + 1.2e-4 * (model.depth or 0) + 2e-4 * repeats
        each += 3 * self.batch_size * model.flops(1, repeats or 1) / 2e10
        return round(self.steps * each, 2)


# --- the runs of each notebook ------------------------------------------------------------------------------

_SAWTOOTH = dict(lr=5e-3, schedule="onecycle", clip=1.0)
_STEEP = dict(lr=1e-2, scale_lr=0.1, schedule="onecycle")
_BOOLEAN_TRAINING = dict(lr=3e-3)
_AUDIO = dict(lr=5e-3, batch_size=400, steps=800)
_KINKS = dict(input_scale=4.0, bias_scale=4.0)  # kinks spread over the interval, in both families
OMEGA = 300.0
"""Largest input weight of the networks for sounds, at the start."""
STEEP_DIMENSIONS = (6, 8, 10, 12, 14, 16, 18, 20)


def _free(width: int, iterations: int, **start: Any) -> RegressorConfig:
    return RegressorConfig(kind="unrolled_deq", width=width, iterations=iterations, spread=0.5, **start)


def _contracting(width: int, **options: Any) -> RegressorConfig:
    solved = {} if "iterations" in options else {"tol": 1e-3}
    return RegressorConfig(kind="deq", width=width, **{"spread": 1.0} | solved | options)


def _fnn(width: int, depth: int, **options: Any) -> RegressorConfig:
    return RegressorConfig(kind="fnn", width=width, depth=depth, **options)


def _sawtooth(level: int, steps: int, models: Sequence[RegressorConfig]) -> list[RegressionConfig]:
    task = TaskConfig(name="sawtooth", level=level)
    return [RegressionConfig(task=task, model=model, steps=steps, **_SAWTOOTH) for model in models]


def _fig1_sawtooth() -> list[RegressionConfig]:
    networks = [_fnn(80, 3, **_KINKS), _fnn(40, 6, **_KINKS)]
    free = _free(80, 10, **_KINKS)
    return _sawtooth(5, 3000, [free, _contracting(80, **_KINKS), *networks]) + _sawtooth(10, 800, [free, *networks])


def _steep(ds: Sequence[int], models: Sequence[RegressorConfig]) -> list[RegressionConfig]:
    return [
        RegressionConfig(task=TaskConfig(name="steep", level=d), model=model, steps=1200, **_STEEP)
        for d in ds
        for model in models
    ]


def _scaled_pair() -> list[RegressorConfig]:
    return [RegressorConfig(kind="self_loop_deq", width=10), _fnn(20, 3, scaled=True)]


def _fig1_steep() -> list[RegressionConfig]:
    return _steep((10, 20), [*_scaled_pair(), _fnn(20, 3)])


def _boolean_tasks() -> list[TaskConfig]:
    linear = [TaskConfig(name="boolean", target="linear", variables=20, coefficients=c) for c in (F1, F2)]
    return linear + [TaskConfig(name="boolean", target=name, variables=15) for name in _BOOLEAN]


def _fig1_boolean() -> list[RegressionConfig]:
    models = [_contracting(20, iterations=30, spread=0.5), _fnn(20, 3), _fnn(20, 5)]
    return [
        RegressionConfig(task=task, model=model, steps=1000, **_BOOLEAN_TRAINING)
        for task in _boolean_tasks()
        for model in models
    ]


def _fig3() -> list[RegressionConfig]:
    networks = [_fnn(40, 3, **_KINKS), _fnn(23, 5, **_KINKS)]
    free, contracting = _free(40, 10, **_KINKS), _contracting(40, **_KINKS)
    runs = [run for m, steps in ((1, 600), (3, 1500)) for run in _sawtooth(m, steps, [free, contracting, *networks])]
    return runs + _sawtooth(15, 800, [free, *networks])


def _table1() -> list[RegressionConfig]:
    models = [
        _free(10, 30, **_KINKS),
        *(_fnn(k, depth, **_KINKS) for k, depth in ((54, 3), (31, 5), (22, 8), (10, 32))),
    ]
    wide = [_free(80, 10, **_KINKS)]
    wide += [_fnn(250, 3, **_KINKS), _fnn(80, 12, **_KINKS)]
    return _sawtooth(5, 1500, models) + _sawtooth(3, 1200, models) + _sawtooth(5, 3000, wide)


def _audio(sound: str) -> list[RegressionConfig]:
    start = dict(activation="sine", input_scale=OMEGA, bias_scale=3.0)
    models = [_fnn(k, depth, **start) for k, depth in ((48, 3), (33, 4), (24, 6))]
    models += [_contracting(48, **start), _free(48, 12, **start)]
    models += [_fnn(k, depth, **start) for k, depth in ((165, 3), (118, 4))]
    return [RegressionConfig(task=TaskConfig(name="audio", target=sound), model=model, **_AUDIO) for model in models]


_GRIDS: dict[str, Callable[[], list[RegressionConfig]]] = {
    "fig1": lambda: _fig1_sawtooth() + _fig1_steep() + _fig1_boolean(),
    "fig2": _fig1_boolean,
    "fig3": _fig3,
    "theorem2_steep": lambda: _steep(STEEP_DIMENSIONS, _scaled_pair()),
    "table1": _table1,
    "audio": lambda: _audio("tone"),
}
NOTEBOOKS = tuple(_GRIDS)
"""Notebooks with trainings of this kind."""
SMOKE_STEPS = 10
"""Steps of Adam of every training in the profile "smoke"."""
MORE_SEEDS = {"f1": 8, "f2": 8}
"""Seeds that a task needs for a verdict where three are too few: on f1 three seeds favoured the FNN significantly, and
eight others showed no difference."""


def regression_runs(notebook: str, seeds: int, profile: str) -> list[RegressionConfig]:
    """The trainings of a notebook of this paper, seed by seed; "verdicts" needs those of all.

    seeds : where they are enough for verdicts, the tasks of `MORE_SEEDS` have at least as many as stand there

    Raises
    ------
    KeyError
        For a notebook that trains nothing of this kind.
    """
    runs = [run for grid in _GRIDS.values() for run in grid()] if notebook == "verdicts" else _GRIDS[notebook]()
    return _repeated(runs, seeds, profile)


def sound_runs(path: str, seeds: int, profile: str) -> list[RegressionConfig]:
    """The trainings of the notebook `audio` on a WAV file of yours (see `read_wav` for what is refused).

    path : absolute, or relative to the working directory
    seeds, profile : as the other runs of the notebook have them
    """
    return _repeated(_audio(resolve_sound(path)), seeds, profile)


def _repeated(runs: Sequence[RegressionConfig], seeds: int, profile: str) -> list[RegressionConfig]:
    short = {"steps": SMOKE_STEPS} if profile == "smoke" else {}
    judged = MORE_SEEDS if seeds >= comparison.MIN_SEEDS else {}
    once = {run: max(seeds, judged.get(run.task.label(), 0)) for run in runs}
    most = max(once.values(), default=0)
    return [
        run.replace(seed=seed, profile=profile, **short) for seed in range(most) for run in once if seed < once[run]
    ]


# --- training -----------------------------------------------------------------------------------------------

LAST_ITERATION = 300
_SWEEP = (*range(1, 21), 25, 30, 40, 50, 75, 100, 150, 200, LAST_ITERATION)
_AUDITED = 1024
"""Test points on which a trained cell is iterated again."""
_LOGS = 25


@dataclass(frozen=True)
class RegressionRun:
    """Result of `train_regression`: history (epoch counts steps of Adam, or iterations in the split "iterations"),
    arrays "features" (k,), the mean size of each feature on training points, and "fit" (3, N), inputs, values and
    predictions, of a sound; weights and facts."""

    history: pd.DataFrame
    arrays: dict[str, np.ndarray]
    weights: dict[str, Tensor]
    facts: dict[str, Any]


def train_regression(config: RegressionConfig, progress: Callable[[int, int], None] | None = None) -> RegressionRun:
    """Train one regressor and audit it.

    Rows of the history, split/metric: test/mse along the training; at the end also train/mse (Boolean tasks),
    test/sup_error (steep), test/snr in dB (audio), train/density, the participation ratio of the features averaged over
    inputs, train/heat, the mean of the features' mean sizes over the largest; and in the split "audit": parameters,
    flops (a sample), steps (T), residual (mean over samples of ‖f(z) − z‖/‖f(z)‖ after the trained number of steps),
    residual_300, mse_300, backward_missed (share of training steps whose backward solve missed its tolerance), norm
    (‖W‖₂), largest (weight) and rebalanced (geometric mean of the layers' largest weights).
    """
    tell = progress or (lambda done, total: None)
    task = _Task(config.task, config.seed)
    model = config.model.build(task.inputs, config.seed).to(task.dtype)
    scales = [p for name, p in model.named_parameters() if name in ("log_scale", "loops")]
    others = [p for p in model.parameters() if all(p is not scale for scale in scales)]
    groups = [{"params": others, "lr": config.lr}]
    if scales:
        groups.append({"params": scales, "lr": config.scale_lr or config.lr})
    optimiser = torch.optim.Adam(groups, fused=True)
    schedule = None
    if config.schedule == "onecycle":
        top = [group["lr"] for group in groups]
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, top, total_steps=config.steps)
    layer = model.deq if isinstance(model, ReluDEQ) else None
    if layer is not None:
        layer.warn_backward = False  # counted below instead
    rows: list[tuple[int, str, str, float]] = []
    every, missed = max(1, config.steps // _LOGS), 0
    for step in range(1, config.steps + 1):
        x, y = task.batch(config.batch_size)
        loss = (model(x).values - y).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimiser.step()
        if schedule is not None:
            schedule.step()
        if config.model.kind == "deq":
            model.project()
            missed += layer.last_backward is not None and not bool(layer.last_backward.converged.all())
        if step % every == 0 or step == config.steps:
            if not math.isfinite(loss.item()):
                raise FloatingPointError(f"{config.label()} diverged at step {step}; use a lower lr, or clip=1.0")
            rows.append((step, "test", "mse", _mse(model, task.test)))
            tell(math.ceil(config.work() * step / config.steps), math.ceil(config.work()))
    with torch.no_grad():
        rows += [(config.steps, *row) for row in _final(config, task, model, missed / config.steps)]
        if isinstance(model, ReluDEQ):
            rows += _iterated(model, task.test)
        arrays = {"features": _sizes(model, (task.train or task.test).x).numpy()}
        if config.task.name == "audio":
            x, y = (part[:_AUDITED] for part in task.test)
            arrays["fit"] = torch.stack([x[:, 0], y, model(x).values]).numpy()
    return RegressionRun(
        pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"]),
        arrays,
        {name: value.detach().clone() for name, value in model.state_dict().items()},
        {"parameters": count_parameters(model), "label": config.model.label()},
    )


def _mse(model: torch.nn.Module, samples: _Samples) -> float:
    with torch.no_grad():
        return float((model(samples.x).values - samples.y).double().square().mean())


def _sizes(model: torch.nn.Module, x: Tensor) -> Tensor:
    return model(x).features.double().abs().mean(0)


def _final(
    config: RegressionConfig, task: _Task, model: ReluDEQ | FNN | SelfLoopDEQ, missed: float
) -> list[tuple[str, str, float]]:
    """(split, metric, value) of the finished network."""
    rows = []
    out = model(task.test.x)
    error = (out.values - task.test.y).double()
    if task.train is not None and task.config.name == "boolean":
        rows.append(("train", "mse", _mse(model, task.train)))
        features = model(task.train.x).features.double().numpy()
        sizes = np.abs(features).mean(axis=0)
        rows.append(("train", "density", float(np.nanmean(separation.participation_ratio(features)))))
        rows.append(("train", "heat", float(sizes.mean() / sizes.max())))
    if config.task.name == "steep":
        s = separation.steep_points(config.task.level)
        y = model(torch.from_numpy(s)[:, None]).values.numpy()
        rows.append(("test", "sup_error", float(np.abs(y - separation.steep_target(s, config.task.level)).max())))
    if config.task.name == "audio":
        power = task.test.y.double().square().mean() / error.square().mean()
        rows.append(("test", "snr", float(10 * torch.log10(power))))
    steps = 1.0
    if isinstance(model, ReluDEQ):
        steps = float(config.model.iterations or out.solution.steps.double().mean())
        rows.append(("audit", "residual", float(out.solution.residual.double().mean())))
        rows.append(("audit", "norm", float(torch.linalg.matrix_norm(model.deq.cell.weight, 2))))
    if config.model.tol is not None:
        rows.append(("audit", "backward_missed", missed))
    matrices = (
        [model.deq.cell.weight, model.injection.weight, model.read_out.weight]
        if isinstance(model, ReluDEQ)
        else model.matrices()
    )
    largest = [float(matrix.abs().max()) for matrix in matrices]
    rows.append(("audit", "largest", max(largest)))
    if isinstance(model, FNN):
        rows.append(("audit", "rebalanced", math.exp(float(np.mean(np.log(largest))))))
    rows.append(("audit", "parameters", float(count_parameters(model))))
    rows.append(("audit", "flops", config.model.flops(task.inputs, steps)))
    rows.append(("audit", "steps", steps))
    return rows


def _iterated(model: ReluDEQ, samples: _Samples) -> list[tuple[int, str, str, float]]:
    """Plain iteration of the trained cell from 0: error and mean residual after each number of iterations."""
    x, y = (part[:_AUDITED] for part in samples)
    injection = model.injection(x)
    z, rows = torch.zeros_like(injection), []
    for iteration in range(1, LAST_ITERATION + 1):
        z = model.deq.cell(z, injection)
        if iteration in _SWEEP:
            after = model.deq.cell(z, injection)
            residual = (after - z).norm(dim=1) / (after.norm(dim=1) + EPSILON)
            mse = (model.read_out(z)[:, 0] - y).double().square().mean()
            rows += [(iteration, "iterations", "mse", float(mse))]
            rows += [(iteration, "iterations", "residual", float(residual.double().mean()))]
    return rows


# --- what the runs say --------------------------------------------------------------------------------------


def regression_table(configs: Sequence[RegressionConfig], frame: pd.DataFrame) -> pd.DataFrame:
    """One row a run: run_id, task, model (its label), kind, seed, adam_steps and the metrics of the finished network.

    Metrics are those of `train_regression` by their names, `mse` being that of the test points and `train_mse` of the
    training points; residual_300 and mse_300 are NaN for networks without iterations. `equilibrium` says what the
    network is: "equilibrium", "exact" (solved by substitution), "weight-tied recurrent" (residual above
    `EQUILIBRIUM` after the trained steps or after 300) or "feed-forward".

    Parameters
    ----------
    configs : of the runs wanted, in the order of the rows
    frame : tidy frame that holds them
    """
    by_run = dict(tuple(frame.groupby("run_id")))
    rows = []
    for config in dict.fromkeys(configs):
        history = by_run[run_id(config)]
        last = history.drop_duplicates(["split", "metric"], keep="last").set_index(["split", "metric"])["value"]
        row = {"run_id": run_id(config), "task": config.task.label(), "model": config.model.label()}
        row |= {"kind": config.model.kind, "seed": config.seed, "adam_steps": config.steps}
        for (split, metric), value in last.items():
            if split != "iterations":
                row["train_mse" if (split, metric) == ("train", "mse") else metric] = value
        at_last = history[(history["split"] == "iterations") & (history["epoch"] == LAST_ITERATION)]
        row |= {f"{metric}_{LAST_ITERATION}": value for metric, value in at_last[["metric", "value"]].to_numpy()}
        row["equilibrium"] = _what_it_is(config.model.kind, row)
        rows.append(row)
    return pd.DataFrame(rows)


def arm_names(table: pd.DataFrame) -> dict[str, str]:
    """Names for figures, label → name: a DEQ that is not at equilibrium in every seed of these rows is called a
    weight-tied recurrent network."""
    recurrent = table.loc[table["equilibrium"] == "weight-tied recurrent", "model"].unique()
    return {
        label: label.replace("DEQ", "weight-tied RNN") if label in recurrent else label
        for label in table["model"].unique()
    }


def curve_rows(
    configs: Sequence[RegressionConfig], frame: pd.DataFrame, task: str, split: str = "test", metric: str = "mse"
) -> pd.DataFrame:
    """Values along a training, or along the iterations of trained cells (split "iterations"), of one task.

    Returns
    -------
    DataFrame with the columns model (name for figures, see `arm_names`), kind, seed, at and value
    """
    wanted = {run_id(config): config for config in configs if config.task.label() == task}
    names = arm_names(regression_table(list(wanted.values()), frame))
    rows = frame[(frame["split"] == split) & (frame["metric"] == metric) & frame["run_id"].isin(wanted)]
    models = rows["run_id"].map({run: names[config.model.label()] for run, config in wanted.items()})
    kinds = rows["run_id"].map({run: config.model.kind for run, config in wanted.items()})
    found = rows.assign(model=models, kind=kinds, at=rows["epoch"])
    order = {names[config.model.label()]: place for place, config in enumerate(wanted.values())}
    found = found.sort_values(["model", "seed", "at"], key=None if found.empty else _by_order(order), kind="stable")
    return found[["model", "kind", "seed", "at", "value"]].reset_index(drop=True)


def _by_order(order: dict[str, int]) -> Callable[[pd.Series], pd.Series]:
    return lambda column: column.map(order) if column.name == "model" else column


def _what_it_is(kind: str, row: dict[str, Any]) -> str:
    if kind in ("fnn", "self_loop_deq"):
        return {"fnn": "feed-forward", "self_loop_deq": "exact"}[kind]
    worst = max(row["residual"], row[f"residual_{LAST_ITERATION}"])
    return "equilibrium" if worst <= EQUILIBRIUM else "weight-tied recurrent"


class Claim(NamedTuple):
    """A comparison of the paper, or one of ours beside it: `arm` against the best of `rivals`, by label.

    metric : of `regression_table`; lower is better, except for snr, density and heat
    ours : what of it is ours and not the paper's; with an entry here the row is "beyond the paper"
    """

    notebook: str
    place: str
    claim: str
    task: str
    arm: str
    rivals: tuple[str, ...]
    metric: str = "mse"
    ours: str = ""


_NARROW, _PLAIN3, _PLAIN5 = f"DEQ-20, ‖W‖ ≤ {NORM:g}", "FNN 20×L3", "FNN 20×L5"
_WIDE_FREE, _WIDE_SOLVED = "DEQ-80, free W, T = 10", f"DEQ-80, ‖W‖ ≤ {NORM:g}"
_WIDE_RIVALS = ("FNN 80×L3", "FNN 40×L6")
_MID_FREE, _MID_SOLVED = "DEQ-40, free W, T = 10", f"DEQ-40, ‖W‖ ≤ {NORM:g}"
_MID_RIVALS = ("FNN 40×L3", "FNN 23×L5")
_TEN, _TEN_RIVALS = "DEQ-10, free W, T = 30", ("FNN 54×L3", "FNN 31×L5", "FNN 22×L8", "FNN 10×L32")
_LOOPS, _SCALED = "DEQ-10, self-loops", "FNN 20×L3, scaled"
_SOUND_FREE, _SOUND_SOLVED = "DEQ-48, free W, T = 12", f"DEQ-48, ‖W‖ ≤ {NORM:g}"
_SOUND_RIVALS = ("FNN 48×L3", "FNN 33×L4", "FNN 24×L6")
_BETTER_UNSEEN = "smaller error on the unseen"
_OUR_ARM, _OUR_G = f"our constraint ‖W‖ ≤ {NORM:g}", "our g (eq. 5 is not at hand) and our DEQ of self-loops"
_OUR_F = f"our f1 and f2 (eqs. 14 and 15 are not at hand), {_OUR_ARM}"
_OUR_SOUND = "our sound"

CLAIMS: tuple[Claim, ...] = (
    Claim("fig1", "Figure 1a", "2^5: smaller error, equal parameters", "sawtooth-2^5", _WIDE_FREE, _WIDE_RIVALS),
    Claim(
        "fig1",
        "Figure 1a",
        "2^5: the same for our equilibrium arm",
        "sawtooth-2^5",
        _WIDE_SOLVED,
        _WIDE_RIVALS,
        ours=_OUR_ARM,
    ),
    Claim("fig1", "Figure 1d", "2^10: smaller error, equal parameters", "sawtooth-2^10", _WIDE_FREE, _WIDE_RIVALS),
    *(
        Claim(
            "fig1",
            f"Figure 1{panel}",
            f"our g, d = {d}: smaller error, {name}",
            f"steep-d{d}",
            _LOOPS,
            (rival,),
            ours=_OUR_G,
        )
        for panel, d in (("b", 10), ("e", 20))
        for name, rival in (("plain FNN", _PLAIN3), ("FNN with trained scales", _SCALED))
    ),
    *(
        Claim("fig1", f"Figure 1{at}", f"our {f}: {_BETTER_UNSEEN}", f, _NARROW, (_PLAIN3, _PLAIN5), ours=_OUR_F)
        for at, f in (("c", "f1"), ("f", "f2"))
    ),
    *(
        Claim(
            "fig1",
            "Figure 1, non-linear",
            f"{name}: {_BETTER_UNSEEN}",
            name,
            _NARROW,
            (_PLAIN3, _PLAIN5),
            ours=f"our choice of a target of Abbe et al. (2023), {_OUR_ARM}",
        )
        for name in ("product", "majority", "abbe")
    ),
    *(
        Claim("fig2", "Figure 2", f"our {name}: {what} than {rival}", name, _NARROW, (rival,), metric, _OUR_F)
        for name in ("f1", "f2")
        for rival in (_PLAIN3, _PLAIN5)
        for what, metric in (("denser features", "density"), ("brighter heat map", "heat"))
    ),
    *(
        Claim("fig3", "Figure 3", f"2^{m}: smaller error, {name}", f"sawtooth-2^{m}", arm, _MID_RIVALS, ours=ours)
        for m, arms in ((1, (_MID_FREE, _MID_SOLVED)), (3, (_MID_FREE, _MID_SOLVED)), (15, (_MID_FREE,)))
        for name, arm, ours in zip(("free W", "our equilibrium arm"), arms, ("", _OUR_ARM), strict=False)
    ),
    Claim("table1", "Table 1", "2^5, width 10: smaller error, equal FLOPs", "sawtooth-2^5", _TEN, _TEN_RIVALS),
    Claim(
        "table1",
        "Table 1",
        "2^3, width 10: smaller error, equal FLOPs",
        "sawtooth-2^3",
        _TEN,
        _TEN_RIVALS,
        ours="our target; the table has 2^5",
    ),
    Claim(
        "table1",
        "Table 1, width 80",
        "2^5: smaller error, equal FLOPs",
        "sawtooth-2^5",
        _WIDE_FREE,
        ("FNN 250×L3", "FNN 80×L12"),
        ours="our width; the table has 10",
    ),
    *(
        Claim("audio", "App. B.2", f"our sound: {what}", "tone", arm, rivals, "snr", ours)
        for what, arm, rivals, ours in (
            ("higher SNR, equal parameters, free W", _SOUND_FREE, _SOUND_RIVALS, _OUR_SOUND),
            (
                "higher SNR than the shallowest, equilibrium",
                _SOUND_SOLVED,
                _SOUND_RIVALS[:1],
                f"{_OUR_SOUND}, {_OUR_ARM}",
            ),
            (
                "higher SNR, equal parameters, equilibrium",
                _SOUND_SOLVED,
                _SOUND_RIVALS,
                f"{_OUR_SOUND}, {_OUR_ARM}",
            ),
            (
                "higher SNR, equal FLOPs, free W",
                _SOUND_FREE,
                ("FNN 165×L3", "FNN 118×L4"),
                f"{_OUR_SOUND}, our match of FLOPs",
            ),
        )
    ),
)
"""Every trained comparison, stated before the runs. Widths, budgets and starts are ours in all of them."""

UNLEARNED = 0.9 / 12
"""Test error of a sawtooth above which nothing was learned; the constant predictor has 1/12."""


def trained_ledger(table: pd.DataFrame, notebook: str | None = None) -> pd.DataFrame:
    """Verdicts on the trained comparisons of `CLAIMS`, from a `regression_table`.

    Each is a paired 95 % t-interval over seeds of DEQ − best rival of that seed, in decades for errors, in dB for snr,
    plain for density and heat, judged by `nclib.comparison.verdict` at toy scale: widths, budgets and starts are ours
    in every row. What is beyond the paper is "higher", "lower" or "not significant". "Reported" are fewer than three
    seeds, or than `MORE_SEEDS` asks for, and a sawtooth on which no arm is below 0.9/12.

    Parameters
    ----------
    table : rows of all tasks wanted; claims about others are left out
    notebook : only the claims of this one

    Returns
    -------
    DataFrame with the columns of `nclib.papers.separation_bias.separation.LEDGER`
    """
    rows = []
    for claim in CLAIMS:
        of_task = table[table["task"] == claim.task]
        present = set(of_task["model"])
        if notebook in (None, claim.notebook) and claim.arm in present and set(claim.rivals) <= present:
            rows.append(_judged(claim, of_task))
    if notebook in (None, "theorem2_steep"):
        rows += _judged_weights(table)
    return pd.DataFrame(rows, columns=separation.LEDGER)


def _row(place: str, claim: str, found: dict[str, str], remarks: Sequence[str], ours: str) -> dict[str, str]:
    """A row of trainings of ours in `separation.LEDGER`; with an entry in `ours` it is beyond the paper.

    found : evidence, rule, verdict and computed
    """
    reading, part = (separation.OURS, separation.BEYOND) if ours else (separation.PRINTED, separation.STATEMENT)
    said = dict(scale="toy", remark="; ".join(filter(None, (*remarks, ours))), certificate="")
    return dict(place=place, part=part, claim=claim, reading=reading) | found | said


def _judged(claim: Claim, rows: pd.DataFrame) -> dict[str, str]:
    higher = claim.metric in ("snr", "density", "heat")
    values = rows.pivot_table(index="seed", columns="model", values=claim.metric)
    rivals = values[list(claim.rivals)]
    best = rivals.max(axis=1) if higher else rivals.min(axis=1)
    logarithmic = claim.metric == "mse"
    ours = values[claim.arm]
    difference = np.log10(ours / best) if logarithmic else ours - best
    found = comparison.interval(difference)
    unit = {"mse": " decades", "snr": " dB"}.get(claim.metric, "")
    arms = rows[rows["model"] == claim.arm]
    flops = rows[rows["model"].isin(claim.rivals)].groupby("model")["flops"].first()
    text = f"{claim.arm} {_spread(ours)}, best rival {_spread(best)}; difference {found}{unit}; FLOPs "
    text += f"{arms['flops'].mean():.3g} and {', '.join(f'{flops[name]:.3g}' for name in claim.rivals)}"
    if arms["residual"].notna().any():
        text += f"; residual {arms['residual'].mean():.1e}, after {LAST_ITERATION} {arms['residual_300'].mean():.1e}"
    if found.n < MORE_SEEDS.get(claim.task, 0):
        said = comparison.Verdict("reported", "toy", _seeds(found.n))
    elif claim.task.startswith("sawtooth") and values[[claim.arm, *claim.rivals]].mean().min() > UNLEARNED:
        said = comparison.Verdict("reported", "toy", "no network here learns this target")
    else:
        said = comparison.verdict(found, "toy", None if claim.ours else "higher" if higher else "lower")
    remarks = [said.remark]
    if said.word in ("higher", "lower") and claim.metric in ("mse", "snr"):
        remarks.append(f"DEQ {'better' if (said.word == 'higher') == higher else 'worse'}")
    if (arms["equilibrium"] == "weight-tied recurrent").any():
        remarks.append("not an equilibrium: a weight-tied recurrent network")
    judged = dict(evidence=text, rule="paired interval over seeds beside 0", verdict=said.word)
    return _row(claim.place, claim.claim, judged | _trained_on(found.n), remarks, claim.ours)


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _trained_on(seeds: int) -> dict[str, str]:
    return {"computed": f"trained, {_seeds(seeds)}"}


def _spread(values: pd.Series) -> str:
    """Mean and range over seeds."""
    return f"{values.mean():.3g} ({values.min():.3g} to {values.max():.3g})"


def _judged_weights(table: pd.DataFrame) -> list[dict[str, str]]:
    """Figure 4: how the largest trained weight grows with d, as ratios of geometric means over seeds."""
    rows = table[table["task"].str.startswith("steep") & table["model"].isin([_LOOPS, _SCALED])]
    rows = rows.assign(d=rows["task"].str.removeprefix("steep-d").astype(int))
    if rows.empty or not {STEEP_DIMENSIONS[0], STEEP_DIMENSIONS[-1]} <= set(rows["d"]):
        return []
    first, last = rows["d"].min(), rows["d"].max()
    typical = np.exp(
        np.log(rows.set_index(["model", "d", "seed"])[["largest", "rebalanced"]]).groupby(["model", "d"]).mean()
    )
    growth = {name: typical["largest"][name, last] / typical["largest"][name, first] for name in (_LOOPS, _SCALED)}
    balanced = typical["rebalanced"][_SCALED]
    seeds = rows["seed"].nunique()
    text = f"d = {first} to {last}: DEQ ×{growth[_LOOPS]:.2f}, FNN ×{growth[_SCALED]:.0f}, rebalanced "
    text += f"×{balanced[last] / balanced[first]:.0f}"
    errors = rows.groupby(["model", "d"])["mse"].mean()
    ratio = errors[_LOOPS] / errors[_SCALED]
    errors = rows.groupby(["model", "d"])["mse"].mean()
    ratio = errors[_LOOPS] / errors[_SCALED]
    other = f"mean squared error, DEQ over FNN: {ratio.min():.2g} to {ratio.max():.2g} over d"
    steady = growth[_SCALED] > 100 and growth[_LOOPS] < 3
    near = bool(((ratio > 1 / 3) & (ratio < 3)).all())
    claims = (
        ("the DEQ's weights stay, the FNN's grow", text, "FNN by more than 100, DEQ by less than 3", steady),
        ("at comparable loss", other, "within a factor of 3 at every d", near),
    )
    found = []
    for claim, text, rule, met in claims:
        judged = dict(evidence=text, rule=f"our threshold: {rule}", verdict="reported") | _trained_on(seeds)
        remark = f"{'met' if met else 'not met'} in the mean of {_seeds(seeds)}"
        found.append(_row("Figure 4", f"our g: {claim}", judged, [remark], f"our threshold, {_OUR_G}"))
    return found


def looks_ledger(frame: pd.DataFrame) -> pd.DataFrame:
    """Figure 6 as a row of `nclib.papers.separation_bias.separation.LEDGER`, reported and never judged.

    frame : tidy frame that holds runs of `nclib.papers.separation_bias.saliency`
    """
    looked = frame[frame["split"] == "cam"]
    measures = ("coverage", "entropy", "accuracy")
    found = {name: comparison.paired(comparison.by_run(looked, name, "cam"))["difference"] for name in measures}
    text = ", ".join(f"{name} {comparison.interval(values)}" for name, values in found.items())
    judged = dict(evidence=f"DEQ − explicit: {text}", rule="never judged", verdict="reported")
    judged |= _trained_on(len(found["coverage"]))
    ours = "our networks, images and settings of Grad-CAM"
    row = _row("Figure 6", "Grad-CAM of the DEQ is more diffuse", judged, [], ours)
    return pd.DataFrame([row], columns=separation.LEDGER)


def weight_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """The trained FNNs of Figure 4 against `separation.fnn_weight_bound` at their own sup error.

    Columns d, seed, sup_error, largest, rebalanced, bound (NaN where the sup error is ¼ or more, which bounds nothing)
    and above, whether the rebalanced weight is above it.
    """
    rows = table[(table["model"] == _SCALED) & table["task"].str.startswith("steep")]
    found = rows[["seed", "sup_error", "largest", "rebalanced"]].assign(
        d=rows["task"].str.removeprefix("steep-d").astype(int)
    )
    found["bound"] = [
        separation.fnn_weight_bound(row.d, 20, 2, row.sup_error) if row.sup_error < 0.25 else math.nan
        for row in found.itertuples()
    ]
    return found.assign(above=(found["rebalanced"] >= found["bound"]) | found["bound"].isna()).sort_values(
        ["d", "seed"]
    )


def describe_regressions(configs: Sequence[RegressionConfig]) -> str:
    """One paragraph for captions: profile, tasks, budget, seeds."""
    profile = configs[0].profile
    budgets: dict[str, set[int]] = {}
    seeds: dict[str, set[int]] = {}
    for config in configs:
        budgets.setdefault(config.task.label(), set()).add(config.steps)
        seeds.setdefault(config.task.label(), set()).add(config.seed)
    tasks = "; ".join(f"{name} ({', '.join(map(str, sorted(steps)))} steps of Adam)" for name, steps in budgets.items())
    counts = {name: len(found) for name, found in seeds.items()}
    least = min(counts.values())
    text = f"Profile {profile}: {tasks}; {least} seed{'' if least == 1 else 's'}"
    more = {count: [name for name in counts if counts[name] == count] for count in sorted({*counts.values()} - {least})}
    return text + "".join(f", {count} of {' and '.join(names)}" for count, names in more.items()) + "."
