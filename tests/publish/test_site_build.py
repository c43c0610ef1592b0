"""Building: links and files that are there, nothing from elsewhere, an old site that outlives a failing build."""

import concurrent.futures
import contextlib
import importlib.util
import json
import multiprocessing
import os
import re
import threading
from urllib.parse import unquote, urlsplit

import matplotlib.pyplot as plt
import pytest
from executed import cell, fail_notebook, needs_sphinx, pages_of, write_notebook
from links import Links

from companion.site import build
from nclib.publish import artefacts
from nclib.system import other_parameters


@pytest.mark.slow
@needs_sphinx
def test_there_is_a_page_for_each_notebook_and_nothing_to_complain_about(built):
    site, said = built
    assert {page.relative_to(site).as_posix() for page in pages_of(site)} >= {
        "index.html",
        "search.html",
        "neural_collapse/fig3.html",
        "neural_collapse/fig4.html",
        "book/core.html",
    }
    assert said == [f"2 notebooks and 2 figures in {site / 'index.html'}"]  # and no warning of Sphinx
    assert not list(site.parent.glob(".site/*"))


@pytest.mark.slow
@needs_sphinx
def test_every_link_leads_to_a_file_and_every_anchor_to_a_place(built):
    site, _ = built
    found = {page: Links(page.read_text()) for page in pages_of(site)}
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


@pytest.mark.slow
@needs_sphinx
def test_nothing_is_fetched_from_elsewhere(built):
    site, _ = built
    remote = [(p.name, link) for p in pages_of(site) for _, link in Links(p.read_text()).links if _is_remote(link)]
    styles = [sheet.read_text(errors="replace") for sheet in site.rglob("*.css")]
    remote += [link for text in styles for link in re.findall(r"(?:url\(|@import )\s*['\"]?([^'\")\s]+)", text)]
    assert styles and [link for link in remote if not isinstance(link, str) or _is_remote(link)] == []
    scripts = [file.name.lower() for file in site.rglob("*.js")]
    assert scripts and not any(word in name for name in scripts for word in ("mathjax", "thebe", "require"))


def _is_remote(link):
    return link.startswith("//") or urlsplit(link).scheme not in ("", "data", "javascript")


@pytest.mark.slow
@needs_sphinx
def test_search_knows_the_words_of_notebooks_and_captions(built):
    index = (built[0] / "searchindex.js").read_text()
    terms = json.loads(index[index.index("{") : index.rindex("}") + 1])["terms"]
    assert any(term.startswith("zygomorph") for term in terms) and "hand" in terms


@pytest.mark.slow
@needs_sphinx
def test_downloads_are_the_files_of_the_results(built):
    site, _ = built
    links = {link for page in pages_of(site) for _, link in Links(page.read_text()).links}
    for file in (
        "notebooks/neural_collapse/fig3.ipynb",
        "figures/neural_collapse/fig3.pdf",
        "figures/neural_collapse/fig3.csv",
        "tables/neural_collapse/fig3_claims.csv",
    ):
        assert (site / file).read_bytes() == (site.parent / file).read_bytes()
        assert f"../{file}" in links


def standing(results):
    """A site that is there already, as this test's own copy."""
    (results / "site").mkdir()
    (results / "site/index.html").write_text("the old one")
    return results / "site/index.html"


@needs_sphinx
def test_an_old_site_outlives_a_build_that_fails(smoke, isolated, monkeypatch):
    old = standing(smoke)
    (isolated / "book").mkdir()
    (isolated / "book/conf.py").write_text("def setup(app):\n    raise RuntimeError('a theme that is not there')\n")
    monkeypatch.setattr(build, "_book", lambda: isolated / "book")
    (isolated / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(isolated / "tmp"))
    with pytest.raises(build.ReportError, match="a theme that is not there") as failed:
        build.build("smoke")
    assert "has been saved" not in str(failed.value) and list((isolated / "tmp").iterdir()) == []
    assert old.read_text() == "the old one" and not (smoke / ".site").exists()


def test_an_old_site_comes_back_when_the_new_one_cannot_take_its_place(smoke):
    old = standing(smoke)
    with pytest.raises(FileNotFoundError):
        build._swap(smoke / "not there", old.parent, smoke / "aside")
    assert old.read_text() == "the old one" and not (smoke / "aside").exists()


def test_what_is_unchanged_is_not_made_again(smoke, sphinx):
    said = []
    landing = build.build("smoke", echo=said.append)
    build.build("smoke", echo=said.append)
    assert sphinx == ["smoke"] and said[-1] == f"the site is up to date: {landing}"
    build.build("smoke", force=True)
    assert len(sphinx) == 2 and landing.read_text() == "number 2"


def change_notebook(results):
    write_notebook("neural_collapse/fig4", [cell("markdown", "# Figure 4 · Changed")])


def change_figure(results):
    fig, _ = plt.subplots(figsize=(2, 1.5))
    artefacts.save_figure(fig, "neural_collapse/fig3", "Other, profile smoke.", ["run-1"], "smoke")


def remove_file(results):
    (results / "figures/neural_collapse/fig3.pdf").unlink()


@pytest.mark.parametrize("change", [change_notebook, change_figure, remove_file, fail_notebook])
def test_what_changed_is_made_again(smoke, sphinx, change):
    build.build("smoke")
    change(smoke)
    build.build("smoke")
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
            second = other.submit(build.build, "smoke", echo=hear)
            assert waiting.wait(60) and sphinx == []
            assert said == [f"another process is at work on the site of {smoke}; waiting for it"]
        second.result()
    assert sphinx == ["smoke"] and not (smoke / ".site").exists()


def test_a_site_that_another_process_has_made_meanwhile_is_not_made_again(smoke, sphinx, monkeypatch):
    alone_in = other_parameters.alone_in

    @contextlib.contextmanager
    def after_another(*arguments):
        monkeypatch.setattr(other_parameters, "alone_in", alone_in)
        build.build("smoke")
        with alone_in(*arguments):
            yield

    monkeypatch.setattr(other_parameters, "alone_in", after_another)
    build.build("smoke")
    assert len(sphinx) == 1


def test_without_sphinx_it_names_the_extra(smoke, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "myst_nb" else find(name))
    said = r'myst-nb is not installed; in the clone, type: pip install "\.\[book\]"'
    with pytest.raises(build.SphinxMissing, match=said):
        build.build("smoke")
    assert not (smoke / "site").exists()


def test_the_title_is_an_argument_in_any_locale(tmp_path, monkeypatch):
    called = []
    (tmp_path / "html").mkdir()
    (tmp_path / "html/index.html").touch()
    done = build.subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(build.subprocess, "run", lambda command, **_: called.append(command) or done)
    for encoding, shown in (("ascii", "nclib: smoke with dataset=gr??e"), ("utf-8", "nclib: smoke with dataset=größe")):
        monkeypatch.setattr(build.sys, "getfilesystemencoding", lambda encoding=encoding: encoding)
        build._run_sphinx("smoke with dataset=größe", tmp_path, print)
        assert f"html_title={shown}" in called[-1]
        for word in called[-1]:
            word.encode(encoding, "surrogateescape")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
@pytest.mark.parametrize("file", ["summary.json", "site/.inputs", "figures/neural_collapse/fig3.pdf"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(smoke, sphinx, file):
    build.build("smoke")
    path = smoke / file
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    child = multiprocessing.get_context("fork").Process(target=build.build, args=("smoke",))
    child.start()
    child.join(60)
    hangs = child.is_alive()
    child.kill()
    assert not hangs and child.exitcode == 0
