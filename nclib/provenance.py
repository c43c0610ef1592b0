"""What a number depends on besides its configuration: code, versions, machine, threads, time and
memory.

Records are meant to be published with the results, so they hold no host name, user name or absolute
path. Importing this module is cheap: torch is loaded by the first measurement, not before.
"""

import contextlib
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nclib
from nclib.paths import sha256

_FOLDER = Path(__file__).resolve().parent
_DISTRIBUTIONS = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "pandas",
    "scikit-learn",
    "matplotlib",
    "pydantic",
)


class Cost:
    """Wall time and processor time of a block, and the peak memory of this process.

    ```
    with Cost() as cost:
        train(...)
    cost.as_dict()
    ```

    `as_dict` may be called inside the block (cost so far) and after it (final).
    """

    def __enter__(self) -> "Cost":
        self._final: dict[str, float | None] | None = None
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        return self

    def __exit__(self, *exception: object) -> None:
        self._final = self.as_dict()

    def as_dict(self) -> dict[str, float | None]:
        """wall_seconds, cpu_seconds, peak_rss_mib; memory is None where it is not known."""
        if self._final is not None:
            return self._final
        # The kernel's own record: getrusage hands a spawned process its parent's peak.
        peak = _fact("/proc/self/status", "VmHWM")
        return {
            "wall_seconds": round(time.perf_counter() - self._wall, 3),
            "cpu_seconds": round(time.process_time() - self._cpu, 3),
            "peak_rss_mib": round(int(peak.split()[0]) / 1024, 1) if peak else None,
        }


def capture(
    device: Any = None, seeds: Sequence[int] | None = None, cost: Cost | None = None
) -> dict[str, Any]:
    """A JSON-ready record of the circumstances of a result.

    Parameters
    ----------
    device : where it was computed; None means the CPU.
    seeds : the seeds that entered it.
    cost : a `Cost` around the work; None leaves `cost` null.

    Returns
    -------
    dict
        time_utc, commit and dirty (None outside git), versions (of what is installed), python,
        platform, cpu, bfloat16 (see `bfloat16_unit`), cores (usable by this process), threads
        (torch's), device, deterministic, seeds, cost.
    """
    import torch

    kind = torch.device(device or "cpu").type
    described = {"type": kind}
    if kind == "cuda":
        described["name"] = torch.cuda.get_device_name(device)
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
        "device": described,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "seeds": None if seeds is None else list(map(int, seeds)),
        "cost": None if cost is None else cost.as_dict(),
    }


def sessions(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The records of all that trained a run: the sessions before it was continued from a
    checkpoint, then the last one, whose record this is. Runs of before 22 November 2026 kept no
    earlier ones."""
    return [*record.get("facts", {}).get("earlier_sessions", []), record]


def processor_seconds(record: Mapping[str, Any]) -> float:
    """What training a run took in all its `sessions`; what was lost between a checkpoint and an
    interruption is not known."""
    return sum(session["cost"]["cpu_seconds"] for session in sessions(record))


def versions() -> dict[str, str]:
    """Versions of nclib and of what its numbers depend on, as installed; absent packages are left
    out."""
    installed = {"nclib": nclib.__version__}  # a distribution of that name is another project
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def digest(files: Iterable[Path]) -> str:
    """SHA-256 over the contents of files, in the order given."""
    return sha256("".join(sha256(path.read_bytes()) for path in files).encode())


def folder(package: str) -> Path:
    """Where a package, or a module outside packages, lies."""
    return Path(importlib.util.find_spec(package).origin).parent


def git_state() -> tuple[str | None, bool | None]:
    """Commit of the code that is running, and whether the tree differs from it; (None, None)
    outside git.

    Untracked files count as a difference, ignored ones do not. A copy of nclib that git does not
    track, such as one installed into another project's environment, has no commit: that project's
    would be a false one.
    """
    if not _git("ls-files", Path(__file__).name):
        return None, None
    commit = _git("rev-parse", "--verify", "HEAD")
    status = _git("status", "--porcelain")
    if commit is None or status is None:
        return commit, None
    return commit, bool(status)


def git_refuses() -> bool:
    """Whether git does not read this clone because it belongs to another user, as in containers;
    records then have no commit."""
    command = ["git", "-C", str(_FOLDER), "rev-parse"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return False
    return "safe.directory" in done.stderr


def _git(*arguments: str) -> str | None:
    """What git answers; None where it fails, or is not installed, or takes too long."""
    command = ["git", "--no-optional-locks", "-C", str(_FOLDER), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def bfloat16_unit() -> str:
    """What multiplies in bfloat16: "AMX", "AVX-512 BF16", "none" (training in it then takes many
    times as long as in float32), or "unknown" where the kernel does not list the processor's
    features."""
    features = _fact("/proc/cpuinfo", "flags")
    if features is None:
        return "unknown"
    for name, unit in (("amx_bf16", "AMX"), ("avx512_bf16", "AVX-512 BF16")):
        if name in features.split():
            return unit
    return "none"


def processor_kinds(record: Mapping[str, Any]) -> set[str]:
    """The kinds of processor that trained a run, over all its `sessions`: name and bfloat16 unit,
    on which the bits of a result depend. Records made before 24 November 2026 write null for a
    processor without such a unit; later ones, until 28 November, do not name it, and their unit is
    unknown."""
    kinds = set()
    for session in sessions(record):
        unit = session.get("bfloat16", "unknown")
        kinds.add(f"{session['cpu']}, bfloat16 unit: {'none' if unit is None else unit}")
    return kinds


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fact(file: str, name: str) -> str | None:
    """A line "name: value" of a file that the kernel writes."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
