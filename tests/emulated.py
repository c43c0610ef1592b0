"""A CUDA device that is none: tensors that say "cuda:0", compute on the CPU, and keep a list of what would wait.

It shows on any machine what a GPU would refuse (tensors of two devices, operations that are not deterministic) and what
would make the host wait for it; nothing about speed, the results of CUDA's kernels, or autocast, which passes it by.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
aten = torch.ops.aten

# Operations whose result's size, or whose error, depends on values: CUDA's versions wait for the device.
DATA_DEPENDENT = {
    "_linalg_eigh", "_linalg_svd", "_local_scalar_dense", "_unique2", "bincount", "equal", "masked_select", "nonzero",
    "repeat_interleave", "unique_consecutive", "unique_dim",
}  # fmt: skip
# What CUDA refuses under torch.use_deterministic_algorithms(True); its documentation has the list.
NOT_DETERMINISTIC = {
    "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "avg_pool3d_backward", "cumsum",
    "grid_sampler_2d_backward", "histc", "kthvalue", "max_pool3d_with_indices_backward", "max_unpool2d", "nll_loss2d",
    "nll_loss2d_forward", "put_", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "replication_pad2d_backward", "scatter_reduce", "upsample_bicubic2d_backward", "upsample_bilinear2d_backward",
}  # fmt: skip


class OnDevice(Tensor):
    """A tensor on the emulated device; ``held`` is its content, on the CPU."""

    held: Tensor
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        # To PyTorch's C++ it is a meta tensor: like the CPU, those need no driver and no thread of their own.
        tensor = Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device="meta"
        )
        tensor.held = held
        return tensor

    def __repr__(self) -> str:
        return f"OnDevice({self.held!r})"

    def tolist(self) -> list:
        return self.cpu().tolist()  # PyTorch's own refuses subclasses

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("a tensor of the emulated device is used outside emulated.device()")


class _Device(TorchDispatchMode):
    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
        wanted = kwargs.get("device")
        result = function(*tree_map(_content, args), **tree_map(_content, kwargs))
        if function is aten._to_copy.default:
            return self._copied(args[0], result, wanted, kwargs)
        if function is aten.copy_.default:
            self._note_copy(args[0], args[1], args[2] if len(args) > 2 else False)
            return args[0]
        if not here and not _is_here(wanted):
            return result
        self._check(function, args, tensors)
        if not isinstance(result, Tensor) and not tree_leaves(result):
            return result
        wrapped = tree_map(
            lambda leaf: OnDevice(leaf) if isinstance(leaf, Tensor) else leaf, result
        )
        return return_and_correct_aliasing(function, args, kwargs, wrapped) if here else wrapped

    def _check(self, function, args: tuple, tensors: list[Tensor]) -> None:
        name = function.overloadpacket.__name__
        if name in DATA_DEPENDENT:
            self.waits.append(name)
        integers = name == "cumsum" and not args[0].is_floating_point()
        if (
            name in NOT_DETERMINISTIC
            and not integers
            and torch.are_deterministic_algorithms_enabled()
        ):
            raise RuntimeError(f"{name} does not have a deterministic implementation on CUDA")
        indices = ()
        if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
            indices = [index for index in args[1] if index is not None]
            self.waits += [
                f"{name} by a mask" for index in indices if index.dtype in (torch.bool, torch.uint8)
            ]
            self.waits += [
                f"{name} by host indices" for index in indices if not isinstance(index, OnDevice)
            ]
        for tensor in tensors:
            if (
                not isinstance(tensor, OnDevice)
                and tensor.dim()
                and not any(tensor is index for index in indices)
            ):
                raise RuntimeError(
                    f"{name}: Expected all tensors to be on the same device, cuda:0 and cpu"
                )

    def _copied(self, source: Tensor, result: Tensor, wanted: object, kwargs: dict) -> Tensor:
        target = CUDA if isinstance(source, OnDevice) else CPU
        if wanted is not None:
            target = CUDA if _is_here(wanted) else CPU
        result = OnDevice(result) if target is CUDA else result
        self._note_copy(result, source, kwargs.get("non_blocking", False))
        return result

    def _note_copy(self, target: Tensor, source: Tensor, non_blocking: bool) -> None:
        up, down = isinstance(target, OnDevice), isinstance(source, OnDevice)
        if down and not up:
            self.waits.append("to the host")
        elif up and not down and not (non_blocking and getattr(source, "pinned", False)):
            self.waits.append("from pageable memory")


def _content(leaf: object) -> object:
    if isinstance(leaf, OnDevice):
        return leaf.held
    return CPU if isinstance(leaf, torch.device) else leaf


def _is_here(device: object) -> bool:
    """Whether a new tensor belongs on the emulated device, which C++ calls meta."""
    return device is not None and torch.device(device).type in ("cuda", "meta")


def _pin_memory(tensor: Tensor, device: object = None) -> Tensor:
    pinned = tensor.clone()
    pinned.pinned = True
    return pinned


@contextmanager
def device(patch) -> Iterator[list[str]]:
    """Within the block "cuda" is the emulated device; yields the list of what made the host wait, in order."""
    waits: list[str] = []
    with patch.context() as within:
        within.setattr(torch.cuda, "_lazy_init", lambda: None)
        within.setattr(Tensor, "pin_memory", _pin_memory)
        before = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            with _Device(waits):
                yield waits
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(before)
