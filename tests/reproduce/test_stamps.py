"""Which sources a notebook depends on."""

import shutil

import pytest

from nclib.reproduce import stamps
from nclib.system import paths, provenance

FOLDERS = ("neural_collapse", "kernel_equivalence", "walkthrough")


@pytest.mark.parametrize(
    ("edited", "redrawn"),
    [
        ("companion/kernel_equivalence/exact.py", {"kernel_equivalence", "walkthrough"}),
        ("companion/neural_collapse/imbalanced.py", {"neural_collapse", "walkthrough"}),
        ("companion/exact.py", set(FOLDERS)),
        ("companion/course/answers.py", {"walkthrough"}),
        ("nclib/publish/plots/style.py", set(FOLDERS)),
        ("nclib/solver.py", set(FOLDERS)),
    ],
)
def test_an_edit_redraws_the_notebooks_of_one_paper_or_where_all_use_it_all(tmp_path, monkeypatch, edited, redrawn):
    for package in ("nclib", "companion"):
        shutil.copytree(paths.root() / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "folder", lambda package: tmp_path.joinpath(*package.split(".")))
    before = {folder: stamps.sources.__wrapped__(folder) for folder in FOLDERS}
    with (tmp_path / edited).open("a", encoding="utf-8") as file:
        file.write("\n# edited\n")
    assert {folder for folder in FOLDERS if stamps.sources.__wrapped__(folder) != before[folder]} == redrawn
