"""``nclib data`` and ``doctor``: what is there."""

import torch
from command import nclib

from nclib.engine import profiles


def test_data_is_fetched_and_described():
    assert "digits: complete" in nclib("data", "fetch", "digits").stdout
    assert "embedded in scikit-learn" in nclib("data", "describe", "digits").stdout


def test_the_doctor_tells_what_there_is_and_what_it_costs(project):
    result = nclib("doctor")
    assert result.exit_code == 0
    assert torch.__version__.split("+")[0] in result.stdout
    assert str(project) in result.stdout and "embedded in scikit-learn" in result.stdout
    for profile in profiles.PROFILES:
        assert f"  {profile} " in result.stdout
