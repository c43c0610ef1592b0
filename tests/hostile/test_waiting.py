"""Signals to a command that trains, here or in processes, and to one that draws; and two clients at once."""

import os
import signal
import time

import pytest
from hostile import waiting
from marks import slow

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at the table of processes")

ALL = ["reproduce", "--profile", "smoke", "--no-report"]
PHASES = {
    "training": ["train", "--width", "2", "--n-max", "4", "--epochs", "2", "-s", "data.test_per_class=1"],
    "workers": [*ALL, "--workers", "2", "-p", "epochs=40"],
    "drawing": ALL,
}
"""What is typed, and where the signal arrives."""


@pytest.fixture
def start(tmp_path):
    root, started = waiting.project(tmp_path / "home"), []

    def command(words, phase=None):
        started.append(waiting.Command(root, words, phase))
        return started[-1]

    yield command
    for each in started:
        each.go_on()
        each.end()


def _met(command):
    notes = list(command.store.root.glob("*.partial/progress.json"))
    return (command.root / "waits").exists() or any(note.stat().st_mtime_ns > command.began for note in notes)


CASES = [("training", "SIGTERM"), *slow(("training", "SIGHUP"), ("workers", "SIGTERM"), ("drawing", "SIGINT"))]


@pytest.mark.parametrize(("phase", "name"), [("workers", "SIGINT"), *CASES, *slow(("workers", "SIGKILL"))])
def test_a_signal_ends_everything_and_the_next_call_goes_on(phase, name, start):
    """As a terminal sends it: to the group. SIGTERM and SIGKILL come from a scheduler and hit the command alone."""
    command, number = start(PHASES[phase], phase), signal.Signals[name]
    command.reaches(_met)
    asked = time.monotonic()
    (os.kill if name in ("SIGTERM", "SIGKILL") else os.killpg)(command.process.pid, number)
    code, left = command.finish(), command.left()
    command.go_on()
    if name == "SIGKILL":  # nobody is there to tidy up
        assert code == -number and [each for each in left if each.startswith("process")] == []
    else:
        told = f"stopped by {'Ctrl-C' if name == 'SIGINT' else name}; what was finished is kept"
        assert (code, left) == (128 + number, []) and time.monotonic() - asked < 40
        assert command.text().count(told) == 1 and "Traceback" not in command.text(), command.text()
    again = start(PHASES[phase])
    assert again.finish() == 0 and set(again.left()) <= set(left), again.text()
    assert again.store.ids() and all(again.store.is_sound(run) for run in again.store.ids())
    assert again.store.unfinished() == []


@pytest.mark.slow
def test_two_clients_at_once(start):
    both = [start(ALL), start(ALL)]
    assert [each.finish() for each in both] == [0, 0], both[0].text() + both[1].text()
    assert [each.left() for each in both] == [[], []]
    store = both[0].store
    assert len(store.ids()) == 2 and all(store.is_sound(run) for run in store.ids())
