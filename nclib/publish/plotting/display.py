"""What a notebook shows beside figures and tables: a progress line, numbers in sentences, pictures with words."""

from __future__ import annotations

import base64
import html
import io
import itertools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from IPython.display import HTML, Markdown

_SCREEN_DPI = 96  # pixels an inch on a page; the picture holds twice as many


def live_progress(every: float = 0.5) -> Callable[[float, float, str], None]:
    """A ``progress(done, total, text)`` for `ensure_runs` that shows one line and updates it in place.

    Parameters
    ----------
    every : least seconds between updates. An executed notebook keeps the last state only, and nothing where nothing was
        trained.
    """
    started, shown, replace = time.monotonic(), -math.inf, live()

    def show(done: float, total: float, text: str) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= every or done >= total:
            shown = now
            replace(prose(f"{done:.0f} of {total:.0f} runs, {now - started:.0f} s · {text}"))

    return show


def live() -> Callable[[object], None]:
    """A ``show(value)`` for a loop: each call shows its value in the place of the last one."""
    from IPython.display import DisplayHandle

    handle = DisplayHandle()
    calls = itertools.chain([handle.display], itertools.repeat(handle.update))
    return lambda value: next(calls)(value)


def prose(text: str) -> Markdown:
    """Markdown as the value of a cell: ``plotting.prose(f"It took **{steps}** steps.")``."""
    from IPython.display import Markdown

    return Markdown(text)


def picture(fig: Figure, alt: str) -> HTML:
    """The figure as the value of a cell, with alternative text for readers who do not see it.

    It becomes an HTML image, the one form whose text JupyterLab, executed copies and the web site all keep: the
    image outputs of the inline backend have none. The figure is closed, so that it is not shown twice; it can still
    be saved.

    Parameters
    ----------
    alt : what is plotted and what one should see in it.
    """
    from IPython.display import HTML

    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=2 * _SCREEN_DPI, metadata={"Software": None})
    plt.close(fig)
    data, words = base64.b64encode(buffer.getvalue()).decode(), html.escape(" ".join(alt.split()))
    width = round(fig.get_figwidth() * _SCREEN_DPI)
    return HTML(f'<img src="data:image/png;base64,{data}" alt="{words}" width="{width}">')
