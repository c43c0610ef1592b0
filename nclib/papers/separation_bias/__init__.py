"""Wu et al. (NeurIPS 2024): constructions, trainings and certificates.

Its text was not at hand: the certificates are about its abstract and its discussion.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "diagonal": [
            "density_table",
            "diagonal_flow",
            "diagonal_regulariser",
            "diagonal_regulariser_minimum",
            "flow_trials",
            "gotu_diagonal",
            "gotu_table",
            "participation_ratio",
        ],
        "regions": [
            "count_regions",
            "iterate_from_zero",
            "linear_regions_deq",
            "lower_triangular_equilibrium",
            "random_fnn_table",
            "regions_table",
            "sawtooth_deq",
            "sawtooth_l1_bound",
            "tent_map",
        ],
        "results": ["arm_names", "curve_rows", "describe_regressions", "regression_table"],
        "saliency": ["grad_cam"],
        "steep": [
            "fnn_weight_bound",
            "steep_deq_scalar",
            "steep_deq_triangular",
            "steep_fnn",
            "steep_table",
        ],
        "tasks": ["synthetic_tone"],
        "verdicts": ["separation_ledger", "trained_ledger"],
    },
)
