"""Headless regeneration: parameters checked, missing runs trained, notebooks executed, one table of what happened.

The order is the promise: everything that can be refused is refused before the first run is trained; a run or a notebook
that fails stops only what needs it; what is unchanged is not done again. A notebook's figures and tables are those
that it saves under its own name, ``paper/notebook`` or ``paper/notebook_…``.

papermill, the data sets and everything that imports torch are loaded inside functions: the processes that execute
notebooks need none of it, and each would pay seconds for it.
"""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import errno
import hashlib
import io
import json
import logging
import math
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nclib.system import other_parameters, paths, processes, provenance
from nclib.system.provenance import duration

if TYPE_CHECKING:
    import pandas as pd

    from nclib.config import ConfigError, StoredConfig

MAIN_PAPER = "neural_collapse"
"""The folder that a bare notebook name refers to."""

SUMMARIES = ("neural_collapse/scorecard",)
"""Notebooks made from what the others wrote: executed last, and again whenever one of those tables changed."""

CELL_TIMEOUT = 12 * 3600
"""Seconds that one cell may take. Runs are trained before the notebooks, so only a hanging cell gets there."""

_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
_KERNEL_START_SECONDS = 300  # a kernel starts in two seconds; on a very busy machine it took more than papermill's 60
_LONGEST_SOCKET_FOLDER = 80  # the path of a Unix socket has room for about 100 bytes
_NOTEBOOKS_AT_ONCE = 2
_OUT_OF_TIME = "the minutes given were over; the same command goes on"
_WORTH_A_CLUSTER = 20.0  # seconds of work; to start workers, each with its own torch, costs about five
_SCRATCH = re.compile(r"-Copy\d+$|^Untitled\d*$")  # what JupyterLab calls a duplicate and a new notebook


def _refusal(message: str) -> ConfigError:
    from nclib.config import ConfigError

    return ConfigError(message)


# --- notebooks and their parameters -------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell: ``name: type = default  # help``; type is int, float, str or bool."""

    name: str
    type: type
    default: Any
    help: str


def available() -> list[str]:
    """Names of the notebooks that can be regenerated, ``paper/notebook``: the main paper's first, numbers in order.

    Notebooks that lie directly in ``notebooks/`` (the index, the laboratory) are for reading and playing only, and so
    are JupyterLab's copies, which would overwrite the figures of their originals.
    """
    found = [path.relative_to(paths.notebooks()) for path in paths.notebooks().glob("[!.]*/[!.]*.ipynb")]
    names = (path.with_suffix("").as_posix() for path in found if not _SCRATCH.search(path.stem))
    return sorted(names, key=_reading_order)


def _reading_order(name: str) -> list[Any]:
    paper, _, rest = name.partition("/")
    numbered = [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", rest)]
    return [paper != MAIN_PAPER, paper, numbered]


def source(name: str) -> Path:
    """The notebook file of a name ``paper/notebook``."""
    return paths.notebooks() / f"{name}.ipynb"


def select(names: Iterable[str] = ()) -> list[str]:
    """The notebooks meant by names as a user types them.

    names: "paper/notebook"; a bare name is the main paper's; a folder's name is all of it; no names are all
        notebooks. A path such as ``notebooks/paper/notebook.ipynb`` is understood too.
    Returns: full names without repetition, in the order asked for.
    Raises: ConfigError for an unknown name, with the nearest right one.
    """
    known, chosen = available(), []
    folders = {name.split("/")[0] for name in known}
    for typed in names:
        name = typed.removeprefix("./").removeprefix("notebooks/").removesuffix(".ipynb").rstrip("/")
        full = name if "/" in name else f"{MAIN_PAPER}/{name}"
        if name in folders:
            chosen += [other for other in known if other.startswith(f"{name}/")]
        elif full in known:
            chosen.append(full)
        else:
            raise _refusal(_unknown_notebook(name, known, folders))
    return list(dict.fromkeys(chosen if names else known))


def _unknown_notebook(name: str, known: list[str], folders: set[str]) -> str:
    from nclib.config import suggest

    if not known:
        return f"there is no notebook in the folders of {paths.notebooks()}"
    bare = {full.removeprefix(f"{MAIN_PAPER}/") for full in known}
    return suggest(name, known if "/" in name else bare | folders, "notebook")


def parameters(path: Path) -> dict[str, Parameter]:
    """The parameters a notebook declares, read from its source without running it.

    path: a notebook with at most one code cell tagged ``parameters``; without one it has no parameters.
    Returns: name to `Parameter`, in the order of the cell.
    Raises: ConfigError naming the line that is not one annotated plain literal: a value that is derived, or a
        second statement on the line, would keep the default when another value is injected below the cell.
    """
    tagged = [cell for cell in _cells(path) if "parameters" in cell.get("metadata", {}).get("tags", [])]
    if len(tagged) > 1:
        raise _refusal(f"{path.name} has {len(tagged)} cells tagged 'parameters'; keep one")
    text = _text(tagged[0]) if tagged else ""
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise _refusal(f"{path.name}: line {error.lineno} of the parameters cell is no Python ({error.msg})") from None
    comments, found, last = _comments(text), {}, 0
    for statement in statements:
        parameter = _parameter(statement, comments)
        if parameter is None or statement.lineno == last or parameter.name in found:
            line = text.splitlines()[statement.lineno - 1]
            raise _refusal(
                f"{path.name}: line {statement.lineno} of the parameters cell, {line!r}, is not of the form "
                f"'name: type = literal  # help', one to a line, each name once; types are {', '.join(_TYPES)}"
            )
        found[parameter.name], last = parameter, statement.lineno
    return found


def _cells(path: Path) -> list[dict[str, Any]]:
    try:
        return json.loads(paths.content(path))["cells"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refusal(f"{path.name} is no notebook that can be read ({type(error).__name__}: {error})") from None


def _text(cell: Mapping[str, Any]) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def _comments(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def _parameter(statement: ast.stmt, comments: Mapping[int, str]) -> Parameter | None:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id=kind), value=ast.expr() as value):
            pass
        case _:
            return None
    if kind not in _TYPES or statement.end_lineno != statement.lineno:
        return None
    try:
        default = ast.literal_eval(value)
    except ValueError:
        return None
    return Parameter(name, _TYPES[kind], default, comments.get(statement.lineno, "")) if _fits(default, kind) else None


def _fits(value: Any, kind: str) -> bool:
    """Whether a value may stand where a type is declared: an integer may be a float, a truth value is no number."""
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, (int, float) if kind == "float" else _TYPES[kind])


def parse_overrides(texts: Sequence[str], notebooks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Values typed as ``name=value``, checked against what the notebooks declare.

    texts: "epochs=3", "lr=1e-3", "dataset=folder:PATH", …; values are YAML, of the declared type.
    notebooks: full names; a value reaches those that declare its name, and at least one must.
    Returns: for each notebook, the values to inject.
    Raises: ConfigError for a text that is no assignment, an unknown name (with the nearest right one), a name
        given twice or set by another option, and a value of the wrong type.
    """
    from nclib.config import suggest

    declared = {name: parameters(source(name)) for name in notebooks}
    known = {name for found in declared.values() for name in found}.difference(other_parameters.SET_BY_THE_COMMAND)
    given: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise _refusal(f"{text!r:.200} is no assignment; write name=value, for instance epochs=3")
        if name in other_parameters.SET_BY_THE_COMMAND:
            raise _refusal(f"{name} is no parameter to pass this way; use the option --{name}")
        if name not in known:
            if not known:
                raise _refusal(f"unknown parameter {name!r}: the selected notebooks have none")
            raise _refusal(suggest(name, known, "parameter"))
        if name in given:
            raise _refusal(f"parameter {name} is given twice, as {given[name]!r} and {value!r}")
        given[name] = value
    return {
        notebook: {name: _value(text, found[name], notebook) for name, text in given.items() if name in found}
        for notebook, found in declared.items()
    }


def given_values(notebooks: Sequence[str], texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """As `parse_overrides`, with data sets under their full names, and without values that are a notebook's own.

    Raises: ConfigError, DataError.
    """
    from nclib import data

    resolved: dict[str, str] = {}
    given = {}
    for name, values in parse_overrides(texts, notebooks).items():
        declared = parameters(source(name))
        given[name] = {key: value for key, value in values.items() if value != declared[key].default}
        if typed := given[name].get("dataset"):
            resolved[typed] = resolved.get(typed) or data.resolve_dataset(typed, base=Path.cwd())
            given[name]["dataset"] = resolved[typed]
    return given


def yaml_value(text: str) -> Any:
    """What a text means in YAML; the text itself where it means nothing there."""
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: the 99th of a month, a number of 5,000 digits
        return text


def _value(text: str, parameter: Parameter, notebook: str) -> Any:
    kind = parameter.type.__name__
    value = yaml_value(text)
    if kind == "str" and not isinstance(value, str):
        value = text  # YAML reads 'on' or '7' as something else than the name that was typed
    if kind == "float" and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)  # YAML takes 1e-3 for a text
    if not _fits(value, kind):
        raise _refusal(f"parameter {parameter.name} of {notebook} must be {kind}, got {text!r:.200}")
    try:
        return parameter.type(value)
    except OverflowError:
        raise _refusal(f"parameter {parameter.name} of {notebook} is too large for a {kind}: {text!r:.50}") from None


# --- one notebook -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Execution:
    """How executing one notebook went: how long it took, what went wrong, and the digest of each file it left behind,
    by name relative to the profile's folder."""

    seconds: float
    error: str = ""
    files: dict[str, str] = field(default_factory=dict)


def executed(name: str, profile: str) -> Path:
    """Where the executed notebook of a profile lies."""
    return paths.results(profile) / "notebooks" / f"{name}.ipynb"


def _failed(name: str, profile: str) -> Path:
    return executed(name, profile).with_suffix(".failed.ipynb")


def execute(name: str, values: Mapping[str, Any], profile: str, timeout: float = CELL_TIMEOUT) -> Execution:
    """Run one notebook headless, top to bottom, in a kernel of this Python and in the notebook's own folder.

    name: "paper/notebook". values: parameters to inject, already checked. timeout: seconds for each cell.
    Returns: an `Execution`; nothing is raised for what happens inside the notebook.
    The result is moved to `executed` when complete; a failed notebook is kept beside it as ``<name>.failed.ipynb``
    and leaves an earlier complete one alone.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)  # it doubts parameters that are checked already

    clock, error, files, before = time.monotonic(), "", {}, _sidecars(profile)
    with tempfile.TemporaryDirectory(prefix="nclib-", ignore_cleanup_errors=True) as folder:
        written = Path(folder) / "notebook.ipynb"
        try:
            papermill.execute_notebook(
                source(name),
                written,
                parameters=dict(values),
                kernel_name="python3",
                cwd=source(name).parent,
                progress_bar=False,
                log_output=False,
                start_timeout=_KERNEL_START_SECONDS,
                execution_timeout=timeout,
                coalesce_streams=True,
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
                config=_transport(folder),
            )
        except PapermillExecutionError as fault:
            error = _short(f"{fault.ename}: {fault.evalue.strip()}", f"cell {fault.exec_count}")
        except Exception as fault:  # a kernel that died or did not start, a cell beyond its time
            error = _short(f"{type(fault).__name__}: {fault}")
        if written.exists():
            digest = _publish(written, name, profile, failed=bool(error))
            files = {} if error else _files(name, profile, before, digest)
    return Execution(time.monotonic() - clock, error, files)


def _transport(folder: str) -> Any:
    """Sockets in a folder of this execution: TCP ports chosen by two kernels at once can be the same one."""
    from traitlets.config import Config

    if os.name != "posix" or len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        return Config()
    return Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})


def _short(message: str, where: str = "") -> str:
    first = next((line.strip() for line in message.splitlines() if line.strip()), "no message")
    return (first if len(first) <= 300 else f"{first[:300]}…") + (f" ({where})" if where else "")


def _publish(written: Path, name: str, profile: str, failed: bool) -> str:
    """Move a notebook to its place, complete or not at all, without the paths of this machine that papermill notes;
    returns the digest of what is there now."""
    from nclib.system.files import write_atomic

    notebook = json.loads(written.read_text(encoding="utf-8"))
    target = _failed(name, profile) if failed else executed(name, profile)
    notes = notebook["metadata"].get("papermill", {})
    notes |= {"input_path": f"notebooks/{name}.ipynb", "output_path": target.name}
    content = (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()
    write_atomic(target, content)
    if not failed:
        _failed(name, profile).unlink(missing_ok=True)
    return _sha256(content)


# --- what is unchanged --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One notebook of a call: the values to inject, those in force that choose its runs, and the runs' ids."""

    name: str
    values: dict[str, Any]
    settings: dict[str, Any]
    runs: tuple[str, ...]


def _stamp(name: str, profile: str) -> Path:
    return executed(name, profile).with_suffix(".json")


def _key(task: Task, marks: Mapping[str, str], profile: str) -> str:
    """Changes with all that the results depend on: cells, parameters, runs, the library, the printed values and, for a
    summary, the tables of the notebooks it sums up."""
    cells = [(cell["cell_type"], _text(cell)) for cell in _cells(source(task.name))]
    values = {name: value for name, value in task.values.items() if name != "train"}
    runs = {run: marks.get(run, "") for run in task.runs}
    parts: list[Any] = [cells, values, runs, _library()]
    if task.name in SUMMARIES:
        folder, own = task.name.split("/")
        tables = sorted((paths.results(profile) / "tables" / folder).glob("*.csv"))
        summed = [path for path in tables if path.is_file() and not path.stem.startswith(own)]
        parts.append({path.name: _sha256(path.read_bytes()) for path in summed})
    return _sha256(json.dumps(parts, sort_keys=True).encode())


def _library() -> str:
    """Digest of the sources a notebook can call and of the published numbers it can show."""
    package = Path(__file__).resolve().parents[1]
    beside = ("cli/commands.py", "reproduce/regenerate.py", "publish/site/")  # no notebook can call them
    modules = [path for path in package.rglob("*.py") if not path.relative_to(package).as_posix().startswith(beside)]
    tables = paths.published().glob("**/*.csv")
    return provenance.digest([*sorted(modules), *sorted(tables)])


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _unchanged(task: Task, profile: str, key: str) -> list[str] | None:
    """The files of an earlier execution with this key, if every one is still what was written; else None."""
    try:
        stamp = json.loads(paths.content(_stamp(task.name, profile)))
        files, folder = stamp["files"], paths.results(profile)
        whole = all(_sha256(paths.content(folder / file)) == digest for file, digest in files.items())
        return sorted(files) if whole and stamp["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # absent, damaged: draw again
        return None


def _write_stamp(task: Task, profile: str, key: str, files: Mapping[str, str]) -> None:
    from nclib.system.files import write_atomic

    content = {"key": key, "files": dict(sorted(files.items()))}
    write_atomic(_stamp(task.name, profile), json.dumps(content, indent=1) + "\n")


def _sidecars(profile: str) -> dict[Path, tuple[int, int]]:
    """The sidecars there are, and what changes when one is written anew, whatever the clock says."""
    folder = paths.results(profile)
    found = {path: path.stat() for kind in ("figures", "tables") for path in folder.glob(f"{kind}/**/*.json")}
    return {path: (about.st_ino, about.st_mtime_ns) for path, about in found.items()}


def _files(name: str, profile: str, before: Mapping[Path, tuple[int, int]], notebook: str) -> dict[str, str]:
    """What an execution left behind, by name relative to the profile's folder: the notebook, its figures and tables,
    each with the digest of what was written, which its record holds: by now the file may be somebody else's.

    before: `_sidecars` from before it. notebook: digest of the executed notebook.
    """
    folder, names, found = paths.results(profile), available(), {executed(name, profile): notebook}
    for sidecar, state in _sidecars(profile).items():
        artefact = sidecar.relative_to(folder).with_suffix("").as_posix().partition("/")[2]
        owners = [other for other in names if re.fullmatch(rf"{re.escape(other)}([_./-].*)?", artefact)]
        if max(owners, key=len, default=None) == name and before.get(sidecar) != state:
            record = paths.content(sidecar)
            found[sidecar] = _sha256(record)
            found |= {sidecar.with_name(file): about["sha256"] for file, about in json.loads(record)["files"].items()}
    return {path.relative_to(folder).as_posix(): digest for path, digest in found.items()}


# --- all of it ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One notebook in the summary. A run that several notebooks share counts as trained in the first of them.

    status: "executed", "unchanged", "failed", or "unfinished" where all that it lacks is runs there was no time for.
    files: relative to ``results/<profile>/``, or for other parameters to ``results/<profile>/with/<parameters>/``.
    """

    notebook: str
    status: Literal["executed", "unchanged", "failed", "unfinished"]
    seconds: float
    runs_trained: int
    runs_reused: int
    files: list[str] = field(default_factory=list)
    message: str = ""


@dataclass(frozen=True)
class Summary:
    """What one call of `reproduce` did; ``summary.json`` beside its notebooks holds the same.

    parameters: those that are not the profile's own.
    training: how long it took, see `nclib.engine.costs.Forecast.as_dict`; None when nothing was trained.
    """

    profile: str
    parameters: dict[str, Any]
    rows: list[Row]
    failed_runs: dict[str, str]
    seconds: float
    training: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether every notebook is there."""
        return all(row.status in ("executed", "unchanged") for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, the rows under "notebooks"."""
        content = asdict(self)
        return {"ok": self.ok, "notebooks": content.pop("rows"), **content}

    def text(self, width: int | None = None) -> str:
        """The table as plain text, then one line for each failure.

        width: columns of text; left out: the terminal's, 120 where there is none.
        """
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD)
        for column in ("notebook", "status"):
            table.add_column(column, no_wrap=True)
        for column in ("seconds", "trained", "reused"):
            table.add_column(column, justify="right")
        table.add_column("files", overflow="fold")
        for row in self.rows:
            counts = f"{row.seconds:.1f}", str(row.runs_trained), str(row.runs_reused)
            table.add_row(row.notebook, row.status, *counts, _by_stem(row.files))
        page = io.StringIO()
        columns = width or shutil.get_terminal_size((120, 24)).columns
        console = Console(file=page, width=columns, color_system=None, markup=False, highlight=False)
        console.print(table)
        lines = [line.rstrip() for line in page.getvalue().strip("\n").splitlines()]
        lines += [f"{row.status}: {row.notebook}: {row.message}" for row in self.rows if row.message]
        return "\n".join(lines)


def _by_stem(files: Iterable[str]) -> str:
    grouped: dict[str, list[str]] = {}
    for file in files:
        stem, _, ending = file.rpartition(".")
        grouped.setdefault(stem, []).append(ending)
    return "\n".join(f"{stem} ({', '.join(sorted(endings))})" for stem, endings in grouped.items())


_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived, or SIGHUP (the terminal was closed) or SIGQUIT; treated like Ctrl-C."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.number = number


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within the block such a signal raises `Terminated`, so that it cleans up as Ctrl-C does. A second one is ignored,
    and so is one that was ignored before, as SIGHUP is under ``nohup``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    before = {each: signal.getsignal(each) for each in _ENDINGS}
    before = {each: handler for each, handler in before.items() if handler is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def progress_bar(title: str, echo: Callable[[str], None] = print) -> Iterator[Callable[[float, float, str], None]]:
    """A function to call as ``(done, total, text)``: a bar when stderr is a terminal, else a line now and then."""
    if not _is_terminal(sys.stderr):
        yield _lines(title, echo)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    both = _is_terminal(sys.stdout)
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=both) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=f"{title}: {text}")


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()  # None where it is closed


def _lines(title: str, echo: Callable[[str], None], every: float = 30.0) -> Callable[[float, float, str], None]:
    said = time.monotonic()

    def tell(done: float, total: float, text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= every:
            said = time.monotonic()
            echo(f"{title}: {100 * done / max(total, 1):.0f} % ({text})")

    return tell


def default_workers(need: float = 1.0) -> int:
    """Runs trained at once: one for each usable core; on GPUs as many as fit, see `nclib.engine.cluster.slots`.

    need: GiB of GPU memory that the largest run takes.
    """
    from nclib.engine import cluster

    return len(cluster.slots(None, _cores(), cluster.gpus(), need))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reproduce(
    names: Iterable[str] = (),
    profile: str = "quick",
    overrides: Sequence[str] = (),
    workers: int | None = None,
    train: Literal["missing", "never"] = "missing",
    force: bool = False,
    scheduler: str | None = None,
    host: str | None = None,
    minutes: float | None = None,
    insecure: bool = False,
    echo: Callable[[str], None] = print,
) -> Summary:
    """Regenerate notebooks with their figures and tables, training first what is missing.

    names: see `select`; none means every notebook.
    profile: the size, see `nclib.engine.profiles.PROFILES`.
    overrides: "name=value" texts, see `parse_overrides`; a relative ``dataset=folder:PATH`` starts at the working
        directory. Where one differs from the profile's own value, all results of the call lie in a folder of their own,
        ``results/<profile>/with/<parameters>/``.
    workers: runs trained at once, in a Dask cluster of this machine (and notebooks, up to two); left out: one a core,
        or as many on each GPU as fit, and none but this process where a cluster is not worth starting.
    train: "never" fails the notebooks whose runs are neither stored nor among the reference results.
    force: execute notebooks that are unchanged, too. Runs are never trained again for it.
    scheduler: address or scheduler file of a Dask cluster to train on instead.
    host: where the scheduler of the local cluster listens; left out: on this machine alone.
    insecure: have that scheduler without TLS, so that whoever reaches it can run code as this user.
    minutes: train for no longer than this, one seed of all notebooks before the next, in the order they are named; then
        draw the notebooks whose runs are there. The next call goes on.
    echo: receives each line that is said.
    Returns: a `Summary`, also written to ``summary.json`` among the results and said as a table at the end.
    Raises: ConfigError, DataError or ClusterError before anything is trained; KeyboardInterrupt (`Terminated` for
        SIGTERM) after all processes started here have ended. What was finished by then is kept and found by the next
        call.
    """
    from nclib.engine import profiles, runs

    clock, children = time.monotonic(), set(multiprocessing.active_children())
    if workers is not None and workers < 1:
        raise _refusal(f"workers must be at least 1, got {workers}")
    if scheduler and (workers or host):
        raise _refusal("--scheduler names a cluster with workers of its own; leave out --workers and --host")
    if insecure and not (scheduler or host):
        raise _refusal("--insecure says that others may reach the scheduler of --scheduler or --host; name one of them")
    if minutes is not None and not 0 < minutes < math.inf:
        raise _refusal(f"minutes must be a number above 0, got {minutes:g}")
    if minutes is not None and train == "never":
        raise _refusal("--minutes limits training, and --train never forbids it; leave one of them out")
    if train not in ("missing", "never"):
        from nclib.config import suggest

        raise _refusal(suggest(train, ("missing", "never"), "value of train"))
    profiles.get_profile(profile)
    processes.keep_tracker()
    with terminable(), _environment():
        try:
            tasks, configs = prepare(select(names), profile, overrides, train)
            others = other_parameters.other_values(task.values for task in tasks)
            os.environ["NCLIB_WITH"] = other_parameters.folder_name(others)
            folder = paths.results(profile)
            plan = runs.plan(list(configs.values()))
            lacking = plan[plan["state"] != "stored"].set_index("run_id")["seconds"].to_dict()
            place = Place(workers, scheduler, host, insecure)
            _say_plan(plan, len(tasks), other_parameters.in_words(profile, others), train, echo)
            for needed in [folder, *([paths.runs()] if len(lacking) and train == "missing" else [])]:
                _require_writable(needed)
            before, training = _marks(configs), None
            if train == "never":
                failed_runs = _missing(plan)
            else:
                failed_runs, training = _train(configs, lacking, place, minutes, echo)
            marks = _marks(configs)
            fresh = {run for run, mark in marks.items() if mark != before[run]}
            with other_parameters.alone_in(folder, "drawing", echo):
                rows = _draw(tasks, profile, marks, fresh, failed_runs, workers or default_workers(), force, echo)
                seconds = round(time.monotonic() - clock, 1)
                summary = Summary(profile, others, rows, failed_runs, seconds, training)
                _write_summary(summary)
        except KeyboardInterrupt:
            _end_children(children)
            raise
    echo(summary.text())
    echo(f"{duration(summary.seconds)} in all; results are in {folder}")
    return summary


def prepare(
    names: Sequence[str], profile: str, overrides: Sequence[str] = (), train: str = "missing"
) -> tuple[list[Task], dict[str, StoredConfig]]:
    """Everything that can be checked without training: parameters, data set, and the runs that follow from them.

    names: full names, from `select`. The other arguments are those of `reproduce`.
    Returns: one `Task` for each notebook, and the configurations of all their runs by id.
    Raises: ConfigError, DataError.
    """
    from nclib.config import run_id
    from nclib.engine.profiles import OVERRIDES
    from nclib.papers import experiments

    if not names:
        raise _refusal(_unknown_notebook("", [], set()))
    tasks, configs, makers = [], {}, experiments.known()
    for name, values in given_values(names, overrides).items():
        declared = parameters(source(name))
        in_force = {key: parameter.default for key, parameter in declared.items()} | values
        settings = {key: value for key, value in in_force.items() if key in OVERRIDES}
        needed = {}
        if name in makers:
            needed = {run_id(config): config for config in experiments.experiment(name, profile, **settings)}
        configs |= needed
        command = {"profile": profile, "train": train}
        values |= {key: value for key, value in command.items() if key in declared}
        tasks.append(Task(name, values, settings, tuple(needed)))
    return tasks, configs


def check_runs(configs: Iterable[StoredConfig]) -> None:
    """Refuse runs that would fail at their first step, with more images than there are or a network too narrow, and
    runs in bfloat16 on a processor that has no unit for it.

    configs: their data sets must be here (`nclib.data.fetch`).
    Raises: ConfigError with the numbers.
    """
    from nclib import data, models, training

    slow = provenance.bfloat16_unit() is None and training.default_device().type == "cpu"
    checked: dict[Any, tuple[int, int, set[Any]]] = {}
    for config in configs:
        if not hasattr(config, "data"):
            continue  # the small trainings of the sister papers draw no images
        if slow and getattr(config.train, "precision", "") == "bfloat16":
            raise _refusal(
                "this processor has no bfloat16 unit (AMX or AVX-512 BF16), without which training in bfloat16 takes "
                "tens of times as long. Train in float32, which makes other runs: -p precision=float32, or with "
                "nclib train: --set train.precision=float32"
            )
        try:
            if config.data not in checked:
                split = data.make_split(config.data, config.seed)
                checked[config.data] = len(split.counts), split.train_images.shape[1], set()
            classes, channels, built = checked[config.data]
            if config.kind == "classifier" and config.model not in built:
                models.build_model(config.model, classes, channels)
                built.add(config.model)
        except data.DataError:
            raise
        except ValueError as error:
            raise _refusal(str(error)) from None
        except (MemoryError, RuntimeError) as error:  # PyTorch's own
            if "memory" not in str(error) and not isinstance(error, MemoryError):
                raise
            too_large = f"a network of width {config.model.width} does not fit into the memory of this machine"
            raise _refusal(f"{too_large} ({_short(str(error))})") from None


def _require_writable(folder: Path) -> None:
    """Raises: PermissionError where nothing can be written to a folder, or where it would have to be made."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        advice = "results cannot be written there; set NCLIB_RESULTS to a folder that is yours"
        raise PermissionError(errno.EACCES, advice, str(there))


def _say_plan(plan: pd.DataFrame, notebooks: int, profile: str, train: str, echo: Callable[[str], None]) -> None:
    lacking = plan[plan["state"] != "stored"]
    echo(f"profile {profile}: {notebooks} notebooks, {len(plan)} runs, {len(plan) - len(lacking)} of them stored")
    if len(lacking) and train == "missing":
        echo(f"to train: {len(lacking)} runs, about {duration(lacking['seconds'].sum())} of one core")


def _marks(configs: Iterable[str]) -> dict[str, str]:
    """What identifies the stored content of each run, "" where it is not stored."""
    from nclib.engine.store import default_store

    store = default_store()
    return {run: _sha256((store.root / run / "DONE").read_bytes()) if store.has(run) else "" for run in configs}


def _missing(plan: pd.DataFrame) -> dict[str, str]:
    absent = plan.loc[plan["state"] == "missing", "run_id"]
    return dict.fromkeys(absent, "not stored, and --train never forbids training it; leave that out to train it")


@dataclass(frozen=True)
class Place:
    """Where runs are to be trained, as it was asked for; all None leaves it to `executor`."""

    workers: int | None = None
    scheduler: str | None = None
    host: str | None = None
    insecure: bool = False

    @contextlib.contextmanager
    def executor(
        self, wanted: Sequence[StoredConfig], seconds: float, echo: Callable[[str], None]
    ) -> Iterator[concurrent.futures.Executor | None]:
        """What to train these runs on, which would take one core so many seconds; None is this process, enough for one
        core and for a few seconds.

        Raises: ClusterError when what was asked for cannot be had.
        """
        from nclib.engine import cluster, costs

        if self.scheduler:
            with cluster.connect(self.scheduler, self.insecure) as executor:
                for line in [*executor.check(), executor.reach()]:
                    echo(line)
                echo(f"training on the cluster at {self.scheduler}, {len(executor.workers())} workers now")
                yield executor
            return
        need = max(costs.estimate_gpu_gib(config) for config in wanted)
        slots = cluster.slots(self.workers, _cores(), cluster.gpus(), need)[: len(wanted)]
        if self.workers is None and self.host is None:
            alone = len(slots) == 1 or seconds < _WORTH_A_CLUSTER
            if not alone and not cluster.installed():
                echo('training one run after the other; for more at once: pip install "nclib[cluster]"')
            if alone or not cluster.installed():
                yield None
                return
        with cluster.local(slots, self.host or cluster.LOOPBACK, self.insecure) as executor:
            echo(f"training on {len(slots)} workers of this machine; {executor.reach()}")
            yield executor


def _train(
    configs: Mapping[str, StoredConfig],
    lacking: Mapping[str, float],
    place: Place,
    minutes: float | None,
    echo: Callable[[str], None],
) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Train what is missing or damaged; returns the runs that are not there with the reason, and how long it
    took. `lacking` has the seconds expected of each run that is not stored."""
    from nclib.engine import cluster, runs

    failures = _fetch({run: configs[run] for run in sorted(lacking)}, echo)
    check_runs(configs[run] for run in sorted(set(lacking) - set(failures)))
    wanted = [config for run, config in configs.items() if run not in failures]
    missing = [config for run, config in configs.items() if run in lacking and run not in failures]
    forecast = None
    with contextlib.ExitStack() as stack:
        seconds = sum(seconds for run, seconds in lacking.items() if run not in failures)
        executor = stack.enter_context(place.executor(missing, seconds, echo)) if missing else None
        progress = stack.enter_context(progress_bar("training", echo))
        try:
            trained = runs.train_missing(wanted, executor, progress, minutes=minutes)
            failures |= trained.failures
            forecast = trained.forecast
        except cluster.ClusterLost as lost:
            echo(str(lost))
            failures |= {run: str(lost) for run, mark in _marks(configs).items() if not mark and run not in failures}
            return failures, None
    for run, message in failures.items():
        failures[run] = _short(message)
        echo(f"run failed: {run}: {failures[run]}")
    if not missing:
        return failures, None
    if trained.unfinished:
        echo(f"{len(trained.unfinished)} of {len(missing)} runs are left: {_OUT_OF_TIME}")
        return failures | dict.fromkeys(trained.unfinished, _OUT_OF_TIME), None
    echo(forecast.text())
    return failures, forecast.as_dict()


def _fetch(lacking: Mapping[str, StoredConfig], echo: Callable[[str], None]) -> dict[str, str]:
    """Bring the data of the missing runs here before any process needs it; returns the runs that cannot have theirs."""
    from nclib import data

    failures: dict[str, str] = {}
    wanted = {run: config.data.dataset for run, config in lacking.items() if hasattr(config, "data")}
    for dataset in sorted(set(wanted.values())):
        try:
            data.fetch(dataset)
        except data.DataError as error:
            echo(f"data set {dataset}: {error}")
            failures |= {run: _short(str(error)) for run, name in wanted.items() if name == dataset}
    return failures


def _draw(
    tasks: Sequence[Task],
    profile: str,
    marks: Mapping[str, str],
    fresh: set[str],
    failed_runs: Mapping[str, str],
    workers: int,
    force: bool,
    echo: Callable[[str], None],
) -> list[Row]:
    """Execute the notebooks that have their runs and are not unchanged; a row for each, in the order asked for."""
    rows: dict[str, Row] = {}
    keys: dict[str, str] = {}
    counts = _count_runs(tasks, fresh, failed_runs)

    def note(task: Task, result: Execution) -> None:
        if result.error:
            failed = _failed(task.name, profile)
            files = [failed.relative_to(paths.results(profile)).as_posix()] if failed.exists() else []
        else:
            files = list(result.files)
            _write_stamp(task, profile, keys[task.name], result.files)
        status = "failed" if result.error else "executed"
        rows[task.name] = Row(task.name, status, round(result.seconds, 1), *counts[task.name], files, result.error)

    for summaries in (False, True):
        to_do: list[Task] = []
        for task in (task for task in tasks if (task.name in SUMMARIES) is summaries):
            keys[task.name] = _key(task, marks, profile)
            broken = [run for run in task.runs if run in failed_runs]
            files = None if force else _unchanged(task, profile, keys[task.name])
            if broken:
                first = next((run for run in broken if failed_runs[run] != _OUT_OF_TIME), broken[0])
                status = "unfinished" if failed_runs[first] == _OUT_OF_TIME else "failed"
                what = f"{len(broken)} of its {len(task.runs)} runs are missing"
                message = f"{what}: {first}: {failed_runs[first]}"
                rows[task.name] = Row(task.name, status, 0.0, *counts[task.name], message=message)
            elif files is not None:
                rows[task.name] = Row(task.name, "unchanged", 0.0, *counts[task.name], files)
            else:
                to_do.append(task)
        if to_do:
            _execute_all(to_do, profile, workers, note, echo)
    return [rows[task.name] for task in tasks]


def _count_runs(tasks: Sequence[Task], fresh: set[str], failed_runs: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """For each notebook, runs trained (each counted once, in the first notebook that draws it) and runs reused."""
    counted: set[str] = set()
    counts = {}
    for task in tasks:
        trained = set(task.runs) & fresh - counted
        counted |= trained
        counts[task.name] = len(trained), len(set(task.runs) - trained - set(failed_runs))
    return counts


def _execute_all(
    tasks: Sequence[Task],
    profile: str,
    workers: int,
    note: Callable[[Task, Execution], None],
    echo: Callable[[str], None],
) -> None:
    """Execute each task in a process of its own and note each result as it comes."""
    waiting = {task.name for task in tasks}
    try:
        with progress_bar("notebooks", echo) as progress, _notebook_pool(min(_NOTEBOOKS_AT_ONCE, workers)) as pool:
            futures = {pool.submit(execute, task.name, task.values, profile): task for task in tasks}
            progress(0, len(tasks), f"0 of {len(tasks)}")
            for future in concurrent.futures.as_completed(futures):
                task, result = futures[future], _result(future)
                note(task, result)
                waiting.discard(task.name)
                progress(len(tasks) - len(waiting), len(tasks), f"{len(tasks) - len(waiting)} of {len(tasks)}")
                outcome = f"failed: {result.error}" if result.error else "executed"
                echo(f"{task.name}: {outcome} ({duration(result.seconds)})")
    except KeyboardInterrupt:
        for name in waiting:  # a kernel that was told to stop is reported like one that died
            _failed(name, profile).unlink(missing_ok=True)
        raise


def _result(future: concurrent.futures.Future[Execution]) -> Execution:
    try:
        return future.result()
    except Exception as error:  # the process itself was lost, or its result could not be written
        return Execution(0.0, _short(f"{type(error).__name__}: {error}"))


@contextlib.contextmanager
def _notebook_pool(size: int) -> Iterator[concurrent.futures.Executor]:
    """Spawned processes for `execute`. Left by an exception, they and their kernels have ended when it goes on."""
    before = set(multiprocessing.active_children())
    with tempfile.TemporaryDirectory(prefix="nclib-", ignore_cleanup_errors=True) as scratch:
        pool = concurrent.futures.ProcessPoolExecutor(
            size, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(scratch,)
        )
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _end_children(before)
            raise
        pool.shutdown()


def _start_worker(scratch: str) -> None:
    """Ctrl-C reaches the command alone, which ends its workers in order; a command that is killed takes them along.

    scratch: for temporary files of worker and kernels, removed by the command when they had no time to do it.
    """
    os.environ["TMPDIR"] = scratch
    tempfile.tempdir = None  # look it up again
    if hasattr(os, "setsid"):
        os.setsid()
    processes.follow_parent()


def _end_children(before: set[Any], patience: float = 10.0) -> None:
    """End the processes started since `before` was noted; those that do not follow SIGTERM are killed."""
    children = [child for child in multiprocessing.active_children() if child not in before]
    for child in children:
        child.terminate()
    limit = time.monotonic() + patience
    for child in children:
        child.join(max(0.0, limit - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """What the processes started in the block inherit: absolute folders, because a notebook runs in its own one; one
    thread; this very nclib; kernels of this Python even where another is registered for the user."""
    package = Path(__file__).resolve().parents[2]
    path = [str(package)] if package.name not in ("site-packages", "dist-packages") else []
    path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    values = {
        "NCLIB_ROOT": str(paths.root()),
        "NCLIB_RESULTS": str(paths.results()),
        "NCLIB_DATA": str(paths.data()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1",
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY") or "PASSIVE",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "NCLIB_WITH": "",
    }
    if not _has_home():  # an account without a home, as in a container with --user: Jupyter asks for one
        values["HOME"] = str(paths.results() / ".home")
    if path:
        values["PYTHONPATH"] = os.pathsep.join(path)
    with processes.environment_restored(values):
        os.environ.update(values)
        yield


def _has_home() -> bool:
    try:
        Path.home()
    except RuntimeError:
        return False
    return True


def _write_summary(summary: Summary) -> None:
    from nclib.system.files import write_atomic
    content = summary.as_dict() | {"provenance": provenance.capture()}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomic(paths.results(summary.profile) / "summary.json", text)
