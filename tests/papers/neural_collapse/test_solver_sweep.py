"""Looks into networks: counts against closed forms, solves against what the run noted, verdicts by their rules."""

import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from companion.neural_collapse import network_costs, solver_sweep
from companion.neural_collapse.solver_sweep import COLLAPSE, METHODS, SolverSweepConfig, probe_rows
from nclib import comparison, metrics, training
from nclib.config import (
    DataConfig,
    ModelConfig,
    RunConfig,
    SolverConfig,
    TrainConfig,
    run_id,
)
from nclib.engine import experiments, runs
from nclib.engine.reading import identity_columns
from nclib.engine.reference import load_run, reference_store
from nclib.engine.runs import MissingRuns, ensure_runs
from nclib.engine.store import default_store
from nclib.models import build_model, count_parameters
from nclib.publish import captions
from nclib.system import paths, words

STEP = {"imbalance": "step", "num_majority": 3, "ratio": 3.0}


def _base(kind="deq", seed=0, width=2, step=True, **model):
    if kind == "deq":
        model = {"groups": 2} | model  # 8 values each: a group of two would be a sign function, with no gradient
    return RunConfig(
        data=DataConfig(n_max=9, test_per_class=3, **(STEP if step else {})),
        model=ModelConfig(kind=kind, width=width, **model),
        train=TrainConfig(epochs=2, batch_size=16, lr=0.05),
        seed=seed,
        profile="smoke",
    )


def _probe(base=None, **options):
    return SolverSweepConfig(base=base or _base(), **({"last_step": 6, "last_digit": 4} | options))


def _images(count=3, side=16, channels=1):
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(0))


# ---- the parts of a network


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_the_papers_network_has_its_size(kind):
    model = build_model(ModelConfig(kind=kind), 10, 3)
    table = network_costs.layer_table(model, _images(1, 32, 3)).set_index("stage")
    before = table.loc[:"stage 4, first block"]
    assert before["parameters"].sum() == 6_448_192
    assert table["parameters"].sum() == count_parameters(model) == 11_173_952
    assert table.loc["last block", ["output", "parameters", "macs"]].tolist() == ["512×4×4", 4_720_640, 75_497_472]
    assert table["macs"].sum() == 555_422_720
    assert table["output"].tolist()[:5] == ["64×32×32", "64×32×32", "128×16×16", "256×8×8", "512×4×4"]
    assert table.loc[["pooling", "classifier"], "output"].tolist() == ["512", "10"]


def test_stages_have_their_closed_forms():
    """Two 3×3 convolutions a block, 1×1 where it changes width; two numbers a channel in each norm."""
    w, area = 3, 12 * 12
    table = network_costs.layer_table(build_model(ModelConfig(width=w), 5, 2), _images(2, 12, 2)).set_index("stage")
    assert table.loc["stem", ["parameters", "macs"]].tolist() == [9 * 2 * w + 2 * w, 9 * 2 * w * area]
    assert table.loc["stage 1", ["parameters", "macs"]].tolist() == [4 * 9 * w * w + 4 * 2 * w, 4 * 9 * w * w * area]
    c, quarter = 2 * w, area // 4
    first, second = (9 * w * c + 9 * c * c + w * c, 18 * c * c)
    assert table.loc["stage 2", ["parameters", "macs"]].tolist() == [
        first + second + 10 * c,
        (first + second) * quarter,
    ]
    assert table.loc["classifier", ["parameters", "macs"]].tolist() == [5 * 8 * w, 5 * 8 * w]


@pytest.mark.parametrize(
    "options", [{"kind": "explicit"}, {"kind": "weight_tied", "unroll": 3}, {"kind": "explicit_flops", "num_blocks": 2}]
)
def test_multiplications_are_those_that_torch_counts(options):
    model, images = build_model(ModelConfig(width=2, **options), 4, 1).eval(), _images(5)
    table = network_costs.layer_table(model, images)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    assert 2 * len(images) * (table["macs"] * table["evaluations"]).sum() == counter.get_total_flops()
    assert table["parameters"].sum() == count_parameters(model)
    assert table.set_index("stage").loc["last block", "evaluations"] == options.get("unroll", 1)


def test_evaluations_of_an_equilibrium_are_those_of_its_solve():
    model, images = build_model(ModelConfig(kind="deq", width=2), 4, 1).eval(), _images(7)
    with torch.no_grad():
        steps = model(images).solution.steps
    assert len(set(steps.tolist())) > 1  # rows leave at different times
    table = network_costs.layer_table(model, images).set_index("stage")
    assert table.loc["last block", "evaluations"] == pytest.approx(steps.double().mean().item())
    assert table.loc["last block", "macs"] == 18 * 16 * 16 * 4


def test_a_network_is_left_as_it_was():
    model = build_model(ModelConfig(kind="deq", width=2, feature_norm="batchnorm"), 4, 1).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    table = network_costs.layer_table(model, _images()).set_index("stage")
    assert table.loc["pooling", "parameters"] == 2 * 16
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


# ---- what a probe is


def test_a_probe_is_identified_by_its_base_and_its_options():
    probe = _probe(_base(seed=3))
    assert (probe.seed, probe.profile) == (3, "smoke")
    again = SolverSweepConfig.from_json(probe.model_dump_json())
    assert again == probe and run_id(again) == run_id(probe)
    assert run_id(probe) == run_id(_probe(_base(seed=3).replace(profile="quick"))), "the profile is a label"
    assert len({run_id(p) for p in (probe, _probe(), _probe(_base(seed=3), last_step=7), _probe(_base(width=3)))}) == 4
    assert identity_columns(json.loads(json.dumps(probe.canonical()))) == identity_columns(probe.base.canonical())


def test_settings_cover_every_method_and_the_runs_own():
    own = SolverConfig(method="broyden", tol=1e-2, max_steps=9, history=4)
    settings = list(_probe(_base(solver=own)).settings())
    assert settings[0] == ("own", 2, own)
    steps = [(s.method, n, s.max_steps, s.tol) for sweep, n, s in settings if sweep == "steps"]
    assert steps == [(m, n, n, 1e-4) for m in METHODS for n in (1, 2, 3, 4, 5, 6)]
    tolerances = [(s.method, n, s.max_steps, s.tol) for sweep, n, s in settings if sweep == "tolerance"]
    assert tolerances == [(m, n, 100, pytest.approx(10.0**-n)) for m in METHODS for n in (1, 2, 3, 4)]
    assert {s.history for _, _, s in settings if s.method == "broyden"} == {4}, "its own memory"


# ---- what a probe measures


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A results folder with one probed run."""
    folder = tmp_path_factory.mktemp("probed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_RESULTS", str(folder))
        ensure_runs([_base(), _probe()])
    return folder


@pytest.fixture
def probed(results, monkeypatch):
    monkeypatch.setenv("NCLIB_RESULTS", str(results))
    return ensure_runs([_base(), _probe()], train="never")


@pytest.fixture
def contracting(results, monkeypatch):
    """What a probe finds with a cell that contracts, so that all methods find its equilibria."""
    monkeypatch.setenv("NCLIB_RESULTS", str(results))
    config = _base()
    weights = dict(default_store().weights(run_id(config)))
    weights["block.cell.norm2.weight"] = 0.1 * weights["block.cell.norm2.weight"]
    classes = load_run(config).tables["classes"]
    history = solver_sweep.measure(_probe(config, last_step=12, last_digit=5), weights, classes, torch.device("cpu"))
    return probe_rows(history.assign(seed=0))


def test_a_probe_repeats_the_runs_last_evaluation(probed):
    assert set(COLLAPSE) <= set(probed["metric"])
    same = solver_sweep.probe_consistency(probed, [*COLLAPSE, "loss", "solver_steps", "accuracy_minority"])
    assert len(same) == len(COLLAPSE) + 3 and same["difference"].max() < 1e-6
    own = probe_rows(probed).query("sweep == 'own' and split == 'test' and metric == 'accuracy_majority'")
    final = comparison.by_run(probed, "accuracy_majority", "test")
    assert own["value"].tolist() == final["value"].tolist() and own["at"].tolist() == [2]


def test_one_evaluation_allowed_returns_the_input_of_the_block(results, probed):
    config = _base()
    weights = default_store().weights(run_id(config))
    with training.arithmetic(config.train, torch.device("cpu")), torch.no_grad():
        model, split, loaders = training.reopen(config, weights, torch.device("cpu"))
        model.eval()
        (images, labels), *more = loaders["train"].in_order()
        x = model.encoder(images)
        once = model.block.cell(x, x)
    assert not more
    rows = probe_rows(probed).query("sweep == 'steps' and split == 'train'")
    for method in METHODS:
        found = rows[rows["method"] == method].pivot(index="at", columns="metric", values="value")
        for metric, function in {"nc1_trace_ratio": metrics.nc1_trace_ratio, "nc1_cdnv": metrics.nc1_cdnv}.items():
            moments = metrics.class_moments(x.mean((2, 3)), labels, len(split.counts))
            assert found.loc[1, metric] == pytest.approx(function(moments), rel=1e-5)
        residual = torch.linalg.vector_norm((once - x).flatten(1), dim=1) / torch.linalg.vector_norm(
            once.flatten(1), dim=1
        )
        assert found.loc[1, "solver_residual_max"] == pytest.approx(residual.max().item(), rel=1e-4)
        assert (found["solver_residual_median"].diff().dropna() <= 1e-9).all(), "the best iterate so far"
        assert (found["solver_converged"].diff().dropna() >= 0).all()


def test_tolerances_are_met_and_methods_find_the_same_equilibrium(contracting):
    rows = contracting.query("sweep == 'tolerance' and split == 'train'")
    residuals = rows[rows["metric"] == "solver_residual_max"]
    assert (residuals["value"] <= residuals["at"]).all()
    assert (rows.loc[rows["metric"] == "solver_converged", "value"] == 1).all()
    finest = rows[rows["at"] == 1e-5].pivot(index="metric", columns="method", values="value")
    for metric in COLLAPSE:
        np.testing.assert_allclose(finest.loc[metric], finest.loc[metric, "broyden"], rtol=1e-3, atol=1e-6)
    coarse = rows[rows["at"] == 1e-3].pivot(index="metric", columns="method", values="value")
    own = contracting.query("sweep == 'own' and split == 'train'").set_index("metric")["value"]
    for metric in ("nc1_trace_ratio", "nc2_etf_distance", "nc3_self_duality", "loss"):
        assert own[metric] == pytest.approx(coarse.loc[metric, "broyden"], rel=1e-6)  # its tolerance is 1e-3
        assert own[metric] == pytest.approx(finest.loc[metric, "broyden"], rel=1e-2)
        assert own[metric] != finest.loc[metric, "broyden"]


def test_solved_within_few_evaluations_is_counted_at_the_runs_own_tolerance(contracting):
    steps = contracting.query("sweep == 'steps' and split == 'train' and method == 'fixed_point'")
    table = steps.pivot(index="at", columns="metric", values="value")
    own = _base().model.solver.tol
    assert ((table["solver_converged"] == 1) == (table["solver_residual_max"] <= own)).all()
    assert table["solver_converged"].iloc[-1] == 1 and table["solver_converged"].between(0.01, 0.99).any()
    beyond = table[table["solver_residual_median"] > own]
    assert len(beyond) and (beyond["solver_converged"] < 0.5).all()


def test_groups_of_classes_are_means_over_their_classes(results, probed):
    classes = load_run(_base()).tables["classes"]
    rows = probe_rows(probed).query("sweep == 'epochs' and split == 'steps' and at == 1")
    wanted = classes.query("epoch == 1 and split == 'steps' and metric == 'not_converged'").set_index("class")["value"]
    found = solver_sweep.probe_groups(rows, "not_converged").set_index("group")["value"]
    assert found["majority"] == pytest.approx(wanted[:3].mean()) and found["minority"] == pytest.approx(
        wanted[3:].mean()
    )
    own = probe_rows(probed).query("sweep == 'own' and split == 'test' and metric.str.startswith('solver_steps')")
    own = own.set_index("metric")["value"]
    final = classes.query("epoch == 2 and split == 'test' and metric == 'solver_steps'").set_index("class")["value"]
    assert own["solver_steps_minority"] == pytest.approx(final[3:].mean())
    assert 0.3 * own["solver_steps_majority"] + 0.7 * own["solver_steps_minority"] == pytest.approx(own["solver_steps"])


# ---- probes among other runs


def test_rows_of_probes_are_never_taken_for_rows_of_runs(probed):
    assert len(comparison.by_run(probed, "nc1_pinv", "train")) == 1
    assert len(comparison.solver_audit(probed)) == 1 and len(comparison.terminal_phase(probed)) == 1
    rows = probe_rows(probed)
    assert set(rows["split"]) == {"train", "test", "steps"} and set(rows["sweep"]) == {
        "own",
        "steps",
        "tolerance",
        "epochs",
    }
    assert set(rows.query("sweep == 'tolerance'")["at"]) == {0.1, 0.01, 0.001, 0.0001}
    assert not rows.duplicated(["run_id", "split", "sweep", "method", "at", "metric"]).any()
    assert probe_rows(probed[probed["split"] == "train"]).empty
    assert rows["K_A"].unique().tolist() == [3] and rows["model"].unique().tolist() == ["deq"]


def test_a_probe_asked_for_alone_trains_its_base_once(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "reference", lambda: tmp_path / "reference")
    trained, honest = [], training.train

    def counting(config, **options):
        trained.append(run_id(config))
        return honest(config, **options)

    monkeypatch.setattr(training, "train", counting)
    base, probe = _base(step=False), _probe(_base(step=False), last_step=2, last_digit=1)
    with pytest.raises(MissingRuns, match=run_id(probe)):
        ensure_runs([probe], train="never")
    assert not trained
    frame = ensure_runs([probe])
    assert trained == [run_id(base)] and set(frame["run_id"]) == {run_id(probe)}
    ensure_runs([base, probe])
    assert trained == [run_id(base)]
    plan = runs.plan([base, probe])
    assert plan["state"].tolist() == ["stored", "stored"] and (plan["seconds"] > 0).all()
    assert load_run(probe).provenance["facts"] == {"base": run_id(base)}
    assert not frame["metric"].str.endswith("_minority").any(), "balanced: no groups"
    with pytest.raises(ValueError, match="no minority"):
        solver_sweep.minority_effect(frame, "toy")

    collection = reference_store()
    collection.add("probes", [load_run(base), load_run(probe)])
    shutil.rmtree(paths.runs())
    again = ensure_runs([base, probe], train="never")
    order = ["split", "metric", "epoch"]
    theirs = again[again["run_id"] == run_id(probe)].sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(frame.sort_values(order, ignore_index=True), theirs, check_exact=True)


def test_the_experiment_probes_the_runs_of_another_notebook():
    configs = experiments.experiment("solver_and_collapse", "quick")
    runs, looks = configs[:3], configs[3:]
    assert [probe.base for probe in looks] == runs and {run.model.kind for run in runs} == {"deq"}
    assert {run_id(run) for run in runs} <= {run_id(run) for run in experiments.experiment("fig2", "quick")}
    assert captions.describe_runs(configs) == captions.describe_runs(runs)


# ---- verdicts


def _frame(values, seeds=3):
    """Tidy rows from {(sweep, method, number, split, metric): value of each seed}."""
    return pd.DataFrame(
        [
            {"seed": seed, "split": f"{split}/{sweep}/{method}", "epoch": number, "metric": metric, "value": value}
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
    assert table["way"].tolist() == ["start → one evaluation", "one evaluation → equilibrium", "start → equilibrium"]
    if seeds == 3:
        np.testing.assert_allclose(table["change"], [-1.49 / 3, 1.2 / 3, -0.29 / 3])
        half = 4.302652729911275 * np.std([-0.5, -0.49, -0.5], ddof=1) / math.sqrt(3)
        assert table["half"].iloc[0] == pytest.approx(half)
    assert table[words.JUDGED].to_numpy().tolist()[:2] == verdicts


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
    with pytest.raises(ValueError, match=r"no tolerance at 0\.01 by broyden"):
        solver_sweep.tolerance_effect(frame, ["nc"], "toy", tol=1e-2)


def test_minority_effect_follows_its_rule():
    def both(sweep, number, split, metric, majority, minority):
        groups = {"majority": majority, "minority": minority}
        return {(sweep, "broyden", number, split, f"{metric}_{group}"): values for group, values in groups.items()}

    values = both("own", 9, "train", "solver_converged", [1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    values |= both("own", 9, "test", "solver_converged", [1.0, 1.0, 0.99], [0.9, 0.91, 0.89])
    values |= both("own", 9, "train", "solver_steps", [6.0, 6.1, 6.2], [5.0, 5.1, 5.3])
    values |= both("own", 9, "test", "solver_steps", [6.0, 6.1, 6.2], [5.0, 7.1, 6.2])
    for epoch in (1, 2):
        values |= both("epochs", epoch, "steps", "not_converged", [0.0] * 3, [0.02 * epoch, 0.04, 0.06])
        values |= both("epochs", epoch, "steps", "skipped", [0.0] * 3, [0.0] * 3)
    table = solver_sweep.minority_effect(_frame(values), "toy")
    assert table[["verdict", "remark"]].to_numpy().tolist() == [
        ["equal", "no failures"],
        ["higher", "worse"],
        ["lower", "better"],
        ["not significant", ""],
        ["higher", "worse"],
        ["equal", "no failures"],
    ]
    assert table.loc[1, ["majority", "minority", "difference"]].tolist() == pytest.approx([1 / 3, 10.0, 29 / 3])
    assert table.loc[4, "minority"] == pytest.approx(100 * (0.03 + 0.04 + 0.06) / 3), "mean over the steps"
    assert set(solver_sweep.minority_effect(_frame(values, seeds=2), "toy")["remark"]) == {"2 seeds"}
