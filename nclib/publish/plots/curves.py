"""Lines: metrics over epochs, layers and sweeps, small models side by side, residuals, one legend for all."""

import difflib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from nclib.publish.plots.style import (
    _MARKERS,
    _MARKS_PER_CURVE,
    _PALETTE,
    GROUP_STYLE,
    KIND_COLOURS,
    METHOD_STYLE,
    SPLIT_LINE,
    Style,
    _ordered,
    _PlainLog,
    _style,
    _styles,
)


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

    Parameters
    ----------
    frame : tidy frame of one setting (one data set, K_A and R); each (model, split, seed, epoch) at most once.
    metric : which one, by the name in the column `metric`
    label : what the axis calls it.
    split : one or several; solid is test, dashed is train.
    models : which, and in which order; None means all there are, in the order of MODEL_STYLE. Names that are not in
        MODEL_STYLE, such as layers of a network of your own, take the next colour and marker and come last.
    log : logarithmic axis; values <= 0 are not drawn there.
    ideal : a thin dotted line at the value of complete collapse.
    printed : (model, value, std or None) as the paper prints it: a hollow marker with its error bar right of the axes,
        in the model's colour, the number beside it. The axis is widened to hold it.
    printed_range : first and last tick of the paper's own axis, in the units of this axis, as a grey bracket at the
        right edge. It bounds what the paper shows, not what it measured. Where it reaches beyond this axis its end is
        open; a triangle points to one that lies outside altogether.

    Returns
    -------
    ax. The band is the sample standard deviation (ddof = 1); one seed has none. What is not finite leaves a gap.

    Raises
    ------
    ValueError
        For a metric, split or model that is not in the frame (the nearest name is suggested), for a frame that lacks a
        column or mixes settings, and for an ideal value <= 0 on a logarithmic axis.
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

    Parameters
    ----------
    rows : seed, split, at (the number), value, and the column `by`; one quantity, each point and seed at most once.
    by : "method" or "group", whose values are drawn in the styles of METHOD_STYLE and GROUP_STYLE; line style is the
        split, as in `curves`.
    label, across : what the axes call the quantity and the number
    log, log_across : logarithmic ones. A sweep over tolerances, all below 1, is logarithmic and runs from coarse to
        fine.

    Returns
    -------
    ax.

    Raises
    ------
    ValueError
        For a frame without rows, a name without a style, or a point given twice.
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


def arms(rows: pd.DataFrame, ax: Axes, *, label: str, across: str, log: bool = True, log_across: bool = False) -> Axes:
    """Small models side by side: mean over seeds with a band from the least to the largest seed.

    Parameters
    ----------
    rows : model (its name in the legend), kind (a key of KIND_COLOURS), seed, at, value; one point for each model, seed
        and at. Models are drawn in the order of their first row; FNNs are dashed.
    label, across : what the axes call value and at
    log, log_across : logarithmic ones. On a logarithmic axis the mean is geometric and values that are not positive are
        left out.

    Returns
    -------
    ax.

    Raises
    ------
    ValueError
        For a frame without rows, an unknown kind, or a point given twice.
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


def figure_legend(fig: Figure, axes: Iterable[Axes], ncols: int | None = None) -> Legend:
    """One legend below the figure for all panels: every label once, what is drawn first, then splits, the ideal value
    and what the paper prints.

    Parameters
    ----------
    axes : the panels whose curves it explains
    ncols : None fills the width of the figure.
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


def cobweb(grid: np.ndarray, values: np.ndarray, path: Sequence[float], ax: Axes) -> Axes:
    """A scalar iteration as a walk between the graph of f and the diagonal, where the fixed points are.

    Parameters
    ----------
    grid, values : (N,) arguments and f of them.
    path : z_0, z_1 = f(z_0), …; what is not finite is not drawn.

    Returns
    -------
    ax, square, showing the range of the grid in both directions.
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

    Parameters
    ----------
    residuals : name -> (T,), after 1, 2, … evaluations. A key of METHOD_STYLE is drawn in its style; any other name
        takes the next colour and marker. What is not positive and finite leaves a gap.
    tol : a dotted line where the method may stop.

    Returns
    -------
    ax.
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


def _curve(
    ax: Axes,
    values: pd.DataFrame,
    style: Style,
    line: str,
    log: bool,
    every: tuple[int, int] | None = None,
    width: float | None = None,
) -> None:
    """A mean curve with its band.

    Parameters
    ----------
    values : one row per epoch, one column per seed; what is not finite leaves a gap.
    every : first and each further point with a marker
    width : of the line, in points.
    """
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
    _legend_entry(ax, "paper: range of its axis", **grey)


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
