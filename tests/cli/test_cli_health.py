"""``nclib data`` and ``doctor``: what is there."""

import torch
from command import nclib

from nclib.engine import profiles


def test_data_are_fetched():
    assert "digits: complete" in nclib("data", "fetch", "digits").stdout


def test_the_doctor_tells_what_there_is_and_what_is_to_be_trained(project):
    result = nclib("doctor")
    assert result.exit_code == 0
    assert torch.__version__.split("+")[0] in result.stdout
    assert str(project) in result.stdout and "embedded in scikit-learn" in result.stdout
    for profile in profiles.PROFILES:
        assert f"{profile}: " in result.stdout
