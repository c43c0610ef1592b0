"""Diagonal models: flows against minima, limits in closed form, and the unseen half."""

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from nclib.papers.separation_bias import diagonal


def test_a_flow_of_one_sample_and_two_entries_ends_where_the_cubes_say():
    """β⁻³ − β(0)⁻³ is a multiple of X, so equal starts with X = (1, 1) end equal."""
    limit = diagonal.diagonal_flow(np.ones((1, 2)), np.array([3.0]), np.ones(2))
    np.testing.assert_allclose(limit, [1.5, 1.5], atol=1e-10)
    start = np.array([1.0, 2.0])
    limit = diagonal.diagonal_flow(np.ones((1, 2)), np.array([5.0]), start)
    moved = limit**-3 - start**-3
    assert limit.sum() == pytest.approx(5)
    assert moved[0] == pytest.approx(moved[1])


@pytest.mark.parametrize("signs", ["positive", "mixed"])
def test_the_flow_ends_at_the_minimum_of_the_regulariser(signs):
    trials = diagonal.flow_trials(3, signs)
    assert (trials[["gap", "plus"]] <= 1e-8).all(axis=None)
    assert (trials["minus"] > 1).all()
    assert (trials["rise"] > 0).all()


def test_the_regulariser_is_least_at_the_start():
    start = np.array([0.5, -2.0])
    least = diagonal.diagonal_regulariser(start, start)
    for step in ([0.1, 0], [-0.1, 0], [0, 0.1], [0, -0.1]):
        assert diagonal.diagonal_regulariser(start + step, start) > least


def test_the_limit_of_the_diagonal_network():
    stream = np.random.default_rng(3)
    x = stream.normal(size=(3, 8))
    y = x @ stream.uniform(0.5, 1, size=8)
    beta = diagonal.diagonal_network_limit(x, y, 0.1)
    np.testing.assert_allclose(x @ beta, y, atol=1e-9)
    moved = np.log(beta / 0.1)
    np.testing.assert_allclose(moved, np.linalg.pinv(x) @ (x @ moved), atol=1e-7)


def test_participation_ratio():
    assert diagonal.participation_ratio(np.ones(7)) == pytest.approx(1)
    assert diagonal.participation_ratio(-5 * np.eye(4)[1]) == pytest.approx(1 / 4)
    assert math.isnan(diagonal.participation_ratio(np.zeros(3)))
    values = np.array([[1.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(diagonal.participation_ratio(values, axis=0), [1, 0.5])


def test_the_table_of_densities():
    table = diagonal.density_table(5).set_index(["model", "beta0"])
    assert len(table) == 8
    assert (table["draws"] == 5).all()
    mean = table["mean"]
    assert mean["truth"].iloc[0] <= 3 / 20
    assert mean["network", 1e-3] < mean["network", 1e-1] < mean["deq", 1.0]


def _flow(to_beta, to_bias, start, total):
    """β_k at the end of the gradient flow on the seen half.

    to_beta, to_bias : from a parameter to value and speed where the residual is −1
    """

    def speed(_, parameters):
        beta, beta_speed = to_beta(parameters[0])
        bias, bias_speed = to_bias(parameters[1])
        residual = beta + bias - total
        return [-residual * beta_speed, -residual * bias_speed]

    path = solve_ivp(speed, (0, 1e4), start, method="LSODA", rtol=1e-10, atol=1e-13)
    return to_beta(path.y[0, -1])[0]


def _squared(u):
    return u**2, u


def _plain(v):
    return v, 1.0


def _deq(w):
    beta = 1 / (1 - w)
    return beta, beta**2


@pytest.mark.parametrize(("f_empty", "f_k"), [(0.0, 1.0), (0.0, 0.25), (3.0, 2.0)])
@pytest.mark.parametrize(
    ("model", "to_beta", "to_bias", "start"),
    [
        ("network", _squared, _plain, 1e-3),
        ("deq", _deq, _plain, 0.0),
        ("deq_bias_feature", _deq, _deq, 0.0),
    ],
)
def test_the_error_on_the_unseen_half_is_that_of_the_flow(
    f_empty, f_k, model, to_beta, to_bias, start
):
    beta = _flow(to_beta, to_bias, [start, 0.0], f_empty + f_k)
    found = diagonal.gotu_diagonal(f_empty, f_k, model)
    assert found.gotu == pytest.approx(4 * (f_k - beta) ** 2, abs=1e-3)
    assert found.beta == pytest.approx(beta, abs=1e-3)


def test_the_condition_and_the_start_decide_who_is_better():
    table = diagonal.gotu_table()
    assert ((table["deq"] < table["network"]) == table["predicted"]).all()
    assert not table["predicted"].all()
    starts = [("deq", 1.0, 0.290), ("network", 1.0, 0.298), ("deq", 1e-2, 15.84)]
    for model, beta0, gotu in starts:
        found = diagonal.gotu_diagonal(0, 2, model, beta0)
        assert found.gotu == pytest.approx(gotu, abs=1e-3)


def test_problems_without_a_solution_are_refused():
    x = np.ones((1, 3))
    y = np.array([-1.0])
    assert diagonal.orthant_margin(x, y) == pytest.approx(-1 / 3)
    assert diagonal.orthant_margin(np.ones((2, 3)), np.array([1.0, 2.0])) == -math.inf
    with pytest.raises(ValueError, match='use "network", "deq" or'):
        diagonal.gotu_diagonal(0, 1, "DEQ")
