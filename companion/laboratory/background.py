"""A training that can be watched, stopped and continued while the session that asked for it goes on.

A run sets PyTorch's random state, determinism and threads, so it never shares a process with a session. What it has
done so far is read from its checkpoint, which is replaced whole after each epoch; ending its process at any moment
leaves the run store sound, and starting it again goes on from that checkpoint to the same bits.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import NamedTuple

import pandas as pd

from nclib import data
from nclib.config import RunConfig, run_id
from nclib.engine import jobs, options
from nclib.engine.executors import worker_environment
from nclib.engine.reference import load_run, reference_store
from nclib.engine.store import RunStore, default_store
from nclib.system import processes

_PATIENCE = 5.0  # seconds that a process which is told to end gets


class Sofar(NamedTuple):
    """What is known of a run: epochs done, its history (epoch, split, metric, value) up to there, and where it is from:
    "stored", "reference", or "unfinished", a checkpoint."""

    epoch: int
    history: pd.DataFrame
    source: str


def history_so_far(run: str) -> Sofar | None:
    """What there is of a run, finished or not; None where there is nothing.

    A checkpoint comes before a reference result: whoever trains a run wants to see its own curves.
    """
    store = default_store()
    if store.has(run):
        return _finished(run, "stored")
    try:
        state = store.checkpoint(run).load()
    except FileNotFoundError:  # removed between two looks: the run has just been stored
        return _finished(run, "stored") if store.has(run) else None
    if state is not None:
        return Sofar(state["epoch"], pd.DataFrame(state["history"], columns=_COLUMNS), "unfinished")
    return _finished(run, "reference") if reference_store().has(run) else None


_COLUMNS = ["epoch", "split", "metric", "value"]


def _finished(run: str, source: str) -> Sofar:
    history = load_run(run).history[_COLUMNS]
    return Sofar(int(history["epoch"].max()), history, source)


class _Worker:
    """A process that trains one run and tells only what went wrong. It is started before it is known what for, because
    importing PyTorch takes seconds."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_work, args=(theirs,), daemon=True)
        environment = worker_environment()
        with processes.environment_restored(environment):
            os.environ |= environment
            self.process.start()
        theirs.close()


_spare: list[_Worker] = []


def prepare() -> None:
    """Have a process ready for the next `LiveTraining.start`, if there is none."""
    _spare[:] = [worker for worker in _spare if worker.process.is_alive()]
    if not _spare:
        _spare.append(_Worker())


class LiveTraining:
    """One run in a process of its own, which ends with the session.

    Interrupting a Jupyter kernel reaches its processes too and ends the training as `stop` does.

    Parameters
    ----------
    config : the run; the same one may be started again after `stop`, and goes on from its checkpoint
    """

    def __init__(self, config: RunConfig) -> None:
        self.config, self.run = config, run_id(config)
        self._store: RunStore = default_store()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._said: str | None = None
        self.stopped = False

    def start(self) -> None:
        """Train, or continue."""
        prepare()
        worker = _spare.pop()
        self.stopped, self._said = False, None
        self._process, self._connection = worker.process, worker.connection
        self._connection.send((self.config, self._store))

    def running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def stop(self) -> None:
        """End the process now; what was done since its last checkpoint is lost and done again by `start`."""
        self.stopped = True
        if self._process is not None:
            self._process.terminate()
            self._process.join(_PATIENCE)
            self._process.kill()  # no harm where it has ended
            self._process.join()

    def wait(self, seconds: float) -> None:
        """Until the process has ended, or that many seconds have passed."""
        if self._process is not None:
            self._process.join(seconds)

    def epoch(self) -> int:
        """Epochs that are done and kept."""
        return round(self._store.progress(self.run) * self.config.train.epochs)

    def changed(self) -> tuple[bool, int]:
        """A value that is another one after each epoch; cheap, for whoever looks often."""
        try:
            written = self._store.checkpoint(self.run).path.stat().st_mtime_ns
        except FileNotFoundError:
            written = 0
        return self._store.has(self.run), written

    def failure(self) -> str | None:
        """Why it ended without a stored run; None while it runs, and where it was stopped or is stored."""
        if self.running() or self.stopped or self._store.has(self.run) or self._process is None:
            return None
        with contextlib.suppress(EOFError, ConnectionError):  # it ended without a word, or has said it before
            if self._connection.poll():
                self._said = self._connection.recv()
        code = self._process.exitcode
        self.stopped = self._said is None and code == -signal.SIGINT
        if self.stopped:
            return None
        return self._said or f"its process ended with exit code {code}; press Continue to go on from the last epoch"


def _work(connection: Connection) -> None:
    """What the process does: wait for a run, train it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupted kernel ends it at once and without a traceback
    processes.follow_parent()
    importlib.import_module("torch._dynamo")  # the first optimiser would, two seconds after the button was pressed
    config, store = connection.recv()
    try:
        data.fetch(config.data.dataset)
        options.check_runs([config])
        jobs.train_run(config, store)
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
