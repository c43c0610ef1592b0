"""Runs: trained if they are not stored, on whatever executor is given, and their results returned."""

from __future__ import annotations

import concurrent.futures
import math
import time
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd

from nclib.config import ConfigError, StoredConfig, run_id, suggest
from nclib.engine.costs import seconds
from nclib.engine.executors import Grid, Log, Progress
from nclib.engine.jobs import CodeChanged, changed_code, check_own_code
from nclib.engine.outline import outline
from nclib.engine.reading import identity_columns, stack, tidy
from nclib.engine.reference import finished, load_run, reference_store
from nclib.engine.store import default_store, labels
from nclib.system import provenance
from nclib.system.terminal import duration

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
        on one core, roughly.

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
    rows = []
    for run, config in _unique(configs).items():
        state = "stored" if store.has(run) else "reference" if reference.has(run) else "missing"
        rows.append({"run_id": run, **_columns(config), "state": state, "seconds": seconds(config)})
    columns = ["run_id", *identity_columns({}), "state", "seconds"]
    return pd.DataFrame(rows, columns=columns).round({"seconds": 2})


def _unique(configs: Sequence[StoredConfig]) -> dict[str, StoredConfig]:
    if isinstance(configs, StoredConfig):
        raise ConfigError("give a list of configurations; for a single one [config]")
    return {run_id(config): config for config in configs}


def ensure_runs(
    configs: Sequence[StoredConfig],
    executor: concurrent.futures.Executor | int | None = None,
    train: Literal["missing", "never", "finished"] = "missing",
    progress: Progress | None = None,
    device: str | None = None,
    log: Log | None = None,
) -> pd.DataFrame:
    """The results of these runs as one tidy table, training first what is not stored.

    Parameters
    ----------
    configs : the runs; repetitions are trained once
    executor : where to train: so many processes of this machine, or any `concurrent.futures.Executor` of processes;
        left out: here, one after the other
    train : "missing" trains what the run store lacks; "never" takes what is stored or among the reference results;
        "finished" is the same here: `nclib.engine.partial.drawable` has left out the others
    progress : called as ``progress(epochs_done, epochs_total, text)``
    device : for instance "cuda:1"; left out: the first CUDA device where there is one, else the CPU
    log : called as ``log(run_id, epoch, metrics)`` after each epoch of a run that is trained, for TensorBoard and such;
        the metrics are {"steps/loss": 2.3, "test/accuracy_balanced": 0.4, …}. Of an executor, when the run is stored

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
    found = {run: store.find(run) for run in wanted}
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
    """What `train_missing` did: why runs failed, by id; the runs for which the time given was too short; how many there
    were, and in how many seconds."""

    failures: dict[str, str]
    unfinished: list[str]
    runs: int
    seconds: float

    def text(self) -> str:
        """One line."""
        trained = self.runs - len(self.failures) - len(self.unfinished)
        return f"trained {trained} of {self.runs} runs in {duration(self.seconds)}"


def train_missing(
    configs: Sequence[StoredConfig],
    executor: concurrent.futures.Executor | int | None = None,
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
        it is the end of the list that is left; what has begun keeps its last checkpoint (on an executor of another
        machine it is finished)

    Raises
    ------
    ConfigError, OwnCodeError
        When a cell or network of the user's own cannot be imported or does not fit; nothing is trained then.
    """
    store, began, ranks = default_store(), time.monotonic(), urgency or {}
    wanted, stored = _unique(configs), stored or _nothing
    absent = {run: config for run, config in wanted.items() if not store.is_sound(run)}
    for run in sorted(wanted.keys() - absent.keys(), key=lambda run: ranks.get(run, math.inf)):
        stored(run)
    check_own_code(absent.values())
    changed = [said for config in absent.values() if (said := changed_code(config, store))]
    for said in {said.partition(" changed after ")[0]: said for said in changed}.values():  # once for all its runs
        warnings.warn(f"{said}; it trains again", CodeChanged, stacklevel=3)
    order = sorted(absent, key=lambda run: (ranks.get(run, math.inf), -seconds(absent[run])))
    if minutes is not None:
        order = sorted(absent, key=lambda run: absent[run].seed)
    until = math.inf if minutes is None else began + 60 * minutes
    store.root.mkdir(parents=True, exist_ok=True)
    grid = Grid({run: absent[run] for run in order}, store, progress or _nothing, stored, log, device, until)
    grid.train(executor)
    unfinished = [run for run in absent if run not in grid.failures and not store.has(run)]
    return Training(grid.failures, unfinished, len(absent), round(time.monotonic() - began, 1))


def _nothing(*_: Any) -> None:
    pass


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
    >>> nc.publish.notes.runs_provenance([config]).shape[0] > 5
    True
    """
    records = [load_run(config).provenance for config in _unique(configs).values()]
    trained = pd.DataFrame([session for record in records for session in provenance.sessions(record)])
    devices = [device.get("name") or device["type"] for device in trained["device"]]
    facts = trained[["commit", "dirty", "python", "platform", "cpu", "threads", "deterministic"]].assign(device=devices)
    facts = facts.join(pd.DataFrame(list(trained["versions"])))
    shown = {name: ", ".join(sorted({str(value) for value in column.dropna()})) for name, column in facts.items()}
    seeds = sorted({seed for record in records for seed in record.get("seeds") or ()})
    continued = sum(bool(record["facts"].get("continued_from")) for record in records)
    seconds = round(sum(map(provenance.processor_seconds, records)))
    first = {"runs": len(records), "seeds": ", ".join(map(str, seeds)), "continued from a checkpoint": continued}
    return pd.Series(first | shown | {"processor seconds": seconds}, dtype=object).to_frame("value")


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
    lacking = [run for run in wanted if not store.has(run)]
    if lacking and not finished:
        raise MissingRuns(f"not trained yet: {', '.join(lacking)}; --finished leaves them out")
    wanted = {run: config for run, config in wanted.items() if run not in lacking}
    if not wanted:
        return []
    names = sorted({config.data.dataset for config in wanted.values() if hasattr(config, "data")})
    about = {name: outline(name)._asdict() for name in names}
    reference_store().add(collection, (store.load(run) for run in wanted), about, drawn)
    return list(wanted)
