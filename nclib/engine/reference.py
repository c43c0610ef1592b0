"""Reference results: small, tracked extracts of finished runs, read where the runs themselves are not."""

import contextlib
import functools
import io
import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from nclib.config import StoredConfig, digest, run_id
from nclib.engine.store import HISTORY, CorruptRun, StoredRun, default_store, parse, read_csv, stack, tidy
from nclib.imbalance import sample_rows
from nclib.system import paths
from nclib.system.files import csv_bytes, json_bytes, write_atomic

_SMALL_ARRAYS = ("counts", "minority", "class_means", "classifier", "features", "fit")
_SMALL_ARRAYS += ("images", "cams", "labels", "predicted")
"""What a reference run keeps, of whatever kind it is."""
_DRAWN_FEATURES = 400
"""Training features that a reference run keeps if figures plot its seed, shared out among its classes."""
_DRAWN_SEEDS = (0, 30)
"""Seeds whose features figures plot: the first of every profile, and the first of protocol 3 on CIFAR-100."""


class ReferenceStore:
    """Small, tracked extracts of finished runs: ``<root>/<collection>/`` with runs.json, history.csv.xz,
    datasets.json and arrays/<run>.npz.

    Read like a `RunStore`; written by `add`. A reference run has its whole history, to the last bit, its configuration
    and provenance, class means and classifier in single precision, of seed 0, which figures plot, a few features a
    class in half precision. One pair (K_A = 5, R = 100) has its weights, in half precision, in weights/<run>.npz. Of a
    run that is in several collections, that of the first is read.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def _index(self) -> dict[str, Path]:
        """The collection in which each run lies."""
        folders = sorted((listing.parent for listing in self.root.glob("*/runs.json")), reverse=True)
        return {run: folder for folder in folders for run in _runs(folder)}

    def ids(self) -> list[str]:
        return sorted(self._index())

    def has(self, run: str) -> bool:
        return run in self._index()

    def open(self, run: str) -> StoredRun:
        """One reference run, its history and arrays read when they are asked for; raises `CorruptRun` when it is not
        there, or has not the options that its name stands for."""
        if (folder := self._index().get(run)) is None:
            raise CorruptRun(f"run {run} is not among the reference results")
        record = _runs(folder)[run]
        if not run.endswith(f"-{digest(record['config'])}"):
            raise CorruptRun(f"reference run {run} has the configuration of another run")
        weights = folder / "weights" / f"{run}.npz"

        @functools.cache
        def read(name: str) -> Any:
            try:
                if name == "provenance.json":
                    return record["provenance"]
                if name == "arrays.npz":
                    return parse(name, (folder / "arrays" / f"{run}.npz").read_bytes())
                if name == "weights.pt":
                    half = parse(weights.name, weights.read_bytes())
                    return {key: torch.from_numpy(value.astype(np.float32)) for key, value in half.items()}
                return _by_run(folder).get_group(run).reset_index(drop=True)[HISTORY]
            except Exception as error:  # NumPy and pandas raise anything
                raise CorruptRun(f"reference run {run}, {folder.name}: {type(error).__name__}: {error}") from None

        names = ("history.csv", "arrays.npz", "provenance.json", *["weights.pt"] * weights.exists())
        return StoredRun(run, record["config"], names, read)

    def frame(self, ids: Iterable[str]) -> pd.DataFrame:
        """The histories of these runs as one tidy table."""
        return stack(tidy(self.open(run)) for run in ids)

    def datasets(self) -> dict[str, Any]:
        """What is known of the data sets of these runs, by name, so that they can be read where the images are not."""
        found: dict[str, Any] = {}
        for listing in sorted(self.root.glob("*/datasets.json")):
            found |= json.loads(listing.read_bytes())
        return found

    def add(self, collection: str, runs: Iterable[StoredRun], datasets: Mapping[str, Any] | None = None) -> Path:
        """Add runs, and what is known of their data sets, to a collection, replacing those of the same id; return its
        folder."""
        folder = self.root / collection
        listing, table, known = folder / "runs.json", folder / "history.csv.xz", folder / "datasets.json"
        before, records = (json.loads(file.read_bytes()) if file.exists() else {} for file in (known, listing))
        write_atomic(known, json_bytes({**before, **(datasets or {})}))
        frames = [_rows(folder)] if table.exists() else []
        for run in runs:
            records[run.run_id] = {"config": run.config, "provenance": run.provenance}
            frames = [frame[frame["run_id"] != run.run_id] for frame in frames]
            frames.append(run.history.assign(run_id=run.run_id)[["run_id", *run.history.columns]])
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **_extract(run))
            write_atomic(folder / "arrays" / f"{run.run_id}.npz", buffer.getvalue())
        rows = pd.concat(frames).sort_values(["run_id", "epoch", "split", "metric"], kind="stable")
        write_atomic(table, lzma.compress(csv_bytes(rows), preset=9))
        write_atomic(listing, json_bytes(records))
        _runs.cache_clear()
        _by_run.cache_clear()
        return folder


# A collection has hundreds of runs; its files are read once.


@functools.lru_cache(maxsize=16)
def _runs(folder: Path) -> dict[str, Any]:
    return parse("runs.json", (folder / "runs.json").read_bytes())


def _rows(folder: Path) -> pd.DataFrame:
    return read_csv(io.BytesIO(lzma.decompress((folder / "history.csv.xz").read_bytes())))


@functools.lru_cache(maxsize=16)
def _by_run(folder: Path) -> Any:
    return _rows(folder).groupby("run_id", sort=False)


def _extract(run: StoredRun) -> dict[str, np.ndarray]:
    """The part of a run's arrays that a reference keeps."""
    arrays = run.arrays
    kept = {name: arrays[name] for name in _SMALL_ARRAYS if name in arrays} | _missed(run)
    kept |= {name: kept[name].astype(np.float32) for name in ("class_means", "classifier") if name in kept}
    if run.config.get("seed") in _DRAWN_SEEDS and "train_features" in arrays:
        labels = arrays["train_labels"]
        rows = sample_rows(labels, max(2, _DRAWN_FEATURES // len(np.unique(labels))))
        kept |= {"train_features": arrays["train_features"][rows].astype(np.float16), "train_labels": labels[rows]}
    return kept


def _missed(run: StoredRun) -> dict[str, np.ndarray]:
    """How many training images of each class (K,) the network misses at its last epoch."""
    if "classes" not in run.tables or "counts" not in run.arrays:
        return {}
    rows = run.tables["classes"]
    rows = rows[(rows["split"] == "train") & (rows["metric"] == "accuracy")]
    last = rows[rows["epoch"] == rows["epoch"].max()].sort_values("class")
    return {"missed": np.rint((1 - last["value"].to_numpy()) * run.arrays["counts"][last["class"]]).astype(np.int64)}


def reference_store() -> ReferenceStore:
    """The tracked reference results (`paths.reference`); an empty store outside a clone."""
    with contextlib.suppress(FileNotFoundError):
        return ReferenceStore(paths.reference())
    return ReferenceStore(paths.results() / "reference")


def finished(runs: Iterable[str]) -> list[str]:
    """Those of these runs that are stored or tracked: `load_run` opens them."""
    store, tracked = default_store(), set(reference_store().ids())
    return [run for run in runs if store.find(run) or run in tracked]


def load_run(config: StoredConfig | str) -> StoredRun:
    """A finished run from the run store or, where it is not there, from the reference results.

    Its tables, arrays and provenance are read and checked when they are first asked for. Arrays of a reference run are
    an extract: features of some samples, in half precision.

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
    raise CorruptRun(f"run {run} is neither stored nor tracked; nclib.ensure_runs([config]) trains it")
