"""The public names of this paper and where each lives, imported on first use."""

from .diagonal import (
    density_table as density_table,
    diagonal_flow as diagonal_flow,
    diagonal_regulariser as diagonal_regulariser,
    diagonal_regulariser_minimum as diagonal_regulariser_minimum,
    flow_trials as flow_trials,
    gotu_diagonal as gotu_diagonal,
    gotu_table as gotu_table,
    participation_ratio as participation_ratio,
)
from .regions import (
    count_regions as count_regions,
    iterate_from_zero as iterate_from_zero,
    linear_regions_deq as linear_regions_deq,
    lower_triangular_equilibrium as lower_triangular_equilibrium,
    random_fnn_table as random_fnn_table,
    regions_table as regions_table,
    sawtooth_deq as sawtooth_deq,
    sawtooth_l1_bound as sawtooth_l1_bound,
    tent_map as tent_map,
)
from .results import (
    arm_names as arm_names,
    curve_rows as curve_rows,
    describe_regressions as describe_regressions,
    regression_table as regression_table,
)
from .saliency import grad_cam as grad_cam
from .steep import (
    fnn_weight_bound as fnn_weight_bound,
    steep_deq_scalar as steep_deq_scalar,
    steep_deq_triangular as steep_deq_triangular,
    steep_fnn as steep_fnn,
    steep_table as steep_table,
)
from .tasks import synthetic_tone as synthetic_tone
from .verdicts import separation_ledger as separation_ledger, trained_ledger as trained_ledger
