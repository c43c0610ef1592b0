"""The solver against the bare evaluations it makes, and against its peers: time, evaluations, memory, warm starts.

Beside the packages stands the Anderson of the looped language models of 2026 (`looped_anderson`).

    python benchmarks/bench_solver.py [--quick | --draws]

--draws: only the evaluations on other random maps of the same kinds; they are counted, so no idle machine is needed.

Times are ratios within one run. Evaluations are counted where the map is called, until the first point whose relative
residual, computed here, is at most the tolerance; all methods hold the same number of state vectors.
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
import scipy.optimize
import torch
from common import Figure, finish, peer, ratio, rounds, threads, want_peers
from torch import Tensor, nn

from nclib.deq import DEQ
from nclib.models import ResidualCell
from nclib.solvers import Anderson, Broyden, FixedPointIteration, Solver, fixed_point

SIZES = {"B=128 C=128": (128, 128), "B=32 C=512": (32, 512)}
VECTORS = 20  # states each method may remember when evaluations are compared, the current pair not counted
LIMIT = 250  # evaluations
DRAWS = range(2, 14)  # seeds of the maps, beside the 1 of the table


def cell_and_input(
    batch: int, channels: int, gain: float = 1.0, order: torch.memory_format = torch.contiguous_format
) -> tuple[nn.Module, Tensor]:
    """The paper's cell with PyTorch's initial weights, and an input as the encoder's ReLU leaves it."""
    torch.manual_seed(0)
    cell = ResidualCell(channels, 8).requires_grad_(False)
    nn.init.constant_(cell.norm2.weight, gain)
    x = torch.randn(batch, channels, 4, 4).relu()
    return cell.to(memory_format=order), x.to(memory_format=order)


# ---- time


def overhead(sizes: dict[str, tuple[int, int]], repeats: int) -> list[Figure]:
    """One whole solve with all its evidence, against the evaluations it makes, on the same numbers of rows; at the
    first size also in the memory order in which networks are trained."""
    torchdeq, figures = peer("torchdeq"), []
    plain, packed = torch.contiguous_format, torch.channels_last
    cases = [(case, size, plain) for case, size in sizes.items()]
    cases += [(f"{case} channels last", size, packed) for case, size in list(sizes.items())[:1]]
    for case, (batch, channels), order in cases:
        cell, x = cell_and_input(batch, channels, order=order)
        solves = {
            f"nclib {type(s).__name__}": _ours(s)
            for s in (m(1e-3, 20) for m in (FixedPointIteration, Anderson, Broyden))
        }
        if torchdeq and order is plain:
            solves |= {f"torchdeq {name}": _torchdeq(name, 20) for name in ("anderson", "broyden")}
        if order is plain:
            solves[LOOPED] = _looped(20)
        for name, solve in solves.items():
            seen: list[int] = []
            solve(lambda z, x: seen.append(len(z)) or cell(z, x), x)  # noqa: B023
            other = torch.randn_like(x)
            sizes_seen = tuple(seen)

            def bare(cell=cell, x=x, other=other, sizes_seen=sizes_seen):
                for rows in sizes_seen:
                    cell(other[:rows], x[:rows])

            whole, evaluations = rounds([lambda: solve(cell, x), bare], repeats)  # noqa: B023
            target = 1.2 if name.startswith("nclib") else None
            note = f"{len(seen)} calls, {sum(seen) / batch:.1f} evaluations a row"
            figures.append(
                Figure("overhead", f"{name} / bare evaluations", case, *ratio(whole, evaluations), target, note)
            )
    return figures


def to_tolerance(sizes: dict[str, tuple[int, int]], repeats: int) -> list[Figure]:
    """Time until every row has relative residual 1e-3, on cells where every method gets there."""
    torchdeq, figures = peer("torchdeq"), []
    if not torchdeq:
        return figures
    # As it comes it has room for a pair of states for each of max_iter steps; that alone is half of its time here.
    theirs, as_it_comes = f"torchdeq broyden, {VECTORS} pairs", "torchdeq broyden, 100 pairs as it comes"
    for case, (batch, channels) in sizes.items():
        cell, x = cell_and_input(batch, channels, gain=0.5)
        solves = {f"nclib {m.__name__}": _ours(m(1e-3, 100)) for m in (FixedPointIteration, Anderson, Broyden)}
        solves |= {f"torchdeq {name}": _torchdeq(name, 100) for name in ("fixed_point_iter", "anderson")}
        solves |= {theirs: _torchdeq("broyden", 100, LBFGS_thres=VECTORS), as_it_comes: _torchdeq("broyden", 100)}
        solves[LOOPED] = _looped(100)
        for name, solve in solves.items():
            z = solve(cell, x)
            worst = float(_residual(z, cell(z, x)).max())
            if worst > 1e-3:
                print(f"  {name} stopped at {worst:.1e} at {case}")
        times = dict(zip(solves, rounds([lambda s=s: s(cell, x) for s in solves.values()], repeats), strict=True))  # noqa: B023
        median = {name: sorted(t)[len(t) // 2] for name, t in times.items()}
        best = min((n for n in times if n.startswith("torchdeq")), key=median.get)
        mine = min((n for n in times if n.startswith("nclib")), key=median.get)
        note = ", ".join(f"{name} {1e3 * t:.0f} ms" for name, t in median.items())
        pairs = [
            ("nclib Broyden", theirs, 0.6),
            ("nclib Anderson", theirs, 0.6),
            (mine, best, 1.0),
            ("nclib Broyden", as_it_comes, None),
            ("nclib Anderson", LOOPED, None),
        ]
        for (a, b, target), label in zip(pairs, ("", "", "best of each: ", "", ""), strict=True):
            ratios = ratio(times[a], times[b])
            figures.append(Figure("time to 1e-3", f"{label}{a} / {b}", case, *ratios, target, note))
    return figures


def mixed_batch(repeats: int, batch: int = 64, channels: int = 128) -> list[Figure]:
    """Rows that need few steps beside rows that need many: one batch against the two halves apart."""
    cell, _ = cell_and_input(1, channels)
    hard, easy = torch.randn(batch, channels, 4, 4).relu(), 10 * torch.randn(batch, channels, 4, 4).relu()
    both, figures = torch.stack((hard, easy), 1).flatten(0, 1), []
    solves = {f"nclib {method.__name__}": _ours(method(1e-3, 60)) for method in (Anderson, Broyden)}
    solves[LOOPED] = _looped(60)
    for name, solve in solves.items():
        steps = []
        for x in (easy, hard):
            seen: list[int] = []
            solve(lambda z, x: seen.append(len(z)) or cell(z, x), x)  # noqa: B023
            steps.append(sum(seen) / batch)
        whole, first, second = rounds([lambda x=x: solve(cell, x) for x in (both, hard, easy)], repeats)  # noqa: B023
        apart = [a + b for a, b in zip(first, second, strict=True)]
        note, target = f"{steps[0]:.1f} and {steps[1]:.1f} evaluations a row", None if name == LOOPED else 1.1
        figures.append(
            Figure("mixed batch", f"{name}: together / apart", f"2 × {batch} rows", *ratio(whole, apart), target, note)
        )
    return figures


def compiled_cell(repeats: int, batch: int = 32, channels: int = 128) -> list[Figure]:
    """torch.compile of the cell: time, and how far the answer moves."""
    cell, x = cell_and_input(batch, channels, gain=0.5)
    compiled = torch.compile(cell)
    layers = [DEQ(c, Broyden(1e-3, 100)) for c in (cell, compiled)]
    try:
        with torch.no_grad():
            (z, _), (other, _) = (layer(x) for layer in layers)
            plain, fast = rounds([lambda layer=layer: layer(x) for layer in layers], repeats)
    except Exception as error:  # no compiler on this machine, or a platform torch does not compile for
        print(f"  left out: torch.compile does not work here ({type(error).__name__})")
        return []
    gap = float((z - other).norm() / z.norm())
    return [
        Figure(
            "options",
            "compiled cell / eager cell",
            f"B={batch} C={channels}",
            *ratio(fast, plain),
            None,
            f"answers differ by {gap:.0e}",
        )
    ]


# ---- evaluations


def problems(seed: int = 1) -> dict[str, tuple[Callable[[Tensor], Tensor], int]]:
    """Maps of one float64 row, with their size; each starts at zero."""
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    def linear(matrix: Tensor) -> tuple[Callable[[Tensor], Tensor], int]:
        b = random(1, len(matrix))
        return lambda z: z @ matrix.T + b, len(matrix)

    def symmetric(low: float, high: float, size: int = 50) -> Tensor:
        q = torch.linalg.qr(random(size, size))[0]
        return q @ torch.diag(torch.linspace(low, high, size, dtype=torch.float64)) @ q.T

    def turn(angle: float, rho: float) -> Tensor:
        c, s = rho * math.cos(angle), rho * math.sin(angle)
        return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)

    def tanh(rho: float, size: int = 40) -> tuple[Callable[[Tensor], Tensor], int]:
        w, x = random(size, size), 0.5 * random(1, size)
        w = rho * w / torch.linalg.matrix_norm(w, 2)
        return lambda z: torch.tanh(z @ w.T + x), size

    def convolution(gain: float) -> tuple[Callable[[Tensor], Tensor], int]:
        cell, x = ResidualCell(8, 2).double().requires_grad_(False), random(1, 8, 4, 4)
        for parameter in (cell.conv1.weight, cell.conv2.weight):
            parameter.copy_(random(*parameter.shape) / math.sqrt(72))
        nn.init.constant_(cell.norm2.weight, gain)
        return lambda z: cell(z.view(-1, 8, 4, 4), x).flatten(1), 128

    shift = torch.diag(torch.full((29,), 0.45, dtype=torch.float64), 1)
    return {
        "symmetric ρ=0.5": linear(symmetric(-0.5, 0.5)),
        "symmetric ρ=0.9": linear(symmetric(-0.9, 0.9)),
        "symmetric ρ=0.99": linear(symmetric(0.0, 0.99)),
        "symmetric ρ=±0.99": linear(symmetric(-0.99, 0.99)),
        "non-normal": linear(0.5 * torch.eye(30, dtype=torch.float64) + shift),
        "expansive [−1.5, 0.5]": linear(symmetric(-1.5, 0.5)),
        "rotation": linear(turn(math.pi / 2, 1.0)),
        "tanh ρ=0.9": tanh(0.9),
        "tanh ρ=3": tanh(3.0),
        "cos": (torch.cos, 3),
        "convolution cell, gain 0.5": convolution(0.5),
        "convolution cell, gain 1": convolution(1.0),
    }


def evaluations(
    solve: Callable[[Callable, int], object], f: Callable[[Tensor], Tensor], size: int, tol: float
) -> float:
    """Calls of f up to the first point with relative residual ≤ tol; inf where that takes more than LIMIT."""
    calls, reached = 0, math.inf

    def counted(z: Tensor) -> Tensor:
        nonlocal calls, reached
        calls += 1
        fz = f(z)
        if float(_residual(z, fz)) <= tol:
            reached = min(reached, calls)
        return z if reached < math.inf or calls > LIMIT else fz  # z itself is a fixed point: every solver stops there

    with warnings.catch_warnings(), np.errstate(all="ignore"), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")  # a peer that warns or breaks down has not got there
        solve(counted, size)
    return reached if reached <= LIMIT else math.inf


def counters(compiled: bool) -> dict[str, dict[str, Callable[[Callable, int], object]]]:
    """For each package its solvers, each as a function of the map and the number of features.

    compiled: with the packages that compile each problem, which takes a while.
    """
    m, far = VECTORS // 2, 2 * LIMIT

    def ours(solver: Solver) -> Callable:
        return lambda f, n: fixed_point(f, solver, torch.zeros(1, n, dtype=torch.float64))

    def from_scipy(method: Callable, **options: object) -> Callable:
        def solve(f: Callable, n: int) -> object:
            def r(z: np.ndarray) -> np.ndarray:
                z = torch.from_numpy(np.array(z)).unsqueeze(0)
                return (f(z) - z).squeeze(0).numpy()

            return method(r, np.zeros(n), f_tol=1e-300, maxiter=far, **options)

        return solve

    found = {
        "nclib": {"Anderson": ours(Anderson(1e-15, far, m)), "Broyden": ours(Broyden(1e-15, far, VECTORS))},
        "scipy": {
            f"{method.__name__}{' line search' if search else ''}": from_scipy(
                method, line_search=search, alpha=1.0, **options
            )
            for search in (None, "armijo")
            for method, options in ((scipy.optimize.anderson, {"M": m}), (scipy.optimize.broyden1, {"max_rank": m}))
        },
    }
    found["Attractor"] = {
        f"anderson, {pairs} pairs": lambda f, n, pairs=pairs: looped_anderson(
            f, torch.zeros(1, n, dtype=torch.float64), 1e-15, far, pairs
        )
        for pairs in (5, m)  # as it comes, and at the same memory
    }
    if peer("torchdeq"):
        found["torchdeq"] = {name: _counted_torchdeq(name) for name in ("fixed_point_iter", "anderson", "broyden")}
    for name, build in (("jaxopt", _jaxopt), ("optimistix", _optimistix)):
        if compiled and peer(name):
            found[name] = build(m)
    return found


def counts(quick: bool) -> tuple[list[Figure], pd.DataFrame]:
    """Evaluations to relative residual 1e-6 in float64, ours against the best solver of each peer."""
    packages, rows, figures = counters(compiled=not quick), [], []
    for name, (f, size) in list(problems().items())[: 3 if quick else None]:
        found = {
            (package, solver): evaluations(solve, f, size, 1e-6)
            for package, solvers in packages.items()
            for solver, solve in solvers.items()
        }
        rows += [
            {"problem": name, "package": package, "solver": solver, "evaluations": n}
            for (package, solver), n in found.items()
        ]
        ours, theirs, rival = best_of(found)
        value = ours / theirs if math.isfinite(theirs) else 0.0 if math.isfinite(ours) else math.inf
        target = 1.2 + 1 / theirs
        note = f"{ours:g} against {theirs:g} of {rival}"
        figures.append(
            Figure(
                "evaluations to 1e-6",
                "best of nclib / best of all peers",
                name,
                value,
                value,
                value,
                round(target, 3),
                note,
            )
        )
    return figures, pd.DataFrame(rows)


def best_of(found: dict[tuple[str, str], float]) -> tuple[float, float, str]:
    """The fewest evaluations of ours and of the peers, and which peer's."""
    ours = min(n for (package, _), n in found.items() if package == "nclib")
    rival = min((key for key in found if key[0] != "nclib"), key=found.get)
    return ours, found[rival], rival[0]


def other_draws() -> list[Figure]:
    """The evaluations over their limit, 1.2 × the best peer's (+1), on other maps of the same kinds: the worst of them,
    against the peers that do not compile each problem."""
    packages, missed, shares = counters(compiled=False), [], []
    for seed in DRAWS:
        for name, (f, size) in problems(seed).items():
            solvers = {(package, s): solve for package, group in packages.items() for s, solve in group.items()}
            ours, theirs, rival = best_of({key: evaluations(solve, f, size, 1e-6) for key, solve in solvers.items()})
            if math.isfinite(min(ours, theirs)):
                shares.append(ours / (1.2 * theirs + 1))
            if ours > 1.2 * theirs + 1:
                missed.append(f"{name} (draw {seed}): {ours:g} against {theirs:g} of {rival}")
    what, case = "the worst over 1.2 × the best peer's (+1)", f"{len(shares)} maps of {len(DRAWS)} other draws"
    note = f"{len(missed)} above: {'; '.join(missed)}"
    worst = max(shares)
    return [Figure("evaluations to 1e-6", what, case, worst, statistics.median(shares), worst, 1.0, note)]


# ---- memory and warm starts


def memory(batch: int = 32, channels: int = 64) -> list[Figure]:
    """Numbers saved for the implicit backward, in the forward and in the backward pass, against one recorded cell."""
    cell, x = cell_and_input(batch, channels, gain=0.5)
    cell.requires_grad_(True)
    x.requires_grad_(True)

    def saved(work: Callable[[], object]) -> int:
        own = {p.data_ptr() for p in cell.parameters()}
        kept: dict[int, int] = {}

        def pack(t: Tensor) -> Tensor:
            if t.data_ptr() not in own:
                kept[t.data_ptr()] = t.numel()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            alive = work()
        total = sum(kept.values())
        del alive
        return total

    one, figures = saved(lambda: cell(x, x)), []
    for steps in (5, 40):
        layer = DEQ(cell, Broyden(1e-12, steps), on_failure="ignore")
        kept = saved(lambda: layer(x))  # noqa: B023
        z, _ = layer(x)
        back = saved(lambda: z.sum().backward())  # noqa: B023
        value = (kept + back) / one
        figures.append(
            Figure(
                "memory",
                "kept for backward, an implicit step / one cell evaluation",
                f"{steps} solver steps",
                value,
                value,
                value,
                2.0,
            )
        )
    return figures


def warm_starts(repeats: int, batch: int = 128, channels: int = 64) -> list[Figure]:
    """Evaluations from the encoder's output, from zero, and from the equilibrium before a small step of the weights."""
    cell, x = cell_and_input(batch, channels, gain=0.5)
    figures = []
    for method in (FixedPointIteration, Anderson, Broyden):
        layer = DEQ(cell, method(1e-3, 100), on_failure="ignore")
        with torch.no_grad():
            before, _ = layer(x)
            kept = {name: p.clone() for name, p in cell.named_parameters()}
            for seed, parameter in enumerate((cell.conv1.weight, cell.conv2.weight)):
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                parameter += 0.01 * parameter.norm() / noise.norm() * noise
            answers = {name: layer(x, z0) for name, z0 in (("x", x), ("0", torch.zeros_like(x)), ("before", before))}
            exact, _ = DEQ(cell, Broyden(1e-6, 200))(x)
            cell.load_state_dict(kept)
        error = {name: float((z - exact).norm() / exact.norm()) for name, (z, _) in answers.items()}
        note = "relative error " + ", ".join(f"{value:.0e} from {name}" for name, value in error.items())
        evaluations_ = {name: float(s.steps.double().mean()) for name, (_, s) in answers.items()}
        for name, label in (("0", "zeros"), ("before", "the last equilibrium, weights moved by 1 %")):
            value = evaluations_[name] / evaluations_["x"]
            figures.append(
                Figure(
                    "options",
                    f"{method.__name__}: evaluations from {label} / from x",
                    f"B={batch} C={channels}",
                    value,
                    value,
                    value,
                    None,
                    note,
                )
            )
    return figures


# ---- the peers

LOOPED = "Attractor's anderson"


def looped_anderson(
    f: Callable[[Tensor], Tensor], z0: Tensor, tol: float = 3e-4, max_steps: int = 64, pairs: int = 5
) -> Tensor:
    """Anderson as looped language models use it in 2026, with the settings of their models.

    Written anew from what jacobfa/Attractor (MIT, commit fcf045f; arXiv 2605.12466) does: weights that add up to one
    minimise the residual of the last ``pairs`` points plus 1e-4 times their squares, whatever the scale; they are
    solved for in float32; no damping; all rows go on until the worst one has ‖f(z) − z‖ < tol ‖z‖, for 6 evaluations
    at least; f of the last point is the answer. tol and max_steps are those of its model of 140 million parameters. On
    the maps of ``problems`` it took as many evaluations as the original, with the same answers but for rounding.
    """
    z, points, values = z0, [], []
    for step in range(1, max_steps + 1):
        fz = f(z)
        points, values = [*points, z.flatten(1)][-pairs:], [*values, fz.flatten(1)][-pairs:]
        worst = float(((values[-1] - points[-1]).norm(dim=1) / points[-1].norm(dim=1).clamp_min(1e-9)).max())
        if step > 2 and ((step >= 6 and worst < tol) or not worst <= 1e4):
            break
        if step == 1:
            z = fz
            continue
        there = torch.stack(values, 1)
        residuals = there - torch.stack(points, 1)
        gram = residuals @ residuals.mT + 1e-4 * torch.eye(len(values), dtype=z.dtype, device=z.device)
        weights = torch.linalg.solve_ex(gram.float(), torch.ones_like(gram[..., :1], dtype=torch.float32))[0]
        weights = (weights / weights.sum(1, keepdim=True)).to(z.dtype)
        mixed = (weights * there).sum(1).view_as(z)
        z = torch.where(mixed.isfinite().all(), mixed, fz)
    return fz


def _residual(z: Tensor, fz: Tensor) -> Tensor:
    return (fz - z).flatten(1).norm(dim=1) / (fz.flatten(1).norm(dim=1) + 1e-8)


def _ours(solver: Solver) -> Callable:
    return lambda cell, x: fixed_point(cell, solver, x, (x,)).value


def _looped(limit: int) -> Callable:
    return lambda cell, x: looped_anderson(lambda z: cell(z, x), x, 1e-3, limit)


def _torchdeq(name: str, limit: int, **options: int) -> Callable:
    from torchdeq.solver import get_solver

    def solve(cell: Callable, x: Tensor) -> Tensor:
        with torch.no_grad():
            return get_solver(name)(lambda z: cell(z, x), x, max_iter=limit, tol=1e-3, stop_mode="rel", **options)[0]

    return solve


def _counted_torchdeq(name: str) -> Callable:
    from torchdeq.solver import get_solver

    options = {"anderson": {"m": VECTORS // 2}, "broyden": {"LBFGS_thres": VECTORS // 2}}.get(name, {})

    def solve(f: Callable, n: int) -> object:
        start = torch.zeros(1, n, dtype=torch.float64)
        return get_solver(name)(f, start, max_iter=LIMIT, tol=1e-15, stop_mode="rel", **options)

    return solve


def _on_the_host(f: Callable, n: int) -> Callable:
    """The torch map as a JAX function: called on the host, once for every evaluation."""
    import jax

    jax.config.update("jax_enable_x64", True)
    shape = jax.ShapeDtypeStruct((n,), "float64")
    return lambda z, *_: jax.pure_callback(
        lambda z: f(torch.from_numpy(np.array(z)).unsqueeze(0)).squeeze(0).numpy(), shape, z
    )


def _jaxopt(m: int) -> dict[str, Callable]:
    import jax.numpy as jnp
    import jaxopt

    def anderson(f: Callable, n: int) -> object:
        g = _on_the_host(f, n)
        solver = jaxopt.AndersonAcceleration(
            g, history_size=m, maxiter=LIMIT, tol=1e-15, ridge=1e-8, jit=False, implicit_diff=False
        )
        return solver.run(jnp.zeros(n))

    return {"AndersonAcceleration": anderson}


def _optimistix(m: int) -> dict[str, Callable]:
    import jax.numpy as jnp
    import optimistix

    def iteration(f: Callable, n: int) -> object:
        g = _on_the_host(f, n)
        return optimistix.fixed_point(
            g, optimistix.FixedPointIteration(1e-15, 1e-15), jnp.zeros(n), max_steps=LIMIT, throw=False
        )

    unmeasured = [name for name in dir(optimistix) if "anderson" in name.lower()]
    if unmeasured:
        print(f"  optimistix has {', '.join(unmeasured)} now, which this table lacks")
    return {"FixedPointIteration": iteration}


def main(quick: bool = False) -> pd.DataFrame:
    """Everything above; quick: tiny sizes and two rounds, nothing written."""
    if not quick:
        want_peers()
    started = time.perf_counter()
    threads()
    repeats = 2 if quick else 7
    sizes = {"B=4 C=16": (4, 16)} if quick else SIZES
    small = {"batch": 4, "channels": 16} if quick else {}
    with torch.no_grad():
        figures = overhead(sizes, repeats) + to_tolerance(sizes, repeats) + mixed_batch(repeats, **small)
    figures += [] if quick else compiled_cell(repeats)
    counted, table = counts(quick)
    counted += [] if quick else other_draws()
    figures += counted + memory(**small) + warm_starts(repeats, **small)
    wide = table.assign(solver=table.package + " " + table.solver).pivot(
        index="problem", columns="solver", values="evaluations"
    )
    return finish("solver", figures, quick, {"evaluations": wide.replace(math.inf, None).to_dict("index")}, started)


if __name__ == "__main__":
    if "--draws" in sys.argv[1:]:
        threads()
        print(*other_draws(), sep="\n")
    else:
        main("--quick" in sys.argv[1:])
