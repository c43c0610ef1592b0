"""Exact arithmetic for certificates: intervals with rational ends, and matrices of fractions.

Only the standard library. An interval contains the true value; ``a < b`` is True when every number of a is below every
number of b, so a comparison that cannot be decided is False both ways.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor, isqrt

F = Fraction
Matrix = list[list[Fraction]]
_UNIT = 10**40  # ends are rounded outward to multiples of 1/_UNIT, which keeps numerators short
_FINE = 10**54  # of what exp and log compute within


class Interval:
    """All numbers from lo to hi, both fractions.

    Parameters
    ----------
    lo, hi : ends; hi left out means the single number lo
    """

    __slots__ = ("hi", "lo")

    def __init__(self, lo: Fraction | int, hi: Fraction | int | None = None) -> None:
        hi = lo if hi is None else hi
        if lo > hi:
            raise ValueError(f"{lo} > {hi}")
        self.lo = Fraction(floor(lo * _UNIT), _UNIT)
        self.hi = Fraction(-floor(-hi * _UNIT), _UNIT)

    def __add__(self, other: Interval | Fraction | int) -> Interval:
        other = as_interval(other)
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __sub__(self, other: Interval | Fraction | int) -> Interval:
        return self + -as_interval(other)

    def __mul__(self, other: Interval | Fraction | int) -> Interval:
        other = as_interval(other)
        ends = [a * b for a in (self.lo, self.hi) for b in (other.lo, other.hi)]
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: Interval | Fraction | int) -> Interval:
        other = as_interval(other)
        if other.lo <= 0 <= other.hi:
            raise ZeroDivisionError("the divisor may be 0")
        return self * Interval(1 / other.hi, 1 / other.lo)

    def __rsub__(self, other: Fraction | int) -> Interval:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def __rtruediv__(self, other: Fraction | int) -> Interval:
        return as_interval(other) / self

    def __lt__(self, other: Interval | Fraction | int) -> bool:
        return self.hi < as_interval(other).lo

    def __gt__(self, other: Interval | Fraction | int) -> bool:
        return self.lo > as_interval(other).hi

    def __repr__(self) -> str:
        return f"[{float(self.lo):.12g}, {float(self.hi):.12g}]"


def as_interval(value: Interval | Fraction | int) -> Interval:
    return value if isinstance(value, Interval) else Interval(value)


# --- exp, log and square root -------------------------------------------------------------------------------------


def _padded(value: int, units: int) -> Interval:
    """value/_FINE, widened by this number of units."""
    return Interval(F(value - units, _FINE), F(value + units, _FINE))


def _exp_small(q: Fraction) -> Interval:
    """exp for |q| ≤ 1/2 in integers: 1 + q + q²/2 + … up to q^40/40!, each term rounded down.

    A term's error is at most 2 units (half of the last term's, the error of q, and its own rounding), so 40 terms and
    what is left out, less than 2^-40/40!, are within 100 units.
    """
    scaled = floor(q * _FINE)
    term = total = _FINE
    for n in range(1, 41):
        term = term * scaled // (_FINE * n)
        total += term
    return _padded(total, 100)


def _exp_of_fraction(q: Fraction) -> Interval:
    whole = round(q)
    result = _exp_small(q - whole)
    step = _E if whole > 0 else _INVERSE_E
    for _ in range(abs(whole)):
        result = result * step
    return result


_E = _exp_small(F(1, 2)) * _exp_small(F(1, 2))
_INVERSE_E = 1 / _E


def exp(x: Interval | Fraction | int) -> Interval:
    """An interval that contains exp(x)."""
    x = as_interval(x)
    return Interval(_exp_of_fraction(x.lo).lo, _exp_of_fraction(x.hi).hi)


def _log_of_fraction(q: Fraction) -> Interval:
    """log q = n log 2 + 2 artanh((r − 1)/(r + 1)), q = 2^n r and 2/3 ≤ r < 4/3."""
    if q <= 0:
        raise ValueError(f"log of {q}")
    n = 0
    while q >= F(4, 3):
        q, n = q / 2, n + 1
    while q < F(2, 3):
        q, n = q * 2, n - 1
    near = _twice_artanh((q - 1) / (q + 1))
    return near + n * _twice_artanh(F(1, 3)) if n else near


def _twice_artanh(t: Fraction) -> Interval:
    """2 (t + t³/3 + t⁵/5 + …) for |t| ≤ 1/3 in integers, up to t^109; a term's error is at most 3 units, what is left
    out less than one."""
    scaled = floor(t * _FINE)
    power, total = scaled, 0
    square = scaled * scaled // _FINE
    for n in range(1, 110, 2):
        total += power // n
        power = power * square // _FINE
    return 2 * _padded(total, 300)


def log(x: Interval | Fraction | int) -> Interval:
    """An interval that contains log(x)."""
    x = as_interval(x)
    return Interval(_log_of_fraction(x.lo).lo, _log_of_fraction(x.hi).hi)


def sqrt(x: Interval | Fraction | int) -> Interval:
    """An interval that contains the square root of x."""
    x = as_interval(x)
    roots = [isqrt(floor(end * _UNIT * _UNIT)) for end in (x.lo, x.hi)]
    return Interval(F(roots[0], _UNIT), F(roots[1] + 1, _UNIT))


def total(values: Sequence[Interval]) -> Interval:
    return sum(values, Interval(0))


# --- cross-entropy ------------------------------------------------------------------------------------------------


def cross_entropy(logits: Sequence[Fraction | Interval], k: int) -> Interval:
    """log Σ_j exp(z_j) − z_k."""
    return log(total([exp(as_interval(z) - logits[k]) for z in logits]))


def etf_loss(num_classes: int, trace: Fraction | Interval) -> Interval:
    """log(1 + (K−1) exp(−trace/(K−1))): the balanced loss of Z = a (I − 11ᵀ/K) with nuclear norm a (K−1) = trace.

    It is the least balanced loss over all Z with ‖Z‖_* ≤ trace: averaging Z over permutations of the classes keeps both
    valid (the loss is convex, the norm a norm) and leaves a (I − 11ᵀ/K) + b 11ᵀ/K with |a| (K−1) ≤ trace, where the
    loss depends on a alone and falls with it.
    """
    return log(1 + (num_classes - 1) * exp(-as_interval(trace) / (num_classes - 1)))


# --- matrices of fractions ----------------------------------------------------------------------------------------


def matrix(rows: int, columns: int, entry: Callable[[int, int], Fraction | int]) -> Matrix:
    return [[F(entry(i, j)) for j in range(columns)] for i in range(rows)]


def identity(n: int, value: Fraction | int = 1) -> Matrix:
    return matrix(n, n, lambda i, j: value if i == j else 0)


def diagonal(values: Sequence[Fraction]) -> Matrix:
    return matrix(len(values), len(values), lambda i, j: values[i] if i == j else 0)


def centring(n: int, factor: Fraction | int = 1) -> Matrix:
    """factor · (I − 11ᵀ/n)."""
    return matrix(n, n, lambda i, j: factor * (F(int(i == j)) - F(1, n)))


def transpose(a: Matrix) -> Matrix:
    return [list(row) for row in zip(*a, strict=True)]


def product(*factors: Matrix) -> Matrix:
    result = factors[0]
    for factor in factors[1:]:
        columns = list(zip(*factor, strict=True))
        result = [[sum((x * y for x, y in zip(r, c, strict=True)), F(0)) for c in columns] for r in result]
    return result


def plus(a: Matrix, b: Matrix, factor: Fraction | int = 1) -> Matrix:
    """a + factor · b."""
    return [[x + factor * y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]


def scaled(factor: Fraction | int, a: Matrix) -> Matrix:
    return [[factor * x for x in row] for row in a]


def inner(a: Matrix, b: Matrix) -> Fraction:
    """tr(aᵀ b)."""
    return sum((x * y for r, s in zip(a, b, strict=True) for x, y in zip(r, s, strict=True)), F(0))


def norm2(a: Matrix) -> Fraction:
    """The squared Frobenius norm."""
    return inner(a, a)


def inverse(a: Matrix) -> Matrix:
    n = len(a)
    work = [list(row) + [F(int(i == j)) for j in range(n)] for i, row in enumerate(a)]
    for i in range(n):
        pivot = next((r for r in range(i, n) if work[r][i]), None)
        if pivot is None:
            raise ZeroDivisionError("the matrix is singular")
        work[i], work[pivot] = work[pivot], work[i]
        work[i] = [x / work[i][i] for x in work[i]]
        for r in range(n):
            if r != i and work[r][i]:
                work[r] = [x - work[r][i] * y for x, y in zip(work[r], work[i], strict=True)]
    return [row[n:] for row in work]


def random_fraction(rng: random.Random, size: int = 9) -> Fraction:
    return F(rng.randint(-size, size), rng.randint(1, size))


def random_matrix(rng: random.Random, rows: int, columns: int) -> Matrix:
    return matrix(rows, columns, lambda i, j: random_fraction(rng))


def random_orthogonal(rng: random.Random, n: int) -> Matrix:
    """(I − A)(I + A)⁻¹ of a skew A (Cayley), which is orthogonal and rational."""
    skew = matrix(n, n, lambda i, j: 0)
    for i in range(n):
        for j in range(i):
            skew[i][j] = random_fraction(rng, 3)
            skew[j][i] = -skew[i][j]
    return product(plus(identity(n), skew, -1), inverse(plus(identity(n), skew)))
