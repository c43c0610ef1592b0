"""Every notebook: how it is stored, and that it runs from top to bottom in the smallest size."""

import ast
import json
import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from certified import uncertified
from colours import confusable
from marks import slow

import nclib
from nclib import compare, paths, plots, profiles, reproduce
from nclib.papers import certify
from nclib.papers.separation_bias.experiments import NOTEBOOKS

NAMES = reproduce.available()
LONGEST_CELL = 25
NO_IMAGES = {f"separation_bias/{name}" for name in NOTEBOOKS}
"""Notebooks whose trainings have nothing but their seeds to change."""
ONE_SEED = ("walkthrough/07_imbalance",)
"""Notebooks that look at the first seed alone."""
QUICK = {
    *(
        "walkthrough/01_fixed_points",
        "walkthrough/05_neural_collapse",
        "walkthrough/08_reading_a_table",
    ),
    *(f"neural_collapse/{name}" for name in ("audit", "fig1", "table1")),
    *(f"kernel_equivalence/{name}" for name in ("fig1", "ntk", "spectra", "your_own_activation")),
    *(f"separation_bias/{name}" for name in ("audio", "theorem1_regions")),
}
"""Notebooks that `make test` runs, of 2 seconds each and of every kind; the others wait for `make test-slow`."""
TEACH_BY_DEFINING = ("laboratory", "kernel_equivalence/your_own_activation")
TEACH_BY_DEFINING += tuple(name for name in NAMES if name.startswith("walkthrough/"))

PLACES = sorted(path.stem for path in paths.notebooks().glob("[!.]*.ipynb"))
"""Notebooks in no folder: the index and the laboratory, which `nclib reproduce` leaves alone."""


def _read(name):
    return json.loads(reproduce.source(name).read_text(encoding="utf-8"))


def _code(name):
    cells = [cell for cell in _read(name)["cells"] if cell["cell_type"] == "code"]
    return [
        ("parameters" in cell["metadata"].get("tags", []), "".join(cell["source"]))
        for cell in cells
    ]


def test_there_is_a_notebook_for_every_experiment():
    assert set(profiles.makers()) <= set(NAMES)


@pytest.mark.parametrize("name", [*NAMES, *PLACES])
def test_is_stored_without_outputs(name):
    notebook = _read(name)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert not {"papermill", "widgets"} & set(notebook["metadata"])
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_begins_with_its_claim_and_its_parameters(name):
    cells = _read(name)["cells"]
    assert cells[0]["cell_type"] == "markdown" and "".join(cells[0]["source"]).startswith("# ")
    assert "parameters" in cells[1]["metadata"]["tags"]
    declared = reproduce.parameters(name)
    trained = name in profiles.makers()  # the others compute all they show
    shared = (
        {"profile", "seeds", "train"}
        if name in NO_IMAGES
        else {"profile", "dataset", "seeds", "epochs", "train"}
    )
    if name in ONE_SEED:
        shared -= {"seeds"}
    assert (shared if trained else {"profile"}) <= set(declared)


def test_every_notebook_with_a_hundred_class_column_declares_its_data_set():
    plain = profiles.get_profile("full")
    with_hundred = profiles.override(plain, hundred_dataset="digit_pairs")
    for name in NAMES:
        make = profiles.makers().get(reproduce.DRAWN_AS_FAR_AS_THERE.get(name, name))
        has_column = make is not None and len(make(with_hundred)) > len(make(plain))
        assert ("hundred_dataset" in reproduce.parameters(name)) == has_column, name


@pytest.mark.parametrize("name", NAMES)
def test_saving_is_folded_and_comes_last(name):
    cells = _read(name)["cells"]
    last = max(place for place, cell in enumerate(cells) if cell["cell_type"] == "markdown")
    folded = [cell["metadata"].get("jupyter", {}).get("source_hidden", False) for cell in cells]
    saves = [place for place, cell in enumerate(cells) if "nc.save_" in "".join(cell["source"])]
    assert all(folded[last + 1 :]) and saves and min(saves) > last


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_explained_and_seen_by_papermill(name):
    """It passes over a line with two signs of equality, in silence."""
    (text,) = [text for is_parameters, text in _code(name) if is_parameters]
    assert len(re.findall(r"^\w+: .*  # ", text, re.MULTILINE)) == len(reproduce.parameters(name))


@pytest.mark.parametrize("name", NAMES)
def test_its_own_values_stay_when_the_parameters_cell_is_edited(name):
    """In the metadata of the cell, from which `save_figure` sees an edited notebook."""
    declared = reproduce.parameters(name)
    for parameter in paths.SET_BY_THE_COMMAND:
        declared.pop(parameter, None)
    assert _read(name)["cells"][1]["metadata"]["defaults"] == declared


@pytest.mark.parametrize("name", [*NAMES, *PLACES])
def test_calls_and_never_defines(name):
    for _, text in _code(name):
        assert len(text.splitlines()) <= LONGEST_CELL
        assert not re.search(r"^\s*[%!]", text, re.MULTILINE), "no magics, no shell lines"
        for node in ast.walk(ast.parse(text)):
            if name not in TEACH_BY_DEFINING:
                assert not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)), (
                    "logic belongs into nclib"
                )
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "nc"
            ):
                assert node.attr in dir(nclib), "notebooks use the public names"


@pytest.mark.parametrize("name", NAMES)
def test_is_listed_in_the_readme_of_the_notebooks(name):
    assert f"`{name}`" in (paths.notebooks() / "README.md").read_text(encoding="utf-8")


NEED_A_SCALE = compare.VERDICTS.keys() - {"reported", "not run"}


def strange_verdicts(table):
    """Verdicts of a saved table, with their scales, whose word is not in the vocabulary or whose scale is not there."""
    rows = pd.read_csv(table, keep_default_na=False).to_dict("records") if table.exists() else []
    said = [(row["verdict"], row.get("scale", "")) for row in rows if "verdict" in row]
    scales = {True: [*compare.SCALES], False: ["", *compare.SCALES]}
    known = {*certify.VERDICTS, *compare.VERDICTS}
    return [
        pair
        for pair in said
        if pair[0].split(" if ")[0] not in known or pair[1] not in scales[pair[0] in NEED_A_SCALE]
    ]


@pytest.mark.filterwarnings("ignore:epoch .* of the backward passes")  # few steps are taken
@pytest.mark.parametrize("name", [name if name in QUICK else slow(name)[0] for name in NAMES])
def test_runs_in_smoke_size(name, shared, monkeypatch):
    monkeypatch.setenv(
        "NCLIB_RESULTS", str(shared / "results")
    )  # one for all notebooks, which share runs
    smoke = paths.results("smoke")
    monkeypatch.chdir(paths.notebooks())
    if name == "neural_collapse/collapse":  # it draws what others have trained
        rows = nclib.ensure_runs(nclib.experiment("neural_collapse/equilibrium_or_cell", "smoke"))
        earlier = (rows["model"] == "explicit") & (
            rows["metric"] == "feature_norm"
        )  # which did not log it
        monkeypatch.setattr(nclib, "ensure_runs", lambda *_, **__: rows[~earlier])
    shown = []
    picture = plots.picture
    monkeypatch.setattr(plots, "picture", lambda fig, alt: shown.append(fig) or picture(fig, alt))
    namespace = {"display": print}
    for is_parameters, text in _code(name):
        exec(compile(text, name, "exec"), namespace)
        assert not (name.startswith("walkthrough/") and plt.get_fignums()), (
            "shown without words: use nc.plots.picture"
        )
        if is_parameters:
            namespace |= {"profile": "smoke", "train": "missing"}
    plt.close("all")
    assert [pair for fig in shown for ax in fig.axes for pair in confusable(ax)] == []
    sidecars = [
        path for path in smoke.rglob("*.json") if f"{path.parent.name}/{path.stem}".startswith(name)
    ]
    for table in [path.with_suffix(".csv") for path in sidecars]:
        assert strange_verdicts(table) == []
        assert not table.exists() or uncertified(pd.read_csv(table)) == []
    assert sidecars, "saved nothing under its own name"
    recorded = []
    for path in sidecars:
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
