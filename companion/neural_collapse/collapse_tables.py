"""Tables and numbers of the page "Does a DEQ collapse better?", from the tracked runs of profile `full`.

Pages hold them between marks that name them, so no number of these runs is typed.
"""

import functools
import itertools
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from companion.neural_collapse.accuracy_tables import published
from companion.neural_collapse.duality import SPLIT, add_cosines, eq14, exchanged
from companion.neural_collapse.protocol import COLLAPSE, KNOWN
from companion.neural_collapse.replication import COLLECTION
from nclib import simplex_etf
from nclib.comparison import MIN_SEEDS, SETTING, Interval, Pairs, interval, pairs
from nclib.engine.reference import reference_store
from nclib.metrics import LABELS
from nclib.publish.numbers import minus, table
from nclib.system import paths

BALANCED = (0, 1)
# K_A and R of the settings with three seeds at R = 100.
R100 = ((3, 100), (5, 100), (7, 100))
R10 = ((3, 10),)
R50 = ((3, 50), (5, 50), (7, 50))
GROUPS = {"r100": R100, "r10": R10, "balanced": (BALANCED,), "four": (*R100, *R10)}
# Those of protocol 2, which has seeds of its own.
FRESH = {"fresh": R100} | {f"fresh{k_a}": ((k_a, ratio),) for k_a, ratio in R100}
GROUPS |= FRESH
# Settings with three seeds, as tables of verdicts list them.
SETTINGS = (R100[1], R100[0], R10[0], R100[2], BALANCED)
# The setting in which two DEQs ended below 99.9 % training accuracy over classes.
UNJUDGED = (7, 100)


class Row(NamedTuple):
    """A metric of the page: label, metric, split, whether logarithms are compared, the paper's claim under imbalance,
    and the epochs judged."""

    label: str
    metric: str
    split: str = "train"
    relative: bool = True
    claim: str | None = None
    how: str = "last"


def _claimed(metric: str) -> Row:
    return Row(LABELS[metric], metric, claim=COLLAPSE[metric])


# Rows of the table of changes, by the short names that spans use.
ROWS = {
    "nc2c": _claimed("nc2_etf_distance"),
    "nc2norm": Row("NC2, centred means: equal lengths", "nc2_equinorm"),
    "nc2angle": Row("NC2, centred means: equal angles", "nc2_equiangular"),
    "nc2cmajor": Row("NC2, majority, its own centre", "nc2_etf_distance_majority"),
    "nc2cminor": Row("NC2, minority, its own centre", "nc2_etf_distance_minority"),
    "nc2amajor": Row("NC2, majority, centre of all", "nc2_majority_in_all"),
    "nc2aminor": Row("NC2, minority, centre of all", "nc2_minority_in_all"),
    "nc3c": _claimed("nc3_self_duality"),
    "nc3cmajor": Row("NC3, majority, its own centre", "nc3_self_duality_majority"),
    "nc3cminor": Row("NC3, minority, its own centre", "nc3_self_duality_minority"),
    "nc3amajor": Row("NC3, majority, centre of all", "nc3_majority_in_all"),
    "nc3aminor": Row("NC3, minority, centre of all", "nc3_minority_in_all"),
    "eq13": _claimed("paper_eq13_uncentred"),
    "eq13printed": Row("NC2, eq. 13 with 1/(K−1)", "paper_eq13_uncentred_printed_constant"),
    "eq14": _claimed("paper_eq14_uncentred"),
    "nc1": _claimed("nc1_pinv"),
    "nc1class": Row("NC1, eq. 12, scatter averaged over classes", "nc1_pinv_class_balanced"),
    "trace": _claimed("nc1_trace_ratio"),
    "tracemajor": Row("trace ratio, majority alone", "nc1_trace_ratio_majority"),
    "traceminor": Row("trace ratio, minority alone", "nc1_trace_ratio_minority"),
    "traceimages": Row("trace ratio, both averages over images", "trace_ratio_of_images"),
    "traceclasses": Row("trace ratio, both averages over classes", "trace_ratio_of_classes"),
    "minoritycos": Row("cos(w_j, w_k) of minority classes", "minority_cosine", relative=False),
    "cos": Row("cos(h_k, w_k), as printed", "class_cosine", relative=False, claim="higher (Theorem 4.1)"),
    "cosc": Row("cos(h_k, w_k), centred", "class_cosine_centred", relative=False, claim="higher (Theorem 4.1)"),
    "acc": Row("test accuracy, over classes", "accuracy_balanced", "test", False, "higher"),
    "accadj": Row("accuracy after logit adjustment", "accuracy_balanced.adjusted", "test", False),
    "majority": Row("accuracy of majority classes", "accuracy_majority", "test", False),
    "majorityadj": Row("majority accuracy after logit adjustment", "accuracy_majority.adjusted", "test", False),
    "minority": Row("accuracy of minority classes", "accuracy_minority", "test", False),
    "minorityadj": Row("minority accuracy after logit adjustment", "accuracy_minority.adjusted", "test", False),
    "prior": Row("accuracy by the training distribution", "accuracy_train_prior", "test", False),
    "loss": Row("training loss", "loss"),
}
# The metrics of `COLLAPSE` and their labels, in the order of the book's tables.
COLLAPSE_LABELS = {ROWS[name].metric: ROWS[name].label for name in ("trace", "nc1", "eq13", "nc2c", "eq14", "nc3c")}
# With the accuracy as the paper's tables have it.
EVERY = ROWS | {"acc10": ROWS["acc"]._replace(label="accuracy over the last ten epochs", how="last_epochs")}
JUDGED = ("nc2c", "nc3c", "eq13", "eq14", "nc1", "trace", "acc")
PRINTED = ("eq13", "eq14", "nc2c", "nc3c")
GROUPS_SHOWN = ("fresh", "r100", "r10", "balanced")
# Metrics split into lengths and angles, by short names ("cc": centred before the exchange), and the parts below a row.
SPLITS = {"eq14": "NC3, eq. 14", "nc2c": "NC2, centred", "nc3c": "NC3, centred"}
SPLITS |= {f"{name}c": f"{SPLITS[name]} before the exchange" for name in ("nc2c", "nc3c")}
PARTS = {"lengths": "its lengths, the ResNet's angles", "angles": "its angles, the ResNet's lengths"}
PARTS_OF_NC1 = (
    "length of class means, minority / majority",
    "tr Σ_B, spread of the class means",
    "tr Σ_W, scatter averaged over images",
    "scatter of a minority class",
    "scatter of a majority class",
)
# Rows that balanced settings do not have.
ALONE = tuple(f"{name}{part}" for name in ("nc2c", "nc2a", "nc3c", "nc3a", "trace") for part in ("major", "minor"))
NO_MINORITY = (*ALONE, "minoritycos", "accadj", "minorityadj", "majorityadj", "majority", "minority")


@functools.cache
def tables() -> dict[str, str]:
    """Markdown tables by name."""
    page = ("protocol 2: ResNet → DEQ", "R = 100, protocol 2", "R = 100, protocol 1", "R = 10, K_A = 3", "balanced")
    of_nc1 = [(name, percent(compared(Row(name, name), "four").interval)) for name in PARTS_OF_NC1]
    return {
        "collapse-changes": table(["", *page], [[ROWS[name].label, _values(name), *changes(name)] for name in ROWS]),
        "collapse-gate": _gate(),
        "collapse-verdicts": _verdicts(),
        "collapse-split": _split(),
        "collapse-parts": table(["", "DEQ / ResNet-18"], of_nc1),
        "collapse-accuracies": _accuracies(),
    }


@functools.cache
def numbers() -> dict[str, str]:
    """Numbers by name: "collapse-nc2c-r100" is the change, with "-ci" behind it its interval as well."""
    found = {}
    for name, row in EVERY.items():
        for group in GROUPS:
            if group != "balanced" or name not in NO_MINORITY:
                change = said(row, compared(row, group).interval)
                found[f"collapse-{name}-{group}"] = change.partition(" (")[0]
                found[f"collapse-{name}-{group}-ci"] = change
    for (name, metric), group in itertools.product(SPLITS.items(), GROUPS):
        for part, values in parts(group, metric).items():
            found[f"collapse-{name}-{part}-{group}"] = percent(values).partition(" (")[0]
            found[f"collapse-{name}-{part}-{group}-ci"] = percent(values)
    lengths = compared(Row(PARTS_OF_NC1[0], PARTS_OF_NC1[0]), "fresh").table
    found |= {f"collapse-length-{model}": f"{lengths[model].mean():.1f}" for model in ("explicit", "deq")}
    return found | _counts() | _missed() | _norms()


# --- the runs -----------------------------------------------------------------------------------------------------


@functools.cache
def tracked(fresh: bool = False) -> pd.DataFrame:
    """Tidy frame of the tracked runs of protocol 1, or of the fresh seeds of protocol 2, with the cosines of class
    means and classifier rows and the parts of NC1."""
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
    return frame[[key in settings for key in zip(frame["K_A"].fillna(0), frame["R"], strict=True)]]


@functools.cache
def _compared(row: Row, settings: tuple[tuple[int, int], ...], fresh: bool = False) -> Pairs:
    frame = _of(tracked(fresh), settings)
    return pairs(frame, row.metric, row.split, row.how, relative=row.relative)  # type: ignore[arg-type]


def compared(row: Row, group: str) -> Pairs:
    """The pairs of a group of settings in the metric of a row."""
    return _compared(row, GROUPS[group], group in FRESH)


# --- the tables ---------------------------------------------------------------------------------------------------


def changes(name: str, groups: tuple[str, ...] = GROUPS_SHOWN) -> list[str]:
    """The changes of a row in groups of settings. Balanced classes have no class groups, and the training distribution
    is that of the test."""
    idle, row = (*NO_MINORITY, "prior"), EVERY[name]
    return ["–" if one == "balanced" and name in idle else said(row, compared(row, one).interval) for one in groups]


def _values(name: str) -> str:
    """Means of both networks over the runs of protocol 2."""
    values, digits = compared(EVERY[name], "fresh").table, 1 if EVERY[name].metric.startswith("accuracy") else 3
    return minus(f"{values['explicit'].mean():.{digits}f} → {values['deq'].mean():.{digits}f}")


def _gate() -> str:
    lines = []
    for name in (*PRINTED, "nc1", "trace", "acc"):
        row, pairs_of = ROWS[name], compared(ROWS[name], "four").table
        setting, pilot = ((pairs_of["K_A"] == k_a) & (pairs_of["R"] == ratio) for k_a, ratio in (UNJUDGED, KNOWN))
        whole, dropped, known = (
            said(row, interval(rows.groupby("seed")["difference"].mean()))
            for rows in (pairs_of, pairs_of[~setting], pairs_of[~pilot])
        )
        lines.append([row.label, whole, dropped, known])
    return table(["", "all runs", "without K_A = 7, R = 100", "without K_A = 3, R = 100"], lines)


def _judged(name: str, one: tuple[int, int]) -> tuple[Pairs, str]:
    """The pairs of a setting, and what they say of the paper's claim; of equality that does not hold, with its side."""
    row = ROWS[name]
    found = _compared(row._replace(relative=False), (one,))
    claim = "equal" if one == BALANCED and name != "acc" else row.claim
    phase = "described" if name == "acc" else "required"
    word = found.verdict("reduced", claim, phase).word
    by_ratio = _compared(row, (one,)).verdict("reduced", claim, phase).word
    different = word == "reported" and found.terminal and found.interval.side
    shown = f"{word}: {found.interval.side}" if different else word
    return found, shown if by_ratio == word else f"{shown} (by ratios: {by_ratio})"


def _verdicts() -> str:
    lines = []
    for name in JUDGED:
        cells, digits = [], 1 if name == "acc" else 3
        for found, word in (_judged(name, one) for one in SETTINGS):
            mean, half = found.interval.mean, found.interval.half
            cells.append(minus(f"{mean:+.{digits}f} ± {half:.{digits}f}") + f", *{word}*")
        lines.append([ROWS[name].label, str(ROWS[name].claim), *cells])
    heads = [f"K_A = {k_a}, R = {ratio}" if k_a else "balanced" for k_a, ratio in SETTINGS]
    return table(["", "the paper: DEQ", *heads], lines)


def parts(group: str, metric: str) -> dict[str, Interval]:
    """Intervals over seeds of the log ratios that `exchanged` gives, each seed's mean over settings."""
    keys, store = [*SETTING, "seed"], reference_store()
    runs = tracked(group in FRESH).drop_duplicates("run_id").pivot(index=keys, columns="model", values="run_id")
    named = compared(ROWS["eq14"], group).table[keys].merge(runs.reset_index(), on=keys)
    both = [[store.open(run).arrays for run in pair] for pair in named[["deq", "explicit"]].to_numpy()]
    found = exchanged(both, metric).assign(seed=named["seed"].to_numpy()).groupby("seed").mean()
    return {part: interval(found[part]) for part in found}


def _split() -> str:
    lines, places = [], ("R = 100, protocol 2", "R = 100, protocol 1", "R = 10", "balanced")
    for metric in SPLIT:
        row = next(ROWS[name] for name in ROWS if metric.startswith(SPLITS.get(name, "–")))
        for group, where in zip(GROUPS_SHOWN, places, strict=True):
            split = parts(group, metric)
            cells = [said(row, compared(row, group).interval), percent(split["lengths"]), percent(split["angles"])]
            lines.append([f"{metric}: {where}", *cells])
    return table(["", "the DEQ as it is", "its lengths, ResNet-18's angles", "its angles, ResNet-18's lengths"], lines)


def _accuracies() -> str:
    """Tables 1 to 4: overall accuracy over the last ten epochs and the seeds; ours, and the paper's."""
    printed = published().query("dataset == 'cifar10' and split == 'overall'")
    columns = {"balanced": [BALANCED]}
    columns |= {f"K_A = {k_a}, R = 10, 50, 100": [(k_a, ratio) for ratio in (10, 50, 100)] for k_a in (3, 5, 7)}
    ours, theirs = [], []
    for model, name in {"explicit": "ResNet-18", "deq": "DEQ"}.items():
        means = printed[printed["model"] == model]
        ours.append([name, *(", ".join(_accuracy(one, model) for one in group) for group in columns.values())])
        cells = [[f"{_of(means, (one,))['mean'].iloc[0]:.2f}" for one in group] for group in columns.values()]
        theirs.append([f"{name}, printed", *map(", ".join, cells)])
    return table(["", *columns], ours + theirs)


def _accuracy(setting: tuple[int, int], model: str) -> str:
    """Mean over seeds in percent, with a star where there are fewer than three; a dash where none is trained."""
    if _of(tracked(), (setting,)).empty:
        return "–"
    values = _compared(EVERY["acc10"], (setting,)).table[model]
    return f"{values.mean():.1f}{'*' * (len(values) < MIN_SEEDS)}"


def _from_arrays(last: pd.DataFrame, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    """`PARTS_OF_NC1` and trace ratios with one weighting, of the last rows of a run. The stored trace ratio averages
    its scatter over images and the spread of the class means over classes."""
    value = last.set_index("metric")["value"]
    means, minority = arrays["class_means"].astype(float), np.asarray(arrays["minority"], bool)
    images = np.where(minority, 1 / last["R"].iloc[0], 1.0)
    centred, simplex = means - means.mean(axis=0), simplex_etf(len(means), means.shape[1]).numpy()
    from_mean = ((means - np.average(means, 0, images)) ** 2).sum(1)
    between, within = means.var(axis=0).sum(), value["nc1_trace_ratio"] * means.var(axis=0).sum()
    found = {"trace_ratio_of_images": within / np.average(from_mean, weights=images)}
    for name, part in (("minority", minority), ("majority", ~minority)):
        products, ideal = centred[part] @ centred[part].T, simplex[part] @ simplex[part].T
        found[f"nc2_{name}_in_all"] = eq14(products, ideal)
        found[f"nc3_{name}_in_all"] = eq14(centred[part], np.asarray(arrays["classifier"], float)[part])
    if not minority.any():
        return found | {"trace_ratio_of_classes": value["nc1_trace_ratio"]}
    lengths = np.linalg.norm(means, axis=1)
    small, large = (
        value[f"nc1_trace_ratio_{name}"] * means[part].var(axis=0).sum()
        for name, part in (("minority", minority), ("majority", ~minority))
    )
    found["trace_ratio_of_classes"] = np.where(minority, small, large).mean() / between
    values = (lengths[minority].mean() / lengths[~minority].mean(), between, within, small, large)
    return found | dict(zip(PARTS_OF_NC1, values, strict=True))


# --- single numbers -----------------------------------------------------------------------------------------------


def _counts() -> dict[str, str]:
    """The pairs of R = 50, those in which the DEQ's training loss ends higher, and the paper's gain in accuracy."""
    found = {one: _compared(ROWS["loss"], (one,)).table["difference"] for one in (*SETTINGS, *R50)}
    loss = pd.concat(found.values())
    printed = _of(published().query("dataset == 'cifar10' and split == 'overall'"), GROUPS["four"])
    means = printed.groupby("model")["mean"].mean()  # the paper's, over the four settings
    return {
        "collapse-pairs-3": str(sum(len(found[one]) for one in R50)),
        "collapse-loss-higher": f"{(loss > 0).sum()} of {len(loss)}",
        "collapse-acc-printed": f"{means['deq'] - means['explicit']:+.1f}",
    }


def _missed() -> dict[str, str]:
    """Training images that the DEQs of `UNJUDGED` miss at the end, by seed; and how many networks of both protocols
    miss any."""
    last = pd.concat([tracked(), tracked(fresh=True)]).query("metric == 'accuracy_train_prior' and split == 'train'")
    last = last[last["epoch"] == last["epoch"].max()]
    images = 5000 * (last["K_A"].fillna(0) + (10 - last["K_A"].fillna(0)) / last["R"])
    missing = last.assign(missed=((1 - last["value"]) * images).round().astype(int)).query("missed > 0")
    found = {f"collapse-missed-{row.seed}": str(row.missed) for row in _of(missing, (UNJUDGED,)).itertuples()}
    counts = missing["model"].value_counts()
    return found | {f"collapse-missing-{model}": str(counts.get(model, 0)) for model in ("deq", "explicit")}


def _norms() -> dict[str, str]:
    """Feature norms at which NC1 falls below 0.1, and distances of equilibria from the start of their solve."""
    crossed, starts = [], []
    for _, run in tracked().groupby("run_id"):
        logged = run.pivot(index="epoch", columns=["split", "metric"], values="value").sort_index()
        train = logged["train"][["nc1_pinv", "feature_norm"]].dropna()
        place = int(np.argmax(train["nc1_pinv"] < 0.1))
        nc1, norm = train.iloc[[place, place - 1]].to_numpy().T
        crossed.append(np.interp(np.log(0.1), np.log(nc1), norm))
        if ("steps", "start_distance") in logged:
            starts.append(logged["steps", "start_distance"].dropna())
    found = {"lowest": [one.min() for one in starts], "last": [one.iloc[-1] for one in starts]}
    distances = {f"collapse-distance-{name}": f"{min(v):.2f} to {max(v):.2f}" for name, v in found.items()}
    return distances | {"collapse-norm": f"{min(crossed):.1f} to {max(crossed):.1f}"}


# --- words --------------------------------------------------------------------------------------------------------


def said(row: Row, found: Interval) -> str:
    """ "−17 % (−21 to −13)", "+1.1 (0.6 to 1.6) points" or "−0.026 (−0.029 to −0.024)"; one seed has no interval."""
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
    return spoken(*(100 * float(np.expm1(value)) for value in (found.mean, *found.ends())), found.n)


def spoken(change: float, low: float, high: float, seeds: int) -> str:
    """A change in percent with its interval, where there are enough seeds for one."""
    values = (change, low, high)
    coarse = sum(abs(value) >= 9.95 for value in values) >= 2
    mean, *ends = (f"{value:.{0 if coarse or abs(value) >= 9.95 else 1}f}" for value in values)
    text = f"{'+' * (change > 0)}{mean} %"
    return minus(f"{text} ({ends[0]} to {ends[1]})" if seeds >= MIN_SEEDS else text)
