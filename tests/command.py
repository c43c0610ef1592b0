"""Run a command of nclib in this process."""

from unittest import mock

from typer.testing import CliRunner

from nclib import cli, profiles


def nclib(*arguments):
    """Run a command; errors that are no messages pass through."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def as_typed(words):
    """The run that ``nclib train`` with these words would make; nothing is trained."""
    configs = []
    make = profiles.build_config

    def stop(*given):
        configs.append(make(*given))
        raise SystemExit

    with mock.patch.object(profiles, "build_config", stop):
        result = nclib("train", *words)
    assert configs, result.output
    return configs[0]
