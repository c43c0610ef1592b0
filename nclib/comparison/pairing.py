"""The one way from a tidy frame to a statement about two networks: `pairs`."""

import functools
import json
import numbers
import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from nclib.comparison.verdicts import EQUAL_WITHIN, LEVEL, Interval, Verdict, interval, verdict
from nclib.config import LAST_EPOCHS, ModelConfig, one_of

SETTING = ["dataset", "K_A", "R"]
TERMINAL_ACCURACY = 0.999
"""Training accuracy from which on a network counts as in the terminal phase of training."""
PHASE_METRICS = ("accuracy_train_prior", "accuracy_balanced")
"""Training accuracies, over images and over classes, that both have to reach it."""

KEYS = ["run_id", *SETTING, "model", "seed"]
_RUN = ["run_id", "model"]
_ROW = ["split", "epoch", "metric", "value"]
_OF_SETTING = ("setting", "data.imbalance", "data.majority", "data.num_majority", "data.ratio")
"""Columns of stored runs that repeat which setting a run belongs to."""
_OF_NETWORK = {*ModelConfig.model_fields} - {"width", "feature_norm", "head"}


class NotMeasured(ValueError):
    """A value that would be judged is not a number, or there is none."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Two networks' runs, paired by setting and seed; made by `pairs`, which checks them.

    Parameters
    ----------
    metric, split, arm, against, relative : as they were asked for
    terminal : whether every run is in the terminal phase: both training accuracies of at least 99.9 % at the epoch
        judged; None where one of them is not known. What it decides says the argument ``phase`` of `verdict`
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
        against, of their logarithms where ``relative``. Accuracies are in percent, their differences in percentage
        points."""
        return self._table.copy()

    settings = property(lambda self: len(self._table[SETTING].drop_duplicates()), doc="How many settings there are.")

    @property
    def interval(self) -> Interval:
        """Mean and interval over seeds; over several settings, of each seed's mean over them."""
        return interval(self._table.groupby("seed")["difference"].mean())

    @property
    def by_setting(self) -> pd.DataFrame:
        """A row for each setting: its columns, both networks' means, and mean, half and detectable of the difference
        over seeds, with their number."""
        rows = [
            (*keys, group[self.arm].mean(), group[self.against].mean(), *interval(group["difference"]).columns)
            for keys, group in self._table.groupby(SETTING, dropna=False, sort=False)
        ]
        columns = [*SETTING, self.arm, self.against, "difference", "half", "detectable", "seeds"]
        return pd.DataFrame(rows, columns=columns)

    def verdict(
        self,
        scale: str,
        claim: str | float | None = None,
        phase: Literal["required", "described"] = "required",
        equality: Literal["interval", "tost"] = "interval",
        within: float = EQUAL_WITHIN,
    ) -> Verdict:
        """The verdict of the pairs on a claim, by the rule of `nclib.verdict`.

        Parameters
        ----------
        scale : of the runs (`nclib.publish.notes.scale_of`)
        claim : "lower", "higher" or "equal", said of `arm`; the paper's difference; or None
        phase : what `terminal` decides. "required": runs short of the terminal phase get no verdict; "described": they
            are judged too, for accuracies and where a protocol fixed it before its runs. Where `terminal` is None,
            neither judges
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
        size, level = float(self._table[self.against].mean()), LEVEL if equality == "interval" else 0.9
        return verdict(self.interval, scale, claim, terminal, size, self.relative, within, level)


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
    how : "last" judges the metric's last epoch of each run; "last_epochs" the mean of its last ten logged ones, as the
        paper does
    arm, against : two values of the column model
    relative : compare logarithms, so that differences are those of ratios

    Returns
    -------
    Pairs

    Raises
    ------
    NotMeasured
        A `ValueError`: where a value to be judged is not a number or has no logarithm, a training accuracy is text, or
        a network has no value at all.
    ValueError
        For runs that cannot be compared; the message names which and why. The rules: epochs of the metric and seeds are
        whole numbers from 0. A run has one seed, one setting, and one row for a split, metric and epoch. Every setting
        has the same seeds, of both networks. All runs are alike in every other column: version of the data, width,
        epochs, rate, profile, whatever the frame has, and in the epochs judged. What only one network has may be
        missing in the other, columns ``train.…`` and ``data.…`` aside. Options of `ModelConfig`, as
        ``model.solver.tol``, are a network's own, width, feature norm and head apart; columns ``data.…`` may differ
        between data sets. Every run of both networks has the metric: leave out those that cannot have it, as balanced
        ones for minority classes. No run stands under a second network, seed, setting or data set. Seen are: within a
        network half of a run's values equal to five digits, or all accuracies, three of them different, where there is
        nothing else; across networks nine tenths, with three different values beside accuracies; run ids of
        `nclib.ensure_runs` that say another seed. Other epochs or settings of a run, under made-up ids, are not.

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
    if arm == against:
        raise ValueError(f"arm and against are both {arm!r}; name two networks")
    frame = _checked(frame)
    models = ", ".join(sorted(map(str, frame["model"].dropna().unique()))) or "none"
    frame = frame[frame["model"].isin([arm, against])].reset_index(drop=True)
    runs = _tails(frame, metric, split, how)
    if {*runs["model"]} != {arm, against}:
        raise NotMeasured(f"no setting has {metric} ({split}) of {arm!r} and of {against!r}; models: {models}")
    if len(lost := pd.MultiIndex.from_frame(frame[_RUN]).difference(pd.MultiIndex.from_frame(runs[_RUN]), sort=False)):
        raise ValueError(f"run {lost[0][0]} has rows, and none of {metric} ({split}); leave it out of the frame")
    at_end = frame[frame["epoch"].isin(runs["epoch"])].astype({"epoch": "int64"}).merge(runs[[*_RUN, "epoch"]])
    rows = pd.concat([frame[(frame["metric"] == metric) & (frame["split"] == split)], at_end])
    options = rows.drop(columns=_ROW).drop_duplicates()  # what the frame has but network, setting and seed
    _check_alike(pickle.dumps(options.merge(runs[[*_RUN, "epochs judged"]], on=_RUN)))
    _check_partners(runs, f"{metric} ({split})")
    _check_copies(rows)
    _check_copies(rows[rows["metric"] != metric], of_all=False)
    if len(bad := runs[~np.isfinite(runs["value"]) | (relative & (runs["value"] <= 0))]):
        found = f"{bad.iloc[0]['value']:g}{', which has no logarithm' * relative}"
        raise NotMeasured(f"{metric} of run {bad.iloc[0]['run_id']} is {found}")
    unit, keys = 100 if metric.startswith("accuracy_") else 1, [*SETTING, "seed"]
    if unit == 100 and not runs["value"].between(0, 1 + 1e-9).all():
        raise NotMeasured(f"{metric} below 0 or above 1: give the frame as it was before `percent`")
    own, other = (runs.loc[runs["model"] == name, [*keys, "value"]] for name in (arm, against))
    table = own.merge(other, on=keys).set_axis([*keys, arm, against], axis="columns")
    table[[arm, against]] *= unit
    compared = np.log(table[[arm, against]]) if relative else table[[arm, against]]
    table["difference"] = compared[arm] - compared[against]
    if unit == 1 and (table["difference"] == 0).all() and (table[arm] % 1).nunique() > 1:
        raise ValueError(f"{metric} is the same in {arm} and {against} in every pair: one run entered twice")
    accuracies = _phase(at_end).set_index(_RUN)["value"].reindex(pd.MultiIndex.from_frame(runs[_RUN]))
    terminal = None if accuracies.isna().any() else bool((accuracies >= TERMINAL_ACCURACY).all())
    return Pairs(metric, split, arm, against, relative, terminal, table)


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    if lacking := [name for name in [*KEYS, *_ROW] if name not in frame]:
        raise ValueError(f"the frame has no column {', '.join(lacking)}; see help(nclib.pairs) for those it needs")
    if frame["K_A"].isna().any() and (frame["K_A"] == 0).any():
        raise ValueError("K_A is 0 in some rows and missing in others; write balanced data in one way")
    if len(bad := [count for count in frame["K_A"].dropna().drop_duplicates() if not _whole(count)]):
        raise ValueError(f"K_A {bad[0]!r} is not a number of classes; leave it missing for balanced data")
    if not (pd.to_numeric(frame["R"], errors="coerce") >= 1).all():
        raise ValueError("R, images of a majority class over those of a minority class, is a number of at least 1")
    if lacking := [name for name in ("dataset", "run_id") if frame[name].isna().any()]:
        raise ValueError(f"the column {lacking[0]} is empty in some rows; name every run and its data")
    rules = dict.fromkeys(("dataset", "model"), lambda name: str(name).strip().casefold())
    rules["R"] = lambda ratio: round(float(ratio), 3)
    for name, plain in rules.items():
        found = frame[name].drop_duplicates()
        if len(alike := found[found.map(plain).duplicated(keep=False)]):
            raise ValueError(f"{name} is written in two ways, {alike.tolist()}; write it in one")
    # NumPy's functions refuse pandas' nullable types
    return frame.astype({n: object for n, kind in frame.dtypes.items() if getattr(kind, "na_value", 0) is pd.NA})


@functools.lru_cache(maxsize=64)  # the pairs of many metrics are of the same runs
def _check_alike(known: bytes) -> None:
    runs = pickle.loads(known)
    named = runs["run_id"].astype(str).str.extract(r"(.*)-s(\d+)-[0-9a-f]{12}")  # by `nclib.config.run_id`
    other = named[1].astype(float).sub(runs["seed"].astype(float)).fillna(0) != 0
    other |= named[0].groupby([runs[name] for name in (*SETTING, "model")], dropna=False).transform("nunique") > 1
    if len(bad := runs[runs.duplicated(_RUN) | other]):
        raise ValueError(f"run {bad.iloc[0]['run_id']} has rows or a name of different seeds, settings or options")
    options = runs.drop(columns=[*KEYS, "protocol"], errors="ignore")
    if "protocol" in runs:  # what is absent from it is unset
        known = (json.loads(one) if str(one).startswith("{") else {"protocol": one} for one in runs["protocol"])
        stored = pd.json_normalize([*known])
        stored = stored.where(stored.notna(), "none").map(str)
        if "model.kind" in stored:  # of a whole network the width, if it takes any, is its own
            whole = stored["model.kind"] == "network"
            stored["model.network.width"] = stored["model.width"].where(whole)
            stored["model.width"] = stored["model.width"].mask(whole)
        options = pd.concat([options, stored], axis="columns")
    for name, values in options.loc[:, options.nunique(dropna=False) > 1].items():
        for _, group in runs.groupby(_agree_within(name) or np.zeros(len(runs)), dropna=False):
            found = values[group.index].astype(object)
            if not name.startswith(("train.", "data.")):  # a network may lack an option of the other
                found = found[~found.isna().groupby(group["model"]).transform("all")]
            found = found.where(found.notna(), "none")
            if len(other := found[found != found.iloc[0]] if len(found) else found):
                (first, one), (second, two) = ((runs["run_id"][each.index[0]], each.iloc[0]) for each in (found, other))
                said = f"{name} {one} and {two} (seeds {sorted({*map(int, runs['seed'][other.index])})})"
                raise ValueError(f"runs {first} and {second} cannot be compared: {said}; is the column needed?")


def _agree_within(option: str) -> list[str]:
    """The columns among whose rows an option has one value. Options of a network beside its width are its own."""
    if option in _OF_SETTING:
        return SETTING
    own = option.startswith("model.") and option.split(".")[1] in _OF_NETWORK
    return ["model"] if own else ["dataset"] * option.startswith("data.")


def _check_partners(runs: pd.DataFrame, what: str) -> None:
    """Refuse settings that have not the same seeds, each once, of both networks."""
    wanted = {(model, seed) for model in runs["model"] for seed in runs["seed"]}
    for keys, group in runs.groupby(SETTING, dropna=False, sort=False):
        there = Counter(zip(group["model"], group["seed"], strict=True))
        for model, seed in sorted(wanted):
            if there[model, seed] != 1:
                said = f"has {there[model, seed]} runs of seed {seed} with {what} of {model}, where one is needed"
                raise ValueError("{}, K_A = {}, R = {} ".format(*keys) + said)


def _check_copies(rows: pd.DataFrame, of_all: bool = True) -> None:
    """Refuse two runs that are one, costs aside, under whatever network, seed or setting they stand; unless of_all,
    where other values than counts tell."""
    rows = rows.assign(value=pd.to_numeric(rows["value"], errors="coerce"))
    rows = rows[(rows["value"] % 1 > 0) & ~rows["metric"].str.contains("second|time|memory")]
    table = rows.pivot_table("value", ["split", "epoch", "metric"], ["run_id", "model"], sort=False)
    counted = table.index.get_level_values("metric").str.contains("accuracy|mismatch|converged|auroc|steps|_max")
    varied = counted | (table.max(axis=1) - table.min(axis=1) > 5e-5 * table.max(axis=1))  # a rate is that of all runs
    values, counted = table[varied].T.to_numpy(), counted[varied]
    if counted.all() and not of_all:
        return
    for place, run in enumerate(table):
        own = np.array([model == run[1] for _, model in table.columns[place + 1 :]], bool)
        for other in np.flatnonzero(_alike(values[place], values[place + 1 :], counted, own)) + place + 1:
            said = " and ".join(f"{name} of {model}" for name, model in (run, table.columns[other]))
            raise ValueError(f"runs {said} have the same values: one run entered twice")


def _alike(run: np.ndarray, others: np.ndarray, counted: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Which of the other runs (M, values) share their values with this one, to five digits and not by chance: three
    different ones, or one in single precision, and half of all. Counts of images are often equal, so they decide only
    where nothing else is measured, and all of them. Of another network than its own, as of two states of one, several
    other values have to be equal, and nine tenths."""
    apart = np.abs(run / others - 1)
    both = np.isfinite(apart)
    real = both & ~counted
    measured = real.any(axis=1)
    judged = np.where(measured[:, None], real, both)
    equal = judged & (apart <= 5e-5)
    several = np.array([len({f"{value:.4g}" for value in run[one]}) > 2 for one in equal], bool)
    sure = np.where(own, several | (equal & real & (apart <= 1e-7)).any(axis=1), several & measured)
    return sure & (equal.sum(axis=1) >= np.where(measured, np.where(own, 0.5, 0.9), 1) * judged.sum(axis=1))


def by_run(frame: pd.DataFrame, metric: str, split: str, how: str = "last") -> pd.DataFrame:
    """One value of a metric for each run.

    Parameters
    ----------
    frame : tidy frame, as of `nclib.pairs`
    metric, split : which rows
    how : "last" takes the last logged epoch; "last_epochs" the mean of the last ten logged ones, with their sample
        standard deviation in ``std`` (the paper's way: fluctuation within a run, not s.d. over seeds)

    Returns
    -------
    DataFrame
        A row for each run: run_id, dataset, K_A, R, model, seed, what else the frame has of its protocol, epoch (the
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
    return _tails(_checked(frame), metric, split, how).drop(columns="epochs judged")


def _tails(frame: pd.DataFrame, metric: str, split: str, how: str) -> pd.DataFrame:
    """`by_run`, and which epochs it took."""
    one_of(how, ("last", "last_epochs"), "value of how")
    rows = frame.loc[(frame["metric"] == metric) & (frame["split"] == split), [*KEYS, "epoch", "value"]]
    for name in ("epoch", "seed"):
        values = rows[name] if rows[name].dtype == object else rows[name].drop_duplicates()
        if len(bad := values[[not _whole(value) for value in values]]):
            raise ValueError(f"{name} {bad.iloc[0]!r} of {metric} ({split}) is not a whole number")
    if len(twice := rows[rows.duplicated([*_RUN, "epoch"])]):
        run, epoch = twice.iloc[0][["run_id", "epoch"]]
        raise ValueError(f"run {run} has {metric} ({split}) of epoch {epoch} twice; keep one row of each")
    if rows["value"].dtype != float and not all(map(_number, rows["value"])):
        raise NotMeasured(f"{metric} ({split}) holds values that are not numbers")
    count = LAST_EPOCHS if how == "last_epochs" else 1
    rows = rows.astype({"epoch": "int64", "value": float}).sort_values("epoch")
    runs = rows.groupby(KEYS, dropna=False, sort=False, observed=True)
    tails = runs["value"].apply(lambda values: values.to_numpy()[-count:])
    out = tails.reset_index().assign(epoch=runs["epoch"].max().to_numpy())
    out["n"] = out["value"].map(len)
    out["std"] = out["value"].map(lambda values: values.std(ddof=1) if len(values) > 1 else np.nan)
    out["value"] = out["value"].map(np.mean)
    out["epochs judged"] = runs["epoch"].apply(lambda values: str(values.tolist()[-count:])).to_numpy()
    return out


def _number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return _number(value) and value >= 0 and value % 1 == 0


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
    return _phase(_checked(frame))


def _phase(frame: pd.DataFrame) -> pd.DataFrame:
    ends = pd.concat([_tails(frame, metric, "train", "last") for metric in PHASE_METRICS])
    runs = ends.groupby(KEYS, dropna=False, sort=False, observed=True)
    found = runs.agg(value=("value", "min"), known=("value", "count"), epochs=("epoch", "nunique")).reset_index()
    value = found["value"].where((found["known"] == len(PHASE_METRICS)) & (found["epochs"] == 1))
    if (ends["value"] > 1 + 1e-9).any():
        raise ValueError("training accuracies above 1: give the frame as it was before `percent`")
    return found[KEYS].assign(value=value, reached=value >= TERMINAL_ACCURACY)
