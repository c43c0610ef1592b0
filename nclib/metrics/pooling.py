"""How what a layer gives becomes one vector for each sample."""

from torch import Tensor, nn

# Where modules have the sizes of axis 1, and of the last.
_CHANNELS = ("in_channels", "out_channels", "num_channels", "num_features")
_FEATURES = ("in_features", "out_features", "embedding_dim", "embed_dim", "hidden_size", "normalized_shape")


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


def features_last(x: Tensor, layer: nn.Module, network: nn.Module) -> bool | None:
    """Whether the features are on the last axis and not on axis 1, by the modules of the layer, else by those of the
    blocks around it, the nearest first, else by the number of axes; None where that is not clear."""
    if x.ndim == 3 and any(getattr(part, "batch_first", True) is False for part in layer.modules()):
        return None
    around = [part for part in network.modules() if layer in part.modules()]
    for part in (layer, *reversed(around)):
        first, last = _shown(x, part)
        if first != last:
            return last
        if first:  # a map whose width is by chance that of some linear layer stays a map
            return None if part is layer or x.ndim == 3 or x.shape[1] == x.shape[-1] else False
    return None if x.ndim == 3 and any(isinstance(part, nn.Conv1d) for part in network.modules()) else x.ndim == 3


def _shown(x: Tensor, within: nn.Module) -> tuple[bool, bool]:
    """Whether a module has the size of axis 1 as its channels, and that of the last axis as its features."""
    first, last = (any(x.shape[axis] in _sizes(part)[axis] for part in within.modules()) for axis in (1, -1))
    return first, last


def _sizes(part: nn.Module) -> dict[int, set[int]]:
    """The sizes that a module takes or gives on axis 1 and on the last. By torch's convention one whose name ends with
    1d, 2d or 3d has channels first, as a LayerNorm2d."""
    channels, features = ({getattr(part, name, None) for name in names} for names in (_CHANNELS, _FEATURES))
    features = {size[0] if isinstance(size, tuple) and len(size) == 1 else size for size in features}
    if type(part).__name__.endswith(("1d", "2d", "3d")):
        return {1: channels | features, -1: set()}
    return {1: channels, -1: features}
