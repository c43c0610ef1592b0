"""Configurations made from a profile, for the experiments of every paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nclib.config import DataConfig, ModelConfig, RunConfig, recipe
from nclib.engine.outline import majority_of
from nclib.engine.profiles import Profile, get_profile, override

ARMS = ("explicit", "deq")
RATIOS = (10.0, 50.0, 100.0)
"""R in the tables of Sun & Shi."""


def data_config(profile: Profile, hundred: bool = False, **imbalance: Any) -> DataConfig | None:
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


def step_imbalanced(
    profile: Profile, tenths: int, ratio: float, hundred: bool = False, **options: Any
) -> DataConfig | None:
    """The same with K_A in tenths of the classes, and R."""
    dataset = profile.hundred_dataset if hundred else profile.dataset
    if not dataset:
        return None
    step = {"imbalance": "step", "num_majority": majority_of(dataset, tenths), "ratio": float(ratio)}
    return data_config(profile, hundred, **step, **options)


def model_config(profile: Profile, kind: str, **options: Any) -> ModelConfig:
    """A model of the profile's width."""
    return ModelConfig(kind=kind, width=profile.width, **options)


def classifiers(
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
    models = models or [model_config(profile, kind) for kind in ARMS]
    return [
        RunConfig(data=images, model=model, train=train, seed=seed, profile=profile.name)
        for seed in range(profile.seeds if images else 0)
        for model in models
    ]


def profile_options(name: str, kind: str, **overrides: Any) -> dict[str, Any]:
    """The options of the run of seed 0 that a profile makes of balanced data with one kind of model, as ``nclib train
    --profile`` starts from them; of the profile's 100-class data set where `overrides` name that.

    Parameters
    ----------
    name : of the profile
    kind : of the model, "explicit", "deq", …; one of your own is filled in by the caller
    overrides : see `nclib.engine.profiles.OVERRIDES`
    """
    profile = get_profile(name)
    hundred = overrides.get("dataset") == profile.hundred_dataset != ""
    changed = override(profile, **overrides | ({"dataset": ""} if hundred else {}))
    options = {"num_blocks": changed.equal_blocks} if kind == "explicit_flops" else {}
    model = model_config(changed, "explicit" if kind == "network" else kind, **options)
    tree = classifiers(changed, data_config(changed, hundred), [model])[0].model_dump(mode="json")
    tree["data"].pop("imbalance")  # which follows from K_A and R, where these are given
    return tree
