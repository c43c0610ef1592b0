"""Data sets by name: load and fetch whichever kind a name stands for."""

from typing import Literal

from nclib.config import one_of
from nclib.data.base import SPLITS, Dataset
from nclib.data.digits import EMBEDDED, embedded
from nclib.data.folders import read_cache, resolve_dataset
from nclib.data.originals import TORCHVISION, original


def load_dataset(name: str, split: Literal["train", "test"]) -> Dataset:
    """All images of one split of a data set; a missing one is downloaded or decoded first.

    Parameters
    ----------
    name : "digits" — scikit-learn's 8 × 8 digits, grey levels 0 … 16 scaled to 0 … 255; 40 images a class
        for testing, the other 1,397 for training, always the same ones;
        "digit_pairs" — two of those side by side (8 × 16), classes "00" … "99", 100 training and 20 test
        images a class, all different; training pairs are made of training digits only, test pairs of test
        digits;
        "digit_scenes" — 32 × 32: one of the digits 0, 1, 2 and 4, twice its size, in one quadrant and a grating in
        another whose orientation goes with the class in 77.5 % of the images, see `scene_places`; 100 training and
        40 test images a class;
        "cifar10", "cifar100", "mnist", "fashion_mnist" — the originals, verified by checksum, with
        torchvision;
        "folder:PATH" — images of your own, see `resolve_dataset`;
        "folder:NAME@FINGERPRINT" — the same from the cache alone, wherever the folder is now.
    split : "train" or "test".

    Returns
    -------
    Dataset with images (N, C, H, W) uint8 and labels (N,) int64.

    Raises
    ------
    ConfigError
        An unknown name or split.
    DataError
        What was asked for is not there and cannot be had; another data set is never taken instead.

    Examples
    --------
    >>> import nclib as nc
    >>> digits = nc.data.load_dataset("digits", "test")
    >>> digits.images.shape
    torch.Size([400, 1, 8, 8])
    """
    name = resolve_dataset(name)
    read = embedded if name in EMBEDDED else original if name in TORCHVISION else read_cache
    return read(name, one_of(split, SPLITS, "split"))


def fetch(name: str) -> str:
    """Download or decode a data set now, so that no run waits for it; returns its resolved name.

    Raises
    ------
    ConfigError, DataError
        As `load_dataset`.
    """
    train, _ = (load_dataset(name, split) for split in SPLITS)
    return train.name
