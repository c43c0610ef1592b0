"""Exercises that report why an answer is wrong.

The right answers and the usual mistakes are in `answers` and not in the notebooks, so that reading on does not give
them away.
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

_PRINTED_ENTRIES = 6  # of an array, in a sentence


@dataclass(frozen=True)
class Feedback:
    """Whether an answer is right (None: there is none yet), and a sentence with the reason if not."""

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
    ``Feedback``, also where the answer raises.

    Raises
    ------
    ValueError
        For an unknown exercise.
    """
    if name not in EXERCISES:
        raise ValueError(f"no exercise {name!r}; there are {', '.join(EXERCISES)}")
    exercise = EXERCISES[name]
    cases = {_call(exercise, case): case for case in exercise.cases}
    found, wrong = [], []
    for call, case in cases.items():
        try:
            got = answer(*copy.deepcopy(case))
            numbers = None if got is None or got is Ellipsis else _array(got)
        except Exception as error:  # whatever it is, it is for the reader
            return Feedback(False, f"**Not yet.** {call} raised {type(error).__name__}: {error}{_place(error, answer)}")
        if got is Ellipsis:
            return Feedback(None, "**Not solved yet.** Put your code in place of the dots and run this cell again.")
        if got is None:
            return Feedback(False, f"**Not yet.** {call} returned nothing: a `return` is missing.")
        found.append(numbers)
        if not _same(exercise, numbers, wanted := _array(exercise.reference(*case))):
            wrong.append(f"{call} returned {_words(numbers)}; wanted is {_words(wanted)}.")
    if not wrong:
        return Feedback(True, f"**Right**, in all {len(found)} cases tried.")
    hints = [hint for hint, mistake in exercise.mistakes.items() if _agrees(exercise, found, mistake)]
    return Feedback(False, " ".join(["**Not yet.**", wrong[0], *hints]))


def _place(error: Exception, answer: Callable[..., Any]) -> str:
    """The line of the reader's code in which an error arose."""
    code = getattr(getattr(answer, "pyfunc", answer), "__code__", None)  # pyfunc is what np.vectorize wraps
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if code and frame.filename == code.co_filename]
    return f" (line {own[-1].lineno}: `{own[-1].line}`)" if own else ""


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=float)


def _same(exercise: Exercise, a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=exercise.atol, equal_nan=True)


def _agrees(exercise: Exercise, found: list[np.ndarray], mistake: Callable[..., Any]) -> bool:
    pairs = [(got, _array(mistake(*case))) for got, case in zip(found, exercise.cases, strict=True)]
    return all(np.isnan(wrong).all() or _same(exercise, got, wrong) for got, wrong in pairs)


def _words(value: Any) -> str:
    array, options = _array(value), {"threshold": _PRINTED_ENTRIES, "edgeitems": 1, "separator": ", "}
    shown = np.array2string(array, formatter={"float": "{:.6g}".format}, **options).replace("\n", "")
    return f"{shown}, of shape {array.shape}" if array.size > _PRINTED_ENTRIES else shown


def _call(exercise: Exercise, case: tuple[Any, ...]) -> str:
    names = inspect.signature(exercise.reference).parameters
    return ", ".join(f"{name} = {_words(value)}" for name, value in zip(names, case, strict=True)) + ":"
