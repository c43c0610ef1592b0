"""What is drawn at a larger scale than the profile's leads its page and the front page, and is labelled."""

import json

import pandas as pd
import pytest
from executed import fill_larger

from companion.site import build, landing, pages
from companion.site.sources import collect
from nclib.publish import artefacts
from nclib.publish.notebooks import text_of as cell_text
from nclib.publish.sites import ReportError
from nclib.system import other_parameters, paths

ALL, DIGITS = "<b>CIFAR-10, all images</b>", "<b>digits</b>"


@pytest.fixture
def sources(smoke):
    fill_larger()
    return collect("smoke")


def test_a_page_shows_the_larger_drawing_and_the_profiles_own_below_it(sources):
    page = next(page for page in sources.pages if page.name == "neural_collapse/fig3")
    texts = [cell_text(cell) for cell in pages.with_facts(page, sources)["cells"]]
    facts = texts[1]
    assert facts.index(ALL) < facts.index("supported") < facts.index(DIGITS) < facts.index("as claimed here")
    assert '<span class="nc-scale">reduced scale</span>' in facts and "full with seeds=2" in facts
    assert texts.index("draw()") < texts.index("## The same on digits") < texts.index("draw_it()")
    assert "What is measured" in texts[texts.index("draw_it()") - 1], "the heading that it stands under above"
    record = next(text for text in texts if text.startswith("## How this page was made"))
    assert record.count("When, where and with which runs, ") == 2
    ids = [cell["id"] for cell in pages.with_facts(page, sources)["cells"]]
    assert len(ids) == len(set(ids))


def test_a_notebook_that_is_drawn_at_one_scale_alone_has_a_page_too(sources):
    assert [page.name.split("/")[1] for page in sources.pages] == ["fig3", "fig4", "fig9"]
    only = sources.pages[2]
    assert only.beside is None and only.drawn.scale == "reduced" and sources.pages[1].drawn.scale == "toy"
    assert sources.title == "smoke", "the larger scale's parameters are not those of the profile"


def test_the_front_page_leads_with_the_larger_scale(sources):
    page = landing.landing_page(sources, [], print)
    scores = page[page.index("## Scorecard") : page.index("## Notebooks")]
    assert scores.count(ALL) == scores.count(DIGITS) == 1
    larger, own = scores[scores.index(ALL) :].split(DIGITS)
    assert "-0.75" in larger and "supported</span></td>" in larger and "as claimed here" not in larger
    assert "-0.5" in own and "as claimed here</span></td>" in own and "supported" not in own
    gallery = page[page.index("## Figures") :]
    larger, own = 'src="larger/figures/neural_collapse/fig3.png', 'src="figures/neural_collapse/fig3.png'
    assert gallery.index(larger) < gallery.index(own)
    assert gallery.count(ALL) == 1 and gallery.count(DIGITS) == 1


def test_what_the_scorecard_does_not_list_speaks_by_its_own_table(smoke):
    fill_larger()
    with other_parameters.results_with("seeds=2"):
        rows = {"claim": ["by the letter"], "evidence": ["30.0 %"], "verdict": ["reported"]}
        artefacts.save_table(pd.DataFrame(rows), "neural_collapse/fig9_verdicts", "Full.", ["run-2"], "full")
    page = landing.landing_page(collect("smoke"), [], print)
    assert 'neural_collapse/fig9.html">by the letter</a></td>' in page and "30.0 %" in page


def test_theory_and_audit_stand_before_all_images(smoke, monkeypatch):
    from nclib.publish import scorecard

    fill_larger()
    score = scorecard.score_claims

    def with_theory(profile):
        card = score(profile)
        theory = card["part"].where(card["notebook"] != "fig3", "theory")
        return card.assign(part=theory) if profile == "smoke" else card

    monkeypatch.setattr(scorecard, "score_claims", with_theory)
    page = landing.landing_page(collect("smoke"), [], print)
    assert page.index("<b>theory</b>") < page.index(ALL)


@pytest.mark.parametrize("damage", ["{", "[]", '{"a/b": {}}', '{"a/b": {"folder": "../x", "images": "", "scale": ""}}'])
def test_a_damaged_list_is_named(smoke, damage):
    (smoke / "largest.json").write_text(damage)
    with pytest.raises(ReportError, match=r"largest\.json is damaged"):
        collect("smoke")


def test_a_change_of_the_larger_drawing_makes_the_site_again(smoke, sphinx):
    build.build("smoke")
    fill_larger()
    build.build("smoke")
    build.build("smoke")
    assert len(sphinx) == 2
    listing = json.loads((smoke / "largest.json").read_text())
    listing["neural_collapse/fig3"]["images"] = "other"
    (smoke / "largest.json").write_text(json.dumps(listing))
    build.build("smoke")
    assert len(sphinx) == 3


def test_files_of_both_lie_in_the_site(sources, tmp_path):
    build._add_downloads(sources, tmp_path)
    larger = paths.results("full") / "with/seeds=2/figures/neural_collapse/fig3.png"
    assert (tmp_path / "larger/figures/neural_collapse/fig3.png").read_bytes() == larger.read_bytes()
    assert (tmp_path / "figures/neural_collapse/fig3.png").read_bytes() != larger.read_bytes()
    assert (tmp_path / "notebooks/neural_collapse/fig3.ipynb").is_file()
    assert (tmp_path / "larger/notebooks/neural_collapse/fig9.ipynb").is_file()
