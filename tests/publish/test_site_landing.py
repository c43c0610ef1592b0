"""The front page: verdicts, figures, and what is missing."""

import html
import json
import re

import pandas as pd
import pytest
from executed import cell, fail_notebook, needs_sphinx, text_of, write_notebook

from companion.site import build, landing, pages
from companion.site.landing import landing_page
from companion.site.sources import collect
from nclib.publish import artefacts
from nclib.publish.notebooks import PARTS
from nclib.system import other_parameters, words


@pytest.mark.slow
@needs_sphinx
def test_the_landing_page_has_the_scorecard_and_every_figure(built):
    site, _ = built
    text, landing = text_of(site / "index.html"), (site / "index.html").read_text()
    assert "1 as claimed here · toy" in text and "1 not significant · toy" in text
    assert "Figure 3: NC1, eq. 12 as claimed here toy DEQ lower -0.5 0.1 3 Figure" in text
    assert "Figure 3: NC2, angles not significant toy DEQ equal +0.25 0.5 3 by hand" in text
    assert "what the words mean" in text
    assert "Not regenerated in this profile yet: table1 , table2" in text
    shown = re.findall(r'<img loading="lazy" src="([^"]+)" alt="([^"]+)"', landing)
    assert [source for source, _ in shown] == [
        "figures/neural_collapse/fig3.png",
        "figures/neural_collapse/by_hand.png",
    ]
    assert shown[0][1].startswith("Values &lt;b&gt;at once")
    assert "Does it collapse?" in text and "And now?" in text


def save_verdicts(name, column="verdict", verdicts=("proof gap", "reported")):
    write_notebook(name.rpartition("_")[0], [cell("markdown", "# Table 9 · Kernels agree")])
    rows = {"claim": ["a < b", "c"], "error": [0.12345, float("nan")], "rule": ["long", "words"], column: verdicts}
    artefacts.save_table(pd.DataFrame(rows), name, "Claims, profile smoke.", [], "smoke")


def test_verdicts_of_the_sister_papers_stand_below_those_of_the_main_one(smoke):
    save_verdicts("kernel_equivalence/table9_checks")
    save_verdicts("kernel_equivalence/fig8_slopes", "slope is", ("less than 0", "less than 0"))
    save_verdicts("kernel_equivalence/fig7_numbers", "kind")
    landing = landing_page(collect("smoke"), [], print)
    scores = landing[landing.index("## Scorecard") : landing.index("## Notebooks")]
    first, second = (scores.index(f"### {PARTS[part]}") for part in ("neural_collapse", "kernel_equivalence"))
    assert first < scores.index("1 as claimed here") < second < scores.index("2 less than 0")
    assert scores.count("<details") == 4 and 'nc-partly">1 proof gap' in scores
    row = '<tr><td>a &lt; b</td><td><span class="nc-verdict nc-partly">proof gap</span></td><td>0.123</td>'
    assert row in scores and '<td>c</td><td><span class="nc-verdict">reported</span></td><td></td>' in scores
    assert '<a href="kernel_equivalence/table9.html">' in scores
    assert "rule" not in scores[second:]


def test_a_notebook_that_collects_verdicts_stands_for_its_folder(smoke):
    save_verdicts("separation_bias/fig1_ledger")
    save_verdicts("separation_bias/verdicts_table")
    landing = landing_page(collect("smoke"), [], print)
    assert 'separation_bias/verdicts.html">Table 9' in landing
    assert 'separation_bias/fig1.html">Table 9' not in landing


def test_a_stale_table_of_a_sister_paper_is_named(smoke):
    save_verdicts("kernel_equivalence/table9_checks")
    (smoke / "tables/kernel_equivalence/table9_checks.csv").write_text("changed by hand")
    said = []
    landing = landing_page(collect("smoke"), [], said.append)
    assert "No scorecard" in landing and "table9_checks" in said[0] and "1 as claimed here" in landing


def test_a_failed_notebook_is_named_and_an_earlier_execution_is_shown(smoke):
    fail_notebook(smoke)
    rows = [{"notebook": "neural_collapse/fig5", "status": "failed", "message": "ValueError: <no> (cell 3)"}]
    (smoke / "summary.json").write_text(json.dumps({"notebooks": rows}))
    sources = collect("smoke")
    assert [page.name for page in sources.pages] == ["neural_collapse/fig3", "neural_collapse/fig4"]
    landing = landing_page(sources, [], print)
    assert "<li>neural_collapse/fig4</li>" in landing
    assert "<li>neural_collapse/fig5: ValueError: &lt;no&gt; (cell 3)</li>" in landing
    assert "The last attempt to execute this notebook failed" in pages._facts(sources.pages[1], sources)
    assert "failed" not in pages._facts(sources.pages[0], sources)


def test_a_stale_table_costs_the_scorecard_and_not_the_book(smoke):
    (smoke / "tables/neural_collapse/fig3_claims.csv").write_text("changed by hand")
    said = []
    landing = landing_page(collect("smoke"), [], said.append)
    assert "No scorecard" in landing and "nc-gallery" in landing
    assert "nclib reproduce neural_collapse/fig3_claims --force" in said[0]


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [("holds", "nc-for"), ("holds if R < 2", "nc-partly"), ("contradicted", "nc-against"), ("supported", "nc-for")],
)
def test_verdicts_are_coloured_by_their_word(verdict, tone):
    assert f'class="nc-verdict {tone}"' in landing._verdict(verdict)


@pytest.mark.parametrize("verdict", ["not significant", "opposite here", "as claimed here", "lower", "holds, they say"])
def test_verdicts_that_take_no_side_in_the_paper_are_grey(verdict):
    assert 'class="nc-verdict"' in landing._verdict(verdict)


def test_nothing_beyond_the_paper_is_red():
    for word in words.TONES["against"]:
        assert 'class="nc-verdict"' in landing._verdict(word, "beyond the paper")


def test_the_legend_has_every_word_with_its_meaning():
    legend = landing._legend()
    for meanings in (words.STATEMENTS, words.CLAIMS, words.COMPARISONS, words.SCALES):
        for word, meaning in meanings.items():
            assert f">{word}</span></td><td>{html.escape(meaning)}</td>" in legend


def test_the_site_of_other_parameters_is_another_one_and_names_each_of_them(smoke, sphinx):
    build.build("smoke")
    with other_parameters.results_with("epochs=3,wav=a-1234"):
        noted = {"parameters": {"profile": "smoke", "epochs": 3, "wav": "<b>*", "train": "never"}}
        write_notebook("neural_collapse/fig4", [cell("markdown", "# Figure 4 · Longer")], **noted)
        sources = collect("smoke")
        build.build("smoke")
    assert sphinx == ["smoke", "smoke with epochs=3, wav=<b>*"]
    facts, landing = pages._facts(sources.pages[0], sources), landing_page(sources, [], print)
    assert "smoke with epochs=3, wav=&lt;b&gt;*" in facts and r"smoke with epochs\=3\, wav\=\<b\>\*" in landing
    assert (smoke / "site/index.html").read_text() == "number 1"
    assert (smoke / "with/epochs=3,wav=a-1234/site/index.html").read_text() == "number 2"
