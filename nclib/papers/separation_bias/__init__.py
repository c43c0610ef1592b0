"""Wu et al. (NeurIPS 2024): constructions, trainings and certificates. Its text was not at hand: the certificates are
about its abstract and its discussion.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
