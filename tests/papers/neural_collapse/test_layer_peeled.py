"""The layer-peeled model: closed forms, certificates, an independent solver."""

import math

import numpy as np
import pytest

from nclib.papers.neural_collapse import layer_peeled as lp

SETTINGS = [(10, 3), (10, 5), (10, 7), (100, 30), (100, 50), (100, 70)]


@pytest.mark.parametrize(
    ("classes", "budget", "loss", "probability"),
    [
        (10, 0.01, 2.29259, 0.1010),
        (10, 2.236, 0.55981, 0.5713),  # Fang's E_H = 5, E_W = 1, the root as rounded there
        (100, 10, 0.00405, 0.9960),
    ],
)
def test_least_balanced_loss(classes, budget, loss, probability):
    found = lp.loss_lower_bound(classes, budget, budget)
    assert found == pytest.approx(loss, abs=6e-6)
    assert math.exp(-found) == pytest.approx(probability, abs=6e-5)


@pytest.mark.parametrize(("classes", "majority"), SETTINGS)
@pytest.mark.parametrize(("e_w", "e_h"), [(0.01, 0.01), (1, 5), (5, 5)])
def test_balanced_optimum_is_a_simplex_etf(classes, majority, e_w, e_h):
    found = lp.reference_optimum(classes, majority, 7, 7, e_w, e_h)
    etf = lp.simplex_gram(classes)
    np.testing.assert_allclose(found.classifier_gram, e_w * etf, atol=1e-9 * e_w)
    np.testing.assert_allclose(found.logits, math.sqrt(e_w * e_h) * etf, atol=1e-9)
    np.testing.assert_allclose(lp.features_gram(found, e_w, e_h), e_h * etf, atol=1e-9 * e_h)
    assert found.loss == pytest.approx(lp.loss_lower_bound(classes, e_w, e_h), rel=1e-12)
    assert found.minority_cosine == pytest.approx(-1 / (classes - 1), abs=1e-9)


@pytest.mark.parametrize(
    ("ratio", "cosine"), [(1, -0.111), (10**0.5, -0.017), (10, 0.5175), (11.5, 0.805), (13, 1.0)]
)
def test_minority_cosine_in_fangs_setting(ratio, cosine):
    found = lp.reference_optimum(10, 5, ratio, 1, 1, 5)
    assert found.minority_cosine == pytest.approx(cosine, abs=5.1e-4)
    assert lp.collapse_ratio(10, 5, 1, 5) == pytest.approx(12.19, abs=0.005)


TABLE = {  # (K_A, K_B): "R* / R0" at budgets 0.01, 0.1, 1, √5, 5
    (3, 7): "1.0038/1.017 1.044/1.206 4.14/inf 245.5/inf 4.1e6/inf",
    (5, 5): "1.0022/1.005 1.025/1.055 1.74/2.75 12.19/inf 3955/inf",
    (7, 3): "1.0016/1.0024 1.017/1.025 1.37/1.53 4.00/5.71 212.7/inf",
    (30, 70): "1.0003/1.0012 1.004/1.012 1.27/1.40 18.7/24.3 1.8e5/4.0e5",
    (50, 50): "1.0002/1.0004 1.002/1.004 1.06/1.09 1.89/2.00 232.7/274.8",
    (70, 30): "1.0001/1.0002 1.002/1.002 1.03/1.04 1.24/1.26 14.3/15.1",
}


def _unit(text):
    """One unit in the last digit of a printed number; rounding may take a little more than half."""
    mantissa, _, exponent = text.partition("e")
    return 10 ** (float(exponent or 0) - len(mantissa.partition(".")[2]))


@pytest.mark.parametrize(("sizes", "row"), TABLE.items())
def test_table_of_thresholds(sizes, row):
    frame = lp.threshold_table([sum(sizes)], [sizes[0]], (0.01, 0.1, 1, math.sqrt(5), 5))
    for printed, found in zip(row.split(), frame.itertuples(), strict=True):
        for text, value in zip(
            printed.split("/"), (found.collapse_ratio, found.total_collapse_ratio), strict=True
        ):
            assert value == pytest.approx(
                float(text), abs=0.6 * _unit(text)
            ) or text == "inf" == str(value)


@pytest.mark.parametrize(
    ("classes", "majority", "budget"), [(10, 3, 0.01), (10, 5, 1), (10, 7, 2), (100, 50, 0.1)]
)
def test_minority_is_zero_from_r0_on_and_not_before(classes, majority, budget):
    limit = lp.total_collapse_ratio(classes, majority, budget, budget)
    for factor in (0.9, 0.99, 0.9999, 1.0001, 1.01, 1.1):
        found = lp.reference_optimum(classes, majority, 1 + (limit - 1) * factor, 1, budget, budget)
        minority = np.diag(found.classifier_gram)[majority:]
        assert (minority == 0).all() if factor > 1 else (minority > 0).all()
        assert math.isnan(found.minority_cosine) == (factor > 1)
        assert found.gap < 1e-12


def test_every_optimum_is_certified_and_within_its_budgets():
    rng = np.random.default_rng(0)
    for _ in range(300):
        classes = int(rng.integers(3, 40))
        majority = int(rng.integers(1, classes))
        e_w, e_h = 10 ** rng.uniform(-5, 2, 2)
        ratio = 10 ** rng.uniform(0, rng.choice([0.01, 1, 4, 9]))
        found = lp.reference_optimum(classes, majority, ratio, 1, e_w, e_h)
        assert 0 <= found.gap < 1e-11
        assert np.linalg.norm(found.logits, "nuc") == pytest.approx(
            classes * math.sqrt(e_w * e_h), rel=1e-9
        )
        assert np.trace(found.classifier_gram) == pytest.approx(classes * e_w, rel=1e-9)
        w, h = lp.factors(found, e_w, e_h)
        np.testing.assert_allclose(w @ h, found.logits, atol=1e-9 * np.abs(found.logits).max())
        np.testing.assert_allclose(w @ w.T, found.classifier_gram, atol=1e-7 * e_w * classes)


def test_the_certificate_notices_a_wrong_answer(monkeypatch):
    honest = lp._solve
    monkeypatch.setattr(lp, "_solve", lambda *a: honest(*a)._replace(a=honest(*a).a * 0.98))
    assert lp.reference_optimum(10, 5, 3, 1, 1, 5).gap > 1e-4


@pytest.mark.parametrize(("k_a", "digits"), [(3, 0.4717), (5, 1.7627), (7, 4.3628)])
def test_a_total_collapse_is_possible_below_e0_alone(k_a, digits):
    """The digits are those of the certificate of Proposition 4.2."""
    e0 = lp.total_collapse_budget(10, k_a)
    assert digits < e0 < digits + 1e-4
    below, above = 0.999 * e0, 1.001 * e0
    assert math.isfinite(lp.total_collapse_ratio(10, k_a, below, below))
    assert lp.total_collapse_ratio(10, k_a, above, above) == math.inf
