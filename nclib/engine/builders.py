"""Configurations made from a profile, for the experiments of every paper, and from what was typed."""

from collections.abc import Mapping, Sequence
from typing import Any

from nclib import data
from nclib.config import DataConfig, ModelConfig, RunConfig, recipe, search_working_directory
from nclib.engine.profiles import OVERRIDES, Profile, get_profile, override

ARMS = ("explicit", "deq")


def data_config(profile: Profile, hundred: bool = False, **imbalance: Any) -> DataConfig | None:
    """The profile's 10-class data set, or its 100-class one, at some imbalance; None when it has no such data set."""
    dataset = profile.hundred_dataset if hundred else profile.dataset
    if not dataset:
        return None
    n_max = profile.hundred_images_per_class if hundred else profile.images_per_class
    options = {"test_per_class": profile.test_images_per_class, "augment": profile.augment} | imbalance
    return DataConfig(dataset=dataset, n_max=n_max, **options)


def model_config(profile: Profile, kind: str, **options: Any) -> ModelConfig:
    """A model of the profile's width."""
    return ModelConfig(kind=kind, width=profile.width, **options)


def classifiers(
    profile: Profile, images: DataConfig | None, models: Sequence[ModelConfig] = (), loss: str = "cross_entropy"
) -> list[RunConfig]:
    """Every model, both arms if none is named, with every seed on these images."""
    own = ("epochs", "batch_size", "log_every", "precision", *(["lr"] if profile.recipe != "paper" else []))
    train = recipe(profile.recipe, loss=loss, **{name: getattr(profile, name) for name in own})
    return [
        RunConfig(data=images, model=model, train=train, seed=seed, profile=profile.name)
        for seed in range(profile.seeds if images else 0)
        for model in models or [model_config(profile, kind) for kind in ARMS]
    ]


def build_config(profile: str | None, given: Mapping[str, Any]) -> RunConfig:
    """The configuration that a profile and options describe, the latter overruling the former.

    K_A or R choose step imbalance. A folder is resolved from the working directory, and a cell of the user's own
    is looked for there too.

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
    values, tree = dict(given), {}
    if profile is not None:
        tree = _profile_options(get_profile(profile), values)
        values.pop("data.dataset", None)
    if {"data.num_majority", "data.ratio"} & set(values):
        values.setdefault("data.imbalance", "step")
    if "model.cell" in values:
        search_working_directory()
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        (tree.setdefault(group, {}) if group else tree)[name] = value
    if isinstance(dataset := tree.get("data", {}).get("dataset"), str):
        tree["data"]["dataset"] = data.resolve_dataset(dataset)
    return RunConfig(**tree)


def _profile_options(profile: Profile, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the run of seed 0 that a profile makes of balanced data; of the profile's 100-class data set where
    `values` name that."""
    overrides = {name: value for key, value in values.items() if (name := key.split(".")[-1]) in OVERRIDES}
    hundred = overrides.get("dataset") == profile.hundred_dataset != ""
    changed = override(profile, **overrides | ({"dataset": ""} if hundred else {}))
    kind = values.get("model.kind", "explicit")
    options = {"num_blocks": changed.equal_blocks} if kind == "explicit_flops" else {}
    model = model_config(changed, kind, **options)
    tree = classifiers(changed, data_config(changed, hundred), [model])[0].model_dump(mode="json")
    tree["data"].pop("imbalance")  # which follows from K_A and R, where these are given
    return tree
