"""The maps before the layer-peeled model: finite differences and known optima."""

import math

import numpy as np
import pytest
from marks import slow

from nclib.papers.neural_collapse import peeled_maps as maps

MAPS = ("none", "explicit", "residual", "deq0", "deq1")


@pytest.mark.parametrize("reading", ("V1", "V2", "V4"))
@pytest.mark.parametrize("name", MAPS)
def test_gradients_are_those_of_finite_differences(name, reading):
    objective = maps._Objective(
        maps.PeeledProblem(name, reading, 5, 0.5, num_majority=3, ratio=7, copies=2)
    )
    x, along = np.random.default_rng(1).standard_normal(
        (2, sum(math.prod(shape) for shape in objective.shapes))
    )
    slope = (objective(x + 1e-5 * along)[0] - objective(x - 1e-5 * along)[0]) / 2e-5
    assert objective(x)[1] @ along == pytest.approx(slope, abs=1e-7, rel=1e-6)


def test_maps_are_what_they_are_called():
    m = np.random.default_rng(0).standard_normal((12, 12)) * 0.02
    series = [np.linalg.matrix_power(m, i) for i in range(60)]
    wanted = {"none": np.eye(12), "explicit": m, "residual": series[0] + m}
    wanted |= {"deq0": sum(series), "deq1": sum(series[1:])}
    for name, matrix in wanted.items():
        operator = maps._Objective(maps.PeeledProblem(name, "V2", 1, 0.5))._operator(m)
        np.testing.assert_allclose(operator, matrix, atol=1e-14)


@pytest.mark.parametrize("name", MAPS)
def test_with_bounded_features_every_map_has_the_same_optimum(name):
    problem = maps.PeeledProblem(name, "V1", 0.01, 0.01)
    found = maps.peeled_fit(problem, starts=1, iterations=1500)
    assert found.loss == pytest.approx(2.292590665, abs=1e-9)
    row = maps.peeled_table({problem: found}).iloc[0]
    assert row["nc2"] < 1e-3 and row["nc3"] < 1e-3 and row["rank"] == 9 and row["separable"] == 10


@pytest.mark.parametrize(
    ("name", "e_w", "e_h", "loss", "nc2"),
    [
        ("explicit", 0.01, 0.01, 2.302485, 1.155),
        ("deq0", 2500, 0.01, 0.03358252, 0.0),
        *slow(
            ("deq1", 0.01, 0.01, 2.302484, 1.155),
            ("deq0", 5, 0.5, 0.72313, 0.714),
            ("residual", 2500, 0.01, 0.03358456, 0.0),
        ),
    ],
)
def test_with_bounded_inputs_the_maps_differ(name, e_w, e_h, loss, nc2):
    problem = maps.PeeledProblem(name, "V2", e_w, e_h)
    row = maps.peeled_table({problem: maps.peeled_fit(problem)}).iloc[0]
    assert row["loss"] == pytest.approx(loss, abs=10 ** -len(str(loss).partition(".")[2]))
    assert row["nc2"] == pytest.approx(nc2, abs=2e-3)


@pytest.mark.parametrize(("name", "ratio"), [("explicit", 1.0), ("deq0", 1.0), ("residual", 100.0)])
def test_samples_of_a_class_collapse(name, ratio):
    problem = maps.PeeledProblem(name, "V2", 50, 0.5, num_majority=5, ratio=ratio, copies=3)
    assert maps.peeled_table({problem: maps.peeled_fit(problem, starts=1)}).iloc[0]["nc1"] < 1e-8


def test_a_fit_starts_from_those_of_other_maps_too():
    problems = [maps.PeeledProblem(name, "V2", 5, 0.5) for name in ("residual", "deq0")]
    found = maps.peeled_fits(problems, starts=0, iterations=200)
    assert list(found) == problems
    alone = [maps.peeled_fit(problem, starts=0, iterations=200).loss for problem in problems]
    assert all(fit.loss <= loss for fit, loss in zip(found.values(), alone, strict=True))


def test_alignment_is_the_cosine_by_class():
    problem = maps.PeeledProblem("none", "V1", 1, 5)
    found = maps.peeled_fit(problem, starts=0)
    np.testing.assert_allclose(maps.peeled_alignment(problem, found), 1, atol=1e-8)
    turned = found._replace(classifier=-found.classifier)
    np.testing.assert_allclose(maps.peeled_alignment(problem, turned), -1, atol=1e-8)
