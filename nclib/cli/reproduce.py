"""``nclib reproduce`` and ``nclib report``."""

from typing import Annotated

import typer

from nclib.cli.output import Names, ProfileName, Settings


def reproduce(
    names: Names = None,
    profile: ProfileName = "quick",
    parameter: Settings = None,
    workers: Annotated[int | None, typer.Option(help="Runs trained at once; left out: one per GPU or core.")] = None,
    train: Annotated[str, typer.Option(help="missing, never or finished (render what is available).")] = "missing",
    force: Annotated[bool, typer.Option("--force", help="Execute unchanged notebooks as well.")] = False,
    site: Annotated[bool, typer.Option("--report/--no-report", help="Make the web site at the end.")] = True,
    largest: Annotated[bool, typer.Option("--largest", help="Also plot the stored runs of a larger scale.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Only list the notebooks.")] = False,
) -> None:
    """Regenerate figures and tables: train the missing runs, render each notebook once it has its runs."""
    from nclib import paths
    from nclib.publish import notebooks
    from nclib.reproduce import reproduce
    from nclib.system.lazy import install

    if list_all:
        for name in notebooks.select(names or ()):
            typer.echo(f"{name:44}  {notebooks.title(notebooks.read_cells(notebooks.source(name)))}")
        return

    summary = reproduce.reproduce(names or (), profile, parameter or (), workers, train, force)
    complete = summary.ok
    if largest and not summary.parameters:  # it goes with a profile's own parameters
        from nclib.reproduce.largest import draw_largest

        complete &= draw_largest(names or (), profile, force)
    if site:
        try:
            with paths.results_with(paths.folder_name(summary.parameters)):
                report(profile)
        except ModuleNotFoundError as error:  # notebooks do without it
            typer.echo(f"no web site: {error.name} is not installed; {install('docs')}")
    raise typer.Exit(0 if complete else 1)


def report(
    profile: ProfileName = "quick",
    force: Annotated[bool, typer.Option("--force", help="Make it again even if nothing has changed.")] = False,
) -> None:
    """Make the web site of a profile from its executed notebooks: results/<profile>/site/index.html."""
    from nclib.profiles import get_profile
    from nclib.site.build import build

    get_profile(profile)
    build(profile, force)
