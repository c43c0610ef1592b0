"""The runs of Sun & Shi's tables and figures, of what goes beyond them, and of the course."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from nclib.config import DataConfig, GradientConfig, RunConfig, StoredConfig
from nclib.papers.neural_collapse.solver_sweep import SolverSweepConfig
from nclib.profiles import (
    ARMS,
    Profile,
    class_counts,
    classifiers,
    data_config,
    model_config,
    outline,
)

RATIOS = (10.0, 50.0, 100.0)
"""R in the tables of Sun & Shi."""


def step_imbalanced(
    profile: Profile, tenths: int, ratio: float, hundred: bool = False, **options: Any
) -> DataConfig | None:
    """The profile's images with K_A in tenths of the classes, 3, 5 and 7 in the paper, and R; None
    if it has none.

    Parameters
    ----------
    profile : whose images
    tenths : K_A in tenths of the classes
    ratio : R = n_A/n_B
    hundred : whether the data set of a hundred classes is meant
    options : of `DataConfig`
    """
    images = data_config(profile, hundred)
    if images is None:
        return None
    classes = outline(images.dataset).classes
    majority = round(classes * tenths / 10)
    majority = min(max(majority, 1), classes - 1)
    return data_config(
        profile, hundred, imbalance="step", num_majority=majority, ratio=float(ratio), **options
    )


# --- the paper's tables and figures ---------------------------------------------------------------


def _balanced(profile: Profile) -> list[RunConfig]:
    return classifiers(profile, data_config(profile))


def _step(profile: Profile, tenths: int, ratio: float) -> list[RunConfig]:
    return classifiers(profile, step_imbalanced(profile, tenths, ratio))


def _table1(profile: Profile) -> list[RunConfig]:
    return _balanced(profile) + classifiers(profile, data_config(profile, hundred=True))


def _table(profile: Profile, tenths: int) -> list[RunConfig]:
    """Tables 2–4: one K_A, every R, both data sets. Where so few images are left that a larger R
    draws the same ones, it is not run again."""
    data_sets = [False]
    if tenths in profile.hundred_tenths:
        data_sets.append(True)
    runs = []
    drawn = set()
    for hundred in data_sets:
        for ratio in RATIOS:
            images = step_imbalanced(profile, tenths, ratio, hundred)
            if images is None:
                continue
            sizes = (images.dataset, tuple(class_counts(images).tolist()))
            if sizes not in drawn:
                runs += classifiers(profile, images)
            drawn.add(sizes)
    return runs


def _fig3(profile: Profile) -> list[RunConfig]:
    return _balanced(profile) + _step(profile, 5, 100)


def _every_cell(profile: Profile) -> list[RunConfig]:
    """Every cell of Tables 1–4, for the one test over all of them."""
    return [*_table1(profile), *_table(profile, 3), *_table(profile, 5), *_table(profile, 7)]


# --- beyond the paper -----------------------------------------------------------------------------


def _recipes(profile: Profile) -> list[RunConfig]:
    """Balanced, in the profile's protocol and in the literal one. The latter has a constant rate,
    so its first epochs are those of a longer training; one seed shows how far they get."""
    literal = dataclasses.replace(profile, recipe="paper", epochs=profile.literal_epochs, seeds=1)
    return _balanced(profile) + _balanced(literal)


def _controls(profile: Profile) -> list[RunConfig]:
    models = [
        model_config(profile, "explicit"),
        model_config(profile, "deq"),
        model_config(profile, "explicit_matched"),
        model_config(profile, "weight_tied"),
        model_config(profile, "explicit_flops", num_blocks=profile.equal_blocks),
    ]
    return classifiers(profile, step_imbalanced(profile, *profile.beyond), models)


def _your_own_cell(profile: Profile) -> list[RunConfig]:
    """ResNet-18, and a custom cell, at its equilibrium and applied once."""
    models = [
        model_config(profile, "explicit"),
        model_config(profile, "deq", cell=profile.cell),
        model_config(profile, "explicit_matched", cell=profile.cell),
    ]
    return classifiers(profile, step_imbalanced(profile, *profile.beyond), models)


def _nc_definitions(profile: Profile) -> list[RunConfig]:
    """Output stages: ReLU in both arms; GroupNorm, the multiscale cell, as an equilibrium and
    applied once; BatchNorm1d on the features of both arms."""
    models = [model_config(profile, kind) for kind in ARMS]
    for kind in ("explicit_matched", "deq"):
        models.append(model_config(profile, kind, cell="mdeq"))
    for kind in ARMS:
        models.append(model_config(profile, kind, feature_norm="batchnorm"))
    return classifiers(profile, step_imbalanced(profile, *profile.beyond), models)


REMEDIES = {
    "none": ("cross_entropy", "linear"),
    "balanced softmax": ("balanced_softmax", "linear"),
    "class-balanced weights": ("class_balanced", "linear"),
    "LDAM-DRW": ("ldam_drw", "cosine"),
    "fixed ETF classifier": ("cross_entropy", "etf"),
}
"""By the names that readers see: the trainings of `remedies`, with loss and classifier. Logit
adjustment needs none of its own."""


def _remedies(profile: Profile) -> list[RunConfig]:
    images = step_imbalanced(profile, *profile.beyond)
    runs = []
    for loss, head in REMEDIES.values():
        models = [model_config(profile, kind, head=head) for kind in ARMS]
        runs += classifiers(profile, images, models, loss=loss)
    return runs


def _long_tail(profile: Profile) -> list[RunConfig]:
    runs = []
    for ratio in RATIOS:
        images = data_config(profile, imbalance="exponential", ratio=ratio)
        runs += classifiers(profile, images)
    return runs


def _seeds_and_subsets(profile: Profile) -> list[RunConfig]:
    """Three ways to repeat a setting: other images, initial weights and order (as everywhere else);
    other weights and order alone, on the images of seed 0; and other majority classes besides."""
    beyond = profile.beyond
    everything = classifiers(profile, step_imbalanced(profile, *beyond))
    same_images = classifiers(profile, step_imbalanced(profile, *beyond, subset_seed=0))
    other_classes = classifiers(profile, step_imbalanced(profile, *beyond, majority="random"))
    # seed 0 on the images of seed 0 is among the first
    same_images = [run for run in same_images if run.seed > 0]
    return everything + same_images + other_classes


def _solver_and_collapse(profile: Profile) -> list[StoredConfig]:
    """DEQ runs that other notebooks need as well, and a solver sweep of each."""
    images = step_imbalanced(profile, *profile.beyond)
    runs = classifiers(profile, images, [model_config(profile, "deq")])
    return [*runs, *(SolverSweepConfig(base=run) for run in runs)]


def _equilibrium_or_cell(profile: Profile) -> list[RunConfig]:
    """The cells of Tables 1–4 with both arms, and with the same block applied once."""
    both = _every_cell(profile)
    matched = model_config(profile, "explicit_matched")
    return both + [run.replace(model=matched) for run in both if run.model.kind == "deq"]


def _optimisers(profile: Profile) -> list[RunConfig]:
    """Three networks on balanced data with SGD, with Adam, whose weight decay is coupled as in SGD,
    and with AdamW. The learning rate of the latter two is PyTorch's; AdamW scales the weights down
    in a step as much as SGD does in the long run, by lr · weight decay / (1 − momentum)."""
    kinds = ("explicit", "explicit_matched", "deq")
    models = [model_config(profile, kind) for kind in kinds]
    with_sgd = classifiers(profile, data_config(profile), models)
    runs = list(with_sgd)
    for run in with_sgd:
        sgd = run.train
        decoupled = round(sgd.lr * sgd.weight_decay / (1 - sgd.momentum) / 1e-3, 6)
        for name, decay in (("adam", sgd.weight_decay), ("adamw", decoupled)):
            train = sgd.replace(optimiser=name, lr=1e-3, weight_decay=decay)
            runs.append(run.replace(train=train))
    return sorted(runs, key=lambda run: run.seed)


RULES = {
    "solved": GradientConfig(),
    "5 products": GradientConfig(steps=5),
    "2 products": GradientConfig(steps=2),
    "Neumann, 3 terms": GradientConfig(method="neumann", steps=3),
    "JFB, 1 step": GradientConfig(method="phantom", steps=1),
}
"""By the names that readers see: the rules of `which_gradient`. The others are compared with the
first."""


def _which_gradient(profile: Profile) -> list[RunConfig]:
    """The DEQ on balanced data by each rule, with seeds that no other experiment uses: no run is
    shared with one that another processor may have made."""
    models = [model_config(profile, "deq", gradient=rule) for rule in RULES.values()]
    runs = classifiers(profile, data_config(profile), models)
    return [run.replace(seed=run.seed + 20) for run in runs]


# --- the course -----------------------------------------------------------------------------------


def _imbalance_at_a_glance(profile: Profile) -> list[RunConfig]:
    """Two imbalances of Table 3 with the first seed: what the course looks at."""
    first = dataclasses.replace(profile, seeds=1)
    return _step(first, 5, 10.0) + _step(first, 5, 100.0)


# --- what nclib asks of a paper -------------------------------------------------------------------

EXPERIMENTS: dict[str, Callable[[Profile], list[StoredConfig]]] = {
    "neural_collapse/table1": _table1,
    "neural_collapse/table2": partial(_table, tenths=3),
    "neural_collapse/table3": partial(_table, tenths=5),
    "neural_collapse/table4": partial(_table, tenths=7),
    "neural_collapse/fig2": partial(_step, tenths=3, ratio=10),
    "neural_collapse/fig3": _fig3,
    "neural_collapse/fig4": partial(_step, tenths=3, ratio=100),
    "neural_collapse/fig5": partial(_step, tenths=7, ratio=100),
    "neural_collapse/recipes": _recipes,
    "neural_collapse/controls": _controls,
    "neural_collapse/equilibrium_or_cell": _equilibrium_or_cell,
    "neural_collapse/your_own_cell": _your_own_cell,
    "neural_collapse/nc_definitions": _nc_definitions,
    "neural_collapse/remedies": _remedies,
    "neural_collapse/long_tail": _long_tail,
    "neural_collapse/seeds_and_subsets": _seeds_and_subsets,
    "neural_collapse/scorecard": _every_cell,
    "neural_collapse/solver_and_collapse": _solver_and_collapse,
    "neural_collapse/optimisers": _optimisers,
    "neural_collapse/which_gradient": _which_gradient,
    "walkthrough/07_imbalance": _imbalance_at_a_glance,
    "walkthrough/08_reading_a_table": partial(_step, tenths=5, ratio=100),
}

PARTS = [("walkthrough", "The course"), ("neural_collapse", "Sun & Shi: neural collapse")]
"""Headings of the folders of notebooks."""
FIRST = ("neural_collapse/fig2", "neural_collapse/fig3", "neural_collapse/table1")
"""What is rendered first (`nclib.reproduce`)."""
STUDIES = [
    "neural_collapse/controls",
    "neural_collapse/equilibrium_or_cell",
    "neural_collapse/long_tail",
    "neural_collapse/nc_definitions",
    "neural_collapse/optimisers",
    "neural_collapse/recipes",
    "neural_collapse/remedies",
    "neural_collapse/seeds_and_subsets",
    "neural_collapse/solver_and_collapse",
    "neural_collapse/which_gradient",
    "neural_collapse/your_own_cell",
]
"""Notebooks that go beyond the paper; `nclib reproduce` without names plots them from runs that
are there and trains none for them."""
LONG_NOTEBOOKS = [
    ("neural_collapse/theory_imbalance", 70.0),
    ("neural_collapse/theory_layer_peeled", 70.0),
]
"""Notebooks that compute for much longer than others, and roughly how many seconds on one core."""
DRAWN_AS_FAR_AS_THERE = [("neural_collapse/collapse", "neural_collapse/equilibrium_or_cell")]
"""Notebooks without runs of their own, and the notebook whose runs they draw as far as they are
there."""
DRAW_A_PART = []
"""Notebooks that draw a part of their runs."""
for _name in EXPERIMENTS:
    _, _, _notebook = _name.partition("/")
    if _notebook.startswith(("table", "fig", "scorecard")):
        DRAW_A_PART.append(_name)
