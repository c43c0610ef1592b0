"""Equation (13) and the printed tables: what their numbers allow.

A printed number x stands for every number of [x − 0.005, x + 0.005]; a cell is called impossible only if no numbers
that round to the printed ones fit.
"""

from __future__ import annotations

import csv
from fractions import Fraction as F
from pathlib import Path
from typing import NamedTuple

from companion.certify import require, states
from companion.exact import centring, cross_entropy, etf_loss, log, norm2

_HALF = F(5, 1000)
_TABLES = Path(__file__).resolve().parents[2] / "data" / "published" / "sun_shi_2024_tables.csv"
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


@states(
    "§5.3, Tables 2–4, means",
    "the test dataset owns the same distribution as the training dataset",
    "not shown",
    reading="ours",
)
def audit_overall(balanced: int = 31) -> bool:
    """31 of 36 overall accuracies are class-balanced means of the parts, none a mean under the training distribution.

    A class-averaged accuracy on a test set of any distribution gives the same numbers.
    """
    fits, rows = [0, 0], _rows()
    for row in rows:
        overall, a, b = row.means
        for i, times in enumerate((1, row.ratio)):
            heavy, light = row.majority * times, row.classes - row.majority
            fits[i] += abs(overall - (heavy * a + light * b) / (heavy + light)) <= 2 * _HALF  # one half for each side
    return require((*fits, len(rows)) == (balanced, 0, 36), f"{fits[0]} balanced, {fits[1]} under the prior")


@states(
    "§5.3, Tables 2–4, standard deviations of overall",
    "averaging the results from the last 10 epochs and computing their standard deviation",
    "not shown",
    reading="ours",
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


@states(
    "App. D, Table 3, standard deviations of minority",
    "0.40 ± 3.86, 0.42 ± 3.04, 1.26 ± 4.93",
    "not shown",
    reading="ours",
)
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


@states("§5.1", "Both E_W and E_H are set to 0.01", "not shown", reading="ours")
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


@states(
    "§5.1",
    "learning rate to 1×10⁻⁴ … momentum of 0.9 and weight decay of 5×10⁻⁴ … 100 epochs, with a batch size of 128",
    "not shown",
    reading="ours",
)
def audit_recipe(epochs: int = 100) -> bool:
    """The integrated rate is 39.1, that of one epoch at rate 0.01; weight decay shrinks weights by less than 2 % in
    all.
    """
    steps = -(-50000 // 128)  # the last short batch counts
    rate = F(1, 10**4) * steps * epochs / (1 - F(9, 10))
    require(rate == F(391, 10) == F(1, 100) * steps / (1 - F(9, 10)), "the integrated rate")
    return require(F(5, 10**4) * rate < F(2, 100), "the share that weight decay takes")
