"""Matrices of cosines, planar embeddings, and values with their intervals one below the other."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import patheffects
from matplotlib.axes import Axes

from nclib.publish.numbers import minus
from nclib.publish.plotting.style import Style, styles_of

_HALO = [patheffects.withStroke(linewidth=1.8, foreground="white")]


def gram(
    matrix: np.ndarray,
    ax: Axes,
    majority: int | None = None,
    *,
    span: float,
    classes: Sequence[object] | None = None,
    colourbar: bool = True,
) -> Axes:
    """A K×K matrix of cosines between class means or classifiers, in colours symmetric about the ideal.

    Parameters
    ----------
    matrix : (K, K), classes in the order of the axes, majority classes first.
    majority : number of majority classes; lines separate them from the minority ones.
    span : distance from the centre to full colour, one for all panels that are compared.
    classes : the name or number of each row, for instance where rows were reordered to bring the majority first.
    """
    matrix = np.asarray(matrix, dtype=float)
    centre = -1 / (len(matrix) - 1)
    low, high = max(centre - span, -1), min(centre + span, 1)
    ticks = 20 if len(matrix) > 20 else range(len(matrix)) if classes is None else list(classes)
    look = {"cmap": "RdBu_r", "vmin": centre - span, "vmax": centre + span, "square": True, "cbar": False}
    sns.heatmap(matrix, ax=ax, xticklabels=ticks, yticklabels=ticks, **look)
    ax.tick_params(length=0)
    ax.tick_params(axis="y", labelrotation=0)
    if majority is not None and 0 < majority < len(matrix):
        for line in (ax.axhline, ax.axvline):
            line(majority, color="black", linewidth=0.8)
    ax.set(xlabel="class", ylabel="class")
    if colourbar:
        beside, end = ax.inset_axes((1.04, 0, 0.05, 1)), "max" if high < 1 else "neither"
        bar = ax.figure.colorbar(ax.collections[0], beside, label="cosine", extend=end)
        bar.ax.set(frame_on=False, ylim=(low, high))  # the colours go on where no cosine is
        bar.set_ticks([low, centre, high], labels=[minus(f"{x:.2g}") for x in (low, centre, high)])
    return ax


def embedding(
    points: np.ndarray,
    labels: np.ndarray,
    ax: Axes,
    minority: Iterable[int] = (),
    *,
    class_names: Sequence[str] | None = None,
) -> Axes:
    """Points of a planar embedding, one colour per class; minority classes are crosses.

    An embedding has no units, so the axes carry no ticks.

    Parameters
    ----------
    points : (N, 2)
    labels : (N,) class numbers
    minority : the class numbers that are minority.
    class_names : written at each class (the number where None).
    """
    points, labels, minority = np.asarray(points, dtype=float), np.asarray(labels), {int(k) for k in minority}
    classes = [int(k) for k in np.unique(labels)]
    colours = sns.color_palette("colorblind" if len(classes) <= 10 else "viridis", len(classes))
    for k in sorted(classes, key=lambda k: k in minority):  # few minority points: plotted on top
        look = {"marker": "x", "s": 8, "linewidths": 0.5} if k in minority else {"s": 5, "linewidths": 0, "alpha": 0.7}
        ax.scatter(*points[labels == k].T, color=[colours[classes.index(k)]], **look)
    for k in classes:
        name = str(k) if class_names is None else class_names[k]
        style = {"fontsize": 7, "fontweight": "bold" if k in minority else "normal", "ha": "center", "va": "bottom"}
        place = np.median(points[labels == k], axis=0)
        for order, halo in ((5, _HALO), (6, None)):  # no halo over the name of another class
            ax.annotate(name, place, (0, 4), textcoords="offset points", zorder=order, path_effects=halo, **style)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    if minority:
        for marker, name in (("o", "majority class"), ("x", "minority class, bold")):
            ax.scatter([], [], marker=marker, s=12, color="0.35", label=name)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, handletextpad=0.1)
    return ax


def forest(rows: pd.DataFrame, ax: Axes, *, label: str, names: Sequence[str], models: bool = True) -> Axes:
    """Values with their intervals, one below the other: a dot and a bar value ± half for each row.

    Parameters
    ----------
    rows : value, half (NaN plots no bar), model, and row, which names the line of each. Several models on one
        line stand a little apart. A column note, where there is one, is written above the dots.
    label : what the axis calls the value.
    names : the lines from top to bottom; the same for panels that share the axis, whatever the order of their rows.
    models : colour and marker by model, as elsewhere; False plots every row in the same way.

    Returns
    -------
    ax, with a thin line at 0 where the values are on both sides of it or models is False.
    """
    names = list(names)
    styles = styles_of(rows["model"].unique()) if models else {None: Style("0.15", "o", "")}
    apart = 0.16 if rows.groupby("row")["model"].nunique().max() > 1 else 0.0
    for place, (model, style) in enumerate(styles.items()):
        chosen = rows if model is None else rows[rows["model"] == model]
        heights = np.array([names.index(name) for name in chosen["row"]]) + apart * (place - (len(styles) - 1) / 2)
        look = {"fmt": style.marker, "color": style.colour, "markersize": 4, "elinewidth": 1, "capsize": 2}
        bars = None if chosen["half"].isna().all() else chosen["half"].fillna(0)  # None: no bar in the legend either
        ax.errorbar(chosen["value"], heights, xerr=bars, label=style.label or None, **look)
        for value, height, note in zip(chosen["value"], heights, chosen.get("note", ()), strict=False):
            above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "va": "bottom"}
            ax.annotate(note, (value, height), color="0.3", fontsize=7, path_effects=_HALO, **above)
    if not models or ax.get_xlim()[0] < 0 < ax.get_xlim()[1]:
        ax.axvline(0, color="black", linestyle=":", linewidth=0.8, zorder=1)
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.5, -0.5), xlabel=label)
    return ax


def embed(features: np.ndarray, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """t-SNE of features (N, d) in the plane, (N, 2), from the principal components; the same for the same seed and
    threads.

    Distances between clusters and their sizes mean nothing in such a picture. The perplexity is lowered where N is
    small.
    """
    from sklearn.manifold import TSNE

    sne = TSNE(init="pca", perplexity=min(perplexity, (len(features) - 1) / 3), random_state=seed)
    return sne.fit_transform(features.astype(np.float64))


def cosine_gram(vectors: np.ndarray, centred: bool) -> np.ndarray:
    """Cosines (K, K) between the rows of `vectors` (K, d), after subtracting their mean if `centred`.

    Ideal: a simplex ETF has 1 on the diagonal and −1/(K−1) elsewhere, when centred.
    """
    from sklearn.metrics.pairwise import cosine_similarity

    vectors = np.asarray(vectors, dtype=float)
    return cosine_similarity(vectors - vectors.mean(axis=0) * centred)
