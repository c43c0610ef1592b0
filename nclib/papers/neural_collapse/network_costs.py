"""What the parts of a network are and cost, read from any `Classifier`, trained or not."""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from nclib.config import RunConfig
from nclib.metrics.measure import evaluating
from nclib.models import BasicBlock, Classifier, count_parameters
from nclib.store import load_run

TWO_BLOCKS = Path(__file__).with_name("two_blocks.svg")
"""A diagram of ResNet-18 and the DEQ at the paper's size: width 64, images of 3×32×32, ten
classes."""

LAST_BLOCK = "last block"


def layer_table(model: Classifier, images: Tensor) -> pd.DataFrame:
    """What a forward pass went through, stage by stage, read from the modules while it ran.

    Parameters
    ----------
    model : any `Classifier`; run in evaluation mode, without gradients, and left in the mode it was
        in
    images : (B, C, H, W) what to send through it

    Returns
    -------
    DataFrame
        A row for each stage with stage; output, its shape without the batch, such as "128×4×4";
        parameters, trainable ones; macs, multiplications per image in convolutions and matrix
        products, for *one* evaluation of the stage; evaluations, how often an image went through
        it: 1, the steps of an unrolled cell, or the mean number of calls the solver needed for
        these images. So the cost of an image is the sum of macs × evaluations.

    Norms, ReLU, additions and pooling count no multiplications, which is the usual convention.
    """
    stages = _stages(model)
    stage_of = {}
    ends = {}
    for stage, parts in stages.items():
        ends[parts[-1]] = stage
        for part in parts:
            stage_of.update(dict.fromkeys(part.modules(), stage))
    cell = getattr(model.block, "cell", None)
    shapes = {}
    macs = Counter()
    rows = dict.fromkeys(stages, len(images))  # images that a stage was evaluated on
    if cell is not None:
        rows[LAST_BLOCK] = 0

    def note(module: nn.Module, _: Any, out: Any) -> None:
        if module in ends:
            output = out[0] if isinstance(out, tuple) else out
            shapes[ends[module]] = output.shape[1:]
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            macs[stage_of[module]] += out.numel() * module.weight[0].numel()
        if module is cell:
            rows[LAST_BLOCK] += len(out)

    hook = nn.modules.module.register_module_forward_hook(note)
    with evaluating(model), torch.no_grad(), hook:
        model(images)
    lines = []
    for stage, parts in stages.items():
        line = {
            "stage": stage,
            "output": "×".join(str(size) for size in shapes[stage]),
            "parameters": sum(count_parameters(part) for part in parts),
            "macs": round(macs[stage] / rows[stage]),
            "evaluations": rows[stage] / len(images),
        }
        lines.append(line)
    return pd.DataFrame(lines)


def _stages(model: Classifier) -> dict[str, list[nn.Module]]:
    """Name and modules of each stage, in the order in which they run."""
    stages: dict[str, list[nn.Module]] = {"stem": []}
    number = 0
    for part in model.encoder:
        if not isinstance(part, BasicBlock):
            stages["stem"].append(part)
            continue
        if number == 0 or part.conv1.stride[0] > 1:
            number += 1
        stages.setdefault(f"stage {number}", []).append(part)
    last = list(stages)[-1]
    stages[f"{last}, first block"] = stages.pop(last)
    stages[LAST_BLOCK] = [model.block]
    stages["pooling"] = [model.feature_norm]
    stages["classifier"] = [model.classifier]
    return stages


def compute_in_blocks(config: RunConfig) -> float:
    """What the last block of this finished DEQ run cost in training, in untied explicit blocks.

        blocks = (s + b + 3) / 3

    In units of one evaluation of the cell, a training step of an equilibrium takes s forward
    evaluations, one more to attach the gradient, b products with the transposed Jacobian and a
    backward pass of 2; an explicit block takes 3. s and b are means over the whole run; a series
    takes one product less than it has terms or steps.

    Raises
    ------
    ValueError
        For ``unrolled``, which differentiates every step.
    """
    rule = config.model.gradient
    if rule.method == "unrolled":
        raise ValueError(
            f"gradient method {rule.method!r} differentiates every step: count the steps"
        )
    products = rule.steps - 1 if rule.method in ("neumann", "phantom") else 0
    steps = load_run(config).history.query("split == 'steps'").groupby("metric")["value"].mean()
    backward = steps.get("backward_steps", products)
    return float((steps["solver_steps"] + backward + 3) / 3)
