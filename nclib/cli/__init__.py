"""The command line, ``nclib``."""

import contextlib
import os
import sys
from importlib.util import find_spec

from nclib.system.lazy import install

NEEDED = (
    *("PIL", "filelock", "matplotlib", "pandas", "pydantic", "rich"),
    *("scipy", "seaborn", "sklearn", "typer", "yaml"),
)
"""The packages of the extra companion, as they are imported."""


def _distrust_the_folder() -> None:
    """No module is taken from the folder where the command is typed instead of from Python, in this process
    (``python -m nclib.cli`` looks there first) or in those that it starts with ``python -c`` and ``python -m``."""
    os.environ["PYTHONSAFEPATH"] = "1"
    with contextlib.suppress(OSError):  # the folder is gone
        if sys.path[0] in ("", os.getcwd()):
            sys.path.append(sys.path.pop(0))


def main() -> None:
    """Run the command; where a package of its extra is missing, say what installs it, with exit code 1."""
    _distrust_the_folder()
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(f"nclib needs {', '.join(missing)}, not installed here; {install('companion')}", file=sys.stderr)
        raise SystemExit(1)
    from nclib.cli.app import main as run

    run()
