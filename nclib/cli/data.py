"""``nclib data``: data sets fetched and described."""

from __future__ import annotations

from typing import Annotated

import typer

from nclib.cli.output import print_facts

data_app = typer.Typer(help="The data sets: digits, digit_pairs, cifar10, … or folder:PATH.", no_args_is_help=True)
DatasetName = Annotated[
    str, typer.Argument(help="digits, digit_pairs, cifar10, cifar100, mnist, fashion_mnist or folder:PATH.")
]


@data_app.command()
def fetch(name: DatasetName) -> None:
    """Download a data set, or decode a folder, and verify it."""
    from nclib import data

    typer.echo(f"{data.fetch(name)}: complete")


@data_app.command()
def describe(name: DatasetName) -> None:
    """Classes, images of each, size and place of a data set."""
    from nclib import data

    print_facts(data.describe(name))
