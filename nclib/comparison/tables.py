"""From tidy frames to statements: seed means with intervals, paired differences, verdicts by stated rules.

Everything here takes and returns plain tables. A verdict is a function of what was measured and never
hides a result that contradicts a claim.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nclib.comparison.pairing import SETTING, NotMeasured, Pairs, by_run, pairs
from nclib.comparison.verdicts import interval, verdict
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
    >>> nc.comparison.percent(frame)["value"].round(3).tolist()[:2]
    [80.0, 82.0]
    """
    accuracy = frame["metric"].str.startswith("accuracy_")
    return frame.assign(value=frame["value"].where(~accuracy, frame["value"] * 100))


def setting(frame: pd.DataFrame, dataset: str, num_majority: int | None = None, ratio: float = 1.0) -> pd.DataFrame:
    """The rows of one setting.

    Parameters
    ----------
    frame : tidy frame
    dataset : with or without a fingerprint
    num_majority : K_A; None for balanced data
    ratio : R

    Returns
    -------
    DataFrame
    """
    rows = (frame["dataset"] == dataset.split("@")[0]) & (frame["R"] == ratio)
    return frame[rows & (frame["K_A"].isna() if num_majority is None else frame["K_A"].eq(num_majority).fillna(False))]


def over_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds with a 95 % t-interval.

    Parameters
    ----------
    runs : of `by_run`

    Returns
    -------
    DataFrame with a row for each setting and model: value, half, seeds, and within_std, the mean of the within-run
    deviations.
    """
    cells = runs.groupby([*SETTING, "model"], dropna=False, sort=False)
    rows = [(*keys, *interval(cell["value"]), cell["std"].mean()) for keys, cell in cells]
    return pd.DataFrame(rows, columns=[*SETTING, "model", "value", "half", "seeds", "within_std"])


def pooled_table(found: Pairs | None, scale: str, claim: str | float | None = None, remark: str = "") -> pd.DataFrame:
    """A difference of class-balanced accuracies over all settings of `found`, as a table of one row.

    Parameters
    ----------
    found : pairs of accuracies; None where no setting is complete
    scale : of the runs (`nclib.publish.notes.scale_of`)
    claim : as of `Pairs.verdict`
    remark : besides that of the verdict

    Returns
    -------
    DataFrame with the columns metric, difference, half (95 % interval), detectable (see `Interval`), seeds,
    settings_found, verdict, scale and remark, by the rule of `Pairs.verdict` with the phase described, and printed, the
    claim where there is one.
    """
    shown = found.interval if found else interval([])
    said = found.verdict(scale, claim, phase="described") if found else verdict(shown, scale)
    said = said._replace(remark="; ".join(filter(None, [said.remark, remark])))
    row = ("accuracy_balanced", *shown.columns, found.settings if found else 0, *said)
    table = pd.DataFrame([row], columns=["metric", *_SHOWN, "settings_found", *words.JUDGED])
    return table.assign(printed=f"DEQ {claim}") if isinstance(claim, str) else table


def claims_table(frame: pd.DataFrame, claims: Mapping[str, str], scale: str, split: str = "train") -> pd.DataFrame:
    """Metrics of both models at the last epoch, their paired difference and the verdict on the paper's claim.

    Parameters
    ----------
    frame : tidy frame of one setting
    claims : metric name → "lower", "higher" or "equal", what the paper claims of the DEQ against the explicit network
    scale : of the runs (`nclib.publish.notes.scale_of`)
    split : of the metrics

    Returns
    -------
    DataFrame with a row a metric: metric, deq and explicit (of the seeds that both have), difference, half, detectable
    and seeds (see `Interval`), verdict, scale and remark, by the rule of `verdict`, and printed, the claim.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> frame = pd.DataFrame([
    ...     {"run_id": f"{model}-{seed}", "dataset": "digits", "model": model, "K_A": 0, "R": 1.0, "seed": seed,
    ...      "split": "train", "epoch": 1, "metric": "nc1_trace_ratio", "value": value + seed * slope}
    ...     for model, value, slope in (("deq", 0.8, 0.02), ("explicit", 0.7, 0.01)) for seed in range(3)
    ... ])
    >>> nc.comparison.claims_table(frame, {"nc1_trace_ratio": "lower"}, "toy")["printed"].tolist()
    ['DEQ lower']
    """
    rows = [(key, *_of_one_setting(frame, key, scale, split, "deq", "explicit", said)) for key, said in claims.items()]
    table = pd.DataFrame(rows, columns=["metric", "deq", "explicit", *_SHOWN, *words.JUDGED])
    return table.assign(printed=[f"DEQ {claim}" for claim in claims.values()])


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
    scale : of the runs (`nclib.publish.notes.scale_of`)
    arm, against : which model, and which it is compared with

    Returns
    -------
    DataFrame with a row for each pair: metric, model (the one compared with), arm_value, value, difference, half,
    detectable and seeds (see `Interval`), and verdict, scale and remark; collapse needs the terminal phase of both.
    """
    rows = [
        (metric, model, *_of_one_setting(frame, metric, scale, split, arm, model))
        for metric, split in metrics.items()
        for model in against
    ]
    return pd.DataFrame(rows, columns=["metric", "model", "arm_value", "value", *_SHOWN, *words.JUDGED])


def _of_one_setting(
    frame: pd.DataFrame, metric: str, scale: str, split: str, arm: str, against: str, claim: str | None = None
) -> tuple[Any, ...]:
    """Both networks' means, the columns of the interval, and the verdict."""
    accuracy = metric.startswith("accuracy")
    try:
        found = pairs(frame, metric, split, "last_epochs" if accuracy else "last", arm, against)
    except NotMeasured:
        return *[np.nan] * 5, 0, "reported", scale, "not measured"
    if found.settings > 1:
        raise ValueError(f"the frame holds {found.settings} settings, and this table is of one; ratios pools several")
    means = found.by_setting.iloc[0]
    said = found.verdict(scale, claim, "described" if accuracy else "required")
    return means[arm], means[against], *found.interval.columns, *said


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

    Each seed's mean over the settings of log(arm / against) at the last epoch, a 95 % t-interval over seeds, and both
    as a change in percent.

    Parameters
    ----------
    frame : tidy frame of runs, the same settings for every seed
    metrics : positive ones, 0 at collapse; a mapping says what is claimed of each, "lower", "higher" or "equal"
    scale : of the runs (`nclib.publish.notes.scale_of`)
    split : of the metrics
    arm, against : which model, and which it is compared with
    terminal : whether the networks ended in the terminal phase, where both are states of one trained network, whose
        phase is not among their own rows; left out, what `pairs` finds

    Returns
    -------
    DataFrame with a row a metric: metric, change, low, high, detectable (the smallest decrease; all in percent),
    settings_found, lower_in (settings whose mean ratio is below 1), seeds, and verdict, scale and remark, by the rule
    of `verdict`.
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
        shown, lower = found.interval, int((found.by_setting["difference"] < 0).sum())
        ends = (shown.mean, shown.mean - shown.half, shown.mean + shown.half)
        percents = [100 * np.expm1(end) for end in ends] + [-100 * np.expm1(-shown.detectable)]
        rows.append((metric, *percents, found.settings, lower, shown.n, *found.verdict(scale, claims.get(metric))))
    columns = ["metric", "change", "low", "high", "detectable", "settings_found", "lower_in", "seeds", *words.JUDGED]
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
    >>> nc.comparison.solver_audit(frame)["test_converged"].tolist()
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
    frame = frame[frame["run_id"].isin(frame.loc[frame["metric"] == "solver_converged", "run_id"])]
    columns = {
        name: over_seeds(by_run(frame, metric, split)).set_index([*SETTING, "model"])["value"] * scale
        for name, (metric, split, scale) in wanted.items()
    }
    return pd.DataFrame(columns).reset_index()
