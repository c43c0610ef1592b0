"""Tiny trainings give the recorded weights and histories, bit for bit. `record.py` says how to write them anew."""

import bits
import pytest

from nclib import training

RECORDED = bits.read()
FAST = (
    "linear classifier, cross_entropy",
    "deq, implicit",
    "deq, phantom",
    "shallow DEQ",
    "regression DEQ",
)

# A network of two channels is no science: some equilibria and gradients are not found in the allowed steps.
pytestmark = pytest.mark.filterwarnings("ignore:epoch 2")


def test_every_training_is_recorded():
    assert list(RECORDED["bits"]) == list(bits.configs())


@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
                                  for name in bits.configs()])  # fmt: skip
def test_bits_are_the_recorded_ones(name):
    if other := bits.elsewhere(RECORDED["machine"]):
        pytest.skip(
            f"bits of another machine ({other}). Make them here: python tests/golden/record.py bits --from TAG"
        )
    said = bits.differences({name: RECORDED["bits"][name]}, bits.train([name]))
    if said:
        pytest.fail(
            "\n".join([*said, "If this was meant: python tests/golden/record.py bits"]),
            pytrace=False,
        )


@pytest.mark.slow
def test_a_learning_rate_that_is_off_by_a_millionth_is_seen(monkeypatch):
    name = "linear classifier, cross_entropy"
    before, exact = bits.train([name]), training.learning_rate
    assert bits.differences(before, bits.train([name])) == []
    monkeypatch.setattr(training, "learning_rate", lambda *given: exact(*given) * (1 + 1e-6))
    said = "\n".join(bits.differences(before, bits.train([name])))
    assert "other weights" in said and "other history" in said and "other metrics" in said


METRICS = {
    "metrics": {"train/nc1": 0.5, "train/nc2": float("nan")},
    "weights": "aa",
    "history": "bb",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metrics": METRICS["metrics"] | {"train/nc1": 0.5 * (1 + 1e-10)}}, []),
        (
            {"metrics": METRICS["metrics"] | {"train/nc1": 0.5 * (1 + 1e-8)}},
            ["1 other metrics, such as train/nc1"],
        ),
        (
            {"metrics": METRICS["metrics"] | {"train/nc2": 1.0}},
            ["1 other metrics, such as train/nc2"],
        ),
        (
            {"metrics": {"train/nc2": float("nan")}},
            ["1 other metrics, such as train/nc1: 0.5 was recorded, is None"],
        ),
        ({"weights": "cc"}, ["other weights"]),
        ({"history": "cc"}, ["other history"]),
    ],
)
def test_a_difference_is_named(change, said):
    found = bits.differences({"deq": METRICS}, {"deq": METRICS | change})
    assert len(found) == len(said)
    assert all(
        sentence.startswith(f"deq: {start}") for sentence, start in zip(found, said, strict=True)
    )
