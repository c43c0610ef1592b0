"""Points that are pointed at: their file, their place on a page, and tables that have none."""

import pandas as pd
import pytest
from executed import cell, write_notebook

from companion.site import build, pages, points
from companion.site.sources import collect
from nclib.publish import artefacts
from nclib.publish.notebooks import text_of

NAME = "neural_collapse/fig2"
ROWS = pd.DataFrame({"x": [0.5, 1.5], "y": [1.0, 2.0], "class": [0, 1], "model": "deq", "name": ["zero", "<b>one"]})


def save(table):
    write_notebook(NAME, [cell("markdown", "# Figure 2 · Claim"), cell("code", "draw()")])
    artefacts.save_table(table, f"{NAME}_tsne", "Points, smoke.", ["run-1"], "smoke")
    sources = collect("smoke")
    return sources, next(page for page in sources.pages if page.name == NAME)


def test_a_table_without_images_has_no_such_section(isolated):
    sources, page = save(ROWS)
    assert points.table_of(page, "smoke") is None
    assert not any("Point at" in text_of(cell) for cell in pages.with_facts(page, sources)["cells"])


def test_the_page_holds_the_points_and_the_file_their_images(isolated, tmp_path):
    for module in ("altair", "vl_convert"):
        pytest.importorskip(module)
    sources, page = save(ROWS.assign(minority=[False, True], image=["iVBORw0K", None]))
    shown = " ".join(text_of(cell) for cell in pages.with_facts(page, sources)["cells"])
    assert 'src="../points/neural_collapse/fig2.html"' in shown
    build._add_downloads(sources, tmp_path)
    text = (tmp_path / "points/neural_collapse/fig2.html").read_text()
    assert "data:image/png;base64,iVBORw0K" in text and "minority" in text and "zero" in text
    assert "<script src" not in text and "<link" not in text and len(text) < 2_000_000


def test_the_name_of_a_class_ends_no_script():
    for module in ("altair", "vl_convert"):
        pytest.importorskip(module)
    attack = "</script><script>alert(1)</script>"
    text = points.file(ROWS.assign(minority=False, image=None, name=attack))
    assert attack not in text and attack.replace("<", r"\u003c") in text
