"""The runs of the notebooks on Wu et al.: widths, depths, budgets and seeds, and Grad-CAM.

Those of the paper are not known here; these are ours, the same for both families, and no seed or
budget was chosen by what came out.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from nclib.compare import MIN_SEEDS
from nclib.config import StoredConfig
from nclib.papers.separation_bias.regression import RegressionConfig
from nclib.papers.separation_bias.regressors import RegressorConfig
from nclib.papers.separation_bias.saliency import CamConfig
from nclib.papers.separation_bias.tasks import BOOLEAN, F1, F2, TaskConfig
from nclib.profiles import Profile, classifiers, data_config

KINKS = {"input_scale": 4.0, "bias_scale": 4.0}
"""A start with kinks all over the interval, in both families."""
STEEP_DIMENSIONS = (6, 8, 10, 12, 14, 16, 18, 20)
MORE_SEEDS = {"f1": 8, "f2": 8}
"""Seeds that a task needs for a verdict where three are too few.

On f1 three seeds favoured the FNN significantly, and eight others showed no difference.
"""


# --- networks -------------------------------------------------------------------------------------


def free_deq(width: int, iterations: int, **start: Any) -> RegressorConfig:
    """A DEQ with any W, unrolled."""
    return RegressorConfig(
        kind="unrolled_deq", width=width, iterations=iterations, spread=0.5, **start
    )


def contracting_deq(width: int, **start: Any) -> RegressorConfig:
    """A DEQ with ‖W‖ ≤ 0.95, solved to a tolerance."""
    return RegressorConfig(kind="deq", width=width, tol=1e-3, spread=1.0, **start)


def fnn(width: int, depth: int, **options: Any) -> RegressorConfig:
    return RegressorConfig(kind="fnn", width=width, depth=depth, **options)


# --- trainings ------------------------------------------------------------------------------------


def sawtooth_runs(
    level: int, steps: int, models: Sequence[RegressorConfig]
) -> list[RegressionConfig]:
    task = TaskConfig(name="sawtooth", level=level)
    options = {"steps": steps, "lr": 5e-3, "schedule": "onecycle", "clip": 1.0}
    return [RegressionConfig(task=task, model=model, **options) for model in models]


def steep_runs(dimensions: Sequence[int], *more: RegressorConfig) -> list[RegressionConfig]:
    models = [RegressorConfig(kind="self_loop_deq", width=10), fnn(20, 3, scaled=True), *more]
    options = {"steps": 1200, "lr": 1e-2, "scale_lr": 0.1, "schedule": "onecycle"}
    runs = []
    for d in dimensions:
        task = TaskConfig(name="steep", level=d)
        runs += [RegressionConfig(task=task, model=model, **options) for model in models]
    return runs


def boolean_runs() -> list[RegressionConfig]:
    tasks = []
    for coefficients in (F1, F2):
        task = TaskConfig(name="boolean", target="linear", variables=20, coefficients=coefficients)
        tasks.append(task)
    tasks += [TaskConfig(name="boolean", target=name, variables=15) for name in BOOLEAN]
    deq = RegressorConfig(kind="deq", width=20, iterations=30, spread=0.5)
    models = [deq, fnn(20, 3), fnn(20, 5)]
    runs = []
    for task in tasks:
        runs += [RegressionConfig(task=task, model=m, steps=1000, lr=3e-3) for m in models]
    return runs


def figure1() -> list[RegressionConfig]:
    free = free_deq(80, 10, **KINKS)
    contracting = contracting_deq(80, **KINKS)
    networks = [fnn(80, 3, **KINKS), fnn(40, 6, **KINKS)]
    return [
        *sawtooth_runs(5, 3000, [free, contracting, *networks]),
        *sawtooth_runs(10, 800, [free, *networks]),
        *steep_runs((10, 20), fnn(20, 3)),
        *boolean_runs(),
    ]


def figure3() -> list[RegressionConfig]:
    free = free_deq(40, 10, **KINKS)
    contracting = contracting_deq(40, **KINKS)
    networks = [fnn(40, 3, **KINKS), fnn(23, 5, **KINKS)]
    return [
        *sawtooth_runs(1, 600, [free, contracting, *networks]),
        *sawtooth_runs(3, 1500, [free, contracting, *networks]),
        *sawtooth_runs(15, 800, [free, *networks]),
    ]


def table1() -> list[RegressionConfig]:
    shapes = ((54, 3), (31, 5), (22, 8), (10, 32))
    narrow = [free_deq(10, 30, **KINKS)]
    narrow += [fnn(width, depth, **KINKS) for width, depth in shapes]
    wide = [free_deq(80, 10, **KINKS), fnn(250, 3, **KINKS), fnn(80, 12, **KINKS)]
    return [
        *sawtooth_runs(5, 1500, narrow),
        *sawtooth_runs(3, 1200, narrow),
        *sawtooth_runs(5, 3000, wide),
    ]


def audio() -> list[RegressionConfig]:
    start = {"activation": "sine", "input_scale": 300.0, "bias_scale": 3.0}
    models = [
        fnn(48, 3, **start),
        fnn(33, 4, **start),
        fnn(24, 6, **start),
        contracting_deq(48, **start),
        free_deq(48, 12, **start),
        fnn(165, 3, **start),
        fnn(118, 4, **start),
    ]
    task = TaskConfig(name="audio", target="tone")
    options = {"steps": 800, "lr": 5e-3, "batch_size": 400}
    return [RegressionConfig(task=task, model=model, **options) for model in models]


RUNS_OF: dict[str, Callable[[], list[RegressionConfig]]] = {
    "fig1": figure1,
    "fig2": boolean_runs,
    "fig3": figure3,
    "theorem2_steep": functools.partial(steep_runs, STEEP_DIMENSIONS),
    "table1": table1,
    "audio": audio,
}
NOTEBOOKS = tuple(RUNS_OF)
"""Notebooks with trainings of this kind."""


def regression_runs(notebook: str, profile: Profile) -> list[StoredConfig]:
    """The trainings of a notebook of this paper, seed by seed.

    Where the profile's seeds are enough for verdicts, the tasks of `MORE_SEEDS` have at least as
    many as stand there.
    """
    seeds_of = {}
    for run in RUNS_OF[notebook]():
        more = MORE_SEEDS.get(run.task.label(), 0) if profile.seeds >= MIN_SEEDS else 0
        seeds_of[run] = max(profile.seeds, more)
    changes = {"profile": profile.name}
    if profile.name == "smoke":
        changes["steps"] = 10
    runs = []
    for seed in range(max(seeds_of.values())):
        for run, seeds in seeds_of.items():
            if seed < seeds:
                runs.append(run.replace(seed=seed, **changes))
    return runs


def figure6(profile: Profile) -> list[StoredConfig]:
    """Both networks and their Grad-CAM.

    Digits of 8×8 leave maps of one place, so scenes made of them stand in.
    """
    if profile.dataset in ("digits", "digit_scenes"):
        images = profile.images_per_class or 60
        profile = dataclasses.replace(profile, dataset="digit_scenes", images_per_class=images)
    runs = classifiers(profile, data_config(profile))
    return [*runs, *(CamConfig(base=run) for run in runs)]


EXPERIMENTS: dict[str, Callable[[Profile], list[StoredConfig]]] = {
    **{f"separation_bias/{name}": functools.partial(regression_runs, name) for name in NOTEBOOKS},
    "separation_bias/fig6": figure6,
}
PARTS = [("separation_bias", "Wu et al.: separation and bias")]
