"""The parameters that a notebook declares, and values typed for them."""

from __future__ import annotations

import ast
import contextlib
import io
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nclib import data
from nclib.config import ConfigError, suggest
from nclib.engine.options import yaml_value
from nclib.publish.notebooks import read_cells, source, text_of
from nclib.system import other_parameters

_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell: ``name: type = default  # help``; type is int, float, str or bool."""

    name: str
    type: type
    default: Any
    help: str


def parameters(path: Path) -> dict[str, Parameter]:
    """The parameters a notebook declares, read from its source without running it.

    Parameters
    ----------
    path : a notebook with at most one code cell tagged ``parameters``; without one it has no parameters.

    Returns
    -------
    name to `Parameter`, in the order of the cell.

    Raises
    ------
    ConfigError
        Naming the line that is not one annotated plain literal: a value that is derived, or a second statement on the
        line, would keep the default when another value is injected below the cell.
    """
    tagged = [cell for cell in read_cells(path) if "parameters" in cell.get("metadata", {}).get("tags", [])]
    if len(tagged) > 1:
        raise ConfigError(f"{path.name} has {len(tagged)} cells tagged 'parameters'; keep one")
    text = text_of(tagged[0]) if tagged else ""
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        where = f"line {error.lineno} of the parameters cell"
        raise ConfigError(f"{path.name}: {where} is not valid Python ({error.msg})") from None
    comments, found, last = _comments(text), {}, 0
    for statement in statements:
        parameter = _parameter(statement, comments)
        if parameter is None or statement.lineno == last or parameter.name in found:
            line = text.splitlines()[statement.lineno - 1]
            raise ConfigError(
                f"{path.name}: line {statement.lineno} of the parameters cell, {line!r}, is not of the form "
                f"'name: type = literal  # help', one to a line, each name once; types are {', '.join(_TYPES)}"
            )
        found[parameter.name], last = parameter, statement.lineno
    return found


def _comments(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def _parameter(statement: ast.stmt, comments: Mapping[int, str]) -> Parameter | None:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id=kind), value=ast.expr() as value):
            pass
        case _:
            return None
    if kind not in _TYPES or statement.end_lineno != statement.lineno:
        return None
    try:
        default = ast.literal_eval(value)
    except ValueError:
        return None
    return Parameter(name, _TYPES[kind], default, comments.get(statement.lineno, "")) if _fits(default, kind) else None


def _fits(value: Any, kind: str) -> bool:
    """Whether a value may stand where a type is declared: an integer may be a float, a truth value is no number."""
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, (int, float) if kind == "float" else _TYPES[kind])


def parse_overrides(texts: Sequence[str], notebooks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Values typed as ``name=value``, checked against what the notebooks declare.

    Parameters
    ----------
    texts : "epochs=3", "lr=1e-3", "dataset=folder:PATH", …; values are YAML, of the declared type.
    notebooks : full names; a value reaches those that declare its name, and at least one must.

    Returns
    -------
    for each notebook, the values to inject.

    Raises
    ------
    ConfigError
        For a text that is no assignment, an unknown name (with the nearest right one), a name given twice or set by
        another option, and a value of the wrong type.
    """
    declared = {name: parameters(source(name)) for name in notebooks}
    known = {name for found in declared.values() for name in found}.difference(other_parameters.SET_BY_THE_COMMAND)
    given: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise ConfigError(f"{text!r:.200} is not an assignment; write name=value, for instance epochs=3")
        if name in other_parameters.SET_BY_THE_COMMAND:
            raise ConfigError(f"{name} is not passed by -p; use the option --{name}")
        if name not in known:
            if not known:
                raise ConfigError(f"unknown parameter {name!r}: the selected notebooks have none")
            raise ConfigError(suggest(name, known, "parameter"))
        if name in given:
            raise ConfigError(f"parameter {name} is given twice, as {given[name]!r} and {value!r}")
        given[name] = value
    return {
        notebook: {name: _value(text, found[name], notebook) for name, text in given.items() if name in found}
        for notebook, found in declared.items()
    }


def given_values(notebooks: Sequence[str], texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """As `parse_overrides`, with data sets under their full names, and without values that are a notebook's own.

    Raises
    ------
    ConfigError, DataError
    """
    resolved: dict[str, str] = {}
    given = {}
    for name, values in parse_overrides(texts, notebooks).items():
        declared = parameters(source(name))
        given[name] = {key: value for key, value in values.items() if value != declared[key].default}
        if typed := given[name].get("dataset"):
            resolved[typed] = resolved.get(typed) or data.resolve_dataset(typed, base=Path.cwd())
            given[name]["dataset"] = resolved[typed]
    return given


def _value(text: str, parameter: Parameter, notebook: str) -> Any:
    kind = parameter.type.__name__
    value = yaml_value(text)
    if kind == "str" and not isinstance(value, str):
        value = text  # YAML reads 'on' or '7' as something else than the name that was typed
    if kind == "float" and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)  # YAML takes 1e-3 for a text
    if not _fits(value, kind):
        raise ConfigError(f"parameter {parameter.name} of {notebook} must be {kind}, got {text!r:.200}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"parameter {parameter.name} of {notebook} is not a text: {text!r:.200}") from None
    try:
        return parameter.type(value)
    except OverflowError:
        raise ConfigError(f"parameter {parameter.name} of {notebook} is too large for a {kind}: {text!r:.50}") from None
