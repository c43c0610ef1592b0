"""Run a command of nclib in this process."""

from unittest import mock

from typer.testing import CliRunner

from nclib import profiles
from nclib.cli import app


def nclib(*arguments, typed=None):
    """Run a command; errors that are no messages pass through."""
    result = CliRunner().invoke(app.app, [str(argument) for argument in arguments], input=typed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def as_typed(words):
    """The run that ``nclib train`` with these words would make; nothing is trained."""
    found, make = [], profiles.build_config

    def stop(*given):
        found.append(make(*given))
        raise SystemExit

    with mock.patch.object(profiles, "build_config", stop):
        result = nclib("train", *words)
    assert found, result.output
    return found[0]
