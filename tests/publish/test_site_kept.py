"""The reference and the curves: made once for all sites, joined to each, and waited for by no draft."""

import json

import pytest
from executed import cell, write_notebook

from companion.site import build, kept
from nclib.reproduce import execute
from nclib.system import other_parameters, paths


@pytest.fixture
def made(sphinx, monkeypatch):
    """What was made of what lasts; all of it takes no time."""
    found = []

    def reference(folder, echo):
        found.append("reference")
        (folder / "names.json").write_text("{}")

    def curves(folder):
        found.append("curves")
        (folder / "curves.html").write_text("curves")

    monkeypatch.setattr(build, "_reference", reference)
    monkeypatch.setattr(build, "_curves", curves)
    monkeypatch.setattr(kept, "join", lambda reference, site: (site / "joined").write_text(reference.name))
    return found


def change(results):
    write_notebook("neural_collapse/fig4", [cell("markdown", "# Figure 4 · Changed")])


def test_a_second_build_makes_neither_again(smoke, made, sphinx):
    build.build("smoke")
    change(smoke)
    build.build("smoke")
    with other_parameters.results_with("epochs=3"):
        change(smoke)
        build.build("smoke")
    assert made == ["reference", "curves"] and len(sphinx) == 3
    assert (smoke / "site/curves.html").read_text() == "curves" and (smoke / "site/joined").exists()


def test_a_draft_waits_for_neither_and_the_build_at_the_end_adds_both(smoke, made, sphinx):
    build.build("smoke", draft=True)
    assert made == [] and not (smoke / "site/joined").exists() and not (smoke / "site/curves.html").exists()
    build.build("smoke")
    assert made == ["reference", "curves"] and (smoke / "site/joined").exists()
    change(smoke)
    build.build("smoke", draft=True)
    assert len(sphinx) == 3 and (smoke / "site/joined").exists(), "what is there is joined to a draft, too"


def test_what_it_is_made_from_makes_it_again_and_older_ones_go(isolated):
    def make(folder):
        (folder / "page").write_text("made")

    folders = [kept.kept("reference", [number], make, print) for number in (1, 1, 2)]
    assert folders[0] == folders[1] and not folders[0].exists() and (folders[2] / "page").read_text() == "made"


def test_what_a_killed_build_left_is_not_taken_for_the_whole(isolated):
    def fail(folder):
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.kept("reference", [1], fail, print)
    assert not kept.place("reference", [1]).exists()
    assert list(kept.kept("reference", [1], lambda folder: None, print).iterdir()) == []


def index(pages, **more):
    names = {"docnames": pages, "filenames": [f"{name}.md" for name in pages], "titles": [*map(str.title, pages)]}
    empty = {"alltitles": {}, "indexentries": {}, "objects": {}, "terms": {}, "titleterms": {}}
    return names | empty | {"objnames": {}, "objtypes": {}} | more


def test_words_of_the_reference_are_found_in_the_site_it_is_joined_to(tmp_path):
    site = index(["api/index", "fig3", "index"], terms={"deq": 1, "loss": [1, 2]})
    words = {"deq": [0, 2], "solver": 2, "front": 1}
    objects = {"nclib": [[2, 0, 1, "", "DEQ"]]}
    titles = {"Reference": [[0, None]], "Equilibrium layers": [[2, None]]}
    named = {"objnames": {"0": ["py", "class", "Python class"]}, "objtypes": {"0": "py:class"}}
    other = index(["api/index", "index", "api/deq"], terms=words, objects=objects, alltitles=titles, **named)
    for name, found in (("site", site), ("reference", other)):
        (tmp_path / name / "_static").mkdir(parents=True)
        (tmp_path / name / "searchindex.js").write_text(f"Search.setIndex({json.dumps(found)})")
        (tmp_path / name / "_static/bodies.js").write_text(f'window.nclibBodies = {{"{name}.html": "}}"}};')
    (tmp_path / "reference/api").mkdir()
    (tmp_path / "reference/api/deq.html").write_text("page")
    kept.join(tmp_path / "reference", tmp_path / "site")
    text = (tmp_path / "site/searchindex.js").read_text()
    assert text.startswith("Search.setIndex({") and text.endswith("})")
    joined = json.loads(text[text.index("{") : -1])
    assert joined["docnames"] == ["api/index", "fig3", "index", "api/deq"] and joined["titles"][3] == "Api/Deq"
    assert joined["terms"] == {"deq": [1, 3], "loss": [1, 2], "solver": [3]}
    assert joined["objects"] == {"nclib": [[3, 0, 1, "", "DEQ"]]} and joined["objtypes"] == {"0": "py:class"}
    assert joined["alltitles"] == {"Equilibrium layers": [[3, None]]}
    assert "reference.html" in (tmp_path / "site/_static/bodies.js").read_text()
    assert (tmp_path / "site/api/deq.html").read_text() == "page"


def test_what_is_kept_lies_beside_the_profiles(isolated):
    assert kept.place("reference", []).parent == paths.results() / ".site"


def test_the_site_of_the_first_page_is_a_draft(monkeypatch):
    asked = []
    monkeypatch.setattr(build, "build", lambda *names, **options: asked.append(options) or "there")
    assert execute.first_site("smoke") == "there" and asked[0]["draft"]
