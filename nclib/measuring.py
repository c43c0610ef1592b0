"""Neural collapse in every layer of any network: ``measure``, ``features`` and out-of-distribution scores.

``measure`` reads the outputs of layers through forward hooks, in one pass over the data and with one ``ClassMoments``
a layer. Torch and NumPy are enough to import this module; the table needs pandas.
"""

from __future__ import annotations

import os
import random
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nclib import metrics
from nclib.metrics.checks import Weighting, as_tensor, check_features, check_logits, check_weighting, scaled_rows
from nclib.metrics.definitions import class_balanced_pinv, ncc_mismatches
from nclib.metrics.moments import CHUNK_NUMBERS, ClassMoments
from nclib.metrics.report import count_classes, in_order, moments_report

if TYPE_CHECKING:
    import pandas as pd

Pool = str | Callable[[Tensor], Tensor]
Layers = str | Sequence[str] | Mapping[str, Pool] | None
Scores = Literal["neco", "nci", "mahalanobis"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_NO_BLOCKS = (nn.Flatten, nn.Unflatten, nn.Dropout, nn.Identity)
_LENGTHS = {nn.Conv1d, nn.ConvTranspose1d}
_TOKENS = {nn.LayerNorm, nn.MultiheadAttention, nn.Embedding, nn.LSTM, nn.GRU, nn.RNN}


class Features(NamedTuple):
    """What ``features`` returns, in the order of the arguments of ``nc_report``."""

    h: Tensor
    labels: Tensor
    logits: Tensor | None
    w: Tensor | None


# ------------------------------------------------------------------------------------------------ the two functions


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
) -> pd.DataFrame:
    """Neural collapse in the layers of a network, as a table.

    The network runs once over the data, in evaluation mode and without gradients. Afterwards its mode, its hooks and
    the random state are as before, also after an error.

    Parameters
    ----------
    model : any network. Wrappers of ``torch.compile`` and ``DataParallel`` are looked through.
    loader : yields (inputs, labels). Inputs are a tensor, a tuple of tensors (several arguments) or a mapping (keyword
        arguments) and are moved to the model's device; labels are integers 0 … K−1, a tensor, an array or a list.
    layers : which layers, by the names of ``model.named_modules()``. "NAME" is the output of a module, "NAME.input"
        what enters it. A mapping gives each its own pooling. None takes the input of the classifier and the output of
        every block, see Notes.
    num_classes : K; left out, the number of columns of the network's output, or else of its last linear layer's.
    pool : how a feature map becomes a vector. "mean" averages over the positions of (B, C, H, W) and over the tokens
        of (B, T, D), "flatten" keeps all numbers, a function takes the output and returns (B, d).
    per_class : add rows for each class, with a column ``class``.
    classifier : "auto" finds the linear layer with K outputs that is called last; otherwise the name of a module with a
        (K, d) weight; None for a network without one. Without a classifier, what needs its weight is left out.
    weighting : "class" or "sample", see ``ClassMoments``.
    wide : what happens to a layer with d > ``max_dim`` features, whose d × d moments would be too large. "refuse" stops
        and says so; "means" leaves out what needs them: ``nc1_pinv`` and its chance level, ``effective_rank``.
    max_dim : the largest d for which d × d moments are kept; 4096 takes 134 MB a layer.
    keep : bytes of features kept in memory for the metrics that compare samples with final class means. Beyond it,
        ``nc4_ncc_mismatch`` and ``nc1_pinv_class_balanced`` are left out, with a warning.

    Returns
    -------
    DataFrame
        Columns ``layer``, ``metric``, ``value``, layers in the order in which they are called. Metrics are those of
        ``nc_report``, under the same names, and: ``dim`` (d), ``samples``, ``feature_norm`` (mean of ‖h‖),
        ``feature_norm_spread`` (standard deviation of ‖h‖ over its mean), ``effective_rank``,
        ``nc1_pinv_shuffled`` and ``nc1_trace_ratio_shuffled`` (``nc1_chance``). What compares with the classifier's
        weight, ``nc0`` and ``accuracy`` belong to the classifier's input alone. ``nc4_ncc_mismatch`` of any other layer
        is the share of samples whose nearest class mean in that layer is not the class that the network predicts.

        With ``per_class``, rows with a class: ``samples``, ``nc1_trace_ratio`` (its variance over tr Σ_B; their mean
        over samples is the value of the layer), ``feature_norm``, ``mean_length`` (‖μ_k − μ‖), ``nc4_ncc_mismatch``
        and, of the classifier's input, ``accuracy``. In the other rows the class is missing.

    Raises
    ------
    ValueError
        A layer that does not exist or is not called, an output that has no samples along its first axis, labels that
        do not fit, NaN or infinite features, a layer that is too wide.
    ImportError
        pandas is not installed.

    Warns
    -----
    UserWarning
        A block chosen by ``layers=None`` is left out, or ``keep`` is too small.

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
    left out.

    A module that is called several times in one forward pass, such as a tied cell, is measured at its last call. Of a
    tuple the first tensor is taken, of a mapping ``last_hidden_state`` or else the first tensor. Three axes are
    (B, T, D), tokens and features, except in a network with Conv1d layers, where they are (B, C, L); in one with both
    Conv1d and attention, recurrent, embedding or LayerNorm layers "mean" is refused and a function needed. Layers with
    ``batch_first=False`` may give (T, B, D).

    Examples
    --------
    >>> import torch, nclib as nc
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> x, y = torch.randn(60, 8), torch.arange(60) % 3
    >>> table = nc.measure(net, [(x, y)])
    >>> list(table["layer"].unique())
    ['1', '2.input']
    >>> table.pivot(index="metric", columns="layer", values="value").loc["dim"].tolist()
    [16.0, 16.0]
    """
    pandas = _pandas()
    if wide not in ("refuse", "means"):
        raise ValueError(f"wide must be 'refuse' or 'means', got {wide!r}")
    check_weighting(weighting)
    if layers is not None and not layers:
        raise ValueError("layers is empty; give names of modules, or None for every block")
    measured: dict[str, _Layer] = {}
    all_labels, predicted, head, left = [], [], None, keep
    with closing(_run(model, loader, layers, num_classes, pool, classifier)) as batches:
        for batch in batches:
            head = batch.head
            all_labels.append(batch.labels)
            if batch.logits is not None:
                predicted.append(batch.logits.argmax(1).cpu())
            for name, h in batch.outputs.items():
                if name not in measured:
                    measured[name] = _Layer.of(name, h, batch.num_classes, weighting, wide, max_dim)
                measured[name].update(h, batch.labels)
                left -= h.numel() * h.element_size()
                measured[name].kept.append(h.cpu())
            if left < 0:
                for layer in measured.values():
                    layer.kept.clear()
    if left < 0:
        warnings.warn(
            f"the features take more than keep={keep} bytes: nc4_ncc_mismatch and nc1_pinv_class_balanced are left "
            "out. Give a larger keep or fewer layers",
            stacklevel=2,
        )
    labels = torch.cat(all_labels)
    prediction = torch.cat(predicted) if sum(map(len, predicted)) == len(labels) else None
    rows: list[tuple] = []
    with warnings.catch_warnings(record=True) as said:  # of absent classes, once and not for every layer
        warnings.simplefilter("always")
        for name, layer in measured.items():
            of_head = head is not None and name == f"{head.name}.input"
            h = torch.cat(layer.kept) if layer.kept else None
            rows += layer.rows(labels, prediction, h, head.weight if of_head else None, of_head, per_class)
    for warning in {str(warning.message): warning for warning in said}.values():
        warnings.warn(warning.message, stacklevel=2)
    frame = pandas.DataFrame(rows, columns=["layer", "class", "metric", "value"])
    if not per_class:
        return frame.drop(columns="class")
    return frame.astype({"class": "Int64"})


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
        anything
    layer : name of a module, or "NAME.input"; None is the input of the classifier

    Returns
    -------
    Features
        ``h`` (N, d), ``labels`` (N,), ``logits`` (N, K) or None, ``w`` (K, d), the classifier's weight, or None where
        there is no classifier or the layer is not its input. All on the CPU. ``nc_report(*features(…))`` works.

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
    with closing(_run(model, loader, chosen, num_classes, pool, classifier, layer is None)) as batches:
        for batch in batches:
            own = f"{batch.head.name}.input" if batch.head is not None else None
            name = layer or own
            w = batch.head.weight if own is not None and name == own else None
            logits = None if batch.logits is None else batch.logits.cpu()
            parts.append((batch.outputs[name].cpu(), batch.labels, logits))
    h, labels, logits = zip(*parts, strict=True)
    whole = None if any(part is None for part in logits) else torch.cat(logits)
    return Features(torch.cat(h), torch.cat(labels), whole, w)


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
        Not such a file, arrays missing or unknown, or arrays of more than 8 GiB.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from nclib.measuring import measure_file
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
    return {metric: value for _, _, metric, value in layer.rows(labels.long(), predicted, h, w, True, False)}


def _arrays(path: str, largest: int = 2**33) -> dict[str, np.ndarray]:
    """h, labels, logits, w of a file; what they take in memory is read from their headers before they are unpacked."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise ValueError(f"{path} is not a file; numpy.savez({path!r}, h=…, labels=…) writes one")
    try:
        with zipfile.ZipFile(path) as packed:
            sizes = {item.filename.removesuffix(".npy"): item.file_size for item in packed.infolist()}
    except zipfile.BadZipFile:
        raise ValueError(f"{path} is not an .npz file; numpy.savez({path!r}, h=…, labels=…) writes one") from None
    if not {"h", "labels"} <= set(sizes) <= {"h", "labels", "logits", "w"}:
        found = ", ".join(map(repr, sizes)) or "nothing"
        raise ValueError(f"{path} must hold h and labels, and may hold logits and w; it holds {found}")
    if sum(sizes.values()) > largest:
        taken, allowed = (f"{size / 2**30:.1f} GiB" for size in (sum(sizes.values()), largest))
        raise ValueError(f"the arrays of {path} take {taken}, more than the {allowed} allowed")
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in sizes}
    except (ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


# -------------------------------------------------------------------------------------- one layer while data comes in


@dataclass
class _Layer:
    """What is accumulated of a layer, and the rows of the table that follow from it."""

    name: str
    moments: ClassMoments
    norm_sums: Tensor  # (K,) Σ_i ‖h_i‖
    norms: list[Tensor] = field(default_factory=list)  # ‖h_i‖ of all samples: one number each
    kept: list[Tensor] = field(default_factory=list)

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
        try:
            self.moments.update(h, labels)
        except ValueError as error:
            raise ValueError(f"layer {self.name!r}: {error}") from None
        norms = torch.linalg.vector_norm(h.double(), dim=1).cpu()
        self.norm_sums.index_add_(0, labels.long(), norms)
        self.norms.append(norms)

    def rows(
        self,
        labels: Tensor,
        predicted: Tensor | None,
        h: Tensor | None,
        w: Tensor | None,
        of_head: bool,
        per_class: bool,
    ) -> list[tuple[str, int | None, str, float]]:
        m, norms = self.moments, torch.cat(self.norms)
        counts = m.counts.cpu().double()
        report = moments_report(m, None if w is None else scaled_rows(w, "w").to(m.device))
        by_class = {
            "samples": counts,
            "nc1_trace_ratio": m.class_variances / m._weighted_rows().square().sum(),
            "feature_norm": self.norm_sums / counts,
            "mean_length": torch.linalg.vector_norm(m.centred_means, dim=1),
        }
        if h is not None:
            report["nc1_pinv_class_balanced"] = class_balanced_pinv(h, labels, m)
        if h is not None and predicted is not None:
            wrong = ncc_mismatches(h, predicted, m).cpu()
            report["nc4_ncc_mismatch"] = float(wrong.double().mean())
            by_class["nc4_ncc_mismatch"] = torch.bincount(labels[wrong], minlength=m.num_classes) / counts
        report = {"dim": m.dim, "samples": int(counts.sum()), **in_order(report, m.num_classes)}
        report |= metrics.nc1_chance(m)
        if m._sums.scatter is not None:
            report["effective_rank"] = metrics.effective_rank(m)
        report["feature_norm"] = float(norms.mean())
        report["feature_norm_spread"] = float(norms.std(correction=0) / norms.mean())
        if w is not None:
            report["nc0"] = metrics.nc0(w)
        if of_head and predicted is not None:
            right = predicted == labels
            report["accuracy"] = float(right.double().mean())
            by_class["accuracy"] = torch.bincount(labels[right], minlength=m.num_classes) / counts
        rows = [(self.name, None, metric, float(value)) for metric, value in report.items()]
        if per_class:
            values = {metric: of_classes.tolist() for metric, of_classes in by_class.items()}
            rows += [(self.name, k, metric, float(values[metric][k])) for k in range(len(counts)) for metric in values]
        return rows


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("measure returns a pandas table: pip install pandas") from None
    return pandas


# ------------------------------------------------------------------------------------------------- running a network


class _Head(NamedTuple):
    """The classifier: its name, and its weight (K, d)."""

    name: str
    weight: Tensor


class _Call(NamedTuple):
    """One call of a layer that may be the classifier, and the blocks that had ended before."""

    name: str
    input: Any
    output: Any
    before: frozenset[str]


class _Batch(NamedTuple):
    labels: Tensor  # (B,) on the CPU
    logits: Tensor | None
    outputs: dict[str, Tensor]  # name of a layer -> (B, d)
    num_classes: int | None
    head: _Head | None


def _run(
    model: nn.Module,
    loader: Iterable[Any],
    layers: Layers,
    num_classes: int | None,
    pool: Pool,
    classifier: str | None,
    with_input: bool = False,
) -> Iterator[_Batch]:
    """The outputs of layers, batch by batch; with_input: those of the classifier's input as well."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if num_classes is not None and (not isinstance(num_classes, int) or num_classes < 2):
        raise ValueError(f"num_classes must be an integer of at least 2, got {num_classes!r}")
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    modules = dict(model.named_modules())
    chosen = layers is None
    watch = _Watch(modules, _pools(modules, layers, pool), chosen)
    with _undisturbed(model, loader), _hooks(watch, classifier, num_classes):
        empty = True
        for batch in loader:
            empty = False
            inputs, labels = _inputs_and_labels(batch)
            watch.begin(len(labels))
            output = _forward(model, inputs)
            watch.end(output)
            outputs = dict(watch.outputs)
            if watch.head is not None and (chosen or with_input):
                name = f"{watch.head.name}.input"
                outputs[name] = watch.pooled(watch.head_input, pool, name, modules[watch.head.name])
            if not outputs:
                what = "classifier" if with_input else "block"
                raise ValueError(f"no {what} was found: name a layer of model.named_modules()")
            yield _Batch(labels, watch.logits, outputs, watch.num_classes, watch.head)
        if empty:
            raise ValueError("the loader gave no batches")


def _forward(model: nn.Module, inputs: Any) -> Any:
    tensors = [*model.parameters(), *model.buffers()]
    devices = {x.device for x in tensors}
    move = (lambda x: x.to(*devices)) if len(devices) == 1 else (lambda x: x)
    with torch.no_grad():
        if isinstance(inputs, Mapping):
            return model(**{name: move(x) if isinstance(x, Tensor) else x for name, x in inputs.items()})
        if isinstance(inputs, (tuple, list)):
            return model(*(move(_as_tensor(x)) for x in inputs))
        return model(move(_as_tensor(inputs)))


def _as_tensor(x: Any) -> Any:
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x


def _inputs_and_labels(batch: Any) -> tuple[Any, Tensor]:
    if isinstance(batch, Mapping):
        names = ", ".join(map(repr, batch))
        raise ValueError(
            f"a batch must be (inputs, labels), not a mapping with {names}: pass "
            f'((b["…"], b["…"]) for b in loader) with the names of the inputs and of the labels'
        )
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        what = f"{len(batch)} parts" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise ValueError(f"a batch must be (inputs, labels), got {what}: pass ((b[0], b[1]) for b in loader)")
    inputs, labels = batch
    labels = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels must have one axis, (B,), got {labels.shape}; of one-hot labels pass argmax(1)")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers 0 … K−1, got {labels.dtype}; convert them with labels.long()")
    return inputs, torch.from_numpy(labels.astype(np.int64))


@contextmanager
def _undisturbed(model: nn.Module, loader: Any) -> Iterator[None]:
    """Evaluation mode; afterwards every module's mode and every random state are as before."""
    modes = [(module, module.training) for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    generators = [getattr(x, "generator", None) for x in (loader, getattr(loader, "sampler", None))]
    own = [(x, x.get_state()) for x in generators if isinstance(x, torch.Generator)]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        for generator, state in own:
            generator.set_state(state)


# ------------------------------------------------------------------------------------------------------------- hooks


class _Watch:
    """Collects, in one forward pass, the outputs of layers and the calls that may be the classifier's."""

    def __init__(self, modules: dict[str, nn.Module], pools: dict[str, Pool], chosen: bool) -> None:
        self.modules, self.pools, self.chosen = modules, pools, chosen
        self.outputs: dict[str, Tensor] = {}
        self.calls: dict[int, _Call] = {}  # by the number of outputs: the last call of a linear layer that has them
        self.head: _Head | None = None
        self.head_input = self.logits = self.num_classes = None
        self.names: list[str] | None = None  # the layers of the first batch
        self.size = 0
        kinds = {type(module) for module in modules.values()}
        self.lengths = bool(kinds & _LENGTHS)  # a network on signals, (B, C, L)
        self.unclear = self.lengths and bool(kinds & _TOKENS)

    def begin(self, size: int) -> None:
        self.size = size
        self.outputs.clear()
        self.calls.clear()

    def layer(self, name: str, module: nn.Module, value: Any) -> None:
        try:
            self.outputs[name] = self.pooled(value, self.pools[name], name, module)
        except ValueError as error:
            if not self.chosen:
                raise
            if self.names is None:  # once
                warnings.warn(f"{error}. This layer is left out", stacklevel=2)

    def pooled(self, value: Any, pool: Pool, name: str, module: nn.Module) -> Tensor:
        """(B, d) features of what a layer was given or returned, in memory of their own: a later layer may work in
        place."""
        x = _first_tensor(value, "last_hidden_state")
        if x is None:
            raise ValueError(f"layer {name!r} gives {type(value).__name__} without a tensor")
        x = x.detach()
        x = x.cpu() if x.device.type == "mps" else x  # which has no float64
        if callable(pool):
            h = pool(x)
            if not isinstance(h, Tensor) or h.ndim != 2 or len(h) != self.size:
                shape = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
                raise ValueError(f"pool must return (B, d) = ({self.size}, d) for layer {name!r}, got {shape}")
            return h.clone()
        if not x.is_floating_point():
            raise ValueError(f"layer {name!r} gives {x.dtype}, not floating point")
        swapped = x.ndim == 3 and x.shape[1] == self.size and _tokens_first(module)
        given = f"layer {name!r} gives {tuple(x.shape)}"
        if swapped and len(x) == self.size:
            raise ValueError(f"{given}, and either axis may be the batch: pass a function as its pool")
        x = x.transpose(0, 1) if swapped else x
        if x.ndim < 2 or len(x) != self.size:
            raise ValueError(
                f"{given}, whose first axis is not the batch of {self.size}: pass a function as its pool that returns "
                "(B, d)"
            )
        if x.ndim == 2 or pool == "flatten":
            return x.flatten(1).clone()
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        if x.ndim > 3 or type(module) in _LENGTHS or _is_one_dimensional(module):
            return x.flatten(2).mean(2)
        if self.unclear:
            raise ValueError(f"{given}, which may be (B, C, L) or (B, T, D): pass a function as its pool")
        return x.mean(2 if self.lengths else 1)

    def end(self, output: Any) -> None:
        matrix = _logits(output, self.size)
        if self.names is None:
            self._settle(matrix)
        self.logits = None
        if self.head is not None:
            call = self.calls.get(self.num_classes)
            if call is None or call.name != self.head.name:
                raise ValueError(f"not every batch calls the classifier {self.head.name!r}; pass classifier=None")
            self.head_input = call.input
            self._only_before(call)
            if isinstance(call.output, Tensor) and call.output.shape == (self.size, self.num_classes):
                self.logits = call.output
        if list(self.outputs) != self.names:
            odd = sorted(set(self.outputs) ^ set(self.names)) or self.names
            raise ValueError(f"some layers are not called in every batch: {', '.join(odd)}; name others with layers=…")
        if self.logits is None and matrix is not None and matrix.shape[1] == self.num_classes:
            self.logits = matrix

    def _settle(self, matrix: Tensor | None) -> None:
        """After the first batch: the number of classes, the classifier, the layers that are there."""
        if self.num_classes is None:
            width = matrix.shape[1] if matrix is not None else next(reversed(self.calls), 1)
            if width < 2:
                raise ValueError("the number of classes cannot be read from the network; pass num_classes=…")
            self.num_classes = width
        if self.num_classes in self.calls:
            call = self.calls[self.num_classes]
            self.head = _Head(call.name, self.modules[call.name].weight.detach().flatten(1).cpu())
            self._only_before(call)
        missing = [name for name in self.pools if name not in self.outputs]
        if missing and not self.chosen:
            raise ValueError(f"the forward pass does not call {', '.join(map(repr, missing))}; leave out of layers")
        self.names = list(self.outputs)

    def _only_before(self, call: _Call) -> None:
        """Drop blocks that end after the classifier was called: they hold it, or work on its logits."""
        if self.chosen:
            self.outputs = {name: h for name, h in self.outputs.items() if name in call.before}


@contextmanager
def _hooks(watch: _Watch, classifier: str | None, num_classes: int | None) -> Iterator[None]:
    watch.num_classes = num_classes
    heads: dict[str, nn.Module] = {}
    if classifier == "auto":
        heads = {name: module for name, module in watch.modules.items() if isinstance(module, nn.Linear)}
    elif classifier is not None:
        heads = {classifier: _named(watch.modules, classifier)}
        weight = getattr(heads[classifier], "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim < 2 or weight[0, 0].numel() != 1:
            raise ValueError(f"the classifier {classifier!r} must have a weight (K, d), as a linear layer has")
        if num_classes is not None and len(weight) != num_classes:
            raise ValueError(f"the classifier {classifier!r} has {len(weight)} outputs, not num_classes={num_classes}")
        watch.num_classes = len(weight)

    def of_head(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            width = getattr(module, "out_features", None) or len(module.weight)
            watch.calls.pop(width, None)  # the last call comes last
            given = _first_tensor((*args, *kwargs.values()))
            watch.calls[width] = _Call(name, given, output, frozenset(watch.outputs))

        return hook

    def of_output(name: str) -> Callable:
        return lambda module, args, kwargs, output: watch.layer(name, module, output)

    def of_input(name: str) -> Callable:
        return lambda module, args, kwargs: watch.layer(name, module, (*args, *kwargs.values()))

    handles = []
    try:
        for name, module in heads.items():
            handles.append(module.register_forward_hook(of_head(name), with_kwargs=True))
        for name in watch.pools:
            if name in watch.modules:
                handles.append(watch.modules[name].register_forward_hook(of_output(name), with_kwargs=True))
            else:
                module = watch.modules[name.removesuffix(".input")]
                handles.append(module.register_forward_pre_hook(of_input(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_tensor(value: Any, *names: str) -> Tensor | None:
    """The value itself, what it holds under one of the names, or the first tensor in it."""
    if isinstance(value, Tensor):
        return value
    for name in names:
        held = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if isinstance(held, Tensor):
            return held
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return next((x for x in map(_first_tensor, value) if x is not None), None)
    return None


def _logits(output: Any, size: int) -> Tensor | None:
    """(B, K) from what a network returned, or None."""
    if not isinstance(output, Tensor):
        output = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    fits = isinstance(output, Tensor) and output.ndim == 2 and len(output) == size and output.is_floating_point()
    return output if fits else None


def _tokens_first(module: nn.Module) -> bool:
    """Whether the axes may be (tokens, batch, features), as by default in torch's recurrent and attention layers."""
    return any(getattr(part, "batch_first", True) is False for part in module.modules())


def _is_one_dimensional(module: nn.Module) -> bool:
    """Whether the module is one of torch's layers on (B, C, L)."""
    return type(module).__module__.startswith("torch.nn.modules") and type(module).__name__.endswith("1d")


# ------------------------------------------------------------------------------------------------- names and blocks


def _named(modules: Mapping[str, nn.Module], name: str) -> nn.Module:
    if name not in modules:
        near = get_close_matches(name, modules, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ". See [name for name, _ in model.named_modules()]"
        raise ValueError(f"the network has no module {name!r}{hint}")
    return modules[name]


def _pools(modules: Mapping[str, nn.Module], layers: Layers, pool: Pool) -> dict[str, Pool]:
    """The pooling of every layer that is wanted by name."""
    if layers is None:
        named: dict[str, Pool] = dict.fromkeys(_blocks(modules[""]), pool)
    elif isinstance(layers, Mapping):
        named = dict(layers)
    else:
        names = [layers] if isinstance(layers, str) else list(layers)
        named = dict.fromkeys(names, pool)
    for name, how in {"": pool, **named}.items():
        if not (callable(how) or how in ("mean", "flatten")):
            raise ValueError(f"pool must be 'mean', 'flatten' or a function that returns (B, d), got {how!r}")
        if name not in modules:
            _named(modules, name.removesuffix(".input"))
    return named


def _blocks(model: nn.Module) -> list[str]:
    """Names of the blocks of ``layers=None``; see the notes of ``measure``."""
    found: list[str] = []

    def visit(parent: nn.Module, prefix: str) -> None:
        children = [(f"{prefix}{name}", child) for name, child in parent.named_children()]
        runs = isinstance(parent, nn.Sequential)
        last = None  # of a run of single layers
        for name, child in children:
            single = next(child.children(), None) is None
            if not runs or not single or _has_weight(child):
                found.extend([last] if last else [])
                last = None
            wrapper = not single and type(parent) not in _CONTAINERS and _has_stage(child)
            if type(child) in _CONTAINERS or wrapper:
                visit(child, f"{name}.")
            elif not single or (_has_weight(child) and not runs):
                found.append(name)
            elif runs and (_has_weight(child) or last) and not isinstance(child, _NO_BLOCKS):
                last = name
        found.extend([last] if last else [])

    visit(model, "")
    return found


def _has_weight(layer: nn.Module) -> bool:
    """A convolution, linear or embedding layer: one with a weight of two or more axes (or a lazy one)."""
    weight = getattr(layer, "weight", None)
    return isinstance(weight, nn.parameter.UninitializedParameter) or (isinstance(weight, Tensor) and weight.ndim > 1)


def _has_stage(module: nn.Module) -> bool:
    """Whether a sequence of blocks is somewhere inside."""
    containers = (part for part in module.modules() if type(part) in _CONTAINERS)
    return any(
        next(child.children(), None) is not None and type(child) not in _CONTAINERS
        for container in containers
        for child in container.children()
    )


# -------------------------------------------------------------------------------------- out of distribution


def ood_scores(
    features: Tensor | np.ndarray | Features,
    moments: ClassMoments,
    w: Tensor | np.ndarray | None = None,
    method: Scores = "neco",
    *,
    logits: Tensor | np.ndarray | None = None,
    dim: int | None = None,
    alpha: float = 0.0,
) -> Tensor:
    """Scores of samples from the geometry of collapse: the larger, the more like the training data.

        "neco"         ‖P h‖ / ‖h‖, P the projection onto ``dim`` principal components of the training features
        "nci"          (h − μ)·w_c / ‖h − μ‖ + alpha ‖h‖₁, c the predicted class, μ the mean of the training features
        "mahalanobis"  −min_k (h − μ_k)ᵀ Σ_W⁻¹ (h − μ_k)

    "neco" and "nci" suppose that the features have collapsed; "mahalanobis" does not.

    Parameters
    ----------
    features : (N, d), or what ``nc.features`` returned, whose logits and w then count where none are given
    moments : of the training features, ``class_moments`` or ``ClassMoments``; with a covariance, except for "nci"
    w : (K, d) classifier rows; "nci" alone needs them
    method : "neco", "nci" or "mahalanobis"
    logits : (N, K) of the samples; "nci" predicts with them, without them with h wᵀ, that is, without a bias
    dim : of "neco"; left out, K − 1, the dimension of a simplex of K classes
    alpha : of "nci", the weight of ‖h‖₁; the paper tunes it on validation data

    Returns
    -------
    Tensor
        (N,) float64, on the device of the moments. A sample for which a ratio is 0/0 has 0 there.

    Raises
    ------
    ValueError
        An unknown method, shapes that do not fit, w missing for "nci", moments without a covariance.

    Notes
    -----
    Sources: NECO, Ben Ammar et al. 2024, eq. (6), neither standardised nor centred; for transformers the authors
    multiply by the largest logit. NCI, Liu & Qin 2025. Mahalanobis, Lee et al. 2018, eq. (2). Directions in which
    Σ_W has less than 1e-12 of its largest eigenvalue do not count in the Mahalanobis distance.

    Examples
    --------
    >>> import torch, nclib as nc
    >>> labels, noise = torch.arange(100) % 10, torch.Generator().manual_seed(0)
    >>> train = nc.simplex_etf(10, 32)[labels] + 0.01 * torch.randn(100, 32, generator=noise)
    >>> moments = nc.class_moments(train, labels, 10)
    >>> other = torch.randn(100, 32, generator=noise)
    >>> bool(nc.ood_scores(train, moments).min() > nc.ood_scores(other, moments).max())
    True
    """
    if method not in ("neco", "nci", "mahalanobis"):
        raise ValueError(f"method must be 'neco', 'nci' or 'mahalanobis', got {method!r}")
    if isinstance(features, Features):
        logits = features.logits if logits is None else logits
        w, features = features.w if w is None else w, features.h
    h = check_features(features, moments.dim).to(moments.device).double()
    sampled = moments.with_weighting("sample")
    if method == "mahalanobis":
        return _mahalanobis(h, moments)
    if method == "neco":
        dim = min(moments.num_classes - 1, moments.dim) if dim is None else dim
        if not 1 <= dim <= moments.dim:
            raise ValueError(f"dim must lie in 1 … {moments.dim}, the number of features, got {dim}")
        components = torch.linalg.eigh(moments.within_cov + sampled.between_cov)[1][:, -dim:]
        return _quotient(torch.linalg.vector_norm(h @ components, dim=1), torch.linalg.vector_norm(h, dim=1))
    if w is None:
        raise ValueError('"nci" compares features with the classifier: pass w, its (K, d) weight')
    w = as_tensor(w).to(h).detach()
    if w.shape != (moments.num_classes, moments.dim):
        raise ValueError(f"w must have shape ({moments.num_classes}, {moments.dim}), got {tuple(w.shape)}")
    scores = h @ w.T if logits is None else check_logits(logits, len(h), len(w)).to(h.device)
    centred = h - sampled.global_mean
    proximity = (centred * w[scores.argmax(1)]).sum(1)
    return _quotient(proximity, torch.linalg.vector_norm(centred, dim=1)) + alpha * h.abs().sum(1)


def _mahalanobis(h: Tensor, m: ClassMoments) -> Tensor:
    values, directions = torch.linalg.eigh(m.within_cov)
    keep = values > max(1e-12 * float(values[-1]), 0.0)
    if not keep.any():
        raise ValueError("the training features do not vary within their classes: there is no Mahalanobis distance")
    whiten = directions[:, keep] / values[keep].sqrt()
    means = m._sums.means[m.present] @ whiten  # around the first sample, as the features
    step = max(1, CHUNK_NUMBERS // max(h.shape[1], len(means)))
    near = [
        torch.cdist((part - m._sums.shift) @ whiten, means, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        for part in h.split(step)
    ]
    return -torch.cat(near).square()


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b > 0, a / b, 0.0)
