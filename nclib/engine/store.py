"""The run store: one folder per run, named by what was run, complete or absent.

    <root>/<run id>/            config.json  history.csv  …  arrays.npz  weights.pt  provenance.json  DONE
    <root>/<run id>.partial/    checkpoint and progress of a run under way
    <root>/set-aside/           what failed its checksum, kept for a look and never read

A run is written aside and renamed into place; DONE lists the SHA-256 of every file and is verified when a run is read.
What is read must also be what its name says: a run whose options are those of another one, a checkpoint of another run,
and both of another version are refused by name.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pandas as pd
import torch

from nclib.config import SCHEMA_VERSION, ConfigError, StoredConfig, digest, run_id
from nclib.engine.reading import (
    HISTORY,
    CorruptRun,
    StoredRun,
    read_arrays,
    read_csv,
    read_file,
    read_object,
    read_tensors,
    stack,
    tidy,
    wall_seconds,
)
from nclib.system import paths
from nclib.system.files import csv_bytes, json_bytes, sha256, write_atomic

_CHECKPOINT = "nclib checkpoint"
_CHECKPOINT_VERSION = 2
"""2: the run's id in the first line. Raised whenever that line or what follows it changes."""
_FILES = ("config.json", "history.csv", "arrays.npz", "weights.pt", "provenance.json")
"""What every run has; there may be more tables."""


class DamageWarning(UserWarning):
    """Something damaged was found and set aside; the work it held is done again."""


class _Checkpoint:
    """One file, replaced whole; its first line says whose it is, in which version, and its SHA-256."""

    def __init__(self, run: str, folder: Path, set_aside: Any) -> None:
        self.run, self.path, self._set_aside = run, folder / "checkpoint.pt", set_aside

    def save(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        header = f"{_CHECKPOINT} {_CHECKPOINT_VERSION} {self.run} {sha256(content)}\n"
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
        header, _, content = read_file(self.path).partition(b"\n")
        words = header.decode(errors="replace").removeprefix(f"{_CHECKPOINT} ").split(" ")
        if not header.startswith(f"{_CHECKPOINT} ".encode()) or len(words) < 2:
            raise CorruptRun("it is no checkpoint of this library")
        if words[0] != str(_CHECKPOINT_VERSION):
            raise CorruptRun(f"it was written in version {words[0][:20]}, this library reads {_CHECKPOINT_VERSION}")
        if words[1] != self.run:
            raise CorruptRun(f"it is that of run {words[1]}")
        if words[2:] != [sha256(content)]:
            raise CorruptRun("its checksum does not fit")
        state = read_tensors(content)
        if not isinstance(state, dict):
            raise CorruptRun(f"it holds a {type(state).__name__}, not the state of a training")
        return state


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
                yield run, config, read_object(contents["provenance.json"])
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
            noted = read_object(read_file(self.partial(run) / "progress.json"))
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
        contents["config.json"] = json_bytes({"schema": SCHEMA_VERSION, "config": config.canonical()})
        contents["provenance.json"] = json_bytes({"profile": config.profile, **provenance})
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        contents["arrays.npz"] = buffer.getvalue()
        buffer = io.BytesIO()
        torch.save(dict(weights), buffer)
        contents["weights.pt"] = buffer.getvalue()
        try:
            for name, content in contents.items():
                write_atomic(writing / name, content)
            write_atomic(writing / "DONE", json_bytes({name: sha256(content) for name, content in contents.items()}))
            os.replace(writing, final)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        self.clear_partial(run)
        return run

    def pack(self, run: str) -> dict[str, bytes]:
        """All files of a complete run, verified, to be installed in another store; raises `CorruptRun` as `verify`."""
        return self.verify(run) | {"DONE": read_file(self.root / run / "DONE")}

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
            sums = read_object(read_file(folder / "DONE"))
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
                contents[name] = read_file(folder / name)
            except CorruptRun as damage:
                raise CorruptRun(f"run {run}: {damage}") from None
            if sha256(contents[name]) != expected:
                raise CorruptRun(f"run {run}: {name} is not what was written (checksum)")
        return contents

    def _open(self, run: str, names: Sequence[str] | None = None) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The options of a run, which are those that its name stands for, and its verified files."""
        contents = self.verify(run, names)
        try:
            written = read_object(contents["config.json"])
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
            tables["history"][HISTORY]
            name = "arrays.npz"
            arrays = read_arrays(contents[name])
            name = "provenance.json"
            provenance = read_object(contents[name])
        except Exception as error:  # the checksum fits, so somebody else wrote it: NumPy and pandas raise anything
            raise CorruptRun(f"run {run}: {name} cannot be read ({type(error).__name__}: {error})") from None
        return StoredRun(run, config, tables, arrays, provenance)

    def weights(self, run: str) -> dict[str, torch.Tensor]:
        """Final weights of a run, verified; raises as `load`."""
        _, contents = self._open(run)
        try:
            return read_tensors(contents["weights.pt"])
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


def default_store() -> RunStore:
    """The run store of this project (`paths.runs`)."""
    return RunStore(paths.runs())
