"""Grad-CAM of stored runs: measured where the scenes say the parts are, stored once."""

import contextlib

import numpy as np
import pytest
import torch

from nclib import data, runs
from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from nclib.deq import BackwardNotConverged
from nclib.papers.separation_bias import saliency
from nclib.papers.separation_bias.saliency import CamConfig
from nclib.store import load_run


def _base(kind, dataset="digit_scenes"):
    return RunConfig(
        data=DataConfig(dataset=dataset, n_max=6, test_per_class=3),
        model=ModelConfig(kind=kind, width=2),
        train=TrainConfig(epochs=1, batch_size=12, lr=0.05),
    )


def test_scenes_have_their_parts_where_they_are_said_to_be():
    scenes = data.load_dataset("digit_scenes", "test")
    digit, cue = data.scene_places("test")
    assert scenes.images.shape == (160, 1, 32, 32) and scenes.counts.tolist() == [40] * 4
    assert (digit.sum(dim=(1, 2)) == 256).all() and not (digit & cue).any()
    raw = data.load_dataset("digits", "test")
    enlarged = {bytes(i.repeat_interleave(2, 1).repeat_interleave(2, 2).numpy()) for i in raw.images}
    for image, mask in zip(scenes.images[:, 0], digit, strict=True):
        assert bytes(image[mask].reshape(16, 16).numpy()) in enlarged


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_a_look_is_a_stored_run(kind):
    config = CamConfig(base=_base(kind), examples=5)
    with pytest.warns(BackwardNotConverged, match="epoch 1: ") if kind == "deq" else contextlib.nullcontext():
        frame = runs.ensure_runs([config]).set_index("metric")["value"]
    assert {"accuracy", "blank", "coverage", "entropy", "on_digit", "on_cue"} <= set(frame.index)
    assert ({"residual", "residual_300", "accuracy_300", "steps"} <= set(frame.index)) == (kind == "deq")
    arrays = load_run(config).arrays
    assert arrays["cams"].shape == (5, 32, 32) and arrays["images"].shape == (5, 1, 32, 32)
    assert arrays["labels"].tolist() == [0, 1, 2, 3, 0]
    assert CamConfig(**config.model_dump(mode="json")) == config and config.data == config.base.data


def test_measures_of_known_maps():
    """All mass on the digit: nothing on the cue."""
    config = CamConfig(base=_base("explicit"))
    digit, _ = data.scene_places("test")
    found = {"cams": digit[:4].float(), "labels": torch.tensor([0, 0, 1, 1]), "predicted": torch.tensor([0, 0, 1, 0])}
    rows = saliency._summary(config, found, torch.arange(4))
    assert (rows["accuracy"], rows["on_digit"], rows["on_cue"], rows["blank"]) == (0.75, 1, 0, 0)
    assert rows["coverage"] == 0.25
    np.testing.assert_allclose(rows["entropy"], np.log(256) / np.log(1024))
