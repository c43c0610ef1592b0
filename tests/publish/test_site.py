"""The web site: what it shows, that Sphinx makes it without a warning, and what a reader gets in a browser."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import filelock
import pytest
from executed import cell, fill, fill_larger, needs_sphinx, write_notebook
from links import Links

from nclib.site import build, sources

NAMES = ["neural_collapse/fig3", "neural_collapse/fig4"]
HOSTILE = "<svg/onload=alert(1)>"


def make(root, draft):
    """The site of a few notebooks; a warning of Sphinx is an error. The processes of a test run share one."""
    with filelock.FileLock(f"{root}.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_RESULTS", str(root))
        patch.setattr(build, "OPTIONS", ("-q", "-W", "--keep-going"))
        if not root.exists():
            fill()
            said = [{"output_type": "stream", "name": "stdout", "text": HOSTILE}]
            formula = cell("markdown", rf"A formula $\text{{{HOSTILE}}}$ and `{HOSTILE}`.")
            written = [cell("markdown", rf"# Table 9 · $\text{{{HOSTILE}}}$"), formula, cell("code", "1", (), said)]
            write_notebook("neural_collapse/table9", written, note=HOSTILE)
        return build.build("smoke", echo=lambda line: None, draft=draft).parent


@pytest.fixture(scope="session")
def draft(shared):
    return make(shared / "draft", True)


@pytest.fixture(scope="session")
def whole(shared):
    return make(shared / "whole", False)


@pytest.fixture
def pages(monkeypatch):
    """How often pages were made; making them takes no time."""
    made = []

    def make_pages(found, aside, draft, echo):
        made.append(aside)
        (aside / "html").mkdir(parents=True)
        (aside / "html/index.html").write_text(f"number {len(made)}")

    monkeypatch.setattr(build, "_make", make_pages)
    monkeypatch.setattr(build, "NEEDED", ())
    return made


def broken(site):
    """Links within a site that lead nowhere."""
    ids = {page.resolve(): Links(page.read_text()) for page in site.rglob("*.html") if "_static" not in page.parts}
    for page, links in ids.items():
        for tag, link in links.links:
            parts = urlsplit(link)
            if parts.scheme or tag == "script" or link == "#":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchored = not parts.fragment or target not in ids or unquote(parts.fragment) in ids[target].ids
            if not target.exists() or not anchored:
                yield f"{page.name}: {link}"


def test_the_largest_scale_of_each_notebook_is_shown_and_named(smoke):
    fill_larger()
    found = {page.name: page for page in sources.executed("smoke")}
    assert list(found) == [*NAMES, "neural_collapse/fig9"]
    said = "Profile full with seeds=2: CIFAR-10, all images (reduced scale)"
    assert [found[name].said for name in NAMES] == [said, "Profile smoke"]
    assert said in "".join(cell["source"] for cell in sources.shown(found["neural_collapse/fig3"])["cells"])


def test_it_is_made_again_only_when_something_has_changed(smoke, pages):
    build.build("smoke", draft=True)
    build.build("smoke", draft=True)
    assert len(pages) == 1
    write_notebook("neural_collapse/fig4", [cell("markdown", "# Figure 4 · Changed")])
    build.build("smoke", draft=True)
    build.build("smoke", draft=True, force=True)
    build.build("smoke")  # of which the draft is a part
    assert len(pages) == 4 and not pages[-1].exists()
    with pytest.raises(sources.ReportError, match="type: nclib reproduce --profile quick"):
        build.build("quick")


def test_the_protocol_says_where_its_code_is_today(tmp_path):
    page = tmp_path / "protocol.md"
    page.write_text("# Protocol\n\nAs it was.\n", encoding="utf-8")
    sources._explain_old_path(page)
    assert page.read_text(encoding="utf-8") == f"# Protocol\n\n{sources.OLD_PATH}\nAs it was.\n"
    named = re.findall(r"`([\w/]+\.py)`", sources.OLD_PATH)
    assert len(named) == 2 and all((sources.paths.root() / file).exists() for file in named)


def test_results_come_first_in_the_list_and_no_page_is_left_out(smoke):
    write_notebook("walkthrough/01_fixed_points", [cell("markdown", "# Fixed points")])
    notes = [*sources.RESULTS, "reference", "docs/protocol", "docs/method", "docs/new"]
    parts = sources.front(sources.executed("smoke"), notes)
    trees = [part for part in parts if part.startswith("```{toctree}")]
    lines = [line for tree in trees for line in tree.splitlines()[4:-1]]
    own = ["notebooks/walkthrough/01_fixed_points", *(f"notebooks/{name}" for name in NAMES)]
    below = ["reference", "docs/method", "docs/protocol", "docs/new"]
    assert [line.split("<")[-1].strip(">") for line in lines] == [*sources.RESULTS, *own, *below]


@needs_sphinx
def test_sphinx_makes_it_without_a_warning_and_links_resolve(draft):
    assert (draft / "notebooks/neural_collapse/fig3.html").exists() and list(broken(draft)) == []
    front = (draft / "index.html").read_text().partition("bd-article")[2]
    shown = ("Question", 'id="sun-shi-neural-collapse"', "Figure 4’s twin", "not rendered")
    order = [front.index(text) for text in shown]
    assert order == sorted(order)
    assert (draft / "_images/fig3.png").stat().st_size < 20_000


@needs_sphinx
def test_formulas_outputs_and_metadata_are_escaped(draft):
    """M6: Sphinx escapes them by itself."""
    texts = [page.read_text() for page in draft.rglob("*.html") if "_static" not in page.parts]
    assert not any(HOSTILE in text for text in texts)
    assert any("onload=alert" in text for text in texts)


@needs_sphinx
@pytest.mark.slow
def test_the_whole_site_has_the_reference_and_needs_no_network(whole):
    assert list(broken(whole)) == [] and (whole / "api/nclib.DEQ.html").exists()
    for page in (whole / "index.html", whole / "notebooks/neural_collapse/fig3.html"):
        loaded = [link for tag, link in Links(page.read_text()).links if tag in ("script", "img", "link")]
        assert not [link for link in loaded if urlsplit(link).scheme in ("http", "https")]


@pytest.fixture
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    for argument in ("--headless", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    try:
        driver = webdriver.Chrome(options=options)
    except Exception as error:
        pytest.skip(f"no browser: {error}")
    driver.implicitly_wait(20)
    yield driver
    driver.quit()


def opened(browser, page: Path, width: int, question: str = ""):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri() + question)
    return browser.execute_script("return document.documentElement.scrollWidth")


@needs_sphinx
@pytest.mark.slow
def test_a_reader_finds_what_is_asked_and_never_scrolls_sideways(whole, browser):
    pages = ("index", "docs/results", "docs/theory", "docs/tables", "docs/internals", "api/nclib.DEQ")
    for page in (*pages, "notebooks/neural_collapse/fig3"):
        for width in (1280, 390):
            assert opened(browser, whole / f"{page}.html", width) <= width, (page, width)
    opened(browser, whole / "index.html", 1280)
    assert browser.execute_script("return document.documentElement.scrollHeight") <= 3 * 800
    picture, *told = [part.rect for part in browser.find_elements("css selector", "article h1 ~ p")[:4]]
    assert all(part["x"] < picture["x"] and part["y"] + part["height"] < 800 for part in told)
    for question, place in (("SELI", "tables"), ("statistics", "method")):
        opened(browser, whole / "search.html", 1280, f"?q={question.replace(' ', '+')}")
        hits = browser.find_elements("css selector", "ul.search li a")[:3]
        assert any(place in hit.get_attribute("href") for hit in hits), question
