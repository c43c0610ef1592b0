"""What is unchanged: a stamp beside each executed notebook says what it was made from and which files it left."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nclib.engine.reference import finished
from nclib.engine.store import default_store
from nclib.publish.notebooks import executed, read_cells, source, text_of
from nclib.system import paths, plugins, provenance
from nclib.system.files import sha256, write_atomic

SUMMARIES = ("neural_collapse/collapse", "neural_collapse/scorecard")
"""Notebooks made from what the others wrote: executed last, and again whenever one of those tables changed."""


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


def made_from(task: Task, marks: Mapping[str, str], profile: str) -> dict[str, str]:
    """All that the results of a notebook depend on, each with a digest: cells, parameters, runs, the sources of nclib
    and of the paper, the printed numbers and, for a summary, the tables of the notebooks it sums up."""
    parts: dict[str, Any] = {
        "its cells": [(cell["cell_type"], text_of(cell)) for cell in read_cells(source(task.name))],
        "its parameters": {name: value for name, value in task.values.items() if name != "train"},
        "its runs": {run: marks.get(run, "") for run in task.runs},
        **sources(task.name.split("/")[0]),
    }
    if task.optional:
        parts["the runs that are there"] = {run: mark_of(run) for run in task.found()}
    if task.name in SUMMARIES:
        folder, own = task.name.split("/")
        for path in sorted((paths.results(profile) / "tables" / folder).glob("*.csv")):
            if not path.stem.startswith(own):
                parts[f"the table {path.stem}"] = path.read_text(encoding="utf-8")
    return {name: sha256(json.dumps(part, sort_keys=True).encode()) for name, part in parts.items()}


@functools.cache
def sources(folder: str) -> dict[str, str]:
    """Digests of the sources that notebooks of a folder depend on. Those of a paper need nothing of another one.

    As they were when this was called first in a process.
    """
    paper = plugins.added("experiments").get(folder)
    own = [paper.module.rpartition(".")[0] or paper.module] if paper else provenance.packages()
    files = {package: sorted(provenance.folder(package).rglob("*.py")) for package in ("nclib", *own)}
    for package in own:
        files[package] += sorted(provenance.folder(package.split(".")[0]).glob("*.py"))
    files["the printed numbers"] = sorted(paths.published().glob("**/*.csv"))
    return {name: provenance.digest(found) for name, found in files.items()}


def why_due(name: str, profile: str, made: Mapping[str, str]) -> str:
    """Why a notebook is to be drawn; "" where it was made from the same and every file is still what was written."""
    stamp = _stamp(name, profile)
    if not stamp.exists():
        return "not executed yet"
    try:
        content = json.loads(stamp.read_bytes())
        before, files = dict(content["made_from"]), dict(content["files"])
    except (ValueError, KeyError, TypeError):
        return "its stamp is damaged"
    changed = [part for part in {**made, **before} if made.get(part) != before.get(part)]
    if changed:
        return f"changed since: {', '.join(changed)}"
    lost = [file for file, digest in files.items() if _digest(paths.results(profile) / file) != digest]
    return f"not what was written: {', '.join(lost)}" if lost else ""


def written_files(name: str, profile: str) -> list[str]:
    """The files of a notebook for which nothing is due."""
    return sorted(json.loads(_stamp(name, profile).read_bytes())["files"])


def write_stamp(name: str, profile: str, made: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Note what an executed notebook was made from, and the digests of the files it left."""
    content = {"made_from": dict(made), "files": dict(sorted(files.items()))}
    write_atomic(_stamp(name, profile), json.dumps(content, indent=1) + "\n")


def _stamp(name: str, profile: str) -> Path:
    return executed(name, profile).with_suffix(".json")


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()) if path.is_file() else ""
