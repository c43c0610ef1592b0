"""Each notebook run once at smoke size, for all tests of a session that look at what it left."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import filelock
import matplotlib as mpl
import matplotlib.pyplot as plt
from colours import confusable

from nclib import paths, plots, profiles, reproduce, runs


def at_smoke_size(name: str, shared: Path) -> dict[str, Any]:
    """Run the code of a notebook in this process, unless a process of this test run has done so.

    Parameters
    ----------
    shared : a folder that the processes have in common; all notebooks write into one results folder
        in it, as they share runs

    Returns
    -------
    dict
        "records" and "tables": JSON and CSV files that the notebook saved under its name;
        "confusable": pairs of colours in its pictures that look alike; "without words": whether a
        cell left a figure open.
    """
    facts = shared / "executed" / f"{name}.json"
    facts.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(facts.with_suffix(".lock")):
        if not facts.exists():
            facts.write_text(json.dumps(_execute(name, shared / "results")))
    return json.loads(facts.read_text())


def code_cells(name: str) -> list[tuple[bool, str]]:
    """Whether a cell is that of the parameters, and its source."""
    cells = []
    for cell in json.loads(reproduce.source(name).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            is_parameters = "parameters" in cell["metadata"].get("tags", [])
            cells.append((is_parameters, "".join(cell["source"])))
    return cells


def _execute(name: str, results: Path) -> dict[str, Any]:
    shown = []
    left_open = False
    picture = plots.picture
    namespace: dict[str, Any] = {"display": print}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"NCLIB_RESULTS": str(results)}))
        stack.enter_context(contextlib.chdir(paths.notebooks()))
        stack.enter_context(mpl.rc_context())  # a notebook sets matplotlib's style
        watched = lambda fig, alt: shown.append(fig) or picture(fig, alt)  # noqa: E731
        stack.enter_context(mock.patch.object(plots, "picture", watched))
        if name == "neural_collapse/collapse":  # it draws what another notebook has trained
            runs.ensure_runs(profiles.experiment("neural_collapse/equilibrium_or_cell", "smoke"))
        for is_parameters, source in code_cells(name):
            exec(compile(source, name, "exec"), namespace)
            left_open = left_open or bool(plt.get_fignums())
            if is_parameters:
                namespace |= {"profile": "smoke", "train": "missing"}
        plt.close("all")
        saved = {}
        for suffix in ("json", "csv"):
            files = paths.results("smoke").rglob(f"*.{suffix}")
            own = [file for file in files if f"{file.parent.name}/{file.stem}".startswith(name)]
            saved[suffix] = sorted(map(str, own))
    pairs = [list(map(str, pair)) for fig in shown for ax in fig.axes for pair in confusable(ax)]
    return {
        "records": saved["json"],
        "tables": saved["csv"],
        "confusable": pairs,
        "without words": left_open,
    }
