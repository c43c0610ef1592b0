"""A network run over a loader, and the outputs of its layers caught by forward hooks; it is left as it was."""

from __future__ import annotations

import math
import random
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nclib.metrics.checks import is_whole
from nclib.metrics.layers import Layers, Pool, found_for, module_named, modules_of, pools_of

_FIXED_STEPS = ("Unrolled", "Reversible")
"""Gradient rules of a DEQ, which this wing does not import, whose steps are not meant to converge."""
_LENGTHS = {nn.Conv1d, nn.ConvTranspose1d}
_TOKENS = {nn.LayerNorm, nn.MultiheadAttention, nn.Embedding, nn.LSTM, nn.GRU, nn.RNN}


class _Head(NamedTuple):
    """The classifier: its name, and its weight (K, d)."""

    name: str
    weight: Tensor


class _Call(NamedTuple):
    """The last call of a layer that may be the classifier, and the blocks that had ended before."""

    name: str
    width: int  # outputs
    input: Any
    output: Any
    before: frozenset[tuple]


class _Batch(NamedTuple):
    labels: Tensor | np.ndarray  # (B,) on the CPU
    logits: Tensor | None
    outputs: dict[str, Tensor]  # name of a layer -> (B, d)
    num_classes: int | None
    head: _Head | None
    found: bool  # whether the layers were found, not named


def run(
    model: nn.Module,
    loader: Iterable[Any],
    layers: Layers,
    num_classes: int | None,
    pool: Pool,
    classifier: str | None,
    with_input: bool = False,
    any_labels: bool = False,
    said: Collection[str] = (),
) -> Iterator[_Batch]:
    """The outputs of layers, batch by batch; with_input: those of the classifier's input as well.

    What is ``said`` already, of "layers" or "solves", is not said again.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if num_classes is not None and not (is_whole(num_classes) and num_classes >= 2):
        raise ValueError(f"num_classes must be an integer of at least 2, got {num_classes!r}")
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    watch = _Watch(modules_of(model), layers, pool, num_classes, quiet="layers" in said)
    chosen, heads = watch.chosen, watch.heads(classifier, num_classes)
    with _undisturbed(model, loader), _hooks(watch, heads), _failures_told(watch, "solves" in said):
        empty = True
        for batch in loader:
            inputs, labels = _inputs_and_labels(batch, any_labels)
            if not len(labels):
                _check_empty(inputs)
                continue
            empty = False
            watch.begin(len(labels))
            output = _forward(model, inputs)
            watch.end(output)
            outputs = watch.outputs
            if watch.head is not None and (chosen or with_input):
                name = f"{watch.head.name}.input"
                outputs[name] = watch.pooled(watch.head_input, pool, name, watch.modules[watch.head.name])
            if not outputs:
                what = "classifier" if with_input else "block"
                raise ValueError(f"no {what} was found: name a layer of model.named_modules()")
            yield _Batch(labels, watch.logits, outputs, watch.num_classes, watch.head, chosen)
        if empty:
            raise ValueError("the loader gave no batches, or empty ones alone")


def _forward(model: nn.Module, inputs: Any) -> Any:
    tensors = [*model.parameters(), *model.buffers()]
    devices = {x.device for x in tensors}
    move = (lambda x: x.to(*devices)) if len(devices) == 1 else (lambda x: x)
    # Compiled parts call no hooks, or guess that there are none. Nothing is compiled before Dynamo is imported.
    stance = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with torch.no_grad(), stance:
        if isinstance(inputs, Mapping):
            return model(**{name: move(x) if isinstance(x, Tensor) else x for name, x in inputs.items()})
        if isinstance(inputs, (tuple, list)):
            return model(*(move(_as_tensor(x)) for x in inputs))
        return model(move(_as_tensor(inputs)))


def _as_tensor(x: Any) -> Any:
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x


def _inputs_and_labels(batch: Any, any_labels: bool) -> tuple[Any, Tensor | np.ndarray]:
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
    if any_labels:
        labels = labels.detach().cpu() if isinstance(labels, Tensor) else np.asarray(labels)
        numbers = isinstance(labels, Tensor) or labels.dtype.kind not in "biuf"
        return inputs, labels if numbers else torch.from_numpy(labels)
    labels = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if not labels.size:
        return inputs, torch.empty(0, dtype=torch.int64)
    if labels.ndim != 1:
        raise ValueError(f"labels must have one axis, (B,), got {labels.shape}; of one-hot labels pass argmax(1)")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers 0 … K−1, got {labels.dtype}; convert them with labels.long()")
    return inputs, torch.from_numpy(labels.astype(np.int64))


def _check_empty(inputs: Any) -> None:
    x = next(iter(inputs.values()), ()) if isinstance(inputs, Mapping) else inputs
    x = x[0] if isinstance(x, (tuple, list)) and x else x
    if len(x):
        raise ValueError(f"a batch has {len(x)} inputs and no labels")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module's mode is as before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _undisturbed(model: nn.Module, loader: Any) -> Iterator[None]:
    """Evaluation mode; afterwards every module's mode and every random state are as before."""
    states = np.random.get_state(), random.getstate()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    generators = [getattr(x, "generator", None) for x in (loader, getattr(loader, "sampler", None))]
    own = [(x, x.get_state()) for x in generators if isinstance(x, torch.Generator)]
    try:
        with evaluating(model), torch.random.fork_rng(devices):
            yield
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])
        for generator, state in own:
            generator.set_state(state)


class _Watch:
    """Collects, in one forward pass, the outputs of layers and the calls that may be the classifier's."""

    def __init__(
        self, modules: dict[str, nn.Module], layers: Layers, pool: Pool, num_classes: int | None, quiet: bool
    ) -> None:
        self.modules, self.pools, self.quiet = modules, pools_of(modules, layers, pool), quiet
        self.chosen = found_for(modules, layers)
        self.names_of: dict[int, list[str]] = {}  # all names of a module, by its id
        for name, module in modules.items():
            self.names_of.setdefault(id(module), []).append(name)
        self.left: set[str] = set()  # layers that were found and are left out
        self.num_classes, self.head = num_classes, None
        self.head_input = self.logits = None
        self.names: list[str] | None = None  # the layers of the first batch
        kinds = {type(module) for module in modules.values()}
        self.lengths = bool(kinds & _LENGTHS)  # a network on signals, (B, C, L)
        self.unclear = self.lengths and bool(kinds & _TOKENS)
        self.begin(0)

    def begin(self, size: int) -> None:
        self.size = size
        self.outputs: dict[str, Tensor] = {}
        self.found: dict[tuple, Tensor] = {}  # (id of a module, "" or ".input", call), in the order of the calls
        self.count: dict[tuple, int] = {}  # calls of a module
        self.calls: dict[str, _Call] = {}  # of linear layers, the last call last

    def heads(self, classifier: str | None, num_classes: int | None) -> dict[str, nn.Module]:
        """The modules that may be the classifier, each under the first of its names."""
        if classifier == "auto":
            linear = {id(m): (name, m) for name, m in reversed(self.modules.items()) if isinstance(m, nn.Linear)}
            return dict(linear.values())
        if classifier is None:
            return {}
        head = module_named(self.modules, classifier)
        weight = getattr(head, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim < 2 or weight[0, 0].numel() != 1:
            raise ValueError(f"the classifier {classifier!r} must have a weight (K, d), as a linear layer has")
        if num_classes not in (None, len(weight)):
            raise ValueError(f"the classifier {classifier!r} has {len(weight)} outputs, not num_classes={num_classes}")
        self.num_classes = len(weight)
        return {classifier: head}

    def head_called(self, name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if self.head is not None and self.head.name != name:
            return
        width = getattr(module, "out_features", None) or len(module.weight)
        for other, call in list(self.calls.items()):  # the last call comes last, and of large ones it alone is kept
            if other == name or (call.width == width and isinstance(call.output, Tensor) and call.output.ndim > 2):
                del self.calls[other]
        given = first_tensor((*args, *kwargs.values()))  # cloned: a later layer may work in place
        given, output = (x.detach().clone() if isinstance(x, Tensor) else x for x in (given, output))
        self.calls[name] = _Call(name, width, given, output, frozenset(self.found))

    def called(self, end: str, module: nn.Module, value: Any) -> None:
        """Keep what a module returned or, end=".input", was given. Of a module with one name the last call is kept, of
        others each call, under the pooling of the name that it may get."""
        names = [f"{name}{end}" for name in self.names_of[id(module)]]
        wanted = [name for name in names if name in self.pools]
        call = self.count[id(module), end] = self.count.get((id(module), end), 0) + 1
        name = names[call - 1] if call <= len(names) and names[call - 1] in wanted else wanted[0]
        if name in self.left:
            return
        try:
            key = (id(module), end, call if len(names) > 1 else 1)
            self.found[key] = self.pooled(value, self.pools[name], name, module)
        except ValueError as error:
            if not self.chosen:
                raise
            self.left.add(name)  # what an earlier call gave too
            if not self.quiet:
                warnings.warn(f"{error}. This layer is left out", stacklevel=2)

    def _places(self) -> dict[str, tuple]:
        """Where each layer is kept. A module that was called as often as it has names has one call under each, and else
        the last one under all."""
        places = {}
        for module, end, call in self.found:
            names = [f"{name}{end}" for name in self.names_of[module]]
            calls = self.count[module, end]
            here = names[call - 1 : call] if len(names) in (1, calls) else names if call == calls else []
            wanted = [name for name in here if name in self.pools]
            wanted = [name for name in (wanted[:1] if self.chosen else wanted) if name not in self.left]
            places |= dict.fromkeys(wanted, (module, end, call))
        return places

    def pooled(self, value: Any, pool: Pool, name: str, module: nn.Module) -> Tensor:
        """(B, d) features of what a layer was given or returned, in memory of their own: a later layer may work in
        place."""
        x = first_tensor(value, "last_hidden_state")
        if x is None:
            raise ValueError(f"layer {name!r} gives {type(value).__name__} without a tensor")
        x = x.detach()
        x = x.cpu() if x.device.type == "mps" else x  # which has no float64
        named = name in self.pools and not self.chosen  # by the caller
        if callable(pool) and (named or x.ndim != 2):
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
        return x[:, 0].clone() if pool == "cls" and not self.lengths else x.mean(2 if self.lengths else 1)

    def end(self, output: Any) -> None:
        self.places = self._places()
        self.outputs = {name: self.found[place] for name, place in self.places.items()}
        returned = [x for x in _tensors(output) if x.ndim == 2 and len(x) == self.size and x.is_floating_point()]
        first = self.names is None
        if first:
            self._settle(output, returned)
        matrix = next((x for x in returned if x.shape[1] == self.num_classes), None)
        self.logits = None
        if self.head is not None:
            call = self.calls.get(self.head.name)
            if call is None:
                raise ValueError(f"not every batch calls the classifier {self.head.name!r}; pass classifier=None")
            self.head_input = call.input
            self._only_before(call)
            if isinstance(call.output, Tensor) and call.output.shape == (self.size, self.num_classes):
                self.logits = call.output
        self.names = [name for name in self.names if name not in self.left]
        if list(self.outputs) != self.names:
            odd = sorted(set(self.outputs) ^ set(self.names)) or self.names
            raise ValueError(f"some layers are not called in every batch: {', '.join(odd)}; name others with layers=…")
        if matrix is not None and not _probabilities(matrix, self.logits):
            if first and not self.quiet and self.logits is not None and not _follows(matrix, self.logits):
                warnings.warn(
                    f"the network's output does not follow, row by row, from that of {self.head.name!r}, which is "
                    "taken for its classifier. Where rows change their order, or other layers enter the output, "
                    "features and classifier do not belong together: name another with classifier=…, or None",
                    stacklevel=2,
                )
            self.logits = matrix  # what the network does to the outputs of its classifier may change the prediction
        if self.logits is not None:
            self.logits = self.logits.clone()  # a network may write the next batch into the same memory

    def _settle(self, output: Any, returned: list[Tensor]) -> None:
        """After the first batch: the number of classes, the classifier, the layers that are there."""
        if self.num_classes is None:
            alone = returned if isinstance(output, Tensor) or _logits_of(output) is not None else []
            last = next(reversed(self.calls.values()), None)
            width = alone[0].shape[1] if alone else last.width if last is not None else 1
            if width < 2:
                raise ValueError("the number of classes cannot be read from the network; pass num_classes=…")
            self.num_classes = width
        heads = [call for call in self.calls.values() if call.width == self.num_classes]
        if len(heads) > 1:
            heads = self._which_returned(heads, [x for x in returned if x.shape[1] == self.num_classes])
        if heads:
            (call,) = heads
            self.head = _Head(call.name, self.modules[call.name].weight.detach().flatten(1).cpu().clone())
            self._only_before(call)
        missing = [name for name in self.pools if name not in self.outputs]
        if missing and not self.chosen:
            raise ValueError(f"the forward pass does not call {', '.join(map(repr, missing))}; leave out of layers")
        self.names = list(self.outputs)

    def _which_returned(self, heads: list[_Call], returned: list[Tensor]) -> list[_Call]:
        """The one of several layers with K outputs whose outputs the network returns."""
        heads_of_rows = [call for call in heads if isinstance(call.output, Tensor) and call.output.ndim == 2]
        for same in (_equal, _probabilities, _shifted):
            found = [call for call in heads_of_rows if any(same(x, call.output) for x in returned)]
            if found:
                break
        if len(found) != 1:
            names = ", ".join(repr(call.name) for call in found or heads)
            raise ValueError(
                f"several layers have {self.num_classes} outputs and may be the classifier: {names}. Name it with "
                "classifier=…, or pass classifier=None"
            )
        return found

    def _only_before(self, call: _Call) -> None:
        """Drop blocks that end after the classifier was called: they hold it, or work on its logits."""
        if self.chosen:
            self.outputs = {name: h for name, h in self.outputs.items() if self.places[name] in call.before}


@contextmanager
def _failures_told(watch: _Watch, quiet: bool) -> Iterator[None]:
    """Count the rows that equilibrium layers do not solve, in place of their own warnings; warn at the end, also after
    an error."""
    failures: dict[str, tuple[int, int, float]] = {}  # rows, those of them that failed, the worst residual

    def count(module: nn.Module, args: tuple, output: Any) -> None:
        returned = isinstance(output, tuple) and hasattr(output[-1], "converged")
        solution = output[-1] if returned else module.last_solution
        name, missed = watch.names_of[id(module)][0], ~solution.converged
        rows, failed, worst = failures.get(name, (0, 0, 0.0))
        if missed.any():
            worst = max(worst, float(solution.residual[missed].nan_to_num(math.inf, math.inf).max()))
        failures[name] = (rows + len(missed), failed + int(missed.sum()), worst)

    layers = {id(module): module for module in watch.modules.values() if hasattr(module, "last_solution")}
    solving = [layer for layer in layers.values() if type(layer.gradient).__name__ not in _FIXED_STEPS]
    handles = [layer.register_forward_hook(count) for layer in solving]
    choices = [(layer, layer._on_failure) for layer in solving if hasattr(layer, "_on_failure")]
    try:
        for layer, _ in choices:
            layer._on_failure = "ignore"
        yield
    finally:
        for layer, choice in choices:
            layer._on_failure = choice
        for handle in handles:
            handle.remove()
        for name, (rows, failed, worst) in failures.items():
            if failed and not quiet:
                warnings.warn(
                    f"the equilibrium layer {name!r} did not converge on {failed} of {rows} rows (worst residual "
                    f"{worst:.1e}): their features, there and in later layers, are not those of a fixed point. Allow "
                    "more max_steps, such as DEQ(..., eval_solver=Anderson(max_steps=200))",
                    stacklevel=2,
                )


@contextmanager
def _hooks(watch: _Watch, heads: Mapping[str, nn.Module]) -> Iterator[None]:
    def of_output(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        watch.called("", module, output)

    def of_input(module: nn.Module, args: tuple, kwargs: dict) -> None:
        watch.called(".input", module, (*args, *kwargs.values()))

    modules = watch.modules
    outputs = {id(modules[name]): modules[name] for name in watch.pools if name in modules}
    inputs = [modules[name.removesuffix(".input")] for name in watch.pools if name not in modules]
    handles = []
    try:
        for name, module in heads.items():
            handles.append(module.register_forward_hook(partial(watch.head_called, name), with_kwargs=True))
        for module in outputs.values():
            handles.append(module.register_forward_hook(of_output, with_kwargs=True))
        for module in {id(module): module for module in inputs}.values():
            handles.append(module.register_forward_pre_hook(of_input, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(value: Any, *names: str) -> Tensor | None:
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
        return next((x for x in map(first_tensor, value) if x is not None), None)
    return None


def _logits_of(output: Any) -> Any:
    """What a network returned as its logits, by name."""
    return output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)


def _tensors(output: Any) -> Iterator[Tensor]:
    """All tensors that a network returned, what it calls logits first."""
    if isinstance(output, Tensor):
        yield output
        return
    logits = _logits_of(output)
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    for part in (logits, *parts):
        yield from _tensors(part) if part is not None else ()


def _equal(output: Tensor, logits: Tensor) -> bool:
    return torch.allclose(output.float(), logits.float())


def _probabilities(output: Tensor, logits: Tensor | None) -> bool:
    """Whether an output (B, K) is the softmax of these logits, or its logarithm."""
    if logits is None:
        return False
    each = (logits.float().softmax(1), logits.float().log_softmax(1))
    return any(torch.allclose(output.float(), x, rtol=1e-2, atol=1e-3) for x in each)


def _follows(output: Tensor, logits: Tensor) -> bool:
    """Whether an output (B, K) has the predictions of these logits, or is they with the same added to each row."""
    return bool((output.argmax(1) == logits.argmax(1)).float().mean() > 0.9) or _shifted(output, logits)


def _shifted(output: Tensor, logits: Tensor) -> bool:
    """Whether an output (B, K) is these logits with the same added to each row."""
    added = output.float() - logits.float()
    return bool((added - added[:1]).abs().max() <= 1e-3 * logits.float().abs().max())


def _tokens_first(module: nn.Module) -> bool:
    """Whether the axes may be (tokens, batch, features), as by default in torch's recurrent and attention layers."""
    return any(getattr(part, "batch_first", True) is False for part in module.modules())


def _is_one_dimensional(module: nn.Module) -> bool:
    """Whether the module is one of torch's layers on (B, C, L)."""
    return type(module).__module__.startswith("torch.nn.modules") and type(module).__name__.endswith("1d")
