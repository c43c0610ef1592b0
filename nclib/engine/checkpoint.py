"""The state of an unfinished run, in one file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nclib.engine.reading import CorruptRun, parse
from nclib.system.files import sha256, write_atomic

VERSION = 2
"""Raised whenever the first line or what follows it changes."""


class Checkpoint:
    """One file, replaced whole; its first line has the version, the run's id and the SHA-256 of the rest.

    Parameters
    ----------
    run : id
    folder : where the file lies
    set_aside : called with a file that cannot be trusted, and the reason
    """

    def __init__(self, run: str, folder: Path, set_aside: Callable[[Path, str], Any]) -> None:
        self.run, self.path, self._set_aside = run, folder / "checkpoint.pt", set_aside

    def save(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        write_atomic(self.path, self._header(content) + content)

    def _header(self, content: bytes) -> bytes:
        return f"nclib checkpoint {VERSION} {self.run} {sha256(content)}\n".encode()

    def load(self) -> dict[str, Any] | None:
        """The state last saved. None where there is none, or none that can be trusted, which is set aside and told."""
        try:
            header, end, content = self.path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        try:
            if header + end != self._header(content):
                raise CorruptRun("it is damaged, or of another run or version")
            return parse(self.path.name, content)
        except CorruptRun as damage:
            self._set_aside(self.path, f"checkpoint in {self.path.parent.name}: {damage}; training starts again")
            return None
