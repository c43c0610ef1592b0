"""``nclib train``."""

from typing import Annotated

import typer

from nclib.cli.output import print_frame


def train(
    profile: Annotated[str | None, typer.Option(help="Start from the options of figures: smoke, quick, …")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of a data set, or folder:PATH.")] = None,
    num_majority: Annotated[
        int | None, typer.Option("--K_A", "--num-majority", help="Number of majority classes; left out: balanced.")
    ] = None,
    ratio: Annotated[
        float | None, typer.Option("--R", "--ratio", help="Imbalance n_A / n_B; goes with K_A.")
    ] = None,
    n_max: Annotated[int | None, typer.Option(help="Images of a majority class, n_A; left out: all.")] = None,
    model: Annotated[
        str | None, typer.Option(help="explicit, deq, explicit_matched, weight_tied or explicit_flops.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Channels of the first stage; features have 8 times as many.")
    ] = None,
    cell: Annotated[str | None, typer.Option(help="residual, mdeq, or package.module:Class of your own.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images of a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Subset, initialisation and order.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; left out: a GPU if any.")] = None,
) -> None:
    """Train one network, unless it is stored already, and print its run id and final metrics.

    Without --profile what is left out is balanced digits, an explicit network of width 64, 100 epochs, seed 0.
    --profile quick --model deq --K_A 5 --R 100 is a run of Figure 3.
    """
    from nclib import data, figures, profiles, runs
    from nclib.config import run_id
    from nclib.runs import ensure_runs
    from nclib.store import load_run
    from nclib.system.terminal import progress_bar
    from nclib.verify import FLOORS, final_values

    options = {
        "data.dataset": dataset,
        "data.num_majority": num_majority,
        "data.ratio": ratio,
        "data.n_max": n_max,
        "model.kind": model,
        "model.width": width,
        "model.cell": cell,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "seed": seed,
    }
    given = {key: value for key, value in options.items() if value is not None}
    config = profiles.build_config(profile, given)
    data.fetch(config.data.dataset)
    runs.check_runs([config])
    typer.echo(f"run {run_id(config)}")
    typer.echo(figures.describe_runs([config]))
    with progress_bar("training") as progress:
        ensure_runs([config], progress=progress, device=device)
    run = load_run(config)
    metrics = final_values(run).unstack("split").reset_index().rename_axis(columns=None)
    chief = metrics["metric"].str.startswith(("accuracy", "solver", "nc4")) | metrics["metric"].isin(FLOORS.keys())
    print_frame(metrics[chief])
    for said in run.provenance.get("warnings", []):
        typer.echo(f"warning: {said}")
