"""How much memory a backward pass needs, counted in tensors kept."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class _Counter:
    """Bytes that graphs keep now, and the most at one time."""

    def __init__(self, ignored: set[int]) -> None:
        self.ignored = ignored
        self.keepers: dict[int, int] = {}  # address of a storage -> how many places keep it
        self.now = 0
        self.most = 0


class _Kept:
    """A tensor that a graph keeps, counted once for its storage and as long as it lives."""

    def __init__(self, tensor: Tensor, counter: _Counter) -> None:
        self.tensor = tensor.detach()  # an output would hold the graph that holds it
        self.counter = counter
        storage = tensor.untyped_storage()
        self.address = storage.data_ptr()
        self.size = 0 if self.address in counter.ignored else storage.nbytes()
        keepers = counter.keepers.get(self.address, 0)
        if keepers == 0:
            counter.now += self.size
            counter.most = max(counter.most, counter.now)
        counter.keepers[self.address] = keepers + 1

    def __del__(self) -> None:
        keepers = self.counter.keepers
        keepers[self.address] -= 1
        if keepers[self.address] == 0:
            del keepers[self.address]
            self.counter.now -= self.size


def saved_bytes(compute: Callable[[], object], apart_from: Iterable[Tensor] = ()) -> int:
    """Most bytes that autograd holds at one time for backward passes while ``compute`` runs.

    Parameters
    ----------
    compute : forward and backward pass. Counted is each tensor that a graph keeps, once for its
        storage and as long as the graph lives; graphs made within a backward pass count as well
    apart_from : tensors that are there anyway, such as parameters

    Returns
    -------
    int
        A count of what is kept, the same on every machine, and not of what an allocator reserves

    Examples
    --------
    >>> import torch
    >>> x = torch.ones(100, requires_grad=True)
    >>> saved_bytes(lambda: x.exp().sum().backward())
    400
    """
    counter = _Counter({tensor.untyped_storage().data_ptr() for tensor in apart_from})

    def pack(tensor: Tensor) -> _Kept:
        return _Kept(tensor, counter)

    def unpack(kept: _Kept) -> Tensor:
        return kept.tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        compute()
    return counter.most
