"""Inequalities that the proofs of Sun & Shi (2024) rest on, each as numbers that can refute it; and verdicts by rule.

Every function is arithmetic on small arrays. A step of a proof is refuted by a counterexample that is computed here,
not quoted; a statement can be true although a step is refuted, which is then called a proof gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

VERDICTS = ("holds", "holds if", "vacuous", "false", "proof gap")


def judge(outcomes: Sequence[bool], condition: Sequence[bool] | None = None, proof: bool = True) -> str:
    """The verdict on a statement from the cases in which it was tested.

    Rule: true in every case, "holds", or "proof gap" when the proof uses a refuted step and no other argument is given.
    True in some cases: "holds if" when a condition stated beforehand is true in exactly these, else "false", because
    the statement is made for all. True in none, "false".

    Parameters
    ----------
    outcomes : whether the statement is true, case by case
    condition : whether the separating condition is, in the same cases
    proof : whether an argument without a refuted step is given
    """
    outcomes = [bool(value) for value in outcomes]
    if not outcomes:
        raise ValueError("no case was tested; a verdict needs at least one")
    if all(outcomes):
        return "holds" if proof else "proof gap"
    separates = condition is not None and [bool(value) for value in condition] == outcomes
    return "holds if" if separates and any(outcomes) else "false"


def judge_condition(values: Sequence[bool]) -> str:
    """The verdict on the condition of a theorem: "vacuous" when it is met in no case or in every one of those that the
    theorem is about, so that it says nothing; else "holds if"."""
    values = [bool(value) for value in values]
    if not values:
        raise ValueError("no case was tested; a verdict needs at least one")
    return "vacuous" if all(values) or not any(values) else "holds if"


# --- Lemma B.1 and Remark B.2 ---------------------------------------------------------------------------------


def lemma_b1_excess(logits: np.ndarray, c1: np.ndarray, c2: np.ndarray) -> np.ndarray:
    """Right minus left side of Lemma B.1 (eq. 15) for the first of K logits; never negative where the lemma holds.

        M1 (δ_1 − mean_{k≠1} δ_k) + M2 − log softmax_1(δ)
        M1 = C2/(C1+C2),   M2 = M1 log C3 + (1 − M1) log(C1/(C1+C2)),   C3 = C2/((K−1)(C1+C2))

    logits: (..., K); c1, c2 > 0: (...). Source: eqs. 15–17, with log δ_k' in the inner sum, where δ_k is
    printed.
    """
    first, others = logits[..., 0], logits[..., 1:]
    left = first - scipy.special.logsumexp(logits, axis=-1)
    share = c2 / (c1 + c2)
    m2 = share * np.log(share / others.shape[-1]) + (1 - share) * np.log(1 - share)
    return share * (first - others.mean(axis=-1)) + m2 - left


def lemma_b1_draws(num_classes: int, draws: int = 200_000, seed: int = 0) -> float:
    """Smallest excess of Lemma B.1 over random logits (normal, scale 10^U(−1, 1)) and constants (10^U(−2, 2) each)."""
    rng = np.random.default_rng(seed)
    smallest = math.inf
    for size in (10_000,) * (draws // 10_000):
        logits = rng.standard_normal((size, num_classes)) * 10 ** rng.uniform(-1, 1, (size, 1))
        c1, c2 = 10 ** rng.uniform(-2, 2, (2, size))
        smallest = min(smallest, float(lemma_b1_excess(logits, c1, c2).min()))
    return smallest


def remark_b2(num_classes: int, draws: int = 2000, seed: int = 0) -> dict[str, float]:
    """Where the right side of Lemma B.1 is extremal in r = C2/C1, against what Remark B.2 prints.

        minimum at r = (K−1) e^−Δ,   printed: maximum at r = e^Δ/(K−1),   Δ = δ_1 − mean_{k≠1} δ_k

    Returns
    -------
    dict: correct and printed, the largest |log r − log r_min| of either formula over 200 draws, r_min found
    numerically; curvature, the smallest second derivative at r_min in log r (positive: a minimum); excess, the median
    of how far the bound at the printed ratio lies above the best one.
    """
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((draws, num_classes))
    deltas = logits[:, 0] - logits[:, 1:].mean(axis=1)

    def bound(log_r: float, delta: float) -> float:
        m1 = scipy.special.expit(log_r)
        entropy = scipy.special.xlogy(m1, m1) + scipy.special.xlogy(1 - m1, 1 - m1)
        return m1 * (delta - math.log(num_classes - 1)) + entropy

    off_correct, off_printed, curvatures, excess = 0.0, 0.0, [], []
    for delta in deltas[:200]:
        best = scipy.optimize.minimize_scalar(
            bound, bounds=(-40, 40), args=(delta,), method="bounded", options={"xatol": 1e-9}
        )
        correct, printed = math.log(num_classes - 1) - delta, delta - math.log(num_classes - 1)
        off_correct = max(off_correct, abs(best.x - correct))
        off_printed = max(off_printed, abs(best.x - printed))
        h = 1e-3
        curvatures.append((bound(best.x + h, delta) + bound(best.x - h, delta) - 2 * bound(best.x, delta)) / h**2)
    for delta in deltas:
        correct, printed = math.log(num_classes - 1) - delta, delta - math.log(num_classes - 1)
        excess.append(bound(printed, delta) - bound(correct, delta))
    return {
        "correct": float(off_correct),
        "printed": float(off_printed),
        "curvature": float(min(curvatures)),
        "excess": float(np.median(excess)),
    }


# --- the steps ------------------------------------------------------------------------------------------------


def proof_steps(seed: int = 0) -> pd.DataFrame:
    """Each step of the proofs that is tested, with the numbers that refute or confirm it.

    Returns
    -------
    DataFrame with the columns equation, step (as printed), test (what was computed), found and needed (the two numbers
    that are compared) and refuted.
    """
    rng = np.random.default_rng(seed)
    rows = [row for step in _STEPS for row in step(rng)]
    return pd.DataFrame(rows, columns=["equation", "step", "test", "found", "needed", "refuted"])


_Row = tuple[str, str, str, float, float, bool]


def _eq15(rng: np.random.Generator) -> list[_Row]:
    """As printed, with log δ_k in the inner sum, the bracket is zero and the right side is M2 alone."""
    k, n = 10, 4000
    logits = rng.standard_normal((n, k)) * 10 ** rng.uniform(-1, 1, (n, 1))
    share = 0.9  # C1 : C2 = 1 : 9, the constants of guessing
    m2 = share * math.log(share / (k - 1)) + (1 - share) * math.log(1 - share)
    violations = int((logits[:, 0] - scipy.special.logsumexp(logits, axis=1) > m2).sum())
    test = f"violations among {n} draws, C2 = 9 C1, K = 10"
    return [("15", "inner sum over log δ_k (printed)", test, violations, 0, violations > 0)]


def _after_eq19(rng: np.random.Generator) -> list[_Row]:
    """The budget of (6) is a mean over classes; the optimum spends all of it."""
    k, e_w = 10, 0.01
    return [
        ("after 19", "Σ_k ‖w_k‖² ≤ E_W", "its value at the optimum, K = 10, E_W = 0.01", k * e_w, e_w, k * e_w > e_w)
    ]


def _eq19(rng: np.random.Generator) -> list[_Row]:
    """Mean loss against the bound, 4000 draws of K logits and constants."""
    k, n = 10, 4000
    logits = rng.standard_normal((n, k)) * 10 ** rng.uniform(-1, 1, (n, 1))
    c1, c2 = 10 ** rng.uniform(-1, 1, (2, n))
    share = c2 / (c1 + c2)
    m2 = share * np.log(share / (k - 1)) + (1 - share) * np.log(1 - share)
    loss = scipy.special.logsumexp(logits, axis=1) - logits[:, 0]
    slope = logits[:, 1:].mean(axis=1) - logits[:, 0]
    right = int((loss < share * slope - m2 - 1e-9).sum())
    wrong = int((loss < (1 - share) * slope - m2 - 1e-9).sum())
    text = f"violations among {n} draws with C4 = −M2 and the prefactor "
    return [
        ("19", "L ≥ C2/(C1+C2) (…) − M2 (as the lemma gives it)", text + "C2/(C1+C2)", right, 0, right > 0),
        ("19", "prefactor C1/(C1+C2)", text + "printed", wrong, 0, wrong > 0),
    ]


def _eq20(rng: np.random.Generator) -> list[_Row]:
    size = 1.5
    actual, bound = size**4, size**2
    return [("20, 43", "‖Wx‖² ≤ (‖W‖_F² + ‖x‖²)/2", "rank one W, ‖W‖_F = ‖x‖ = 1.5", actual, bound, actual > bound)]


def _eq23(rng: np.random.Generator) -> list[_Row]:
    """Logits that satisfy the printed equality condition h·w_k/(C1/(C1+C2)) = h·w_k'/C3, K = 10, C1 = C2."""
    k, share = 10, 0.5
    logits = np.array([1 - share, *np.full(k - 1, share / (k - 1))])
    gap = float(lemma_b1_excess(logits, np.array(1.0), np.array(1.0)))
    exact = np.log(logits)
    zero = float(lemma_b1_excess(exact, np.array(1.0), np.array(1.0)))
    text = "excess of Lemma B.1 where the condition is met"
    return [
        ("23, 34", "equality iff h·w_k/C1 = h·w_k'/C3", text, gap, 0, gap > 1e-9),
        ("23, 34", "equality iff exp(h·w_k)/C1 = exp(h·w_k')/C3 (correct)", text, zero, 0, abs(zero) > 1e-9),
    ]


def _eq26(rng: np.random.Generator) -> list[_Row]:
    """Off-diagonal of a simplex ETF with w_k·h_k = 1, K = 10, n = 5 images a class: N − 1 = 49."""
    found, printed = -1 / 9, -1 / 49
    test = "h_k·w_k' of an ETF with h_k·w_k = 1 (K = 10, N = 50)"
    return [("25–26", "h_k·w_k' = −√(E_W E_H)/(N−1)", test, found, printed, not math.isclose(found, printed))]


def _eq29(rng: np.random.Generator) -> list[_Row]:
    a, b = rng.standard_normal((2, 100_000, 10))
    share = float((((a + b) ** 2).sum(1) > (a**2).sum(1) + (b**2).sum(1)).mean())
    step = "−‖a+b‖² ≥ −‖a‖² − ‖b‖²"
    return [
        ("29", step, "share of random pairs that violate it (it says a·b ≤ 0)", share, 0, share > 0),
        ("29", step, "‖a+b‖² in the stated equality case a = b, ‖a‖ = 1", 4, 2, True),
    ]


def _eq31(rng: np.random.Generator) -> list[_Row]:
    """‖(I−W)⁻¹x‖² ≤ 2‖x‖² + ‖W‖² with the sign corrected; W = w v vᵀ and x along v."""
    rows: list[_Row] = []
    for w, x in ((0.3, 10.0), (0.4, 1.0)):
        actual, bound = (x / (1 - w)) ** 2, 2 * x**2 + w**2
        test = f"‖W‖_F = {w}, ‖x‖ = {x:g}"
        rows.append(("30–31", "‖(I−W)⁻¹x‖² ≤ 2‖x‖² + ‖W‖_F²", test, actual, bound, actual > bound))
    return rows


def _eq36(rng: np.random.Generator) -> list[_Row]:
    """W G^{j−1} = x, G⁰ = x, G¹ = W x + x. No ‖W‖_F ≤ E_H brings W x nearer to x than E_H x; and were W x = x, as for
    W = I, then W G¹ = 2x."""
    e_h, x = 0.01, rng.standard_normal(10)
    x /= np.linalg.norm(x)
    nearest, identity = e_h * np.outer(x, x), np.eye(10)
    first = float(np.linalg.norm(nearest @ x - x))
    second = float(np.linalg.norm(identity @ (identity @ x + x) - x))
    step = "equality iff W G^{j−1} = x for every j"
    return [
        ("36", step, "j = 1: least ‖Wx − x‖ with ‖W‖_F ≤ 0.01, ‖x‖ = 1", first, 0, first > 1e-9),
        ("36", step, "j = 2 where j = 1 holds: ‖W G¹ − x‖, ‖x‖ = 1", second, 0, second > 1e-9),
    ]


def _eq38(rng: np.random.Generator) -> list[_Row]:
    """Objective at zero logits, where each cross-entropy is log K: K_A = K_B = 5, n_A = 5000, n_B = 50."""
    k_a = k_b = 5
    n_a, n_b = 5000, 50
    total = k_a * n_a + k_b * n_b
    printed = ((k_a * n_a) ** 2 + (k_b * n_b) ** 2) / total * math.log(10)
    test = "objective at zero logits, where it must be log K"
    return [("10, 38", "factor K_A n_A/N before the sum", test, printed, math.log(10), printed > 1.01 * math.log(10))]


def _eq43(rng: np.random.Generator) -> list[_Row]:
    k, k_a, e_h = 10, 3, 0.01
    test = "K = 10, K_A = 3, E_H = 0.01, minority features 0 as in Prop. 4.2: Σ_A ‖h_k‖²"
    return [("43", "Σ_A ‖h_k‖² ≤ K_A E_H", test, k * e_h, k_a * e_h, k * e_h > k_a * e_h)]


def _eq44(rng: np.random.Generator) -> list[_Row]:
    rows: list[_Row] = []
    for k_a, e_h in ((3, 0.3), (5, 0.2), (7, 0.1)):
        deq, explicit = -(1 / (1 - e_h) + e_h) / 2, -k_a * e_h
        step = "DEQ bound < explicit bound for all E_H ≠ 1"
        rows.append(("44", step, f"K_A = {k_a}, E_H = {e_h}: DEQ against explicit", deq, explicit, deq >= explicit))
    return rows


def _eq45(rng: np.random.Generator) -> list[_Row]:
    """First against second line, random vectors."""
    k_a, c4 = 5, 0.7
    c5 = 1 - c4
    w, b = rng.standard_normal((k_a, 8)), rng.standard_normal(8)
    a = w.mean(axis=0)
    first = -((c4 * a + c5 * b - w) ** 2).sum() / k_a
    second = {
        name: -(w**2).sum() / k_a + 2 * c5**2 * a @ b + c4 * (2 - c4) * a @ a - factor * b @ b
        for name, factor in (("C5 (printed)", c5), ("C5² (correct)", c5**2))
    }
    rows: list[_Row] = [
        (
            "45",
            f"line 2 with {name}‖w_B‖²",
            "line 2 against line 1",
            float(value),
            float(first),
            not np.isclose(value, first),
        )
        for name, value in second.items()
    ]
    inner = c4 * (2 - c4)
    spare = -(w**2).sum() / k_a + inner * ((a + c5**2 / inner * b) ** 2).sum()
    for name, factor in (("C5²/(C4(2−C4)) (printed)", c5**2 / inner), ("C5⁴/(C4(2−C4)) (correct)", c5**4 / inner)):
        value = spare - (c5**2 + factor) * b @ b
        refuted = not np.isclose(value, first)
        rows.append(("45", f"line 3 with {name}", "line 3 against line 1", float(value), float(first), refuted))
    return rows


def _eq50(rng: np.random.Generator) -> list[_Row]:
    """Gradient of ½ Σ_k ‖w_k − w_A‖² with respect to w_1 along a random direction, by central differences."""
    k_a = 5
    w, along = rng.standard_normal((k_a, 8)), rng.standard_normal(8)

    def spread(move: float) -> float:
        moved = w.copy()
        moved[0] += move * along
        return 0.5 * ((moved - moved.mean(axis=0)) ** 2).sum()

    slope = (spread(1e-5) - spread(-1e-5)) / 2e-5
    printed = float((1 - 1 / k_a) * (w[0] - w.mean(axis=0)) @ along)
    return [
        (
            "50",
            "factor (1 − 1/K_A)",
            "derivative against the printed one",
            slope,
            printed,
            not np.isclose(slope, printed),
        )
    ]


def _eq51(rng: np.random.Generator) -> list[_Row]:
    found = 1 / (1 - 0.9999**2)
    return [("after 51", "C4 → 1, so 1/(1 − C4²) → 0", "its value at C4 = 0.9999", found, 0, found > 1)]


def _eq57(rng: np.random.Generator) -> list[_Row]:
    d, e_h = 10, 0.01
    w = np.zeros((d, d))
    w[0, 0] = e_h
    found = float(np.linalg.norm(np.linalg.inv(np.eye(d) - w)))
    test = "d = 10, ‖W‖_F = 0.01"
    return [("55–57", "‖(I−W)⁻¹‖_F ≤ 1/(1−E_H)", test, found, 1 / (1 - e_h), found > 1 / (1 - e_h))]


def _eq59(rng: np.random.Generator) -> list[_Row]:
    e_h = 0.01
    inside, beyond = (
        inequality_58(e_h, np.linspace(e_h, 1 / (1 - e_h), 10_001)[1:-1]),
        inequality_58(e_h, np.array([2.0])),
    )
    share = float(inside.mean())
    return [
        (
            "58–59",
            "E_H < 2s−m < 1/(1−E_H) implies (58)",
            "share of that interval where (58) is true",
            share,
            1,
            share < 1,
        ),
        ("58–59", "only there", "(58) at 2s−m = 2, outside", float(beyond[0]), 0, bool(beyond[0])),
    ]


def _eq62(rng: np.random.Generator) -> list[_Row]:
    e_w = e_h = 0.01
    ratio = cosine_ratio_printed(e_w, e_h)
    test = "ratio of the printed bounds (61)/(60) at E_W = E_H = 0.01, where (62) is true"
    return [("60–62", "(62) implies cos_DEQ/cos_EX > 1", test, ratio, 1, ratio <= 1 and condition_62(e_w, e_h) < 2)]


_STEPS = (
    _eq15, _eq19, _after_eq19, _eq20, _eq23, _eq26, _eq29, _eq31, _eq36, _eq38, _eq43, _eq44, _eq45, _eq50, _eq51,
    _eq57, _eq59, _eq62,
)  # fmt: skip


def inequality_58(e_h: float, middle: np.ndarray) -> np.ndarray:
    """Whether inequality (58), |1/(1−E_H) + m − 2s| < |E_H + m − 2s|, is true at each value of 2s − m."""
    return np.abs(1 / (1 - e_h) - middle) < np.abs(e_h - middle)


def condition_62(e_w: np.ndarray | float, e_h: np.ndarray | float) -> np.ndarray | float:
    """Left side of (62), E_H/(E_W+E_H) + E_H(1−E_H); the condition is that it be below 2. Below 1.25 on (0, 1)²."""
    return e_h / (e_w + e_h) + e_h * (1 - e_h)


def cosine_ratio_printed(e_w: np.ndarray | float, e_h: np.ndarray | float) -> np.ndarray | float:
    """Bound (61) over bound (60): 2(E_W+E_H)/(1 + 2(E_W+E_H)(1−E_H)); above 1 is what (62) is meant to say.

    Source: eqs. 60 and 61, 0.0385 at E_W = E_H = 0.01.
    """
    total = e_w + e_h
    return 2 * total / (1 + 2 * total * (1 - e_h))
