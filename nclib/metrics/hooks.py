"""A network read while it runs over a loader, by forward hooks on its layers; it is left as it was."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nclib.metrics.layers import Layers, Pool, is_deq, module_named, modules_of, pools_of
from nclib.metrics.pooling import features_last, vectors
from nclib.system import compiled
from nclib.system.warning import warn


class Reader:
    """The layers of a network, batch by batch; without any layers, the classifier's input alone.

    Parameters
    ----------
    model, layers, num_classes, pool, classifier : as in ``measure``; what is left out is settled by the first batch
    """

    def __init__(
        self, model: nn.Module, layers: Layers, num_classes: int | None, pool: Pool, classifier: str | None
    ) -> None:
        self.model = getattr(model, "_orig_mod", model)
        if isinstance(self.model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            self.model = self.model.module
        if isinstance(self.model, torch.jit.ScriptModule):
            raise ValueError("torch.jit runs this network without the hooks that read it: pass the one it is made of")
        self.modules = modules_of(self.model)
        self.pools, self.found = pools_of(self.modules, layers, pool)  # whether the layers were found, not named
        self.names_of: dict[nn.Module, list[str]] = {}
        for name, module in self.modules.items():
            self.names_of.setdefault(module, []).append(name)
        self.left: set[str] = set()  # layers that were found and are left out
        self.apart: dict[str, Tensor] = {}  # (2, d): largest differences from the classifier's input, and its sizes
        self.names: set[str] | None = None  # the layers of every batch
        self.num_classes, self.pool, self.named, self.head, self.w = num_classes, pool, classifier != "auto", "", None
        deqs = [m for m in self.names_of if is_deq(m)]
        inside = {part for m in deqs for part in m.modules()}  # of many calls
        self.heads = {m: names[0] for m, names in self.names_of.items() if isinstance(m, nn.Linear) and m not in inside}
        if self.named:
            self.heads = {} if classifier is None else self._head_named(classifier)
        steps = ("Unrolled", "Reversible")  # a fixed number, which is not meant to converge
        self.solved = {m: self.names_of[m][0] for m in deqs if type(m.gradient).__name__ not in steps}
        self.last: dict[tuple, tuple[bool, int]] = {}  # whether the features of a layer are on its last axis; d
        self.counted = False  # whether rows that did not converge have been
        for name in [*self.pools]:
            if isinstance(self.modules[name.removesuffix(".input")], torch.jit.RecursiveScriptModule):
                self._leave([name], f"layer {name!r}, of torch.jit.script, takes no hook: name the layers around it")
                del self.pools[name]

    def _head_named(self, name: str) -> dict[nn.Module, str]:
        weight = getattr(module_named(self.modules, name), "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim < 2 or weight[0, 0].numel() != 1:
            raise ValueError(f"the classifier {name!r} must have a weight (K, d), as a linear layer has")
        self.num_classes, self.head = len(weight), name
        return {self.modules[name]: name}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around ``batches``: evaluation mode, hooks and failures that are counted; afterwards all is as before."""
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with evaluating(self.model), torch.random.fork_rng(devices), self._failures_told(), ExitStack() as handles:
            shared = [name for names in self.names_of.values() if len(names) > 1 for name in names]
            for part in {self._place(name)[0] for name in shared}:
                handles.enter_context(part.register_forward_pre_hook(self._begins))
                handles.enter_context(part.register_forward_hook(self._ends, always_call=True))
            for module in self.heads:
                handles.enter_context(module.register_forward_hook(self._head_called, with_kwargs=True))
            entered = [name.removesuffix(".input") for name in self.pools.keys() - self.modules.keys()]
            for module in {self.modules[name] for name in entered}:
                handles.enter_context(module.register_forward_pre_hook(partial(self._keep, ".input"), with_kwargs=True))
            for module in {self.modules[name] for name in self.pools.keys() & self.modules.keys()}:
                handles.enter_context(module.register_forward_hook(partial(self._keep, "")))
            for layer in self.solved:
                if layer.on_failure == "warn":  # which is said for all batches at once
                    handles.callback(setattr, layer, "on_failure", "warn")
                    layer.on_failure = "ignore"
                handles.enter_context(layer.register_forward_hook(self._solved))
            yield

    def batches(self, loader: Iterable[Any], again: bool = False) -> Iterator[tuple[dict[str, Tensor], Any, Any]]:
        """Of every batch: features (B, d) by layer, labels (B,) on the CPU, and what the network returned (B, K), if it
        did; ``again``: failures have been counted."""
        self.counted, turned, given, unseen = again, None, {}, self.names is None and bool(self.pools)
        for batch in loader:
            inputs, labels = _inputs_and_labels(batch)
            if len(labels):
                first = unseen and len(labels) > 1  # a single row has no order
                turned = _turned(inputs, len(labels)) if first else turned  # the loader may write the next one there
                output = self._run(inputs, len(labels))
                given, unseen = (self.given, False) if first else (given, unseen)
                yield self._read(output, labels)
        if self.names is None:
            raise ValueError("the loader gave no batches, or empty ones alone")
        if turned:  # at the end, as a network may keep a state from batch to batch
            self.counted, others = True, {}
            with suppress(Exception):  # whatever the network raises, as where it needs its rows in their order
                self._run(*turned)
                others = self.given
            for name in [name for name in given if name in others]:
                self._check_samples(name, given[name], others[name])

    def _check_samples(self, name: str, h: Tensor, turned: Tensor) -> None:
        """Leave a layer out whose rows are not where the samples are: it gives the rows of ``h`` for the reversed batch
        too, but in the same order, as of class prompts or time steps, or in one of its own, as where they are sorted.
        A layer that gives others, as by chance or in a graph, stays."""
        h, rows = h.float(), turned[:16].float()
        apart = torch.linalg.norm(rows - h.flip(0)[:16], dim=1)
        nearest = torch.cdist(rows, h, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        elsewhere = (nearest < 0.01 * apart) & (apart > 1e-4 * torch.linalg.norm(h, dim=1).mean())
        if elsewhere.sum() > len(rows) / 2:
            self._leave([name], f"the rows of layer {name!r} do not follow the order of the samples")

    def _run(self, inputs: Any, size: int) -> Any:
        self.size = size
        self.calls = {}  # of layers that may be the classifier, each call: input, output, ``given`` until then
        self.given: dict[str, Tensor] = {}  # features by layer, in the order of the calls
        self.ran: set[nn.Module] = set()
        self.lent: set[str] = set()  # layers that were called under another name of theirs alone
        # what holds modules of several names: the names it is called by, and how often it has called each module
        self.running: list[tuple[nn.Module, list[str], Counter]] = []
        return _forward(self.model, inputs)

    def _head_called(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        name = self.heads[module]
        if self.head in ("", name) and isinstance(output, Tensor) and (output.ndim == 2 or self.named):
            given = next(tensors((*args, *kwargs.values()))).detach().clone()  # a later layer may work in place
            self.calls[name] = [*self.calls.pop(name, ()), (given, output.detach().clone(), dict(self.given))]

    def _place(self, name: str) -> tuple[nn.Module, str]:
        """The module that holds one by this name, and the name there."""
        holder, _, own = name.rpartition(".")
        return self.modules[holder], own

    def _begins(self, holder: nn.Module, args: tuple) -> None:
        self.running.append((holder, self._called_as(holder, ".call"), Counter()))

    def _ends(self, holder: nn.Module, args: tuple, value: Any) -> None:
        self.running.pop()

    def _called_as(self, module: nn.Module, end: str) -> list[str]:
        """The names of a module in the place from which it is called: in the innermost running module that holds it, by
        the names of that, and there, in an ``nn.Sequential``, the next place in turn. None where that is unclear.
        """
        names = self.names_of[module]
        if len(names) == 1:
            return names
        for holder, known, turns in reversed(self.running):
            if here := {name: own for name in names for at, own in [self._place(name)] if at is holder}:
                places, turn = list(dict.fromkeys(here.values())), turns[module, end]
                turns[module, end] += 1
                if len(places) > 1 and (turn or isinstance(holder, nn.Sequential)):
                    places = places[turn : turn + 1] if isinstance(holder, nn.Sequential) else []
                return [name for name, own in here.items() if own in places and name.rpartition(".")[0] in known]
        return []

    def _keep(self, end: str, module: nn.Module, args: tuple, value: Any) -> None:
        """Keep what a module returned or, end=".input", was given, under its name; of a named layer also where it is
        called once, under another name of its own."""
        self.ran.add(module)
        names = self._called_as(module, end)
        wanted = [f"{name}{end}" for name in names if f"{name}{end}" in self.pools]
        self.lent -= set(wanted)
        if not wanted and (not names or not self.found):
            every = [f"{name}{end}" for name in self.names_of[module] if f"{name}{end}" in self.pools]
            wanted = [name for name in every if name not in self.given or name in self.lent]
            if not names or self.lent & set(wanted):
                self._leave(every, f"layer {every[0]!r} is one module in several places, and calls do not show which")
                return
            self.lent |= set(wanted)
        solved = module.last_solution if is_deq(module) else None  # it may return states on the way before
        given = (*args, *value.values()) if end else value if solved is None else solved.value
        for name in wanted[:1] if self.found else wanted:
            try:
                if name not in self.left:
                    self.given[name] = self._pooled(given, self.pools[name], name, module)
            except ValueError as error:
                self._leave([name], str(error))

    def _leave(self, names: list[str], why: str) -> None:
        """Leave layers out that were found; refuse those that were named."""
        if not self.found:
            raise ValueError(why)
        if not self.left >= set(names):
            warn(f"{why}. This layer is left out")
        self.left |= set(names)  # what an earlier call gave too
        if self.names and self.names <= self.left:
            raise ValueError("no block is left to measure: name a layer of model.named_modules()")

    def _pooled(self, value: Any, pool: Pool, name: str, module: nn.Module) -> Tensor:
        """(B, d) features of what a layer was given or returned, in memory of their own."""
        x = next(tensors(value), torch.empty(0)).detach()
        x = x.cpu() if x.device.type == "mps" else x  # which has no float64
        if x.is_nested:
            raise ValueError(f"layer {name!r} gives a nested tensor, as with a padding mask: measure a later layer")
        said = f"layer {name!r} gives {x.dtype} {tuple(x.shape)}"
        h = x
        if callable(pool) and (x.ndim != 2 or (name in self.pools and not self.found)):
            h = pool(x)
        elif len(x) == self.size and x.ndim > 2 and x.is_floating_point():
            h = x.flatten(1) if pool == "flatten" else self._vectors(x, pool, name, module, said)
        if not isinstance(h, Tensor) or h.ndim != 2 or len(h) != self.size or not h.is_floating_point():
            raise ValueError(f"{said}, and not features of {self.size} samples: pass a pool that returns (B, d)")
        return h.clone()

    def _vectors(self, x: Tensor, pool: str, name: str, module: nn.Module, said: str) -> Tensor:
        last, width = self.last.get((name, x.ndim), (None, 0))
        if last is None or x.shape[-1 if last else 1] != width:
            last = features_last(x, module, self.model, name not in self.modules)
            if last is None:
                raise ValueError(f"{said}, which may be (B, C, …), (B, …, D) or (T, B, D): pass a function as its pool")
            self.last[name, x.ndim] = last, x.shape[-1 if last else 1]
        return vectors(x, pool, last)

    def twins(self) -> set[str]:
        """Layers that give what the classifier takes, every feature up to rounding: a mean may be taken twice."""
        return {name for name, (apart, size) in self.apart.items() if (apart <= 1e-5 * size).all()}

    def tell_of_idle(self, seen: int) -> None:
        """Warn where a linear layer that is not called has as many outputs as there are classes and the classifier has
        more, as of a network that gives embeddings in evaluation mode."""
        if idle := [name for name, outputs in self.idle.items() if outputs == seen < self.num_classes]:
            said = f"{idle[-1]!r}, which has an output for each of {seen} classes, is not called in evaluation mode"
            warn(f"{said}: {self.head!r} is taken for the classifier of {self.num_classes}")

    # -- after a batch

    def _read(self, output: Any, labels: Any) -> tuple[dict[str, Tensor], Any, Any]:
        # what may be the logits: the field or key of that name, or else any part
        alone = output.get("logits", output) if isinstance(output, Mapping) else getattr(output, "logits", output)
        returned = [x for x in tensors(alone) if x.ndim == 2 and len(x) == self.size and x.is_floating_point()]
        first = self.names is None
        if first:
            self._settle(alone, returned)
        if self.head and self.head not in self.calls:
            raise ValueError(f"not every batch calls the classifier {self.head!r} as a module; pass classifier=None")
        logits, call = self._logits([x for x in returned if x.shape[1] == self.num_classes])
        # what each layer had given when the classifier was called; of named layers also later, where found ones hold
        # the classifier, or work on its logits
        given = ({} if self.found and call else self.given) | (call[2] if call else {})
        outputs = {name: h for name, h in given.items() if name not in self.left}
        if call and (self.found or not self.pools):
            last = f"{self.head}.input"
            outputs[last] = self._pooled(call[0], self.pool, last, self.modules[self.head])
            for name in [name for name, h in outputs.items() if name != last and h.shape == outputs[last].shape]:
                sizes = torch.stack([outputs[name] - outputs[last], outputs[last]]).abs().amax(1)
                self.apart[name] = torch.maximum(sizes, self.apart.get(name, sizes))
        if first:
            self._begin(outputs, logits, *call[:2] if call else ())
        if odd := (self.names ^ set(outputs)) - self.left:
            raise ValueError(f"the forward pass does not always call {', '.join(sorted(odd))}; name other layers")
        # cloned: a network may write the next batch into the same memory
        return outputs, labels, None if logits is None else logits.clone()

    def _logits(self, returned: list[Tensor]) -> tuple[Tensor | None, tuple | None]:
        """The logits and the call of the classifier. Of the tensors (B, K) that are returned, in a field or key
        ``logits`` if there is one, the logits are what the classifier gave, or else the only one; where none is
        returned, they are what the classifier gave."""
        calls = self.calls.get(self.head, [])
        if found := [(x, call) for x in returned for call in reversed(calls) if _alike(x, call[1])]:
            if not all(_alike(x, found[0][0]) for x, _ in found):
                raise ValueError(f"the network returns several calls of {self.head!r}: let it return the logits alone")
            return found[0]
        if len(returned) > 1:
            said = f"the network returns {len(returned)} tensors {tuple(returned[0].shape)}, and no classifier gave one"
            raise ValueError(f"{said} as it is: let it return the logits alone, or under the key 'logits'")
        if returned and len(calls) > 1:
            said = f"{self.head!r} is called {len(calls)} times, and nothing of it is returned as it is"
            raise ValueError(f"{said}: pass classifier=None")
        own = [x for _, x, _ in calls if x.shape == (self.size, self.num_classes)]
        return next(iter(returned or own[-1:]), None), calls[-1] if calls else None

    def _settle(self, alone: Any, returned: list[Tensor]) -> None:
        """After the first batch: the number of classes and the classifier."""
        if self.num_classes is None and isinstance(alone, Tensor) and alone.ndim == 2:
            self.num_classes = alone.shape[1]
        widths = {name: calls[-1][1].shape[1] for name, calls in self.calls.items()}
        names = [name for name in widths if self.named or self.num_classes in (None, widths[name])]
        ends = [name for name in names if any(_alike(x, out) for x in returned for _, out, _ in self.calls[name])]
        # features that are returned too are the input of the classifier
        taken = [] if self.num_classes else [given for name in ends for given, *_ in self.calls[name]]
        ends = [name for name in ends if not any(_alike(self.calls[name][-1][1], given) for given in taken)]
        known = [x for name in ends for call in self.calls[name] for x in call[:2]]
        others = {x.shape[1] for x in returned if not any(_alike(x, y) for y in known)}
        if same := others & {widths[name] for name in ends}:  # logits that another classifier may have given
            ends = [name for name in names if widths[name] in same]
        one = isinstance(alone, Tensor) and alone.numel() == self.size  # a logit of two classes, from no layer of two
        names = ends or ([] if one else names if self.num_classes else names[-1:])
        if len(names) > 1:
            raise ValueError(f"each of {names} may be the classifier: pass classifier= one of them, or None")
        self.num_classes = self.num_classes or (widths[names[0]] if names else 1)
        if self.num_classes < 2:
            raise ValueError("the number of classes cannot be read from the network; pass num_classes=…")
        self.idle = {name: len(m.weight) for m, name in self.heads.items() if name not in self.calls}
        unseen = [name for m, name in self.heads.items() if m.weight.shape[0] == self.num_classes]
        if names:
            self.head = names[0]
            self.w = self.modules[self.head].weight.detach().flatten(1).cpu().clone()
        elif not self.named and (unseen or any(x.shape[1] > 1 for x in returned)):
            name = repr(unseen[-1]) if unseen else f"… (its {self.num_classes} outputs are not among {widths})"
            warn(f"no classifier was found: name it with classifier={name}, or pass None")

    def _begin(self, outputs: dict[str, Tensor], logits: Tensor | None, *call: Tensor) -> None:
        """After the first batch: the layers of every batch; and warnings of a classifier that is no linear map, or not
        what the network predicts with."""
        self.names = set(outputs if self.found or not self.pools else self.pools)
        if not self.names:
            raise ValueError("no block and no classifier was found: name a layer of model.named_modules()")
        idle = [name for name in self.pools if self.modules.get(name) not in self.ran]
        if self.found and idle and self.names == {f"{self.head}.input"}:
            warn(f"no block is called, as {', '.join(idle)} are not: name layers")
        if [x.ndim for x in call] == [2, 2] and not _is_linear(self.modules[self.head], *call):
            said = f"{self.head!r} does not give h Wᵀ + b of its input and weight: its NC0, NC2 and NC3 are not those"
            warn(f"{said} of the map; classifier=None leaves them out")
        made, pooled = call[1] if call else None, outputs.get(f"{self.head}.input")
        if call and made.ndim > 2 and pooled is not None and pooled.shape[1] == self.w.shape[1]:
            head = self.modules[self.head]  # at the pooled tokens
            made = nn.functional.linear(pooled.to(call[0]), head.weight.flatten(1), getattr(head, "bias", None))
        known = logits is not None and made is not None and logits.shape == made.shape
        if known and not (_alike(made, logits, 0.02) if call[1].ndim > 2 else _in_order(logits, made)):
            said = f"the network's output does not follow, row by row, from that of {self.head!r}"
            more = "name another with classifier=…, or None; of tokens, pass a pool that takes what the network reads"
            warn(f"{said}: {more}")

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        """Equilibrium layers do not warn themselves; one warning each comes at the end, also after an error."""
        self.residuals: dict[str, list[Tensor]] = {name: [] for name in self.solved.values()}  # −1: converged
        try:
            yield
        finally:
            for name, parts in self.residuals.items():
                rows = torch.cat([torch.empty(0), *parts])
                failed = rows[rows != -1].nan_to_num(math.inf, math.inf)
                if len(failed):
                    said = f"{len(failed)} of {len(rows)} rows (worst residual {failed.max():.1e})"
                    warn(f"layer {name!r} did not converge on {said}: allow more max_steps")

    def _solved(self, layer: Any, *_: Any) -> None:
        if (solution := layer.last_solution) is not None and not self.counted:
            self.residuals[self.solved[layer]].append(solution.residual.masked_fill(solution.converged, -1).cpu())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module's mode is as before, by its own ``train``, which may do more than set
    the flag, and then by the flag, as a module may stand in two places."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            if module.training != training:
                module.train(training)
        for module, training in modes:
            module.training = training


def _forward(model: nn.Module, inputs: Any) -> Any:
    devices = {x.device for x in (*model.parameters(), *model.buffers())}

    def moved(x: Any) -> Any:
        return x.to(*devices) if isinstance(x, Tensor) and len(devices) == 1 else x

    with torch.no_grad(), compiled.eager():
        args, named = _arguments(inputs)
        return model(*map(moved, args), **{name: moved(x) for name, x in named.items()})


def _arguments(inputs: Any) -> tuple[Iterable[Any], Mapping[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), inputs
    return inputs if isinstance(inputs, (tuple, list)) else (inputs,), {}


def _turned(inputs: Any, size: int) -> tuple[Any, int] | None:
    """A batch with its rows reversed, and its size; None where that cannot be done."""
    args, named = _arguments(inputs)
    given = {**dict(enumerate(args)), **named}
    rows = {i: x for i, x in given.items() if isinstance(x, Iterable) and getattr(x, "ndim", 1)}
    if rows and all(isinstance(x, (Tensor, list, tuple)) and len(x) == size for x in rows.values()):
        given |= {i: x.flip(0) if isinstance(x, Tensor) else x[::-1] for i, x in rows.items()}
        return given if named else [*given.values()], size
    return None


def _inputs_and_labels(batch: Any) -> tuple[Any, Tensor | np.ndarray]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not np.ndim(batch[1]):
        raise ValueError('a batch must be (inputs, labels): pass a DataLoader, or ((b["…"], b["…"]) for b in loader)')
    inputs, labels = batch
    if isinstance(labels, Tensor):
        return inputs, labels.detach().to("cpu", copy=True)  # a loader may write into the same memory
    labels = np.array(labels)
    return inputs, torch.from_numpy(labels) if labels.dtype.kind in "biuf" else labels


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in what a module returned or was given; of a mapping or dataclass its logits and last_hidden_state
    first."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        value = [value[name] for name in sorted(value, key=lambda name: name not in ("logits", "last_hidden_state"))]
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)


def _is_linear(head: nn.Module, h: Tensor, out: Tensor) -> bool:
    """Whether the classifier gave h Wᵀ + b, to within half precision; a bias may have any name."""
    w, bias = head.weight.flatten(1).float(), getattr(head, "bias", None)
    if w.shape[1] != h.shape[1]:
        return False
    rest = out.float() - h.float() @ w.T
    rest = rest - (bias if isinstance(bias, Tensor) else 0 if hasattr(head, "bias") else rest.mean(0))
    return not (rest.abs() > 0.02 * out.abs().max()).any()  # NaN is reported elsewhere


def _in_order(logits: Tensor, made: Tensor) -> bool:
    """Whether logits, up to rounding, have the order of what a classifier made in every row, as after a temperature or
    a softmax; of two classes also from row to row, by their difference."""
    if logits.shape[1] == 2:
        logits, made = (x.float().diff(dim=1).T for x in (logits, made))
    rounding = 8 * torch.finfo(logits.dtype).eps * logits.abs().max()
    return not (logits.gather(1, made.argsort(1)).diff(dim=1) < -rounding).any()  # NaN is reported elsewhere


def _alike(a: Tensor, b: Tensor, rounding: float = 1e-5) -> bool:
    """Equal up to rounding."""
    return a.shape == b.shape and bool((a - b).abs().max() <= rounding * b.abs().max())
