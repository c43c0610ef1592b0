"""What the CIFAR-10 runs of profile `full` say: changes, intervals, and the tables of the docs.

Two collections are compared: the first experiment (protocol 1, seeds 0 to 2) and the replication
(protocol 2, seeds 10 to 14). Everything is computed from the tracked runs.
"""

import functools
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from nclib import paths, simplex_etf
from nclib.compare import MIN_SEEDS, SETTING, Interval, Pairs, interval, pairs
from nclib.figures import markdown_table, minus
from nclib.metrics import LABELS
from nclib.papers.neural_collapse.accuracy_tables import published
from nclib.papers.neural_collapse.duality import add_cosines, eq14, exchanged
from nclib.papers.neural_collapse.protocol import COLLAPSE, KNOWN
from nclib.papers.neural_collapse.replication import COLLECTION
from nclib.store import reference_store

BALANCED = (0, 1)
# K_A and R of the settings with three seeds or more at R = 100.
R100 = ((3, 100), (5, 100), (7, 100))
R10 = ((3, 10),)
R50 = ((3, 50), (5, 50), (7, 50))
GROUPS = {"r100": R100, "r10": R10, "balanced": (BALANCED,), "four": (*R100, *R10)}
# Those of the replication, which has new seeds.
FRESH = {"fresh": R100, "fresh3": (R100[0],), "fresh5": (R100[1],), "fresh7": (R100[2],)}
GROUPS |= FRESH
# Settings of the first experiment with three seeds, as its table of verdicts lists them.
SETTINGS = (R100[1], R100[0], R10[0], R100[2], BALANCED)
# The setting in which two DEQs ended below 99.9 % training accuracy over classes.
UNJUDGED = (7, 100)


class Row(NamedTuple):
    """How a metric is compared: label, metric, split, whether logarithms are compared, the paper's
    claim under imbalance, and the epochs that count."""

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
    "eq13paper": Row("NC2, eq. 13 with the paper's constant, 1/(K−1)", "paper_eq13_uncentred_printed_constant"),
    "eq14": _claimed("paper_eq14_uncentred"),
    "nc1": _claimed("nc1_pinv"),
    "nc1class": Row("NC1, eq. 12, within-class variance averaged over classes", "nc1_pinv_class_balanced"),
    "trace": _claimed("nc1_trace_ratio"),
    "tracemajor": Row("trace ratio, majority classes alone", "nc1_trace_ratio_majority"),
    "traceminor": Row("trace ratio, minority classes alone", "nc1_trace_ratio_minority"),
    "traceimages": Row("trace ratio, both variances averaged over images", "trace_ratio_of_images"),
    "traceclasses": Row("trace ratio, both variances averaged over classes", "trace_ratio_of_classes"),
    "minoritycos": _cosine("cosine between minority classifiers", "minority_cosine"),
    "cos": _cosine("cosine of class mean and classifier, uncentred", "class_cosine", "higher (Theorem 4.1)"),
    "cosc": _cosine("cosine of class mean and classifier, centred", "class_cosine_centred", "higher (Theorem 4.1)"),
    "acc": _accuracy_row("class-balanced test accuracy", "accuracy_balanced", "higher"),
    "accadj": _accuracy_row("class-balanced test accuracy after logit adjustment", "accuracy_balanced.adjusted"),
    "majority": _accuracy_row("test accuracy, majority classes", "accuracy_majority"),
    "majorityadj": _accuracy_row(
        "test accuracy, majority classes, after logit adjustment", "accuracy_majority.adjusted"
    ),
    "minority": _accuracy_row("test accuracy, minority classes", "accuracy_minority"),
    "minorityadj": _accuracy_row(
        "test accuracy, minority classes, after logit adjustment", "accuracy_minority.adjusted"
    ),
    "prior": _accuracy_row("test accuracy, classes weighted as in training", "accuracy_train_prior"),
    "loss": Row("training loss", "loss"),
}
# The metrics of `COLLAPSE` and their labels, in the order of the pooled tables.
_POOLED = ("trace", "nc1", "eq13", "nc2c", "eq14", "nc3c")
COLLAPSE_LABELS = {ROWS[name].metric: ROWS[name].label for name in _POOLED}
# With the accuracy as the paper's tables have it.
LAST_TEN = ROWS["acc"]._replace(label="accuracy over the last ten epochs", how="last_epochs")
EVERY = ROWS | {"acc10": LAST_TEN}
TESTED_FIRST = ("nc2c", "nc3c", "eq13", "eq14", "nc1", "trace", "acc")
GROUPS_SHOWN = {"fresh": "100 : 1", "r10": "10 : 1, K_A = 3", "balanced": "balanced"}
# Metrics that are split into norms and directions, by short names ("cc": centred before).
SPLITS = {
    "eq14": "NC3, eq. 14",
    "nc2c": "NC2, centred",
    "nc3c": "NC3, centred",
    "nc2cc": "NC2, centred before the exchange",
    "nc3cc": "NC3, centred before the exchange",
}
PARTS = {"norms": "its norms, ResNet-18's directions", "directions": "its directions, ResNet-18's norms"}
PARTS_OF_NC1 = (
    "norm of class means, minority / majority",
    "tr Σ_B, between-class variance",
    "tr Σ_W, within-class variance averaged over images",
    "within-class variance of a minority class",
    "within-class variance of a majority class",
)
# Rows that balanced classes do not have.
_ALONE = tuple(
    f"{metric}{group}" for metric in ("nc2c", "nc2a", "nc3c", "nc3a", "trace") for group in ("major", "minor")
)
NO_MINORITY = (*_ALONE, *("minoritycos", "accadj", "minorityadj", "majorityadj", "majority", "minority"))


# --- the runs -------------------------------------------------------------------------------------


@functools.cache
def tracked(fresh: bool = False) -> pd.DataFrame:
    """Tidy frame of the runs of the first experiment, or of the new seeds of the replication, with
    the cosines of class means and classifier rows and the parts of NC1."""
    store = reference_store()
    listing = paths.reference() / (COLLECTION if fresh else "cifar10-full") / "runs.json"
    ids = list(json.loads(listing.read_text("utf-8")))
    arrays = {run: store.open(run).arrays for run in ids}
    frame = add_cosines(store.frame(ids), arrays)
    last = frame[(frame["split"] == "train") & (frame["epoch"] == frame["epoch"].max())]
    rows = [
        {**own.iloc[0], "metric": name, "value": value}
        for run, own in last.groupby("run_id")
        for name, value in _from_arrays(own, arrays[run]).items()
    ]
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
    keys, store = [*SETTING, "seed"], reference_store()
    runs = tracked(group in FRESH).drop_duplicates("run_id")
    runs = runs.pivot(index=keys, columns="model", values="run_id").reset_index()
    named = compared(ROWS["eq14"], group).table[keys].merge(runs, on=keys)
    both = [[store.open(run).arrays for run in pair] for pair in named[["deq", "explicit"]].to_numpy()]
    found = exchanged(both, metric).assign(seed=named["seed"].to_numpy()).groupby("seed").mean()
    return {part: interval(found[part]) for part in found}


def norm_ratio(model: str) -> float:
    """How much larger the norm of a minority class mean is than that of a majority class mean, both
    uncentred: mean over the runs of the replication."""
    row = Row(PARTS_OF_NC1[0], PARTS_OF_NC1[0])
    return float(compared(row, "fresh").table[model].mean())


def missed_images() -> pd.DataFrame:
    """Runs of both experiments that miss training images at the last epoch: seed, K_A, R, model and
    missed, how many."""
    frames = pd.concat([tracked(), tracked(fresh=True)])
    last = frames.query("metric == 'accuracy_train_prior' and split == 'train'")
    last = last[last["epoch"] == last["epoch"].max()]
    majority = last["K_A"].fillna(0)
    images = 5000 * (majority + (10 - majority) / last["R"])
    missed = ((1 - last["value"]) * images).round().astype(int)
    return last.assign(missed=missed).query("missed > 0")[["seed", "K_A", "R", "model", "missed"]]


def _from_arrays(last: pd.DataFrame, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    """`PARTS_OF_NC1` and trace ratios with one weighting, of the last rows of a run. The stored
    trace ratio averages its within-class variance over images and the between-class variance over
    classes."""
    value = last.set_index("metric")["value"]
    means, minority = arrays["class_means"].astype(float), np.asarray(arrays["minority"], bool)
    images = np.where(minority, 1 / last["R"].iloc[0], 1.0)
    centred, simplex = means - means.mean(axis=0), simplex_etf(len(means), means.shape[1]).numpy()
    from_mean = ((means - np.average(means, 0, images)) ** 2).sum(1)
    between = means.var(axis=0).sum()
    within = value["nc1_trace_ratio"] * between
    found = {"trace_ratio_of_images": within / np.average(from_mean, weights=images)}
    for name, part in (("minority", minority), ("majority", ~minority)):
        products, ideal = centred[part] @ centred[part].T, simplex[part] @ simplex[part].T
        classifier = np.asarray(arrays["classifier"], float)[part]
        found[f"nc2_{name}_in_all"] = eq14(products, ideal)
        found[f"nc3_{name}_in_all"] = eq14(centred[part], classifier)
    if not minority.any():
        return found | {"trace_ratio_of_classes": value["nc1_trace_ratio"]}
    norms = np.linalg.norm(means, axis=1)
    small, large = (
        value[f"nc1_trace_ratio_{name}"] * means[part].var(axis=0).sum()
        for name, part in (("minority", minority), ("majority", ~minority))
    )
    found["trace_ratio_of_classes"] = np.where(minority, small, large).mean() / between
    ratio = norms[minority].mean() / norms[~minority].mean()
    values = (ratio, between, within, small, large)
    return found | dict(zip(PARTS_OF_NC1, values, strict=True))


# --- numbers as text ------------------------------------------------------------------------------


def change(name: str, group: str) -> str:
    """The change of a row of `EVERY` in a group of settings, DEQ against ResNet-18, with its
    interval over seeds; "–" where balanced classes have no such row.

    The training distribution of balanced classes is that of the test.
    """
    if group == "balanced" and name in (*NO_MINORITY, "prior"):
        return "–"
    return said(EVERY[name], compared(EVERY[name], group).interval)


def exchange(name: str, part: str, group: str) -> str:
    """The change of a metric of `SPLITS` that norms or directions alone
    make, with its interval."""
    return percent(parts(group, SPLITS[name])[part])


def both(name: str, group: str, digits: int | None = None) -> str:
    """The two networks' values of a row: "0.841 → 0.659", ResNet-18 first."""
    values = compared(EVERY[name], group).table
    if digits is None:
        digits = 1 if EVERY[name].metric.startswith("accuracy") else 3
    means = (values[model].mean() for model in ("explicit", "deq"))
    return minus(" → ".join(f"{mean:.{digits}f}" for mean in means))


def said(row: Row, found: Interval) -> str:
    """ "−17 % (−21 to −13)", "+1.1 (0.6 to 1.6) points" or "−0.026 (−0.029 to −0.024)"; one seed has
    no interval."""
    if row.relative:
        return percent(found)
    digits, unit = (1, " points") if row.metric.startswith("accuracy") else (3, "")
    text = f"{found.mean:+.{digits}f}"
    if found.n >= MIN_SEEDS:
        low, high = found.ends()
        text += f" ({low:.{digits}f} to {high:.{digits}f})"
    return minus(text + unit)


def percent(found: Interval) -> str:
    """A mean of log ratios as a change in percent."""
    values = (found.mean, *found.ends())
    return spoken(*(100 * float(np.expm1(value)) for value in values), found.n)


def spoken(change: float, low: float, high: float, seeds: int) -> str:
    """A change in percent with its interval, where there are enough seeds for one."""
    values = (change, low, high)
    coarse = sum(abs(value) >= 9.95 for value in values) >= 2
    mean, *ends = (f"{value:.{0 if coarse or abs(value) >= 9.95 else 1}f}" for value in values)
    sign = "+" if change > 0 else ""
    text = f"{sign}{mean} %"
    return minus(f"{text} ({ends[0]} to {ends[1]})" if seeds >= MIN_SEEDS else text)


# --- tables ---------------------------------------------------------------------------------------


def every_metric() -> str:
    """All metrics of `ROWS`: both networks' values at 100 : 1, and the changes by setting."""
    heads = ["", "100 : 1, ResNet-18 → DEQ", *(f"{name}, change" for name in GROUPS_SHOWN.values())]
    lines = [
        [row.label, both(name, "fresh"), *(change(name, group) for group in GROUPS_SHOWN)] for name, row in ROWS.items()
    ]
    return markdown_table(heads, lines)


def norms_or_directions() -> str:
    """Metrics of `SPLIT` with the norms of one network and the directions of the other."""
    heads = ["", "classes", "the DEQ as it is", *(text for text in PARTS.values())]
    lines = []
    for name, metric in SPLITS.items():
        row = "nc2c" if name.startswith("nc2") else "nc3c" if name.startswith("nc3") else name
        for group, where in GROUPS_SHOWN.items():
            cells = [change(row, group), *(exchange(name, part, group) for part in PARTS)]
            lines.append([metric, where, *cells])
    return markdown_table(heads, lines)


def parts_of_nc1() -> str:
    """What the trace ratio is made of, over the four imbalanced settings of the first experiment."""
    lines = [(name, percent(compared(Row(name, name), "four").interval)) for name in PARTS_OF_NC1]
    return markdown_table(["", "DEQ against ResNet-18"], lines)


def without_some_runs() -> str:
    """The changes over the four imbalanced settings, with and without two of them."""
    lines = []
    for name in ("eq13", "eq14", "nc2c", "nc3c", "nc1", "trace", "acc"):
        found = compared(ROWS[name], "four").table
        unjudged, pilot = ((found["K_A"] == k_a) & (found["R"] == ratio) for k_a, ratio in (UNJUDGED, KNOWN))
        cells = [
            said(ROWS[name], interval(rows.groupby("seed")["difference"].mean()))
            for rows in (found, found[~unjudged], found[~pilot])
        ]
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
            found, word = _judged(name, setting)
            values = (found.interval.mean, found.interval.half)
            text = minus(f"{values[0]:+.{digits}f} ± {values[1]:.{digits}f}")
            cells.append(f"{text}, *{word}*")
        lines.append([ROWS[name].label, str(ROWS[name].claim), *cells])
    heads = [f"{ratio} : 1, K_A = {k_a}" if k_a else "balanced" for k_a, ratio in SETTINGS]
    return markdown_table(["", "the paper claims: DEQ", *heads], lines)


def _judged(name: str, setting: tuple[int, int]) -> tuple[Pairs, str]:
    """The pairs of a setting and their verdict; of equality that does not hold, with its side."""
    row = ROWS[name]
    found = _compared(row._replace(relative=False), (setting,))
    claim = "equal" if setting == BALANCED and name != "acc" else row.claim
    phase = "described" if name == "acc" else "required"
    word = found.verdict("reduced", claim, phase).word
    by_ratio = _compared(row, (setting,)).verdict("reduced", claim, phase).word
    shown = word
    if word == "reported" and found.terminal and found.interval.side:
        shown = f"{word}: {found.interval.side}"
    return found, shown if by_ratio == word else f"{shown} (by ratios: {by_ratio})"


def accuracies() -> str:
    """Tables 1 to 4: overall accuracy over the last ten epochs and the seeds; ours, the paper's."""
    printed = published().query("dataset == 'cifar10' and split == 'overall'")
    columns = {"balanced": [BALANCED]}
    for k_a in (3, 5, 7):
        columns[f"K_A = {k_a}; 10, 50, 100 : 1"] = [(k_a, ratio) for ratio in (10, 50, 100)]
    ours, theirs = [], []
    for model, name in {"explicit": "ResNet-18", "deq": "DEQ"}.items():
        means = printed[printed["model"] == model]
        groups = columns.values()
        ours.append([name, *(", ".join(_accuracy(one, model) for one in group) for group in groups)])
        cells = [[f"{_of(means, (one,))['mean'].iloc[0]:.2f}" for one in group] for group in groups]
        theirs.append([f"{name}, in the paper", *map(", ".join, cells)])
    return markdown_table(["", *columns], ours + theirs)


def _accuracy(setting: tuple[int, int], model: str) -> str:
    """Mean over seeds in percent, with a star where there are fewer than three; a dash where none
    is trained."""
    if _of(tracked(), (setting,)).empty:
        return "–"
    values = _compared(LAST_TEN, (setting,)).table[model]
    star = "*" if len(values) < MIN_SEEDS else ""
    return f"{values.mean():.1f}{star}"
