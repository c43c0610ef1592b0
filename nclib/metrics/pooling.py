"""How what a layer gives becomes one vector for each sample."""

from collections.abc import Iterable
from types import FunctionType

import torch
from torch import Tensor, nn

# Where modules have the sizes of axis 1, and of the last.
_CHANNELS = ("in_channels", "out_channels", "num_channels", "num_features")
_FEATURES = ("in_features", "out_features", "embedding_dim", "embed_dim", "hidden_size", "normalized_shape")

_TURNS = {"permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims", "rearrange", "mT"}


def vectors(x: Tensor, pool: str, last: bool) -> Tensor:
    """Pool maps (B, C, …) or tokens (B, …, D).

    Parameters
    ----------
    x : what the layer gave or was given
    pool : "mean" or "cls"
    last : whether the features are on the last axis and not on axis 1
    """
    x = x.float() if x.element_size() == 2 else x
    if not last:
        return x.flatten(2).mean(2)
    return x[:, 0] if pool == "cls" and x.ndim == 3 else x.flatten(1, -2).mean(1)


def features_last(x: Tensor, layer: nn.Module, network: nn.Module, entered: bool) -> bool | None:
    """Whether the features are on the last axis and not on axis 1, by the modules of the layer, else by those of the
    blocks around it, the nearest first, else by the module before. None where that is not clear, or where the module
    before gives the size of the other axis, as one of the two is a coincidence; of a map that has sizes of modules
    around on both axes, or on its last alone, that module decides. None too of what may be turned round: features that
    a module has on its last axis have the size of axis 1 here, or all of the layer's modules have channels first."""
    if x.ndim == 3 and any(getattr(part, "batch_first", True) is False for part in layer.modules()):
        return None
    around = [part for part in network.modules() if layer in part.modules()]
    gives = _before(x, layer, network, entered)
    before = gives[1] if gives[0] != gives[1] else None
    for part in (layer, *reversed(around)):
        sizes = [_sizes(each, x.ndim) for each in part.modules()]
        first, last = (any(x.shape[axis] in each[axis] for each in sizes) for axis in (1, -1))
        turned = not first and x.shape[1] != x.shape[-1] and any(x.shape[1] in each[-1] for each in sizes)
        if turned and (last if x.ndim > 3 else part is layer and not last):
            return None
        if first != last:
            chance = last and part is not layer and x.ndim > 3 and not gives[1]
            if x.shape[1] == x.shape[-1]:  # which may have been turned
                turns = _is_own if x.ndim > 3 and (last or part is not layer) else _may_turn
                chance |= (first and x.ndim == 3) or any(map(turns, layer.modules() if x.ndim > 3 else [layer]))
            return last if before in (None, last) and not chance else None
        if first:
            return None if part is layer or x.ndim == 3 else before
    inside = [_sizes(each, x.ndim) for each in layer.modules()]
    return None if before and any(each[1] for each in inside) and not any(each[-1] for each in inside) else before


def _before(x: Tensor, layer: nn.Module, network: nn.Module, entered: bool) -> tuple[bool, bool]:
    """Whether axis 1, and whether the last axis, has the size that the module gives which comes before what a layer
    returns or, ``entered``, is given."""
    modules = list(network.modules())
    inside = 0 if entered else len(list(layer.modules()))
    for part in reversed(modules[: modules.index(layer) + inside]):
        if sizes := _named(part, [name for name in _CHANNELS + _FEATURES if not name.startswith("in_")]):
            return x.shape[1] in sizes, x.shape[-1] in sizes
    return False, False


def _sizes(part: nn.Module, axes: int) -> dict[int, set[int]]:
    """The sizes that a module takes or gives on axis 1 and on the last. By torch's convention one whose name ends with
    1d, 2d or 3d has channels first, as a LayerNorm2d, in maps of at most one, two or three more axes; features of one
    with a forward of its own may be on either."""
    kind, channels, features = type(part), _named(part, _CHANNELS), _named(part, _FEATURES)
    if kind.__name__.endswith(("1d", "2d", "3d")):
        return {1: channels | features if axes <= int(kind.__name__[-2]) + 2 else set(), -1: set()}
    if _is_own(part):
        channels |= features
    return {1: channels, -1: features}


def _is_own(part: nn.Module) -> bool:
    """Whether a module has a forward that is not of torch, or may have, as of torch.jit."""
    return isinstance(part, torch.jit.ScriptModule) or not f"{type(part).forward.__module__}".startswith("torch.")


def _may_turn(part: nn.Module) -> bool:
    """Whether a function of a module that is not of torch names what puts axes elsewhere."""
    kinds = (kind for kind in type(part).__mro__ if not kind.__module__.startswith("torch."))
    held = (each for own in (part, *kinds) for each in vars(own).values() if isinstance(each, FunctionType))
    return any(_TURNS.intersection(each.__code__.co_names) for each in held)


def _named(part: nn.Module, names: Iterable[str]) -> set[int]:
    sizes = [getattr(part, name, None) for name in names]
    if isinstance(part, nn.RNNBase) and "hidden_size" in names:
        sizes.append((part.proj_size or part.hidden_size) * (1 + part.bidirectional))
    sizes = [size[0] if isinstance(size, tuple) and len(size) == 1 else size for size in sizes]
    return {size for size in sizes if isinstance(size, int)}
