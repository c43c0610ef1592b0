"""Steps of the proofs: the counterexamples are real ones, what is true is not refuted, verdicts follow their rule."""

import numpy as np
import pytest

from nclib import proofs


@pytest.mark.parametrize(
    ("outcomes", "options", "says"),
    [
        ([True, True], {}, "holds"),
        ([True, True], {"proof": False}, "proof gap"),
        ([True, False], {}, "false"),
        ([False, False], {}, "false"),
        ([True, False], {"condition": [True, False]}, "holds if"),
        ([True, False], {"condition": [True, True]}, "false"),
        ([False, False], {"condition": [False, False]}, "false"),
        ([np.bool_(True)], {}, "holds"),
    ],
)
def test_judge(outcomes, options, says):
    assert proofs.judge(outcomes, **options) == says
    assert says in proofs.VERDICTS


@pytest.mark.parametrize(
    ("values", "says"), [([True, True], "vacuous"), ([False], "vacuous"), ([True, False], "holds if")]
)
def test_judge_condition(values, says):
    assert proofs.judge_condition(values) == says


@pytest.mark.parametrize("function", [proofs.judge, proofs.judge_condition])
def test_no_verdict_without_a_case(function):
    with pytest.raises(ValueError, match="no case"):
        function([])


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_lemma_b1_is_never_violated(classes):
    assert 0 <= proofs.lemma_b1_draws(classes) < 0.1


def test_lemma_b1_is_tight_where_the_weights_are_the_probabilities():
    p = np.array([0.4, 0.2, 0.2, 0.2])
    assert proofs.lemma_b1_excess(np.log(p), np.array(0.4), np.array(0.6)) == pytest.approx(0, abs=1e-12)
    assert proofs.lemma_b1_excess(np.log(p), np.array(0.6), np.array(0.4)) > 0.01


@pytest.mark.parametrize(("classes", "excess"), [(3, 0.46), (10, 1.78), (100, 4.51)])
def test_remark_b2_is_inverted(classes, excess):
    found = proofs.remark_b2(classes)
    assert found["correct"] < 1e-4 < 1 < found["printed"]
    assert found["curvature"] > 0
    assert found["excess"] == pytest.approx(excess, abs=0.01)


def test_steps_refuted_and_confirmed():
    table = proofs.proof_steps()
    confirmed = table[~table["refuted"]]["step"].tolist()
    assert len(confirmed) == 4 and all("correct" in step or "lemma" in step for step in confirmed)
    wanted = {
        "15",
        "19",
        "after 19",
        "20, 43",
        "23, 34",
        "25–26",
        "29",
        "30–31",
        "36",
        "10, 38",
        "43",
        "44",
        "45",
        "50",
        "after 51",
    }
    assert set(table[table["refuted"]]["equation"]) == wanted | {"55–57", "58–59", "60–62"}


def test_numbers_of_the_counterexamples():
    table = proofs.proof_steps().set_index("test")["found"]
    assert table["rank one W, ‖W‖_F = ‖x‖ = 1.5"] / 2.25 == pytest.approx(1 / 0.444, rel=2e-3)
    assert table["share of random pairs that violate it (it says a·b ≤ 0)"] == pytest.approx(0.5, abs=0.01)
    assert table["d = 10, ‖W‖_F = 0.01"] == pytest.approx(3.17, abs=0.005)
    assert table["share of that interval where (58) is true"] == pytest.approx(0.5, abs=1e-3)


def test_steps_do_not_depend_on_the_draws():
    assert proofs.proof_steps(0)["refuted"].tolist() == proofs.proof_steps(7)["refuted"].tolist()


def test_inequality_31_holds_below_the_counterexample():
    """For ‖x‖ = 1, (1−w)⁻² = 2 + w² at w ≈ 0.313."""
    w = np.linspace(0, 0.99, 10_000)
    first = w[(1 / (1 - w) ** 2 > 2 + w**2).argmax()]
    assert 0.3 < first < 0.4


def test_condition_62_is_always_true_and_its_bounds_say_the_opposite():
    grid = np.linspace(1e-6, 1 - 1e-6, 400)
    e_w, e_h = np.meshgrid(grid, grid)
    values = proofs.condition_62(e_w, e_h)
    assert 1.24 < values.max() < 1.25
    assert proofs.cosine_ratio_printed(0.01, 0.01) == pytest.approx(0.0385, abs=5e-5)
    assert proofs.condition_62(50, 0.5) == pytest.approx(0.26, abs=0.005)


def test_inequality_58_in_closed_form():
    e_h = 0.2
    middle = np.linspace(-3, 5, 1001)
    exact = middle > (e_h + 1 / (1 - e_h)) / 2
    np.testing.assert_array_equal(proofs.inequality_58(e_h, middle), exact)
    assert not proofs.inequality_58(e_h, np.array([0.21]))[0]
