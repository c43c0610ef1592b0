"""Pictures of the laboratory: curves of a training under way, runs side by side, solvers step by step, three classes.

Functions take tidy frames or arrays and return a figure; none belongs to pyplot, so that they may be drawn from any
thread. Nothing here trains, solves or reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.mplot3d.art3d import Line3DCollection, Poly3DCollection

from nclib import metrics
from nclib.publish.plotting import METHOD_STYLE, literal

_COLOURS = sns.color_palette("colorblind").as_hex()
_WIDE = 9.4  # inches, at _DPI the width of a notebook's output
SCREEN_DPI = 100


class Curve(NamedTuple):
    """One line of a picture of a training: where it stands in the history, and how it is drawn."""

    label: str
    split: str
    metric: str
    colour: str
    line: str = "-"


class View(NamedTuple):
    """One axes: its title, its curves, whether it is logarithmic, and the range of values that are possible."""

    title: str
    curves: tuple[Curve, ...]
    log: bool = False
    limits: tuple[float | None, float | None] = (None, None)


VIEWS: tuple[View, ...] = (
    View(
        "loss (cross-entropy)",
        (Curve("train", "train", "loss", "0.35", "--"), Curve("test", "test", "loss", "0.1")),
        log=True,
    ),
    View(
        "accuracy",
        (
            Curve("train", "train", "accuracy_balanced", "0.35", "--"),
            Curve("test", "test", "accuracy_balanced", "0.1"),
            Curve("test, majority", "test", "accuracy_majority", _COLOURS[0]),
            Curve("test, minority", "test", "accuracy_minority", _COLOURS[3]),
        ),
        limits=(0, 1.02),
    ),
    View(
        "solver: evaluations a sample",
        (
            Curve("forward", "steps", "solver_steps", _COLOURS[0]),
            Curve("backward", "steps", "backward_steps", _COLOURS[1], "--"),
        ),
        limits=(0, None),
    ),
    View(
        "NC1 (train)",
        (
            Curve("tr Σ_W / tr Σ_B", "train", "nc1_trace_ratio", _COLOURS[0]),
            Curve("tr(Σ_W Σ_B†)/K, eq. 12", "train", "nc1_pinv", _COLOURS[1], "--"),
        ),
        log=True,
    ),
    View(
        "NC2 and NC3 (train), ideal 0",
        (
            Curve("NC2, centred", "train", "nc2_etf_distance", _COLOURS[0]),
            Curve("NC3, centred", "train", "nc3_self_duality", _COLOURS[3]),
            Curve("NC3, alignment", "train", "nc3_alignment", _COLOURS[4], "--"),
        ),
        limits=(0, None),
    ),
    View(
        "solver: share not converged",
        (
            Curve("forward", "steps", "not_converged", _COLOURS[0]),
            Curve("backward", "steps", "backward_not_converged", _COLOURS[1], "--"),
        ),
        limits=(-0.02, 1.02),
    ),
)
"""What is watched while a network trains."""


def values_of(history: pd.DataFrame, split: str, metric: str) -> pd.Series:
    """A metric by epoch, finite values only."""
    rows = history[(history["split"] == split) & (history["metric"] == metric)]
    values = rows.set_index("epoch")["value"].sort_index()
    return values[np.isfinite(values)]


def progress(history: pd.DataFrame | None, epochs: int, nothing: str = "") -> Figure:
    """Loss, accuracies, neural collapse and the solver of one run against the epoch.

    Parameters
    ----------
    history : epoch, split, metric, value, as far as the run is; None draws empty axes
    epochs : of the whole run, the length of the axis
    nothing : what an axes without any values says
    """
    fig = Figure(figsize=(_WIDE, 4.5), layout="constrained")
    for ax, view in zip(fig.subplots(2, 3, sharex=True).flat, VIEWS, strict=True):
        drawn = False
        for curve in view.curves if history is not None else ():
            values = values_of(history, curve.split, curve.metric)
            if len(values) and (not view.log or (values > 0).any()):
                marker = {"marker": "o", "markersize": 2.5} if len(values) <= 40 else {}
                ax.plot(values.index, values, curve.line, color=curve.colour, label=curve.label, **marker)
                drawn = True
        ax.set_title(view.title)
        if drawn:
            ax.set_yscale("log" if view.log else "linear")
            ax.legend(loc="best", handlelength=1.8)
        else:
            ax.text(0.5, 0.5, nothing, transform=ax.transAxes, ha="center", va="center", color="0.5")
            ax.set_yticks([])
        if drawn and not view.log:
            _limit(ax, *view.limits)
        ax.set_xlim(0, epochs + 0.5 if epochs < 10 else 1.03 * epochs)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    for ax in fig.axes[3:]:
        ax.set_xlabel("epoch")
    return fig


def _limit(ax: Axes, low: float | None, high: float | None) -> None:
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom if low is None else low, top if high is None else high)


_COMPARED = (
    "accuracy_balanced",
    "accuracy_majority",
    "accuracy_minority",
    "loss",
    "nc1_trace_ratio",
    "nc1_pinv",
    "nc2_etf_distance",
    "nc2_equiangular",
    "nc3_self_duality",
    "nc3_alignment",
    "nc4_ncc_mismatch",
    "minority_cosine",
    "solver_steps",
    "not_converged",
)
METRICS: dict[str, tuple[str, str, bool]] = {
    metric.label if len(metric.splits) == 1 else f"{metric.label}, {split}": (split, name, metric.log)
    for name, metric in (metrics.LOGGED | metrics.METRICS).items()
    if name in _COMPARED
    for split in metric.splits
}
"""What runs can be compared in: name -> split, metric, whether the axis is logarithmic."""

_MARKERS = "osD^vPX<>"


def overlay(histories: Mapping[str, pd.DataFrame], chosen: Sequence[str]) -> Figure:
    """Several runs against the epoch, one axes for each quantity of `METRICS`.

    Parameters
    ----------
    histories : name of a run, as the legend calls it -> its history
    chosen : keys of METRICS
    """
    columns = min(3, max(1, len(chosen)))
    rows = -(-len(chosen) // columns)
    legend_rows = -(-len(histories) // 2)
    fig = Figure(figsize=(_WIDE, 2.3 * max(1, rows) + 0.22 * legend_rows), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False).flat if chosen else []
    handles = {}
    for ax, name in zip(axes, chosen, strict=False):
        split, metric, log = METRICS[name]
        for number, (label, history) in enumerate(histories.items()):
            values = values_of(history, split, metric)
            style = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
            every = max(1, len(values) // 6)
            line = ax.plot(values.index, values, label=label, markevery=every, linewidth=1.2, markersize=3.5, **style)
            handles[label] = line[0]
        if log and any(len(line.get_ydata()) for line in ax.lines):
            ax.set_yscale("log", nonpositive="mask")
        ax.set(title=name, xlabel="epoch")
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    for ax in fig.axes[len(chosen) :]:
        ax.set_visible(False)
    if handles:
        fig.legend(handles.values(), handles, loc="outside lower left", ncols=2, fontsize=8)
    return fig


def image_solution(
    image: np.ndarray, caption: str, traces: Mapping[str, np.ndarray], tol: float, labels: Mapping[str, str]
) -> Figure:
    """One image, and how the residual of its equilibrium falls with each method.

    Parameters
    ----------
    image : (C, H, W) uint8
    caption : what stands above it
    traces : method -> (T,) relative residuals
    labels : method -> its line in the legend
    """
    fig = Figure(figsize=(_WIDE, 3.0), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=(1, 2.6))
    pixels = image.transpose(1, 2, 0)
    left.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=255)
    left.set_axis_off()
    left.set_title(caption)
    for method, trace in traces.items():
        style = METHOD_STYLE[method]
        shown = _for_log(trace)
        every = max(1, len(shown) // 12)
        steps = np.arange(1, len(shown) + 1)
        right.plot(steps, shown, color=style.colour, marker=style.marker, markevery=every, label=labels[method])
    right.axhline(tol, color="black", linestyle=":", linewidth=0.8, label=f"tolerance {tol:g}")
    right.set_yscale("log")
    right.set(xlabel="evaluations of the cell", ylabel="relative residual")
    right.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    right.legend(loc="best")
    return fig


def triangle(
    points: np.ndarray,
    labels: np.ndarray,
    means: np.ndarray,
    weights: np.ndarray,
    ideal: np.ndarray,
    names: Sequence[str],
    elevation: float,
    azimuth: float,
) -> Figure:
    """Three classes in space, seen from somewhere: features as dots, class means, classifier rows and the ideal.

    Arrays as in `companion.laboratory.compute.Triangle`; names of the three classes; angles in degrees.
    """
    fig = Figure(figsize=(8.0, 4.6), layout="none")
    ax = fig.add_axes((0.0, 0.0, 0.74, 1.0), projection="3d", computed_zorder=False)
    ax.set_axis_off()
    reach = max(np.abs(part).max() for part in (means, weights, ideal, np.clip(points, -1.4, 1.4)))
    turn = np.linspace(0, 2 * np.pi, 61)
    disc = reach * np.column_stack([np.cos(turn), np.sin(turn), 0 * turn])
    ax.add_collection3d(Poly3DCollection([disc], facecolor=(0.5, 0.5, 0.5, 0.06), edgecolor="0.85", linewidth=0.6))
    face = {"facecolor": (0.5, 0.5, 0.5, 0.12), "edgecolor": "0.4", "linestyle": "--", "linewidth": 1.0}
    ax.add_collection3d(Poly3DCollection([ideal], **face))
    ax.plot([0, 0], [0, 0], [-reach / 2, reach / 2], color="0.75", linewidth=0.8)
    for k in range(3):
        own = points[labels == k]
        colour = _COLOURS[(0, 3, 2)[k]]
        ax.scatter(*own.T, s=7, color=colour, alpha=0.45, linewidths=0)
        ax.add_collection3d(Line3DCollection([[np.zeros(3), weights[k]]], colors=[colour], linewidths=1.6))
        ax.scatter(*weights[k], marker="^", s=45, color=colour, edgecolor="white", linewidth=0.6)
        ax.scatter(*means[k], marker="o", s=75, color=colour, edgecolor="black", linewidth=0.9)
        ax.plot([], [], marker="s", color=colour, linestyle="", markersize=6, label=literal(names[k]))
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
    ax.set_box_aspect((1, 1, 1), zoom=1.5)
    ax.view_init(elev=elevation, azim=azimuth)
    grey = {"color": "0.5", "linestyle": ""}
    for marker, size, text in (("o", 7, "class mean"), ("^", 6, "classifier row"), (".", 5, "feature")):
        ax.plot([], [], marker=marker, markersize=size, label=text, **grey)
    ax.plot([], [], color="0.4", linestyle="--", label="simplex ETF")
    ax.plot([], [], color="0.75", linewidth=0.8, label="across the plane of the\nmeans: widest spread\nwithin a class")
    fig.legend(*ax.get_legend_handles_labels(), loc="center right", fontsize=8)
    return fig


def plane(
    xs: np.ndarray,
    ys: np.ndarray,
    field: np.ndarray,
    walks: Mapping[str, np.ndarray],
    traces: Mapping[str, np.ndarray],
    step: int,
    tol: float,
) -> Figure:
    """Solvers in the plane after `step` evaluations, and their residuals.

    Parameters
    ----------
    xs, ys, field : grid and ‖f(z) − z‖ on it (len(ys), len(xs)), as shading, dark where it is large
    walks : method -> points (T, 2) where f was evaluated
    traces : method -> their relative residuals (T,)
    """
    fig = Figure(figsize=(_WIDE, 3.9), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=(1, 1.15))
    shade = np.log10(np.clip(field, 1e-2, None))
    edges = (xs[0], xs[-1], ys[0], ys[-1])
    left.imshow(shade, extent=edges, origin="lower", cmap="Greys", alpha=0.3, interpolation="bilinear")
    for method, points in walks.items():
        style = METHOD_STYLE[method]
        colour = _COLOURS[0] if method == "fixed_point" else style.colour
        path = points[: step + 1]
        left.plot(*path.T, color=colour, marker=style.marker, markersize=3.5, linewidth=0.9, label=style.label)
        left.plot(*path[-1], color=colour, marker=style.marker, markersize=8, markeredgecolor="white")
        trace = _for_log(traces[method])
        counts = np.arange(1, len(trace) + 1)
        right.plot(counts, trace, color=colour, marker=style.marker, markersize=3, linewidth=0.9, label=style.label)
        if step < len(trace):
            right.plot(step + 1, trace[step], color=colour, marker=style.marker, markersize=8, markeredgecolor="white")
    start = next(iter(walks.values()))[0] if walks else (np.nan, np.nan)
    star = {"marker": "*", "markersize": 11, "color": _COLOURS[8], "markeredgecolor": "black", "linestyle": ""}
    left.plot(*start, **star)
    left.set(xlim=(xs[0], xs[-1]), ylim=(ys[0], ys[-1]), xlabel="z₁", ylabel="z₂", aspect="equal")
    left.set_title(f"where f was evaluated, the first {step + 1}")
    right.axvline(step + 1, color="0.7", linewidth=0.8, zorder=0)
    right.axhline(tol, color="black", linestyle=":", linewidth=0.8, label=f"tolerance {tol:g}")
    right.set_yscale("log")
    right.set(xlabel="evaluations of f", ylabel="relative residual", title="residual")
    right.set_ylim(bottom=tol / 1e3)
    right.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    right.plot([], [], **star, label="start")
    right.legend(loc="best")
    return fig


_ZERO = 1e-17


def _for_log(trace: np.ndarray) -> np.ndarray:
    """A residual on a logarithmic axis: one that is exactly 0 is drawn at 1e-17, what is not finite not at all."""
    return np.where(np.isfinite(trace), np.maximum(trace, _ZERO), np.nan)
