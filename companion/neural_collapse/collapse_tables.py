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
from nclib import simplex_etf
from nclib.comparison import MIN_SEEDS, SETTING, Interval, Pairs, interval, pairs, spread, terminal_phase
from nclib.engine.reference import reference_store
from nclib.metrics import LABELS
from nclib.publish.numbers import minus, table
from nclib.system import paths, words

BALANCED = (0, 1)
# K_A and R of the settings with three seeds at R = 100.
R100 = ((3, 100), (5, 100), (7, 100))
R10 = ((3, 10),)
GROUPS = {f"ka{k_a}": ((k_a, ratio),) for k_a, ratio in R100}
GROUPS |= {"r100": R100, "judged100": R100[:2], "r10": R10, "balanced": (BALANCED,), "four": (*R100, *R10)}
# Settings with three seeds, as tables of verdicts list them.
SETTINGS = (R100[1], R100[0], R10[0], R100[2], BALANCED)
# The setting in which two DEQs ended below 99.9 % training accuracy over classes, seeds 0 and 2.
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
GROUPS_SHOWN = ("r100", "r10", "balanced")
FRONT_GROUPS = ("r100", "judged100", "r10", "balanced")
VALUES = "R = 100: ResNet → DEQ"
# Metrics split into lengths and angles, by short names ("cc": centred before the exchange), and the parts below a row.
SPLITS = {"eq14": "NC3, eq. 14", "nc2c": "NC2, centred", "nc3c": "NC3, centred"}
SPLITS |= {f"{name}c": f"{SPLITS[name]} before the exchange" for name in ("nc2c", "nc3c")}
PARTS = {"lengths": "its lengths, the ResNet's angles", "angles": "its angles, the ResNet's lengths"}
# The parts below a row of README.
FRONT_PARTS = {"eq14": ("lengths", "angles"), "nc2c": ("angles",), "nc3c": ("angles",)}
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
    page = ("R = 100, three settings", "R = 10, K_A = 3", "balanced")
    front = ("paper, imbalance: DEQ", VALUES, "R = 100, K_A = 3, 5, 7", "R = 100, judged (K_A = 3, 5)", *page[1:])
    parts = [(name, _percent(compared(Row(name, name), "four").interval)) for name in PARTS_OF_NC1]
    return {
        "collapse-changes": table(
            ["", VALUES, *page], [[ROWS[name].label, _values(name), *_changes(name)] for name in ROWS]
        ),
        "collapse-gate": _gate("four"),
        "collapse-gate-r100": _gate("r100"),
        "collapse-verdicts": _verdicts(),
        "collapse-split": _split(),
        "collapse-spread": _spread(),
        "collapse-one-seed": _one_seed(),
        "collapse-parts": table(["", "DEQ / ResNet-18"], parts),
        "collapse-accuracies": _accuracies(),
        "readme-changes": table(["", *front], _front_changes()),
        "readme-verdicts": _front_verdicts(),
    }


@functools.cache
def numbers() -> dict[str, str]:
    """Numbers by name: "collapse-nc2c-r100" is the change, with "-ci" behind it its interval as well."""
    found = {}
    for name, row in EVERY.items():
        for group in GROUPS:
            if group != "balanced" or name not in NO_MINORITY:
                change = _said(row, compared(row, group).interval)
                found[f"collapse-{name}-{group}"] = change.partition(" (")[0]
                found[f"collapse-{name}-{group}-ci"] = change
    for (name, metric), group in itertools.product(SPLITS.items(), GROUPS):
        for part, values in _parts(group, metric).items():
            found[f"collapse-{name}-{part}-{group}"] = _percent(values).partition(" (")[0]
            found[f"collapse-{name}-{part}-{group}-ci"] = _percent(values)
    lengths = compared(Row(PARTS_OF_NC1[0], PARTS_OF_NC1[0]), "r100").table
    found |= {f"collapse-length-{model}": f"{lengths[model].mean():.1f}" for model in ("explicit", "deq")}
    found["collapse-detectable"] = "{:.1f} to {:.1f} %".format(*_deviations("eq13")[2:])
    return found | _counts() | _missed() | _norms() | _two_processors()


# --- the runs -----------------------------------------------------------------------------------------------------


@functools.cache
def tracked() -> pd.DataFrame:
    """Tidy frame of the tracked runs of profile `full`, with the cosines of class means and classifier rows and the
    parts of NC1."""
    store = reference_store()
    ids = list(json.loads((paths.reference() / "cifar10-full" / "runs.json").read_text("utf-8")))
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
    keys = list(zip(frame["K_A"].fillna(0), frame["R"], strict=True))
    return frame[[key in settings for key in keys]]


@functools.cache
def _compared(row: Row, settings: tuple[tuple[int, int], ...]) -> Pairs:
    return pairs(_of(tracked(), settings), row.metric, row.split, row.how, relative=row.relative)  # type: ignore[arg-type]


def compared(row: Row, group: str) -> Pairs:
    """The pairs of a group of settings in the metric of a row."""
    return _compared(row, GROUPS[group])


# --- the tables ---------------------------------------------------------------------------------------------------


def _changes(name: str, groups: tuple[str, ...] = GROUPS_SHOWN) -> list[str]:
    """The changes of a row in groups of settings. Balanced classes have no class groups, and the training distribution
    is that of the test."""
    idle, row = (*NO_MINORITY, "prior"), EVERY[name]
    return ["–" if one == "balanced" and name in idle else _said(row, compared(row, one).interval) for one in groups]


def _values(name: str) -> str:
    """Means of both networks over the runs at R = 100."""
    values, digits = compared(EVERY[name], "r100").table, 1 if EVERY[name].metric.startswith("accuracy") else 3
    return minus(f"{values['explicit'].mean():.{digits}f} → {values['deq'].mean():.{digits}f}")


def _front_changes() -> list[list[str]]:
    lines = []
    for name in (*JUDGED[:-1], "cos", "cosc", "acc", "accadj", "minority"):
        lines.append([EVERY[name].label, EVERY[name].claim or "–", _values(name), *_changes(name, FRONT_GROUPS)])
        for part in FRONT_PARTS.get(name, ()):
            cells = (_percent(_parts(group, SPLITS[name])[part]) for group in FRONT_GROUPS)
            lines.append([f"– {PARTS[part]}", "–", "–", *cells])
        if name in ("nc2c", "nc3c"):
            alone = f"{name}major"
            lines.append([EVERY[alone].label, "–", _values(alone), *_changes(alone, FRONT_GROUPS)])
    return lines


def _gate(group: str) -> str:
    lines = []
    for name in (*PRINTED, *_turned()) if group == "r100" else (*PRINTED, "nc1", "trace", "acc"):
        row, pairs_of = ROWS[name], compared(ROWS[name], group).table
        setting, pilot = ((pairs_of["K_A"] == k_a) & (pairs_of["R"] == ratio) for k_a, ratio in (UNJUDGED, KNOWN))
        # the settings have unequal seeds without two pairs: each counts alike, without an interval
        left = pairs_of[~(setting & pairs_of["seed"].isin(_below_the_gate()))]
        left = left.groupby(SETTING, dropna=False)["difference"].mean().mean()
        whole, dropped, known = (
            _said(row, interval(rows.groupby("seed")["difference"].mean()))
            for rows in (pairs_of, pairs_of[~setting], pairs_of[~pilot])
        )
        lines.append([row.label, whole, _said(row, interval([left])), dropped, known])
    return table(["", "all runs", "two pairs dropped", "their setting dropped", "K_A = 3, R = 100 dropped"], lines)


def _turned() -> list[str]:
    """Other rows that are significant at R = 100 either with `UNJUDGED` or without it."""
    found = {name: [compared(row, group).interval for group in ("r100", "judged100")] for name, row in ROWS.items()}
    return [name for name, (r, j) in found.items() if name not in PRINTED and r.significant != j.significant]


def _below_the_gate() -> set[int]:
    found = terminal_phase(_of(tracked(), (UNJUDGED,)))
    return set(found[~found["reached"]]["seed"])


def _judged(name: str, one: tuple[int, int]) -> tuple[Pairs, str]:
    """The pairs of a setting, and what they say of the paper's claim; of equality that does not hold, with its side."""
    row = ROWS[name]
    found = _compared(row._replace(relative=False), (one,))
    claim = "equal" if one == BALANCED and name != "acc" else row.claim
    phase = "described" if name == "acc" else "required"
    word = found.verdict("reduced", claim, phase).word
    by_ratio = _compared(row, (one,)).verdict("reduced", claim, phase).word
    different = word == "reported" and found.terminal and found.interval.side
    said = f"{word}: {found.interval.side}" if different else word
    return found, said if by_ratio == word else f"{said} (by ratios: {by_ratio})"


def _verdicts() -> str:
    lines = []
    for name in JUDGED:
        cells, digits = [], 1 if name == "acc" else 3
        for found, word in (_judged(name, one) for one in SETTINGS):
            mean, half = found.interval.mean, found.interval.half
            cells.append(minus(f"{mean:+.{digits}f} ± {half:.{digits}f}") + f", *{word}*")
        lines.append([ROWS[name].label, str(ROWS[name].claim), *cells])
    return table(["", "the paper: DEQ", *(_name(*one) for one in SETTINGS)], lines)


def _front_verdicts() -> str:
    lines = []
    for name in JUDGED:
        row, words_of = ROWS[name], [_judged(name, one)[1] for one in SETTINGS]
        pooled = compared(row, "four")
        word = pooled.verdict("reduced", row.claim, "described").word if name == "acc" else "reported"
        lines.append([f"{row.label}: {row.claim}", *words_of, f"{word}: {_said(row, pooled.interval)}"])
    pilot = "[pilot](book/protocol.md#the-protocol-of-profile-full)"
    known = {KNOWN: f" (seen in a {pilot})", (3, 10): " (the paper plots no metric)"}
    heads = [_name(*one) + known.get(one, "") for one in SETTINGS[:-1]]
    return table(["paper: DEQ", *heads, "balanced: equal (accuracy: higher)", "imbalanced, pooled"], lines)


def _parts(group: str, metric: str) -> dict[str, Interval]:
    """Intervals over seeds of the log ratios that `exchanged` gives, each seed's mean over settings."""
    keys, store = [*SETTING, "seed"], reference_store()
    runs = tracked().drop_duplicates("run_id").pivot(index=keys, columns="model", values="run_id").reset_index()
    named = compared(ROWS["eq14"], group).table[keys].merge(runs, on=keys)
    both = [[store.open(run).arrays for run in pair] for pair in named[["deq", "explicit"]].to_numpy()]
    found = exchanged(both, metric).assign(seed=named["seed"].to_numpy()).groupby("seed").mean()
    return {part: interval(found[part]) for part in found}


def _split() -> str:
    lines = []
    for metric in SPLIT:
        row = next(ROWS[name] for name in ROWS if metric.startswith(SPLITS.get(name, "–")))
        for group, said in zip(GROUPS_SHOWN, ("R = 100", "R = 10", "balanced"), strict=True):
            parts = _parts(group, metric)
            cells = [_said(row, compared(row, group).interval), _percent(parts["lengths"]), _percent(parts["angles"])]
            lines.append([f"{metric}: {said}", *cells])
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


def _deviations(name: str, group: str = "four") -> tuple[tuple[float, float, float], float, float, float]:
    """Of log ratios over a group of settings: standard deviation of the seeds' means with its interval; the one that
    the spreads within settings imply; and the decreases detectable from both."""
    table = compared(ROWS[name], group).table
    means = table.groupby("seed")["difference"].mean()
    pooled = spread(means)
    within = table.groupby(SETTING, dropna=False)["difference"].var(ddof=1)
    implied = float(np.sqrt(within.sum()) / len(within))
    reach = interval(means).detectable / pooled[0]
    return pooled, implied, *(100 * float(-np.expm1(-reach * one)) for one in (pooled[0], implied))


def _spread() -> str:
    lines = []
    for group, name in itertools.product(("r100", "four"), PRINTED):
        (pooled, low, high), implied, seen, expected = _deviations(name, group)
        label = f"{'R = 100' if group == 'r100' else 'four settings'}: {ROWS[name].label}"
        lines.append(
            [label, f"{pooled:.4f} ({low:.4f} to {high:.4f})", f"{implied:.4f}", f"{seen:.1f} %", f"{expected:.1f} %"]
        )
    heads = ["standard deviation of the seeds' means", "as the settings imply", "detectable by the first"]
    return table(["", *heads, "by the second"], lines)


def _one_seed() -> str:
    names = (*PRINTED, "trace", "acc")
    lines = [
        [_name(*one), *(_said(ROWS[name], _compared(ROWS[name], (one,)).interval) for name in names)]
        for one in ((3, 50), (5, 50), (7, 50))
    ]
    return table(["", *(ROWS[name].label for name in names)], lines)


# --- single numbers -----------------------------------------------------------------------------------------------


def _counts() -> dict[str, str]:
    """How many pairs are there, and in how many the DEQ's value is the higher one."""
    steps = {"1": (BALANCED, (5, 100)), "2": ((3, 100), (7, 100), *R10), "3": ((3, 50), (5, 50), (7, 50))}
    every = [one for settings in steps.values() for one in settings]
    counts = {one: len(_compared(ROWS["loss"], (one,)).table) for one in every}
    found = {f"collapse-pairs-{step}": str(sum(counts[one] for one in group)) for step, group in steps.items()}
    differences = {}
    for name in ("loss", "acc", "accadj", "nc2cmajor", "nc3cmajor", "tracemajor", "minoritycos"):
        settings = every if name == "loss" else [one for one in every if one != BALANCED]
        one = pd.concat([_compared(ROWS[name], (one,)).table for one in settings])["difference"]
        found[f"collapse-{name}-higher"], differences[name] = f"{(one > 0).sum()} of {len(one)}", one
    loss = differences["loss"]
    found["collapse-loss-times"] = f"{np.exp(loss[loss > 0].min()):.1f} to {np.exp(loss.max()):.1f}"
    printed = _of(published().query("dataset == 'cifar10' and split == 'overall'"), GROUPS["four"])
    means = printed.groupby("model")["mean"].mean()  # the paper's, over the four settings
    return found | {"collapse-acc-printed": f"{means['deq'] - means['explicit']:+.1f}"}


def _missed() -> dict[str, str]:
    """Training images that the DEQs of `UNJUDGED` miss at the end, by seed; and how many networks miss any."""
    last = tracked().query("metric == 'accuracy_train_prior' and split == 'train'")
    last = last[last["epoch"] == last["epoch"].max()]
    images = 5000 * (last["K_A"].fillna(0) + (10 - last["K_A"].fillna(0)) / last["R"])
    missing = last.assign(missed=((1 - last["value"]) * images).round().astype(int)).query("missed > 0")
    found = {f"collapse-missed-{row.seed}": str(row.missed) for row in _of(missing, (UNJUDGED,)).itertuples()}
    counts = missing["model"].value_counts()
    return found | {f"collapse-missing-{model}": str(counts.get(model, 0)) for model in ("deq", "explicit")}


def _norms() -> dict[str, str]:
    """Feature norms at which NC1 falls below 0.1, and distances of equilibria from the start of their solve."""
    crossed, distances = [], []
    for _, run in tracked().groupby("run_id"):
        logged = run.pivot(index="epoch", columns=["split", "metric"], values="value").sort_index()
        train = logged["train"][["nc1_pinv", "feature_norm"]].dropna()
        place = int(np.argmax(train["nc1_pinv"] < 0.1))
        nc1, norm = train.iloc[[place, place - 1]].to_numpy().T
        crossed.append(np.interp(np.log(0.1), np.log(nc1), norm))
        if ("steps", "start_distance") in logged:
            distances.append(logged["steps", "start_distance"].dropna())
    found = {"lowest": [one.min() for one in distances], "last": [one.iloc[-1] for one in distances]}
    said = {f"collapse-distance-{name}": f"{min(v):.2f} to {max(v):.2f}" for name, v in found.items()}
    return said | {"collapse-norm": f"{min(crossed):.1f} to {max(crossed):.1f}"}


def _two_processors() -> dict[str, str]:
    """How many rows of the scorecard on digits change sign or verdict between two processors."""
    folders = ("tables", "other-processor")
    here, there = (pd.read_csv(paths.reference() / folder / "scorecard-quick.csv") for folder in folders)
    named = {rf"(?<![\w.]){name}(?![\w.])": label for name, label in LABELS.items()}
    there["item"] = there["item"].replace(named, regex=True)  # some went by the names of their functions then
    both = here.merge(there, on=["part", "item"], suffixes=("", "_other"))
    for name in ("regenerated", "regenerated_other"):
        both[name] = both[name].astype(str).str.extract(r"^([+-]?[\d.]+)")[0].astype(float)
    both = both[(both["regenerated"] * both["regenerated_other"]).fillna(0) != 0]
    turned = both["regenerated"] * both["regenerated_other"] < 0
    significant = both["verdict"].isin(words.TAKES_A_SIDE) & both["verdict_other"].isin(words.TAKES_A_SIDE)
    return {
        "processor-signs": f"{turned.sum()} of {len(both)}",
        "processor-verdicts": str((both["verdict"] != both["verdict_other"]).sum()),
        "processor-significant": f"{(turned & significant).sum()} of {significant.sum()}",
    }


# --- words --------------------------------------------------------------------------------------------------------


def _name(majority: int, ratio: int) -> str:
    return f"K_A = {majority}, R = {ratio}" if majority else "balanced"


def _said(row: Row, found: Interval) -> str:
    """ "−17 % (−21 to −13)", "+1.1 (0.6 to 1.6) points" or "−0.026 (−0.029 to −0.024)"; one seed has no interval."""
    if row.relative:
        return _percent(found)
    digits, unit = (1, " points") if row.metric.startswith("accuracy") else (3, "")
    text = f"{found.mean:+.{digits}f}"
    if found.n >= MIN_SEEDS:
        low, high = found.ends()
        text += f" ({low:.{digits}f} to {high:.{digits}f})"
    return minus(text + unit)


def _percent(found: Interval) -> str:
    """A mean of log ratios as a change in percent."""
    values = [100 * float(np.expm1(value)) for value in (found.mean, *found.ends())]
    coarse = sum(abs(value) >= 9.95 for value in values) >= 2
    change, low, high = (f"{value:.{0 if coarse or abs(value) >= 9.95 else 1}f}" for value in values)
    text = f"{'+' * (values[0] > 0)}{change} %"
    return minus(text + f" ({low} to {high})" if found.n >= MIN_SEEDS else text)
