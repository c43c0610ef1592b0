"""What a notebook shows beside figures and tables: a progress line, numbers in sentences, pictures with words."""

import base64
import html
import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

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
        if now - shown < every and done < total:
            return
        shown = now
        replace(Prose(f"{done:.0f} of {total:.0f} epochs, {now - started:.0f} s · {text}"))

    return show


def live() -> Callable[[object], None]:
    """A ``show(value)`` for a loop: each call shows its value in the place of the last one."""
    from IPython.display import display

    handle = None

    def show(value: object) -> None:
        nonlocal handle
        if handle is None:
            handle = display(value, display_id=True)
        else:
            handle.update(value)

    return show


class Prose(str):
    """Text that a notebook shows as Markdown, so that computed numbers can stand in sentences."""

    def _repr_markdown_(self) -> str:
        return str(self)


def prose(text: str) -> Prose:
    """Markdown as the value of a cell: ``plotting.prose(f"It took **{steps}** steps.")``."""
    return Prose(text)


@dataclass(frozen=True)
class Picture:
    """A drawn figure and what it shows in words, for readers who do not see it.

    Parameters
    ----------
    png : the image.
    alt : the words.
    width : on the page, in pixels.
    """

    png: bytes = field(repr=False)
    alt: str
    width: int

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png).decode()
        return f'<img src="data:image/png;base64,{data}" alt="{html.escape(self.alt)}" width="{self.width}">'


def picture(fig: Figure, alt: str) -> Picture:
    """The figure as the value of a cell, with alternative text.

    It becomes an HTML image, the one form whose text JupyterLab, executed copies and the web site all keep: the
    image outputs of the inline backend have none. The figure is closed, so that it is not shown twice; it can still
    be saved.

    Parameters
    ----------
    alt : what is drawn and what one should see in it. Raises ValueError where it is empty.
    """
    if not alt.strip():
        raise ValueError("alt is empty: say in a sentence or two what the picture shows")
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=2 * _SCREEN_DPI, metadata={"Software": None})
    plt.close(fig)
    return Picture(buffer.getvalue(), " ".join(alt.split()), round(fig.get_figwidth() * _SCREEN_DPI))
