"""Why an equilibrium layer misbehaves: ``diagnose`` looks for the usual causes and says what it finds."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nclib.deq.cell import Parts, State, flat_rows, functional_form, packed, uncompiled, vjp
from nclib.deq.gradients import Autocast, Gradient, Implicit
from nclib.deq.jacobian import spectral_radius
from nclib.deq.layer import DEQ
from nclib.methods import Anderson, Broyden, FixedPointIteration, Solver
from nclib.solver import HALF_FLOOR, Solution

NAMES = ("map", "converged", "fixed_point", "starts", "spectral_radius", "input", "gradient", "cost")
ROWS, STARTS = 32, 4  # rows that the findings with many evaluations look at; random starts besides zero
REPEATED, MOVED, SAME, DEAD, EXPANSIVE, WRONG = 1e-5, 0.1, 0.01, 1e-3, 1.01, 0.1  # as the docstring of diagnose says


@dataclass(frozen=True)
class Finding:
    ok: bool | None  # None: nothing to judge
    says: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What ``diagnose`` found. Print it, or take ``as_dict()`` or ``plot()``.

    Attributes
    ----------
    findings : for each name, whether it is ``ok`` (None where there is nothing to judge), what it ``says`` and its
        ``numbers``
    trace : (T, B) residual of each row at each evaluation of the layer's own solve
    tol : the tolerance of that solve
    """

    findings: dict[str, Finding]
    trace: Tensor
    tol: float

    @property
    def complaints(self) -> list[str]:
        """The names of the findings that are not ok."""
        return [name for name, finding in self.findings.items() if finding.ok is False]

    def __repr__(self) -> str:
        marks = {True: "ok", False: "PROBLEM", None: "-"}
        lines = [f"{marks[found.ok]:8}{name:17}{found.says}" for name, found in self.findings.items()]
        return "\n".join([f"Diagnosis: {', '.join(self.complaints) or 'no complaint'}", *lines])

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Each finding as plain numbers, texts and lists; None stands for what is not finite."""
        found = {name: {"ok": each.ok, "says": each.says} | each.numbers for name, each in self.findings.items()}
        return json.loads(json.dumps(found), parse_constant=lambda _: None)

    def plot(self, ax: Any = None) -> Any:
        """Draw the residual of each row against the evaluations, and return the axes. Needs matplotlib."""
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots()[1]
        ax.semilogy(range(1, len(self.trace) + 1), self.trace.cpu().numpy(), color="0.7", linewidth=0.8)
        ax.axhline(self.tol, color="C3", linestyle="--", label="tolerance")
        ax.set(xlabel="evaluations of the cell", ylabel="relative residual")
        return ax


def diagnose(layer: DEQ, x: Tensor, z0: State | None = None, args: Sequence[Tensor] = ()) -> Diagnosis:
    """Say why an equilibrium layer misbehaves on a batch.

    The layer is solved as it would be in a call, in its mode, under the caller's autocast. Then a search with up to 600
    evaluations, to a tolerance a hundred times smaller where the precision allows that, looks for the fixed points
    themselves. A copy of the layer is examined, so that it stays as it is, and so does the random state.

    Parameters
    ----------
    layer : a ``DEQ``. Its own forward hooks are not run, those of modules inside the cell are
    x, z0, args : as in the call, ``layer(x, z0=z0, args=args)``

    Returns
    -------
    Diagnosis
        Its findings, by name, and when each of them is a complaint:

        - ``map``: the cell's value at one point changes by more than 1e-5 when it is called again, or that of the first
          row when the other rows become copies of it. Then ``converged`` alone is judged besides.
        - ``converged``: a row misses the solver's tolerance. Quantiles of the evaluations and the trace are with it.
        - ``fixed_point``: the search finds none, or one that moves by more than 10 % at the smaller tolerance, or a
          state that has grown tenfold while ‖f(z) − z‖ stays above a tenth of what it was: a state that grows without
          end has a small relative residual, too. What follows is for the rows that have one.
        - ``starts``: from zero and from four random points the search ends more than 1 % apart, or 100 tolerances.
        - ``spectral_radius``: of ∂f/∂z at z*, above 1.01 in some row: plain iteration moves away from z*.
        - ``input``: z* changes by less than 0.1 % in every row when noise as large as x is added to it (where x is
          not floating-point: when the rows of x change places).
        - ``gradient``: the cell changes while gradients are recorded; autograd differs from finite differences of the
          cell by more than 10 %, along a random direction of z, x or a parameter; or the layer's gradient differs from
          backpropagation through plain steps at z* by more than 10 % with ``Implicit``, by 90° or more with a rule that
          approximates. The plain steps end when they change the gradient by less than 1e-4, and after 500; rows of
          which they do not are left out, as where the spectral radius is above 1.
        - ``cost``: never one. A step, forward and backward, in evaluations of the cell.

        From ``starts`` on the first 32 rows are examined, for the spectral radius at most 8.

    Raises
    ------
    TypeError
        For what is not a ``DEQ``.

    Notes
    -----
    Errors of the cell or the layer are raised as in a call. What a plain callable closes over is not copied.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> layer = nc.DEQ(lambda z, x: torch.tanh(3 * z + 0.1 * x), nc.Anderson(), z0="zeros")
    >>> found = nc.diagnose(layer, torch.linspace(-1, 1, 12).view(4, 3))
    >>> "starts" in found.complaints, found.as_dict()["input"]["ok"]
    (True, True)
    """
    if not isinstance(layer, DEQ):
        raise TypeError(f"layer is a {type(layer).__name__}; give the DEQ itself, such as network.deq")
    device = x.device.type
    amp = Autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
    forked = torch.random.fork_rng([x.device] if x.is_cuda else [])
    with torch.inference_mode(False), torch.no_grad(), forked, amp():
        layer = copy.deepcopy(layer)
        layer.return_solution, layer.on_failure = True, "ignore"
        x, *args = (t.detach().clone() for t in (x, *args))
        parts, _, start = packed(layer.cell, layer.start(x) if z0 is None else z0)
        if amp.enabled:  # as the layer does
            x, start = (t.float() if t.dtype in HALF_FLOOR else t for t in (x, start))
        exact = not amp.enabled and start.dtype not in HALF_FLOOR
        return _examine(_Rows(layer, parts, start.detach().clone(), x, tuple(args)), exact)


@dataclass(frozen=True)
class _Rows:
    """The layer's problem on some rows, with a state of one tensor."""

    layer: DEQ
    parts: Parts | None
    start: Tensor
    x: Tensor
    args: tuple[Tensor, ...]

    def at(self, which: Tensor) -> _Rows:
        return replace(self, start=self.start[which], x=self.x[which], args=tuple(t[which] for t in self.args))

    def f(self, z: Tensor) -> Tensor:
        cell = uncompiled(self.layer.cell)
        return (cell if self.parts is None else self.parts.wrap(cell))(z, self.x, *self.args)

    def call(
        self, z: Tensor, solver: Solver | None = None, gradient: Gradient | None = None
    ) -> tuple[Tensor, Solution]:
        """The layer itself, started at z."""
        if self.parts is None:
            return self.layer.forward(self.x, z, self.args, solver, gradient)
        z, solution = self.layer.forward(self.x, self.parts.unpack(z), self.args, solver, gradient)
        return self.parts.pack(z), replace(solution, value=self.parts.pack(solution.value))

    def search(self, tol: float, start: Tensor) -> tuple[Tensor, Tensor]:
        """The best point of three methods and its residual. Every row goes on to the next where one fails."""
        value, residual = start.clone(), start.new_full((len(start),), math.inf, dtype=torch.float64)
        for solver in (Broyden(tol, 200), Anderson(tol, 200, 10), FixedPointIteration(tol, 200, 0.5)):
            todo = torch.nonzero(residual > tol).flatten()
            if len(todo):
                found = self.at(todo).call(start[todo], solver, Implicit())[1]
                better = found.residual < residual[todo]
                value[todo[better]], residual[todo[better]] = found.value[better], found.residual[better].double()
        return value, residual

    def recorded(self) -> tuple[Callable[..., Tensor], list[Tensor]]:
        """The cell as a function of its leaves, z, x and args, and the leaves."""
        with torch.enable_grad():
            return functional_form(self.layer.cell, self.parts, self.start, self.x, *self.args)


def _examine(rows: _Rows, exact: bool) -> Diagnosis:
    layer, start = rows.layer, rows.start
    solver = layer.solver if layer.training or layer.eval_solver is None else layer.eval_solver
    tol = getattr(layer.gradient, "tol", solver.tol)
    tight = min(tol, max(tol / 100, 50 * torch.finfo(start.dtype).eps)) if exact else tol
    random = torch.Generator(start.device).manual_seed(0)
    own = rows.call(start)[1]
    found = {"map": _map(rows, random), "converged": _converged(own, tol)}
    why, kept = "map", torch.zeros(0, dtype=torch.long)
    if found["map"].ok:
        usable = own.value.isfinite().flatten(1).all(1).view(_per_row(start))
        loose, residual = rows.search(tol, torch.where(usable, own.value, start))
        z, _ = rows.search(tight, loose)
        first = rows.f(start)
        grown = _norm(z) > 10 * (_norm(start) + _norm(first))
        step = torch.maximum(_norm(rows.f(z) - z), torch.finfo(z.dtype).eps * _norm(z))  # rounding hides smaller ones
        moved = torch.where(grown & (step > 0.1 * _norm(first - start)), 1, _apart(loose, z))
        found["fixed_point"], exists = _fixed_point(residual <= tol, moved, own.converged)
        why, kept = "fixed_point", torch.nonzero(exists).flatten()[:ROWS]
    if len(kept):
        some, z, done = rows.at(kept), z[kept], own.converged[kept]
        found["starts"] = _starts(some, z, tight, random)
        found["input"] = _input(some, z, tight, random)
        found["spectral_radius"] = _radius(some, z, random)
        found["gradient"] = _cell_gradient(some, z, exact, random) or _layer_gradient(some.at(done), z[done], random)
    found["cost"] = _cost(rows)
    not_judged = Finding(None, f"Not judged, see {why}.")
    return Diagnosis({name: found.get(name, not_judged) for name in NAMES}, own.trace, tol)


def _map(rows: _Rows, random: torch.Generator) -> Finding:
    z = rows.start + _noise(rows.f(rows.start), random)  # where nothing vanishes by symmetry
    first = torch.zeros(len(z), dtype=torch.long, device=z.device)
    value, again, copies = rows.f(z), rows.f(z), rows.at(first).f(z[first])
    repeated, mixed = float(_apart(value, again).max()), float(_apart(value[:1], copies[:1]))
    says = "The cell is one map, row by row."
    if mixed > REPEATED:
        says = f"The cell mixes rows, as BatchNorm does in training: the others change the first by {mixed:.0%}."
    if repeated > REPEATED:
        says = f"The cell changes by {repeated:.0%} if called again: it is random (functional.dropout) or has changed."
    return Finding(max(repeated, mixed) <= REPEATED, says, {"change_repeated": repeated, "change_by_other_rows": mixed})


def _converged(own: Solution, tol: float) -> Finding:
    done, total = int(own.converged.sum()), len(own.converged)
    steps = own.steps.cpu().double().quantile(torch.tensor([0, 0.5, 0.9, 1], dtype=torch.float64)).tolist()
    lost, worst = int((~own.residual.isfinite()).sum()), float(own.residual.max())
    says = f"{done} of {total} rows reach {tol:g}, in {steps[1]:.0f} evaluations (median; at most {steps[3]:.0f})."
    if done < total:
        says += f" The worst residual is {worst:.1e}; {lost} rows are never finite."
    numbers = {"rows": total, "rows_converged": done, "rows_never_finite": lost, "tol": tol, "worst_residual": worst}
    numbers["evaluations"] = dict(zip(("least", "median", "90 %", "most"), steps, strict=True))
    return Finding(done == total, says, numbers | {"residual_worst": own.trace.amax(1).tolist()})


def _fixed_point(solved: Tensor, moved: Tensor, converged: Tensor) -> tuple[Finding, Tensor]:
    exists = solved & (moved <= MOVED)
    count, seeming, weak = int(exists.sum()), int((solved & ~exists).sum()), int((exists & ~converged).sum())
    says = f"{count} of {len(exists)} rows have a fixed point."
    if weak:
        says += f" For {weak} of them the layer's solver is too weak: take Broyden, more max_steps or a larger tol."
    if seeming:
        says += f" {seeming} only seem solved: solved better, they move on. The state grows, or tol is large."
    numbers = {"rows_with_one": count, "rows_seeming": seeming, "rows_beyond_the_solver": weak}
    return Finding(count == len(exists), says, numbers), exists


def _starts(rows: _Rows, z: Tensor, tol: float, random: torch.Generator) -> Finding:
    solved, elsewhere = [], []
    for size in range(STARTS + 1):  # 0 is the start at zero
        noise = _noise(z, random)
        point, residual = rows.search(tol, size * noise)
        solved.append(residual <= tol)
        elsewhere.append(solved[-1] & (_apart(point, z, 1e-4 * _norm(noise)) > max(SAME, 100 * tol)))
    tried, several = int(torch.stack(solved).sum()), int(torch.stack(elsewhere).any(0).sum())
    says = f"{tried} of {len(z) * (STARTS + 1)} solves from zero and random starts converge, all to the same point."
    if several:
        says = f"{several} of {len(z)} rows have several fixed points: the start decides which one is found."
    return Finding(not several, says, {"rows": len(z), "rows_with_several": several, "solves": tried})


def _radius(rows: _Rows, z: Tensor, random: torch.Generator) -> Finding:
    few = torch.arange(max(1, min(8, len(z), 2**25 // (80 * flat_rows(z).shape[1]))), device=z.device)  # memory
    radius = spectral_radius(rows.at(few).f, z[few], generator=random)
    worst = float(radius.max())
    says = f"The spectral radius of ∂f/∂z at z* is up to {worst:.2f}: plain iteration "
    far = "moves away from it. Scale the cell down, or keep to Broyden or Anderson, with Implicit."
    says += "contracts there, or hardly." if worst <= EXPANSIVE else far
    return Finding(worst <= EXPANSIVE, says, {"radius": radius.tolist()})


def _input(rows: _Rows, z: Tensor, tol: float, random: torch.Generator) -> Finding:
    other = rows.x + _noise(rows.x, random) if rows.x.is_floating_point() else rows.x.roll(1, 0)
    point, residual = replace(rows, x=other).search(tol, z)
    change = _apart(z, point)[residual <= tol]
    if not len(change) or torch.equal(other, rows.x):
        return Finding(None, "Not judged: no row is solved with another x.")
    most, middle = float(change.max()), float(change.median())
    alive = most > max(DEAD, 10 * tol)
    says = f"Another x moves z* by {middle:.0%} (median)."
    if not alive:
        says = f"z* does not depend on x, another x moves it by {most:.1e} at most: the cell must use x in each call."
    return Finding(alive, says, {"change_median": middle, "change_most": most})


def _cell_gradient(rows: _Rows, z: Tensor, exact: bool, random: torch.Generator) -> Finding | None:
    """A complaint where autograd's derivative of the cell is not that of its values."""
    still = rows.f(z)
    f, leaves = rows.recorded()
    point = [z, *([rows.x] if rows.x.is_floating_point() else []), *leaves]

    def value(z: Tensor, *others: Tensor) -> Tensor:
        x, *leaves = others if rows.x.is_floating_point() else (rows.x, *others)
        return f(leaves, z, x, *rows.args)

    with torch.enable_grad():
        copies = [t.detach().requires_grad_() for t in point]
        fz = value(*copies)
    if float(_apart(fz.detach(), still).max()) > REPEATED:
        return Finding(False, "The cell changes while gradients are recorded: a buffer of it, for instance.")
    step, error = torch.finfo(z.dtype).eps ** (1 / 3), 0.0
    least = (1e-3 * step * float(fz.norm())) ** 2  # rounding decides below
    for i, tensor in enumerate(point if exact else []):
        along = step * _noise(tensor.reshape(1, -1), random).view_as(tensor)
        ahead, behind = (value(*point[:i], tensor + sign * along, *point[i + 1 :]) for sign in (1, -1))
        change = (ahead - behind) / 2
        found, true = float((_grad(fz, [copies[i]], change)[0] * along).sum()), float(change.square().sum())
        error = max(error, abs(found - true) / max(true, least, torch.finfo(z.dtype).tiny))
    says = f"Autograd's derivative of the cell is off by {error:.0%}: it detaches, uses no_grad, or changes a buffer."
    return Finding(False, says, {"cell_error": error}) if error > WRONG else None


def _layer_gradient(rows: _Rows, z: Tensor, random: torch.Generator) -> Finding:
    rule, rows = rows.layer.gradient, replace(rows, x=rows.x.detach().requires_grad_(rows.x.is_floating_point()))
    f, leaves = rows.recorded() if len(z) else (None, [])
    targets = [t for t in (rows.x, *leaves) if t.requires_grad]
    if not len(z) or not targets:
        return Finding(None, "Not judged: no row is solved by the layer itself, or nothing takes a gradient.")
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        fz, ours = f(leaves, at, rows.x, *rows.args), rows.call(rows.start)[0]
    g = term = total = torch.randn(z.shape, generator=random, device=z.device, dtype=z.dtype)
    settled, steps = torch.zeros(len(z), dtype=torch.bool, device=z.device), 1
    while steps < 500 and not settled.all():
        term, steps = vjp(fz, at, term), steps + 1
        total = total + term
        settled = _norm(term) <= 1e-4 * _norm(total)
    if not settled.any():
        return Finding(None, "Not judged: the gradient through plain steps at z* grows with their number.")
    g, total = (torch.where(settled.view(_per_row(z)), t, 0) for t in (g, total))
    a, b = (torch.cat([t.flatten() for t in _grad(*of)]) for of in ((ours, targets, g), (fz, targets, total)))
    error, cosine = float(_apart(a[None], b[None])), float(torch.cosine_similarity(a, b, dim=0))
    exact = isinstance(rule, Implicit) and rule.steps is None
    says = f"The gradient is {error:.1%} off that through {steps} plain steps at z*, with cosine {cosine:.2f}."
    if exact and error > WRONG:
        says += " Let its backward solve take more max_steps and both solves a smaller tol."
    numbers = {"error": error, "cosine": cosine, "steps": steps, "rows": int(settled.sum())}
    return Finding(error <= WRONG or (not exact and cosine > 0), says, numbers)


def _cost(rows: _Rows) -> Finding:
    def step() -> None:
        x = rows.x.detach().requires_grad_(rows.x.is_floating_point())
        with torch.enable_grad():
            z = replace(rows, x=x).call(rows.start)[0]
        _grad(z, [t for t in (x, *rows.layer.parameters()) if t.requires_grad], torch.ones_like(z))

    def seconds(run: Callable[[], object]) -> float:
        begin = time.perf_counter()
        run()
        if rows.x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    one, whole = (min(seconds(run) for _ in range(4)) for run in (lambda: rows.f(rows.start), step))
    says = f"A step, forward and backward, takes {whole / one:.0f} times as long as one evaluation."
    return Finding(None, says, {"step_seconds": whole, "evaluation_seconds": one, "ratio": whole / one})


def _grad(value: Tensor, inputs: Sequence[Tensor], along: Tensor) -> Sequence[Tensor]:
    if not value.requires_grad or not inputs:
        return [torch.zeros_like(t) for t in inputs]
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return torch.autograd.grad(value, inputs, along.to(value.dtype), **options)


def _norm(z: Tensor) -> Tensor:
    return flat_rows(z).double().norm(dim=1)


def _apart(a: Tensor, b: Tensor, least: Tensor | float = 1e-30) -> Tensor:
    """(B,) ‖a − b‖ relative to the larger of both; 0 where they are not finite."""
    return (_norm(a - b) / torch.maximum(_norm(a), _norm(b)).clamp_min(least)).nan_to_num(0, posinf=0)


def _noise(like: Tensor, random: torch.Generator) -> Tensor:
    """Normal, each row as large as that of ``like``, or 1 where that is zero or not finite."""
    size = _norm(like).to(like.dtype) / math.prod(like.shape[1:]) ** 0.5
    size = torch.where(size.isfinite() & (size > 0), size, 1).view(_per_row(like))
    return size * torch.randn(like.shape, generator=random, device=like.device, dtype=like.dtype)


def _per_row(z: Tensor) -> tuple[int, ...]:
    return (-1,) + (1,) * (z.dim() - 1)
