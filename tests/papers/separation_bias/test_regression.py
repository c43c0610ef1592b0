"""Small trainings: what is learned and by what, the audit, and the rules of the verdicts."""

import numpy as np
import pandas as pd
import pytest
import torch
from marks import slow

from nclib import compare, experiment, paths, runs
from nclib.config import run_id
from nclib.papers import certify
from nclib.papers import separation_bias as sb
from nclib.papers.separation_bias import claims, regression
from nclib.papers.separation_bias.claims import LEDGER
from nclib.papers.separation_bias.constructions import steep_target, tent_map
from nclib.papers.separation_bias.experiments import NOTEBOOKS, STEEP_DIMENSIONS
from nclib.papers.separation_bias.regression import RegressionConfig, RegressorConfig, TaskConfig

SOLVED = RegressorConfig(kind="deq", width=6, tol=1e-3, spread=1.0)
UNROLLED = RegressorConfig(kind="unrolled_deq", width=6, iterations=4, spread=0.5)
VERDICTS = [*certify.VERDICTS, *compare.VERDICTS]
FNN = RegressorConfig(kind="fnn", width=6, depth=3)
LINEAR = TaskConfig(name="boolean", target="linear", variables=4, coefficients=(1.0, 0.5, 0.0, 2.0))


def _config(task=None, model=FNN, steps=20, **options):
    return RegressionConfig(
        task=task or TaskConfig(name="sawtooth", level=1), model=model, steps=steps, lr=1e-2, **options
    )


# ---- tasks


def test_targets_are_the_functions_they_are_named_after():
    x, y = regression.Task(TaskConfig(name="sawtooth", level=3), 0).test
    np.testing.assert_allclose(y, tent_map((x[:, 0].double().numpy() + 1) / 2, 3), atol=1e-5)
    x, y = regression.Task(TaskConfig(name="steep", level=8), 0).test
    np.testing.assert_array_equal(y, steep_target(x[:, 0].numpy(), 8))
    assert (x < 2.0**-8).double().mean() > 0.1, "points where the target changes"
    x, y = regression.Task(LINEAR, 0).train
    np.testing.assert_array_equal(y, x[:, 0] + 0.5 * x[:, 1] + 2 * x[:, 3])
    signs = torch.tensor([[1.0, 1, -1], [-1, 1, 1]])
    values = {name: function(signs).tolist() for name, (function, _) in regression.BOOLEAN.items()}
    assert values == {"product": [1, -1], "majority": [1, 1], "abbe": [0.75, -3.75]}


@pytest.mark.parametrize(
    "task", [LINEAR, *(TaskConfig(name="boolean", target=t, variables=5) for t in regression.BOOLEAN)]
)
def test_the_unseen_is_never_trained_on(task):
    found = regression.Task(task, 0)
    others = {"linear": lambda x: x[:, 0] < 0, "abbe": lambda x: x[:, :3].prod(1) < 0}
    unseen = others.get(task.target, lambda x: (x[:, 0] < 0) & (x[:, 1] < 0))
    (x, y), (hidden, values) = found.train, found.test
    assert not unseen(x).any() and unseen(hidden).all() and (len(y), len(values)) == (4000, 2000)
    assert set(x.unique().tolist()) == {-1.0, 1.0}


def test_a_configuration_survives_json_with_its_identity():
    configs = dict.fromkeys(c for name in NOTEBOOKS for c in experiment(f"separation_bias/{name}", "quick", seeds=2))
    assert all(RegressionConfig(**config.model_dump(mode="json")) == config for config in configs)
    assert len({run_id(config) for config in configs}) == len(configs)


# ---- training and audit


@pytest.mark.parametrize("model", [FNN, *slow(SOLVED, UNROLLED)])
def test_training_learns_and_is_the_same_each_time(model):
    config = _config(model=model, steps=150, schedule="onecycle", clip=1.0)
    run, again = regression.train_regression(config), regression.train_regression(config)
    pd.testing.assert_frame_equal(run.tables["history"], again.tables["history"], check_exact=True)
    curve = run.tables["history"].query("split == 'test' and metric == 'mse'")["value"].to_numpy()
    assert curve[-1] < 0.3 * curve[0]
    assert run.arrays["features"].shape == (6,)


def test_the_audit_is_the_iteration_of_the_trained_cell():
    config = _config(model=UNROLLED, steps=30)
    run = regression.train_regression(config)
    model = UNROLLED.build(1, 0)
    model.load_state_dict(run.weights)
    x, y = (part[:1024] for part in regression.Task(config.task, 0).test)
    rows = run.tables["history"].query("split == 'iterations'").pivot(index="epoch", columns="metric", values="value")
    assert rows.index.max() == 300
    with torch.no_grad():
        assert rows["mse"][4] == pytest.approx(float((model(x).values - y).square().mean()), rel=1e-5)
        assert rows["residual"][4] == pytest.approx(float(model(x).solution.residual.mean()), rel=1e-4)


def test_a_solved_deq_is_an_equilibrium_and_a_wild_one_is_called_recurrent():
    configs = [_config(model=SOLVED), _config(model=UNROLLED), _config()]
    frame = runs.ensure_runs(configs)
    table = claims.regression_table(configs, frame)
    assert table["equilibrium"].tolist()[::2] == ["equilibrium", "feed-forward"]
    assert table["residual"][0] <= 1e-3 and np.isnan(table["residual"][2])
    at_end, at_300 = (frame["split"] == split for split in ("audit", "iterations"))
    for where in (at_end, at_300):
        wild = frame.assign(value=frame["value"].mask(where & (frame["metric"] == "residual"), 0.3))
        assert claims.regression_table(configs, wild)["equilibrium"][1] == "weight-tied recurrent"
    names = claims.arm_names(table.assign(equilibrium="weight-tied recurrent"))
    assert names["DEQ-6, free W, T = 4"] == "weight-tied RNN-6, free W, T = 4"


def test_the_synthetic_tone_has_its_harmonics():
    tone = sb.synthetic_tone(8000)
    power = np.abs(np.fft.rfft(tone)) ** 2
    near = sum(power[220 * h - 40 : 220 * h + 41].sum() for h in (1, 2, 3, 5, 8, 11))
    assert near > 0.99 * power.sum() and np.abs(tone).max() == 1


# ---- verdicts


def _rows(ours, theirs, arm="DEQ-40, free W, T = 10", equilibrium="equilibrium", task="sawtooth-2^3"):
    rivals = next(claim.rivals for claim in claims.CLAIMS if (claim.task, claim.arm) == (task, arm))
    rows = []
    for seed, pair in enumerate(zip(ours, theirs, strict=True)):
        for model, value in zip((arm, *rivals), (pair[0], pair[1], 2 * pair[1]), strict=True):
            what = equilibrium if model == arm else "feed-forward"
            numbers = {"mse": value, "flops": 1.0, "residual": np.nan, "residual_300": np.nan}
            rows.append({"task": task, "model": model, "seed": seed, "equilibrium": what, **numbers})
    return pd.DataFrame(rows)


OURS = "DEQ-40, ‖W‖ ≤ 0.95"
BETTER, WORSE = ([1e-4, 2e-4, 1.5e-4], [1e-2, 2e-2, 1.6e-2]), ([1e-2, 2e-2, 1.5e-2], [1e-4, 2e-4, 1.6e-4])


@pytest.mark.parametrize(
    ("rows", "verdict", "remark"),
    [
        (_rows(*BETTER), "as claimed here", ""),
        (_rows(*BETTER, equilibrium="weight-tied recurrent"), "as claimed here", "weight-tied recurrent network"),
        (_rows(*WORSE), "opposite here", ""),
        (_rows([1e-2, 1e-4, 1e-3], [1e-3, 1e-3, 1e-3]), "not significant", ""),
        (_rows([0.083, 0.084, 0.082], [0.084, 0.083, 0.083]), "reported", "no network here learns"),
        (_rows([1e-4, 2e-4], [1e-2, 2e-2]), "reported", "2 seeds"),
        (_rows(*BETTER, arm=OURS), "lower", "DEQ better"),
        (_rows(*WORSE, arm=OURS), "higher", "DEQ worse"),
        (_rows(WORSE[0], WORSE[0], arm=OURS), "equal", "same value"),
    ],
)
def test_statements_are_judged_and_what_is_beyond_the_paper_is_measured(rows, verdict, remark):
    (row,) = claims.trained_ledger(rows, "fig3").itertuples()
    ours = OURS in set(rows["model"])
    assert row.verdict == verdict and remark in row.remark and bool(row.remark) == bool(remark)
    assert ("our constraint" in row.remark) == ours and row.scale == "toy"
    assert (row.part, row.reading) == (("beyond the paper", "ours") if ours else ("statement", "as printed"))
    assert list(claims.trained_ledger(rows, "fig3").columns) == LEDGER


@pytest.mark.parametrize("task", ["f1", "f2"])
def test_three_seeds_of_f1_and_f2_get_no_verdict_and_eight_do(task):
    rows = _rows([1.0 + s / 9 for s in range(8)], [0.1] * 8, "DEQ-20, ‖W‖ ≤ 0.95", task=task)
    few, enough = (claims.trained_ledger(rows[rows["seed"] < n], "fig1").iloc[0] for n in (7, 8))
    assert few["verdict"] == "reported" and few["remark"].startswith("7 seeds")
    assert enough["verdict"] == "higher" and f"our {task}" in enough["claim"]


def test_the_exact_ledger_tells_what_holds_from_what_is_misprinted_and_what_is_ours():
    regions = sb.regions_table([1, 2, 5])
    ledger = sb.separation_ledger(
        regions=regions,
        networks=sb.random_fnn_table(5, [(3, 2)], draws=5),
        steep=sb.steep_table([6, 20], 0.05),
        trials=pd.concat([sb.flow_trials(1, signs) for signs in ("positive", "mixed")]),
        density=sb.density_table(5),
        gotu=sb.gotu_table(),
    )
    assert list(ledger.columns) == LEDGER and ledger["verdict"].str.split(" if ").str[0].isin(VERDICTS).all()
    statements = ledger[ledger["part"] == "statement"]
    assert statements["verdict"].value_counts()["typo"] == 1 and set(statements["verdict"]) == {"holds", "typo"}
    (typo,) = statements[statements["verdict"] == "typo"].itertuples()
    assert typo.place == "Theorem 3, rebuttal" and "|β_i|" in typo.remark and typo.certificate
    said = ledger.set_index("place")["verdict"]
    assert said["GOTU theorem"] == "holds if 0 < β_k < 2 f̂_k"
    assert said["Density"] == said["GOTU theorem, control"] == "reported"
    assert sb.separation_ledger(regions=regions.assign(regions=[2, 4, 31]))["verdict"].iloc[0] == "not shown"


def test_weights_are_judged_over_the_dimensions():
    same = {"mse": 1e-4, "rebalanced": 2.0}
    rows = [
        {"task": f"steep-d{d}", "model": model, "seed": seed, "largest": size, **same}
        for d in STEEP_DIMENSIONS
        for seed in range(3)
        for model, size in ((claims._LOOPS, 1 + d / 20), (claims._SCALED, 2.0**d / 64))
    ]
    table = pd.DataFrame(rows)
    ledger = sb.trained_ledger(table, "theorem2_steep")
    assert ledger["verdict"].tolist() == ["reported", "reported"] and set(ledger["part"]) == {"beyond the paper"}
    assert ledger["remark"].str.startswith("met in the mean of 3 seeds").all()
    far = sb.trained_ledger(table.assign(largest=2.0, mse=table["largest"]), "theorem2_steep")
    assert far["remark"].str.startswith("not met").all()


# ---- the tracked tables


def test_the_tracked_table_holds_nothing_against_wu_et_al_but_one_misprint():
    table = pd.read_csv(paths.reference() / "sister-papers/wu-verdicts-quick.csv", keep_default_na=False)
    assert list(table.columns) == LEDGER and table["verdict"].str.split(" if ").str[0].isin(VERDICTS).all()
    assert not table["verdict"].isin(["false", "contradicted", "vacuous", "proof gap"]).any()
    assert table.loc[table["verdict"] == "typo", "place"].tolist() == ["Theorem 3, rebuttal"]
    others = table[table["part"] != "statement"]
    assert not others["verdict"].isin([*compare.AT_TOY_SCALE, *compare.AT_TOY_SCALE.values(), "typo"]).any()
    trained = table[table["computed"].str.startswith("trained")]
    assert len(trained) == len(claims.CLAIMS) + 3 and set(trained["scale"]) == {"toy"}
    eight = trained.loc[trained["claim"].str.contains("our f[12]", regex=True), "computed"]
    assert len(eight) == 10 and set(eight) == {"trained, 8 seeds"}
