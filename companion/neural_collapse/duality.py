"""Classifier rows against class means: the cosine of Theorem 4.1's NC3, and eq. (14) split into lengths and angles.

With w_k the classifier's rows and h_k the class means,

    eq. (14)² = ‖W/‖W‖ − H/‖H‖‖² = 2 − 2 Σ_k a_k c_k,   a_k = ‖w_k‖ ‖h_k‖ / (‖W‖ ‖H‖),   c_k = cos(h_k, w_k).

The lengths a and the angles c of two networks can be exchanged, which shows what a difference in eq. (14) comes from.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

# Metrics of `add_cosines`: the mean over classes of cos(h_k, w_k), as printed and with centred class means.
COSINES = ("class_cosine", "class_cosine_centred")


def lengths_and_angles(means: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The products of lengths a (K,) and the cosines c (K,) of class means and classifier rows, both (K, d)."""
    h, w = (np.asarray(values, dtype=float) for values in (means, weights))
    long_h, long_w = np.linalg.norm(h, axis=1), np.linalg.norm(w, axis=1)
    lengths = long_h * long_w
    cosines = (h * w).sum(axis=1) / lengths
    return lengths / (np.linalg.norm(h) * np.linalg.norm(w)), cosines


def eq14(lengths: np.ndarray, cosines: np.ndarray) -> float:
    """Eq. (14) of lengths and cosines (K,), which may be those of two networks.

    Examples
    --------
    >>> eq14(*lengths_and_angles(np.eye(3), 2 * np.eye(3)))
    0.0
    """
    return float(np.sqrt(max(0.0, 2 - 2 * float(lengths @ cosines))))


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
            cosines = lengths_and_angles(means - centre, weights)[1]
            rows.append({**frame.loc[run], "metric": metric, "value": float(cosines.mean())})
    return pd.concat([frame, pd.DataFrame(rows, columns=frame.columns).astype(frame.dtypes)], ignore_index=True)


def exchanged(
    pairs: Iterable[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]], centred: bool = False
) -> pd.DataFrame:
    """Eq. (14) of pairs of networks, and with lengths and angles exchanged.

    Parameters
    ----------
    pairs : arrays of the network, and of the one it is compared with
    centred : subtract the mean of the class means

    Returns
    -------
    DataFrame with a row for each pair: log ratios to the second network of eq. (14) as it is ("whole"), with the first
    one's lengths and the second one's angles ("lengths"), and with its angles and the other's lengths ("angles").
    """
    rows = []
    for both in pairs:
        split = []
        for arrays in both:
            means = np.asarray(arrays["class_means"], float)
            split.append(lengths_and_angles(means - centred * means.mean(axis=0), arrays["classifier"]))
        (lengths, angles), (other_lengths, other_angles) = split
        base = eq14(other_lengths, other_angles)
        found = {"whole": (lengths, angles), "lengths": (lengths, other_angles), "angles": (other_lengths, angles)}
        rows.append({name: float(np.log(eq14(*values) / base)) for name, values in found.items()})
    return pd.DataFrame(rows)
