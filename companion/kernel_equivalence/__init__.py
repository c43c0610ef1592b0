"""Ling et al. (ICML 2024): kernels, networks and certificates. No printed formula of the paper was at hand: the
certificates are about its released code.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
