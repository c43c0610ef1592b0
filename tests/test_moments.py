"""``ClassMoments``: plain NumPy, batches, large numbers, absent classes, what is refused."""

import math

import numpy as np
import pytest
import torch
from problems import D, K, close, normal, numpy_moments, random_problem

from nclib.metrics import ClassMoments, EmptyClassWarning, class_moments, nc_report, simplex_etf


@pytest.mark.parametrize("weighting", ["class", "sample", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_moments_agree_with_numpy(weighting, dtype):
    h, labels, _, _ = random_problem()
    h = h.to(dtype)
    moments = class_moments(h, labels, K, weighting)
    for name, expected in numpy_moments(h, labels, weighting).items():
        actual = getattr(moments, name)
        assert actual.dtype == (torch.int64 if name == "counts" else torch.float64)
        close(actual, expected, rtol=1e-13)


def test_the_eigenvalues_are_those_of_the_between_class_covariance():
    h, labels, _, _ = random_problem()
    moments = class_moments(h, labels, K)
    values, directions = moments.between_eigen()
    assert moments.rank_between == len(values) == K - 1
    close(directions * values @ directions.T, moments.between_cov)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 91])
def test_batches_add_up(size):
    h, labels, _, _ = random_problem()
    labels, order = labels.sort()  # by class: batches that miss classes altogether
    h = h[order] + 1e6
    whole = class_moments(h, labels, K)
    parts = ClassMoments(K, D)
    for x, y in zip(h.split(size), labels.split(size), strict=True):
        parts = parts.update(x, y)
    for name in ("counts", "centred_means", "within_cov", "between_cov", "class_variances"):
        close(getattr(parts, name), getattr(whole, name), rtol=1e-12)


def test_features_that_take_several_chunks_add_up(monkeypatch):
    problem = random_problem()
    expected = nc_report(*problem, minority=[0, 1, 2])
    monkeypatch.setattr("nclib.metrics.moments.CHUNK_NUMBERS", 10 * D)
    assert nc_report(*problem, minority=[0, 1, 2]) == pytest.approx(expected, rel=1e-10)


def test_another_weighting_is_a_copy():
    h, labels, _, _ = random_problem()
    moments = class_moments(h, labels, K)
    other = moments.with_weighting("sample")
    close(other.between_cov, class_moments(h, labels, K, "sample").between_cov)
    other.update(h, labels)
    assert moments.num_samples == len(h)
    assert moments.weighting == "class"


def test_a_selection_is_as_if_only_these_classes_existed():
    h, labels, _, _ = random_problem()
    part = class_moments(h, labels, K, "sample").select([1, 3])
    rows = (labels == 1) | (labels == 3)
    alone = class_moments(h[rows], (labels[rows] == 3).long(), 2, "sample")
    for name in ("counts", "class_means", "centred_means", "between_cov", "class_variances"):
        close(getattr(part, name), getattr(alone, name), rtol=1e-12)
    assert bool(part.within_cov.isnan().all())


# --- large numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [1e2, 1e8])
def test_a_common_shift_costs_no_digit(shift, dtype):
    h, labels, _, _ = random_problem()
    shifted = (h + shift).to(dtype)
    exact = shifted.double() - shift  # the rounding that is left is data
    moments = class_moments(exact, labels, K)
    of_shifted = class_moments(shifted, labels, K)
    for name in ("within_cov", "between_cov", "class_variances", "centred_means"):
        close(getattr(of_shifted, name), getattr(moments, name), rtol=1e-12)


def test_means_far_apart_do_not_drown_a_small_spread():
    means = (1e6 * simplex_etf(4, 6)).round()
    offsets = torch.tensor([-2.0, 0.0, 1.0, 1.0], dtype=torch.float64)[:, None] * 2.0**-10
    h = (means[:, None, :] + offsets).reshape(-1, 6)  # exact in binary
    moments = class_moments(h, torch.arange(4).repeat_interleave(4), 4)
    close(moments.within_cov, torch.full((6, 6), 1.5 * 2.0**-20, dtype=torch.float64), rtol=1e-6)


# --- classes without samples, means that coincide -------------------------------------------------


def test_a_class_without_samples_is_left_out_with_a_warning():
    h, labels, _, _ = random_problem()
    there = labels != 3
    with pytest.warns(
        EmptyClassWarning, match="1 of 6 classes have no samples and are left out: 3"
    ):
        moments = class_moments(h[there], labels[there], K)
    others = class_moments(h[there], labels[there] - (labels[there] > 3).long(), K - 1)
    assert moments.present.tolist() == [True, True, True, False, True, True]
    close(moments.between_cov, others.between_cov)
    close(moments.centred_means[moments.present], others.centred_means)
    for name in ("class_means", "centred_means", "class_variances"):
        assert bool(getattr(moments, name)[3].isnan().all()), name


def test_class_means_that_all_coincide_are_no_geometry():
    h = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0], [2.0, 2.0], [-2.0, -2.0]])
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    report = nc_report(h, labels, w=normal(3, 2))
    assert report["nc1_trace_ratio"] == report["nc1_cdnv"] == math.inf
    assert report["rank_between"] == 0
    for name in (
        "nc1_pinv",
        "nc1_pinv_class_balanced",
        "nc2_etf_distance",
        "nc2_equinorm",
        "nc3_self_duality",
    ):
        assert math.isnan(report[name]), name


# --- what is refused ------------------------------------------------------------------------------

H, LABELS, _, _ = random_problem()


@pytest.mark.parametrize(
    ("h", "labels", "message"),
    [
        (H[:, 1:], LABELS, r"features of shape \(N, 11\), got torch.float64 \(91, 10\)"),
        (H.flatten(), LABELS, r"features of shape \(N, 11\)"),
        (H.int(), LABELS, "floating-point features"),
        (H[:0], LABELS[:0], "at least one sample"),
        (
            H.index_fill(0, torch.tensor([17]), math.nan),
            LABELS,
            "h has NaN or infinite values in 1 of 91 .* row 17",
        ),
        (
            H.index_fill(0, torch.tensor([3, 5]), math.inf),
            LABELS,
            "h has NaN or infinite values in 2 of 91 .* row 3",
        ),
        (H, LABELS[1:], r"labels must be integers of shape \(91,\)"),
        (H, LABELS.double(), "labels must be integers"),
        (H, LABELS + 1, "labels must lie in 0 … 5, got 1 … 6"),
        (H, LABELS - 1, "labels must lie in 0 … 5, got -1 … 4"),
    ],
)
def test_a_batch_that_is_refused_adds_nothing(h, labels, message):
    moments = ClassMoments(K, D).update(H, LABELS)
    before = moments.within_cov
    with pytest.raises(ValueError, match=message):
        moments.update(h, labels)
    assert torch.equal(moments.within_cov, before)
    assert moments.num_samples == len(H)


@pytest.mark.parametrize("wrong", [0, -1, 2.0, math.nan, True, "2", None])
def test_sizes_are_whole_numbers_of_at_least_one(wrong):
    with pytest.raises(ValueError, match="integers of at least 1"):
        ClassMoments(wrong, 3)
    with pytest.raises(ValueError, match="integers of at least 1"):
        ClassMoments(3, wrong)


def test_an_unknown_weighting_and_moments_without_samples_are_refused():
    with pytest.raises(
        ValueError, match="weighting must be 'class', 'sample' or 'mixed', got 'samples'"
    ):
        class_moments(H, LABELS, K, "samples")
    with pytest.raises(ValueError, match="no samples yet; call update"):
        _ = ClassMoments(K, D).within_cov
    assert ClassMoments(np.int64(3), np.int64(2)).counts.shape == (3,)
