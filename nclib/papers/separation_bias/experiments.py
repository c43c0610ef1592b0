"""The runs of the notebooks on Wu et al.: widths, depths, budgets and seeds of their trainings, and Grad-CAM.

Those of the paper are not known here; these are ours, the same for both families, and no seed or budget was chosen by
what came out.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nclib.compare import MIN_SEEDS
from nclib.config import StoredConfig
from nclib.papers.separation_bias.regression import BOOLEAN, F1, F2, RegressionConfig, RegressorConfig, TaskConfig
from nclib.papers.separation_bias.saliency import CamConfig
from nclib.profiles import Profile, classifiers, data_config

_SAWTOOTH = dict(lr=5e-3, schedule="onecycle", clip=1.0)
_STEEP = dict(lr=1e-2, scale_lr=0.1, schedule="onecycle")
_KINKS = dict(input_scale=4.0, bias_scale=4.0)  # kinks all over the interval, in both families
STEEP_DIMENSIONS = (6, 8, 10, 12, 14, 16, 18, 20)


def _free(width: int, iterations: int, **start: Any) -> RegressorConfig:
    return RegressorConfig(kind="unrolled_deq", width=width, iterations=iterations, spread=0.5, **start)


def _contracting(width: int, **options: Any) -> RegressorConfig:
    solved = {} if "iterations" in options else {"tol": 1e-3}
    return RegressorConfig(kind="deq", width=width, **{"spread": 1.0} | solved | options)


def _fnn(width: int, depth: int, **options: Any) -> RegressorConfig:
    return RegressorConfig(kind="fnn", width=width, depth=depth, **options)


def _each(tasks: Sequence[TaskConfig], models: Sequence[RegressorConfig], **training: Any) -> list[RegressionConfig]:
    return [RegressionConfig(task=task, model=model, **training) for task in tasks for model in models]


def _sawtooth(level: int, steps: int, models: Sequence[RegressorConfig]) -> list[RegressionConfig]:
    return _each([TaskConfig(name="sawtooth", level=level)], models, steps=steps, **_SAWTOOTH)


def _steep(ds: Sequence[int], *more: RegressorConfig) -> list[RegressionConfig]:
    models = [RegressorConfig(kind="self_loop_deq", width=10), _fnn(20, 3, scaled=True), *more]
    return _each([TaskConfig(name="steep", level=d) for d in ds], models, steps=1200, **_STEEP)


def _boolean() -> list[RegressionConfig]:
    tasks = [TaskConfig(name="boolean", target="linear", variables=20, coefficients=c) for c in (F1, F2)]
    tasks += [TaskConfig(name="boolean", target=name, variables=15) for name in BOOLEAN]
    models = [_contracting(20, iterations=30, spread=0.5), _fnn(20, 3), _fnn(20, 5)]
    return _each(tasks, models, steps=1000, lr=3e-3)


def _fig1() -> list[RegressionConfig]:
    free, networks = _free(80, 10, **_KINKS), [_fnn(80, 3, **_KINKS), _fnn(40, 6, **_KINKS)]
    found = _sawtooth(5, 3000, [free, _contracting(80, **_KINKS), *networks]) + _sawtooth(10, 800, [free, *networks])
    return found + _steep((10, 20), _fnn(20, 3)) + _boolean()


def _fig3() -> list[RegressionConfig]:
    networks = [_fnn(40, 3, **_KINKS), _fnn(23, 5, **_KINKS)]
    free, contracting = _free(40, 10, **_KINKS), _contracting(40, **_KINKS)
    runs = [run for m, steps in ((1, 600), (3, 1500)) for run in _sawtooth(m, steps, [free, contracting, *networks])]
    return runs + _sawtooth(15, 800, [free, *networks])


def _table1() -> list[RegressionConfig]:
    shapes = ((54, 3), (31, 5), (22, 8), (10, 32))
    models = [_free(10, 30, **_KINKS), *(_fnn(k, depth, **_KINKS) for k, depth in shapes)]
    wide = [_free(80, 10, **_KINKS), _fnn(250, 3, **_KINKS), _fnn(80, 12, **_KINKS)]
    return _sawtooth(5, 1500, models) + _sawtooth(3, 1200, models) + _sawtooth(5, 3000, wide)


def _audio() -> list[RegressionConfig]:
    start = dict(activation="sine", input_scale=300.0, bias_scale=3.0)
    models = [_fnn(k, depth, **start) for k, depth in ((48, 3), (33, 4), (24, 6))]
    models += [_contracting(48, **start), _free(48, 12, **start)]
    models += [_fnn(k, depth, **start) for k, depth in ((165, 3), (118, 4))]
    return _each([TaskConfig(name="audio", target="tone")], models, steps=800, lr=5e-3, batch_size=400)


_GRIDS = dict(fig1=_fig1, fig2=_boolean, fig3=_fig3, theorem2_steep=partial(_steep, STEEP_DIMENSIONS))
_GRIDS |= dict(table1=_table1, audio=_audio)
NOTEBOOKS = tuple(_GRIDS)
"""Notebooks with trainings of this kind."""
MORE_SEEDS = {"f1": 8, "f2": 8}
"""Seeds that a task needs for a verdict where three are too few: on f1 three seeds favoured the FNN significantly, and
eight others showed no difference."""


def regression_runs(notebook: str, profile: Profile) -> list[StoredConfig]:
    """The trainings of a notebook of this paper, seed by seed. Where the profile's seeds are enough for verdicts, the
    tasks of `MORE_SEEDS` have at least as many as stand there."""
    runs = _GRIDS[notebook]()
    short = {"steps": 10} if profile.name == "smoke" else {}
    judged = MORE_SEEDS if profile.seeds >= MIN_SEEDS else {}
    once = {run: max(profile.seeds, judged.get(run.task.label(), 0)) for run in runs}
    seeded = [(run, seed) for seed in range(max(once.values())) for run in once if seed < once[run]]
    return [run.replace(seed=seed, profile=profile.name, **short) for run, seed in seeded]


def _where_networks_look(profile: Profile) -> list[StoredConfig]:
    """Both arms and their Grad-CAM. Digits of 8×8 leave maps of one place, so scenes made of them stand in."""
    if profile.dataset in ("digits", "digit_scenes"):
        images = profile.images_per_class or 60
        profile = dataclasses.replace(profile, dataset="digit_scenes", images_per_class=images)
    runs = classifiers(profile, data_config(profile))
    return [*runs, *(CamConfig(base=run) for run in runs)]


EXPERIMENTS: dict[str, Callable[[Profile], list[StoredConfig]]] = {
    **{f"separation_bias/{name}": partial(regression_runs, name) for name in NOTEBOOKS},
    "separation_bias/fig6": _where_networks_look,
}
PARTS = [("separation_bias", "Wu et al.: separation and bias")]
