"""From tidy frames to statements: pairs of runs, intervals over seeds, verdicts by stated rules, and tables of them.

`pairs` is the one way from a frame to a statement about two networks. A verdict is a function of what was measured.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
