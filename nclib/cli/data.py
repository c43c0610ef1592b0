"""``nclib data``: data sets fetched, checked, described."""

from __future__ import annotations

from typing import Annotated, Any

import typer

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
def check(name: DatasetName) -> None:
    """Compare a data set's files with their checksums; changes nothing."""
    from nclib import data

    states = data.check(name)
    for file, state in states.items():
        typer.echo(f"{state:8} {file}")
    if any(state != "ok" for state in states.values()):
        typer.echo(f"not complete; to get it: nclib data fetch {name}", err=True)
        raise typer.Exit(1)


@data_app.command()
def describe(name: DatasetName) -> None:
    """Classes, images, sizes and place of a data set."""
    from nclib import data

    for key, value in data.describe(name).items():
        typer.echo(f"{key:12} {_brief(value)}")


def _brief(value: Any) -> str:
    if not isinstance(value, (list, tuple)) or len(value) <= 3 or not isinstance(value[0], int):
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    spread = str(value[0]) if min(value) == max(value) else f"{min(value)} to {max(value)}"
    return f"{sum(value)} images, {spread} in each of {len(value)} classes"
