"""Where things lie, and the folders for results of other parameters."""

from pathlib import Path

import pytest

from nclib.engine.reference import reference_store
from nclib.system import other_parameters, paths

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_overrides(monkeypatch):
    for variable in ("NCLIB_ROOT", "NCLIB_DATA", "NCLIB_RESULTS"):
        monkeypatch.delenv(variable, raising=False)


def project_at(folder: Path, name: str = "nclib-deq") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    return folder


@pytest.mark.parametrize("below", [".", "nclib", "tests"])
def test_defaults_do_not_depend_on_the_working_directory(below, monkeypatch):
    monkeypatch.chdir(PROJECT / below)
    assert paths.root() == PROJECT
    assert paths.data() == PROJECT / "data" and paths.results() == PROJECT / "results"
    assert paths.runs() == PROJECT / "results" / "runs"
    assert paths.results("quick") == PROJECT / "results" / "quick"
    assert paths.published() == PROJECT / "data" / "published"
    assert paths.reference() == PROJECT / "results" / "reference"
    assert paths.notebooks() == PROJECT / "notebooks"


def test_the_nearest_project_upward_wins_and_others_are_passed_by(tmp_path, monkeypatch):
    outer = project_at(tmp_path / "clone")
    inner = project_at(outer / "notebooks" / "somebody", name="other")
    (outer / "notebooks" / "pyproject.toml").write_text("not [ toml")
    monkeypatch.chdir(inner)
    assert paths.root() == outer


def test_overrides_are_absolute_and_each_moves_one_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCLIB_RESULTS", "out")
    assert paths.results() == tmp_path / "out" and paths.runs() == tmp_path / "out" / "runs"
    with monkeypatch.context() as outside:
        outside.setattr(paths, "_project_above", lambda _: None)
        assert reference_store().ids() == []
    assert paths.reference() == PROJECT / "results" / "reference"
    assert paths.data() == PROJECT / "data"
    monkeypatch.setenv("NCLIB_DATA", "~/images")
    assert paths.data() == Path("~/images").expanduser()
    assert paths.published() == PROJECT / "data" / "published"
    monkeypatch.setenv("NCLIB_DATA", "")
    assert paths.data() == PROJECT / "data"


def test_folders_of_parameters_that_cannot_stand_in_a_name_differ_all_the_same():
    hard = ["a/b", "a:b", "../../x", "A", "a", "größe", "x" * 300, "x" * 301, "-", "a\nb"]
    names = {other_parameters.folder_name({"dataset": value}) for value in hard}
    assert len({name.casefold() for name in names}) == len(hard)
    for name in names:
        with other_parameters.results_with(name):
            assert paths.results("smoke").parent == paths.results() / "smoke" / "with"
            assert paths.results("smoke").name == name and len(name) < 130
