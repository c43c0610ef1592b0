"""Second derivations of false steps with sympy: general statements where the first ones have an instance.

Nothing of the first derivations is used; sympy is imported when one runs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from companion.certify import also


def _derivation(name: str) -> Callable[[Callable[[Any], bool]], Callable[[], bool]]:
    """Register a function of the module sympy."""
    return lambda check: also(name, sympy=True)(lambda: check(import_module("sympy")))


@_derivation("step_20_equality")
def equality_needs_large_norms(sp: Any) -> bool:
    """(w² + x²)/2 − w²x² ≥ (w² + x²)/2 − wx = (w − x)²/2 for wx ≤ 1, and at w = x it is w²(1 − w²): 0 only at w = 1."""
    w, x = sp.symbols("w x", positive=True)
    gap = (w**2 + x**2) / 2 - w**2 * x**2
    slack = sp.expand(gap - (w - x) ** 2 / 2 - w * x * (1 - w * x))
    return slack == 0 and sp.solve(gap.subs(x, w), w) == [1]


@_derivation("step_22_33")
def constant_is_negative(sp: Any) -> bool:
    """N C4 is convex in p on (0, 1) with the limits 0 at p = 0 and −log(K−1) ≤ 0 at p = 1: negative in between."""
    p, k = sp.symbols("p k", positive=True)  # k = K − 1 ≥ 1
    c4 = p * (sp.log(p) - sp.log(k)) + (1 - p) * sp.log(1 - p)
    convex = sp.simplify(sp.diff(c4, p, 2) - 1 / (p * (1 - p))) == 0
    return convex and sp.limit(c4, p, 0) == 0 and sp.simplify(sp.limit(c4, p, 1) + sp.log(k)) == 0


@_derivation("step_29")
def difference_is_the_mixed_term(sp: Any) -> bool:
    """‖WG + x‖² − ‖WG‖² − ‖x‖² = 2⟨WG, x⟩ in two dimensions, positive for W = wI, G = x."""
    w, x, y = sp.symbols("w x y", positive=True)
    total = (w * x + x) ** 2 + (w * y + y) ** 2 - (w * x) ** 2 - (w * y) ** 2 - x**2 - y**2
    return sp.expand(total - 2 * w * (x**2 + y**2)) == 0 and bool((2 * w * (x**2 + y**2)).is_positive)


@_derivation("step_36")
def only_the_zero_vector(sp: Any) -> bool:
    """W x = x and W(W x + x) = x in three dimensions, unknown W: substituting the first, the second says 2x = x."""
    x = sp.Matrix(sp.symbols("x1:4"))
    image = x  # W x by the case j = 1, so that W(W x + x) = W(2x) = 2 W x
    return sp.solve(list(2 * image - x), list(x)) == {symbol: 0 for symbol in x}


@_derivation("step_43")
def the_majority_takes_all(sp: Any) -> bool:
    """With the whole budget on the majority the step claims K_A E + K E ≤ 2 K_A E, that is K ≤ K_A; K = K_A + K_B."""
    k_a, k_b, e = sp.symbols("K_A K_B E", positive=True)
    excess = (k_a * e + (k_a + k_b) * e) / 2 - k_a * e
    return sp.simplify(excess - k_b * e / 2) == 0 and bool((k_b * e / 2).is_positive)


@_derivation("step_49")
def the_sum_is_larger(sp: Any) -> bool:
    """L = qL_A + (1−q)L_B with 0 < q < 1 and positive L_A, L_B: L_A + L_B − L is positive, so equality never holds."""
    odds, l_a, l_b = sp.symbols("odds L_A L_B", positive=True)
    q = odds / (1 + odds)
    difference = sp.simplify(l_a + l_b - q * l_a - (1 - q) * l_b)
    return bool(sp.simplify(difference - (l_a + odds * l_b) / (1 + odds)) == 0 and (l_a + odds * l_b).is_positive)


@_derivation("step_50")
def derivative_of_the_spread(sp: Any) -> bool:
    """For K_A = 2, …, 5 the derivative of Σ(w_j − mean)²/2 is w_1 − mean."""
    for majority in range(2, 6):
        w = sp.symbols(f"w1:{majority + 1}")
        mean = sum(w) / sp.Integer(majority)
        slope = sp.diff(sum((x - mean) ** 2 for x in w) / 2, w[0])
        deviation = w[0] - mean
        printed = (1 - sp.Rational(1, majority)) * deviation
        if sp.expand(slope - deviation) != 0 or sp.expand(slope - printed) == 0:
            return False
    return True


@_derivation("step_51")
def coefficient_by_differentiating(sp: Any) -> bool:
    """Differentiate the two terms of (49) with w_A and w_B along w_A, and read off the coefficient of w_B."""
    a, b, c = sp.symbols("a b c", positive=True)  # w_A, w_B, C4
    p, q = c * (2 - c), (1 - c) * (1 + c)  # C4(2 − C4) and C5(2 − C5)
    terms = p / 2 * (a + (1 - c) ** 2 / p * b) ** 2 + q / 2 * (c**2 / q * a + b) ** 2
    coefficient = sp.simplify(sp.expand(sp.diff(terms, a)).coeff(b))
    printed = 1 / (1 - c**2)
    return sp.simplify(coefficient - c**2 - (1 - c) ** 2) == 0 and sp.simplify(coefficient - printed) != 0


@_derivation("after_51")
def limit_is_infinite(sp: Any) -> bool:
    c = sp.symbols("c")
    return sp.limit(1 / (1 - c**2), c, 1, "-") == sp.oo and sp.limit(c**2 + (1 - c) ** 2, c, 1) == 1


@_derivation("step_58_59")
def nearer_means_beyond_the_middle(sp: Any) -> bool:
    """(E − y)² − (F − y)² = 2(F − E)(y − (E + F)/2): (58) is y > (E + F)/2, and y = (3E + F)/4 satisfies (59), not
    (58).
    """
    e, gap, y = sp.symbols("E gap y", positive=True)
    f = e + gap  # 1/(1 − E) > E for 0 < E < 1
    identity = sp.expand((e - y) ** 2 - (f - y) ** 2 - 2 * gap * (y - (e + f) / 2)) == 0
    inside = (3 * e + f) / 4
    gaps = (inside - e, f - inside, (e + f) / 2 - inside)
    return identity and all(sp.simplify(each).is_positive for each in gaps)


@_derivation("step_60_62")
def ratio_of_the_printed_bounds(sp: Any) -> bool:
    """(61)/(60) − 1 has the sign of 2E_H s − 1, and (62) holds for all E_W, E_H > 0."""
    h, w = sp.symbols("h w", positive=True)
    s = h + w
    ratio = (4 * h / (1 + 2 * s * (1 - h))) / (2 * h / s)
    numerator = sp.simplify((ratio - 1) * (1 + 2 * s * (1 - h)) - (2 * h * s - 1)) == 0
    spare = sp.simplify(2 - h / s - h * (1 - h) - (w / s + (h - sp.Rational(1, 2)) ** 2 + sp.Rational(3, 4))) == 0
    return numerator and spare
