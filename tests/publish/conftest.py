"""A profile that was executed."""

import pytest
from executed import fill


@pytest.fixture
def smoke():
    return fill()
