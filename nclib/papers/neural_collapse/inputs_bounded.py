"""Theorem B.3 where the inputs are not free: bounded, as (21) and (32) use them, or given, the same for both models.

And what that budget of the proofs does to Theorem 3.1 and Proposition 4.2. W_EX = U S Vᵀ throughout.
"""

import random
from fractions import Fraction as F
from itertools import product

from nclib.papers import exact
from nclib.papers.certify import our_reading, proofs_reading, require, states
from nclib.papers.exact import Interval, Matrix, cross_entropy, diagonal, etf_loss, exp, identity, inverse, log, norm2

_K, _E = 10, F(1, 100)  # the paper's classes and budgets, E_W = E_H
_B = _K * _E


def _layer(rng: random.Random, most: int = 30) -> tuple[Matrix, Matrix, Matrix, list[F], Matrix, Matrix]:
    """W, H0, U, the diagonal of S, V and W_EX = U S Vᵀ with rational entries; singular values up to most/10."""
    u, v = exact.random_orthogonal(rng, 3), exact.random_orthogonal(rng, 3)
    s = [F(rng.randint(1, most), 10) for _ in range(3)]
    return exact.random_matrix(rng, 4, 3), exact.random_matrix(rng, 3, 4), u, s, v, u @ diagonal(s) @ v.T


def _from_0(weight: Matrix) -> Matrix:
    """Σ_{i≥0} W^i."""
    return inverse(identity(len(weight)) - weight)


def _reaches(logits: Matrix, most: tuple[Matrix, ...], w: Matrix, layer: Matrix, weight: Matrix, h0: Matrix) -> None:
    """The point (w, weight, h0) of a DEQ whose weight gives `layer` has these logits, and none of the three matrices is
    longer than its partner in `most`."""
    require(w @ layer @ h0 == logits, "the logits")
    for name, own, partner in zip(("W", "W_DEQ", "H0"), (w, weight, h0), most, strict=True):
        require(norm2(own) <= norm2(partner), f"the budget of {name}")


_B3 = "DEQ achieves a lower bound on the loss function compared to explicit neural network"


@states(
    "App. B.1 (its problems and its series), App. B.2, Theorem B.3: its order, H0 the same for both models",
    _B3,
    "holds",
)
def b3_same_inputs_series_from_1(scale: F = F(1)) -> bool:
    """As inf L_DEQ ≤ inf L_EX, for every H0, E_H, n_k and K, with the budget on h, on h0 or on both; our proof.

    B.1 to the letter: no minimum over H0, f = Σ_{i≥1} W^i, budget on h.

    Proof. Let (W, W_EX) be feasible for the explicit layer, W_EX = U S Vᵀ. W_DEQ = V S(I + S)⁻¹Vᵀ has eigenvalues
    s/(1+s) < 1, so the series converges, and Σ_{i≥1} W_DEQ^i = V S Vᵀ, because (s/(1+s))/(1 − s/(1+s)) = s. With W′ = W
    U Vᵀ the logits are W U S Vᵀh0, those of the explicit layer; each ‖h‖ = ‖S Vᵀh0‖ and each ‖w_k‖ is unchanged, and
    ‖W_DEQ‖_F ≤ ‖S‖_F = ‖W_EX‖_F, with equality only for S = 0. H0 is the same. So every loss of the explicit layer is
    one of the DEQ, under any budget on h or on h0.
    """
    rng = random.Random(13)
    for _ in range(4):
        w, h0, u, s, v, m = _layer(rng)
        weight = v @ diagonal([x / (1 + x) for x in s]) @ v.T
        layer = _from_0(weight) - identity(3)  # Σ_{i≥1} W^i
        _reaches(scale * (w @ m @ h0), (w, m, h0), w @ u @ v.T, layer, weight, h0)
        require(norm2(layer @ h0) == norm2(m @ h0), "the norms of the features")
        require(norm2(weight) < norm2(m), "the weight is shorter")
    return True


@states(
    "§3.2 (its series and 'H0 … are the same'), App. B.2, Theorem B.3: its order",
    _B3,
    "holds if the mean of ‖h0‖² ≤ E_H ≤ 1",
)
def b3_same_inputs_series_from_0(length: F = F(29, 20), gain: F = F(9, 10), most: F = F(10201, 10**6)) -> bool:
    """Strictly for independent columns of H0. Inputs beyond E_H = 1/100: the order is right while the DEQ has a
    feasible point, and it has none if the mean of ‖h0‖² > 0.010201. For larger E_H it can be the reverse: K = 2, E_W =
    1, E_H = 9/10, h0 = (29/20, ±7/10), explicit below 0.25, DEQ above 0.28 and feasible.

    H0 given and the same for both, budget on h, f = Σ_{i≥0} W^i.

    Proof. W_DEQ = 0 leaves h = h0, within the budget on h; W′ = W W_EX gives the explicit layer's logits, and ‖W′‖_F ≤
    ‖W_EX‖_F ‖W‖_F ≤ ‖W‖_F. So inf L_DEQ ≤ inf L_EX. Strictly, if H0 has independent columns: the explicit minimum is
    below log K, since W_EX can map H0 to margins that are all positive. Were the point (W′, 0) a minimiser of the DEQ:
    if ‖W′‖_F < ‖W‖_F, the loss is stationary in W, G H0ᵀ = 0, so G = 0, which no finite logits have. Otherwise W_EX =
    f xᵀ and W = u fᵀ have rank one, and W_DEQ = 0 is inside its budget: W′ᵀG H0ᵀ = −2ν H0 Q H0ᵀ with ν ≥ 0 and a
    positive diagonal Q, so W′ᵀG = −2ν H0 Q, of rank one at most. H0 Q has rank 2 at least: ν = 0, W′ᵀG = 0, and the
    loss is log K by the slack lemma.
    Beyond E_H. ‖h0‖ = ‖(I − M)h‖ ≤ (1 + E_H)‖h‖, so the DEQ has no feasible point if the mean of ‖h0‖² exceeds E_H(1 +
    E_H)². If it has one, M, and E_H(1 + E_H) ≤ 1: W′ = W W_EX (I − M) gives the explicit layer's logits, and ‖W′‖_F ≤
    ‖W‖_F E_H (1 + E_H) ≤ ‖W‖_F.
    The reverse. Explicit: W_EX = (9/10) e_2 e_2ᵀ, h = (0, ±63/100), w = (0, ±1): the loss is log(1 + exp(−63/50)). DEQ:
    A = (I − W_DEQ)⁻¹, a = A e_1, b = A e_2. Since ‖I − W_DEQ‖ ≤ 19/10, ‖a‖ ≥ 10/19; the budget on h says (29/20)²‖a‖² +
    (7/10)²‖b‖² ≤ 9/10, which bounds ‖b‖. By convexity the loss is at least log(1 + exp(−½⟨w_1 − w_2, h_1 − h_2⟩)),
    with ‖w_1 − w_2‖ ≤ 2 and ‖h_1 − h_2‖ = (7/5)‖b‖. Feasible: W_DEQ = diag(−4/5, −2/5).
    """
    rng = random.Random(14)
    for _ in range(4):
        w, h0, _, _, _, m = _layer(rng, 5)
        logits, zero = w @ m @ h0, 0 * m
        _reaches(logits, (w, m, h0), w @ m, _from_0(zero), zero, h0)
        weight = _E / 6 * _layer(rng)[-1]  # singular values up to 3, so ‖M‖_F ≤ √27 E_H/6 < E_H
        h = _from_0(weight) @ h0
        require(norm2(weight) <= _E**2, "beyond E_H: the budget of M")
        require(norm2(h0) <= (1 + _E) ** 2 * norm2(h), "beyond E_H: the features are not much shorter")
        require(w @ m @ (identity(3) - weight) @ h == logits, "beyond E_H: the logits")
    require(_E * (1 + _E) <= 1 and most == _E * (1 + _E) ** 2, "beyond E_H: the bounds at 1/100")
    e, half = F(9, 10), F(7, 10)
    require(gain <= e and (gain * half) ** 2 <= e, "the explicit layer is feasible")
    weight = diagonal([F(-4, 5), F(-2, 5)])
    h = _from_0(weight) @ Matrix([[length, length], [half, -half]])
    require(norm2(weight) <= e**2 and norm2(h) / 2 <= e, "the DEQ has a feasible point")
    square = (e - (length / (1 + e)) ** 2) / half**2  # of the largest ‖b‖
    explicit, deq = (log(1 + exp(-2 * half * size)) for size in (gain, exact.sqrt(square)))
    return require(explicit < F(25, 100) and deq > F(28, 100), "the DEQ has the larger loss")


@states(
    "§3.2 ('H0 … are the same'), for Theorem 3.1, Theorem 4.1, NC1, and Proposition 4.2",
    "f(h0_k,i; W_DEQ) = f(h0_k; W_DEQ); WWᵀ = √(E_W/E_H) W H = (K E_W/(K−1)) (1_K − 11ᵀ/K); f(h0_k; W_DEQ) ∥ W_k; "
    "minority: f(h0_k,i; W_DEQ) = 0 [read with H0 given, the same for both models, and the budget on h]",
    "false",
)
def h0_given(length: F = F(1, 20), second: F = F(2), opposite: F = F(-2)) -> bool:
    """Each of them, for the DEQ (series from 0) with inputs within E_H = 1/100; NC1 and NC2 for the explicit layer and
    the series from 1 too. So the reading that gives Theorem B.3 its order refutes Theorem 3.1.

    H0 given and the same for both, budget on h, K = 2, E_W = E_H = 1/100.

    Proof. A = (I − M)⁻¹ is the DEQ's map, series from 0. In one dimension every map is a number g.
    (a) NC1 of Theorems 3.1 and 4.1: h0 = c, 2c in one class and −c, −2c (or −c alone) in the other. g = 0 has the loss
    log 2. Any g > 0 with w = ±1/10 has positive margins and a lower loss, so g ≠ 0 at a minimum, and gc ≠ g·2c.
    (b) NC2: one sample a class, h0 = c, −2c. WH = κ C_2 with κ > 0 needs h_1 = −h_2 ≠ 0, which no g gives.
    (c) NC3, DEQ: h0_k = c e_k in two dimensions. At a minimiser w_1 = −w_2: otherwise ±(w_1 − w_2)/2 has the same loss
    and is shorter, so the loss is stationary in W there, G Hᵀ = 0, and G = 0 since H = cA is invertible, which no
    finite logits have. h_1 ∥ w_1 and h_2 ∥ w_2 would make h_1 and h_2 parallel, but H is invertible.
    (d) Proposition 4.2, DEQ: ‖A h0‖ ≥ ‖h0‖/(1 + E_H), at every R, so no feature of an input that is not 0 is 0 or
    tends to 0.
    """
    c, rng = length, random.Random(16)
    require((1 + second**2) * c**2 / 2 <= _E and (1 + opposite**2) * c**2 / 2 <= _E, "the inputs are within E_H")
    for g in (_E, _E / (1 - _E), F(1), 1 / (1 - _E)):  # explicit; DEQ from 1; DEQ from 0
        h, other = g * c, g * second * c
        require(g**2 * (1 + second**2) * c**2 / 2 <= _E, "(a) the features are within E_H")
        require(min(h, other) > 0 and h != other, "(a) positive margins, features that differ")
        require(h + g * opposite * c != 0, "(b) h_1 is not −h_2")
    for _ in range(4):
        weight = exact.matrix(2, 2, lambda i, j: _E * F(rng.randint(-5, 5), 10))
        h = c * _from_0(weight)
        require(norm2(weight) <= _E**2 and norm2(h) / 2 <= _E, "(c) a feasible point")
        inverse(h)  # (c) the two features are not parallel
        require(all(norm2([column]) * (1 + _E) ** 2 >= c**2 for column in h.T), "(d) no feature is short")
    return True


@proofs_reading(
    "App. B.2, conditions of equality of (21) and (32), which name ‖h0‖² and ‖h‖²: the order of Theorem B.3",
    _B3,
    "holds",
)
def b3_both_budgets(scale: F = F(1)) -> bool:
    """Strictly, both budgets and E_H < 1, H0 free, series from 0 or 1: W_DEQ = 0 with h0′ = W_EX h0, or W_DEQ = V S(I +
    S)⁻¹Vᵀ; our proof, on rational instances.

    Mean ‖h0‖² ≤ E_H and mean ‖h‖² ≤ E_H.

    Proof. The explicit layer has ‖h‖ ≤ E_H‖h0‖, so mean ‖h‖² ≤ E_H² · E_H < E_H. From 0: W_DEQ = 0 and h0′ =
    W_EX h0 give the same logits; h0′ = h′ spends at most E_H³ of either budget: both are slack, and by the slack lemma
    (`balanced.thm31_nc1`) the point does not minimise. From 1: the point of `b3_same_inputs_series_from_1` leaves the
    budgets on h and on W_DEQ slack. Were it a minimiser, the loss would be stationary in W_DEQ, W′ᵀG H0ᵀ = 0; by the
    slack lemma AᵀW′ᵀG = −λ H0 Q with λ > 0 and a positive diagonal Q, so H0 Q H0ᵀ = 0 and H0 = 0: the loss is log K.
    """
    rng = random.Random(15)
    for _ in range(4):
        w, h0, *_, m = _layer(rng, 5)
        _reaches(scale * (w @ m @ h0), (w, m, h0), w, _from_0(0 * m), 0 * m, m @ h0)
        require(norm2(m @ h0) <= norm2(m) * norm2(h0) < norm2(h0), "‖h‖ ≤ E_H ‖h0‖")
    return b3_same_inputs_series_from_1()


@proofs_reading(
    "App. B.2, below (33)",
    "it is evident that the loss function of the DEQ layer is significantly lower than that of the explicit neural "
    "network",
    "holds",
)
def b3_v2_order(scale: F = F(1)) -> bool:
    """Lower, strictly and for every E_H > 0: inputs bounded, or given with independent columns and no budget on h.
    Series from 0 or 1. Our proof (singular values). By how much: b3_v2_gap.

    inf L_DEQ < inf L_EX for any n_k, E_W and E_H, with a budget on H0 or with H0 given, and none on h.

    Proof. Let (W, W_EX, H0) minimise the explicit layer's loss, W_EX = U S Vᵀ. S ≠ 0, since the loss is below log K.
    From 0: W_DEQ = V(I − max(1, S)⁻¹)Vᵀ, so (I − W_DEQ)⁻¹ = V max(1, S) Vᵀ. Inputs bounded: W′ = W U Vᵀ and h0′ = V
    min(S, 1) Vᵀh0. H0 given: W′ = W U min(S, 1) Vᵀ. Since max(1, s) min(s, 1) = s, the logits are those of the
    explicit layer; nothing is longer, and 1 − 1/max(1, s) < s for s > 0, so ‖W_DEQ‖_F < ‖S‖_F.
    From 1: the point of `b3_same_inputs_series_from_1`, again with ‖W_DEQ‖_F < ‖S‖_F.
    Were such a point a minimiser of the DEQ, the loss would be stationary in W_DEQ, which is inside its budget. From 0
    that says W′ᵀG Hᵀ = 0, from 1 W′ᵀG H0ᵀ = 0. H0 given: the columns of H (of H0) are independent, so W′ᵀG = 0, and
    the loss is log K by the slack lemma (`balanced.thm31_nc1`). Inputs bounded: by the slack lemma AᵀW′ᵀG = −λ H0 Q
    with λ > 0 and a positive diagonal Q. Times H0ᵀ, the trace is 0 on the left, since tr(AᵀW′ᵀG H0ᵀ) = tr(W′ᵀG Hᵀ),
    and −λ times a positive number on the right, as H0 = 0 has the loss log K.
    """
    rng = random.Random(11)
    for _ in range(4):
        w, h0, u, s, v, m = _layer(rng)
        weight = v @ diagonal([1 - 1 / max(F(1), x) for x in s]) @ v.T
        short, outer = v @ diagonal([min(F(1), x) for x in s]) @ v.T, w @ u @ v.T
        require(norm2(weight) < norm2(m), "‖W_DEQ‖ < ‖S‖")
        for classifier, inputs in ((outer, short @ h0), (outer @ short, h0)):  # inputs bounded, H0 given
            _reaches(scale * (w @ m @ h0), (w, m, h0), classifier, _from_0(weight), weight, inputs)
    return b3_same_inputs_series_from_1()


def _enclosed(gain: F) -> tuple[Interval, Interval]:
    """Bounds of the least loss at the paper's budgets where ‖Z‖_* ≤ gain · B, which logits of rank one reach."""
    z = gain * _B / _K
    return etf_loss(_K, gain * _B), cross_entropy([z, -z] * (_K // 2), 0)


@proofs_reading(
    "App. B.2, Theorem B.3: the difference of its two values",
    "inf L_DEQ = −2C1K/(K−1) √(E_W E_H) + C2, … inf L_EX = −C1K/(K−1) √(E_W E_H) + C2",
    "holds if the series begins at 0, K = 10, E_W = E_H = 1/100, to half a percent",
)
def b3_v2_gap(share: F = F(1, 200), from_1: F = F(1, 10**6)) -> bool:
    """Inputs bounded: the infima differ by 0.00994 to 0.01000; printed, with the constants that make (22) tight,
    0.00999. Each value lies more than 0.0098 below its infimum. From 1 the infima differ by 0.000001.

    Proof. ‖Z‖_* ≤ gB, with g = E_H for the explicit layer and 1/(1 − E_H) or E_H/(1 − E_H) for the DEQ from 0 or 1,
    so the infima are at least `exact.etf_loss` there; rank-one logits ±gB/K are feasible (`nc31_proofs_reading`), so
    they are at most the loss of those. The constants of Lemma B.1 that make (22) largest have C2/(C1+C2) = p =
    (K−1)/(exp(D) + K − 1), D = K/(K−1) √(E_W E_H), and the paper's difference is pD, the first factor in M1's place.
    """
    explicit, deq, other = (_enclosed(g) for g in (_E, 1 / (1 - _E), _E / (1 - _E)))
    least, most = explicit[0] - deq[1], explicit[1] - deq[0]
    require(least > F(994, 10**5) and most < F(1, 100), "the enclosure of the difference")
    d = F(_K, _K - 1) * _E
    printed = d * (_K - 1) / (exp(d) + _K - 1)
    require(printed * (1 - share) < least and most < printed * (1 + share), "the paper's difference")
    require(printed > F(9985, 10**6) and printed < F(9995, 10**6), "which rounds to 0.00999")
    least, most = explicit[0] - other[1], explicit[1] - other[0]
    require(least > from_1 and most < from_1 * F(102, 100), "the difference with the series from 1")
    below = etf_loss(_K, _B) + F(98, 10**4)
    return require(explicit[0] > below and deq[0] > below - printed, "(22) and (33) are below their infima")


@our_reading(
    "no statement of the paper: a residual block h = (I + W_EX) h0 as the explicit model",
    "inf L_DEQ ≤ inf L_residual",
    "holds if the series begins at 0, E_H < 1, inputs bounded or given",
)
def residual_order(scale: F = F(1), gain: F = _E / (1 - _E)) -> bool:
    """Our proof (singular values, Mirsky), on rational instances. With the series from 1 the order is the reverse at
    the paper's budgets, inputs bounded. With the budget on h both are equal, as in thm_b3.

    Proof. I + M = U T Vᵀ, D = min(1, 2 − T) entry by entry, positive since T < 2, and D T ≤ 1. W_DEQ = U(I − D)Uᵀ
    has ‖I − D‖_F ≤ ‖T − I‖_F ≤ ‖M‖_F (Mirsky: tr(U T Vᵀ) ≤ tr T). Inputs bounded: h0′ = U D T Vᵀ h0, not longer, and
    (I − W_DEQ)⁻¹h0′ = U T Vᵀ h0. H0 given: W_DEQ = V(I − D)Vᵀ and W′ = W U D T Vᵀ, not longer: W′ V D⁻¹ Vᵀ = W U T Vᵀ.
    From 1, inputs bounded: W_EX = E_H f fᵀ has the gain 1 + E_H, the DEQ E_H/(1 − E_H) at most (`b3_v2_gap`).
    """
    rng = random.Random(12)
    for _ in range(4):
        w, h0, u, _, v, _ = _layer(rng)
        values = [1 + F(rng.randint(-4, 4), 10) for _ in range(3)]
        t, d = diagonal(values), diagonal([min(F(1), 2 - x) for x in values])
        block, unit = u @ t @ v.T, identity(3)
        require(norm2(d - unit) <= norm2(t - unit) <= norm2(block - unit), "Mirsky")
        for left, classifier, inputs in ((u, w, u @ d @ t @ v.T @ h0), (v, w @ u @ d @ t @ v.T, h0)):
            weight = left @ (unit - d) @ left.T
            _reaches(scale * (w @ block @ h0), (w, block - unit, h0), classifier, _from_0(weight), weight, inputs)
    return require(_enclosed(1 + _E)[1] < _enclosed(gain)[0], "from 1 the residual block has the lower loss")


@proofs_reading(
    "App. B.2, (22) and (33)",
    "inf L_EX = −C1K/((C1+C2)(K−1)) √(E_W E_H) + C4, inf L_DEQ = −2C1K/((C1+C2)(K−1)) √(E_W E_H) + C4",
    "false",
)
def b3_v2_values(budget: F = _E, twice: F = F(2), both: tuple[F, F] = (F(938, 1000), F(937, 1000))) -> bool:
    """Read as infima, with M1 = C2/(C1+C2), C4 = −M2 of Lemma B.1 never both: (22) is below inf L_EX where the inputs
    are bounded and E_H < 1, (33) below inf L_DEQ where the features are. With the printed factor and common constants
    C4 > log K; with constants of its own for each model, C2/(C1+C2) = 0.938 and 0.937, both can be infima.

    Balanced, K ≥ 2.

    Proof. With M1 = p and C4 = −M2 = H(p) + p log(K−1), p = C2/(C1+C2) as in Lemma B.1, (22) is H(p) + p log(K−1) −
    pD, D = K/(K−1) √(E_W E_H). By Gibbs' inequality its largest value over p is log(1 + (K−1) exp(−D)), the loss at
    nuclear norm B (`exact.etf_loss`); (33) has 2D, and its largest value is the loss at 2B. The loss at nuclear norm n
    falls in n.
    Features bounded, H0 free or not: ‖Z‖_* ≤ B, so inf L_DEQ ≥ the loss at B > the loss at 2B ≥ (33).
    Inputs bounded or given within E_H: ‖Z‖_* ≤ E_H B, so inf L_EX ≥ the loss at E_H B > the loss at B ≥ (22) if E_H <
    1. So wherever h or h0 has its budget (and E_H < 1 where it is h0), not both are infima.
    With the printed factor C1/(C1+C2) and common constants, inputs bounded, from 0: W_DEQ = 0 gives inf L_DEQ ≤ the
    loss at B. The formulas have C4 = 2 inf L_EX − inf L_DEQ. In Lemma B.1 C4 ≤ log K. But 2 inf L_EX − inf L_DEQ > log
    K. (From 1 this is not so: there 2 inf L_EX − inf L_DEQ < log K.)
    With the printed factor, H(p) + p log(K−1) − (1−p)D and the same with 2D pass through the loss at B, the common
    infimum where the features are bounded and H0 is free, between p ± 1/2000 of the two p named.
    """
    log_k, d = log(F(_K)), F(_K, _K - 1) * _E
    for p, times in product((F(n, 20) for n in range(1, 20)), (1, 2)):
        value = p * log((_K - 1) / p) - (1 - p) * log(1 - p) - times * p * d
        require(value < etf_loss(_K, times * _B), f"the largest value, p = {p}")
    infimum, least_explicit = etf_loss(_K, _B), etf_loss(_K, budget * _B)  # features bounded; explicit, inputs bounded
    require(etf_loss(_K, twice * _B) < infimum, "features bounded: (33) < inf L_DEQ")
    require(infimum < least_explicit, "inputs bounded: (22) < inf L_EX")
    for p, times in zip(both, (1, 2), strict=True):
        low, high = (q * log((_K - 1) / q) - (1 - q) * log(1 - q) - times * (1 - q) * d
                     for q in (p + F(1, 2000), p - F(1, 2000)))  # fmt: skip
        require(low < infimum and infimum < high, "the paper's factor, other constants for each: both can be infima")
    explicit, deq = _enclosed(_E), _enclosed(_E / (1 - _E))
    require(2 * explicit[1] - deq[0] < log_k, "from 1: C4 < log K")
    return require(2 * least_explicit - infimum > log_k, "C4 > log K")


@proofs_reading(
    "App. B.2, below (21) and (32): Theorem 3.1, NC2, with the budget on H0 alone",
    "WWᵀ = √(E_W/E_H) W H = (K E_W/(K−1)) (1_K − 11ᵀ/K)",
    "false",
)
def nc31_proofs_reading(root: F = F(3)) -> bool:
    """K = 10, E_W = E_H = 1/100: rank-one logits have a lower loss than every ETF-shaped point, explicit and DEQ (sum
    from 0 or 1). The theorem as printed holds (thm31_nc2).

    Inputs bounded, r = E_H, √(K−1) = 3.

    Proof. Let a feasible point have features with K−1 equal singular values s, as an ETF has. ‖Z‖_* ≤ √(K E_W)
    √(K−1) s. Explicit, H = M H0: (K−1)s = ‖H‖_* ≤ r ‖H0‖_F, so ‖Z‖_* ≤ B r/√(K−1). Sum from 0, (I − M)H = H0:
    ‖H0‖_F ≥ s(√(K−1) − r), so ‖Z‖_* ≤ B √(K−1)/(√(K−1) − r). Sum from 1, H = M H0 + M H: (K−1)s ≤ r‖H0‖_F + s r √(K−1),
    so ‖Z‖_* ≤ B r/(√(K−1) − r). If instead the classifier has K−1 equal singular values t, ‖Z‖_* ≤ t ‖P A H0‖_* with a
    projection P of rank K−1 and t = √(K E_W)/√(K−1), ‖P A H0‖_* ≤ ‖P A‖_F ‖H0‖_F, and ‖P A‖_F ≤ r; √(K−1) + r/(1−r);
    r/(1−r): the second numbers of `gains`. The loss of all of these is at least `exact.etf_loss` there.
    (With the budget on h too and the sum from 0, h0 = h and W_DEQ = 0 reach the optimum of `balanced.thm31_nc2`.)
    Rank one: u = (1, −1, 1, …)/√K, a unit f, W = √(K E_W) u fᵀ, M = r f fᵀ, H0 = √(K E_H) f uᵀ is feasible with Z =
    g B uuᵀ, g = r, 1/(1−r), r/(1−r); its logits are ±gB/K, the right class with +. Its loss is lower.
    """
    r = _E
    gains = {  # the second number of each is the largest nuclear norm of ETF-shaped logits, over B
        "explicit": (r, r / root),
        "sum from 0": (1 / (1 - r), max(root / (root - r), 1 + r / (1 - r) / root)),
        "sum from 1": (r / (1 - r), max(r / (root - r), r / (1 - r) / root)),
    }
    for name, (one, flat) in gains.items():
        require(_enclosed(one)[1] < etf_loss(_K, flat * _B), f"{name}: rank one has the lower loss")
    return True


@proofs_reading(
    "App. C.2, (51)–(52): Proposition 4.2, majority, from the budget on H0",
    "each feature collapses to K_A-Simplex ETF",
    "false",
)
def prop42_proofs_reading(most: F = F(1, 2)) -> bool:
    """K = 10, K_A = 5, R = 10⁶, E_W = E_H = 1/100, explicit: rank-one logits lower the loss by 2.0e-4, a K_A-ETF by at
    most 1.0e-4. As printed the proposition holds there (prop42).

    Inputs bounded, minority logits 0 (w_B = 0), weights w_A of a majority class, w_B of a minority class.

    Proof. Features of a K_A-ETF have K_A − 1 = 4 equal singular values s, and 4s ≤ r‖H0‖_F as above, so
    ‖Z_A‖_* ≤ √(K E_W) 2s ≤ B r/2. The loss is convex in Z and its gradient at 0 has, on majority columns, the
    spectral norm w_A ‖[I; 0] − 11ᵀ/10‖ ≤ w_A, so the loss falls by at most w_A B r/2. Rank one on (1, 1, −1, −1,
    0)/2 has ‖Z_A‖_* = B r, logits ±B r/4 in four classes.
    """
    w_a, q = F(10**6, 5 * 10**6 + 5), _B * _E / 4
    drop, fall = w_a * _B * _E * most, 4 * w_a * (log(F(_K)) - cross_entropy([q, q, -q, -q, *[F(0)] * 6], 0))
    require(fall > drop and drop < F(1, 10**4), "rank one falls further")
    require(fall > F(195, 10**6) and fall < F(205, 10**6), "by 2.0e-4")
    # ‖[I; 0] − 11ᵀ/10‖ ≤ 1 on five columns: its Gram matrix is I − 11ᵀ/10, with eigenvalues 1 and 1/2
    a = exact.matrix(_K, 5, lambda j, k: (j == k) - F(1, _K))
    return require(a.T @ a == identity(5) - exact.matrix(5, 5, lambda i, j: F(1, 10)), "the gradient's norm")


@proofs_reading(
    "App. B.2, below (21) and (32): Theorem 3.1, NC3, with the budget on H0 alone",
    "h_k,i = C5 w_k, demonstrating the validity of NC3",
    "false",
)
def nc31_nc3_proofs_reading(mu: tuple[F, F] = (F(12, 25), F(7, 50))) -> bool:
    """K = 3, E_H = 1/2, E_W = 8/25, sum from 0: every point with W ∥ Hᵀ that is stationary loses to a feasible one by
    more than 0.004. The theorem as printed holds (thm31_nc3).

    Inputs bounded, h = (I − M)⁻¹ h0, A = (I − M)⁻¹; W ∥ Hᵀ means one factor C5 for all classes.

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
    e_h, b, half = F(1, 2), F(6, 5), F(1, 2)
    require(b**2 == 9 * e_h * F(8, 25) and mu[0] ** 2 + mu[1] ** 2 <= e_h**2, "budgets")
    u, v, scale = Matrix([[1, -1, 0]]), Matrix([[1, 1, -2]]), b / sum(m * (1 - m) for m in mu)
    z = scale * mu[0] / 2 * (u.T @ u) + scale * mu[1] / 6 * (v.T @ v)
    reached = sum(cross_entropy(row, k) for k, row in enumerate(z)) + 3 * F(4, 1000)
    etf = log(1 + 2 * exp(-b / (2 - 2 * e_h / exact.sqrt(F(2)))))
    require(reached < 3 * etf, "the ETF has the larger loss")
    for n in range(96):
        t = Interval(F(n, 192), F(n + 1, 192))
        x = (Interval(1), t - 1, -t)
        over = b / (1 - e_h) / (2 * (t - half) * (t - half) + F(3, 2))  # ‖x‖² = 2(t − 1/2)² + 3/2
        loss = sum(log(sum(exp(over * own * (other - own)) for other in x)) for own in x)
        require(reached < loss, f"rank one at t in {t} has the larger loss")
    return True
