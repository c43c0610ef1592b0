"""What the parts of a network are and cost, read from any `Classifier`, trained or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from nclib.config import RunConfig
from nclib.deq import failures_counted
from nclib.engine.reference import load_run
from nclib.metrics.hooks import evaluating
from nclib.models import BasicBlock, Classifier, count_parameters

TWO_BLOCKS = Path(__file__).with_name("two_blocks.svg")
"""A drawing of ResNet-18 and the DEQ at the paper's size: width 64, images of 3×32×32, ten classes."""


def layer_table(model: Classifier, images: Tensor) -> pd.DataFrame:
    """What a forward pass went through, stage by stage, read from the modules while it ran.

    Parameters
    ----------
    model : any `Classifier`; run in evaluation mode, without gradients, and left in the mode it was in
    images : (B, C, H, W) what to send through it

    Returns
    -------
    DataFrame
        A row for each stage with stage; output, its shape without the batch, such as "128×4×4"; parameters, trainable
        ones; macs, multiplications per image in convolutions and matrix products, for *one* evaluation of the stage;
        evaluations, how often an image went through it: 1, the steps of an unrolled cell, or the mean number of calls
        the solver needed for these images. So the cost of an image is the sum of macs × evaluations.

    Norms, ReLU, additions and pooling count no multiplications, which is the usual convention.
    """
    stages = _stages(model)
    shapes: dict[str, torch.Size] = {}
    macs, rows, handles = Counter(), Counter({stage: len(images) for stage in stages}), []

    def watch(module: nn.Module, note: Callable[[nn.Module, Any], None]) -> None:
        handles.append(module.register_forward_hook(lambda module, _, out: note(module, out)))

    for stage, parts in stages.items():

        def shape(_: nn.Module, out: Any, stage: str = stage) -> None:
            shapes[stage] = (out[0] if isinstance(out, tuple) else out).shape[1:]

        def multiplications(module: nn.Module, out: Tensor, stage: str = stage) -> None:
            each = module.in_features if isinstance(module, nn.Linear) else module.weight[0].numel()
            macs[stage] += out.numel() * each

        watch(parts[-1], shape)
        for module in (module for part in parts for module in part.modules()):
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                watch(module, multiplications)
    if hasattr(model.block, "cell"):
        rows["last block"] = 0
        watch(model.block.cell, lambda _, out: rows.update({"last block": len(out)}))
    try:
        with evaluating(model), failures_counted(model), torch.no_grad():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    names = ["stage", "output", "parameters", "macs", "evaluations"]
    found = []
    for stage, parts in stages.items():
        output, parameters = "×".join(map(str, shapes[stage])), sum(map(count_parameters, parts))
        found.append((stage, output, parameters, round(macs[stage] / rows[stage]), rows[stage] / len(images)))
    return pd.DataFrame(found, columns=names)


def _stages(model: Classifier) -> dict[str, list[nn.Module]]:
    """Name and modules of each stage, in the order in which they run."""
    stages: dict[str, list[nn.Module]] = {"stem": []}
    number = 0
    for part in model.encoder:
        if not isinstance(part, BasicBlock):
            stages["stem"].append(part)
            continue
        number += number == 0 or part.conv1.stride[0] > 1
        stages.setdefault(f"stage {number}", []).append(part)
    last = list(stages)[-1]
    stages[f"{last}, first block"] = stages.pop(last)
    return stages | {"last block": [model.block], "pooling": [model.feature_norm], "classifier": [model.classifier]}


def compute_in_blocks(config: RunConfig) -> float:
    """What the last block of this finished DEQ run cost in training, in untied explicit blocks.

        blocks = (s + b + 3) / 3

    In units of one evaluation of the cell, a training step of an equilibrium takes s forward evaluations, one more to
    attach the gradient, b products with the transposed Jacobian and a backward pass of 2; an explicit block takes 3.
    s and b are means over the whole run.

    """
    steps = load_run(config).history.query("split == 'steps'").groupby("metric")["value"].mean()
    return float((steps["solver_steps"] + steps.get("backward_steps", 0.0) + 3) / 3)
