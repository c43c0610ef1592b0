"""The command line: ``nclib reproduce | report | train | measure | runs | data | doctor | verify | certify``.

Each command reads its options, calls the library and prints. Whatever can go wrong on purpose ends as one message
and an exit code: 2 for what was asked wrongly, 1 for what failed, 130, 143 or such (128 + its number) after a signal.
Everything heavy is imported inside the commands, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    import pandas as pd

    from nclib.config import RunConfig
    from nclib.engine.reading import StoredRun
    from nclib.engine.verification import Comparison


# --- how a command ends ---------------------------------------------------------------------------------------


@contextmanager
def _one_message() -> Iterator[None]:
    """Errors that say what to do need no traceback; all others are bugs and keep theirs."""
    try:
        yield
    except KeyboardInterrupt as stop:
        number = getattr(stop, "number", signal.SIGINT)  # `regenerate.Terminated` knows its signal
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        _say_error(
            f"stopped by {name}; what was finished is kept, nothing half-written counts as done. To go on, type "
            f"the same again: {_typed()}"
        )
        raise typer.Exit(128 + number) from None  # as shells have it
    except (ValueError, RuntimeError, OSError) as error:
        code = _exit_code(error)
        if code is None:
            raise
        _say_error(str(error))
        raise typer.Exit(code) from None


def _exit_code(error: Exception) -> int | None:
    """2 for a wrong request, 1 for something that failed, None for what should not have happened."""
    if isinstance(error, OSError):
        return None if isinstance(error, BrokenPipeError) else 1
    report = sys.modules.get("nclib.publish.site.sources")
    if report is not None and isinstance(error, report.ReportError):
        return 1
    certificates = sys.modules.get("nclib.papers.certify")
    if certificates is not None and isinstance(error, certificates.UnknownCertificate):
        return 2
    config = sys.modules.get("nclib.config")
    if config is not None and isinstance(error, config.ConfigError):
        return 2
    if "torch" not in sys.modules:  # then none of the modules below has raised it
        return None
    import torch

    from nclib import data, training
    from nclib.engine import cluster, runs, store

    if isinstance(error, (data.DataError, cluster.ClusterError)):
        return 2
    failed = (runs.RunsFailed, runs.MissingRuns, store.CorruptRun, training.TrainingDiverged, torch.OutOfMemoryError)
    return 1 if isinstance(error, failed) else None


def _say_error(message: str) -> None:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)


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
runs_app = typer.Typer(help="The runs stored on this machine.", no_args_is_help=True)
data_app = typer.Typer(help="The data sets: digits, digit_pairs, cifar10, … or folder:PATH.", no_args_is_help=True)
app.add_typer(runs_app, name="runs")
app.add_typer(data_app, name="data")


def main() -> None:
    """Entry point of the ``nclib`` command."""
    _open_streams()
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
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        typer.echo(sys.modules["nclib"].__version__)
        raise typer.Exit


# --- reproduce and train --------------------------------------------------------------------------------------

Names = Annotated[
    list[str] | None,
    typer.Argument(help="paper/notebook, a bare name of the main paper, or a folder for all of it. None: everything."),
]
ProfileName = Annotated[str, typer.Option(help="Size of everything: smoke, quick, lite, full or paper.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Notebook parameter, such as epochs=3. Repeatable."),
]


@app.command()
def reproduce(
    names: Names = None,
    profile: ProfileName = "quick",
    parameter: Settings = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Runs trained at once on this machine; left out: one a core, on GPUs what fits."),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Train on this Dask cluster: tls://…, or its scheduler file.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where the local scheduler listens; left out: on this machine alone."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="That scheduler without TLS: whoever reaches it can run code as you.")
    ] = False,
    train: Annotated[
        str, typer.Option(help="missing: train what is not stored. never: use what there is.")
    ] = "missing",
    minutes: Annotated[
        float | None,
        typer.Option(help="Train for no longer, one seed of everything before the next; the same command goes on."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Execute notebooks that are unchanged, too.")] = False,
    site: Annotated[bool, typer.Option("--report/--no-report", help="Make the web site at the end.")] = True,
) -> None:
    """Regenerate figures and tables: train the missing runs, execute the notebooks, say what happened."""
    from nclib.reproduce import regenerate

    summary = regenerate.reproduce(
        names or (), profile, parameter or (), workers, train, force, scheduler, host, minutes, insecure
    )
    complete = _site_after(profile, summary.parameters) if site else True
    raise typer.Exit(0 if summary.ok and complete else 1)


def _site_after(profile: str, parameters: Mapping[str, Any]) -> bool:
    """Make the site of what was just reproduced; False when that failed. Notebooks do without Sphinx, and so without a
    site: then it is only said."""
    from nclib.publish.site import build
    from nclib.reproduce import regenerate
    from nclib.system import other_parameters

    try:
        with regenerate.terminable(), other_parameters.results_with(other_parameters.folder_name(parameters)):
            build.build(profile)
    except build.ReportError as error:
        if isinstance(error, build.SphinxMissing):
            typer.echo(f"no web site: {error}")
            return True
        _say_error(f"no web site: {error}")
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
    from nclib.publish.site.build import build
    from nclib.reproduce import regenerate
    from nclib.system import other_parameters

    given = regenerate.given_values(regenerate.select(), parameter or ()) if parameter else {}
    with (
        regenerate.terminable(),
        other_parameters.results_with(other_parameters.folder_name(other_parameters.other_values(given.values()))),
    ):
        build(profile, force)


@app.command()
def train(
    dataset: Annotated[str | None, typer.Option(help="Name of a data set, or folder:PATH.")] = None,
    model: Annotated[
        str | None, typer.Option(help="explicit, deq, explicit_matched, weight_tied, explicit_flops.")
    ] = None,
    K_A: Annotated[int | None, typer.Option("--K_A", "--num-majority", help="Number of majority classes.")] = None,
    R: Annotated[float | None, typer.Option("--R", "--ratio", help="Imbalance n_A / n_B; goes with K_A.")] = None,
    n_max: Annotated[int | None, typer.Option(help="Images of a majority class, n_A.")] = None,
    width: Annotated[
        int | None, typer.Option(help="Channels of the first stage; features have 8 times as many.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Subset, initialisation and order.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Protocol: workable, or paper for the literal one.")] = None,
    epochs: Annotated[int | None, typer.Option()] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
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
    """Train one network, or find it trained, and print its run id and final metrics."""
    from nclib import data
    from nclib.config import run_id
    from nclib.engine import jobs
    from nclib.engine.reference import load_run
    from nclib.engine.store import default_store
    from nclib.papers import captions
    from nclib.reproduce import regenerate

    given = {
        "data.dataset": dataset,
        "data.num_majority": K_A,
        "data.ratio": R,
        "data.n_max": n_max,
        "model.kind": model,
        "model.width": width,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "seed": seed,
    }
    run = build_config(config, recipe, {key: value for key, value in given.items() if value is not None}, options or ())
    with regenerate.terminable():
        data.fetch(run.data.dataset)
        regenerate.check_runs([run])
        typer.echo(f"run {run_id(run)}")
        typer.echo(captions.describe_runs([run]))
        if default_store().has(run_id(run)):
            typer.echo("stored already, nothing to train")
        elif default_store().busy(run_id(run)):
            typer.echo("another process is training it; waiting for that")
        with regenerate.progress_bar("training") as progress:
            root = str(default_store().root)
            jobs.train_run(run.model_dump_json(), root, device, lambda done, of: progress(done, of, run_id(run)))
    from nclib.engine.verification import FACTORS

    metrics = final_metrics(load_run(run))
    chief = metrics["metric"].str.startswith(("accuracy", "solver", "nc4")) | metrics["metric"].isin(list(FACTORS))
    _print_frame(metrics[chief])
    for said in load_run(run).provenance.get("warnings", []):
        typer.echo(f"warning: {said}")
    typer.echo(f"everything about it: nclib runs show {run_id(run)}")


def build_config(
    file: Path | None, recipe_name: str | None, given: Mapping[str, Any], settings: Sequence[str]
) -> RunConfig:
    """The configuration that a file, a recipe and options describe, each overruling the one before.

    given: dotted keys and values; settings: "dotted.key=value" texts, values in YAML.
    K_A or R choose step imbalance where nothing else is said. A folder is resolved from the working directory.
    Raises: ConfigError, for an unknown key with the nearest right one; DataError for an unusable folder.
    """
    from nclib import data
    from nclib.config import AUGMENTATION, RECIPES, ConfigError, RunConfig, suggest
    from nclib.reproduce import regenerate

    tree: dict[str, Any] = {}
    if file is not None:
        tree = _read_config(file)
    if recipe_name is not None:
        if recipe_name not in RECIPES:
            raise ConfigError(suggest(recipe_name, RECIPES, "recipe"))
        for key, value in RECIPES[recipe_name].items():
            _put(tree, f"train.{key}", value)
        if recipe_name in AUGMENTATION:
            _put(tree, "data.augment", AUGMENTATION[recipe_name])
    values = dict(given)
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals:
            raise ConfigError(f"{text!r} is no assignment; write key=value, for instance train.momentum=0.8")
        values[key] = _number(regenerate.yaml_value(value))
        try:
            json.dumps(values[key], default=str)
        except (TypeError, ValueError, RecursionError) as error:  # YAML can hold more than JSON
            raise ConfigError(f"option {key} cannot hold such a value ({error})") from None
    if {"data.num_majority", "data.ratio"} & set(values):
        data_tree = tree.get("data")
        values.setdefault("data.imbalance", (data_tree if isinstance(data_tree, dict) else {}).get("imbalance", "step"))
    for key, value in values.items():
        _put(tree, key, value)
    if isinstance(tree.get("data"), dict) and isinstance(tree["data"].get("dataset"), str):
        tree["data"]["dataset"] = data.resolve_dataset(tree["data"]["dataset"])
    return RunConfig.from_json(json.dumps(tree, default=str))


def _read_config(file: Path) -> dict[str, Any]:
    from nclib.config import ConfigError, parse_json

    try:
        text = file.read_text(encoding="utf-8")
    except ValueError as error:
        raise ConfigError(f"{file.name} is not valid JSON ({error})") from None
    content = parse_json(text, file.name)
    if "schema" not in content:  # bare, not as a run stores it
        return content
    if not isinstance(content.get("config"), dict):
        raise ConfigError(f"{file.name} has a schema, as a stored run's config.json, but no object 'config'")
    return content["config"]


def _number(value: Any) -> Any:
    """YAML takes 1e-4 for a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    from nclib.config import ConfigError

    *groups, last = key.split(".")
    for group in groups:
        if tree.get(group) is None:
            tree[group] = {}
        tree = tree[group]
        if not isinstance(tree, dict):
            raise ConfigError(f"{key}: {group} is a value and has no options")
    tree[last] = value


def final_metrics(run: StoredRun) -> pd.DataFrame:
    """The last logged value of every metric of a run: metric, then one column for each split."""
    from nclib.engine.verification import final_values

    return final_values(run).unstack("split").reset_index().rename_axis(columns=None)


# --- measure --------------------------------------------------------------------------------------------------


@app.command()
def measure(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION|FILE.npz",
            help="A function without arguments that returns (model, loader), or arrays h and labels, logits and w.",
        ),
    ],
    layer: Annotated[
        list[str] | None, typer.Option(help="Name of a layer; left out: the classifier's input and every block.")
    ] = None,
    classes: Annotated[int | None, typer.Option("--num-classes", help="K; left out: found from the network.")] = None,
    pool: Annotated[str, typer.Option(help="mean or flatten: how a feature map becomes a vector.")] = "mean",
    per_class: Annotated[bool, typer.Option("--per-class", help="Add rows for each class.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table there too.", dir_okay=False)] = None,
) -> None:
    """Neural collapse in the layers of your own network, or of saved features. Code of MODULE runs, from this folder
    too."""
    import pandas as pd

    from nclib import measuring
    from nclib.config import ConfigError

    try:
        if source.endswith(".npz"):
            if layer or per_class or pool != "mean":
                raise ValueError("--layer, --pool and --per-class are for a network; a file holds one layer")
            report = measuring.measure_file(source, classes)
            table = pd.DataFrame(report.items(), columns=["metric", "value"])
        else:
            model, loader = _model_and_loader(source)
            table = measuring.measure(model, loader, layer, classes, pool, per_class)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if csv is not None:
        table.to_csv(csv, index=False)
    if "layer" in table:
        index = ["metric", "class"] if per_class else "metric"
        order = table["layer"].unique()
        table = table.pivot_table(index=index, columns="layer", values="value", sort=False, dropna=False)[order]
        table = table.reset_index().rename_axis(columns=None)
    _print_frame(table)


def _model_and_loader(source: str) -> tuple[Any, Any]:
    from importlib import import_module

    module, colon, name = source.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(f"{source!r} is neither MODULE:FUNCTION, such as my_net:load, nor a file that ends in .npz")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.split(".")[0]):
            raise
        raise ValueError(f"there is no module {module!r} here or among the installed packages") from None
    finally:
        sys.path.remove(os.getcwd())
    if not callable(function):
        raise ValueError(f"{module} has no function {name!r}")
    found = function()
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(f"{source} must return (model, loader), got {type(found).__name__}")
    return found


# --- runs -----------------------------------------------------------------------------------------------------

RunName = Annotated[str, typer.Argument(help="A run id, or a beginning of it that fits no other.")]


@runs_app.command("list")
def list_runs(text: Annotated[str, typer.Argument(help="Only ids that contain this.")] = "") -> None:
    """Finished runs with date and size, and how far the unfinished ones are."""
    from nclib.engine.store import default_store

    store = default_store()
    for run in (run for run in store.ids() if text in run):
        try:
            size = sum(path.lstat().st_size for path in (store.root / run).iterdir())
            when = datetime.fromtimestamp((store.root / run / "DONE").stat().st_mtime)
        except OSError as error:
            typer.echo(f"cannot be read ({error.strerror})  {run}")
            continue
        typer.echo(f"{when:%Y-%m-%d %H:%M} {size / 1e6:8.1f} MB  {run}")
    for folder in sorted(store.root.glob("*.partial")):
        run = folder.name.removesuffix(".partial")
        if text in run:
            typer.echo(f"unfinished       {100 * store.progress(run):8.0f} %   {run}")
    if not store.ids():
        typer.echo(f"no finished runs in {store.root}", err=True)


@runs_app.command("check")
def check_runs() -> None:
    """Read every stored run and compare it with its checksums; what is damaged is named and set aside."""
    from nclib.engine.store import default_store

    found = dict(default_store().check())
    damaged = {run: reason for run, reason in found.items() if reason}
    for reason in damaged.values():
        typer.echo(reason)
    typer.echo(f"{len(found) - len(damaged)} of {len(found)} runs are sound")
    raise typer.Exit(1 if damaged else 0)


@runs_app.command()
def show(run: RunName) -> None:
    """Configuration, circumstances and final metrics of one run."""
    from nclib.engine.reference import load_run, reference_store
    from nclib.engine.store import default_store

    known = default_store().ids() + reference_store().ids()
    stored = load_run(_complete(run, known))
    typer.echo(f"run {stored.run_id}")
    typer.echo(json.dumps({"config": _without_nothing(stored.config), "provenance": stored.provenance}, indent=1))
    _print_frame(final_metrics(stored))


@runs_app.command()
def remove(
    runs: Annotated[list[str], typer.Argument(help="Run ids, or beginnings that fit no other.", metavar="RUN...")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs for good; they can only be trained again."""
    from nclib.engine.store import default_store

    store = default_store()
    unfinished = [path.name.removesuffix(".partial") for path in store.root.glob("*.partial")]
    chosen = [_complete(run, [*store.ids(), *unfinished]) for run in runs]
    for run in dict.fromkeys(chosen):
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
    from nclib.reproduce import regenerate

    _, configs = regenerate.prepare(regenerate.select(names or ()), profile, parameter or ())
    for run in runs.export_reference(list(configs.values()), collection or profile, finished):
        typer.echo(run)


def _complete(typed: str, known: Iterable[str]) -> str:
    """The one run whose id is, or begins with, what was typed."""
    from nclib.config import ConfigError, suggest

    known = sorted(set(known))
    fitting = [typed] if typed in known else [run for run in known if run.startswith(typed)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ConfigError(f"{typed!r} fits {len(fitting)} runs: {', '.join(fitting[:5])}{', …' * (len(fitting) > 5)}")
    if not known:
        raise ConfigError(f"there is no run {typed!r}: none is stored here yet")
    raise ConfigError(
        suggest(typed, known, "run") if len(known) <= 20 else f"no run begins with {typed!r}; see nclib runs list"
    )


def _without_nothing(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the options that do not apply."""
    return {
        key: _without_nothing(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if value is not None
    }


# --- data -----------------------------------------------------------------------------------------------------

DatasetName = Annotated[
    str, typer.Argument(help="digits, digit_pairs, cifar10, cifar100, mnist, fashion_mnist or folder:PATH.")
]


@data_app.command()
def fetch(name: DatasetName) -> None:
    """Download a data set, or decode a folder, and verify it."""
    from nclib import data
    from nclib.reproduce import regenerate

    with regenerate.terminable():
        typer.echo(f"{data.fetch(name)}: complete")


@data_app.command()
def check(name: DatasetName) -> None:
    """Compare a data set's files with their checksums; changes nothing."""
    from nclib import data

    states = data.check(name)
    for file, state in states.items():
        typer.echo(f"{state:8} {file}")
    if all(state == "ok" for state in states.values()):
        return
    typer.echo(f"not complete; to get it: nclib data fetch {name}", err=True)
    raise typer.Exit(1)


@data_app.command()
def describe(name: DatasetName) -> None:
    """Classes, images, sizes and place of a data set."""
    from nclib import data

    for key, value in data.describe(name).items():
        typer.echo(f"{key:12} {_brief(value)}")


def _brief(value: Any) -> str:
    if not isinstance(value, (list, tuple)) or not value:
        return str(value)
    if all(isinstance(item, int) for item in value) and len(value) > 3:
        spread = str(value[0]) if len(set(value)) == 1 else f"{min(value)} to {max(value)}"
        return f"{sum(value)} images, {spread} in each of {len(value)} classes"
    return ", ".join(map(str, value)) if len(value) <= 10 else f"{', '.join(map(str, value[:3]))}, … ({len(value)})"


# --- doctor ---------------------------------------------------------------------------------------------------


@app.command()
def doctor() -> None:
    """What this installation is, what it finds, and what each profile will cost here."""
    import torch

    from nclib import data, training
    from nclib.reproduce import regenerate
    from nclib.system import paths, provenance

    here = provenance.capture(training.default_device())
    _facts(
        {
            "python": f"{here['python']} at {sys.executable}",
            "kernel": _kernel(),
            "versions": ", ".join(f"{name} {version}" for name, version in here["versions"].items()),
            "machine": f"{here['platform']}, {here['cpu']}, {here['cores']} usable cores",
            "bfloat16": f"{here['bfloat16']}, used by profile full" if here["bfloat16"] else "not on this processor",
            "device": ", ".join(str(value) for value in here["device"].values() if value is not None),
            "threads": f"{torch.get_num_threads()} here, 1 in each of {regenerate.default_workers()} trainings at once "
            f"(OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})",
            "project": paths.root(),
            "data": paths.data(),
            "results": f"{paths.results()}, {_free_gigabytes(paths.results()):.0f} GB free",
        }
    )
    typer.echo("\ndata sets")
    _facts({f"  {name}": _found(name) for name in data.DATASETS})
    typer.echo("\nprofiles (one core's time, estimated; runs already stored cost nothing)")
    _facts(_costs(regenerate.default_workers()))


def _facts(facts: Mapping[str, Any]) -> None:
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:{width}}  {value}")


def _kernel() -> str:
    """The Python that notebooks will run in, and whether it is this one."""
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")  # as `reproduce` has it
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        return 'Jupyter is not installed; notebooks need it: pip install "nclib[notebooks]"'
    try:
        python = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        return f"no kernel 'python3' is installed: {sys.executable} -m ipykernel install --sys-prefix"
    if python in ("python", "python3") or Path(python).absolute() == Path(sys.executable).absolute():
        return "python3, this Python"
    return f"python3 runs {python}, not this Python: {sys.executable} -m ipykernel install --sys-prefix"


def _free_gigabytes(folder: Path) -> float:
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free / 1e9


def _found(name: str) -> str:
    from nclib import data

    try:
        facts = data.describe(name)
    except data.DataError as error:
        return str(error)
    return f"found, {facts['where']}" if facts["present"] else f"not here; to get it: nclib data fetch {name}"


def _costs(workers: int) -> dict[str, str]:
    from nclib.engine import profiles, runs
    from nclib.papers import experiments
    from nclib.reproduce import regenerate

    costs = {}
    for profile in profiles.PROFILES:
        wanted = [config for name in experiments.known() for config in experiments.experiment(name, profile)]
        plan = runs.plan(wanted)
        lacking = plan[plan["state"] != "stored"]
        total, left = plan["seconds"].sum(), lacking["seconds"].sum()
        costs[f"  {profile}"] = (
            f"{len(plan)} runs, {regenerate.duration(total)}; still to train: {len(lacking)}, "
            f"{regenerate.duration(left)}, with {workers} at once {regenerate.duration(left / workers)}"
        )
    return costs


# --- verify ---------------------------------------------------------------------------------------------------


@app.command()
def verify(
    profile: Annotated[str | None, typer.Option(help="Only runs first asked for by this profile.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Print every setting, not only those that are not ok.")] = False,
) -> None:
    """Tell a broken installation from a finding.

    First closed forms that solver, equilibrium layer and metrics must hit on any machine. Then the runs that are both
    stored here and among the tracked reference results: the same configuration must give the same result, on the mean
    over all runs nearly, setting by setting up to the spread over seeds. Runs with other options are not compared: what
    they show is a finding.
    """
    from nclib.engine import profiles, verification

    if profile is not None:
        profiles.get_profile(profile)
    checks = verification.self_checks()
    _print_frame(checks)
    found = verification.compare_with_reference(profile)
    if found.runs:
        _print_comparison(found, every)
    missed = [name for name, table in _comparisons(found).items() if not table["ok"].all()]
    sound = bool(checks["ok"].all())
    typer.echo(f"\n{_verdict(sound, missed, found.runs)}")
    raise typer.Exit(0 if sound and not missed else 1)


def _comparisons(found: Comparison) -> dict[str, pd.DataFrame]:
    return {"mean shifts": found.shifts, "setting by setting": found.settings}


def _print_comparison(found: Comparison, every: bool) -> None:
    typer.echo(f"\n{found.runs} runs stored here and in the reference, {found.identical} of them equal to the bit")
    shifts, settings = _comparisons(found)
    typer.echo(f"\n{shifts}: here − reference of accuracies, log(here/reference) of other metrics, mean over runs")
    if found.shifts.empty:
        typer.echo("too few runs of each arm for that")
    else:
        _print_frame(found.shifts.round(4))
    typer.echo(f"\n{settings}: means over seeds")
    close = found.settings["ok"]
    if every or not close.all():
        _print_frame(found.settings if every else found.settings[~close])
    typer.echo(f"{close.sum()} of {len(close)} means ok" + ("" if every else "; verify --all prints every one"))


def _verdict(sound: bool, missed: Sequence[str], runs: int) -> str:
    """What `verify` concludes from closed forms, the comparisons that are not ok, and how many runs were compared."""
    if not sound:
        return "broken install: closed forms are missed, so no result of this installation can be trusted"
    if missed:
        return (
            "broken install: the closed forms hold, but the same configurations give other results than the "
            f"reference (not ok: {', '.join(missed)})"
        )
    if not runs:
        return (
            "nothing to compare: no run is both stored here and in the reference. The closed forms hold, so the "
            "library works; train some with nclib reproduce and verify again"
        )
    return "sound: closed forms hold and the reference is reproduced. Results of other runs are findings"


def _print_frame(frame: pd.DataFrame) -> None:
    """A table as wide as its content needs, numbers with four digits."""
    shown = frame.map(lambda value: f"{value:.4g}" if isinstance(value, float) else str(value))
    typer.echo(shown.replace("nan", "–").to_string(index=False))


# --- certify --------------------------------------------------------------------------------------------------


@app.command("certify")
def certify_statements(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Statements. None: all of them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of lines.")] = False,
) -> None:
    """Check what is said about the papers' statements: computations in fractions, and instances of the proofs.

    The proofs stand in the source, beside the certificates.

    Prints one line a statement: whether its certificate is ok, id, place in the paper, the statement, the verdict, what
    was checked, and the reading. Exits with 1 when a certificate fails. Needs only the standard library; certificates
    that need sympy are left out where it is not installed, and named.
    """
    from nclib.papers import certify

    results = certify.certify(ids or None)
    typer.echo(certify.as_json(results) if as_json else certify.as_text(results))
    failed = [result.id for result in results if not result.ok]
    missing = [] if ids else certify.left_out()
    typer.echo(f"{len(results) - len(failed)} of {len(results)} certificates ok", err=as_json)
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
    if missing:
        typer.echo(f"left out, because sympy is not installed (pip install sympy): {', '.join(missing)}", err=True)
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    main()
