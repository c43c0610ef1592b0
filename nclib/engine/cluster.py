"""Many runs at once on a Dask cluster: one on this machine, or one that is running already.

Dask starts the workers, hands out the work and gives that of a dead worker to another; here is what it cannot know:
one run at a time in each process, how many of them fit on a GPU, and which worker has stopped making progress.
Only texts and bytes travel between client and workers, and functions by their name. A Dask scheduler runs what it is
sent, and so do workers and nannies; a loopback port is open to every account of the machine. So all of them speak TLS
and let in only who has the key of this cluster.

Dask is an optional extra, ``pip install ".[cluster]"``; this module can be imported without it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib.util
import json
import logging
import os
import shlex
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from nclib.engine.leftovers import HELD, clear_unheld
from nclib.system import paths, processes, provenance, terminal
from nclib.system.lazy import install

if TYPE_CHECKING:
    from distributed import Client, Security

LOOPBACK = "127.0.0.1"
KEY_FILE = "key.pem"
"""Beside a scheduler file: certificate and key of its cluster. Whoever can read it can join, and run what they like."""
GPU_MEMORY = "gpu_memory"
"""The worker resource that says how many GiB of GPU memory a worker may fill."""
PER_GPU = 4
"""Workers that share one GPU at most. More processes than that wait for each other rather than fill it."""
DEATHS = 5
"""A run whose worker dies more often than this is named as failed instead of tried again (local clusters; elsewhere
the scheduler's own `distributed.scheduler.allowed-failures`)."""

_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""glibc hands large tensors back to the system after each step and fetches them anew, page by page: a tenth of the time
of a step on 32×32 images. With these, a training process keeps what it has."""
_CONNECT_SECONDS = 30
_LEAVE_SECONDS = 0.4


class ClusterError(RuntimeError):
    """The cluster that was asked for cannot be had or cannot be used; the message says what to type."""

    exit_code = 2


class ClusterLost(ClusterError):
    """The scheduler went away in the middle."""


def installed() -> bool:
    """Whether Dask's distributed scheduler is there, and what makes its keys."""
    return all(importlib.util.find_spec(name) for name in ("distributed", "cryptography"))


def _distributed() -> Any:
    if not installed():
        raise ClusterError(f"several runs at once need Dask and cryptography; {install('cluster')}")
    import distributed

    return distributed


# --- which workers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """A worker to be started: what its environment and its resources shall hold besides."""

    environment: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)


def slots(workers: int | None, cores: int, gpus: Sequence[tuple[str, float]] = (), need: float = 1.0) -> list[Slot]:
    """One worker for each core or, where there are GPUs, as many on each as their memory allows.

    Parameters
    ----------
    workers : how many at most; None for one a core, on GPUs not more than `PER_GPU` on each
    cores : usable ones
    gpus : name (as in CUDA_VISIBLE_DEVICES) and memory in GiB of each
    need : GiB of GPU memory that the largest run takes; at least one worker is put on each GPU all the same

    Returns
    -------
    list of Slot, GPUs in turn; each worker sees its GPU alone and owns an equal share of its memory, or `need` where
    that is more: a reckoning does not keep a run from being tried
    """
    if not gpus:
        return [Slot()] * (workers or cores)
    fits = [max(1, int(memory // need)) for _, memory in gpus]
    if workers is None:
        fits = [min(count, PER_GPU) for count in fits]
    rounds = [gpu for turn in range(max(fits)) for gpu, count in enumerate(fits) if turn < count]
    rounds = rounds[: workers or max(cores, len(gpus))]
    shares = [max(need, round(memory / max(1, rounds.count(gpu)), 2)) for gpu, (_, memory) in enumerate(gpus)]
    return [Slot({"CUDA_VISIBLE_DEVICES": gpus[gpu][0]}, {GPU_MEMORY: shares[gpu]}) for gpu in rounds]


def gpus() -> list[tuple[str, float]]:
    """Name and memory in GiB of each CUDA device that this process may use."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",")] if visible else [str(index) for index in range(count)]
    return [(names[i], torch.cuda.get_device_properties(i).total_memory / 2**30) for i in range(count)]


# --- the cluster --------------------------------------------------------------------------------------------------


class ClusterExecutor(concurrent.futures.Executor):
    """The workers of a Dask cluster as an executor; `submit` is that of ``Client.get_executor()``.

    Parameters
    ----------
    key : file that lets other workers in, where there is one
    """

    def __init__(self, client: Client, key: Path | None = None) -> None:
        self._client = client
        self._key = key
        self._inner = client.get_executor(pure=False, retries=0)  # retries would repeat errors that cannot pass
        self._address = client.scheduler.address
        self._shares: list[float] | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> concurrent.futures.Future:
        """Submit a call; options are those of ``Client.submit``, such as ``resources``.

        Raises
        ------
        ClusterLost
            When the scheduler has not answered for half a minute.
        """
        if self.lost:
            raise ClusterLost(
                f"the scheduler at {self._address} no longer answers. Runs that workers have begun they may still "
                "finish. Start a scheduler again"
            )
        return self._inner.submit(fn, *args, **options)

    @property
    def lost(self) -> bool:
        """Whether the connection to the scheduler is gone for good; a short interruption is waited out."""
        return self._client.status not in ("running", "connecting", "newly-created")

    def workers(self) -> list[str]:
        """Addresses of the workers there are now."""
        try:
            return list(self._client.nthreads()) if self._client.status == "running" else []
        except OSError:  # the scheduler has just gone
            return []

    def reach(self) -> str:
        """Who can reach the scheduler, for whoever should know."""
        if not self._address.startswith("tls://"):
            return (
                f"the scheduler at {self._address} asks nobody who they are: whoever reaches it, other accounts of its "
                "machine included, can run what they like as you"
            )
        if self._key is None:
            others = "this command alone; no other account of this machine has its key"
            return f"the scheduler at {self._address} lets in {others if self._client.cluster else 'who has its key'}"
        files = " ".join(f"--tls-{what} {shlex.quote(str(self._key))}" for what in ("ca-file", "cert", "key"))
        return (
            f"the scheduler at {self._address} lets in whoever can read {self._key}: you alone. A worker on another "
            f"machine joins with the file and: dask worker {self._address} {files} --nworkers 1 --nthreads 1 "
            "--memory-limit 0 --no-dashboard"
        )

    def listen(self, topic: str, heard: Callable[[Any], None]) -> None:
        """Have `heard` called, in another thread, with each message that a worker tells under this topic."""
        self._client.subscribe_topic(topic, lambda event: heard(event[1]))

    def room(self, gibibytes: float) -> dict[str, Any]:
        """Options of `submit` for a run that takes so much GPU memory: none where every worker has it.

        Raises
        ------
        ClusterError
            Where no worker has it; without this the run would wait for ever.
        """
        shares = self._shares
        if shares is None:
            known = self._known().values()
            offered = [facts["resources"].get(GPU_MEMORY) for facts in known]
            shares = [share for share in offered if share is not None]
            if known:  # from now on a worker that comes later does not make a run of this grid wait
                self._shares = shares
        if not shares or gibibytes <= min(shares):
            return {}
        if gibibytes > max(shares):
            raise ClusterError(
                f"needs about {gibibytes:.1f} GiB of GPU memory and the largest worker has {max(shares):.1f}; "
                f'start one with more: dask worker … --resources "{GPU_MEMORY}=…"'
            )
        return {"resources": {GPU_MEMORY: gibibytes}}

    def restart(self, worker: str) -> bool:
        """Have a worker's process killed and another started by its nanny; False where it has none.

        Returns at once: Dask waits for the new process, half a minute if need be.
        """
        if not self._known().get(worker, {}).get("nanny"):
            return False
        arguments = {"timeout": _CONNECT_SECONDS, "raise_for_error": False}
        threading.Thread(
            target=_quietly, args=(self._client.restart_workers, [worker]), kwargs=arguments, daemon=True
        ).start()
        return True

    def everywhere(self, fn: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Result of a call made once on each worker, as a task like any other; by address."""
        calls = {at: self._inner.submit(fn, *args, workers=[at]) for at in self.workers()}
        return {at: call.result() for at, call in calls.items()}

    def check(self) -> list[str]:
        """What is worth saying about the workers.

        Raises
        ------
        ClusterError
            When a worker has another version of nclib, whose runs would be other runs.
        """
        said, ours = [], about()
        for at, theirs in self._about().items():
            if theirs["nclib"] != ours["nclib"]:
                raise ClusterError(
                    f"worker {at} has nclib {theirs['nclib']}, this is {ours['nclib']}: install the same version there"
                )
            if theirs["torch"] != ours["torch"]:
                said.append(
                    f"worker {at} has torch {theirs['torch']}, here it is {ours['torch']}: last bits may differ"
                )
        for at, facts in self._known().items():
            if (threads := facts["nthreads"]) > 1:
                said.append(
                    f"worker {at} offers {threads} threads, but takes one run at a time: start it with "
                    f"--nworkers {threads} --nthreads 1"
                )
        return said

    def _known(self) -> dict[str, dict[str, Any]]:
        """What the scheduler knows of each worker."""
        return self._client.scheduler_info()["workers"]

    def _about(self) -> dict[str, dict[str, str]]:
        try:
            return self._client.run(about, on_error="raise") if self.workers() else {}
        except (ModuleNotFoundError, AttributeError) as error:
            raise ClusterError(f"a worker at {self._address} has no nclib, or an older one ({error})") from None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait and not cancel_futures)


def _quietly(work: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Nobody waits for this; a worker or scheduler that is gone by now is noticed elsewhere."""
    with contextlib.suppress(Exception):
        work(*args, **options)


def make_key(folder: Path | str) -> Path:
    """Write `KEY_FILE` into a folder, which is made if need be: a new certificate and its key, for this user alone.

    Raises
    ------
    FileExistsError
        When it is there already.
    """
    own, file = _distributed().Security.temporary(), Path(folder) / KEY_FILE
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(own.tls_client_cert + own.tls_client_key)
    return file


def security(key: Path | str) -> Security:
    """TLS with this file of `make_key`, for scheduler, workers and clients alike."""
    roles = {f"tls_{role}_{part}": str(key) for role in ("scheduler", "worker", "client") for part in ("cert", "key")}
    return _distributed().Security(require_encryption=True, tls_ca_file=str(key), **roles)


def dask_setup(server: Any) -> None:
    """Called by Dask in each scheduler and worker of `local`: close the web server it insists on."""
    server.http_server.stop()


@contextlib.contextmanager
def _keys(host: str, insecure: bool) -> Iterator[tuple[Security | None, Path | None]]:
    """TLS for a new cluster, and its file for workers of other machines, where they can reach it."""
    if insecure:
        yield None, None
    elif host == LOOPBACK:
        yield _distributed().Security.temporary(), None
    else:
        paths.results().mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".key-", dir=paths.results()))
            stack.enter_context(filelock.FileLock(Path(folder) / HELD))
            key = make_key(folder)
            yield security(key), key


def clear_keys() -> None:
    """Remove the keys that killed commands left."""
    found = paths.results().glob(".key-*")
    clear_unheld(left for left in found if {file.name for file in left.glob("*")} <= {KEY_FILE, HELD})


def _scheduler() -> Any:
    """Dask's scheduler, which asks every few minutes who has been heard, and ends the workers that have not."""

    class Scheduler(_distributed().Scheduler):
        _asked = time.monotonic()

        async def check_worker_ttl(self) -> None:
            before, self._asked = self._asked, time.monotonic()
            if self._asked - before < self.worker_ttl + 1:  # else it was this process that was stopped, see `Watch`
                await super().check_worker_ttl()

    return Scheduler


@contextlib.contextmanager
def local(workers: int | Sequence[Slot], host: str = LOOPBACK, insecure: bool = False) -> Iterator[ClusterExecutor]:
    """A cluster of this machine: worker processes, each under a nanny that starts another when it dies.

    Parameters
    ----------
    workers : how many, or each as a `Slot`
    host : address that everything listens on. Elsewhere than on loopback the key is written into a private folder of
        the results, for workers of other machines; on loopback it exists in memory only
    insecure : do without TLS; then whoever can reach the address can run code here, other accounts included

    The processes end with the block, and with this process however it ends.

    Raises
    ------
    ClusterError
        Where `host` is no address of this machine.
    """
    distributed = _distributed()
    import dask

    wanted = [Slot()] * workers if isinstance(workers, int) else workers
    settings = {
        "distributed.scheduler.allowed-failures": DEATHS,
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        "distributed.scheduler.preload": [__name__],  # calls dask_setup
        "distributed.worker.preload": [__name__],
        "distributed.deploy.lost-worker-timeout": "1 hour",  # after it a nanny is given up, and its core with it
        "distributed.scheduler.worker-saturation": 1.0,  # no run waits at one worker while another is idle
        "distributed.worker.profile.enabled": False,  # 100 looks a second cost an eighth of the time
        "distributed.diagnostics.nvml": False,  # nor is each GPU asked how it is, twice a second by each worker
        "distributed.worker.daemon": False,  # daemons may not have children, and a loader of images may want some
        "distributed.nanny.pre-spawn-environ": worker_environment(),
    }
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        raise ClusterError(
            f"nothing here can listen at {host} ({error}); leave --host out, or name an address of this machine"
        ) from None
    with (
        _keys(host, insecure) as (keys, key),
        tempfile.TemporaryDirectory(prefix="nclib-", ignore_cleanup_errors=True) as scratch,
    ):
        settings["temporary-directory"] = scratch  # Dask's own is shared with, and may belong to, other accounts
        common = {"host": host, "security": keys, "dashboard": False}
        options = {**common, "nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL}
        nannies = {
            number: {
                "cls": distributed.Nanny,
                "options": {
                    **options,
                    "env": {**worker_environment(), **slot.environment},
                    "resources": dict(slot.resources),
                },
            }
            for number, slot in enumerate(wanted)
        }
        pages = f"{LOOPBACK}:0"
        scheduler = {"cls": _scheduler(), "options": {**common, "port": 0, "dashboard_address": pages}}
        with (
            processes.environment_restored([*worker_environment(), "PYTHONHASHSEED"]),  # Dask sets them here, too
            dask.config.set(settings),
            contextlib.ExitStack() as stack,
        ):
            with processes.deferred([signal.SIGINT, *terminal.ENDINGS]):  # half-born workers would complain and stay
                loop = stack.enter_context(_loop())
                cluster = stack.enter_context(
                    distributed.SpecCluster(
                        nannies, scheduler=scheduler, security=keys, silence_logs=logging.CRITICAL, loop=loop
                    )
                )
                stack.callback(lambda: cluster.sync(_end, cluster.workers.values()))
                client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
            yield ClusterExecutor(client, key)


@contextlib.contextmanager
def _loop() -> Iterator[Any]:
    """The loop that starts the workers, in a thread that blocks SIGINT, as they do then: Ctrl-C, which a terminal sends
    to all, reaches the command alone, and that ends them."""
    from distributed.utils import LoopRunner

    runner = LoopRunner()
    with processes.blocked(signal.SIGINT):
        runner.start()
    try:
        yield runner.loop
    finally:
        runner.stop()


async def _end(nannies: Iterable[Any]) -> None:
    """End the workers of these nannies. Nobody wants anything of them by now, and Python takes a second to unload
    torch, so they are killed rather than waited for."""
    await asyncio.gather(*(nanny.close(timeout=_LEAVE_SECONDS) for nanny in nannies), return_exceptions=True)


def worker_environment() -> dict[str, str]:
    """Of the worker processes, from their first instruction on: read when they load the C library and torch."""
    threads = {"OMP_NUM_THREADS": os.environ.get("NCLIB_THREADS", "1"), "OMP_WAIT_POLICY": "PASSIVE"}
    return threads | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | _KEEP_MEMORY  # cuBLAS needs it to be deterministic


@contextlib.contextmanager
def connect(address: str, insecure: bool = False) -> Iterator[ClusterExecutor]:
    """A cluster that is running already.

    Parameters
    ----------
    address : of its scheduler, such as "tls://10.0.0.5:8786", or the path of its scheduler file, which ends in .json.
        The key is `KEY_FILE` beside the scheduler file, else what Dask's settings ``distributed.comm.tls`` name
    insecure : take a scheduler without TLS, too

    Raises
    ------
    ClusterError
        When nothing answers there, or without TLS or a key for it.
    """
    distributed = _distributed()
    keys, asked = distributed.Security(require_encryption=not insecure), address
    if address.endswith(".json"):
        if not Path(address).is_file():
            raise ClusterError(f"there is no scheduler file {address}; dask scheduler --scheduler-file … writes it")
        try:
            asked = str(json.loads(paths.content(Path(address)))["address"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ClusterError(f"{address} is not a scheduler file ({type(error).__name__}: {error})") from None
        key = Path(address).with_name(KEY_FILE)
        keys = security(key) if key.exists() and asked.startswith("tls://") else keys
    if not asked.startswith("tls://") and not insecure:
        raise ClusterError(
            f"the scheduler at {asked} asks nobody who they are: start it with TLS, as book/scale.md says, and name "
            "tls://… or its scheduler file, or say --insecure where you trust all who can reach it"
        )
    if asked.startswith("tls://") and not (keys.tls_ca_file and keys.tls_client_cert):
        raise ClusterError(
            f"the scheduler at {asked} wants a key: name its scheduler file with {KEY_FILE} beside it, or set "
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__TLS__CLIENT__CERT and …__TLS__CLIENT__KEY"
        )
    try:
        client = distributed.Client(asked, security=keys, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        raise ClusterError(
            f"no scheduler answers at {address} ({type(error).__name__}: {error}). Start one as book/scale.md says"
        ) from None
    with client:
        yield ClusterExecutor(client)


# --- in a worker --------------------------------------------------------------------------------------------------


def about() -> dict[str, str]:
    """The code of nclib and the version of torch of this process."""
    return {"nclib": provenance.code(), "torch": provenance.versions().get("torch", "not installed")}


def _worker() -> Any:
    """The Dask worker that this is called in, else None."""
    if "distributed" not in sys.modules:
        return None
    try:
        return sys.modules["distributed"].get_worker()
    except ValueError:
        return None


def here() -> str:
    """Where a run is made, for messages: the worker's address, "this process" outside a cluster."""
    worker = _worker()
    return f"worker {worker.address}" if worker else "this process"


def tell(topic: str, **message: Any) -> None:
    """From inside a task, tell the client something; nothing outside a cluster."""
    worker = _worker()
    if worker:
        worker.log_event(topic, {**message, "worker": worker.address})


def explain(error: BaseException) -> str:
    """One line for what happened to a task."""
    if type(error).__name__ == "KilledWorker":
        return (
            f"each of the {error.allowed_failures + 1} worker processes that tried it died, often for want of memory; "
            "go on with fewer workers"
        )
    return f"{type(error).__name__}: {error}"


class Watch:
    """Which run is where, and how many seconds it has told nothing.

    Seconds are counted from one call of `silent` to the next, and not beyond what that should be: in a longer gap this
    process was stopped (Ctrl-Z, ``docker pause``), and its workers with it.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, float]] = {}
        self._seconds, self._looked = 0.0, time.monotonic()

    def heard(self, run: str, worker: str) -> None:
        self._last[run] = worker, self._seconds

    def forget(self, run: str) -> str | None:
        """Returns the worker that the run was last heard of from."""
        return self._last.pop(run, (None, 0.0))[0]

    def silent(self, patience: Callable[[str], float], gap: float) -> dict[str, str]:
        """Runs that have told nothing for longer than `patience` of them, with their worker; each is reported once.

        Parameters
        ----------
        gap : the most seconds that may lie between two calls
        """
        now = time.monotonic()
        self._seconds += min(now - self._looked, gap)
        self._looked = now
        late = {run: at for run, (at, since) in list(self._last.items()) if self._seconds - since > patience(run)}
        for run in late:
            self.forget(run)
        return late
