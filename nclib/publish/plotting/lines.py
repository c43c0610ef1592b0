"""Lines: metrics over epochs and sweeps, small models side by side, residuals, one legend for all."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator

from nclib.publish.numbers import minus
from nclib.publish.plotting.style import GROUP_STYLE, METHOD_STYLE, MODEL_STYLE, SPLIT_LINE, Style, plain_log, styles_of

_MARKS_PER_CURVE = 5
_DEQS = {"deq": "C3", "self_loop_deq": "C3", "unrolled_deq": "C4"}
_OTHERS = ("C0", "C2", "C9", "0.3", "0.6")


def curves(
    frame: pd.DataFrame,
    metric: str,
    ax: Axes,
    split: str = "test",
    *,
    label: str | None = None,
    log: bool = False,
    ideal: float | None = None,
    printed: Sequence[tuple[str, float, float | None]] = (),
    printed_range: tuple[float, float] | None = None,
) -> Axes:
    """A metric against the epoch: mean over seeds, with a band of ± one standard deviation over seeds.

    Parameters
    ----------
    frame : tidy frame of one setting (one data set, K_A and R); each (model, split, seed, epoch) at most once. Models
        are drawn in the order of MODEL_STYLE; others, such as layers of a network of your own, take the next colour and
        marker and come last.
    metric : which one, by the name in the column `metric`
    label : what the axis calls it.
    split : solid is test, dashed is train.
    log : logarithmic axis; values <= 0 are not drawn there.
    ideal : a thin dotted line at the value of complete collapse.
    printed : (model, value, std or None) as the paper prints it: a hollow marker with its error bar right of the axes,
        in the model's colour, the number beside it. The axis is widened to hold it.
    printed_range : first and last tick of the paper's own axis, in the units of this axis, as a grey bracket at the
        right edge. It bounds what the paper shows, not what it measured. The axis is widened to hold it.

    Returns
    -------
    ax. The band is the sample standard deviation (ddof = 1); one seed has none. What is not finite leaves a gap.

    Raises
    ------
    ValueError
        For a metric that the frame lacks, and for a frame that mixes settings.
    """
    rows = frame[(frame["metric"] == metric) & (frame["split"] == split)]
    if rows.empty:
        raise ValueError(f"no row has the metric {metric!r} and the split {split!r}")
    if log:
        plain_log(ax)
    _of_seeds(ax, rows, styles_of(rows["model"].unique()), split, log)
    if ideal is not None:
        ax.axhline(ideal, color="black", linestyle=":", linewidth=0.8, zorder=1, label="ideal")
    ax.set(xlabel="epoch", ylabel=metric if label is None else label)
    _whole_numbers(ax)
    if len(printed):
        _draw_printed(ax, printed)
    if printed_range is not None:
        look = {"marker": "_", "color": "0.6", "label": "paper, CIFAR-10: ends of its axis", "zorder": 1}
        ax.plot([1.0, 1.0], printed_range, transform=ax.get_yaxis_transform(), clip_on=False, **look)
    return ax


def sweep(
    rows: pd.DataFrame, by: str, ax: Axes, *, label: str, across: str, log: bool = False, log_across: bool = False
) -> Axes:
    """A quantity against the number that a sweep goes over: mean over seeds, with a band of ± one standard deviation.

    Parameters
    ----------
    rows : seed, split, at (the number), value, and the column `by`; one quantity, each point and seed at most once.
    by : "method" or "group", whose values are drawn in the colours of METHOD_STYLE and GROUP_STYLE; line style is the
        split.
    label, across : what the axes call the quantity and the number
    log, log_across : logarithmic ones. A sweep over tolerances, all below 1, runs from coarse to fine.

    Returns
    -------
    ax.
    """
    known = {"method": METHOD_STYLE, "group": GROUP_STYLE}[by]
    styles = {name: style for name, style in known.items() if (rows[by] == name).any()}
    named = rows.assign(**{by: rows[by].map({name: style.label for name, style in styles.items()})})
    colours = {style.label: style.colour for style in styles.values()}
    look = {"palette": colours, "style": "split", "dashes": {"test": "", "train": (4, 1.5), "steps": (1, 1)}}
    # lines may agree: the first is broad, the last slender
    look |= {"hue_order": list(colours), "size": by, "sizes": dict(zip(colours, (3.2, 2.1, 1.0), strict=False))}
    sns.lineplot(named, x="at", y="value", hue=by, errorbar="sd", err_kws={"alpha": 0.08}, ax=ax, **look)
    ax.get_legend().remove()
    if log:
        plain_log(ax)
    ax.set(xscale="log" if log_across else "linear", xlabel=across, ylabel=label)
    ax.xaxis.set_major_formatter(lambda x, _: minus(f"{x:g}"))
    if rows["at"].max() < 1:
        ax.invert_xaxis()
    return ax


def arms(rows: pd.DataFrame, ax: Axes, *, label: str, across: str, log_across: bool = False) -> Axes:
    """Small models side by side: mean over seeds with a band from the least to the largest seed.

    Parameters
    ----------
    rows : model (its name in the legend), kind, seed, at, value; one point for each model, seed and at. Equilibrium
        models keep their colours, the others take the next one; FNNs are dashed.
    label, across : what the axes call value and at
    log_across : a logarithmic one too. Values are on a logarithmic axis: their mean is geometric, and those that are
        not positive are left out.

    Returns
    -------
    ax.
    """
    kinds = rows.groupby("model", sort=False)["kind"].first()
    others = iter(_OTHERS)
    ax.set(xscale="log" if log_across else "linear", yscale="log")
    look = {
        "palette": {name: _DEQS.get(kind) or next(others) for name, kind in kinds.items()},
        "dashes": {name: (3, 1.5) if kind == "fnn" else "" for name, kind in kinds.items()},
        "markers": dict(zip(kinds.index, itertools.cycle("osD^vP"))),
        "markevery": max(1, rows["at"].nunique() // _MARKS_PER_CURVE),
    }
    positive = rows[rows["value"] > 0]
    sns.lineplot(positive, x="at", y="value", hue="model", style="model", errorbar=("pi", 100), ax=ax, **look)
    ax.get_legend().remove()
    ax.set(xlabel=across, ylabel=label)
    return ax


def figure_legend(fig: Figure, axes: Iterable[Axes], ncols: int | None = None) -> Legend:
    """One legend below the figure for all panels: every label once, those of the paper last.

    Parameters
    ----------
    axes : the panels whose curves it explains
    ncols : None fills the width of the figure.
    """
    entries: dict[str, object] = {}
    for ax in axes:
        for handle, text in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    texts = [text for text in entries if text not in ("method", "group", "split")]  # headings of seaborn
    entries = {text: entries[text] for text in sorted(texts, key=lambda text: text.startswith("paper"))}
    if ncols is None:
        fitting = max(1, int(fig.get_figwidth() / 1.35))  # inches that the longest name takes
        ncols = math.ceil(len(entries) / math.ceil(len(entries) / fitting))
    return fig.legend(entries.values(), entries, loc="outside lower center", ncols=ncols)


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
    for name, style in styles_of(residuals, METHOD_STYLE).items():
        values = pd.Series(np.asarray(residuals[name], dtype=float))
        values.index += 1
        _curve(ax, values.where(np.isfinite(values) & (values > 0)), style, label=style.label)
    if tol is not None:
        ax.axhline(tol, color="black", linestyle=":", linewidth=0.8, zorder=1, label="tolerance")
    ax.set_yscale("log")
    _whole_numbers(ax)
    ax.set(xlabel="evaluations of f", ylabel="relative residual")
    return ax


def _of_seeds(ax: Axes, rows: pd.DataFrame, styles: Mapping[str, Style], split: str, log: bool) -> None:
    """Mean and standard deviation over seeds, a line for each model, and their entries in a legend."""
    for name, style in styles.items():
        values = rows[rows["model"] == name].pivot(index="epoch", columns="seed", values="value")
        values = values.replace([np.inf, -np.inf], np.nan)
        mean, std = (values.agg(what, axis="columns", skipna=False) for what in ("mean", "std"))
        low = mean - std
        if log:  # the band ends where the axis has no room for it
            low = low.where(low > 0, values.min(axis="columns"))
        _curve(ax, mean, style, linestyle=SPLIT_LINE[split])
        ax.fill_between(mean.index, low, mean + std, color=style.colour, alpha=0.2, linewidth=0)
    known = {line.get_label() for line in ax.lines}  # another split may be drawn already
    for style in styles.values():
        if style.label not in known:
            ax.plot([], [], label=style.label, color=style.colour, marker=style.marker)
    ax.plot([], [], label=split, color="0.3", linestyle=SPLIT_LINE[split])


def _curve(ax: Axes, values: pd.Series, style: Style, **line: object) -> None:
    every = values.index.get_indexer(np.linspace(*values.index[[0, -1]], _MARKS_PER_CURVE), method="nearest")
    ax.plot(values.index, values, color=style.colour, marker=style.marker, markevery=every, **line)


def _whole_numbers(ax: Axes) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))


def _draw_printed(ax: Axes, printed: Sequence[tuple[str, float, float | None]]) -> None:
    """Hollow markers right of the axes, the lowest number below its marker's height and the others above."""
    values = [value for _, value, _ in printed]
    ax.dataLim.update_from_data_y(values, ignore=False)
    ax.autoscale_view()
    outside = {"transform": ax.get_yaxis_transform(), "clip_on": False}  # x in axes, y in data
    right = 1.05 + 0.05 * len(printed)
    for position, (model, value, std) in enumerate(printed):
        style, x = MODEL_STYLE[model], 1.05 + 0.05 * position
        marker = {"marker": style.marker, "markerfacecolor": "white", "markersize": 3.5, "elinewidth": 0.8}
        ax.plot([1.0, x], [value, value], color=style.colour, linewidth=0.6, **outside)
        ax.errorbar([x], [value], yerr=std, color=style.colour, **marker, **outside)
        look = {"color": style.colour, "va": "top" if value == min(values) and len(values) > 1 else "bottom"}
        ax.text(right, value, f"{value:.4g}", fontsize=7, **look, **outside)
    ax.plot([], [], label="paper, CIFAR-10: accuracy", color="0.3", linewidth=0.6, marker="o", mfc="white")
