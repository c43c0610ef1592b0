"""Exercises that say why an answer is wrong.

The right answers and the usual mistakes are in `answers` and not in the notebooks, so that reading on does not give
them away.
"""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from companion.course.answers import EXERCISES

RTOL, ATOL = 1e-5, 1e-8  # how near an answer must be
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


def check_exercise(name: str, answer: Callable[..., Any]) -> Feedback:
    """Compare the reader's function with the right one on a few arguments.

    Parameters
    ----------
    name : a key of ``EXERCISES``.
    answer : the function; one that returns ``...``, as the stubs do, is not solved yet.

    Returns
    -------
    ``Feedback``. Never raises for what the answer does.

    Raises
    ------
    ValueError
        For an unknown exercise.
    """
    if name not in EXERCISES:
        near = difflib.get_close_matches(name, EXERCISES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no exercise {name!r}{hint} There are: {', '.join(EXERCISES)}")
    exercise = EXERCISES[name]
    found, first_wrong = [], None
    for case in exercise.cases:
        call = _call(exercise.reference, case)
        try:
            got = answer(*copy.deepcopy(case))
        except NotImplementedError:
            return _UNSOLVED
        except Exception as error:  # whatever it is, it is the reader's to read
            return Feedback(False, f"**Not yet.** {call} raised {type(error).__name__}: {error}")
        if got is Ellipsis:
            return _UNSOLVED
        if got is None:
            where = " on some path" if found else ""
            return Feedback(False, f"**Not yet.** {call} returned nothing: a `return` is missing{where}.")
        try:
            found.append(_array(got))
        except (TypeError, ValueError):
            return Feedback(False, f"**Not yet.** {call} returned {got!r}; numbers are wanted.")
        first_wrong = first_wrong or _difference(call, found[-1], _array(exercise.reference(*case)))
    if first_wrong is None:
        return Feedback(True, f"**Right**, in all {len(found)} cases tried.")
    reasons = [
        why
        for why, mistake in exercise.mistakes.items()
        if all(_same(got, _array(mistake(*case))) for got, case in zip(found, exercise.cases, strict=True))
    ]
    return Feedback(False, " ".join(["**Not yet.**", first_wrong, *reasons]))


_UNSOLVED = Feedback(None, "**Not solved yet.** Put your code in place of the dots and run this cell again.")


def _array(value: Any) -> np.ndarray:
    value = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    return np.asarray(value, dtype=float)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=RTOL, atol=ATOL, equal_nan=True)


def _difference(call: str, got: np.ndarray, wanted: np.ndarray) -> str | None:
    if got.shape != wanted.shape:
        return f"{call} returned {_kind(got)}; wanted is {_kind(wanted)}."
    return None if _same(got, wanted) else f"{call} returned {_words(got)}; wanted is {_words(wanted)}."


def _kind(array: np.ndarray) -> str:
    return f"an array of shape {array.shape}" if array.shape else "a single number"


def _words(value: Any) -> str:
    array = _array(value)
    if array.size > _PRINTED_ENTRIES:
        return f"a {' × '.join(map(str, array.shape))} array with largest entry {array.max():.4g}"
    rounded = np.array2string(array, separator=", ", formatter={"float": lambda number: f"{number:.6g}"})
    return rounded.replace("\n", "")


def _call(reference: Callable[..., Any], case: tuple[Any, ...]) -> str:
    names = inspect.signature(reference).parameters
    return ", ".join(f"{name} = {_words(value)}" for name, value in zip(names, case, strict=True)) + ":"
