"""Warnings that name the user's line."""

import sys
import warnings


def warn(message: str | Warning, kind: type[Warning] = UserWarning, each: bool = False) -> None:
    """``warnings.warn`` at the first line outside this library and torch: ``each`` time, or, as Python does, an equal
    text of one line once."""
    frame = sys._getframe(1)
    names = lambda: str(frame.f_globals.get("__name__"))  # noqa: E731
    while frame.f_back and names().partition(".")[0] in ("nclib", "torch", "contextlib"):
        frame = frame.f_back
    registry = {} if each else frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, kind, frame.f_code.co_filename, frame.f_lineno, names(), registry)
