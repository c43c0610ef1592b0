"""A grid of runs: made here one after the other, or handed to an executor and watched until each is stored or named."""

from __future__ import annotations

import concurrent.futures
import functools
import math
import os
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nclib.config import RunConfig, StoredConfig
from nclib.engine import cluster
from nclib.engine.costs import Forecast, estimate_gpu_gib
from nclib.engine.jobs import train_run, worker_entry
from nclib.engine.store import CorruptRun, RunStore, wall_seconds
from nclib.system import provenance
from nclib.system.terminal import duration

Progress = Callable[[float, float, str], None]
Log = Callable[[str, int, Mapping[str, float]], None]

ATTEMPTS = 3
"""How often a run is handed to a cluster that loses it, or hangs in it, before it is named as failed. Deaths of workers
are counted by the cluster itself."""
STALL_SECONDS = 600.0
"""A run on a cluster that has told nothing for so long, or for twenty times what an epoch should take, is stuck."""
_POLL_SECONDS = 0.5
_VISIBLE_SECONDS = 90.0
"""How long a shared folder may take to show a run that another machine has finished."""


def _seconds_of(run: str, store: RunStore) -> float | None:
    """What a run that has just finished took, by its own record."""
    try:
        return wall_seconds(store.load(run).provenance)
    except CorruptRun:
        return None


def _text(absent: Mapping[str, StoredConfig], done: int, remaining: float, until: float, more: str = "") -> str:
    stop = f", stopping in {duration(max(0.0, until - time.monotonic()))}" if until < math.inf else ""
    return f"{done} of {len(absent)} runs, {duration(remaining)} left{stop}{more}"


class _TimeIsUp(Exception):
    """Raised in the middle of a training, just after a checkpoint."""


def run_serially(
    absent: dict[str, StoredConfig],
    store: RunStore,
    forecast: Forecast,
    tell: Progress,
    device: str | None,
    until: float,
    stored: Callable[[str], None],
    log: Log,
) -> dict[str, str]:
    """Train these runs in this process, one after the other, until that time; returns what failed, with the reason."""
    total, failures = sum(config.work() for config in absent.values()), {}
    done, finished = 0.0, {}
    for run in forecast.order():

        def note(epoch: float, of: float, run: str = run, base: float = done) -> None:
            remaining = forecast.remaining(finished | {run: epoch / of if of else 1.0}, 1)
            tell(base + epoch, total, _text(absent, len(finished), remaining, until))
            if epoch < of and time.monotonic() > until:
                raise _TimeIsUp

        try:
            train_run(absent[run].model_dump_json(), str(store.root), device, note, functools.partial(log, run))
            forecast.done(run, _seconds_of(run, store))
        except _TimeIsUp:
            break
        except Exception as error:  # as on an executor: one failing run does not stop the others
            failures[run] = f"{type(error).__name__}: {error}"
        else:
            stored(run)
        finished[run] = 1.0
        done += absent[run].work()
        if time.monotonic() > until:
            break
    return failures


class Heartbeat(NamedTuple):
    """What a worker last told of a run: units done of all, when, and how many seconds the last unit took, 0 where that
    is not known."""

    done: float
    share: float
    at: float
    pace: float


class Grid:
    """Runs on an executor, until each is stored or named, or the time is over."""

    def __init__(
        self,
        absent: dict[str, StoredConfig],
        store: RunStore,
        forecast: Forecast,
        tell: Progress,
        device: str | None,
        executor: concurrent.futures.Executor,
        until: float = math.inf,
        stored: Callable[[str], None] = lambda run: None,
        log: Log = lambda run, epoch, metrics: None,
    ) -> None:
        self.absent, self.store, self.forecast, self.tell, self.device = absent, store, forecast, tell, device
        self.executor, self.until, self.stored, self.log = executor, until, stored, log
        self.told: deque[tuple[str, int, Mapping[str, float]]] = deque()
        self.cluster = executor if isinstance(executor, cluster.ClusterExecutor) else None
        self.token = f".client-{secrets.token_hex(8)}"
        self.watch = cluster.Watch()
        self.heartbeats: dict[str, Heartbeat] = {}
        self.futures: dict[concurrent.futures.Future, str] = {}
        self.attempts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}

    def train(self) -> dict[str, str]:
        """Hand everything out and wait for it; returns what failed, with the reason."""
        if self.cluster:
            self.cluster.listen(self.token, self.on_heartbeat)
        with self.store.marked(self.token):
            for run in self.forecast.order():
                self._submit(run)
            pause = _POLL_SECONDS
            while self.futures:
                finished, _ = concurrent.futures.wait(self.futures, pause, concurrent.futures.FIRST_COMPLETED)
                for future in finished:
                    self._collect(self.futures.pop(future), future)
                clock = time.monotonic()
                if clock > self.until:
                    self._stop()
                self._restart_stuck(2 * pause)
                self._report()
                pause = max(_POLL_SECONDS, 20 * (time.monotonic() - clock))  # looking around costs 5 % at most
            self._await_shared()
            self._report()
        return self.failures

    def _stop(self) -> None:
        """Take back what has not begun. Workers of a cluster are started again, without the run they have in hand."""
        for future in list(self.futures):
            if future.cancel() or self.cluster:
                worker = self.watch.forget(self.futures.pop(future))
                if worker is not None:
                    self.cluster.restart(worker)

    def _submit(self, run: str) -> None:
        config = self.absent[run]
        try:
            options = self.cluster.room(estimate_gpu_gib(config)) if self.cluster else {}
            arguments = config.model_dump_json(), str(self.store.root), self.token, provenance.code(), self.device
            future = self.executor.submit(worker_entry, *arguments, **options)
        except cluster.ClusterLost as lost:
            stored = sum(self.store.has(run) for run in self.absent)
            raise cluster.ClusterLost(
                f"{lost} and type the same again: {stored} of {len(self.absent)} runs are stored by now"
            ) from None
        except (cluster.ClusterError, concurrent.futures.BrokenExecutor) as error:
            self.failures[run] = cluster.explain(error)
            return
        self.futures[future] = run

    def _collect(self, run: str, future: concurrent.futures.Future) -> None:
        """Take in what became of a run: its files, where it was made out of sight; its error; or nothing."""
        self.watch.forget(run)
        if run in self.failures:
            return
        if future.cancelled():
            self._resubmit(run, f"the cluster lost it {ATTEMPTS} times")
            return
        error = future.exception()
        try:
            if error is None and future.result():
                self.store.install(run, future.result())
        except (OSError, CorruptRun) as damage:
            error = damage
        if error is not None:
            self.failures[run] = cluster.explain(error)
            return
        self.forecast.done(run, _seconds_of(run, self.store))
        self.stored(run)

    def _resubmit(self, run: str, reason: str) -> None:
        self.attempts[run] += 1
        if self.store.has(run):
            return  # the worker finished it all the same
        if self.attempts[run] < ATTEMPTS:
            self._submit(run)
        else:
            self.failures[run] = reason

    def on_heartbeat(self, message: dict[str, Any]) -> None:
        """In the cluster's thread: a worker tells how far it is."""
        run = message["run"]
        if run not in self.absent:
            return
        self.watch.heard(run, message["worker"])
        if "metrics" in message:
            self.told.append((run, message["epoch"], message["metrics"]))
            return
        now, done, total = time.monotonic(), message["done"], message["total"]
        last = self.heartbeats.get(run, Heartbeat(done, 0.0, now, 0.0))
        pace = (now - last.at) / (done - last.done) if done > last.done > 0 else 0.0
        self.heartbeats[run] = Heartbeat(done, done / total if total else last.share, now, pace)
        if total and not message["shared"]:
            self.store.note_progress(run, done, total)

    def _restart_stuck(self, gap: float) -> None:
        """End the processes of runs that have stopped telling. The cluster begins a restarted worker's run again, from
        its checkpoint; one that sticks time after time is named."""
        if not self.cluster:
            return
        for run, worker in self.watch.silent(self._patience, gap).items():
            share, last = self.store.progress(run), self.heartbeats.get(run, Heartbeat(0, 0.0, 0.0, 0.0))
            if share > last.share:  # its worker waits for another process that is training it
                self.heartbeats[run] = last._replace(share=share)
                self.watch.heard(run, worker)
                continue
            if worker not in self.cluster.workers():
                continue  # died meanwhile; the run waits for another
            self.attempts[run] += 1
            if self.attempts[run] >= ATTEMPTS:
                silence = duration(self._patience(run))
                self._give_up(run, f"stuck {ATTEMPTS} times, no progress for {silence}, at last on {worker}")
            if not self.cluster.restart(worker):
                self._give_up(run, f"stuck on {worker}, which has no nanny that could restart it")

    def _give_up(self, run: str, reason: str) -> None:
        self.failures[run] = reason
        for future in [future for future, other in self.futures.items() if other == run]:
            future.cancel()
            del self.futures[future]

    def _patience(self, run: str) -> float:
        """Seconds of silence that are no cause for worry: an epoch of a training tells, other runs only at their end,
        and what builds on another run may first have to make that. Where epochs have been told, as they were."""
        if run in self.heartbeats and self.heartbeats[run].pace:
            return max(STALL_SECONDS, 20 * self.heartbeats[run].pace)
        config = self.absent[run]
        epochs = config.work() if isinstance(config, RunConfig) else 1.0
        needed = config.needs()
        seconds = self.forecast.seconds(run) + (self.forecast.model.seconds(needed) if needed is not None else 0.0)
        return max(STALL_SECONDS, 20 * seconds / epochs)

    def _report(self) -> None:
        while self.told:
            self.log(*self.told.popleft())
        pending = set(self.futures.values())
        progress = {run: self.store.progress(run) if run in pending else 1.0 for run in self.absent}
        done = sum(self.absent[run].work() * share for run, share in progress.items())
        workers = len(self.cluster.workers()) if self.cluster else os.cpu_count() or 1
        more = "" if workers or not pending else ", waiting for a worker"
        remaining = self.forecast.remaining(progress, workers)
        text = _text(self.absent, len(self.absent) - len(pending), remaining, self.until, more)
        self.tell(done, sum(config.work() for config in self.absent.values()), text)

    def _await_shared(self) -> None:
        """Other machines' files may appear late in a shared folder."""
        limit = time.monotonic() + _VISIBLE_SECONDS
        for run in self.absent if time.monotonic() < self.until else ():
            while run not in self.failures and not self.store.has(run):
                if time.monotonic() > limit:
                    self.failures[run] = "finished on a worker, but not to be seen in the run store here"
                time.sleep(0.1)
