"""The embedded data sets, made of scikit-learn's digits: alone, in pairs and in scenes."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nclib.data.base import SPLITS, Dataset

_TEST_DIGITS = 40  # images a class
_PAIRS = {"train": 100, "test": 20}  # images a class; 100 so that R = 100 leaves one


def _stream(*numbers: int) -> np.random.RandomState:
    """Random numbers that define a data set: of NumPy's generators only this one promises never to change."""
    return np.random.RandomState(list(numbers))


def _digits(split: str) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    images = np.round(grey.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
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


EMBEDDED = {
    "digits": (_digits, "0123456789"),
    "digit_pairs": (_digit_pairs, [f"{k:02d}" for k in range(100)]),
    "digit_scenes": (_digit_scenes, [str(k) for k in _SCENE_DIGITS]),
}


def embedded(name: str, split: str) -> Dataset:
    make, class_names = EMBEDDED[name]
    images, labels, *_ = make(split)
    return Dataset(images, labels, tuple(class_names), name)
