"""Tables of the notebook `collapse` and of ``docs/tables.md``: what the CIFAR-10 runs say.

Two collections are compared: the first experiment (protocol 1, seeds 0 to 2) and the replication
(protocol 2, seeds 10 to 14). Everything is computed from the tracked runs.
"""

import functools
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from nclib import paths, simplex_etf
from nclib.compare import MIN_SEEDS, SETTING, Interval, Pairs, interval, pairs
from nclib.figures import markdown_table, minus
from nclib.metrics import LABELS
from nclib.papers.neural_collapse import protocol2
from nclib.papers.neural_collapse.accuracy_tables import published
from nclib.papers.neural_collapse.norms_and_directions import add_cosines, eq14, exchanged
from nclib.papers.neural_collapse.protocol1 import COLLAPSE, KNOWN
from nclib.store import reference_store

# --- settings, by K_A and R -----------------------------------------------------------------------

BALANCED = (0, 1)
R100 = ((3, 100), (5, 100), (7, 100))
R10 = ((3, 10),)
FRESH = {"fresh": R100, "fresh3": (R100[0],), "fresh5": (R100[1],), "fresh7": (R100[2],)}
"""Groups of settings of the replication, which has new seeds."""
GROUPS = {"r100": R100, "r10": R10, "balanced": (BALANCED,), "four": (*R100, *R10), **FRESH}
"""Groups of settings with three seeds or more."""
GROUPS_SHOWN = {"fresh": "100 : 1", "r10": "10 : 1, K_A = 3", "balanced": "balanced"}
SETTINGS = (R100[1], R100[0], R10[0], R100[2], BALANCED)
"""Settings of the first experiment with three seeds, as its table of verdicts lists them."""
UNJUDGED = (7, 100)
"""The setting in which two DEQs ended below 99.9 % training accuracy over classes."""


# --- metrics --------------------------------------------------------------------------------------


class Row(NamedTuple):
    """How a metric is compared.

    Parameters
    ----------
    label : as tables name it
    metric, split : what is compared
    relative : whether logarithms are compared, or values
    claim : of the paper, under imbalance
    how : the epochs that count, "last" or "last_epochs"
    """

    label: str
    metric: str
    split: str = "train"
    relative: bool = True
    claim: str | None = None
    how: str = "last"


def _claimed(metric: str) -> Row:
    return Row(LABELS[metric], metric, claim=COLLAPSE[metric])


def _cosine(label: str, metric: str, claim: str | None = None) -> Row:
    return Row(label, metric, relative=False, claim=claim)


def _accuracy_row(label: str, metric: str, claim: str | None = None) -> Row:
    return Row(label, metric, "test", relative=False, claim=claim)


_OWN = "classes, centred at their own mean"
_ALL = "classes, centred at the mean of all classes"
_ADJUSTED = "after logit adjustment"
_COSINE = "cosine of class mean and classifier"
ROWS = {
    "nc2c": _claimed("nc2_etf_distance"),
    "nc2norm": Row("norms of the centred class means: s.d. / mean", "nc2_equinorm"),
    "nc2angle": Row("cosines of the centred class means: distance from −1/9", "nc2_equiangular"),
    "nc2cmajor": Row(f"NC2, majority {_OWN}", "nc2_etf_distance_majority"),
    "nc2cminor": Row(f"NC2, minority {_OWN}", "nc2_etf_distance_minority"),
    "nc2amajor": Row(f"NC2, majority {_ALL}", "nc2_majority_in_all"),
    "nc2aminor": Row(f"NC2, minority {_ALL}", "nc2_minority_in_all"),
    "nc3c": _claimed("nc3_self_duality"),
    "nc3cmajor": Row(f"NC3, majority {_OWN}", "nc3_self_duality_majority"),
    "nc3cminor": Row(f"NC3, minority {_OWN}", "nc3_self_duality_minority"),
    "nc3amajor": Row(f"NC3, majority {_ALL}", "nc3_majority_in_all"),
    "nc3aminor": Row(f"NC3, minority {_ALL}", "nc3_minority_in_all"),
    "eq13": _claimed("paper_eq13_uncentred"),
    "eq13paper": Row(
        "NC2, eq. 13 with the paper's constant, 1/(K−1)", "paper_eq13_uncentred_printed_constant"
    ),
    "eq14": _claimed("paper_eq14_uncentred"),
    "nc1": _claimed("nc1_pinv"),
    "nc1class": Row(
        "NC1, eq. 12, within-class variance averaged over classes", "nc1_pinv_class_balanced"
    ),
    "trace": _claimed("nc1_trace_ratio"),
    "tracemajor": Row("trace ratio, majority classes alone", "nc1_trace_ratio_majority"),
    "traceminor": Row("trace ratio, minority classes alone", "nc1_trace_ratio_minority"),
    "traceimages": Row("trace ratio, both variances averaged over images", "trace_ratio_of_images"),
    "traceclasses": Row(
        "trace ratio, both variances averaged over classes", "trace_ratio_of_classes"
    ),
    "minoritycos": _cosine("cosine between minority classifiers", "minority_cosine"),
    "cos": _cosine(f"{_COSINE}, uncentred", "class_cosine", "higher (Theorem 4.1)"),
    "cosc": _cosine(f"{_COSINE}, centred", "class_cosine_centred", "higher (Theorem 4.1)"),
    "acc": _accuracy_row("class-balanced test accuracy", "accuracy_balanced", "higher"),
    "accadj": _accuracy_row(
        f"class-balanced test accuracy {_ADJUSTED}", "accuracy_balanced.adjusted"
    ),
    "majority": _accuracy_row("test accuracy, majority classes", "accuracy_majority"),
    "majorityadj": _accuracy_row(
        f"test accuracy, majority classes, {_ADJUSTED}", "accuracy_majority.adjusted"
    ),
    "minority": _accuracy_row("test accuracy, minority classes", "accuracy_minority"),
    "minorityadj": _accuracy_row(
        f"test accuracy, minority classes, {_ADJUSTED}", "accuracy_minority.adjusted"
    ),
    "prior": _accuracy_row(
        "test accuracy, classes weighted as in training", "accuracy_train_prior"
    ),
    "loss": Row("training loss", "loss"),
}
"""By the short names that the functions below take."""
LAST_TEN = ROWS["acc"]._replace(label="accuracy over the last ten epochs", how="last_epochs")
"""The accuracy as the paper's tables have it."""
EVERY = {**ROWS, "acc10": LAST_TEN}

_POOLED = ("trace", "nc1", "eq13", "nc2c", "eq14", "nc3c")
COLLAPSE_LABELS = {ROWS[name].metric: ROWS[name].label for name in _POOLED}
"""The metrics of `COLLAPSE` and their labels, in the order of the pooled tables."""
TESTED_FIRST = ("nc2c", "nc3c", "eq13", "eq14", "nc1", "trace", "acc")
TESTED_AGAIN = ("nc2c", "nc3c", "eq14", "eq13", "cosc", "acc", "nc1")
"""In the order of the page of protocol 2; the first two are primary."""
ESTIMATED_AGAIN = ("trace", "cos", "majority", "minority", "loss")

SPLITS = {
    "eq14": "NC3, eq. 14",
    "nc2c": "NC2, centred",
    "nc3c": "NC3, centred",
    "nc2cc": "NC2, centred before the exchange",
    "nc3cc": "NC3, centred before the exchange",
}
"""Metrics that are split into norms and directions, by short names ("cc": centred before)."""
PARTS = {
    "norms": "its norms, ResNet-18's directions",
    "directions": "its directions, ResNet-18's norms",
}
PARTS_OF_NC1 = (
    "norm of class means, minority / majority",
    "tr Σ_B, between-class variance",
    "tr Σ_W, within-class variance averaged over images",
    "within-class variance of a minority class",
    "within-class variance of a majority class",
)
NO_MINORITY = (
    "nc2cmajor",
    "nc2cminor",
    "nc2amajor",
    "nc2aminor",
    "nc3cmajor",
    "nc3cminor",
    "nc3amajor",
    "nc3aminor",
    "tracemajor",
    "traceminor",
    "minoritycos",
    "accadj",
    "minorityadj",
    "majorityadj",
    "majority",
    "minority",
)
"""Rows that balanced classes do not have."""


# --- the runs -------------------------------------------------------------------------------------


@functools.cache
def tracked(fresh: bool = False) -> pd.DataFrame:
    """Tidy frame of the runs of the first experiment, or of the new seeds of the replication, with
    the cosines of class means and classifier rows and the parts of NC1."""
    store = reference_store()
    collection = protocol2.COLLECTION if fresh else "cifar10-full"
    listing = paths.reference() / collection / "runs.json"
    ids = list(json.loads(listing.read_text("utf-8")))
    arrays = {run: store.open(run).arrays for run in ids}
    frame = add_cosines(store.frame(ids), arrays)
    last = frame[(frame["split"] == "train") & (frame["epoch"] == frame["epoch"].max())]
    rows = []
    for run, of_run in last.groupby("run_id"):
        for name, value in _from_arrays(of_run, arrays[run]).items():
            rows.append({**of_run.iloc[0], "metric": name, "value": value})
    return pd.concat([frame, pd.DataFrame(rows).astype(frame.dtypes)], ignore_index=True)


def _of(frame: pd.DataFrame, settings: tuple[tuple[int, int], ...]) -> pd.DataFrame:
    keys = zip(frame["K_A"].fillna(0), frame["R"], strict=True)
    return frame[[key in settings for key in keys]]


@functools.cache
def _compared(row: Row, settings: tuple[tuple[int, int], ...], fresh: bool = False) -> Pairs:
    frame = _of(tracked(fresh), settings)
    return pairs(frame, row.metric, row.split, row.how, relative=row.relative)  # type: ignore[arg-type]


def compared(row: Row, group: str) -> Pairs:
    """The pairs of a group of settings in the metric of a row."""
    return _compared(row, GROUPS[group], group in FRESH)


@functools.cache
def parts(group: str, metric: str) -> dict[str, Interval]:
    """Intervals over seeds of the log ratios that `exchanged` gives, each seed's mean over
    settings."""
    keys = [*SETTING, "seed"]
    runs = tracked(group in FRESH).drop_duplicates("run_id")
    runs = runs.pivot(index=keys, columns="model", values="run_id").reset_index()
    named = compared(ROWS["eq14"], group).table[keys].merge(runs, on=keys)
    store = reference_store()
    networks = []
    for deq, explicit in named[["deq", "explicit"]].itertuples(index=False):
        networks.append((store.open(deq).arrays, store.open(explicit).arrays))
    ratios = exchanged(networks, metric).assign(seed=named["seed"].to_numpy())
    by_seed = ratios.groupby("seed").mean()
    return {part: interval(by_seed[part]) for part in by_seed}


def _from_arrays(last: pd.DataFrame, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    """`PARTS_OF_NC1`, NC2 and NC3 of some classes among all, and trace ratios with one weighting.

    The stored trace ratio averages its within-class variance over images and the between-class
    variance over classes.

    Parameters
    ----------
    last : the rows of a run at its last epoch
    arrays : of the run
    """
    stored = last.set_index("metric")["value"]
    means = arrays["class_means"].astype(float)
    minority = np.asarray(arrays["minority"], bool)
    values = _some_among_all(means, np.asarray(arrays["classifier"], float), minority)

    images = np.where(minority, 1 / last["R"].iloc[0], 1.0)
    from_mean = ((means - np.average(means, 0, images)) ** 2).sum(1)
    between = means.var(axis=0).sum()
    within = stored["nc1_trace_ratio"] * between
    values["trace_ratio_of_images"] = within / np.average(from_mean, weights=images)
    if not minority.any():
        values["trace_ratio_of_classes"] = stored["nc1_trace_ratio"]
        return values

    small = stored["nc1_trace_ratio_minority"] * means[minority].var(axis=0).sum()
    large = stored["nc1_trace_ratio_majority"] * means[~minority].var(axis=0).sum()
    values["trace_ratio_of_classes"] = np.where(minority, small, large).mean() / between
    norms = np.linalg.norm(means, axis=1)
    ratio = norms[minority].mean() / norms[~minority].mean()
    in_order = (ratio, between, within, small, large)
    values.update(zip(PARTS_OF_NC1, in_order, strict=True))
    return values


def _some_among_all(
    means: np.ndarray, classifier: np.ndarray, minority: np.ndarray
) -> dict[str, float]:
    """NC2 and NC3 of minority and majority classes, centred at the mean of all classes."""
    centred = means - means.mean(axis=0)
    simplex = simplex_etf(len(means), means.shape[1]).numpy()
    distances = {}
    for name, part in (("minority", minority), ("majority", ~minority)):
        products = centred[part] @ centred[part].T
        ideal = simplex[part] @ simplex[part].T
        distances[f"nc2_{name}_in_all"] = eq14(products, ideal)
        distances[f"nc3_{name}_in_all"] = eq14(centred[part], classifier[part])
    return distances


# --- numbers as text ------------------------------------------------------------------------------


def change(name: str, group: str) -> str:
    """The change of a row of `EVERY` in a group of settings, DEQ against ResNet-18, with its
    interval over seeds; "–" where balanced classes have no such row.

    The training distribution of balanced classes is that of the test.
    """
    if group == "balanced" and name in (*NO_MINORITY, "prior"):
        return "–"
    return interval_text(EVERY[name], compared(EVERY[name], group).mean_difference)


def exchange(name: str, part: str, group: str) -> str:
    """The change of a metric of `SPLITS` that norms or directions alone make, with its interval."""
    return percent(parts(group, SPLITS[name])[part])


def both(name: str, group: str, digits: int | None = None) -> str:
    """The two networks' values of a row: "0.841 → 0.659", ResNet-18 first."""
    values = compared(EVERY[name], group).table
    if digits is None:
        digits = 1 if EVERY[name].metric.startswith("accuracy") else 3
    explicit = values["explicit"].mean()
    deq = values["deq"].mean()
    return minus(f"{explicit:.{digits}f} → {deq:.{digits}f}")


def interval_text(row: Row, difference: Interval) -> str:
    """ "−17 % (−21 to −13)", "+1.1 (0.6 to 1.6) points" or "−0.026 (−0.029 to −0.024)"; one seed
    has no interval."""
    if row.relative:
        return percent(difference)
    is_accuracy = row.metric.startswith("accuracy")
    digits = 1 if is_accuracy else 3
    text = f"{difference.mean:+.{digits}f}"
    if difference.n >= MIN_SEEDS:
        low, high = difference.ends()
        text = f"{text} ({low:.{digits}f} to {high:.{digits}f})"
    if is_accuracy:
        text = f"{text} points"
    return minus(text)


def percent(log_ratio: Interval) -> str:
    """A mean of log ratios as a change in percent."""
    low, high = log_ratio.ends()
    ends = [100 * float(np.expm1(value)) for value in (log_ratio.mean, low, high)]
    return percent_text(*ends, log_ratio.n)


def percent_text(change: float, low: float, high: float, seeds: int) -> str:
    """A change in percent with its interval, where there are enough seeds for one.

    Values of ten percent or more have no decimals; nor have the others beside two of these.
    """
    values = (change, low, high)
    large = [abs(value) >= 9.95 for value in values]
    texts = []
    for value, is_large in zip(values, large, strict=True):
        digits = 0 if is_large or sum(large) >= 2 else 1
        texts.append(f"{value:.{digits}f}")
    mean, low_text, high_text = texts
    sign = "+" if change > 0 else ""
    text = f"{sign}{mean} %"
    if seeds >= MIN_SEEDS:
        text = f"{text} ({low_text} to {high_text})"
    return minus(text)


# --- how the figure of every setting is drawn -----------------------------------------------------

LOWER = "#0072B2"
HIGHER = "#D55E00"
NEITHER = "0.35"


def draw_seeds(ax: Axes, compared: Pairs, height: float, hollow: bool = False) -> None:
    """A dot for each seed's log ratio of one setting; seeds that agree stand a little apart.

    Parameters
    ----------
    ax : to draw in
    compared : the pairs of one setting, made with ``relative=True``
    height : of the line
    hollow : drawn so where the setting is not tested
    """
    table = compared.table
    apart = 0.6 * (table["seed"] - table["seed"].mean()) / len(table)
    face = "white" if hollow else "0.6"
    heights = height + apart
    ax.plot(table["difference"], heights, "o", color="0.6", markerfacecolor=face, markersize=3.5)


def draw_mean(ax: Axes, compared: Pairs, height: float, hollow: bool = False) -> None:
    """The mean log ratio with its interval over seeds, in the colour of its side.

    Parameters
    ----------
    ax : to draw in
    compared : the pairs of some settings, made with ``relative=True``
    height : of the line
    hollow : drawn so where the mean is not tested
    """
    over_seeds = compared.mean_difference
    colour = NEITHER
    if over_seeds.significant:
        colour = LOWER if over_seeds.mean < 0 else HIGHER
    face = "white" if hollow else colour
    heights = [height, height]
    ax.plot(over_seeds.ends(), heights, color=colour, linewidth=2, solid_capstyle="butt")
    ax.plot(over_seeds.mean, height, "D", color=colour, markerfacecolor=face, markersize=5)


def percent_axis(
    axes: np.ndarray,
    hollow: bool = False,
    compared: str = "The DEQ against ResNet-18",
    arm: str = "DEQ",
) -> None:
    """Ticks in percent for a shared axis of log ratios, which way is up, and a legend of the marks.

    Parameters
    ----------
    axes : of the whole figure (rows, columns), which share their axes
    hollow : whether hollow marks are drawn
    compared : what the figure compares, as its legend says it
    arm : the network that is lower or higher
    """
    low, high = axes[0, 0].get_xlim()
    widest = max(-low, high)
    doublings = np.arange(-3, 4) * np.ceil(widest / 1.2) / 2  # halves of a doubling where they fit
    candidates = 5 * np.round(20 * np.exp2(doublings) - 20)
    if widest < np.log(1.6):
        candidates = np.arange(-30, 41, 10)  # finer than halves of a doubling
    percents = []
    for value in candidates:
        if low < np.log1p(value / 100) < high:
            percents.append(value)
    texts = [minus(f"{value:+.0f}") if value else "0" for value in percents]
    axes[0, 0].set_xticks(np.log1p(np.divide(percents, 100)), texts)
    for ax in axes[-1]:
        below = ax.get_xaxis_transform()
        place = {"xytext": (0, -24), "textcoords": "offset points", "ha": "center"}
        ax.annotate("← lower    higher →", (0, 0), xycoords=below, **place)
    marks = [
        ("a seed", "o", "0.6", "0.6"),
        (f"mean, {arm} lower", "D", LOWER, LOWER),
        (f"mean, {arm} higher", "D", HIGHER, HIGHER),
        ("mean, interval contains 0", "D", NEITHER, NEITHER),
    ]
    if hollow:
        marks.append(("hollow: not part of a test", "o", "0.6", "white"))
    for label, marker, colour, face in marks:
        look = {"color": colour, "markerfacecolor": face, "markersize": 4}
        axes[0, 0].plot([], marker, label=label, **look)
    title = (
        f"{compared}, change in percent (logarithmic axis); means with 95 % intervals over seeds"
    )
    fig = axes[0, 0].figure
    spacing = {"handletextpad": 0.2, "columnspacing": 1.2}
    fig.legend(loc="outside upper center", title=title, ncols=len(marks), **spacing)


# --- tables of every metric -----------------------------------------------------------------------


def every_metric() -> str:
    """All metrics of `ROWS`: both networks' values at 100 : 1, and the changes by setting."""
    lines = []
    for name, row in ROWS.items():
        changes = [change(name, group) for group in GROUPS_SHOWN]
        lines.append([row.label, both(name, "fresh"), *changes])
    changed = [f"{name}, change" for name in GROUPS_SHOWN.values()]
    return markdown_table(["", "100 : 1, ResNet-18 → DEQ", *changed], lines)


def norms_or_directions() -> str:
    """Metrics of `SPLITS` with the norms of one network and the directions of the other."""
    lines = []
    for name, metric in SPLITS.items():
        row = name.replace("cc", "c")  # as it is, a metric does not depend on when it is centred
        for group, where in GROUPS_SHOWN.items():
            exchanges = [exchange(name, part, group) for part in PARTS]
            lines.append([metric, where, change(row, group), *exchanges])
    return markdown_table(["", "classes", "the DEQ as it is", *PARTS.values()], lines)


def parts_of_nc1() -> str:
    """What the trace ratio is made of, over four imbalanced settings of the first experiment."""
    lines = []
    for name in PARTS_OF_NC1:
        lines.append([name, percent(compared(Row(name, name), "four").mean_difference)])
    return markdown_table(["", "DEQ against ResNet-18"], lines)


# --- tables of the replication --------------------------------------------------------------------


def replication_tests() -> str:
    """The primary, the secondary and the estimated metrics of protocol 2, by setting."""
    words = protocol2.tracked_verdicts()
    lines = []
    for name in (*TESTED_AGAIN, *ESTIMATED_AGAIN):
        row = EVERY[name]
        cells = [change(name, group) for group in FRESH]
        between = compared(row, "fresh").by_setting["difference"].std(ddof=1)
        spread = f"{100 * between:.0f} %" if row.relative else f"{between:.2f}"
        word = words.get(row.metric, "–")
        lines.append([row.label, word, *cells, spread, change(name, "r100")])
        if name == "eq14":
            for part, text in PARTS.items():
                cells = [exchange(name, part, group) for group in FRESH]
                before = exchange(name, part, "r100")
                lines.append([f"{row.label}, {text}", "–", *cells, "–", before])
    heads = ["", "verdict", "mean of the three settings", "K_A = 3", "K_A = 5", "K_A = 7"]
    return markdown_table([*heads, "s.d. between settings", "first experiment"], lines)


def replication_sensitivity() -> str:
    """Both primary metrics of the pairs that each sensitivity analysis keeps."""
    rows = protocol2.tracked_analysis().sensitivity
    lines = []
    for (analysis, k_a), kept in rows.groupby(["analysis", "K_A"], dropna=False):
        which = analysis.replace("one miss", "one misclassified image")
        if not pd.isna(k_a):
            which = f"{which}, K_A = {k_a:g}"
        changes = []
        for row in kept.itertuples():
            changes.append(percent_text(row.change, row.low, row.high, row.seeds))
        lines.append([which, str(kept["seeds"].iloc[0]), *changes])
    return markdown_table(["", "seeds", EVERY["nc2c"].label, EVERY["nc3c"].label], lines)


# --- tables of the first experiment ---------------------------------------------------------------


def without_some_runs() -> str:
    """The changes over the four imbalanced settings, with and without two of them."""
    lines = []
    for name in ("eq13", "eq14", "nc2c", "nc3c", "nc1", "trace", "acc"):
        table = compared(ROWS[name], "four").table
        cells = []
        for left_out in (None, UNJUDGED, KNOWN):
            kept = table
            if left_out is not None:
                k_a, ratio = left_out
                kept = table[~((table["K_A"] == k_a) & (table["R"] == ratio))]
            by_seed = kept.groupby("seed")["difference"].mean()
            cells.append(interval_text(ROWS[name], interval(by_seed)))
        lines.append([ROWS[name].label, *cells])
    heads = ["", "all four", "without 100 : 1, K_A = 7", "without 100 : 1, K_A = 3"]
    return markdown_table(heads, lines)


def first_verdicts() -> str:
    """The verdicts of the first experiment, setting by setting."""
    lines = []
    for name in TESTED_FIRST:
        digits = 1 if name == "acc" else 3
        cells = []
        for setting in SETTINGS:
            difference, word = _judged(name, setting)
            text = f"{difference.mean:+.{digits}f} ± {difference.half:.{digits}f}"
            cells.append(f"{minus(text)}, *{word}*")
        lines.append([ROWS[name].label, str(ROWS[name].claim), *cells])
    heads = []
    for k_a, ratio in SETTINGS:
        heads.append(f"{ratio} : 1, K_A = {k_a}" if k_a else "balanced")
    return markdown_table(["", "the paper claims: DEQ", *heads], lines)


def _judged(name: str, setting: tuple[int, int]) -> tuple[Interval, str]:
    """The difference in a setting and its verdict; of equality that does not hold, its side."""
    row = ROWS[name]
    claim = row.claim
    phase = "required"
    if name == "acc":
        phase = "described"
    elif setting == BALANCED:
        claim = "equal"
    differences = _compared(row._replace(relative=False), (setting,))
    word = differences.judge("reduced", claim, phase).word
    by_ratio = _compared(row, (setting,)).judge("reduced", claim, phase).word
    shown = word
    if word == "reported" and differences.terminal and differences.mean_difference.side:
        shown = f"{word}: {differences.mean_difference.side}"
    if by_ratio != word:
        shown = f"{shown} (by ratios: {by_ratio})"
    return differences.mean_difference, shown


def accuracies() -> str:
    """Tables 1 to 4: overall accuracy over the last ten epochs and the seeds; ours, the paper's."""
    printed = published().query("dataset == 'cifar10' and split == 'overall'")
    columns = {"balanced": [BALANCED]}
    for k_a in (3, 5, 7):
        columns[f"K_A = {k_a}; 10, 50, 100 : 1"] = [(k_a, 10), (k_a, 50), (k_a, 100)]
    ours = []
    theirs = []
    for model, name in (("explicit", "ResNet-18"), ("deq", "DEQ")):
        means = printed[printed["model"] == model]
        our_cells = []
        their_cells = []
        for settings in columns.values():
            our_cells.append(", ".join(_accuracy(setting, model) for setting in settings))
            values = [_of(means, (setting,))["mean"].iloc[0] for setting in settings]
            their_cells.append(", ".join(f"{value:.2f}" for value in values))
        ours.append([name, *our_cells])
        theirs.append([f"{name}, in the paper", *their_cells])
    return markdown_table(["", *columns], ours + theirs)


def _accuracy(setting: tuple[int, int], model: str) -> str:
    """Mean over seeds in percent, with a star where there are fewer than three; a dash where none
    is trained."""
    if _of(tracked(), (setting,)).empty:
        return "–"
    values = _compared(LAST_TEN, (setting,)).table[model]
    star = "*" if len(values) < MIN_SEEDS else ""
    return f"{values.mean():.1f}{star}"
