"""The equilibrium layer: z* = cell(z*, x), found by any solver of ``nclib.solver``, differentiated by any rule below.

The cell, the solver and the gradient are three separate values. The forward solve records nothing; the backward pass
evaluates the cell once more at z*, so what is kept in between is z* and x, whatever the number of steps.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from nclib.solver import EPSILON, Solution, Solver, Status, _evaluate, _real, _whole, fixed_point, paper_solver

State = Tensor | tuple[Tensor, ...]
Cell = Callable[..., State]
REVERSAL = 1e-3  # a reversible backward pass that misses its start by more, relative to z*, warns
_OF_SHAPES = re.compile(r"shape|size|dim|broadcast|channels|unpack|returned a (tuple|list)", re.IGNORECASE)


class BackwardNotConverged(RuntimeWarning):
    """A backward pass missed its tolerance, so the gradient is approximate."""


def _at_least_one(rule: object, name: str) -> None:
    number = getattr(rule, name)
    if not _whole(number) or number < 1:
        raise ValueError(f"{type(rule).__name__}({name}={number!r}): {name} must be an integer of at least 1")


@dataclass(frozen=True)
class Implicit:
    """The exact gradient, uᵀ∂f with u = g + Jᵀu, where g is the cotangent of z* and J = ∂f/∂z at z*.

    solver: for u; None takes the forward one. Its tolerance is relative to each row, whatever the size of the loss.
    Can be differentiated again. Source: Bai, Kolter & Koltun 2019, theorem 1.
    """

    solver: Solver | None = None

    def __post_init__(self) -> None:
        if not (self.solver is None or isinstance(self.solver, Solver)):
            raise TypeError(f"Implicit(solver={self.solver!r}): give a FixedPointIteration, Anderson, Broyden or None")


@dataclass(frozen=True)
class Neumann:
    """A truncated inverse, u = Σ_{i<terms} (Jᵀ)ⁱ g; Neumann(1) takes (I − J)⁻¹ for the identity. terms ≥ 1."""

    terms: int

    def __post_init__(self) -> None:
        _at_least_one(self, "terms")


@dataclass(frozen=True)
class Phantom:
    """The gradient of ``steps`` damped steps from z*, u = (1−damping) Σ_{i<steps} (damping·I + (1−damping)·Jᵀ)ⁱ g.

    steps ≥ 1, damping in [0, 1). Phantom(1) is the Jacobian-free gradient of Fung et al. 2022. All steps share the one
    evaluation at z*. Source: Geng et al. 2021, eq. 9, with λ = 1 − damping.
    """

    steps: int = 1
    damping: float = 0.0

    def __post_init__(self) -> None:
        _at_least_one(self, "steps")
        if not (_real(self.damping) and 0 <= self.damping < 1):
            raise ValueError(f"Phantom(damping={self.damping!r}): damping must be in [0, 1)")


@dataclass(frozen=True)
class Unrolled:
    """Backpropagation through ``steps`` ≥ 1 plain applications of the cell, started at z0; the solver is not used."""

    steps: int

    def __post_init__(self) -> None:
        _at_least_one(self, "steps")


@dataclass(frozen=True)
class Reversible:
    """The exact gradient of a fixed number of steps, in memory that does not grow with it; the solver is not used.

    From y = z = z0, one step is

        y ← (1 − β)·y + β·f(z),   z ← (1 − β)·z + β·f(y),

    and the last z is the value. Since f(y) is taken at the new y, a step can be undone, z = (z' − β·f(y')) / (1 − β),
    then y alike, so that the backward pass computes the states again instead of keeping them. Fixed points of f are
    fixed points of the step, with y = z.

    Parameters
    ----------
    steps : at least 1, of two evaluations of the cell each; the backward pass makes as many again, with their products.
    beta : in (0, 2), not 1. The default of 0.5 is ours.

    Notes
    -----
    "Exact" is a statement without rounding. A step back multiplies rounding by 1/|1 − β| or more, 2 for β = 0.5 and 5
    for β = 0.8; where J has real eigenvalues in (−1, 1), by the square of that at most. Therefore y and z are float64
    whatever the cell's type is. The backward pass ends where the forward pass began, so it knows its error: where that
    exceeds 1e-3 of the row it warns ``BackwardNotConverged``. Take fewer steps or a smaller beta then. The cell runs
    without torch.compile in both passes, whose values must agree. The gradient cannot be differentiated again. z0 gets
    its gradient too.

    Source: McCallum, Arora & Foster 2025, "Reversible Deep Equilibrium Models", arXiv 2509.12917: the step, its
    inverse, the backward pass and β ∈ (0, 2). There the steps end at a tolerance and at a largest number, and start at
    zeros; here there are always ``steps`` of them, from the z0 of the layer. The measured error is not from there.

    Examples
    --------
    >>> import torch
    >>> from nclib import DEQ, Reversible
    >>> x = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    >>> z, solution = DEQ(lambda z, x: 0.2 * z + x, gradient=Reversible(steps=20))(x)
    >>> z.sum().backward()
    >>> round(z.item(), 3), round(x.grad.item(), 3), solution.num_evals
    (1.25, 1.25, 41)
    """

    steps: int
    beta: float = 0.5

    def __post_init__(self) -> None:
        _at_least_one(self, "steps")
        if not (_real(self.beta) and 0 < self.beta < 2 and self.beta != 1):
            raise ValueError(f"Reversible(beta={self.beta!r}): beta must be in (0, 2) and not 1")


Gradient = Implicit | Neumann | Phantom | Unrolled | Reversible


class DEQ(nn.Module):
    """A layer whose output solves z* = cell(z*, x, *args).

    Call it with x (B, *), whose first axis is the rows. Further arguments of the call: ``z0`` (B, *), the start,
    required where z and x differ in shape; ``args``, a tuple of tensors (B, *) of any type that belong to the rows;
    ``solver``, for this call alone. It returns z* and the ``Solution``. z* is its value to the bit, with the gradient
    attached while torch records gradients, in training and evaluation.

    A state of several tensors starts at a tuple, ``layer(x, z0=(z1, z2))``. The cell then takes and returns tuples, z*
    is one, and each part has its own residual (``solution.part_residual``): a row is solved when every part is.

    Parameters
    ----------
    cell : maps (z, x, *args) to a tensor like z, row by row; a module, or any callable whose leaves may require
        gradients. Rows that are solved leave the batch and others take their places, so it must not close over tensors
        of the batch: masks and further conditions go into ``args``. A tensor that all rows share, such as a causal
        mask, belongs to the cell: as a buffer (``register_buffer``), or closed over. A module may also be called by
        torch.func.functional_call; what it uses must stand among its parameters, its buffers and its arguments, or the
        backward pass raises RuntimeError. A hook on a leaf of a plain callable runs twice, within the layer and on the
        sum, and a leaf that the first row does not use gets no gradient: give such a cell as a module.
    solver : see ``nclib.solver``; left out, ``paper_solver()``: Broyden, relative residual 1e-3, at most 20
        evaluations.
    gradient : ``Implicit`` (the default), ``Neumann``, ``Phantom``, ``Unrolled``, ``Reversible``. The last two take a
        fixed number of steps and no solver, of which ``tol`` alone decides what counts as converged.
    z0 : start where none is given in the call, "x" (then one step is the explicit block cell(x, x)) or "zeros".
    allow_live : accept BatchNorm and dropout that are in training mode inside the cell. They make f another map at each
        call, and BatchNorm couples the rows, so that the equilibrium is not a function of the input. Modules are
        refused without it, in the backward pass too; those inside a plain callable, and a call of
        torch.nn.functional.dropout, cannot be seen.
    eval_solver : takes the place of ``solver`` in evaluation mode, ``layer.eval()``; None changes nothing. The mode
        decides which solver is used and nothing else: gradients are recorded whenever torch records them. A backward
        pass uses the solver of its forward pass, unless ``Implicit(solver=...)`` names another.
    return_solution : False returns z* alone, so that the layer stands in ``nn.Sequential``. The ``Solution`` is then at
        ``layer.last_solution`` until the next call.

    Notes
    -----
    Nothing is said of rows that are not solved: look at ``solution.converged``. Such a row has its best iterate, and
    its gradient is the same formula there, not that of an equilibrium.

    Compile the whole cell, torch.compile(cell) or cell.compile(): the solve runs it compiled, the backward pass eager.
    A cell with parts compiled on their own needs torch._functorch.config.donated_buffer = False before its first call.
    In torch.compile(network) the graph breaks at the layer, whose solve runs eager unless its cell is compiled;
    fullgraph=True and torch.export are refused, since values decide how many steps a solve takes. Torch runs a whole
    loop eager in which a graph breaks, nn.Sequential too: compile its other modules one by one there.

    torch.func (vmap, grad, jacrev, jvp) passes through ``Unrolled`` and is refused by the other rules, with what to use
    instead; ``row_jacobians`` gives the Jacobian of every row.

    Under autocast x and the state are float32; the smallest tol allowed is 5e-4 for bfloat16, which gentle cells reach.
    Convolution cells stop higher, from 5e-4 to 4e-3, so that ``paper_solver()`` solves few rows or none: compute such a
    cell in float32, as the networks of this library do.

    ``last_backward`` is the ``Solution`` of the last implicit backward solve. The first one that does not converge
    warns ``BackwardNotConverged`` and sets ``warn_backward`` to False; set it to True to be warned again.

    Examples
    --------
    z = z/2 + x has the solution z = 2x, whose derivative is 2.

    >>> import torch
    >>> from nclib import DEQ, Anderson
    >>> layer = DEQ(lambda z, x: 0.5 * z + x, Anderson(tol=1e-6))
    >>> x = torch.tensor([[1.0], [3.0]], dtype=torch.float64, requires_grad=True)
    >>> z, solution = layer(x)
    >>> z.round(decimals=3).tolist(), solution.converged.tolist()
    ([[2.0], [6.0]], [True, True])
    >>> z.sum().backward()
    >>> x.grad.round(decimals=3).tolist()
    [[2.0], [2.0]]
    >>> z, solution = layer(x, solver=Anderson(tol=1e-2))

    A state of two tensors, and a layer that returns z* alone:

    >>> cell = lambda z, x: (0.5 * z[1] + x, 0.5 * z[0])
    >>> (first, second), _ = DEQ(cell, Anderson(tol=1e-6))(x, z0=(torch.zeros_like(x), torch.zeros_like(x)))
    >>> first.round(decimals=3).tolist(), second.round(decimals=3).tolist()
    ([[1.333], [4.0]], [[0.667], [2.0]])
    >>> network = torch.nn.Sequential(torch.nn.Linear(4, 1), DEQ(layer.cell, return_solution=False))
    >>> network(torch.zeros(2, 4)).shape, network[1].last_solution.value.shape
    (torch.Size([2, 1]), torch.Size([2, 1]))
    """

    def __init__(
        self,
        cell: Cell,
        solver: Solver | None = None,
        gradient: Gradient | None = None,
        z0: Literal["x", "zeros"] = "x",
        allow_live: bool = False,
        eval_solver: Solver | None = None,
        return_solution: bool = True,
    ) -> None:
        super().__init__()
        self.cell = cell
        self.solver = paper_solver() if solver is None else solver
        self.gradient = Implicit() if gradient is None else gradient
        self.eval_solver = eval_solver
        _check_solvers(solver=self.solver, eval_solver=eval_solver)
        if not isinstance(self.gradient, Gradient):
            raise TypeError(
                f"gradient={gradient!r}: give an Implicit(), Neumann(terms), Phantom(), Unrolled(steps) or "
                "Reversible(steps)"
            )
        if z0 not in ("x", "zeros"):
            raise ValueError(f"z0={z0!r}: allowed are 'x' and 'zeros'; a start of your own goes into the call")
        self.z0 = z0
        self.allow_live = allow_live
        self.return_solution = return_solution
        self.last_solution: Solution | None = None
        self.last_backward: Solution | None = None
        self.warn_backward = True

    def extra_repr(self) -> str:
        evaluation = "" if self.eval_solver is None else f", eval_solver={self.eval_solver}"
        return f"solver={self.solver}, gradient={self.gradient}, z0={self.z0!r}{evaluation}"

    def forward(
        self, x: Tensor, z0: State | None = None, args: Sequence[Tensor] = (), solver: Solver | None = None
    ) -> tuple[State, Solution] | State:
        if torch.compiler.is_compiling():
            if torch.compiler.is_exporting():
                raise RuntimeError(
                    "torch.export cannot record an equilibrium layer, since the values decide how many steps its solve "
                    "takes. Export what stands before and after the layer, and its cell, each on its own."
                )
            return _call_eager(self, x, z0, args, solver)
        return self._call(x, z0, args, solver)

    def _call(
        self, x: Tensor, z0: State | None, args: Sequence[Tensor], solver: Solver | None
    ) -> tuple[State, Solution] | State:
        _check_solvers(solver=solver)
        if solver is None:
            solver = self.solver if self.training or self.eval_solver is None else self.eval_solver
        z, solution = self._solve(x, z0, args, solver)
        if self.return_solution:
            return z, solution
        self.last_solution = solution
        return z

    def _solve(self, x: Tensor, z0: State | None, args: Sequence[Tensor], solver: Solver) -> tuple[State, Solution]:
        _check_call(x, z0, args)
        if not isinstance(self.gradient, Unrolled):
            own = self.cell.parameters() if isinstance(self.cell, nn.Module) else ()
            _refuse_transforms(x, *(z0 if isinstance(z0, tuple) else (z0,)), *args, *own)
        self._refuse_live()
        start, parts, cell = self._start(x) if z0 is None else z0, None, self.cell
        if not isinstance(start, Tensor):
            parts = _Parts(tuple(tuple(part.shape[1:]) for part in start))
            start, cell = parts.pack(start), parts.wrap(cell)
        if x.dim() == 1 and len(x) > 1:
            self._check_single_numbers(x, start, args, parts)
        device = x.device.type
        if torch.is_autocast_enabled(device):  # or what f adds x to would be rounded to half precision each time
            x, start = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (x, start))
        try:
            if isinstance(self.gradient, Unrolled):
                return self._unroll(cell, parts, solver.tol, start, x, *args)
            if isinstance(self.gradient, Reversible):
                return self._reverse(parts, solver.tol, start, x, *args)
            # What is compiled or looked up for each shape, as kernels on a GPU are, should see few of them.
            rows = "halve" if x.is_cuda or _original(self.cell) is not self.cell else "leave"
            held = tuple(t.detach() for t in (x, *args))
            sizes = None if parts is None else parts.sizes
            solution = fixed_point(cell, solver, start.detach(), held, rows=rows, parts=sizes)
        except (RuntimeError, ValueError, TypeError) as error:
            _refuse_transforms(error=error)
            said = hasattr(error, "__notes__")  # why, by the solver
            if z0 is None and not said and _OF_SHAPES.search(str(error)):
                error.add_note(
                    f"The layer started at z0={self.z0!r}, shaped like x {tuple(x.shape)}. "
                    "If the state has another shape, give the start: layer(x, z0=torch.zeros(...)), or of a state of "
                    "several tensors layer(x, z0=(z1, z2))."
                )
            raise
        if not torch.is_grad_enabled():
            return _named(parts, solution.value, solution)
        amp = _Autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        f, leaves = _function(self.cell, parts, solution.value, x, *args)
        rule = _Rule(f, self.gradient, solver, amp, isinstance(self.cell, nn.Module), self, parts)
        z = _Equilibrium.apply(rule, 1 + len(args), solution.value, x, *args, *leaves)
        return _named(parts, z, solution)

    def _start(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise ValueError(f"x is {x.dtype}, so it cannot be where z starts; give the start: layer(x, z0=...)")
        return x if self.z0 == "x" else torch.zeros_like(x)

    def _check_single_numbers(
        self, x: Tensor, start: Tensor, args: Sequence[Tensor], parts: _Parts | None
    ) -> None:
        """Of 64 features without a batch axis each would be a row, and a cell that takes them together goes unseen."""
        cell = _original(self.cell)
        try:
            with torch.no_grad():
                _evaluate(parts.wrap(cell) if parts else cell, start[:1], [t[:1] for t in (x, *args)], 1)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"x has shape ({len(x)},): its first axis is the rows, so these are {len(x)} rows of one number, which "
                f"the cell cannot take. One row of {len(x)} features is layer(x.unsqueeze(0))"
            ) from error

    def _refuse_live(self) -> None:
        if self.allow_live or not isinstance(self.cell, nn.Module):
            return
        for name, module in self.cell.named_modules():
            if _live(module):
                raise ValueError(
                    f"cell.{name} is a live {type(module).__name__}: it changes the map from one evaluation to the "
                    "next, so there is no fixed point to find. Use GroupNorm, put the module outside the cell or in "
                    "eval mode until backward() is done, or pass allow_live=True."
                )

    def _unroll(
        self, cell: Cell, parts: _Parts | None, tol: float, z: Tensor, *rows: Tensor
    ) -> tuple[State, Solution]:
        by_part, steps = [], self.gradient.steps
        for _ in range(steps):
            last, z = z, _evaluate(cell, z, rows, len(z)).to(z.dtype)
            by_part.append(_residual(last.detach(), z.detach(), parts))
        with torch.no_grad():
            by_part.append(_residual(z, cell(z, *rows), parts))
        return _named(parts, z, _evidence(z.detach(), by_part, tol, parts))

    def _reverse(self, parts: _Parts | None, tol: float, start: Tensor, *rows: Tensor) -> tuple[State, Solution]:
        cell = _original(self.cell) if parts is None else parts.wrap(_original(self.cell))
        by_part, beta = [], self.gradient.beta

        def evaluate(point: Tensor) -> Tensor:
            point = point.to(start.dtype)
            value = _evaluate(cell, point, rows, len(point))
            by_part.append(_residual(point, value, parts))
            return value.to(wide)

        wide = torch.promote_types(start.dtype, torch.float64)
        with torch.no_grad():
            y = z = start.to(wide)
            for _ in range(self.gradient.steps):
                y = (1 - beta) * y + beta * evaluate(z)
                z = (1 - beta) * z + beta * evaluate(y)
            evaluate(z)
            value = z.to(start.dtype)
        solution = _evidence(value, by_part, tol, parts)
        if not torch.is_grad_enabled():
            return _named(parts, value, solution)
        device = start.device.type
        amp = _Autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        f, leaves = _function(self.cell, parts, value, *rows)
        rule = _Rule(f, self.gradient, self.solver, amp, isinstance(self.cell, nn.Module), self, parts)
        return _named(parts, _Reverse.apply(rule, len(rows), y, z, start, *rows, *leaves), solution)

    def _record_reversal(self, found: Sequence[Tensor], start: Tensor, last: Tensor) -> None:
        """By how much y and z miss the start, relative to the larger of it and the last z."""
        missed, *sizes = (
            torch.linalg.vector_norm(_by_row(t), dim=1) for t in (torch.cat([t - start for t in found]), start, last)
        )
        off = torch.maximum(*missed.chunk(2)) / (torch.maximum(*sizes) + EPSILON)
        wrong = ~(off <= REVERSAL)
        if self.warn_backward and bool(wrong.any()):
            self.warn_backward = False
            warnings.warn(
                f"reversible backward: {int(wrong.sum())} of {len(wrong)} rows missed their start by more than "
                f"{REVERSAL:g} of their size, the worst by {float(off.max()):.1e}: rounding has grown too large, and "
                "their gradient is wrong. Take fewer steps or a beta nearer to 0.",
                BackwardNotConverged,
                stacklevel=2,
            )

    def _record_backward(self, solution: Solution, tol: float) -> None:
        self.last_backward = solution
        if self.warn_backward and not bool(solution.converged.all()):
            self.warn_backward = False
            missed = int((~solution.converged).sum())
            warnings.warn(
                f"backward solve: {missed} of {len(solution.converged)} rows missed tol={tol:g}, worst relative "
                f"residual {float(solution.residual.max()):.1e}; the gradient of those rows is approximate. Allow more "
                "max_steps with Implicit(solver=...), make the cell more contractive, or choose Phantom().",
                BackwardNotConverged,
                stacklevel=2,
            )


def _evidence(z: Tensor, by_part: Sequence[Tensor], tol: float, parts: _Parts | None) -> Solution:
    """Of a fixed number of steps, all rows taking all of them."""
    trace = torch.stack([each.amax(1) for each in by_part])
    residual = trace[-1]
    converged = residual <= tol
    status = torch.where(converged, Status.CONVERGED.value, Status.MAX_STEPS.value)
    status = torch.where(residual.isfinite(), status, Status.DIVERGED.value)
    calls, shares = torch.full_like(status, len(trace)), None if parts is None else by_part[-1]
    return Solution(z, residual, converged, status, calls, len(trace), trace, shares)


# torch.compiler.disable, but for its import of Dynamo, which takes longer than that of the rest of torch.
_call_eager = torch._compile._disable_dynamo(DEQ._call)


# ---- the gradient: a node of the autograd graph whose backward is written in differentiable operations


@dataclass(frozen=True)
class _Autocast:
    device: str
    dtype: torch.dtype
    enabled: bool

    def __call__(self) -> torch.autocast:
        # Without the cache: weights that were cast while nothing was recorded would come back without a gradient.
        return torch.autocast(self.device, self.dtype, self.enabled, cache_enabled=False)


@dataclass(frozen=True)
class _Rule:
    f: Callable[..., Tensor]  # of (leaves, z, *rows)
    gradient: Gradient
    solver: Solver
    amp: _Autocast
    replaces: bool  # whether f computes with the leaves it is given
    layer: DEQ
    parts: _Parts | None


@dataclass
class _Gate:
    """Whether gradients pass from a point of linearisation to where the point came from."""

    open: bool = False


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor: Tensor, gate: _Gate) -> Tensor:
        ctx.gate = gate
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, cotangent: Tensor) -> tuple[Tensor | None, None]:
        return (cotangent if ctx.gate.open else None), None


class _Equilibrium(torch.autograd.Function):
    """z* = f(z*, *rows): the value is given, the derivative follows from the implicit function theorem.

    Inputs: the rule, how many tensors are ``rows`` (batch first, arguments of f), z*, the rows, the leaves.
    """

    @staticmethod
    def forward(ctx, rule: _Rule, num_rows: int, value: Tensor, *tensors: Tensor) -> Tensor:
        ctx.rule, ctx.num_rows = rule, num_rows
        ctx.set_materialize_grads(False)
        z = value.detach()
        ctx.save_for_backward(z, *tensors)
        return z

    @staticmethod
    def backward(ctx, cotangent: Tensor | None) -> tuple[Tensor | None, ...]:
        if cotangent is None:
            return (None,) * (3 + len(ctx.saved_tensors) - 1)
        if isinstance(ctx.rule.gradient, Implicit) and torch._C._functorch.is_legacy_batchedtensor(cotangent):
            raise RuntimeError(
                "a vectorised backward pass (vectorize=True, is_grads_batched=True) cannot pass through Implicit "
                "gradients; leave the option out, or use nclib.row_jacobians(layer, x), one pass for the Jacobian of "
                "every row."
            )
        rule, again = ctx.rule, torch.is_grad_enabled()
        z, *tensors = ctx.saved_tensors
        rows, leaves = tensors[: ctx.num_rows], tensors[ctx.num_rows :]
        gate = _Gate()

        # The partial derivatives of f at this point, even where z* and the rows are functions of one another, and with
        # no hook of theirs run. They stay differentiable in the point when this pass is recorded, through gates that
        # open when it is over.
        def point(t: Tensor) -> Tensor:
            return _Through.apply(t, gate) if again else t.detach().requires_grad_(t.requires_grad)

        rule.layer._refuse_live()
        with torch.enable_grad(), rule.amp():
            at = point(z) if z.requires_grad else z.detach().requires_grad_()
            here = [point(t) if t.requires_grad else t for t in rows]
            own = [point(t) for t in leaves] if rule.replaces else leaves
            fz = rule.f(own, at, *here)
        if rule.replaces:
            _refuse_others(fz, [at, *here, *own])
        if isinstance(rule.gradient, Implicit):
            u = _implicit(rule, fz, at, leaves, cotangent, [t.detach() for t in (z, *rows)])
            if again:
                node = replace(rule, f=_Adjoint(rule.f))
                u = _Equilibrium.apply(node, 2 + len(rows), u, cotangent, z, *rows, *leaves)
        else:
            u = _series(rule.gradient, fz, at, cotangent, again)
        inputs = [*here, *own]
        wanted = [t for t in inputs if t.requires_grad] if fz.requires_grad else []
        # None, not zero, for what f does not depend on: weight decay acts on parameters whose gradient is zero.
        # What a callable closes over may have a graph that others still need.
        options = {"allow_unused": True, "retain_graph": again or not rule.replaces, "create_graph": again}
        grads = iter(torch.autograd.grad(fz, wanted, u.to(fz.dtype), **options) if wanted else ())
        gate.open = True
        return None, None, None, *(next(grads, None) if t.requires_grad else None for t in inputs)


    @staticmethod
    def jvp(ctx, *tangents: Tensor | None) -> Tensor:
        raise RuntimeError(_REFUSED["Jvp"])


_REFUSED = {
    "Vmap": "torch.func.vmap cannot pass through an equilibrium layer, whose rows are solved together anyway; put the "
    "mapped axis into the rows, layer(x.flatten(0, 1)), or take gradient=Unrolled(steps).",
    "Grad": "torch.func.grad, vjp, jacrev and hessian cannot pass through an equilibrium layer; use backward() or "
    "torch.autograd.grad, and nclib.row_jacobians(layer, x) for Jacobians, or take gradient=Unrolled(steps).",
    "Jvp": "forward-mode derivatives (torch.func.jvp, jacfwd) cannot pass through an equilibrium layer; use "
    "torch.autograd.functional.jvp, and nclib.row_jacobians(layer, x) for Jacobians, or take gradient=Unrolled(steps).",
}


def _refuse_transforms(*tensors: Tensor | None, error: Exception | None = None) -> None:
    """Of a plain callable only the error of its solve tells that it closes over a tensor that is transformed."""
    innermost = torch._C._functorch.peek_interpreter_stack()
    if innermost is None:
        return
    wrapped = any(t is not None and torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)
    if wrapped or re.search("data pointer|Batching rule", str(error)):
        raise RuntimeError(_REFUSED.get(innermost.key().name, _REFUSED["Grad"])) from error


class _Reverse(torch.autograd.Function):
    """z after some reversible steps; the backward pass takes them back one by one.

    Inputs: the rule, how many tensors are ``rows``, the last y and z, the start, the rows, the leaves.
    """

    @staticmethod
    def forward(ctx, rule: _Rule, num_rows: int, y: Tensor, z: Tensor, start: Tensor, *tensors: Tensor) -> Tensor:
        ctx.rule, ctx.num_rows = rule, num_rows
        ctx.save_for_backward(y, z, start, *tensors)
        return z.to(start.dtype, copy=True)

    @staticmethod
    def backward(ctx, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Reversible(steps) cannot be differentiated twice, since its backward pass is not recorded; use "
                "Implicit() or Unrolled(steps)"
            )
        rule, beta = ctx.rule, ctx.rule.gradient.beta
        y, z, start, *tensors = ctx.saved_tensors
        rule.layer._refuse_live()
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        rows = inputs[: ctx.num_rows]
        own = inputs[ctx.num_rows :] if rule.replaces else tensors[ctx.num_rows :]
        wanted = [t for t in (*rows, *own) if t.requires_grad]
        totals: list[Tensor | None] = [None] * len(wanted)

        def evaluate(point: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            """f at the point and Jᵀu; what u gives the rows and the leaves is added to the totals."""
            with torch.enable_grad(), rule.amp():
                at = point.to(start.dtype).detach().requires_grad_()
                value = rule.f(own, at, *rows)
            if rule.replaces:
                _refuse_others(value, [at, *rows, *own])
            if not value.requires_grad:
                return value.to(z.dtype), torch.zeros_like(z)
            options = {"allow_unused": True, "retain_graph": not rule.replaces}
            through, *grads = torch.autograd.grad(value, [at, *wanted], u.to(value.dtype), **options)
            for i, grad in enumerate(grads):
                if grad is not None:
                    totals[i] = grad if totals[i] is None else totals[i] + grad
            return value.detach().to(z.dtype), torch.zeros_like(z) if through is None else through.to(z.dtype)

        along_z = cotangent.to(z.dtype)
        along_y = torch.zeros_like(along_z)
        for _ in range(rule.gradient.steps):
            value, through = evaluate(y, beta * along_z)
            z, along_y, along_z = (z - beta * value) / (1 - beta), along_y + through, (1 - beta) * along_z
            value, through = evaluate(z, beta * along_y)
            y, along_z, along_y = (y - beta * value) / (1 - beta), along_z + through, (1 - beta) * along_y
        rule.layer._record_reversal((y, z), start, ctx.saved_tensors[1])
        found = iter(totals)
        grads = (next(found) if t.requires_grad else None for t in (*rows, *own))
        return None, None, None, None, (along_y + along_z).to(start.dtype) if start.requires_grad else None, *grads

    jvp = staticmethod(_Equilibrium.jvp)


def _vjp(fz: Tensor, at: Tensor, u: Tensor, create_graph: bool = False) -> Tensor:
    """Jᵀu, zeros where fz does not depend on the point; the graph stays for the next product."""
    if not fz.requires_grad:
        return torch.zeros_like(at)
    options = {"retain_graph": True, "create_graph": create_graph, "materialize_grads": True}
    return torch.autograd.grad(fz, [at], u.to(fz.dtype), **options)[0]


def _implicit(
    rule: _Rule, fz: Tensor, at: Tensor, leaves: Sequence[Tensor], cotangent: Tensor, args: Sequence[Tensor]
) -> Tensor:
    """Solve u = g + Jᵀu for cotangent rows of unit norm. Each time half of the rows are done, J is taken afresh for the
    rest: one evaluation of those rows, repaid by the next step."""
    shape = (-1,) + (1,) * (cotangent.dim() - 1)
    by_row = _by_row(cotangent)
    norm, peak = (torch.linalg.vector_norm(by_row, p, dim=1, dtype=torch.float64) for p in (2, torch.inf))
    scale = torch.where((norm > 0) & (norm < torch.inf), norm, peak)  # the squares under- or overflow before the row
    scale = torch.where(scale > 0, scale, 1).view(shape)
    g = (cotangent / scale).to(cotangent.dtype)
    solver = rule.gradient.solver or rule.solver
    held = [args[0], fz, at]

    def adjoint(u: Tensor, g: Tensor, z: Tensor, *rows: Tensor) -> Tensor:
        if z is not held[0]:
            held.clear()  # before the next one is made, so that both are never there at once
            with torch.enable_grad(), rule.amp():
                at = z.detach().requires_grad_()
                held[:] = z, rule.f(leaves, at, *rows), at
        return g + _vjp(held[1], held[2], u)

    sizes = None if rule.parts is None else rule.parts.sizes
    solution = fixed_point(adjoint, solver, g, (g, *args), rows="halve", parts=sizes)
    rule.layer._record_backward(_named(rule.parts, solution.value, solution)[1], solver.tol)
    return (solution.value * scale).to(cotangent.dtype)


def _series(rule: Neumann | Phantom, fz: Tensor, at: Tensor, cotangent: Tensor, again: bool) -> Tensor:
    terms, damping = (rule.terms, 0.0) if isinstance(rule, Neumann) else (rule.steps, rule.damping)
    total = term = (1 - damping) * cotangent
    for _ in range(terms - 1):
        term = damping * term + (1 - damping) * _vjp(fz, at, term, create_graph=again)
        total = total + term
    return total


@dataclass(frozen=True)
class _Adjoint:
    """u ↦ g + Jᵀu as a map of all it depends on, whose fixed point is itself an equilibrium to differentiate."""

    f: Callable[..., Tensor]

    def __call__(self, leaves: Sequence[Tensor], u: Tensor, g: Tensor, z: Tensor, *rows: Tensor) -> Tensor:
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            at = z if z.requires_grad else z.detach().requires_grad_()
            return g + _vjp(self.f(leaves, at, *rows), at, u, create_graph=recorded)


def _function(cell: Cell, parts: _Parts | None, *rows: Tensor) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The cell as f(leaves, *rows), and the leaves: what it is differentiated for beside its rows (z first).

    A module is evaluated with what stands at its names now, whoever put it there: torch.func.functional_call takes it
    away again before the backward pass. A plain callable computes with what it closes over.
    """
    original = _original(cell) if parts is None else parts.wrap(_original(cell))
    if not isinstance(cell, nn.Module):
        return (lambda leaves, *rows: original(*rows)), _leaves(original, *rows)
    shell = _Shell(cell, original)
    state = {name: t for named in (shell.named_parameters(), shell.named_buffers()) for name, t in named}
    fixed = {name: t for name, t in state.items() if not t.requires_grad}
    names = [name for name in state if name not in fixed]

    def f(leaves: Sequence[Tensor], *rows: Tensor) -> Tensor:
        return torch.func.functional_call(shell, fixed | dict(zip(names, leaves, strict=True)), rows)

    return f, [state[name] for name in names]


class _Shell(nn.Module):
    """Gives the cell's tensors their names, whichever of its methods is called."""

    def __init__(self, cell: nn.Module, method: Callable[..., Tensor]) -> None:
        super().__init__()
        self.cell, self.method = cell, (method,)  # in a tuple, so that a module is not registered twice

    def forward(self, *rows: Tensor) -> Tensor:
        return self.method[0](*rows)


def _refuse_others(fz: Tensor, known: Sequence[Tensor]) -> None:
    """A leaf that a module's graph reaches past the known tensors would lose its gradient without a word."""
    seen = {torch.autograd.graph.get_gradient_edge(t).node for t in known if t.requires_grad}
    open_nodes = [fz.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            raise RuntimeError(
                f"the cell uses a tensor that requires a gradient, or was made of one (shape "
                f"{tuple(node.variable.shape)}), and is none of its parameters, so the gradient would be lost. Give it "
                "in the call, layer(x, args=(tensor,)), register it in the cell by register_parameter or "
                "register_buffer, or detach() it."
            )
        open_nodes.extend(parent for parent, _ in node.next_functions)


def _leaves(cell: Cell, *rows: Tensor) -> list[Tensor]:
    """What the graph of one row reaches."""
    own = [t[:1].detach().requires_grad_(t.is_floating_point()) for t in rows]
    seen, open_nodes, leaves = set(), [cell(*own).grad_fn], []
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        open_nodes.extend(parent for parent, _ in node.next_functions)
        leaf = getattr(node, "variable", None)
        if leaf is not None and all(leaf is not t for t in own):
            leaves.append(leaf)
    return leaves


def _original(cell: Cell) -> Cell:
    """The cell without its top-level torch.compile: a compiled backward cannot be repeated or differentiated, and would
    compute the gradients of all parameters for every product with Jᵀ."""
    for mark in ("_orig_mod", "_torchdynamo_orig_callable"):
        if getattr(cell, mark, None) is not None:
            return getattr(cell, mark)
    return cell.forward if getattr(cell, "_compiled_call_impl", None) is not None else cell


def _live(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.training and module.p > 0
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return module.training and module.dropout > 0
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return module.training or module.running_mean is None
    if isinstance(module, (nn.RReLU, _SpectralNorm)):
        return module.training
    if any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values()):
        return module.training
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.training and module.track_running_stats


def _residual(z: Tensor, fz: Tensor, parts: _Parts | None) -> Tensor:
    """(B, P), one for each part of the state."""
    wide = torch.promote_types(z.dtype, torch.float32)
    z, fz = _by_row(z).to(wide), _by_row(fz).to(wide)
    sizes = [z.shape[1]] if parts is None else list(parts.sizes)
    pairs = zip((fz - z).split(sizes, 1), fz.split(sizes, 1), strict=True)
    norm = torch.linalg.vector_norm
    return torch.stack([norm(r, dim=1) / (norm(value, dim=1) + EPSILON) for r, value in pairs], 1)


def _by_row(t: Tensor) -> Tensor:
    return t.reshape(len(t), math.prod(t.shape[1:]))


# ---- a state of several tensors


@dataclass(frozen=True)
class _Parts:
    """The solver and the gradients see one tensor (B, n), the parts of each row one after the other."""

    shapes: tuple[tuple[int, ...], ...]  # without the axis of the rows

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def pack(self, state: Sequence[Tensor]) -> Tensor:
        return torch.cat([_by_row(part) for part in state], 1)

    def unpack(self, z: Tensor) -> tuple[Tensor, ...]:
        split = zip(z.split(self.sizes, 1), self.shapes, strict=True)
        return tuple(part.contiguous().view(len(z), *shape) for part, shape in split)

    def wrap(self, cell: Cell) -> Cell:
        def packed(z: Tensor, *rows: Tensor) -> Tensor:
            value = cell(self.unpack(z), *rows)
            self._check(value, len(z))
            return self.pack(value)

        return packed

    def _check(self, value: object, rows: int) -> None:
        if not isinstance(value, (tuple, list)) or not all(isinstance(part, Tensor) for part in value):
            raise TypeError(
                f"the cell returned a {type(value).__name__}; z0 is a tuple of {len(self.shapes)} tensors, so it must "
                "return a tuple of tensors like them"
            )
        got, allowed = [tuple(part.shape) for part in value], [(rows, *shape) for shape in self.shapes]
        if got != allowed:
            raise ValueError(f"the cell maps parts of shapes {allowed} to {got}; it must return the shapes it is given")


def _named(parts: _Parts | None, z: Tensor, solution: Solution) -> tuple[State, Solution]:
    """z* and its evidence, as the cell names the parts."""
    if parts is None:
        return z, solution
    same, value = z is solution.value, parts.unpack(solution.value)
    return value if same else parts.unpack(z), replace(solution, value=value)


def _check_state(x: Tensor, z0: Sequence[Tensor]) -> None:
    if len(z0) < 2 or not all(isinstance(part, Tensor) for part in z0):
        raise TypeError(
            f"z0 is a {type(z0).__name__} of {len(z0)}: {', '.join(type(part).__name__ for part in z0)}. A state of "
            "several tensors starts at at least two of them, z0=(z1, z2), a single one at the tensor itself. What else "
            "the cell takes goes into args: layer(x, args=(tensor,))"
        )
    first = z0[0]
    for i, part in enumerate(z0):
        if part.dim() == 0 or len(part) != len(x) or 0 in part.shape[1:]:
            raise ValueError(f"z0[{i}] has shape {tuple(part.shape)}; its first axis must be the {len(x)} rows of x")
        if not part.is_floating_point() or (part.dtype, part.device) != (first.dtype, first.device):
            raise ValueError(
                f"z0[{i}] is {part.dtype} on {part.device} and z0[0] {first.dtype} on {first.device}; the parts of a "
                "state must have one floating-point type and one device"
            )


def _check_solvers(**solvers: Solver | None) -> None:
    for name, solver in solvers.items():
        if not (solver is None or isinstance(solver, Solver)):
            raise TypeError(f"{name}={solver!r}: give a FixedPointIteration, Anderson or Broyden from nclib.solver")


def _check_call(x: Tensor, z0: State | None, args: Sequence[Tensor]) -> None:
    if isinstance(args, Tensor):
        raise TypeError("args is a tensor; give a tuple of tensors: layer(x, args=(tensor,))")
    state, z0 = (z0, None) if isinstance(z0, (tuple, list)) else (None, z0)
    for name, value in {"x": x, "z0": x if z0 is None else z0, **{f"args[{i}]": t for i, t in enumerate(args)}}.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} is a {type(value).__name__} and must be a tensor (B, *). What else the cell takes goes into "
                "args: layer(x, args=(tensor, tensor))"
            )
    if x.dim() == 0:
        raise ValueError("x is a single number; its first axis must be the rows: layer(x.view(1, 1))")
    if state is not None:
        _check_state(x, state)
    if z0 is not None and not z0.is_floating_point():
        raise ValueError(
            f"z0 is {z0.dtype} {tuple(z0.shape)} and must be floating-point, since it is where z starts. "
            "For what else the cell takes, such as a mask, did you mean layer(x, args=(mask,))?"
        )
    if z0 is not None and (z0.dim() == 0 or len(z0) != len(x)):
        raise ValueError(f"z0 has shape {tuple(z0.shape)}; its first axis must be the {len(x)} rows of x")
    for i, arg in enumerate(args):
        if arg.dim() == 0 or len(arg) != len(x):
            raise ValueError(
                f"args[{i}] has shape {tuple(arg.shape)}; its first axis must be the {len(x)} rows of x. A tensor that "
                "all rows share, such as a causal mask, belongs to the cell: self.register_buffer('mask', mask)"
            )


# ---- what the Jacobian at a point tells


def _linearise(f: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    if torch.is_inference_mode_enabled():
        raise RuntimeError("torch.inference_mode() records no Jacobian; write `with torch.no_grad():` instead")
    with torch.enable_grad():
        z = z if z.requires_grad else z.detach().requires_grad_()
        return _evaluate(f, z, (), len(z)), z


def row_jacobians(f: Callable[..., Tensor | tuple], x: Tensor, *rows: Tensor) -> Tensor:
    """The Jacobian of every row of f(x, *rows) with respect to its row of x, in one backward pass.

    Since rows do not depend on one another, each is repeated as often as the output has numbers, and every copy is
    differentiated for one of them.

    Parameters
    ----------
    f : maps (B, *) to (B, *) row by row: a ``DEQ`` with any gradient rule, whose z* is differentiated, or a function or
        network that holds one. A tuple is taken for z* and what belongs to it. Layers that mix rows, as BatchNorm does
        in training, give wrong answers here.
    x : (B, *), floating-point.
    rows : further tensors (B, *) that f takes. They are repeated with x.

    Returns
    -------
    (B, *out, *in), where *out is the shape of a row of the output and *in that of a row of x. No graph is kept. An
    equilibrium's is as accurate as its solves are.

    Raises
    ------
    RuntimeError under torch.inference_mode(), where there is no Jacobian.

    Notes
    -----
    f sees B · numel(out) rows at once. Torch's own ways need one backward pass for each number of the output
    (torch.autograd.functional.jacobian, which also returns the zeros between different rows) or are refused by the
    layer (torch.func.jacrev, vectorize=True).

    Examples
    --------
    z = A z + x has the Jacobian (I − A)⁻¹.

    >>> import torch
    >>> from nclib import DEQ, Anderson, row_jacobians
    >>> a = torch.tensor([[0.5, 0.25], [0.0, 0.5]], dtype=torch.float64)
    >>> layer = DEQ(lambda z, x: z @ a.T + x, Anderson(tol=1e-9))
    >>> row_jacobians(layer, torch.ones(3, 2, dtype=torch.float64))[0].round(decimals=6).tolist()
    [[2.0, 1.0], [0.0, 2.0]]

    Of a layer with a further tensor in ``args``, here the gain of each row:

    >>> scaled = DEQ(lambda z, x, gain: gain * z + x, Anderson(tol=1e-9))
    >>> gain = torch.tensor([[0.5], [0.75]], dtype=torch.float64)
    >>> row_jacobians(lambda x, gain: scaled(x, args=(gain,)), gain, gain).flatten().round(decimals=6).tolist()
    [2.0, 4.0]
    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError("torch.inference_mode() records no Jacobian; write `with torch.no_grad():` instead")

    def value(*given: Tensor) -> Tensor:
        found = f(*given)
        return found[0] if isinstance(found, tuple) else found

    with torch.no_grad():
        one = value(*(t[:1].detach() for t in (x, *rows)))
    size = math.prod(one.shape[1:])
    many, *others = (t.detach().repeat_interleave(size, 0) for t in (x, *rows))
    with torch.enable_grad():
        found = value(many.requires_grad_(), *others)
    which = torch.eye(size, dtype=found.dtype, device=found.device).repeat(len(x), 1).view(found.shape)
    constant = not found.requires_grad
    grad = torch.zeros_like(many) if constant else torch.autograd.grad(found, many, which, materialize_grads=True)[0]
    return grad.view(len(x), *one.shape[1:], *x.shape[1:])


def spectral_radius(
    f: Callable[[Tensor], Tensor], z: Tensor, num_iters: int = 80, generator: torch.Generator | None = None
) -> Tensor:
    """Largest modulus of an eigenvalue of J = ∂f/∂z, for each row.

    Arnoldi's method on Jᵀ, which has the eigenvalues of J, from a random start; the eigenvalues of the small Hessenberg
    matrix are complex where they have to be, so rotations and pairs ±λ cost nothing extra.

    f: maps (B, *) to (B, *) row by row. z: (B, *), in float64 for full accuracy. num_iters: products with Jᵀ.
    Returns (B,) float64, in [0, ∞); below 1 the plain iteration contracts near z. Exact once ``num_iters`` reaches the
    number of features; with fewer a lower estimate where J is normal, and off to either side elsewhere. For 0.9 times
    an orthogonal matrix, the worst of 64 rows: −4.8 % after 40 products and −1.5 % after 80 at 512 features, −5.9 and
    −2.1 % at 1024, −2.9 % after 80 at 8192; of 8 rows after 120 and 160 at 512 and 1024: −0.5 and −0.3 %, −1.0 and
    −0.5 %. Give more where a value just below 1 decides. A defective eigenvalue of index k is only found to the k-th
    root of the rounding error.
    Raises RuntimeError under torch.inference_mode(), where there is no Jacobian.
    Source: Saad 2011, Numerical Methods for Large Eigenvalue Problems, §6.2.
    """
    if not _whole(num_iters) or num_iters < 1:
        raise ValueError(f"num_iters={num_iters!r}: give a whole number of at least 1")
    fz, z = _linearise(f, z.detach())
    batch, size = len(z), math.prod(z.shape[1:])
    num_iters = min(num_iters, size)
    tiny = math.sqrt(torch.finfo(z.dtype).eps)
    v = torch.randn(batch, size, dtype=z.dtype, device=z.device, generator=generator).double()
    basis = v.new_zeros(batch, num_iters + 1, size)
    hessenberg = v.new_zeros(batch, num_iters + 1, num_iters)
    basis[:, 0] = v / v.norm(dim=1, keepdim=True)
    for k in range(num_iters):
        w = _by_row(_vjp(fz, z, basis[:, k].view(z.shape)).detach()).double()
        before = w.norm(dim=1)
        for _ in range(2):  # once is not orthogonal enough
            along = torch.bmm(basis[:, : k + 1], w.unsqueeze(2))
            w = w - torch.bmm(basis[:, : k + 1].mT, along).squeeze(2)
            hessenberg[:, : k + 1, k] += along.squeeze(2)
        norm = w.norm(dim=1)
        norm = torch.where(norm > tiny * before, norm, 0)  # an invariant subspace: its eigenvalues are all there
        hessenberg[:, k + 1, k] = norm
        basis[:, k + 1] = w * torch.where(norm > 0, 1 / norm, 0).unsqueeze(1)
    return torch.linalg.eigvals(hessenberg[:, :-1]).abs().amax(1)


def jacobian_frobenius_sq(
    f: Callable[[Tensor], Tensor],
    z: Tensor,
    num_probes: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Unbiased estimate of ‖J‖_F² = E‖Jᵀv‖² for J = ∂f/∂z and random signs v, for each row.

    f: maps (B, *) to (B, *) row by row. z: (B, *). num_probes: independent v, at least 1.
    Raises RuntimeError under torch.inference_mode(), where there is no Jacobian.
    Returns (B,) ≥ 0, differentiable in z and in what f depends on while torch records gradients; 0 for a constant map.
    As a regulariser, give z*.detach() unless the gradient through z* is wanted as well.
    Source: Hutchinson 1990; as a regulariser of equilibria, Bai, Koltun & Kolter 2021, §4.
    """
    if not _whole(num_probes) or num_probes < 1:
        raise ValueError(f"num_probes={num_probes!r}: give a whole number of at least 1")
    recorded = torch.is_grad_enabled()
    fz, z = _linearise(f, z)
    total = z.new_zeros(len(z))
    for _ in range(num_probes):
        signs = torch.randint(0, 2, z.shape, device=z.device, generator=generator)
        w = _vjp(fz, z, (2 * signs - 1).to(z.dtype), create_graph=recorded)
        total = total + _by_row(w).square().sum(1)
    return total / num_probes
