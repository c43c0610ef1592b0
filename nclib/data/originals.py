"""CIFAR and MNIST in their original files, which torchvision downloads, compares with their checksums and reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch

from nclib.data.base import OFFLINE, DataError, Dataset
from nclib.system import paths

TORCHVISION = dict(cifar10="CIFAR10", cifar100="CIFAR100", mnist="MNIST", fashion_mnist="FashionMNIST")


def _torchvision(name: str) -> Any:
    try:
        import torchvision.datasets
    except ImportError as error:
        raise DataError(f"{name} needs torchvision ({error}); pip install torchvision. {OFFLINE}") from None
    return torchvision.datasets


def original(name: str, split: str) -> Dataset:
    """One split, downloaded where it is missing. torchvision compares CIFAR's files, which are pickles, with their
    checksums before it opens them."""
    kind, root = getattr(_torchvision(name), TORCHVISION[name]), paths.data()
    root.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(root / f"{name}.lock"):
        try:
            source = kind(root, train=split == "train", download=True)
        except (OSError, RuntimeError) as error:
            raise DataError(f"cannot get {name} ({error}). Files placed in {root} are used. {OFFLINE}") from None
    images = torch.from_numpy(np.asarray(source.data))
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
    names = tuple(label.split(" - ")[0] for label in source.classes)
    return Dataset(images, torch.as_tensor(source.targets), names, name)


def states(name: str) -> dict[Path, str]:
    """The original files of both splits: "ok", "missing" or "damaged"."""
    datasets, root = _torchvision(name), paths.data()
    kind = getattr(datasets, TORCHVISION[name])
    if name.startswith("cifar"):
        listed = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
        sums = {root / kind.base_folder / file: md5 for file, md5 in listed}
    else:
        sums = {root / kind.__name__ / "raw" / file: md5 for file, md5 in kind.resources}
    intact = {path: datasets.utils.check_integrity(path, md5) for path, md5 in sums.items()}
    return {path: "ok" if fits else "damaged" if path.exists() else "missing" for path, fits in intact.items()}
