"""Theorem 4.1 and Proposition 4.2: what the paper states for imbalanced classes."""

from __future__ import annotations

import random
from fractions import Fraction as F

from nclib.papers import exact
from nclib.papers.certify import require, states
from nclib.papers.neural_collapse import balanced


@states(
    "§4, Theorem 4.1, NC1",
    "W_EX h0_k,i = W_EX h0_k and f(h0_k,i; W_DEQ) = f(h0_k; W_DEQ)",
    "holds",
    "the proof of Theorem 3.1 NC1, which asks nothing of n_k; its equalities for unequal n_k",
)
def thm41_nc1(share: F = F(1)) -> bool:
    """Proof. That of `balanced.thm31_nc1`: averages are taken class by class, each with its own n_k. In the objective
    each sample has a positive weight, so a budget that is slack makes the loss stationary in each sample's feature.
    """
    rng = random.Random(6)
    sizes = (1, 5, 2)
    h = [exact.random_matrix(rng, 3, n) for n in sizes]
    means = [[[sum(row) / n] for row in block] for n, block in zip(sizes, h, strict=True)]
    before = sum(exact.norm2(block) / n for n, block in zip(sizes, h, strict=True))
    after = sum(exact.norm2(mean) for mean in means)
    spread = sum(
        exact.norm2([[x - m[0] for x in row] for row, m in zip(block, mean, strict=True)]) / n
        for n, block, mean in zip(sizes, h, means, strict=True)
    )
    require(before - after == share * spread and spread > 0, "the budget of (5) falls by the spread within classes")
    return balanced.thm31_nc1()


@states(
    "§4, Theorem 4.1, NC2, and (59)",
    "if E_H < 2S_ij − m_ij < 1/(1−E_H), then ‖(W_EX H0)ᵀ(W_EX H0) − S‖_F > ‖fᵀf − S‖_F",
    "vacuous",
    "Σ_ij (2S_ij − m_ij) = −‖Σ h0_k‖² ≤ 0 < K² E_H: no H0 meets the premise; for i ≠ j alone it needs inputs beyond "
    "their budget, and with free inputs both sides are equal (thm_b3); met for some i, j only, the conclusion fails "
    "(K = 2, E_H = 9/10)",
)
def thm41_nc2(least: F = F(1, 100)) -> bool:
    """Proof. (a) All i, j, as the Frobenius norm has them: S = α² K/(K−1) (I − 11ᵀ/K) has S1 = 0, at every scale α
    and for every ETF, and Σ_ij m_ij = ‖Σ_k h0_k‖². So the sum of 2S_ij − m_ij is −‖Σ h0_k‖² ≤ 0. The premise makes
    it larger than K² E_H > 0. No H0 meets it, in any reading.
    (b) For i ≠ j alone, S_ij = −α²/(K−1): the premise gives Σ_{i≠j} m_ij < −K(K−1)E_H − 2Kα², and Σ_ij m_ij ≥ 0, so the
    mean of ‖h0_k‖² exceeds (K−1) E_H + 2α² ≥ E_H: not with bounded inputs. With free inputs both models have the same
    minimisers (`balanced.thm_b3`), so the strict inequality fails.
    (c) The conclusion alone: K = 2, inputs bounded, E_H = E < 1, S = [[1, −1], [−1, 1]]. By `thm41_nc3` H has rank
    one, so ‖HᵀH‖_F = ‖H‖_F², which is at most 2E·E² for the explicit layer and 2E/(1−E)² for the DEQ. Since ⟨S, HᵀH⟩
    ≥ 0, the explicit distance squared is at most 4 + 4E⁶; the DEQ's distance is at least 2E/(1−E)² − 2. At E =
    9/10: 178² > 4 + 4E⁶. Balanced, c_1 = c_2 and HᵀH = (‖H‖_F²/2) S: the distances are 2|E³ − 1| and 2|E/(1−E)² −
    1|, at E = 1/2 they are 7/4 and 2.
    (d) The premise for some i, j only: there (c) refutes the theorem. The smaller ‖h0_k‖² is m_kk ≤ E, so at E = 9/10
    2S_kk − m_kk lies between 11/10 and 2, within (9/10, 10); balanced, at E = 1/2, it is 3/2 for both k, within
    (1/2, 2).
    """
    rng = random.Random(7)
    for num_classes, d in ((2, 3), (3, 2), (5, 7), (10, 12)):
        for _ in range(8):
            h0 = exact.random_matrix(rng, d, num_classes)
            gram = exact.product(exact.transpose(h0), h0)
            etf = exact.centring(num_classes, F(rng.randint(1, 40), rng.randint(1, 9)))
            total = sum(2 * s - m for r, q in zip(etf, gram, strict=True) for s, m in zip(r, q, strict=True))
            require(total == -sum(sum(row) ** 2 for row in h0), "the sum is −‖Σ h0_k‖²")
            require(total < num_classes**2 * least, "and stays below K² E_H")
    for num_classes in (2, 3, 10, 100):
        require((num_classes - 1) * least >= least > 0, "i ≠ j alone: needs mean ‖h0_k‖² > (K−1) E_H ≥ E_H")
    e = F(9, 10)
    require((2 * e / (1 - e) ** 2 - 2) ** 2 > 4 + 4 * e**6, "K = 2, E_H = 9/10: the DEQ is farther")
    require(e < 2 - e and 1 / (1 - e) > 2, "where the premise is met for one k")
    e = F(1, 2)
    require(e < 2 - e < 1 / (1 - e), "balanced, E_H = 1/2: where it is met for both k")
    return require(abs(e / (1 - e) ** 2 - 1) > abs(e**3 - 1), "K = 2, balanced, E_H = 1/2: the DEQ is farther")


@states(
    "§4, Theorem 4.1, NC3, and (62)",
    "when E_H/(E_W+E_H) + E_H(1−E_H) < 2: cos(f(h_k), w_k)/cos(W_EX h_k, w_k) > 1",
    "false",
    "the condition always holds (left side < 5/4); K = 2: both cosines are exactly 1 at every minimiser, any R and "
    "budgets, so the ratio is 1; H0 given: below 3/4. Second derivation: duality at K = 10, K_A = 3, R = 100",
)
def thm41_nc3(ceiling: F = F(5, 4)) -> bool:
    """Proof. (a) E_H/(E_W+E_H) < 1 and E_H(1−E_H) ≤ 1/4 for all E_W, E_H > 0.
    (b) K = 2, one majority and one minority class, any R, E_W > 0, 0 < E_H < 1. With v = (w_1 − w_2)/2 and y = (1,
    −1) the loss is a weighted sum of log(1 + exp(−2 y_k v·h_k)). At a minimiser w_1 = −w_2 = v, because ‖w_1‖² +
    ‖w_2‖² = 2‖v‖² + ‖w_1+w_2‖²/2 and the loss falls strictly with the length of v.
    As printed: for given v and lengths of h_k the loss is least iff h_k = y_k c_k v, c_k ≥ 0, in both problems,
    which have the same minimisers (W, h). No c_k is 0: on the sphere c_1² + c_2² = const the loss falls to first
    order when a c_k leaves 0. So cos(h_k, w_k) = 1 in both classes, and the ratio is 1.
    Inputs bounded, h_k = A h0_k: only v·A h0_k counts, so h0_k = y_k c_k Aᵀv with margins c_k ‖Aᵀv‖², and ‖Aᵀv‖ is
    maximal. Explicit: ‖Mᵀv‖ ≤ E_H ‖v‖ with equality iff M = E_H v̂x̂ᵀ. DEQ from 0: ‖(I−M)⁻ᵀv‖ ≤ ‖v‖/(1−E_H) with
    equality iff M = E_H v̂v̂ᵀ (from 1: E_H/(1−E_H), the same M). In all h_k = y_k c v, c > 0: both cosines are 1.
    (c) H0 given, h0_k = c e_k, E_H = 1/100: the explicit columns M e_k are free within ‖M‖_F ≤ E_H, so h_k = y_k c_k
    v and the cosine is 1. For the DEQ ‖h_k − h0_k‖ ≤ r/(1−r) ‖h0_k‖ with r ≤ E_H, whatever minimises, so its unit
    features differ by at most √2 + 4r/(1−r) < 3/2, and cos_1 + cos_2 = v̂·(ĥ_1 − ĥ_2) < 3/2: below 3/4 in a class.
    """
    for e_w in (F(1, 10**6), F(1, 100), F(1), F(10**6)):
        for e_h in (F(1, 100), F(1, 2), F(99, 100), F(1), F(30)):
            require(e_h / (e_w + e_h) + e_h * (1 - e_h) < ceiling <= F(5, 4), "(a) the condition holds")
            require(F(1, 4) - e_h * (1 - e_h) == (e_h - F(1, 2)) ** 2, "(a) E_H(1−E_H) ≤ 1/4")
    rng, v = random.Random(8), [[F(3)], [F(4)], [F(0)]]  # ‖v‖ = 5
    w1, w2 = exact.random_matrix(rng, 3, 1), exact.random_matrix(rng, 3, 1)
    half = exact.scaled(F(1, 2), exact.plus(w1, w2, -1))
    require(
        exact.norm2(w1) + exact.norm2(w2) == 2 * exact.norm2(half) + exact.norm2(exact.plus(w1, w2)) / 2,
        "(b) the common part of w_1 and w_2 is wasted",
    )
    r = F(1, 2)
    along = exact.scaled(r / 25, exact.product(v, exact.transpose(v)))
    layer = exact.inverse(exact.plus(exact.identity(3), along, -1))
    require(exact.norm2(along) == r**2, "(b) M = E_H v̂v̂ᵀ spends the budget")
    require(exact.product(exact.transpose(layer), v) == exact.scaled(1 / (1 - r), v), "(b) and gives ‖v‖/(1−E_H)")
    for _ in range(30):
        m = exact.scaled(F(1, 4), exact.matrix(3, 3, lambda i, j: F(rng.randint(-5, 5), 10)))  # ‖M‖_F ≤ 3/8
        at = exact.product(exact.transpose(exact.inverse(exact.plus(exact.identity(3), m, -1))), v)
        require(exact.norm2(exact.product(exact.transpose(m), v)) <= exact.norm2(m) * 25, "(b) ‖Mᵀv‖ ≤ ‖M‖ ‖v‖")
        require(exact.norm2(at) * F(5, 8) ** 2 <= 25, "(b) ‖(I−M)⁻ᵀv‖ ≤ ‖v‖/(1−‖M‖)")
    r = F(1, 100)
    return require((F(3, 2) - 4 * r / (1 - r)) ** 2 > 2, "(c) √2 + 4r/(1−r) < 3/2")


def _threshold(num_classes: int, majority: int) -> exact.Interval:
    """E0 of Proposition 4.2."""
    minority = num_classes - majority
    sigma = exact.sqrt(F(minority, num_classes))
    return exact.log(majority * sigma / (minority * (1 - sigma))) * F(majority * (majority - 1), num_classes)


@states(
    "§4, Proposition 4.2",
    "R → 1: majority features collapse to a K_A-simplex ETF; minority classes: w_k = 0, h = 0",
    "holds if √(E_W E_H) ≤ E0",
    "our proof (duality): E0 = 0.472, 1.763, 4.363 at K = 10, K_A = 3, 5, 7, so the paper's 0.01 is inside; beyond it "
    "fails (K = 4, K_A = 3, √(E_W E_H) = 2: e⁴ > 27)",
)
def prop42(e0: tuple[F, ...] = (F(472, 1000), F(1763, 1000), F(4363, 1000))) -> bool:
    """As printed (budget on h), K_A ≥ 2; E0 = K_A(K_A−1)/K · log(K_A σ/(K_B(1−σ))), σ = √(K_B/K).

    Proof. In the limit only the majority counts: minimise f(Z) = (1/K_A) Σ_{k≤K_A} CE(z_k, k), ‖Z‖_* ≤ B. Take Z° =
    a C_A ⊕ 0, a (K_A−1) = B. With D the sum of exponentials of a majority column, P_B = K_B/D its probability of the
    minority and 1 − s_A = (K_A e^{−a/K_A} + K_B)/D, the gradient is 1/K_A times −(1−s_A) C_A ⊕ 0 plus g 1_Aᵀ, g =
    −(P_B/K_A) 1_A + (P_B/K_B) 1_B. The two parts act on orthogonal spaces; the second has norm P_B √(K/K_B). So Z°
    is optimal iff P_B √(K/K_B) ≤ 1 − s_A (`balanced.thm31_nc2` for the rest), that is √(K K_B) − K_B ≤ K_A
    e^{−a/K_A}, that is a ≤ K_A log(K_A σ/(K_B(1−σ))); and a = K √(E_W E_H)/(K_A−1). Minority columns are 0: the
    majority spends the whole budget (slack lemma), and appending a column that is not 0 enlarges the nuclear norm,
    as √(ZZᵀ + ccᵀ) has a larger trace. Minimisers for R → 1 converge to those of the limit (compactness). Beyond E0:
    the limit's minimiser is unique in its majority columns, so unchanged by permutations of the majority. With w_B = 0
    and centred majority features it could only be Z°, which is not optimal: the proposition fails.
    """
    for majority, printed in zip((3, 5, 7), e0, strict=True):
        value = _threshold(10, majority)
        require(value > printed - F(1, 2000) and value < printed + F(1, 2000), f"E0 at K_A = {majority}: {value}")
        require(value > F(1, 100), "the paper's budgets are inside")
    # the parts of the gradient, exactly, for arbitrary positive exponentials of own, other and minority logits
    for majority, minority, own, other in ((3, 1, F(7), F(1, 2)), (3, 7, F(3), F(2, 3)), (5, 5, F(9, 8), F(1))):
        size = majority + minority
        d = own + (majority - 1) * other + minority
        column = [(own if k == 0 else other) / d for k in range(majority)] + [1 / d] * minority
        column[0] -= 1
        share, kept = minority / d, (majority * other + minority) / d  # P_B and 1 − s_A
        g = [-share / majority] * majority + [share / minority] * minority
        flat = [-kept * (F(int(k == 0)) - F(1, majority)) for k in range(majority)] + [F(0)] * minority
        require(column == [x + y for x, y in zip(flat, g, strict=True)], "the gradient splits as stated")
        require(sum(g[:majority]) + sum(g[majority:]) == 0 and sum(flat) == 0, "orthogonal to 1")
        require(sum(x * x for x in g) * majority == share**2 * size / minority, "norm of the second part")
    # K = 4, K_A = 3: σ = 1/2, optimal iff exp(a/3) ≤ 3, a = 2 √(E_W E_H)
    require(exact.exp(F(4)) > 27 and exact.exp(F(1)) < 3, "fails at √(E_W E_H) = 2, holds at 3/2")
    return True
