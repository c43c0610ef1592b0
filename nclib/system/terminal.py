"""What a command says: progress, durations, one line of a long message."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator


def duration(seconds: float) -> str:
    """Seconds as a person says them: "12 s", "3.5 min", "2.0 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def short(message: str, where: str = "") -> str:
    """The first line of a message, of 300 characters at most."""
    first = next((line.strip() for line in message.splitlines() if line.strip()), "no message")
    return (first if len(first) <= 300 else f"{first[:300]}…") + (f" ({where})" if where else "")


@contextlib.contextmanager
def progress_bar(title: str, echo: Callable[[str], None] = print) -> Iterator[Callable[[float, float, str], None]]:
    """A function to call as ``(done, total, text)``: a bar when stderr is a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _lines(title, echo)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=f"{title}: {text}")


def _lines(title: str, echo: Callable[[str], None], every: float = 30.0) -> Callable[[float, float, str], None]:
    said = time.monotonic()

    def tell(done: float, total: float, text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= every:
            said = time.monotonic()
            echo(f"{title}: {100 * done / max(total, 1):.0f} % ({text})")

    return tell
