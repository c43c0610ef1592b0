"""How much memory a backward pass needs, counted in tensors kept."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def saved_bytes(compute: Callable[[], object], apart_from: Iterable[Tensor] = ()) -> int:
    """Most bytes that autograd holds at one time for backward passes while ``compute`` runs.

    Parameters
    ----------
    compute : forward and backward pass. Counted is each tensor that a graph keeps, once for its storage and as long as
        the graph lives; graphs made within a backward pass count as well.
    apart_from : tensors that are there anyway, such as parameters.

    Returns
    -------
    bytes. A count of what is kept, the same on every machine, and not of what an allocator reserves.
    """
    anyway = {tensor.untyped_storage().data_ptr() for tensor in apart_from}
    graphs: dict[int, int] = {}  # storage -> how many places keep it
    now = most = 0

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal now, most
            self.tensor = tensor.detach()  # an output would hold the graph that holds it
            self.place, self.size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
            if self.place in anyway:
                self.size = 0
            if self.place not in graphs:
                now += self.size
                most = max(most, now)
            graphs[self.place] = graphs.get(self.place, 0) + 1

        def __del__(self) -> None:
            nonlocal now
            graphs[self.place] -= 1
            if not graphs[self.place]:
                del graphs[self.place]
                now -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        compute()
    return most
