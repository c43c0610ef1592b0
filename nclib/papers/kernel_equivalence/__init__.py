"""Certificates on Ling et al. (ICML 2024). No printed formula of the paper was at hand: they are about its released
code.
"""
