"""Kinds of runs are known by name, and a fourth paper is added without a change to the library."""

import json
import os
import sys

import pandas as pd
import pytest

from nclib.engine import experiments, runs
from nclib.engine.store import default_store
from nclib.reproduce import drawing
from nclib.reproduce.reproduce import reproduce
from nclib.system import paths, plugins

PAPER = '''
"""Ridgeless regression on random features: the test error of more and more of them."""

from typing import Literal

import pandas as pd
import torch

from nclib.config import StoredConfig
from nclib.engine.jobs import Result


class RidgelessConfig(StoredConfig):
    kind: Literal["ridgeless"] = "ridgeless"
    features: int

    def execute(self, job):
        generator = torch.Generator().manual_seed(self.seed)
        x, y, directions = (torch.randn(*size, generator=generator) for size in ((120, 5), (5,), (5, self.features)))
        hidden, target = torch.relu(x @ directions), x @ y
        weights = torch.linalg.lstsq(hidden[:20], target[:20, None], driver="gelsd").solution
        error = (hidden[20:] @ weights - target[20:, None]).square().mean().item()
        job.progress(1, 1)
        return Result({"history": pd.DataFrame({"epoch": [1], "split": "test", "metric": "mse", "value": [error]})})


EXPERIMENTS = {
    "descent/fig1": lambda profile: [
        RidgelessConfig(features=many, seed=seed, profile=profile.name)
        for seed in range(profile.seeds)
        for many in (5, 20, 80)
    ]
}
'''
INSTALLED = """[nclib.kinds]
ridgeless = double_descent:RidgelessConfig

[nclib.experiments]
descent = double_descent:EXPERIMENTS
"""
PARAMETERS = 'profile: str = "quick"  # the size\nseeds: int = 0  # 0 for the profile\'s\ntrain: str = "missing"\n'
DRAW = """import nclib as nc
from nclib.engine.experiments import experiment
configs = experiment("descent/fig1", profile, seeds=seeds)
frame = nc.ensure_runs(configs, train=train)
table = frame.merge(nc.plan(configs)[["run_id"]]).groupby("run_id", as_index=False)["value"].mean()
nc.save_table(table, "descent/fig1", f"Test error of each run, profile {profile}.", frame["run_id"].unique(), profile)
"""


def _cell(number, source, *tags):
    rest = {"outputs": [], "execution_count": None, "metadata": {"tags": list(tags)} if tags else {}}
    return {"cell_type": "code", "id": f"cell-{number}", "source": source.splitlines(keepends=True), **rest}


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """A project in a folder of its own with one module, one notebook, and nothing of this library."""
    folder = tmp_path / "project" / "notebooks" / "descent"
    folder.mkdir(parents=True)
    cells = [_cell(1, PARAMETERS, "parameters"), _cell(2, DRAW)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    content = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (folder / "fig1.ipynb").write_text(json.dumps(content))
    module = tmp_path / "modules" / "double_descent.py"
    about = module.parent / "double_descent-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: double-descent\nVersion: 1\n")
    (about / "entry_points.txt").write_text(INSTALLED)
    module.write_text(PAPER)
    monkeypatch.setenv("NCLIB_ROOT", str(tmp_path / "project"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(module.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(module.parent)
    _forget()
    yield module
    monkeypatch.undo()
    _forget()


def _forget():
    """As in a process that starts now."""
    sys.modules.pop("double_descent", None)
    for cached in (plugins.added, plugins.packages, experiments.known):
        cached.cache_clear()


def test_a_fourth_paper_is_reproduced_without_a_change_to_the_library(paper):
    said = []
    summary = reproduce(["descent"], "smoke", ["seeds=2"], echo=said.append)
    assert summary.ok, said
    assert summary.rows[0].status == "executed"
    configs = experiments.experiment("descent/fig1", "smoke", seeds=2)
    assert default_store().ids() == sorted(runs.plan(configs)["run_id"])
    (file,) = paths.results("smoke").rglob("fig1.csv")
    drawn = pd.read_csv(file).set_index("run_id")["value"]
    errors = runs.ensure_runs(configs, train="never").set_index("run_id")["value"]
    pd.testing.assert_series_equal(drawn.sort_index(), errors.sort_index())
    assert errors.nunique() == 6

    (again,) = reproduce(["descent"], "smoke", ["seeds=2"], echo=said.append).rows
    assert again.status == "unchanged"
    before = drawing.code()
    paper.write_text(PAPER + "# changed\n")
    assert drawing.code() != before, "so the notebook is drawn again"
