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
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
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
from nclib.store import default_store, finished

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
    name, as papermill reads them; nothing is run."""
    import papermill

    types = {"int": int, "float": float, "str": str, "bool": bool}
    defaults = {}
    for parameter, declared in papermill.inspect_notebook(source(name)).items():
        kind = types[declared["inferred_type_name"]]
        defaults[parameter] = kind(ast.literal_eval(declared["default"]))
    return defaults


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
    values : parameters to pass
    needed : its runs, by id
    optional : runs that are plotted where they are there, and never trained for this notebook
    """

    name: str
    values: dict[str, Any]
    needed: dict[str, StoredConfig]
    optional: dict[str, StoredConfig]

    @property
    def drawable(self) -> bool:
        """Whether both networks of a pair are there, if the notebook plots those that are."""
        networks = []
        for config in self.optional.values():
            if isinstance(config, RunConfig) and config.model.kind in runs.PAIR:
                networks.append(config)
        return not self.optional or bool(runs.finished_pairs(networks))


@dataclass(frozen=True)
class Row:
    """How one notebook went, with the reason where it failed."""

    notebook: str
    status: Literal["executed", "unchanged", "not drawn", "failed"]
    message: str = ""


@dataclass(frozen=True)
class Summary:
    """What one call of `reproduce` did: a row for each notebook, and the name of the folder of its
    results within those of the profile (`nclib.paths.results_with`)."""

    rows: list[Row]
    folder: str

    @property
    def ok(self) -> bool:
        """Whether no notebook failed."""
        return all(row.status != "failed" for row in self.rows)


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
    if any("cell" in values for values in given.values()):
        search_working_directory()
    tasks = []
    for name, values in given.items():
        maker = DRAWN_AS_FAR_AS_THERE.get(name, name)
        configs = {}
        if maker in profiles.makers():
            changed = profiles.given(declared[name] | values)
            for config in profiles.experiment(maker, profile, **changed):
                configs[run_id(config)] = config
        if "profile" in declared[name]:
            values["profile"] = profile
        if "train" in declared[name]:
            values["train"] = "never" if name in plotted else train
        if maker != name or name in plotted or (train == "finished" and name in DRAW_A_PART):
            tasks.append(Task(name, values, needed={}, optional=configs))
        else:
            tasks.append(Task(name, values, needed=configs, optional={}))
    return tasks


def _in_order(tasks: Iterable[Task]) -> list[Task]:
    """As they are executed: `FIRST`, the main paper, the others, those that plot what is there by
    then, the summary."""

    def rank(task: Task) -> list[Any]:
        urgent = FIRST.index(task.name) if task.name in FIRST else len(FIRST)
        main = task.name.startswith(f"{profiles.MAIN_PAPER}/")
        return [task.name == SUMMARY, bool(task.optional), urgent, not main]

    return sorted(tasks, key=rank)


# --- one notebook ---------------------------------------------------------------------------------


def execute(name: str, values: Mapping[str, Any], profile: str, made_from: str) -> Row:
    """Execute one notebook, and stamp it with the digest of what it was made from.

    One that fails is kept beside the complete ones as ``<name>.failed.ipynb``, and leaves an
    earlier complete one alone. Nothing is raised for what happens inside the notebook.
    """
    import papermill

    target = executed(name, profile)
    failed = target.with_suffix(".failed.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        papermill.execute_notebook(
            source(name),
            failed,
            dict(values),
            progress_bar=False,
            request_save_on_cell_execute=False,  # a notebook that is interrupted leaves no file
            extra_arguments=["--log-level=CRITICAL"],  # or the kernel's remarks fill the terminal
        )
    except papermill.PapermillExecutionError as error:
        return Row(name, "failed", f"cell {error.exec_count}: {error.ename}: {error.evalue}")
    except Exception as error:  # the kernel died, or did not start
        return Row(name, "failed", f"{type(error).__name__}: {error}")
    failed.replace(target)
    for picture in pictures(name):
        if picture.is_file():
            write_atomic(target.parent / "images" / picture.name, picture.read_bytes())
    stamp = {"made_from": made_from, "files": _saved_files(name, profile)}
    write_atomic(target.with_suffix(".json"), json_bytes(stamp))
    return Row(name, "executed")


def unchanged(name: str, profile: str, made_from: str) -> bool:
    """Whether a notebook was made from the same, and each of its files is what was written."""
    try:
        stamp = json.loads(executed(name, profile).with_suffix(".json").read_bytes())
    except (OSError, ValueError):
        return False
    return stamp == {"made_from": made_from, "files": _saved_files(name, profile)}


def _saved_files(name: str, profile: str) -> dict[str, str]:
    """The digests of an executed notebook and of the figures and tables that it has saved."""
    folder = paths.results(profile)
    files = [executed(name, profile)]
    for kind in ("figures", "tables"):
        files += folder.glob(f"{kind}/{name}[._]*")
    return {file.relative_to(folder).as_posix(): _digest(file) for file in files}


def digest_of_inputs(task: Task, profile: str, code: str) -> str:
    """Digest of all that the results of a notebook depend on: its source and the pictures in it,
    its parameters, its runs, the code and, for `SUMMARY`, the tables that it reads."""
    files = [source(task.name), *pictures(task.name)]
    for run in [*task.needed, *finished(task.optional)]:
        files.append(default_store().root / run / "DONE")
    if task.optional:  # which runs are tracked by now, and which are sealed until their analysis
        files += sorted(paths.reference().parent.glob("*/*/runs.json"))
    if task.name == SUMMARY:
        tables = paths.results(profile) / "tables" / profiles.MAIN_PAPER
        files += [file for file in sorted(tables.glob("*.csv")) if "scorecard" not in file.name]
    values = {name: value for name, value in task.values.items() if name != "train"}
    digests = [[file.parent.name, file.name, _digest(file)] for file in files]
    return sha256(json_bytes([digests, values, code]))


def code_digest() -> str:
    """Digest of nclib and of the papers' printed numbers."""
    files = sorted(provenance.folder("nclib").rglob("*.py"))
    return provenance.digest([*files, *sorted(paths.published().rglob("*.csv"))])


def _digest(file: Path) -> str:
    return sha256(file.read_bytes()) if file.is_file() else ""


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
    progress : as of `nclib.runs.ensure_runs`, called while runs are trained
    everything : train the runs of `STUDIES` too, where no names are given

    Raises
    ------
    ConfigError, DataError
        Before anything is trained.
    """
    started = time.monotonic()
    one_of(train, runs.TRAIN, "value of train")
    profiles.get_profile(profile)
    names = list(names)
    plotted = () if names or everything or train != "missing" else STUDIES
    tasks = _in_order(prepare(select(names), profile, texts, train, plotted))
    values: dict[str, Any] = {}
    needed: dict[str, StoredConfig] = {}
    for task in tasks:
        values |= task.values
        needed |= task.needed
    for name in paths.SET_BY_THE_COMMAND:
        values.pop(name, None)

    with _folders_of_kernels(paths.folder_name(values)):
        state = runs.plan(list(needed.values())).set_index("run_id")["state"]
        stored = int((state == "stored").sum())
        echo(f"profile {profile}: {len(tasks)} notebooks, {len(needed)} runs, {stored} stored")
        rows = {}
        if train != "missing":
            missing = set(state.index[state == "missing"])
            for task in tasks:
                if missing & task.needed.keys() or not task.drawable:
                    rows[task.name] = Row(task.name, "not drawn")
        for task in tasks:
            if task.name in plotted and len(finished(task.optional)) < len(task.optional):
                rows[task.name] = Row(task.name, "not drawn")
        wanted = [task for task in tasks if task.name not in rows]
        if train == "missing":
            to_train = list(needed.values())
            workers = workers or runs.default_workers(len(needed) - stored)
        else:
            to_train = []
        rows |= _train_and_execute(wanted, to_train, workers, profile, force, echo, progress)
        skipped = [name for name, row in rows.items() if row.status == "not drawn"]
        if skipped:
            hint = "; --all trains them" if plotted else ""
            echo(f"not drawn, as some of their runs are missing{hint}: {', '.join(skipped)}")
        same = sum(row.status == "unchanged" for row in rows.values())
        minutes = (time.monotonic() - started) / 60
        echo(f"{minutes:.1f} min, {same} of {len(rows)} notebooks unchanged")
        echo(f"results are in {paths.results(profile)}")
    return Summary([rows[task.name] for task in tasks], paths.folder_name(values))


def _train_and_execute(
    tasks: Sequence[Task],
    to_train: Sequence[StoredConfig],
    workers: int | None,
    profile: str,
    force: bool,
    echo: Callable[[str], None],
    progress: runs.Progress | None,
) -> dict[str, Row]:
    """Train runs, and execute each notebook as soon as its runs are there and those before it have
    begun; a row for each."""
    code = code_digest()
    began: dict[str, Future[Row] | Row] = {}

    def begin(task: Task, pool: Executor) -> None:
        made_from = digest_of_inputs(task, profile, code)
        if not force and unchanged(task.name, profile, made_from):
            began[task.name] = Row(task.name, "unchanged")
            return
        future = pool.submit(execute, task.name, task.values, profile, made_from)
        future.add_done_callback(lambda done: _tell(done, echo))
        began[task.name] = future

    with runs.process_pool(AT_ONCE) as pool:
        waiting = list(tasks)
        there: set[str] = set()

        def stored(run: str) -> None:
            there.add(run)
            while waiting and not waiting[0].optional and there.issuperset(waiting[0].needed):
                if waiting[0].name == SUMMARY:
                    break
                begin(waiting.pop(0), pool)

        failures = {}
        if to_train:
            failures = runs.train_missing(to_train, None, workers or 1, progress, stored=stored)
        for task in waiting:
            lost = [run for run in task.needed if run in failures]
            if lost:
                reason = f"{len(lost)} of its {len(task.needed)} runs failed: {failures[lost[0]]}"
                began[task.name] = Row(task.name, "failed", reason)
                echo(f"{task.name}: failed: {reason}")
                continue
            if task.name == SUMMARY:
                _rows(began)  # it reads what the others leave
            begin(task, pool)
        return _rows(began)


def _rows(began: Mapping[str, Future[Row] | Row]) -> dict[str, Row]:
    """The rows of notebooks, once all have ended."""
    rows = {}
    for name, outcome in began.items():
        rows[name] = outcome.result() if isinstance(outcome, Future) else outcome
    return rows


def _tell(done: Future[Row], echo: Callable[[str], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        row = done.result()
        message = f": {row.message}" if row.message else ""
        echo(f"{row.notebook}: {row.status}{message}")


@contextlib.contextmanager
def _folders_of_kernels(other_parameters: str) -> Iterator[None]:
    """What kernels inherit: this project, the folder of these results, one thread, and pictures in
    the notebook, whatever backend the terminal has set."""
    environment = {
        "NCLIB_ROOT": str(paths.root()),
        "NCLIB_RESULTS": str(paths.results()),
        "NCLIB_DATA": str(paths.data()),
        "NCLIB_WITH": other_parameters,
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1",
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
    listing = paths.reference() / "scales.json"
    found: dict[str, dict[str, Any]] = {}
    for scale in json.loads(listing.read_bytes()) if listing.is_file() else []:
        folder = f"{scale['profile']}/with/{paths.folder_name(scale['parameters'])}"
        for name in names:
            if name in found or name.startswith(f"{COURSE}/"):
                continue
            task = _task_at(scale, name)
            if task is not None:
                found[name] = scale | _in_words(task) | {"folder": folder}
    return found


def _task_at(scale: Mapping[str, Any], name: str) -> Task | None:
    """What a notebook needs at a scale; None where that is nothing, or not there."""
    try:
        (task,) = prepare([name], scale["profile"], _as_typed(scale), "finished")
    except ConfigError:  # a notebook without these parameters, or without these data
        return None
    follows = set(scale["parameters"]) <= set(task.values)
    complete = len(finished(task.needed)) == len(task.needed)
    has_runs = bool(task.needed or task.optional)
    return task if follows and has_runs and complete and task.drawable else None


def _in_words(task: Task) -> dict[str, str]:
    configs = [*task.needed.values(), *task.optional.values()]
    images = dict.fromkeys(profiles.images_of(config) for config in configs)
    networks = [config for config in configs if isinstance(config, RunConfig)]
    scale = profiles.scale_of(networks) if networks else ""
    return {"images": " and ".join(images), "scale": scale}


def _as_typed(scale: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in scale["parameters"].items()]


def reproduce_largest(
    names: Iterable[str] = (),
    profile: str = "quick",
    force: bool = False,
    echo: Callable[[str], None] = print,
) -> bool:
    """Execute notebooks at their largest scale from stored and tracked runs, without training, next
    to a profile of toy data; whether none failed.

    ``largest.json`` among the results of the profile keeps what `largest_scales` returns.
    """
    if profiles.get_profile(profile).dataset != "digits":
        return True
    wanted = largest_scales(select(names))
    ok = True
    for folder in dict.fromkeys(scale["folder"] for scale in wanted.values()):
        chosen = [name for name, scale in wanted.items() if scale["folder"] == folder]
        scale = wanted[chosen[0]]
        echo(f"from stored runs, without training: {folder.replace('/with/', ' with ')}")
        summary = reproduce(
            chosen, scale["profile"], _as_typed(scale), train="finished", force=force, echo=echo
        )
        ok = ok and summary.ok
    file = paths.results(profile) / "largest.json"
    before = json.loads(file.read_bytes()) if file.is_file() else {}
    write_atomic(file, json_bytes(before | wanted))
    return ok
