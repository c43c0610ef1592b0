"""Parameters of notebooks: how they are declared, and values typed for them."""

import pytest
from reproduction import write_notebook

from nclib.config import ConfigError
from nclib.reproduce import parameters


def test_parameters_are_read_with_type_and_default(project):
    path = write_notebook(
        "a/b", parameters='n: int = -3  # how many\n\n# a remark\nlr: float = 1\nok: bool = True\ns: str = ""\n'
    )
    found = parameters.parameters(path)
    assert found == {"n": -3, "lr": 1.0, "ok": True, "s": ""} and type(found["lr"]) is float
    assert parameters.parameters(write_notebook("a/none", "x = 1", parameters=None)) == {}


def test_values_are_typed_and_reach_only_where_they_are_declared(project):
    write_notebook("a/one", parameters='n: int = 0\nlr: float = 0.0\nname: str = ""\nok: bool = False\n')
    write_notebook("a/two", parameters="n: float = 0.0\n")
    values = parameters.given_values(["a/one", "a/two"], ["n=3", "lr=1e-3", "name=7", "ok=true"])
    assert values == {"a/one": {"n": 3, "lr": 1e-3, "name": "7", "ok": True}, "a/two": {"n": 3.0}}
    assert type(values["a/one"]["n"]) is int and type(values["a/two"]["n"]) is float


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["epoch=3"], "Did you mean 'epochs'"),
        (["epochs=three"], "epochs of a/one must be int, got 'three'"),
        (["epochs=3.5"], "must be int"),
        (["lr=fast"], "must be float"),
        (["epochs"], "not an assignment"),
        (["profile=lite"], "use the option --profile"),
    ],
)
def test_a_bad_value_is_refused(project, texts, message):
    write_notebook("a/one")
    with pytest.raises(ConfigError, match=message):
        parameters.given_values(["a/one"], texts)
