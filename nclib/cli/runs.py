"""``nclib runs``: what is stored on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import typer

from nclib.cli.output import Names, ProfileName, Settings, final_metrics, print_frame

runs_app = typer.Typer(help="The runs stored on this machine.", no_args_is_help=True)
RunName = Annotated[str, typer.Argument(help="A run id, or a beginning of it that fits no other.")]


@runs_app.command("list")
def list_runs(text: Annotated[str, typer.Argument(help="Only ids that contain this.")] = "") -> None:
    """Finished runs with their date, and how far the unfinished ones are."""
    from nclib.engine.store import default_store

    store = default_store()
    for run in (run for run in store.ids() if text in run):
        typer.echo(f"{datetime.fromtimestamp((store.root / run / 'DONE').stat().st_mtime):%Y-%m-%d %H:%M}  {run}")
    for run in (run for run in store.unfinished() if text in run):
        typer.echo(f"unfinished, {100 * store.progress(run):3.0f} %  {run}")
    if not store.ids():
        typer.echo(f"no finished runs in {store.root}", err=True)


@runs_app.command("check")
def check_runs() -> None:
    """Read every stored run and compare it with its checksums; what is damaged is named and set aside."""
    from nclib.engine.store import default_store

    store = default_store()
    found = [store.is_sound(run) for run in store.ids() if not store.busy(run)]
    typer.echo(f"{sum(found)} of {len(found)} runs are sound")
    raise typer.Exit(0 if all(found) else 1)


@runs_app.command()
def show(
    run: RunName,
    config: Annotated[
        bool, typer.Option("--config", help="Only print the options, a file for nclib train --config.")
    ] = False,
) -> None:
    """Configuration, circumstances and final metrics of one run."""
    from nclib.engine.reference import load_run, reference_store
    from nclib.engine.store import default_store

    stored = load_run(_complete(run, default_store().ids() + reference_store().ids()))
    typer.echo(json.dumps(stored.config, indent=1))
    if not config:
        typer.echo(json.dumps(stored.provenance, indent=1))
        print_frame(final_metrics(stored))


@runs_app.command()
def remove(
    runs: Annotated[list[str], typer.Argument(help="Run ids, or beginnings that fit no other.", metavar="RUN...")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs for good; they can only be trained again."""
    from nclib.engine.store import default_store

    store = default_store()
    for run in [_complete(run, [*store.ids(), *store.unfinished()]) for run in runs]:
        if yes or typer.confirm(f"remove {run}?"):
            store.remove(run)
            typer.echo(f"removed {run}")


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
    from nclib.engine.experiments import features_drawn
    from nclib.engine.profiles import given
    from nclib.publish import notebooks
    from nclib.reproduce.reproduce import prepare

    tasks = prepare(notebooks.select(names or ()), profile, parameter or ())
    configs = {run: config for task in tasks for run, config in task.needed.items()}
    drawn = {run for task in tasks for run in features_drawn(profile, **given(task.values))}
    for run in runs.export_reference(list(configs.values()), collection or profile, finished, drawn):
        typer.echo(run)


def _complete(typed: str, known: Iterable[str]) -> str:
    """The one run whose id is, or begins with, what was typed."""
    from nclib.config import ConfigError

    known = set(known)
    fitting = [typed] if typed in known else sorted(run for run in known if run.startswith(typed))
    if len(fitting) != 1:
        said = f"fits {len(fitting)} runs: {', '.join(fitting[:5])}" if fitting else "begins no run"
        raise ConfigError(f"{typed!r} {said}; see nclib runs list")
    return fitting[0]
