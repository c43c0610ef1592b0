"""What is accepted as features, labels, logits, classifier rows and classes; everything else is refused."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Weighting = Literal["class", "sample", "mixed"]
Array = Tensor | np.ndarray
Classes = Array | Sequence[int] | Sequence[bool]


def as_tensor(x: Array) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach()
    if np.ma.is_masked(x):
        raise ValueError("some values are masked; leave out their rows")
    x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise ValueError(f"give a tensor or an array of numbers, not one of {x.dtype}")
    return torch.from_numpy(np.require(x, requirements="CW"))  # copies what torch could not share


def check_weighting(weighting: Weighting) -> Weighting:
    if weighting not in ("class", "sample", "mixed"):
        raise ValueError(f"weighting must be 'class', 'sample' or 'mixed', got {weighting!r}; see ClassMoments")
    return weighting


def check_finite(x: Tensor, name: str) -> None:
    if math.isfinite(x.sum()):  # shows any NaN or infinity, and needs no second array of the size of x
        return
    bad = (~torch.isfinite(x)).any(1).nonzero().flatten()
    if len(bad):  # none: the sum of finite numbers overflowed
        raise ValueError(f"{name} has NaN or infinite values in {len(bad)} of {len(x)} rows, the first is row {bad[0]}")


def check_features(h: Array, dim: int) -> Tensor:
    h = as_tensor(h)
    if h.ndim != 2 or h.shape[1] != dim or not h.is_floating_point():
        raise ValueError(f"h must be floating-point features of shape (N, {dim}), got {h.dtype} {tuple(h.shape)}")
    check_finite(h, "h")
    return h


def check_batch(h: Array, labels: Array, num_classes: int, dim: int) -> tuple[Tensor, Tensor]:
    h, labels = check_features(h, dim), as_tensor(labels)
    if labels.shape != h.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers of shape ({len(h)},), got {labels.dtype} {tuple(labels.shape)}")
    labels = labels.long()
    low, high = torch.stack(labels.aminmax()).tolist() if len(labels) else (0, 0)  # one wait for a device
    if low < 0 or high >= num_classes:
        raise ValueError(f"labels must lie in 0 … {num_classes - 1}, got {low} … {high}")
    return h, labels


def check_logits(logits: Array, num_samples: int, num_classes: int) -> Tensor:
    logits = as_tensor(logits)
    if logits.shape != (num_samples, num_classes):
        raise ValueError(f"logits must have shape ({num_samples}, {num_classes}), got {tuple(logits.shape)}")
    check_finite(logits, "logits")
    return logits


def scaled_rows(v: Array, name: str) -> Tensor:
    """(K, d) float64 vectors of which only directions and relative norms matter, so that they come times a power of
    two, the largest entry between 1/2 and 1: no square over- or underflows, and no digit changes."""
    v = as_tensor(v)
    if v.ndim != 2 or 0 in v.shape:
        raise ValueError(f"{name} must have shape (K, d) with K, d ≥ 1, got {tuple(v.shape)}")
    check_finite(v, name)
    v = v.double()
    return v * math.ldexp(1.0, min(-math.frexp(torch.linalg.vector_norm(v, ord=math.inf))[1], 1023))


def class_mask(classes: Classes, num_classes: int) -> Tensor:
    """(K,) bool from a mask or from class ids."""
    classes = as_tensor(classes)
    if classes.dtype == torch.bool and classes.shape == (num_classes,):
        return classes
    ids = classes.flatten().tolist()
    if classes.dtype == torch.bool or len(set(ids)) < len(ids) or not all(0 <= k < num_classes for k in ids):
        raise ValueError(f"give a ({num_classes},) mask or different class ids in 0 … {num_classes - 1}, got {ids}")
    return torch.zeros(num_classes, dtype=torch.bool).index_fill(0, classes.long(), True)
