"""Notebooks as files: names and their order."""

import pytest
from reproduction import write_notebook

from nclib.config import ConfigError
from nclib.publish import notebooks


@pytest.fixture
def many(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_ROOT", str(tmp_path))
    names = ["neural_collapse/fig10", "neural_collapse/fig2", "walkthrough/01_start", "kernels/fig2"]
    for name in names:
        write_notebook(name)
    write_notebook("index")
    write_notebook("neural_collapse/.ipynb_checkpoints/fig2-checkpoint")
    return names


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ([], ["walkthrough/01_start", "neural_collapse/fig2", "neural_collapse/fig10", "kernels/fig2"]),
        (["fig2"], ["neural_collapse/fig2"]),
        (["kernels/fig2"], ["kernels/fig2"]),
        (["neural_collapse"], ["neural_collapse/fig2", "neural_collapse/fig10"]),
        (["fig10", "neural_collapse"], ["neural_collapse/fig10", "neural_collapse/fig2"]),
        (["notebooks/kernels/fig2.ipynb"], ["kernels/fig2"]),
    ],
)
def test_names_are_understood(many, typed, meant):
    assert notebooks.select(typed) == meant


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("fgi2", "Did you mean 'fig2'"),
        ("neural_colapse", "'neural_collapse'"),
        ("kernels/fig3", "'kernels/fig2'"),
        ("01_start", "Did you mean 'walkthrough/01_start'"),
        ("index", "Allowed: "),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(many, typed, near):
    with pytest.raises(ConfigError, match=f"unknown notebook '{typed}'.*{near}"):
        notebooks.select([typed])


def test_the_order_of_the_book():
    names = ["other/a", "kernel_equivalence/fig1", "neural_collapse/audit", "neural_collapse/table1"]
    names += ["neural_collapse/fig10", "neural_collapse/fig2", "walkthrough/2_b", "walkthrough/10_c"]
    assert sorted(names, key=notebooks.reading_order) == [
        "walkthrough/2_b",
        "walkthrough/10_c",
        "neural_collapse/fig2",
        "neural_collapse/fig10",
        "neural_collapse/table1",
        "neural_collapse/audit",
        "kernel_equivalence/fig1",
        "other/a",
    ]
