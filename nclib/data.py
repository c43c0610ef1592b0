"""Data sets as plain uint8 tensors, the images of one run, and batches made on the device.

The way down: a name → `load_dataset` (all images of a split) → `make_split` (the images that one
run trains on, by its options and seed) → `Batches` (normalised, augmented, shuffled). There are no
worker processes: an image set lives on the device as uint8, and every batch is one gather.

The sections in this order: all images of a data set, digits, CIFAR and MNIST, image folders, the
images of one run, batches.

Everything that touches the disk lies below `nclib.paths.data()`. Downloads are verified by
checksum; no data set is ever taken in place of another.
"""

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from nclib import imbalance, paths
from nclib.config import RESOLVED_FOLDER, ConfigError, DataConfig, one_of, suggest
from nclib.paths import write_atomic

DATASETS = (
    "digits",
    "digit_pairs",
    "digit_scenes",
    "cifar10",
    "cifar100",
    "mnist",
    "fashion_mnist",
)
"""Built-in names; the other form is ``folder:PATH``."""

SPLITS = ("train", "test")
Augment = Literal["none", "flip_crop"]


class DataError(ValueError):
    """Images that are missing, damaged or not what was asked for; the message names what to do
    next."""

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

        Colour images are photographs: mirrored and shifted. Grey ones are digits, letters,
        garments: left alone, since a mirrored digit is not a digit. Where a folder breaks the rule
        (house numbers in colour), ask for ``DataConfig(augment="none")``.
        """
        return "flip_crop" if self.images.shape[1] == 3 else "none"

    @property
    def counts(self) -> Tensor:
        """(K,) int64, images of each class."""
        return torch.bincount(self.labels, minlength=len(self.class_names))


# --- All images of a data set ---------------------------------------------------------------------


def load_dataset(name: str, split: Literal["train", "test"]) -> Dataset:
    """All images of one split of a data set; a missing one is downloaded or decoded first.

    Parameters
    ----------
    name : "digits" — scikit-learn's 8 × 8 digits, grey levels 0 … 16 scaled to 0 … 255; 40 images a
        class for testing, the other 1,397 for training, always the same ones;
        "digit_pairs" — two of those side by side (8 × 16), classes "00" … "99", 100 training and 20
        test images a class, all different; training pairs are made of training digits only, test
        pairs of test digits;
        "digit_scenes" — 32 × 32: one of the digits 0, 1, 2 and 4, twice its size, in one quadrant
        and a grating in another whose orientation goes with the class in 77.5 % of the images, see
        `scene_places`; 100 training and 40 test images a class;
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
    split = one_of(split, SPLITS, "split")
    if name == "digits":
        images, labels = _digits(split)
        return Dataset(images, labels, tuple("0123456789"), name)
    if name == "digit_pairs":
        images, labels = _digit_pairs(split)
        return Dataset(images, labels, tuple(f"{k:02d}" for k in range(100)), name)
    if name == "digit_scenes":
        images, labels, _, _ = _digit_scenes(split)
        return Dataset(images, labels, tuple(str(digit) for digit in _SCENE_DIGITS), name)
    if name in _TORCHVISION:
        return _original(name, split)
    return _read_cache(name, split)


def fetch(name: str) -> str:
    """Download or decode a data set now, so that no run waits for it; returns its resolved name.

    Raises
    ------
    ConfigError, DataError
        As `load_dataset`.
    """
    load_dataset(name, "test")
    return load_dataset(name, "train").name


# --- Digits: alone, in pairs and in scenes --------------------------------------------------------

_TEST_DIGITS = 40  # images a class
_PAIRS = {"train": 100, "test": 20}  # images a class; 100 so that R = 100 leaves one
_SCENES = {"train": 100, "test": 40}  # images a class
_SCENE_DIGITS = (0, 1, 2, 4)
# Otherwise the grating's orientation is drawn, so that it goes with the class in 77.5 %.
_CUE_AGREES = 0.7


def _stream(*numbers: int) -> np.random.RandomState:
    """Random numbers that define a data set: of NumPy's generators only this one promises never to
    change."""
    return np.random.RandomState(list(numbers))


def _digits(split: str) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    images = np.round(grey.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    stream = _stream(0)
    tested = np.zeros(len(labels), bool)
    for k in range(10):
        tested[stream.permutation(np.flatnonzero(labels == k))[:_TEST_DIGITS]] = True
    chosen = tested if split == "test" else ~tested
    return torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen])


def _digit_pairs(split: str) -> tuple[Tensor, Tensor]:
    images, labels = _digits(split)
    of_class = [images[labels == k] for k in range(10)]
    pairs = []
    for k in range(100):
        left = of_class[k // 10]
        right = of_class[k % 10]
        drawn = _stream(SPLITS.index(split), k).permutation(len(left) * len(right))[: _PAIRS[split]]
        pairs.append(torch.cat([left[drawn // len(right)], right[drawn % len(right)]], dim=3))
    return torch.cat(pairs), torch.arange(100).repeat_interleave(_PAIRS[split])


def _digit_scenes(split: str) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Images, labels and the quadrants (0 … 3, row by row) of digit and grating."""
    digits, digit_labels = _digits(split)
    stream = _stream(2, SPLITS.index(split))
    across, down = np.meshgrid(np.arange(16), np.arange(16))
    scenes = []
    quadrants = []
    for k, digit in enumerate(_SCENE_DIGITS):
        of_class = digits[digit_labels == digit].numpy()[:, 0]
        for n in range(_SCENES[split]):
            places = stream.permutation(4)[:2]
            turn = k if stream.uniform() < _CUE_AGREES else stream.randint(4)
            angle = np.pi * turn / 4
            phase = stream.uniform(0, 2 * np.pi)
            wave = np.sin(2 * np.pi * (across * np.cos(angle) + down * np.sin(angle)) / 4 + phase)
            enlarged = np.kron(of_class[n % len(of_class)], np.ones((2, 2)))
            scene = stream.uniform(0, 60, size=(32, 32))
            for place, part in zip(places, (enlarged, 100 + 60 * wave), strict=True):
                row = 16 * (place // 2)
                column = 16 * (place % 2)
                scene[row : row + 16, column : column + 16] = part
            scenes.append(np.round(scene).astype(np.uint8))
            quadrants.append(places)
    digit_at, grating_at = np.array(quadrants).T
    labels = torch.arange(len(_SCENE_DIGITS)).repeat_interleave(_SCENES[split])
    return torch.from_numpy(np.stack(scenes))[:, None], labels, digit_at, grating_at


def scene_places(split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
    """Masks (N, 32, 32) of the digit and of the grating in each image of "digit_scenes"."""
    _, _, digit_at, grating_at = _digit_scenes(split)
    return _quadrant_masks(digit_at), _quadrant_masks(grating_at)


def _quadrant_masks(places: np.ndarray) -> Tensor:
    mask = torch.zeros(len(places), 2, 16, 2, 16, dtype=torch.bool)
    mask[torch.arange(len(places)), places // 2, :, places % 2] = True
    return mask.reshape(-1, 32, 32)


# --- CIFAR and MNIST, which torchvision downloads, verifies and reads -----------------------------

_TORCHVISION = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
}
_OFFLINE = (
    "Without a network: dataset=digits is embedded, dataset=folder:PATH reads images of yours"
)


def _original(name: str, split: str) -> Dataset:
    try:
        import torchvision.datasets
    except ImportError as error:
        raise DataError(
            f"{name} needs torchvision ({error}); pip install torchvision. {_OFFLINE}"
        ) from None
    root = paths.data()
    root.mkdir(parents=True, exist_ok=True)
    kind = getattr(torchvision.datasets, _TORCHVISION[name])
    with filelock.FileLock(root / f"{name}.lock"):
        try:
            source = kind(root, train=split == "train", download=True)
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"cannot get {name} ({error}). Files placed in {root} are used. {_OFFLINE}"
            ) from None
    images = torch.from_numpy(np.asarray(source.data))
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
    class_names = tuple(label.split(" - ")[0] for label in source.classes)
    return Dataset(images, torch.as_tensor(source.targets), class_names, name)


# --- Image folders --------------------------------------------------------------------------------

MAX_SIDE = 64
"""Longest side an image folder keeps; larger images are scaled down (`resolve_dataset` states the
rule)."""

# Part of a folder's fingerprint: raise it when the same files decode to other pixels.
_DECODING_RULE = 1
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

_EXIF_ORIENTATION = 0x0112
_SIDES_SWAPPED = (5, 6, 7, 8)  # orientations that swap width and height
_Tree = dict[str, dict[str, list[Path]]]  # split -> class -> files, all sorted


def resolve_dataset(name: str, base: str | os.PathLike[str] | None = None) -> str:
    """The name of a data set as a configuration may hold it: no path, the same on every machine.

    Built-in and already resolved names come back unchanged. ``folder:PATH``, a tree
    ``train/<class>/*`` and ``test/<class>/*``, becomes ``folder:NAME@FINGERPRINT``: the folder's
    base name, and 12 hexadecimal digits of a SHA-256 over the names below it and the bytes of its
    files (not where it lies, the order of its listing or its times). The first call decodes the
    images into the cache below ``nclib.paths.data()``; later ones only read and compare. The
    fingerprint names files, not pixels: another version of the JPEG decoder may differ by a grey
    level.

    Rules of decoding. Classes and images are sorted by name; dot files are ignored. If all images
    have one size of at most 64 × 64, it is kept; else each is scaled and centre-cropped to a square
    whose side is the median short side of the training images, at most 64. EXIF rotation is
    applied, transparency is laid on white; grey images of more than 8 bits a pixel are refused. If
    red = green = blue in every pixel of every image there is one channel, else three.

    Parameters
    ----------
    name : a name of `DATASETS`, ``folder:PATH`` or ``folder:NAME@FINGERPRINT``.
    base : folder that a relative PATH starts from; the working directory if left out.

    Raises
    ------
    ConfigError
        An unknown name, with the nearest right one.
    DataError
        A folder that is missing, without the same two or more classes in train/ and test/, each
        with images, or with files that are damaged or not images. All such files are counted.
    """
    if name in DATASETS or RESOLVED_FOLDER.fullmatch(name):
        return name
    if not name.startswith("folder:"):
        raise ConfigError(suggest(name, [*DATASETS, "folder:PATH"], "data set"))
    path = os.path.expanduser(name.removeprefix("folder:"))
    folder = Path(os.path.abspath(Path(base or ".") / path))
    tree = _scan(folder)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-.") or "images"
    resolved = f"folder:{plain}@{_fingerprint(folder, tree)}"
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
    layout = (
        "It must hold train/<class>/* and test/<class>/*, the layout of torchvision's ImageFolder"
    )
    if not os.path.isdir(folder):
        raise DataError(f"folder {folder} does not exist. {layout}")
    tree: _Tree = {}
    for split in SPLITS:
        places = sorted((folder / split).glob("[!.]*"))
        tree[split] = {place.name: _files_below(place) for place in places if place.is_dir()}
    classes = sorted(tree["train"].keys() | tree["test"].keys())
    empty = []
    for name in classes:
        empty += [f"; {split}/{name} has no files" for split in SPLITS if not tree[split].get(name)]
    if empty or len(classes) < 2:
        raise DataError(
            f"{folder} has not the same two or more classes in train/ and test/. "
            f"{layout}{''.join(empty[:5])}"
        )
    return tree


def _files_below(folder: Path) -> list[Path]:
    """All files of a class, those in folders and linked folders too, but for hidden ones."""
    files = []
    for place, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = Path(place, name)
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if not hidden:
                files.append(path)
    return sorted(files, key=Path.as_posix)


def _files_of(tree: _Tree, split: str) -> list[Path]:
    """Class by class."""
    files = []
    for of_class in tree[split].values():
        files += of_class
    return files


def _fingerprint(folder: Path, tree: _Tree) -> str:
    files = _files_of(tree, "train") + _files_of(tree, "test")
    digests = _each(folder, files, lambda path: hashlib.sha256(path.read_bytes()).hexdigest())
    total = hashlib.sha256(f"decoding rule {_DECODING_RULE}\n".encode())
    for path, digest in zip(files, digests, strict=True):
        total.update(f"{path.relative_to(folder).as_posix()}\0{digest}\n".encode())
    return total.hexdigest()[:12]


def _each(folder: Path, files: list[Path], function: Callable[[Path], Any]) -> list[Any]:
    """The function's value of every file.

    Raises
    ------
    DataError
        With the number of files that it fails at, and the first five.
    """
    values = []
    faults = []
    for path in files:
        try:
            values.append(function(path))
        except Exception as error:  # Pillow answers damaged files with exceptions of many kinds
            faults.append(f"{path.relative_to(folder)} ({type(error).__name__}: {error})")
    if faults:
        shown = faults[:5]
        if len(faults) > 5:
            shown.append("…")
        raise DataError(
            f"{len(faults)} file(s) in {folder} are damaged or not images in "
            f"{', '.join(_FORMATS)}: {'; '.join(shown)}. Remove or replace them and run again"
        )
    return values


def _decode(folder: Path, tree: _Tree) -> dict[str, np.ndarray]:
    """The pixels and labels of a whole tree, and the names of its classes."""
    train_sizes = _each(folder, _files_of(tree, "train"), _size)
    test_sizes = _each(folder, _files_of(tree, "test"), _size)
    size = train_sizes[0]
    if len({*train_sizes, *test_sizes}) > 1 or max(size) > MAX_SIDE:
        short_sides = sorted(min(width_and_height) for width_and_height in train_sizes)
        side = min(MAX_SIDE, short_sides[len(short_sides) // 2])
        size = (side, side)
    pixels = {}
    for split in SPLITS:
        pixels[split] = np.stack(
            _each(folder, _files_of(tree, split), lambda path: _decode_file(path, size))
        )
    channels = 1 if all(_is_grey(images) for images in pixels.values()) else 3
    arrays = {"class_names": np.array(list(tree["train"]))}
    for split in SPLITS:
        counts = [len(files) for files in tree[split].values()]
        arrays[f"{split}_images"] = pixels[split][:, :channels]
        arrays[f"{split}_labels"] = np.repeat(np.arange(len(counts)), counts)
    return arrays


def _is_grey(images: np.ndarray) -> bool:
    """Whether red = green = blue everywhere in (N, 3, H, W)."""
    red, green, blue = np.moveaxis(images, 1, 0)
    return np.array_equal(red, green) and np.array_equal(red, blue)


def _size(path: Path) -> tuple[int, int]:
    """(width, height), from the header."""
    with Image.open(path, formats=_FORMATS) as image:
        width, height = image.size
        if image.getexif().get(_EXIF_ORIENTATION) in _SIDES_SWAPPED:
            return height, width
        return width, height


def _decode_file(path: Path, size: tuple[int, int]) -> np.ndarray:
    """(3, height, width) uint8."""
    with Image.open(path, formats=_FORMATS) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError("more than 8 bits a pixel; save it with 8")
        ImageOps.exif_transpose(image, in_place=True)
        if image.has_transparency_data:
            layer = image.convert("RGBA")
            white = Image.new("RGBA", layer.size, "white")
            image = Image.alpha_composite(white, layer)
        rgb = image.convert("RGB")
        if rgb.size != size:
            rgb = ImageOps.fit(rgb, size, Image.Resampling.BILINEAR)
        return np.moveaxis(np.asarray(rgb), 2, 0)


def cache_file(resolved: str) -> Path:
    """Where the decoded images of a folder lie."""
    return paths.data() / "cache" / f"{resolved.removeprefix('folder:').replace('@', '-')}.npz"


def is_intact(cache: Path) -> bool:
    """Whether a cache is there and whole: every part of an .npz file has a checksum."""
    try:
        with zipfile.ZipFile(cache) as stored:
            return stored.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _read_cache(resolved: str, split: str) -> Dataset:
    cache = cache_file(resolved)
    if not is_intact(cache):
        raise DataError(
            f"the images of {resolved} are missing or damaged in {cache.parent}; "
            "run `nclib data fetch folder:PATH` with the folder they were made from"
        )
    with np.load(cache, allow_pickle=False) as stored:
        images = torch.from_numpy(stored[f"{split}_images"])
        labels = torch.from_numpy(stored[f"{split}_labels"])
        return Dataset(images, labels, tuple(stored["class_names"].tolist()), resolved)


# --- The images of one run ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Split:
    """The images of one run.

    Parameters
    ----------
    train_images, train_labels : (N, C, H, W) uint8 and (N,) int64, the subset that the run trains
        on
    test_images, test_labels : the same for testing
    counts : (K,) int64, training images by class id
    minority : (K,) bool. "step": the classes outside the K_A majority ones (also at R = 1, where
        they are as large); "exponential": classes with fewer images than the median count;
        "balanced": none
    class_names : K names
    train_indices, test_indices : int64, ascending, into the data set's own splits; saved with the
        run
    mean, std : C floats on the scale 0 … 1, over *all* training images of the data set, so that
        runs of every imbalance and seed see equally scaled images. A constant channel has std 1/255
    augment : what `Batches.shuffled` does to the images
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


def make_split(config: DataConfig, seed: int) -> Split:
    """Draw the images of one run.

    Class k keeps n_k images, as `nclib.imbalance` counts them, drawn without replacement from a
    generator of its own. With one seed a smaller n_k keeps a subset of a larger one.

    Parameters
    ----------
    config : which data set, how many images, which classes are many. Without n_max the largest
        classes get as many images as the smallest class of the data set has. Without test_per_class
        all test images are used.
    seed : of the subset, the test subset and, for majority="random", the choice of classes, unless
        the configuration has a subset_seed.

    Raises
    ------
    ValueError
        More images asked for than there are, or an impossible imbalance, with the numbers.
    DataError
        The data set cannot be had.
    """
    train = load_dataset(config.dataset, "train")
    test = load_dataset(config.dataset, "test")
    num_classes = len(train.class_names)
    if config.subset_seed is not None:
        seed = config.subset_seed
    n_max = config.n_max if config.n_max is not None else int(train.counts.min())
    counts, minority = _class_sizes(config, num_classes, n_max, seed)
    train_indices = imbalance.subsample_indices(train.labels, counts, seed)
    test_indices = torch.arange(len(test.labels))
    if config.test_per_class is not None:
        test_indices = imbalance.subsample_indices(
            test.labels, [config.test_per_class] * num_classes, seed
        )
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
        augment=train.augment if config.augment == "dataset" else "none",
    )


def _class_sizes(
    config: DataConfig, num_classes: int, n_max: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Images of each class by class id (K,), and which classes are minority (K,)."""
    if config.imbalance == "balanced":
        return torch.full((num_classes,), n_max), torch.zeros(num_classes, dtype=torch.bool)
    order = imbalance.class_order(num_classes, config.majority, seed)
    if config.imbalance == "step":
        sizes = imbalance.step_imbalance(num_classes, n_max, config.num_majority, config.ratio)
        minority = torch.ones(num_classes, dtype=torch.bool)
        minority[order[: config.num_majority]] = False
        return imbalance.assign_counts(sizes, order), minority
    sizes = imbalance.exponential_imbalance(num_classes, n_max, config.ratio)
    counts = imbalance.assign_counts(sizes, order)
    return counts, counts < counts.double().quantile(0.5)


def _channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel on the scale 0 … 1, exactly, from how often each of the 256 grey
    levels occurs."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means = []
    stds = []
    for channel in range(images.shape[1]):
        share = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        share /= share.sum()
        mean = share @ levels
        std = (share @ (levels - mean) ** 2).sqrt()
        means.append(float(mean))
        stds.append(max(float(std), 1 / 255))
    return tuple(means), tuple(stds)


# --- Batches --------------------------------------------------------------------------------------


class Batches:
    """Batches of an image set that lives on the device as uint8.

        x = (image / 255 − mean) / std

    Every image is seen once in a pass. The last batch is smaller when the number of images is not a
    multiple of the batch size; a last batch of one image, which BatchNorm cannot use, joins the one
    before it.

    Parameters
    ----------
    images : (N, C, H, W) uint8; moved to the device once.
    labels : (N,) integers.
    batch_size : images of a batch.
    mean, std : C floats on the scale 0 … 1, as in `Split`.
    augment : "none", or "flip_crop" for `shuffled`: each image is mirrored with probability ½ and
        shifted by up to 1/8 of each side (4 of 32 pixels), black coming in at the edge.
    device : where images and batches live.
    dtype : of x; the arithmetic is float32 at least.
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
        self.images = images.to(device)
        self.labels = labels.to(device, torch.long)
        self.batch_size = batch_size
        self.augment = augment
        self.dtype = dtype
        exact = torch.promote_types(dtype, torch.float32)
        mean = torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1)
        std = torch.tensor(std, dtype=torch.float64).view(-1, 1, 1)
        self._scale = (1 / (255 * std)).to(device, exact)
        self._shift = (-mean / std).to(device, exact)

    def __len__(self) -> int:
        """Batches in one pass."""
        return len(self._cuts())

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass in the order of the images, never augmented: x (B, C, H, W), y (B,)."""
        for start, stop in self._cuts():
            yield self._normalised(self.images[start:stop]), self.labels[start:stop]

    def shuffled(self, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One augmented pass in random order: x (B, C, H, W), y (B,), rows (B,) of the images.

        Order and augmentation follow from seed and epoch alone: not from earlier epochs, the batch
        size, the device or the global random state, which is not touched. A resumed run therefore
        goes on exactly.
        """
        state = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(state)
        device = self.images.device
        order = torch.randperm(len(self.images), generator=generator).to(device)
        moves = None
        if self.augment == "flip_crop":
            moves = self._draw_moves(generator).to(device)
        for start, stop in self._cuts():
            rows = order[start:stop]
            images = self.images[rows]
            if moves is not None:
                mirrored, down, right = moves[start:stop].unbind(1)
                images = _flip_and_shift(images, mirrored, down, right)
            yield self._normalised(images), self.labels[rows], rows

    def _cuts(self) -> list[tuple[int, int]]:
        total = len(self.images)
        starts = list(range(0, total, self.batch_size))
        if self.batch_size > 1 and len(starts) > 1 and total - starts[-1] == 1:
            starts.pop()
        return list(zip(starts, [*starts[1:], total], strict=True))

    def _draw_moves(self, generator: torch.Generator) -> Tensor:
        """(N, 3): mirrored (0 or 1), shift down, shift right; drawn on the CPU, so alike for every
        device."""
        draws = [torch.randint(0, 2, (len(self.images),), generator=generator)]
        for side in self.images.shape[2:]:
            most = max(1, round(side / 8))
            draws.append(torch.randint(-most, most + 1, (len(self.images),), generator=generator))
        return torch.stack(draws, dim=1)

    def _normalised(self, images: Tensor) -> Tensor:
        return torch.addcmul(self._shift, images.to(self._scale.dtype), self._scale).to(self.dtype)


def _flip_and_shift(images: Tensor, mirrored: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Mirror left-right, then shift, each image by its own numbers; what comes in from outside is
    0."""
    batch, channels, height, width = images.shape
    # The row and the column that each pixel is taken from, (B, H) and (B, W).
    y = torch.arange(height, device=images.device) - down[:, None]
    x = torch.arange(width, device=images.device) - right[:, None]
    row_inside = (y >= 0) & (y < height)
    column_inside = (x >= 0) & (x < width)
    inside = row_inside[:, :, None] & column_inside[:, None, :]  # (B, H, W)
    x = torch.where(mirrored.bool()[:, None], width - 1 - x, x)
    row = y.clamp(0, height - 1)
    column = x.clamp(0, width - 1)
    source = row[:, :, None] * width + column[:, None, :]  # (B, H, W)
    index = source.view(batch, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view_as(images) * inside[:, None]
