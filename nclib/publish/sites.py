"""The web site of what was reproduced: made by the package that adds it, see `nclib.system.plugins`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nclib.system import plugins


class ReportError(RuntimeError):
    """The site cannot be made; the message says what to do."""

    exit_code = 1


class SphinxMissing(ReportError):
    """What makes the pages is not installed."""


def build(profile: str, force: bool = False, **options: Any) -> Path:
    """Make the site of a profile; its front page.

    Raises
    ------
    ReportError
        Where it cannot be made.
    """
    return plugins.added("sites")["site"].load()(profile, force, **options)
