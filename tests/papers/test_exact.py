"""The arithmetic of the certificates: what it encloses, and what it cannot decide."""

import random
from decimal import Context
from fractions import Fraction as F

import pytest

from nclib.papers import exact

CASES = [(exact.exp, "exp"), (exact.log, "ln"), (exact.sqrt, "sqrt")]


@pytest.mark.parametrize(
    ("left", "right", "below"),
    [((0, 1), (2, 3), True), ((0, 2), (1, 3), False), ((1, 1), (1, 1), False)],
)
def test_an_interval_is_below_another_only_if_all_of_it_is(left, right, below):
    left, right = exact.Interval(*left), exact.Interval(*right)
    assert ((left < right), (right > left)) == (below, below) and not (right < left or left > right)


@pytest.mark.parametrize(("function", "name"), CASES)
@pytest.mark.parametrize("x", [F(1, 100), F(1), F(7, 3), F(40)])
def test_the_enclosure_has_the_value_and_is_narrow(function, name, x):
    digits = Context(prec=80)  # two fractions of x are nearer than the ends, multiples of 1e-40
    value = F(getattr(digits.divide(x.numerator, x.denominator), name)(digits))
    enclosure = function(x)
    assert enclosure.lo <= value <= enclosure.hi
    assert enclosure.hi - enclosure.lo < F(1, 10**20) * max(1, value)


def test_random_matrices_are_what_they_are_called():
    rng = random.Random(0)
    for n in (2, 3, 10):
        turned = exact.random_orthogonal(rng, n)
        assert turned @ turned.T == exact.identity(n) != turned
        assert exact.norm2(exact.random_matrix(rng, n, n)) > 0


def test_the_loss_of_an_etf_is_that_of_its_logits():
    a = F(3, 2)
    logits = [a * (F(int(j == 0)) - F(1, 4)) for j in range(4)]
    loss, closed = exact.cross_entropy(logits, 0), exact.etf_loss(4, 3 * a)
    assert abs(loss.lo - closed.lo) < F(1, 10**30)
