"""Training of a `Classifier`: one loop for every network, protocol and size.

The loop reads a `RunConfig` and nothing else, logs tidy rows, and hands its state to a checkpoint
after each epoch. Everything random is seeded per epoch, so a run continued from a checkpoint ends
with the same bits as an undisturbed one at the same number of threads.

Begin with `train`, the loop over epochs. `Training` holds the network under way: one epoch of it is
`train_epoch` and `evaluate_epoch`. Above stand what one step needs, and precision and device.
"""

import math
import os
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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

HOPELESS_RESIDUAL = 0.1
"""Samples whose equilibrium residual is above this leave the training loss, of every network (and
are counted)."""

BACKWARD_FAILURES_TO_WARN_OF = 0.05
"""Share of failed backward solves in an epoch above which a warning is given; every share is
logged."""

EVALUATION_BATCH = 512

ONE_AT_A_TIME = threading.RLock()
"""Held while a thread of this process trains: precision and determinism are settings of the whole
process."""

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
    tables : always "history", with the columns epoch, split, metric, value. Of a training, split is
        "train" or "test" (evaluations of the network at the end of that epoch) or "steps" (averages
        over the steps of that epoch); its "classes" is the same with a column class, and "cost" has
        the columns epoch, train_seconds, evaluate_seconds
    arrays : of a training features, labels, indices and counts, for the tables and figures made
        from them
    weights : the network's final state
    facts : what is kept with the provenance; of a training parameters, updates, the epochs at which
        it was continued from a checkpoint, and the sessions before that: what trained up to which
        epoch, at what cost
    """

    tables: Mapping[str, pd.DataFrame]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def history(self) -> pd.DataFrame:
        return self.tables["history"]


# --- A training step ------------------------------------------------------------------------------


def learning_rate(train: TrainConfig, step: int, total_steps: int) -> float:
    """Rate of update number `step`, counted from 0: constant, or lr (1 + cos(π step/total)) / 2."""
    if train.schedule == "constant":
        return train.lr
    return train.lr * (1 + math.cos(math.pi * step / total_steps)) / 2


def usable(output: Output) -> Tensor:
    """Which samples of a batch enter the loss (B,): finite logits, and an equilibrium that is not
    hopeless."""
    keep = output.logits.isfinite().all(dim=1)
    if output.solution is None:
        return keep
    return keep & (output.solution.residual <= HOPELESS_RESIDUAL)


def mean_loss(
    losses: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor, keep: Tensor
) -> Tensor:
    """Mean of the losses of the samples to keep; the others have no influence on it or on its
    gradient.

    Parameters
    ----------
    losses : of logits (B, K) and labels (B,), a value each (B,)
    logits, labels : (B, K) and (B,)
    keep : (B,) bool
    """
    # torch.where, not multiplication: 0 · NaN would be NaN
    values = losses(torch.where(keep[:, None], logits, 0.0), labels)
    return torch.where(keep, values, 0.0).sum() / keep.sum().clamp_min(1)


def start_distance(layer: DEQ, x: Tensor, z: Tensor) -> Tensor:
    """‖z₀ − z*‖₂ / ‖z*‖₂ of each image (B,): how far an equilibrium z (B, d, H, W) is from where
    its solve began."""
    moved = (layer.start(x).to(z.dtype) - z).flatten(1).norm(dim=1)
    size = z.flatten(1).norm(dim=1)
    return moved / size.clamp_min(torch.finfo(z.dtype).tiny)


class EpochRecord:
    """What the steps of one epoch record of their images, kept on the device until the epoch
    ends."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.columns: dict[str, list[Tensor]] = defaultdict(list)
        self.labels: list[Tensor] = []
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.dropped = 0
        self.zeros = torch.zeros(num_classes, dtype=torch.float64, device=device)

    def add(self, name: str, values: Tensor) -> None:
        """A value of each image of the batch (B,)."""
        self.columns[name].append(values.double())

    def report(self) -> tuple[dict[str, float], list[tuple[int, str, float]]]:
        """Means over the steps and images, and (class, metric, value) of what is of interest by
        class; a class that was not seen has no row."""
        labels = torch.cat(self.labels)
        seen = self.zeros.index_add(0, labels, torch.ones_like(labels, dtype=torch.float64)).cpu()
        steps = len(self.labels)
        means = {"loss": (self.loss / steps).item(), "dropped": self.dropped / steps}
        rows = []
        for name, values in self.columns.items():
            sums = self.zeros.index_add(0, labels, torch.cat(values)).cpu()
            means[name] = (sums.sum() / seen.sum()).item()
            if name in ("skipped", "not_converged"):
                for k in seen.nonzero().flatten().tolist():
                    rows.append((k, name, (sums[k] / seen[k]).item()))
        return means, rows


# --- Precision and device -------------------------------------------------------------------------


@contextmanager
def arithmetic(train: TrainConfig, device: torch.device) -> Iterator[None]:
    """Precision and determinism of a run, put back afterwards together with the global random
    state.

    They are those of the whole process, so that threads take turns.
    """
    cudnn = torch.backends.cudnn
    deterministic = torch.utils.deterministic
    half = train.precision == "bfloat16"
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else []
    if train.deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with ONE_AT_A_TIME:
        enabled = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        fill = deterministic.fill_uninitialized_memory
        benchmark = cudnn.benchmark
        tf32 = cudnn.allow_tf32
        default_dtype = torch.get_default_dtype()
        matmul_precision = torch.get_float32_matmul_precision()
        try:
            torch.use_deterministic_algorithms(train.deterministic)
            torch.set_default_dtype(torch.float32)
            torch.set_float32_matmul_precision("highest")
            # Filling every torch.empty would take 3 % of a step.
            deterministic.fill_uninitialized_memory = False
            cudnn.benchmark = not train.deterministic
            # Convolutions may use TF32 by default, whose 10 bits put an equilibrium to 1e-5 out of
            # reach.
            cudnn.allow_tf32 = half
            # Without its cache, which lasts as long as this block: the weights as first cast would
            # be used to the end.
            autocast = torch.autocast(
                device.type, dtype=torch.bfloat16, enabled=half, cache_enabled=False
            )
            with torch.random.fork_rng(devices), autocast:
                yield
        finally:
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
            torch.set_default_dtype(default_dtype)
            torch.set_float32_matmul_precision(matmul_precision)
            deterministic.fill_uninitialized_memory = fill
            cudnn.benchmark = benchmark
            cudnn.allow_tf32 = tf32


def usable_device(name: torch.device | str | None = None) -> torch.device:
    """The device of this name, such as "cpu", "cuda" or "cuda:1"; without one, the first CUDA
    device, else the CPU.

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
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"device '{name}' cannot be used: {reason}. Use cpu, cuda or cuda:1, or leave it out"
        ) from None
    return torch.device(name)


# --- A network under way --------------------------------------------------------------------------


def make_optimiser(train: TrainConfig, model: Classifier) -> torch.optim.Optimizer:
    """The optimiser that a configuration describes."""
    parameters = model.parameters()
    if train.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay
        )
    kind = torch.optim.Adam if train.optimiser == "adam" else torch.optim.AdamW
    return kind(
        parameters, lr=train.lr, betas=(train.momentum, 0.999), weight_decay=train.weight_decay
    )


class Training:
    """A network under way: what changes from epoch to epoch, and the images it sees."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        train = config.train
        split = make_split(config.data, config.seed)
        dtype = _DTYPES[train.precision]
        self.config = config
        self.device = device
        self.split = split
        self.model = build_model(
            config.model, len(split.counts), split.train_images.shape[1], config.seed
        )
        self.model.to(device, dtype)
        self.optimiser = make_optimiser(train, self.model)
        self.losses = Loss(train.loss, split.counts, train.epochs, self.model.classifier.weight)

        like = {"mean": split.mean, "std": split.std, "device": device, "dtype": dtype}
        self.train_batches = Batches(
            split.train_images,
            split.train_labels,
            batch_size=train.batch_size,
            augment=split.augment,
            **like,
        )
        self.evaluation_batches = {
            "train": Batches(
                split.train_images, split.train_labels, batch_size=EVALUATION_BATCH, **like
            ),
            "test": Batches(
                split.test_images, split.test_labels, batch_size=EVALUATION_BATCH, **like
            ),
        }
        self.epoch = 0  # how many are finished
        # Those that this training goes on from, by their last epoch.
        self.sessions: list[dict[str, Any]] = []
        self.tables: dict[str, list[tuple]] = {name: [] for name in _COLUMNS}
        self.outputs: dict[str, Outputs] = {}  # of the last evaluations

    # What a checkpoint keeps

    def state(self, session: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint keeps; `session` says what trained since the last one."""
        return {
            "epoch": self.epoch,
            "sessions": [*self.sessions, session | {"epoch": self.epoch}],
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            **self.tables,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.epoch = int(state["epoch"])
        self.sessions = list(state["sessions"])
        self.tables = {name: [tuple(row) for row in state[name]] for name in _COLUMNS}

    # One epoch

    @torch.enable_grad()
    def train_epoch(self) -> None:
        """One pass over the training set.

        Raises
        ------
        TrainingDiverged
            When the loss is not finite, or no sample or step could be used.
        """
        train = self.config.train
        model = self.model
        layer = model.block if isinstance(model.block, DEQ) else None
        epoch = self.epoch + 1
        steps = len(self.train_batches)
        record = EpochRecord(len(self.split.counts), self.device)

        def losses(logits: Tensor, labels: Tensor) -> Tensor:
            return self.losses(logits, labels, epoch)

        torch.manual_seed(1_000_003 * self.config.seed + epoch)  # of dropout and the like in a cell
        model.train()
        for i, (images, labels, _) in enumerate(
            self.train_batches.shuffled(self.config.seed, epoch)
        ):
            rate = learning_rate(train, self.epoch * steps + i, train.epochs * steps)
            for group in self.optimiser.param_groups:
                group["lr"] = rate

            x = model.encoder(images)
            z, solution = model.transform(x)
            output = model.read_out(z, solution)
            keep = usable(output)
            loss = mean_loss(losses, output.logits.to(model.classifier.weight.dtype), labels, keep)

            self.optimiser.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, enabled=False):
                loss.backward()
            # A sample that leaves the loss can still have left 0 · inf = NaN in a gradient: one
            # such step would end the network, so it is dropped and counted.
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip or math.inf)
            finite = bool(norm.isfinite())
            if finite:
                self.optimiser.step()

            record.loss += loss.detach()
            record.dropped += not finite
            record.labels.append(labels)
            record.add("skipped", ~keep)
            record.add("feature_norm", output.features.detach().double().norm(dim=1))
            if solution is not None:
                record.add("not_converged", ~solution.converged)
                record.add("solver_steps", solution.steps)
                with torch.no_grad():
                    record.add("start_distance", start_distance(layer, x, z))
                if layer.last_backward is not None:
                    record.add("backward_not_converged", ~layer.last_backward.converged)
                    record.add("backward_steps", layer.last_backward.steps)

        means, class_rows = record.report()
        self._check(epoch, rate, means)
        self.tables["history"] += [(epoch, "steps", name, value) for name, value in means.items()]
        self.tables["classes"] += [(epoch, "steps", *row) for row in class_rows]

    def _check(self, epoch: int, rate: float, means: Mapping[str, float]) -> None:
        """Refuse an epoch that trained nothing, and warn of solves that failed."""
        if means["skipped"] == 1 or means["dropped"] == 1 or not math.isfinite(means["loss"]):
            raise self._diverged(
                f"in epoch {epoch} at rate {rate:g} the loss was {means['loss']:g}, "
                f"{means['skipped']:.0%} of the samples were left out, "
                f"and {means['dropped']:.0%} of the steps"
            )
        gradient = self.config.model.gradient
        few_steps_are_meant = (
            gradient is not None and gradient.method == "implicit" and gradient.steps is not None
        )
        failed = means.get("backward_not_converged", 0.0)
        if failed > BACKWARD_FAILURES_TO_WARN_OF and not few_steps_are_meant:
            warnings.warn(
                f"epoch {epoch}: {failed:.0%} of the backward passes missed their tolerance; "
                "allow more max_steps",
                BackwardNotConverged,
                stacklevel=2,
            )
        failed = means.get("not_converged", 0.0)
        if failed > 0.5 and epoch == self.config.train.epochs:
            warnings.warn(
                f"epoch {epoch}: {failed:.0%} of the images have no equilibrium to the tolerance; "
                "allow more steps, or make the cell contract more",
                RuntimeWarning,
                stacklevel=2,
            )

    def _diverged(self, what: str) -> TrainingDiverged:
        train = self.config.train
        return TrainingDiverged(
            f"training of {self.config.model.kind!r} diverged: {what}. "
            f"Use a lower lr (now {train.lr:g}), clip=1.0 (now {train.clip}), "
            "or for an equilibrium more max_steps"
        )

    def evaluate_epoch(self) -> None:
        """Log what this epoch is due: everything, or in the last epochs the test accuracy alone."""
        epoch = self.epoch + 1
        for name, with_nc in self.config.train.evaluated(epoch).items():
            outputs = collect(self.model, self.evaluation_batches[name].in_order())
            if not outputs.features.isfinite().all():
                raise self._diverged(f"features are not finite after epoch {epoch}")
            report = summarise(outputs, self.split.counts, self.split.minority, with_nc)
            rows = per_class_rows(outputs, len(self.split.counts))
            self.tables["history"] += [
                (epoch, name, metric, value) for metric, value in report.items()
            ]
            self.tables["classes"] += [(epoch, name, *row) for row in rows]
            self.outputs[name] = outputs

    # What is there in the end

    def logged(self) -> dict[str, float]:
        """The rows that the last epoch added to the history, by "split/metric"."""
        rows = self.tables["history"]
        return {
            f"{split}/{metric}": value
            for epoch, split, metric, value in rows
            if epoch == self.epoch
        }

    def result(self) -> Result:
        split = self.split
        arrays = {
            "counts": split.counts,
            "minority": split.minority,
            "train_indices": split.train_indices,
            "test_indices": split.test_indices,
        }
        for name, outputs in self.outputs.items():
            arrays[f"{name}_features"] = outputs.features
            arrays[f"{name}_labels"] = outputs.labels
            if outputs.residual is not None:
                arrays[f"{name}_residual"] = outputs.residual
        train = self.outputs["train"]
        arrays["classifier"] = train.weight
        arrays["class_means"] = class_moments(
            train.features, train.labels, len(split.counts)
        ).class_means
        facts = {
            "parameters": count_parameters(self.model),
            "updates": self.config.train.epochs * len(self.train_batches),
            "class_names": list(split.class_names),
            "continued_from": [session["epoch"] for session in self.sessions],
            "earlier_sessions": self.sessions,
        }
        return Result(
            tables={
                name: pd.DataFrame(rows, columns=_COLUMNS[name])
                for name, rows in self.tables.items()
            },
            arrays={name: values.detach().cpu().numpy() for name, values in arrays.items()},
            weights=self.model.cpu().state_dict(),
            facts=facts,
        )


# --- The loop over epochs -------------------------------------------------------------------------


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
    device : left out: the first CUDA device where there is one, else the CPU. Not part of the run's
        identity
    checkpoint : with ``load()``, a state or None, called before the first epoch, and
        ``save(state)``, called after each but the last; left out: nothing is kept
    progress : called as ``progress(finished_epochs, epochs)``
    log : called as ``log(epoch, metrics)`` after each epoch, with all that is in its history:
        {"steps/loss": 2.3, …}
    session : gives what each checkpoint says of the session that writes it, such as code, device
        and cost so far; the facts of a run that goes on from it hold that, with the epoch

    Returns
    -------
    Result
        On the CPU bit for bit the same, at the same number of threads, whether or not the training
        was interrupted.

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
    >>> run = nc.training.train(config)
    >>> sorted(run.history["split"].unique())
    ['steps', 'test', 'train']
    """
    device = usable_device(device)
    epochs = config.train.epochs
    with arithmetic(config.train, device):
        training = Training(config, device)
        state = checkpoint.load() if checkpoint is not None else None
        if state is not None:
            training.restore(state)
        while training.epoch < epochs:
            started = time.perf_counter()
            training.train_epoch()
            trained = time.perf_counter()
            training.evaluate_epoch()
            evaluated = time.perf_counter()
            training.epoch += 1
            training.tables["cost"].append((training.epoch, trained - started, evaluated - trained))
            if checkpoint is not None and training.epoch < epochs:
                checkpoint.save(training.state(session() if session is not None else {}))
            if log is not None:
                log(training.epoch, training.logged())
            if progress is not None:
                progress(training.epoch, epochs)
        return training.result()


# --- A finished run -------------------------------------------------------------------------------


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
    "train" and "test".

    To be used within `arithmetic`.
    """
    training = Training(config, device)
    training.model.load_state_dict(weights)
    return training.model, training.split, training.evaluation_batches
