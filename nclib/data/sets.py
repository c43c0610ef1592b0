"""Data sets by name: load, fetch, check and describe whichever kind a name stands for."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from nclib.config import ConfigError, suggest
from nclib.data.base import _RESOLVED, DATASETS, SPLITS, Dataset
from nclib.data.digits import _DIGITS_SHA256, _SCENE_DIGITS, _digit_pairs, _digit_scenes, _digits, _raw_digits
from nclib.data.folders import (
    _cache_folder,
    _cache_is_whole,
    _cache_states,
    _folder,
    _identity,
    _read_cache,
    _scan,
    resolve_dataset,
)
from nclib.data.originals import _TORCHVISION, _cifar, _fetch_original, _mnist, _original, _state
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
    if name in _TORCHVISION:
        _fetch_original(name)
        return _cifar(name, split) if name.startswith("cifar") else _mnist(name, split)
    return _read_cache(name, split)


# -------------------------------------------------------------------------------- for `nclib data`


def fetch(name: str) -> str:
    """Download or decode a data set now, so that no run waits for it; returns its resolved name.

    Raises
    ------
    ConfigError, DataError
        As `load_dataset`.
    """
    name = resolve_dataset(name)
    if name in _TORCHVISION:
        _fetch_original(name)
    elif name not in DATASETS:
        for split in SPLITS:
            _read_cache(name, split)  # raises, saying what is wrong and what to run
    return name


def check(name: str) -> dict[str, str]:
    """Compare every file of a data set with its checksum; nothing is changed, downloaded or decoded.

    Returns
    -------
    For each file "ok", "missing" or "damaged". For the embedded digits the one entry is scikit-learn's array; for a
    folder the entries are the files of its decoded cache.
    """
    if name.startswith("folder:") and not _RESOLVED.fullmatch(name):
        name = _identity(_folder(name), _scan(_folder(name)))
    name = resolve_dataset(name)
    if name in _TORCHVISION:
        needed, root = _original(name).needed, paths.data()
        return {path.relative_to(root).as_posix(): _state(path, md5) for path, md5 in needed}
    if name in DATASETS:
        content = hashlib.sha256(b"".join(array.tobytes() for array in _raw_digits.__wrapped__())).hexdigest()
        return {"sklearn.datasets.load_digits": "ok" if content == _DIGITS_SHA256 else "damaged"}
    return _cache_states(_cache_folder(name))


def describe(name: str) -> dict[str, Any]:
    """Facts about a data set, without downloading it; ``folder:PATH`` is decoded first.

    Returns
    -------
    name, where, present, bytes (on disk, its own files only); and if present also classes (K), class_names, train and
    test (images of each class), shape (C, H, W), augment.
    """
    name = resolve_dataset(name)
    facts: dict[str, Any] = {"name": name, "where": "embedded in scikit-learn", "present": True, "bytes": 0}
    if name in _TORCHVISION:
        needed = _original(name).needed
        files = [path for path, _ in needed]
        facts |= {"where": str(files[0].parent), "present": all(_state(*file) == "ok" for file in needed)}
    elif name in DATASETS:
        files = []
    else:
        cache = _cache_folder(name)
        files = sorted(cache.glob("*"))
        facts |= {"where": str(cache), "present": _cache_is_whole(cache)}
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
