"""How many images a data set has, known before anything is downloaded."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from nclib import data, imbalance
from nclib.compare import SCALES
from nclib.config import DataConfig, RunConfig, StoredConfig
from nclib.engine.reference import reference_store


class Outline(NamedTuple):
    """What plans and captions need of a data set: classes, training images in the smallest class, height and
    width, test images in the smallest and the largest class (None where only results are known, not the images)."""

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

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}


@functools.cache
def outline(dataset: str) -> Outline:
    """Outline of a data set; a folder must have been decoded (`nclib.data.resolve_dataset` does it), unless reference
    results were made from it."""
    if dataset in ORIGINALS:
        return ORIGINALS[dataset]
    try:
        train, test = (data.load_dataset(dataset, split) for split in data.SPLITS)
    except data.DataError:
        if (known := reference_store().datasets().get(dataset)) is None:
            raise
        test = known.get("test")  # older results lack it
        return Outline(known["classes"], known["per_class"], tuple(known["size"]), test and tuple(test))
    least, *_, most = sorted(test.counts.tolist())
    return Outline(len(train.class_names), int(train.counts.min()), tuple(train.images.shape[2:]), (least, most))


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
    """How far verdicts on these runs reach, one of `nclib.compare.SCALES`: the least of all the runs.

    Parameters
    ----------
    configs : of the runs

    Returns
    -------
    str

    Examples
    --------
    >>> import nclib as nc
    >>> nc.publish.notes.scale_of(nc.engine.experiments.experiment("fig3", "smoke"))
    'toy'
    """
    return max((_scale(config) for config in configs if isinstance(config, RunConfig)), key=list(SCALES).index)


def images_of(config: StoredConfig) -> str:
    """The training images of a run in words: "CIFAR-10, 250 images a class"; "" for a run without any."""
    images = getattr(config, "data", None)
    if images is None:
        return ""
    whole = outline(images.dataset).per_class
    part = f"{images.n_max:,} images a class" if (images.n_max or whole) < whole else "all images"
    name = images.dataset.split("@")[0].removeprefix("folder:").replace("_", " ")
    return f"{TITLES[original]}, {part}" if (original := _original(images.dataset)) else name


def _original(dataset: str) -> str | None:
    """Which of `ORIGINALS` these images are: known by classes, numbers and size, since a folder may have any name."""
    return next((name for name, known in ORIGINALS.items() if known[:3] == outline(dataset)[:3]), None)


def _scale(config: RunConfig) -> str:
    complete = config.data.n_max is None or config.data.n_max >= outline(config.data.dataset).per_class
    if not complete or _original(config.data.dataset) not in ("cifar10", "cifar100"):
        return "toy"
    itself = config.data.dataset in ORIGINALS and config.model.width == 64 and config.train.epochs >= 100
    return "paper" if itself else "reduced"
