"""The report in PDF is made of parts of README and the book."""

import re

import pytest

from companion import pdf


def test_the_report_is_written(tmp_path):
    assert pdf.write(tmp_path / "aside/report.pdf").read_bytes().startswith(b"%PDF")


def test_parts_keep_their_numbers_and_their_links_lead_to_files():
    text = "\n".join(pdf.part(*each) for each in pdf.PARTS)
    assert "<!--" not in text and text.count("cifar10-full`") >= 4 and "| 8b |" in text
    links = {link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)}
    assert len(links) > 8 and [link for link in links if not (pdf.paths.root() / link).exists()] == []


def test_a_heading_that_is_gone_is_named():
    with pytest.raises(ValueError, match=r"README\.md has no heading '## Gone'"):
        pdf.part("README.md", "## Gone", None)
