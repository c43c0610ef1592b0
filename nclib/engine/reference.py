"""Reference results: small, tracked extracts of finished runs, read where the runs themselves are not."""

from __future__ import annotations

import functools
import io
import json
import lzma
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nclib.config import StoredConfig, digest, run_id
from nclib.engine.reading import HISTORY, CorruptRun, StoredRun, parse, read_csv, stack, tidy
from nclib.engine.store import default_store
from nclib.imbalance import sample_rows
from nclib.system import paths
from nclib.system.files import csv_bytes, json_bytes, write_atomic

_TABLE = "history.csv.xz"
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
    precision. Of a run that is in several collections, that of the first is read.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def _index(self) -> dict[str, Path]:
        """The collection in which each run lies."""
        listings = sorted(self.root.glob("*/runs.json"), reverse=True)
        return {run: listing.parent for listing in listings for run in _runs(listing, _changed(listing))}

    def ids(self) -> list[str]:
        return sorted(self._index())

    def has(self, run: str) -> bool:
        return run in self._index()

    def open(self, run: str) -> StoredRun:
        """One reference run, its history and arrays read when they are asked for; raises `CorruptRun` when it is not
        there, or has not the options that its name stands for."""
        folder = self._index().get(run)
        if folder is None:
            raise CorruptRun(f"run {run} is not among the reference results")
        listing, table = folder / "runs.json", folder / _TABLE
        record = _runs(listing, _changed(listing))[run]
        if not run.endswith(f"-{digest(record['config'])}"):
            raise CorruptRun(f"reference run {run} has the configuration of another run. {_from_git(folder)}")

        @functools.cache
        def read(name: str) -> Any:
            try:
                if name == "provenance.json":
                    return record["provenance"]
                if name == "arrays.npz":
                    return parse(name, (folder / "arrays" / f"{run}.npz").read_bytes())
                return _by_run(table, _changed(table)).get_group(run).reset_index(drop=True)[HISTORY]
            except Exception as error:  # NumPy and pandas raise anything
                said = f"reference run {run}: {type(error).__name__}: {error}. {_from_git(folder)}"
                raise CorruptRun(said) from None

        return StoredRun(run, record["config"], ("history.csv", "arrays.npz", "provenance.json"), read)

    load = open

    def frame(self, ids: Iterable[str], columns: Sequence[str] = ()) -> pd.DataFrame:
        """As `RunStore.frame`."""
        return stack([tidy(self.open(run), columns) for run in ids], columns)

    def datasets(self) -> dict[str, Any]:
        """What is known of the data sets of these runs, by name, so that they can be read where the images are not."""
        found: dict[str, Any] = {}
        for listing in sorted(self.root.glob("*/datasets.json")):
            found |= json.loads(listing.read_bytes())
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
        """
        folder = self.root / collection
        listing, table, known = folder / "runs.json", folder / _TABLE, folder / "datasets.json"
        before, records = (json.loads(file.read_bytes()) if file.exists() else {} for file in (known, listing))
        write_atomic(known, json_bytes({**before, **(datasets or {})}))
        frames = [_rows(table)] if table.exists() else []
        for run in runs:
            records[run.run_id] = {"config": run.config, "provenance": run.provenance}
            frames = [frame[frame["run_id"] != run.run_id] for frame in frames]
            frames.append(run.history.assign(run_id=run.run_id)[["run_id", *run.history.columns]])
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **_extract(run, drawn is None or run.run_id in drawn))
            write_atomic(folder / "arrays" / f"{run.run_id}.npz", buffer.getvalue())
        rows = pd.concat(frames).sort_values(["run_id", "epoch", "split", "metric"], kind="stable")
        write_atomic(table, lzma.compress(csv_bytes(rows), preset=9))
        write_atomic(listing, json_bytes(records))
        return folder


# A collection has hundreds of runs; its files are read once as long as they do not change.


def _changed(file: Path) -> int:
    return file.stat().st_mtime_ns


@functools.lru_cache(maxsize=8)
def _runs(listing: Path, changed: int) -> dict[str, Any]:
    try:
        return dict(json.loads(listing.read_bytes()))
    except ValueError as damage:
        raise CorruptRun(f"{listing.parent.name}/{listing.name}: {damage}. {_from_git(listing.parent)}") from None


def _from_git(folder: Path) -> str:
    return f"Get the folder back from git: git checkout -- {folder.parent.name}/{folder.name}, in results/"


def _rows(table: Path) -> pd.DataFrame:
    return read_csv(io.BytesIO(lzma.decompress(table.read_bytes())))


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
    for source in (default_store(), reference_store()):
        if source.has(run):
            return source.open(run)
    raise CorruptRun(
        f"run {run} is neither in the run store nor among the reference results; nclib.ensure_runs([config]) trains it"
    )
