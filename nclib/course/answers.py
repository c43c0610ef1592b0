"""The right answer to each exercise of the course, the cases it is tried on, and the usual mistakes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
    mistakes : hint -> the function of someone who makes this mistake; an answer that agrees with it in every case gets
        the hint. Its nan agrees with every answer.
    atol : how near an answer must be
    """

    reference: Callable[..., Any]
    cases: tuple[tuple[Any, ...], ...]
    mistakes: Mapping[str, Callable[..., Any]]
    atol: float = 1e-8


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


EXERCISES: dict[str, Exercise] = {}
"""Every exercise of the course by its name, "notebook/exercise"."""


# ---- 01: scalar fixed points


def _exact_steps(rho: float, start: float, tol: float) -> float:
    """Before it is rounded; nan where no step is needed, which not everyone who rounds wrongly has thought of."""
    return math.log(tol / start) / math.log(rho) if tol < start else math.nan


EXERCISES["01/steps"] = Exercise(
    lambda rho, start, tol: np.fmax(0, np.ceil(_exact_steps(rho, start, tol))),
    ((0.5, 1.0, 1e-3), (0.5, 1.0, 0.25), (0.97, 0.3, 1e-2), (0.5, 1e-4, 1e-3)),
    {
        "You rounded down: the last step is needed, too.": lambda *case: np.floor(_exact_steps(*case)),
        "Round up to a whole number of steps.": _exact_steps,
        "Round up: a whole number stays, as tol is small enough.": lambda *case: np.floor(_exact_steps(*case)) + 1,
        "Never below zero.": lambda rho, start, tol: math.ceil(math.log(tol / start) / math.log(rho)),
    },
)
EXERCISES["01/damping"] = Exercise(
    lambda low, high: max(0.0, 1 - 2 / (2 - low - high)),
    ((-1.3, -1.3), (-4.0, 0.5), (-1.0, 0.2), (0.2, 0.8)),
    {
        "That is 1 − damping, the length of the step.": lambda a, b: 2 / (2 - a - b) if a + b < 0 else math.nan,
        "Damping cannot be negative: 0 is the least allowed.": lambda low, high: 1 - 2 / (2 - low - high),
    },
    atol=0.01,  # a search over a grid is an answer too
)


# ---- 02: Anderson and Broyden


def _anderson_weight(r_old: Tensor, r_new: Tensor) -> Tensor:
    change = r_new - r_old
    return (r_new @ change) / (change @ change)


EXERCISES["02/weight"] = Exercise(
    _anderson_weight,
    tuple((_normal(n, seed=n), _normal(n, seed=n + 10)) for n in (1, 3, 8)),
    {"The sign is wrong: make r_new − γ·(r_new − r_old) small.": lambda old, new: -_anderson_weight(old, new)},
)


def _broyden_update(inverse: Tensor, step: Tensor, change: Tensor) -> Tensor:
    row = step @ inverse
    return inverse + torch.outer(step - inverse @ change, row) / (row @ change)


EXERCISES["02/broyden"] = Exercise(
    _broyden_update,
    tuple((-torch.eye(n).double() + 0.1 * _normal(n, n), _normal(n, seed=1), _normal(n, seed=2)) for n in (1, 2, 4)),
    {
        "That is Broyden's *bad* method: it also maps the change to the step, but changes the inverse least, not the "
        "Jacobian.": lambda inv, step, y: inv + torch.outer(step - inv @ y, y) / (y @ y)
    },
)


# ---- 03: the implicit gradient


EXERCISES["03/scalar"] = Exercise(
    lambda z, a: -z * math.sin(a * z) / (1 + a * math.sin(a * z)),
    tuple((z, sign * math.acos(z) / z) for z, sign in ((0.7390851332, 1), (0.9, 1), (0.96, -1))),
    {"That is ∂f/∂a alone: z depends on a as well, so divide by 1 − ∂f/∂z.": lambda z, a: -z * math.sin(a * z)},
    atol=1e-4,  # finite differences are an answer too
)


def _adjoint_terms(jacobian: Tensor, g: Tensor, terms: int) -> Tensor:
    found = [g]
    for _ in range(terms - 1):
        found.append(jacobian.T @ found[-1])
    return torch.stack(found)


EXERCISES["03/neumann"] = Exercise(
    lambda jacobian, g, terms: _adjoint_terms(jacobian, g, terms).sum(0),
    tuple((0.3 * _normal(n, n, seed=n), _normal(n), terms) for n, terms in ((3, 1), (3, 2), (5, 6))),
    {
        "Take the transposed Jacobian: gradients travel backwards.": lambda j, g, n: _adjoint_terms(j.T, g, n).sum(0),
        "That is one term too many: g itself is the first.": lambda j, g, n: _adjoint_terms(j, g, n + 1).sum(0),
        "That is the last term alone: sum all of them.": lambda j, g, n: _adjoint_terms(j, g, n)[-1],
    },
)


# ---- 04: an equilibrium layer


def _row_norms(z: Tensor) -> Tensor:
    return z.flatten(1).norm(dim=1)


EXERCISES["04/residual"] = Exercise(
    lambda z, fz: _row_norms(fz - z) / _row_norms(fz),
    tuple((_normal(*shape), _normal(*shape, seed=1)) for shape in ((3, 4), (2, 3, 2), (1, 5))),
    {
        "One number for each row is wanted, not one for the batch.": lambda z, fz: (fz - z).norm() / fz.norm(),
        "Divide by the norm of f(z), so that its scale does not matter.": lambda z, fz: _row_norms(fz - z),
        "Divide by the norm of f(z), not of z.": lambda z, fz: _row_norms(fz - z) / _row_norms(z),
    },
)


def _scaled(weight: Tensor, radius: float, norm: Tensor) -> Tensor:
    return weight * min(1.0, radius / float(norm))


EXERCISES["04/contractive"] = Exercise(
    lambda weight, radius: _scaled(weight, radius, matrix_norm(weight, 2)),
    tuple((scale * _normal(n, n, seed=n).abs(), 0.9) for n, scale in ((2, 2.0), (4, 1.0), (6, 0.01))),
    {
        "A matrix that is small enough already is to stay as it is.": lambda w, r: w * r / matrix_norm(w, 2),
        "That is the Frobenius norm, which is larger than needed: the largest singular value decides.": (
            lambda w, r: _scaled(w, r, w.norm())
        ),
        "That is the largest eigenvalue: it promises convergence in the end, not that every step contracts.": (
            lambda w, r: _scaled(w, r, torch.linalg.eigvals(w).abs().max())
        ),
        "Small entries do not make small singular values: multiply the whole matrix by one number.": torch.clamp_max,
        "That cuts singular values, which contracts too, but the ratios change: multiply the matrix by one number.": (
            lambda w, r: (lambda u, s, v: u * s.clamp(max=r) @ v)(*torch.linalg.svd(w))
        ),
    },
)


# ---- 05: neural collapse


def _centring(num_classes: int) -> Tensor:
    return torch.eye(num_classes).double() - 1 / num_classes


EXERCISES["05/cosines"] = Exercise(
    lambda num_classes: num_classes / (num_classes - 1) * _centring(num_classes),
    ((2,), (3,), (10,)),
    {
        "Vectors at right angles do not sum to zero: they can be pushed further apart.": torch.eye,
        "The diagonal holds cosines of vectors with themselves, 1: scale the matrix.": _centring,
    },
)


def _class_means(h: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([h[labels == k].mean(0) for k in labels.unique()])


def _around(h: Tensor, centre: Tensor) -> Tensor:
    return (h - centre).square().sum(1).mean()


def _trace_ratio(h: Tensor, labels: Tensor, within: Tensor | None = None, between: Tensor | None = None) -> Tensor:
    """Within over between; someone who is mistaken has other centres."""
    means = _class_means(h, labels)
    centre = means.mean(0) if between is None else between
    return _around(h, means[labels] if within is None else within) / _around(means, centre)


def _mean_of_variances(h: Tensor, labels: Tensor) -> Tensor:
    means = _class_means(h, labels)
    variances = [_around(h[labels == k], means[k]) for k in labels.unique()]
    return torch.stack(variances).mean() / _around(means, means.mean(0))


def _features(counts: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return _normal(len(counts), 4, seed=seed)[labels] + _normal(len(labels), 4, seed=seed + 1), labels


EXERCISES["05/nc1"] = Exercise(
    lambda h, labels: _trace_ratio(h, labels),
    (_features((5, 5, 5), 0), _features((9, 3, 2, 2), 2)),
    {
        "That is between over within: the ratio is upside down.": lambda h, labels: 1 / _trace_ratio(h, labels),
        "Σ_W is a mean over all samples, not over the variances of the classes.": _mean_of_variances,
        "That is the variance around the *global* mean: each sample is compared with the mean of its own class.": (
            lambda h, labels: _trace_ratio(h, labels, within=h.mean(0))
        ),
        "μ is the mean of the class means, in which all classes count alike, not the mean of the samples.": (
            lambda h, labels: _trace_ratio(h, labels, between=h.mean(0))
        ),
    },
)


# ---- 06: collapse in training


def _centred(means: Tensor) -> Tensor:
    return means - means.mean(0)


def _to_etf(rows: Tensor, scale_gram: bool = True) -> Tensor:
    """‖G/‖G‖ − (I − 11ᵀ/K)/√(K−1)‖ of the Gram matrix G of these rows."""
    gram, k = rows @ rows.T, len(rows)
    return (gram / (gram.norm() if scale_gram else 1.0) - _centring(k) / math.sqrt(k - 1)).norm()


EXERCISES["06/etf_distance"] = Exercise(
    lambda means: _to_etf(_centred(means)),
    tuple((1.0 + _normal(k, d, seed=k),) for k, d in ((3, 5), (4, 4), (10, 16))),
    {
        "Centre first: the simplex ETF is a statement about the class means minus their mean.": _to_etf,
        "Divide the means' own Gram matrix by its norm too, or the distance depends on the scale of the features.": (
            lambda means: _to_etf(_centred(means), scale_gram=False)
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
        "That is the share on which the two agree; 0 is to mean collapse.": lambda *case: 1 - _ncc_mismatch(*case),
        "NC4 compares the nearest mean with the network's decision, right or wrong, not with the true class.": (
            lambda h, labels, logits: (_nearest_mean(h, labels) != labels).double().mean()
        ),
    },
)


# ---- 07: imbalance


def _step_counts(rounded: Callable[[float], int], num_classes: int, n_max: int, few: int, ratio: float) -> Tensor:
    counts = imbalance.step_imbalance(num_classes, n_max, few, ratio)
    counts[few:] = rounded(n_max / ratio)
    return counts


EXERCISES["07/counts"] = Exercise(
    imbalance.step_imbalance,
    ((10, 140, 5, 10.0), (10, 134, 3, 50.0), (4, 25, 2, 10.0), (6, 30, 4, 100.0)),
    {
        "You cut the decimals off, as most generators do; then the real R is larger than the one asked for. Round.": (
            partial(_step_counts, lambda share: max(1, int(share)))
        ),
        "A class needs at least one image.": partial(_step_counts, lambda share: math.floor(share + 0.5)),
    },
)


def _mean_cosine(vectors: Tensor) -> Tensor:
    unit = normalize(vectors)
    return (unit @ unit.T)[~torch.eye(len(unit)).bool()].mean()


EXERCISES["07/cosine"] = Exercise(
    lambda h, labels, minority: _mean_cosine(_centred(_class_means(h, labels))[minority]),
    tuple(
        (*_features((30,) * (k - small) + (2,) * small, seed=k), torch.arange(k) >= k - small)
        for k, small in ((5, 3), (6, 2), (8, 5))
    ),
    {
        "You centred at the mean of all samples, which lies among the majority: seen from there, all minority classes "
        "lie on one side. Centre at the mean of the class means.": (
            lambda h, labels, rare: _mean_cosine((_class_means(h, labels) - h.mean(0))[rare])
        ),
        "Centre first: a mean that all classes share makes every cosine look large.": (
            lambda h, labels, rare: _mean_cosine(_class_means(h, labels)[rare])
        ),
    },
)


# ---- 08: reading a table


def _paired_interval(deq: np.ndarray, explicit: np.ndarray, t: float, ddof: int = 1) -> tuple[float, float]:
    difference = deq - explicit
    return difference.mean(), t * difference.std(ddof=ddof) / math.sqrt(len(difference))


def _pairs(n: int, t: float) -> tuple[np.ndarray, np.ndarray, float]:
    explicit = 90 + 2 * _normal(n, seed=n).numpy()
    return explicit + 0.5 + 0.3 * _normal(n, seed=n + 1).numpy(), explicit, t


EXERCISES["08/interval"] = Exercise(
    lambda deq, explicit, t: _paired_interval(deq, explicit, t),
    (_pairs(3, 4.302653), _pairs(5, 2.776445), _pairs(10, 2.262157)),
    {
        "You treated the two columns as unrelated. The runs of one seed share images, initial weights and order: take "
        "the differences first, then their standard deviation.": (
            lambda deq, ex, t: ((deq - ex).mean(), t * math.sqrt((deq.var(ddof=1) + ex.var(ddof=1)) / len(deq)))
        ),
        "Divide by n − 1 in the standard deviation (`ddof=1`): the mean was estimated from the same values.": (
            partial(_paired_interval, ddof=0)
        ),
    },
)


def _verdict(mean: float, half: float, claim: int) -> int:
    return 0 if abs(mean) <= half else 1 if mean * claim > 0 else -1


EXERCISES["08/verdict"] = Exercise(
    _verdict,
    ((0.5, 0.2, 1), (0.5, 0.2, -1), (-0.5, 0.2, -1), (-0.5, 0.2, 1), (0.1, 0.2, 1), (-0.1, 0.2, 1), (-0.1, 0.2, -1)),
    {
        "An interval that holds 0 says neither yes nor no, whatever its middle is.": lambda m, h, c: _verdict(m, 0, c),
        "The claim has a direction: a difference below 0 supports “lower”.": lambda m, h, c: _verdict(m, h, 1),
    },
)


# ---- 09: measuring one's own network


EXERCISES["09/chance"] = Exercise(
    lambda num_images, num_classes, dim: (num_images - num_classes) / (num_classes - 1),
    ((480, 8, 32), (480, 8, 512), (60, 3, 8)),
    {
        "The dimension cancels: each of them adds the same to both traces.": lambda n, k, d: (n - k) / (k - 1) / d,
        "The class mean follows its own images, so the variance around it is σ²(1 − K/N), not σ².": (
            lambda n, k, d: n / (k - 1)
        ),
    },
)
