"""The solver against the bare evaluations it makes, and against its peers.

Time, evaluations, memory and warm starts. Beside the packages stands the Anderson of the looped
language models of 2026 (`peers.looped_anderson`).

    python benchmarks/bench_solver.py [--quick]

Times are ratios within one run. Evaluations are counted where the map is called, until the first
point whose relative residual, computed here, is at most the tolerance; all methods hold the same
number of state vectors.
"""

import contextlib
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from common import Figure, finish, ratio, rounds, set_threads
from peers import (
    LIMIT,
    LOOPED,
    VECTORS,
    Counted,
    Timed,
    counted_solvers,
    looped_solver,
    ours,
    peer,
    torchdeq_solver,
    want_peers,
)
from torch import Tensor, nn

from nclib.deq import DEQ
from nclib.models import ResidualCell
from nclib.solvers import Anderson, Broyden, FixedPointIteration

METHODS = (FixedPointIteration, Anderson, Broyden)
SIZES = {"B=128 C=128": (128, 128), "B=32 C=512": (32, 512)}
REPEATS = 7
Map = Callable[[Tensor], Tensor]


def cell_and_input(
    batch: int,
    channels: int,
    gain: float = 1.0,
    order: torch.memory_format = torch.contiguous_format,
) -> tuple[nn.Module, Tensor]:
    """The paper's cell with PyTorch's initial weights, and an input as the encoder leaves it."""
    torch.manual_seed(0)
    cell = ResidualCell(channels, 8).requires_grad_(False)
    nn.init.constant_(cell.norm2.weight, gain)
    x = torch.randn(batch, channels, 4, 4).relu()
    return cell.to(memory_format=order), x.to(memory_format=order)


def rows_of_calls(solve: Timed, cell: nn.Module, x: Tensor) -> list[int]:
    """How many rows the cell is evaluated on, call by call."""
    sizes = []

    def counted(z: Tensor, x: Tensor) -> Tensor:
        sizes.append(len(z))
        return cell(z, x)

    solve(counted, x)
    return sizes


def residual_of(z: Tensor, fz: Tensor) -> Tensor:
    return (fz - z).flatten(1).norm(dim=1) / (fz.flatten(1).norm(dim=1) + 1e-8)


# --- time -----------------------------------------------------------------------------------------


def overhead(sizes: dict[str, tuple[int, int]], repeats: int) -> list[Figure]:
    """One whole solve with all its evidence, against the evaluations it makes on as many rows.

    At the first size also in the memory order in which networks are trained.
    """
    has_torchdeq = peer("torchdeq") is not None
    plain = torch.contiguous_format
    cases = [(case, size, plain) for case, size in sizes.items()]
    first = next(iter(sizes))
    cases.append((f"{first} channels last", sizes[first], torch.channels_last))
    figures = []
    for case, (batch, channels), order in cases:
        cell, x = cell_and_input(batch, channels, order=order)
        solves = {f"nclib {method.__name__}": ours(method(1e-3, 20)) for method in METHODS}
        if has_torchdeq and order is plain:
            solves["torchdeq anderson"] = torchdeq_solver("anderson", 20)
            solves["torchdeq broyden"] = torchdeq_solver("broyden", 20)
        if order is plain:
            solves[LOOPED] = looped_solver(20)
        for name, solve in solves.items():
            figures.append(_overhead_of(name, solve, case, cell, x, repeats))
    return figures


def _overhead_of(
    name: str, solve: Timed, case: str, cell: nn.Module, x: Tensor, repeats: int
) -> Figure:
    sizes = rows_of_calls(solve, cell, x)
    z = torch.randn_like(x)

    def evaluate() -> None:
        for rows in sizes:
            cell(z[:rows], x[:rows])

    whole, evaluations = rounds([lambda: solve(cell, x), evaluate], repeats)
    target = 1.2 if name.startswith("nclib") else None
    note = f"{len(sizes)} calls, {sum(sizes) / len(x):.1f} evaluations a row"
    what = f"{name} / bare evaluations"
    return Figure("overhead", what, case, *ratio(whole, evaluations), target, note)


def to_tolerance(sizes: dict[str, tuple[int, int]], repeats: int) -> list[Figure]:
    """Time until every row has relative residual 1e-3, on cells where every method gets there."""
    if not peer("torchdeq"):
        return []
    # As it comes, torchdeq's Broyden has room for a pair of states for each of max_iter steps; that
    # alone is half of its time here.
    same_memory = f"torchdeq broyden, {VECTORS} pairs"
    as_it_comes = "torchdeq broyden, 100 pairs as it comes"
    figures = []
    for case, (batch, channels) in sizes.items():
        cell, x = cell_and_input(batch, channels, gain=0.5)
        solves = {f"nclib {method.__name__}": ours(method(1e-3, 100)) for method in METHODS}
        for name in ("fixed_point_iter", "anderson"):
            solves[f"torchdeq {name}"] = torchdeq_solver(name, 100)
        solves[same_memory] = torchdeq_solver("broyden", 100, LBFGS_thres=VECTORS)
        solves[as_it_comes] = torchdeq_solver("broyden", 100)
        solves[LOOPED] = looped_solver(100)
        works = []
        for name, solve in solves.items():
            z = solve(cell, x)
            worst = float(residual_of(z, cell(z, x)).max())
            if worst > 1e-3:
                print(f"  {name} stopped at {worst:.1e} at {case}")
            works.append(lambda solve=solve, cell=cell, x=x: solve(cell, x))
        times = dict(zip(solves, rounds(works, repeats), strict=True))
        median = {name: statistics.median(seconds) for name, seconds in times.items()}
        note = ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in median.items())
        our_best = min((name for name in times if name.startswith("nclib")), key=median.get)
        their_best = min((name for name in times if name.startswith("torchdeq")), key=median.get)
        for prefix, one, other, target in (
            ("", "nclib Broyden", same_memory, 0.6),
            ("", "nclib Anderson", same_memory, 0.6),
            ("best of each: ", our_best, their_best, 1.0),
            ("", "nclib Broyden", as_it_comes, None),
            ("", "nclib Anderson", LOOPED, None),
        ):
            what = f"{prefix}{one} / {other}"
            values = ratio(times[one], times[other])
            figures.append(Figure("time to 1e-3", what, case, *values, target, note))
    return figures


def mixed_batch(repeats: int, batch: int = 64, channels: int = 128) -> list[Figure]:
    """Rows that need few steps beside rows that need many: one batch against the halves apart."""
    cell, _ = cell_and_input(1, channels)
    hard = torch.randn(batch, channels, 4, 4).relu()
    easy = 10 * torch.randn(batch, channels, 4, 4).relu()
    both = torch.stack((hard, easy), 1).flatten(0, 1)
    solves = {f"nclib {method.__name__}": ours(method(1e-3, 60)) for method in (Anderson, Broyden)}
    solves[LOOPED] = looped_solver(60)
    figures = []
    for name, solve in solves.items():
        easy_rows = sum(rows_of_calls(solve, cell, easy)) / batch
        hard_rows = sum(rows_of_calls(solve, cell, hard)) / batch
        works = [lambda x=x, solve=solve: solve(cell, x) for x in (both, hard, easy)]
        together, *apart = rounds(works, repeats)
        sums = [a + b for a, b in zip(*apart, strict=True)]
        target = None if name == LOOPED else 1.1
        note = f"{easy_rows:.1f} and {hard_rows:.1f} evaluations a row"
        what = f"{name}: together / apart"
        values = ratio(together, sums)
        figures.append(Figure("mixed batch", what, f"2 × {batch} rows", *values, target, note))
    return figures


# --- evaluations ----------------------------------------------------------------------------------


def problems(seed: int = 1) -> dict[str, tuple[Map, int]]:
    """Maps of one float64 row, with their size; each starts at zero."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def linear(matrix: Tensor) -> tuple[Map, int]:
        b = random(1, len(matrix))
        return lambda z: z @ matrix.T + b, len(matrix)

    def symmetric(low: float, high: float, size: int = 50) -> Tensor:
        q, _ = torch.linalg.qr(random(size, size))
        return q @ torch.diag(torch.linspace(low, high, size, dtype=torch.float64)) @ q.T

    def tanh(norm: float, size: int = 40) -> tuple[Map, int]:
        w = random(size, size)
        x = 0.5 * random(1, size)
        w = norm * w / torch.linalg.matrix_norm(w, 2)
        return lambda z: torch.tanh(z @ w.T + x), size

    def convolution(gain: float) -> tuple[Map, int]:
        cell = ResidualCell(8, 2).double().requires_grad_(False)
        x = random(1, 8, 4, 4)
        for parameter in (cell.conv1.weight, cell.conv2.weight):
            parameter.copy_(random(*parameter.shape) / math.sqrt(72))
        nn.init.constant_(cell.norm2.weight, gain)
        return lambda z: cell(z.view(-1, 8, 4, 4), x).flatten(1), 128

    shift = torch.diag(torch.full((29,), 0.45, dtype=torch.float64), 1)
    cosine = math.cos(math.pi / 2)
    quarter_turn = torch.tensor([[cosine, -1.0], [1.0, cosine]], dtype=torch.float64)
    return {
        "symmetric ρ=0.5": linear(symmetric(-0.5, 0.5)),
        "symmetric ρ=0.9": linear(symmetric(-0.9, 0.9)),
        "symmetric ρ=0.99": linear(symmetric(0.0, 0.99)),
        "symmetric ρ=±0.99": linear(symmetric(-0.99, 0.99)),
        "non-normal": linear(0.5 * torch.eye(30, dtype=torch.float64) + shift),
        "expansive [−1.5, 0.5]": linear(symmetric(-1.5, 0.5)),
        "rotation": linear(quarter_turn),
        "tanh ρ=0.9": tanh(0.9),
        "tanh ρ=3": tanh(3.0),
        "cos": (torch.cos, 3),
        "convolution cell, gain 0.5": convolution(0.5),
        "convolution cell, gain 1": convolution(1.0),
    }


def evaluations(solve: Counted, f: Map, size: int, tol: float) -> float:
    """Calls of f up to the first point with relative residual ≤ tol; inf for more than LIMIT."""
    calls = 0
    reached = math.inf

    def counted(z: Tensor) -> Tensor:
        nonlocal calls, reached
        calls += 1
        fz = f(z)
        if float(residual_of(z, fz)) <= tol:
            reached = min(reached, calls)
        if reached < math.inf or calls > LIMIT:
            return z  # a fixed point: every solver stops there
        return fz

    with warnings.catch_warnings(), np.errstate(all="ignore"), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")  # a peer that warns or breaks down has not got there
        solve(counted, size)
    return reached if reached <= LIMIT else math.inf


def counts(quick: bool) -> tuple[list[Figure], pd.DataFrame]:
    """Evaluations to relative residual 1e-6 in float64, ours against the best of all peers.

    Returns
    -------
    the ratios, and the evaluations with a row for each problem and a column for each solver
    """
    solvers = counted_solvers(compiled=not quick)
    maps = problems()
    names = list(maps)[:3] if quick else list(maps)
    figures = []
    table = {}
    for name in names:
        f, size = maps[name]
        found = {key: evaluations(solve, f, size, 1e-6) for key, solve in solvers.items()}
        table[name] = {f"{package} {solver}": n for (package, solver), n in found.items()}
        ours_ = min(n for (package, _), n in found.items() if package == "nclib")
        rival = min((key for key in found if key[0] != "nclib"), key=found.get)
        theirs = found[rival]
        value = _ratio_of_counts(ours_, theirs)
        target = round(1.2 + 1 / theirs, 3)
        note = f"{ours_:g} against {theirs:g} of {rival[0]}"
        what = "best of nclib / best of all peers"
        values = (value, value, value)
        figures.append(Figure("evaluations to 1e-6", what, name, *values, target, note))
    return figures, pd.DataFrame.from_dict(table, orient="index")


def _ratio_of_counts(one: float, other: float) -> float:
    """0 where the other did not get there, inf where this one did not."""
    if math.isfinite(other):
        return one / other
    return 0.0 if math.isfinite(one) else math.inf


# --- memory and warm starts -----------------------------------------------------------------------


def numbers_saved(work: Callable[[], object], apart_from: nn.Module) -> int:
    """Numbers that autograd keeps while a work runs, without parameters."""
    parameters = {p.data_ptr() for p in apart_from.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        alive = work()
    total = sum(kept.values())
    del alive
    return total


def memory(batch: int = 32, channels: int = 64) -> list[Figure]:
    """What is saved for the implicit backward, forward and backward, against one recorded cell."""
    cell, x = cell_and_input(batch, channels, gain=0.5)
    cell.requires_grad_(True)
    x.requires_grad_(True)
    one_evaluation = numbers_saved(lambda: cell(x, x), cell)
    figures = []
    for steps in (5, 40):
        layer = DEQ(cell, Broyden(1e-12, steps), on_failure="ignore")
        forward = numbers_saved(lambda layer=layer: layer(x), cell)
        z, _ = layer(x)
        backward = numbers_saved(lambda z=z: z.sum().backward(), cell)
        value = (forward + backward) / one_evaluation
        what = "kept for backward, an implicit step / one cell evaluation"
        case = f"{steps} solver steps"
        figures.append(Figure("memory", what, case, value, value, value, 2.0))
    return figures


def warm_starts(batch: int = 128, channels: int = 64) -> list[Figure]:
    """Evaluations from zero, and from the equilibrium before a small step of the weights.

    Against those from the encoder's output.
    """
    cell, x = cell_and_input(batch, channels, gain=0.5)
    kept = {name: parameter.clone() for name, parameter in cell.named_parameters()}
    figures = []
    for method in METHODS:
        layer = DEQ(cell, method(1e-3, 100), on_failure="ignore")
        with torch.no_grad():
            before, _ = layer(x)
            _move_weights(cell)
            answers = {
                "x": layer(x, x),
                "0": layer(x, torch.zeros_like(x)),
                "before": layer(x, before),
            }
            exact, _ = DEQ(cell, Broyden(1e-6, 200))(x)
            cell.load_state_dict(kept)
        errors = []
        steps = {}
        for name, (z, solution) in answers.items():
            error = float((z - exact).norm() / exact.norm())
            errors.append(f"{error:.0e} from {name}")
            steps[name] = float(solution.steps.double().mean())
        note = "relative error " + ", ".join(errors)
        labels = {"0": "zeros", "before": "the last equilibrium, weights moved by 1 %"}
        for name, label in labels.items():
            value = steps[name] / steps["x"]
            what = f"{method.__name__}: evaluations from {label} / from x"
            case = f"B={batch} C={channels}"
            figures.append(Figure("options", what, case, value, value, value, None, note))
    return figures


def _move_weights(cell: nn.Module) -> None:
    """A step of 1 % of each convolution's norm, in random directions."""
    for seed, parameter in enumerate((cell.conv1.weight, cell.conv2.weight)):
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(parameter.shape, generator=generator)
        parameter += 0.01 * parameter.norm() / noise.norm() * noise


def main(quick: bool = False) -> pd.DataFrame:
    """Everything above; quick: tiny sizes and two rounds, nothing written."""
    if not quick:
        want_peers()
    started = time.perf_counter()
    set_threads()
    repeats = 2 if quick else REPEATS
    sizes = {"B=4 C=16": (4, 16)} if quick else SIZES
    small = {"batch": 4, "channels": 16} if quick else {}
    with torch.no_grad():
        figures = overhead(sizes, repeats)
        figures += to_tolerance(sizes, repeats)
        figures += mixed_batch(repeats, **small)
    counted, table = counts(quick)
    figures += counted
    figures += memory(**small)
    figures += warm_starts(**small)
    facts = {"evaluations": table.replace(math.inf, None).to_dict("index")}
    return finish("solver", figures, quick, facts, started)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
