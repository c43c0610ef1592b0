"""From tidy frames to statements about two networks: pairs by seed, intervals, verdicts by stated
rules, tables.

A tidy frame has a row for each run, split, metric and epoch: what `nclib.ensure_runs` returns, or a
table of your own with the columns of `COLUMNS`. `pairs` checks it and pairs two networks by setting
and seed; what it returns has an interval over seeds and, by the rule of `verdict`, one word for a
claim.
"""

import collections
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from nclib.config import LAST_EPOCHS, one_of

SETTING = ["dataset", "K_A", "R"]
"""Data set, number of majority classes (missing for balanced data) and imbalance ratio."""
COLUMNS = ["run_id", *SETTING, "model", "seed", "split", "epoch", "metric", "value"]
"""Columns that every tidy frame has."""
RUN = ["run_id", *SETTING, "model", "seed"]
"""Columns that have one value for each run."""

LEVEL = 0.95
POWER = 0.8
"""How often a difference called detectable would be found."""
MIN_SEEDS = 3
"""Fewer seeds than this are reported and get no verdict."""
EQUAL_WITHIN = 0.1
"""Two networks are equal when the interval of their difference lies within this share of the
explicit network's value: our reading of the paper's "comparable", chosen after the first runs were
seen."""
TERMINAL_ACCURACY = 0.999
"""Training accuracy from which on a network counts as in the terminal phase of training."""
PHASE_METRICS = ("accuracy_train_prior", "accuracy_balanced")
"""Training accuracies, over images and over classes, that both have to reach it."""

CLAIMS = ("lower", "higher", "equal")
"""What a paper can claim of one network against another; a number claims its sign and its size."""
VERDICTS = {
    "supported": (
        "significant, and on the side that the paper claims; at the paper's or reduced scale"
    ),
    "contradicted": "significant, and on the other side; at the paper's or reduced scale",
    "as claimed here": (
        "significant, and on the side that the paper claims; at toy scale, so of this data only"
    ),
    "opposite here": "significant, and on the other side; at toy scale, so of this data only",
    "not significant": "the 95 % interval over seeds contains 0, which is not evidence of equality",
    "equal": (
        "the whole interval lies within 10 % of the value compared with, "
        "or every seed gives the same value"
    ),
    "reported": "a value without a verdict; the remark gives the reason",
    "not run": "not available at this size; the remark gives the reason",
    "higher": "significantly higher, where no paper claims anything",
    "lower": "significantly lower, where no paper claims anything",
}
"""The words of verdicts on experiments, and what each means."""
SCALES = {
    "paper": "the paper's data, all of its images, its width (64) and its epochs (100 or more)",
    "reduced": (
        "every training image of the paper's classes; "
        "a narrower network, fewer epochs or a copy of the images"
    ),
    "toy": "other data, or a part of the paper's",
}
"""How far a verdict reaches, the furthest first."""
AT_TOY_SCALE = {"supported": "as claimed here", "contradicted": "opposite here"}
"""What the words that speak of a paper become at toy scale."""
VERDICT_COLUMNS = ["verdict", "scale", "remark"]
"""The columns of a table that hold a `Verdict`."""
INTERVAL_COLUMNS = ["difference", "half", "detectable", "seeds"]
"""The columns of a table that hold an `Interval`."""


class NotMeasured(ValueError):
    """A value that would be judged is missing, or is not a finite number."""


# --- intervals ------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """Mean with a two-sided 95 % t-interval, mean ± half.

    Parameters
    ----------
    mean : NaN for no value
    half : NaN for fewer than two
    n : how many values
    """

    mean: float
    half: float
    n: int

    @property
    def significant(self) -> bool:
        """Whether 0 lies outside."""
        return bool(abs(self.mean) > self.half)

    @property
    def side(self) -> str:
        """ "higher" or "lower" where the mean is significant, else ""."""
        if not self.significant:
            return ""
        return "higher" if self.mean > 0 else "lower"

    @property
    def varies(self) -> bool:
        """Whether the values differ, beyond rounding. Where they do not, as with three small test
        sets that give the same difference, no interval follows from them."""
        return bool(self.half > 1e-9 * abs(self.mean))

    @property
    def detectable(self) -> float:
        """The smallest true mean that as many values with this s.d. would show to be other than 0
        in 80 % of the cases; NaN for fewer than three values, or equal ones. What is not
        significant may be as large as this."""
        if self.n < MIN_SEEDS or not self.varies:
            return float("nan")
        return _detectable_half_widths(self.n) * self.half

    @property
    def columns(self) -> tuple[float, float, float, int]:
        """What tables show, in the order of `INTERVAL_COLUMNS`."""
        return self.mean, self.half, self.detectable, self.n

    def ends(self, level: float = LEVEL) -> tuple[float, float]:
        """Lower and upper end of the t-interval of this level."""
        if self.n < 2:
            return float("nan"), float("nan")
        half = self.half * _critical(level, self.n) / _critical(LEVEL, self.n)
        return float(self.mean - half), float(self.mean + half)

    def __str__(self) -> str:
        """For instance "+0.09 ± 0.50 (3 seeds)"; one seed has no interval."""
        if self.n == 0:
            return "no value (0 seeds)"
        if self.n == 1:
            return f"{self.mean:+.2f} (1 seed)"
        return f"{self.mean:+.2f} ± {self.half:.2f} ({self.n} seeds)"


def _critical(level: float, n: int) -> float:
    """How many standard errors of n values a t-interval of this level reaches to each side."""
    return float(special.stdtrit(n - 1, (1 + level) / 2))


def _chi2_quantile(probability: float, degrees: int) -> float:
    return 2 * float(special.gammaincinv(degrees / 2, probability))


@functools.cache
def _detectable_half_widths(n: int) -> float:
    """The shift that a t-test of n values finds with `POWER`, over the half-width of its interval:
    1.31 for three."""
    from scipy import optimize, stats  # here: it takes half a second to load

    critical = _critical(LEVEL, n)

    def missing_power(ratio: float) -> float:
        # The square of a shifted t is a noncentral F.
        return float(stats.ncf.sf(critical**2, 1, n - 1, (ratio * critical) ** 2)) - POWER

    return optimize.brentq(missing_power, 0.5, 2.0)


def interval(values: Sequence[float]) -> Interval:
    """Mean and t-interval of independent values (the seeds): mean ± t_{n−1} s/√n.

    Parameters
    ----------
    values : one number for each seed

    Returns
    -------
    Interval

    Raises
    ------
    ValueError
        For a table or matrix of values.

    Examples
    --------
    >>> import nclib as nc
    >>> difference = nc.interval([0.9, 1.0, 1.1])
    >>> round(difference.mean, 3), round(difference.half, 3)
    (1.0, 0.248)
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 1:
        raise ValueError(f"give one number for each seed, not an array of shape {values.shape}")
    n = len(values)
    if n == 0:
        return Interval(float("nan"), float("nan"), 0)
    if n == 1:
        return Interval(float(values[0]), float("nan"), 1)
    half = _critical(LEVEL, n) * values.std(ddof=1) / np.sqrt(n)
    return Interval(float(values.mean()), float(half), n)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Standard deviation of independent normal values and its 95 % interval: s √((n−1)/χ²), at
    0.975 and 0.025.

    From three values it reaches from half of s to six times s.

    Parameters
    ----------
    values : one number for each seed

    Returns
    -------
    s, low and high; NaN for fewer than two values.

    Examples
    --------
    >>> import nclib as nc
    >>> [round(end, 2) for end in nc.compare.spread([0.9, 1.0, 1.1])]
    [0.1, 0.05, 0.63]
    """
    values = np.asarray(values, dtype=float)
    n = len(values)
    if n < 2:
        return float("nan"), float("nan"), float("nan")
    deviation = float(values.std(ddof=1))
    tail = (1 - LEVEL) / 2
    low = deviation * float(np.sqrt((n - 1) / _chi2_quantile(1 - tail, n - 1)))
    high = deviation * float(np.sqrt((n - 1) / _chi2_quantile(tail, n - 1)))
    return deviation, low, high


# --- verdicts -------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What is said of a claim.

    Parameters
    ----------
    word : one of `VERDICTS`
    scale : of the evidence, one of `SCALES`
    remark : what else is to be said, "" where nothing is
    """

    word: str
    scale: str
    remark: str = ""

    def __str__(self) -> str:
        """For instance "reported (toy scale; 2 seeds)"."""
        remark = f"; {self.remark}" if self.remark else ""
        return f"{self.word} ({self.scale} scale{remark})"


def verdict(
    difference: Interval,
    scale: str,
    claim: str | float | None = None,
    terminal: bool | None = True,
    size: float = float("nan"),
    of_logs: bool = False,
    within: float = EQUAL_WITHIN,
    level: float = LEVEL,
) -> Verdict:
    """The verdict of a measured difference on a claim.

    In this order: fewer than three seeds, an unknown phase, a run short of the terminal phase,
    values that are not numbers, and the same difference in every seed are "reported"; where it is 0
    in every seed, "equal". A claim of equality: "equal" when the whole interval lies within 10 % of
    `size`. 0 inside the 95 % interval: "not significant". Else "supported" on the claimed side of
    0, "contradicted" on the other; at toy scale "as claimed here" and "opposite here". No
    significant difference contradicts a claim of equality, as "comparable" has no size: "reported".
    No claim: "higher" or "lower".

    `nclib.pairs` finds phase and size by itself: use its ``judge`` for differences between two
    networks.

    Parameters
    ----------
    difference : paired difference with its interval
    scale : of the runs, one of `SCALES` (`nclib.profiles.scale_of`)
    claim : "lower", "higher" or "equal"; or the paper's difference in the same unit, which claims
        its sign, and at the paper's scale its size too: the remark is "compatible in size" when it
        lies in the interval, else "other size". A 0 in the paper has no sign. None, or NaN as
        tables have it, where no paper claims anything
    terminal : whether all runs ended in the terminal phase; None where that is not known
    size : the value that "equal" is relative to; without it nothing is equal
    of_logs : of differences of logarithms; "equal" is then a ratio from 0.9 to 1.1
    within : the share that "equal" allows
    level : of the interval that has to lie within it: 0.95, or 0.9 for two one-sided tests at 0.05
        (TOST)

    Returns
    -------
    Verdict

    Raises
    ------
    ValueError
        For another scale or claim.

    Examples
    --------
    >>> import nclib as nc
    >>> nc.verdict(nc.interval([0.9, 1.0, 1.1]), "paper", "higher").word
    'supported'
    """
    one_of(scale, SCALES, "scale")
    if isinstance(claim, str):
        one_of(claim, CLAIMS, "claim")
    elif claim is not None:
        claim = float(claim)  # a NumPy or torch number as well
        if np.isnan(claim):
            claim = None
    if not 0 <= within < np.inf:
        raise ValueError(f"within={within!r}: give a share of at least 0, such as 0.1")
    equal = claim == "equal" and _is_equal(difference, size, of_logs, within, level)
    word, remark = _judged(difference, claim, terminal, equal, within)
    if word == "supported" and not isinstance(claim, str):
        remark = _size_remark(difference, claim, scale)
    if scale == "toy":
        word = AT_TOY_SCALE.get(word, word)
    return Verdict(word, scale, remark)


def _is_equal(
    difference: Interval, size: float, of_logs: bool, within: float, level: float
) -> bool:
    """Whether the whole interval lies within this share of the size, or within this share of a
    ratio of 1."""
    if of_logs:
        lowest = np.log1p(-within)
        highest = np.log1p(within)
    else:
        lowest = -within * abs(size)
        highest = within * abs(size)
    low, high = difference.ends(level)
    return bool(lowest <= low and high <= highest)


def _size_remark(difference: Interval, claim: float, scale: str) -> str:
    if scale != "paper":
        return "size not comparable"
    return "compatible in size" if abs(claim - difference.mean) <= difference.half else "other size"


def _judged(
    difference: Interval,
    claim: str | float | None,
    terminal: bool | None,
    equal: bool,
    within: float,
) -> tuple[str, str]:
    """Word and remark, whatever the scale."""
    if difference.n == 1:
        return "reported", "1 seed"
    if difference.n < MIN_SEEDS:
        return "reported", f"{difference.n} seeds"
    if terminal is None:
        return "reported", "terminal phase not known"
    if not terminal:
        return "reported", "before the terminal phase"
    if not np.isfinite(difference.mean):
        return "reported", "not measured"
    if not difference.varies and difference.mean == 0:
        return "equal", "the same value in every seed"
    if not difference.varies:
        return "reported", "the same difference in every seed"
    if equal:
        return "equal", f"within {100 * within:.0f} %"
    if not difference.significant:
        return "not significant", ""
    if claim is None:
        return difference.side, ""
    if claim == "equal":
        return "reported", f"{difference.side}, where equality is claimed"
    if claim == 0:
        return "reported", f"{difference.side}, where the paper's difference is 0"
    claimed_side = claim
    if not isinstance(claim, str):
        claimed_side = "higher" if claim > 0 else "lower"
    if difference.side == claimed_side:
        return "supported", ""
    return "contradicted", ""


# --- pairs ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """Two networks' runs, paired by setting and seed; made by `pairs`, which checks them.

    Parameters
    ----------
    metric, split, arm, against, relative : as they were asked for
    terminal : whether every run is in the terminal phase: both training accuracies are at least
        99.9 % at the epoch judged; None where one of them is not known
    table : a row for each pair: the columns of the setting, seed, both networks' values and
        ``difference``, arm − against, of their logarithms where ``relative``. Accuracies are in
        percent, their differences in points
    """

    metric: str
    split: str
    arm: str
    against: str
    relative: bool
    terminal: bool | None
    table: pd.DataFrame = dataclasses.field(repr=False)

    @property
    def settings(self) -> int:
        """How many settings there are."""
        return len(self.table[SETTING].drop_duplicates())

    @property
    def mean_difference(self) -> Interval:
        """Mean and interval over seeds; over several settings, of each seed's mean over them."""
        return interval(self.table.groupby("seed")["difference"].mean())

    @property
    def by_setting(self) -> pd.DataFrame:
        """A row for each setting: its columns, both networks' means, and mean, half and detectable
        of the difference over seeds, with their number."""
        rows = []
        for setting_values, group in self.table.groupby(SETTING, dropna=False, sort=False):
            means = (group[self.arm].mean(), group[self.against].mean())
            rows.append((*setting_values, *means, *interval(group["difference"]).columns))
        return pd.DataFrame(rows, columns=[*SETTING, self.arm, self.against, *INTERVAL_COLUMNS])

    def judge(
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
        scale : of the runs (`nclib.profiles.scale_of`)
        claim : "lower", "higher" or "equal", said of `arm`; the paper's difference; or None
        phase : what `terminal` decides. "required": runs short of the terminal phase get no
            verdict; "described": they are judged too, for accuracies and where a protocol fixed it
            before its runs. Where `terminal` is None, neither judges
        equality : the interval that has to lie within the bounds of "equal": "interval" the one of
            95 %, "tost" the one of 90 %, which is two one-sided tests at 0.05
        within : those bounds, as a share of the value compared with

        Returns
        -------
        Verdict
        """
        one_of(phase, ("required", "described"), "phase")
        one_of(equality, ("interval", "tost"), "equality")
        terminal = self.terminal
        if phase == "described" and terminal is not None:
            terminal = True
        size = float(self.table[self.against].mean())
        level = LEVEL if equality == "interval" else 0.9
        return verdict(
            self.mean_difference, scale, claim, terminal, size, self.relative, within, level
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

    Every interval and verdict about two networks starts here, so that what is compared is checked
    in one place: the columns; one row for each run, split, metric and epoch; the same seeds of both
    networks in every setting; one protocol for each network; finite values.

    Parameters
    ----------
    frame : tidy frame, with the columns of `COLUMNS`. K_A is missing for balanced data; accuracies
        are fractions. A column ``protocol`` says how a run was made (`nclib.ensure_runs` writes it)
    metric, split : which rows
    how : "last" judges the metric's last epoch of each run; "last_epochs" the mean of its last ten
        logged ones, as the paper does
    arm, against : two values of the column model
    relative : compare logarithms, so that differences are those of ratios

    Returns
    -------
    Pairs

    Raises
    ------
    ValueError
        For a frame that fails one of the five checks; the message names the run, seed or network.
    NotMeasured
        A `ValueError`: where a network has no value of the metric, or one that is not finite or has
        no logarithm.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> rows = []
    >>> for model, low in (("deq", 0.8), ("explicit", 1.0)):
    ...     for seed in range(3):
    ...         run = {"run_id": f"{model}-{seed}", "model": model, "seed": seed}
    ...         run |= {"dataset": "digits", "K_A": 3, "R": 10.0, "split": "train", "epoch": 1}
    ...         rows.append(run | {"metric": "nc1_trace_ratio", "value": low + seed * low / 100})
    ...         rows.append(run | {"metric": "accuracy_balanced", "value": 1.0})
    ...         rows.append(run | {"metric": "accuracy_train_prior", "value": 1.0})
    >>> both = nc.pairs(pd.DataFrame(rows), "nc1_trace_ratio")
    >>> print(both.mean_difference, both.judge("reduced", "lower").word)
    -0.20 ± 0.00 (3 seeds) supported
    """
    if arm == against:
        raise ValueError(f"arm and against are both {arm!r}; name two networks")
    _check_columns(frame)
    models = ", ".join(sorted(frame["model"].dropna().astype(str).unique())) or "none"
    frame = frame[frame["model"].isin([arm, against])]
    runs = by_run(frame, metric, split, how)
    for model in (arm, against):
        if model not in set(runs["model"]):
            raise NotMeasured(
                f"no run of {model!r} has {metric} ({split}); models in the frame: {models}"
            )
    _check_seeds(frame, runs, (arm, against), f"{metric} ({split})")
    _check_protocols(frame, runs)
    _check_values(runs, metric, relative)

    unit = 100 if metric.startswith("accuracy_") else 1
    columns = [*SETTING, "seed", "value"]
    left = runs.loc[runs["model"] == arm, columns].rename(columns={"value": arm})
    right = runs.loc[runs["model"] == against, columns].rename(columns={"value": against})
    table = left.merge(right, on=[*SETTING, "seed"])
    table[[arm, against]] *= unit
    compared = table[[arm, against]]
    if relative:
        compared = np.log(compared)
    table["difference"] = compared[arm] - compared[against]
    return Pairs(metric, split, arm, against, relative, _terminal(frame, runs), table)


def _check_columns(frame: pd.DataFrame) -> None:
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise ValueError(
            f"the frame has no column {', '.join(missing)}; "
            "see help(nclib.pairs) for those it needs"
        )


def _check_seeds(
    frame: pd.DataFrame, runs: pd.DataFrame, models: tuple[str, str], measured: str
) -> None:
    """Every setting has each seed of the frame once, of both networks."""
    seeds = sorted(frame["seed"].unique())
    numbers = runs.groupby(SETTING, dropna=False, sort=False).ngroup()
    count = collections.Counter(zip(numbers, runs["model"], runs["seed"], strict=True))
    settings = runs[SETTING].drop_duplicates().itertuples(index=False, name=None)
    for number, (dataset, num_majority, ratio) in enumerate(settings):
        where = f"{dataset}, K_A = {num_majority}, R = {ratio}"
        for model in models:
            missing = [str(seed) for seed in seeds if count[number, model, seed] == 0]
            if missing:
                raise ValueError(
                    f"{where}: {model} has no run of seed {', '.join(missing)} with {measured}; "
                    "train it, or leave this seed or setting out of the frame"
                )
            repeated = [seed for seed in seeds if count[number, model, seed] > 1]
            if repeated:
                raise ValueError(
                    f"{where}: {model} has {count[number, model, repeated[0]]} runs of seed "
                    f"{repeated[0]} with {measured}; select the rows of one of them"
                )


def _check_protocols(frame: pd.DataFrame, runs: pd.DataFrame) -> None:
    """The runs of a network on a data set are made alike and are as long."""
    for (dataset, model), group in runs.groupby(["dataset", "model"]):
        if group["epoch"].nunique() > 1:
            shortest = group.loc[group["epoch"].idxmin()]
            raise ValueError(
                f"runs of {model} on {dataset} end at epochs "
                f"{sorted(group['epoch'].unique().tolist())}: run {shortest['run_id']} is shorter "
                "than others; train it to the end, or leave it out"
            )
    if "protocol" not in frame:
        return
    for (dataset, model), group in frame.groupby(["dataset", "model"]):
        protocols = group["protocol"].dropna().unique()
        if len(protocols) > 1:
            first = group.loc[group["protocol"] == protocols[0], "run_id"].iloc[0]
            second = group.loc[group["protocol"] == protocols[1], "run_id"].iloc[0]
            raise ValueError(
                f"runs {first} and {second} of {model} on {dataset} were made in two ways: "
                f"{_differing_options(protocols[0], protocols[1])}; select the rows of one"
            )


def _differing_options(one: str, two: str) -> str:
    try:
        first = json.loads(one)
        second = json.loads(two)
        names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        return ", ".join(f"{name} {first.get(name)} and {second.get(name)}" for name in names)
    except (ValueError, TypeError, AttributeError):  # a protocol in words
        return f"protocol {one} and {two}"


def _check_values(runs: pd.DataFrame, metric: str, relative: bool) -> None:
    allowed = np.isfinite(runs["value"])
    if relative:
        allowed &= runs["value"] > 0
    if not allowed.all():
        run = runs[~allowed].iloc[0]
        reason = ", which has no logarithm" if np.isfinite(run["value"]) else ""
        raise NotMeasured(f"{metric} of run {run['run_id']} is {run['value']:g}{reason}")
    if metric.startswith("accuracy_"):
        _check_fractions(runs["value"], metric)


def _check_fractions(accuracies: pd.Series, metric: str) -> None:
    if (accuracies > 1 + 1e-9).any():
        raise ValueError(f"{metric} above 1: give the frame as it was before `percent`")


def _terminal(frame: pd.DataFrame, runs: pd.DataFrame) -> bool | None:
    """Whether all runs are in the terminal phase at the epoch judged; None where that is not known
    of one."""
    is_accuracy = (frame["split"] == "train") & frame["metric"].isin(PHASE_METRICS)
    judged = runs[["run_id", "model", "epoch"]]
    accuracies = frame[is_accuracy].merge(judged, on=["run_id", "model", "epoch"])
    _check_once(accuracies)
    _check_fractions(accuracies["value"], "training accuracy")
    found = accuracies.groupby(["run_id", "model"])["value"].agg(["min", "count"])
    if len(found) < len(judged) or (found["count"] < len(PHASE_METRICS)).any():
        return None
    return bool((found["min"] >= TERMINAL_ACCURACY).all())


# --- tables ---------------------------------------------------------------------------------------


def by_run(frame: pd.DataFrame, metric: str, split: str, how: str = "last") -> pd.DataFrame:
    """One value of a metric for each run.

    Parameters
    ----------
    frame : tidy frame, as of `nclib.pairs`
    metric, split : which rows
    how : "last" takes the last logged epoch; "last_epochs" the mean of the last ten logged ones,
        with their sample standard deviation in ``std`` (the paper's way: fluctuation within a run,
        not s.d. over seeds)

    Returns
    -------
    DataFrame
        A row for each run, in the order of the frame: run_id, dataset, K_A, R, model, seed, epoch
        (the last one), value, std, n.

    Raises
    ------
    ValueError
        For a frame that lacks a column, or has two rows of one run, split, metric and epoch.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> run = {"run_id": "a", "dataset": "digits", "model": "deq", "K_A": 3, "R": 10.0, "seed": 0}
    >>> loss = {"split": "test", "metric": "loss", "epoch": [1, 2], "value": [0.5, 0.25]}
    >>> frame = pd.DataFrame(run | loss)
    >>> nc.compare.by_run(frame, "loss", "test")["value"].tolist()
    [0.25]
    """
    _check_columns(frame)
    one_of(how, ("last", "last_epochs"), "value of how")
    rows = frame.loc[
        (frame["metric"] == metric) & (frame["split"] == split),
        [*RUN, "split", "metric", "epoch", "value"],
    ]
    _check_once(rows)
    rows = rows.astype({"epoch": "int64", "value": float})
    number = rows.groupby(RUN, dropna=False, sort=False, observed=True).ngroup()
    rows = rows.assign(number=number).sort_values(["number", "epoch"])
    runs = rows.drop_duplicates("number", keep="last")[[*RUN, "epoch"]].reset_index(drop=True)
    count = LAST_EPOCHS if how == "last_epochs" else 1
    table = []
    for _, logged in rows.groupby("number")["value"]:
        values = logged.to_numpy()[-count:]
        deviation = values.std(ddof=1) if len(values) > 1 else np.nan
        table.append((values.mean(), deviation, len(values)))
    runs = runs.join(pd.DataFrame(table, columns=["value", "std", "n"]))
    for name in ("K_A", "R"):
        # pandas' own missing value becomes NaN
        runs[name] = runs[name].to_numpy(dtype=float, na_value=np.nan)
    return runs


def _check_once(rows: pd.DataFrame) -> None:
    """One row for each run, split, metric and epoch."""
    repeated = rows[rows.duplicated(["run_id", "model", "split", "metric", "epoch"])]
    if len(repeated):
        row = repeated.iloc[0]
        raise ValueError(
            f"run {row['run_id']} has {row['metric']} ({row['split']}) of epoch {row['epoch']} "
            "twice; keep one row of each"
        )


def terminal_phase(frame: pd.DataFrame) -> pd.DataFrame:
    """Whether each run ended with a training accuracy of at least 99.9 %, over images and as the
    mean over classes, so that errors in small classes count.

    Parameters
    ----------
    frame : tidy frame

    Returns
    -------
    DataFrame
        A row for each run that has one of the accuracies: its columns, value (the smaller one of
        the two, at the last epoch) and reached; not reached where one of them is not known.

    Raises
    ------
    ValueError
        Where accuracies are in percent, of which every one would count as reached.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> run = {"run_id": "a", "dataset": "digits", "model": "deq", "K_A": 3, "R": 10.0, "seed": 0}
    >>> metrics = ["accuracy_train_prior", "accuracy_balanced"]
    >>> accuracies = {"split": "train", "epoch": 1, "metric": metrics, "value": [1.0, 0.99]}
    >>> frame = pd.DataFrame(run | accuracies)
    >>> nc.compare.terminal_phase(frame)["reached"].tolist()
    [False]
    """
    accuracies = pd.concat([by_run(frame, metric, "train") for metric in PHASE_METRICS])
    _check_fractions(accuracies["value"], "training accuracy")
    runs = accuracies.groupby(RUN, dropna=False, sort=False)
    phases = runs.agg(
        value=("value", "min"), known=("value", "count"), epochs=("epoch", "nunique")
    ).reset_index()
    both_known = (phases["known"] == len(PHASE_METRICS)) & (phases["epochs"] == 1)
    value = phases["value"].where(both_known)
    return phases[RUN].assign(value=value, reached=value >= TERMINAL_ACCURACY)


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
    >>> frame = pd.DataFrame({"metric": ["accuracy_balanced", "loss"], "value": [0.5, 0.25]})
    >>> nc.compare.percent(frame)["value"].tolist()
    [50.0, 0.25]
    """
    is_accuracy = frame["metric"].str.startswith("accuracy_")
    return frame.assign(value=frame["value"].where(~is_accuracy, frame["value"] * 100))


def setting(
    frame: pd.DataFrame, dataset: str, num_majority: int | None = None, ratio: float = 1.0
) -> pd.DataFrame:
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
    if num_majority is None:
        return frame[rows & frame["K_A"].isna()]
    return frame[rows & frame["K_A"].eq(num_majority).fillna(False)]


def over_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds with a 95 % t-interval.

    Parameters
    ----------
    runs : of `by_run`

    Returns
    -------
    DataFrame
        A row for each setting and model: value, half, seeds, and within_std, the mean of the
        deviations within a run.
    """
    rows = []
    for cell_values, cell in runs.groupby([*SETTING, "model"], dropna=False, sort=False):
        rows.append((*cell_values, *interval(cell["value"]), cell["std"].mean()))
    return pd.DataFrame(rows, columns=[*SETTING, "model", "value", "half", "seeds", "within_std"])


def pooled_table(
    both: Pairs | None, scale: str, claim: str | float | None = None, remark: str = ""
) -> pd.DataFrame:
    """A difference of class-balanced accuracies over all settings, as a table of one row.

    Parameters
    ----------
    both : pairs of accuracies; None where no setting is complete
    scale : of the runs (`nclib.profiles.scale_of`)
    claim : as of `Pairs.judge`
    remark : besides that of the verdict

    Returns
    -------
    DataFrame
        metric; difference, half, detectable and seeds (see `Interval`); settings_found; verdict,
        scale and remark, by the rule of `Pairs.judge` with the phase described; and printed, the
        claim where there is one.
    """
    if both is None:
        difference = interval([])
        judged = verdict(difference, scale)
        settings = 0
    else:
        difference = both.mean_difference
        judged = both.judge(scale, claim, phase="described")
        settings = both.settings
    remarks = "; ".join(text for text in (judged.remark, remark) if text)
    row = ("accuracy_balanced", *difference.columns, settings, judged.word, judged.scale, remarks)
    table = pd.DataFrame(
        [row], columns=["metric", *INTERVAL_COLUMNS, "settings_found", *VERDICT_COLUMNS]
    )
    return table.assign(printed=f"DEQ {claim}") if isinstance(claim, str) else table


def claims_table(
    frame: pd.DataFrame, claims: Mapping[str, str], scale: str, split: str = "train"
) -> pd.DataFrame:
    """Metrics of both models, their paired difference and the verdict on the paper's claim.

    Accuracies are means over the last ten logged epochs, in percent; other metrics are those of the
    last epoch.

    Parameters
    ----------
    frame : tidy frame of one setting
    claims : metric name → "lower", "higher" or "equal", what the paper claims of the DEQ against
        the explicit network
    scale : of the runs (`nclib.profiles.scale_of`)
    split : of the metrics

    Returns
    -------
    DataFrame
        A row for each metric: metric; deq and explicit, the means over seeds; difference, half,
        detectable and seeds (see `Interval`); verdict, scale and remark, by the rule of `verdict`;
        and printed, the claim.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> rows = []
    >>> for model, value, slope in (("deq", 0.8, 0.02), ("explicit", 0.7, 0.01)):
    ...     for seed in range(3):
    ...         run = {"run_id": f"{model}-{seed}", "model": model, "seed": seed}
    ...         run |= {"dataset": "digits", "K_A": 3, "R": 10.0, "split": "train", "epoch": 1}
    ...         rows.append(run | {"metric": "nc1_trace_ratio", "value": value + seed * slope})
    >>> frame = pd.DataFrame(rows)
    >>> nc.compare.claims_table(frame, {"nc1_trace_ratio": "lower"}, "toy")["printed"].tolist()
    ['DEQ lower']
    """
    rows = []
    for metric, claim in claims.items():
        row = _row_of_one_setting(frame, metric, scale, split, "deq", "explicit", claim)
        rows.append((metric, *row, f"DEQ {claim}"))
    return pd.DataFrame(
        rows, columns=["metric", "deq", "explicit", *INTERVAL_COLUMNS, *VERDICT_COLUMNS, "printed"]
    )


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
    metrics : metric → its split. Accuracies are means over the last ten logged epochs, in percent;
        others of the last
    scale : of the runs (`nclib.profiles.scale_of`)
    arm, against : which model, and which it is compared with

    Returns
    -------
    DataFrame
        A row for each pair: metric; model (the one compared with); arm_value and value; difference,
        half, detectable and seeds (see `Interval`); and verdict, scale and remark. Collapse needs
        the terminal phase of both.
    """
    rows = []
    for metric, split in metrics.items():
        for model in against:
            rows.append(
                (metric, model, *_row_of_one_setting(frame, metric, scale, split, arm, model))
            )
    return pd.DataFrame(
        rows, columns=["metric", "model", "arm_value", "value", *INTERVAL_COLUMNS, *VERDICT_COLUMNS]
    )


def _row_of_one_setting(
    frame: pd.DataFrame,
    metric: str,
    scale: str,
    split: str,
    arm: str,
    against: str,
    claim: str | None = None,
) -> tuple[Any, ...]:
    """Both networks' means, the columns of the interval, and the verdict."""
    is_accuracy = metric.startswith("accuracy")
    try:
        both = pairs(frame, metric, split, "last_epochs" if is_accuracy else "last", arm, against)
    except NotMeasured:
        return (*[np.nan] * 5, 0, "reported", scale, "not measured")
    if both.settings > 1:
        raise ValueError(
            f"the frame holds {both.settings} settings, and this table is of one; "
            "ratios pools several"
        )
    means = both.by_setting.iloc[0]
    judged = both.judge(scale, claim, "described" if is_accuracy else "required")
    return (means[arm], means[against], *both.mean_difference.columns, *judged)


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

    Each seed's mean over the settings of log(arm / against) at the last epoch, a 95 % t-interval
    over seeds, and both as a change in percent.

    Parameters
    ----------
    frame : tidy frame of runs, the same settings for every seed
    metrics : positive ones, 0 at collapse; a mapping says what is claimed of each, "lower",
        "higher" or "equal"
    scale : of the runs (`nclib.profiles.scale_of`)
    split : of the metrics
    arm, against : which model, and which it is compared with
    terminal : whether the networks ended in the terminal phase, where both are states of one
        trained network, whose phase is not among their own rows; left out, what `pairs` finds

    Returns
    -------
    DataFrame
        A row for each metric: metric; change, low, high and detectable (the smallest decrease), all
        in percent; settings_found; lower_in (settings whose mean ratio is below 1); seeds; and
        verdict, scale and remark, by the rule of `verdict`.
    """
    claims = metrics if isinstance(metrics, Mapping) else {}
    rows = []
    for metric in metrics:
        try:
            both = pairs(frame, metric, split, arm=arm, against=against, relative=True)
        except NotMeasured:
            rows.append((metric, *[np.nan] * 4, 0, 0, 0, "reported", scale, "not measured"))
            continue
        if terminal is not None:
            both = dataclasses.replace(both, terminal=terminal)
        logs = both.mean_difference
        change = 100 * np.expm1(logs.mean)
        low = 100 * np.expm1(logs.mean - logs.half)
        high = 100 * np.expm1(logs.mean + logs.half)
        detectable = -100 * np.expm1(-logs.detectable)
        lower_in = int((both.by_setting["difference"] < 0).sum())
        judged = both.judge(scale, claims.get(metric))
        rows.append(
            (metric, change, low, high, detectable, both.settings, lower_in, logs.n, *judged)
        )
    changes = ["change", "low", "high", "detectable"]
    counts = ["settings_found", "lower_in", "seeds"]
    return pd.DataFrame(rows, columns=["metric", *changes, *counts, *VERDICT_COLUMNS])


SOLVER_COLUMNS = {
    "train_converged": ("solver_converged", "train", 100),
    "test_converged": ("solver_converged", "test", 100),
    "evaluations": ("solver_steps", "train", 1),
    "step_not_converged": ("not_converged", "steps", 100),
    "skipped": ("skipped", "steps", 100),
    "backward_not_converged": ("backward_not_converged", "steps", 100),
}
"""Columns of `solver_audit`: metric, split and factor."""


def checks(frame: pd.DataFrame) -> dict[str, str]:
    """What to look at before believing a verdict: whether the equilibria were solved and whether
    training was finished.

    Parameters
    ----------
    frame : tidy frame

    Returns
    -------
    dict
        "equilibria solved", the least share of training or test images over settings and networks
        (`solver_audit`), and "terminal phase", how many runs reached a training accuracy of
        99.9 % (`terminal_phase`). As columns of a table: ``table.assign(**checks(frame))``.

    Examples
    --------
    >>> import nclib as nc
    >>> frame = nc.ensure_runs(nc.experiment("fig3", "smoke"))
    >>> nc.compare.checks(frame)["terminal phase"]
    '0 of 4 runs'
    """
    audit = solver_audit(frame)
    phases = terminal_phase(frame)
    solved = "–"
    if len(audit):
        solved = f"{audit[['train_converged', 'test_converged']].to_numpy().min():.4g} %"
    return {
        "equilibria solved": solved,
        "terminal phase": f"{phases['reached'].sum()} of {len(phases)} runs",
    }


def solver_audit(frame: pd.DataFrame) -> pd.DataFrame:
    """How well the equilibria were solved.

    Parameters
    ----------
    frame : tidy frame

    Returns
    -------
    DataFrame
        A row for each cell and model that has equilibria, means over seeds at the last epoch. In
        percent: train_converged, test_converged (evaluations), step_not_converged and skipped
        (training steps), backward_not_converged; and evaluations, the mean number of cell
        evaluations on training images.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> run = {"run_id": "a", "dataset": "digits", "model": "deq", "K_A": 3, "R": 10.0, "seed": 0}
    >>> converged = {"split": ["train", "test"], "epoch": 1, "metric": "solver_converged"}
    >>> frame = pd.DataFrame(run | converged | {"value": [0.9, 0.8]})
    >>> nc.compare.solver_audit(frame)["test_converged"].tolist()
    [80.0]
    """
    with_equilibria = frame.loc[frame["metric"] == "solver_converged", "run_id"]
    frame = frame[frame["run_id"].isin(with_equilibria)]
    columns = {}
    for name, (metric, split, factor) in SOLVER_COLUMNS.items():
        means = over_seeds(by_run(frame, metric, split)).set_index([*SETTING, "model"])["value"]
        columns[name] = means * factor
    return pd.DataFrame(columns).reset_index()
