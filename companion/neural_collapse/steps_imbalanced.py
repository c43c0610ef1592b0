"""Steps of the proofs in appendix C. Bilinear identities are checked with rational vectors w_A, w_B, w_k."""

from __future__ import annotations

import random
from fractions import Fraction as F

from companion import exact
from companion.certify import require, states

_SMALL = F(1, 100)  # the paper's E_W = E_H


@states(
    "§4, (10) and App. C.1, (38)",
    "L = (K_A n_A/N) Σ_k Σ_i L(…) + (K_B n_B/N) Σ_k Σ_i L(…)",
    "typo",
    "(40) and (46) divide by K_A n_A; as printed the weights of all samples sum to 24755 instead of 1 (K_A = 5, n_A = "
    "5000, n_B = 50)",
)
def step_10_38(power: int = 1) -> bool:
    """Each double sum has K_A n_A (K_B n_B) terms: with 1/(K_A n_A) in front, the weights sum to 1."""
    a, b = 5 * 5000, 5 * 50
    total = F(a * a + b * b, a + b)
    require(F(49509, 2) < total < 24755, "as printed")
    return require(F(a, a + b) * a / F(a) ** power + F(b, a + b) * b / F(b) ** power == 1, "divided by K_A n_A")


@states(
    "App. C.1, (39), second line",
    "log(C1 exp(h·w_k/C1) + C2 Σ exp(h·w_k′/C2) + …)",
    "typo",
    "its next line needs exp(h·w)/C in place of exp(h·w/C): then Jensen gives it with the printed const (exact at K = "
    "4)",
)
def step_39(inside: bool = False) -> bool:
    """Proof. Σ exp(z) = Σ C (exp(z)/C), and log of the mean ≥ mean of the logs Σ C (z − log C), weights C summing to
    1: the third line with const = −Σ C log C. With exp(z/C) the sum would not be Σ exp(z): at z = log 2 and C = 1/2
    it is exp(2z)/2 = 2 = exp z by accident, at C = 1/4 it is exp(4z)/4 = 4.
    """
    c = [F(1, 2), F(1, 4), F(1, 8), F(1, 8)]
    z = [F(3), F(1), F(-2), F(5)]  # multiples of log 2
    exact_sum = sum(F(2) ** int(x) for x in z)
    require(exact_sum == sum(q * F(2) ** int(x) / q for q, x in zip(c, z, strict=True)), "exp(z)/C")
    lower = sum(q * (x + n) for q, x, n in zip(c, z, (1, 2, 3, 3), strict=True))  # −log C in units of log 2
    require(exact_sum**8 >= F(2) ** int(8 * lower), "Jensen")
    return require((F(2) ** 4 / 4 == 2) == inside, "exp(z/C) gives another sum")


@states(
    "App. C.1, (40)",
    "(1/K_A n_A) ΣΣ L ≥ (1/K_A n_A) ΣΣ C4(h·w_A − h·w_k) + C5(h·w_B − h·w_k) + const",
    "typo",
    "(39), last line, has the factor C0 < 1, which (40) to (52) drop; without it the const of (39) is too large "
    "(intervals, K = 3)",
)
def step_40(c0: F = F(1, 2)) -> bool:
    """Weights (39): C = (1 − C0) e_k + C0 q with q = (C4/K_A on the majority, C5/K_B on the minority); const = H(C),
    the entropy. K_A = 2, K_B = 1, C0 = 1/2, C4 = 1/50: logits (0, 0, 20) of a sample of the first class.
    """
    c4, z = F(1, 50), (F(0), F(0), F(20))
    q = (c4 / 2, c4 / 2, 1 - c4)
    weights = [c0 * x + (1 - c0) * (k == 0) for k, x in enumerate(q)]
    entropy = exact.total([-(x * exact.log(x)) for x in weights])
    bracket = sum(x * y for x, y in zip(q, z, strict=True)) - z[0]
    loss = exact.cross_entropy(z, 0)
    require(loss > c0 * bracket + entropy, "with C0")
    return require(loss < bracket + entropy, "without C0")


@states(
    "App. C.1, (42) and (48)",
    "equality: C4 w_A + C5 w_B − w_k = C6 h_k",
    "typo",
    "the sign: equality in (41) is at −C6 h_k, as (19) has it (h̄ − h = −C5 w); (53)–(55) inherit it",
)
def step_42(sign: int = -1) -> bool:
    """h·y + (C6/2)‖h‖² + ‖y‖²/(2C6) = ‖C6 h + y‖²/(2C6), which is 0 iff y = −C6 h."""
    rng, c6 = random.Random(31), F(3, 2)
    h = exact.random_matrix(rng, 3, 1)
    for y in (exact.random_matrix(rng, 3, 1), exact.scaled(sign * c6, h)):
        gap = exact.inner(h, y) + c6 / 2 * exact.norm2(h) + exact.norm2(y) / (2 * c6)
        require(gap == exact.norm2(exact.plus(y, h, c6)) / (2 * c6), "the square")
    return require(gap == 0, "equality")


@states(
    "App. C.1, (43), last step",
    "−(K_A ‖W_EX‖ + Σ_{k≤K_A} ‖h0_k‖²)/2 ≥ −K_A E_H",
    "false",
    "the majority may use the whole budget K E_H: K = 10, K_A = 3, ‖h0_k‖² = 1/30 obeys (5) and gives −13/200 < "
    "−3/100. Second derivation: symbolic",
)
def step_43(part: F = F(1, 30)) -> bool:
    classes, majority, norm = 10, 3, _SMALL  # ‖W_EX‖_F = E_H
    require(majority * part <= classes * _SMALL, "the budget of (5)")
    return require(-(majority * norm + majority * part) / 2 < -majority * _SMALL, "the step fails")


@states(
    "App. C.1, (44), last line",
    "−Σ ‖h_k‖² ≥ −(1/(1−E_H) + E_H)/2",
    "typo",
    "K_A is dropped; (46) has M = −(K_A/2)(1/(1−E_H) + E_H)",
)
def step_44(majority: int = 3) -> bool:
    """The line before has K_A Σ_j E_H^j + Σ_{k≤K_A} (1/n_k) Σ_i ‖h_k,i‖²: with ‖h_k‖² = E_H each, K_A times the
    printed line.
    """
    e = F(3, 10)
    before = -(3 / (1 - e) + 3 * e) / 2
    return require(before == majority * -(1 / (1 - e) + e) / 2 and majority != 1, "(46) restores K_A")


@states(
    "App. C.1, below (44)",
    "(−Σ‖h_k‖²)_DEQ < (−Σ‖h_k‖²)_EX for all E_H ≠ 1",
    "holds if E_H < 1",
    "between the two lower bounds, with the K_A of (46): 1/(1−E) − E = (E²−E+1)/(1−E); false for E_H > 1. It orders "
    "bounds, not losses",
)
def step_44_order(limit: F = F(1)) -> bool:
    """−(K_A/2)(1/(1−E) + E) < −K_A E iff 1/(1−E) > E; E² − E + 1 = (E − 1/2)² + 3/4 > 0, so iff E < 1."""
    for e in (_SMALL, F(1, 2), F(99, 100), F(101, 100), F(2)):
        require(1 / (1 - e) - e == ((e - F(1, 2)) ** 2 + F(3, 4)) / (1 - e), "the difference")
        require((1 / (1 - e) > e) == (e < limit), f"E_H = {e}")
    return True


@states(
    "App. C.1, (45), lines 2 and 3",
    "… − C5‖w_B‖², … − (C5² + C5²/(C4(2−C4)))‖w_B‖²",
    "typo",
    "three slips: C5² (line 3 has it), C5⁴/(C4(2−C4)) (line 4 has it), and the first sum of line 3 runs to K, not to "
    "K_A (line 4 needs it); with all three the chain is an identity, exact",
)
def step_45(first: int = 2, second: int = 4) -> bool:
    """K_A = 3, K_B = 2. Line 3 adds (1/K_A) Σ_{k>K_A} ‖w_k‖², which its first sum, run to K, takes away again."""
    rng = random.Random(32)
    for c4 in (F(1, 3), F(4, 5), F(1, 10)):
        c5, columns, minority = 1 - c4, exact.random_matrix(rng, 4, 3), exact.random_matrix(rng, 4, 2)
        a, b = [[sum(row) / 3] for row in columns], [[sum(row) / 2] for row in minority]
        y = exact.plus(exact.scaled(c4, a), b, c5)
        line1 = -sum(exact.norm2([[y[r][0] - columns[r][k]] for r in range(4)]) for k in range(3)) / 3
        base, ab, aa, bb = -exact.norm2(columns) / 3, exact.inner(a, b), exact.norm2(a), exact.norm2(b)
        line2 = base + 2 * c5**2 * ab + c4 * (2 - c4) * aa
        require(line1 == line2 - c5**first * bb != line2 - c5 * bb, "line 2")
        q, rest = c4 * (2 - c4), exact.norm2(minority) / 3
        line3 = (base - rest) + rest + q * exact.norm2(exact.plus(a, b, c5**2 / q)) - c5**2 * bb
        require(line1 == line3 - c5**second / q * bb != line3 - c5**2 / q * bb, "line 3")
        require(line1 != line3 + rest - c5**second / q * bb, "line 3 with its first sum as printed")
    return True


@states(
    "App. C.1, (46), fourth term",
    "(C4(2−C4)/C6) ‖w_A + …‖²",
    "typo",
    "the factor 1/2 of the line before is lost; (49) has C4(2−C4)/(2C6)",
)
def step_46(half: F = F(1, 2)) -> bool:
    """−‖y − w_k‖²/(2C6): every term of (45) enters with 1/(2C6). In one dimension, w_k = w_A = 1, w_B = 0, C4 = C5 =
    1/2.
    """
    c6, c4 = F(3), F(1, 2)
    q = c4 * (2 - c4)
    before = -((c4 - 1) ** 2) / (2 * c6)
    return require(before == -F(1) / (2 * c6) + half * q / c6 and before != -F(1) / (2 * c6) + q / c6, "the factor")


@states(
    "App. C.1, (47), coefficient of ‖w_A‖²",
    "K_R − C5² − C5⁴/(C4(2−C4))",
    "typo",
    "the roles of the classes are exchanged: K_R − C4² − C4⁴/(C5(2−C5)); exact. (49) and (50) inherit it",
)
def step_47(exchanged: bool = True) -> bool:
    rng, c4 = random.Random(33), F(4, 5)
    c5, columns = 1 - c4, exact.random_matrix(rng, 4, 3)
    b, a = [[sum(row) / 3] for row in columns], exact.random_matrix(rng, 4, 1)
    y = exact.plus(exact.scaled(c4, a), b, c5)
    line1 = -sum(exact.norm2([[y[r][0] - columns[r][k]] for r in range(4)]) for k in range(3)) / 3
    q = c5 * (2 - c5)
    square = -exact.norm2(columns) / 3 + q * exact.norm2(exact.plus(b, a, c4**2 / q))
    right = square - (c4**2 + c4**4 / q) * exact.norm2(a)
    printed = square - (c5**2 + c5**4 / (c4 * (2 - c4))) * exact.norm2(a)
    return require((line1 == right and line1 != printed) == exchanged, "the coefficient")


@states(
    "App. C.1, (49)",
    "L = L_A + L_B ≥ the sum of (46) and (47)",
    "false",
    "with (38) weighted as (40) and (46) have it: (46), (47) normalise L_A and L_B, so L = (K_A n_A/N) L_A + (K_B "
    "n_B/N) L_B: log K against 2 log K at zero weights, where the right side of (49) exceeds L. Second derivation: "
    "symbolic",
)
def step_49(times: int = 2) -> bool:
    """K = 10, K_A = 5, w = 0, E_W = E_H = 1/100, C6 = 1, C4 = C5 = 1/2, a = b = c: const of (46) and (47) is log K
    each, all terms with w vanish, M = −K_A E_H: (46) + (47) ≥ 2 log K − E_H − 2 K E_W/(2 K_A). But every sample's
    loss is log K = L. So (49) is no lower bound with L_A as in (46); with the weights of (38) as printed (`step_10_38`)
    it is not refuted. n_A and n_B, the imbalance, are gone from it.
    """
    log_k = exact.log(F(10))
    right = times * log_k - _SMALL - 2 * 10 * _SMALL / (2 * 5)
    return require(right > log_k, "the right side exceeds the loss")


@states(
    "App. C.2, (50)",
    "∂/∂w_k of Σ‖w_j − w_A‖²/(2C6K_B) is (1 − 1/K_A)(w_k − w_A)/(C6K_B)",
    "false",
    "it is (w_k − w_A)/(C6K_B): exact at K_A = 3. Second derivation: symbolic",
)
def step_50(factor: F = F(1)) -> bool:
    """The mean drops out, since Σ_j (w_j − w_A) = 0. A quadratic function's derivative is its symmetric difference
    quotient.
    """

    def half(first: F) -> F:
        w = (first, F(-2), F(7))
        return sum((x - sum(w) / 3) ** 2 for x in w) / 2

    at, step = F(4), F(1, 3)
    slope = (half(at + step) - half(at - step)) / (2 * step)
    deviation = at - F(4 - 2 + 7, 3)
    return require(slope == factor * deviation != F(2, 3) * deviation, "the derivative")


@states(
    "App. C.2, (51), coefficient of w_B",
    "1/(1 − C4²)",
    "false",
    "from (50) it is C4² + C5²: at C4 = 4/5, 17/25 against 25/9. Second derivation: symbolic",
)
def step_51(c4: F = F(4, 5)) -> bool:
    """(50) times C6K_A: w_B enters with C4(2−C4)·C5²/(C4(2−C4)) = C5² in the second term and with C4² in the third."""
    c5 = 1 - c4
    coefficient = c4 * (2 - c4) * (c5**2 / (c4 * (2 - c4))) + c4**2
    return require(coefficient == F(17, 25) != 1 / (1 - c4**2) == F(25, 9), "the coefficient")


@states(
    "App. C.2, below (51)",
    "C4 → 1, we have 1/(1 − C4²) → 0",
    "false",
    "it tends to infinity, and the coefficient that (50) gives tends to 1. Second derivation: symbolic",
)
def after_51(exponent: int = 1) -> bool:
    """With ε = 1 − C4: 1 − C4² = ε(2 − ε) ≤ 2ε, so 1/(1 − C4²) ≥ 1/(2ε)."""
    for n in (10, 10**3, 10**6):
        c4 = 1 - F(1, n)
        require((1 / (1 - c4**2)) ** exponent >= F(n, 2), f"C4 = 1 − 1/{n}")
        require(abs(c4**2 + (1 - c4) ** 2 - 1) <= F(2, n), "C4² + C5² → 1")
    return True


@states(
    "§4, below Theorem 4.1; App. C.1, (43)–(44)",
    "the lower bound of the loss function in DEQ is still lower than that in explicit neural network",
    "not shown",
    "the bounds with M of (46) are ordered for E_H < 1 (step_44_order), which orders no infima: those of (10), H0 "
    "free in each, are equal for any n_k (thm_b3), exact for unequal classes. With the same or bounded inputs the "
    "order of the infima is right (b3_same_inputs_series_from_1, b3_v2_order)",
)
def loss_imbalance(scale: F = F(1)) -> bool:
    """Proof. That of `balanced.thm_b3`: the logits of any feasible (W, h), sample by sample, are those of both
    models.
    """
    rng, d, e_h = random.Random(34), 3, F(1, 2)
    w, h = exact.random_matrix(rng, 4, d), exact.random_matrix(rng, d, 5 + 5 + 1 + 1)
    explicit = exact.product(w, exact.scaled(scale * e_h / d, exact.identity(d)), exact.scaled(d / e_h, h))
    deq = exact.product(w, exact.inverse(exact.identity(d)), h)
    return require(explicit == deq == exact.product(w, h), "the same logits")


@states(
    "App. C.2, (57), and (56)",
    "‖(I − W_DEQ)⁻¹‖_F/2 ≤ 1/(2(1 − E_H))",
    "holds if ‖·‖ is the spectral norm",
    "Neumann series; false for the printed Frobenius norm (d = 10, W = 0: √10 > 1). (56) and (57) also equate a d×d "
    "matrix times a scalar with a scalar",
)
def step_55_57(d: int = 10) -> bool:
    """Spectral norm: ‖(I−W)⁻¹‖ ≤ Σ‖W‖^j ≤ 1/(1−E_H) for E_H < 1; checked through ‖(I−W)⁻¹x‖² (1−‖W‖_F)² ≤ ‖x‖².
    Frobenius: at W = diag(1/100, 0, …) the squared norm is d − 1 + (100/99)².
    """
    rng, r = random.Random(35), F(1, 2)
    for _ in range(20):
        w = exact.matrix(3, 3, lambda i, j: F(rng.randint(-5, 5), 30))  # ‖W‖_F ≤ 1/2
        x = exact.random_matrix(rng, 3, 1)
        y = exact.product(exact.inverse(exact.plus(exact.identity(3), w, -1)), x)
        require(exact.norm2(w) <= r**2 and exact.norm2(y) * (1 - r) ** 2 <= exact.norm2(x), "spectral norm")
    layer = exact.diagonal([1 / (1 - _SMALL)] + [F(1)] * (d - 1))
    return require(exact.norm2(layer) > 4 / (1 - _SMALL) ** 2, "Frobenius norm: more than twice the bound")


@states(
    "App. C.2, (58)–(59)",
    "when E_H < 2s − m < 1/(1 − E_H), the performance of DEQ is better",
    "false",
    "(58) is 2s − m > (E_H + 1/(1−E_H))/2: (59) is true and (58) false at E_H = 1/100, 2s − m = 1/2. Second "
    "derivation: symbolic",
)
def step_58_59(y: F = F(1, 2)) -> bool:
    """(58) says that y = 2s − m is nearer to 1/(1−E_H) than to E_H; the paper's third case has the right bound."""
    e, far = _SMALL, 1 / (1 - _SMALL)
    require(e < y < far and not abs(far - y) < abs(e - y), "(59) holds, (58) does not")
    for value in (F(-1), F(1, 4), F(1, 2), F(51, 100), F(1), F(3)):
        require((abs(far - value) < abs(e - value)) == (value > (e + far) / 2), "what (58) says")
    return True


@states(
    "App. C.2, (60)–(62)",
    "cos_DEQ/cos_EX > 1 … is equivalent to E_H/(E_W+E_H) + E_H(1−E_H) < 2",
    "false",
    "(61)/(60) = 2s/(1 + 2s(1−E_H)), s = E_W + E_H: at 1/100 it is 100/2599, and > 1 iff 2E_H(E_W+E_H) > 1. Second "
    "derivation: symbolic",
)
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
