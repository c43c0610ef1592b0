"""``nclib data``: data sets fetched."""

from typing import Annotated

import typer

data_app = typer.Typer(help="The data sets: digits, digit_pairs, cifar10, … or folder:PATH.", no_args_is_help=True)


@data_app.callback()
def _data() -> None:
    """Keeps ``fetch`` a word of its own."""


@data_app.command()
def fetch(name: Annotated[str, typer.Argument(help="digits, digit_pairs, cifar10, … or folder:PATH.")]) -> None:
    """Download a data set, or decode a folder, and verify it."""
    from nclib import data

    typer.echo(f"{data.fetch(name)}: complete")
