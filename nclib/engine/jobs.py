"""One run: trained and stored, in this process."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from nclib import models, training
from nclib.config import RunConfig, StoredConfig, TrainConfig, digest, run_id
from nclib.data import describe
from nclib.engine.reading import CorruptRun
from nclib.engine.store import DamageWarning, RunStore
from nclib.system import own_code, provenance

Note = Callable[[float, float], None]
Log = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Result:
    """What a run leaves: tables (always "history": epoch, split, metric, value), arrays, weights, and facts that are
    kept with its provenance."""

    tables: Mapping[str, pd.DataFrame]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What a configuration of another kind than a classifier is given to make its run with.

    Parameters
    ----------
    store : the run store, to read from
    base : id there of the run that this one ``needs``; None where it needs none
    device : where to compute
    progress : to be called with the units of work done and all of them
    checkpoint : keeps the state of an interrupted run, with load() and save(state)
    """

    store: RunStore
    base: str | None
    device: torch.device
    progress: Note
    checkpoint: Any


def train_run(
    config: StoredConfig,
    store: RunStore,
    device: str | None = None,
    progress: Note | None = None,
    log: Log | None = None,
) -> str:
    """Make sure that one run is stored, training or continuing it if it is not; returns its id.

    Safe to call from any number of processes at once: they take turns, and all but the first find the run done. One
    that is stored is left as it is, also in a store that may only be read.

    Parameters
    ----------
    config : of any kind of run; the run that it needs is made first if it is not there
    store : where it is kept
    device : left out: the first CUDA device where there is one, else the CPU
    progress : called with the units of work done and all of them
    log : of a classifier, called with each epoch and its metrics
    """
    run = run_id(config)
    if store.is_sound(run):
        return run
    with store.lock(run):
        if not store.is_sound(run):
            make(config, store, training.usable_device(device), progress or (lambda *_: None), log)
    return run


def make(config: StoredConfig, store: RunStore, device: torch.device, progress: Note, log: Log | None) -> None:
    """Train one run, and first the one that it needs, and store it."""
    needed, on = config.needs(), torch.device("cpu") if config.on_cpu else device
    base = None if needed is None else train_run(needed, store, str(device), lambda *_: progress(0, config.work()))
    own = config.model.own_code if isinstance(config, RunConfig) else None
    code = own_code.files(own) if own else {}  # as they are now: what is trained is checked against their digest

    def note(done: float, total: float) -> None:
        store.note_progress(run_id(config), done, total)
        progress(done, total)

    with one_thread(), provenance.Cost(on) as cost, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint = store.checkpoint(run_id(config))
        if isinstance(config, RunConfig):
            here = provenance.capture(on)
            session = lambda: here | {"cost": cost.as_dict()}  # noqa: E731
            run = training.train(config, device=on, checkpoint=checkpoint, progress=note, log=log, session=session)
            tables = {"history": run.history, "classes": run.classes, "cost": run.cost}
            result = Result(tables, run.arrays, run.weights, run.facts)
        else:
            result = config.execute(Job(store, base, on, note, checkpoint))
        train = getattr(config, "train", None)
        with training.arithmetic(train, on) if isinstance(train, TrainConfig) else contextlib.nullcontext():
            record = provenance.capture(on, [config.seed], cost)
    record["facts"] = {**result.facts, **({"base": base} if base else {})}
    record["warnings"] = sorted({str(warning.message) for warning in caught})
    store.save(config, result.tables, result.arrays, result.weights, record, code)
    for warning in caught:
        if issubclass(warning.category, DamageWarning):  # the others are only kept with the run
            warnings.warn(warning.message, stacklevel=2)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread a run, or as many as NCLIB_THREADS says, whatever the session around it uses: the number of threads
    changes the last bits of a result, and more runs at once use a machine better than more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("NCLIB_THREADS", "1")))
    try:
        yield
    finally:
        torch.set_num_threads(before)


_ONE_AT_A_TIME = threading.Lock()


def attempt(config: StoredConfig, root: str, version: str, device: str | None = None) -> str:
    """In a worker: make sure that a run is stored; returns why it could not be, "" where it is there.

    Parameters
    ----------
    config : of the run
    root : of the run store, which workers share with the client
    version : `provenance.code()` of the client; another one here would train other runs, and is refused
    device : as of `train_run`
    """
    try:
        if version != provenance.code():
            raise RuntimeError(f"a worker has nclib {provenance.code()}, here it is {version}: install the same there")
        if not Path(root).is_dir():
            raise RuntimeError("a worker does not see the run store: put NCLIB_RESULTS on a disk that workers share")
        with _ONE_AT_A_TIME:  # in a worker with several threads: runs set PyTorch's random state
            train_run(config, RunStore(root), device)
    except Exception as error:
        return explain(error)
    return ""


def explain(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# --- code of the user's own -----------------------------------------------------------------------------------------


def check_own_code(configs: Iterable[StoredConfig]) -> None:
    """Refuse cells and networks of the user's own that cannot be imported or do not fit, before anything is trained.

    Raises
    ------
    ConfigError, OwnCodeError
        Saying which, and why.
    """
    own = [config.needs() or config for config in configs]
    own = [config for config in own if isinstance(config, RunConfig) and config.model.own_code]
    for model, dataset in dict.fromkeys((config.model, config.data.dataset) for config in own):
        about = describe(dataset)
        if about["present"]:  # where images are still to be fetched, the training looks at its first
            models.try_own_code(model, about["classes"], about["shape"])
        else:
            own_code.load(model.own_code, model.source)


class CodeChanged(UserWarning):
    """Code of the user's own has changed since a run was trained with it, so the same options are another run."""


def changed_code(config: StoredConfig, store: RunStore) -> str:
    """Why a run with code of the user's own is another one than a stored run of the same options; "" where none is."""
    if not isinstance(config, RunConfig) or not config.model.own_code:
        return ""
    options, (name, now), *_ = config.canonical(), *own_code.files(config.model.own_code).items()
    start = run_id(config).removesuffix(digest(options))
    for done in sorted(store.root.glob(f"{start}*/DONE"), key=lambda done: done.stat().st_mtime, reverse=True):
        with contextlib.suppress(CorruptRun, FileNotFoundError):
            other = store.open(done.parent.name)
            same = other.config | {"model": other.config["model"] | {"source": config.model.source}} == options
            if same and (done.parent / f"code.{name}").read_bytes() != now:
                return f"{name} changed after {other.run_id} was trained"
    return ""
