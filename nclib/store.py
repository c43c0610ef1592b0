"""Finished runs on disk: a folder a run, complete or absent; and the tracked reference results.

    <root>/<run id>/          config.json history.csv … arrays.npz weights.pt provenance.json DONE
    <root>/<run id>.partial/  checkpoint of a run under way, and the traceback of a failed one
    <root>/set-aside/         what failed its checksum, kept for a look and never read

A run is written aside and renamed into place. DONE lists the SHA-256 of every file, which is
compared when that file is read; the configuration must be the one that the run's name stands for.
Nothing that lies in a store is executed: arrays are read without pickles, weights with
``weights_only``.
"""

import contextlib
import functools
import io
import json
import lzma
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
import pandas as pd
import torch

from nclib import paths
from nclib.config import (
    SCHEMA_VERSION,
    ConfigError,
    RunConfig,
    StoredConfig,
    digest,
    run_id,
    setting,
)
from nclib.imbalance import sample_rows
from nclib.paths import csv_bytes, json_bytes, sha256, write_atomic

if TYPE_CHECKING:
    from nclib.models import Classifier
    from nclib.training import Result

HISTORY = ["epoch", "split", "metric", "value"]
_OF_RUN = ("run_id", "profile", "dataset", "model", "setting", "K_A", "R", "seed", "protocol")
FRAME_COLUMNS = [*_OF_RUN, "split", "epoch", "metric", "value"]


# From pandas 3.1 on, every number is read exactly, and the option is deprecated.
_EXACT = {}
if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
    _EXACT["float_precision"] = "round_trip"

# Before 2.10 ``weights_only`` does not hold (CVE-2025-32434, CVE-2026-24747).
if torch.__version__ < (2, 10):
    raise ImportError(
        f"stored runs need torch 2.10 or newer, and this is {torch.__version__}; install it"
    )


class CorruptRun(RuntimeError):
    """A stored run or checkpoint whose content is not what was written; the message names it and
    what is wrong."""

    exit_code = 1


@dataclass(frozen=True)
class StoredRun:
    """A finished run. Its tables (always "history": epoch, split, metric, value), arrays, weights
    and provenance are read and checked when they are first asked for; a damaged one raises
    `CorruptRun` then.

    Parameters
    ----------
    run_id, config : its name and its plain configuration
    names : of its files
    read : returns what is in the file of a name
    """

    run_id: str
    config: dict[str, Any]
    names: tuple[str, ...]
    read: Callable[[str], Any]

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        return {
            name.removesuffix(".csv"): self.read(name)
            for name in self.names
            if name.endswith(".csv")
        }

    @property
    def history(self) -> pd.DataFrame:
        return self.read("history.csv")

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.read("arrays.npz")

    @property
    def provenance(self) -> dict[str, Any]:
        return self.read("provenance.json")

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        if "weights.pt" not in self.names:
            raise CorruptRun(
                f"run {self.run_id} has no weights here; nclib.ensure_runs([config]) trains it"
            )
        return self.read("weights.pt")

    def network(self, code: str | None = None) -> "Classifier":
        """The trained network of a classifier, on the CPU and in evaluation mode. Of a run in
        bfloat16 it computes in float32, the precision of its parameters.

        Parameters
        ----------
        code : of a run with a cell of your own its import path, such as "my_cells:MyCell". A stored
            run imports no code unless you name it

        Returns
        -------
        Classifier
            Called with images (B, C, H, W), it returns logits, features and, of a DEQ, its
            solution. Images on the scale 0 … 1 minus ``mean``, over ``std``, of
            ``nclib.data.make_split(config.data, config.seed)``.

        Raises
        ------
        ConfigError
            Where the run is of another kind, or has a cell of your own that `code` does not name,
            or whose file has changed since. The folder of the run has it as it was, as code.*.py.
        CorruptRun
            Where the weights are damaged, or the run is one of the reference results, of which few
            have any.

        Examples
        --------
        >>> import torch
        >>> import nclib as nc
        >>> data = nc.DataConfig(dataset="digits", n_max=2, test_per_class=2)
        >>> model, train = nc.ModelConfig(width=2), nc.TrainConfig(epochs=1)
        >>> config = nc.RunConfig(data=data, model=model, train=train)
        >>> frame = nc.ensure_runs([config])
        >>> nc.load_run(config).network()(torch.zeros(3, 1, 8, 8)).logits.shape
        torch.Size([3, 10])
        """
        from nclib import training

        config = RunConfig(**self.config)
        if config.model.own_cell != code:
            raise ConfigError(
                "a stored run imports no code unless you name it: "
                f"network({config.model.own_cell!r})"
            )
        return training.trained(config, self.weights).eval()


# --- what is in a file ----------------------------------------------------------------------------


def parse(name: str, content: bytes) -> Any:
    """What is in a file of a run: a table, arrays, weights or a record.

    Raises
    ------
    CorruptRun
        Where it is something else.
    """
    try:
        if name.endswith(".npz"):
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                return {array: stored[array] for array in stored.files}
        if name.endswith(".pt"):
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if name.endswith(".csv"):
            table = read_csv(io.BytesIO(content))
            if name == "history.csv":
                # This raises for a table that is not a history.
                table[HISTORY].astype({"epoch": float, "value": float})
            return table
        return dict(json.loads(content))
    except MemoryError:
        raise
    except Exception as error:  # NumPy, pandas and torch raise anything
        raise CorruptRun(f"it cannot be read ({type(error).__name__}: {error})") from None


def read_csv(source: Any) -> pd.DataFrame:
    """A table with every float exactly as it was written."""
    return pd.read_csv(source, **_EXACT)


# --- the store ------------------------------------------------------------------------------------

CHECKPOINT_VERSION = 2
"""Raised whenever the first line of a checkpoint or what follows it changes."""


class DamageWarning(UserWarning):
    """Something damaged was found and set aside; the work it held is done again."""


class RunStore:
    """The runs in one folder.

    Parameters
    ----------
    root : the folder; made when the first run is written
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def ids(self) -> list[str]:
        """Names of the complete runs, sorted."""
        return sorted(
            done.parent.name
            for done in self.root.glob("*/DONE")
            if done.parent.suffix != ".writing"
        )

    def has(self, run: str) -> bool:
        """Whether the run is complete. Its files are checked when they are read."""
        return (self.root / run / "DONE").is_file()

    def partial(self, run: str) -> Path:
        return self.root / f"{run}.partial"

    def lock(self, run: str) -> filelock.BaseFileLock:
        """Held while a run is trained, so that two processes that want it do not both train it."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(folder / f"{run}.lock")

    def checkpoint(self, run: str) -> "Checkpoint":
        """Where `nclib.training.train` keeps the state of an unfinished run."""
        return Checkpoint(run, self)

    # --- writing ---

    def save(
        self,
        config: StoredConfig,
        made: "Result",
        record: Mapping[str, Any],
        code: Mapping[str, bytes] | None = None,
    ) -> str:
        """Write a finished run with the record of its circumstances, and return its id. A kill or a
        full disk in the middle leaves no run, only its checkpoint. `code` is the file of the user's
        own cell; it is kept and never read."""
        run = run_id(config)
        arrays = io.BytesIO()
        np.savez(arrays, **made.arrays)
        contents = {f"{name}.csv": csv_bytes(frame) for name, frame in made.tables.items()}
        contents["config.json"] = json_bytes(
            {"schema": SCHEMA_VERSION, "config": config.canonical()}
        )
        contents["provenance.json"] = json_bytes({**labels(config), **record})
        contents["arrays.npz"] = arrays.getvalue()
        contents["weights.pt"] = _saved(made.weights)
        for name, content in (code or {}).items():
            contents[f"code.{name}"] = content
        contents["DONE"] = json_bytes({name: sha256(content) for name, content in contents.items()})

        folder = self.root / run
        writing = self.root / f"{run}.writing"
        shutil.rmtree(writing, ignore_errors=True)
        try:
            for name, content in contents.items():
                write_atomic(writing / name, content)
            if not self.has(run):  # what an interrupted copy or removal left is not a run
                shutil.rmtree(folder, ignore_errors=True)
            os.replace(writing, folder)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        shutil.rmtree(self.partial(run), ignore_errors=True)
        return run

    def set_aside(self, path: Path, reason: str) -> None:
        """Move something damaged out of the way, under a name that is free, and warn."""
        folder = self.root / "set-aside"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{'-'.join(path.relative_to(self.root).parts)}.{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):  # another process found the same damage first
            os.replace(path, target)
            warnings.warn(
                f"{reason}; moved to {target.name} in set-aside", DamageWarning, stacklevel=2
            )

    # --- reading ---

    def open(self, run: str) -> StoredRun:
        """A run, to read from: its options are checked now, each other file when it is first asked
        for.

        Raises
        ------
        CorruptRun
            For a run that is absent, or whose options are damaged.
        """
        sums = self._read(run, "DONE", None)
        written = self._read(run, "config.json", sums)
        if not run.endswith(f"-{digest(written.get('config'))}"):
            raise CorruptRun(f"run {run}: config.json is damaged: it is that of another run")
        names = tuple(name for name in sums if not name.startswith(("config.", "code.")))
        return StoredRun(
            run, written["config"], names, functools.cache(lambda name: self._read(run, name, sums))
        )

    def is_sound(self, run: str) -> bool:
        """Whether the run is complete and undamaged, after a damaged one was moved away: `find`
        with the checksums of all files."""
        return self.find(run, whole=True) is not None

    def find(self, run: str, whole: bool = False) -> StoredRun | None:
        """Check a run, move a damaged one away with a warning, and return a sound one or None.

        Checked are its options, history and provenance; if `whole`, the checksums of all files. The
        checkpoint of a sound run, which a kill at the last moment leaves, is deleted.
        """
        if not self.has(run):
            return None
        try:
            stored = self.open(run)
            stored.read("history.csv")
            stored.read("provenance.json")
            if whole:
                sums = self._read(run, "DONE", None)
                for name in stored.names:
                    self._content(run, name, sums)
        except CorruptRun as damage:
            self.set_aside(self.root / run, str(damage))
            return None
        shutil.rmtree(self.partial(run), ignore_errors=True)
        return stored

    def _read(self, run: str, name: str, sums: Mapping[str, str] | None) -> Any:
        """What is in a file of a run."""
        content = self._content(run, name, sums)
        try:
            return parse(name, content)
        except CorruptRun as damage:
            raise _damaged(run, name, str(damage)) from None

    def _content(self, run: str, name: str, sums: Mapping[str, str] | None) -> bytes:
        """The bytes of a file of a run, compared with its checksum."""
        try:
            content = (self.root / run / name).read_bytes()
        # Not of other errors: what cannot be opened now, for want of rights or handles, is sound.
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise _damaged(run, name, error.strerror) from None
        if sums is not None and sha256(content) != sums.get(name):
            raise _damaged(run, name, "it is not what was written (checksum)")
        return content


def _damaged(run: str, name: str, reason: str) -> CorruptRun:
    return CorruptRun(
        f"run {run}: {name} is damaged: {reason} (nclib.ensure_runs([config]) trains it again)"
    )


class Checkpoint:
    """The state of an unfinished run: one file, replaced whole. Its first line has the version, the
    run's id and the SHA-256 of the rest."""

    def __init__(self, run: str, store: RunStore) -> None:
        self.run = run
        self.store = store
        self.path = store.partial(run) / "checkpoint.pt"

    def save(self, state: dict[str, Any]) -> None:
        content = _saved(state)
        write_atomic(self.path, self._header(content) + content)

    def _header(self, content: bytes) -> bytes:
        return f"nclib checkpoint {CHECKPOINT_VERSION} {self.run} {sha256(content)}\n".encode()

    def load(self) -> dict[str, Any] | None:
        """The state last saved. None where there is none, or none that can be trusted, which is set
        aside."""
        if not self.path.exists():
            return None
        header, end, content = self.path.read_bytes().partition(b"\n")
        try:
            if header + end != self._header(content):
                raise CorruptRun("it is damaged, or of another run or version")
            return parse(self.path.name, content)
        except CorruptRun as damage:
            self.store.set_aside(
                self.path, f"checkpoint of {self.run}: {damage}; training starts again"
            )
            return None


def _saved(value: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def labels(config: StoredConfig) -> dict[str, Any]:
    """What a record holds of a run next to its identity: the profile that asked for it first, and
    the name of its model where it has one."""
    model = getattr(getattr(config, "model", None), "name", None)
    return {"profile": config.profile} | ({"model": model} if model else {})


def default_store() -> RunStore:
    """The run store of this project (`paths.runs`)."""
    return RunStore(paths.runs())


# --- tidy tables ----------------------------------------------------------------------------------


def dotted(config: Mapping[str, Any], key: str) -> Any:
    """The option at a dotted key of a plain configuration; None where it is absent."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def identity_columns(config: Mapping[str, Any]) -> dict[str, Any]:
    """dataset (without a folder's fingerprint), model, setting ("balanced", "KA3-R10"; never
    missing, so groupby keeps all), K_A, R (1 for balanced) and seed of a plain configuration; None
    where a configuration has no such thing. A configuration that builds on another run has those of
    its base."""
    base = config.get("base", config)
    imbalance = dotted(base, "data.imbalance")
    num_majority = dotted(base, "data.num_majority")
    ratio = dotted(base, "data.ratio")
    dataset = dotted(base, "data.dataset")
    columns = {"dataset": dataset, "model": dotted(base, "model.kind")}
    columns["setting"] = setting(imbalance, num_majority, ratio)
    columns["K_A"] = num_majority
    columns["R"] = ratio
    if dataset is not None:
        columns["dataset"] = dataset.split("@")[0]
        columns["R"] = ratio or 1.0
    columns["seed"] = config.get("seed", 0)
    return columns


def protocol(config: Mapping[str, Any]) -> str | None:
    """How a run was made, apart from its setting and its seed: version and number of images,
    network, training, as JSON. Runs that are compared must agree in it; in what tells two networks
    apart, those of one network (`nclib.pairs`). None for other kinds."""
    config = config.get("base", config)
    if config.get("kind") != "classifier":
        return None
    options = {}
    for part in ("data", "model", "train"):
        for name, value in config[part].items():
            if name not in _NOT_SHARED and value is not None:
                options[f"{part}.{name}"] = value
    return json.dumps(options, separators=(",", ":"))


_NOT_SHARED = (
    "imbalance",
    "num_majority",
    "ratio",
    "majority",
    "log_every",
    "jacobian_reg",
    "nc_on_test",
)
"""What belongs to the setting, to the evaluation or to one network alone."""


def tidy(run: StoredRun, names: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """The history of a run as tidy rows (`FRAME_COLUMNS`), under the profile and the name of its
    model in `names` (`labels`); left out, those that it was stored with."""
    if names is None:
        names = run.provenance
    columns = {"run_id": run.run_id, "profile": names.get("profile", "custom")}
    columns |= identity_columns(run.config)
    columns["model"] = names.get("model") or columns["model"]
    columns["protocol"] = protocol(run.config)
    return run.history.assign(**columns)[FRAME_COLUMNS]


def stack(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Tidy frames one after the other; no frames give an empty table with the right columns."""
    filled = [frame.astype({"K_A": "Float64", "R": "Float64"}) for frame in frames]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=FRAME_COLUMNS)


# --- reference results ----------------------------------------------------------------------------

_SMALL_ARRAYS = (
    "counts",
    "minority",
    "class_means",
    "classifier",
    "features",
    "fit",
    "images",
    "cams",
    "labels",
    "predicted",
)
"""What a reference run keeps, of whatever kind it is."""
_DRAWN_FEATURES = 400
"""Training features that a reference run keeps if figures plot its seed, shared out among its
classes."""
_DRAWN_SEEDS = (0, 30)
"""Seeds whose features figures plot: the first of every profile, and the first of protocol 3 on
CIFAR-100."""


class ReferenceStore:
    """Small, tracked extracts of finished runs: ``<root>/<collection>/`` with runs.json,
    history.csv.xz, datasets.json and arrays/<run>.npz.

    Read like a `RunStore`; written by `add`. A reference run has its whole history, to the last
    bit, its configuration and provenance, class means and classifier in single precision, of seed
    0, which figures plot, a few features a class in half precision. One pair (K_A = 5, R = 100) has
    its weights, in half precision, in weights/<run>.npz. Of a run that is in several collections,
    that of the first is read.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def _index(self) -> dict[str, Path]:
        """The collection in which each run lies."""
        folders = sorted(
            (listing.parent for listing in self.root.glob("*/runs.json")), reverse=True
        )
        return {run: folder for folder in folders for run in _runs(folder)}

    def ids(self) -> list[str]:
        return sorted(self._index())

    def has(self, run: str) -> bool:
        return run in self._index()

    def files(self, run: str) -> list[Path]:
        """The files that a reference run is read from, those of its whole collection among
        them."""
        folder = self._index()[run]
        return [folder / "runs.json", folder / "history.csv.xz", folder / f"arrays/{run}.npz"]

    def open(self, run: str) -> StoredRun:
        """One reference run, its history and arrays read when they are asked for; raises
        `CorruptRun` when it is not there, or has not the options that its name stands for."""
        folder = self._index().get(run)
        if folder is None:
            raise CorruptRun(f"run {run} is not among the reference results")
        record = _runs(folder)[run]
        if not run.endswith(f"-{digest(record['config'])}"):
            raise CorruptRun(f"reference run {run} has the configuration of another run")
        weights = folder / "weights" / f"{run}.npz"

        def content(name: str) -> Any:
            if name == "provenance.json":
                return record["provenance"]
            if name == "arrays.npz":
                return parse(name, (folder / "arrays" / f"{run}.npz").read_bytes())
            if name == "weights.pt":
                half = parse(weights.name, weights.read_bytes())
                return {
                    key: torch.from_numpy(value.astype(np.float32)) for key, value in half.items()
                }
            return _by_run(folder).get_group(run).reset_index(drop=True)[HISTORY]

        @functools.cache
        def read(name: str) -> Any:
            try:
                return content(name)
            except Exception as error:  # NumPy and pandas raise anything
                raise CorruptRun(
                    f"reference run {run}, {folder.name}: {type(error).__name__}: {error}"
                ) from None

        names = ["history.csv", "arrays.npz", "provenance.json"]
        if weights.exists():
            names.append("weights.pt")
        return StoredRun(run, record["config"], tuple(names), read)

    def frame(self, ids: Iterable[str]) -> pd.DataFrame:
        """The histories of these runs as one tidy table."""
        return stack(tidy(self.open(run)) for run in ids)

    def datasets(self) -> dict[str, Any]:
        """What is known of the data sets of these runs, by name, so that they can be read where the
        images are not."""
        known: dict[str, Any] = {}
        for listing in sorted(self.root.glob("*/datasets.json")):
            known |= json.loads(listing.read_bytes())
        return known

    def add(
        self, collection: str, runs: Iterable[StoredRun], datasets: Mapping[str, Any] | None = None
    ) -> Path:
        """Add runs, and what is known of their data sets, to a collection, replacing those of the
        same id; return its folder."""
        folder = self.root / collection
        listing = folder / "runs.json"
        table = folder / "history.csv.xz"
        known = folder / "datasets.json"
        before = json.loads(known.read_bytes()) if known.exists() else {}
        records = json.loads(listing.read_bytes()) if listing.exists() else {}
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
    kept |= {
        name: kept[name].astype(np.float32)
        for name in ("class_means", "classifier")
        if name in kept
    }
    if run.config.get("seed") in _DRAWN_SEEDS and "train_features" in arrays:
        labels = arrays["train_labels"]
        rows = sample_rows(labels, max(2, _DRAWN_FEATURES // len(np.unique(labels))))
        kept |= {
            "train_features": arrays["train_features"][rows].astype(np.float16),
            "train_labels": labels[rows],
        }
    return kept


def _missed(run: StoredRun) -> dict[str, np.ndarray]:
    """How many training images of each class (K,) the network misses at its last epoch."""
    if "classes" not in run.tables or "counts" not in run.arrays:
        return {}
    rows = run.tables["classes"]
    rows = rows[(rows["split"] == "train") & (rows["metric"] == "accuracy")]
    last = rows[rows["epoch"] == rows["epoch"].max()].sort_values("class")
    return {
        "missed": np.rint(
            (1 - last["value"].to_numpy()) * run.arrays["counts"][last["class"]]
        ).astype(np.int64)
    }


def reference_store() -> ReferenceStore:
    """The tracked reference results (`paths.reference`); an empty store outside a clone."""
    with contextlib.suppress(FileNotFoundError):
        return ReferenceStore(paths.reference())
    return ReferenceStore(paths.results() / "reference")


def finished(runs: Iterable[str]) -> list[str]:
    """Those of these runs that are stored or tracked: `load_run` opens them."""
    store = default_store()
    tracked = set(reference_store().ids())
    return [run for run in runs if store.find(run) or run in tracked]


def one_place(runs: Iterable[str]) -> RunStore | ReferenceStore | None:
    """The run store where it has all of these runs, else the tracked results where they have all;
    None where some are only here and some only there."""
    runs = list(runs)
    store = default_store()
    if all(store.has(run) for run in runs):
        return store
    tracked = reference_store()
    return tracked if set(tracked.ids()).issuperset(runs) else None


def load_run(config: StoredConfig | str) -> StoredRun:
    """A finished run from the run store or, where it is not there, from the reference results.

    Its tables, arrays and provenance are read and checked when they are first asked for. Arrays of
    a reference run are an extract: features of some samples, in half precision.

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
        f"run {run} is neither stored nor tracked; nclib.ensure_runs([config]) trains it"
    )
