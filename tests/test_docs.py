"""The pages of docs say what the tracked runs say, and what they link and show is there."""

import itertools
import json
import math
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import nclib as nc
from nclib import paths, reproduce
from nclib.compare import by_run, interval, pairs, percent, spread
from nclib.figures import minus
from nclib.metrics import LABELS
from nclib.papers import certify, docs_tables
from nclib.papers.docs_tables import change as row_change
from nclib.papers.docs_tables import difference, read, scorecard
from nclib.papers.neural_collapse import (
    audit,
    collapse_tables,
    front_figures,
    protocol2,
    protocol3,
    seli,
)
from nclib.papers.neural_collapse.accuracy_tables import published
from nclib.papers.neural_collapse.collapse_tables import (
    EVERY,
    FRESH,
    GROUPS,
    PARTS,
    PARTS_OF_NC1,
    SPLITS,
    Row,
    both,
    change,
    compared,
    exchange,
    parts,
    tracked,
)
from nclib.papers.neural_collapse.layer_peeled import loss_lower_bound
from nclib.papers.neural_collapse.theory import STATEMENTS, theory_steps
from nclib.store import reference_store

ROOT = paths.root()
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
FRONT = [ROOT / "README.md", ROOT / "notebooks/README.md", ROOT / "results/README.md"]
NEW_SEEDS = ("fresh3", "fresh5", "fresh7")


def page(name):
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def section(name, heading):
    """The text of a page below a heading, up to the next one of its level."""
    (found,) = re.findall(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", page(name), re.M | re.S)
    return found[1]


def paragraph(name, start):
    """The paragraph that begins with these words, in bold."""
    (found,) = [one for one in page(name).split("\n\n") if one.startswith(f"**{start}")]
    return found


def has(text, *said):
    """Every interval of the text is among what is said, and everything said is in the text."""
    assert [one for one in said if one not in text] == []
    intervals = re.findall(r"\(−?[\d.]+ to −?[\d.]+\)", text)
    assert [one for one in intervals if one not in " ".join(said)] == []


def points(name, group):
    """ "+1.0 points (0.6 to 1.3)"."""
    found = compared(EVERY[name], group).mean_difference
    low, high = found.ends()
    return minus(f"{found.mean:+.1f} points ({low:.1f} to {high:.1f})")


def numbers(values, digits):
    """ "39, 90 and 116"."""
    *first, last = (f"{value:.{digits}f}" for value in values)
    return f"{', '.join(first)} and {last}"


# --- results --------------------------------------------------------------------------------------


def test_the_table_of_results_and_the_verdict():
    text = page("results").partition("\n## ")[0]
    lines = re.findall(r"^\| (?!class sizes|---)(.*) \|$", text.replace("**", ""), re.MULTILINE)
    assert len(lines) == 6
    for group, line in zip(("balanced", "r10", *NEW_SEEDS, "fresh"), lines, strict=True):
        _, seeds, *cells = line.split(" | ")
        assert int(seeds) == compared(EVERY["nc2c"], group).mean_difference.n
        names = ("nc2c", "nc3c")
        assert cells == [f"{both(name, group, 2)}, {change(name, group)}" for name in names]
    found = protocol2.tracked_analysis()
    assert found.verdict == "supported" and len(found.seeds) == 5 and len(protocol2.SEEDS) == 8
    assert "the paper's claim is supported" in text and "on five new seeds. Eight" in text
    assert {
        compared(EVERY[name], "r10").mean_difference.significant for name in ("nc2c", "nc3c")
    } == {False}


def cifar100(ratio):
    frame = protocol3.standing("E2").frame
    return frame[frame["R"] == ratio]


def levels(of_pairs, digits):
    """ "0.41 → 0.50", means of both networks."""
    explicit, deq = (of_pairs.table[name].mean() for name in ("explicit", "deq"))
    return f"{explicit:.{digits}f} → {deq:.{digits}f}"


def test_cifar100():
    text = section("results", "CIFAR-100").replace("**", "")
    found = protocol3.standing("E2").found
    assert f"At 100 : 1 the paper's claim is {found.word}." in text
    for ratio, start in ((100.0, "100 : 1"), (10.0, "10 : 1")):
        cells = [f"{start}, K_A = 50", str(len(found.seeds))]
        for metric in protocol2.PRIMARY:
            both_networks = pairs(cifar100(ratio), metric, relative=True)
            change_of_metric = collapse_tables.percent(both_networks.mean_difference)
            cells.append(f"{levels(both_networks, 2)}, {change_of_metric}")
        assert f"| {' | '.join(cells)} |" in text
    fitted = pairs(cifar100(100.0), "accuracy_minority", "train").table
    said = f"ResNet-18 classifies {fitted['explicit'].mean():.0f} % of them correctly, the DEQ "
    assert said + f"{fitted['deq'].mean():.1f} %" in text
    fitted = pairs(cifar100(100.0), "accuracy_balanced", "train").table
    said = "training accuracy of {:.0f} and {:.0f} %"
    assert said.format(*(fitted[name].mean() for name in ("explicit", "deq"))) in text
    for start, ratio in (("not clearly different at 100 : 1: ", 100.0), ("for the DEQ, ", 10.0)):
        differences = []
        for metric in ("nc1_pinv", "nc1_trace_ratio"):
            compared_metric = pairs(cifar100(ratio), metric, relative=True)
            differences.append(collapse_tables.percent(compared_metric.mean_difference))
        joined = " by eq. 12, " if ratio == 100.0 else " and "
        assert start + joined.join(differences) in text
    solved = cifar100(100.0), cifar100(10.0)
    solved = pd.concat(solved).query("metric == 'solver_converged' and epoch == 40")
    least = solved.groupby("split")["value"].min()
    said = f"at least {100 * least['train']:.2f} % of the training images and "
    assert said + f"{math.floor(100 * least['test'])} % of the test" in section("results", "Limits")
    fitted = pairs(cifar100(10.0), "accuracy_balanced", "train").table
    assert fitted[["explicit", "deq"]].min(axis=None) > 99.8
    accuracies = []
    for ratio in (100.0, 10.0):
        last = pairs(cifar100(ratio), "accuracy_balanced", "test", "last_epochs")
        accuracies.append(f"{levels(last, 1)} %")
    accuracy = found.tests.iloc[2]
    low, high = accuracy["low"], accuracy["high"]
    over_both = minus(f"{accuracy['mean']:+.1f} points ({low:.1f} to {high:.1f})")
    assert f"We have {accuracies[0]} and {accuracies[1]} (class-balanced" in text
    assert f"{over_both} over both together, *{accuracy['verdict']}*" in text
    recognised = pairs(cifar100(100.0), "accuracy_minority", "test", "last_epochs").table
    assert recognised[["explicit", "deq"]].max(axis=None) < 0.1  # percent
    printed = published(3).query("dataset == 'cifar100' and split == 'overall'")
    printed = printed.pivot(index="R", columns="model", values="mean")
    gains = (printed["deq"] - printed["explicit"]).round(1)
    assert f"a gain of {gains[100]} percentage points at 100 : 1 and of {gains[10]} at" in text


def block_once():
    """Metric → mean of the DEQ's block applied once at 100 : 1."""
    frame = protocol3.standing("E1").frame
    found = {}
    for metric in protocol2.PRIMARY:
        table = pairs(frame, metric, against="explicit_matched").table
        found[metric] = table["explicit_matched"].mean()
    return found


def test_equilibrium_or_block():
    text = section("results", "The equilibrium or its block?").replace("**", "")
    standing = protocol3.standing("E1")
    found, frame = standing.found, standing.frame
    assert f"*{found.word}*" in text
    said = {
        row.what: docs_tables._changed(row) for row in protocol3.results([standing]).itertuples()
    }
    lines = []
    settings = {f"K_A = {k_a}": frame[frame["K_A"] == k_a] for k_a in protocol2.TENTHS}
    settings["mean of the three"] = frame
    for name, runs in settings.items():
        cells = [name]
        for metric in protocol2.PRIMARY:
            once = pairs(runs, metric, relative=True, against="explicit_matched")
            middle = once.table["explicit_matched"].mean()
            first, last = levels(pairs(runs, metric), 2).split(" → ")
            percent_of_block = collapse_tables.percent(once.mean_difference)
            cells.append(f"{first} → {middle:.2f} → {last}, {percent_of_block}")
        lines.append(f"| {' | '.join(cells)} |")
    nc2, nc3 = (LABELS[metric] for metric in protocol2.PRIMARY)
    once = "the block applied once against ResNet-18: "
    deq = "DEQ against the block applied once: "
    share = "share of the difference from ResNet-18 that remains: "
    bridge = protocol3.bridges()
    bridge = bridge[bridge["unit"].str.contains("rounded products")]
    assert (bridge["model"] == "deq").all() and set(bridge["seed"]) == {10, 11, 12}
    for name, metric in zip(("Their NC2 moves", "their NC3"), protocol2.PRIMARY, strict=True):
        changes = sorted(100 * np.expm1(bridge[metric]))
        values = minus("{:+.1f}, {:+.1f} and {:+.1f} %".format(*changes))
        mean = interval(bridge[metric])
        assert abs(mean.mean) < mean.half  # "no shift between the processors is shown"
        lines.append(f"{name} by {values}, on average {collapse_tables.percent(mean)}")
    has(
        text,
        *lines,
        f"changes NC2 by {said[once + nc2]} and NC3 by {said[once + nc3]}",
        f"is negative, {said[share + nc2]} in NC2 and {said[share + nc3]} in NC3",
        f"eq. 13 {said[deq + LABELS['paper_eq13_uncentred']]}",
        f"eq. 14 {said[deq + LABELS['paper_eq14_uncentred']]}",
        f"trace ratio {said[deq + LABELS['nc1_trace_ratio']]}",
        f"test accuracy {said[deq + LABELS['accuracy_balanced']]}",
    )
    alike = found.pairs["one kind"]
    rounded = found.pairs["explicit_matched kind"].str.contains("rounded products")
    assert f"Only {alike.sum()} of the {len(alike)} pairs are known to share a kind" in text
    assert f"Of the {len(alike)} blocks, {rounded.sum()} were trained on an AMD" in text
    assert (found.pairs.groupby("seed")["nc2_etf_distance"].mean() > 0).all()
    assert len(found.seeds) == 5 and "higher for all five seeds" in text
    notebook = (ROOT / "notebooks/neural_collapse/collapse.ipynb").read_text(encoding="utf-8")
    assert "(NC2 {:.2f}, NC3 {:.2f})".format(*block_once().values()) in notebook


def test_norms_and_directions():
    # how much larger the norm of a minority class mean is than that of a majority class mean
    norms = compared(Row(PARTS_OF_NC1[0], PARTS_OF_NC1[0]), "fresh").table
    ratios = [f"{norms[model].mean():.1f}" for model in ("explicit", "deq")]
    said = [exchange(name, "directions", "fresh") for name in ("nc2c", "nc3c", "nc2cc", "nc3cc")]
    has(
        section("results", "Norms or directions"),
        "{} times the norm of a majority mean in ResNet-18, and {} times in the DEQ".format(
            *ratios
        ),
        "gone: NC2 {}, NC3 {}. If".format(*said[:2]),
        "a third is left: NC2 {}, NC3 {}".format(*said[2:]),
    )
    for name in ("nc2cc", "nc3cc"):
        split = parts("fresh", SPLITS[name])
        assert 0.3 < split["directions"].mean / split["whole"].mean < 0.4  # about a third
    for name in ("nc2c", "nc3c"):
        split = parts("balanced", SPLITS[name])
        assert split["directions"].mean > 4 * split["norms"].mean > 0


def test_definitions():
    cosines = {"cosc": "means are centred, {} (*supported*)", "cos": "if they are not, {}"}
    has(
        section("results", "Definitions"),
        f"NC3 {change('eq14', 'fresh')}, NC2 {change('eq13', 'fresh')}; both are *supported*",
        f"higher for the DEQ, {change('eq13', 'r10')}, against the claim",
        f"*equal*, {change('eq13', 'balanced')}, and their NC3 higher, {change('eq14', 'balanced')}",
        *(text.format(both(name, "fresh", 2)) for name, text in cosines.items()),
        f"NC2 {change('nc2cmajor', 'fresh')}, NC3 {change('nc3cmajor', 'fresh')}",
        f"NC2 {change('nc2amajor', 'fresh')}, NC3 {change('nc3amajor', 'fresh')}. [Table]",
    )
    words = protocol2.tracked_analysis().secondary.set_index("metric")["verdict"]
    supported = words[words == "supported"].index
    assert {EVERY[name].metric for name in ("eq14", "eq13", "cosc", "acc")} == {*supported}


def test_nc1():
    has(
        section("results", "NC1"),
        f"equal at 100 : 1, {change('nc1', 'fresh')}",
        f"at 10 : 1, {change('nc1', 'r10')}",
        f"on balanced classes, {change('nc1', 'balanced')}",
        f"{both('trace', 'fresh')}, {change('trace', 'fresh')}",
        f"each class counted equally it is {change('traceclasses', 'fresh')}",
        f"each image counted equally {change('traceimages', 'fresh')}",
    )
    assert (
        protocol2.tracked_analysis().secondary.set_index("metric")["verdict"]["nc1_pinv"]
        == "reported"
    )


def test_the_equilibria_of_the_replication_are_solved():
    history = pd.read_csv(paths.reference() / "protocol-2/history.csv.xz")
    deq = history[history["run_id"].str.contains("-deq-") & (history["epoch"] == 40)]
    values = deq.groupby(["split", "metric"])["value"]
    solved = {split: 100 * values.min()[split, "solver_converged"] for split in ("train", "test")}
    evaluations = values.mean()["train", "solver_steps"]
    has(
        section("results", "Limits"),
        "at least 99.99 % of the training images and 99.5 % of the test images",
        f"in {evaluations:.1f} evaluations on average on the training images",
    )
    assert solved["train"] > 99.99
    assert solved["test"] > 99.5
    assert values.max()["steps", "backward_not_converged"] == 0


def test_accuracy():
    gain = compared(EVERY["acc"], "fresh").mean_difference
    ends = "{:.1f} to {:.1f}".format(*gain.ends())
    balanced = compared(EVERY["acc10"], "balanced").table[["explicit", "deq"]].mean()
    has(
        section("results", "Accuracy"),
        f"{both('acc', 'fresh')} %, by {gain.mean:.1f} percentage points ({ends})",
        f"minority classes, {both('minority', 'fresh')} %",
        f"{both('accadj', 'fresh')} %, a difference of {points_of_a_loss('accadj', 'fresh')}",
        f"At 10 : 1 the difference is {points('acc', 'r10')}, not significant",
        f"On balanced classes it is {points('acc', 'balanced')} after the last epoch",
        f"and {points('acc10', 'balanced')} over its last ten epochs, as the paper averages",
        "{:.1f} and {:.1f} % (ResNet-18 and DEQ)".format(*balanced),
        f"about twice as high at 100 : 1, {change('loss', 'fresh')}",
    )
    assert not compared(EVERY["acc"], "r10").mean_difference.significant
    table = dict(re.findall(r"^\| (\w.*?) \| (.*) \|$", collapse_tables.accuracies(), re.MULTILINE))
    above = []
    for name in ("ResNet-18", "DEQ"):
        ours, theirs = (_cells(table[key]) for key in (name, f"{name}, in the paper"))
        above.append([place for place, value in enumerate(ours) if value > theirs[place]])
    assert above == [[9], [9]]  # 100 : 1 with K_A = 7, the last of the ten settings
    assert table["ResNet-18, in the paper"].startswith("93.05")
    assert table["DEQ, in the paper"].startswith("93.23")


def points_of_a_loss(name, group):
    """With the sign of the mean in front of both ends."""
    return points(name, group).lstrip("+")


def _cells(text):
    return [float(value.strip("*").replace("–", "nan")) for value in re.split(r" \| |, ", text)]


def test_minority_collapse():
    cosines = compared(EVERY["minoritycos"], "fresh").table[["explicit", "deq"]].mean()
    has(
        section("results", "Minority collapse"),
        "is {:.2f} in ResNet-18 and {:.2f} in the DEQ".format(*cosines),
        f"a difference of {change('minoritycos', 'fresh')}",
    )


def test_better_or_only_later():
    text = section("results", "Better, or only later?")
    rises = front_figures.turning_back().query("metric == 'NC3'")
    resnet, deq = (rises[rises["network"] == name] for name in ("ResNet-18", "DEQ"))
    assert f"minimum at epochs {resnet['first'].min()} to {resnet['last'].max()} of 40" in text
    assert f"rises, by {numbers(100 * resnet['rise'], 0)} % (K_A = 3, 5, 7)" in text
    assert f"rises by {numbers(100 * deq['rise'], 0)} %." in text
    levels = dict(tuple(front_figures.at_equal_accuracy().groupby("level")["log_ratio"]))
    assert "At 60 % ResNet-18 is closer to collapse in five of six" in text
    assert "at 80 % the DEQ in four" in text and "closer in all six" in text
    closer = {level: (rows < 0).sum() for level, rows in levels.items()}
    assert closer == {0.6: 1, 0.8: 4, 0.9: 6, 0.95: 6}
    ends = -100 * np.expm1(levels[0.95].to_numpy().reshape(3, 2))  # K_A by metric
    spans = [
        f"{low:.0f} to {high:.0f} %" for low, high in zip(ends.min(0), ends.max(0), strict=True)
    ]
    assert "by {} in NC2 and by {} in NC3".format(*spans) in text


def test_seli():
    text = section("results", "Why the simplex ETF?")
    found = seli.table().loc[100].swaplevel()
    resnet, deq, etf = (found.loc[name] for name in ("ResNet-18", "DEQ", "simplex ETF"))
    assert resnet.index.to_list() == [3, 5, 7]
    means, classifier = "means_seli", "classifier_seli"
    assert f"itself is {numbers(etf[means], 2)} away from the class means of SELI" in text
    assert f"of ResNet-18 are {numbers(resnet[means], 2)} away" in text
    assert f"those of the DEQ {numbers(deq[means], 2)}." in text
    assert f"{numbers(resnet[classifier], 2)} for ResNet-18" in text
    assert f"{numbers(deq[classifier], 2)} for the DEQ" in text
    assert f"(the ETF: {numbers(etf[classifier], 2)})" in text
    assert (resnet[classifier] < deq[classifier]).all() and (resnet[means] < deq[means]).all()
    assert (deq["means_etf"] < resnet["means_etf"]).all()


def test_another_processor():
    text = section("results", "On another processor")
    moved = protocol3.bridges()
    names = {"AVX-512 BF16": "AVX-512 BF16", "none, rounded products in float32": "by rounding"}
    assert set(moved["unit"]) == set(names)
    for unit, runs in moved.groupby("unit"):
        nc2, nc3, trace = (100 * np.expm1(runs[metric]) for metric in protocol3.MOVED)
        deq = trace[runs["model"] == "deq"]
        cells = [
            names[unit],
            str(len(runs)),
            f"{nc2.min():+.1f} to {nc2.max():+.1f} %",
            f"{nc3.min():+.1f} to {nc3.max():+.1f} %",
            f"{deq.min():+.0f} to {deq.max():+.0f} %",
        ]
        assert minus(f"| {' | '.join(cells)} |") in text
    deqs = moved[moved["model"] == "deq"]
    assert deqs.groupby("unit")["seed"].nunique().tolist() == [3, 3]
    assert (deqs["nc1_trace_ratio"] > 0).all()
    assert "trace ratio of all three DEQs is higher on both processors" in text
    # "about as much as another seed": the root mean square of the moves, over that of the difference
    # of two seeds
    seeds = tracked(fresh=True).query("K_A == 3 and model == 'deq' and epoch == 40")
    for metric in protocol2.PRIMARY:
        values = seeds.query("metric == @metric and split == 'train'")["value"]
        of_seeds = np.sqrt(2) * np.log(values).std()
        for unit, runs in deqs.groupby("unit"):
            share = np.sqrt((runs[metric] ** 2).mean()) / of_seeds
            moves_less = (unit, metric) == ("AVX-512 BF16", "nc3_self_duality")
            assert share < 0.5 if moves_less else 0.75 < share < 1.25
    stored, there = pair_of_seed_10(moved[moved["unit"] == "AVX-512 BF16"])
    said = ["{:+.1f} % in NC2 and {:+.1f} % in NC3, and", "{:+.1f} % and {:+.1f} % in the stored"]
    has(text, minus(said[0].format(*there)), minus(said[1].format(*stored)))
    middle = 100 * np.expm1(protocol3.bridges(epoch=15)["nc3_self_duality"].abs())
    assert f"at epoch 15, the NC3 of the same run differs by {middle.min():.0f} to" in text
    assert f"{middle.max():.0f} %" in text.partition("at epoch 15")[2]
    assert f"up to {middle.max():.0f} %" in section("results", "Better, or only later?")


def pair_of_seed_10(moved):
    """Changes in percent of NC2 and NC3, DEQ against ResNet-18: stored, and on the other processor."""
    frame = tracked(fresh=True).query("seed == 10 and K_A == 3")
    runs = moved[moved["seed"] == 10].set_index("model")
    found = []
    for metric in protocol2.PRIMARY:
        resnet, deq = (value(frame[frame["model"] == m], metric) for m in ("explicit", "deq"))
        log = np.log(deq / resnet)
        found.append([log, log + runs.loc["deq", metric] - runs.loc["explicit", metric]])
    return 100 * np.expm1(np.transpose(found))


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


def test_limits():
    text = section("results", "Limits")
    missed = missed_images()
    assert (
        set(missed["model"]) == {"deq"}
        and f"{len(missed)} of the 33 DEQs misclassify a few" in text
    )
    at_seven = missed.query("K_A == 7 and R == 100")
    first = at_seven[at_seven["seed"] < 10].sort_values("missed")["missed"]
    assert "all five new ones at K_A = 7" in text and (at_seven["seed"] >= 10).sum() == 5
    assert "misclassified {} and {} training".format(*first) in text
    listing = paths.reference() / protocol2.COLLECTION / "runs.json"
    assert "none of its pairs mixes two kinds" in text
    assert protocol2.mixed(json.loads(listing.read_text("utf-8"))) == "no pair"
    assert "No run of the replication diverged" in text
    assert not any(protocol2.tracked_analysis().replaced.values())
    spans = [compared(EVERY[name], "fresh").by_setting["difference"] for name in ("nc2c", "nc3c")]
    spans = [f"{100 * values.std(ddof=1):.0f} % in" for values in spans]
    assert "standard deviation of {} NC2 and {} NC3".format(*spans) in text


# --- what the prose of the results rests on ----------------------------------------------------------


def value(run_rows, metric, split="train"):
    rows = run_rows[(run_rows["metric"] == metric) & (run_rows["split"] == split)]
    return rows.loc[rows["epoch"].idxmax(), "value"]


def logs_by_hand(metric, group, relative=True):
    frame, seeds = tracked(group in FRESH), range(10, 15) if group in FRESH else range(3)
    found = np.zeros((len(seeds), len(GROUPS[group])))
    for row, place in np.ndindex(found.shape):
        K_A, R = GROUPS[group][place]
        here = frame[
            frame["K_A"].fillna(0).eq(K_A) & frame["R"].eq(R) & frame["seed"].eq(seeds[row])
        ]
        pair = [value(here[here["model"] == model], metric) for model in ("deq", "explicit")]
        pair = np.log(pair) if relative else np.array(pair)
        found[row, place] = pair[0] - pair[1]
    return found


@pytest.mark.parametrize("group", ["fresh", "balanced", "four"])
@pytest.mark.parametrize("name", ["nc2c", "cosc"])
def test_changes_and_intervals_are_those_of_the_runs(name, group):
    row, found = EVERY[name], compared(EVERY[name], group).mean_difference
    seeds = logs_by_hand(row.metric, group, row.relative).mean(axis=1)
    ends = scipy.stats.t.interval(0.95, len(seeds) - 1, seeds.mean(), scipy.stats.sem(seeds))
    assert np.allclose([found.mean, *found.ends()], [seeds.mean(), *ends], atol=1e-12)


def test_the_exchange_of_norms_and_directions_starts_from_eq_14_itself():
    for group in ("fresh", "balanced"):
        whole, stored = (
            parts(group, "NC3, eq. 14")["whole"],
            compared(EVERY["eq14"], group).mean_difference,
        )
        # Arrays are stored rounded.
        assert np.allclose([whole.mean, whole.half], [stored.mean, stored.half], atol=1e-4)


@pytest.mark.parametrize("metric", ["NC3, eq. 14", "NC2, centred", "NC3, centred"])
def test_what_is_lower_at_100_to_1_comes_from_norms(metric):
    found = parts("fresh", metric)
    norms, directions = (found[name].mean / found["whole"].mean for name in PARTS)
    assert norms > 0.95 and abs(directions) < 0.2


# --- theory ---------------------------------------------------------------------------------------


def test_the_statements_have_the_verdicts_of_their_certificates():
    rows = re.findall(
        r"^\| ((?:Lemma|Remark|Theorem|Prop)[^|]*) \|[^|]*\| ([^|]+) \|", _statements(), re.M
    )
    results = certify.certify(list(STATEMENTS))
    assert all(result.ok for result in results)
    assert dict(rows) == {certify.STATEMENTS[one.id][0]: one.verdict for one in results}
    counts = Counter(result.verdict.partition(" if ")[0] for result in results)
    corrected = sum(result.certificate.startswith("Its misprint") for result in results)
    assert counts == {"holds": 6, "false": 2, "vacuous": 1, "typo": 1} and corrected == 4
    text = page("theory")
    assert "**Six of the ten are correct** at the paper's settings, four of them after" in text


def _statements():
    return section("theory", "The ten statements")


def test_the_steps_of_the_proofs_are_counted():
    assert f"We checked {len(theory_steps())} steps of the paper's proofs" in _statements()


def test_the_numbers_of_theory_are_those_of_the_certificates():
    results = certify.certify(["prop42", "b3_v2_gap"])
    checked = " ".join(result.certificate for result in results)
    said = {
        "0.4717…, 1.7627…, 4.3628…": "E0 = 0.4717…, 1.7627…, 4.3628… at K_A = 3, 5, 7",
        "0.00999": "nearly the value in the paper, 0.00999",
        "0.000001": "0.000001 if it starts at i = 1",
    }
    for certified, written in said.items():
        assert certified in checked and written in page("theory")


def test_the_numbers_of_theory_on_the_tables_are_those_of_the_audit():
    accuracies = audit.audit_overall(published())
    balanced = (accuracies["fits"] == "balanced").sum()
    assert (len(accuracies), (accuracies["fits"] == "train prior").sum()) == (36, 0)
    impossible = (~audit.audit_overall_std(published())["possible"]).sum()
    too_large = (~audit.audit_part_std(published())["possible"]).sum()
    least = loss_lower_bound(10, 0.01, 0.01)
    etf = nc.class_moments(nc.simplex_etf(10, 10), np.arange(10), 10)
    lowest = nc.metrics.paper_eq13_uncentred_printed_constant(etf)
    assert too_large == 3 and lowest == pytest.approx(2 / 3)
    text = section("theory", "The numbers in the paper")
    for written in (
        f"Of the 36 overall accuracies of Tables 2 to 4, {balanced} are class-balanced means",
        f"{impossible} of the 36 standard deviations are impossible",
        "Three are larger than any ten accuracies of that mean can have",
        f"could not fall below {math.floor(least * 1e5) / 1e5:.5f}",
        f"guessing gives {math.log(10):.5f}",
        "no features of ten classes get below 2/3",
    ):
        assert written in text


def test_every_certificate_that_theory_names_exists():
    told = re.findall(r"`(?:nclib certify )?([a-z0-9_ ]+)`", page("theory"))
    words = {word for part in told for word in part.split() if "_" in word}
    assert words and words <= {*certify.ids()}


# --- beyond ---------------------------------------------------------------------------------------


def test_norms_at_which_collapse_begins():
    norms, growing = [], {"explicit": [], "deq": []}
    for (_, model), rows in tracked().groupby(["run_id", "model"]):
        train = rows[rows["split"] == "train"]
        logged = train.pivot(index="epoch", columns="metric", values="value").sort_index()
        nc1, norm = logged["nc1_pinv"].dropna(), logged["feature_norm"]
        assert nc1.is_monotonic_decreasing
        after = int((nc1 < 0.1).argmax())
        pair = nc1.index[[after, after - 1]]
        norms.append(np.interp(np.log(0.1), np.log(nc1[pair]), norm[pair]))
        growing[model].append(norm[pair[0]] > norm[pair[1]])
    assert f"between {min(norms):.1f} and {max(norms):.1f}." in paragraph(
        "beyond", "No common norm"
    )
    assert not any(growing["explicit"]) and growing["deq"].count(False) == 1


def test_equilibria_move_away_from_their_start():
    steps = tracked().query("split == 'steps' and metric == 'start_distance' and model == 'deq'")
    runs = [
        rows.set_index("epoch")["value"].dropna().sort_index()
        for _, rows in steps.groupby("run_id")
    ]
    lowest, last = [one.min() for one in runs], [one.iloc[-1] for one in runs]
    text = paragraph("beyond", "Equilibria move away")
    assert f"falls to {min(lowest):.2f} to {max(lowest):.2f} by epoch" in text
    assert f"ends at {min(last):.2f} to {max(last):.2f}." in text
    assert all(one.idxmin() <= 16 for one in runs) and max(one.idxmin() for one in runs) == 16


def row(table, **wanted):
    """The row of a tracked table that has these values."""
    rows = read(table)
    for column, wanted_value in wanted.items():
        rows = rows[rows[column] == wanted_value]
    (found,) = rows.to_dict("records")
    return pd.Series(found)


def scored(item):
    card = scorecard()
    (found,) = card[card["item"] == item].to_dict("records")
    return pd.Series(found)


def lower(found):
    """A decrease without its sign: "8.2 % (5.8 to 10.7)" of an increase stays as it is."""
    return row_change(found).lstrip("+")


def test_digits_claims_and_block():
    configs = nc.experiment("neural_collapse/scorecard", "quick")
    runs = sorted(nc.run_id(config) for config in configs)
    found = pairs(reference_store().frame(runs), "accuracy_balanced", "test", "last_epochs")
    half = f"{found.mean_difference.mean:+.2f} ± {found.mean_difference.half:.2f}"
    steps = {
        (step, metric): row("tables/equilibrium_or_cell-quick", step=step, metric=metric)
        for step in ("DEQ / explicit", "cell / explicit", "DEQ / cell")
        for metric in ("nc1_trace_ratio", "nc2_etf_distance", "nc3_self_duality")
    }
    trace = "nc1_trace_ratio"
    has(
        paragraph("beyond", "The paper's claims."),
        minus(f"{half} percentage points over {found.settings} settings"),
        f"{-steps['DEQ / explicit', trace]['change']:.0f} % lower",
        row_change(steps["DEQ / explicit", "nc2_etf_distance"]),
    )
    tables = [read(f"{place}/equilibrium_or_cell-quick") for place in docs_tables.PROCESSORS]
    pair = tables[0].merge(tables[1], on=["step", "metric"], suffixes=("", "_other"))
    same = (pair["verdict"] == pair["verdict_other"]) & (pair["verdict"] != "not significant")
    has(
        paragraph("beyond", "Block or equilibrium?"),
        f"with the block, {row_change(steps['cell / explicit', trace])}",
        f"with the equilibrium, {row_change(steps['DEQ / cell', trace])}",
        f"by {lower(steps['DEQ / cell', 'nc2_etf_distance'])} and {lower(steps['DEQ / cell', 'nc3_self_duality'])}",
        f"{same.sum()} of {len(pair)} such changes",
    )


def test_digits_controls_remedies_and_long_tails():
    text = paragraph("beyond", "Controls.")
    for network in ("explicit matched", "weight tied", "explicit flops"):
        assert scored(f"controls: accuracy, DEQ − {network}")["verdict"] == "not significant"
    assert f"it is {difference(scored('controls: accuracy, DEQ − explicit matched'))} perc" in text
    remedies = scored("remedies: all five, DEQ − explicit, overall accuracy")
    tail = scored("long tail: all R, DEQ − explicit, overall accuracy")
    text = paragraph("beyond", "Remedies and long tails.")
    assert f"is {difference(remedies)} percentage points" in text
    assert f"exponential imbalance {difference(tail)}." in text
    assert {remedies["verdict"], tail["verdict"]} == {"not significant"}


def test_digits_recipes():
    runs = [run for run in reference_store().ids() if run.startswith("digits-balanced-")]
    slow = reference_store().frame([run for run in runs if _learning_rate(run) == 1e-4])
    last = slow.query("metric == 'accuracy_balanced' and split == 'train' and epoch == 20")
    last = last.set_index("model")["value"]
    said = f"{100 * last['explicit']:.0f} % for ResNet-18 and {100 * last['deq']:.0f} % for the DEQ"
    assert len(last) == 2 and said in paragraph("beyond", "Training configurations.")


def _learning_rate(run):
    return reference_store().open(run).config.get("train", {}).get("lr")


def test_digits_optimisers_and_gradients():
    def optimiser(claim):
        return row("tables/optimisers-quick", claim=claim)

    adam = optimiser("ResNet-18, AdamW / Adam: NC3, centred")
    assert adam["verdict"] == "not significant"
    has(
        paragraph("beyond", "Optimisers."),
        f"{row_change(optimiser('ResNet-18, AdamW / SGD: NC3, centred'))} for ResNet-18",
        f"{row_change(optimiser('DEQ, AdamW / SGD: NC3, centred'))} for the DEQ",
        f"trace ratio of {row_change(optimiser('ResNet-18, AdamW / SGD: NC1, trace ratio'))}",
        f"as AdamW to within {max(-adam['low'], adam['high']):.1f} %",
    )

    def gradient(rule, metric):
        return row("tables/which_gradient-quick", claim=f"{rule} / solved: {metric}")

    two, one = "2 products", "JFB, 1 step"
    assert gradient(two, "NC3, centred")["verdict"] == "equal"
    for metric in ("NC2, centred", "NC1, trace ratio"):
        assert gradient(two, metric)["verdict"] == "not significant"
    has(
        paragraph("beyond", "Gradients."),
        f"NC3 is *equal*, {row_change(gradient(two, 'NC3, centred'))}",
        f"trace ratio {row_change(gradient(one, 'NC1, trace ratio'))}",
        f"NC3 {row_change(gradient(one, 'NC3, centred'))}",
    )


def test_digits_definitions_solver_and_seeds():
    card = scorecard()
    stages = {
        stage: card[card["item"].str.startswith(f"nc definitions, {stage}:")]["verdict"].tolist()
        for stage in ("ReLU", "BatchNorm1d", "GroupNorm")
    }
    assert {*stages["ReLU"], *stages["BatchNorm1d"]} == {"not significant"}
    assert (stages["GroupNorm"].count("higher"), len(stages["GroupNorm"])) == (6, 8)
    text = paragraph("beyond", "Definitions.")
    nc3 = difference(scored("nc definitions, GroupNorm: NC3, centred, DEQ − explicit matched"))
    assert "six of eight definitions" in text and f"centred NC3, {nc3} (" in text

    text = paragraph("beyond", "Solver.")
    first, whole = (
        -scored(f"inside the solver, start → {end}: NC2, centred")["difference"]
        for end in ("one evaluation", "equilibrium")
    )
    assert f"the centred NC2 by {first:.3f}, and the whole solve by {whole:.3f}" in text
    more = difference(scored("solver, minority − majority, test: evaluations"))
    assert f"one evaluation more, {more} (" in text

    ratios = spread_over_seeds()
    said = f"{ratios.min():.1f} to {ratios.max():.1f} times as large, with a median of {ratios.median():.1f}"
    assert said in paragraph("beyond", "Seeds.")


def spread_over_seeds():
    """Standard deviation over seeds over that of the last ten epochs, as the notebook has them."""
    configs = nc.experiment("neural_collapse/seeds_and_subsets", "quick")
    frame = nc.ensure_runs(configs, train="never")
    kinds = {}
    for config in configs:
        kind = "all three" if config.data.majority == "random" else "weights and images"
        kinds[nc.run_id(config)] = "weights alone" if config.data.subset_seed is not None else kind
    frame = frame.assign(kind=frame["run_id"].map(kinds))
    shared = frame[(frame["seed"] == 0) & (frame["kind"] == "weights and images")]
    frame = pd.concat([frame, shared.assign(kind="weights alone")], ignore_index=True)
    found = []
    for _, runs in frame.groupby("kind"):
        for metric in ("accuracy_balanced", "accuracy_minority"):
            for _, each in by_run(percent(runs), metric, "test", "last_epochs").groupby("model"):
                found.append(spread(each["value"])[0] / each["std"].mean())
    return pd.Series(found)


def test_ling():
    errors = read("sister-papers/ling-errors-quick").query(
        "ratio == 'p/n = 0.8' and tau0 == 'empirical'"
    )
    slopes = errors.set_index("activation")[["slope", "verdict"]]
    text = paragraph("beyond", "The kernel of a DEQ")
    said = {name: minus(f"{slope:.2f}") for name, slope in slopes["slope"].items()}
    assert f"log n is {said['relu']}, to tanh, where it is {said['tanh']}" in text
    assert {*slopes["verdict"]} == {"supported"}
    assert (slopes["slope"] < 0).all() and slopes["slope"].idxmin() in (
        "relu",
        "leaky_relu",
        "swish",
    )
    networks = read("sister-papers/ling-networks-quick")
    claimed = networks[networks["verdict"] != "not significant"]
    assert claimed[["trained", "DEQ"]].to_numpy().tolist() == [
        ["readout on random features", "ReLU"]
    ]
    closer = difference(claimed.iloc[0]).lstrip("−")
    assert f"by {closer} percentage points" in paragraph("beyond", "A shallow network")


def test_wu():
    rows = read("sister-papers/wu-verdicts-quick").query("part == 'statement'")
    counts = rows["verdict"].value_counts()
    assert counts.to_dict() == {"holds": 9, "typo": 1, "not significant": 3, "reported": 3}
    text = paragraph("beyond", "Theory: nothing is refuted.")
    assert f"Of {len(rows)} statements, {counts['holds']} hold in every case" in text
    text = paragraph("beyond", "Training: small networks")
    assert (
        f"{counts['not significant']} are not significant, and for {counts['reported']} no" in text
    )
    reported = rows[rows["verdict"] == "reported"]["remark"]
    assert set(reported) == {"no network here learns this target"}


# --- index ----------------------------------------------------------------------------------------


def test_index():
    text = paragraph("index", "Answer.")
    nc2 = both("nc2c", "fresh", 2).split(" → ")
    nc3 = both("nc3c", "fresh", 2).split(" → ")
    assert (
        "are {} away from a simplex ETF in ResNet-18 and {} in the DEQ (NC2)".format(*nc2) in text
    )
    assert "is {} and {} away from the class means (NC3)".format(*nc3) in text
    nc2, nc3 = block_once().values()
    assert f"applied only once, has {nc2:.2f} (NC2) and {nc3:.2f} (NC3)" in text
    assert "six are correct, and two are false" in text


# --- pages as a whole -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_of_tables_is_what_the_command_writes():
    assert page("tables") == docs_tables.page()


def anchors(path):
    """The anchors of a page, as GitHub and the site name its headings."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", [*FRONT, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pictures_are_there_and_no_heading_skips_a_level(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    assert levels[0] == 1
    assert levels.count(1) == 1 or path.stem == "protocol"  # two protocols, each with its title
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_no_page_has_the_title_of_a_notebook():
    """One list of the site has both."""
    titles = [
        reproduce.title(reproduce.source(name)).partition(" · ")[0]
        for name in reproduce.available()
    ]
    own = [path.read_text(encoding="utf-8")[2:].partition("\n")[0] for path in PAGES]
    assert {*own} & {*titles} == set()
