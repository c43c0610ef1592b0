"""Runs: trained if they are not stored, on whatever executor is given, and their results returned."""

from __future__ import annotations

import concurrent.futures
import json
import math
import time
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd

from nclib import training
from nclib.config import ConfigError, StoredConfig, run_id, suggest
from nclib.data import DataError
from nclib.engine.costs import CostModel, Forecast
from nclib.engine.denser import denser, take
from nclib.engine.grid import Grid, Log, Progress, run_serially
from nclib.engine.jobs import CodeChanged, changed_code, check_own_code, datasets
from nclib.engine.kinds import read_config
from nclib.engine.outline import outline
from nclib.engine.reading import identity_columns
from nclib.engine.reference import finished, load_run, reference_store
from nclib.engine.store import RunStore, default_store, labels, stack, tidy, wall_seconds
from nclib.system import provenance

TRAIN = ("missing", "never", "finished")
"""What may be done about runs that are not stored: train them, fail, or draw without them."""


class MissingRuns(RuntimeError):
    """Runs that are neither stored nor among the reference results, when training is not allowed."""

    exit_code = 1


class RunsFailed(RuntimeError):
    """Some runs ended with an error; `failures` maps run ids to messages. All others are stored."""

    exit_code = 1

    def __init__(self, failures: dict[str, str]) -> None:
        self.failures = failures
        listing = "\n".join(f"  {run}: {message}" for run, message in failures.items())
        super().__init__(
            f"runs that failed: {len(failures)}; all others are stored. Type the same again to go on.\n{listing}"
        )


def plan(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """What `ensure_runs` would do.

    Parameters
    ----------
    configs : of the runs

    Returns
    -------
    DataFrame
        A row for each run: run_id, dataset, model, K_A, R, seed, state ("stored", "reference" or "missing") and seconds
        on one core, estimated from the finished runs of this machine. A run that need not be trained because a stored
        one was evaluated more often counts as stored.

    Examples
    --------
    >>> import nclib as nc
    >>> data = nc.DataConfig(dataset="digits", n_max=2, test_per_class=2)
    >>> network = nc.ModelConfig(kind="explicit", width=2)
    >>> config = nc.RunConfig(data=data, model=network, train=nc.TrainConfig(epochs=1))
    >>> list(nc.plan([config])[["dataset", "model", "seed"]].iloc[0])
    ['digits', 'explicit', np.int64(0)]
    """
    store, reference = default_store(), reference_store()
    model = CostModel.fit(finished_runs(store))
    rows = []
    for run, config in _unique(configs).items():
        there = store.has(run) or denser(config, store)
        state = "stored" if there else "reference" if reference.has(run) else "missing"
        columns = _columns(config)
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
    train: Literal["missing", "never", "finished"] = "missing",
    progress: Progress | None = None,
    device: str | None = None,
    log: Log | None = None,
) -> pd.DataFrame:
    """The results of these runs as one tidy table, training first what is not stored.

    A run is not trained where a stored one differs from it only in a ``log_every`` that divides its own. The rows asked
    for are then stored under its id.

    Parameters
    ----------
    configs : the runs; repetitions are trained once
    executor : where to train, any `concurrent.futures.Executor`; left out: here, one after the other
    train : "missing" trains what the run store lacks; "never" takes what is stored or among the reference results;
        "finished" is the same here: `nclib.engine.partial.drawable` has left out the others
    progress : called as ``progress(epochs_done, epochs_total, text)``
    device : for instance "cuda:1"; left out: the first CUDA device where there is one, else the CPU
    log : called as ``log(run_id, epoch, metrics)`` after each epoch of a run that is trained, for TensorBoard and such;
        the metrics are {"steps/loss": 2.3, "test/accuracy_balanced": 0.4, …}. Of an executor, a cluster's tell

    Returns
    -------
    DataFrame, see `RunStore.frame`

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
    if train not in TRAIN:
        raise ConfigError(suggest(train, TRAIN, "value of train"))
    wanted, store = _unique(configs), default_store()
    found = {run: store.find(run) or (take(config, store) and store.find(run)) for run, config in wanted.items()}
    absent = {run: config for run, config in wanted.items() if found[run] is None}
    if train != "missing":
        there = set(finished(absent))
        if lacking := [run for run in absent if run not in there]:
            raise MissingRuns(
                f"{len(lacking)} of {len(wanted)} runs are neither in the run store nor among the reference results, "
                f"and train={train!r} forbids training them: {', '.join(lacking)}. train='missing' trains them here"
            )
    else:
        failures = train_missing(list(absent.values()), executor, progress, device, log=log).failures
        if failures:
            raise RunsFailed(failures)
    frames = []
    for run, config in wanted.items():
        frames.append(tidy(found[run] or load_run(run)).assign(profile=config.profile, model=_columns(config)["model"]))
    return stack(frames)


def _columns(config: StoredConfig) -> dict[str, Any]:
    """`identity_columns` of a run as it is asked for: with the name that its model is given there."""
    facts = identity_columns(config.canonical())
    return facts | {"model": labels(config).get("model", facts["model"])}


# --- training what is missing -------------------------------------------------------------------------------------


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
    urgency: Mapping[str, int] | None = None,
    stored: Callable[[str], None] | None = None,
    log: Log | None = None,
) -> Training:
    """Train those of the runs that are not stored, the longest first; arguments as of `ensure_runs`.

    Nothing is raised for a run that fails.

    Parameters
    ----------
    urgency : rank of the runs to be trained before all others, 0 first; not with minutes
    stored : called with the id of each run once it is stored and sound, first for those that were there before
    minutes : stop after so many. Then runs are trained one seed after the other, each seed in the order given, so that
        it is the end of the list that is left; what has begun keeps its last checkpoint (on an executor that is no
        cluster, in other processes, it is finished)

    Raises
    ------
    ClusterLost
        When the scheduler went away for good; what had finished by then is stored.
    ConfigError, OwnCodeError
        When a cell or network of the user's own cannot be imported or does not fit; nothing is trained then.
    """
    if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
        raise ConfigError(
            "runs cannot share a process: they set PyTorch's random state and determinism. Give an executor of "
            "processes: with nclib.engine.cluster.local(2) as executor: …"
        )
    store = default_store()
    wanted = _unique(configs)
    absent = {run: config for run, config in wanted.items() if not (store.is_sound(run) or take(config, store))}
    stored = stored or _no_matter
    ranks = urgency or {}
    for run in sorted((run for run in wanted if run not in absent), key=lambda run: ranks.get(run, math.inf)):
        stored(run)
    until = math.inf
    if minutes is not None:
        absent = dict(sorted(absent.items(), key=lambda item: item[1].seed))
        until = time.monotonic() + 60 * minutes
    check_own_code(absent.values())
    changed = [said for config in absent.values() if (said := changed_code(config, store))]
    for said in {said.partition(" has changed")[0]: said for said in changed}.values():  # once for all its runs
        warnings.warn(f"{said}; it trains again", CodeChanged, stacklevel=3)
    log = log or _no_matter
    forecast = Forecast(absent, finished_runs(store) if absent else (), longest_first=minutes is None, urgency=ranks)
    if not absent:
        failures: dict[str, str] = {}
    elif executor is None:
        failures = run_serially(absent, store, forecast, progress or _quiet, device, until, stored, log)
    else:
        failures = Grid(
            absent, store, forecast, progress or _quiet, device, executor, until, stored, log or _no_matter
        ).train()
    unfinished = [run for run in absent if run not in failures and not store.has(run)] if minutes is not None else []
    forecast.close(len(failures) + len(unfinished))
    return Training(failures, forecast, unfinished)


def _quiet(done: float, total: float, text: str) -> None:
    pass


def _no_matter(run: str, *about: Any) -> None:
    pass


def finished_runs(store: RunStore, latest: int = 300) -> list[tuple[StoredConfig, float]]:
    """The latest runs that this machine has finished on the device it would use now, with their seconds."""
    kind = training.default_device().type
    found = []
    for _, options, record in store.records(latest):
        try:
            config, seconds = read_config(json.dumps(options)), wall_seconds(record)
            if "taken_from" in record.get("facts", {}):  # it took no time of its own
                continue
            if seconds and (record["device"]["type"] == kind or config.on_cpu):
                CostModel().seconds(config)  # raises where nothing is known of its images
                found.append((config, seconds))
        except (ValueError, KeyError, TypeError, DataError):  # of another version: not evidence
            continue
    return found


def runs_provenance(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """Where the results of these runs come from.

    Parameters
    ----------
    configs : of runs that are stored or tracked

    Returns
    -------
    DataFrame
        One fact a row with every value that occurs: commit, whether the tree was changed, versions, device, threads,
        determinism, how many runs went on from a checkpoint (then of all their sessions), and the processor seconds of
        all runs together.

    Examples
    --------
    >>> import nclib as nc
    >>> data = nc.DataConfig(dataset="digits", n_max=2, test_per_class=2)
    >>> network = nc.ModelConfig(kind="explicit", width=2)
    >>> config = nc.RunConfig(data=data, model=network, train=nc.TrainConfig(epochs=1))
    >>> frame = nc.ensure_runs([config])
    >>> nc.runs_provenance([config]).shape[0] > 5
    True
    """
    wanted = _unique(configs)
    records = [load_run(config).provenance for config in wanted.values()]
    facts: dict[str, Any] = {"runs": len(records), "seeds": sorted({seed for r in records for seed in r["seeds"]})}
    facts["continued from a checkpoint"] = sum(bool(record["facts"].get("continued_from")) for record in records)
    trained = [session for record in records for session in provenance.sessions(record)]
    for name in ("commit", "dirty", "python", "platform", "cpu", "threads", "deterministic"):
        facts[name] = sorted({str(session[name]) for session in trained})
    facts["device"] = sorted({session["device"].get("name") or session["device"]["type"] for session in trained})
    for package in sorted({name for session in trained for name in session["versions"]}):
        facts[package] = sorted({session["versions"].get(package, "none") for session in trained})
    once = {record["facts"].get("taken_from", run): record for run, record in zip(wanted, records, strict=True)}
    facts["processor seconds"] = round(sum(map(provenance.processor_seconds, once.values())))
    shown = {name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in facts.items()}
    return pd.Series(shown, dtype=object).to_frame("value")


def export_reference(
    configs: Sequence[StoredConfig],
    collection: str,
    finished: bool = False,
    drawn: Container[str] | None = None,
) -> list[str]:
    """Copy small extracts of these stored runs to the reference results; returns their ids.

    Parameters
    ----------
    finished : leave out what has not been trained, instead of refusing
    drawn : ids of the runs whose features a figure draws, as of `ReferenceStore.add`; left out: all

    Raises
    ------
    MissingRuns
        When one of them has not been trained.
    """
    wanted, store = _unique(configs), default_store()
    lacking = [run for run, config in wanted.items() if not (store.has(run) or take(config, store))]
    if lacking and not finished:
        raise MissingRuns(f"not trained yet: {', '.join(lacking)}; --finished leaves them out")
    wanted = {run: config for run, config in wanted.items() if run not in lacking}
    if not wanted:
        return []
    names = sorted({name for config in wanted.values() for name in datasets(config)})
    about = {name: outline(name)._asdict() for name in names}
    reference_store().add(collection, (store.load(run) for run in wanted), about, drawn)
    return list(wanted)
