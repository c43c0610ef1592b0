"""The one style of all figures: widths, colours and markers, and what several kinds of picture share."""

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from nclib.publish.numbers import minus

ONE_COLUMN = 3.25  # inches
TWO_COLUMN = 6.75

PALETTE = tuple(sns.color_palette("colorblind").as_hex())


class Style(NamedTuple):
    """How a model is drawn: colour, marker, and its name for readers."""

    colour: str
    marker: str
    label: str


MODEL_STYLE: dict[str, Style] = {
    "explicit": Style(PALETTE[0], "o", "ResNet-18"),
    "deq": Style(PALETTE[3], "s", "DEQ"),
    "explicit_matched": Style(PALETTE[2], "^", "same block, once"),
    "weight_tied": Style(PALETTE[4], "D", "weight-tied"),
    "explicit_flops": Style(PALETTE[5], "v", "explicit, same compute"),
}
METHOD_STYLE: dict[str, Style] = {
    "fixed_point": Style("0.55", "o", "plain iteration"),
    "anderson": Style(PALETTE[1], "^", "Anderson"),
    "broyden": Style("0.1", "s", "Broyden"),
}
GROUP_STYLE: dict[str, Style] = {
    "majority": Style("0.45", "o", "majority classes"),
    "minority": Style(PALETTE[3], "X", "minority classes"),
}
SPLIT_LINE: dict[str, str] = {"test": "-", "train": "--"}
_TICKS = {"labelsize": 7, "major.width": 0.6, "minor.width": 0.4}


def use_style() -> None:
    """Set the style of this project for all figures drawn from here on, and minus signs in the tables of a notebook.

    8 pt, seaborn's colour-blind palette, no frame at top and right, constrained layout.
    """
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
        shell.display_formatter.formatters["text/html"].for_type(pd.DataFrame, lambda rows: minus(rows._repr_html_()))
    mpl.rcParams.update(
        {
            **dict.fromkeys(("font.size", "axes.titlesize"), 8),
            "axes.titlelocation": "left",
            "legend.fontsize": 7,
            **dict.fromkeys(("legend.frameon", "axes.spines.top", "axes.spines.right"), False),
            "axes.prop_cycle": cycler(color=PALETTE),
            "axes.linewidth": 0.6,
            **{f"{axis}tick.{what}": points for axis in "xy" for what, points in _TICKS.items()},
            "lines.linewidth": 1.2,
            "lines.markersize": 3.5,
            "figure.figsize": (ONE_COLUMN, 2.4),
            "figure.dpi": 150,
            "figure.constrained_layout.use": True,
        }
    )


def plain_log(ax: Axes, sizes: Sequence[float] = ()) -> Axes:
    """Logarithmic y axis, and x axis where sizes are given, with 0.1 and 200 instead of powers of ten.

    Parameters
    ----------
    sizes : numbers along x, each with its own tick.
    """

    def plain(x: float, pos: int | None) -> str:  # 2 and 5 too on at most two decades, and all on the shortest axes
        low, high = sorted(ax.get_ylim())
        shown = "1" if high > 100 * low else "125" if high > 3 * low else "123456789"
        return minus(f"{x:g}") if f"{x:e}"[0] in shown else ""

    ax.set_yscale("log", nonpositive="mask")
    ax.yaxis.set(major_formatter=plain, minor_formatter=plain)
    if len(sizes):
        ax.set_xscale("log")
        ax.set_xticks(sizes, [minus(f"{size:g}") for size in sizes])
        ax.xaxis.set_minor_locator(NullLocator())
    return ax


def styles_of(names: Iterable[str], known: Mapping[str, Style] = MODEL_STYLE) -> dict[str, Style]:
    """A style for every name: first those that are known, in their order, then the others in turn."""
    names = list(names)
    others = itertools.cycle(zip((PALETTE[0], PALETTE[2], PALETTE[4], PALETTE[9]), "vDPX", strict=True))
    found = {name: style for name, style in known.items() if name in names}
    return found | {name: Style(*next(others), str(name)) for name in names if name not in known}
