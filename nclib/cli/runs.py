"""``nclib runs``: what is stored on this machine."""

from typing import Annotated

import typer

from nclib.cli.output import Names, ProfileName, Settings

# The callback keeps ``export`` a word of its own.
runs_app = typer.Typer(help="The runs stored on this machine.", no_args_is_help=True, callback=lambda: None)


@runs_app.command()
def export(
    names: Names = None,
    profile: ProfileName = "quick",
    collection: Annotated[str | None, typer.Option(help="Folder in results/reference/, else the profile's.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Leave out what is not trained yet.")] = False,
    parameter: Settings = None,
) -> None:
    """Copy small extracts of the stored runs behind notebooks to the tracked reference results."""
    from nclib import runs
    from nclib.publish import notebooks
    from nclib.reproduce.reproduce import prepare

    tasks = prepare(notebooks.select(names or ()), profile, parameter or ())
    configs = {run: config for task in tasks for run, config in task.needed.items()}
    for run in runs.export_reference(list(configs.values()), collection or profile, finished):
        typer.echo(run)
