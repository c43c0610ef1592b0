"""From tidy frames to statements: seed means with intervals, paired differences, verdicts by stated rules.

Everything here takes and returns plain tables. A verdict is a function of what was measured; it never raises and never
hides a result that contradicts a claim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from nclib.comparison.pairing import KEYS, SETTING, TERMINAL_ACCURACY, NotMeasured, Pairs, last_rows, pairs
from nclib.comparison.verdicts import Verdict, interval
from nclib.system import words

_SHOWN = ["difference", "half", "detectable", "seeds"]
"""Names of `Interval.columns`."""


def percent(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with accuracies in percent instead of fractions, as papers print them.

    Parameters
    ----------
    frame : tidy frame

    Returns
    -------
    DataFrame

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> frame = pd.DataFrame([
    ...     {"run_id": f"{model}-{seed}", "dataset": "digits", "model": model, "K_A": 0, "R": 1.0, "seed": seed,
    ...      "split": "test", "epoch": 1, "metric": "accuracy_balanced", "value": value + seed * slope}
    ...     for model, value, slope in (("deq", 0.8, 0.02), ("explicit", 0.7, 0.01)) for seed in range(3)
    ... ])
    >>> nc.percent(frame)["value"].round(3).tolist()[:2]
    [80.0, 82.0]
    """
    accuracy = frame["metric"].str.startswith("accuracy_")
    return frame.assign(value=frame["value"].where(~accuracy, frame["value"] * 100))


def setting(frame: pd.DataFrame, dataset: str, num_majority: int | None = None, ratio: float = 1.0) -> pd.DataFrame:
    """The rows of one setting: data set, K_A (None for balanced) and R."""
    rows = (frame["dataset"] == dataset.split("@")[0]) & (frame["R"] == ratio)
    return frame[rows & (frame["K_A"].isna() if num_majority is None else frame["K_A"].eq(num_majority).fillna(False))]


def by_run(frame: pd.DataFrame, metric: str, split: str, how: str = "last") -> pd.DataFrame:
    """One value of a metric for each run.

    Parameters
    ----------
    frame : tidy frame, as of `nclib.pairs`
    metric, split : which rows
    how : "last" takes the last logged epoch; "last_epochs" the mean of the last ten logged ones, with their sample
        standard deviation in ``std`` (the paper's way: fluctuation within a run, not spread over seeds)

    Returns
    -------
    DataFrame
        A row for each run: run_id, dataset, K_A, R, model, seed, epoch, value, std, n.

    Raises
    ------
    ValueError
        As of `nclib.pairs`: for rows that repeat one another, and epochs or seeds that are not whole numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> frame = pd.DataFrame([
    ...     {"run_id": f"{model}-{seed}", "dataset": "digits", "model": model, "K_A": 0, "R": 1.0, "seed": seed,
    ...      "split": "test", "epoch": 1, "metric": "accuracy_balanced", "value": value + seed * slope}
    ...     for model, value, slope in (("deq", 0.8, 0.02), ("explicit", 0.7, 0.01)) for seed in range(3)
    ... ])
    >>> nc.by_run(frame, "accuracy_balanced", "test")[["model", "seed", "value"]].shape
    (6, 3)
    """
    needed = [*KEYS, "split", "epoch", "metric", "value"]
    if missing := [name for name in needed if name not in frame]:
        raise ValueError(f"the frame has no column {', '.join(missing)}; see help(nclib.pairs) for those it needs")
    return last_rows(frame, metric, split, how)


def over_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds with a 95 % t-interval: a row for each cell and model; columns value, half, seeds, and
    within_std, the mean of the within-run deviations."""
    rows = []
    for keys, group in runs.groupby([*SETTING, "model"], dropna=False, sort=False):
        found = interval(group["value"])
        rows.append((*keys, found.mean, found.half, found.n, group["std"].mean()))
    return pd.DataFrame(rows, columns=[*SETTING, "model", "value", "half", "seeds", "within_std"])


def pooled_table(found: Pairs | None, scale: str, claim: str | None = None, remark: str = "") -> pd.DataFrame:
    """A difference of accuracies, over all settings of `found`, as a table of one row: difference, half (95 %
    interval), detectable (see `Interval`), seeds, and verdict, scale and remark, by the rule of `Pairs.verdict` with
    the phase described; what else is to be remarked follows. None: no setting is complete."""
    shown = found.interval if found else interval([])
    said = found.verdict(scale, claim, phase="described") if found else Verdict("reported", scale, "0 seeds")
    said = said._replace(remark="; ".join(filter(None, [said.remark, remark])))
    return pd.DataFrame([(*shown.columns, *said)], columns=[*_SHOWN, *words.JUDGED])


def terminal_phase(frame: pd.DataFrame) -> pd.DataFrame:
    """Whether each run ended with a training accuracy of at least 99.9 %, over images and as the mean over classes, so
    that errors in small classes count.

    Parameters
    ----------
    frame : tidy frame

    Returns
    -------
    DataFrame
        The columns of a run, value (the smaller of the two accuracies) and reached.

    Raises
    ------
    ValueError
        Where accuracies are in percent, of which every one would count as reached.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> frame = pd.DataFrame([
    ...     {"run_id": "a", "dataset": "digits", "model": "deq", "K_A": 0, "R": 1.0, "seed": 0, "split": "train",
    ...      "epoch": 1, "metric": metric, "value": value}
    ...     for metric, value in (("accuracy_train_prior", 1.0), ("accuracy_balanced", 0.99))
    ... ])
    >>> nc.terminal_phase(frame)["reached"].tolist()
    [False]
    """
    runs = by_run(frame, "accuracy_train_prior", "train")
    balanced = by_run(frame, "accuracy_balanced", "train").set_index("run_id")["value"]
    runs["value"] = np.minimum(runs["value"], runs["run_id"].map(balanced))
    if (runs["value"] > 1 + 1e-9).any():
        raise ValueError("training accuracies above 1: give the frame as it was before `percent`")
    return runs.assign(reached=runs["value"] >= TERMINAL_ACCURACY)


def claims_table(frame: pd.DataFrame, claims: Mapping[str, str], scale: str, split: str = "train") -> pd.DataFrame:
    """Metrics of both models at the last epoch, their paired difference and what it says of the paper's claim.

    Parameters
    ----------
    frame : tidy frame of one setting
    claims : metric name → "lower", "higher" or "equal", what the paper says of the DEQ against the explicit network
    scale : of the runs (`nclib.scale_of`)
    split : of the metrics

    Returns
    -------
    DataFrame with a row a metric: metric, explicit and deq (of the seeds that both have), difference, half, detectable
    and seeds (see `Interval`), claim, and verdict, scale and remark, by the rule of `verdict`.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> frame = pd.DataFrame([
    ...     {"run_id": f"{model}-{seed}", "dataset": "digits", "model": model, "K_A": 0, "R": 1.0, "seed": seed,
    ...      "split": "train", "epoch": 1, "metric": "nc1_trace_ratio", "value": value + seed * slope}
    ...     for model, value, slope in (("deq", 0.8, 0.02), ("explicit", 0.7, 0.01)) for seed in range(3)
    ... ])
    >>> nc.claims_table(frame, {"nc1_trace_ratio": "lower"}, "toy")["claim"].tolist()
    ['DEQ lower']
    """
    rows = []
    for metric, claim in claims.items():
        try:
            found = pairs(frame, metric, split)
        except NotMeasured:
            rows.append((metric, np.nan, np.nan, *_NOTHING, f"DEQ {claim}", "reported", scale, "not measured"))
            continue
        _one_setting(found)
        means = found.by_setting.iloc[0]
        said = found.verdict(scale, claim)
        rows.append((metric, means["explicit"], means["deq"], *found.interval.columns, f"DEQ {claim}", *said))
    columns = ["metric", "explicit", "deq", *_SHOWN, "claim", *words.JUDGED]
    return pd.DataFrame(rows, columns=columns)


_NOTHING = (np.nan, np.nan, np.nan, 0)


def _one_setting(found: Pairs) -> None:
    if found.settings > 1:
        raise ValueError(
            f"the frame holds {found.settings} settings, and this table is of one: choose it, or pool them with ratios"
        )


def ratios(
    frame: pd.DataFrame,
    metrics: Sequence[str] | Mapping[str, str],
    scale: str,
    split: str = "train",
    arm: str = "deq",
    against: str = "explicit",
    terminal: bool | None = None,
) -> pd.DataFrame:
    """One model's metrics of collapse over another's, pooled over all settings by `pairs`.

    Each seed's mean over the cells of log(arm / against) at the last epoch, a 95 % t-interval over seeds, and both as
    a change in percent.

    Parameters
    ----------
    frame : tidy frame of runs, the same cells for every seed
    metrics : positive ones, 0 at collapse; a mapping says what is claimed of each, "lower", "higher" or "equal"
    scale : of the runs (`nclib.scale_of`)
    split : of the metrics
    arm, against : which model, and which it is compared with
    terminal : whether the networks ended in the terminal phase, where both are states of one trained network, whose
        phase is not among their own rows; left out, what `pairs` finds

    Returns
    -------
    DataFrame with a row a metric: metric, change, low, high, detectable (the smallest decrease; all in percent), cells,
    lower_in (cells whose mean ratio is below 1), seeds, and verdict, scale and remark, by the rule of `verdict`.
    """
    claims = metrics if isinstance(metrics, Mapping) else {}
    rows = []
    for metric in metrics:
        try:
            found = pairs(frame, metric, split, arm=arm, against=against, relative=True)
        except NotMeasured:
            rows.append((metric, *[np.nan] * 4, 0, 0, 0, "reported", scale, "not measured"))
            continue
        if terminal is not None:
            found = dataclasses.replace(found, terminal=terminal)
        said = found.verdict(scale, claims.get(metric))
        settings = found.by_setting["difference"]
        shown = found.interval
        percents = [100 * np.expm1(x) for x in (shown.mean, shown.mean - shown.half, shown.mean + shown.half)]
        least = -100 * np.expm1(-shown.detectable)
        rows.append((metric, *percents, least, len(settings), int((settings < 0).sum()), shown.n, *said))
    columns = ["metric", "change", "low", "high", "detectable", "cells", "lower_in", "seeds", *words.JUDGED]
    return pd.DataFrame(rows, columns=columns)


def solver_audit(frame: pd.DataFrame) -> pd.DataFrame:
    """How well the equilibria were solved.

    Parameters
    ----------
    frame : tidy frame

    Returns
    -------
    DataFrame
        A row for each cell and model that has equilibria, means over seeds at the last epoch. In percent:
        train_converged, test_converged (evaluations), step_not_converged and skipped (training steps),
        backward_not_converged; and evaluations, the mean number of cell evaluations on training images.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> frame = pd.DataFrame([
    ...     {"run_id": "a", "dataset": "digits", "model": "deq", "K_A": 0, "R": 1.0, "seed": 0, "split": split,
    ...      "epoch": 1, "metric": metric, "value": value}
    ...     for split, metric, value in (("train", "solver_converged", 0.9), ("test", "solver_converged", 0.8))
    ... ])
    >>> nc.solver_audit(frame)["test_converged"].tolist()
    [80.0]
    """
    wanted = {
        "train_converged": ("solver_converged", "train", 100),
        "test_converged": ("solver_converged", "test", 100),
        "evaluations": ("solver_steps", "train", 1),
        "step_not_converged": ("not_converged", "steps", 100),
        "skipped": ("skipped", "steps", 100),
        "backward_not_converged": ("backward_not_converged", "steps", 100),
    }
    solved = frame[frame["metric"] == "solver_converged"]["run_id"].unique()
    frame = frame[frame["run_id"].isin(solved)]
    columns = {
        name: over_seeds(by_run(frame, metric, split)).set_index([*SETTING, "model"])["value"] * scale
        for name, (metric, split, scale) in wanted.items()
    }
    return pd.DataFrame(columns).reset_index()


def differences(
    frame: pd.DataFrame,
    metrics: Mapping[str, str],
    scale: str,
    arm: str = "deq",
    against: Sequence[str] = ("explicit",),
) -> pd.DataFrame:
    """One model against others, paired by seed, in several metrics.

    Parameters
    ----------
    frame : tidy frame of one setting, accuracies as fractions
    metrics : metric → its split. Accuracies are means over the last ten logged epochs, in percent; others of the last
    scale : of the runs (`nclib.scale_of`)
    arm, against : which model, and which it is compared with

    Returns
    -------
    DataFrame with a row for each pair: metric, model (the one compared with), arm_value, value, difference, half,
    detectable and seeds (see `Interval`), and verdict, scale and remark; collapse needs the terminal phase of both.
    """
    rows = []
    for metric, split in metrics.items():
        accuracy = metric.startswith("accuracy")
        for model in against:
            try:
                found = pairs(frame, metric, split, "last_epochs" if accuracy else "last", arm, model)
            except NotMeasured:
                rows.append((metric, model, np.nan, np.nan, *_NOTHING, "reported", scale, "not measured"))
                continue
            _one_setting(found)
            means = found.by_setting.iloc[0]
            said = found.verdict(scale, phase="described" if accuracy else "required")
            rows.append((metric, model, means[arm], means[model], *found.interval.columns, *said))
    return pd.DataFrame(rows, columns=["metric", "model", "arm_value", "value", *_SHOWN, *words.JUDGED])
