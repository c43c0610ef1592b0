"""Protocol 3 on simulated runs: power, false positives, and what may not be analysed."""

import importlib.util
import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from nclib import experiment, pairs, paths
from nclib.compare import interval
from nclib.config import run_id
from nclib.models import build_model
from nclib.papers import docs_tables
from nclib.papers.neural_collapse import accuracy_tables, collapse_tables, protocol2, protocol3
from nclib.provenance import processor_seconds
from nclib.store import ReferenceStore, StoredRun, reference_store

ROOT = Path(__file__).resolve().parents[3]
JPEG = "folder:cifar10-jpeg@ef1101d4a992"
CIFAR100 = "cifar100"
IMAGES = {
    JPEG: {"classes": 10, "per_class": 5000, "size": [32, 32], "test": [1000, 1000]},
    "folder:cifar100@fcbadf139f9d": {
        "classes": 100,
        "per_class": 500,
        "size": [32, 32],
        "test": [100, 100],
    },
}
SPREAD = {"nc2_etf_distance": 0.026, "nc3_self_duality": 0.035}
"""Standard deviation over seeds of DEQ / ResNet-18, pooled over protocol 2's settings."""
DETECTABLE = {"nc2_etf_distance": -0.053, "nc3_self_duality": -0.071}
"""Log ratios that five seeds find in 90 of 100 cases."""
ALL_THREE = ("explicit", "explicit_matched", "deq")


def simulated(settings, models, seeds, ratios, generator, spread=0.01):
    """Runs whose metrics are exp(ratio) times those of ResNet-18, with this spread over seeds."""
    rows = []
    for seed in seeds:
        for k_a, r in settings:
            for model in models:
                facts = {
                    "run_id": f"sim-KA{k_a}-R{r}-{model}-s{seed}-0",
                    "dataset": "sim",
                    "K_A": k_a,
                    "R": r,
                }
                facts |= {"model": model, "seed": seed}
                for epoch in (20, 40):
                    noise = generator.normal(0, spread, size=8)
                    base = np.exp(ratios.get(model, 0.0) + noise)
                    values = {
                        ("train", "accuracy_balanced"): 0.995,
                        ("train", "accuracy_train_prior"): 0.9995,
                    }
                    values |= {
                        ("steps", "loss"): 0.002,
                        ("test", "accuracy_balanced"): 0.4 + noise[0] / 100,
                    }
                    values["train", "nc2_etf_distance"] = 0.8 * base[1]
                    values["train", "nc3_self_duality"] = 0.7 * base[2]
                    for place, name in enumerate(
                        ("paper_eq13_uncentred", "paper_eq14_uncentred", "nc1_pinv")
                    ):
                        values["train", name] = base[3 + place]
                    values["train", "nc1_trace_ratio"] = base[6]
                    for (split, metric), value in values.items():
                        row = {
                            **facts,
                            "epoch": epoch,
                            "split": split,
                            "metric": metric,
                            "value": value,
                        }
                        rows.append(row)
    return pd.DataFrame(rows)


def records(frame, kinds=None, precision="bfloat16"):
    """Provenance of simulated runs; kinds maps a model to its processor."""
    found = {}
    for run, model in frame[["run_id", "model"]].drop_duplicates().itertuples(index=False):
        cpu, unit = (kinds or {}).get(model, ("Xeon", "AMX"))
        provenance = {"cpu": cpu, "facts": {}} | ({} if unit is None else {"bfloat16": unit})
        found[run] = {"config": {"train": {"precision": precision}}, "provenance": provenance}
    return found


def block(ratios, seeds=range(10, 15), generator=None):
    settings = [(float(k_a), 100.0) for k_a in protocol2.TENTHS]
    return simulated(settings, ALL_THREE, seeds, ratios, generator or np.random.default_rng(0))


def shares(effects, spread, seeds, repeats=400, rng=1):
    """How often each word comes out, of independent normal log ratios."""
    generator, words = np.random.default_rng(rng), []
    for _ in range(repeats):
        draws = [
            generator.normal(effects[metric], spread[metric], seeds) for metric in protocol2.PRIMARY
        ]
        words.append(protocol2.joint([interval(values) for values in draws]))
    return pd.Series(words).value_counts(normalize=True)


NOTHING = dict.fromkeys(SPREAD, 0.0)


def test_five_seeds_find_the_effects_that_the_page_states():
    for metric in SPREAD:
        alone = dict.fromkeys(SPREAD, -1.0) | {metric: DETECTABLE[metric]}
        assert 0.86 < shares(alone, SPREAD, 5)["supported"] < 0.97
    assert shares(DETECTABLE, SPREAD, 5)["supported"] > 0.77


def test_without_an_effect_no_direction_is_claimed_too_often():
    found = shares(NOTHING, SPREAD, 5)
    assert found.get("supported", 0) <= 0.05
    assert found.get("contradicted", 0) <= 0.09  # two intervals, each above 0 in 2.5 of 100 cases
    assert found["equal"] > 0.84  # 90 of 100, less four standard errors of 400 simulations


def test_three_seeds_find_a_fifth():
    assert shares(dict.fromkeys(SPREAD, np.log(0.8)), SPREAD, 3)["supported"] > 0.9


def test_a_lower_deq_supports_the_equilibrium():
    found = protocol3.analyse_block(frame := block({"deq": -0.2}), records(frame))
    assert (found.word, found.seeds) == ("supported", (10, 11, 12, 13, 14))
    assert set(found.tests["verdict"]) == {"supported"}
    shares_left = found.estimates[found.estimates["what"].str.startswith("share")]
    assert np.allclose(shares_left["mean"], 1, atol=0.1), (
        "here all of the difference is the equilibrium's"
    )


def test_a_block_that_does_it_all_is_equal():
    ratios = {"deq": -0.2, "explicit_matched": -0.2}
    found = protocol3.analyse_block(frame := block(ratios), records(frame))
    assert found.word == "equal"
    shares_left = found.estimates[found.estimates["what"].str.startswith("share")]
    assert np.allclose(shares_left["mean"], 0, atol=0.1)


def test_a_missing_run_or_a_diverged_one_takes_its_seed_out():
    frame = block({"deq": -0.2})
    lacking = frame[frame["run_id"] != "sim-KA5.0-R100.0-explicit_matched-s12-0"]
    with pytest.raises(protocol3.TooEarly, match="4 of 5 seeds"):
        protocol3.analyse_block(lacking, records(frame))
    assert protocol3.analyse_block(lacking, records(frame), "no time").seeds == (10, 11, 13, 14)
    bad = (frame["run_id"] == "sim-KA7.0-R100.0-deq-s10-0") & (
        frame["metric"] == "accuracy_train_prior"
    )
    diverged = frame.assign(value=frame["value"].mask(bad, 0.3))
    assert protocol3.analyse_block(diverged, records(frame), "no time").seeds == (11, 12, 13, 14)


def test_two_seeds_are_described_without_a_word():
    frame = block({"deq": -0.2}, seeds=range(10, 12))
    assert protocol3.analyse_block(frame, records(frame), "no time").word == "described"


def test_runs_in_two_precisions_are_not_compared():
    frame = block({"deq": -0.2})
    mixed = records(frame) | records(frame[frame["model"] == "deq"], precision="float32")
    with pytest.raises(ValueError, match="bfloat16 and in float32"):
        protocol3.analyse_block(frame, mixed)


def test_pairs_on_two_kinds_of_processor_are_told_and_unknown_is_no_kind():
    frame = block({"deq": -0.2})
    one = protocol3.processor_pairs(frame, records(frame))
    assert one["one kind"].all() and len(one) == 15
    for kinds in ({"deq": ("Xeon", "none")}, {model: ("Xeon", None) for model in ALL_THREE}):
        told = protocol3.processor_pairs(frame, records(frame, kinds))
        assert not told["one kind"].any()


def test_cifar100_is_judged_at_100_and_its_accuracy_over_both_ratios():
    generator = np.random.default_rng(2)
    settings = [(50.0, 100.0), (50.0, 10.0)]
    frame = simulated(settings, ("explicit", "deq"), range(30, 33), {"deq": -0.3}, generator)
    balanced = simulated(
        [(np.nan, 1.0)], ("explicit", "deq"), range(30, 33), {"deq": 0.3}, generator
    )
    found = protocol3.analyse_hundred(
        pd.concat([frame, balanced]), records(frame, precision="float32")
    )
    assert found.word == "supported" and found.tests["what"].iloc[2].startswith("accuracy_balanced")
    assert set(found.tests["seeds"]) == {3}
    assert found.estimates["what"].str.startswith("balanced").sum() == 5


def test_longer_runs_are_judged_at_the_end_and_by_their_rise():
    frame = simulated(
        [(5.0, 100.0)], ALL_THREE, range(20, 23), {"deq": -0.3}, np.random.default_rng(3)
    )
    rising = (
        (frame["metric"] == "nc3_self_duality")
        & (frame["model"] == "explicit")
        & (frame["epoch"] == 40)
    )
    frame = frame.assign(value=frame["value"].mask(rising, frame["value"] * 2))
    found = protocol3.analyse_longer(frame, records(frame, precision="float32"))
    assert found.word == "supported"
    rise = found.tests.iloc[2]
    assert rise["verdict"] == "supported" and rise["mean"] == pytest.approx(-np.log(2), abs=0.1)


def test_runs_on_another_processor_are_compared_at_one_epoch():
    frame = block({}, seeds=[10])
    last = frame["epoch"] == 40
    again = frame.assign(value=frame["value"].mask(last, 1.1 * frame["value"]))
    table = protocol3.moved(again, frame)
    assert len(table) == frame["run_id"].nunique()
    assert np.allclose(table[list(protocol3.MOVED)], np.log(1.1))
    assert np.allclose(protocol3.moved(again, frame, epoch=20)[list(protocol3.MOVED)], 0)


def test_every_kind_of_processor_is_named_once(tmp_path, monkeypatch):
    """A further bridge beside the tracked ones: the runs of one of them, 2 % higher everywhere."""
    tracked = protocol3.bridges()
    assert "another" not in set(tracked["unit"])
    of_one = tracked[tracked["unit"] == "AVX-512 BF16"]
    reference = paths.reference()
    shutil.copytree(reference / "protocol-2", tmp_path / "protocol-2")
    shutil.copytree(reference / "bridge", tmp_path / "bridge")
    again = pd.read_csv(reference / "bridge" / "avx512-bf16.csv.xz")
    again = again.assign(value=1.02 * again["value"])
    again.to_csv(tmp_path / "bridge" / "other.csv.xz", index=False)
    (tmp_path / "bridge" / "other.json").write_text('{"bfloat16": "another"}')
    monkeypatch.setattr(paths, "reference", lambda: tmp_path)
    both = protocol3.bridges()
    other = both[both["unit"] == "another"]
    difference = other[list(protocol3.MOVED)].to_numpy() - of_one[list(protocol3.MOVED)]
    assert len(both) == len(tracked) + len(of_one) and np.allclose(difference, np.log(1.02))


def test_runs_are_those_of_the_page():
    matched = protocol3.block_runs(10, JPEG)
    assert [run.data.num_majority for run in matched] == [3, 5, 7]
    assert {run.model.kind for run in matched} == {"explicit_matched"}
    tracked = {run_id(run) for run in protocol2.of_seed(10, JPEG)}
    assert {run_id(run) for run in protocol3.block_runs(10, JPEG, ("explicit", "deq"))} == tracked
    hundred = protocol3.hundred_runs(30, CIFAR100, 100.0)
    assert {(run.data.num_majority, run.data.n_max, run.train.precision) for run in hundred} == {
        (50, None, "float32")
    }
    longer = protocol3.longer_runs(20, JPEG)
    assert [run.model.kind for run in longer] == list(ALL_THREE)
    assert {(run.train.epochs, run.train.precision, run.train.log_every) for run in longer} == {
        (120, "float32", 5)
    }


def test_a_diverged_seed_is_replaced_by_the_next_with_all_its_networks(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path))
    experiment = protocol3.EXPERIMENTS["E1"]
    folder = tmp_path / "sealed" / experiment.collection
    folder.mkdir(parents=True)
    (folder / "diverged.json").write_text(
        f'{{"{run_id(protocol3.block_runs(12, JPEG)[1])}": "loss"}}'
    )
    waiting = protocol3._waiting(experiment, JPEG, 0.1)
    seeds = [run.seed for run in waiting]
    assert sorted(set(seeds)) == [10, 11, 13, 14, 15]
    assert seeds.count(15) == 9 and seeds.count(14) == 3


def test_the_pilot_ended_as_the_page_says():
    """At least 95 % training accuracy of both networks keeps the learning rate of 0.1."""
    store = ReferenceStore(ROOT / "results" / "sealed")
    ends = {}
    minutes = {}
    for run, record in protocol3._listed(store.root / "protocol-3-pilot").items():
        history = store.open(run).history
        assert not protocol3.has_diverged(history) and record["config"]["train"]["lr"] == 0.1
        is_last = (history["epoch"] == 40) & (history["split"] == "train")
        last = history[is_last].set_index("metric")["value"]
        network = record["config"]["model"]["kind"]
        ends[network] = last
        minutes[network] = processor_seconds(record["provenance"]) / 60
    resnet = ends["explicit"]
    deq = ends["deq"]
    assert min(resnet["accuracy_train_prior"], deq["accuracy_train_prior"]) >= 0.95
    assert deq["accuracy_minority"] == 0
    said = (
        f"ResNet-18 ends at {100 * resnet['accuracy_train_prior']:.1f} % training accuracy and the "
        f"DEQ at {100 * deq['accuracy_train_prior']:.1f} %, neither diverged, so E2 uses 0.1. "
        "The errors are almost all on minority classes: of their 250 training images ResNet-18 "
        f"classifies {100 * resnet['accuracy_minority']:.0f} % correctly, the DEQ none. "
        f"{minutes['explicit']:.0f} and {minutes['deq']:.0f} CPU-minutes"
    )
    assert said in (ROOT / "docs" / "protocol-3.md").read_text(encoding="utf-8")


def runs_there(name):
    """Configurations and provenance of an experiment's finished runs, sealed or tracked."""
    collection = protocol3.EXPERIMENTS[name].collection
    sealed = protocol3._listed(ROOT / "results" / "sealed" / collection)
    return sealed | protocol3._listed(ROOT / "results" / "reference" / collection)


def test_the_page_says_how_many_runs_are_there():
    page = (ROOT / "docs" / "protocol-3.md").read_text(encoding="utf-8")
    block = runs_there("E1")
    hundred = {}
    for run, record in runs_there("E2").items():
        if record["config"]["data"].get("ratio") in (100.0, 10.0):
            hundred[run] = record
    for planned, runs in ((15, block), (12, hundred)):
        minutes = [processor_seconds(record["provenance"]) / 60 for record in runs.values()]
        assert f"{len(runs)} of {planned} runs" in page
        assert f"{min(minutes):.0f} to {max(minutes):.0f} CPU-minutes each" in page


@pytest.mark.parametrize("name", ["E1", "E2", "E3"])
def test_the_method_page_has_the_word_of_each_analysis(name):
    found = protocol3.standing(name).found
    outcome = "not analysed yet" if found is None else f"**{found.word}**"
    lines = (ROOT / "docs" / "method.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if f"({name})" in line]
    said = row.rsplit("|", 2)[1]
    assert said.strip().startswith(outcome)
    if found is not None:
        tests = found.tests.set_index("what")
        for short, metric in zip(("NC2", "NC3"), protocol2.PRIMARY, strict=True):
            ends = 100 * np.expm1(tests.loc[metric, ["mean", "low", "high"]].astype(float))
            change = collapse_tables.percent_text(*ends, len(found.seeds)).partition(" (")[0]
            assert f"{short} {change}" in said


@pytest.fixture(scope="module")
def by_rounding():
    path = ROOT / "recipes" / "bfloat16_by_rounding.py"
    spec = importlib.util.spec_from_file_location("bfloat16_by_rounding", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_convolutions_by_rounding_round_what_autocast_rounds(by_rounding):
    layer = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    images = torch.randn(2, 3, 6, 6, requires_grad=True)
    with (
        torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
        by_rounding.RoundedConvolutions(),
    ):
        result = layer(images)
    rounded = nn.functional.conv2d(
        images.bfloat16().float(), layer.weight.bfloat16().float(), padding=1
    )
    assert result.dtype == torch.bfloat16 and torch.equal(result, rounded.bfloat16())
    result.float().square().sum().backward()
    for gradient in (images.grad, layer.weight.grad):
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, gradient.bfloat16().float())
    with by_rounding.RoundedConvolutions():
        assert torch.equal(layer(images), nn.functional.conv2d(images, layer.weight, padding=1))


@pytest.mark.slow
def test_rounding_is_as_close_to_exact_sums_as_bfloat16_of_torch(by_rounding):
    """The check that the page reports, on the encoder of E1."""
    model = build_model(protocol3.block_runs(12, JPEG)[0].model, 10, 3, 12)
    images = torch.randn(128, 3, 32, 32, generator=torch.Generator().manual_seed(12))
    labels = torch.arange(128) % 10

    class ExactSums(by_rounding.RoundedConvolutions):
        sums = torch.float64

    def gradient(context, half=True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half, cache_enabled=False), context:
            output = model(images)
        nn.functional.cross_entropy(output.logits, labels).backward()
        return torch.cat([weight.grad.flatten() for weight in model.encoder.parameters()])

    exact = gradient(ExactSums())
    off = {
        "rounding": gradient(by_rounding.RoundedConvolutions()),
        "torch": gradient(nullcontext()),
        "float32": gradient(nullcontext(), half=False),
    }
    off = {name: float((found - exact).norm() / exact.norm()) for name, found in off.items()}
    assert off["rounding"] < 1.2 * off["torch"]
    assert off["rounding"] < 0.7 * off["float32"]


def test_no_page_reads_sealed_runs():
    assert not any("sealed" in str(path) for path in reference_store().root.glob("*"))


# --- runs on disk ---------------------------------------------------------------------------------


@pytest.fixture
def tracked(reference):
    """Reference results without any run, in which the data sets are known."""
    (reference / "known").mkdir(parents=True)
    (reference / "known" / "datasets.json").write_text(json.dumps(IMAGES))
    protocol3.standing.cache_clear()
    yield ReferenceStore(reference)
    protocol3.standing.cache_clear()


LOWER = {"explicit": 1.0, "explicit_matched": 0.9, "deq": 0.7}
"""NC2 and NC3 of simulated runs, against those of ResNet-18."""


def made(config, generator):
    """A finished run as a store hands it out, with a history in which all fall and ResNet-18 turns
    back."""
    factor = LOWER[config.model.kind]
    rows = []
    for epoch in (1, *range(5, config.train.epochs + 1, 5)):
        done = epoch / config.train.epochs
        noise = np.exp(generator.normal(0, 0.01, size=3))
        back = 0.5 * max(done - 0.5, 0) * (config.model.kind == "explicit")
        values = {
            "nc2_etf_distance": (1 - 0.6 * done + back) * factor * noise[0],
            "nc3_self_duality": (0.9 - 0.5 * done + back) * factor * noise[1],
            "accuracy_balanced": min(1.0, 0.5 + 0.6 * done * factor),
            "accuracy_train_prior": min(1.0, 0.6 + 0.45 * done),
        }
        for name in ("paper_eq13_uncentred", "paper_eq14_uncentred", "nc1_pinv"):
            values[name] = noise[2]
        values["nc1_trace_ratio"] = noise[2]
        rows += [(epoch, "train", metric, value) for metric, value in values.items()]
        rows.append((epoch, "steps", "loss", 1 - 0.9 * done))
        for group in ("balanced", "majority", "minority"):
            rows.append((epoch, "test", f"accuracy_{group}", 0.4 * noise[0]))
    history = pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])
    provenance = {"cpu": "Xeon", "bfloat16": "AMX", "facts": {}, "profile": config.profile}
    means = generator.normal(size=(10, 12)) * factor
    arrays = {"class_means": means, "classifier": means + 0.1, "counts": np.full(10, 50)}
    files = {"history.csv": history, "provenance.json": provenance, "arrays.npz": arrays}
    return StoredRun(run_id(config), config.canonical(), tuple(files), files.__getitem__)


def add(store, collection, configs, generator=None):
    generator = generator or np.random.default_rng(0)
    store.add(collection, [made(config, generator) for config in configs])


def runs_of(name, seeds, images):
    experiment = protocol3.EXPERIMENTS[name]
    return [run for seed in seeds for run in experiment.runs(seed, images, 0.1)]


def test_an_experiment_without_runs_says_so(tracked):
    standing = protocol3.standing("E3")
    assert (standing.trained, standing.planned, standing.frame) == (0, 3, None)
    assert str(standing) == "E3: 0 of 3 seeds are trained; nothing of them is plotted or tested yet"
    assert protocol3.lines("E3") == [] and protocol3.hundred_beside(()) == []


def test_sealed_runs_are_counted_and_nothing_else(tracked, isolated):
    of_protocol2 = [run for seed in range(10, 15) for run in protocol2.of_seed(seed, JPEG)]
    add(tracked, "protocol-2", of_protocol2)
    sealed = ReferenceStore(isolated / "results" / "sealed")
    add(sealed, "protocol-3-block", runs_of("E1", [10, 11], JPEG)[:5])  # seed 11 lacks a run
    standing = protocol3.standing("E1")
    assert str(standing).startswith("E1: 1 of 5 seeds is trained; nothing")
    assert standing.frame is None and standing.found is None and protocol3.lines("E1") == []
    assert not set(sealed.ids()) & set(reference_store().ids())


def test_the_block_is_analysed_and_drawn_once_all_seeds_are_tracked(tracked):
    seeds = range(10, 15)
    add(tracked, "protocol-2", [run for seed in seeds for run in protocol2.of_seed(seed, JPEG)])
    add(tracked, "protocol-3-block", runs_of("E1", seeds, JPEG)[:-1])
    assert protocol3.standing("E1").found is None, "the last run is missing, and no reason is given"
    add(tracked, "protocol-3-block", runs_of("E1", seeds, JPEG))
    protocol3.standing.cache_clear()
    standing = protocol3.standing("E1")
    kinds = "15 of 15 pairs are from one known kind of processor"
    assert str(standing) == f"E1: 5 of 5 seeds are trained; supported; {kinds}"
    drawn = protocol3.lines("E1")
    assert [line.tested for line in drawn] == [False, False, False, True, False]
    mean = drawn[3]
    compared = pairs(mean.frame, "nc2_etf_distance", relative=True, against=mean.against)
    assert compared.mean_difference.mean == pytest.approx(standing.found.tests["mean"].iloc[0])
    assert compared.settings == 3 and compared.mean_difference.n == 5


def test_two_tracked_seeds_are_described(tracked, monkeypatch):
    monkeypatch.setitem(protocol3.REASONS, "E3", "no time")
    add(tracked, "protocol-3-longer", runs_of("E3", [20, 21], JPEG))
    standing = protocol3.standing("E3")
    assert str(standing) == "E3: 2 of 3 seeds are trained; described"
    assert set(standing.found.tests["verdict"]) == {"described"}
    assert standing.found.estimates["what"].str.startswith("distance to SELI").sum() == 2


def test_cifar100_stands_in_its_column_once_it_is_analysed(tracked):
    cifar100 = "folder:cifar100@fcbadf139f9d"
    table3 = experiment("table3", "full", dataset=JPEG)
    add(tracked, "protocol-3-cifar100", runs_of("E2", [30, 31], cifar100))
    assert protocol3.hundred_beside(table3) == [], "two of three seeds, and no reason"
    add(tracked, "protocol-3-cifar100", runs_of("E2", [32], cifar100))
    add(tracked, "protocol-3-cifar100", runs_of("E2-balanced", [30], cifar100))
    add(tracked, "protocol-3-cifar100", runs_of("E2-tables", [30], cifar100))
    protocol3.standing.cache_clear()
    beside = protocol3.hundred_beside(table3)
    cells = {(config.data.num_majority, config.data.ratio) for config in beside}
    assert cells == {(50, 100.0), (50, 10.0), (50, 50.0)} and len(beside) == 6 + 6 + 2
    assert set(map(run_id, beside)) <= set(reference_store().ids())
    table4 = protocol3.hundred_beside(experiment("table4", "full", dataset=JPEG))
    assert {config.data.num_majority for config in table4} == {70}
    assert protocol3.hundred_beside(experiment("table1", "full", dataset=JPEG)) == []
    other = experiment("table3", "full", dataset=JPEG, recipe="accuracy")
    assert protocol3.hundred_beside(other) == [], "trained otherwise"
    both = experiment("table3", "full", dataset=JPEG, hundred_dataset=cifar100)
    assert protocol3.hundred_beside(both) == [], "the user's own column"
    estimates = protocol3.standing("E2").found.estimates
    table = protocol3.results([protocol3.standing("E2"), protocol3.standing("E3")])
    assert set(table["experiment"]) == {"E2"} and len(table) == 3 + len(estimates)
    change = 100 * np.expm1(protocol3.standing("E2").found.tests["mean"].iloc[0])
    first = table.iloc[0]
    assert (first["what"], first["unit"]) == ("NC2, centred", "%")
    assert first["change"] == pytest.approx(change) and first["low"] < change < first["high"]
    accuracy = table.iloc[2]
    assert accuracy["what"].startswith("accuracy, last ten") and accuracy["unit"] == "points"
    assert (table["verdict"].iloc[3:] == "reported").all()
    assert (table["remark"].iloc[3:] == "estimated").all() and set(table["scale"]) == {"reduced"}
    assert not estimates["what"].str.startswith("balanced").any(), "one seed of three"
    shown = docs_tables.protocol3_results().splitlines()
    word = protocol3.standing("E2").found.word
    assert f"| E2 | both primary metrics |  | 3 | **{word}** |" in shown
    assert sum(line.startswith("| E2 |") for line in shown) == 1 + len(table)
    assert "| E3 | both primary metrics |  |  | *not analysed yet* |" in shown


def test_rows_of_cifar100_are_estimated_in_the_tables(tracked):
    cifar100 = "folder:cifar100@fcbadf139f9d"
    add(tracked, "protocol-3-cifar100", runs_of("E2", [30, 31, 32], cifar100))
    beside = protocol3.hundred_beside(experiment("table3", "full", dataset=JPEG))
    frame = reference_store().frame(map(run_id, beside))
    printed = accuracy_tables.published(3)
    stands_for = {"folder:cifar100": "cifar100"}
    table = accuracy_tables.accuracy_table(frame, printed, stands_for, "reduced")
    table = protocol3.estimated(table, beside)
    ours = table[table["seeds"] > 0]
    assert len(ours) == 6 and set(ours["verdict"]) == {"reported"}
    assert set(ours["remark"]) == {"protocol 3: estimated"}
    assert ours["explicit_printed"].notna().all() and set(ours["K_A"]) == {50}
    assert (table["verdict"] == "not run").sum() == 12
