"""``nclib runs``: what it lists, removes, checks, exports."""

import pytest
from command import as_typed, nclib
from reproduction import write_notebook

from nclib.config import run_id
from nclib.engine import experiments, profiles, runs
from nclib.engine.options import build_config
from nclib.engine.reference import reference_store
from nclib.engine.store import DamageWarning, default_store
from nclib.system import paths


def test_runs_are_listed_finished_and_unfinished(stored):
    unfinished = paths.runs() / "digits-balanced-deq-s0-0123.partial"
    unfinished.mkdir()
    (unfinished / "progress.json").write_text('{"epoch": 1, "epochs": 4}')
    lines = nclib("runs", "list").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == [*sorted(stored), "digits-balanced-deq-s0-0123"]
    assert "25 %" in lines[-1]
    assert len(nclib("runs", "list", "s1").stdout.splitlines()) == 1


def test_a_beginning_that_fits_one_run_is_enough(stored):
    result = nclib("runs", "show", stored[1][:-6])
    assert '"commit": "abc"' in result.stdout and "nc2_equinorm" in result.stdout


@pytest.mark.parametrize(("typed", "message"), [("digits", "fits 2 runs"), ("mnist", "'mnist' begins no run")])
def test_a_beginning_that_fits_several_or_none_is_refused(stored, typed, message):
    for command in ("show", "remove"):
        result = nclib("runs", command, typed)
        assert result.exit_code == 2 and message in result.output
    assert default_store().ids() == sorted(stored)


def test_removing_asks_first(stored):
    store = default_store()
    nclib("runs", "remove", stored[0], typed="n\n")
    assert store.has(stored[0])
    nclib("runs", "remove", stored[0], typed="y\n")
    assert store.ids() == [stored[1]]
    nclib("runs", "remove", stored[1], "--yes")
    assert store.ids() == []


def test_check_names_what_is_damaged_and_sets_it_aside(stored):
    assert nclib("runs", "check").stdout == "2 of 2 runs are sound\n"
    (default_store().root / stored[0] / "config.json").write_text("junk")
    with pytest.warns(DamageWarning, match=f"run {stored[0]}: config.json"):
        result = nclib("runs", "check")
    assert result.exit_code == 1 and "1 of 2" in result.stdout
    assert default_store().ids() == [stored[1]] and nclib("runs", "check").exit_code == 0


def test_runs_behind_a_notebook_are_exported(trained, project, monkeypatch):
    write_notebook("neural_collapse/fig9", parameters="seeds: int = 2")

    def make(profile):
        return [build_config(None, None, {"model.width": 2, "seed": seed}, []) for seed in range(profile.seeds)]

    monkeypatch.setattr(experiments, "known", lambda: {"neural_collapse/fig9": make})
    refused = nclib("runs", "export", "fig9", "--profile", "smoke")
    assert refused.exit_code == 1 and "not trained yet" in refused.output and "--finished" in refused.output
    assert nclib("runs", "export", "fig9", "--profile", "smoke", "--finished").stdout == ""
    runs.ensure_runs(make(profiles.override(profiles.get_profile("smoke"), seeds=2)))
    result = nclib("runs", "export", "fig9", "--profile", "smoke")
    assert sorted(result.stdout.split()) == sorted(trained) == reference_store().ids()


def test_the_options_of_a_run_are_a_file_that_makes_that_run(stored, project):
    file = project / "own.json"
    file.write_text(nclib("runs", "show", stored[1], "--config").stdout)
    assert run_id(as_typed(["--config", file])) == stored[1] and len(stored) == 2
