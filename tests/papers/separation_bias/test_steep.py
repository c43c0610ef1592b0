"""Steep functions: errors and weights of the constructions, at every d."""

import numpy as np
import pytest

from nclib.papers.separation_bias import steep


@pytest.mark.parametrize(("d", "eps"), [(6, 0.05), (20, 0.05), (14, 0.2), (14, 0.1), (14, 0.01)])
def test_both_equilibria_have_bounded_error_and_weights(d, eps):
    s = steep.steep_points(d)
    target = steep.steep_target(s, d)
    triangular = steep.steep_deq_triangular(d, eps)
    assert np.abs(steep.steep_values(triangular, s) - target).max() <= eps + 1e-12
    scalar = steep.steep_deq_scalar(d, eps)
    assert np.abs(steep.bisect_scalar(scalar, s) - target).max() <= eps + 2e-4
    for part in (*triangular, *scalar):
        assert np.abs(part).max() <= 1 / eps + 1
    assert np.abs(triangular[0]).max() <= 1
    assert len(triangular[1]) <= 1 / (2 * eps) + 3.5


def test_bisection_finds_the_fixed_point():
    v, w, u, b = steep.steep_deq_scalar(8, 0.05)
    s = np.array([0.0, 0.001, 0.3])
    z = steep.bisect_scalar((v, w, u, b), s)
    injection = (u + b)[:, None] - np.outer(u, s)
    again = v @ np.maximum(np.outer(w, z) + injection, 0)
    np.testing.assert_allclose(again, z, atol=2 * 2.0**-15)


def test_networks_need_weights_that_grow():
    table = steep.steep_table(range(6, 21, 2), 0.05).set_index("d")
    np.testing.assert_allclose(table["fnn_error"], table["triangular_error"], atol=1e-9)
    assert table["fnn_weight"][20] / table["fnn_weight"][6] >= 100
    assert table["triangular_weight"][20] / table["triangular_weight"][6] <= 1.3
    assert (table["fnn_bound"] < table["fnn_weight"]).all()
    assert table["picard_steps"][[6, 10]].tolist() == [439, 7071]
    assert steep.fnn_weight_bound(20, 20, 1, 0.05) == pytest.approx(np.sqrt(0.4 * 2**20 / 20))
    assert steep.fnn_weight_bound(20, 20, 2, 0.05) == pytest.approx(np.cbrt(0.4 * 2**20 / 400))
