"""Certificates of what abstract and discussion of Wu et al. state, as far as it can be exact.

Each is a function that `nclib.papers.certify` runs; it computes with fractions alone.
"""

import itertools
from fractions import Fraction as F

from nclib.papers.certify import our_reading, require, states


def neurons(x: F, m: int, before: list[F] | None = None) -> tuple[list[F], list[F]]:
    """z_t = relu(2^t x − Σ_{i<t} 2^{t−i+1} z_i − 1), t = 1 … m, and the arguments of relu.

    before : the z_i of the sum, for one iteration from there; left out, the z_t themselves, which
        is the limit
    """
    z: list[F] = []
    arguments = []
    for t in range(1, m + 1):
        earlier = z if before is None else before
        coupling = sum(2 ** (t - i + 1) * earlier[i - 1] for i in range(1, t))
        argument = 2**t * x - coupling - 1
        arguments.append(argument)
        z.append(max(F(0), argument))
    return z, arguments


@our_reading(
    "Proposition 1 (abstract; discussion, entries of W, U, b)",
    "a DEQ of width m has 2^m linear regions",
    "holds",
    "m = 1 to 8: affine on every [j/2^m, (j+1)/2^m], with another activation pattern on each, and "
    "the read-out is the m-fold tent map",
)
def wu_prop1(shift: F = F(1)) -> bool:
    """On an interval on which z_1, …, z_{t−1} are affine, so is the argument of z_t.

    With weakly equal signs of the argument at both ends, z_t is affine too. Neighbouring intervals
    differ in their pattern, so there are exactly 2^m regions.
    """
    for m in range(1, 9):
        patterns = set()
        for j in range(2**m):
            left = F(j, 2**m)
            right = F(j + 1, 2**m)
            z_left, arguments_left = neurons(left * shift, m)
            z_right, arguments_right = neurons(right * shift, m)
            pattern = []
            for a, b in zip(arguments_left, arguments_right, strict=True):
                require(a * b >= 0, f"m = {m}: affine on interval {j}")
                pattern.append(a + b > 0)
            patterns.add(tuple(pattern))
            for x, z in ((left, z_left), (right, z_right)):
                tent = x
                for _ in range(m):
                    tent = 2 * min(tent, 1 - tent)
                read = 2**m * x - sum(2 ** (m + 1 - i) * z[i - 1] for i in range(1, m + 1))
                require(read == tent, f"m = {m}: the read-out at {x}")
        require(len(patterns) == 2**m, f"m = {m}: all patterns differ")
    return True


@states(
    "Discussion of Theorem 1",
    "the DEQ only needs one iteration to converge; from z⁰ = 0 at most m",
    "holds",
    "both, as the authors say: one from z⁰ = z*, at most m from 0, and m at some x (m = 1 to 8)",
)
def wu_thm1_iterations(fewer: int = 0) -> bool:
    """W is strictly lower triangular: after t iterations the first t entries are those of z*."""
    for m in range(1, 9):
        most = 0
        for j in range(1, 64):
            x = F(j, 64)
            limit, _ = neurons(x, m)
            require(neurons(x, m, limit)[0] == limit, "one iteration from the fixed point")
            z = [F(0)] * m
            count = 0
            while z != limit and count <= m:
                z, _ = neurons(x, m, z)
                count += 1
            most = max(most, count)
        require(most <= m - fewer, f"m = {m}: {most} iterations")
        require(m > 6 or most == m, f"m = {m}: {most} iterations needed on this grid")
    return True


@our_reading(
    "Theorem 2 (abstract; g is ours, eq. (5) is not at hand)",
    "a steep function: DEQ weights stay bounded, FNN weights must grow",
    "holds",
    "for our g = δ/(1+δ−x_1), δ = 2^−d, ε = 1/20: width 12, weights free of d; one hidden layer of "
    "width k needs weights of √(2^(d−1.4)/k)",
)
def wu_thm2(epsilon: F = F(1, 20)) -> bool:
    """Proof. t = (1−δ)t + (1−x_1) has the fixed point t = (1−x_1)/δ, weights at most 1, and
    g = G(t), G = 1/(1+t). Interpolate G at the values 1, 1−2ε, …, down to ε, constant from there.
    Between values a > b the chord exceeds G by at most a + b − 2√(ab) = (a−b)(√a−√b)/(√a+√b) ≤
    (a−b)/2 ≤ ε where a ≤ 9b. The knots t = 1/v − 1 and slopes −ab do not depend on d. A network
    with one hidden layer of width k and weights at most M has a slope of at most kM² in x_1; g
    falls by 1/2 between x_1 = 1 and 1−δ, so an error of ε needs kM² δ ≥ 1/2 − 2ε.
    """
    values = [F(1)]
    while values[-1] > F(1, 20):
        values.append(max(F(1, 20), values[-1] - 2 * epsilon))
    for a, b in itertools.pairwise(values):
        require(a <= 9 * b and (a - b) / 2 <= F(1, 20), f"the chord between {a} and {b}")
        left = 1 / a - 1
        right = 1 / b - 1
        require((b - a) / (right - left) == -a * b, "its slope")
    require(len(values) + 1 == 12, "the width")
    for d in (6, 10, 20):
        delta = F(1, 2**d)
        t = F(3, 7) / delta
        require((1 - delta) * t + F(3, 7) == t, "the amplifier")
        top = delta / delta
        below = delta / (2 * delta)
        require(top - below == F(1, 2), "the fall of g")
    power = F(14, 10)
    rest = F(1, 2) - 2 * F(1, 20)
    require(rest**power.denominator * 2**power.numerator > 1, "1/2 − 2ε > 2^−1.4")
    return True


@states(
    "Discussion of Theorem 3 (rebuttal)",
    "q_i(x) = 1/(2x²) − β_i(0)⁻³ x with β_i(0) < 0",
    "typo",
    "a sign in a discussion post: + is right; the minus is right for x = |β_i|. One sample, two "
    "entries: gradient along the null space 0 with +, −14 with −",
)
def wu_thm3_sign(right: int = 1) -> bool:
    """β′ = −(Xᵀr) β⁴ for read-outs +1 and −1, so (β⁻³)′ = 3Xᵀr.

    Hence β⁻³ − β(0)⁻³ is in the row space of X. The minimiser of Σ q_i on Xβ = y needs
    −β⁻³ ± β(0)⁻³ there: + fits. X = (1, 1), β(0) = (−1, −1/2), y = Xβ(0): the flow stays at β(0).
    """
    start = (F(-1), F(-1, 2))

    def along_null_space(sign: int) -> F:
        first, second = (-1 / b**3 + sign / b**3 for b in start)
        return first - second

    require(along_null_space(right) == 0, "+: stationary where the flow stays")
    require(along_null_space(-1) == -14, "−: not stationary")
    in_sizes = [-1 / abs(b) ** 3 - 1 / b**3 for b in start]
    return require(all(value == 0 for value in in_sizes), "− in |β_i|: stationary")


@our_reading(
    "Section on GOTU (conditions not at hand)",
    "the diagonal DEQ has a smaller GOTU error than the diagonal network",
    "holds if 0 < β_k < 2 f̂_k (our condition)",
    "(f̂_k − β_k)² < f̂_k² iff β_k lies between 0 and 2 f̂_k; outside at f̂ = (0, 1/4), β(0) = 1",
)
def wu_gotu(f: F = F(1, 4)) -> bool:
    """The errors are 4(f̂_k − β_k)² for the DEQ and 4 f̂_k² for a network that ends at β_k = 0.

    At f̂ = (0, 1/4) with a bias from 0: b + β = 1/4, b = −V, β⁻³ = 1 + 3V. At β = 1/2, V = 7/3 and
    b + β < 1/4; at β = 1, b + β = 1: so β_k > 1/2.
    """
    for target in (F(1, 4), F(1), F(3)):
        for beta in (F(1, 10), F(1, 2), F(1), F(5), F(7)):
            is_smaller = (target - beta) ** 2 < target**2
            require(is_smaller == (0 < beta < 2 * target), f"at {target}, {beta}")
    v = (F(1, 2) ** -3 - 1) / 3
    is_beyond = v == F(7, 3) and -v + F(1, 2) < f < 1 and 2 * f <= F(1, 2)
    return require(is_beyond, "β_k > 1/2 = 2 f̂_k there")
