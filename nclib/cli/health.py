"""``nclib doctor`` and ``verify``: what is here, and does it compute what it should."""

import shutil
import sys
from typing import Annotated

import typer

from nclib.cli.output import print_facts, print_frame


def doctor() -> None:
    """Versions, devices and data found here, and how many runs each profile still has to train."""
    from nclib import data, training
    from nclib.engine import experiments, profiles, runs
    from nclib.system import paths, provenance

    here, results = provenance.capture(training.usable_device()), paths.results()
    free = shutil.disk_usage(next(path for path in (results, *results.parents) if path.exists())).free / 1e9
    print_facts(
        {
            "python": f"{here['python']} at {sys.executable}",
            "versions": ", ".join(f"{name} {version}" for name, version in here["versions"].items()),
            "machine": f"{here['platform']}, {here['cpu']}, {here['cores']} usable cores",
            "device": ", ".join(here["device"].values()),
            "project": paths.root(),
            "data": paths.data(),
            "results": f"{results}, {free:.0f} GB free",
        }
    )
    typer.echo("\ndata sets")
    found = {name: data.describe(name) for name in data.DATASETS}
    print_facts({name: facts["where"] if facts["present"] else "not here" for name, facts in found.items()})
    typer.echo("\nprofiles")
    for profile, about in profiles.PROFILES.items():
        plan = runs.plan([config for name in experiments.known() for config in experiments.experiment(name, profile)])
        missing = (plan["state"] != "stored").sum()
        typer.echo(f"{profile}: {len(plan)} runs, {missing} still to train; {about.description}")


def verify(
    profile: Annotated[str | None, typer.Option(help="Compare only runs that this profile asked for first.")] = None,
) -> None:
    """Check that this installation computes what it should.

    Each run that is stored here is compared with the tracked reference run of the same configuration: the means over
    all runs must nearly agree. Runs with other options are not compared.
    """
    from nclib.engine import profiles, verification

    if profile is not None:
        profiles.get_profile(profile)
    runs, identical, shifts = verification.compare_with_reference(profile)
    typer.echo(f"{runs} runs stored here and in the reference, {identical} of them equal to the bit")
    if shifts.empty:
        typer.echo(f"nothing to judge: that takes {verification.LEAST_RUNS} runs of a kind of network")
        return
    typer.echo("\nhere − reference of accuracies, log(here/reference) of other metrics; shift is the mean over runs")
    print_frame(shifts.round(4))
    sound = bool(shifts["ok"].all())
    typer.echo(
        "\nsound: the reference is reproduced" if sound else "\nbroken install: other results than the reference"
    )
    raise typer.Exit(0 if sound else 1)
