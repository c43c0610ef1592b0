"""Experiments: what each notebook needs, and what is said of it."""

import os

import numpy as np
import pytest
from PIL import Image

from nclib import figures, paths, profiles, runs
from nclib.config import ConfigError, DataConfig, RunConfig, run_id
from nclib.profiles import build_config, experiment, get_profile, override, scale_of
from nclib.runs import ensure_runs
from nclib.store import load_run

pytestmark = pytest.mark.usefixtures("reference")


@pytest.mark.parametrize(
    ("make", "wrong", "right"),
    [
        (lambda: experiment("table1", "ligth"), "ligth", "lite"),
        (lambda: experiment("tabel1", "smoke"), "tabel1", "table1"),
        (lambda: experiment("table1", "smoke", epoch=3), "epoch", "epochs"),
        (lambda: experiment("table1", "smoke", recipe="workabel"), "workabel", "workable"),
        (lambda: experiment("table1", "smoke", dataset="digit"), "digit", "digits"),
        (lambda: ensure_runs([RunConfig()], train="nevr"), "nevr", "never"),
    ],
)
def test_misspelt_names_are_refused_with_the_nearest_right_one(make, wrong, right):
    with pytest.raises(ConfigError, match=rf"{wrong}.*Did you mean '[a-z_/]*{right}'"):
        make()


def test_overrides_reach_the_runs():
    sizes = {"images_per_class": 9, "test_images_per_class": 4}
    training = {"epochs": 7, "batch_size": 5, "lr": 1}
    configs = experiment("table1", "smoke", width=3, seeds=2, **sizes, **training)
    pairs = [("explicit", 0), ("deq", 0), ("explicit", 1), ("deq", 1)]
    assert [(c.model.kind, c.seed) for c in configs] == pairs
    for c in configs:
        assert (c.train.epochs, c.train.batch_size, c.train.lr) == (7, 5, 1.0)
        assert (c.data.n_max, c.data.test_per_class, c.model.width, c.profile) == (9, 4, 3, "smoke")
    literal = experiment("table1", "smoke", recipe="paper")[0].train
    assert (literal.lr, literal.schedule) == (1e-4, "constant")
    assert (literal.clip, literal.epochs) == (None, 2)


def test_options_become_a_configuration():
    images = {"data.dataset": "digits", "data.num_majority": 3, "data.ratio": 10.0}
    run = build_config(None, images | {"model.kind": "deq", "seed": 2})
    assert run.data == DataConfig(imbalance="step", num_majority=3, ratio=10.0)
    assert (run.model.kind, run.seed) == ("deq", 2)
    assert build_config(None, {}) == RunConfig()


def test_a_data_set_of_ones_own_replaces_the_first_column_and_drops_the_second():
    quick = get_profile("quick")
    own = override(quick, dataset="mnist")
    assert (own.dataset, own.hundred_dataset) == ("mnist", "")
    hundred = override(quick, dataset="digit_pairs")
    assert (hundred.dataset, hundred.hundred_dataset) == ("", "digit_pairs")
    assert override(quick, dataset="digits") == quick
    of_pairs = experiment("table1", "quick", dataset="digit_pairs")
    assert {c.data.dataset for c in of_pairs} == {"digit_pairs"}
    with pytest.raises(ConfigError, match=r"fig3 needs a 10-class data set.*digit_pairs"):
        experiment("fig3", "quick", dataset="digit_pairs")


@pytest.mark.parametrize("name", ["smoke", "quick", "lite", "full", "paper"])
def test_every_profile_plans_every_experiment_without_any_data(name):
    for notebook in profiles.makers():
        configs = experiment(notebook, name)
        assert configs and {c.profile for c in configs} == {name}
        if notebook.startswith("neural_collapse/"):
            assert "deq" in {c.model.kind for c in configs if c.kind == "classifier"}
        assert len({run_id(c) for c in configs}) == len(configs)
        seeds = get_profile(name).seeds
        if notebook == "walkthrough/07_imbalance":
            seeds = 1
        if seeds >= 3 and notebook in ("separation_bias/fig1", "separation_bias/fig2"):
            seeds = 8  # of f1 and f2, whose spread is wide
        first = 0
        if notebook == "neural_collapse/which_gradient":
            first = 20  # no other experiment has these runs
        assert {c.seed for c in configs} == set(range(first, first + seeds))
    assert not paths.runs().exists()


def test_the_scale_is_the_papers_only_with_its_images_width_and_epochs():
    assert scale_of(experiment("table1", "paper")) == "paper"
    assert scale_of(experiment("fig2", "paper", seeds=1, images_per_class=5000)) == "paper"
    assert scale_of(experiment("fig3", "full")) == "reduced"
    for options in ({"epochs": 30}, {"width": 16}):
        assert scale_of(experiment("table1", "paper", **options)) == "reduced"
    for options in ({"images_per_class": 499}, {"dataset": "mnist"}, {"dataset": "fashion_mnist"}):
        assert scale_of(experiment("table1", "paper", **options)) == "toy"
    assert {scale_of(experiment("table1", name)) for name in ("smoke", "quick", "lite")} == {"toy"}


@pytest.fixture
def photographs(tmp_path):
    """An ImageFolder tree of small colour images in three classes."""
    folder = tmp_path / "secret-place" / "my photos"
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 3)):
        for k, name in enumerate(("ants", "bees", "cats")):
            target = folder / split / name
            target.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 90, size=(8, 8, 3)) + np.eye(3)[k] * 150
                Image.fromarray(pixels.astype(np.uint8)).save(target / f"{i}.png")
    return folder


def test_the_place_of_a_folder_of_images_is_stored_nowhere(photographs, reference, tmp_path):
    sizes = {"epochs": 2, "images_per_class": 8, "test_images_per_class": 3}
    configs = experiment("fig2", "smoke", dataset=f"folder:{photographs}", **sizes)
    images = configs[0].data
    assert images.dataset.startswith("folder:my-photos@")
    assert (images.num_majority, images.ratio) == (1, 10.0)
    frame = ensure_runs(configs)
    assert set(frame["dataset"]) == {"folder:my-photos"} and set(frame["K_A"]) == {1}
    run = load_run(configs[0])
    assert run.provenance["facts"]["class_names"] == ["ants", "bees", "cats"]
    assert run.arrays["counts"].tolist() == [8, 1, 1]
    assert figures.stand_ins(configs) == {} and scale_of(configs) == "toy"
    caption = figures.describe_runs(configs)
    assert "the image folder my-photos with K_A = 1 of 3 classes, R = 10 (n_A = 8, " in caption
    assert "in fact R = 8" in caption
    runs.export_reference(configs, "photos")

    written = [p for root in (paths.runs(), reference) for p in root.rglob("*") if p.is_file()]
    assert len(written) > 10
    for path in written:
        content = path.read_bytes()
        for place in (str(tmp_path), "secret-place", os.environ["NCLIB_DATA"]):
            assert place.encode() not in content, path
            assert place == str(tmp_path) or place not in path.name

    # The same images elsewhere are the same runs.
    moved = photographs.rename(tmp_path / "my photos")
    again = experiment("fig2", "smoke", dataset=f"folder:{moved}", **sizes)
    assert [run_id(c) for c in again] == [run_id(c) for c in configs]
    ensure_runs(again, train="never")


def test_a_hundred_class_data_set_fills_its_column_and_moves_no_other_run():
    """Table 3 at profile full, whose column of CIFAR-100 is empty unless one names its data."""
    ten = [run_id(config) for config in experiment("table3", "full")]
    with_both = experiment("table3", "full", hundred_dataset="digit_pairs")
    assert [run_id(config) for config in with_both[: len(ten)]] == ten
    added = with_both[len(ten) :]
    assert {config.data.dataset for config in added} == {"digit_pairs"}
    assert {config.data.num_majority for config in added} == {50}
    chosen = override(get_profile("full"), dataset="mnist", hundred_dataset="digit_pairs")
    assert (chosen.dataset, chosen.hundred_dataset) == ("mnist", "digit_pairs")


@pytest.mark.parametrize("dataset", ["digits", "digit_pairs"])
def test_what_is_known_of_the_digits_is_what_is_read(dataset, monkeypatch):
    known = profiles.KNOWN[dataset]
    monkeypatch.setattr(profiles, "KNOWN", profiles.ORIGINALS)
    assert profiles.outline.__wrapped__(dataset) == known
