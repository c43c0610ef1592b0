"""Method, record, internals: their outcomes and figures are those of the tracked runs, no word lacks."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from nclib import compare, paths
from nclib.compare import pairs
from nclib.config import run_id
from nclib.papers import certify
from nclib.papers.neural_collapse import protocol2, theory
from nclib.profiles import experiment
from nclib.store import reference_store

DOCS = paths.root() / "docs"
REFERENCE = paths.reference()
METHOD = (DOCS / "method.md").read_text(encoding="utf-8")
RECORD = (DOCS / "record.md").read_text(encoding="utf-8")
INTERNALS = (DOCS / "internals.md").read_text(encoding="utf-8")

PRIMARY = METHOD.partition("## All primary tests")[2]
OUTCOMES = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", PRIMARY, re.MULTILINE))
"""Question → outcome, of all tables of primary tests."""

SCORECARD = {
    "The same in each table": [f"Table {number}: all cells, overall" for number in (1, 2, 3, 4)],
    "Figure 2": ["Figure 2: NC2, centred"],
    "Figure 3(b)": ["Figure 3b: NC2, eq. 13"],
    "Figures 4 and 5": ["Figure 4: NC2, eq. 13", "Figure 5: NC2, eq. 13"],
    "Does the equilibrium matter? (`controls`)": ["controls: accuracy, DEQ − explicit matched"],
    "Equilibrium or block? (`equilibrium_or_cell`)": ["all cells, DEQ / cell: NC1, trace ratio"],
    "Does collapse happen inside the solver? (`solver_and_collapse`)": [
        "inside the solver, start → equilibrium: NC2, centred"
    ],
    "Does a remedy for imbalance remove the difference? (`remedies`)": [
        "remedies: all five, DEQ − explicit, overall accuracy"
    ],
    "Exponential imbalance (`long_tail`)": ["long tail: all R, DEQ − explicit, overall accuracy"],
}
"""Question → the rows of the scorecard on digits that answer it."""


def table(name):
    return pd.read_csv(REFERENCE / f"{name}.csv")


def runs_of(collection):
    ids = json.loads((REFERENCE / collection / "runs.json").read_text(encoding="utf-8"))
    return reference_store().frame(list(ids))


def signed(value, digits):
    return f"{value:+.{digits}f}".replace("-", "−")


# --- the list of primary tests --------------------------------------------------------------------


def test_protocol_2_has_its_verdicts_and_changes():
    analysis = protocol2.tracked_analysis()
    nc2, nc3 = (f"−{-change:.0f} %" for change in analysis.primary["change"])
    assert (
        OUTCOMES["Does the DEQ collapse better at R = 100?"]
        == f"**{analysis.verdict}**: NC2 {nc2}, NC3 {nc3}"
    )
    assert analysis.secondary["verdict"].tolist() == [*["supported"] * 4, "reported"]
    assert f"NC1 is {analysis.secondary['change'].iloc[-1]:.0f} % higher (*reported*)" in METHOD
    assert f"{('no', 'one', 'two', 'three', 'four', 'five')[len(analysis.seeds)]} seeds |" in METHOD


def test_protocol_1_has_its_verdicts():
    pooled = (
        table("tables/collapse_pooled-full")
        .set_index("metric")
        .loc["paper_eq13_uncentred", "verdict"]
    )
    assert {*np.atleast_1d(pooled)} >= {"reported"}
    outcome = OUTCOMES["Is NC2 lower under imbalance?"]
    missed = (
        misclassified(runs_of("cifar10-full"))
        .query("K_A == 7 and R == 100")["images"]
        .sort_values()
    )
    assert outcome.startswith("**reported**")
    assert f"misclassify {missed.iloc[0]} and {missed.iloc[1]} training images" in outcome
    accuracy = table("tables/collapse_accuracy-full").iloc[0]
    said = f"{accuracy['verdict']}, {signed(accuracy['difference'], 1)} percentage points"
    assert OUTCOMES["Is accuracy higher under imbalance?"].endswith(said)


def misclassified(frame):
    """The networks that misclassify training images at their last epoch, and how many."""
    last = frame.query("metric == 'accuracy_train_prior' and split == 'train'")
    last = last[last["epoch"] == last["epoch"].max()]
    majority = last["K_A"].fillna(0)
    images = 5000 * (majority + (10 - majority) / last["R"])
    counted = last.assign(images=((1 - last["value"]) * images).round().astype(int))
    return counted[counted["images"] > 0]


def test_each_primary_row_of_the_scorecard_is_listed_with_its_verdict():
    card = table("tables/scorecard-quick").set_index("item")
    assert {item for items in SCORECARD.values() for item in items} == {
        *card.index[card["lead"].fillna(False).astype(bool)]
    }
    for question, items in SCORECARD.items():
        (verdict,) = {card.loc[item, "verdict"] for item in items}
        assert OUTCOMES[question].startswith(verdict)


def test_the_outcomes_on_digits_have_their_numbers():
    card = table("tables/scorecard-quick").set_index("item")
    block = card.loc["all cells, DEQ / cell: NC1, trace ratio", "regenerated"].partition(" (")[0]
    assert (
        OUTCOMES["Equilibrium or block? (`equilibrium_or_cell`)"]
        == f"lower, {block.replace('-', '−')}"
    )
    inside = card.loc["inside the solver, start → equilibrium: NC2, centred"]
    numbers = f"{signed(float(inside['regenerated']), 3)} ± {inside['interval']:.3f}"
    assert (
        OUTCOMES["Does collapse happen inside the solver? (`solver_and_collapse`)"]
        == f"lower, {numbers}"
    )
    runs = {run_id(config) for config in experiment("neural_collapse/scorecard", "quick")}
    found = pairs(reference_store().frame(sorted(runs)), "accuracy_balanced", "test", "last_epochs")
    verdict = found.judge("toy", "higher", phase="described").word
    numbers = f"{signed(found.mean_difference.mean, 2)} ± {found.mean_difference.half:.2f} percentage points"
    assert OUTCOMES["Is the DEQ more accurate?"] == f"{verdict}, {numbers}" and found.settings == 13


def test_optimisers_and_gradients_have_their_verdicts():
    rows = table("tables/optimisers-quick").query(
        "metric == 'nc3_self_duality' and pair == 'adamw / sgd'"
    )
    rows = rows.set_index("network")
    resnet, deq = (f"{signed(rows.loc[name, 'change'], 1)} %" for name in ("explicit", "deq"))
    assert {*rows.loc[["explicit", "deq"], "verdict"]} == {"as claimed here"}
    assert OUTCOMES["Does the optimiser decide collapse? (`optimisers`)"] == (
        f"as claimed here, {resnet} (the DEQ: {deq}, as claimed here)"
    )
    verdicts = table("tables/which_gradient-quick").query("lead").set_index("metric")["verdict"]
    outcome = OUTCOMES["Is a cheaper gradient enough? (`which_gradient`)"]
    assert verdicts["nc3_self_duality"] == "equal" and "NC3 is equal" in outcome
    assert verdicts["nc2_etf_distance"] == verdicts["nc1_trace_ratio"] == "not significant"
    assert outcome.endswith("NC2 and the trace ratio are not significant")


def test_the_sister_papers_have_their_verdicts():
    errors = (
        table("sister-papers/ling-errors-quick")
        .groupby("activation")["verdict"]
        .unique()
        .str.join(" ")
    )
    assert {*errors} == {"supported"}
    networks = table("sister-papers/ling-networks-quick").set_index(["trained", "DEQ"])["verdict"]
    assert networks.pop(("readout on random features", "ReLU")) == "as claimed here"
    assert {*networks} == {"not significant"}
    wu = table("sister-papers/wu-verdicts-quick").query(
        "part == 'statement' and computed.str.startswith('trained')"
    )
    assert wu["verdict"].value_counts().to_dict() == {"not significant": 3, "reported": 3}
    said = OUTCOMES["Wu et al., Figures 1a, 1d, 3 and Table 1"]
    assert (
        said.startswith("three not significant; three reported") and len(wu["place"].unique()) == 4
    )


# --- words and certificates -----------------------------------------------------------------------


def test_every_verdict_and_every_scale_is_explained():
    cells = re.findall(r"^\| ([^|]+) \|", METHOD.partition("## Statistics")[2], re.MULTILINE)
    named = {word.strip() for cell in cells for word in cell.split(",")}
    assert {*certify.VERDICTS, *compare.VERDICTS, *compare.SCALES} <= named


def test_every_certificate_that_the_record_names_exists():
    corrections = RECORD.partition("## Changelog")[0]
    named = {
        word for part in re.findall(r"\(`([a-z0-9_ ]+)`\)", corrections) for word in part.split()
    }
    archived = {"audit_overall", "audit_floor", "eq13"}
    known = {*certify.ids(), *theory.theory_steps()["certificate"], *archived}
    assert len(named) > 30 and named <= known


def test_the_record_counts_the_networks_that_misclassify_training_images():
    both = [misclassified(runs_of(name)) for name in ("cifar10-full", "protocol-2")]
    counts = pd.concat(both)["model"].value_counts().to_dict()
    assert (
        counts.keys() == {"deq"} and f"{counts['deq']} DEQs and no ResNet-18 misclassify" in RECORD
    )


def test_the_record_counts_the_pairs_in_which_the_deq_ends_with_the_higher_loss():
    losses = (
        runs_of("cifar10-full").query("metric == 'loss' and split == 'train'").fillna({"K_A": 0})
    )
    losses = losses[losses["epoch"] == losses["epoch"].max()]
    pairs_of_runs = losses.pivot(
        index=["K_A", "R", "seed"], columns="model", values="value"
    ).dropna()
    higher = (pairs_of_runs["deq"] > pairs_of_runs["explicit"]).sum()
    assert f"ends higher in {higher} of the {len(pairs_of_runs)} pairs" in RECORD


# --- speed ----------------------------------------------------------------------------------------


def benchmarks():
    rows = pd.concat([table(f"bench/{name}") for name in ("solver", "training")])
    return rows[~rows["part"].isin(["truth", "evaluations to 1e-6"])]


def ratio(what, case):
    rows = pd.concat([table(f"bench/{name}") for name in ("solver", "training")])
    (found,) = rows.loc[(rows["what"] == what) & (rows["case"] == case), "ratio"]
    return found


def test_the_nine_lines_on_speed_are_those_of_the_benchmarks():
    small, large = "B=128 C=128", "B=32 C=512"
    same = "nclib Broyden / torchdeq broyden, 20 pairs"
    default = "nclib Broyden / torchdeq broyden, 100 pairs as it comes"
    assert f"{ratio(same, small):.2f} of the time of torchdeq's with the same memory" in INTERNALS
    assert (
        f"{ratio(default, small):.2f} of the time of torchdeq's with its default memory"
        in INTERNALS
    )
    assert f"these are {ratio(same, large):.2f} and {ratio(default, large):.2f}" in INTERNALS
    best = [row.ratio for row in benchmarks().itertuples() if row.what.startswith("best of each")]
    said = f"{best[0]:.2f} of torchdeq's time on the small cell and {best[1]:.2f} on the large"
    assert said in INTERNALS
    solvers = ("nclib Broyden", "nclib Anderson", "torchdeq broyden")
    added = [100 * (ratio(f"{name} / bare evaluations", small) - 1) for name in solvers]
    added_large = [100 * (ratio(f"{name} / bare evaluations", large) - 1) for name in solvers]
    assert f"adds {added[0]:.0f} to {added[1]:.0f} % to the time" in INTERNALS
    said = f"{added_large[0]:.0f} and {added_large[1]:.0f} % on the large one"
    assert said.replace("-", "−") in INTERNALS
    assert f"torchdeq's Broyden adds {added[2]:.0f} and {added_large[2]:.0f} %" in INTERNALS
    solver = table("bench/solver")
    peers = solver.loc[solver["what"] == "best of nclib / best of all peers", "ratio"]
    assert f"needs {peers.min():.2f} to {peers.max():.2f} times the evaluations" in INTERNALS
    warm = [
        row.ratio for row in benchmarks().itertuples() if "from the last equilibrium" in row.what
    ]
    assert f"takes {min(warm):.2f} to {max(warm):.2f} of the evaluations" in INTERNALS
    phantom, memory = (
        ratio(f"{what}, phantom, 1 step / implicit", "B=64 C=128") for what in ("time", "memory")
    )
    assert (
        f"takes {phantom:.2f} of the time of the implicit gradient and {memory:.2f} of its memory"
        in INTERNALS
    )


def test_the_tables_of_benchmarks_are_the_tracked_ones():
    measured = INTERNALS.partition("## Faults")[0]
    shown = {
        (what, case): [cell.strip("* ") for cell in more.split("|")]
        for what, case, more in re.findall(
            r"^\| ([^|]+) \| ([^|]+) \| ([\d.].*) \|$", measured, re.MULTILINE
        )
    }
    rows = benchmarks()
    tracked = {(row.what, row.case): row for row in rows.itertuples()}
    assert len(shown) > 20 and shown.keys() <= tracked.keys()
    for key, cells in shown.items():
        row = tracked[key]
        assert cells[0] == f"{row.ratio:.3g}"
        assert cells[1] == ("–" if row.low == row.high else f"{row.low:.3g} to {row.high:.3g}")


@pytest.mark.parametrize(
    "fault", ["random kill -9, grid of 20 runs", "two clients ask for the same grid at once"]
)
def test_the_table_of_faults_is_the_tracked_one(fault):
    row = table("bench/survival").set_index("fault").loc[fault]
    assert (
        f"| {fault} | {row['injected']} | {row['survived']} | {row['epochs_lost']} |" in INTERNALS
    )


# --- the way through the code ---------------------------------------------------------------------

PACKAGE = paths.root() / "nclib"
FILE = re.compile(r"[\w/]+\.(?:pyi?|ipynb|md)")


def quoted(line):
    """Files and names between backticks."""
    words = re.findall(r"`([^`\s]+)`", line)
    files = [word for word in words if FILE.fullmatch(word)]
    names = [word for word in words if re.fullmatch(r"[A-Za-z_][\w.]*", word)]
    return files, [name for name in names if name not in files]


def text_of(files):
    places = [
        PACKAGE / file if (PACKAGE / file).is_file() else paths.root() / file for file in files
    ]
    return "\n".join(place.read_text(encoding="utf-8") for place in places if place.is_file())


def test_the_walks_and_the_list_of_changes_name_what_is_in_the_code():
    walks = INTERNALS.partition("## Five walks")[2].partition("## Every file")[0]
    checked = 0
    for line in walks.splitlines():
        files, names = quoted(line)
        text = text_of(files)
        for name in names if text else ():
            missing = [part for part in name.split(".") if not re.search(rf"\b{part}\b", text)]
            assert missing in ([], ["nc"]), line
            checked += 1
    assert checked > 80


def test_the_table_of_files_has_every_file_once():
    table = INTERNALS.partition("## Every file")[2].partition("Elsewhere:")[0]
    folder, listed = "", []
    for line in table.splitlines():
        if line.startswith("| **"):
            folder = "".join(re.findall(r"in `([^`]+)`", line))
        if line.startswith("| `"):
            listed += [folder + file for file in quoted(line.split("|")[1])[0]]
    files = {file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py")}
    files = {file for file in files if not file.endswith("__init__.py")} | {"__init__.pyi"}
    assert sorted(listed) == sorted(files)


# --- the checklists -------------------------------------------------------------------------------


def test_each_answer_of_the_checklists_leads_to_a_page_and_a_heading():
    rows = re.findall(
        r"^\| \d+\w? \|.*\| (.*) \|$", RECORD.partition("## Checklists")[2], re.MULTILINE
    )
    assert len(rows) == 53 and all("](" in row for row in rows)
    for page, anchor in {*re.findall(r"\]\(([^)#]+)#?(.*?)\)", " ".join(rows))}:
        titles = re.findall(r"^#+ (.*)", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in [
            "",
            *(re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles),
        ]
