"""Certificates on Ling et al. (ICML 2024). No printed formula of the paper was at hand: they are about its released
code.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
