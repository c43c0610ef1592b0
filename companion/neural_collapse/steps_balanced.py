"""Steps of the proofs in appendix B. W, x stand for one weight matrix and one (centred) input h̄0 − h0."""

from __future__ import annotations

import random
from fractions import Fraction as F
from itertools import product

from companion import exact
from companion.certify import require, states

_SMALL = F(1, 100)  # the paper's E_H


@states(
    "App. B.1, (15)",
    "the inner sum is over log δ_k",
    "typo",
    "(17) has δ_k′; as printed the bracket is 0: K = 3, δ = (8, 1, 1), C2 = 4C1: (4/5)⁵ > (2/5)⁴(1/5)",
)
def step_15(own: F = F(8)) -> bool:
    """With log δ_k in the inner sum the bracket of (15) is 0 and it claims softmax ≤ exp(M2). Here to the fifth
    power.
    """
    p = F(4, 5)
    return require((own / (own + 2)) ** 5 > (p / 2) ** 4 * (1 - p), "softmax exceeds exp(M2)")


@states(
    "App. B.1, (19)",
    "L ≥ C1/((C1+C2)N(K−1)) Σ(…) + C4, with C4 as printed below",
    "holds",
    "loosely (short proof; 40 cases in intervals). Its constants are not those of Lemma B.1, which give C2/(C1+C2) and "
    "C4 = −M2",
)
def step_19(sign: int = 1) -> bool:
    """Proof. Per sample, with x = mean of the other logits − own: −log softmax = log(1 + Σ exp(z_j − z_k)) ≥
    log(1 + (K−1) exp x) > max(0, x) (AM-GM, K ≥ 2) ≥ (1−p) x, and the printed C4 = M2/N is negative.
    """
    rng = random.Random(21)
    for _ in range(40):
        z = [exact.random_fraction(rng) for _ in range(rng.choice((2, 3, 10)))]
        p, k1 = F(rng.randint(1, 9), 10), len(z) - 1
        m2 = p * exact.log(p / k1) + (1 - p) * exact.log(1 - p)
        x = sum(z[1:]) / k1 - z[0]
        require(exact.cross_entropy(z, 0) > sign * m2 + (1 - p) * x, f"logits {z}, p = {p}")
    p, z = F(9, 10), [exact.log(F(9)), *[exact.Interval(0)] * 9]
    lemma = -(p * exact.log(p / 9) + (1 - p) * exact.log(1 - p))
    return require(
        exact.cross_entropy(z, 0) < lemma - (1 - p) * z[0], "the printed factor with C4 = −M2 is not a bound"
    )


@states(
    "App. B.1, below (19)",
    "Σ_k ‖w_k‖² ≤ E_W",
    "typo",
    "(5) and (21) have (1/K) Σ ‖w_k‖² ≤ E_W; the optimum of Theorem 3.1 spends K E_W",
)
def after_19(classes: int = 10) -> bool:
    """(21) replaces −(C5 N/2) Σ‖w_k‖² by −(C5 K N/2) E_W; at the optimum (26), Σ‖w_k‖² = tr WWᵀ = K E_W."""
    www = exact.centring(classes, classes * _SMALL / (classes - 1))
    spent = sum(www[k][k] for k in range(classes))
    return require(spent == classes * _SMALL > _SMALL, "the optimum of (26) breaks the printed budget")


@states(
    "App. B.2, (20)",
    "‖W_EX x‖² ≤ (‖W_EX‖_F² + ‖x‖²)/2",
    "holds if E_H ≤ 1 (summed over samples; for each x if ‖W_EX‖_F ≤ 1/√2)",
    "short proof; 81/16 > 9/4 at ‖W_EX‖ = ‖x‖ = 3/2, outside the paper's 0.01",
)
def step_20(worst: F = F(1)) -> bool:
    """Proof. With w = ‖W_EX‖_F: ‖Wx‖² ≤ w²‖x‖² ≤ ‖x‖²/2 if w² ≤ 1/2. Summed, X = Σ‖x‖² ≤ N E_H (centring lowers it):
    w²X ≤ N w²/2 + X/2 is linear in X; at X = 0 it holds, at X = N E_H it says w²(E_H − 1/2) ≤ E_H/2, worst at w =
    E_H, where E_H/2 + E_H²/2 − E_H³ = E_H (1 − E_H)(1 + 2E_H)/2 ≥ 0 iff E_H ≤ 1.
    """
    for e in (_SMALL, F(1, 2), F(9, 10), F(1), F(11, 10), F(3)):
        slack = e / 2 + e**2 / 2 - e**3
        require(slack == e * (1 - e) * (1 + 2 * e) / 2, "the worst case factors")
        require((slack >= 0) == (e <= worst), f"E_H = {e}")
    return require(F(3, 2) ** 4 > F(3, 2) ** 2, "false at norms 3/2")


@states(
    "App. B.2, conditions of equality, (20)",
    "equality in (20): ‖W_EX‖_F² = Σ_k Σ_i ‖h̄0_i − h0_k,i‖²",
    "false",
    "at ‖W‖ = ‖x‖ = 1/100 the sides are 10⁻⁸ and 10⁻⁴; equality needs ‖W‖ ‖x‖ ≥ 1, so (22) is not attained this way. "
    "Second derivation: symbolic",
)
def step_20_equality(x: F = _SMALL) -> bool:
    """One sample, one dimension: W = x = 1/100 meets the printed condition, and (Wx)² is not (W² + x²)/2."""
    w = _SMALL
    require(w**2 == x**2, "the printed condition of equality")
    return require((w * x) ** 2 != (w**2 + x**2) / 2, "and yet no equality")


@states(
    "App. B.2, conditions of equality, (21)",
    "when ‖W_EX‖_F² = E_H holds, the inequality was reduced to equality",
    "vacuous",
    "the constraint is ‖W_EX‖_F ≤ E_H, so ‖W_EX‖_F² ≤ E_H² < E_H for E_H < 1: at 1/100 it would need ‖W_EX‖ = 1/10",
)
def step_21_equality(e_h: F = _SMALL) -> bool:
    """The same slip, E_H for E_H², is in (32): the bound of the weights is ‖W‖_F ≤ E_H."""
    return require(e_h > e_h**2, "the budget excludes the condition")


@states(
    "App. B.2, (22) and (33), with C4 as defined under (19)",
    "inf L_EX = −C1K/((C1+C2)(K−1)) √(E_W E_H) + C4, inf L_DEQ = −2(…) + C4",
    "false",
    "read as infima (as lower bounds both are valid): that C4 is negative for all C1, C2 > 0, so both numbers are "
    "negative, and a cross-entropy is positive. Second derivation: symbolic",
)
def step_22_33(sign: int = 1) -> bool:
    """C4 = (p log C3 + (1−p) log(1−p))/N with 0 < C3 = p/(K−1) < 1 for K ≥ 2: both logarithms are negative. exp(−CE)
    is a softmax probability below 1. Checked as powers: C3^a (1−p)^(b−a) < 1 for p = a/b.
    """
    for classes, a, b in product((2, 3, 10, 100), (1, 3, 7), (8, 9)):
        p = F(a, b)
        value = (p / (classes - 1)) ** a * (1 - p) ** (b - a)
        require(value**sign < 1, "C4 is negative")
    return True


@states(
    "App. B.2, (23), (34)",
    "(C1+C2) h·w_k/C1 = h·w_k′/C3",
    "typo",
    "(24), (35), 'that is', have the exponentials: exp(h·w_k) C3 (C1+C2)/C1 = exp(h·w_k′) is (24); exact at K = 3, C2 "
    "= C1/4",
)
def step_23(ratio: F = F(1, 4)) -> bool:
    """Equality in (17) needs δ_k (C1+C2)/C1 = δ_k′/C3, δ = exp(h·w). At δ = (8, 1, 1), C2/C1 = 1/4: both sides are
    10; (24) says 8 = (K−1) C1/C2. Without exponentials the logits log 8 and 0 would have to satisfy (5/4) log 8 = 0.
    """
    p = ratio / (1 + ratio)
    require(F(8) / (1 - p) == F(1) / (p / 2) == 10, "equality of (17) with exponentials")
    require(F(8) == 2 / ratio, "(24)")
    return require(exact.log(F(8)) > 0, "without exponentials it fails")


@states(
    "App. B.2, below (25)",
    "h_k·w_k′ = −√(E_W E_H)/(N−1)",
    "typo",
    "(26) has K−1: the rows of WH sum to 0 only with it",
)
def step_25(divisor: int = 9) -> bool:
    """Σ_k′ h_k·w_k′ = 0 with h_k·w_k = √(E_W E_H) and K − 1 equal others; with N = 60 samples it would not be."""
    return require(1 - 9 * F(1, divisor) == 0 and 1 - 9 * F(1, 59) != 0, "the sum over classes")


@states(
    "App. B.1 and (27)",
    "f(x; W_DEQ) = Σ_{i=1}^∞ W^i x",
    "not shown",
    "two definitions, and no line says which is meant: §3.2, (28) and appendix C sum from 0; at W = 1/100 they differ "
    "by the factor 100",
)
def step_27(w: F = _SMALL) -> bool:
    """Σ_{i≥0} = (1−w)⁻¹ is the fixed point of z = wz + x; Σ_{i≥1} is that of z = wz + wx."""
    from_0, from_1 = 1 / (1 - w), w / (1 - w)
    require(from_0 == w * from_0 + 1 and from_1 == w * from_1 + w, "fixed points")
    return require(from_0 == 100 * from_1, "at 1/100")


@states(
    "App. B.2, (28), (31)",
    "−(K/2)ΣΣ‖h̄_i − h_k,i‖² = (K/2)ΣΣ‖Σ_j W^j(h̄0_i − h0_k,i)‖²",
    "typo",
    "a minus sign is missing on the right; (29), second line, has it",
)
def step_28(w: F = _SMALL, sign: int = -1) -> bool:
    x = F(1, 10)
    feature = x / (1 - w)
    return require(-(feature**2) == sign * (x / (1 - w)) ** 2 != (x / (1 - w)) ** 2, "the sign")


@states(
    "App. B.2, (29), first inequality",
    "−‖W G + x‖² ≥ −‖W G‖² − ‖x‖²",
    "false",
    "equivalent to ⟨WG, x⟩ ≤ 0; at W = 1/100, G = x = 1/10 the left side is smaller by 1/5000. Second derivation: "
    "symbolic",
)
def step_29(g: F = F(1, 10)) -> bool:
    w, x = _SMALL, F(1, 10)
    return require(-((w * g + x) ** 2) < -((w * g) ** 2) - x**2, "violated within the budgets")


@states(
    "App. B.2, (30)–(31)",
    "‖(I − W_DEQ)⁻¹x‖² ≤ 2‖x‖² + ‖W_DEQ‖_F²",
    "holds if ‖W_DEQ‖_F ≤ 1 − 1/√2 (summed over samples: E_H ≤ 0.34)",
    "short proof; false from 0.35 on summed, and at ‖W‖ = 3/10, ‖x‖ = 10; the paper's 0.01 is inside. Sign as in "
    "(30), (32)",
)
def step_30_31(limit: F = F(34, 100)) -> bool:
    """Proof. ‖(I−W)⁻¹x‖ ≤ ‖x‖/(1−w), and 1/(1−w)² ≤ 2 iff w ≤ 1 − 1/√2 = 0.2928…. Summed under Σ‖x‖² = X ≤ N E_H: where
    1/(1−w)² > 2 the worst is X = N E_H, and w² − E_H(1/(1−w)² − 2) falls in w ≤ E_H (its derivative is 2w −
    2E_H/(1−w)³ < 0), so the worst is w = E_H: the claim is 1/(1−E_H)² − 2 ≤ E_H. The paper's route to it, (29), is
    false.
    """
    require(1 / (1 - F(2928, 10000)) ** 2 < 2 < 1 / (1 - F(2929, 10000)) ** 2, "1 − 1/√2")
    for e in (_SMALL, F(3, 10), F(34, 100), F(35, 100), F(2, 5)):
        require((1 / (1 - e) ** 2 - 2 <= e) == (e <= limit), f"summed, E_H = {e}")
    return require(100 / F(7, 10) ** 2 > 200 + F(9, 100), "‖W‖ = 3/10, ‖x‖ = 10")


@states(
    "App. B.2, (32), second line",
    "−(K/C5) Σ_i (1/K² Σ_k ‖h0_k,i‖² − ‖h̄0_i‖²)",
    "typo",
    "the first line and the third need Σ_k ‖h0_k,i‖² − K‖h̄0_i‖²; exact on rational vectors",
)
def step_32(power: int = 0) -> bool:
    """Σ_k ‖h_k − h̄‖² = Σ_k ‖h_k‖² − K‖h̄‖², and under the budget Σ_iΣ_k ‖h0_k,i‖² ≤ N E_H gives the third line's
    −(NK/C5)E_H.
    """
    h = exact.random_matrix(random.Random(22), 3, 5)
    mean = [[sum(row) / 5] for row in h]
    spread = sum(sum((x - m[0]) ** 2 for x in row) for row, m in zip(h, mean, strict=True))
    require(spread == exact.norm2(h) / F(5) ** power - 5 * exact.norm2(mean), "the spread around the mean")
    return require(spread != exact.norm2(h) / 25 - exact.norm2(mean), "as printed")


@states(
    "App. B.2, (36)",
    "W_DEQ G^{j−1} = h̄0_i − h0_k,i",
    "false",
    "needed for all j, x = h̄0_i − h0_k,i and G⁰ = x: j = 1 gives Wx = x, j = 2 gives 2Wx = x, so x = 0; in the limit "
    "it needs ‖W_DEQ‖ ≥ 1/2. Second derivation: symbolic. The paper's proof of the DEQ half of Theorem 3.1 rests on it",
)
def step_36(x: F = F(1, 10)) -> bool:
    """G^j = W G^{j−1} + x. If W G⁰ = x then G¹ = 2x, W G¹ = 2Wx = 2x ≠ x unless x = 0: the centred inputs are 0, so
    all classes have the same features for each i, and the loss is log K. In one dimension: the only w with w·x = x is
    1, beyond the budget, and there w·G¹ = 2x.
    """
    w = F(1)
    g1 = w * x + x
    require(w * x == x and w * g1 != x, "j = 1 and j = 2 contradict each other")
    return require(w > _SMALL and F(1, 2) > _SMALL, "and exceed the budget")
