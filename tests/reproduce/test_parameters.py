"""Parameters of notebooks: how they are declared, and values typed for them."""

import pytest
from reproduction import write_notebook

from nclib.config import ConfigError
from nclib.reproduce import parameters


def test_parameters_are_read_with_type_default_and_help(project):
    path = write_notebook(
        "a/b", parameters='n: int = -3  # how many\n\n# a remark\nlr: float = 1\nok: bool = True\ns: str = "#"\n'
    )
    found = parameters.parameters(path)
    assert [(p.name, p.type, p.default, p.help) for p in found.values()] == [
        ("n", int, -3, "how many"),
        ("lr", float, 1, ""),
        ("ok", bool, True, ""),
        ("s", str, "#", ""),
    ]


def test_a_notebook_without_parameters_has_none(project):
    assert parameters.parameters(write_notebook("a/b", "x = 1", parameters=None)) == {}


@pytest.mark.parametrize(
    "line",
    [
        "n = 3",
        "n: int = 2 * width",
        "n: int = 2; m: int = 3",
        "n: int",
        "n: int = 1.5",
        "n: int = True",
        "n: list = []",
        "n: int | None = None",
        "n: int = (\n    3)",
        "import os",
        "width: int = 4",
    ],
)
def test_anything_but_a_plain_literal_is_refused_with_its_line(project, line):
    path = write_notebook("a/b", parameters=f"width: int = 2  # first\n{line}\n")
    with pytest.raises(ConfigError, match=r"b\.ipynb: line 2 of the parameters cell"):
        parameters.parameters(path)


def test_a_cell_that_is_no_python_and_a_file_that_is_no_notebook_are_refused(project):
    with pytest.raises(ConfigError, match="line 1 of the parameters cell is not valid Python"):
        parameters.parameters(write_notebook("a/b", parameters="n: int ="))
    path = write_notebook("a/c")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"c\.ipynb is not a notebook"):
        parameters.parameters(path)


def test_values_are_typed_and_reach_only_where_they_are_declared(project):
    write_notebook("a/one", parameters='n: int = 0\nlr: float = 0.0\nname: str = ""\nok: bool = False\n')
    write_notebook("a/two", parameters="n: float = 0.0\n")
    values = parameters.parse_overrides(["n=3", "lr=1e-3", "name=7", "ok=true"], ["a/one", "a/two"])
    assert values == {"a/one": {"n": 3, "lr": 1e-3, "name": "7", "ok": True}, "a/two": {"n": 3.0}}
    assert type(values["a/one"]["n"]) is int and type(values["a/two"]["n"]) is float


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch=3", "unknown parameter 'epoch'. Did you mean 'epochs'"),
        ("epochs=three", "epochs of a/one must be int, got 'three'"),
        ("epochs=3.0", "must be int"),
        ("epochs=true", "must be int"),
        ("epochs=", "must be int"),
        ("epochs=[1", "must be int"),
        ("lr=fast", "must be float"),
        ("epochs", "not an assignment"),
        ("=3", "not an assignment"),
        ("profile=lite", "use the option --profile"),
    ],
)
def test_a_bad_value_is_refused(project, text, message):
    write_notebook("a/one")
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        parameters.parse_overrides([text], ["a/one"])


def test_a_value_given_twice_is_refused(project):
    write_notebook("a/one")
    with pytest.raises(ConfigError, match="given twice"):
        parameters.parse_overrides(["epochs=1", "epochs=2"], ["a/one"])
