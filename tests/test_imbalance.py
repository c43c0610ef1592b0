"""Counts are the ones printed in the paper, draws are exact, and nothing global is touched."""

import itertools

import numpy as np
import pytest
import torch

from nclib import imbalance
from nclib.imbalance import assign_counts, exponential_imbalance, step_imbalance, subsample_indices


@pytest.mark.parametrize(
    ("num_classes", "n_max", "num_majority", "ratio", "total"),
    [
        (10, 5000, 3, 10, 18_500), (10, 5000, 3, 50, 15_700), (10, 5000, 3, 100, 15_350),
        (10, 5000, 5, 10, 27_500), (10, 5000, 5, 50, 25_500), (10, 5000, 5, 100, 25_250),
        (10, 5000, 7, 10, 36_500), (10, 5000, 7, 50, 35_300), (10, 5000, 7, 100, 35_150),
        (100, 500, 30, 10, 18_500), (100, 500, 50, 100, 25_250), (100, 500, 70, 50, 35_300),
    ],
)  # fmt: skip
def test_step_gives_the_papers_number_of_images(num_classes, n_max, num_majority, ratio, total):
    counts = step_imbalance(num_classes, n_max, num_majority, ratio)
    assert counts.dtype == torch.int64 and int(counts.sum()) == total
    assert counts[:num_majority].tolist() == [n_max] * num_majority
    assert set(counts[num_majority:].tolist()) == {round(n_max / ratio)}


def test_step_rounds_and_never_drops_below_one():
    assert step_imbalance(4, 130, 2, 3).tolist() == [130, 130, 43, 43]  # 43.33
    # 41.67: truncation would give 41
    assert step_imbalance(4, 125, 2, 3).tolist() == [125, 125, 42, 42]
    assert step_imbalance(2, 5, 1, 2).tolist() == [5, 3]  # 2.5: halves up, not to even
    assert step_imbalance(3, 20, 1, 1000).tolist() == [20, 1, 1]
    assert step_imbalance(3, 20, 1, 1).tolist() == [20, 20, 20]
    assert step_imbalance(3, 20, 1, 2.5).tolist() == [20, 8, 8]


def test_exponential_runs_from_n_max_to_n_max_over_ratio():
    for num_classes, ratio in itertools.product((2, 7, 10, 100), (1, 1.5, 10, 50, 100, 256)):
        counts = exponential_imbalance(num_classes, 500, ratio)
        exact = 500 * float(ratio) ** (-np.arange(num_classes) / (num_classes - 1))
        assert counts[0] == 500 and counts[-1] == int(500 / ratio + 0.5)
        assert bool((counts[1:] <= counts[:-1]).all())
        np.testing.assert_allclose(counts.numpy(), exact, atol=0.5 + 1e-9)  # rounded


def test_random_is_a_seeded_permutation():
    order, again, other = (imbalance.class_order(100, "random", seed=seed) for seed in (3, 3, 4))
    assert sorted(order.tolist()) == list(range(100))
    assert torch.equal(order, again) and not torch.equal(order, other)


def test_counts_reach_the_classes_they_are_meant_for():
    counts, order = step_imbalance(10, 50, 4, 10), imbalance.class_order(10, "random", seed=1)
    by_class = assign_counts(counts, order)
    assert (by_class == 50).nonzero().flatten().tolist() == sorted(order[:4].tolist())
    tail = assign_counts(exponential_imbalance(10, 512, 512), order)
    assert tail[order].tolist() == sorted(tail.tolist(), reverse=True)


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(0, 5, (500,), generator=torch.Generator().manual_seed(0))


def test_every_class_gets_its_count_without_replacement(labels):
    counts = torch.tensor([60, 40, 20, 5, 1])
    kept = subsample_indices(labels, counts, seed=0)
    assert kept.dtype == torch.int64 and torch.bincount(labels[kept]).tolist() == counts.tolist()
    assert len(kept.unique()) == len(kept)
    assert torch.equal(kept, kept.sort().values)


def test_draws_are_uniform():
    hits = torch.zeros(10)
    for seed in range(400):
        hits[subsample_indices(torch.zeros(10, dtype=torch.int64), [3], seed)] += 1
    assert hits.min() > 80  # 120 expected, standard deviation 9
    assert hits.max() < 160


def test_no_global_random_state_is_touched(labels):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    imbalance.class_order(10, "random", seed=5)
    drawn = subsample_indices(labels, [5] * 5, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)  # nor does the global state decide anything
    assert torch.equal(drawn, subsample_indices(labels, [5] * 5, seed=5))


# --- what is refused ------------------------------------------------------------------------------


def test_a_ratio_below_one_or_not_finite_is_refused():
    for ratio in (0.5, 0, -10, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"give ratio.* at least 1, got"):
            step_imbalance(10, 500, 3, ratio)
        with pytest.raises(ValueError, match=r"give ratio.* at least 1, got"):
            exponential_imbalance(10, 500, ratio)


def test_a_largest_class_without_images_is_refused():
    for n_max in (0, -5):
        with pytest.raises(ValueError, match="give n_max"):
            step_imbalance(10, n_max, 3, 10)
        with pytest.raises(ValueError, match="give n_max"):
            exponential_imbalance(10, n_max, 10)


def test_a_step_has_majority_and_minority_classes():
    for num_majority in (0, 10, 30, -1):
        with pytest.raises(
            ValueError, match=r"give num_majority \(K_A\) from 1 to 9 of 10 classes"
        ):
            step_imbalance(10, 500, num_majority, 10)


def test_one_class_is_no_imbalance():
    with pytest.raises(ValueError, match="at least 2 classes"):
        exponential_imbalance(1, 500, 10)


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match="how='frist': allowed are 'first' and 'random'"):
        imbalance.class_order(10, how="frist")


def test_counts_and_order_must_fit():
    with pytest.raises(ValueError, match="permutation of the 3 class ids"):
        assign_counts([3, 2, 1], torch.tensor([0, 1, 1]))


def test_more_samples_than_there_are_and_none_are_refused(labels):
    for wanted in ([1000, 1, 1, 1, 1], [0, 1, 1, 1, 1]):
        with pytest.raises(
            ValueError, match=f"cannot sample {wanted[0]} of .* in class 0: lower n_max"
        ):
            subsample_indices(labels, wanted, seed=0)
