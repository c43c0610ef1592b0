"""From tidy frames to statements: pairs of runs, intervals over seeds, verdicts by stated rules, and tables of them.

`pairs` is the one way from a frame to a statement about two networks. A verdict is a function of what was measured.
"""

from nclib.comparison.pairing import PHASE_METRICS, SETTING, TERMINAL_ACCURACY, NotMeasured, Pairs, pairs
from nclib.comparison.tables import (
    by_run,
    claims_table,
    differences,
    over_seeds,
    percent,
    pooled_table,
    ratios,
    setting,
    solver_audit,
    terminal_phase,
)
from nclib.comparison.verdicts import (
    CLAIMS,
    EQUAL_WITHIN,
    LEVEL,
    MIN_SEEDS,
    POWER,
    Interval,
    Verdict,
    interval,
    spread,
    verdict,
)

__all__ = [
    "CLAIMS",
    "EQUAL_WITHIN",
    "LEVEL",
    "MIN_SEEDS",
    "PHASE_METRICS",
    "POWER",
    "SETTING",
    "TERMINAL_ACCURACY",
    "Interval",
    "NotMeasured",
    "Pairs",
    "Verdict",
    "by_run",
    "claims_table",
    "differences",
    "interval",
    "over_seeds",
    "pairs",
    "percent",
    "pooled_table",
    "ratios",
    "setting",
    "solver_audit",
    "spread",
    "terminal_phase",
    "verdict",
]
