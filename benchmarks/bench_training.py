"""One training step of the DEQ, predicted from its evaluations and measured, and gradient rules.

The step stands beside that of the explicit network; the rules are compared in time, memory and
error.

    python benchmarks/bench_training.py [--quick]
"""

import copy
import statistics
import sys
import time
from collections.abc import Callable

import pandas as pd
import torch
from bench_solver import cell_and_input
from common import Figure, finish, ratio, rounds, set_threads
from torch import Tensor, nn
from torch.nn import functional as F

from nclib.config import GradientConfig, ModelConfig, SolverConfig
from nclib.course import saved_bytes
from nclib.deq import DEQ, Gradient, Implicit, Neumann, Phantom, Unrolled
from nclib.models import Classifier, build_model
from nclib.solvers import Broyden, Solver

RULES: dict[str, Gradient] = {
    "implicit": Implicit(),
    "phantom, 1 step": Phantom(),
    "Neumann, 5 terms": Neumann(5),
    "unrolled, 20 steps": Unrolled(20),
}


def stepper(model: Classifier, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """One step of training, at learning rate zero: the same work at the same weights each time."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    if hasattr(model.block, "on_failure"):
        model.block.on_failure = "ignore"

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(model(images).logits, labels).backward()
        optimiser.step()

    return step


def training_step(case: str, batch: int, width: int, size: int, repeats: int) -> list[Figure]:
    """Measured step against the explicit step plus evaluations at their own measured cost.

    The explicit network is the same with the same cell applied once. Evaluations are those beyond
    its one, a row on average: calls of the cell in the forward solve, and products with its
    Jacobian in the backward one.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, size, size, generator=generator)
    labels = torch.arange(batch) % 10
    explicit_model = build_model(ModelConfig(kind="explicit_matched", width=width), 10, 3)
    explicit = stepper(explicit_model, images, labels)
    figures = []
    for solver in ("Broyden", "Anderson"):
        for gradient in ("implicit", "phantom"):
            config = ModelConfig(
                kind="deq",
                width=width,
                solver=SolverConfig(method=solver.lower()),
                gradient=GradientConfig(method=gradient),
            )
            model = build_model(config, 10, 3)
            step = stepper(model, images, labels)
            evaluate, product, forward_rows, backward_rows = _parts_of_a_step(model, images)
            explicit_times, step_times, evaluate_times, product_times = rounds(
                [explicit, step, evaluate, product], repeats
            )
            predicted = []
            for base, one, other in zip(explicit_times, evaluate_times, product_times, strict=True):
                predicted.append(base + forward_rows * one + backward_rows * other)
            note = (
                f"explicit {1e3 * statistics.median(explicit_times):.0f} ms, "
                f"predicted {1e3 * statistics.median(predicted):.0f} ms, "
                f"measured {1e3 * statistics.median(step_times):.0f} ms; "
                f"{forward_rows:.1f} evaluations and {backward_rows:.1f} products a row"
            )
            print(f"  {solver}, {gradient}, {case}: {note}")
            what = f"DEQ step measured / predicted, {solver}, {gradient}"
            values = ratio(step_times, predicted)
            figures.append(Figure("training", what, case, *values, 1.1, note))
    return figures


def _parts_of_a_step(
    model: Classifier, images: Tensor
) -> tuple[Callable[[], object], Callable[[], object], float, float]:
    """One evaluation and one product with the Jacobian, and how many of each a step takes."""
    with torch.no_grad():
        x = model.encoder(images).contiguous()  # as `Classifier.transform` hands it to the cell
    cell = model.block.cell
    z, solution = model.block(x)
    forward_rows = float(solution.steps.double().mean())
    z.square().sum().backward()
    record = model.block.last_backward
    backward_rows = 0.0 if record is None else float(record.steps.double().mean())
    at = z.detach().requires_grad_()
    # a copy of the cell: the optimiser's step would spoil a graph on its weights
    fz = copy.deepcopy(cell)(at, x)

    def evaluate() -> Tensor:
        with torch.no_grad():
            return cell(at, x)

    def product() -> object:
        return torch.autograd.grad(fz, at, fz.detach(), retain_graph=True)

    return evaluate, product, forward_rows, backward_rows


def gradients(cell: nn.Module, x: Tensor, solver: Solver, rule: Gradient) -> Tensor:
    """The gradient of a mean square of the equilibrium, of all weights and x in a row."""
    layer = DEQ(cell, solver, on_failure="ignore")
    z, _ = layer(x, gradient=rule)
    parts = torch.autograd.grad(z.square().mean(), [*cell.parameters(), x])
    return torch.cat([part.flatten() for part in parts])


def gradient_rules(case: str, batch: int, channels: int, repeats: int) -> list[Figure]:
    """A forward and backward pass of an equilibrium layer by each rule, against the implicit one.

    Time, and the bytes that autograd keeps. The note says how far the gradient is from the exact
    one, in float64.
    """
    cell, x = cell_and_input(batch, channels, gain=0.5)
    cell.requires_grad_(True)
    x.requires_grad_(True)
    exact_cell = copy.deepcopy(cell).double()
    exact_x = x.detach().double().requires_grad_()
    exact = gradients(exact_cell, exact_x, Broyden(1e-9, 300), Implicit())

    works = []
    for rule in RULES.values():
        works.append(lambda rule=rule: gradients(cell, x, Broyden(1e-3, 100), rule))
    times = rounds(works, repeats)
    kept = [saved_bytes(work, apart_from=cell.parameters()) for work in works]
    figures = []
    for name, work, seconds, size in zip(RULES, works, times, kept, strict=True):
        error = float((work().double() - exact).norm() / exact.norm())
        milliseconds = 1e3 * statistics.median(seconds)
        note = f"{milliseconds:.0f} ms, {size / 2**20:.1f} MiB; gradient off by {error:.0e}"
        print(f"  {name}, {case}: {note}")
        if name == "implicit":
            continue
        what = f"time, {name} / implicit"
        figures.append(Figure("gradients", what, case, *ratio(seconds, times[0]), None, note))
        value = size / kept[0]
        what = f"memory, {name} / implicit"
        figures.append(Figure("gradients", what, case, value, value, value, None, note))
    return figures


def main(quick: bool = False) -> pd.DataFrame:
    """Both of the above; quick: a tiny network and two rounds, nothing written."""
    started = time.perf_counter()
    set_threads()
    if quick:
        figures = training_step("B=8 width 2, 8×8", 8, 2, 8, 2)
        figures += gradient_rules("B=4 C=16", 4, 16, 2)
    else:
        figures = training_step("B=64 width 16, 32×32", 64, 16, 32, 7)
        figures += training_step("B=16 width 64, 32×32", 16, 64, 32, 7)
        figures += gradient_rules("B=64 C=128", 64, 128, 7)
    return finish("training", figures, quick, {}, started)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
