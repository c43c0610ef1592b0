"""The command line, ``nclib``."""

import contextlib
import os
import sys

from nclib.system.lazy import install


def _distrust_the_folder() -> None:
    """No module is taken from the folder where the command is typed instead of from Python, in this process
    (``python -m nclib.cli`` looks there first) or in those that it starts with ``python -c`` and ``python -m``."""
    os.environ["PYTHONSAFEPATH"] = "1"
    with contextlib.suppress(OSError):  # the folder is gone
        if sys.path[0] in ("", os.getcwd()):
            sys.path.append(sys.path.pop(0))


def main() -> None:
    """Run the command; where a package of its extra is missing, name the command that installs it, with exit code 1."""
    _distrust_the_folder()
    try:
        from nclib.cli.app import main as run

        run()
    except ModuleNotFoundError as error:
        if (error.name or "nclib").split(".")[0] == "nclib":
            raise
        print(f"error: nclib needs {error.name}, which is not installed; {install('companion,docs')}", file=sys.stderr)
        raise SystemExit(1) from None
