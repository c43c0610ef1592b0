"""Ling et al. (ICML 2024): kernels and networks, by the paper's released code.

No formula of the paper itself was at hand.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
