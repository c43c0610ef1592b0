"""Interval arithmetic with fractions, and matrices of fractions: exact, for certificates.

Only the standard library. An interval contains the true value; ``a < b`` is True when every number
of a is below every number of b, so a comparison that cannot be decided is False both ways.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import floor

F = Fraction

_UNIT = 10**40  # ends are rounded outward to multiples of 1/_UNIT, which keeps numerators short
_FINE = 10**54  # `_exp_small` computes in multiples of 1/_FINE


class Interval:
    """All numbers from lo to hi, both fractions.

    Parameters
    ----------
    lo, hi : ends; hi left out means the single number lo

    Examples
    --------
    >>> Interval(1, 2) + Interval(3)
    [4, 5]
    >>> Interval(1, 2) < 2, Interval(1, 2) < 3
    (False, True)
    """

    def __init__(self, lo: Fraction | int, hi: Fraction | int | None = None) -> None:
        if hi is None:
            hi = lo
        if lo > hi:
            raise ValueError(f"{lo} > {hi}")
        self.lo = Fraction(floor(lo * _UNIT), _UNIT)
        self.hi = Fraction(-floor(-hi * _UNIT), _UNIT)

    def __add__(self, other: "Interval | Fraction | int") -> "Interval":
        other = as_interval(other)
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def __neg__(self) -> "Interval":
        return Interval(-self.hi, -self.lo)

    def __sub__(self, other: "Interval | Fraction | int") -> "Interval":
        return self + -as_interval(other)

    def __mul__(self, other: "Interval | Fraction | int") -> "Interval":
        other = as_interval(other)
        ends = [self.lo * other.lo, self.lo * other.hi, self.hi * other.lo, self.hi * other.hi]
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: "Interval | Fraction | int") -> "Interval":
        other = as_interval(other)  # of one that may be 0 the next line refuses the inverse
        return self * Interval(1 / other.hi, 1 / other.lo)

    def __rsub__(self, other: Fraction | int) -> "Interval":
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __rtruediv__(self, other: Fraction | int) -> "Interval":
        return as_interval(other) / self

    def __lt__(self, other: "Interval | Fraction | int") -> bool:
        return self.hi < as_interval(other).lo

    def __gt__(self, other: "Interval | Fraction | int") -> bool:
        return self.lo > as_interval(other).hi

    def __repr__(self) -> str:
        return f"[{float(self.lo):.12g}, {float(self.hi):.12g}]"


def as_interval(value: Interval | Fraction | int) -> Interval:
    """The value itself, or the interval that holds this one number."""
    if isinstance(value, Interval):
        return value
    return Interval(value)


# --- exp, log and square root ---------------------------------------------------------------------


def exp(x: Interval | Fraction | int) -> Interval:
    """An interval that contains exp of every number of x."""
    x = as_interval(x)
    return Interval(_exp(x.lo).lo, _exp(x.hi).hi)


def log(x: Interval | Fraction | int) -> Interval:
    """An interval that contains log of every number of x, all positive."""
    x = as_interval(x)
    return Interval(_log(x.lo).lo, _log(x.hi).hi)


def sqrt(x: Interval | Fraction | int) -> Interval:
    """An interval that contains the square root of every number of x, none negative."""
    x = as_interval(x)
    return Interval(_sqrt(x.lo).lo, _sqrt(x.hi).hi)


def _exp_small(q: Fraction) -> Interval:
    """exp for |q| ≤ 1/2 in integers: 1 + q + q²/2 + … up to q^40/40!, each term rounded down.

    A term's error is at most 2 units (half of the last term's, the error of q, and its own
    rounding), so 40 terms and what is left out, less than 2^-40/40!, are within 100 units.
    """
    scaled = floor(q * _FINE)
    term = _FINE
    total = _FINE
    for n in range(1, 41):
        term = term * scaled // (_FINE * n)
        total += term
    return Interval(F(total - 100, _FINE), F(total + 100, _FINE))


_E = _exp_small(F(1, 2)) * _exp_small(F(1, 2))


def _exp(q: Fraction) -> Interval:
    whole = round(q)
    result = _exp_small(q - whole)
    step = _E if whole > 0 else 1 / _E
    for _ in range(abs(whole)):
        result = result * step
    return result


def _log(q: Fraction) -> Interval:
    """log q = g + log y, y = q exp(−g), and 1 − 1/y ≤ log y ≤ y − 1 for every y > 0.

    That is so for every g. A float near log q makes it narrow, of width 1e-30.
    """
    near = F(math.log(q))
    y = q * exp(-near)
    return near + Interval((1 - 1 / y).lo, (y - 1).hi)


def _sqrt(q: Fraction) -> Interval:
    root = math.isqrt(floor(q * _UNIT * _UNIT))
    return Interval(F(root, _UNIT), F(root + 1, _UNIT))


# --- cross-entropy --------------------------------------------------------------------------------


def cross_entropy(logits: Sequence[Fraction | Interval], k: int) -> Interval:
    """log Σ_j exp(z_j) − z_k."""
    return log(sum(exp(z - logits[k]) for z in logits))


def etf_loss(num_classes: int, trace: Fraction | Interval) -> Interval:
    """log(1 + (K−1) exp(−trace/(K−1))): the balanced loss of Z = a (I − 11ᵀ/K) with nuclear norm
    a (K−1) = trace.

    It is the least balanced loss over all Z with ‖Z‖_* ≤ trace. Averaging Z over permutations of
    the classes keeps both valid, because the loss is convex and the norm a norm. It leaves
    a (I − 11ᵀ/K) + b 11ᵀ/K with |a| (K−1) ≤ trace. There the loss depends on a alone and falls
    with it.
    """
    return log(1 + (num_classes - 1) * exp(-as_interval(trace) / (num_classes - 1)))


# --- matrices of fractions ------------------------------------------------------------------------


class Matrix(list):
    """Rows of fractions; a @ b is the product of matrices, a.T the transpose.

    Examples
    --------
    >>> Matrix([[1, 2]]) @ Matrix([[3], [4]]) == Matrix([[11]])
    True
    """

    def __init__(self, rows: Iterable[Iterable[Fraction | int]]) -> None:
        super().__init__([F(x) for x in row] for row in rows)

    @property
    def T(self) -> "Matrix":
        return Matrix(zip(*self, strict=True))

    def __matmul__(self, other: "Matrix") -> "Matrix":
        columns = other.T
        return Matrix([_dot(row, column) for column in columns] for row in self)

    def __add__(self, other: "Matrix") -> "Matrix":
        rows = []
        for ours, theirs in zip(self, other, strict=True):
            rows.append([x + y for x, y in zip(ours, theirs, strict=True)])
        return Matrix(rows)

    def __sub__(self, other: "Matrix") -> "Matrix":
        return self + -1 * other

    def __rmul__(self, factor: Fraction | int) -> "Matrix":
        return Matrix([factor * x for x in row] for row in self)


def _dot(row: Sequence[Fraction], column: Sequence[Fraction]) -> Fraction:
    return sum(x * y for x, y in zip(row, column, strict=True))


def matrix(rows: int, columns: int, entry: Callable[[int, int], Fraction | int]) -> Matrix:
    """The matrix whose entry in row i and column j is entry(i, j)."""
    return Matrix([entry(i, j) for j in range(columns)] for i in range(rows))


def diagonal(values: Sequence[Fraction | int]) -> Matrix:
    """The square matrix with these values on its diagonal and 0 elsewhere."""
    return matrix(len(values), len(values), lambda i, j: values[i] if i == j else 0)


def identity(n: int) -> Matrix:
    """I of size n."""
    return diagonal([1] * n)


def centring(n: int) -> Matrix:
    """I − 11ᵀ/n."""
    return identity(n) - matrix(n, n, lambda i, j: F(1, n))


def inner(a: Matrix, b: Matrix) -> Fraction:
    """tr(aᵀ b)."""
    return sum(_dot(ours, theirs) for ours, theirs in zip(a, b, strict=True))


def norm2(a: Matrix) -> Fraction:
    """The squared Frobenius norm."""
    return inner(a, a)


def inverse(a: Matrix) -> Matrix:
    """a⁻¹ by elimination.

    Raises
    ------
    ZeroDivisionError
        When the matrix is singular.
    """
    n = len(a)
    work = [row + unit for row, unit in zip(a, identity(n), strict=True)]
    for i in range(n):
        pivot = next((r for r in range(i, n) if work[r][i]), None)
        if pivot is None:
            raise ZeroDivisionError("the matrix is singular")
        work[i], work[pivot] = work[pivot], work[i]
        work[i] = [x / work[i][i] for x in work[i]]
        for r in range(n):
            if r != i and work[r][i]:
                factor = work[r][i]
                work[r] = [x - factor * y for x, y in zip(work[r], work[i], strict=True)]
    return Matrix(row[n:] for row in work)


def random_matrix(rng: random.Random, rows: int, columns: int) -> Matrix:
    """Entries p/q with |p| ≤ 9 and 1 ≤ q ≤ 9."""
    return matrix(rows, columns, lambda i, j: F(rng.randint(-9, 9), rng.randint(1, 9)))


def random_orthogonal(rng: random.Random, n: int) -> Matrix:
    """(I − A)(I + A)⁻¹ of a skew A (Cayley), which is orthogonal and rational."""
    half = matrix(n, n, lambda i, j: rng.randint(-3, 3))
    skew = half - half.T
    return (identity(n) - skew) @ inverse(identity(n) + skew)
