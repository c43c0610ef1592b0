"""Runs trained and stored: one in this process; many here, in processes of this machine, or on a running cluster."""

import concurrent.futures
import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nclib import models, training
from nclib.config import ConfigError, RunConfig, StoredConfig, TrainConfig, run_id, source_file
from nclib.data import make_split
from nclib.deq import ForwardNotConverged
from nclib.engine.store import DamageWarning, RunStore
from nclib.system import processes, provenance
from nclib.system.warning import warn
from nclib.training import Result as Result

Note = Callable[[float, float], None]
Log = Callable[[int, Mapping[str, float]], None]


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
    base = None if needed is None else train_run(needed, store, str(device), lambda *_: progress(0, 1))
    own = config.model.own_cell if isinstance(config, RunConfig) else None
    code = {f"{own.partition(':')[0]}.py": source_file(own).read_bytes()} if own else {}  # as it is now

    with one_thread(), provenance.Cost() as cost, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint = store.checkpoint(run_id(config))
        if isinstance(config, RunConfig):
            here, options = provenance.capture(on), {"checkpoint": checkpoint, "progress": progress, "log": log}
            result = training.train(config, device=on, session=lambda: here | {"cost": cost.as_dict()}, **options)
        else:
            result = config.execute(Job(store, base, on, progress, checkpoint))
        train = getattr(config, "train", None)
        with training.arithmetic(train, on) if isinstance(train, TrainConfig) else contextlib.nullcontext():
            record = provenance.capture(on, [config.seed], cost)
    record["facts"] = {**result.facts, **({"base": base} if base else {})}
    record["warnings"] = sorted({str(warning.message) for warning in caught})
    store.save(config, result, record, code)
    end = f"epoch {train.epochs}:" if isinstance(train, TrainConfig) else "no epoch"
    told = DamageWarning, ForwardNotConverged  # by a layer in a network of the user's
    for warning in caught:  # kept with the run, where nobody looks for lost work, or for a last epoch that went wrong
        if issubclass(warning.category, told) or str(warning.message).startswith(end):
            warn(warning.message)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread a run, or as many as NCLIB_THREADS sets, whatever the session around it uses: the number of threads
    changes the last bits of a result, and more runs at once use a machine better than more threads."""
    with training.ONE_AT_A_TIME, contextlib.ExitStack() as after:  # of other threads of a worker, too
        after.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads())
        yield


def threads() -> int:
    text = os.environ.get("NCLIB_THREADS") or "1"
    if not text.isdecimal() or text == "0":
        raise ConfigError(f"NCLIB_THREADS={text!r} is not a number of threads; write NCLIB_THREADS=1")
    return int(text)


def attempt(
    config: StoredConfig, root: str, device: str | None = None, progress: Note | None = None, log: Log | None = None
) -> str:
    """Make sure that a run is stored; returns why it could not be, "" where it is there.

    Parameters
    ----------
    root : of the run store, which workers share with the client. The others are those of `train_run`
    """
    try:
        if not Path(root).is_dir():
            raise RuntimeError("a worker does not see the run store: put NCLIB_RESULTS on a disk that workers share")
        train_run(config, RunStore(root), device, progress, log)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- before anything is trained -------------------------------------------------------------------------------------


def check_runs(configs: Iterable[StoredConfig]) -> None:
    """Refuse runs that would fail at their first step, with more images than there are, a network too narrow or a cell
    of the user's own that does not fit.

    Raises
    ------
    ConfigError
        Saying which, and why.
    """
    kinds = {(each.data, each.model): each for each in configs if isinstance(each, RunConfig)}.values()
    data = None
    for config in sorted(kinds, key=lambda each: repr(each.data)):
        try:
            if config.data != data:
                data, split = config.data, make_split(config.data, config.seed)
            models.build_model(config.model, len(split.counts), split.train_images.shape[1])
        except ValueError as error:
            raise ConfigError(str(error)) from None


# --- many runs ------------------------------------------------------------------------------------------------------

Progress = Callable[[float, float, str], None]
RunLog = Callable[[str, int, Mapping[str, float]], None]

ATTEMPTS = 3
"""How often a run may lose the processes of this machine before it is given up."""


@contextlib.contextmanager
def pool(workers: int) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Worker processes of this machine, which end with this one, however it ends, and with the block: nobody wants
    anything of them that is not stored. No port is opened."""
    environment, context = worker_environment(), multiprocessing.get_context("spawn")
    with processes.environment_restored(environment):
        os.environ |= environment
        started = context.Event()
        made = concurrent.futures.ProcessPoolExecutor(workers, context, processes.be_worker, (started,))
        try:
            yield made
        finally:
            for process in list((made._processes or {}).values()):  # from Python 3.14 on: kill_workers
                process.kill()
            made.shutdown(cancel_futures=True)
        if made._broken and not started.is_set():
            said = 'no process could start, each of which runs the script first: write if __name__ == "__main__": above'
            raise ConfigError(f"{said} what trains, and indent that")


def worker_environment() -> dict[str, str]:
    """What is read when a process loads the C library and torch: one thread, deterministic cuBLAS, and memory that
    glibc keeps instead of fetching it anew in each step, page by page."""
    own = {"OMP_NUM_THREADS": str(threads()), "OMP_WAIT_POLICY": "PASSIVE"}
    memory = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
    return own | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | memory


def place(workers: int | None, scheduler: str | None, runs: int) -> concurrent.futures.Executor | int:
    """Where to train: a number of processes of this machine (left out: one a GPU, else one a core), or the
    Dask cluster whose address or scheduler file is given; for TLS it takes the keys that Dask's own settings name."""
    if scheduler:
        from distributed import Client

        where = {"scheduler_file" if scheduler.endswith(".json") else "address": scheduler}
        # Without retries, since what failed would fail again.
        return Client(**where, timeout=30, set_as_default=False).get_executor(pure=False, retries=0)
    return min(workers or torch.cuda.device_count() or provenance.usable_cores(), runs)


@dataclass
class Grid:
    """Runs that are to be trained, until each is stored or its failure named.

    Parameters
    ----------
    configs : by id, in the order in which they are trained
    store : where they are kept
    progress : called with the number of runs done, that of all, and a text; here also with parts of runs
    stored : called with the id of each run once it is stored
    log : called with run, epoch and metrics; None: nobody wants them
    device : as of `train_run`
    """

    configs: Mapping[str, StoredConfig]
    store: RunStore
    progress: Progress
    stored: Callable[[str], None]
    log: RunLog | None = None
    device: str | None = None
    failures: dict[str, str] = field(default_factory=dict, init=False)
    ended: int = field(default=0, init=False)

    def train(self, executor: concurrent.futures.Executor | int | None) -> None:
        """By an executor, by processes of this machine, or here."""
        if executor is None or executor == 1:
            for run, config in self.configs.items():
                log = functools.partial(self.log, run) if self.log else None
                note = lambda done, total: self._report(done / total)  # noqa: E731
                self._end(run, attempt(config, str(self.store.root), self.device, note, log))
        elif isinstance(executor, int):
            self._train_in_processes(executor)
        else:
            for run in self._train_on(executor, deque(self.configs), itertools.repeat(self.device)):
                self._end(run, "the executor lost its process")

    def _train_in_processes(self, workers: int) -> None:
        """A dead process breaks the pool. What was under way goes on from its checkpoints in a new one, after all that
        waits, and alone: of two runs that were lost together one may be innocent. Runs take the GPUs of this machine in
        turn."""
        gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        devices = itertools.cycle([self.device] if self.device or not gpus else gpus)
        waiting, suspects, losses = deque(self.configs), deque[str](), Counter[str]()
        while waiting or suspects:
            now, at_once = (waiting, workers) if waiting else (deque([suspects.popleft()]), 1)
            with pool(at_once) as executor:
                lost = self._train_on(executor, now, devices, at_once)
            losses.update(lost)
            suspects.extend(run for run in lost if losses[run] < ATTEMPTS)
            for run in [run for run in lost if losses[run] == ATTEMPTS]:
                self._end(run, f"its process died {ATTEMPTS} times, often for want of memory; go on with fewer workers")

    def _train_on(
        self,
        executor: concurrent.futures.Executor,
        waiting: deque[str],
        devices: Iterator[str | None],
        at_once: float = math.inf,
    ) -> list[str]:
        """The runs that wait, until none is left or a process has died; returns those lost by that."""
        running: dict[concurrent.futures.Future, str] = {}
        lost: list[str] = []
        while (waiting and not lost) or running:
            while waiting and not lost and len(running) < at_once:
                run = waiting.popleft()
                try:
                    running[executor.submit(attempt, self.configs[run], str(self.store.root), next(devices))] = run
                except concurrent.futures.BrokenExecutor:
                    lost.append(run)
            for future in concurrent.futures.wait(running, 0.5, concurrent.futures.FIRST_COMPLETED).done:
                run, error = running.pop(future), future.exception()
                if isinstance(error, concurrent.futures.BrokenExecutor):
                    lost.append(run)
                else:
                    self._end(run, f"{type(error).__name__}: {error}" if error else future.result())
            self._report()
        return lost

    def _end(self, run: str, failure: str) -> None:
        self.ended += 1
        if not failure and not self.store.has(run):
            failure = "a worker has finished it, and it is not to be seen in the run store here"
        if failure:
            self.failures[run] = failure
        else:
            self.stored(run)

    def _report(self, part: float = 0.0) -> None:
        self.progress(self.ended + part, len(self.configs), f"{int(self.ended + part)} of {len(self.configs)} runs")
