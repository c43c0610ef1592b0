"""One run: made in this process, or by a worker for a client elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
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
from nclib.config import ConfigError, RunConfig, StoredConfig, TrainConfig, digest, run_id
from nclib.data import DataError, describe, fetch
from nclib.engine import cluster
from nclib.engine.denser import take
from nclib.engine.kinds import read_config
from nclib.engine.store import CorruptRun, DamageWarning, RunStore, default_store
from nclib.system import own_code, provenance

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
    """What a configuration is given to make its run with.

    Parameters
    ----------
    store : the run store, to read from; what the configuration returns is stored by `make`
    base : id there of the run that this one ``needs``; None where it needs none
    device : where to compute
    progress : to be called with the units of work done and all of them
    log : to be called with an epoch and its metrics
    checkpoint : keeps the state of an interrupted run, with load() and save(state)
    cost : time and memory so far
    """

    store: RunStore
    base: str | None
    device: torch.device
    progress: Callable[[float, float], None]
    log: Log
    checkpoint: Any
    cost: provenance.Cost

    def train(self, config: RunConfig) -> Result:
        """Train one classifier; a checkpoint is written after each epoch."""
        here = provenance.capture(self.device)
        run = training.train(
            config,
            device=self.device,
            checkpoint=self.checkpoint,
            progress=self.progress,
            log=self.log,
            session=lambda: here | {"cost": self.cost.as_dict()},
        )
        tables = {"history": run.history, "classes": run.classes, "cost": run.cost}
        return Result(tables, run.arrays, run.weights, run.facts)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread a run, or as many as NCLIB_THREADS says, whatever the session around it uses: the number of threads
    changes the last bits of a result, and more runs at once use a machine better than more threads."""
    wanted = os.environ.get("NCLIB_THREADS", "1")
    if not re.fullmatch("[1-9][0-9]{0,3}", wanted):
        raise ConfigError(f"NCLIB_THREADS={wanted!r:.100} must be a whole number from 1 to 9999")
    before = torch.get_num_threads()
    torch.set_num_threads(int(wanted))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make(
    config: StoredConfig,
    store: RunStore,
    device: torch.device,
    progress: Callable[[float, float], None],
    log: Log | None = None,
) -> None:
    """Make one run and store it; the run that it needs is made first if it is not there."""
    run, needed, base = run_id(config), config.needs(), None
    device = torch.device("cpu") if config.on_cpu else device
    if needed is not None:
        waiting = config.work()
        base = train_run(
            needed.model_dump_json(), str(store.root), str(device), lambda done, total: progress(0, waiting)
        )

    def note(done: float, total: float) -> None:
        store.note_progress(run, done, total)
        progress(done, total)

    own = config.model.own_code if isinstance(config, RunConfig) else None
    code = own_code.files(own) if own else {}  # as they are now: what is trained is checked against their digest
    train = getattr(config, "train", None)
    classifier = isinstance(train, TrainConfig)
    with one_thread(), provenance.Cost(device) as cost, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = config.execute(Job(store, base, device, note, log or _no_log, store.checkpoint(run), cost))
        with training.arithmetic(train, device) if classifier else contextlib.nullcontext():
            record = provenance.capture(device, [config.seed], cost)
    said = sorted({str(warning.message) for warning in caught})
    facts = {**result.facts, **({"base": base} if base else {})}
    store.save(config, result.tables, result.arrays, result.weights, record | {"facts": facts, "warnings": said}, code)
    for warning in caught:
        if issubclass(warning.category, DamageWarning):  # the others are only kept with the run
            warnings.warn(warning.message, stacklevel=2)


def _no_log(epoch: int, metrics: Mapping[str, float]) -> None:
    pass


def train_run(
    config_json: str,
    root: str,
    device: str | None = None,
    progress: Callable[[float, float], None] | None = None,
    log: Log | None = None,
) -> str:
    """Make sure that one run is stored, training or continuing it if it is not; returns its id.

    Safe to call from any number of processes at once: they take turns, and all but the first find the run done. One
    that is stored is left as it is, also in a store that may only be read.
    """
    config = read_config(config_json)
    store, run = RunStore(root), run_id(config)
    if store.is_sound(run):
        return run
    store.clear_cut_off([run])
    with store.lock(run) as lock:
        if store.is_sound(run):
            store.clear_partial(run)
        elif not take(config, store, lock):
            make(config, store, training.usable_device(device), progress or (lambda done, total: None), log)
    return run


# --- for a client ---------------------------------------------------------------------------------------------------

_ONE_AT_A_TIME = threading.Lock()


def worker_entry(config_json: str, root: str, token: str, version: str, device: str | None = None) -> dict[str, bytes]:
    """What a worker does: make sure that one run is stored where the client finds it.

    Parameters
    ----------
    config_json : the run
    root, token : the client's run store, and the name of a file in it. Where this process sees that file, it works in
        the client's store; elsewhere in that of its own machine
    version : the client's `provenance.code()`; another one here would train other runs, and is refused

    Returns
    -------
    nothing where the client sees the run, else the run's files and their contents
    """
    if version != provenance.code():
        raise cluster.ClusterError(
            f"{cluster.here()} has nclib {provenance.code()}, the client {version}: install the same version there"
        )
    config = read_config(config_json)
    run = run_id(config)
    store, shared = _store_for(root, token)

    def note(done: float, total: float) -> None:
        cluster.tell(token, run=run, done=done, total=total, shared=shared)

    def log(epoch: int, metrics: Mapping[str, float]) -> None:
        cluster.tell(token, run=run, epoch=epoch, metrics=dict(metrics))

    with _ONE_AT_A_TIME:  # in a worker with several threads; those that wait are not watched
        note(0, 0)
        for dataset in datasets(config):
            ensure_dataset(dataset)
        try:
            check_own_code([config])
        except ValueError as error:
            raise ConfigError(
                f"on {cluster.here()}: {error}. Workers import cells and networks of your own: start them where the "
                "module is on the Python path (PYTHONPATH)"
            ) from None
        train_run(config_json, str(store.root), device, note, log)
    return {} if shared else store.pack(run)


def _store_for(root: str, token: str) -> tuple[RunStore, bool]:
    """The client's run store where this process sees it, at its place or as this machine's own; else the latter."""
    if (Path(root) / token).exists():
        return RunStore(root), True
    own = default_store()
    return own, (own.root / token).exists()


def datasets(config: StoredConfig) -> list[str]:
    return [config.data.dataset] if hasattr(config, "data") else []


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
    options = config.canonical()
    start = run_id(config).removesuffix(digest(options))
    for folder in sorted(store.root.glob(f"{start}*/DONE"), key=lambda done: done.stat().st_mtime, reverse=True):
        with contextlib.suppress(CorruptRun):
            other = store.open(folder.parent.name)
            if other.config | {"model": other.config["model"] | {"source": config.model.source}} == options:
                kept = {path.name: path.read_bytes() for path in folder.parent.glob("code.*")}
                now = {f"code.{name}": content for name, content in own_code.files(config.model.own_code).items()}
                names = [name for name in {**kept, **now} if kept.get(name) != now.get(name)] if kept else []
                which = ", ".join(sorted(name.removeprefix("code.") for name in names)) or config.model.own_code
                return f"{which} has changed since {other.run_id} was trained"
    return ""


def ensure_dataset(dataset: str) -> None:
    """Have a data set here; raises `DataError` that names the worker and what to do there."""
    try:
        fetch(dataset)
    except DataError as error:
        raise DataError(
            f"data set {dataset} is not on {cluster.here()}: {error}. Start workers with NCLIB_DATA on a folder that "
            "has it, such as one shared with the client"
        ) from None
