"""The public names of ``nclib.deq`` and where each lives."""

from .diagnosis import Diagnosis as Diagnosis, diagnose as diagnose
from .gradients import (
    BackwardNotConverged as BackwardNotConverged,
    Gradient as Gradient,
    Implicit as Implicit,
    Neumann as Neumann,
    Phantom as Phantom,
    Reversible as Reversible,
    Unrolled as Unrolled,
)
from .jacobian import (
    jacobian_frobenius_sq as jacobian_frobenius_sq,
    row_jacobians as row_jacobians,
    spectral_radius as spectral_radius,
)
from .layer import DEQ as DEQ, ForwardNotConverged as ForwardNotConverged
