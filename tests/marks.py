"""Parameters that only `make test-slow` tries."""

from collections.abc import Iterable

import pytest


def slow(*values: object) -> list:
    """Values of `pytest.mark.parametrize`, marked; a tuple is one set of several arguments."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow)
        for one in values
    ]


def thinned(values: Iterable[object]) -> list:
    """Values of `pytest.mark.parametrize`, of which `make test` tries each third."""
    return [value if place % 3 == 0 else slow(value)[0] for place, value in enumerate(values)]
