"""The sizes at which everything runs, and the parameters that change them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nclib import data
from nclib.config import AUGMENTATION, ConfigError, one_of


@dataclass(frozen=True)
class Profile:
    """A size at which everything runs; the code path is the same for all.

    Parameters
    ----------
    dataset, hundred_dataset : what stands for CIFAR-10 and CIFAR-100; an empty name leaves that column out ("not run")
    images_per_class : n_A; None means as many as the smallest class has.
    test_images_per_class : None means all
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


def _read(file: Path) -> dict[str, Profile]:
    import yaml

    profiles = yaml.safe_load(file.read_text(encoding="utf-8"))
    for options in profiles.values():
        options |= {name: tuple(value) for name, value in options.items() if isinstance(value, list)}
    return {name: Profile(name, **options) for name, options in profiles.items()}


PROFILES = _read(Path(__file__).with_name("profiles.yaml"))


def get_profile(name: str) -> Profile:
    """The profile of that name; raises `ConfigError` with the nearest name for another."""
    return PROFILES[one_of(name, PROFILES, "profile")]


OVERRIDES = (
    *(
        "dataset",
        "hundred_dataset",
        "epochs",
        "width",
        "seeds",
        "images_per_class",
        "test_images_per_class",
        "batch_size",
        "lr",
    ),
    *("recipe", "precision", "inputs", "cell"),
)
"""Notebook parameters that change which runs are made; 0 or "" stands for the profile's own value."""


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a notebook's parameters that change which runs are made (`OVERRIDES`).

    Parameters
    ----------
    values : the notebook's ``globals()``

    Returns
    -------
    dict

    Examples
    --------
    >>> given({"epochs": 3, "seeds": 0, "train": "never"})
    {'epochs': 3, 'seeds': 0}
    """
    return {name: values[name] for name in OVERRIDES if name in values}


def override(profile: Profile, **values: Any) -> Profile:
    """The profile with some settings changed; 0 and "" leave the profile's own.

    A `dataset` other than the profile's replaces the 10-class data set and leaves the 100-class column out, because
    nothing is known about a second one; `hundred_dataset` names that one. Naming the profile's 100-class data set as
    `dataset` leaves the 10-class column out.

    Raises
    ------
    ConfigError
        For an unknown name, with the nearest one. The configurations document what a number may be.
    """
    for name in values:
        one_of(name, OVERRIDES, "parameter")
    changes = {name: value for name, value in values.items() if value}
    if "dataset" in changes:
        name = data.resolve_dataset(changes["dataset"])
        changes["grey_dataset"] = name
        if name == profile.hundred_dataset:
            changes["dataset"] = ""
        elif name != profile.dataset:
            changes = {"hundred_dataset": ""} | changes | {"dataset": name}
    if changes.get("hundred_dataset"):
        changes["hundred_dataset"] = data.resolve_dataset(changes["hundred_dataset"])
    follow = {"epochs": "shallow_epochs", "lr": "shallow_lr", "images_per_class": "hundred_images_per_class"}
    changes |= {own: changes[name] for name, own in follow.items() if name in changes}
    if "epochs" in changes:
        changes["literal_epochs"] = min(changes["epochs"], profile.literal_epochs)
    if "width" in changes:
        changes["shallow_widths"] = (changes["width"],)
    if changes.get("recipe") in AUGMENTATION:
        changes["augment"] = AUGMENTATION[changes["recipe"]]
    one_of(changes.get("inputs", "pixels"), ("pixels", "resnet18"), "kind of inputs")
    changed = dataclasses.replace(profile, **changes)
    if "lr" in changes and changed.recipe == "paper":
        raise ConfigError("recipe 'paper' states its own lr (0.0001); leave lr out, or use recipe 'workable'")
    return changed
