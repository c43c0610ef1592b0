"""A profile is a preset of sizes: which data, how many images, how wide a network, how many epochs.

The presets are smoke, quick, lite, full and paper. `experiment` makes the runs of a notebook at a
profile, from the functions that the papers define. `build_config` makes one from what was typed.
`scale_of` says how far results of some runs reach.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import torch

from nclib import data, imbalance
from nclib.compare import SCALES
from nclib.config import (
    AUGMENTATION,
    ConfigError,
    DataConfig,
    ModelConfig,
    RunConfig,
    StoredConfig,
    one_of,
    recipe,
    search_working_directory,
)
from nclib.store import reference_store

# --- sizes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """A size at which everything runs; the code path is the same for all.

    Parameters
    ----------
    dataset, hundred_dataset : what stands for CIFAR-10 and CIFAR-100; an empty name leaves that
        column out ("not run")
    images_per_class : n_A; None means as many as the smallest class has.
    test_images_per_class : None means all
    seeds : the runs are repeated with seeds 0 … seeds−1
    hundred_tenths : K_A of the 100-class column of Tables 2–4, in tenths of the classes; the
        others read "not run"
    beyond : K_A in tenths and R of the notebooks beyond the paper
    equal_blocks : untied blocks that cost what an equilibrium costs here (`compute_in_blocks`,
        measured, rounded)
    recipe : name of the training protocol; epochs, batch_size, lr, precision and log_every are set
        on top of it
    augment, precision : as in `DataConfig` and `TrainConfig`
    literal_epochs : epochs of the recipe that the paper states, where it is compared with the
        profile's
    grey_dataset : what stands for MNIST in the fully connected networks of the sister paper
    shallow_widths, shallow_epochs, shallow_readout, shallow_lr : of those; epochs of all weights,
        of the readout alone
    inputs : of those networks, "pixels" or "resnet18", the features of the balanced explicit run of
        the same seed
    cell : of the notebook about a custom cell, as in `ModelConfig`
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
    cell: str = "nclib.papers.neural_collapse.example_cell:ExampleCell"  # part of run ids


PRESETS = (
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
        description="scikit-learn's 8×8 digits and pairs of them, narrow ResNet-18: a laptop",
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
        description="real images, narrow ResNet-18, fewer images and epochs: hours on a CPU",
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
        description="every image of CIFAR-10, narrow ResNet-18, terminal phase: days on a CPU",
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
        description="CIFAR-10 and CIFAR-100, ResNet-18, 100 epochs: the paper's scale, on a GPU",
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

PROFILES = {profile.name: profile for profile in PRESETS}


def get_profile(name: str) -> Profile:
    """The profile of that name; raises `ConfigError` with the nearest name for another."""
    return PROFILES[one_of(name, PROFILES, "profile")]


OVERRIDES = (
    "dataset",
    "hundred_dataset",
    "epochs",
    "width",
    "seeds",
    "images_per_class",
    "test_images_per_class",
    "batch_size",
    "lr",
    "recipe",
    "precision",
    "inputs",
    "cell",
)
"""Notebook parameters that change which runs are made; 0 or "" stands for the profile's own
value."""


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a notebook's parameters that change which runs are made (`OVERRIDES`).

    Parameters
    ----------
    values : of all of its parameters, by name

    Returns
    -------
    dict

    Examples
    --------
    >>> given({"epochs": 3, "seeds": 0, "train": "never"})
    {'epochs': 3, 'seeds': 0}
    """
    return {name: values[name] for name in OVERRIDES if name in values}


def _of_dataset(dataset: str, profile: Profile) -> dict[str, Any]:
    """Of another data set no 100-class partner is known."""
    of_profile = dataset in (profile.dataset, profile.hundred_dataset)
    return {
        "grey_dataset": dataset,
        "hundred_dataset": profile.hundred_dataset if of_profile else "",
    }


FOLLOWS: dict[str, Callable[[Any, Profile], dict[str, Any]]] = {
    "dataset": _of_dataset,
    "images_per_class": lambda number, profile: {"hundred_images_per_class": number},
    "width": lambda width, profile: {"shallow_widths": (width,)},
    "lr": lambda lr, profile: {"shallow_lr": lr},
    "epochs": lambda epochs, profile: {
        "shallow_epochs": epochs,
        "literal_epochs": min(epochs, profile.literal_epochs),
    },
    "recipe": lambda name, profile: {"augment": AUGMENTATION.get(name, profile.augment)},
}
"""What else of a profile follows from an option, by the option's value and the profile."""


def override(profile: Profile, **values: Any) -> Profile:
    """The profile with some settings changed, and what follows from them (`FOLLOWS`); 0 and ""
    leave the profile's own.

    A `dataset` other than the profile's replaces the 10-class data set and leaves the 100-class
    column out, because nothing is known about a second one; `hundred_dataset` names that one.
    Naming the profile's 100-class data set as `dataset` leaves the 10-class column out.

    Raises
    ------
    ConfigError
        For an unknown name, with the nearest one. The configurations document what a number may be.
    """
    for name in values:
        one_of(name, OVERRIDES, "parameter")
    named = {name: value for name, value in values.items() if value}
    for name in ("dataset", "hundred_dataset"):
        if name in named:
            named[name] = data.resolve_dataset(named[name])
    changes: dict[str, Any] = {}
    for name, value in named.items():
        if name in FOLLOWS:
            changes |= FOLLOWS[name](value, profile)
    changes |= named
    if changes.get("dataset") == profile.hundred_dataset:
        changes["dataset"] = ""
    changed = dataclasses.replace(profile, **changes)
    one_of(changed.inputs, ("pixels", "resnet18"), "kind of inputs")
    if "lr" in changes and changed.recipe == "paper":
        raise ConfigError(
            "recipe 'paper' states its own lr (0.0001); leave lr out, or use recipe 'workable'"
        )
    return changed


# --- configurations of a size ---------------------------------------------------------------------

ARMS = ("explicit", "deq")


def data_config(profile: Profile, hundred: bool = False, **imbalance: Any) -> DataConfig | None:
    """The profile's 10-class data set, or its 100-class one, at some imbalance; None when it has no
    such data set."""
    dataset = profile.hundred_dataset if hundred else profile.dataset
    if not dataset:
        return None
    n_max = profile.hundred_images_per_class if hundred else profile.images_per_class
    options = {
        "test_per_class": profile.test_images_per_class,
        "augment": profile.augment,
    } | imbalance
    return DataConfig(dataset=dataset, n_max=n_max, **options)


def model_config(profile: Profile, kind: str, **options: Any) -> ModelConfig:
    """A model of the profile's width."""
    return ModelConfig(kind=kind, width=profile.width, **options)


def classifiers(
    profile: Profile,
    images: DataConfig | None,
    models: Sequence[ModelConfig] = (),
    loss: str = "cross_entropy",
) -> list[RunConfig]:
    """Every model, both arms if none is named, with every seed on these images."""
    options = {
        "epochs": profile.epochs,
        "batch_size": profile.batch_size,
        "log_every": profile.log_every,
        "precision": profile.precision,
    }
    if profile.recipe != "paper":  # which states its own rate
        options["lr"] = profile.lr
    train = recipe(profile.recipe, loss=loss, **options)
    if images is None:
        return []
    if not models:
        models = [model_config(profile, kind) for kind in ARMS]
    configs = []
    for seed in range(profile.seeds):
        for model in models:
            configs.append(
                RunConfig(data=images, model=model, train=train, seed=seed, profile=profile.name)
            )
    return configs


def build_config(profile: str | None, given: Mapping[str, Any]) -> RunConfig:
    """The configuration that a profile and options describe, the latter overruling the former.

    K_A or R choose step imbalance. A folder is resolved from the working directory, and a cell of
    the user's own is looked for there too.

    Parameters
    ----------
    given : options by their dotted names: "seed", "data.ratio"

    Raises
    ------
    ConfigError
        For an unknown key with the nearest right one.
    DataError
        For an unusable folder.
    """
    values = dict(given)
    if "data.dataset" in values:
        values["data.dataset"] = data.resolve_dataset(values["data.dataset"])
    if "data.num_majority" in values or "data.ratio" in values:
        values.setdefault("data.imbalance", "step")
    if "model.cell" in values:
        search_working_directory()
    tree: dict[str, Any] = {}
    if profile is not None:
        dataset = values.get("data.dataset", "")
        tree = _profile_options(get_profile(profile), dataset, values.get("model.kind", "explicit"))
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        if group:
            tree.setdefault(group, {})[name] = value
        else:
            tree[name] = value
    return RunConfig(**tree)


def _profile_options(profile: Profile, dataset: str, kind: str) -> dict[str, Any]:
    """The options of the run of seed 0 that a profile makes of balanced data; "" is its own data
    set."""
    profile = override(profile, dataset=dataset)
    options = {}
    if kind == "explicit_flops":
        options["num_blocks"] = profile.equal_blocks
    model = model_config(profile, kind, **options)
    images = data_config(profile, hundred=not profile.dataset)
    tree = classifiers(profile, images, [model])[0].model_dump(mode="json")
    tree["data"].pop("imbalance")  # which follows from K_A and R, where these are given
    return tree


# --- experiments of the papers --------------------------------------------------------------------

PAPERS = ("neural_collapse", "kernel_equivalence", "separation_bias")
"""Each is a package ``nclib.papers.<name>`` with a module ``experiments``, the main paper first."""

MAIN_PAPER = PAPERS[0]
"""The folder that a bare notebook name refers to."""


@functools.cache
def makers() -> dict[str, Callable[[Profile], list[StoredConfig]]]:
    """From "paper/notebook" to the function that makes its configurations, of all papers."""
    functions = {}
    for paper in PAPERS:
        functions |= import_module(f"nclib.papers.{paper}.experiments").EXPERIMENTS
    return functions


def from_papers(name: str) -> list[Any]:
    """What the papers list under a name beside their experiments, such as ``PARTS``, the main paper
    first."""
    listed = []
    for paper in PAPERS:
        listed += getattr(import_module(f"nclib.papers.{paper}.experiments"), name, ())
    return listed


def experiment(name: str, profile: Profile | str, **overrides: Any) -> list[StoredConfig]:
    """The runs a notebook needs.

    Parameters
    ----------
    name : "paper/notebook"; a bare name means the main paper's
    profile : a `Profile` or its name
    overrides : see `OVERRIDES`; 0 or "" stands for the profile's own value

    Returns
    -------
    list of configurations, arm by arm within each seed

    Raises
    ------
    ConfigError
        For an unknown name or parameter, with the nearest right one; for parameters that leave
        nothing to run.

    Examples
    --------
    >>> import nclib as nc
    >>> configs = nc.experiment("fig3", "smoke")
    >>> sorted({config.model.kind for config in configs})
    ['deq', 'explicit']
    """
    if "/" not in name:
        name = f"{MAIN_PAPER}/{name}"
    maker = makers()[one_of(name, makers(), "experiment")]
    if isinstance(profile, str):
        profile = get_profile(profile)
    configs = maker(override(profile, **overrides))
    if not configs:
        raise ConfigError(
            f"{name} needs a 10-class data set, and dataset={overrides.get('dataset')!r} "
            "leaves none"
        )
    return configs


# --- data sets in outline, and the reach of results -----------------------------------------------


class Outline(NamedTuple):
    """What plans and captions need of a data set: classes, training images in the smallest class,
    height and width, test images in the smallest and the largest class (None where only results are
    known, not the images)."""

    classes: int
    per_class: int
    size: tuple[int, int]
    test: tuple[int, int] | None = None


ORIGINALS = {
    "cifar10": Outline(10, 5000, (32, 32), (1000, 1000)),
    "cifar100": Outline(100, 500, (32, 32), (100, 100)),
    "mnist": Outline(10, 5421, (28, 28), (892, 1135)),
    "fashion_mnist": Outline(10, 6000, (28, 28), (1000, 1000)),
}
"""Known without the files, so that a plan can be made before anything is downloaded."""

KNOWN = ORIGINALS | {
    "digits": Outline(10, 134, (8, 8), (40, 40)),
    "digit_pairs": Outline(100, 100, (8, 16), (20, 20)),
}
"""These need not be read, either: scikit-learn, which has the digits, takes a second to load."""

TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
}


@functools.cache
def outline(dataset: str) -> Outline:
    """Outline of a data set; a folder must have been decoded (`nclib.data.resolve_dataset` does
    it), unless reference results were made from it."""
    if dataset in KNOWN:
        return KNOWN[dataset]
    try:
        train = data.load_dataset(dataset, "train")
        test = data.load_dataset(dataset, "test")
    except data.DataError:
        known = reference_store().datasets().get(dataset)
        if known is None:
            raise
        return Outline(
            classes=known["classes"],
            per_class=known["per_class"],
            size=tuple(known["size"]),
            test=tuple(known["test"]) if known.get("test") else None,  # older results lack it
        )
    return Outline(
        classes=len(train.class_names),
        per_class=int(train.counts.min()),
        size=tuple(train.images.shape[2:]),
        test=(int(test.counts.min()), int(test.counts.max())),
    )


def class_counts(cfg: DataConfig) -> torch.Tensor:
    """Training images of each class (K,), largest first, before they are sampled."""
    about = outline(cfg.dataset)
    n_max = cfg.n_max or about.per_class
    if cfg.imbalance == "step":
        return imbalance.step_imbalance(about.classes, n_max, cfg.num_majority, cfg.ratio)
    if cfg.imbalance == "exponential":
        return imbalance.exponential_imbalance(about.classes, n_max, cfg.ratio)
    return torch.full((about.classes,), n_max)


def scale_of(configs: Sequence[StoredConfig]) -> str:
    """How far verdicts on these runs reach, one of `nclib.compare.SCALES`: the least of all the
    runs.

    Parameters
    ----------
    configs : of the runs

    Returns
    -------
    str

    Examples
    --------
    >>> import nclib as nc
    >>> nc.profiles.scale_of(nc.experiment("fig3", "smoke"))
    'toy'
    """
    scales = [_scale(config) for config in configs if isinstance(config, RunConfig)]
    return max(scales, key=list(SCALES).index)


def _scale(config: RunConfig) -> str:
    dataset = config.data.dataset
    if original(dataset) not in ("cifar10", "cifar100"):
        return "toy"
    n_max = config.data.n_max
    if n_max is not None and n_max < outline(dataset).per_class:
        return "toy"
    as_large = config.model.width == 64 and config.train.epochs >= 100
    if dataset in ORIGINALS and as_large:
        return "paper"
    return "reduced"


def images_of(config: StoredConfig) -> str:
    """The training images of a run in words: "CIFAR-10, 250 images a class"; "" for a run without
    any."""
    images = getattr(config, "data", None)
    if images is None:
        return ""
    known = original(images.dataset)
    if known is None:
        return images.dataset.split("@")[0].removeprefix("folder:").replace("_", " ")
    whole = outline(images.dataset).per_class
    if images.n_max and images.n_max < whole:
        return f"{TITLES[known]}, {images.n_max:,} images a class"
    return f"{TITLES[known]}, all images"


def original(dataset: str) -> str | None:
    """Which of `ORIGINALS` these images are: known by classes, numbers and size, since a folder may
    have any name.

    Parameters
    ----------
    dataset : a name, or "folder:name@fingerprint"

    Examples
    --------
    >>> original("cifar10"), original("digits")
    ('cifar10', None)
    """
    for name, known in ORIGINALS.items():
        if known[:3] == outline(dataset)[:3]:
            return name
    return None
