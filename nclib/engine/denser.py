"""A stored run that was evaluated more often serves a request that differs in ``log_every`` alone.

How often a network is evaluated changes nothing in its training. So the run asked for is stored under its own id, with
the files of the other one and, of its histories, the epochs asked for.
"""

from __future__ import annotations

import io

import pandas as pd

from nclib.config import SCHEMA_VERSION, RunConfig, StoredConfig, TrainConfig, digest, run_id
from nclib.engine.reading import read_csv, read_object
from nclib.engine.store import RunStore
from nclib.metrics import ideal_values
from nclib.system.files import csv_bytes, json_bytes, sha256


def denser(config: StoredConfig, store: RunStore) -> str | None:
    """Id of a stored run that differs from this one in ``log_every`` alone and logged all that is asked for; None where
    there is none."""
    if not isinstance(config, RunConfig):
        return None
    train, options = config.train, config.canonical()
    start = run_id(config).removesuffix(digest(options))
    for every in range(1, min(train.log_every, train.epochs)):
        if train.log_every % every == 0 or train.log_every >= train.epochs:
            options["train"]["log_every"] = every
            if store.has(run := start + digest(options)):
                return run
    return None


def take(config: StoredConfig, store: RunStore) -> bool:
    """Store this run with what a denser one holds, where there is a sound one and this one is absent and not being
    trained; whether it did.

    Its provenance is that of the denser run, which is named among its facts as ``taken_from``.
    """
    run = run_id(config)
    if store.has(run) or (source := denser(config, store)) is None or store.busy(run) or not store.is_sound(source):
        return False
    files = store.verify(source)
    files["config.json"] = json_bytes({"schema": SCHEMA_VERSION, "config": config.canonical()})
    for name in files.keys() & {"history.csv", "classes.csv"}:
        files[name] = csv_bytes(_asked(read_csv(io.BytesIO(files[name])), config.train))
    record = read_object(files["provenance.json"])
    record |= {"profile": config.profile, "facts": record.get("facts", {}) | {"taken_from": source}}
    files["provenance.json"] = json_bytes(record)
    store.install(run, files | {"DONE": json_bytes({name: sha256(content) for name, content in files.items()})})
    return True


def _asked(rows: pd.DataFrame, train: TrainConfig) -> pd.DataFrame:
    """The rows that a training with these options logs."""
    wanted = {(epoch, *each) for epoch in range(1, train.epochs + 1) for each in train.evaluated(epoch).items()}
    of_collapse = rows["metric"].str.removesuffix(".sample").isin(list(ideal_values(2)))
    kept = [
        split == "steps" or (epoch, split, True) in wanted or ((epoch, split, False) in wanted and not nc)
        for epoch, split, nc in zip(rows["epoch"], rows["split"], of_collapse, strict=True)
    ]
    return rows[kept]
