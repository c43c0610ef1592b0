"""What the commands share: options, messages, tables."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd

Names = Annotated[
    list[str] | None,
    typer.Argument(help="paper/notebook, a bare name of the main paper, or a whole folder. Left out: everything."),
]
ProfileName = Annotated[str, typer.Option(help="Size of everything: smoke, quick, lite, full or paper.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Notebook parameter, such as epochs=3. Repeatable."),
]


def say_error(message: str) -> None:
    """One message on stderr."""
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)


def print_frame(frame: "pd.DataFrame") -> None:
    """A table as wide as its content needs, numbers with four digits."""
    typer.echo(frame.to_string(index=False, float_format="{:.4g}".format, na_rep="–"))
