"""Data sets by name: load, fetch, check and describe whichever kind a name stands for."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from nclib.config import ConfigError, suggest
from nclib.config.parts import RESOLVED_FOLDER
from nclib.data.base import DATASETS, SPLITS, Dataset
from nclib.data.digits import _DIGITS_SHA256, _SCENE_DIGITS, _digit_pairs, _digit_scenes, _digits, _raw_digits
from nclib.data.folders import cache_file, identified, read_cache, resolve_dataset, state
from nclib.data.originals import TORCHVISION, original, states
from nclib.system import paths


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
    if split not in SPLITS:
        raise ConfigError(suggest(split, SPLITS, "split"))
    name = resolve_dataset(name)
    if name == "digits":
        images, labels = _digits(split)
        return Dataset(images, labels, tuple("0123456789"), name)
    if name == "digit_pairs":
        images, labels = _digit_pairs(split)
        return Dataset(images, labels, tuple(f"{k:02d}" for k in range(100)), name)
    if name == "digit_scenes":
        images, labels, _, _ = _digit_scenes(split)
        return Dataset(images, labels, tuple(map(str, _SCENE_DIGITS)), name)
    return original(name, split) if name in TORCHVISION else read_cache(name, split)


# -------------------------------------------------------------------------------- for `nclib data`


def fetch(name: str) -> str:
    """Download or decode a data set now, so that no run waits for it; returns its resolved name.

    Raises
    ------
    ConfigError, DataError
        As `load_dataset`.
    """
    for split in SPLITS:
        found = load_dataset(name, split)
    return found.name


def check(name: str) -> dict[str, str]:
    """Compare every file of a data set with its checksum; nothing is changed, downloaded or decoded.

    Returns
    -------
    For each file "ok", "missing" or "damaged". For the embedded digits the one entry is scikit-learn's array; for a
    folder it is the cache of its decoded images.
    """
    if name.startswith("folder:") and not RESOLVED_FOLDER.fullmatch(name):
        name = identified(name)[2]
    name = resolve_dataset(name)
    if name in TORCHVISION:
        return {path.relative_to(paths.data()).as_posix(): found for path, found in states(name).items()}
    if name in DATASETS:
        content = hashlib.sha256(b"".join(array.tobytes() for array in _raw_digits.__wrapped__())).hexdigest()
        return {"sklearn.datasets.load_digits": "ok" if content == _DIGITS_SHA256 else "damaged"}
    return {cache_file(name).name: state(cache_file(name))}


def describe(name: str) -> dict[str, Any]:
    """Facts about a data set, without downloading it; ``folder:PATH`` is decoded first.

    Returns
    -------
    name, where, present, bytes (on disk, its own files only); and if present also classes (K), class_names, train and
    test (images of each class), shape (C, H, W), augment.
    """
    name = resolve_dataset(name)
    facts: dict[str, Any] = {"name": name, "where": "embedded in scikit-learn", "present": True, "bytes": 0}
    files = []
    if name in TORCHVISION:
        found = states(name)
        files = list(found)
        facts |= {"where": str(files[0].parent), "present": set(found.values()) == {"ok"}}
    elif name not in DATASETS:
        files = [cache_file(name)]
        facts |= {"where": str(files[0]), "present": state(files[0]) == "ok"}
    facts["bytes"] = sum(path.stat().st_size for path in files if path.is_file())
    if not facts["present"]:
        return facts
    for split in SPLITS:
        dataset = load_dataset(name, split)
        facts[split] = dataset.counts.tolist()
    return facts | {
        "classes": len(dataset.class_names),
        "class_names": dataset.class_names,
        "shape": tuple(dataset.images.shape[1:]),
        "augment": dataset.augment,
    }
