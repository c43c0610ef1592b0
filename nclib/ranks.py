"""One training run over several processes: the ranks that ``torchrun`` starts, each with a part of every batch.

Everything here does nothing in a process that stands alone, so that the code which uses it is written once. Sums and
gathered tensors are the same bits on every rank; that keeps their networks equal.

The batches are those of the run in one process, in the same order and augmented alike. A rank takes its `share` of
each, at most one sample more than another's, and possibly none. Every mean is a sum over all ranks divided by the
number of samples on all ranks, so that neither uneven shares nor samples that leave the loss weigh wrongly.

BatchNorm normalises by mean and variance of the whole batch, as in one process (`synchronise_norms`). Otherwise each
rank would normalise by its own share, which is another network: its statistics are noisier, the running ones are
those of one rank, and a share of one sample has none.

What is left of a difference to one process is the order of additions: about 1e-12 in a step in float64, and in float32
as much as between two machines. A run keeps its identity; its provenance says how many ranks it had.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nclib.config import ConfigError

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""What carries tensors between ranks, by type of device."""

PATIENCE = datetime.timedelta(minutes=30)
"""How long a rank waits for the others before it gives up: longer than decoding a data set or compiling a network."""

_LOST = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "process group")
_SECONDS_FOR_MAIN = 10.0

T = TypeVar("T")


class RankLost(RuntimeError):
    """Another rank has ended, so this one cannot go on."""


# ---- who is there


def launched() -> bool:
    """Whether ``torchrun`` started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def together() -> bool:
    """Whether this process computes together with others now, within `joined`."""
    return distributed.is_available() and distributed.is_initialized()


def world() -> int:
    """Number of ranks; 1 for a process alone."""
    return distributed.get_world_size() if together() else 1


def rank() -> int:
    """Number of this rank, from 0."""
    if together():
        return distributed.get_rank()
    return int(os.environ["RANK"]) if launched() else 0


def is_main() -> bool:
    """Whether this is the rank that writes files and speaks: the first."""
    return rank() == 0


def let_main_speak() -> None:
    """Wait, in any other rank, before an error is told: where the first rank ended by the same, ``torchrun`` ends this
    one meanwhile, and the message is seen once."""
    if not is_main():
        time.sleep(_SECONDS_FOR_MAIN)


@contextlib.contextmanager
def joined(device: str | None = None) -> Iterator[str | None]:
    """Within the block the processes that ``torchrun`` started compute together; yields the device of this one.

    Parameters
    ----------
    device : "cpu", "cuda" or None for a GPU of its own for each rank where there are any; in a process alone it is
        yielded as it is

    Standard output is the first rank's alone.

    Raises
    ------
    ConfigError
        For a device with a number, and for more ranks than GPUs.
    RankLost
        When another rank ended.
    """
    if not launched():
        yield device
        return
    own = _own_device(device)
    kind = own.partition(":")[0]
    if kind == "cuda":
        torch.cuda.set_device(own)
    store, number, size = next(distributed.rendezvous("env://", timeout=PATIENCE))
    # ranks that torchrun started again would find the addresses of those that ended
    store = distributed.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    # tensors on the CPU, objects among them, always go through gloo
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=number, world_size=size, timeout=PATIENCE)
    with contextlib.ExitStack() as stack:
        if not is_main():
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        with losses_named():
            yield own
    distributed.destroy_process_group()


def facts(device: torch.device) -> dict[str, Any]:
    """What the provenance of a run says of its ranks: how many, and what carried tensors between them. More than one
    means that it equals the run in one process up to rounding, not to the bit. Nothing for a process alone."""
    return {"ranks": world(), "backend": BACKENDS[device.type]} if together() else {}


@contextlib.contextmanager
def losses_named() -> Iterator[None]:
    """Within the block the many errors of a connection that ended are one, `RankLost`."""
    try:
        yield
    except RuntimeError as error:
        if not together() or not any(mark in str(error).lower() for mark in _LOST) or isinstance(error, RankLost):
            raise
        raise RankLost(
            "another rank has ended, so this run cannot go on. Its finished epochs are kept: type the same again, with "
            "any number of ranks, to go on"
        ) from error


def _own_device(device: str | None) -> str:
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind not in BACKENDS:
        raise ConfigError(f"device {device!r}: under torchrun each rank has its own; leave it out, or say cpu or cuda")
    if kind == "cpu":
        return kind
    local, found = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= found:
        raise ConfigError(f"more ranks than GPUs: give torchrun --nproc_per_node={found}, or nclib --device cpu")
    return f"cuda:{local}"


# ---- what is each rank's, and what is everyone's


def share(samples: int) -> slice:
    """Which of so many consecutive samples are this rank's: all of them in a process alone. Shares follow one another
    in the order of ranks; those of the first ranks are one larger where the number is no multiple of the ranks'."""
    here = rank() if together() else 0
    size, larger = divmod(samples, world())
    start = here * size + min(here, larger)
    return slice(start, start + size + (here < larger))


def total(values: Tensor) -> Tensor:
    """Sum over the ranks of a tensor that has the same shape on each."""
    if not together():
        return values
    values = values.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(values)
    return values


def mean(value: Tensor, count: int) -> Tensor:
    """Mean over the samples of all ranks, of which `count` are here with mean `value` ()."""
    if not together():
        return value
    weighted = value.double() * count if count else value.new_zeros((), dtype=torch.float64)
    whole = total(torch.stack([weighted, weighted.new_tensor(count)]))
    return whole[0] / whole[1]


def gather(values: Tensor) -> Tensor:
    """Rows of all ranks (N, *), in the order of ranks, from those that are here (n, *)."""
    if not together():
        return values
    lengths = everyones(len(values))
    padded = values.new_zeros((max(lengths), *values.shape[1:]))
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(parts, padded)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def rows_of_all(values: Tensor, rows: Tensor) -> Tensor:
    """A tensor (N, *) with the rows of every rank, each of which has its own `rows` (n,) right in `values` (N, *)."""
    if not together():
        return values
    own = torch.zeros_like(values)
    own[rows] = values[rows]
    return total(own)


def everyones(thing: T) -> list[T]:
    """One picklable thing of each rank, in the order of ranks."""
    if not together():
        return [thing]
    things: list[Any] = [None] * world()
    distributed.all_gather_object(things, thing)
    return things


def once(make: Callable[[], T]) -> T:
    """What `make` returns on the first rank, on every rank; nobody goes on before it is there."""
    if not together():
        return make()
    made = [make() if is_main() else None]
    distributed.broadcast_object_list(made, device=torch.device("cpu"))
    return made[0]


# ---- one network on all ranks


def parallel(module: nn.Module) -> nn.Module:
    """The module, with its gradients averaged over the ranks in each backward pass (`DistributedDataParallel`).

    Its backward pass must therefore start from `world()` times this rank's part of a sum over all.
    """
    if not together():
        return module
    return nn.parallel.DistributedDataParallel(module)


def synchronise_norms(model: nn.Module, device: torch.device) -> None:
    """Have every BatchNorm of a network normalise by the batch of all ranks, in place; to be called before it trains.

    On a GPU that is PyTorch's SyncBatchNorm, which there is not for CPUs; on a CPU it is `_whole_batch_norm`.
    Parameters, buffers and their names stay as they are.
    """
    if not together():
        return
    if device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.forward = functools.partial(_whole_batch_norm, module)


class _Total(torch.autograd.Function):
    """`total`, differentiable: what depends on a sum over the ranks does so on each of them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return total(values)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return total(cotangent)


def _whole_batch_norm(norm: _BatchNorm, x: Tensor) -> Tensor:
    """BatchNorm of this rank's rows x (b, C, …), b ≥ 0, by the moments of the rows of all ranks."""
    if not norm.training:
        return type(norm).forward(norm, x)
    dims, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    wide = x.to(norm.weight.dtype)
    here = wide.new_tensor([x.numel() / x.shape[1]])
    sums = _Total.apply(torch.cat([wide.sum(dims), here]))
    count, average = sums[-1].detach(), sums[:-1] / sums[-1].detach()
    centred = wide - average.view(shape)  # squares of what is centred: a large mean costs no digits
    variance = _Total.apply(centred.square().sum(dims)) / count
    with torch.no_grad():
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(average, norm.momentum)
        norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
    scale = norm.weight * (variance + norm.eps).rsqrt()
    return (centred * scale.view(shape) + norm.bias.view(shape)).to(x.dtype)
