"""Counts are the ones printed in the paper, draws are exact, and nothing global is touched."""

import random

import numpy as np
import pytest
import torch

from nclib.imbalance import (
    assign_counts,
    class_order,
    exponential_imbalance,
    majority_classes,
    sample_rows,
    step_imbalance,
    subsample_indices,
)

# ---------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize(
    ("num_classes", "n_max", "num_majority", "ratio", "total"),
    [
        (10, 5000, 3, 10, 18_500),
        (10, 5000, 3, 50, 15_700),
        (10, 5000, 3, 100, 15_350),
        (10, 5000, 5, 10, 27_500),
        (10, 5000, 5, 50, 25_500),
        (10, 5000, 5, 100, 25_250),
        (10, 5000, 7, 10, 36_500),
        (10, 5000, 7, 50, 35_300),
        (10, 5000, 7, 100, 35_150),
        (100, 500, 30, 10, 18_500),
        (100, 500, 50, 100, 25_250),
        (100, 500, 70, 50, 35_300),
    ],
)
def test_step_gives_the_papers_number_of_images(num_classes, n_max, num_majority, ratio, total):
    counts = step_imbalance(num_classes, n_max, num_majority, ratio)
    assert counts.dtype == torch.int64
    assert int(counts.sum()) == total
    assert counts.tolist() == [n_max] * num_majority + [round(n_max / ratio)] * (num_classes - num_majority)


def test_step_rounds_and_never_drops_below_one():
    assert step_imbalance(4, 130, 2, 3).tolist() == [130, 130, 43, 43]  # 43.33
    assert step_imbalance(4, 125, 2, 3).tolist() == [125, 125, 42, 42]  # 41.67: truncation would give 41
    assert step_imbalance(2, 5, 1, 2).tolist() == [5, 3]  # 2.5: halves up, not to even
    assert step_imbalance(3, 20, 1, 1000).tolist() == [20, 1, 1]
    assert step_imbalance(3, 20, 1, 1).tolist() == [20, 20, 20]
    assert step_imbalance(3, 20, 1, 2.5).tolist() == [20, 8, 8]


@pytest.mark.parametrize("num_classes", [3, 5, 7, 11, 101])
def test_an_odd_number_of_classes_loses_none(num_classes):
    assert step_imbalance(num_classes, 100, num_classes // 2, 10).shape == (num_classes,)
    assert exponential_imbalance(num_classes, 100, 10).shape == (num_classes,)


@pytest.mark.parametrize("ratio", [1, 1.5, 10, 50, 100, 256])
@pytest.mark.parametrize("num_classes", [2, 7, 10, 100])
def test_exponential_runs_from_n_max_to_n_max_over_ratio(num_classes, ratio):
    counts = exponential_imbalance(num_classes, 500, ratio)
    exact = 500 * float(ratio) ** (-np.arange(num_classes) / (num_classes - 1))
    assert counts[0] == 500
    assert counts[-1] == int(500 / ratio + 0.5)
    assert bool((counts[1:] <= counts[:-1]).all())
    np.testing.assert_allclose(counts.numpy(), exact, atol=0.5 + 1e-9)  # rounded, not truncated


def test_exponential_is_rounded_where_truncation_would_lose_an_image():
    # 5000 · 100^(-k/9) = 5000, 2997.4, 1796.9, 1077.2, 645.8, 387.1, 232.1, 139.1, 83.4, 50
    assert exponential_imbalance(10, 5000, 100).tolist() == [
        5000, 2997, 1797, 1077, 646, 387, 232, 139, 83, 50
    ]  # fmt: skip
    assert exponential_imbalance(3, 2, 1000).tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        ((1, 100, 1, 10), "at least 2, got 1"),
        ((10.0, 100, 1, 10), "got 10.0"),
        ((10, 0, 3, 10), "at least 1, got 0"),
        ((10, 50.5, 3, 10), "got 50.5"),
        ((10, 100, 0, 10), "from 1 to 9 .* got 0"),
        ((10, 100, 10, 10), "from 1 to 9 .* got 10"),
        ((10, 100, True, 10), "got True"),
        ((10, 100, 3, 0.5), "at least 1, got 0.5"),
        ((10, 100, 3, float("nan")), "got nan"),
        ((10, 100, 3, float("inf")), "got inf"),
        ((10, 100, 3, "100"), "got '100'"),
    ],
)
def test_impossible_steps_are_refused_with_the_numbers(arguments, numbers):
    with pytest.raises(ValueError, match=numbers):
        step_imbalance(*arguments)


@pytest.mark.parametrize("arguments", [(1, 100, 10), (10, 0, 10), (10, 100, 0.99), (10, 100, -2)])
def test_impossible_tails_are_refused(arguments):
    with pytest.raises(ValueError, match="got"):
        exponential_imbalance(*arguments)


# -------------------------------------------------------------------------------------- which class is which


def test_first_is_the_order_of_the_labels():
    assert class_order(5).tolist() == [0, 1, 2, 3, 4]
    assert majority_classes(5, 2).tolist() == [0, 1]


def test_random_is_a_seeded_permutation_and_the_majority_is_its_head():
    order = class_order(100, "random", seed=3)
    assert sorted(order.tolist()) == list(range(100))
    assert torch.equal(order, class_order(100, "random", seed=3))
    assert not torch.equal(order, class_order(100, "random", seed=4))
    assert majority_classes(100, 30, "random", seed=3).tolist() == sorted(order[:30].tolist())


def test_counts_reach_the_classes_they_are_meant_for():
    counts, order = step_imbalance(10, 50, 4, 10), class_order(10, "random", seed=1)
    by_class = assign_counts(counts, order)
    assert (by_class == 50).nonzero().flatten().tolist() == majority_classes(10, 4, "random", seed=1).tolist()
    tail = assign_counts(exponential_imbalance(10, 512, 512), order)
    assert tail[order].tolist() == sorted(tail.tolist(), reverse=True)


def test_wrong_orders_are_refused():
    with pytest.raises(ValueError, match="'first' or 'random', got 'last'"):
        class_order(10, "last")
    with pytest.raises(ValueError, match=r"from 1 to 9 .* got 10"):
        majority_classes(10, 10)
    with pytest.raises(ValueError, match="permutation of"):
        assign_counts([5, 5, 1], torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match="permutation of"):
        assign_counts([5, 5, 1], torch.tensor([0, 1]))


# ----------------------------------------------------------------------------------------------- drawing


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(0, 5, (500,), generator=torch.Generator().manual_seed(0))


def test_every_class_gets_its_count_without_replacement(labels):
    counts = torch.tensor([60, 40, 20, 5, 1])
    kept = subsample_indices(labels, counts, seed=0)
    assert kept.dtype == torch.int64
    assert torch.bincount(labels[kept]).tolist() == counts.tolist()
    assert len(kept.unique()) == len(kept)
    assert torch.equal(kept, kept.sort().values)


def test_the_seed_decides(labels):
    counts = [30] * 5
    first = subsample_indices(labels, counts, seed=0)
    assert torch.equal(first, subsample_indices(labels.numpy(), np.array(counts), seed=0))
    assert not torch.equal(first, subsample_indices(labels, counts, seed=1))


def test_a_smaller_count_keeps_a_subset_and_leaves_other_classes_alone(labels):
    large = set(subsample_indices(labels, [60, 60, 60, 60, 60], seed=0).tolist())
    small = set(subsample_indices(labels, [60, 60, 6, 6, 1], seed=0).tolist())
    assert small < large
    assert {i for i in large if labels[i] < 2} == {i for i in small if labels[i] < 2}


def test_draws_are_uniform():
    hits = torch.zeros(10)
    for seed in range(400):
        hits[subsample_indices(torch.zeros(10, dtype=torch.int64), [3], seed)] += 1
    assert hits.min() > 80  # 120 expected, standard deviation 9
    assert hits.max() < 160


def test_all_there_is_can_be_asked_for_and_one_more_cannot(labels):
    available = torch.bincount(labels)
    assert torch.equal(subsample_indices(labels, available, seed=0), torch.arange(500))
    wanted = available.clone()
    wanted[3] += 1
    with pytest.raises(ValueError, match=f"{wanted[3]} of {available[3]} in class 3"):
        subsample_indices(labels, wanted, seed=0)


@pytest.mark.parametrize(
    ("bad_labels", "counts", "message"),
    [
        ([0, 1, 2], [1, 1], r"0 … 1 .* got 0 … 2"),
        ([-1, 1], [1, 1], "got -1 … 1"),
        ([0, 1], [1, 0], "cannot draw 0 of 1 in class 1"),
        ([0.0, 1.0], [1, 1], "row of integers, got torch.float32"),
        ([], [1, 1], "row of integers"),
        ([[0, 1]], [1, 1], r"of shape \(1, 2\)"),
    ],
)
def test_impossible_draws_are_refused_with_the_numbers(bad_labels, counts, message):
    with pytest.raises(ValueError, match=message):
        subsample_indices(bad_labels, counts, seed=0)


def test_no_global_random_state_is_touched(labels):
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    step_imbalance(10, 50, 3, 10)
    exponential_imbalance(10, 50, 10)
    class_order(10, "random", seed=5)
    majority_classes(10, 3, "random", seed=5)
    drawn = subsample_indices(labels, [5] * 5, seed=5)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()
    torch.manual_seed(99)  # nor does the global state decide anything
    assert torch.equal(drawn, subsample_indices(labels, [5] * 5, seed=5))


def test_sample_rows_takes_the_first_of_each_class():
    labels = np.array([2, 0, 2, 0, 2, 5])
    assert sample_rows(labels, 2).tolist() == [1, 3, 0, 2, 5]
