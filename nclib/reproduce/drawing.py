"""Notebooks rendered while runs are still trained, each as soon as it has its runs, and only where something changed.

A stamp next to each executed notebook records what it was made from and which files it left.
"""

import concurrent.futures
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from nclib import paths, provenance
from nclib.config import RunConfig, StoredConfig
from nclib.paths import json_bytes, sha256, write_atomic
from nclib.profiles import from_papers
from nclib.publish.notebooks import executed, images, read_cells, source, text_of
from nclib.reproduce.execute import end_all, execute
from nclib.runs import PAIR, finished_pairs
from nclib.store import default_store, finished
from nclib.system.terminal import duration

FIRST = from_papers("FIRST")
"""Notebooks whose runs are trained before all others, and which are rendered first."""
SUMMARY = "neural_collapse/scorecard"
"""The notebook that sums up the tables of others, and so comes last."""
AT_ONCE = 2
"""Notebooks executed at once."""


@dataclass(frozen=True)
class Task:
    """One notebook of a call.

    Parameters
    ----------
    values : to inject
    needed : its runs by id
    optional : runs that are plotted where they are available, and never trained for this notebook
    """

    name: str
    values: dict[str, Any]
    needed: dict[str, StoredConfig]
    optional: dict[str, StoredConfig]

    @property
    def drawable(self) -> bool:
        """Whether a pair of networks is available, if the notebook plots those that are."""
        networks = [config for config in self.optional.values() if isinstance(config, RunConfig)]
        return not self.optional or bool(finished_pairs([one for one in networks if one.model.kind in PAIR]))


@dataclass(frozen=True)
class Row:
    """How one notebook went."""

    notebook: str
    status: Literal["executed", "unchanged", "not drawn", "failed"]
    message: str = ""


def urgency(name: str) -> int:
    """Rank of a notebook where all are rendered: 0 is the first."""
    return FIRST.index(name) if name in FIRST else len(FIRST)


class Drawing:
    """The notebooks of one call: each begins as soon as `stored` has been called for all of its runs, and `SUMMARY`
    when the others of its folder have ended.

    Parameters
    ----------
    tasks : in the order in which they begin.
    force : render what is unchanged, too.
    """

    def __init__(self, tasks: Sequence[Task], profile: str, force: bool, echo: Callable[[str], None]) -> None:
        self.tasks, self.profile, self.force, self.echo = tasks, profile, force, echo
        self.waiting = list(tasks)
        self.there: set[str] = set()
        self.awaited = {task.name: task.needed.keys() | task.optional.keys() & set(self.order()) for task in tasks}
        self._code = code()
        self._pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        self._rows: dict[str, concurrent.futures.Future[Row]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        while error and not all(future.done() for future in self._rows.values()):
            end_all()
            concurrent.futures.wait(self._rows.values(), 0.2)

    def order(self) -> list[str]:
        """The runs in the order in which they are trained."""
        return list(dict.fromkeys(run for task in self.tasks for run in task.needed))

    def stored(self, run: str) -> None:
        """A run is there now; what waits for no other begins. Nothing else begins before what is urgent."""
        self.there.add(run)
        for task in list(self.waiting):
            if self.there.issuperset(self.awaited[task.name]) and task.name != SUMMARY:
                self._begin(task)
            elif task.name in FIRST:
                break

    def finish(self, failed: Mapping[str, str]) -> list[Row]:
        """Render all that is left; a row for each notebook, in the order asked for.

        Parameters
        ----------
        failed : runs that are not there, with the reason.
        """
        broken = {task.name: row for task in self.tasks if (row := _without_runs(task, failed))}
        for task in sorted(self.waiting, key=lambda task: task.name == SUMMARY):
            if task.name == SUMMARY:
                folder = SUMMARY.partition("/")[0]
                concurrent.futures.wait(row for name, row in self._rows.items() if name.startswith(f"{folder}/"))
            if task.name not in broken:
                self._begin(task)
        return [broken.get(task.name) or self._rows[task.name].result() for task in self.tasks]

    def _begin(self, task: Task) -> None:
        self.waiting.remove(task)
        self._rows[task.name] = self._pool.submit(self._draw, task)

    def _draw(self, task: Task) -> Row:
        made, folder = made_from(task, self.profile, self._code), paths.results(self.profile)
        stamp = executed(task.name, self.profile).with_suffix(".json")
        if not self.force and _unchanged(stamp, folder, made):
            return Row(task.name, "unchanged")
        began = time.monotonic()
        error, files = execute(task.name, task.values, self.profile)
        row = Row(task.name, "failed" if error else "executed", error)
        self.echo(f"{task.name}: {row.status} ({duration(time.monotonic() - began)}){error and ': ' + error}")
        if not error:
            write_atomic(stamp, json_bytes({"made_from": made, "files": files}))
        return row


def _without_runs(task: Task, failed: Mapping[str, str]) -> Row | None:
    """The row of a notebook that lacks runs."""
    if not (lacking := [run for run in task.needed if run in failed]):
        return None
    message = f"{len(lacking)} of its {len(task.needed)} runs are missing: {lacking[0]}: {failed[lacking[0]]}"
    return Row(task.name, "failed", message)


def made_from(task: Task, profile: str, code: str) -> str:
    """Digest of all that the results of a notebook depend on: its cells and the pictures in them, its parameters, its
    runs, the code and, for `SUMMARY`, the tables of the notebooks it sums up."""
    store, runs = default_store(), [*task.needed, *finished(task.optional)]
    cells = [text_of(cell) for cell in read_cells(source(task.name))]
    cells += [_digest(image) for image in images(task.name)]
    values = {name: value for name, value in task.values.items() if name != "train"}
    tables = {}
    if task.name == SUMMARY:
        found = (paths.results(profile) / "tables" / Path(SUMMARY).parent).glob("*.csv")
        tables = {path.name: _digest(path) for path in found if not path.stem.startswith(Path(SUMMARY).name)}
    stored = {run: _digest(store.root / run / "DONE") for run in runs}
    return sha256(json_bytes([cells, values, stored, code, tables]))


def code() -> str:
    """Digest of nclib, of the packages that add to it, and of the papers' numbers."""
    files = [file for file in provenance.folder("nclib").rglob("*.py")]
    return provenance.digest([*sorted(files), *sorted(paths.published().glob("**/*.csv"))])


def _unchanged(stamp: Path, folder: Path, made: str) -> bool:
    """Whether a notebook was made from the same, and every file that it left is still what was written."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(stamp.read_bytes())
        same = all(_digest(folder / file) == digest for file, digest in content["files"].items())
        return same and content["made_from"] == made
    return False


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()) if path.is_file() else ""
