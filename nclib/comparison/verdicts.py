"""Intervals over seeds, and verdicts on claims that follow from them by stated rules."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from nclib.config import one_of
from nclib.system import words

LEVEL = 0.95
POWER = 0.8
"""How often a difference called detectable would be found."""
MIN_SEEDS = 3
"""Fewer seeds than this are reported and get no verdict."""
EQUAL_WITHIN = 0.1
"""Two networks are equal when the interval of their difference lies within this share of the explicit network's value:
our reading of the paper's "comparable", chosen after the first runs were seen."""
CLAIMED = ("lower", "higher", "equal")

_ROUNDING = 1e-9
"""Half-widths below this share of the mean are rounding."""


class Interval(NamedTuple):
    """Mean with a two-sided 95 % t-interval, mean ± half.

    Parameters
    ----------
    mean : NaN for no value
    half : NaN for fewer than two
    n : how many values

    Attributes
    ----------
    significant : whether 0 lies outside
    side : "higher" or "lower" where it is significant, else ""
    columns : what tables show of it: mean, half, detectable, n
    """

    mean: float
    half: float
    n: int

    significant = property(lambda self: bool(abs(self.mean) > self.half))

    side = property(lambda self: ("higher" if self.mean > 0 else "lower") if self.significant else "")

    @property
    def varies(self) -> bool:
        """Whether the values differ, beyond rounding. Where they do not, as with three small test sets that give the
        same difference, no interval follows from them."""
        return bool(self.half > _ROUNDING * abs(self.mean))

    @property
    def detectable(self) -> float:
        """The smallest true mean that as many values with this s.d. would show to be other than 0 in 80 % of the
        cases; NaN for fewer than three values, or equal ones. What is not significant may be as large as this."""
        return _reach(self.n) * self.half if self.n >= MIN_SEEDS and self.varies else float("nan")

    columns = property(lambda self: (self.mean, self.half, self.detectable, self.n))

    def ends(self, level: float = LEVEL) -> tuple[float, float]:
        """Lower and upper end of the t-interval of this level."""
        half = self.half * _critical(level, self.n) / _critical(LEVEL, self.n) if self.n > 1 else float("nan")
        return float(self.mean - half), float(self.mean + half)

    def __str__(self) -> str:
        """For instance "+0.09 ± 0.50 (3 seeds)"; one seed has no interval."""
        value = f"{self.mean:+.2f}" if self.n else "no value"
        return f"{value}{f' ± {self.half:.2f}' * (self.n > 1)} ({self.n} seed{'' if self.n == 1 else 's'})"


def _critical(level: float, n: int) -> float:
    """How many standard errors of n values a t-interval of this level reaches to each side."""
    return float(scipy.stats.t.ppf((1 + level) / 2, n - 1))


@functools.cache
def _reach(n: int) -> float:
    """The shift that a t-test of n values finds with `POWER`, over the half-width of its interval: 1.31 for three."""
    critical = _critical(LEVEL, n)

    def missing(ratio: float) -> float:  # the square of a shifted t is a noncentral F
        return float(scipy.stats.ncf.sf(critical**2, 1, n - 1, (ratio * critical) ** 2)) - POWER

    return scipy.optimize.brentq(missing, 0.5, 2.0)


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
        For a table or matrix of values, and for masked ones.

    Examples
    --------
    >>> import nclib as nc
    >>> found = nc.interval([0.9, 1.0, 1.1])
    >>> round(found.mean, 3), round(found.half, 3)
    (1.0, 0.248)
    """
    if np.ma.is_masked(values):
        raise ValueError("some values are masked; pass values.compressed()")
    values = np.asarray(values, dtype=float)
    if values.ndim != 1:
        raise ValueError(f"give one number for each seed, not an array of shape {values.shape}")
    n = len(values)
    if n < 2:
        return Interval(float(values[0]) if n else float("nan"), float("nan"), n)
    size = np.ldexp(1.0, np.frexp(np.abs(values).max())[1] - 1)  # the squares of 1e-200 would be 0
    half = _critical(LEVEL, n) * (values / size).std(ddof=1) * size / np.sqrt(n)
    return Interval(float(values.mean()), float(half), n)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Standard deviation of independent normal values and its 95 % interval: s √((n−1)/χ²), at 0.975 and 0.025.

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
    >>> [round(end, 2) for end in nc.comparison.spread([0.9, 1.0, 1.1])]
    [0.1, 0.05, 0.63]
    """
    values = np.asarray(values, dtype=float)
    if (n := len(values)) < 2:
        return (float("nan"),) * 3
    deviation, tail = float(np.std(values, ddof=1)), (1 - LEVEL) / 2
    low, high = (deviation * float(np.sqrt((n - 1) / scipy.stats.chi2.ppf(q, n - 1))) for q in (1 - tail, tail))
    return deviation, low, high


class Verdict(NamedTuple):
    """What is said of a claim.

    Parameters
    ----------
    word : one of `nclib.system.words.EXPERIMENTS`
    scale : of the evidence, one of `nclib.system.words.SCALES`
    remark : what else is to be said, "" where nothing is
    """

    word: str
    scale: str
    remark: str = ""

    def __str__(self) -> str:
        """For instance "reported (toy scale; 2 seeds)"."""
        return f"{self.word} ({'; '.join(filter(None, [f'{self.scale} scale', self.remark]))})"


def verdict(
    found: Interval,
    scale: str,
    claim: str | float | None = None,
    terminal: bool | None = True,
    size: float = float("nan"),
    of_logs: bool = False,
    within: float = EQUAL_WITHIN,
    level: float = LEVEL,
) -> Verdict:
    """The verdict of a measured difference on a claim.

    In this order: fewer than three seeds, an unknown phase, a run short of the terminal phase, values that are not
    numbers, and the same difference in every seed are "reported"; where it is 0 in every seed, "equal". A claim of
    equality: "equal" when the whole interval lies within 10 % of `size`. 0 inside the 95 % interval: "not significant".
    Else "supported" on the claimed side of 0, "contradicted" on the other; at toy scale "as claimed here" and "opposite
    here". No significant difference contradicts a claim of equality, as "comparable" has no size: "reported". No claim:
    "higher" or "lower".

    `nclib.pairs` finds phase and size by itself: use its ``verdict`` for differences between two networks.

    Parameters
    ----------
    found : our paired difference with its interval
    scale : of the runs, one of `nclib.system.words.SCALES` (`nclib.publish.notes.scale_of`)
    claim : "lower", "higher" or "equal"; or the paper's difference in the same unit, which claims its sign, and at the
        paper's scale its size too: the remark is "compatible in size" when it lies in the interval, else "other size".
        A 0 in the paper has no sign. None, or NaN as tables have it, where no paper claims anything
    terminal : whether all runs ended in the terminal phase; None where that is not known
    size : the value that "equal" is relative to; without it nothing is equal
    of_logs : of differences of logarithms; "equal" is then a ratio from 0.9 to 1.1
    within : the share that "equal" allows
    level : of the interval that has to lie within it: 0.95, or 0.9 for two one-sided tests at 0.05 (TOST)

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
    >>> found = nc.interval([0.9, 1.0, 1.1])
    >>> nc.verdict(found, "paper", "higher").word
    'supported'
    """
    one_of(scale, words.SCALES, "scale")
    if isinstance(claim, str):
        one_of(claim, CLAIMED, "claim")
    if not 0 <= within < np.inf:
        raise ValueError(f"within={within!r}: give a share of at least 0, such as 0.1")
    if claim is not None and not isinstance(claim, str):  # a NumPy or torch number as well
        claim = None if np.isnan(float(claim)) else float(claim)
    bounds = np.array([-1, 1]) * within * (abs(size) if claim == "equal" and not of_logs else 1)
    low, high = np.log1p(bounds) if of_logs else bounds
    ends = found.ends(level)
    equal = claim == "equal" and bool(low <= ends[0] and ends[1] <= high)
    word, remark = _judged(found, claim, terminal, equal, within)
    if word == "supported" and not isinstance(claim, str):
        compatible = abs(claim - found.mean) <= found.half
        remark = "size not comparable" if scale != "paper" else "compatible in size" if compatible else "other size"
    return Verdict(words.ON_TOYS.get(word, word) if scale == "toy" else word, scale, remark)


def _judged(
    found: Interval, claim: str | float | None, terminal: bool | None, equal: bool, within: float
) -> tuple[str, str]:
    """Word and remark, whatever the scale."""
    printed = "equality is claimed" if claim else "the paper's difference is 0"
    rules = (
        (found.n < MIN_SEEDS, "reported", f"{found.n} seed{'' if found.n == 1 else 's'}"),
        (terminal is None, "reported", "terminal phase not known"),
        (not terminal, "reported", "before the terminal phase"),
        (not np.isfinite(found.mean), "reported", "not measured"),
        (not found.varies and found.mean, "reported", "the same difference in every seed"),
        (not found.varies, "equal", "the same value in every seed"),
        (equal, "equal", f"within {100 * within:.0f} %"),
        (not found.side, "not significant", ""),
        (claim is None, found.side, ""),
        (claim in ("equal", 0), "reported", f"{found.side}, where {printed}"),
    )
    for holds, word, remark in rules:
        if holds:
            return word, remark
    wanted = claim if isinstance(claim, str) else "higher" if claim > 0 else "lower"
    return "supported" if found.side == wanted else "contradicted", ""
