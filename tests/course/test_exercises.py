"""Right answers pass, every mistake is named, and whatever an answer does is told."""

import copy
import linecache

import numpy as np
import pytest
import torch

from nclib.course.exercises import EXERCISES, check_exercise

UNCLIPPED = [
    (
        "01/steps",
        lambda rho, start, tol: np.floor(np.log(tol / start) / np.log(rho)),
        "You rounded down",
    ),
    ("01/steps", lambda rho, start, tol: np.log(tol / start) / np.log(rho), "Round up to"),
    (
        "01/steps",
        lambda rho, start, tol: max(0, np.log(tol / start) // np.log(rho) + 1),
        "a whole number stays",
    ),
    ("01/damping", lambda low, high: min(1, 2 / (2 - low - high)), "1 − damping"),
    ("01/damping", lambda low, high: 2 / (2 - low - high), "1 − damping"),
    ("04/contractive", lambda w, r: w.clamp(-r, r), "Small entries"),
]


def test_the_reference_passes_a_stub_is_not_solved_yet_and_a_forgotten_return_is_said():
    for name, exercise in EXERCISES.items():
        assert check_exercise(name, exercise.reference).right is True, name
        feedback = check_exercise(name, lambda *_: ...)
        assert feedback.right is None and "Not solved yet" in feedback.text, name
        forgotten = check_exercise(name, lambda *_: None)
        assert forgotten.right is False, name
        assert forgotten.text.endswith("returned nothing: a `return` is missing."), name


def test_each_mistake_is_wrong_and_named_alone():
    for name, exercise in EXERCISES.items():
        for why, mistake in exercise.mistakes.items():
            feedback = check_exercise(name, mistake)
            assert feedback.right is False, (name, why)
            assert [each for each in exercise.mistakes if each in feedback.text] == [why], name


def test_a_second_mistake_at_the_edge_does_not_hide_the_first():
    for name, answer, hint in UNCLIPPED:
        assert hint in check_exercise(name, answer).text, hint


def test_any_other_answer_is_shown_beside_the_right_one():
    feedback = check_exercise("01/steps", lambda rho, start, tol: 7)
    assert (
        feedback.right is False
        and "rho = 0.5" in feedback.text
        and "returned 7; wanted is 10" in feedback.text
    )
    assert str(feedback) == feedback._repr_markdown_() == feedback.text


def _written(code, name):
    """The function of this name, from a cell of a notebook."""
    linecache.cache["<cell>"] = (len(code), None, code.splitlines(keepends=True), "<cell>")
    namespace = {"torch": torch, "np": np}
    exec(compile(code, "<cell>", "exec"), namespace)
    return namespace[name]


@pytest.mark.parametrize("wrapped", [lambda answer: answer, np.vectorize])
def test_an_exception_in_the_answer_is_shown_with_its_line_and_not_taken_for_a_stub(wrapped):
    """The mean of truth values raises NotImplementedError in torch."""
    code = """def steps_needed(rho, start, tol):
    return torch.tensor([rho > tol]).mean()
"""
    feedback = check_exercise("01/steps", wrapped(_written(code, "steps_needed")))
    assert feedback.right is False and "mean(): could not infer output dtype" in feedback.text
    assert feedback.text.endswith("(line 2: `return torch.tensor([rho > tol]).mean()`)")


def test_answers_may_carry_gradients_and_cannot_spoil_the_cases():
    def in_place(weight, radius):
        largest = float(torch.linalg.matrix_norm(weight, 2))
        return torch.nn.Parameter(weight.mul_(min(1.0, radius / largest)))

    before = copy.deepcopy(EXERCISES["04/contractive"].cases)
    assert check_exercise("04/contractive", in_place).right
    for (weight, _), (kept, _) in zip(EXERCISES["04/contractive"].cases, before, strict=True):
        assert torch.equal(weight, kept)


def test_an_unknown_exercise_is_told_those_there_are():
    with pytest.raises(ValueError, match="01/steps"):
        check_exercise("01/step", print)
