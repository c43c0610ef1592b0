"""The right answer to each exercise of the course, the cases it is tried on, and usual mistakes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.linalg import matrix_norm
from torch.nn.functional import normalize

from nclib import imbalance


@dataclass(frozen=True)
class Exercise:
    """A function that the reader writes.

    Parameters
    ----------
    reference : the right one
    cases : arguments to try
    mistakes : hint -> the function of someone who makes this mistake; an answer that agrees with it
        in every case gets the hint. Its NaN agrees with every answer
    atol : how near an answer must be
    """

    reference: Callable[..., Any]
    cases: tuple[tuple[Any, ...], ...]
    mistakes: Mapping[str, Callable[..., Any]]
    atol: float = 1e-8


EXERCISES: dict[str, Exercise] = {}
"""Every exercise of the course by its name, "notebook/exercise"."""


def _normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


# --- 01: scalar fixed points ----------------------------------------------------------------------


def _exact_steps(rho: float, start: float, tol: float) -> float:
    """Before it is rounded; NaN where no step is needed, which not every mistake has thought of."""
    if tol >= start:
        return math.nan
    return math.log(tol / start) / math.log(rho)


EXERCISES["01/steps"] = Exercise(
    lambda rho, start, tol: np.fmax(0, np.ceil(_exact_steps(rho, start, tol))),
    cases=((0.5, 1.0, 1e-3), (0.5, 1.0, 0.25), (0.97, 0.3, 1e-2), (0.5, 1e-4, 1e-3)),
    mistakes={
        "You rounded down: the last step is needed, too.": (
            lambda rho, start, tol: np.floor(_exact_steps(rho, start, tol))
        ),
        "Round up to a whole number of steps.": _exact_steps,
        "Round up: a whole number stays, as tol is small enough.": (
            lambda rho, start, tol: np.floor(_exact_steps(rho, start, tol)) + 1
        ),
        "Never below zero.": (
            lambda rho, start, tol: math.ceil(math.log(tol / start) / math.log(rho))
        ),
    },
)


def _step_length(low: float, high: float) -> float:
    if low + high >= 0:
        return math.nan  # 2 / (2 − low − high) is 1 or more, and some clip it
    return 2 / (2 - low - high)


EXERCISES["01/damping"] = Exercise(
    lambda low, high: max(0.0, 1 - 2 / (2 - low - high)),
    cases=((-1.3, -1.3), (-4.0, 0.5), (-1.0, 0.2), (0.2, 0.8)),
    mistakes={
        "That is 1 − damping, the length of the step.": _step_length,
        "Damping cannot be negative: 0 is the least allowed.": (
            lambda low, high: 1 - 2 / (2 - low - high)
        ),
    },
    atol=0.01,  # a search over a grid is an answer too
)


# --- 02: Anderson and Broyden ---------------------------------------------------------------------


def _anderson_weight(r_old: Tensor, r_new: Tensor) -> Tensor:
    change = r_new - r_old
    return (r_new @ change) / (change @ change)


EXERCISES["02/weight"] = Exercise(
    _anderson_weight,
    cases=tuple((_normal(n, seed=n), _normal(n, seed=n + 10)) for n in (1, 3, 8)),
    mistakes={
        "The sign is wrong: make r_new − γ·(r_new − r_old) small.": (
            lambda r_old, r_new: -_anderson_weight(r_old, r_new)
        )
    },
)


def _broyden_case(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """An inverse near −I, a step and a change."""
    inverse = -torch.eye(n).double() + 0.1 * _normal(n, n)
    return inverse, _normal(n, seed=1), _normal(n, seed=2)


def _broyden_update(inverse: Tensor, step: Tensor, change: Tensor) -> Tensor:
    row = step @ inverse
    return inverse + torch.outer(step - inverse @ change, row) / (row @ change)


def _bad_broyden_update(inverse: Tensor, step: Tensor, change: Tensor) -> Tensor:
    return inverse + torch.outer(step - inverse @ change, change) / (change @ change)


EXERCISES["02/broyden"] = Exercise(
    _broyden_update,
    cases=tuple(_broyden_case(n) for n in (1, 2, 4)),
    mistakes={
        "That is Broyden's *bad* method: it also maps the change to the step, but changes the "
        "inverse least, not the Jacobian.": _bad_broyden_update
    },
)


# --- 03: the implicit gradient --------------------------------------------------------------------


EXERCISES["03/scalar"] = Exercise(
    lambda z, a: -z * math.sin(a * z) / (1 + a * math.sin(a * z)),
    cases=tuple(
        (z, sign * math.acos(z) / z) for z, sign in ((0.7390851332, 1), (0.9, 1), (0.96, -1))
    ),
    mistakes={
        "That is ∂f/∂a alone: z depends on a as well, so divide by 1 − ∂f/∂z.": (
            lambda z, a: -z * math.sin(a * z)
        )
    },
    atol=1e-4,  # finite differences are an answer too
)


def _neumann_terms(jacobian: Tensor, g: Tensor, terms: int) -> Tensor:
    """g, Jᵀg, (Jᵀ)²g, … in rows."""
    rows = [g]
    for _ in range(terms - 1):
        rows.append(jacobian.T @ rows[-1])
    return torch.stack(rows)


EXERCISES["03/neumann"] = Exercise(
    lambda jacobian, g, terms: _neumann_terms(jacobian, g, terms).sum(0),
    cases=tuple(
        (0.3 * _normal(n, n, seed=n), _normal(n), terms) for n, terms in ((3, 1), (3, 2), (5, 6))
    ),
    mistakes={
        "Take the transposed Jacobian: gradients travel backwards.": (
            lambda jacobian, g, terms: _neumann_terms(jacobian.T, g, terms).sum(0)
        ),
        "That is one term too many: g itself is the first.": (
            lambda jacobian, g, terms: _neumann_terms(jacobian, g, terms + 1).sum(0)
        ),
        "That is the last term alone: sum all of them.": (
            lambda jacobian, g, terms: _neumann_terms(jacobian, g, terms)[-1]
        ),
    },
)


# --- 04: an equilibrium layer ---------------------------------------------------------------------


def _row_norms(z: Tensor) -> Tensor:
    return z.flatten(1).norm(dim=1)


EXERCISES["04/residual"] = Exercise(
    lambda z, fz: _row_norms(fz - z) / _row_norms(fz),
    cases=tuple(
        (_normal(*shape), _normal(*shape, seed=1)) for shape in ((3, 4), (2, 3, 2), (1, 5))
    ),
    mistakes={
        "One number for each row is wanted, not one for the batch.": (
            lambda z, fz: (fz - z).norm() / fz.norm()
        ),
        "Divide by the norm of f(z), so that its scale does not matter.": (
            lambda z, fz: _row_norms(fz - z)
        ),
        "Divide by the norm of f(z), not of z.": (lambda z, fz: _row_norms(fz - z) / _row_norms(z)),
    },
)


def _scaled(weight: Tensor, radius: float, norm: Tensor) -> Tensor:
    """The matrix times radius/norm where its norm is larger than radius."""
    return weight * min(1.0, radius / float(norm))


def _cut_singular_values(weight: Tensor, radius: float) -> Tensor:
    u, s, v = torch.linalg.svd(weight)
    return u * s.clamp(max=radius) @ v


EXERCISES["04/contractive"] = Exercise(
    lambda weight, radius: _scaled(weight, radius, matrix_norm(weight, 2)),
    cases=tuple(
        (scale * _normal(n, n, seed=n).abs(), 0.9) for n, scale in ((2, 2.0), (4, 1.0), (6, 0.01))
    ),
    mistakes={
        "A matrix that is small enough already is to stay as it is.": (
            lambda weight, radius: weight * radius / matrix_norm(weight, 2)
        ),
        "That is the Frobenius norm, which is larger than needed: the largest singular value "
        "decides.": lambda weight, radius: _scaled(weight, radius, weight.norm()),
        "That is the largest eigenvalue: it promises convergence in the end, not that every step "
        "contracts.": (
            lambda weight, radius: _scaled(weight, radius, torch.linalg.eigvals(weight).abs().max())
        ),
        "Small entries do not make small singular values: multiply the whole matrix by one "
        "number.": lambda weight, radius: weight.clamp_max(radius),
        "That cuts singular values, which contracts too, but the ratios change: multiply the "
        "matrix by one number.": _cut_singular_values,
    },
)


# --- 05: neural collapse --------------------------------------------------------------------------


def _centring(num_classes: int) -> Tensor:
    """I − 11ᵀ/K."""
    return torch.eye(num_classes).double() - 1 / num_classes


EXERCISES["05/cosines"] = Exercise(
    lambda num_classes: num_classes / (num_classes - 1) * _centring(num_classes),
    cases=((2,), (3,), (10,)),
    mistakes={
        "Vectors at right angles do not sum to zero: they can be pushed further apart.": torch.eye,
        "The diagonal holds cosines of vectors with themselves, 1: scale the matrix.": _centring,
    },
)


def _features(counts: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Features (N, 4) of classes of these sizes, and labels."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    means = _normal(len(counts), 4, seed=seed)
    return means[labels] + _normal(len(labels), 4, seed=seed + 1), labels


def _class_means(h: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([h[labels == k].mean(0) for k in labels.unique()])


def _variance_around(h: Tensor, centre: Tensor) -> Tensor:
    return (h - centre).square().sum(1).mean()


def _trace_ratio(h: Tensor, labels: Tensor) -> Tensor:
    means = _class_means(h, labels)
    return _variance_around(h, means[labels]) / _variance_around(means, means.mean(0))


def _mean_of_class_variances(h: Tensor, labels: Tensor) -> Tensor:
    means = _class_means(h, labels)
    within = [_variance_around(h[labels == k], means[k]) for k in labels.unique()]
    return torch.stack(within).mean() / _variance_around(means, means.mean(0))


def _within_around_the_global_mean(h: Tensor, labels: Tensor) -> Tensor:
    means = _class_means(h, labels)
    return _variance_around(h, h.mean(0)) / _variance_around(means, means.mean(0))


def _between_around_the_mean_of_samples(h: Tensor, labels: Tensor) -> Tensor:
    means = _class_means(h, labels)
    return _variance_around(h, means[labels]) / _variance_around(means, h.mean(0))


EXERCISES["05/nc1"] = Exercise(
    _trace_ratio,
    cases=(_features((5, 5, 5), 0), _features((9, 3, 2, 2), 2)),
    mistakes={
        "That is between over within: the ratio is upside down.": (
            lambda h, labels: 1 / _trace_ratio(h, labels)
        ),
        "Σ_W is a mean over all samples, not over the variances of the classes.": (
            _mean_of_class_variances
        ),
        "That is the variance around the *global* mean: each sample is compared with the mean of "
        "its own class.": _within_around_the_global_mean,
        "μ is the mean of the class means, in which all classes count alike, not the mean of the "
        "samples.": _between_around_the_mean_of_samples,
    },
)


# --- 06: collapse in training ---------------------------------------------------------------------


def _centred(means: Tensor) -> Tensor:
    return means - means.mean(0)


def _distance_to_etf(rows: Tensor) -> Tensor:
    """‖G/‖G‖ − (I − 11ᵀ/K)/√(K−1)‖ of the Gram matrix G of these rows."""
    gram = rows @ rows.T
    num_classes = len(rows)
    return (gram / gram.norm() - _centring(num_classes) / math.sqrt(num_classes - 1)).norm()


def _unscaled_distance_to_etf(means: Tensor) -> Tensor:
    rows = _centred(means)
    num_classes = len(rows)
    return (rows @ rows.T - _centring(num_classes) / math.sqrt(num_classes - 1)).norm()


EXERCISES["06/etf_distance"] = Exercise(
    lambda means: _distance_to_etf(_centred(means)),
    cases=tuple((1.0 + _normal(k, d, seed=k),) for k, d in ((3, 5), (4, 4), (10, 16))),
    mistakes={
        "Centre first: the simplex ETF is a statement about the class means minus their mean.": (
            _distance_to_etf
        ),
        "Divide the means' own Gram matrix by its norm too, or the distance depends on the scale "
        "of the features.": _unscaled_distance_to_etf,
    },
)


def _mismatch_case(counts: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels, and the logits of a classifier that has learnt something."""
    h, labels = _features(counts, seed)
    noise = _normal(len(counts), h.shape[1], seed=seed + 2)
    return h, labels, h @ (_class_means(h, labels) + noise).T


def _nearest_mean(h: Tensor, labels: Tensor) -> Tensor:
    return torch.cdist(h, _class_means(h, labels)).argmin(1)


def _mismatch(h: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    return (_nearest_mean(h, labels) != logits.argmax(1)).double().mean()


EXERCISES["06/mismatch"] = Exercise(
    _mismatch,
    cases=(_mismatch_case((6, 6, 6), 0), _mismatch_case((20, 9, 5, 4), 5)),
    mistakes={
        "That is the share on which the two agree; 0 is to mean collapse.": (
            lambda h, labels, logits: 1 - _mismatch(h, labels, logits)
        ),
        "NC4 compares the nearest mean with the network's decision, right or wrong, not with the "
        "true class.": (
            lambda h, labels, logits: (_nearest_mean(h, labels) != labels).double().mean()
        ),
    },
)


# --- 07: imbalance --------------------------------------------------------------------------------


def _counts_cut_off(num_classes: int, n_max: int, num_majority: int, ratio: float) -> Tensor:
    counts = imbalance.step_imbalance(num_classes, n_max, num_majority, ratio)
    counts[num_majority:] = max(1, int(n_max / ratio))
    return counts


def _counts_down_to_zero(num_classes: int, n_max: int, num_majority: int, ratio: float) -> Tensor:
    counts = imbalance.step_imbalance(num_classes, n_max, num_majority, ratio)
    counts[num_majority:] = math.floor(n_max / ratio + 0.5)
    return counts


EXERCISES["07/counts"] = Exercise(
    imbalance.step_imbalance,
    cases=((10, 140, 5, 10.0), (10, 134, 3, 50.0), (4, 25, 2, 10.0), (6, 30, 4, 100.0)),
    mistakes={
        "You cut the decimals off, as most generators do; then the real R is larger than the one "
        "asked for. Round.": _counts_cut_off,
        "A class needs at least one image.": _counts_down_to_zero,
    },
)


def _cosine_case(num_classes: int, rare: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features and labels with `rare` classes of two samples, and which classes these are."""
    counts = (30,) * (num_classes - rare) + (2,) * rare
    h, labels = _features(counts, seed=num_classes)
    return h, labels, torch.arange(num_classes) >= num_classes - rare


def _mean_cosine(vectors: Tensor) -> Tensor:
    unit = normalize(vectors)
    off_diagonal = ~torch.eye(len(unit)).bool()
    return (unit @ unit.T)[off_diagonal].mean()


EXERCISES["07/cosine"] = Exercise(
    lambda h, labels, minority: _mean_cosine(_centred(_class_means(h, labels))[minority]),
    cases=(_cosine_case(5, 3), _cosine_case(6, 2), _cosine_case(8, 5)),
    mistakes={
        "You centred at the mean of all samples, which lies among the majority: seen from there, "
        "all minority classes lie on one side. Centre at the mean of the class means.": (
            lambda h, labels, minority: _mean_cosine(
                (_class_means(h, labels) - h.mean(0))[minority]
            )
        ),
        "Centre first: a mean that all classes share makes every cosine look large.": (
            lambda h, labels, minority: _mean_cosine(_class_means(h, labels)[minority])
        ),
    },
)


# --- 08: reading a table --------------------------------------------------------------------------


def _interval_case(n: int, t: float) -> tuple[np.ndarray, np.ndarray, float]:
    explicit = 90 + 2 * _normal(n, seed=n).numpy()
    deq = explicit + 0.5 + 0.3 * _normal(n, seed=n + 1).numpy()
    return deq, explicit, t


def _paired_interval(deq: np.ndarray, explicit: np.ndarray, t: float) -> tuple[float, float]:
    difference = deq - explicit
    return difference.mean(), t * difference.std(ddof=1) / math.sqrt(len(difference))


def _interval_of_n(deq: np.ndarray, explicit: np.ndarray, t: float) -> tuple[float, float]:
    difference = deq - explicit
    return difference.mean(), t * difference.std() / math.sqrt(len(difference))


def _unpaired_interval(deq: np.ndarray, explicit: np.ndarray, t: float) -> tuple[float, float]:
    variance = deq.var(ddof=1) + explicit.var(ddof=1)
    return (deq - explicit).mean(), t * math.sqrt(variance / len(deq))


EXERCISES["08/interval"] = Exercise(
    _paired_interval,
    cases=(_interval_case(3, 4.302653), _interval_case(5, 2.776445), _interval_case(10, 2.262157)),
    mistakes={
        "You treated the two columns as unrelated. The runs of one seed share images, initial "
        "weights and order: take the differences first, then their standard deviation.": (
            _unpaired_interval
        ),
        "Divide by n − 1 in the standard deviation (`ddof=1`): the mean was estimated from the "
        "same values.": _interval_of_n,
    },
)


def _verdict(mean: float, half: float, claim: int) -> int:
    if abs(mean) <= half:
        return 0
    return 1 if mean * claim > 0 else -1


EXERCISES["08/verdict"] = Exercise(
    _verdict,
    cases=(
        (0.5, 0.2, 1),
        (0.5, 0.2, -1),
        (-0.5, 0.2, -1),
        (-0.5, 0.2, 1),
        (0.1, 0.2, 1),
        (-0.1, 0.2, 1),
        (-0.1, 0.2, -1),
        (0.2, 0.2, 1),
        (-0.2, 0.2, 1),
    ),
    mistakes={
        "The ends belong to the interval: one that touches 0 holds it.": (
            lambda mean, half, claim: 0 if abs(mean) < half else _verdict(mean, 0, claim)
        ),
        "An interval that holds 0 says neither yes nor no, whatever its middle is.": (
            lambda mean, half, claim: _verdict(mean, 0, claim)
        ),
        "The claim has a direction: a difference below 0 supports “lower”.": (
            lambda mean, half, claim: _verdict(mean, half, 1)
        ),
    },
)


# --- 09: measuring one's own network --------------------------------------------------------------


EXERCISES["09/chance"] = Exercise(
    lambda num_images, num_classes, dim: (num_images - num_classes) / (num_classes - 1),
    cases=((480, 8, 32), (480, 8, 512), (60, 3, 8)),
    mistakes={
        "The dimension cancels: each of them adds the same to both traces.": (
            lambda num_images, num_classes, dim: (
                (num_images - num_classes) / (num_classes - 1) / dim
            )
        ),
        "The class mean follows its own images, so the variance around it is σ²(1 − K/N), not "
        "σ².": lambda num_images, num_classes, dim: num_images / (num_classes - 1),
    },
)
