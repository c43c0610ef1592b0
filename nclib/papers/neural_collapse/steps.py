"""Steps of the proofs of Sun & Shi (2024), appendices B and C: their checks, and `steps.csv`, which lists the steps.

The table has the place, the quoted step, its verdict, and what is checked. In B, W and x stand for one weight matrix
and one (centred) input h̄0 − h0; in C bilinear identities are checked with rational vectors w_A, w_B, w_k.
"""

import csv
import random
from fractions import Fraction as F
from itertools import product
from pathlib import Path

from nclib.papers import exact
from nclib.papers.certify import require, states
from nclib.papers.exact import Matrix, centring, cross_entropy, identity, inner, inverse, log, norm2, random_matrix

STEPS = Path(__file__).with_name("steps.csv")
_SMALL = F(1, 100)  # the paper's E_W = E_H


# --- appendix B ---------------------------------------------------------------------------------------------------


def step_15(own: F = F(8)) -> bool:
    """With log δ_k in the inner sum the bracket of (15) is 0 and it claims softmax ≤ exp(M2). Here to the fifth
    power.
    """
    p = F(4, 5)
    return require((own / (own + 2)) ** 5 > (p / 2) ** 4 * (1 - p), "softmax exceeds exp(M2)")


def step_19(sign: int = 1) -> bool:
    """Proof. Per sample, with x = mean of the other logits − own: −log softmax = log(1 + Σ exp(z_j − z_k)) ≥
    log(1 + (K−1) exp x) > max(0, x) (AM-GM, K ≥ 2) ≥ (1−p) x, and the printed C4 = M2/N is negative.
    """
    rng = random.Random(21)
    for _ in range(40):
        z = random_matrix(rng, 1, rng.choice((2, 3, 10)))[0]
        p, k1 = F(rng.randint(1, 9), 10), len(z) - 1
        m2 = p * log(p / k1) + (1 - p) * log(1 - p)
        x = sum(z[1:]) / k1 - z[0]
        require(cross_entropy(z, 0) > sign * m2 + (1 - p) * x, f"logits {z}, p = {p}")
    p, z = F(9, 10), [log(F(9)), *[F(0)] * 9]
    lemma = -(p * log(p / 9) + (1 - p) * log(1 - p))
    return require(cross_entropy(z, 0) < lemma - (1 - p) * z[0], "the paper's factor with C4 = −M2 is not a bound")


def after_19(classes: int = 10) -> bool:
    """(21) replaces −(C5 N/2) Σ‖w_k‖² by −(C5 K N/2) E_W; at the optimum (26), Σ‖w_k‖² = tr WWᵀ = K E_W."""
    www = classes * _SMALL / (classes - 1) * centring(classes)
    spent = sum(www[k][k] for k in range(classes))
    return require(spent == classes * _SMALL > _SMALL, "the optimum of (26) breaks the paper's budget")


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


def step_20_equality(x: F = _SMALL) -> bool:
    """One sample, one dimension: W = x = 1/100 meets the printed condition, and (Wx)² is not (W² + x²)/2."""
    w = _SMALL
    require(w**2 == x**2, "the paper's condition of equality")
    return require((w * x) ** 2 != (w**2 + x**2) / 2, "and yet no equality")


def step_21_equality(e_h: F = _SMALL) -> bool:
    """The same slip, E_H for E_H², is in (32): the bound of the weights is ‖W‖_F ≤ E_H."""
    return require(e_h > e_h**2, "the budget excludes the condition")


def step_22_33(sign: int = 1) -> bool:
    """C4 = (p log C3 + (1−p) log(1−p))/N with 0 < C3 = p/(K−1) < 1 for K ≥ 2: both logarithms are negative. exp(−CE)
    is a softmax probability below 1. Checked as powers: C3^a (1−p)^(b−a) < 1 for p = a/b.
    """
    for k1, a, b in product((1, 2, 9, 99), (1, 3, 7), (8, 9)):
        require((F(a, b * k1) ** a * F(b - a, b) ** (b - a)) ** sign < 1, "C4 is negative")
    return True


def step_23(ratio: F = F(1, 4)) -> bool:
    """Equality in (17) needs δ_k (C1+C2)/C1 = δ_k′/C3, δ = exp(h·w). At δ = (8, 1, 1), C2/C1 = 1/4: both sides are
    10; (24) says 8 = (K−1) C1/C2. Without exponentials the logits log 8 and 0 would have to satisfy (5/4) log 8 = 0.
    """
    p = ratio / (1 + ratio)
    require(F(8) / (1 - p) == F(1) / (p / 2) == 10, "equality of (17) with exponentials")
    require(F(8) == 2 / ratio, "(24)")
    return require(log(F(8)) > 0, "without exponentials it fails")


def step_25(divisor: int = 9) -> bool:
    """Σ_k′ h_k·w_k′ = 0 with h_k·w_k = √(E_W E_H) and K − 1 equal others; with N = 60 samples it would not be."""
    return require(1 - 9 * F(1, divisor) == 0 and 1 - 9 * F(1, 59) != 0, "the sum over classes")


def step_27(w: F = _SMALL) -> bool:
    """Σ_{i≥0} = (1−w)⁻¹ is the fixed point of z = wz + x; Σ_{i≥1} is that of z = wz + wx."""
    from_0, from_1 = 1 / (1 - w), w / (1 - w)
    require(from_0 == w * from_0 + 1 and from_1 == w * from_1 + w, "fixed points")
    return require(from_0 == 100 * from_1, "at 1/100")


def step_28(sign: int = -1) -> bool:
    """In one dimension Σ_j w^j x = x/(1−w), the feature."""
    square = (F(1, 10) / (1 - _SMALL)) ** 2
    return require(-square == sign * square != square, "the sign")


def step_29(g: F = F(1, 10)) -> bool:
    wg, x = _SMALL * g, F(1, 10)
    return require(-((wg + x) ** 2) < -(wg**2) - x**2, "violated within the budgets")


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


def step_32(power: int = 0) -> bool:
    """Σ_k ‖h_k − h̄‖² = Σ_k ‖h_k‖² − K‖h̄‖², and under the budget Σ_iΣ_k ‖h0_k,i‖² ≤ N E_H gives the third line's
    −(NK/C5)E_H.
    """
    h = random_matrix(random.Random(22), 3, 5)
    spread, mean = norm2(h @ centring(5)), norm2(h @ Matrix([[F(1, 5)]] * 5))
    require(spread == norm2(h) / F(5) ** power - 5 * mean, "the variance around the mean")
    return require(spread != norm2(h) / 25 - mean, "as printed")


def step_36(x: F = F(1, 10)) -> bool:
    """G^j = W G^{j−1} + x. If W G⁰ = x then G¹ = 2x, W G¹ = 2Wx = 2x ≠ x unless x = 0: the centred inputs are 0, so
    all classes have the same features for each i, and the loss is log K. In one dimension: the only w with w·x = x is
    1, beyond the budget, and there w·G¹ = 2x.
    """
    w = F(1)
    g1 = w * x + x
    require(w * x == x and w * g1 != x, "j = 1 and j = 2 contradict each other")
    return require(w > _SMALL and F(1, 2) > _SMALL, "and exceed the budget")


# --- appendix C ---------------------------------------------------------------------------------------------------


def step_10_38(power: int = 1) -> bool:
    """Each double sum has K_A n_A (K_B n_B) terms: with 1/(K_A n_A) in front, the weights sum to 1."""
    a, b = 5 * 5000, 5 * 50
    total = F(a * a + b * b, a + b)
    require(F(49509, 2) < total < 24755, "as printed")
    return require(F(a, a + b) * a / F(a) ** power + F(b, a + b) * b / F(b) ** power == 1, "divided by K_A n_A")


def step_39(inside: bool = False) -> bool:
    """Proof. Σ exp(z) = Σ C (exp(z)/C), and log of the mean ≥ mean of the logs Σ C (z − log C), weights C summing to
    1: the third line with const = −Σ C log C. With exp(z/C) the sum would not be Σ exp(z): at z = log 2 and C = 1/2
    it is exp(2z)/2 = 2 = exp z by accident, at C = 1/4 it is exp(4z)/4 = 4.
    """
    z, n = (3, 1, -2, 5), (1, 2, 3, 3)  # in units of log 2: logits, and −log C
    lower = sum(F(1, 2**k) * (x + k) for x, k in zip(z, n, strict=True))
    require(sum(F(2) ** x for x in z) ** 8 >= F(2) ** int(8 * lower), "Jensen")
    return require((F(2) ** 4 / 4 == 2) == inside, "exp(z/C) gives another sum")


def step_40(c0: F = F(1, 2)) -> bool:
    """Weights (39): C = (1 − C0) e_k + C0 q with q = (C4/K_A on the majority, C5/K_B on the minority); const = H(C),
    the entropy. K_A = 2, K_B = 1, C0 = 1/2, C4 = 1/50: logits (0, 0, 20) of a sample of the first class.
    """
    q, z = (F(1, 100), F(1, 100), F(49, 50)), (F(0), F(0), F(20))
    entropy = sum(-(x * log(x)) for x in (1 - c0 + c0 * q[0], c0 * q[1], c0 * q[2]))
    bracket, loss = q[2] * z[2], cross_entropy(z, 0)
    require(loss > c0 * bracket + entropy, "with C0")
    return require(loss < bracket + entropy, "without C0")


def step_42(sign: int = -1) -> bool:
    """h·y + (C6/2)‖h‖² + ‖y‖²/(2C6) = ‖C6 h + y‖²/(2C6), which is 0 iff y = −C6 h."""
    rng, c6 = random.Random(31), F(3, 2)
    h, other = random_matrix(rng, 3, 1), random_matrix(rng, 3, 1)
    for y in (other, sign * c6 * h):
        gap = inner(h, y) + c6 / 2 * norm2(h) + norm2(y) / (2 * c6)
        require(gap == norm2(c6 * h + y) / (2 * c6), "the square")
    return require(gap == 0, "equality")


def step_43(part: F = F(1, 30)) -> bool:
    """‖W_EX‖_F = E_H."""
    require(3 * part <= 10 * _SMALL, "the budget of (5)")
    return require(-(3 * _SMALL + 3 * part) / 2 < -3 * _SMALL, "the step fails")


def step_44(majority: int = 3) -> bool:
    """The line before has K_A Σ_j E_H^j + Σ_{k≤K_A} (1/n_k) Σ_i ‖h_k,i‖²: with ‖h_k‖² = E_H each, K_A times the
    printed line.
    """
    e = F(3, 10)
    before = -(3 / (1 - e) + 3 * e) / 2
    return require(before == majority * -(1 / (1 - e) + e) / 2 and majority != 1, "(46) restores K_A")


def step_44_order(limit: F = F(1)) -> bool:
    """−(K_A/2)(1/(1−E) + E) < −K_A E iff 1/(1−E) > E; E² − E + 1 = (E − 1/2)² + 3/4 > 0, so iff E < 1."""
    for e in (_SMALL, F(1, 2), F(99, 100), F(101, 100), F(2)):
        require(1 / (1 - e) - e == ((e - F(1, 2)) ** 2 + F(3, 4)) / (1 - e), "the difference")
        require((1 / (1 - e) > e) == (e < limit), f"E_H = {e}")
    return True


def step_45(first: int = 2, second: int = 4) -> bool:
    """K_A = 3, K_B = 2. Line 3 adds (1/K_A) Σ_{k>K_A} ‖w_k‖², which its first sum, run to K, takes away again."""
    rng = random.Random(32)
    for c4 in (F(1, 3), F(4, 5), F(1, 10)):
        c5, columns, minority = 1 - c4, random_matrix(rng, 4, 3), random_matrix(rng, 4, 2)
        a, b = columns @ Matrix([[F(1, 3)]] * 3), minority @ Matrix([[F(1, 2)]] * 2)
        y = c4 * a + c5 * b
        line1 = -norm2(y @ Matrix([[1, 1, 1]]) - columns) / 3
        base, bb, q = -norm2(columns) / 3, norm2(b), c4 * (2 - c4)
        line2 = base + 2 * c5**2 * inner(a, b) + q * norm2(a)
        require(line1 == line2 - c5**first * bb != line2 - c5 * bb, "line 2")
        rest, square = norm2(minority) / 3, base + q * norm2(a + c5**2 / q * b) - c5**2 * bb
        require(line1 == square - c5**second / q * bb != square - c5**2 / q * bb, "line 3")
        require(line1 != square + rest - c5**second / q * bb, "line 3 with its first sum as printed")
    return True


def step_46(half: F = F(1, 2)) -> bool:
    """−‖y − w_k‖²/(2C6): every term of (45) enters with 1/(2C6). In one dimension, w_k = w_A = 1, w_B = 0, C4 = C5 =
    1/2, so C4(2−C4) = 3/4.
    """
    c6 = F(3)
    before, rest = -(F(-1, 2) ** 2) / (2 * c6), -1 / (2 * c6)
    return require(before == rest + half * F(3, 4) / c6 != rest + F(3, 4) / c6, "the factor")


def step_47(exchanged: bool = True) -> bool:
    rng, c4, c5 = random.Random(33), F(4, 5), F(1, 5)
    columns, a = random_matrix(rng, 4, 3), random_matrix(rng, 4, 1)
    b, q = columns @ Matrix([[F(1, 3)]] * 3), c5 * (2 - c5)
    line1 = -norm2((c4 * a + c5 * b) @ Matrix([[1, 1, 1]]) - columns) / 3
    square = -norm2(columns) / 3 + q * norm2(b + c4**2 / q * a)
    right, printed = (square - (c**2 + c**4 / x) * norm2(a) for c, x in ((c4, q), (c5, c4 * (2 - c4))))
    return require((line1 == right != printed) == exchanged, "the coefficient")


def step_49(times: int = 2) -> bool:
    """K = 10, K_A = 5, w = 0, E_W = E_H = 1/100, C6 = 1, C4 = C5 = 1/2, a = b = c: const of (46) and (47) is log K
    each, all terms with w vanish, M = −K_A E_H: (46) + (47) ≥ 2 log K − E_H − 2 K E_W/(2 K_A). But every sample's
    loss is log K = L. So (49) does not bound from below with L_A as in (46); with the weights of (38) as printed
    (`step_10_38`) it is not refuted. n_A and n_B, the imbalance, are gone from it.
    """
    right = times * log(F(10)) - _SMALL - 2 * 10 * _SMALL / (2 * 5)
    return require(right > log(F(10)), "the right side exceeds the loss")


def step_50(factor: F = F(1)) -> bool:
    """The mean drops out, since Σ_j (w_j − w_A) = 0. A quadratic function's derivative is its symmetric difference
    quotient: at w = (4, −2, 7), mean 3, with the step 1/3.
    """
    above, below = (norm2(Matrix([[4 + step, -2, 7]]) @ centring(3)) / 2 for step in (F(1, 3), F(-1, 3)))
    return require((above - below) / F(2, 3) == factor * (4 - 3) != F(2, 3) * (4 - 3), "the derivative")


def step_51(c4: F = F(4, 5)) -> bool:
    """(50) times C6K_A: w_B enters with C4(2−C4)·C5²/(C4(2−C4)) = C5² in the second term and with C4² in the third."""
    return require((1 - c4) ** 2 + c4**2 == F(17, 25) != 1 / (1 - c4**2) == F(25, 9), "the coefficient")


def after_51(exponent: int = 1) -> bool:
    """With ε = 1 − C4: 1 − C4² = ε(2 − ε) ≤ 2ε, so 1/(1 − C4²) ≥ 1/(2ε)."""
    for n in (10, 10**3, 10**6):
        c4 = 1 - F(1, n)
        require((1 / (1 - c4**2)) ** exponent >= F(n, 2), f"C4 = 1 − 1/{n}")
        require(abs(c4**2 + (1 - c4) ** 2 - 1) <= F(2, n), "C4² + C5² → 1")
    return True


def loss_imbalance(scale: F = F(1)) -> bool:
    """Proof. That of `balanced.thm_b3`: the logits of any feasible (W, h), sample by sample, are those of both
    models: h0 = (d/E_H) h with W_EX = (E_H/d) I, and h0 = h with W_DEQ = 0.
    """
    rng, unit, small = random.Random(34), identity(3), F(1, 6)  # E_H/d
    w, h = random_matrix(rng, 4, 3), random_matrix(rng, 3, 5 + 5 + 1 + 1)
    explicit, deq = w @ (scale * small * unit) @ (1 / small * h), w @ inverse(unit - 0 * unit) @ h
    return require(explicit == deq == w @ h, "the same logits")


def step_55_57(d: int = 10) -> bool:
    """Spectral norm: ‖(I−W)⁻¹‖ ≤ Σ‖W‖^j ≤ 1/(1−E_H) for E_H < 1; checked through ‖(I−W)⁻¹x‖² (1−‖W‖_F)² ≤ ‖x‖².
    Frobenius: at W = diag(1/100, 0, …) the squared norm is d − 1 + (100/99)².
    """
    rng, r = random.Random(35), F(1, 2)
    for _ in range(20):
        w = exact.matrix(3, 3, lambda i, j: F(rng.randint(-5, 5), 30))  # ‖W‖_F ≤ 1/2
        x = random_matrix(rng, 3, 1)
        y = inverse(identity(3) - w) @ x
        require(norm2(w) <= r**2 and norm2(y) * (1 - r) ** 2 <= norm2(x), "spectral norm")
    layer = exact.diagonal([1 / (1 - _SMALL), *[F(1)] * (d - 1)])
    return require(norm2(layer) > 4 / (1 - _SMALL) ** 2, "Frobenius norm: more than twice the bound")


def step_58_59(y: F = F(1, 2)) -> bool:
    """(58) says that y = 2s − m is nearer to 1/(1−E_H) than to E_H; the paper's third case has the right bound."""
    e, far = _SMALL, 1 / (1 - _SMALL)
    require(e < y < far and not abs(far - y) < abs(e - y), "(59) holds, (58) does not")
    for value in (F(-1), F(1, 4), F(1, 2), F(51, 100), F(1), F(3)):
        require((abs(far - value) < abs(e - value)) == (value > (e + far) / 2), "what (58) says")
    return True


def step_60_62(e_h: F = _SMALL) -> bool:
    """The right sides of (60) and (61) are lower bounds besides, so their ratio says nothing about the ratio of
    cosines.
    """
    e_w = _SMALL
    s = e_w + e_h
    ratio = (4 * e_h / (1 + 2 * s * (1 - e_h))) / (2 * e_h / s)
    require(e_h / s + e_h * (1 - e_h) < 2 and ratio == F(100, 2599), "(62) holds and the ratio is below 1")
    for w, h in ((F(1), F(1, 2)), (F(1, 10), F(1, 10)), (F(10), F(9, 10)), (F(1, 100), F(7, 10))):
        require((2 * (w + h) / (1 + 2 * (w + h) * (1 - h)) > 1) == (2 * h * (w + h) > 1), "what the ratio says")
    return True


with STEPS.open(encoding="utf-8", newline="") as _lines:
    for _row in csv.DictReader(_lines):
        states(_row["place"], _row["statement"], _row["verdict"], _row["certificate"])(globals()[_row["id"]])
