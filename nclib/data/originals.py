"""CIFAR and MNIST in their original files, which torchvision downloads, compares with their checksums and reads."""

import filelock
import numpy as np
import torch

from nclib import paths
from nclib.data.base import DataError, Dataset

TORCHVISION = dict(cifar10="CIFAR10", cifar100="CIFAR100", mnist="MNIST", fashion_mnist="FashionMNIST")
_OFFLINE = "Without a network: dataset=digits is embedded, dataset=folder:PATH reads images of yours"


def original(name: str, split: str) -> Dataset:
    """One split, downloaded where it is missing. Torchvision compares CIFAR's files, pickles, with their checksums
    before it opens them."""
    try:
        import torchvision.datasets
    except ImportError as error:
        raise DataError(f"{name} needs torchvision ({error}); pip install torchvision. {_OFFLINE}") from None
    root = paths.data()
    root.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(root / f"{name}.lock"):
        try:
            source = getattr(torchvision.datasets, TORCHVISION[name])(root, train=split == "train", download=True)
        except (OSError, RuntimeError) as error:
            raise DataError(f"cannot get {name} ({error}). Files placed in {root} are used. {_OFFLINE}") from None
    images = torch.from_numpy(np.asarray(source.data))
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
    names = tuple(label.split(" - ")[0] for label in source.classes)
    return Dataset(images, torch.as_tensor(source.targets), names, name)
