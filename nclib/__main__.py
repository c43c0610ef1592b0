"""``python -m nclib`` is the ``nclib`` command."""

from nclib.cli import main

main()
