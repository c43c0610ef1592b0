"""Every metric at once, of all classes and of majority and minority alone."""

import math
import warnings

import torch
from torch import Tensor

from nclib.metrics.alone import classifier_norm_ratio, minority_cosine
from nclib.metrics.checks import (
    Array,
    Classes,
    Weighting,
    as_tensor,
    check_logits,
    class_mask,
    scaled_rows,
)
from nclib.metrics.definitions import (
    class_balanced_pinv,
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
from nclib.metrics.moments import ClassMoments, class_moments
from nclib.metrics.table import METRICS, ideal_values

SMALL_CLASS = 5  # below it, the within-class trace is too small by more than a fifth (factor 1 − 1/n)


def nc_report(
    h: Array,
    labels: Array,
    logits: Array | None = None,
    w: Array | None = None,
    weighting: Weighting = "class",
    minority: Classes | None = None,
    *,
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
    num_classes : K; left out, it is the number of columns of the logits, of rows of w, or one more than the largest
        label, the first of these that is given.

    Returns
    -------
    dict of floats in the order of ``ideal_values``, which has their ideal values and ranges; NaN where a quantity is
    undefined.

    Raises
    ------
    ValueError
        Shapes, dtypes or labels that do not fit together, NaN or infinite values.

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
    labels = as_tensor(labels)
    if num_classes is None:
        given = logits if logits is not None else w
        num_classes = int(labels.max()) + 1 if given is None else as_tensor(given).shape[0 if given is w else -1]
    m = class_moments(h, labels, num_classes, weighting)
    return report_of(m, as_tensor(h), labels, logits, w, minority)


def report_of(
    m: ClassMoments,
    h: Tensor,
    labels: Tensor,
    logits: Array | None = None,
    w: Array | None = None,
    minority: Classes | None = None,
) -> dict[str, float]:
    """``nc_report`` from the moments of these features, in their weighting."""
    labels, num_classes = labels.long(), m.num_classes
    w = None if w is None else scaled_rows(w, "w").to(m.device)
    tell_of_no_simplex({"h": m.dim}, int(m.present.sum()))
    report = moments_report(m, w)
    report["nc1_pinv_class_balanced"] = class_balanced_pinv(h, labels, m)
    mismatches = None
    if logits is not None:
        logits = check_logits(logits, len(h), num_classes)
        mismatches = torch.zeros_like(m.squares)  # (K,) samples of each class, exact
        wrong = ncc_mismatches(h, logits.argmax(1), m).double()
        mismatches.index_add_(0, labels.to(m.device), wrong)
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


def moments_report(m: ClassMoments, w: Tensor | None) -> dict[str, float]:
    """What follows from moments and classifier without the features; ``nc1_pinv`` only where there is a covariance."""
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
