"""What Sun & Shi (NeurIPS 2024) state, checked: one proof or counterexample for each statement.

The ten statements come first in each section, then what holds in other readings of the problems.
``nclib certify`` runs them all; `nclib.papers.certify` says what a certificate is. Steps of the
paper's proofs are listed in data/published/sun_shi_2024_steps.csv; their checks, and second
derivations of more statements, are at the git tag certificates-0.2 (commit a5222b61).

Readings of the problems (7) and (9). *As printed*: the mean of ‖h‖² over classes is at most E_H,
and the inputs H0 are free in each problem; the ten statements are judged so. *Proofs'*: the chains
(21) and (32) bound the inputs H0 by E_H; their conditions of equality name ‖h0‖² and ‖h‖².
*Inputs given*: H0 is the same for both models, as section 3.2 assumes before Theorem 3.1; B.1 does
not minimise over H0 either. It is printed too, so its certificates also say "as printed"; their
place names it.

In all readings mean ‖w_k‖² ≤ E_W and ‖W_EX‖_F, ‖W_DEQ‖_F ≤ E_H. The explicit layer is h = W_EX h0.
The linear DEQ is h = (I − W_DEQ)⁻¹ h0, the sum from i = 0 of section 3.2, or
h = W_DEQ (I − W_DEQ)⁻¹ h0, the sum from i = 1 of appendix B.1.

Notation: Z = W H are the logits, C_n = I − 11ᵀ/n, ‖·‖_* is the nuclear norm, and
‖WH‖_* ≤ ‖W‖_F ‖H‖_F ≤ B = K √(E_W E_H).
"""

import random
from decimal import Context, Decimal
from fractions import Fraction as F
from itertools import product
from math import prod

from nclib.papers.certify import require, second_derivation, states
from nclib.papers.exact import (
    Interval,
    Matrix,
    centring,
    cross_entropy,
    diagonal,
    etf_loss,
    exp,
    identity,
    inner,
    inverse,
    log,
    matrix,
    norm2,
    random_matrix,
    random_orthogonal,
    sqrt,
)

CLASSES = 10
BUDGET = F(1, 100)
"""The paper's E_W = E_H."""
RADIUS = CLASSES * BUDGET
"""B at the paper's budgets: the largest nuclear norm of the logits."""

PROOFS = "proofs'"
OURS = "ours"


# --- balanced classes: Lemma B.1, Remark B.2, Theorems 3.1 and B.3 --------------------------------


def _power_of_bound(own: F, others: list[F], p: F) -> tuple[F, int]:
    """exp(n · bound) of Lemma B.1, and the n = (K−1) · denominator of p that makes it rational."""
    count = len(others)
    a = p.numerator
    b = p.denominator
    margin = own ** (count * a) / prod(others) ** a
    constant = (p / count) ** (count * a) * (1 - p) ** (count * (b - a))
    return margin * constant, count * b


@states(
    "App. B.1, Lemma B.1, (15)–(17)", "log(δ_k/Σδ) ≤ M1 (log δ_k − mean of log δ_k′) + M2", "holds"
)
def lemma_b1(equality: F = F(1)) -> bool:
    """Its misprint corrected, as (17) does: (15) prints δ_k in the inner sum and is false so
    (step_15). Gibbs' inequality; 120 rational instances of (17), both sides as powers, and equality
    at the right weights.

    Read with the index of (17), δ_k′ in the inner sum.

    Proof. Let S = Σδ, p = C2/(C1+C2), q_k = 1 − p and q_j = p/(K−1) for j ≠ k. Since log x ≤ x − 1,
    Σ_j q_j log(δ_j/(q_j S)) ≤ Σ_j (δ_j/S − q_j) = 0, that is Σ_j q_j log δ_j − Σ_j q_j log q_j ≤
    log S. Subtract from log δ_k: log(δ_k/S) ≤ p (log δ_k − mean of log δ_j) + p log(p/(K−1)) +
    (1−p) log(1−p). The constant is M2 as printed after (17), because C3 = p/(K−1) and C1/(C1+C2) =
    1 − p. Equality holds iff δ_j = q_j S for all j.
    """
    rng = random.Random(1)
    for _ in range(120):
        count = rng.choice((1, 2, 4))
        others = [F(rng.randint(1, 30), rng.randint(1, 9)) for _ in range(count)]
        own = F(rng.randint(1, 60), rng.randint(1, 9))
        p = F(rng.randint(1, 5), 6)
        bound, power = _power_of_bound(own, others, p)
        softmax = own / (own + sum(others))
        require(softmax**power <= bound, f"(17) at δ = {own}, {others}, p = {p}")
    for num_classes, p in ((3, F(4, 5)), (10, F(9, 10)), (4, F(1, 3))):
        others = [p / (num_classes - 1)] * (num_classes - 1)
        bound, power = _power_of_bound(1 - p, others, p)
        require((1 - p) ** power == equality * bound, "equality at δ = q")
    return True


@states(
    "App. B.1, Remark B.2, (18)",
    "when C2/C1 = exp(Δ)/(K−1), the right term of the inequality in lemma B.1 reaches its maximum",
    "typo",
)
def remark_b2(printed: F = F(4), correct: F = F(1, 4)) -> bool:
    """The ratio is inverted, and the derivatives (18), from which its proof takes it, are inverted
    too; (24) has it right: C2/C1 = (K−1) exp(−Δ), and a minimum; K = 3, δ = (8, 1, 1).

    Proof. With p = r/(1+r), r = C2/C1, the right side is M(p) = p Δ + p log(p/(K−1)) + (1−p)
    log(1−p), and M″ = 1/(p(1−p)) > 0: its critical point is a minimum. M′ = Δ + log r − log(K−1)
    vanishes at r = (K−1) exp(−Δ). In (18) the logarithm has C2/C1 where the derivative has C1/C2.
    Set to 0 it gives the paper's ratio, and beyond that ratio it has the wrong sign. Solved for the
    logits, (24) h·w_k = h·w_k′ + log(C1(K−1)/C2) says exp(Δ) = (K−1) C1/C2, the correct ratio.

    Here exp(Δ) = 8: the correct ratio is 2/8, the paper's 8/2.
    """
    own = F(8)
    others = [F(1), F(1)]
    softmax = own / (own + sum(others))
    require(printed == own / 2, "the paper's ratio at Δ = log 8, K = 3")
    require(correct == 2 / own, "the correct ratio at Δ = log 8, K = 3")
    require(own == 2 / correct, "(24): exp(Δ) = (K−1) C1/C2")
    require(own == 2 * printed, "(18) is 0 at the paper's ratio: Δ = log((K−1) C2/C1)")
    bounds = {}
    for ratio in (F(1, 20), F(1, 5), correct, F(1, 3), printed, 2 * printed):
        bounds[ratio] = _power_of_bound(own, others, ratio / (1 + ratio))
    least, power = bounds[correct]
    require(least == softmax**power, "at the correct ratio the bound is attained")
    for ratio, (bound, other_power) in bounds.items():
        larger = bound**power > least**other_power
        require(larger or ratio == correct, f"larger at {ratio}: the correct ratio is a minimum")
    at_printed, power = bounds[printed]
    beyond, other_power = bounds[2 * printed]
    rises = beyond**power > at_printed**other_power
    require(rises, "larger still at twice the paper's ratio, where (18) says that it falls")
    return require(at_printed > 1, "at the paper's ratio the bound is positive: no evidence")


@states(
    "§3, Theorem 3.1, NC1", "W_EX h0_k,i = W_EX h0_k and f(h0_k,i; W_DEQ) = f(h0_k; W_DEQ)", "holds"
)
def thm31_nc1(share: F = F(1)) -> bool:
    """Its misprint corrected: h0_k is the mean (printed as a sum, false for n ≥ 2). H0 free, with
    the budget on h or on h0; with H0 given it fails (h0_given). Our proof (averages, slack); the
    paper's, of the DEQ half, rests on (36), which is false.

    For any numbers of samples n_k, H0 free, with the budget on h or on h0, explicit layer and DEQ
    alike.

    Proof. (a) Slack: at a minimiser with loss below log K, no budget on features (or inputs) is
    slack. Otherwise the loss is stationary in them: Wᵀ(p_k − e_k) = 0 for the softmax p_k of each
    sample (times the invertible map, or W_EX; replace W by W W_EX), so w_k = Σ_j p_kj w_j with all
    p_kj > 0. For any vector u take the k with the largest ⟨u, w_k⟩: it is a mean with positive
    weights, so all ⟨u, w_j⟩ are equal. All w_j are equal, and the loss is log K.

    (b) Averages: replace the features (inputs) of a class by their mean. Loss falls or stays
    (cross-entropy is convex in the logits, the logits linear), and the mean of ‖h_i‖² falls by the
    mean of ‖h_i − h̄‖². Unless all are equal a budget is slack at a minimiser, which (a) excludes.
    The mean of h is the map of the mean of h0, since both maps are linear. A minimiser with loss
    log K exists only where a budget is 0.

    (c) h0_k as the paper's sum of n ≥ 2 equal h0_k,i is n h0_k,i, whose feature is n h_k,i: not
    h_k,i unless it is 0.
    """
    rng = random.Random(2)
    for n in (2, 3, 5):
        h = random_matrix(rng, 4, n)
        mean = Matrix([sum(row) / n] for row in h)
        spread = norm2(h - mean @ matrix(1, n, lambda i, j: 1))
        fall = norm2(h) - n * norm2(mean)
        require(fall == share * spread > 0, "the norm falls by the within-class sum of squares")
    # Jensen, with logits that are even multiples of log 2: all exponentials are exact
    for num_classes in (3, 10):
        first = [2 * rng.randint(-4, 4) for _ in range(num_classes)]
        second = [2 * rng.randint(-4, 4) for _ in range(num_classes)]
        at_mean = sum(F(2) ** ((a + b) // 2) for a, b in zip(first, second, strict=True))
        at_first = sum(F(2) ** a for a in first)
        at_second = sum(F(2) ** b for b in second)
        require(at_mean**2 <= at_first * at_second, "cross-entropy is convex")
    return True


@states(
    "§3, Theorem 3.1, NC2, and (26)", "WWᵀ = √(E_W/E_H) W H = (K E_W/(K−1)) (1_K − 11ᵀ/K)", "holds"
)
def thm31_nc2(scale: F = F(1)) -> bool:
    """Its misprints corrected: 1_K, K×K in (26), is the identity, and H0 stands for the class
    means. H0 free, the budget on h. Our proof (duality, uniqueness): gradient −λ C_K with ‖C_K‖ = 1
    at every size of the logits.

    As printed (budget on h), D ≥ K − 1. Both problems allow the same (W, h), see `thm_b3`.

    Proof. By `thm31_nc1` let H have one column a class. The loss is a convex function of Z = WH,
    and ‖Z‖_* ≤ B. At Z° = a C_K, a (K−1) = B, its gradient is G = −λ C_K, λ = 1/(exp(a) + K − 1):
    softmax is t/(t+K−1) on the diagonal and 1/(t+K−1) off it, t = exp(a). C_K is a projection, so
    the spectral norm of G is λ and for every feasible Z: f(Z) ≥ f(Z°) + ⟨G, Z − Z°⟩ ≥ f(Z°) − λB +
    λ a (K−1) = f(Z°).

    Uniqueness: cross-entropy is strictly convex but for a constant added to a column (its Hessian
    diag(p) − ppᵀ has the kernel 1), so another minimiser is Z = a C_K + 1cᵀ. ZᵀZ = a² C_K + K ccᵀ,
    whose root has a larger trace unless c = 0. So Z = a C_K; then `thm31_nc3` gives H = √(E_H/E_W)
    Wᵀ, and WWᵀ = √(E_W/E_H) Z = (K E_W/(K−1)) C_K, since a = K √(E_W E_H)/(K−1).
    """
    rng = random.Random(3)
    for num_classes in (2, 3, 10):
        unit = identity(num_classes)
        ones = matrix(num_classes, num_classes, lambda j, k: 1)
        centre = centring(num_classes)
        require(centre @ centre == centre, "C_K is a projection")
        for t in (F(101, 100), F(2), F(50)):  # exp(a)
            total = t + num_classes - 1
            softmax = (1 / total) * (ones + (t - 1) * unit)
            gradient = (-scale * num_classes / total) * centre
            require(softmax - unit == gradient, "the gradient is −λ C_K")
        c = random_matrix(rng, num_classes, 1)
        constants = matrix(num_classes, 1, lambda j, k: 1) @ c.T
        z = F(7, 3) * centre + constants
        expected = F(49, 9) * centre + num_classes * (c @ c.T)
        require(z.T @ z == expected, "ZᵀZ = a²C + K ccᵀ")
    return True


@states("§3, Theorem 3.1, NC3", "W_EX h0_k ∥ W_k and f(h0_k; W_DEQ) ∥ W_k", "holds")
def thm31_nc3(trace: F = F(1)) -> bool:
    """H0 free, the budget on h: our proof (tr Z = ‖W‖ ‖H‖ forces H ∥ Wᵀ), equality at the optimum,
    K = 2, 5, 10.

    As printed.

    Proof. The minimiser Z = a C_K (`thm31_nc2`) is symmetric and positive semidefinite, so tr(WH) =
    tr Z = ‖Z‖_* = B. But tr(WH) = ⟨Wᵀ, H⟩ ≤ ‖W‖_F ‖H‖_F ≤ √(K E_W) √(K E_H) = B. So there is
    equality in Cauchy and Schwarz's inequality: H = √(E_H/E_W) Wᵀ.
    """
    rng = random.Random(4)
    e_w = F(1, 100)
    e_h = F(4, 25)
    product_root = F(1, 25)  # √(E_W E_H)
    for num_classes, root in ((2, F(1)), (5, F(2)), (10, F(3))):  # root = √(K−1)
        a = num_classes * product_root / (num_classes - 1)
        spent = trace * num_classes * product_root
        require(a * (num_classes - 1) == spent, "tr Z = ‖Z‖_* = B")
        # W = s C_K with s² (K−1) = K E_W; rational after a factor √K, which both sides share
        w = F(1, 10) / root * centring(num_classes)
        h = F(2, 5) / root * centring(num_classes)
        require(norm2(w) == e_w, "the budget of W is spent (after the factor √K)")
        require(norm2(h) == e_h, "the budget of h is spent (after the factor √K)")
        require(inner(w, h) ** 2 == norm2(w) * norm2(h), "equality for H ∥ Wᵀ")
        turned = random_orthogonal(rng, num_classes) @ h
        require(inner(w, turned) < inner(w, h), "strictly less when the features are turned")
    return True


@states(
    "App. B.2, Theorem B.3, (22), (33)",
    "DEQ achieves a lower bound on the loss function compared to explicit neural network …: "
    "inf L_DEQ = −2C1K/(K−1) √(E_W E_H) + C2, while the lower bound of loss function of explicit "
    "neural network remains: inf L_EX = −C1K/(K−1) √(E_W E_H) + C2 "
    "[read as infima of (7) and (9), H0 free in each]",
    "false",
)
def thm_b3(scale: F = F(1)) -> bool:
    """Budget on h: the infima are equal (any n_k, series from 0 or 1), the two values differ unless
    C1 = 0. As lower bounds both are valid (constants of Lemma B.1) and order nothing. With H0 the
    same for both models the order is right (b3_same_inputs_series_from_1,
    b3_same_inputs_series_from_0), but then Theorem 3.1 fails (h0_given).

    Read as infima of (7) and (9), each minimised over its own H0, with the budget on h as printed.

    Proof. The constraints on (W, h) and the loss are the same in both problems; they differ in how
    h is reached. Every h is reached, with d = dim h, E_H > 0 and free H0, by (7) with W_EX =
    (E_H/d) I, of norm E_H/√d ≤ E_H, and h0 = (d/E_H) h; by (9), sum from 0, with W_DEQ = 0 and h0 =
    h; by (9), sum from 1, with W_DEQ = τI, τ = min(E_H/d, 1/2), and h0 = ((1−τ)/τ) h. So the sets
    of attainable losses are equal, and so are the infima, whatever n_k, d, E_W and E_H. The printed
    difference C1K/(K−1) √(E_W E_H) is 0 only for C1 = 0.

    What this does not say. The two models reach the same (W, h) from different inputs here, (d/E_H)
    h and h. With H0 the same for both, which the paper assumes before Theorem 3.1, the paper's
    order is right: weakly for every H0 with the series of B.1, strictly with the series from 0 for
    independent inputs within E_H ≤ 1. With the budget on H0 it is right and strict for every E_H
    (`b3_v2_order`). As lower bounds, with the constants of Lemma B.1, (22) and (33) are at most the
    loss of nuclear norm B and 2B (`b3_v2_values`): both lie below the common infimum, so both are
    valid. Where the order is strict, some C1 > 0 and C2 solve the two equations, as they would for
    any two numbers in that order.
    """
    rng = random.Random(5)
    settings = ((3, 3, 2, F(1, 100)), (4, 5, 1, F(1, 2)), (10, 10, 1, F(1, 100)), (2, 1, 2, F(3)))
    for num_classes, d, n, e_h in settings:
        w = random_matrix(rng, num_classes, d)
        h = random_matrix(rng, d, num_classes * n + 1)  # unequal n_k
        unit = identity(d)
        tau = min(e_h / d, F(1, 2))
        # of each model: its weight, its map from inputs to features, and h0 over h
        models = {
            "explicit": (e_h / d * unit, e_h / d * scale * unit, d / e_h),
            "DEQ from 0": (0 * unit, unit, F(1)),
            "DEQ from 1": (tau * unit, inverse(unit - tau * unit) - unit, (1 - tau) / tau),
        }
        for name, (weight, layer, factor) in models.items():
            require(norm2(weight) <= e_h**2, f"{name}: the budget of the map")
            require(w @ layer @ (factor * h) == w @ h, f"{name}: the logits of (W, h)")
    return True


# --- imbalanced classes: Theorem 4.1 and Proposition 4.2 ------------------------------------------


@states(
    "§4, Theorem 4.1, NC1", "W_EX h0_k,i = W_EX h0_k and f(h0_k,i; W_DEQ) = f(h0_k; W_DEQ)", "holds"
)
def thm41_nc1(share: F = F(1)) -> bool:
    """Its misprint corrected: h0_k is the mean (printed as a sum). H0 free; with H0 given it fails
    (h0_given). The proof of Theorem 3.1, NC1, which asks nothing of n_k.

    Proof. That of `thm31_nc1`: averages are taken class by class, each with its own n_k. In the
    objective each sample has a positive weight, so a budget that is slack makes the loss stationary
    in each sample's feature.
    """
    return thm31_nc1(share)


@states(
    "§4, Theorem 4.1, NC2, and (59)",
    "if E_H < 2S_ij − m_ij < 1/(1−E_H) is satisfied, … ‖(W_EX H0)ᵀ(W_EX H0) − S‖_F > "
    "‖fᵀ(H0; W_DEQ) f(H0; W_DEQ) − S‖_F holds",
    "vacuous",
)
def thm41_nc2(
    least: F = F(1, 100), share: F = F(1, 2), given: F = F(5, 2), budget: F = F(1, 2)
) -> bool:
    """Read for all i, j: Σ_ij (2S_ij − m_ij) = −‖Σ h0_k‖² ≤ 0 < K² E_H, so no H0 meets the premise,
    with S the Gram matrix or as Definition 2.1 prints it. For i ≠ j or i = j alone some readings
    meet it; there the conclusion is false at K = 2 in an instance of each (series from 0).

    Proof. (a) All i, j, as the Frobenius norm has them: a Gram matrix of a simplex ETF, S = α²
    K/(K−1) (I − 11ᵀ/K), and Definition 2.1's S = α √(K/(K−1)) P (I − 11ᵀ/K), for D = K, have S1 =
    0, for every α and P, and Σ_ij m_ij = ‖Σ_k h0_k‖². So the sum of 2S_ij − m_ij is −‖Σ h0_k‖² ≤ 0.
    The premise makes it larger than K² E_H > 0. No H0 meets it.

    (b) i ≠ j alone, S the Gram matrix, S_ij = −α²/(K−1): the premise gives Σ_{i≠j} m_ij <
    −K(K−1)E_H − 2Kα², and Σ_ij m_ij ≥ 0, so the mean of ‖h0_k‖² exceeds (K−1) E_H + 2α² > E_H: not
    with inputs bounded by E_H. With free inputs HᵀH is the same in both models (`thm41_nc3`), so
    the strict inequality fails.

    In (c) and (e) K = 2 and inputs are bounded, any R. By (c) of `thm41_nc3`, h0_k = y_k c_k x̂ and
    h_k = y_k c_k g v̂ with c_k > 0, y = (1, −1), c_1² + c_2² = 2E_H = 2E, g = E for the explicit
    layer and 1/(1 − E) for the DEQ from 0. So HᵀH has the norm n = 2E g², and ‖h_1 − h_2‖² lies
    between n and 2n.

    (c) i ≠ j alone, S as printed with P = I and α = −s/√2: S = −s (I − 11ᵀ/2), s = 1/2, E = 1/100.
    2S_12 − m_12 = s + c_1 c_2 lies between s and s + E: the premise is met. ‖HᵀH − S‖² = n² + s
    ‖h_1 − h_2‖² + s² is at most (n + s)² for the explicit layer and at least n² + sn + s² for the
    DEQ, which is more.

    (d) i ≠ j alone, S the Gram matrix [[1, −1], [−1, 1]], H0 given without a budget: h0 = 5/2, −1
    in one dimension, E = 1/10. 2S_12 − m_12 = 1/2 is between E and 1/(1 − E). Both margins grow
    with the map, so h = E h0 and h = h0/(1 − E) at the minima, and the DEQ is further from S.

    (e) i = j alone, S the same Gram matrix, E = 1/2: 2S_kk − m_kk = 2 − c_k² with 0 < c_k² < 2E = 1
    is between 1/2 and 2: the premise is met. ‖HᵀH − S‖² = n² − 2‖h_1 − h_2‖² + 4 is at most n² − 2n
    + 4 = 57/16 for the explicit layer, n = 1/4, and at least n² − 4n + 4 = 4 for the DEQ, n = 4:
    the DEQ is further from S. (At E_H = 1/100 and K = 3, 4 the conclusion was true for i = j in the
    settings that were computed.)
    """
    _no_inputs_for_all_pairs(least)
    for num_classes in (2, 3, 10, 100):
        # inputs of ETF shape, ‖h0_k‖² = n and m_ij = −n/(K−1), meet the bound of (b); α² = 3
        bound = (num_classes - 1) * least + 2 * 3
        for n in (bound, bound * F(101, 100)):
            between = (n - 2 * 3) / (num_classes - 1)  # 2S_ij − m_ij
            require((between > least) == (n > bound), "(b) needs mean ‖h0_k‖² > (K−1) E_H + 2α²")
            require(n > least, "(b) and that is above E_H")

    e = F(1, 100)
    explicit, deq = _norms_of_the_gram(e)
    require(e < share and share + e < 1 / (1 - e), "(c) the premise is met")
    further = (explicit + share) ** 2 < deq**2 + share * deq + share**2
    require(further, "(c) the DEQ is further from S")

    e = F(1, 10)
    h0 = Matrix([[given, -1]])
    require(e < -2 - h0[0][0] * h0[0][1] < 1 / (1 - e), "(d) the premise is met")
    etf = 2 * centring(2)
    explicit = norm2(e**2 * (h0.T @ h0) - etf)
    deq = norm2(1 / (1 - e) ** 2 * (h0.T @ h0) - etf)
    require(explicit < deq, "(d) the DEQ is further from S")

    e = budget
    explicit, deq = _norms_of_the_gram(e)
    require(e <= 2 - 2 * e and 1 / (1 - e) >= 2, "(e) the premise is met for both k")
    further = explicit**2 - 2 * explicit + 4 < deq**2 - 4 * deq + 4
    return require(further, "(e) the DEQ is further from S")


def _no_inputs_for_all_pairs(least: F) -> None:
    """(a) of `thm41_nc2` for random inputs, and S as a Gram matrix and as Definition 2.1 has it."""
    rng = random.Random(7)
    for num_classes, d in ((2, 3), (3, 2), (5, 7), (10, 12)):
        for _ in range(8):
            h0 = random_matrix(rng, d, num_classes)
            gram = h0.T @ h0
            etf = F(rng.randint(1, 40), rng.randint(1, 9)) * centring(num_classes)
            printed = -1 * random_orthogonal(rng, num_classes) @ etf
            for s in (etf, printed):
                total = sum(sum(row) for row in 2 * s - gram)
                length = sum(sum(row) ** 2 for row in h0)
                require(total == -length, "(a) the sum is −‖Σ h0_k‖²")
                require(total < num_classes**2 * least, "(a) and stays below K² E_H")


def _norms_of_the_gram(e: F) -> tuple[F, F]:
    """‖HᵀH‖ = 2E g² of the explicit layer, g = E, and of the DEQ from 0, g = 1/(1 − E); K = 2."""
    return 2 * e * e**2, 2 * e / (1 - e) ** 2


@states(
    "§4, Theorem 4.1, NC3, and (62)",
    "when E_H/(E_W+E_H) + E_H(1−E_H) < 2 is satisfied, … "
    "cos(f(h_k; W_DEQ), w_k)/cos(W_EX h_k, w_k) > 1",
    "false",
)
def thm41_nc3(ceiling: F = F(5, 4), same: F = F(1), spent: F = F(1), most: F = F(3, 4)) -> bool:
    """The condition holds for all E_W, E_H > 0. As printed, H0 free and the budget on h: both
    models have the same, unique Z, WWᵀ ∝ (ZZᵀ)^½ and HᵀH ∝ (ZᵀZ)^½, so the ratio is exactly 1
    wherever it is defined (D ≥ K). Other readings at K = 2: inputs bounded, E_H < 1: 1; H0 given,
    series from 0: below 3/4 in a class.

    Proof. (a) E_H/(E_W+E_H) < 1 and E_H(1−E_H) ≤ 1/4 for all E_W, E_H > 0.

    (b) As printed: H0 free, the budget on h, D ≥ K, any K, K_A, R, E_W and E_H. Both problems allow
    the same (W, h) (`thm_b3`); by `thm41_nc1` let H have one column a class. The loss f is a convex
    function of Z = WH, and the attainable Z are those with ‖Z‖_* ≤ B. f has no stationary point,
    since no softmax is 1, so minimisers have ‖Z‖_* = B. A minimiser has 1ᵀZ = 0: ZᵀZ = (CZ)ᵀ(CZ) +
    (Zᵀ1)(Zᵀ1)ᵀ/K, so otherwise CZ, with the same loss, has a smaller nuclear norm. Z is unique: f
    is strictly convex but for constants added to columns, so two minimisers differ by 1cᵀ, and 1ᵀZ
    = 0 for both gives c = 0. Let Z = P D Qᵀ with D > 0 diagonal. B = tr D = ⟨WᵀP, HQ⟩ ≤ ‖WᵀP‖_F
    ‖HQ‖_F ≤ ‖W‖_F ‖H‖_F ≤ B. So there is equality: HQ = κWᵀP, κ = √(E_H/E_W), W = PPᵀW, H = HQQᵀ.
    Then D = PᵀWHQ = κPᵀWWᵀP, so WWᵀ = PDPᵀ/κ = (ZZᵀ)^½/κ and HᵀH = κQDQᵀ = κ(ZᵀZ)^½. So cos(h_k,
    w_k) = Z_kk/√((ZZᵀ)^½_kk (ZᵀZ)^½_kk) is the same number in both models and at every minimiser.
    Where a w_k or h_k is 0, as those of the minority at the paper's budgets, a cosine does not
    exist.

    (c) Remark: K = 2, inputs bounded, 0 < E_H < 1, any R and E_W. ((49) and (53) need K_A > K_B and
    K_A > 1.) With v = (w_1 − w_2)/2 and y = (1, −1) the loss is a weighted sum of log(1 + exp(−2
    y_k v·h_k)). At a minimiser w_1 = −w_2 = v, because ‖w_1‖² + ‖w_2‖² = 2‖v‖² + ‖w_1+w_2‖²/2 and
    the loss falls strictly with the norm of v. h_k = A h0_k: only v·A h0_k counts, so h0_k = y_k
    c_k x̂, x̂ ∥ Aᵀv, with margins c_k ‖Aᵀv‖, and ‖Aᵀv‖ is maximal. No c_k is 0: on the sphere c_1²
    + c_2² = const the loss falls to first order when a c_k leaves 0.

    Explicit: ‖Mᵀv‖ ≤ E_H ‖v‖ with equality iff M = E_H v̂x̂ᵀ. DEQ from 0: ‖(I−M)⁻ᵀv‖ ≤ ‖v‖/(1−E_H)
    with equality iff M = E_H v̂v̂ᵀ (from 1: E_H/(1−E_H), the same M). In all h_k = y_k c v, c > 0:
    both cosines are 1.

    (d) Remark: H0 given, K = 2, h0_k = c e_k, E_H = 1/100, series from 0: the explicit columns M
    e_k are free within ‖M‖_F ≤ E_H, so h_k = y_k c_k v and the cosine is 1. For the DEQ ‖h_k −
    h0_k‖ ≤ r/(1−r) ‖h0_k‖ with r ≤ E_H, whatever minimises, so its unit features differ by at most
    √2 + 4r/(1−r) < 3/2, and cos_1 + cos_2 = v̂·(ĥ_1 − ĥ_2) < 3/2: below 3/4 in a class.
    """
    for e_w, e_h in product(
        (F(1, 10**6), F(1, 100), F(1), F(10**6)), (F(1, 100), F(1, 2), F(99, 100), F(1), F(30))
    ):
        condition = e_h / (e_w + e_h) + e_h * (1 - e_h)
        require(condition < ceiling <= F(5, 4), "(a) the condition holds")
        require(F(1, 4) - e_h * (1 - e_h) == (e_h - F(1, 2)) ** 2, "(a) E_H(1−E_H) ≤ 1/4")

    rng = random.Random(8)
    for num_classes in (3, 4):
        _common_part_costs_norm(rng, num_classes)
        first, second = _cosines_of_two_balanced_factors(rng, num_classes)
        require(first == [same * x for x in second], "(b) the cosines of balanced factors")

    w1 = random_matrix(rng, 3, 1)
    w2 = random_matrix(rng, 3, 1)
    parts = 2 * norm2(F(1, 2) * (w1 - w2)) + norm2(w1 + w2) / 2
    require(norm2(w1) + norm2(w2) == parts, "(c) the common part of w_1 and w_2 is wasted")
    v = Matrix([[3], [4], [0]])  # ‖v‖ = 5
    r = F(1, 2)
    along = r / 25 * (v @ v.T)
    require(norm2(along) == spent * r**2, "(c) M = E_H v̂v̂ᵀ spends the budget")
    require(inverse(identity(3) - along).T @ v == 1 / (1 - r) * v, "(c) and gives ‖v‖/(1−E_H)")

    r = F(1, 100)
    return require((2 * most - 4 * r / (1 - r)) ** 2 > 2, "(d) √2 + 4r/(1−r) < 3/2")


def _common_part_costs_norm(rng: random.Random, num_classes: int) -> None:
    """(b) of `thm41_nc3`: ZᵀZ = (CZ)ᵀ(CZ) + (Zᵀ1)(Zᵀ1)ᵀ/K."""
    z = random_matrix(rng, num_classes, num_classes)
    centred = centring(num_classes) @ z
    column = z.T @ matrix(num_classes, 1, lambda i, j: 1)
    both = centred.T @ centred + F(1, num_classes) * (column @ column.T)
    require(z.T @ z == both, "(b) a common part of a column costs norm")


def _cosines_of_two_balanced_factors(
    rng: random.Random, num_classes: int
) -> tuple[list[F], list[F]]:
    """(b) of `thm41_nc3`: squared cosines of w_k and h_k for two factors of the same Z."""
    p = random_orthogonal(rng, num_classes)
    q = random_orthogonal(rng, num_classes)
    turned = random_orthogonal(rng, num_classes)
    sizes = [F(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(num_classes)]
    root = diagonal(sizes)  # D^½
    cosines = []
    for turn in (identity(num_classes), turned):
        w = p @ root @ turn
        h = turn.T @ root @ q.T
        require(w @ h == p @ root @ root @ q.T, "(b) the same logits")
        require(norm2(w) == norm2(h) == norm2(root), "(b) ‖W‖² = ‖H‖² = ‖Z‖_*")
        ww = w @ w.T
        hh = h.T @ h
        wh = w @ h
        cosines.append([wh[k][k] ** 2 / (ww[k][k] * hh[k][k]) for k in range(num_classes)])
    first, second = cosines
    return first, second


@states(
    "§4, Proposition 4.2",
    "R → 1: majority features collapse to a K_A-simplex ETF; minority classes: w_k = 0, h = 0",
    "holds if √(E_W E_H) ≤ E0",
)
def prop42(e0: tuple[F, ...] = (F(4717, 10**4), F(17627, 10**4), F(43628, 10**4))) -> bool:
    """Our proof (duality), H0 free, the budget on h: E0 = 0.4717…, 1.7627…, 4.3628… at K = 10, K_A
    = 3, 5, 7, so the paper's 0.01 is inside; beyond it fails (K = 4, K_A = 3, √(E_W E_H) = 2). H0
    given: its DEQ half fails (h0_given).

    As printed (budget on h), K_A ≥ 2; E0 = K_A(K_A−1)/K · log(K_A σ/(K_B(1−σ))), σ = √(K_B/K).

    Proof. In the limit only the majority counts: minimise f(Z) = (1/K_A) Σ_{k≤K_A} CE(z_k, k),
    ‖Z‖_* ≤ B. Take Z° = a C_A ⊕ 0, a (K_A−1) = B. With D the sum of exponentials of a majority
    column, P_B = K_B/D its probability of the minority and 1 − s_A = (K_A e^{−a/K_A} + K_B)/D, the
    gradient is 1/K_A times −(1−s_A) C_A ⊕ 0 plus g 1_Aᵀ, g = −(P_B/K_A) 1_A + (P_B/K_B) 1_B. The
    two parts act on orthogonal spaces; the second has norm P_B √(K/K_B). So Z° is optimal iff P_B
    √(K/K_B) ≤ 1 − s_A (`thm31_nc2` for the rest), that is √(K K_B) − K_B ≤ K_A e^{−a/K_A}, that is
    a ≤ K_A log(K_A σ/(K_B(1−σ))); and a = K √(E_W E_H)/(K_A−1). Minority columns are 0: the
    majority spends the whole budget (slack lemma), and appending a column that is not 0 enlarges
    the nuclear norm, as √(ZZᵀ + ccᵀ) has a larger trace. Minimisers for R → 1 converge to those of
    the limit (compactness). Beyond E0: the limit's minimiser is unique in its majority columns, so
    unchanged by permutations of the majority. With w_B = 0 and centred majority features it could
    only be Z°, which is not optimal: the proposition fails.
    """
    for majority, printed in zip((3, 5, 7), e0, strict=True):
        minority = 10 - majority
        sigma = sqrt(F(minority, 10))
        size = log(majority * sigma / (minority * (1 - sigma)))
        value = size * F(majority * (majority - 1), 10)
        inside = value > printed and value < printed + F(1, 10**4)
        require(inside, f"E0 at K_A = {majority}: {value}")
        require(value > F(1, 100), "the paper's budgets are inside")
    # arbitrary positive exponentials of the own, the other majority and the minority logits
    for majority, minority, own, other in (
        (3, 1, F(7), F(1, 2)),
        (3, 7, F(3), F(2, 3)),
        (5, 5, F(9, 8), F(1)),
    ):
        _gradient_splits(majority, minority, own, other)
    # K = 4, K_A = 3: σ = 1/2, optimal iff exp(a/3) ≤ 3, a = 2 √(E_W E_H)
    return require(exp(F(4)) > 27 and exp(F(1)) < 3, "fails at √(E_W E_H) = 2, holds at 3/2")


def _gradient_splits(majority: int, minority: int, own: F, other: F) -> None:
    """A majority column of the gradient of `prop42` is the sum of its two parts, exactly."""
    total = own + (majority - 1) * other + minority
    column = [own / total - 1, *[other / total] * (majority - 1), *[1 / total] * minority]
    escaped = minority / total  # P_B
    kept = (majority * other + minority) / total  # 1 − s_A
    flat = [kept * F(1, majority)] * majority + [F(0)] * minority
    flat[0] -= kept
    g = [-escaped / majority] * majority + [escaped / minority] * minority
    both = [x + y for x, y in zip(flat, g, strict=True)]
    require(column == both, "the gradient splits as stated")
    length = sum(x * x for x in g)
    size = majority + minority
    require(length * majority == escaped**2 * size / minority, "norm of the second part")


@states(
    "§4, Theorem 4.1, NC3, with the distance of (14) in place of the classes' cosines, K = 2",
    "DEQ is superior in terms of NC compared to explicit neural network",
    "holds if K = 2, inputs bounded, R > 1 and E_H < 1",
    reading=PROOFS,
)
def thm41_nc3_eq14(ratio: int = 10) -> bool:
    """Series from 0 or 1: the cosine of the whole matrices Wᵀ and H is strictly larger for the DEQ.
    Our proof; enclosures at R = 10, E_W = 2, E_H = 1/4. For K ≥ 3 the other way round in a setting
    that was computed.

    (14) is ‖Wᵀ/‖W‖ − H/‖H‖‖ = √(2 − 2c) with the cosine c of the whole matrices.

    Proof. By (c) of `thm41_nc3`, w_k = y_k v and h_k = y_k c_k g v̂, c_1² + c_2² = 2E_H, g = E_H,
    1/(1−E_H) or E_H/(1−E_H), ‖v‖² = E_W. With c_1 = √(2E_H) cos θ, c_2 = √(2E_H) sin θ, 0 < θ <
    π/2, the cosine is cos(θ − π/4), and the loss is a multiple of R log(1 + exp(−α cos θ)) + log(1
    + exp(−α sin θ)), α = 2g √(2E_W E_H). It is stationary iff F(θ, α) = log cot θ + log(1 + exp(α
    cos θ)) − log(1 + exp(α sin θ)) = log R. F falls in θ: each of its terms does. F(π/4) = 0 < log
    R and F → ∞ for θ → 0, so there is one θ, below π/4. There F grows in α: its derivative is x
    s(αx) − y s(αy) with x = cos θ > y = sin θ and the increasing logistic function s. So θ grows
    with α towards π/4, and the cosine with it. 1/(1−E_H) > E_H and E_H/(1−E_H) > E_H: the DEQ's is
    the larger.

    Instance: √(2E_W E_H) = 1, α = 1/2; 8/3 and 2/3. With tan(θ/2) = 67/1000, F < log 10 for the
    explicit layer, whose θ is smaller, and F > log 10 for the DEQ, whose θ is larger.
    """
    t = F(67, 1000)  # tan(θ/2)
    x = (1 - t**2) / (1 + t**2)
    y = 2 * t / (1 + t**2)
    require(x**2 + y**2 == 1 and y < x, "an angle below π/4")
    e = F(1, 4)
    slopes = {}
    for name, gain in (("explicit", e), ("from 0", 1 / (1 - e)), ("from 1", e / (1 - e))):
        alpha = 2 * gain
        slopes[name] = log(x / y) + log(1 + exp(alpha * x)) - log(1 + exp(alpha * y))
    log_ratio = log(F(ratio))
    require(slopes["explicit"] < log_ratio, "the explicit layer's angle is smaller")
    require(slopes["from 0"] > log_ratio, "the DEQ's angle is larger, series from 0")
    return require(slopes["from 1"] > log_ratio, "the DEQ's angle is larger, series from 1")


@states(
    "App. C.2, below (54)", "NC2 and NC3 do not hold under imbalanced dataset conditions", "false"
)
def after_54(factor: F = F(1)) -> bool:
    """Read of every budget, H0 free and the budget on h: at the paper's own NC3 holds, W ∥ Hᵀ at
    every minimiser, K = 10, K_A = 3, 5, 7, R = 10, 50, 100 (gradient).

    As printed, E_W = E_H = 1/100.

    Proof. Z° = a C_A ⊕ 0, a (K_A−1) = K/100 = B. Its gradient splits into −w_A(1−s_A) on C_A, −w_B
    on C_B (softmax is uniform on minority samples), and a 2×2 block on 1_A, 1_B: majority column
    w_A(−P_B/K_A; P_B/K_B), minority column w_B(1/K; −K_A/(K K_B)). If the second and third have
    norms of at most λ = w_A(1−s_A), Z° is a minimiser (`thm31_nc2`). Z° is the only one: the loss
    is strictly convex but for constants added to columns, and Z° + 1cᵀ has a larger nuclear norm
    unless c = 0. Z° is symmetric and positive semidefinite, so H = √(E_H/E_W) Wᵀ by the argument of
    `thm31_nc3`. (NC2 for all K classes does not hold: minority classifiers and features are 0. Nor
    is this to say that NC3 holds at other budgets.)
    """
    for majority, ratio in product((3, 5, 7), (10, 50, 100)):
        minority = 10 - majority
        kept, escaped = _collapsed(majority, factor)
        samples = majority * ratio + minority
        w_a = F(ratio, samples)
        w_b = F(1, samples)
        multiplier = w_a * kept
        block = (escaped * w_a) * (escaped * w_a) * majority * (F(1, majority) + F(1, minority))
        block = block + w_b**2 * minority * (F(majority, 100) + F(majority**2, 100 * minority))
        where = f"K_A = {majority}, R = {ratio}"
        require(multiplier > w_b, f"{where}: the minority's part of the gradient")
        require(block < multiplier * multiplier, f"{where}: the block of the gradient")
    return True


def _collapsed(majority: int, factor: F) -> tuple[Interval, Interval]:
    """1 − s_A and P_B, the majority's probability of the minority, at Z° = a C_A ⊕ 0 with
    a (K_A−1) = factor · K/100."""
    a = factor * F(1, 10) / (majority - 1)
    own = exp(a * (1 - F(1, majority)))
    other = exp(-a / majority)
    whole = own + (majority - 1) * other + 10 - majority
    return 1 - (own - other) / whole, (10 - majority) / whole


# --- inputs given, or bounded ---------------------------------------------------------------------
#
# W_EX = U S Vᵀ throughout.


def _random_layer(
    rng: random.Random, most: int = 30
) -> tuple[Matrix, Matrix, Matrix, list[F], Matrix, Matrix]:
    """W, H0, U, the diagonal of S, V and W_EX = U S Vᵀ, rational; singular values to most/10."""
    u = random_orthogonal(rng, 3)
    v = random_orthogonal(rng, 3)
    s = [F(rng.randint(1, most), 10) for _ in range(3)]
    w = random_matrix(rng, 4, 3)
    h0 = random_matrix(rng, 3, 4)
    return w, h0, u, s, v, u @ diagonal(s) @ v.T


def _sum_from_0(weight: Matrix) -> Matrix:
    """Σ_{i≥0} W^i."""
    return inverse(identity(len(weight)) - weight)


def _reaches(
    logits: Matrix,
    limits: tuple[Matrix, Matrix, Matrix],
    w: Matrix,
    layer: Matrix,
    weight: Matrix,
    h0: Matrix,
) -> None:
    """The point (W, W_DEQ, H0) of a DEQ whose weight gives `layer` has these logits, and none of
    its three matrices is longer than its partner in `limits`."""
    require(w @ layer @ h0 == logits, "the logits")
    point = {"W": w, "W_DEQ": weight, "H0": h0}
    for (name, ours), limit in zip(point.items(), limits, strict=True):
        require(norm2(ours) <= norm2(limit), f"the budget of {name}")


B3_CLAIM = "DEQ achieves a lower bound on the loss function compared to explicit neural network"


@states(
    "App. B.1 (its problems and its series), App. B.2, Theorem B.3: its order, H0 the same for "
    "both models",
    B3_CLAIM,
    "holds",
)
def b3_same_inputs_series_from_1(scale: F = F(1)) -> bool:
    """As inf L_DEQ ≤ inf L_EX, for every H0, E_H, n_k and K, with the budget on h, on h0 or on
    both; our proof.

    B.1 to the letter: no minimum over H0, f = Σ_{i≥1} W^i, budget on h.

    Proof. Let (W, W_EX) be feasible for the explicit layer, W_EX = U S Vᵀ. W_DEQ = V S(I + S)⁻¹Vᵀ
    has eigenvalues s/(1+s) < 1, so the series converges, and Σ_{i≥1} W_DEQ^i = V S Vᵀ, because
    (s/(1+s))/(1 − s/(1+s)) = s. With W′ = W U Vᵀ the logits are W U S Vᵀh0, those of the explicit
    layer; each ‖h‖ = ‖S Vᵀh0‖ and each ‖w_k‖ is unchanged, and ‖W_DEQ‖_F ≤ ‖S‖_F = ‖W_EX‖_F, with
    equality only for S = 0. H0 is the same. So every loss of the explicit layer is one of the DEQ,
    under any budget on h or on h0.
    """
    rng = random.Random(13)
    for _ in range(4):
        w, h0, u, s, v, m = _random_layer(rng)
        weight = v @ diagonal([x / (1 + x) for x in s]) @ v.T
        layer = _sum_from_0(weight) - identity(3)  # Σ_{i≥1} W^i
        _reaches(scale * (w @ m @ h0), (w, m, h0), w @ u @ v.T, layer, weight, h0)
        require(norm2(layer @ h0) == norm2(m @ h0), "the norms of the features")
        require(norm2(weight) < norm2(m), "the weight is shorter")
    return True


@states(
    "§3.2 (its series and 'H0 … are the same'), App. B.2, Theorem B.3: its order",
    B3_CLAIM,
    "holds if the mean of ‖h0‖² ≤ E_H ≤ 1",
)
def b3_same_inputs_series_from_0(
    length: F = F(29, 20), gain: F = F(9, 10), most: F = F(10201, 10**6)
) -> bool:
    """Strictly for independent columns of H0. Inputs beyond E_H = 1/100: the order is right while
    the DEQ has a feasible point, and it has none if the mean of ‖h0‖² > 0.010201. For larger E_H it
    can be the reverse: K = 2, E_W = 1, E_H = 9/10, h0 = (29/20, ±7/10), explicit below 0.25, DEQ
    above 0.28 and feasible.

    H0 given and the same for both, budget on h, f = Σ_{i≥0} W^i.

    Proof. W_DEQ = 0 leaves h = h0, within the budget on h; W′ = W W_EX gives the explicit layer's
    logits, and ‖W′‖_F ≤ ‖W_EX‖_F ‖W‖_F ≤ ‖W‖_F. So inf L_DEQ ≤ inf L_EX. Strictly, if H0 has
    independent columns: the explicit minimum is below log K, since W_EX can map H0 to margins that
    are all positive. Were the point (W′, 0) a minimiser of the

    DEQ: if ‖W′‖_F < ‖W‖_F, the loss is stationary in W, G H0ᵀ = 0, so G = 0, which no finite logits
    have. Otherwise W_EX = f xᵀ and W = u fᵀ have rank one, and W_DEQ = 0 is inside its budget: W′ᵀG
    H0ᵀ = −2ν H0 Q H0ᵀ with ν ≥ 0 and a positive diagonal Q, so W′ᵀG = −2ν H0 Q, of rank one at
    most. H0 Q has rank 2 at least: ν = 0, W′ᵀG = 0, and the loss is log K by the slack lemma.

    Beyond E_H. ‖h0‖ = ‖(I − M)h‖ ≤ (1 + E_H)‖h‖, so the DEQ has no feasible point if the mean of
    ‖h0‖² exceeds E_H(1 + E_H)². If it has one, M, and E_H(1 + E_H) ≤ 1: W′ = W W_EX (I − M) gives
    the explicit layer's logits, and ‖W′‖_F ≤ ‖W‖_F E_H (1 + E_H) ≤ ‖W‖_F.

    The reverse.

    Explicit: W_EX = (9/10) e_2 e_2ᵀ, h = (0, ±63/100), w = (0, ±1): the loss is log(1 +
    exp(−63/50)).

    DEQ: A = (I − W_DEQ)⁻¹, a = A e_1, b = A e_2. Since ‖I − W_DEQ‖ ≤ 19/10, ‖a‖ ≥ 10/19; the budget
    on h says (29/20)²‖a‖² + (7/10)²‖b‖² ≤ 9/10, which bounds ‖b‖. By convexity the loss is at least
    log(1 + exp(−½⟨w_1 − w_2, h_1 − h_2⟩)), with ‖w_1 − w_2‖ ≤ 2 and ‖h_1 − h_2‖ = (7/5)‖b‖.

    Feasible: W_DEQ = diag(−4/5, −2/5).
    """
    rng = random.Random(14)
    for _ in range(4):
        w, h0, _, _, _, m = _random_layer(rng, 5)
        logits = w @ m @ h0
        zero = 0 * m
        _reaches(logits, (w, m, h0), w @ m, _sum_from_0(zero), zero, h0)
        # singular values up to 3, so ‖M‖_F ≤ √27 E_H/6 < E_H
        weight = BUDGET / 6 * _random_layer(rng)[-1]
        h = _sum_from_0(weight) @ h0
        require(norm2(weight) <= BUDGET**2, "beyond E_H: the budget of M")
        longest = (1 + BUDGET) ** 2 * norm2(h)
        require(norm2(h0) <= longest, "beyond E_H: the features are not much shorter")
        same = w @ m @ (identity(3) - weight) @ h
        require(same == logits, "beyond E_H: the logits")
    require(BUDGET * (1 + BUDGET) <= 1, "beyond E_H: the order at 1/100")
    require(most == BUDGET * (1 + BUDGET) ** 2, "beyond E_H: the longest inputs at 1/100")

    e = F(9, 10)
    half = F(7, 10)
    require(gain <= e and (gain * half) ** 2 <= e, "the explicit layer is feasible")
    weight = diagonal([F(-4, 5), F(-2, 5)])
    h = _sum_from_0(weight) @ Matrix([[length, length], [half, -half]])
    require(norm2(weight) <= e**2 and norm2(h) / 2 <= e, "the DEQ has a feasible point")
    longest_b = sqrt((e - (length / (1 + e)) ** 2) / half**2)
    explicit = log(1 + exp(-2 * half * gain))
    deq = log(1 + exp(-2 * half * longest_b))
    return require(explicit < F(25, 100) and deq > F(28, 100), "the DEQ has the larger loss")


@states(
    "§3.2 ('H0 … are the same'), for Theorem 3.1, Theorem 4.1, NC1, and Proposition 4.2",
    "f(h0_k,i; W_DEQ) = f(h0_k; W_DEQ); WWᵀ = √(E_W/E_H) W H = (K E_W/(K−1)) (1_K − 11ᵀ/K); "
    "f(h0_k; W_DEQ) ∥ W_k; minority: f(h0_k,i; W_DEQ) = 0 "
    "[read with H0 given, the same for both models, and the budget on h]",
    "false",
)
def h0_given(length: F = F(1, 20), second: F = F(2), opposite: F = F(-2)) -> bool:
    """Each of them, for the DEQ (series from 0) with inputs within E_H = 1/100; NC1 and NC2 for the
    explicit layer and the series from 1 too. So the reading that gives Theorem B.3 its order
    refutes Theorem 3.1.

    H0 given and the same for both, budget on h, K = 2, E_W = E_H = 1/100.

    Proof. A = (I − M)⁻¹ is the DEQ's map, series from 0. In one dimension every map is a number g.
    (a) NC1 of Theorems 3.1 and 4.1: h0 = c, 2c in one class and −c, −2c (or −c alone) in the other.
    g = 0 has the loss log 2. Any g > 0 with w = ±1/10 has positive margins and a lower loss, so g ≠
    0 at a minimum, and gc ≠ g·2c.

    (b) NC2: one sample a class, h0 = c, −2c. WH = κ C_2 with κ > 0 needs h_1 = −h_2 ≠ 0, which no g
    gives.

    (c) NC3,

    DEQ: h0_k = c e_k in two dimensions. At a minimiser w_1 = −w_2: otherwise ±(w_1 − w_2)/2 has the
    same loss and is shorter, so the loss is stationary in W there, G Hᵀ = 0, and G = 0 since H = cA
    is invertible, which no finite logits have. h_1 ∥ w_1 and h_2 ∥ w_2 would make h_1 and h_2
    parallel, but H is invertible.

    (d) Proposition 4.2,

    DEQ: ‖A h0‖ ≥ ‖h0‖/(1 + E_H), at every R, so no feature of an input that is not 0 is 0 or tends
    to 0.
    """
    c = length
    rng = random.Random(16)
    for factor in (second, opposite):
        require((1 + factor**2) * c**2 / 2 <= BUDGET, "the inputs are within E_H")
    # gains of the explicit layer, of the DEQ from 1, and of the DEQ from 0
    for g in (BUDGET, BUDGET / (1 - BUDGET), F(1), 1 / (1 - BUDGET)):
        h = g * c
        other = g * second * c
        require((h**2 + other**2) / 2 <= BUDGET, "(a) the features are within E_H")
        require(min(h, other) > 0 and h != other, "(a) positive margins, features that differ")
        require(h + g * opposite * c != 0, "(b) h_1 is not −h_2")
    for _ in range(4):
        weight = matrix(2, 2, lambda i, j: BUDGET * F(rng.randint(-5, 5), 10))
        h = c * _sum_from_0(weight)
        require(norm2(weight) <= BUDGET**2 and norm2(h) / 2 <= BUDGET, "(c) a feasible point")
        inverse(h)  # (c) raises where the two features are parallel
        for column in h.T:
            require(norm2([column]) * (1 + BUDGET) ** 2 >= c**2, "(d) no feature is short")
    return True


@states(
    "App. B.2, conditions of equality of (21) and (32), which name ‖h0‖² and ‖h‖²: the order of "
    "Theorem B.3",
    B3_CLAIM,
    "holds",
    reading=PROOFS,
)
def b3_both_budgets(scale: F = F(1)) -> bool:
    """Strictly, both budgets and E_H < 1, H0 free, series from 0 or 1: W_DEQ = 0 with h0′ = W_EX
    h0, or W_DEQ = V S(I + S)⁻¹Vᵀ; our proof, on rational instances.

    Mean ‖h0‖² ≤ E_H and mean ‖h‖² ≤ E_H.

    Proof. The explicit layer has ‖h‖ ≤ E_H‖h0‖, so mean ‖h‖² ≤ E_H² · E_H < E_H. From 0: W_DEQ = 0
    and h0′ = W_EX h0 give the same logits; h0′ = h′ spends at most E_H³ of either budget: both are
    slack, and by the slack lemma (`thm31_nc1`) the point does not minimise.

    From 1: the point of `b3_same_inputs_series_from_1` leaves the budgets on h and on W_DEQ slack.
    Were it a minimiser, the loss would be stationary in W_DEQ, W′ᵀG H0ᵀ = 0; by the slack lemma
    AᵀW′ᵀG = −λ H0 Q with λ > 0 and a positive diagonal Q, so H0 Q H0ᵀ = 0 and H0 = 0: the loss is
    log K.
    """
    rng = random.Random(15)
    for _ in range(4):
        w, h0, _, _, _, m = _random_layer(rng, 5)
        zero = 0 * m
        _reaches(scale * (w @ m @ h0), (w, m, h0), w, _sum_from_0(zero), zero, m @ h0)
        require(norm2(m @ h0) <= norm2(m) * norm2(h0) < norm2(h0), "‖h‖ ≤ E_H ‖h0‖")
    return b3_same_inputs_series_from_1()


@states(
    "App. B.2, below (33)",
    "it is evident that the loss function of the DEQ layer is significantly lower than that of "
    "the explicit neural network",
    "holds",
    reading=PROOFS,
)
def b3_v2_order(scale: F = F(1)) -> bool:
    """Lower, strictly and for every E_H > 0: inputs bounded, or given with independent columns and
    no budget on h. Series from 0 or 1. Our proof (singular values). By how much: b3_v2_gap.

    inf L_DEQ < inf L_EX for any n_k, E_W and E_H, with a budget on H0 or with H0 given, and none on
    h.

    Proof. Let (W, W_EX, H0) minimise the explicit layer's loss, W_EX = U S Vᵀ. S ≠ 0, since the
    loss is below log K. From 0: W_DEQ = V(I − max(1, S)⁻¹)Vᵀ, so (I − W_DEQ)⁻¹ = V max(1, S) Vᵀ.
    Inputs bounded: W′ = W U Vᵀ and h0′ = V min(S, 1) Vᵀh0.

    H0 given: W′ = W U min(S, 1) Vᵀ. Since max(1, s) min(s, 1) = s, the logits are those of the
    explicit layer; nothing is longer, and 1 − 1/max(1, s) < s for s > 0, so ‖W_DEQ‖_F < ‖S‖_F.

    From 1: the point of `b3_same_inputs_series_from_1`, again with ‖W_DEQ‖_F < ‖S‖_F. Were such a
    point a minimiser of the DEQ, the loss would be stationary in W_DEQ, which is inside its budget.
    From 0 that says W′ᵀG Hᵀ = 0, from 1 W′ᵀG H0ᵀ = 0.

    H0 given: the columns of H (of H0) are independent, so W′ᵀG = 0, and the loss is log K by the
    slack lemma (`thm31_nc1`). Inputs bounded: by the slack lemma AᵀW′ᵀG = −λ H0 Q with λ > 0 and a
    positive diagonal Q. Times H0ᵀ, the trace is 0 on the left, since tr(AᵀW′ᵀG H0ᵀ) = tr(W′ᵀG Hᵀ),
    and −λ times a positive number on the right, as H0 = 0 has the loss log K.
    """
    rng = random.Random(11)
    for _ in range(4):
        w, h0, u, s, v, m = _random_layer(rng)
        logits = scale * (w @ m @ h0)
        weight = v @ diagonal([1 - 1 / max(F(1), x) for x in s]) @ v.T
        layer = _sum_from_0(weight)
        short = v @ diagonal([min(F(1), x) for x in s]) @ v.T
        outer = w @ u @ v.T
        require(norm2(weight) < norm2(m), "‖W_DEQ‖ < ‖S‖")
        _reaches(logits, (w, m, h0), outer, layer, weight, short @ h0)  # inputs bounded
        _reaches(logits, (w, m, h0), outer @ short, layer, weight, h0)  # H0 given
    return b3_same_inputs_series_from_1()


def _least_loss(gain: F) -> tuple[Interval, Interval]:
    """Bounds of the least loss at the paper's budgets where ‖Z‖_* ≤ gain · B. The upper one is the
    loss of logits of rank one."""
    z = gain * RADIUS / CLASSES
    return etf_loss(CLASSES, gain * RADIUS), cross_entropy([z, -z] * (CLASSES // 2), 0)


# The largest gain of the linear DEQ at the paper's budgets; that of the explicit layer is E_H.
FROM_0 = 1 / (1 - BUDGET)
FROM_1 = BUDGET / (1 - BUDGET)


@states(
    "App. B.2, Theorem B.3: the difference of its two values",
    "inf L_DEQ = −2C1K/(K−1) √(E_W E_H) + C2, … inf L_EX = −C1K/(K−1) √(E_W E_H) + C2",
    "holds if the series begins at 0, K = 10, E_W = E_H = 1/100, to half a percent",
    reading=PROOFS,
)
def b3_v2_gap(share: F = F(1, 200), from_1: F = F(1, 10**6)) -> bool:
    """Inputs bounded: the infima differ by 0.00994 to 0.01000; printed, with the constants that
    make (22) tight, 0.00999. Each value lies more than 0.0098 below its infimum. From 1 the infima
    differ by 0.000001.

    Proof. ‖Z‖_* ≤ gB, with g = E_H for the explicit layer and 1/(1 − E_H) or E_H/(1 − E_H) for the
    DEQ from 0 or 1, so the infima are at least `exact.etf_loss` there; rank-one logits ±gB/K are
    feasible (`nc31_proofs_reading`), so they are at most the loss of those. The constants of Lemma
    B.1 that make (22) largest have C2/(C1+C2) = p = (K−1)/(exp(D) + K − 1), D = K/(K−1) √(E_W E_H),
    and the paper's difference is pD, the first factor in M1's place.
    """
    explicit_low, explicit_high = _least_loss(BUDGET)
    deq_low, deq_high = _least_loss(FROM_0)
    least = explicit_low - deq_high
    most = explicit_high - deq_low
    require(least > F(994, 10**5) and most < F(1, 100), "the enclosure of the difference")
    d = F(CLASSES, CLASSES - 1) * BUDGET
    printed = d * (CLASSES - 1) / (exp(d) + CLASSES - 1)
    require(printed * (1 - share) < least, "the paper's difference, from below")
    require(most < printed * (1 + share), "the paper's difference, from above")
    require(printed > F(9985, 10**6) and printed < F(9995, 10**6), "which rounds to 0.00999")

    other_low, other_high = _least_loss(FROM_1)
    least = explicit_low - other_high
    most = explicit_high - other_low
    near = least > from_1 and most < from_1 * F(102, 100)
    require(near, "the difference with the series from 1")

    below = etf_loss(CLASSES, RADIUS) + F(98, 10**4)
    require(explicit_low > below, "(22) is below its infimum")
    return require(deq_low > below - printed, "(33) is below its infimum")


@states(
    "no statement of the paper: a residual block h = (I + W_EX) h0 as the explicit model",
    "inf L_DEQ ≤ inf L_residual",
    "holds if the series begins at 0, E_H < 1, inputs bounded or given",
    reading=OURS,
)
def residual_order(scale: F = F(1), gain: F = FROM_1) -> bool:
    """Our proof (singular values, Mirsky), on rational instances. With the series from 1 the order
    is the reverse at the paper's budgets, inputs bounded. With the budget on h both are equal, as
    in thm_b3.

    Proof. I + M = U T Vᵀ, D = min(1, 2 − T) entry by entry, positive since T < 2, and D T ≤ 1.
    W_DEQ = U(I − D)Uᵀ has ‖I − D‖_F ≤ ‖T − I‖_F ≤ ‖M‖_F (Mirsky: tr(U T Vᵀ) ≤ tr T). Inputs
    bounded: h0′ = U D T Vᵀ h0, not longer, and (I − W_DEQ)⁻¹h0′ = U T Vᵀ h0.

    H0 given: W_DEQ = V(I − D)Vᵀ and W′ = W U D T Vᵀ, not longer: W′ V D⁻¹ Vᵀ = W U T Vᵀ. From 1,
    inputs bounded: W_EX = E_H f fᵀ has the gain 1 + E_H, the DEQ E_H/(1 − E_H) at most
    (`b3_v2_gap`).
    """
    rng = random.Random(12)
    unit = identity(3)
    for _ in range(4):
        w, h0, u, _, v, _ = _random_layer(rng)
        values = [1 + F(rng.randint(-4, 4), 10) for _ in range(3)]
        t = diagonal(values)
        d = diagonal([min(F(1), 2 - x) for x in values])
        block = u @ t @ v.T  # I + M
        require(norm2(d - unit) <= norm2(t - unit) <= norm2(block - unit), "Mirsky")
        logits = scale * (w @ block @ h0)
        limits = (w, block - unit, h0)
        weight = u @ (unit - d) @ u.T
        inputs = u @ d @ t @ v.T @ h0
        _reaches(logits, limits, w, _sum_from_0(weight), weight, inputs)  # inputs bounded
        weight = v @ (unit - d) @ v.T
        classifier = w @ u @ d @ t @ v.T
        _reaches(logits, limits, classifier, _sum_from_0(weight), weight, h0)  # H0 given
    _, residual_high = _least_loss(1 + BUDGET)
    deq_low, _ = _least_loss(gain)
    return require(residual_high < deq_low, "from 1 the residual block has the lower loss")


@states(
    "App. B.2, (22) and (33)",
    "inf L_EX = −C1K/((C1+C2)(K−1)) √(E_W E_H) + C4, "
    "inf L_DEQ = −2C1K/((C1+C2)(K−1)) √(E_W E_H) + C4",
    "false",
    reading=PROOFS,
)
def b3_v2_values(
    budget: F = BUDGET, twice: F = F(2), both: tuple[F, F] = (F(938, 1000), F(937, 1000))
) -> bool:
    """Read as infima, with M1 = C2/(C1+C2), C4 = −M2 of Lemma B.1 never both: (22) is below inf
    L_EX where the inputs are bounded and E_H < 1, (33) below inf L_DEQ where the features are. With
    the printed factor and common constants C4 > log K; with constants of its own for each model,
    C2/(C1+C2) = 0.938 and 0.937, both can be infima.

    Balanced, K ≥ 2.

    Proof. With M1 = p and C4 = −M2 = H(p) + p log(K−1), p = C2/(C1+C2) as in Lemma B.1, (22) is
    H(p) + p log(K−1) − pD, D = K/(K−1) √(E_W E_H). By Gibbs' inequality its largest value over p is
    log(1 + (K−1) exp(−D)), the loss at nuclear norm B (`exact.etf_loss`); (33) has 2D, and its
    largest value is the loss at 2B. The loss at nuclear norm n falls in n.

    Features bounded, H0 free or not: ‖Z‖_* ≤ B, so inf L_DEQ ≥ the loss at B > the loss at 2B ≥
    (33).

    Inputs bounded or given within E_H: ‖Z‖_* ≤ E_H B, so inf L_EX ≥ the loss at E_H B > the loss at
    B ≥ (22) if E_H < 1. So wherever h or h0 has its budget (and E_H < 1 where it is h0), not both
    are infima. With the printed factor C1/(C1+C2) and common constants, inputs bounded, from 0:
    W_DEQ = 0 gives inf L_DEQ ≤ the loss at B. The formulas have C4 = 2 inf L_EX − inf L_DEQ. In
    Lemma B.1 C4 ≤ log K. But 2 inf L_EX − inf L_DEQ > log K. (From 1 this is not so: there 2 inf
    L_EX − inf L_DEQ < log K.) With the printed factor, H(p) + p log(K−1) − (1−p)D and the same with
    2D pass through the loss at B, the common infimum where the features are bounded and H0 is free,
    between p ± 1/2000 of the two p named.
    """
    d = F(CLASSES, CLASSES - 1) * BUDGET
    for n, times in product(range(1, 20), (1, 2)):
        p = F(n, 20)
        value = _value(p, times * p * d)
        require(value < etf_loss(CLASSES, times * RADIUS), f"the largest value, p = {p}")
    infimum = etf_loss(CLASSES, RADIUS)  # features bounded
    least_explicit = etf_loss(CLASSES, budget * RADIUS)  # explicit, inputs bounded
    require(etf_loss(CLASSES, twice * RADIUS) < infimum, "features bounded: (33) < inf L_DEQ")
    require(infimum < least_explicit, "inputs bounded: (22) < inf L_EX")
    for p, times in zip(both, (1, 2), strict=True):
        above = p + F(1, 2000)
        below = p - F(1, 2000)
        low = _value(above, times * (1 - above) * d)
        high = _value(below, times * (1 - below) * d)
        fits = low < infimum and infimum < high
        require(fits, "the paper's factor, other constants for each: both can be infima")
    log_k = log(F(CLASSES))
    _, explicit_high = _least_loss(BUDGET)
    deq_low, _ = _least_loss(FROM_1)
    require(2 * explicit_high - deq_low < log_k, "from 1: C4 < log K")
    return require(2 * least_explicit - infimum > log_k, "C4 > log K")


def _value(p: F, subtracted: F) -> Interval:
    """H(p) + p log(K−1) − subtracted, with the entropy H: (22) and (33) have this form."""
    return p * log((CLASSES - 1) / p) - (1 - p) * log(1 - p) - subtracted


@states(
    "App. B.2, below (21) and (32): Theorem 3.1, NC2, with the budget on H0 alone",
    "WWᵀ = √(E_W/E_H) W H = (K E_W/(K−1)) (1_K − 11ᵀ/K)",
    "false",
    reading=PROOFS,
)
def nc31_proofs_reading(root: F = F(3)) -> bool:
    """K = 10, E_W = E_H = 1/100: rank-one logits have a lower loss than every ETF-shaped point,
    explicit and DEQ (sum from 0 or 1). The theorem as printed holds (thm31_nc2).

    Inputs bounded, r = E_H, √(K−1) = 3.

    Proof. Let a feasible point have features with K−1 equal singular values s, as an ETF has. ‖Z‖_*
    ≤ √(K E_W) √(K−1) s. Explicit, H = M H0: (K−1)s = ‖H‖_* ≤ r ‖H0‖_F, so ‖Z‖_* ≤ B r/√(K−1). Sum
    from 0, (I − M)H = H0: ‖H0‖_F ≥ s(√(K−1) − r), so ‖Z‖_* ≤ B √(K−1)/(√(K−1) − r). Sum from 1, H =
    M H0 + M H: (K−1)s ≤ r‖H0‖_F + s r √(K−1), so ‖Z‖_* ≤ B r/(√(K−1) − r). If instead the
    classifier has K−1 equal singular values t, ‖Z‖_* ≤ t ‖P A H0‖_* with a projection P of rank K−1
    and t = √(K E_W)/√(K−1), ‖P A H0‖_* ≤ ‖P A‖_F ‖H0‖_F, and ‖P A‖_F ≤ r; √(K−1) + r/(1−r);
    r/(1−r): the second numbers of `gains` below. The loss of all of these is at least
    `exact.etf_loss` there. (With the budget on h too and the sum from 0, h0 = h and W_DEQ = 0 reach
    the optimum of `thm31_nc2`.)

    Rank one: u = (1, −1, 1, …)/√K, a unit f, W = √(K E_W) u fᵀ, M = r f fᵀ, H0 = √(K E_H) f uᵀ is
    feasible with Z = g B uuᵀ, g = r, 1/(1−r), r/(1−r); its logits are ±gB/K, the right class with
    +. Its loss is lower.
    """
    r = BUDGET
    # of each model: the gain of rank one, and the largest nuclear norm of ETF-shaped logits over B
    gains = {
        "explicit": (r, r / root),
        "sum from 0": (FROM_0, max(root / (root - r), 1 + r / (1 - r) / root)),
        "sum from 1": (FROM_1, max(r / (root - r), r / (1 - r) / root)),
    }
    for name, (rank_one, flat) in gains.items():
        _, loss = _least_loss(rank_one)
        require(loss < etf_loss(CLASSES, flat * RADIUS), f"{name}: rank one has the lower loss")
    return True


@states(
    "App. C.2, (51)–(52): Proposition 4.2, majority, from the budget on H0",
    "each feature collapses to K_A-Simplex ETF",
    "false",
    reading=PROOFS,
)
def prop42_proofs_reading(most: F = F(1, 2)) -> bool:
    """K = 10, K_A = 5, R = 10⁶, E_W = E_H = 1/100, explicit: rank-one logits lower the loss by
    2.0e-4, a K_A-ETF by at most 1.0e-4. As printed the proposition holds there (prop42).

    Inputs bounded, minority logits 0 (w_B = 0), weights w_A of a majority class, w_B of a minority
    class.

    Proof. Features of a K_A-ETF have K_A − 1 = 4 equal singular values s, and 4s ≤ r‖H0‖_F as
    above, so ‖Z_A‖_* ≤ √(K E_W) 2s ≤ B r/2. The loss is convex in Z and its gradient at 0 has, on
    majority columns, the spectral norm w_A ‖[I; 0] − 11ᵀ/10‖ ≤ w_A, so the loss falls by at most
    w_A B r/2.

    Rank one on (1, 1, −1, −1, 0)/2 has ‖Z_A‖_* = B r, logits ±B r/4 in four classes.
    """
    w_a = F(10**6, 5 * 10**6 + 5)
    q = RADIUS * BUDGET / 4
    rank_one = cross_entropy([q, q, -q, -q, *[F(0)] * 6], 0)
    fall = 4 * w_a * (log(F(CLASSES)) - rank_one)
    drop = w_a * RADIUS * BUDGET * most
    require(fall > drop and drop < F(1, 10**4), "rank one falls further")
    require(fall > F(195, 10**6) and fall < F(205, 10**6), "by 2.0e-4")
    # ‖[I; 0] − 11ᵀ/10‖ ≤ 1 on five columns: its Gram matrix is I − 11ᵀ/10, eigenvalues 1 and 1/2
    a = matrix(CLASSES, 5, lambda j, k: (j == k) - F(1, CLASSES))
    gram = identity(5) - matrix(5, 5, lambda i, j: F(1, 10))
    return require(a.T @ a == gram, "the gradient's norm")


@states(
    "App. B.2, below (21) and (32): Theorem 3.1, NC3, with the budget on H0 alone",
    "h_k,i = C5 w_k, demonstrating the validity of NC3",
    "false",
    reading=PROOFS,
)
def nc31_nc3_proofs_reading(mu: tuple[F, F] = (F(12, 25), F(7, 50))) -> bool:
    """K = 3, E_H = 1/2, E_W = 8/25, sum from 0: every point with W ∥ Hᵀ that is stationary loses to
    a feasible one by more than 0.004. The theorem as printed holds (thm31_nc3).

    Inputs bounded, h = (I − M)⁻¹ h0, A = (I − M)⁻¹; W ∥ Hᵀ means one factor C5 for all classes.

    Proof. A minimiser has G Hᵀ = −λ_W W, AᵀWᵀG = −λ_h H0, AᵀWᵀGHᵀ = −λ_M M. Since 1ᵀG = 0, 1ᵀW = 0.
    By the slack lemma (`thm31_nc1`) AᵀWᵀG is not 0, so H0 spends its budget and λ_h > 0. The first
    times W and the second times H0 say ⟨G, Z⟩ = −λ_W ‖W‖² = −λ_h ‖H0‖² < 0, so λ_W > 0 too.
    Multiplying the second by Hᵀ, λ_M M = λ_h (I − M)HHᵀ, which is not 0: λ_M > 0, all budgets are
    spent, and M = cHHᵀ(I + cHHᵀ)⁻¹ is symmetric. By the first and third WᵀW = (λ_M/λ_W)(I − M)M.
    For an eigenvalue μ > 0 of M: ‖h‖² ∝ μ/(1−μ), ‖w‖² ∝ μ(1−μ). If W ∥ Hᵀ, (1−μ)² is the same for
    all of them: M = (E_H/√r) P_r, and Z = (B_r/r) Π with a projection Π of rank r orthogonal to 1,
    B_r = B/(1 − E_H/√r), B = K√(E_W E_H) = 6/5. Rank 2: Π = I − 11ᵀ/3. Rank 1: Π = xxᵀ/‖x‖²;
    permutations and signs bring x to (1, t−1, −t), 0 ≤ t ≤ 1/2. Rank 0 has the loss log 3.

    Feasible: M with eigenvalues μ_1, μ_2, μ_1² + μ_2² = E_H², ‖w_i‖² and ‖h0_i‖² ∝ μ_i(1−μ_i), on u
    = (1, −1, 0)/√2 and v = (1, 1, −2)/√6: Z = Σ B μ_i/(Σ μ(1−μ)) · (uuᵀ, vvᵀ).
    """
    e_h = F(1, 2)
    e_w = F(8, 25)
    b = F(6, 5)
    require(b**2 == 9 * e_h * e_w, "B = K √(E_W E_H)")
    require(mu[0] ** 2 + mu[1] ** 2 <= e_h**2, "the budget of M")
    u = Matrix([[1, -1, 0]])
    v = Matrix([[1, 1, -2]])
    scale = b / sum(m * (1 - m) for m in mu)
    z = scale * mu[0] / 2 * (u.T @ u) + scale * mu[1] / 6 * (v.T @ v)
    reached = sum(cross_entropy(row, k) for k, row in enumerate(z)) + 3 * F(4, 1000)
    etf = log(1 + 2 * exp(-b / (2 - 2 * e_h / sqrt(F(2)))))
    require(reached < 3 * etf, "the ETF has the larger loss")
    for n in range(96):
        t = Interval(F(n, 192), F(n + 1, 192))
        x = (Interval(1), t - 1, -t)
        length = 2 * (t - F(1, 2)) * (t - F(1, 2)) + F(3, 2)  # ‖x‖²
        over = b / (1 - e_h) / length
        loss = Interval(0)
        for own in x:
            loss = loss + log(sum(exp(over * own * (other - own)) for other in x))
        require(reached < loss, f"rank one at t in {t} has the larger loss")
    return True


# --- second derivations of the two false statements -----------------------------------------------
#
# They share no code with the first ones: bounds of exp are those of `decimal`, whose results are
# correctly rounded, widened by one unit.

_DIGITS = Context(prec=40)


@second_derivation("thm_b3")
def infima_by_duality() -> bool:
    """One number is below every feasible loss of both problems and is attained in both: the infima
    are equal.

    Balanced, n_k = 1, d = K, any E_W, E_H; write t = exp(a) with a = K √(E_W E_H)/(K−1). The
    gradient at Z° = a (I − 11ᵀ/K) has entries (p_jk − δ_jk)/K, p = t/(t+K−1) on the diagonal and
    1/(t+K−1) off it. It equals −λ(I − 11ᵀ/K), λ = 1/(t+K−1): a projection times −λ, so ⟨G, Z⟩ ≥
    −λ‖Z‖_* ≥ −λK√(E_W E_H) = ⟨G, Z°⟩ for feasible Z, and by convexity no loss is lower than that of
    Z°. Attained: W and H multiples of I − 11ᵀ/K, h the features, h0 = h with W_DEQ = 0, or h0 =
    h·d/E_H with W_EX = (E_H/d) I. Any positive difference between the infima is thereby excluded.
    """
    for classes, t in product((2, 3, 4, 10), (F(10**6 + 1, 10**6), F(3, 2), F(40))):
        multiplier = 1 / (t + classes - 1)
        on_diagonal = (multiplier * t - 1) / classes
        off_diagonal = multiplier / classes
        if on_diagonal != -multiplier * (1 - F(1, classes)):
            return False
        if off_diagonal != multiplier * F(1, classes):
            return False
    budgets = ((F(1, 100), 10), (F(1, 2), 3), (F(4), 2))
    return all(d * (e / d) ** 2 <= e**2 for e, d in budgets)


@second_derivation("thm41_nc3")
def ratio_is_one_by_duality() -> bool:
    """K = 10, K_A = 3, R = 100, E_W = E_H = 1/100, budget on h: Z° = a (I − 11ᵀ/3) ⊕ 0 minimises
    the loss of both models.

    Z° is symmetric and positive semidefinite, so ⟨Wᵀ, H⟩ = tr Z° = ‖Z°‖_* = ‖W‖_F ‖H‖_F at every
    minimiser: H is a positive multiple of Wᵀ, cos(h_k, w_k) = 1 in each majority class of both
    models, and their ratio is 1, not larger. (The minimiser is unique in Z up to what the nuclear
    norm excludes, as for balanced classes.) (62): 1/2 + 99/10⁴ < 2.
    """
    e = F(1, 100)
    condition = e / (2 * e) + e * (1 - e)
    return condition < 2 and _collapse_is_optimal(10, 3, 100, e)


def _collapse_is_optimal(classes: int, majority: int, ratio: int, budget: F) -> bool:
    """Whether Z° = a (I − 11ᵀ/K_A) ⊕ 0, a (K_A−1) = K·budget, minimises the imbalanced loss, by its
    gradient's norm.

    A majority class has the weight R/N and a minority class 1/N, N = K_A R + K_B. On vectors that
    sum to 0 over the majority the gradient is −λ, λ = (R/N)(1 − p_own + p_other); over the minority
    −1/N (softmax is uniform there); the rest is a 2×2 block on the two constant vectors, whose
    Frobenius norm is compared with λ.
    """
    minority = classes - majority
    a = classes * budget / (majority - 1)
    own_low, own_high = _exp_bounds(a * F(majority - 1, majority))
    other_low, other_high = _exp_bounds(-a / majority)
    total_low = own_low + (majority - 1) * other_low + minority
    total_high = own_high + (majority - 1) * other_high + minority
    samples = majority * ratio + minority
    heavy = F(ratio, samples)
    light = F(1, samples)
    multiplier = heavy * (1 - own_high / total_low + other_low / total_high)
    escaped = minority / total_low  # at most this probability of a majority sample
    uniform = F(majority, classes)  # of a minority sample, to the majority
    constant = F(1, majority) + F(1, minority)
    from_majority = heavy**2 * majority * escaped**2 * constant
    from_minority = light**2 * minority * uniform**2 * constant
    return light <= multiplier and from_majority + from_minority <= multiplier**2


def _exp_bounds(q: F) -> tuple[F, F]:
    """Bounds of exp(q)."""
    near = _DIGITS.divide(Decimal(q.numerator), Decimal(q.denominator))
    low = near.next_minus(_DIGITS).exp(_DIGITS)
    high = near.next_plus(_DIGITS).exp(_DIGITS)
    return F(low.next_minus(_DIGITS)), F(high.next_plus(_DIGITS))
