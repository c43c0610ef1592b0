"""Strict descriptions of anything: frozen, each name known, each value of its type, errors that suggest."""

import difflib
import re
import typing
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import pydantic


class ConfigError(ValueError):
    """A setting that does not exist, has the wrong type or value, or does not apply here.

    Examples
    --------
    >>> issubclass(ConfigError, ValueError)
    True
    """

    exit_code = 2


def suggest(wrong: str, allowed: typing.Iterable[str], what: str = "option") -> str:
    """A sentence naming what was wrong, the nearest allowed names and the whole list."""
    allowed = sorted(map(str, allowed))
    near = difflib.get_close_matches(str(wrong)[:200], allowed, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {wrong!r:.200}.{hint} Allowed: {', '.join(allowed)}"


def one_of(name: str, allowed: typing.Iterable[str], what: str) -> str:
    """The name, where it is allowed; for another one raises `ConfigError` with the sentence of `suggest`."""
    if name not in allowed:
        raise ConfigError(suggest(name, allowed, what))
    return name


def added_later(default: Any, **constraints: Any) -> Any:
    """A field that came after runs had been stored: at its default it stays out of the identity, so that runs from
    before keep their names."""
    extra = {"later": True} | constraints.pop("json_schema_extra", {})
    return pydantic.Field(default=default, json_schema_extra=extra, **constraints)


def option(
    names: str, description: str, default: Any, shown: str = "", field: Any = pydantic.Field, **more: Any
) -> Any:
    """A field that commands take as an option of its own; all others are written as ``-s KEY=VALUE``.

    Parameters
    ----------
    names : of the option, "--K_A --num-majority"
    description : one sentence for help
    shown : what help calls the default
    field : what makes the field, with the constraints in `more`
    """
    extra = {"option": names, "shown": shown or str(default)}
    return field(default=default, description=description, json_schema_extra=extra, **more)


class Config(pydantic.BaseModel):
    """Base of every configuration: frozen, strict about names and types, errors that suggest.

    Raises
    ------
    ConfigError
        On construction, for any unknown option or unusable value; all faults of one object are listed together.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )

    def __init__(self, /, **options: Any) -> None:
        for key, value in options.items():
            if isinstance(value, Integral) and not isinstance(value, int):
                options[key] = int(value)  # NumPy's, as seeds of np.arange are
        try:
            super().__init__(**options)
        except pydantic.ValidationError as error:
            raise ConfigError("\n".join(map(self._explain, error.errors()))) from None

    @classmethod
    def _explain(cls, fault: Any) -> str:
        where = ".".join(str(part) for part in fault["loc"])
        label = f"{cls.__name__}.{where}" if where else cls.__name__
        if fault["type"] == "extra_forbidden":
            return f"{cls.__name__}: {suggest(where, cls.model_fields)}"
        if fault["type"] == "literal_error":
            values = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
            return f"{label}: {suggest(fault['input'], values, 'value')}"
        if fault["type"] == "value_error":
            return f"{label}: {fault['ctx']['error']}"
        return f"{label}: {fault['msg']}, got {fault['input']!r:.200}"

    @pydantic.model_validator(mode="before")
    @classmethod
    def _prepare(cls, options: Any) -> Any:
        return cls._complete(options) if isinstance(options, dict) else options  # refused by its type

    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        """The options with what was left out."""
        return options

    @classmethod
    def _choose(cls, options: dict[str, Any], by: str, table: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Complete the options that go with a choice and refuse those of the others.

        The table holds the options of each choice with their defaults, ... for one that must be given. The first choice
        is the default.
        """
        choice = options.get(by, next(iter(table)))
        mine = table.get(str(choice))
        if mine is None:
            return options  # refused by its type
        given = {name for name, value in options.items() if value is not None}
        if others := sorted(given & set().union(*table.values()) - mine.keys()):
            raise ValueError(f"{', '.join(others)} does not apply to {by} {choice!r}; leave it out")
        if missing := [name for name in mine if mine[name] is ... and name not in given]:
            extra = {name: cls.model_fields[name].json_schema_extra or {} for name in missing}
            shown = [f"{name} ({known['option']})" if "option" in known else name for name, known in extra.items()]
            raise ValueError(f"{by} {choice!r} needs {' and '.join(shown)}")
        return options | {name: value for name, value in mine.items() if name not in given}

    @pydantic.model_serializer(mode="wrap")
    def _without_later_defaults(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = dump(self)
        for name, field in type(self).model_fields.items():
            if (field.json_schema_extra or {}).get("later") and getattr(self, name) == field.default:
                values.pop(name, None)
        return values

    def replace(self, **changes: Any) -> typing.Self:
        """A copy with some options changed, validated like a new one. A mapping changes the options of a part that it
        names; give a whole part, as ``model=ModelConfig(…)``, where another kind or method has other options."""
        for name, value in changes.items():
            part = getattr(self, name, None)
            if isinstance(value, Mapping) and isinstance(part, Config):
                changes[name] = part.replace(**value)
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)
