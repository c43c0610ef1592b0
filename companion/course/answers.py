"""The right answer to each exercise of the course, the cases it is tried on, and the mistakes that are usual."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib import imbalance


@dataclass(frozen=True)
class Exercise:
    """A function that the reader writes.

    Parameters
    ----------
    reference : the right one.
    cases : arguments to try.
    mistakes : why -> the function that someone writes who makes it; an answer that agrees with it in every case is told
        why.
    """

    reference: Callable[..., Any]
    cases: tuple[tuple[Any, ...], ...]
    mistakes: Mapping[str, Callable[..., Any]]


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


EXERCISES: dict[str, Exercise] = {}
"""Every exercise of the course by its name, "notebook/exercise"."""


# ---- 01: scalar fixed points


def _steps_needed(rho: float, start: float, tol: float) -> int:
    return max(0, math.ceil(math.log(tol / start) / math.log(rho)))


EXERCISES["01/steps"] = Exercise(
    _steps_needed,
    ((0.5, 1.0, 1e-3), (0.9, 2.0, 1e-4), (0.97, 0.3, 1e-2), (0.5, 1e-4, 1e-3)),
    {
        "You rounded down: the last step is needed to get below the tolerance.": lambda rho, start, tol: max(
            0, math.floor(math.log(tol / start) / math.log(rho))
        ),
        "A whole number of steps is wanted: round up.": lambda rho, start, tol: max(
            0.0, math.log(tol / start) / math.log(rho)
        ),
        "The first error counts too: it is tol / start that has to be reached.": lambda rho, start, tol: math.ceil(
            math.log(tol) / math.log(rho)
        ),
        "Where the start is good enough already, no step is needed, not a negative number.": lambda rho, start, tol: (
            math.ceil(math.log(tol / start) / math.log(rho))
        ),
    },
)


def _best_damping(low: float, high: float) -> float:
    return max(0.0, 1 - 2 / (2 - low - high))


EXERCISES["01/damping"] = Exercise(
    _best_damping,
    ((-1.3, -1.3), (-4.0, 0.5), (-1.0, 0.2), (0.2, 0.8)),
    {
        "That is 1 − damping, the length of the step.": lambda low, high: min(1.0, 2 / (2 - low - high)),
        "Damping cannot be negative: where the slopes are positive on average, 0 is the best allowed.": (
            lambda low, high: 1 - 2 / (2 - low - high)
        ),
        "That makes the factor of the lowest slope 0 and forgets the highest: balance the two.": (
            lambda low, high: max(0.0, 1 - 1 / (1 - low))
        ),
    },
)


# ---- 02: Anderson and Broyden


def _anderson_weight(r_old: Tensor, r_new: Tensor) -> Tensor:
    change = r_new - r_old
    return (r_new @ change) / (change @ change)


EXERCISES["02/weight"] = Exercise(
    _anderson_weight,
    tuple((_normal(n, seed=n), _normal(n, seed=n + 10)) for n in (1, 3, 8)),
    {
        "The sign is the other way round: r_new − γ·(r_new − r_old) is to be small.": lambda r_old, r_new: (
            -_anderson_weight(r_old, r_new)
        ),
        "That is the weight for r_old − γ·(r_new − r_old): project the *new* residual.": lambda r_old, r_new: (
            r_old @ (r_new - r_old) / ((r_new - r_old) @ (r_new - r_old))
        ),
        "Divide by the squared length of r_new − r_old, not by its length.": lambda r_old, r_new: (
            r_new @ (r_new - r_old) / (r_new - r_old).norm()
        ),
    },
)


def _broyden_update(inverse: Tensor, step: Tensor, change: Tensor) -> Tensor:
    row = step @ inverse
    return inverse + torch.outer(step - inverse @ change, row) / (row @ change)


EXERCISES["02/broyden"] = Exercise(
    _broyden_update,
    tuple((-torch.eye(n).double() + 0.1 * _normal(n, n), _normal(n, seed=1), _normal(n, seed=2)) for n in (1, 2, 4)),
    {
        "That is Broyden's *bad* method, which also maps the change to the step but changes the inverse least, not the "
        "Jacobian.": lambda inverse, step, change: (
            inverse + torch.outer(step - inverse @ change, change) / (change @ change)
        ),
        "That updates the Jacobian itself; the same matrix is wanted as an update of its inverse.": (
            lambda inverse, step, change: inverse + torch.outer(change - inverse @ step, step) / (step @ step)
        ),
        "The row stands on the left: stepᵀ·inverse, not inverse·step.": lambda inverse, step, change: (
            inverse + torch.outer(step - inverse @ change, inverse @ step) / ((inverse @ step) @ change)
        ),
    },
)


# ---- 03: the implicit gradient


def _implicit_derivative(z: float, a: float) -> float:
    return -z * math.sin(a * z) / (1 + a * math.sin(a * z))


EXERCISES["03/scalar"] = Exercise(
    _implicit_derivative,
    ((0.7390851332, 1.0), (0.9001207, 0.5), (0.6, -0.4)),
    {
        "That is ∂f/∂a alone: z depends on a as well, so divide by 1 − ∂f/∂z.": lambda z, a: -z * math.sin(a * z),
        "∂f/∂z = −a·sin(a·z), so 1 − ∂f/∂z has a plus sign.": lambda z, a: (
            -z * math.sin(a * z) / (1 - a * math.sin(a * z))
        ),
        "Mind the inner derivative: ∂/∂z cos(a·z) = −a·sin(a·z).": lambda z, a: (
            -z * math.sin(a * z) / (1 + math.sin(a * z))
        ),
    },
)


def _truncated_adjoint(jacobian: Tensor, g: Tensor, terms: int) -> Tensor:
    total = term = g
    for _ in range(terms - 1):
        term = jacobian.T @ term
        total = total + term
    return total


EXERCISES["03/neumann"] = Exercise(
    _truncated_adjoint,
    tuple((0.3 * _normal(n, n, seed=n), _normal(n), terms) for n, terms in ((3, 1), (3, 2), (5, 6))),
    {
        "The transposed Jacobian is wanted: gradients travel backwards.": lambda jacobian, g, terms: _truncated_adjoint(
            jacobian.T, g, terms
        ),
        "That is one term too many: g itself is the first.": lambda jacobian, g, terms: _truncated_adjoint(
            jacobian, g, terms + 1
        ),
        "That is the last term alone; all of them are to be summed.": lambda jacobian, g, terms: (
            torch.linalg.matrix_power(jacobian.T, terms - 1) @ g
        ),
    },
)


# ---- 04: an equilibrium layer


def _relative_residual(z: Tensor, fz: Tensor) -> Tensor:
    return (fz - z).flatten(1).norm(dim=1) / fz.flatten(1).norm(dim=1)


EXERCISES["04/residual"] = Exercise(
    _relative_residual,
    tuple((_normal(*shape), _normal(*shape, seed=1)) for shape in ((3, 4), (2, 3, 2), (1, 5))),
    {
        "That is one number for the whole batch, which couples the rows: one for each row is wanted.": lambda z, fz: (
            (fz - z).norm() / fz.norm()
        ),
        "Divide by the size of f(z), so that the scale of the problem does not matter.": lambda z, fz: (
            (fz - z).flatten(1).norm(dim=1)
        ),
        "Divide by the norm of f(z), not of z.": lambda z, fz: (
            (fz - z).flatten(1).norm(dim=1) / z.flatten(1).norm(dim=1)
        ),
    },
)


def _contractive(weight: Tensor, radius: float) -> Tensor:
    return weight * min(1.0, radius / float(torch.linalg.matrix_norm(weight, 2)))


EXERCISES["04/contractive"] = Exercise(
    _contractive,
    tuple((scale * _normal(n, n, seed=n), 0.9) for n, scale in ((2, 2.0), (4, 1.0), (6, 0.01))),
    {
        "A matrix that is small enough already is to stay as it is.": lambda weight, radius: (
            weight * radius / torch.linalg.matrix_norm(weight, 2)
        ),
        "That is the Frobenius norm, which is larger than needed: the largest singular value decides.": (
            lambda weight, radius: weight * min(1.0, radius / float(weight.norm()))
        ),
        "That is the largest eigenvalue: it promises convergence in the end, not that every step contracts.": (
            lambda weight, radius: weight * min(1.0, radius / float(torch.linalg.eigvals(weight).abs().max()))
        ),
    },
)


# ---- 05: neural collapse


def _etf_cosines(num_classes: int) -> Tensor:
    k = num_classes
    return k / (k - 1) * (torch.eye(k).double() - 1 / k)


EXERCISES["05/cosines"] = Exercise(
    _etf_cosines,
    ((2,), (3,), (10,)),
    {
        "Vectors at right angles do not sum to zero: they can be pushed further apart.": lambda num_classes: torch.eye(
            num_classes
        ),
        "The diagonal holds cosines of vectors with themselves, 1: scale the matrix.": lambda num_classes: (
            torch.eye(num_classes).double() - 1 / num_classes
        ),
        "Off the diagonal it is −1/(K−1): a row of K cosines must sum to zero.": lambda num_classes: (
            torch.eye(num_classes).double() * (1 + 1 / num_classes) - 1 / num_classes
        ),
    },
)


def _class_means(h: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([h[labels == k].mean(0) for k in labels.unique()])


def _around(h: Tensor, centre: Tensor) -> Tensor:
    return (h - centre).square().sum(1).mean()


def _trace_ratio(h: Tensor, labels: Tensor) -> Tensor:
    means = _class_means(h, labels)
    return _around(h, means[labels]) / _around(means, means.mean(0))


def _features(counts: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return _normal(len(counts), 4, seed=seed)[labels] + _normal(len(labels), 4, seed=seed + 1), labels


EXERCISES["05/nc1"] = Exercise(
    _trace_ratio,
    (_features((5, 5, 5), 0), _features((9, 3, 2, 2), 2)),
    {
        "That is between over within: the ratio is upside down.": lambda h, labels: 1 / _trace_ratio(h, labels),
        "That is the variance around the *global* mean: each sample is compared with the mean of its own class.": (
            lambda h, labels: _around(h, h.mean(0)) / _around(m := _class_means(h, labels), m.mean(0))
        ),
        "μ is the mean of the class means, in which small classes count as much as large ones, not the mean of the "
        "samples.": lambda h, labels: _around(h, (m := _class_means(h, labels))[labels]) / _around(m, h.mean(0)),
    },
)


# ---- 06: collapse in training


def _centred(means: Tensor) -> Tensor:
    return means - means.mean(0)


def _to_etf(rows: Tensor, scale_gram: bool = True, etf_norm: float | None = None) -> Tensor:
    """‖G/‖G‖ − (I − 11ᵀ/K)/etf_norm‖ of the Gram matrix G of these rows; etf_norm left out: its own, √(K−1)."""
    gram, k = rows @ rows.T, len(rows)
    etf = torch.eye(k).double() - 1 / k
    return (gram / (gram.norm() if scale_gram else 1.0) - etf / (etf_norm or math.sqrt(k - 1))).norm()


EXERCISES["06/etf_distance"] = Exercise(
    lambda means: _to_etf(_centred(means)),
    tuple((1.0 + _normal(k, d, seed=k),) for k, d in ((3, 5), (4, 4), (10, 16))),
    {
        "Centre first: the simplex ETF is a statement about the class means minus their mean.": _to_etf,
        "Divide the means' own Gram matrix by its norm too, or the distance depends on the scale of the features.": (
            lambda means: _to_etf(_centred(means), scale_gram=False)
        ),
        "The norm of I − 11ᵀ/K is √(K−1), not K−1: with the latter, perfect collapse would not score 0.": (
            lambda means: _to_etf(_centred(means), etf_norm=len(means) - 1)
        ),
        "That compares cosines, which forget the lengths of the means: scale the matrix as a whole.": lambda means: (
            _to_etf(torch.nn.functional.normalize(_centred(means)))
        ),
    },
)


def _nearest_mean(h: Tensor, labels: Tensor) -> Tensor:
    return torch.cdist(h, _class_means(h, labels)).argmin(1)


def _ncc_mismatch(h: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    return (_nearest_mean(h, labels) != logits.argmax(1)).double().mean()


def _decided(counts: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels, and the logits of a classifier that has learnt something."""
    h, labels = _features(counts, seed)
    return h, labels, h @ (_class_means(h, labels) + _normal(len(counts), h.shape[1], seed=seed + 2)).T


EXERCISES["06/mismatch"] = Exercise(
    _ncc_mismatch,
    (_decided((6, 6, 6), 0), _decided((20, 9, 5, 4), 5)),
    {
        "That is the share of images on which the two agree; 0 is to mean collapse.": lambda h, labels, logits: (
            1 - _ncc_mismatch(h, labels, logits)
        ),
        "That compares the nearest mean with the true class; NC4 compares it with the network's decision, right or "
        "wrong.": lambda h, labels, logits: (_nearest_mean(h, labels) != labels).double().mean(),
        "That is the network's error; the class means do not enter it.": lambda h, labels, logits: (
            (logits.argmax(1) != labels).double().mean()
        ),
        "The largest scalar product favours long means: take the smallest distance.": lambda h, labels, logits: (
            ((h @ _class_means(h, labels).T).argmax(1) != logits.argmax(1)).double().mean()
        ),
    },
)


# ---- 07: imbalance


def _step_counts(num_classes: int, n_max: int, num_majority: int, ratio: float, small: int | None = None) -> Tensor:
    counts = imbalance.step_imbalance(num_classes, n_max, num_majority, ratio)
    if small is not None:
        counts[num_majority:] = small
    return counts


EXERCISES["07/counts"] = Exercise(
    lambda num_classes, n_max, num_majority, ratio: _step_counts(num_classes, n_max, num_majority, ratio),
    ((10, 140, 5, 10.0), (10, 134, 3, 50.0), (4, 25, 2, 10.0), (6, 30, 4, 100.0)),
    {
        "You cut the decimals off, as most generators do; then the real R is larger than the one asked for. Round.": (
            lambda num_classes, n_max, num_majority, ratio: _step_counts(
                num_classes, n_max, num_majority, ratio, max(1, int(n_max / ratio))
            )
        ),
        "Python's round takes a half to the even neighbour; here halves go up.": (
            lambda num_classes, n_max, num_majority, ratio: _step_counts(
                num_classes, n_max, num_majority, ratio, max(1, round(n_max / ratio))
            )
        ),
        "A class without images is no class: keep at least one.": lambda num_classes, n_max, num_majority, ratio: (
            _step_counts(num_classes, n_max, num_majority, ratio, math.floor(n_max / ratio + 0.5))
        ),
        "The majority classes come first.": lambda num_classes, n_max, num_majority, ratio: _step_counts(
            num_classes, n_max, num_majority, ratio
        ).flip(0),
    },
)


def _mean_cosine(vectors: Tensor, with_itself: bool = False) -> Tensor:
    cosines = (unit := torch.nn.functional.normalize(vectors)) @ unit.T
    return cosines.mean() if with_itself else cosines[~torch.eye(len(unit)).bool()].mean()


def _minority_cosine(h: Tensor, labels: Tensor, minority: Tensor) -> Tensor:
    means = _class_means(h, labels)
    return _mean_cosine(_centred(means)[minority])


EXERCISES["07/cosine"] = Exercise(
    _minority_cosine,
    tuple(
        (*_features((30,) * (k - small) + (2,) * small, seed=k), torch.arange(k) >= k - small)
        for k, small in ((5, 3), (6, 2), (8, 5))
    ),
    {
        "You centred at the mean of all samples, which lies among the majority: seen from there, all minority classes "
        "lie on one side. Centre at the mean of the class means.": lambda h, labels, minority: _mean_cosine(
            (_class_means(h, labels) - h.mean(0))[minority]
        ),
        "Centre first: a mean that all classes share makes every cosine look large.": lambda h, labels, minority: (
            _mean_cosine(_class_means(h, labels)[minority])
        ),
        "The centre is the mean of *all* class means, not of the minority's own.": lambda h, labels, minority: (
            _mean_cosine(_centred(_class_means(h, labels)[minority]))
        ),
        "Leave the diagonal out: each class has cosine 1 with itself.": lambda h, labels, minority: _mean_cosine(
            _centred(_class_means(h, labels))[minority], with_itself=True
        ),
        "That is the mean over all classes; the minority is asked for.": lambda h, labels, minority: _mean_cosine(
            _centred(_class_means(h, labels))
        ),
    },
)


# ---- 08: reading a table


def _paired_interval(deq: np.ndarray, explicit: np.ndarray, t: float) -> tuple[float, float]:
    difference = deq - explicit
    return difference.mean(), t * difference.std(ddof=1) / math.sqrt(len(difference))


EXERCISES["08/interval"] = Exercise(
    _paired_interval,
    tuple(
        (explicit + 0.5 + 0.3 * _normal(n, seed=n + 1).numpy(), explicit, t)
        for n, t in ((3, 4.302653), (5, 2.776445), (10, 2.262157))
        for explicit in (90 + 2 * _normal(n, seed=n).numpy(),)
    ),
    {
        "You treated the two columns as unrelated. The runs of one seed share images, initial weights and order: take "
        "the differences first, then their standard deviation.": lambda deq, explicit, t: (
            (deq - explicit).mean(),
            t * math.sqrt((deq.var(ddof=1) + explicit.var(ddof=1)) / len(deq)),
        ),
        "Divide by n − 1 in the standard deviation (`ddof=1`): the mean was estimated from the same values.": (
            lambda deq, explicit, t: (
                (deq - explicit).mean(),
                t * (deq - explicit).std() / math.sqrt(len(deq)),
            )
        ),
        "That is the spread of single differences; their mean is known √n times as well.": lambda deq, explicit, t: (
            (deq - explicit).mean(),
            t * (deq - explicit).std(ddof=1),
        ),
        "That is the standard error; multiply it by t.": lambda deq, explicit, t: (
            (deq - explicit).mean(),
            (deq - explicit).std(ddof=1) / math.sqrt(len(deq)),
        ),
        "The difference is DEQ − explicit, not the other way round.": lambda deq, explicit, t: _paired_interval(
            explicit, deq, t
        ),
    },
)


def _verdict(mean: float, half: float, claim: int) -> int:
    if abs(mean) <= half:
        return 0
    return 1 if mean * claim > 0 else -1


EXERCISES["08/verdict"] = Exercise(
    _verdict,
    ((0.5, 0.2, 1), (0.5, 0.2, -1), (-0.5, 0.2, -1), (-0.5, 0.2, 1), (0.1, 0.2, 1), (-0.1, 0.2, 1), (-0.1, 0.2, -1)),
    {
        "An interval that holds 0 says neither yes nor no, whatever its middle is.": lambda mean, half, claim: (
            1 if mean * claim > 0 else -1
        ),
        "The claim has a direction: a difference below 0 supports “lower”.": lambda mean, half, claim: _verdict(
            mean, half, 1
        ),
        "A difference on the wrong side is a finding as well: it contradicts the claim.": lambda mean, half, claim: max(
            0, _verdict(mean, half, claim)
        ),
        "Not supported is not the same as contradicted: where the interval holds 0, return 0.": (
            lambda mean, half, claim: 1 if _verdict(mean, half, claim) == 1 else -1
        ),
    },
)


# ---- 09: measuring one's own network


def _chance_level(num_images: int, num_classes: int, dim: int) -> float:
    return (num_images - num_classes) / (num_classes - 1)


EXERCISES["09/chance"] = Exercise(
    _chance_level,
    ((480, 8, 32), (480, 8, 512), (60, 3, 8)),
    {
        "The dimension cancels: each of them adds the same to both traces.": lambda num_images, num_classes, dim: (
            _chance_level(num_images, num_classes, dim) / dim
        ),
        "That is between over within: the ratio is upside down.": lambda num_images, num_classes, dim: (
            1 / _chance_level(num_images, num_classes, dim)
        ),
        "The class mean follows its own images, so the variance around it is σ²(1 − K/N), not σ².": (
            lambda num_images, num_classes, dim: num_images / (num_classes - 1)
        ),
        "The variance of the class means is taken around their own mean: σ²(K/N)(1 − 1/K).": (
            lambda num_images, num_classes, dim: (num_images - num_classes) / num_classes
        ),
        "That is the number of images in a class: both corrections are missing.": (
            lambda num_images, num_classes, dim: num_images / num_classes
        ),
    },
)


def _auroc(inside: Tensor, outside: Tensor, tie: float = 0.5) -> Tensor:
    higher, equal = inside[:, None] > outside[None, :], inside[:, None] == outside[None, :]
    return (higher + tie * equal).mean()


EXERCISES["09/auroc"] = Exercise(
    lambda inside, outside: _auroc(inside, outside),
    tuple(
        (0.1 * (10 * _normal(n, seed=n) + 10).round(), 0.1 * (10 * _normal(m, seed=m)).round())
        for n, m in ((30, 20), (8, 50))
    ),
    {
        "That counts the pairs in which the unknown image scores higher.": lambda inside, outside: _auroc(
            outside, inside
        ),
        "A tie counts one half: of two equal scores none can be told to be the known one.": lambda inside, outside: (
            _auroc(inside, outside, tie=0.0)
        ),
        "A tie counts one half, not one.": lambda inside, outside: _auroc(inside, outside, tie=1.0),
        "That compares with the mean score of the unknown images; all pairs are wanted.": lambda inside, outside: (
            (inside > outside.mean()).double().mean()
        ),
    },
)
