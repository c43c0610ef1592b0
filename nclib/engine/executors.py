"""Where runs are trained: this process, a cluster on this machine, or one that is there already."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nclib.system.lazy import install

if TYPE_CHECKING:
    from nclib.config import StoredConfig

_WORTH_A_CLUSTER = 20.0  # seconds of work; to start workers, each with its own torch, costs about five


def default_workers(need: float = 1.0) -> int:
    """Runs trained at once: one for each usable core; on GPUs as many as fit, see `nclib.engine.cluster.slots`.

    Parameters
    ----------
    need : GiB of GPU memory that the largest run takes.
    """
    from nclib.engine import cluster

    return len(cluster.slots(None, _cores(), cluster.gpus(), need))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Place:
    """Where runs are to be trained, as it was asked for; all None leaves it to `executor`."""

    workers: int | None = None
    scheduler: str | None = None
    host: str | None = None
    insecure: bool = False

    @contextlib.contextmanager
    def executor(
        self, wanted: Sequence[StoredConfig], seconds: float, echo: Callable[[str], None]
    ) -> Iterator[concurrent.futures.Executor | None]:
        """What to train these runs on, which would take one core so many seconds; None is this process, enough for one
        core and for a few seconds.

        Raises
        ------
        ClusterError
            When what was asked for cannot be had.
        """
        from nclib.engine import cluster, costs

        if self.scheduler:
            with cluster.connect(self.scheduler, self.insecure) as executor:
                for line in [*executor.check(), executor.reach()]:
                    echo(line)
                echo(f"training on the cluster at {self.scheduler}, {len(executor.workers())} workers now")
                yield executor
            return
        need = max(costs.estimate_gpu_gib(config) for config in wanted)
        slots = cluster.slots(self.workers, _cores(), cluster.gpus(), need)[: len(wanted)]
        if self.workers is None and self.host is None:
            alone = len(slots) == 1 or seconds < _WORTH_A_CLUSTER
            if not alone and not cluster.installed():
                echo(f"training one run after the other; for more at once, {install('cluster')}")
            if alone or not cluster.installed():
                yield None
                return
        with cluster.local(slots, self.host or cluster.LOOPBACK, self.insecure) as executor:
            echo(f"training on {len(slots)} workers of this machine; {executor.reach()}")
            yield executor
