"""Image folders: the name they resolve to, their files, decoding, and the cache of decoded images."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from nclib.config import ConfigError, suggest
from nclib.data.base import _RESOLVED, DATASETS, SPLITS, DataError, Dataset, _set_aside, _track
from nclib.system import paths

if TYPE_CHECKING:
    from os import PathLike

MAX_SIDE = 64
"""Longest side an image folder keeps; larger images are scaled down (`resolve_dataset` states the rule)."""

_DECODING_RULE = 1  # part of a folder's fingerprint: raise it when the same files decode to other pixels


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

    Parameters
    ----------
    name : a name of `DATASETS`, ``folder:PATH`` or ``folder:NAME@FINGERPRINT``.
    base : folder that a relative PATH starts from; the working directory if left out.

    Raises
    ------
    ConfigError
        An unknown name, with the nearest right one.
    DataError
        A folder that is missing, empty, without train/ or test/, of one class, with different classes in train/ and
        test/, or with files that are damaged, unreadable or not images. All such files are counted.
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
            arrays, facts = _decode(folder, tree)
            if _identity(folder, _scan(folder)) != resolved:
                raise DataError(f"files of {folder} changed while they were read; wait until they are all there")
            _write_cache(cache, arrays, facts)
    return resolved


def _folder(name: str, base: str | PathLike[str] | None = None) -> Path:
    typed = name.removeprefix("folder:")
    if not typed.strip():
        raise DataError("folder: names no folder; write folder:PATH, for instance folder:data/cifar10-jpeg")
    return Path(os.path.abspath(Path(base or ".") / os.path.expanduser(typed)))


def _identity(folder: Path, tree: _Tree) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-.") or "images"
    return f"folder:{plain}@{_fingerprint(folder, tree)}"


# -------------------------------------------------------------------------------- files and decoding

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
        faults = [f"{', '.join(map(repr, names))} not in {split}/" for split, names in missing.items() if names]
        raise DataError(f"train/ and test/ of {folder} must have the same classes: {'; '.join(faults)}")
    if len(tree["train"]) == 1:
        raise DataError(f"folder {folder} has one class only, {next(iter(tree['train']))!r}; at least two are needed")
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
        raise DataError(f"{len(stray)} file(s) in {folder} lie outside a class folder, such as {stray[0]!r}. {shape}")
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


def _decode(folder: Path, tree: _Tree) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The pixels and labels of a whole tree, and what is told of them."""
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
    return arrays, {"class_names": list(tree["train"]), "decoding_rule": _DECODING_RULE}


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
    if image.mode == "I" and image.format not in ("PNG", "PPM"):  # which have 16 bits in this mode
        raise ValueError("32-bit pixels, whose range is not known; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # Pillow's own conversion cuts 16-bit values off at 255
        grey = np.clip(np.asarray(image).astype(np.int64), 0, 65535) // 257
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point pixels, whose range is not known; save it with 8 or 16 bits")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


# -------------------------------------------------------------------------------- the cache

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
