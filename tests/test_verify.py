"""`nclib verify`: what it must find, what it must not call broken, and what it leaves out."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from nclib import cli, verify
from nclib.config import RunConfig, run_id
from nclib.runs import Result
from nclib.store import ReferenceStore, default_store, reference_store

ROOT = Path(__file__).resolve().parents[1] / "results" / "reference"
SOUND = "sound: the reference is reproduced"


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A project without reference results; what a test stores lies here."""
    monkeypatch.setenv("NCLIB_ROOT", str(tmp_path))


def command(*arguments):
    result = CliRunner().invoke(cli.app, ["verify", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def history(**finals):
    """Two epochs, the last one first; `finals` are its values, of both splits."""
    values = {
        "accuracy_balanced": 0.8,
        "loss": 0.5,
        "nc1_trace_ratio": 0.4,
        "nc2_equinorm": 0.3,
    } | finals
    rows = [(1, split, metric, 0.5) for split in ("test", "train") for metric in values]
    rows += [(2, split, *item) for split in ("test", "train") for item in values.items()]
    return pd.DataFrame(rows[::-1], columns=["epoch", "split", "metric", "value"])


def store_pair(here, reference, config=None):
    """One configuration with these final values, stored here and as the reference."""
    config = config or RunConfig(model={"width": 2})
    store, run = default_store(), run_id(config)
    shutil.rmtree(store.root / run, ignore_errors=True)
    store.save(config, Result({"history": history(**reference)}), {"profile": "quick"})
    reference_store().add("quick", [store.open(run)])
    shutil.rmtree(store.root / run, ignore_errors=True)
    store.save(config, Result({"history": history(**here)}), {"profile": "quick"})


def store_seeds(here, reference, kind="explicit", seeds=8):
    for seed in range(seeds):
        store_pair(here, reference, RunConfig(model={"width": 2, "kind": kind}, seed=seed))


def test_without_common_runs_there_is_nothing_to_compare():
    default_store().save(RunConfig(), Result({"history": history()}), {})
    result = command()
    assert result.exit_code == 0 and "nothing to judge" in result.stdout


def test_equal_runs_are_sound():
    store_seeds({}, {}, seeds=6)
    result = command()
    assert result.exit_code == 0 and SOUND in result.stdout
    assert "6 runs stored here and in the reference, 6 of them equal" in result.stdout


def test_a_small_error_of_all_runs_means_a_broken_install():
    store_seeds({"accuracy_balanced": 0.79}, {"accuracy_balanced": 0.80})
    result = command()
    assert result.exit_code == 1 and "broken install" in result.stdout


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_number_lost_in_one_seed_means_a_broken_install(lost):
    store_seeds({}, {}, seeds=8)
    assert command().exit_code == 0
    store_pair({"nc1_trace_ratio": lost}, {}, RunConfig(model={"width": 2}, seed=3))
    *_, table = verify.compare_with_reference()
    assert set(table.loc[~table["ok"], "metric"]) == {"nc1_trace_ratio"}
    result = command()
    assert result.exit_code == 1 and "broken install" in result.stdout


COLLECTIONS = ("quick", "cifar10-jpeg-lite", "mnist-png-lite")


@pytest.fixture(scope="module")
def equal():
    """The classifiers of three reference collections beside themselves: in others a planted swap might cancel."""
    store = ReferenceStore(ROOT)
    named = [
        run for name in COLLECTIONS for run in json.loads((ROOT / name / "runs.json").read_text())
    ]
    runs = [run for run in map(store.open, sorted(named)) if run.config["kind"] == "classifier"]
    return pd.concat(
        [verify.pair(run, run).assign(setting=run.run_id.rsplit("-s", 1)[0]) for run in runs],
        ignore_index=True,
    )


def replicate(both, seed, share=0.6):
    """The runs once more: in logs or points as far off as `share` of the spread over seeds."""
    generator = np.random.default_rng(seed)
    accuracy = both["metric"].isin(verify.ACCURACIES)
    floors = both["metric"].map(verify.FLOORS).fillna(0.0)
    values = both["reference"].where(accuracy, np.log(both["reference"] + floors))
    spreads = (
        values.groupby([both[name] for name in ("setting", "split", "metric")])
        .transform("std")
        .fillna(0.0)
    )
    moved = values + share * spreads * generator.standard_normal(len(both))
    return both.assign(here=moved.clip(upper=1.0).where(accuracy, np.exp(moved) - floors))


def missed(both):
    """Metrics of the mean shifts that are not ok."""
    shifts = verify.mean_shifts(both)
    return set(shifts.loc[~shifts["ok"], "metric"])


def change(both, rows, how):
    here = both["here"].copy()
    here[rows] = how(here[rows])
    return both.assign(here=here)


def test_the_reference_agrees_with_itself(equal):
    shifts = verify.mean_shifts(equal)
    assert shifts["ok"].all() and (shifts["shift"] == 0).all() and len(shifts) == 16
    assert set(shifts["split"]) == {"train", "test"} and set(shifts["arm"]) == {"deq", "other"}


@pytest.mark.parametrize("seed", range(2))
def test_a_sound_replicate_is_not_called_broken(equal, seed):
    again = replicate(equal, seed)
    assert (again["here"] != equal["here"]).mean() > 0.5
    assert not missed(again)


@pytest.mark.parametrize("arms", [["deq", "other"], ["deq"]])
@pytest.mark.parametrize(
    ("named", "how"),
    [
        ("accuracy_balanced", lambda v: v - 0.02),
        ("nc", lambda v: 1.2 * v),
        ("loss", lambda v: 1.25 * v),
    ],
)
def test_a_small_shift_of_all_runs_is_found(equal, arms, named, how):
    again = replicate(equal, 0)
    rows = again["metric"].str.startswith(named) & again["arm"].isin(arms)
    broken = change(again, rows, how)
    assert missed(broken) and missed(broken) <= set(again.loc[rows, "metric"])
    found = verify.mean_shifts(broken)
    assert set(found.loc[~found["ok"], "arm"]) == set(arms)


def test_the_bound_of_a_mean_shift_is_the_one_stated():
    """One comparison of 6 runs, d = ±0.1 in turn: s_d = 0.1 √(6/5); t at 1 − 0.0025 with 5 degrees of freedom."""
    frame = pd.DataFrame(
        {"here": 0.5 + np.array([0.1, -0.1] * 3), "reference": 0.5, "metric": "accuracy_balanced"}
    )
    (row,) = verify.mean_shifts(frame.assign(split="test", arm="deq")).itertuples()
    assert row.shift == pytest.approx(0.0, abs=1e-15) and row.ok
    assert row.allowed == pytest.approx(4.7733 * 0.1 * math.sqrt(6 / 5) / math.sqrt(6), rel=1e-4)
    assert verify.FALSE_ALARMS == 0.005  # on which the quantile rests
