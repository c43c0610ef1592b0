"""Files with their records, and tables as people read them."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from nclib import figures, paths
from nclib.config import DataConfig, RunConfig
from nclib.metrics import LABELS

CAPTION = "Accuracy against epoch, profile quick, 3 seeds, band one standard deviation."


def figure():
    fig, ax = plt.subplots(figsize=(3.25, 2))
    ax.plot([1, 2, 3], [1, 4, 2], label="DEQ")
    ax.set_xlabel("epoch")
    return fig


def table():
    return pd.DataFrame({"model": ["deq", "a|b"], "accuracy": [1 / 3, np.nan], "n": [3, 2]})


def test_a_figure_lands_complete(tmp_path):
    plotted = pd.DataFrame({"epoch": [1, 2], "value": [0.1, 1 / 3]})
    files = figures.save_figure(
        figure(), "neural_collapse/fig3", CAPTION, ["b", "a", "b"], "quick", plotted
    )
    folder = paths.results("quick") / "figures" / "neural_collapse"
    assert files == {kind: folder / f"fig3.{kind}" for kind in ("pdf", "png", "csv", "json")}
    assert sorted(folder.iterdir()) == sorted(files.values())  # nothing left aside
    sidecar = json.loads(files["json"].read_text())
    assert (
        sidecar["caption"] == CAPTION
        and sidecar["profile"] == "quick"
        and sidecar["runs"] == ["a", "b"]
    )
    assert {"commit", "versions", "device", "time_utc"} <= set(sidecar)
    for kind in ("pdf", "png", "csv"):
        entry = sidecar["files"][files[kind].name]
        assert entry["sha256"] == hashlib.sha256(files[kind].read_bytes()).hexdigest()
    pd.testing.assert_frame_equal(pd.read_csv(files["csv"]), plotted, check_exact=True)
    assert str(tmp_path) not in files["json"].read_text()


@pytest.mark.parametrize(
    ("name", "values", "folder"),
    [
        ("neural_collapse/fig3", {"epochs": 0, "seeds": 0, "profile": "smoke"}, "quick"),
        ("neural_collapse/fig3", {"epochs": 3, "seeds": 0}, "quick/with/epochs=3"),
        ("neural_collapse/fig3_centred", {"dataset": "mnist"}, "quick/with/dataset=mnist"),
        ("walkthrough/01_fixed_points_cobweb", {"size": 60}, "quick/with/size=60"),
        ("mine/fig3", {"epochs": 3}, "quick"),
    ],
)
def test_a_notebook_edited_in_jupyterlab_saves_where_p_would(
    name, values, folder, monkeypatch, capsys
):
    main = SimpleNamespace(get_ipython=None, **values)
    monkeypatch.setitem(sys.modules, "__main__", main)
    files = figures.save_figure(figure(), name, CAPTION, [], "quick")
    tables = figures.save_table(table(), name, CAPTION, [], "quick")
    assert files["png"] == paths.results() / folder / f"figures/{name}.png"
    assert tables["csv"] == paths.results() / folder / f"tables/{name}.csv"
    assert (folder in capsys.readouterr().out) == ("with" in folder)


def test_parameters_of_the_command_and_other_places_are_left_alone(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(get_ipython=None, epochs=3))
    with paths.results_with("epochs=3,seeds=5"):  # as nclib reproduce sets it, of all notebooks
        files = figures.save_figure(figure(), "neural_collapse/fig3", CAPTION, [], "quick")
    assert "quick/with/epochs=3,seeds=5/figures" in str(files["png"])

    def no_clone():
        raise FileNotFoundError("no nclib project")

    monkeypatch.setattr(paths, "root", no_clone)
    files = figures.save_figure(figure(), "mine/plot", CAPTION, [], "quick")
    assert files["png"] == paths.results("quick") / "figures/mine/plot.png"


def test_figure_is_saved_at_its_size_with_embedded_fonts():
    files = figures.save_figure(figure(), "f", CAPTION, [], "quick")
    with Image.open(files["png"]) as image:
        assert image.size == (975, 600)  # 3.25 in × 2 in at 300 dpi
    pdf = files["pdf"].read_bytes()
    assert b"/TrueType" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf and b"/CreationDate" not in pdf and b"matplotlib" not in pdf.lower()


@pytest.mark.slow
def test_same_input_gives_the_same_bytes_in_another_process(tmp_path):
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import test_figures as t; from nclib import figures\n"
        "figures.save_figure(t.figure(), 'f', t.CAPTION, [], 'quick')\n"
        "figures.save_table(t.table(), 't', t.CAPTION, [], 'quick')"
    )
    here = [
        figures.save_figure(figure(), "f", CAPTION, [], "quick"),
        figures.save_table(table(), "t", CAPTION, [], "quick"),
    ]
    there = tmp_path / "there"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "NCLIB_RESULTS": str(there), "PYTHONHASHSEED": "5"},
    )
    for files in here:
        for kind in set(files) - {"json"}:
            copy = there / files[kind].relative_to(paths.results())
            assert copy.read_bytes() == files[kind].read_bytes(), kind


def test_a_table_keeps_numbers_and_shows_text():
    shown = pd.DataFrame({"model": ["DEQ", "a|b"], "accuracy": ["0.33 ± 0.01", "<b>"]})
    files = figures.save_table(table(), "t1", CAPTION, ["r"], "quick", display=shown)
    assert pd.read_csv(files["csv"])["accuracy"][0] == 1 / 3
    assert files["md"].read_text() == (
        "| model | accuracy |\n|---|---|\n| DEQ | 0.33 ± 0.01 |\n| a\\|b | <b> |\n\n"
        + CAPTION
        + "\n"
    )
    assert set(json.loads(files["json"].read_text())["files"]) == {"t1.csv", "t1.md"}


def test_a_figure_is_saved_the_same_whatever_settings_a_reader_has():
    fig = figure()
    here = figures.save_figure(fig, "f", CAPTION, [], "quick")
    before = {kind: here[kind].read_bytes() for kind in ("pdf", "png")}
    own = {
        "savefig.bbox": "tight",
        "savefig.facecolor": "red",
        "savefig.transparent": True,
        "pdf.fonttype": 3,
    }
    with mpl.rc_context(own):
        figures.save_figure(fig, "f", CAPTION, [], "quick")
    assert before == {kind: here[kind].read_bytes() for kind in ("pdf", "png")}


def test_only_digits_and_the_papers_own_images_stand_for_a_data_set_of_the_paper():
    """MNIST has ten classes, and the paper has no number for it."""
    own = ["digits", "digit_pairs", "cifar10", "cifar100", "folder:cifar10-jpeg@ef1101d4a992"]
    configs = []
    for dataset in (*own, "mnist", "fashion_mnist", "folder:mnist-png@ed8d3531c5f5"):
        configs.append(RunConfig(data=DataConfig(dataset=dataset)))
    assert figures.stand_ins(configs) == {
        "digits": "cifar10",
        "digit_pairs": "cifar100",
        "cifar10": "cifar10",
        "cifar100": "cifar100",
        "folder:cifar10-jpeg": "cifar10",
    }


def test_readable_puts_the_claim_first_and_leaves_the_table_as_it_is():
    columns = {
        "metric": ["nc1_pinv", "loss"],
        "difference": [-0.123456, float("nan")],
        "half": [1e-7, 2.0],
        "settings_found": [4, 0],
        "settings_planned": [9, None],
        "verdict": ["equal", "reported"],
        "claim": ["a < b, DEQ / explicit", ""],
        "remark": ["", None],
        "lead": [True, False],
    }
    frame = pd.DataFrame(columns)
    before = frame.copy()
    shown = figures.readable(frame)
    pd.testing.assert_frame_equal(frame, before)
    assert list(shown) == [
        "claim",
        "metric",
        "verdict",
        "difference",
        "± 95 %",
        "settings",
        "remark",
    ]
    assert shown.iloc[0].tolist() == [
        "a < b, DEQ / ResNet-18",
        "NC1, eq. 12",
        "equal",
        "−0.123",
        "1e−07",
        "4 of 9",
        "",
    ]
    assert shown.iloc[1].tolist() == ["", LABELS.get("loss", "loss"), "reported", "", "2", "0", ""]


@pytest.mark.parametrize(
    ("n_max", "ratio", "said"),
    [
        (140, 28.0, "n_B = 5, and the variance within a class of 5 images is 20 % too small"),
        (140, 140.0, "n_B = 1, and a class of one image has no within-class variance"),
        (140, 14.0, "n_B = 10)"),
    ],
)
def test_captions_say_how_much_of_the_variance_a_few_images_lack(n_max, ratio, said):
    data = DataConfig(dataset="digits", n_max=n_max, imbalance="step", num_majority=5, ratio=ratio)
    assert said in figures.describe_runs([RunConfig(data=data)])
