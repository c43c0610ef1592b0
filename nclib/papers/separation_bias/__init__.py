"""Wu et al. (NeurIPS 2024): constructions, trainings and certificates.

Its text was not at hand: the certificates are about its abstract and its discussion.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
