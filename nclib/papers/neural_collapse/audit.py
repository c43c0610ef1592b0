"""Arithmetic that the paper's tables must satisfy, whatever was trained: functions of
`accuracy_tables.published`.

Each returns a table with one row for each cell of the paper and a column with the verdict of a
stated rule.
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

ROUNDING = 0.0101
"""A number given to two digits is off by 0.005; a combination of three such numbers by at most
0.01."""
CLASSES = {"cifar10": 10, "cifar100": 100}
TICK_STEP = {(3, "a"): 20.0, (3, "b"): 5.0, (4, ""): 2.0, (5, ""): 10.0}
"""Distance of the tick labels of the accuracy axes, from the text of the paper (Figs. 3 to 5)."""
SHOWN = {(3, "a"): (1, None, 1), (3, "b"): (3, 5, 100), (4, ""): (2, 3, 100), (5, ""): (4, 7, 100)}
"""The cell that a panel shows, figure and panel to table, K_A and R."""


def wide(published: pd.DataFrame) -> pd.DataFrame:
    """One row for each row of the paper's Tables 2 to 4: the cell, K, and for overall, majority and
    minority the mean and the standard deviation (columns ``overall``, ``overall_std``, …)."""
    rows = published[published["table"] > 1]
    keys = ["table", "dataset", "K_A", "R", "model"]
    means = rows.pivot_table("mean", keys, "split", sort=False)
    stds = rows.pivot_table("std", keys, "split", sort=False).add_suffix("_std")
    joined = pd.concat([means, stds], axis=1).reset_index().rename_axis(columns=None)
    return joined.assign(K=joined["dataset"].map(CLASSES))


def audit_overall(published: pd.DataFrame) -> pd.DataFrame:
    """Whether an overall accuracy is the class-balanced mean of its parts or the mean under the
    training counts.

        balanced  (K_A maj + K_B min)/K        train prior  (K_A R maj + K_B min)/(K_A R + K_B)

    A class-balanced mean does not show that the test set is balanced: an average over classes gives
    it on any test set.

    Adds to `wide`: balanced, train_prior, their differences off_balanced and off_train_prior (paper
    minus computed), and fits: "balanced", "train prior" or "neither", by `ROUNDING`.
    """
    cells = wide(published)
    majority_images = cells["K_A"] * cells["R"]
    weights = {
        "balanced": cells["K_A"] / cells["K"],
        "train_prior": majority_images / (majority_images + cells["K"] - cells["K_A"]),
    }
    for name, weight in weights.items():
        cells[name] = weight * cells["majority"] + (1 - weight) * cells["minority"]
        cells[f"off_{name}"] = cells["overall"] - cells[name]
    fits = np.where(cells["off_train_prior"].abs() <= ROUNDING, "train prior", "neither")
    return cells.assign(fits=np.where(cells["off_balanced"].abs() <= ROUNDING, "balanced", fits))


def audit_overall_std(published: pd.DataFrame, tolerance: float = 0.011) -> pd.DataFrame:
    """Whether the three standard deviations of a row can belong to the same ten epochs.

        |a s_maj − b s_min| ≤ s_overall ≤ a s_maj + b s_min,   a = K_A/K,   b = 1 − a

    the triangle inequality for overall = a maj + b min epoch by epoch. Adds to `wide`: least, most,
    possible.
    """
    cells = wide(published)
    a = cells["K_A"] / cells["K"]
    majority = a * cells["majority_std"]
    minority = (1 - a) * cells["minority_std"]
    least = (majority - minority).abs()
    most = majority + minority
    possible = cells["overall_std"].between(least - tolerance, most + tolerance)
    return cells.assign(least=least, most=most, possible=possible)


def largest_std(mean: float, count: int = 10, top: float = 100.0) -> float:
    """The largest sample standard deviation that `count` values between 0 and `top` with this mean
    can have.

    For mean ≤ top/count it is mean √count: one value carries everything. In general as many values
    as fit are at the top, one takes the rest, the others are 0.

    Examples
    --------
    >>> round(largest_std(0.4), 4) == round(0.4 * 10**0.5, 4)
    True
    """
    full, rest = divmod(mean * count, top)
    values = [top] * int(full) + [rest] + [0.0] * count
    return float(np.array(values[:count]).std(ddof=1))


def audit_part_std(published: pd.DataFrame, count: int = 10) -> pd.DataFrame:
    """Whether each of the paper's standard deviations fits its mean: accuracies are between 0 and
    100 %. Adds to the tidy published rows: most (for the largest mean that rounds to the paper's)
    and possible."""
    most = [largest_std(min(mean + 0.005, 100.0), count) for mean in published["mean"]]
    possible = published["std"] <= np.array(most) + 0.005
    return published.assign(most=most, possible=possible)


def audit_effects(published: pd.DataFrame) -> pd.DataFrame:
    """DEQ − explicit against the noise in the paper, a row for each cell and accuracy.

    Of Table 1 too. Columns: table, dataset, K_A, R, split, difference, noise
    √(s_deq² + s_explicit²), z, std_ratio s_deq/s_explicit. The noise is the fluctuation of the last
    epochs of one run; it holds no seeds.
    """
    keys = ["table", "dataset", "K_A", "R", "split"]
    deq = published[published["model"] == "deq"].set_index(keys)
    explicit = published[published["model"] == "explicit"].set_index(keys)
    noise = np.hypot(deq["std"], explicit["std"])
    difference = (deq["mean"] - explicit["mean"]).round(2)
    table = {
        "difference": difference,
        "noise": noise,
        "z": difference / noise.where(noise > 0),
        "std_ratio": deq["std"] / explicit["std"].where(explicit["std"] > 0),
    }
    return pd.DataFrame(table).reset_index()


def audit_axes(
    published: pd.DataFrame, last_ticks: Mapping[tuple[int, str], float]
) -> pd.DataFrame:
    """Whether the paper's accuracies (mean of the last 10 epochs) can lie in the figure that shows
    the same run.

    An axis that reached its next tick would carry that tick, so a value in the paper at or above
    last tick + step contradicts the figure ("outside"), and one between the last tick and the next
    is "beyond the last tick".

    Parameters
    ----------
    last_ticks : figure and panel to the last tick of its accuracy axis, from
        `accuracy_tables.published_ticks`
    """
    of_cifar10 = published["dataset"] == "cifar10"
    overall = published[of_cifar10 & (published["split"] == "overall")]
    rows = []
    for (figure, panel), (table, k_a, ratio) in SHOWN.items():
        last = last_ticks[figure, panel]
        following = last + TICK_STEP[figure, panel]
        for row in overall[(overall["table"] == table) & (overall["R"] == ratio)].itertuples():
            if row.mean <= last:
                place = "inside"
            elif row.mean < following:
                place = "beyond the last tick"
            else:
                place = "outside"
            rows.append(
                (f"{figure}{panel}", table, k_a, row.model, row.mean, last, following, place)
            )
    columns = ["figure", "table", "K_A", "model", "printed", "last_tick", "next_tick", "says"]
    return pd.DataFrame(rows, columns=columns)


def integrated_rate(
    images: int, epochs: int, batch_size: int, lr: float, momentum: float, weight_decay: float
) -> dict[str, float]:
    """How far a constant-rate recipe moves: steps, rate lr · steps/(1−momentum), and decay
    weight_decay · rate, the share by which weight decay shrinks weights.

    The last short batch of an epoch counts as a step.
    """
    steps = epochs * math.ceil(images / batch_size)
    rate = lr * steps / (1 - momentum)
    return {"steps": steps, "rate": rate, "decay": weight_decay * rate}
