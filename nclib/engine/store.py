"""The run store: one folder per run, named by what was run, complete or absent.

    <root>/<run id>/            config.json  history.csv  …  arrays.npz  weights.pt  provenance.json  DONE
    <root>/<run id>.partial/    checkpoint and progress of a run under way
    <root>/set-aside/           what failed its checksum, kept for a look and never read

A run is written aside and renamed into place. DONE lists the SHA-256 of every file, which is compared when that file is
read; the configuration must be the one that the run's name stands for.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pandas as pd
import torch

from nclib.config import SCHEMA_VERSION, ConfigError, StoredConfig, digest, run_id
from nclib.engine.reading import CorruptRun, StoredRun, parse
from nclib.system import paths
from nclib.system.files import csv_bytes, json_bytes, sha256, write_atomic

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

    # --- what is there ---

    def ids(self) -> list[str]:
        """Names of the complete runs, sorted."""
        names = [done.parent.name for done in self.root.glob("*/DONE")]
        return sorted(name for name in names if not name.endswith(".writing"))

    def has(self, run: str) -> bool:
        """Whether the run is complete. Its files are checked when they are read."""
        return (self.root / run / "DONE").is_file()

    def partial(self, run: str) -> Path:
        return self.root / f"{run}.partial"

    def unfinished(self) -> list[str]:
        """Names of the runs that have begun and are not complete, sorted."""
        return sorted(folder.name.removesuffix(".partial") for folder in self.root.glob("*.partial"))

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

    def checkpoint(self, run: str) -> Checkpoint:
        """Where `nclib.training.train` keeps the state of an unfinished run."""
        return Checkpoint(run, self)

    def note_progress(self, run: str, done: float, total: float) -> None:
        """Say how far a run is, for whoever waits for it."""
        write_atomic(self.partial(run) / "progress.json", json.dumps({"epoch": done, "epochs": total}))

    def progress(self, run: str) -> float:
        """Finished share of a run, 0 to 1, complete or under way."""
        if self.has(run):
            return 1.0
        try:
            noted = json.loads((self.partial(run) / "progress.json").read_bytes())
            return float(noted["epoch"] / noted["epochs"])
        except (OSError, ValueError, ZeroDivisionError):
            return 0.0

    # --- writing ---

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
        checkpoint. `code` are the files of the user's own code that made it; they are kept and never read."""
        run = run_id(config)
        packed, pickled = io.BytesIO(), io.BytesIO()
        np.savez(packed, **arrays)
        torch.save(dict(weights), pickled)
        contents = {f"{name}.csv": csv_bytes(frame) for name, frame in tables.items()}
        contents |= {
            "config.json": json_bytes({"schema": SCHEMA_VERSION, "config": config.canonical()}),
            "provenance.json": json_bytes({**labels(config), **provenance}),
            "arrays.npz": packed.getvalue(),
            "weights.pt": pickled.getvalue(),
        }
        contents |= {f"code.{name}": content for name, content in (code or {}).items()}
        contents["DONE"] = json_bytes({name: sha256(content) for name, content in contents.items()})
        writing = self.root / f"{run}.writing"
        shutil.rmtree(writing, ignore_errors=True)
        try:
            for name, content in contents.items():
                write_atomic(writing / name, content)
            if not self.has(run):  # what an interrupted copy or removal left is not a run
                shutil.rmtree(self.root / run, ignore_errors=True)
            os.replace(writing, self.root / run)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        shutil.rmtree(self.partial(run), ignore_errors=True)
        return run

    def set_aside(self, path: Path, reason: str) -> None:
        """Move something damaged out of the way, under a name that is free, and warn."""
        folder = self.root / "set-aside"
        folder.mkdir(parents=True, exist_ok=True)
        stem = "-".join(path.relative_to(self.root).parts)
        target = next(name for n in itertools.count() if not (name := folder / f"{stem}.{n}").exists())
        with contextlib.suppress(FileNotFoundError):  # another process found the same damage first
            os.replace(path, target)
            warnings.warn(f"{reason}; moved to {target.name} in set-aside", DamageWarning, stacklevel=3)

    def remove(self, run: str) -> None:
        """Delete a run, or what there is of it; raises `ConfigError` while a process trains it."""
        if self.busy(run):
            raise ConfigError(f"run {run} is being trained; stop that first (Ctrl-C)")
        (self.root / run / "DONE").unlink(missing_ok=True)  # first: a run of which a part is gone is not a run
        for folder in (self.root / run, self.partial(run)):
            shutil.rmtree(folder, ignore_errors=True)

    # --- reading ---

    def open(self, run: str) -> StoredRun:
        """A run, to read from: its options are checked now, each other file when it is first asked for.

        Raises
        ------
        CorruptRun
            For a run that is absent, or whose options are damaged or written by another version of the store.
        """
        sums = self._sums(run)
        written = self._read(run, "config.json", sums)
        if (schema := written.get("schema")) != SCHEMA_VERSION:
            raise CorruptRun(f"run {run} was written with schema {schema!r}, this library reads {SCHEMA_VERSION}")
        if not run.endswith(f"-{digest(written.get('config'))}"):
            raise CorruptRun(f"run {run}: config.json is damaged: it is that of another run")
        names = tuple(name for name in sums if not name.startswith(("config.", "code.")))
        return StoredRun(run, written["config"], names, functools.cache(lambda name: self._read(run, name, sums)))

    def load(self, run: str) -> StoredRun:
        """A run whose every file was what was written; raises as `open`, for any damaged file."""
        self.verify(run)
        return self.open(run)

    def weights(self, run: str) -> dict[str, torch.Tensor]:
        """Final weights of a run; raises as `open`, for damaged weights too."""
        return self.open(run).weights

    def verify(self, run: str) -> dict[str, bytes]:
        """Contents of all files of a run, each compared with DONE; raises `CorruptRun`, naming the first damaged."""
        sums = self._sums(run)
        return {name: self._read(run, name, sums, lambda _, content: content) for name in sums}

    def is_sound(self, run: str) -> bool:
        """Whether the run is complete and every file what was written. A damaged one is set aside with a warning, and
        is then absent."""
        return self._look(run, self.load) is not None

    def find(self, run: str) -> StoredRun | None:
        """The run with its options and history checked. None where it is absent, or these are damaged: it is then set
        aside with a warning."""

        def checked(run: str) -> StoredRun:
            stored = self.open(run)
            _ = stored.history
            return stored

        return self._look(run, checked)

    def _look(self, run: str, read: Callable[[str], StoredRun]) -> StoredRun | None:
        if not self.has(run):
            return None
        try:
            found = read(run)
        except CorruptRun as damage:
            self.set_aside(self.root / run, str(damage))
            return None
        shutil.rmtree(self.partial(run), ignore_errors=True)  # left by a kill at the last moment
        return found

    def _sums(self, run: str) -> dict[str, str]:
        """The files of a run and their checksums, by its DONE."""
        if not self.has(run):
            raise CorruptRun(f"run {run} is not in the store")
        sums = self._read(run, "DONE", {})
        if not {"config.json", "history.csv", "provenance.json"} <= sums.keys():
            raise CorruptRun(f"run {run}: DONE is damaged: it does not list the files of a run")
        return sums

    def _read(self, run: str, name: str, sums: Mapping[str, str], parse: Callable[[str, bytes], Any] = parse) -> Any:
        """What is in a file of a run, which is compared with its checksum."""
        try:
            content = (self.root / run / name).read_bytes()
            if sums and sha256(content) != sums[name]:
                raise CorruptRun("it is not what was written (checksum)")
            return parse(name, content)
        except (CorruptRun, OSError) as damage:
            raise CorruptRun(f"run {run}: {name} is damaged: {getattr(damage, 'strerror', None) or damage}") from None


class Checkpoint:
    """The state of an unfinished run: one file, replaced whole. Its first line has the version, the run's id and the
    SHA-256 of the rest."""

    def __init__(self, run: str, store: RunStore) -> None:
        self.run, self.store, self.path = run, store, store.partial(run) / "checkpoint.pt"

    def save(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        write_atomic(self.path, self._header(content) + content)

    def _header(self, content: bytes) -> bytes:
        return f"nclib checkpoint {CHECKPOINT_VERSION} {self.run} {sha256(content)}\n".encode()

    def load(self) -> dict[str, Any] | None:
        """The state last saved. None where there is none, or none that can be trusted, which is set aside."""
        try:
            header, end, content = self.path.read_bytes().partition(b"\n")
            if header + end != self._header(content):
                raise CorruptRun("it is damaged, or of another run or version")
            return parse(self.path.name, content)
        except FileNotFoundError:
            return None
        except CorruptRun as damage:
            self.store.set_aside(self.path, f"checkpoint of {self.run}: {damage}; training starts again")
            return None


def labels(config: StoredConfig) -> dict[str, Any]:
    """What a record says of a run that is no part of its identity: the profile that asked for it first, and the name of
    its model where it has one."""
    model = getattr(getattr(config, "model", None), "name", None)
    return {"profile": config.profile} | ({"model": model} if model else {})


def default_store() -> RunStore:
    """The run store of this project (`paths.runs`)."""
    return RunStore(paths.runs())
