"""Experiments: what each notebook needs, trained once, whatever interrupts, breaks or competes with it."""

import concurrent.futures
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from companion.neural_collapse import network_costs
from nclib import data, training
from nclib.config import ConfigError, DataConfig, ModelConfig, RunConfig, TrainConfig, run_id
from nclib.data import make_split
from nclib.engine import costs, jobs, runs
from nclib.engine import outline as outline_module
from nclib.engine.experiments import experiment
from nclib.engine.outline import class_counts, majority_of, outline, scale_of
from nclib.engine.profiles import get_profile, override
from nclib.engine.reading import FRAME_COLUMNS
from nclib.engine.reference import load_run
from nclib.engine.runs import MissingRuns, RunsFailed, ensure_runs
from nclib.engine.store import CorruptRun, DamageWarning, RunStore, default_store
from nclib.publish import captions, experiments
from nclib.system import paths, provenance

TINY = {"epochs": 1, "images_per_class": 6, "test_images_per_class": 3}


REVERSIBLE = ModelConfig(kind="deq", width=2, gradient={"method": "reversible", "steps": 3})


def _config(kind="explicit", seed=0, epochs=1, n_max=6, **train):
    return RunConfig(
        data=DataConfig(n_max=n_max, test_per_class=3),
        model=ModelConfig(kind=kind, width=2),
        train=TrainConfig(**{"epochs": epochs, "batch_size": 16, "lr": 0.05} | train),
        seed=seed,
        profile="smoke",
    )


@pytest.fixture(autouse=True)
def reference(tmp_path, monkeypatch):
    """Reference results of the project neither enter these tests nor are written by them."""
    folder = tmp_path / "reference"
    monkeypatch.setattr(paths, "reference", lambda: folder)
    return folder


@pytest.fixture
def trained(monkeypatch):
    """The ids of the runs that were really trained in this process."""
    ids, honest = [], training.train

    def counting(config, **options):
        ids.append(run_id(config))
        return honest(config, **options)

    monkeypatch.setattr(training, "train", counting)
    return ids


@pytest.fixture(scope="module")
def pool():
    """Any executor of processes will do; the one of a cluster has tests of its own."""
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as workers:
        yield workers


def _same_bits(run, one, other):
    ours, theirs = one.load(run), other.load(run)
    for name in ("history", "classes"):
        pd.testing.assert_frame_equal(ours.tables[name], theirs.tables[name], check_exact=True)
    assert ours.arrays.keys() == theirs.arrays.keys()
    for name, values in ours.arrays.items():
        np.testing.assert_array_equal(values, theirs.arrays[name], err_msg=name)
    weights = one.weights(run), other.weights(run)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0] | weights[1])


def _stop_after_two_epochs(config):
    """Ctrl-C in the middle of a training."""

    def stop(done, total, text):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_runs([config], progress=stop)


def _debris(store):
    return sorted(p.name for p in store.root.iterdir() if p.name.endswith((".partial", ".writing", ".tmp")))


# ---- profiles, names and parameters


@pytest.mark.parametrize(
    ("make", "wrong", "right"),
    [
        (lambda: get_profile("quik"), "quik", "quick"),
        (lambda: experiment("table1", "ligth"), "ligth", "lite"),
        (lambda: experiment("tabel1", "smoke"), "tabel1", "table1"),
        (lambda: experiment("neural_collapse/fgi3", "smoke"), "fgi3", "fig3"),
        (lambda: experiment("table1", "smoke", epoch=3), "epoch", "epochs"),
        (lambda: experiment("table1", "smoke", recipe="workabel"), "workabel", "workable"),
        (lambda: experiment("table1", "smoke", dataset="digit"), "digit", "digits"),
        (lambda: ensure_runs([_config()], train="nevr"), "nevr", "never"),
    ],
)
def test_misspelt_names_are_refused_with_the_nearest_right_one(make, wrong, right, trained):
    with pytest.raises(ConfigError, match=rf"{wrong}.*Did you mean '[a-z_/]*{right}'"):
        make()
    assert not trained


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"epochs": "3"}, "epochs must be int, got '3'"),
        ({"epochs": 3.0}, "epochs must be int"),
        ({"epochs": True}, "epochs must be int"),
        ({"dataset": 3}, "dataset must be str"),
        ({"lr": "0.1"}, "lr must be float"),
        ({"epochs": -1}, "epochs must be positive, or 0 for the profile's own, got -1"),
        ({"recipe": "paper", "lr": 0.1}, "recipe 'paper' states its own lr"),
    ],
)
def test_wrong_types_and_values_are_refused(values, says):
    with pytest.raises(ConfigError, match=says):
        override(get_profile("smoke"), **values)


def test_zero_and_nothing_stand_for_the_profiles_own():
    profile = get_profile("quick")
    assert override(profile, epochs=0, width=0, lr=0.0, dataset="", recipe="", seeds=0) == profile


def test_overrides_reach_the_runs():
    configs = experiment(
        "table1", "smoke", epochs=7, width=3, seeds=2, images_per_class=9, test_images_per_class=4, batch_size=5, lr=1
    )
    assert [(c.model.kind, c.seed) for c in configs] == [("explicit", 0), ("deq", 0), ("explicit", 1), ("deq", 1)]
    for c in configs:
        assert (c.train.epochs, c.train.batch_size, c.train.lr) == (7, 5, 1.0)
        assert (c.data.n_max, c.data.test_per_class, c.model.width, c.profile) == (9, 4, 3, "smoke")
    literal = experiment("table1", "smoke", recipe="paper")[0].train
    assert (literal.lr, literal.schedule, literal.clip, literal.epochs) == (1e-4, "constant", None, 2)


def test_a_data_set_of_ones_own_replaces_the_first_column_and_drops_the_second():
    quick = get_profile("quick")
    own = override(quick, dataset="mnist")
    assert (own.dataset, own.hundred_dataset) == ("mnist", "")
    hundred = override(quick, dataset="digit_pairs")
    assert (hundred.dataset, hundred.hundred_dataset) == ("", "digit_pairs")
    assert override(quick, dataset="digits") == quick
    assert {c.data.dataset for c in experiment("table1", "quick", dataset="digit_pairs")} == {"digit_pairs"}
    with pytest.raises(ConfigError, match=r"fig3 needs a 10-class data set.*digit_pairs"):
        experiment("fig3", "quick", dataset="digit_pairs")


@pytest.mark.parametrize("name", ["smoke", "quick", "lite", "full", "paper"])
def test_every_profile_plans_every_experiment_without_any_data(name, trained):
    for notebook in experiments.known():
        configs = experiment(notebook, name)
        assert configs and {c.profile for c in configs} == {name}
        if notebook.startswith("neural_collapse/"):
            assert "deq" in {c.model.kind for c in configs if c.kind == "classifier"}
        assert len({run_id(c) for c in configs}) == len(configs)
        seeds = 1 if notebook == "walkthrough/07_imbalance" else get_profile(name).seeds  # that one looks at the first
        if seeds >= 3 and notebook in {f"separation_bias/{part}" for part in ("fig1", "fig2", "verdicts")}:
            seeds = 8  # of f1 and f2, whose spread is wide
        assert {c.seed for c in configs} == set(range(seeds))
    assert not trained and not paths.runs().exists()


def test_the_papers_settings():
    table1 = experiment("table1", "paper")
    assert {c.data.dataset for c in table1} == {"cifar10", "cifar100"}
    assert {c.data.imbalance for c in table1} == {"balanced"}
    (fig2,) = {c.data for c in experiment("fig2", "paper")}
    assert (fig2.dataset, fig2.num_majority, fig2.ratio, fig2.n_max) == ("cifar10", 3, 10.0, None)
    balanced, step = dict.fromkeys(c.data for c in experiment("fig3", "paper"))
    assert balanced.imbalance == "balanced" and (step.num_majority, step.ratio) == (5, 100.0)
    for c in table1:
        assert (c.model.width, c.train.epochs, c.train.batch_size) == (64, 100, 128)


def test_experiments_share_runs():
    balanced = {run_id(c) for c in experiment("table1", "smoke")}
    assert balanced <= {run_id(c) for c in experiment("fig3", "smoke")}


def test_a_bare_name_means_the_main_papers():
    assert experiment("table1", "smoke") == experiment("neural_collapse/table1", get_profile("smoke"))


def test_majority_classes_are_tenths_of_what_there_is():
    assert [majority_of("cifar10", t) for t in (3, 5, 7)] == [3, 5, 7]
    assert [majority_of("cifar100", t) for t in (3, 5, 7)] == [30, 50, 70]


def test_training_images_are_counted_before_they_are_drawn():
    step = {"imbalance": "step", "num_majority": 5, "ratio": 100.0}
    for cfg, wanted in [
        (DataConfig(dataset="cifar10"), 50_000),
        (DataConfig(dataset="cifar10", **step), 25_250),
        (DataConfig(dataset="digits", n_max=7), 70),
        (DataConfig(dataset="digits", imbalance="exponential", ratio=10.0, n_max=100), 409),
    ]:
        slack = 5 if cfg.imbalance == "exponential" else 0
        assert class_counts(cfg).sum().item() == pytest.approx(wanted, abs=slack)
    drawn = DataConfig(dataset="digits", imbalance="exponential", ratio=10.0, n_max=100)
    assert class_counts(drawn).tolist() == data.make_split(drawn, 0).counts.tolist()


# ---- what captions and tables say


def test_descriptions_name_profile_images_seeds_and_solver():
    text = captions.describe_runs(experiment("fig3", "quick"))
    for part in ("Profile quick", "digits balanced (10 classes", "K_A=5 of 10 classes, R=100", "20 epochs", "3 seeds"):
        assert part in text
    n_a = outline("digits").per_class
    assert f"n_A={n_a}, n_B={round(n_a / 100)}" in text
    solver = ("broyden", "relative residual 0.001", "at most 20 evaluations from the input", "implicit", "keep_best")
    for part in solver:
        assert part in text
    one = captions.describe_runs(experiment("table1", "smoke", images_per_class=9))
    assert "1 seed, so no spread over seeds." in one and "9 training images each" in one
    assert "DEQ" not in captions.describe_runs([_config()])
    full = experiment("fig3", "full", dataset="digits")
    assert " without augmentation, 3 seeds." in captions.describe_runs(full) and "without" not in text
    assert "2 to 3 seeds." in captions.describe_runs([c for c in full if c.seed or c.data.imbalance == "balanced"])
    said = captions.describe_runs([_config("deq").replace(model=REVERSIBLE)])
    assert "3 steps from the input" in said and "reversible gradient" in said and "broyden" not in said


def test_descriptions_say_how_many_test_images_a_class_has():
    for name, options, wanted in [
        ("fig3", {"test_images_per_class": 9}, "Tested on 9 images of each class."),
        ("fig3", {}, f"Tested on {min(data.describe('digits')['test'])} images of each class."),
        ("fig3", {"dataset": "mnist"}, "Tested on 892 to 1135 images of each class."),
        ("table1", {}, "Tested on 40 images of each class of digits and 20 images of each class of digit_pairs."),
    ]:
        text = captions.describe_runs(experiment(name, "quick", **options))
        assert wanted in text and text.count("Tested on") == 1


def test_captions_name_a_spread_over_seeds_only_where_there_is_one():
    several, one = experiment("fig2", "quick"), experiment("fig2", "quick", seeds=1)
    assert captions.describe_seeds(several) == "means over seeds with 95 % t-intervals"
    assert captions.describe_seeds(one, "bands") == "values of one seed, so without bands"


def test_stand_ins_go_by_the_number_of_classes():
    assert captions.stand_ins(experiment("table1", "quick")) == {"digits": "cifar10", "digit_pairs": "cifar100"}
    assert captions.stand_ins(experiment("fig2", "paper")) == {"cifar10": "cifar10"}


def test_the_scale_is_the_papers_only_with_its_images_width_and_epochs():
    assert scale_of(experiment("table1", "paper")) == "paper"
    assert scale_of(experiment("fig2", "paper", seeds=1, images_per_class=5000)) == "paper"
    assert scale_of(experiment("fig3", "full")) == "reduced"
    for options in ({"epochs": 30}, {"width": 16}):
        assert scale_of(experiment("table1", "paper", **options)) == "reduced"
    for options in ({"images_per_class": 499}, {"dataset": "mnist"}, {"dataset": "fashion_mnist"}):
        assert scale_of(experiment("table1", "paper", **options)) == "toy"
    assert {scale_of(experiment("table1", name)) for name in ("smoke", "quick", "lite")} == {"toy"}


def test_a_folder_with_all_images_of_the_papers_classes_is_of_reduced_scale_whatever_its_name(monkeypatch):
    whole = outline("cifar10")
    shapes = {"a": whole, "b": whole._replace(per_class=4999), "c": whole._replace(size=(28, 28))}
    run = experiment("fig2", "paper", seeds=1)[0]
    monkeypatch.setattr(outline_module, "outline", lambda dataset: shapes[dataset.split(":")[1][0]])
    runs = {name: run.replace(data=run.data.replace(dataset=f"folder:{name}@0123456789ab")) for name in shapes}
    assert {name: scale_of([run]) for name, run in runs.items()} == {"a": "reduced", "b": "toy", "c": "toy"}
    assert scale_of([runs["b"], runs["a"]]) == "toy", "the least of all"


# ---- trained once


def test_runs_are_trained_once(trained):
    configs = experiment("table1", "smoke", **TINY)
    told = []
    frame = ensure_runs(configs, progress=lambda *state: told.append(state))
    assert sorted(trained) == sorted(run_id(c) for c in configs)
    assert told[-1][:2] == (2, 2) and [t[0] for t in told] == [1, 2]
    assert list(frame.columns) == FRAME_COLUMNS
    assert set(frame["model"]) == {"explicit", "deq"} and set(frame["profile"]) == {"smoke"}
    assert set(frame["dataset"]) == {"digits"} and frame["K_A"].isna().all() and (frame["R"] == 1).all()
    assert {"train", "test", "steps"} == set(frame["split"])
    again = ensure_runs(configs)
    assert len(trained) == 2
    pd.testing.assert_frame_equal(frame, again)
    assert _debris(default_store()) == []


def test_repetitions_and_other_labels_are_the_same_run(trained):
    config = _config()
    frame = ensure_runs([config, config, config.replace(profile="quick")])
    assert trained == [run_id(config)] and frame["run_id"].nunique() == 1
    renamed = ensure_runs([config.replace(profile="lite")])
    assert len(trained) == 1 and set(renamed["profile"]) == {"lite"}


def test_no_runs_give_an_empty_table():
    assert list(ensure_runs([]).columns) == FRAME_COLUMNS


def test_what_is_kept_with_a_run():
    ensure_runs([_config("deq")])
    run = load_run(_config("deq"))
    record = run.provenance
    assert record["seeds"] == [0] and record["deterministic"] is True and record["threads"] == 1
    assert record["cost"]["wall_seconds"] > 0 and record["versions"]["torch"] in torch.__version__
    assert record["facts"]["class_names"] == list("0123456789") and isinstance(record["warnings"], list)
    assert set(run.tables) == {"history", "classes", "cost"}
    assert load_run(run.run_id).history.equals(run.history)
    with pytest.raises(CorruptRun, match=r"neither in the run store nor .* nclib.ensure_runs\(\[config\]\) trains it"):
        load_run(_config(seed=5))
    with pytest.raises(ConfigError, match=r"for a single one \[config\]"):
        ensure_runs(_config(seed=5))


def test_training_uses_one_thread_whatever_the_session_uses(monkeypatch):
    seen = []

    def looking(config, **options):
        seen.append(torch.get_num_threads())
        raise RuntimeError("seen enough")

    monkeypatch.setattr(training, "train", looking)
    torch.set_num_threads(2)
    try:
        for setting in ("", "2"):
            if setting:
                monkeypatch.setenv("NCLIB_THREADS", setting)
            with pytest.raises(RunsFailed, match="seen enough"):
                ensure_runs([_config()])
        assert seen == [1, 2] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    monkeypatch.setenv("NCLIB_THREADS", "many")
    with pytest.raises((RunsFailed, ConfigError), match="NCLIB_THREADS='many'"):
        ensure_runs([_config()])


# ---- several processes


@pytest.mark.slow
def test_a_pool_gives_the_bits_of_a_serial_run(pool, tmp_path, monkeypatch):
    configs = [_config("explicit"), _config("deq", seed=1)]
    ensure_runs(configs)
    serial = default_store()
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path / "elsewhere"))
    told = []
    frame = ensure_runs(configs, executor=pool, progress=lambda *state: told.append(state))
    parallel = default_store()
    assert parallel.root != serial.root and frame["run_id"].nunique() == 2
    for config in configs:
        _same_bits(run_id(config), serial, parallel)
    assert told[-1][:2] == (2, 2)


def _train_and_tell(config_json, root, log):
    """Runs in a worker: one line a trained epoch."""

    def tell(done, total):
        with open(log, "a") as file:
            file.write(f"{done}\n")

    return jobs.train_run(config_json, root, progress=tell)


@pytest.mark.slow
def test_two_processes_that_want_the_same_run_train_it_once(pool, tmp_path):
    config, log, root = _config(epochs=4), tmp_path / "log", str(paths.runs())
    futures = [pool.submit(_train_and_tell, config.model_dump_json(), root, str(log)) for _ in range(4)]
    assert {future.result(timeout=60) for future in futures} == {run_id(config)}
    assert log.read_text().split() == ["1", "2", "3", "4"]
    assert default_store().is_sound(run_id(config))


@pytest.mark.parametrize("parallel", [False, True])
def test_a_failing_run_is_named_and_does_not_stop_the_others(pool, parallel):
    good, greedy, wild = _config(seed=1), _config(n_max=10_000), _config(lr=1e20, clip=None, weight_decay=0.1, epochs=3)
    with pytest.raises(RunsFailed) as caught:
        ensure_runs([greedy, wild, good], executor=pool if parallel else None)
    assert set(caught.value.failures) == {run_id(greedy), run_id(wild)}
    message = str(caught.value)
    assert "10000 training images" in message and "use a lower lr" in message.lower()
    assert run_id(greedy) in message and "runs that failed: 2" in message
    store = default_store()
    assert store.ids() == [run_id(good)]


# ---- interrupted (killed: test_survival.py)


def test_control_c_keeps_the_epochs_that_were_done(trained):
    config = _config(epochs=3)

    _stop_after_two_epochs(config)
    store = default_store()
    assert store.ids() == [] and store.progress(run_id(config)) == pytest.approx(2 / 3)
    ensure_runs([config])
    record = store.load(run_id(config)).provenance
    assert record["facts"]["continued_from"] == [2]
    said = runs.runs_provenance([config])["value"]
    assert said["continued from a checkpoint"] == 1
    (earlier,) = record["facts"]["earlier_sessions"]
    assert all(earlier[name] == record[name] for name in ("commit", "cpu", "device", "versions", "threads"))
    assert provenance.processor_seconds(record) == record["cost"]["cpu_seconds"] + earlier["cost"]["cpu_seconds"]
    assert earlier["epoch"] == 2 and earlier["cost"]["cpu_seconds"] > 0


def test_a_full_disk_fails_the_run_and_the_next_call_goes_on(monkeypatch, trained):
    from nclib.engine import store as store_module

    config, honest = _config(epochs=2), store_module.write_atomic

    def full(path, content):
        if path.name == "weights.pt":
            raise OSError(28, "No space left on device")
        return honest(path, content)

    monkeypatch.setattr(store_module, "write_atomic", full)
    with pytest.raises(RunsFailed, match="No space left"):
        ensure_runs([config])
    store = default_store()
    assert store.ids() == []
    monkeypatch.setattr(store_module, "write_atomic", honest)
    ensure_runs([config])
    assert store.load(run_id(config)).provenance["facts"]["continued_from"] == [1]


# ---- damaged


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "no DONE"])
def test_a_damaged_run_is_set_aside_and_trained_again(damage, trained, tmp_path):
    config = _config()
    run = run_id(config)
    before = ensure_runs([config])
    store = default_store()
    kept = RunStore(tmp_path / "kept")
    shutil.copytree(store.root / run, kept.root / run)
    path = store.root / run / ("DONE" if damage == "no DONE" else "history.csv")
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[:-3])
    else:
        path.unlink()
    with pytest.warns(DamageWarning, match=run):
        after = ensure_runs([config])
    assert trained == [run, run] and len(list((store.root / "set-aside").iterdir())) == 1
    pd.testing.assert_frame_equal(before, after)
    _same_bits(run, kept, store)


def test_a_damaged_checkpoint_is_set_aside_told_and_trained_again():
    config = _config(epochs=3)

    _stop_after_two_epochs(config)
    store = default_store()
    path = store.checkpoint(run_id(config)).path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(DamageWarning, match="checkpoint"):
        ensure_runs([config])
    record = store.load(run_id(config)).provenance
    assert record["facts"]["continued_from"] == [] and any("checksum" in said for said in record["warnings"])


# ---- without training


def test_never_training_names_what_is_missing(trained):
    stored, missing = _config(), _config(seed=1)
    ensure_runs([stored])
    with pytest.raises(MissingRuns, match=run_id(missing)) as caught:
        ensure_runs([stored, missing], train="never")
    assert run_id(stored) not in str(caught.value) and "train='missing'" in str(caught.value)
    assert trained == [run_id(stored)]
    assert ensure_runs([stored], train="never")["run_id"].unique().tolist() == [run_id(stored)]


def test_reference_results_round_trip(trained, reference):
    configs = experiment("table1", "smoke", **TINY)
    with pytest.raises(MissingRuns, match=run_id(configs[0])):
        runs.export_reference(configs, "small")
    assert runs.export_reference(configs, "small", finished=True) == []
    ensure_runs(configs[:1])
    assert runs.export_reference(configs, "small", finished=True) == [run_id(configs[0])]
    frame = ensure_runs(configs)
    assert runs.export_reference(configs, "small") == [run_id(c) for c in configs]
    assert runs.export_reference(configs, "small")  # again, without doubling anything
    whole = default_store().load(run_id(configs[0]))
    shutil.rmtree(paths.runs())
    from_reference = ensure_runs(configs, train="never")
    columns = ["run_id", "epoch", "split", "metric"]
    ours, theirs = (f.sort_values(columns, ignore_index=True) for f in (frame, from_reference))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    small = load_run(configs[0])
    np.testing.assert_array_equal(small.arrays["class_means"], whole.arrays["class_means"].astype(np.float32))
    assert small.arrays["train_features"].shape == (60, 16)
    assert len(trained) == 2
    size = sum(p.stat().st_size for p in reference.rglob("*") if p.is_file())
    assert size < 200_000
    ensure_runs(configs[:1])  # with training allowed, a reference run does not stand in for one of this machine
    assert len(trained) == 3


def test_plan_says_what_would_be_done(trained):
    configs = experiment("table1", "smoke", seeds=3, **TINY)
    ensure_runs(configs[:2])
    runs.export_reference(configs[:2], "small")
    shutil.rmtree(paths.runs())
    ensure_runs(configs[2:4])
    plan = runs.plan([*configs, configs[0]])
    assert plan["run_id"].tolist() == [run_id(c) for c in configs]
    assert plan["state"].tolist() == ["reference"] * 2 + ["stored"] * 2 + ["missing"] * 2
    assert (plan["seconds"] > 0).all()
    assert plan["seconds"].iloc[1] > plan["seconds"].iloc[0]  # an equilibrium costs more
    assert len(trained) == 4


def test_estimates_grow_with_the_work():
    small = costs.CostModel().seconds(_config())
    wide = _config().replace(model=ModelConfig(width=32))
    for bigger in (_config(epochs=5), _config(n_max=60), _config("deq"), wide):
        assert costs.CostModel().seconds(bigger) > small


# ---- images of one's own


@pytest.fixture
def photographs(tmp_path):
    """An ImageFolder tree of small colour images in three classes."""
    folder, rng = tmp_path / "secret-place" / "my photos", np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 3)):
        for k, name in enumerate(("ants", "bees", "cats")):
            target = folder / split / name
            target.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 90, size=(8, 8, 3)) + np.eye(3)[k] * 150
                Image.fromarray(pixels.astype(np.uint8)).save(target / f"{i}.png")
    return folder


def test_a_folder_of_images_is_trained_on_and_its_place_stored_nowhere(photographs, trained, reference, tmp_path):
    options = {"dataset": f"folder:{photographs}", "epochs": 2, "images_per_class": 8, "test_images_per_class": 3}
    configs = experiment("fig2", "smoke", **options)
    name = configs[0].data.dataset
    assert name.startswith("folder:my-photos@") and (configs[0].data.num_majority, configs[0].data.ratio) == (1, 10.0)
    frame = ensure_runs(configs)
    assert set(frame["dataset"]) == {"folder:my-photos"} and set(frame["K_A"]) == {1}
    run = load_run(configs[0])
    assert run.provenance["facts"]["class_names"] == ["ants", "bees", "cats"]
    assert run.arrays["counts"].tolist() == [8, 1, 1]
    assert captions.stand_ins(configs) == {} and scale_of(configs) == "toy"
    said = captions.describe_runs(configs)
    assert "the image folder my-photos with K_A=1 of 3 classes, R=10 (n_A=8, n_B=1, in fact R=8, " in said
    runs.export_reference(configs, "photos")

    written = [p for root in (paths.runs(), reference) for p in root.rglob("*") if p.is_file()]
    assert len(written) > 10
    for path in written:
        content = path.read_bytes()
        for place in (str(tmp_path), "secret-place", os.environ["NCLIB_DATA"]):
            assert place.encode() not in content, path
            assert place == str(tmp_path) or place not in path.name

    moved = photographs.rename(tmp_path / "my photos")  # the same images elsewhere are the same runs
    again = experiment("fig2", "smoke", **options | {"dataset": f"folder:{moved}"})
    assert [run_id(c) for c in again] == [run_id(c) for c in configs]
    ensure_runs(again)
    assert len(trained) == 2


def test_a_folder_that_is_not_there_is_refused_before_any_training(trained, tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        experiment("table1", "smoke", dataset=f"folder:{tmp_path / 'nowhere'}")
    assert not trained


def test_foreign_kinds_of_runs_are_refused():
    with pytest.raises(ConfigError, match=r"unknown kind of run 'classifyer'.*Did you mean 'classifier'"):
        jobs.train_run(json.dumps({"kind": "classifyer"}), str(Path("runs")))


def test_threads_are_refused_as_an_executor():
    with (
        concurrent.futures.ThreadPoolExecutor(1) as threads,
        pytest.raises(ConfigError, match="cannot share a process"),
    ):
        ensure_runs([_config()], executor=threads)


# ---- equal compute


def test_the_compute_of_an_equilibrium_follows_from_its_measured_steps():
    config = _config("deq", epochs=2, n_max=20)
    ensure_runs([config])
    steps = load_run(config).history.query("split == 'steps'").groupby("metric")["value"].mean()
    blocks = network_costs.compute_in_blocks(config)
    assert 3 * blocks == pytest.approx(steps["solver_steps"] + steps["backward_steps"] + 3)
    with pytest.raises(ConfigError, match="'deq' run"):
        network_costs.compute_in_blocks(_config("explicit"))
    with pytest.raises(ConfigError, match="another cost than a solve"):
        network_costs.compute_in_blocks(config.replace(model=REVERSIBLE))


# ---- the grids of the main paper


def test_a_table_runs_no_images_twice():
    """With 20 images R = 50 and R = 100 leave one image to a minority class: the same images."""
    ratios = [run.data.ratio for run in experiment("table3", "smoke") if run.model.kind == "deq"]
    assert ratios == [10, 50]
    quick = {(run.data.dataset, run.data.ratio) for run in experiment("table3", "quick")}
    assert quick == {("digits", 10), ("digits", 50), ("digits", 100), ("digit_pairs", 10), ("digit_pairs", 50)}


@pytest.mark.parametrize(("table", "num_majority"), [("table2", 3), ("table4", 7)])
def test_quick_leaves_the_hundred_classes_out_except_for_half_of_them(table, num_majority):
    runs = experiment(table, "quick")
    assert {run.data.dataset for run in runs} == {"digits"}
    assert {run.data.num_majority for run in runs} == {num_majority}
    assert {run.data.num_majority for run in experiment(table, "paper") if run.data.dataset == "cifar100"} == {
        10 * num_majority
    }


def test_controls_share_images_and_encoder_and_differ_in_the_last_block():
    runs = [run for run in experiment("controls", "quick") if run.seed == 0]
    assert [run.model.kind for run in runs] == [
        "explicit", "deq", "explicit_matched", "weight_tied", "explicit_flops"
    ]  # fmt: skip
    assert len({(run.data, run.train, run.model.width) for run in runs}) == 1


def test_the_cell_stands_beside_both_arms_in_every_cell_of_the_tables():
    runs = experiment("equilibrium_or_cell", "quick")
    arms = {}
    for run in runs:
        arms.setdefault((run.data, run.train, run.seed), []).append(run.model.kind)
    assert {tuple(kinds) for kinds in arms.values()} == {("explicit", "deq", "explicit_matched")}
    assert [run for run in runs if run.model.kind != "explicit_matched"] == experiment("scorecard", "quick")
    ids = experiments.runs_of("quick")("equilibrium_or_cell")
    assert ids == {run_id(run) for run in runs}
    assert {run_id(run) for run in experiment("controls", "quick") if run.model.kind == "explicit_matched"} <= ids


@pytest.mark.slow
def test_subsets_and_seeds_vary_one_thing_at_a_time():
    runs = [run for run in experiment("seeds_and_subsets", "quick") if run.model.kind == "deq"]
    whole = [run for run in runs if run.data.subset_seed is None and run.data.majority == "first"]
    weights_alone = [run for run in runs if run.data.subset_seed == 0]
    assert [run.seed for run in whole] == [0, 1, 2] and [run.seed for run in weights_alone] == [1, 2]
    first = make_split(whole[0].data, whole[0].seed)
    for run in weights_alone:
        assert torch.equal(make_split(run.data, run.seed).train_indices, first.train_indices)
    assert [run.seed for run in runs if run.data.majority == "random"] == [0, 1, 2]
