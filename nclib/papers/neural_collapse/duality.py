"""Class means and classifier rows: the cosine of Theorem 4.1's NC3, and what norms and directions do to NC2 and NC3.

With the norms of one network's class means and classifier rows and the directions of the other's, a metric shows what
a difference between the two comes from. For centred metrics this depends on the order: the centre depends on the norms,
so that centred means differ in their directions where the means themselves differ in their norms alone.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from nclib import nc2_etf_distance

# Metrics of `add_cosines`: the mean over classes of cos(h_k, w_k), as in the paper and with centred class means.
COSINES = ("class_cosine", "class_cosine_centred")


def eq14(means: np.ndarray, weights: np.ndarray) -> float:
    """‖W/‖W‖ − H/‖H‖‖ of class means H and classifier rows W, both (K, d)."""
    return float(np.linalg.norm(weights / np.linalg.norm(weights) - means / np.linalg.norm(means)))


# What `exchanged` compares, by the names of tables: when the class means are centred. NC2 needs no classifier.
SPLIT = {"NC3, eq. 14": "never"}
SPLIT |= dict.fromkeys(["NC2, centred", "NC3, centred"], "after the exchange")
SPLIT |= {f"{name}, centred before the exchange": "before the exchange" for name in ("NC2", "NC3")}


def add_cosines(frame: pd.DataFrame, arrays: Mapping[str, Mapping[str, np.ndarray]]) -> pd.DataFrame:
    """The frame with rows of the metrics `COSINES` (split "train") at each run's last epoch.

    Parameters
    ----------
    frame : tidy frame
    arrays : run id → its arrays, with class_means and classifier (K, d)
    """
    rows, train = [], frame[frame["split"] == "train"].sort_values("epoch")
    for run, last in train.groupby("run_id", sort=False).tail(1).iterrows():
        means, weights = (np.asarray(arrays[last["run_id"]][name], float) for name in ("class_means", "classifier"))
        for metric, centre in zip(COSINES, (0.0, means.mean(axis=0)), strict=True):
            cosines = (_directions(means - centre) * _directions(weights)).sum(axis=1)
            rows.append({**frame.loc[run], "metric": metric, "value": float(cosines.mean())})
    return pd.concat([frame, pd.DataFrame(rows, columns=frame.columns).astype(frame.dtypes)], ignore_index=True)


def exchanged(pairs: Iterable[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]], name: str) -> pd.DataFrame:
    """A metric of `SPLIT` of pairs of networks, and with norms and directions exchanged.

    Parameters
    ----------
    pairs : arrays of the network, and of the one it is compared with: class_means and classifier (K, d)
    name : a key of `SPLIT`

    Returns
    -------
    DataFrame with a row for each pair: log ratios to the second network of the metric as it is ("whole"), with the
    first one's norms and the second one's directions ("norms"), and with its directions and the other's norms
    ("directions").

    Examples
    --------
    >>> import nclib as nc
    >>> simplex = nc.simplex_etf(3, 2).numpy()
    >>> longer = {"class_means": [[1], [2], [3]] * simplex, "classifier": simplex}
    >>> longest = {"class_means": [[1], [2], [9]] * simplex, "classifier": simplex}
    >>> exchanged([(longer, longest)], "NC2, centred").round(6).to_dict("records")
    [{'whole': -0.391794, 'norms': -0.391794, 'directions': 0.0}]
    """
    centred = SPLIT[name]

    def value(norms, directions):
        means, weights = norms * directions
        means = _centred(means, centred == "after the exchange")
        return nc2_etf_distance(means) if name.startswith("NC2") else eq14(means, weights)

    rows = []
    for both in pairs:
        split = []
        for arrays in both:
            means, weights = (np.asarray(arrays[key], float) for key in ("class_means", "classifier"))
            h_and_w = np.stack([_centred(means, centred == "before the exchange"), weights])
            split.append((np.linalg.norm(h_and_w, axis=-1, keepdims=True), _directions(h_and_w)))
        (norms, directions), (other_norms, other_directions) = split
        base = value(other_norms, other_directions)
        found = {
            "whole": (norms, directions),
            "norms": (norms, other_directions),
            "directions": (other_norms, directions),
        }
        rows.append({part: float(np.log(value(*arrays) / base)) for part, arrays in found.items()})
    return pd.DataFrame(rows)


def _centred(means: np.ndarray, centre: bool) -> np.ndarray:
    return means - means.mean(axis=0) if centre else means


def _directions(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)
