"""What a number depends on besides its configuration: code, versions, machine, threads, time and memory.

Records are meant to be published with the results, so they hold no host name, user name or absolute path.
Importing this module is cheap: torch is loaded by the first measurement, not before.
"""

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nclib
from nclib.system.plugins import packages

if TYPE_CHECKING:
    import torch

_FOLDER = Path(__file__).resolve().parent
_MAKE_NO_RUN = ("cli", "course", "laboratory", "reproduce", "site")
_DISTRIBUTIONS = ("torch", "torchvision", "numpy", "scipy", "pandas", "scikit-learn", "matplotlib", "pydantic")


class Cost:
    """Wall time, processor time and peak memory of a block, in this process.

    ```
    with Cost() as cost:
        train(...)
    cost.as_dict()
    ```

    `as_dict` may be called inside the block (cost so far) and after it (final). Peak device memory counts from the
    start of the block; peak resident memory is the whole process's, the only one a system reports.

    Parameters
    ----------
    device : where the work runs; None or a CPU leaves device memory unmeasured.
    """

    def __init__(self, device: "torch.device | str | None" = None):
        self._cuda = str(device) if str(device).startswith("cuda") else None
        self._final: dict[str, float | None] | None = None
        self._wall = self._cpu = 0.0

    def __enter__(self) -> "Cost":
        if self._cuda is not None:
            import torch

            torch.cuda.init()  # without it a device with a number is refused
            torch.cuda.reset_peak_memory_stats(self._cuda)
        self._final = None
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exception: object) -> None:
        self._final = self.as_dict()

    def as_dict(self) -> dict[str, float | None]:
        """wall_seconds, cpu_seconds, peak_rss_mib, peak_device_mib; memory is None where it is not known."""
        if self._final is not None:
            return self._final
        device = None
        if self._cuda is not None:
            import torch

            device = round(torch.cuda.max_memory_allocated(self._cuda) / 2**20, 1)
        return {
            "wall_seconds": round(time.perf_counter() - self._wall, 3),
            "cpu_seconds": round(time.process_time() - self._cpu, 3),
            "peak_rss_mib": _peak_rss_mib(),
            "peak_device_mib": device,
        }


def capture(
    device: "torch.device | str | None" = None,
    seeds: Sequence[int] | None = None,
    cost: Cost | None = None,
) -> dict[str, Any]:
    """A JSON-ready record of the circumstances of a result.

    Parameters
    ----------
    device : where it was computed; None means the CPU.
    seeds : the seeds that entered it.
    cost : a `Cost` around the work; None leaves `cost` null.

    Returns
    -------
    time_utc, commit and dirty (None outside git), versions (of what is installed), python, platform, cpu, bfloat16 (the
    processor's unit for it, or null), cores (usable by this process), threads (torch's), device, deterministic, seeds,
    slurm_job, cost.
    """
    import torch

    commit, dirty = git_state()
    return {
        "time_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "versions": versions(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _fact("/proc/cpuinfo", "model name") or platform.processor() or None,
        "bfloat16": bfloat16_unit(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "device": describe_device(device),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "seeds": None if seeds is None else [int(seed) for seed in seeds],
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "cost": None if cost is None else cost.as_dict(),
    }


def sessions(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The records of all that trained a run: the sessions before it was continued from a checkpoint, then the last one,
    whose record this is. Runs of before 22 November 2026 kept no earlier ones."""
    return [*record.get("facts", {}).get("earlier_sessions", []), record]


def processor_seconds(record: Mapping[str, Any]) -> float:
    """What training a run took in all its `sessions`; what was lost between a checkpoint and an interruption is not
    known."""
    return sum(session["cost"]["cpu_seconds"] for session in sessions(record))


def versions() -> dict[str, str]:
    """Versions of nclib and of what its numbers depend on, as installed; absent packages are left out."""
    found = {"nclib": nclib.__version__}  # a distribution of that name is another project
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def digest(files: Iterable[Path]) -> str:
    """SHA-256 over the contents of files, in the order given."""
    contents = (hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(contents).encode()).hexdigest()


@functools.cache
def code() -> str:
    """Version of nclib and digest of the sources that make and store runs: its own, and those of the packages that add
    kinds of runs. Where two processes differ in it, the same configuration may be another run."""
    making = [
        path
        for package in map(folder, ("nclib", *packages()))
        for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix())
        if path.relative_to(package).parts[0] not in _MAKE_NO_RUN
    ]
    return f"{nclib.__version__} (sources {digest(making)[:12]})"


def folder(package: str) -> Path:
    """Where a package, or a module outside packages, lies."""
    return Path(importlib.util.find_spec(package).origin).parent


def describe_device(device: "torch.device | str | None" = None) -> dict[str, str | int | None]:
    """{"type": "cpu"} or {"type": "cuda", "name": …, "cuda": …, "cudnn": …}; no index, no serial number."""
    import torch

    kind = torch.device(device or "cpu").type
    if kind != "cuda":
        return {"type": kind}
    return {
        "type": kind,
        "name": torch.cuda.get_device_name(torch.device(device)),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def git_state() -> tuple[str | None, bool | None]:
    """Commit of the code that is running, and whether the tree differs from it; (None, None) outside git.

    Untracked files count as a difference, ignored ones do not. A copy of nclib that git does not track, such
    as one installed into another project's environment, has no commit: that project's would be a false one.
    """
    if not _git("ls-files", Path(__file__).name):
        return None, None
    commit = _git("rev-parse", "--verify", "HEAD")
    if commit is None:  # a repository without a commit yet
        return None, None
    status = _git("status", "--porcelain")
    return commit, None if status is None else bool(status)


def _git(*arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(_FOLDER), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):  # no git on this machine, or a very slow disk
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _peak_rss_mib() -> float | None:
    """By the kernel's own record: getrusage hands a spawned process its parent's peak. None on other systems."""
    peak = _fact("/proc/self/status", "VmHWM")
    return round(int(peak.split()[0]) / 1024, 1) if peak else None


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bfloat16_unit() -> str | None:
    """ "AMX" or "AVX-512" where the processor multiplies in bfloat16, else None: there training in it takes tens of
    times as long as in float32."""
    flags = (_fact("/proc/cpuinfo", "flags") or "").split()
    return "AMX" if "amx_bf16" in flags else "AVX-512" if "avx512_bf16" in flags else None


def _fact(file: str, name: str) -> str | None:
    """A line "name: value" of a file that the kernel writes."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.partition(":")[0].strip() == name)
    return None
