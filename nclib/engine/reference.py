"""Reference results: small, tracked extracts of finished runs, read where the runs themselves are not."""

from __future__ import annotations

import functools
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nclib.config import ConfigError, StoredConfig, run_id
from nclib.engine.reading import (
    HISTORY,
    CorruptRun,
    StoredRun,
    read_arrays,
    read_csv,
    read_file,
    read_object,
    stack,
    tidy,
)
from nclib.engine.store import default_store
from nclib.imbalance import sample_rows
from nclib.system import paths
from nclib.system.files import csv_bytes, json_bytes, write_atomic

_SMALL_ARRAYS = (
    *("counts", "minority", "class_means", "classifier"),
    *("features", "fit"),
    *("images", "cams", "labels", "predicted"),
)
"""What a reference run keeps as it is, of whatever kind it is."""
_KEPT_FEATURES = 400
"""Training features that a reference run keeps, shared out among its classes: enough to embed ten classes."""


class ReferenceStore:
    """Small, tracked extracts of finished runs: ``<root>/<collection>/`` with runs.json, history.csv,
    datasets.json and arrays/<run>.npz.

    Read like a `RunStore`; written by `add`. A reference run has its whole history, its configuration and provenance,
    class means, classifier and, for seed 0, a few features a class in half precision; no weights.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def _index(self) -> dict[str, Path]:
        found = {}
        for listing in sorted(self.root.glob("*/runs.json")):
            found |= dict.fromkeys(_records(listing, listing.lstat().st_mtime_ns), listing.parent)
        return found

    def ids(self) -> list[str]:
        return sorted(self._index())

    def has(self, run: str) -> bool:
        return run in self._index()

    def config(self, run: str) -> dict[str, Any]:
        """The plain configuration of a reference run."""
        listing = self._index()[run] / "runs.json"
        return _records(listing, listing.lstat().st_mtime_ns)[run]["config"]

    def load(self, run: str) -> StoredRun:
        """One reference run; raises `CorruptRun` when it is not there."""
        folder = self._index().get(run)
        if folder is None:
            raise CorruptRun(f"run {run} is not among the reference results")
        listing, table, file = folder / "runs.json", folder / "history.csv", folder / "arrays" / f"{run}.npz"
        record = _records(listing, listing.lstat().st_mtime_ns)[run]
        try:
            config, provenance = record["config"], record["provenance"]
            rows = _by_run(table, table.lstat().st_mtime_ns).get_group(run)
            history = rows.drop(columns="run_id").reset_index(drop=True)[HISTORY]
            arrays = read_arrays(read_file(file))
        except Exception as error:  # NumPy and pandas raise anything
            raise CorruptRun(f"reference run {run}: {type(error).__name__}: {error}. {_from_git(folder)}") from None
        return StoredRun(run, config, {"history": history}, arrays, provenance)

    def frame(self, ids: Iterable[str], columns: Sequence[str] = ()) -> pd.DataFrame:
        """As `RunStore.frame`."""
        return stack([tidy(self.load(run), columns) for run in ids], columns)

    def datasets(self) -> dict[str, Any]:
        """What is known of the data sets of these runs, by name, so that they can be read where the images are not."""
        found: dict[str, Any] = {}
        for listing in sorted(self.root.glob("*/datasets.json")):
            found |= _records(listing, listing.lstat().st_mtime_ns)
        return found

    def add(self, collection: str, runs: Iterable[StoredRun], datasets: Mapping[str, Any] | None = None) -> Path:
        """Add runs to a collection, replacing those of the same id, and what is known of their data sets; return its
        folder.

        Raises
        ------
        ConfigError
            For a collection whose name is no plain folder name.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", collection):
            raise ConfigError(f"collection {collection!r:.100} cannot name a folder: use letters, digits, -, _ and .")
        folder = self.root / collection
        known = folder / "datasets.json"
        before = read_object(read_file(known)) if os.path.lexists(known) else {}
        write_atomic(known, json_bytes({**before, **(datasets or {})}))
        listing, table = folder / "runs.json", folder / "history.csv"
        records = read_object(read_file(listing)) if os.path.lexists(listing) else {}
        frames = [read_csv(io.BytesIO(read_file(table)))] if os.path.lexists(table) else []
        for run in runs:
            records[run.run_id] = {"config": run.config, "provenance": run.provenance}
            frames = [frame[frame["run_id"] != run.run_id] for frame in frames]
            frames.append(run.history.assign(run_id=run.run_id)[["run_id", *run.history.columns]])
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **_extract(run.arrays, features=run.config.get("seed") == 0))
            write_atomic(folder / "arrays" / f"{run.run_id}.npz", buffer.getvalue())
        rows = pd.concat(frames).sort_values(["run_id", "epoch", "split", "metric"], kind="stable")
        write_atomic(table, csv_bytes(rows))
        write_atomic(listing, json_bytes(records))
        return folder


# A collection has hundreds of runs; its files are read once as long as they do not change.


@functools.lru_cache(maxsize=8)
def _records(listing: Path, changed: int) -> dict[str, Any]:
    try:
        return read_object(read_file(listing))
    except CorruptRun as damage:
        raise CorruptRun(f"{listing.parent.name}/{listing.name}: {damage}. {_from_git(listing.parent)}") from None


def _from_git(folder: Path) -> str:
    return f"Get the folder back from git: git checkout -- {folder.parent.name}/{folder.name}, in results/"


@functools.lru_cache(maxsize=8)
def _by_run(table: Path, changed: int) -> Any:
    return read_csv(io.BytesIO(read_file(table))).groupby("run_id", sort=False)


def _extract(arrays: Mapping[str, np.ndarray], features: bool) -> dict[str, np.ndarray]:
    """The part of a run's arrays that a reference keeps; `features` to draw a classifier's, of one seed."""
    kept = {name: arrays[name] for name in _SMALL_ARRAYS if name in arrays}
    if features and "train_features" in arrays:
        labels = arrays["train_labels"]
        rows = sample_rows(labels, max(1, _KEPT_FEATURES // len(np.unique(labels))))
        kept |= {"train_features": arrays["train_features"][rows].astype(np.float16), "train_labels": labels[rows]}
    return kept


def reference_store() -> ReferenceStore:
    """The tracked reference results (`paths.reference`)."""
    return ReferenceStore(paths.reference())


def load_run(config: StoredConfig | str) -> StoredRun:
    """A finished run from the run store or, where it is not there, from the reference results.

    Raises
    ------
    CorruptRun
        Where it is in neither, or damaged.
    """
    run = config if isinstance(config, str) else run_id(config)
    for source in (default_store(), reference_store()):
        if source.has(run):
            return source.load(run)
    raise CorruptRun(
        f"run {run} is neither in the run store nor among the reference results; nclib.ensure_runs([config]) trains it"
    )
