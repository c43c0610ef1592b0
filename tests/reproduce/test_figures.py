"""``make figures``: what it draws, and that it copies all or nothing."""

import pytest
from PIL import Image

from companion import figures
from nclib.reproduce.drawing import Row
from nclib.reproduce.reproduce import Summary
from nclib.system import paths


@pytest.fixture
def drawn(project, monkeypatch):
    """Drawings that take no time; how each ends, in the list returned."""
    asked, status = [], ["executed", "executed"]

    def reproduce(names, profile="quick", overrides=(), train="missing"):
        asked.append((profile, train))
        folder = paths.results(profile) / ("with/large" if overrides else "")
        wanted = figures.PICTURES if profile == "quick" else ("collapse", "collapse_norms", *figures.LARGE)
        (folder / "figures/neural_collapse").mkdir(parents=True)
        for name in wanted:
            Image.new("RGB", (4, 4), "red").save(folder / f"figures/neural_collapse/{name}.png")
        (folder / "tables/neural_collapse").mkdir(parents=True)
        for name in figures.TABLES if profile == "quick" else figures.LARGE_TABLES:
            for end in ("csv", "json"):
                (folder / f"tables/neural_collapse/{name}.{end}").write_text(profile)
        return Summary({}, [Row("a/b", status[len(asked) - 1])])

    monkeypatch.setattr(figures, "reproduce", reproduce)
    monkeypatch.setattr(figures, "select", lambda names: ["neural_collapse/fig1"])
    monkeypatch.setattr(figures, "numbers", dict)
    monkeypatch.setattr(figures, "fill_pages", lambda numbers, write: asked.append("pages"))
    for name in ("figures", "tables"):
        (paths.reference() / name).mkdir(parents=True)
    return asked, status


def test_pictures_and_tables_are_copied_without_training_and_the_pages_filled(drawn):
    figures.draw()
    assert drawn[0] == [("quick", "never"), ("full", "finished"), "pages"]
    copied = {path.name for path in paths.reference().rglob("*.*")}
    assert {"fig3-quick.png", "fig3-full.png", "scorecard-quick.csv", "collapse_pooled-full.json"} <= copied
    assert len(copied) == 5 + 6 + 2 * (7 + 3)
    with Image.open(paths.reference() / "figures/fig3-full.png") as image:
        assert image.mode == "P"


def test_nothing_is_copied_where_a_notebook_fails(drawn):
    drawn[1][1] = "failed"
    with pytest.raises(SystemExit, match="nothing was copied"):
        figures.draw()
    assert [path for path in paths.reference().rglob("*") if path.is_file()] == []
