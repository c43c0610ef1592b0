"""What every kind of data set shares: names, the error, the images of one split."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

DATASETS = ("digits", "digit_pairs", "digit_scenes", "cifar10", "cifar100", "mnist", "fashion_mnist")
"""Built-in names; the other form is ``folder:PATH``."""

SPLITS = ("train", "test")
Augment = Literal["none", "flip_crop"]


class DataError(ValueError):
    """Images that are missing, damaged or not what was asked for; the message names what to do next."""

    exit_code = 2


@dataclass(frozen=True, eq=False)
class Dataset:
    """All images of one split.

    Parameters
    ----------
    images : (N, C, H, W) uint8
    labels : (N,) int64, 0 … K−1
    class_names : K names; label k is ``class_names[k]``
    name : a built-in name, or ``folder:NAME@FINGERPRINT``
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    name: str

    @property
    def augment(self) -> Augment:
        """What may be done to an image without changing its class.

        Colour images are photographs: mirrored and shifted. Grey ones are digits, letters, garments: left
        alone, since a mirrored digit is not a digit. Where a folder breaks the rule (house numbers in colour),
        ask for ``DataConfig(augment="none")``.
        """
        return "flip_crop" if self.images.shape[1] == 3 else "none"

    @property
    def counts(self) -> Tensor:
        """(K,) int64, images of each class."""
        return torch.bincount(self.labels, minlength=len(self.class_names))
