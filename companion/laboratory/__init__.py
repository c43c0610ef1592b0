"""The panels of the laboratory notebook: a run to train and watch, solvers step by step, stored runs side by side."""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
