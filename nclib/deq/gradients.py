"""The gradient rules, and the node of the autograd graph that gives an equilibrium its gradient.

``steps`` has the rules' own forward passes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from nclib.deq.cell import Parts, flat_rows, refuse_others, unpacked, vjp
from nclib.methods import Options, Solver, check_solver
from nclib.solver import Solution, solve


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
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     z.sum().backward()
    >>> said[0].category is nc.BackwardNotConverged
    True
    """


def missed(solution: Solution, tol: float, failed: int = 0) -> str:
    """How many rows did not converge, of how many, and by how much; and how many of those that failed did converge."""
    lost = int((solution.residual > tol).sum())
    said = f"{lost} of {len(solution.converged)} rows missed tol={tol:g}, worst relative residual "
    grown = f"; {failed - lost} met it only because their state grew, as without a fixed point: ‖f(z) − z‖ is not small"
    return f"{said}{float(solution.residual.max()):.1e}{grown if failed > lost else ''}"


class Implicit(Options):
    """The exact gradient, uᵀ∂f with u = g + Jᵀu, where g is the cotangent of z* and J = ∂f/∂z at z*.

    It cannot be differentiated again; ``Unrolled`` can. Source: Bai, Kolter & Koltun 2019, theorem 1.

    Parameters
    ----------
    solver : for u; None takes the forward one. Its tolerance is relative to each row, whatever the size of the loss
    steps : products with Jᵀ, if few of them are wanted and an approximate gradient is meant; rows that reach the
        tolerance before need fewer. Then nothing warns, and ``layer.last_backward.residual`` has the residual r of each
        row. If J contracts with factor ρ, u is off by at most r/(1 − ρ) of ‖g + Jᵀu‖. None goes on until the solver's
        own limit, and warns where the tolerance is missed

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
        super().__post_init__()
        if self.solver is not None:
            check_solver("solver", self.solver)


class Neumann(Options):
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


class Phantom(Options):
    """The gradient of ``steps`` damped steps from z*, u = (1−damping) Σ_{i<steps} (damping·I + (1−damping)·Jᵀ)ⁱ g.

    Phantom(1) is the Jacobian-free gradient of Fung et al. 2022. All steps share the one evaluation at z*, which is
    backpropagation through the steps where z* is an equilibrium. Where the solve stopped earlier, the steps would move
    on from z*, as those of torchdeq do; for these solve without gradients and call
    ``layer(x, z0=z, gradient=Unrolled(steps))``.
    Source: Geng et al. 2021, eq. 9, with λ = 1 − damping.

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


class Unrolled(Options):
    """Backpropagation through plain applications of the cell, started at z0, without a solver.

    Parameters
    ----------
    steps : how many, at least 1
    tol : relative residual up to which the ``Solution`` calls a row converged; it changes nothing else

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


class Reversible(Options):
    """The exact gradient of a fixed number of steps, in memory that does not grow with it, without a solver.

    From y = z = z0, one step is

        y ← (1 − β)·y + β·f(z),   z ← (1 − β)·z + β·f(y),

    and the last z is the value. Since f(y) is taken at the new y, a step can be undone, z = (z' − β·f(y')) / (1 − β),
    then y alike, so that the backward pass computes the states again instead of keeping them. Fixed points of f are
    fixed points of the step, with y = z.

    Parameters
    ----------
    steps : at least 1, of two evaluations of the cell each; the backward pass makes as many again, with their products.
    beta : in (0, 2), not 1. The default of 0.5 is ours.
    tol : as in ``Unrolled``

    Notes
    -----
    "Exact" is a statement without rounding. A step back multiplies rounding by 1/|1 − β| or more, 2 for β = 0.5 and 5
    for β = 0.8; where J has real eigenvalues in (−1, 1), by the square of that at most. Therefore y and z are float64
    whatever the cell's type is. The backward pass ends where the forward pass began, so it shows its error: where that
    exceeds 1e-3 of the row it warns ``BackwardNotConverged``. Take fewer steps or a smaller beta then. The cell runs
    without torch.compile in both passes, whose values must agree. The gradient cannot be differentiated again. z0 gets
    its gradient too.

    Source: McCallum, Arora & Foster 2025, "Reversible Deep Equilibrium Models", arXiv 2509.12917: the step, its
    inverse, the backward pass and β ∈ (0, 2). There the steps end at a tolerance and at a largest number, and start at
    zeros; here there are always ``steps`` of them, from the z0 of the layer. The measured error is not from there.

    Examples
    --------
    >>> import torch
    >>> from nclib.deq import DEQ, Reversible
    >>> x = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    >>> z, solution = DEQ(lambda z, x: 0.2 * z + x, gradient=Reversible(steps=20))(x)
    >>> z.sum().backward()
    >>> round(z.item(), 3), round(x.grad.item(), 3), solution.num_evals
    (1.25, 1.25, 41)
    """

    steps: int
    beta: float = 0.5
    tol: float = 1e-3


Gradient = Implicit | Neumann | Phantom | Unrolled | Reversible
OWN_STEPS = Unrolled | Reversible  # rules that bring their own forward pass


def autocast_of(t: Tensor) -> Callable[[], AbstractContextManager[None]]:
    """The caller's autocast on the device of a tensor, to be entered again."""
    device = t.device.type
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)

    @contextmanager
    def again() -> Iterator[None]:
        # Without caches: weights that were cast while nothing was recorded would come back without a gradient, and so
        # would those of torch.nn.utils.parametrize.cached().
        cached, parametrize._cache_enabled = parametrize._cache_enabled, 0
        try:
            with torch.autocast(device, dtype, enabled, cache_enabled=False):
                yield
        finally:
            parametrize._cache_enabled = cached

    return again


@dataclass(frozen=True)
class Rule:
    """What a backward pass needs besides the tensors."""

    f: Callable[..., Tensor]  # of (leaves, z, *rows)
    gradient: Gradient
    solver: Solver
    amp: Callable[[], AbstractContextManager[None]]
    replaces: bool  # whether f computes with the leaves it is given
    parts: Parts | None
    fixed: Sequence[Tensor]  # the cell's tensors without gradients, saved so that torch refuses those that change
    refuse_live: Callable[[], None]
    record: Callable[[Solution, Callable[[], str]], None]  # takes the evidence, and the warning if that is not empty
    lost: int = 0  # rows of the forward solve that are NaN


def refuse_twice() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError("an equilibrium layer is not differentiated twice (create_graph=True); use Unrolled(steps)")


class Equilibrium(torch.autograd.Function):
    """z* = f(z*, *rows): the value is given, the derivative follows from the implicit function theorem.

    Inputs: the rule, how many tensors are ``rows`` (batch first, arguments of f), z*, the rows, the leaves.
    """

    @staticmethod
    def forward(ctx, rule: Rule, num_rows: int, value: Tensor, *tensors: Tensor) -> Tensor:
        ctx.rule, ctx.num_rows, ctx.count = rule, num_rows, len(tensors)
        ctx.set_materialize_grads(False)
        z = value.detach()
        ctx.save_for_backward(z, *tensors, *rule.fixed)
        return z

    @staticmethod
    def backward(ctx, cotangent: Tensor | None) -> tuple[Tensor | None, ...]:
        if cotangent is None:
            return (None,) * (3 + ctx.count)
        refuse_twice()
        rule = ctx.rule
        z, *tensors = ctx.saved_tensors[: 1 + ctx.count]
        # The partial derivatives of f at this point, even where z* and the rows are functions of one another, and with
        # no hook of theirs run.
        which = _left_in(z, cotangent) if rule.lost else slice(None)  # which copies nothing
        rows = [t[which].detach().requires_grad_(t.requires_grad) for t in tensors[: ctx.num_rows]]
        z, leaves = z[which], tensors[ctx.num_rows :]
        own = [t.detach().requires_grad_(t.requires_grad) for t in leaves] if rule.replaces else leaves
        rule.refuse_live()
        with torch.enable_grad(), rule.amp():
            at = z.detach().requires_grad_()
            fz = rule.f(own, at, *rows)
        refuse_others(fz, [at, *rows, *own])
        if isinstance(rule.gradient, Implicit):
            u = _implicit(rule, fz, at, leaves, cotangent, [t.detach() for t in (z, *rows)])
        else:
            u = _series(rule.gradient, fz, at, cotangent)
        if rule.lost and rule.lost == len(cotangent) and not cotangent.any():  # all NaN, and left out
            return (None,) * (3 + ctx.count)
        inputs = [*rows, *own]
        wanted = [t for t in inputs if t.requires_grad] if fz.requires_grad else []
        # None, not zero, for what f does not depend on: weight decay acts on parameters whose gradient is zero.
        # What a callable closes over may have a graph that others still need.
        options = {"allow_unused": True, "retain_graph": not rule.replaces}
        grads = iter(torch.autograd.grad(fz, wanted, u.to(fz.dtype), **options) if wanted else ())
        return None, None, None, *(next(grads, None) if t.requires_grad else None for t in inputs)


def _left_in(z: Tensor, cotangent: Tensor) -> Tensor:
    """Which row stands in for each: another for one that is NaN and that the loss leaves out, since zero times NaN
    would be added to the gradients of all."""
    out = flat_rows(z).isnan().any(1) & (flat_rows(cotangent) == 0).all(1)
    return torch.where(out, out.int().argmin(), torch.arange(len(z), device=z.device))


def _implicit(
    rule: Rule, fz: Tensor, at: Tensor, leaves: Sequence[Tensor], cotangent: Tensor, args: Sequence[Tensor]
) -> Tensor:
    """Solve u = g + Jᵀu for cotangent rows of unit norm. Each time half of the rows are done, J is taken again for the
    rest: one evaluation of those rows, repaid by the next step."""
    shape = (-1,) + (1,) * (cotangent.dim() - 1)
    by_row = flat_rows(cotangent)
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
        return g + vjp(held[1], held[2], u)

    sizes, few = None if rule.parts is None else rule.parts.sizes, rule.gradient.steps
    solution, (failed, *_), _ = solve(adjoint, solver, g, (g, *args), "halve", sizes, few)

    why = "backward solve: {}; their gradient is approximate. Allow more max_steps with Implicit(solver=...), make the "
    why += "cell contract more, or choose Phantom(). If few are meant, ask for them: Implicit(steps=...)."
    told = failed and few is None  # unless the loss overflowed, as where a GradScaler looks for its scale
    said = lambda: why.format(missed(solution, solver.tol, failed)) if told and cotangent.isfinite().all() else ""  # noqa: E731
    rule.record(unpacked(rule.parts, [], solution)[1], said)
    return (solution.value * scale).to(cotangent.dtype)


def _series(rule: Neumann | Phantom, fz: Tensor, at: Tensor, cotangent: Tensor) -> Tensor:
    terms, damping = (rule.terms, 0.0) if isinstance(rule, Neumann) else (rule.steps, rule.damping)
    total = term = (1 - damping) * cotangent
    for _ in range(terms - 1):
        term = damping * term + (1 - damping) * vjp(fz, at, term)
        total = total + term
    return total
