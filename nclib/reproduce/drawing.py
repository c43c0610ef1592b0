"""Notebooks drawn while runs are still trained: each is executed as soon as its runs are there.

All of it happens in the thread of the call, whenever it looks: between the runs and epochs that are trained, and then
until nothing is left.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence

from nclib.engine.reference import finished
from nclib.reproduce.execute import Execution, execute, failed_copy
from nclib.reproduce.stamps import SUMMARIES, Task, made_from, mark_of, why_due, write_stamp, written_files
from nclib.reproduce.summary import Row
from nclib.system import paths
from nclib.system.terminal import duration, progress_bar, short

FIRST = ("neural_collapse/fig3", "neural_collapse/table1", "neural_collapse/fig2")
"""Notebooks whose runs are trained before all others, and which are drawn first."""
AT_ONCE = 2
"""Notebooks executed at once."""
OUT_OF_TIME = "the minutes given were over; the same command goes on"


def urgency(name: str) -> int:
    """Rank of a notebook, for its runs and its drawing: 0 is the first."""
    return FIRST.index(name) if name in FIRST else len(FIRST)


class Drawing:
    """The notebooks of one call: each begins as soon as `stored` has been called for all of its runs.

    Parameters
    ----------
    tasks : in the order in which their rows are wanted.
    pool : where `execute` runs.
    force : draw what is unchanged, too.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        profile: str,
        pool: concurrent.futures.Executor,
        force: bool,
        echo: Callable[[str], None],
    ) -> None:
        self.tasks, self.profile, self.pool, self.force, self.echo = tasks, profile, pool, force, echo
        self.waiting = sorted(tasks, key=lambda task: urgency(task.name))
        self.marks: dict[str, str] = {}
        self.results: dict[str, Execution | list[str]] = {}  # of those that are unchanged, their files
        self._running: dict[concurrent.futures.Future[Execution], tuple[Task, dict[str, str]]] = {}

    def urgent_runs(self) -> dict[str, int]:
        """Rank of the runs that are to be trained before all others."""
        ranks: dict[str, int] = {}
        for task in reversed(self.waiting):
            if task.name in FIRST:
                ranks |= dict.fromkeys(task.runs, urgency(task.name))
        return ranks

    def stored(self, run: str) -> None:
        """A run is there now; what needs no other begins."""
        self.marks[run] = mark_of(run)
        self.look()

    def look(self) -> None:
        """Take in what has been drawn, and begin what can be."""
        for future in [future for future in self._running if future.done()]:
            self._take_in(future, *self._running.pop(future))
        for task in self._drawable():
            if len(self._running) < AT_ONCE:
                self._begin(task)

    def finish(self, failed: Mapping[str, str], before: Mapping[str, str]) -> list[Row]:
        """Draw all that is left; a row for each notebook, in the order asked for.

        Parameters
        ----------
        failed : runs that are not there, with the reason.
        before : marks of the runs before the call.
        """
        for run in {run for task in self.waiting for run in task.runs} - set(failed) - set(self.marks):
            self.marks[run] = mark_of(run)
        self.waiting = [task for task in self.waiting if self._ready(task)]  # what failed is said by its row
        total = len(self.waiting) + len(self._running)
        with progress_bar("notebooks", self.echo) as progress:
            while self.waiting or self._running:
                self.look()
                done = total - len(self.waiting) - len(self._running)
                progress(done, total, f"{done} of {total}")
                concurrent.futures.wait(self._running, 1.0, concurrent.futures.FIRST_COMPLETED)
        trained = {run for run, mark in self.marks.items() if mark != before.get(run)}
        rows = []
        for task in self.tasks:
            rows.append(self._row(task, trained & set(task.runs), failed))
            trained -= set(task.runs)
        return rows

    def _drawable(self) -> list[Task]:
        """In the order in which they are to begin. What is urgent goes alone as long as it waits for its runs, and the
        summaries wait for everything else."""
        urgent = [task for task in self.waiting if task.name in FIRST]
        others = [task for task in self.waiting if task.name not in FIRST and task.name not in SUMMARIES]
        last = [] if self._running else [task for task in self.waiting if task.name in SUMMARIES]
        return [task for task in urgent or others or last if self._ready(task)]

    def _ready(self, task: Task) -> bool:
        return all(run in self.marks for run in task.runs)

    def _begin(self, task: Task) -> None:
        self.waiting.remove(task)
        made = made_from(task, self.marks, self.profile)
        if self.force or why_due(task.name, self.profile, made):
            self._running[self.pool.submit(execute, task.name, task.values, self.profile)] = task, made
        else:
            self.results[task.name] = written_files(task.name, self.profile)

    def _take_in(self, future: concurrent.futures.Future[Execution], task: Task, made: Mapping[str, str]) -> None:
        try:
            result = future.result()
        except Exception as error:  # the process itself was lost, or its result could not be written
            result = Execution(0.0, short(f"{type(error).__name__}: {error}"))
        self.results[task.name] = result
        outcome = f"failed: {result.error}" if result.error else "executed"
        self.echo(f"{task.name}: {outcome} ({duration(result.seconds)})")
        if not result.error:
            write_stamp(task.name, self.profile, made, result.files)
        for picture in (file for file in result.files if file.endswith(".png")):
            self.echo(f"  {paths.results(self.profile) / picture}")

    def _row(self, task: Task, trained: set[str], failed: Mapping[str, str]) -> Row:
        counts = len(trained), len({*task.runs, *finished(task.optional)} - trained - set(failed))
        result = self.results.get(task.name)
        if isinstance(result, list):
            return Row(task.name, "unchanged", 0.0, *counts, result)
        if result is not None:
            kept = failed_copy(task.name, self.profile)
            files = [*result.files] or ([kept.relative_to(paths.results(self.profile)).as_posix()] * kept.exists())
            status = "failed" if result.error else "executed"
            return Row(task.name, status, round(result.seconds, 1), *counts, files, result.error)
        broken = [run for run in task.runs if run in failed]
        first = next((run for run in broken if failed[run] != OUT_OF_TIME), broken[0])
        message = f"{len(broken)} of its {len(task.runs)} runs are missing: {first}: {failed[first]}"
        return Row(task.name, "unfinished" if failed[first] == OUT_OF_TIME else "failed", 0.0, *counts, message=message)
