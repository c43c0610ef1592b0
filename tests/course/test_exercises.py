"""Right answers pass, every mistake is named, and whatever an answer does is told."""

import numpy as np
import pytest
import torch

from companion.course.exercises import EXERCISES, check_exercise

MISTAKES = [(name, why) for name, exercise in EXERCISES.items() for why in exercise.mistakes]


@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes_a_stub_is_not_solved_yet_and_a_forgotten_return_is_said(name):
    assert check_exercise(name, EXERCISES[name].reference).right is True
    feedback = check_exercise(name, lambda *_: ...)
    assert feedback.right is None and "Not solved yet" in feedback.text
    forgotten = check_exercise(name, lambda *_: None)
    assert forgotten.right is False and forgotten.text.endswith("returned nothing: a `return` is missing.")


@pytest.mark.parametrize(("name", "why"), MISTAKES)
def test_each_mistake_is_wrong_and_named_alone(name, why):
    feedback = check_exercise(name, EXERCISES[name].mistakes[why])
    assert feedback.right is False
    assert [w for w in EXERCISES[name].mistakes if w in feedback.text] == [why]


def test_any_other_answer_is_shown_beside_the_right_one():
    feedback = check_exercise("01/steps", lambda rho, start, tol: 7)
    assert feedback.right is False and "rho = 0.5" in feedback.text and "returned 7; wanted is 10" in feedback.text
    assert str(feedback) == feedback._repr_markdown_() == feedback.text


def test_errors_wrong_types_and_shapes_are_told_not_raised():
    def broken(rho, start, tol):
        return 1 / 0

    assert "ZeroDivisionError" in check_exercise("01/steps", broken).text
    assert "returned 'ten'; numbers are wanted" in check_exercise("01/steps", lambda *_: "ten").text
    assert "an array of shape (2,)" in check_exercise("01/steps", lambda *_: np.ones(2)).text
    assert "a single number" in check_exercise("05/cosines", lambda k: 1.0).text
    some = check_exercise("01/steps", lambda rho, start, tol: 10 if rho == 0.5 else None)
    assert some.right is False and "returned nothing" in some.text


def test_answers_may_carry_gradients_and_cannot_spoil_the_cases():
    def in_place(weight, radius):
        norm = float(torch.linalg.matrix_norm(weight, 2))
        return torch.nn.Parameter(weight.mul_(min(1.0, radius / norm)))

    assert check_exercise("04/contractive", in_place).right and check_exercise("04/contractive", in_place).right


def test_an_unknown_exercise_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean '01/steps'"):
        check_exercise("01/step", print)
