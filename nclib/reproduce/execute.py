"""One notebook executed, headless, in a process of its own that starts with everything imported.

papermill executes it, with an engine that runs the cells by IPython in this process. The processes are forked from a
server that has loaded torch, pandas and the rest once.
"""

import contextlib
import functools
import gc
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nclib import figures, paths, provenance
from nclib.paths import sha256, write_atomic
from nclib.profiles import PAPERS
from nclib.publish.notebooks import executed, images, source
from nclib.runs import follow_parent
from nclib.system.terminal import short

# Modules, since packages with lazy names load nothing; not the inline backend, which wants to find IPython running.
_LOADED = ("IPython.core.interactiveshell", "papermill", "torch._dynamo", "sklearn.datasets", "sklearn.manifold")
_LOADED += ("matplotlib.backends.backend_pdf", "nclib.evaluation", "nclib.figures", "nclib.plots")
_context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
_running: set[Any] = set()


def execute(name: str, values: Mapping[str, Any], profile: str) -> tuple[str, dict[str, str]]:
    """Run one notebook from top to bottom in its own folder.

    The result is moved to `executed` when complete. A notebook that fails is kept beside it as ``<name>.failed.ipynb``
    and leaves an earlier complete one alone. Nothing is raised for what happens inside the notebook.

    Parameters
    ----------
    name : "paper/notebook".
    values : parameters to inject, already checked.

    Returns
    -------
    What went wrong, and the digest of each file that it left behind, by name relative to the profile's folder.
    """
    if sys.platform == "linux":
        papers = [f"nclib.papers.{paper}.experiments" for paper in PAPERS]
        _context.set_forkserver_preload([*_LOADED, *papers])
    receiver, sender = _context.Pipe(duplex=False)
    child = _context.Process(target=_be_notebook, args=(sender, dict(os.environ), name, dict(values), profile))
    child.start()
    _running.add(child)
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        child.join()
        return f"its process died (exit code {child.exitcode})", {}
    finally:
        child.join()
        _running.discard(child)


def end_all() -> None:
    """End the notebooks that are being executed, with all that they have started."""
    for child in list(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL) if hasattr(os, "killpg") else child.kill()


def _be_notebook(
    sender: Connection, environment: dict[str, str], name: str, values: dict[str, Any], profile: str
) -> None:
    os.environ.update(environment)  # the server has that of its start
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the command alone
    follow_parent()
    gc.freeze()  # what the server has loaded stays, and need not be searched
    try:
        sender.send(run_cells(name, values, profile))
    except Exception as error:  # what was rendered could not be written
        sender.send((short(f"{type(error).__name__}: {error}"), {}))


def run_cells(name: str, values: Mapping[str, Any], profile: str) -> tuple[str, dict[str, str]]:
    """Execute a notebook in this process; what went wrong, and the digest of each file that it has left."""
    import nbformat
    import papermill

    target, error = executed(name, profile), ""
    failed = target.with_suffix(".failed.ipynb")
    failed.parent.mkdir(parents=True, exist_ok=True)
    os.chdir(source(name).parent)
    figures.WRITTEN.clear()
    options = {"engine_name": _engine(), "progress_bar": False, "request_save_on_cell_execute": False}
    try:
        papermill.execute_notebook(str(source(name)), str(failed), dict(values), **options)
    except papermill.PapermillExecutionError as fault:
        error = short(f"{fault.ename}: {fault.evalue.strip()}", f"cell {fault.exec_count}")
    notebook = nbformat.read(failed, nbformat.NO_CONVERT)
    for part in (notebook, *notebook.cells):
        part.metadata.pop("papermill", None)  # times, and paths of this machine
    content = (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()
    write_atomic(failed if error else target, content)
    if error:
        return error, {}
    failed.unlink()
    found = figures.WRITTEN | {target: sha256(content)} | _copy_images(name, target.parent)
    return "", {path.relative_to(paths.results(profile)).as_posix(): digest for path, digest in found.items()}


def _copy_images(name: str, folder: Path) -> dict[Path, str]:
    """Put the pictures that a notebook links to beside its executed copy; their digests."""
    copied = {}
    for image in images(name):
        if image.is_file():
            content = image.read_bytes()
            copied[write_atomic(folder / "images" / image.name, content)] = sha256(content)
    return copied


def _engine() -> str:
    """The name of an engine of papermill that runs cells in this process, where a kernel would start anew."""
    from IPython.core.interactiveshell import InteractiveShell
    from papermill.engines import Engine, papermill_engines
    from traitlets.config import Config

    class InThisProcess(Engine):
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> None:
            shell, shown = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}})), {}
            for number, cell in enumerate((cell for cell in nb_man.nb.cells if cell.cell_type == "code"), 1):
                cell.execution_count = number
                if not _run_cell(shell, cell, shown):
                    return

    papermill_engines.register("nclib", InThisProcess)
    return "nclib"


def _run_cell(shell: Any, cell: Any, shown: dict[str, Any]) -> bool:
    """Execute one cell and put what it shows into it; `shown` has the outputs that later cells may replace.

    False if it fails; its last output is then the error.
    """
    from IPython.utils.capture import capture_output
    from nbformat.v4 import new_output

    with shell.display_trap, capture_output() as seen:
        done = shell.run_cell(cell.source)
    texts = {"stdout": seen.stdout, "stderr": seen.stderr}
    cell.outputs = [new_output("stream", name=stream, text=text) for stream, text in texts.items() if text]
    for each in seen.outputs:
        place = (each.transient or {}).get("display_id")
        if each.update and place in shown:
            shown[place].data = each.data
            continue
        cell.outputs.append(new_output("display_data", data=each.data, metadata=each.metadata or {}))
        shown[place] = cell.outputs[-1]
    if done.success:
        return True
    fault = done.error_before_exec or done.error_in_exec
    lines = traceback.format_exception(fault)
    cell.outputs.append(new_output("error", ename=type(fault).__name__, evalue=str(fault), traceback=lines))
    return False


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """What the processes started in the block inherit: absolute folders, because a notebook runs in its own one; one
    thread; this very nclib."""
    values = {
        "NCLIB_ROOT": paths.root(),
        "NCLIB_RESULTS": paths.results(),
        "NCLIB_DATA": paths.data(),
        "NCLIB_WITH": "",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # any other would show no pictures
    }
    defaults = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with paths.environment_restored([*values, *defaults, "PYTHONPATH"]):
        given = map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
        os.environ["PYTHONPATH"] = os.pathsep.join([_links().name, *given])
        os.environ.update({name: str(value) for name, value in values.items()})
        os.environ.update({name: os.environ.get(name) or value for name, value in defaults.items()})
        yield


@functools.cache
def _links() -> tempfile.TemporaryDirectory[str]:
    """A folder with links to the packages, as long as this process lives. With the clone itself on the path, a file in
    it that is named like a module of Python would be taken for that."""
    folder = tempfile.TemporaryDirectory(prefix="nclib-", ignore_cleanup_errors=True)
    for package in ("nclib",):
        Path(folder.name, package).symlink_to(provenance.folder(package))
    return folder
