"""Norms and directions: closed forms, and what an exchange cannot change."""

import math

import numpy as np
import pandas as pd
import pytest

import nclib as nc
from nclib.papers.neural_collapse import norms_and_directions

SIMPLEX = nc.simplex_etf(4, 6).numpy()
NORMS = np.array([[1.0], [2.0], [3.0], [5.0]])


def arrays(means, classifier=SIMPLEX):
    return {"class_means": means, "classifier": classifier}


def random_arrays(seed):
    generator = np.random.default_rng(seed)
    return arrays(generator.normal(size=(4, 6)), generator.normal(size=(4, 6)))


def frame(runs):
    facts = {"split": "train", "metric": "loss", "value": 0.0}
    rows = [{"run_id": run, "epoch": epoch, **facts} for run in runs for epoch in (5, 10)]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("means", "distance"),
    [(3 * SIMPLEX, 0), (-SIMPLEX, 2), (np.roll(np.eye(4, 6), 4, axis=1), None)],
)
def test_eq14_of_parallel_opposite_and_other_means(means, distance):
    if distance is None:
        weights = np.eye(4, 6)
        cosine = (means * weights).sum() / (np.linalg.norm(means) * np.linalg.norm(weights))
        assert norms_and_directions.eq14(means, weights) == pytest.approx(math.sqrt(2 - 2 * cosine))
    else:
        assert norms_and_directions.eq14(means, SIMPLEX) == pytest.approx(distance, abs=1e-12)


def test_the_cosine_is_one_for_parallel_rows_and_centred_means_forget_a_shift():
    shifted = NORMS * SIMPLEX
    shifted = shifted - shifted.mean(axis=0)
    runs = {"a": arrays(NORMS * SIMPLEX), "b": arrays(shifted + 7.0, shifted)}
    added = norms_and_directions.add_cosines(frame(runs), runs)
    assert len(added) == 4 + 4 and set(added["metric"]) == {"loss", *norms_and_directions.COSINES}
    cosines = added[added["metric"] != "loss"]
    assert set(cosines["epoch"]) == {10}, "at the last epoch"
    values = cosines.pivot(index="run_id", columns="metric", values="value")
    assert values.loc["a", "class_cosine"] == pytest.approx(1)
    assert values.loc["b", "class_cosine_centred"] == pytest.approx(1)
    assert values.loc["a", "class_cosine_centred"] < 0.99 and values.loc["b", "class_cosine"] < 0.9


@pytest.mark.parametrize("name", norms_and_directions.SPLIT)
def test_a_network_against_itself_and_both_ways_round(name):
    first, second = random_arrays(0), random_arrays(1)
    itself = norms_and_directions.exchanged([(first, first)], name)
    assert itself.to_numpy() == pytest.approx(0)
    there = norms_and_directions.exchanged([(first, second)], name)["whole"].iloc[0]
    back = norms_and_directions.exchanged([(second, first)], name)["whole"].iloc[0]
    assert there == pytest.approx(-back) and there != 0


@pytest.mark.parametrize("name", ["NC3, eq. 14", "NC2, centred", "NC3, centred"])
def test_networks_that_differ_in_norms_alone_differ_by_norms(name):
    second = random_arrays(2)
    first = arrays(NORMS * second["class_means"], second["classifier"])
    (row,) = norms_and_directions.exchanged([(first, second)], name).to_dict("records")
    assert row["norms"] == pytest.approx(row["whole"]) and row["whole"] != 0
    assert row["directions"] == pytest.approx(0)


def test_networks_with_equal_norms_differ_by_directions():
    first, second = random_arrays(3), random_arrays(4)
    for network in (first, second):
        for key, rows in network.items():
            network[key] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    (row,) = norms_and_directions.exchanged([(first, second)], "NC3, eq. 14").to_dict("records")
    assert row["directions"] == pytest.approx(row["whole"]) and row["norms"] == pytest.approx(0)
