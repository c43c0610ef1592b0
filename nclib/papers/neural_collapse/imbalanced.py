"""Theorem 4.1 and Proposition 4.2: what the paper states for imbalanced classes."""

import random
from fractions import Fraction as F

from nclib.papers import exact
from nclib.papers.certify import proofs_reading, require, states
from nclib.papers.exact import Interval, Matrix, centring, exp, identity, inverse, log, matrix, norm2, random_matrix
from nclib.papers.neural_collapse import balanced


@states("§4, Theorem 4.1, NC1", "W_EX h0_k,i = W_EX h0_k and f(h0_k,i; W_DEQ) = f(h0_k; W_DEQ)", "holds")
def thm41_nc1(share: F = F(1)) -> bool:
    """Its misprint corrected: h0_k is the mean (printed as a sum). H0 free; with H0 given it fails (h0_given). The
    proof of Theorem 3.1, NC1, which asks nothing of n_k.

    Proof. That of `balanced.thm31_nc1`: averages are taken class by class, each with its own n_k. In the objective
    each sample has a positive weight, so a budget that is slack makes the loss stationary in each sample's feature.
    """
    return balanced.thm31_nc1(share)


@states(
    "§4, Theorem 4.1, NC2, and (59)",
    "if E_H < 2S_ij − m_ij < 1/(1−E_H) is satisfied, … ‖(W_EX H0)ᵀ(W_EX H0) − S‖_F > ‖fᵀ(H0; W_DEQ) f(H0; W_DEQ) − "
    "S‖_F holds",
    "vacuous",
)
def thm41_nc2(least: F = F(1, 100), share: F = F(1, 2), given: F = F(5, 2), budget: F = F(1, 2)) -> bool:
    """Read for all i, j: Σ_ij (2S_ij − m_ij) = −‖Σ h0_k‖² ≤ 0 < K² E_H, so no H0 meets the premise, with S the Gram
    matrix or as Definition 2.1 prints it. For i ≠ j or i = j alone some readings meet it; there the conclusion is
    false at K = 2 in an instance of each (series from 0).

    Proof. (a) All i, j, as the Frobenius norm has them: a Gram matrix of a simplex ETF, S = α² K/(K−1) (I − 11ᵀ/K),
    and Definition 2.1's S = α √(K/(K−1)) P (I − 11ᵀ/K), for D = K, have S1 = 0, for every α and P, and Σ_ij m_ij =
    ‖Σ_k h0_k‖². So the sum of 2S_ij − m_ij is −‖Σ h0_k‖² ≤ 0. The premise makes it larger than K² E_H > 0. No H0 meets
    it.
    (b) i ≠ j alone, S the Gram matrix, S_ij = −α²/(K−1): the premise gives Σ_{i≠j} m_ij < −K(K−1)E_H − 2Kα², and Σ_ij
    m_ij ≥ 0, so the mean of ‖h0_k‖² exceeds (K−1) E_H + 2α² > E_H: not with inputs bounded by E_H. With free inputs
    HᵀH is the same in both models (`thm41_nc3`), so the strict inequality fails.
    In (c) and (e) K = 2 and inputs are
    bounded, any R. By (c) of `thm41_nc3`, h0_k = y_k c_k x̂ and h_k = y_k c_k g v̂ with c_k > 0, y = (1, −1), c_1² +
    c_2² = 2E_H = 2E, g = E for the explicit layer and 1/(1 − E) for the DEQ from 0. So HᵀH has the norm n = 2E g², and
    ‖h_1 − h_2‖² lies between n and 2n.
    (c) i ≠ j alone, S as printed with P = I and α = −s/√2: S = −s (I − 11ᵀ/2), s = 1/2, E = 1/100. 2S_12 − m_12 = s +
    c_1 c_2 lies between s and s + E: the premise is met. ‖HᵀH − S‖² = n² + s ‖h_1 − h_2‖² + s² is at most (n + s)² for
    the explicit layer and at least n² + sn + s² for the DEQ, which is more.
    (d) i ≠ j alone, S the Gram matrix [[1, −1], [−1, 1]], H0 given without a budget: h0 = 5/2, −1 in one dimension, E
    = 1/10. 2S_12 − m_12 = 1/2 is between E and 1/(1 − E). Both margins grow with the map, so h = E h0 and h = h0/(1 −
    E) at the minima, and the DEQ is further from S.
    (e) i = j alone, S the same Gram matrix, E = 1/2: 2S_kk − m_kk = 2 − c_k² with 0 < c_k² < 2E = 1 is between 1/2 and
    2: the premise is met. ‖HᵀH − S‖² = n² − 2‖h_1 − h_2‖² + 4 is at most n² − 2n + 4 = 57/16 for the explicit layer, n
    = 1/4, and at least n² − 4n + 4 = 4 for the DEQ, n = 4: the DEQ is further from S. (At E_H = 1/100 and K = 3, 4 the
    conclusion was true for i = j in the settings that were computed.)
    """
    rng = random.Random(7)
    for num_classes, d in ((2, 3), (3, 2), (5, 7), (10, 12)):
        for _ in range(8):
            h0 = random_matrix(rng, d, num_classes)
            gram, etf = h0.T @ h0, F(rng.randint(1, 40), rng.randint(1, 9)) * centring(num_classes)
            for s in (etf, -1 * exact.random_orthogonal(rng, num_classes) @ etf):  # the second as printed
                total = sum(map(sum, 2 * s - gram))
                require(total == -sum(sum(row) ** 2 for row in h0), "(a) the sum is −‖Σ h0_k‖²")
                require(total < num_classes**2 * least, "(a) and stays below K² E_H")
    for num_classes in (2, 3, 10, 100):  # inputs of ETF shape, ‖h0_k‖² = n, m_ij = −n/(K−1), meet the bound of (b)
        bound = (num_classes - 1) * least + 2 * 3  # α² = 3
        for n in (bound, bound * F(101, 100)):
            between = (n - 2 * 3) / (num_classes - 1)  # 2S_ij − m_ij
            require((between > least) == (n > bound) and n > least, "(b) needs mean ‖h0_k‖² > (K−1) E_H + 2α²")
    e, s = F(1, 100), share
    near, far = 2 * e * e**2, 2 * e / (1 - e) ** 2
    require(e < s and s + e < 1 / (1 - e), "(c) the premise is met")
    require((near + s) ** 2 < far**2 + s * far + s**2, "(c) the DEQ is further from S")
    e, h0 = F(1, 10), Matrix([[given, -1]])
    require(e < -2 - h0[0][0] * h0[0][1] < 1 / (1 - e), "(d) the premise is met")
    near, far = (norm2(g**2 * (h0.T @ h0) - 2 * centring(2)) for g in (e, 1 / (1 - e)))
    require(near < far, "(d) the DEQ is further from S")
    e = budget
    near, far = 2 * e * e**2, 2 * e / (1 - e) ** 2
    require(e <= 2 - 2 * e and 1 / (1 - e) >= 2, "(e) the premise is met for both k")
    return require(near**2 - 2 * near + 4 < far**2 - 4 * far + 4, "(e) the DEQ is further from S")


@states(
    "§4, Theorem 4.1, NC3, and (62)",
    "when E_H/(E_W+E_H) + E_H(1−E_H) < 2 is satisfied, … cos(f(h_k; W_DEQ), w_k)/cos(W_EX h_k, w_k) > 1",
    "false",
)
def thm41_nc3(ceiling: F = F(5, 4), same: F = F(1), spent: F = F(1), most: F = F(3, 4)) -> bool:
    """The condition holds for all E_W, E_H > 0. As printed, H0 free and the budget on h: both models have the same,
    unique Z, WWᵀ ∝ (ZZᵀ)^½ and HᵀH ∝ (ZᵀZ)^½, so the ratio is exactly 1 wherever it is defined (D ≥ K). Other readings
    at K = 2: inputs bounded, E_H < 1: 1; H0 given, series from 0: below 3/4 in a class.

    Proof. (a) E_H/(E_W+E_H) < 1 and E_H(1−E_H) ≤ 1/4 for all E_W, E_H > 0.
    (b) As printed: H0 free, the budget on h, D ≥ K, any K, K_A, R, E_W and E_H. Both problems allow the same (W, h)
    (`balanced.thm_b3`); by `thm41_nc1` let H have one column a class. The loss f is a convex function of Z = WH, and
    the attainable Z are those with ‖Z‖_* ≤ B. f has no stationary point, since no softmax is 1, so minimisers have
    ‖Z‖_* = B. A minimiser has 1ᵀZ = 0: ZᵀZ = (CZ)ᵀ(CZ) + (Zᵀ1)(Zᵀ1)ᵀ/K, so otherwise CZ, with the same loss, has a
    smaller nuclear norm. Z is unique: f is strictly convex but for constants added to columns, so two minimisers
    differ by 1cᵀ, and 1ᵀZ = 0 for both gives c = 0. Let Z = P D Qᵀ with D > 0 diagonal. B = tr D = ⟨WᵀP, HQ⟩ ≤ ‖WᵀP‖_F
    ‖HQ‖_F ≤ ‖W‖_F ‖H‖_F ≤ B. So there is equality: HQ = κWᵀP, κ = √(E_H/E_W), W = PPᵀW, H = HQQᵀ. Then D = PᵀWHQ =
    κPᵀWWᵀP, so WWᵀ = PDPᵀ/κ = (ZZᵀ)^½/κ and HᵀH = κQDQᵀ = κ(ZᵀZ)^½. So cos(h_k, w_k) = Z_kk/√((ZZᵀ)^½_kk (ZᵀZ)^½_kk)
    is the same number in both models and at every minimiser. Where a w_k or h_k is 0, as those of the minority at the
    paper's budgets, a cosine does not exist.
    (c) Remark: K = 2, inputs bounded, 0 < E_H < 1, any R and E_W. ((49) and (53) need K_A > K_B and K_A > 1.) With v =
    (w_1 − w_2)/2 and y = (1, −1) the loss is a weighted sum of log(1 + exp(−2 y_k v·h_k)). At a minimiser w_1 = −w_2 =
    v, because ‖w_1‖² + ‖w_2‖² = 2‖v‖² + ‖w_1+w_2‖²/2 and the loss falls strictly with the norm of v. h_k = A h0_k:
    only v·A h0_k counts, so h0_k = y_k c_k x̂, x̂ ∥ Aᵀv, with margins c_k ‖Aᵀv‖, and ‖Aᵀv‖ is maximal. No c_k is 0: on
    the sphere c_1² + c_2² = const the loss falls to first order when a c_k leaves 0. Explicit: ‖Mᵀv‖ ≤ E_H ‖v‖ with
    equality iff M = E_H v̂x̂ᵀ. DEQ from 0: ‖(I−M)⁻ᵀv‖ ≤ ‖v‖/(1−E_H) with equality iff M = E_H v̂v̂ᵀ (from 1: E_H/(1−E_H),
    the same M). In all h_k = y_k c v, c > 0: both cosines are 1.
    (d) Remark: H0 given, K = 2, h0_k = c e_k, E_H = 1/100, series from 0: the explicit columns M e_k are free within
    ‖M‖_F ≤ E_H, so h_k = y_k c_k v and the cosine is 1. For the DEQ ‖h_k − h0_k‖ ≤ r/(1−r) ‖h0_k‖ with r ≤ E_H,
    whatever minimises, so its unit features differ by at most √2 + 4r/(1−r) < 3/2, and cos_1 + cos_2 = v̂·(ĥ_1 − ĥ_2) <
    3/2: below 3/4 in a class.
    """
    for e_w in (F(1, 10**6), F(1, 100), F(1), F(10**6)):
        for e_h in (F(1, 100), F(1, 2), F(99, 100), F(1), F(30)):
            require(e_h / (e_w + e_h) + e_h * (1 - e_h) < ceiling <= F(5, 4), "(a) the condition holds")
            require(F(1, 4) - e_h * (1 - e_h) == (e_h - F(1, 2)) ** 2, "(a) E_H(1−E_H) ≤ 1/4")
    rng = random.Random(8)
    for num_classes in (3, 4):
        z = random_matrix(rng, num_classes, num_classes)
        centred, column = centring(num_classes) @ z, z.T @ matrix(num_classes, 1, lambda i, j: 1)
        both = centred.T @ centred + F(1, num_classes) * (column @ column.T)
        require(z.T @ z == both, "(b) a common part of a column costs norm")
        p, q, turned = (exact.random_orthogonal(rng, num_classes) for _ in range(3))
        root = exact.diagonal([F(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(num_classes)])  # D^½
        cosines = []
        for turn in (identity(num_classes), turned):
            w, h = p @ root @ turn, turn.T @ root @ q.T
            require(w @ h == p @ root @ root @ q.T, "(b) the same logits")
            require(norm2(w) == norm2(h) == norm2(root), "(b) ‖W‖² = ‖H‖² = ‖Z‖_*")
            ww, hh, wh = w @ w.T, h.T @ h, w @ h
            cosines.append([wh[k][k] ** 2 / (ww[k][k] * hh[k][k]) for k in range(num_classes)])
        require(cosines[0] == [same * x for x in cosines[1]], "(b) the cosines of balanced factors")
    v = Matrix([[3], [4], [0]])  # ‖v‖ = 5
    w1, w2 = random_matrix(rng, 3, 1), random_matrix(rng, 3, 1)
    parts = 2 * norm2(F(1, 2) * (w1 - w2)) + norm2(w1 + w2) / 2
    require(norm2(w1) + norm2(w2) == parts, "(c) the common part of w_1 and w_2 is wasted")
    r = F(1, 2)
    along = r / 25 * (v @ v.T)
    require(norm2(along) == spent * r**2, "(c) M = E_H v̂v̂ᵀ spends the budget")
    require(inverse(identity(3) - along).T @ v == 1 / (1 - r) * v, "(c) and gives ‖v‖/(1−E_H)")
    r = F(1, 100)
    return require((2 * most - 4 * r / (1 - r)) ** 2 > 2, "(d) √2 + 4r/(1−r) < 3/2")


@states(
    "§4, Proposition 4.2",
    "R → 1: majority features collapse to a K_A-simplex ETF; minority classes: w_k = 0, h = 0",
    "holds if √(E_W E_H) ≤ E0",
)
def prop42(e0: tuple[F, ...] = (F(4717, 10**4), F(17627, 10**4), F(43628, 10**4))) -> bool:
    """Our proof (duality), H0 free, the budget on h: E0 = 0.4717…, 1.7627…, 4.3628… at K = 10, K_A = 3, 5, 7, so the
    paper's 0.01 is inside; beyond it fails (K = 4, K_A = 3, √(E_W E_H) = 2). H0 given: its DEQ half fails (h0_given).

    As printed (budget on h), K_A ≥ 2; E0 = K_A(K_A−1)/K · log(K_A σ/(K_B(1−σ))), σ = √(K_B/K).

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
        minority = 10 - majority
        sigma = exact.sqrt(F(minority, 10))
        value = log(majority * sigma / (minority * (1 - sigma))) * F(majority * (majority - 1), 10)
        require(value > printed and value < printed + F(1, 10**4), f"E0 at K_A = {majority}: {value}")
        require(value > F(1, 100), "the paper's budgets are inside")
    # the parts of the gradient, exactly, for arbitrary positive exponentials of own, other and minority logits
    for majority, minority, own, other in ((3, 1, F(7), F(1, 2)), (3, 7, F(3), F(2, 3)), (5, 5, F(9, 8), F(1))):
        size = majority + minority
        d = own + (majority - 1) * other + minority
        column = [own / d - 1, *[other / d] * (majority - 1), *[1 / d] * minority]
        share, kept = minority / d, (majority * other + minority) / d  # P_B and 1 − s_A
        g = [-share / majority] * majority + [share / minority] * minority
        flat = [kept * (F(1, majority) - (k == 0)) for k in range(majority)] + [F(0)] * minority
        require(column == [x + y for x, y in zip(flat, g, strict=True)], "the gradient splits as stated")
        require(sum(x * x for x in g) * majority == share**2 * size / minority, "norm of the second part")
    # K = 4, K_A = 3: σ = 1/2, optimal iff exp(a/3) ≤ 3, a = 2 √(E_W E_H)
    return require(exp(F(4)) > 27 and exp(F(1)) < 3, "fails at √(E_W E_H) = 2, holds at 3/2")


@proofs_reading(
    "§4, Theorem 4.1, NC3, with the distance of (14) in place of the classes' cosines, K = 2",
    "DEQ is superior in terms of NC compared to explicit neural network",
    "holds if K = 2, inputs bounded, R > 1 and E_H < 1",
)
def thm41_nc3_eq14(ratio: int = 10) -> bool:
    """Series from 0 or 1: the cosine of the whole matrices Wᵀ and H is strictly larger for the DEQ. Our proof;
    enclosures at R = 10, E_W = 2, E_H = 1/4. For K ≥ 3 the other way round in a setting that was computed.

    (14) is ‖Wᵀ/‖W‖ − H/‖H‖‖ = √(2 − 2c) with the cosine c of the whole matrices.

    Proof. By (c) of `thm41_nc3`, w_k = y_k v and h_k = y_k c_k g v̂, c_1² + c_2² = 2E_H, g = E_H, 1/(1−E_H) or
    E_H/(1−E_H), ‖v‖² = E_W. With c_1 = √(2E_H) cos θ, c_2 = √(2E_H) sin θ, 0 < θ < π/2, the cosine is cos(θ − π/4),
    and the loss is a multiple of R log(1 + exp(−α cos θ)) + log(1 + exp(−α sin θ)), α = 2g √(2E_W E_H). It is
    stationary iff F(θ, α) = log cot θ + log(1 + exp(α cos θ)) − log(1 + exp(α sin θ)) = log R. F falls in θ: each of
    its terms does. F(π/4) = 0 < log R and F → ∞ for θ → 0, so there is one θ, below π/4. There F grows in α: its
    derivative is x s(αx) − y s(αy) with x = cos θ > y = sin θ and the increasing logistic function s. So θ grows with
    α towards π/4, and the cosine with it. 1/(1−E_H) > E_H and E_H/(1−E_H) > E_H: the DEQ's is the larger.
    Instance: √(2E_W E_H) = 1, α = 1/2; 8/3 and 2/3. With tan(θ/2) = 67/1000, F < log 10 for the explicit layer, whose
    θ is smaller, and F > log 10 for the DEQ, whose θ is larger.
    """
    t = F(67, 1000)
    x, y = (1 - t**2) / (1 + t**2), 2 * t / (1 + t**2)
    require(x**2 + y**2 == 1 and y < x, "an angle below π/4")
    e, log_r = F(1, 4), log(F(ratio))
    explicit, *deq = (
        log(x / y) + log(1 + exp(2 * g * x)) - log(1 + exp(2 * g * y)) for g in (e, 1 / (1 - e), e / (1 - e))
    )
    require(explicit < log_r, "the explicit layer's angle is smaller")
    return require(all(slope > log_r for slope in deq), "the DEQ's angle is larger")


def collapsed(majority: int, factor: F = F(1)) -> tuple[Interval, Interval]:
    """1 − s_A, and P_B, the majority's probability of the minority, at Z° = a C_A ⊕ 0, a (K_A−1) = factor · K/100."""
    a = factor * F(1, 10) / (majority - 1)
    own, other = exp(a * (1 - F(1, majority))), exp(-a / majority)
    whole = own + (majority - 1) * other + 10 - majority
    return 1 - (own - other) / whole, (10 - majority) / whole


@states("App. C.2, below (54)", "NC2 and NC3 do not hold under imbalanced dataset conditions", "false")
def after_54(factor: F = F(1)) -> bool:
    """Read of every budget, H0 free and the budget on h: at the paper's own NC3 holds, W ∥ Hᵀ at every minimiser, K =
    10, K_A = 3, 5, 7, R = 10, 50, 100 (gradient).

    As printed, E_W = E_H = 1/100.

    Proof. Z° = a C_A ⊕ 0, a (K_A−1) = K/100 = B. Its gradient splits into −w_A(1−s_A) on C_A, −w_B on C_B (softmax
    is uniform on minority samples), and a 2×2 block on 1_A, 1_B: majority column w_A(−P_B/K_A; P_B/K_B), minority
    column w_B(1/K; −K_A/(K K_B)). If the second and third have norms of at most λ = w_A(1−s_A), Z° is a minimiser
    (`balanced.thm31_nc2`). Z° is the only one: the loss is strictly convex but for constants added to columns, and
    Z° + 1cᵀ has a larger nuclear norm unless c = 0. Z° is symmetric and positive semidefinite, so H = √(E_H/E_W) Wᵀ
    by the argument of `balanced.thm31_nc3`. (NC2 for all K classes does not hold: minority classifiers and features
    are 0. Nor is this to say that NC3 holds at other budgets.)
    """
    for majority in (3, 5, 7):
        minority, (kept, p_b) = 10 - majority, collapsed(majority, factor)
        for ratio in (10, 50, 100):
            w_a, w_b = F(ratio, majority * ratio + minority), F(1, majority * ratio + minority)
            multiplier = w_a * kept
            block = (p_b * w_a) * (p_b * w_a) * majority * (F(1, majority) + F(1, minority))
            block = block + w_b**2 * minority * (F(majority, 100) + F(majority**2, 100 * minority))
            require(multiplier > w_b, f"K_A = {majority}, R = {ratio}: the minority's part of the gradient")
            require(block < multiplier * multiplier, f"K_A = {majority}, R = {ratio}: the block of the gradient")
    return True
