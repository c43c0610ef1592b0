"""The public names of ``nclib.metrics`` and where each lives."""

from . import (
    alone as alone,
    checks as checks,
    definitions as definitions,
    report as report,
)
from .alone import (
    classifier_norm_ratio as classifier_norm_ratio,
    effective_rank as effective_rank,
    minority_cosine as minority_cosine,
    nc0 as nc0,
)
from .definitions import (
    nc1_cdnv as nc1_cdnv,
    nc1_pinv as nc1_pinv,
    nc1_pinv_class_balanced as nc1_pinv_class_balanced,
    nc1_trace_ratio as nc1_trace_ratio,
    nc2_equiangular as nc2_equiangular,
    nc2_equinorm as nc2_equinorm,
    nc2_etf_distance as nc2_etf_distance,
    nc2_uniformity as nc2_uniformity,
    nc3_alignment as nc3_alignment,
    nc3_self_duality as nc3_self_duality,
    nc3_unnormalised_duality as nc3_unnormalised_duality,
    nc4_ncc_mismatch as nc4_ncc_mismatch,
    paper_eq13_uncentred as paper_eq13_uncentred,
    paper_eq13_uncentred_printed_constant as paper_eq13_uncentred_printed_constant,
    paper_eq14_uncentred as paper_eq14_uncentred,
    seli_distance as seli_distance,
    seli_geometry as seli_geometry,
    simplex_etf as simplex_etf,
)
from .moments import (
    ClassMoments as ClassMoments,
    EmptyClassWarning as EmptyClassWarning,
    class_moments as class_moments,
)
from .report import nc_report as nc_report
from .table import LABELS as LABELS, METRICS as METRICS, Ideal as Ideal, ideal_values as ideal_values
