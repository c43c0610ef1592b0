"""Objects named by an import path ``package.module:Name``: a cell of a user's own, or a function for ``nclib measure``.

The module is a file on the Python path. Its digest is taken without running it; `load` imports it.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from nclib.system.files import sha256

_imported: dict[str, str] = {}
"""Digest of each module that `load` has imported, as it was then."""


class OwnCodeError(ValueError):
    """A module that cannot be found or imported, or whose source has changed."""

    exit_code = 2


def is_import_path(text: str) -> bool:
    """Whether a text has the form ``package.module:Name``."""
    module, colon, name = text.partition(":")
    parts = [*module.split("."), name]
    return bool(colon) and all(part.isidentifier() for part in parts)


def source_file(import_path: str) -> Path:
    """The file of the module in ``package.module:Name``, which is not run.

    Raises
    ------
    OwnCodeError
        When there is no such module, or it is no file of source.
    """
    module = import_path.partition(":")[0]
    if module == "__main__":
        raise OwnCodeError("a cell defined in the script or notebook itself cannot be named: write it to a .py file")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a package above it is missing, or is no package
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        raise OwnCodeError(f"found no module {module!r} on the Python path; start Python in its folder or install it")
    return Path(spec.origin)


def source(import_path: str) -> dict[str, bytes]:
    """The file of the module in ``package.module:Name``, by the name that a run keeps it under."""
    return {f"{import_path.partition(':')[0]}.py": source_file(import_path).read_bytes()}


def source_digest(import_path: str) -> str:
    """First 16 hexadecimal digits of a SHA-256 over the module's name and the SHA-256 of its one file.

    What it imports or reads from other files does not count.

    Raises
    ------
    OwnCodeError
        When the module is not found.

    Examples
    --------
    >>> len(source_digest("nclib.models:ResidualCell"))
    16
    """
    module = import_path.partition(":")[0]
    content = sha256(source_file(import_path).read_bytes())
    return sha256(f"{module} {content}".encode())[:16]


def load(import_path: str, source: str | None = None) -> Any:
    """The object that ``package.module:Name`` stands for.

    A module that this session imported before its file changed is loaded again.

    Parameters
    ----------
    import_path : ``package.module:Name``
    source : the `source_digest` that the file must have; left out: any

    Raises
    ------
    OwnCodeError
        When the module is not found, raises an error, does not have the name, or has another digest.
    """
    module, _, name = import_path.partition(":")
    now = source_digest(import_path)
    if source is not None and now != source:
        raise OwnCodeError(
            f"the source of {import_path} changed since this run was configured: configure it anew, or put back "
            "the code.*.py that a finished run keeps in its folder"
        )
    try:
        changed = module in sys.modules and _imported.get(module) != now
        if changed and not module.startswith("nclib."):
            imported = importlib.reload(sys.modules[module])
        else:
            imported = importlib.import_module(module)
        _imported[module] = now
        return getattr(imported, name)
    except Exception as error:  # whatever the module does when it is imported
        raise OwnCodeError(f"{import_path} cannot be imported ({type(error).__name__}: {error})") from error


def search_here() -> None:
    """Find modules in the working directory too, after all other places, as ``python -m`` does."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
