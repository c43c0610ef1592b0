"""The equilibrium layer ``DEQ``: its call, the solve, and what is checked before."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import BuiltinFunctionType
from typing import Literal

import torch
from torch import Tensor, nn

from nclib.deq.cell import (
    Cell,
    Parts,
    State,
    check_state,
    flat_rows,
    functional_form,
    is_stateful,
    uncompiled,
    unpacked,
    versions,
)
from nclib.deq.gradients import (
    Autocast,
    BackwardNotConverged,
    Equilibrium,
    Gradient,
    Implicit,
    Reverse,
    Reversible,
    Rule,
    Unrolled,
    refuse_transforms,
)
from nclib.solver import EPSILON, Solution, Solver, Status, evaluate_cell, fixed_point, paper_solver

REVERSAL = 1e-3  # a reversible backward pass that misses its start by more, relative to z*, warns
_OF_SHAPES = re.compile(r"shape|size|dim|broadcast|channels|unpack|returned a (tuple|list)", re.IGNORECASE)


_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.6 has none, and refuses by itself


class DEQ(nn.Module):
    """A layer whose output solves z* = cell(z*, x, *args).

    Call it with x (B, *), whose first axis is the rows. Further arguments of the call: ``z0`` (B, *), the start,
    required where z and x differ in shape; ``args``, a tuple of tensors (B, *) of any type that belong to the rows;
    ``solver``, for this call alone. It returns z* and the ``Solution``. z* is its value to the bit, with the gradient
    attached while torch records gradients, in training and evaluation. Both are one tensor in memory: clone z* before
    you change it in place.

    A state of several tensors starts at a tuple, ``layer(x, z0=(z1, z2))``. The cell then takes and returns tuples, z*
    is one, and each part has its own residual (``solution.part_residual``): a row is solved when every part is. In
    ``nn.Sequential``, which passes x alone, give the layer a function that makes the start of x.

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
    z0 : start where none is given in the call: "x" (then one step is the explicit block cell(x, x)), "zeros", or a
        function of x that returns a tensor (B, *) or a tuple of them.
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

    The backward pass evaluates the cell again. Until then nothing that it computes with may change: buffers and frozen
    parameters are refused by name, as torch refuses what it has saved; of Python numbers and of what a plain callable
    closes over nobody can tell.

    ``last_backward`` is the ``Solution`` of the last implicit backward solve. Of ``Reversible`` it is the start as the
    backward pass found it, with its relative error as the residual. The first one that does not converge warns
    ``BackwardNotConverged`` and sets ``warn_backward`` to False; set it to True to be warned again.

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
    >>> two = DEQ(cell, z0=lambda x: (torch.zeros_like(x), torch.zeros_like(x)), return_solution=False)
    >>> len(torch.nn.Sequential(torch.nn.Linear(4, 1), two)(torch.zeros(2, 4)))
    2
    """

    def __init__(
        self,
        cell: Cell,
        solver: Solver | None = None,
        gradient: Gradient | None = None,
        z0: Literal["x", "zeros"] | Callable[[Tensor], State] = "x",
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
        if not callable(z0) and (not isinstance(z0, str) or z0 not in ("x", "zeros")):
            raise ValueError(f"z0={z0!r}: allowed are 'x', 'zeros' and a function of x that returns the start")
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
            if _is_exporting():
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
        if z0 is None and callable(self.z0):
            z0 = self.start(x)
            _check_call(x, z0, args)
        if not isinstance(self.gradient, Unrolled):
            own = self.cell.parameters() if isinstance(self.cell, nn.Module) else ()
            refuse_transforms(x, *(z0 if isinstance(z0, tuple) else (z0,)), *args, *own)
        self._refuse_live()
        start, parts, cell = self.start(x) if z0 is None else z0, None, self.cell
        if not isinstance(start, Tensor):
            parts = Parts(tuple(tuple(part.shape[1:]) for part in start))
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
            rows = "halve" if x.is_cuda or uncompiled(self.cell) is not self.cell else "leave"
            held = tuple(t.detach() for t in (x, *args))
            sizes = None if parts is None else parts.sizes
            solution = fixed_point(cell, solver, start.detach(), held, rows=rows, parts=sizes)
        except (RuntimeError, ValueError, TypeError) as error:
            refuse_transforms(error=error)
            if isinstance(error, TypeError) and not _takes(uncompiled(self.cell), 2 + len(args)):
                given = ", ".join(["z", "x", *(f"args[{i}]" for i in range(len(args)))])
                error.add_note(
                    f"The layer calls its cell as cell({given}): it must take these arguments, x even where it does "
                    "not use it. More of them follow z and x by layer(x, args=(tensor,))."
                )
            said = hasattr(error, "__notes__")  # why, by the solver
            if z0 is None and not said and _OF_SHAPES.search(str(error)):
                error.add_note(
                    f"The layer started at z0={self.z0!r}, shaped like x {tuple(x.shape)}. "
                    "If the state has another shape, give the start: layer(x, z0=torch.zeros(...)), or of a state of "
                    "several tensors layer(x, z0=(z1, z2))."
                )
            raise
        if not torch.is_grad_enabled():
            return unpacked(parts, solution.value, solution)
        rule, leaves = self._rule(solver, parts, solution.value, x, *args)
        z = Equilibrium.apply(rule, 1 + len(args), solution.value, x, *args, *leaves)
        return unpacked(parts, z, solution)

    def _rule(self, solver: Solver, parts: Parts | None, value: Tensor, *rows: Tensor) -> tuple[Rule, list[Tensor]]:
        """What the backward pass needs besides the tensors, and the leaves of the cell."""
        device = value.device.type
        amp = Autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        f, leaves = functional_form(self.cell, parts, value, *rows)
        fixed = versions(self.cell)
        rule = Rule(f, self.gradient, solver, amp, isinstance(self.cell, nn.Module), self, parts, fixed)
        return rule, leaves

    def start(self, x: Tensor) -> State:
        """Where the solve begins when the call names no ``z0``."""
        if callable(self.z0):
            return self.z0(x)
        if not x.is_floating_point():
            raise ValueError(f"x is {x.dtype}, so it cannot be where z starts; give the start: layer(x, z0=...)")
        return x if self.z0 == "x" else torch.zeros_like(x)

    def _check_single_numbers(self, x: Tensor, start: Tensor, args: Sequence[Tensor], parts: Parts | None) -> None:
        """Of 64 features without a batch axis each would be a row, and a cell that takes them together goes unseen."""
        cell = uncompiled(self.cell)
        try:
            with torch.no_grad():
                evaluate_cell(parts.wrap(cell) if parts else cell, start[:1], [t[:1] for t in (x, *args)], 1)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"x has shape ({len(x)},): its first axis is the rows, so these are {len(x)} rows of one number, which "
                f"the cell cannot take. One row of {len(x)} features is layer(x.unsqueeze(0))"
            ) from error

    def _refuse_live(self) -> None:
        if self.allow_live or not isinstance(self.cell, nn.Module):
            return
        for name, module in self.cell.named_modules():
            if is_stateful(module):
                raise ValueError(
                    f"cell.{name} is a live {type(module).__name__}: it changes the map from one evaluation to the "
                    "next, so there is no fixed point to find. Use GroupNorm, put the module outside the cell or in "
                    "eval mode until backward() is done, or pass allow_live=True."
                )

    def _unroll(self, cell: Cell, parts: Parts | None, tol: float, z: Tensor, *rows: Tensor) -> tuple[State, Solution]:
        by_part, steps = [], self.gradient.steps
        for _ in range(steps):
            last, z = z, evaluate_cell(cell, z, rows, len(z)).to(z.dtype)
            by_part.append(_residual(last.detach(), z.detach(), parts))
        with torch.no_grad():
            by_part.append(_residual(z, cell(z, *rows), parts))
        return unpacked(parts, z, _evidence(z.detach(), by_part, tol, parts))

    def _reverse(self, parts: Parts | None, tol: float, start: Tensor, *rows: Tensor) -> tuple[State, Solution]:
        cell = uncompiled(self.cell) if parts is None else parts.wrap(uncompiled(self.cell))
        by_part, beta = [], self.gradient.beta

        def evaluate(point: Tensor) -> Tensor:
            point = point.to(start.dtype)
            value = evaluate_cell(cell, point, rows, len(point))
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
            return unpacked(parts, value, solution)
        rule, leaves = self._rule(self.solver, parts, value, *rows)
        return unpacked(parts, Reverse.apply(rule, len(rows), y, z, start, *rows, *leaves), solution)

    def _record_reversal(self, found: Sequence[Tensor], start: Tensor, last: Tensor, parts: Parts | None) -> None:
        """By how much y and z miss the start, relative to the larger of it and the last z."""
        missed, *sizes = (
            torch.linalg.vector_norm(flat_rows(t), dim=1) for t in (torch.cat([t - start for t in found]), start, last)
        )
        off = torch.maximum(*missed.chunk(2)) / (torch.maximum(*sizes) + EPSILON)
        solution, calls = _evidence(found[1], [off[:, None]], REVERSAL, None), 2 * self.gradient.steps
        self._warn_once(
            unpacked(parts, found[1], replace(solution, steps=calls * solution.steps, num_evals=calls))[1],
            f"reversible backward: {{}} rows missed their start by more than {REVERSAL:g} of their size, the worst by "
            "{:.1e}: rounding has grown too large, and their gradient is wrong. Take fewer steps or a beta nearer to "
            "0.",
        )

    def _record_backward(self, solution: Solution, tol: float) -> None:
        self._warn_once(
            solution,
            f"backward solve: {{}} rows missed tol={tol:g}, worst relative residual {{:.1e}}; the gradient of those "
            "rows is approximate. Allow more max_steps with Implicit(solver=...), make the cell more contractive, or "
            "choose Phantom().",
        )

    def _warn_once(self, backward: Solution, message: str) -> None:
        self.last_backward = backward
        if self.warn_backward and not bool(backward.converged.all()):
            self.warn_backward = False
            rows = f"{int((~backward.converged).sum())} of {len(backward.converged)}"
            warnings.warn(message.format(rows, float(backward.residual.max())), BackwardNotConverged, stacklevel=3)


# torch.compiler.disable, but for its import of Dynamo, which takes longer than that of the rest of torch.
_call_eager = torch._compile._disable_dynamo(DEQ._call)


def _evidence(z: Tensor, by_part: Sequence[Tensor], tol: float, parts: Parts | None) -> Solution:
    """Of a fixed number of steps, all rows taking all of them."""
    trace = torch.stack([each.amax(1) for each in by_part])
    residual = trace[-1]
    converged = residual <= tol
    status = torch.where(converged, Status.CONVERGED.value, Status.MAX_STEPS.value)
    status = torch.where(residual.isfinite(), status, Status.DIVERGED.value)
    calls, shares = torch.full_like(status, len(trace)), None if parts is None else by_part[-1]
    return Solution(z, residual, converged, status, calls, len(trace), trace, shares)


def _residual(z: Tensor, fz: Tensor, parts: Parts | None) -> Tensor:
    """(B, P), one for each part of the state."""
    wide = torch.promote_types(z.dtype, torch.float32)
    z, fz = flat_rows(z).to(wide), flat_rows(fz).to(wide)
    sizes = [z.shape[1]] if parts is None else list(parts.sizes)
    pairs = zip((fz - z).split(sizes, 1), fz.split(sizes, 1), strict=True)
    norm = torch.linalg.vector_norm
    return torch.stack([norm(r, dim=1) / (norm(value, dim=1) + EPSILON) for r, value in pairs], 1)


def _takes(cell: Cell, count: int) -> bool:
    """Whether the cell can be called with so many arguments, as far as its signature tells."""
    try:
        inspect.signature(cell.forward if isinstance(cell, nn.Module) else cell).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # functions of C have no signature; those of torch take one tensor for the most part
        return not isinstance(cell, BuiltinFunctionType)
    return True


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
        check_state(x, state)
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
