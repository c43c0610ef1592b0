"""How far class means and classifiers of the tracked runs are from the SELI geometry.

Under class imbalance the known optimum of cross-entropy with vanishing weight decay is SELI
(Thrampoulidis et al. 2022, the paper's [50]), not the simplex ETF that NC2 measures against. This
was looked at after the runs, not planned before them: a lead, not a finding.
"""

import functools

import pandas as pd

from nclib.metrics import nc2_etf_distance, seli_distance, simplex_etf
from nclib.papers.neural_collapse.front_figures import CLASSES, class_sizes, last_epoch
from nclib.store import reference_store


@functools.cache
def distances() -> pd.DataFrame:
    """Distances of every run at its last epoch, for the settings of the first picture.

    Most tracked class means and classifiers are in half precision, which moves a distance by less
    than 0.001.

    Returns
    -------
    DataFrame with the columns R, K_A (0 where classes are balanced), network and seed, and
    distances to the SELI geometry of the run's class sizes (means_seli, classifier_seli) and to the
    simplex ETF (means_etf, classifier_etf).
    """
    rows = []
    for run in last_epoch().itertuples():
        arrays = reference_store().open(run.run).arrays
        means = arrays["class_means"].astype(float)
        classifier = arrays["classifier"].astype(float)
        to_seli = seli_distance(means, classifier, arrays["counts"])
        row = {
            "R": run.R,
            "K_A": run.K_A,
            "network": run.network,
            "seed": run.seed,
            "means_seli": to_seli.means,
            "classifier_seli": to_seli.classifier,
            "means_etf": nc2_etf_distance(means - means.mean(axis=0)),
            "classifier_etf": nc2_etf_distance(classifier - classifier.mean(axis=0)),
        }
        rows.append(row)
    return pd.DataFrame(rows)


@functools.cache
def table() -> pd.DataFrame:
    """Means over seeds of `distances`, and the distances of the simplex ETF itself as a scale.

    Returns
    -------
    DataFrame indexed by R, K_A and network ("ResNet-18", "DEQ" or "simplex ETF").
    """
    means = distances().drop(columns="seed").groupby(["R", "K_A", "network"]).mean()
    etf = simplex_etf(CLASSES, CLASSES)
    for ratio, k_a in means.index.droplevel("network").unique():
        of_etf = seli_distance(etf, etf, class_sizes(ratio, k_a))
        means.loc[(ratio, k_a, "simplex ETF"), :] = [of_etf.means, of_etf.classifier, 0.0, 0.0]
    return means.sort_index()
