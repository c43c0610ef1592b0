"""Notebooks written by tests, and trainings and executions of them that take no time."""

import contextlib
import json
from collections import Counter
from concurrent.futures import Executor, Future
from pathlib import Path

import pandas as pd
import papermill

from nclib import paths, profiles, reproduce, runs
from nclib.config import DataConfig, ModelConfig, RunConfig, run_id

PARAMETERS = """\
profile: str = "quick"  # the size
epochs: int = 0  # 0 for the profile's
lr: float = 0.0
dataset: str = ""  # "" for the profile's
"""
SAVE = """
import pandas as pd
import nclib as nc
nc.save_table(pd.DataFrame({{"x": [1.0]}}), "{name}", f"profile {{profile}}", [], profile)
"""


def write_notebook(name: str, *cells: str, parameters: str = PARAMETERS, text: str = "") -> Path:
    """A notebook in the test's project: a title, its parameters, these cells."""
    content = [{"cell_type": "markdown", "source": f"# {name}\n\n{text}", "metadata": {}}]
    for number, source in enumerate([parameters, *cells]):
        tags = [] if number else ["parameters"]
        code = {"cell_type": "code", "source": source, "metadata": {"tags": tags}}
        content.append(code | {"outputs": [], "execution_count": None})
    for number, cell in enumerate(content):
        cell["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": content, "metadata": {"kernelspec": kernel}}
    path = paths.notebooks() / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook | {"nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    return path


def figure(name: str, *more: str) -> Path:
    """A notebook that saves a table under its own name."""
    return write_notebook(name, SAVE.format(name=name), *more)


def runs_of_seeds(seeds):
    """The experiment of a notebook: one run for each seed."""

    def make(profile):
        images = DataConfig(dataset="digits", n_max=profile.images_per_class)
        model = ModelConfig(width=profile.width)
        return [RunConfig(data=images, model=model, seed=seed) for seed in seeds]

    return make


def run_of(seed: int) -> str:
    return run_id(runs_of_seeds([seed])(profiles.get_profile("smoke"))[0])


class Inline(Executor):
    """Works where it is called."""

    _processes = None

    def submit(self, work, *arguments):
        future = Future()
        future.set_result(work(*arguments))
        return future


class Bench:
    """Counts trainings and executions, both done here and in no time."""

    def __init__(self):
        self.trained: Counter[str] = Counter()
        self.executed: list[str] = []
        self.broken: dict[str, Exception] = {}  # run id -> what its training raises
        self.lines: list[str] = []

    def train(self, config, store, device, progress, log=None, show=None):
        run = run_id(config)
        self.trained[run] += 1
        if run in self.broken:
            raise self.broken[run]
        rows = [(1, "test", "accuracy_balanced", 0.5 + self.trained[run] / 100)]
        history = pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])
        store.save(config, runs.Result({"history": history}), {})

    def execute(self, source, target, values, **_):
        """Stands for `papermill.execute_notebook`."""
        self.executed.append(f"{source.parent.name}/{source.stem}")
        namespace = {}
        for number, cell in enumerate(reproduce.read_cells(source)):
            if cell["cell_type"] != "code":
                continue
            try:
                exec(cell["source"], namespace)
            except Exception as error:
                Path(target).write_text("as far as it went")
                kind = type(error).__name__
                raise papermill.PapermillExecutionError(
                    number, number, cell["source"], kind, str(error), []
                ) from None
            if "parameters" in cell["metadata"]["tags"]:
                namespace |= values
        Path(target).write_bytes(source.read_bytes())

    def reproduce(self, *names, **options):
        options = {"profile": "smoke", "workers": 1} | options
        return reproduce.reproduce(names, **options, echo=self.lines.append)


@contextlib.contextmanager
def inline_pool(workers):
    yield Inline()
