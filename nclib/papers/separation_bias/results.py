"""What the trained networks of Wu et al. reached: tables and captions for the notebooks.

Nothing is judged here: that is `verdicts`.
"""

from collections.abc import Sequence

import pandas as pd

from nclib.config import run_id
from nclib.papers.separation_bias.regression import LAST_ITERATION, RegressionConfig
from nclib.papers.separation_bias.regressors import EQUILIBRIUM

RECURRENT = "weight-tied recurrent"


def regression_table(configs: Sequence[RegressionConfig], frame: pd.DataFrame) -> pd.DataFrame:
    """One row a run: what was trained, and the metrics of the finished network.

    Parameters
    ----------
    configs : of the runs wanted, in the order of the rows
    frame : tidy frame that holds them

    Returns
    -------
    DataFrame
        run_id, task, model (its label), kind, seed, adam_steps, the metrics of `train_regression`
        by their names, and equilibrium. `mse` is that of the test points and `train_mse` of the
        training points; residual_300 and mse_300 are NaN for networks without iterations.
        `equilibrium` says what the network is: "equilibrium", "exact" (solved by substitution),
        "weight-tied recurrent" (residual above `EQUILIBRIUM` after the trained steps or after 300)
        or "feed-forward"
    """
    by_run = dict(tuple(frame.groupby("run_id")))
    rows = []
    for config in dict.fromkeys(configs):
        run = run_id(config)
        row = {
            "run_id": run,
            "task": config.task.label(),
            "model": config.model.label(),
            "kind": config.model.kind,
            "seed": config.seed,
            "adam_steps": config.steps,
        }
        last = by_run[run].drop_duplicates(["split", "metric"], keep="last")
        for split, metric, value in last[["split", "metric", "value"]].itertuples(index=False):
            row[_column(split, metric)] = value
        row["equilibrium"] = _what_it_is(row)
        rows.append(row)
    return pd.DataFrame(rows)


def _column(split: str, metric: str) -> str:
    if split == "iterations":
        return f"{metric}_{LAST_ITERATION}"
    if split == "train" and metric == "mse":
        return "train_mse"
    return metric


def _what_it_is(row: dict) -> str:
    if row["kind"] == "fnn":
        return "feed-forward"
    if row["kind"] == "self_loop_deq":
        return "exact"
    at_end = row.get("residual", 0.0)
    at_300 = row.get(f"residual_{LAST_ITERATION}", 0.0)
    return "equilibrium" if max(at_end, at_300) <= EQUILIBRIUM else RECURRENT


def arm_names(table: pd.DataFrame) -> dict[str, str]:
    """Names for figures, label → name.

    A DEQ that is not at equilibrium in every seed of these rows is called a weight-tied recurrent
    network.

    Parameters
    ----------
    table : rows of a `regression_table`
    """
    recurrent = set(table.loc[table["equilibrium"] == RECURRENT, "model"])
    names = {}
    for label in table["model"].unique():
        is_recurrent = label in recurrent
        names[label] = label.replace("DEQ", "weight-tied RNN") if is_recurrent else label
    return names


def curve_rows(
    configs: Sequence[RegressionConfig],
    frame: pd.DataFrame,
    task: str,
    split: str = "test",
    metric: str = "mse",
) -> pd.DataFrame:
    """Values of one task along a training, or along the iterations of trained cells.

    Parameters
    ----------
    configs, frame : as of `regression_table`
    task : its label
    split : "iterations" for those of the trained cells
    metric : its name in the frame

    Returns
    -------
    DataFrame: model (name for figures, see `arm_names`), kind, seed, at and value
    """
    table = regression_table([config for config in configs if config.task.label() == task], frame)
    arms = table[["run_id", "kind"]].assign(model=table["model"].map(arm_names(table)))
    chosen = frame[(frame["split"] == split) & (frame["metric"] == metric)]
    values = chosen[["run_id", "seed", "epoch", "value"]].rename(columns={"epoch": "at"})
    return arms.merge(values, on="run_id")[["model", "kind", "seed", "at", "value"]]


def count_of_seeds(count: int) -> str:
    """For instance "1 seed" or "3 seeds"."""
    return "1 seed" if count == 1 else f"{count} seeds"


def describe_regressions(configs: Sequence[RegressionConfig]) -> str:
    """One sentence for captions: profile, tasks, budgets, seeds."""
    tasks = {}
    for config in configs:
        steps, seeds = tasks.setdefault(config.task.label(), (set(), set()))
        steps.add(config.steps)
        seeds.add(config.seed)
    parts = []
    for task, (steps, seeds) in tasks.items():
        budgets = ", ".join(str(budget) for budget in sorted(steps))
        parts.append(f"{task} ({budgets} steps of Adam, {count_of_seeds(len(seeds))})")
    return f"Profile {configs[0].profile}: {'; '.join(parts)}."
