"""Runs: trained if they are not stored, on whatever executor is given, and their results returned."""

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pandas as pd

from nclib.config import ConfigError, StoredConfig, one_of, run_id
from nclib.engine.jobs import Grid, Progress, RunLog, check_runs
from nclib.engine.outline import outline
from nclib.engine.reference import finished, load_run, reference_store
from nclib.engine.store import default_store, identity_columns, labels, stack, tidy
from nclib.system import provenance

TRAIN = ("missing", "never", "finished")
"""What may be done about runs that are not stored: train them, fail, or plot without them."""


class MissingRuns(RuntimeError):
    """Runs that are neither stored nor among the reference results, when training is not allowed."""

    exit_code = 1


class RunsFailed(RuntimeError):
    """Some runs ended with an error; `failures` maps run ids to messages. All others are stored."""

    exit_code = 1

    def __init__(self, failures: dict[str, str]) -> None:
        self.failures = failures
        listing = "\n".join(f"  {run}: {message}" for run, message in failures.items())
        super().__init__(f"runs that failed: {len(failures)}. Type the same again to go on.\n{listing}")


def plan(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """What `ensure_runs` would do.

    Parameters
    ----------
    configs : of the runs

    Returns
    -------
    DataFrame
        A row for each run: run_id, dataset, model, K_A, R, seed and state ("stored", "reference" or "missing").

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
        rows.append({"run_id": run, **_columns(config), "state": state})
    return pd.DataFrame(rows, columns=["run_id", *identity_columns({}), "state"])


def _unique(configs: Sequence[StoredConfig]) -> dict[str, StoredConfig]:
    configs = [*configs]
    if not all(isinstance(each, StoredConfig) for each in configs):
        raise ConfigError("give a list of configurations; for a single one [config]")
    found: dict[str, StoredConfig] = {}
    for config in configs:
        run, name = run_id(config), labels(config).get("model")
        if run in found and labels(found[run]).get("model") != name:
            raise ConfigError(f"{run} has two names; a name is not part of a run, so leave out the one or the other")
        found[run] = config
    return found


def ensure_runs(
    configs: Sequence[StoredConfig],
    executor: concurrent.futures.Executor | int | None = None,
    train: Literal["missing", "never", "finished"] = "missing",
    progress: Progress | None = None,
    device: str | None = None,
    log: RunLog | None = None,
) -> pd.DataFrame:
    """The results of these runs as one tidy table, training first what is not stored.

    Parameters
    ----------
    configs : the runs, trained in this order; repetitions are trained once
    executor : where to train: a number of processes of this machine, or any `concurrent.futures.Executor` of processes;
        left out: here, one after the other
    train : "missing" trains what the run store lacks; "never" takes what is stored or among the reference results;
        "finished" is the same here: `nclib.engine.partial.drawable` has left out the others
    progress : called as ``progress(done, of, text)``, in runs, and in parts of them where they are trained here
    device : for instance "cuda:1"; left out: the first CUDA device where there is one, else the CPU
    log : called as ``log(run_id, epoch, metrics)`` after each epoch of a run that is trained, for TensorBoard and such,
        where it is trained here; the metrics are {"steps/loss": 2.3, "test/accuracy_balanced": 0.4, …}

    Returns
    -------
    DataFrame
        A row for each run, split, metric and epoch: `nclib.engine.store.tidy`

    Raises
    ------
    RunsFailed
        When some could not be trained; raised after all others are done and stored.
    MissingRuns
        Where training is not allowed, naming what is absent.

    Notes
    -----
    Threads of one process take turns with runs. A network of your own with dropout takes its random numbers from the
    random state of the process. So take none from it in another thread meanwhile, and import no module of your own
    there while networks are built; or train in processes.

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
    wanted = _unique(configs)
    if one_of(train, TRAIN, "value of train") != "missing":
        if lacking := wanted.keys() - finished(wanted):
            said = f"train={train!r} forbids training the {len(lacking)} runs that are missing"
            raise MissingRuns(f"{said}: {', '.join(sorted(lacking))}. train='missing' trains them here")
    elif failures := train_missing([*wanted.values()], executor, progress, device, log=log):
        raise RunsFailed(failures)
    frames = (
        tidy(load_run(run)).assign(profile=config.profile, model=_columns(config)["model"])
        for run, config in wanted.items()
    )
    return stack(frames)


def _columns(config: StoredConfig) -> dict[str, Any]:
    """`identity_columns` of a run as it is asked for: with the name that its model is given there."""
    facts = identity_columns(config.canonical())
    return facts | {"model": labels(config).get("model", facts["model"])}


# --- training what is missing -------------------------------------------------------------------------------------


def train_missing(
    configs: Sequence[StoredConfig],
    executor: concurrent.futures.Executor | int | None = None,
    progress: Progress | None = None,
    device: str | None = None,
    stored: Callable[[str], None] | None = None,
    log: RunLog | None = None,
) -> dict[str, str]:
    """Train those of the runs that are not stored, in the order given; arguments as of `ensure_runs`.

    Parameters
    ----------
    stored : called with the id of each run once it is stored and sound, first for those that were there before

    Returns
    -------
    dict
        Why runs are not there, by id. Nothing is raised for a run that fails.

    Raises
    ------
    ConfigError
        As `nclib.engine.jobs.check_runs`; nothing is trained then.
    """
    store, wanted, nothing = default_store(), _unique(configs), lambda *_: None
    absent = {run: config for run, config in wanted.items() if not store.is_sound(run)}
    check_runs(absent.values())
    for run in [run for run in wanted if run not in absent]:
        (stored or nothing)(run)
    store.root.mkdir(parents=True, exist_ok=True)
    grid = Grid(absent, store, progress or nothing, stored or nothing, log, device)
    grid.train(executor)
    return grid.failures


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
    trained = pd.json_normalize([session for record in records for session in provenance.sessions(record)])
    kept = ["commit", "dirty", "python", "platform", "cpu", "threads", "deterministic", "device.type", "device.name"]
    found = [name for name in trained if name in kept or name.startswith("versions.")]
    shown = {name.split(".")[-1]: sorted(set(trained[name].dropna().astype(str))) for name in found}
    shown["seeds"] = sorted({str(seed) for record in records for seed in record.get("seeds") or ()})
    facts = {"runs": len(records)} | {name: ", ".join(values) for name, values in shown.items()}
    facts["continued from a checkpoint"] = sum(bool(record["facts"].get("continued_from")) for record in records)
    facts["processor seconds"] = round(sum(map(provenance.processor_seconds, records)))
    return pd.Series(facts, dtype=object).to_frame("value")


def export_reference(configs: Sequence[StoredConfig], collection: str, finished: bool = False) -> list[str]:
    """Copy small extracts of these stored runs to the reference results; returns their ids.

    Parameters
    ----------
    finished : leave out what has not been trained, instead of refusing

    Raises
    ------
    MissingRuns
        When one of them has not been trained.
    """
    wanted, store = _unique(configs), default_store()
    there = {run: config for run, config in wanted.items() if store.has(run)}
    if len(there) < len(wanted) and not finished:
        raise MissingRuns(f"not trained yet: {', '.join(wanted.keys() - there)}; --finished leaves them out")
    names = sorted({config.data.dataset for config in there.values() if hasattr(config, "data")})
    if there:
        reference_store().add(collection, map(store.open, there), {name: outline(name)._asdict() for name in names})
    return list(there)
