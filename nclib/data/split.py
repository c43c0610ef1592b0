"""The images of one run, drawn by its options and seed, and batches of them on the device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nclib import imbalance
from nclib.config import DataConfig
from nclib.data.base import Augment
from nclib.data.sets import load_dataset


@dataclass(frozen=True, eq=False)
class Split:
    """The images of one run.

    Parameters
    ----------
    train_images, train_labels : (N, C, H, W) uint8 and (N,) int64, the subset that the run trains on
    test_images, test_labels : the same for testing
    counts : (K,) int64, training images by class id
    minority : (K,) bool. "step": the classes outside the K_A majority ones (also at R = 1, where they are as large);
        "exponential": classes with fewer images than the median count; "balanced": none
    class_names : K names
    train_indices, test_indices : int64, ascending, into the data set's own splits; saved with the run
    mean, std : C floats on the scale 0 … 1, over *all* training images of the data set, so that runs of every imbalance
        and seed see equally scaled images. A constant channel has std 1/255
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


def make_split(cfg: DataConfig, seed: int) -> Split:
    """Draw the images of one run.

    Class k keeps n_k images, as `nclib.imbalance` counts them, drawn without replacement from a generator of
    its own. With one seed a smaller n_k keeps a subset of a larger one.

    Parameters
    ----------
    cfg : which data set, how many images, which classes are many. Without n_max the largest classes get as many images
        as the smallest class of the data set has. Without test_per_class all test images are used.
    seed : of the subset, the test subset and, for majority="random", the choice of classes, unless the configuration
        has a subset_seed.

    Raises
    ------
    ValueError
        More images asked for than there are, or an impossible imbalance, with the numbers.
    DataError
        The data set cannot be had.
    """
    train, test = load_dataset(cfg.dataset, "train"), load_dataset(cfg.dataset, "test")
    num_classes = len(train.class_names)
    n_max = cfg.n_max if cfg.n_max is not None else int(train.counts.min())
    seed = seed if cfg.subset_seed is None else cfg.subset_seed
    counts, minority = _counts(cfg, num_classes, n_max, seed)
    train_indices = imbalance.subsample_indices(train.labels, counts, seed)
    test_indices = torch.arange(len(test.labels))
    if cfg.test_per_class is not None:
        test_indices = imbalance.subsample_indices(test.labels, [cfg.test_per_class] * num_classes, seed)
    drawn = ((train, train_indices), (test, test_indices))
    rows = [part[indices] for dataset, indices in drawn for part in (dataset.images, dataset.labels)]
    scale, augment = _channel_moments(train.images), train.augment if cfg.augment == "dataset" else "none"
    return Split(*rows, counts, minority, train.class_names, train_indices, test_indices, *scale, augment)


def _counts(cfg: DataConfig, num_classes: int, n_max: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of each class by class id (K,), and which classes are minority (K,)."""
    if cfg.imbalance == "balanced":
        return torch.full((num_classes,), n_max), torch.zeros(num_classes, dtype=torch.bool)
    order = imbalance.class_order(num_classes, cfg.majority, seed)
    if cfg.imbalance == "step":
        sizes = imbalance.step_imbalance(num_classes, n_max, cfg.num_majority, cfg.ratio)
        minority = torch.ones(num_classes, dtype=torch.bool).index_fill(0, order[: cfg.num_majority], False)
        return imbalance.assign_counts(sizes, order), minority
    counts = imbalance.assign_counts(imbalance.exponential_imbalance(num_classes, n_max, cfg.ratio), order)
    return counts, counts < counts.double().quantile(0.5)


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

    Every image is seen once in a pass. The last batch is smaller when the number of images is not a multiple of
    the batch size; a last batch of one image, which BatchNorm cannot use, joins the one before it.

    Parameters
    ----------
    images : (N, C, H, W) uint8; moved to the device once.
    labels : (N,) integers.
    batch_size : images of a batch.
    mean, std : C floats on the scale 0 … 1, as in `Split`.
    augment : "none", or "flip_crop" for `shuffled`: each image is mirrored with probability ½ and shifted by up to 1/8
        of each side (4 of 32 pixels), black coming in at the edge.
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
        device = self.images.device
        order = torch.randperm(len(self.images), generator=generator).to(device)
        moves = self._draw_moves(generator).to(device) if self.augment == "flip_crop" else None
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
    return images.flatten(2).gather(2, index).view_as(images) * inside[:, None]
