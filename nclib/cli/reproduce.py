"""``nclib reproduce`` and ``nclib report``."""

from typing import Annotated

import typer

from nclib.cli.output import Names, ProfileName, Settings, print_facts


def reproduce(
    names: Names = None,
    profile: ProfileName = "quick",
    parameter: Settings = None,
    workers: Annotated[int | None, typer.Option(help="Runs trained at once; left out: one per GPU or core.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Train on this Dask cluster: address or file.")] = None,
    train: Annotated[str, typer.Option(help="missing, never (fail) or finished (draw what is there).")] = "missing",
    minutes: Annotated[float | None, typer.Option(help="Stop training then; the same command continues.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Execute unchanged notebooks as well.")] = False,
    site: Annotated[bool, typer.Option("--report/--no-report", help="Make the web site at the end.")] = True,
    largest: Annotated[bool, typer.Option("--largest", help="Also draw the tracked runs of a larger scale.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Only list the notebooks.")] = False,
    parameters_of: Annotated[str | None, typer.Option("--parameters", help="Only list those of this notebook.")] = None,
) -> None:
    """Regenerate figures and tables: train the missing runs, draw each notebook as soon as its runs are there."""
    if list_all or parameters_of is not None:
        print_facts(_titles(names) if list_all else _parameters(parameters_of))
        return
    from nclib.publish import sites
    from nclib.reproduce import reproduce
    from nclib.system import own_code

    if any(text.startswith("cell=") for text in parameter or ()):
        own_code.search_here()
    summary = reproduce.reproduce(names or (), profile, parameter or (), workers, train, force, scheduler, minutes)
    complete = summary.ok
    if largest and not summary.parameters:  # it goes with a profile's own parameters
        from nclib.reproduce.largest import draw_largest

        complete &= draw_largest(names or (), profile, force)
    if site:
        try:
            report(profile, parameter)
        except sites.SphinxMissing as error:  # notebooks do without it
            typer.echo(f"no web site: {error}")
    raise typer.Exit(0 if complete else 1)


def _titles(names: list[str] | None) -> dict[str, str]:
    from nclib.publish import notebooks

    chosen = notebooks.select(names or ())
    return {name: notebooks.title(notebooks.read_cells(notebooks.source(name))) or "" for name in chosen}


def _parameters(name: str) -> dict[str, str]:
    from nclib.publish import notebooks
    from nclib.reproduce.parameters import parameters
    from nclib.system.other_parameters import SET_BY_THE_COMMAND

    found = {}
    for notebook in notebooks.select([name]):
        for each in parameters(notebooks.source(notebook)).values():
            if each.name not in SET_BY_THE_COMMAND:
                found[each.name] = f"{each.type.__name__}, {each.default!r} if not given; {each.help}"
    return found


def report(
    profile: ProfileName = "quick",
    parameter: Settings = None,
    force: Annotated[bool, typer.Option("--force", help="Make it again even if nothing has changed.")] = False,
) -> None:
    """Make the web site of a profile from its executed notebooks: results/<profile>/site/index.html.

    With -p that of the results of other parameters: results/<profile>/with/<parameters>/site/index.html.
    """
    from nclib.engine.profiles import get_profile
    from nclib.publish import notebooks
    from nclib.publish.sites import build
    from nclib.reproduce.parameters import given_values
    from nclib.system import other_parameters

    get_profile(profile)
    given = given_values(notebooks.select(), parameter or ()) if parameter else {}
    with other_parameters.results_with(other_parameters.folder_name(other_parameters.other_values(given.values()))):
        build(profile, force)
