"""The public names of this package and where each lives, imported on first use."""

from .pairing import (
    PHASE_METRICS as PHASE_METRICS,
    SETTING as SETTING,
    NotMeasured as NotMeasured,
    Pairs as Pairs,
    by_run as by_run,
    pairs as pairs,
    terminal_phase as terminal_phase,
)
from .tables import (
    claims_table as claims_table,
    differences as differences,
    over_seeds as over_seeds,
    percent as percent,
    pooled_table as pooled_table,
    ratios as ratios,
    setting as setting,
    solver_audit as solver_audit,
)
from .verdicts import (
    EQUAL_WITHIN as EQUAL_WITHIN,
    MIN_SEEDS as MIN_SEEDS,
    Interval as Interval,
    Verdict as Verdict,
    interval as interval,
    spread as spread,
    verdict as verdict,
)
