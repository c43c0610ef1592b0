"""Cells and networks of a user's own, named as ``package.module:Name``.

A module is looked up and its source digested without running it. It runs in `imported` alone, which is called where a
network is built; reading a stored run that names code builds none.
"""

import builtins
import contextlib
import functools
import importlib.util
import os
import re
import sys
import threading
from ast import Import, ImportFrom, parse, walk
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from nclib.system import STARTED
from nclib.system.files import sha256

_once: dict[Path, str] = {}
"""Digests of the files that are imported once, as they were then; of one that the session may have imported before it
changed, "".
"""


class OwnCodeError(ValueError):
    """Named code that cannot be found, imported or used; the message names what to do."""

    exit_code = 2


def is_name(text: str) -> bool:
    """Whether a text has the form ``package.module:Name``."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), name))


def digest(name: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the source behind a name; nothing is imported.

    The source is the file of the module and those beside it, or in its package, that it imports; of an installed module
    those in its package. What it reads from other files, the environment or the command line, or imports by name as
    ``importlib.import_module`` does, does not count: write such numbers into the source, or import what has them.

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
    found = {module: sha256(place.read_bytes()) for module, place in _places(name).items()}
    return sha256("\n".join(map(" ".join, found.items())).encode())[:16]


def files(name: str) -> dict[str, bytes]:
    """The files that `digest` is of, by the names of their modules, that of the name first."""
    return {f"{module}{place.suffix}": place.read_bytes() for module, place in _places(name).items()}


def _places(name: str) -> dict[str, Path]:
    module = name.partition(":")[0]
    if (path := _file(module)) is None:
        raise OwnCodeError(f"found no module {module!r} on the Python path; start Python in its folder or install it")
    return {module: path} | _imported(module, path.parents[module.count(".") + (path.stem == "__init__")])


def _imported(module: str, top: Path) -> dict[str, Path]:
    """A module and what it imports from its folder, or from its package where other people's packages lie beside it;
    nothing of ours."""
    found, waiting, first = {}, [module], module.split(".")[0]
    alone = top.name in ("site-packages", "dist-packages")

    def file(name: str) -> Path | None:
        root, *parts = name.split(".")
        return _file(name) if root == first else _below(PathFinder.find_spec(root, [str(top)]), parts)

    while waiting:
        name = waiting.pop()
        root, (above, _, last) = name.split(".")[0], name.rpartition(".")
        if root == "__main__":
            raise OwnCodeError(f"{module} imports the script that runs: put what it needs into a module beside it")
        if not name or name in found or root in _ours() or _is_python(root, top) or (alone and root != first):
            continue
        waiting.append(above)
        place = file(above if last == "*" else name)
        if place and last != "*":
            found[name] = place
            waiting += _imports(place.read_bytes(), name if place.stem == "__init__" else above)
        elif place and place.stem == "__init__":  # of a package that may list any of its modules
            waiting += [f"{above}.{p.stem}" for p in place.parent.iterdir() if p.suffix in ("", ".py") and p != place]
    return dict(sorted(found.items()))


@functools.cache
def _imports(source: bytes, package: str) -> list[str]:
    """The names in the import statements of a file, which stand for modules or for what is in them."""
    names = []
    with contextlib.suppress(SyntaxError, ValueError):  # which importing it will show
        for node in walk(parse(source)):
            if isinstance(node, Import):
                names += [each.name for each in node.names]
            elif isinstance(node, ImportFrom):
                with contextlib.suppress(ImportError):  # of a relative one where there is no package
                    base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                    names += [base, *(f"{base}.{each.name}" for each in node.names)]
    return names


@contextlib.contextmanager
def imported(name: str, source: str | None) -> Iterator[Any]:
    """What a name stands for. Modules that are not installed are imported anew for it, so that nothing depends on what
    was done with them before; afterwards the session has those that it had, and no others.

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
    if getattr(getattr(sys.modules.get(module), "__spec__", None), "_initializing", False):
        raise OwnCodeError(f"{name} is used while it is imported: put that under if __name__ == '__main__'")
    if source is not None and now != source:
        said = f"the source of {name} is not the one this run is to be made with; configure it anew"
        raise OwnCodeError(f"{said}, or put back the code.*.py that a finished run keeps in its folder")
    places = _places(name)
    for each, place in places.items():
        if _stays(place):
            read, late = sha256(place.read_bytes()), each in sys.modules and place.stat().st_ctime > STARTED
            if _once.setdefault(place, "" if late else read) != read:
                raise OwnCodeError(f"{place}, which is imported once, has changed: start Python anew")
            continue
        if lasts := re.search(rb"torch\.library|register_(module|optimizer)_\w+_hook\b", place.read_bytes()):
            raise OwnCodeError(f"{place} has {lasts[0].decode()}, which lasts for all runs: have that part installed")
        # cached bytes follow their source by size and whole seconds
        with contextlib.suppress(OSError):
            Path(importlib.util.cache_from_source(place)).unlink(missing_ok=True)
    importlib.invalidate_caches()
    held, torch = _take_out(), _torch()
    try:
        try:
            found = getattr(importlib.import_module(_now(module)), attribute)
        except (Exception, SystemExit) as error:  # whatever the module does when it is imported
            said = f"{type(error).__name__}: {error}; a module is imported anew for every network"
            raise OwnCodeError(f"{name} cannot be imported ({said})") from error
        for each, place in places.items():
            other = getattr(sys.modules.get(each), "__file__", None)
            if other and os.path.realpath(other) != os.path.realpath(place):
                raise OwnCodeError(f"{name} imports {other}, and not {place} beside it: rename one")
        yield found
    finally:
        replaced = [key for key, now in _torch().items() if now is not torch.get(key, now) and is_made_by_user(now)]
        for owner, part in replaced:
            setattr(owner, part, torch[owner, part])
        _take_out()
        sys.modules.update(held)
        if replaced:
            raise OwnCodeError(f"{name} replaces {part} of {owner.__name__}, which would act in all runs: subclass it")


@contextlib.contextmanager
def no_imports() -> Iterator[None]:
    """Refuse to import modules that are not installed: while a network computes, the session's would be found, which
    may be older than its own."""
    usual, thread = builtins.__import__, threading.get_ident()

    def refuse(name: str, *given: Any, **named: Any) -> ModuleType:
        found = usual(name, *given, **named)
        if threading.get_ident() == thread and is_own(found):
            raise OwnCodeError(f"{name} is imported while the network computes: import it at the top, or in __init__")
        return found

    with contextlib.ExitStack() as after:
        after.callback(setattr, builtins, "__import__", usual)
        builtins.__import__ = refuse
        yield


def _torch() -> dict[tuple[Any, str], Any]:
    """What stands in the namespaces of torch that people use, and in their classes."""
    modules = [sys.modules.get(f"torch{name}", sys) for name in ("", ".nn", ".nn.functional", ".nn.init", ".optim")]
    owners = {*modules, *(each for module in modules for each in vars(module).values() if isinstance(each, type))}
    return {(owner, name): value for owner in owners for name, value in vars(owner).items()}


def _take_out() -> dict[str, ModuleType]:
    """Take the modules out of `sys.modules` that are of the user."""
    own = [name for name, module in [*sys.modules.items()] if is_own(module)]
    return {name: sys.modules.pop(name) for name in own}


def _ours() -> set[str]:
    return {"nclib"}


def is_own(module: Any) -> bool:
    """Whether a module that is imported is of the user."""
    spec = getattr(module, "__spec__", None)
    places = [] if not spec else [spec.origin] if spec.has_location else [*(spec.submodule_search_locations or ())]
    return bool(places) and is_users(spec.name, places[0])


def is_users(module: str, place: str) -> bool:
    """Whether a module at this place is of the user: neither installed nor of Python or this project."""
    return not _stays(place) and module.partition(".")[0] not in {"__main__", "__mp_main__", *_ours()}


def is_made_by_user(thing: Any) -> bool:
    """Whether a function, a class, a module or the class of an object is of the user."""
    if isinstance(thing, FunctionType):
        return is_users(thing.__module__ or "", thing.__code__.co_filename)
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    module = sys.modules.get(name or "", thing)
    return bool(name) and (is_own(module) or not isinstance(module, ModuleType))  # modules are taken out once imported


@functools.cache  # thousands of modules are asked for with every run
def _stays(place: str | Path) -> bool:
    """Whether a module is imported once: it is Python's, installed or compiled."""
    file = Path(place)
    installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
    return installed or file.suffix not in ("", ".py") or file.is_relative_to(Path(os.__file__).parent)


def _is_python(module: str, top: Path) -> bool:
    """Whether an import of this name finds the standard library, and no file of that name in a folder before it."""
    return module in sys.stdlib_module_names and top not in getattr(_file(module), "parents", ())


def _now(module: str) -> str:
    """Where a module is today that a stored run names by an earlier place; the run's identity keeps that."""
    return module


def search_here() -> None:
    """Find modules in the working directory too, after all other places, here and in processes that this one starts.
    PYTHONPATH would put it before the standard library."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())


def _file(module: str) -> Path | None:
    """Where the source of a module is; its packages are not imported to know it."""
    root, *parts = _now(module).split(".")
    found = (finder.find_spec(root, None) for finder in sys.meta_path)  # which asks for nothing that was imported
    python = sys.modules.get(root) if root in sys.stdlib_module_names else None
    return _below(getattr(python, "__spec__", None) or next(filter(None, found), None), parts)


def _below(spec: ModuleSpec | None, parts: Iterable[str]) -> Path | None:
    """The file of a module, or of one below a package; a folder without __init__.py has none."""
    for part in parts:  # of a whole name the packages would have to be imported
        spec = spec and PathFinder.find_spec(part, [*(spec.submodule_search_locations or ())])
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
