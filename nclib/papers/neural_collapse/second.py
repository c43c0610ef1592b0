"""Second derivations of what is called false, without any code of the first ones.

By another argument; of NC3 under imbalance (`after_54`) by the same one with other arithmetic.

Bounds of exp are those of `decimal`, whose results are correctly rounded, widened by one unit; where the argument
allows, logarithms cancel and a polynomial decides. An identity between polynomials of a degree below seven in
each variable is checked at seven values of each, which proves it.
"""

from decimal import Context, Decimal
from fractions import Fraction
from itertools import product
from math import prod

from nclib.papers.certify import also

_CONTEXT = Context(prec=40)
_SEVEN = [Fraction(n, 8) for n in range(1, 8)]
_PAIRS = list(product(_SEVEN, _SEVEN))


def _exp(q: Fraction) -> tuple[Fraction, Fraction]:
    """Bounds of exp."""
    near = _CONTEXT.divide(Decimal(q.numerator), Decimal(q.denominator))
    low, high = near.next_minus(_CONTEXT).exp(_CONTEXT), near.next_plus(_CONTEXT).exp(_CONTEXT)
    return Fraction(low.next_minus(_CONTEXT)), Fraction(high.next_plus(_CONTEXT))


@also("thm_b3")
def infima_by_duality() -> bool:
    """One number is below every feasible loss of both problems and is attained in both: the infima are equal.

    Balanced, n_k = 1, d = K, any E_W, E_H; write t = exp(a) with a = K √(E_W E_H)/(K−1). The gradient at Z° = a (I −
    11ᵀ/K) has entries (p_jk − δ_jk)/K, p = t/(t+K−1) on the diagonal and 1/(t+K−1) off it. It equals −λ(I − 11ᵀ/K),
    λ = 1/(t+K−1): a projection times −λ, so ⟨G, Z⟩ ≥ −λ‖Z‖_* ≥ −λK√(E_W E_H) = ⟨G, Z°⟩ for feasible Z, and by
    convexity no loss is lower than that of Z°. Attained: W and H multiples of I − 11ᵀ/K, h the features, h0 = h with
    W_DEQ = 0, or h0 = h·d/E_H with W_EX = (E_H/d) I. Any positive difference between the infima is thereby excluded.
    """
    settings = product((2, 3, 4, 10), (Fraction(10**6 + 1, 10**6), Fraction(3, 2), Fraction(40)), (1, 0))
    for classes, t, own in settings:  # an entry on the diagonal, and one off it
        lam = 1 / (t + classes - 1)
        if (lam * (t if own else 1) - own) / classes != -lam * (own - Fraction(1, classes)):
            return False
    return all(d * (e / d) ** 2 <= e**2 for e, d in ((Fraction(1, 100), 10), (Fraction(1, 2), 3), (Fraction(4), 2)))


def _collapse_is_optimal(classes: int, majority: int, ratio: int, budget: Fraction) -> bool:
    """Whether Z° = a (I − 11ᵀ/K_A) ⊕ 0, a (K_A−1) = K·budget, minimises the imbalanced loss, by its gradient's norm.

    A majority class has the weight R/N and a minority class 1/N, N = K_A R + K_B. On vectors that sum to 0 over the
    majority the gradient is −λ, λ = (R/N)(1 − p_own + p_other); over the minority −1/N (softmax is uniform there); the
    rest is a 2×2 block on the two constant vectors, whose Frobenius norm is compared with λ.
    """
    minority, a = classes - majority, classes * budget / (majority - 1)
    own, other = _exp(a * Fraction(majority - 1, majority)), _exp(-a / majority)
    low, high = (x + (majority - 1) * y + minority for x, y in zip(own, other, strict=True))
    samples = majority * ratio + minority
    heavy, light = Fraction(ratio, samples), Fraction(1, samples)
    lam = heavy * (1 - own[1] / low + other[0] / high)
    escaped = minority / low  # at most this probability of a majority sample goes to the minority
    from_majority = heavy**2 * majority * escaped**2 * (Fraction(1, majority) + Fraction(1, minority))
    uniform = Fraction(majority, classes)  # of a minority sample, to the majority
    from_minority = light**2 * minority * uniform**2 * (Fraction(1, majority) + Fraction(1, minority))
    return light <= lam and from_majority + from_minority <= lam**2


@also("thm41_nc3")
def ratio_is_one_by_duality() -> bool:
    """K = 10, K_A = 3, R = 100, E_W = E_H = 1/100, budget on h: Z° = a (I − 11ᵀ/3) ⊕ 0 minimises the loss of both
    models.

    Z° is symmetric and positive semidefinite, so ⟨Wᵀ, H⟩ = tr Z° = ‖Z°‖_* = ‖W‖_F ‖H‖_F at every minimiser: H is a
    positive multiple of Wᵀ, cos(h_k, w_k) = 1 in each majority class of both models, and their ratio is 1, not
    larger. (The minimiser is unique in Z up to what the nuclear norm excludes, as for balanced classes.) (62): 1/2 +
    99/10⁴ < 2.
    """
    e = Fraction(1, 100)
    return e / (2 * e) + e * (1 - e) < 2 and _collapse_is_optimal(10, 3, 100, e)


# --- the proofs' reading, inputs bounded: logarithms cancel -------------------------------------------------------


@also("h0_given")
def inputs_from_features() -> bool:
    """z = Mz + x, so the features determine the inputs, x = z − Mz: of the DEQ with the series from 0.

    Equal features have equal inputs, parallel ones parallel inputs, and 0 has the input 0. So with inputs 1/20 and 1/10
    in one class, e_1/20 and e_2/20 in two classes, whose classifiers are opposite at a minimum, or an input other than
    0 of a minority class, NC1, NC3 and h = 0 fail at every feasible point. One dimension, any of the maps: h_2/h_1 is
    h0_2/h0_1 = −2, which NC2 needs to be −1. A margin x > 0 has the loss log(1 + exp(−x)) ≤ log 2 − x/2 + x²/8, less
    than log 2 for x < 4, so the map 0, the only one with equal features, is not optimal.
    """
    gains = (Fraction(1, 100), Fraction(1, 99), Fraction(100, 99))
    margins = [2 * gain * x / 10 for gain in gains for x in (Fraction(1, 20), Fraction(1, 10))]
    if not all(0 < x < 4 and x / 2 > x * x / 8 for x in margins):
        return False
    maps = product(((1, 0, 0, 0), (3, -4, 2, 5), (0, 7, -7, 0)), ((3, -2), (0, 1)), (Fraction(1), Fraction(-5, 3)))
    for m, z, t in maps:
        a, b, d, e = (Fraction(x, 1000) for x in m)
        (x, y), (u, v) = ((p - a * p - b * q, q - d * p - e * q) for p, q in (z, (t * z[0], t * z[1])))
        if a * a + b * b + d * d + e * e > Fraction(1, 100) ** 2 or (u, v) != (t * x, t * y):
            return False
    return True


@also("b3_v2_values")
def constant_by_polynomials() -> bool:
    """C4 = 2 inf L_EX − inf L_DEQ > log K at K = 10, E_W = E_H = e = 1/100, by tangents at Z = 0.

    Explicit: the gradient at 0 is −(I − 11ᵀ/K)/K of norm 1/K, so the loss is at least log K − ‖Z‖_*/K ≥ log K − e·e.
    DEQ: W_DEQ = 0 and logits ±e in equal numbers, own +e (rank one, nuclear norm Ke): log cosh e − e + log K ≤ log K
    − e + e²/2. So C4 − log K ≥ −2e² + e − e²/2.
    Separate constants: (22) is at most log K plus the log of the mean of exp(−X), X = 0 or c = Ke/(K−1) with
    probabilities 1/K and (K−1)/K; by Hoeffding that is at most −e + c²/8, and for (33) −2e + (2c)²/8. Below inf L_EX ≥
    log K − e·e and below log K − e, which is less than every loss with bounded features (tangent at 0).
    """
    e, c = Fraction(1, 100), Fraction(10, 9) * Fraction(1, 100)
    separate = -e + c**2 / 8 < -(e**2) and -2 * e + c**2 / 2 < -e
    return separate and -2 * e**2 + e - e**2 / 2 > 0


@also("nc31_proofs_reading")
def rank_one_by_polynomials() -> bool:
    """Loss of rank one ≤ log K − z + z²/2 (log cosh z ≤ z²/2); of nuclear norm n ≥ log K − n/K. With z = gE, n = fKE,
    E = r = 1/100 it is enough that g − g²E/2 > f for g, f of each map, √(K−1) = 3."""
    e, d = Fraction(1, 100), Fraction(99, 100)
    pairs = ((e, e / 3), (1 / d, 3 / (3 - e)), (1 / d, 1 + e / (3 * d)), (e / d, e / (3 - e)), (e / d, e / (3 * d)))
    return all(g - g * g * e / 2 > f for g, f in pairs)


@also("prop42_proofs_reading")
def majority_by_polynomials() -> bool:
    """Per majority sample, log K − loss ≥ own − mean − (largest |logit|)²/2 with logits (q, q, −q, −q, 0, …): own q,
    mean 0 (Hoeffding: log of the mean of exp ≤ mean + max²/2). Four such classes: 4 w_A (q − q²/2) against w_A B r/2
    with q = B r/4, B = 1/10, r = 1/100."""
    q = Fraction(1, 4000)
    return 4 * (q - q * q / 2) > 2 * q


@also("nc31_nc3_proofs_reading")
def rank_one_by_lipschitz() -> bool:
    """Lower bounds of the candidates on a grid: in t the rank-one loss changes by at most 16/5 a unit.

    x = (1, t−1, −t) turns by at most 2/√3 rad a unit of t; Z = βxxᵀ/‖x‖², β = 12/5, changes by at most β√2 a rad;
    the gradient has the norm at most √(2/3). The product is β·4/3. Rank two: β = (6/5)/(2 − 1/√2) with 1/√2 <
    70711/100000. The feasible point has its logits from M = diag(12/25, 7/50) on the two directions. Compared are
    bounds of exp(3·loss), the product of the columns' sums.
    """

    def powers(z: list[list[Fraction]]) -> tuple[Fraction, Fraction]:
        columns = [[_exp(row[k] - z[k][k]) for row in z] for k in range(3)]
        low, high = (prod(sum(bounds[side] for bounds in column) for column in columns) for side in (0, 1))
        return low, high

    share = Fraction(12 * 13, 625) + Fraction(7 * 43, 2500)  # Σ μ(1 − μ)
    p, q = Fraction(6, 5) * Fraction(12, 25) / share / 2, Fraction(6, 5) * Fraction(7, 50) / share / 6
    reached = powers([[p + q, q - p, -2 * q], [q - p, p + q, -2 * q], [-2 * q, -2 * q, 4 * q]])[1]
    third = Fraction(2, 5) / (2 - Fraction(70711, 100000))  # β/3 from above: the loss of rank two from below
    lowest = [powers([[third * (3 * (j == k) - 1) for j in range(3)] for k in range(3)])[0]]
    for i in range(400):
        t = Fraction(2 * i + 1, 1600)
        x = (Fraction(1), t - 1, -t)
        size = Fraction(12, 5) / sum(c * c for c in x)
        lowest.append(powers([[size * a * b for a in x] for b in x])[0] / _exp(Fraction(3, 1600) * Fraction(16, 5))[1])
    return all(low > reached for low in lowest)


@also("after_54")
def gradient_at_the_collapsed_optimum() -> bool:
    """`_collapse_is_optimal` at E_W = E_H = 1/100 in the nine settings, and not for balanced classes, R = 1, whose
    optimum is the ETF of all K. Z° is symmetric and positive semidefinite, so W ∥ Hᵀ as for `thm41_nc3`.
    """
    e = Fraction(1, 100)
    settings = [(majority, ratio) for majority in (3, 5, 7) for ratio in (10, 50, 100)]
    collapsed = all(_collapse_is_optimal(10, majority, ratio, e) for majority, ratio in settings)
    return collapsed and not any(_collapse_is_optimal(10, majority, 1, e) for majority in (3, 5, 7))


# --- steps of the proofs ------------------------------------------------------------------------------------------

# What shows a step false, at u and v of `_PAIRS`: identities of polynomials, and signs for 0 < u, v < 1.
_ON_PAIRS = {
    # (w² + x²)/2 − w²x² is 0 for wx ≤ 1 only if w = x and wx = 1, that is at w = x = 1.
    "step_20_equality": lambda w, x: (w**2 + x**2) / 2 - (w * x) ** 2 == (w - x) ** 2 / 2 + w * x * (1 - w * x),
    # log x ≤ x − 1 and C3 = pc, c = 1/(K−1) ≤ 1: N C4 ≤ p(pc − 1) + (1−p)(−p), which is negative for p < 1.
    "step_22_33": lambda p, c: p * (p * c - 1) - (1 - p) * p == p * (p * (1 + c) - 2) < 0,
    # ‖WG + x‖² − ‖WG‖² − ‖x‖² = 2⟨WG, x⟩, coordinate by coordinate: 2w‖x‖² > 0 for W = wI, G = x.
    "step_29": lambda w, x: (w * x + x) ** 2 - (w * x) ** 2 - x**2 == 2 * w * x**2 > 0,
    # With the whole budget K E on the majority the step claims (K_A + K)/2 ≤ K_A, K = K_A + K_B: K_B/2 too much.
    "step_43": lambda a, b: (a + (a + b)) / 2 - a == b / 2 > 0,
    # 1/(1 − C4²) = 1 + C4² + C4⁴ + … is above any number of its terms, each of which tends to 1. C4² + C5² tends to 1.
    "after_51": lambda c, _: 1 / (1 - c**2) > 1 + c**2 + c**4 and c**2 + (1 - c) ** 2 == 1 - 2 * c * (1 - c),
    # F = E + g, y = E + s: (E − y)² − (F − y)² > 0, which is (58), says s > g/2; 0 < s = g/4 satisfies (59) alone.
    "step_58_59": lambda g, s: s**2 - (g - s) ** 2 == 2 * g * (s - g / 2),
    # s = E_W + E_H: (61)/(60) − 1 has the sign of 2hs − 1, and (62) holds for all E_W, E_H > 0; without denominators.
    "step_60_62": lambda s, h: (
        4 * h * s - 2 * h * (1 + 2 * s * (1 - h)) == 2 * h * (2 * h * s - 1)
        and 2 * s - h - s * h * (1 - h) == (s - h) + s * ((h - Fraction(1, 2)) ** 2 + Fraction(3, 4))
    ),
}
for _name, _holds in _ON_PAIRS.items():
    also(_name)(lambda holds=_holds: all(holds(*pair) for pair in _PAIRS))


@also("step_36")
def only_the_zero_vector() -> bool:
    """Any W with W x = x, here of three dimensions, P = xxᵀ/‖x‖² and W = P + N (I − P), maps G¹ = W x + x to 2x."""
    x, r = (2, -1, 3), range(3)
    p = [[Fraction(x[i] * x[j], 14) for j in r] for i in r]
    for n in ([[0] * 3] * 3, [[1, -2, 5], [0, 3, 1], [4, 4, -7]]):
        w = [[p[i][j] + sum(n[i][k] * ((k == j) - p[k][j]) for k in r) for j in r] for i in r]
        once = [sum(w[i][j] * x[j] for j in r) for i in r]
        if once != [*x] or [sum(w[i][j] * (once[j] + x[j]) for j in r) for i in r] != [2 * value for value in x]:
            return False
    return True


@also("step_49")
def the_sum_is_larger() -> bool:
    """L = qL_A + (1−q)L_B with 0 < q < 1: L_A + L_B − L = (1−q)L_A + qL_B > 0 for positive L_A, L_B."""
    return all(a + b - (q * a + (1 - q) * b) == (1 - q) * a + q * b > 0 for (a, b), q in product(_PAIRS, _SEVEN))


@also("step_50")
def gradient_of_a_projection() -> bool:
    """Σ(w_j − w_A)² = wᵀCw with the projection C = CᵀC = I − 11ᵀ/K_A: half of it has the gradient Cw, w_k − w_A."""
    for n, j in product(range(2, 6), (0, 1)):  # an entry of CᵀC on the diagonal, and one off it
        first, other = ([(m == k) - Fraction(1, n) for m in range(n)] for k in (0, j))
        if sum(x * y for x, y in zip(first, other, strict=True)) != first[j]:
            return False
    return True


@also("step_51")
def coefficient_by_differences() -> bool:
    """The two terms of (49) with a = w_A and b = w_B: the coefficient of ab is their mixed difference. It is C4² + C5²,
    below 1 for 0 < C4 < 1; the paper's is above.
    """

    def terms(c: Fraction, a: int, b: int) -> Fraction:
        p, q = c * (2 - c), (1 - c) * (1 + c)  # C4(2 − C4) and C5(2 − C5)
        return p / 2 * (a + (1 - c) ** 2 / p * b) ** 2 + q / 2 * (c**2 / q * a + b) ** 2

    mixed = {c: terms(c, 1, 1) - terms(c, 1, 0) - terms(c, 0, 1) for c in _SEVEN}
    return all(found == c**2 + (1 - c) ** 2 < 1 < 1 / (1 - c**2) for c, found in mixed.items())
