"""Tables of verdicts on theory: what Sun & Shi (2024) state, the steps of their proofs, and the
defects behind them.

Each verdict on a statement is that of its certificate in `nclib.papers.neural_collapse.statements`.
Verdicts on steps of the proofs are stored in data/published; docs/theory.md says how to check them.
Kept here is what no single certificate shows: which verdicts have the same cause.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nclib import paths
from nclib.papers.certify import STATEMENTS as SHORT_NAMES
from nclib.papers.certify import VERDICTS, certify

STATEMENTS = {certificate: name for certificate, (name, _) in SHORT_NAMES.items()}
"""What the paper states: certificate and name, with what the statement is read as."""
STATEMENTS["thm_b3"] = "Theorem B.3, read as infima of (7) and (9), H0 free in each"
STATEMENTS["thm41_nc2"] = "Theorem 4.1, NC2, for all i, j"

DEFECTS = {
    "D1": (
        "two lower bounds are compared as if they were infima; "
        "(7) and (9), H0 free in each, have the same optimum",
        ("thm_b3", "loss_imbalance", "step_20_equality", "step_21_equality", "step_22_33"),
    ),
    "D2": (
        "the premise of NC2, for all i, j, cannot be met by any inputs",
        ("thm41_nc2", "step_58_59"),
    ),
    "D3": (
        "condition (62) is always true and does not follow from (60) and (61)",
        ("thm41_nc3", "step_60_62"),
    ),
    "D4": (
        "the ratio of Remark B.2 and of (18) is the reciprocal of the right one, "
        "and its maximum a minimum",
        ("remark_b2",),
    ),
    "D5": ("the weights of majority and minority are dropped in L = L_A + L_B", ("step_49",)),
    "D6": (
        "the chains of the proofs bound the inputs H0 where the problems bound the features",
        ("b3_v2_values", "nc31_proofs_reading", "nc31_nc3_proofs_reading", "prop42_proofs_reading"),
    ),
}
"""The independent defects: what is wrong, and what fails by it, certificates or steps.

D6 is behind readings that the proofs use, D5 behind step (49) alone, the others behind statements.
"""

LEDGER_COLUMNS = [
    "claim",
    "place",
    "kind",
    "reading",
    "evidence",
    "rule",
    "verdict",
    "defect",
    "certificate",
]


def judge(
    outcomes: Sequence[bool], condition: Sequence[bool] | None = None, *, certificate: str = ""
) -> str:
    """Give the verdict on a statement from the cases in which it was tested.

    True in every case: "holds". True exactly where a condition stated beforehand is: "holds if".
    Contradicted by a case: "false" where the certificate shows it, else "not shown".

    Parameters
    ----------
    outcomes : sequence of bool
        Whether the statement is true, case by case.
    condition : sequence of bool, optional
        Whether the separating condition is met, in the same cases.
    certificate : str
        Id of a certificate that shows the statement false.

    Returns
    -------
    str
        One of `nclib.papers.certify.VERDICTS`.

    Examples
    --------
    >>> judge([True, False], condition=[True, False])
    'holds if'
    """
    outcomes = np.asarray(outcomes, dtype=bool)
    if outcomes.size and outcomes.all():
        return "holds"
    if condition is not None and outcomes.any():
        condition = np.asarray(condition, dtype=bool)
        if np.array_equal(condition, outcomes):
            return "holds if"
    if certificate and _is_shown_false(certificate):
        return "false"
    return "not shown"


def _is_shown_false(certificate: str) -> bool:
    """Whether the certificate shows its statement, as printed, to be false."""
    (result,) = certify([certificate])
    return result.ok and result.verdict == "false" and result.reading == "as printed"


def theory_statements() -> pd.DataFrame:
    """Give every statement of the paper's theory with its certified verdict.

    Returns
    -------
    DataFrame
        One row for each of `STATEMENTS`: claim (its name), place, statement, verdict, reading,
        defect, certificate (its id) and evidence (what is certified).

    Raises
    ------
    ValueError
        When a certificate fails.
    """
    return _statements(list(STATEMENTS))


def theory_steps() -> pd.DataFrame:
    """Give every step of the proofs that was checked, with the columns of `theory_statements`.

    The verdict names where a step holds that does not hold everywhere. Of a "typo" the evidence
    names what was meant. The rows are stored; their checks are at the tag certificates-0.2.
    """
    stored = pd.read_csv(paths.published() / "sun_shi_2024_steps.csv")
    steps = stored.rename(columns={"id": "claim", "certificate": "evidence"})
    steps["certificate"] = steps["claim"]
    steps["reading"] = "as printed"
    steps["defect"] = [_defect_behind(step) for step in steps["claim"]]
    order = steps["claim"].map(_last_equation)
    steps = steps.iloc[order.argsort(kind="stable")].reset_index(drop=True)
    return steps[_STATEMENT_COLUMNS]


def _last_equation(step: str) -> int:
    """The number of the last equation in the name of a step; the loss under imbalance is (44)."""
    numbers = [int(digits) for digits in re.findall(r"\d+", step)]
    return max(numbers, default=44)


def theory_defects() -> pd.DataFrame:
    """Give the independent defects: defect, what is wrong, and the certificates of what fails."""
    rows = [(name, what, ", ".join(failing)) for name, (what, failing) in DEFECTS.items()]
    return pd.DataFrame(rows, columns=["defect", "what", "certificates"])


def theory_counts() -> dict[str, int]:
    """Count the statements by verdict, in the order of `nclib.papers.certify.VERDICTS`, and the
    independent defects."""
    verdicts = theory_statements()["verdict"].str.replace(r" if .*", " if", regex=True).tolist()
    counts = {word: verdicts.count(word) for word in VERDICTS if word in verdicts}
    counts["independent defects"] = len(DEFECTS)
    return counts


def theory_ledger(
    measured: Mapping[str, Mapping[str, Any]], controls: Sequence[tuple[str, ...]]
) -> pd.DataFrame:
    """Put what was measured beside the certified verdicts on statements, and controls below them.

    Parameters
    ----------
    measured : mapping
        From a statement's certificate to evidence, rule, and, where cases were tested, cases and
        condition as in `judge`.
    controls : sequence of tuple
        Rows at another reading or on maps of our own: claim, reading, evidence, rule, verdict,
        defect, certificate.

    Returns
    -------
    DataFrame
        claim, place, kind ("statement" or "control"), reading, evidence, rule, verdict, defect,
        certificate.

    Raises
    ------
    ValueError
        When a certificate fails, or measured cases do not agree with one.
    """
    statements = _statements(list(measured)).assign(kind="statement")
    for row in statements.itertuples():
        seen = measured[row.certificate]
        if "cases" not in seen:
            continue
        verdict = judge(seen["cases"], seen.get("condition"), certificate=row.certificate)
        if not row.verdict.startswith(verdict):
            raise ValueError(
                f"{row.claim}: the cases say {verdict!r}, the certificate {row.verdict!r}"
            )
    statements["evidence"] = [seen["evidence"] for seen in measured.values()]
    statements["rule"] = [seen["rule"] for seen in measured.values()]
    columns = ["claim", "reading", "evidence", "rule", "verdict", "defect", "certificate"]
    below = pd.DataFrame(controls, columns=columns).assign(place="", kind="control")
    return pd.concat([statements, below], ignore_index=True)[LEDGER_COLUMNS]


_STATEMENT_COLUMNS = [
    "claim",
    "place",
    "statement",
    "verdict",
    "reading",
    "defect",
    "certificate",
    "evidence",
]


def _statements(names: Sequence[str]) -> pd.DataFrame:
    """A row for each certificate; raises where one fails."""
    rows = []
    for result in certify(names):
        if not result.ok:
            raise ValueError(
                f"the certificate {result.id} fails, so no verdict is given: {result.certificate}"
            )
        row = {
            "claim": STATEMENTS.get(result.id, result.id),
            "place": result.place,
            "statement": result.statement,
            "verdict": result.verdict,
            "reading": result.reading,
            "defect": _defect_behind(result.id),
            "certificate": result.id,
            "evidence": result.certificate,
        }
        rows.append(row)
    return pd.DataFrame(rows, columns=_STATEMENT_COLUMNS)


def _defect_behind(name: str) -> str:
    """The defect by which a statement or step fails; "" for none."""
    for defect, (_, failing) in DEFECTS.items():
        if name in failing:
            return defect
    return ""
