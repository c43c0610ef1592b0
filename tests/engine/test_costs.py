"""Estimates follow the finished runs of each kind, and the time left follows the runs that finish."""

import hashlib
import itertools
import json
import math
import random

import pytest

from companion.neural_collapse.solver_sweep import SolverSweepConfig
from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig, run_id
from nclib.engine import costs, runs
from nclib.engine.costs import CostModel, Forecast, estimate_gpu_gib, makespan
from nclib.engine.store import DamageWarning, default_store


def _config(kind="explicit", seed=0, epochs=2, n_max=20, width=4, batch_size=16):
    train = TrainConfig(epochs=epochs, batch_size=batch_size, lr=0.05, log_every=1)
    images = DataConfig(n_max=n_max, test_per_class=5)
    return RunConfig(data=images, model=ModelConfig(kind=kind, width=width), train=train, seed=seed)


SIZES = [{"epochs": e, "width": w, "n_max": n} for e, w, n in itertools.product((2, 8), (4, 32, 64), (20, 100))]


def test_each_kind_is_scaled_by_the_median_of_its_finished_runs_whatever_the_outliers():
    built_in, factors = CostModel(), {"explicit": 0.3, "deq": 8.0}
    done = [(_config(kind, **size), factors[kind] * built_in.seconds(_config(kind, **size)))
            for kind in factors for size in SIZES]  # fmt: skip
    spoilt = [*done, (_config(epochs=8, width=64), 0.01), (_config("deq"), 900.0), (_config(), 900.0)]
    for known in (done, spoilt):
        model = CostModel.fit(known)
        for config, seconds in done:
            assert model.seconds(config) == pytest.approx(seconds)


def test_a_kind_that_has_not_finished_yet_goes_by_the_speed_of_the_others():
    built_in = CostModel()
    model = CostModel.fit((_config(**size), 5 * built_in.seconds(_config(**size))) for size in SIZES)
    for unseen in (_config("deq"), SolverSweepConfig(base=_config("deq"))):
        assert model.seconds(unseen) == pytest.approx(5 * built_in.seconds(unseen))
    few = CostModel.fit([(_config("deq", seed=s), 7 * built_in.seconds(_config("deq"))) for s in (0, 1)])
    assert few.ratios == {} and few.seconds(_config()) == pytest.approx(7 * built_in.seconds(_config()))
    assert CostModel.fit([]) == built_in and CostModel.fit([(_config(), 0.0)]) == built_in


def test_a_run_that_is_mostly_start_up_says_nothing_of_others():
    tiny, built_in = _config(epochs=1, n_max=2), CostModel()
    assert CostModel.fit([(tiny, 1.9)]).seconds(_config(epochs=100)) == built_in.seconds(_config(epochs=100))
    other = SolverSweepConfig(base=_config("deq"))
    assert CostModel.fit([(other, 900.0)]).seconds(_config()) == built_in.seconds(_config()), "of another kind"


def test_makespan_is_between_its_bounds_and_exact_where_it_is_known():
    assert makespan([3, 3, 2, 2, 2], 2) == 7 and makespan([], 4) == 0 and makespan([5], 0) == 5
    assert makespan([1, 1, 1, 9], 2) == 10 and makespan([9, 1, 1, 1], 2) == 9
    draw = random.Random(0)
    for workers in (1, 3, 8):
        seconds = [draw.expovariate(1) for _ in range(40)]
        low = max(sum(seconds) / workers, max(seconds))
        longest_first = makespan(sorted(seconds, reverse=True), workers)
        assert low - 1e-9 <= longest_first <= 4 / 3 * low + 1e-9  # Graham's bound, with low for the optimum


def test_a_forecast_learns_from_the_runs_that_finish(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(costs.time, "monotonic", lambda: clock[0])
    wanted = {run_id(config): config for config in (_config(seed=seed) for seed in range(8))}
    forecast = Forecast(wanted)
    assert forecast.model == CostModel() and len(forecast.order()) == 8
    for number, run in enumerate(wanted, 1):  # each takes 10 seconds, two at a time
        clock[0] += 5
        forecast.done(run, 10.0)
        left = forecast.remaining(dict.fromkeys(list(wanted)[:number], 1.0), 2)
        if number >= 3:
            assert left == pytest.approx(10.0 * -(-(8 - number) // 2), rel=0.05)
    forecast.close()
    clock[0] += 1000  # what it took does not move any more
    assert forecast.as_dict() == {"runs": 8, "workers": 2, "seconds": 40.0}
    assert forecast.text() == "trained 8 runs in 40 s"
    forecast.close(not_trained=3)
    assert forecast.text().startswith("trained 5 of 8 runs in ")


def test_longest_first():
    wanted = {run_id(config): config for config in (_config(epochs=e) for e in (2, 8, 4))}
    assert [wanted[run].train.epochs for run in Forecast(wanted).order()] == [8, 4, 2]


def test_urgent_runs_come_first_and_the_longest_of_them_before_the_others():
    wanted = {run_id(config): config for config in (_config(epochs=e) for e in (2, 8, 4, 6, 5))}
    two, eight, four, six, five = wanted
    order = Forecast(wanted, urgency={two: 1, five: 0, four: 1}).order()
    assert order == [five, four, two, eight, six]


def test_each_run_is_told_of_once_it_is_stored_and_first_those_that_were():
    configs = [_config(seed=seed, width=2, n_max=6, epochs=1) for seed in range(3)]
    runs.train_missing(configs[1:2])
    told, ids = [], [run_id(config) for config in configs]
    store = default_store()
    runs.train_missing(configs, stored=lambda run: told.append((run, store.has(run))), urgency={ids[2]: 0})
    assert told == [(ids[1], True), (ids[2], True), (ids[0], True)]


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
    assert estimate_gpu_gib(SolverSweepConfig(base=_config("deq"))) == estimate_gpu_gib(_config("deq"))
    papers = DataConfig(dataset="cifar10")
    full = RunConfig(data=papers, model=ModelConfig(width=64), train=TrainConfig(batch_size=128))
    assert 2.0 < estimate_gpu_gib(full) < 6.0
