"""CIFAR and MNIST in their original files: download, checksums, reading.

A file is verified by its checksum before a byte of it is interpreted.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np
import torch
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn
from torch import Tensor

from nclib.data.base import _OFFLINE, DataError, Dataset, _quiet, _set_aside
from nclib.system import paths

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
        raise DataError(f"{path} is not an IDX file of unsigned bytes")
    shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy())
