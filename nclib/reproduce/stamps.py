"""What is unchanged: a stamp beside each executed notebook says what it was made from and which files it left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nclib.publish.artefacts import write_atomic
from nclib.publish.notebooks import executed, read_cells, source, text_of
from nclib.reproduce.execute import sha256
from nclib.reproduce.sources import Library
from nclib.system import paths

SUMMARIES = ("neural_collapse/scorecard",)
"""Notebooks made from what the others wrote: executed last, and again whenever one of those tables changed."""


@dataclass(frozen=True)
class Task:
    """One notebook of a call: the values to inject, those in force that choose its runs, and the runs' ids."""

    name: str
    values: dict[str, Any]
    settings: dict[str, Any]
    runs: tuple[str, ...]


def _stamp(name: str, profile: str) -> Path:
    return executed(name, profile).with_suffix(".json")


def key_of(task: Task, marks: Mapping[str, str], profile: str, library: Library) -> str:
    """Changes with all that the results depend on: cells, parameters, runs, the wings of the library it reaches, the
    printed values and, for a summary, the tables of the notebooks it sums up."""
    cells = read_cells(source(task.name))
    texts = [(cell["cell_type"], text_of(cell)) for cell in cells]
    values = {name: value for name, value in task.values.items() if name != "train"}
    runs = {run: marks.get(run, "") for run in task.runs}
    parts: list[Any] = [texts, values, runs, library.digests(task.name, cells)]
    if task.name in SUMMARIES:
        folder, own = task.name.split("/")
        tables = sorted((paths.results(profile) / "tables" / folder).glob("*.csv"))
        summed = [path for path in tables if path.is_file() and not path.stem.startswith(own)]
        parts.append({path.name: sha256(path.read_bytes()) for path in summed})
    return sha256(json.dumps(parts, sort_keys=True).encode())


def unchanged(task: Task, profile: str, key: str) -> list[str] | None:
    """The files of an earlier execution with this key, if every one is still what was written; else None."""
    try:
        stamp = json.loads(paths.content(_stamp(task.name, profile)))
        files, folder = stamp["files"], paths.results(profile)
        whole = all(sha256(paths.content(folder / file)) == digest for file, digest in files.items())
        return sorted(files) if whole and stamp["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # absent, damaged: draw again
        return None


def write_stamp(task: Task, profile: str, key: str, files: Mapping[str, str]) -> None:
    """Note what an executed notebook was made from, and the digests of the files it left."""
    content = {"key": key, "files": dict(sorted(files.items()))}
    write_atomic(_stamp(task.name, profile), json.dumps(content, indent=1) + "\n")
