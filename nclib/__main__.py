"""``python -m nclib`` is the ``nclib`` command."""

from nclib.cli.app import main

main()
