import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection

from nclib import plotting


@pytest.fixture(autouse=True)
def style():
    with mpl.rc_context():
        plotting.use_style()
        yield


def frame(models=("explicit", "deq"), seeds=(0, 1, 2), epochs=4, splits=("train", "test"), R=1):
    rows = [
        {
            "run_id": f"{m}-{s}",
            "profile": "quick",
            "dataset": "digits",
            "model": m,
            "K_A": 10,
            "R": R,
            "seed": s,
            "split": split,
            "epoch": e,
            "metric": "accuracy",
            "value": 10.0 * i + s + e + (split == "train"),
        }
        for i, m in enumerate(models)
        for s in seeds
        for split in splits
        for e in range(1, epochs + 1)
    ]
    return pd.DataFrame(rows)


def drawn(ax):
    """Lines that hold data, without entries made for the legend."""
    return [line for line in ax.get_lines() if len(line.get_xdata())]


def axes():
    return plt.subplots(figsize=(plotting.ONE_COLUMN, 2.2))[1]


def test_curve_is_the_mean_over_seeds_and_the_band_one_sample_std():
    ax = axes()
    assert plotting.curves(frame(), "accuracy", ax) is ax
    explicit, deq = drawn(ax)
    np.testing.assert_allclose(explicit.get_ydata(), [2, 3, 4, 5])  # epoch + mean seed
    np.testing.assert_allclose(deq.get_ydata(), [12, 13, 14, 15])
    band = ax.collections[0].get_paths()[0].vertices
    at_first_epoch = band[band[:, 0] == 1, 1]
    np.testing.assert_allclose([at_first_epoch.min(), at_first_epoch.max()], [1, 3])  # std of 0, 1, 2 is 1


def test_one_seed_has_no_band():
    ax = plotting.curves(frame(seeds=(0,)), "accuracy", axes())
    assert len(ax.collections) == 0 and len(drawn(ax)) == 2


def test_colour_and_marker_are_the_model_and_line_style_the_split():
    ax = plotting.curves(frame(), "accuracy", axes(), ["test", "train"])
    lines = drawn(ax)
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-", "--"]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert lines[0].get_marker() == lines[1].get_marker() != lines[2].get_marker()
    assert ax.get_legend_handles_labels()[1] == ["ResNet-18", "DEQ", "test", "train"]


def test_models_differ_in_grey_by_marker():
    styles = plotting.MODEL_STYLE.values()
    assert set(plotting.MODEL_STYLE) == {
        "explicit",
        "deq",
        "explicit_matched",
        "weight_tied",
        "explicit_flops",
    }
    for attribute in ("colour", "marker", "label"):
        assert len({getattr(style, attribute) for style in styles}) == len(plotting.MODEL_STYLE)


def test_models_are_drawn_as_asked():
    ax = plotting.curves(frame(), "accuracy", axes(), models=["deq"])
    assert ax.get_legend_handles_labels()[1] == ["DEQ", "test"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"split": "tset"}, "did you mean 'test'"),
        ({"models": ["deqq"]}, "did you mean 'deq'"),
        ({"log": True, "ideal": 0.0}, "logarithmic"),
        ({"printed": [("resnet", 1.0, None)]}, "no style for model 'resnet'"),
    ],
)
def test_wrong_names_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plotting.curves(frame(), **{"metric": "accuracy", "ax": axes(), **arguments})


def test_mixed_settings_are_not_averaged():
    mixed = pd.concat([frame(R=1), frame(R=100)])
    with pytest.raises(ValueError, match=r"select one setting first \(several here: R\)"):
        plotting.curves(mixed, "accuracy", axes())


def test_printed_values_are_inside_the_axis_and_written_apart():
    ax = plotting.curves(
        frame(), "accuracy", axes(), printed=[("explicit", 93.05, 0.17), ("deq", 93.23, 0.13)]
    )
    low, high = ax.get_ylim()
    assert low < 2 and high > 93.23 + 0.13
    texts = {text.get_text(): text for text in ax.texts}
    assert set(texts) == {"93.05", "93.23"}
    heights = {value: text.get_position()[1] for value, text in texts.items()}
    assert heights["93.23"] - heights["93.05"] >= 0.1 - 1e-9
    assert texts["93.23"].get_color() == plotting.MODEL_STYLE["deq"].colour
    assert "paper: printed value" in ax.get_legend_handles_labels()[1]


def bracket(ax):
    return [(min(line.get_ydata()), max(line.get_ydata())) for line in drawn(ax) if line.get_color() == "0.6"]


def test_printed_range_is_clipped_to_the_axis_and_open_where_it_goes_on():
    ax = plotting.curves(frame(), "accuracy", axes())
    low, high = ax.get_ylim()
    inside = plotting.curves(frame(), "accuracy", axes(), printed_range=(5, 10))
    assert bracket(inside) == [(5, 10), (5, 5), (10, 10)]
    beyond = plotting.curves(frame(), "accuracy", axes(), printed_range=(5, 100))
    assert bracket(beyond) == [(5, high), (5, 5)] and beyond.get_ylim() == (low, high)
    outside = plotting.curves(frame(), "accuracy", axes(), printed_range=(50, 100))
    assert bracket(outside) == [(high, high)] and drawn(outside)[-1].get_marker() == "^"


def test_log_axis_has_plain_numbers_and_gaps_for_what_is_not_positive_or_finite():
    values = frame(seeds=(0,), splits=("train",), models=("deq",))
    values["value"] = [0.01, 0.0, np.inf, 1.0]
    ax = plotting.curves(values, "accuracy", axes(), "train", log=True)
    ax.figure.draw_without_rendering()
    assert {"0.01", "0.1", "1"} <= {tick.get_text() for tick in ax.get_yticklabels()}
    assert np.isnan(drawn(ax)[0].get_ydata()[2])


def test_one_legend_for_all_panels():
    fig, panels = plt.subplots(1, 2, figsize=(plotting.TWO_COLUMN, 2))
    plotting.curves(frame(), "accuracy", panels[0], ideal=20)
    plotting.curves(frame(), "accuracy", panels[1], "train")
    legend = plotting.figure_legend(fig, panels)
    assert [text.get_text() for text in legend.get_texts()] == ["ResNet-18", "DEQ", "test", "ideal", "train"]


@pytest.mark.parametrize("width", [plotting.ONE_COLUMN, plotting.TWO_COLUMN])
def test_nothing_leaves_the_page_at_column_width(width):
    fig, ax = plt.subplots(figsize=(width, 2.8))
    plotting.curves(
        frame(models=tuple(plotting.MODEL_STYLE)),
        "accuracy",
        ax,
        ["test", "train"],
        ideal=1,
        printed=[("explicit", 93.05, 0.17), ("deq", 93.23, 0.13)],
        printed_range=(5, 10),
    )
    plotting.figure_legend(fig, [ax])
    fig.draw_without_rendering()
    box = fig.get_tightbbox()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= 2.8


def test_gram_is_centred_on_the_simplex_cosine_and_marks_the_low_side():
    num_classes = 5
    etf = np.full((num_classes, num_classes), -0.25) + 1.25 * np.eye(num_classes)
    etf[0, 1] = etf[1, 0] = -1.0
    ax = plotting.gram(etf, axes(), majority=2)
    image = ax.images[0]
    assert np.isclose((image.norm.vmin + image.norm.vmax) / 2, -0.25)
    assert np.allclose(image.cmap(image.norm(-0.25))[:3], 1, atol=0.05)  # the ideal is white
    marks = next(c for c in ax.collections if isinstance(c, PathCollection)).get_offsets()
    assert sorted(map(tuple, marks.tolist())) == [(0, 1), (1, 0)]
    assert {tuple(line.get_xdata()) for line in ax.get_lines()} >= {(1.5, 1.5)}


def test_gram_panels_share_a_span_on_request():
    ax = plotting.gram(np.eye(3), axes(), centre=0, span=2, colourbar=False)
    assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (-2, 2)


def test_gram_rows_keep_the_class_numbers_they_had():
    ax = plotting.gram(np.eye(4), axes(), 1, classes=[3, 0, 1, 2])
    ax.figure.draw_without_rendering()
    shown = [tick.get_text() for tick in ax.get_xticklabels() if tick.get_text()]
    assert shown == ["3", "0", "1", "2"]


@pytest.mark.parametrize("matrix", [np.zeros((2, 3)), np.zeros(4), np.full((3, 3), np.nan), np.zeros((1, 1))])
def test_gram_refuses_what_is_no_gram_matrix(matrix):
    with pytest.raises(ValueError, match="Gram matrix"):
        plotting.gram(matrix, axes())


def test_embedding_separates_minority_from_majority():
    points = np.random.default_rng(0).normal(size=(40, 2))
    labels = np.repeat([0, 1, 2, 3], 10)
    ax = plotting.embedding(points, labels, axes(), minority=[3])
    assert sum(len(c.get_offsets()) for c in ax.collections) == 40
    assert [text.get_text() for text in ax.texts] == ["0", "1", "2", "3"]
    assert [text.get_fontweight() for text in ax.texts] == ["normal"] * 3 + ["bold"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["majority class", "minority class"]


def test_embedding_of_many_classes_is_not_labelled():
    points = np.random.default_rng(0).normal(size=(100, 2))
    ax = plotting.embedding(points, np.arange(100), axes())
    assert len(ax.texts) == 0 and len(ax.collections) == 100 and ax.get_legend() is None


def test_embedding_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"\(3, 3\).*\(3,\)"):
        plotting.embedding(np.zeros((3, 3)), np.zeros(3), axes())


def test_progress_is_one_output_updated_in_place(monkeypatch):
    shown = []

    class Handle:
        def update(self, bar):
            shown.append(repr(bar))

    def display(bar, display_id):
        shown.append(repr(bar))
        return Handle()

    monkeypatch.setattr(pytest.importorskip("IPython.display"), "display", display)
    tell = plotting.live_progress(every=1000)
    assert shown == []  # nothing before there is something to tell
    for done in range(101):
        tell(done, 100, "2 of 3 runs")
    assert len(shown) == 2 and shown[0].startswith("0 of 100 epochs")
    assert shown[1].startswith("100 of 100 epochs") and shown[1].endswith("2 of 3 runs")
