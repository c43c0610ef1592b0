"""What tests of reproduction share: notebooks written by hand, trainings and executions that take no time."""

import json
import os
from collections import Counter
from pathlib import Path

import pandas as pd

from nclib import figures, paths, profiles
from nclib.config import DataConfig, ModelConfig, RunConfig, run_id
from nclib.publish import notebooks
from nclib.reproduce import reproduce
from nclib.runs import Result

PARAMETERS = """\
profile: str = "quick"  # the size
epochs: int = 0  # 0 for the profile's
lr: float = 0.0
dataset: str = ""  # "" for the profile's
"""


def write_notebook(name: str, *cells: str, parameters: str | None = PARAMETERS) -> Path:
    """A notebook in the test's project, its parameters cell first."""
    sources = ([(parameters, ["parameters"])] if parameters is not None else []) + [(cell, []) for cell in cells]
    content = {
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell-{number}",
                "metadata": {"tags": tags} if tags else {},
                "source": text.splitlines(keepends=True),
                "outputs": [],
                "execution_count": None,
            }
            for number, (text, tags) in enumerate(sources)
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = paths.notebooks() / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def link_picture(name: str, picture: str) -> Path:
    """Begin a notebook with a text that links to a picture; where that belongs."""
    path = paths.notebooks() / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    text = f"# A title\n\n![a picture](images/{picture}.png)"
    notebook["cells"].insert(0, {"cell_type": "markdown", "id": "first", "metadata": {}, "source": text})
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path.parent / "images" / f"{picture}.png"


class Bench:
    """Counts trainings and executions, both done here and in no time."""

    def __init__(self):
        self.trained: Counter[str] = Counter()
        self.executed: Counter[str] = Counter()
        self.broken: dict[str, Exception] = {}  # run id -> what its training raises
        self.environment: dict[str, str] = {}
        self.said: list[str] = []

    def train(self, config, store, device, progress, log=None):
        run = run_id(config)
        self.trained[run] += 1
        if run in self.broken:
            raise self.broken[run]
        rows = [(1, "test", "accuracy_balanced", 0.5 + self.trained[run] / 100)]
        history = pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])
        store.save(config, Result({"history": history}), {})

    def execute(self, name, values, profile):
        """As `execute.execute`, in this process."""
        self.executed[name] += 1
        self.environment = dict(os.environ)
        namespace, error = {}, ""
        figures.WRITTEN.clear()
        for number, cell in enumerate(notebooks.read_cells(notebooks.source(name)), 1):
            try:
                exec("".join(cell["source"]), namespace)
            except Exception as fault:
                error = f"{type(fault).__name__}: {fault} (cell {number})"
                break
            if "parameters" in cell["metadata"].get("tags", []):
                namespace |= values
        folder = paths.results(profile)
        files = {path.relative_to(folder).as_posix(): digest for path, digest in figures.WRITTEN.items()}
        return error, {} if error else files

    def reproduce(self, *names, **options):
        return reproduce.reproduce(names, **({"profile": "smoke", "workers": 1} | options), echo=self.said.append)


def runs_of_seeds(seeds, dataset="digits"):
    def make(profile):
        images = DataConfig(dataset=profile.dataset or dataset, n_max=profile.images_per_class)
        return [RunConfig(data=images, model=ModelConfig(width=profile.width), seed=seed) for seed in seeds]

    return make


DRAW = """
import pandas as pd
from nclib.figures import save_table
save_table(pd.DataFrame({{"x": [1.0]}}), "{name}", f"profile {{profile}}", [], profile)
"""


def figure(name, *more):
    return write_notebook(name, DRAW.format(name=name), *more)


def run_of(seed):
    return run_id(runs_of_seeds([seed])(profiles.get_profile("smoke"))[0])
