"""``nclib verify``: does this installation compute what it should."""

import typer

from nclib.cli.output import print_frame


def verify() -> None:
    """Check that this installation computes what it should.

    Each run that is stored here is compared with the tracked reference run of the same configuration: the means over
    all runs must nearly agree. Runs with other options are not compared.
    """
    from nclib import verify

    runs, identical, shifts = verify.compare_with_reference()
    typer.echo(f"{runs} runs stored here and in the reference, {identical} of them equal to the bit")
    if shifts.empty:
        typer.echo(f"nothing to judge: that takes {verify.LEAST_RUNS} runs of a kind of network")
        return
    typer.echo("\nhere − reference of accuracies, log(here/reference) of other metrics; shift is the mean over runs")
    print_frame(shifts.round(4))
    sound = bool(shifts["ok"].all())
    said = "sound: the reference is reproduced" if sound else "broken install: other results than the reference"
    typer.echo(f"\n{said}")
    raise typer.Exit(0 if sound else 1)
