"""Cells and networks of a user's own, named as ``package.module:Name``.

A module is looked up and its source digested without running it. It runs in `load` alone, which is called where a
network is built; reading a stored run that names code builds none.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
from ast import Import, ImportFrom, parse, walk
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from nclib.system import plugins

_loaded: dict[str, str] = {}
"""Digest of the source of each module as it was imported here last."""


class OwnCodeError(ValueError):
    """Named code that cannot be found, imported or used; the message says what to do."""

    exit_code = 2


def is_name(text: str) -> bool:
    """Whether a text has the form ``package.module:Name``."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), name))


def digest(name: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the source behind a name; nothing is imported.

    The source is the file of the module and those beside it, or in its package, that it imports; of an installed module
    those in its package. What it reads from other files, or imports by name as ``importlib.import_module`` does, does
    not count: write such numbers into the source, or import what has them.

    Parameters
    ----------
    name : ``package.module:Name``

    Raises
    ------
    OwnCodeError
        When the module is not found.

    Examples
    --------
    >>> len(digest("nclib.models:ResidualCell"))
    16
    """
    found = {file.rpartition(".")[0]: hashlib.sha256(content).hexdigest() for file, content in files(name).items()}
    return hashlib.sha256("\n".join(map(" ".join, found.items())).encode()).hexdigest()[:16]


def files(name: str) -> dict[str, bytes]:
    """The files that `digest` is of, by the names of their modules, that of the name first."""
    module, ours = name.partition(":")[0], ("nclib", *plugins.packages())
    path = _file(module)
    if path is None:
        raise OwnCodeError(f"found no module {module!r} on the Python path; start Python in its folder or install it")
    found = {module: path}
    if module.split(".")[0] not in ours:
        found |= _imported(module, path.parents[module.count(".") + (path.stem == "__init__")], ours)
    return {f"{name}{place.suffix}": place.read_bytes() for name, place in found.items()}


def _imported(module: str, top: Path, ours: Sequence[str]) -> dict[str, Path]:
    """A module and what it imports from its folder, or from its package where other people's packages lie beside it."""
    found, waiting, first = {}, [module], module.split(".")[0]
    alone = top.name in ("site-packages", "dist-packages")
    while waiting:
        name = waiting.pop()
        above, _, last = name.rpartition(".")
        folder, root = top.joinpath(*above.split(".")), name.split(".")[0]
        if not name or name in found or root in {*ours, *sys.stdlib_module_names} or (alone and root != first):
            continue
        waiting.append(above)
        if last == "*":  # of a package that may list any of its modules
            waiting += [f"{above}.{file.stem}" for file in folder.glob("*.py") if file.stem != "__init__"]
        spec = PathFinder.find_spec(name, [str(folder)])
        if spec is not None and spec.has_location:  # a folder without __init__.py has none
            found[name] = Path(spec.origin)
            waiting += _imports(found[name].read_bytes(), name if spec.submodule_search_locations else above)
    return dict(sorted(found.items()))


@functools.cache
def _imports(source: bytes, package: str) -> list[str]:
    """The names in the import statements of a file, which stand for modules or for what is in them."""
    names = []
    with contextlib.suppress(ImportError, SyntaxError, ValueError):  # which importing it will show
        for node in walk(parse(source)):
            if isinstance(node, ImportFrom):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                names += [base, *(f"{base}.{each.name}" for each in node.names)]
            elif isinstance(node, Import):
                names += [each.name for each in node.names]
    return names


def load(name: str, source: str | None) -> Any:
    """What a name stands for. Its module, with those that `digest` counts, is imported anew each time, so that nothing
    depends on what was done with it before; an installed one only where its source has changed.

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
        said = f"the source of {name} is not the one this run is to be made with; configure it anew"
        raise OwnCodeError(f"{said}, or put back the code.*.py that a finished run keeps in its folder")
    kept = {"site-packages", "dist-packages"} & {*_file(module).parts} and _loaded.get(module) == now
    if not kept and module.split(".")[0] not in ("nclib", *plugins.packages()):
        for file in (file for file in files(name) if file.endswith(".py")):  # what is compiled may be loaded once
            _forget(file.removesuffix(".py"))
    _loaded[module] = now
    try:
        return getattr(importlib.import_module(_now(module)), attribute)
    except Exception as error:  # whatever the module does when it is imported
        said = f"{type(error).__name__}: {error}; a module is imported anew for every network"
        raise OwnCodeError(f"{name} cannot be imported ({said})") from error


def _forget(module: str) -> None:
    """Have a module read again when it is imported: its cached bytes follow their source by size and whole seconds."""
    sys.modules.pop(_now(module), None)
    with contextlib.suppress(OSError, ValueError):
        Path(importlib.util.cache_from_source(_file(module))).unlink(missing_ok=True)
    importlib.invalidate_caches()


def _now(module: str) -> str:
    """Where a module is today that a stored run names by an earlier place; the run's identity keeps that."""
    moved = plugins.added("moved")
    return moved[module].value if module in moved else module


def search_here() -> None:
    """Find modules in the working directory too, after all other places, here and in processes that this one starts.
    PYTHONPATH would put it before the standard library."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())


def _file(module: str) -> Path | None:
    """Where the source of a module is."""
    try:
        spec = importlib.util.find_spec(_now(module))
    except (ImportError, ValueError):  # ValueError: of what is typed in a session
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
