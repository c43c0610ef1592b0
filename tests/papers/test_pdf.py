"""The report in PDF is made of parts of README and the book."""

import re

import pytest

from companion import pdf
from companion.neural_collapse.collapse_tables import FRESH, GROUPS
from nclib.publish.numbers import SPAN


def test_the_report_has_four_pages_before_its_appendix(tmp_path, monkeypatch):
    whole = _pages(pdf.write(tmp_path / "aside/report.pdf"))
    monkeypatch.setattr(pdf, "PARTS", pdf.PARTS[:-1])
    assert _pages(pdf.write(tmp_path / "report.pdf")) == 4 < whole


def _pages(report):
    return len(re.findall(rb"/Type\s*/Page\b", report.read_bytes()))


def test_parts_keep_their_numbers_and_their_links_lead_to_files():
    text = "\n".join(pdf.part(*each) for each in pdf.PARTS)
    assert "<!--" not in text and "| 8b |" in text
    links = {link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)}
    assert len(links) > 7 and [link for link in links if not (pdf.paths.root() / link).exists()] == []


def test_every_table_picture_and_number_names_its_collection():
    text = "\n".join(pdf.part(*each) for each in pdf.PARTS)
    assert len(re.findall(r"Runs: .*`results/reference/protocol-2`", text)) == len(pdf.RUNS) == 3
    book = (pdf.paths.root() / "docs/collapse.md").read_text("utf-8")
    spans = [(span[2].removesuffix("-ci").rpartition("-")[2], span) for span in SPAN.finditer(book) if span[1] == "n"]
    first = {group for group, span in spans if pdf._with_runs(span).endswith("†")}
    assert first & set(GROUPS) == {"r10", "balanced", "four"} and {*FRESH} <= {group for group, _ in spans}


def test_a_heading_that_is_gone_is_named():
    with pytest.raises(ValueError, match=r"README\.md has no heading '## Gone'"):
        pdf.part("README.md", "## Gone", None, "Gone")
