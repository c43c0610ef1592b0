"""Cells and networks of a user's own, named as ``package.module:Name``.

A name is looked up and its source digested without running anything. Code runs in `load` alone, which is called where a
network is built; reading a stored run that names code builds none.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from nclib.system import plugins

_loaded: dict[str, str] = {}
"""Digest of the source of each module as it was imported here."""
_FOLDER = "NCLIB_CODE"
"""The variable that tells the processes which a command starts where it was typed, see `search_here`."""


class OwnCodeError(ValueError):
    """Named code that cannot be found, imported or used; the message says what to do."""

    exit_code = 2


def is_name(text: str) -> bool:
    """Whether a text has the form ``package.module:Name``."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), name))


def digest(name: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the source behind a name; nothing is imported.

    The source is the file of the module, and those that it imports, directly or not, from its own package or, for a
    module outside packages, from its own folder. Installed libraries and nclib itself do not count.

    Parameters
    ----------
    name : ``package.module:Name``

    Raises
    ------
    OwnCodeError
        When there is no such module, or its source cannot be read.

    Examples
    --------
    >>> len(digest("nclib.models:ResidualCell"))
    16
    """
    module = name.partition(":")[0]
    sources = _sources(module)
    if module not in sources:
        raise OwnCodeError(
            f"there is no module {module!r} on the Python path; start Python in its folder, add that to PYTHONPATH, or "
            "install its package"
        )
    parts = [f"{each} {_read(path)[0]}" for each, path in sorted(sources.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def files(name: str) -> dict[str, bytes]:
    """The files that `digest` is of, by the names of their modules."""
    return {f"{module}{path.suffix}": path.read_bytes() for module, path in _sources(name.partition(":")[0]).items()}


def load(name: str, source: str | None) -> Any:
    """What a name stands for, imported; its module is imported anew where that was done before its source changed.

    Parameters
    ----------
    name : ``package.module:Name``
    source : the `digest` it must have; None for any

    Raises
    ------
    OwnCodeError
        When it cannot be imported, or its source has another digest.
    """
    module, _, attribute = name.partition(":")
    now = digest(name)
    if source is not None and now != source:
        raise OwnCodeError(
            f"the source of {name} is not the one this run is to be made with (digest {now}, wanted {source}): make "
            "the configuration anew, or bring the source back"
        )
    if _loaded.get(module) != now:
        for each, path in _sources(module).items():
            if _may_change(each, path):
                sys.modules.pop(_now(each), None)
                with contextlib.suppress(OSError, ValueError):  # it is told from its source by size and whole seconds
                    Path(cache_from_source(path)).unlink(missing_ok=True)
        importlib.invalidate_caches()
    try:
        found = getattr(importlib.import_module(_now(module)), attribute, None)
    except Exception as error:  # whatever the module does when it is imported
        raise OwnCodeError(f"{module} cannot be imported ({type(error).__name__}: {error})") from error
    if not callable(found):
        raise OwnCodeError(f"{module} has no class or function {attribute!r}")
    _loaded[module] = now
    return found


def _now(module: str) -> str:
    """Where a module is today that a stored run names by an earlier place; the run's identity keeps that."""
    moved = plugins.added("moved")
    return moved[module].value if module in moved else module


def imported(name: str) -> Any:
    """What a name stands for where its module has been imported before, else None; nothing is imported."""
    module, _, attribute = name.partition(":")
    return getattr(sys.modules.get(_now(module)), attribute, None)


def search_here() -> None:
    """Find modules in the working directory too, after all other places, here and in processes that this one starts:
    for commands that name one. PYTHONPATH would put it before the standard library."""
    os.environ[_FOLDER] = os.getcwd()
    _search()


def _search() -> None:
    folder = os.environ.get(_FOLDER, "")
    if folder and not {"", folder} & set(sys.path):
        sys.path.append(folder)


_search()


def _may_change(module: str, path: Path) -> bool:
    """Whether a module is the user's, and not part of nclib or of an installed library."""
    return module.split(".")[0] not in ("nclib", "companion") and not _is_installed(path)


def _is_installed(path: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & set(path.parts))


def _read(path: Path) -> tuple[str, tuple[str, ...]]:
    try:
        about = path.stat()
        return _parsed(path, about.st_mtime_ns, about.st_size)
    except OSError as error:
        raise OwnCodeError(f"{path.name} cannot be read ({error.strerror})") from None


@functools.lru_cache(maxsize=4096)
def _parsed(path: Path, changed: int, size: int) -> tuple[str, tuple[str, ...]]:
    """SHA-256 of a file, and the modules that it imports as it writes them, relative ones with their dots."""
    content = path.read_bytes()
    try:
        tree = ast.parse(content) if path.suffix == ".py" else ast.Module([], [])
    except (SyntaxError, ValueError, RecursionError) as error:
        raise OwnCodeError(f"{path.name} is not Python that can be read ({error})") from None
    named: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            joint = "" if start.endswith(".") else "."
            named += [start, *(f"{start}{joint}{alias.name}" for alias in node.names)]
    return hashlib.sha256(content).hexdigest(), tuple(named)


def _sources(module: str) -> dict[str, Path]:
    """The files whose text decides what a module does, by the names of their modules."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        spec = _find(name)
        if name in found or spec is None or not spec.has_location or not spec.origin:
            continue
        found[name] = Path(spec.origin)
        package = name if spec.submodule_search_locations else name.rpartition(".")[0]
        waiting += [each for each in _absolute(_read(found[name])[1], package) if _belongs(each, module)]
    return found


def _absolute(named: tuple[str, ...], package: str) -> Iterator[str]:
    for name in named:
        dots = len(name) - len(name.lstrip("."))
        parents = package.split(".")
        if not dots:
            yield name
        elif dots <= len(parents):
            yield ".".join([*parents[: len(parents) - dots + 1], *filter(None, [name[dots:]])])


def _belongs(name: str, module: str) -> bool:
    """Whether an imported module is part of the source of `module`."""
    top, own = name.split(".")[0], module.split(".")[0]
    if top in ("nclib", "companion") or top in sys.stdlib_module_names:
        return False
    if top == own:
        return True
    mine, theirs = _find(own), _find(top)
    places = [_folder(spec) for spec in (mine, theirs)]
    return None not in places and places[0] == places[1] and not _is_installed(places[0])


def _folder(spec: ModuleSpec | None) -> Path | None:
    """The folder of the Python path in which a top-level module or package lies."""
    if spec is None or not spec.has_location or not spec.origin:
        return None
    path = Path(spec.origin).resolve()
    return path.parent.parent if spec.submodule_search_locations else path.parent


def _find(module: str) -> ModuleSpec | None:
    """Where a module is. `importlib.util.find_spec` would import its packages."""
    path, spec, name = None, None, ""
    for part in _now(module).split("."):
        name = f"{name}.{part}" if name else part
        if name != part and path is None:
            return None  # what should be a package is a module
        try:
            spec = next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
        except (ImportError, KeyError, OSError, ValueError):  # KeyError: a folder without __init__.py within another
            return None
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec
