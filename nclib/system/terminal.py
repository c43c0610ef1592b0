"""What a command reports: progress, durations, one line of a long message."""

import contextlib
import sys
from collections.abc import Callable, Iterator


def duration(seconds: float) -> str:
    """Seconds as a person would write them: "12 s", "3.5 min", "2.0 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def short(message: str, where: str = "") -> str:
    """The first line of a message, of 300 characters at most."""
    first = next((line.strip() for line in message.splitlines() if line.strip()), "no message")
    return (first if len(first) <= 300 else f"{first[:300]}…") + (f" ({where})" if where else "")


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float, float, str], None]]:
    """A function to call as ``(done, total, text)``, which moves a bar where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    options = {"transient": True, "redirect_stdout": sys.stdout.isatty(), "disable": not sys.stderr.isatty()}
    with Progress(console=Console(stderr=True), **options) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=f"{title}: {text}")
