"""Pages of notebooks: facts, formulas, folded code, links that run them."""

import re
from urllib.parse import urlsplit

import pytest
from executed import INJECTED, cell, needs_sphinx, text_of, write_notebook
from links import Links

from companion.site import elsewhere, landing, pages
from companion.site.landing import landing_page
from companion.site.sources import Artefact, Page, collect
from nclib.publish import notebooks
from nclib.system import paths


@pytest.mark.slow
@needs_sphinx
def test_mathematics_is_mathml(built):
    site, _ = built
    page = (site / "neural_collapse/fig3.html").read_text()
    formulas = re.findall(r"<math.*?</math>", page, flags=re.DOTALL)
    assert len(formulas) == 8 and sum('display="block"' in formula for formula in formulas) == 2
    assert not any("\\" in formula for formula in formulas) and "$" not in text_of(site / "neural_collapse/fig3.html")
    assert "&#x1D53C;" in page or "𝔼" in page
    assert page.count('<mo stretchy="false" lspace="0" rspace="0">') == 2  # the bars of the norm
    assert page.count("</mo><msup><mspace") == 1  # the exponent of the big bracket


@pytest.mark.slow
@needs_sphinx
def test_a_page_says_what_it_was_made_of(built):
    page = built[0] / "neural_collapse/fig3.html"
    text = text_of(page)
    for fact in (
        "profile smoke",
        "executed 4 March 2026, 05:06 UTC",
        "7 s for its cells",
        "runs 1, 1.5 min of processor time: run-1",
        'profile "smoke" smoke or quick',  # the injected value, not the default
        "epochs 0 0 for the profile's",
        "run-1",
        "torch",
        "Values <b>at once</b> for K_A=3 | R=10.",
    ):
        assert fact in text, fact
    assert "draw_it" in text and "injected" not in text
    assert "Show the code" in text
    links = [link for _, link in Links(page.read_text()).links]
    assert "fig4.html" in links and not any("table9" in link for link in links)


def codes(shown):
    return [cell for cell in shown["cells"] if cell["cell_type"] == "code"]


def test_code_of_the_course_is_open_and_that_of_figures_stands_folded_at_the_end(smoke):
    write_notebook("walkthrough/01_fixed_points", [cell("markdown", "no heading"), cell("code", "x = 1")])
    found = collect("smoke")
    course, figure = found.pages[0], found.pages[1]
    assert (course.name, course.title) == ("walkthrough/01_fixed_points", "01 fixed points")
    assert [code["metadata"]["tags"] for code in codes(pages.with_facts(course, found))] == [[]]
    shown = pages.with_facts(figure, found)
    tags = [code["metadata"]["tags"] for code in codes(shown)]
    assert all("remove-input" in names or "remove-cell" in names for names in tags) and "remove-cell" in tags[1]
    assert "draw_it()" in shown["cells"][-1]["source"] and 'profile = "smoke"' not in shown["cells"][-1]["source"]


def test_the_answer_stands_right_under_the_claim_and_once(smoke):
    cells = [cell("markdown", "# Figure 3 · Claim"), cell("code", "import nclib"), cell("code", 'nc.answer("a", "b")')]
    write_notebook("neural_collapse/fig3", cells)
    write_notebook("walkthrough/01_fixed_points", [cell("markdown", "# 1 · Course"), cell("code", "x = 1")])
    found = collect("smoke")
    course, figure, plain = found.pages
    shown = pages.with_facts(figure, found)["cells"]
    said = shown[1]["source"]
    assert "as claimed here · toy" in said and "NC1, eq. 12, DEQ − explicit: -0.5 ± 0.1" in said
    assert shown[3]["metadata"]["tags"] == ["remove-cell"]
    assert "No claim is judged" in pages.with_facts(plain, found)["cells"][1]["source"]
    assert "nc-answer" not in pages.with_facts(course, found)["cells"][1]["source"]


def test_tables_of_runs_stand_folded_at_the_end(smoke):
    cells = [cell("markdown", "# 1"), cell("code", "a = 1\nnc.plan(configs)"), cell("code", "nc.readable(table)")]
    write_notebook("neural_collapse/fig3", cells)
    found = collect("smoke")
    shown = codes(pages.with_facts(found.pages[0], found))
    assert [notebooks.text_of(code).split("\n")[-1] for code in shown] == ["nc.readable(table)", "nc.plan(configs)"]
    assert "hide-output" in shown[1]["metadata"]["tags"] and "hide-output" not in shown[0]["metadata"]["tags"]


def test_names_are_escaped():
    record = {"name": f"neural_collapse/{INJECTED}", "caption": "C", "runs": []}
    made = Artefact("figures", record, ("png",))
    for text in (landing._card(None, made), pages._files(Page("neural_collapse/fig3", b"", (made,)))):
        assert "<img src=x" not in text and "&lt;img" in text


@pytest.mark.parametrize(
    ("origin", "repository"),
    [
        ("https://github.com/some-one/deq.nc.git", "some-one/deq.nc"),
        ("https://user:secret@github.com/a/b", "a/b"),
        ("git@github.com:a/b.git", "a/b"),
        ("ssh://git@github.com/a/b/", "a/b"),
        ("https://gitlab.com/a/b", None),
        ("/somewhere/github.com", None),
        (None, None),
    ],
)
def test_only_a_repository_on_github_has_links_to_services(smoke, monkeypatch, origin, repository):
    monkeypatch.setattr(elsewhere.provenance, "git_origin", lambda: origin)
    sources = collect("smoke")
    facts, landing = pages._facts(sources.pages[0], sources), landing_page(sources, [], print)
    links = [link for _, link in Links(facts).links if urlsplit(link).scheme]
    assert ("## In a browser" in landing) == bool(repository) and "secret" not in facts + landing
    file = "notebooks/neural_collapse/fig3.ipynb"
    assert links == (
        []
        if repository is None
        else [
            f"https://mybinder.org/v2/gh/{repository}/HEAD?urlpath=lab/tree/{file}",
            f"https://colab.research.google.com/github/{repository}/blob/main/{file}",
        ]
    )
    assert repository is None or f"!git clone -q --depth 1 https://github.com/{repository} nclib\n%cd nclib" in landing


def test_the_page_on_running_shows_the_same_links():
    page = (paths.root() / "book/running.md").read_text()
    for link in elsewhere.services("OWNER/REPO", "walkthrough/01_fixed_points").values():
        assert f"`{link}`" in page
    assert elsewhere.COLAB.format(address="https://github.com/OWNER/REPO") in page
    assert (paths.notebooks() / "walkthrough/01_fixed_points.ipynb").exists()


@pytest.mark.slow
@needs_sphinx
def test_the_notes_of_the_book_show_their_pictures(built):
    site, _ = built
    page = site / "book/core.html"
    assert "The core, decision by decision" in text_of(page)
    pictures = [link for tag, link in Links(page.read_text()).links if tag == "img"]
    assert any((page.parent / link).is_file() and "core" in link for link in pictures)
