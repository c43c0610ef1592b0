"""The first pictures of README and ``docs/results.md``, and the numbers behind them.

Everything is computed from the tracked runs of protocols 1 to 3; nothing is trained. NC2 and NC3
are ``nc2_etf_distance`` and ``nc3_self_duality`` on the training set, with centred class means.
"""

import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nclib import paths
from nclib.imbalance import step_imbalance
from nclib.plots import MODEL_STYLE, Style
from nclib.store import reference_store

NETWORKS = {
    "explicit": MODEL_STYLE["explicit"]._replace(label="ResNet-18"),
    "deq": MODEL_STYLE["deq"]._replace(label="DEQ"),
}
BLOCK = MODEL_STYLE["explicit_matched"]._replace(label="the DEQ's block, once")
METRICS = {"nc2_etf_distance": "NC2", "nc3_self_duality": "NC3"}
MEANING = {"NC2": "class means against a simplex ETF", "NC3": "classifier against class means"}
SETTINGS = {
    (1, 0): "cifar10-full",
    (10, 3): "cifar10-full",
    (100, 3): "protocol-2",
    (100, 5): "protocol-2",
    (100, 7): "protocol-2",
}
"""R and K_A of the settings of the first picture, and the tracked collection each is taken from."""
CIFAR100 = [(100, 50), (10, 50)]
"""R and K_A of the settings of CIFAR-100."""
CLASSES = 10
IMAGES = 5000
"""Training images of a class that keeps all."""
LEVELS = (0.6, 0.8, 0.9, 0.95)
"""Class-balanced training accuracies at which both networks are compared."""


# --- numbers --------------------------------------------------------------------------------------


@functools.cache
def training_curves() -> pd.DataFrame:
    """NC2, NC3 and class-balanced accuracy on the training set at every epoch that was evaluated.

    Returns
    -------
    DataFrame with the columns R, K_A (0 where classes are balanced), network ("ResNet-18" or
    "DEQ"), seed, run (its id), epoch, accuracy (a fraction), NC2 and NC3: one row for each run and
    epoch, for the settings of `SETTINGS` with all their tracked seeds.
    """
    tables = []
    for collection in ("cifar10-full", "protocol-2"):
        settings = [setting for setting, source in SETTINGS.items() if source == collection]
        tables.append(_curves(collection, settings))
    keys = ["R", "K_A", "network", "seed", "run", "epoch"]
    return pd.concat(tables).sort_values(keys, ignore_index=True)


@functools.cache
def cifar100_curves() -> pd.DataFrame:
    """What `training_curves` gives, of CIFAR-100 and the settings of `CIFAR100`."""
    return _curves("protocol-3-cifar100", CIFAR100)


def block_curves() -> pd.DataFrame:
    """What `training_curves` gives of protocol 2, and beside it the DEQ's block applied once."""
    settings = [setting for setting, source in SETTINGS.items() if source == "protocol-2"]
    return pd.concat([_curves(name, settings) for name in ("protocol-2", "protocol-3-block")])


def _curves(collection: str, settings: list[tuple[int, int]]) -> pd.DataFrame:
    wanted = {"accuracy_balanced": "accuracy", **METRICS}
    styles = NETWORKS | {"explicit_matched": BLOCK}
    names = {model: style.label for model, style in styles.items()}
    listing = paths.reference() / collection / "runs.json"
    runs = json.loads(listing.read_text(encoding="utf-8"))
    rows = reference_store().frame(runs).query("split == 'train'")
    rows = rows.assign(
        R=rows["R"].astype(int),
        K_A=rows["K_A"].fillna(0).astype(int),
        network=rows["model"].map(names),
        metric=rows["metric"].map(wanted),
    )
    rows = rows.dropna(subset=["network", "metric"]).rename(columns={"run_id": "run"})
    rows = rows[pd.MultiIndex.from_frame(rows[["R", "K_A"]]).isin(settings)]
    keys = ["R", "K_A", "network", "seed", "run", "epoch"]
    curves = rows.pivot(index=keys, columns="metric", values="value")
    return curves[list(wanted.values())].rename_axis(columns=None).reset_index()


def last_epoch() -> pd.DataFrame:
    """What the first picture shows: NC2 and NC3 of every run at its last epoch.

    Returns
    -------
    DataFrame with the columns R, K_A, network, seed, run, NC2 and NC3.
    """
    return _last(training_curves())


def _last(curves: pd.DataFrame) -> pd.DataFrame:
    last = curves[curves["epoch"] == curves["epoch"].max()]
    return last.drop(columns=["epoch", "accuracy"]).reset_index(drop=True)


def class_sizes(ratio: int, k_a: int) -> np.ndarray:
    """(10,) training images of each class: K_A classes have R times the images of the others."""
    if ratio == 1:
        return np.full(CLASSES, IMAGES)
    return step_imbalance(CLASSES, IMAGES, k_a, ratio).numpy()


def turning_back() -> pd.DataFrame:
    """How far NC2 and NC3 rise again after their minimum along training, at R = 100.

    This was looked at after the runs, not planned before them: a lead, not a finding.

    Returns
    -------
    DataFrame with one row for each K_A, network and metric. Of every run its least and its last
    value are taken: minimum and end are their means over seeds, rise is the mean of
    end / minimum − 1, and first and last are the earliest and the latest epoch at which a seed has
    its minimum.
    """
    rows = []
    for (k_a, network, _), run in _at_100().groupby(["K_A", "network", "seed"]):
        for metric in MEANING:
            values = run.set_index("epoch")[metric]
            rows.append((k_a, network, metric, values.min(), values.idxmin(), values.iloc[-1]))
    keys = ["K_A", "network", "metric"]
    runs = pd.DataFrame(rows, columns=[*keys, "minimum", "epoch", "end"])
    runs["rise"] = runs["end"] / runs["minimum"] - 1
    over_seeds = runs.groupby(keys).agg(
        minimum=("minimum", "mean"),
        first=("epoch", "min"),
        last=("epoch", "max"),
        end=("end", "mean"),
        rise=("rise", "mean"),
    )
    return over_seeds.reset_index()


def at_equal_accuracy(levels: tuple[float, ...] = LEVELS) -> pd.DataFrame:
    """The DEQ against ResNet-18 where both have fitted the training set equally well, at R = 100.

    Networks are evaluated every five epochs. A run is read where its class-balanced training
    accuracy first reaches a level, by linear interpolation between that evaluation and the one
    before it. In mid-training a run differs by 5 to 20 % between processors, so only means over
    seeds can be compared.

    This was looked at after the runs, not planned before them: a lead, not a finding.

    Parameters
    ----------
    levels : class-balanced training accuracies, as fractions.

    Returns
    -------
    DataFrame with one row for each K_A, metric and level, and the column log_ratio: the mean over
    seeds of log(DEQ) minus that of log(ResNet-18). Below 0 the DEQ is closer to collapse. NaN where
    a run does not reach the level, or is above it at its first evaluation.
    """
    rows = []
    for (k_a, network, _), run in _at_100().groupby(["K_A", "network", "seed"]):
        for metric, level in itertools.product(MEANING, levels):
            value = _where_reached(run, metric, level)
            rows.append((k_a, metric, level, network, np.log(value)))
    columns = ["K_A", "metric", "level", "network", "logarithm"]
    logarithms = pd.DataFrame(rows, columns=columns).groupby(columns[:-1])["logarithm"]
    means = logarithms.agg(lambda values: values.mean(skipna=False)).unstack()
    return (means["DEQ"] - means["ResNet-18"]).rename("log_ratio").reset_index()


def _at_100() -> pd.DataFrame:
    return training_curves().query("R == 100")


def _where_reached(run: pd.DataFrame, metric: str, level: float) -> float:
    """The metric of a run at the epoch, interpolated, at which its accuracy reaches the level."""
    accuracy = run["accuracy"].to_numpy()
    values = run[metric].to_numpy()
    after = int(np.argmax(accuracy >= level))
    if after == 0:  # at the first evaluation, or never
        return float("nan")
    between = slice(after - 1, after + 1)
    return float(np.interp(level, accuracy[between], values[between]))


# --- pictures -------------------------------------------------------------------------------------

# Large letters: a phone shows the whole picture in 390 pixels.
LOOK = {
    "font.size": 13,
    "axes.titlesize": 13,
    "axes.titlelocation": "left",
    "figure.labelsize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 13,
    "legend.handletextpad": 0.4,
}


def save(folder: Path) -> None:
    """Write each picture into a folder, named as its function."""
    for plot in (hero, better_or_later, cifar100, equilibrium_or_block):
        figure = plot()
        figure.savefig(folder / f"{plot.__name__}.png", dpi=200, metadata={"Software": None})
        plt.close(figure)


def hero() -> Figure:
    """NC2 and NC3 after training, balanced, 10 : 1 and 100 : 1: `last_epoch` as a picture."""
    networks = [NETWORKS["explicit"], NETWORKS["deq"]]
    places = [(-0.14, -0.32), (0.14, 0.32)]
    with mpl.rc_context(LOOK):
        figure = plt.figure(figsize=(8.6, 4.4), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[4, 1.2])
        for metric, panel, sizes in zip(MEANING, *axes, strict=True):
            panel.set_title(f"{metric}: {MEANING[metric]}")
            _dots(panel, last_epoch(), metric, networks, places)
            _class_sizes(sizes)
        panel, _ = axes[0]
        panel.set_ylabel("← closer to collapse")
        panel.plot([], [], "o", color="0.4", markersize=3, label="one seed each")
        figure.legend(*panel.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def equilibrium_or_block() -> Figure:
    """NC2 and NC3 after training at R = 100: ResNet-18, the DEQ's block applied once, the DEQ."""
    last = _last(block_curves())
    networks = [NETWORKS["explicit"], BLOCK, NETWORKS["deq"]]
    places = [(-0.28, -0.39), (0, -0.11), (0.28, 0.17)]
    with mpl.rc_context(LOOK):
        figure = plt.figure(figsize=(8.6, 3.8), layout="constrained")
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        for metric, panel in zip(MEANING, axes, strict=True):
            panel.set_title(f"{metric}: {MEANING[metric]}")
            _dots(panel, last, metric, networks, places)
        names = [f"$K_A$ = {k_a}" for k_a in sorted(last["K_A"].unique())]
        panel.set_xticks(range(len(names)), names)
        axes[0].set_ylabel("← closer to collapse")
        axes[0].plot([], [], "o", color="0.4", markersize=3, label="one seed each")
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=4, columnspacing=1)
    return figure


def _dots(
    panel: Axes,
    last: pd.DataFrame,
    metric: str,
    networks: Sequence[Style],
    places: Sequence[tuple[float, float]],
) -> None:
    """In each setting, network by network: a small dot for every seed, a large one for the mean.

    Places are those of mean and seeds of each network, from the middle of its setting.
    """
    values = last.set_index(["R", "K_A", "network"])[metric].sort_index()
    settings = list(values.index.droplevel("network").unique())
    for place, (ratio, k_a) in enumerate(settings):
        means = []
        for style, (of_mean, of_seeds) in zip(networks, places, strict=True):
            seeds = values[ratio, k_a, style.label]
            mean = seeds.mean()
            at_mean = place + of_mean
            at_seeds = [place + of_seeds] * len(seeds)
            label = style.label if place == 0 else None
            dots = {"color": style.colour, "marker": style.marker, "linestyle": "none"}
            panel.plot(at_seeds, seeds, markersize=3, alpha=0.7, **dots)
            panel.plot(at_mean, mean, markersize=10, zorder=3, label=label, **dots)
            means.append((at_mean, mean))
        across, heights = zip(*means, strict=True)
        panel.plot(across, heights, color="0.6", linewidth=1.2, zorder=1)
    end = len(settings) - 0.5
    panel.text(end, 0.02, "perfect collapse", ha="right", va="bottom", color="0.2")
    panel.set(xlim=(-0.5, end), ylim=(0, 1))
    panel.tick_params(bottom=False)
    _from_perfect_collapse(panel)


def _from_perfect_collapse(panel: Axes) -> None:
    panel.axhline(0, color="0.2", linestyle=":", linewidth=1.4)
    panel.spines["bottom"].set_visible(False)
    panel.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])


def _class_sizes(panel: Axes) -> None:
    """Ten bars for each setting, one for each class, and the name of the setting below them."""
    panel.axis("off")
    panel.set_ylim(-0.9, 1)
    for place, (ratio, k_a) in enumerate(SETTINGS):
        images = class_sizes(ratio, k_a)
        across = place + 0.075 * (np.arange(CLASSES) - (CLASSES - 1) / 2)
        # Nobody would see 50 images beside 5000.
        panel.bar(across, np.maximum(images / IMAGES, 0.04), 0.055, color="0.35")
        names = ["balanced"] if ratio == 1 else [f"{ratio} : 1", f"$K_A$ = {k_a}"]
        for line, name in enumerate(names, start=1):
            panel.text(place, -0.42 * line, name, ha="center", va="baseline", fontsize=12)


def better_or_later() -> Figure:
    """NC2 and NC3 against class-balanced training accuracy along training, R = 100, every seed."""
    return _against_accuracy(_at_100(), [setting for setting in SETTINGS if setting[0] == 100])


def cifar100() -> Figure:
    """NC2 and NC3 against class-balanced training accuracy on CIFAR-100, R = 100 and R = 10."""
    return _against_accuracy(cifar100_curves(), CIFAR100)


def _against_accuracy(curves: pd.DataFrame, settings: list[tuple[int, int]]) -> Figure:
    """A column for each setting (R, K_A), a row for each metric, a line for each seed."""
    with mpl.rc_context(LOOK):
        figure = plt.figure(figsize=(8.6, 5.8), layout="constrained")
        axes = figure.subplots(len(MEANING), len(settings), sharex=True, sharey=True)
        for row, metric in zip(axes, MEANING, strict=True):
            row[0].set_ylabel(metric)
            for panel, (ratio, k_a) in zip(row, settings, strict=True):
                here = (curves["R"] == ratio) & (curves["K_A"] == k_a)
                _along_training(panel, curves[here], metric)
        for panel, (ratio, k_a) in zip(axes[0], settings, strict=True):
            panel.set_title(f"{ratio} : 1, $K_A$ = {k_a}")
        figure.supxlabel("class-balanced training accuracy, %")
        figure.supylabel("← closer to collapse")
        panel = axes[0, 0]  # the others share its axes
        start = 100 * curves["accuracy"].min() - 3
        top = 1.05 * curves[list(MEANING)].to_numpy().max()
        panel.set(xlim=(start, 103), ylim=(0, top), xticks=[25, 50, 75, 100])
        panel.plot([], [], color="0.5", linewidth=0.9, label="one seed each")
        panel.plot([], [], "o", color="0.5", markersize=10, label="last epoch")
        figure.legend(*panel.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _along_training(panel: Axes, curves: pd.DataFrame, metric: str) -> None:
    """A thin line for every seed, and a thick one through the means at the epochs evaluated."""
    for style in NETWORKS.values():
        of_network = curves[curves["network"] == style.label]
        thin = {"color": style.colour, "linewidth": 0.9, "alpha": 0.5}
        for _, run in of_network.groupby("seed"):
            panel.plot(100 * run["accuracy"], run[metric], **thin)
        means = of_network.groupby("epoch")[["accuracy", metric]].mean()
        accuracy = 100 * means["accuracy"]
        values = means[metric]
        thick = {"color": style.colour, "marker": style.marker, "linewidth": 2}
        panel.plot(accuracy, values, markersize=4.5, label=style.label, **thick)
        panel.plot(accuracy.iloc[-1], values.iloc[-1], markersize=10, **thick)
    _from_perfect_collapse(panel)
