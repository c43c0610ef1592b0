"""The one style of all figures: widths, colours and markers, and what several kinds of picture share."""

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import seaborn as sns
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter, NullLocator

ONE_COLUMN = 3.25  # inches
TWO_COLUMN = 6.75

_PALETTE = tuple(sns.color_palette("colorblind").as_hex())
_MARKS_PER_CURVE = 6


class Style(NamedTuple):
    """How a model is drawn: colour, marker, and its name for readers."""

    colour: str
    marker: str
    label: str


MODEL_STYLE: dict[str, Style] = {
    "explicit": Style(_PALETTE[0], "o", "ResNet-18"),
    "deq": Style(_PALETTE[3], "s", "DEQ"),
    "explicit_matched": Style(_PALETTE[2], "^", "explicit, same cell"),
    "weight_tied": Style(_PALETTE[4], "D", "weight-tied"),
    "explicit_flops": Style(_PALETTE[5], "v", "explicit, same compute"),
}
METHOD_STYLE: dict[str, Style] = {
    "fixed_point": Style("0.55", "o", "plain iteration"),
    "anderson": Style(_PALETTE[1], "^", "Anderson"),
    "broyden": Style("0.1", "s", "Broyden"),
}
GROUP_STYLE: dict[str, Style] = {
    "majority": Style("0.45", "o", "majority classes"),
    "minority": Style(_PALETTE[3], "X", "minority classes"),
}
SPLIT_LINE: dict[str, str] = {"test": "-", "train": "--"}


def use_style() -> None:
    """Set the style of this project for all figures drawn from here on.

    8 pt DejaVu Sans (it comes with matplotlib), seaborn's colour-blind palette, no frame at top and right,
    constrained layout, TrueType fonts in PDFs; in a notebook, inline figures as PNG.
    """
    mpl.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 8,
            "axes.labelsize": 8,
            "axes.titlesize": 8,
            "axes.titlelocation": "left",
            "axes.unicode_minus": True,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "legend.fontsize": 7,
            "legend.frameon": False,
            "axes.prop_cycle": cycler(color=_PALETTE),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.6,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.minor.width": 0.4,
            "ytick.minor.width": 0.4,
            "lines.linewidth": 1.2,
            "lines.markersize": 3.5,
            "figure.figsize": (ONE_COLUMN, 2.4),
            "figure.dpi": 150,
            "figure.constrained_layout.use": True,
            "savefig.dpi": 300,
            "pdf.fonttype": 42,
            "svg.hashsalt": "nclib",
        }
    )
    if "IPython" in sys.modules:  # only there does an inline backend exist
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("png")


KIND_COLOURS: dict[str, tuple[str, ...]] = {
    "deq": (_PALETTE[3],),
    "unrolled_deq": (_PALETTE[4],),
    "self_loop_deq": (_PALETTE[3],),
    "fnn": (_PALETTE[0], _PALETTE[2], _PALETTE[9], "0.3", "0.6"),
}
"""Colours of the regressors, one family of models a colour; several FNNs take them in turn."""
_MARKERS = "osD^vP"


def plain_log(ax: Axes, sizes: Sequence[float] = ()) -> Axes:
    """Logarithmic y axis, and x axis where sizes are given, with 0.1 and 200 instead of powers of ten.

    Parameters
    ----------
    sizes : numbers along x, each with its own tick.
    """
    ax.set_yscale("log", nonpositive="mask")
    ax.yaxis.set_major_formatter(_PlainLog())
    ax.yaxis.set_minor_formatter(_PlainLog(minor_thresholds=(1.2, 0.5)))
    if len(sizes):
        ax.set_xscale("log")
        ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
        ax.xaxis.set_minor_locator(NullLocator())
    return ax


def _styles(names: Iterable[str], known: Mapping[str, Style] = MODEL_STYLE) -> dict[str, Style]:
    """A style for every name, those that are not known in turn."""
    others = itertools.cycle(zip((_PALETTE[0], _PALETTE[2], _PALETTE[4], _PALETTE[9]), "vDPX", strict=True))
    return {name: known[name] if name in known else Style(*next(others), str(name)) for name in names}


def _ordered(present: Iterable[str], models: Sequence[str] | None) -> list[str]:
    present = list(present)
    order = dict.fromkeys([*MODEL_STYLE, *present]) if models is None else models
    return [model for model in order if model in present]


class _PlainLog(LogFormatter):
    """0.1, 1, 10 instead of powers; which ticks get a label is matplotlib's decision."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""
