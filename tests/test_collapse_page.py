"""The table of "Does a DEQ collapse better?" is what the tracked runs of profile `full` give."""

import json
import re

from nclib.comparison import by_run, paired, percent, pooled, ratios, setting, verdict
from nclib.engine.reference import reference_store
from nclib.system import paths

PAGE = (paths.root() / "book/collapse.md").read_text(encoding="utf-8")
DATA = "folder:cifar10-jpeg@ef1101d4a992"
SETTINGS = {
    "K_A = 5, R = 100": (5, 100),
    "K_A = 3, R = 100": (3, 100),
    "K_A = 7, R = 100": (7, 100),
    "K_A = 3, R = 10": (3, 10),
    "balanced": (),
}
METRICS = {
    "NC2, eq. 13": ("paper_eq13_uncentred", "lower"),
    "NC2, centred": ("nc2_etf_distance", "lower"),
    "NC3, eq. 14": ("paper_eq14_uncentred", "lower"),
    "NC3, centred": ("nc3_self_duality", "lower"),
    "NC1, eq. 12": ("nc1_pinv", "equal"),
    "NC1, trace ratio": ("nc1_trace_ratio", "equal"),
}
ACCURACIES = {
    "accuracy (%)": "accuracy_balanced",
    "of minority classes": "accuracy_minority",
    "of majority classes": "accuracy_majority",
}
SECONDARY = {"NC2, centred": "as eq. 13", "NC3, centred": "as eq. 14", "NC1, trace ratio": "as eq. 12"}


def table():
    """Rows of the page, and the number of pairs that each setting has."""
    runs = json.loads((paths.reference() / "cifar10-full/runs.json").read_text(encoding="utf-8"))
    frame, lines, pairs = reference_store().frame(runs), [], {}
    for title, cell in SETTINGS.items():
        here = setting(frame, DATA, *cell)
        seeds = sorted(set.intersection(*(set(here[here["model"] == model]["seed"]) for model in ("explicit", "deq"))))
        here, pairs[title] = here[here["seed"].isin(seeds)], len(seeds)
        if seeds:
            lines.append(f"| **{title}**, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} | | | | |")
            lines += [_metric(here, name, bool(cell)) for name in METRICS]
            lines += [_accuracy(here, name) for name in (ACCURACIES if cell else ["accuracy (%)"])]
    return lines, pairs


def _metric(frame, name, imbalanced):
    metric, claim = METRICS[name] if imbalanced else (METRICS[name][0], "equal")
    said, row = "", ratios(frame, {metric: claim}, "reduced").iloc[0]
    if row["seeds"] >= 3:
        percents = row["change"], row["low"], row["high"]
        large = sum(abs(value) >= 9.95 for value in percents) >= 2
        change, low, high = (f"{value:.{0 if large or abs(value) >= 9.95 else 1}f}" for value in percents)
        sign, side = ("+", "higher") if row["change"] > 0 else ("", "lower")
        said = f"{sign}{change} % ({low} to {high}), {row['verdict']}"
        said += f": {side} " if row["verdict"] == "reported" else " "
    claimed = SECONDARY.get(name, "DEQ lower" if claim == "lower" else "equal")
    return _row(frame, metric, "train", f"| {name} | {{}} | {{}} | {claimed} | {said}|", 3)


def _accuracy(frame, name):
    found, said = pooled(paired(by_run(percent(frame), ACCURACIES[name], "test"))), ""
    if found.n >= 3:
        low, high = found.mean - found.half, found.mean + found.half
        said = f"{found.mean:+.1f} ({low:.1f} to {high:.1f}), {verdict(found, 'reduced', 'higher')[0]} "
    return _row(frame, ACCURACIES[name], "test", f"| {name} | {{}} | {{}} | DEQ higher | {said}|", 1)


def _row(frame, metric, split, line, digits):
    last = by_run(percent(frame), metric, split).sort_values("seed")
    values = [last[last["model"] == model]["value"] + 1e-6 for model in ("explicit", "deq")]
    return line.format(*(", ".join(f"{value:.{digits}f}" for value in of_model) for of_model in values)).replace(
        "-", "−"
    )


def test_the_rows_of_the_page_are_those_of_the_tracked_runs():
    lines, pairs = table()
    first, last = PAGE.index("| **"), PAGE.index("\n\n**What decides.**")
    assert PAGE[first:last].splitlines() == lines
    said = [int(done) for done in re.findall(r"\| (\d+) of \d+ (?:pairs )?\| `fig", PAGE)]
    first_step = pairs["balanced"] + pairs["K_A = 5, R = 100"]
    assert said[:2] == [first_step, sum(pairs.values()) - first_step]
