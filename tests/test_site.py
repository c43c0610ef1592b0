"""The web site: what it shows, and that Sphinx makes it and a browser opens it."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import matplotlib.pyplot as plt
import pytest
from links import Links

import nclib as nc
from nclib import paths, reproduce, site

FIG3, FIG4, LESSON = "neural_collapse/fig3", "neural_collapse/fig4", "walkthrough/01_fixed_points"

LINKS = "[kept](../neural_collapse/fig3.ipynb) and [gone](../neural_collapse/fig9.ipynb)"

needs_sphinx = pytest.mark.skipif(
    importlib.util.find_spec("myst_nb") is None, reason='the site needs pip install ".[docs]"'
)


def execute(name, title, profile="smoke"):
    """Leave a notebook as papermill does."""
    output = {"output_type": "stream", "name": "stdout", "text": "<b>an output</b>"}
    injected = {"tags": ["injected-parameters"]}
    cells = [
        {
            "cell_type": "markdown",
            "metadata": {},
            "source": f"# {title}\n\n$\\lVert G\\rVert_F$, {LINKS}",
        },
        {"cell_type": "code", "metadata": injected, "source": "profile = 'smoke'"},
        {"cell_type": "code", "metadata": {}, "source": "draw()", "outputs": [output]},
    ]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
        if cell["cell_type"] == "code":
            cell.setdefault("outputs", [])
            cell["execution_count"] = number
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4}
    file = reproduce.executed(name, profile)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content | {"nbformat_minor": 5}), encoding="utf-8")


def fill(profile="smoke"):
    """Three executed notebooks, one of them with a figure."""
    execute(FIG3, "Figure 3 · Does it collapse?", profile)
    execute(FIG4, "Figure 4 · And now?", profile)
    execute(LESSON, "01 · Find a fixed point", profile)
    figure, _ = plt.subplots(figsize=(2, 1))
    nc.save_figure(figure, FIG3, "Profile smoke.", [], profile)
    plt.close(figure)


def broken_links(folder):
    """Links within a site that lead nowhere."""
    pages = {}
    for page in folder.rglob("*.html"):
        if "_static" not in page.parts:
            pages[page.resolve()] = Links(page.read_text())
    for page, links in pages.items():
        for tag, link in links.links:
            parts = urlsplit(link)
            if parts.scheme or tag == "script" or link == "#":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            if not target.exists() or (
                anchor and target in pages and anchor not in pages[target].ids
            ):
                yield f"{page.name}: {link}"


def test_what_is_executed_is_shown_at_its_largest_scale_and_the_course_last():
    fill()
    with paths.results_with("seeds=2"):
        execute(FIG3, "Figure 3 · Larger", "full")
    larger = {"folder": "full/with/seeds=2", "images": "CIFAR-10, all images"}
    listing = {FIG3: larger, FIG4: larger | {"folder": "full/with/seeds=9"}, "gone/fig": larger}
    (paths.results("smoke") / "largest.json").write_text(json.dumps(listing))
    pages = site.executed_pages("smoke")
    assert [page.name for page in pages] == [FIG3, FIG4, LESSON]
    assert pages[0].described == "Profile full with seeds=2: CIFAR-10, all images"
    assert pages[0].results == paths.results() / "full/with/seeds=2"
    assert [page.described for page in pages[1:]] == ["Profile smoke"] * 2
    assert [page.label for page in pages] == ["Figure 3", "Figure 4", "01 · Find a fixed point"]
    with pytest.raises(site.ReportError, match="nclib reproduce --profile quick"):
        site.executed_pages("quick")


def test_code_is_folded_outside_the_course_and_parameters_that_were_passed_are_left_out():
    fill()
    tags = {}
    for page in site.executed_pages("smoke"):
        cells = site.shown(page, [f"notebooks/{FIG3}.ipynb"])["cells"]
        assert cells[0]["source"].endswith("[kept](../neural_collapse/fig3.ipynb) and gone")
        assert "Profile smoke" in cells[1]["source"] and len(cells) == 3
        tags[page.name] = cells[2]["metadata"]["tags"]
    assert tags == {FIG3: ["hide-input"], FIG4: ["hide-input"], LESSON: []}


def test_every_page_of_docs_is_in_a_list():
    listed = set()
    for pages in (site.ABOVE | site.BELOW).values():
        listed.update(pages)
    written = {f"docs/{page.stem}" for page in (paths.root() / "docs").glob("*.md")}
    assert listed == written - {"docs/index"} | {"reference"}


def test_the_frozen_protocol_says_where_its_code_is_now(tmp_path):
    fill()
    site.lay_out(site.executed_pages("smoke"), tmp_path)
    shown = (tmp_path / "docs/protocol.md").read_text()
    frozen = (paths.root() / "docs/protocol.md").read_text()
    assert "protocol2.py" in shown and "protocol2.py" not in frozen
    assert shown.replace(f"\n{site.OF_PROTOCOL_2}", "") == frozen


def test_a_site_is_the_newest_until_a_notebook_is_executed_again():
    fill()
    assert not site.is_newest("smoke")
    front = paths.results("smoke") / "site/index.html"
    front.parent.mkdir()
    front.write_text("made")
    later = reproduce.executed(FIG4, "smoke").stat().st_mtime + 10
    os.utime(front, (later, later))
    assert site.is_newest("smoke")
    os.utime(reproduce.executed(FIG4, "smoke"), (later + 10, later + 10))
    assert not site.is_newest("smoke")


@needs_sphinx
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine")
@pytest.mark.slow
def test_sphinx_makes_it_without_a_warning_and_a_browser_shows_it(monkeypatch):
    monkeypatch.setattr(site, "OPTIONS", ("-q", "-W", "--keep-going"))
    # No such locale is installed. Sphinx itself would end by an error.
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    fill()
    folder = paths.results("smoke") / "site"
    old = folder / "notebooks/neural_collapse/fig9.html"  # of a notebook that is no longer there
    old.parent.mkdir(parents=True)
    old.write_text("old")
    front = site.build("smoke")
    assert front.parent == folder and not old.exists()
    assert "fig9.html" not in front.read_text()
    assert list(broken_links(folder)) == [] and (folder / "api/nclib.DEQ.html").exists()
    assert "<b>an output</b>" not in (folder / f"notebooks/{FIG3}.html").read_text()

    for page in ("index", "docs/tables", "api/nclib.DEQ", f"notebooks/{FIG3}"):
        for width in (1280, 390):
            assert _width_of(folder / f"{page}.html", width) <= width, (page, width)
    clicked = front.with_name("clicked.html")
    clicked.write_text(front.read_text() + CLICK)
    assert "<title>Figure 3" in _opened(clicked)


def test_a_site_that_fails_is_named_as_the_only_thing_that_is_missing(monkeypatch):
    monkeypatch.setattr(site, "OPTIONS", ("--no-such-option",))
    fill()
    with pytest.raises(site.ReportError, match=r"only the web site .* figures and tables are in"):
        site.build("smoke")


MEASURE = """<script>
addEventListener("load", () => parent.postMessage(document.documentElement.scrollWidth, "*"))
</script>"""
CLICK = """<script>
const card = "article .sd-card a[href*='fig3.html']"
addEventListener("load", () => document.querySelector(card).click())
</script>"""
FRAME = """<iframe src="measured.html" width="{width}" height="800" style="border: 0"></iframe>
<script>addEventListener("message", message => document.title = "width " + message.data)</script>"""


def _width_of(page: Path, width: int) -> int:
    """How wide a page becomes in a frame of that width, in pixels, as Chromium lays it out."""
    page.with_name("measured.html").write_text(page.read_text() + MEASURE)
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(width=width))
    return int(re.search(r"<title>width (\d+)</title>", _opened(frame))[1])


def _opened(page: Path) -> str:
    """The document that Chromium shows once a page has loaded and its scripts have run."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    command = ["chromium", *options, "--window-size=1400,900", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return shown.stdout
