"""The front page keeps its budget, and what it says is what the certificates and the tracked tables say."""

import collections
import csv
import itertools
import json
import re

import pytest
from spoken import NUMBERS

from companion import certify
from companion.neural_collapse import numbers as measured
from companion.neural_collapse.proofs import STATEMENTS, theory_steps
from nclib.publish.numbers import fill_pages
from nclib.system import paths, words

ROOT = paths.root()
README = (ROOT / "README.md").read_text(encoding="utf-8")
FINDINGS = (ROOT / "book/findings.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "notebooks/README.md", *sorted((ROOT / "book").glob("*.md"))]
TABLES, OTHER = ROOT / "results/reference", "other-processor"
MOST_WORDS, MOST_NUMERALS, FIRST_COMMAND = 900, 40, 150


def prose(text):
    """A page without tables and without the marks around generated numbers."""
    text = re.sub(r"<!--.*?-->", "", text)
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def numerals(text):
    """Those of the prose, names such as NC1 included: without code blocks and targets of links."""
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"```.*?```", "", prose(text), flags=re.DOTALL))
    return re.findall(r"\d+(?:[.,]\d+)*", text)


def budget(text):
    """What a text has too much of."""
    found = {
        "words": (len(prose(text).split()), MOST_WORDS),
        "numerals": (len(numerals(text)), MOST_NUMERALS),
        "words before the first command": (len(prose(text).partition("```")[0].split()), FIRST_COMMAND),
    }
    return {name: count for name, (count, most) in found.items() if count > most}


def test_the_front_page_keeps_its_budget():
    assert budget(README) == {}


@pytest.mark.parametrize(
    ("text", "over"),
    [
        ("word " * 150 + "```\nmake\n```", {}),
        ("word " * 151 + "```\nmake\n```", {"words before the first command": 151}),
        ("```\n" + "1 " * 41 + "```\n[page](book/1.md) " + "NC1 2.5 " * 20, {}),
        ("```\nmake\n```\n" + "NC1 2.5 " * 21, {"numerals": 42}),
        ("```\nmake\n```\n" + "word " * 900, {"words": 903}),
        ("```\nmake\n```\n" + "<!--n:a-->1<!--/n--> " * 41 + "\n| 1 |" * 50, {"numerals": 41}),
    ],
)
def test_the_budget_counts(text, over):
    assert budget(text) == over


def test_every_number_of_runs_is_the_one_of_the_tracked_runs():
    assert fill_pages(measured.numbers(), write=False) == []


def test_a_changed_number_of_the_front_page_is_found(tmp_path):
    mark, name = re.search(r"<!--n:([\w-]+)-->", README).group(0, 1)
    page = tmp_path / "README.md"
    page.write_text(README.replace(mark, f"{mark}99", 1), encoding="utf-8")
    assert fill_pages(measured.numbers(), write=False, pages=[page]) == [f"README.md: {name}"]


def test_a_picture_and_the_table_come_before_the_results():
    order = ["```", "![", "## At a glance", "## What came out"]
    assert sorted(order, key=README.index) == order


def test_the_statements_stand_under_the_verdicts_of_their_certificates():
    rows = re.findall(r"^\| (holds|holds if [^|]+|false|vacuous|typo) \| (.+) \|$", README, re.MULTILINE)
    said = {name: verdict for verdict, names in rows for name in _statements(names)}
    shown = {result.id: result.verdict for result in certify.certify(list(STATEMENTS))}
    assert said == {_statements(name)[0]: shown[key] for key, name in STATEMENTS.items()}


def _statements(text):
    """Names as `STATEMENTS` has them, without what they are read as, from "Theorem 3.1, NC1–3 · Theorem 4.1, NC1"."""
    found = []
    for name, first, last in re.findall(r"((?:Lemma|Theorem|Remark|Proposition) \w\.\d)(?:, NC(\d)(?:–(\d))?)?", text):
        numbers = range(int(first), int(last or first) + 1) if first else [None]
        found += [f"{name}, NC{number}" if number else name for number in numbers]
    return found


def test_the_counts_of_statements_are_those_of_the_table():
    results = certify.certify(list(STATEMENTS))
    verdicts = [result.verdict for result in results]
    holds, false = [result for result in results if result.verdict.startswith("holds")], verdicts.count("false")
    corrected = sum(result.certificate.startswith("its misprint") for result in holds)
    counts = (len(results), len(holds), corrected, false, verdicts.count("vacuous"), verdicts.count("typo"))
    said = (
        "Of {} statements {} hold ({} once a misprint is corrected), {} are false, {} is vacuous as printed and {} a "
    )
    said += "misprint."
    assert said.format(*(NUMBERS[n] for n in counts)) in README
    said = "{} of the {} hold ({} with a misprint corrected), {} are false, {} is vacuous and {} a misprint."
    holding = (NUMBERS[len(holds)].capitalize(), NUMBERS[len(results)])
    assert said.format(*holding, *(NUMBERS[n] for n in counts[2:])) in FINDINGS


def tracked(table):
    """Rows of a tracked table."""
    with (TABLES / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def change(table, step):
    """Rows of one step of a tracked table, by metric."""
    return {row["metric"]: row for row in tracked(table) if row["step"] == step}


def test_the_numbers_of_digits_in_the_findings_are_those_of_the_tracked_tables():
    caption = json.loads((TABLES / "tables/scorecard-quick.json").read_text(encoding="utf-8"))["caption"]
    mean, half, verdict = re.search(r"in points: (\S+) ± (\S+) \(3 seeds\): ([a-z ]+) \(toy", caption).groups()
    assert f"the 13 settings run: {mean} ± {half} points, {verdict}.".replace("-", "−") in FINDINGS
    digits = {row["metric"]: row for row in tracked("tables/collapse_pooled-quick")}
    assert {(row["cells"], row["seeds"]) for row in digits.values()} == {("11", "3")}
    names = {
        "NC1 (eq. 12)": "nc1_pinv",
        "NC2 (eq. 13)": "paper_eq13_uncentred",
        "NC3 (eq. 14)": "paper_eq14_uncentred",
        "centred NC2": "nc2_etf_distance",
        "centred NC3": "nc3_self_duality",
    }
    said = [f"{name} {_changes(digits[metric])}" for name, metric in names.items()]
    assert f"(`collapse`): {', '.join(said)}.".replace("-", "−") in FINDINGS


def _changes(row):
    change, low, high = (float(row[key]) for key in ("change", "low", "high"))
    return f"{change:+.1f} ({low:.1f} to {high:.1f})"


def test_the_signs_are_the_same_on_the_other_processor():
    here, there = (change(f"{place}/equilibrium_or_cell-quick", "DEQ / explicit") for place in ("tables", OTHER))
    for metric in ("nc1_trace_ratio", "paper_eq13_uncentred", "paper_eq14_uncentred"):
        assert here[metric]["verdict"] == there[metric]["verdict"] != "not significant"


COLUMNS = ("DEQ / explicit", "cell / explicit", "DEQ / cell")
ROWS = {
    "NC1, tr Σ_W/tr Σ_B": "nc1_trace_ratio",
    "NC1, eq. 12": "nc1_pinv",
    "NC2, eq. 13": "paper_eq13_uncentred",
    "NC2, centred": "nc2_etf_distance",
    "NC3, eq. 14": "paper_eq14_uncentred",
    "NC3, centred": "nc3_self_duality",
}


def test_the_pooled_table_of_the_findings_is_the_tracked_one():
    for name, metric in ROWS.items():
        cells = []
        for step in COLUMNS:
            row = change("tables/equilibrium_or_cell-quick", step)[metric]
            mean, low, high = (float(row[key]) for key in ("change", "low", "high"))
            same = int(row["lower_in"]) if mean < 0 else int(row["cells"]) - int(row["lower_in"])
            cells.append(f"{mean:+.1f} ({low:.1f} to {high:.1f}), {same}")
        assert f"| {name} | {' | '.join(cells)} |".replace("-", "−") in FINDINGS


def test_the_claims_of_2026_in_the_findings_are_those_of_the_tracked_tables():
    """Each number of a row: what was found, its interval, and the verdict's word somewhere in the same paragraph."""
    said = [text for text in FINDINGS.split("\n\n") if text.startswith("**") and "arXiv 26" in text]
    for name in ("internalization", "residual_and_error", "depth_and_rank", "optimisers"):
        (paragraph,) = (text for text in said if f"`{name}`" in text)
        with (TABLES / f"tables/{name}-quick.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        values = [float(rows[0]["auroc" if "auroc" in rows[0] else "change" if "change" in rows[0] else "difference"])]
        digits = {"internalization": 2, "residual_and_error": 2, "depth_and_rank": 1, "optimisers": 0}[name]
        if name == "internalization":
            rows = [row for row in rows if row["claim"].startswith("T = 1, all")]
            values = [float(rows[0]["difference"])]
        if "low" in rows[0]:
            values += [float(rows[0]["low"]), abs(float(rows[0]["high"]))]
        else:
            values.append(float(rows[0]["half"]))
        for value in values:
            assert f"{abs(value):.{digits}f}" in paragraph, (name, value)
        assert rows[0]["verdict"] in paragraph


def test_the_counts_of_verdicts_in_the_findings_are_those_of_the_tracked_scorecard():
    with (TABLES / "tables/scorecard-quick.csv").open(encoding="utf-8", newline="") as file:
        card = list(csv.DictReader(file))

    def count(verdict, part, printed=""):
        return sum((row["verdict"], row["part"]) == (verdict, part) and printed in row["printed"] for row in card)

    near, opposite, idle = (count(word, "tables") for word in ("not significant", "opposite here", "not run"))
    assert f"| {near} not significant, {opposite} opposite here (majority classes" in FINDINGS
    assert f"chance gives one or two), {idle} not run" in FINDINGS
    lower = [count(word, "figures", "DEQ lower") for word in ("opposite here", "not significant")]
    assert "| {} opposite here (Figures 4 and 5), {} not significant |".format(*lower) in FINDINGS
    equal = [count(word, "figures", "DEQ equal") for word in ("equal", "not significant", "reported")]
    assert "| {} equal, {} not significant, {} higher".format(*equal) in FINDINGS
    theory = collections.Counter(row["verdict"] for row in card if row["part"] == "theory")
    assert theory == collections.Counter(result.verdict for result in certify.certify(list(STATEMENTS)))


def test_the_counts_of_proof_steps_are_those_of_the_certificates():
    verdicts = list(theory_steps()["verdict"])
    steps = collections.Counter(verdict.partition(" if")[0] for verdict in verdicts)
    conditional = sum(verdict.startswith("holds if") for verdict in verdicts)
    said = "Of {} proof steps {} are typos, {} are false, {} hold ({} of them under a condition), one is vacuous "
    numbers = (steps.total(), steps["typo"], steps["false"], steps["holds"], conditional)
    assert said.format(*numbers) + "and two are not shown." in FINDINGS
    assert (steps["vacuous"], steps["not shown"]) == (1, 2)


@pytest.mark.parametrize(
    ("table", "case", "what", "said"),
    [
        ("solver", "B=128 C=128", "nclib Anderson / torchdeq broyden, 20 pairs", "| {:.2f} | 0.6 |"),
        ("solver", "B=128 C=128", "nclib Anderson / bare evaluations", "| {:.2f}, 1.32; channels last"),
        ("solver", "B=32 C=512", "nclib Anderson / torchdeq broyden, 20 pairs", "| {:.2f}, 0.74 | 0.6 |"),
        ("solver", "40 solver steps", "saved by an implicit step / by one cell evaluation", "| {:.1f} | 2 |"),
        ("training", "B=64 width 16, 32×32", "DEQ step measured / predicted, Anderson, implicit", "{:.2f}; 1.14 | 1"),
        ("solver", "B=32 C=512", "nclib Anderson / Attractor's anderson", "| 0.75, {:.2f} | |"),
        ("training", "B=64 C=128", "memory, reversible, 10 steps / implicit", "| 3.1; {:.2f} | |"),
        ("metrics", "B=128 K=5000 D=512", "accumulate a batch, 40 in a row / by dense one-hot", "| {:.3f} | 0.05 |"),
        ("metrics", "B=128 K=5000 D=512", "accumulate a batch alone / by dense one-hot", "| {:.3f} | 0.05 |"),
    ],
)
def test_the_speeds_of_the_book_are_the_tracked_ones(table, case, what, said):
    with (TABLES / f"bench/{table}.csv").open(encoding="utf-8", newline="") as file:
        (ratio,) = (row["ratio"] for row in csv.DictReader(file) if (row["case"], row["what"]) == (case, what))
    assert said.format(float(ratio)) in (ROOT / "book/core.md").read_text(encoding="utf-8")


def test_the_legend_has_every_word_and_every_scale():
    legend = (ROOT / "book/reading.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| ([^|]+) \|", legend.partition("## Terms")[0], re.MULTILINE)
    named = {word.removesuffix(" …").strip() for cell in said for word in cell.split(",")}
    assert {*words.STATEMENTS, *words.CLAIMS, *words.SCALES} <= named
    assert all(f"*{word}*" in legend for word in words.COMPARISONS)


def test_every_certificate_that_a_page_names_exists():
    corrections = (ROOT / "book/corrections.md").read_text(encoding="utf-8")
    named = {word for part in re.findall(r"`([a-z0-9_ ]+)`", corrections) for word in part.split() if "_" in word}
    assert len(named) > 30 and named <= {*certify.ids(), "theory_layer_peeled"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_pages_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not target.startswith("http")]
    assert [target for target in targets if not (page.parent / target.partition("#")[0]).exists()] == []
    if page.parent.name == "book":  # the site has the book and its pictures, and nothing beside them
        outside = [target for target in re.findall(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)", text) if "/" in target]
        assert [target for target in outside if not target.startswith("http")] == []


# the page of the protocols joins two that are not changed after their runs have begun, each with its title
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "protocol"], ids=lambda page: page.stem)
def test_a_page_has_one_title_and_no_heading_skips_a_level(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    titles = 2 if page.name == "protocol.md" else 1  # each protocol stays as it was committed
    assert levels[0] == 1 and levels.count(1) == titles
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
