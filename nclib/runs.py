"""Runs: train those that are not stored, here, in processes or on any executor, and return their
results as one table.

`ensure_runs` is what notebooks call. It looks each configuration up by its id, has `train_run` make
those that are missing, one process at a time for each of them, and returns one tidy frame of all.
"""

import concurrent.futures
import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch

from nclib import models, provenance, training
from nclib.compare import SETTING
from nclib.config import (
    ConfigError,
    RunConfig,
    StoredConfig,
    TrainConfig,
    one_of,
    run_id,
    source_file,
)
from nclib.data import make_split
from nclib.deq import PACKAGES, ForwardNotConverged
from nclib.paths import environment_restored, write_atomic
from nclib.profiles import outline
from nclib.store import (
    DamageWarning,
    RunStore,
    default_store,
    finished,
    identity_columns,
    labels,
    load_run,
    one_place,
    reference_store,
    stack,
    tidy,
)
from nclib.training import Result as Result

# Who owns what, from the outside in:
#
#   ensure_runs     the table: it checks the request, raises for failures and reads the results
#   train_missing   the list: which runs are not stored, and where they are trained
#   _Grid           the count: which runs are over, and why some failed
#   attempt         an error, which it turns into a sentence that a worker can send back, and the
#                   warnings that a reader should see
#   train_run       the lock: one process at a time for each run, first for the one it builds on
#   _make           the record: threads, warnings, versions, cost; it stores run and record
#   training.train  the arithmetic and the epochs; it knows no store, only a checkpoint

TRAIN = ("missing", "never", "finished")
"""What may be done about runs that are not there: train those that are not stored, fail, or plot
without them. In the last two, a run is there when it is finished: stored or tracked
(`nclib.store.finished`)."""
PAIR = ("explicit", "deq")
"""Kinds of the two networks that are compared."""

Progress = Callable[[float, float, str], None]
RunLog = Callable[[str, int, Mapping[str, float]], None]
RunProgress = Callable[[float, float], None]
EpochLog = Callable[[int, Mapping[str, float]], None]


class MissingRuns(RuntimeError):
    """Runs that are neither stored nor among the reference results, when training is not
    allowed."""

    exit_code = 1


class RunsFailed(RuntimeError):
    """Some runs ended with an error; `failures` maps run ids to messages. All others are stored."""

    exit_code = 1

    def __init__(self, failures: dict[str, str]) -> None:
        self.failures = failures
        listing = "\n".join(f"  {run}: {message}" for run, message in failures.items())
        super().__init__(
            f"runs that failed: {len(failures)}. Type the same again to go on.\n{listing}"
        )


# --- many runs ------------------------------------------------------------------------------------


def ensure_runs(
    configs: Sequence[StoredConfig],
    executor: concurrent.futures.Executor | None = None,
    train: Literal["missing", "never", "finished"] = "missing",
    workers: int = 1,
    progress: Progress | None = None,
    device: str | None = None,
    log: RunLog | None = None,
) -> pd.DataFrame:
    """The results of these runs as one tidy table, training first what is not stored.

    Parameters
    ----------
    configs : the runs, trained in this order; repetitions are trained once
    executor : where to train: any `concurrent.futures.Executor` whose workers see the run store,
        such as ``dask.distributed.Client(…).get_executor()``; left out: on this machine
    train : "missing" trains what the run store lacks; "never" takes all runs from the run store, or
        all from the reference results, or, where neither has all, each from where it is; "finished"
        is the same here: `drawable` has left out the others
    workers : how many processes of this machine train at once; 1: here, one run after the other
    progress : called as ``progress(done, of, text)``, in runs, and in parts of them where they are
        trained here
    device : for instance "cuda:1"; left out: the first CUDA device where there is one, else the CPU
    log : called as ``log(run_id, epoch, metrics)`` after each epoch of a run that is trained, for
        TensorBoard and such, where it is trained here; the metrics are {"steps/loss": 2.3,
        "test/accuracy_balanced": 0.4, …}

    Returns
    -------
    DataFrame
        A row for each run, split, metric and epoch: `nclib.store.tidy`

    Raises
    ------
    RunsFailed
        When some could not be trained; raised after all others are done and stored.
    MissingRuns
        Where training is not allowed, naming what is absent.

    Examples
    --------
    >>> import nclib as nc
    >>> data = nc.DataConfig(dataset="digits", n_max=2, test_per_class=2)
    >>> network = nc.ModelConfig(kind="explicit", width=2)
    >>> config = nc.RunConfig(data=data, model=network, train=nc.TrainConfig(epochs=1))
    >>> frame = nc.ensure_runs([config])
    >>> sorted(frame["split"].unique())
    ['steps', 'test', 'train']
    """
    one_of(train, TRAIN, "value of train")
    wanted = _by_id(configs)
    if train == "missing":
        failures = train_missing(
            list(wanted.values()), executor, workers, progress, device, log=log
        )
        if failures:
            raise RunsFailed(failures)
    else:
        missing = sorted(wanted.keys() - set(finished(wanted)))
        if missing:
            raise MissingRuns(
                f"train={train!r} forbids training the {len(missing)} runs that are missing: "
                f"{', '.join(missing)}. train='missing' trains them here"
            )
    place = one_place(wanted)  # a pair that is half tracked compares two machines
    frames = []
    for run, config in wanted.items():
        stored = load_run(run) if place is None else place.open(run)
        frames.append(tidy(stored, labels(config)))
    return stack(frames)


def train_missing(
    configs: Sequence[StoredConfig],
    executor: concurrent.futures.Executor | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    device: str | None = None,
    stored: Callable[[str], None] | None = None,
    log: RunLog | None = None,
) -> dict[str, str]:
    """Train those of the runs that are not stored, in the order given; arguments as of
    `ensure_runs`.

    Parameters
    ----------
    stored : called with the id of each run once it is stored and sound, first for those that were
        there before

    Returns
    -------
    dict
        Why runs are not there, by id. Nothing is raised for a run that fails.

    Raises
    ------
    ConfigError
        As of `check_runs`; nothing is trained then.
    """
    store = default_store()
    missing = {}
    for run, config in _by_id(configs).items():
        if not store.is_sound(run):
            missing[run] = config
        elif stored is not None:
            stored(run)
    check_runs(missing.values())
    store.root.mkdir(parents=True, exist_ok=True)
    grid = _Grid(missing, store, progress, stored, device)
    if executor is not None:
        for run in grid.train_on(executor, list(missing)).under_way:
            grid.end(run, Attempt("the executor lost its process"))
    elif workers > 1:
        _train_in_processes(grid, workers)
    else:
        _train_here(grid, log)
    return grid.failures


def plan(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """What `ensure_runs` would do.

    Parameters
    ----------
    configs : of the runs

    Returns
    -------
    DataFrame
        A row for each run: run_id, dataset, model, K_A, R, seed and state ("stored", "reference" or
        "missing").

    Examples
    --------
    >>> import nclib as nc
    >>> data = nc.DataConfig(dataset="digits", n_max=2, test_per_class=2)
    >>> network = nc.ModelConfig(kind="explicit", width=2)
    >>> config = nc.RunConfig(data=data, model=network, train=nc.TrainConfig(epochs=1))
    >>> list(nc.runs.plan([config])[["dataset", "model", "seed"]].iloc[0])
    ['digits', 'explicit', np.int64(0)]
    """
    store = default_store()
    reference = set(reference_store().ids())
    rows = []
    for run, config in _by_id(configs).items():
        state = "missing"
        if store.has(run):
            state = "stored"
        elif run in reference:
            state = "reference"
        columns = identity_columns(config.canonical())
        columns["model"] = labels(config).get("model", columns["model"])
        rows.append({"run_id": run, **columns, "state": state})
    return pd.DataFrame(rows, columns=["run_id", *identity_columns({}), "state"])


def check_runs(configs: Iterable[StoredConfig]) -> None:
    """Refuse runs that would fail at their first step, with more images than there are, a network
    too narrow or a cell of the user's own that does not fit.

    Raises
    ------
    ConfigError
        Saying which, and why.
    """
    networks = {
        (config.data, config.model): config for config in configs if isinstance(config, RunConfig)
    }
    images = None
    for config in sorted(networks.values(), key=lambda config: repr(config.data)):
        try:
            if config.data != images:
                images = config.data
                split = make_split(images, config.seed)
            models.build_model(config.model, len(split.counts), split.train_images.shape[1])
        except ValueError as error:
            raise ConfigError(str(error)) from None


def _by_id(configs: Sequence[StoredConfig]) -> dict[str, StoredConfig]:
    configs = list(configs)
    if not all(isinstance(config, StoredConfig) for config in configs):
        raise ConfigError("give a list of configurations; for a single one [config]")
    by_id: dict[str, StoredConfig] = {}
    for config in configs:
        run = run_id(config)
        if run in by_id and labels(by_id[run]).get("model") != labels(config).get("model"):
            raise ConfigError(f"{run} has two names; a name is no part of a run, so leave out one")
        by_id[run] = config
    return by_id


# --- one run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What a configuration of another kind than a classifier is given to make its run with.

    Parameters
    ----------
    store : the run store, to read from
    base : id there of the run that this one ``needs``; None where it needs none
    device : where to compute
    progress : to be called with the units of work done and all of them
    checkpoint : keeps the state of an interrupted run, with load() and save(state)
    """

    store: RunStore
    base: str | None
    device: torch.device
    progress: RunProgress
    checkpoint: Any


class Shown(NamedTuple):
    """A warning that a reader should see, as a worker can send it."""

    message: str
    category: type[Warning]
    filename: str
    line: int


def show_warning(warning: Shown) -> None:
    """Warn, here and now."""
    warnings.warn_explicit(*warning)


def train_run(
    config: StoredConfig,
    store: RunStore,
    device: str | None = None,
    progress: RunProgress | None = None,
    log: EpochLog | None = None,
    show: Callable[[Shown], None] = show_warning,
) -> str:
    """Make sure that one run is stored, training or continuing it if it is not; returns its id.

    Safe to call from any number of processes at once: they take turns, and all but the first find
    the run done. One that is stored is left as it is, also in a store that may only be read.

    Parameters
    ----------
    config : of any kind of run; the run that it needs is made first if it is not there
    store : where it is kept
    device : left out: the first CUDA device where there is one, else the CPU
    progress : called with the units of work done and all of them
    log : of a classifier, called with each epoch and its metrics
    show : called with each warning that a reader should see; left out, it is given as a warning.
        All others are in the record of the run alone
    """
    run = run_id(config)
    if store.is_sound(run):
        return run
    with store.lock(run):
        if not store.is_sound(run):
            device = training.usable_device(device)
            _make(config, store, device, progress or _no_progress, log, show)
    return run


def _no_progress(*_: Any) -> None:
    pass


def _make(
    config: StoredConfig,
    store: RunStore,
    device: torch.device,
    progress: RunProgress,
    log: EpochLog | None,
    show: Callable[[Shown], None],
) -> None:
    """Train one run, and first the one that it needs, and store it."""
    base = None
    needed = config.needs()
    if needed is not None:
        base = train_run(needed, store, str(device), lambda *_: progress(0, 1), show=show)
    if config.on_cpu:
        device = torch.device("cpu")
    code = {}
    if isinstance(config, RunConfig) and config.model.own_cell:
        module = config.model.own_cell.partition(":")[0]
        code[f"{module}.py"] = source_file(config.model.own_cell).read_bytes()

    caught: list[warnings.WarningMessage] = []
    training_config = getattr(config, "train", None)
    try:
        with (
            one_thread(),
            provenance.Cost() as cost,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("default")
            checkpoint = store.checkpoint(run_id(config))
            if isinstance(config, RunConfig):
                here = provenance.capture(device)
                result = training.train(
                    config,
                    device=device,
                    checkpoint=checkpoint,
                    progress=progress,
                    log=log,
                    session=lambda: here | {"cost": cost.as_dict()},
                )
            else:
                result = config.execute(Job(store, base, device, progress, checkpoint))
            arithmetic = contextlib.nullcontext()
            if isinstance(training_config, TrainConfig):
                arithmetic = training.arithmetic(training_config, device)
            with arithmetic:
                record = provenance.capture(device, [config.seed], cost)
    finally:  # of a run that fails, too
        for warning in _for_readers(caught, config):
            show(warning)
    record["facts"] = dict(result.facts)
    if base is not None:
        record["facts"]["base"] = base
    record["warnings"] = sorted({str(warning.message) for warning in caught})
    store.save(config, result, record, code)


def _for_readers(
    caught: Iterable[warnings.WarningMessage], config: StoredConfig
) -> Iterable[Shown]:
    """What of a run's warnings is shown, each once: lost work, a last epoch gone wrong, and what
    the user's own cell says."""
    training_config = getattr(config, "train", None)
    is_classifier = isinstance(training_config, TrainConfig)
    own_cell = isinstance(config, RunConfig) and config.model.own_cell is not None
    shown = {}
    for warning in caught:
        message = str(warning.message)
        of_own_cell = own_cell and not warning.filename.startswith(PACKAGES)
        ours = issubclass(warning.category, (DamageWarning, ForwardNotConverged))
        # `training` begins what it says of an epoch in this way.
        of_last_epoch = is_classifier and message.startswith(f"epoch {training_config.epochs}:")
        if of_own_cell or ours or of_last_epoch:
            category = _known_category(warning.category)
            shown[Shown(message, category, warning.filename, warning.lineno)] = None
    return shown


def _known_category(category: type[Warning]) -> type[Warning]:
    """The nearest class that every process knows; it may not find one of the user's own."""
    for kind in category.__mro__:
        if kind.__module__.startswith(("builtins", "nclib.")):
            return kind
    return UserWarning


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread a run, or as many as NCLIB_THREADS sets, whatever the session around it uses: the
    number of threads changes the last bits of a result, and more runs at once use a machine better
    than more threads."""
    with training.ONE_AT_A_TIME:  # of other threads of a worker, too
        before = torch.get_num_threads()
        torch.set_num_threads(threads())
        try:
            yield
        finally:
            torch.set_num_threads(before)


def threads() -> int:
    """Threads of each run: NCLIB_THREADS, else 1."""
    text = os.environ.get("NCLIB_THREADS") or "1"
    if not text.isdecimal() or text == "0":
        raise ConfigError(
            f"NCLIB_THREADS={text!r} is not a number of threads; write NCLIB_THREADS=1"
        )
    return int(text)


class Attempt(NamedTuple):
    """How one run went: why it is not stored, "" where it is, and the warnings to show."""

    failure: str = ""
    shown: tuple[Shown, ...] = ()


def attempt(
    config: StoredConfig,
    root: str,
    device: str | None = None,
    progress: RunProgress | None = None,
    log: EpochLog | None = None,
) -> Attempt:
    """Make sure that a run is stored. This is what workers run.

    Parameters
    ----------
    root : of the run store, which workers share with the client. The others are those of
        `train_run`
    """
    if not Path(root).is_dir():
        return Attempt(
            "a worker does not see the run store: put NCLIB_RESULTS on a disk that workers share"
        )
    store = RunStore(root)
    shown: list[Shown] = []
    failure = ""
    try:
        train_run(config, store, device, progress, log, shown.append)
    except Exception as error:
        failure = _failure(error, run_id(config), store)
    return Attempt(failure, tuple(shown))


def _failure(error: BaseException, run: str, store: RunStore) -> str:
    """The error in a sentence, and the file beside the checkpoint that has its traceback."""
    sentence = f"{type(error).__name__}: {error}"
    if _lacks_memory(error):
        sentence = f"there is not enough memory for it: go on with fewer workers ({sentence})"
    text = "".join(traceback.format_exception(error))
    try:
        path = write_atomic(store.partial(run) / "traceback.txt", text)
    except OSError as no_disk:
        return f"{sentence}\n    traceback: not written ({no_disk})"
    return f"{sentence}\n    traceback: {path}"


def _lacks_memory(error: BaseException) -> bool:
    """Whether an allocation failed: of Python, on a GPU, or, where PyTorch has no error of its own
    for it, on the CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


# --- where runs are trained -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Lost:
    """Runs that a broken executor did not finish: those that it was working on, and those not yet
    handed to it."""

    under_way: list[str]
    waiting: list[str]


class _Grid:
    """Runs to be trained, until each is stored or its failure named."""

    def __init__(
        self,
        configs: Mapping[str, StoredConfig],
        store: RunStore,
        progress: Progress | None,
        stored: Callable[[str], None] | None,
        device: str | None,
    ) -> None:
        self.configs = configs
        self.store = store
        self.progress = progress
        self.stored = stored
        self.device = device
        self.failures: dict[str, str] = {}
        self.shown: set[Shown] = set()
        self.ended = 0

    def end(self, run: str, outcome: Attempt) -> None:
        """A run is over: stored, or failed. A warning of several runs is shown once."""
        self.ended += 1
        for warning in outcome.shown:
            if warning not in self.shown:
                self.shown.add(warning)
                show_warning(warning)
        failure = outcome.failure
        if not failure and not self.store.has(run):
            failure = "a worker has finished it, and it is not to be seen in the run store here"
        if failure:
            self.failures[run] = failure
        elif self.stored is not None:
            self.stored(run)

    def report(self, part: float = 0.0) -> None:
        """Tell the progress, with the part of the run that is being trained."""
        if self.progress is not None:
            done = self.ended + part
            self.progress(done, len(self.configs), f"{int(done)} of {len(self.configs)} runs")

    def train_on(
        self,
        executor: concurrent.futures.Executor,
        runs: Sequence[str],
        at_once: float = math.inf,
        devices: Iterator[str | None] | None = None,
    ) -> _Lost:
        """Train these runs on an executor, until all are over or it breaks because a process of it
        died."""
        waiting = list(runs)
        running: dict[concurrent.futures.Future, str] = {}
        lost: list[str] = []
        while running or (waiting and not lost):
            while waiting and not lost and len(running) < at_once:
                run = waiting.pop(0)
                device = next(devices) if devices else self.device
                try:
                    future = executor.submit(
                        attempt, self.configs[run], str(self.store.root), device
                    )
                    running[future] = run
                except concurrent.futures.BrokenExecutor:
                    lost.append(run)
            done, _ = concurrent.futures.wait(running, 0.5, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                run = running.pop(future)
                error = future.exception()
                if isinstance(error, concurrent.futures.BrokenExecutor):
                    lost.append(run)
                elif error is not None:
                    self.end(run, Attempt(_failure(error, run, self.store)))
                else:
                    self.end(run, future.result())
            self.report()
        return _Lost(lost, waiting)


def _train_here(grid: _Grid, log: RunLog | None) -> None:
    """One run after the other, in this process."""

    def note(done: float, total: float) -> None:
        grid.report(done / total)

    for run, config in grid.configs.items():
        epoch_log = functools.partial(log, run) if log else None
        grid.end(run, attempt(config, str(grid.store.root), grid.device, note, epoch_log))


def _train_in_processes(grid: _Grid, workers: int) -> None:
    """In processes of this machine, which take its GPUs in turn.

    A process that dies breaks its pool, and with it all runs under way. Each of them goes on from
    its checkpoint alone, so that the one at fault is known; then the others go on.
    """
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    devices = itertools.cycle(gpus if gpus and grid.device is None else [grid.device])
    waiting = list(grid.configs)
    while waiting:
        with process_pool(workers) as pool:
            lost = grid.train_on(pool, waiting, workers, devices)
        for run in lost.under_way:
            with process_pool(1) as pool:
                again = grid.train_on(pool, [run], 1, devices)
            if again.under_way:
                reason = (
                    "its process died twice, often for want of memory; go on with fewer workers"
                )
                grid.end(run, Attempt(reason))
        waiting = lost.waiting


@contextlib.contextmanager
def process_pool(workers: int) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Worker processes of this machine, which end with this one, however it ends, and with the
    block: nobody wants anything of them that is not stored. No port is opened.

    Raises
    ------
    ConfigError
        Where no process can start. Each runs the script anew, so what trains stands under a guard.
    """
    context = multiprocessing.get_context("spawn")
    environment = worker_environment()
    with environment_restored(environment):
        os.environ.update(environment)
        started = context.Event()
        pool = concurrent.futures.ProcessPoolExecutor(workers, context, _begin_worker, (started,))
        try:
            yield pool
        finally:
            kill_processes(pool)
            pool.shutdown(cancel_futures=True)
        if pool._broken and not started.is_set():
            raise ConfigError(
                "no process could start, each of which runs the script first: "
                'save it as a file, write if __name__ == "__main__": above what trains, '
                "and indent that"
            )


def kill_processes(pool: concurrent.futures.ProcessPoolExecutor) -> None:
    """End the processes of a pool at once. From Python 3.14 on, this is pool.kill_workers()."""
    for process in list((pool._processes or {}).values()):
        process.kill()


def worker_environment() -> dict[str, str]:
    """What is read when a process loads the C library and torch: one thread, deterministic cuBLAS,
    and memory that glibc keeps instead of fetching it anew in each step, page by page."""
    return {
        "OMP_NUM_THREADS": str(threads()),
        "OMP_WAIT_POLICY": "PASSIVE",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(2**32),
    }


def default_workers(runs: int) -> int:
    """One process a GPU, else one a core, and no more than there are runs."""
    return min(torch.cuda.device_count() or provenance.usable_cores(), runs)


def _begin_worker(started: Any) -> None:
    """Begin a worker and say so. Ctrl-C, which a terminal sends to all processes, is answered by
    the one that started it; the worker ends with that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    started.set()


def _end_with_parent() -> None:
    """End this process when its parent ends, which can signal nothing where it is killed."""
    multiprocessing.parent_process().join()
    os._exit(1)  # an unfinished file was written aside and is not taken for done


# --- a part of the runs ---------------------------------------------------------------------------


def drawable(configs: Sequence[StoredConfig], train: str = "finished") -> list[StoredConfig]:
    """The runs that a notebook plots.

    Parameters
    ----------
    configs : all runs of the notebook
    train : of the notebook. "finished" leaves out a run that is neither stored nor tracked, and
        with it the runs on the same data, training and seed, because differences are paired by
        seed. Any other value leaves out nothing

    Returns
    -------
    list of configurations, in the order given

    Raises
    ------
    MissingRuns
        Where nothing would be left.

    Examples
    --------
    >>> import nclib as nc
    >>> configs = nc.experiment("fig3", "smoke")
    >>> len(nc.runs.drawable(configs, "missing")) == len(configs)
    True
    """
    if train != "finished":
        return list(configs)
    kept = finished_pairs(configs)
    if not kept:
        raise MissingRuns(
            f"none of {len(configs)} runs is finished with its partner; train='missing' trains them"
        )
    if len(kept) < len(configs):
        print(
            f"{len(kept)} of {len(configs)} runs are plotted. "
            "The others are unfinished or lack their partner."
        )
    return kept


def finished_pairs(configs: Sequence[StoredConfig]) -> list[StoredConfig]:
    """Those of these runs that are stored or tracked together with the runs on the same data,
    training and seed."""
    there = set(finished(map(run_id, configs)))
    unfinished = {_partners(config) for config in configs if run_id(config) not in there}
    return [config for config in configs if _partners(config) not in unfinished]


def _partners(config: StoredConfig) -> Any:
    """What runs that are compared have in common."""
    if isinstance(config, RunConfig):
        return config.data, config.train, config.seed
    return run_id(config)


def whole(
    rows: pd.DataFrame, planned: Sequence[StoredConfig], pair: tuple[str, str] = PAIR
) -> pd.DataFrame:
    """The rows of the settings that have every seed that is planned for them, of both networks.

    Parameters
    ----------
    rows : tidy frame
    planned : all runs of the notebook, finished or not
    pair : kinds of the two networks

    Returns
    -------
    DataFrame, with the columns of `rows`
    """
    seeds = settings(planned).merge(_seeds(rows, pair), on=SETTING, suffixes=("_planned", ""))
    complete = seeds.loc[seeds["seed"] >= seeds["seed_planned"], SETTING]
    return rows.merge(complete, on=SETTING)


def counted(rows: pd.DataFrame, planned: Sequence[StoredConfig]) -> tuple[int, int]:
    """How many settings have rows, and how many are planned."""
    return len(_seeds(rows)), len(settings(planned))


def settings(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """The settings of these runs and the number of their seeds: dataset, K_A (missing in balanced
    ones), R, seed."""
    return _seeds(pd.DataFrame([identity_columns(config.canonical()) for config in configs]))


def _seeds(rows: pd.DataFrame, pair: tuple[str, ...] = ()) -> pd.DataFrame:
    """Number of seeds of each setting, that all of these networks have."""
    rows = rows.astype({"K_A": "Float64", "R": "Float64"})
    if pair:
        kinds = (
            rows[rows["model"].isin(pair)]
            .groupby([*SETTING, "seed"], dropna=False)["model"]
            .nunique()
        )
        rows = kinds[kinds == len(pair)].reset_index()
    return rows.groupby(SETTING, dropna=False, as_index=False)["seed"].nunique()


# --- records of runs ------------------------------------------------------------------------------


def runs_provenance(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """Where the results of these runs come from.

    Parameters
    ----------
    configs : of runs that are stored or tracked

    Returns
    -------
    DataFrame
        One fact a row with every value that occurs: commit, whether the tree was changed, versions,
        device, threads, determinism, how many runs went on from a checkpoint (then of all their
        sessions), and the processor seconds of all runs together.

    Examples
    --------
    >>> import nclib as nc
    >>> data = nc.DataConfig(dataset="digits", n_max=2, test_per_class=2)
    >>> network = nc.ModelConfig(kind="explicit", width=2)
    >>> config = nc.RunConfig(data=data, model=network, train=nc.TrainConfig(epochs=1))
    >>> frame = nc.ensure_runs([config])
    >>> nc.runs.runs_provenance([config]).shape[0] > 5
    True
    """
    records = [load_run(config).provenance for config in _by_id(configs).values()]
    sessions = []
    seeds = set()
    for record in records:
        sessions += provenance.sessions(record)
        seeds.update(map(str, record.get("seeds") or ()))
    table = pd.json_normalize(sessions)
    kept = [
        "commit",
        "dirty",
        "python",
        "platform",
        "cpu",
        "threads",
        "deterministic",
        "device.type",
        "device.name",
    ]
    facts: dict[str, Any] = {"runs": len(records)}
    for name in table:
        if name in kept or name.startswith("versions."):
            facts[name.split(".")[-1]] = ", ".join(sorted(set(table[name].dropna().astype(str))))
    facts["seeds"] = ", ".join(sorted(seeds))
    facts["continued from a checkpoint"] = sum(
        bool(record["facts"].get("continued_from")) for record in records
    )
    facts["processor seconds"] = round(sum(map(provenance.processor_seconds, records)))
    return pd.Series(facts, dtype=object).to_frame("value")


def export_reference(
    configs: Sequence[StoredConfig], collection: str, finished: bool = False
) -> list[str]:
    """Copy small extracts of these stored runs to the reference results; returns their ids.

    Parameters
    ----------
    finished : leave out what has not been trained, instead of refusing

    Raises
    ------
    MissingRuns
        When one of them has not been trained.
    """
    wanted = _by_id(configs)
    store = default_store()
    there = {run: config for run, config in wanted.items() if store.has(run)}
    if len(there) < len(wanted) and not finished:
        raise MissingRuns(
            f"not trained yet: {', '.join(wanted.keys() - there)}; --finished leaves them out"
        )
    if there:
        names = sorted(
            {config.data.dataset for config in there.values() if hasattr(config, "data")}
        )
        datasets = {name: outline(name)._asdict() for name in names}
        reference_store().add(collection, map(store.open, there), datasets)
    return list(there)
