"""``nclib data``: what is there."""

from command import nclib


def test_data_are_fetched():
    assert "digits: complete" in nclib("data", "fetch", "digits").stdout
