"""Image folders: the name they resolve to, their files, decoding, and the cache of decoded images."""

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch
from PIL import Image, ImageOps

from nclib import paths
from nclib.config import RESOLVED_FOLDER, ConfigError, suggest
from nclib.data.base import DATASETS, SPLITS, DataError, Dataset
from nclib.paths import sha256, write_atomic

MAX_SIDE = 64
"""Longest side an image folder keeps; larger images are scaled down (`resolve_dataset` states the rule)."""

_DECODING_RULE = 1  # part of a folder's fingerprint: raise it when the same files decode to other pixels
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Others are not opened: some start a program (EPS), and the rarest are where decoders break."""
_Tree = dict[str, dict[str, list[Path]]]  # split -> class -> files, all sorted


def resolve_dataset(name: str, base: str | os.PathLike[str] | None = None) -> str:
    """The name of a data set as a configuration may hold it: no path, the same on every machine.

    Built-in and already resolved names come back unchanged. ``folder:PATH``, a tree ``train/<class>/*`` and
    ``test/<class>/*``, becomes ``folder:NAME@FINGERPRINT``: the folder's base name, and 12 hexadecimal digits
    of a SHA-256 over the names below it and the bytes of its files (not where it lies, the order of its
    listing or its times). The first call decodes the images into the cache below ``nclib.paths.data()``;
    later ones only read and compare. The fingerprint names files, not pixels: another version of the JPEG
    decoder may differ by a grey level.

    Rules of decoding. Classes and images are sorted by name; dot files are ignored. If all images have one
    size of at most 64 × 64, it is kept; else each is scaled and centre-cropped to a square whose side is the
    median short side of the training images, at most 64. EXIF rotation is applied, transparency is laid on
    white; more than 8 bits a pixel are refused. If red = green = blue in every pixel of every image there is one
    channel, else three.

    Parameters
    ----------
    name : a name of `DATASETS`, ``folder:PATH`` or ``folder:NAME@FINGERPRINT``.
    base : folder that a relative PATH starts from; the working directory if left out.

    Raises
    ------
    ConfigError
        An unknown name, with the nearest right one.
    DataError
        A folder that is missing, without the same two or more classes in train/ and test/, each with images, or with
        files that are damaged or not images. All such files are counted.
    """
    if name in DATASETS or RESOLVED_FOLDER.fullmatch(name):
        return name
    if not name.startswith("folder:"):
        raise ConfigError(suggest(name, [*DATASETS, "folder:PATH"], "data set"))
    folder = Path(os.path.abspath(Path(base or ".") / os.path.expanduser(name.removeprefix("folder:"))))
    tree = _scan(folder)
    files = [path for split in SPLITS for found in tree[split].values() for path in found]
    total = hashlib.sha256(f"decoding rule {_DECODING_RULE}\n".encode())
    for path, content in zip(files, _each(folder, files, lambda path: sha256(path.read_bytes())), strict=True):
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode("utf-8", "surrogateescape"))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-.") or "images"
    resolved = f"folder:{plain}@{total.hexdigest()[:12]}"
    cache = cache_file(resolved)
    if not is_intact(cache):
        cache.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{cache}.lock"):
            if not is_intact(cache):  # another process may have decoded it meanwhile
                content = io.BytesIO()
                np.savez(content, **_decode(folder, tree))
                write_atomic(cache, content.getvalue())
    return resolved


def _scan(folder: Path) -> _Tree:
    """The files of an image folder by split and class."""
    shape = "It must hold train/<class>/* and test/<class>/*, the layout of torchvision's ImageFolder"
    if not os.path.isdir(folder):
        raise DataError(f"folder {folder} does not exist. {shape}")
    tree: _Tree = {
        split: {place.name: _files(place) for place in sorted((folder / split).glob("[!.]*")) if place.is_dir()}
        for split in SPLITS
    }
    names = sorted(tree["train"].keys() | tree["test"].keys())
    bad = [f"; {split}/{name} has no files" for name in names for split in SPLITS if not tree[split].get(name)]
    if bad or len(names) < 2:
        raise DataError(f"{folder} has not the same two or more classes in train/ and test/. {shape}{''.join(bad[:5])}")
    return tree


def _files(folder: Path) -> list[Path]:
    found = (Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names)
    shown = (path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return sorted(shown, key=Path.as_posix)


def _each(folder: Path, files: list[Path], function: Callable[[Path], Any]) -> list[Any]:
    """The function's value of every file; all files that it fails at are counted."""
    values, faults = [], []
    for path in files:
        try:
            values.append(function(path))
        except Exception as error:  # Pillow answers damaged files with exceptions of many kinds
            faults.append(f"{path.relative_to(folder)} ({type(error).__name__}: {error})")
    if faults:
        shown = "; ".join([*faults[:5], *["…"] * (len(faults) > 5)])
        said = f"{len(faults)} file(s) in {folder} are damaged or not images in {', '.join(_FORMATS)}"
        raise DataError(f"{said}: {shown}. Remove or replace them and run again")
    return values


def _decode(folder: Path, tree: _Tree) -> dict[str, np.ndarray]:
    """The pixels and labels of a whole tree, and the names of its classes."""
    files = {split: [path for found in tree[split].values() for path in found] for split in SPLITS}
    sizes = {split: _each(folder, files[split], _size) for split in SPLITS}
    distinct, short = set(sizes["train"] + sizes["test"]), sorted(map(min, sizes["train"]))
    size = next(iter(distinct))
    if len(distinct) > 1 or max(size) > MAX_SIDE:
        size = (min(MAX_SIDE, short[len(short) // 2]),) * 2
    pixels = {split: np.stack(_each(folder, files[split], lambda path: _decode_file(path, size))) for split in SPLITS}
    grey = all(np.array_equal(images[:, :1], images[:, c : c + 1]) for images in pixels.values() for c in (1, 2))
    arrays = {"class_names": np.array(list(tree["train"]))}
    for split in SPLITS:
        arrays[f"{split}_images"] = pixels[split][:, :1] if grey else pixels[split]
        arrays[f"{split}_labels"] = np.repeat(np.arange(len(tree[split])), [len(f) for f in tree[split].values()])
    return arrays


def _size(path: Path) -> tuple[int, int]:
    """(width, height), from the header."""
    with Image.open(path, formats=_FORMATS) as image:
        # orientations that swap the sides
        return image.size[::-1] if image.getexif().get(0x0112) in (5, 6, 7, 8) else image.size


def _decode_file(path: Path, size: tuple[int, int]) -> np.ndarray:
    """(3, height, width) uint8."""
    with Image.open(path, formats=_FORMATS) as image:
        if image.mode[0] in "IF" or re.search(r";16[BLN]|'ppm'.*, \d{4,}\)", str(image.tile)):  # which Pillow cuts off
            raise ValueError("more than 8 bits a pixel; save it with 8")
        ImageOps.exif_transpose(image, in_place=True)
        if image.has_transparency_data:
            layer = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        rgb = image.convert("RGB")
        if rgb.size != size:
            rgb = ImageOps.fit(rgb, size, Image.Resampling.BILINEAR)
        return np.moveaxis(np.asarray(rgb), 2, 0)


# -------------------------------------------------------------------------------- the cache


def cache_file(resolved: str) -> Path:
    return paths.data() / "cache" / f"{resolved.removeprefix('folder:').replace('@', '-')}.npz"


def is_intact(cache: Path) -> bool:
    """Whether it is there and whole: every part of an .npz file has a checksum."""
    try:
        with zipfile.ZipFile(cache) as stored:
            return stored.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def read_cache(resolved: str, split: str) -> Dataset:
    cache = cache_file(resolved)
    if not is_intact(cache):
        where = f"the images of {resolved} are missing or damaged in {cache.parent}"
        raise DataError(f"{where}; run `nclib data fetch folder:PATH` with the folder they were made from")
    with np.load(cache, allow_pickle=False) as stored:
        images, labels = (torch.from_numpy(stored[f"{split}_{part}"]) for part in ("images", "labels"))
        return Dataset(images, labels, tuple(stored["class_names"].tolist()), resolved)
