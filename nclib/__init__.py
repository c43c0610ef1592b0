"""Deep equilibrium models and neural collapse: solver, metrics, models and the runs behind three
papers' figures.

To begin: ``DEQ``, ``Anderson``, ``Broyden``, ``Implicit``, ``Phantom`` (an equilibrium layer of
your own); ``measure`` (neural collapse in the layers of any network); ``nc_report``,
``ClassMoments``, ``ideal_values`` (of any features); ``RunConfig``, ``ensure_runs``, ``pairs``,
``interval`` (trained runs and their differences).

What a paper defines is in its package: ``from nclib.papers import neural_collapse as sun_shi``,
``kernel_equivalence as ke``, ``separation_bias as sb``.

Every public name stands once in ``__init__.pyi``, with its module. It is imported when it is first
used, so that ``import nclib`` and ``nclib --help`` cost nothing.
"""

import lazy_loader

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
