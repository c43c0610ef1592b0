"""Exact geometries, plain NumPy, invariances, the report."""

import math
import warnings

import numpy as np
import pytest
import torch
from problems import COUNTS, MINORITY, D, K, close, generator, normal, numpy_moments, random_problem, rotation
from torch import Tensor
from torch.nn import functional as F

from nclib import metrics
from nclib.metrics import ClassMoments, class_moments, ideal_values, nc_report, simplex_etf

# --------------------------------------------------------------------------- reference values in closed form


@pytest.mark.parametrize(("num_classes", "dim"), [(2, 1), (3, 2), (5, 4), (10, 9), (10, 512), (100, 99)])
def test_simplex_etf_is_one(num_classes, dim):
    v = simplex_etf(num_classes, dim)
    target = (torch.eye(num_classes, dtype=torch.float64) * num_classes - 1) / (num_classes - 1)
    assert v.shape == (num_classes, dim)
    torch.testing.assert_close(v @ v.T, target, atol=1e-13, rtol=0)
    torch.testing.assert_close(v.sum(0), torch.zeros(dim, dtype=torch.float64), atol=1e-12, rtol=0)
    assert metrics.nc2_etf_distance(v) == pytest.approx(0, abs=1e-13)
    assert metrics.nc2_equinorm(v) == pytest.approx(0, abs=1e-13)
    assert metrics.nc2_equiangular(v) == pytest.approx(0, abs=1e-13)


def centred(v: Tensor) -> Tensor:
    return v - v.mean(0)


def with_common_mean(v: Tensor, length: float) -> Tensor:
    """Adds a vector of that length, orthogonal to all rows."""
    return torch.cat([v, torch.full((len(v), 1), length, dtype=v.dtype)], dim=1)


def test_the_reference_table_of_nc2():
    etf = simplex_etf(10, 9)
    frame = torch.eye(10, dtype=torch.float64)
    opposite = torch.ones(10, 1, dtype=torch.float64)
    opposite[5:] = -1
    shifted = with_common_mean(etf, 1.0)
    assert metrics.nc2_etf_distance(frame) == pytest.approx(0.320, abs=5e-4)
    assert metrics.nc2_etf_distance(centred(frame)) == pytest.approx(0, abs=1e-13)
    assert metrics.nc2_etf_distance(torch.eye(100)) == pytest.approx(0.100, abs=5e-4)
    assert metrics.nc2_etf_distance(opposite) == pytest.approx(1.155, abs=5e-4)
    assert metrics.nc2_etf_distance(torch.ones(10, 4)) == pytest.approx(math.sqrt(2), abs=1e-12)
    assert metrics.nc2_etf_distance(shifted) == pytest.approx(math.sqrt(2 - 2 / math.sqrt(10)), abs=1e-12)  # 1.169
    assert metrics.nc2_etf_distance(centred(shifted)) == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize(("num_classes", "printed"), [(10, 0.667), (100, 0.899)])
def test_the_printed_constant_gives_a_perfect_etf_a_distance(num_classes, printed):
    m = class_moments(simplex_etf(num_classes, num_classes), torch.arange(num_classes), num_classes)
    assert metrics.paper_eq13_uncentred_printed_constant(m) == pytest.approx(printed, abs=6e-4)
    ideal = ideal_values(num_classes)["paper_eq13_uncentred_printed_constant"]
    assert metrics.paper_eq13_uncentred_printed_constant(m) == pytest.approx(ideal.value, abs=1e-12)
    assert metrics.paper_eq13_uncentred(m) == pytest.approx(0, abs=1e-13)


def test_the_papers_equations_see_the_common_mean_and_ours_do_not():
    etf, labels = simplex_etf(10, 9), torch.arange(10)
    w = with_common_mean(etf, 0.0)
    equal = class_moments(with_common_mean(etf, 1.0), labels, 10)
    twice = class_moments(with_common_mean(etf, 2.0), labels, 10)
    assert metrics.paper_eq13_uncentred(equal) == pytest.approx(1.170, abs=1e-3)
    assert metrics.nc2_etf_distance(equal.centred_means) == pytest.approx(0, abs=1e-13)
    assert metrics.paper_eq14_uncentred(w, twice) == pytest.approx(1.05, abs=5e-3)
    assert metrics.paper_eq14_uncentred(w, twice) == pytest.approx(math.sqrt(2 - 2 / math.sqrt(5)), abs=1e-12)
    assert metrics.nc3_self_duality(w, twice) == pytest.approx(0, abs=1e-13)
    assert metrics.nc3_self_duality(-w, twice) == pytest.approx(2, abs=1e-13)


def test_alignment_needs_the_etf_as_well():
    m = class_moments(simplex_etf(4, 3) * torch.tensor([1.0, 1.0, 1.0, 3.0])[:, None], torch.arange(4), 4)
    assert metrics.nc3_self_duality(m.centred_means, m) == pytest.approx(0, abs=1e-13)
    assert metrics.nc3_alignment(m.centred_means, m) > 0.3
    etf = simplex_etf(4, 3)
    assert metrics.nc3_alignment(etf, class_moments(etf, torch.arange(4), 4)) < 1e-12
    m, unrelated = class_moments(F.pad(etf, (0, 3)), torch.arange(4), 4), F.pad(etf, (3, 0))
    assert metrics.nc3_self_duality(unrelated, m) == pytest.approx(math.sqrt(2), abs=1e-13)


def test_equinorm_and_equiangular_by_hand():
    v = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    assert metrics.nc2_equinorm(v) == pytest.approx(0.5)  # mean 2, population deviation 1
    assert metrics.nc2_equiangular(v) == pytest.approx(1.0)  # cosine 0 against -1
    lone = torch.zeros(10, 3)
    lone[0] = 1.0
    assert metrics.nc2_equinorm(lone) == pytest.approx(3.0)  # the upper end √(K−1)


FEW = [(4, 2), (5, 1), (6, 1), (10, 3), (10, 7), (10, 8), (20, 5)]


def in_few_dimensions(num_classes: int, dim: int, seed: int = 0) -> Tensor:
    """(K, d) centred rows whose Gram matrix is a projection."""
    return torch.linalg.qr(centred(normal(num_classes, dim, seed=seed))).Q


@pytest.mark.filterwarnings("ignore:.*classes form no simplex")
@pytest.mark.parametrize(("classes", "dim"), FEW)
def test_the_least_values_without_a_simplex_are_reached(classes, dim):
    v, ideal = in_few_dimensions(classes, dim), ideal_values(classes, dim)
    m = class_moments(torch.cat([v, v]), torch.arange(2 * classes) % classes, classes)
    reached = nc_report(torch.cat([v, v]), torch.arange(2 * classes) % classes, w=v)
    assert m.rank_between == min(dim, classes - 1)
    for key in ("nc2_etf_distance", "nc2_etf_distance_classifier", "nc3_alignment", "paper_eq13_uncentred",
                "paper_eq13_uncentred_printed_constant", "nc1_trace_ratio", "nc3_self_duality"):  # fmt: skip
        assert reached[key] == pytest.approx(ideal[key].value, abs=1e-9), key
    assert math.isnan(ideal["nc2_equiangular"].value)


def test_a_batch_without_samples_is_refused():
    for given in ({}, {"num_classes": 3}):
        with pytest.raises(ValueError, match="labels has no rows"):
            nc_report(normal(60, 3)[:0], torch.arange(0), **given)
    with pytest.raises(ValueError, match="some values are masked"):
        nc_report(np.ma.masked_greater(normal(60, 3).numpy(), 1), torch.arange(60) % 2)


def test_more_classes_than_a_simplex_has_corners_are_told_with_the_least_value():
    labels = torch.arange(60) % 6
    with pytest.warns(UserWarning, match=r"6 classes form no simplex in fewer than 5 dimensions.*d = 3: 0\.671.*dim=3"):
        report = nc_report(normal(60, 3), labels)
    assert report["nc2_etf_distance"] >= ideal_values(6, 3)["nc2_etf_distance"].value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nc_report(normal(60, 5), labels)
        warnings.simplefilter("ignore", metrics.EmptyClassWarning)
        nc_report(normal(60, 3), labels % 4, num_classes=6)  # four classes are there


def test_minority_collapse_by_hand():
    w = torch.tensor([[4.0, 0.0], [0.0, 4.0], [1.0, 1.0], [2.0, 2.0], [0.5, 0.5]])
    assert metrics.minority_cosine(w, [2, 3, 4]) == pytest.approx(1.0)
    assert metrics.minority_cosine(w, torch.tensor([False, False, True, True, True])) == pytest.approx(1.0)
    assert metrics.minority_cosine(w, np.array([0, 1])) == pytest.approx(0.0)
    assert metrics.minority_cosine(simplex_etf(10, 9), [7, 8, 9]) == pytest.approx(-1 / 9)
    assert metrics.classifier_norm_ratio(w, [2, 3, 4]) == pytest.approx(math.sqrt(2) * 3.5 / 3 / 4)
    w[2] = 0.0
    assert math.isnan(metrics.minority_cosine(w, [2, 3, 4]))
    assert math.isnan(metrics.minority_cosine(w, [3]))
    assert metrics.classifier_norm_ratio(torch.tensor([[1.0], [0.0]]), [1]) == 0.0


# ----------------------------------------------------------------------------------- traps 7, 8 and 9


def isotropic(means: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """2d samples per class, ± along each axis: every class covariance is σ² I exactly."""
    num_classes, dim = means.shape
    step = sigma * math.sqrt(dim) * torch.eye(dim, dtype=torch.float64)
    h = means[:, None, :] + torch.cat([step, -step])
    return h.reshape(-1, dim), torch.arange(num_classes).repeat_interleave(2 * dim)


def test_trap_7_two_nc1_of_the_same_features_differ_64_fold():
    h, labels = isotropic(simplex_etf(10, 512), sigma=0.2)
    m = class_moments(h.float(), labels, 10)
    assert metrics.nc1_pinv(m) == pytest.approx(0.324, rel=1e-6)  # (K−1)² σ² / K
    assert metrics.nc1_trace_ratio(m) == pytest.approx(20.48, rel=1e-6)  # d σ²
    assert m.rank_between == 9


def test_trap_7_nc1_improves_when_minority_classes_merge_and_the_rank_shows_it():
    apart = torch.eye(10, dtype=torch.float64)
    merged = apart.clone()
    merged[3:] = apart[3]
    before, after = (class_moments(*isotropic(means, 0.06), 10) for means in (apart, merged))
    assert (before.rank_between, after.rank_between) == (9, 3)
    assert metrics.nc1_pinv(after) < metrics.nc1_pinv(before) / 2  # "better"
    assert metrics.nc1_trace_ratio(after) > 1.5 * metrics.nc1_trace_ratio(before)  # worse, as it should be
    assert metrics.nc1_cdnv(after) == math.inf


def test_trap_7_the_rank_cutoff_is_fixed_and_decides():
    def nc1(relative_eigenvalue: float) -> tuple[int, float]:
        means = torch.zeros(3, 2, dtype=torch.float64)
        means[:, 0] = torch.tensor([-1.0, 0.5, 0.5])  # eigenvalues of Σ_B: 1/2 and 2 s²/3
        s = math.sqrt(0.75 * relative_eigenvalue)
        means[:, 1] = torch.tensor([0.0, s, -s])
        m = class_moments(*isotropic(means, 0.05), 3)
        return m.rank_between, metrics.nc1_pinv(m)

    kept, dropped = nc1(1.1e-10), nc1(0.9e-10)
    assert kept[0] == 2 and dropped[0] == 1
    assert kept[1] == pytest.approx(0.05**2 / 0.5 * (1 + 1 / 1.1e-10) / 3, rel=1e-6)
    assert dropped[1] == pytest.approx(0.05**2 / 0.5 / 3, rel=1e-9)


def test_trap_8_a_perfect_etf_under_imbalance_depends_on_the_centre():
    etf = simplex_etf(10, 9)
    labels = torch.repeat_interleave(torch.arange(10), torch.tensor([500] * 3 + [5] * 7))
    m = class_moments(etf[labels], labels, 10)
    assert metrics.nc2_etf_distance(m.centred_means) == pytest.approx(0, abs=1e-12)
    assert metrics.nc3_self_duality(etf, m) == pytest.approx(0, abs=1e-12)
    at_sample_mean = m.with_weighting("sample")
    assert metrics.nc2_etf_distance(at_sample_mean.centred_means) == pytest.approx(0.77, abs=5e-3)
    assert metrics.nc3_self_duality(etf, at_sample_mean) == pytest.approx(0.45, abs=5e-3)


# ------------------------------------------------------------------------------- NumPy, written out plainly


def numpy_report(h: Tensor, labels: Tensor, logits: Tensor, w: Tensor, weighting: str) -> dict[str, float]:
    m = numpy_moments(h, labels, weighting)
    h, labels, logits, w = (x.double().numpy() for x in (h, labels, logits, w))
    labels = labels.astype(int)
    classes, means, raw = len(w), m["class_means"] - m["global_mean"], m["class_means"]
    etf = (np.eye(classes) - 1 / classes) / np.sqrt(classes - 1)
    pinv = np.linalg.pinv(m["between_cov"], rcond=1e-10, hermitian=True)
    balanced = sum(np.cov(h[labels == k].T, bias=True) for k in range(classes)) / classes

    def unit(x):
        return x / np.sqrt((x**2).sum())

    def norms(v):
        return np.sqrt((v**2).sum(1))

    def off_diagonal(v):
        return (v @ v.T / np.outer(norms(v), norms(v)))[~np.eye(len(v), dtype=bool)]

    i, j = np.tril_indices(classes, -1)
    pairs = (m["class_variances"][i] + m["class_variances"][j]) / (2 * norms(raw[i] - raw[j]) ** 2)
    nearest = ((h[:, None, :] - raw[None]) ** 2).sum(2).argmin(1)
    return {
        "nc1_pinv": np.trace(m["within_cov"] @ pinv) / classes,
        "nc1_pinv_class_balanced": np.trace(balanced @ pinv) / classes,
        "nc1_trace_ratio": np.trace(m["within_cov"]) / np.trace(m["between_cov"]),
        "nc1_cdnv": np.mean(pairs),
        "nc2_etf_distance": np.linalg.norm(unit(means @ means.T) - etf),
        "nc2_equinorm": norms(means).std() / norms(means).mean(),
        "nc2_equiangular": np.abs(off_diagonal(means) + 1 / (classes - 1)).mean(),
        "nc3_self_duality": np.linalg.norm(unit(w) - unit(means)),
        "nc3_alignment": np.linalg.norm(unit(w @ means.T) - etf),
        "nc4_ncc_mismatch": np.mean(nearest != logits.argmax(1)),
        "nc2_etf_distance_classifier": np.linalg.norm(unit(w @ w.T) - etf),
        "nc2_equinorm_classifier": norms(w).std() / norms(w).mean(),
        "nc2_equiangular_classifier": np.abs(off_diagonal(w) + 1 / (classes - 1)).mean(),
        "rank_between": np.linalg.matrix_rank(m["between_cov"], rtol=1e-10, hermitian=True),
        "paper_eq13_uncentred": np.linalg.norm(unit(raw @ raw.T) - etf),
        "paper_eq13_uncentred_printed_constant": np.linalg.norm(unit(raw @ raw.T) - etf / np.sqrt(classes - 1)),
        "paper_eq14_uncentred": np.linalg.norm(unit(w) - unit(raw)),
        "absent_classes": 0,
        "small_classes": (m["counts"] < 5).sum(),
        "minority_cosine": off_diagonal(w[MINORITY]).mean(),
        "classifier_norm_ratio": norms(w[MINORITY]).mean() / norms(np.delete(w, MINORITY, 0)).mean(),
    }


@pytest.mark.parametrize("weighting", ["class", "sample", "mixed"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_report_agrees_with_numpy(weighting, seed):
    problem = random_problem(seed)
    report = nc_report(*problem, weighting, minority=MINORITY)
    expected = numpy_report(*problem, weighting)
    assert set(expected) <= set(report)
    for key, value in expected.items():
        assert report[key] == pytest.approx(value, rel=1e-10), key


@pytest.mark.parametrize("weighting", ["class", "sample", "mixed"])
def test_a_block_is_the_report_of_its_classes_alone(weighting):
    h, labels, logits, w = random_problem()
    report = nc_report(h, labels, logits, w, weighting, minority=MINORITY)
    for name, classes in (("minority", MINORITY), ("majority", [0, 1, 3])):
        rows = torch.isin(labels, torch.tensor(classes))
        renumbered = torch.tensor([classes.index(k) for k in labels[rows].tolist()])
        shares = torch.tensor([1.0 if weighting == "class" else COUNTS[k] for k in classes]).double()
        own = w[classes] - (shares / shares.sum()) @ w[classes]
        alone = nc_report(h[rows], renumbered, logits[rows][:, classes], own, weighting)
        for key in ideal_values(3):
            if f"{key}_{name}" in report and not key.startswith("nc4"):
                assert report[f"{key}_{name}"] == pytest.approx(alone[key], rel=1e-10), key
        m = class_moments(h, labels, K)
        expected = metrics.nc4_ncc_mismatch(h[rows], logits[rows], m)  # against all class means, not the block's own
        assert report[f"nc4_ncc_mismatch_{name}"] == pytest.approx(expected, abs=1e-15)


def centred_means(h, labels):
    means = np.stack([h[labels == k].mean(0) for k in range(K)])
    within = sum(np.outer(x - means[y], x - means[y]) for x, y in zip(h, labels, strict=True)) / len(h)
    return means, means - means.mean(0), within


def test_the_values_of_papyans_notebook_follow_from_ours():
    """NC1 from the K − 1 largest eigenvalues and without 1/K, std of torch, W − M squared."""
    h, labels, _, w = random_problem()
    m, (_, centred, within) = class_moments(h, labels, K), centred_means(h.numpy(), labels.numpy())
    values, vectors = np.linalg.eigh(centred.T @ centred / K)
    inverse = vectors[:, -(K - 1) :] / values[-(K - 1) :] @ vectors[:, -(K - 1) :].T
    assert np.trace(within @ inverse) == pytest.approx(K * metrics.nc1_pinv(m), rel=1e-9)  # Sw_invSb
    lengths = np.sqrt((centred**2).sum(1))
    equinorm = math.sqrt(K / (K - 1)) * metrics.nc2_equinorm(m.centred_means)
    assert lengths.std(ddof=1) / lengths.mean() == pytest.approx(equinorm, rel=1e-9)  # norm_M_CoV
    unit = centred / lengths[:, None]
    gaps = np.abs(unit @ unit.T + 1 / (K - 1))
    equiangular = metrics.nc2_equiangular(m.centred_means)
    assert (gaps.sum() - np.trace(gaps)) / (K * (K - 1)) == pytest.approx(equiangular, rel=1e-9)  # cos_M
    distance = ((w.numpy() / np.linalg.norm(w) - centred / np.linalg.norm(centred)) ** 2).sum()
    assert distance == pytest.approx(metrics.nc3_self_duality(w, m) ** 2, rel=1e-9)  # W_M_dist


def test_the_values_of_zhus_script_follow_from_ours():
    """Centred at the sample mean, classes alike; NC1 over K; NC2 of the classifier alone; NC3 of W H."""
    h, labels, _, w = random_problem()
    b, m = normal(K, seed=9), class_moments(h, labels, K, "mixed")
    means, _, within = centred_means(h.numpy(), labels.numpy())
    around = means - h.numpy().mean(0)
    pinv = np.linalg.pinv(around.T @ around / K, rcond=1e-10)
    assert np.trace(within @ pinv) / K == pytest.approx(metrics.nc1_pinv(m), rel=1e-9)  # collapse_metric
    etf = (torch.eye(K, dtype=torch.float64) - 1 / K) / math.sqrt(K - 1)
    around = torch.from_numpy(around)
    for product, ours in ((w @ w.T, metrics.nc2_etf_distance(w)), (w @ around.T, metrics.nc3_alignment(w, m))):
        assert float((product / product.norm() - etf).norm()) == pytest.approx(ours, rel=1e-9)
    bias = float(torch.linalg.norm(w @ m.global_mean + b))
    assert np.linalg.norm(w.numpy() @ h.numpy().mean(0) + b.numpy()) == pytest.approx(bias, rel=1e-9)


def test_uniformity_and_unnormalised_duality_are_those_of_the_public_package():
    h, labels, _, w = random_problem()
    m = class_moments(h, labels, K)
    _, centred, _ = centred_means(h.numpy(), labels.numpy())
    unit = centred / np.sqrt((centred**2).sum(1, keepdims=True))
    distances = [np.sqrt(((unit[i] - unit[j]) ** 2).sum()) for i in range(K) for j in range(i)]
    assert metrics.nc2_uniformity(m.centred_means) == pytest.approx(np.var(distances), rel=1e-10)
    assert metrics.nc2_uniformity(m.centred_means, log=True) == pytest.approx(np.var(np.log(distances)), rel=1e-10)
    products = [w.numpy()[k] @ centred[k] for k in range(K)]
    assert metrics.nc3_unnormalised_duality(w, m) == pytest.approx(np.var(products, ddof=1), rel=1e-10)


# ------------------------------------------------------------------------------------------------- invariances

SHIFT_SENSITIVE = {"paper_eq13_uncentred", "paper_eq13_uncentred_printed_constant", "paper_eq14_uncentred"}
RELABELLED = torch.tensor([3, 0, 5, 1, 4, 2])
ORIGINAL = RELABELLED.argsort()
ORDER = torch.randperm(sum(COUNTS), generator=generator(9))
CHANGES = {
    "rotated": lambda h, y, logits, w: (h @ rotation(D), y, logits, w @ rotation(D)),
    "smaller features": lambda h, y, logits, w: (1e-4 * h, y, logits, w),
    "larger classifier": lambda h, y, logits, w: (h, y, logits, 1e3 * w),
    "reordered": lambda h, y, logits, w: (h[ORDER], y[ORDER], logits[ORDER], w),
    "relabelled": lambda h, y, logits, w: (h, RELABELLED[y], logits[:, ORIGINAL], w[ORIGINAL]),
    "twice": lambda h, y, logits, w: (torch.cat([h, h]), torch.cat([y, y]), torch.cat([logits, logits]), w),
    "float32": lambda h, y, logits, w: (h.float(), y.int(), logits.float(), w.float()),
    "numpy": lambda h, y, logits, w: (h.numpy(), y.numpy(), logits.numpy(), w.numpy()),
    "shifted": lambda h, y, logits, w: (h + 1000.0, y, logits, w),
}  # fmt: skip


@pytest.mark.parametrize("weighting", ["class", "sample", "mixed"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_must_not_change_a_metric(change, weighting):
    # float32 values: then "float32" is the same data, and must give the same numbers
    problem = [x.float().to(x.dtype) for x in random_problem()]
    before, after = (nc_report(*given, weighting) for given in (problem, CHANGES[change](*problem)))
    assert len(after) == len(before) == 19
    for key, value in after.items():
        if change == "shifted" and key in SHIFT_SENSITIVE:
            assert abs(value - before[key]) > 1e-3, key
        else:
            assert value == pytest.approx(before[key], rel=1e-9), key


def test_gradients_autocast_and_inference_mode_do_not_matter():
    h, labels, logits, w = random_problem()
    expected = nc_report(h, labels, logits, w, minority=MINORITY)
    live = (h.clone().requires_grad_(), labels, logits.clone().requires_grad_(), torch.nn.Parameter(w))
    assert nc_report(*live, minority=MINORITY) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert nc_report(h, labels, logits, w, minority=MINORITY) == expected
    with torch.inference_mode():
        assert nc_report(h, labels, logits, w, minority=MINORITY) == expected
        begun = ClassMoments(K, h.shape[1])
    assert torch.equal(begun.update(h, labels).within_cov, class_moments(h, labels, K).within_cov)
    assert not class_moments(live[0], labels, K).within_cov.requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_same_report():
    problem = random_problem()
    expected = nc_report(*problem, minority=MINORITY)
    on_device = tuple(x.cuda() for x in problem)
    assert class_moments(*on_device[:2], K).within_cov.device.type == "cuda"
    assert nc_report(*on_device, minority=torch.tensor(MINORITY)) == pytest.approx(expected, rel=1e-9)
    mixed = class_moments(*on_device[:2], K).update(*problem[:2])
    close(mixed.within_cov.cpu(), class_moments(*problem[:2], K).within_cov)


# ----------------------------------------------------------------------------------------------- the report


def collapsed(num_classes: int = 10, dim: int = 12, counts: tuple[int, ...] = (30, 6)) -> tuple:
    """Perfect collapse around a common mean: h = μ + 2 v_k, w_k = 3 v_k, under step imbalance."""
    v = simplex_etf(num_classes, dim) @ rotation(dim)
    half = num_classes // 2
    labels = torch.repeat_interleave(torch.arange(num_classes), torch.tensor([counts[0]] * half + [counts[1]] * half))
    return 2 * v[labels], labels, 6 * v[labels] @ v.T, 3 * v


def test_perfect_collapse_scores_the_ideal_values():
    report = nc_report(*collapsed(), minority=[5, 6, 7, 8, 9])
    ideal = ideal_values(10)
    assert list(report) == list(ideal)
    for key, value in report.items():
        assert value == pytest.approx(ideal[key].value, abs=1e-9), key


@pytest.mark.parametrize("weighting", ["class", "sample", "mixed"])
@pytest.mark.parametrize("seed", range(3))
def test_values_are_floats_within_their_ranges(seed, weighting):
    report = nc_report(*random_problem(seed), weighting, minority=MINORITY)
    ideal = ideal_values(K)
    assert list(report) == list(ideal)
    for key, value in report.items():
        assert type(value) is float
        assert ideal[key].low - 1e-12 <= value <= ideal[key].high + 1e-12, key
        assert ideal[key].low <= ideal[key].value <= ideal[key].high


def test_nc4_takes_the_bias_into_account_and_ties_are_no_mismatch():
    h = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    m = class_moments(h, torch.tensor([0, 1, 0, 1]), 2)
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert metrics.nc4_ncc_mismatch(h, logits, m) == 0.0
    assert metrics.nc4_ncc_mismatch(h, logits + torch.tensor([5.0, 0.0]), m) == 0.5
    half = torch.full((4, 1), 0.5)
    assert metrics.nc4_ncc_mismatch(half, logits, m) == 0.0


@pytest.mark.parametrize("size", [1e6, 1e8, 1e9, 1e10])
def test_nc4_does_not_depend_on_where_an_outlier_stands(size):
    h, labels, logits, _ = random_problem()
    h = torch.cat([h, torch.full((1, D), size, dtype=torch.float64)])
    labels, logits = torch.cat([labels, torch.tensor([0])]), torch.cat([logits, logits[:1]])
    means = numpy_moments(h, labels, "class")["class_means"]
    expected = (((h.numpy()[:, None] - means) ** 2).sum(2).argmin(1) != logits.argmax(1).numpy()).mean()
    for order in (torch.arange(len(h)), torch.arange(len(h)).roll(1), torch.arange(len(h)).flip(0)):
        m = class_moments(h[order], labels[order], K)
        assert metrics.nc4_ncc_mismatch(h[order], logits[order], m) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("exponent", [-1000, -500, 500, 1000])
def test_classifiers_of_any_size_give_the_very_same_report(exponent):
    h, labels, logits, w = random_problem()
    expected = nc_report(h, labels, logits, w, minority=MINORITY)
    assert nc_report(h, labels, logits, w * 2.0**exponent, minority=MINORITY) == expected
