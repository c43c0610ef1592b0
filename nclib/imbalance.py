"""How many images each class keeps, and which ones.

Two questions are kept apart: *how many* (``step_imbalance``, ``exponential_imbalance``: counts
listed from the largest class to the smallest) and *which class is which* (``class_order``,
``assign_counts``). ``subsample_indices`` then draws the images. Every random choice has its own
generator: no global random state is read or written.

>>> counts = step_imbalance(10, 5000, num_majority=3, ratio=100)
>>> counts = assign_counts(counts, class_order(10, how="random", seed=0))
>>> labels = torch.arange(10).repeat_interleave(5000)
>>> len(subsample_indices(labels, counts, seed=0)) == int(sum(counts))
True
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Order = Literal["first", "random"]


def step_imbalance(num_classes: int, n_max: int, num_majority: int, ratio: float) -> Tensor:
    """Counts of a step: majority classes keep n_max images, all others n_max / ratio.

        n_k = n_max for k < K_A,   n_k = max(1, round(n_max / R)) for k ≥ K_A

    Halves are rounded up.

    Source: Sun & Shi 2024, section 5; Fang et al. 2021 (R is their n_A / n_B).

    Parameters
    ----------
    num_classes : K ≥ 2.
    n_max : images of a majority class (n_A), ≥ 1.
    num_majority : K_A, the real number of majority classes (30 of 100, not "3"), 1 ≤ K_A ≤ K − 1.
    ratio : R = n_A / n_B, finite and ≥ 1; need not be an integer.

    Returns
    -------
    (K,) int64, the K_A majority counts first. Every count is at least 1, so where n_max < R the
    real ratio is n_max.

    Raises
    ------
    ValueError
        A number outside its range.

    Examples
    --------
    >>> step_imbalance(4, 130, num_majority=2, ratio=10).tolist()
    [130, 130, 13, 13]
    """
    _check_sizes(num_classes, n_max, ratio)
    if not 1 <= num_majority <= num_classes - 1:
        raise ValueError(
            f"give num_majority (K_A) from 1 to {num_classes - 1} of {num_classes} classes, "
            f"got {num_majority!r}"
        )
    majority = [n_max] * num_majority
    minority = [_round_count(n_max / ratio)] * (num_classes - num_majority)
    return torch.tensor(majority + minority)


def exponential_imbalance(num_classes: int, n_max: int, ratio: float) -> Tensor:
    """Counts of a long tail that falls by the same factor from each class to the next.

        n_k = max(1, round(n_max · R^(−k / (K−1)))),   k = 0 … K−1   (halves are rounded up)

    Source: the long-tailed CIFAR of Cui et al. 2019, with rounding in place of truncation.

    Parameters
    ----------
    num_classes : K ≥ 2.
    n_max : images of the largest class, ≥ 1.
    ratio : R = n_0 / n_{K−1}, finite and ≥ 1.

    Returns
    -------
    (K,) int64, non-increasing, every count at least 1.

    Raises
    ------
    ValueError
        A number outside its range.

    Examples
    --------
    >>> exponential_imbalance(3, 400, ratio=16).tolist()
    [400, 100, 25]
    """
    _check_sizes(num_classes, n_max, ratio)
    sizes = [n_max * ratio ** (-k / (num_classes - 1)) for k in range(num_classes)]
    return torch.tensor([_round_count(size) for size in sizes])


def class_order(num_classes: int, how: Order = "first", seed: int = 0) -> Tensor:
    """Class ids from the one that gets the largest count to the one that gets the smallest.

    Parameters
    ----------
    num_classes : K ≥ 2.
    how : "first": 0, 1, …, K−1, as in the paper; "random": a permutation drawn from ``seed``.
    seed : used by "random" only.

    Returns
    -------
    (K,) int64, a permutation of the class ids.

    Raises
    ------
    ValueError
        For another ``how``.
    """
    if how not in ("first", "random"):
        raise ValueError(f"how={how!r}: allowed are 'first' and 'random'")
    if how == "first":
        return torch.arange(num_classes)
    return torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed))


def assign_counts(counts: Tensor | np.ndarray | Sequence[int], order: Tensor) -> Tensor:
    """Counts by class id: class ``order[i]`` gets ``counts[i]``.

    Parameters
    ----------
    counts : (K,) from the largest class to the smallest.
    order : (K,) a permutation of 0 … K−1, from ``class_order``.

    Returns
    -------
    (K,) int64; entry k is the count of class k.

    Raises
    ------
    ValueError
        The lengths differ, or ``order`` is not a permutation.
    """
    counts = torch.as_tensor(counts)
    order = torch.as_tensor(order)
    permutation = torch.equal(order.sort().values, torch.arange(len(order)))
    if counts.shape != order.shape or not permutation:
        raise ValueError(
            f"order must be a permutation of the {len(counts)} class ids, got {order.tolist()}"
        )
    return counts[order.argsort()]


def subsample_indices(
    labels: Tensor | np.ndarray | Sequence[int],
    counts: Tensor | np.ndarray | Sequence[int],
    seed: int,
) -> Tensor:
    """Indices of ``counts[k]`` samples of each class k, drawn without replacement.

    Each class is shuffled once and cut, so with one seed a smaller count keeps a subset of what a
    larger one keeps: runs at R = 10 and R = 100 share their majority images and nest their minority
    images.

    Parameters
    ----------
    labels : (N,) integers 0 … K−1.
    counts : (K,) samples wanted of each class, each at least 1.
    seed : of a generator of its own; the global random state is not touched.

    Returns
    -------
    (Σ counts,) int64, ascending.

    Raises
    ------
    ValueError
        a class has fewer samples than asked for, or a count is below 1.
    """
    labels = torch.as_tensor(labels).cpu()
    counts = torch.as_tensor(counts).cpu()
    available = torch.bincount(labels, minlength=len(counts))
    wrong = [k for k in range(len(counts)) if not 1 <= counts[k] <= available[k]]
    if wrong:
        asked = [f"{int(counts[k])} of {int(available[k])} in class {k}" for k in wrong[:5]]
        raise ValueError(
            f"cannot sample {', '.join(asked)}: lower n_max or test_per_class; "
            "each count must be at least 1"
        )
    generator = torch.Generator().manual_seed(seed)
    kept = []
    for k, count in enumerate(counts.tolist()):
        members = (labels == k).nonzero().flatten()
        kept.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return torch.cat(kept).sort().values


def sample_rows(labels: np.ndarray, per_class: int) -> np.ndarray:
    """Indices (M,) of the first `per_class` samples of each class, or all where it has fewer."""
    return np.concatenate([np.flatnonzero(labels == k)[:per_class] for k in np.unique(labels)])


def _check_sizes(num_classes: int, n_max: int, ratio: float) -> None:
    if num_classes < 2:
        raise ValueError(f"give at least 2 classes, got num_classes={num_classes!r}")
    if not n_max >= 1:
        raise ValueError(
            f"give n_max, the images of the largest class, of at least 1, got {n_max!r}"
        )
    if not (math.isfinite(ratio) and ratio >= 1):
        raise ValueError(
            "give ratio, the largest class over the smallest, as a finite number of at least 1, "
            f"got {ratio!r}"
        )


def _round_count(value: float) -> int:
    return max(1, math.floor(value + 0.5))
