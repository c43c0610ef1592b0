"""The tracked reference results are what they say: complete, from a clean commit, and free of any machine's paths."""

import lzma
import re
from pathlib import Path

from nclib import figures, profiles, runs
from nclib.config import RunConfig, run_id
from nclib.papers.kernel_equivalence.networks import ShallowConfig
from nclib.papers.neural_collapse.solver_sweep import SolverSweepConfig
from nclib.papers.separation_bias.regression import RegressionConfig
from nclib.papers.separation_bias.saliency import CamConfig
from nclib.profiles import outline
from nclib.store import ReferenceStore

ROOT = Path(__file__).resolve().parents[1] / "results" / "reference"
STORE = ReferenceStore(ROOT)


def test_there_are_some_and_they_stay_small():
    assert len(STORE.ids()) >= 36
    assert sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file()) <= 22e6


KINDS = {
    "classifier": RunConfig,
    "grad_cam": CamConfig,
    "regression": RegressionConfig,
    "shallow": ShallowConfig,
    "solver_probe": SolverSweepConfig,
}


def test_each_is_named_by_its_configuration_and_whole():
    for run in STORE.ids():
        stored = STORE.open(run)
        config = KINDS[stored.config["kind"]](**stored.config)
        assert run_id(config) == run
        assert stored.provenance["dirty"] is False, run
        assert re.fullmatch("[0-9a-f]{40}", stored.provenance["commit"]), run
        if config.kind == "classifier":
            assert stored.history["epoch"].max() == config.train.epochs, run
            assert {"classifier", "class_means", "counts"} <= set(stored.arrays), run


def test_they_can_be_read_where_the_images_are_not(isolated):
    """`--train never` needs neither data nor a run store: here both are empty."""
    outline.cache_clear()
    overrides = {
        "images_per_class": 250,
        "test_images_per_class": 100,
        "dataset": "folder:cifar10-jpeg@ef1101d4a992",
    }
    for name in (
        "recipes",
        "table2",
        "table3",
        "table4",
        "fig2",
        "fig3",
        "fig4",
        "fig5",
        "controls",
        "table1",
    ):
        configs = profiles.experiment(name, "lite", **overrides, seeds=3)
        assert set(runs.plan(configs)["state"]) == {"reference"}, name
    frame = runs.ensure_runs(configs, train="never")
    assert set(frame["run_id"]) == {run_id(config) for config in configs}
    assert f"{overrides['images_per_class']} training" in figures.describe_runs(configs)


def test_no_path_of_a_machine_is_tracked():
    for path in ROOT.rglob("*"):
        if path.suffix in (".json", ".csv", ".md", ".xz"):
            content = path.read_bytes()
            text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
            assert not re.search(r"/(home|root|work|tmp|Users)/", text), path.name
