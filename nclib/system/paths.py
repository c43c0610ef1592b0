"""Where things lie: absolute paths, each root with one override variable.

| root | variable | default |
|---|---|---|
| project | `NCLIB_ROOT` | nearest folder with a `pyproject.toml` of this project, upward from the working |
|         |              | directory, then upward from this file |
| data (downloads, decoded caches) | `NCLIB_DATA` | `<project>/data` |
| results (runs, figures, tables) | `NCLIB_RESULTS` | `<project>/results` |

What is tracked by git (`published`, `reference`, `notebooks`) always belongs to the project, so moving data
or results to another disk does not lose it. No function creates a folder. A variable set to the empty string
counts as unset; a relative one is taken from the working directory. `NCLIB_WITH`, which ``nclib reproduce -p …`` sets
for its notebooks, names a folder within that of each profile, for results of other parameters than the profile's own.
"""

import functools
import os
from pathlib import Path


def root() -> Path:
    """The project folder: the clone that holds notebooks, published numbers and reference results.

    Returns
    -------
    an absolute path.

    Raises
    ------
    FileNotFoundError
        Where nclib is installed without its project and the working directory lies
        outside one. It never falls back to the working directory: results would land wherever a command happened to
        be typed.
    """
    found = _override("NCLIB_ROOT") or _project_above(Path.cwd()) or _project_above(Path(__file__).resolve().parent)
    if found is None:
        raise FileNotFoundError(f"no nclib project at or above {Path.cwd()}: go to a clone, or set NCLIB_ROOT to one")
    return found


def data() -> Path:
    """Downloaded and decoded data sets: `NCLIB_DATA`, else `<project>/data`. Absolute; may not exist yet."""
    return _override("NCLIB_DATA") or root() / "data"


def results(profile: str | None = None) -> Path:
    """Everything computed here: `NCLIB_RESULTS`, else `<project>/results`; with a profile, its own folder, or
    ``with/<NCLIB_WITH>`` in it where that is set. Absolute; may not exist yet."""
    base = _override("NCLIB_RESULTS") or root() / "results"
    if profile is None:
        return base
    other = os.environ.get("NCLIB_WITH", "")
    return base / profile / "with" / other if other else base / profile


def runs() -> Path:
    """The run store, shared by all profiles (a run's identity is its configuration): `results()/runs`."""
    return results() / "runs"


def published() -> Path:
    """The numbers in the papers: `<project>/data/published`, tracked, read-only."""
    return root() / "data" / "published"


def reference() -> Path:
    """Small tables behind the published figures of this project: `<project>/results/reference`, tracked."""
    return root() / "results" / "reference"


def notebooks() -> Path:
    """The notebook sources: `<project>/notebooks`, tracked."""
    return root() / "notebooks"


def _override(variable: str) -> Path | None:
    return Path(value).expanduser().resolve() if (value := os.environ.get(variable)) else None


@functools.cache
def _project_above(start: Path) -> Path | None:
    files = (folder / "pyproject.toml" for folder in (start, *start.parents))
    # on the package index "nclib" is another project
    ours = (file for file in files if file.is_file() and 'name = "nclib-deq"' in file.read_text("utf-8", "replace"))
    return next((file.parent for file in ours), None)
