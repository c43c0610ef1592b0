"""The command ``nclib``: each command reads its options, calls the library and prints.

What can go wrong on purpose ends as one message and an exit code: 2 for what was asked wrongly, 1
for what failed, 130 after Ctrl-C. Everything heavy is imported inside the commands, so that
``nclib --help`` costs little.
"""

import contextlib
import errno
import importlib
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""Errors of a folder that is another user's, read-only, or full."""

INSTALL = 'in the clone, type: pip install ".[notebooks,docs]"'

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError:
    raise SystemExit(
        f"error: the command nclib needs more than the layer and the metrics; {INSTALL}"
    ) from None

if TYPE_CHECKING:
    import pandas as pd

    from nclib.reproduce import Summary


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """An error of a class with an `exit_code` names what to do and needs no traceback; all
        others are bugs and keep theirs."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            again = shlex.join(["nclib", *sys.argv[1:]])
            _say_error(f"stopped by Ctrl-C; finished runs are kept. To go on, type again: {again}")
            raise typer.Exit(130) from None
        except (BrokenPipeError, typer.Exit, typer.Abort):
            raise
        except OSError as error:
            message = str(error)
            if error.errno in NO_PLACE:
                message += ". NCLIB_RESULTS=FOLDER and NCLIB_DATA=FOLDER put results and data there"
            _say_error(message)
            raise typer.Exit(1) from None
        except ModuleNotFoundError as error:
            _say_error(f"{error}; {INSTALL}")
            raise typer.Exit(1) from None
        except (ValueError, RuntimeError) as error:
            if not hasattr(error, "exit_code"):
                raise
            _say_error(str(error))
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    cls=_Group,
    help="Deep equilibrium models and neural collapse: train, regenerate, check.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
# The callbacks keep ``export`` and ``fetch`` words of their own.
runs_app = typer.Typer(help="The runs stored on this machine.", callback=lambda: None)
data_app = typer.Typer(help="The data sets: digits, …, folder:PATH.", callback=lambda: None)
app.add_typer(runs_app, name="runs", no_args_is_help=True)
app.add_typer(data_app, name="data", no_args_is_help=True)


def main() -> None:
    """Entry point of the command."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A log shows each line when it is said, and "?" for a letter that its locale lacks.
            stream.reconfigure(line_buffering=True, errors="replace")
    app(prog_name="nclib")


def _say_error(message: str) -> None:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)


def _warn_of_git() -> None:
    from nclib import provenance

    if provenance.git_refuses():
        clone = provenance.folder("nclib").parent
        command = shlex.join(["git", "config", "--global", "--add", "safe.directory", str(clone)])
        typer.echo(
            "warning: this clone belongs to another user, and git does not read it: "
            f"records have no commit. To change that, type: {command}",
            err=True,
        )


def _print_frame(frame: "pd.DataFrame") -> None:
    """A table as wide as its content needs, numbers with four digits."""
    typer.echo(frame.to_string(index=False, float_format="{:.4g}".format, na_rep="–"))


@contextlib.contextmanager
def _live_line() -> Iterator[Callable[[float, float, str], None]]:
    """A function to call as ``(done, of, text)``: one live line where stderr is a terminal, else a
    line each minute."""
    if not sys.stderr.isatty():
        yield _line_each_minute()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True, soft_wrap=True)  # a path stays whole
    columns = (BarColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()
    ) as bar:
        task = bar.add_task("", total=None)

        def update(done: float, total: float, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        yield update


def _line_each_minute() -> Callable[[float, float, str], None]:
    last = time.monotonic()

    def update(done: float, total: float, text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= 60:
            typer.echo(text)
            last = time.monotonic()

    return update


Names = Annotated[
    list[str] | None,
    typer.Argument(
        help="paper/notebook, a bare name of the main paper, or a folder. Left out: everything."
    ),
]
ProfileName = Annotated[
    str, typer.Option(help="Size of everything: smoke, quick, lite, full or paper.")
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--parameter",
        metavar="NAME=VALUE",
        help="Notebook parameter, such as epochs=3. Repeatable.",
    ),
]


# --- notebooks ------------------------------------------------------------------------------------


@app.command()
def reproduce(
    names: Names = None,
    profile: ProfileName = "quick",
    parameter: Parameters = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs trained at once; left out: one per GPU or core.")
    ] = None,
    train: Annotated[
        str, typer.Option(help="missing, never or finished (plot what is there).")
    ] = "missing",
    force: Annotated[
        bool, typer.Option("--force", help="Execute unchanged notebooks as well.")
    ] = False,
    site: Annotated[
        bool, typer.Option("--report/--no-report", help="Make the web site at the end.")
    ] = True,
    largest: Annotated[
        bool, typer.Option("--largest", help="Also plot the stored runs of a larger scale.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Without names: train the studies beyond the papers too.")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Only list the notebooks.")] = False,
) -> None:
    """Regenerate figures and tables: train missing runs, execute each notebook with its runs."""
    from nclib import paths
    from nclib import reproduce as notebooks

    if list_all:
        for name in notebooks.select(names or ()):
            typer.echo(f"{name:44}  {notebooks.title(notebooks.source(name))}")
        return
    _warn_of_git()
    started = time.monotonic()
    with _live_line() as progress:
        summary = notebooks.reproduce(
            names or (),
            profile,
            parameter or (),
            workers,
            train,
            force,
            progress=progress,
            everything=everything,
            largest=largest,
        )
    if site:
        from nclib import site as web

        with paths.results_with(summary.folder):
            if not web.is_newest(profile):
                _make_site(profile)
    with paths.results_with(summary.folder):
        for line in _closing_lines(summary, paths.results(profile), time.monotonic() - started):
            typer.echo(line)
    raise typer.Exit(0 if summary.ok else 1)


def _closing_lines(summary: "Summary", results: Path, seconds: float) -> list[str]:
    """What was made, where to look first, how long it took, what did not converge, what is next."""
    from nclib.reproduce import shown

    counts = []
    for status in ("executed", "unchanged", "not drawn", "failed"):
        if summary.count(status) or status == "executed":
            counts.append(f"{summary.count(status)} {status}")
    first = results / "site/index.html"
    if not first.exists():
        first = results / "notebooks"
    lines = [
        f"notebooks: {', '.join(counts)}; {summary.trained} runs trained",
        f"look first at {shown(first)}; pictures are in {shown(results / 'figures')}",
        f"it took {seconds / 60:.1f} min",
    ]
    unsolved = summary.unconverged
    solver = ""
    if len(unsolved) == 1:
        solver = f"one run misses some equilibria: {unsolved[0]}"
    elif unsolved:
        solver = f"{len(unsolved)} runs miss some equilibria: {', '.join(unsolved[:3])}"
    elif summary.trained:  # of tracked runs alone nothing is known here
        solver = "every equilibrium was found"
    if solver:
        lines.append(f"solver, at the last epoch of the runs stored here: {solver}")
    lines.append(
        "next: make lab opens the notebooks; nclib reproduce NAME --profile lite takes real images"
    )
    return lines


@app.command()
def report(profile: ProfileName = "quick") -> None:
    """Make the web site of a profile's executed notebooks: results/<profile>/site/index.html."""
    from nclib.profiles import get_profile

    get_profile(profile)
    _make_site(profile)


def _make_site(profile: str) -> None:
    from nclib import site

    typer.echo(f"the web site: {site.build(profile)}")


# --- runs -----------------------------------------------------------------------------------------


@app.command()
def train(
    profile: Annotated[
        str | None, typer.Option(help="Start from the options of figures: smoke, quick, …")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of a data set, or folder:PATH.")] = None,
    num_majority: Annotated[
        int | None,
        typer.Option("--K_A", "--num-majority", help="Majority classes; left out: balanced."),
    ] = None,
    ratio: Annotated[
        float | None, typer.Option("--R", "--ratio", help="Imbalance n_A / n_B; goes with K_A.")
    ] = None,
    n_max: Annotated[
        int | None, typer.Option(help="Images of a majority class, n_A; left out: all.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="explicit, deq, explicit_matched, weight_tied or explicit_flops."),
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Channels of the first stage; features have 8 times as many.")
    ] = None,
    cell: Annotated[
        str | None, typer.Option(help="residual, mdeq, or package.module:Class of your own.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images of a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Subset, initialisation and order.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, …; left out: a GPU if any.")
    ] = None,
) -> None:
    """Train one network, unless it is stored already, and print its run id and final metrics.

    Without --profile what is left out is balanced digits, an explicit network of width 64, 100
    epochs, seed 0. --profile quick --model deq --K_A 5 --R 100 is a run of Figure 3.
    """
    from nclib import data, profiles, runs, verify
    from nclib.config import run_id
    from nclib.store import load_run

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
    given = {name: value for name, value in options.items() if value is not None}
    config = profiles.build_config(profile, given)
    data.fetch(config.data.dataset)
    runs.check_runs([config])
    _warn_of_git()
    typer.echo(f"run {run_id(config)}")
    with _live_line() as progress:
        runs.ensure_runs([config], progress=progress, device=device)
    run = load_run(config)
    metrics = verify.final_values(run).unstack("split").reset_index().rename_axis(columns=None)
    chief = metrics["metric"].str.startswith(("accuracy", "solver", "nc4"))
    _print_frame(metrics[chief | metrics["metric"].isin(list(verify.FLOORS))])
    for message in run.provenance.get("warnings", []):
        typer.echo(f"warning: {message}")


@app.command()
def verify() -> None:
    """Check that this installation computes what it should.

    Each run that is stored here is compared with the tracked reference run of the same
    configuration: the means over all runs must nearly agree. Runs with other options are not
    compared.
    """
    from nclib import verify

    runs, identical, shifts = verify.compare_with_reference()
    typer.echo(
        f"{runs} runs stored here and in the reference, {identical} of them equal to the bit"
    )
    if shifts.empty:
        typer.echo(f"nothing to judge: that takes {verify.LEAST_RUNS} runs of a kind of network")
        return
    typer.echo("\nhere − reference of accuracies, log(here/reference) of others; mean over runs")
    _print_frame(shifts.round(4))
    if not shifts["ok"].all():
        typer.echo("\nbroken install: other results than the reference")
        raise typer.Exit(1)
    typer.echo("\nsound: the reference is reproduced")


@runs_app.command()
def export(
    names: Names = None,
    profile: ProfileName = "quick",
    collection: Annotated[
        str | None, typer.Option(help="Folder in results/reference/, else the profile's.")
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Leave out what is not trained yet.")
    ] = False,
    parameter: Parameters = None,
) -> None:
    """Copy small extracts of the stored runs behind notebooks to the tracked reference results."""
    from nclib import reproduce, runs

    configs = {}
    for task in reproduce.prepare(reproduce.select(names or ()), profile, parameter or ()):
        configs |= task.runs
    for run in runs.export_reference(list(configs.values()), collection or profile, finished):
        typer.echo(run)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="digits, digit_pairs, cifar10, … or folder:PATH.")],
) -> None:
    """Download a data set, or decode a folder, and check it."""
    from nclib import data

    typer.echo(f"{data.fetch(name)}: complete")


# --- a network of one's own -----------------------------------------------------------------------


@app.command()
def measure(
    source: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION|FILE.npz")],
    layer: Annotated[
        list[str] | None, typer.Option(help="A layer's name; left out: the network's children.")
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--num-classes", help="K; left out: the classifier's rows.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Average (B, T, D) over T.")] = False,
    classifier: Annotated[
        str, typer.Option(help='Its name; left out: the last nn.Linear; "none": there is none.')
    ] = "auto",
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table there too.", dir_okay=False)
    ] = None,
) -> None:
    """Neural collapse in the layers of your own network, or of saved features.

    FUNCTION takes nothing and returns (model, loader). MODULE is imported, from this folder too, so
    its code runs. FILE.npz holds h, labels and, if you like, logits and w.
    """
    from nclib.config import ConfigError

    try:
        if source.endswith(".npz"):
            table = _measure_file(source, classes)
        else:
            pool = "tokens" if tokens else None
            head = None if classifier == "none" else classifier
            table = _measure_network(source, layer, classes, pool, head)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(str(error)) from None
    if csv is not None:
        table.to_csv(csv, index=False)
    if "layer" in table:
        layers = table["layer"].unique()
        table = table.pivot_table(
            index="metric", columns="layer", values="value", sort=False, dropna=False
        )
        table = table[layers].reset_index().rename_axis(columns=None)
    _print_frame(table)


def _measure_network(
    source: str,
    layers: list[str] | None,
    classes: int | None,
    pool: str | None,
    classifier: str | None,
) -> "pd.DataFrame":
    import nclib as nc

    module, _, function = source.partition(":")
    if not (module and function):
        raise ValueError(f"{source!r} is neither MODULE:FUNCTION, such as my_net:load, nor an .npz")
    sys.path.append(os.getcwd())  # last: no file of this folder is taken for a module of Python
    returned = getattr(importlib.import_module(module), function)()
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise ValueError(f"{source} must return (model, loader), got {type(returned)}")
    model, loader = returned
    return nc.measure(model, loader, layers, classes, pool, classifier=classifier)


def _measure_file(path: str, classes: int | None) -> "pd.DataFrame":
    import zipfile

    import numpy as np
    import pandas as pd

    import nclib as nc

    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = dict(stored)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} cannot be read; numpy.savez({path!r}, h=…, labels=…) writes one: {error}"
        ) from None
    if not {"h", "labels"} <= arrays.keys() <= {"h", "labels", "logits", "w"}:
        raise ValueError(
            f"{path} must hold h and labels, and may hold logits and w; it holds {sorted(arrays)}"
        )
    report = nc.nc_report(**arrays, num_classes=classes)
    return pd.DataFrame(report.items(), columns=["metric", "value"])


# --- the papers' statements -----------------------------------------------------------------------


@app.command()
def certify(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Statements; left out: all.")
    ] = None,
) -> None:
    """Check the verdicts on the papers' statements by exact computation.

    The proofs stand in the source, beside the certificates.

    Without ids it prints one line for each certificate, and at the end the verdicts on the ten
    statements of Sun & Shi (2024). With ids it prints all about each: the statement, how it was
    read, the verdict, and what was checked. Exits with 1 if a certificate fails.
    """
    from nclib.papers import certify

    results = certify.certify(ids or None)
    if ids:
        typer.echo(certify.as_text(results))
    else:
        typer.echo(certify.as_lines(results))
    failed = [result.id for result in results if not result.ok]
    typer.echo(f"{len(results) - len(failed)} of {len(results)} certificates checked")
    if not ids:
        typer.echo("\n" + certify.summary(results))
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
