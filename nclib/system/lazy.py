"""Packages whose names are imported when they are first used: those that the stub beside each, ``__init__.pyi``, lists.
And one sentence for what is not installed."""

from typing import Any

import lazy_loader


def attach(package: str, file: str) -> tuple[Any, Any, list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package with a stub."""
    get, *listed = lazy_loader.attach_stub(package, file)

    def named(name: str) -> Any:
        try:
            return get(name)
        except ModuleNotFoundError as error:
            said = f"{package}.{name} needs {error.name}, which is not installed; {install('companion')}"
            raise ModuleNotFoundError(said, name=error.name) from error

    return named, *listed


def install(extra: str) -> str:
    """How to install an extra of pyproject.toml: from a clone, as ``nclib`` on the package index is another project."""
    return f'in the clone, type: pip install ".[{extra}]"'
