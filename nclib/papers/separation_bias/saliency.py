"""Where finished classifiers look: Grad-CAM of stored runs, as stored runs of their own.

A `CamConfig` names a finished run. Its weights stay as they are; class-activation maps of its test
images, how diffuse they are and, for scenes whose parts are known, where they lie, are computed
once and kept. An equilibrium is solved again with 300 evaluations, so that the table shows how far
the network depends on where its solver stopped.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
import pydantic
import torch
from torch import Tensor
from torch.nn import functional as F

from nclib import training
from nclib.config import PostHocConfig
from nclib.data import Batches, scene_places
from nclib.metrics.measure import evaluating
from nclib.models import Classifier
from nclib.runs import Job, Result
from nclib.store import HISTORY

SECOND_TOL = 1e-6
SECOND_STEPS = 300
"""Of the second solve of an equilibrium."""


class CamConfig(PostHocConfig):
    """Grad-CAM of one finished run.

    Parameters
    ----------
    base : the run
    examples : how many test images are kept with their maps

    Notes
    -----
    Seed and profile are the base's. Its data, model and train are found here too, so that planning,
    checks and captions treat this like the run it looks at.
    """

    kind: Literal["grad_cam"] = "grad_cam"
    examples: int = pydantic.Field(default=8, ge=0)

    def label(self) -> str:
        return f"{self.base.label()}-cam"

    def execute(self, job: Job) -> Result:
        """Maps of the predicted class on all test images, and what they look like.

        Returns
        -------
        Result
            A history with the split "cam", means over the correctly classified test images:
            coverage and entropy (`cam_spread`), blank (share of maps that are 0 everywhere) and,
            for "digit_scenes", on_digit and on_cue, the share of the map's mass there; accuracy of
            all test images; for an equilibrium residual and steps (means), and residual_300 and
            accuracy_300 of a solve with up to 300 evaluations to a tolerance of 1e-6.

            Arrays images (n, C, H, W), cams (n, H, W), labels and predicted (n,) of the first test
            images of each class in turn.
        """
        with training.arithmetic(self.train, job.device):
            weights = job.store.open(job.base).weights
            model, split, loaders = training.reopen(self.base, weights, job.device)
            model.eval()
            looked = _look(model, loaders["test"], job.device)
            values = summary(looked, split.test_indices, self.data.dataset == "digit_scenes")
            if "residual" in looked and hasattr(model.block, "solver"):
                values["residual"] = float(looked["residual"].mean())
                values["steps"] = float(looked["steps"].mean())
                longer = replace(model.block.solver, tol=SECOND_TOL, max_steps=SECOND_STEPS)
                model.block.solver = longer
                again = _look(model, loaders["test"], job.device, maps=False)
                right = again["predicted"] == again["labels"]
                values["residual_300"] = float(again["residual"].mean())
                values["accuracy_300"] = float(right.double().mean())
        history = pd.DataFrame(values.items(), columns=["metric", "value"])
        history = history.assign(epoch=self.train.epochs, split="cam")[HISTORY]

        shown = first_of_each_class(looked["labels"].numpy())[: self.examples]
        arrays = {name: looked[name][shown].numpy() for name in ("cams", "labels", "predicted")}
        arrays["images"] = split.test_images[shown].cpu().numpy()
        return Result({"history": history}, arrays)


def first_of_each_class(labels: np.ndarray) -> np.ndarray:
    """Positions of the first sample of each class, then of the second of each class, and so on."""
    occurrence = pd.Series(labels).groupby(labels).cumcount()
    return np.lexsort((labels, occurrence))


def _look(
    model: Classifier, loader: Batches, device: torch.device, maps: bool = True
) -> dict[str, Tensor]:
    """Of all images: labels, predicted classes, cams with `maps`, residual and steps of a solve."""
    parts: dict[str, list[Tensor]] = {}

    def add(name: str, values: Tensor) -> None:
        parts.setdefault(name, []).append(values.detach().cpu())

    for images, labels in loader.in_order():
        images = images.to(device)
        with torch.no_grad():
            out = model(images)
        add("labels", labels)
        add("predicted", out.logits.argmax(1))
        if maps:
            add("cams", grad_cam(model, images))
        if out.solution is not None:
            add("residual", out.solution.residual.double())
            add("steps", out.solution.steps.double())
    return {name: torch.cat(values) for name, values in parts.items()}


def summary(
    looked: dict[str, Tensor], indices: Tensor | Sequence[int], are_scenes: bool
) -> dict[str, float]:
    """Accuracy, and what the maps of the correctly classified images look like.

    Parameters
    ----------
    looked : labels and predicted (N,), cams (N, H, W)
    indices : of the images in their data set
    are_scenes : whether that is "digit_scenes", whose parts are known
    """
    right = looked["labels"] == looked["predicted"]
    cams = looked["cams"][right].double()
    mass = cams.sum(dim=(1, 2))
    spread = cam_spread(cams)[(mass > 0).numpy()].mean()
    values = {
        "accuracy": float(right.double().mean()),
        "blank": float((mass == 0).double().mean()),
        "coverage": float(spread["coverage"]),
        "entropy": float(spread["entropy"]),
    }
    if are_scenes:
        chosen = torch.as_tensor(indices).cpu()[right]
        digit, cue = scene_places("test")
        for name, mask in (("on_digit", digit), ("on_cue", cue)):
            share = (cams * mask[chosen]).sum(dim=(1, 2)) / mass
            values[name] = float(share[mass > 0].mean())
    return values


def grad_cam(model: Classifier, images: Tensor) -> Tensor:
    """Grad-CAM of the predicted class of a `Classifier` at its last feature map.

        CAM = ReLU(Σ_c α_c z_c),   α_c = mean over places of ∂(logit of the class)/∂z_c

    For an equilibrium z is z* itself, so nothing is differentiated through the solver.

    Parameters
    ----------
    model : taken in evaluation mode and left as it was
    images : (B, C, H, W), normalised as in training

    Returns
    -------
    (B, H, W) in [0, 1], bilinearly enlarged to the images' size and divided by its maximum; 0 where
    no place speaks for the class

    Source: Selvaraju et al. (2017).
    """
    with evaluating(model):
        with torch.no_grad():
            z, solution = model.transform(model.encoder(images))
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            logits = model.read_out(z, solution).logits
            largest = logits.max(1).values.sum()
            (slope,) = torch.autograd.grad(largest, z)
    alpha = slope.mean(dim=(2, 3), keepdim=True)
    cam = F.relu((alpha * z.detach()).sum(1, keepdim=True))
    cam = F.interpolate(cam, size=images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    top = cam.amax(dim=(1, 2), keepdim=True)
    tiny = torch.finfo(cam.dtype).tiny
    return torch.where(top > 0, cam / top.clamp_min(tiny), 0)


def cam_spread(cam: Tensor) -> pd.DataFrame:
    """How diffuse class-activation maps are.

    Parameters
    ----------
    cam : (B, H, W) in [0, 1]

    Returns
    -------
    DataFrame
        A row for each map: coverage, the share of pixels above half of the maximum, and entropy of
        CAM/ΣCAM over log(H·W), 0 for one pixel and 1 for an even map; NaN for a map of zeros

    Examples
    --------
    >>> import torch
    >>> cam_spread(torch.ones(1, 4, 4))["coverage"].tolist()
    [1.0]
    """
    flat = cam.double().flatten(1)
    share = flat / flat.sum(1, keepdim=True)
    entropy = -torch.xlogy(share, share).sum(1) / math.log(flat.shape[1])
    coverage = (flat > 0.5).double().mean(1)
    return pd.DataFrame({"coverage": coverage.numpy(), "entropy": entropy.numpy()})
