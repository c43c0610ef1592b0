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
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pandas as pd
import torch

from nclib.config import SCHEMA_VERSION, ConfigError, StoredConfig, digest, run_id
from nclib.engine.checkpoint import Checkpoint
from nclib.engine.leftovers import HELD, clear_unheld
from nclib.engine.reading import (
    CorruptRun,
    Files,
    StoredRun,
    check_options,
    read_file,
    read_object,
    read_part,
    stack,
    tidy,
    wall_seconds,
)
from nclib.system import paths
from nclib.system.files import csv_bytes, json_bytes, sha256, write_atomic

_FILES = ("config.json", "history.csv", "arrays.npz", "weights.pt", "provenance.json")
"""What every run has; there may be more tables, and copies of the user's own code, which are never read."""
_READ = _FILES[2:]


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
        names = [path.parent.name for path in self.root.glob("*/DONE") if path.is_file()]
        return sorted(name for name in names if name.isprintable() and not name.endswith(".writing"))

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
                stored = self.open(run)
                yield run, stored.config, stored.provenance
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
                config, contents = self._verified(run)
                record = self._run(run, config, contents, contents.__getitem__).whole().provenance
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
        """Whether a process is training this run now; in a store that may only be read, none is."""
        try:
            with self.lock(run, timeout=0):
                return False
        except filelock.Timeout:
            return True
        except OSError:
            return False

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

    def checkpoint(self, run: str) -> Checkpoint:
        """Where `nclib.training.train` keeps the state of an unfinished run."""
        return Checkpoint(run, self.partial(run), self.set_aside)

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
        code: Mapping[str, bytes] | None = None,
    ) -> str:
        """Write a finished run and return its id. A kill or a full disk in the middle leaves no run, only its
        checkpoint. `code` are the files of the user's own code that made it."""
        run = run_id(config)
        final, writing = self.root / run, self.root / f"{run}.writing"
        _remove_folder(writing)
        writing.mkdir(parents=True)
        contents = {f"{name}.csv": csv_bytes(frame) for name, frame in tables.items()}
        contents["config.json"] = config_file(config)
        contents["provenance.json"] = json_bytes({**labels(config), **provenance})
        contents |= {f"code.{name}": content for name, content in (code or {}).items()}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        contents["arrays.npz"] = buffer.getvalue()
        buffer = io.BytesIO()
        torch.save(dict(weights), buffer)
        contents["weights.pt"] = buffer.getvalue()
        try:
            for name, content in contents.items():
                write_atomic(writing / name, content)
            write_atomic(writing / "DONE", done_file(contents))
            os.replace(writing, final)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        self.clear_partial(run)
        return run

    def pack(self, run: str) -> dict[str, bytes]:
        """All files of a complete run, verified, to be installed in another store; raises `CorruptRun` as `verify`."""
        return self.verify(run) | {"DONE": read_file(self.root / run / "DONE")}

    def install(self, run: str, files: Mapping[str, bytes], lock: filelock.BaseFileLock | None = None) -> None:
        """Take in a run that was packed elsewhere: whole, or not at all. `lock` is the run's, if the caller holds it.

        Raises
        ------
        CorruptRun
            When the files are not those that were written, or not of this run.
        """
        if not isinstance(files, Mapping):
            raise CorruptRun(f"run {run} came as {type(files).__name__}, not as its files")
        for name, content in files.items():
            if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
                raise CorruptRun(f"run {run} came with {name!r:.100}, which is not a file of a run")
            if not isinstance(content, bytes):
                raise CorruptRun(f"run {run}: {name} came as {type(content).__name__}, not as its bytes")
        aside = RunStore(self.root / ".arriving")
        folder = aside.root / f"{run}-{secrets.token_hex(4)}" / run  # another client may take it in at the same time
        clear_unheld(aside.root.glob("*"))
        folder.mkdir(parents=True)
        try:
            with filelock.FileLock(folder.parent / HELD):
                for name, content in files.items():
                    write_atomic(folder / name, content)
                arrived = RunStore(folder.parent)
                arrived.load(run)
                if unlisted := files.keys() - arrived._sums(run).keys() - {"DONE"}:
                    raise CorruptRun(f"run {run} came with {min(unlisted)}, which its DONE does not list")
                with lock or self.lock(run):
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

    def clear_cut_off(self, runs: Iterable[str]) -> None:
        """Remove what processes that were killed in the middle of a write left of the state of these runs. Those that a
        process is training are left alone."""
        clear_unheld((self.root / ".arriving").glob("*"))
        for run in runs:
            for left in self.partial(run).glob(".*.tmp"):
                with contextlib.suppress(filelock.Timeout, OSError), self.lock(run, timeout=0):
                    left.unlink()

    def verify(self, run: str) -> dict[str, bytes]:
        """Contents of all files of a run, each checked against DONE.

        Raises
        ------
        CorruptRun
            Naming the first file that is missing or not what was written.
        """
        sums = self._sums(run)
        return {name: self._content(run, name, sums) for name in sums}

    def _sums(self, run: str) -> dict[str, str]:
        """The files of a run and their checksums, by its DONE."""
        if not self.has(run):
            raise CorruptRun(f"run {run} is not in the store")
        try:
            sums = read_object(read_file(self.root / run / "DONE"))
            if lacking := [name for name in _FILES if name not in sums]:
                raise CorruptRun(f"does not list {', '.join(lacking)}")
            if foreign := [name for name in sums if Path(name).name != name]:
                raise CorruptRun(f"lists {foreign[0]!r}, which is not a file of a run")
        except CorruptRun as damage:
            raise CorruptRun(f"run {run}: DONE is damaged ({damage})") from None
        return sums

    def _content(self, run: str, name: str, sums: Mapping[str, str]) -> bytes:
        try:
            content = read_file(self.root / run / name)
        except CorruptRun as damage:
            raise CorruptRun(f"run {run}: {damage}") from None
        if sha256(content) != sums[name]:
            raise CorruptRun(f"run {run}: {name} is not what was written (checksum)")
        return content

    def _config(self, run: str, content: bytes) -> dict[str, Any]:
        """The options of a run, which are those that its name stands for."""
        try:
            written = read_object(content)
            config = written.get("config")
            if not isinstance(config, dict):
                raise CorruptRun("it holds no configuration")
        except CorruptRun as damage:
            raise CorruptRun(f"run {run}: config.json is damaged ({damage})") from None
        if written.get("schema") != SCHEMA_VERSION:
            raise CorruptRun(
                f"run {run} was written with schema {written.get('schema')!r:.60}, this library reads {SCHEMA_VERSION}"
            )
        if not run.endswith(f"-{digest(config)}"):
            raise CorruptRun(f"run {run}: config.json is that of another run, whose name ends in {digest(config)}")
        check_options(f"run {run}", config)
        return config

    def _verified(self, run: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The options of a run, and all its files."""
        contents = self.verify(run)
        return self._config(run, contents["config.json"]), contents

    def _run(
        self, run: str, config: dict[str, Any], names: Iterable[str], content: Callable[[str], bytes]
    ) -> StoredRun:
        parts = [name for name in names if name.endswith(".csv") or name in _READ]
        return StoredRun(run, config, Files(parts, lambda name: read_part(run, name, content(name))))

    def is_sound(self, run: str) -> bool:
        """Whether the run is complete and every file what was written; a damaged one is set aside with a warning, and
        is then absent. What a kill at the last moment left beside a sound one is removed."""
        return self._look(run, self._verified) is not None

    def find(self, run: str) -> StoredRun | None:
        """The run with its options and history checked. None where it is absent, or these are damaged: it is then set
        aside with a warning. Its other files are checked when they are read."""

        def checked(run: str) -> StoredRun:
            stored = self.open(run)
            _ = stored.history
            return stored

        return self._look(run, checked)

    def _look(self, run: str, read: Callable[[str], Any]) -> Any:
        there = os.path.lexists(self.root / run)  # asked first: another process may finish the run between the two
        if not self.has(run):
            if there:  # interrupted while it was copied or removed; it would be in the way
                self.set_aside(self.root / run, f"run {run} has no DONE, so it is not complete")
            return None
        try:
            found = read(run)
        except CorruptRun as damage:
            self.set_aside(self.root / run, str(damage))
            return None
        if os.path.lexists(self.partial(run)):
            # held: its trainer does it; an OSError: a store that may only be read
            with contextlib.suppress(filelock.Timeout, OSError), self.lock(run, timeout=0):
                self.clear_partial(run)
        return found

    def open(self, run: str) -> StoredRun:
        """A run, to read from: its options are checked now, each other file when it is first asked for.

        Raises
        ------
        CorruptRun
            For a run that is absent, or whose options are damaged or written by another version of the store.
        """
        sums = self._sums(run)
        config = self._config(run, self._content(run, "config.json", sums))
        return self._run(run, config, sums, lambda name: self._content(run, name, sums))

    def load(self, run: str) -> StoredRun:
        """Read a run whole, every file checked; raises as `open`, for any damaged file."""
        config, contents = self._verified(run)
        return self._run(run, config, contents, contents.__getitem__).whole()

    def weights(self, run: str) -> dict[str, torch.Tensor]:
        """Final weights of a run, every file checked; raises as `load`."""
        config, contents = self._verified(run)
        return self._run(run, config, contents, contents.__getitem__).weights

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
        return stack([tidy(self.open(run), columns) for run in ids], columns)

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


def labels(config: StoredConfig) -> dict[str, Any]:
    """What a record says of a run that is no part of its identity: the profile that asked for it first, and the name of
    its model where it has one."""
    model = getattr(getattr(config, "model", None), "name", None)
    return {"profile": config.profile} | ({"model": model} if model else {})


def config_file(config: StoredConfig) -> bytes:
    """The config.json of a run."""
    return json_bytes({"schema": SCHEMA_VERSION, "config": config.canonical()})


def done_file(contents: Mapping[str, bytes]) -> bytes:
    """The DONE of a run that has these files."""
    return json_bytes({name: sha256(content) for name, content in contents.items()})


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
