"""The course: each notebook has its parts, its answers are right, and its figures have words.

That the notebooks run, and what all notebooks have in common, is tested in ``test_notebooks``.
"""

import ast
import itertools
import json
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import nclib
from companion.course.exercises import EXERCISES, check_exercise
from nclib.publish import notebooks, plotting
from nclib.system import paths

COURSE = [name for name in notebooks.available() if name.startswith("walkthrough/")]
WIDEST_LINE = 100  # columns of code that a window of 1280 pixels shows beside the side bar
ANSWER = re.compile(r"<details>\n<summary>Answer</summary>\n\n(.*?)</details>", re.DOTALL)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
VERBATIM = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", re.DOTALL)


def _cells(name):
    cells = json.loads((paths.notebooks() / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def _prose(name):
    return [text for kind, text in _cells(name) if kind == "markdown"]


def _calls(text, method):
    tree = ast.walk(ast.parse(text))
    return [n for n in tree if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == method]


def _exercises(name):
    """Name of each exercise, with the cell that holds its stub and checks it."""
    found = {}
    for kind, text in _cells(name):
        for call in _calls(text, "check_exercise") if kind == "code" else ():
            found[call.args[0].value] = text
    return found


def test_the_notebooks_are_numbered_from_one_without_gaps():
    assert [int(name.split("/")[1][:2]) for name in COURSE] == list(range(1, len(COURSE) + 1))


@pytest.mark.parametrize("name", COURSE)
def test_no_line_of_code_is_cut_at_the_edge_of_the_window(name):
    lines = [line for kind, text in _cells(name) if kind == "code" for line in text.splitlines()]
    lines += [line for text in _prose(name) for code in CODE.findall(text) for line in code.splitlines()]
    assert [line for line in lines if len(line) > WIDEST_LINE] == []


@pytest.mark.parametrize("name", COURSE)
def test_says_what_you_will_do_learn_and_need(name):
    first = _prose(name)[0]
    assert first.startswith(f"# {name.split('/')[1][:2]} · ")
    for part in ("**What you will do.**", "**What you will learn.**", "**What you will need.**", "Cost:"):
        assert part in first
    assert any("**Next:**" in text for text in _prose(name))


@pytest.mark.parametrize("name", COURSE)
def test_asks_before_it_shows(name):
    """At least three predictions, each right before code, and one for every picture."""
    predictions, pictures = 0, 0
    for (kind, text), (following, _) in itertools.pairwise(_cells(name)):
        if kind == "markdown" and "**Predict.**" in text:
            assert following == "code"
            predictions += 1
        if kind == "code" and _calls(text, "picture"):
            pictures += 1
            assert predictions >= pictures
    assert predictions >= 3


@pytest.mark.parametrize("name", COURSE)
def test_every_figure_is_shown_with_words(name):
    """In the cell that draws it: at the end of a cell the inline backend shows what is open, without words."""
    pictures = []
    for kind, text in _cells(name):
        if kind == "code":
            assert len(_calls(text, "subplots")) == len(_calls(text, "picture"))
            pictures += _calls(text, "picture")
    assert pictures
    for call in pictures:
        words = ast.literal_eval(call.args[1]) if isinstance(call.args[1], ast.Constant) else ast.unparse(call.args[1])
        assert len(words) >= 60, "say what is drawn and what one should see in it"


@pytest.mark.parametrize("name", COURSE)
def test_no_result_is_typed_into_the_prose(name):
    for text in _prose(name):
        typed = re.findall(r"\d+\.\d+|\d+ ?%", VERBATIM.sub("", text))
        assert not typed, f"{typed}: let a cell compute it, or write it as code or mathematics if it is a setting"


@pytest.mark.parametrize("name", COURSE)
def test_has_two_exercises_with_folded_answers_that_are_right(name):
    exercises = _exercises(name)
    answers = [CODE.search(answer).group(1) for text in _prose(name) for answer in ANSWER.findall(text)]
    assert len(exercises) == len(answers) == 2
    for exercise, stub in exercises.items():
        assert exercise.split("/")[0] == name.split("/")[1][:2]
        namespace = {"nc": nclib, "np": np, "torch": torch}
        exec(stub, namespace)
        function = next(node.name for node in ast.parse(stub).body if isinstance(node, ast.FunctionDef))
        assert check_exercise(exercise, namespace[function]).right is None, "the stub must not solve it"
        (answer,) = (text for text in answers if f"def {function}(" in text)
        exec(answer, namespace)
        feedback = check_exercise(exercise, namespace[function])
        assert feedback.right, feedback.text


@pytest.mark.parametrize("name", COURSE)
def test_the_answer_is_folded_right_after_its_exercise(name):
    cells = _cells(name)
    for place, (kind, text) in enumerate(cells):
        if kind == "code" and _calls(text, "check_exercise"):
            assert "## Exercise" in cells[place - 1][1] and cells[place + 1][1].startswith("<details>")


def test_every_exercise_is_used_once():
    assert sorted(exercise for name in COURSE for exercise in _exercises(name)) == sorted(EXERCISES)


@pytest.mark.slow
def test_one_seed_is_called_one_seed(tmp_path, monkeypatch):
    """Notebook 08 with seeds=1: there is no spread over seeds, so nothing is computed from one."""
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path))
    monkeypatch.chdir(paths.notebooks())
    said = []
    monkeypatch.setattr(plotting, "prose", said.append)
    monkeypatch.setattr(plotting, "picture", lambda fig, alt: said.append(alt))
    namespace = {}
    for kind, text in _cells("walkthrough/08_reading_a_table"):
        if kind == "code":
            exec(text, namespace)
            if "profile: str" in text:
                namespace |= {"profile": "smoke", "seeds": 1}
    plt.close("all")
    assert sum("One seed has no spread over seeds" in text for text in said) == 3
    assert not [text for text in said if re.search(r"\bnan\b|seeds are needed", text)]
    assert len(namespace["fig_seeds"].axes) == 1
    assert not namespace["evidence"].isna().any(axis=None)
