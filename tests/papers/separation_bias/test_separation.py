"""The separation constructions, the implicit regulariser, the unseen half and Grad-CAM, each against closed forms."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from nclib.config import ModelConfig
from nclib.models import build_model
from nclib.papers.separation_bias import constructions as built
from nclib.papers.separation_bias import diagonal
from nclib.papers.separation_bias.saliency import cam_spread, grad_cam

# ---- linear regions


@pytest.mark.parametrize("m", range(1, 11))
def test_a_width_of_m_has_two_to_the_m_regions(m):
    w, u, b = built.linear_regions_deq(m)
    assert w.shape == (m, m) and not np.triu(w).any()
    assert built.count_regions(w, u, b) == built.count_regions(w, u, b, np.ones(m)) == 2**m


@pytest.mark.parametrize("m", [1, 2, 5, 10, 20, 37, 51])
def test_the_sawtooth_is_exact(m):
    """Against rational arithmetic, so that neither side can be rounded."""
    w, u, b, a = built.sawtooth_deq(m)
    assert len(a) == m + 1
    x = (np.random.default_rng(m).integers(0, 2**m, size=50) + 0.25) / 2.0**m
    y = a @ built.lower_triangular_equilibrium(w, np.outer(u, x) + b[:, None])
    for at, value in zip(x, y, strict=True):
        exact = Fraction(at)
        for _ in range(m):
            exact = 2 * min(exact, 1 - exact)
        assert Fraction(value) == exact
    np.testing.assert_array_equal(y, built.tent_map(x, m))


def test_regions_of_the_strongly_monotone_form():
    counts = {eta: built.count_regions(*built.linear_regions_deq(8, eta)) for eta in (1e-3, 0.01, 0.05)}
    assert counts == {1e-3: 256, 0.01: 252, 0.05: 212}
    for m in (0, 52):
        with pytest.raises(ValueError, match="give 1 to 51"):
            built.linear_regions_deq(m)


def test_lower_bounds_hold_for_random_networks_and_are_sharp_for_constants():
    table = built.random_fnn_table(5, [(3, 2), (8, 2)], draws=40)
    assert (table["most"] <= table["bound"]).all() and (table["margin"] >= -1e-9).all()
    x = (np.arange(1 << 12) + 0.5) / (1 << 12)
    assert np.abs(built.tent_map(x, 5) - 0.5).mean() == pytest.approx(built.sawtooth_l1_bound(5, 1))


# ---- steep


@pytest.mark.parametrize(("d", "eps"), [(6, 0.05), (20, 0.05), *((14, eps) for eps in (0.2, 0.1, 0.02, 0.01))])
def test_steep_equilibria_have_bounded_error_and_weights(d, eps):
    s = built.steep_points(d)
    g = built.steep_target(s, d)
    triangular, scalar = built.steep_deq_triangular(d, eps), built.steep_deq_scalar(d, eps)
    assert np.abs(built.steep_values(triangular, s) - g).max() <= eps + 1e-12
    assert np.abs(built.bisect_scalar(scalar, s) - g).max() <= eps + 2e-4
    assert max(np.abs(part).max() for part in (*triangular, *scalar) if part.ndim == 1) <= 1 / eps + 1
    assert np.abs(triangular[0]).max() <= 1 and len(triangular[1]) <= 1 / (2 * eps) + 3.5


def test_networks_need_weights_that_grow():
    table = built.steep_table(range(6, 21, 2), 0.05).set_index("d")
    np.testing.assert_allclose(table["fnn_error"], table["triangular_error"], atol=1e-9)
    assert table["fnn_weight"][20] / table["fnn_weight"][6] >= 100
    assert table["triangular_weight"][20] / table["triangular_weight"][6] <= 1.3
    assert (table["fnn_bound"] < table["fnn_weight"]).all()
    assert [round(v) for v in table["picard_steps"][[6, 10]]] == [439, 7071]
    assert built.fnn_weight_bound(20, 20, 1, 0.05) == pytest.approx(144.8, abs=0.1)


# ---- implicit regulariser


@pytest.mark.parametrize("signs", ["positive", "mixed"])
def test_flow_ends_at_the_minimum_of_the_regulariser(signs):
    trials = diagonal.flow_trials(4, signs)
    assert (trials[["gap", "plus"]] <= 1e-8).all().all() and (trials["minus"] > 1).all() and (trials["rise"] > 0).all()


def test_limit_of_the_diagonal_network():
    stream = np.random.default_rng(3)
    x = stream.normal(size=(3, 8))
    y = x @ stream.uniform(0.5, 1, size=8)
    beta = diagonal.diagonal_network_limit(x, y, 0.1)
    np.testing.assert_allclose(x @ beta, y, atol=1e-9)
    moved = np.log(beta / 0.1)
    np.testing.assert_allclose(moved, np.linalg.pinv(x) @ (x @ moved), atol=1e-7)
    assert diagonal.orthant_margin(np.ones((1, 3)), np.array([-1.0])) == pytest.approx(-1 / 3)


def test_participation_ratio():
    assert diagonal.participation_ratio(np.ones(7)) == pytest.approx(1)
    assert diagonal.participation_ratio(-5 * np.eye(4)[1]) == pytest.approx(1 / 4)
    assert math.isnan(diagonal.participation_ratio(np.zeros(3)))
    np.testing.assert_allclose(diagonal.participation_ratio(np.array([[1.0, 1.0], [1.0, 0.0]]), axis=0), [1, 0.5])


# ---- the unseen half


@pytest.mark.parametrize("case", diagonal.GOTU_CASES)
@pytest.mark.parametrize("model", ["network", "deq", "deq_bias_feature"])
def test_gotu_against_the_integrated_flow(case, model):
    """Gradient flow of the population loss on the seen half, step by step, to 1e-3; β and the bias by a parameter each,
    with the speed of each where the residual is −1."""
    deq = lambda w: (1 / (1 - w), (1 / (1 - w)) ** 2)  # noqa: E731
    maps = {"network": (lambda u: (u**2, u), lambda v: (v, 1.0)), "deq": (deq, lambda v: (v, 1.0))}
    to_beta, to_bias = maps.get(model, (deq, deq))

    def speed(_, p):
        (beta, fast), (bias, faster) = to_beta(p[0]), to_bias(p[1])
        return [-(beta + bias - sum(case)) * fast, -(beta + bias - sum(case)) * faster]

    start = [1e-3 if model == "network" else 0.0, 0.0]
    end = solve_ivp(speed, (0, 1e4), start, method="LSODA", rtol=1e-10, atol=1e-13).y[:, -1]
    assert diagonal.gotu_diagonal(*case, model).gotu == pytest.approx(4 * (case[1] - to_beta(end[0])[0]) ** 2, abs=1e-3)


def test_the_condition_and_the_start_decide_who_wins():
    table = diagonal.gotu_table()
    settings = (("deq", 1.0, 0.290), ("network", 1.0, 0.298), ("deq", 1e-2, 15.84), ("network", 1e-6, 16.0))
    for model, beta0, value in settings:
        assert diagonal.gotu_diagonal(0, 2, model, beta0).gotu == pytest.approx(value, abs=1e-3)
    assert ((table["deq"] < table["network"]) == table["predicted"]).all()


# ---- Grad-CAM


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_grad_cam_of_a_pooled_linear_classifier_is_its_weights_on_the_last_map(kind):
    model = build_model(ModelConfig(kind=kind, width=2), num_classes=3, in_channels=1)
    images = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    cam = grad_cam(model, images)
    assert model.training and cam.shape == (4, 32, 32)
    model.eval()
    with torch.no_grad():
        z, _ = model.transform(model.encoder(images))
        chosen = model(images).logits.argmax(1)
        expected = torch.relu((model.classifier.weight[chosen][:, :, None, None] * z).sum(1, keepdim=True))
    expected = torch.nn.functional.interpolate(expected, size=(32, 32), mode="bilinear", align_corners=False)[:, 0]
    top = expected.amax(dim=(1, 2), keepdim=True).clamp_min(1e-30)
    torch.testing.assert_close(cam, expected / top, atol=1e-5, rtol=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_spread_of_maps():
    even, point = torch.ones(1, 4, 4), torch.zeros(1, 4, 4)
    point[0, 1, 1] = 1
    spread = cam_spread(torch.cat([even, point]))
    np.testing.assert_allclose(spread["coverage"], [1, 1 / 16])
    np.testing.assert_allclose(spread["entropy"], [1, 0])
    assert math.isnan(cam_spread(torch.zeros(1, 4, 4))["entropy"][0])
