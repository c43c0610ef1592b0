"""The accumulator, and degenerate data: absent classes, means that coincide."""

import math
import warnings

import pytest
import torch
from problems import MINORITY, D, K, close, generator, normal, numpy_moments, random_problem

from nclib import metrics
from nclib.metrics import ClassMoments, class_moments, nc_report, simplex_etf
from nclib.metrics.report import report_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [1e2, 1e5, 1e8])
def test_trap_9_no_shift_costs_a_digit(shift, dtype):
    h, labels, _, _ = random_problem()
    shifted = (h + shift).to(dtype)  # what is given is now this, rounded as it may be
    exact = shifted.double() - shift  # without error: the two are within a factor of two of each other
    shifted_moments, moments = class_moments(shifted, labels, K), class_moments(exact, labels, K)
    for name in ("within_cov", "between_cov", "class_variances", "centred_means"):
        close(getattr(shifted_moments, name), getattr(moments, name), rtol=1e-12)
    close(shifted_moments.within_cov, numpy_moments(exact, labels, "class")["within_cov"], rtol=1e-12)
    assert bool((shifted_moments.within_cov.diagonal() >= 0).all())
    parts = ClassMoments(K, D).update(shifted[:20], labels[:20]).update(shifted[20:], labels[20:])
    close(parts.within_cov, moments.within_cov, rtol=1e-12)


def test_means_far_apart_do_not_drown_a_small_spread():
    means = 1e6 * simplex_etf(4, 6)
    offsets = torch.tensor([-2.0, 0.0, 1.0, 1.0], dtype=torch.float64)[:, None] * 2.0**-10
    h = (means.round()[:, None, :] + offsets).reshape(-1, 6)  # exact in binary
    m = class_moments(h, torch.arange(4).repeat_interleave(4), 4)
    close(m.within_cov, torch.full((6, 6), 1.5 * 2.0**-20, dtype=torch.float64), rtol=1e-6)


@pytest.mark.parametrize("weighting", ["class", "sample", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_moments_agree_with_numpy(weighting, dtype):
    h, labels, _, _ = random_problem()
    h = h.to(dtype)
    m = class_moments(h, labels, K, weighting)
    for name, expected in numpy_moments(h, labels, weighting).items():
        actual = getattr(m, name)
        assert actual.dtype == (torch.int64 if name == "counts" else torch.float64)
        close(actual, expected, rtol=1e-13)
    assert torch.equal(m.within_cov, m.within_cov.T)


@pytest.mark.parametrize("batch", [1, 2, 7, 64, 91])
def test_batches_add_up(batch):
    h, labels, _, _ = random_problem()
    labels, order = labels.sort()  # by class: batches that miss classes altogether
    h = h[order] + 1e6
    whole, parts = class_moments(h, labels, K), ClassMoments(K, D)
    for x, y in zip(h.split(batch), labels.split(batch), strict=True):
        assert parts.update(x, y) is parts
    for name in ("counts", "centred_means", "within_cov", "between_cov", "class_variances"):
        close(getattr(parts, name), getattr(whole, name), rtol=1e-12)


def test_a_view_follows_and_a_selection_does_not():
    h, labels, _, _ = random_problem()
    m = ClassMoments(K, D).update(h[:60], labels[:60])
    view, part = m.with_weighting("sample"), m.select([1, 3])
    assert (m.weighting, view.weighting) == ("class", "sample")
    assert view.rank_between == m.rank_between
    frozen = part.class_means.clone()
    stale = view.between_eigen()[0].clone()
    m.update(h[60:], labels[60:])
    expected = class_moments(h, labels, K, "sample")
    for name in ("counts", "class_means", "global_mean", "within_cov", "between_cov", "class_variances"):
        close(getattr(view, name), getattr(expected, name), rtol=1e-13)
    assert not torch.allclose(view.between_eigen()[0], stale)
    close(view.between_eigen()[0], expected.between_eigen()[0])
    assert torch.equal(part.class_means, frozen)
    whole = ClassMoments(K, D).update(h[labels > 0], labels[labels > 0])
    before = whole.means_from_origin + whole.origin
    whole.select([0]).update(h[labels == 0], labels[labels == 0])
    assert torch.equal(whole.means_from_origin + whole.origin, before)
    with pytest.raises(ValueError, match=r"a selection of classes.* has no within_cov"):
        _ = part.within_cov


def test_a_class_without_samples_is_left_out_with_a_warning():
    h, labels, logits, w = random_problem()
    there = labels != 3
    with pytest.warns(metrics.EmptyClassWarning, match="1 of 6 classes have no samples and are left out: 3"):
        m = class_moments(h[there], labels[there], K)
    with warnings.catch_warnings(record=True) as caught:  # said once, by class_moments
        warnings.simplefilter("always")
        assert bool(m.class_means[3].isnan().all()) and bool(m.class_variances[3].isnan())
        assert not bool(m.class_means[m.present].isnan().any()) and not bool(m.global_mean.isnan().any())
        report = report_of(m, h[there], labels[there], logits[there], w, MINORITY)
    assert not caught
    others = [0, 1, 2, 4, 5]
    renumbered = torch.tensor([others.index(k) for k in labels[there].tolist()])
    alone = nc_report(h[there], renumbered, logits[there][:, others], w[others], minority=[2, 3, 4])
    assert report["absent_classes"] == 1.0
    for key, value in alone.items():
        # those about the classifier alone have all its rows, and the logits are of all classes
        if not key.endswith(("_classifier", "norm_ratio", "absent_classes")) and not key.startswith("nc4"):
            assert report[key] == pytest.approx(value, rel=1e-10, nan_ok=True), key


def test_predicting_an_absent_class_is_a_mismatch_and_a_block_of_absent_classes_is_nan():
    with pytest.warns(metrics.EmptyClassWarning):
        m = class_moments(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]), 3)
    logits = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 2.0]])
    assert metrics.nc4_ncc_mismatch(torch.tensor([[0.0], [1.0]]), logits, m) == 0.5
    h, labels, logits, w = random_problem()
    there = labels < 2
    with pytest.warns(metrics.EmptyClassWarning):
        report = nc_report(h[there], labels[there], logits[there], w, minority=[3, 4])
    assert math.isnan(report["nc1_cdnv_minority"]) and math.isnan(report["nc4_ncc_mismatch_minority"])
    assert set(report) == set(metrics.ideal_values(K))


def test_means_that_coincide_up_to_rounding_give_an_infinite_cdnv():
    values = normal(30, 4)
    h = torch.cat([values, values.flip(0), values + 1, values[:1]])  # same mean, summed in another order
    labels = torch.tensor([0] * 30 + [1] * 30 + [2] * 30 + [3])
    assert metrics.nc1_cdnv(class_moments(h, labels, 4)) == math.inf
    h[30:60] += 1e-6
    assert math.isfinite(metrics.nc1_cdnv(class_moments(h, labels, 4)))


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e8])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("weighting", ["class", "sample", "mixed"])
def test_class_means_that_all_coincide_up_to_rounding_are_no_geometry(weighting, classes, offset):
    values = normal(30, 4) + offset
    h = torch.cat([values[torch.randperm(30, generator=generator(k))] for k in range(classes)])
    labels, w = torch.arange(classes).repeat_interleave(30), normal(classes, 4, seed=1)
    m = class_moments(h, labels, classes, weighting)
    if offset < 1e8:  # there the features lie on a coarse grid, whose sums are exact
        assert bool((m.means_from_origin != m.means_from_origin[0]).any())  # what rounding leaves
    report = report_of(m, h, labels, h @ w.T, w)
    assert report["nc1_trace_ratio"] == report["nc1_cdnv"] == math.inf and report["rank_between"] == 0
    for key in ("nc1_pinv", "nc1_pinv_class_balanced", "nc2_etf_distance", "nc2_equinorm", "nc3_self_duality"):
        assert math.isnan(report[key]), key
    assert math.isnan(report["nc3_alignment"]) and math.isnan(metrics.nc2_etf_distance(m.centred_means))
    h[:30] += 1e-6  # small, but no rounding
    apart = class_moments(h, labels, classes, weighting)
    assert apart.rank_between == 1 and math.isfinite(metrics.nc1_pinv(apart) + metrics.nc1_trace_ratio(apart))


def test_two_classes_form_a_simplex_whatever_the_features_are():
    draw = torch.Generator().manual_seed(0)
    h, w = torch.randn(60, 5, generator=draw, dtype=torch.float64), torch.randn(6, 5, generator=draw)
    labels = torch.arange(60) % 6
    nc2 = ("nc2_etf_distance", "nc2_equinorm", "nc2_equiangular")
    report = nc_report(h, labels, h @ w.T.double(), w, minority=[4, 5])
    assert all(math.isnan(report[f"{name}_minority"]) and report[f"{name}_majority"] > 0 for name in nc2)
    pair = labels < 2
    report = nc_report(h[pair], labels[pair], (h @ w.T.double())[pair, :2], w[:2])
    assert all(math.isnan(report[name]) for name in nc2) and report["nc1_pinv"] > 0
    assert metrics.nc2_etf_distance(class_moments(h[pair], labels[pair], 2).centred_means) < 1e-12  # why


def test_a_refused_batch_adds_nothing():
    h, labels, _, _ = random_problem()
    m = ClassMoments(K, D).update(h, labels)
    before = m.within_cov.clone()
    for bad in (h.index_fill(0, torch.tensor([17]), math.nan), h.int(), h[:, 1:]):
        with pytest.raises(ValueError):
            m.update(bad, labels)
    assert torch.equal(m.within_cov, before) and int(m.counts.sum()) == len(h)
