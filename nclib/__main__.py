"""``python -m nclib`` is the ``nclib`` command."""

from nclib.cli.commands import main

main()
