"""Every metric at once, of all classes and of majority and minority alone."""

import math

import torch
from torch import Tensor

from nclib.metrics.checks import Array, Classes, Weighting, as_tensor, check_logits, class_mask, scaled_rows
from nclib.metrics.definitions import ncc_mismatches, whitened_squares
from nclib.metrics.moments import ClassMoments, class_moments
from nclib.metrics.table import Given, computed, ideal_values
from nclib.system.warning import warn


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
    class has NaN where pairs are needed. Σ_W of a block is averaged over its samples.

    Of two classes, in all or in a block, the centred means form a simplex whatever the features are: there
    ``nc2_*`` of the means is NaN.

    Parameters
    ----------
    h : (N, d) features.
    labels : (N,) integers 0 … K−1.
    logits : (N, K), including any bias.
    w : (K, d) classifier rows.
    weighting : see ``class_moments``.
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
        There are more than d + 1 classes, so that no simplex exists and NC2 cannot be 0; or classes with one sample.

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
    if not labels.numel():
        raise ValueError("labels has no rows; give features and labels of at least one sample")
    if num_classes is None:
        given = logits if logits is not None else w
        num_classes = int(labels.max()) + 1 if given is None else as_tensor(given).shape[0 if given is w else -1]
    return report_of(class_moments(h, labels, num_classes, weighting), as_tensor(h), labels, logits, w, minority)


def report_of(
    m: ClassMoments, h: Tensor, labels: Tensor, logits: Array | None, w: Array | None, minority: Classes | None = None
) -> dict[str, float]:
    """``nc_report`` from the moments of these features, in their weighting."""
    labels = labels.to(m.device, torch.long)
    tell_of_limits({"h": m.dim}, m.counts)
    mismatches, w = None, None if w is None else scaled_rows(w, "w").to(m.device)
    if logits is not None:
        wrong = ncc_mismatches(h, check_logits(logits, len(h), m.num_classes).argmax(1), m)
        mismatches = torch.zeros_like(m.squares).index_add_(0, labels, wrong.double())
    given = Given(m, w, whitened_squares(h, labels, m), mismatches)
    if minority is None:
        return computed(given)
    mask = class_mask(minority, m.num_classes).to(m.device)
    if mask.all() or not mask.any():
        raise ValueError(f"minority must be some but not all of the {m.num_classes} classes, got {int(mask.sum())}")
    report = computed(given._replace(minority=mask))
    for name, block in (("majority", ~mask), ("minority", mask)):
        report |= {f"{key}_{name}": value for key, value in _of_block(given, h, labels, block).items()}
    return report


def _of_block(given: Given, h: Tensor, labels: Tensor, block: Tensor) -> dict[str, float]:
    m, w, block = given.moments, given.classifier, block & given.moments.present
    if not block.any():
        return dict.fromkeys(computed(given, block=True), math.nan)
    part = m.select(block)
    renumber = torch.where(block, block.cumsum(0) - 1, -1)  # (K,), −1 outside the block
    w = None if w is None else w[block] - part.weights @ w[block]
    mismatches = None if given.mismatches is None else given.mismatches[block]
    return computed(Given(part, w, whitened_squares(h, renumber[labels], part), mismatches), block=True)


def tell_of_limits(dims: dict[str, int], counts: Tensor, what: str = "sample", where: str = "NC1") -> None:
    """Warn of classes with one sample, and where there are more classes than a simplex has corners; dims by what has
    them, such as a layer."""
    num_classes, single = int((counts > 0).sum()), int((counts == 1).sum())
    if single:
        warn(f"{single} of {num_classes} classes have one {what}, and so no variance in {where}")
    if few := {name: dim for name, dim in dims.items() if dim < num_classes - 1}:
        least = {name: ideal_values(num_classes, dim)["nc2_etf_distance"].value for name, dim in few.items()}
        shown = ", ".join(f"{name} (d = {dim}: {least[name]:.3f})" for name, dim in few.items())
        said = f"{num_classes} classes form no simplex in fewer than {num_classes - 1} dimensions, so that NC2 and "
        more = f"nc3_alignment are above 0: {shown}. See nclib.ideal_values({num_classes}, dim={max(few.values())})"
        warn(said + more)
