"""Linear regions: constructions and counts against rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from nclib.papers.separation_bias import regions


@pytest.mark.parametrize("m", range(1, 11))
def test_a_width_of_m_has_two_to_the_m_regions(m):
    w, u, b = regions.linear_regions_deq(m)
    assert w.shape == (m, m)
    assert not np.triu(w).any()
    assert regions.count_regions(w, u, b) == 2**m
    assert regions.count_regions(w, u, b, np.ones(m)) == 2**m


@pytest.mark.parametrize("m", [1, 2, 5, 20, 51])
def test_the_sawtooth_is_exact(m):
    """Against rational arithmetic, so that neither side can be rounded."""
    w, u, b, read_out = regions.sawtooth_deq(m)
    assert len(read_out) == m + 1
    x = (np.random.default_rng(m).integers(0, 2**m, size=50) + 0.25) / 2.0**m
    injection = np.outer(u, x) + b[:, None]
    y = read_out @ regions.lower_triangular_equilibrium(w, injection)
    for point, value in zip(x, y, strict=True):
        exact = Fraction(point)
        for _ in range(m):
            exact = 2 * min(exact, 1 - exact)
        assert Fraction(value) == exact
    np.testing.assert_array_equal(y, regions.tent_map(x, m))


def test_the_balanced_form_is_the_same_function_and_loses_regions_as_it_gets_monotone():
    x = np.linspace(0, 1, 33)
    w, u, b = regions.linear_regions_deq(4)
    z = regions.lower_triangular_equilibrium(w, np.outer(u, x) + b[:, None])
    w, u, b = regions.linear_regions_deq(4, eta=0)
    balanced = regions.lower_triangular_equilibrium(w, np.outer(u, x) + b[:, None])
    np.testing.assert_allclose(balanced, z / 2.0 ** np.arange(1, 5)[:, None], atol=1e-15)
    np.testing.assert_array_equal(2 * np.eye(4) - w - w.T, 2 * np.ones((4, 4)))
    counts = []
    for eta in (1e-3, 0.01, 0.05):
        counts.append(regions.count_regions(*regions.linear_regions_deq(8, eta)))
    assert counts == [256, 252, 212]


def test_iteration_and_substitution_find_the_same_equilibrium():
    w, u, b = regions.linear_regions_deq(5)
    x = np.array([0.1, 0.4, 0.7])
    z, iterations, residual = regions.iterate_from_zero(w, u, b, x)
    wanted = regions.lower_triangular_equilibrium(w, np.outer(u, x) + b[:, None])
    np.testing.assert_allclose(z, wanted, atol=1e-12)
    assert iterations <= 5
    assert residual == 0


def test_a_self_loop_divides_by_what_is_left():
    z = regions.lower_triangular_equilibrium(np.array([[0.75]]), np.array([[2.0, -1.0]]))
    assert z.tolist() == [[8.0, 0.0]]


def test_regions_are_counted_where_self_loops_put_the_kinks():
    """z_1 = 4x, z_2 = σ(4x − 2): a kink at ½."""
    w = np.array([[0.75, 0.0], [1.0, 0.0]])
    assert regions.count_regions(w, np.array([1.0, 0.0]), np.array([0.0, -2.0])) == 2


def test_a_feed_forward_network_as_a_deq_gives_its_values():
    stream = np.random.default_rng(0)
    weights = [stream.normal(size=(3, 1)), stream.normal(size=(3, 3)), stream.normal(size=(1, 3))]
    biases = [stream.normal(size=3), stream.normal(size=3)]
    w, u, b, read_out = regions.fnn_as_deq(weights, biases)
    x = stream.normal(size=7)
    y = read_out @ regions.lower_triangular_equilibrium(w, np.outer(u, x) + b[:, None])
    first = np.maximum(weights[0] @ x[None] + biases[0][:, None], 0)
    second = np.maximum(weights[1] @ first + biases[1][:, None], 0)
    np.testing.assert_allclose(y, (weights[2] @ second)[0], atol=1e-12)


def test_the_lower_bound_holds_for_random_networks_and_is_sharp_for_constants():
    table = regions.random_fnn_table(5, [(3, 2), (8, 2)], draws=30)
    assert (table["most"] <= table["bound"]).all()
    assert (table["margin"] >= -1e-9).all()
    x = (np.arange(1 << 12) + 0.5) / (1 << 12)
    distance = np.abs(regions.tent_map(x, 5) - 0.5).mean()
    assert distance == pytest.approx(regions.sawtooth_l1_bound(5, 1))


def test_the_table_of_the_notebook():
    table = regions.regions_table([1, 3, 12, 17]).set_index("m")
    assert table["regions"][[1, 3, 12]].tolist() == [2, 8, 4096]
    assert np.isnan(table["regions"][17])
    assert (table["iterations"] <= table.index).all()
    assert (table[["residual", "restart", "sawtooth_error"]] == 0).all(axis=None)
    assert table["largest_weight"][3] == 8
    assert (table["balanced_weight"] <= 2).all()


@pytest.mark.parametrize("m", [0, 52])
def test_a_level_that_float64_does_not_hold_is_refused(m):
    with pytest.raises(ValueError, match="give 1 to 51"):
        regions.linear_regions_deq(m)
