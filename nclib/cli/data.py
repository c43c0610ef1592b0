"""``nclib data``: data sets fetched."""

from typing import Annotated

import typer

# The callback keeps ``fetch`` a word of its own.
data_app = typer.Typer(help="The data sets: digits, …, folder:PATH.", no_args_is_help=True, callback=lambda: None)


@data_app.command()
def fetch(name: Annotated[str, typer.Argument(help="digits, digit_pairs, cifar10, … or folder:PATH.")]) -> None:
    """Download a data set, or decode a folder, and verify it."""
    from nclib import data

    typer.echo(f"{data.fetch(name)}: complete")
