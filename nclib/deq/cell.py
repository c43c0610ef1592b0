"""The cell as the layer sees it: rows, states of several tensors, and a function of its leaves to differentiate."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from nclib.solver import EPSILON, Solution, check_rows

State = Tensor | tuple[Tensor, ...]
Cell = Callable[..., State]


def flat_rows(t: Tensor) -> Tensor:
    """(B, *) as (B, n)."""
    return t.reshape(len(t), math.prod(t.shape[1:]))


def vjp(fz: Tensor, at: Tensor, u: Tensor, create_graph: bool = False) -> Tensor:
    """Jᵀu, zeros where fz does not depend on the point; the graph stays for the next product."""
    if not fz.requires_grad:
        return torch.zeros_like(at)
    options = {"retain_graph": True, "create_graph": create_graph, "materialize_grads": True}
    return torch.autograd.grad(fz, [at], u.to(fz.dtype), **options)[0]


def residuals(z: Tensor, fz: Tensor, parts: "Parts | None") -> Tensor:
    """(B, P) ‖f(z) − z‖ / ‖f(z)‖, one for each part of the state."""
    wide = torch.promote_types(z.dtype, torch.float32)
    z, fz = flat_rows(z).to(wide), flat_rows(fz).to(wide)
    sizes = [z.shape[1]] if parts is None else list(parts.sizes)
    pairs = zip((fz - z).split(sizes, 1), fz.split(sizes, 1), strict=True)
    norm = torch.linalg.vector_norm
    return torch.stack([norm(r, dim=1) / (norm(value, dim=1) + EPSILON) for r, value in pairs], 1)


def uncompiled(cell: Cell) -> Cell:
    """The cell without its top-level torch.compile: a compiled backward cannot be repeated or differentiated, and would
    compute the gradients of all parameters for every product with Jᵀ."""
    for mark in ("_orig_mod", "_torchdynamo_orig_callable"):
        if getattr(cell, mark, None) is not None:
            return getattr(cell, mark)
    return cell._call_impl if getattr(cell, "_compiled_call_impl", None) is not None else cell  # with its hooks


def is_live(module: nn.Module) -> bool:
    """Whether the module is another map at each call: dropout and norms with running statistics, in training mode."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        return True
    iterates = any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
    always = isinstance(module, (nn.RReLU, _SpectralNorm, nn.modules.batchnorm._BatchNorm)) or iterates
    # by name too, as torchvision, timm and others have theirs: DropPath, DropBlock2d, StochasticDepth, …
    names = " ".join(kind.__name__ for kind in type(module).__mro__)
    rates = [getattr(module, name) for name in ("p", "drop_prob", "drop_rate") if hasattr(module, name)]
    drops = [*rates, not module._modules][0] if re.search(r"Drop(out|[^a-z]|$)|StochasticDepth", names) else 0
    drops = module.dropout if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) else drops
    tracks = isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
    return module.training and bool(always or drops or tracks)


def functional_form(cell: Cell, parts: "Parts | None", *rows: Tensor) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The cell as f(leaves, *rows), and the leaves: what it is differentiated for beside its rows (z first).

    A module is evaluated with what stands at its names now, whoever put it there: torch.func.functional_call takes it
    away again before the backward pass. A plain callable computes with what it closes over.
    """
    original = uncompiled(cell) if parts is None else parts.wrap(uncompiled(cell))
    if not isinstance(cell, nn.Module):
        return (lambda leaves, *rows: original(*_no_leaves(rows))), _leaves(original, *rows)
    shell = _Shell(cell, original)
    # every module once, also under two names: functional_call would not put back what it had taken from it twice
    places = [(where, own) for where, part in shell.named_modules() for own in (part._parameters, part._buffers)]
    state = {f"{where}.{name}".lstrip("."): t for where, own in places for name, t in own.items() if t is not None}
    learnt = list(dict.fromkeys(t for t in state.values() if t.requires_grad))

    def f(leaves: Sequence[Tensor], *rows: Tensor) -> Tensor:
        given = dict(zip(map(id, learnt), leaves, strict=True))
        now = {name: given.get(id(t), t) for name, t in state.items()}
        return torch.func.functional_call(shell, now, _no_leaves(rows), tie_weights=False)

    if not any(t.requires_grad for t in (*rows, *learnt)):  # so that no backward pass will look
        few = [t[:2].detach() for t in rows]
        refuse_others(f(learnt, *few), few)
    return f, learnt


def _no_leaves(rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Views, where a graph is made: hooks on the inputs of modules cannot follow a leaf through autograd.grad."""
    return tuple(t.view_as(t) for t in rows) if torch.is_grad_enabled() else rows


def fixed_tensors(cell: Cell) -> list[Tensor]:
    """The tensors of a module that are computed with and have no gradient."""
    own = [*cell.parameters(), *cell.buffers()] if isinstance(cell, nn.Module) else []
    return [t for t in own if not (t.requires_grad or t.is_inference())]


class _Shell(nn.Module):
    """Gives the cell's tensors their names, whichever of its methods is called."""

    def __init__(self, cell: nn.Module, method: Callable[..., Tensor]) -> None:
        super().__init__()
        self.cell, self.method = cell, (method,)  # in a tuple, so that a module is not registered twice

    def forward(self, *rows: Tensor) -> Tensor:
        return self.method[0](*rows)


def refuse_others(fz: Tensor, known: Sequence[Tensor]) -> None:
    """A leaf that a module's graph reaches past the known tensors would lose its gradient without a word."""
    seen = {torch.autograd.graph.get_gradient_edge(t).node for t in known if t.requires_grad}
    for leaf in _leaves_behind(fz, seen):
        lost = f"the gradient of a tensor of shape {tuple(leaf.shape)} that the cell does not own would be lost"
        raise RuntimeError(f"{lost}: give it in args=(tensor,), register it in a module, or detach() it.")


def _leaves(cell: Cell, *rows: Tensor) -> list[Tensor]:
    """What the graph of one row reaches."""
    own = [t[:1].detach().requires_grad_(t.is_floating_point()) for t in rows]
    return [leaf for leaf in _leaves_behind(cell(*own), set()) if all(leaf is not t for t in own)]


def _leaves_behind(value: Tensor, seen: set) -> Iterator[Tensor]:
    """The leaves of the graph of a value, past the nodes that are seen already."""
    open_nodes = [value.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        open_nodes.extend(parent for parent, _ in node.next_functions)
        if hasattr(node, "variable"):
            yield node.variable


@dataclass(frozen=True)
class Parts:
    """The solver and the gradients see one tensor (B, n), the parts of each row one after the other."""

    shapes: tuple[tuple[int, ...], ...]  # without the axis of the rows

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def pack(self, state: Sequence[Tensor]) -> Tensor:
        return torch.cat([flat_rows(part) for part in state], 1)

    def unpack(self, z: Tensor) -> tuple[Tensor, ...]:
        split = zip(z.split(self.sizes, 1), self.shapes, strict=True)
        return tuple(part.contiguous().view(len(z), *shape) for part, shape in split)

    def wrap(self, cell: Cell) -> Cell:
        def packed(z: Tensor, *rows: Tensor) -> Tensor:
            value = cell(self.unpack(z), *rows)
            wanted = [(len(z), *shape) for shape in self.shapes]
            if not isinstance(value, (tuple, list)) or [tuple(part.shape) for part in value] != wanted:
                raise ValueError(f"the cell must return a tuple of tensors of shapes {wanted}, as z0 is")
            return self.pack(value)

        return packed


def packed(cell: Cell, state: State) -> tuple[Parts | None, Cell, Tensor]:
    """The parts of a state of several tensors, and the cell and the state with one tensor."""
    if isinstance(state, Tensor):
        return None, cell, state
    if not isinstance(state, (tuple, list)) or len(state) < 2:
        raise TypeError(f"a state is a tensor or a tuple of at least two of them, (z1, z2), not {type(state).__name__}")
    check_rows(len(state[0]), {f"z[{i}]": part for i, part in enumerate(state)})
    if len({(part.dtype, part.device) for part in state}) > 1:
        raise ValueError("the parts of a state must have one type and one device")
    parts = Parts(tuple(tuple(part.shape[1:]) for part in state))
    return parts, parts.wrap(cell), parts.pack(state)


def in_one_tensor(cell: Cell, state: State) -> tuple[Parts | None, Cell, Tensor]:
    """As ``packed``; a cell that is a module stays one, with its parameters."""
    parts, one, z = packed(cell, state)
    return parts, _Packed(cell, parts) if parts is not None and isinstance(cell, nn.Module) else one, z


class _Packed(nn.Module):
    """A cell with a state of one tensor; a copy of it calls the copy of the cell."""

    def __init__(self, cell: nn.Module, parts: Parts) -> None:
        super().__init__()
        self.cell, self.parts = cell, parts

    def forward(self, z: Tensor, *rows: Tensor) -> Tensor:
        return self.parts.wrap(self.cell)(z, *rows)


def unpacked(parts: Parts | None, states: Sequence[Tensor], solution: Solution) -> tuple[list[State], Solution]:
    """States and their evidence, as the cell names the parts."""
    if parts is None:
        return list(states), solution
    value = parts.unpack(solution.value)
    return [value if z is solution.value else parts.unpack(z) for z in states], replace(solution, value=value)
