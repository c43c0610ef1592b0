"""Faults for trainings in processes of their own. A life is one attempt to train a run: it notes in a journal what it
does, and ends where it is told to. Children start from a warm fork server, in 50 ms and not in 5 s."""

import dataclasses
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nclib import runs, training
from nclib.config import StoredConfig, run_id
from nclib.store import Checkpoint, RunStore

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["pytest", "nclib.runs", "nclib.reproduce", "nclib.cli", "sklearn.datasets", "torch._inductor"]
)


def start(work: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    """Run a function of a module in a child of the fork server. What it prints goes where the tests' output goes."""
    child = SERVER.Process(target=_run, args=(work, arguments, os.environ.copy()))
    child.start()
    return child


def _run(
    work: Callable[..., None], arguments: tuple[Any, ...], environment: dict[str, str]
) -> None:
    os.environ.clear()
    os.environ.update(environment)  # the server keeps that of its start
    try:
        work(*arguments)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


@contextmanager
def children(*started: multiprocessing.process.BaseProcess) -> Iterator[None]:
    """End what is still running when the test is left."""
    try:
        yield
    finally:
        for child in started:
            if child.is_alive():
                child.kill()
            child.join(30)


@dataclasses.dataclass(frozen=True)
class Note:
    """A line of a journal: when (monotonic seconds), by which process, what, of which epoch or run."""

    when: float
    process: int
    what: str
    value: str


class Journal:
    """What lives did, one line each, appended whole, so that a killed one leaves what it had done."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def note(self, what: str, value: Any = "") -> None:
        line = f"{time.monotonic()}\t{os.getpid()}\t{what}\t{value}\n".encode()
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, line)
        os.close(file)

    def notes(self, *what: str) -> list[Note]:
        if not self.path.exists():
            return []
        rows = (line.split("\t") for line in self.path.read_text().splitlines())
        notes = [
            Note(float(when), int(process), name, value) for when, process, name, value in rows
        ]
        return [note for note in notes if not what or note.what in what]

    def wait(self, what: str, times: int = 1, seconds: float = 120) -> Note:
        """The given time that something is noted; waits for it."""
        limit = time.monotonic() + seconds
        while len(found := self.notes(what)) < times:
            assert time.monotonic() < limit, (
                f"{what} did not happen {times} times in {seconds} s: {self.notes()}"
            )
            time.sleep(0.01)
        return found[times - 1]


@dataclasses.dataclass(frozen=True)
class Kill:
    """kill -9: "event", at the n-th update or step of writing of a life; "final", at the n-th step of writing the
    finished run; "time", after n seconds, from outside."""

    kind: str
    n: float


def life(config: StoredConfig, root: str, journal: str, kill: Kill | None = None) -> None:
    """Train a run, noting each start, epoch and checkpoint."""
    watch(Journal(journal), kill)
    runs.train_run(config, RunStore(root))


def watch(journal: Journal, kill: Kill | None = None) -> None:
    """Have the trainings of this process noted, and the process killed at its moment."""
    count = {"armed": kill is not None and kill.kind == "event", "events": 0}

    def event(before: Callable[[], None] = lambda: None) -> None:
        count["events"] += count["armed"]
        if kill is not None and count["armed"] and count["events"] == kill.n:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def around(
        owner: Any, name: str, first: Callable[..., None], last: Callable[..., None]
    ) -> None:
        honest = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            first(*arguments)
            result = honest(*arguments, **options)
            last(result, *arguments)
            return result

        setattr(owner, name, call)

    def nothing(*_: Any) -> None:
        pass

    def half_written(file: int, *_: Any) -> None:
        event(lambda: os.ftruncate(file, os.fstat(file).st_size // 2))

    def arm(*_: Any) -> None:
        count["armed"] = kill is not None

    def begin(state: Any, *_: Any) -> None:
        journal.note(
            "fresh" if state is None else "continued", 0 if state is None else state["epoch"]
        )

    around(training, "learning_rate", lambda *_: event(), nothing)
    around(os, "fsync", half_written, nothing)
    around(os, "replace", lambda *_: event(), lambda *_: event())
    around(os, "unlink", lambda *_: event(), nothing)
    around(os, "rmdir", lambda *_: event(), nothing)
    around(RunStore, "save", arm, nothing)
    around(Checkpoint, "load", nothing, begin)
    around(
        Checkpoint,
        "save",
        nothing,
        lambda _, own, state: journal.note("checkpoint", state["epoch"]),
    )
    around(
        training.Training,
        "train_epoch",
        lambda own: journal.note("epoch", own.epoch + 1),
        lambda _, own: journal.note("trained", own.epoch + 1),
    )


def train_grid(
    configs: Sequence[StoredConfig],
    root: Path,
    folder: Path,
    kills: Sequence[tuple[str, Kill]] = (),
) -> tuple[int, set[str]]:
    """Train a grid, killing lives of each run as planned, until all are stored; returns how many were killed, and the
    runs of which no life began anew after a checkpoint was there. A kill that comes too late is lost. The folder is for
    the journals, one a run."""
    folder.mkdir(parents=True, exist_ok=True)
    store, delivered, sound = RunStore(root), 0, set()
    for config in configs:
        run, unsaved = run_id(config), 0
        for kill in [*(kill for name, kill in kills if name == run), None]:
            inside = kill if kill is not None and kill.kind != "time" else None
            child = start(life, config, str(root), str(folder / run), inside)
            child.join(kill.n if kill is not None and kill.kind == "time" else 120)
            if kill is not None and child.is_alive():
                child.kill()
            child.join(120)
            assert child.exitcode in (0, -signal.SIGKILL), (
                f"{run}: a life ended with {child.exitcode}"
            )
            delivered += child.exitcode != 0
            unsaved += child.exitcode != 0 and not (
                store.checkpoint(run).path.exists() or store.has(run)
            )
        fresh = len(Journal(folder / run).notes("fresh"))
        sound |= {run} if fresh - 1 <= unsaved else set()
    return delivered, sound


CIRCUMSTANCES = ("DONE", "cost.csv", "provenance.json")
"""Files of a run that differ from one training of it to the next: DONE holds the checksums of the other two."""
MAY_DIFFER = {"time_utc", "cost", "facts", "warnings", "commit", "dirty"}
"""Entries of the provenance that say when and how it was trained; of the facts those of an interruption."""


def assert_equal(run: str, one: RunStore, other: RunStore) -> None:
    """Two trainings of a run are equal to the bit: every file but `CIRCUMSTANCES`, and those but `MAY_DIFFER`."""
    assert one.is_sound(run) and other.is_sound(run)
    ours, theirs = (
        {file.name: file.read_bytes() for file in (store.root / run).iterdir()}
        for store in (one, other)
    )
    assert ours.keys() == theirs.keys()
    for name, content in ours.items():
        assert name in CIRCUMSTANCES or content == theirs[name], f"{run}: {name} differs"
    here, there = one.open(run).provenance, other.open(run).provenance
    differing = {key for key in here.keys() | there.keys() if here.get(key) != there.get(key)}
    assert differing <= MAY_DIFFER, f"{run}: {differing}"
    facts = {key for key in here["facts"] if here["facts"][key] != there["facts"].get(key)}
    assert facts <= {"continued_from", "earlier_sessions"}, f"{run}: {facts}"


def debris(store: RunStore) -> list[str]:
    """Whatever lies in a store beside complete runs. Lock files stay on purpose: removing one while another process
    opens it would give two holders; they are empty and mean nothing when nobody holds them."""
    listed = {run: json.loads((store.root / run / "DONE").read_bytes()) for run in store.ids()}
    whole = {f"{run}/{name}" for run, names in listed.items() for name in [*names, "DONE"]}
    whole |= set(store.ids()) | {".locks"}
    found = {path.relative_to(store.root).as_posix(): path for path in store.root.rglob("*")}
    return sorted(name for name in found.keys() - whole if not name.startswith(".locks/"))
