"""``python -m nclib.cli`` is the ``nclib`` command."""

from nclib.cli.app import main

main()
