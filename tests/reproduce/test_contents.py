"""The front door: states from the run store, times that shrink with what is done."""

import pytest

from nclib.config import ConfigError, run_id
from nclib.engine import jobs
from nclib.engine.experiments import experiment, known
from nclib.engine.store import default_store
from nclib.publish import notebooks
from nclib.reproduce import contents
from nclib.system import paths


def test_a_folder_is_listed_in_reading_order_with_its_titles():
    names = [name for name in notebooks.available() if name.startswith("walkthrough/")]
    lines = contents.notebook_list("walkthrough", "smoke").splitlines()
    for name, line in zip(names, lines, strict=True):
        assert line.startswith(f"- [{notebooks.title(notebooks.read_cells(notebooks.source(name)))}]({name}.ipynb) · ")
        assert (paths.notebooks() / f"{name}.ipynb").is_file()


def _line(name, profile="smoke"):
    (found,) = (line for line in contents.notebook_list("walkthrough", profile).splitlines() if f"({name}." in line)
    return found.rpartition(" · ")[2]


def test_a_line_follows_what_is_stored_and_executed():
    name = "walkthrough/07_imbalance"
    configs = experiment(name, "smoke")
    assert _line(name) == f"{len(configs)} runs ({len(configs)} missing), not executed yet"
    jobs.train_run(configs[0], default_store())
    assert _line(name) == f"{len(configs)} runs ({len(configs) - 1} missing, 1 stored), not executed yet"
    page = notebooks.executed(name, "smoke")
    page.parent.mkdir(parents=True)
    page.write_text("{}")
    assert _line(name).endswith("1 stored), executed")
    assert _line("walkthrough/01_fixed_points") == "not executed yet"
    assert "reference" in _line(name, "quick")


def test_unknown_folders_and_profiles_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'walkthrough'"):
        contents.notebook_list("walktrough")
    with pytest.raises(ConfigError, match="'smoke'"):
        contents.notebook_list("walkthrough", "smok")


def test_costs_count_each_run_once_and_fall_when_one_is_stored(monkeypatch):
    monkeypatch.setattr(contents, "PROFILES", ("smoke", "quick"))
    config = experiment("walkthrough/07_imbalance", "smoke")[0]
    before = contents.reproduction_costs()
    assert list(before.index) == ["smoke", "quick"]
    jobs.train_run(config, default_store())
    after = contents.reproduction_costs()
    assert (before.at["smoke", "stored"], after.at["smoke", "stored"]) == (0, 1)
    assert before["runs"].equals(after["runs"]) and after.at["quick", "stored"] == 0
    everything = {run_id(each) for name in known() for each in experiment(name, "smoke")}
    assert after.at["smoke", "runs"] == len(everything)
    assert after.at["smoke", "executed"] == f"0 of {len(notebooks.available())}"
