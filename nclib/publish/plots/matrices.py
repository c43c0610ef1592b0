"""Matrices of cosines, planar embeddings, and values with their intervals one below the other."""

import itertools
import math
from collections.abc import Iterable, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nclib.publish.plots.style import _PALETTE, Style, _ordered, _styles, literal


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

    Values below the centre carry a small bar, so that the two sides differ in grey as well.

    Parameters
    ----------
    matrix : (K, K), classes in the order of the axes, majority classes first.
    majority : number of majority classes; lines separate them from the minority ones.
    centre : value drawn white; None means -1/(K-1), the cosine of a simplex ETF. Pass 0 for uncentred means.
    span : distance from the centre to full colour; None means the largest distance in the matrix, so panels that are
        compared need one common span. The colour bar ends where cosines do, and in a point where some lie beyond its
        colours.
    classes : the name or number of each row, for instance where rows were reordered to bring the majority first.

    Raises
    ------
    ValueError
        Where the matrix is not square or holds no finite value.
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

    An embedding has no units, so the axes carry no ticks.

    Parameters
    ----------
    points : (N, 2)
    labels : (N,) class numbers
    minority : the class numbers that are minority.
    class_names : written above each class (the number where None), for up to 20 classes. Names that would cover each
        other stand apart, each with a thin line to its class.
    legend : explain dot and cross, if there is a minority.

    Raises
    ------
    ValueError
        Where shapes do not fit.
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

    Parameters
    ----------
    rows : value, half (NaN draws no bar), model, and the column `by`, which names the line each is drawn on. Several
        models on one line stand a little apart. A column note, where there is one, is written above the dots.
    label : what the axis calls the value.
    names : the lines from top to bottom; the same for panels that share the axis, whatever the order of their rows.
    models : colour and marker by model, as elsewhere; False draws every row alike.
    most : the largest value there can be; where bars make the axis go on, what lies beyond is grey.

    Returns
    -------
    ax, with a thin line at 0 where the values are on both sides of it or models is False.

    Raises
    ------
    ValueError
        For a frame without rows, or a row on a line that names does not have.
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


def embed(features: np.ndarray, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """t-SNE of features (N, d) in the plane, (N, 2), from the principal components; the same for the same seed and
    threads.

    Distances between clusters and their sizes mean nothing in such a picture. The perplexity is lowered where N is
    small.
    """
    from sklearn.manifold import TSNE

    perplexity = min(perplexity, (len(features) - 1) / 3)
    return TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(features.astype(np.float64))


def cosine_gram(vectors: np.ndarray, centred: bool) -> np.ndarray:
    """Cosines (K, K) between the rows of `vectors` (K, d), after subtracting their mean if `centred`.

    Ideal: a simplex ETF has 1 on the diagonal and −1/(K−1) elsewhere, when centred.
    """
    vectors = np.asarray(vectors, dtype=float)
    if centred:
        vectors = vectors - vectors.mean(axis=0)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = np.divide(vectors, norms, out=np.full_like(vectors, np.nan), where=norms > 0)
    return directions @ directions.T
