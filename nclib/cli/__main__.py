"""``python -m nclib.cli`` is the ``nclib`` command."""

from nclib.cli import main

main()
