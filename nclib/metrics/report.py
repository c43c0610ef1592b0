"""Every metric at once, of all classes and of majority and minority alone."""

import math
import warnings

import torch
from torch import Tensor

from nclib.metrics.checks import (
    Array,
    Classes,
    Weighting,
    as_tensor,
    check_batch,
    check_logits,
    class_mask,
    scaled_rows,
)
from nclib.metrics.definitions import (
    class_balanced_pinv,
    classifier_norm_ratio,
    minority_cosine,
    nc1_cdnv,
    nc1_pinv,
    nc1_trace_ratio,
    nc2_equiangular,
    nc2_equinorm,
    nc2_etf_distance,
    nc3_alignment,
    nc3_self_duality,
    ncc_mismatches,
    paper_eq13_uncentred,
    paper_eq13_uncentred_printed_constant,
    paper_eq14_uncentred,
    ratio,
)
from nclib.metrics.moments import ClassMoments, chunks, class_moments
from nclib.metrics.table import METRICS, ideal_values

SMALL_CLASS = 5  # below it, the within-class trace is too small by more than a fifth (factor 1 − 1/n)


_SMALLEST = 1e-155  # squares of numbers below it lose digits


def nc_report(
    h: Array,
    labels: Array,
    logits: Array | None = None,
    w: Array | None = None,
    weighting: Weighting = "class",
    minority: Classes | None = None,
    *,
    moments: ClassMoments | None = None,
    num_classes: int | None = None,
) -> dict[str, float]:
    """The metrics of `nclib.metrics.METRICS` at once, each under its name there.

    ``nc2_*`` are of the centred class means, ``nc2_*_classifier`` of the classifier rows as they are,
    ``paper_*`` of the uncentred means. ``absent_classes`` counts classes without samples (left out),
    ``small_classes`` those with 1 to 4 samples, whose within-class variance is too small by 25 % or more.

    What is not given is left out: without ``logits`` every ``nc4_*``; without ``w`` every ``nc3_*``, the names ending
    in ``_classifier``, ``paper_eq14_uncentred``, ``minority_cosine`` and ``classifier_norm_ratio``.

    With ``minority``, also ``minority_cosine``, ``classifier_norm_ratio`` and two blocks, ``*_majority`` and
    ``*_minority``: the classes of a block alone, as if they were the whole problem. Means and classifier rows
    are then centred at the block's own mean, because a face of a simplex ETF is a simplex ETF: perfect
    collapse has 0 in both blocks. Only ``nc4_ncc_mismatch_*`` compares with all class means. A block of one
    class has NaN where pairs are needed. Σ_W of a block is class-balanced.

    Of two classes, in all or in a block, the centred means form a simplex whatever the features are: there
    ``nc2_*`` of the means is NaN.

    Parameters
    ----------
    h : (N, d) features.
    labels : (N,) integers 0 … K−1.
    logits : (N, K), including any bias.
    w : (K, d) classifier rows.
    weighting : "class" or "sample", see ``class_moments``.
    minority : None, a (K,) boolean mask, or a list of class ids: neither none nor all of the classes.
    moments : of these very features, if they are known already (in either weighting): the second weighting
        then costs no second pass for the covariances.
    num_classes : K; left out, it is the number of rows of w, of columns of the logits, the moments', or one more
        than the largest label, the first of these that is given.

    Returns
    -------
    dict of floats in the order of ``ideal_values``, which has their ideal values and ranges; NaN where a quantity is
    undefined.

    Raises
    ------
    ValueError
        Shapes, dtypes or labels that do not fit together, NaN or infinite values, and finite ones so large
        that the squares of their distances are not.

    Warns
    -----
    EmptyClassWarning
        A class has no samples.
    UserWarning
        There are more than d + 1 classes, so that no simplex exists and NC2 cannot be 0.

    Examples
    --------
    >>> import torch, nclib as nc
    >>> labels = torch.arange(100) % 10
    >>> features = nc.simplex_etf(10, 16)[labels]
    >>> report = nc.nc_report(features, labels)
    >>> "nc1_trace_ratio" in report, "nc3_alignment" in report
    (True, False)
    >>> round(report["nc2_etf_distance"], 6)
    0.0
    """
    w = None if w is None else scaled_rows(w, "w")
    if num_classes is None:
        num_classes = count_classes(w, logits, moments, labels)
    h = as_tensor(h)
    if w is not None and h.ndim == 2 and w.shape != (num_classes, h.shape[1]):
        turned = w.shape[0] == h.shape[1]
        expected, hint = (w.shape[1], "; pass w.T") if turned else (num_classes, "")
        raise ValueError(
            f"w must have shape ({expected}, {h.shape[1]}) as the moments have, got {tuple(w.shape)}{hint}"
        )
    given = moments is not None
    m = moments.with_weighting(weighting) if given else class_moments(h, labels, num_classes, weighting)
    h, labels = check_batch(h, labels, num_classes, m.dim)
    counts = torch.bincount(labels, minlength=num_classes).to(m.device)
    same = m.num_classes == num_classes and torch.equal(counts, m.counts)
    if not same or (given and not _same_sums(h, labels, m)):
        raise ValueError(
            f"moments are of other data: {m.num_classes} classes and {int(m.counts.sum())} samples, not "
            f"{num_classes} and {int(counts.sum())}, or other labels or features; leave moments out to have them "
            "recomputed"
        )
    if h.dtype == torch.float64 and 0 < max(float(h.max()), -float(h.min())) < _SMALLEST:
        raise ValueError("h is too small: squares of its distances underflow; multiplying it changes no metric")
    w = None if w is None else w.to(m.device)
    mismatches = None
    if logits is not None:
        logits = check_logits(logits, len(h), num_classes)
        mismatches = torch.zeros_like(m.squares)  # (K,) samples of each class, exact
        wrong = ncc_mismatches(h, logits.argmax(1), m).double()
        mismatches.index_add_(0, labels.to(m.device), wrong)
    tell_of_no_simplex({"h": m.dim}, int(m.present.sum()))
    report = moments_report(m, w)
    report["nc1_pinv_class_balanced"] = class_balanced_pinv(h, labels, m)
    if mismatches is not None:
        report["nc4_ncc_mismatch"] = ratio(mismatches.sum(), m.counts.sum())
    if minority is not None:
        mask = class_mask(minority, num_classes).to(m.device)
        if mask.all() or not mask.any():
            raise ValueError(f"minority must be some but not all of the {num_classes} classes, got {int(mask.sum())}")
        if w is not None:
            report["minority_cosine"] = minority_cosine(w, mask)
            report["classifier_norm_ratio"] = classifier_norm_ratio(w, mask)
        for name, block in (("majority", ~mask), ("minority", mask)):
            values = _block(h, labels, mismatches, m, w, block)
            report |= {f"{key}_{name}": value for key, value in values.items()}
    return in_order(report, num_classes)


def _same_sums(h: Tensor, labels: Tensor, m: ClassMoments) -> bool:
    """Whether the features have the class means and variances of the moments, up to the rounding of float64 sums."""
    means = m.class_means.nan_to_num()
    sums, size, squares = torch.zeros_like(means), torch.zeros_like(m.origin), torch.zeros_like(m.squares)
    line, along = torch.zeros_like(m.origin), torch.zeros_like(m.origin[0])
    if m.scatter is not None:  # along a random line, in units of each feature's own spread
        spread = m.scatter.diagonal().sqrt()
        line = torch.randn(m.dim, dtype=spread.dtype, generator=torch.Generator().manual_seed(0)).to(m.device)
        rounded = 1e-10 * math.sqrt(len(h)) * means.abs().amax(0)
        line = torch.where(spread > rounded, line / spread, 0.0)
    for rows in chunks(h):
        part, mine = h[rows].to(m.device).double(), labels[rows].to(m.device)
        sums.index_add_(0, mine, part)
        size += part.abs().sum(0)
        part = part - means[mine]
        squares.index_add_(0, mine, torch.linalg.vector_norm(part, dim=1).square_())
        along += (part @ line).square().sum()
    if not ((sums - m.counts.unsqueeze(1) * means).abs() <= 1e-9 * size).all():
        return False
    rounding = (1e-12 * torch.linalg.vector_norm(size)) ** 2
    if not ((squares - m.squares).abs() <= 1e-6 * squares + rounding).all():
        return False
    if m.scatter is None:
        return True
    scatter = m.scatter.tril(-1)
    known = 2 * line @ scatter @ line + (m.scatter.diagonal() * line.square()).sum()
    return bool((along - known).abs() <= 1e-6 * along + (1e-12 * size * line).square().sum())


def tell_of_no_simplex(dims: dict[str, int], num_classes: int) -> None:
    """Warn where there are more classes than a simplex has corners; dims by what has them, such as a layer."""
    few = {name: dim for name, dim in dims.items() if dim < num_classes - 1}
    if not few:
        return
    least = {dim: ideal_values(num_classes, dim)["nc2_etf_distance"].value for dim in few.values()}
    where = ", ".join(f"{name} (d = {dim}: {least[dim]:.3f})" for name, dim in list(few.items())[:6])
    warnings.warn(
        f"there is no simplex of {num_classes} classes in fewer than {num_classes - 1} dimensions, so that "
        f"nc2_etf_distance and nc3_alignment have a least value above 0: {where}{', …' if len(few) > 6 else ''}. See "
        f"nclib.ideal_values({num_classes}, dim={max(least)})",
        stacklevel=3,
    )


def in_order(report: dict[str, float], num_classes: int) -> dict[str, float]:
    return {key: report[key] for key in ideal_values(max(num_classes, 2)) if key in report}


_MOST_CLASSES = 2**15
"""Matrices of K × K then take 8.6 GB."""
_MANY_CLASSES = 100_000
"""So many classes are taken from labels even where there are fewer samples."""


def count_classes(w: Tensor | None, logits: Array | None, moments: ClassMoments | None, labels: Array) -> int:
    if w is not None:
        return len(w)
    if logits is not None:
        logits = as_tensor(logits)
        if logits.ndim != 2:
            raise ValueError(f"logits must have shape (N, K), got {tuple(logits.shape)}")
        return logits.shape[1]
    if moments is not None:
        return moments.num_classes
    labels = as_tensor(labels)
    if not labels.numel() or labels.is_floating_point() or labels.is_complex():
        return 1  # what is no label is refused with the features
    largest = int(labels.long().max())
    if largest >= max(_MANY_CLASSES, len(labels)):
        raise ValueError(
            f"labels of {len(labels)} samples reach {largest}, which would be {largest + 1} classes; number them 0 … "
            "K−1 by numpy.unique(labels, return_inverse=True)[1], or pass num_classes"
        )
    return largest + 1


def moments_report(m: ClassMoments, w: Tensor | None) -> dict[str, float]:
    """What follows from moments and classifier without the features; ``nc1_pinv`` only where there is a covariance."""
    compared = max(int(m.present.sum()), 0 if w is None else len(w))
    if compared > _MOST_CLASSES:
        raise ValueError(
            f"{compared} classes are compared pair by pair, in matrices of {8e-9 * compared**2:.0f} GB; measure at "
            f"most {_MOST_CLASSES} of them"
        )
    if not math.isfinite(m.squares.sum() + m.between_rows.square().sum() * m.num_samples):
        raise ValueError("h is too large: squares of its distances overflow; dividing it changes no metric")
    report = {
        **_distances(m, w),
        "rank_between": float(m.rank_between),
        "paper_eq13_uncentred": paper_eq13_uncentred(m),
        "paper_eq13_uncentred_printed_constant": paper_eq13_uncentred_printed_constant(m),
        "absent_classes": float((m.counts == 0).sum()),
        "small_classes": float(((m.counts > 0) & (m.counts < SMALL_CLASS)).sum()),
    }
    if m.scatter is not None:
        report["nc1_pinv"] = nc1_pinv(m)
    if w is not None:
        report |= {
            "nc2_etf_distance_classifier": nc2_etf_distance(w),
            "nc2_equinorm_classifier": nc2_equinorm(w),
            "nc2_equiangular_classifier": nc2_equiangular(w),
            "paper_eq14_uncentred": paper_eq14_uncentred(w, m),
        }
    return report


def _distances(m: ClassMoments, w: Tensor | None) -> dict[str, float]:
    means = m.centred_means[m.present]
    told = len(means) != 2  # two centred means are opposite, whatever the features are
    duality = {} if w is None else {"nc3_self_duality": nc3_self_duality(w, m), "nc3_alignment": nc3_alignment(w, m)}
    return {
        "nc1_trace_ratio": nc1_trace_ratio(m),
        "nc1_cdnv": nc1_cdnv(m),
        "nc2_etf_distance": nc2_etf_distance(means) if told else math.nan,
        "nc2_equinorm": nc2_equinorm(means) if told else math.nan,
        "nc2_equiangular": nc2_equiangular(means) if told else math.nan,
        **duality,
    }


def _block(
    h: Tensor,
    labels: Tensor,
    mismatches: Tensor | None,
    m: ClassMoments,
    w: Tensor | None,
    block: Tensor,
) -> dict[str, float]:
    block = block & m.present
    if not block.any():
        lacking = ("nc3",) * (w is None) + ("nc4",) * (mismatches is None)
        return {key: math.nan for key, metric in METRICS.items() if metric.block and not key.startswith(lacking)}
    part = m.select(block)
    renumber = torch.where(block, block.cumsum(0) - 1, -1)  # (K,), −1 outside the block
    labels = renumber[labels.to(m.device)]
    w = None if w is None else w[block] - part.weights @ w[block]
    values = {"nc1_pinv_class_balanced": class_balanced_pinv(h, labels, part), **_distances(part, w)}
    if mismatches is not None:
        values["nc4_ncc_mismatch"] = ratio(mismatches[block].sum(), part.counts.sum())
    return values
