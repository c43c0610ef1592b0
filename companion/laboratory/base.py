"""What every panel of the laboratory has: controls, a picture, how to get the same without it, answers to bad input."""

from __future__ import annotations

import contextlib
import html
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure

from companion.laboratory import figures
from nclib.engine.reading import CorruptRun
from nclib.publish.plots.display import Picture

_SHARPNESS = 1.5  # pixels drawn for each one on the page
_drawing = threading.Lock()  # a panel that trains draws from a thread of its own

Refused = (ValueError, CorruptRun)
"""What a panel answers with a sentence instead of a traceback."""


class Panel:
    """Controls and a picture. `box` is the widget, `message` and `command` what it says."""

    def __init__(self, picture_class: str = "nclib-picture") -> None:
        self.image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        self.image.add_class(picture_class)
        self.message = widgets.HTML()
        self.message.add_class("nclib-error")
        self.command = widgets.HTML()
        self.command.add_class("nclib-command")
        self.box = widgets.VBox()
        self.alt = ""
        self._silent = False

    def picture(self) -> Picture:
        """What the panel shows now, as a picture that needs no kernel."""
        return Picture(self.image.value, self.alt, int(self.image.width))

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle = self.box._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        return dict(data) | {"text/html": self.picture()._repr_html_(), "text/plain": self.alt}

    def _when(self, control: widgets.Widget, act: Callable[[], object]) -> None:
        """Let ``act()`` answer a button's click or a new value.

        An interrupt of the kernel ends the answer and nothing else: one that left the handler would end the kernel's
        message loop, and nothing could be pressed any more.
        """

        def answer(_: Any) -> None:
            try:
                if not self._silent:
                    act()
            except KeyboardInterrupt:
                self._refuse("interrupted; choose again to see it")

        if isinstance(control, widgets.Button):
            control.on_click(answer)
        else:
            control.observe(answer, "value")

    @contextlib.contextmanager
    def _silently(self) -> Iterator[None]:
        """Controls that are set within are not answered."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def _draw(self, draw: Callable[[], Figure], alt: str) -> None:
        buffer = io.BytesIO()
        with _drawing:
            fig = draw()
            fig.savefig(buffer, format="png", dpi=figures.SCREEN_DPI * _SHARPNESS)
        self.alt = alt
        self.image.width = str(round(fig.get_figwidth() * figures.SCREEN_DPI))
        self.image.value = buffer.getvalue()

    def _refuse(self, error: Exception | str) -> None:
        text = html.escape(str(error)).replace("\n", "<br>")
        self.message.value = f'<div style="color:#b00020; padding:2px 0 4px">{text}</div>'

    def _attempt(self, act: Callable[[], None]) -> None:
        """Do it, or say what was wrong with what was asked."""
        try:
            act()
        except Refused as error:
            self._refuse(error)
        else:
            self.message.value = ""

    def _say_command(self, text: str) -> None:
        shown = html.escape(text)
        self.command.value = f'<pre style="{_COMMAND}">{shown}</pre>'


_COMMAND = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; margin: 4px 0; line-height: 1.35"
LABEL = {"description_width": "118px"}
FIELD = {"width": "290px"}


def text_field(label: str, hint: str, value: str = "") -> widgets.Text:
    return widgets.Text(
        value, description=label, tooltip=hint, placeholder="default", continuous_update=False,
        style=LABEL, layout=widgets.Layout(**FIELD),
    )  # fmt: skip


def choice_field(label: str, hint: str, options: Any, value: Any) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=options, value=value, description=label, tooltip=hint, style=LABEL, layout=widgets.Layout(**FIELD)
    )


def slider(label: str, value: float, low: float, high: float, step: float = 0.05) -> widgets.FloatSlider:
    return widgets.FloatSlider(
        value=value, min=low, max=high, step=step, description=label, style=LABEL,
        layout=widgets.Layout(width="420px"), readout_format=".2f" if step < 1 else ".0f",
    )  # fmt: skip


def beside(text: str) -> widgets.HTML:
    """A label as the fields have it, for a row of other things."""
    width = LABEL["description_width"]
    return widgets.HTML(f'<div style="width:{width}; text-align:right; padding-right:8px">{html.escape(text)}</div>')


def heading(text: str) -> widgets.HTML:
    return widgets.HTML(f"<b>{html.escape(text)}</b>")


def row(*parts: widgets.Widget, **layout: str) -> widgets.HBox:
    return widgets.HBox(parts, layout=widgets.Layout(flex_flow="row wrap", align_items="center", **layout))


def read_number(text: str) -> Any:
    """What a field means: a whole number, another number, or the text itself, which the configuration will refuse."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
