"""Metrics of neural collapse.

``moments`` adds up class means and covariances, of which every metric is a function;
``definitions`` has the metrics, each once with its formula and its source; ``report`` computes all
of them at once and knows the values that they can have; ``measure`` reads the layers of a network.

Symbols: N samples, K classes, d feature dimensions; h (N, d) features, w (K, d) classifier rows,
μ_k class means, μ their mean under the chosen weighting.

Everything is computed in float64 on the device of the input, whatever the precision of the input
is, and no gradient is recorded. NumPy arrays are accepted wherever tensors are.
"""

from nclib.metrics.definitions import (
    SELIDistance,
    SELIGeometry,
    classifier_norm_ratio,
    minority_cosine,
    nc0,
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
    seli_distance,
    seli_geometry,
    simplex_etf,
)
from nclib.metrics.moments import ClassMoments, EmptyClassWarning, class_moments
from nclib.metrics.report import LABELS, Ideal, ideal_values, nc_report

__all__ = [
    "LABELS",
    "ClassMoments",
    "EmptyClassWarning",
    "Ideal",
    "SELIDistance",
    "SELIGeometry",
    "class_moments",
    "classifier_norm_ratio",
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
    "seli_distance",
    "seli_geometry",
    "simplex_etf",
]
