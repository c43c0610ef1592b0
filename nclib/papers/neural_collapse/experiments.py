"""The runs of Sun & Shi's tables and figures, of what goes beyond them, and of the course."""

import dataclasses
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from nclib.config import DataConfig, GradientConfig, RunConfig, StoredConfig
from nclib.papers.neural_collapse.solver_sweep import SolverSweepConfig
from nclib.profiles import ARMS, Profile, class_counts, classifiers, data_config, model_config, outline

RATIOS = (10.0, 50.0, 100.0)
"""R in the tables of Sun & Shi."""


def step_imbalanced(
    profile: Profile, tenths: int, ratio: float, hundred: bool = False, **options: Any
) -> DataConfig | None:
    """The profile's images with K_A in tenths of the classes, 3, 5 and 7 in the paper, and R; None if it has none."""
    if (images := data_config(profile, hundred)) is None:
        return None
    classes = outline(images.dataset).classes
    majority = min(max(round(classes * tenths / 10), 1), classes - 1)
    return data_config(profile, hundred, imbalance="step", num_majority=majority, ratio=float(ratio), **options)


def _balanced(profile: Profile) -> list[RunConfig]:
    return classifiers(profile, data_config(profile))


def _step(profile: Profile, tenths: int, ratio: float) -> list[RunConfig]:
    return classifiers(profile, step_imbalanced(profile, tenths, ratio))


def _table1(profile: Profile) -> list[RunConfig]:
    return _balanced(profile) + classifiers(profile, data_config(profile, hundred=True))


def _table(profile: Profile, tenths: int) -> list[RunConfig]:
    """Tables 2–4: one K_A, every R, both data sets. Where so few images are left that a larger R draws the same ones,
    it is not run again."""
    runs, seen = [], set()
    for hundred, ratio in product((False, True) if tenths in profile.hundred_tenths else (False,), RATIOS):
        images = step_imbalanced(profile, tenths, ratio, hundred)
        drawn = images and (images.dataset, tuple(class_counts(images).tolist()))
        if drawn not in seen:
            runs += classifiers(profile, images)
        seen.add(drawn)
    return runs


def _recipes(profile: Profile) -> list[RunConfig]:
    """Balanced, in the profile's protocol and in the literal one. The latter has a constant rate, so its first epochs
    are those of a longer training; one seed shows how far they get."""
    literal = dataclasses.replace(profile, recipe="paper", epochs=profile.literal_epochs, seeds=1)
    return _balanced(profile) + _balanced(literal)


def _controls(profile: Profile) -> list[RunConfig]:
    models = [model_config(profile, kind) for kind in ("explicit", "deq", "explicit_matched", "weight_tied")]
    models.append(model_config(profile, "explicit_flops", num_blocks=profile.equal_blocks))
    return classifiers(profile, step_imbalanced(profile, *profile.beyond), models)


def _your_own_cell(profile: Profile) -> list[RunConfig]:
    """ResNet-18, and a custom cell, at its equilibrium and applied once."""
    models = [model_config(profile, "explicit")]
    models += [model_config(profile, kind, cell=profile.cell) for kind in ("deq", "explicit_matched")]
    return classifiers(profile, step_imbalanced(profile, *profile.beyond), models)


def _nc_definitions(profile: Profile) -> list[RunConfig]:
    """Output stages: ReLU in both arms; GroupNorm, the multiscale cell, as an equilibrium and applied once; BatchNorm1d
    on the features of both arms."""
    models = [model_config(profile, kind) for kind in ARMS]
    models += [model_config(profile, kind, cell="mdeq") for kind in ("explicit_matched", "deq")]
    models += [model_config(profile, kind, feature_norm="batchnorm") for kind in ARMS]
    return classifiers(profile, step_imbalanced(profile, *profile.beyond), models)


# By the names that readers see: the trainings of `remedies`, with loss and classifier. Logit adjustment needs none of
# its own.
REMEDIES = {
    "none": ("cross_entropy", "linear"),
    "balanced softmax": ("balanced_softmax", "linear"),
    "class-balanced weights": ("class_balanced", "linear"),
    "LDAM-DRW": ("ldam_drw", "cosine"),
    "fixed ETF classifier": ("cross_entropy", "etf"),
}


def _remedies(profile: Profile) -> list[RunConfig]:
    images, runs = step_imbalanced(profile, *profile.beyond), []
    for loss, head in REMEDIES.values():
        runs += classifiers(profile, images, [model_config(profile, kind, head=head) for kind in ARMS], loss=loss)
    return runs


def _long_tail(profile: Profile) -> list[RunConfig]:
    images = [data_config(profile, imbalance="exponential", ratio=ratio) for ratio in RATIOS]
    return [run for each in images for run in classifiers(profile, each)]


def _seeds_and_subsets(profile: Profile) -> list[RunConfig]:
    """Three ways to repeat a setting: other images, initial weights and order (as everywhere else); other weights and
    order alone, on the images of seed 0; and other majority classes besides."""
    everything = classifiers(profile, step_imbalanced(profile, *profile.beyond))
    same_images = classifiers(profile, step_imbalanced(profile, *profile.beyond, subset_seed=0))
    other_classes = classifiers(profile, step_imbalanced(profile, *profile.beyond, majority="random"))
    # seed 0 on the images of seed 0 is among the first
    return everything + [run for run in same_images if run.seed] + other_classes


def _solver_and_collapse(profile: Profile) -> list[StoredConfig]:
    """DEQ runs that other notebooks need as well, and a solver sweep of each."""
    runs = classifiers(profile, step_imbalanced(profile, *profile.beyond), [model_config(profile, "deq")])
    return [*runs, *(SolverSweepConfig(base=run) for run in runs)]


def _scorecard(profile: Profile) -> list[RunConfig]:
    """Every cell of Tables 1–4, for the one test over all of them."""
    return _table1(profile) + [run for tenths in (3, 5, 7) for run in _table(profile, tenths)]


def _equilibrium_or_cell(profile: Profile) -> list[RunConfig]:
    """The cells of Tables 1–4 with both arms, and with the same block applied once."""
    both = _scorecard(profile)
    matched = model_config(profile, "explicit_matched")
    return both + [run.replace(model=matched) for run in both if run.model.kind == "deq"]


def _optimisers(profile: Profile) -> list[RunConfig]:
    """Three networks on balanced data with SGD, with Adam, whose weight decay is coupled as in SGD, and with AdamW. The
    learning rate of the latter two is PyTorch's; AdamW scales the weights down in a step as much as SGD does in the
    long run, by lr · weight decay / (1 − momentum)."""
    models = [model_config(profile, kind) for kind in ("explicit", "explicit_matched", "deq")]
    found = classifiers(profile, data_config(profile), models)
    for train, run in [(run.train, run) for run in found]:
        decay = round(train.lr * train.weight_decay / (1 - train.momentum) / 1e-3, 6)
        for name, own in {"adam": train.weight_decay, "adamw": decay}.items():
            found.append(run.replace(train=train.replace(optimiser=name, lr=1e-3, weight_decay=own)))
    return sorted(found, key=lambda run: run.seed)


# By the names that readers see: the rules of `which_gradient`. The first is the one that others are compared with.
RULES = {
    "solved": GradientConfig(),
    "5 products": GradientConfig(steps=5),
    "2 products": GradientConfig(steps=2),
    "Neumann, 3 terms": GradientConfig(method="neumann", steps=3),
    "JFB, 1 step": GradientConfig(method="phantom", steps=1),
}


def _which_gradient(profile: Profile) -> list[RunConfig]:
    """The DEQ on balanced data by each rule, with seeds that no other experiment uses: no run is shared with one that
    another processor may have made."""
    models = [model_config(profile, "deq", gradient=rule) for rule in RULES.values()]
    return [run.replace(seed=run.seed + 20) for run in classifiers(profile, data_config(profile), models)]


def _imbalance_at_a_glance(profile: Profile) -> list[RunConfig]:
    """Two imbalances of Table 3 with the first seed: what the course looks at."""
    first = dataclasses.replace(profile, seeds=1)
    return _step(first, 5, 10.0) + _step(first, 5, 100.0)


EXPERIMENTS: dict[str, Callable[[Profile], list[StoredConfig]]] = {
    "neural_collapse/table1": _table1,
    **{f"neural_collapse/table{n}": partial(_table, tenths=tenths) for n, tenths in ((2, 3), (3, 5), (4, 7))},
    "neural_collapse/fig2": lambda profile: _step(profile, 3, 10),
    "neural_collapse/fig3": lambda profile: _balanced(profile) + _step(profile, 5, 100),
    "neural_collapse/fig4": lambda profile: _step(profile, 3, 100),
    "neural_collapse/fig5": lambda profile: _step(profile, 7, 100),
    "neural_collapse/recipes": _recipes,
    "neural_collapse/controls": _controls,
    "neural_collapse/equilibrium_or_cell": _equilibrium_or_cell,
    "neural_collapse/your_own_cell": _your_own_cell,
    "neural_collapse/nc_definitions": _nc_definitions,
    "neural_collapse/remedies": _remedies,
    "neural_collapse/long_tail": _long_tail,
    "neural_collapse/seeds_and_subsets": _seeds_and_subsets,
    "neural_collapse/scorecard": _scorecard,
    "neural_collapse/solver_and_collapse": _solver_and_collapse,
    "neural_collapse/optimisers": _optimisers,
    "neural_collapse/which_gradient": _which_gradient,
    "walkthrough/07_imbalance": _imbalance_at_a_glance,
    "walkthrough/08_reading_a_table": lambda profile: _step(profile, 5, 100),
}

# What nclib asks of a paper beside its experiments: headings of its folders, and what is
# rendered first or in part (`nclib.reproduce`).
PARTS = [("walkthrough", "The course"), ("neural_collapse", "Sun & Shi: neural collapse")]
FIRST = ("neural_collapse/fig3", "neural_collapse/table1", "neural_collapse/fig2")
DRAWN_AS_FAR_AS_THERE = [("neural_collapse/collapse", "neural_collapse/equilibrium_or_cell")]
DRAW_A_PART = [name for name in EXPERIMENTS if name.partition("/")[2].startswith(("table", "fig", "scorecard"))]
