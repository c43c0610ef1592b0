import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from colours import APART, BLIND, distance

from nclib.publish import plotting


@pytest.fixture(autouse=True)
def style():
    with mpl.rc_context():
        plotting.use_style()
        yield


def frame(models=("explicit", "deq"), seeds=(0, 1, 2), splits=("train", "test")):
    points = [(m, s, split, e) for m in models for s in seeds for split in splits for e in range(1, 5)]
    rows = pd.DataFrame(points, columns=["model", "seed", "split", "epoch"]).assign(metric="accuracy")
    return rows.assign(value=10.0 * rows["model"].map(models.index) + rows["seed"] + rows["epoch"])


def drawn(ax):
    """Lines that hold data, without entries made for the legend."""
    return [line for line in ax.get_lines() if len(line.get_xdata())]


def axes():
    return plt.subplots(figsize=(plotting.ONE_COLUMN, 2.2))[1]


def test_curve_is_the_mean_over_seeds_and_the_band_one_sample_std():
    ax = axes()
    assert plotting.curves(frame(seeds=(0, 1, 5)), "accuracy", ax) is ax
    explicit, deq = drawn(ax)
    np.testing.assert_allclose(explicit.get_ydata(), [3, 4, 5, 6])  # epoch + mean seed
    np.testing.assert_allclose(deq.get_ydata(), [13, 14, 15, 16])
    band = ax.collections[0].get_paths()[0].vertices
    at_first_epoch = band[band[:, 0] == 1, 1]
    np.testing.assert_allclose([at_first_epoch.min(), at_first_epoch.max()], [3 - 7**0.5, 3 + 7**0.5])  # std of 0, 1, 5


def test_colour_and_marker_are_the_model_and_line_style_the_split():
    ax = axes()
    for split in ("test", "train"):
        plotting.curves(frame(), "accuracy", ax, split)
    lines = [drawn(ax)[place] for place in (0, 2, 1, 3)]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-", "--"]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert lines[0].get_marker() == lines[1].get_marker() != lines[2].get_marker()
    assert list(dict.fromkeys(ax.get_legend_handles_labels()[1])) == ["ResNet-18", "DEQ", "test", "train"]


def test_mixed_settings_are_not_averaged():
    mixed = pd.concat([frame(), frame()])
    with pytest.raises(ValueError, match="duplicate entries"):
        plotting.curves(mixed, "accuracy", axes())


def test_what_is_not_finite_leaves_a_gap():
    values = frame(seeds=(0,), models=("deq",), splits=("train",)).assign(value=[0.01, 0.0, np.inf, 1.0])
    ax = plotting.curves(values, "accuracy", axes(), "train", log=True)
    assert np.isnan(drawn(ax)[0].get_ydata()[2])


def test_forest_draws_a_mark_and_an_interval_a_row():
    rows = pd.DataFrame({
        "row": ["a", "a", "b", "b"],
        "model": ["explicit", "deq"] * 2,
        "value": [1.0, 2.0, -1.0, 3.0],
        "half": [0.5, 0.1, np.nan, 0.2],
    })  # fmt: skip
    _, ax = plt.subplots()
    plotting.forest(rows, ax, label="points", names=["b", "a"])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["b", "a"] and ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ax.get_legend_handles_labels()[1] == ["ResNet-18", "DEQ"]
    (explicit, deq) = ax.containers
    assert list(explicit.lines[0].get_xdata()) == [1, -1]
    assert (explicit.lines[0].get_ydata() < deq.lines[0].get_ydata()).all()
    assert explicit.lines[0].get_ydata().round().tolist() == [1, 0]  # by name, not by place in the frame


def test_a_sweep_is_drawn_as_mean_and_std_over_seeds():
    points = [(name, seed, at) for name in ("fixed_point", "broyden") for seed in range(3) for at in (1, 2, 5, 50)]
    rows = pd.DataFrame(points, columns=["method", "seed", "at"]).assign(split="train")
    rows["value"] = 1.0 + 10 * (rows["method"] == "broyden") + rows["seed"] + rows["at"]
    ax = plotting.sweep(rows, "method", axes(), label="residual", across="T", log=True, log_across=True)
    plain, broyden = drawn(ax)
    np.testing.assert_allclose(plain.get_ydata(), [3, 4, 7, 52])  # 1 + T + mean seed
    np.testing.assert_allclose(broyden.get_ydata(), [13, 14, 17, 62])
    band = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose([band[band[:, 0] == 5, 1].min(), band[band[:, 0] == 5, 1].max()], [6, 8])
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel()) == ("log", "log", "T")
    assert {"plain iteration", "Broyden", "train"} <= set(ax.get_legend_handles_labels()[1])


def _arm_rows():
    return pd.DataFrame(
        [
            {"model": model, "kind": kind, "seed": seed, "at": at, "value": 10.0 ** (-at - seed)}
            for model, kind in (("DEQ", "deq"), ("FNN a", "fnn"), ("FNN b", "fnn"))
            for seed in range(2)
            for at in (1, 2, 3)
        ]
    )


def test_arms_are_geometric_means_with_the_range_of_seeds():
    ax = plotting.arms(_arm_rows(), plt.figure().subplots(), label="error", across="step")
    assert ax.get_legend_handles_labels()[1] == ["DEQ", "FNN a", "FNN b"]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10.0 ** -np.array([1.5, 2.5, 3.5]))
    assert len({line.get_color() for line in drawn(ax)}) == 3
    assert [line.get_linestyle() for line in drawn(ax)] == ["-", "--", "--"]
    assert ax.get_yscale() == "log" and len(ax.collections) == 3


def test_traces_count_evaluations_from_one_and_leave_gaps():
    ax = plotting.traces({"anderson": [1, 0.1, 0.0], "mine": [1, np.inf, 0.2]}, axes(), tol=1e-2)
    first, second, limit = ax.get_lines()
    np.testing.assert_array_equal(first.get_xdata(), [1, 2, 3])
    np.testing.assert_array_equal(first.get_ydata(), [1, 0.1, np.nan])
    np.testing.assert_array_equal(second.get_ydata(), [1, np.nan, 0.2])
    assert first.get_label() == plotting.METHOD_STYLE["anderson"].label and second.get_label() == "mine"
    assert first.get_color() != second.get_color() and first.get_marker() != second.get_marker()
    assert ax.get_yscale() == "log" and set(limit.get_ydata()) == {1e-2}


@pytest.mark.parametrize("vision", BLIND)
def test_colours_that_appear_together_stay_apart_for_colour_blind_readers(vision):
    models = plotting.MODEL_STYLE
    together = [
        [style.colour for style in plotting.METHOD_STYLE.values()],
        [style.colour for style in plotting.GROUP_STYLE.values()],
        [models["explicit"].colour, models["deq"].colour],
        ["C0", "C1", "C2"],  # the lines of the course
        ["C0", "C3", "C2"],
    ]
    for colours in together:
        apart = [distance(*pair, vision) for pair in itertools.combinations(colours, 2)]
        assert min(apart) > APART, f"{vision}: {colours}"
