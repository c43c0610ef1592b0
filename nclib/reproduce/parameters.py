"""The parameters that a notebook declares, as papermill reads them, and values typed for them."""

import ast
import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from nclib import data
from nclib.config import ConfigError, one_of
from nclib.paths import SET_BY_THE_COMMAND
from nclib.publish.notebooks import source

_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@functools.cache
def parameters(path: Path) -> dict[str, Any]:
    """The defaults of the parameters that a notebook declares (``name: type = default``, of type int, float, str or
    bool), by name, read from its source without running it. Their type is that of the default."""
    import papermill

    logging.getLogger("papermill").setLevel(logging.ERROR)
    declared = papermill.inspect_notebook(path)
    return {n: _TYPES[each["inferred_type_name"]](ast.literal_eval(each["default"])) for n, each in declared.items()}


def given_values(notebooks: Sequence[str], texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Values typed as ``name=value``, checked against what the notebooks declare.

    Parameters
    ----------
    notebooks : full names; a value reaches those that declare its name, and at least one must.
    texts : "epochs=3", "lr=1e-3", "dataset=folder:PATH", …

    Returns
    -------
    for each notebook, the values to inject: data sets under their full names, and no value that is its own.

    Raises
    ------
    ConfigError, DataError
        For an unknown name (with the nearest right one), one that another option sets, and a wrong value.
    """
    declared = {name: parameters(source(name)) for name in notebooks}
    known = {name for found in declared.values() for name in found}.difference(SET_BY_THE_COMMAND)
    typed: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ConfigError(f"{text!r:.200} is not an assignment; write name=value, for instance epochs=3")
        if name in SET_BY_THE_COMMAND:
            raise ConfigError(f"{name} is not passed by -p; use the option --{name}")
        typed[one_of(name, known, "parameter")] = value
    for name in ("dataset", "hundred_dataset"):
        if typed.get(name):
            typed[name] = data.resolve_dataset(typed[name], base=Path.cwd())
    given = {}
    for notebook, found in declared.items():
        values = {name: _value(name, typed[name], type(found[name]), notebook) for name in typed if name in found}
        given[notebook] = {name: value for name, value in values.items() if value != found[name]}
    return given


def _value(name: str, text: str, kind: type, notebook: str) -> Any:
    try:
        return pydantic.TypeAdapter(kind).validate_strings(text)
    except pydantic.ValidationError:
        raise ConfigError(f"parameter {name} of {notebook} must be {kind.__name__}, got {text!r:.200}") from None
