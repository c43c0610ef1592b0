"""Each kind of picture shows what its frame holds."""

import base64
import itertools
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from colours import APART, BLIND, distance

import nclib as nc
from nclib import plots
from nclib.metrics import simplex_etf


@pytest.fixture(autouse=True)
def style():
    with mpl.rc_context():
        plots.use_style()
        yield


def frame(models=("explicit", "deq"), seeds=(0, 1, 2), splits=("train", "test")):
    points = [
        (m, s, split, e) for m in models for s in seeds for split in splits for e in range(1, 5)
    ]
    rows = pd.DataFrame(points, columns=["model", "seed", "split", "epoch"]).assign(
        metric="accuracy"
    )
    return rows.assign(value=10.0 * rows["model"].map(models.index) + rows["seed"] + rows["epoch"])


def drawn(ax):
    """Lines that hold data, without entries made for the legend."""
    return [line for line in ax.get_lines() if len(line.get_xdata())]


def axes():
    return plt.subplots(figsize=(plots.ONE_COLUMN, 2.2))[1]


def test_curve_is_the_mean_over_seeds_and_the_band_one_sample_std():
    ax = axes()
    assert plots.curves(frame(seeds=(0, 1, 5)), "accuracy", ax) is ax
    explicit, deq = drawn(ax)
    np.testing.assert_allclose(explicit.get_ydata(), [3, 4, 5, 6])  # epoch + mean seed
    np.testing.assert_allclose(deq.get_ydata(), [13, 14, 15, 16])
    band = ax.collections[0].get_paths()[0].vertices
    at_first_epoch = band[band[:, 0] == 1, 1]
    np.testing.assert_allclose(
        [at_first_epoch.min(), at_first_epoch.max()], [3 - 7**0.5, 3 + 7**0.5]
    )  # std of 0, 1, 5


def test_colour_and_marker_are_the_model_and_line_style_the_split():
    ax = axes()
    for split in ("test", "train"):
        plots.curves(frame(), "accuracy", ax, split)
    lines = [drawn(ax)[place] for place in (0, 2, 1, 3)]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-", "--"]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert lines[0].get_marker() == lines[1].get_marker() != lines[2].get_marker()
    assert list(dict.fromkeys(ax.get_legend_handles_labels()[1])) == [
        "ResNet-18",
        "DEQ",
        "test",
        "train",
    ]


def test_mixed_settings_are_not_averaged():
    mixed = pd.concat([frame(), frame()])
    with pytest.raises(ValueError, match="a frame mixes settings: draw one of them"):
        plots.curves(mixed, "accuracy", axes())


def test_what_is_not_finite_leaves_a_gap():
    values = frame(seeds=(0,), models=("deq",), splits=("train",)).assign(
        value=[0.01, 0.0, np.inf, 1.0]
    )
    ax = plots.curves(values, "accuracy", axes(), "train", log=True)
    assert np.isnan(drawn(ax)[0].get_ydata()[2])


def test_forest_draws_a_mark_and_an_interval_a_row():
    rows = pd.DataFrame({
        "row": ["a", "a", "b", "b"],
        "model": ["explicit", "deq"] * 2,
        "value": [1.0, 2.0, -1.0, 3.0],
        "half": [0.5, 0.1, np.nan, 0.2],
    })  # fmt: skip
    _, ax = plt.subplots()
    plots.forest(rows, ax, label="points", names=["b", "a"])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["b", "a"] and ax.get_ylim()[
        0
    ] > ax.get_ylim()[1]
    assert ax.get_legend_handles_labels()[1] == ["ResNet-18", "DEQ"]
    (explicit, deq) = ax.containers
    assert list(explicit.lines[0].get_xdata()) == [1, -1]
    assert (explicit.lines[0].get_ydata() < deq.lines[0].get_ydata()).all()
    assert explicit.lines[0].get_ydata().round().tolist() == [
        1,
        0,
    ]  # by name, not by place in the frame


def test_a_sweep_is_drawn_as_mean_and_std_over_seeds():
    points = [
        (name, seed, at)
        for name in ("fixed_point", "broyden")
        for seed in range(3)
        for at in (1, 2, 5, 50)
    ]
    rows = pd.DataFrame(points, columns=["method", "seed", "at"]).assign(split="train")
    rows["value"] = 1.0 + 10 * (rows["method"] == "broyden") + rows["seed"] + rows["at"]
    ax = plots.sweep(
        rows, "method", axes(), label="residual", across="T", log=True, log_across=True
    )
    plain, broyden = drawn(ax)
    np.testing.assert_allclose(plain.get_ydata(), [3, 4, 7, 52])  # 1 + T + mean seed
    np.testing.assert_allclose(broyden.get_ydata(), [13, 14, 17, 62])
    band = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(
        [band[band[:, 0] == 5, 1].min(), band[band[:, 0] == 5, 1].max()], [6, 8]
    )
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel()) == ("log", "log", "T")
    assert {"plain iteration", "Broyden", "train"} <= set(ax.get_legend_handles_labels()[1])


def test_a_sweep_draws_methods_that_have_no_style_of_their_own():
    names = ["newton", "fixed_point", "secant", "anderson", "broyden"]
    points = itertools.product(names, range(2), (1, 2))
    rows = pd.DataFrame(points, columns=["method", "seed", "at"])
    rows = rows.assign(split="train", value=10.0 * rows["method"].map(names.index) + rows["at"])
    ax = plots.sweep(rows, "method", axes(), label="residual", across="T")
    assert sorted(line.get_ydata()[0] for line in drawn(ax)) == [1, 11, 21, 31, 41]
    assert len({line.get_color() for line in drawn(ax)}) == 5
    assert {"newton", "secant", "plain iteration"} <= set(ax.get_legend_handles_labels()[1])


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
    ax = plots.arms(_arm_rows(), plt.figure().subplots(), label="error", across="step")
    assert ax.get_legend_handles_labels()[1] == ["DEQ", "FNN a", "FNN b"]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10.0 ** -np.array([1.5, 2.5, 3.5]))
    assert len({line.get_color() for line in drawn(ax)}) == 3
    assert [line.get_linestyle() for line in drawn(ax)] == ["-", "--", "--"]
    assert ax.get_yscale() == "log" and len(ax.collections) == 3
    band = ax.collections[0].get_paths()[0].vertices
    at_first_step = band[band[:, 0] == 1, 1]
    np.testing.assert_allclose([at_first_step.min(), at_first_step.max()], [1e-2, 1e-1])


def test_arms_have_room_for_more_models_than_colours():
    names = [f"FNN {width}" for width in range(8)]
    rows = pd.DataFrame(itertools.product(names, (0, 1), (1, 2)), columns=["model", "seed", "at"])
    rows = rows.assign(kind="fnn", value=0.1 * rows["at"])
    ax = plots.arms(rows, axes(), label="error", across="step")
    assert len({(line.get_color(), line.get_marker()) for line in drawn(ax)}) == 8


def test_traces_count_evaluations_from_one_and_leave_gaps():
    ax = plots.traces({"anderson": [1, 0.1, 0.0], "mine": [1, np.inf, 0.2]}, axes(), tol=1e-2)
    first, second, limit = ax.get_lines()
    np.testing.assert_array_equal(first.get_xdata(), [1, 2, 3])
    np.testing.assert_array_equal(first.get_ydata(), [1, 0.1, np.nan])
    np.testing.assert_array_equal(second.get_ydata(), [1, np.nan, 0.2])
    assert (
        first.get_label() == plots.METHOD_STYLE["anderson"].label and second.get_label() == "mine"
    )
    assert first.get_color() != second.get_color() and first.get_marker() != second.get_marker()
    assert ax.get_yscale() == "log" and set(limit.get_ydata()) == {1e-2}


@pytest.mark.parametrize("vision", BLIND)
def test_colours_that_appear_together_stay_apart_for_colour_blind_readers(vision):
    models = plots.MODEL_STYLE
    together = [
        [style.colour for style in plots.METHOD_STYLE.values()],
        [style.colour for style in plots.GROUP_STYLE.values()],
        [models["explicit"].colour, models["deq"].colour],
        ["C0", "C1", "C2"],  # the lines of the course
        ["C0", "C3", "C2"],
    ]
    for colours in together:
        apart = [distance(*pair, vision) for pair in itertools.combinations(colours, 2)]
        assert min(apart) > APART, f"{vision}: {colours}"


def test_the_style_does_not_depend_on_settings_of_ones_own():
    ours = dict(mpl.rcParams)
    mpl.rcParams.update(
        {"axes.grid": True, "font.family": "serif", "lines.linestyle": "--", "font.size": 20}
    )
    plots.use_style()
    assert dict(mpl.rcParams) == ours


MATPLOTLIBRC = """
text.usetex: True
figure.autolayout: True
axes.facecolor: black
figure.facecolor: black
text.color: white
xtick.color: white
savefig.bbox: tight
savefig.transparent: True
pdf.fonttype: 3
svg.fonttype: none
"""


def test_a_figure_is_the_same_bytes_whatever_the_users_file_says(tmp_path):
    def saved():
        plots.use_style()
        ax = plots.curves(frame(), "accuracy", axes(), label="accuracy")
        plots.figure_legend(ax.figure, [ax])
        files = nc.save_figure(ax.figure, "mine/curve", "A curve.", [], "smoke")
        return files["png"].read_bytes(), files["pdf"].read_bytes()

    expected = saved()
    (tmp_path / "matplotlibrc").write_text(MATPLOTLIBRC)
    mpl.rc_file(tmp_path / "matplotlibrc")  # as when matplotlib is imported
    assert saved() == expected


def test_cosine_gram_of_a_simplex():
    ideal = np.eye(4) * 4 / 3 - 1 / 3
    vectors = simplex_etf(4, 6).numpy() * np.array([[1], [2], [1], [3]])
    np.testing.assert_allclose(plots.cosine_gram(vectors, centred=False), ideal, atol=1e-12)
    shifted = simplex_etf(4, 6).numpy() + 5.0
    np.testing.assert_allclose(plots.cosine_gram(shifted, centred=True), ideal, atol=1e-9)
    assert plots.cosine_gram(shifted, centred=False).min() > 0.9


def test_gram_shows_the_matrix_with_the_ideal_in_the_middle_of_its_colours():
    matrix = np.arange(16.0).reshape(4, 4) / 16
    ax = plots.gram(matrix, axes(), majority=3, span=0.5, classes=[2, 0, 1, 3])
    mesh = ax.collections[0]
    np.testing.assert_array_equal(np.asarray(mesh.get_array()).reshape(4, 4), matrix)
    np.testing.assert_allclose(mesh.get_clim(), [-1 / 3 - 0.5, -1 / 3 + 0.5])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["2", "0", "1", "3"]
    assert [list(line.get_ydata()) for line in ax.get_lines()] == [[3, 3], [0, 1]]


def test_an_embedding_has_the_points_of_each_class_and_crosses_for_the_minority():
    points = np.arange(12.0).reshape(6, 2)
    labels = np.array([0, 1, 2, 0, 1, 2])
    ax = plots.embedding(points, labels, axes(), minority=[1], class_names=["cat", "dog", "owl"])
    drawn_points = [
        np.asarray(cloud.get_offsets()) for cloud in ax.collections if len(cloud.get_offsets())
    ]
    for shown, k in zip(drawn_points, [0, 2, 1], strict=True):  # the minority on top
        np.testing.assert_array_equal(shown, points[labels == k])
    bold = {text.get_text() for text in ax.texts if text.get_fontweight() == "bold"}
    assert bold == {"dog"}
    assert plots.embed(np.random.default_rng(0).normal(size=(12, 5))).shape == (12, 2)


@pytest.mark.parametrize("features", [np.full((30, 8), 0.3), np.ones((1, 8))])
def test_features_of_a_dead_network_are_one_point_and_a_sentence(features):
    """t-SNE of scikit-learn ends the process there by a segmentation fault."""
    with pytest.warns(RuntimeWarning, match="1 of them different, have no t-SNE"):
        points = plots.embed(features)
    np.testing.assert_array_equal(points, np.zeros((len(features), 2)))
    ax = plots.embedding(points, np.arange(len(features)) % 3, axes())
    sentences = [text.get_text() for text in ax.texts if "points are equal" in text.get_text()]
    assert sentences == (["all 30 points are equal"] if len(features) > 1 else [])


def test_too_few_points_for_t_sne_are_drawn_at_their_distances():
    features = np.repeat(np.eye(3, 5) * 4, 10, axis=0)
    with pytest.warns(RuntimeWarning, match="30 points, 3 of them different"):
        points = plots.embed(features)
    distances = np.linalg.norm(points[::10] - points[[10, 20, 0]], axis=1)
    np.testing.assert_allclose(distances, 4 * 2**0.5, rtol=1e-5)
    with pytest.raises(ValueError, match="NaN or infinity"):
        plots.embed(features * np.nan)


def test_a_hundred_classes_have_colours_and_no_names():
    points = np.random.default_rng(0).normal(size=(300, 2))
    labels = np.arange(300) % 100
    ax = plots.embedding(points, labels, axes(), range(50, 100), class_names=["name"] * 100)
    assert not ax.texts
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["majority class", "minority class"]
    ax = plots.gram(np.eye(100), axes(), 50, span=1.0, classes=["name"] * 100)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0", "20", "40", "60", "80"]


def test_logarithmic_axes_have_plain_numbers():
    ax = plots.plain_log(axes(), sizes=[10, 200])
    ax.plot([10, 200], [0.01, 20.0])
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["10", "200"]
    assert {"0.1", "1", "10"} <= {text.get_text() for text in ax.get_yticklabels()}


def test_one_legend_names_every_line_once_and_the_papers_last():
    fig, (left, right) = plt.subplots(1, 2)
    left.plot([1], label="paper, CIFAR-10")
    left.plot([1], label="DEQ")
    right.plot([1], label="DEQ")
    right.plot([1], label="method")
    legend = plots.figure_legend(fig, [left, right])
    assert [text.get_text() for text in legend.get_texts()] == ["DEQ", "paper, CIFAR-10"]


def test_printed_values_of_the_paper_are_drawn_right_of_the_axes():
    printed = pd.DataFrame({"model": ["explicit", "deq"], "mean": [20.0, 30.0], "std": [1.0, 2.0]})
    ax = plots.curves(frame(), "accuracy", axes())
    plots.printed_values(ax, printed)
    plots.printed_ticks(ax, (10, 40))
    assert [text.get_text() for text in ax.texts] == ["20", "30"]
    labels = ax.get_legend_handles_labels()[1]
    assert labels[-2:] == ["paper, CIFAR-10: accuracy", "paper, CIFAR-10: ends of its axis"]
    plots.printed_values(ax, printed, "CIFAR-100")
    assert ax.get_legend_handles_labels()[1][-1] == "paper, CIFAR-100: accuracy"
    assert ax.get_ylim()[1] >= 40
    assert any(list(line.get_ydata()) == [10, 40] for line in ax.get_lines())


def test_a_picture_is_html_with_its_words_and_can_still_be_saved(tmp_path):
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.plot([1, 2])
    page = plots.picture(fig, 'Rising line, "steep" <b>\n  and straight.').data
    assert (
        'alt="Rising line, &quot;steep&quot; &lt;b&gt; and straight." width="288"' in page
        and "\n" not in page
    )
    assert base64.b64decode(re.search(r"base64,([^\"]+)", page).group(1)).startswith(b"\x89PNG")
    assert fig.number not in plt.get_fignums()
    fig.savefig(tmp_path / "later.png")


def test_progress_is_one_line_that_is_updated_in_its_place(monkeypatch):
    shown = []
    monkeypatch.setattr(
        "IPython.display.DisplayHandle.display", lambda self, line: shown.append(line.data)
    )
    monkeypatch.setattr(
        "IPython.display.DisplayHandle.update", lambda self, line: shown.append(line.data)
    )
    progress = plots.live_progress(every=1000)
    for done in range(4):
        progress(done, 3, f"epoch {done}")
    assert len(shown) == 2 and "0 of 3 runs" in shown[0] and "3 of 3 runs" in shown[1]
