"""Notebooks executed with all that they need: what `nclib reproduce` does.

In this order: everything that can be refused is refused; missing runs are trained; each notebook is
executed by papermill, in a kernel of its own, as soon as its runs are there. A run or a notebook
that fails stops only what needs it, and what is unchanged is not done again.

A notebook saves its figures and tables under its own name, ``paper/notebook`` or
``paper/notebook_…``. A stamp beside the executed notebook says what it was made from.
"""

import ast
import contextlib
import json
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic

from nclib import data, paths, profiles, provenance, runs
from nclib.config import (
    ConfigError,
    RunConfig,
    StoredConfig,
    one_of,
    run_id,
    search_working_directory,
    suggest,
)
from nclib.paths import json_bytes, sha256, write_atomic
from nclib.store import RunStore, default_store, finished, one_place, reference_store

AT_ONCE = 2
"""Notebooks executed at once. Each has a kernel, which loads torch and all else for itself."""

PARTS = dict(profiles.from_papers("PARTS"))
"""Folders of notebooks in reading order, and their headings."""

COURSE = "walkthrough"
"""The folder of the lessons, which speak of toy data."""

FIRST = profiles.from_papers("FIRST")
"""Notebooks whose runs are trained before all others, and which are executed first."""

SUMMARY = f"{profiles.MAIN_PAPER}/scorecard"
"""The notebook that reads the tables of the others in its folder; it is executed last."""

DRAWN_AS_FAR_AS_THERE = dict(profiles.from_papers("DRAWN_AS_FAR_AS_THERE"))
"""Notebooks that train nothing and plot those of another's runs that are stored or tracked."""

STUDIES = profiles.from_papers("STUDIES")
"""Notebooks beyond what the papers print. Where nobody asks for them by name or with ``--all``, they
are plotted from stored or tracked runs."""

DRAW_A_PART = profiles.from_papers("DRAW_A_PART")
"""Notebooks that do so with ``--train finished``: they plot the pairs of runs that are there."""


# --- notebooks as files ---------------------------------------------------------------------------

_SCRATCH = re.compile(r"-Copy\d+$|^Untitled\d*$")  # what JupyterLab calls a copy and a new one
_PICTURE = re.compile(r"\]\((images/[\w-]+\.png)\)")


def source(name: str) -> Path:
    """The notebook of a name ``paper/notebook``."""
    return paths.notebooks() / f"{name}.ipynb"


def executed(name: str, profile: str) -> Path:
    """Where the executed notebook of a profile lies."""
    return paths.results(profile) / "notebooks" / f"{name}.ipynb"


def available() -> list[str]:
    """Names of the notebooks that can be regenerated, ``paper/notebook``, in `reading_order`.

    Notebooks that lie directly in ``notebooks/`` (the index, the laboratory) are for reading and
    playing only, and JupyterLab's copies would overwrite the figures of their originals.
    """
    names = []
    for file in paths.notebooks().glob("[!.]*/[!.]*.ipynb"):
        if not _SCRATCH.search(file.stem):
            names.append(f"{file.parent.name}/{file.stem}")
    return sorted(names, key=reading_order)


def reading_order(name: str) -> list[Any]:
    """Sort key of a name: parts as in `PARTS`, what a paper prints before what is added, numbers in
    order."""
    part, _, notebook = name.partition("/")
    place = list(PARTS).index(part) if part in PARTS else len(PARTS)
    printed = re.match(r"\d|fig|table|theorem", notebook) is not None
    padded = re.sub(r"\d+", lambda number: number[0].zfill(4), notebook)
    return [place, part, not printed, padded]


def select(names: Iterable[str] = ()) -> list[str]:
    """The notebooks meant by names as a user types them.

    Parameters
    ----------
    names : "paper/notebook"; a bare name is the main paper's; a folder's name is all of it; no
        names are all notebooks. A path such as ``notebooks/paper/notebook.ipynb`` is understood too

    Returns
    -------
    list of full names without repetition, in the order asked for

    Raises
    ------
    ConfigError
        For an unknown name, with the nearest right one.
    """
    known = available()
    folders = {name.split("/")[0] for name in known}
    chosen = []
    for typed in names:
        name = typed.removeprefix("./").removeprefix("notebooks/")
        name = name.removesuffix(".ipynb").rstrip("/")
        full = name if "/" in name else f"{profiles.MAIN_PAPER}/{name}"
        if name in folders:
            chosen += [other for other in known if other.startswith(f"{name}/")]
        elif full in known:
            chosen.append(full)
        else:
            short = [other.removeprefix(f"{profiles.MAIN_PAPER}/") for other in known]
            raise ConfigError(suggest(name, [*short, *folders], "notebook"))
    return list(dict.fromkeys(chosen)) or known


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook file, the source of each as one text."""
    cells = json.loads(path.read_bytes())["cells"]
    for cell in cells:
        cell["source"] = "".join(cell["source"])  # the format stores a text or a list of lines
    return cells


def title(path: Path) -> str:
    """The first heading of a notebook, else the name of its file."""
    for cell in read_cells(path):
        heading = re.search(r"^# +(.+)$", cell["source"], re.MULTILINE)
        if cell["cell_type"] == "markdown" and heading:
            return heading[1].strip()
    return path.stem


def pictures(name: str) -> list[Path]:
    """The pictures that the text of a notebook links to as ``images/<picture>.png``; they are
    tracked beside it."""
    links = []
    for cell in read_cells(source(name)):
        if cell["cell_type"] == "markdown":
            links += _PICTURE.findall(cell["source"])
    return [source(name).parent / link for link in dict.fromkeys(links)]


# --- parameters -----------------------------------------------------------------------------------


def parameters(name: str) -> dict[str, Any]:
    """The defaults that a notebook declares in its parameters cell (``name: type = default``), by
    name; nothing is run, and papermill, which takes seconds to load, is not needed for it."""
    defaults = {}
    for cell in read_cells(source(name)):
        if "parameters" not in cell["metadata"].get("tags", []):
            continue
        for statement in ast.parse(cell["source"]).body:
            kind = _TYPES[statement.annotation.id]
            defaults[statement.target.id] = kind(ast.literal_eval(statement.value))
    return defaults


_TYPES = {"int": int, "float": float, "str": str, "bool": bool}


def given_values(
    declared: Mapping[str, Mapping[str, Any]], texts: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Values typed as ``name=value``, checked against what the notebooks declare.

    Parameters
    ----------
    declared : the `parameters` of each notebook, by its full name
    texts : "epochs=3", "lr=1e-3", "dataset=folder:PATH", …; a value reaches the notebooks that
        declare its name, and at least one must

    Returns
    -------
    dict
        For each notebook, the values that differ from its own, data sets under their full names.

    Raises
    ------
    ConfigError, DataError
        For an unknown name (with the nearest right one), one that another option sets, and a wrong
        value.
    """
    known = set()
    for defaults in declared.values():
        known.update(defaults)
    known.difference_update(paths.SET_BY_THE_COMMAND)
    typed = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            raise ConfigError(f"{text!r} is not an assignment; write name=value, such as epochs=3")
        if name in paths.SET_BY_THE_COMMAND:
            raise ConfigError(f"{name} is not passed by -p; use the option --{name}")
        typed[one_of(name, known, "parameter")] = value.strip()
    for name in ("dataset", "hundred_dataset"):
        if typed.get(name):
            typed[name] = data.resolve_dataset(typed[name], base=Path.cwd())

    given: dict[str, dict[str, Any]] = {}
    for notebook, defaults in declared.items():
        given[notebook] = {}
        for name in typed.keys() & defaults.keys():
            value = _as_type(type(defaults[name]), typed[name], f"{name} of {notebook}")
            if value != defaults[name]:
                given[notebook][name] = value
    return given


def _as_type(kind: type, text: str, where: str) -> Any:
    try:
        return pydantic.TypeAdapter(kind).validate_strings(text)
    except pydantic.ValidationError:
        raise ConfigError(f"parameter {where} must be {kind.__name__}, got {text!r}") from None


# --- what is to be done ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One notebook of a call.

    Parameters
    ----------
    name : "paper/notebook"
    profile : the size
    folder : of its results within those of the profile (`nclib.paths.results_with`)
    values : parameters to pass
    runs : that it plots, by id
    trains : whether those of them that are not stored are trained for it; otherwise it plots what
        is stored or tracked
    needs : "all" of its runs, or at least one "pair" of both networks
    """

    name: str
    profile: str
    folder: str
    values: dict[str, Any]
    runs: dict[str, StoredConfig]
    trains: bool
    needs: Literal["all", "pair"]

    @property
    def has_runs(self) -> bool:
        """Whether what it needs is finished: stored or tracked (`nclib.store.finished`)."""
        if self.needs == "all":
            return len(finished(self.runs)) == len(self.runs)
        networks = []
        for config in self.runs.values():
            if isinstance(config, RunConfig) and config.model.kind in runs.PAIR:
                networks.append(config)
        return bool(runs.finished_pairs(networks))


@dataclass(frozen=True)
class Row:
    """How one notebook went, with the reason where it failed."""

    notebook: str
    status: Literal["executed", "unchanged", "not drawn", "failed"]
    message: str = ""


@dataclass(frozen=True)
class Summary:
    """What one call of `reproduce` did.

    Parameters
    ----------
    rows : one for each notebook
    folder : of its results within those of the profile (`nclib.paths.results_with`)
    trained : how many runs were trained
    unconverged : runs with samples whose equilibrium was not found at the last epoch
    """

    rows: list[Row]
    folder: str
    trained: int = 0
    unconverged: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no notebook failed."""
        return self.count("failed") == 0

    def count(self, status: str) -> int:
        """How many notebooks went so."""
        return sum(row.status == status for row in self.rows)


def prepare(
    names: Iterable[str],
    profile: str,
    texts: Sequence[str] = (),
    train: str = "missing",
    plotted: Collection[str] = (),
) -> list[Task]:
    """Everything that can be checked without training: parameters, data set, and the runs that
    follow from them.

    Parameters
    ----------
    names : full names, from `select`
    profile, texts, train : as of `reproduce`
    plotted : those of the names for which nothing is trained

    Raises
    ------
    ConfigError, DataError
    """
    declared = {name: parameters(name) for name in names}
    given = given_values(declared, texts)
    other_parameters = {}
    for values in given.values():
        other_parameters |= values
    if "cell" in other_parameters:
        search_working_directory()
    folder = paths.folder_name(other_parameters)
    tasks = []
    for name, values in given.items():
        maker = DRAWN_AS_FAR_AS_THERE.get(name, name)
        configs = {}
        if maker in profiles.makers():
            changed = profiles.given(declared[name] | values)
            for config in profiles.experiment(maker, profile, **changed):
                configs[run_id(config)] = config
            if maker != name and "dataset" not in values:
                configs |= _on_tracked_images(maker, profile, changed)
        if "profile" in declared[name]:
            values["profile"] = profile
        if "train" in declared[name]:
            values["train"] = "never" if name in plotted else train
        any_pair = maker != name or (train == "finished" and name in DRAW_A_PART)
        trains = train == "missing" and maker == name and name not in plotted
        needs = "pair" if any_pair else "all"
        tasks.append(Task(name, profile, folder, values, configs, trains, needs))
    return tasks


def _on_tracked_images(
    maker: str, profile: str, changed: Mapping[str, Any]
) -> dict[str, StoredConfig]:
    """The runs, by id, on the images of which runs of this profile are tracked: a copy of CIFAR-10.
    A notebook that trains nothing plots them where nobody names others."""
    configs = {}
    for scale in _tracked_scales():
        if scale["profile"] != profile or set(scale["parameters"]) != {"dataset"}:
            continue
        for config in profiles.experiment(maker, profile, **changed | scale["parameters"]):
            configs[run_id(config)] = config
    return configs


def _in_order(tasks: Iterable[Task]) -> list[Task]:
    """As they are executed: `FIRST`, the main paper, the others, those that plot what is there by
    then, the summary."""

    def rank(task: Task) -> list[Any]:
        urgent = FIRST.index(task.name) if task.name in FIRST else len(FIRST)
        main = task.name.startswith(f"{profiles.MAIN_PAPER}/")
        return [task.name == SUMMARY, task.needs == "pair", urgent, not main]

    return sorted(tasks, key=rank)


# --- one notebook ---------------------------------------------------------------------------------


def execute(task: Task, made_from: str) -> Row:
    """Execute one notebook, and stamp it with the digest of what it was made from.

    One that fails is kept beside the complete ones as ``<name>.failed.ipynb``, and leaves an
    earlier complete one alone. Nothing is raised for what happens inside the notebook.
    """
    import papermill

    name = task.name
    with paths.results_with(task.folder):  # its kernel inherits it
        target = executed(name, task.profile)
        failed = target.with_suffix(".failed.ipynb")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            papermill.execute_notebook(
                source(name),
                failed,
                dict(task.values),
                progress_bar=False,
                request_save_on_cell_execute=False,  # an interrupted notebook leaves no file
                extra_arguments=["--log-level=CRITICAL"],  # or the kernel's remarks fill the screen
            )
        except papermill.PapermillExecutionError as error:
            return Row(name, "failed", f"cell {error.exec_count}: {error.ename}: {error.evalue}")
        except Exception as error:  # the kernel died, or did not start
            return Row(name, "failed", f"{type(error).__name__}: {error}")
    failed.replace(target)
    for picture in pictures(name):
        if picture.is_file():
            write_atomic(target.parent / "images" / picture.name, picture.read_bytes())
    stamp = {"made_from": made_from, "files": _saved_files(task)}
    write_atomic(target.with_suffix(".json"), json_bytes(stamp))
    return Row(name, "executed")


def results_of(task: Task) -> Path:
    """The folder of the results of a task's call."""
    results = paths.results() / task.profile
    return results / "with" / task.folder if task.folder else results


def _executed(task: Task) -> Path:
    return results_of(task) / "notebooks" / f"{task.name}.ipynb"


def unchanged(task: Task, made_from: str) -> bool:
    """Whether a notebook was made from the same, and each of its files is what was written."""
    try:
        stamp = json.loads(_executed(task).with_suffix(".json").read_bytes())
    except (OSError, ValueError):
        return False
    return stamp == {"made_from": made_from, "files": _saved_files(task)}


def _saved_files(task: Task) -> dict[str, str]:
    """The digests of an executed notebook and of the figures and tables that it has saved."""
    folder = results_of(task)
    files = [_executed(task)]
    for kind in ("figures", "tables"):
        files += folder.glob(f"{kind}/{task.name}[._]*")
    return {file.relative_to(folder).as_posix(): _digest(file) for file in files}


def digest_of_inputs(task: Task, code: str) -> str:
    """Digest of all that the results of a notebook depend on: its source and the pictures in it,
    its parameters, its runs, the code and, for `SUMMARY`, the claims that it reads."""
    ids = list(task.runs) if task.needs == "all" else finished(task.runs)
    files = [source(task.name), *pictures(task.name), *_files_of_runs(ids)]
    if task.needs == "pair":  # which runs are tracked by now, and which are sealed
        files += sorted(paths.reference().parent.glob("*/*/runs.json"))
    if task.name == SUMMARY:
        tables = results_of(task) / "tables" / profiles.MAIN_PAPER
        files += sorted(tables.glob("*_claims.csv"))
    values = {name: value for name, value in task.values.items() if name != "train"}
    digests = [[file.parent.name, file.name, _digest(file)] for file in files]
    return sha256(json_bytes([digests, values, code]))


def _files_of_runs(ids: Sequence[str]) -> list[Path]:
    """The files that tell whether one of these runs is another than before. All are read from one
    place where that has all of them, as notebooks do it."""
    place = one_place(ids)
    store = default_store()
    tracked = reference_store()
    files = []
    for run in ids:
        if isinstance(place, RunStore) or (place is None and store.has(run)):
            files.append(store.root / run / "DONE")
        else:
            files += tracked.files(run)
    return list(dict.fromkeys(files))


def code_digest() -> str:
    """Digest of nclib with its tables of claims, and of the papers' printed numbers."""
    package = provenance.folder("nclib")
    files = [*package.rglob("*.py"), *package.rglob("*.csv"), *paths.published().rglob("*.csv")]
    return provenance.digest(sorted(files))


def _digest(file: Path) -> str:
    return sha256(file.read_bytes()) if file.is_file() else ""


# --- how far it is --------------------------------------------------------------------------------

SECONDS_OF_A_NOTEBOOK = 11.0
"""Roughly, on one core: to start a kernel, load everything, plot and save."""

LONG_NOTEBOOKS = dict(profiles.from_papers("LONG_NOTEBOOKS"))
"""The seconds of notebooks that compute for much longer than that."""


def seconds_of(config: StoredConfig) -> float:
    """Roughly how long a run takes on a core; only the proportions matter for the time left.

    Measured at width 16 on digits, digit pairs and scenes, with a second training beside it.
    """
    if not isinstance(config, RunConfig):
        return config.seconds()
    images = int(profiles.class_counts(config.data).sum())
    height, width = profiles.outline(config.data.dataset).size
    one = 7e-4 * (config.model.width / 16) ** 2 * (height * width / 64) ** 0.6
    return config.train.epochs * images * one * (2 if config.model.kind == "deq" else 1)


class _Meter:
    """How far a call is: the runs that are done, and the time left, from the work that was done in
    the time until now.

    Parameters
    ----------
    seconds : of work, of each run to be trained (by id) and each notebook (by its place)
    count : runs that are needed, with those that are stored
    workers : that train at once; the first guess at the speed
    progress : is shown it
    """

    def __init__(
        self, seconds: Mapping[Any, float], count: int, workers: int, progress: runs.Progress | None
    ) -> None:
        self.seconds = dict(seconds)
        self.total = sum(seconds.values())
        self.count = count
        self.workers = workers
        self.progress = progress
        self.began = time.monotonic()
        self.in_hand: list[str] = []

    def end(self, key: Any) -> None:
        """A run or a notebook is done."""
        self.seconds.pop(key, None)

    def minutes_left(self) -> float:
        """The guess at the speed counts as a minute of experience."""
        left = sum(self.seconds.values())
        elapsed = time.monotonic() - self.began
        speed = (self.total - left + 60 * self.workers) / (elapsed + 60)
        return left / speed / 60

    def show(self, *_: Any) -> None:
        if self.progress is None:
            return
        runs_left = sum(isinstance(key, str) for key in self.seconds)
        parts = []
        if self.count:
            parts.append(f"{self.count - runs_left} of {self.count} runs")
        minutes = self.minutes_left()
        parts.append(f"{minutes:.0f} min left" if minutes >= 1.5 else "about a minute left")
        parts += self.in_hand[:1]
        left = sum(self.seconds.values())
        self.progress(self.total - left, self.total, ", ".join(parts))


# --- all notebooks --------------------------------------------------------------------------------


def reproduce(
    names: Iterable[str] = (),
    profile: str = "quick",
    texts: Sequence[str] = (),
    workers: int | None = None,
    train: Literal["missing", "never", "finished"] = "missing",
    force: bool = False,
    echo: Callable[[str], None] = print,
    progress: runs.Progress | None = None,
    everything: bool = False,
    largest: bool = False,
) -> Summary:
    """Regenerate notebooks with their figures and tables.

    Parameters
    ----------
    names : see `select`; none means every notebook, where `STUDIES` are plotted from stored or
        tracked runs
    profile : the size, see `nclib.profiles.PROFILES`
    texts : parameters as "name=value", see `given_values`. Where one differs from the notebook's
        own value, all results of the call lie in ``results/<profile>/with/<parameters>/``
    workers : runs trained at once, in processes of this machine; left out: one on each GPU, else
        one a core
    train : "missing" trains what is not stored; "never" leaves out the notebooks whose runs are
        neither stored nor tracked; "finished" executes those of `DRAW_A_PART` with the runs that
        are there, too
    force : execute what is unchanged, too. Runs are never trained again for it
    echo : receives each line that is said
    progress : called as ``progress(done, of, text)`` with the work done, and in words the runs that
        are there, the time left and the notebook in hand
    everything : train the runs of `STUDIES` too, where no names are given
    largest : next to a profile of toy data with its own parameters, execute the notebooks at their
        `largest_scales` as well, from stored and tracked runs. ``largest.json`` among the results
        of the profile keeps the list

    Raises
    ------
    ConfigError, DataError
        Before anything is trained.
    """
    one_of(train, runs.TRAIN, "value of train")
    names = list(names)
    plotted = () if names or everything or train != "missing" else STUDIES
    toy = profiles.get_profile(profile).dataset == "digits"
    tasks = _in_order(prepare(select(names), profile, texts, train, plotted))
    folder = tasks[0].folder
    scales = {}
    if largest and toy and not folder:
        scales = largest_scales(select(names))
    larger = _in_order(_tasks_at(scales))

    needed: dict[str, StoredConfig] = {}
    for task in tasks:
        if task.trains:
            needed |= task.runs
    with _folders_of_kernels():
        store = default_store()
        missing = {run: config for run, config in needed.items() if not store.has(run)}
        planned = f"profile {profile}: {len(tasks)} notebooks, "
        if train == "missing":
            planned += f"{len(needed)} runs, {len(needed) - len(missing)} stored"
        else:
            planned += "nothing is trained"
        if larger:
            planned += f"; {len(larger)} notebooks at a larger scale, from stored runs"
        echo(planned)
        call = _Call([*tasks, *larger], needed, missing, force, echo, progress, workers)
        call.work()

    skipped = [row.notebook for row in call.rows.values() if row.status == "not drawn"]
    if skipped:
        hint = ""
        if plotted:
            hint = " (--all trains them)"
        elif not toy:
            hint = f" (--largest instead of --profile {profile} plots the stored ones)"
        echo(f"not drawn, as some of their runs are missing{hint}: {', '.join(skipped)}")
    if scales:
        file = paths.results(profile) / "largest.json"
        before = json.loads(file.read_bytes()) if file.is_file() else {}
        write_atomic(file, json_bytes(before | scales))
    return Summary(
        rows=[call.rows[number] for number in sorted(call.rows)],
        folder=folder,
        trained=sum(store.has(run) for run in missing),
        unconverged=tuple(_unconverged(needed)),
    )


class _Call:
    """The work of one call: runs are trained, and each notebook is executed as soon as its runs are
    there.

    Notebooks wait in a queue, the first in order first. A few desks serve it: threads, each with a
    process of its own, so that a process that dies costs its notebook alone.

    Parameters
    ----------
    tasks : in the order in which they are executed where all are ready
    needed, missing : the runs to be there in the end, and those of them that are not stored
    workers, force, echo, progress : as of `reproduce`
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        needed: Mapping[str, StoredConfig],
        missing: Mapping[str, StoredConfig],
        force: bool,
        echo: Callable[[str], None],
        progress: runs.Progress | None,
        workers: int | None,
    ) -> None:
        self.needed = needed
        self.force = force
        self.echo = echo
        self.code = code_digest()
        self.workers = workers or runs.default_workers(len(missing))
        self.rows: dict[int, Row] = {}  # by the place of the task
        self.stored: set[str] = set()
        self.waiting: dict[int, Task] = {}
        seconds: dict[Any, float] = {run: seconds_of(config) for run, config in missing.items()}
        for number, task in enumerate(tasks):
            if task.trains or task.needs == "pair" or task.has_runs:
                self.waiting[number] = task
                seconds[number] = LONG_NOTEBOOKS.get(task.name, SECONDS_OF_A_NOTEBOOK)
            else:
                self.rows[number] = Row(task.name, "not drawn")
        self.meter = _Meter(seconds, len(needed), max(self.workers, 1), progress)
        self.queue: queue.PriorityQueue[tuple[float, Task | None, str]] = queue.PriorityQueue()
        self.pools: list[Any] = []
        self.stop = threading.Event()
        self.error: Exception | None = None

    def work(self) -> None:
        """Do all of it."""
        desks = [threading.Thread(target=self._desk) for _ in range(AT_ONCE)]
        for desk in desks:
            desk.start()
        try:
            failures = {}
            if self.needed:
                configs = list(self.needed.values())
                failures = runs.train_missing(
                    configs, None, self.workers or 1, self.meter.show, stored=self._note_run
                )
            self._begin_ready()
            for number, task in list(self.waiting.items()):
                lost = [run for run in task.runs if run in failures]
                if task.trains and lost:
                    reason = f"{len(lost)} of its {len(task.runs)} runs failed"
                    row = Row(task.name, "failed", f"{reason}: {failures[lost[0]]}")
                    self._end(number, task, row)
                elif not task.trains and not task.has_runs:
                    self._end(number, task, Row(task.name, "not drawn"))
                elif task.name != SUMMARY:
                    self._begin(number)
            self._wait()
            for number in list(self.waiting):  # they read what the others leave
                self._begin(number)
            self._wait()
        finally:
            self.stop.set()
            for pool in list(self.pools):
                runs.kill_processes(pool)
            for _ in desks:
                self.queue.put((float("inf"), None, ""))  # nothing more is to come
            for desk in desks:
                desk.join()

    def _note_run(self, run: str) -> None:
        self.stored.add(run)
        self.meter.end(run)
        self.meter.show()
        self._begin_ready()

    def _begin_ready(self) -> None:
        """Begin what is ready: of a notebook with runs to train, all of them are stored. Nothing
        else begins before the first figure; what plots whatever is there waits for the end."""
        first = next(iter(self.waiting.values()), None)
        if first is not None and 0 in self.waiting and not self._is_ready(first):
            return
        for number, task in list(self.waiting.items()):
            if self._is_ready(task):
                self._begin(number)

    def _is_ready(self, task: Task) -> bool:
        if task.name == SUMMARY:
            return False
        if task.trains:
            return self.stored.issuperset(task.runs)
        return task.needs == "all" or task.values.get("train") == "finished"

    def _begin(self, number: int) -> None:
        task = self.waiting.pop(number)
        made_from = digest_of_inputs(task, self.code)
        if not self.force and unchanged(task, made_from):
            self._end(number, task, Row(task.name, "unchanged"))
        else:
            self.queue.put((number, task, made_from))

    def _end(self, number: int, task: Task, row: Row) -> None:
        self.waiting.pop(number, None)
        self.rows[number] = row
        self.meter.end(number)
        if row.status == "executed":
            self.echo(f"{row.notebook}: {row.status}: {shown(_executed(task))}")
        elif row.status == "failed":
            self.echo(f"{row.notebook}: {row.status}: {row.message}")

    def _wait(self) -> None:
        """Until the queue is worked off."""
        while self.queue.unfinished_tasks and self.error is None:
            self.meter.show()
            time.sleep(0.05)
        if self.error is not None:
            raise self.error

    def _desk(self) -> None:
        try:
            while not self.stop.is_set():
                with runs.process_pool(1) as pool:
                    self.pools.append(pool)
                    self._serve(pool)
        except Exception as error:  # the main thread raises it
            self.error = error

    def _serve(self, pool: Any) -> None:
        """Execute notebooks, one after the other, until the process dies or all is done."""
        while True:
            number, task, made_from = self.queue.get()
            if task is None or self.stop.is_set():
                return
            self.meter.in_hand.append(task.name)
            died = False
            try:
                row = pool.submit(execute, task, made_from).result()
            except BrokenExecutor:
                died = True
                row = Row(task.name, "failed", "its process died, often for want of memory")
            self.meter.in_hand.remove(task.name)
            if self.stop.is_set():
                return
            self._end(number, task, row)
            self.queue.task_done()
            if died:
                return


def _unconverged(configs: Mapping[str, StoredConfig]) -> list[str]:
    """Those of these runs in which, at the last epoch, samples missed their equilibrium."""
    store = default_store()
    ids = []
    for run in configs:
        if "deq" not in run or not store.has(run):  # the id begins with what the run is
            continue
        history = store.open(run).history
        solved = history[history["metric"] == "solver_converged"]
        last = solved[solved["epoch"] == solved["epoch"].max()]
        if (last["value"] < 1).any():
            ids.append(run)
    return ids


def shown(path: Path) -> str:
    """A path as one types it here: relative to the working directory where it lies below that."""
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return str(path)


@contextlib.contextmanager
def _folders_of_kernels() -> Iterator[None]:
    """What kernels inherit: this project, the folder of these results, one thread, and pictures in
    the notebook, whatever backend the terminal has set."""
    environment = runs.worker_environment() | {
        "NCLIB_ROOT": str(paths.root()),
        "NCLIB_RESULTS": str(paths.results()),
        "NCLIB_DATA": str(paths.data()),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    with paths.environment_restored(environment):
        os.environ.update(environment)
        yield


# --- the largest scale ----------------------------------------------------------------------------


def largest_scales(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """For each of these notebooks that has runs, the largest scale at which all of them are there.

    ``results/reference/scales.json`` lists the scales of the tracked runs, the largest first. A
    notebook that plots what is there (`DRAW_A_PART`) needs one pair of networks. Lessons are left
    out.

    Returns
    -------
    dict
        By notebook: profile, parameters, folder among the results, and in words the images and, of
        a ResNet-18 or DEQ, the scale.
    """
    found: dict[str, dict[str, Any]] = {}
    for scale in _tracked_scales():
        folder = f"{scale['profile']}/with/{paths.folder_name(scale['parameters'])}"
        for name in names:
            if name in found or name.startswith(f"{COURSE}/"):
                continue
            task = _task_at(scale, name)
            if task is not None:
                found[name] = scale | _in_words(task) | {"folder": folder}
    return found


def _tracked_scales() -> list[dict[str, Any]]:
    """What ``scales.json`` lists."""
    listing = paths.reference() / "scales.json"
    return json.loads(listing.read_bytes()) if listing.is_file() else []


def _task_at(scale: Mapping[str, Any], name: str) -> Task | None:
    """What a notebook needs at a scale; None where that is nothing, or not there."""
    try:
        (task,) = prepare([name], scale["profile"], _as_typed(scale), "finished")
    except ConfigError:  # a notebook without these parameters, or without these data
        return None
    follows = set(scale["parameters"]) <= set(task.values)
    return task if follows and task.runs and task.has_runs else None


def _tasks_at(scales: Mapping[str, Mapping[str, Any]]) -> list[Task]:
    """The notebooks at the scales that `largest_scales` has chosen for them."""
    return [_task_at(scale, name) for name, scale in scales.items()]


def _in_words(task: Task) -> dict[str, str]:
    configs = list(task.runs.values())
    images = dict.fromkeys(profiles.images_of(config) for config in configs)
    networks = [config for config in configs if isinstance(config, RunConfig)]
    scale = profiles.scale_of(networks) if networks else ""
    return {"images": " and ".join(images), "scale": scale}


def _as_typed(scale: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in scale["parameters"].items()]
