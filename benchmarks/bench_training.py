"""One training step of the equilibrium network, predicted from its evaluations and measured, beside the explicit one;
the gradient rules against one another; and what a start at the last epoch's equilibrium saves.

python benchmarks/bench_training.py [--quick]
"""

import copy
import statistics
import sys
import time

import pandas as pd
import torch
from bench_solver import cell_and_input
from common import Figure, finish, ratio, rounds, threads
from torch import nn
from torch.nn import functional as F

from nclib import training
from nclib.config import DataConfig, GradientConfig, ModelConfig, RunConfig, SolverConfig, TrainConfig
from nclib.course import saved_bytes
from nclib.deq import DEQ, Gradient, Implicit, Neumann, Phantom, Reversible, Unrolled
from nclib.models import Classifier, build_model
from nclib.solver import Broyden, Solver

GRADIENTS = {"implicit": {"method": "implicit"}, "phantom": {"method": "phantom"}}
SOLVERS = {"Broyden": {"method": "broyden"}, "Anderson": {"method": "anderson"}}


def stepper(model: Classifier, images: torch.Tensor, labels: torch.Tensor):
    """One step of training, at learning rate zero: the same work at the same weights in every round."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    if hasattr(model.block, "warn_backward"):
        model.block.warn_backward = False

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
        "reversible, 10 steps": Reversible(10),  # with two evaluations each
    }
    cell, x = cell_and_input(batch, channels, gain=0.5)
    cell.requires_grad_(True)
    x.requires_grad_(True)

    def gradients(cell: nn.Module, x: torch.Tensor, solver: Solver, rule: Gradient) -> torch.Tensor:
        layer = DEQ(cell, solver, rule)
        layer.warn_backward = False
        found = torch.autograd.grad(layer(x)[0].square().mean(), [*cell.parameters(), x])
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


def warm_starts(epochs: int, seeds: int) -> list[Figure]:
    """Whole trainings on the digits that start each image's solve at its equilibrium of the epoch before, against those
    that start at the block's input: evaluations of the cell after the first epoch, a ratio for each seed."""
    images = DataConfig(imbalance="step", num_majority=3, ratio=10.0)
    evaluations: dict[str, list[float]] = {"previous": [], "x": []}
    accuracy: dict[str, list[float]] = {"previous": [], "x": []}
    for start in evaluations:
        for seed in range(seeds):
            train = TrainConfig(epochs=epochs, batch_size=64, lr=0.05, log_every=epochs)
            config = RunConfig(
                data=images, model=ModelConfig(kind="deq", width=16, start=start), train=train, seed=seed
            )
            history = training.train(config, device="cpu").history
            steps = history.query("split == 'steps' and metric == 'solver_steps' and epoch > 1")["value"]
            tested = history.query("split == 'test' and metric == 'accuracy_balanced'")["value"]
            evaluations[start].append(float(steps.mean()))
            accuracy[start].append(100 * float(tested.iloc[-1]))
    means = {start: (statistics.mean(evaluations[start]), statistics.mean(accuracy[start])) for start in evaluations}
    note = "; ".join(f"{start}: {calls:.2f} evaluations, test {right:.1f} %" for start, (calls, right) in means.items())
    what = "evaluations in training, from the last epoch's equilibrium / from x"
    return [
        Figure("options", what, f"digits, {epochs} epochs, {seeds} seeds", *ratio(*evaluations.values()), None, note)
    ]


def main(quick: bool = False) -> pd.DataFrame:
    """All of the above; quick: a tiny network and two rounds, nothing written."""
    started = time.perf_counter()
    threads()
    if quick:
        figures = training_step("B=8 width 2, 8×8", 8, 2, 8, 2)
        figures += gradient_rules("B=4 C=16", 4, 16, 2) + warm_starts(2, 1)
    else:
        figures = training_step("B=64 width 16, 32×32", 64, 16, 32, 7)
        figures += training_step("B=16 width 64, 32×32", 16, 64, 32, 7)
        figures += gradient_rules("B=64 C=128", 64, 128, 7) + warm_starts(10, 3)
    device = (
        "none used: every figure here is of the CPU" if not torch.cuda.is_available() else torch.cuda.get_device_name()
    )
    return finish("training", figures, quick, {"gpu": device}, started)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
