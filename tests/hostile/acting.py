"""Carries out the cases of `hostile.cases`: what is done, and what became of it."""

import contextlib
import itertools
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hostile import cases
from PIL import Image

import nclib
from nclib import config, data, deq, evaluation, imbalance, losses, metrics, models, solver, training
from nclib.data import folders, sets, split
from nclib.metrics import measuring, ood

CORE = (solver, deq, metrics, measuring, ood, imbalance, losses, config, data, folders, sets, split, models)
CORE += (evaluation, training)
SECONDS = 10
"""What one case may take before it counts as hanging."""


class Hangs(BaseException):
    pass


@contextlib.contextmanager
def in_time(seconds: float = SECONDS) -> Iterator[None]:
    def hang(number: int, frame: Any) -> None:
        raise Hangs(f"no answer in {seconds} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def little_memory(gib: float = 2.0) -> Iterator[None]:
    """No more than this on top of what the process has, so that a bomb fails here and not on the machine."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + int(gib * 2**30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


SIZES = ["short", pytest.param("rest", marks=pytest.mark.slow)]
"""In the short form every row has a quarter of its cases, the next row the next quarter, so that every column is tried;
the rest is all others, so that both together count each case once."""


def chosen(columns: Iterable[Any], letters: str, row: int, size: str) -> list[tuple[Any, str]]:
    """The cases of a row to be tried now: each with its letter; "." is none."""
    found = enumerate(zip(columns, letters, strict=True))
    return [case for i, case in found if case[1] != "." and (i % 4 == row % 4) == (size == "short")]


def tree(folder: Path) -> dict[str, Any]:
    """Everything below a folder: kinds, names and contents, but lock files, which stay and mean nothing."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "folder"
        elif not name.endswith(".lock"):
            about = path.stat()
            found[name] = path.read_bytes() if path.is_file() and about.st_size < 2**30 else about.st_mode
    return found


def changed_outside(whole: Path, before: dict[str, Any], project: Path) -> list[str]:
    """What changed beside the project's own folders of results and data, and what is left half-written in them."""
    own = tuple((project / name).relative_to(whole).as_posix() for name in ("results", "data"))
    after = tree(whole)
    names = [name for name in before.keys() | after.keys() if not name.startswith(own)]
    changed = [f"changed: {name}" for name in names if before.get(name) != after.get(name)]
    left = (".partial", ".writing", ".tmp", ".part")
    return changed + [f"left: {name}" for name in after if name.endswith(left) or "/.arriving/" in name]


# --- functions ------------------------------------------------------------------------------------------------------


def outcome(act: Callable[[], Any]) -> tuple[str, str]:
    """A letter of the table, and what was said: "!" is none of them."""
    try:
        with in_time():
            found = act()
            return "w", repr(found)[:200]
    except Hangs as hangs:
        return "!", str(hangs)
    except Exception as error:
        said = f"{type(error).__name__}: {str(error)[:200]}"
        if _own_words(error):
            return "r", said
        return ("t" if isinstance(error, _PLAIN) and not isinstance(error, RecursionError) else "!"), said


_PLAIN = (TypeError, AttributeError, ValueError, RuntimeError)
"""What Python, NumPy and torch raise for a value of a wrong type. RecursionError, ZeroDivisionError, MemoryError and
the like come from the middle of the work."""


def _own_words(error: Exception) -> bool:
    """Whether this library raised it on purpose, in words, and not Python, NumPy or torch in the middle of the work."""
    if isinstance(error, OSError):
        return error.filename is not None  # the system says which file, and why
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(nclib.__file__).parent in Path(last.filename).parents
    return ours and "raise" in (last.line or "") and len(str(error)) >= 20


# --- commands -------------------------------------------------------------------------------------------------------


def command(*words: str) -> tuple[str, str]:
    """How the command ends: its exit code as a letter, "w" for 0, and what was said. A traceback is "!"; so is a code
    that is neither, a refusal of more than one message, or of none."""
    from typer.testing import CliRunner

    from nclib.cli import app as commands

    try:
        with in_time(15):
            result = CliRunner().invoke(commands.app, list(words))
    except Hangs as hangs:
        return "!", str(hangs)
    said = result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        lines = "".join(traceback.format_exception(result.exception)).splitlines()
        return "!", "\n".join(lines[-4:])
    if result.exit_code == 0:
        return "w", said
    one = said.lower().count("error: ") + said.count("─ Error ─") == 1 or len(said.split()) >= 4
    return (str(result.exit_code) if result.exit_code in (1, 2) and one else "!"), said


def options() -> dict[str, list[str]]:
    """The options and arguments of every command, as they are typed."""
    import typer

    from nclib.cli import app as commands

    found: dict[str, list[str]] = {}

    def walk(group: Any, words: tuple[str, ...]) -> None:
        for name, each in group.commands.items():
            if hasattr(each, "commands"):
                walk(each, (*words, name))
            else:
                said = [max(p.opts, key=len) if p.opts[0].startswith("-") else p.name for p in each.params]
                found[" ".join((*words, name))] = [option for option in said if option != "--help"]

    walk(typer.main.get_command(commands.app), ())
    return found


# --- files ----------------------------------------------------------------------------------------------------------


def read(what: str) -> tuple[str, str]:
    """Ask something: a command, or what the library does."""
    from companion.site import sources
    from nclib.engine import jobs

    readers: dict[str, Callable[[], Any]] = {
        "report": lambda: sources.collect("smoke"),
        "threads": lambda: jobs.one_thread().__enter__(),
    }
    if what in readers:
        return outcome(readers[what])
    long = {"REPRODUCE": cases.COMMANDS["reproduce"], "TRAIN": cases.COMMANDS["train"]}
    return command(*long.get(what, what).split())


def named(place: str, name: str, project: Path, run: str) -> tuple[str, str]:
    """Give something this name."""
    from companion.separation_bias import tasks
    from nclib.publish import artefacts
    from nclib.system import other_parameters, paths

    def images(folder: Path, classes: Sequence[str]) -> Any:
        for split_name, each in itertools.product(("train", "test"), classes):
            (folder / split_name / each).mkdir(parents=True)
            Image.new("L", (4, 4), 90 * (each == "b")).save(folder / split_name / each / "0.png")
        resolved = data.resolve_dataset(f"folder:{folder}")
        return data.load_dataset(resolved, "train").class_names, data.describe(resolved)

    def other() -> Any:
        with other_parameters.results_with(name):
            return paths.results("smoke")

    def figure() -> Any:
        import pandas as pd

        return artefacts.save_table(pd.DataFrame({"x": [1.0]}), name, "profile smoke", [], "smoke")

    readers: dict[str, Callable[[], Any]] = {
        "class": lambda: images(project / "photos", [name, "b"]),
        "folder": lambda: images(project / "in" / name, ["a", "b"]),
        "profile": lambda: paths.results(name),
        "other": other,
        "figure": figure,
        "sound": lambda: tasks.resolve_sound(name),
    }
    commands: dict[str, Sequence[str]] = {
        "parameter": ("reproduce", "fig9", "--profile", "smoke", "--no-report", "-p", f"{name}=1"),
        "value": ("reproduce", "fig9", "--profile", "smoke", "--no-report", "-p", f"text={name}"),
        "collection": ("runs", "export", "fig9", "--profile", "smoke", "--finished", "--collection", name),
        "run": ("runs", "show", "--", name),
        "removed": ("runs", "remove", "-y", "--", name),
        "notebook": ("reproduce", "--profile", "smoke", "--no-report", "--", name),
    }
    return outcome(readers[place]) if place in readers else command(*commands[place])
