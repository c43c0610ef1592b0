"""The command line: ``nclib reproduce | report | train | measure | runs | data | verify | certify``.

Each command reads its options, calls the library and prints. Whatever can go wrong on purpose ends as one message
and an exit code: 2 for what was asked wrongly, 1 for what failed, 130 after Ctrl-C.
Everything heavy is imported inside the commands, so that ``--help`` costs little.
"""

import shlex
import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from nclib.cli import certify, data, health, measure, reproduce, runs, train
from nclib.cli.output import say_error


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Errors whose message names what to do need no traceback; all others are bugs and keep theirs."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            said = "what was finished is kept, nothing half-written counts as done. To go on, type the same again"
            say_error(f"stopped by Ctrl-C; {said}: {shlex.join(['nclib', *sys.argv[1:]])}")
            raise typer.Exit(130) from None
        except (ValueError, RuntimeError, OSError) as error:
            code = _exit_code(error)
            if code is None or isinstance(error, (typer.Exit, typer.Abort)):
                raise
            say_error(str(error))
            raise typer.Exit(code) from None


def _exit_code(error: Exception) -> int | None:
    """2 for a wrong request, 1 for something that failed, None for what should not have happened. An error that is
    expected says so itself, in an attribute `exit_code` of its class."""
    if isinstance(error, OSError):
        return None if isinstance(error, BrokenPipeError) else 1
    return 1 if type(error).__name__ == "OutOfMemoryError" else getattr(error, "exit_code", None)


def main() -> None:
    """Entry point of the ``nclib`` command."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    if sys.stdout is not None:  # a log shows each line when it is said; a file name that is not text as well as can be
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    app(prog_name="nclib")


HELP = "Deep equilibrium models and neural collapse: train, regenerate, check."
app = typer.Typer(cls=_Group, help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.add_typer(runs.runs_app, name="runs")
app.add_typer(data.data_app, name="data")
for command in (reproduce.reproduce, reproduce.report, train.train, measure.measure, health.verify):
    app.command()(command)
app.command("certify")(certify.certify_statements)
