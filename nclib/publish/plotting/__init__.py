"""How everything looks: one style, one colour per model, and the few kinds of picture the papers need.

Functions take tidy frames or arrays and an axes, and return the axes; nothing here trains, reads or saves.
Colour and marker show the model, line style the split, a band one standard deviation over seeds; what the
paper prints stands at the right of the axes. Everything stays distinguishable in grey.

Tidy frames have the columns run_id, profile, dataset, model, K_A, R, seed, split, epoch, metric, value.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
