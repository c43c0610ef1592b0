"""Runs are made here: trained if they are not stored, on whatever executor is given, and their results returned."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import os
import secrets
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch

from nclib import training
from nclib.config import ConfigError, RunConfig, StoredConfig, parse_json, run_id, suggest
from nclib.data import DataError, fetch
from nclib.engine import cluster
from nclib.engine.costs import CostModel, Forecast, estimate_gpu_gib
from nclib.engine.experiments import Profile, experiment, outline
from nclib.engine.reading import CorruptRun, identity_columns, stack, tidy, wall_seconds
from nclib.engine.reference import load_run, reference_store
from nclib.engine.store import DamageWarning, RunStore, default_store
from nclib.papers.kernel_equivalence import networks
from nclib.papers.kernel_equivalence.networks import ShallowConfig
from nclib.papers.neural_collapse import probes
from nclib.papers.neural_collapse.probes import ProbeConfig
from nclib.papers.separation_bias import grad_cam, regression
from nclib.papers.separation_bias.grad_cam import CamConfig
from nclib.papers.separation_bias.regression import RegressionConfig
from nclib.system import provenance
from nclib.system.provenance import duration

Progress = Callable[[float, float, str], None]


class MissingRuns(RuntimeError):
    """Runs that are neither stored nor among the reference results, when training is not allowed."""


class RunsFailed(RuntimeError):
    """Some runs ended with an error; `failures` maps run ids to messages. All others are stored."""

    def __init__(self, failures: dict[str, str]) -> None:
        self.failures = failures
        listing = "\n".join(f"  {run}: {message}" for run, message in failures.items())
        super().__init__(
            f"runs that failed: {len(failures)}; all others are stored. Type the same again to go on.\n{listing}"
        )


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    """One thread a run, or as many as NCLIB_THREADS says, whatever the session around it uses: the number of threads
    changes the last bits of a result, and more runs at once use a machine better than more threads."""
    wanted = os.environ.get("NCLIB_THREADS", "1")
    if not wanted.isdigit() or int(wanted) < 1:
        raise ConfigError(f"NCLIB_THREADS={wanted!r} must be a whole number of at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(int(wanted))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train_classifier(
    config: RunConfig, store: RunStore, device: torch.device, progress: Callable[[int, int], None]
) -> None:
    """Train one classifier and store it; a checkpoint is written after each epoch."""
    run = run_id(config)

    def note(done: int, total: int) -> None:
        store.note_progress(run, done, total)
        progress(done, total)

    with _threads(), provenance.Cost(device) as cost, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        here = provenance.capture(device)
        result = training.train(
            config,
            device=device,
            checkpoint=store.checkpoint(run),
            progress=note,
            session=lambda: here | {"cost": cost.as_dict()},
        )
        with training.arithmetic(config.train, device):
            record = provenance.capture(device, [config.seed], cost)
    said = sorted({str(warning.message) for warning in caught})
    record |= {"facts": result.facts, "warnings": said}
    tables = {"history": result.history, "classes": result.classes, "cost": result.cost}
    store.save(config, tables, result.arrays, result.weights, record)
    for warning in caught:
        if issubclass(warning.category, DamageWarning):  # the others are only kept with the run
            warnings.warn(warning.message, stacklevel=2)


def _probe_solver(
    config: ProbeConfig, store: RunStore, device: torch.device, progress: Callable[[int, int], None]
) -> None:
    """Look into the solver of a stored run, which is trained first if it is not there."""
    base = train_run(_to_json(config.base), str(store.root), str(device), lambda done, total: progress(0, 1))
    classes = store.load(base).tables["classes"]
    with _threads(), provenance.Cost(device) as cost:
        history = probes.measure(config, store.weights(base), classes, device)
        with training.arithmetic(config.train, device):
            record = provenance.capture(device, [config.seed], cost)
    store.save(config, {"history": history}, {}, {}, record | {"facts": {"base": base}, "warnings": []})
    progress(1, 1)


def _train_shallow(
    config: ShallowConfig, store: RunStore, device: torch.device, progress: Callable[[float, float], None]
) -> None:
    """Train one fully connected network and store it; the run whose features it takes is trained first if need be."""
    run, weights = run_id(config), None
    if config.encoder is not None:
        encoder = train_run(
            _to_json(config.encoder), str(store.root), str(device), lambda done, total: progress(0, config.work())
        )
        weights = store.weights(encoder)

    def note(done: float, total: float) -> None:
        store.note_progress(run, done, total)
        progress(done, total)

    with _threads(), provenance.Cost(device) as cost:
        result = networks.train_shallow(config, device, weights, store.checkpoint(run), note)
    record = provenance.capture(device, [config.seed], cost) | {"facts": result.facts, "warnings": []}
    readout = {"readout": result.weights["readout"]}
    store.save(config, {"history": result.history}, {}, readout, record)


def _train_regression(
    config: RegressionConfig, store: RunStore, device: torch.device, progress: Callable[[int, int], None]
) -> None:
    """Train one small regressor, always on the CPU, where it is fastest."""
    run, cpu = run_id(config), torch.device("cpu")

    def note(done: int, total: int) -> None:
        store.note_progress(run, done, total)
        progress(done, total)

    with _threads(), provenance.Cost(cpu) as cost:
        result = regression.train_regression(config, note)
        record = provenance.capture(cpu, [config.seed], cost)
    record |= {"facts": result.facts, "warnings": []}
    store.save(config, {"history": result.history}, result.arrays, result.weights, record)


def _look(
    config: CamConfig, store: RunStore, device: torch.device, progress: Callable[[int, int], None]
) -> None:
    """Grad-CAM of a stored run, which is trained first if it is not there."""
    base = train_run(_to_json(config.base), str(store.root), str(device), lambda done, total: progress(0, 1))
    with _threads(), provenance.Cost(device) as cost:
        history, arrays = grad_cam.look(config, store.weights(base), device)
        with training.arithmetic(config.train, device):
            record = provenance.capture(device, [config.seed], cost)
    store.save(config, {"history": history}, arrays, {}, record | {"facts": {"base": base}, "warnings": []})
    progress(1, 1)


_TRAINERS: dict[str, tuple[type[StoredConfig], Callable[..., None]]] = {
    "classifier": (RunConfig, _train_classifier),
    "solver_probe": (ProbeConfig, _probe_solver),
    "shallow": (ShallowConfig, _train_shallow),
    "regression": (RegressionConfig, _train_regression),
    "grad_cam": (CamConfig, _look),
}
"""What to do with each kind of configuration."""


def train_run(
    config_json: str, root: str, device: str | None = None, progress: Callable[[int, int], None] | None = None
) -> str:
    """Make sure that one run is stored, training or continuing it if it is not; returns its id.

    Safe to call from any number of processes at once: they take turns, and all but the first find the run done.
    """
    config = read_config(config_json)
    trainer = _TRAINERS[config.kind][1]
    store, run = RunStore(root), run_id(config)

    with store.lock(run):
        if store.is_sound(run):
            store.clear_partial(run)
        else:
            trainer(config, store, training.usable_device(device), progress or (lambda done, total: None))
    return run


def read_config(config_json: str) -> StoredConfig:
    """The configuration of any kind of run from its JSON; raises `ConfigError` for a kind there is not."""
    kind = parse_json(config_json, "configuration").get("kind", "classifier")
    if not isinstance(kind, str) or kind not in _TRAINERS:
        raise ConfigError(suggest(kind, _TRAINERS, "kind of run"))
    return _TRAINERS[kind][0].from_json(config_json)


def plan(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """What `ensure_runs` would do, a row for each run: run_id, dataset, model, K_A, R, seed, state ("stored",
    "reference" or "missing") and seconds on one core, estimated from the finished runs of this machine."""
    store, reference = default_store(), reference_store()
    model = CostModel.fit(finished_runs(store))
    rows = []
    for run, config in _unique(configs).items():
        state = "stored" if store.has(run) else "reference" if reference.has(run) else "missing"
        columns = identity_columns(config.canonical())
        rows.append({"run_id": run, **columns, "state": state, "seconds": model.seconds(config)})
    columns = ["run_id", *identity_columns({}), "state", "seconds"]
    return pd.DataFrame(rows, columns=columns).round({"seconds": 2})


def _unique(configs: Sequence[StoredConfig]) -> dict[str, StoredConfig]:
    if isinstance(configs, StoredConfig):
        raise ConfigError("give a list of configurations; for a single one [config]")
    return {run_id(config): config for config in configs}


def ensure_runs(
    configs: Sequence[StoredConfig],
    executor: concurrent.futures.Executor | None = None,
    train: Literal["missing", "never"] = "missing",
    progress: Progress | None = None,
    device: str | None = None,
) -> pd.DataFrame:
    """The results of these runs as one tidy table, training first what is not stored.

    Parameters
    ----------
    configs : the runs; repetitions are trained once
    executor : where to train, any `concurrent.futures.Executor`; left out: here, one after the other
    train : "missing" trains what the run store lacks; "never" takes what is stored or among the reference results
    progress : called as ``progress(epochs_done, epochs_total, text)``
    device : for instance "cuda:1"; left out: the first CUDA device where there is one, else the CPU

    Returns
    -------
    DataFrame, see `RunStore.frame`

    Raises
    ------
    RunsFailed
        When some could not be trained; raised after all others are done and stored.
    MissingRuns
        With train="never", naming what is absent.
    """
    if train not in ("missing", "never"):
        raise ConfigError(suggest(train, ("missing", "never"), "value of train"))
    wanted, store = _unique(configs), default_store()
    found = {run: store.find(run) for run in wanted}
    absent = {run: config for run, config in wanted.items() if found[run] is None}
    if train == "never":
        lacking = [run for run in absent if not reference_store().has(run)]
        if lacking:
            raise MissingRuns(
                f"{len(lacking)} of {len(wanted)} runs are neither in the run store nor among the reference results, "
                f"and train='never' forbids training them: {', '.join(lacking)}. Use train='missing' to train them here"
            )
    else:
        failures = train_missing(list(absent.values()), executor, progress, device).failures
        if failures:
            raise RunsFailed(failures)
    frames = []
    for run, config in wanted.items():
        frames.append(tidy(found[run] or load_run(run)).assign(profile=config.profile))
    return stack(frames)


# --- training what is missing -------------------------------------------------------------------------------------

ATTEMPTS = 3
"""How often a run is handed to a cluster that loses it, or hangs in it, before it is named as failed. Deaths of workers
are counted by the cluster itself."""
STALL_SECONDS = 600.0
"""A run on a cluster that has told nothing for so long, or for twenty times what an epoch should take, is stuck."""
_POLL_SECONDS = 0.5
_VISIBLE_SECONDS = 90.0
"""How long a shared folder may take to show a run that another machine has finished."""


class Training(NamedTuple):
    """What `train_missing` did: why runs failed, by id; how long it took; and for which runs the time given was too
    short."""

    failures: dict[str, str]
    forecast: Forecast
    unfinished: list[str]


def train_missing(
    configs: Sequence[StoredConfig],
    executor: concurrent.futures.Executor | None = None,
    progress: Progress | None = None,
    device: str | None = None,
    minutes: float | None = None,
) -> Training:
    """Train those of the runs that are not stored, the longest first; arguments as of `ensure_runs`.

    Nothing is raised for a run that fails.

    minutes : stop after so many. Then runs are trained one seed after the other, each seed in the order given, so that
        it is the end of the list that is left; what has begun keeps its last checkpoint (on an executor that is no
        cluster, in other processes, it is finished)

    Raises
    ------
    ClusterLost
        When the scheduler went away for good; what had finished by then is stored.
    """
    if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
        raise ConfigError(
            "runs cannot share a process: they set PyTorch's random state and determinism. Give an executor of "
            "processes: with nclib.engine.cluster.local(2) as executor: …"
        )
    store = default_store()
    absent = {run: config for run, config in _unique(configs).items() if not store.is_sound(run)}
    until = math.inf
    if minutes is not None:
        absent = dict(sorted(absent.items(), key=lambda item: item[1].seed))
        until = time.monotonic() + 60 * minutes
    forecast = Forecast(absent, finished_runs(store) if absent else (), longest_first=minutes is None)
    if not absent:
        failures: dict[str, str] = {}
    elif executor is None:
        failures = _train_here(absent, store, forecast, progress or _quiet, device, until)
    else:
        failures = _Grid(absent, store, forecast, progress or _quiet, device, executor, until).train()
    unfinished = [run for run in absent if run not in failures and not store.has(run)] if minutes is not None else []
    forecast.close(len(failures) + len(unfinished))
    return Training(failures, forecast, unfinished)


def _quiet(done: float, total: float, text: str) -> None:
    pass


def finished_runs(store: RunStore, latest: int = 300) -> list[tuple[StoredConfig, float]]:
    """The latest runs that this machine has finished on the device it would use now, with their seconds."""
    kind = training.default_device().type
    found = []
    for _, options, record in store.records(latest):
        try:
            config, seconds = read_config(json.dumps(options)), wall_seconds(record)
            if seconds and (record["device"]["type"] == kind or isinstance(config, RegressionConfig)):
                CostModel().seconds(config)  # raises where nothing is known of its images
                found.append((config, seconds))
        except (ValueError, KeyError, TypeError, DataError):  # of another version: not evidence
            continue
    return found


def _seconds_of(run: str, store: RunStore) -> float | None:
    """What a run that has just finished took, by its own record."""
    try:
        return wall_seconds(store.load(run).provenance)
    except CorruptRun:
        return None


def _text(absent: Mapping[str, StoredConfig], done: int, remaining: float, until: float, more: str = "") -> str:
    stop = f", stopping in {duration(max(0.0, until - time.monotonic()))}" if until < math.inf else ""
    return f"{done} of {len(absent)} runs, {duration(remaining)} left{stop}{more}"


class _TimeIsUp(Exception):
    """Raised in the middle of a training, just after a checkpoint."""


def _train_here(
    absent: dict[str, StoredConfig],
    store: RunStore,
    forecast: Forecast,
    tell: Progress,
    device: str | None,
    until: float,
) -> dict[str, str]:
    """Train these runs in this process, one after the other, until that time; returns what failed, with the reason."""
    total, failures = sum(config.work() for config in absent.values()), {}
    done, finished = 0.0, {}
    for run in forecast.order():

        def note(epoch: float, of: float, run: str = run, base: float = done) -> None:
            remaining = forecast.remaining(finished | {run: epoch / of if of else 1.0}, 1)
            tell(base + epoch, total, _text(absent, len(finished), remaining, until))
            if epoch < of and time.monotonic() > until:
                raise _TimeIsUp

        try:
            train_run(_to_json(absent[run]), str(store.root), device, note)
            forecast.done(run, _seconds_of(run, store))
        except _TimeIsUp:
            break
        except Exception as error:  # as on an executor: one failing run does not stop the others
            failures[run] = f"{type(error).__name__}: {error}"
        finished[run] = 1.0
        done += absent[run].work()
        if time.monotonic() > until:
            break
    return failures


class _Told(NamedTuple):
    """What a worker last told of a run: units done of all, when, and how many seconds the last unit took, 0 where that
    is not known."""

    done: float
    share: float
    at: float
    pace: float


class _Grid:
    """Runs on an executor, until each is stored or named, or the time is over."""

    def __init__(
        self,
        absent: dict[str, StoredConfig],
        store: RunStore,
        forecast: Forecast,
        tell: Progress,
        device: str | None,
        executor: concurrent.futures.Executor,
        until: float = math.inf,
    ) -> None:
        self.absent, self.store, self.forecast, self.tell, self.device = absent, store, forecast, tell, device
        self.executor, self.until = executor, until
        self.cluster = executor if isinstance(executor, cluster.ClusterExecutor) else None
        self.token = f".client-{secrets.token_hex(8)}"
        self.watch = cluster.Watch()
        self.told: dict[str, _Told] = {}
        self.futures: dict[concurrent.futures.Future, str] = {}
        self.attempts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}

    def train(self) -> dict[str, str]:
        """Hand everything out and wait for it; returns what failed, with the reason."""
        if self.cluster:
            self.cluster.listen(self.token, self._heard)
        with self.store.marked(self.token):
            for run in self.forecast.order():
                self._submit(run)
            pause = _POLL_SECONDS
            while self.futures:
                finished, _ = concurrent.futures.wait(self.futures, pause, concurrent.futures.FIRST_COMPLETED)
                for future in finished:
                    self._collect(self.futures.pop(future), future)
                clock = time.monotonic()
                if clock > self.until:
                    self._stop()
                self._restart_stuck(2 * pause)
                self._report()
                pause = max(_POLL_SECONDS, 20 * (time.monotonic() - clock))  # looking around costs 5 % at most
            self._await_shared()
        return self.failures

    def _stop(self) -> None:
        """Take back what has not begun. Workers of a cluster are started again, without the run they have in hand."""
        for future in list(self.futures):
            if future.cancel() or self.cluster:
                worker = self.watch.forget(self.futures.pop(future))
                if worker is not None:
                    self.cluster.restart(worker)

    def _submit(self, run: str) -> None:
        config = self.absent[run]
        try:
            options = self.cluster.room(estimate_gpu_gib(config)) if self.cluster else {}
            arguments = _to_json(config), str(self.store.root), self.token, provenance.code(), self.device
            future = self.executor.submit(train_for, *arguments, **options)
        except cluster.ClusterLost as lost:
            stored = sum(self.store.has(run) for run in self.absent)
            raise cluster.ClusterLost(
                f"{lost} and type the same again: {stored} of {len(self.absent)} runs are stored by now"
            ) from None
        except (cluster.ClusterError, concurrent.futures.BrokenExecutor) as error:
            self.failures[run] = cluster.explain(error)
            return
        self.futures[future] = run

    def _collect(self, run: str, future: concurrent.futures.Future) -> None:
        """Take in what became of a run: its files, where it was made out of sight; its error; or nothing."""
        self.watch.forget(run)
        if run in self.failures:
            return
        if future.cancelled():
            self._again(run, f"the cluster lost it {ATTEMPTS} times")
            return
        error = future.exception()
        try:
            if error is None and future.result():
                self.store.install(run, future.result())
        except (OSError, CorruptRun) as damage:
            error = damage
        if error is not None:
            self.failures[run] = cluster.explain(error)
            return
        self.forecast.done(run, _seconds_of(run, self.store))

    def _again(self, run: str, reason: str) -> None:
        self.attempts[run] += 1
        if self.store.has(run):
            return  # the worker finished it all the same
        if self.attempts[run] < ATTEMPTS:
            self._submit(run)
        else:
            self.failures[run] = reason

    def _heard(self, message: dict[str, Any]) -> None:
        """In the cluster's thread: a worker tells how far it is."""
        run = message["run"]
        if run not in self.absent:
            return
        self.watch.heard(run, message["worker"])
        now, done, total = time.monotonic(), message["done"], message["total"]
        last = self.told.get(run, _Told(done, 0.0, now, 0.0))
        pace = (now - last.at) / (done - last.done) if done > last.done > 0 else 0.0
        self.told[run] = _Told(done, done / total if total else last.share, now, pace)
        if total and not message["shared"]:
            self.store.note_progress(run, done, total)

    def _restart_stuck(self, gap: float) -> None:
        """End the processes of runs that have stopped telling. The cluster begins a restarted worker's run again, from
        its checkpoint; one that sticks time after time is named."""
        if not self.cluster:
            return
        for run, worker in self.watch.silent(self._patience, gap).items():
            share, last = self.store.progress(run), self.told.get(run, _Told(0, 0.0, 0.0, 0.0))
            if share > last.share:  # its worker waits for another process that is training it
                self.told[run] = last._replace(share=share)
                self.watch.heard(run, worker)
                continue
            if worker not in self.cluster.workers():
                continue  # died meanwhile; the run waits for another
            self.attempts[run] += 1
            if self.attempts[run] >= ATTEMPTS:
                silence = duration(self._patience(run))
                self._give_up(run, f"stuck {ATTEMPTS} times, no progress for {silence}, at last on {worker}")
            if not self.cluster.restart(worker):
                self._give_up(run, f"stuck on {worker}, which has no nanny that could restart it")

    def _give_up(self, run: str, reason: str) -> None:
        self.failures[run] = reason
        for future in [future for future, other in self.futures.items() if other == run]:
            future.cancel()
            del self.futures[future]

    def _patience(self, run: str) -> float:
        """Seconds of silence that are no cause for worry: an epoch of a training tells, other runs only at their end,
        and what builds on another run may first have to make that. Where epochs have been told, as they were."""
        if run in self.told and self.told[run].pace:
            return max(STALL_SECONDS, 20 * self.told[run].pace)
        config = self.absent[run]
        epochs = config.work() if isinstance(config, RunConfig) else 1.0
        base = getattr(config, "base", None) or getattr(config, "encoder", None)
        seconds = self.forecast.seconds(run) + (self.forecast.model.seconds(base) if base else 0.0)
        return max(STALL_SECONDS, 20 * seconds / epochs)

    def _report(self) -> None:
        pending = set(self.futures.values())
        progress = {run: self.store.progress(run) if run in pending else 1.0 for run in self.absent}
        done = sum(self.absent[run].work() * share for run, share in progress.items())
        workers = len(self.cluster.workers()) if self.cluster else os.cpu_count() or 1
        more = "" if workers or not pending else ", waiting for a worker"
        remaining = self.forecast.remaining(progress, workers)
        text = _text(self.absent, len(self.absent) - len(pending), remaining, self.until, more)
        self.tell(done, sum(config.work() for config in self.absent.values()), text)

    def _await_shared(self) -> None:
        """Other machines' files may appear late in a shared folder."""
        limit = time.monotonic() + _VISIBLE_SECONDS
        for run in self.absent if time.monotonic() < self.until else ():
            while run not in self.failures and not self.store.has(run):
                if time.monotonic() > limit:
                    self.failures[run] = "finished on a worker, but not to be seen in the run store here"
                time.sleep(0.1)


_ONE_AT_A_TIME = threading.Lock()


def train_for(
    config_json: str, root: str, token: str, version: str, device: str | None = None
) -> dict[str, bytes]:
    """What a worker does: make sure that one run is stored where the client finds it.

    Parameters
    ----------
    config_json : the run
    root, token : the client's run store, and the name of a file in it. Where this process sees that file, it works in
        the client's store; elsewhere in that of its own machine
    version : the client's `provenance.code()`; another one here would train other runs, and is refused

    Returns
    -------
    nothing where the client sees the run, else the run's files and their contents
    """
    if version != provenance.code():
        raise cluster.ClusterError(
            f"{cluster.here()} has nclib {provenance.code()}, the client {version}: install the same version there"
        )
    config = read_config(config_json)
    run = run_id(config)
    store, shared = _store_for(root, token)

    def note(done: float, total: float) -> None:
        cluster.tell(token, run=run, done=done, total=total, shared=shared)

    with _ONE_AT_A_TIME:  # in a worker with several threads; those that wait are not watched
        note(0, 0)
        for dataset in _datasets(config):
            bring(dataset)
        train_run(config_json, str(store.root), device, note)
    return {} if shared else store.pack(run)


def _store_for(root: str, token: str) -> tuple[RunStore, bool]:
    """The client's run store where this process sees it, at its place or as this machine's own; else the latter."""
    if (Path(root) / token).exists():
        return RunStore(root), True
    own = default_store()
    return own, (own.root / token).exists()


def _datasets(config: StoredConfig) -> list[str]:
    return [config.data.dataset] if hasattr(config, "data") else []


def bring(dataset: str) -> None:
    """Have a data set here; raises `DataError` that names the worker and what to do there."""
    try:
        fetch(dataset)
    except DataError as error:
        raise DataError(
            f"data set {dataset} is not on {cluster.here()}: {error}. Start workers with NCLIB_DATA on a folder that "
            "has it, such as one shared with the client"
        ) from None


def _to_json(config: StoredConfig) -> str:
    return config.model_dump_json()


def runs_provenance(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """Where the results of these runs come from, one fact a row with every value that occurs: commit, whether the tree
    was changed, versions, device, threads, determinism, how many runs went on from a checkpoint (then of all
    their sessions), and the processor seconds of all runs together."""
    records = [load_run(run).provenance for run in _unique(configs)]
    facts: dict[str, Any] = {"runs": len(records), "seeds": sorted({seed for r in records for seed in r["seeds"]})}
    facts["continued from a checkpoint"] = sum(bool(record["facts"].get("continued_from")) for record in records)
    trained = [session for record in records for session in provenance.sessions(record)]
    for name in ("commit", "dirty", "python", "platform", "cpu", "threads", "deterministic"):
        facts[name] = sorted({str(session[name]) for session in trained})
    facts["device"] = sorted({session["device"].get("name") or session["device"]["type"] for session in trained})
    for package in sorted({name for session in trained for name in session["versions"]}):
        facts[package] = sorted({session["versions"].get(package, "none") for session in trained})
    facts["processor seconds"] = round(sum(provenance.processor_seconds(record) for record in records))
    shown = {name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in facts.items()}
    return pd.Series(shown, dtype=object).to_frame("value")


def compute_in_blocks(config: RunConfig) -> float:
    """What the last block of this finished DEQ run cost in training, in untied explicit blocks.

        blocks = (s + b + 3) / 3

    In units of one evaluation of the cell, a training step of an equilibrium takes s forward evaluations, one more to
    attach the gradient, b products with the transposed Jacobian and a backward pass of 2; an explicit block takes 3.
    s and b are means over the whole run.

    Raises
    ------
    ConfigError
        For a run that is not a DEQ.
    CorruptRun
        When it is not stored.
    """
    if config.model.kind != "deq":
        raise ConfigError(f"the measured compute is that of a 'deq' run, got kind {config.model.kind!r}")
    steps = load_run(config).history.query("split == 'steps'").groupby("metric")["value"].mean()
    return float((steps["solver_steps"] + steps.get("backward_steps", 0.0) + 3) / 3)


def export_reference(
    names: Sequence[str], profile: Profile | str, collection: str, finished: bool = False, **overrides: Any
) -> list[str]:
    """Copy small extracts of the stored runs of these experiments to the reference results; returns their ids.

    finished : leave out what has not been trained, instead of refusing

    Raises
    ------
    MissingRuns
        When one of them has not been trained.
    """
    wanted: dict[str, StoredConfig] = {}
    for name in names:
        wanted |= _unique(experiment(name, profile, **overrides))
    store = default_store()
    lacking = [run for run in wanted if not store.has(run)]
    if lacking and not finished:
        raise MissingRuns(f"not trained yet: {', '.join(lacking)}; --finished leaves them out")
    wanted = {run: config for run, config in wanted.items() if run not in lacking}
    if not wanted:
        return []
    names_used = {config.data.dataset for config in wanted.values() if isinstance(config, (RunConfig, ShallowConfig))}
    datasets = {name: outline(name)._asdict() for name in sorted(names_used)}
    drawn: dict[str, StoredConfig] = {}
    with contextlib.suppress(ConfigError):  # it needs ten classes
        drawn = _unique(experiment("fig2", profile, **overrides))  # the notebook that draws features
    reference_store().add(collection, (store.load(run) for run in wanted), datasets, drawn)
    return list(wanted)
