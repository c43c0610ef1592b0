"""Verdicts on theory, by rule: what Sun & Shi (2024) state, the steps of their proofs, and the defects behind them.

Each verdict on a statement or a step is that of its certificate in `nclib.papers.certify`; none is kept here. Kept here
is what no single certificate shows: which verdicts have the same cause.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nclib.papers import certify as certificates
from nclib.papers.certify import certify, ids
from nclib.system import words

# What the paper states: certificate and name, with what the statement is read as.
STATEMENTS = {name: said for name, (said, _) in certificates.STATEMENTS.items()} | {
    "thm_b3": "Theorem B.3, read as infima of (7) and (9), H0 free in each",
    "thm41_nc2": "Theorem 4.1, NC2, for all i, j",
}

# The independent defects, D6 behind readings that the proofs use, D5 behind step (49) alone, the others behind the
# statements: what is wrong, and the certificates of what fails by it. Other steps of the proofs that fail have no part
# in a verdict on a statement.
DEFECTS = {
    "D1": (
        "two lower bounds are compared as if they were infima; (7) and (9), H0 free in each, have the same optimum",
        ("thm_b3", "loss_imbalance", "step_20_equality", "step_21_equality", "step_22_33"),
    ),
    "D2": ("the premise of NC2, for all i, j, cannot be met by any inputs", ("thm41_nc2", "step_58_59")),
    "D3": ("condition (62) is always true and does not follow from (60) and (61)", ("thm41_nc3", "step_60_62")),
    "D4": (
        "the ratio of Remark B.2 and of (18) is the reciprocal of the right one, and its maximum a minimum",
        ("remark_b2",),
    ),
    "D5": ("the weights of majority and minority are dropped in L = L_A + L_B", ("step_49",)),
    "D6": (
        "the chains of the proofs bound the inputs H0 where the problems bound the features",
        ("b3_v2_values", "nc31_proofs_reading", "nc31_nc3_proofs_reading", "prop42_proofs_reading"),
    ),
}


def judge(outcomes: Sequence[bool], condition: Sequence[bool] | None = None, *, certificate: str = "") -> str:
    """Give the verdict on a statement from the cases in which it was tested.

    True in every case: "holds". True exactly where a condition stated beforehand is: "holds if". Contradicted by a
    case: "false" where the certificate shows it, else "not shown".

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
        One of `nclib.system.words.STATEMENTS`.
    """
    outcomes = np.asarray(outcomes, dtype=bool)
    if outcomes.size and outcomes.all():
        return "holds"
    if condition is not None and outcomes.any() and np.array_equal(np.asarray(condition, dtype=bool), outcomes):
        return "holds if"
    shown = certify([certificate]) if certificate else []
    certified = [(record.ok, record.verdict, record.reading) for record in shown] == [(True, "false", "as printed")]
    return "false" if certified else "not shown"


def theory_statements() -> pd.DataFrame:
    """Give every statement of the paper's theory with its certified verdict.

    Returns
    -------
    DataFrame
        One row for each of `STATEMENTS`: claim (its name), place, statement, verdict, reading, defect, certificate (its
        id) and evidence (what is certified).

    Raises
    ------
    ValueError
        When a certificate fails.
    """
    return _records(list(STATEMENTS))


def theory_steps() -> pd.DataFrame:
    """Give every step of the proofs that has a certificate, with the columns of `theory_statements`.

    The verdict names where a step holds that does not hold everywhere. Of a "typo" the evidence names what was meant.
    """
    steps = [name for name in ids() if name.startswith(("step_", "after_", "loss_"))]
    # by the last equation; the loss under imbalance is (44)
    return _records(sorted(steps, key=lambda step: max(map(int, re.findall(r"\d+", step)), default=44)))


def theory_defects() -> pd.DataFrame:
    """Give the independent defects: defect, what is wrong, and the certificates of what fails by it."""
    rows = [(name, what, ", ".join(failing)) for name, (what, failing) in DEFECTS.items()]
    return pd.DataFrame(rows, columns=["defect", "what", "certificates"])


def theory_counts() -> dict[str, int]:
    """Count the statements by verdict, in the order of `nclib.system.words.STATEMENTS`, and the independent defects."""
    said = theory_statements()["verdict"].str.replace(r" if .*", " if", regex=True).tolist()
    counts = {word: said.count(word) for word in words.STATEMENTS if word in said}
    return counts | {"independent defects": len(DEFECTS)}


def theory_ledger(measured: Mapping[str, Mapping[str, Any]], controls: Sequence[tuple[str, ...]]) -> pd.DataFrame:
    """Put what was measured beside the certified verdicts on statements, and controls below them.

    Parameters
    ----------
    measured : mapping
        From a statement's certificate to evidence, rule, and, where cases were tested, cases and condition as in
        `judge`.
    controls : sequence of tuple
        Rows at another reading or on maps of our own: claim, reading, evidence, rule, verdict, defect, certificate.

    Returns
    -------
    DataFrame
        claim, place, kind ("statement" or "control"), reading, evidence, rule, verdict, defect, certificate.

    Raises
    ------
    ValueError
        When a certificate fails, or measured cases do not agree with one.
    """
    rows = []
    for record in _records(list(measured)).to_dict("records"):
        name, says = record["certificate"], record["verdict"]
        found = measured[name]
        if "cases" in found:
            verdict = judge(found["cases"], found.get("condition"), certificate=name)
            if not says.startswith(verdict):
                raise ValueError(f"{record['claim']}: the cases say {verdict!r}, the certificate {says!r}")
        rows.append(record | {"kind": "statement", "evidence": found["evidence"], "rule": found["rule"]})
    said = pd.DataFrame(controls, columns=["claim", "reading", "evidence", "rule", "verdict", "defect", "certificate"])
    names = ["claim", "place", "kind", "reading", "evidence", "rule", "verdict", "defect", "certificate"]
    return pd.concat([pd.DataFrame(rows), said.assign(place="", kind="control")], ignore_index=True)[names]


def _records(names: Sequence[str]) -> pd.DataFrame:
    caused = {name: defect for defect, (_, failing) in DEFECTS.items() for name in failing}
    for record in (found := certify(names)):
        if not record.ok:
            raise ValueError(f"the certificate {record.id} fails, so no verdict is given: {record.certificate}")
    table = pd.DataFrame(found).rename(columns={"id": "certificate", "certificate": "evidence"})
    table["claim"] = [STATEMENTS.get(name, name) for name in names]
    table["defect"] = [caused.get(name, "") for name in names]
    return table[["claim", "place", "statement", "verdict", "reading", "defect", "certificate", "evidence"]]
