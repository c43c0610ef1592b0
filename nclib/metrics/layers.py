"""Which layers of a network are measured: by name, or every block."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from torch import Tensor, nn
from torch.jit import ScriptModule

Pool = str | Callable[[Tensor], Tensor]
Layers = str | Sequence[str] | Mapping[str, Pool] | None
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_NO_BLOCKS = (nn.Flatten, nn.Unflatten, nn.modules.dropout._DropoutNd, nn.Identity)


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Every module under all of its names, but for what computes a parametrised weight and what torch.jit runs by
    itself; what torch.compile wrapped goes by the name of the wrapper."""
    every = dict(model.named_modules(remove_duplicate=False))
    hidden = tuple(f"{name}." for name, module in every.items() if isinstance(module, ScriptModule))
    named = ((name.split("."), module) for name, module in every.items() if not name.startswith(hidden))
    named = ((parts, module) for parts, module in named if "parametrizations" not in parts)
    return {".".join(part for part in parts if part != "_orig_mod"): module for parts, module in named}


def module_named(modules: Mapping[str, nn.Module], name: str) -> nn.Module:
    if name not in modules:
        near = get_close_matches(name, modules, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ". See [name for name, _ in model.named_modules()]"
        raise ValueError(f"the network has no module {name!r}{hint}")
    return modules[name]


def pools_of(modules: Mapping[str, nn.Module], layers: Layers, pool: Pool) -> tuple[dict[str, Pool], bool]:
    """The pooling of every layer by name, and whether the choice of layers was left to us."""
    every = layers == "all" and "all" not in modules
    if layers is None:
        names = blocks_of(modules[""])
    elif every:  # what computes something in evaluation mode: single layers, and equilibria in place of what they hold
        inside = tuple(f"{name}." for name, m in modules.items() if is_deq(m))
        alone = (n for n, m in modules.items() if f"{n}." in inside or _is_single(m) or isinstance(m, ScriptModule))
        names = [n for n in alone if not (n.startswith(inside) or isinstance(modules[n], _NO_BLOCKS))]
    else:
        names = [layers] if isinstance(layers, str) else layers
    named: dict[str, Pool] = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, pool)
    for name, how in {"": pool, **named}.items():
        if not (callable(how) or how in ("mean", "flatten", "cls")):
            raise ValueError(f"pool must be 'mean', 'flatten', 'cls' or a function that returns (B, d), got {how!r}")
        module_named(modules, name if name in modules else name.removesuffix(".input"))
    return named, every or layers is None


def blocks_of(model: nn.Module) -> list[str]:
    """Names of the blocks of ``layers=None``; see the notes of ``measure``."""
    found: list[str] = []

    def visit(parent: nn.Module, prefix: str) -> None:
        # not named_children, which leaves out a module that has been before; a compiled one is what it wraps
        parts = ((name, child) for name, child in parent._modules.items() if child is not None)
        children = [(f"{prefix}{name}", getattr(child, "_orig_mod", child)) for name, child in parts]
        runs = isinstance(parent, nn.Sequential)
        goes_on = False  # whether the block that was found last is a run of single layers
        for name, child in children:
            single = _is_single(child) and not is_deq(child)  # whose cell may be a function
            goes_on &= single and not _has_weight(child)
            # an equilibrium layer is measured at its equilibrium
            wrapper = not (single or type(parent) in _CONTAINERS or is_deq(child)) and _has_stage(child)
            if type(child) in _CONTAINERS or wrapper:
                visit(child, f"{name}.")
            elif not single or (_has_weight(child) and not runs):
                found.append(name)
            elif runs and (_has_weight(child) or goes_on) and not isinstance(child, _NO_BLOCKS):
                found[len(found) - goes_on :] = [name]
                goes_on = True

    visit(model, "")
    return found


def _is_single(module: nn.Module) -> bool:
    return {*module._modules.keys()} <= {"parametrizations"}


def _has_weight(layer: nn.Module) -> bool:
    """A convolution, linear or embedding layer: one with a weight of two or more axes."""
    weight = getattr(layer, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim > 1


def is_deq(module: nn.Module) -> bool:
    """Whether a module is a DEQ, which nclib.metrics does not import; not a wrapper that hands on what one has."""
    return {"last_solution", "gradient", "eval_solver"} <= vars(module).keys()


def _has_stage(module: nn.Module) -> bool:
    """Whether a sequence of blocks is somewhere inside."""
    children = (child for part in module.modules() if type(part) in _CONTAINERS for child in part.children())
    return any(not _is_single(child) and type(child) not in _CONTAINERS for child in children)
