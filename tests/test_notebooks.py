"""Every notebook: how it is stored, and that it runs from top to bottom in the smallest size."""

import ast
import json
import re
from pathlib import Path

import executed
import pytest
from certified import wrong_verdicts
from marks import slow

import nclib
from nclib import paths, profiles, reproduce
from nclib.papers.separation_bias.experiments import NOTEBOOKS

NAMES = reproduce.available()
LONGEST_CELL = 25
NO_IMAGES = {f"separation_bias/{name}" for name in NOTEBOOKS}
"""Notebooks whose trainings have nothing but their seeds to change."""
ONE_SEED = ("walkthrough/07_imbalance",)
"""Notebooks that look at the first seed alone."""
QUICK = {
    "neural_collapse/audit",
    "neural_collapse/table1",
    "kernel_equivalence/spectra",
    "separation_bias/theorem1_regions",
}
"""Notebooks that `make test` runs, of 2 seconds each and of every kind; the others wait for `make test-slow`."""
TEACH_BY_DEFINING = ("laboratory", "kernel_equivalence/your_own_activation")
TEACH_BY_DEFINING += tuple(name for name in NAMES if name.startswith("walkthrough/"))

PLACES = sorted(path.stem for path in paths.notebooks().glob("[!.]*.ipynb"))
"""Notebooks in no folder: the index and the laboratory, which `nclib reproduce` leaves alone."""


def _read(name):
    return json.loads(reproduce.source(name).read_text(encoding="utf-8"))


def test_there_is_a_notebook_for_every_experiment():
    assert set(profiles.makers()) <= set(NAMES)


def test_they_are_stored_without_outputs():
    for name in (*NAMES, *PLACES):
        notebook = _read(name)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [] and cell["execution_count"] is None, name
        assert notebook["metadata"]["kernelspec"]["name"] == "python3", name
        assert not {"papermill", "widgets"} & set(notebook["metadata"]), name
        ids = [cell["id"] for cell in notebook["cells"]]
        assert len(set(ids)) == len(ids), name


def test_they_begin_with_their_claim_and_their_parameters():
    for name in NAMES:
        cells = _read(name)["cells"]
        assert cells[0]["cell_type"] == "markdown", name
        assert "".join(cells[0]["source"]).startswith("# "), name
        assert "parameters" in cells[1]["metadata"]["tags"], name
        shared = {"profile"}
        if name in profiles.makers():  # the others compute all they show
            shared |= {"seeds", "train"}
            if name not in NO_IMAGES:
                shared |= {"dataset", "epochs"}
        if name in ONE_SEED:
            shared -= {"seeds"}
        assert shared <= set(reproduce.parameters(name)), name


def test_every_notebook_with_a_hundred_class_column_declares_its_data_set():
    plain = profiles.get_profile("full")
    with_hundred = profiles.override(plain, hundred_dataset="digit_pairs")
    for name in NAMES:
        make = profiles.makers().get(reproduce.DRAWN_AS_FAR_AS_THERE.get(name, name))
        has_column = make is not None and len(make(with_hundred)) > len(make(plain))
        assert ("hundred_dataset" in reproduce.parameters(name)) == has_column, name


def test_saving_is_folded_and_comes_last():
    for name in NAMES:
        cells = _read(name)["cells"]
        last = max(place for place, cell in enumerate(cells) if cell["cell_type"] == "markdown")
        folded = [cell["metadata"].get("jupyter", {}).get("source_hidden", False) for cell in cells]
        saves = [place for place, cell in enumerate(cells) if "nc.save_" in "".join(cell["source"])]
        assert all(folded[last + 1 :]), name
        assert saves and min(saves) > last, name


def test_every_parameter_is_explained_and_seen_by_papermill():
    """It passes over a line with two signs of equality, in silence."""
    for name in NAMES:
        (text,) = [text for is_parameters, text in executed.code_cells(name) if is_parameters]
        explained = re.findall(r"^\w+: .*  # ", text, re.MULTILINE)
        assert len(explained) == len(reproduce.parameters(name)), name


def test_their_own_values_stay_when_the_parameters_cell_is_edited():
    """In the metadata of the cell, from which `save_figure` sees an edited notebook."""
    for name in NAMES:
        declared = reproduce.parameters(name)
        for parameter in paths.SET_BY_THE_COMMAND:
            declared.pop(parameter, None)
        assert _read(name)["cells"][1]["metadata"]["defaults"] == declared, name


def test_they_call_and_never_define():
    for name in (*NAMES, *PLACES):
        for _, text in executed.code_cells(name):
            assert len(text.splitlines()) <= LONGEST_CELL, name
            assert not re.search(r"^\s*[%!]", text, re.MULTILINE), f"{name}: no magics, no shell"
            for node in ast.walk(ast.parse(text)):
                defines = isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda))
                assert not defines or name in TEACH_BY_DEFINING, f"{name}: logic belongs into nclib"
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    public = node.value.id != "nc" or node.attr in dir(nclib)
                    assert public, f"{name}: {node.attr} is no public name"


def test_they_are_listed_in_their_readme():
    text = (paths.notebooks() / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in text] == []


@pytest.mark.filterwarnings("ignore:epoch .* of the backward passes")  # few steps are taken
@pytest.mark.parametrize("name", [name if name in QUICK else slow(name)[0] for name in NAMES])
def test_runs_in_smoke_size(name, shared):
    seen = executed.at_smoke_size(name, shared)
    assert seen["confusable"] == []
    if name.startswith("walkthrough/"):
        assert not seen["without words"], "shown without words: use nc.plots.picture"
    assert wrong_verdicts(seen["tables"]) == []
    assert seen["records"], "saved nothing under its own name"
    recorded = []
    for path in map(Path, seen["records"]):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert "smoke" in record["caption"]
        recorded.append(bool(record["runs"]))
        assert all((path.parent / file).stat().st_size for file in record["files"])
    if name in profiles.makers():  # the course computes beside what it trains
        assert any(recorded) if name in TEACH_BY_DEFINING else all(recorded)


def test_the_index_lists_every_notebook_by_its_title():
    text = "\n".join("".join(cell["source"]) for cell in _read("index")["cells"])
    listed = re.findall(r"^- \[(.+)\]\((.+?)\.ipynb\)$", text, re.MULTILINE)
    titles = {name: reproduce.title(reproduce.source(name)) for name in NAMES}
    assert sorted((name, title) for title, name in listed) == sorted(titles.items())
