"""The command line, ``nclib``."""

import sys
from importlib.util import find_spec

from nclib.system.lazy import install

NEEDED = (
    *("PIL", "filelock", "matplotlib", "pandas", "pydantic", "rich"),
    *("scipy", "seaborn", "sklearn", "typer", "yaml"),
)
"""The packages of the extra companion, as they are imported."""


def main() -> None:
    """Run the command; where a package of its extra is missing, say what installs it, with exit code 1."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(f"nclib needs {', '.join(missing)}, not installed here; {install('companion')}", file=sys.stderr)
        raise SystemExit(1)
    from nclib.cli.app import main as run

    run()
