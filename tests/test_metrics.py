"""Metrics of collapse: closed forms, NumPy, SELI, invariances, the report, what is refused."""

import math

import numpy as np
import pytest
import torch
from problems import COUNTS, MINORITY, K, close, normal, numpy_moments, random_problem, rotation
from torch import Tensor

from nclib import metrics
from nclib.metrics import (
    EmptyClassWarning,
    class_moments,
    ideal_values,
    nc_report,
    seli_distance,
    seli_geometry,
    simplex_etf,
)

WEIGHTINGS = ("class", "sample", "mixed")


# --- closed forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_classes", "dim"), [(2, 1), (3, 2), (10, 9), (10, 512), (100, 99)])
def test_a_simplex_etf_has_its_gram_matrix_and_sums_to_zero(num_classes, dim):
    v = simplex_etf(num_classes, dim)
    target = (torch.eye(num_classes, dtype=torch.float64) * num_classes - 1) / (num_classes - 1)
    assert v.shape == (num_classes, dim)
    close(v @ v.T, target, rtol=1e-13)
    assert v.sum(0).abs().max() < 1e-12
    for metric in (
        metrics.nc2_etf_distance,
        metrics.nc2_equinorm,
        metrics.nc2_equiangular,
        metrics.nc2_uniformity,
    ):
        assert metric(v) == pytest.approx(0, abs=1e-13)


def centred(v: Tensor) -> Tensor:
    return v - v.mean(0)


def with_common_mean(v: Tensor, length: float) -> Tensor:
    """Adds a vector of that length, orthogonal to all rows."""
    return torch.cat([v, torch.full((len(v), 1), length, dtype=v.dtype)], dim=1)


def test_nc2_of_known_geometries():
    etf = simplex_etf(10, 9)
    opposite = torch.ones(10, 1)
    opposite[5:] = -1
    assert metrics.nc2_etf_distance(torch.eye(10)) == pytest.approx(0.320, abs=5e-4)
    assert metrics.nc2_etf_distance(torch.eye(100)) == pytest.approx(0.100, abs=5e-4)
    assert metrics.nc2_etf_distance(opposite) == pytest.approx(1.155, abs=5e-4)
    assert metrics.nc2_etf_distance(torch.ones(10, 4)) == pytest.approx(math.sqrt(2), abs=1e-12)
    assert metrics.nc2_etf_distance(centred(with_common_mean(etf, 1.0))) == pytest.approx(
        0, abs=1e-13
    )
    assert metrics.nc2_equinorm(torch.eye(10)[:, :1]) == pytest.approx(
        3.0
    )  # the upper end √(K − 1)
    assert metrics.nc2_equiangular(torch.ones(10, 4)) == pytest.approx(
        10 / 9
    )  # the upper end K/(K − 1)


def test_the_papers_equations_see_the_common_mean_and_ours_do_not():
    etf = simplex_etf(10, 9)
    labels = torch.arange(10)
    w = with_common_mean(etf, 0.0)
    equal = class_moments(with_common_mean(etf, 1.0), labels, 10)
    twice = class_moments(with_common_mean(etf, 2.0), labels, 10)
    assert metrics.paper_eq13_uncentred(equal) == pytest.approx(
        math.sqrt(2 - 2 / math.sqrt(10)), abs=1e-12
    )  # 1.169
    assert metrics.nc2_etf_distance(equal.centred_means) == pytest.approx(0, abs=1e-13)
    assert metrics.paper_eq14_uncentred(w, twice) == pytest.approx(
        math.sqrt(2 - 2 / math.sqrt(5)), abs=1e-12
    )  # 1.05
    assert metrics.nc3_self_duality(w, twice) == pytest.approx(0, abs=1e-13)
    assert metrics.nc3_self_duality(-w, twice) == pytest.approx(2, abs=1e-13)


def test_minority_collapse_by_hand():
    w = torch.tensor([[4.0, 0.0], [0.0, 4.0], [1.0, 1.0], [2.0, 2.0], [0.5, 0.5]])
    assert metrics.minority_cosine(w, [2, 3, 4]) == pytest.approx(1.0)
    assert metrics.minority_cosine(
        w, torch.tensor([False, False, True, True, True])
    ) == pytest.approx(1.0)
    assert metrics.minority_cosine(w, np.array([0, 1])) == pytest.approx(0.0)
    assert metrics.classifier_norm_ratio(w, [2, 3, 4]) == pytest.approx(math.sqrt(2) * 3.5 / 3 / 4)
    assert math.isnan(metrics.minority_cosine(w, [3]))


def isotropic(means: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """2d samples per class, ± along each axis: every class covariance is σ² I exactly."""
    num_classes, dim = means.shape
    step = sigma * math.sqrt(dim) * torch.eye(dim, dtype=torch.float64)
    h = means[:, None, :] + torch.cat([step, -step])
    return h.reshape(-1, dim), torch.arange(num_classes).repeat_interleave(2 * dim)


def test_two_nc1_of_the_same_features_differ_64_fold():
    moments = class_moments(*isotropic(simplex_etf(10, 512), sigma=0.2), 10)
    assert metrics.nc1_pinv(moments) == pytest.approx(0.324, rel=1e-6)  # (K−1)² σ² / K
    assert metrics.nc1_trace_ratio(moments) == pytest.approx(20.48, rel=1e-6)  # d σ²
    assert metrics.nc1_cdnv(moments) == pytest.approx(
        512 * 0.04 / (2 * 10 / 9), rel=1e-6
    )  # d σ² / ‖μ_k − μ_l‖²


def test_nc1_falls_when_minority_classes_merge_and_the_rank_shows_it():
    apart = torch.eye(10, dtype=torch.float64)
    merged = apart.clone()
    merged[3:] = apart[3]
    before = class_moments(*isotropic(apart, 0.06), 10)
    after = class_moments(*isotropic(merged, 0.06), 10)
    assert (before.rank_between, after.rank_between) == (9, 3)
    assert metrics.nc1_pinv(after) < metrics.nc1_pinv(before) / 2  # "better"
    assert metrics.nc1_trace_ratio(after) > 1.5 * metrics.nc1_trace_ratio(
        before
    )  # worse, as it should be
    assert metrics.nc1_cdnv(after) == math.inf


@pytest.mark.parametrize(("relative_eigenvalue", "rank"), [(1.1e-10, 2), (0.9e-10, 1)])
def test_the_rank_cutoff_is_fixed_and_decides(relative_eigenvalue, rank):
    s = math.sqrt(0.75 * relative_eigenvalue)  # eigenvalues of Σ_B: 1/2 and 2 s²/3
    means = torch.tensor([[-1.0, 0.0], [0.5, s], [0.5, -s]], dtype=torch.float64)
    moments = class_moments(*isotropic(means, 0.05), 3)
    inverse = 2.0 if rank == 1 else 2.0 + 2.0 / relative_eigenvalue
    assert moments.rank_between == rank
    assert metrics.nc1_pinv(moments) == pytest.approx(0.05**2 * inverse / 3, rel=1e-6)


def test_a_perfect_etf_under_imbalance_depends_on_the_centre():
    etf = simplex_etf(10, 9)
    labels = torch.repeat_interleave(torch.arange(10), torch.tensor([500] * 3 + [5] * 7))
    moments = class_moments(etf[labels], labels, 10)
    assert metrics.nc2_etf_distance(moments.centred_means) == pytest.approx(0, abs=1e-12)
    assert metrics.nc3_self_duality(etf, moments) == pytest.approx(0, abs=1e-12)
    at_sample_mean = moments.with_weighting("sample")
    assert metrics.nc2_etf_distance(at_sample_mean.centred_means) == pytest.approx(0.77, abs=5e-3)
    assert metrics.nc3_self_duality(etf, at_sample_mean) == pytest.approx(0.45, abs=5e-3)


def test_nc4_takes_the_bias_into_account_and_ties_are_no_mismatch():
    h = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    moments = class_moments(h, torch.tensor([0, 1, 0, 1]), 2)
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert metrics.nc4_ncc_mismatch(h, logits, moments) == 0.0
    assert metrics.nc4_ncc_mismatch(h, logits + torch.tensor([5.0, 0.0]), moments) == 0.5
    assert metrics.nc4_ncc_mismatch(torch.full((4, 1), 0.5), logits, moments) == 0.0


def test_means_that_differ_by_rounding_alone_are_a_tie():
    v = normal(30, 4)
    h = torch.cat([v, v.flip(0)])  # the same mean, summed in another order
    moments = class_moments(h, torch.arange(2).repeat_interleave(30), 2)
    assert not torch.equal(*moments.means_from_origin)
    assert metrics.nc4_ncc_mismatch(h, torch.eye(2)[torch.arange(60) % 2], moments) == 0.0


@pytest.mark.parametrize(("num_classes", "dim"), [(4, 2), (6, 1), (10, 7), (20, 5)])
@pytest.mark.filterwarnings("ignore:.*classes form no simplex")
def test_the_least_values_without_a_simplex_are_reached(num_classes, dim):
    v = torch.linalg.qr(centred(normal(num_classes, dim))).Q  # whose Gram matrix is a projection
    report = nc_report(torch.cat([v, v]), torch.arange(2 * num_classes) % num_classes, w=v)
    ideal = ideal_values(num_classes, dim)
    reached = ["nc2_etf_distance", "nc2_etf_distance_classifier", "nc3_alignment", "rank_between"]
    for name in [*reached, "paper_eq13_uncentred", "paper_eq13_uncentred_printed_constant"]:
        assert report[name] == pytest.approx(ideal[name].value, abs=1e-9), name
    assert math.isnan(ideal["nc2_equiangular"].value)


def test_the_least_nc2_equinorm_is_that_of_a_polygon_and_on_a_line_of_two_points():
    for num_classes in (4, 5, 9):
        angles = torch.arange(num_classes) * 2 * math.pi / num_classes
        polygon = torch.stack([angles.cos(), angles.sin()], 1).double()
        least = ideal_values(num_classes, 2)["nc2_equinorm"].value
        assert metrics.nc2_equinorm(polygon) == pytest.approx(least, abs=1e-6) and least == 0
    assert ideal_values(6, 1)["nc2_equinorm"].value == 0
    for num_classes in (3, 5, 9):
        few = num_classes // 2
        line = torch.tensor([few + 1.0] * few + [-few] * (few + 1)).double().unsqueeze(1)
        least = ideal_values(num_classes, 1)["nc2_equinorm"].value
        assert line.sum() == 0 and metrics.nc2_equinorm(line) == pytest.approx(least, rel=1e-12)
        others = centred(normal(num_classes, 200))
        assert all(metrics.nc2_equinorm(v[:, None]) > least for v in others.T)
    assert math.isnan(ideal_values(9, 1)["nc2_equinorm_minority"].value)
    assert ideal_values(9, 2)["nc2_equinorm_minority"].value == 0


# --- NumPy, written out plainly -------------------------------------------------------------------


def unit(x):
    return x / np.sqrt((x**2).sum())


def norms(v):
    return np.sqrt((v**2).sum(1))


def off_diagonal_cosines(v):
    return (v @ v.T / np.outer(norms(v), norms(v)))[~np.eye(len(v), dtype=bool)]


def numpy_report(
    h: Tensor, labels: Tensor, logits: Tensor, w: Tensor, weighting: str
) -> dict[str, float]:
    m = numpy_moments(h, labels, weighting)
    h, labels, logits, w = (x.numpy() for x in (h, labels, logits, w))
    raw = m["class_means"]
    means = raw - m["global_mean"]
    etf = (np.eye(K) - 1 / K) / np.sqrt(K - 1)
    pinv = np.linalg.pinv(m["between_cov"], rcond=1e-10, hermitian=True)
    balanced = sum(np.cov(h[labels == k].T, bias=True) for k in range(K)) / K
    i, j = np.tril_indices(K, -1)
    pairs = (m["class_variances"][i] + m["class_variances"][j]) / (2 * norms(raw[i] - raw[j]) ** 2)
    nearest = ((h[:, None, :] - raw[None]) ** 2).sum(2).argmin(1)
    return {
        "nc1_pinv": np.trace(m["within_cov"] @ pinv) / K,
        "nc1_pinv_class_balanced": np.trace(balanced @ pinv) / K,
        "nc1_trace_ratio": np.trace(m["within_cov"]) / np.trace(m["between_cov"]),
        "nc1_cdnv": np.mean(pairs),
        "nc2_etf_distance": np.linalg.norm(unit(means @ means.T) - etf),
        "nc2_equinorm": norms(means).std() / norms(means).mean(),
        "nc2_equiangular": np.abs(off_diagonal_cosines(means) + 1 / (K - 1)).mean(),
        "nc3_self_duality": np.linalg.norm(unit(w) - unit(means)),
        "nc3_alignment": np.linalg.norm(unit(w @ means.T) - etf),
        "nc4_ncc_mismatch": np.mean(nearest != logits.argmax(1)),
        "nc2_etf_distance_classifier": np.linalg.norm(unit(w @ w.T) - etf),
        "nc2_equinorm_classifier": norms(w).std() / norms(w).mean(),
        "nc2_equiangular_classifier": np.abs(off_diagonal_cosines(w) + 1 / (K - 1)).mean(),
        "rank_between": np.linalg.matrix_rank(m["between_cov"], rtol=1e-10, hermitian=True),
        "paper_eq13_uncentred": np.linalg.norm(unit(raw @ raw.T) - etf),
        "paper_eq13_uncentred_printed_constant": np.linalg.norm(
            unit(raw @ raw.T) - etf / np.sqrt(K - 1)
        ),
        "paper_eq14_uncentred": np.linalg.norm(unit(w) - unit(raw)),
        "absent_classes": 0,
        "small_classes": (m["counts"] < 5).sum(),
        "minority_cosine": off_diagonal_cosines(w[MINORITY]).mean(),
        "classifier_norm_ratio": norms(w[MINORITY]).mean()
        / norms(np.delete(w, MINORITY, 0)).mean(),
    }


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_report_agrees_with_numpy(weighting):
    problem = random_problem()
    report = nc_report(*problem, weighting, minority=MINORITY)
    expected = numpy_report(*problem, weighting)
    assert list(report)[: len(expected)] == list(expected)
    assert {name: report[name] for name in expected} == pytest.approx(expected, rel=1e-10)


def test_a_hundred_classes_and_minorities_of_five_images():
    """CIFAR-100 at 100 : 1: no class is flagged, though the variance of five lacks a fifth."""
    counts = [40] * 50 + [5] * 50
    labels = torch.repeat_interleave(torch.arange(100), torch.tensor(counts))
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(100, 128, dtype=torch.float64, generator=generator)
    noise = torch.randn(len(labels), 128, dtype=torch.float64, generator=generator)
    features = centres[labels] + noise
    logits = features @ centres.T
    report = nc_report(features, labels, logits, centres, minority=range(50, 100))
    assert all(math.isfinite(value) for value in report.values())
    assert report["small_classes"] == 0 and report["rank_between"] == 99
    apart = centres[50:].var(0, correction=0).sum()
    within = report["nc1_trace_ratio_minority"] * float(apart)
    assert within == pytest.approx(128 * (1 - 1 / 5), rel=0.1)


def test_metrics_outside_the_report_agree_with_numpy():
    h, labels, _, w = random_problem()
    moments = class_moments(h, labels, K)
    means = moments.centred_means.numpy()
    directions = means / norms(means)[:, None]
    distances = [
        norms(directions[[i]] - directions[[j]])[0]
        for i, j in zip(*np.tril_indices(K, -1), strict=True)
    ]
    assert metrics.nc2_uniformity(moments.centred_means) == pytest.approx(
        np.var(distances), rel=1e-10
    )
    of_logarithms = metrics.nc2_uniformity(moments.centred_means, log=True)
    assert of_logarithms == pytest.approx(np.var(np.log(distances)), rel=1e-10)
    products = (w.numpy() * means).sum(1)
    assert metrics.nc3_unnormalised_duality(w, moments) == pytest.approx(
        np.var(products, ddof=1), rel=1e-10
    )
    assert metrics.nc0(w) == pytest.approx((w.numpy().sum(0) ** 2).sum() / K, rel=1e-10)


# --- SELI -----------------------------------------------------------------------------------------

STEP = [5000] * 3 + [50] * 7


def vectors(gram):
    """Rows whose Gram matrix this is."""
    values, directions = torch.linalg.eigh(gram)
    return directions * values.clamp(min=0).sqrt()


@pytest.mark.parametrize("counts", [[1, 1], [3, 1, 2], [7, 7, 1, 1, 1], [12, 5, 4, 2]])
def test_seli_is_that_of_the_svd_of_the_encoded_labels(counts):
    classes = len(counts)
    labels = np.repeat(np.arange(classes), counts)
    V, singular, Ut = np.linalg.svd(np.eye(classes)[:, labels] - 1 / classes, full_matrices=False)
    keep = singular > 1e-10 * singular[0]
    of_samples = Ut[keep].T * singular[keep] @ Ut[keep]
    averages = np.eye(classes)[:, labels] / np.array(counts)[:, None]
    means, classifier = seli_geometry(counts)
    close(classifier, unit(V[:, keep] * singular[keep] @ V[:, keep].T), rtol=1e-12)
    close(means, unit(averages @ of_samples @ averages.T), rtol=1e-12)


def test_seli_of_balanced_classes_is_the_simplex_etf():
    etf = simplex_etf(10, 10)
    for gram in seli_geometry([7] * 10):
        close(gram, unit((etf @ etf.T).numpy()), rtol=1e-13)
    v = normal(10, 20, seed=1)
    w = normal(10, 20, seed=2)
    distance = seli_distance(v, w, [7] * 10)
    assert distance.means == pytest.approx(metrics.nc2_etf_distance(centred(v)), abs=1e-13)
    assert distance.classifier == pytest.approx(metrics.nc2_etf_distance(centred(w)), abs=1e-13)


def test_the_distance_of_seli_from_itself_is_zero_and_that_of_the_other_part_is_not():
    means, classifier = (vectors(gram) for gram in seli_geometry(STEP))
    assert seli_distance(means, classifier, STEP) == pytest.approx((0, 0), abs=1e-12)
    assert min(seli_distance(classifier, means, STEP)) > 0.5


def test_the_distance_ignores_scale_rotation_shift_order_and_the_total_of_samples():
    v = normal(10, 16, seed=4)
    w = normal(10, 16, seed=5)
    expected = seli_distance(v, w, STEP)
    turn = rotation(16, 6)
    shift = normal(16, seed=7)
    moved = seli_distance(
        3 * v @ turn + shift, 0.2 * w @ turn - shift, [100 * count for count in STEP]
    )
    assert moved == pytest.approx(expected, abs=1e-12)
    order = torch.tensor([4, 1, 9, 0, 3, 8, 2, 7, 5, 6])
    assert seli_distance(v[order], w[order], torch.tensor(STEP)[order]) == pytest.approx(
        expected, abs=1e-12
    )


# --- invariances ----------------------------------------------------------------------------------

SHIFT_SENSITIVE = {
    "paper_eq13_uncentred",
    "paper_eq13_uncentred_printed_constant",
    "paper_eq14_uncentred",
}
RELABELLED = torch.tensor([3, 0, 5, 1, 4, 2])
ORIGINAL = RELABELLED.argsort()
CHANGES = {
    "rotated": lambda h, y, z, w: (h @ rotation(11), y, z, w @ rotation(11)),
    "smaller features": lambda h, y, z, w: (1e-4 * h, y, z, w),
    "larger classifier": lambda h, y, z, w: (h, y, z, 1e3 * w),
    "reordered": lambda h, y, z, w: (h.flip(0), y.flip(0), z.flip(0), w),
    "relabelled": lambda h, y, z, w: (h, RELABELLED[y], z[:, ORIGINAL], w[ORIGINAL]),
    "twice": lambda h, y, z, w: (torch.cat([h, h]), torch.cat([y, y]), torch.cat([z, z]), w),
    "float32": lambda h, y, z, w: (h.float(), y.int(), z.float(), w.float()),
    "numpy": lambda h, y, z, w: (h.numpy(), y.numpy(), z.numpy(), w.numpy()),
    "with gradient": lambda h, y, z, w: (h.clone().requires_grad_(), y, z, torch.nn.Parameter(w)),
    "shifted": lambda h, y, z, w: (h + 1000.0, y, z, w),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_must_not_change_a_metric(change):
    # float32 values: then "float32" is the same data, and must give the same numbers
    problem = [x.float().to(x.dtype) for x in random_problem()]
    for weighting in WEIGHTINGS:
        before = nc_report(*problem, weighting)
        after = nc_report(*CHANGES[change](*problem), weighting)
        assert len(after) == len(before) == 19
        for name, value in after.items():
            if change == "shifted" and name in SHIFT_SENSITIVE:
                assert abs(value - before[name]) > 1e-3, name
            else:
                assert value == pytest.approx(before[name], rel=1e-9), (name, weighting)


def test_autocast_and_inference_mode_do_not_matter():
    problem = random_problem()
    expected = nc_report(*problem, minority=MINORITY)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert nc_report(*problem, minority=MINORITY) == expected
    with torch.inference_mode():
        assert nc_report(*problem, minority=MINORITY) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_same_report():
    problem = random_problem()
    expected = nc_report(*problem, minority=MINORITY)
    on_device = [x.cuda() for x in problem]
    assert class_moments(*on_device[:2], K).within_cov.device.type == "cuda"
    assert nc_report(*on_device, minority=MINORITY) == pytest.approx(expected, rel=1e-9)


# --- the report -----------------------------------------------------------------------------------


def test_the_ends_of_the_ranges_of_nc2_are_reached():
    ideal = ideal_values(5)
    same = torch.ones(5, 3)
    one = torch.tensor([[1.0], [0.0], [0.0], [0.0], [0.0]])
    ends = {
        "nc2_etf_distance": metrics.nc2_etf_distance(same),
        "nc2_equinorm": metrics.nc2_equinorm(one),
        "nc2_equiangular": metrics.nc2_equiangular(same),
    }
    assert ends == pytest.approx({name: ideal[name].high for name in ends})


def test_perfect_collapse_has_the_ideal_values():
    v = simplex_etf(10, 12) @ rotation(12)
    labels = torch.repeat_interleave(torch.arange(10), torch.tensor([30] * 5 + [6] * 5))
    report = nc_report(2 * v[labels], labels, 6 * v[labels] @ v.T, 3 * v, minority=[5, 6, 7, 8, 9])
    ideal = ideal_values(10)
    assert list(report) == list(ideal)
    assert report == pytest.approx({name: ideal[name].value for name in ideal}, abs=1e-9)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_values_are_floats_within_their_ranges(weighting):
    ideal = ideal_values(K)
    for seed in range(3):
        report = nc_report(*random_problem(seed), weighting, minority=MINORITY)
        assert list(report) == list(ideal)
        for name, value in report.items():
            assert type(value) is float
            assert ideal[name].low - 1e-12 <= value <= ideal[name].high + 1e-12, name
            assert ideal[name].low <= ideal[name].value <= ideal[name].high


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_group_is_the_report_of_its_classes_alone(weighting):
    h, labels, logits, w = random_problem()
    report = nc_report(h, labels, logits, w, weighting, minority=MINORITY)
    for group, classes in (("minority", MINORITY), ("majority", [0, 1, 3])):
        rows = torch.isin(labels, torch.tensor(classes))
        renumbered = torch.tensor([classes.index(k) for k in labels[rows].tolist()])
        shares = torch.tensor(
            [1.0 if weighting == "class" else COUNTS[k] for k in classes]
        ).double()
        of_group = w[classes] - (shares / shares.sum()) @ w[classes]
        alone = nc_report(h[rows], renumbered, w=of_group, weighting=weighting)
        for name in alone:
            if f"{name}_{group}" in report:
                assert report[f"{name}_{group}"] == pytest.approx(alone[name], rel=1e-10), name
        expected = metrics.nc4_ncc_mismatch(
            h[rows], logits[rows], class_moments(h, labels, K)
        )  # of all class means
        assert report[f"nc4_ncc_mismatch_{group}"] == pytest.approx(expected, abs=1e-15)


def test_two_classes_form_a_simplex_whatever_the_features_are():
    h, labels, logits, w = random_problem()
    report = nc_report(h, labels, logits, w, minority=[4, 5])
    for name in ("nc2_etf_distance", "nc2_equinorm", "nc2_equiangular"):
        assert math.isnan(report[f"{name}_minority"])
        assert report[f"{name}_majority"] > 0
    pair = labels < 2
    report = nc_report(h[pair], labels[pair])
    assert math.isnan(report["nc2_etf_distance"])
    assert report["nc1_pinv"] > 0


def test_absent_classes_are_left_out_and_a_group_of_them_is_nan():
    h, labels, logits, w = random_problem()
    there = labels != 3
    others = [0, 1, 2, 4, 5]
    with pytest.warns(EmptyClassWarning):
        report = nc_report(h[there], labels[there], logits[there], w)
    alone = nc_report(
        h[there], labels[there] - (labels[there] > 3).long(), logits[there][:, others], w[others]
    )
    assert report["absent_classes"] == 1
    for name in (
        "nc1_pinv",
        "nc1_pinv_class_balanced",
        "nc2_etf_distance",
        "nc3_self_duality",
        "paper_eq13_uncentred",
    ):
        assert report[name] == pytest.approx(alone[name], rel=1e-10), name
    first = labels < 2
    with pytest.warns(EmptyClassWarning):
        report = nc_report(h[first], labels[first], logits[first], w, minority=[3, 4])
    assert math.isnan(report["nc1_cdnv_minority"])
    assert math.isnan(report["nc4_ncc_mismatch_minority"])
    assert list(report) == list(ideal_values(K))


def test_a_class_without_samples_is_nobodys_nearest():
    h = torch.tensor([[0.0], [2.0], [5.0]])
    with pytest.warns(EmptyClassWarning):
        moments = class_moments(h, torch.tensor([0, 0, 1]), 3)
    predicts_0_2_1 = torch.eye(3)[[0, 2, 1]]
    assert metrics.nc4_ncc_mismatch(h, predicts_0_2_1, moments) == pytest.approx(1 / 3)


# --- what is refused, and what is warned of -------------------------------------------------------


def test_more_classes_than_a_simplex_has_corners_are_told_with_the_least_value():
    labels = torch.arange(60) % 6
    with pytest.warns(
        UserWarning,
        match=r"6 classes form no simplex in d = 3 dim.*, so that nc2_etf_distance and "
        r"nc3_alignment are at least 0\.671 .*\(6, dim=3\)",
    ):
        report = nc_report(normal(60, 3), labels)
    assert report["nc2_etf_distance"] >= ideal_values(6, 3)["nc2_etf_distance"].value
    nc_report(normal(60, 5), labels)  # silent: six points fit
    with pytest.warns(EmptyClassWarning):  # alone: four classes are there
        nc_report(normal(60, 3), labels % 4, num_classes=6)


def test_means_of_absent_classes_are_refused_with_what_to_give():
    moments = metrics.ClassMoments(3, 4).update(normal(10, 4), torch.tensor([0, 2] * 5))
    with pytest.raises(ValueError, match=r"give m.centred_means\[m.present\]"):
        metrics.nc2_etf_distance(moments.centred_means)
    assert metrics.nc2_etf_distance(moments.centred_means[moments.present]) >= 0


def test_classes_with_one_sample_are_told():
    with pytest.warns(UserWarning, match="2 of 3 classes have one sample"):
        nc_report(normal(10, 4), torch.tensor([0] * 8 + [1, 2]))


H, LABELS, LOGITS, W = random_problem()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h": H * math.nan}, "h has NaN or infinite values in 91 of 91 rows"),
        ({"logits": LOGITS / 0}, "logits has NaN or infinite values"),
        ({"w": W * math.inf}, "w has NaN or infinite values in 6 of 6 rows"),
        ({"logits": LOGITS[1:]}, r"logits must have shape \(91, 6\), got \(90, 6\)"),
        ({"w": W[:, 1:]}, r"w must have shape \(6, 11\) as the moments have, got \(6, 10\)"),
        ({"w": W[0], "num_classes": K}, r"w must have shape \(K, d\)"),
        ({"h": H[:0], "labels": LABELS[:0], "logits": None, "w": None}, "give at least one sample"),
        ({"num_classes": 3}, "labels must lie in 0 … 2, got 0 … 5"),
        ({"minority": []}, "some but not all of the 6 classes, got 0"),
        ({"minority": range(6)}, "some but not all of the 6 classes, got 6"),
        ({"minority": [6]}, "different class ids in 0 … 5"),
        ({"minority": [1.5]}, "different class ids in 0 … 5"),
        ({"minority": [1, 1]}, "different class ids in 0 … 5"),
        ({"minority": [True, False]}, r"give a \(6,\) mask"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    given = {"h": H, "labels": LABELS, "logits": LOGITS, "w": W} | change
    with pytest.raises(ValueError, match=message):
        nc_report(**given)


def test_counts_that_are_none_are_refused():
    for counts in ([5, 0], [5, 0.5], [5, math.nan], [5, math.inf], [], [5], [[5, 5], [5, 5]]):
        with pytest.raises(ValueError, match=r"finite count ≥ 1|counts must have shape"):
            seli_geometry(counts)


def test_vectors_and_counts_that_do_not_fit_are_refused():
    v = normal(3, 4)
    with pytest.raises(ValueError, match="same shape"):
        seli_distance(v, normal(4, 4), [1, 2, 3])
    with pytest.raises(ValueError, match="one count for each of the 3 classes, got 2"):
        seli_distance(v, v, [1, 2])
    with pytest.raises(ValueError, match="class_means must have shape"):
        seli_distance(v[0], v, [1, 2, 3])


def test_numbers_of_classes_that_are_none_are_refused():
    for wrong in (1, 0, 2.0, math.nan, True, "3"):
        with pytest.raises(ValueError, match="whole K ≥ 2"):
            simplex_etf(wrong, 5)
        with pytest.raises(ValueError, match="at least 2 classes"):
            ideal_values(wrong)
    with pytest.raises(ValueError, match="dim ≥ K - 1"):
        simplex_etf(4, 2)
