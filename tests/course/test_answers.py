"""The reference answers agree with the library or with a closed form."""

import pytest
import torch
from scipy import stats

from nclib import compare, metrics
from nclib.course.answers import EXERCISES
from nclib.course.exercises import check_exercise
from nclib.metrics import simplex_etf
from nclib.solvers import FixedPointIteration, fixed_point


def test_broyden_update_is_the_inverse_of_the_least_change_of_the_jacobian():
    for inverse, step, change in EXERCISES["02/broyden"].cases:
        jacobian = torch.linalg.inv(inverse)
        updated = jacobian + torch.outer(change - jacobian @ step, step) / (step @ step)
        found = EXERCISES["02/broyden"].reference(inverse, step, change)
        torch.testing.assert_close(found, torch.linalg.inv(updated))
        torch.testing.assert_close(found @ change, step)


def test_implicit_derivative_agrees_with_finite_differences():
    def solution(a):
        f = lambda z: torch.cos(a * z)  # noqa: E731
        return float(
            fixed_point(f, FixedPointIteration(1e-14, 2000, 0.3), torch.zeros(1, 1).double()).value
        )

    forward = lambda z, a: (solution(a + 1e-5) - z) / 1e-5  # noqa: E731
    assert check_exercise("03/scalar", forward).right
    for z, a in EXERCISES["03/scalar"].cases:
        wanted = (solution(a + 1e-5) - solution(a - 1e-5)) / 2e-5
        assert z == pytest.approx(solution(a), rel=1e-9)
        assert EXERCISES["03/scalar"].reference(z, a) == pytest.approx(wanted, rel=1e-6)


def test_etf_cosines_and_trace_ratio_are_the_librarys():
    for (k,) in EXERCISES["05/cosines"].cases:
        v = simplex_etf(k, k)
        torch.testing.assert_close(EXERCISES["05/cosines"].reference(k), v @ v.T)
    for h, labels in EXERCISES["05/nc1"].cases:
        wanted = metrics.nc1_trace_ratio(metrics.class_moments(h, labels, int(labels.max()) + 1))
        assert float(EXERCISES["05/nc1"].reference(h, labels)) == pytest.approx(wanted)


def test_etf_distance_and_mismatch_are_the_librarys():
    for (means,) in EXERCISES["06/etf_distance"].cases:
        wanted = metrics.nc2_etf_distance(means - means.mean(0))
        assert float(EXERCISES["06/etf_distance"].reference(means)) == pytest.approx(wanted)
    for h, labels, logits in EXERCISES["06/mismatch"].cases:
        wanted = metrics.nc4_ncc_mismatch(
            h, logits, metrics.class_moments(h, labels, logits.shape[1])
        )
        assert float(EXERCISES["06/mismatch"].reference(h, labels, logits)) == pytest.approx(wanted)
        assert 0 < wanted < 1


def test_minority_cosine_is_the_librarys_and_blind_to_the_number_of_samples():
    for h, labels, minority in EXERCISES["07/cosine"].cases:
        found = float(EXERCISES["07/cosine"].reference(h, labels, minority))
        means = metrics.class_moments(h, labels, len(minority)).centred_means
        assert found == pytest.approx(metrics.minority_cosine(means, minority))
        more = torch.cat(
            [labels == 0, torch.ones_like(labels).bool()]
        )  # the first class twice over
        twice, again = torch.cat([h, h])[more], torch.cat([labels, labels])[more]
        assert float(EXERCISES["07/cosine"].reference(twice, again, minority)) == pytest.approx(
            found
        )


def test_paired_interval_and_verdict_follow_the_librarys_rules():
    for deq, explicit, t in EXERCISES["08/interval"].cases:
        wanted = compare.interval(deq - explicit)
        assert t == pytest.approx(stats.t.ppf(0.975, len(deq) - 1), rel=1e-6)
        assert EXERCISES["08/interval"].reference(deq, explicit, t) == pytest.approx(
            (wanted.mean, wanted.half)
        )
    words = {"supported": 1, "contradicted": -1, "not significant": 0}
    for mean, half, claim in EXERCISES["08/verdict"].cases:
        said = compare.verdict(
            compare.Interval(mean, half, 3), "paper", "higher" if claim == 1 else "lower"
        )
        assert EXERCISES["08/verdict"].reference(mean, half, claim) == words[said.word]


def test_the_chance_level_is_that_of_noise():
    for num_images, num_classes, dim in EXERCISES["09/chance"].cases:
        labels = torch.arange(num_images) % num_classes
        noise = torch.randn(num_images, 2000, generator=torch.Generator().manual_seed(0))
        wanted = metrics.nc1_trace_ratio(metrics.class_moments(noise, labels, num_classes))
        assert EXERCISES["09/chance"].reference(num_images, num_classes, dim) == pytest.approx(
            wanted, rel=0.1
        )
