"""Commands of nclib in processes of their own, which wait where a test wants to meet them; see `test_waiting`.

A child of the warm fork server starts in 50 ms. The project is the smallest there is: one notebook, drawn from two runs
of forty images. What is met is real: the training, the workers and the kernel.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import faults
import pytest

from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from nclib.engine.store import RunStore

PATIENCE = 300
"""Seconds that anything here may take on a busy machine."""

NOTEBOOK = "neural_collapse/fig9"

WAIT = """
import time
from pathlib import Path
asked = Path({project!r}, "wait-at-{phase}")
if asked.exists():
    Path({project!r}, "waits").touch()
while asked.exists():
    time.sleep(0.02)
"""
"""Code that waits at a phase, as long as it is asked to."""

DRAW = f"""
import pandas as pd
from nclib.publish.artefacts import save_table
save_table(pd.DataFrame({{"epochs": [epochs]}}), "{NOTEBOOK}", f"Profile {{profile}}.", [], profile)
"""


def wait(project, phase):
    exec(WAIT.format(project=str(project), phase=phase))


def project(folder):
    """Make the project."""
    root = folder / "project"
    code = {"cell_type": "code", "outputs": [], "execution_count": None}
    parameters = 'profile: str = "quick"  # the size\nepochs: int = 0  # 0 for the profile\'s'
    cells = [
        {**code, "id": "values", "metadata": {"tags": ["parameters"]}, "source": parameters},
        {**code, "id": "figure", "metadata": {}, "source": WAIT.format(project=str(root), phase="drawing") + DRAW},
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = root / f"notebooks/{NOTEBOOK}.ipynb"
    notebook.parent.mkdir(parents=True)
    notebook.write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
    (root / "pyproject.toml").write_text('[project]\nname = "nclib-deq"\n')
    return root


def runs(profile):
    """Two, of as many epochs as are asked for."""
    return [_run(seed, profile.epochs) for seed in (0, 1)]


def _run(seed, epochs):
    images, train = DataConfig(n_max=4, test_per_class=1), TrainConfig(epochs=epochs)
    return RunConfig(data=images, model=ModelConfig(width=2), train=train, seed=seed)


def heed_signals():
    """In the background of a script, or under nohup, some are ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _command(words, project, said):
    """Be the command, in a group of processes of its own: as under a terminal, signals are not ignored."""
    os.setpgid(0, 0)
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    heed_signals()
    tempfile.tempdir = None
    resource_tracker._resource_tracker = resource_tracker.ResourceTracker()  # that of the fork server is shared
    for name in ("ensure_running", "register", "unregister", "getfd"):
        setattr(resource_tracker, name, getattr(resource_tracker._resource_tracker, name))
    multiprocessing.current_process()._config["semprefix"] = f"/{os.getpid()}"
    sys.argv = ["nclib", *words]

    from nclib import training
    from nclib.cli import app
    from nclib.engine import experiments

    update = training.learning_rate
    experiments.known = lambda: {NOTEBOOK: runs}
    training.learning_rate = lambda *options: wait(project, "training") or update(*options)
    app.main()


class Command:
    """A command that was started, and where it is to wait."""

    def __init__(self, root, words, phase=None):
        self.root, self.temporary = root, root.parent / "tmp"
        self.temporary.mkdir(exist_ok=True)
        (root / "waits").unlink(missing_ok=True)
        if phase:
            (root / f"wait-at-{phase}").touch()
        self.said = root.parent / f"said-{time.monotonic_ns()}"
        self.said.touch()
        self.began = self.said.stat().st_mtime_ns
        own = {"NCLIB_ROOT": root, "NCLIB_RESULTS": root / "results", "NCLIB_DATA": root / "data"}
        forkserver.ensure_running()  # with the environment of the tests
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**own, "TMPDIR": self.temporary}.items():
                patch.setenv(name, str(value))
            self.process = faults.start(_command, words, root, self.said)
        self.store = RunStore(root / "results/runs")

    def text(self):
        return self.said.read_text(errors="replace")

    def reaches(self, what):
        """Wait for the command to come to a place."""
        limit = time.monotonic() + PATIENCE
        while not what(self):
            assert self.process.exitcode is None, f"over too early: {self.text()}"
            assert time.monotonic() < limit, f"too late: {self.text()}"
            time.sleep(0.01)

    def go_on(self):
        for asked in self.root.glob("wait-at-*"):
            asked.unlink()

    def finish(self):
        self.process.join(PATIENCE)
        return self.process.exitcode

    def processes(self):
        """Those of the command that live, workers and kernels included, which have sessions of their own."""
        own, found = f"NCLIB_ROOT={self.root}".encode(), []
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                mine = int(each.name) == self.process.pid or own in (each / "environ").read_bytes().split(b"\0")
                if mine and state(each.name) != "Z":
                    found.append(int(each.name))
        return found

    def left(self):
        """What lies about that should not, after 20 seconds at most: processes, temporary files, semaphores."""
        limit = time.monotonic() + 20
        while (found := self._left()) and time.monotonic() < limit:  # kernels look once a second
            time.sleep(0.1)
        return found

    def _left(self):
        found = [f"process {each}" for each in self.processes()]
        found += [path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]
        found += [path.name for path in Path("/dev/shm").glob(f"sem.{self.process.pid}-*")]
        written = (self.root / "results").glob("**/*")
        return found + [path.name for path in written if path.name.endswith((".tmp", ".writing", ".failed.ipynb"))]

    def end(self):
        for each in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.process.join(30)


def state(process):
    """Of a process, as /proc tells it: T is stopped, Z is over."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
