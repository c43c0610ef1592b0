"""What of NC2 and NC3 comes from norms and what from directions, and the cosine of Theorem 4.1.

With the norms of one network's class means and classifier rows and the directions of the other's, a
metric shows what a difference between the two comes from. For centred metrics this depends on the
order. The centre depends on the norms, so centred means differ in their directions where the means
themselves differ in their norms alone.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from nclib import nc2_etf_distance

COSINES = ("class_cosine", "class_cosine_centred")
"""Metrics of `add_cosines`: the mean over classes of cos(h_k, w_k), as in the paper and with
centred class means."""

SPLIT = {
    "NC3, eq. 14": "never",
    "NC2, centred": "after the exchange",
    "NC3, centred": "after the exchange",
    "NC2, centred before the exchange": "before the exchange",
    "NC3, centred before the exchange": "before the exchange",
}
"""What `exchanged` compares, by the names of tables: when the class means are centred."""


def eq14(means: np.ndarray, weights: np.ndarray) -> float:
    """Eq. 14 of Sun & Shi: ‖W/‖W‖ − H/‖H‖‖ of class means H and classifier rows W, both (K, d)."""
    return float(np.linalg.norm(weights / np.linalg.norm(weights) - means / np.linalg.norm(means)))


def add_cosines(
    frame: pd.DataFrame, arrays: Mapping[str, Mapping[str, np.ndarray]]
) -> pd.DataFrame:
    """The frame with rows of the metrics `COSINES` (split "train") at each run's last epoch.

    Parameters
    ----------
    frame : tidy frame
    arrays : run id → its arrays, with class_means and classifier (K, d)
    """
    train = frame[frame["split"] == "train"].sort_values("epoch")
    rows = []
    for place, last in train.groupby("run_id", sort=False).tail(1).iterrows():
        means, weights = _means_and_weights(arrays[last["run_id"]])
        for metric, shown in zip(COSINES, (means, means - means.mean(axis=0)), strict=True):
            cosines = (_directions(shown) * _directions(weights)).sum(axis=1)
            rows.append({**frame.loc[place], "metric": metric, "value": float(cosines.mean())})
    added = pd.DataFrame(rows, columns=frame.columns).astype(frame.dtypes)
    return pd.concat([frame, added], ignore_index=True)


def exchanged(
    pairs: Iterable[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]], name: str
) -> pd.DataFrame:
    """A metric of `SPLIT` of pairs of networks, and with norms and directions exchanged.

    Parameters
    ----------
    pairs : arrays of the network, and of the one it is compared with: class_means and classifier
        (K, d)
    name : a key of `SPLIT`

    Returns
    -------
    DataFrame with a row for each pair: log ratios to the second network of the metric as it is
    ("whole"), with the first one's norms and the second one's directions ("norms"), and with its
    directions and the other's norms ("directions").

    Examples
    --------
    >>> import nclib as nc
    >>> simplex = nc.simplex_etf(3, 2).numpy()
    >>> longer = {"class_means": [[1], [2], [3]] * simplex, "classifier": simplex}
    >>> longest = {"class_means": [[1], [2], [9]] * simplex, "classifier": simplex}
    >>> exchanged([(longer, longest)], "NC2, centred").round(6).to_dict("records")
    [{'whole': -0.391794, 'norms': -0.391794, 'directions': 0.0}]
    """
    rows = []
    for first, second in pairs:
        norms, directions = _norms_and_directions(first, name)
        other_norms, other_directions = _norms_and_directions(second, name)
        base = _metric(name, other_norms, other_directions)
        values = {
            "whole": _metric(name, norms, directions),
            "norms": _metric(name, norms, other_directions),
            "directions": _metric(name, other_norms, directions),
        }
        rows.append({part: float(np.log(value / base)) for part, value in values.items()})
    return pd.DataFrame(rows)


def _norms_and_directions(
    arrays: Mapping[str, np.ndarray], name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Norms (2, K, 1) and unit vectors (2, K, d) of class means and classifier rows."""
    means, weights = _means_and_weights(arrays)
    if SPLIT[name] == "before the exchange":
        means = means - means.mean(axis=0)
    both = np.stack([means, weights])
    return np.linalg.norm(both, axis=-1, keepdims=True), _directions(both)


def _metric(name: str, norms: np.ndarray, directions: np.ndarray) -> float:
    means, weights = norms * directions
    if SPLIT[name] == "after the exchange":
        means = means - means.mean(axis=0)
    if name.startswith("NC2"):
        return nc2_etf_distance(means)
    return eq14(means, weights)


def _means_and_weights(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(arrays["class_means"], float), np.asarray(arrays["classifier"], float)


def _directions(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)
