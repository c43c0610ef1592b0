"""What is unchanged: a stamp beside each executed notebook says what it was made from and which files it left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nclib.engine.reference import finished
from nclib.engine.store import default_store
from nclib.publish.notebooks import executed, read_cells, source, text_of
from nclib.reproduce.sources import Library
from nclib.system import paths
from nclib.system.files import sha256, write_atomic

SUMMARIES = ("neural_collapse/collapse", "neural_collapse/scorecard")
"""Notebooks made from what the others wrote: executed last, and again whenever one of those tables changed."""

DRAWN_AS_FAR_AS_THERE = {"neural_collapse/collapse": "neural_collapse/equilibrium_or_cell"}
"""Notebooks that train nothing and draw those of another's runs that are stored or tracked."""

DRAW_A_PART = tuple(
    f"neural_collapse/{name}"
    for name in ("table1", "table2", "table3", "table4", "fig2", "fig3", "fig4", "fig5", "scorecard")
)
"""Other notebooks that do so with ``--train finished``: they draw the pairs of runs that are there."""


@dataclass(frozen=True)
class Task:
    """One notebook of a call: the values to inject, those in force that choose its runs, and the runs' ids.

    Parameters
    ----------
    optional : runs that are drawn where they are there, and never trained for this notebook
    """

    name: str
    values: dict[str, Any]
    settings: dict[str, Any]
    runs: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def found(self) -> list[str]:
        """Its runs that are stored or tracked."""
        return finished((*self.runs, *self.optional))


def mark_of(run: str) -> str:
    """What identifies the stored content of a run, "" where it is not stored."""
    store = default_store()
    return sha256((store.root / run / "DONE").read_bytes()) if store.has(run) else ""


def made_from(task: Task, marks: Mapping[str, str], profile: str, library: Library) -> dict[str, str]:
    """All that the results of a notebook depend on, each with a digest: cells, parameters, runs, the wings of the
    library it reaches, the printed numbers and, for a summary, the tables of the notebooks it sums up."""
    cells = read_cells(source(task.name))
    values = {name: value for name, value in task.values.items() if name != "train"}
    parts: dict[str, Any] = {
        "its cells": [(cell["cell_type"], text_of(cell)) for cell in cells],
        "its parameters": values,
        "its runs": {run: marks.get(run, "") for run in task.runs},
        **library.digests(task.name),
    }
    if task.optional:
        parts["the runs that are there"] = {run: mark_of(run) for run in task.found()}
    if task.name in SUMMARIES:
        folder, own = task.name.split("/")
        tables = sorted((paths.results(profile) / "tables" / folder).glob("*.csv"))
        summed = [path for path in tables if path.is_file() and not path.stem.startswith(own)]
        parts |= {f"the table {path.stem}": path.read_bytes().hex() for path in summed}
    return {name: sha256(json.dumps(part, sort_keys=True).encode()) for name, part in parts.items()}


def why_due(name: str, profile: str, made: Mapping[str, str]) -> str:
    """Why a notebook is to be drawn; "" where it was made from the same and every file is still what was written."""
    try:
        before, files = _read_stamp(name, profile)
        changed = [part for part in {**made, **before} if made.get(part) != before.get(part)]
        lost = [file for file, digest in files.items() if _digest(paths.results(profile) / file) != digest]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "its stamp is damaged" if _stamp(name, profile).exists() else "not executed yet"
    if changed:
        return f"changed since: {', '.join(changed)}"
    return f"not what was written: {', '.join(lost)}" if lost else ""


def written_files(name: str, profile: str) -> list[str]:
    """The files of a notebook for which nothing is due."""
    return sorted(_read_stamp(name, profile)[1])


def write_stamp(name: str, profile: str, made: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Note what an executed notebook was made from, and the digests of the files it left."""
    content = {"made_from": dict(made), "files": dict(sorted(files.items()))}
    write_atomic(_stamp(name, profile), json.dumps(content, indent=1) + "\n")


def _stamp(name: str, profile: str) -> Path:
    return executed(name, profile).with_suffix(".json")


def _read_stamp(name: str, profile: str) -> tuple[dict[str, str], dict[str, str]]:
    stamp = json.loads(paths.content(_stamp(name, profile)))
    return dict(stamp["made_from"]), dict(stamp["files"])


def _digest(path: Path) -> str:
    try:
        return sha256(paths.content(path))
    except OSError:
        return ""
