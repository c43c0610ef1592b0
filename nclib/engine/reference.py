"""Reference results: small, tracked extracts of finished runs, read where the runs themselves are not."""

from __future__ import annotations

import functools
import io
import lzma
import os
import re
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nclib.config import ConfigError, StoredConfig, digest, run_id
from nclib.engine.denser import take
from nclib.engine.reading import (
    HISTORY,
    CorruptRun,
    Files,
    StoredRun,
    check_history,
    check_options,
    read_arrays,
    read_csv,
    read_file,
    read_object,
    stack,
    tidy,
    unpack,
)
from nclib.engine.store import DamageWarning, default_store
from nclib.imbalance import sample_rows
from nclib.system import paths
from nclib.system.files import csv_bytes, json_bytes, write_atomic
from nclib.system.other_parameters import alone_in

_SMALL_ARRAYS = (
    *("counts", "minority", "class_means", "classifier"),
    *("features", "fit"),
    *("images", "cams", "labels", "predicted"),
)
"""What a reference run keeps, of whatever kind it is."""
_DRAWN_FEATURES, _KEPT_FEATURES = 400, 100
"""Training features that a reference run of seed 0 keeps, shared out among its classes: where a figure draws them,
enough to embed ten classes; else enough to see three of them beside a simplex."""


class ReferenceStore:
    """Small, tracked extracts of finished runs: ``<root>/<collection>/`` with runs.json, history.csv.xz,
    datasets.json and arrays/<run>.npz.

    Read like a `RunStore`; written by `add`. A reference run has its whole history, to the last bit, its configuration
    and provenance, class means and classifier, and no weights. Of seed 0, which figures draw, means and classifier are
    in single precision and a few features a class in half precision; of other seeds, means and classifier are in half
    precision. A collection with a plain history.csv, as they were once written, is read as well.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def _index(self) -> dict[str, Path]:
        """Where each run lies. Of one that is in several collections, by other trainings, the first is read."""
        found: dict[str, Path] = {}
        records: dict[str, Any] = {}
        for listing in sorted(self.root.glob("*/runs.json")):
            for run, record in _runs(listing, listing.lstat().st_mtime_ns).items():
                if records.setdefault(run, record) != record:
                    both = f"{found[run].name} and {listing.parent.name}"
                    said = f"reference run {run} was trained twice, for the collections {both}; the first is read"
                    warnings.warn(said, DamageWarning, stacklevel=2)
                found.setdefault(run, listing.parent)
        return found

    def ids(self) -> list[str]:
        return sorted(self._index())

    def has(self, run: str) -> bool:
        return run in self._index()

    def config(self, run: str) -> dict[str, Any]:
        """The plain configuration of a reference run."""
        listing = self._index()[run] / "runs.json"
        return _runs(listing, listing.lstat().st_mtime_ns)[run]["config"]

    def open(self, run: str) -> StoredRun:
        """One reference run, its history and arrays read when they are asked for; raises `CorruptRun` when it is not
        there."""
        folder = self._index().get(run)
        if folder is None:
            raise CorruptRun(f"run {run} is not among the reference results")
        listing = folder / "runs.json"

        def read(name: str) -> Any:
            try:
                if name.endswith(".json"):
                    return _runs(listing, listing.lstat().st_mtime_ns)[run][name.removesuffix(".json")]
                if name == "arrays.npz":
                    return read_arrays(read_file(folder / "arrays" / f"{run}.npz"))
                table = _table(folder)
                rows = _by_run(table, table.lstat().st_mtime_ns).get_group(run)
                check_history(rows)
                return rows.drop(columns="run_id").reset_index(drop=True)[HISTORY]
            except Exception as error:  # NumPy and pandas raise anything
                said = f"reference run {run}: {type(error).__name__}: {error}. {_from_git(folder)}"
                raise CorruptRun(said) from None

        return StoredRun(run, read("config.json"), Files(("history.csv", "arrays.npz", "provenance.json"), read))

    def load(self, run: str) -> StoredRun:
        """One reference run, read whole; raises `CorruptRun` when it is not there or damaged."""
        return self.open(run).whole()

    def frame(self, ids: Iterable[str], columns: Sequence[str] = ()) -> pd.DataFrame:
        """As `RunStore.frame`."""
        return stack([tidy(self.open(run), columns) for run in ids], columns)

    def datasets(self) -> dict[str, Any]:
        """What is known of the data sets of these runs, by name, so that they can be read where the images are not."""
        found: dict[str, Any] = {}
        for listing in sorted(self.root.glob("*/datasets.json")):
            found |= _records(listing, listing.lstat().st_mtime_ns)
        return found

    def add(
        self,
        collection: str,
        runs: Iterable[StoredRun],
        datasets: Mapping[str, Any] | None = None,
        drawn: Container[str] | None = None,
    ) -> Path:
        """Add runs to a collection, replacing those of the same id; return its folder.

        Parameters
        ----------
        collection : name of the folder
        runs : what to add
        datasets : what is known of their data sets
        drawn : ids of the runs whose features a figure draws; left out: all

        Raises
        ------
        ConfigError
            For a collection whose name is no plain folder name.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", collection):
            raise ConfigError(f"collection {collection!r:.100} cannot name a folder: use letters, digits, -, _ and .")
        with alone_in(self.root, "export", print):
            self._add(self.root / collection, runs, datasets or {}, drawn)
        return self.root / collection

    def _add(
        self, folder: Path, runs: Iterable[StoredRun], datasets: Mapping[str, Any], drawn: Container[str] | None
    ) -> None:
        known = folder / "datasets.json"
        before = read_object(read_file(known)) if os.path.lexists(known) else {}
        write_atomic(known, json_bytes({**before, **datasets}))
        listing, table = folder / "runs.json", _table(folder)
        records = read_object(read_file(listing)) if os.path.lexists(listing) else {}
        frames = [_rows(table)] if os.path.lexists(table) else []
        for run in runs:
            records[run.run_id] = {"config": run.config, "provenance": run.provenance}
            frames = [frame[frame["run_id"] != run.run_id] for frame in frames]
            frames.append(run.history.assign(run_id=run.run_id)[["run_id", *run.history.columns]])
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **_extract(run, drawn is None or run.run_id in drawn))
            write_atomic(folder / "arrays" / f"{run.run_id}.npz", buffer.getvalue())
        rows = pd.concat(frames).sort_values(["run_id", "epoch", "split", "metric"], kind="stable")
        write_atomic(folder / _PACKED, lzma.compress(csv_bytes(rows), preset=9))
        (folder / _PLAIN).unlink(missing_ok=True)
        write_atomic(listing, json_bytes(records))


# A collection has hundreds of runs; its files are read once as long as they do not change.


@functools.lru_cache(maxsize=8)
def _records(listing: Path, changed: int) -> dict[str, Any]:
    try:
        return read_object(read_file(listing))
    except CorruptRun as damage:
        raise CorruptRun(f"{listing.parent.name}/{listing.name}: {damage}. {_from_git(listing.parent)}") from None


@functools.lru_cache(maxsize=8)
def _runs(listing: Path, changed: int) -> dict[str, Any]:
    """The runs of a collection whose options are those that their names stand for; others are told and left out."""
    found = {}
    for run, record in _records(listing, changed).items():
        try:
            if not isinstance(record, Mapping) or not isinstance(config := record.get("config"), Mapping):
                raise CorruptRun("it holds no configuration")
            if not run.endswith(f"-{digest(config)}"):
                raise CorruptRun(f"its configuration is that of another run, whose name ends in {digest(config)}")
            if not run.isprintable() or re.search(r"[/\\<>]", run):
                raise CorruptRun("it is no name of a run")
            check_options("its options", config)
        except CorruptRun as damage:
            said = f"reference run {run!a:.100} of {listing.parent.name}: {damage}; it is left out"
            warnings.warn(said, DamageWarning, stacklevel=2)
        else:
            found[run] = record
    return found


def _from_git(folder: Path) -> str:
    return f"Get the folder back from git: git checkout -- {folder.parent.name}/{folder.name}, in results/"


_PACKED, _PLAIN = "history.csv.xz", "history.csv"


def _table(folder: Path) -> Path:
    """The histories of a collection, as they are written now or as they were once."""
    return folder / (_PLAIN if not (folder / _PACKED).exists() and (folder / _PLAIN).exists() else _PACKED)


def _rows(table: Path) -> pd.DataFrame:
    content = read_file(table)
    return read_csv(io.BytesIO(unpack(content) if table.name == _PACKED else content))


@functools.lru_cache(maxsize=8)
def _by_run(table: Path, changed: int) -> Any:
    return _rows(table).groupby("run_id", sort=False)


def _extract(run: StoredRun, drawn: bool) -> dict[str, np.ndarray]:
    """The part of a run's arrays that a reference keeps."""
    arrays = run.arrays
    kept = {name: arrays[name] for name in _SMALL_ARRAYS if name in arrays} | _missed(run)
    if run.config.get("seed") != 0:
        return kept | {name: _half(kept[name]) for name in ("class_means", "classifier") if name in kept}
    if "class_means" in kept:
        kept["class_means"] = kept["class_means"].astype(np.float32)
    if "train_features" in arrays:
        labels = arrays["train_labels"]
        each = (_DRAWN_FEATURES if drawn else _KEPT_FEATURES) // len(np.unique(labels))
        if each > 1:  # one feature shows no class
            rows = sample_rows(labels, each)
            kept |= {"train_features": _half(arrays["train_features"][rows]), "train_labels": labels[rows]}
    return kept


def _missed(run: StoredRun) -> dict[str, np.ndarray]:
    """How many training images of each class (K,) the network misses at its last epoch."""
    if "classes" not in run.tables or "counts" not in run.arrays:
        return {}
    rows = run.tables["classes"]
    rows = rows[(rows["split"] == "train") & (rows["metric"] == "accuracy")]
    last = rows[rows["epoch"] == rows["epoch"].max()].sort_values("class")
    return {"missed": np.rint((1 - last["value"].to_numpy()) * run.arrays["counts"][last["class"]]).astype(np.int64)}


def _half(values: np.ndarray) -> np.ndarray:
    """In half precision, where that holds numbers of this size."""
    return values.astype(np.float32 if (np.abs(values) > np.finfo(np.float16).max).any() else np.float16)


def reference_store() -> ReferenceStore:
    """The tracked reference results (`paths.reference`)."""
    return ReferenceStore(paths.reference())


def finished(runs: Iterable[str]) -> list[str]:
    """Those of these runs that are stored or tracked: `load_run` opens them."""
    store, tracked = default_store(), set(reference_store().ids())
    return [run for run in runs if run in tracked or store.has(run)]


def load_run(config: StoredConfig | str) -> StoredRun:
    """A finished run from the run store or, where it is not there, from the reference results.

    Its tables, arrays and provenance are read and checked when they are first asked for.

    Parameters
    ----------
    config : of the run, or its id

    Returns
    -------
    StoredRun

    Raises
    ------
    CorruptRun
        Where it is in neither, or damaged; for a damaged table or array when that is asked for.

    Examples
    --------
    >>> import nclib as nc
    >>> data = nc.DataConfig(dataset="digits", n_max=2, test_per_class=2)
    >>> network = nc.ModelConfig(kind="explicit", width=2)
    >>> config = nc.RunConfig(data=data, model=network, train=nc.TrainConfig(epochs=1))
    >>> frame = nc.ensure_runs([config])
    >>> int(nc.load_run(config).history["epoch"].max())
    1
    """
    run = config if isinstance(config, str) else run_id(config)
    if not isinstance(config, str):
        take(config, default_store())
    for source in (default_store(), reference_store()):
        if source.has(run):
            return source.open(run)
    raise CorruptRun(
        f"run {run} is neither in the run store nor among the reference results; nclib.ensure_runs([config]) trains it"
    )
