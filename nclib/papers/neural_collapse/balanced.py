"""Lemma B.1, Remark B.2, Theorem 3.1 and Theorem B.3: what the paper states for balanced classes."""

import random
from fractions import Fraction as F
from math import prod

from nclib.papers.certify import require, states
from nclib.papers.exact import (
    Matrix,
    centring,
    identity,
    inner,
    inverse,
    matrix,
    norm2,
    random_matrix,
    random_orthogonal,
)


def _bound(own: F, others: list[F], p: F) -> tuple[F, int]:
    """exp(n · bound) of Lemma B.1 and n, where n = (K−1) · denominator of p makes it rational."""
    k1, a, b = len(others), p.numerator, p.denominator
    return own ** (k1 * a) / prod(others) ** a * (p / k1) ** (k1 * a) * (1 - p) ** (k1 * (b - a)), k1 * b


@states("App. B.1, Lemma B.1, (15)–(17)", "log(δ_k/Σδ) ≤ M1 (log δ_k − mean of log δ_k′) + M2", "holds")
def lemma_b1(equality: F = F(1)) -> bool:
    """Its misprint corrected, as (17) does: (15) prints δ_k in the inner sum and is false so (step_15). Gibbs'
    inequality; 120 rational instances of (17), both sides as powers, and equality at the right weights.

    Read with the index of (17), δ_k′ in the inner sum.

    Proof. Let S = Σδ, p = C2/(C1+C2), q_k = 1 − p and q_j = p/(K−1) for j ≠ k. Since log x ≤ x − 1,
    Σ_j q_j log(δ_j/(q_j S)) ≤ Σ_j (δ_j/S − q_j) = 0, that is Σ_j q_j log δ_j − Σ_j q_j log q_j ≤ log S. Subtract from
    log δ_k: log(δ_k/S) ≤ p (log δ_k − mean of log δ_j) + p log(p/(K−1)) + (1−p) log(1−p). The constant is M2 as printed
    after (17), because C3 = p/(K−1) and C1/(C1+C2) = 1 − p. Equality holds iff δ_j = q_j S for all j.
    """
    rng = random.Random(1)
    for _ in range(120):
        others = [F(rng.randint(1, 30), rng.randint(1, 9)) for _ in range(rng.choice((1, 2, 4)))]
        own, p = F(rng.randint(1, 60), rng.randint(1, 9)), F(rng.randint(1, 5), 6)
        right, n = _bound(own, others, p)
        require((own / (own + sum(others))) ** n <= right, f"(17) at δ = {own}, {others}, p = {p}")
    for num_classes, p in ((3, F(4, 5)), (10, F(9, 10)), (4, F(1, 3))):
        others = [p / (num_classes - 1)] * (num_classes - 1)
        right, n = _bound(1 - p, others, p)
        require((1 - p) ** n == equality * right, "equality at δ = q")
    return True


@states(
    "App. B.1, Remark B.2, (18)",
    "when C2/C1 = exp(Δ)/(K−1), the right term of the inequality in lemma B.1 reaches its maximum",
    "typo",
)
def remark_b2(printed: F = F(4), correct: F = F(1, 4)) -> bool:
    """The ratio is inverted, and the derivatives (18), from which its proof takes it, are inverted too; (24) has it
    right: C2/C1 = (K−1) exp(−Δ), and a minimum; K = 3, δ = (8, 1, 1).

    Proof. With p = r/(1+r), r = C2/C1, the right side is M(p) = p Δ + p log(p/(K−1)) + (1−p) log(1−p), and
    M″ = 1/(p(1−p)) > 0: its critical point is a minimum. M′ = Δ + log r − log(K−1) vanishes at r = (K−1) exp(−Δ). In
    (18) the logarithm has C2/C1 where the derivative has C1/C2. Set to 0 it gives the paper's ratio, and beyond that
    ratio it has the wrong sign. Solved for the logits, (24) h·w_k = h·w_k′ + log(C1(K−1)/C2) says exp(Δ) = (K−1)
    C1/C2, the correct ratio.

    Here exp(Δ) = 8: the correct ratio is 2/8, the paper's 8/2.
    """
    own, others = F(8), [F(1), F(1)]
    softmax = own / (own + sum(others))
    require(printed == own / 2 and correct == 2 / own, "the two ratios at Δ = log 8, K = 3")
    require(own == 2 / correct, "(24): exp(Δ) = (K−1) C1/C2")
    require(own == 2 * printed, "(18) is 0 at the paper's ratio: Δ = log((K−1) C2/C1)")
    bounds = {r: _bound(own, others, r / (1 + r)) for r in (F(1, 20), F(1, 5), correct, F(1, 3), printed, 2 * printed)}
    best, n = bounds[correct]
    require(best == softmax**n, "at the correct ratio the bound is attained")
    for ratio, (value, m) in bounds.items():
        require(value**n > best**m or ratio == correct, f"larger at ratio {ratio}: the correct ratio is a minimum")
    (at_printed, m), (beyond, k) = bounds[printed], bounds[2 * printed]
    require(beyond**m > at_printed**k, "larger still at twice the paper's ratio, where (18) says that it falls")
    return require(at_printed > 1, "at the paper's ratio the bound is positive, so it is no evidence")


@states("§3, Theorem 3.1, NC1", "W_EX h0_k,i = W_EX h0_k and f(h0_k,i; W_DEQ) = f(h0_k; W_DEQ)", "holds")
def thm31_nc1(share: F = F(1)) -> bool:
    """Its misprint corrected: h0_k is the mean (printed as a sum, false for n ≥ 2). H0 free, with the budget on h or
    on h0; with H0 given it fails (h0_given). Our proof (averages, slack); the paper's, of the DEQ half, rests on (36),
    which is false.

    For any numbers of samples n_k, H0 free, with the budget on h or on h0, explicit layer and DEQ alike.

    Proof. (a) Slack: at a minimiser with loss below log K, no budget on features (or inputs) is slack. Otherwise the
    loss is stationary in them: Wᵀ(p_k − e_k) = 0 for the softmax p_k of each sample (times the invertible map, or W_EX;
    replace W by W W_EX), so w_k = Σ_j p_kj w_j with all p_kj > 0. For any vector u take the k with the largest ⟨u,
    w_k⟩: it is a mean with positive weights, so all ⟨u, w_j⟩ are equal. All w_j are equal, and the loss is log K.
    (b) Averages: replace the features (inputs) of a class by their mean. Loss falls or stays (cross-entropy is
    convex in the logits, the logits linear), and the mean of ‖h_i‖² falls by the mean of ‖h_i − h̄‖². Unless all are
    equal a budget is slack at a minimiser, which (a) excludes. The mean of h is the map of the mean of h0, since
    both maps are linear. A minimiser with loss log K exists only where a budget is 0.
    (c) h0_k as the paper's sum of n ≥ 2 equal h0_k,i is n h0_k,i, whose feature is n h_k,i: not h_k,i unless it is 0.
    """
    rng = random.Random(2)
    for n in (2, 3, 5):
        h = random_matrix(rng, 4, n)
        mean = Matrix([sum(row) / n] for row in h)
        spread = norm2(h - mean @ matrix(1, n, lambda i, j: 1))
        require(norm2(h) - n * norm2(mean) == share * spread > 0, "the norm falls by the within-class sum of squares")
    for n, num_classes in ((2, 3), (2, 10)):  # Jensen with logits that are multiples of 2 log 2: all exponentials exact
        z = [[rng.randint(-4, 4) * 2 for _ in range(num_classes)] for _ in range(n)]
        at_mean = sum(F(2) ** ((a + b) // 2) for a, b in zip(*z, strict=True))
        require(at_mean**2 <= prod(sum(F(2) ** a for a in column) for column in z), "cross-entropy is convex")
    return True


@states("§3, Theorem 3.1, NC2, and (26)", "WWᵀ = √(E_W/E_H) W H = (K E_W/(K−1)) (1_K − 11ᵀ/K)", "holds")
def thm31_nc2(scale: F = F(1)) -> bool:
    """Its misprints corrected: 1_K, K×K in (26), is the identity, and H0 stands for the class means. H0 free, the
    budget on h. Our proof (duality, uniqueness): gradient −λ C_K with ‖C_K‖ = 1 at every size of the logits.

    As printed (budget on h), D ≥ K − 1. Both problems allow the same (W, h), see `thm_b3`.

    Proof. By `thm31_nc1` let H have one column a class. The loss is a convex function of Z = WH, and ‖Z‖_* ≤ B. At
    Z° = a C_K, a (K−1) = B, its gradient is G = −λ C_K, λ = 1/(exp(a) + K − 1): softmax is t/(t+K−1) on the diagonal
    and 1/(t+K−1) off it, t = exp(a). C_K is a projection, so the spectral norm of G is λ and for every feasible Z:
    f(Z) ≥ f(Z°) + ⟨G, Z − Z°⟩ ≥ f(Z°) − λB + λ a (K−1) = f(Z°). Uniqueness: cross-entropy is strictly convex but for a
    constant added to a column (its Hessian diag(p) − ppᵀ has the kernel 1), so another minimiser is Z = a C_K + 1cᵀ.
    ZᵀZ = a² C_K + K ccᵀ, whose root has a larger trace unless c = 0. So Z = a C_K; then `thm31_nc3` gives
    H = √(E_H/E_W) Wᵀ, and WWᵀ = √(E_W/E_H) Z = (K E_W/(K−1)) C_K, since a = K √(E_W E_H)/(K−1).
    """
    rng = random.Random(3)
    for num_classes in (2, 3, 10):
        centre = centring(num_classes)
        require(centre @ centre == centre, "C_K is a projection")
        for t in (F(101, 100), F(2), F(50)):  # exp(a)
            s = t + num_classes - 1
            softmax = (1 / s) * (matrix(num_classes, num_classes, lambda j, k: 1) + (t - 1) * identity(num_classes))
            require(softmax - identity(num_classes) == (-scale * num_classes / s) * centre, "the gradient is −λ C_K")
        c = random_matrix(rng, num_classes, 1)
        z = F(7, 3) * centre + matrix(num_classes, num_classes, lambda j, k, c=c: c[k][0])
        require(z.T @ z == F(49, 9) * centre + num_classes * (c @ c.T), "ZᵀZ = a²C + K ccᵀ")
    return True


@states("§3, Theorem 3.1, NC3", "W_EX h0_k ∥ W_k and f(h0_k; W_DEQ) ∥ W_k", "holds")
def thm31_nc3(trace: F = F(1)) -> bool:
    """H0 free, the budget on h: our proof (tr Z = ‖W‖ ‖H‖ forces H ∥ Wᵀ), equality at the optimum, K = 2, 5, 10.

    As printed.

    Proof. The minimiser Z = a C_K (`thm31_nc2`) is symmetric and positive semidefinite, so tr(WH) = tr Z = ‖Z‖_* = B.
    But tr(WH) = ⟨Wᵀ, H⟩ ≤ ‖W‖_F ‖H‖_F ≤ √(K E_W) √(K E_H) = B. So there is equality in Cauchy and Schwarz's inequality:
    H = √(E_H/E_W) Wᵀ.
    """
    rng = random.Random(4)
    for num_classes, root in ((2, F(1)), (5, F(2)), (10, F(3))):  # root = √(K−1)
        e_w, e_h = F(1, 100), F(4, 25)  # √(E_W E_H) = 1/25
        a = num_classes * F(1, 25) / (num_classes - 1)
        require(a * (num_classes - 1) == trace * num_classes * F(1, 25), "tr Z = ‖Z‖_* = B")
        # W = s C_K with s² (K−1) = K E_W; numbers are rational after a factor √K, which both sides share
        w, h = F(1, 10) / root * centring(num_classes), F(2, 5) / root * centring(num_classes)
        require(norm2(w) == e_w and norm2(h) == e_h, "both budgets are spent (after the factor √K)")
        require(inner(w, h) ** 2 == norm2(w) * norm2(h), "equality for H ∥ Wᵀ")
        other = random_orthogonal(rng, num_classes) @ h
        require(inner(w, other) < inner(w, h), "strictly less when the features are turned")
    return True


@states(
    "App. B.2, Theorem B.3, (22), (33)",
    "DEQ achieves a lower bound on the loss function compared to explicit neural network …: inf L_DEQ = −2C1K/(K−1) "
    "√(E_W E_H) + C2, while the lower bound of loss function of explicit neural network remains: inf L_EX = −C1K/(K−1) "
    "√(E_W E_H) + C2 [read as infima of (7) and (9), H0 free in each]",
    "false",
)
def thm_b3(scale: F = F(1)) -> bool:
    """Budget on h: the infima are equal (any n_k, series from 0 or 1), the two values differ unless C1 = 0. As lower
    bounds both are valid (constants of Lemma B.1) and order nothing. With H0 the same for both models the order is
    right (b3_same_inputs_series_from_1, b3_same_inputs_series_from_0), but then Theorem 3.1 fails (h0_given).

    Read as infima of (7) and (9), each minimised over its own H0, with the budget on h as printed.

    Proof. The constraints on (W, h) and the loss are the same in both problems; they differ in how h is reached. Every
    h is reached, with d = dim h, E_H > 0 and free H0,
      by (7) with W_EX = (E_H/d) I, of norm E_H/√d ≤ E_H, and h0 = (d/E_H) h;
      by (9), sum from 0, with W_DEQ = 0 and h0 = h;
      by (9), sum from 1, with W_DEQ = τI, τ = min(E_H/d, 1/2), and h0 = ((1−τ)/τ) h.
    So the sets of attainable losses are equal, and so are the infima, whatever n_k, d, E_W and E_H. The printed
    difference C1K/(K−1) √(E_W E_H) is 0 only for C1 = 0.
    What this does not say. The two models reach the same (W, h) from different inputs here, (d/E_H) h and h. With H0
    the same for both, which the paper assumes before Theorem 3.1, the paper's order is right: weakly for every H0 with
    the series of B.1, strictly with the series from 0 for independent inputs within E_H ≤ 1. With the budget on H0 it
    is right and strict for every E_H (`inputs_bounded`). As lower bounds, with the constants of Lemma B.1, (22) and
    (33) are at most the loss of nuclear norm B and 2B (`inputs_bounded.b3_v2_values`): both lie below the common
    infimum, so both are valid. Where the order is strict, some C1 > 0 and C2 solve the two equations, as they would
    for any two numbers in that order.
    """
    rng = random.Random(5)
    for num_classes, d, n, e_h in ((3, 3, 2, F(1, 100)), (4, 5, 1, F(1, 2)), (10, 10, 1, F(1, 100)), (2, 1, 2, F(3))):
        w, h = random_matrix(rng, num_classes, d), random_matrix(rng, d, num_classes * n + 1)  # unequal n_k
        unit, tau = identity(d), min(e_h / d, F(1, 2))
        maps = {
            "explicit": (e_h / d * unit, e_h / d * scale * unit, d / e_h),
            "DEQ from 0": (0 * unit, unit, F(1)),
            "DEQ from 1": (tau * unit, inverse(unit - tau * unit) - unit, (1 - tau) / tau),
        }
        for name, (weight, layer, factor) in maps.items():
            require(norm2(weight) <= e_h**2, f"{name}: the budget of the map")
            require(w @ layer @ (factor * h) == w @ h, f"{name}: the logits of (W, h)")
    return True
