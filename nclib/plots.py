"""How figures look: one style, one colour for each network, and the few kinds of picture that the
papers need.

Functions take tidy frames or arrays and an axes, and return the axes. Nothing here trains, reads or
saves. Colour and marker say which network it is, the line style which split; a band is one standard
deviation over seeds. Everything can be told apart in grey.
"""

from __future__ import annotations

import base64
import html
import io
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator, NullLocator

if TYPE_CHECKING:
    from IPython.display import HTML

# --- style ----------------------------------------------------------------------------------------

ONE_COLUMN = 3.25
"""Width of a figure of one column, in inches."""
TWO_COLUMN = 6.75
"""Width of a figure of two columns, in inches."""

PALETTE = (
    *("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc"),
    *("#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"),
)
"""Seaborn's "colorblind"."""


class Style(NamedTuple):
    """How a network is drawn: colour, marker, and its name for readers."""

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

_RC_PARAMS = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.linewidth": 0.6,
    "xtick.labelsize": 7,
    "xtick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.labelsize": 7,
    "ytick.major.width": 0.6,
    "ytick.minor.width": 0.4,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "figure.figsize": (ONE_COLUMN, 2.4),
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
}


def use_style() -> None:
    """Set the style of this project for all figures drawn from here on.

    8 pt, seaborn's colour-blind palette, no frame at top and right, constrained layout. Settings
    of your own (a ``matplotlibrc``) are put aside, so that figures look the same everywhere.
    Sentences in tables of a notebook are shown whole.
    """
    mpl.rcdefaults()
    mpl.rcParams.update(_RC_PARAMS)
    pd.set_option("display.max_colwidth", None)


def styles_of(names: Iterable[str], known: Mapping[str, Style] = MODEL_STYLE) -> dict[str, Style]:
    """A style for every name: first those that are known, in their order, then the others in turn.

    Parameters
    ----------
    names : of networks, methods, …
    known : MODEL_STYLE, METHOD_STYLE or GROUP_STYLE
    """
    names = list(names)
    colours = itertools.cycle((PALETTE[0], PALETTE[2], PALETTE[4], PALETTE[9]))
    markers = itertools.cycle("vDPX")
    styles = {}
    for name, style in known.items():
        if name in names:
            styles[name] = style
    for name in names:
        if name not in known:
            styles[name] = Style(next(colours), next(markers), str(name))
    return styles


def _number(value: float) -> str:
    """A number on an axis, with a minus sign."""
    return f"{value:g}".replace("-", "−")


def plain_log(ax: Axes, sizes: Sequence[float] = ()) -> Axes:
    """Logarithmic y axis, and x axis where sizes are given, with 0.1 and 200 instead of powers of
    ten.

    Parameters
    ----------
    ax : to be changed
    sizes : numbers along x, each with its own tick
    """

    def label(value: float, position: int | None) -> str:
        low, high = sorted(ax.get_ylim())
        if high > 100 * low:
            digits = "1"
        elif high > 3 * low:
            digits = "125"
        else:
            digits = "123456789"
        return _number(value) if f"{value:e}"[0] in digits else ""

    ax.set_yscale("log", nonpositive="mask")
    ax.yaxis.set_major_formatter(label)
    ax.yaxis.set_minor_formatter(label)
    if len(sizes):
        ax.set_xscale("log")
        ax.set_xticks(sizes, [_number(size) for size in sizes])
        ax.xaxis.set_minor_locator(NullLocator())
    return ax


def figure_legend(fig: Figure, axes: Iterable[Axes], ncols: int | None = None) -> Legend:
    """One legend below the figure for all panels: every label once, those of the paper last.

    Parameters
    ----------
    fig : which has the panels
    axes : the panels whose curves it explains
    ncols : columns of the legend; None fills the width of the figure
    """
    headings = ("method", "group", "split")  # which seaborn adds
    ours = {}
    papers = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries = papers if label.startswith("paper") else ours
            if label not in headings:
                entries.setdefault(label, handle)
    entries = ours | papers
    if ncols is None:
        fitting = max(1, int(fig.get_figwidth() / 1.35))  # inches that the longest name takes
        rows = math.ceil(len(entries) / fitting)
        ncols = math.ceil(len(entries) / rows)
    return fig.legend(entries.values(), entries, loc="outside lower center", ncols=ncols)


# --- lines ----------------------------------------------------------------------------------------

_MARKS_PER_CURVE = 5


def curves(
    frame: pd.DataFrame,
    metric: str,
    ax: Axes,
    split: str = "test",
    *,
    label: str | None = None,
    log: bool = False,
    ideal: float | None = None,
) -> Axes:
    """A metric against the epoch: mean over seeds, with a band of ± one standard deviation.

    Parameters
    ----------
    frame : tidy frame of one setting (one data set, K_A and R), as `ensure_runs` returns it
    metric : by its name in the column ``metric``
    ax : to draw in
    split : "test" (solid) or "train" (dashed)
    label : what the axis calls the metric
    log : logarithmic axis; values ≤ 0 are not drawn there
    ideal : a thin dotted line at the value of complete collapse

    Returns
    -------
    Axes
        The band is the sample standard deviation (ddof = 1); one seed has none. What is not finite
        leaves a gap.

    Raises
    ------
    ValueError
        For a metric that the frame lacks, and for a frame that mixes settings.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import nclib as nc
    >>> frame = nc.ensure_runs(nc.experiment("fig3", "smoke"))
    >>> one = frame[frame["setting"] == "balanced"]
    >>> ax = nc.plots.curves(one, "accuracy_balanced", plt.figure().subplots())
    >>> ax.get_xlabel()
    'epoch'
    """
    rows = frame[(frame["metric"] == metric) & (frame["split"] == split)]
    if rows.empty:
        raise ValueError(f"no row has the metric {metric!r} and the split {split!r}")
    if rows.duplicated(["model", "seed", "epoch"]).any():
        raise ValueError(
            f"a model, seed and epoch have several values of {metric!r}, as where a frame mixes "
            "settings: draw one of them, such as frame[frame['setting'] == 'balanced']"
        )
    if log:
        plain_log(ax)
    drawn = [line.get_label() for line in ax.lines]  # another split may be drawn already
    for name, style in styles_of(rows["model"].unique()).items():
        values = rows[rows["model"] == name].pivot(index="epoch", columns="seed", values="value")
        values = values.replace([np.inf, -np.inf], np.nan)
        mean = values.mean(axis="columns", skipna=False)
        std = values.std(axis="columns", skipna=False)
        low = mean - std
        if log:  # the band ends where the axis has no room for it
            low = low.where(low > 0, values.min(axis="columns"))
        _curve(ax, mean, style, linestyle=SPLIT_LINE[split])
        ax.fill_between(mean.index, low, mean + std, color=style.colour, alpha=0.2, linewidth=0)
        if style.label not in drawn:
            ax.plot([], [], label=style.label, color=style.colour, marker=style.marker)
    ax.plot([], [], label=split, color="0.3", linestyle=SPLIT_LINE[split])
    if ideal is not None:
        _dotted(ax, ideal, "ideal")
    ax.set(xlabel="epoch", ylabel=metric if label is None else label)
    _whole_numbers(ax)
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
    """A quantity against the number that a sweep goes over: mean over seeds, with a band of ± one
    standard deviation.

    Parameters
    ----------
    rows : seed, split, at (the number), value, and the column ``by``; one quantity, each point and
        seed at most once
    by : "method" or "group", whose values are drawn in the colours of METHOD_STYLE and
        GROUP_STYLE, and other values in the next colours; line style is the split
    ax : to draw in
    label, across : what the axes call the quantity and the number
    log, log_across : logarithmic axes. A sweep over tolerances, all below 1, runs from coarse to
        fine.
    """
    import seaborn as sns  # here: with scipy.stats it takes a second of each notebook

    known = {"method": METHOD_STYLE, "group": GROUP_STYLE}[by]
    labels = {}
    colours = {}
    for name, style in styles_of(rows[by].unique(), known).items():
        labels[name] = style.label
        colours[style.label] = style.colour
    widths = [3.2, 2.1] + [1.0] * len(colours)  # lines may agree: broad, then slender
    sns.lineplot(
        rows.assign(**{by: rows[by].map(labels)}),
        x="at",
        y="value",
        hue=by,
        hue_order=list(colours),
        palette=colours,
        size=by,
        sizes=dict(zip(colours, widths, strict=False)),
        style="split",
        dashes={"test": "", "train": (4, 1.5), "steps": (1, 1)},
        errorbar="sd",
        err_kws={"alpha": 0.08},
        ax=ax,
    )
    ax.get_legend().remove()
    if log:
        plain_log(ax)
    ax.set(xscale="log" if log_across else "linear", xlabel=across, ylabel=label)
    ax.xaxis.set_major_formatter(lambda value, position: _number(value))
    if rows["at"].max() < 1:
        ax.invert_xaxis()
    return ax


_EQUILIBRIUM_COLOURS = {"deq": "C3", "self_loop_deq": "C3", "unrolled_deq": "C4"}
_OTHER_COLOURS = ("C0", "C2", "C9", "0.3", "0.6")


def arms(
    rows: pd.DataFrame, ax: Axes, *, label: str, across: str, log_across: bool = False
) -> Axes:
    """Small models side by side: geometric mean over seeds, with a band from the least to the
    largest seed.

    Parameters
    ----------
    rows : model (its name in the legend), kind, seed, at, value; one point for each model, seed and
        at. Equilibrium models keep their colours, the others take five in turn; every model has
        the next of six markers; kind "fnn" is dashed.
    ax : to draw in
    label, across : what the axes call value and at
    log_across : a logarithmic x axis too. Values are on a logarithmic axis, and those that are not
        positive are left out.
    """
    import seaborn as sns

    others = itertools.cycle(_OTHER_COLOURS)
    palette = {}
    dashes = {}
    for name, kind in rows.groupby("model", sort=False)["kind"].first().items():
        if kind in _EQUILIBRIUM_COLOURS:
            palette[name] = _EQUILIBRIUM_COLOURS[kind]
        else:
            palette[name] = next(others)
        dashes[name] = (3, 1.5) if kind == "fnn" else ""
    ax.set(xscale="log" if log_across else "linear", yscale="log")
    sns.lineplot(
        rows[rows["value"] > 0],
        x="at",
        y="value",
        hue="model",
        palette=palette,
        style="model",
        dashes=dashes,
        markers=dict(zip(palette, itertools.cycle("osD^vP"), strict=False)),
        markevery=max(1, rows["at"].nunique() // _MARKS_PER_CURVE),
        errorbar=("pi", 100),
        ax=ax,
    )
    ax.get_legend().remove()
    ax.set(xlabel=across, ylabel=label)
    return ax


def traces(residuals: Mapping[str, Sequence[float]], ax: Axes, tol: float | None = None) -> Axes:
    """Residual against evaluations of f, one line a method, on a logarithmic axis.

    Parameters
    ----------
    residuals : name to (T,), after 1, 2, … evaluations. A key of METHOD_STYLE is drawn in its
        style; any other name takes the next colour and marker. What is not positive and finite
        leaves a gap.
    ax : to draw in
    tol : a dotted line where the method may stop
    """
    for name, style in styles_of(residuals, METHOD_STYLE).items():
        values = pd.Series(np.asarray(residuals[name], dtype=float))
        values.index += 1
        _curve(ax, values.where(np.isfinite(values) & (values > 0)), style, label=style.label)
    if tol is not None:
        _dotted(ax, tol, "tolerance")
    ax.set_yscale("log")
    _whole_numbers(ax)
    ax.set(xlabel="evaluations of f", ylabel="relative residual")
    return ax


def _curve(ax: Axes, values: pd.Series, style: Style, **line: Any) -> None:
    """A line with a few markers, evenly along x."""
    places = np.linspace(values.index[0], values.index[-1], _MARKS_PER_CURVE)
    marked = values.index.get_indexer(places, method="nearest")
    ax.plot(values.index, values, color=style.colour, marker=style.marker, markevery=marked, **line)


def _dotted(ax: Axes, value: float, label: str) -> None:
    ax.axhline(value, color="black", linestyle=":", linewidth=0.8, zorder=1, label=label)


def _whole_numbers(ax: Axes) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))


def printed_values(ax: Axes, printed: pd.DataFrame, data: str = "CIFAR-10") -> Axes:
    """Values of the paper beside the last epoch of `curves`: hollow markers right of the axes, in
    the colours of the networks, with their numbers.

    The axis is widened to hold them. The lowest number is below the height of its marker, the
    others above.

    Parameters
    ----------
    ax : which has the curves
    printed : model, mean and std, a row for each network, in the units of the axis
    data : the paper's data set, as the legend names it
    """
    lowest = printed["mean"].min()
    ax.dataLim.update_from_data_y(printed["mean"], ignore=False)
    ax.autoscale_view()
    outside = {"transform": ax.get_yaxis_transform(), "clip_on": False}  # x in axes, y in data
    right = 1.05 + 0.05 * len(printed)
    rows = zip(printed["model"], printed["mean"], printed["std"], strict=True)
    for position, (model, value, std) in enumerate(rows):
        style = MODEL_STYLE[model]
        x = 1.05 + 0.05 * position
        ax.plot([1.0, x], [value, value], color=style.colour, linewidth=0.6, **outside)
        ax.errorbar(
            [x],
            [value],
            yerr=std,
            color=style.colour,
            marker=style.marker,
            markerfacecolor="white",
            markersize=3.5,
            elinewidth=0.8,
            **outside,
        )
        below = value == lowest and len(printed) > 1
        ax.text(
            right,
            value,
            f"{value:.4g}",
            fontsize=7,
            color=style.colour,
            va="top" if below else "bottom",
            **outside,
        )
    name = f"paper, {data}: accuracy"
    ax.plot([], [], label=name, color="0.3", linewidth=0.6, marker="o", markerfacecolor="white")
    return ax


def printed_ticks(ax: Axes, ticks: tuple[float, float], data: str = "CIFAR-10") -> Axes:
    """A grey bracket at the right edge from the first to the last tick of the paper's own axis.

    It bounds what the paper shows, not what it measured. The axis is widened to hold it.

    Parameters
    ----------
    ax : which has the curves
    ticks : first and last, in the units of the axis
    data : the paper's data set, as the legend names it
    """
    ax.plot(
        [1.0, 1.0],
        ticks,
        marker="_",
        color="0.6",
        label=f"paper, {data}: ends of its axis",
        zorder=1,
        transform=ax.get_yaxis_transform(),
        clip_on=False,
    )
    return ax


# --- matrices, embeddings, intervals --------------------------------------------------------------

_READABLE_CLASSES = 20
"""Classes of which each can have its name beside its points or its row."""
_HALO = [patheffects.withStroke(linewidth=1.8, foreground="white")]


def cosine_gram(vectors: np.ndarray, centred: bool) -> np.ndarray:
    """Cosines (K, K) between the rows of a matrix, after subtracting their mean if ``centred``.

    Ideal: a simplex ETF has 1 on the diagonal and −1/(K−1) elsewhere, when centred.

    Parameters
    ----------
    vectors : (K, d)
    centred : whether the mean of the rows is subtracted first
    """
    from sklearn.metrics.pairwise import cosine_similarity

    vectors = np.asarray(vectors, dtype=float)
    if centred:
        vectors = vectors - vectors.mean(axis=0)
    return cosine_similarity(vectors)


def gram(
    matrix: np.ndarray,
    ax: Axes,
    majority: int | None = None,
    *,
    span: float,
    classes: Sequence[object] | None = None,
    colourbar: bool = True,
) -> Axes:
    """A matrix of cosines between class means or classifiers, in colours symmetric about −1/(K−1).

    Parameters
    ----------
    matrix : (K, K), classes in the order of the axes, majority classes first
    ax : to draw in
    majority : number of majority classes; lines separate them from the minority ones
    span : distance from the centre to full colour, one for all panels that are compared
    classes : the name or number of each row, for instance where rows were reordered to bring the
        majority first
    colourbar : whether it has one beside it
    """
    import seaborn as sns

    matrix = np.asarray(matrix, dtype=float)
    centre = -1 / (len(matrix) - 1)
    if len(matrix) > _READABLE_CLASSES:
        ticks: Any = 20  # one of twenty
    elif classes is None:
        ticks = range(len(matrix))
    else:
        ticks = list(classes)
    sns.heatmap(
        matrix,
        ax=ax,
        cmap="RdBu_r",
        vmin=centre - span,
        vmax=centre + span,
        square=True,
        cbar=False,
        xticklabels=ticks,
        yticklabels=ticks,
    )
    ax.tick_params(length=0)
    ax.tick_params(axis="y", labelrotation=0)
    if majority is not None and 0 < majority < len(matrix):
        ax.axhline(majority, color="black", linewidth=0.8)
        ax.axvline(majority, color="black", linewidth=0.8)
    ax.set(xlabel="class", ylabel="class")
    if colourbar:
        low = max(centre - span, -1)
        high = min(centre + span, 1)
        beside = ax.inset_axes((1.04, 0, 0.05, 1))
        extend = "max" if high < 1 else "neither"
        bar = ax.figure.colorbar(ax.collections[0], beside, label="cosine", extend=extend)
        bar.ax.set(frame_on=False, ylim=(low, high))  # the colours go on where no cosine is
        ticks = [low, centre, high]
        bar.set_ticks(ticks, labels=[f"{tick:.2g}".replace("-", "−") for tick in ticks])
    return ax


def embed(features: np.ndarray, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """t-SNE of features (N, d) in the plane, (N, 2), starting from the principal components.

    The result is the same for the same seed and number of threads. Distances between clusters and
    their sizes mean nothing in such a picture. Fewer than four different points, such as those of a
    network that gives every image the same features, have no t-SNE: a warning says so, and their
    principal components are returned.

    Parameters
    ----------
    features : (N, d)
    perplexity : number of neighbours, roughly; lowered where N is small
    seed : of scikit-learn's ``TSNE``

    Raises
    ------
    ValueError
        For features that are not finite.
    """
    from sklearn.manifold import TSNE

    single = np.asarray(features, dtype=np.float32)  # t-SNE compares distances of this precision
    if not np.isfinite(single).all():
        raise ValueError("t-SNE needs finite features, and these hold NaN or infinity")
    different = len(np.unique(single, axis=0))
    if different < 4:
        warnings.warn(
            f"{len(features)} points, {different} of them different, have no t-SNE: it takes four "
            "different points. Drawn are their principal components",
            RuntimeWarning,
            stacklevel=2,
        )
        return _principal_components(single)
    perplexity = min(perplexity, (len(features) - 1) / 3)
    tsne = TSNE(init="pca", perplexity=perplexity, random_state=seed)
    return tsne.fit_transform(features.astype(np.float64))


def _principal_components(features: np.ndarray) -> np.ndarray:
    """The first two principal components of features (N, d), as (N, 2); 0 where there are none."""
    centred = features - features[:1]  # equal rows become exactly 0
    centred = centred - centred.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(features), 2))
    components = centred @ directions[:2].T
    points[:, : components.shape[1]] = components
    return points


def embedding(
    points: np.ndarray,
    labels: np.ndarray,
    ax: Axes,
    minority: Iterable[int] = (),
    *,
    class_names: Sequence[str] | None = None,
) -> Axes:
    """Points of a planar embedding, one colour per class; minority classes are crosses.

    An embedding has no units, so the axes carry no ticks. Where all points are equal, the picture
    says so.

    Parameters
    ----------
    points : (N, 2)
    labels : (N,) class numbers
    ax : to draw in
    minority : the class numbers that are minority
    class_names : written at each class (the number where None); nothing is written where there are
        more than 20 classes, whose names would cover the points
    """
    points = np.asarray(points, dtype=float)
    labels = np.asarray(labels)
    minority = {int(k) for k in minority}
    classes = [int(k) for k in np.unique(labels)]
    colours: Any = PALETTE
    if len(classes) > len(PALETTE):
        colours = mpl.colormaps["viridis"](np.linspace(0, 1, len(classes) + 2)[1:-1])
    for k in sorted(classes, key=lambda k: k in minority):  # few minority points: drawn on top
        x, y = points[labels == k].T
        colour = [colours[classes.index(k)]]
        if k in minority:
            ax.scatter(x, y, color=colour, marker="x", s=8, linewidths=0.5)
        else:
            ax.scatter(x, y, color=colour, s=5, linewidths=0, alpha=0.7)
    named = classes if len(classes) <= _READABLE_CLASSES else []
    for k in named:
        for zorder, halo in ((5, _HALO), (6, None)):  # no halo over the name of another class
            ax.annotate(
                str(k) if class_names is None else class_names[k],
                np.median(points[labels == k], axis=0),
                (0, 4),
                textcoords="offset points",
                fontsize=7,
                fontweight="bold" if k in minority else "normal",
                ha="center",
                va="bottom",
                zorder=zorder,
                path_effects=halo,
            )
    if len(points) > 1 and (points == points[0]).all():
        sentence = f"all {len(points)} points are equal"
        ax.text(0.5, 0.25, sentence, ha="center", transform=ax.transAxes)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    if minority:
        ax.scatter([], [], marker="o", s=12, color="0.35", label="majority class")
        label = "minority class, bold" if named else "minority class"
        ax.scatter([], [], marker="x", s=12, color="0.35", label=label)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, handletextpad=0.1)
    return ax


def forest(
    rows: pd.DataFrame, ax: Axes, *, label: str, names: Sequence[str], models: bool = True
) -> Axes:
    """Values with their intervals, one below the other: a dot and a bar value ± half for each row.

    Parameters
    ----------
    rows : value, half (NaN draws no bar), model, and row, which names the line of each. Several
        models on one line stand a little apart. A column note, where there is one, is written above
        the dots.
    ax : to draw in
    label : what the axis calls the value
    names : the lines from top to bottom; the same for panels that share the axis, whatever the
        order of their rows
    models : colour and marker by model, as elsewhere; False draws every row in the same way

    Returns
    -------
    Axes
        With a thin line at 0 where values are on both sides of it or ``models`` is False.
    """
    names = list(names)
    if models:
        styles = styles_of(rows["model"].unique())
        groups = [(style, rows[rows["model"] == name]) for name, style in styles.items()]
    else:
        groups = [(Style("0.15", "o", ""), rows)]
    apart = 0.16 if rows.groupby("row")["model"].nunique().max() > 1 else 0.0
    for place, (style, group) in enumerate(groups):
        shift = apart * (place - (len(groups) - 1) / 2)
        heights = np.array([names.index(name) for name in group["row"]]) + shift
        bars = None  # of no row, and none in the legend
        if group["half"].notna().any():
            bars = group["half"].fillna(0)
        ax.errorbar(
            group["value"],
            heights,
            xerr=bars,
            label=style.label or None,
            fmt=style.marker,
            color=style.colour,
            markersize=4,
            elinewidth=1,
            capsize=2,
        )
        if "note" in group:
            for value, height, note in zip(group["value"], heights, group["note"], strict=True):
                ax.annotate(
                    note,
                    (value, height),
                    xytext=(0, 4),
                    textcoords="offset points",
                    color="0.3",
                    fontsize=7,
                    ha="center",
                    va="bottom",
                    path_effects=_HALO,
                )
    low, high = ax.get_xlim()
    if not models or low < 0 < high:
        ax.axvline(0, color="black", linestyle=":", linewidth=0.8, zorder=1)
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.5, -0.5), xlabel=label)
    return ax


# --- in a notebook --------------------------------------------------------------------------------

_SCREEN_DPI = 96  # pixels an inch on a page; a picture holds twice as many


def live_progress(every: float = 0.5) -> Callable[[float, float, str], None]:
    """A ``progress(done, total, text)`` for `ensure_runs`: one line, updated in its place.

    An executed notebook keeps the last line only, and nothing where nothing was trained.

    Parameters
    ----------
    every : least seconds between updates
    """
    from IPython.display import DisplayHandle, Markdown

    started = time.monotonic()
    updated = -math.inf
    handle = None

    def show(done: float, total: float, text: str) -> None:
        nonlocal updated, handle
        now = time.monotonic()
        if now - updated < every and done < total:
            return
        updated = now
        line = Markdown(f"{done:.0f} of {total:.0f} runs, {now - started:.0f} s · {text}")
        if handle is None:
            handle = DisplayHandle()
            handle.display(line)
        else:
            handle.update(line)

    return show


def picture(fig: Figure, alt: str) -> HTML:
    """The figure as the value of a cell, with a text for readers who do not see it.

    It becomes an HTML image, the one form whose text JupyterLab, executed copies and the web site
    all keep. The figure is closed, so that it is not shown twice; it can still be saved.

    Parameters
    ----------
    fig : the figure
    alt : what is drawn and what one should see in it
    """
    from IPython.display import HTML

    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=2 * _SCREEN_DPI, metadata={"Software": None})
    plt.close(fig)
    data = base64.b64encode(buffer.getvalue()).decode()
    words = html.escape(" ".join(alt.split()))
    width = round(fig.get_figwidth() * _SCREEN_DPI)
    return HTML(f'<img src="data:image/png;base64,{data}" alt="{words}" width="{width}">')
