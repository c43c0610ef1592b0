"""The command line: ``nclib reproduce | report | train | measure | numbers | runs | data | doctor | verify | certify``.

Each command reads its options, calls the library and prints. Whatever can go wrong on purpose ends as one message
and an exit code: 2 for what was asked wrongly, 1 for what failed, 130, 143 or such (128 + its number) after a signal.
Everything heavy is imported inside the commands, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nclib.cli import data as data_commands
from nclib.cli import health
from nclib.cli import runs as runs_commands
from nclib.cli.output import Names, ProfileName, Settings, final_metrics, plain, print_facts, print_frame, say_error
from nclib.system import plugins
from nclib.system.terminal import ENDINGS, Terminated


@contextmanager
def _one_message() -> Iterator[None]:
    """Errors that say what to do need no traceback; all others are bugs and keep theirs."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise _stopped(getattr(stop, "number", signal.SIGINT)) from None  # `Terminated` knows its signal
    except typer.Exit:
        raise
    except Exception as error:
        if _interrupted:  # in an import, which then failed with an error of its own, or at a prompt
            raise _stopped(_interrupted[0]) from None
        if isinstance(error, typer.Abort):
            raise
        code = _exit_code(error)
        if code is None:
            raise
        say_error(str(error))
        raise typer.Exit(code) from None


_interrupted: list[int] = []


def _interrupt(number: int, frame: Any) -> None:
    """Python's own answer to Ctrl-C, for all signals that end a command, and a note that it came. A second one of the
    others is ignored."""
    _interrupted.append(number)
    _handle([] if number == signal.SIGINT else ENDINGS, _interrupt, signal.SIG_IGN)
    raise Terminated(number)


def _handle(numbers: Sequence[int], before: Any, after: Any) -> None:
    """Replace a handler of signals by another, and leave other handlers as they are."""
    for each in numbers:
        if signal.getsignal(each) == before:
            signal.signal(each, after)


def _stopped(number: int) -> typer.Exit:
    """Say so; the exit code is the one that shells have for it. Another Ctrl-C then ends the command without a word."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    say_error(
        f"stopped by {name}; what was finished is kept, nothing half-written counts as done. To go on, type "
        f"the same again: {_typed()}"
    )
    _handle([signal.SIGINT, *ENDINGS], _interrupt, signal.SIG_DFL)
    return typer.Exit(128 + number)


def _exit_code(error: Exception) -> int | None:
    """2 for a wrong request, 1 for something that failed, None for what should not have happened. An error that is
    expected says so itself, in an attribute `exit_code` of its class."""
    if isinstance(error, OSError):
        return None if isinstance(error, BrokenPipeError) else 1
    if not isinstance(error, (ValueError, RuntimeError)):
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return 1
    return getattr(error, "exit_code", None)


def _typed() -> str:
    return shlex.join(["nclib", *sys.argv[1:]])


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        with _one_message():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Group,
    help="Deep equilibrium models and neural collapse: train, regenerate, check.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(runs_commands.runs_app, name="runs")
app.add_typer(data_commands.data_app, name="data")


def main() -> None:
    """Entry point of the ``nclib`` command."""
    _open_streams()
    _handle([signal.SIGINT], signal.default_int_handler, _interrupt)  # one that is ignored, as under nohup, stays so
    _handle(ENDINGS, signal.SIG_DFL, _interrupt)
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    # a log shows each line when it is said; a file name that is no text is shown as well as can be
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    app(prog_name="nclib")


def _open_streams() -> None:
    """Where stdin, stdout or stderr is closed, as daemons have them: the work is done and nothing is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, so this one; no file of results shall get it
            os.set_inheritable(number, True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 — open as long as the process


@app.callback(invoke_without_command=True)
def _version(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(sys.modules["nclib"].__version__)
        raise typer.Exit


@app.command()
def reproduce(
    names: Names = None,
    profile: ProfileName = "quick",
    parameter: Settings = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Runs trained at once on this machine; left out: one per GPU, else one per core."
        ),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Train on this Dask cluster: tls://…, or its scheduler file.")
    ] = None,
    train: Annotated[
        str,
        typer.Option(help="missing: train missing runs. never: fail without them. finished: draw finished pairs."),
    ] = "missing",
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop training after this long, one seed of everything first; the same command continues."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Execute unchanged notebooks as well.")] = False,
    site: Annotated[
        bool, typer.Option("--report/--no-report", help="Make the web site, with the first page and again at the end.")
    ] = True,
    largest: Annotated[
        bool, typer.Option("--largest", help="Also draw the tracked runs of a larger scale, without training.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which runs and notebooks are due, and why.")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Only list the notebooks.")] = False,
    parameters_of: Annotated[
        str | None, typer.Option("--parameters", metavar="NOTEBOOK", help="Only list the parameters of this notebook.")
    ] = None,
) -> None:
    """Regenerate figures and tables: train the missing runs, draw each notebook as soon as its runs are there."""
    if list_all or parameters_of is not None:
        print_facts(_titles(names) if list_all else _parameters(parameters_of))
        return
    from nclib.reproduce import reproduce
    from nclib.system import own_code

    if any(text.startswith("cell=") for text in parameter or ()):
        own_code.search_here()
    if dry_run:
        reproduce.dry_run(names or (), profile, parameter or ())
        return
    summary = reproduce.reproduce(
        names or (), profile, parameter or (), workers, train, force, scheduler, minutes, site
    )
    complete = summary.ok
    if largest and summary.parameters:
        typer.echo("--largest is left out: it goes with a profile's own parameters")
    elif largest:
        from nclib.reproduce.largest import draw_largest

        complete &= draw_largest(names or (), profile, force)
    complete &= _site_after(profile, summary.parameters) if site else True
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


def _site_after(profile: str, parameters: Mapping[str, Any]) -> bool:
    """Make the site of what was just reproduced; False when that failed. Notebooks do without Sphinx, and so without a
    site: then it is only said."""
    from nclib.publish import sites
    from nclib.system import other_parameters

    try:
        with other_parameters.results_with(other_parameters.folder_name(parameters)):
            sites.build(profile)
    except sites.ReportError as error:
        if isinstance(error, sites.SphinxMissing):
            typer.echo(f"no web site: {error}")
            return True
        say_error(f"no web site: {error}")
        return False
    return True


@app.command()
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


@app.command()
def train(
    profile: Annotated[
        str | None,
        typer.Option(help="Start from the options of figures: smoke, quick, lite, full, paper.", show_default="none"),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Name of a data set, or folder:PATH.", show_default="digits")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="explicit, deq, explicit_matched, weight_tied, explicit_flops, network.", show_default="explicit"
        ),
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option(help="residual, mdeq, or package.module:Class of your own.", show_default="residual"),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="package.module:function that makes a network of your own, for --model network.")
    ] = None,
    K_A: Annotated[
        int | None,
        typer.Option("--K_A", "--num-majority", help="Number of majority classes.", show_default="balanced"),
    ] = None,
    R: Annotated[
        float | None, typer.Option("--R", "--ratio", help="Imbalance n_A / n_B; goes with K_A.", show_default="1")
    ] = None,
    n_max: Annotated[
        int | None, typer.Option(help="Images of a majority class, n_A.", show_default="as many as there are")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help="Channels of the first stage; features have 8 times as many.", show_default="64"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Subset, initialisation and order.", show_default="0")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Protocol: workable, or paper for the literal one.", show_default="workable")
    ] = None,
    epochs: Annotated[int | None, typer.Option(show_default="100")] = None,
    batch_size: Annotated[int | None, typer.Option(show_default="128")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.1")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "-s", "--set", metavar="KEY=VALUE", help="Any other option, such as model.solver.tol=1e-4. Repeatable."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="JSON file of a configuration; other options change it.", dir_okay=False)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, …; left out: a GPU where there is one.")
    ] = None,
) -> None:
    """Train one network, unless it is stored already, and print its run id and final metrics.

    The defaults are those without --profile. --profile quick --model deq --K_A 5 --R 100 is a run of Figure 3.
    """
    from nclib import data
    from nclib.cli.typed import typed_config
    from nclib.config import run_id
    from nclib.engine import jobs
    from nclib.engine.options import check_runs
    from nclib.engine.reference import load_run
    from nclib.engine.store import default_store
    from nclib.engine.verification import FACTORS
    from nclib.publish import captions
    from nclib.system.terminal import progress_bar

    given = {
        "data.dataset": dataset,
        "data.num_majority": K_A,
        "data.ratio": R,
        "data.n_max": n_max,
        "model.kind": model,
        "model.cell": cell,
        "model.network": network,
        "model.width": width,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "seed": seed,
    }
    named = {key: value for key, value in given.items() if value is not None}
    run = typed_config(profile, config, recipe, named, options or ())
    data.fetch(run.data.dataset)
    check_runs([run])
    typer.echo(f"run {run_id(run)}")
    typer.echo(captions.describe_runs([run]))
    store = default_store()
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
        typer.echo(f"warning: {plain(said)}")
    typer.echo(f"everything about it: nclib runs show {run_id(run)}")


@app.command()
def measure(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION|FILE.npz",
            help="A function without arguments that returns (model, loader) or (model, loader, test loader), or a file "
            "with h, labels, logits, w.",
        ),
    ],
    layer: Annotated[
        list[str] | None, typer.Option(help="A layer's name, or all; left out: every block and the classifier's input.")
    ] = None,
    classes: Annotated[int | None, typer.Option("--num-classes", help="K; left out: found from the network.")] = None,
    pool: Annotated[str, typer.Option(help="mean, flatten or cls: how a feature map becomes a vector.")] = "mean",
    per_class: Annotated[bool, typer.Option("--per-class", help="Add rows for each class.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table there too.", dir_okay=False)] = None,
) -> None:
    """Neural collapse in the layers of your own network, or of saved features.

    MODULE is imported, from this folder too, so its code runs.
    """
    import pandas as pd

    from nclib.config import ConfigError
    from nclib.metrics import measuring
    from nclib.system.files import csv_bytes, write_atomic

    if csv is not None and csv.resolve() == Path(source).resolve():
        raise ConfigError(f"--csv {csv} would replace the features themselves; name another file")
    try:
        if source.endswith(".npz"):
            if layer or per_class or pool != "mean":
                raise ValueError("--layer, --pool and --per-class are for a network; a file holds one layer")
            report = measuring.measure_file(source, classes)
            table = pd.DataFrame(report.items(), columns=["metric", "value"])
        else:
            with _importable_from_here():
                model, loader, *test = _model_and_loaders(source)
                wanted = "all" if layer == ["all"] else layer
                table = measuring.measure(
                    model, loader, wanted, classes, pool, per_class, test=test[0] if test else None
                )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if csv is not None:  # a pipe, or /dev/stdout, cannot be replaced; of a link that what it leads to is
        stream = (csv.exists() and not csv.is_file()) or csv.absolute().parts[1:2] in (("dev",), ("proc",))
        (Path.write_bytes if stream else write_atomic)(csv if stream else csv.resolve(), csv_bytes(table))
    if "layer" in table:
        index = ["metric", "class"] if per_class else "metric"
        order = table["layer"].unique()
        table = table.pivot_table(index=index, columns="layer", values="value", sort=False, dropna=False)[order]
        table = table.reset_index().rename_axis(columns=None)
    print_frame(table)


@contextmanager
def _importable_from_here() -> Iterator[None]:
    before = sys.path[:]
    sys.path.append(os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


def _model_and_loaders(source: str) -> tuple[Any, ...]:
    from importlib import import_module

    module, colon, name = source.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(f"{source!r} is neither MODULE:FUNCTION, such as my_net:load, nor a file that ends in .npz")
    try:
        function = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.split(".")[0]):
            raise
        raise ValueError(f"there is no module {module!r} here or among the installed packages") from None
    if not callable(function):
        raise ValueError(f"{module} has no function {name!r}")
    try:
        found = function()
    except ValueError as error:
        *_, place = traceback.extract_tb(error.__traceback__)
        raise ValueError(f"{source}: {error} ({place.filename}, line {place.lineno})") from None
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise ValueError(f"{source} must return (model, loader) or (model, loader, test), got {type(found).__name__}")
    return found


app.command()(health.doctor)
app.command()(health.verify)
for name, command in plugins.added("commands").items():
    app.command(name)(command.load())
