"""The run store: one folder per run, named by what was run, complete or absent.

    <root>/<run id>/            config.json  history.csv  …  arrays.npz  weights.pt  provenance.json  DONE
    <root>/<run id>.partial/    checkpoint and progress of a run under way
    <root>/set-aside/           what failed its checksum, kept for a look and never read

A run is written aside and renamed into place; DONE lists the SHA-256 of every file and is verified when a run is read.
What is read must also be what its name says: a run whose options are those of another one, a checkpoint of another run,
and both of another version are refused by name. Nothing is unpickled that could run code: arrays are loaded without
pickles and weights with ``weights_only``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import json
import math
import os
import re
import secrets
import shutil
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pandas as pd
import torch

from nclib.config import SCHEMA_VERSION, ConfigError, StoredConfig, digest, run_id
from nclib.imbalance import sample_rows
from nclib.publish.artefacts import csv_bytes, write_atomic
from nclib.system import paths

_CHECKPOINT = "nclib checkpoint"
_CHECKPOINT_VERSION = 2
"""2: the run's id in the first line. Raised whenever that line or what follows it changes."""
_FILES = ("config.json", "history.csv", "arrays.npz", "weights.pt", "provenance.json")
"""What every run has; there may be more tables."""
_HISTORY = ["epoch", "split", "metric", "value"]
_COLUMNS = {"dataset": "data.dataset", "model": "model.kind", "K_A": "data.num_majority", "R": "data.ratio"}
FRAME_COLUMNS = ["run_id", "profile", "dataset", "model", "K_A", "R", "seed", "split", "epoch", "metric", "value"]


# from pandas 3.1 on, every number is read exactly and the option is deprecated
_EXACT = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}


class CorruptRun(RuntimeError):
    """A stored run or checkpoint whose content is not what was written; the message names it and what is wrong."""

    exit_code = 1


class DamageWarning(UserWarning):
    """Something damaged was found and set aside; the work it held is done again."""


@dataclass(frozen=True)
class StoredRun:
    """A run as it was stored: tables (always "history": epoch, split, metric, value), arrays, provenance."""

    run_id: str
    config: dict[str, Any]
    tables: dict[str, pd.DataFrame]
    arrays: dict[str, np.ndarray]
    provenance: dict[str, Any]

    @property
    def history(self) -> pd.DataFrame:
        return self.tables["history"]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_csv(source: Any) -> pd.DataFrame:
    """A table with every float exactly as it was written."""
    return pd.read_csv(source, **_EXACT)


def dotted(config: Mapping[str, Any], key: str) -> Any:
    """The option at a dotted key of a plain configuration; None where it is absent."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def identity_columns(config: Mapping[str, Any]) -> dict[str, Any]:
    """dataset (without a folder's fingerprint), model, K_A, R (1 for balanced) and seed of a plain configuration;
    None where a configuration has no such thing. A configuration that builds on another run has those of its base."""
    facts = {name: dotted(config.get("base", config), key) for name, key in _COLUMNS.items()}
    if facts["dataset"] is not None:
        facts |= {"dataset": facts["dataset"].split("@")[0], "R": facts["R"] or 1.0}
    return facts | {"seed": config.get("seed", 0)}


def tidy(run: StoredRun, columns: Sequence[str] = ()) -> pd.DataFrame:
    """The history of a run as tidy rows (`FRAME_COLUMNS` and the requested dotted keys)."""
    facts = {"run_id": run.run_id, "profile": run.provenance.get("profile", "custom"), **identity_columns(run.config)}
    facts |= {key: dotted(run.config, key) for key in columns}
    return run.history.assign(**facts)[[*FRAME_COLUMNS, *columns]]


class _Checkpoint:
    """One file, replaced whole; its first line says whose it is, in which version, and its SHA-256."""

    def __init__(self, run: str, folder: Path, set_aside: Any) -> None:
        self.run, self.path, self._set_aside = run, folder / "checkpoint.pt", set_aside

    def save(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        header = f"{_CHECKPOINT} {_CHECKPOINT_VERSION} {self.run} {_digest(content)}\n"
        write_atomic(self.path, header.encode() + content)

    def load(self) -> dict[str, Any] | None:
        """The state last saved; None where there is none, or none that can be trusted, which is set aside and told."""
        if not os.path.lexists(self.path):
            return None
        try:
            return self._read()
        except CorruptRun as damage:
            self._set_aside(self.path, f"checkpoint in {self.path.parent.name}: {damage}; training starts again")
            return None

    def _read(self) -> dict[str, Any]:
        header, _, content = _bytes(self.path).partition(b"\n")
        words = header.decode(errors="replace").removeprefix(f"{_CHECKPOINT} ").split(" ")
        if not header.startswith(f"{_CHECKPOINT} ".encode()) or len(words) < 2:
            raise CorruptRun("it is no checkpoint of this library")
        if words[0] != str(_CHECKPOINT_VERSION):
            raise CorruptRun(f"it was written in version {words[0][:20]}, this library reads {_CHECKPOINT_VERSION}")
        if words[1] != self.run:
            raise CorruptRun(f"it is that of run {words[1]}")
        if words[2:] != [_digest(content)]:
            raise CorruptRun("its checksum does not fit")
        state = _torch_load(content)
        if not isinstance(state, dict):
            raise CorruptRun(f"it holds a {type(state).__name__}, not the state of a training")
        return state


def _bytes(path: Path) -> bytes:
    """Content of a plain file. Reading a pipe in its place would never end."""
    if not path.is_file():
        raise CorruptRun(f"{path.name} is {'no plain file' if os.path.lexists(path) else 'missing'}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorruptRun(f"{path.name} cannot be read ({error.strerror})") from None


_UNPACKED, _UNPACKED_TIMES = 2**26, 50
"""An archive may hold 64 MiB, or 50 times its own size: what is written here holds less."""


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of an npz file."""
    _refuse_bomb(content)
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _refuse_bomb(content: bytes) -> None:
    """Refuse a zip archive that would take far more memory than its own size. No more is unpacked than it declares."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > max(_UNPACKED, _UNPACKED_TIMES * len(content)):
        raise CorruptRun(f"unpacked it would take {size / 1e6:,.0f} MB, {size / len(content):.0f} times its size")


def _torch_load(content: bytes) -> Any:
    """Tensors and plain values; whatever else a pickle would do is refused before it is done."""
    try:
        _refuse_bomb(content)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except CorruptRun:
        raise
    except Exception as error:  # of many kinds, with advice to allow the pickle
        raise CorruptRun(f"it is no file of tensors and plain values ({type(error).__name__})") from None


def wall_seconds(provenance: Mapping[str, Any]) -> float | None:
    """How long a run took by its record; None where that says no finite time."""
    try:
        seconds = float(provenance["cost"]["wall_seconds"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < math.inf else None


def _parse(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptRun(f"no JSON ({error})") from None
    if not isinstance(value, dict):
        raise CorruptRun(f"a JSON {type(value).__name__}, not an object")
    return value


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
        done = (path for path in self.root.glob("*/DONE") if path.is_file())
        return sorted(path.parent.name for path in done if not path.parent.name.endswith(".writing"))

    def has(self, run: str) -> bool:
        """Whether the run is complete. Its content is verified by `load`."""
        return (self.root / run / "DONE").is_file()

    def records(self, latest: int | None = None) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Id, configuration and provenance of the complete runs, both verified, the last finished at the end.

        For whoever looks at all runs and asked for none of them: a damaged one is named in a warning and left out.
        `latest` are the last so many.
        """
        when = {}
        for run in self.ids():
            with contextlib.suppress(OSError):  # removed since
                when[run] = (self.root / run / "DONE").stat().st_mtime
        for run in sorted(when, key=when.get)[-(latest or len(when)) :]:
            try:
                config, contents = self._open(run, ("config.json", "provenance.json"))
                yield run, config, _parse(contents["provenance.json"])
            except CorruptRun as damage:
                said = f"{damage}; it is left out. nclib runs check sets aside what is damaged"
                warnings.warn(said, DamageWarning, stacklevel=2)

    def check(self) -> Iterator[tuple[str, str]]:
        """Read every run that no process is working on, and set aside what is damaged: each name, and what is wrong
        with it, "" for a sound one."""
        for folder in sorted(self.root.glob("[!.]*")):
            run = folder.name
            if run.endswith((".partial", ".writing")) or run == "set-aside" or not folder.is_dir() or self.busy(run):
                continue
            reason = ""
            try:
                if not self.has(run):
                    raise CorruptRun(f"run {run} has no DONE, so it is not complete")
                self.weights(run)
                record = self.load(run).provenance
                if record.get("cost") is not None and wall_seconds(record) is None:
                    raise CorruptRun(f"run {run}: provenance.json does not say how long it took")
            except CorruptRun as damage:
                reason = str(damage)
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", DamageWarning)
                        reason += f"; moved to {self.set_aside(folder, reason).name} in set-aside"
                except OSError as error:
                    reason += f"; it cannot be set aside ({error.strerror})"
            yield run, reason

    def partial(self, run: str) -> Path:
        return self.root / f"{run}.partial"

    def lock(self, run: str, timeout: float = -1) -> filelock.BaseFileLock:
        """Held while a run is trained, so that two processes that want it do not both train it."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(folder / f"{run}.lock", timeout=timeout)

    def busy(self, run: str) -> bool:
        """Whether a process is training this run now."""
        try:
            with self.lock(run, timeout=0):
                return False
        except filelock.Timeout:
            return True

    @contextlib.contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """Within the block an empty file of this name lies in the store, by which others can tell that they see it too.
        It is held, so that those which killed processes left (``.client-…``) are known and removed."""
        self.root.mkdir(parents=True, exist_ok=True)
        for left in self.root.glob(".client-*"):
            with contextlib.suppress(filelock.Timeout, OSError), filelock.FileLock(left, timeout=0):
                left.unlink()
        with filelock.FileLock(self.root / name):
            try:
                yield
            finally:
                (self.root / name).unlink(missing_ok=True)

    def checkpoint(self, run: str) -> _Checkpoint:
        """Where `nclib.training.train` keeps the state of an unfinished run."""
        return _Checkpoint(run, self.partial(run), self.set_aside)

    def note_progress(self, run: str, done: int, total: int) -> None:
        """Say how far a run is, for whoever waits for it."""
        write_atomic(self.partial(run) / "progress.json", json.dumps({"epoch": done, "epochs": total}))

    def progress(self, run: str) -> float:
        """Finished share of a run, 0 to 1, complete or under way."""
        if self.has(run):
            return 1.0
        try:
            noted = _parse(_bytes(self.partial(run) / "progress.json"))
            return float(min(max(noted["epoch"] / noted["epochs"], 0.0), 1.0))
        except (CorruptRun, KeyError, TypeError, ArithmeticError):
            return 0.0

    def set_aside(self, path: Path, reason: str) -> Path:
        """Move something damaged out of the way, under a name that is free, and warn."""
        folder = self.root / "set-aside"
        folder.mkdir(parents=True, exist_ok=True)
        stem = path.name if path.parent == self.root else f"{path.parent.name}-{path.name}"
        target = next(name for n in itertools.count() if not (name := folder / f"{stem}.{n}").exists())
        try:
            os.replace(path, target)
        except FileNotFoundError:  # another process found the same damage first
            return target
        warnings.warn(f"{reason}; moved to {target.name} in set-aside", DamageWarning, stacklevel=3)
        return target

    def save(
        self,
        config: StoredConfig,
        tables: Mapping[str, pd.DataFrame],
        arrays: Mapping[str, np.ndarray],
        weights: Mapping[str, torch.Tensor],
        provenance: Mapping[str, Any],
    ) -> str:
        """Write a finished run and return its id. A kill or a full disk in the middle leaves no run, only its
        checkpoint."""
        run = run_id(config)
        final, writing = self.root / run, self.root / f"{run}.writing"
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        contents = {f"{name}.csv": csv_bytes(frame) for name, frame in tables.items()}
        contents["config.json"] = _json({"schema": SCHEMA_VERSION, "config": config.canonical()})
        contents["provenance.json"] = _json({"profile": config.profile, **provenance})
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        contents["arrays.npz"] = buffer.getvalue()
        buffer = io.BytesIO()
        torch.save(dict(weights), buffer)
        contents["weights.pt"] = buffer.getvalue()
        try:
            for name, content in contents.items():
                write_atomic(writing / name, content)
            write_atomic(writing / "DONE", _json({name: _digest(content) for name, content in contents.items()}))
            os.replace(writing, final)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        self.clear_partial(run)
        return run

    def pack(self, run: str) -> dict[str, bytes]:
        """All files of a complete run, verified, to be installed in another store; raises `CorruptRun` as `verify`."""
        return self.verify(run) | {"DONE": _bytes(self.root / run / "DONE")}

    def install(self, run: str, files: Mapping[str, bytes]) -> None:
        """Take in a run that was packed elsewhere: whole, or not at all.

        Raises
        ------
        CorruptRun
            When the files are not those that were written, or not of this run.
        """
        if foreign := [name for name in files if Path(name).name != name]:
            raise CorruptRun(f"run {run} came with {foreign[0]!r}, which is no file of a run")
        aside = RunStore(self.root / ".arriving")
        folder = aside.root / f"{run}-{secrets.token_hex(4)}" / run  # another client may take it in at the same time
        folder.mkdir(parents=True)
        try:
            for name, content in files.items():
                write_atomic(folder / name, content)
            RunStore(folder.parent).load(run)
            with self.lock(run):
                if not self.is_sound(run):  # which sets a damaged one aside
                    os.replace(folder, self.root / run)
                self.clear_partial(run)
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)

    def clear_partial(self, run: str) -> None:
        """Remove the checkpoint of a run that is complete; what cannot be removed is told."""
        try:
            _remove_folder(self.partial(run))
        except OSError as error:
            said = f"{self.partial(run).name}, which run {run} no longer needs, cannot be removed ({error.strerror})"
            warnings.warn(said, DamageWarning, stacklevel=2)

    def verify(self, run: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """Contents of a run's files, of all or of those named, each checked against DONE.

        Raises
        ------
        CorruptRun
            Naming the first file that is missing or not what was written.
        """
        folder = self.root / run
        if not self.has(run):
            raise CorruptRun(f"run {run} is not in the store")
        try:
            sums = _parse(_bytes(folder / "DONE"))
            if lacking := [name for name in _FILES if name not in sums]:
                raise CorruptRun(f"does not list {', '.join(lacking)}")
            if foreign := [name for name in sums if Path(name).name != name]:
                raise CorruptRun(f"lists {foreign[0]!r}, which is no file of a run")
        except CorruptRun as damage:
            raise CorruptRun(f"run {run}: DONE is damaged ({damage})") from None
        contents = {}
        for name, expected in sums.items():
            if names is not None and name not in names:
                continue
            try:
                contents[name] = _bytes(folder / name)
            except CorruptRun as damage:
                raise CorruptRun(f"run {run}: {damage}") from None
            if _digest(contents[name]) != expected:
                raise CorruptRun(f"run {run}: {name} is not what was written (checksum)")
        return contents

    def _open(self, run: str, names: Sequence[str] | None = None) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The options of a run, which are those that its name stands for, and its verified files."""
        contents = self.verify(run, names)
        try:
            written = _parse(contents["config.json"])
            config = written.get("config")
            if not isinstance(config, dict):
                raise CorruptRun("it holds no configuration")
        except CorruptRun as damage:
            raise CorruptRun(f"run {run}: config.json is damaged ({damage})") from None
        if written.get("schema") != SCHEMA_VERSION:
            raise CorruptRun(
                f"run {run} was written with schema {written.get('schema')}, this library reads {SCHEMA_VERSION}"
            )
        if not run.endswith(f"-{digest(config)}"):
            raise CorruptRun(f"run {run}: config.json is that of another run, whose name ends in {digest(config)}")
        return config, contents

    def is_sound(self, run: str) -> bool:
        """Whether the run is complete and verified; a damaged one is set aside with a warning, and is then absent. What
        a kill at the last moment left beside a sound one is removed."""
        if not self.has(run):
            if os.path.lexists(self.root / run):  # interrupted while it was copied or removed; it would be in the way
                self.set_aside(self.root / run, f"run {run} has no DONE, so it is not complete")
            return False
        try:
            self._open(run)
        except CorruptRun as damage:
            self.set_aside(self.root / run, str(damage))
            return False
        if os.path.lexists(self.partial(run)):
            with contextlib.suppress(filelock.Timeout), self.lock(run, timeout=0):  # held: its trainer does it
                self.clear_partial(run)
        return True

    def load(self, run: str) -> StoredRun:
        """Read a run, verified.

        Raises
        ------
        CorruptRun
            For a run that is absent or damaged, or written by another version of the store.
        """
        config, contents = self._open(run)
        tables, arrays, provenance, name = {}, {}, {}, ""
        try:
            for name, content in contents.items():
                if name.endswith(".csv"):
                    tables[Path(name).stem] = read_csv(io.BytesIO(content))
            name = "history.csv"
            tables["history"][_HISTORY]
            name = "arrays.npz"
            arrays = _arrays(contents[name])
            name = "provenance.json"
            provenance = _parse(contents[name])
        except Exception as error:  # the checksum fits, so somebody else wrote it: NumPy and pandas raise anything
            raise CorruptRun(f"run {run}: {name} cannot be read ({type(error).__name__}: {error})") from None
        return StoredRun(run, config, tables, arrays, provenance)

    def weights(self, run: str) -> dict[str, torch.Tensor]:
        """Final weights of a run, verified; raises as `load`."""
        _, contents = self._open(run)
        try:
            return _torch_load(contents["weights.pt"])
        except CorruptRun as damage:
            raise CorruptRun(f"run {run}: weights.pt: {damage}") from None

    def frame(self, ids: Iterable[str], columns: Sequence[str] = ()) -> pd.DataFrame:
        """Histories of several runs as one tidy table.

        Parameters
        ----------
        ids : run names
        columns : dotted configuration keys to add, for instance ``["train.lr", "model.width"]``

        Returns
        -------
        DataFrame with the columns run_id, profile, dataset, model, K_A, R, seed, split, epoch, metric, value and
        `columns`.
        """
        return stack([tidy(self.load(run), columns) for run in ids], columns)

    def remove(self, run: str) -> None:
        """Delete a run, or what there is of it.

        Raises
        ------
        ConfigError
            While a process trains it, and where its folder is a symbolic link: what that leads to may be used by
            others.
        OSError
            When the system does not let it be removed.
        """
        if self.busy(run):
            raise ConfigError(f"run {run} is being trained; stop that first (Ctrl-C)")
        folder = self.root / run
        if folder.is_symlink():
            raise ConfigError(f"run {run} is a symbolic link; remove {folder.resolve()} and then {folder} yourself")
        with self.lock(run):
            (folder / "DONE").unlink(missing_ok=True)  # first: a run of which a part is gone is no run
            _remove_folder(folder)
            _remove_folder(self.partial(run))


def _remove_folder(folder: Path) -> None:
    """Remove a folder if it is there; of a symbolic link only itself and the state of a training that it leads to."""
    if folder.is_symlink():
        for name in ("checkpoint.pt", "progress.json"):
            (folder / name).unlink(missing_ok=True)
        folder.unlink()
    elif folder.is_dir():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def stack(frames: list[pd.DataFrame], columns: Sequence[str] = ()) -> pd.DataFrame:
    """Tidy frames one after the other; no frames give an empty table with the right columns."""
    filled = [frame.astype({"K_A": "Float64", "R": "Float64"}) for frame in frames]
    if not filled:
        return pd.DataFrame(columns=[*FRAME_COLUMNS, *columns])
    return pd.concat(filled, ignore_index=True)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


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
            found |= dict.fromkeys(_records(listing, listing.stat().st_mtime_ns), listing.parent)
        return found

    def ids(self) -> list[str]:
        return sorted(self._index())

    def has(self, run: str) -> bool:
        return run in self._index()

    def config(self, run: str) -> dict[str, Any]:
        """The plain configuration of a reference run."""
        listing = self._index()[run] / "runs.json"
        return _records(listing, listing.stat().st_mtime_ns)[run]["config"]

    def load(self, run: str) -> StoredRun:
        """One reference run; raises `CorruptRun` when it is not there."""
        folder = self._index().get(run)
        if folder is None:
            raise CorruptRun(f"run {run} is not among the reference results")
        listing, table, file = folder / "runs.json", folder / "history.csv", folder / "arrays" / f"{run}.npz"
        record = _records(listing, listing.stat().st_mtime_ns)[run]
        try:
            config, provenance = record["config"], record["provenance"]
            rows = _by_run(table, table.stat().st_mtime_ns).get_group(run)
            history = rows.drop(columns="run_id").reset_index(drop=True)[_HISTORY]
            arrays = _arrays(_bytes(file))
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
            found |= json.loads(listing.read_text())
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
        before = json.loads(known.read_text()) if known.exists() else {}
        write_atomic(known, _json({**before, **(datasets or {})}))
        listing, table = folder / "runs.json", folder / "history.csv"
        records = json.loads(listing.read_text()) if listing.exists() else {}
        frames = [read_csv(table)] if table.exists() else []
        for run in runs:
            records[run.run_id] = {"config": run.config, "provenance": run.provenance}
            frames = [frame[frame["run_id"] != run.run_id] for frame in frames]
            frames.append(run.history.assign(run_id=run.run_id)[["run_id", *run.history.columns]])
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **_extract(run.arrays, features=run.config.get("seed") == 0))
            write_atomic(folder / "arrays" / f"{run.run_id}.npz", buffer.getvalue())
        rows = pd.concat(frames).sort_values(["run_id", "epoch", "split", "metric"], kind="stable")
        write_atomic(table, csv_bytes(rows))
        write_atomic(listing, _json(records))
        return folder


# A collection has hundreds of runs; its files are read once as long as they do not change.


@functools.lru_cache(maxsize=8)
def _records(listing: Path, changed: int) -> dict[str, Any]:
    try:
        return _parse(listing.read_bytes())
    except CorruptRun as damage:
        raise CorruptRun(f"{listing.parent.name}/{listing.name}: {damage}. {_from_git(listing.parent)}") from None


def _from_git(folder: Path) -> str:
    return f"Get the folder back from git: git checkout -- {folder.parent.name}/{folder.name}, in results/"


@functools.lru_cache(maxsize=8)
def _by_run(table: Path, changed: int) -> Any:
    return read_csv(table).groupby("run_id", sort=False)


def _extract(arrays: Mapping[str, np.ndarray], features: bool) -> dict[str, np.ndarray]:
    """The part of a run's arrays that a reference keeps; `features` to draw a classifier's, of one seed."""
    kept = {name: arrays[name] for name in _SMALL_ARRAYS if name in arrays}
    if features and "train_features" in arrays:
        labels = arrays["train_labels"]
        rows = sample_rows(labels, max(1, _KEPT_FEATURES // len(np.unique(labels))))
        kept |= {"train_features": arrays["train_features"][rows].astype(np.float16), "train_labels": labels[rows]}
    return kept


def default_store() -> RunStore:
    """The run store of this project (`paths.runs`)."""
    return RunStore(paths.runs())


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
