"""What is about the three papers: their code, certificates, experiments, course, laboratory and web site.

``experiment`` (the runs behind a notebook), ``neural_collapse`` (Sun & Shi 2024), ``kernel_equivalence`` (Ling et al.
2024), ``separation_bias`` (Wu et al. 2024), ``certify`` (the verdicts on their statements). `nclib` imports none of it:
what it uses is named by the entry points in pyproject.toml.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
