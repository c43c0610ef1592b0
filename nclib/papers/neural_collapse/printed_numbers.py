"""Equation (13) and the tables of the paper: what their numbers allow.

A number x in the paper is any number of [x − 0.005, x + 0.005]; a cell is called impossible only if no numbers
that round to the paper's fit.
"""

import csv
from fractions import Fraction as F
from pathlib import Path
from typing import NamedTuple

from nclib.papers.certify import our_reading, require, states
from nclib.papers.exact import centring, cross_entropy, etf_loss, log, norm2
from nclib.papers.neural_collapse.imbalanced import collapsed

_HALF = F(5, 1000)
_TABLES = Path(__file__).resolve().parents[3] / "data" / "published" / "sun_shi_2024_tables.csv"
_TICKS = _TABLES.with_name("sun_shi_2024_figures.csv")


class _Row(NamedTuple):
    """Overall, majority and minority of one network in one setting, and K_A, K and R."""

    means: list[F]
    stds: list[F]
    majority: F
    classes: int
    ratio: F


def _rows() -> list[_Row]:
    """Tables 2 to 4."""
    cells: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    with _TABLES.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            if line["table"] != "1":
                key = tuple(line[name] for name in ("K_A", "dataset", "R", "model"))
                cells.setdefault(key, {})[line["split"]] = line
    found = []
    for (k_a, dataset, ratio, _), splits in cells.items():
        parts = [splits[part] for part in ("overall", "majority", "minority")]
        means, stds = ([F(part[name]) for part in parts] for name in ("mean", "std"))
        found.append(_Row(means, stds, F(k_a), 100 if dataset == "cifar100" else 10, F(ratio)))
    return found


def _fits(row: _Row, heavy: F, light: F) -> bool:
    """Whether overall is the mean of majority and minority with these weights."""
    overall, a, b = row.means
    return abs(overall - (heavy * a + light * b) / (heavy + light)) <= 2 * _HALF  # one half for each side


@states("§2, (13)", "NC2 = ‖HᵀH/‖HᵀH‖_F − (1/(K−1))(I − 11ᵀ/K)‖_F", "typo")
def eq13(printed: F = F(1, 9)) -> bool:
    """The constant is 1/√(K−1): as printed a perfect ETF scores exactly 2/3 at K = 10, and no features score less.

    ‖I − 11ᵀ/K‖_F² = K − 1. For any unit G, ‖G − cC‖² = 1 − 2c⟨G, C⟩ + c²(K−1) ≥ (1 − c√(K−1))² by Cauchy and
    Schwarz, with equality at G = C/√(K−1), the ETF. c = 1/√(K−1) gives 0, c = 1/(K−1) gives 1 − 1/√(K−1).
    """
    require("3,a,nc2,0.2,0.8" in _TICKS.read_text(encoding="utf-8").split() and F(2, 10) < F(2, 3), "the ticks")
    centre = centring(10)
    etf = F(1, 3) * centre
    require(norm2(etf) == 1 and norm2(etf - F(1, 3) * centre) == 0, "the ETF's Gram matrix, of norm 1, scores 0")
    require(norm2(etf - printed * centre) == F(2, 3) ** 2, "as printed: 2/3")
    return require(1 - 2 * printed * 3 + printed**2 * 9 == F(2, 3) ** 2, "the least value of any features")


@our_reading(
    "§5.3, Tables 2–4, means", "the test dataset owns the same distribution as the training dataset", "not shown"
)
def audit_overall(balanced: int = 31) -> bool:
    """31 of 36 overall accuracies are class-balanced means of the parts, none a mean under the training distribution.

    A class-averaged accuracy on a test set of any distribution gives the same numbers.
    """
    rows = _rows()
    fits = sum(_fits(row, row.majority, row.classes - row.majority) for row in rows)
    prior = sum(_fits(row, row.majority * row.ratio, row.classes - row.majority) for row in rows)
    return require((fits, prior, len(rows)) == (balanced, 0, 36), f"{fits} balanced, {prior} under the prior")


@our_reading(
    "§5.3, Tables 2–4, standard deviations of overall",
    "averaging the results from the last 10 epochs and computing their standard deviation",
    "not shown",
)
def audit_overall_std(impossible: int = 13) -> bool:
    """13 of 36 are impossible for the same ten epochs as those of the parts (triangle inequality).

    If overall = a·majority + (1−a)·minority epoch by epoch, |a s_A − (1−a) s_B| ≤ s ≤ a s_A + (1−a) s_B.
    """
    bad = 0
    for row in _rows():
        (low, low_a, low_b), (high, high_a, high_b) = ([std + off for std in row.stds] for off in (-_HALF, _HALF))
        a = row.majority / row.classes
        most, least = a * high_a + (1 - a) * high_b, max(a * low_a - (1 - a) * high_b, (1 - a) * low_b - a * high_a)
        bad += low > most or high < least
    return require(bad == impossible, f"{bad} of 36")


@our_reading("App. D, Table 3, standard deviations of minority", "0.40 ± 3.86, 0.42 ± 3.04, 1.26 ± 4.93", "not shown")
def audit_part_std(impossible: int = 3) -> bool:
    """These 3 exceed what ten accuracies of that mean in [0, 100] can have, whatever they are.

    Of ten numbers in [0, 100] with a given mean, the variance is largest with all but one at 0 or 100.
    """
    bad = 0
    for row in _rows():
        for mean, std in zip(row.means, row.stds, strict=True):
            mu = mean + _HALF if mean < 50 else mean - _HALF
            full, rest = divmod(10 * mu, 100)
            most = (full * (100 - mu) ** 2 + (rest - mu) ** 2 + (9 - full) * mu**2) / 9
            bad += std > _HALF and (std - _HALF) ** 2 > most
    return require(bad == impossible, f"{bad} cells")


@states("§5, Tables 2–4, differences", "DEQ outperformed Explicit Neural Networks", "holds")
def audit_effects(beyond: int = 2) -> bool:
    """Of the printed means: overall +1.67 points in the mean of 18 settings, 0.61 to 3.47; but more than twice √(s₁² +
    s₂²) in 2 of them, and the majority is worse in 6 of 18.
    """
    rows = sorted(_rows(), key=lambda row: row[2:])  # by setting; the DEQ after the explicit network, as in the file
    pairs = list(zip(rows[1::2], rows[::2], strict=True))
    gains = [deq.means[0] - other.means[0] for deq, other in pairs]
    noise = [deq.stds[0] ** 2 + other.stds[0] ** 2 for deq, other in pairs]
    clear = sum(gain**2 > 4 * size for gain, size in zip(gains, noise, strict=True))
    worse = sum(deq.means[1] < other.means[1] for deq, other in pairs)
    require((len(gains), min(gains), max(gains)) == (18, F(61, 100), F(347, 100)), "the range")
    require(abs(sum(gains) / 18 - F(167, 100)) <= _HALF, "the mean")
    return require((clear, worse) == (beyond, 6), f"{clear} beyond the noise, {worse} worse")


@our_reading("§5.1", "Both E_W and E_H are set to 0.01", "not shown")
def audit_floor(reached: F = F(22702, 10**4)) -> bool:
    """Read as constraints: for balanced classes, K = 10, no training loss is below 2.29258 (log 10 = 2.30259); under
    imbalance 2.2702 is possible (K_A = 3, R = 100).

    Balanced: `exact.etf_loss` at nuclear norm 1/10. Imbalanced: Z = C_3/20 ⊕ 0 has the nuclear norm 1/10.
    """
    floor, guess = etf_loss(10, F(1, 10)), log(F(10))
    require(floor > F(229258, 10**5) and floor < F(2293, 1000), "balanced")
    require(guess > F(230259, 10**5) - _HALF / 1000 and guess < F(230259, 10**5) + _HALF / 1000, "log 10")
    a, weight = F(1, 20), F(300, 307)
    major = cross_entropy([a * F(2, 3), -a / 3, -a / 3, *[F(0)] * 7], 0)
    return require(weight * major + (1 - weight) * guess < reached < F(229, 100), "imbalanced")


@our_reading(
    "§5.1 and Tables 2–4, minority accuracies at R = 10",
    "Both E_W and E_H are set to 0.01; minority 62.36 to 71.65",
    "not shown",
)
def audit_collapse(smallest: tuple[F, ...] = (F(10170, 10**4), F(10051, 10**4), F(10024, 10**4))) -> bool:
    """Read as constraints, the optimum has w_B = h_B = 0 from R = 1.0170, 1.0051, 1.0024 on (K_A = 3, 5, 7; K = 10).

    Proof. In `imbalanced.after_54` both columns of the 2×2 block are multiples of (−1_A/K_A, 1_B/K_B), of squared
    norm σ = 1/K_A + 1/K_B: its norm is its Frobenius norm. So Z° is optimal iff R²((1−s_A)² − σ K_A P_B²) ≥ σ K_B
    (K_A/K)² and R(1−s_A) ≥ 1. Both remain true for larger R.
    """
    for majority, ratio in zip((3, 5, 7), smallest, strict=True):
        minority, (kept, p_b) = 10 - majority, collapsed(majority)
        sigma, below = F(1, majority) + F(1, minority), ratio - F(2, 10**4)
        need, spare = sigma * minority * F(majority, 10) ** 2, kept * kept - sigma * majority * p_b * p_b
        require(ratio**2 * spare > need and ratio * kept > 1, f"collapsed at K_A = {majority}, R = {ratio}")
        require(below**2 * spare < need or below * kept < 1, f"not yet at K_A = {majority}, R = {below}")
    return True


@our_reading(
    "§5.1",
    "learning rate to 1×10⁻⁴ … momentum of 0.9 and weight decay of 5×10⁻⁴ … 100 epochs, with a batch size of 128",
    "not shown",
)
def audit_recipe(epochs: int = 100) -> bool:
    """The integrated rate is 39.1, that of one epoch at rate 0.01; weight decay shrinks weights by less than 2 % in
    all.
    """
    steps = -(-50000 // 128)  # the last short batch counts
    rate = F(1, 10**4) * steps * epochs / (1 - F(9, 10))
    require(rate == F(391, 10) == F(1, 100) * steps / (1 - F(9, 10)), "the integrated rate")
    return require(F(5, 10**4) * rate < F(2, 100), "the share that weight decay takes")


@states(
    "§5.3 and Proposition 4.2",
    "Cifar-10 and Cifar-100 …, which own a total of 5000 images for each class; (K_A, K_B) = (3, 7); R = n_A/n_B",
    "typo",
)
def audit_symbols(tenfold: int = 10) -> bool:
    """CIFAR-100 has 50000/100 = 500; its printed K_A = 3, 5, 7 fit 30, 50, 70 classes and in no row 3, 5, 7;
    Proposition 4.2 calls K_A n_A/N R as well.

    The rows of CIFAR-100 are stored with K_A = 30, 50, 70; a tenth of it fits none of the 18.
    """
    rows = [row for row in _rows() if row.classes == 100]
    fits, tenth = (
        sum(_fits(row, row.majority / times, 100 - row.majority / times) for row in rows) for times in (1, tenfold)
    )
    return require((fits, tenth, 50000 // 100) == (16, 0, 500), f"{fits} fit, {tenth} fit with a tenth")
