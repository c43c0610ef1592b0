"""Where runs are trained: in this process, in processes of this machine, or on a cluster that is running already."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from nclib.system import processes, terminal

_WORTH_PROCESSES = 20.0  # seconds of work; to start processes, each with its own torch, costs about five


class ClusterError(RuntimeError):
    """The cluster that was asked for cannot be had; the message says what to do."""

    exit_code = 2


class Processes(concurrent.futures.Executor):
    """Worker processes of this machine, which end with this one, however it ends. No port is opened.

    A pool of Python's is broken once one of its processes has died. After `end` the next call starts another.

    Parameters
    ----------
    workers : processes at once
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> concurrent.futures.Future:
        """As of every executor; where the pool is broken, the future says so."""
        with _as_workers():
            self._pool = self._pool or concurrent.futures.ProcessPoolExecutor(
                self.workers, multiprocessing.get_context("spawn"), processes.follow_parent
            )
            try:
                return self._pool.submit(fn, *args, **options)
            except BrokenProcessPool as broken:
                future: concurrent.futures.Future = concurrent.futures.Future()
                future.set_exception(broken)
                return future

    def end(self) -> None:
        """End the processes now: nobody wants anything of them that is not stored."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list((pool._processes or {}).values()):  # from Python 3.14 on: kill_workers
                process.kill()
            pool.shutdown(cancel_futures=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.end()


@contextlib.contextmanager
def _as_workers() -> Iterator[None]:
    """Processes that are started within the block have the environment of workers, and do not see Ctrl-C, which a
    terminal sends to all: this process ends them. Signals that come meanwhile wait: half-born processes complain."""
    environment = worker_environment()
    with (
        processes.deferred([signal.SIGINT, *terminal.ENDINGS]),
        processes.blocked(signal.SIGINT),
        processes.environment_restored(environment),
    ):
        os.environ |= environment
        yield


def worker_environment() -> dict[str, str]:
    """What is read when a process loads the C library and torch: one thread, deterministic cuBLAS, and memory that
    glibc keeps instead of fetching it anew in each step, page by page."""
    threads = {"OMP_NUM_THREADS": os.environ.get("NCLIB_THREADS", "1"), "OMP_WAIT_POLICY": "PASSIVE"}
    memory = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
    return threads | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | memory


def default_workers() -> int:
    """Runs trained at once: one on each GPU, else one on each usable core."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return torch.cuda.device_count() or cores


@contextlib.contextmanager
def place(
    workers: int | None, scheduler: str | None, runs: int, seconds: float, echo: Callable[[str], None]
) -> Iterator[concurrent.futures.Executor | None]:
    """Where to train so many runs that take so many seconds of one core; None is this process.

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
        with Processes(count) as executor:
            echo(f"training in {count} processes of this machine")
            yield executor


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
        address = json.loads(Path(scheduler).read_text())["address"] if scheduler.endswith(".json") else scheduler
        return Client(address, timeout=30, set_as_default=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ClusterError(f"no scheduler answers at {scheduler} ({type(error).__name__}: {error})") from None
