"""What the trainings of this paper say: tables of finished runs, and the paper's claims judged from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from companion.separation_bias import ledger, steep
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
    wanted = {run_id(config): config for config in configs if config.task.label() == task}
    names = arm_names(regression_table(list(wanted.values()), frame))
    rows = frame[(frame["split"] == split) & (frame["metric"] == metric) & frame["run_id"].isin(wanted)]
    models = rows["run_id"].map({run: names[config.model.label()] for run, config in wanted.items()})
    kinds = rows["run_id"].map({run: config.model.kind for run, config in wanted.items()})
    found = rows.assign(model=models, kind=kinds, at=rows["epoch"])
    order = {names[config.model.label()]: place for place, config in enumerate(wanted.values())}
    found = found.sort_values(["model", "seed", "at"], key=None if found.empty else _by_order(order), kind="stable")
    return found[["model", "kind", "seed", "at", "value"]].reset_index(drop=True)


def _by_order(order: dict[str, int]) -> Callable[[pd.Series], pd.Series]:
    return lambda column: column.map(order) if column.name == "model" else column


def _what_it_is(kind: str, row: dict[str, Any]) -> str:
    if kind in ("fnn", "self_loop_deq"):
        return {"fnn": "feed-forward", "self_loop_deq": "exact"}[kind]
    worst = max(row["residual"], row[f"residual_{LAST_ITERATION}"])
    return "equilibrium" if worst <= EQUILIBRIUM else "weight-tied recurrent"


class Claim(NamedTuple):
    """A comparison of the paper, or one of ours beside it: `arm` against the best of `rivals`, by label.

    Parameters
    ----------
    metric : of `regression_table`; lower is better, except for snr, density and heat
    ours : what of it is ours and not the paper's; with an entry here the row is "beyond the paper"
    """

    notebook: str
    place: str
    claim: str
    task: str
    arm: str
    rivals: tuple[str, ...]
    metric: str = "mse"
    ours: str = ""


def _read_claims() -> tuple[Claim, ...]:
    rows = pd.read_csv(Path(__file__).with_name("claims.csv"), keep_default_na=False).to_dict("records")
    return tuple(Claim(**row | {"rivals": tuple(row["rivals"].split(" | "))}) for row in rows)


CLAIMS = _read_claims()
"""Every trained comparison, stated before the runs: a row of `claims.csv` each. Widths, budgets and starts are ours."""
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


def _row(place: str, claim: str, found: dict[str, str], remarks: Sequence[str], ours: str) -> dict[str, str]:
    """A row of trainings of ours in `ledger.LEDGER`; with an entry in `ours` it is beyond the paper.

    Parameters
    ----------
    found : evidence, rule, verdict and computed
    """
    reading, part = (ledger.OURS, ledger.BEYOND) if ours else (ledger.PRINTED, ledger.STATEMENT)
    said = dict(scale="toy", remark="; ".join(filter(None, (*remarks, ours))), certificate="")
    return dict(place=place, part=part, claim=claim, reading=reading) | found | said


def _judged(claim: Claim, rows: pd.DataFrame) -> dict[str, str]:
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
    judged = dict(evidence=text, rule="paired interval over seeds beside 0", verdict=said.word)
    return _row(claim.place, claim.claim, judged | _trained_on(found.n), remarks, claim.ours)


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _trained_on(seeds: int) -> dict[str, str]:
    return {"computed": f"trained, {_seeds(seeds)}"}


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
        judged = dict(evidence=text, rule=f"our threshold: {rule}", verdict="reported") | _trained_on(seeds)
        remark = f"{'met' if met else 'not met'} in the mean of {_seeds(seeds)}"
        found.append(_row("Figure 4", f"our g: {claim}", judged, [remark], f"our threshold, {_OUR_G}"))
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
    text = ", ".join(f"{name} {interval(values)}" for name, values in found.items())
    judged = dict(evidence=f"DEQ − explicit: {text}", rule="never judged", verdict="reported")
    judged |= _trained_on(len(found["coverage"]))
    ours = "our networks, images and settings of Grad-CAM"
    row = _row("Figure 6", "Grad-CAM of the DEQ is more diffuse", judged, [], ours)
    return pd.DataFrame([row], columns=ledger.LEDGER)


def weight_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """The trained FNNs of Figure 4 against `steep.fnn_weight_bound` at their own sup error.

    Columns d, seed, sup_error, largest, rebalanced, bound (NaN where the sup error is ¼ or more, which bounds nothing)
    and above, whether the rebalanced weight is above it.
    """
    rows = table[(table["model"] == _SCALED) & table["task"].str.startswith("steep")]
    found = rows[["seed", "sup_error", "largest", "rebalanced"]].assign(
        d=rows["task"].str.removeprefix("steep-d").astype(int)
    )
    found["bound"] = [
        steep.fnn_weight_bound(row.d, 20, 2, row.sup_error) if row.sup_error < 0.25 else math.nan
        for row in found.itertuples()
    ]
    return found.assign(above=(found["rebalanced"] >= found["bound"]) | found["bound"].isna()).sort_values(
        ["d", "seed"]
    )


def describe_regressions(configs: Sequence[RegressionConfig]) -> str:
    """One paragraph for captions: profile, tasks, budget, seeds."""
    profile = configs[0].profile
    budgets: dict[str, set[int]] = {}
    seeds: dict[str, set[int]] = {}
    for config in configs:
        budgets.setdefault(config.task.label(), set()).add(config.steps)
        seeds.setdefault(config.task.label(), set()).add(config.seed)
    tasks = "; ".join(f"{name} ({', '.join(map(str, sorted(steps)))} steps of Adam)" for name, steps in budgets.items())
    counts = {name: len(found) for name, found in seeds.items()}
    least = min(counts.values())
    text = f"Profile {profile}: {tasks}; {least} seed{'' if least == 1 else 's'}"
    more = {count: [name for name in counts if counts[name] == count] for count in sorted({*counts.values()} - {least})}
    return text + "".join(f", {count} of {' and '.join(names)}" for count, names in more.items()) + "."
