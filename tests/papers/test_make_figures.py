"""``make figures``: what it draws, and that it copies all or nothing."""

import pytest
from PIL import Image
from reproduction import write_notebook

from nclib import paths
from nclib.papers import make_figures
from nclib.reproduce import Row, Summary


@pytest.fixture
def drawn(project, monkeypatch):
    """Drawings that take no time; how each ends, in the list returned."""
    asked, status = [], ["executed", "executed"]
    tracked = [
        paths.reference() / name
        for name in ("figures/fig3-quick.png", "tables/scorecard-quick.csv")
    ]
    tracked += [
        paths.reference() / name
        for name in ("figures/fig3-full.png", "tables/collapse_pooled-full.json")
    ]
    for file in tracked:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def reproduce(names, profile="quick", texts=(), train="missing"):
        asked.append((profile, train))
        folder = paths.results(profile) / ("with/large" if texts else "")
        for file in [file for file in tracked if profile in file.name]:
            made = (
                folder / file.parent.name / "neural_collapse" / file.name.replace(f"-{profile}", "")
            )
            made.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), "red").save(
                made
            ) if made.suffix == ".png" else made.write_text(profile)
        return Summary([Row("a/b", status[len(asked) - 1])], "")

    monkeypatch.setattr(make_figures, "reproduce", reproduce)
    write_notebook("neural_collapse/fig3", text="![a picture](images/fig3.png)")
    monkeypatch.setattr(make_figures, "select", lambda names: ["neural_collapse/fig3"])
    monkeypatch.setattr(
        make_figures.front_figures,
        "save",
        lambda folder: Image.new("RGB", (4, 4)).save(folder / "hero.png"),
    )
    monkeypatch.setattr(make_figures.docs_tables, "write", lambda: asked.append("tables"))
    return asked, status, tracked


def test_pictures_and_tables_are_copied_without_training_and_the_page_of_tables_written(drawn):
    make_figures.draw()
    assert drawn[0] == [("quick", "never"), ("full", "finished"), "tables"]
    assert all(file.stat().st_size for file in drawn[2])
    assert (paths.reference() / "figures/hero.png").stat().st_size
    for picture in (
        paths.reference() / "figures/fig3-full.png",
        paths.notebooks() / "neural_collapse/images/fig3.png",
    ):
        with Image.open(picture) as image:
            assert image.mode == "P"


def test_small_pictures_alone_are_those_of_the_largest_runs(drawn):
    make_figures.draw_small(["fig3"])
    assert drawn[0] == [("full", "finished")] and not drawn[2][0].stat().st_size
    assert (paths.notebooks() / "neural_collapse/images/fig3.png").is_file()


def test_a_small_picture_is_0_42_of_the_figure_and_a_link_needs_one(drawn, tmp_path):
    figure = tmp_path / "figures/neural_collapse/fig3.png"
    figure.parent.mkdir(parents=True)
    Image.new("RGBA", (2025, 1000), "red").save(figure)
    with Image.open(*make_figures.small_pictures(["neural_collapse/fig3"], [tmp_path])) as image:
        assert image.size == (850, 420)
    figure.unlink()
    with pytest.raises(SystemExit, match="no figure of that name"):
        make_figures.small_pictures(["neural_collapse/fig3"], [tmp_path])


@pytest.mark.parametrize("status", ["failed", "not drawn"])
def test_nothing_is_copied_where_a_notebook_is_not_there(drawn, status):
    drawn[1][1] = status
    with pytest.raises(SystemExit, match="nothing was copied"):
        make_figures.draw()
    assert not any(file.stat().st_size for file in drawn[2])
    assert not (paths.reference() / "figures/hero.png").exists()
