"""Worker processes that never outlive what started them, and the environment they start in."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def environment_restored(names: Iterable[str]) -> Iterator[None]:
    """These environment variables may be changed within; afterwards they are what they were, set or not."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def be_worker(started: Any) -> None:
    """Begin a worker and say so: it ends with the process that started it, which is also the one that answers Ctrl-C,
    sent to all by a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent()
    started.set()


def follow_parent() -> None:
    """Have this process end with the one that started it, even where that one is killed and can signal nothing.

    To be called once; returns at once and watches from a daemon thread. What a process that leads a group has started
    in it ends with it.
    """
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(started_by: int) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    while parent is None and os.getppid() == started_by:
        time.sleep(0.2)
    if hasattr(os, "getpgrp") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # what was written aside is not taken for done; kernels watch their own parent and follow
