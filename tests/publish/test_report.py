"""The book: what its pages hold, that they need nothing from outside, and that an old site outlives a failing build."""

import concurrent.futures
import contextlib
import html
import importlib.util
import json
import multiprocessing
import os
import re
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from links import Links
from typer.testing import CliRunner

from nclib.cli import app
from nclib.config import ConfigError
from nclib.publish import artefacts, report
from nclib.reproduce import reproduce, summary
from nclib.system import other_parameters, paths, words

needs_sphinx = pytest.mark.skipif(
    any(importlib.util.find_spec(module) is None for module in report._NEEDED.values()),
    reason='the web site is made by Sphinx: pip install "nclib[book]"',
)


def cell(kind, source, tags=(), outputs=()):
    metadata = {"tags": list(tags)}
    if kind == "markdown":
        return {"cell_type": kind, "id": f"c{abs(hash(source))}", "metadata": metadata, "source": source}
    code = {"execution_count": 1, "outputs": list(outputs)}
    return {"cell_type": kind, "id": f"c{abs(hash(source))}", "metadata": metadata, "source": source, **code}


PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # one pixel
)
FORMULAS = r"""Inline $\lVert G\rVert_F$ and $\arg\max_k z_k$ and $\mathbb E[x]$ and $\Bigl(x\Bigr)^{-1}$, displayed

$$\mathrm{NC1} = \tfrac1K \operatorname{tr}(\Sigma_W \Sigma_B^\dagger)$$

In the middle of a paragraph
$$z = f(z, x),$$
and $x$ after it.

| quantity | ideal |
|---|---|
| $\bar h_k$ | 0 |
"""


def write_notebook(name, cells, profile="smoke", **execution):
    noted = {"parameters": {"profile": profile}, "duration": 7.4, "end_time": "2026-03-04T05:06:07.8+00:00"} | execution
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "papermill": noted},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = paths.results(profile) / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def fill(profile="smoke"):
    """Two executed notebooks, two figures, the claims that the scorecard reads, and training records of one run."""
    output = {"output_type": "display_data", "metadata": {}, "data": {"image/png": PICTURE, "text/plain": "Figure"}}
    parameters = 'profile: str = "quick"  # smoke or quick\nepochs: int = 0  # 0 for the profile\'s'
    write_notebook(
        "neural_collapse/fig3",
        [
            cell("markdown", "# Figure 3 · Does it collapse?\n\nA zygomorphic claim."),
            cell("code", parameters, ["parameters"]),
            cell("code", 'profile = "smoke"', ["injected-parameters"]),
            cell("markdown", f"## What is measured\n\n{FORMULAS}"),
            cell("code", "draw_it()", outputs=[output]),
            cell("markdown", "Next: `fig4` for more, `table9` one day."),
        ],
    )
    write_notebook("neural_collapse/fig4", [cell("markdown", "# Figure 4 · And now?"), cell("code", "1 + 1")])
    fig, _ = plt.subplots(figsize=(2, 1))
    data = pd.DataFrame({"epoch": [1, 2], "value": [0.5, 0.25]})
    caption = "Values <b>at once</b> for K_A=3 | R=10. Profile smoke, 3 seeds, mean * standard deviation."
    artefacts.save_figure(fig, "neural_collapse/fig3", caption, ["run-1"], profile, data)
    artefacts.save_figure(fig, "neural_collapse/by_hand", "Profile smoke, drawn by hand.", [], profile)
    claims = {
        "metric": ["nc1_pinv", "nc2_equiangular"],
        "claim": ["DEQ lower", "DEQ equal"],
        "difference": [-0.5, 0.25],
    }
    more = {"half": [0.1, 0.5], "detectable": [0.13, 0.66], "seeds": [3, 3]}
    more |= {"verdict": ["as claimed here", "not significant"], "scale": "toy", "remark": [None, "by hand"]}
    artefacts.save_table(
        pd.DataFrame(claims | more), "neural_collapse/fig3_claims", "Claims, smoke.", ["run-1"], profile
    )
    run = paths.runs() / "run-1" / "provenance.json"
    run.parent.mkdir(parents=True)
    run.write_text(json.dumps({"cost": {"cpu_seconds": 90.0}}))
    return paths.results(profile)


@pytest.fixture
def smoke():
    return fill()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A site as Sphinx makes it, and what was said; tests only read it."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_RESULTS", str(tmp_path_factory.mktemp("book") / "results"))
        patch.setattr(report.provenance, "git_origin", lambda: None)  # wherever this clone comes from
        fill()
        landing = report.build("smoke", echo=said.append)
    return landing.parent, said


def pages(site):
    return [page for page in sorted(site.rglob("*.html")) if "_static" not in page.parts and "tables" not in page.parts]


def text_of(page):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.read_text())).split())


# --- the pages ------------------------------------------------------------------------------------------------


@needs_sphinx
def test_there_is_a_page_for_each_notebook_and_nothing_to_complain_about(built):
    site, said = built
    assert {page.relative_to(site).as_posix() for page in pages(site)} >= {
        "index.html",
        "search.html",
        "neural_collapse/fig3.html",
        "neural_collapse/fig4.html",
        "book/core.html",
    }
    assert said == [f"2 notebooks and 2 figures in {site / 'index.html'}"]  # and no warning of Sphinx
    assert not list(site.parent.glob(".site/*"))


@needs_sphinx
def test_every_link_leads_to_a_file_and_every_anchor_to_a_place(built):
    site, _ = built
    found = {page: Links(page.read_text()) for page in pages(site)}
    broken, seen = [], 0
    for page, links in found.items():
        for tag, link in links.links:
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            seen += 1
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            missing = not target.is_file() or not target.is_relative_to(site.resolve())
            astray = parts.fragment and target in found and unquote(parts.fragment) not in found[target].ids
            if missing or astray:
                broken.append((page.name, tag, link))
    assert seen > 100 and broken == []


@needs_sphinx
def test_nothing_is_fetched_from_elsewhere(built):
    site, _ = built
    remote = [(p.name, link) for p in pages(site) for _, link in Links(p.read_text()).links if _is_remote(link)]
    styles = [sheet.read_text(errors="replace") for sheet in site.rglob("*.css")]
    remote += [link for text in styles for link in re.findall(r"(?:url\(|@import )\s*['\"]?([^'\")\s]+)", text)]
    assert styles and [link for link in remote if not isinstance(link, str) or _is_remote(link)] == []
    scripts = [file.name.lower() for file in site.rglob("*.js")]
    assert scripts and not any(word in name for name in scripts for word in ("mathjax", "thebe", "require"))


def _is_remote(link):
    return link.startswith("//") or urlsplit(link).scheme not in ("", "data", "javascript")


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


@needs_sphinx
def test_search_knows_the_words_of_notebooks_and_captions(built):
    index = (built[0] / "searchindex.js").read_text()
    terms = json.loads(index[index.index("{") : index.rindex("}") + 1])["terms"]
    assert any(term.startswith("zygomorph") for term in terms) and "hand" in terms


@needs_sphinx
def test_a_page_says_what_it_was_made_of(built):
    page = built[0] / "neural_collapse/fig3.html"
    text = text_of(page)
    for fact in (
        "profile smoke",
        "executed 4 March 2026, 05:06 UTC",
        "7 s for its cells",
        "1 trained runs, 1.5 min of processor time",
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


@needs_sphinx
def test_downloads_are_the_files_of_the_results(built):
    site, _ = built
    links = {link for page in pages(site) for _, link in Links(page.read_text()).links}
    for file in (
        "notebooks/neural_collapse/fig3.ipynb",
        "figures/neural_collapse/fig3.pdf",
        "figures/neural_collapse/fig3.csv",
        "tables/neural_collapse/fig3_claims.csv",
    ):
        assert (site / file).read_bytes() == (site.parent / file).read_bytes()
        assert f"../{file}" in links


@needs_sphinx
def test_the_landing_page_has_the_scorecard_and_every_figure(built):
    site, _ = built
    text, landing = text_of(site / "index.html"), (site / "index.html").read_text()
    assert "1 as claimed here · toy" in text and "1 not significant · toy" in text
    assert "Figure 3: NC1, eq. 12 DEQ lower -0.5 0.1 3 as claimed here toy Figure" in text
    assert "Figure 3: NC2, angles DEQ equal +0.25 0.5 3 not significant toy by hand" in text
    assert "what the words mean" in text
    assert "Not regenerated in this profile yet: table1 , table2" in text
    shown = re.findall(r'<img loading="lazy" src="([^"]+)" alt="([^"]+)"', landing)
    assert [source for source, _ in shown] == [
        "figures/neural_collapse/fig3.png",
        "figures/neural_collapse/by_hand.png",
    ]
    assert shown[0][1].startswith("Values &lt;b&gt;at once")
    assert "Does it collapse?" in text and "And now?" in text


@needs_sphinx
def test_the_notes_of_the_book_show_their_pictures(built):
    site, _ = built
    page = site / "book/core.html"
    assert "The core, decision by decision" in text_of(page)
    pictures = [link for tag, link in Links(page.read_text()).links if tag == "img"]
    assert any((page.parent / link).is_file() and "core" in link for link in pictures)


def save_verdicts(name, column="verdict", verdicts=("proof gap", "reported")):
    write_notebook(name.rpartition("_")[0], [cell("markdown", "# Table 9 · Kernels agree")])
    rows = {"claim": ["a < b", "c"], "error": [0.12345, float("nan")], "rule": ["long", "words"], column: verdicts}
    artefacts.save_table(pd.DataFrame(rows), name, "Claims, profile smoke.", [], "smoke")


def test_verdicts_of_the_sister_papers_stand_below_those_of_the_main_one(smoke):
    save_verdicts("kernel_equivalence/table9_checks")
    save_verdicts("kernel_equivalence/fig8_slopes", "slope is", ("less than 0", "less than 0"))
    save_verdicts("kernel_equivalence/fig7_numbers", "kind")
    landing = report._landing(report.collect("smoke"), [], print)
    scores = landing[landing.index("## Scorecard") : landing.index("## Notebooks")]
    first, second = (scores.index(f"### {report.PARTS[part]}") for part in ("neural_collapse", "kernel_equivalence"))
    assert first < scores.index("1 as claimed here") < second < scores.index("2 less than 0")
    assert scores.count("<details") == 4 and 'nc-partly">1 proof gap' in scores
    row = '<tr><td>a &lt; b</td><td>0.123</td><td><span class="nc-verdict nc-partly">proof gap</span>'
    assert row in scores and "<td>c</td><td></td>" in scores and '<a href="kernel_equivalence/table9.html">' in scores
    assert "rule" not in scores[second:]


def test_a_notebook_that_collects_verdicts_stands_for_its_folder(smoke):
    save_verdicts("separation_bias/fig1_ledger")
    save_verdicts("separation_bias/verdicts_table")
    landing = report._landing(report.collect("smoke"), [], print)
    assert 'separation_bias/verdicts.html">Table 9' in landing
    assert 'separation_bias/fig1.html">Table 9' not in landing


def test_a_stale_table_of_a_sister_paper_is_named(smoke):
    save_verdicts("kernel_equivalence/table9_checks")
    (smoke / "tables/kernel_equivalence/table9_checks.csv").write_text("changed by hand")
    said = []
    landing = report._landing(report.collect("smoke"), [], said.append)
    assert "No scorecard" in landing and "table9_checks" in said[0] and "1 as claimed here" in landing


# --- running notebooks elsewhere ------------------------------------------------------------------------------


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
    monkeypatch.setattr(report.provenance, "git_origin", lambda: origin)
    sources = report.collect("smoke")
    facts, landing = report._facts(sources.pages[0], sources), report._landing(sources, [], print)
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
    for link in report._services("OWNER/REPO", "walkthrough/01_fixed_points").values():
        assert f"`{link}`" in page
    assert report.COLAB.format(address="https://github.com/OWNER/REPO") in page
    assert (paths.notebooks() / "walkthrough/01_fixed_points.ipynb").exists()


# --- building -------------------------------------------------------------------------------------------------


def standing(results):
    """A site that is there already, as this test's own copy."""
    (results / "site").mkdir()
    (results / "site/index.html").write_text("the old one")
    return results / "site/index.html"


@needs_sphinx
def test_an_old_site_outlives_a_build_that_fails(smoke, isolated, monkeypatch):
    old = standing(smoke)
    (isolated / "book").mkdir()
    (isolated / "book/conf.py").write_text("raise RuntimeError('a theme that is not there')")
    monkeypatch.setattr(report, "_book", lambda: isolated / "book")
    with pytest.raises(report.ReportError, match="a theme that is not there"):
        report.build("smoke")
    assert old.read_text() == "the old one" and not (smoke / ".site").exists()


def test_an_old_site_comes_back_when_the_new_one_cannot_take_its_place(smoke):
    old = standing(smoke)
    with pytest.raises(FileNotFoundError):
        report._swap(smoke / "not there", old.parent, smoke / "aside")
    assert old.read_text() == "the old one" and not (smoke / "aside").exists()


@pytest.fixture
def sphinx(monkeypatch):
    """How often pages were made; making them takes no time."""
    made = []

    def run(profile, aside, echo):
        made.append(profile)
        (aside / "html").mkdir()
        (aside / "html/index.html").write_text(f"number {len(made)}")

    monkeypatch.setattr(report, "_run_sphinx", run)
    monkeypatch.setattr(report, "_require_sphinx", lambda: None)
    monkeypatch.setattr(report.importlib.metadata, "version", lambda name: "1.0")
    return made


def test_what_is_unchanged_is_not_made_again(smoke, sphinx):
    said = []
    landing = report.build("smoke", echo=said.append)
    report.build("smoke", echo=said.append)
    assert sphinx == ["smoke"] and said[-1] == f"the site is up to date: {landing}"
    report.build("smoke", force=True)
    assert len(sphinx) == 2 and landing.read_text() == "number 2"


def change_notebook(results):
    write_notebook("neural_collapse/fig4", [cell("markdown", "# Figure 4 · Changed")])


def change_figure(results):
    fig, _ = plt.subplots(figsize=(2, 1.5))
    artefacts.save_figure(fig, "neural_collapse/fig3", "Other, profile smoke.", ["run-1"], "smoke")


def remove_file(results):
    (results / "figures/neural_collapse/fig3.pdf").unlink()


def fail_notebook(results):
    (results / "notebooks/neural_collapse/fig4.failed.ipynb").write_text("{}")


@pytest.mark.parametrize("change", [change_notebook, change_figure, remove_file, fail_notebook])
def test_what_changed_is_made_again(smoke, sphinx, change):
    report.build("smoke")
    change(smoke)
    report.build("smoke")
    assert len(sphinx) == 2


def test_one_build_at_a_time_and_what_a_killed_one_left_is_removed(smoke, sphinx):
    from filelock import FileLock

    (smoke / ".site/old").mkdir(parents=True)
    said, waiting = [], threading.Event()

    def hear(line):
        said.append(line)
        waiting.set()

    with concurrent.futures.ThreadPoolExecutor(1) as other:
        with FileLock(smoke / ".site.lock"):
            second = other.submit(report.build, "smoke", echo=hear)
            assert waiting.wait(60) and sphinx == []
            assert said == [f"another process is at work on the site of {smoke}; waiting for it"]
        second.result()
    assert sphinx == ["smoke"] and not (smoke / ".site").exists()


def test_a_site_that_another_process_has_made_meanwhile_is_not_made_again(smoke, sphinx, monkeypatch):
    alone_in = other_parameters.alone_in

    @contextlib.contextmanager
    def after_another(*arguments):
        monkeypatch.setattr(other_parameters, "alone_in", alone_in)
        report.build("smoke")
        with alone_in(*arguments):
            yield

    monkeypatch.setattr(other_parameters, "alone_in", after_another)
    report.build("smoke")
    assert len(sphinx) == 1


def test_the_site_of_other_parameters_is_another_one_and_names_each_of_them(smoke, sphinx):
    report.build("smoke")
    with other_parameters.results_with("epochs=3,wav=a-1234"):
        noted = {"parameters": {"profile": "smoke", "epochs": 3, "wav": "<b>*", "train": "never"}}
        write_notebook("neural_collapse/fig4", [cell("markdown", "# Figure 4 · Longer")], **noted)
        sources = report.collect("smoke")
        report.build("smoke")
    assert sphinx == ["smoke", "smoke with epochs=3, wav=<b>*"]
    facts, landing = report._facts(sources.pages[0], sources), report._landing(sources, [], print)
    assert all("smoke with epochs=3, wav=&lt;b&gt;*" in text for text in (facts, landing))
    assert (smoke / "site/index.html").read_text() == "number 1"
    assert (smoke / "with/epochs=3,wav=a-1234/site/index.html").read_text() == "number 2"


def test_a_failed_notebook_is_named_and_an_earlier_execution_is_shown(smoke):
    fail_notebook(smoke)
    rows = [{"notebook": "neural_collapse/fig5", "status": "failed", "message": "ValueError: <no> (cell 3)"}]
    (smoke / "summary.json").write_text(json.dumps({"notebooks": rows}))
    sources = report.collect("smoke")
    assert [page.name for page in sources.pages] == ["neural_collapse/fig3", "neural_collapse/fig4"]
    landing = report._landing(sources, [], print)
    assert "<li>neural_collapse/fig4</li>" in landing
    assert "<li>neural_collapse/fig5: ValueError: &lt;no&gt; (cell 3)</li>" in landing
    assert "The last attempt to execute this notebook failed" in report._facts(sources.pages[1], sources)
    assert "failed" not in report._facts(sources.pages[0], sources)


def test_a_stale_table_costs_the_scorecard_and_not_the_book(smoke):
    (smoke / "tables/neural_collapse/fig3_claims.csv").write_text("changed by hand")
    said = []
    landing = report._landing(report.collect("smoke"), [], said.append)
    assert "No scorecard" in landing and "nc-gallery" in landing
    assert "nclib reproduce neural_collapse/fig3_claims --force" in said[0]


def test_code_of_the_course_is_open_and_that_of_figures_folded(smoke):
    write_notebook("walkthrough/01_fixed_points", [cell("markdown", "no heading"), cell("code", "x = 1")])
    sources = report.collect("smoke")
    course, figure = sources.pages[0], sources.pages[1]
    assert (course.name, course.title) == ("walkthrough/01_fixed_points", "01 fixed points")
    tags = [c["metadata"]["tags"] for c in report._with_facts(course, sources)["cells"] if c["cell_type"] == "code"]
    assert tags == [[]]
    tags = [c["metadata"]["tags"] for c in report._with_facts(figure, sources)["cells"] if c["cell_type"] == "code"]
    assert all("hide-input" in names for names in tags) and "remove-cell" in tags[1]


def test_the_order_of_the_book():
    names = ["other/a", "kernel_equivalence/fig1", "neural_collapse/audit", "neural_collapse/table1"]
    names += ["neural_collapse/fig10", "neural_collapse/fig2", "walkthrough/2_b", "walkthrough/10_c"]
    assert sorted(names, key=report._reading_order) == [
        "walkthrough/2_b",
        "walkthrough/10_c",
        "neural_collapse/fig2",
        "neural_collapse/fig10",
        "neural_collapse/table1",
        "neural_collapse/audit",
        "kernel_equivalence/fig1",
        "other/a",
    ]


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [("holds", "nc-for"), ("holds if R < 2", "nc-partly"), ("contradicted", "nc-against"), ("supported", "nc-for")],
)
def test_verdicts_are_coloured_by_their_word(verdict, tone):
    assert f'class="nc-verdict {tone}"' in report._verdict(verdict)


@pytest.mark.parametrize("verdict", ["not significant", "opposite here", "as claimed here", "lower", "holds, they say"])
def test_verdicts_that_take_no_side_in_the_paper_are_grey(verdict):
    assert 'class="nc-verdict"' in report._verdict(verdict)


def test_nothing_beyond_the_paper_is_red():
    for word in words.TONES["against"]:
        assert 'class="nc-verdict"' in report._verdict(word, "beyond the paper")


def test_the_legend_has_every_word_with_its_meaning():
    legend = report._legend()
    for meanings in (words.STATEMENTS, words.CLAIMS, words.COMPARISONS, words.SCALES):
        for word, meaning in meanings.items():
            assert f">{word}</span></td><td>{html.escape(meaning)}</td>" in legend


# --- errors and the command -----------------------------------------------------------------------------------


def test_without_notebooks_it_says_what_to_type():
    with pytest.raises(report.ReportError, match="type: nclib reproduce --profile smoke"):
        report.build("smoke")
    with pytest.raises(ConfigError, match="Did you mean 'smoke'"):
        report.build("smoek")
    assert not paths.results().exists()


def test_without_sphinx_it_names_the_extra(smoke, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "myst_nb" else find(name))
    with pytest.raises(report.SphinxMissing, match=r'myst-nb is not installed; type: pip install "nclib\[book\]"'):
        report.build("smoke")
    assert not (smoke / "site").exists()


INJECTED = 'fig3_"><img src=x onerror=alert(1)>'


@pytest.mark.parametrize(
    ("stem", "change"),
    [
        ("fig3", {"name": "../../secret"}),
        ("fig3", {"name": "neural_collapse/fig4"}),
        ("fig3", {"name": ["neural_collapse/fig3"]}),
        (INJECTED, {"name": f"neural_collapse/{INJECTED}"}),
        ("fig3", {"files": {"../../../secret.png": {}}}),
        ("fig3", {"files": {"secret.png": {}}}),
        ("fig3", {"files": {'fig3."><script>': {}}}),
    ],
)
def test_a_record_speaks_of_the_files_beside_it_alone(smoke, stem, change):
    folder = smoke / "figures/neural_collapse"
    record = json.loads((folder / "fig3.json").read_text()) | change
    (folder / f"{stem}.json").write_text(json.dumps(record))
    with pytest.raises(report.ReportError, match=r"\.json is damaged \(.*execute its notebook again"):
        report.collect("smoke")


def test_the_title_is_an_argument_in_any_locale(tmp_path, monkeypatch):
    called = []
    done = report.subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(report.subprocess, "run", lambda command, **_: called.append(command) or done)
    for encoding, shown in (("ascii", "nclib: smoke with dataset=gr??e"), ("utf-8", "nclib: smoke with dataset=größe")):
        monkeypatch.setattr(report.sys, "getfilesystemencoding", lambda encoding=encoding: encoding)
        report._run_sphinx("smoke with dataset=größe", tmp_path, print)
        assert f"html_title={shown}" in called[-1]
        for word in called[-1]:
            word.encode(encoding, "surrogateescape")


def test_names_are_escaped():
    record = {"name": f"neural_collapse/{INJECTED}", "caption": "C", "runs": []}
    made = report.Artefact("figures", record, ("png",))
    for text in (report._card(None, made), report._files(report.Page("neural_collapse/fig3", b"", (made,)))):
        assert "<img src=x" not in text and "&lt;img" in text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
@pytest.mark.parametrize("file", ["summary.json", "site/.inputs", "figures/neural_collapse/fig3.pdf"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(smoke, sphinx, file):
    report.build("smoke")
    path = smoke / file
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    child = multiprocessing.get_context("fork").Process(target=report.build, args=("smoke",))
    child.start()
    child.join(60)
    hangs = child.is_alive()
    child.kill()
    assert not hangs and child.exitcode == 0


@pytest.mark.parametrize(
    "file", ["notebooks/neural_collapse/fig4.ipynb", "figures/neural_collapse/fig3.json"], ids=["notebook", "record"]
)
@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_file_is_named(smoke, file, content):
    (smoke / file).write_text(content)
    with pytest.raises(report.ReportError, match=Path(file).name):
        report.collect("smoke")


def command(*arguments):
    return CliRunner().invoke(app.app, list(arguments))


def test_the_command_passes_its_options_on_and_ends_with_one_message(monkeypatch):
    asked = []
    monkeypatch.setattr(report, "build", lambda *arguments: asked.append(arguments))
    assert command("report", "--profile", "lite", "--force").exit_code == 0
    assert asked == [("lite", True)]
    monkeypatch.undo()
    monkeypatch.setattr(report, "build", lambda profile, force: asked.append(paths.results(profile).name))
    assert command("report", "--profile", "lite", "-p", "seeds=4", "-p", "epochs=3", "-p", "lr=0").exit_code == 0
    assert asked[-1] == "epochs=3,seeds=4"
    monkeypatch.undo()
    result = command("report", "--profile", "smoke")
    assert result.exit_code == 1 and "error: no notebook has been executed" in result.output


@pytest.mark.parametrize(
    ("status", "problem", "code", "said"),
    [
        ("executed", None, 0, ""),
        ("failed", None, 1, ""),
        ("executed", report.ReportError("Sphinx could not"), 1, "no web site: Sphinx could not"),
        ("failed", report.ReportError("Sphinx could not"), 1, "no web site: Sphinx could not"),
        ("executed", report.SphinxMissing("not installed"), 0, "no web site: not installed"),
        ("failed", report.SphinxMissing("not installed"), 1, "no web site: not installed"),
    ],
)
def test_reproduce_ends_with_the_site_and_fails_if_either_did(monkeypatch, status, problem, code, said):
    built = []

    def build(profile):
        built.append(paths.results(profile).name)
        if problem is not None:
            raise problem

    done = summary.Summary("smoke", {}, [summary.Row("a/b", status, 1.0, 0, 0)], {}, 1.0)
    monkeypatch.setattr(reproduce, "reproduce", lambda *_: done)
    monkeypatch.setattr(report, "build", build)
    result = command("reproduce", "--profile", "smoke")
    assert (result.exit_code, built) == (code, ["smoke"]) and said in result.output
    without = command("reproduce", "--profile", "smoke", "--no-report")
    assert (without.exit_code, built) == (int(status == "failed"), ["smoke"])
    done.parameters["epochs"] = 3
    command("reproduce", "--profile", "smoke", "-p", "epochs=3")
    assert built == ["smoke", "epochs=3"]
