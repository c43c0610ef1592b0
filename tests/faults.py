"""Faults for trainings in processes of their own, from a warm fork server: a child starts in 50 ms, not in 5 s.

A life is one attempt to train a run. It notes in a journal what it does, and ends where it is told to.
"""

import collections
import csv
import dataclasses
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nclib import training
from nclib.config import StoredConfig, run_id
from nclib.engine import jobs
from nclib.engine.store import Checkpoint, RunStore

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "pytest",
        "nclib.engine.runs",
        "nclib.reproduce.reproduce",
        "nclib.cli.app",
        "sklearn.datasets",
        "torch._inductor",
    ]
)


def start(work: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    """Run a function of a module in a child of the fork server. What it prints goes where the tests' output goes."""
    child = _SERVER.Process(target=_run, args=(work, arguments, os.environ.copy()))
    child.start()
    return child


def _run(work: Callable[..., None], arguments: tuple[Any, ...], environment: dict[str, str]) -> None:
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
        notes = [Note(float(when), int(process), name, value) for when, process, name, value in rows]
        return [note for note in notes if not what or note.what in what]

    def wait(self, what: str, times: int = 1, seconds: float = 120) -> Note:
        """The given time that something is noted; waits for it."""
        limit = time.monotonic() + seconds
        while len(found := self.notes(what)) < times:
            assert time.monotonic() < limit, f"{what} did not happen {times} times in {seconds} s: {self.notes()}"
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
    jobs.train_run(config, RunStore(root))


def slow_down(seconds: float) -> None:
    """Have every update of this process's trainings take so much longer."""
    honest = training.learning_rate
    training.learning_rate = lambda *options: time.sleep(seconds) or honest(*options)


def watch(journal: Journal, kill: Kill | None = None) -> None:
    """Have the trainings of this process noted, and the process killed at its moment."""
    count = {"armed": kill is not None and kill.kind == "event", "events": 0}

    def event(before: Callable[[], None] = lambda: None) -> None:
        count["events"] += count["armed"]
        if kill is not None and count["armed"] and count["events"] == kill.n:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str, first: Callable[..., None], last: Callable[..., None]) -> None:
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
        journal.note("fresh" if state is None else "continued", 0 if state is None else state["epoch"])

    around(training, "learning_rate", lambda *_: event(), nothing)
    around(os, "fsync", half_written, nothing)
    around(os, "replace", lambda *_: event(), lambda *_: event())
    around(os, "unlink", lambda *_: event(), nothing)
    around(os, "rmdir", lambda *_: event(), nothing)
    around(RunStore, "save", arm, nothing)
    around(Checkpoint, "load", nothing, begin)
    around(Checkpoint, "save", nothing, lambda _, own, state: journal.note("checkpoint", state["epoch"]))
    around(
        training._Trainer,
        "train_epoch",
        lambda own: journal.note("epoch", own.epoch + 1),
        lambda _, own: journal.note("trained", own.epoch + 1),
    )


@dataclasses.dataclass
class Outcome:
    """What became of a grid under kills. unsaved: for each run, how often it was killed before it had a checkpoint.
    lost: epochs, and seconds of them, that were trained and had to be trained again."""

    kills: int
    unsaved: collections.Counter[str]
    fresh: collections.Counter[str]
    epochs_lost: int
    seconds_lost: float
    seconds: float


def train_grid(
    configs: Sequence[StoredConfig],
    root: Path,
    folder: Path,
    kills: Sequence[tuple[str, Kill]] = (),
    at_once: int = 2,
    seed: int = 0,
) -> Outcome:
    """Train a grid, killing lives as planned: (run, kill), each run's in order.

    A kill that comes too late, because the run has finished, is given to the run that is trained last, at one of the
    first events of a life, which every life gets to: so all are delivered.
    folder: for the journals, one a run.
    """
    rng, began = random.Random(seed), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    store = RunStore(root)
    known = {run_id(config): config for config in configs}
    planned: dict[str, list[Kill]] = {run: [] for run in known}
    for run, kill in kills:
        planned[run].append(kill)
    waiting = rng.sample(sorted(known), len(known))
    active: dict[Any, tuple[str, Kill | None, float]] = {}
    delivered, unsaved = 0, collections.Counter()
    died: list[tuple[int, str, float]] = []
    try:
        last = waiting[-1]
        while waiting or active:
            while waiting and len(active) < at_once and not (waiting == [last] and active):
                run = waiting.pop(0)
                if run == last:
                    planned[run] = [Kill("event", rng.randint(1, 4)) if k.kind == "time" else k for k in planned[run]]
                kill = planned[run].pop(0) if planned[run] else None
                inside = kill if kill is not None and kill.kind != "time" else None
                child = start(life, known[run], str(root), str(folder / run), inside)
                late = time.monotonic() + kill.n if kill is not None and kill.kind == "time" else float("inf")
                active[child] = run, kill, late
            soon = min(late for _, _, late in active.values()) - time.monotonic()
            patience = min(max(soon, 0.0), 60.0)
            multiprocessing.connection.wait([child.sentinel for child in active], patience)
            for child, (run, kill, late) in list(active.items()):
                if child.is_alive() and late <= time.monotonic():
                    child.kill()
                    child.join()
                if child.is_alive():
                    continue
                child.join()
                del active[child]
                if child.exitcode == -signal.SIGKILL:
                    delivered += 1
                    died.append((child.pid, run, time.monotonic()))
                    unsaved[run] += not (store.checkpoint(run).path.exists() or store.has(run))
                    waiting.insert(rng.randrange(len(waiting)) if waiting and run != last else len(waiting), run)
                    continue
                assert child.exitcode == 0, f"{run}: a life ended with {child.exitcode}"
                spared = [*planned[run], *([kill] if kill else [])]
                assert run != last or not spared, f"{len(spared)} kills came too late"
                planned[run] = []
                planned[last] = [Kill("event", rng.randint(1, 4)) for _ in spared] + planned[last]
    finally:
        for child in active:
            child.kill()
            child.join()
    journals = {run: Journal(folder / run) for run in known}
    fresh = collections.Counter({run: len(journal.notes("fresh")) for run, journal in journals.items()})
    epochs, seconds = _lost(journals, died)
    return Outcome(delivered, unsaved, fresh, epochs, seconds, time.monotonic() - began)


def _lost(journals: dict[str, Journal], died: list[tuple[int, str, float]]) -> tuple[int, float]:
    """Epochs begun more than once, and the seconds that killed lives had spent since their last checkpoint."""
    begun = [[note.value for note in journal.notes("epoch")] for journal in journals.values()]
    seconds = 0.0
    for process, run, when in died:
        mine = [note for note in journals[run].notes() if note.process == process]
        saved = max((i for i, note in enumerate(mine) if note.what == "checkpoint"), default=-1)
        first = next((note.when for note in mine[saved + 1 :] if note.what == "epoch"), when)
        seconds += when - first
    return sum(len(epochs) - len(set(epochs)) for epochs in begun), seconds


# --- what is told ---------------------------------------------------------------------------------------------------


class Ledger:
    """Faults injected and survived, and the work they cost; the variable `NCLIB_SURVIVAL` names the CSV file that keeps
    them."""

    COLUMNS = ("fault", "injected", "survived", "epochs_lost", "seconds_lost", "note")

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    @contextmanager
    def fault(self, name: str, injected: int = 1, note: str = "") -> Iterator[dict[str, Any]]:
        """The row of a fault; what is injected counts as survived when the block is left without an error."""
        row = dict(zip(self.COLUMNS, (name, injected, 0, 0, 0.0, note), strict=True))
        self.rows.append(row)
        yield row
        row["survived"] = row["survived"] or row["injected"]

    def _sums(self) -> list[dict[str, Any]]:
        """One row a fault, those of the same name added up."""
        found: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            known = found.setdefault(row["fault"], dict.fromkeys(self.COLUMNS, 0))
            known |= {name: known[name] + row[name] for name in self.COLUMNS[1:-1]}
            known |= {"fault": row["fault"], "seconds_lost": round(known["seconds_lost"], 2), "note": row["note"]}
        return list(found.values())

    def write(self) -> None:
        target = os.environ.get("NCLIB_SURVIVAL")
        if target:
            if "PYTEST_XDIST_WORKER" in os.environ:  # each process of several counts its own
                target += f".{os.getpid()}"
            with open(target, "w", newline="") as file:
                writer = csv.DictWriter(file, self.COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(self._sums())


LEDGER = Ledger()


# --- what must be the same afterwards -------------------------------------------------------------------------------

CIRCUMSTANCES = ("DONE", "cost.csv", "provenance.json")
"""Files of a run that differ from one training of it to the next: DONE holds the checksums of the other two."""
MAY_DIFFER = {"time_utc", "cost", "facts", "warnings", "commit", "dirty"}
"""Entries of the provenance that say when and how it was trained; of the facts those of an interruption."""


def assert_equal(run: str, one: RunStore, other: RunStore) -> None:
    """Two trainings of a run are equal to the bit: every file but `CIRCUMSTANCES`, and those but `MAY_DIFFER`."""
    assert one.is_sound(run) and other.is_sound(run)
    ours, theirs = ({file.name: file.read_bytes() for file in (store.root / run).iterdir()} for store in (one, other))
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
