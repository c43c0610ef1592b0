"""Many runs: trained here one after the other, or handed to an executor, until each is stored or named."""

from __future__ import annotations

import concurrent.futures
import functools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from nclib.config import StoredConfig
from nclib.engine.costs import seconds
from nclib.engine.executors import Processes
from nclib.engine.jobs import attempt, explain, train_run
from nclib.engine.store import RunStore
from nclib.system import provenance
from nclib.system.terminal import duration

Progress = Callable[[float, float, str], None]
Log = Callable[[str, int, Mapping[str, float]], None]

ATTEMPTS = 3
"""How often a run may lose the processes of this machine before it is named; the last time it is trained alone."""
_POLL_SECONDS = 0.5
_VISIBLE_SECONDS = 30.0
"""How long a shared disk may take to show a run that another machine has finished."""


class _TimeIsUp(Exception):
    """Raised in the middle of a training, just after a checkpoint."""


@dataclass
class Grid:
    """Runs that are to be trained.

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

    def train_here(self) -> None:
        """One after the other, in this process."""
        for run, config in self.configs.items():

            def note(done: float, total: float, run: str = run) -> None:
                self._report({run: done / total if total else 0.0})
                if done < total and time.monotonic() > self.until:
                    raise _TimeIsUp

            log = functools.partial(self.log, run) if self.log else None
            try:
                train_run(config, self.store, self.device, note, log)
            except _TimeIsUp:
                return
            except Exception as error:  # one failing run does not stop the others
                self._end(run, explain(error))
            else:
                self._end(run)
            if time.monotonic() > self.until:
                return

    def train_on(self, executor: concurrent.futures.Executor) -> None:
        """By an executor. Where it is `Processes`, a dead one costs at most the epochs that were under way."""
        own = executor if isinstance(executor, Processes) else None
        waiting, losses = deque(self.configs), Counter[str]()
        running: dict[concurrent.futures.Future, tuple[str, str | None]] = {}
        while (waiting or running) and time.monotonic() <= self.until:
            while waiting and self._may_begin(waiting[0], running, losses, own):
                run, device = waiting.popleft(), self._device(running) if own else self.device
                arguments = self.configs[run], str(self.store.root), provenance.code(), device
                running[executor.submit(attempt, *arguments)] = run, device
            ended, _ = concurrent.futures.wait(running, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
            if own and any(map(_is_lost, ended)):
                own.end()
                ended = set(running)
            for future in ended:
                run, _ = running.pop(future)
                losses[run] += _is_lost(future)
                if own and _is_lost(future) and losses[run] < ATTEMPTS:
                    waiting.appendleft(run)
                else:
                    self._end(run, _failure(future, losses[run]), elsewhere=True)
            self._report({run: self.store.progress(run) for run, _ in running.values()})
        for future in running:
            future.cancel()

    def _may_begin(self, run: str, running: Mapping, losses: Counter[str], own: Processes | None) -> bool:
        if own is None or not running:
            return True
        alone = any(losses[each] == ATTEMPTS - 1 for each in (run, *(at[0] for at in running.values())))
        return len(running) < own.workers and not alone

    def _device(self, running: Mapping) -> str | None:
        """The GPU of this machine with the fewest runs."""
        gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        taken = [device for _, device in running.values()]
        return self.device or (min(gpus, key=taken.count) if gpus else None)

    def _end(self, run: str, failure: str = "", elsewhere: bool = False) -> None:
        if elsewhere and not failure and not self._is_visible(run):
            failure = "a worker has finished it, and it is not to be seen in the run store here"
        self._ended.add(run)
        self._shares[run] = 1.0
        if failure:
            self.failures[run] = failure
            return
        if elsewhere and self.log:
            for epoch, rows in self.store.open(run).history.groupby("epoch"):
                names = rows["split"] + "/" + rows["metric"]
                self.log(run, int(epoch), dict(zip(names, rows["value"].astype(float), strict=True)))
        self.stored(run)

    def _is_visible(self, run: str) -> bool:
        limit = time.monotonic() + _VISIBLE_SECONDS
        while not self.store.has(run) and time.monotonic() < limit:
            time.sleep(0.1)
        return self.store.has(run)

    def _done(self, amounts: Mapping[str, float]) -> float:
        return sum(amounts[run] * share for run, share in self._shares.items())

    def _report(self, shares: Mapping[str, float]) -> None:
        self._shares |= shares
        done = self._done(self._seconds)
        text = f"{len(self._ended)} of {len(self.configs)} runs"
        if done > self._before:
            pace = (time.monotonic() - self._began) / (done - self._before)
            text += f", about {duration(pace * (sum(self._seconds.values()) - done))} left"
        if self.until < math.inf:
            text += f", stopping in {duration(max(0.0, self.until - time.monotonic()))}"
        self.progress(self._done(self._work), sum(self._work.values()), text)


def _is_lost(future: concurrent.futures.Future) -> bool:
    """Whether a future came to nothing because a process died."""
    return not future.cancelled() and isinstance(future.exception(), concurrent.futures.BrokenExecutor)


def _failure(future: concurrent.futures.Future, losses: int) -> str:
    """Why a run is not there; "" where it is."""
    if future.cancelled():
        return "the executor gave it up"
    if _is_lost(future):
        return f"its process died {losses} times, often for want of memory; go on with fewer workers"
    return future.result() if future.exception() is None else explain(future.exception())
