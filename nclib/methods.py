"""The methods of a fixed-point solve, plain iteration, Anderson and Broyden: their numbers, and what they remember.

Each is a frozen value. Its ``start`` gives the memory of one solve, which decides where the loop of ``nclib.solver``
evaluates next. The numbers of gradient rules are checked here too.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, dataclass_transform, runtime_checkable

import torch
from torch import Tensor

SMALLEST_PIVOT = 0.1  # Broyden updates that would bring the inverse closer to singular than this are damped (Powell)


class Memory(Protocol):
    """What a method remembers during one solve; see ``Solver``.

    All tensors are matrices, one row for each row of the batch that is still worked on. There are ever fewer of these:
    of n states allocated for B rows, a method uses the first b.
    """

    def take(self, z: Tensor, fz: Tensor) -> Tensor:
        """Store what is needed of the evaluation fz = f(z), both (b, n), and return fz − z. The loop measures its norm
        and decides by it which rows are done, so return nothing else. Neither tensor may be kept or changed."""

    def step(self, z: Tensor) -> Tensor:
        """The next point (b, n), a tensor of its own, from the z of the last ``take`` and from what is stored."""

    def move(self, holes: Tensor, movers: Tensor) -> None:
        """Rows that are done leave: store at the places ``holes`` what is stored at ``movers``. Between ``take`` and
        ``step``; from then on only the first rows are in use."""


@runtime_checkable
class Solver(Protocol):
    """What ``fixed_point``, ``DEQ`` and ``Implicit`` take as a solver: numbers, and a memory for each solve.

    ``FixedPointIteration``, ``Anderson`` and ``Broyden`` are such values, and so is any object with these three
    attributes; nothing needs to be inherited. The loop evaluates f, measures residuals, keeps the best iterate of each
    row, and lets rows leave; a method only chooses where to evaluate next.

    Attributes
    ----------
    tol : relative residual at which a row is done
    max_steps : calls of f allowed per row

    Examples
    --------
    Aitken's Δ² method in the form of Irons and Tuck, row by row:

    >>> from dataclasses import dataclass
    >>> import torch
    >>> import nclib as nc
    >>> class Held:
    ...     def __init__(self, z):
    ...         self.r, self.last, self.weight = torch.empty_like(z), torch.zeros_like(z), torch.ones_like(z[:, :1])
    ...     def take(self, z, fz):
    ...         return torch.sub(fz, z, out=self.r[: len(z)])
    ...     def move(self, holes, movers):
    ...         for memory in (self.r, self.last, self.weight):
    ...             memory[holes] = memory[movers]
    ...     def step(self, z):
    ...         r, last, weight = (memory[: len(z)] for memory in (self.r, self.last, self.weight))
    ...         change = r - last
    ...         if last.any():
    ...             weight *= -(last * change).sum(1, keepdim=True) / change.square().sum(1, keepdim=True)
    ...         last.copy_(r)
    ...         return z + weight * r
    >>> @dataclass(frozen=True)
    ... class Aitken:
    ...     tol: float = 1e-4
    ...     max_steps: int = 50
    ...     def start(self, z):
    ...         return Held(z)
    >>> solution = nc.fixed_point(lambda z: 1 - 0.9 * z, Aitken(tol=1e-6), torch.zeros(2, 3))
    >>> solution.converged.tolist(), solution.num_evals
    ([True, True], 3)
    """

    @property
    def tol(self) -> float: ...

    @property
    def max_steps(self) -> int: ...

    def start(self, z: Tensor) -> Memory:
        """The memory of a solve that starts at z (B, n), in float32 or float64."""


def is_whole(number: object) -> bool:
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def _is_real(number: object) -> bool:
    return isinstance(number, numbers.Real) and not isinstance(number, bool) and math.isfinite(number)


_COUNT = (lambda number: is_whole(number) and number >= 1), "an integer of at least 1"
ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tol": ((lambda number: _is_real(number) and 0 < number < 1), "a number above 0 and below 1"),
    "ridge": ((lambda number: _is_real(number) and number > 0), "a finite number above 0"),
    **dict.fromkeys(("max_steps", "history", "steps", "terms"), _COUNT),
    "damping": ((lambda number: _is_real(number) and 0 <= number < 1), "a number in [0, 1)"),
    "beta": ((lambda number: _is_real(number) and 0 < number < 2 and number != 1), "in (0, 2) and not 1"),
}
"""What the numbers of solvers and gradient rules may be."""


def check_numbers(owner: object, names: Sequence[str]) -> None:
    for name in names:
        value, (fine, allowed) = getattr(owner, name), ALLOWED[name]
        if not fine(value):
            raise ValueError(f"{type(owner).__name__}({name}={value!r}): {name} must be {allowed}")


@dataclass_transform(frozen_default=True)
class Options:
    """The base of solvers and gradient rules: a frozen dataclass whose numbers are checked when it is made."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        left_out = {field.name for field in fields(self) if getattr(self, field.name) is field.default is None}
        check_numbers(self, [field.name for field in fields(self) if field.name in ALLOWED.keys() - left_out])


def check_solver(name: str, solver: object) -> None:
    if isinstance(solver, (FixedPointIteration, Anderson, Broyden)):
        return  # which was checked when it was made
    if isinstance(solver, type) or not isinstance(solver, Solver):
        raise TypeError(f"{name}={solver!r}: give an Anderson(...), Broyden(...) or another nclib.solver.Solver")
    check_numbers(solver, ("tol", "max_steps"))


class FixedPointIteration(Options):
    """Plain or damped iteration, z ← damping·z + (1 − damping)·f(z).

    Converges where f contracts.

    Parameters
    ----------
    tol : relative residual at which a row is done; damping loosens nothing, since the residual is measured undamped
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

    def start(self, z: Tensor) -> "_Picard":
        return _Picard(self, z)


class Anderson(Options):
    """Anderson acceleration of type II: the combination of the last values whose residuals cancel best.

    With r = f(z) − z and the differences ΔR, ΔF of the last ``history`` residuals and values,
    γ = argmin ‖r − ΔR γ‖² + ridge·Σ_j ‖Δr_j‖² γ_j²,  z ← (f(z) − ΔF γ) − damping·(r − ΔR γ).

    A row whose residual grew goes on with its newest difference alone. On maps that do not contract this decides
    nothing for certain: of 256 rows of ReLU and GroupNorm cells that the plain iteration solves, 6 are lost, and 247
    others are won.
    Source: Walker & Ni 2011, SIAM J. Numer. Anal. 49(4), in the unconstrained form of their eq. 2.2.

    Parameters
    ----------
    tol, max_steps, damping : as in ``FixedPointIteration``
    history : differences kept, in 2·(history + 1) states
    ridge : relative to the diagonal of the Gram matrix ΔRᵀΔR, so the scale of the problem does not matter; in float32
        never below that type's precision, which is all the Gram matrix holds. Its small system is solved in float64

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> solution = nc.fixed_point(lambda z: torch.cos(z), nc.Anderson(tol=1e-6, max_steps=20), torch.zeros(2, 3))
    >>> bool(solution.converged.all())
    True
    """

    tol: float = 1e-4
    max_steps: int = 50
    history: int = 5
    ridge: float = 1e-8
    damping: float = 0.0

    def start(self, z: Tensor) -> "_Differences":
        return _Differences(self, z)


class Broyden(Options):
    """Broyden's "good" method on r(z) = f(z) − z from the Jacobian −I, with limited memory and full steps.

    s = −B⁻¹r, z ← z + s, and B⁻¹ changes by rank one so that it maps the change of r to s. Since every step is a full
    one, the steps alone carry the inverse: B⁻¹ = −Π_j (I + θ_j s_{j+1} s_jᵀ / ‖s_j‖²). θ_j is 1 unless the update would
    make B nearly singular.

    Source: Kelley 1995, Iterative Methods for Linear and Nonlinear Equations, §7.3; θ_j from Powell 1970.

    Parameters
    ----------
    tol, max_steps : as in ``FixedPointIteration``
    history : steps kept (history states of memory); when they are used up the method starts again from where it is,
        which was measured to need fewer evaluations than dropping the oldest

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> solution = nc.fixed_point(lambda z: torch.cos(z), nc.Broyden(tol=1e-6, max_steps=20), torch.zeros(2, 3))
    >>> bool(solution.converged.all())
    True
    """

    tol: float = 1e-4
    max_steps: int = 50
    history: int = 20

    def start(self, z: Tensor) -> "_Steps":
        return _Steps(self, z)


def paper_solver() -> Broyden:
    """The solver of Sun & Shi (2024), §5.1: Broyden, relative residual 1e-3, at most 20 steps.

    Returns
    -------
    Broyden

    Examples
    --------
    >>> import nclib as nc
    >>> nc.solver.paper_solver().max_steps
    20
    """
    return Broyden(tol=1e-3, max_steps=20)


class _Picard:
    def __init__(self, solver: FixedPointIteration, z: Tensor) -> None:
        self.step_size = 1 - solver.damping
        self.r = torch.empty_like(z)

    def take(self, z: Tensor, fz: Tensor) -> Tensor:
        return torch.sub(fz, z, out=self.r[: len(z)])

    def move(self, holes: Tensor, movers: Tensor) -> None:
        self.r[holes] = self.r[movers]

    def step(self, z: Tensor) -> Tensor:
        return torch.add(z, self.r[: len(z)], alpha=self.step_size)


class _Differences:
    def __init__(self, solver: Anderson, z: Tensor) -> None:
        batch, size = z.shape
        self.places = min(solver.history, solver.max_steps) + 1
        self.ridge = max(solver.ridge, torch.finfo(z.dtype).eps)
        self.damping = solver.damping
        # Two rings that hold r and f at the current place, and at the others their differences, one to the next.
        self.rings = z.new_empty(2, batch, self.places, size)
        self.gram = z.new_zeros(batch, self.places, self.places, dtype=torch.float64)
        self.scale = z.new_zeros(batch, self.places, dtype=torch.float64)  # 1/‖Δr‖; 0 leaves a difference out
        self.count = 0  # steps made

    def take(self, z: Tensor, fz: Tensor) -> Tensor:
        r, f = self.rings[:, : len(z), self.count % self.places]
        f.copy_(fz)
        return torch.sub(fz, z, out=r)

    def move(self, holes: Tensor, movers: Tensor) -> None:
        for memory in (*self.rings, self.gram, self.scale):
            memory[holes] = memory[movers]

    def step(self, z: Tensor) -> Tensor:
        b, here, last = len(z), self.count % self.places, (self.count - 1) % self.places
        self.count += 1
        held = min(self.count, self.places)
        r, f = rings = self.rings[:, :b, :held]
        if held == 1:
            return torch.sub(f[:, 0], r[:, 0], alpha=self.damping)
        gram, scale = self.gram[:b, :held, :held], self.scale[:b, :held]
        torch.sub(rings[:, :, here], rings[:, :, last], out=rings[:, :, last])
        low, high = sorted((here, last))
        dots = torch.bmm(r[:, low : high + 1 : high - low], r.mT).double()  # (b, 2, held): one pass over the memory
        with_r, with_last = dots.unbind(1) if here < last else dots.flip(1).unbind(1)
        gram[:, last] = gram[:, :, last] = with_last
        norm2 = with_last[:, last : last + 1]
        scale.masked_fill_(2 * with_r[:, last : last + 1] > norm2, 0)  # where ‖r‖ grew, older differences mislead
        scale[:, last : last + 1] = norm2.rsqrt().nan_to_num_(posinf=0)
        scale[:, here] = 0
        system = gram * (scale.unsqueeze(1) * scale.unsqueeze(2))
        system.diagonal(dim1=1, dim2=2).fill_(1 + self.ridge)
        weights = torch.linalg.solve_ex(system, (with_r * scale).unsqueeze(2))[0].squeeze(2).mul_(-scale)
        weights[:, here] = 1
        weights = weights.to(z.dtype).unsqueeze(1)
        new = torch.bmm(weights, f).squeeze(1)
        return new - self.damping * torch.bmm(weights, r).squeeze(1) if self.damping else new


class _Steps:
    def __init__(self, solver: Broyden, z: Tensor) -> None:
        batch, size = z.shape
        self.history = min(solver.history, solver.max_steps)
        self.s = z.new_empty(batch, self.history, size)  # the steps, then r where the next one will be
        # Applied to r one after another, the factors give r + Σ_j a_j s_{j+1}, a_j = (θ_j / ‖s_j‖²) s_j·(what came
        # before): linear in the products s_i·r, with this lower triangular matrix.
        self.products = z.new_zeros(batch, self.history, self.history, dtype=torch.float64)
        self.count = 0  # steps held

    def take(self, z: Tensor, fz: Tensor) -> Tensor:
        self.count %= self.history
        return torch.sub(fz, z, out=self.s[: len(z), self.count])

    def move(self, holes: Tensor, movers: Tensor) -> None:
        for memory in (self.s[:, : self.count + 1], self.products):
            memory[holes] = memory[movers]

    def step(self, z: Tensor) -> Tensor:
        b, k = len(z), self.count
        self.count += 1
        if k == 0:
            return z + self.s[:b, 0]
        known, newest = self.products[:b, : k - 1, : k - 1], self.products[:b, k - 1, :k]
        dots = torch.bmm(self.s[:b, k - 1 : k + 1], self.s[:b, :k].mT).double()  # (b, 2, k): one pass over the memory
        with_last, with_r = dots.unbind(1)
        norm2 = with_last[:, -1:]
        a = torch.bmm(known, with_r[:, :-1].unsqueeze(2)).squeeze(2)
        # The last factor holds the new step itself: s = (r + Σ_j a_j s_{j+1}) / (1 − θ p).
        p = (with_r[:, -1:] + (with_last[:, 1:] * a).sum(1, keepdim=True)) / norm2
        gap = 1 - p
        pivot = gap.abs().clamp_min_(SMALLEST_PIVOT).copysign_(gap)
        theta = torch.where(pivot == gap, 1, (1 - pivot) / p)
        newest[:, :-1] = torch.bmm(with_last[:, 1:].unsqueeze(1), known).squeeze(1)
        newest[:, -1] = 1
        newest *= theta / norm2
        weights = torch.cat((a, torch.ones_like(p)), 1) / pivot
        new = torch.bmm(weights.to(z.dtype).unsqueeze(1), self.s[:b, 1 : k + 1]).squeeze(1)
        self.s[:b, k] = new
        return z + new
