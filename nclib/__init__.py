"""Deep equilibrium models and neural collapse: solver, metrics, models and the runs behind three papers' figures.

Every public name is listed once, below, with the module it lives in; it is imported when it is first used, so that
``import nclib`` and ``nclib --help`` cost nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES: dict[str, tuple[str, ...]] = {
    "solver": (
        "Anderson",
        "Broyden",
        "FixedPointIteration",
        "Solution",
        "Status",
        "fixed_point",
        "paper_solver",
    ),
    "deq": (
        "DEQ",
        "Implicit",
        "Neumann",
        "Phantom",
        "Unrolled",
        "jacobian_frobenius_sq",
        "spectral_radius",
    ),
    "metrics": (
        "ClassMoments",
        "class_moments",
        "minority_cosine",
        "nc1_cdnv",
        "nc1_pinv",
        "nc1_pinv_class_balanced",
        "nc1_trace_ratio",
        "nc2_equiangular",
        "nc2_equinorm",
        "nc2_etf_distance",
        "nc3_alignment",
        "nc3_self_duality",
        "nc4_ncc_mismatch",
        "nc_report",
        "paper_eq13_uncentred",
        "paper_eq13_uncentred_printed_constant",
        "simplex_etf",
    ),
    "imbalance": ("exponential_imbalance", "majority_classes", "step_imbalance", "subsample_indices"),
    "evidence": (
        "accuracy_display",
        "accuracy_table",
        "by_run",
        "claims_table",
        "cosine_gram",
        "differences",
        "embed",
        "interval",
        "over_seeds",
        "paired",
        "percent",
        "pooled",
        "published",
        "published_ticks",
        "sample_rows",
        "setting",
        "solver_audit",
        "spread",
        "terminal_phase",
        "verdict",
    ),
    "audit": (
        "audit_axes",
        "audit_effects",
        "audit_grid",
        "audit_overall",
        "audit_overall_std",
        "audit_part_std",
        "integrated_rate",
        "largest_std",
    ),
    "proofs": (
        "condition_62",
        "cosine_ratio_printed",
        "inequality_58",
        "judge",
        "judge_condition",
        "lemma_b1_draws",
        "proof_steps",
        "remark_b2",
    ),
    "layer_peeled": (
        "PeeledProblem",
        "collapse_ratio",
        "imbalance_curve",
        "loss_lower_bound",
        "peeled_alignment",
        "peeled_fits",
        "peeled_table",
        "premise_energy",
        "premise_share",
        "reference_optimum",
        "semidefinite_optimum",
        "simplex_gram",
        "threshold_table",
        "total_collapse_budget",
        "total_collapse_ratio",
    ),
    "scorecard": ("count_verdicts", "read_table", "score_claims"),
    "activations": ("ACTIVATIONS", "Activation", "HardTanh", "LeakyReLU", "activation_moments", "well_posedness"),
    "kernels": (
        "assemble",
        "ck_entrywise",
        "ck_equivalent",
        "coefficients",
        "empirical_tau0",
        "estimate_moments",
        "explicit_ck",
        "explicit_coefficients",
        "explicit_ntk",
        "finite_width_kernels",
        "gaussian_mixture",
        "implicit_ck",
        "implicit_kernels",
        "implicit_ntk",
        "implicit_ntk_full",
        "match_htanh",
        "match_layers",
        "match_leaky_relu",
        "mixture_moments",
        "ntk_equivalent",
        "spectral_norm",
    ),
    "kernel_tables": (
        "equivalence_errors",
        "finite_width_errors",
        "image_samples",
        "matching_errors",
        "published_kernels",
    ),
    "shallow": ("ShallowConfig", "describe_shallow"),
    "config": (
        "ConfigError",
        "DataConfig",
        "GradientConfig",
        "ModelConfig",
        "RunConfig",
        "SolverConfig",
        "TrainConfig",
        "recipe",
        "run_id",
    ),
    "data": ("Dataset", "load_dataset", "resolve_dataset"),
    "models": ("Classifier", "Output", "build_model", "count_parameters"),
    "training": ("evaluate", "train"),
    "probes": (
        "ProbeConfig",
        "block_operations",
        "collapse_inside",
        "layer_table",
        "minority_effect",
        "probe_consistency",
        "probe_groups",
        "probe_rows",
        "tolerance_effect",
    ),
    "store": ("RunStore",),
    "experiments": (
        "comparable",
        "compute_in_blocks",
        "describe_runs",
        "ensure_runs",
        "experiment",
        "get_profile",
        "load_run",
        "plan",
        "runs_provenance",
        "stand_ins",
    ),
    "artefacts": ("format_mean_std", "save_figure", "save_table"),
    "plotting": (),
}

_HOME = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"nclib.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"nclib.{name}")
    raise AttributeError(f"module 'nclib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
