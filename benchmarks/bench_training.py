"""One training step of the equilibrium network, predicted from its evaluations and measured, beside the explicit one;
the gradient rules against one another; and what three options would save: two precisions, weights laid out once, a
start at the last epoch's equilibrium.

python benchmarks/bench_training.py [--quick]
"""

import copy
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from bench_solver import cell_and_input
from common import Figure, finish, ratio, rounds, threads
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from nclib import training
from nclib.config import DataConfig, GradientConfig, ModelConfig, RunConfig, SolverConfig, TrainConfig
from nclib.course import saved_bytes
from nclib.deq import DEQ, Gradient, Implicit, Neumann, Phantom, Unrolled
from nclib.models import Classifier, build_model
from nclib.solvers import Broyden, Solution, Solver, fixed_point

GRADIENTS = {"implicit": {"method": "implicit"}, "phantom": {"method": "phantom"}}
SOLVERS = {"Broyden": {"method": "broyden"}, "Anderson": {"method": "anderson"}}


def stepper(model: Classifier, images: torch.Tensor, labels: torch.Tensor):
    """One step of training, at learning rate zero: the same work at the same weights in every round."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    if hasattr(model.block, "on_failure"):
        model.block.on_failure = "ignore"

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(model(images).logits, labels).backward()
        optimiser.step()

    return step


def training_step(case: str, batch: int, width: int, size: int, repeats: int) -> list[Figure]:
    """Measured step against (1 + evaluations × cell cost / network cost) × the explicit step.

    The explicit arm is the same network with the same cell applied once. Evaluations are those beyond its one, a row on
    average: calls of the cell in the forward solve, and products with its Jacobian in the backward one, each at its own
    measured cost.
    """
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, size, size, generator=draw)
    labels = torch.arange(batch) % 10
    explicit = stepper(build_model(ModelConfig(kind="explicit_matched", width=width), 10, 3), images, labels)
    figures = []
    for solver, solver_options in SOLVERS.items():
        for gradient, options in GRADIENTS.items():
            config = ModelConfig(
                kind="deq", width=width, solver=SolverConfig(**solver_options), gradient=GradientConfig(**options)
            )
            model = build_model(config, 10, 3)
            with torch.no_grad():
                x = model.encoder(images).contiguous()  # as `Classifier.transform` hands it to the cell
            step, cell = stepper(model, images, labels), model.block.cell
            z, solution = model.block(x)
            forward_rows = float(solution.steps.double().mean())
            z.square().sum().backward()
            record = model.block.last_backward
            backward_rows = float(record.steps.double().mean()) if record is not None else 0.0
            at = z.detach().requires_grad_()
            fz = copy.deepcopy(cell)(at, x)  # a copy: the optimiser's step would spoil a graph on its weights

            def evaluate(cell=cell, at=at, x=x) -> None:
                with torch.no_grad():
                    cell(at, x)

            def product(fz=fz, at=at) -> None:
                torch.autograd.grad(fz, at, fz.detach(), retain_graph=True)

            times = rounds([explicit, step, evaluate, product], repeats)
            predicted = [a + forward_rows * f + backward_rows * b for a, _, f, b in zip(*times, strict=True)]
            whole, base, expected = (1e3 * statistics.median(t) for t in (times[1], times[0], predicted))
            note = (
                f"explicit {base:.0f} ms, predicted {expected:.0f} ms, measured {whole:.0f} ms; "
                f"{forward_rows:.1f} evaluations and {backward_rows:.1f} products a row"
            )
            figures.append(
                Figure(
                    "training",
                    f"DEQ step measured / predicted, {solver}, {gradient}",
                    case,
                    *ratio(times[1], predicted),
                    1.1,
                    note,
                )
            )
            print(f"  {solver}, {gradient}, {case}: {note}")
    return figures


def gradient_rules(case: str, batch: int, channels: int, repeats: int) -> list[Figure]:
    """A forward and backward pass of an equilibrium layer by each rule, against the implicit one: time, and the bytes
    that autograd keeps. The note says how far the gradient is from the exact one, in float64."""
    rules = {
        "implicit": Implicit(),
        "phantom, 1 step": Phantom(),
        "Neumann, 5 terms": Neumann(5),
        "unrolled, 20 steps": Unrolled(20),
    }
    cell, x = cell_and_input(batch, channels, gain=0.5)
    cell.requires_grad_(True)
    x.requires_grad_(True)

    def gradients(cell: nn.Module, x: torch.Tensor, solver: Solver, rule: Gradient) -> torch.Tensor:
        layer = DEQ(cell, solver, on_failure="ignore")
        found = torch.autograd.grad(layer(x, gradient=rule)[0].square().mean(), [*cell.parameters(), x])
        return torch.cat([grad.flatten() for grad in found])

    tight, wide = Broyden(1e-9, 300), x.detach().double().requires_grad_()
    exact = gradients(copy.deepcopy(cell).double(), wide, tight, Implicit())
    works = [lambda rule=rule: gradients(cell, x, Broyden(1e-3, 100), rule) for rule in rules.values()]
    off = [float((work().double() - exact).norm() / exact.norm()) for work in works]
    kept = [saved_bytes(work, apart_from=cell.parameters()) for work in works]
    times, figures = rounds(works, repeats), []
    for name, seconds, error, size in zip(rules, times, off, kept, strict=True):
        note = f"{1e3 * statistics.median(seconds):.0f} ms, {size / 2**20:.1f} MiB; gradient off by {error:.0e}"
        if name != "implicit":
            figures.append(Figure("gradients", f"time, {name} / implicit", case, *ratio(seconds, times[0]), None, note))
            figures.append(Figure("gradients", f"memory, {name} / implicit", case, *[size / kept[0]] * 3, None, note))
        print(f"  {name}, {case}: {note}")
    return figures


def _convolve(weight: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """3×3 with padding 1, by the operator that torch's own compiler uses for weights laid out beforehand."""
    return torch.ops.mkldnn._convolution_pointwise(z, weight, None, [1, 1], [1, 1], [1, 1], 1, "none", [], "")


def faster_solves(batch: int, width: int, epochs: int, repeats: int) -> list[Figure]:
    """Two ways to make the evaluations of a solve cheaper, against the solve as it is: bfloat16 until half of the rows
    are within its rounding, then float32; and weights laid out for the convolution once instead of in each evaluation.
    Both end at a float32 residual. The cell is trained on the digits, and sees them enlarged to 32×32."""
    data = DataConfig(imbalance="step", num_majority=3, ratio=10.0)
    train = TrainConfig(epochs=epochs, batch_size=64, lr=0.05, log_every=epochs)
    config = RunConfig(data=data, model=ModelConfig(kind="deq", width=width), train=train, seed=0)
    model = build_model(config.model, 10, 1)
    model.load_state_dict(training.train(config, device="cpu").weights)
    images = torch.from_numpy(load_digits().images[:batch, None]).float() / 8 - 1
    with torch.no_grad():
        x = model.eval().encoder(F.interpolate(images, scale_factor=4)).contiguous()
    layer, figures = model.block, []
    cell = layer.cell

    def solve(f) -> Callable[[], Solution]:
        return lambda: fixed_point(f, layer.solver, x, (x,))

    def two_precisions() -> Solution:
        rough = True

        def f(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            nonlocal rough
            if not rough:
                return cell(z, x)
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                value = cell(z, x).float()
            off, length = (torch.linalg.vector_norm(t.flatten(1), dim=1) for t in (value - z, value))
            rough = bool((off / length).median() > 5e-3)
            return value

        return solve(f)()

    laid_out = copy.deepcopy(cell)
    for conv in (laid_out.conv1, laid_out.conv2):
        weight = torch._C._nn.mkldnn_reorder_conv2d_weight(
            conv.weight.detach().to_mkldnn(), [1, 1], [1, 1], [1, 1], 1, list(x.shape)
        )
        conv.forward = partial(_convolve, weight)
    ways = {"bfloat16 until 5e-3, then float32": two_precisions, "weights laid out once": solve(laid_out)}
    for name, way in ways.items():
        with torch.no_grad():
            ours, theirs = rounds([way, solve(cell)], repeats)
            note = f"{way().steps.double().mean():.1f} and {solve(cell)().steps.double().mean():.1f} evaluations a row"
        what, case = f"solve, {name} / as it is", f"B={batch} width {width}, 4×4"
        figures.append(Figure("options", what, case, *ratio(ours, theirs), None, note))
    return figures


def main(quick: bool = False) -> pd.DataFrame:
    """All of the above; quick: a tiny network and two rounds, nothing written."""
    started = time.perf_counter()
    threads()
    if quick:
        figures = training_step("B=8 width 2, 8×8", 8, 2, 8, 2)
        figures += gradient_rules("B=4 C=16", 4, 16, 2) + faster_solves(8, 2, 1, 2)
    else:
        figures = training_step("B=64 width 16, 32×32", 64, 16, 32, 7)
        figures += training_step("B=16 width 64, 32×32", 16, 64, 32, 7)
        figures += gradient_rules("B=64 C=128", 64, 128, 7)
        figures += faster_solves(128, 16, 10, 21) + faster_solves(32, 64, 10, 11)
    device = (
        "none used: every figure here is of the CPU" if not torch.cuda.is_available() else torch.cuda.get_device_name()
    )
    return finish("training", figures, quick, {"gpu": device}, started)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
