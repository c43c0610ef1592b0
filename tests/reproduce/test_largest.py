"""The largest evidence: which scale a notebook is drawn at, and where that lies."""

import json
import shutil

import pytest
from command import nclib
from reproduction import DRAW, run_of, write_notebook

from nclib import paths
from nclib.publish.notebooks import available
from nclib.reproduce import largest, reproduce
from nclib.store import default_store, reference_store

SEEDS = 'profile: str = "quick"\nseeds: int = 0\nwidth: int = 0\n'


@pytest.fixture
def tracked(bench, monkeypatch):
    """A project whose runs of seeds 0 and 1 are tracked and not stored, at the scales of `listing`."""
    for name in ("fig1", "fig2"):
        write_notebook(f"neural_collapse/{name}", DRAW.format(name=f"neural_collapse/{name}"), parameters=SEEDS)
    bench.reproduce("fig1")
    store = default_store()
    reference_store().add("small", [store.open(run_of(seed)) for seed in (0, 1)], {})
    for seed in (0, 1):
        shutil.rmtree(store.root / run_of(seed))

    def listing(*scales):
        text = json.dumps([{"profile": "smoke", "parameters": parameters} for parameters in scales])
        (paths.reference() / "scales.json").write_text(text)

    listing({"width": 64}, {"seeds": 1})
    bench.trained.clear()
    return listing


def test_the_first_scale_whose_runs_are_all_there_is_taken(tracked):
    found = largest.largest(["neural_collapse/fig1", "neural_collapse/fig2"])
    assert found["neural_collapse/fig1"]["parameters"] == {"seeds": 1} and len(found) == 1
    # the other needs seed 2, too


def test_what_draws_as_far_as_runs_are_there_needs_one_pair_of_them(tracked, monkeypatch):
    monkeypatch.setitem(reproduce.DRAWN_AS_FAR_AS_THERE, "neural_collapse/fig8", "neural_collapse/fig2")
    write_notebook("neural_collapse/fig8", parameters=SEEDS)
    tracked({"width": 64}, {"seeds": 3})
    assert largest.largest(["neural_collapse/fig8"])["neural_collapse/fig8"]["parameters"] == {"seeds": 3}


def test_it_is_drawn_in_its_folder_without_training_and_listed(bench, tracked):
    assert largest.draw_largest(profile="smoke", echo=bench.said.append)
    folder = "smoke/with/seeds=1"
    assert (paths.results() / folder / "tables/neural_collapse/fig1.csv").is_file() and not bench.trained
    listing = json.loads((paths.results("smoke") / "largest.json").read_text())
    said = {"profile": "smoke", "parameters": {"seeds": 1}, "scale": "toy", "images": "digits", "folder": folder}
    assert listing == {"neural_collapse/fig1": said}
    bench.executed.clear()
    largest.draw_largest(profile="smoke", echo=bench.said.append)
    assert not bench.executed


def test_the_command_draws_it_after_its_own_runs_and_leaves_it_out_with_other_parameters(bench, tracked):
    options = ("--profile", "smoke", "--workers", "1", "--largest", "--no-report")
    done = nclib("reproduce", "fig1", *options)
    assert done.exit_code == 0 and bench.trained == {run_of(0): 1, run_of(1): 1}
    assert "from tracked runs, without training: smoke with seeds=1" in done.stdout
    done = nclib("reproduce", "fig1", *options, "-p", "width=4")
    assert done.exit_code == 0 and "without training" not in done.stdout


def test_the_tracked_runs_give_the_figures_of_the_paper_a_larger_scale():
    found = largest.largest([*available(), "walkthrough/08_reading_a_table"])
    for name in ("table1", "table2", "table3", "table4", "fig2", "fig3", "fig4", "fig5", "scorecard"):
        assert found[f"neural_collapse/{name}"]["parameters"]["dataset"].startswith("folder:cifar10-jpeg@")
    assert found["neural_collapse/collapse"]["scale"] == "reduced" and not any("walkthrough" in name for name in found)
