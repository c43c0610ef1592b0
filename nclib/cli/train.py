"""``nclib train``. Its options by name are those that the configuration declares (`nclib.config.named_options`)."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from nclib.cli.output import final_metrics, print_frame
from nclib.config import ConfigError, RunConfig, named_options


def train(
    profile: Annotated[str | None, typer.Option(help="Start from the options of figures: smoke, quick, …")] = None,
    config: Annotated[Path | None, typer.Option(help="Start from a JSON file of options.", dir_okay=False)] = None,
    recipe: Annotated[str | None, typer.Option(help="Protocol: workable, paper, collapse or accuracy.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("-s", "--set", metavar="KEY=VALUE", help="Such as model.solver.tol=1e-4."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; left out: a GPU if any.")] = None,
    **named: Any,
) -> None:
    """Train one network, unless it is stored already, and print its run id and final metrics.

    The defaults are those without --profile. --profile quick --model deq --K_A 5 --R 100 is a run of Figure 3.
    """
    from nclib import data
    from nclib.config import run_id
    from nclib.engine import jobs
    from nclib.engine.options import check_runs
    from nclib.engine.reference import load_run
    from nclib.engine.store import default_store
    from nclib.engine.verification import FACTORS
    from nclib.publish import captions
    from nclib.system.terminal import progress_bar

    given = {key: value for key in named_options() if (value := named[_name(key)]) is not None}
    run, store = typed_config(profile, config, recipe, given, settings or []), default_store()
    data.fetch(run.data.dataset)
    check_runs([run])
    typer.echo(f"run {run_id(run)}")
    typer.echo(captions.describe_runs([run]))
    if store.has(run_id(run)):
        typer.echo("stored already, nothing to train")
    elif store.busy(run_id(run)):
        typer.echo("another process is training it; waiting for that")
    elif said := jobs.changed_code(run, store):
        typer.echo(f"{said}; this is another run")
    with progress_bar("training") as progress:
        jobs.train_run(run, store, device, lambda done, of: progress(done, of, run_id(run)))
    metrics = final_metrics(load_run(run))
    chief = metrics["metric"].str.startswith(("accuracy", "solver", "nc4")) | metrics["metric"].isin(list(FACTORS))
    print_frame(metrics[chief])
    for said in load_run(run).provenance.get("warnings", []):
        typer.echo(f"warning: {said}")
    typer.echo(f"everything about it: nclib runs show {run_id(run)}")


def typed_config(
    profile: str | None, file: Path | None, recipe: str | None, given: dict[str, Any], settings: list[str]
) -> RunConfig:
    """The run that options describe: those of a profile or a file, if one is named, changed by all others.

    Raises
    ------
    ConfigError, DataError
        As `build_config`; ConfigError where both are named.
    """
    from nclib.engine.builders import profile_options
    from nclib.engine.options import build_config
    from nclib.engine.profiles import OVERRIDES

    if profile is None:
        return build_config(file, recipe, given, settings)
    if file is not None:
        raise ConfigError("--profile and --config both say where the options come from; leave one out")
    overrides = {name: given[key] for key in given if (name := key.split(".")[-1]) in OVERRIDES}
    overrides |= {} if recipe is None else {"recipe": recipe}
    start = profile_options(profile, given.get("model.kind", "explicit"), **overrides)
    return build_config(start, None, {key: given[key] for key in given if key != "data.dataset"}, settings)


def _name(key: str) -> str:
    return key.replace(".", "_")


def _named_parameters() -> Iterator[inspect.Parameter]:
    for key, field in named_options().items():
        plain_types = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind in (int, float, str)]
        about = field.json_schema_extra
        option = typer.Option(*about["option"].split(), help=field.description, show_default=about["shown"])
        annotation = Annotated[(plain_types or [str])[0] | None, option]
        yield inspect.Parameter(_name(key), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


_own = [each for each in inspect.signature(train).parameters.values() if each.name != "named"]
train.__signature__ = inspect.Signature([*_own, *_named_parameters()])
