"""Parameters that only `make test-slow` tries."""

import pytest


def slow(*values: object) -> list:
    """Values of `pytest.mark.parametrize`, marked; a tuple is one set of several arguments."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow) for value in values
    ]
