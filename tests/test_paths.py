"""Where things lie, the folders for results of other parameters, and files written whole or not at all."""

import os
from pathlib import Path

import pytest

from nclib import paths
from nclib.paths import write_atomic
from nclib.store import reference_store

PROJECT = Path(__file__).resolve().parents[1]


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
    names = {paths.folder_name({"dataset": value}) for value in hard}
    assert len({name.casefold() for name in names}) == len(hard)
    for name in names:
        with paths.results_with(name):
            assert paths.results("smoke").parent == paths.results() / "smoke" / "with"
            assert paths.results("smoke").name == name and len(name) < 130


def test_outside_a_clone_the_message_says_which_variable_is_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "_project_above", lambda _: None)
    with pytest.raises(FileNotFoundError, match="NCLIB_RESULTS=FOLDER is enough for runs"):
        paths.runs()
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path))
    assert paths.runs() == tmp_path / "runs"


def test_write_atomic_replaces_and_creates_folders(tmp_path):
    path = write_atomic(tmp_path / "a" / "b.txt", "é")
    assert path.read_bytes() == "é".encode()
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch, error, step
):
    path = write_atomic(tmp_path / "x", "old")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        write_atomic(path, "new")
    assert path.read_text() == "old" and list(tmp_path.glob("*x*")) == [path]
