"""Batched fixed-point solvers: three methods, one loop, and the evidence returned with the answer.

A problem is a map f whose value is shaped like its argument, row by row; ``fixed_point`` looks for z = f(z) in every
row separately. The methods are in ``nclib.methods``; what one remembers is allocated once per solve, in such a way that
rows which have converged leave the work. Nothing here records gradients: ``nclib.deq`` attaches those to the answer.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from nclib.methods import Anderson as Anderson
from nclib.methods import Broyden as Broyden
from nclib.methods import FixedPointIteration as FixedPointIteration
from nclib.methods import Memory as Memory
from nclib.methods import Solver, check_solver
from nclib.methods import paper_solver as paper_solver

Rows = Literal["leave", "halve", "stay"]
EPSILON = 1e-8  # in the denominator of the residual
GROWTH = 1e6  # a row has diverged when its ‖f(z)−z‖ is this many times the size of its first evaluation
# A row is solved because its state grew when its ‖f(z)‖ is GROWN times that at first, while its ‖f(z) − z‖ is no
# smaller than at first (KEPT of it, for rounding) and no less than LARGEST of the largest on the way.
GROWN, KEPT, LARGEST = 10, 0.95, 0.1
HALF = (torch.bfloat16, torch.float16)


class Status(IntEnum):
    """Why a row stopped: residual ≤ tol, no calls left, or non-finite or unbounded growth, also of ‖f(z)‖ alone while
    ‖f(z) − z‖ became no smaller.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> solution = nc.fixed_point(lambda z: 2 * z + 1, nc.FixedPointIteration(max_steps=5), torch.zeros(1, 2))
    >>> nc.Status(int(solution.status[0])).name
    'MAX_STEPS'
    """

    CONVERGED = 0
    MAX_STEPS = 1
    DIVERGED = 2


@dataclass(frozen=True, eq=False)
class Solution:
    """Answers of a batch of fixed-point problems, with the evidence for each row.

    Attributes
    ----------
    value : (B, *) best finite iterate of each row, in the type and layout of z0; NaN where no evaluation was finite.
        The layer returns this very tensor: clone it before you change it in place
    residual : (B,) ‖f(z) − z‖₂ / (‖f(z)‖₂ + 1e-8) of the value returned, undamped; inf where no evaluation was finite
    converged : (B,) bool, residual ≤ tol, and not because the state grew from z0, as `fixed_point` describes
    status : (B,) integer codes of ``Status``
    steps : (B,) calls of f on the row until it was decided, the one that measured its residual included
    num_evals : calls of f made, T
    trace : (T, B) residual of each iterate; once a row has left, its last value is repeated; inf where not finite
    part_residual : for a state of P tensors (B, P), the residual of each, of which ``residual`` is the largest; else
        None

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> solution = nc.fixed_point(lambda z: 0.5 * z + 1, nc.Anderson(tol=1e-6), torch.zeros(2, 3))
    >>> solution.value.shape, bool((solution.residual <= 1e-6).all())
    (torch.Size([2, 3]), True)
    """

    value: Tensor
    residual: Tensor
    converged: Tensor
    status: Tensor
    steps: Tensor
    num_evals: int
    trace: Tensor
    part_residual: Tensor | None = None

    def summary(self) -> dict[str, float]:
        """Plain numbers for a log: how many rows, how many of each ``Status``, the worst residual, the evaluations.

        Returns
        -------
        dict
            rows; how many of them have the status converged, max_steps (so many hit the limit), diverged;
            worst_residual (NaN without rows), num_evals.
        """
        found = {code.name.lower(): int((self.status == code).sum()) for code in Status}
        worst = float(self.residual.max()) if len(self.residual) else math.nan
        return {"rows": len(self.residual)} | found | {"worst_residual": worst, "num_evals": self.num_evals}

    def __repr__(self) -> str:
        rows, *found, worst, calls = self.summary().values()
        counted = ", ".join(f"{count} {code.name.lower()}" for count, code in zip(found, Status, strict=True))
        return f"Solution({rows} rows: {counted}; worst residual {worst:.1e}; {calls} evaluations)"


def fixed_point(
    f: Callable[..., Tensor], solver: Solver, z0: Tensor, args: Sequence[Tensor] = (), *, rows: Rows = "leave"
) -> Solution:
    """Solve z = f(z, *args) for every row of a batch.

    A row is done when ‖f(z) − z‖₂ / (‖f(z)‖₂ + 1e-8) ≤ solver.tol, whatever the other rows do. So states should be much
    larger than 1e-8; float32 norms overflow from 1e19 on. A row whose ‖f(z) − z‖₂ grows to 1e6 times the size of its
    first evaluation is given up. One that drifts away, as under z ↦ z + 1, meets the tolerance once ‖f(z)‖₂ is large
    enough; it has diverged, too, if that is ten times its first size while ‖f(z) − z‖₂ is no smaller than at first.

    Other rows change what is computed for a row by rounding alone, but rounding may change its number of steps, in
    float32 more often than in float64. On a map with contraction factor ρ two answers of a row then differ by at most
    2 tol/(1 − ρ) times ‖f(z)‖, since each is half as far from the one fixed point. Where f does not contract there may
    be several, and rounding may decide between them.

    Parameters
    ----------
    f : maps (b, *) to (b, *) row by row; it must not keep or change the tensors it is given
    solver : ``FixedPointIteration``, ``Anderson``, ``Broyden``, or one of your own, see ``nclib.solver.Solver``
    z0 : (B, *) start; never changed. In half precision f is evaluated at half-precision points, while the residual and
        everything the method remembers stay in float32
    args : tensors (B, *) that belong to the rows. With them, rows that are done leave the work; without them f may
        close over the batch, so it always sees all B rows and those that are done stand still
    rows : "leave" at once; "halve": the batch seen by f is B, B/2, B/4, …, for maps compiled per shape; "stay": f
        always sees all B rows in their order, so that it may close over tensors of the batch

    Returns
    -------
    Solution
        Not converging is reported there and never raised.

    Raises
    ------
    TypeError
        For what is not a solver.
    ValueError
        Where shapes do not fit, and where f changes what it is given.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> solution = nc.fixed_point(lambda z: 0.5 * z + 1, nc.Anderson(tol=1e-6), torch.zeros(2, 3))
    >>> bool(torch.allclose(solution.value, torch.tensor(2.0), rtol=1e-4))
    True
    """
    return solve(f, solver, z0, args, rows)[0]


class _Evidence:
    """What is known of each row of the batch. The host keeps it, and the device is waited for once a step."""

    def __init__(self, batch: int, parts: int, tol: float, rounding: float) -> None:
        self.tol, self.rounding, self.trace = tol, rounding, []
        self.first, self.limit = np.empty((2, parts, batch)), np.empty(batch)
        self.sizes, self.best_norms = [], np.full((2, parts, batch), [[[np.inf]], [[0.0]]])
        self.best, self.last = np.full(batch, np.inf), np.full(batch, np.inf)
        self.status, self.steps = np.full(batch, Status.MAX_STEPS.value), np.zeros(batch, dtype=np.int64)

    def add(self, norms: np.ndarray, place: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Judge the working rows by ‖f(z) − z‖ and ‖f(z)‖ of each part and row: which are better than before, and which
        are decided."""
        size, scale = norms
        with np.errstate(all="ignore"):
            finite = np.isfinite(whole := size + scale)
            residual = np.where(finite, size / (scale + EPSILON), np.inf).max(0)
            if not self.trace:  # of the whole batch, in its order
                self.first, self.limit = np.stack((size, whole)), GROWTH * whole.max(0)
            elif not self.first[1].all():  # a part at rest, until another moves it: that is its first evaluation then
                first = self.first[:, :, place]
                self.first[:, :, place] = np.where(first[1] == 0, (size, whole), first)
        self.sizes.append((place.copy(), size))
        rows = place[live]
        self.last[rows] = residual[live]
        self.trace.append(self.last.copy())
        self.steps[rows] = len(self.trace)
        better = live & (residual < self.best[place])
        rows = place[better]
        self.best[rows], self.best_norms[:, :, rows] = residual[better], norms[:, :, better]
        solved = live & (residual <= self.tol)
        lost = live & ~solved & ~(finite & (size <= self.limit[place])).all(0)
        self.status[place[solved]], self.status[place[lost]] = Status.CONVERGED, Status.DIVERGED
        return better, solved | lost

    def failed(self) -> tuple[int, int, bool]:
        """How many rows did not converge, those included that met the tolerance because their states grew, which have
        diverged; how many are NaN; and whether some left before others."""
        (first, whole), (best, scale) = self.first, self.best_norms
        with np.errstate(all="ignore"):
            grown, largest = scale > GROWN * whole, np.zeros_like(first)
            if grown.any():
                for place, size in self.sizes:
                    largest[:, place] = np.fmax(largest[:, place], size)
                step = best + 4 * self.rounding * scale  # which may hide as much
                grown &= (step > KEPT * first) & (step > LARGEST * largest)
                self.status[grown.any(0) & (self.status == Status.CONVERGED)] = Status.DIVERGED
        lost = int(np.count_nonzero(np.isinf(self.best)))
        return int(np.count_nonzero(self.status)), lost, bool((self.steps != len(self.trace)).any())

    def solution(self, value: Tensor, dtype: torch.dtype, parts: Sequence[int] | None) -> Solution:
        place, (best, scale) = partial(_to_device, like=value), self.best_norms
        with np.errstate(over="ignore"):
            by_part = best / (scale + EPSILON)
        return Solution(
            value=value,
            residual=place(self.best).to(dtype),
            converged=place(self.status == Status.CONVERGED),
            status=place(self.status),
            steps=place(self.steps),
            num_evals=len(self.trace),
            trace=place(np.array(self.trace).reshape(len(self.trace), len(self.best))).to(dtype),
            part_residual=None if parts is None else place(np.ascontiguousarray(by_part.T)).to(dtype),
        )


class _Work:
    """The rows that are still worked on, at their places."""

    def __init__(self, solver: Solver, z: Tensor, args: Sequence[Tensor]) -> None:
        self.z = self.best_z = z
        self.memory, self.args, self.owned = solver.start(z), args, False
        self.place = np.arange(len(z))  # the row of the batch that is held at each place
        self.live = np.ones(len(z), dtype=bool)  # by place: not decided yet

    def keep(self, better: np.ndarray) -> None:
        if better[self.live].all():
            self.best_z = self.z
        elif better.any():
            self.best_z = torch.where(_to_device(better, self.z).unsqueeze(1), self.z, self.best_z)

    def shrink(self, size: int) -> None:
        """Rows from behind ``size`` fill the holes before it; nothing else moves."""
        movers = np.flatnonzero(self.live[size:]) + size
        holes = np.flatnonzero(~self.live[:size])[: len(movers)]
        self.place[holes], self.live[holes] = self.place[movers], self.live[movers]
        self.place, self.live = self.place[:size], self.live[:size]
        if not self.owned:
            self.args, self.owned = [a.clone() for a in self.args], True
        holes, movers = (_to_device(where, self.z) for where in (holes, movers))
        self.memory.move(holes, movers)
        tensors = [self.z, *self.args, *(() if self.best_z is self.z else (self.best_z,))]
        for tensor in tensors:
            tensor[holes] = tensor[movers]
        self.z, self.best_z, *self.args = (tensor[:size] for tensor in (self.z, self.best_z, *self.args))


@contextmanager
def own_weights() -> Iterator[None]:
    """Parametrised weights computed in the block stay in it while torch records nothing: without a graph, they may not
    enter the cache of a surrounding torch.nn.utils.parametrize.cached()."""
    with ExitStack() as after:
        after.callback(setattr, parametrize, "_cache", parametrize._cache)
        if not torch.is_grad_enabled():
            parametrize._cache = {}
        yield


@torch.inference_mode(False)  # where tensors do not count their changes, so that those made in place go unseen
@torch.no_grad()
@own_weights()
def solve(
    f, solver, z0, args=(), rows="leave", parts=None, max_steps=None, at=()
) -> tuple[Solution, tuple[int, int, bool], list[Tensor]]:
    """``fixed_point`` with its own limit, for rows (n,) that hold ``parts`` of these lengths, each with a residual.

    Returns the solution, what `_Evidence.failed` says, which the host has without waiting for the device, and the
    states after each number of evaluations in ``at``.
    """
    check_solver("solver", solver)
    if z0.dim() == 0 or not z0.is_floating_point() or 0 in z0.shape[1:]:
        raise ValueError(f"z0 must be a batch of real floating-point rows (B, *), not {z0.dtype} {tuple(z0.shape)}")
    check_rows(len(z0), {f"args[{i}]": arg for i, arg in enumerate(args)})
    batch, max_steps, rows = len(z0), max_steps or solver.max_steps, rows if args else "stay"
    flatten, restore = _layout(z0)
    dtype, place = torch.promote_types(z0.dtype, torch.float32), partial(_to_device, like=z0)
    work = _Work(solver, flatten(z0).to(dtype, copy=True), args)
    value, states = torch.empty_like(work.z), {}
    sizes = [value.shape[1]] if parts is None else list(parts)
    seen = _Evidence(batch, len(sizes), solver.tol, torch.finfo(dtype).eps)
    mixed = torch.is_autocast_enabled(kind := z0.device.type)  # which would take scalar products in half precision
    exact = torch.autocast(kind, enabled=False) if mixed else nullcontext()
    left = batch  # rows not decided yet
    while left and len(seen.trace) < max_steps:
        fz = evaluate_cell(f, restore(work.z).to(z0.dtype), work.args, batch)
        fz = flatten(fz).to(dtype)
        pair = (work.memory.take(work.z, fz), fz)
        norms = [torch.linalg.vector_norm(t, dim=1) for both in pair for t in both.split_with_sizes(sizes, 1)]
        found = torch.stack(norms).cpu().numpy().astype(float)  # the one synchronisation of a step
        better, decided = seen.add(found.reshape(2, len(sizes), -1), work.place, work.live)
        work.keep(better)
        last = len(seen.trace) == max_steps
        gone = work.live if last else decided
        if gone.any():
            value[place(work.place[gone])] = work.best_z[place(np.flatnonzero(gone))]
            work.live = work.live & ~decided
            left = np.count_nonzero(work.live)
        if not left or (last and max_steps not in at):  # whose state is a step further
            break
        size = _working_rows(rows, len(work.z), left)
        if size < len(work.z):
            work.shrink(size)
        with exact:
            new = work.memory.step(work.z)
        if left < size:
            new = torch.where(place(work.live).unsqueeze(1), new, work.best_z)
        work.z = new.to(z0.dtype).to(dtype)
        if len(seen.trace) in at:
            rows_here, here = place(work.place[work.live]), place(np.flatnonzero(work.live))
            states[len(seen.trace)] = value.index_copy(0, rows_here, work.z[here])

    hopeless = np.flatnonzero(np.isinf(seen.best))
    if len(hopeless):
        for tensor in (value, *states.values()):
            tensor[place(hopeless)] = math.nan
    failed = seen.failed()
    solution = seen.solution(restore(value).to(z0.dtype), dtype, parts)
    return solution, failed, [restore(states.get(count, value)).to(z0.dtype) for count in at]


def _to_device(array: np.ndarray, like: Tensor) -> Tensor:
    tensor = torch.from_numpy(array)  # from pinned memory, for which the host need not wait
    return tensor.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else tensor.to(like.device)


def evaluate_cell(f: Callable[..., Tensor], z: Tensor, args: Sequence[Tensor], batch: int) -> Tensor:
    """f at the working rows. Maps that hold tensors of the whole batch fail only once rows have left."""
    before = _versions(z, args)
    try:
        fz = f(z, *args)
        if not isinstance(fz, Tensor) or fz.shape != z.shape:
            got = tuple(fz.shape) if isinstance(fz, Tensor) else type(fz).__name__
            raise ValueError(f"f maps {tuple(z.shape)} to {got}; it must return a tensor of the shape it is given")
        if _versions(z, args) != before:
            raise ValueError("f changes a tensor that it is given, such as by ReLU(inplace=True); leave inplace out")
    except Exception as error:
        if len(z) < batch:  # as the rows that are solved leave
            said = f"f was given {len(z)} of {batch} rows, as it may be at any time, in any order. Take what belongs "
            error.add_note(f"{said}to rows as arguments, a layer's x and args=(tensor,); close over what all share.")
        raise
    return fz


def _versions(z: Tensor, args: Sequence[Tensor]) -> list[int]:
    """Count of the changes made in place, of those tensors that have one."""
    return [t._version for t in (z, *args) if not t.is_inference()]


def _working_rows(rows: str, now: int, live: int) -> int:
    if rows == "leave":
        return live
    while rows == "halve" and live <= now // 2:
        now //= 2
    return now


def _layout(z0: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Views to rows and back, in memory order: images stored with the channels last are not rearranged."""
    shape = z0.shape[1:]
    if z0.dim() == 4 and not z0.is_contiguous() and z0.is_contiguous(memory_format=torch.channels_last):
        c, h, w = shape
        return lambda t: t.permute(0, 2, 3, 1).flatten(1), lambda t: t.view(-1, h, w, c).permute(0, 3, 1, 2)
    return lambda t: t.reshape(len(t), math.prod(shape)), lambda t: t.view(-1, *shape)


def check_rows(rows: int, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; give tensors, as in args=(tensor,)")
        if tensor.dim() == 0 or len(tensor) != rows:
            found = f"{name} has shape {tuple(tensor.shape)}; its first axis must be the {rows} rows"
            raise ValueError(f"{found}. A mask that all rows share belongs to the cell: register_buffer('mask', mask)")
