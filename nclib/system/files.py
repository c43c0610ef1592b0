"""Files written whole, and their digests."""

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_atomic(path: Path | str, content: bytes | str) -> Path:
    """Write a file completely or not at all: aside in the same folder, to the disk, then renamed into place.

    Parameters
    ----------
    path : missing parent folders are created; an existing file is replaced in one step.
    content : bytes, or text that is written as UTF-8.

    Returns
    -------
    the path.

    Raises
    ------
    OSError
        As it comes, a full disk for instance; the old file is then untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(aside, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:  # of an error or Ctrl-C: nothing half-written stays behind
        aside.unlink(missing_ok=True)
    return path


def sha256(content: bytes) -> str:
    """The SHA-256 of a file's content, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def csv_bytes(frame: Any) -> bytes:
    """A table as it is written to disk: no index, every float in full, the same bytes on every system."""
    return frame.to_csv(index=False, lineterminator="\n").encode()


def json_bytes(value: Any) -> bytes:
    """A value as text that people read: keys sorted, one a line."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
