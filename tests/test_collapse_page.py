"""The tables of "Does a DEQ collapse better?" are what the tracked runs of profile `full` give."""

import itertools
import json
import re

import numpy as np
import pandas as pd
from spoken import NUMBERS, in_words

import nclib as nc
from nclib.comparison import SETTING, by_run, paired, percent, pooled, ratios, setting, verdict
from nclib.config import run_id
from nclib.engine.partial import PAIR, finished_pairs
from nclib.engine.reference import reference_store
from nclib.papers.neural_collapse.protocol import pooled_ratios
from nclib.system import paths

README = (paths.root() / "README.md").read_text(encoding="utf-8")
PAGE, FINDINGS = ((paths.root() / f"book/{name}.md").read_text(encoding="utf-8") for name in ("collapse", "findings"))
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


def tracked():
    """Tidy frame of all tracked runs of profile `full`."""
    return reference_store().frame(json.loads((paths.reference() / "cifar10-full/runs.json").read_text("utf-8")))


def pooled_rows():
    """Rows of the pooled tests: all settings, without K_A = 3, R = 100, and those in the terminal phase."""
    planned = nc.experiment("neural_collapse/equilibrium_or_cell", "full", dataset=DATA)
    planned = [config for config in planned if config.model.kind in PAIR]
    frame = reference_store().frame(map(run_id, finished_pairs(planned)))
    late = nc.terminal_phase(frame).query("not reached")[SETTING].drop_duplicates()
    reached = frame.merge(late, on=SETTING, how="left", indicator=True).query("_merge == 'left_only'")
    columns = [*_pooled(frame, planned), _pooled(reached, planned)[0]]
    lines = []
    for name, (metric, claim) in METRICS.items():
        tests = [column[metric] for column in columns]
        claimed = SECONDARY.get(name, "DEQ lower" if claim == "lower" else "equal")
        lower = f"{tests[0]['lower_in']} of {tests[0]['cells']}"
        lines.append(f"| {name} | {claimed} | {lower} | {' | '.join(map(_change, tests))} |")
    return lines, [next(iter(column.values())) for column in columns]


def _pooled(frame, planned):
    tests = pooled_ratios(frame, planned, dict(METRICS.values()), "reduced")
    return [found.set_index("metric").to_dict("index") for found in tests]


def table():
    """Rows of the page, and the number of pairs that each setting has."""
    frame, lines, pairs = tracked(), [], {}
    for title, cell in SETTINGS.items():
        here = setting(frame, DATA, *cell)
        seeds = sorted(set.intersection(*(set(here[here["model"] == model]["seed"]) for model in ("explicit", "deq"))))
        here, pairs[title] = here[here["seed"].isin(seeds)], len(seeds)
        if seeds:
            lines.append(f"| **{title}**, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} | | | | | |")
            lines += [_metric(here, name, bool(cell)) for name in METRICS]
            lines.append(_row(here, "loss", "train", "| training loss | {} | {} | | | |", 4))
            lines += [_accuracy(here, name) for name in (ACCURACIES if cell else ["accuracy (%)"])]
    return lines, pairs


FIRST = ("NC2, eq. 13", "NC3, eq. 14", "NC1, eq. 12", "NC1, trace ratio")


def first_rows():
    """Rows of the settings of step 3, and how many pairs they have."""
    frame, lines, pairs = tracked(), [], 0
    for K_A, R in itertools.product((3, 5, 7), (10, 50)):
        here = setting(frame, DATA, K_A, R)
        if f"K_A = {K_A}, R = {R}" in SETTINGS or set(here["model"]) != {*PAIR}:
            continue
        seeds = paired(by_run(here, "loss", "train"))["seed"].tolist()
        start, pairs = f"| K_A = {K_A}, R = {R} | {', '.join(map(str, seeds))} |", pairs + len(seeds)
        here = here[here["seed"].isin(seeds)]
        cells = [_row(here, METRICS[name][0], "train", "{} → {}", 3) for name in FIRST]
        cells += [_row(here, ACCURACIES[name], "test", "{} → {}", 1) for name in list(ACCURACIES)[:2]]
        lines.append(f"{start} {' | '.join(cells)} |")
    return lines, pairs


def accuracy_rows():
    """Tables 1 to 4: overall accuracy, mean of the last ten epochs and of the seeds; ours, and the paper's."""
    printed = pd.read_csv(paths.root() / "data/published/sun_shi_2024_tables.csv")
    printed = printed[(printed["dataset"] == "cifar10") & (printed["split"] == "overall")]
    ours = by_run(percent(tracked()), "accuracy_balanced", "test", "last_epochs")
    pairs = paired(ours)[["K_A", "R", "seed"]]
    both = ours.merge(pairs, on=["K_A", "R", "seed"])
    lines = []
    for start, rows, value in (("", both, "value"), (", printed", printed, "mean")):
        for model, name in (("explicit", "ResNet-18"), ("deq", "DEQ")):
            of_model = rows[rows["model"] == model].fillna({"K_A": 0})
            cells = [
                ", ".join(_mean(of_model[(of_model["K_A"] == K_A) & (of_model["R"] == R)], value) for R in list_of_R)
                for K_A, list_of_R in ((0, [1]), (3, [10, 50, 100]), (5, [10, 50, 100]), (7, [10, 50, 100]))
            ]
            lines.append(f"| {name}{start} | {' | '.join(cells)} |")
    return lines


def _mean(rows, value):
    few = "*" if value == "value" and len(rows) < 3 else ""
    return f"{rows[value].mean() + 1e-6:.{1 if value == 'value' else 2}f}{few}" if len(rows) else "–"


def _metric(frame, name, imbalanced):
    """A difference with its verdict, as the protocol has it, and beside it a change in percent."""
    metric, claim = METRICS[name] if imbalanced else (METRICS[name][0], "equal")
    claimed, said = SECONDARY.get(name, "DEQ lower" if claim == "lower" else "equal"), "| "
    row = nc.claims_table(frame, {metric: claim}, "reduced").iloc[0]
    if row["seeds"] >= 3:
        low, high = row["difference"] - row["half"], row["difference"] + row["half"]
        change = _percents(ratios(frame, [metric], "reduced").iloc[0])[0]
        said = f"{change} % | {row['difference']:+.3f} ({low:.3f} to {high:.3f}), {in_words(row)} "
    return _row(frame, metric, "train", f"| {name} | {{}} | {{}} | {claimed} | {said}|", 3)


def _change(row):
    """A change in percent with its interval and verdict."""
    change, low, high = _percents(row)
    return f"{change} % ({low} to {high}), {in_words(row)}".replace("-", "−")


def _percents(row):
    percents = row["change"], row["low"], row["high"]
    large = sum(abs(value) >= 9.95 for value in percents) >= 2
    change, low, high = (f"{value:.{0 if large or abs(value) >= 9.95 else 1}f}" for value in percents)
    return f"{'+' if row['change'] > 0 else ''}{change}", low, high


def _accuracy(frame, name):
    found, said = pooled(paired(by_run(percent(frame), ACCURACIES[name], "test"))), ""
    if found.n >= 3:
        low, high = found.mean - found.half, found.mean + found.half
        said = f"{found.mean:+.1f} ({low:.1f} to {high:.1f}), {verdict(found, 'reduced', 'higher')[0]} "
    return _row(frame, ACCURACIES[name], "test", f"| {name} | {{}} | {{}} | DEQ higher | | {said}|", 1)


def _row(frame, metric, split, line, digits):
    last = by_run(percent(frame), metric, split).sort_values("seed")
    values = [last[last["model"] == model]["value"] + 1e-6 for model in ("explicit", "deq")]
    return line.format(*(", ".join(f"{value:.{digits}f}" for value in of_model) for of_model in values)).replace(
        "-", "−"
    )


def test_the_rows_of_the_page_are_those_of_the_tracked_runs():
    lines, pairs = table()
    assert PAGE[PAGE.index("| **") :].split("\n\n")[0].splitlines() == lines
    balanced = lines[lines.index("| **balanced**, seeds 0, 1, 2 | | | | | |") :]
    assert [line.split(" | ")[0] for line in balanced if line.endswith("), equal |")] == ["| NC2, eq. 13"]
    assert "Balanced: NC2 equal, the others not." in README
    said = [int(done) for done in re.findall(r"\| (\d+) of \d+ (?:pairs )?\| `(?:fig|table2)", PAGE)]
    first_step = pairs["balanced"] + pairs["K_A = 5, R = 100"]
    lines, third_step = first_rows()
    assert said[:3] == [first_step, sum(pairs.values()) - first_step, third_step]
    assert "---|\n" + "\n".join(lines) + "\n\n" in PAGE


def test_the_accuracies_of_the_findings_are_those_of_the_tracked_runs():
    lines = accuracy_rows()
    assert "---|\n" + "\n".join(lines) + "\n\n" in FINDINGS
    values = [re.findall(r"–|[\d.]{4,}", line.partition(" | ")[2]) for line in lines]
    columns = list(zip(*values, strict=True))
    assert len(columns) == 10
    above = [n for n, (*ours, one, other) in enumerate(columns) if "–" not in ours and not _below(ours, (one, other))]
    assert above == [9] and "below the printed ones, except at K_A = 7, R = 100." in FINDINGS


def _below(ours, printed):
    return all(float(value) < float(there) for value, there in zip(ours, printed, strict=True))


def test_the_pooled_rows_of_the_page_are_those_of_the_tracked_runs():
    lines, decisive = pooled_rows()
    assert "---|\n" + "\n".join(lines) + "\n\n" in PAGE
    answer = PAGE.partition("\n\n")[2].partition("\n\n")[0]
    assert f"{NUMBERS[decisive[0]['cells']]} of nine" in answer
    for test in (decisive[0], decisive[2]):
        assert "{} % ({} to {}".format(*_percents(test)).replace("-", "−") in answer, test


def test_the_page_names_every_network_that_misses_training_images():
    last = by_run(tracked(), "accuracy_train_prior", "train").fillna({"K_A": 10})
    images = 5000 * (last["K_A"] + (10 - last["K_A"]) / last["R"])
    missed = last.assign(images=images, missed=((1 - last["value"]) * images).round())
    missed = missed[missed["missed"] > 0].sort_values("seed")
    assert set(missed["model"]) == {"deq"}
    for (_, _, many), rows in missed.groupby(["K_A", "R", "images"]):
        *most, few = (f"{count:.0f}" for count in rows["missed"])
        assert f"{', '.join(most)}{' and ' * bool(most)}{few} of {many:,.0f}" in PAGE, rows


def test_the_page_says_how_far_apart_the_training_losses_end():
    last = by_run(tracked(), "loss", "train").fillna({"K_A": 10})
    loss = last.pivot(index=["K_A", "R", "seed"], columns="model", values="value")
    times = loss["deq"] / loss["explicit"]
    assert f"training loss is {times.min():.1f} to {times.max():.1f} times" in PAGE


def test_the_norms_and_distances_of_the_page_are_those_of_the_tracked_runs():
    norms, lowest, last, rising = [], [], [], {"explicit": [], "deq": []}
    for (_, model), rows in tracked().groupby(["run_id", "model"]):
        logged = {
            names: one.set_index("epoch")["value"].sort_index() for names, one in rows.groupby(["split", "metric"])
        }
        nc1, norm = logged["train", "nc1_pinv"], logged["train", "feature_norm"]
        assert nc1.is_monotonic_decreasing
        after = nc1[nc1 < 0.1].index[0]
        both = [nc1.index[nc1.index.get_loc(after) - 1], after]
        rising[model].append(norm[after] > norm[both[0]])
        norms.append(np.interp(np.log(0.1), np.log(nc1[both[::-1]]), norm[both[::-1]]))
        assert any(nc1[epoch] >= 0.5 and norm[epoch] <= norms[-1] for epoch in (5, 10))
        if ("steps", "start_distance") in logged:
            distance = logged["steps", "start_distance"]
            lowest, last = [*lowest, distance.min()], [*last, distance.iloc[-1]]
            assert distance.idxmin() <= 16 and round(distance.iloc[0], 1) in (0.5, 0.6)
    assert not any(rising["explicit"]) and rising["deq"].count(False) == 1  # "all DEQs but one"
    said = ["NC1 (eq. 12) falls below 0.1 at norms between {:.1f} and {:.1f}", "between {:.2f} and {:.2f} by epoch 16"]
    said.append("rises again to between {:.2f} and {:.2f}")
    for sentence, values in zip(said, (norms, lowest, last), strict=True):
        assert sentence.format(min(values), max(values)) in PAGE
