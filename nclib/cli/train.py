"""``nclib train``. Its options by name are those that the configuration declares (`nclib.config.named_options`)."""

import inspect
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import typer

from nclib.cli.output import print_frame
from nclib.config import named_options


def train(
    profile: Annotated[str | None, typer.Option(help="Start from the options of figures: smoke, quick, …")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; left out: a GPU if any.")] = None,
    **named: Any,
) -> None:
    """Train one network, unless it is stored already, and print its run id and final metrics.

    The defaults are those without --profile. --profile quick --model deq --K_A 5 --R 100 is a run of Figure 3.
    """
    from nclib import data
    from nclib.config import run_id
    from nclib.engine import builders, jobs
    from nclib.engine.reference import load_run
    from nclib.engine.runs import ensure_runs
    from nclib.engine.verification import FLOORS, final_values
    from nclib.publish import captions
    from nclib.system.terminal import progress_bar

    given = {key: value for key in named_options() if (value := named[key.replace(".", "_")]) is not None}
    config = builders.build_config(profile, given)
    data.fetch(config.data.dataset)
    jobs.check_runs([config])
    typer.echo(f"run {run_id(config)}")
    typer.echo(captions.describe_runs([config]))
    with progress_bar("training") as progress:
        ensure_runs([config], progress=progress, device=device)
    run = load_run(config)
    metrics = final_values(run).unstack("split").reset_index().rename_axis(columns=None)
    chief = metrics["metric"].str.startswith(("accuracy", "solver", "nc4")) | metrics["metric"].isin(FLOORS.keys())
    print_frame(metrics[chief])
    for said in run.provenance.get("warnings", []):
        typer.echo(f"warning: {said}")


def _named_parameters() -> Iterator[inspect.Parameter]:
    for key, field in named_options().items():
        plain_types = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind in (int, float, str)]
        about = field.json_schema_extra
        option = typer.Option(*about["option"].split(), help=field.description, show_default=about["shown"])
        annotation = Annotated[(plain_types or [str])[0] | None, option]
        name, kind = key.replace(".", "_"), inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, kind, default=None, annotation=annotation)


_own = [each for each in inspect.signature(train).parameters.values() if each.name != "named"]
train.__signature__ = inspect.Signature([*_own, *_named_parameters()])
