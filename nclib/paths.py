"""Where things lie, and files that are written whole or not at all.

| folder | variable | default |
|---|---|---|
| project | `NCLIB_ROOT` | nearest folder with this project's `pyproject.toml`, upward from the |
|         |              | working directory, then upward from this file |
| data (downloads, decoded caches) | `NCLIB_DATA` | `<project>/data` |
| results (runs, figures, tables) | `NCLIB_RESULTS` | `<project>/results` |

What git tracks (`published`, `reference`, `notebooks`) always belongs to the project, so moving
data or results to another disk does not lose it. No function creates a folder. A variable set to
the empty string counts as unset; a relative one is taken from the working directory. `NCLIB_WITH`,
which ``nclib reproduce -p …`` sets for its notebooks, names a folder within that of each preset,
for results of other parameters than the preset's own.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# --- folders --------------------------------------------------------------------------------------


def root() -> Path:
    """The project folder: the clone that holds notebooks, published numbers and reference results.

    Returns
    -------
    an absolute path.

    Raises
    ------
    FileNotFoundError
        Where nclib is installed without its project and the working directory lies outside one. It
        never falls back to the working directory: results would land wherever a command happened to
        be typed.
    """
    folder = (
        _override("NCLIB_ROOT")
        or _project_above(Path.cwd())
        or _project_above(Path(__file__).resolve().parent)
    )
    if folder is None:
        raise FileNotFoundError(
            f"no nclib project at or above {Path.cwd()}: go to a clone, or say where things are. "
            "NCLIB_RESULTS=FOLDER is enough for runs, NCLIB_DATA=FOLDER is for downloads, "
            "NCLIB_ROOT=CLONE for all else"
        )
    return folder


def data() -> Path:
    """Downloaded and decoded data sets: `NCLIB_DATA`, else `<project>/data`. Absolute; may not
    exist yet."""
    return _override("NCLIB_DATA") or root() / "data"


def results(profile: str | None = None) -> Path:
    """Everything computed here: `NCLIB_RESULTS`, else `<project>/results`; with a preset, its own
    folder, or ``with/<NCLIB_WITH>`` in it where that is set. Absolute; may not exist yet."""
    base = _override("NCLIB_RESULTS") or root() / "results"
    if profile is None:
        return base
    other_parameters = os.environ.get("NCLIB_WITH", "")
    if other_parameters:
        return base / profile / "with" / other_parameters
    return base / profile


def runs() -> Path:
    """The run store, shared by all presets (a run's identity is its configuration):
    `results()/runs`."""
    return results() / "runs"


def published() -> Path:
    """The numbers in the papers: `<project>/data/published`, tracked, read-only."""
    return root() / "data" / "published"


def reference() -> Path:
    """Small tables behind the published figures of this project: `<project>/results/reference`,
    tracked."""
    return root() / "results" / "reference"


def notebooks() -> Path:
    """The notebook sources: `<project>/notebooks`, tracked."""
    return root() / "notebooks"


def _override(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser().resolve() if value else None


@functools.cache
def _project_above(start: Path) -> Path | None:
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        # On the package index "nclib" is another project.
        if file.is_file() and 'name = "nclib-deq"' in file.read_text("utf-8", "replace"):
            return folder
    return None


# --- results of other parameters than a preset's own ----------------------------------------------

SET_BY_THE_COMMAND = ("profile", "train")
"""Parameters that ``nclib reproduce`` sets itself in the notebooks that declare them."""


@contextlib.contextmanager
def environment_restored(names: Iterable[str]) -> Iterator[None]:
    """These environment variables may be changed within; afterwards they are what they were, set or
    not."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def results_with(name: str) -> Iterator[None]:
    """Within the block, and in processes started there, the results of a preset are those of other
    parameters: ``results/<preset>/with/<name>/``; of the preset's own where the name is "". Names
    are made by `folder_name`."""
    with environment_restored(["NCLIB_WITH"]):
        os.environ["NCLIB_WITH"] = name
        yield


def folder_name(values: Mapping[str, Any]) -> str:
    """Parameters as the name of a folder, "epochs=3,seeds=5"; "" for none. Where letters must be
    replaced, or the name would be too long, a digest makes it unique."""
    text = ",".join(f"{name}={value}" for name, value in sorted(values.items()))
    name = re.sub(r"[^a-z0-9_.=@,+-]", "-", text)
    if name == text and len(name) <= 120:
        return name
    return f"{name[:110]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# --- files ----------------------------------------------------------------------------------------


def write_atomic(path: Path | str, content: bytes | str) -> Path:
    """Write a file completely or not at all: aside in the same folder, to the disk, then renamed
    into place.

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
    """A table as it is written to disk: no index, every float in full, the same bytes on every
    system."""
    return frame.to_csv(index=False, lineterminator="\n").encode()


def json_bytes(value: Any) -> bytes:
    """A value as text that people read: keys sorted, one a line."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
