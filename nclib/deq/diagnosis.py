"""Why an equilibrium layer misbehaves: ``diagnose`` looks for the usual causes and reports what it finds."""

import copy
import json
import math
import timeit
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_leaves

from nclib.deq.cell import Parts, State, flat_rows, functional_form, in_one_tensor, residuals, vjp
from nclib.deq.gradients import Gradient, Implicit, Unrolled, autocast_of
from nclib.deq.jacobian import spectral_radius
from nclib.deq.layer import DEQ
from nclib.methods import Anderson, Broyden, FixedPointIteration
from nclib.solver import EPSILON, HALF, Solution, solve

NAMES = ("map", "converged", "fixed_point", "starts", "spectral_radius", "input", "gradient", "cost")
ROWS, FEW, STARTS = 32, 8, 4  # rows that findings with many evaluations look at; random starts besides zero
FIRST, PLAIN = 8, 100  # steps that growth and the gradient are compared with
CLOSER, MEMORY = 1e4, 2e7  # what the solver's tolerance is divided by; numbers that Broyden's method may keep
REPEATED, MOVED, SAME, DEAD, EXPANSIVE, WRONG = 1e-5, 0.1, 0.01, 1e-3, 1.01, 0.1  # as the docstring of diagnose says


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What ``diagnose`` found. Print it, or take ``as_dict()`` or ``plot()``.

    Attributes
    ----------
    findings : for each name a dictionary: whether it is ``ok`` (None where there is nothing to judge), what it
        ``says``, and its numbers
    trace : (T, B) residual of each row at each evaluation of the layer's own solve
    tol : the tolerance of that solve
    """

    findings: dict[str, dict[str, Any]]
    trace: Tensor
    tol: float

    @property
    def complaints(self) -> list[str]:
        """The names of the findings that are not ok."""
        return [name for name, found in self.findings.items() if found["ok"] is False]

    def __repr__(self) -> str:
        marks = {True: "ok", False: "PROBLEM", None: "-"}
        lines = [f"{marks[found['ok']]:8}{name:17}{found['says']}" for name, found in self.findings.items()]
        return "\n".join([f"Diagnosis: {', '.join(self.complaints) or 'no complaint'}", *lines])

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """The findings as plain numbers, texts and lists; None stands for what is not finite."""
        return json.loads(json.dumps(self.findings), parse_constant=lambda _: None)

    def plot(self, ax: Any = None) -> Any:
        """Plot the residual of each row against the evaluations, and return the axes. Needs matplotlib."""
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots()[1]
        ax.semilogy(range(1, len(self.trace) + 1), self.trace.cpu().numpy(), color="0.7", linewidth=0.8)
        ax.axhline(self.tol, color="C3", linestyle="--", label="tolerance")
        ax.set(xlabel="evaluations of the cell", ylabel="relative residual")
        return ax


def diagnose(layer: DEQ, x: Tensor, z0: State | None = None, args: Sequence[Tensor] = ()) -> Diagnosis:
    """Report why an equilibrium layer misbehaves on a batch.

    The layer is solved as it would be in a call, in its mode, under the caller's autocast. Then a search with up to 600
    evaluations looks for the fixed points themselves, in float64 where the cell computes in it, to a tolerance up to
    ten thousand times smaller. A copy of the layer is examined: it stays as it is, and so does the random state.

    Parameters
    ----------
    layer : a ``DEQ``. Its own forward hooks are not run, those of modules inside the cell are
    x, z0, args : as in the call, ``layer(x, z0=z0, args=args)``

    Returns
    -------
    Diagnosis
        Its findings, by name, and when each of them is a complaint:

        - ``map``: the cell's value at one point changes by more than 1e-5 when it is called again, or that of the first
          or last row when the other rows become copies of it. Then ``converged`` alone is judged besides.
        - ``converged``: a row misses the solver's tolerance. Quantiles of the evaluations and the trace are with it.
        - ``fixed_point``: the search finds none, or at the smaller tolerance none within 10 %, or a state that has
          grown tenfold while ‖f(z) − z‖ stays above a tenth of what it was in the first 8 steps: a state that grows
          without end has a small relative residual, too. Or a z* that meets the tolerance is more than 10 % off: with
          a spectral radius ρ it may be residual/(1 − ρ) off. What follows is for the rows that have one.
        - ``starts``: from zero and from four random points, up to four times as large as z*, the search ends more than
          1 % apart, or 100 tolerances.
        - ``spectral_radius``: of ∂f/∂z at z*, above 1.01 in some row: plain iteration moves away from z*.
        - ``input``: z* changes by less than 0.1 % in every row when noise as large as x is added to it (where x is
          not floating-point: when the rows of x change places).
        - ``gradient``: the cell changes while gradients are recorded; or its derivative near z* by z, an input or a
          parameter of its own, along one direction, is more than 10 % off that of finite differences, as with
          ``detach()`` in the cell; or a row misses the tolerance of the backward solve of ``Implicit()``; or the
          layer's gradient differs from backpropagation through 100 plain steps at z* by more than 10 % with
          ``Implicit``, by 90° or more with a rule that approximates. It is not judged where finite differences do not
          settle, or plain steps leave z*, or 51 of them give another gradient, as above a spectral radius of 1.
        - ``cost``: never one. A step, forward and backward, in evaluations of the cell.

        From ``starts`` on the first 32 rows are examined, for the spectral radius and the gradient 8 of them.

    Raises
    ------
    TypeError
        For what is not a ``DEQ``.
    ValueError
        For an x without rows.

    Notes
    -----
    Errors of a forward pass are raised as in a call; one of a backward pass is a complaint about ``gradient``. What a
    plain callable closes over is not copied.

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
    if not len(x):
        raise ValueError("x has no rows; give a batch of at least one")
    forked = torch.random.fork_rng([x.device] if x.is_cuda else [])
    with torch.inference_mode(False), torch.no_grad(), forked, autocast_of(x)():
        # torch copies no weights that the former weight_norm and spectral_norm compute
        tensors = (t for module in layer.modules() for t in tree_leaves(vars(module)) if isinstance(t, Tensor))
        layer = copy.deepcopy(layer, {id(t): t.detach().clone() for t in tensors if not t.is_leaf})
        layer.return_solution, layer.on_failure, layer.last_backward = True, "ignore", None
        x, *args = (t.detach().clone() for t in (x, *args))
        start = layer.start(x) if z0 is None else z0
        own = layer.forward(x, start, args)[1]
        whole = copy.copy(layer)  # with the cell as it is
        whole._modules = dict(layer._modules)
        parts, layer.cell, start = in_one_tensor(layer.cell, start)
        if parts is not None:
            own = replace(own, value=parts.pack(own.value))
        if torch.is_autocast_enabled(x.device.type):  # as the layer does
            x, start = (t.float() if t.dtype in HALF else t for t in (x, start))
        return _examine(_Rows(layer, whole, parts, start.detach().clone(), (x, *args)), own)


@dataclass(frozen=True)
class _Rows:
    """The layer's problem on some rows, with a state of one tensor that holds these parts."""

    layer: DEQ
    whole: DEQ  # whose state has its parts
    packing: Parts | None
    start: Tensor
    given: tuple[Tensor, ...]  # x and args

    def at(self, which: Tensor) -> "_Rows":
        return replace(self, start=self.start[which], given=tuple(t[which] for t in self.given))

    def f(self, z: Tensor) -> Tensor:
        return self.layer.cell(z, *self.given)

    @property
    def sizes(self) -> Sequence[int] | None:
        return self.packing and self.packing.sizes

    def parts(self, z: Tensor) -> Sequence[Tensor]:
        return (z,) if self.sizes is None else z.split(self.sizes, 1)

    def first_steps(self) -> tuple[Tensor, Tensor]:
        """(P, B), the largest ‖z‖ and ‖f(z) − z‖ of plain steps from the start."""
        z, sizes, steps = self.start, [], []
        for _ in range(FIRST):
            before, z = z, self.f(z)
            sizes.append(self.norms(before))
            steps.append(self.norms(z - before))
        return torch.stack(sizes).amax(0), torch.stack(steps).amax(0)

    def in_double(self) -> "_Rows":
        """The same in float64 where the cell computes in it: there two points that are one meet, and finite differences
        of a ReLU settle."""
        with suppress(Exception):  # of whatever is copied, and of a callable that holds float32
            start, *given = (t.double() if t.is_floating_point() else t for t in (self.start, *self.given))
            wide = replace(self, layer=copy.deepcopy(self.layer).double(), start=start, given=tuple(given))
            if wide.f(start).dtype == torch.float64:
                return wide
        return self

    def norms(self, z: Tensor) -> Tensor:
        """(P, B), of each part: one may be small beside others."""
        return torch.stack([_norm(part) for part in self.parts(z)])

    def apart(self, a: Tensor, b: Tensor, least: Tensor | float = 1e-30) -> Tensor:
        """(B,) ``_apart`` of the part of a state that differs most."""
        return _apart(self.norms(a - b), self.norms(a), self.norms(b), least).amax(0)

    def noise(self, like: Tensor, random: torch.Generator) -> Tensor:
        """``_noise`` of each part."""
        parts = [_noise(part, random) for part in self.parts(like)]
        return parts[0] if self.sizes is None else torch.cat(parts, 1)

    def gradients(self, z: Tensor, along: Tensor, gradient: Gradient | None = None) -> list[Tensor]:
        """What ``along`` gives x and the parameters through the layer itself, which starts at z."""
        x, *args = self.given
        x = x.detach().requires_grad_(x.is_floating_point())
        wanted = [t for t in (x, *self.layer.parameters()) if t.requires_grad]
        with torch.enable_grad():
            start = z if self.packing is None else self.packing.unpack(z)
            value = self.whole.forward(x, start, args, gradient=gradient)[0]
            value = value if self.packing is None else self.packing.pack(value)
        if not value.requires_grad or not wanted:
            return []
        grads = torch.autograd.grad(value, wanted, along, allow_unused=True, materialize_grads=True)
        return [torch.view_as_real(grad) if grad.is_complex() else grad for grad in grads]

    def search(self, tol: float, start: Tensor) -> tuple[Tensor, Tensor]:
        """The best point of three methods and its residual. Every row goes on to the next where one fails."""
        value, residual = start.clone(), start.new_full((len(start),), math.inf, dtype=torch.float64)
        history = min(200, max(20, int(MEMORY / start.numel())))
        for solver in (Broyden(tol, 200, history), Anderson(tol, 200, 10), FixedPointIteration(tol, 200, 0.5)):
            todo = torch.nonzero(residual > tol).flatten()
            found = solve(self.layer.cell, solver, start[todo], self.at(todo).given, parts=self.sizes)[0]
            better = found.residual < residual[todo]
            value[todo[better]], residual[todo[better]] = found.value[better], found.residual[better].double()
        return value, residual


def _examine(rows: _Rows, own: Solution) -> Diagnosis:
    layer, start = rows.layer, rows.start
    solver = layer.solver if layer.training or layer.eval_solver is None else layer.eval_solver
    tol = getattr(layer.gradient, "tol", solver.tol)
    random = torch.Generator(start.device).manual_seed(0)
    found = {"map": _map(rows, random), "converged": _converged(own, tol)}
    why, kept = "map", torch.zeros(0, dtype=torch.long)
    if found["map"]["ok"]:
        loose, residual = rows.search(tol, torch.where(own.value.isfinite(), own.value, start))
        wide = rows.in_double()
        least = torch.finfo(wide.start.dtype).eps  # of smaller steps rounding decides
        tight, loose = min(tol, max(tol / CLOSER, 50 * least)), loose.to(wide.start.dtype)
        z, closer = wide.search(tight, loose)
        size, step = wide.norms(z), torch.maximum(wide.norms(wide.f(z) - z), least * wide.norms(z))
        # where steps stay what they are, and only ‖z‖ grew: between both tolerances, or from the first steps
        grown = (size > 10 * wide.norms(loose) + EPSILON) & (step > 0.5 * wide.norms(wide.f(loose) - loose))
        sizes, steps = wide.first_steps()
        grown |= (size > 10 * sizes + EPSILON) & (step > 0.1 * steps)
        narrow = z.to(start.dtype)
        residual = torch.minimum(residual, residuals(narrow, rows.f(narrow), rows.packing).amax(1))
        rounded = (residual > tol) & (closer <= tol)
        solved, near = (residual <= tol) | rounded, wide.apart(loose, z, EPSILON) <= MOVED
        exists = solved & ~grown.any(0) & (near | (closer <= tight))
        off = wide.apart(own.value, z, EPSILON)[exists & own.converged].tolist()
        found["fixed_point"] = _fixed_point(solved, exists, own.converged, int((exists & rounded).sum()), off)
        why, kept = "fixed_point", torch.nonzero(exists).flatten()[:ROWS]
    if len(kept):
        few = kept[:FEW]
        found["starts"] = _starts(wide.at(kept), z[kept], tight, random)
        found["input"] = _input(wide.at(kept), z[kept], tight, random)
        found["spectral_radius"] = _told(None, _radius, wide.at(few), z[few], random)
        found["gradient"] = _told(False, _gradient, rows.at(few), wide.at(few), z[few], random)
    found["cost"] = _told(None, _cost, rows)
    not_judged = {"ok": None, "says": f"Not judged, see {why}."}
    return Diagnosis({name: found.get(name, not_judged) for name in NAMES}, own.trace, tol)


def _map(rows: _Rows, random: torch.Generator) -> dict[str, Any]:
    z = rows.start + rows.noise(rows.f(rows.start), random)  # where nothing vanishes by symmetry
    value, again = rows.f(z), rows.f(z)
    ends = [torch.full((len(z),), row, device=z.device) for row in (0, len(z) - 1)]
    mixed = max(float(rows.apart(value[same[:1]], rows.at(same).f(z[same])[:1])) for same in ends)
    repeated = float(rows.apart(value, again).max())
    where = _first_to_change(rows, z) if repeated > REPEATED else ""
    says = f"Called again, the cell changes by {repeated:.2g}{where}, beside other rows by {mixed:.2g} of its size; "
    says += "it must do neither."
    ok = max(repeated, mixed) <= REPEATED
    return {"ok": ok, "says": says, "change_repeated": repeated, "change_by_other_rows": mixed}


def _first_to_change(rows: _Rows, z: Tensor) -> str:
    """Names the innermost module of the cell that gives something else when all is called again, if there is one."""
    calls: list[tuple] = []
    with register_module_forward_hook(lambda module, _, value: calls.append((module, value))):
        rows.f(z), rows.f(z)
    pairs = zip(calls, calls[len(calls) // 2 :], strict=False)
    changed = (m for (m, a), (_, b) in pairs if isinstance(a, Tensor) and a.shape == b.shape and not torch.equal(a, b))
    return next((f", first in its {type(module).__name__}" for module in changed), "")


def _converged(own: Solution, tol: float) -> dict[str, Any]:
    done, total = int((own.residual <= tol).sum()), len(own.residual)
    steps = own.steps.cpu().double().quantile(torch.tensor([0, 0.5, 0.9, 1], dtype=torch.float64)).tolist()
    lost, worst = int((~own.residual.isfinite()).sum()), float(own.residual.max())
    says = f"{done} of {total} rows reach {tol:g}, the median in {steps[1]:.0f} steps; "
    says += f"the worst residual is {worst:.1e}."
    numbers = {"rows": total, "rows_converged": done, "rows_never_finite": lost, "tol": tol, "worst_residual": worst}
    quantiles = dict(zip(("least", "median", "90 %", "most"), steps, strict=True))
    by_step = {"evaluations": quantiles, "residual_worst": own.trace.amax(1).tolist()}
    return {"ok": done == total, "says": says} | numbers | by_step


def _fixed_point(solved: Tensor, exists: Tensor, converged: Tensor, rounded: int, off: list[float]) -> dict[str, Any]:
    count, seeming, weak = (int(rows.sum()) for rows in (exists, solved & ~exists, exists & ~converged))
    total, most = len(exists), max(off, default=0.0)
    says = f"Found for {count} of {total} rows, for {seeming} others what seems one; the solver misses {weak} of them"
    says += f", and {rounded} are met in float64 alone. " if rounded else ". "
    says += f"A z* that meets the tolerance is up to {most:.0%} off its own."
    numbers = {"rows_with_one": count, "rows_seeming": seeming, "rows_beyond_the_solver": weak, "off_most": most}
    numbers["rows_beyond_the_precision"] = rounded
    return {"ok": count == total and most <= MOVED, "says": says} | numbers


def _starts(rows: _Rows, z: Tensor, tol: float, random: torch.Generator) -> dict[str, Any]:
    tried, elsewhere = 0, torch.zeros(len(z), dtype=torch.bool, device=z.device)
    for size in range(STARTS + 1):  # 0 is the start at zero
        noise = rows.noise(z, random)
        point, residual = rows.search(tol, size * noise)
        tried += int((residual <= tol).sum())
        moved = rows.apart(point, z, 1e-4 * rows.norms(noise))
        elsewhere |= (residual <= tol) & (moved > max(SAME, 100 * tol))
    several = int(elsewhere.sum())
    says = f"{several} of {len(z)} rows have several fixed points, by {tried} solves that converge from other starts."
    return {"ok": not several, "says": says, "rows": len(z), "rows_with_several": several, "solves": tried}


def _radius(rows: _Rows, z: Tensor, random: torch.Generator) -> dict[str, Any]:
    radius = spectral_radius(rows.f, z, generator=random)
    worst = float(radius.max())
    says = f"The spectral radius of ∂f/∂z at z* is up to {worst:.2f}; above 1 plain iteration moves away from z*."
    return {"ok": worst <= EXPANSIVE, "says": says, "radius": radius.tolist()}


def _input(rows: _Rows, z: Tensor, tol: float, random: torch.Generator) -> dict[str, Any]:
    x = rows.given[0]
    other = x + _noise(x, random) if x.is_floating_point() else x.roll(1, 0)
    point, residual = replace(rows, given=(other, *rows.given[1:])).search(tol, z)
    change = rows.apart(z, point, EPSILON)[residual <= tol]
    if not len(change) or torch.equal(other, x):
        return {"ok": None, "says": "Not judged: no row is solved with another x."}
    most, middle = float(change.max()), float(change.median())
    says = f"Another x moves z* by {middle:.0%} (median), {most:.1e} at most; does the cell use x in each call?"
    return {"ok": most > max(DEAD, 10 * tol), "says": says, "change_median": middle, "change_most": most}


def _gradient(rows: _Rows, wide: _Rows, exact: Tensor, random: torch.Generator) -> dict[str, Any]:
    still = wide.f(exact)
    with torch.enable_grad():
        recorded = wide.f(exact.detach().requires_grad_()).detach()
    if float(wide.apart(recorded, still).max()) > REPEATED:
        return {"ok": False, "says": "The cell changes while gradients are recorded: a buffer of it, for instance."}
    errors = _derivatives(wide, exact, random)
    if wrong := {name: off for name, off in errors.items() if off > WRONG}:
        worst, by = max(wrong.values()), ", ".join(wrong)
        says = f"The cell's derivative by {by} is up to {worst:.0%} off finite differences; is there a detach()?"
        return {"ok": False, "says": says, "error_of_cell": worst}
    if math.isnan(errors["z"]):
        return {"ok": None, "says": "Not judged: finite differences of the cell by z do not settle."}
    z = exact.to(rows.start.dtype)
    along, rule = torch.randn(z.shape, generator=random, device=z.device, dtype=z.dtype), rows.layer.gradient
    rules = (None, Unrolled(PLAIN // 2 + 1), Unrolled(PLAIN))
    ours, half, plain = (torch.cat([t.flatten() for t in rows.gradients(z, along, each)] or [z[:0]]) for each in rules)
    solved, backward = isinstance(rule, Implicit) and rule.steps is None, rows.whole.last_backward
    if solved and backward is not None and (lost := int((~backward.converged).sum())):
        worst = float(backward.residual.max())
        says = f"The backward solve misses its tolerance on {lost} of {len(z)} rows; the worst ends at {worst:.1e}."
        return {"ok": False, "says": says, "rows_lost": lost, "worst_residual": worst}
    left = z
    for _ in range(PLAIN):
        left = rows.f(left)
    off = lambda g: float(_apart(*(t.double().norm() for t in (g - plain, g, plain))))  # noqa: E731
    stayed = bool(len(plain)) and float(rows.apart(left, z, EPSILON).max()) <= MOVED
    if not stayed or off(half) > SAME or not plain.isfinite().all():
        return {"ok": None, "says": "Not judged: nothing takes a gradient, or plain steps leave z* or do not settle."}
    error, cosine = off(ours), float(torch.cosine_similarity(ours, plain, dim=0))
    says = f"The gradient is {error:.1%} off that of {PLAIN} plain steps at z*, with cosine {cosine:.2f}."
    return {"ok": error <= WRONG or (not solved and cosine > 0), "says": says, "error": error, "cosine": cosine}


def _derivatives(rows: _Rows, z: Tensor, random: torch.Generator) -> dict[str, float]:
    """``_derivative`` by the state, by each input and by each parameter of a module, of the part with the largest."""
    f, leaves = functional_form(rows.layer.cell, None, z, *rows.given)
    floats, count = torch.Tensor.is_floating_point, 1 + len(rows.given)
    noises = [rows.noise(z, random), *(_noise(t, random) if floats(t) else t for t in rows.given)]
    aside = 0.1 if z.dtype != torch.float64 else 0.01  # zeros in z* and x may lie where a ReLU has its kink
    point = [t + aside * v if floats(t) else t for t, v in zip((z, *rows.given), noises, strict=True)] + leaves
    noises += [_noise(t[None], random)[0] if floats(t) else t for t in leaves]
    named = {id(t): name.replace("cell.", "", rows.packing is not None) for name, t in rows.layer.named_parameters()}
    names = ["z", "x", *(f"args[{i}]" for i in range(count - 2))]
    names += [named.get(id(t), f"tensor {i} that it closes over") for i, t in enumerate(leaves)]

    def off(i: int) -> float:
        def moved(t: Tensor) -> Sequence[Tensor]:
            tensors = [*point[:i], t, *point[i + 1 :]]
            return rows.parts(f(tensors[count:], *tensors[:count]))

        errors = [_derivative(moved, part, point[i], noises[i], random) for part in range(len(rows.parts(z)))]
        return max((error for error in errors if not math.isnan(error)), default=math.nan)

    return {names[i]: off(i) for i, t in enumerate(point) if floats(t)}


def _derivative(f: Callable, part: int, z: Tensor, v: Tensor, random: torch.Generator) -> float:
    """How far ∂f/∂z·v of autograd is from that of finite differences, of one part and along random directions, relative
    to the latter; NaN where these depend on the size of the step, by rounding or kinks."""
    step = torch.finfo(z.dtype).eps ** (1 / 3)
    wide, u = ((f(z + h * v)[part] - f(z - h * v)[part]) / (2 * h) for h in (2 * step, step))
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        value = f(at)[part]
    probes = [torch.randn(u.shape, generator=random, dtype=u.dtype, device=u.device) for _ in range(8)]
    errors = torch.stack([(vjp(value, at, w).double() * v).sum() - (w.double() * u).sum() for w in probes])
    size, change = (torch.linalg.vector_norm(t) for t in (u, wide - u))
    return float((errors.square().mean().sqrt() / size).nan_to_num(0, posinf=0)) if change <= SAME * size else math.nan


def _cost(rows: _Rows) -> dict[str, Any]:
    def seconds(work: Callable[[], object]) -> float:
        return min(timeit.repeat(lambda: (work(), torch.cuda.synchronize() if z.is_cuda else None), number=1, repeat=4))

    z = rows.start
    one, whole = seconds(lambda: rows.f(z)), seconds(lambda: rows.gradients(z, torch.ones_like(z)))
    says = f"A step, forward and backward, takes {whole / one:.0f} times as long as one evaluation."
    return {"ok": None, "says": says, "step_seconds": whole, "evaluation_seconds": one, "ratio": whole / one}


def _told(ok: bool | None, check: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """A finding that needs a backward pass; of one that fails, its error."""
    try:
        return check(*given)
    except Exception as error:  # of whatever a backward pass of the user's own raises
        said = str(error).partition("\n")[0][:200]
        return {"ok": ok, "says": f"The backward pass fails with {type(error).__name__}: {said}"}


def _norm(z: Tensor) -> Tensor:
    return flat_rows(z).double().norm(dim=1)


def _apart(off: Tensor, a: Tensor, b: Tensor, least: Tensor | float = 1e-30) -> Tensor:
    """A difference relative to the larger of both sizes; 0 where they are not finite."""
    return (off / torch.maximum(a, b).clamp_min(least)).nan_to_num(0, posinf=0)


def _noise(like: Tensor, random: torch.Generator) -> Tensor:
    """Normal, each row as large as that of ``like``, or 1 where that is as good as zero or not finite."""
    size = _norm(like).to(like.dtype) / math.prod(like.shape[1:]) ** 0.5
    size = torch.where(size.isfinite() & (size > EPSILON), size, 1).view(-1, *(1,) * (like.dim() - 1))
    return size * torch.randn(like.shape, generator=random, device=like.device, dtype=like.dtype)
