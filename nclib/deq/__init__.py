"""The equilibrium layer: z* = cell(z*, x), found by any solver of ``nclib.solver``, differentiated by any rule.

The cell, the solver and the gradient are three separate values. The forward solve records nothing; the backward pass
evaluates the cell once more at z*, so what is kept in between is z* and x, whatever the number of steps.

``layer`` has ``DEQ`` itself, ``gradients`` the rules and the implicit backward pass, ``steps`` the passes of a fixed
number of steps, ``cell`` the cell as the layer sees it, ``jacobian`` what the Jacobian at a point shows, ``diagnosis``
why a layer misbehaves.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
