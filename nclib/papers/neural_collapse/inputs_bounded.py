"""The reading of the proofs: the budget E_H is on the inputs H0, as (21) and (32) use it, or H0 is given."""

from __future__ import annotations

import random
from fractions import Fraction as F

from nclib.papers import exact
from nclib.papers.certify import require, states

_K, _E = 10, F(1, 100)  # the paper's classes and budgets, E_W = E_H
_B = _K * _E


@states(
    "App. B.2, below (33)",
    "the loss function of the DEQ layer is … lower than that of the explicit neural network",
    "holds",
    "our proof (singular values), E_H < 1: with inputs bounded or given, the DEQ reaches all logits of the explicit "
    "layer with a budget to spare; constructions checked on rational instances, sum from 0 and from 1",
    reading="proofs'",
)
def b3_v2_order(scale: F = F(1)) -> bool:
    """inf L_DEQ < inf L_EX, any n_k, where H0 obeys the budget (or is given with independent columns) and E_H < 1.

    Proof. Let (W, M, H0) be feasible for the explicit layer, M = W_EX = U S Vᵀ, so ‖M‖_F = ‖S‖_F ≤ E_H < 1.
    Inputs bounded, sum from 0: W_DEQ = 0, h0′ = M h0: the same logits, and ‖H0′‖ ≤ E_H ‖H0‖.
    Inputs bounded, sum from 1: W′ = W U, W_DEQ = S, h0′ = (I − S)Vᵀh0: S(I − S)⁻¹h0′ = S Vᵀ h0; norms do not grow.
    H0 given, sum from 0: W_DEQ = 0, W′ = W M, and ‖W′‖_F ≤ E_H ‖W‖_F.
    H0 given, sum from 1: W_DEQ = V S Vᵀ, W′ = W U (I − S)Vᵀ: norms do not grow.
    In each case one budget is slack afterwards. Inputs bounded: by the slack lemma (`balanced.thm31_nc1`) the point
    is no minimiser of the DEQ. H0 given (and no budget on h): were it one, the loss would be stationary in W, G Hᵀ =
    0 at its logits Z, so ⟨G, Z⟩ = 0; but a minimiser of the explicit layer has WᵀG H0ᵀ ∝ M with a positive factor
    unless WᵀG = 0 (H0 has independent columns), so ⟨G, Z⟩ < 0 or the loss is log K. How much lower is not what (22)
    and (33) say (`b3_v2_values`); with a budget on h as well the order can be the reverse (`b3_given_inputs`).
    """
    rng = random.Random(11)
    for _ in range(4):
        w, h0 = exact.random_matrix(rng, 4, 3), exact.random_matrix(rng, 3, 4)
        u, v = exact.random_orthogonal(rng, 3), exact.random_orthogonal(rng, 3)
        s = exact.diagonal([F(rng.randint(1, 4), 10) for _ in range(3)])
        unit, vt = exact.identity(3), exact.transpose(v)
        m, rest = exact.product(u, s, vt), exact.plus(unit, s, -1)
        logits, size = exact.product(w, m, h0), exact.norm2(s)
        require(exact.norm2(m) == size < 1, "‖M‖ = ‖S‖ < 1")

        def series(weight: exact.Matrix, unit: exact.Matrix = unit) -> exact.Matrix:
            return exact.plus(exact.inverse(exact.plus(unit, weight, -1)), unit, -1)

        moved = exact.product(m, h0)
        require(exact.norm2(moved) <= size * exact.norm2(h0), "sum from 0, inputs bounded: budget")
        require(exact.product(w, moved) == exact.scaled(scale, logits), "sum from 0, inputs bounded: logits")
        turned = exact.product(rest, vt, h0)
        require(exact.norm2(turned) < exact.norm2(h0), "sum from 1, inputs bounded: budget")
        require(exact.product(w, u, series(s), turned) == logits, "sum from 1, inputs bounded: logits")
        require(exact.norm2(exact.product(w, m)) <= size * exact.norm2(w), "sum from 0, H0 given: budget")
        weight, w1 = exact.product(v, s, vt), exact.product(w, u, rest, vt)
        require(exact.norm2(weight) == size and exact.norm2(w1) < exact.norm2(w), "sum from 1, H0 given: budgets")
        require(exact.product(w1, series(weight), h0) == logits, "sum from 1, H0 given: logits")
    return True


@states(
    "no statement of the paper: a residual block h = (I + W_EX) h0 as the explicit model",
    "inf L_DEQ ≤ inf L_residual",
    "holds",
    "our proof (singular values, Mirsky), inputs bounded or given, E_H < 1, sum from 0; constructions checked on "
    "rational instances. With the budget on h both are equal, as in thm_b3",
    reading="ours",
)
def residual_order(scale: F = F(1)) -> bool:
    """Proof. I + M = U T Vᵀ, D = min(1, 2 − T) entry by entry, positive since T < 2, and D T ≤ 1. W_DEQ = U(I − D)Uᵀ
    has ‖I − D‖_F ≤ ‖T − I‖_F ≤ ‖M‖_F (Mirsky: tr(U T Vᵀ) ≤ tr T). Inputs bounded: h0′ = U D T Vᵀ h0, not longer, and
    (I − W_DEQ)⁻¹h0′ = U T Vᵀ h0. H0 given: W_DEQ = V(I − D)Vᵀ and W′ = W U D T Vᵀ, not longer: W′ V D⁻¹ Vᵀ = W U T Vᵀ.
    """
    rng = random.Random(12)
    for _ in range(4):
        w, h0 = exact.random_matrix(rng, 4, 3), exact.random_matrix(rng, 3, 4)
        u, v = exact.random_orthogonal(rng, 3), exact.random_orthogonal(rng, 3)
        values = [1 + F(rng.randint(-4, 4), 10) for _ in range(3)]
        unit, t, d = exact.identity(3), exact.diagonal(values), exact.diagonal([min(F(1), 2 - x) for x in values])
        block, both = exact.product(u, t, exact.transpose(v)), exact.product(d, t)
        size = exact.norm2(exact.plus(block, unit, -1))
        require(exact.norm2(exact.plus(d, unit, -1)) <= exact.norm2(exact.plus(t, unit, -1)) <= size, "Mirsky")
        logits = exact.scaled(scale, exact.product(w, block, h0))
        for left, outer, inner in ((u, w, exact.product(u, both, exact.transpose(v), h0)),
                                   (v, exact.product(w, u, both, exact.transpose(v)), h0)):  # fmt: skip
            weight = exact.product(left, exact.plus(unit, d, -1), exact.transpose(left))
            require(exact.norm2(weight) <= size, "the budget of W_DEQ")
            require(exact.norm2(outer) <= exact.norm2(w) and exact.norm2(inner) <= exact.norm2(h0), "the other budgets")
            layer = exact.inverse(exact.plus(unit, weight, -1))
            require(exact.product(outer, layer, inner) == logits, "the same logits")
    return True


@states(
    "App. B.2, (22) and (33)",
    "inf L_EX = −C1K/((C1+C2)(K−1)) √(E_W E_H) + C4, inf L_DEQ = −2C1K/((C1+C2)(K−1)) √(E_W E_H) + C4",
    "false",
    "K = 10, E_W = E_H = 1/100: solved for C4 the two formulas give C4 > log K, and no constants of Lemma B.1 do. "
    "Second derivation: by polynomials",
    reading="proofs'",
)
def b3_v2_values(budget: F = _E) -> bool:
    """Inputs bounded.

    Proof. ‖Z‖_* ≤ ‖W‖_F ‖map‖ ‖H0‖_F, and the map's norm is at most r = E_H (explicit), so inf L_EX is at least the
    balanced loss at nuclear norm rB (`exact.etf_loss`). W_DEQ = 0 gives inf L_DEQ ≤ the loss at B. The formulas have
    C4 = 2 inf L_EX − inf L_DEQ. In Lemma B.1, C4 = −M2 = H(p) + p log(K−1) ≤ log K. But 2 inf L_EX − inf L_DEQ > log K.
    """
    least_explicit = exact.etf_loss(_K, budget * _B)
    most_deq = exact.etf_loss(_K, _B)
    return require(2 * least_explicit - most_deq > exact.log(F(_K)), "C4 > log K")


@states(
    "App. B.1, min over (W, W_EX, H) and (W, W_DEQ, z*); §3, 'H0 … are the same'",
    "inf L_DEQ < inf L_EX (Theorem B.3)",
    "false",
    "H0 given, budget on h as in B.1: at K = 2, h0 = ±10, E_W = E_H = 1/100 the explicit problem has a loss "
    "below log 2 and the DEQ's (sum from 0) has no feasible point. Second derivation: an instance with three classes",
    reading="proofs'",
)
def b3_given_inputs(size: F = F(10)) -> bool:
    """B.1 does not minimise over H0. Proof that B.3 is not true for every H0: d = 1, h0 = (10, −10). Explicit: W_EX
    = 1/100, h = ±1/10, ‖h‖² = E_H, and w = ±1/10 gives every sample a positive margin, so a loss below log 2. DEQ: h
    = h0/(1 − w), |w| ≤ 1/100, so |h| ≥ 1000/101 > 1/10: the set is empty, its infimum is +∞.
    """
    e = F(1, 100)
    require((e * size) ** 2 <= e, "the explicit feature obeys the budget")
    require(F(1, 10) ** 2 <= e and F(1, 10) * e * size > 0, "the margin is positive within the budget of W")
    return require((size / (1 + e)) ** 2 > e, "every feature of the DEQ breaks the budget")


def _gains(r: F, root: F) -> dict[str, tuple[F, F]]:
    """Explicit layer and DEQ: size of the rank-one logits, and the largest nuclear norm of ETF-shaped ones, over B."""
    return {
        "explicit": (r, r / root),
        "sum from 0": (1 / (1 - r), max(root / (root - r), 1 + r / (1 - r) / root)),
        "sum from 1": (r / (1 - r), max(r / (root - r), r / (1 - r) / root)),
    }


@states(
    "App. B.2, conditions of equality of (21) and (32): Theorem 3.1, NC2, from the budget on H0",
    "WWᵀ = √(E_W/E_H) W H = (K E_W/(K−1)) (1_K − 11ᵀ/K)",
    "false",
    "K = 10, E_W = E_H = 1/100: rank-one logits have a lower loss than every ETF-shaped point, explicit and DEQ (sum "
    "from 0 or 1). Second derivation: by polynomials. The theorem as printed holds (thm31_nc2)",
    reading="proofs'",
)
def nc31_proofs_reading(root: F = F(3)) -> bool:
    """Inputs bounded, r = E_H, √(K−1) = 3.

    Proof. Let a feasible point have features with K−1 equal singular values s, as an ETF has. ‖Z‖_* ≤ √(K E_W)
    √(K−1) s. Explicit, H = M H0: (K−1)s = ‖H‖_* ≤ r ‖H0‖_F, so ‖Z‖_* ≤ B r/√(K−1). Sum from 0, (I − M)H = H0:
    ‖H0‖_F ≥ s(√(K−1) − r), so ‖Z‖_* ≤ B √(K−1)/(√(K−1) − r). Sum from 1, H = M H0 + M H: (K−1)s ≤ r‖H0‖_F + s r √(K−1),
    so ‖Z‖_* ≤ B r/(√(K−1) − r). If instead the classifier has K−1 equal singular values t, ‖Z‖_* ≤ t ‖P A H0‖_* with a
    projection P of rank K−1 and t = √(K E_W)/√(K−1), ‖P A H0‖_* ≤ ‖P A‖_F ‖H0‖_F, and ‖P A‖_F ≤ r; √(K−1) + r/(1−r);
    r/(1−r): the second numbers of `_gains`. The loss of all of these is at least `exact.etf_loss` there.
    Rank one: u = (1, −1, 1, …)/√K, a unit f, W = √(K E_W) u fᵀ, M = r f fᵀ, H0 = √(K E_H) f uᵀ is feasible with Z =
    g B uuᵀ, g = r, 1/(1−r), r/(1−r); its logits are ±gB/K, the right class with +. Its loss is lower.
    """
    for name, (one, flat) in _gains(_E, root).items():
        z = one * _B / _K
        rank_one = exact.cross_entropy([z, -z] * (_K // 2), 0)
        require(rank_one < exact.etf_loss(_K, flat * _B), f"{name}: rank one has the lower loss")
    return True


@states(
    "App. C.2, (51)–(52): Proposition 4.2, majority, from the budget on H0",
    "each feature collapses to K_A-Simplex ETF",
    "false",
    "K = 10, K_A = 5, R = 10⁶, E_W = E_H = 1/100, explicit: rank-one logits lower the loss by 2.0e-4, a K_A-ETF by at "
    "most 1.0e-4. Second derivation: by polynomials. As printed the proposition holds there (prop42)",
    reading="proofs'",
)
def prop42_proofs_reading(most: F = F(1, 2)) -> bool:
    """Inputs bounded, minority logits 0 (w_B = 0), weights w_A of a majority class, w_B of a minority class.

    Proof. Features of a K_A-ETF have K_A − 1 = 4 equal singular values s, and 4s ≤ r‖H0‖_F as above, so
    ‖Z_A‖_* ≤ √(K E_W) 2s ≤ B r/2. The loss is convex in Z and its gradient at 0 has, on majority columns, the
    spectral norm w_A ‖[I; 0] − 11ᵀ/10‖ ≤ w_A, so the loss falls by at most w_A B r/2. Rank one on (1, 1, −1, −1,
    0)/2 has ‖Z_A‖_* = B r, logits ±B r/4 in four classes.
    """
    ratio = 10**6
    w_a = F(ratio, 5 * ratio + 5)
    drop_etf = w_a * _B * _E * most
    q = _B * _E / 4
    zero = exact.log(F(_K))
    rank_one = exact.cross_entropy([q, q, -q, -q, *[F(0)] * 6], 0)
    require(4 * w_a * (zero - rank_one) > drop_etf, "rank one falls further")
    # ‖[I; 0] − 11ᵀ/10‖ ≤ 1 on five columns: its Gram matrix is I − 11ᵀ/10, with eigenvalues 1 and 1/2
    a = exact.matrix(_K, 5, lambda j, k: F(int(j == k)) - F(1, _K))
    gram = exact.product(exact.transpose(a), a)
    return require(
        gram == exact.plus(exact.identity(5), exact.matrix(5, 5, lambda i, j: F(1, 10)), -1), "the gradient's norm"
    )
