"""One notebook executed: headless, in a process that starts fast, its result moved into place when complete.

papermill and all that imports torch are loaded inside functions: a process that executes notebooks needs none of
nclib's, its kernel does.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nclib.publish.notebooks import available, executed, owner, source
from nclib.system import paths, processes, provenance
from nclib.system.files import sha256, write_atomic
from nclib.system.terminal import short

CELL_TIMEOUT = 12 * 3600
"""Seconds that one cell may take. Runs are trained before the notebooks, so only a hanging cell gets there."""

_KERNEL_START_SECONDS = 300  # a kernel starts in two seconds; on a very busy machine it took more than papermill's 60
_LONGEST_SOCKET_FOLDER = 80  # the path of a Unix socket has room for about 100 bytes


@dataclass(frozen=True)
class Execution:
    """How executing one notebook went: how long it took, what went wrong, and the digest of each file it left behind,
    by name relative to the profile's folder."""

    seconds: float
    error: str = ""
    files: dict[str, str] = field(default_factory=dict)


def failed_copy(name: str, profile: str) -> Path:
    """Where a notebook that failed is kept."""
    return executed(name, profile).with_suffix(".failed.ipynb")


def execute(name: str, values: Mapping[str, Any], profile: str, timeout: float = CELL_TIMEOUT) -> Execution:
    """Run one notebook headless, top to bottom, in a kernel of this Python and in the notebook's own folder.

    The result is moved to `executed` when complete; a failed notebook is kept beside it as ``<name>.failed.ipynb``
    and leaves an earlier complete one alone.

    Parameters
    ----------
    name : "paper/notebook".
    values : parameters to inject, already checked.
    timeout : seconds for each cell.

    Returns
    -------
    an `Execution`; nothing is raised for what happens inside the notebook.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)  # it doubts parameters that are checked already
    clock, error, files, before = time.monotonic(), "", {}, sidecars(profile)
    with tempfile.TemporaryDirectory(prefix="nclib-", ignore_cleanup_errors=True) as folder:
        written = Path(folder) / "notebook.ipynb"
        try:
            papermill.execute_notebook(
                source(name),
                written,
                parameters=dict(values),
                kernel_name="python3",
                cwd=source(name).parent,
                progress_bar=False,
                log_output=False,
                start_timeout=_KERNEL_START_SECONDS,
                execution_timeout=timeout,
                coalesce_streams=True,
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
                config=_transport(folder),
            )
        except PapermillExecutionError as fault:
            error = short(f"{fault.ename}: {fault.evalue.strip()}", f"cell {fault.exec_count}")
        except Exception as fault:  # a kernel that died or did not start, a cell beyond its time
            error = short(f"{type(fault).__name__}: {fault}")
        if written.exists():
            digest = publish(written, name, profile, failed=bool(error))
            files = {} if error else files_left(name, profile, before, digest)
    return Execution(time.monotonic() - clock, error, files)


def _transport(folder: str) -> Any:
    """Sockets in a folder of this execution: TCP ports chosen by two kernels at once can be the same one."""
    from traitlets.config import Config

    if os.name != "posix" or len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        return Config()
    return Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})


def publish(written: Path, name: str, profile: str, failed: bool) -> str:
    """Move a notebook to its place, complete or not at all, without the paths of this machine that papermill notes;
    returns the digest of what is there now."""
    notebook = json.loads(written.read_text(encoding="utf-8"))
    target = failed_copy(name, profile) if failed else executed(name, profile)
    notes = notebook["metadata"].get("papermill", {})
    notes |= {"input_path": f"notebooks/{name}.ipynb", "output_path": target.name}
    content = (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()
    write_atomic(target, content)
    if not failed:
        failed_copy(name, profile).unlink(missing_ok=True)
    return sha256(content)


def sidecars(profile: str) -> dict[Path, tuple[int, int]]:
    """The sidecars there are, and what changes when one is written anew, whatever the clock says."""
    folder = paths.results(profile)
    found = {path: path.stat() for kind in ("figures", "tables") for path in folder.glob(f"{kind}/**/*.json")}
    return {path: (about.st_ino, about.st_mtime_ns) for path, about in found.items()}


def files_left(name: str, profile: str, before: Mapping[Path, tuple[int, int]], notebook: str) -> dict[str, str]:
    """What an execution left behind, by name relative to the profile's folder: the notebook, its figures and tables,
    each with the digest of what was written, which its record holds: by now the file may be somebody else's.

    Parameters
    ----------
    before : `sidecars` from before it.
    notebook : digest of the executed notebook.
    """
    folder, names, found = paths.results(profile), available(), {executed(name, profile): notebook}
    for sidecar, state in sidecars(profile).items():
        artefact = sidecar.relative_to(folder).with_suffix("").as_posix().partition("/")[2]
        if owner(artefact, names) == name and before.get(sidecar) != state:
            record = sidecar.read_bytes()
            found[sidecar] = sha256(record)
            found |= {sidecar.with_name(file): about["sha256"] for file, about in json.loads(record)["files"].items()}
    return {path.relative_to(folder).as_posix(): digest for path, digest in found.items()}


@contextlib.contextmanager
def notebook_pool(size: int) -> Iterator[concurrent.futures.Executor]:
    """Spawned processes for `execute`. Left by an exception, they and their kernels have ended when it goes on."""
    before = set(multiprocessing.active_children())
    with tempfile.TemporaryDirectory(prefix="nclib-", ignore_cleanup_errors=True) as scratch:
        pool = concurrent.futures.ProcessPoolExecutor(
            size, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(scratch,)
        )
        try:
            yield pool
            pool.shutdown()
        except BaseException:
            end_children(before)  # first: a worker that is told to stop would leave what it started
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker(scratch: str) -> None:
    """Ctrl-C reaches the command alone, which ends its workers in order; a command that is killed takes them along.
    What a worker started ends with it; kernels follow by themselves.

    Parameters
    ----------
    scratch : for temporary files of worker and kernels, removed by the command when they had no time to do it.
    """
    os.environ["TMPDIR"] = scratch
    tempfile.tempdir = None  # look it up again
    if hasattr(os, "setsid"):
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    processes.follow_parent()


def end_children(before: set[Any], patience: float = 10.0) -> None:
    """End the processes started since `before` was noted; those that do not follow SIGTERM are killed."""
    children = [child for child in multiprocessing.active_children() if child not in before]
    for child in children:
        child.terminate()
    limit = time.monotonic() + patience
    for child in children:
        child.join(max(0.0, limit - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """What the processes started in the block inherit: absolute folders, because a notebook runs in its own one; one
    thread; this very nclib; kernels of this Python even where another is registered for the user."""
    values = {
        "NCLIB_ROOT": str(paths.root()),
        "NCLIB_RESULTS": str(paths.results()),
        "NCLIB_DATA": str(paths.data()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1",
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY") or "PASSIVE",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "NCLIB_WITH": "",
    }
    with processes.environment_restored([*values, "PYTHONPATH"]), tempfile.TemporaryDirectory(prefix="nclib-") as alone:
        # links: with the clone itself on the path, a file in it named like a module of Python would be taken for that
        for package in ("nclib", *provenance.packages()):
            Path(alone, package).symlink_to(provenance.folder(package))
        path = [alone, *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
        os.environ.update(values | {"PYTHONPATH": os.pathsep.join(path)})
        yield
