"""Every number and table that README and the book show of the tracked runs, by the names that their spans use."""

from __future__ import annotations

import functools

from companion import book_tables
from companion.neural_collapse import collapse_tables
from companion.neural_collapse.collapse_tables import BALANCED, ROWS, SCALE, tracked
from nclib.comparison import pairs

_JUDGED = ("nc2c", "nc3c", "eq13", "eq14", "nc1")
_MEASURED = (*_JUDGED, "trace", "cos", "cosc", "acc", "minority", "majority")
_PARTS = {"lengths": "its lengths, the ResNet's angles", "angles": "its angles, the ResNet's lengths"}
"""Parts of eq. 14, and what they are called below its row."""


@functools.cache
def numbers() -> dict[str, str]:
    """Name → text for `nclib.publish.numbers.fill`, from the tracked runs. It takes half a minute."""
    found = {**collapse_tables.numbers(), **collapse_tables.tables(), **book_tables.found()}
    return {**found, "readme-changes": _changes(found), "readme-verdicts": _verdicts()}


def _changes(found: dict[str, str]) -> str:
    lines = [
        "| | paper, imbalance: DEQ | R = 100, K_A = 3, 5, 7 | R = 10, K_A = 3 | balanced |",
        "|---|---|---|---|---|",
    ]
    for name in _MEASURED:
        rows = {name: (ROWS[name].label, _claim(name))}
        if name == "eq14":
            rows |= {part: (f"– {said}", "–") for part, said in _PARTS.items()}
        for key, said in rows.items():
            cells = [found.get(f"collapse-{key}-{group}-ci", "–") for group in ("r100", "r10", "balanced")]
            lines.append(f"| {' | '.join([*said, *cells])} |")
    return "\n".join(lines)


def _claim(name: str) -> str:
    """The paper's claim under imbalance; it has none about parts of the accuracy, and Theorem 4.1 that of cosines."""
    if name in ("cos", "cosc"):
        return "higher (Theorem 4.1)"
    return "–" if name in ("minority", "majority") else str(ROWS[name].claim)


def _verdicts() -> str:
    """Words of the settings in which every network ended in the terminal phase."""
    lines = ["| paper: DEQ | K_A = 5, R = 100 | K_A = 3, R = 100 | K_A = 3, R = 10 | balanced: equal |"]
    lines.append("|---|---|---|---|---|")
    majority = tracked()["K_A"].fillna(0)
    for name in _JUDGED:
        row, words = ROWS[name], []
        for setting in ((5, 100), (3, 100), (3, 10), BALANCED):
            runs = tracked()[(majority == setting[0]) & (tracked()["R"] == setting[1])]
            claim = "equal" if setting == BALANCED else row.claim
            verdict = pairs(runs, row.metric, row.split).verdict(SCALE, claim)
            side = verdict.remark.partition(",")[0]
            words.append(f"{verdict.word}: {side}" if side in ("higher", "lower") else verdict.word)
        lines.append(f"| {row.label}: {row.claim} | {' | '.join(words)} |")
    return "\n".join(lines)
