"""Forward passes of a fixed number of steps: those of ``Unrolled`` and ``Reversible``, and how the latter goes back."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nclib.deq.cell import Cell, Parts, State, flat_rows, refuse_others, residuals, unpacked
from nclib.deq.gradients import Reversible, Rule, Unrolled, missed, refuse_twice
from nclib.solver import EPSILON, Solution, Status, evaluate_cell, own_weights

REVERSAL = 1e-3  # a reversible backward pass that misses its start by more, relative to z*, warns


@own_weights()
def unroll(
    cell: Cell, parts: Parts | None, gradient: Unrolled, at: Sequence[int], z: Tensor, *rows: Tensor
) -> tuple[list[State], Solution]:
    """The states after the steps ``at`` and the last one, recorded while torch records gradients."""
    by_part, states = [], {}
    for step in range(1, gradient.steps + 1):
        last, z = z, evaluate_cell(cell, z, rows, len(z)).to(z.dtype)
        by_part.append(residuals(last.detach(), z.detach(), parts))
        if step in at:
            states[step] = z
    with torch.no_grad():
        by_part.append(residuals(z, cell(z, *rows), parts))
    solution = _evidence(z.detach(), by_part, gradient.tol, parts)
    return unpacked(parts, [*(states.get(count, z) for count in at), z], solution)


@torch.no_grad()
@own_weights()
def reversible(
    cell: Cell, parts: Parts | None, gradient: Reversible, start: Tensor, *rows: Tensor
) -> tuple[Tensor, Tensor, Solution]:
    """The last y and z in float64, and the evidence."""
    wide, by_part, beta = torch.promote_types(start.dtype, torch.float64), [], gradient.beta

    def evaluate(point: Tensor) -> Tensor:
        point = point.to(start.dtype)
        value = evaluate_cell(cell, point, rows, len(point))
        by_part.append(residuals(point, value, parts))
        return value.to(wide)

    y = z = start.to(wide)
    for _ in range(gradient.steps):
        y = (1 - beta) * y + beta * evaluate(z)
        z = (1 - beta) * z + beta * evaluate(y)
    evaluate(z)
    return y, z, _evidence(z.to(start.dtype), by_part, gradient.tol, parts)


class Reverse(torch.autograd.Function):
    """z after some reversible steps; the backward pass takes them back one by one.

    Inputs: the rule, how many tensors are ``rows``, the last y and z, the start, the rows, the leaves.
    """

    @staticmethod
    def forward(ctx, rule: Rule, num_rows: int, y: Tensor, z: Tensor, start: Tensor, *tensors: Tensor) -> Tensor:
        ctx.rule, ctx.num_rows, ctx.count = rule, num_rows, len(tensors)
        ctx.save_for_backward(y, z, start, *tensors, *rule.fixed)
        return z.to(start.dtype, copy=True)

    @staticmethod
    def backward(ctx, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        refuse_twice()
        rule, beta = ctx.rule, ctx.rule.gradient.beta
        y, z, start, *tensors = ctx.saved_tensors[: 3 + ctx.count]  # once, or torch.utils.checkpoint refuses
        last = z
        rule.refuse_live()
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
            refuse_others(value, [at, *rows, *own])
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
        _record((y, z), start, last, rule)
        found = iter(totals)
        grads = (next(found) if t.requires_grad else None for t in (*rows, *own))
        return None, None, None, None, (along_y + along_z).to(start.dtype) if start.requires_grad else None, *grads


def _record(found: Sequence[Tensor], start: Tensor, last: Tensor, rule: Rule) -> None:
    """By how much y and z miss the start, relative to the larger of it and the last z, and the warning about it."""
    y_off, z_off, *sizes = (flat_rows(t).norm(dim=1) for t in (*(t - start for t in found), start, last))
    off = torch.maximum(y_off, z_off) / (torch.maximum(*sizes) + EPSILON)
    solution, calls = _evidence(found[1], [off[:, None]], REVERSAL, None), 2 * rule.gradient.steps
    solution = replace(solution, steps=calls * solution.steps, num_evals=calls)
    why = "the way back of a reversible pass: {}. Rounding has grown. Take fewer steps or a beta closer to 0."
    said = lambda: "" if solution.converged.all() else why.format(missed(solution, REVERSAL))  # noqa: E731
    rule.record(unpacked(rule.parts, [], solution)[1], said)


def _evidence(z: Tensor, by_part: Sequence[Tensor], tol: float, parts: Parts | None) -> Solution:
    """Of a fixed number of steps, all rows taking all of them."""
    trace = torch.stack([each.amax(1) for each in by_part])
    residual = trace[-1]
    converged = residual <= tol
    status = torch.where(converged, Status.CONVERGED.value, Status.MAX_STEPS.value)
    status = torch.where(residual.isfinite(), status, Status.DIVERGED.value)
    calls, shares = torch.full_like(status, len(trace)), None if parts is None else by_part[-1]
    return Solution(z, residual, converged, status, calls, len(trace), trace, shares)
