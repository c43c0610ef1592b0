"""A stored run that was evaluated more often serves a request that differs in ``log_every`` alone.

How often a network is evaluated changes nothing in its training. So the run asked for is stored under its own id, with
the files of the other one and, of its histories, the epochs asked for. Networks and cells of the user's own are trained
again: what their evaluation changes is not known here.
"""

from __future__ import annotations

import errno
import io
import math

import filelock
import pandas as pd

from nclib.config import RunConfig, StoredConfig, TrainConfig, digest, run_id
from nclib.engine.reading import read_csv, read_object
from nclib.engine.store import RunStore, config_file, done_file, labels
from nclib.metrics import ideal_values
from nclib.system.files import csv_bytes, json_bytes

_PATIENCE = 5.0
"""Seconds to wait for a process that stores the same run; one that trains it takes longer, and is left alone."""


def denser(config: StoredConfig, store: RunStore) -> str | None:
    """Id of a stored run that differs from this one only in a ``log_every`` that divides this one's; None where there
    is none."""
    if not isinstance(config, RunConfig) or config.model.own_code:
        return None
    options, every = config.canonical(), config.train.log_every
    start = run_id(config).removesuffix(digest(options))
    small = [n for n in range(1, min(math.isqrt(every), config.train.epochs) + 1) if every % n == 0]
    for options["train"]["log_every"] in sorted({*small, *(every // n for n in small)} - {every}):
        if store.has(run := start + digest(options)):
            return run
    return None


def take(config: StoredConfig, store: RunStore, lock: filelock.BaseFileLock | None = None) -> str | None:
    """Store this run with what a denser one holds; returns that one's id.

    None, and nothing done, where the run is there already, another process is training it, no denser one is there and
    sound, or the store may only be read. The provenance is that of the denser run, which is named among its facts as
    ``taken_from``.

    Parameters
    ----------
    config : the run asked for
    store : where both are
    lock : of the run asked for, where the caller holds it
    """
    run = run_id(config)
    if store.has(run) or (source := denser(config, store)) is None:
        return None
    try:
        with lock or store.lock(run, _PATIENCE) as lock:
            if not store.has(run):
                if not store.is_sound(source):
                    return take(config, store, lock)  # from another one; this one has been set aside
                store.install(run, _asked(config, store.verify(source), source), lock)
    except filelock.Timeout:
        return None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return None
    return source


def _asked(config: RunConfig, files: dict[str, bytes], source: str) -> dict[str, bytes]:
    """The files of this run, from those of a denser one."""
    files["config.json"] = config_file(config)
    for name in files.keys() & {"history.csv", "classes.csv"}:
        files[name] = csv_bytes(_logged(read_csv(io.BytesIO(files[name])), config.train))
    record = read_object(files["provenance.json"])
    record.pop("model", None)
    record |= labels(config) | {"facts": {"taken_from": source} | record.get("facts", {})}
    files["provenance.json"] = json_bytes(record)
    return files | {"DONE": done_file(files)}


def _logged(rows: pd.DataFrame, train: TrainConfig) -> pd.DataFrame:
    """The rows that a training with these options logs."""
    wanted = {(epoch, *each) for epoch in range(1, train.epochs + 1) for each in train.evaluated(epoch).items()}
    of_collapse = rows["metric"].str.removesuffix(".sample").isin(list(ideal_values(2)))
    kept = [
        split == "steps" or (epoch, split, True) in wanted or (epoch, split, nc) in wanted
        for epoch, split, nc in zip(rows["epoch"], rows["split"], of_collapse, strict=True)
    ]
    return rows[kept]
