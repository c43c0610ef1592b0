"""Pictures beside features are those of the images that the features came from."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

import companion
from companion import neural_collapse as sun_shi
from nclib import data, imbalance


@pytest.fixture
def config():
    return companion.experiment("fig2", "smoke")[0]


def test_they_are_the_images_of_the_rows_that_are_drawn(config):
    split = data.make_split(config.data, config.seed)
    rows = imbalance.sample_rows(split.train_labels.numpy(), 2)
    found = sun_shi.pictures(config, split.train_labels[rows].numpy())
    shown = [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]
    np.testing.assert_array_equal(np.stack(shown), split.train_images[rows][:, 0].numpy())


def test_without_the_images_there_are_none(config, monkeypatch):
    monkeypatch.setattr(data, "describe", lambda name: {"present": False})
    assert sun_shi.pictures(config, [0, 0, 1]) == ["", "", ""]
