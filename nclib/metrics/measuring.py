"""Neural collapse in every layer of any network: ``measure``, ``features``, ``measure_file``.

``measure`` makes one pass over the data, with one ``ClassMoments`` a layer, and what it keeps of it does not grow, but
for the features that ``keep`` allows. Torch and NumPy are enough to import this module; the table needs pandas.
"""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nclib.metrics.chance import effective_rank, nc1_chance
from nclib.metrics.checks import Weighting, as_tensor, check_logits, check_weighting, scaled_rows
from nclib.metrics.definitions import (
    mean_of_whitened,
    nc0,
    nc1_cdnv,
    ncc_mismatches,
    ratio,
    whitened_squares,
)
from nclib.metrics.hooks import run
from nclib.metrics.layers import Layers, Pool
from nclib.metrics.moments import ClassMoments, EmptyClassWarning
from nclib.metrics.report import count_classes, in_order, moments_report, tell_of_no_simplex

if TYPE_CHECKING:
    import pandas as pd


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
    wide: Literal["refuse", "means"] = "refuse",
    max_dim: int = 4096,
    keep: int = 2**30,
    second_pass: bool = False,
    test: Iterable[Any] | None = None,
) -> pd.DataFrame:
    """Neural collapse in the layers of a network, as a table.

    The network runs once over the data, in evaluation mode and without gradients. Afterwards its mode, its hooks and
    the random state are as before, also after an error.

    Parameters
    ----------
    model : any network. Wrappers of ``torch.compile`` and ``DataParallel`` are looked through, and what is compiled
        runs eager.
    loader : yields (inputs, labels). Inputs are a tensor, a tuple of tensors (several arguments) or a mapping (keyword
        arguments) and are moved to the model's device; labels are integers 0 … K−1, a tensor, an array or a list.
        Empty batches are passed over.
    layers : which layers, by the names of ``model.named_modules()``. "NAME" is the output of a module, "NAME.input"
        what enters it. A mapping gives each its own pooling. None takes the input of the classifier and the output of
        every block, see Notes; "all" the output of every single layer in place of the blocks.
    num_classes : K; left out, the number of columns of the network's output, or else of its last linear layer's.
    pool : how a feature map becomes a vector. "mean" averages over the positions of (B, C, H, W) and over the tokens
        of (B, T, D), "cls" takes the first token of (B, T, D) and is "mean" elsewhere, "flatten" keeps all numbers, a
        function takes the output and returns (B, d). With layers=None the function is given feature maps alone: what
        is (B, d) already stays as it is.
    per_class : add rows for each class, with a column ``class``, which is missing in the rows of whole layers. Then
        ``table.pivot(index=["metric", "class"], columns="layer", values="value")`` has them all, and
        ``table[table["class"].isna()]`` is the table without them.
    classifier : "auto" finds the linear layer with K outputs, of several the one whose outputs the network returns;
        otherwise the name of a module with a (K, d) weight; None for a network without one. Without a classifier, what
        needs its weight is left out.
    weighting : "class", "sample" or "mixed", see ``ClassMoments``.
    wide : what happens to a layer with d > ``max_dim`` features, whose d × d moments would be too large. "refuse" stops
        and says so; "means" leaves out what needs them: ``nc1_pinv`` and its chance level, ``effective_rank``.
    max_dim : the largest d for which d × d moments are kept; 4096 takes 134 MB a layer.
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
        ``nc_report``, under the same names, and: ``dim`` (d), ``samples``, ``feature_norm`` (mean of ‖h‖),
        ``feature_norm_spread`` (standard deviation of ‖h‖ over its mean), ``effective_rank``,
        ``nc1_pinv_shuffled`` and ``nc1_trace_ratio_shuffled`` (``nc1_chance``). What compares with the classifier's
        weight, ``nc0`` and ``accuracy`` belong to the classifier's input alone. ``nc4_ncc_mismatch`` of any other layer
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
        do not fit, NaN or infinite features, a layer that is too wide, several layers that may be the classifier.
    ImportError
        pandas is not installed.

    Warns
    -----
    UserWarning
        A layer that was not named, but found, is left out; ``keep`` is too small; the network's output does not follow
        from that of its classifier: rows change their order, or other layers enter it; an equilibrium layer (``DEQ``)
        did not converge on some of the rows; a layer has fewer than K − 1 dimensions, where no simplex exists.

    Notes
    -----
    **Do not compare** ``nc1_pinv`` **of layers with different d.** It adds up the variance along the K − 1 directions
    between class means, so it falls like 1/d where there is nothing but noise. Compare ``nc1_trace_ratio`` or
    ``nc1_cdnv``, or each value with its own chance level, ``nc1_pinv_shuffled``.

    **A block** is, for ``layers=None``: a module inside an ``nn.Sequential`` or ``nn.ModuleList`` that has submodules
    of its own, such as a residual block or a transformer layer; and outside of such stages every child of the model
    with submodules, and every single convolution, linear or embedding layer. In an ``nn.Sequential`` of single layers
    a block runs from one of these to the next, so that its output comes after normalisation, activation and pooling.
    Flattening and dropout are not blocks. Blocks that are not called, and what ends after the classifier is called, are
    left out, and so is a block whose features are those of the classifier's input: they are listed once, as
    "NAME.input".

    A module that is called several times in one forward pass, such as a tied cell, is measured at its last call; one
    that stands under several names and is called as often, such as a single ReLU in an ``nn.Sequential``, at each call
    under one name. Of a tuple that a layer returns the first tensor is taken, of a mapping ``last_hidden_state`` or
    else the first tensor; of one that the network returns ``logits`` or else the first tensor (B, K). Three axes are
    (B, T, D), tokens and features, except in a network with Conv1d layers, where they are (B, C, L); in one with both
    Conv1d and attention, recurrent, embedding or LayerNorm layers "mean" is refused and a function needed. Layers with
    ``batch_first=False`` may give (T, B, D).

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
    pandas = _pandas()
    if wide not in ("refuse", "means"):
        raise ValueError(f"wide must be 'refuse' or 'means', got {wide!r}")
    check_weighting(weighting)
    if layers is not None and not layers:
        raise ValueError("layers is empty; give names of modules, or None for every block")
    if second_pass and iter(loader) is loader:
        raise ValueError("second_pass=True reads the loader twice, and an iterator can be read once: pass a list of it")
    first = _FirstPass(num_classes, 0 if second_pass else keep)
    with closing(run(model, loader, layers, num_classes, pool, classifier)) as batches:
        for batch in batches:
            first.add(batch, weighting, wide, max_dim)
    measured, head = first.without_twins(), first.head
    settled = (first.num_classes, pool, None if head is None else head.name)
    if first.left < 0 and not second_pass:
        warnings.warn(
            f"the features take more than keep={keep} bytes: nc4_ncc_mismatch and nc1_pinv_class_balanced are left "
            "out. Pass second_pass=True, which reads the loader twice, or a larger keep, or fewer layers",
            stacklevel=2,
        )
    with _warned_once():  # of absent classes, once and not for every layer
        _ = [layer.moments.present for layer in measured.values()]
        for seen in _again(model, loader, layers, *settled) if second_pass else first.kept:
            _compare(measured, seen)
        if second_pass and not all(layer.compared_all() for layer in measured.values()):
            raise ValueError("the loader gave other samples the second time; second_pass=True needs the same ones")
        if test is not None:
            for seen in _seen(run(model, test, layers, *settled, said=("layers",))):
                for name in measured.keys() & seen.outputs.keys():
                    measured[name].test(seen.outputs[name], seen.labels, seen.predicted)
        own = None if head is None else f"{head.name}.input"
        rows = [
            row
            for name, layer in measured.items()
            for row in layer.rows(*((head.weight, first.right) if name == own else (None, None)), per_class)
        ]
    present = next(iter(measured.values())).moments.counts.count_nonzero()
    tell_of_no_simplex({f"{name!r}": layer.moments.dim for name, layer in measured.items()}, int(present))
    frame = pandas.DataFrame(rows, columns=["layer", "class", "metric", "value"])
    return frame.astype({"class": "Int64"}) if per_class else frame.drop(columns="class")


@contextmanager
def _warned_once() -> Iterator[None]:
    said: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
    finally:
        for warning in {str(warning.message): warning for warning in said}.values():
            warnings.warn(warning.message, stacklevel=4)


class _FirstPass:
    """The layers of a network as its batches come in, and the batches as long as there is room for them."""

    def __init__(self, num_classes: int | None, room: int) -> None:
        self.num_classes, self.left = num_classes, room
        self.head: Any = None
        self.measured: dict[str, _Layer] = {}
        self.kept: list[_Seen] = []
        self.right: Tensor | None = torch.zeros(())  # (K,) samples of each class that are predicted
        self.twins: set[str] | None = None  # found layers that give what the classifier takes

    def add(self, batch: Any, weighting: Weighting, wide: str, max_dim: int) -> None:
        self.head, self.num_classes = batch.head, batch.num_classes
        for name in self.measured.keys() - batch.outputs.keys():  # left out since this batch
            del self.measured[name]
        if batch.found and self.head is not None:
            now = _like(batch.outputs, f"{self.head.name}.input")
            self.twins = now if self.twins is None else self.twins & now
        for name, h in batch.outputs.items():
            if name not in self.measured:
                self.measured[name] = _Layer.of(name, h, self.num_classes, weighting, wide, max_dim)
            self.measured[name].update(h, batch.labels)
            self.left -= h.numel() * h.element_size()
        seen = _Seen.of(batch)
        right = seen.right(self.num_classes)
        self.right = None if right is None or self.right is None else self.right + right
        self.kept.append(seen)
        if self.left < 0:
            self.kept.clear()

    def without_twins(self) -> dict[str, _Layer]:
        return {name: layer for name, layer in self.measured.items() if name not in (self.twins or ())}


class _Seen(NamedTuple):
    """A batch, on the CPU."""

    outputs: dict[str, Tensor]
    labels: Tensor
    predicted: Tensor | None

    @classmethod
    def of(cls, batch: Any) -> _Seen:
        predicted = None if batch.logits is None else batch.logits.argmax(1).cpu()
        return cls({name: h.cpu() for name, h in batch.outputs.items()}, batch.labels, predicted)

    def right(self, num_classes: int) -> Tensor | None:
        """(K,) samples of each class that are predicted."""
        if self.predicted is None:
            return None
        return torch.bincount(self.labels[self.predicted == self.labels], minlength=num_classes).double()


def _seen(batches: Any) -> Iterator[_Seen]:
    with closing(batches):
        yield from map(_Seen.of, batches)


def _again(model: nn.Module, loader: Iterable[Any], *settled: Any) -> Iterator[_Seen]:
    """The batches of a second pass, of which all has been said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from _seen(run(model, loader, *settled, said=("layers", "solves")))


def _compare(measured: dict[str, _Layer], seen: _Seen) -> None:
    for name in measured.keys() & seen.outputs.keys():
        measured[name].compare(seen.outputs[name], seen.labels, seen.predicted)


def _added(total: Tensor | None, more: Tensor) -> Tensor:
    """Sums over batches, which start as nothing."""
    return more if total is None or not len(total) else total + more


def _like(outputs: dict[str, Tensor], own: str) -> set[str]:
    """The other layers whose features are those of the layer ``own``, up to rounding: a mean may be taken twice."""
    h = outputs[own]
    alike = (name for name, other in outputs.items() if name != own and other.shape == h.shape)
    return {name for name in alike if bool((outputs[name] - h).abs().max() <= 1e-5 * h.abs().max())}


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
        there is no classifier or the layer is not its input. All on the CPU. ``nc_report(*features(…))`` works. Labels
        that are not numbers are a NumPy array.

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
    parts: list[tuple] = []
    chosen = [] if layer is None else [layer]
    with closing(run(model, loader, chosen, num_classes, pool, classifier, layer is None, any_labels=True)) as batches:
        for batch in batches:
            own = f"{batch.head.name}.input" if batch.head is not None else None
            name = layer or own
            w = batch.head.weight if own is not None and name == own else None
            logits = None if batch.logits is None else batch.logits.cpu()
            parts.append((batch.outputs[name].cpu(), batch.labels, logits))
    h, labels, logits = zip(*parts, strict=True)
    whole = None if any(part is None for part in logits) else torch.cat(logits)
    join = torch.cat if isinstance(labels[0], Tensor) else np.concatenate
    return Features(torch.cat(h), join(labels), whole, w)


def measure_file(path: str, num_classes: int | None = None) -> dict[str, float]:
    """The metrics of features in a NumPy file, as ``nclib measure FILE.npz`` prints them.

    Parameters
    ----------
    path : an .npz file with h (N, d), labels (N,) and, where there are any, logits (N, K) and w (K, d); nothing in it
        is unpickled
    num_classes : as in ``nc_report``

    Returns
    -------
    dict
        The metrics of one layer, as in ``measure``; ``nc4_ncc_mismatch`` and ``accuracy`` with logits, ``nc0`` and what
        compares with the classifier with w.

    Raises
    ------
    ValueError
        Not such a file, or arrays missing or unknown.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from nclib.metrics.measuring import measure_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/features.npz", h=np.eye(4).repeat(5, 0), labels=np.arange(4).repeat(5))
    ...     round(measure_file(f"{folder}/features.npz")["nc2_etf_distance"], 6)
    0.0
    """
    arrays = {name: as_tensor(array) for name, array in _arrays(path).items()}
    h, labels, logits, w = (arrays.get(name) for name in ("h", "labels", "logits", "w"))
    if h.ndim != 2 or 0 in h.shape:
        raise ValueError(f"h must have shape (N, d) with N, d ≥ 1, got {tuple(h.shape)}")
    if num_classes is None:
        num_classes = count_classes(w, logits, None, labels)
    layer = _Layer.of("h", h, num_classes, "class", "means", 4096)
    layer.update(h, labels)
    predicted = None if logits is None else check_logits(logits, len(h), num_classes).argmax(1)
    seen = _Seen({"h": h}, labels.long(), predicted)
    _compare({"h": layer}, seen)
    tell_of_no_simplex({path: h.shape[1]}, int(layer.moments.counts.count_nonzero()))
    rows = layer.rows(w, seen.right(num_classes), False)
    return {metric: value for _, _, metric, value in rows}


def _arrays(path: str) -> dict[str, np.ndarray]:
    """h, labels, logits, w of a file."""
    if not os.path.isfile(path):
        raise ValueError(f"{path} is not a file; numpy.savez({path!r}, h=…, labels=…) writes one")
    if not zipfile.is_zipfile(path):  # numpy would advise to unpickle it
        raise ValueError(f"{path} is not an .npz file; numpy.savez({path!r}, h=…, labels=…) writes one")
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = set(stored)
            if {"h", "labels"} <= names <= {"h", "labels", "logits", "w"}:
                return {name: stored[name] for name in names}
    except Exception as error:  # whatever numpy, zipfile and zlib raise of a damaged file
        raise ValueError(f"{path} cannot be read as an .npz file: {error or type(error).__name__}") from None
    raise ValueError(f"{path} must hold h and labels, and may hold logits and w; it holds {sorted(names)}")


@dataclass
class _Layer:
    """What is accumulated of a layer, and the rows of the table that follow from it."""

    name: str
    moments: ClassMoments
    norm_sums: Tensor  # (K,) Σ_i ‖h_i‖
    norm_squares: float = 0.0  # Σ_i (‖h_i‖ − their mean)²
    compared: Tensor | None = None  # (K,) samples that were compared with the final class means
    whitened: Tensor | None = None  # (K,), see whitened_squares
    mismatched: Tensor | None = None  # (K,) of these, whose nearest class mean is not what was predicted
    tested: _Tested | None = None

    @classmethod
    def of(cls, name: str, h: Tensor, num_classes: int, weighting: Weighting, wide: str, max_dim: int) -> _Layer:
        dim = h.shape[1]
        if dim > max_dim and wide == "refuse":
            raise ValueError(
                f"layer {name!r} has {dim} features, and its {dim} × {dim} moments would take {8e-9 * dim**2:.1f} GB: "
                f'give this layer pool="mean", or pass wide="means" to leave out what needs them, or max_dim={dim}'
            )
        moments = ClassMoments(num_classes, dim, weighting, covariance=dim <= max_dim)
        return cls(name, moments, torch.zeros(num_classes, dtype=torch.float64))

    def update(self, h: Tensor, labels: Tensor) -> None:
        before = int(self.moments.counts.sum())
        self._add_to(self.moments, h, labels)
        norms = torch.linalg.vector_norm(h.double(), dim=1).cpu()
        # as ClassMoments adds up: nothing is subtracted, and nothing kept of the samples
        gap = norms.mean() - self.norm_sums.sum() / before if before else norms.new_zeros(())
        self.norm_squares += float((norms - norms.mean()).square().sum())
        self.norm_squares += float(gap.square()) * before * len(h) / (before + len(h))
        self.norm_sums.index_add_(0, labels.long(), norms)

    def _add_to(self, moments: ClassMoments, h: Tensor, labels: Tensor) -> None:
        try:
            moments.update(h, labels)
        except ValueError as error:
            raise ValueError(f"layer {self.name!r}: {error}") from None

    def compare(self, h: Tensor, labels: Tensor, predicted: Tensor | None) -> None:
        """With the final class means."""
        m = self.moments
        self.compared = _added(self.compared, torch.bincount(labels, minlength=m.num_classes))
        self.whitened = _added(self.whitened, whitened_squares(h, labels, m))
        if predicted is not None:
            wrong = ncc_mismatches(h, predicted, m).cpu()
            self.mismatched = _added(self.mismatched, torch.bincount(labels[wrong], minlength=m.num_classes))

    def compared_all(self) -> bool:
        return self.compared is not None and torch.equal(self.compared, self.moments.counts.cpu())

    def test(self, h: Tensor, labels: Tensor, predicted: Tensor | None) -> None:
        if self.tested is None:
            self.tested = _Tested(ClassMoments(self.moments.num_classes, self.moments.dim, covariance=False))
        tested = self.tested
        self._add_to(tested.moments, h, labels)
        tested.nearest += int((~ncc_mismatches(h, labels, self.moments)).sum())
        if predicted is None:
            tested.predicted = False
        else:
            tested.mismatched += int(ncc_mismatches(h, predicted, self.moments).sum())
            tested.right += int((predicted == labels).sum())

    def rows(self, w: Tensor | None, right: Tensor | None, per_class: bool) -> list[tuple[str, int | None, str, float]]:
        """Of the classifier's input alone: w, and right, the samples of each class that are predicted."""
        m, counts = self.moments, self.moments.counts.cpu().double()
        report = moments_report(m, None if w is None else scaled_rows(w, "w").to(m.device))
        by_class = {
            "samples": counts,
            "nc1_trace_ratio": m.class_variances / m.between_rows.square().sum(),
            "feature_norm": self.norm_sums / counts,
            "mean_length": torch.linalg.vector_norm(m.centred_means, dim=1),
        }
        if self.whitened is not None:
            report["nc1_pinv_class_balanced"] = mean_of_whitened(self.whitened, m)
        if self.mismatched is not None:
            report["nc4_ncc_mismatch"] = ratio(self.mismatched.sum(), counts.sum())
            by_class["nc4_ncc_mismatch"] = self.mismatched / counts
        report = {"dim": m.dim, "samples": int(counts.sum()), **in_order(report, m.num_classes)}
        report |= nc1_chance(m)
        if m.scatter is not None:
            report["effective_rank"] = effective_rank(m)
        norm = self.norm_sums.sum() / counts.sum()
        report["feature_norm"] = float(norm)
        report["feature_norm_spread"] = float((self.norm_squares / counts.sum()).sqrt() / norm)
        if w is not None:
            report["nc0"] = nc0(w)
        if right is not None:
            report["accuracy"] = ratio(right.sum(), counts.sum())
            by_class["accuracy"] = right / counts
        if self.tested is not None:
            report |= self.tested.report(m, right is not None)
        rows = [(self.name, None, metric, float(value)) for metric, value in report.items()]
        if per_class:
            values = {metric: of_classes.tolist() for metric, of_classes in by_class.items()}
            rows += [(self.name, k, metric, float(values[metric][k])) for k in range(len(counts)) for metric in values]
        return rows


@dataclass
class _Tested:
    """What is accumulated of test data in a layer."""

    moments: ClassMoments
    nearest: int = 0  # samples whose nearest training mean is that of their class
    mismatched: int = 0  # or is not what was predicted
    right: int = 0
    predicted: bool = True  # whether all samples have predictions

    def report(self, train: ClassMoments, with_accuracy: bool) -> dict[str, float]:
        m = self.moments
        samples, both = int(m.counts.sum()), (m.counts > 0) & (train.counts > 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmptyClassWarning)  # counted below
            moved = (
                (m.class_means - train.class_means)[both].square().sum(1)
            )  # Σ_i ‖h_i − ν‖² = n ‖μ − ν‖² + Σ_i ‖h_i − μ‖²
            around = (m.counts[both] * (moved + m.class_variances[both])).sum() / m.counts[both].sum()
            report = {
                "samples_test": samples,
                "absent_classes_test": int((m.counts == 0).sum()),
                "nc1_trace_ratio_test": ratio(around, train.between_rows.square().sum()),
                "nc1_cdnv_test": nc1_cdnv(m),
                "ncc_accuracy_test": self.nearest / samples,
            }
        if self.predicted:
            report["nc4_ncc_mismatch_test"] = self.mismatched / samples
            report |= {"accuracy_test": self.right / samples} if with_accuracy else {}
        return report


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("measure returns a pandas table: pip install pandas") from None
    return pandas
