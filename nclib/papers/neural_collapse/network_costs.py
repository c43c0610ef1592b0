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

# A diagram of ResNet-18 and the DEQ at the paper's size: width 64, images of 3×32×32, ten classes.
TWO_BLOCKS = Path(__file__).with_name("two_blocks.svg")


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
    where = {module: stage for stage, parts in stages.items() for part in parts for module in part.modules()}
    ends, cell = {parts[-1]: stage for stage, parts in stages.items()}, getattr(model.block, "cell", None)
    shapes, macs = {}, Counter()
    rows = {stage: 0 if stage == "last block" and cell is not None else len(images) for stage in stages}

    def note(module: nn.Module, _: Any, out: Any) -> None:
        if module in ends:
            shapes[ends[module]] = (out[0] if isinstance(out, tuple) else out).shape[1:]
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            macs[where[module]] += out.numel() * module.weight[0].numel()
        if module is cell:
            rows["last block"] += len(out)

    with evaluating(model), torch.no_grad(), nn.modules.module.register_module_forward_hook(note):
        model(images)
    columns = {"stage": list(stages), "output": ["×".join(map(str, shapes[stage])) for stage in stages]}
    columns["parameters"] = [sum(map(count_parameters, parts)) for parts in stages.values()]
    columns["macs"] = [round(macs[stage] / rows[stage]) for stage in stages]
    return pd.DataFrame(columns).assign(evaluations=[rows[stage] / len(images) for stage in stages])


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
    s and b are means over the whole run; a series takes one product less than it has terms or steps. Refused with a
    ValueError is ``unrolled``, which differentiates every step.
    """
    rule = config.model.gradient
    if rule.method == "unrolled":
        raise ValueError(f"gradient method {rule.method!r} differentiates every step: count the steps")
    series = rule.steps - 1 if rule.method in ("neumann", "phantom") else 0
    steps = load_run(config).history.query("split == 'steps'").groupby("metric")["value"].mean()
    return float((steps["solver_steps"] + steps.get("backward_steps", series) + 3) / 3)
