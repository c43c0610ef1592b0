"""Folders of processes that were killed: each holds a lock in its own while it lives."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import filelock

HELD = "held"
"""The lock in such a folder."""


def clear_unheld(folders: Iterable[Path]) -> None:
    """Remove those that nobody holds, and that were not made just now, when their process may not have come to it."""
    for left in folders:
        with contextlib.suppress(filelock.Timeout, OSError):
            made = left.stat().st_mtime
            with filelock.FileLock(left / HELD, timeout=0):
                if abs(time.time() - made) > 60:
                    shutil.rmtree(left)
