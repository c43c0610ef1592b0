"""README: its numbers are those of the stored runs, and its code prints what it shows.

Its links are tested with those of the other pages, in test_docs.py.
"""

import contextlib
import io
import json
import math
import re
from collections import Counter

import pandas as pd
import pytest

from nclib import pairs, paths
from nclib.papers import certify
from nclib.papers.neural_collapse import protocol2, protocol3
from nclib.papers.neural_collapse.accuracy_tables import published
from nclib.papers.neural_collapse.collapse_tables import EVERY, PARTS_OF_NC1, Row, compared
from nclib.papers.neural_collapse.front_figures import turning_back
from nclib.papers.neural_collapse.seli import table as seli_distances
from nclib.provenance import processor_seconds

ROOT = paths.root()
README = (ROOT / "README.md").read_text(encoding="utf-8")
BULLETS = dict(re.findall(r"^- \*\*(.+?)\*\*(.+)$", README, re.MULTILINE))
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def bullet(start):
    """The text of the bullet whose bold words begin so, these words included."""
    (found,) = [f"{bold}{text}" for bold, text in BULLETS.items() if bold.startswith(start)]
    return found


def pair(metric, group, digits=2):
    """Mean values of both networks, "0.84 → 0.66"."""
    values = compared(EVERY[metric], group).table
    return f"{values['explicit'].mean():.{digits}f} → {values['deq'].mean():.{digits}f}"


def ratio(metric, group):
    """What the DEQ's value is of ResNet-18's, as a geometric mean."""
    return math.exp(compared(EVERY[metric], group).mean_difference.mean)


# --- what we found ------------------------------------------------------------------------------


def test_the_claim_at_100_to_1_has_its_verdict_and_its_numbers():
    analysis = protocol2.tracked_analysis()
    text = bullet("CIFAR-10, 100 : 1")
    assert f"the claim is {analysis.verdict}" in text
    assert f"NC2 {pair('nc2c', 'fresh')} and NC3 {pair('nc3c', 'fresh')}" in text
    seeds = f"{WORDS[len(analysis.seeds)]} new seeds ({WORDS[len(protocol2.SEEDS)]} were planned)"
    k_a = ", ".join(map(str, protocol2.TENTHS))
    assert f"{WORDS[len(protocol2.TENTHS)]} settings (K_A = {k_a}) and {seeds}" in text


def test_cifar100_has_its_verdict_and_its_numbers():
    standing = protocol3.standing("E2")
    text = bullet("CIFAR-100, 100 : 1")
    assert f"the claim is {standing.found.word}" in text
    frame = standing.frame[standing.frame["R"] == 100.0]
    said = []
    for metric in protocol2.PRIMARY:
        values = pairs(frame, metric, relative=True).table
        said.append(f"{values['explicit'].mean():.2f} → {values['deq'].mean():.2f}")
    assert "NC2 {} and NC3 {}, in one setting".format(*said) in text
    assert f"{WORDS[len(standing.found.seeds)]} seeds" in text
    small = pairs(frame, "accuracy_minority", "train").table
    fitted = [f"{small['explicit'].mean():.0f} %", f"{small['deq'].mean():.1f} %"]
    assert "ResNet-18 classifies {} correctly and the DEQ {}".format(*fitted) in text
    estimates = standing.found.estimates.set_index("what")
    nc2 = 100 * math.expm1(estimates.loc["R = 10: nc2_etf_distance", "mean"])
    assert f"At 10 : 1, where both fit their images, NC2 is {nc2:.1f} % higher" in text
    low, high = estimates.loc["R = 10: nc3_self_duality", ["low", "high"]]
    assert low < 0 < high


def test_the_other_class_sizes_have_their_numbers():
    text = bullet("CIFAR-10, 10 : 1")
    assert f"NC2 is {pair('nc2c', 'r10')} at 10 : 1" in text
    assert f"{pair('nc2c', 'balanced')} on balanced classes" in text
    for metric in ("nc2c", "nc3c"):
        assert not compared(EVERY[metric], "r10").mean_difference.significant
        assert compared(EVERY[metric], "balanced").mean_difference.side == "higher"
    assert compared(EVERY["nc2c"], "balanced").mean_difference.n == 3 and "Three seeds each" in text


def test_other_definitions_have_their_numbers():
    less = {name: f"{100 * (1 - ratio(name, 'fresh')):.0f} % lower" for name in ("eq13", "eq14")}
    assert f"NC2 is {less['eq13']} and NC3 {less['eq14']}" in bullet("CIFAR-10, 100 : 1")
    more = f"{100 * (ratio('eq13', 'r10') - 1):.0f} % higher"
    nc3 = f"{100 * (ratio('eq14', 'balanced') - 1):.0f} % higher"
    said = f"By the paper's formulas NC2 is {more} at 10 : 1; on balanced classes NC2 is equal and NC3 "
    assert said + nc3 in bullet("CIFAR-10, 10 : 1")
    low, high = compared(EVERY["eq13"], "balanced").mean_difference.ends()
    assert math.log(0.9) < low and high < math.log(1.1)
    text = bullet("The definition")
    seli = seli_distances().loc[100]["means_seli"].unstack()
    assert "the class means of the DEQ are [not closer to SELI]" in text
    assert (seli["DEQ"] > seli["ResNet-18"]).all()


def test_the_block_applied_once_has_its_verdict_and_its_numbers():
    standing = protocol3.standing("E1")
    text = bullet("The cause")
    assert f"*{standing.found.word}*" in text
    for name, metric in zip(("NC2", "NC3"), protocol2.PRIMARY, strict=True):
        once = pairs(standing.frame, metric, against="explicit_matched").table["explicit_matched"]
        networks = pairs(standing.frame, metric).table
        values = [networks["explicit"].mean(), once.mean(), networks["deq"].mean()]
        assert name + " {:.2f} → {:.2f} → {:.2f}".format(*values) in text


def test_the_norms_have_their_numbers():
    norms = compared(Row(PARTS_OF_NC1[0], PARTS_OF_NC1[0]), "fresh").table
    text = bullet("The cause")
    assert f"{norms['explicit'].mean():.1f} times the norm of a majority mean in ResNet-18" in text
    assert f"and {norms['deq'].mean():.1f} times in the DEQ" in text


def test_the_statements_are_counted_as_their_certificates_have_them():
    results = certify.certify(list(certify.STATEMENTS))
    assert all(result.ok for result in results)
    counts = Counter(result.verdict.partition(" if ")[0] for result in results)
    said = {word: WORDS[count] for word, count in counts.items()}
    text = bullet("Theory")
    assert f"{said['holds'].capitalize()} of the paper's {WORDS[len(results)]} statements" in text
    assert f"{said['vacuous']} is vacuous and {said['typo']} is a misprint" in text
    assert f"{said['false'].capitalize()} are false" in text
    false = {result.id for result in results if result.verdict == "false"}
    assert false == {key for key, (name, _) in certify.STATEMENTS.items() if f"({name})" in text}


def test_what_speaks_against_the_claim_has_its_numbers():
    text = bullet("What speaks against")
    assert pair("trace", "fresh", 3) in text
    assert "about twice as high" in text and 1.75 < ratio("loss", "fresh") < 2.25
    adjusted = compared(EVERY["accadj"], "fresh").mean_difference.mean
    trained = compared(EVERY["acc"], "fresh").mean_difference.mean
    assert f"{trained:.1f} percentage points higher, but {-adjusted:.1f} lower after logit" in text
    more = f"{100 * (ratio('nc1', 'fresh') - 1):.0f} % higher"
    assert f"NC1, which the paper finds equal, is {more} by its formula" in text
    rise = turning_back().query("metric == 'NC3'")
    rise = rise.pivot(index="K_A", columns="network", values="rise")
    assert (rise["ResNet-18"] > rise["DEQ"]).all()


def test_the_limits_have_the_accuracies():
    ours = compared(EVERY["acc"], "balanced").table["explicit"].mean()
    paper = published().query("dataset == 'cifar10' and model == 'explicit' and R == 1")
    (theirs,) = paper.loc[paper["split"] == "overall", "mean"]
    assert f"{ours:.0f} % for ResNet-18 on balanced classes, instead of {theirs:.0f} %" in README


# --- commands, speed and the two other papers -----------------------------------------------------


def hours_by_seed(collection):
    """Core-hours of the runs of a collection, by seed."""
    listing = paths.reference() / collection / "runs.json"
    hours = Counter()
    for run in json.loads(listing.read_text(encoding="utf-8")).values():
        if run["config"]["data"].get("ratio", 1.0) > 1:
            hours[run["config"]["seed"]] += processor_seconds(run["provenance"]) / 3600
    return hours


def test_the_cost_of_cifar100_is_that_of_its_runs():
    hours = hours_by_seed("protocol-3-cifar100")
    assert {f"{value:.0f} core-hours a seed" for value in hours.values()} == {"7 core-hours a seed"}
    assert "E2 IMAGES` | 7 core-hours a seed" in README


def test_the_cost_of_the_block_is_that_of_its_runs():
    hours = hours_by_seed("protocol-3-block")
    with_amx = {round(hours[seed]) for seed in (10, 11)}
    without = {round(hours[seed]) for seed in (13, 14)}
    assert (with_amx, without) == ({2}, {4})
    assert "E1 IMAGES` | 2 core-hours a seed with AMX, 4 without" in README


def test_the_cost_of_the_replication_is_that_of_its_runs():
    hours = hours_by_seed("protocol-2")
    assert f"took about {round(sum(hours.values()), -1):.0f} core-hours" in README
    assert f"Our {WORDS[len(hours)]} seeds took" in README
    with_amx = [hours[seed] for seed in (12, 13, 14)]
    assert f"{min(with_amx):.0f} to {max(with_amx):.0f} core-hours a seed with AMX" in README
    assert f"AMX, {hours[10]:.0f} without" in README


def test_the_line_on_speed_is_that_of_the_benchmark():
    rows = pd.read_csv(paths.reference() / "bench/solver.csv")
    rows = rows[rows["part"] == "time to 1e-3"]
    assert rows["machine"].unique().tolist() == ["AMD EPYC, 2 cores"] and set(rows["threads"]) == {
        1
    }
    broyden = [_ratio(rows, case, "nclib Broyden / torchdeq broyden, 20 pairs") for case in CASES]
    fastest = [_ratio(rows, case, "best of each") for case in CASES]
    assert (
        f"takes {broyden[0]:.2f} of the time" in README
        and f"and {broyden[1]:.2f} for one of 512" in README
    )
    assert (
        f"the fastest solver of each library it is {fastest[0]:.2f} and {fastest[1]:.2f}" in README
    )


CASES = ("B=128 C=128", "B=32 C=512")


def _ratio(rows, case, what):
    (value,) = rows.loc[(rows["case"] == case) & rows["what"].str.startswith(what), "ratio"]
    return value


def test_the_sister_papers_have_their_outcomes():
    errors = pd.read_csv(paths.reference() / "sister-papers/ling-errors-quick.csv")
    falling = errors[errors["slope"] + errors["half"] < 0]
    assert set(falling["activation"]) == set(errors["activation"]) and len(falling) == len(errors)
    assert f"all {WORDS[errors['activation'].nunique()]} activations" in bullet("Ling")
    trained = pd.read_csv(paths.reference() / "sister-papers/ling-networks-quick.csv")
    closer = trained[trained["difference"] + trained["half"] < 0]
    assert closer[["trained", "DEQ"]].values.tolist() == [["readout on random features", "ReLU"]]
    assert f"in one case of {WORDS[len(trained)]}: ReLU, with random features" in bullet("Ling")
    verdicts = pd.read_csv(paths.reference() / "sister-papers/wu-verdicts-quick.csv")
    counts = Counter(verdicts.loc[verdicts["part"] == "statement", "verdict"])
    assert f"Of {counts.total()} statements {WORDS[counts['holds']]} hold" in bullet("Wu")
    assert f"{WORDS[counts['typo']]}, in a discussion post, has a misprint" in bullet("Wu")
    assert counts["false"] == counts["contradicted"] == 0 and "none is refuted" in bullet("Wu")


# --- code and links -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block", re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
)
def test_the_code_prints_what_is_shown_below_it(block):
    code, shown = block
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    number = re.compile(r"\d+(?:\.\d+)?(?:e-\d+)?")
    assert number.sub("#", said.getvalue()).split() == number.sub("#", shown).split()
    printed = [float(value) for value in number.findall(said.getvalue())]
    assert printed == pytest.approx([float(value) for value in number.findall(shown)], rel=0.1)


def test_every_block_of_python_shows_its_output():
    assert README.count("```python") == README.count("```text") == 2
