"""The pooled tests of profile `full`, on runs whose differences are known."""

import itertools

import pandas as pd
import pytest

from nclib import profiles
from nclib.papers.neural_collapse import protocol1

PLANNED = profiles.experiment(
    "equilibrium_or_cell", "full", dataset="folder:cifar10-jpeg@ef1101d4a992"
)
NAME = "folder:cifar10-jpeg"


def run(model, k_a, ratio, seed, factor, accuracy=0.5, trained=1.0):
    """One run whose metrics of collapse are the factor, a little larger with the seed."""
    about = {
        "run_id": f"{model}-{k_a}-{ratio}-{seed}",
        "dataset": NAME,
        "model": model,
        "K_A": k_a,
        "R": ratio,
    }
    about |= {"seed": seed, "epoch": 40}
    train = {"accuracy_train_prior": trained, "accuracy_balanced": trained}
    rows = [
        about | {"split": "train", "metric": name, "value": value} for name, value in train.items()
    ]
    value = (
        factor
        * (1 + 0.01 * seed * (model == "deq"))
        * (1 + 0.1 * seed + 0.01 * (k_a or 0) + ratio / 1e4)
    )
    rows += [
        about | {"split": "train", "metric": name, "value": value} for name in protocol1.COLLAPSE
    ]
    accuracy += 0.001 * seed + 0.01 * (k_a or 0) + ratio / 1e5  # two runs are never equal
    return [*rows, about | {"split": "test", "metric": "accuracy_balanced", "value": accuracy}]


def frame(*settings, seeds=3, deq=0.9, models=("explicit", "deq"), **options):
    rows = [
        run(
            model,
            *setting,
            seed,
            deq if model == "deq" else 1.0,
            0.6 if model == "deq" else 0.5,
            **options,
        )
        for setting, seed, model in itertools.product(settings, range(seeds), models)
    ]
    return pd.DataFrame([row for each in rows for row in each]).astype(
        {"K_A": "Float64", "R": "Float64"}
    )


NC1 = {"nc1_pinv": protocol1.COLLAPSE["nc1_pinv"]}


def of(rows, planned=PLANNED, without=False, metrics=NC1):
    return protocol1.pooled_ratios(rows, planned, metrics, "reduced")[without]


def test_the_first_metric_carries_the_claim_and_the_settings_are_counted():
    found = of(frame((5, 100.0), (7, 10.0)), metrics=protocol1.COLLAPSE)
    assert found["metric"].iloc[0] == "paper_eq13_uncentred" and len(found) == 6
    assert set(found["compared"]) == {"DEQ / ResNet-18"}
    assert found["change"].iloc[0] == pytest.approx(100 * (0.9 * 1.01 - 1), abs=0.01)
    assert set(found["settings_found"]) == {2} and set(found["settings_planned"]) == {9}
    assert set(found["verdict"]) == {
        "supported",
        "reported",
    }  # "lower" is claimed of four, equality of two


def test_balanced_and_unfinished_settings_and_lone_networks_stay_out():
    whole = frame((5, 100.0))
    lone = frame((7, 100.0), models=["explicit"], trained=0.99)
    few = frame((3, 10.0), seeds=2, deq=3.0)
    balanced = frame((None, 1.0), deq=3.0)
    pd.testing.assert_frame_equal(of(pd.concat([whole, lone, few, balanced])), of(whole))
    assert of(pd.concat([lone, few, balanced])).empty


def test_each_test_is_given_without_the_setting_that_was_known():
    found = of(pd.concat([frame((5, 100.0)), frame((3, 100.0), deq=0.5)]), without=True)
    assert found["change"].tolist() == of(frame((5, 100.0)))["change"].tolist()
    assert set(found["compared"]) == {"DEQ / ResNet-18, without K_A = 3, R = 100"}
    assert set(found["settings_found"]) == {1} and set(found["settings_planned"]) == {8}
    assert of(frame((3, 100.0)), without=True).empty


def test_before_the_terminal_phase_nothing_is_judged():
    assert set(of(frame((5, 100.0), trained=0.998))["remark"]) == {"before the terminal phase"}


@pytest.mark.parametrize(
    ("deq", "word"), [(0.905, "equal"), (0.895, "reported"), (1.085, "equal"), (1.103, "reported")]
)
def test_equal_is_a_ratio_from_nine_to_eleven_tenths(deq, word):
    """Both ends: an interval up to ±0.1 in logarithms would end at 0.905 and at 1.105."""
    rows = frame((5, 100.0))
    mine = (rows["model"] == "deq") & (rows["metric"] == "nc1_pinv")
    rows.loc[mine, "value"] *= (deq + 1e-4 * rows["seed"]) / (0.9 + 0.009 * rows["seed"])
    assert of(rows).set_index("metric")["verdict"]["nc1_pinv"] == word


def test_accuracy_is_secondary_for_networks_that_were_trained_to_collapse():
    rows = pd.concat([frame((5, 100.0)), frame((3, 100.0)), frame((None, 1.0))])
    found = protocol1.accuracy_tests(rows, PLANNED, "reduced", protocol1.accuracy_remark("full"))
    assert found["difference"].tolist() == pytest.approx([10.0, 10.0])
    assert found["remark"].str.endswith("secondary: recipe collapse").all()
    assert found["compared"].str.endswith("points, without K_A = 3, R = 100").tolist() == [
        False,
        True,
    ]
    assert found[["settings_found", "settings_planned"]].to_numpy().tolist() == [[2, 9], [1, 8]]
    assert protocol1.accuracy_tests(frame((None, 1.0)), PLANNED, "reduced").empty


def test_fewer_than_three_seeds_are_not_pooled():
    planned = profiles.experiment(
        "equilibrium_or_cell", "full", dataset="folder:cifar10-jpeg@ef1101d4a992", seeds=2
    )
    assert of(frame((5, 100.0), seeds=2), planned).empty
    assert protocol1.accuracy_tests(frame((5, 100.0), seeds=2), planned, "reduced").empty
