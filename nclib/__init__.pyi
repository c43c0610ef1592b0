"""The public names of nclib and where each lives: what ``__init__.py`` imports on first use, and type checkers read."""

from . import (
    compare as compare,
    config as config,
    data as data,
    deq as deq,
    diagnosis as diagnosis,
    evaluation as evaluation,
    figures as figures,
    imbalance as imbalance,
    losses as losses,
    metrics as metrics,
    models as models,
    paths as paths,
    plots as plots,
    profiles as profiles,
    provenance as provenance,
    reproduce as reproduce,
    runs as runs,
    solvers as solvers,
    store as store,
    training as training,
)
from .compare import interval as interval, pairs as pairs, verdict as verdict
from .config import (
    DataConfig as DataConfig,
    GradientConfig as GradientConfig,
    ModelConfig as ModelConfig,
    RunConfig as RunConfig,
    SolverConfig as SolverConfig,
    TrainConfig as TrainConfig,
    run_id as run_id,
)
from .deq import (
    DEQ as DEQ,
    Implicit as Implicit,
    Neumann as Neumann,
    Phantom as Phantom,
    Unrolled as Unrolled,
)
from .diagnosis import diagnose as diagnose, spectral_radius as spectral_radius
from .store import load_run as load_run
from .runs import ensure_runs as ensure_runs
from .evaluation import evaluate as evaluate
from .metrics import (
    ClassMoments as ClassMoments,
    class_moments as class_moments,
    ideal_values as ideal_values,
    nc1_pinv as nc1_pinv,
    nc1_trace_ratio as nc1_trace_ratio,
    nc2_etf_distance as nc2_etf_distance,
    nc3_self_duality as nc3_self_duality,
    nc4_ncc_mismatch as nc4_ncc_mismatch,
    nc_report as nc_report,
    simplex_etf as simplex_etf,
)
from .metrics.measure import measure as measure
from .models import build_model as build_model
from .profiles import experiment as experiment
from .figures import save_figure as save_figure, save_table as save_table
from .solvers import (
    Anderson as Anderson,
    Broyden as Broyden,
    FixedPointIteration as FixedPointIteration,
    Solution as Solution,
    fixed_point as fixed_point,
)

__version__: str
