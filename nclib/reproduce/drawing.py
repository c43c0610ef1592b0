"""Notebooks drawn while runs are still trained: each is executed as soon as its runs are there.

All of it happens in the thread of the call, whenever it looks: between the runs and epochs that are trained, and then
until nothing is left.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from nclib.engine.reference import finished
from nclib.reproduce.execute import Execution, execute, failed_copy, first_site, notebook_pool, result_of
from nclib.reproduce.sources import Library
from nclib.reproduce.stamps import SUMMARIES, Task, made_from, mark_of, why_due, write_stamp, written_files
from nclib.reproduce.summary import Row
from nclib.system import other_parameters, paths
from nclib.system.terminal import duration, progress_bar

FIRST = ("neural_collapse/fig3", "neural_collapse/table1", "neural_collapse/fig2")
"""Notebooks whose runs are trained before all others, and which are drawn first."""

OUT_OF_TIME = "the minutes given were over; the same command goes on"
_AT_ONCE = 2


class Drawing:
    """The notebooks of one call. To be entered before training, told of runs, looked after, and finished.

    Parameters
    ----------
    tasks : in the order in which their rows are wanted.
    workers : notebooks at once, up to two.
    force : draw what is unchanged, too.
    site : make the web site as soon as one notebook is drawn.
    """

    def __init__(
        self, tasks: Sequence[Task], profile: str, workers: int, force: bool, site: bool, echo: Callable[[str], None]
    ) -> None:
        self.tasks, self.profile, self.force, self.echo = tasks, profile, force, echo
        self.folder, self.library = paths.results(profile), Library()
        self.waiting = {task.name: task for task in sorted(tasks, key=lambda task: urgency(task.name))}
        self.marks: dict[str, str] = {}
        self.results: dict[str, Execution | list[str]] = {}  # of those that are unchanged, their files
        self._made: dict[str, dict[str, str]] = {}
        self._running: dict[concurrent.futures.Future[Execution], Task] = {}
        self._site: concurrent.futures.Future[str] | None = None
        self._wants_site, self._at_once = site, min(_AT_ONCE, workers)
        self._lock = FileLock(self.folder / ".drawing.lock")
        self._stack = contextlib.ExitStack()
        self._pool: concurrent.futures.Executor | None = None

    def __enter__(self) -> Drawing:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear_site()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        stopped = True  # also while the site is waited for
        try:
            self._stack.__exit__(kind, error, trace)
            stopped = kind is not None
        finally:
            if stopped:  # a kernel that was told to stop is reported like one that died
                for task in self._running.values():
                    failed_copy(task.name, self.profile).unlink(missing_ok=True)
                self._clear_site()
            self._lock.release()

    def _clear_site(self) -> None:
        """Remove what a build of the site left that was killed; one that is at work holds the lock."""
        half = self.folder / ".site"
        if half.exists():
            with contextlib.suppress(Timeout), FileLock(self.folder / ".site.lock", timeout=0):
                shutil.rmtree(half, ignore_errors=True)

    def urgent_runs(self) -> dict[str, int]:
        """Rank of the runs that are to be trained before all others."""
        ranks: dict[str, int] = {}
        for task in (self.waiting[name] for name in reversed(FIRST) if name in self.waiting):
            ranks |= dict.fromkeys(task.runs, urgency(task.name))
        return ranks

    def stored(self, run: str) -> None:
        """A run is there now; what needs no other begins."""
        self.marks[run] = mark_of(run)
        self.look()

    def look(self, wait: bool = False) -> None:
        """Take in what has been drawn, and begin what can be; wait: for another client to end its own drawing."""
        for future in [future for future in self._running if future.done()]:
            result = result_of(future)
            self._take_in(self._running.pop(future), result)
        if self._site is not None and self._site.done() and not self._site.exception():
            site, self._site = self._site.result(), None
            if site:
                self.echo(f"the web site, with what is drawn so far: {site}")
        for task in self._drawable():
            if len(self._running) >= self._at_once or not self._may_write(wait):
                return
            self._begin(task)

    def finish(self, failed: Mapping[str, str], fresh: set[str]) -> list[Row]:
        """Draw all that is left; a row for each notebook, in the order asked for.

        Parameters
        ----------
        failed : runs that are not there, with the reason.
        fresh : runs trained in this call.
        """
        for run in {run for task in self.waiting.values() for run in task.runs} - set(failed) - set(self.marks):
            self.marks[run] = mark_of(run)
        for name in [name for name, task in self.waiting.items() if not self._ready(task)]:
            del self.waiting[name]  # what failed is told by its row
        total = len(self.waiting) + len(self._running)
        with progress_bar("notebooks", self.echo) as progress:
            while self.waiting or self._running:
                self.look(wait=True)
                left = len(self.waiting) + len(self._running)
                progress(total - left, total, f"{total - left} of {total}")
                concurrent.futures.wait(self._running, 1.0, concurrent.futures.FIRST_COMPLETED)
        counts = _count_runs(self.tasks, fresh, failed)
        return [self._row(task, counts[task.name], failed) for task in self.tasks]

    def _drawable(self) -> list[Task]:
        """In the order in which they are to begin. What is urgent goes alone as long as it waits for its runs, and the
        summaries wait for everything else."""
        urgent = [task for name, task in self.waiting.items() if name in FIRST]
        others = [task for name, task in self.waiting.items() if name not in FIRST and name not in SUMMARIES]
        last = [] if self._running else [task for name, task in self.waiting.items() if name in SUMMARIES]
        return [task for task in urgent or others or last if self._ready(task)]

    def _ready(self, task: Task) -> bool:
        return all(run in self.marks for run in task.runs)

    def _may_write(self, wait: bool) -> bool:
        if self._lock.is_locked:
            return True
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                return False
            self.echo(other_parameters.waiting_for("drawing", self.folder))
            self._lock.acquire()
        for kind in ("notebooks", "figures", "tables"):  # what a killed one was writing
            for half in (self.folder / kind).glob("**/.*.tmp"):
                half.unlink(missing_ok=True)
        return True

    def _begin(self, task: Task) -> None:
        del self.waiting[task.name]
        made = made_from(task, self.marks, self.profile, self.library)
        if not self.force and not why_due(task.name, self.profile, made):
            self.results[task.name] = written_files(task.name, self.profile)
            return
        self._made[task.name] = made
        self._running[self._submit(execute, task.name, task.values, self.profile)] = task

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future[Any]:
        if self._pool is None:
            self._pool = self._stack.enter_context(notebook_pool(self._at_once + self._wants_site))
        return self._pool.submit(work, *arguments)

    def _take_in(self, task: Task, result: Execution) -> None:
        self.results[task.name] = result
        outcome = f"failed: {result.error}" if result.error else "executed"
        self.echo(f"{task.name}: {outcome} ({duration(result.seconds)})")
        if result.error:
            return
        write_stamp(task.name, self.profile, self._made[task.name], result.files)
        for picture in (file for file in result.files if file.endswith(".png")):
            self.echo(f"  {self.folder / picture}")
        if self._wants_site:
            self._wants_site = False
            self._site = self._submit(first_site, self.profile)

    def _row(self, task: Task, counts: tuple[int, int], failed: Mapping[str, str]) -> Row:
        result = self.results.get(task.name)
        if isinstance(result, list):
            return Row(task.name, "unchanged", 0.0, *counts, result)
        if result is not None:
            kept = failed_copy(task.name, self.profile)
            files = [*result.files] or ([kept.relative_to(self.folder).as_posix()] if kept.exists() else [])
            status = "failed" if result.error else "executed"
            return Row(task.name, status, round(result.seconds, 1), *counts, files, result.error)
        broken = [run for run in task.runs if run in failed]
        first = next((run for run in broken if failed[run] != OUT_OF_TIME), broken[0])
        message = f"{len(broken)} of its {len(task.runs)} runs are missing: {first}: {failed[first]}"
        return Row(task.name, "unfinished" if failed[first] == OUT_OF_TIME else "failed", 0.0, *counts, message=message)


def urgency(name: str) -> int:
    """Rank of a notebook, for its runs and its drawing: 0 is the first."""
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _count_runs(tasks: Sequence[Task], fresh: set[str], failed: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """For each notebook, runs trained (each counted once, in the first notebook that draws it) and runs reused."""
    counted: set[str] = set()
    counts = {}
    for task in tasks:
        trained = set(task.runs) & fresh - counted
        counted |= trained
        counts[task.name] = len(trained), len({*task.runs, *finished(task.optional)} - trained - set(failed))
    return counts
