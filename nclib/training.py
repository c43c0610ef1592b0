"""Training of a `Classifier`: one loop for every arm, protocol and size.

The loop reads a `RunConfig` and nothing else, logs tidy rows, and hands its state to a checkpoint writer after each
epoch. Everything random is seeded per epoch, so a run continued from a checkpoint ends with the same bits as an
undisturbed one at the same number of threads.
"""

import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nclib.config import ConfigError, RunConfig, TrainConfig
from nclib.data import Batches, Split, make_split
from nclib.deq import DEQ, BackwardNotConverged
from nclib.evaluation import Outputs, collect, per_class_rows, summarise
from nclib.losses import Loss
from nclib.metrics import class_moments
from nclib.models import Classifier, Output, build_model, count_parameters
from nclib.system.warning import warn

HOPELESS_RESIDUAL = 0.1
"""Samples whose equilibrium residual is above this leave the training loss in every arm (and are counted)."""

BACKWARD_FAILURES_TO_WARN_OF = 0.05
"""Share of failed backward solves in an epoch above which a warning is given; every share is logged."""

ONE_AT_A_TIME = threading.RLock()
"""Held while a thread of this process trains, or builds a network of a run."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
_COLUMNS = {
    "history": ["epoch", "split", "metric", "value"],
    "classes": ["epoch", "split", "class", "metric", "value"],
    "cost": ["epoch", "train_seconds", "evaluate_seconds"],
}


class TrainingDiverged(RuntimeError):
    """The loss is not a number any more; the message names the options to change."""

    exit_code = 1


@dataclass(frozen=True)
class Result:
    """What a run leaves, of any kind of run: `RunStore.save` keeps it.

    Parameters
    ----------
    tables : always "history", with the columns epoch, split, metric, value. Of a training, split is "train" or "test"
        (evaluations of the network at the end of that epoch) or "steps" (averages over the steps of that epoch); its
        "classes" is the same with a column class, and "cost" has the columns epoch, train_seconds, evaluate_seconds
    arrays : of a training features, labels, indices and counts, for the tables and figures made from them
    weights : the network's final state
    facts : what is kept with the provenance; of a training parameters, updates, the epochs at which it was continued
        from a checkpoint, and the sessions before that: what trained up to which epoch, at what cost
    """

    tables: Mapping[str, pd.DataFrame]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    history = property(lambda self: self.tables["history"])


def learning_rate(train: TrainConfig, step: int, total_steps: int) -> float:
    """Rate of update number `step`, counted from 0: constant, or lr (1 + cos(π step/total)) / 2."""
    return train.lr if train.schedule == "constant" else train.lr * (1 + math.cos(math.pi * step / total_steps)) / 2


def usable(out: Output) -> Tensor:
    """(B,) bool: which samples of a training batch enter the loss. See `TrainConfig.skip`."""
    keep = out.logits.isfinite().all(dim=1)
    return keep if out.solution is None else keep & (out.solution.residual <= HOPELESS_RESIDUAL)


class _Step(NamedTuple):
    """One batch through the network: its objective, its output, and the samples that entered."""

    loss: Tensor
    out: Output
    keep: Tensor
    start_distance: Tensor | None


def _start_distance(model: Classifier, x: Tensor, z: Tensor) -> Tensor:
    """‖z₀ − z*‖₂ / ‖z*‖₂ of each image (B,): how far an equilibrium z (B, d, H, W) is from where its solve began."""
    moved, size = (values.flatten(1).norm(dim=1) for values in (model.block.start(x).to(z.dtype) - z, z))
    return moved / size.clamp_min(torch.finfo(z.dtype).tiny)


def _loss(model: Classifier, images: Tensor, labels: Tensor, class_loss: Callable[..., Tensor]) -> _Step:
    """The objective of a batch."""
    x = model.encoder(images)
    z, solution = model.transform(x)
    out = model.read_out(z, solution)
    keep = usable(out)
    # torch.where, not multiplication: 0 · NaN would be NaN
    values = class_loss(torch.where(keep[:, None], out.logits.to(model.classifier.weight.dtype), 0.0), labels)
    loss = torch.where(keep, values, 0.0).sum() / keep.sum().clamp_min(1)
    with torch.no_grad():
        distance = _start_distance(model, x, z) if out.solution is not None else None
    return _Step(loss, out, keep, distance)


class _Tally:
    """What the training steps of one epoch record of their images, kept on the device."""

    def __init__(self, device: torch.device) -> None:
        self.columns: dict[str, list[Tensor]] = defaultdict(list)
        self.labels: list[Tensor] = []
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.dropped = 0

    def add(self, step: _Step, labels: Tensor, backward: Any, usable_step: bool) -> None:
        self.loss += step.loss.detach()
        self.dropped += not usable_step
        self.labels.append(labels)
        solution, norms = step.out.solution, step.out.features.detach().double().norm(dim=1)
        columns = {"skipped": ~step.keep, "feature_norm": norms}
        if solution is not None:
            columns |= {"not_converged": ~solution.converged, "solver_steps": solution.steps}
            columns |= {"start_distance": step.start_distance}
        if backward is not None:
            columns |= {"backward_not_converged": ~backward.converged, "backward_steps": backward.steps}
        for name, values in columns.items():
            self.columns[name].append(values.double())

    def report(self, num_classes: int) -> tuple[dict[str, float], list[tuple[int, str, float]]]:
        """Overall means, and (class, metric, value) rows; a class not seen has no row."""
        steps, labels = len(self.labels), torch.cat(self.labels)
        zeros = torch.zeros(num_classes, dtype=torch.float64, device=labels.device)
        sums = {name: zeros.index_add(0, labels, torch.cat(values)).cpu() for name, values in self.columns.items()}
        seen = zeros.index_add(0, labels, torch.ones_like(labels, dtype=torch.float64)).cpu()
        overall = {"loss": (self.loss / steps).item(), "dropped": self.dropped / steps}
        overall |= {name: (values.sum() / seen.sum()).item() for name, values in sums.items()}
        classes, shown = torch.nonzero(seen).flatten().tolist(), ("skipped", "not_converged")
        rows = [(k, name, (sums[name][k] / seen[k]).item()) for name in shown if name in sums for k in classes]
        return overall, rows


@contextmanager
def arithmetic(train: TrainConfig, device: torch.device) -> Iterator[None]:
    """Precision and determinism of a run, put back afterwards together with the global random state. They are those of
    the whole process, so that threads take turns."""
    with ONE_AT_A_TIME:
        fixed, cudnn = torch.utils.deterministic, torch.backends.cudnn
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        try:
            flags = fixed.fill_uninitialized_memory, cudnn.benchmark, cudnn.allow_tf32
            numbers = torch.get_default_dtype(), torch.get_float32_matmul_precision()
        except RuntimeError as error:  # of torch, which does not read by the older names what was set by the newer
            raise ConfigError("a run sets precision itself: give each fp32_precision its default") from error
        if train.deterministic and device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        half = train.precision == "bfloat16"
        torch.use_deterministic_algorithms(train.deterministic)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        # Filling every torch.empty, for debugging, takes 3 % of a step. TF32, which is allowed by default for
        # convolutions, keeps 10 bits: an equilibrium to 1e-5 is out of its reach.
        fixed.fill_uninitialized_memory, cudnn.benchmark, cudnn.allow_tf32 = False, not train.deterministic, half
        try:
            # All, as torch warns where it is left to it.
            devices = range(torch.cuda.device_count()) if device.type == "cuda" else []
            # Without its cache, which lasts as long as this block: the weights as first cast would be used to the end.
            cast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=half, cache_enabled=False)
            with torch.random.fork_rng(devices), cast:
                yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            fixed.fill_uninitialized_memory, cudnn.benchmark, cudnn.allow_tf32 = flags
            torch.set_default_dtype(numbers[0])
            torch.set_float32_matmul_precision(numbers[1])


def usable_device(name: torch.device | str | None = None) -> torch.device:
    """The device of this name, such as "cpu", "cuda" or "cuda:1"; without one, the first CUDA device, else the CPU.

    Raises
    ------
    ConfigError
        For a name that is none, and for a device that this machine does not have.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (AssertionError, RuntimeError) as error:  # the first where PyTorch is built without CUDA
        said = str(error).partition(chr(10))[0]
        raise ConfigError(f"device '{name}' cannot be used: {said}. Use cpu, cuda or cuda:1, or leave it out") from None
    return torch.device(name)


def _optimiser(train: TrainConfig, weights: Iterable[Tensor]) -> torch.optim.Optimizer:
    common = {"lr": train.lr, "weight_decay": train.weight_decay}
    if train.optimiser == "sgd":
        return torch.optim.SGD(weights, momentum=train.momentum, **common)
    kind = torch.optim.Adam if train.optimiser == "adam" else torch.optim.AdamW
    return kind(weights, betas=(train.momentum, 0.999), **common)


class _Trainer:
    """State of one training between epochs."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        train, split = config.train, make_split(config.data, config.seed)
        self.config, self.device, self.split = config, device, split
        channels, dtype = split.train_images.shape[1], _DTYPES[train.precision]
        self.model = build_model(config.model, len(split.counts), channels, config.seed).to(device, dtype)
        self.optimiser = _optimiser(train, self.model.parameters())

        batches = partial(Batches, mean=split.mean, std=split.std, device=device, dtype=dtype)
        images = {"train": (split.train_images, split.train_labels), "test": (split.test_images, split.test_labels)}
        self.train_batches = batches(*images["train"], batch_size=train.batch_size, augment=split.augment)
        self.loaders = {name: batches(*pair, batch_size=512, augment="none") for name, pair in images.items()}
        self.class_loss = Loss(train.loss, split.counts, train.epochs, self.model.classifier.weight)
        self.epoch = 0
        self.earlier: list[dict[str, Any]] = []  # sessions that this training goes on from, by their last epoch
        self.tables: dict[str, list[tuple]] = {name: [] for name in _COLUMNS}
        self.outputs: dict[str, Outputs] = {}

    def state(self, session: dict[str, Any]) -> dict[str, Any]:
        sessions = [*self.earlier, session | {"epoch": self.epoch}]
        networks = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        return {"epoch": self.epoch, "sessions": sessions, **networks, **self.tables}

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.epoch, self.earlier = int(state["epoch"]), list(state["sessions"])
        self.tables = {name: [tuple(row) for row in state[name]] for name in _COLUMNS}

    @torch.enable_grad()
    def train_epoch(self) -> None:
        """One pass over the training set; raises `TrainingDiverged` when the loss is not finite."""
        train, model, epoch = self.config.train, self.model, self.epoch + 1
        layer = model.block if isinstance(model.block, DEQ) else None
        tally, steps = _Tally(self.device), len(self.train_batches)
        torch.manual_seed(1_000_003 * self.config.seed + epoch)  # of dropout and the like in a cell
        model.train()
        for i, (images, labels, _) in enumerate(self.train_batches.shuffled(self.config.seed, epoch)):
            rate = learning_rate(train, self.epoch * steps + i, train.epochs * steps)
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            step = _loss(model, images, labels, partial(self.class_loss, epoch=epoch))
            self.optimiser.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, enabled=False):
                step.loss.backward()
            # A sample that leaves the loss can still have left 0 · inf = NaN in a gradient: one such step would end the
            # network, so it is dropped and counted.
            usable_step = bool(torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip or math.inf).isfinite())
            if usable_step:
                self.optimiser.step()
            tally.add(step, labels, layer.last_backward if layer else None, usable_step)
        overall, rows = tally.report(len(self.split.counts))
        if overall["skipped"] == 1 or overall["dropped"] == 1 or not math.isfinite(overall["loss"]):
            out = f"{overall['skipped']:.0%} of the samples were left out, and {overall['dropped']:.0%} of the steps"
            raise self._diverged(f"in epoch {epoch} at rate {rate:g} the loss was {overall['loss']:g}, {out}")
        rule = self.config.model.gradient
        few = rule is not None and rule.method == "implicit" and rule.steps is not None  # which are meant
        if (failed := overall.get("backward_not_converged", 0.0)) > BACKWARD_FAILURES_TO_WARN_OF and not few:
            said = f"epoch {epoch}: {failed:.0%} of the backward passes missed their tolerance; allow more max_steps"
            warn(said, BackwardNotConverged)
        if (failed := overall.get("not_converged", 0.0)) > 0.5 and epoch == train.epochs:
            said = f"epoch {epoch}: {failed:.0%} of the images have no equilibrium to the tolerance"
            warn(f"{said}; allow more steps, or make the cell contract more", RuntimeWarning)
        self.tables["history"] += [(epoch, "steps", name, value) for name, value in overall.items()]
        self.tables["classes"] += [(epoch, "steps", *row) for row in rows]

    def _diverged(self, what: str) -> TrainingDiverged:
        train, kind = self.config.train, self.config.model.kind
        now = f"Use a lower lr (now {train.lr:g}), clip=1.0 (now {train.clip}), or for an equilibrium more max_steps"
        return TrainingDiverged(f"training of {kind!r} diverged: {what}. {now}")

    def evaluate_epoch(self) -> None:
        """Log what this epoch is due: everything, or in the last epochs the test accuracy alone."""
        epoch = self.epoch + 1
        for name, with_nc in self.config.train.evaluated(epoch).items():
            outputs = collect(self.model, self.loaders[name].in_order())
            if not outputs.features.isfinite().all():
                raise self._diverged(f"features are not finite after epoch {epoch}")
            report = summarise(outputs, self.split.counts, self.split.minority, with_nc)
            self.tables["history"] += [(epoch, name, metric, value) for metric, value in report.items()]
            self.tables["classes"] += [(epoch, name, *row) for row in per_class_rows(outputs, len(self.split.counts))]
            self.outputs[name] = outputs

    def logged(self) -> dict[str, float]:
        """The rows that the last epoch added to the history."""
        rows = self.tables["history"]
        return {f"{split}/{metric}": value for epoch, split, metric, value in rows if epoch == self.epoch}

    def result(self) -> Result:
        split, model = self.split, self.model
        kept = ("counts", "minority", "train_indices", "test_indices")
        arrays = {name: getattr(split, name) for name in kept}
        for name, outputs in self.outputs.items():
            arrays |= {f"{name}_features": outputs.features, f"{name}_labels": outputs.labels}
            if name == "train":
                arrays["classifier"] = outputs.weight
                arrays["class_means"] = class_moments(outputs.features, outputs.labels, len(split.counts)).class_means
            if outputs.residual is not None:
                arrays[f"{name}_residual"] = outputs.residual
        return Result(
            tables={name: pd.DataFrame(rows, columns=_COLUMNS[name]) for name, rows in self.tables.items()},
            arrays={name: torch.as_tensor(values).detach().cpu().numpy() for name, values in arrays.items()},
            weights=model.cpu().state_dict(),  # with the versions of its modules
            facts={
                "parameters": count_parameters(model),
                "updates": self.config.train.epochs * len(self.train_batches),
                "class_names": list(split.class_names),
                "continued_from": [session["epoch"] for session in self.earlier],
                "earlier_sessions": self.earlier,
            },
        )


def train(
    config: RunConfig,
    *,
    device: torch.device | str | None = None,
    checkpoint: Any = None,
    progress: Callable[[int, int], None] | None = None,
    log: Callable[[int, dict[str, float]], None] | None = None,
    session: Callable[[], dict[str, Any]] | None = None,
) -> Result:
    """Train what `config` describes, from the start or from the checkpoint's last epoch.

    Parameters
    ----------
    config : data, model, protocol and seed
    device : left out: the first CUDA device where there is one, else the CPU. Not part of the run's identity
    checkpoint : with ``load()``, a state or None, called before the first epoch, and ``save(state)``, called after each
        but the last; left out: nothing is kept
    progress : called as ``progress(finished_epochs, epochs)``
    log : called as ``log(epoch, metrics)`` after each epoch, with all that is in its history: {"steps/loss": 2.3, …}
    session : gives what each checkpoint says of the session that writes it, such as code, device and cost so far; the
        facts of a run that goes on from it hold that, with the epoch

    Returns
    -------
    Result
        On the CPU bit for bit the same, at the same number of threads, whether or not the training was interrupted.

    Raises
    ------
    TrainingDiverged
        When the loss or the features are not finite.

    Examples
    --------
    >>> import nclib as nc
    >>> data = nc.DataConfig(dataset="digits", n_max=2, test_per_class=2)
    >>> network = nc.ModelConfig(kind="explicit", width=2)
    >>> config = nc.RunConfig(data=data, model=network, train=nc.TrainConfig(epochs=1))
    >>> run = nc.train(config)
    >>> sorted(run.history["split"].unique())
    ['steps', 'test', 'train']
    """
    device = usable_device(device)
    with arithmetic(config.train, device):
        trainer = _Trainer(config, device)
        if checkpoint is not None and (state := checkpoint.load()) is not None:
            trainer.restore(state)
        while trainer.epoch < config.train.epochs:
            started = time.perf_counter()
            trainer.train_epoch()
            trained = time.perf_counter()
            trainer.evaluate_epoch()
            trainer.epoch += 1
            trainer.tables["cost"].append((trainer.epoch, trained - started, time.perf_counter() - trained))
            if checkpoint is not None and trainer.epoch < config.train.epochs:
                checkpoint.save(trainer.state(session() if session is not None else {}))
            if log is not None:
                log(trainer.epoch, trainer.logged())
            if progress is not None:
                progress(trainer.epoch, config.train.epochs)
        return trainer.result()


def trained(config: RunConfig, weights: Mapping[str, Tensor]) -> Classifier:
    """The network of a finished run, from its configuration and weights."""
    classifier = weights["classifier.weight"]
    channels = weights["encoder.0.weight"].shape[1]
    model = build_model(config.model, len(classifier), channels).to(classifier.dtype)
    model.load_state_dict(weights)
    return model


def reopen(
    config: RunConfig, weights: Mapping[str, Tensor], device: torch.device
) -> tuple[Classifier, Split, dict[str, Batches]]:
    """A finished run's network with its weights, its images, and the batches it was evaluated on,
    "train" and "test". To be used within `arithmetic`."""
    trainer = _Trainer(config, device)
    trainer.model.load_state_dict(weights)
    return trainer.model, trainer.split, trainer.loaders
