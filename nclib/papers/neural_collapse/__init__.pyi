"""The public names of this paper and where each lives, imported on first use."""

from .accuracy_tables import (
    accuracy_display as accuracy_display,
    accuracy_table as accuracy_table,
    draw_differences as draw_differences,
    published as published,
    published_ticks as published_ticks,
)
from .audit import (
    audit_axes as audit_axes,
    audit_effects as audit_effects,
    audit_overall as audit_overall,
    audit_overall_std as audit_overall_std,
    audit_part_std as audit_part_std,
    integrated_rate as integrated_rate,
    largest_std as largest_std,
)
from .experiments import REMEDIES as REMEDIES
from .experiments import RULES as RULES
from .layer_peeled import (
    collapse_ratio as collapse_ratio,
    imbalance_curve as imbalance_curve,
    loss_lower_bound as loss_lower_bound,
    reference_optimum as reference_optimum,
    semidefinite_optimum as semidefinite_optimum,
    simplex_gram as simplex_gram,
    threshold_table as threshold_table,
    total_collapse_budget as total_collapse_budget,
    total_collapse_ratio as total_collapse_ratio,
)
from .network_costs import TWO_BLOCKS as TWO_BLOCKS, compute_in_blocks as compute_in_blocks, layer_table as layer_table
from .peeled_maps import (
    PeeledProblem as PeeledProblem,
    peeled_alignment as peeled_alignment,
    peeled_fits as peeled_fits,
    peeled_table as peeled_table,
)
from .theory import (
    judge as judge,
    theory_counts as theory_counts,
    theory_defects as theory_defects,
    theory_ledger as theory_ledger,
    theory_statements as theory_statements,
    theory_steps as theory_steps,
)
from .protocol1 import (
    BLOCK as BLOCK,
    COLLAPSE as COLLAPSE,
    accuracy_remark as accuracy_remark,
    accuracy_tests as accuracy_tests,
    overall_accuracy as overall_accuracy,
    pooled_ratios as pooled_ratios,
)
from .scorecard import count_verdicts as count_verdicts, score_claims as score_claims
from .solver_sweep import (
    SolverSweepConfig as SolverSweepConfig,
    collapse_inside as collapse_inside,
    minority_effect as minority_effect,
    probe_consistency as probe_consistency,
    probe_groups as probe_groups,
    probe_rows as probe_rows,
    tolerance_effect as tolerance_effect,
)
