"""Whether this installation trains as it should: its runs against the tracked reference results.

Whether the statements of the papers are true is another question: `nclib.papers.certify`.

The same configurations are compared with themselves. Deviations of single runs cancel in the mean
over all runs of an arm of here − reference, so it shows the small error that all of them share. A
post-hoc analysis (a configuration with a ``base``) measures again what is compared anyway, and is
left out.
"""

import math

import numpy as np
import pandas as pd
from scipy import stats

from nclib.store import StoredRun, default_store, dotted, reference_store

FALSE_ALARMS = 0.005
"""How often a sound installation may be called broken, over all comparisons together."""
ACCURACIES = ("accuracy_balanced", "accuracy_readout", "accuracy_all")
FLOORS = {
    "loss": 0.02,
    "nc1_pinv": 0.02,
    "nc1_trace_ratio": 0.02,
    "nc2_etf_distance": 0.05,
    "nc3_self_duality": 0.05,
}
"""The other metrics that are compared, and what is added to both sides of their ratio, as near zero
a factor means nothing."""
LEAST_SHIFT = 0.005
"""Half a percentage point of accuracy is within error."""
LEAST_LOG_SHIFT = 0.05
"""So is 5 % of any other metric."""
LEAST_RUNS = 6
"""Mean shifts of fewer runs are no evidence."""


_COLUMNS = ["arm", "split", "metric", "here", "reference"]


def compare_with_reference() -> tuple[int, int, pd.DataFrame]:
    """Final metrics of the runs stored here against the tracked reference of the same runs: how
    many are both here and in the reference, how many of them are equal to the bit, and the table of
    `mean_shifts`.
    """
    store = default_store()
    reference = reference_store()
    tables = []
    equal = 0
    for run in reference.ids():
        tracked = reference.open(run)
        stored = None if "base" in tracked.config else store.find(run)
        if stored is None:
            continue
        table = pair(stored, tracked)
        if len(table):
            tables.append(table)
            equal += table["here"].equals(table["reference"])
    both = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=_COLUMNS)
    return len(tables), equal, mean_shifts(both)


def pair(here: StoredRun, reference: StoredRun) -> pd.DataFrame:
    """Two executions of one configuration beside each other.

    Returns
    -------
    DataFrame
        A row for each compared metric that the reference has: arm ("deq" or "other"), split,
        metric, here, reference. What is infinite or lacks here is NaN; rows without a number on
        either side are left out.
    """
    there = final_values(reference)
    there = there[there.index.isin([*FLOORS, *ACCURACIES], level="metric")].rename("reference")
    both = there.to_frame().assign(here=final_values(here).reindex(there.index)).reset_index()
    both = both.replace([math.inf, -math.inf], math.nan).dropna(
        how="all", subset=["here", "reference"]
    )
    # The equilibrium arms: "deq" of classifiers, "tanh_deq" and "relu_deq" of shallow networks.
    kind = str(dotted(reference.config, "model.kind"))
    return both.assign(arm="deq" if kind.endswith("deq") else "other")[_COLUMNS]


def final_values(run: StoredRun) -> pd.Series:
    """The last logged value of every metric of a run, by split and metric; NaN where that is
    NaN."""
    last = run.history.sort_values("epoch", kind="stable").drop_duplicates(
        ["split", "metric"], keep="last"
    )
    return last.set_index(["split", "metric"])["value"].astype(float)


def mean_shifts(both: pd.DataFrame) -> pd.DataFrame:
    """The mean over runs of here − reference, for each arm, split (train, test) and metric with
    `LEAST_RUNS` or more.

    Parameters
    ----------
    both : rows of `pair` of all runs

    Returns
    -------
    DataFrame
        arm, split, metric, runs, largest, shift, allowed, ok. Run r gives d_r = here − reference
        for accuracies (fractions) and log((here + f)/(reference + f)), f of `FLOORS`, for other
        metrics; largest is the largest |d_r| and shift the mean. Allowed is max(δ, t_{1−α/2m, N−1}
        s_d/√N), the two-sided t-interval around no shift at α = `FALSE_ALARMS` for m rows together,
        and never less than δ, `LEAST_SHIFT` or `LEAST_LOG_SHIFT`. One number lost here is a shift
        of NaN, which is not ok.
    """
    rows = both[both["split"].isin(["train", "test"])]
    floors = rows["metric"].map(FLOORS).astype(float)
    ratios = (rows["here"] + floors) / (rows["reference"] + floors)
    logs = np.log(ratios.where(ratios > 0))
    difference = (rows["here"] - rows["reference"]).where(rows["metric"].isin(ACCURACIES), logs)
    cells = {}
    for where, cell in difference.groupby([rows[name] for name in ("arm", "split", "metric")]):
        if len(cell) >= LEAST_RUNS:
            cells[where] = cell.to_numpy(float)
    table = []
    for (arm, split, metric), values in cells.items():
        runs = len(values)
        shift = float(values.mean())
        quantile = stats.t.ppf(1 - FALSE_ALARMS / (2 * len(cells)), runs - 1)
        least = LEAST_SHIFT if metric in ACCURACIES else LEAST_LOG_SHIFT
        allowed = max(least, float(quantile * values.std(ddof=1) / math.sqrt(runs)))
        largest = float(np.abs(values).max())
        table.append((arm, split, metric, runs, largest, shift, allowed, abs(shift) <= allowed))
    return pd.DataFrame(
        table, columns=["arm", "split", "metric", "runs", "largest", "shift", "allowed", "ok"]
    )
