"""Distances of the tracked runs from SELI: the same arrays, centred NC2, which is closer."""

import json

import numpy as np
import pytest

from nclib import paths
from nclib.papers.neural_collapse import front_figures, seli
from nclib.store import reference_store

NETWORKS = ("ResNet-18", "DEQ")


def test_the_distance_to_the_etf_is_the_nc2_that_was_measured():
    keys = ["R", "K_A", "network", "seed"]
    both = seli.distances().merge(front_figures.last_epoch(), on=keys)
    assert len(both) == len(seli.distances()) == 42
    assert np.allclose(
        both["means_etf"], both["NC2"], atol=1e-3
    )  # arrays are stored in half precision


def test_one_setting_by_hand():
    """From eigenvectors of P D P, without `seli_geometry`."""
    runs = json.loads((paths.reference() / "protocol-2/runs.json").read_text(encoding="utf-8"))
    runs = [run for run in runs if run.startswith("cifar10-jpeg-KA5-R100-deq")]
    P, found = np.eye(10) - 0.1, []
    values, vectors = np.linalg.eigh(P @ np.diag([5000.0] * 5 + [50.0] * 5) @ P)
    target = vectors[:, 1:] / np.sqrt(values[1:]) @ vectors[:, 1:].T
    for run in runs:
        means = reference_store().open(run).arrays["class_means"].astype(float)
        gram = P @ means @ means.T @ P
        found.append(np.linalg.norm(gram / np.linalg.norm(gram) - target / np.linalg.norm(target)))
    assert len(runs) == 5
    assert seli.table().loc[(100, 5, "DEQ"), "means_seli"] == pytest.approx(
        np.mean(found), abs=1e-12
    )


def test_balanced_classes_have_one_target():
    rows = seli.table().loc[(1, 0)]
    for part in ("means", "classifier"):
        assert np.allclose(rows[f"{part}_seli"], rows[f"{part}_etf"], atol=1e-12)


@pytest.mark.parametrize("K_A", [3, 5, 7])
def test_what_the_page_says_of_seli(K_A):
    rows = seli.table().loc[(100, K_A)]
    resnet, deq, etf = (rows.loc[name] for name in (*NETWORKS, "simplex ETF"))
    assert deq["means_etf"] < resnet["means_etf"]
    assert etf["means_seli"] < resnet["means_seli"] < deq["means_seli"]
    assert resnet["classifier_seli"] < deq["classifier_seli"] < etf["classifier_seli"]
