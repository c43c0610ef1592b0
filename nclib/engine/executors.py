"""Where runs are trained: in this process, in processes of this machine, or on a cluster that is running already."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import math
import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nclib.config import StoredConfig
from nclib.engine.costs import seconds
from nclib.engine.jobs import attempt, explain, train_run
from nclib.engine.store import RunStore
from nclib.system import processes, provenance
from nclib.system.terminal import duration

Progress = Callable[[float, float, str], None]
Log = Callable[[str, int, Mapping[str, float]], None]

ATTEMPTS = 3
"""How often a run may lose the processes of this machine before it is given up."""
_WORTH_PROCESSES = 20.0  # seconds of work; to start processes, each with its own torch, costs about five
_POLL_SECONDS = 0.5


class ClusterError(RuntimeError):
    """The cluster that was asked for cannot be had; the message says what to do."""

    exit_code = 2


class Processes(concurrent.futures.ProcessPoolExecutor):
    """Worker processes of this machine, which end with this one, however it ends. No port is opened.

    Parameters
    ----------
    workers : processes at once
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers, multiprocessing.get_context("spawn"), processes.follow_parent)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> concurrent.futures.Future:
        """As of every executor. Processes that it starts have the environment of workers, and do not see Ctrl-C, which
        a terminal sends to all: this process ends them."""
        environment = worker_environment()
        with processes.blocked(signal.SIGINT), processes.environment_restored(environment):
            os.environ |= environment
            return super().submit(fn, *args, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the processes now: nobody wants anything of them that is not stored."""
        for process in list((self._processes or {}).values()):  # from Python 3.14 on: kill_workers
            process.kill()
        super().shutdown(wait, cancel_futures=cancel_futures)


def worker_environment() -> dict[str, str]:
    """What is read when a process loads the C library and torch: one thread, deterministic cuBLAS, and memory that
    glibc keeps instead of fetching it anew in each step, page by page."""
    threads = {"OMP_NUM_THREADS": os.environ.get("NCLIB_THREADS", "1"), "OMP_WAIT_POLICY": "PASSIVE"}
    memory = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
    return threads | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | memory


def default_workers() -> int:
    """Runs trained at once: one on each GPU, else one on each usable core."""
    return torch.cuda.device_count() or provenance.usable_cores()


@contextlib.contextmanager
def place(
    workers: int | None, scheduler: str | None, runs: int, seconds: float, echo: Callable[[str], None]
) -> Iterator[concurrent.futures.Executor | int | None]:
    """Where to train so many runs that take so many seconds of one core: an executor, a number of processes of this
    machine, or None for this process.

    Parameters
    ----------
    workers : processes of this machine; left out: `default_workers`, and this process for a few seconds of work
    scheduler : address or scheduler file of a Dask cluster to train on instead

    Raises
    ------
    ClusterError
        When the cluster cannot be had.
    """
    count = min(workers or default_workers(), runs)
    if scheduler:
        with connect(scheduler) as client:
            echo(f"training on the Dask cluster at {scheduler}, {len(client.nthreads())} workers now")
            yield client.get_executor(pure=False, retries=0)  # what failed would fail again
    elif count <= 1 or (workers is None and seconds < _WORTH_PROCESSES):
        yield None
    else:
        echo(f"training in {count} processes of this machine")
        yield count


def connect(scheduler: str) -> Any:
    """A client of a Dask cluster that is running; for TLS it takes the keys that Dask's own settings name.

    Raises
    ------
    ClusterError
        When Dask is not installed, or nothing answers there.
    """
    try:
        from distributed import Client
    except ImportError:
        raise ClusterError('a cluster needs Dask; in the clone, type: pip install ".[cluster]"') from None
    try:
        where = {"scheduler_file" if scheduler.endswith(".json") else "address": scheduler}
        return Client(**where, timeout=30, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no scheduler answers at {scheduler} ({type(error).__name__}: {error})") from None


class _TimeIsUp(Exception):
    """Raised in the middle of a training, just after a checkpoint."""


@dataclass
class Grid:
    """Runs that are to be trained, until each is stored or its failure named.

    Parameters
    ----------
    configs : by id, in the order in which they are trained
    store : where they are kept
    progress : called with units of work done, all of them, and a text
    stored : called with the id of each run once it is stored
    log : called with run, epoch and metrics; None: nobody wants them
    device : as of `train_run`
    until : when to stop, in monotonic seconds
    """

    configs: Mapping[str, StoredConfig]
    store: RunStore
    progress: Progress
    stored: Callable[[str], None]
    log: Log | None = None
    device: str | None = None
    until: float = math.inf
    failures: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seconds = {run: seconds(config) for run, config in self.configs.items()}
        self._work = {run: config.work() for run, config in self.configs.items()}
        self._shares = {run: self.store.progress(run) for run in self.configs}
        self._began, self._before = time.monotonic(), self._done(self._seconds)
        self._ended: set[str] = set()

    def train(self, executor: concurrent.futures.Executor | int | None) -> None:
        """By an executor, by so many processes of this machine, or here."""
        if executor is None:
            self._train_here()
        elif isinstance(executor, int):
            self._train_in_processes(executor)
        else:
            for run in self._train_on(executor, deque(self.configs)):
                self._end(run, "the executor lost its process")

    def _train_here(self) -> None:
        for run, config in self.configs.items():

            def note(done: float, total: float, run: str = run) -> None:
                self._report({run: done / total if total else 0.0})
                if done < total and time.monotonic() > self.until:
                    raise _TimeIsUp

            try:
                train_run(config, self.store, self.device, note, functools.partial(self.log, run) if self.log else None)
            except _TimeIsUp:
                return
            except Exception as error:  # one failing run does not stop the others
                self._end(run, explain(error))
            else:
                self._end(run)
            if time.monotonic() > self.until:
                return

    def _train_in_processes(self, workers: int) -> None:
        """A dead process breaks the pool. What was under way goes on from its checkpoints in a new one, after all that
        waits, so that a run which kills its process stops no other."""
        waiting, losses = deque(self.configs), Counter[str]()
        while waiting and time.monotonic() <= self.until:
            with Processes(workers) as pool:
                lost = self._train_on(pool, waiting, workers)
            losses.update(lost)
            for run in lost:
                if losses[run] < ATTEMPTS:
                    waiting.append(run)
                else:
                    died = f"its process died {ATTEMPTS} times, often for want of memory; go on with fewer workers"
                    self._end(run, died)

    def _train_on(
        self, executor: concurrent.futures.Executor, waiting: deque[str], at_once: float = math.inf
    ) -> list[str]:
        """The runs that wait, until none is left, the time is up or a process has died; returns those lost by that."""
        running: dict[concurrent.futures.Future, tuple[str, str | None]] = {}
        lost: list[str] = []
        while ((waiting and not lost) or running) and time.monotonic() <= self.until:
            while waiting and not lost and len(running) < at_once:
                run, device = waiting.popleft(), self._device(running) if at_once < math.inf else self.device
                arguments = self.configs[run], str(self.store.root), provenance.code(), device
                try:
                    running[executor.submit(attempt, *arguments)] = run, device
                except concurrent.futures.BrokenExecutor:
                    lost.append(run)
            for future in concurrent.futures.wait(running, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED).done:
                run, _ = running.pop(future)
                try:
                    failure = future.result()
                except concurrent.futures.BrokenExecutor:
                    lost.append(run)
                    continue
                except Exception as error:  # Dask's own
                    failure = explain(error)
                self._end(run, failure, elsewhere=True)
            self._report({run: self.store.progress(run) for run, _ in running.values()})
        for future in running:
            future.cancel()
        return lost

    def _device(self, running: Mapping) -> str | None:
        """The GPU of this machine with the fewest runs."""
        gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        taken = [device for _, device in running.values()]
        return self.device or (min(gpus, key=taken.count) if gpus else None)

    def _end(self, run: str, failure: str = "", elsewhere: bool = False) -> None:
        self._ended.add(run)
        self._shares[run] = 1.0
        if elsewhere and not failure and not self.store.has(run):
            failure = "a worker has finished it, and it is not to be seen in the run store here"
        if failure:
            self.failures[run] = failure
            return
        if elsewhere and self.log:
            for epoch, rows in self.store.open(run).history.groupby("epoch"):
                names = rows["split"] + "/" + rows["metric"]
                self.log(run, int(epoch), dict(zip(names, rows["value"].astype(float), strict=True)))
        self.stored(run)

    def _done(self, amounts: Mapping[str, float]) -> float:
        return sum(amounts[run] * share for run, share in self._shares.items())

    def _report(self, shares: Mapping[str, float]) -> None:
        self._shares |= shares
        done = self._done(self._seconds)
        text = f"{len(self._ended)} of {len(self.configs)} runs"
        if done > self._before:
            pace = (time.monotonic() - self._began) / (done - self._before)
            text += f", about {duration(pace * (sum(self._seconds.values()) - done))} left"
        self.progress(self._done(self._work), sum(self._work.values()), text)
