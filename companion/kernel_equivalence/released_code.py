"""The released scripts of Ling et al.: which matrix T, and what the recursion of the kernel converges to."""

from fractions import Fraction as F
from itertools import product

from companion.certify import our_reading, require


@our_reading(
    "released script ck_ntk/ck_gmm_matching.py, T from C_a − C°",
    "T = tr(C°_a C°_b)/p",
    "not shown",
    "for the script, not for a printed formula: E[(x_i·x_j)²] is tr(C_a C_b)/p², uncentred, exactly; the two "
    "candidates differ by at least α₃ n/p for ever, so at most one is right. That the uncentred one is, is measured",
)
def ling_centred_t(least: F = F(1)) -> bool:
    """Two equal classes, C_a = c_a I, c_a = 1 + 8(a−1)/√p: T_ab = c_a c_b against (c_a − c°)(c_b − c°). The
    difference of the candidates is (α₃/p) J (T − T°) Jᵀ, of norm α₃ (n/2p) ‖T − T°‖, and ‖T − T°‖ ≥ uᵀ(T − T°)u at u
    = (1, 1)/√2. Second moments: for independent centred entries of covariance C/p the cross terms vanish; here with
    signs of equal chance.
    """
    for root in (16, 32, 320, 10**6):
        c = [F(1), 1 + F(8, root)]
        mean = sum(c) / 2
        quotient = sum(a * b - (a - mean) * (b - mean) for a in c for b in c) / 2
        require(quotient / 2 >= least, f"p = {root}²: the candidates differ")
    c, e = (F(1), F(4), F(9)), (F(16), F(1), F(25))  # squares, so that ± their roots are rational
    roots = [(1, 4), (2, 1), (3, 5)]
    signs = list(product((1, -1), repeat=3))
    inner = [sum(x * y * a * b for x, y, (a, b) in zip(*pair, roots, strict=True)) for pair in product(signs, signs)]
    second = F(sum(value**2 for value in inner), len(inner))
    return require(second == sum(a * b for a, b in zip(c, e, strict=True)), "E[(x·y)²] = Σ c_k e_k")


@our_reading(
    "released scripts, K^(l) = G + K^(l−1) ∘ Ġ",
    "K* = G*/(1 − Ġ*)",
    "holds",
    "for the recursion of the script, |Ġ| < 1, entry by entry; a kernel with B trained as well is another one",
)
def ling_ntk_fixed_point(factor: F = F(1)) -> bool:
    """K^(l) − K* = (K^(l−1) − K*) Ġ, so the recursion converges to K* geometrically."""
    for g, slope in ((F(1, 2), F(1, 5)), (F(-3), F(-1, 4)), (F(7), F(9, 10))):
        limit = factor * g / (1 - slope)
        k = F(0)
        for _ in range(6):
            gap, k = k - limit, g + k * slope
            require(k - limit == gap * slope, "geometric convergence")
    return True
