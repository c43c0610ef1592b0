"""Neural-collapse metrics: one definition, one name, one reference.

``moments`` is what every metric is a function of; ``definitions`` has NC1 … NC4, the paper's own uncentred equations,
``alone`` minority collapse and the effective rank; ``table`` what readers need to know of each, ``report`` all of it
side by side.

Of networks: ``measuring`` measures the layers of any network, which ``hooks`` finds and reads; ``ood`` has
out-of-distribution scores. These are imported by their own names.

Symbols: N samples, K classes, d feature dimension; h (N, d) features, w (K, d) classifier rows, μ_k class
means, μ their mean under the chosen weighting. Everything is computed in float64, chunk by chunk, on the
device of the input, whatever the precision of the input is; no gradient is recorded. NumPy arrays are
accepted wherever tensors are. Features may be as large as 1e150 and as small as 1e-150, where their squares still
are float64 numbers; classifier rows, and vectors given to ``nc2_*``, may have any size.
"""

from nclib.metrics.alone import classifier_norm_ratio, effective_rank, minority_cosine, nc0
from nclib.metrics.checks import Array, Classes, Weighting
from nclib.metrics.definitions import (
    nc1_cdnv,
    nc1_pinv,
    nc1_pinv_class_balanced,
    nc1_trace_ratio,
    nc2_equiangular,
    nc2_equinorm,
    nc2_etf_distance,
    nc2_uniformity,
    nc3_alignment,
    nc3_self_duality,
    nc3_unnormalised_duality,
    nc4_ncc_mismatch,
    paper_eq13_uncentred,
    paper_eq13_uncentred_printed_constant,
    paper_eq14_uncentred,
    simplex_etf,
)
from nclib.metrics.moments import RANK_RTOL, ClassMoments, EmptyClassWarning, class_moments
from nclib.metrics.report import SMALL_CLASS, nc_report
from nclib.metrics.table import LOGGED, METRICS, Ideal, Metric, ideal_values

__all__ = [
    "LOGGED",
    "METRICS",
    "RANK_RTOL",
    "SMALL_CLASS",
    "Array",
    "ClassMoments",
    "Classes",
    "EmptyClassWarning",
    "Ideal",
    "Metric",
    "Weighting",
    "class_moments",
    "classifier_norm_ratio",
    "effective_rank",
    "ideal_values",
    "minority_cosine",
    "nc0",
    "nc1_cdnv",
    "nc1_pinv",
    "nc1_pinv_class_balanced",
    "nc1_trace_ratio",
    "nc2_equiangular",
    "nc2_equinorm",
    "nc2_etf_distance",
    "nc2_uniformity",
    "nc3_alignment",
    "nc3_self_duality",
    "nc3_unnormalised_duality",
    "nc4_ncc_mismatch",
    "nc_report",
    "paper_eq13_uncentred",
    "paper_eq13_uncentred_printed_constant",
    "paper_eq14_uncentred",
    "simplex_etf",
]
