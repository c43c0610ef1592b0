"""Looks into solvers: solves against what the run noted, verdicts by their rules."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from nclib import compare, metrics, training
from nclib.compare import VERDICT_COLUMNS
from nclib.config import RunConfig, run_id
from nclib.papers.neural_collapse import solver_sweep
from nclib.papers.neural_collapse.solver_sweep import METHODS, PROBED, SolverSweepConfig, probe_rows
from nclib.runs import MissingRuns, ensure_runs
from nclib.store import default_store, load_run

STEP = {"imbalance": "step", "num_majority": 3, "ratio": 3.0}


def _base(kind="deq", seed=0, width=2, step=True, **model):
    if kind == "deq":
        model = {
            "groups": 2
        } | model  # 8 values each: a group of two would be a sign function, with no gradient
    images, train = {"n_max": 9, "test_per_class": 3}, {"epochs": 2, "batch_size": 16, "lr": 0.05}
    config = RunConfig(
        data=images, model={"kind": kind, "width": width} | model, train=train, seed=seed
    )
    return config.replace(data=STEP if step else {}, profile="smoke")


def _probe(base=None, **options):
    return SolverSweepConfig(base=base or _base(), **({"last_step": 6, "last_digit": 4} | options))


RUNS = [_base(), _probe()]


def test_a_probe_repeats_the_runs_last_evaluation(frame):
    assert set(PROBED) <= set(frame["metric"])
    same = solver_sweep.probe_consistency(
        frame, [*PROBED, "loss", "solver_steps", "accuracy_minority"]
    )
    assert len(same) == len(PROBED) + 3 and same["difference"].max() < 1e-6
    own = probe_rows(frame).query(
        "sweep == 'own' and split == 'test' and metric == 'accuracy_majority'"
    )
    final = compare.by_run(frame, "accuracy_majority", "test")
    assert own["value"].tolist() == final["value"].tolist() and own["at"].tolist() == [2]


def test_one_evaluation_allowed_returns_the_input_of_the_block(results, frame):
    config = _base()
    weights = default_store().open(run_id(config)).weights
    with training.arithmetic(config.train, torch.device("cpu")), torch.no_grad():
        model, split, loaders = training.reopen(config, weights, torch.device("cpu"))
        model.eval()
        (images, labels), *more = loaders["train"].in_order()
        x = model.encoder(images)
        once = model.block.cell(x, x)
    assert not more
    rows = probe_rows(frame).query("sweep == 'steps' and split == 'train'")
    for method in METHODS:
        found = rows[rows["method"] == method].pivot(index="at", columns="metric", values="value")
        for metric, function in {
            "nc1_trace_ratio": metrics.nc1_trace_ratio,
            "nc1_cdnv": metrics.nc1_cdnv,
        }.items():
            moments = metrics.class_moments(x.mean((2, 3)), labels, len(split.counts))
            assert found.loc[1, metric] == pytest.approx(function(moments), rel=1e-5)
        residual = (once - x).flatten(1).norm(dim=1) / once.flatten(1).norm(dim=1)
        assert found.loc[1, "solver_residual_max"] == pytest.approx(residual.max().item(), rel=1e-4)
        assert (found["solver_residual_median"].diff().dropna() <= 1e-9).all(), (
            "the best iterate so far"
        )
        assert (found["solver_converged"].diff().dropna() >= 0).all()


def test_rows_of_probes_are_never_taken_for_rows_of_runs(frame):
    assert len(compare.by_run(frame, "nc1_pinv", "train")) == 1
    assert len(compare.solver_audit(frame)) == 1 and len(compare.terminal_phase(frame)) == 1
    rows = probe_rows(frame)
    assert set(rows["sweep"]) == {"own", "steps", "tolerance", "epochs"}
    assert not rows.duplicated(["run_id", "split", "sweep", "method", "at", "metric"]).any()


@pytest.mark.slow
@pytest.mark.usefixtures("reference")
def test_a_probe_asked_for_alone_trains_its_base_once(trained):
    base, probe = _base(step=False), _probe(_base(step=False), last_step=2, last_digit=1)
    with pytest.raises(MissingRuns, match=run_id(probe)):
        ensure_runs([probe], train="never")
    assert not trained
    frame = ensure_runs([probe])
    assert trained == [run_id(base)] and set(frame["run_id"]) == {run_id(probe)}
    ensure_runs([base, probe])
    assert trained == [run_id(base)]
    assert load_run(probe).provenance["facts"] == {"base": run_id(base)}
    assert not frame["metric"].str.endswith("_minority").any(), "balanced: no groups"


def _frame(values, seeds=3):
    """Tidy rows from {(sweep, method, number, split, metric): value of each seed}."""
    return pd.DataFrame(
        [
            {
                "seed": seed,
                "split": f"{split}/{sweep}/{method}",
                "epoch": number,
                "metric": metric,
                "value": value,
            }
            for (sweep, method, number, split, metric), each in values.items()
            for seed, value in list(enumerate(each))[:seeds]
        ]
    )


def _way(start, once, end, digit_3=None):
    metric = "train", "nc"
    return {
        ("steps", "broyden", 1, *metric): start,
        ("steps", "broyden", 2, *metric): once,
        ("tolerance", "broyden", 3, *metric): end if digit_3 is None else digit_3,
        ("tolerance", "broyden", 6, *metric): end,
    }


@pytest.mark.parametrize(
    ("seeds", "verdicts"),
    [
        (3, [["lower", "toy", "nearer to collapse"], ["higher", "toy", "farther from collapse"]]),
        (2, [["reported", "toy", "2 seeds"]] * 2),
    ],
)
def test_collapse_inside_follows_its_rule(seeds, verdicts):
    frame = _frame(_way([1.0, 1.1, 0.9], [0.5, 0.61, 0.4], [0.9, 1.0, 0.81]), seeds)
    table = solver_sweep.collapse_inside(frame, ["nc"], "toy")
    assert table["way"].tolist() == [
        "start → one evaluation",
        "one evaluation → equilibrium",
        "start → equilibrium",
    ]
    if seeds == 3:
        np.testing.assert_allclose(table["change"], [-1.49 / 3, 1.2 / 3, -0.29 / 3])
        half = 4.302652729911275 * np.std([-0.5, -0.49, -0.5], ddof=1) / math.sqrt(3)
        assert table["half"].iloc[0] == pytest.approx(half)
    assert table[VERDICT_COLUMNS].to_numpy().tolist()[:2] == verdicts


@pytest.mark.parametrize(
    ("shift", "seeds", "verdict"),
    [
        (0.0, 3, ["equal", "enough"]),
        (0.09, 3, ["equal", "enough"]),
        (0.11, 3, ["reported", "below the spread over seeds"]),
        (1.01, 3, ["reported", "not enough"]),
        (0.0, 2, ["reported", "2 seeds"]),
    ],
)
def test_a_tolerance_is_judged_by_the_spread_over_seeds(shift, seeds, verdict):
    end = [1.0, 2.0, 3.0]  # standard deviation 1
    frame = _frame(_way(end, end, end, digit_3=[1.0, 2.0 - shift, 3.0]), seeds)
    row = solver_sweep.tolerance_effect(frame, ["nc"], "toy").iloc[0]
    assert row[["verdict", "remark"]].tolist() == verdict and row["change"] == pytest.approx(shift)
    if seeds == 3:
        assert row["share"] == pytest.approx(shift)


def test_minority_effect_follows_its_rule():
    def both(sweep, number, split, metric, majority, minority):
        groups = {"majority": majority, "minority": minority}
        return {
            (sweep, "broyden", number, split, f"{metric}_{group}"): values
            for group, values in groups.items()
        }

    values = both("own", 9, "train", "solver_converged", [1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    values |= both("own", 9, "test", "solver_converged", [1.0, 1.0, 0.99], [0.9, 0.91, 0.89])
    values |= both("own", 9, "train", "solver_steps", [6.0, 6.1, 6.2], [5.0, 5.1, 5.3])
    values |= both("own", 9, "test", "solver_steps", [6.0, 6.1, 6.2], [5.0, 7.1, 6.2])
    for epoch in (1, 2):
        values |= both(
            "epochs", epoch, "steps", "not_converged", [0.0] * 3, [0.02 * epoch, 0.04, 0.06]
        )
        values |= both("epochs", epoch, "steps", "skipped", [0.0] * 3, [0.0] * 3)
    table = solver_sweep.minority_effect(_frame(values), "toy")
    assert table["verdict"].tolist() == [
        "equal",
        "higher",
        "lower",
        "not significant",
        "higher",
        "equal",
    ]
    assert table["remark"].tolist() == [
        "no failures",
        "worse",
        "better",
        "",
        "worse",
        "no failures",
    ]
    assert table.loc[1, ["majority", "minority", "difference"]].tolist() == pytest.approx(
        [1 / 3, 10.0, 29 / 3]
    )
    assert table.loc[4, "minority"] == pytest.approx(100 * (0.03 + 0.04 + 0.06) / 3), (
        "mean over the steps"
    )
    assert set(solver_sweep.minority_effect(_frame(values, seeds=2), "toy")["remark"]) == {
        "2 seeds"
    }
