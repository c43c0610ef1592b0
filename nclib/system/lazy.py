"""Packages whose names are imported when they are first used. The stub beside each, ``__init__.pyi``, is the one list
of its names: type checkers and editors read it, and so does `attach`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def homes(package: str) -> dict[str, str]:
    """The names in the stub of a package of nclib, each with the module it is imported from."""
    tree = ast.parse(_folder(package).joinpath("__init__.pyi").read_text(encoding="utf-8"))
    found = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module or "" for node in found for alias in node.names}


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package with a stub.

    Its modules and sub-packages are attributes too, but not in ``__all__``.
    """
    known = homes(package)

    def __getattr__(name: str) -> Any:
        inside = _folder(package) / name
        if name.startswith("_") or not (name in known or inside.is_dir() or inside.with_suffix(".py").is_file()):
            raise AttributeError(_there_is_no(name, package), name=name, obj=None)  # Python would suggest on top
        try:
            if known.get(name, package) == package:
                return import_module(f"{package}.{name}")
            return getattr(import_module(known[name]), name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(needs(f"{package}.{name}", error), name=error.name) from error

    return __getattr__, lambda: sorted(known), sorted(name for name, home in known.items() if home != package)


def needs(what: str, error: ModuleNotFoundError) -> str:
    """One sentence on a package that is not installed, and how to install it."""
    return f"{what} needs {error.name}, which is not installed; {install('companion')}"


def install(extra: str) -> str:
    """How to install an extra of pyproject.toml: from a clone, as ``nclib`` on the package index is another project."""
    return f'in the clone, type: pip install ".[{extra}]"'


def _folder(package: str) -> Path:
    return _ROOT.joinpath(*package.split("."))


def _there_is_no(name: str, package: str) -> str:
    said = f"{package} has no {name!r}"
    if name.startswith("_"):
        return said
    if places := _places(name):
        return f"{said}; it is in a wing: {', or '.join(places)}"
    from difflib import get_close_matches  # only for a wrong name

    near = get_close_matches(name, homes(package), n=1)
    return f"{said}; did you mean {near[0]!r}?" if near else said


def _places(name: str) -> list[str]:
    """How to import a name that modules of the library define, or the modules of that name."""
    defined = re.compile(rf"^(?:def|class) {name}\b|^{name}\b[^=\n]*= ", flags=re.MULTILINE)
    files = [*_ROOT.glob("nclib/**/*.py"), *_ROOT.glob("companion/**/*.py")]
    files.sort(key=lambda file: (len(file.parts), file))
    homes = [file for file in files if defined.search(file.read_text(encoding="utf-8"))]
    modules = [file for file in files if file.stem == name]
    found = [_import(name, file) for file in homes] or [_import(name, file.parent / "x") for file in modules]
    return list(dict.fromkeys(found))


def _import(name: str, file: Path) -> str:
    """The import of a name from its file, or from the package around it where that offers it."""
    listed = re.compile(rf"^(?:from .* import .*|    ){name}(?:,| as |$)", flags=re.MULTILINE)
    packages = file.parent.glob("__init__.py*") if file.parent != _ROOT else ()
    offered = any(listed.search(package.read_text(encoding="utf-8")) for package in packages)
    place = file.parent if offered or file.stem == "x" else file.with_suffix("")
    return f"from {'.'.join(place.relative_to(_ROOT).parts)} import {name}"
