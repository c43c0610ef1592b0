"""Progress, and signals as Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nclib.system import terminal

CLOSED_TERMINAL = """
import multiprocessing, signal, time
from nclib.system import processes, terminal

processes.keep_tracker()
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
with terminal.terminable():
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    print(f"sem.{semaphore._semlock.name[1:]}", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="semaphores are files there")
def test_a_closed_terminal_leaves_no_semaphore():
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    client = subprocess.Popen([sys.executable, "-c", CLOSED_TERMINAL], **options)
    semaphore = Path("/dev/shm", client.stdout.readline().strip())
    assert semaphore.is_file()
    os.killpg(client.pid, signal.SIGHUP)
    _, said = client.communicate(timeout=30)
    assert "Terminated" in said and "resource_tracker" not in said and not semaphore.exists()


def test_nohup_holds():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminal.terminable():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys):
    said = []
    with terminal.progress_bar("training", said.append) as tell:
        tell(1, 10, "at once")
    assert said == []
    tell = terminal._lines("training", said.append, every=0.0)
    tell(5, 10, "2 of 4 runs")
    assert said == ["training: 50 % (2 of 4 runs)"]
    assert capsys.readouterr() == ("", "")
