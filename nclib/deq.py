"""The equilibrium layer: z* = cell(z*, x), found by a solver, differentiated by a rule.

The cell, the solver and the rule are three separate values. The forward solve records nothing. The
backward pass evaluates the cell once more at z*, so what is kept in between is z* and x, whatever
the number of steps.
"""

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from nclib.solvers import (
    EPSILON,
    Solution,
    Solver,
    Status,
    check_args,
    check_count,
    check_damping,
    check_solver,
    check_tol,
    evaluate,
    fixed_point,
    flat_rows,
    fresh_weights,
    is_whole,
    paper_solver,
)

HALF = (torch.bfloat16, torch.float16)
PACKAGES = (os.path.dirname(__file__) + os.sep, os.path.dirname(torch.__file__) + os.sep)
Cell = Callable[..., Tensor]


class ForwardNotConverged(RuntimeWarning):
    """Rows of a forward solve missed the tolerance, so their z* is not an equilibrium, or NaN.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> few = nc.FixedPointIteration(max_steps=5)
    >>> layer = nc.DEQ(lambda z, x: 2 * z + x, few, on_failure="raise")
    >>> try:
    ...     layer(torch.ones(1, 2))
    ... except nc.deq.ForwardNotConverged as error:
    ...     print(str(error)[:77])
    forward solve: 1 of 1 rows missed tol=0.0001, worst relative residual 5.1e-01
    """


class BackwardNotConverged(RuntimeWarning):
    """A backward pass missed its tolerance, so the gradient is approximate.

    Examples
    --------
    >>> import warnings
    >>> import torch
    >>> import nclib as nc
    >>> rule = nc.Implicit(nc.FixedPointIteration(max_steps=2))
    >>> layer = nc.DEQ(lambda z, x: 0.99 * z + x, nc.Anderson(tol=1e-6), rule)
    >>> z, solution = layer(torch.ones(1, 2, requires_grad=True))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     z.sum().backward()
    >>> caught[0].category is nc.deq.BackwardNotConverged
    True
    """


# --- The rules for the gradient -------------------------------------------------------------------
# g is the gradient of the loss at z*, J = ∂f/∂z there; all but Unrolled give uᵀ∂f.


@dataclass(frozen=True)
class Implicit:
    """The exact gradient, uᵀ∂f with u = g + Jᵀu, where g is the gradient of the loss at z* and J =
    ∂f/∂z.

    It cannot be differentiated again; ``Unrolled`` can. Source: Bai, Kolter & Koltun 2019, theorem
    1.

    Parameters
    ----------
    solver : for u; None takes the forward one. Its tolerance is relative to each row, whatever the
        size of the loss
    steps : products with Jᵀ, if few of them are wanted and an approximate gradient is meant; rows
        that reach the tolerance before need fewer. Then nothing warns, and
        ``layer.last_backward.residual`` has the residual r of each row. If J contracts with factor
        ρ, u is off by at most r/(1 − ρ) of ‖g + Jᵀu‖. None goes on until the solver's own limit,
        and warns where the tolerance is missed

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> layer = nc.DEQ(lambda z, x: 0.5 * z + x, nc.Anderson(tol=1e-6), nc.Implicit())
    >>> x = torch.ones(1, 2, requires_grad=True)
    >>> layer(x)[0].sum().backward()
    >>> [round(value, 3) for value in x.grad[0].tolist()]
    [2.0, 2.0]

    Two products with Jᵀ, and what they leave:

    >>> z, _ = layer(x, gradient=nc.Implicit(nc.FixedPointIteration(), steps=2))
    >>> torch.autograd.grad(z.sum(), x)[0], layer.last_backward.residual
    (tensor([[1.5000, 1.5000]]), tensor([0.1429]))
    """

    solver: Solver | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.solver is not None:
            check_solver(self.solver)
        if self.steps is not None:
            check_count(self, "steps")


@dataclass(frozen=True)
class Neumann:
    """A truncated inverse, u = Σ_{i<terms} (Jᵀ)ⁱ g; Neumann(1) takes (I − J)⁻¹ for the identity.

    Parameters
    ----------
    terms : at least 1

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> layer = nc.DEQ(lambda z, x: 0.5 * z + x, nc.Anderson(tol=1e-6), nc.Neumann(3))
    >>> x = torch.ones(1, 2, requires_grad=True)
    >>> layer(x)[0].sum().backward()
    >>> x.grad
    tensor([[1.7500, 1.7500]])
    """

    terms: int

    def __post_init__(self) -> None:
        check_count(self, "terms")


@dataclass(frozen=True)
class Phantom:
    """The gradient of ``steps`` damped steps from z*, u = (1−damping) Σ_{i<steps} (damping·I +
    (1−damping)·Jᵀ)ⁱ g.

    Phantom(1) is the Jacobian-free gradient of Fung et al. 2022. All steps share the one evaluation
    at z*, which is backpropagation through the steps where z* is an equilibrium. Where the solve
    stopped earlier, the steps would move on from z*, as those of torchdeq do; for these solve
    without gradients and call ``layer(x, z0=z, gradient=Unrolled(steps))``. Source: Geng et al.
    2021, eq. 9, with λ = 1 − damping.

    Parameters
    ----------
    steps : at least 1
    damping : in [0, 1)

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> layer = nc.DEQ(lambda z, x: 0.5 * z + x, nc.Anderson(tol=1e-6), nc.Phantom(2))
    >>> x = torch.ones(1, 2, requires_grad=True)
    >>> layer(x)[0].sum().backward()
    >>> x.grad
    tensor([[1.5000, 1.5000]])
    """

    steps: int = 1
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_count(self, "steps")
        check_damping(self)


@dataclass(frozen=True)
class Unrolled:
    """Backpropagation through plain applications of the cell, started at z0, without a solver.

    Parameters
    ----------
    steps : how many, at least 1
    tol : relative residual up to which the ``Solution`` calls a row converged; it changes nothing
        else

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> layer = nc.DEQ(lambda z, x: 0.5 * z + x, gradient=nc.Unrolled(2), z0="zeros")
    >>> x = torch.ones(1, 2, requires_grad=True)
    >>> layer(x)[0].sum().backward()
    >>> x.grad
    tensor([[1.5000, 1.5000]])
    """

    steps: int
    tol: float = 1e-3

    def __post_init__(self) -> None:
        check_count(self, "steps")
        check_tol(self)


Gradient = Implicit | Neumann | Phantom | Unrolled


# --- The layer ------------------------------------------------------------------------------------


class DEQ(nn.Module):
    """A layer whose output solves z* = cell(z*, x, *args).

    Call it with x (B, *), whose first axis is the rows. It returns z* and the ``Solution``. z* is
    its value to the bit, with the gradient attached while torch records gradients, in training and
    evaluation. Both are one tensor in memory: clone z* before you change it in place. Further
    arguments of the call:

    - ``z0`` (B, *), the start, required where z and x differ in shape.
    - ``args``, a tuple of tensors (B, *) of any type that belong to the rows. Dropout with one mask
      for a whole solve, which is a map like any other, takes its mask here: (B, 1, D) for tokens
      (B, T, D).
    - ``solver`` and ``gradient``, for this call alone.

    A state of several tensors is one tensor: concatenate them in z0, and split z in the cell.

    Parameters
    ----------
    cell : maps (z, x, *args) to a tensor like z, row by row, so that tokens come as (B, T, D),
        batch first. Rows that are solved leave the batch and others take their places, so it must
        not close over tensors of the batch: masks and further conditions go into ``args``. A tensor
        that all rows share, such as a causal mask, belongs to the cell, as a buffer. A cell with
        weights is a module, and its parameters get gradients; a function must not close over
        tensors that need one
    solver : ``FixedPointIteration``, ``Anderson`` or ``Broyden``; left out, ``paper_solver()``:
        Broyden, relative residual 1e-3, at most 20 evaluations
    gradient : ``Implicit`` (the default), ``Neumann``, ``Phantom`` or ``Unrolled``, which takes a
        fixed number of steps and no solver
    z0 : start where none is given in the call: "x" (then one step is the explicit block cell(x, x))
        or "zeros"
    return_solution : False returns z* alone, so that the layer stands in ``nn.Sequential``
    on_failure : what happens when a solve misses its tolerance for some row, forward or backward,
        in training and evaluation: "warn" once with ``ForwardNotConverged`` and once with
        ``BackwardNotConverged``, "raise" them, or "ignore" it

    Attributes
    ----------
    last_solution : the ``Solution`` of the last call. Copies of the layer, and files, leave it out
    last_backward : that of the last backward solve of ``Implicit``

    Raises
    ------
    ValueError
        For an option that is not among those allowed; for a solver beside ``Unrolled``; when
        called, for BatchNorm, dropout and their kin in the cell, which make it another map at each
        evaluation.
    TypeError
        For a gradient that is none.
    RuntimeError
        Where the cell uses tensors that need a gradient and are not its own; for a second
        derivative.
    ForwardNotConverged, BackwardNotConverged
        With ``on_failure="raise"``.

    Notes
    -----
    A row that is not solved has its best iterate, and its gradient is the same formula there, not
    that of an equilibrium. A row of which no evaluation was finite is NaN; left out of the loss, as
    by ``z[solution.converged]``, it adds nothing to the gradients of ``Implicit``, ``Neumann`` and
    ``Phantom``. A fixed number of steps, as of ``Unrolled``, is never reported as failed: look at
    ``solution.residual``.

    A sequence is one row: its tokens are solved together, so that with a causal or padding mask
    later and masked tokens still move the others, by about the tolerance.

    Compile the whole cell, torch.compile(cell) or cell.compile(): the solve runs it compiled, the
    backward pass eager. In torch.compile(network) the graph breaks at the layer, whose solve runs
    eager unless its cell is compiled.

    Under autocast x and the state are float32. In bfloat16 gentle cells reach residuals of 5e-4 and
    convolution cells of 5e-4 to 4e-3, so that ``paper_solver()`` solves few rows or none: compute
    such a cell in float32.

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

    A layer that returns z* alone:

    >>> network = torch.nn.Sequential(torch.nn.Linear(4, 1), DEQ(layer.cell, return_solution=False))
    >>> network(torch.zeros(2, 4)).shape, network[1].last_solution.value.shape
    (torch.Size([2, 1]), torch.Size([2, 1]))
    """

    def __init__(
        self,
        cell: Cell,
        solver: Solver | None = None,
        gradient: Gradient = Implicit(),
        z0: str = "x",
        return_solution: bool = True,
        on_failure: str = "warn",
    ) -> None:
        super().__init__()
        _check_rule(gradient, solver)
        if z0 not in ("x", "zeros"):
            raise ValueError(f"z0={z0!r}: allowed are 'x' and 'zeros', or a tensor in the call")
        if on_failure not in ("warn", "raise", "ignore"):
            raise ValueError(f"on_failure={on_failure!r}: allowed are 'warn', 'raise' and 'ignore'")
        self.cell = cell
        self.solver = paper_solver() if solver is None else solver
        self.gradient = gradient
        self.z0 = z0
        self.return_solution = return_solution
        self.on_failure = on_failure
        self.last_solution: Solution | None = None
        self.last_backward: Solution | None = None
        self.warned: set[type[RuntimeWarning]] = set()  # clear it to be warned again
        # The cell that was looked through for tensors that are not its own. It is in a list, or
        # torch would count it as a part of the layer a second time.
        self.checked_cells: list[Cell] = []

    def forward(
        self,
        x: Tensor,
        z0: Tensor | None = None,
        args: Sequence[Tensor] = (),
        solver: Solver | None = None,
        gradient: Gradient | None = None,
    ) -> tuple[Tensor, Solution] | Tensor:
        call = _solve_eager if torch.compiler.is_compiling() else DEQ._solve
        z, solution = call(self, x, z0, args, solver, gradient)
        return (z, solution) if self.return_solution else z

    def _solve(
        self,
        x: Tensor,
        z0: Tensor | None,
        args: Sequence[Tensor],
        solver: Solver | None,
        gradient: Gradient | None,
    ) -> tuple[Tensor, Solution]:
        gradient = self.gradient if gradient is None else gradient
        _check_rule(gradient, solver)
        solver = self.solver if solver is None else solver
        if not isinstance(x, Tensor):
            kind = type(x).__name__
            raise TypeError(f"x is a {kind}; give one tensor, others of its rows in args=(tensor,)")
        start = self.start(x) if z0 is None else z0
        if not isinstance(start, Tensor) or start.dim() == 0 or len(start) != len(x):
            raise ValueError(
                f"z0 is {_described(start)}; give one tensor with a start for each of the {len(x)} "
                "rows of x. A state of several tensors is one tensor: concatenate them"
            )
        check_args(args, len(x))
        refuse_live_modules(self.cell)
        if torch.is_autocast_enabled(x.device.type):  # or f(z) + x would be rounded each time
            x = x.float() if x.dtype in HALF else x
            start = start.float() if start.dtype in HALF else start
        self.last_solution = None  # so that its memory is free for this solve

        if isinstance(gradient, Unrolled):
            z, self.last_solution = unroll(self.cell, gradient, start, (x, *args))
            return z, self.last_solution
        # What is compiled or looked up for each shape, as GPU kernels are, should see few shapes.
        halve = x.is_cuda or _is_compiled(self.cell)
        rows = (x, *args)
        detached = [tensor.detach() for tensor in rows]
        solution = fixed_point(self.cell, solver, start.detach(), detached, halve)
        self.last_solution = solution
        if solution.num_failed and self._reports(ForwardNotConverged):
            self._fail(ForwardNotConverged, _forward_message(solution, solver.tol))
        if not torch.is_grad_enabled():
            return solution.value, solution
        return self._attach_gradient(solution, rows, solver, gradient), solution

    def start(self, x: Tensor) -> Tensor:
        """Where the solve begins when the call names no ``z0``."""
        return x if self.z0 == "x" else torch.zeros_like(x)

    def _attach_gradient(
        self, solution: Solution, rows: Sequence[Tensor], solver: Solver, gradient: Gradient
    ) -> Tensor:
        if getattr(self, "_is_replica", False):
            raise RuntimeError(
                "nn.DataParallel hands out cells without parameters: use DistributedDataParallel"
            )
        parameters = parameters_of(self.cell)
        autocast = _autocast_settings(rows[0].device.type)
        if self.cell not in self.checked_cells:
            refuse_outside_tensors(self.cell, parameters, solution.value, rows, autocast)
            self.checked_cells = [self.cell]
        undefined = solution.num_undefined > 0
        call = _Call(self, gradient, solver, undefined, list(parameters), len(rows), autocast)
        return _ImplicitGradient.apply(call, solution.value, *rows, *parameters.values())

    def _reports(self, kind: type[RuntimeWarning]) -> bool:
        """Whether a failed solve is to be reported: as an error always, as a warning once."""
        first = kind not in self.warned
        return self.on_failure == "raise" or (self.on_failure == "warn" and first)

    def _fail(self, kind: type[RuntimeWarning], message: str) -> None:
        if self.on_failure == "raise":
            raise kind(message)
        self.warned.add(kind)
        warnings.warn(message, kind, stacklevel=_level_of_user())

    def __getstate__(self) -> dict:
        """Copies and files are without the last batch's solution, have not warned yet, and look
        through their cell anew."""
        fresh = {"last_solution": None, "last_backward": None, "warned": set(), "checked_cells": []}
        return vars(self) | fresh


# torch.compiler.disable without its import of Dynamo, which takes longer than that of torch
_solve_eager = torch._compile._disable_dynamo(DEQ._solve)


def _level_of_user() -> int:
    """The ``stacklevel`` of the user's line for a warning of the caller: the innermost line that is
    neither ours nor torch's."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGES):
        frame = frame.f_back
        level += 1
    return level


def _check_rule(gradient: Gradient, solver: Solver | None) -> None:
    if not isinstance(gradient, Gradient):
        rules = "Implicit(), Neumann(terms), Phantom() or Unrolled(steps)"
        raise TypeError(f"gradient={gradient!r}: give an {rules}")
    if solver is not None:
        check_solver(solver)
        if isinstance(gradient, Unrolled):
            raise ValueError(f"solver={solver!r} has nothing to do: {gradient!r} takes plain steps")


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _missed(solution: Solution, tol: float) -> str:
    rows = len(solution.converged)
    worst = float(solution.residual.max())
    return (
        f"{solution.num_failed} of {rows} rows missed tol={tol:g}, worst relative residual "
        f"{worst:.1e}"
    )


def _forward_message(solution: Solution, tol: float) -> str:
    return (
        f"forward solve: {_missed(solution, tol)}; z* is NaN for {solution.num_undefined} of them. "
        "Allow more max_steps, raise tol, or make the cell contract more; "
        "print(nclib.diagnose(layer, x)) shows more."
    )


def _backward_message(solution: Solution, tol: float) -> str:
    return (
        f"backward solve: {_missed(solution, tol)}; their gradient is approximate. Allow more "
        "max_steps with Implicit(solver=...), make the cell contract more, or choose Phantom(). If "
        "few are meant, ask for them: Implicit(steps=...)."
    )


# --- The cell: what it must not hold, and how it is differentiated --------------------------------


def refuse_live_modules(cell: Cell) -> None:
    """Raise ValueError for a module that is another map each time, or mixes the rows.

    Modules are known by their kind, since a reader has to be told which one it is and what to do
    about it. To evaluate the cell twice and compare would say neither.
    """
    if not isinstance(cell, nn.Module):
        return
    for name, module in cell.named_modules():
        remedy = _remedy(module)
        if remedy:
            owner = name.partition(".parametrizations.")[0]  # of a parametrised weight
            path = f"cell.{owner}".rstrip(".")
            kind = type(cell.get_submodule(owner)).__name__
            raise ValueError(f"{path}, a {kind}, makes the cell another map each time: {remedy}")


def _remedy(module: nn.Module) -> str:
    """What to do about a module that an equilibrium cannot have; empty for others."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        return "use nn.GroupNorm"
    if not module.training:
        return ""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "use nn.GroupNorm, or put it outside the cell"
    if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
        return "give it track_running_stats=False"
    if isinstance(module, nn.RReLU):
        return "use nn.LeakyReLU"
    if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        return "give it dropout=0" if module.dropout1.p > 0 else ""
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return "give it dropout=0" if module.dropout > 0 else ""
    if _is_spectral_norm(module):
        return (
            "spectral_norm moves its estimate at each evaluation in training mode. Use weight_norm "
            "or orthogonal of torch.nn.utils.parametrizations, or put this module in evaluation "
            "mode, .eval(), after each layer.train()"
        )
    if _drops(module):
        return "set its rate to 0, or give one mask for the whole solve in args=(mask,)"
    return ""


def _is_spectral_norm(module: nn.Module) -> bool:
    hooks = module._forward_pre_hooks.values()  # where the older torch.nn.utils.spectral_norm is
    return isinstance(module, _SpectralNorm) or any(isinstance(h, SpectralNorm) for h in hooks)


def _drops(module: nn.Module) -> bool:
    """Dropout and its kin by name, as timm and torchvision have DropPath and StochasticDepth."""
    names = " ".join(kind.__name__ for kind in type(module).__mro__)
    if not re.search(r"Drop(out|[^a-z]|$)|StochasticDepth", names):
        return False
    for rate in ("p", "drop_prob", "drop_rate"):
        if hasattr(module, rate):
            return bool(getattr(module, rate))
    return not module._modules


def _is_compiled(cell: Cell) -> bool:
    marks = ("_orig_mod", "_torchdynamo_orig_callable", "_compiled_call_impl")
    return any(getattr(cell, mark, None) is not None for mark in marks)


def _autocast_settings(device: str) -> dict:
    return {
        "device_type": device,
        "dtype": torch.get_autocast_dtype(device),
        "enabled": torch.is_autocast_enabled(device),
        "cache_enabled": False,  # or the cast weights would stay there as long as an outer autocast
    }


@contextmanager
def recording(autocast: dict | None = None) -> Iterator[None]:
    """Record a graph for many products: nothing runs compiled, and no weight is from a cache."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "torch.inference_mode() records no Jacobian; write `with torch.no_grad():` instead"
        )
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        if autocast is not None:
            stack.enter_context(torch.autocast(**autocast))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(setattr, parametrize, "_cache_enabled", parametrize._cache_enabled)
        parametrize._cache_enabled = 0
        yield


def parameters_of(cell: Cell) -> dict[str, Tensor]:
    """By name, each module once, or functional_call would not put back what it replaced."""
    parameters = {}
    if isinstance(cell, nn.Module):
        for path, module in cell.named_modules():
            for name, parameter in module.named_parameters(path, recurse=False):
                parameters[name] = parameter
    return parameters


def call_with(cell: Cell, parameters: dict[str, Tensor], rows: Sequence[Tensor]) -> Tensor:
    """The cell at its rows, z first, with these tensors as its parameters."""
    if not parameters:
        return cell(*rows)
    return torch.func.functional_call(cell, parameters, tuple(rows), tie_weights=False)


def vjp(fz: Tensor, z: Tensor, u: Tensor, create_graph: bool = False) -> Tensor:
    """Jᵀu with J = ∂f/∂z, 0 where f does not depend on z; the graph stays for the next product."""
    if not fz.requires_grad:
        return torch.zeros_like(z)
    keep = {"retain_graph": True, "create_graph": create_graph}
    return torch.autograd.grad(fz, [z], u.to(fz.dtype), materialize_grads=True, **keep)[0]


def refuse_outside_tensors(
    cell: Cell, parameters: dict[str, Tensor], z: Tensor, rows: Sequence[Tensor], autocast: dict
) -> None:
    """Raise RuntimeError where the graph of one row reaches a leaf that is not the cell's."""
    one_row = []
    for tensor in (z, *rows):
        one_row.append(tensor[:1].detach().requires_grad_(tensor.is_floating_point()))
    # Hooks of its own, or torch.utils.checkpoint counts this evaluation, which it does not repeat.
    unseen = torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved)
    with recording(autocast), unseen:
        fz = call_with(cell, parameters, one_row)
        known = [tensor for tensor in (*one_row, *parameters.values()) if tensor.requires_grad]
        visited = {torch.autograd.graph.get_gradient_edge(tensor).node for tensor in known}
    todo = [fz.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            shape = tuple(node.variable.shape)
            raise RuntimeError(
                f"the gradient of a tensor of shape {shape} that the cell does not own would be "
                "lost: make the cell a module that has it as a parameter, give it in "
                "args=(tensor,), or detach() it"
            )
        todo.extend(parent for parent, _ in node.next_functions)


# --- The gradient of an equilibrium ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Call:
    """What the backward pass of one call needs besides tensors."""

    layer: DEQ
    gradient: Gradient
    solver: Solver
    undefined: bool  # whether some row of the equilibrium is NaN
    names: list[str]  # of the parameters
    num_rows: int  # tensors that belong to the rows: x and args
    autocast: dict


class _Linearisation:
    """The cell at a point z, with its graph: it gives products with Jᵀ, J = ∂f/∂z, and with ∂f."""

    def __init__(
        self, call: _Call, parameters: dict[str, Tensor], z: Tensor, rows: Sequence[Tensor]
    ) -> None:
        with recording(call.autocast):
            self.z = z.detach().requires_grad_()
            self.fz = call_with(call.layer.cell, parameters, (self.z, *rows))

    def vjp(self, u: Tensor) -> Tensor:
        return vjp(self.fz, self.z, u)


class _ImplicitGradient(torch.autograd.Function):
    """The derivative of z* = f(z*, x), whichever way z* was found.

    Differentiate both sides: dz* = J dz* + ∂f, J = ∂f/∂z. So if g is the gradient of the loss at
    z*, the gradient at x and at the parameters is uᵀ∂f with u = g + Jᵀu; the approximate rules have
    another u.
    """

    @staticmethod
    def forward(ctx, call: _Call, value: Tensor, *tensors: Tensor) -> Tensor:
        z = value.detach()
        ctx.call = call
        ctx.save_for_backward(z, *tensors)
        return z

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "an equilibrium layer is not differentiated twice (create_graph=True); use "
                "Unrolled(steps)"
            )
        call = ctx.call
        z, *tensors = ctx.saved_tensors  # once, or torch.utils.checkpoint refuses
        rows = tensors[: call.num_rows]
        parameters = tensors[call.num_rows :]
        nothing_left = False
        if call.undefined:
            left_out = _left_out(z, g)
            nothing_left = bool(left_out.all())
            z, *rows = _with_stand_ins([z, *rows], left_out)

        inputs = []  # detached: derivatives are partial ones, and no hook of the user's runs twice
        for tensor, needs_grad in zip([*rows, *parameters], ctx.needs_input_grad[2:], strict=True):
            inputs.append(tensor.detach().requires_grad_(needs_grad))
        rows = inputs[: call.num_rows]
        parameters = dict(zip(call.names, inputs[call.num_rows :], strict=True))
        linearisation = _Linearisation(call, parameters, z, rows)
        if isinstance(call.gradient, Implicit):
            constants = [row.detach() for row in rows]
            u = _solve_adjoint(call, parameters, linearisation, g, z, constants)
        else:
            u = _series(call.gradient, linearisation, g)

        fz = linearisation.fz
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        if nothing_left or not wanted or not fz.requires_grad:
            return (None,) * (2 + len(inputs))
        # None, not 0, for what f does not depend on: weight decay acts on a gradient of zero.
        grads = iter(torch.autograd.grad(fz, wanted, u.to(fz.dtype), allow_unused=True))
        return None, None, *(next(grads) if tensor.requires_grad else None for tensor in inputs)


def _left_out(z: Tensor, g: Tensor) -> Tensor:
    """The rows that are NaN and left out of the loss. They get a stand-in, as zero times NaN is
    NaN."""
    return flat_rows(z).isnan().any(1) & (flat_rows(g) == 0).all(1)


def _with_stand_ins(tensors: list[Tensor], left_out: Tensor) -> list[Tensor]:
    """The tensors, with the first row that is not left out in the place of each that is."""
    if not left_out.any():
        return tensors
    place = torch.arange(len(left_out), device=left_out.device)
    stand_in = torch.where(left_out, left_out.int().argmin(), place)
    return [tensor[stand_in] for tensor in tensors]


class _Adjoint:
    """The map u ↦ g + Jᵀu, for ``fixed_point``.

    It is called with u, g, z and the rows of x and args that are still worked on. Rows leave
    and never come back, so that the rows are others where, and only where, their number is another.
    Then J is taken anew: one evaluation of the rows that are left, repaid by the next step.
    """

    def __init__(
        self, call: _Call, parameters: dict[str, Tensor], linearisation: _Linearisation
    ) -> None:
        self.call = call
        self.parameters = parameters
        self.linearisation = linearisation

    def __call__(self, u: Tensor, g: Tensor, z: Tensor, *rows: Tensor) -> Tensor:
        if len(z) != len(self.linearisation.z):
            self.linearisation = None  # first, so that the graph before is not kept by this map
            self.linearisation = _Linearisation(self.call, self.parameters, z, rows)
        return g + self.linearisation.vjp(u)


def _solve_adjoint(
    call: _Call,
    parameters: dict[str, Tensor],
    linearisation: _Linearisation,
    g: Tensor,
    z: Tensor,
    rows: Sequence[Tensor],
) -> Tensor:
    """u = g + Jᵀu, for rows of g that are scaled to norm 1."""
    layer = call.layer
    steps = call.gradient.steps
    solver = call.gradient.solver or call.solver
    if steps is not None:
        solver = replace(solver, max_steps=steps)
    norm = _norm_of_rows(g)
    unit = (g / norm).to(g.dtype)
    adjoint = _Adjoint(call, parameters, linearisation)
    # Rows leave by halves, since J is taken anew for those that are left.
    solution = fixed_point(adjoint, solver, unit, (unit, z, *rows), halve=True)
    layer.last_backward = solution
    u = (solution.value * norm).to(g.dtype)
    to_report = steps is None and solution.num_failed and layer._reports(BackwardNotConverged)
    # Where g is not finite the loss overflowed, as where a GradScaler looks for its scale.
    if to_report and g.isfinite().all():
        layer._fail(BackwardNotConverged, _backward_message(solution, solver.tol))
    return u


def _norm_of_rows(g: Tensor) -> Tensor:
    """(B, 1, …, 1) Norms in float64, 1 for rows of zeros."""
    flat = flat_rows(g)
    norm = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    largest = torch.linalg.vector_norm(flat, torch.inf, dim=1, dtype=torch.float64)
    # Squares under- or overflow before the row does.
    norm = torch.where((norm > 0) & (norm < torch.inf), norm, largest)
    return torch.where(norm > 0, norm, 1).view(-1, *(1,) * (g.dim() - 1))


def _series(rule: Neumann | Phantom, linearisation: _Linearisation, g: Tensor) -> Tensor:
    terms = rule.terms if isinstance(rule, Neumann) else rule.steps
    damping = 0.0 if isinstance(rule, Neumann) else rule.damping
    term = (1 - damping) * g
    total = term
    for _ in range(terms - 1):
        term = damping * term + (1 - damping) * linearisation.vjp(term)
        total = total + term
    return total


# --- Plain steps ----------------------------------------------------------------------------------


@fresh_weights()
def unroll(
    cell: Cell, gradient: Unrolled, z: Tensor, rows: Sequence[Tensor]
) -> tuple[Tensor, Solution]:
    """z after the steps, recorded while torch records gradients, and the evidence."""
    for _ in range(gradient.steps):
        z = evaluate(cell, z, rows, len(z)).to(z.dtype)
    with torch.no_grad():
        residual = relative_residual(z, cell(z, *rows))
    converged = residual <= gradient.tol
    status = torch.where(converged, Status.CONVERGED.value, Status.MAX_STEPS.value)
    status = torch.where(residual.isfinite(), status, Status.DIVERGED.value)
    num_evals = gradient.steps + 1
    steps = torch.full_like(status, num_evals)
    # The residual after each step would cost a third of the time of a small network.
    trace = residual[None]
    return z, Solution(z.detach(), residual, converged, status, steps, num_evals, trace)


def relative_residual(z: Tensor, fz: Tensor) -> Tensor:
    """(B,) ‖f(z) − z‖ / (‖f(z)‖ + 1e-8), at least in float32."""
    wide = torch.promote_types(z.dtype, torch.float32)
    z = flat_rows(z).to(wide)
    fz = flat_rows(fz).to(wide)
    size = torch.linalg.vector_norm(fz - z, dim=1)
    return size / (torch.linalg.vector_norm(fz, dim=1) + EPSILON)


# --- The size of the Jacobian ---------------------------------------------------------------------


def jacobian_frobenius_sq(
    f: Callable[[Tensor], Tensor],
    z: Tensor,
    num_probes: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Unbiased estimate of ‖J‖_F² = E‖Jᵀv‖² for J = ∂f/∂z and random signs v, for each row.

    As a regulariser, give z*.detach() unless the gradient through z* is wanted as well.
    Source: Hutchinson 1990; as a regulariser of equilibria, Bai, Koltun & Kolter 2021, §4.

    Parameters
    ----------
    f : maps (B, *) to (B, *) row by row
    z : (B, *)
    num_probes : independent v, at least 1
    generator : of the v; left out, torch's own

    Returns
    -------
    Tensor
        (B,) ≥ 0, differentiable in z and in what f depends on while torch records gradients; 0 for
        a constant map.

    Raises
    ------
    RuntimeError
        Under torch.inference_mode(), which records no Jacobian.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> nc.deq.jacobian_frobenius_sq(lambda z: 0.5 * z, torch.zeros(2, 4))
    tensor([1., 1.])
    """
    if not is_whole(num_probes) or num_probes < 1:
        raise ValueError(f"num_probes={num_probes!r}: give a whole number of at least 1")
    recorded = torch.is_grad_enabled()
    with recording():
        if not z.requires_grad:
            z = z.detach().requires_grad_()
        fz = evaluate(f, z, (), len(z))
    total = z.new_zeros(len(z), dtype=torch.promote_types(z.dtype, torch.float32))
    for _ in range(num_probes):
        signs = torch.randint(0, 2, z.shape, device=z.device, generator=generator)
        w = vjp(fz, z, (2 * signs - 1).to(z.dtype), create_graph=recorded)
        total = total + flat_rows(w).to(total.dtype).square().sum(1)
    return total / num_probes
