"""The trainings of each notebook of this paper: widths, depths, budgets and seeds.

Those of the paper are not known here; these are ours, the same for both families, and no seed or budget was chosen by
what came out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from companion.separation_bias.regression import RegressionConfig, RegressorConfig
from companion.separation_bias.tasks import _BOOLEAN, F1, F2, TaskConfig, resolve_sound
from nclib.comparison import MIN_SEEDS

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

    Parameters
    ----------
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

    Parameters
    ----------
    path : absolute, or relative to the working directory
    seeds, profile : as the other runs of the notebook have them
    """
    return _repeated(_audio(resolve_sound(path)), seeds, profile)


def _repeated(runs: Sequence[RegressionConfig], seeds: int, profile: str) -> list[RegressionConfig]:
    short = {"steps": SMOKE_STEPS} if profile == "smoke" else {}
    judged = MORE_SEEDS if seeds >= MIN_SEEDS else {}
    once = {run: max(seeds, judged.get(run.task.label(), 0)) for run in runs}
    most = max(once.values(), default=0)
    return [
        run.replace(seed=seed, profile=profile, **short) for seed in range(most) for run in once if seed < once[run]
    ]
