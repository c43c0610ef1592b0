"""Grad-CAM: closed forms, measures of known maps, and a stored run."""

import contextlib
import math

import numpy as np
import pytest
import torch

from nclib import data
from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from nclib.deq import BackwardNotConverged
from nclib.models import build_model
from nclib.papers.separation_bias import saliency
from nclib.papers.separation_bias.saliency import CamConfig
from nclib.runs import ensure_runs
from nclib.store import load_run


def base_of(kind):
    return RunConfig(
        data=DataConfig(dataset="digit_scenes", n_max=6, test_per_class=3),
        model=ModelConfig(kind=kind, width=2),
        train=TrainConfig(epochs=1, batch_size=12, lr=0.05),
    )


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_grad_cam_of_a_pooled_linear_classifier_is_its_weights_on_the_last_map(kind):
    model = build_model(ModelConfig(kind=kind, width=2), num_classes=3, in_channels=1)
    images = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    cam = saliency.grad_cam(model, images)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    with torch.no_grad():
        z, _ = model.transform(model.encoder(images))
        weights = model.classifier.weight[model(images).logits.argmax(1)]
    wanted = torch.relu((weights[:, :, None, None] * z).sum(1, keepdim=True))
    wanted = torch.nn.functional.interpolate(
        wanted, size=(32, 32), mode="bilinear", align_corners=False
    )[:, 0]
    wanted /= wanted.amax(dim=(1, 2), keepdim=True).clamp_min(1e-30)
    torch.testing.assert_close(cam, wanted, atol=1e-5, rtol=1e-4)


def test_spread_of_maps():
    point = torch.zeros(4, 4)
    point[1, 1] = 1
    spread = saliency.cam_spread(torch.stack([torch.ones(4, 4), point, torch.zeros(4, 4)]))
    np.testing.assert_allclose(spread["coverage"], [1, 1 / 16, 0])
    np.testing.assert_allclose(spread["entropy"][:2], [1, 0])
    assert math.isnan(spread["entropy"][2])


def test_measures_of_known_maps():
    """All mass on the digit, nothing on the cue."""
    digit, _ = data.scene_places("test")
    looked = {
        "cams": digit[:4].float(),
        "labels": torch.tensor([0, 0, 1, 1]),
        "predicted": torch.tensor([0, 0, 1, 0]),
    }
    values = saliency.summary(looked, torch.arange(4), are_scenes=True)
    assert values["accuracy"] == 0.75
    assert values["on_digit"] == 1
    assert values["on_cue"] == 0
    assert values["blank"] == 0
    assert values["coverage"] == 0.25
    assert values["entropy"] == pytest.approx(np.log(256) / np.log(1024))


def test_scenes_have_their_parts_where_they_are_said_to_be():
    scenes = data.load_dataset("digit_scenes", "test")
    digit, cue = data.scene_places("test")
    assert scenes.images.shape == (160, 1, 32, 32)
    assert scenes.counts.tolist() == [40] * 4
    assert (digit.sum(dim=(1, 2)) == 256).all()
    assert not (digit & cue).any()
    digits = data.load_dataset("digits", "test").images
    enlarged = digits.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    known = {image.numpy().tobytes() for image in enlarged}
    for image, mask in zip(scenes.images[:, 0], digit, strict=True):
        assert image[mask].reshape(16, 16).numpy().tobytes() in known


def test_examples_take_classes_in_turn():
    assert saliency.first_of_each_class(np.array([1, 1, 0, 2, 0])).tolist() == [2, 0, 3, 4, 1]


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_a_look_is_a_stored_run(kind):
    config = CamConfig(base=base_of(kind), examples=5)
    warned = contextlib.nullcontext()
    if kind == "deq":
        warned = pytest.warns(BackwardNotConverged, match="epoch 1: ")
    with warned:
        values = ensure_runs([config]).set_index("metric")["value"]
    assert {"accuracy", "blank", "coverage", "entropy", "on_digit", "on_cue"} <= set(values.index)
    of_equilibria = {"residual", "residual_300", "accuracy_300", "steps"}
    assert of_equilibria & set(values.index) == (of_equilibria if kind == "deq" else set())
    arrays = load_run(config).arrays
    assert arrays["cams"].shape == (5, 32, 32)
    assert arrays["images"].shape == (5, 1, 32, 32)
    assert arrays["labels"].tolist() == [0, 1, 2, 3, 0]
    assert CamConfig(**config.model_dump(mode="json")) == config
    assert config.data == config.base.data
