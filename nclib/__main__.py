"""``python -m nclib`` is the ``nclib`` command; torchrun starts it that way on each rank."""

from nclib.cli.commands import main

main()
