"""Run a command of nclib in this process."""

from typer.testing import CliRunner

from nclib.cli import app


def nclib(*arguments, typed=None):
    """Run a command; errors that are no messages pass through."""
    result = CliRunner().invoke(app.app, [str(argument) for argument in arguments], input=typed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
