"""The solvers of other libraries, called in one way; those that are not installed are left out.

Two ways: ``solve(cell, x)`` from x to a relative residual of 1e-3, to be timed, and
``solve(f, size)`` from 0 without an end, to count the evaluations of f.
"""

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
import torch
from common import PEERS
from torch import Tensor, nn

from nclib.solvers import Anderson, Broyden, Solver, fixed_point

LOOPED = "Attractor's anderson"
VECTORS = 20
"""States each method may remember when evaluations are compared, the current pair not counted."""
LIMIT = 250
"""Evaluations."""
NEVER = 1e-15
"""A tolerance that is not reached; `bench_solver.evaluations` ends the solve."""

Timed = Callable[[nn.Module, Tensor], Tensor]
Counted = Callable[[Callable[[Tensor], Tensor], int], Any]


def peer(name: str) -> Any | None:
    """A peer's module; where it is not installed, None and a line that says how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        print(f"  left out: {name} is not installed; type: pip install -e '.[peers]'")
        return None


def want_peers() -> None:
    """Stop where a peer is missing: without it the tracked table would lack it."""
    missing = [name for name in PEERS if peer(name) is None]
    if missing:
        raise SystemExit(
            f"the tracked table would lack {', '.join(missing)}: install them, "
            "or give --quick, which writes nothing"
        )


# --- timed ----------------------------------------------------------------------------------------


def ours(solver: Solver) -> Timed:
    def solve(cell: nn.Module, x: Tensor) -> Tensor:
        return fixed_point(cell, solver, x, (x,)).value

    return solve


def torchdeq_solver(name: str, limit: int, **options: int) -> Timed:
    from torchdeq.solver import get_solver

    solver = get_solver(name)

    def solve(cell: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            z, *_ = solver(
                lambda z: cell(z, x), x, max_iter=limit, tol=1e-3, stop_mode="rel", **options
            )
        return z

    return solve


def looped_solver(limit: int) -> Timed:
    def solve(cell: nn.Module, x: Tensor) -> Tensor:
        return looped_anderson(lambda z: cell(z, x), x, 1e-3, limit)

    return solve


def looped_anderson(
    f: Callable[[Tensor], Tensor],
    z0: Tensor,
    tol: float = 3e-4,
    max_steps: int = 64,
    pairs: int = 5,
) -> Tensor:
    """Anderson as looped language models use it in 2026, with the settings of their models.

    Written anew from what jacobfa/Attractor (MIT, commit fcf045f; arXiv 2605.12466) does: weights
    that add up to one minimise the residual of the last ``pairs`` points plus 1e-4 times their
    squares, whatever the scale; they are solved for in float32; no damping; all rows go on until
    the worst one has ‖f(z) − z‖ < tol ‖z‖, for 6 evaluations at least; f of the last point is the
    answer. tol and max_steps are those of its model of 140 million parameters. On the maps of
    `bench_solver.problems` it took as many evaluations as the original, with the same answers but
    for rounding.
    """
    z = z0
    points = []
    values = []
    for step in range(1, max_steps + 1):
        fz = f(z)
        points = [*points, z.flatten(1)][-pairs:]
        values = [*values, fz.flatten(1)][-pairs:]
        size = points[-1].norm(dim=1).clamp_min(1e-9)
        worst = float(((values[-1] - points[-1]).norm(dim=1) / size).max())
        is_solved = step >= 6 and worst < tol
        runs_away = step > 2 and not worst <= 1e4
        if is_solved or runs_away:
            break
        if step == 1:
            z = fz
            continue
        there = torch.stack(values, 1)
        residuals = there - torch.stack(points, 1)
        ridge = 1e-4 * torch.eye(len(values), dtype=z.dtype, device=z.device)
        gram = residuals @ residuals.mT + ridge
        ones = torch.ones_like(gram[..., :1], dtype=torch.float32)
        weights, _ = torch.linalg.solve_ex(gram.float(), ones)
        weights = (weights / weights.sum(1, keepdim=True)).to(z.dtype)
        mixed = (weights * there).sum(1).view_as(z)
        z = torch.where(mixed.isfinite().all(), mixed, fz)
    return fz


# --- counted --------------------------------------------------------------------------------------


def counted_solvers(compiled: bool) -> dict[tuple[str, str], Counted]:
    """The solvers by package and name, at equal memory.

    Parameters
    ----------
    compiled : with the packages that compile each problem, which takes a while
    """
    pairs = VECTORS // 2
    far = 2 * LIMIT
    solvers: dict[tuple[str, str], Counted] = {
        ("nclib", "Anderson"): _counted_ours(Anderson(NEVER, far, pairs)),
        ("nclib", "Broyden"): _counted_ours(Broyden(NEVER, far, VECTORS)),
    }
    for search in (None, "armijo"):
        suffix = " line search" if search else ""
        anderson = functools.partial(scipy.optimize.anderson, M=pairs, line_search=search)
        broyden = functools.partial(scipy.optimize.broyden1, max_rank=pairs, line_search=search)
        solvers["scipy", f"anderson{suffix}"] = _counted_scipy(anderson)
        solvers["scipy", f"broyden1{suffix}"] = _counted_scipy(broyden)
    for number in (5, pairs):  # as it comes, and at the same memory
        solvers["Attractor", f"anderson, {number} pairs"] = _counted_looped(number)
    if peer("torchdeq"):
        solvers["torchdeq", "fixed_point_iter"] = _counted_torchdeq("fixed_point_iter")
        solvers["torchdeq", "anderson"] = _counted_torchdeq("anderson", m=pairs)
        solvers["torchdeq", "broyden"] = _counted_torchdeq("broyden", LBFGS_thres=pairs)
    if compiled and peer("jaxopt"):
        solvers["jaxopt", "AndersonAcceleration"] = _counted_jaxopt
    if compiled and peer("optimistix"):
        solvers["optimistix", "FixedPointIteration"] = _counted_optimistix
    return solvers


def _zeros(size: int) -> Tensor:
    return torch.zeros(1, size, dtype=torch.float64)


def _counted_ours(solver: Solver) -> Counted:
    def solve(f: Callable[[Tensor], Tensor], size: int) -> object:
        return fixed_point(f, solver, _zeros(size))

    return solve


def _counted_scipy(method: Callable) -> Counted:
    def solve(f: Callable[[Tensor], Tensor], size: int) -> object:
        def r(array: np.ndarray) -> np.ndarray:
            z = torch.from_numpy(np.array(array)).unsqueeze(0)
            return (f(z) - z).squeeze(0).numpy()

        return method(r, np.zeros(size), f_tol=1e-300, maxiter=2 * LIMIT, alpha=1.0)

    return solve


def _counted_looped(pairs: int) -> Counted:
    def solve(f: Callable[[Tensor], Tensor], size: int) -> object:
        return looped_anderson(f, _zeros(size), NEVER, 2 * LIMIT, pairs)

    return solve


def _counted_torchdeq(name: str, **options: int) -> Counted:
    from torchdeq.solver import get_solver

    solver = get_solver(name)

    def solve(f: Callable[[Tensor], Tensor], size: int) -> object:
        return solver(f, _zeros(size), max_iter=LIMIT, tol=NEVER, stop_mode="rel", **options)

    return solve


def _on_the_host(f: Callable[[Tensor], Tensor], size: int) -> Callable:
    """The torch map as a JAX function: called on the host, once for every evaluation."""
    import jax

    jax.config.update("jax_enable_x64", True)
    shape = jax.ShapeDtypeStruct((size,), "float64")

    def on_host(z: Any) -> np.ndarray:
        return f(torch.from_numpy(np.array(z)).unsqueeze(0)).squeeze(0).numpy()

    def g(z: Any, *_: Any) -> Any:
        return jax.pure_callback(on_host, shape, z)

    return g


def _counted_jaxopt(f: Callable[[Tensor], Tensor], size: int) -> object:
    import jax.numpy as jnp
    import jaxopt

    solver = jaxopt.AndersonAcceleration(
        _on_the_host(f, size),
        history_size=VECTORS // 2,
        maxiter=LIMIT,
        tol=NEVER,
        ridge=1e-8,
        jit=False,
        implicit_diff=False,
    )
    return solver.run(jnp.zeros(size))


def _counted_optimistix(f: Callable[[Tensor], Tensor], size: int) -> object:
    import jax.numpy as jnp
    import optimistix

    solver = optimistix.FixedPointIteration(NEVER, NEVER)
    return optimistix.fixed_point(
        _on_the_host(f, size), solver, jnp.zeros(size), max_steps=LIMIT, throw=False
    )
