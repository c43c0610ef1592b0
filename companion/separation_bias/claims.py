"""What the trainings of this paper say: tables of finished runs, and the paper's claims judged from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.separation_bias import ledger
from companion.separation_bias.grids import MORE_SEEDS, STEEP_DIMENSIONS
from companion.separation_bias.regression import EQUILIBRIUM, LAST_ITERATION, RegressionConfig
from nclib.comparison import Verdict, interval, pairs, verdict
from nclib.config import run_id


def regression_table(configs: Sequence[RegressionConfig], frame: pd.DataFrame) -> pd.DataFrame:
    """One row a run: run_id, task, model (its label), kind, seed, adam_steps and the metrics of the finished network.

    Metrics are those of `train_regression` by their names, `mse` being that of the test points and `train_mse` of the
    training points; residual_300 and mse_300 are NaN for networks without iterations. `equilibrium` says what the
    network is: "equilibrium", "exact" (solved by substitution), "weight-tied recurrent" (residual above
    `EQUILIBRIUM` after the trained steps or after 300) or "feed-forward".

    Parameters
    ----------
    configs : of the runs wanted, in the order of the rows
    frame : tidy frame that holds them
    """
    by_run = dict(tuple(frame.groupby("run_id")))
    rows = []
    for config in dict.fromkeys(configs):
        history = by_run[run_id(config)]
        last = history.drop_duplicates(["split", "metric"], keep="last").set_index(["split", "metric"])["value"]
        row = {"run_id": run_id(config), "task": config.task.label(), "model": config.model.label()}
        row |= {"kind": config.model.kind, "seed": config.seed, "adam_steps": config.steps}
        for (split, metric), value in last.items():
            if split != "iterations":
                row["train_mse" if (split, metric) == ("train", "mse") else metric] = value
        at_last = history[(history["split"] == "iterations") & (history["epoch"] == LAST_ITERATION)]
        row |= {f"{metric}_{LAST_ITERATION}": value for metric, value in at_last[["metric", "value"]].to_numpy()}
        row["equilibrium"] = _what_it_is(config.model.kind, row)
        rows.append(row)
    return pd.DataFrame(rows)


def arm_names(table: pd.DataFrame) -> dict[str, str]:
    """Names for figures, label → name: a DEQ that is not at equilibrium in every seed of these rows is called a
    weight-tied recurrent network."""
    recurrent = table.loc[table["equilibrium"] == "weight-tied recurrent", "model"].unique()
    return {
        label: label.replace("DEQ", "weight-tied RNN") if label in recurrent else label
        for label in table["model"].unique()
    }


def curve_rows(
    configs: Sequence[RegressionConfig], frame: pd.DataFrame, task: str, split: str = "test", metric: str = "mse"
) -> pd.DataFrame:
    """Values along a training, or along the iterations of trained cells (split "iterations"), of one task.

    Returns
    -------
    DataFrame with the columns model (name for figures, see `arm_names`), kind, seed, at and value
    """
    table = regression_table([config for config in configs if config.task.label() == task], frame)
    names = table["model"].map(arm_names(table))
    arms = table[["run_id", "kind"]].assign(model=pd.Categorical(names, names.unique()))
    rows = frame.loc[(frame["split"] == split) & (frame["metric"] == metric), ["run_id", "seed", "epoch", "value"]]
    found = arms.merge(rows.rename(columns={"epoch": "at"}), on="run_id")
    found = found.sort_values(["model", "seed", "at"], kind="stable", ignore_index=True)
    return found[["model", "kind", "seed", "at", "value"]].astype({"model": object})


def _what_it_is(kind: str, row: dict[str, Any]) -> str:
    if kind in ("fnn", "self_loop_deq"):
        return {"fnn": "feed-forward", "self_loop_deq": "exact"}[kind]
    worst = max(row["residual"], row[f"residual_{LAST_ITERATION}"])
    return "equilibrium" if worst <= EQUILIBRIUM else "weight-tied recurrent"


_CSV = pd.read_csv(Path(__file__).with_name("claims.csv"), keep_default_na=False)
CLAIMS = tuple(_CSV.assign(rivals=_CSV["rivals"].str.split(" | ", regex=False)).itertuples(index=False))
"""Every trained comparison, stated before the runs: a row of `claims.csv` each. Widths, budgets and starts are ours.

`arm` is compared with the best of `rivals`; `metric` is one of `regression_table`, and lower is better, except for snr,
density and heat. `ours` says what of it is ours and not the paper's: with an entry the row is "beyond the paper".
"""
_LOOPS, _SCALED = "DEQ-10, self-loops", "FNN 20×L3, scaled"
_OUR_G = "our g (eq. 5 is not at hand) and our DEQ of self-loops"

UNLEARNED = 0.9 / 12
"""Test error of a sawtooth above which nothing was learned; the constant predictor has 1/12."""


def trained_ledger(table: pd.DataFrame, notebook: str | None = None) -> pd.DataFrame:
    """Verdicts on the trained comparisons of `CLAIMS`, from a `regression_table`.

    Each is a paired 95 % t-interval over seeds of DEQ − best rival of that seed, in decades for errors, in dB for snr,
    plain for density and heat, judged by `nclib.verdict` at toy scale: widths, budgets and starts are ours
    in every row. What is beyond the paper is "higher", "lower" or "not significant". "Reported" are fewer than three
    seeds, or than `MORE_SEEDS` asks for, and a sawtooth on which no arm is below 0.9/12.

    Parameters
    ----------
    table : rows of all tasks wanted; claims about others are left out
    notebook : only the claims of this one

    Returns
    -------
    DataFrame with the columns of `companion.separation_bias.ledger.LEDGER`
    """
    rows = []
    for claim in CLAIMS:
        of_task = table[table["task"] == claim.task]
        present = set(of_task["model"])
        if notebook in (None, claim.notebook) and claim.arm in present and set(claim.rivals) <= present:
            rows.append(_judged(claim, of_task))
    if notebook in (None, "theorem2_steep"):
        rows += _judged_weights(table)
    return pd.DataFrame(rows, columns=ledger.LEDGER)


def _row(place: str, claim: str, evidence: str, rule: str, verdict: str, seeds: int, remarks: Sequence[str], ours: str):
    """A row of trainings of ours in `ledger.LEDGER`; with an entry in `ours` it is beyond the paper."""
    where = dict(reading=ledger.OURS, part=ledger.BEYOND) if ours else {}
    remark = "; ".join(filter(None, (*remarks, ours)))
    said = dict(scale="toy", remark=remark, computed=f"trained, {_seeds(seeds)}")
    return ledger.row(place, claim, evidence, rule, verdict, **where, **said)


def _judged(claim: Any, rows: pd.DataFrame) -> dict[str, str]:
    higher = claim.metric in ("snr", "density", "heat")
    values = rows.pivot_table(index="seed", columns="model", values=claim.metric)
    rivals = values[list(claim.rivals)]
    best = rivals.max(axis=1) if higher else rivals.min(axis=1)
    logarithmic = claim.metric == "mse"
    ours = values[claim.arm]
    difference = np.log10(ours / best) if logarithmic else ours - best
    found = interval(difference)
    unit = {"mse": " decades", "snr": " dB"}.get(claim.metric, "")
    arms = rows[rows["model"] == claim.arm]
    flops = rows[rows["model"].isin(claim.rivals)].groupby("model")["flops"].first()
    text = f"{claim.arm} {_spread(ours)}, best rival {_spread(best)}; difference {found}{unit}; FLOPs "
    text += f"{arms['flops'].mean():.3g} and {', '.join(f'{flops[name]:.3g}' for name in claim.rivals)}"
    if arms["residual"].notna().any():
        text += f"; residual {arms['residual'].mean():.1e}, after {LAST_ITERATION} {arms['residual_300'].mean():.1e}"
    if found.n < MORE_SEEDS.get(claim.task, 0):
        said = Verdict("reported", "toy", _seeds(found.n))
    elif claim.task.startswith("sawtooth") and values[[claim.arm, *claim.rivals]].mean().min() > UNLEARNED:
        said = Verdict("reported", "toy", "no network here learns this target")
    else:
        said = verdict(found, "toy", None if claim.ours else "higher" if higher else "lower")
    remarks = [said.remark]
    if said.word in ("higher", "lower") and claim.metric in ("mse", "snr"):
        remarks.append(f"DEQ {'better' if (said.word == 'higher') == higher else 'worse'}")
    if (arms["equilibrium"] == "weight-tied recurrent").any():
        remarks.append("not an equilibrium: a weight-tied recurrent network")
    rule = "paired interval over seeds beside 0"
    return _row(claim.place, claim.claim, text, rule, said.word, found.n, remarks, claim.ours)


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _spread(values: pd.Series) -> str:
    """Mean and range over seeds."""
    return f"{values.mean():.3g} ({values.min():.3g} to {values.max():.3g})"


def _judged_weights(table: pd.DataFrame) -> list[dict[str, str]]:
    """Figure 4: how the largest trained weight grows with d, as ratios of geometric means over seeds."""
    rows = table[table["task"].str.startswith("steep") & table["model"].isin([_LOOPS, _SCALED])]
    rows = rows.assign(d=rows["task"].str.removeprefix("steep-d").astype(int))
    if rows.empty or not {STEEP_DIMENSIONS[0], STEEP_DIMENSIONS[-1]} <= set(rows["d"]):
        return []
    first, last = rows["d"].min(), rows["d"].max()
    typical = np.exp(
        np.log(rows.set_index(["model", "d", "seed"])[["largest", "rebalanced"]]).groupby(["model", "d"]).mean()
    )
    growth = {name: typical["largest"][name, last] / typical["largest"][name, first] for name in (_LOOPS, _SCALED)}
    balanced = typical["rebalanced"][_SCALED]
    seeds = rows["seed"].nunique()
    text = f"d = {first} to {last}: DEQ ×{growth[_LOOPS]:.2f}, FNN ×{growth[_SCALED]:.0f}, rebalanced "
    text += f"×{balanced[last] / balanced[first]:.0f}"
    errors = rows.groupby(["model", "d"])["mse"].mean()
    ratio = errors[_LOOPS] / errors[_SCALED]
    other = f"mean squared error, DEQ over FNN: {ratio.min():.2g} to {ratio.max():.2g} over d"
    steady = growth[_SCALED] > 100 and growth[_LOOPS] < 3
    near = bool(((ratio > 1 / 3) & (ratio < 3)).all())
    claims = (
        ("the DEQ's weights stay, the FNN's grow", text, "FNN by more than 100, DEQ by less than 3", steady),
        ("at comparable loss", other, "within a factor of 3 at every d", near),
    )
    found = []
    for claim, text, rule, met in claims:
        remark = f"{'met' if met else 'not met'} in the mean of {_seeds(seeds)}"
        judged = f"our g: {claim}", text, f"our threshold: {rule}", "reported"
        found.append(_row("Figure 4", *judged, seeds, [remark], f"our threshold, {_OUR_G}"))
    return found


def looks_ledger(frame: pd.DataFrame) -> pd.DataFrame:
    """Figure 6 as a row of `companion.separation_bias.ledger.LEDGER`, reported and never judged.

    Parameters
    ----------
    frame : tidy frame that holds runs of `companion.separation_bias.saliency`
    """
    looked = frame[frame["split"] == "cam"]
    measures = ("coverage", "entropy", "accuracy")
    found = {name: pairs(looked, name, "cam").table["difference"] for name in measures}
    text = "DEQ − explicit: " + ", ".join(f"{name} {interval(values)}" for name, values in found.items())
    judged = "Grad-CAM of the DEQ is more diffuse", text, "never judged", "reported"
    ours = "our networks, images and settings of Grad-CAM"
    return pd.DataFrame([_row("Figure 6", *judged, len(found["coverage"]), [], ours)], columns=ledger.LEDGER)


def describe_regressions(configs: Sequence[RegressionConfig]) -> str:
    """One paragraph for captions: profile, tasks, budget, seeds."""
    runs = pd.DataFrame([(c.task.label(), c.steps, c.seed) for c in configs], columns=["task", "steps", "seed"])
    tasks = runs.groupby("task", sort=False)
    budgets = tasks["steps"].unique().map(lambda steps: ", ".join(map(str, sorted(steps))))
    text = "; ".join(f"{name} ({steps} steps of Adam)" for name, steps in budgets.items())
    counts = tasks["seed"].nunique()
    text = f"Profile {configs[0].profile}: {text}; {_seeds(counts.min())}"
    for count, names in counts[counts > counts.min()].groupby(counts):
        text += f", {count} of {' and '.join(names.index)}"
    return text + "."
