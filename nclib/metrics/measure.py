"""Neural collapse in the layers of any network: ``measure``, which guesses nothing.

The layers are those that are named, or else the children of the network with containers opened.
What a layer gives is taken as it is if it is (B, d) and averaged over the image if it is (B, C, H,
W); anything else needs ``pool``. The classifier is the last ``nn.Linear`` or the one that is named,
and its input is the last layer.

Layers are read by forward hooks, and the network is left as it was.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nclib.deq import DEQ
from nclib.metrics.definitions import nc0, ncc_mismatches
from nclib.metrics.moments import ClassMoments, Weighting, class_moments
from nclib.metrics.report import report_of

if TYPE_CHECKING:
    import pandas as pd

Pool = str | Callable[[Any], Tensor] | None
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules that only hold others: their children are the layers."""


def measure(
    model: nn.Module,
    loader: Iterable[Any],
    layers: str | Sequence[str] | None = None,
    num_classes: int | None = None,
    pool: Pool = None,
    per_class: bool = False,
    *,
    classifier: str | None = "auto",
    weighting: Weighting = "class",
) -> "pd.DataFrame":
    """Neural collapse in the layers of a network, as a table.

    The network runs once over the data, in evaluation mode and without gradients. Afterwards its
    mode, its hooks and the random state of torch are as before, also after an error. The features
    of all measured layers are kept in memory, N × d numbers each, and a few matrices of d × d in
    float64 for one layer at a time. So flatten maps to some thousand numbers at most, as by
    ``lambda maps: F.adaptive_avg_pool2d(maps, 2).flatten(1)``. For data that are too large, name
    fewer layers, or add up a ``ClassMoments`` in a loop of your own.

    Parameters
    ----------
    model : any network. Wrappers of ``torch.compile`` and ``DataParallel`` are looked through.
    loader : yields (inputs, labels). Inputs are a tensor, a tuple of tensors (several arguments) or
        a mapping (keyword arguments); labels (B,) are integers 0 … K−1.
    layers : names of ``model.named_modules()``: "NAME" is what a module gives, "NAME.input" what it
        is given. None takes the children of the network, with ``nn.Sequential``, ``nn.ModuleList``
        and ``nn.ModuleDict`` opened, that are called before the classifier, and the input of the
        classifier. A layer that is called several times is read at its last call.
    num_classes : K; left out, the rows of the classifier, or without one the largest label plus 1.
    pool : how what is neither (B, d) nor (B, C, H, W) becomes (B, d). "tokens" averages (B, T, D)
        over T; a function takes whatever a layer gives, except what is (B, d) already, and returns
        (B, d).
    per_class : add rows for each class, with a column ``class``, which is missing in the rows of
        whole layers.
    classifier : "auto" is the last ``nn.Linear`` of ``model.named_modules()``; otherwise the name
        of a module with a weight (K, d); None for a network without one.
    weighting : "class", "sample" or "mixed", see ``ClassMoments``.

    Returns
    -------
    DataFrame
        Columns ``layer``, ``metric``, ``value``, layers in the order in which they are called.
        Metrics are those of ``nc_report``, and ``dim`` (d), ``samples`` and ``feature_norm`` (mean
        of ‖h‖). The input of the classifier alone has what compares with its weight, ``nc0`` and
        ``accuracy``. ``nc4_ncc_mismatch`` of another layer is the share of samples whose nearest
        class mean in that layer is not the class that the classifier predicts.

        With ``per_class`` also, of each class: ``samples``, ``nc1_trace_ratio`` (its variance over
        tr Σ_B), ``feature_norm``, ``mean_length`` (‖μ_k − μ‖), ``nc4_ncc_mismatch`` and, of the
        classifier's input, ``accuracy``.

    Raises
    ------
    ValueError
        A name that does not exist, a layer that is not called or gives no (B, d), NaN or infinite
        values, a classifier whose rows are not the classes of the labels, labels that do not fit.

    Notes
    -----
    Do not compare ``nc1_pinv`` of layers of different d. It adds up the variance along the K − 1
    directions between class means, so it falls like 1/d where there is nothing but noise. Compare
    ``nc1_trace_ratio`` or ``nc1_cdnv``, or each value with what the same data give with shuffled
    labels.

    A ``DEQ`` is read at its equilibrium.

    Examples
    --------
    >>> import torch, nclib as nc
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> x, y = torch.randn(60, 8), torch.arange(60) % 3
    >>> table = nc.measure(net, [(x, y)])
    >>> list(table["layer"].unique())
    ['0', '1', '2.input']
    >>> named = nc.measure(net, [(x, y)], layers="2.input", per_class=True)
    >>> named[named["metric"] == "samples"]["value"].tolist()
    [60.0, 20.0, 20.0, 20.0]
    """
    import pandas as pd  # nclib.metrics itself needs torch and numpy alone

    reader = _Reader(model, layers, pool, classifier)
    features, labels, logits = reader.read(loader)
    if reader.weight is not None:
        reader.check_classifier(num_classes, len(labels.unique()))
        num_classes = len(reader.weight)
    elif num_classes is None:
        num_classes = int(labels.max()) + 1

    rows = []
    for name, h in features.items():
        weight = reader.weight if name == reader.last else None
        moments = class_moments(h, labels, num_classes, weighting)
        values = {"dim": h.shape[1], "samples": len(h)}
        values |= report_of(moments, h, labels, logits, weight)
        values["feature_norm"] = torch.linalg.vector_norm(h.double(), dim=1).mean()
        if weight is not None:
            values["nc0"] = nc0(weight)
            values["accuracy"] = (logits.argmax(1) == labels).double().mean()
        rows += [(name, None, metric, float(value)) for metric, value in values.items()]
        if per_class:
            rows += _class_rows(name, moments, h, labels, logits, weight is not None)
    frame = pd.DataFrame(rows, columns=["layer", "class", "metric", "value"])
    if per_class:
        return frame.astype({"class": "Int64"})
    return frame.drop(columns="class")


def _class_rows(
    name: str, m: ClassMoments, h: Tensor, labels: Tensor, logits: Tensor | None, last: bool
) -> list[tuple[str, int, str, float]]:
    """The rows of each class; ``last``: of the classifier's input."""

    def mean(values: Tensor) -> Tensor:
        sums = torch.zeros(m.num_classes, dtype=torch.float64)
        return sums.index_add(0, labels, values.double()) / m.counts

    values = {
        "samples": m.counts,
        "nc1_trace_ratio": m.class_variances / m.between_rows.square().sum(),
        "feature_norm": mean(torch.linalg.vector_norm(h.double(), dim=1)),
        "mean_length": torch.linalg.vector_norm(m.centred_means, dim=1),
    }
    if logits is not None:
        values["nc4_ncc_mismatch"] = mean(ncc_mismatches(h, logits.argmax(1), m))
        if last:
            values["accuracy"] = mean(logits.argmax(1) == labels)
    rows = []
    for k in range(m.num_classes):
        rows += [(name, k, metric, float(of_classes[k])) for metric, of_classes in values.items()]
    return rows


class _Reader:
    """What the layers of a network give, read by forward hooks.

    Parameters
    ----------
    model, layers, pool, classifier : as in ``measure``

    Attributes
    ----------
    head : name of the classifier, or None
    last : name of its input, or None
    weight : (K, d), its weight, or None
    """

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str] | None,
        pool: Pool,
        classifier: str | None,
    ) -> None:
        if not (pool is None or pool == "tokens" or callable(pool)):
            raise ValueError(
                f'pool must be "tokens", or a function that returns (B, d), got {pool!r}'
            )
        self.network = _unwrapped(model)
        self.pool = pool
        self.modules = _modules(self.network)
        self.found = classifier == "auto"
        self.head = self._last_linear() if self.found else classifier
        self.last = None
        self.weight = None
        if self.head is not None:
            self.last = f"{self.head}.input".lstrip(".")
            self.weight = self._weight()
        self.chosen = layers is not None
        if isinstance(layers, str):
            layers = [layers]
        self.layers = list(layers) if self.chosen else self._children()
        for name in self.layers:
            self._owner(name)
        self.outputs: dict[str, Tensor] = {}
        self.logits: Tensor | None = None
        self.size = 0

    # -- names

    def _owner(self, layer: str) -> nn.Module:
        """The module whose output or input a layer is. One that is called "input" is itself."""
        if layer in self.modules:
            return self.modules[layer]
        if layer == "input":
            return self.network
        return self._module(layer.removesuffix(".input"))

    def _module(self, name: str) -> nn.Module:
        if name not in self.modules:
            near = get_close_matches(name, self.modules, n=1)
            hint = "see [name for name, _ in model.named_modules()]"
            if near:
                hint = f"did you mean {near[0]!r}?"
            raise ValueError(f"the network has no module {name!r}: {hint}")
        return self.modules[name]

    def _last_linear(self) -> str:
        names = [name for name, module in self.modules.items() if isinstance(module, nn.Linear)]
        if not names:
            raise ValueError(
                "the network has no nn.Linear: name its classifier, or pass classifier=None"
            )
        return names[-1]

    def _weight(self) -> Tensor:
        weight = getattr(self._module(self.head), "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            raise ValueError(
                f"the classifier {self.head!r} has no weight (K, d): "
                "name another, or pass classifier=None"
            )
        return weight.detach().cpu().clone()

    def _children(self) -> list[str]:
        """The children of the network, containers opened, without what holds the classifier; then
        its input."""
        names: list[str] = []

        def open_(module: nn.Module, prefix: str) -> None:
            for child_name, child in module.named_children():
                child = getattr(child, "_orig_mod", child)
                name = prefix + child_name
                if type(child) in CONTAINERS:
                    open_(child, f"{name}.")
                elif self.head is None or not f"{self.head}.".startswith(f"{name}."):
                    names.append(name)

        open_(self.network, "")
        return names if self.last is None else [*names, self.last]

    def check_classifier(self, num_classes: int | None, seen: int) -> None:
        """A last linear layer whose rows are not the classes of the labels may be no classifier."""
        rows = len(self.weight)
        if rows < 2 or (self.found and num_classes is None and rows != seen):
            raise ValueError(
                f"{self.head!r} has {rows} rows, and the labels have {seen} classes. Where none is "
                "named, the last nn.Linear is taken for the classifier: if it is none, pass "
                f"classifier=None; if it is, and classes are missing, classifier={self.head!r}"
            )
        if num_classes not in (None, rows):
            raise ValueError(
                f"num_classes={num_classes}, but the classifier {self.head!r} has {rows} rows"
            )

    # -- reading

    def read(self, loader: Iterable[Any]) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Features (N, d) by layer, labels (N,) and logits (N, K), all on the CPU."""
        features: dict[str, list[Tensor]] = {}
        labels: list[Tensor] = []
        logits: list[Tensor] = []
        with self._reading():
            for inputs, batch_labels in map(_inputs_and_labels, loader):
                if len(batch_labels) == 0:
                    continue
                self._run(inputs, len(batch_labels))
                if not features:
                    features = {name: [] for name in self.outputs}
                if set(features) != set(self.outputs):
                    odd = sorted(set(features) ^ set(self.outputs))
                    raise ValueError(
                        f"layer {odd[0]!r} is not called in every batch: name other layers"
                    )
                for name, h in self.outputs.items():
                    features[name].append(h)
                labels.append(batch_labels)
                if self.head is not None:
                    logits.append(self.logits)
        if not labels:
            raise ValueError(
                "the loader gave no batches: pass a loader of (inputs, labels) that can be read now"
            )
        joined = {name: torch.cat(parts) for name, parts in features.items()}
        return joined, torch.cat(labels), torch.cat(logits) if logits else None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Hooks and evaluation mode; afterwards all is as before."""
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with ExitStack() as stack:
            stack.enter_context(evaluating(self.network))
            # A loader that shuffles draws from the random state.
            stack.enter_context(torch.random.fork_rng(devices))
            stack.enter_context(torch.no_grad())
            stack.enter_context(_eager())
            for name in self.layers:
                stack.enter_context(self._hook(name))
            if self.head is not None:
                classifier = self._module(self.head)
                stack.enter_context(classifier.register_forward_hook(self._keep_logits))
            yield

    def _hook(self, name: str) -> Any:
        module = self._owner(name)
        if name in self.modules:
            return module.register_forward_hook(
                lambda module, args, output: self._keep(name, _output(module, output))
            )

        def given(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            values = [*args, *named.values()]
            self._keep(name, values[0])

        return module.register_forward_pre_hook(given, with_kwargs=True)

    def _keep(self, name: str, value: Any) -> None:
        if self.chosen or self.logits is None:  # children after the classifier are no layers
            self.outputs.pop(name, None)  # of several calls the last
            self.outputs[name] = self._vectors(name, value)

    def _keep_logits(self, module: nn.Module, args: tuple[Any, ...], logits: Any) -> None:
        expected = (self.size, len(self.weight))
        if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
            raise ValueError(
                f"the classifier {self.head!r} gives {_shape(logits)}, and not logits {expected}: "
                "name another, or pass classifier=None"
            )
        self.logits = _finite(logits, f"the classifier {self.head!r}", "pass classifier=None")

    def _run(self, inputs: Any, size: int) -> None:
        self.outputs = {}
        self.logits = None
        self.size = size
        args, named = _arguments(inputs)
        weights = [*self.network.parameters(), *self.network.buffers()]
        device = weights[0].device if weights else None
        args = [x.to(device) if isinstance(x, Tensor) else x for x in args]
        named = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in named.items()}
        self.network(*args, **named)
        if self.head is not None and self.logits is None:
            raise ValueError(
                f"the classifier {self.head!r} is not called: name another, or pass classifier=None"
            )
        missing = [name for name in self.layers if name not in self.outputs]
        if self.chosen and missing:
            raise ValueError(
                f"layer {missing[0]!r} is not called in the forward pass: name another"
            )

    def _vectors(self, name: str, value: Any) -> Tensor:
        """(B, d), on the CPU and in memory of its own."""
        h = value
        axes = value.ndim if isinstance(value, Tensor) else 0
        if axes == 2:
            pass
        elif callable(self.pool):
            h = self.pool(value)
        elif axes == 4:
            h = _single(value).mean(dim=(2, 3))
        elif axes == 3 and self.pool == "tokens":
            h = _single(value).mean(dim=1)
        else:
            raise ValueError(
                f"layer {name!r} gives {_shape(value)}, and only (B, d) and (B, C, H, W) are "
                'understood: pass pool="tokens" for (B, T, D), or a function that returns (B, d); '
                "or name other layers"
            )
        features = isinstance(h, Tensor) and h.ndim == 2 and h.is_floating_point()
        if not features or len(h) != self.size:
            raise ValueError(
                f"layer {name!r} gives {_shape(h)}, and not (B, d) features of the {self.size} "
                "samples of a batch: pass a function as pool that returns them, "
                "or name other layers"
            )
        return _finite(h, f"layer {name!r}", "name other layers")


def _unwrapped(model: nn.Module) -> nn.Module:
    """What ``torch.compile`` and data parallelism wrapped, in any order."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


def _modules(network: nn.Module) -> dict[str, nn.Module]:
    """Every module under all its names; a compiled one goes by the name of its wrapper."""
    modules = {}
    for name, module in network.named_modules(remove_duplicate=False):
        parts = [part for part in name.split(".") if part != "_orig_mod"]
        modules[".".join(parts)] = module
    return modules


def _output(module: nn.Module, output: Any) -> Any:
    """What a layer gives; of a DEQ, which gives its solution too, the equilibrium."""
    if isinstance(module, DEQ) and isinstance(output, tuple):
        return output[0]
    return output


def _arguments(inputs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), inputs
    if isinstance(inputs, (tuple, list)):
        return inputs, {}
    return (inputs,), {}


def _inputs_and_labels(batch: Any) -> tuple[Any, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(
            "a batch must be (inputs, labels): "
            'pass a DataLoader, or ((b["x"], b["y"]) for b in loader)'
        )
    inputs, labels = batch
    # A copy: a loader may write the next batch into the same memory.
    labels = torch.as_tensor(labels).detach().cpu().clone()
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers (B,), got {labels.dtype} {tuple(labels.shape)}")
    return inputs, labels.long()


def _single(x: Tensor) -> Tensor:
    """Half precision has too few digits for a mean."""
    return x.float() if x.element_size() == 2 else x


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _finite(x: Tensor, what: str, remedy: str) -> Tensor:
    if not bool(torch.isfinite(x).all()):
        raise ValueError(
            f"{what} gives NaN or infinite values: {remedy}, or measure model.float() if half "
            "precision overflows"
        )
    return x.detach().cpu().clone()  # the network may go on to work in place


def _eager() -> Any:
    """Compiled code runs eager within, as it calls no hooks that were registered later."""
    if "torch._dynamo" in sys.modules:
        return torch.compiler.set_stance("force_eager")
    return nullcontext()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module's mode is as before.

    It is set by each module's own ``train``, which may do more than set the flag, as LoRA layers do
    that merge their weights; and then by the flag, since ``train`` sets that of all modules inside.
    """
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
