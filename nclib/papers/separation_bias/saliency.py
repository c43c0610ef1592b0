"""Where finished classifiers look: Grad-CAM of stored runs, as stored runs of their own.

A `CamConfig` names a finished run. Its weights stay as they are; class-activation maps of its test images, how diffuse
they are and, for scenes whose parts are known, where they lie, are computed once and kept. An equilibrium is solved
again with 300 evaluations, so that the table shows how far the network depends on where its solver stopped.
"""

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import pydantic
import torch
from torch import Tensor
from torch.nn import functional as F

from nclib import data, training
from nclib.config import PostHocConfig
from nclib.metrics.measure import evaluating
from nclib.models import Classifier
from nclib.runs import Job, Result


class CamConfig(PostHocConfig):
    """Grad-CAM of one finished run.

    Parameters
    ----------
    base : the run
    examples : how many test images are kept with their maps

    Notes
    -----
    Seed and profile are the base's. Its data, model and train are found here too, so that planning, checks and captions
    treat this like the run it looks at.
    """

    kind: Literal["grad_cam"] = "grad_cam"
    examples: int = pydantic.Field(default=8, ge=0)

    def label(self) -> str:
        return f"{self.base.label()}-cam"

    def execute(self, job: Job) -> Result:
        """Maps of the predicted class on all test images, and what they look like.

        Returns
        -------
        Result with a history
            Columns epoch, split, metric, value. Split "cam", means over the correctly classified test images: coverage
            and entropy (`cam_spread`), blank (share of maps that are 0 everywhere) and, for "digit_scenes", on_digit
            and on_cue, the share of the map's mass there; accuracy of all test images; for an equilibrium residual and
            steps (means), and residual_300 and accuracy_300 of a solve with up to 300 evaluations to a tolerance of
            1e-6.
        and arrays
            images (n, C, H, W), cams (n, H, W), labels and predicted (n,) of the first test images of each class in
            turn
        """
        with training.arithmetic(self.train, job.device):
            model, split, loaders = training.reopen(self.base, job.store.open(job.base).weights, job.device)
            found = _predictions(model.eval(), loaders["test"], job.device)
            rows = _summary(self, found, split.test_indices)
            if "residual" in found and hasattr(model.block, "solver"):
                rows |= {name: float(found[name].mean()) for name in ("residual", "steps")}
                model.block.solver = replace(model.block.solver, tol=1e-6, max_steps=300)
                again = _predictions(model, loaders["test"], job.device, maps=False)
                rows["residual_300"] = float(again["residual"].mean())
                rows["accuracy_300"] = float((again["predicted"] == again["labels"]).double().mean())
        history = pd.DataFrame(rows.items(), columns=["metric", "value"]).assign(epoch=self.train.epochs, split="cam")
        labels = found["labels"].numpy()
        shown = np.lexsort((labels, pd.Series(labels).groupby(labels).cumcount()))[: self.examples]
        arrays = {name: found[name][shown].numpy() for name in ("cams", "labels", "predicted")}
        arrays["images"] = split.test_images[shown].cpu().numpy()
        return Result({"history": history[["epoch", "split", "metric", "value"]]}, arrays)


def _predictions(model: Classifier, loader: Any, device: torch.device, maps: bool = True) -> dict[str, Tensor]:
    """Of all images: labels, predicted classes, ``cams`` where maps are asked for, residual and steps of a solve."""
    parts = []
    for images, labels in loader.in_order():
        with torch.no_grad():
            out = model(images.to(device))
        part = {"labels": labels, "predicted": out.logits.argmax(1)}
        part |= {"cams": grad_cam(model, images.to(device))} if maps else {}
        if out.solution is not None:
            part |= {"residual": out.solution.residual.double(), "steps": out.solution.steps.double()}
        parts.append({name: value.detach().cpu() for name, value in part.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _summary(config: CamConfig, found: dict[str, Tensor], indices: Any) -> dict[str, float]:
    right = found["labels"] == found["predicted"]
    cams = found["cams"][right].double()
    mass = cams.sum(dim=(1, 2))
    spread = cam_spread(cams)[(mass > 0).numpy()].mean()
    rows = {"accuracy": float(right.double().mean()), "blank": float((mass == 0).double().mean())}
    rows |= {name: float(spread[name]) for name in ("coverage", "entropy")}
    if config.data.dataset == "digit_scenes":
        chosen = torch.as_tensor(indices).cpu()[right]
        for name, mask in zip(("on_digit", "on_cue"), data.scene_places("test"), strict=True):
            share = (cams * mask[chosen]).sum(dim=(1, 2)) / mass
            rows[name] = float(share[mass > 0].mean())
    return rows


def grad_cam(model: Classifier, images: Tensor) -> Tensor:
    """Grad-CAM of the predicted class of any `Classifier` at its last feature map, at the images' size.

        CAM = ReLU(Σ_c α_c z_c),   α_c = mean over places of ∂(logit of the class)/∂z_c

    For an equilibrium z is z* itself, so nothing is differentiated through the solver.

    Parameters
    ----------
    model : a `Classifier`, taken in evaluation mode and left as it was
    images : (B, C, H, W), normalised as in training

    Returns
    -------
    (B, H, W) in [0, 1], bilinearly enlarged and divided by its maximum; 0 where no place speaks for the class

    Source: Selvaraju et al. (2017).
    """
    with evaluating(model):
        with torch.no_grad():
            z, solution = model.transform(model.encoder(images))
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            logits = model.read_out(z, solution).logits
            (slope,) = torch.autograd.grad(logits.max(1).values.sum(), z)
    cam = F.relu((slope.mean(dim=(2, 3), keepdim=True) * z.detach()).sum(1, keepdim=True))
    cam = F.interpolate(cam, size=images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    top = cam.amax(dim=(1, 2), keepdim=True)
    return torch.where(top > 0, cam / top.clamp_min(torch.finfo(cam.dtype).tiny), 0)


def cam_spread(cam: Tensor) -> pd.DataFrame:
    """How diffuse class-activation maps (B, H, W) are: coverage, the share of pixels above half of the maximum, and
    entropy of CAM/ΣCAM over log(H·W), 0 for one pixel and 1 for an even map; NaN for a map of zeros."""
    flat = cam.double().flatten(1)
    share = flat / flat.sum(1, keepdim=True)
    entropy = -torch.xlogy(share, share).sum(1) / math.log(flat.shape[1])
    return pd.DataFrame({"coverage": (flat > 0.5).double().mean(1).numpy(), "entropy": entropy.numpy()})
