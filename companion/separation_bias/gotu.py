"""The error of diagonal linear models on the inputs that training never sees, exactly (Wu et al. 2024, GOTU)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import pandas as pd
import scipy


class Unseen(NamedTuple):
    """Limit of training without the points x_k = −1: β_k, the bias, and GOTU, the mean squared error on those."""

    beta: float
    bias: float
    gotu: float


GotuModel = Literal["network", "deq", "deq_bias_feature"]


def gotu_diagonal(f_empty: float, f_k: float, model: GotuModel = "deq", beta0: float | None = None) -> Unseen:
    """Generalisation on the unseen of diagonal linear models, exact gradient flow.

    Target f(x) = f̂(∅) + Σ_i f̂({i}) x_i, trained on the points with x_k = 1 alone. There only b + β_k is determined: it
    goes to c = f̂(∅) + f̂({k}), and

        GOTU = E[(f_θ − f)² | x_k = −1] = 4 (f̂({k}) − β_k)²

    "network"           β = u ⊙ v, u = v:  β_k = β(0) e^{−2V},         b = −V
    "deq"               β = 1/(1 − w):     β_k = (β(0)^−3 + 3V)^−1/3,  b = −V
    "deq_bias_feature"  the bias is a diagonal DEQ feature as well:  β_k = b = c/2 for equal starts

    with V fixed by b + β_k = c.

    Parameters
    ----------
    f_empty, f_k : f̂(∅) and f̂({k})
    model : as above
    beta0 : β(0) > 0; None for the natural start, 10^−6 for the network (u = v = 10^−3) and 1 for the DEQ (w = 0)

    Returns
    -------
    Unseen

    Source: the setting is Abbe et al. (2023); the flows are derived here. Wu et al. (2024) claim that the DEQ's GOTU
    is smaller; which bias they use is not known here.
    """
    c = f_empty + f_k
    if model == "deq_bias_feature":
        beta = bias = c / 2
        return Unseen(beta, bias, 4 * (f_k - beta) ** 2)
    start = (1e-6 if model == "network" else 1.0) if beta0 is None else beta0

    # in terms of log β everything stays finite: V is a decreasing function of β
    def spent(log_beta: float) -> float:
        if model == "network":
            return (math.log(start) - log_beta) / 2
        return (math.exp(-3 * log_beta) - start**-3.0) / 3

    def excess(log_beta: float) -> float:
        return math.exp(log_beta) - spent(log_beta) - c

    low = high = math.log(start)
    while excess(low) > 0:
        low -= 1.0 if low > -200 else 100.0
    while excess(high) < 0:
        high += 1.0
    root = scipy.optimize.brentq(excess, low, high, xtol=1e-15, rtol=1e-14) if low < high else low
    beta, bias = math.exp(root), -spent(root)
    return Unseen(beta, bias, 4 * (f_k - beta) ** 2)


GOTU_CASES = ((0.0, 1.0), (0.0, 2.0), (0.5, 1.0), (0.0, 0.5), (0.0, 0.25), (1.0, 1.0), (2.0, 0.5), (3.0, 2.0))
"""(f̂(∅), f̂({k})) of `gotu_table`."""


def gotu_table(cases: Sequence[tuple[float, float]] = GOTU_CASES) -> pd.DataFrame:
    """GOTU of the diagonal network and of both diagonal DEQs at natural starts, a row for each case: f_empty, f_k,
    network, deq, deq_bias_feature, and predicted, whether 0 < β_k < 2 f̂({k}), the condition under which "deq" must be
    the better one."""
    rows = []
    for f_empty, f_k in cases:
        found = {name: gotu_diagonal(f_empty, f_k, name) for name in ("network", "deq", "deq_bias_feature")}
        predicted = 0 < found["deq"].beta < 2 * f_k
        rows.append((f_empty, f_k, *(value.gotu for value in found.values()), predicted))
    return pd.DataFrame(rows, columns=["f_empty", "f_k", "network", "deq", "deq_bias_feature", "predicted"])
