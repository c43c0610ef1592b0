"""Exercises that say why an answer is wrong.

The right answers and the usual mistakes are in `answers` and not in the notebooks, so that reading
on does not give them away.
"""

import copy
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from nclib.course.answers import EXERCISES, Exercise

PRINTED_ENTRIES = 6
"""Of an array, in a sentence."""


@dataclass(frozen=True)
class Feedback:
    """What is said of an answer.

    Parameters
    ----------
    right : None where there is no answer yet
    text : a sentence in Markdown, with the reason if it is wrong
    """

    right: bool | None
    text: str

    def __repr__(self) -> str:
        return self.text

    _repr_markdown_ = __repr__


def check_exercise(name: str, answer: Callable[..., Any]) -> Feedback:
    """Compare the reader's function with the right one on a few arguments.

    Parameters
    ----------
    name : a key of ``EXERCISES``
    answer : the function; one that returns ``...``, as the stubs do, is not solved yet

    Returns
    -------
    Feedback, also where the answer raises

    Raises
    ------
    ValueError
        For an unknown exercise.

    Examples
    --------
    >>> check_exercise("05/cosines", lambda num_classes: ...)
    **Not solved yet.** Put your code in place of the dots and run this cell again.
    """
    if name not in EXERCISES:
        raise ValueError(f"no exercise {name!r}; there are {', '.join(EXERCISES)}")
    exercise = EXERCISES[name]
    answers = []
    first_wrong = None
    for case in exercise.cases:
        call = _call(exercise, case)
        try:
            value = answer(*copy.deepcopy(case))
            array = None if value is None or value is Ellipsis else _array(value)
        except Exception as error:  # whatever it is, it is for the reader
            message = f"{call} raised {type(error).__name__}: {error}{_line(error, answer)}"
            return Feedback(False, f"**Not yet.** {message}")
        if value is Ellipsis:
            return Feedback(
                None,
                "**Not solved yet.** Put your code in place of the dots and run this cell again.",
            )
        if value is None:
            return Feedback(False, f"**Not yet.** {call} returned nothing: a `return` is missing.")
        answers.append(array)
        wanted = _array(exercise.reference(*case))
        if first_wrong is None and not _is_same(exercise, array, wanted):
            first_wrong = f"{call} returned {_words(array)}; wanted is {_words(wanted)}."
    if first_wrong is None:
        return Feedback(True, f"**Right**, in all {len(answers)} cases tried.")
    sentences = ["**Not yet.**", first_wrong]
    for hint, mistake in exercise.mistakes.items():
        if _is_mistake(exercise, answers, mistake):
            sentences.append(hint)
    return Feedback(False, " ".join(sentences))


def _is_mistake(exercise: Exercise, answers: list[np.ndarray], mistake: Callable[..., Any]) -> bool:
    """Whether the answers agree with a mistake in every case in which it is not NaN."""
    for array, case in zip(answers, exercise.cases, strict=True):
        mistaken = _array(mistake(*case))
        if not np.isnan(mistaken).all() and not _is_same(exercise, array, mistaken):
            return False
    return True


def _is_same(exercise: Exercise, a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape:
        return False
    return np.allclose(a, b, rtol=1e-5, atol=exercise.atol, equal_nan=True)


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
    return np.asarray(value, dtype=float)


def _line(error: Exception, answer: Callable[..., Any]) -> str:
    """The line of the reader's code in which an error arose."""
    function = getattr(answer, "pyfunc", answer)  # pyfunc is what np.vectorize wraps
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    of_reader = [frame for frame in frames if frame.filename == code.co_filename]
    if not of_reader:
        return ""
    return f" (line {of_reader[-1].lineno}: `{of_reader[-1].line}`)"


def _call(exercise: Exercise, case: tuple[Any, ...]) -> str:
    """The arguments of a case, such as "rho = 0.5, start = 1:"."""
    names = inspect.signature(exercise.reference).parameters
    arguments = [f"{name} = {_words(value)}" for name, value in zip(names, case, strict=True)]
    return ", ".join(arguments) + ":"


def _words(value: Any) -> str:
    array = _array(value)
    text = np.array2string(
        array,
        formatter={"float": "{:.6g}".format},
        threshold=PRINTED_ENTRIES,
        edgeitems=1,
        separator=", ",
    )
    text = text.replace("\n", "")
    if array.size > PRINTED_ENTRIES:
        return f"{text}, of shape {array.shape}"
    return text
