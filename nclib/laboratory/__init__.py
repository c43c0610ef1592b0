"""The panels of ``notebooks/laboratory.ipynb``, and what they compute."""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
