"""Sun & Shi (NeurIPS 2024): its tables and figures, its theory, and three protocols.

- `experiments`: the runs of each notebook; `example_cell`: the custom cell of one of them
- `accuracy_tables`, `audit`: the paper's Tables 1 to 4, ours beside them, and their arithmetic
- `scorecard`: what each notebook says about the claims of the paper
- `protocol1`, `protocol2`, `protocol3`: analyses that were committed before their runs
- `collapse_tables`, `norms_and_directions`, `seli`, `front_figures`: what the runs on CIFAR-10 say
- `layer_peeled`, `peeled_maps`: the model of the paper's theory, and its optima
- `statements`, `theory`: the theory's statements, checked, and tables of their verdicts
- `solver_sweep`, `network_costs`: looks into trained networks

Names are imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "accuracy_tables": [
            "accuracy_display",
            "accuracy_table",
            "draw_differences",
            "published",
            "published_ticks",
        ],
        "audit": [
            "audit_axes",
            "audit_effects",
            "audit_overall",
            "audit_overall_std",
            "audit_part_std",
            "integrated_rate",
        ],
        "experiments": ["REMEDIES", "RULES"],
        "layer_peeled": [
            "collapse_ratio",
            "imbalance_curve",
            "loss_lower_bound",
            "reference_optimum",
            "simplex_gram",
            "threshold_table",
            "total_collapse_budget",
            "total_collapse_ratio",
        ],
        "network_costs": ["TWO_BLOCKS", "compute_in_blocks", "layer_table"],
        "peeled_maps": ["PeeledProblem", "peeled_alignment", "peeled_fits", "peeled_table"],
        "protocol1": [
            "BLOCK",
            "COLLAPSE",
            "accuracy_remark",
            "accuracy_tests",
            "described_settings",
            "overall_accuracy",
            "pooled_ratios",
        ],
        "scorecard": [
            "accuracy_claims",
            "all_claims",
            "claims",
            "percent_changes",
            "registered_tests",
            "theory_claims",
        ],
        "solver_sweep": [
            "SolverSweepConfig",
            "collapse_inside",
            "minority_effect",
            "probe_consistency",
            "probe_groups",
            "probe_rows",
            "tolerance_effect",
        ],
        "theory": [
            "judge",
            "theory_counts",
            "theory_defects",
            "theory_ledger",
            "theory_statements",
            "theory_steps",
        ],
    },
)
