"""How everything looks: one style, one colour per model, and the few kinds of picture the papers need.

Functions take tidy frames or arrays and an axes, and return the axes; nothing here trains, reads or saves.
Colour and marker tell the model, line style the split, a band one standard deviation over seeds; what the
paper prints stands at the right of the axes. Everything stays distinguishable in grey.

Tidy frames have the columns run_id, profile, dataset, model, K_A, R, seed, split, epoch, metric, value.
"""

import difflib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from cycler import cycler
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyBboxPatch, Polygon, Rectangle
from matplotlib.ticker import LogFormatter, LogLocator, MaxNLocator, NullLocator

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


def curves(
    frame: pd.DataFrame,
    metric: str,
    ax: Axes,
    split: str | Sequence[str] = "test",
    models: Sequence[str] | None = None,
    *,
    label: str | None = None,
    log: bool = False,
    ideal: float | None = None,
    printed: Iterable[tuple[str, float, float | None]] = (),
    printed_range: tuple[float, float] | None = None,
) -> Axes:
    """A metric against the epoch: mean over seeds, with a band of ± one standard deviation over seeds.

    frame: tidy frame of one setting (one data set, K_A and R); each (model, split, seed, epoch) at most once.
    metric: which one, by the name in the column `metric`; label: what the axis calls it.
    split: one or several; solid is test, dashed is train.
    models: which, and in which order; None means all there are, in the order of MODEL_STYLE. Names that are not in
        MODEL_STYLE, such as layers of a network of your own, take the next colour and marker and come last.
    log: logarithmic axis; values <= 0 are not drawn there.
    ideal: a thin dotted line at the value of complete collapse.
    printed: (model, value, std or None) as the paper prints it: a hollow marker with its error bar right of
        the axes, in the model's colour, the number beside it. The axis is widened to hold it.
    printed_range: first and last tick of the paper's own axis, in the units of this axis, as a grey bracket
        at the right edge. It bounds what the paper shows, not what it measured. Where it reaches beyond this
        axis its end is open; a triangle points to one that lies outside altogether.
    Returns: ax. The band is the sample standard deviation (ddof = 1); one seed has none. What is not finite
    leaves a gap.
    Raises: ValueError for a metric, split or model that is not in the frame (the nearest name is suggested),
    for a frame that lacks a column or mixes settings, and for an ideal value <= 0 on a logarithmic axis.
    """
    splits = [split] if isinstance(split, str) else list(split)
    chosen = _select(frame, metric, splits, models)
    if log:
        if ideal is not None and ideal <= 0:
            raise ValueError(f"ideal={ideal} has no place on a logarithmic axis: leave it out, or log=False")
        ax.set_yscale("log", nonpositive="mask")
        ax.yaxis.set_major_formatter(_PlainLog())
        ax.yaxis.set_minor_formatter(_PlainLog(minor_thresholds=(1.2, 0.5)))
    drawn = _ordered(chosen["model"].unique(), models)
    styles = _styles(drawn)
    for model in drawn:
        for part in splits:
            of_seeds = chosen[(chosen["model"] == model) & (chosen["split"] == part)]
            values = of_seeds.pivot(index="epoch", columns="seed", values="value")
            _curve(ax, values, styles[model], SPLIT_LINE.get(part, "-."), log)
    for style in styles.values():
        _legend_entry(ax, style.label, color=style.colour, marker=style.marker)
    for part in splits:
        _legend_entry(ax, part, color="0.3", linestyle=SPLIT_LINE.get(part, "-."))
    if ideal is not None:
        ax.axhline(ideal, color="black", linestyle=":", linewidth=0.8, zorder=1, label="ideal")
    ax.set_xlabel("epoch")
    ax.set_ylabel(metric if label is None else label)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
    printed = list(printed)
    if printed:
        _draw_printed(ax, printed, log)
    if printed_range is not None:
        _draw_printed_range(ax, *printed_range)
    return ax


def layers(
    table: pd.DataFrame, metrics: str | Sequence[str], ax: Axes, *, label: str | None = None, log: bool = True
) -> Axes:
    """Metrics over the layers of a network, from the table of ``nclib.measure``.

    Parameters
    ----------
    table : columns layer, metric, value; layers are drawn in the order of their first row. Rows of single classes are
        left out.
    metrics : one or several names in the column metric, a line each; a layer without a value is a gap
    ax : where to draw
    label : what the axis calls the values; left out, the metric
    log : logarithmic axis; values <= 0 are not drawn there

    Returns
    -------
    Axes
        ax

    Raises
    ------
    ValueError
        A metric that is not in the table.

    Examples
    --------
    >>> import pandas as pd, matplotlib.pyplot as plt
    >>> from nclib.publish import plotting
    >>> table = pd.DataFrame({"layer": ["stem", "head"], "metric": "nc1_cdnv", "value": [3.0, 0.1]})
    >>> plotting.layers(table, "nc1_cdnv", plt.subplots()[1]).get_ylabel()
    'nc1_cdnv'
    """
    metrics = [metrics] if isinstance(metrics, str) else list(metrics)
    table = table[table["class"].isna()] if "class" in table else table
    values = table.pivot(index="layer", columns="metric", values="value").reindex(table["layer"].unique())
    for name in metrics:
        if name not in values:
            near = difflib.get_close_matches(str(name), values.columns, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f". There is: {', '.join(values.columns)}"
            raise ValueError(f"no metric {name!r} here{hint}")
    for name, style in _styles(metrics).items():
        ax.plot(range(len(values)), values[name].to_numpy(), color=style.colour, marker=style.marker, label=style.label)
    if log:
        ax.set_yscale("log", nonpositive="mask")
    ax.set_xticks(range(len(values)), values.index, rotation=45, ha="right")
    ax.set_ylabel(label or ", ".join(metrics))
    if len(metrics) > 1:
        ax.legend()
    return ax


def sweep(
    rows: pd.DataFrame,
    by: str,
    ax: Axes,
    *,
    label: str,
    across: str,
    log: bool = False,
    log_across: bool = False,
) -> Axes:
    """A quantity against the number that a sweep goes over: mean over seeds, with a band of ± one standard deviation.

    rows: seed, split, at (the number), value, and the column `by`; one quantity, each point and seed at most once.
    by: "method" or "group", whose values are drawn in the styles of METHOD_STYLE and GROUP_STYLE; line style is the
        split, as in `curves`.
    label, across: what the axes call the quantity and the number; log, log_across: logarithmic ones. A sweep over
        tolerances, all below 1, is logarithmic and runs from coarse to fine.
    Returns: ax. Raises: ValueError for a frame without rows, a name without a style, or a point given twice.
    """
    styles = {"method": METHOD_STYLE, "group": GROUP_STYLE}[by]
    if rows.empty:
        raise ValueError("nothing to draw: the frame has no rows")
    unknown = set(rows[by]) - set(styles)
    if unknown:
        raise ValueError(f"no style for {by} {', '.join(sorted(unknown))}; there are {', '.join(styles)}")
    twice = rows.duplicated([by, "split", "seed", "at"])
    if twice.any():
        raise ValueError(f"{int(twice.sum())} points share {by}, split, seed and number: select one quantity first")
    if log:
        ax.set_yscale("log", nonpositive="mask")
        ax.yaxis.set_major_formatter(_PlainLog())
        ax.yaxis.set_minor_formatter(_PlainLog(minor_thresholds=(1.2, 0.5)))
    drawn = [name for name in styles if (rows[by] == name).any()]
    splits = sorted(rows["split"].unique(), key=[*SPLIT_LINE, "steps"].index)
    for i, name in enumerate(drawn):
        for split in splits:
            chosen = rows[(rows[by] == name) & (rows["split"] == split)]
            values = chosen.pivot(index="at", columns="seed", values="value")
            # methods that agree lie on one line: markers in turn, the first line broad, the last one slender
            turn = (i, len(drawn)) if by == "method" else None
            width = 1.2 + 0.7 * (len(drawn) - 1 - i) if by == "method" else None
            _curve(ax, values, styles[name], SPLIT_LINE.get(split, "-."), log, turn, width)
    for band in ax.collections:
        band.set_alpha(0.25 / len(drawn))
    for name in drawn:
        _legend_entry(ax, styles[name].label, color=styles[name].colour, marker=styles[name].marker)
    for split in splits:
        text = "training steps" if split == "steps" else split
        _legend_entry(ax, text, color="0.3", linestyle=SPLIT_LINE.get(split, "-."))
    if rows["at"].max() < 1:
        ax.set_xscale("log")
        ax.set_xlim(rows["at"].max() * 1.4, rows["at"].min() / 1.4)
    elif log_across:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
    ax.set_xlabel(across)
    ax.set_ylabel(label)
    return ax


KIND_COLOURS: dict[str, tuple[str, ...]] = {
    "deq": (_PALETTE[3],),
    "unrolled_deq": (_PALETTE[4],),
    "self_loop_deq": (_PALETTE[3],),
    "fnn": (_PALETTE[0], _PALETTE[2], _PALETTE[9], "0.3", "0.6"),
}
"""Colours of the regressors, one family of models a colour; several FNNs take them in turn."""
_MARKERS = "osD^vP"


def arms(rows: pd.DataFrame, ax: Axes, *, label: str, across: str, log: bool = True, log_across: bool = False) -> Axes:
    """Small models side by side: mean over seeds with a band from the least to the largest seed.

    rows: model (its name in the legend), kind (a key of KIND_COLOURS), seed, at, value; one point for each model, seed
        and at. Models are drawn in the order of their first row; FNNs are dashed.
    label, across: what the axes call value and at; log, log_across: logarithmic ones. On a logarithmic axis the mean
        is geometric and values that are not positive are left out.
    Returns: ax. Raises: ValueError for a frame without rows, an unknown kind, or a point given twice.
    """
    if rows.empty:
        raise ValueError("nothing to draw: the frame has no rows")
    unknown = set(rows["kind"]) - set(KIND_COLOURS)
    if unknown:
        raise ValueError(f"no colour for kind {', '.join(sorted(unknown))}; there are {', '.join(KIND_COLOURS)}")
    if rows.duplicated(["model", "seed", "at"]).any():
        raise ValueError("some points share model, seed and place: select one task first")
    used: dict[str, int] = {}
    for number, (name, group) in enumerate(rows.groupby("model", sort=False)):
        kind = group["kind"].iloc[0]
        place = used.setdefault(kind, 0)
        used[kind] += 1
        values = group.pivot(index="at", columns="seed", values="value")
        if log:
            values = values.where(values > 0)
            mean = np.exp(np.log(values).mean(axis="columns"))
        else:
            mean = values.mean(axis="columns")
        colour = KIND_COLOURS[kind][place % len(KIND_COLOURS[kind])]
        style = {"linestyle": "--" if kind == "fnn" else "-", "marker": _MARKERS[number % len(_MARKERS)]}
        ax.plot(mean.index, mean, color=colour, label=name, markevery=max(1, len(mean) // _MARKS_PER_CURVE), **style)
        if values.shape[1] > 1:
            low, high = values.min(axis="columns"), values.max(axis="columns")
            ax.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)
    if log:
        ax.set_yscale("log", nonpositive="mask")
    if log_across:
        ax.set_xscale("log")
    ax.set_xlabel(across)
    ax.set_ylabel(label)
    return ax


def gram(
    matrix: np.ndarray,
    ax: Axes,
    majority: int | None = None,
    *,
    centre: float | None = None,
    span: float | None = None,
    classes: Sequence[object] | None = None,
    colourbar: bool = True,
) -> Axes:
    """A K×K matrix of cosines between class means or classifiers, in colours symmetric about the ideal.

    matrix: (K, K), classes in the order of the axes, majority classes first.
    majority: number of majority classes; lines separate them from the minority ones.
    centre: value drawn white; None means -1/(K-1), the cosine of a simplex ETF. Pass 0 for uncentred means.
    span: distance from the centre to full colour; None means the largest distance in the matrix, so panels
        that are compared need one common span. The colour bar ends where cosines do, and in a point where some
        lie beyond its colours.
    classes: the name or number of each row, for instance where rows were reordered to bring the majority first.
    Values below the centre carry a small bar, so that the two sides differ in grey as well.
    Raises: ValueError where the matrix is not square or holds no finite value.
    """
    matrix = np.asarray(matrix, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 2:
        raise ValueError(f"a Gram matrix is square with at least 2 classes, this has shape {matrix.shape}")
    if not np.isfinite(matrix).any():
        raise ValueError("the Gram matrix holds no finite value")
    num_classes = len(matrix)
    centre = -1 / (num_classes - 1) if centre is None else centre
    span = float(np.nanmax(np.abs(matrix - centre))) or 1.0 if span is None else span
    shown = ax.imshow(matrix, cmap="RdBu_r", norm=Normalize(centre - span, centre + span))
    if num_classes <= 20:
        rows, columns = np.nonzero(matrix < centre - 0.1 * span)
        ax.scatter(columns, rows, marker="_", s=60 / num_classes, color="black", linewidths=0.5)
    if majority is not None and 0 < majority < num_classes:
        for line in (ax.axhline, ax.axvline):
            line(majority - 0.5, color="black", linewidth=0.8)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=10, integer=True, steps=[1, 2, 5, 10]))
        if classes is not None:
            axis.set_major_formatter(lambda row, _: literal(classes[int(row)]) if 0 <= row < num_classes else "")
    if classes is not None and max(len(str(name)) for name in classes) > 3:
        ax.tick_params(axis="x", labelrotation=90)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("class")
    ax.set_ylabel("class")
    if colourbar:
        beyond = np.nanmin(matrix) < centre - 1.001 * span, np.nanmax(matrix) > centre + 1.001 * span
        extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
        bar = ax.figure.colorbar(shown, ax=ax, shrink=0.8, pad=0.03, extend=extend)
        bar.outline.set_visible(False)
        marks = [max(centre - span, -1), centre, min(centre + span, 1)]
        bar.ax.set_ylim(marks[0], marks[-1])  # the colours go on where no cosine is
        bar.set_ticks(marks, labels=[f"{value:.2g}".replace("-", "−") for value in marks])
        bar.set_label("cosine")
    return ax


def embedding(
    points: np.ndarray,
    labels: np.ndarray,
    ax: Axes,
    minority: Iterable[int] = (),
    *,
    class_names: Sequence[str] | None = None,
    legend: bool = True,
) -> Axes:
    """Points of a planar embedding, one colour per class; minority classes are crosses.

    points: (N, 2); labels: (N,) class numbers; minority: the class numbers that are minority.
    class_names: written above each class (the number where None), for up to 20 classes. Names that would cover
        each other stand apart, each with a thin line to its class.
    legend: explain dot and cross, if there is a minority.
    An embedding has no units, so the axes carry no ticks.
    Raises: ValueError where shapes do not fit.
    """
    points, labels = np.asarray(points, dtype=float), np.asarray(labels)
    if points.ndim != 2 or points.shape[1] != 2 or labels.shape != (len(points),):
        raise ValueError(f"need points (N, 2) and labels (N,), got {points.shape} and {labels.shape}")
    minority = {int(k) for k in minority}
    classes = [int(k) for k in np.unique(labels)]
    colours = _class_colours(classes)
    for k in sorted(classes, key=lambda k: k in minority):  # few minority points: drawn on top
        of_class = points[labels == k]
        if k in minority:
            ax.scatter(*of_class.T, marker="x", s=12, color=colours[k], linewidths=0.9)
        else:
            ax.scatter(*of_class.T, marker="o", s=5, color=colours[k], linewidths=0, alpha=0.7)
    if len(classes) <= 20:
        names = [str(k) if class_names is None else literal(class_names[k]) for k in classes]
        _label_classes(ax, [points[labels == k] for k in classes], names, [k in minority for k in classes])
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    if legend and minority:
        grey = {"color": "0.35", "linestyle": "", "markersize": 4}
        handles = [Line2D([], [], marker="o", **grey), Line2D([], [], marker="x", **grey)]
        ax.legend(
            handles,
            ["majority class", "minority class"],
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            ncols=2,
            handletextpad=0.1,
        )
    return ax


def forest(
    rows: pd.DataFrame,
    ax: Axes,
    *,
    label: str,
    names: Sequence[str],
    by: str = "row",
    models: bool = True,
    most: float = math.inf,
) -> Axes:
    """Values with their intervals, one below the other: a dot and a bar value ± half for each row.

    rows: value, half (NaN draws no bar), model, and the column `by`, which names the line each is drawn on. Several
        models on one line stand a little apart. A column note, where there is one, is written above the dots.
    label: what the axis calls the value.
    names: the lines from top to bottom; the same for panels that share the axis, whatever the order of their rows.
    models: colour and marker by model, as elsewhere; False draws every row alike.
    most: the largest value there can be; where bars make the axis go on, what lies beyond is grey.
    Returns: ax, with a thin line at 0 where the values are on both sides of it or models is False.
    Raises: ValueError for a frame without rows, or a row on a line that names does not have.
    """
    if rows.empty:
        raise ValueError("nothing to draw: the frame has no rows")
    names = list(names)
    strange = set(rows[by]) - set(names)
    if strange:
        raise ValueError(f"names has no line for {', '.join(map(repr, sorted(strange)))}; it has {', '.join(names)}")
    present = _ordered(rows["model"].unique(), None) if models else [None]
    apart = 0.16 if rows.groupby(by)["model"].nunique().max() > 1 else 0.0
    styles = _styles(present) if models else {None: Style("0.15", "o", "")}
    for place, (model, style) in enumerate(styles.items()):
        chosen = rows if model is None else rows[rows["model"] == model]
        heights = np.array([names.index(name) for name in chosen[by]]) + apart * (place - (len(present) - 1) / 2)
        ax.errorbar(
            chosen["value"].to_numpy(float), heights, xerr=chosen["half"].fillna(0).to_numpy(float), linestyle="none",
            color=style.colour, marker=style.marker, markersize=4, elinewidth=1, capsize=2, label=style.label or None,
        )  # fmt: skip
        if "note" in chosen:
            for value, height, note in zip(chosen["value"], heights, chosen["note"], strict=True):
                above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "va": "bottom"}
                halo = [patheffects.withStroke(linewidth=1.8, foreground="white")]
                ax.annotate(note, (value, height), color="0.3", fontsize=6, path_effects=halo, **above)
    if rows["value"].nunique() == 1 and not rows["half"].gt(0).any():  # else the axis would show rounding
        ax.set_xlim(rows["value"].iloc[0] - 1, rows["value"].iloc[0] + 1)
    low, high = ax.get_xlim()
    if high > most:
        ax.axvspan(most, high, color="0.9", linewidth=0, zorder=0)
        ax.set_xlim(low, high)
    if not models or low < 0 < high:
        ax.axvline(0, color="black", linestyle=":", linewidth=0.8, zorder=1)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(label)
    return ax


def figure_legend(fig: Figure, axes: Iterable[Axes], ncols: int | None = None) -> Legend:
    """One legend below the figure for all panels: every label once, what is drawn first, then splits, the ideal value
    and what the paper prints.

    axes: the panels whose curves it explains; ncols: None fills the width of the figure.
    """
    entries: dict[str, object] = {}
    for ax in axes:
        for handle, text in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    entries = {text: entries[text] for text in sorted(entries, key=_legend_group)}
    if ncols is None:
        fitting = max(1, int(fig.get_figwidth() / 1.35))  # inches that the longest name takes
        ncols = max(1, math.ceil(len(entries) / math.ceil(len(entries) / fitting)))
    return fig.legend(entries.values(), entries, loc="outside lower center", ncols=ncols)


def _legend_group(text: str) -> int:
    return (
        1 if text in (*SPLIT_LINE, "training steps") else 2 if text == "ideal" else 3 if text.startswith("paper") else 0
    )


def plain_log(ax: Axes, sizes: Sequence[float] = ()) -> Axes:
    """Logarithmic y axis, and x axis where sizes are given, with 0.1 and 200 instead of powers of ten.

    sizes: numbers along x, each with its own tick.
    """
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(_PlainLog())
    ax.yaxis.set_minor_formatter(_PlainLog(minor_thresholds=(1.2, 0.5)))
    if len(sizes):
        ax.set_xscale("log")
        ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
        ax.xaxis.set_minor_locator(NullLocator())
    return ax


def cobweb(grid: np.ndarray, values: np.ndarray, path: Sequence[float], ax: Axes) -> Axes:
    """A scalar iteration as a walk between the graph of f and the diagonal, where the fixed points are.

    grid, values: (N,) arguments and f of them. path: z_0, z_1 = f(z_0), …; what is not finite is not drawn.
    Returns: ax, square, showing the range of the grid in both directions.
    """
    path = np.asarray(path, dtype=float)
    corners = np.repeat(path[np.isfinite(path)], 2)  # (z0, z0) up to (z0, z1), across to (z1, z1), …
    ax.plot(grid, grid, color="0.6", linestyle="--", linewidth=0.8, label="z")
    ax.plot(grid, values, color=_PALETTE[0], label="f(z)")
    ax.plot(corners[:-1], corners[1:], color=_PALETTE[1], linewidth=0.9, label="iteration")
    ax.plot(corners[:1], corners[:1], color=_PALETTE[1], marker="o", linestyle="none", label="start")
    ax.set(xlim=(grid[0], grid[-1]), ylim=(grid[0], grid[-1]), xlabel="z", aspect="equal")
    return ax


def traces(residuals: Mapping[str, Sequence[float]], ax: Axes, tol: float | None = None) -> Axes:
    """Residual against evaluations of f, one line a method, on a logarithmic axis.

    residuals: name -> (T,), after 1, 2, … evaluations. A key of METHOD_STYLE is drawn in its style; any other name
        takes the next colour and marker. What is not positive and finite leaves a gap.
    tol: a dotted line where the method may stop.
    Returns: ax.
    """
    for name, style in _styles(residuals, METHOD_STYLE).items():
        values = residuals[name]
        values = np.asarray(values, dtype=float)
        values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
        every = max(1, len(values) // _MARKS_PER_CURVE)
        evaluations = np.arange(1, len(values) + 1)
        ax.plot(evaluations, values, color=style.colour, marker=style.marker, markevery=every, label=style.label)
    if tol is not None:
        ax.axhline(tol, color="black", linestyle=":", linewidth=0.8, zorder=1, label="tolerance")
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set(xlabel="evaluations of f", ylabel="relative residual")
    return ax


def _select(frame: pd.DataFrame, metric: str, splits: Sequence[str], models: Sequence[str] | None) -> pd.DataFrame:
    """The rows to draw, once every name is found and every point is unique."""
    chosen = frame
    lacking = [column for column in ("model", "seed", "split", "epoch", "metric", "value") if column not in frame]
    if lacking:
        raise ValueError(f"the frame has no column {', '.join(lacking)}; frame.assign({lacking[0]}=…) adds one")
    for column, wanted in (("metric", [metric]), ("split", splits), ("model", models)):
        if wanted is None:
            continue
        for name in wanted:
            known = sorted(chosen[column].unique())
            if name not in known:
                near = difflib.get_close_matches(str(name), map(str, known), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise ValueError(f"no {column} {name!r} here{hint} There is: {', '.join(map(str, known))}")
        chosen = chosen[chosen[column].isin(wanted)]
    twice = chosen.duplicated(["model", "split", "seed", "epoch"])
    if twice.any():
        varying = [c for c in ("profile", "dataset", "K_A", "R") if c in chosen and chosen[c].nunique() > 1]
        raise ValueError(
            f"{int(twice.sum())} points of {metric!r} share model, split, seed and epoch with another one: "
            f"select one setting first (several here: {', '.join(varying) or 'runs of the same setting'})"
        )
    return chosen


def _style(model: str) -> Style:
    if model not in MODEL_STYLE:
        raise ValueError(f"no style for model {model!r}; MODEL_STYLE has {', '.join(MODEL_STYLE)}")
    return MODEL_STYLE[model]


def _styles(names: Iterable[str], known: Mapping[str, Style] = MODEL_STYLE) -> dict[str, Style]:
    """A style for every name, those that are not known in turn."""
    others = itertools.cycle(zip((_PALETTE[0], _PALETTE[2], _PALETTE[4], _PALETTE[9]), "vDPX", strict=True))
    return {name: known[name] if name in known else Style(*next(others), str(name)) for name in names}


def _ordered(present: Iterable[str], models: Sequence[str] | None) -> list[str]:
    present = list(present)
    order = dict.fromkeys([*MODEL_STYLE, *present]) if models is None else models
    return [model for model in order if model in present]


def _curve(
    ax: Axes,
    values: pd.DataFrame,
    style: Style,
    line: str,
    log: bool,
    every: tuple[int, int] | None = None,
    width: float | None = None,
) -> None:
    """values: one row per epoch, one column per seed; what is not finite leaves a gap. every: first and each further
    point with a marker; width: of the line, in points."""
    values = values.replace([np.inf, -np.inf], np.nan)
    mean = values.mean(axis="columns", skipna=False)
    epochs = values.index.to_numpy()
    ax.plot(
        epochs,
        mean,
        color=style.colour,
        linestyle=line,
        marker=style.marker,
        markevery=every or max(1, len(epochs) // _MARKS_PER_CURVE),
        linewidth=width,
    )
    if values.shape[1] > 1:
        std = values.std(axis="columns", ddof=1, skipna=False)
        low = mean - std
        if log:  # the band ends where the axis has no room for it
            low = low.where(low > 0, values.min(axis="columns"))
        ax.fill_between(epochs, low, mean + std, color=style.colour, alpha=0.2, linewidth=0)


def _draw_printed(ax: Axes, printed: Sequence[tuple[str, float, float | None]], log: bool) -> None:
    """Hollow markers right of the axes, with the numbers moved apart where they would overlap."""
    _include(ax, [value for _, value, _ in printed], log)
    across = ax.get_yaxis_transform()  # x in axes, y in data
    outside = {"transform": across, "clip_on": False}
    for position, (model, value, std) in enumerate(printed):
        style = _style(model)
        x = 1.05 + 0.05 * position
        ax.plot([1.0, x], [value, value], color=style.colour, linewidth=0.6, **outside)
        ax.errorbar(
            [x],
            [value],
            yerr=None if std is None else [std],
            color=style.colour,
            marker=style.marker,
            markerfacecolor="white",
            markersize=3.5,
            elinewidth=0.8,
            **outside,
        )
    heights = (across + ax.transAxes.inverted()).transform([(1.0, value) for _, value, _ in printed])[:, 1]
    for (model, value, _), height in zip(printed, _spread(heights, 0.1), strict=True):
        place = {"transform": ax.transAxes, "va": "center", "ha": "left"}
        x = 1.05 + 0.05 * len(printed)
        ax.text(x, height, f"{value:.4g}", color=_style(model).colour, fontsize=6, **place)
    _legend_entry(ax, "paper: printed value", marker="o", markerfacecolor="white", color="0.3", linewidth=0.6)


def _draw_printed_range(ax: Axes, low: float, high: float) -> None:
    """A grey bracket from low to high at the right edge; an end beyond the axis has no cap."""
    bottom, top = sorted(ax.get_ylim())
    ax.set_ylim(bottom, top)
    grey = {"color": "0.6", "linewidth": 1.5, "solid_capstyle": "butt"}
    outside = {"transform": ax.get_yaxis_transform(), "clip_on": False, "zorder": 1}
    if max(low, bottom) < min(high, top):
        ax.plot([1.0, 1.0], [max(low, bottom), min(high, top)], **grey, **outside)
        for value in (low, high):
            if bottom <= value <= top:
                ax.plot([0.96, 1.0], [value, value], **grey, **outside)
    else:
        edge, marker = (top, "^") if low >= top else (bottom, "v")
        ax.plot([0.98], [edge], marker=marker, markersize=5, color="0.6", **outside)
    _legend_entry(ax, "paper: ticks of its axis", **grey)


class _PlainLog(LogFormatter):
    """0.1, 1, 10 instead of powers; which ticks get a label is matplotlib's decision."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _legend_entry(ax: Axes, label: str, **line: object) -> None:
    ax.plot([], [], label=label, **line)


def _include(ax: Axes, values: Sequence[float], log: bool) -> None:
    """Widen the axis so that the values, with a little room, lie inside."""
    ax.autoscale_view()
    bottom, top = ax.get_ylim()
    low, high = min(bottom, *values), max(top, *values)
    if log:
        low, high = (bottom if low >= bottom else low / 1.3), (top if high <= top else high * 1.3)
    else:
        room = 0.04 * (high - low)
        low, high = (bottom if low >= bottom else low - room), (top if high <= top else high + room)
    ax.set_ylim(low, high)


def _spread(heights: np.ndarray, gap: float) -> np.ndarray:
    """Heights moved apart to at least `gap`, around where they were, in their order."""
    order = np.argsort(heights, kind="stable")
    placed = np.array(heights, dtype=float)
    for lower, upper in itertools.pairwise(order):
        placed[upper] = max(placed[upper], placed[lower] + gap)
    return placed - (placed - heights).mean()


def literal(name: object) -> str:
    """A name as Matplotlib shows it letter for letter: between two dollars it would read mathematics."""
    return str(name).replace("$", r"\$")


def _class_colours(classes: Sequence[int]) -> dict[int, object]:
    if len(classes) <= len(_PALETTE):
        return dict(zip(classes, _PALETTE, strict=False))
    return dict(zip(classes, plt.get_cmap("viridis")(np.linspace(0, 1, len(classes))), strict=True))


def _label_classes(ax: Axes, classes: Sequence[np.ndarray], names: Sequence[str], bold: Sequence[bool]) -> None:
    """Above a compact class, so that the few points of a minority stay visible; inside a scattered one."""
    anchors, above = [], []
    for points in classes:
        middle = np.median(points, axis=0)
        scattered = np.ptp(points[:, 1]) > 0.25 * np.ptp(ax.dataLim.intervaly)
        nearest = points[np.linalg.norm(points - middle, axis=1).argmin()]
        anchors.append(nearest if scattered else (middle[0], points[:, 1].max()))
        above.append((0.0, 0.0 if scattered else 5.0))
    pixels = ax.transData.transform(anchors)
    wanted = pixels * 72 / ax.figure.dpi + above  # points of 1/72 inch
    sizes = np.array([(5.4 * len(name) + 4, 10.0) for name in names])  # 7 pt, with room for a change of layout
    for anchor, offset, shift, name, heavy in zip(
        anchors, above, _apart(wanted, sizes) - wanted, names, bold, strict=True
    ):
        ax.annotate(
            name,
            anchor,
            xytext=offset + shift,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7,
            fontweight="bold" if heavy else "normal",
            zorder=6,
            path_effects=[patheffects.withStroke(linewidth=1.8, foreground="white")],
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": "0.2", "shrinkA": 0, "shrinkB": 0}
            if np.linalg.norm(shift) > 6
            else None,
        )


def _apart(centres: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Centres (N, 2) of boxes moved until no two overlap: each pair by half of what it lacks, the shorter way."""
    placed = np.array(centres, dtype=float)
    for _ in range(500):
        moved = False
        for one, other in itertools.combinations(range(len(placed)), 2):
            between = placed[other] - placed[one]
            lacking = (sizes[one] + sizes[other]) / 2 - np.abs(between)
            if (lacking > 1e-6).all():
                way = int(lacking.argmin())
                step = math.copysign(lacking[way] / 2, between[way])
                placed[one, way] -= step
                placed[other, way] += step
                moved = True
        if not moved:
            break
    return placed


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


# --- the architecture, drawn in units of a tenth of an inch -----------------------------------------------------

_HEIGHT = 29.6
_MIDDLE, _UPPER, _LOWER = 15.5, 21.4, 6.3  # of the trunk and of the two last blocks
_CHAIN = 4.2  # how far above or below a chain of operations its side paths run
_INK = "0.15"
_TINY = 5.8  # points


def architecture(
    ax: Axes,
    layers: Mapping[str, pd.DataFrame],
    operations: Mapping[str, pd.DataFrame],
    image: Sequence[int],
    solver: str,
    start: str,
) -> Axes:
    """ResNet-18 and the DEQ as one picture: the encoder they share, both last blocks, the pooling and classifier they
    share.

    ax: the only axes of a figure of TWO_COLUMN by 2.96 inches; they fill it and lose their frame.
    layers: for "explicit" and "deq" the table of `nclib.layer_table`: stage, output, parameters.
    operations: for both the table of `nclib.block_operations`: operation, joins.
    image: (C, H, W) of the input. solver: what is written into the loop. start: of the solve, "x" or "zeros".
    Sizes, names and counts are those of the tables; slabs are as high as their maps and as thick as their channels, on
    logarithmic scales.
    Returns: ax. Raises: ValueError where the networks differ in more than their last block.
    """
    shared = [frame[frame["stage"] != "last block"].drop(columns="evaluations") for frame in layers.values()]
    if not all(frame.reset_index(drop=True).equals(shared[0].reset_index(drop=True)) for frame in shared):
        raise ValueError("the networks differ in more than their last block, so they cannot share a drawing")
    table = layers["explicit"].set_index("stage")
    ax.set_position((0, 0, 1, 1))
    ax.set(xlim=(0, 10 * TWO_COLUMN), ylim=(0, _HEIGHT))
    ax.axis("off")
    stages = table.iloc[: table.index.get_loc("last block")]
    end = _draw_encoder(ax, stages, image)
    fork, left, right, merge = end + 2.0, end + 3.4, 55.3, 56.7
    _path(ax, [(end, _MIDDLE), (fork, _MIDDLE)])
    ax.text(fork + 0.5, _MIDDLE, f"x  {stages['output'].iloc[-1]}", va="center", fontsize=_TINY)
    for name, height, below in (("explicit", _UPPER, 3.9), ("deq", _LOWER, 5.6)):
        parameters = layers[name].set_index("stage").loc["last block", "parameters"]
        text = f"{_style(name).label}, last block: {_amount(parameters)} parameters"
        _panel(ax, left, right, height, below, text, _style(name).colour)
        if name == "deq":
            _path(ax, [(fork, _MIDDLE), (fork, height - _CHAIN), (left + 0.8, height - _CHAIN)])
            _draw_loop(ax, operations[name], left, right, height, solver, start)
        else:
            _path(ax, [(fork, _MIDDLE), (fork, height), (left + 0.8, height)])
            _draw_chain(ax, operations[name], left + 0.8, right, height, height, {"x": _CHAIN})
        _path(ax, [(right, height), (merge, height), (merge, _MIDDLE)])
    ax.text(merge + 0.4, _UPPER, "f(x)", va="center", style="italic")
    ax.text(merge + 0.4, _LOWER, "z* = f(z*, x)", va="center", style="italic", fontsize=7)
    _draw_head(ax, table, merge)
    return ax


def _amount(number: float) -> str:
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number / 1e3:.1f} k" if number >= 1e3 else f"{number:.0f}"


def _path(ax: Axes, points: Sequence[tuple[float, float]], tip: bool = False, **style: object) -> None:
    style = {"color": _INK, "linewidth": 0.8, "zorder": 2, "solid_joinstyle": "round"} | style
    ax.plot(*zip(*points, strict=True), **style)
    if tip:
        (x0, y0), (x1, y1) = points[-2:]
        size = math.hypot(x1 - x0, y1 - y0)
        dx, dy = 0.85 * (x1 - x0) / size, 0.85 * (y1 - y0) / size
        corners = [(x1, y1), (x1 - dx - 0.4 * dy, y1 - dy + 0.4 * dx), (x1 - dx + 0.4 * dy, y1 - dy - 0.4 * dx)]
        ax.add_patch(Polygon(corners, facecolor=style["color"], linewidth=0, zorder=5))


def _draw_encoder(ax: Axes, stages: pd.DataFrame, image: Sequence[int]) -> float:
    """The input and the stages; returns where they end."""
    shapes = [tuple(image), *(tuple(map(int, text.split("×"))) for text in stages["output"])]
    largest = max(max(shape[1:]) for shape in shapes)
    x, end = 0.5, 0.0
    for title, shape, count in zip(["image", *stages.index], shapes, [None, *stages["parameters"]], strict=True):
        side = 1.6 + 6.4 * math.log2(1 + shape[1]) / math.log2(1 + largest)
        thick, deep = 0.5 + 0.22 * math.log2(shape[0]), 0.16 * side
        middle = x + 2.05
        if end:
            _path(ax, [(end, _MIDDLE), (middle - (thick + deep) / 2, _MIDDLE)], tip=True)
        _slab(ax, middle, side, thick, deep)
        end = middle + (thick + deep) / 2
        name, _, detail = title.partition(", ")
        ax.text(middle, _MIDDLE + 6.6, name, ha="center", va="bottom", fontsize=6.5)
        ax.text(middle, _MIDDLE + 6.4, detail, ha="center", va="top", fontsize=_TINY)
        channels, *maps = map(str, shape)
        ax.text(middle, _MIDDLE - 5.3, f"{channels}\n{'×'.join(maps)}", ha="center", va="top", fontsize=_TINY)
        amount = "" if count is None else _amount(count)
        ax.text(middle, _MIDDLE - 7.7, amount, ha="center", va="top", fontsize=_TINY, style="italic", color="0.3")
        x += 4.1
    note = "Below each stage: channels, maps, parameters."
    ax.text(0.9, _MIDDLE - 10.2, note, va="top", fontsize=_TINY, color="0.3")
    return end


def _slab(ax: Axes, middle: float, side: float, thick: float, deep: float) -> None:
    """A cuboid whose front face is `thick` wide and `side` high."""
    left, bottom = middle - (thick + deep) / 2, _MIDDLE - (side + deep) / 2
    right, top = left + thick, bottom + side
    faces = {
        "0.90": [(left, bottom), (right, bottom), (right, top), (left, top)],
        "0.97": [(left, top), (right, top), (right + deep, top + deep), (left + deep, top + deep)],
        "0.72": [(right, bottom), (right + deep, bottom + deep), (right + deep, top + deep), (right, top)],
    }
    for shade, corners in faces.items():
        ax.add_patch(Polygon(corners, facecolor=shade, edgecolor=_INK, linewidth=0.6, joinstyle="round", zorder=3))


def _panel(ax: Axes, left: float, right: float, height: float, below: float, text: str, colour: str) -> None:
    rounded = "round,pad=0,rounding_size=0.7"
    box = FancyBboxPatch((left, height - below), right - left, 5.8 + below, boxstyle=rounded, zorder=0)
    box.set(facecolor="0.965", edgecolor=colour, linewidth=1.0)
    ax.add_patch(box)
    ax.text(left + 0.3, height + 6.1, text, fontsize=6.5, color=colour, va="bottom", fontweight="bold")


def _draw_chain(
    ax: Axes,
    operations: pd.DataFrame,
    left: float,
    right: float,
    height: float,
    source: float,
    joins: Mapping[str, float],
) -> None:
    """Operations from left to right at a height; what joins an addition runs `joins[name]` above it (or below), x from
    the height `source` at the left end, z from the chain's own."""
    room = (right - left) / (len(operations) + 0.6)
    _path(ax, [(left, height), (right, height)], zorder=1)
    for i, row in enumerate(operations.itertuples()):
        x = left + room * (i + 0.9)
        if row.operation == "add":
            ax.add_patch(Circle((x, height), 0.8, facecolor="white", edgecolor=_INK, linewidth=0.7, zorder=4))
            _path(ax, [(x - 0.45, height), (x + 0.45, height)], zorder=5)
            _path(ax, [(x, height - 0.45), (x, height + 0.45)], zorder=5)
            rise = joins[row.joins]
            begin = (left, source) if row.joins == "x" else (left + 0.4, height)
            way = [begin, (begin[0], height + rise), (x, height + rise), (x, height + math.copysign(0.8, rise))]
            _path(ax, way, tip=True)
        else:
            shade = "0.80" if row.operation.startswith("conv") else "white"
            box = Rectangle((x - 0.85, height - 2.9), 1.7, 5.8, facecolor=shade, edgecolor=_INK, linewidth=0.7)
            box.set_zorder(4)
            ax.add_patch(box)
            ax.text(x, height, row.operation, rotation=90, ha="center", va="center", fontsize=6, zorder=5)


def _draw_loop(
    ax: Axes, operations: pd.DataFrame, left: float, right: float, height: float, solver: str, start: str
) -> None:
    """An equilibrium: the cell's operations, x joining from below, and the way back through the solver above."""
    state, back, level = left + 2.0, right - 1.3, height + _CHAIN
    _draw_chain(ax, operations, state, back, height, height - _CHAIN, {"x": -_CHAIN, "z": 3.3})
    _path(ax, [(left, height - _CHAIN), (state, height - _CHAIN)])
    _path(ax, [(back, height), (right, height)])
    _path(ax, [(back, height), (back, level), (state, level), (state, height)])
    _path(ax, [(state, height + 1.2), (state, height + 0.1)], tip=True)
    ax.add_patch(Circle((state, height), 0.25, facecolor=_INK, zorder=5))
    ax.text(state + 0.7, height + 0.4, "z", ha="left", va="bottom", style="italic", fontsize=7)
    if start == "x":
        _path(ax, [(state, height - _CHAIN), (state, height)], linestyle=(0, (1.5, 1.2)))
    ax.text(state - 0.3, height - 2.1, f"start {start}", ha="right", va="center", fontsize=5, rotation=90)
    middle = (state + back) / 2
    ax.text(middle, height - _CHAIN - 0.3, "input injection", ha="center", va="top", fontsize=5)
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": _INK, "linewidth": 0.7}
    ax.text(middle, level, solver, ha="center", va="center", fontsize=_TINY, bbox=box, zorder=4)


def _draw_head(ax: Axes, table: pd.DataFrame, left: float) -> None:
    for x, title in ((59.6, "average\npool"), (64.6, "linear,\nno bias")):
        box = Rectangle((x - 1.2, _MIDDLE - 3), 2.4, 6, facecolor="0.90", edgecolor=_INK, linewidth=0.7)
        box.set_zorder(3)
        ax.add_patch(box)
        ax.text(x, _MIDDLE, title, ha="center", va="center", fontsize=6, zorder=4, rotation=90)
    _path(ax, [(left, _MIDDLE), (58.4, _MIDDLE)], tip=True)
    _path(ax, [(60.8, _MIDDLE), (63.4, _MIDDLE)], tip=True)
    ax.text(62.1, _MIDDLE + 0.5, "h", ha="center", va="bottom", style="italic", fontsize=7)
    ax.text(62.1, _MIDDLE - 0.6, table.loc["pooling", "output"], ha="center", va="top", fontsize=_TINY)
    amount = _amount(table.loc["classifier", "parameters"])
    ax.text(64.6, _MIDDLE - 3.4, amount, ha="center", va="top", fontsize=_TINY, style="italic", color="0.3")
    ax.text(64.6, _MIDDLE + 3.4, f"K = {table.loc['classifier', 'output']}", ha="center", va="bottom", fontsize=_TINY)
