"""``nclib doctor``, ``verify``, ``certify``: is this installation sound, and what do its results say."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from nclib.cli.output import print_facts, print_frame

if TYPE_CHECKING:
    from nclib.engine.verification import Comparison


def doctor() -> None:
    """Versions, devices and data found here, and how long each profile would take on this machine."""
    from nclib import data, training
    from nclib.engine.executors import default_workers
    from nclib.engine.profiles import PROFILES
    from nclib.system import paths, provenance

    here, results = provenance.capture(training.default_device()), paths.results()
    free = shutil.disk_usage(next(path for path in (results, *results.parents) if path.exists())).free / 1e9
    print_facts(
        {
            "python": f"{here['python']} at {sys.executable}",
            "versions": ", ".join(f"{name} {version}" for name, version in here["versions"].items()),
            "machine": f"{here['platform']}, {here['cpu']}, {here['cores']} usable cores",
            "bfloat16": f"{here['bfloat16']}, used by profile full" if here["bfloat16"] else "not on this processor",
            "device": ", ".join(str(value) for value in here["device"].values() if value is not None),
            "project": paths.root(),
            "data": paths.data(),
            "results": f"{results}, {free:.0f} GB free",
        }
    )
    typer.echo("\ndata sets")
    print_facts({f"  {name}": _found(name) for name in data.DATASETS})
    typer.echo("\nprofiles (one core's time, estimated; runs already stored cost nothing)")
    print_facts({f"  {profile}": _costs(profile, default_workers()) for profile in PROFILES})


def _found(name: str) -> str:
    from nclib import data

    facts = data.describe(name)
    return f"found, {facts['where']}" if facts["present"] else f"not here; to get it: nclib data fetch {name}"


def _costs(profile: str, workers: int) -> str:
    from nclib.engine import experiments, runs
    from nclib.system.terminal import duration

    plan = runs.plan([config for name in experiments.known() for config in experiments.experiment(name, profile)])
    lacking = plan[plan["state"] != "stored"]
    left = lacking["seconds"].sum()
    return (
        f"{len(plan)} runs, {duration(plan['seconds'].sum())}; still to train: {len(lacking)}, "
        f"{duration(left)}, with {workers} at once {duration(left / workers)}"
    )


def verify(
    profile: Annotated[str | None, typer.Option(help="Compare only runs that this profile asked for first.")] = None,
) -> None:
    """Check that this installation computes what it should.

    First, solver, layer and metrics are tried on problems with a known answer. Then each run that is stored here is
    compared with the tracked reference run of the same configuration: the means over all runs must nearly agree, and
    each setting must agree within the spread over seeds. Runs with other options are not compared.
    """
    from nclib.engine import profiles, verification

    if profile is not None:
        profiles.get_profile(profile)
    checks = verification.self_checks()
    print_frame(checks)
    found = verification.compare_with_reference(profile)
    if found.runs:
        _print_comparison(found)
    sound = bool(checks["ok"].all())
    close = bool(found.shifts["ok"].all() and found.settings["ok"].all())
    typer.echo(f"\n{_verdict(sound, close, found.runs)}")
    raise typer.Exit(0 if sound and close else 1)


def _print_comparison(found: Comparison) -> None:
    typer.echo(f"\n{found.runs} runs stored here and in the reference, {found.identical} of them equal to the bit")
    typer.echo("\nmean shifts: here − reference of accuracies, log(here/reference) of other metrics, mean over runs")
    print_frame(found.shifts.round(4))
    close = found.settings["ok"]
    typer.echo(f"\nsetting by setting, means over seeds: {close.sum()} of {len(close)} ok")
    if not close.all():
        print_frame(found.settings[~close])


def _verdict(sound: bool, close: bool, runs: int) -> str:
    """What `verify` concludes from closed forms, the comparisons, and how many runs were compared."""
    if not sound:
        return "broken install: closed forms are missed, so no result of this installation can be trusted"
    if not close:
        return "broken install: closed forms hold, but the same configurations give other results than the reference"
    if not runs:
        return "nothing to compare: no run is both stored here and in the reference. The closed forms hold"
    return "sound: closed forms hold and the reference is reproduced. Results of other runs are findings"
