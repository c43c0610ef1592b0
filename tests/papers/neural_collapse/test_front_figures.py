"""The first pictures show the tracked runs, and equal accuracy is read as the docstring says."""

import functools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from nclib import paths
from nclib.papers.neural_collapse import front_figures


def marks(panel, style, size):
    """Heights of a network's marks of one size, in the order of the axis."""
    lines = [
        line
        for line in panel.lines
        if line.get_color() == style.colour and line.get_markersize() == size
    ]
    return [line.get_ydata() for line in sorted(lines, key=lambda line: line.get_xdata()[0])]


@functools.cache
def history(collection):
    return pd.read_csv(paths.reference() / collection / "history.csv.xz").query(
        "split == 'train' and epoch == 40"
    )


def stored(R, K_A, model, metric):
    collection = "protocol-2" if R == 100 else "cifar10-full"
    rows = history("protocol-3-block" if model == "explicit_matched" else collection)
    setting = f"KA{K_A}-R{R}" if K_A else "balanced"
    mine = rows["run_id"].str.startswith(f"cifar10-jpeg-{setting}-{model}-s") & (
        rows["metric"] == metric
    )
    return sorted(rows.loc[mine, "value"])


def test_the_hero_plots_every_seed_and_the_means_of_the_last_epoch():
    figure = front_figures.hero()
    for panel, metric in zip(figure.axes, front_figures.METRICS, strict=False):
        for model, style in front_figures.NETWORKS.items():
            seeds = [sorted(values) for values in marks(panel, style, 3)]
            for (R, K_A), values in zip(front_figures.SETTINGS, seeds, strict=True):
                assert len(values) == (5 if R == 100 else 3)
                assert values == pytest.approx(stored(R, K_A, model, metric), abs=1e-12)
            means = [float(value) for (value,) in marks(panel, style, 10)]
            assert means == pytest.approx([np.mean(values) for values in seeds], abs=1e-12)
        assert panel.get_ylim() == (0, 1)
    plt.close(figure)


def test_equilibrium_or_block_plots_every_seed_of_three_networks():
    figure = front_figures.equilibrium_or_block()
    styles = front_figures.NETWORKS | {"explicit_matched": front_figures.BLOCK}
    for panel, metric in zip(figure.axes, front_figures.METRICS, strict=True):
        for model, style in styles.items():
            seeds = [sorted(values) for values in marks(panel, style, 3)]
            for K_A, values in zip((3, 5, 7), seeds, strict=True):
                assert values == pytest.approx(stored(100, K_A, model, metric), abs=1e-12)
                assert len(values) == 5 and min(values) > 0 and max(values) < 1
            means = [float(value) for (value,) in marks(panel, style, 10)]
            assert means == pytest.approx([np.mean(values) for values in seeds], abs=1e-12)
    plt.close(figure)


def test_better_or_later_plots_every_seed_of_every_panel():
    figure = front_figures.better_or_later()
    assert len(figure.axes) == 6
    for panel in figure.axes:
        thin = [line for line in panel.lines if line.get_alpha() == 0.5]
        assert len(thin) == 10
        assert all(line.get_xdata().max() > 95 for line in thin)
        low, high = panel.get_ylim()
        assert all(low < line.get_ydata().min() and line.get_ydata().max() < high for line in thin)
    plt.close(figure)


def test_cifar100_plots_every_seed_of_both_ratios():
    figure = front_figures.cifar100()
    assert [panel.get_title(loc="left")[:7] for panel in figure.axes[:2]] == ["100 : 1", "10 : 1,"]
    for panel in figure.axes:
        assert sum(line.get_alpha() == 0.5 for line in panel.lines) == 6
    ends = [line.get_xdata()[-1] for line in figure.axes[0].lines if line.get_alpha() == 0.5]
    assert min(ends) > 49 and max(ends) < 66
    plt.close(figure)


@pytest.fixture
def two_runs(monkeypatch):
    """ResNet-18 and DEQ with the same accuracies, one of which falls once; DEQ values twice as
    high."""
    rows = {
        "R": 100,
        "K_A": 3,
        "seed": 0,
        "epoch": [1, 5, 10, 15],
        "accuracy": [0.2, 0.7, 0.5, 0.9],
    }
    low, high = (
        pd.DataFrame({**rows, "network": "ResNet-18"}),
        pd.DataFrame({**rows, "network": "DEQ"}),
    )
    frame = pd.concat([low.assign(NC2=[1.0, 0.5, 0.4, 0.8]), high.assign(NC2=[2.0, 1.0, 0.8, 0.8])])
    monkeypatch.setattr(front_figures, "training_curves", lambda: frame.assign(NC3=frame["NC2"]))


def test_equal_accuracy_is_the_first_crossing_read_linearly(two_runs):
    found = (
        front_figures.at_equal_accuracy((0.6, 0.8, 0.95))
        .query("metric == 'NC2'")["log_ratio"]
        .tolist()
    )
    assert found[0] == pytest.approx(
        np.log(2)
    )  # 0.6 is reached before epoch 5, not again before epoch 15
    assert found[1] == pytest.approx(
        np.log(0.8 / 0.7)
    )  # three quarters of the way from epoch 10 to 15
    assert np.isnan(found[2])  # never reached


def test_turning_back_is_the_end_over_the_minimum(two_runs):
    found = front_figures.turning_back().query("metric == 'NC3'").set_index("network")
    assert found.loc["ResNet-18", ["minimum", "first", "end", "rise"]].tolist() == pytest.approx(
        [0.4, 10, 0.8, 1]
    )
    assert found.loc["DEQ", ["minimum", "first", "end", "rise"]].tolist() == pytest.approx(
        [0.8, 10, 0.8, 0]
    )
