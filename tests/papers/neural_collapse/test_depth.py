"""Looks at z_T: states against the network's own, values against closed forms, verdicts by their rules."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from companion.neural_collapse import depth
from companion.neural_collapse.depth import SIGNALS, DepthConfig
from nclib import comparison, training
from nclib.config import RunConfig, run_id
from nclib.engine.store import default_store

BLOCKS = {
    "deq": {"groups": 2},
    "explicit": {},
    "explicit_matched": {"groups": 2},
    "weight_tied": {"groups": 2, "unroll": 3},
    "explicit_flops": {"groups": 2, "num_blocks": 6},
}


def _base(kind="deq", seed=0, **model):
    images = {"n_max": 9, "test_per_class": 3, "imbalance": "step", "num_majority": 3, "ratio": 3.0}
    model, train = {"kind": kind, "width": 2} | BLOCKS[kind] | model, {"epochs": 2, "batch_size": 16, "lr": 0.05}
    return RunConfig(data=images, model=model, train=train, seed=seed, profile="smoke")


BASES = {kind: _base(kind) for kind in BLOCKS}


RUNS = [*BASES.values(), *(DepthConfig(base=base) for base in BASES.values())]


def _values(rows, **chosen):
    for name, value in chosen.items():
        rows = rows[rows[name] == value]
    return rows.set_index("metric")["value"]


@pytest.mark.parametrize(
    ("kind", "last"), [("explicit", 1), ("explicit_matched", 1), ("weight_tied", 3), ("explicit_flops", 6)]
)
def test_after_all_its_blocks_a_state_is_what_the_network_itself_reads(frame, kind, last):
    rows = depth.depth_rows(frame, "depth").query(f"model == '{kind}'")
    assert sorted(rows["epoch"].unique()) == [*range(last + 1)]
    own = frame.query(f"model == '{kind}' and epoch == 2 and split == 'train'").set_index("metric")["value"]
    end, start = (_values(rows, split="train", epoch=t) for t in (last, 0))
    for metric in ("loss", "accuracy_minority", "nc1_trace_ratio", "nc2_etf_distance", "paper_eq14_uncentred"):
        assert end[metric] == pytest.approx(own[metric], rel=1e-5)
    assert end["loss"] != pytest.approx(start["loss"], rel=1e-3)


def test_an_equilibrium_is_found_again(frame):
    noted = _values(depth.depth_rows(frame, "noted"), model="deq", split="train")
    again = _values(depth.depth_rows(frame, "solved"), split="train")
    assert again["loss"] == pytest.approx(noted["loss"], rel=1e-6)
    own = frame.query("model == 'deq' and epoch == 2 and split == 'train'").set_index("metric")["value"]
    assert again["nc1_trace_ratio"] == pytest.approx(own["nc1_trace_ratio"], rel=1e-5)
    assert len(depth.depth_rows(frame, "noted").query("metric == 'start_distance' and model == 'deq'")) == 2


def test_states_distances_and_residuals_are_those_of_the_cell_applied_by_hand(results, frame):
    base = BASES["deq"]
    weights = default_store().open(run_id(base)).weights
    with training.arithmetic(base.train, torch.device("cpu")), torch.no_grad():
        model, split, loaders = training.reopen(base, weights, torch.device("cpu"))
        ((images, labels),) = loaders["test"].in_order()
        x = model.eval().encoder(images)
        solved, solution = model.transform(x)
        once = model.block.cell(x, x)
        twice = model.block.cell(once, x)
        features, wrong = once.mean((2, 3)), model(images).logits.argmax(1) != labels
        accuracy = (model.classifier(features).argmax(1) == labels)[split.minority[labels]]
    rows = depth.depth_rows(frame, "depth")
    assert _values(rows, model="deq", split="test", epoch=1)["accuracy_minority"] == pytest.approx(
        accuracy.double().mean().item()
    )
    found = _values(depth.depth_rows(frame, "solved"), split="test")
    for t, z in enumerate((x, once, twice)):
        far = (z - solved).flatten(1).norm(dim=1) / solved.flatten(1).norm(dim=1)
        assert found[f"distance_{t}"] == pytest.approx(far.mean().item(), rel=1e-4)
    residual = (twice - once).flatten(1).norm(dim=1) / twice.flatten(1).norm(dim=1)
    errors = _values(depth.depth_rows(frame, "error"))
    assert errors["wrong"] == wrong.sum() and errors["wrong"] + errors["right"] == 30
    assert errors["wrong_majority"] + errors["wrong_minority"] == errors["wrong"]
    assert errors["auroc_residual_1"] == pytest.approx(depth.auroc(residual, wrong), abs=0.02)
    assert errors["auroc_steps"] == pytest.approx(depth.auroc(solution.steps, wrong))


def test_rows_of_looks_are_never_taken_for_rows_of_runs(frame):
    assert len(comparison.by_run(frame, "loss", "train")) == len(BLOCKS)
    assert len(comparison.terminal_phase(frame)) == len(BLOCKS) and len(comparison.solver_audit(frame)) == 1


def test_auroc_is_the_share_of_pairs_in_order():
    score = torch.tensor([1.0, 2.0, 3.0, 4.0])
    wrong = torch.tensor([False, False, True, True])
    assert depth.auroc(score, wrong) == 1 and depth.auroc(-score, wrong) == 0
    assert depth.auroc(torch.ones(4), wrong) == 0.5
    assert depth.auroc(score, torch.tensor([False, True, False, True])) == 0.75
    assert np.isnan(depth.auroc(score, torch.zeros(4, dtype=torch.bool)))
    generator = np.random.default_rng(0)
    score, wrong = generator.integers(0, 5, 200), generator.random(200) < 0.3
    assert depth.auroc(torch.tensor(score), torch.tensor(wrong)) == pytest.approx(roc_auc_score(wrong, score))


def _looks(changes, seeds=3):
    """Looks at two settings: test accuracy in percent of solved states, and by how much z_0, z_1, z_2 miss it."""
    rows = []
    for seed, ratio in itertools.product(range(seeds), (10.0, 50.0)):
        run = {"run_id": f"{ratio}-{seed}", "dataset": "digits", "model": "deq", "K_A": 3, "R": ratio, "seed": seed}
        solved = 0.9 + 0.01 * seed + ratio / 1e5
        for split, metric in (("test", "accuracy_balanced"), ("train", "nc1_trace_ratio")):
            rows.append(run | {"split": f"{split}/solved", "epoch": 20, "metric": metric, "value": solved})
            rows += [run | {"split": f"{split}/depth", "epoch": t, "metric": metric,
                            "value": solved + (change + 0.01 * seed * (t + 1)) / 100}
                     for t, change in enumerate(changes)]  # fmt: skip
        for metric in ("accuracy_train_prior", "accuracy_balanced"):
            rows.append(run | {"split": "train/solved", "epoch": 20, "metric": metric, "value": 1.0})
    return pd.DataFrame(rows)


def test_a_removed_solver_is_judged_within_one_point():
    table = depth.without_solver(_looks([-20.0, -0.5, 0.3]), "toy").set_index("claim")
    lead = "T = {}, all classes: accuracy, without the solver − with it, in points"
    said = table["verdict"][[lead.format(t) for t in (0, 1, 2)]]
    assert said.tolist() == ["reported", "equal", "equal"]
    assert table.iloc[0]["remark"] == "lower, where equality is claimed"
    assert table["remark"][said.index[1]] == "within 1 point" and table["settings_found"].max() == 2
    assert table["difference"][said.index[1]] == pytest.approx(-0.48)
    wide = depth.without_solver(_looks([0.0, -1.5, 1.5]), "toy").set_index("claim")
    assert wide["verdict"][said.index[1]] == "reported" and wide["verdict"][said.index[2]] == "reported"


def test_collapse_without_the_solver_is_relative_and_needs_the_terminal_phase():
    frame = _looks([9.0, 45.0, 0.9])
    table = depth.collapse_without_solver(frame, {"nc1_trace_ratio": "NC1"}, "toy").set_index("claim")
    changes = table["change"].round(0).tolist()
    assert changes == [10, 49, 1] and table["verdict"].iloc[2] == "equal"
    short = frame.assign(value=frame["value"].where(frame["metric"] != "accuracy_train_prior", 0.99))
    remarks = depth.collapse_without_solver(short, {"nc1_trace_ratio": "NC1"}, "toy")["remark"]
    assert set(remarks) == {"before the terminal phase"}


def _errors(wrong, auroc):
    """Wrong answers and AUROC of all signals, by setting (R) and seed, of classes without groups."""
    rows = []
    for (ratio, numbers), seed in itertools.product(wrong.items(), range(3)):
        run = {"run_id": f"{ratio}-{seed}", "dataset": "digits", "K_A": np.nan, "R": ratio, "seed": seed}
        found = {"wrong": numbers[seed], "right": 50}
        found |= {f"auroc_{signal}": auroc[ratio] + 0.01 * seed for signal in SIGNALS}
        rows += [run | {"split": "test/error", "epoch": 20, "metric": metric, "value": value}
                 for metric, value in found.items()]  # fmt: skip
        rows += [run | {"split": "test/error", "epoch": 20, "metric": f"{metric}_{group}", "value": np.nan}
                 for group in ("majority", "minority") for metric in found]  # fmt: skip
    return pd.DataFrame(rows)


def test_a_setting_without_errors_in_every_seed_does_not_count():
    frame = _errors({1.0: (9, 4, 9), 10.0: (5, 6, 7), 50.0: (20, 20, 20)}, {1.0: 0.1, 10.0: 0.7, 50.0: 0.9})
    table = depth.error_table(frame, "toy").set_index(["signal", "group"])
    row = table.loc[("residual", "all")]
    assert row["settings_found"] == 2 and row["auroc"] == pytest.approx(0.81) and row["verdict"] == "as claimed here"
    assert table.loc[("doubt", "minority"), ["settings_found", "verdict"]].tolist() == [0, "not run"]
