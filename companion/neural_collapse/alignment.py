"""NC3 where the paper has it and where it says that there is none."""

from __future__ import annotations

from fractions import Fraction as F

from companion.certify import require, states
from companion.exact import Interval, Matrix, cross_entropy, exp, log, sqrt


@states(
    "App. B.2, below (21) and (32): Theorem 3.1, NC3, with the budget on H0 alone",
    "h_k,i = C5 w_k, demonstrating the validity of NC3",
    "false",
    "K = 3, E_H = 1/2, E_W = 8/25, sum from 0: every stationary point with W ∥ Hᵀ loses to a feasible one by more than "
    "0.004. The theorem as printed holds (thm31_nc3)",
    reading="proofs'",
)
def nc31_nc3_proofs_reading(mu: tuple[F, F] = (F(12, 25), F(7, 50))) -> bool:
    """Inputs bounded, h = (I − M)⁻¹ h0, A = (I − M)⁻¹; W ∥ Hᵀ means one factor C5 for all classes.

    Proof. A minimiser has G Hᵀ = −λ_W W, AᵀWᵀG = −λ_h H0, AᵀWᵀGHᵀ = −λ_M M. Since 1ᵀG = 0, 1ᵀW = 0. By the slack lemma
    (`balanced.thm31_nc1`) AᵀWᵀG is not 0, so H0 spends its budget and λ_h > 0. The first times W and the second times
    H0 say ⟨G, Z⟩ = −λ_W ‖W‖² = −λ_h ‖H0‖² < 0, so λ_W > 0 too. Multiplying the second by Hᵀ, λ_M M = λ_h (I − M)HHᵀ,
    which is not 0: λ_M > 0, all budgets are spent, and M = cHHᵀ(I + cHHᵀ)⁻¹ is symmetric. By the first and third WᵀW =
    (λ_M/λ_W)(I − M)M. For an eigenvalue μ > 0 of M: ‖h‖² ∝ μ/(1−μ), ‖w‖² ∝ μ(1−μ). If W ∥ Hᵀ, (1−μ)² is the same for
    all of them: M = (E_H/√r) P_r, and Z = (B_r/r) Π with a projection Π of rank r orthogonal to 1, B_r = B/(1 −
    E_H/√r), B = K√(E_W E_H) = 6/5. Rank 2: Π = I − 11ᵀ/3. Rank 1: Π = xxᵀ/‖x‖²; permutations and signs bring x to (1,
    t−1, −t), 0 ≤ t ≤ 1/2. Rank 0 has the loss log 3.
    Feasible: M with eigenvalues μ_1, μ_2, μ_1² + μ_2² = E_H², ‖w_i‖² and ‖h0_i‖² ∝ μ_i(1−μ_i), on u = (1, −1, 0)/√2 and
    v = (1, 1, −2)/√6: Z = Σ B μ_i/(Σ μ(1−μ)) · (uuᵀ, vvᵀ).
    """
    e_h, b = F(1, 2), F(6, 5)
    require(b**2 == 9 * e_h * F(8, 25) and mu[0] ** 2 + mu[1] ** 2 <= e_h**2, "budgets")
    first, second = (b * m / sum(m * (1 - m) for m in mu) for m in mu)
    u, v = Matrix([[1], [-1], [0]]), Matrix([[1], [1], [-2]])
    z = first / 2 * (u @ u.T) + second / 6 * (v @ v.T)
    mixed = sum(cross_entropy(column, k) for k, column in enumerate(z.T))
    etf = log(1 + 2 * exp(-b / (2 * (1 - e_h / sqrt(F(2))))))
    require(mixed + 3 * F(4, 1000) < 3 * etf, "the ETF has the larger loss")
    size, pieces = b / (1 - e_h), 96
    for n in range(pieces):
        t = Interval(F(n, 2 * pieces), F(n + 1, 2 * pieces))
        x = (Interval(1), t - 1, -t)
        over = size / (2 * (t - F(1, 2)) * (t - F(1, 2)) + F(3, 2))  # ‖x‖² = 2(t − 1/2)² + 3/2
        loss = sum(log(sum(exp(over * own * (other - own)) for other in x)) for own in x)
        require(mixed + 3 * F(4, 1000) < loss, f"rank one at t in {t} has the larger loss")
    return True


@states(
    "App. C.2, below (54)",
    "NC2 and NC3 do not hold under imbalanced dataset conditions",
    "false",
    "read of every budget, H0 free and the budget on h: at the paper's own NC3 holds, W ∥ Hᵀ at every minimiser, K = "
    "10, K_A = 3, 5, 7, R = 10, 50, 100 (gradient)",
)
def after_54(factor: F = F(1)) -> bool:
    """As printed, E_W = E_H = 1/100.

    Proof. Z° = a C_A ⊕ 0, a (K_A−1) = K/100 = B. Its gradient splits into −w_A(1−s_A) on C_A, −w_B on C_B (softmax
    is uniform on minority samples), and a 2×2 block on 1_A, 1_B: majority column w_A(−P_B/K_A; P_B/K_B), minority
    column w_B(1/K; −K_A/(K K_B)). If the second and third have norms of at most λ = w_A(1−s_A), Z° is a minimiser
    (`balanced.thm31_nc2`). Z° is the only one: the loss is strictly convex but for constants added to columns, and
    Z° + 1cᵀ has a larger nuclear norm unless c = 0. Z° is symmetric and positive semidefinite, so H = √(E_H/E_W) Wᵀ
    by the argument of `balanced.thm31_nc3`. (NC2 for all K classes does not hold: minority classifiers and features
    are 0. Nor is this to say that NC3 holds at other budgets.)
    """
    for majority in (3, 5, 7):
        minority, a = 10 - majority, factor * F(1, 10) / (majority - 1)
        own, other = exp(a * (1 - F(1, majority))), exp(-a / majority)
        whole = own + (majority - 1) * other + minority
        for ratio in (10, 50, 100):
            w_a, w_b = F(ratio, majority * ratio + minority), F(1, majority * ratio + minority)
            multiplier, p_b = w_a * (1 - (own - other) / whole), minority / whole
            block = (p_b * w_a) * (p_b * w_a) * majority * (F(1, majority) + F(1, minority))
            block = block + w_b**2 * minority * (F(majority, 100) + F(majority**2, 100 * minority))
            require(multiplier > w_b, f"K_A = {majority}, R = {ratio}: the minority's part of the gradient")
            require(block < multiplier * multiplier, f"K_A = {majority}, R = {ratio}: the block of the gradient")
    return True
