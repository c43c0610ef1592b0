"""``nclib runs``: what it exports."""

from command import nclib
from reproduction import write_notebook

from nclib import profiles, runs
from nclib.profiles import build_config
from nclib.store import reference_store


def test_runs_behind_a_notebook_are_exported(trained, project, monkeypatch):
    write_notebook("neural_collapse/fig9", parameters="seeds: int = 2")

    def make(profile):
        return [build_config(None, {"model.width": 2, "seed": seed}) for seed in range(profile.seeds)]

    monkeypatch.setattr(profiles, "makers", lambda: {"neural_collapse/fig9": make})
    refused = nclib("runs", "export", "fig9", "--profile", "smoke")
    assert refused.exit_code == 1 and "not trained yet" in refused.output and "--finished" in refused.output
    assert nclib("runs", "export", "fig9", "--profile", "smoke", "--finished").stdout == ""
    runs.ensure_runs(make(profiles.override(profiles.get_profile("smoke"), seeds=2)))
    result = nclib("runs", "export", "fig9", "--profile", "smoke")
    assert sorted(result.stdout.split()) == sorted(trained) == reference_store().ids()
