"""Out-of-distribution scores are the formulas of their papers."""

import numpy as np
import pytest
import torch
from problems import single as normal
from sklearn.decomposition import PCA

import nclib as nc

K = 4
LABELS = torch.arange(60) % K


def problem(seed=0, d=12):
    means = 3 * normal(K, d, seed=seed).double()
    train = means[LABELS] + normal(60, d, seed=seed + 1).double() * torch.linspace(2, 0.1, d) + 1
    return train, 2 * normal(30, d, seed=seed + 2).double(), nc.class_moments(train, LABELS, K)


def test_neco_is_the_share_of_the_norm_in_the_principal_components():
    train, other, moments = problem()
    for dim in (None, 2, 11):
        components = PCA(dim or K - 1).fit(train.numpy()).components_
        expected = np.linalg.norm(other.numpy() @ components.T, axis=1) / np.linalg.norm(other.numpy(), axis=1)
        np.testing.assert_allclose(nc.ood_scores(other, moments, "neco", dim=dim), expected, rtol=1e-9)
    flat = nc.simplex_etf(K, 12)
    np.testing.assert_allclose(nc.ood_scores(flat, nc.class_moments(flat[LABELS], LABELS, K)), 1, rtol=1e-9)
    assert nc.ood_scores(torch.zeros(1, 12), moments).item() == 0


def test_neco_counts_the_classes_that_are_there():
    train, other, _ = problem()
    with pytest.warns(nc.metrics.EmptyClassWarning):
        some = nc.class_moments(train, LABELS, 30)  # 26 classes without samples
    torch.testing.assert_close(nc.ood_scores(other, some), nc.ood_scores(other, problem()[2]))
    assert nc.ood_scores(other, some).std() > 0.01


def test_mahalanobis_is_the_formula_of_its_paper():
    train, other, moments = problem()
    means = torch.stack([train[k == LABELS].mean(0) for k in range(K)])
    sigma = sum(torch.cov(train[k == LABELS].T, correction=0) * (k == LABELS).sum() for k in range(K)) / 60
    gaps = other[:, None] - means
    expected = -torch.einsum("nki,ij,nkj->nk", gaps, torch.linalg.inv(sigma), gaps).amin(1)
    torch.testing.assert_close(nc.ood_scores(other, moments, "mahalanobis"), expected, rtol=1e-8, atol=0)
