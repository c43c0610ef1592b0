"""README and book keep their budgets, their numbers are the tracked ones, and what they name and link is there."""

import itertools
import re

import pytest

from companion import docs_tables as measured
from companion import certify
from companion.neural_collapse.proofs import STATEMENTS
from nclib.publish import notebooks
from nclib.publish.numbers import SPAN, fill, fill_pages
from nclib.system import paths, words

ROOT = paths.root()
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "notebooks/README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = [notebooks.title(notebooks.read_cells(notebooks.source(name))) for name in notebooks.available()]
MOST = {"words": 900, "numerals": 40, "words before the picture": 150, "words before the first command": 150}
MOST_OF_BOOK = 13000
OWN_LENGTH = {"protocol", "checklists", "changelog"}  # count for no budget
MOST_OF_PAGE = {"findings": 1800, "collapse": 1800, "scale": 1200, "core": 2000, "library": 1500, "corrections": 2000}
MOST_OF_PAGE |= {"coming_from_torchdeq": 700, "coming_from_neural_collapse": 700}


def prose(text):
    """A page without tables and without the marks around generated numbers."""
    return "\n".join(line for line in re.sub(r"<!--.*?-->", "", text).splitlines() if not line.startswith("|"))


def over_budget(text):
    """What a front page has too much of. Numerals are counted outside code blocks and targets of links."""
    text = prose(text)
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = {
        "words": len(text.split()),
        "numerals": len(re.findall(r"\d+(?:[.,]\d+)*", plain)),
        "words before the picture": len(text.partition("![")[0].split()),
        "words before the first command": len(text.partition("```")[0].split()),
    }
    return {name: number for name, number in found.items() if number > MOST[name]}


def own_words(page):
    """Words of a page, which have a letter or a digit, a generated table or number counted as one."""
    text = page.read_text(encoding="utf-8")
    text = SPAN.sub(" x ", text)
    return sum(any(map(str.isalnum, word)) for word in re.sub(r"<!--.*?-->", "", text).split())


def test_the_front_page_keeps_its_budget():
    assert over_budget(README) == {}


def test_the_book_keeps_its_budget():
    pages = {page.stem: own_words(page) for page in PAGES[2:] if page.stem not in OWN_LENGTH}
    assert sum(pages.values()) <= MOST_OF_BOOK
    assert {name: pages[name] for name, most in MOST_OF_PAGE.items() if pages[name] > most} == {}


def test_every_number_of_runs_is_that_of_the_tracked_runs():
    assert fill_pages(measured.numbers(), write=False) == []
    first = SPAN.search(README)
    changed = README[: first.start(3)] + "−99 %" + README[first.end(3) :]
    assert fill(changed, measured.numbers()) == (README, [first[2]])


def test_the_statements_stand_under_the_verdicts_of_their_certificates():
    rows = re.findall(r"^\| (holds|holds if [^|]+|false|vacuous|typo) \| (.+) \|$", README, re.MULTILINE)
    said = {name: verdict for verdict, names in rows for name in _statements(names)}
    shown = {result.id: result.verdict for result in certify.certify(list(STATEMENTS))}
    assert said == {_statements(name)[0]: shown[key] for key, name in STATEMENTS.items()}


def _statements(text):
    """Names as `STATEMENTS` has them, from "Theorem 3.1, NC1–3 · Theorem 4.1, NC1"."""
    found = []
    for name, first, last in re.findall(r"((?:Lemma|Theorem|Remark|Proposition) \w\.\d)(?:, NC(\d)(?:–(\d))?)?", text):
        parts = range(int(first), int(last or first) + 1) if first else [None]
        found += [f"{name}, NC{part}" if part else name for part in parts]
    return found


def test_the_legend_has_every_word_and_every_scale():
    legend = (ROOT / "docs/reading.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| ([^|]+) \|", legend.partition("## Terms")[0], re.MULTILINE)
    named = {word.removesuffix(" …").strip() for cell in said for word in cell.split(",")}
    assert {*words.STATEMENTS, *words.EXPERIMENTS, *words.SCALES} <= named


def test_every_certificate_that_a_page_names_exists():
    corrections = (ROOT / "docs/corrections.md").read_text(encoding="utf-8")
    named = {word for part in re.findall(r"`([a-z0-9_ ]+)`", corrections) for word in part.split() if "_" in word}
    assert len(named) > 30 and named <= {*certify.ids(), "theory_layer_peeled"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_no_heading_skips_a_level(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not target.startswith("http")]
    assert [target for target in targets if not (page.parent / target.partition("#")[0]).exists()] == []
    assert text[2:].partition("\n")[0] not in {title.partition(" · ")[0] for title in NOTEBOOKS}  # one list has both
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    assert levels[0] == 1 and (levels.count(1) == 1 or page.stem == "protocol")  # two protocols, each with its title
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_each_answer_of_the_checklists_leads_to_a_page_or_a_heading():
    page = ROOT / "docs/checklists.md"
    rows = re.findall(r"^\| \d+\w? \|.*\| (.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 53 and [row for row in rows if "](" not in row] == []
    for file, anchor in set(re.findall(r"\]\(([^)#]*)#?(.*?)\)", " ".join(rows))):
        titles = re.findall(r"^#+ (.*)", (page.parent / (file or page.name)).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in ["", *(re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles)]
