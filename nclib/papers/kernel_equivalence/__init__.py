"""Ling et al. (ICML 2024): kernels and networks, by the paper's released code.

No formula of the paper itself was at hand.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
