"""The reference: every public name has an entry, and docstrings lose nothing on their way to Sphinx."""

import re

import pytest
from executed import needs_sphinx, text_of
from links import Links

import nclib
from companion.site import api
from companion.site.docstrings import for_sphinx


def lines(text):
    return for_sphinx(text.splitlines())


def test_every_public_name_stands_in_one_part():
    listed = [name for names in api.names().values() for name in names]
    assert len(listed) == len(set(listed))
    assert {f"nclib.{name}" for name in nclib.__all__} <= set(listed)
    assert "nclib.DEQ" in api.names()["deq"] and "nclib.metrics.cosines" not in listed


@pytest.mark.slow
@needs_sphinx
def test_the_site_has_an_entry_for_each_name_and_the_search_knows_them(built):
    site, _ = built
    for part, names in api.names().items():
        page = site / f"api/{part}.html"
        assert set(names) <= set(Links(page.read_text()).ids), part
    assert "spectral_radius" in (site / "searchindex.js").read_text()
    assert "A layer whose output solves z* = cell(z*, x, *args)." in text_of(site / "api/deq.html")


@pytest.mark.slow
@needs_sphinx
def test_code_words_of_pages_lead_to_the_reference(built):
    page = built[0] / "book/coming_from_torchdeq.html"
    links = [link for _, link in Links(page.read_text()).links]
    assert "../api/deq.html#nclib.Phantom" in links and "../api/solver.html#nclib.Anderson" in links


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pairs", "nclib.pairs"),
        ("nc.pairs", "nclib.pairs"),
        ("pairs(runs, 'deq')", "nclib.pairs"),
        ("nc.comparison.pairs", "nclib.pairs"),
        ("train", None),
        ("nc.train", "nclib.train"),
        ("train()", "nclib.train"),
        ("unpaired", None),
        ("paired = 3", None),
    ],
)
def test_a_code_word_is_a_name_or_it_is_not(text, found):
    assert api.target(text, {"pairs": "nclib.pairs", "train": "nclib.train"}) == found


def test_a_formula_becomes_a_literal_block():
    found = lines("Mean.\n\n    Σ_k |x_k|* / n\n\nSource: here.")
    assert found[:6] == ["Mean.", "", "::", "", "    Σ_k |x_k|* / n", ""] and found[-1] == "Source: here."


def test_signs_of_sphinx_are_taken_as_they_are_and_code_is_left_alone():
    assert lines("z* of |x|, a_ and a_b@c, `f(*args)`s.") == [r"z\* of \|x\|, a\_ and a_b\@c, `f(*args)`\ s."]


def test_entries_of_numpydoc_keep_their_text():
    sections = "Parameters\n----------\ntol, steps : above 0\n    and small\n\nReturns\n-------\nfloat\n    it"
    found = lines(f"Do.\n\n{sections}")
    assert found[4:7] == ["tol, steps", "    above 0", "    and small"] and found[-2:] == ["float", "    it"]


def test_examples_are_left_as_they_are():
    text = "Do.\n\nExamples\n--------\n>>> f(*x)\n[1, 2]\n\nMore* text."
    assert lines(text)[4:6] == [">>> f(*x)", "[1, 2]"] and lines(text)[-1] == r"More\* text."


def test_no_sentence_is_lost():
    words = re.compile(r"\w+")
    for names in api.names().values():
        for name in names[:3]:
            value = getattr(nclib, name.removeprefix("nclib."), None)
            text = getattr(value, "__doc__", None) or ""
            found = " ".join(for_sphinx(text.splitlines())).replace("\\", "")
            assert set(words.findall(text)) <= set(words.findall(found)) | {"Returns", "Raises"}, name
