"""A network run over a loader, and what its layers give caught by forward hooks; it is left as it was."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nclib.metrics.layers import Layers, Pool, found_for, module_named, modules_of, pools_of

_FIXED_STEPS = ("Unrolled", "Reversible")
"""Gradient rules of a DEQ, which this wing does not import, whose steps are not meant to converge."""
_LENGTHS = (nn.Conv1d, nn.ConvTranspose1d)
_TOKENS = (nn.LayerNorm, nn.MultiheadAttention, nn.Embedding, nn.RNNBase)


class Head(NamedTuple):
    """The classifier: its name, and its weight (K, d)."""

    name: str
    weight: Tensor


class Batch(NamedTuple):
    labels: Tensor | np.ndarray  # (B,) on the CPU; an array where they are not numbers
    logits: Tensor | None
    outputs: dict[str, Tensor]  # name of a layer -> (B, d)
    num_classes: int
    head: Head | None
    found: bool  # whether the layers were found, not named


class _Call(NamedTuple):
    """The last call of a layer that may be the classifier, and how many layers had been called before."""

    input: Any
    output: Tensor
    before: int


def run(
    model: nn.Module,
    loader: Iterable[Any],
    layers: Layers,
    num_classes: int | None,
    pool: Pool,
    classifier: str | None,
) -> Iterator[Batch]:
    """The outputs of layers, batch by batch; without any layers, the classifier's input alone."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    watch = _Watch(modules_of(model), layers, pool, num_classes, classifier)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with evaluating(model), torch.random.fork_rng(devices), watch.hooked(), _failures_told(watch.modules) as count:
        for batch in loader:
            inputs, labels = _inputs_and_labels(batch)
            if len(labels):
                watch.begin(len(labels))
                output = _forward(model, inputs)
                count()
                yield watch.end(labels, output)
        if watch.names is None:
            raise ValueError("the loader gave no batches, or empty ones alone")


def _forward(model: nn.Module, inputs: Any) -> Any:
    devices = {x.device for x in (*model.parameters(), *model.buffers())}

    def moved(x: Any) -> Any:
        x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
        return x.to(*devices) if isinstance(x, Tensor) and len(devices) == 1 else x

    # Compiled parts call no hooks, or guess that there are none. Nothing is compiled before Dynamo is imported.
    stance = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with torch.no_grad(), stance:
        if isinstance(inputs, Mapping):
            return model(**{name: moved(x) for name, x in inputs.items()})
        return model(*map(moved, inputs if isinstance(inputs, (tuple, list)) else [inputs]))


def _inputs_and_labels(batch: Any) -> tuple[Any, Tensor | np.ndarray]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        what = f"{len(batch)} parts" if isinstance(batch, (tuple, list, Mapping)) else type(batch).__name__
        raise ValueError(
            f'a batch must be (inputs, labels), got {what}: pass ((b["…"], b["…"]) for b in loader), with the names or '
            "numbers of the inputs and of the labels"
        )
    inputs, labels = batch
    if isinstance(labels, Tensor):
        return inputs, labels.detach().cpu()
    labels = np.asarray(labels)
    return inputs, torch.from_numpy(labels) if labels.dtype.kind in "biuf" else labels


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


class _Watch:
    """Collects, in one forward pass, the outputs of layers and the calls that may be the classifier's."""

    def __init__(
        self,
        modules: dict[str, nn.Module],
        layers: Layers,
        pool: Pool,
        num_classes: int | None,
        classifier: str | None,
    ) -> None:
        self.modules, self.pool, self.pools = modules, pool, pools_of(modules, layers, pool)
        self.chosen = found_for(modules, layers)
        self.names_of: dict[int, list[str]] = {}  # all names of a module, by its id
        for name, module in modules.items():
            self.names_of.setdefault(id(module), []).append(name)
        self.left: set[str] = set()  # layers that were found and are left out
        self.named, self.num_classes, self.head = classifier != "auto", num_classes, None
        self.heads = self._heads(classifier)
        self.names: set[str] | None = None  # the layers of every batch
        self.lengths = any(isinstance(module, _LENGTHS) for module in modules.values())  # signals, (B, C, L)
        self.unclear = self.lengths and any(isinstance(module, _TOKENS) for module in modules.values())

    def begin(self, size: int) -> None:
        self.size = size
        self.given: dict[tuple, Tensor] = {}  # (id of a module, "" or ".input", call), in the order of the calls
        self.count: dict[tuple, int] = {}  # calls of a module
        self.calls: dict[str, _Call] = {}  # of linear layers, the last call last

    def _heads(self, classifier: str | None) -> dict[str, nn.Module]:
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
        self.num_classes = len(weight)
        return {classifier: head}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        handles = [
            module.register_forward_hook(partial(self._head_called, name), with_kwargs=True)
            for name, module in self.heads.items()
        ]
        ends = {(id(self._module(name)), name in self.modules): self._module(name) for name in self.pools}
        for (_, of_output), module in ends.items():
            if of_output:
                handles.append(module.register_forward_hook(self._returns))
            else:
                handles.append(module.register_forward_pre_hook(self._enters, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _module(self, name: str) -> nn.Module:
        return self.modules[name if name in self.modules else name.removesuffix(".input")]

    def _enters(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self._keep(".input", module, (*args, *kwargs.values()))

    def _returns(self, module: nn.Module, args: tuple, output: Any) -> None:
        self._keep("", module, output)

    def _head_called(self, name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        settled = self.head is not None and self.head.name != name
        if settled or not isinstance(output, Tensor) or (output.ndim != 2 and not self.named):
            return
        self.calls.pop(name, None)  # the last call comes last
        given = next(tensors((*args, *kwargs.values()))).detach().clone()  # a later layer may work in place
        self.calls[name] = _Call(given, output.detach().clone(), len(self.given))

    def _keep(self, end: str, module: nn.Module, value: Any) -> None:
        """Keep what a module returned or, end=".input", was given. Of a module with one name the last call is kept, of
        others each call, under the pooling of the name that it may get."""
        names = [f"{name}{end}" for name in self.names_of[id(module)]]
        wanted = [name for name in names if name in self.pools]
        call = self.count[id(module), end] = self.count.get((id(module), end), 0) + 1
        name = names[call - 1] if call <= len(names) and names[call - 1] in wanted else wanted[0]
        if name in self.left:
            return
        try:
            h = self.pooled(value, self.pools[name], name, module)
            self.given[id(module), end, call if len(names) > 1 else 1] = h
        except ValueError as error:
            if not self.chosen:
                raise
            self.left.add(name)  # what an earlier call gave too
            warnings.warn(f"{error}. This layer is left out", stacklevel=2)

    def pooled(self, value: Any, pool: Pool, name: str, module: nn.Module) -> Tensor:
        """(B, d) features of what a layer was given or returned, in memory of their own."""
        x = next(tensors(value), torch.empty(0)).detach()
        x = x.cpu() if x.device.type == "mps" else x  # which has no float64
        said = f"layer {name!r} gives {x.dtype} {tuple(x.shape)}"
        if callable(pool) and (x.ndim != 2 or (name in self.pools and not self.chosen)):
            h = pool(x)
        elif len(x) == self.size and x.ndim > 1 and x.is_floating_point():
            h = self._vectors(x, pool, module, said)
        else:
            h = x
        if not isinstance(h, Tensor) or h.ndim != 2 or len(h) != self.size or not h.is_floating_point():
            raise ValueError(
                f"{said}, and not features of {self.size} samples, its first axis: pass a function as its pool that "
                "returns (B, d)"
            )
        return h.clone()

    def _vectors(self, x: Tensor, pool: Pool, module: nn.Module, said: str) -> Tensor:
        if x.ndim == 2 or pool == "flatten":
            return x.flatten(1)
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        torch_1d = type(module).__module__.startswith("torch.nn.modules") and type(module).__name__.endswith("1d")
        if x.ndim > 3 or torch_1d:
            return x.flatten(2).mean(2)
        if self.unclear or any(getattr(part, "batch_first", True) is False for part in module.modules()):
            raise ValueError(f"{said}, which may be (B, C, L), (B, T, D) or (T, B, D): pass a function as its pool")
        return x[:, 0] if pool == "cls" and not self.lengths else x.mean(2 if self.lengths else 1)

    def _outputs(self, before: int) -> dict[str, Tensor]:
        """What each layer gave that was called ``before`` the classifier, where the layers were found: others hold it,
        or work on its logits. A module that was called as often as it has names has one call under each, and else the
        last one under all."""
        outputs = {}
        for (module, end, call), h in list(self.given.items())[: before if self.chosen else None]:
            names = [f"{name}{end}" for name in self.names_of[module]]
            calls = self.count[module, end]
            here = names[call - 1 : call] if len(names) in (1, calls) else names if call == calls else []
            wanted = [name for name in here if name in self.pools and name not in self.left]
            outputs |= dict.fromkeys(wanted[:1] if self.chosen else wanted, h)
        return outputs

    def end(self, labels: Tensor | np.ndarray, output: Any) -> Batch:
        returned = [x for x in tensors(output) if x.ndim == 2 and len(x) == self.size and x.is_floating_point()]
        first = self.names is None
        if first:
            self._settle(output, returned)
        returned = [x for x in returned if x.shape[1] == self.num_classes]
        logits, outputs = returned[0] if returned else None, self._outputs(len(self.given))
        if self.head is not None:
            call = self.calls.get(self.head.name)
            if call is None:
                raise ValueError(f"not every batch calls the classifier {self.head.name!r}; pass classifier=None")
            logits, outputs = self._predicted(call, returned, first), self._outputs(call.before)
            if self.chosen or not self.pools:
                name = f"{self.head.name}.input"
                outputs[name] = self.pooled(call.input, self.pool, name, self.modules[self.head.name])
        if first:
            self.names = set(outputs if self.chosen or not self.pools else self.pools)
            if not self.names:
                raise ValueError("no block and no classifier was found: name a layer of model.named_modules()")
        odd = (self.names ^ set(outputs)) - self.left
        if odd:
            raise ValueError(f"the forward pass does not always call {', '.join(sorted(odd))}; name other layers")
        logits = None if logits is None else logits.clone()  # a network may write the next batch into the same memory
        return Batch(labels, logits, outputs, self.num_classes or 0, self.head, self.chosen)

    def _predicted(self, call: _Call, returned: list[Tensor], first: bool) -> Tensor | None:
        """What the network makes of the outputs of its classifier: that may change the prediction."""
        own = call.output if call.output.shape == (self.size, self.num_classes) else None
        if own is None or not returned:
            return returned[0] if returned else own
        logits = next((x for x in returned if _same(x, own)), returned[0])
        if first and (logits.argmax(1) == own.argmax(1)).float().mean() <= 0.9:
            warnings.warn(
                f"the network's output does not follow, row by row, from that of {self.head.name!r}, which is taken "
                "for its classifier. Where rows change their order, or other layers enter the output, features and "
                "classifier do not belong together: name another with classifier=…, or None",
                stacklevel=2,
            )
        return logits

    def _settle(self, output: Any, returned: list[Tensor]) -> None:
        """After the first batch: the number of classes and the classifier."""
        if self.num_classes is None:
            alone = output.get("logits") if isinstance(output, Mapping) else output
            widths = [call.output.shape[1] for call in self.calls.values()]
            width = alone.shape[1] if isinstance(alone, Tensor) and alone.ndim == 2 else [1, *widths][-1]
            if width < 2:
                raise ValueError("the number of classes cannot be read from the network; pass num_classes=…")
            self.num_classes = width
        names = [name for name, call in self.calls.items() if self.named or call.output.shape[1] == self.num_classes]
        if len(names) > 1:
            names = [name for name in names if any(_same(x, self.calls[name].output) for x in returned)] or names
        if len(names) > 1:
            raise ValueError(
                f"several layers have {self.num_classes} outputs and may be the classifier: "
                f"{', '.join(map(repr, names))}. Name it with classifier=…, or pass classifier=None"
            )
        if names:
            self.head = Head(names[0], self.modules[names[0]].weight.detach().flatten(1).cpu().clone())


@contextmanager
def _failures_told(modules: Mapping[str, nn.Module]) -> Iterator[Callable[[], None]]:
    """Count, after each batch, the rows that equilibrium layers did not solve, in place of their own warnings; warn at
    the end, also after an error."""
    layers = {id(module): (name, module) for name, module in reversed(modules.items())
              if hasattr(module, "last_solution") and type(module.gradient).__name__ not in _FIXED_STEPS}  # fmt: skip
    residuals: dict[str, list[Tensor]] = {name: [] for name, _ in layers.values()}
    rows = dict.fromkeys(residuals, 0)

    def count() -> None:
        for name, layer in layers.values():
            if (solution := layer.last_solution) is not None:
                rows[name] += len(solution.converged)
                residuals[name].append(solution.residual[~solution.converged].cpu())

    choices = [(layer, layer._on_failure) for _, layer in layers.values()]
    try:
        for layer, _ in choices:
            layer._on_failure = "ignore"
        yield count
    finally:
        for layer, choice in choices:
            layer._on_failure = choice
        for name, parts in residuals.items():
            failed = torch.cat(parts) if parts else torch.empty(0)
            if len(failed):
                warnings.warn(
                    f"the equilibrium layer {name!r} did not converge on {len(failed)} of {rows[name]} rows (worst "
                    f"residual {float(failed.nan_to_num(math.inf, math.inf).max()):.1e}): their features, there and in "
                    "later layers, are not those of a fixed point. Allow more max_steps, such as "
                    "DEQ(..., eval_solver=Anderson(max_steps=200))",
                    stacklevel=2,
                )


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in what a module returned or was given; of a mapping its logits and last_hidden_state first."""
    if isinstance(value, Tensor):
        yield value
    if isinstance(value, Mapping):
        first = ("logits", "last_hidden_state")
        value = [value[name] for name in sorted(value, key=lambda name: name not in first)]
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)


def _same(output: Tensor, logits: Tensor) -> bool:
    return output.shape == logits.shape and torch.allclose(output.float(), logits.float())
