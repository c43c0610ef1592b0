"""The cost model hits what it was made from, and forecasts are scored by what happened."""

import hashlib
import itertools
import json
import math
import random

import pytest

from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig, run_id
from nclib.engine import costs, runs
from nclib.engine.costs import CostModel, Forecast, estimate_gpu_gib, makespan
from nclib.engine.store import DamageWarning, default_store
from nclib.papers.neural_collapse.probes import ProbeConfig


def _config(kind="explicit", seed=0, epochs=2, n_max=20, width=4, batch_size=16):
    train = TrainConfig(epochs=epochs, batch_size=batch_size, lr=0.05, log_every=1)
    images = DataConfig(n_max=n_max, test_per_class=5)
    return RunConfig(data=images, model=ModelConfig(kind=kind, width=width), train=train, seed=seed)


SIZES = [{"epochs": e, "width": w, "n_max": n} for e, w, n in itertools.product((2, 8), (4, 32, 64), (20, 100))]


def _seconds(config, per_batch, per_gmac):
    _, (batches, gmacs), _ = costs._features(config)
    return per_batch * batches + per_gmac * gmacs


def test_the_fit_finds_the_costs_of_batches_and_arithmetic_whatever_the_outliers():
    runs_done = [(_config(**size), _seconds(_config(**size), 0.003, 0.5)) for size in SIZES]
    spoilt = [*runs_done, (_config(epochs=8, width=64), 0.01), (_config(epochs=2), 900.0)]
    for known in (runs_done, spoilt):
        model = CostModel.fit(known)
        for size in SIZES:
            assert model.seconds(_config(**size)) == pytest.approx(_seconds(_config(**size), 0.003, 0.5), rel=0.1)
    assert model.runs == len(spoilt)


def test_a_kind_that_has_not_finished_yet_goes_by_the_speed_of_the_others():
    built_in = CostModel()
    model = CostModel.fit((_config(**size), 5 * built_in.seconds(_config(**size))) for size in SIZES)
    for unseen in (_config("deq"), ProbeConfig(base=_config("deq"))):
        assert model.seconds(unseen) == pytest.approx(5 * built_in.seconds(unseen))
    few = CostModel.fit([(_config("deq", seed=s), 7 * built_in.seconds(_config("deq"))) for s in (0, 1)])
    assert few.weights == {} and few.seconds(_config()) == pytest.approx(7 * built_in.seconds(_config()))
    assert CostModel.fit([]) == built_in and CostModel.fit([(_config(), 0.0)]) == built_in


def test_runs_of_one_size_leave_other_sizes_in_proportion():
    """Batches and arithmetic cannot be told apart then; neither may take all."""
    built_in, same = CostModel(), [(_config(seed=seed), 3.0) for seed in range(20)]
    model = CostModel.fit(same)
    assert model.seconds(_config()) == pytest.approx(3.0, rel=0.02)
    ratio = model.seconds(_config(width=64)) / model.seconds(_config())
    assert ratio == pytest.approx(built_in.seconds(_config(width=64)) / built_in.seconds(_config()), rel=0.1)


def test_makespan_is_between_its_bounds_and_exact_where_it_is_known():
    assert makespan([3, 3, 2, 2, 2], 2) == 7 and makespan([], 4) == 0 and makespan([5], 0) == 5
    assert makespan([1, 1, 1, 9], 2) == 10 and makespan([9, 1, 1, 1], 2) == 9
    draw = random.Random(0)
    for workers in (1, 3, 8):
        seconds = [draw.expovariate(1) for _ in range(40)]
        low = max(sum(seconds) / workers, max(seconds))
        longest_first = makespan(sorted(seconds, reverse=True), workers)
        assert low - 1e-9 <= longest_first <= 4 / 3 * low + 1e-9  # Graham's bound, with low for the optimum


def test_a_forecast_learns_and_is_scored(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(costs.time, "monotonic", lambda: clock[0])
    wanted = {run_id(config): config for config in (_config(seed=seed) for seed in range(8))}
    forecast = Forecast(wanted)
    assert forecast.model.runs == 0 and len(forecast.order()) == 8
    forecast.remaining({}, 2)
    for number, run in enumerate(wanted, 1):  # each takes 10 seconds, two at a time
        clock[0] += 5
        forecast.done(run, 10.0)
        left = forecast.remaining(dict.fromkeys(list(wanted)[:number], 1.0), 2)
        if number >= 3:
            assert left == pytest.approx(10.0 * -(-(8 - number) // 2), rel=0.05)
    forecast.close()
    clock[0] += 1000  # the verdict does not move any more
    facts = forecast.as_dict()
    assert (facts["runs"], facts["workers"], facts["seconds"], facts["fitted_to"]) == (8, 2, 40.0, 8)
    assert [note["elapsed"] for note in facts["forecasts"]] == [0.0, 10.0, 20.0, 30.0]
    assert [note["lasted"] for note in facts["forecasts"]] == [40.0, 30.0, 20.0, 10.0]
    assert facts["forecasts"][2]["remaining"] == pytest.approx(20.0, rel=0.05)
    assert forecast.text().startswith("trained 8 runs in 40 s; forecast at the start")
    assert "half way 20 s more, which took 20 s" in forecast.text()


def test_longest_first():
    wanted = {run_id(config): config for config in (_config(epochs=e) for e in (2, 8, 4))}
    assert [wanted[run].train.epochs for run in Forecast(wanted).order()] == [8, 4, 2]


def test_finished_runs_are_read_from_the_store_and_damaged_ones_are_no_evidence():
    configs = [_config(seed=seed, width=2, n_max=6, epochs=1) for seed in range(3)]
    assert runs.train_missing(configs).failures == {}
    store = default_store()
    found = runs.finished_runs(store)
    assert {run_id(config) for config, _ in found} == {run_id(config) for config in configs}
    assert all(seconds > 0 for _, seconds in found)
    assert len(runs.finished_runs(store, latest=2)) == 2
    folder = store.root / run_id(configs[0])
    record, sums = folder / "provenance.json", json.loads((folder / "DONE").read_text())
    content = json.loads(record.read_text())
    deep, infinite = "[" * 100_000 + "]" * 100_000, json.dumps(content | {"cost": {"wall_seconds": math.inf}})
    huge = json.dumps(content | {"cost": {"wall_seconds": "X"}}).replace('"X"', "1" + 400 * "0")
    elsewhere = json.dumps(content | {"device": {"type": "cuda"}})
    for damage in ("{", json.dumps(content | {"cost": None}), elsewhere, deep, huge, infinite):
        record.write_text(damage)
        with pytest.warns(DamageWarning, match=f"{folder.name}: provenance.json .*left out.*runs check"):
            assert len(runs.finished_runs(store)) == 2
    for written in (huge, infinite, elsewhere):  # as it was written, and still no evidence
        record.write_text(written)
        digest = hashlib.sha256(written.encode()).hexdigest()
        (folder / "DONE").write_text(json.dumps(sums | {"provenance.json": digest}))
        assert len(runs.finished_runs(store)) == 2
    plan = runs.plan([*configs, _config(seed=9, width=2, n_max=6, epochs=1)])
    taken = sorted(seconds for _, seconds in found)
    assert taken[0] * 0.5 <= plan["seconds"].iloc[-1] <= taken[-1] * 2  # seconds of this machine, not the constants


def test_gpu_memory_grows_with_everything_that_fills_it():
    small = estimate_gpu_gib(_config())
    assert 1.0 < small < 1.2
    for bigger in (_config(width=64), _config(batch_size=512), _config(n_max=170)):
        assert estimate_gpu_gib(bigger) > small
    assert estimate_gpu_gib(ProbeConfig(base=_config("deq"))) == estimate_gpu_gib(_config("deq"))
    papers = DataConfig(dataset="cifar10")
    full = RunConfig(data=papers, model=ModelConfig(width=64), train=TrainConfig(batch_size=128))
    assert 2.0 < estimate_gpu_gib(full) < 6.0
