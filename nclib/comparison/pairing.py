"""The one way from a tidy frame to a statement about two networks: `pairs`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from nclib.comparison.verdicts import EQUAL_WITHIN, LEVEL, Interval, Verdict, interval, verdict
from nclib.config import LAST_EPOCHS

SETTING = ["dataset", "K_A", "R"]
TERMINAL_ACCURACY = 0.999
"""Training accuracy from which on a network counts as in the terminal phase of training."""
PHASE_METRICS = ("accuracy_train_prior", "accuracy_balanced")
"""Training accuracies, over images and over classes, that both have to reach it."""

KEYS = ["run_id", *SETTING, "model", "seed"]
_COLUMNS = [*KEYS, "split", "epoch", "metric", "value"]
_SHARED = ("protocol", "width", "epochs", "batch_size", "lr", "recipe")
"""Columns in which all runs of a setting must agree, where a frame has them. Stored runs have ``protocol``, which is
every option but network and seed."""


class NotMeasured(ValueError):
    """A value that would be judged is not a number, or there is none."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Two networks' runs, paired by setting and seed; made by `pairs`, which checks them.

    Parameters
    ----------
    metric, split, arm, against, relative : as they were asked for
    terminal : whether every run has both training accuracies of at least 99.9 % at the epoch judged; None where one of
        them is not known, and then nothing is judged
    """

    metric: str
    split: str
    arm: str
    against: str
    relative: bool
    terminal: bool | None
    _table: pd.DataFrame = field(repr=False)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each pair: the columns of the setting, seed, both networks' values and ``difference``, arm −
        against, of their logarithms where ``relative``. Accuracies are in percent, their differences in points."""
        return self._table.copy()

    @property
    def settings(self) -> int:
        """How many settings there are."""
        return len(self._table[SETTING].drop_duplicates())

    @property
    def interval(self) -> Interval:
        """Mean and interval over seeds; over several settings, of each seed's mean over them."""
        return interval(self._table.groupby("seed")["difference"].mean())

    @property
    def by_setting(self) -> pd.DataFrame:
        """A row for each setting: its columns, both networks' means, and mean, half and detectable of the difference
        over seeds, with their number."""
        rows = []
        for keys, group in self._table.groupby(SETTING, dropna=False, sort=False):
            means = group[self.arm].mean(), group[self.against].mean()
            rows.append((*keys, *means, *interval(group["difference"]).columns))
        return pd.DataFrame(
            rows, columns=[*SETTING, self.arm, self.against, "difference", "half", "detectable", "seeds"]
        )

    def verdict(
        self,
        scale: str,
        claim: str | float | None = None,
        phase: Literal["required", "described"] = "required",
        equality: Literal["interval", "tost"] = "interval",
        within: float = EQUAL_WITHIN,
    ) -> Verdict:
        """What the pairs say of a claim, by the rule of `nclib.verdict`.

        Parameters
        ----------
        scale : of the runs (`nclib.publish.notes.scale_of`)
        claim : "lower", "higher" or "equal", said of `arm`; a printed difference; or None
        phase : "required" judges runs in the terminal phase alone; "described" judges the others too, for accuracies
            and where a protocol fixed it before its runs. A phase that is not known is judged by neither
        equality : the interval that has to lie within the bounds of "equal": "interval" the one of 95 %, "tost" the one
            of 90 %, which is two one-sided tests at 0.05
        within : those bounds, as a share of the value compared with

        Returns
        -------
        Verdict
        """
        if phase not in ("required", "described") or equality not in ("interval", "tost"):
            raise ValueError("phase is 'required' or 'described', and equality is 'interval' or 'tost'")
        terminal = self.terminal if phase == "required" or self.terminal is None else True
        return verdict(
            self.interval,
            scale,
            claim,
            terminal,
            size=float(self._table[self.against].mean()),
            of_logs=self.relative,
            within=within,
            level=LEVEL if equality == "interval" else 0.9,
        )


def pairs(
    frame: pd.DataFrame,
    metric: str,
    split: str = "train",
    how: Literal["last", "last_epochs"] = "last",
    arm: str = "deq",
    against: str = "explicit",
    relative: bool = False,
) -> Pairs:
    """Two networks' values of a metric, paired by setting and seed.

    Every interval and verdict about two networks starts here, so that what is compared is checked in one place.

    Parameters
    ----------
    frame : tidy frame of runs, with columns run_id, dataset, K_A, R, model, seed, split, epoch, metric and value:
        `nclib.ensure_runs`, or trainings of your own. K_A is missing for balanced data; accuracies are fractions
    metric, split : which rows
    how : "last" judges each run's last epoch; "last_epochs" the mean of its last ten logged ones, as the paper does
    arm, against : two values of the column model
    relative : compare logarithms, so that differences are those of ratios

    Returns
    -------
    Pairs

    Raises
    ------
    NotMeasured
        A `ValueError`: where a value to be judged is not a number or has no logarithm, or where there is no pair.
    ValueError
        Where rows repeat a run, split, metric and epoch; epochs or seeds are not whole numbers; a network has several
        runs of one setting and seed; the runs of a pair, or the seeds of a setting, differ in anything else that the
        frame knows (data version, width, epochs, batch, rate); seeds have not the same settings.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> rows = [
    ...     {"run_id": f"{model}-{seed}", "dataset": "digits", "model": model, "K_A": 3, "R": 10.0, "seed": seed,
    ...      "split": "train", "epoch": 1, "metric": metric, "value": value}
    ...     for model, low in (("deq", 0.8), ("explicit", 1.0)) for seed in range(3)
    ...     for metric, value in (("nc1_trace_ratio", low + seed * low / 100), ("accuracy_balanced", 1.0),
    ...                           ("accuracy_train_prior", 1.0))
    ... ]
    >>> found = nc.pairs(pd.DataFrame(rows), "nc1_trace_ratio")
    >>> print(found.interval, found.verdict("reduced", "lower").word)
    -0.20 ± 0.00 (3 seeds) supported
    """
    _check_columns(frame)
    _check_names(frame)
    runs = _judged_values(frame[frame["model"].isin([arm, against])], metric, split, how)
    both = runs[runs["model"] == arm].merge(
        runs[runs["model"] == against], on=[*SETTING, "seed"], suffixes=("", "_against")
    )
    if both.empty:
        models = ", ".join(sorted(map(str, frame["model"].dropna().unique()))) or "none"
        raise NotMeasured(f"no setting and seed has {metric} ({split}) of {arm!r} and of {against!r}; models: {models}")
    _check_repeats(both, [*_shared(frame), "epoch"])
    _check_settings(both)
    values = {arm: both["value"], against: both["value_against"]}
    for model, run in ((arm, "run_id"), (against, "run_id_against")):
        if len(bad := both[~np.isfinite(values[model]) | (relative & (values[model] <= 0))]):
            found = f"{values[model][bad.index[0]]:g}"
            raise NotMeasured(f"{metric} of run {bad.iloc[0][run]} is {found}{', which has no logarithm' * relative}")
    table = both[[*SETTING, "seed"]].assign(**{model: _shown(value, metric) for model, value in values.items()})
    compared = np.log(table[[arm, against]]) if relative else table[[arm, against]]
    table["difference"] = compared[arm] - compared[against]
    phases = [*both["reached"], *both["reached_against"]]
    terminal = None if None in phases else all(phases)
    return Pairs(metric, split, arm, against, relative, terminal, table)


def _check_names(frame: pd.DataFrame) -> None:
    """Refuse rows of settings with several names under one K_A and R, as those of settings relabelled as one have."""
    if "setting" in frame:
        named = frame[[*SETTING, "setting"]].drop_duplicates()
        if len(several := named[named.duplicated(SETTING, keep=False)]):
            said = ", ".join(map(str, several["setting"].unique()))
            raise ValueError(f"rows of one K_A and R are of several settings: {said}; give each its own K_A and R")


def _check_columns(frame: pd.DataFrame) -> None:
    if lacking := [name for name in _COLUMNS if name not in frame]:
        raise ValueError(f"the frame has no column {', '.join(lacking)}; see help(nclib.pairs) for those it needs")


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
        A row for each run: run_id, dataset, K_A, R, model, seed, what else the frame knows of its protocol, epoch (the
        last one), value, std, n.

    Raises
    ------
    ValueError
        As of `nclib.pairs`: for rows that repeat one another, and epochs or seeds that are not whole numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> frame = pd.DataFrame([
    ...     {"run_id": "a", "dataset": "digits", "model": "deq", "K_A": 0, "R": 1.0, "seed": 0, "split": "test",
    ...      "epoch": epoch, "metric": "loss", "value": value}
    ...     for epoch, value in ((1, 0.5), (2, 0.25))
    ... ])
    >>> nc.comparison.by_run(frame, "loss", "test")["value"].tolist()
    [0.25]
    """
    _check_columns(frame)
    rows = frame[(frame["metric"] == metric) & (frame["split"] == split)]
    for name in ("epoch", "seed"):
        whole = pd.to_numeric(rows[name], errors="coerce")
        texts = rows[name].map(lambda value: isinstance(value, str)).astype(bool)
        if len(bad := rows[name][texts | ~(whole % 1 == 0)]):
            raise ValueError(f"{name} {bad.iloc[0]!r} of {metric} ({split}) is not a whole number")
    if len(twice := rows[rows.duplicated(["run_id", "model", "epoch"])]):
        run, epoch = twice.iloc[0][["run_id", "epoch"]]
        raise ValueError(f"run {run} has {metric} ({split}) of epoch {epoch} twice; keep one row of each")
    count = {"last": 1, "last_epochs": LAST_EPOCHS}[how]
    runs = rows.sort_values("epoch").groupby([*KEYS, *_shared(frame)], dropna=False, sort=False, observed=True)
    try:
        tails = runs["value"].apply(lambda values: values.to_numpy()[-count:].astype(float))
    except (TypeError, ValueError):
        raise NotMeasured(f"{metric} ({split}) holds values that are not numbers") from None
    out = tails.reset_index().assign(epoch=runs["epoch"].max().to_numpy())
    out["n"] = out["value"].map(len)
    out["std"] = out["value"].map(lambda values: values.std(ddof=1) if len(values) > 1 else np.nan)
    out["value"] = out["value"].map(np.mean)
    return out


def terminal_phase(frame: pd.DataFrame) -> pd.DataFrame:
    """Whether each run ended with a training accuracy of at least 99.9 %, over images and as the mean over classes, so
    that errors in small classes count.

    Parameters
    ----------
    frame : tidy frame

    Returns
    -------
    DataFrame
        A row for each run that has one of the accuracies: its columns, value (the smaller one of the two, at the last
        epoch) and reached; not reached where one of them is not known.

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
    >>> nc.comparison.terminal_phase(frame)["reached"].tolist()
    [False]
    """
    rows = frame[(frame["split"] == "train") & frame["metric"].isin(PHASE_METRICS)]
    last = _phases(rows[rows["epoch"] == rows.groupby(["run_id", "model"])["epoch"].transform("max")])
    runs = rows[KEYS].drop_duplicates(["run_id", "model"]).reset_index(drop=True)
    values = last.set_index(["run_id", "model"])["value"].reindex(pd.MultiIndex.from_frame(runs[["run_id", "model"]]))
    return runs.assign(value=values.to_numpy(), reached=values.to_numpy() >= TERMINAL_ACCURACY)


def _phases(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each run, model and epoch with both training accuracies: value, the smaller one, and reached."""
    rows = frame[(frame["split"] == "train") & frame["metric"].isin(PHASE_METRICS)]
    rows = rows.dropna(subset=["value"])
    repeated = rows[rows.duplicated([*KEYS, "epoch", "metric"])]
    if len(repeated):
        first = repeated.iloc[0]
        raise ValueError(f"{first['metric']} of run {first['run_id']} at epoch {first['epoch']} stands in several rows")
    found = rows.groupby([*KEYS, "epoch"], dropna=False, sort=False, observed=True)["value"]
    smaller = found.min().where(found.count() == len(PHASE_METRICS)).dropna().reset_index()
    if (smaller["value"] > 1 + 1e-9).any():
        raise ValueError("training accuracies above 1: give the frame as it was before `percent`")
    return smaller.assign(reached=smaller["value"] >= TERMINAL_ACCURACY)


def _judged_values(frame: pd.DataFrame, metric: str, split: str, how: str) -> pd.DataFrame:
    """The runs with the value judged, whether they reached the terminal phase by then (None: not known), and whatever
    else the frame knows of them."""
    runs = by_run(frame, metric, split, how)
    known = _phases(frame).set_index(["run_id", "model", "epoch"])["reached"].to_dict()
    keys = zip(runs["run_id"], runs["model"], runs["epoch"], strict=True)
    runs["reached"] = pd.Series([known.get(key) for key in keys], dtype=object, index=runs.index)
    several = runs[runs.duplicated([*SETTING, "seed", "model"], keep=False)]
    if len(several):
        first, second = several[several["seed"].eq(several.iloc[0]["seed"])].iloc[[0, 1]].to_dict("records")
        raise ValueError(
            f"{first['model']} has several runs of one setting and seed, {first['run_id']} and {second['run_id']}"
            f"{_difference(first, second, _shared(frame))}; select the runs of one kind first"
        )
    return runs


def _shared(frame: pd.DataFrame) -> list[str]:
    return [name for name in _SHARED if name in frame]


def _check_repeats(both: pd.DataFrame, shared: list[str]) -> None:
    """Refuse runs of a setting, of either network, that differ in more than they should."""
    partners = both[[f"{name}_against" for name in ("run_id", *shared)]].set_axis(["run_id", *shared], axis="columns")
    runs = pd.concat([both[[*SETTING, "run_id", *shared]], partners.join(both[SETTING])])
    for _, group in runs.groupby(SETTING, dropna=False, sort=False):
        first, *others = group.to_dict("records")
        for other in others:
            if said := _difference(first, other, shared):
                raise ValueError(f"runs {first['run_id']} and {other['run_id']} cannot be compared{said}")


def _check_settings(both: pd.DataFrame) -> None:
    """Refuse seeds of other settings."""
    settings = both[SETTING].fillna(0).apply(tuple, axis="columns").groupby(both["seed"]).apply(frozenset)
    if settings.nunique() > 1:
        counts = settings.map(len).to_dict()
        raise ValueError(f"each seed needs the same settings, or its mean is over others; settings by seed: {counts}")


def _difference(first: Mapping[str, Any], second: Mapping[str, Any], names: Iterable[str]) -> str:
    """ ": epochs 40 and 20"; "" where they agree. A protocol, a JSON object, is compared option by option."""
    for name in names:
        mine, other = first[name], second[name]
        if mine == other or (pd.isna(mine) and pd.isna(other)):
            continue
        if name != "protocol":
            return f": {name} {mine} and {other}"
        mine, other = json.loads(mine), json.loads(other)
        option = next(key for key in {**mine, **other} if mine.get(key) != other.get(key))
        return f": {option} {mine.get(option)} and {other.get(option)}"
    return ""


def _shown(values: pd.Series, metric: str) -> pd.Series:
    """Accuracies in percent."""
    return 100 * values if metric.startswith("accuracy_") else values
