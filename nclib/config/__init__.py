"""Frozen, strict descriptions of a run, and the identity that follows from them.

A configuration is plain data: building one reads no file and trains nothing. An option that does not exist, has the
wrong type or does not apply (a solver for an explicit network) is refused here, with the nearest right name, so that
a misspelt setting can never run silently with a default. Options left out are filled in with their defaults, which
makes two ways of writing the same run one identity.

`strict` is what every configuration is, `parts` has those of a run (solver, gradient, data, model, training), `run` the
run itself, its identity and what is made of a finished one.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
