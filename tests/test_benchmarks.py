"""The measurements run, at tiny sizes; whether a machine is fast is no test."""

import importlib
import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from marks import slow

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "name", ["solver", "schedule", "reading", *slow("metrics", "training", "throughput", "engine")]
)
def test_each_script_measures_and_writes_nothing_when_quick(name, load, monkeypatch, tmp_path):
    monkeypatch.setattr("nclib.system.paths.reference", lambda: tmp_path)
    frame = load(f"bench_{name}").main(quick=True)
    assert len(frame) >= {"reading": 1, "engine": 2}.get(name, 4)
    assert frame.ratio.map(math.isfinite).all() and (frame.low <= frame.high).all()
    assert {"part", "what", "case", "ratio", "low", "high", "target", "note", "met"} <= set(frame)
    assert not list(tmp_path.iterdir())


def test_results_come_with_their_circumstances_and_a_picture(load, monkeypatch, tmp_path):
    common = load("common")
    monkeypatch.setattr("nclib.system.paths.reference", lambda: tmp_path)
    figures = [
        common.Figure("a", "b", f"B={ratio}", ratio, 0.4, 4.0, target)
        for ratio, target in ((0.5, 1.0), (1.5, 1.2), (3.0, None))
    ]
    common.finish("some", figures, False, {"fact": 1}, 0.0)
    stored = pd.read_csv(tmp_path / "bench" / "some.csv")
    assert stored.ratio.tolist() == [0.5, 1.5, 3.0] and [str(m) for m in stored.met[:2]] == ["True", "False"]
    record = json.loads((tmp_path / "bench" / "some.json").read_text())
    assert record["fact"] == 1 and set(stored.threads) == {record["threads"]}
    assert stored.versions.str.contains(f"torch {record['versions']['torch']}", regex=False).all()
    assert (tmp_path / "bench" / "core.png").stat().st_size > 10_000


def test_evaluations_are_counted_to_the_first_point_that_is_good_enough(load):
    bench = load("bench_solver")
    halve = lambda z: 0.5 * z + 1.0  # noqa: E731

    def iterate(f, size):
        z = torch.zeros(1, size).double()
        for _ in range(1000):
            z = f(z)

    # The residual at z_k = 2 − 2^(1−k) is about 2^−k / 2.
    assert bench.evaluations(iterate, halve, 2, 1e-6) == 20
    assert bench.evaluations(iterate, lambda z: z + 1.0, 2, 1e-6) == math.inf


def test_the_simulated_schedule_is_that_of_its_runs(load):
    bench = load("bench_schedule")
    runs = [bench.Run(seconds, 10) for seconds in (90.0, 50.0, 40.0, 30.0)]
    calm = bench.simulate(runs, 2, math.inf, 0)
    assert calm == (bench.START_SECONDS + 120.0, 0.0, 0)  # 90 + 30 beside 50 + 40
    rough = [bench.simulate(runs, 2, 60.0, seed) for seed in range(20)]
    fresh = [bench.simulate(runs, 2, 60.0, seed, checkpoints=False) for seed in range(20)]
    for outcome in rough:  # each death costs the wait, and less than an epoch, of which the longest is 9 s
        assert 0 <= outcome.lost - outcome.deaths * bench.RETURN_SECONDS <= outcome.deaths * 9.0
        assert outcome.makespan >= calm.makespan
    assert sum(outcome.deaths for outcome in rough) > 20
    assert sum(outcome.lost for outcome in fresh) > 2 * sum(outcome.lost for outcome in rough)
    served = bench.simulate([bench.Run(1.0, 1)] * 100, 100, math.inf, 0, per_task=1.0)
    assert served.makespan == bench.START_SECONDS + 100.0  # handed out one a second
