"""The command line, ``nclib``."""

from nclib.cli.commands import main

__all__ = ["main"]
