"""``nclib runs``: what is stored on this machine."""

import json
from typing import Annotated

import typer

from nclib.cli.output import Names, ProfileName, Settings, final_metrics, print_frame

runs_app = typer.Typer(help="The runs stored on this machine.", no_args_is_help=True)


@runs_app.command()
def show(run: Annotated[str, typer.Argument(help="A run id.")]) -> None:
    """Configuration, circumstances and final metrics of one run."""
    from nclib.engine.reference import load_run

    stored = load_run(run)
    typer.echo(json.dumps(stored.config, indent=1))
    typer.echo(json.dumps(stored.provenance, indent=1))
    print_frame(final_metrics(stored))


@runs_app.command()
def export(
    names: Names = None,
    profile: ProfileName = "quick",
    collection: Annotated[
        str | None, typer.Option(help="Folder in results/reference/; left out: the profile's name.")
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Leave out what is not trained yet.")] = False,
    parameter: Settings = None,
) -> None:
    """Copy small extracts of the stored runs behind notebooks to the tracked reference results."""
    from nclib.engine import runs
    from nclib.publish import notebooks
    from nclib.reproduce.reproduce import prepare

    tasks = prepare(notebooks.select(names or ()), profile, parameter or ())
    configs = {run: config for task in tasks for run, config in task.needed.items()}
    for run in runs.export_reference(list(configs.values()), collection or profile, finished):
        typer.echo(run)
