"""Whether this installation computes what it should: its runs against the tracked reference results.

The same configurations are compared with themselves. Deviations of single runs cancel in the mean over all runs of an
arm of here − reference, so it shows the small error that all of them share. A post-hoc analysis (a configuration with a
``base``) measures again what is compared anyway, and is left out.
"""

import math

import numpy as np
import pandas as pd
from scipy import stats

from nclib.store import StoredRun, default_store, dotted, reference_store

FALSE_ALARMS = 0.005
"""How often a sound installation may be called broken, over all comparisons together."""
ACCURACIES = ("accuracy_balanced", "accuracy_readout", "accuracy_all")
FLOORS = {"loss": 0.02, "nc1_pinv": 0.02, "nc1_trace_ratio": 0.02, "nc2_etf_distance": 0.05, "nc3_self_duality": 0.05}
"""The other metrics that are compared, and what is added to both sides of their ratio, as near zero a factor means
nothing."""
LEAST_SHIFT, LEAST_LOG_SHIFT = 0.005, 0.05
"""Half a point of accuracy and 5 % of any other metric are within error."""
LEAST_RUNS = 6
"""Mean shifts of fewer runs are no evidence."""


def compare_with_reference() -> tuple[int, int, pd.DataFrame]:
    """Final metrics of the runs stored here against the tracked reference of the same runs: how many are both here and
    in the reference, how many of them are equal to the bit, and the table of `mean_shifts`.
    """
    store, reference = default_store(), reference_store()
    known = map(reference.open, filter(store.has, reference.ids()))
    both = ((store.find(there.run_id), there) for there in known if "base" not in there.config)
    pairs = [frame for here, there in both if here and len(frame := pair(here, there))]
    both = pd.concat(pairs, ignore_index=True) if pairs else pd.DataFrame(columns=_COLUMNS)
    return len(pairs), sum(frame["here"].equals(frame["reference"]) for frame in pairs), mean_shifts(both)


_COLUMNS = ["arm", "split", "metric", "here", "reference"]


def pair(here: StoredRun, reference: StoredRun) -> pd.DataFrame:
    """Two executions of one configuration beside each other.

    Returns
    -------
    DataFrame
        A row for each compared metric that the reference has: arm ("deq" or "other"), split, metric, here, reference.
        What is infinite or lacks here is NaN; rows without a number on either side are left out.
    """
    there = final_values(reference)
    there = there[there.index.isin([*FLOORS, *ACCURACIES], level="metric")].rename("reference")
    both = there.to_frame().assign(here=final_values(here).reindex(there.index)).reset_index()
    both = both.replace([math.inf, -math.inf], math.nan).dropna(how="all", subset=["here", "reference"])
    # the equilibrium arms: "deq" of the classifiers, "tanh_deq" and "relu_deq" of the shallow networks
    arm = "deq" if str(dotted(reference.config, "model.kind")).endswith("deq") else "other"
    return both.assign(arm=arm)[_COLUMNS]


def final_values(run: StoredRun) -> pd.Series:
    """The last logged value of every metric of a run, by split and metric; NaN where that is NaN."""
    last = run.history.sort_values("epoch", kind="stable").drop_duplicates(["split", "metric"], keep="last")
    return last.set_index(["split", "metric"])["value"].astype(float)


def mean_shifts(both: pd.DataFrame) -> pd.DataFrame:
    """The mean over runs of here − reference, for each arm, split (train, test) and metric with `LEAST_RUNS` or more.

    Parameters
    ----------
    both : rows of `pair` of all runs

    Returns
    -------
    DataFrame
        arm, split, metric, runs, largest, shift, allowed, ok. Run r gives d_r = here − reference for accuracies
        (fractions) and log((here + f)/(reference + f)), f of `FLOORS`, for other metrics; largest is the largest |d_r|
        and shift the mean. Allowed is max(δ, t_{1−α/2m, N−1} s_d/√N), the two-sided t-interval around no shift at α =
        `FALSE_ALARMS` for m rows together, and never less than δ, `LEAST_SHIFT` or `LEAST_LOG_SHIFT`. One number lost
        here is a shift of NaN, which is not ok.
    """
    rows = both[both["split"].isin(["train", "test"])]
    here, there, floors = rows["here"], rows["reference"], rows["metric"].map(FLOORS).astype(float)
    logs = np.log(((here + floors) / (there + floors)).where(lambda ratios: ratios > 0))
    apart = (here - there).where(rows["metric"].isin(ACCURACIES), logs)
    cells = apart.groupby([rows[name] for name in ("arm", "split", "metric")])
    enough = {where: cell.to_numpy(float) for where, cell in cells if len(cell) >= LEAST_RUNS}
    table = [(*where, len(found), *_judge(where[-1], found, len(enough))) for where, found in enough.items()]
    return pd.DataFrame(table, columns=["arm", "split", "metric", "runs", "largest", "shift", "allowed", "ok"])


def _judge(metric: str, found: np.ndarray, comparisons: int) -> tuple[float, float, float, bool]:
    runs, shift = len(found), float(found.mean())
    quantile = stats.t.ppf(1 - FALSE_ALARMS / (2 * comparisons), runs - 1)
    least = LEAST_SHIFT if metric in ACCURACIES else LEAST_LOG_SHIFT
    allowed = max(least, float(quantile * found.std(ddof=1) / math.sqrt(runs)))
    return float(np.abs(found).max()), shift, allowed, abs(shift) <= allowed
