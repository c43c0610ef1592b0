"""The equilibrium layer ``DEQ``: its call, the solve, and what is checked before."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args, overload

import torch
from torch import Tensor, nn

from nclib.deq import gradients as rules
from nclib.deq.cell import Cell, State, fixed_tensors, functional_form, is_live, packed, residuals, uncompiled, unpacked
from nclib.deq.gradients import Equilibrium, Gradient, Implicit, Phantom, Reversible, Rule, Unrolled, autocast_of
from nclib.deq.steps import Reverse, reversible, unroll
from nclib.methods import Solver, check_solver, is_whole, paper_solver
from nclib.solver import HALF, Solution, check_rows, own_weights, solve
from nclib.system.warning import warn

OnFailure = Literal["warn", "raise", "ignore"]
Yes = Literal[True]
No = Literal[False]
Tensors = tuple[Tensor, ...]


class ForwardNotConverged(RuntimeWarning):
    """Rows of a forward solve missed the tolerance, or met it only because their states grew, as without a fixed point,
    so their z* is not an equilibrium, or NaN.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> layer = nc.DEQ(lambda z, x: 2 * z + x, nc.FixedPointIteration(max_steps=5), on_failure="raise")
    >>> try:
    ...     layer(torch.ones(1, 2))
    ... except nc.ForwardNotConverged as error:
    ...     print(str(error)[:77])
    forward solve: 1 of 1 rows missed tol=0.0001, worst relative residual 5.1e-01
    """


Returned = TypeVar("Returned", bound=bool)  # whether a call returns the Solution, too


class DEQ(nn.Module, Generic[Returned]):
    """A layer whose output solves z* = cell(z*, x, *args).

    Call it with x (B, *), whose first axis is the rows. It returns z* and the ``Solution``. z* is its value to the bit,
    with the gradient attached while torch records gradients, in training and evaluation. Both are one tensor in memory:
    clone z* before you change it in place. Further arguments of the call:

    - ``z0`` (B, *), the start, required where z and x differ in shape.
    - ``args``, a tuple of tensors (B, *) of any type that belong to the rows. Dropout with one mask for a whole solve,
      which is a map like any other, takes its mask here: (B, 1, D) for tokens (B, T, D).
    - ``solver`` and ``gradient``, for this call alone. A rule that takes steps of its own (``Unrolled``,
      ``Reversible``) replaces the layer's solver, too.
    - ``at``, numbers of evaluations, for a loss on the way: ``layer(x, at=[5, 10])`` returns a list in place of z*, the
      states after 5 and after 10 evaluations and z*. A row that has stopped before has its z* there. Each state has the
      gradient of the rule at that state, of ``Unrolled`` that of the steps so far; with ``Implicit``, whose formula
      holds at an equilibrium alone, all but z* get that of ``Phantom()``. ``Reversible`` refuses it.

    A state of several tensors starts at a tuple, ``layer(x, z0=(z1, z2))``. The cell then takes and returns tuples, z*
    is one, and each part has its own residual (``solution.part_residual``): a row is solved when every part is. In
    ``nn.Sequential``, which passes x alone, give the layer a function that makes the start of x.

    Parameters
    ----------
    cell : maps (z, x, *args) to a tensor like z, row by row, so that tokens come as (B, T, D), batch first; a module,
        or any callable whose leaves may require gradients. Rows that are solved leave the batch and others take their
        places, so it must not close over tensors of the batch: masks and further conditions go into ``args``. A tensor
        that all rows share, such as a causal mask, belongs to the cell: as a buffer (``register_buffer``), or closed
        over. A module may be copied, and called by torch.func.functional_call; what it uses must stand among its
        parameters, its buffers and its arguments, or the call or the backward pass raises RuntimeError. A plain
        callable may not: a copy computes with what the original closes over. A hook on a leaf of a plain callable runs
        twice, within the layer and on the sum, and one that the first row does not use is refused in the backward pass:
        give such a cell as a module.
    solver : see ``nclib.solver``; left out, ``paper_solver()``: Broyden, relative residual 1e-3, at most 20
        evaluations.
    gradient : ``Implicit`` (the default), ``Neumann``, ``Phantom``, ``Unrolled``, ``Reversible``. The last two take a
        fixed number of steps, so that a solver given with them is refused.
    z0 : start where none is given in the call: "x" (then one step is the explicit block cell(x, x)), "zeros", or a
        function of x that returns a tensor (B, *) or a tuple of them.
    allow_live : accept BatchNorm, dropout, DropPath and their kin in training mode inside the cell. They make f
        another map at each call, and BatchNorm couples the rows, so that the equilibrium is not a function of the
        input. Modules are refused without it, in the backward pass too; those inside a plain callable, and a call of
        torch.nn.functional.dropout, cannot be seen.
    eval_solver : takes the place of ``solver`` in evaluation mode, ``layer.eval()``; None changes nothing. The mode
        decides which solver is used and nothing else: gradients are recorded whenever torch records them. A backward
        pass uses the solver of its forward pass, unless ``Implicit(solver=...)`` names another.
    return_solution : False returns z* alone, so that the layer stands in ``nn.Sequential``.
    on_failure : what happens when a solve misses its tolerance for some row, or meets it only because the state grew
        tenfold while ‖f(z) − z‖ became no smaller; forward or backward, in training and
        evaluation: "warn" once with ``ForwardNotConverged`` and once with ``BackwardNotConverged``, "raise" them, or
        "ignore" it. Write ``layer.told.clear()`` to be warned again.

    Raises
    ------
    ValueError
        For an option that is not among those allowed; for a solver beside a rule with steps of its own; when called,
        for live modules in the cell without ``allow_live``.
    TypeError
        For a gradient that is none.
    ForwardNotConverged, BackwardNotConverged
        With ``on_failure="raise"``.

    Notes
    -----
    A row that is not solved has its best iterate, and its gradient is the same formula there, not that of an
    equilibrium. A row of which no evaluation was finite is NaN; left out of the loss, as by ``z[solution.converged]``,
    it adds nothing to the gradients of ``Implicit``, ``Neumann`` and ``Phantom``. ``solution.converged`` marks which
    rows are solved; the ``Solution`` of the last call stays at ``layer.last_solution``. A fixed number of steps, as of
    ``Unrolled``, is never reported as failed: look at ``solution.residual``.

    A sequence is one row: its tokens are solved together, so that with a causal or padding mask later and masked tokens
    still move the others, by about the tolerance, through the coefficients of Anderson and Broyden and through when the
    row stops. Only a fixed number of plain steps, as of ``Unrolled``, keeps them apart.

    Compile the whole cell, torch.compile(cell) or cell.compile(): the solve runs it compiled, the backward pass eager.
    A cell with parts compiled on their own needs torch._functorch.config.donated_buffer = False before its first call.
    In torch.compile(network) the graph breaks at the layer, whose solve runs eager unless its cell is compiled;
    fullgraph=True and torch.export are refused, since values decide how many steps a solve takes. Torch runs a whole
    loop eager in which a graph breaks, nn.Sequential too: compile its other modules one by one there.

    torch.func (vmap, grad, jacrev, jvp) and forward_ad pass through ``Unrolled`` and fail with the other rules;
    torch.autograd.functional.jacobian works with all of them, one number of the output after the other.

    Under autocast x and the state are float32. In bfloat16 gentle cells reach residuals of 5e-4 and convolution cells
    of 5e-4 to 4e-3, so that ``paper_solver()`` solves few rows or none: compute such a cell in float32, as the networks
    of this library do.

    The backward pass evaluates the cell again. Until then nothing that it computes with may change: torch refuses
    buffers and frozen parameters that have changed in place. Python numbers, and what a plain callable closes over,
    cannot be checked.

    Weights that are parametrised, as by ``weight_norm`` or ``orthogonal`` of torch.nn.utils.parametrizations, are
    computed at each evaluation of the cell; inside ``with torch.nn.utils.parametrize.cached():`` once a solve. Under
    DistributedDataParallel each process solves its own rows.

    ``last_backward`` is the ``Solution`` of the last implicit backward solve. Of ``Reversible`` it is the start as the
    backward pass found it, with its relative error as the residual.

    Examples
    --------
    z = z/2 + x has the solution z = 2x, whose derivative is 2.

    >>> import torch
    >>> from nclib import DEQ, Anderson, Unrolled
    >>> layer = DEQ(lambda z, x: 0.5 * z + x, Anderson(tol=1e-6))
    >>> x = torch.tensor([[1.0], [3.0]], dtype=torch.float64, requires_grad=True)
    >>> z, solution = layer(x)
    >>> z.round(decimals=3).tolist(), solution.converged.tolist()
    ([[2.0], [6.0]], [True, True])
    >>> z.sum().backward()
    >>> x.grad.round(decimals=3).tolist()
    [[2.0], [2.0]]
    >>> z, solution = layer(x, solver=Anderson(tol=1e-2))

    A loss on the way, here with plain steps:

    >>> (early, late), solution = layer(x, gradient=Unrolled(20), at=[2])
    >>> early.tolist(), late.round(decimals=3).tolist()
    ([[1.75], [5.25]], [[2.0], [6.0]])

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

    if TYPE_CHECKING:  # what torch.nn.Module leaves open

        @overload
        def __init__(self: "DEQ[Yes]", cell: Cell, *more: Any, return_solution: Yes = ..., **options: Any) -> None: ...
        @overload
        def __init__(self: "DEQ[No]", cell: Cell, *more: Any, return_solution: No, **options: Any) -> None: ...

        @overload
        def __call__(self, x: Tensor, z0: State | None = ..., *, at: Sequence[int], **more: Any) -> Any: ...
        @overload
        def __call__(self: "DEQ[Yes]", x: Tensor, z0: Tensor | None = ..., **more: Any) -> tuple[Tensor, Solution]: ...
        @overload
        def __call__(self: "DEQ[Yes]", x: Tensor, z0: Tensors, **more: Any) -> tuple[Tensors, Solution]: ...
        @overload
        def __call__(self: "DEQ[No]", x: Tensor, z0: Tensor | None = ..., **more: Any) -> Tensor: ...
        @overload
        def __call__(self: "DEQ[No]", x: Tensor, z0: Tensors, **more: Any) -> Tensors: ...

    def __init__(
        self,
        cell: Cell,
        solver: Solver | None = None,
        gradient: Gradient | None = None,
        z0: Literal["x", "zeros"] | Callable[[Tensor], State] = "x",
        allow_live: bool = False,
        eval_solver: Solver | None = None,
        return_solution: bool = True,
        on_failure: OnFailure = "warn",
    ) -> None:
        super().__init__()
        self.cell = cell
        self.gradient = Implicit() if gradient is None else gradient
        _check_rule(self.gradient, solver=solver, eval_solver=eval_solver)
        self.solver = paper_solver() if solver is None else solver
        self.eval_solver = eval_solver
        if not callable(z0) and z0 not in ("x", "zeros"):
            raise ValueError(f"z0={z0!r}: allowed are 'x', 'zeros' and a function of x that returns the start")
        self.z0, self.allow_live, self.return_solution = z0, allow_live, return_solution
        if on_failure not in get_args(OnFailure):
            raise ValueError(f"on_failure={on_failure!r}: allowed are 'warn', 'raise' and 'ignore'")
        self.on_failure, self.told = on_failure, set()
        self.last_solution: Solution | None = None
        self.last_backward: Solution | None = None

    def forward(self, x, z0=None, args=(), solver=None, gradient=None, at=None):  # typed as __call__ above
        call = _call_eager if torch.compiler.is_compiling() else DEQ._call
        gradient = self.gradient if gradient is None else gradient
        states, solution = call(self, x, z0, args, solver, gradient, () if at is None else at)
        z = states[-1] if at is None else states
        return (z, solution) if self.return_solution else z

    def _call(self, x, z0, args, solver, gradient, at) -> tuple[list[State], Solution]:
        """The states after each number of evaluations in ``at`` and z*, and the evidence."""
        _check_rule(gradient, solver=solver)
        _check_at(at, gradient)
        if not isinstance(x, Tensor):
            raise TypeError(f"x is a {type(x).__name__}; give one tensor, and others of its rows in args=(tensor,)")
        forward_mode = torch.autograd.forward_ad._current_level >= 0  # which would lose tangents under no_grad
        if (torch._C._are_functorch_transforms_active() or forward_mode) and not isinstance(gradient, Unrolled):
            raise RuntimeError("torch.func and forward_ad pass through one rule: give gradient=nclib.Unrolled(50)")
        self.last_solution = None  # its memory is free for this solve
        self._refuse_live()
        parts, cell, start = packed(self.cell, self.start(x) if z0 is None else z0)
        check_rows(len(x), {"z0": start} | {f"args[{i}]": arg for i, arg in enumerate(args)})
        if torch.is_autocast_enabled(x.device.type):  # or what f adds x to would be rounded to half precision each time
            x, start = (t.float() if t.dtype in HALF else t for t in (x, start))
        rows = (x, *args)
        if isinstance(gradient, Unrolled):
            states, self.last_solution = unroll(cell, parts, gradient, at, start, *rows)
            return states, self.last_solution
        if solver is None:
            solver = self.solver if self.training or self.eval_solver is None else self.eval_solver
        original = uncompiled(self.cell)
        if isinstance(gradient, Reversible):
            plain = original if parts is None else parts.wrap(original)
            y, z, solution = reversible(plain, parts, gradient, start, *rows)
            states, failed, lost, apart = [solution.value], 0, 0, False
        else:
            # What is compiled or looked up for each shape, as kernels on a GPU are, should see few of them.
            how = "halve" if x.is_cuda or original is not self.cell else "leave"
            sizes, held = None if parts is None else parts.sizes, [t.detach() for t in rows]
            solution, (failed, lost, apart), states = solve(cell, solver, start.detach(), held, how, sizes, at=at)
            states.append(solution.value)
        found, self.last_solution = unpacked(parts, states, solution)
        if failed:
            self._tell(ForwardNotConverged, lambda: _why(solution, solver.tol, failed))
        if apart and not (self.told & {"rows"} or self.allow_live or self.on_failure == "ignore"):
            self.told.add("rows")  # once: one more evaluation, of all rows
            with torch.no_grad(), own_weights():
                beside = residuals(solution.value, cell(solution.value, *held), parts).amax(1)[solution.converged]
            self._tell(ForwardNotConverged, lambda: _mixed(beside, solver.tol))
        if not torch.is_grad_enabled():
            return found, self.last_solution
        amp = autocast_of(x)
        with amp():
            f, leaves = functional_form(self.cell, parts, solution.value, *rows)
        fixed = [] if self.allow_live else fixed_tensors(self.cell)
        replaces = isinstance(self.cell, nn.Module)
        rule = Rule(f, gradient, solver, amp, replaces, parts, fixed, self._refuse_live, self._record, lost)
        if isinstance(gradient, Reversible):
            nodes = [Reverse.apply(rule, len(rows), y, z, start, *rows, *leaves)]
        else:
            early = replace(rule, gradient=Phantom()) if isinstance(gradient, Implicit) else rule
            given = zip([*(early for _ in at), rule], states, strict=True)
            nodes = [Equilibrium.apply(each, len(rows), state, *rows, *leaves) for each, state in given]
        return unpacked(parts, nodes, solution)[0], self.last_solution

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a layer that is read from a file, has not warned yet."""
        return vars(self) | {"told": set()}

    def _record(self, solution: Solution, why: Callable[[], str]) -> None:
        self.last_backward = solution
        self._tell(rules.BackwardNotConverged, why)

    def _tell(self, kind: type[RuntimeWarning], why: Callable[[], str]) -> None:
        """Warn why a solve failed, if it did and no warning of this kind came before."""
        if self.on_failure == "ignore" or (self.on_failure != "raise" and kind in self.told) or not (message := why()):
            return
        if self.on_failure == "raise":
            raise kind(message)
        warn(message, kind, each=True)  # or an equal one of another layer on the same line would not be shown
        self.told.add(kind)  # unless a filter made it an error

    def start(self, x: Tensor) -> State:
        """Where the solve begins when the call names no ``z0``."""
        if callable(self.z0):
            return self.z0(x)
        return x if self.z0 == "x" else torch.zeros_like(x)

    def _refuse_live(self) -> None:
        if self.allow_live or not isinstance(self.cell, nn.Module):
            return
        for name, module in self.cell.named_modules():
            if is_live(module):
                live = f"{f'cell.{name}'.strip('.')} is a live {type(module).__name__}, another map at each evaluation"
                raise ValueError(f"{live}: use GroupNorm, put it outside the cell or in eval mode")


# torch.compiler.disable, but for its import of Dynamo, which takes longer than that of the rest of torch.
_call_eager = torch._compile._disable_dynamo(DEQ._call)


def _why(solution: Solution, tol: float, failed: int) -> str:
    """How many rows of a forward solve failed, and what to try."""
    lost = f"{rules.missed(solution, tol, failed)}; z* is NaN for {int(solution.residual.isinf().sum())} of them"
    more = "Allow more max_steps, raise tol, or make the cell contract more; nclib.diagnose(layer, x) finds the cause."
    return f"forward solve: {lost}. {more}"


def _mixed(residual: Tensor, tol: float) -> str:
    """The warning where rows that were solved alone, as others had left, are not solved beside all."""
    worst = max(residual.tolist(), default=0.0)
    said = f"forward solve: rows met tol={tol:g} as others had left, and miss it beside all, at {worst:.1e}: the cell "
    said += "mixes rows, as attention does along the first axis. Give it tokens as (B, T, D), batch first."
    return said if worst > 10 * tol + 100 * torch.finfo(residual.dtype).eps else ""


def _check_rule(gradient: Gradient, **solvers: Solver | None) -> None:
    """A gradient rule, and the solvers given together with it."""
    if not isinstance(gradient, Gradient):
        raise TypeError(f"gradient={gradient!r}: give an Implicit(), Neumann(...), Phantom(), Unrolled(...), …")
    for name, solver in solvers.items():
        if solver is not None:
            check_solver(name, solver)
            if isinstance(gradient, rules.OWN_STEPS):
                raise ValueError(f"{name}={solver!r} has nothing to do: gradient={gradient!r} has steps of its own")


def _check_at(at: Sequence[int], gradient: Gradient) -> None:
    if not isinstance(at, Sequence) or not all(is_whole(count) and count >= 1 for count in at):
        raise ValueError(f"at={at!r}: give numbers of evaluations of at least 1, such as at=[5, 10]")
    if at and isinstance(gradient, Reversible):
        raise ValueError("at=...: Reversible(steps) keeps no states on the way; use Unrolled(steps) or a solver")
