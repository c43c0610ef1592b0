"""Each signal at each phase of a command, pauses, and two clients; see `hostile.cases` and `hostile.waiting`."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest
from hostile import acting, cases, waiting
from marks import slow

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at the table of processes")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Makes results of a command that nobody disturbed, once."""
    root = waiting.project(tmp_path_factory.mktemp("finished"))

    def results():
        if not (root / "results").exists():
            command = waiting.Command(root, ["reproduce", "--profile", "smoke", "--no-report"])
            assert command.finish() == 0 and command.left_after(20) == [], command.text()
        return root / "results"

    return results


@pytest.fixture
def root(tmp_path):
    return waiting.project(tmp_path / "home")


@pytest.fixture
def start(root):
    started = []

    def command(words, *options):
        started.append(waiting.Command(root, words, *options))
        return started[-1]

    yield command
    for each in started:
        each.go_on()
        each.end()


def _met(phase, command):
    """Whether a command is where it is to be met."""
    match phase:
        case "cluster":
            return any(b"spawn_main" in waiting.command_line(each) for each in command.processes())
        case "workers":
            notes = command.store.root.glob("*.partial/progress.json")
            return any(note.stat().st_mtime_ns > command.began for note in notes)
        case "run's lock" | "drawing's lock" | "site's lock":
            return "waiting for" in command.text()
    return (command.root / "waits").exists()


@contextlib.contextmanager
def _held(phase, root):
    """The lock that another process holds at this phase."""
    results = root / "results"
    places = {
        "run's lock": results / f"runs/.locks/{waiting.ONE}.lock",
        "drawing's lock": results / "smoke/.drawing.lock",
        "site's lock": results / "smoke/.site.lock",
    }
    if phase not in places:
        yield
        return
    places[phase].parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(places[phase]):
        yield


def _send(name, command):
    """As a terminal sends it: to the group. SIGTERM and SIGKILL come from a scheduler, or for want of memory, and hit
    the command alone."""
    number = signal.Signals[name]
    (os.kill if name in ("SIGTERM", "SIGKILL") else os.killpg)(command.process.pid, number)
    return number


def _stopped(command):
    return waiting.state(command.process.pid) == "T"


def _faults(name, command):
    """What is wrong with how a command ended that was sent a signal."""
    asked, number = time.monotonic(), _send(name, command)
    code, took = command.finish(), time.monotonic() - asked
    left = command.left_after(20)
    if name == "SIGKILL":  # nobody is there to tidy up, and the system keeps its folder for temporary files clean
        shutil.rmtree(command.temporary)
        return [f"{each} stays" for each in left if each.startswith("process")]
    told = f"stopped by {'Ctrl-C' if name == 'SIGINT' else name}; what was finished is kept"
    found = [f"{each} stays" for each in left]
    found += [f"code {code}"] if code != 128 + number else []
    found += [f"took {took:.0f} s"] if took > 20 else []
    return found + ([command.text()] if command.text().count(told) != 1 or "Traceback" in command.text() else [])


@pytest.mark.parametrize("phase", [*list(cases.PHASES)[:2], *slow(*list(cases.PHASES)[2:])])
def test_a_signal_at_each_phase(phase, root, start, finished, counted):
    words, stored = cases.PHASES[phase]
    if stored:
        shutil.copytree(finished(), root / "results")
    tree, wrong = acting.tree(root / "notebooks"), []

    def met():
        command = start(words.split(), phase)
        command.reaches(lambda each: _met(phase, each))
        return command

    with counted("signals at each phase of a command", len(cases.SIGNALS)):
        with _held(phase, root):
            for name in cases.ENDINGS:
                wrong += [f"{name}: {fault}" for fault in _faults(name, met())]
            last = met()
            _send("SIGPIPE", last)
            _send("SIGTSTP", last)
            last.reaches(_stopped)
            _send("SIGCONT", last)
            last.reaches(lambda each: not _stopped(each))
        last.go_on()
        wrong += [] if last.finish() == 0 else [f"SIGCONT: {last.text()}"]
        wrong += [f"SIGCONT: {each} stays" for each in last.left_after(20)]
        wrong += [f"{run} is not sound" for run in last.store.ids() if not last.store.is_sound(run)]
        wrong += [f"{path.name} stays" for path in last.store.root.glob("*.partial")]
        assert not wrong, "\n".join(wrong)
        assert last.store.ids() and acting.tree(root / "notebooks") == tree


@pytest.mark.parametrize("name", ["SIGINT", *slow(*(each for each in cases.ENDINGS if each != "SIGINT"))])
def test_a_signal_among_the_imports(name, isolated, counted):
    """The command itself, as soon as it has begun to load torch."""
    words = [sys.executable, "-m", "nclib.cli", *cases.PHASES["training"][0].split()]
    with counted("signals at each phase of a command", 1):
        command = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=waiting.heed_signals)
        while "libtorch" not in Path(f"/proc/{command.pid}/maps").read_text():
            assert command.poll() is None
            time.sleep(0.01)
        number = signal.Signals[name]
        command.send_signal(number)
        _, said = command.communicate(timeout=waiting.PATIENCE)
        assert command.returncode == (-number if name == "SIGKILL" else 128 + number), said
        assert "Traceback" not in said and (name == "SIGKILL" or said.count("stopped by") == 1)
        assert not (isolated / "results").exists()


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["workers", "drawing", "site"])
def test_a_pause_that_is_longer_than_any_patience(phase, root, start, finished, counted):
    """SIGSTOP to all processes, as ``docker pause`` and a suspended job do."""
    words, stored = cases.PHASES[phase]
    if stored:
        shutil.copytree(finished(), root / "results")
    with counted("pauses", 1):
        command = start(words.split(), phase, 3.0)
        command.reaches(lambda each: _met(phase, each))
        paused = command.processes()
        for number, seconds in ((signal.SIGSTOP, 7), (signal.SIGCONT, 0)):
            for each in paused:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, number)
            time.sleep(seconds)
        command.go_on()
        assert command.finish() == 0 and "Traceback" not in command.text(), command.text()
        assert command.left_after(20) == []
        assert command.store.ids() and all(command.store.is_sound(run) for run in command.store.ids())


@pytest.mark.slow
@pytest.mark.parametrize("other", ["", "-p epochs=3"], ids=["the same", "other parameters"])
def test_two_clients_at_once(other, root, start, counted):
    words = cases.PHASES["planning"][0].split()
    with counted("two clients", 2):
        for _ in range(2):
            both = [start(words), start([*words, *other.split()])]
            assert [each.finish() for each in both] == [0, 0], both[0].text() + both[1].text()
            assert [each.left_after(20) for each in both] == [[], []]
        assert all("unchanged" in each.text() for each in both), "each has its own tables"
        store = both[0].store
        assert len(store.ids()) == (4 if other else 2) and all(store.is_sound(run) for run in store.ids())
