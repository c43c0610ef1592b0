"""The equilibrium layer: z* = cell(z*, x), found by any solver of ``nclib.solver``, differentiated by any rule.

The cell, the solver and the gradient are three separate values. The forward solve records nothing; the backward pass
evaluates the cell once more at z*, so what is kept in between is z* and x, whatever the number of steps.

``layer`` has ``DEQ`` itself, ``gradients`` the rules and the implicit backward pass, ``steps`` the passes of a fixed
number of steps, ``cell`` the cell as the layer sees it, ``jacobian`` what the Jacobian at a point tells, ``diagnosis``
why a layer misbehaves.
"""

from nclib.deq.diagnosis import Diagnosis as Diagnosis
from nclib.deq.diagnosis import diagnose as diagnose
from nclib.deq.gradients import BackwardNotConverged as BackwardNotConverged
from nclib.deq.gradients import Gradient as Gradient
from nclib.deq.gradients import Implicit as Implicit
from nclib.deq.gradients import Neumann as Neumann
from nclib.deq.gradients import Phantom as Phantom
from nclib.deq.gradients import Reversible as Reversible
from nclib.deq.gradients import Unrolled as Unrolled
from nclib.deq.jacobian import jacobian_frobenius_sq as jacobian_frobenius_sq
from nclib.deq.jacobian import row_jacobians as row_jacobians
from nclib.deq.jacobian import spectral_radius as spectral_radius
from nclib.deq.layer import DEQ as DEQ
from nclib.deq.layer import ForwardNotConverged as ForwardNotConverged
