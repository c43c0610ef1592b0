"""A progress line in a notebook."""

import math
import time
from collections.abc import Callable


class _Bar:
    """A progress line, as HTML in a notebook and as text elsewhere."""

    def __init__(self, done: float, total: float, text: str, seconds: float) -> None:
        share = done / total if total else 1.0
        left = f", about {seconds / share - seconds:.0f} s left" if 0.02 < share < 1 else ""
        self.share, self.line = share, f"{done:.0f} of {total:.0f} epochs, {seconds:.0f} s{left} · {text}"

    def __repr__(self) -> str:
        return self.line

    def _repr_html_(self) -> str:
        return f'<progress value="{self.share:.3f}" max="1"></progress> {self.line}'


def live_progress(every: float = 0.5) -> Callable[[float, float, str], None]:
    """A ``progress(done, total, text)`` for `ensure_runs` that shows one line and updates it in place.

    every: least seconds between updates. An executed notebook keeps the last state only, and nothing where
        nothing was trained.
    """
    from IPython.display import display

    started, shown = time.monotonic(), -math.inf
    handle = None

    def show(done: float, total: float, text: str) -> None:
        nonlocal handle, shown
        now = time.monotonic()
        if now - shown < every and done < total:
            return
        shown = now
        bar = _Bar(done, total, text, now - started)
        if handle is None:
            handle = display(bar, display_id=True)
        else:
            handle.update(bar)

    return show
