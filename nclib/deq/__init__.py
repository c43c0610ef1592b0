"""The equilibrium layer: z* = cell(z*, x), found by any solver of ``nclib.solver``, differentiated by any rule.

The cell, the solver and the gradient are three separate values. The forward solve records nothing; the backward pass
evaluates the cell once more at z*, so what is kept in between is z* and x, whatever the number of steps.

``layer`` has ``DEQ`` itself, ``gradients`` the rules and the implicit backward pass, ``steps`` the passes of a fixed
number of steps, ``cell`` the cell as the layer sees it, ``jacobian`` what the Jacobian at a point tells, ``diagnosis``
why a layer misbehaves.
"""

from nclib.deq.cell import Cell, State
from nclib.deq.diagnosis import Diagnosis, diagnose
from nclib.deq.gradients import (
    BackwardNotConverged,
    Gradient,
    Implicit,
    Neumann,
    Phantom,
    Reversible,
    Unrolled,
)
from nclib.deq.jacobian import jacobian_frobenius_sq, row_jacobians, spectral_radius
from nclib.deq.layer import DEQ, ForwardNotConverged

__all__ = [
    "DEQ",
    "BackwardNotConverged",
    "Cell",
    "Diagnosis",
    "ForwardNotConverged",
    "Gradient",
    "Implicit",
    "Neumann",
    "Phantom",
    "Reversible",
    "State",
    "Unrolled",
    "diagnose",
    "jacobian_frobenius_sq",
    "row_jacobians",
    "spectral_radius",
]
