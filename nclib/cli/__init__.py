"""The command line, ``nclib``."""

from nclib.cli.app import main

__all__ = ["main"]
