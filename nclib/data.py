"""Data sets as plain uint8 tensors, the images of one run, and batches made on the device.

The way down: a name → `load_dataset` (all images of a split) → `make_split` (the images one run trains on, by
the run's options and seed) → `Batches` (normalised, augmented, shuffled). There are no worker processes: an
image set lives on the device as uint8, and every batch is one gather.

Everything that touches the disk lies below `nclib.system.paths.data()`; nothing is kept in a home folder. Downloads
are verified by checksum before a byte of them is interpreted; no data set is ever taken in place of another.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import tarfile
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import filelock
import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn, track
from torch import Tensor

from nclib import imbalance
from nclib.config import ConfigError, DataConfig, suggest
from nclib.system import paths

if TYPE_CHECKING:
    from os import PathLike

DATASETS = ("digits", "digit_pairs", "digit_scenes", "cifar10", "cifar100", "mnist", "fashion_mnist")
"""Built-in names; the other form is ``folder:PATH``."""

SPLITS = ("train", "test")
Augment = Literal["none", "flip_crop"]

MAX_SIDE = 64
"""Longest side an image folder keeps; larger images are scaled down (`resolve_dataset` states the rule)."""

_DECODING_RULE = 1  # part of a folder's fingerprint: raise it when the same files decode to other pixels
_RESOLVED = re.compile(r"folder:(?P<name>[A-Za-z0-9._-]+)@(?P<fingerprint>[0-9a-f]{12})")
_OFFLINE = (
    "Without a network: dataset=digits and dataset=digit_pairs are embedded, "
    "dataset=folder:PATH reads images of yours"
)


class DataError(ValueError):
    """Images that are missing, damaged or not what was asked for; the message says what to do next."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """All images of one split.

    Attributes:
        images: (N, C, H, W) uint8.
        labels: (N,) int64, 0 … K−1.
        class_names: K names; label k is ``class_names[k]``.
        name: a built-in name, or ``folder:NAME@FINGERPRINT``.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    name: str

    @property
    def augment(self) -> Augment:
        """What may be done to an image without changing its class.

        Colour images are photographs: mirrored and shifted. Grey ones are digits, letters, garments: left
        alone, since a mirrored digit is no digit. Where a folder breaks the rule (house numbers in colour),
        ask for ``DataConfig(augment="none")``.
        """
        return "flip_crop" if self.images.shape[1] == 3 else "none"

    @property
    def counts(self) -> Tensor:
        """(K,) int64, images of each class."""
        return torch.bincount(self.labels, minlength=len(self.class_names))


# -------------------------------------------------------------------------------- names


def resolve_dataset(name: str, base: str | PathLike[str] | None = None) -> str:
    """The name of a data set as a configuration may hold it: no path, the same on every machine.

    Built-in and already resolved names come back unchanged. ``folder:PATH``, a tree ``train/<class>/*`` and
    ``test/<class>/*``, becomes ``folder:NAME@FINGERPRINT``: the folder's base name, and 12 hexadecimal digits
    of a SHA-256 over the names below it and the bytes of its files (not where it lies, the order of its
    listing or its times). The first call decodes the images into the cache below ``nclib.system.paths.data()``;
    later ones only read and compare. The fingerprint names files, not pixels: another version of the JPEG
    decoder may differ by a grey level.

    Rules of decoding. Classes and images are sorted by name; dot files are ignored. If all images have one
    size of at most 64 × 64, it is kept; else each is scaled and centre-cropped to a square whose side is the
    median short side of the training images, at most 64. EXIF rotation is applied, transparency is laid on
    white, 16-bit grey is scaled to 8 bits, of an animation the first frame counts. If red = green = blue in
    every pixel of every image there is one channel, else three.

    Args:
        name: a name of `DATASETS`, ``folder:PATH`` or ``folder:NAME@FINGERPRINT``.
        base: folder that a relative PATH starts from; the working directory if left out.

    Raises:
        ConfigError: an unknown name, with the nearest right one.
        DataError: a folder that is missing, empty, without train/ or test/, of one class, with different
            classes in train/ and test/, or with files that are no images, damaged or unreadable. All such
            files are counted.
    """
    if name in DATASETS or _RESOLVED.fullmatch(name):
        return name
    if not name.startswith("folder:"):
        raise ConfigError(suggest(name, [*DATASETS, "folder:PATH"], "data set"))
    folder = _folder(name, base)
    tree = _scan(folder)
    resolved = _identity(folder, tree)
    cache = _cache_folder(resolved)
    if _cache_is_whole(cache):
        return resolved
    cache.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{cache}.lock"):
        if not _cache_is_whole(cache):  # another process may have decoded it meanwhile
            if cache.exists():
                _set_aside(cache)
            _decode(folder, tree, cache)
    return resolved


def _folder(name: str, base: str | PathLike[str] | None = None) -> Path:
    typed = name.removeprefix("folder:")
    if not typed.strip():
        raise DataError("folder: names no folder; write folder:PATH, for instance folder:data/cifar10-jpeg")
    return Path(os.path.abspath(Path(base or ".") / os.path.expanduser(typed)))


def _identity(folder: Path, tree: _Tree) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-.") or "images"
    return f"folder:{plain}@{_fingerprint(folder, tree)}"


def load_dataset(name: str, split: Literal["train", "test"]) -> Dataset:
    """All images of one split of a data set; a missing one is downloaded or decoded first.

    Args:
        name: "digits" — scikit-learn's 8 × 8 digits, grey levels 0 … 16 scaled to 0 … 255; 40 images a class
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
        split: "train" or "test".

    Returns:
        Dataset with images (N, C, H, W) uint8 and labels (N,) int64.

    Raises:
        ConfigError: an unknown name or split.
        DataError: what was asked for is not there and cannot be had; another data set is never taken instead.
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


# -------------------------------------------------------------------------------- embedded digits

_TEST_DIGITS = 40  # images a class
_PAIRS = {"train": 100, "test": 20}  # images a class; 100 so that R = 100 leaves one
_DIGITS_SHA256 = "65e5b4619795efb40c1082f4c350c049e4ad552200d369b6ae99e21eef5e72c5"


def _stream(*numbers: int) -> np.random.RandomState:
    """Random numbers that define a data set: of NumPy's generators only this one promises never to change."""
    return np.random.RandomState(list(numbers))


def _raw_digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images.reshape(-1, 1, 8, 8).astype(np.uint8), labels.astype(np.int64)


def _digits(split: str) -> tuple[Tensor, Tensor]:
    grey, labels = _raw_digits()
    images = np.round(grey * (255 / 16)).astype(np.uint8)
    stream, tested = _stream(0), np.zeros(len(labels), bool)
    for k in range(10):
        tested[stream.permutation(np.flatnonzero(labels == k))[:_TEST_DIGITS]] = True
    chosen = tested if split == "test" else ~tested
    return torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen])


def _digit_pairs(split: str) -> tuple[Tensor, Tensor]:
    images, labels = _digits(split)
    pools = [images[labels == k] for k in range(10)]
    pairs = []
    for k in range(100):
        left, right = pools[k // 10], pools[k % 10]
        drawn = _stream(SPLITS.index(split), k).permutation(len(left) * len(right))[: _PAIRS[split]]
        pairs.append(torch.cat([left[drawn // len(right)], right[drawn % len(right)]], dim=3))
    return torch.cat(pairs), torch.arange(100).repeat_interleave(_PAIRS[split])


_SCENE_DIGITS = (0, 1, 2, 4)
_SCENES = {"train": 100, "test": 40}  # images a class
_CUE_AGREES = 0.7  # otherwise the grating's orientation is drawn, so that it goes with the class in 77.5 %


def _digit_scenes(split: str) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Images, labels and the quadrants (0 … 3, row by row) of digit and grating."""
    digits, labels = _digits(split)
    stream, count = _stream(2, SPLITS.index(split)), _SCENES[split]
    scenes, quadrants = [], []
    across, down = np.meshgrid(np.arange(16), np.arange(16))
    for k, digit in enumerate(_SCENE_DIGITS):
        pool = digits[labels == digit].numpy()[:, 0]
        for n in range(count):
            places = stream.permutation(4)[:2]
            turn = k if stream.uniform() < _CUE_AGREES else stream.randint(4)
            angle, phase = np.pi * turn / 4, stream.uniform(0, 2 * np.pi)
            wave = np.sin(2 * np.pi * (across * np.cos(angle) + down * np.sin(angle)) / 4 + phase)
            parts = np.kron(pool[n % len(pool)], np.ones((2, 2))), 100 + 60 * wave
            scene = stream.uniform(0, 60, size=(32, 32))
            for place, part in zip(places, parts, strict=True):
                row, column = 16 * (place // 2), 16 * (place % 2)
                scene[row : row + 16, column : column + 16] = part
            scenes.append(np.round(scene).astype(np.uint8))
            quadrants.append(places)
    digit_at, cue_at = np.array(quadrants).T
    images = torch.from_numpy(np.stack(scenes))[:, None]
    return images, torch.arange(len(_SCENE_DIGITS)).repeat_interleave(count), digit_at, cue_at


def scene_places(split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
    """Masks (N, 32, 32) of the digit and of the grating in each image of "digit_scenes"."""
    _, _, digit_at, cue_at = _digit_scenes(split)
    masks = []
    for places in (digit_at, cue_at):
        mask = torch.zeros(len(places), 2, 16, 2, 16, dtype=torch.bool)
        mask[torch.arange(len(places)), places // 2, :, places % 2] = True
        masks.append(mask.reshape(-1, 32, 32))
    return masks[0], masks[1]


# -------------------------------------------------------------------------------- originals

_TORCHVISION = dict(cifar10="CIFAR10", cifar100="CIFAR100", mnist="MNIST", fashion_mnist="FashionMNIST")


@dataclass(frozen=True)
class _Original:
    """Where the files of a torchvision data set lie, and what they must contain."""

    needed: list[tuple[Path, str]]  # files that are read, with their MD5
    downloads: list[tuple[Path, str, list[str]]]  # target, MD5, addresses


def _torchvision_class(name: str) -> Any:
    try:
        import torchvision.datasets
    except ImportError as error:
        raise DataError(f"{name} needs torchvision ({error}); pip install torchvision. {_OFFLINE}") from None
    return getattr(torchvision.datasets, _TORCHVISION[name])


def _original(name: str) -> _Original:
    kind, root = _torchvision_class(name), paths.data()
    if name.startswith("cifar"):
        listed = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
        return _Original(
            needed=[(root / kind.base_folder / file, md5) for file, md5 in listed],
            downloads=[(root / kind.filename, kind.tgz_md5, [kind.url])],
        )
    needed = [(root / kind.__name__ / "raw" / file, md5) for file, md5 in kind.resources]
    return _Original(needed, [(path, md5, [m + path.name for m in kind.mirrors]) for path, md5 in needed])


def _state(path: Path, md5: str) -> Literal["ok", "missing", "damaged"]:
    if not path.is_file():
        return "missing"
    with path.open("rb") as file:
        return "ok" if hashlib.file_digest(file, _md5).hexdigest() == md5 else "damaged"


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _fetch_original(name: str) -> None:
    """Make sure that every file of a torchvision data set is there and has its checksum."""
    original = _original(name)
    if all(_state(*file) == "ok" for file in original.needed):
        return
    root = paths.data()
    root.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(root / f"{name}.lock"):
        if all(_state(*file) == "ok" for file in original.needed):  # another process has fetched it meanwhile
            return
        for target, md5, addresses in original.downloads:
            state = _state(target, md5)
            if state == "damaged":
                _set_aside(target)
            if state != "ok" and (tried := _download(target, md5, addresses)):
                raise DataError(_how_to_get(name, original, tried))
            if target.name.endswith(".tar.gz"):
                _extract(target, [path for path, _ in original.needed])
    wrong = [path.name for path, md5 in original.needed if _state(path, md5) != "ok"]
    if wrong:
        raise DataError(f"{name}: {', '.join(wrong)} in {root} has not the right checksum; nothing was read")


def _download(target: Path, md5: str, addresses: list[str]) -> list[str]:
    """Fetch one file beside its place, compare its MD5, move it there; returns what went wrong, if it did."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part")
    tried = []
    for address in addresses:
        try:
            _copy_with_bar(address, partial)
            if _state(partial, md5) == "ok":
                os.replace(partial, target)
                return []
            tried.append(f"{address} (came with another MD5 than {md5})")
        except (OSError, http.client.HTTPException) as error:
            tried.append(f"{address} ({type(error).__name__}: {error})")
        finally:
            partial.unlink(missing_ok=True)
    return tried


def _how_to_get(name: str, original: _Original, tried: list[str]) -> str:
    absent = [(path, md5) for path, md5, _ in original.downloads if _state(path, md5) != "ok"]
    return (
        f"cannot download {name}. Tried {'; '.join(tried)}.\n"
        f"Place {', '.join(f'{path.name} (MD5 {md5})' for path, md5 in absent)} in {absent[0][0].parent} "
        f"and run again: what is there is verified and used.\n{_OFFLINE}."
    )


def _copy_with_bar(address: str, target: Path) -> None:
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with (
        urllib.request.urlopen(address, timeout=30) as source,
        target.open("wb") as file,
        Progress(*columns, console=Console(stderr=True), disable=_quiet(), transient=True) as progress,
    ):
        size = source.headers.get("Content-Length")
        bar = progress.add_task(target.name.removesuffix(".part"), total=int(size) if size else None)
        while chunk := source.read(1 << 18):
            file.write(chunk)
            progress.advance(bar, len(chunk))


def _extract(archive: Path, wanted: list[Path]) -> None:
    """Write the wanted files of a verified archive, each aside and then in place, and nothing else."""
    targets = {f"{path.parent.name}/{path.name}": path for path in wanted}
    with tarfile.open(archive) as tar:
        for member in tar:
            path, source = targets.get(member.name), tar.extractfile(member)
            if path is None or source is None:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.part")
            with partial.open("wb") as file:
                shutil.copyfileobj(source, file)
            os.replace(partial, path)


def _cifar(name: str, split: str) -> Dataset:
    # The batches are pickles: _fetch_original has compared each with its checksum, and torchvision does so
    # again immediately before it opens them.
    source = _torchvision_class(name)(paths.data(), train=split == "train", download=False)
    images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()
    return Dataset(images, torch.tensor(source.targets), tuple(source.classes), name)


def _mnist(name: str, split: str) -> Dataset:
    # Read from the compressed originals: torchvision reads its unpacked copies, which have no checksum.
    files = {path.name: path for path, _ in _original(name).needed}
    prefix = "train" if split == "train" else "t10k"
    images = _read_idx(files[f"{prefix}-images-idx3-ubyte.gz"])
    labels = _read_idx(files[f"{prefix}-labels-idx1-ubyte.gz"])
    names = tuple(label.split(" - ")[0] for label in _torchvision_class(name).classes)
    return Dataset(images[:, None], labels.long(), names, name)


def _read_idx(path: Path) -> Tensor:
    """A compressed IDX file: 0, 0, 8, number of dimensions, each in four big-endian bytes, the values."""
    data = gzip.decompress(path.read_bytes())
    if data[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is no IDX file of unsigned bytes")
    shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy())


# -------------------------------------------------------------------------------- image folders

_Tree = dict[str, dict[str, list[Path]]]  # split -> class -> files, all sorted


def _scan(folder: Path) -> _Tree:
    """The files of an image folder by split and class; refuses what can be refused without opening one."""
    shape = "It must hold train/<class>/* and test/<class>/*, the layout of torchvision's ImageFolder"
    if not os.path.exists(folder):  # unlike Path.exists never an error, such as that of a name too long
        raise DataError(f"folder {folder} does not exist; check the path")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file, not a folder; unpack it and give the folder. {shape}")
    found = sorted(entry.name for entry in _listing(folder))
    if not found:
        raise DataError(f"folder {folder} is empty. {shape}")
    absent = [split for split in SPLITS if not (folder / split).is_dir()]
    if absent:
        listed = ", ".join(found[:10]) + (" …" if len(found) > 10 else "")
        raise DataError(f"folder {folder} has no {'/ and no '.join(absent)}/, only {listed}. {shape}")
    tree: _Tree = {split: _classes(folder / split, shape) for split in SPLITS}
    missing = {a: sorted(tree[b].keys() - tree[a].keys()) for a, b in (SPLITS, SPLITS[::-1])}
    if any(missing.values()):
        faults = [
            f"{', '.join(map(repr, names))} not in {split}/" for split, names in missing.items() if names
        ]
        raise DataError(f"train/ and test/ of {folder} must have the same classes: {'; '.join(faults)}")
    if len(tree["train"]) == 1:
        raise DataError(
            f"folder {folder} has one class only, {next(iter(tree['train']))!r}; at least two are needed"
        )
    return tree


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted((e for e in folder.iterdir() if not e.name.startswith(".")), key=lambda e: e.name)
    except OSError as error:
        raise DataError(f"folder {folder} cannot be read ({error.strerror})") from None


def _classes(folder: Path, shape: str) -> dict[str, list[Path]]:
    entries = _listing(folder)
    stray = [entry.name for entry in entries if not entry.is_dir()]
    if stray:
        raise DataError(
            f"{len(stray)} file(s) in {folder} lie outside a class folder, such as {stray[0]!r}. {shape}"
        )
    if not entries:
        raise DataError(f"{folder} is empty: it has no class folders. {shape}")
    classes = {entry.name: _files(entry, (folder.resolve(),)) for entry in entries}
    bare = [name for name, files in classes.items() if not files]
    if bare:
        raise DataError(
            f"class folder(s) without a file in {folder}: {', '.join(map(repr, bare))}; fill or remove them"
        )
    return classes


def _files(folder: Path, above: tuple[Path, ...]) -> list[Path]:
    """Files in and below a folder. above: those it was reached through, to which a link could lead back for ever."""
    real = folder.resolve()
    if any(upper.is_relative_to(real) for upper in above):
        raise DataError(f"{folder} leads back to {real}, a folder above it; remove that link")
    nested = (_files(entry, (*above, real)) if entry.is_dir() else [entry] for entry in _listing(folder))
    return sorted((path for files in nested for path in files), key=Path.as_posix)


def _flat(tree: _Tree) -> list[Path]:
    return [path for split in SPLITS for files in tree[split].values() for path in files]


def _fingerprint(folder: Path, tree: _Tree) -> str:
    total = hashlib.sha256(f"decoding rule {_DECODING_RULE}\n".encode())
    faults = {}
    for path in _track(_flat(tree), f"Reading {folder.name}"):
        if os.path.exists(path) and not path.is_file():
            faults[path] = "no plain file"  # a pipe would be read for ever
            continue
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            faults[path] = str(error.strerror)
            continue
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode("utf-8", "surrogateescape"))
    _refuse_files(folder, faults, "cannot be read")
    return total.hexdigest()[:12]


def _refuse_files(folder: Path, faults: dict[Path, str], what: str) -> None:
    if faults:
        shown = "; ".join(f"{path.relative_to(folder)} ({why})" for path, why in list(faults.items())[:5])
        raise DataError(
            f"{len(faults)} file(s) in {folder} {what}: {shown}{' …' if len(faults) > 5 else ''}. "
            "Remove or replace them and run again; nothing is skipped silently"
        )


def _decode(folder: Path, tree: _Tree, cache: Path) -> None:
    """Decode a whole tree and write its cache in one move."""
    sizes = _sizes(folder, tree)
    trained = [sizes[path] for files in tree["train"].values() for path in files]
    height, width = _target_size(set(sizes.values()), sorted(min(size) for size in trained))
    pixels, faults = {}, {}
    for split in SPLITS:
        files = [path for files in tree[split].values() for path in files]
        pixels[split] = np.empty((len(files), 3, height, width), np.uint8)
        for image, path in zip(pixels[split], _track(files, f"Decoding {folder.name}/{split}"), strict=True):
            try:
                image[:] = np.moveaxis(_decode_file(path, height, width), 2, 0)
            except Exception as error:  # Pillow answers damaged files with exceptions of many kinds
                faults[path] = f"{type(error).__name__}: {error}"
    _refuse_files(folder, faults, "are damaged or cannot be decoded")
    grey = all(np.array_equal(images[:, 0], images[:, c]) for images in pixels.values() for c in (1, 2))
    arrays = {}
    for split in SPLITS:
        arrays[f"{split}_images"] = np.ascontiguousarray(pixels[split][:, :1]) if grey else pixels[split]
        per_class = [len(files) for files in tree[split].values()]
        arrays[f"{split}_labels"] = np.repeat(np.arange(len(per_class)), per_class)
    _write_cache(cache, arrays, {"class_names": list(tree["train"]), "decoding_rule": _DECODING_RULE})


_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Others are not opened: some start a program (EPS), and the rarest are where decoders break."""


def _sizes(folder: Path, tree: _Tree) -> dict[Path, tuple[int, int]]:
    """(height, width) of every image, from its header."""
    sizes, foreign, damaged = {}, {}, {}
    for path in _track(_flat(tree), f"Measuring {folder.name}"):
        try:
            with Image.open(path, formats=_FORMATS) as image:
                width, height = image.size
                turned = image.getexif().get(0x0112) in (5, 6, 7, 8)  # orientations that swap the sides
                sizes[path] = (width, height) if turned else (height, width)
        except UnidentifiedImageError:
            foreign[path] = f"{path.stat().st_size} bytes"
        except Exception as error:
            damaged[path] = f"{type(error).__name__}: {error}"
    _refuse_files(folder, foreign, f"are not images in {', '.join(_FORMATS)}")
    _refuse_files(folder, damaged, "are damaged or cannot be decoded")
    return sizes


def _target_size(sizes: set[tuple[int, int]], short_sides: list[int]) -> tuple[int, int]:
    first, *others = sizes
    if not others and max(first) <= MAX_SIDE:
        return first
    side = min(MAX_SIDE, short_sides[len(short_sides) // 2])
    return side, side


def _decode_file(path: Path, height: int, width: int) -> np.ndarray:
    with Image.open(path, formats=_FORMATS) as image:
        ImageOps.exif_transpose(image, in_place=True)
        rgb = _to_rgb(image)
        if rgb.size != (width, height):
            rgb = ImageOps.fit(rgb, (width, height), Image.Resampling.BILINEAR)
        return np.asarray(rgb)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # Pillow's own conversion cuts 16-bit values off at 255
        grey = np.clip(np.asarray(image).astype(np.int64), 0, 65535) // 257
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point pixels, whose range is not known; save it with 8 or 16 bits")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


# -------------------------------------------------------------------------------- cache of folders

_SUMS = "SHA256SUMS"


def _cache_folder(resolved: str) -> Path:
    return paths.data() / "cache" / resolved.removeprefix("folder:").replace("@", "-")


def _write_cache(cache: Path, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    aside = cache.with_name(f"{cache.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed; the caller holds the lock
    aside.mkdir(parents=True)
    try:
        for name, array in arrays.items():
            np.save(aside / f"{name}.npy", array, allow_pickle=False)
        (aside / "dataset.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        sums = "".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(aside.iterdir()))
        (aside / _SUMS).write_text(sums, encoding="utf-8")
        os.replace(aside, cache)
    except OSError as error:  # NumPy's of a full disk names no file
        why = f"{error.strerror or error} (free some space there and type the same again)"
        raise OSError(error.errno or errno.ENOSPC, why, str(cache)) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cache_states(cache: Path, splits: Iterable[str] = SPLITS) -> dict[str, str]:
    """The files that the splits need: "ok", "missing" or "damaged"."""
    names = ["dataset.json", *(f"{split}_{part}.npy" for split in splits for part in ("images", "labels"))]
    try:
        sums = {line[66:]: line[:64] for line in (cache / _SUMS).read_text(encoding="utf-8").splitlines()}
    except (OSError, UnicodeDecodeError):
        sums = {}
    states = {}
    for name in names:
        if (cache / name).is_file():
            states[name] = "ok" if _sha256(cache / name) == sums.get(name) else "damaged"
        else:
            states[name] = "missing"
    return states


def _cache_is_whole(cache: Path, splits: Iterable[str] = SPLITS) -> bool:
    return all(state == "ok" for state in _cache_states(cache, splits).values())


def _read_cache(resolved: str, split: str) -> Dataset:
    cache = _cache_folder(resolved)
    again = "run `nclib data fetch folder:PATH` with the folder they were made from, its files unchanged"
    if not cache.is_dir():
        raise DataError(f"the images of {resolved} are not in {cache.parent}; {again}")
    if not _cache_is_whole(cache, [split]):
        raise DataError(f"the cache of {resolved} was damaged, now set aside as {_set_aside(cache)}; {again}")
    facts = json.loads((cache / "dataset.json").read_text(encoding="utf-8"))
    images = np.load(cache / f"{split}_images.npy", allow_pickle=False)
    labels = np.load(cache / f"{split}_labels.npy", allow_pickle=False)
    return Dataset(torch.from_numpy(images), torch.from_numpy(labels), tuple(facts["class_names"]), resolved)


def _set_aside(path: Path) -> Path:
    """Rename what cannot be trusted, so that it is neither read nor lost."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    os.replace(path, target)
    return target


# -------------------------------------------------------------------------------- for `nclib data`


def fetch(name: str) -> str:
    """Download or decode a data set now, so that no run waits for it; returns its resolved name.

    Raises: as `load_dataset`.
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

    Returns:
        For each file "ok", "missing" or "damaged". For the embedded digits the one entry is scikit-learn's
        array; for a folder the entries are the files of its decoded cache.
    """
    if name.startswith("folder:") and not _RESOLVED.fullmatch(name):
        name = _identity(_folder(name), _scan(_folder(name)))
    name = resolve_dataset(name)
    if name in _TORCHVISION:
        needed, root = _original(name).needed, paths.data()
        return {path.relative_to(root).as_posix(): _state(path, md5) for path, md5 in needed}
    if name in DATASETS:
        content = hashlib.sha256(b"".join(array.tobytes() for array in _raw_digits())).hexdigest()
        return {"sklearn.datasets.load_digits": "ok" if content == _DIGITS_SHA256 else "damaged"}
    return _cache_states(_cache_folder(name))


def describe(name: str) -> dict[str, Any]:
    """Facts about a data set, without downloading it; ``folder:PATH`` is decoded first.

    Returns:
        name, where, present, bytes (on disk, its own files only); and if present also classes (K),
        class_names, train and test (images of each class), shape (C, H, W), augment.
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


def _quiet() -> bool:
    return not sys.stderr.isatty()


def _track(items: Sequence[Any], text: str) -> Iterable[Any]:
    return track(items, escape(text), console=Console(stderr=True), disable=_quiet(), transient=True)


# -------------------------------------------------------------------------------- one run


@dataclass(frozen=True, eq=False)
class Split:
    """The images of one run.

    Attributes:
        train_images, train_labels: (N, C, H, W) uint8 and (N,) int64, the subset that the run trains on.
        test_images, test_labels: the same for testing.
        counts: (K,) int64, training images by class id.
        minority: (K,) bool. "step": the classes outside the K_A majority ones (also at R = 1, where they are
            as large); "exponential": classes with fewer images than the median count; "balanced": none.
        class_names: K names.
        train_indices, test_indices: int64, ascending, into the data set's own splits; saved with the run.
        mean, std: C floats on the scale 0 … 1, over *all* training images of the data set, so that runs of
            every imbalance and seed see equally scaled images. A constant channel has std 1/255.
        augment: what `Batches.shuffled` does to the images.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    counts: Tensor
    minority: Tensor
    class_names: tuple[str, ...]
    train_indices: Tensor
    test_indices: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment


def make_split(cfg: DataConfig, seed: int) -> Split:
    """Draw the images of one run.

    Class k keeps n_k images, as `nclib.imbalance` counts them, drawn without replacement from a generator of
    its own. With one seed a smaller n_k keeps a subset of a larger one.

    Args:
        cfg: which data set, how many images, which classes are many. Without n_max the largest classes get as
            many images as the smallest class of the data set has. Without test_per_class all test images are
            used.
        seed: of the subset, the test subset and, for majority="random", the choice of classes, unless the
            configuration has a subset_seed.

    Raises:
        ValueError: more images asked for than there are, or an impossible imbalance, with the numbers.
        DataError: the data set cannot be had.
    """
    train, test = load_dataset(cfg.dataset, "train"), load_dataset(cfg.dataset, "test")
    num_classes = len(train.class_names)
    n_max = cfg.n_max if cfg.n_max is not None else int(train.counts.min())
    seed = seed if cfg.subset_seed is None else cfg.subset_seed
    counts, minority = _counts(cfg, num_classes, n_max, seed)
    _refuse_shortage(f"n_max={n_max}", counts, train, "training")
    train_indices = imbalance.subsample_indices(train.labels, counts, seed)
    test_indices = torch.arange(len(test.labels))
    if cfg.test_per_class is not None:
        wanted = torch.full((num_classes,), cfg.test_per_class)
        _refuse_shortage(f"test_per_class={cfg.test_per_class}", wanted, test, "test")
        test_indices = imbalance.subsample_indices(test.labels, wanted, seed)
    mean, std = _channel_moments(train.images)
    return Split(
        train_images=train.images[train_indices],
        train_labels=train.labels[train_indices],
        test_images=test.images[test_indices],
        test_labels=test.labels[test_indices],
        counts=counts,
        minority=minority,
        class_names=train.class_names,
        train_indices=train_indices,
        test_indices=test_indices,
        mean=mean,
        std=std,
        augment=train.augment if cfg.augment == "dataset" else "none",
    )


def _counts(cfg: DataConfig, num_classes: int, n_max: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of each class by class id (K,), and which classes are minority (K,)."""
    if cfg.imbalance == "balanced":
        return torch.full((num_classes,), n_max), torch.zeros(num_classes, dtype=torch.bool)
    order = imbalance.class_order(num_classes, cfg.majority, seed)
    if cfg.imbalance == "step":
        sizes = imbalance.step_imbalance(num_classes, n_max, cfg.num_majority, cfg.ratio)
        minority = torch.ones(num_classes, dtype=torch.bool)
        minority[imbalance.majority_classes(num_classes, cfg.num_majority, cfg.majority, seed)] = False
        return imbalance.assign_counts(sizes, order), minority
    counts = imbalance.assign_counts(imbalance.exponential_imbalance(num_classes, n_max, cfg.ratio), order)
    return counts, counts < counts.double().quantile(0.5)


def _refuse_shortage(option: str, counts: Tensor, dataset: Dataset, kind: str) -> None:
    short = (counts > dataset.counts).nonzero().flatten().tolist()
    if short:
        worst = min(short, key=lambda k: int(dataset.counts[k]))
        raise ValueError(
            f"{option} asks for {int(counts[worst])} {kind} images of class {dataset.class_names[worst]!r} "
            f"of {dataset.name}, which has {int(dataset.counts[worst])}; {len(short)} of {len(counts)} "
            f"classes have too few. At most {int(dataset.counts.min())} suits every class"
        )


def _channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel on the scale 0 … 1, exactly, from the 256 grey levels."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        weights = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        weights /= weights.sum()
        mean = weights @ levels
        means.append(float(mean))
        stds.append(max(float((weights @ (levels - mean) ** 2).sqrt()), 1 / 255))
    return tuple(means), tuple(stds)


# -------------------------------------------------------------------------------- batches


class Batches:
    """Batches of an image set that lives on the device as uint8.

        x = (image / 255 − mean) / std

    Every image is seen once in a pass. The last batch is smaller when the number of images is no multiple of
    the batch size; a last batch of one image, which BatchNorm cannot use, joins the one before it.

    Args:
        images: (N, C, H, W) uint8; moved to the device once.
        labels: (N,) integers.
        batch_size: images of a batch.
        mean, std: C floats on the scale 0 … 1, as in `Split`.
        augment: "none", or "flip_crop" for `shuffled`: each image is mirrored with probability ½ and shifted
            by up to 1/8 of each side (4 of 32 pixels), black coming in at the edge.
        device: where images and batches live.
        dtype: of x; the arithmetic is float32 at least.

    Raises:
        TypeError, ValueError: images, labels or sizes that do not fit, with the numbers.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Augment = "none",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise TypeError(f"images must be uint8 (N, C, H, W), got {images.dtype} {tuple(images.shape)}")
        if not len(images) or labels.shape != images.shape[:1]:
            raise ValueError(f"need a label for each of N ≥ 1 images, got {len(labels)} for {len(images)}")
        if len(mean) != images.shape[1] or len(std) != images.shape[1]:
            raise ValueError(f"need mean and std of {images.shape[1]} channels, got {len(mean)}, {len(std)}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if augment not in ("none", "flip_crop"):
            raise ValueError(suggest(augment, ("none", "flip_crop"), "augmentation"))
        self.images, self.labels = images.to(device), labels.to(device, torch.long)
        self.batch_size, self.augment, self.dtype = batch_size, augment, dtype
        exact = torch.promote_types(dtype, torch.float32)
        mean_, std_ = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (mean, std))
        self._scale = (1 / (255 * std_)).to(device, exact)
        self._shift = (-mean_ / std_).to(device, exact)

    def __len__(self) -> int:
        """Batches in one pass."""
        return len(self._cuts())

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass in the order of the images, never augmented: x (B, C, H, W), y (B,)."""
        for start, stop in self._cuts():
            yield self._normalised(self.images[start:stop]), self.labels[start:stop]

    def shuffled(self, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One augmented pass in random order: x (B, C, H, W), y (B,), rows (B,) of the images.

        Order and augmentation follow from seed and epoch alone: not from earlier epochs, the batch size, the
        device or the global random state, which is not touched. A resumed run therefore goes on exactly.
        """
        state = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(state)
        order = torch.randperm(len(self.images), generator=generator)
        device = self.images.device
        moves = self._draw_moves(generator).to(device) if self.augment == "flip_crop" else None
        order = order.to(device)
        for start, stop in self._cuts():
            rows = order[start:stop]
            images = self.images[rows]
            if moves is not None:
                images = _flip_and_shift(images, *moves[start:stop].unbind(1))
            yield self._normalised(images), self.labels[rows], rows

    def _cuts(self) -> list[tuple[int, int]]:
        total, size = len(self.images), self.batch_size
        starts = list(range(0, total, size))
        if size > 1 and len(starts) > 1 and total - starts[-1] == 1:
            starts.pop()
        return list(zip(starts, [*starts[1:], total], strict=True))

    def _draw_moves(self, generator: torch.Generator) -> Tensor:
        """(N, 3): mirrored (0 or 1), shift down, shift right; drawn on the CPU, so alike for every device."""
        draws = [torch.randint(0, 2, (len(self.images),), generator=generator)]
        for side in self.images.shape[2:]:
            most = max(1, round(side / 8))
            draws.append(torch.randint(-most, most + 1, (len(self.images),), generator=generator))
        return torch.stack(draws, dim=1)

    def _normalised(self, images: Tensor) -> Tensor:
        return torch.addcmul(self._shift, images.to(self._scale.dtype), self._scale).to(self.dtype)


def _flip_and_shift(images: Tensor, mirrored: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Mirror left-right, then shift, each image by its own numbers; what comes in from outside is 0."""
    batch, channels, height, width = images.shape
    y = torch.arange(height, device=images.device) - down[:, None]  # (B, H): the row each is taken from
    x = torch.arange(width, device=images.device) - right[:, None]  # (B, W)
    inside = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]  # (B, H, W)
    x = torch.where(mirrored.bool()[:, None], width - 1 - x, x)
    source = y.clamp(0, height - 1)[:, :, None] * width + x.clamp(0, width - 1)[:, None, :]  # (B, H, W)
    index = source.view(batch, 1, -1).expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, index).view_as(images)
    return moved * inside[:, None]
