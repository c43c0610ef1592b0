"""Neural collapse in every layer of any network: ``measure``, ``features``, ``measure_file``.

``measure`` makes one pass over the data, with one ``ClassMoments`` a layer, and what it keeps of it does not grow, but
for the features that ``keep`` allows.
"""

import functools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from nclib.metrics.alone import effective_rank, nc0
from nclib.metrics.checks import Weighting, check_finite, scaled_rows
from nclib.metrics.definitions import nc1_cdnv, ncc_mismatches, ratio, share, whitened_squares
from nclib.metrics.hooks import Reader
from nclib.metrics.layers import Layers, Pool
from nclib.metrics.moments import ClassMoments, EmptyClassWarning
from nclib.metrics.report import nc_report, tell_of_limits
from nclib.metrics.table import Given, computed
from nclib.system.warning import warn


class Features(NamedTuple):
    """What ``features`` returns, in the order of the arguments of ``nc_report``."""

    h: Tensor
    labels: Tensor | np.ndarray
    logits: Tensor | None
    w: Tensor | None


def measure(
    model: nn.Module,
    loader: Iterable[Any],
    layers: Layers = None,
    num_classes: int | None = None,
    pool: Pool = "mean",
    per_class: bool = False,
    *,
    classifier: str | None = "auto",
    weighting: Weighting = "class",
    max_dim: int = 4096,
    keep: int = 2**30,
    second_pass: bool = False,
    test: Iterable[Any] | None = None,
) -> "pd.DataFrame":
    """Neural collapse in the layers of a network, as a table.

    The network runs once over the data, in evaluation mode and without gradients, and at last once more over the first
    batch with its rows reversed, which finds layers whose rows are not the samples. Afterwards its mode, its hooks and
    the random state of torch are as before, also after an error; a state that it keeps itself is not.

    Parameters
    ----------
    model : any network. Wrappers of ``torch.compile`` and ``DataParallel`` are looked through, and what is compiled
        runs eager. A part that ``torch.jit`` traced is a single layer; one that it scripted is left out.
    loader : yields (inputs, labels). Inputs are a tensor, a tuple of tensors (several arguments) or a mapping (keyword
        arguments) and are moved to the model's device; labels are integers 0 … K−1, a tensor, an array or a list.
        Empty batches are passed over.
    layers : which layers, by the names of ``model.named_modules()``. "NAME" is the output of a module, "NAME.input"
        what enters it. A mapping gives each its own pooling. None takes the input of the classifier and the output of
        every block, see Notes; "all" the output of every single layer in place of the blocks.
    num_classes : K; left out, the number of columns of the network's output, or else of its last linear layer's.
    pool : how a feature map becomes a vector. "mean" averages over the positions of (B, C, H, W) and over the tokens
        of (B, T, D), padding too: Notes explain which of them. "cls" takes the first token of (B, T, D) and is
        "mean" elsewhere, "flatten" keeps all numbers, a function takes the output and returns (B, d). With layers=None
        the function is given feature maps alone: what is (B, d) already stays as it is.
    per_class : add rows for each class, with a column ``class``, which is missing in the rows of whole layers. Then
        ``table.pivot(index=["metric", "class"], columns="layer", values="value")`` has them all, and
        ``table[table["class"].isna()]`` is the table without them.
    classifier : "auto" finds the linear layer with K outputs, of several the one whose outputs the network returns;
        otherwise the name of a module with a (K, d) weight; None for a network without one. Without a classifier, what
        needs its weight is left out.
    weighting : "class", "sample" or "mixed", see ``ClassMoments``.
    max_dim : the largest d for which d × d moments are kept; 4096 takes 134 MB a layer. Of a wider layer
        ``nc1_pinv`` and ``effective_rank`` are left out, with a warning.
    keep : bytes of features kept in memory for the metrics that compare samples with final class means. Beyond it,
        ``nc4_ncc_mismatch`` and ``nc1_pinv_class_balanced`` are left out, with a warning.
    second_pass : read the loader twice instead, and keep no features: every metric of data of any size. The loader must
        give the same samples again, in any order, so it cannot be an iterator.
    test : another loader, of test data, which is measured against the training data of ``loader``: rows that end in
        ``_test``.

    Returns
    -------
    DataFrame
        Columns ``layer``, ``metric``, ``value``, layers in the order in which they are called. Metrics are those of
        ``nc_report``, under the same names, and: ``dim`` (d), ``samples``, ``feature_norm`` (mean of ‖h‖) and
        ``effective_rank``. What compares with the classifier's weight, ``nc0`` and ``accuracy`` belong to the
        classifier's input alone. ``nc4_ncc_mismatch`` of any other layer
        is the share of samples whose nearest class mean in that layer is not the class that the network predicts.

        With ``test``, the collapse of test data: ``nc1_trace_ratio_test``, the mean square distance of test samples
        from the training mean of their class over tr Σ_B of the training data; ``nc1_cdnv_test``, of the test data by
        itself; ``ncc_accuracy_test``, the share whose nearest training mean is that of their class;
        ``nc4_ncc_mismatch_test``, the share whose nearest training mean is not what the network predicts;
        ``samples_test``, ``absent_classes_test`` and, of the classifier's input, ``accuracy_test``.

        With ``per_class``, rows with a class: ``samples``, ``nc1_trace_ratio`` (its variance over tr Σ_B; their mean
        over samples is the value of the layer), ``feature_norm``, ``mean_length`` (‖μ_k − μ‖), ``nc4_ncc_mismatch``
        and, of the classifier's input, ``accuracy``.

    Raises
    ------
    ValueError
        A layer that does not exist or is not called, an output that has no samples along its first axis, labels that
        do not fit, NaN or infinite features or logits, several layers, or calls of one, that may be the classifier, or
        several tensors that may be the logits.

    Warns
    -----
    UserWarning
        A layer that was not named, but found, is left out, as where its rows do not follow the order of the samples, or
        no block is called; ``keep`` is too small, or a layer too wide; the network's output does not follow from that
        of its classifier: rows change their order, or other layers enter it; the classifier is not h Wᵀ + b of its
        input and weight, as with cosines, a scale or prototypes; it is not found, or another may be meant that is not
        called; an equilibrium layer (``DEQ``) did not converge on some of the rows; a layer has fewer than K − 1
        dimensions, where no simplex exists; a class has no samples, or one.

    Notes
    -----
    **Do not compare** ``nc1_pinv`` **of layers with different d.** It adds up the variance along the K − 1 directions
    between class means, so it falls like 1/d where there is nothing but noise. Compare ``nc1_trace_ratio`` or
    ``nc1_cdnv``, or each value with what the same data give with shuffled labels.

    **A block** is, for ``layers=None``: a module inside an ``nn.Sequential`` or ``nn.ModuleList`` that has submodules
    of its own, such as a residual block or a transformer layer; and outside of such stages every child of the model
    with submodules, and every single convolution, linear or embedding layer. In an ``nn.Sequential`` of single layers
    a block runs from one of these to the next, so that its output comes after normalisation, activation and pooling.
    Flattening and dropout are not blocks. Blocks that are not called, and what ends after the classifier is called, are
    left out, and so is a block whose features are those of the classifier's input: they are listed once, as
    "NAME.input".

    A classifier that is called several times in one forward pass is measured at the call whose output is returned, and
    another module, such as a tied cell, at its last call before that; one that stands in several places, such as a
    single ReLU in an ``nn.Sequential`` or what a repeated block holds, at the call from each, and is left out where
    calls do not show the place. Of a tuple that a layer returns the first tensor is taken, of a mapping or dataclass
    ``last_hidden_state`` or else the first tensor. The logits are the field or key ``logits`` of what the network
    returns, or else what its classifier gave, or else the only tensor (B, K). Feature maps are (B, C, …) or (B, …, D),
    as the channels and features of the layer's own modules show, or else those of the blocks around it, or of the
    module before. Where they do not show it, and for layers with ``batch_first=False``, a function is needed as pool. A
    DEQ is one block, read at its equilibrium.

    Pairs of classes are compared, in about 60 bytes each while the table is made: 60 MB a layer of 1,000 classes, 6 GB
    of 10,000. For more classes, as of words, take single metrics of a ``ClassMoments``, such as ``nc1_trace_ratio``.

    Sources of what is measured on test data: Papyan, Han & Donoho 2020 (nearest class mean), Galanti, György & Hutter
    2022 (CDNV), Hui, Belkin & Nakkiran 2022 (weak and strong collapse on test data).

    Examples
    --------
    >>> import torch, nclib as nc
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> x, y = torch.randn(60, 8), torch.arange(60) % 3
    >>> table = nc.measure(net, [(x, y)])
    >>> list(table["layer"].unique())
    ['2.input']
    >>> every = nc.measure(net, [(x, y)], layers="all", per_class=True)
    >>> wide = every.pivot(index=["metric", "class"], columns="layer", values="value")
    >>> wide.loc["samples"].index.tolist(), wide.columns.tolist()
    ([<NA>, 0, 1, 2], ['0', '2.input'])
    """
    reader = Reader(model, layers, num_classes, pool, classifier)
    with reader.reading(), warnings.catch_warnings():
        measured, kept = _first_pass(reader, loader, weighting, max_dim, 0 if second_pass else keep)
        warnings.simplefilter("ignore", EmptyClassWarning)  # which the first pass gave
        for name, *batch in _batches(reader, loader, again=True) if second_pass else kept:
            measured[name].compare(*batch, measured[name].moments)
            if second_pass:
                measured[name].again.update(*batch[:2])
        for name, *batch in () if test is None else _batches(reader, test):
            measured[name].test(*batch)
        shown = [layer for name, layer in measured.items() if name not in reader.left | reader.twins()]
        if second_pass and any(layer.differs() for layer in shown):
            raise ValueError("the loader gave other samples the second time: pass one that can be read twice")
        rows = [row for x in shown for row in x.rows(reader.w if x.name == f"{reader.head}.input" else None, per_class)]
    if not kept and not second_pass:
        said = f"beyond keep={keep} bytes: pass second_pass=True, which reads the loader twice, or a larger keep"
        warn(f"nc4_ncc_mismatch and nc1_pinv_class_balanced are left out {said}")
    tell_of_limits({repr(x.name): x.moments.dim for x in shown}, shown[0].moments.counts)
    if shown[0].tested is not None:
        tell_of_limits({}, shown[0].tested.moments.counts, "test sample", "nc1_cdnv_test")
    frame = pd.DataFrame(rows, columns=["layer", "class", "metric", "value"])
    return frame.astype({"class": "Int64"}) if per_class else frame.drop(columns="class")


def _first_pass(
    reader: Reader, loader: Iterable[Any], weighting: Weighting, max_dim: int, room: int
) -> "tuple[dict[str, _Layer], list[tuple]]":
    """The layers, and all batches where their features take no more bytes than there is room for."""
    measured: dict[str, _Layer] = {}
    kept = []
    for name, h, labels, predicted in _batches(reader, loader):
        if name not in measured:
            d, whole = h.shape[1], h.shape[1] <= max_dim
            if not whole:
                said = f"layer {name!r} has {d} features (moments of {8e-9 * d**2:.1f} GB): nc1_pinv and effective_rank"
                warn(f'{said} are left out; give it pool="mean", or pass max_dim={d}')
            measured[name] = _Layer(name, ClassMoments(reader.num_classes, d, weighting, covariance=whole))
        measured[name].update(h, labels, predicted)
        room -= h.nbytes
        kept.append((name, h.cpu(), labels, predicted))
        if room < 0:
            kept.clear()
    # ``present`` warns of absent classes, once for all layers
    reader.tell_of_idle(1 + int(next(iter(measured.values())).moments.present.nonzero().max()))
    return measured, kept


def _batches(reader: Reader, loader: Iterable[Any], again: bool = False) -> Iterator[tuple]:
    """Name, features, labels and predicted classes, of every layer and batch."""
    for outputs, labels, logits in reader.batches(loader, again):
        predicted = None if logits is None else logits.argmax(1).cpu()
        yield from ((name, h, labels, predicted) for name, h in outputs.items())
        if logits is not None:
            check_finite(logits, "logits")  # after the features, which are refused with the name of their layer


def features(
    model: nn.Module,
    loader: Iterable[Any],
    layer: str | None = None,
    pool: Pool = "mean",
    *,
    num_classes: int | None = None,
    classifier: str | None = "auto",
) -> Features:
    """Features of one layer for all samples of a loader, with the logits and the classifier.

    Parameters
    ----------
    model, pool, num_classes, classifier : as in ``measure``
    loader : yields (inputs, labels); labels are handed back as they are, so those of out-of-distribution data may be
        anything, numbers of any kind or texts
    layer : name of a module, or "NAME.input"; None is the input of the classifier

    Returns
    -------
    Features
        ``h`` (N, d), ``labels`` (N,), ``logits`` (N, K) or None, ``w`` (K, d), the classifier's weight, or None where
        the network has no classifier or the layer is not its input. All on the CPU. ``nc_report(*features(…))`` works.
        Labels that are not numbers are a NumPy array.

    Raises
    ------
    ValueError
        As ``measure``.

    Examples
    --------
    >>> import torch, nclib as nc
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> found = nc.features(net, [(torch.randn(60, 8), torch.arange(60) % 3)])
    >>> found.h.shape, found.w.shape
    (torch.Size([60, 16]), torch.Size([3, 16]))
    """
    reader = Reader(model, layer or (), num_classes, pool, classifier)
    with reader.reading():
        found = [(*(h.cpu() for h in outputs.values()), *rest) for outputs, *rest in reader.batches(loader)]
    h, labels, logits = zip(*found, strict=True)
    labels = torch.cat(labels) if isinstance(labels[0], Tensor) else np.concatenate(labels)
    logits = None if logits[0] is None else torch.cat(logits).cpu()
    return Features(torch.cat(h), labels, logits, reader.w if layer in (None, f"{reader.head}.input") else None)


def measure_file(path: str, num_classes: int | None = None) -> dict[str, float]:
    """``nc_report`` of arrays in a NumPy file, as ``nclib measure FILE.npz`` prints it.

    Parameters
    ----------
    path : an .npz file with h (N, d), labels (N,) and, where there are any, logits (N, K) and w (K, d); nothing in it
        is unpickled
    num_classes : as in ``nc_report``

    Raises
    ------
    ValueError
        Not such a file, or arrays missing or unknown.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
    except Exception as error:  # whatever numpy, zipfile and zlib raise of a file that is none or damaged
        raise ValueError(f"{path} cannot be read; numpy.savez({path!r}, h=…, labels=…) writes one: {error}") from None
    if not {"h", "labels"} <= arrays.keys() <= {"h", "labels", "logits", "w"}:
        raise ValueError(f"{path} must hold h and labels, and may hold logits and w; it holds {sorted(arrays)}")
    return nc_report(**arrays, num_classes=num_classes)


class _Layer:
    """What is accumulated of a layer, of training or of test data."""

    def __init__(self, name: str, moments: ClassMoments) -> None:
        self.name, self.moments = name, moments
        self.predicts, self.compared, self.tested = False, False, None  # compared: whether ``compare`` has been called
        # Of each class: Σ_i ‖h_i‖; samples that are predicted; whose nearest mean is not that of the predicted class;
        # whose nearest mean is not that of their class; whitened_squares.
        sums = torch.zeros(5, moments.num_classes, dtype=torch.float64)
        self.norms, self.right, self.mismatched, self.elsewhere, self.whitened = sums

    @functools.cached_property
    def again(self) -> ClassMoments:
        """Of a second pass over the same data."""
        return ClassMoments(self.moments.num_classes, self.moments.dim, covariance=False)

    def update(self, h: Tensor, labels: Tensor, predicted: Tensor | None) -> None:
        try:
            self.moments.update(h, labels)
        except ValueError as error:
            raise ValueError(f"layer {self.name!r}: {error}") from None
        labels = labels.long()
        self.norms.index_add_(0, labels, torch.linalg.vector_norm(h.double(), dim=1).cpu())
        self.predicts = predicted is not None
        if self.predicts:
            self.right += self._count(labels[predicted == labels])

    def compare(self, h: Tensor, labels: Tensor, predicted: Tensor | None, means: ClassMoments) -> None:
        """With the final class means of the training data."""
        labels = labels.long()
        if predicted is not None:
            self.mismatched += self._count(labels[ncc_mismatches(h, predicted, means).cpu()])
        self.compared = True
        if means is self.moments:
            self.whitened += whitened_squares(h, labels, means).cpu()
        else:
            self.elsewhere += self._count(labels[ncc_mismatches(h, labels, means).cpu()])

    def differs(self) -> bool:
        """Whether the second pass gave other samples: class means that moved by more than 0.001 of how far samples are
        from the first one, which is above the rounding of a network."""
        first, again = self.moments, self.again
        moved = first.means_from_origin + first.origin - again.means_from_origin - again.origin
        moved = torch.linalg.vector_norm(moved[first.counts > 0], dim=1)
        return not torch.equal(first.counts, again.counts) or bool((moved > 1e9 * first.resolution).any())

    def test(self, h: Tensor, labels: Tensor, predicted: Tensor | None) -> None:
        if self.tested is None:
            self.tested = _Layer(self.name, ClassMoments(self.moments.num_classes, self.moments.dim, covariance=False))
        self.tested.update(h, labels, predicted)
        self.tested.compare(h, labels, predicted, self.moments)

    def _count(self, labels: Tensor) -> Tensor:
        return torch.bincount(labels, minlength=self.moments.num_classes)

    def rows(self, w: Tensor | None, per_class: bool) -> Iterator[tuple[str, int | None, str, float]]:
        """w : of the classifier's input alone"""
        m, counts = self.moments, self.moments.counts.cpu()
        whitened = self.whitened.to(m.device) if self.compared else None
        mismatched = self.mismatched if self.compared and self.predicts else None
        given = Given(m, None if w is None else scaled_rows(w, "w").to(m.device), whitened, mismatched)
        by_class = {
            "samples": counts,
            "nc1_trace_ratio": m.class_variances / m.between_rows.square().sum(),
            "feature_norm": self.norms / counts,
            "mean_length": torch.linalg.vector_norm(m.centred_means, dim=1),
        }
        if mismatched is not None:
            by_class["nc4_ncc_mismatch"] = mismatched / counts
        report = {"dim": m.dim, "samples": m.num_samples, **computed(given), "feature_norm": share(self.norms, m)}
        if m.scatter is not None:
            report["effective_rank"] = effective_rank(m)
        if w is not None:
            report["nc0"] = nc0(w)
            if self.predicts:
                report["accuracy"] = share(self.right, m)
                by_class["accuracy"] = self.right / counts
        if self.tested is not None:
            report |= self.tested.against(m, w is not None)
        yield from ((self.name, None, metric, float(value)) for metric, value in report.items())
        if per_class:
            values = {metric: of_classes.tolist() for metric, of_classes in by_class.items()}
            yield from ((self.name, k, name, float(values[name][k])) for k in range(len(counts)) for name in values)

    def against(self, train: ClassMoments, of_classifier: bool) -> dict[str, float]:
        """The report of test data."""
        m, both = self.moments, (self.moments.counts > 0) & (train.counts > 0)
        # Σ_i ‖h_i − ν‖² = n ‖μ − ν‖² + Σ_i ‖h_i − μ‖²
        moved = (m.class_means - train.class_means)[both].square().sum(1)
        around = (m.counts[both] * (moved + m.class_variances[both])).sum() / m.counts[both].sum()
        report = {
            "samples_test": m.num_samples,
            "absent_classes_test": int((m.counts == 0).sum()),
            "nc1_trace_ratio_test": ratio(around, train.between_rows.square().sum()),
            "nc1_cdnv_test": nc1_cdnv(m),
            "ncc_accuracy_test": share(m.counts.cpu() - self.elsewhere, m),
        }
        if self.predicts:
            report["nc4_ncc_mismatch_test"] = share(self.mismatched, m)
            if of_classifier:
                report["accuracy_test"] = share(self.right, m)
        return report
