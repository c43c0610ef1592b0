"""Each signal at each phase of ``nclib reproduce``, pauses, and two clients; see `hostile.cases`."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile import acting, cases

from nclib.engine.store import RunStore
from nclib.system import paths

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX systems")]
PATIENCE = 240
NOTEBOOK = "table1"


class Client:
    """``nclib reproduce`` in a session of its own, with folders of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.results = folder, folder / "results"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.said = folder / f"said-{time.monotonic_ns()}"
        own = {"NCLIB_RESULTS": self.results, "NCLIB_DATA": folder / "data", "TMPDIR": self.temporary}
        environment = os.environ | {name: str(value) for name, value in own.items()} | {"PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "nclib.cli", "reproduce", NOTEBOOK, "--profile", "smoke", *options]
        with self.said.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=paths.root(),
                start_new_session=True,
                preexec_fn=_heed_signals,
            )

    def text(self) -> str:
        return self.said.read_text(errors="replace")

    def group(self) -> list[int]:
        """Processes of the session, workers and kernels included, which have sessions of their own but our folders."""
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                mine = f"NCLIB_RESULTS={self.results}".encode() in (each / "environ").read_bytes().split(b"\0")
                if mine and (each / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(each.name))
        return found

    def reached(self, phase: str) -> bool:
        text, store = self.text(), self.results / "runs"
        match phase:
            case "imports":
                time.sleep(0.5)
                return True
            case "plan":
                return "to train:" in text
            case "training":
                return any(store.glob("*.partial/*"))
            case "cluster":
                return any(b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes() for each in self.group())
            case "workers":
                return "workers of this machine" in text and any(store.glob("*.partial/*"))
            case "notebook":
                return any(self.temporary.glob("nclib-*/nclib-*")) or any(self.temporary.glob("nclib-*"))
        return (self.results / "smoke/.site").is_dir() and any((self.results / "smoke/.site").iterdir())

    def wait_for(self, phase: str) -> None:
        limit = time.monotonic() + PATIENCE
        while not self.reached(phase):
            assert self.process.poll() is None, f"over before {phase}: {self.text()}"
            assert time.monotonic() < limit, f"{phase} was not reached: {self.text()}"
            time.sleep(0.02)

    def finish(self) -> int:
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        for each in [*self.group(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.process.wait(30)


def _heed_signals() -> None:
    """As under a terminal; in the background of a script, or under nohup, some are ignored."""
    for name in cases.SIGNALS[:-1]:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def _options(phase: str) -> list[str]:
    return ["--workers", "2", "-p", "seeds=4"] if phase in ("cluster", "workers") else []


@pytest.fixture
def client(tmp_path):
    started = []

    def start(*options, folder=tmp_path):
        started.append(Client(folder, *options))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.mark.parametrize("phase", cases.PHASES)
@pytest.mark.parametrize("name", cases.SIGNALS)
def test_a_signal_at_each_phase(name, phase, client, tmp_path, counted):
    with counted("signals at each phase of the command", 1):
        tree = acting.tree(paths.root() / "notebooks")
        number = signal.Signals[name]
        stopped = client(*_options(phase))
        stopped.wait_for(phase)
        asked = time.monotonic()
        os.killpg(stopped.process.pid, number)
        code = stopped.process.wait(60)
        assert time.monotonic() - asked < 60 and code in (128 + number, -number), (code, stopped.text())
        limit = time.monotonic() + 20
        while stopped.group() and time.monotonic() < limit:
            time.sleep(0.1)
        assert stopped.group() == [], "processes stay"
        if name != "SIGKILL" and phase != "imports":
            assert "Traceback" not in stopped.text(), stopped.text()
            assert f"stopped by {'Ctrl-C' if name == 'SIGINT' else name}" in stopped.text()
        if name != "SIGKILL":
            assert [path.name for path in stopped.temporary.iterdir() if not path.name.startswith(cases.NOT_OURS)] == []
        assert acting.tree(paths.root() / "notebooks") == tree
        again = client("--no-report", *_options(phase))
        assert again.finish() == 0, again.text()
        store = RunStore(stopped.results / "runs")
        assert store.ids() and all(store.is_sound(run) for run in store.ids())
        assert not list(store.root.glob("*.partial")) and not list(store.root.glob("*.writing"))


@pytest.mark.parametrize("phase", ["training", "workers", "notebook"])
def test_a_pause_changes_nothing(phase, client, counted):
    """SIGSTOP to all processes, as Ctrl-Z and ``docker pause`` do, and SIGCONT."""
    with counted("pauses", 1):
        paused = client("--no-report", *_options(phase))
        paused.wait_for(phase)
        for number, pause in ((signal.SIGSTOP, 20), (signal.SIGCONT, 0)):
            for each in paused.group():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, number)
            time.sleep(pause)
        assert paused.finish() == 0, paused.text()
        store = RunStore(paused.results / "runs")
        assert all(store.is_sound(run) for run in store.ids()) and "stuck" not in paused.text()


@pytest.mark.parametrize("options", [(), ("-p", "epochs=2")], ids=["the same", "other parameters"])
def test_two_clients(options, client, tmp_path, counted):
    with counted("two clients", 2):
        one, two = client(), client(*options)
        assert (one.finish(), two.finish()) == (0, 0), one.text() + two.text()
        store = RunStore(one.results / "runs")
        assert all(store.is_sound(run) for run in store.ids())
        last = [client("--no-report", *each) for each in ((), options)]
        assert [each.finish() for each in last] == [0, 0]
        assert all("unchanged" in each.text() for each in last), "each has its own tables"

