"""Exercises that say why an answer is wrong.

The right answers and the usual mistakes are in `answers` and not in the notebooks, so that reading on does not give
them away.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from companion.course.answers import EXERCISES, Exercise

_PRINTED_ENTRIES = 6  # of an array, in a sentence


@dataclass(frozen=True)
class Feedback:
    """Whether an answer is right (None: there is none yet), and a sentence that says why not."""

    right: bool | None
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.text


class _NotYet(Exception):
    """A first reason why an answer is not right."""


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
        near = difflib.get_close_matches(name, EXERCISES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EXERCISES)}"
        raise ValueError(f"no exercise {name!r}; {hint}")
    exercise = EXERCISES[name]
    try:
        found = [_numbers(exercise, answer, case) for case in exercise.cases]
    except _NotYet as reason:
        return Feedback(False, f"**Not yet.** {reason}")
    if any(got is None for got in found):
        return Feedback(None, "**Not solved yet.** Put your code in place of the dots and run this cell again.")
    wrong = [
        f"{_call(exercise, case)} returned {_difference(got, wanted)}."
        for got, case in zip(found, exercise.cases, strict=True)
        if not _same(exercise, got, wanted := _array(exercise.reference(*case)))
    ]
    if not wrong:
        return Feedback(True, f"**Right**, in all {len(found)} cases tried.")
    hints = [hint for hint, mistake in exercise.mistakes.items() if _agrees(exercise, found, mistake)]
    return Feedback(False, " ".join(["**Not yet.**", wrong[0], *hints]))


def _numbers(exercise: Exercise, answer: Callable[..., Any], case: tuple[Any, ...]) -> np.ndarray | None:
    """What the answer returns for one case; None for the dots of the stub."""
    call = _call(exercise, case)
    try:
        got = answer(*copy.deepcopy(case))
    except Exception as error:  # whatever it is, it is for the reader
        raise _NotYet(f"{call} raised {type(error).__name__}: {error}{_place(error, answer)}") from error
    if got is Ellipsis:
        return None
    if got is None:
        raise _NotYet(f"{call} returned nothing: a `return` is missing.")
    try:
        return _array(got)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _NotYet(f"{call} returned {got!r}; numbers are wanted.") from error


def _place(error: Exception, answer: Callable[..., Any]) -> str:
    """The line of the reader's code in which an error arose."""
    file = getattr(getattr(answer, "__code__", None), "co_filename", None)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" (line {own[-1].lineno}: `{own[-1].line}`)" if own else ""


def _array(value: Any) -> np.ndarray:
    value = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    return np.asarray(value, dtype=float)


def _same(exercise: Exercise, a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=exercise.atol, equal_nan=True)


def _agrees(exercise: Exercise, found: list[np.ndarray], mistake: Callable[..., Any]) -> bool:
    pairs = zip(found, exercise.cases, strict=True)
    return all(_same(exercise, got, _array(mistake(*case))) for got, case in pairs)


def _difference(got: np.ndarray, wanted: np.ndarray) -> str:
    words = _words if got.shape == wanted.shape else _kind
    return f"{words(got)}; wanted is {words(wanted)}"


def _kind(array: np.ndarray) -> str:
    return f"an array of shape {array.shape}" if array.shape else "a single number"


def _words(value: Any) -> str:
    array = _array(value)
    if array.size > _PRINTED_ENTRIES:
        size = " × ".join(map(str, array.shape)) if array.ndim > 1 else f"{array.size} numbers"
        return f"an array ({size}) with largest entry {array.max():.4g}"
    rounded = np.array2string(array, separator=", ", formatter={"float": lambda number: f"{number:.6g}"})
    return rounded.replace("\n", "")


def _call(exercise: Exercise, case: tuple[Any, ...]) -> str:
    names = inspect.signature(exercise.reference).parameters
    return ", ".join(f"{name} = {_words(value)}" for name, value in zip(names, case, strict=True)) + ":"
