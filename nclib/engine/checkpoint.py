"""The state of an unfinished run, in one file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nclib.engine.reading import CorruptRun, read_file, read_tensors
from nclib.system.files import sha256, write_atomic

_MARK = "nclib checkpoint"
VERSION = 2
"""2: the run's id in the first line. Raised whenever that line or what follows it changes."""


class Checkpoint:
    """One file, replaced whole; its first line says whose it is, in which version, and its SHA-256."""

    def __init__(self, run: str, folder: Path, set_aside: Callable[[Path, str], Any]) -> None:
        self.run, self.path, self._set_aside = run, folder / "checkpoint.pt", set_aside

    def save(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        header = f"{_MARK} {VERSION} {self.run} {sha256(content)}\n"
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
        words = header.decode(errors="replace").removeprefix(f"{_MARK} ").split(" ")
        if not header.startswith(f"{_MARK} ".encode()) or len(words) < 2:
            raise CorruptRun("it is not a checkpoint of this library")
        if words[0] != str(VERSION):
            raise CorruptRun(f"it was written in version {words[0][:20]}, this library reads {VERSION}")
        if words[1] != self.run:
            raise CorruptRun(f"it is that of run {words[1]}")
        if words[2:] != [sha256(content)]:
            raise CorruptRun("its checksum does not fit")
        state = read_tensors(content)
        if not isinstance(state, dict):
            raise CorruptRun(f"it holds a {type(state).__name__}, not the state of a training")
        return state
