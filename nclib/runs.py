"""Runs are made here: trained if they are not stored, on whatever executor is given, and their results returned."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pandas as pd
import torch

from nclib import probes, processes, provenance, regression, saliency, shallow, training
from nclib.config import ConfigError, RunConfig, StoredConfig, run_id, suggest
from nclib.costs import estimate_seconds
from nclib.experiments import Profile, experiment, outline
from nclib.probes import ProbeConfig
from nclib.regression import RegressionConfig
from nclib.saliency import CamConfig
from nclib.shallow import ShallowConfig
from nclib.store import DamageWarning, RunStore, default_store, identity_columns, load_run, reference_store, stack, tidy

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
        result = training.train(config, device=device, checkpoint=store.checkpoint(run), progress=note)
        with training.arithmetic(config.train, device):
            record = provenance.capture(device, [config.seed], cost)
    said = sorted({str(warning.message) for warning in caught})
    tables = {"history": result.history, "classes": result.classes, "cost": result.cost}
    store.save(config, tables, result.arrays, result.weights, record | {"facts": result.facts, "warnings": said})
    for warning in caught:
        if issubclass(warning.category, DamageWarning):  # the others are only kept with the run
            warnings.warn(warning.message, stacklevel=2)


def _probe_solver(
    config: ProbeConfig, store: RunStore, device: torch.device, progress: Callable[[int, int], None]
) -> None:
    """Look into the solver of a stored run, which is trained first if it is not there."""
    base = train_run(_to_json(config.base), str(store.root), str(device))
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
        weights = store.weights(train_run(_to_json(config.encoder), str(store.root), str(device)))

    def note(done: float, total: float) -> None:
        store.note_progress(run, done, total)
        progress(done, total)

    with _threads(), provenance.Cost(device) as cost:
        result = shallow.train_shallow(config, device, weights, store.checkpoint(run), note)
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
    base = train_run(_to_json(config.base), str(store.root), str(device))
    with _threads(), provenance.Cost(device) as cost:
        history, arrays = saliency.look(config, store.weights(base), device)
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
            where = torch.device(device) if device else training.default_device()
            trainer(config, store, where, progress or (lambda done, total: None))
    return run


def read_config(config_json: str) -> StoredConfig:
    """The configuration of any kind of run from its JSON; raises `ConfigError` for a kind there is not."""
    kind = json.loads(config_json).get("kind", "classifier")
    if kind not in _TRAINERS:
        raise ConfigError(suggest(kind, _TRAINERS, "kind of run"))
    return _TRAINERS[kind][0].from_json(config_json)


def plan(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """What `ensure_runs` would do, a row for each run: run_id, dataset, model, K_A, R, seed, state ("stored",
    "reference" or "missing") and seconds, a rough estimate on one core."""
    store, reference = default_store(), reference_store()
    rows = []
    for run, config in _unique(configs).items():
        state = "stored" if store.has(run) else "reference" if reference.has(run) else "missing"
        rows.append(
            {"run_id": run, **identity_columns(config.canonical()), "state": state, "seconds": estimate_seconds(config)}
        )
    columns = ["run_id", *identity_columns({}), "state", "seconds"]
    return pd.DataFrame(rows, columns=columns).round({"seconds": 2})


def _unique(configs: Sequence[StoredConfig]) -> dict[str, StoredConfig]:
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
    if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
        raise ConfigError(
            "runs cannot share a process: they set PyTorch's random state and determinism. Give an executor of "
            "processes, such as nclib.runs.make_pool(2)"
        )
    wanted, store = _unique(configs), default_store()
    absent = {run: config for run, config in wanted.items() if not store.is_sound(run)}
    if train == "never":
        lacking = [run for run in absent if not reference_store().has(run)]
        if lacking:
            raise MissingRuns(
                f"{len(lacking)} of {len(wanted)} runs are neither in the run store nor among the reference results, "
                f"and train='never' forbids training them: {', '.join(lacking)}. Use train='missing' to train them here"
            )
    elif absent:
        failures = _train_all(absent, store, executor, progress, device)
        if failures:
            raise RunsFailed(failures)
    frames = []
    for run, config in wanted.items():
        source = store if store.has(run) else reference_store()
        frames.append(tidy(source.load(run)).assign(profile=config.profile))
    return stack(frames)


def _train_all(
    absent: dict[str, StoredConfig],
    store: RunStore,
    executor: concurrent.futures.Executor | None,
    progress: Progress | None,
    device: str | None,
) -> dict[str, str]:
    """Train these runs, the longest first; returns what failed, with the reason."""
    tell = progress or (lambda done, total, text: None)
    epochs = {run: config.work() for run, config in absent.items()}
    total = sum(epochs.values())
    order = sorted(absent, key=lambda run: -estimate_seconds(absent[run]))
    failures: dict[str, str] = {}
    if executor is None:
        done = 0.0
        for run in order:
            base = done

            def note(epoch: int, of: int, run: str = run, base: float = base) -> None:
                tell(base + epoch, total, run)

            try:
                train_run(_to_json(absent[run]), str(store.root), device, note)
            except Exception as error:  # as on an executor: one failing run does not stop the others
                failures[run] = f"{type(error).__name__}: {error}"
            done += epochs[run]
        return failures
    futures = {executor.submit(train_run, _to_json(absent[run]), str(store.root), device): run for run in order}
    pending = set(futures)
    while pending:
        finished, pending = concurrent.futures.wait(
            pending, timeout=0.5, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in finished:
            error = future.exception()
            if error is not None:
                failures[futures[future]] = f"{type(error).__name__}: {error}"
        done = sum(epochs[run] * store.progress(run) for run in absent)
        tell(done, total, f"{len(absent) - len(pending)} of {len(absent)} runs")
    return failures


def _to_json(config: StoredConfig) -> str:
    return config.model_dump_json()


_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""glibc hands large tensors back to the system after each step and fetches them anew, page by page: a tenth of the time
of a step on 32×32 images. With these, a training process keeps what it has."""


@contextlib.contextmanager
def worker_environment() -> Iterator[None]:
    """What a process that is to train must find when it loads the C library and torch; for those spawned within."""
    start = {"OMP_NUM_THREADS": os.environ.get("NCLIB_THREADS", "1"), "OMP_WAIT_POLICY": "PASSIVE"} | _KEEP_MEMORY
    before = {name: os.environ.get(name) for name in start}
    os.environ |= start
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def make_pool(workers: int) -> Iterator[concurrent.futures.Executor]:
    """A pool of spawned processes. Leaving it early ends them; what they were training goes on from its checkpoint
    next time."""
    with worker_environment():
        pool = concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=processes.follow_parent
        )
        try:
            yield pool
            pool.shutdown()
        except BaseException:
            workers_now = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in workers_now:
                process.terminate()
            raise


def runs_provenance(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """Where the results of these runs come from, one fact a row with every value that occurs: commit, whether the tree
    was changed, versions, device, threads, determinism, and the processor seconds of all runs together."""
    records = [load_run(run).provenance for run in _unique(configs)]
    facts: dict[str, Any] = {"runs": len(records), "seeds": sorted({seed for r in records for seed in r["seeds"]})}
    for name in ("commit", "dirty", "python", "platform", "cpu", "threads", "deterministic"):
        facts[name] = sorted({str(record[name]) for record in records})
    facts["device"] = sorted({record["device"].get("name") or record["device"]["type"] for record in records})
    for package in sorted({name for record in records for name in record["versions"]}):
        facts[package] = sorted({record["versions"].get(package, "none") for record in records})
    facts["processor seconds"] = round(sum(record["cost"]["cpu_seconds"] for record in records))
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


def export_reference(names: Sequence[str], profile: Profile | str, collection: str, **overrides: Any) -> list[str]:
    """Copy small extracts of the stored runs of these experiments to the reference results; returns their ids.

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
    if lacking:
        raise MissingRuns(f"not trained yet: {', '.join(lacking)}")
    names_used = {config.data.dataset for config in wanted.values() if isinstance(config, (RunConfig, ShallowConfig))}
    datasets = {name: outline(name)._asdict() for name in sorted(names_used)}
    reference_store().add(collection, (store.load(run) for run in wanted), datasets)
    return list(wanted)
