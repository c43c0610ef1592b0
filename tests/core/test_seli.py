"""The SELI geometry against the SVD of explicit labels, closed forms and invariances."""

import math

import numpy as np
import pytest
import torch
from problems import generator, normal, rotation

from nclib import nc2_etf_distance, seli_distance, seli_geometry, simplex_etf
from nclib.imbalance import step_imbalance

STEP = [5000] * 3 + [50] * 7


def unit(gram):
    return gram / torch.linalg.norm(gram)


def vectors(gram):
    """Rows whose Gram matrix this is."""
    values, directions = torch.linalg.eigh(gram)
    return directions * values.clamp(min=0).sqrt()


@pytest.mark.parametrize("counts", [[1, 1], [3, 1, 2], [7, 7, 1, 1, 1], [12, 5, 4, 2]])
def test_it_is_that_of_the_svd_of_the_encoded_labels(counts):
    K, N = len(counts), sum(counts)
    labels = np.repeat(np.arange(K), counts)
    Z = np.eye(K)[:, labels] - 1 / K
    V, singular, U_T = np.linalg.svd(Z, full_matrices=False)
    keep = singular > 1e-10 * singular[0]
    V, singular, U_T = V[:, keep], singular[keep], U_T[keep]
    of_samples = U_T.T @ np.diag(singular) @ U_T
    averages = np.eye(K)[:, labels] / np.array(counts)[:, None]
    of_means = averages @ of_samples @ averages.T
    assert of_samples.shape == (N, N)
    assert np.allclose(of_samples, of_means[labels][:, labels], atol=1e-12)  # features of a class coincide
    means, classifier = seli_geometry(counts)
    torch.testing.assert_close(classifier, unit(torch.from_numpy(V * singular @ V.T)), atol=1e-12, rtol=0)
    torch.testing.assert_close(means, unit(torch.from_numpy(of_means)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("K", [2, 3, 10, 50])
def test_balanced_classes_give_the_simplex_etf(K):
    etf = simplex_etf(K, K)
    for gram in seli_geometry([7] * K):
        torch.testing.assert_close(gram, unit(etf @ etf.T), atol=1e-13, rtol=0)
    v, w = normal(K, 20, seed=1), normal(K, 20, seed=2)
    found = seli_distance(v, w, torch.full((K,), 7))
    assert found.means == pytest.approx(nc2_etf_distance(v - v.mean(0)), abs=1e-13)
    assert found.classifier == pytest.approx(nc2_etf_distance(w - w.mean(0)), abs=1e-13)


def test_the_logits_of_the_class_means_are_the_simplex_encoded_labels():
    means, classifier = seli_geometry(STEP)
    product = classifier @ means  # P D^(1/2) P D^(−1/2) P up to scale: the projection P
    torch.testing.assert_close(unit(product), unit(torch.eye(10, dtype=torch.float64) - 0.1), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("K", "large", "R"), [(10, 3, 100), (10, 5, 10), (1000, 300, 100), (1000, 500, 100)])
def test_norms_under_step_imbalance(K, large, R):
    """P D P has the eigenvalues R, 1 and, along the difference of the two groups, a mixed one."""
    small, mixed = K - large, ((K - large) * R + large) / K
    means, classifier = seli_geometry(step_imbalance(K, 50 * R, large, R))
    for gram, power, expected in ((means, -1 / 2, R**0.25), (classifier, 1 / 2, R**-0.25)):
        of_large = (1 - 1 / large) * R**power + small / (large * K) * mixed**power
        of_small = (1 - 1 / small) + large / (small * K) * mixed**power
        ratio = math.sqrt(gram[-1, -1] / gram[0, 0])
        assert ratio == pytest.approx(math.sqrt(of_small / of_large), rel=1e-10)
        if K == 1000:
            assert ratio == pytest.approx(expected, rel=0.005)


def test_the_distance_of_itself_is_zero_and_that_of_the_other_is_not():
    means, classifier = (vectors(gram) for gram in seli_geometry(STEP))
    assert seli_distance(means, classifier, STEP) == pytest.approx((0, 0), abs=1e-12)
    assert min(seli_distance(classifier, means, STEP)) > 0.5
    turned = seli_distance(means.flip(0), classifier.flip(0), STEP[::-1])
    assert turned == pytest.approx((0, 0), abs=1e-12)


def test_the_distance_ignores_scale_rotation_shift_and_the_total_of_samples():
    g = generator(3)
    v, w = normal(10, 16, seed=4), normal(10, 16, seed=5)
    expected = seli_distance(v, w, STEP)
    turn = rotation(16, 6)
    shift = torch.randn(16, generator=g, dtype=torch.float64)
    moved = seli_distance(3 * v @ turn + shift, 0.2 * w @ turn - shift, [100 * count for count in STEP])
    assert moved == pytest.approx(expected, abs=1e-12)
    assert seli_distance(1e200 * v, 1e-200 * w, STEP) == pytest.approx(expected, abs=1e-12)
    order = torch.randperm(10, generator=g)
    assert seli_distance(v[order], w[order], torch.tensor(STEP)[order]) == pytest.approx(expected, abs=1e-12)
    assert seli_distance(v.numpy(), w.numpy(), np.array(STEP)) == expected


def test_the_distances_of_a_simplex_etf_at_the_settings_of_the_paper():
    etf = simplex_etf(10, 10)
    found = [seli_distance(etf, etf, step_imbalance(10, 5000, large, 100)) for large in (3, 5, 7)]
    assert [one.means for one in found] == pytest.approx([0.534, 0.705, 0.848], abs=5e-4)
    assert [one.classifier for one in found] == pytest.approx([0.788, 0.634, 0.458], abs=5e-4)


def test_extremely_unequal_classes_stay_finite():
    for gram in seli_geometry([10**12, 10**6, 1]):
        assert torch.isfinite(gram).all()
        assert torch.linalg.norm(gram) == pytest.approx(1)
        torch.testing.assert_close(gram.sum(0), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("counts", [[5, 0], [5, 0.5], [-1, 3], [5, math.nan], [5, math.inf]])
def test_counts_below_one_or_not_finite_are_refused(counts):
    with pytest.raises(ValueError, match="finite count ≥ 1"):
        seli_geometry(counts)


@pytest.mark.parametrize("counts", [[], [5], 5, [[5, 5], [5, 5]]])
def test_counts_that_are_no_vector_are_refused(counts):
    with pytest.raises(ValueError, match="shape"):
        seli_geometry(counts)


def test_what_does_not_fit_is_refused():
    v = normal(3, 4, seed=1)
    with pytest.raises(ValueError, match="same shape"):
        seli_distance(v, normal(4, 4, seed=1), [1, 2, 3])
    with pytest.raises(ValueError, match="one count for each of the 3 classes, got 2"):
        seli_distance(v, v, [1, 2])
    with pytest.raises(ValueError, match="classifier has NaN"):
        seli_distance(v, v * math.nan, [1, 2, 3])
    with pytest.raises(ValueError, match="class_means must have shape"):
        seli_distance(v[0], v, [1, 2, 3])


def test_rows_that_are_all_equal_have_no_distance():
    v = torch.full((7, 3), 0.1, dtype=torch.float64)
    found = seli_distance(v, normal(7, 3, seed=1), [1, 2, 3, 4, 5, 6, 7])
    assert math.isnan(found.means)
    assert math.isfinite(found.classifier)
