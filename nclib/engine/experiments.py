"""What each notebook needs, at each size: a profile is a size, an experiment a list of run configurations made from
it, described in words for captions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from nclib import data, imbalance
from nclib.config import (
    AUGMENTATION,
    ConfigError,
    DataConfig,
    ModelConfig,
    RunConfig,
    StoredConfig,
    TrainConfig,
    recipe,
    run_id,
    suggest,
)
from nclib.engine.reference import reference_store
from nclib.papers.kernel_equivalence.coefficients import coefficients, explicit_coefficients
from nclib.papers.kernel_equivalence.matching import match_htanh, match_leaky_relu
from nclib.papers.kernel_equivalence.networks import ShallowConfig, ShallowModelConfig, ShallowTrainConfig
from nclib.papers.neural_collapse.probes import ProbeConfig
from nclib.papers.separation_bias import grids
from nclib.papers.separation_bias.grad_cam import CamConfig
from nclib.system import words


@dataclass(frozen=True)
class Profile:
    """A size at which everything runs; the code path is the same for all.

    dataset, hundred_dataset : what stands for CIFAR-10 and CIFAR-100; an empty name leaves that column out ("not run")
    images_per_class : n_A; None means as many as the smallest class has. test_images_per_class : None means all
    seeds : the runs are repeated with seeds 0 … seeds−1
    hundred_tenths : K_A of the 100-class column of Tables 2–4, in tenths of the classes; the others read "not run"
    beyond : K_A in tenths and R of the notebooks beyond the paper
    equal_blocks : untied blocks that cost what an equilibrium costs here (`compute_in_blocks`, measured, rounded)
    recipe : name of the training protocol; epochs, batch_size, lr, precision and log_every are set on top of it
    augment, precision : as in `DataConfig` and `TrainConfig`
    literal_epochs : epochs of the recipe that the paper states, where it is compared with the profile's
    grey_dataset : what stands for MNIST in the fully connected networks of the sister paper
    shallow_widths, shallow_epochs, shallow_readout, shallow_lr : of those; epochs of all weights, of the readout alone
    inputs : of those networks, "pixels" or "resnet18", the features of the balanced explicit run of the same seed
    """

    name: str
    description: str
    dataset: str
    hundred_dataset: str
    width: int
    epochs: int
    batch_size: int
    lr: float
    seeds: int
    log_every: int
    images_per_class: int | None = None
    hundred_images_per_class: int | None = None
    test_images_per_class: int | None = None
    hundred_tenths: tuple[int, ...] = (3, 5, 7)
    beyond: tuple[int, float] = (5, 100.0)
    equal_blocks: int = 6
    recipe: str = "workable"
    augment: str = "dataset"
    precision: str = "float32"
    literal_epochs: int = 20
    grey_dataset: str = "digits"
    shallow_widths: tuple[int, ...] = (16, 32, 64, 256)
    shallow_epochs: int = 10
    shallow_readout: int = 100
    shallow_lr: float = 1.0
    inputs: str = "pixels"


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="smoke",
            description="a slice of digits and two epochs: tests, no science",
            dataset="digits",
            hundred_dataset="",
            width=2,
            epochs=2,
            literal_epochs=2,
            batch_size=32,
            lr=0.05,
            seeds=1,
            log_every=1,
            images_per_class=20,
            test_images_per_class=10,
            beyond=(3, 10.0),
            shallow_widths=(4, 8),
            shallow_epochs=1,
            shallow_readout=3,
        ),
        Profile(
            name="quick",
            description="scikit-learn's 8×8 digits and pairs of them, narrow ResNet-18: real training on a laptop",
            dataset="digits",
            hundred_dataset="digit_pairs",
            width=16,
            epochs=20,
            batch_size=64,
            lr=0.05,
            seeds=3,
            log_every=2,
            hundred_images_per_class=16,
            hundred_tenths=(5,),
            beyond=(3, 10.0),  # at R = 100 a minority class would be a single digit
            equal_blocks=5,
        ),
        Profile(
            name="lite",
            description="real images, narrow ResNet-18, fewer images and epochs: hours on a CPU, minutes on a GPU",
            dataset="cifar10",
            hundred_dataset="",
            width=16,
            epochs=30,
            batch_size=64,
            lr=0.05,
            seeds=2,
            log_every=5,
            images_per_class=500,
            test_images_per_class=200,
            grey_dataset="mnist",
            shallow_widths=(32, 128, 512),
            shallow_epochs=5,
        ),
        Profile(
            name="full",
            description="every image of CIFAR-10, narrow ResNet-18, into the terminal phase: days on a CPU",
            dataset="cifar10",
            hundred_dataset="",
            width=16,
            epochs=40,
            batch_size=128,
            lr=0.1,
            seeds=3,
            log_every=5,
            recipe="collapse",
            augment="none",
            precision="bfloat16",
            literal_epochs=100,
            grey_dataset="mnist",
            shallow_widths=(32, 128, 512),
            shallow_epochs=5,
        ),
        Profile(
            name="paper",
            description="CIFAR-10 and CIFAR-100, ResNet-18, 100 epochs, three seeds: the paper's scale, on a GPU",
            dataset="cifar10",
            hundred_dataset="cifar100",
            width=64,
            epochs=100,
            batch_size=128,
            lr=0.1,
            seeds=3,
            log_every=5,
            grey_dataset="mnist",
            shallow_widths=(32, 128, 256, 1024, 4096),
            shallow_epochs=20,
        ),
    )
}


def get_profile(name: str) -> Profile:
    """The profile of that name; raises `ConfigError` with the nearest name for another."""
    if name not in PROFILES:
        raise ConfigError(suggest(name, PROFILES, "profile"))
    return PROFILES[name]


OVERRIDES: dict[str, type] = {
    "dataset": str,
    "epochs": int,
    "width": int,
    "seeds": int,
    "images_per_class": int,
    "test_images_per_class": int,
    "batch_size": int,
    "lr": float,
    "recipe": str,
    "precision": str,
    "inputs": str,
}
"""Notebook parameters that change which runs are made; 0 or "" stands for the profile's own value."""


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a notebook's parameters that change which runs are made (`OVERRIDES`), from its ``globals()``.

    Examples
    --------
    >>> given({"epochs": 3, "seeds": 0, "train": "never"})
    {'epochs': 3, 'seeds': 0}
    """
    return {name: values[name] for name in OVERRIDES if name in values}


def override(profile: Profile, **values: Any) -> Profile:
    """The profile with some settings changed; 0 and "" leave the profile's own.

    A `dataset` other than the profile's replaces the 10-class data set and leaves the 100-class column out, because
    nothing is known about a second one. Naming the profile's 100-class data set leaves the 10-class column out.

    Raises
    ------
    ConfigError
        For an unknown name (with the nearest one), a wrong type or an impossible number.
    """
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in OVERRIDES:
            raise ConfigError(suggest(name, OVERRIDES, "parameter"))
        wanted = OVERRIDES[name]
        if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
            raise ConfigError(f"parameter {name} must be {wanted.__name__}, got {value!r}")
        if wanted is not str and value < 0:
            raise ConfigError(f"parameter {name} must be positive, or 0 for the profile's own, got {value}")
        if value:
            changes[name] = value
    if "dataset" in changes:
        name = data.resolve_dataset(changes["dataset"])
        if name == profile.hundred_dataset:
            changes |= {"dataset": ""}
        elif name != profile.dataset:
            changes |= {"dataset": name, "hundred_dataset": ""}
        changes |= {"grey_dataset": name}
    for name, own in (("epochs", "shallow_epochs"), ("lr", "shallow_lr")):
        if name in changes:
            changes[own] = changes[name]
    if "epochs" in changes:
        changes["literal_epochs"] = min(changes["epochs"], profile.literal_epochs)
    if "width" in changes:
        changes["shallow_widths"] = (changes["width"],)
    if changes.get("inputs", "pixels") not in INPUTS:
        raise ConfigError(suggest(changes["inputs"], INPUTS, "kind of inputs"))
    if "images_per_class" in changes:
        changes["hundred_images_per_class"] = changes["images_per_class"]
    if changes.get("recipe") in AUGMENTATION:
        changes["augment"] = AUGMENTATION[changes["recipe"]]
    changed = dataclasses.replace(profile, **changes)
    if "lr" in changes and changed.recipe == "paper":
        raise ConfigError("recipe 'paper' states its own lr (0.0001); leave lr out, or use recipe 'workable'")
    return changed


ARMS = ("explicit", "deq")
INPUTS = ("pixels", "resnet18")


def _images(profile: Profile, hundred: bool = False, **imbalance: Any) -> DataConfig | None:
    """The profile's 10-class data set, or its 100-class one, at some imbalance; None when it has no such data set."""
    dataset = profile.hundred_dataset if hundred else profile.dataset
    if not dataset:
        return None
    return DataConfig(
        dataset=dataset,
        n_max=profile.hundred_images_per_class if hundred else profile.images_per_class,
        test_per_class=profile.test_images_per_class,
        augment=profile.augment,
        **imbalance,
    )


def _step(profile: Profile, tenths: int, ratio: float, hundred: bool = False, **options: Any) -> DataConfig | None:
    dataset = profile.hundred_dataset if hundred else profile.dataset
    if not dataset:
        return None
    step = {"imbalance": "step", "num_majority": majority_of(dataset, tenths), "ratio": float(ratio)}
    return _images(profile, hundred, **step, **options)


def _model(profile: Profile, kind: str, **options: Any) -> ModelConfig:
    return ModelConfig(kind=kind, width=profile.width, **options)


def _runs(
    profile: Profile, images: DataConfig | None, models: Sequence[ModelConfig] = (), loss: str = "cross_entropy"
) -> list[RunConfig]:
    """Every model, both arms if none is named, with every seed on these images."""
    train = recipe(
        profile.recipe,
        epochs=profile.epochs,
        batch_size=profile.batch_size,
        log_every=profile.log_every,
        precision=profile.precision,
        loss=loss,
        **({"lr": profile.lr} if profile.recipe != "paper" else {}),
    )
    models = models or [_model(profile, kind) for kind in ARMS]
    return [
        RunConfig(data=images, model=model, train=train, seed=seed, profile=profile.name)
        for seed in range(profile.seeds if images else 0)
        for model in models
    ]


class Outline(NamedTuple):
    """What plans and captions need to know of a data set: classes, training images in the smallest class, height and
    width, test images in the smallest and the largest class (None where only results are known, not the images)."""

    classes: int
    per_class: int
    size: tuple[int, int]
    test: tuple[int, int] | None = None


_ORIGINALS = {
    "cifar10": Outline(10, 5000, (32, 32), (1000, 1000)),
    "cifar100": Outline(100, 500, (32, 32), (100, 100)),
    "mnist": Outline(10, 5421, (28, 28), (892, 1135)),
    "fashion_mnist": Outline(10, 6000, (28, 28), (1000, 1000)),
}
"""Known without the files, so that a plan can be made before anything is downloaded."""


@functools.cache
def outline(dataset: str) -> Outline:
    """Outline of a data set; a folder must have been decoded (`nclib.data.resolve_dataset` does it), unless reference
    results were made from it."""
    if dataset in _ORIGINALS:
        return _ORIGINALS[dataset]
    facts = data.describe(dataset)
    if not facts["present"]:
        known = reference_store().datasets().get(dataset)
        if known is not None:
            test = known.get("test")  # older results do not say
            return Outline(known["classes"], known["per_class"], tuple(known["size"]), test and tuple(test))
        data.load_dataset(dataset, "train")  # says what is missing and what to type
    test = (min(facts["test"]), max(facts["test"]))
    return Outline(facts["classes"], min(facts["train"]), tuple(facts["shape"][1:]), test)


def majority_of(dataset: str, tenths: int) -> int:
    """K_A for `tenths` tenths of a data set's classes: the paper's K_A = 3, 5, 7 of 10 and 30, 50, 70 of 100."""
    classes = outline(dataset).classes
    return min(max(round(classes * tenths / 10), 1), classes - 1)


RATIOS = (10.0, 50.0, 100.0)
"""The paper's R."""


def _balanced(profile: Profile) -> list[RunConfig]:
    return _runs(profile, _images(profile))


def _table1(profile: Profile) -> list[RunConfig]:
    return _balanced(profile) + _runs(profile, _images(profile, hundred=True))


def _table(profile: Profile, tenths: int) -> list[RunConfig]:
    """Tables 2–4: one K_A, every R, both data sets. Where so few images are left that a larger R draws the same ones,
    it is not run again."""
    runs, seen = [], set()
    for hundred in (False, True) if tenths in profile.hundred_tenths else (False,):
        for ratio in RATIOS:
            images = _step(profile, tenths, ratio, hundred)
            drawn = images and (images.dataset, tuple(class_counts(images).tolist()))
            if drawn not in seen:
                runs += _runs(profile, images)
            seen.add(drawn)
    return runs


def _fig3(profile: Profile) -> list[RunConfig]:
    return _balanced(profile) + _runs(profile, _step(profile, 5, 100))


def _recipes(profile: Profile) -> list[RunConfig]:
    """Balanced, in the profile's protocol and in the literal one. The latter has a constant rate, so its first epochs
    are those of a longer training; one seed shows how far they get."""
    literal = dataclasses.replace(profile, recipe="paper", epochs=profile.literal_epochs, seeds=1)
    return _balanced(profile) + _balanced(literal)


def _controls(profile: Profile) -> list[RunConfig]:
    kinds = ("explicit", "deq", "explicit_matched", "weight_tied")
    models = [_model(profile, kind) for kind in kinds]
    models.append(_model(profile, "explicit_flops", num_blocks=profile.equal_blocks))
    return _runs(profile, _step(profile, *profile.beyond), models)


def _nc_definitions(profile: Profile) -> list[RunConfig]:
    """Output stages: ReLU in both arms; GroupNorm, the multiscale cell, as an equilibrium and applied once; BatchNorm1d
    on the features of both arms."""
    models = [_model(profile, kind) for kind in ARMS]
    models += [_model(profile, kind, cell="mdeq") for kind in ("explicit_matched", "deq")]
    models += [_model(profile, kind, feature_norm="batchnorm") for kind in ARMS]
    return _runs(profile, _step(profile, *profile.beyond), models)


REMEDIES: dict[str, dict[str, str]] = {
    "none": {},
    "balanced softmax": {"loss": "balanced_softmax"},
    "class-balanced weights": {"loss": "class_balanced"},
    "LDAM-DRW": {"loss": "ldam_drw", "head": "cosine"},
    "fixed ETF classifier": {"head": "etf"},
}
"""Names of the trainings of `remedies`, with their loss and classifier. Logit adjustment needs none of its own."""


def _remedies(profile: Profile) -> list[RunConfig]:
    images = _step(profile, *profile.beyond)
    return [
        run
        for remedy in REMEDIES.values()
        for run in _runs(
            profile,
            images,
            [_model(profile, kind, head=remedy.get("head", "linear")) for kind in ARMS],
            loss=remedy.get("loss", "cross_entropy"),
        )
    ]


def _long_tail(profile: Profile) -> list[RunConfig]:
    return [run for ratio in RATIOS for run in _runs(profile, _images(profile, imbalance="exponential", ratio=ratio))]


def _seeds_and_subsets(profile: Profile) -> list[RunConfig]:
    """Three ways to repeat a setting: other images, initial weights and order (as everywhere else); other weights and
    order alone, on the images of seed 0; and other majority classes besides."""
    everything = _runs(profile, _step(profile, *profile.beyond))
    same_images = _runs(profile, _step(profile, *profile.beyond, subset_seed=0))
    other_classes = _runs(profile, _step(profile, *profile.beyond, majority="random"))
    # seed 0 on the images of seed 0 is among the first
    return everything + [run for run in same_images if run.seed] + other_classes


def _solver_and_collapse(profile: Profile) -> list[StoredConfig]:
    """DEQ runs that other notebooks need as well, and a look into the solver of each."""
    runs = _runs(profile, _step(profile, *profile.beyond), [_model(profile, "deq")])
    return [*runs, *(ProbeConfig(base=run) for run in runs)]


def _scorecard(profile: Profile) -> list[RunConfig]:
    """Every cell of Tables 1–4, for the one test over all of them."""
    return _table1(profile) + [run for tenths in (3, 5, 7) for run in _table(profile, tenths)]


def _equilibrium_or_cell(profile: Profile) -> list[RunConfig]:
    """The cells of Tables 1–4 with both arms, and with the DEQ's own cell applied once."""
    both = _scorecard(profile)
    matched = _model(profile, "explicit_matched")
    return both + [run.replace(model=matched) for run in both if run.model.kind == "deq"]


def _imbalance_at_a_glance(profile: Profile) -> list[RunConfig]:
    """Two imbalances of Table 3 with the first seed: what the course looks at."""
    first = dataclasses.replace(profile, seeds=1)
    return [run for ratio in (10.0, 100.0) for run in _runs(first, _step(first, 5, ratio))]


def _shallow_models(width: int, sigma_a2: float = 0.2) -> list[ShallowModelConfig]:
    """The six arms of Ling et al.'s Figure 3 at one width, matched for τ_0 = 1. The numbers are rounded, so that the
    identity of a run does not depend on the last bits of a machine."""
    relu, pair = "relu", match_leaky_relu(sigma_a2)[-1].layers
    shifts = [explicit_coefficients(pair[:depth]).bias for depth in (1, 2)]
    numbers = {
        "tanh_deq": (),
        "h_tanh_enn": match_htanh(sigma_a2),
        "tanh_enn": (),
        "relu_deq": (coefficients(relu, sigma_a2).bias,),
        "l_relu_enn": (pair[0].a, pair[0].b, shifts[0], pair[1].a, pair[1].b, shifts[1]),
        "relu_enn": tuple(explicit_coefficients([relu] * depth).bias for depth in (1, 2)),
    }
    return [
        ShallowModelConfig(
            kind=kind,
            width=width,
            numbers=tuple(float(f"{value:.9g}") for value in values),
            sigma_a2=sigma_a2 if kind.endswith("deq") else None,
        )
        for kind, values in numbers.items()
    ]


def _kernel_fig3(profile: Profile) -> list[StoredConfig]:
    """Every arm, width and seed; with recipe "paper" as in the released scripts, the readout alone."""
    if not profile.grey_dataset:
        return []
    images = DataConfig(
        dataset=profile.grey_dataset,
        n_max=profile.images_per_class,
        test_per_class=profile.test_images_per_class,
    )
    scripts = profile.recipe == "paper"
    train = ShallowTrainConfig(
        readout_epochs=100 if scripts else profile.shallow_readout,
        epochs=0 if scripts else profile.shallow_epochs,
        batch_size=128 if scripts else profile.batch_size,
        lr=1.0 if scripts else profile.shallow_lr,
    )
    encoders: list[RunConfig | None] = [None] * profile.seeds
    if profile.inputs == "resnet18":
        resnet = dataclasses.replace(profile, width=PROFILES[profile.name].width, epochs=PROFILES[profile.name].epochs)
        encoders = list(_runs(resnet, images, [_model(resnet, "explicit")]))
    return [
        ShallowConfig(data=images, model=model, train=train, encoder=encoders[seed], seed=seed, profile=profile.name)
        for seed in range(profile.seeds)
        for width in profile.shallow_widths
        for model in _shallow_models(width)
    ]


def _separation(notebook: str) -> Callable[[Profile], list[StoredConfig]]:
    return lambda profile: list(grids.regression_runs(notebook, profile.seeds, profile.name))


_SCENES_PER_CLASS = 60


def _where_networks_look(profile: Profile) -> list[StoredConfig]:
    """Both arms and their Grad-CAM. Digits of 8×8 leave maps of one place, so scenes made of them stand in."""
    if profile.dataset in ("digits", "digit_scenes"):
        images = profile.images_per_class or _SCENES_PER_CLASS
        profile = dataclasses.replace(profile, dataset="digit_scenes", images_per_class=images)
    runs = _runs(profile, _images(profile))
    return [*runs, *(CamConfig(base=run) for run in runs)]


EXPERIMENTS: dict[str, Callable[[Profile], list[RunConfig]]] = {
    "neural_collapse/table1": _table1,
    "neural_collapse/table2": lambda profile: _table(profile, 3),
    "neural_collapse/table3": lambda profile: _table(profile, 5),
    "neural_collapse/table4": lambda profile: _table(profile, 7),
    "neural_collapse/fig2": lambda profile: _runs(profile, _step(profile, 3, 10)),
    "neural_collapse/fig3": _fig3,
    "neural_collapse/fig4": lambda profile: _runs(profile, _step(profile, 3, 100)),
    "neural_collapse/fig5": lambda profile: _runs(profile, _step(profile, 7, 100)),
    "neural_collapse/recipes": _recipes,
    "neural_collapse/controls": _controls,
    "neural_collapse/equilibrium_or_cell": _equilibrium_or_cell,
    "neural_collapse/nc_definitions": _nc_definitions,
    "neural_collapse/remedies": _remedies,
    "neural_collapse/long_tail": _long_tail,
    "neural_collapse/seeds_and_subsets": _seeds_and_subsets,
    "neural_collapse/scorecard": _scorecard,
    "neural_collapse/solver_and_collapse": _solver_and_collapse,
    "walkthrough/07_imbalance": _imbalance_at_a_glance,
    "walkthrough/08_reading_a_table": lambda profile: _runs(profile, _step(profile, 5, 100)),
    "kernel_equivalence/fig3": _kernel_fig3,
    **{f"separation_bias/{name}": _separation(name) for name in grids.NOTEBOOKS},
    "separation_bias/fig6": _where_networks_look,
    "separation_bias/verdicts": lambda profile: [*_separation("verdicts")(profile), *_where_networks_look(profile)],
}
"""The runs each notebook is made from."""


def experiment(name: str, profile: Profile | str, **overrides: Any) -> list[RunConfig]:
    """The runs a notebook needs.

    Parameters
    ----------
    name : "paper/notebook"; a bare name means the main paper's
    profile : a `Profile` or its name
    overrides : see `OVERRIDES`; 0 or "" stands for the profile's own value

    Returns
    -------
    list of RunConfig, arm by arm within each seed

    Raises
    ------
    ConfigError
        For an unknown name or parameter, with the nearest right one; for parameters that leave nothing to run.
    """
    full = name if "/" in name else f"neural_collapse/{name}"
    if full not in EXPERIMENTS:
        raise ConfigError(suggest(full, EXPERIMENTS, "experiment"))
    profile = override(get_profile(profile) if isinstance(profile, str) else profile, **overrides)
    configs = EXPERIMENTS[full](profile)
    if not configs:
        raise ConfigError(
            f"{name} needs a 10-class data set, and these parameters leave none (dataset={overrides.get('dataset')!r})"
        )
    return configs


def runs_of(profile: Profile | str, **overrides: Any) -> Callable[[str], set[str]]:
    """For `score_claims`: from a notebook's name to the ids of the runs it is made from, at these parameters."""
    return lambda name: {run_id(config) for config in experiment(name, profile, **overrides)}


def stand_ins(configs: Sequence[RunConfig]) -> dict[str, str]:
    """Which of the paper's data sets each of these stands for, by its number of classes: {"digits": "cifar10"}."""
    papers = {10: "cifar10", 100: "cifar100"}
    names = {config.data.dataset for config in configs}
    return {
        name.split("@")[0]: papers[outline(name).classes] for name in sorted(names) if outline(name).classes in papers
    }


def describe_runs(configs: Sequence[RunConfig]) -> str:
    """One paragraph for captions: profile, data with the real n_A and n_B, test images, network, protocol, seeds,
    solver."""
    configs = [config for config in configs if isinstance(config, RunConfig)]
    first, train = configs[0], configs[0].train
    maps = sorted({_last_maps(config.data.dataset) for config in configs})
    settings = dict.fromkeys(_describe_data(config.data) for config in configs)
    seeds = _num_seeds(configs)
    text = (
        f"Profile {first.profile}: {'; '.join(settings)}. {_describe_test(configs)} "
        f"ResNet-18 of width {first.model.width} (its last block sees maps of {' and '.join(maps)}), "
        f"{train.epochs} epochs of SGD (lr {train.lr:g}, {train.schedule}, batch {train.batch_size}, "
        f"weight decay {train.weight_decay:g}), {seeds} seed{'s' if seeds > 1 else ', so no spread over seeds'}."
    )
    return text + "".join(dict.fromkeys(_describe_solver(c.model, train) for c in configs if c.model.kind == "deq"))


def describe_seeds(configs: Sequence[RunConfig], spread: str = "95 % t-intervals") -> str:
    """For captions, what is drawn or listed of these seeds: "means over seeds with 95 % t-intervals", or of a single
    one "values of one seed, so without 95 % t-intervals". spread: a plural."""
    several = _num_seeds(configs) > 1
    return f"means over seeds with {spread}" if several else f"values of one seed, so without {spread}"


def _num_seeds(configs: Sequence[RunConfig]) -> int:
    return len({config.seed for config in configs})


def _describe_solver(model: ModelConfig, train: TrainConfig) -> str:
    start = {"x": "the input", "zeros": "zero", "previous": "the last epoch's equilibrium"}[model.start]
    return (
        f" DEQ: {model.solver.method}, relative residual {model.solver.tol:g}, at most {model.solver.max_steps} "
        f"evaluations from {start}, {model.gradient.method} gradient; samples that do not converge: {train.skip}."
    )


def _last_maps(dataset: str) -> str:
    """Size of the maps that layer 4 works on, after three halvings."""
    return "×".join(str(-(-side // 8)) for side in outline(dataset).size)


def _data_name(dataset: str) -> str:
    """A data set as sentences name it: without the fingerprint; images read from a folder say so."""
    name = dataset.split("@")[0]
    return f"the image folder {name.removeprefix('folder:')}" if name.startswith("folder:") else name


def _describe_test(configs: Sequence[RunConfig]) -> str:
    """How many images of a class are tested on, data set by data set where they differ."""
    counts = {}
    for images in (config.data for config in configs):
        least, most = (images.test_per_class,) * 2 if images.test_per_class else outline(images.dataset).test or (0, 0)
        number = f"{least} images" if least == most else f"{least} to {most} images"
        counts[_data_name(images.dataset)] = number if most else "all test images"
    if len(set(counts.values())) == 1:
        return f"Tested on {next(iter(counts.values()))} of each class."
    return f"Tested on {' and '.join(f'{number} of each class of {name}' for name, number in counts.items())}."


def _describe_data(images: DataConfig) -> str:
    name, about = _data_name(images.dataset), outline(images.dataset)
    n_max = images.n_max or about.per_class
    if images.imbalance == "balanced":
        return f"{name} balanced ({about.classes} classes, {n_max} training images each)"
    smallest = int(class_counts(images).min())
    kind = f"K_A={images.num_majority} of" if images.imbalance == "step" else "exponential over"
    real = n_max / smallest
    note = "" if abs(real / images.ratio - 1) < 0.01 else f", really R={real:.4g}"
    if images.majority == "random":
        note += ", majority classes drawn by seed"
    if smallest == 1:
        note += ", and a class of one image has no within-class variance"
    return f"{name} with {kind} {about.classes} classes, R={images.ratio:g} (n_A={n_max}, n_B={smallest}{note})"


def class_counts(cfg: DataConfig) -> torch.Tensor:
    """Training images of each class (K,), largest first, before they are drawn."""
    about = outline(cfg.dataset)
    n_max = cfg.n_max or about.per_class
    if cfg.imbalance == "step":
        return imbalance.step_imbalance(about.classes, n_max, cfg.num_majority, cfg.ratio)
    if cfg.imbalance == "exponential":
        return imbalance.exponential_imbalance(about.classes, n_max, cfg.ratio)
    return torch.full((about.classes,), n_max)


def scale_of(configs: Sequence[StoredConfig]) -> str:
    """How far verdicts on these runs reach, one of `nclib.system.words.SCALES`: the least of all the runs."""
    return max((_scale(config) for config in configs if isinstance(config, RunConfig)), key=list(words.SCALES).index)


def _scale(config: RunConfig) -> str:
    """The paper's images are known by their classes, numbers and size, since a folder of them may have any name."""
    about = outline(config.data.dataset)
    complete = config.data.n_max is None or config.data.n_max >= about.per_class
    if not complete or about[:3] not in [_ORIGINALS[name][:3] for name in ("cifar10", "cifar100")]:
        return "toy"
    itself = config.data.dataset in _ORIGINALS and config.model.width == 64 and config.train.epochs >= 100
    return "paper" if itself else "reduced"
