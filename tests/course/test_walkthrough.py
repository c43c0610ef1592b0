"""The course: its answers are right, and its numbers are computed.

That it runs is tested with the other notebooks.
"""

import ast
import json
import re

import numpy as np
import pytest
import torch

import nclib
from nclib import course, paths, reproduce
from nclib.course.exercises import EXERCISES, check_exercise

COURSE = [name for name in reproduce.available() if name.startswith("walkthrough/")]
ANSWER = re.compile(r"<details>\n<summary>Answer</summary>\n\n(.*?)</details>", re.DOTALL)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
VERBATIM = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", re.DOTALL)


def _cells(name):
    content = json.loads((paths.notebooks() / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in content["cells"]]


def _exercises(name):
    """Name of each exercise, with the cell that holds its stub and checks it."""
    found = [
        (re.search(r'check_exercise\("(.+?)"', text), text)
        for kind, text in _cells(name)
        if kind == "code"
    ]
    return {call[1]: text for call, text in found if call}


@pytest.mark.parametrize("name", COURSE)
def test_no_result_is_typed_into_the_prose(name):
    for kind, text in _cells(name):
        typed = re.findall(r"\d+\.\d+|\d+ ?%", VERBATIM.sub("", text)) if kind == "markdown" else []
        assert not typed, (
            f"{typed}: let a cell compute it, or write it as code or mathematics if it is a setting"
        )


@pytest.mark.parametrize("name", COURSE)
def test_has_two_exercises_with_folded_answers_that_are_right(name):
    exercises = _exercises(name)
    answers = [
        CODE.search(answer).group(1) for _, text in _cells(name) for answer in ANSWER.findall(text)
    ]
    assert len(exercises) == len(answers) >= 1
    for exercise, stub in exercises.items():
        assert exercise.split("/")[0] == name.split("/")[1][:2]
        namespace = {"nc": nclib, "course": course, "np": np, "torch": torch}
        exec(stub, namespace)
        function = next(
            node.name for node in ast.parse(stub).body if isinstance(node, ast.FunctionDef)
        )
        assert check_exercise(exercise, namespace[function]).right is None, (
            "the stub must not solve it"
        )
        (answer,) = (text for text in answers if f"def {function}(" in text)
        exec(answer, namespace)
        feedback = check_exercise(exercise, namespace[function])
        assert feedback.right, feedback.text


def test_every_exercise_is_used_once():
    assert sorted(exercise for name in COURSE for exercise in _exercises(name)) == sorted(EXERCISES)
