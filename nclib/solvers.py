"""Solve z = f(z) for every row of a batch: plain iteration, Anderson, Broyden, and the evidence for
each answer.

``fixed_point`` is the loop, which all methods share. A method remembers past iterates and says
where f is evaluated next. A row that is done leaves the work, which halves the time of a typical
solve. Nothing here records gradients; ``nclib.deq`` attaches them to the answer.

A new method needs a class of options and a ``_Memory`` here, both in ``Solver``. For use in stored
runs its name goes into four more places: ``config.SolverConfig``, ``models.build_solver``,
``plots.METHOD_STYLE`` and ``papers/neural_collapse/solver_sweep.METHODS``.
"""

import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

EPSILON = 1e-8  # in the denominator of the residual
GROWTH = 1e6  # a row has diverged when ‖f(z) − z‖ is so many times its first ‖f(z) − z‖ + ‖f(z)‖
SMALLEST_PIVOT = 0.1  # updates that would bring Broyden's B closer to singular are damped


# --- The answer, and the evidence for it ----------------------------------------------------------


class Status(IntEnum):
    """Why a row stopped: residual ≤ tol, no calls of f left, or not finite or growing for ever.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> few = nc.FixedPointIteration(max_steps=5)
    >>> solution = nc.fixed_point(lambda z: 2 * z + 1, few, torch.zeros(1, 2))
    >>> nc.solvers.Status(int(solution.status[0])).name
    'MAX_STEPS'
    """

    CONVERGED = 0
    MAX_STEPS = 1
    DIVERGED = 2


@dataclass(frozen=True, eq=False)
class Solution:
    """Answers of a batch of B fixed-point problems, with the evidence for each row.

    Attributes
    ----------
    value : (B, *) the best iterate of each row, in the type and layout of z0; NaN where no
        evaluation was finite. With ``Unrolled`` it is the last iterate, better or not, since the
        gradient is that of the steps. A layer returns this very tensor: clone it before you change
        it in place
    residual : (B,) ‖f(z) − z‖₂ / (‖f(z)‖₂ + 1e-8) of the value that is returned; inf where no
        evaluation was finite
    converged : (B,) bool, residual ≤ tol
    status : (B,) integer codes of ``Status``
    steps : (B,) calls of f on the row, the one that measured its residual included
    num_evals : calls of f made in all, T
    trace : (T, B) residual of each iterate; once a row is done its last value is repeated. With
        ``Unrolled`` (1, B), that of the last
    num_failed : how many rows have not converged. A number of the CPU: to ask the tensors above
        waits for a GPU. None of ``Unrolled``, whose steps wait for nothing
    num_undefined : how many rows are NaN, of the CPU too

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
    num_failed: int | None = None
    num_undefined: int | None = None

    def summary(self) -> dict[str, float]:
        """Plain numbers for a log.

        Returns
        -------
        dict
            rows; how many of them have the status converged, max_steps, diverged; worst_residual
            (NaN without rows); num_evals.
        """
        numbers = {"rows": len(self.residual)}
        for code in Status:
            numbers[code.name.lower()] = int((self.status == code).sum())
        numbers["worst_residual"] = float(self.residual.max()) if len(self.residual) else math.nan
        numbers["num_evals"] = self.num_evals
        return numbers

    def __repr__(self) -> str:
        return (
            "Solution({rows} rows: {converged} converged, {max_steps} max_steps, "
            "{diverged} diverged; worst residual {worst_residual:.1e}; {num_evals} evaluations)"
        ).format(**self.summary())


# --- The methods: their options -------------------------------------------------------------------


@dataclass(frozen=True)
class FixedPointIteration:
    """Plain or damped iteration, z ← damping·z + (1 − damping)·f(z).

    Converges where f contracts.

    Parameters
    ----------
    tol : relative residual at which a row is done; the residual is measured undamped
    max_steps : calls of f allowed per row
    damping : in [0, 1); 0 is the plain iteration

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> half = nc.FixedPointIteration(tol=1e-6, max_steps=100, damping=0.5)
    >>> solution = nc.fixed_point(lambda z: 1 - 0.9 * z, half, torch.zeros(1, 2))
    >>> round(float(solution.value[0, 0]), 4)
    0.5263
    """

    tol: float = 1e-4
    max_steps: int = 100
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_tol(self)
        check_count(self, "max_steps")
        check_damping(self)

    def start(self, z: Tensor) -> "_PlainMemory":
        return _PlainMemory(self, z)


@dataclass(frozen=True)
class Anderson:
    """Anderson acceleration of type II: the combination of the last values whose residuals cancel
    best.

    With r = f(z) − z and the differences ΔR, ΔF of the last ``history`` residuals and values,
    γ = argmin ‖r − ΔR γ‖² + ridge·Σ_j ‖Δr_j‖² γ_j²,  z ← (f(z) − ΔF γ) − damping·(r − ΔR γ).

    A row whose residual grew goes on with its newest difference alone: older ones mislead there.
    Source: Walker & Ni 2011, SIAM J. Numer. Anal. 49(4), in the unconstrained form of their eq.
    2.2.

    Parameters
    ----------
    tol, max_steps, damping : as in ``FixedPointIteration``
    history : differences kept, in 2·(history + 1) states
    ridge : relative to the diagonal of the Gram matrix ΔRᵀΔR, so the scale of the problem does not
        matter; in float32 never below that type's precision, which is all the Gram matrix holds.
        Its small system is solved in float64

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> solution = nc.fixed_point(torch.cos, nc.Anderson(tol=1e-6), torch.zeros(2, 3))
    >>> bool(solution.converged.all())
    True
    """

    tol: float = 1e-4
    max_steps: int = 50
    history: int = 5
    ridge: float = 1e-8
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_tol(self)
        check_count(self, "max_steps")
        check_count(self, "history")
        check_damping(self)
        if not (_is_real(self.ridge) and self.ridge > 0):
            raise ValueError(
                f"Anderson(ridge={self.ridge!r}): ridge must be a finite number above 0"
            )

    def start(self, z: Tensor) -> "_AndersonMemory":
        return _AndersonMemory(self, z)


@dataclass(frozen=True)
class Broyden:
    """Broyden's "good" method on r(z) = f(z) − z from the Jacobian −I, with limited memory and full
    steps.

    s = −B⁻¹r, z ← z + s, and B⁻¹ changes by rank one so that it maps the change of r to s. Since
    every step is a full one, the steps alone carry the inverse: B⁻¹ = −Π_j (I + θ_j s_{j+1} s_jᵀ /
    ‖s_j‖²). θ_j is 1 unless the update would make B nearly singular.

    Source: Kelley 1995, Iterative Methods for Linear and Nonlinear Equations, §7.3; θ_j from Powell
    1970.

    Parameters
    ----------
    tol, max_steps : as in ``FixedPointIteration``
    history : steps kept (history states of memory); when they are used up the method starts again
        from where it is, which was measured to need fewer evaluations than dropping the oldest

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> solution = nc.fixed_point(torch.cos, nc.Broyden(tol=1e-6), torch.zeros(2, 3))
    >>> bool(solution.converged.all())
    True
    """

    tol: float = 1e-4
    max_steps: int = 50
    history: int = 20

    def __post_init__(self) -> None:
        check_tol(self)
        check_count(self, "max_steps")
        check_count(self, "history")

    def start(self, z: Tensor) -> "_BroydenMemory":
        return _BroydenMemory(self, z)


Solver = FixedPointIteration | Anderson | Broyden


def paper_solver() -> Broyden:
    """The solver of Sun & Shi (2024), §5.1: Broyden, relative residual 1e-3, at most 20 steps.

    Returns
    -------
    Broyden

    Examples
    --------
    >>> import nclib as nc
    >>> nc.solvers.paper_solver().max_steps
    20
    """
    return Broyden(tol=1e-3, max_steps=20)


# --- The options, checked when a solver or a gradient rule is made --------------------------------


def is_whole(number: object) -> bool:
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def _is_real(number: object) -> bool:
    return (
        isinstance(number, numbers.Real) and not isinstance(number, bool) and math.isfinite(number)
    )


def check_tol(options: object) -> None:
    if not (_is_real(options.tol) and 0 < options.tol < 1):
        raise ValueError(
            f"{type(options).__name__}(tol={options.tol!r}): tol must be above 0 and below 1"
        )


def check_count(options: object, name: str) -> None:
    count = getattr(options, name)
    if not (is_whole(count) and count >= 1):
        raise ValueError(
            f"{type(options).__name__}({name}={count!r}): {name} must be an integer of at least 1"
        )


def check_damping(options: object) -> None:
    if not (_is_real(options.damping) and 0 <= options.damping < 1):
        name = type(options).__name__
        raise ValueError(f"{name}(damping={options.damping!r}): damping must be a number in [0, 1)")


def check_solver(solver: object) -> None:
    if not isinstance(solver, Solver):
        raise TypeError(
            f"solver={solver!r}: give FixedPointIteration(...), Anderson(...) or Broyden(...)"
        )


# --- The methods: what they remember --------------------------------------------------------------


class _Memory(Protocol):
    """What a method remembers of the rows that are worked on, and how it goes on from there.

    It is made by ``solver.start(z)`` with one place for each row of the batch. As rows leave, the
    first b places are in use. The loop calls ``take``, ``move`` where rows leave, and ``step``, in
    this order.
    """

    def take(self, z: Tensor, fz: Tensor) -> Tensor:
        """Remember the evaluation f(z), both (b, n), and return the residual r = f(z) − z."""

    def move(self, holes: Tensor, movers: Tensor) -> None:
        """Copy the rows at the places ``movers`` to the places ``holes``."""

    def step(self, z: Tensor) -> Tensor:
        """Where f is evaluated next, (b, n)."""


class _PlainMemory:
    """z ← z + (1 − damping)·r."""

    def __init__(self, solver: FixedPointIteration, z: Tensor) -> None:
        self.step_size = 1 - solver.damping
        self.r = torch.empty_like(z)

    def take(self, z: Tensor, fz: Tensor) -> Tensor:
        return torch.sub(fz, z, out=self.r[: len(z)])

    def move(self, holes: Tensor, movers: Tensor) -> None:
        self.r[holes] = self.r[movers]

    def step(self, z: Tensor) -> Tensor:
        return torch.add(z, self.r[: len(z)], alpha=self.step_size)


class _AndersonMemory:
    """The step of ``Anderson``, by the normal equations of its γ.

    With S = diag(1/‖Δr_j‖) and γ = S y the differences have norm 1, and y solves

        (S ΔRᵀΔR S + ridge·I) y = S ΔRᵀ r.

    S_jj = 0 makes y_j = 0 and so leaves the difference j out. Only scalar products enter: the Gram
    matrix ΔRᵀΔR, which gets one new row and column in a step, and ΔRᵀ r.

    The states lie in two rings, one of r and one of f. Their ``current`` place holds r and f of the
    last evaluation, the others the differences Δr_j and Δf_j. With the weights −γ_j at these and 1
    at the current place, f − ΔF γ is one product of the weights with a ring, and r − ΔR γ with the
    other.
    """

    def __init__(self, solver: Anderson, z: Tensor) -> None:
        batch, size = z.shape
        self.places = min(solver.history, solver.max_steps) + 1
        self.ridge = max(solver.ridge, torch.finfo(z.dtype).eps)
        self.damping = solver.damping
        self.rings = z.new_empty(2, batch, self.places, size)
        self.gram = z.new_zeros(batch, self.places, self.places, dtype=torch.float64)
        self.inverse_norms = z.new_zeros(batch, self.places, dtype=torch.float64)  # diagonal of S
        self.count = 0  # steps made

    def take(self, z: Tensor, fz: Tensor) -> Tensor:
        r, f = self.rings[:, : len(z), self.count % self.places]
        f.copy_(fz)
        return torch.sub(fz, z, out=r)

    def move(self, holes: Tensor, movers: Tensor) -> None:
        for memory in (*self.rings, self.gram, self.inverse_norms):
            memory[holes] = memory[movers]

    def step(self, z: Tensor) -> Tensor:
        b = len(z)
        current = self.count % self.places
        newest = (self.count - 1) % self.places  # of the evaluation before, which turns into Δr, Δf
        self.count += 1
        filled = min(self.count, self.places)
        rings = self.rings[:, :b, :filled]
        r_ring, f_ring = rings
        if filled == 1:
            return torch.sub(f_ring[:, 0], r_ring[:, 0], alpha=self.damping)
        torch.sub(rings[:, :, current], rings[:, :, newest], out=rings[:, :, newest])

        # r·Δr_j and Δr_newest·Δr_j for all j, in one pass over the ring of r.
        low, high = sorted((current, newest))
        pair = r_ring[:, low : high + 1 : high - low]
        products = torch.bmm(pair, r_ring.mT).double()  # (b, 2, filled)
        if current > newest:
            products = products.flip(1)
        r_products, newest_products = products.unbind(1)
        r_newest = r_products[:, newest : newest + 1]  # r·Δr_newest
        newest_norm2 = newest_products[:, newest : newest + 1]
        gram = self.gram[:b, :filled, :filled]
        gram[:, newest] = newest_products
        gram[:, :, newest] = newest_products

        # ‖r‖² > ‖r − Δr_newest‖², that is ‖r‖ grew: older differences mislead.
        inverse_norms = self.inverse_norms[:b, :filled]
        inverse_norms.masked_fill_(2 * r_newest > newest_norm2, 0)
        inverse_norms[:, newest : newest + 1] = newest_norm2.rsqrt().nan_to_num_(posinf=0)
        inverse_norms[:, current] = 0  # no difference

        system = gram * (inverse_norms.unsqueeze(1) * inverse_norms.unsqueeze(2))
        system.diagonal(dim1=1, dim2=2).fill_(1 + self.ridge)
        y, _ = torch.linalg.solve_ex(system, (r_products * inverse_norms).unsqueeze(2))
        weights = y.squeeze(2).mul_(-inverse_norms)  # −γ
        weights[:, current] = 1
        weights = weights.to(z.dtype).unsqueeze(1)
        new = torch.bmm(weights, f_ring).squeeze(1)
        if self.damping:
            new = new - self.damping * torch.bmm(weights, r_ring).squeeze(1)
        return new


class _BroydenMemory:
    """The step of ``Broyden``, from the steps s_1, …, s_k and the residual r alone.

    −B⁻¹r is the product of factors I + θ_j s_{j+1} s_jᵀ/‖s_j‖², applied to r one after another.
    Before the factor j the vector is t_j, from t_1 = r on, and the factor adds a_j s_{j+1}:

        t_j = r + Σ_{i<j} a_i s_{i+1},   a_j = θ_j (s_j·t_j) / ‖s_j‖².

    Each a_j is linear in the products s_i·r with i ≤ j: a = L d, d_i = s_i·r. The last row of L
    follows from those above, since s_k·t_k = s_k·r + Σ_{i<k} (s_k·s_{i+1}) a_i:

        L_k = θ_k / ‖s_k‖² · (e_k + Σ_{i<k} (s_k·s_{i+1}) L_i).

    The factor k holds the new step itself. With p = s_k·t_k/‖s_k‖²,

        s_{k+1} = t_k + θ_k p s_{k+1},   so that s_{k+1} = t_k / (1 − θ_k p).

    θ_k = 1, unless |1 − p| is less than ``SMALLEST_PIVOT``; then it makes |1 − θ_k p| that.
    """

    def __init__(self, solver: Broyden, z: Tensor) -> None:
        batch, size = z.shape
        self.history = min(solver.history, solver.max_steps)
        # s_{j+1} is at place j; r is at place ``count``, which the next step takes after it.
        self.states = z.new_empty(batch, self.history, size)
        self.lower = z.new_zeros(batch, self.history, self.history, dtype=torch.float64)  # L
        self.count = 0  # steps kept

    def take(self, z: Tensor, fz: Tensor) -> Tensor:
        self.count %= self.history
        return torch.sub(fz, z, out=self.states[: len(z), self.count])

    def move(self, holes: Tensor, movers: Tensor) -> None:
        for memory in (self.states[:, : self.count + 1], self.lower):
            memory[holes] = memory[movers]

    def step(self, z: Tensor) -> Tensor:
        b = len(z)
        k = self.count
        self.count += 1
        if k == 0:
            return z + self.states[:b, 0]
        steps = self.states[:b, :k]  # s_1, …, s_k
        newest_and_r = self.states[:b, k - 1 : k + 1]  # s_k, r
        later_and_r = self.states[:b, 1 : k + 1]  # s_2, …, s_k, r
        rows_above = self.lower[:b, : k - 1, : k - 1]  # L_1, …, L_{k−1}
        last_row = self.lower[:b, k - 1, :k]  # L_k

        # s_k·s_i and r·s_i for i ≤ k, in one pass over the memory.
        products = torch.bmm(newest_and_r, steps.mT).double()
        newest_products, r_products = products.unbind(1)
        newest_norm2 = newest_products[:, -1:]
        a = torch.bmm(rows_above, r_products[:, :-1].unsqueeze(2)).squeeze(2)  # a_1, …, a_{k−1}
        newest_t = r_products[:, -1:] + (newest_products[:, 1:] * a).sum(1, keepdim=True)  # s_k·t_k
        p = newest_t / newest_norm2
        gap = 1 - p
        pivot = gap.abs().clamp_min_(SMALLEST_PIVOT).copysign_(gap)  # 1 − θ_k p
        theta = torch.where(pivot == gap, 1, (1 - pivot) / p)

        last_row[:, :-1] = torch.bmm(newest_products[:, 1:].unsqueeze(1), rows_above).squeeze(1)
        last_row[:, -1] = 1
        last_row *= theta / newest_norm2
        weights = torch.cat((a, torch.ones_like(p)), 1) / pivot
        new_step = torch.bmm(weights.to(z.dtype).unsqueeze(1), later_and_r).squeeze(1)
        self.states[:b, k] = new_step
        return z + new_step


# --- The loop -------------------------------------------------------------------------------------


@contextmanager
def fresh_weights() -> Iterator[None]:
    """Parametrised weights that are computed without a graph do not enter
    torch.nn.utils.parametrize.cached()."""
    outer = parametrize._cache
    if not torch.is_grad_enabled():
        parametrize._cache = {}
    try:
        yield
    finally:
        parametrize._cache = outer


@torch.no_grad()
@fresh_weights()
def fixed_point(
    f: Callable[..., Tensor],
    solver: Solver,
    z0: Tensor,
    args: Sequence[Tensor] = (),
    halve: bool = False,
) -> Solution:
    """Solve z = f(z, *args) for every row of a batch.

    A row is done when ‖f(z) − z‖₂ / (‖f(z)‖₂ + 1e-8) ≤ solver.tol, whatever the other rows do. A
    row that is not finite, or whose ‖f(z) − z‖₂ grows to 1e6 times the size of its first
    evaluation, is given up.

    Other rows change what is computed for a row by rounding alone, but rounding may change its
    number of steps, in float32 more often than in float64. On a map with contraction factor ρ two
    answers of a row then differ by at most 2 tol/(1 − ρ) times ‖f(z)‖.

    Parameters
    ----------
    f : maps (b, *) to (b, *) row by row; it must not change the tensors it is given
    solver : ``FixedPointIteration``, ``Anderson`` or ``Broyden``
    z0 : (B, *) start; never changed. In half precision f is evaluated at half-precision points,
        while the residual and everything the method remembers stay in float32
    args : tensors (B, *) that belong to the rows. With them, rows that are done leave the work;
        without them f may close over the batch, so it always sees all B rows and those that are
        done stand still
    halve : rows leave only when half of them are done, for maps that are prepared for each batch
        size, as compiled ones are

    Returns
    -------
    Solution
        Not converging is reported there and never raised.

    Raises
    ------
    TypeError
        For what is not a solver.
    ValueError
        Where shapes do not fit.

    Notes
    -----
    Rows leave and never come back. From one call of f to the next the working rows are therefore
    the same where their number is, and f may keep what it knows of them until it changes.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> solution = nc.fixed_point(lambda z: 0.5 * z + 1, nc.Anderson(tol=1e-6), torch.zeros(2, 3))
    >>> bool(torch.allclose(solution.value, torch.tensor(2.0), rtol=1e-4))
    True
    """
    check_solver(solver)
    if z0.dim() == 0 or not z0.is_floating_point() or 0 in z0.shape[1:]:
        raise ValueError(
            f"z0 must be rows (B, *) of floating-point numbers, not {z0.dtype} {tuple(z0.shape)}"
        )
    check_args(args, len(z0))
    flatten, restore = _layout(z0)
    dtype = torch.promote_types(z0.dtype, torch.float32)
    work = _Work(solver, flatten(z0).to(dtype, copy=True), args)
    evidence = _Evidence(len(z0), solver.tol)
    value = torch.empty_like(work.z)

    while work.live.any() and len(evidence.trace) < solver.max_steps:
        fz = evaluate(f, restore(work.z).to(z0.dtype), work.args, len(z0))
        fz = flatten(fz).to(dtype)
        r = work.memory.take(work.z, fz)
        norms = [torch.linalg.vector_norm(r, dim=1), torch.linalg.vector_norm(fz, dim=1)]
        # The one time in a step that the device is waited for:
        size, scale = torch.stack(norms).cpu().numpy().astype(float)
        better, done = evidence.add(size, scale, work.row, work.live)
        work.keep(better)

        leaving = work.live if len(evidence.trace) == solver.max_steps else done
        if leaving.any():
            rows = _to_device(work.row[leaving], z0)
            value[rows] = work.best_z[_to_device(np.flatnonzero(leaving), z0)]
            work.live = work.live & ~leaving
        left = np.count_nonzero(work.live)
        if left == 0:
            break
        if args:
            work.shrink(_next_size(len(work.z), left, halve))
        with _without_autocast(z0):
            new = work.memory.step(work.z)
        if left < len(work.z):  # rows that are done, and stay, stand still
            new = torch.where(_to_device(work.live, z0).unsqueeze(1), new, work.best_z)
        work.z = new.to(z0.dtype).to(dtype)

    hopeless = np.flatnonzero(np.isinf(evidence.best))
    if len(hopeless):
        value[_to_device(hopeless, z0)] = math.nan
    return evidence.solution(restore(value).to(z0.dtype), dtype)


class _Evidence:
    """What is known of each of the B rows. It is kept on the CPU."""

    def __init__(self, batch: int, tol: float) -> None:
        self.tol = tol
        self.limit = np.zeros(batch)  # of ‖f(z) − z‖
        self.best = np.full(batch, np.inf)  # residuals
        self.latest = np.full(batch, np.inf)
        self.status = np.full(batch, Status.MAX_STEPS.value)
        self.steps = np.zeros(batch, dtype=np.int64)
        self.trace: list[np.ndarray] = []

    def add(
        self, size: np.ndarray, scale: np.ndarray, row: np.ndarray, live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Judge the working rows by size = ‖f(z) − z‖ and scale = ‖f(z)‖: which are the best so
        far, and which are done."""
        with np.errstate(all="ignore"):
            finite = np.isfinite(size + scale)
            residual = np.where(finite, size / (scale + EPSILON), np.inf)
            if not self.trace:
                self.limit = GROWTH * (size + scale)
        self.latest[row[live]] = residual[live]
        self.trace.append(self.latest.copy())
        self.steps[row[live]] = len(self.trace)
        better = live & (residual < self.best[row])
        self.best[row[better]] = residual[better]
        solved = live & (residual <= self.tol)
        lost = live & ~solved & ~(finite & (size <= self.limit[row]))
        self.status[row[solved]] = Status.CONVERGED
        self.status[row[lost]] = Status.DIVERGED
        return better, solved | lost

    def solution(self, value: Tensor, dtype: torch.dtype) -> Solution:
        trace = np.array(self.trace).reshape(len(self.trace), len(self.best))
        return Solution(
            value=value,
            residual=_to_device(self.best, value).to(dtype),
            converged=_to_device(self.status == Status.CONVERGED, value),
            status=_to_device(self.status, value),
            steps=_to_device(self.steps, value),
            num_evals=len(self.trace),
            trace=_to_device(trace, value).to(dtype),
            num_failed=int((self.status != Status.CONVERGED).sum()),
            num_undefined=int(np.isinf(self.best).sum()),
        )


class _Work:
    """The rows that are still worked on."""

    def __init__(self, solver: Solver, z: Tensor, args: Sequence[Tensor]) -> None:
        self.z = z
        self.best_z = z
        self.memory: _Memory = solver.start(z)
        self.args = list(args)
        self.args_are_copies = False
        self.row = np.arange(len(z))  # which row of the batch is worked on at each place
        self.live = np.ones(len(z), dtype=bool)  # by place: not done yet

    def keep(self, better: np.ndarray) -> None:
        """Remember z where it is better than what was remembered."""
        if better[self.live].all():
            self.best_z = self.z
        elif better.any():
            self.best_z = torch.where(_to_device(better, self.z).unsqueeze(1), self.z, self.best_z)

    def shrink(self, size: int) -> None:
        """Keep ``size`` rows: live ones from behind take the places of rows that are done."""
        if size == len(self.z):
            return
        movers = np.flatnonzero(self.live[size:]) + size
        holes = np.flatnonzero(~self.live[:size])[: len(movers)]
        self.row[holes] = self.row[movers]
        self.live[holes] = self.live[movers]
        self.row = self.row[:size]
        self.live = self.live[:size]
        if not self.args_are_copies:
            self.args = [tensor.clone() for tensor in self.args]
            self.args_are_copies = True
        holes = _to_device(holes, self.z)
        movers = _to_device(movers, self.z)
        self.memory.move(holes, movers)
        tensors = [self.z, *self.args]
        if self.best_z is not self.z:
            tensors.append(self.best_z)
        for tensor in tensors:
            tensor[holes] = tensor[movers]
        self.z = self.z[:size]
        self.best_z = self.best_z[:size]
        self.args = [tensor[:size] for tensor in self.args]


def evaluate(f: Callable[..., Tensor], z: Tensor, args: Sequence[Tensor], batch: int) -> Tensor:
    """f at the working rows, of a batch of so many."""
    try:
        fz = f(z, *args)
        if not isinstance(fz, Tensor) or fz.shape != z.shape:
            returned = tuple(fz.shape) if isinstance(fz, Tensor) else type(fz).__name__
            raise ValueError(f"f maps {tuple(z.shape)} to {returned}; both shapes must be the same")
    except Exception as error:
        if len(z) < batch:
            error.add_note(
                f"f was given {len(z)} of {batch} rows, since rows that are solved leave. Give "
                "tensors that belong to the rows as arguments, a layer's x and args=(tensor,); "
                "close over those that all rows share."
            )
        raise
    return fz


def check_args(args: Sequence[Tensor], rows: int) -> None:
    if isinstance(args, Tensor):
        raise TypeError("args is one tensor; give a tuple of tensors, as in args=(tensor,)")
    for i, tensor in enumerate(args):
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise TypeError(f"args[{i}] is a {kind}; give tensors, as in args=(tensor,)")
        if tensor.dim() == 0 or len(tensor) != rows:
            raise ValueError(
                f"args[{i}] has shape {tuple(tensor.shape)}; its first axis must be the {rows} "
                "rows. A mask that all rows share belongs to the cell: "
                "register_buffer('mask', mask)"
            )


def _without_autocast(z: Tensor):
    """Scalar products of a method are not taken in half precision."""
    device = z.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _to_device(array: np.ndarray, like: Tensor) -> Tensor:
    tensor = torch.from_numpy(array)
    if like.is_cuda:  # from pinned memory, for which the CPU need not wait
        return tensor.pin_memory().to(like.device, non_blocking=True)
    return tensor.to(like.device)


def _next_size(size: int, live: int, halve: bool) -> int:
    """How many rows go on."""
    if not halve:
        return live
    while live <= size // 2:
        size //= 2
    return size


def flat_rows(t: Tensor) -> Tensor:
    """(B, *) as (B, n)."""
    return t.reshape(len(t), math.prod(t.shape[1:]))


def _layout(z0: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Views to rows and back, in memory order: images stored with the channels last are not
    rearranged."""
    shape = z0.shape[1:]
    if (
        z0.dim() == 4
        and not z0.is_contiguous()
        and z0.is_contiguous(memory_format=torch.channels_last)
    ):
        c, h, w = shape

        def flatten(images: Tensor) -> Tensor:
            return images.permute(0, 2, 3, 1).flatten(1)

        def restore(rows: Tensor) -> Tensor:
            return rows.view(-1, h, w, c).permute(0, 3, 1, 2)

        return flatten, restore
    return flat_rows, lambda rows: rows.view(-1, *shape)
