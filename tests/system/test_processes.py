"""Signals that wait until processes are born."""

import contextlib
import os
import signal
import threading

import pytest

from nclib.system import processes


@pytest.fixture
def heard():
    said = []
    before = signal.signal(signal.SIGTERM, lambda number, _: said.append(number))
    yield said
    signal.signal(signal.SIGTERM, before)


def test_a_deferred_signal_is_handled_once_and_at_the_end(heard):
    with processes.deferred([signal.SIGTERM]):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == []
    assert heard == [signal.SIGTERM]
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM] * 2


def test_an_error_in_the_block_does_not_lose_the_signal(heard):
    with contextlib.suppress(ValueError), processes.deferred([signal.SIGTERM]):
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError
    assert heard == [signal.SIGTERM]


def test_ctrl_c_ends_the_block_that_it_came_in():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job may ignore it
    try:
        with pytest.raises(KeyboardInterrupt), processes.deferred([signal.SIGINT]):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_ignored_stays_so_and_other_threads_are_left_alone():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.deferred([signal.SIGHUP]):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    passed = []

    def elsewhere():
        with processes.deferred([signal.SIGINT]):
            passed.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert passed == [signal.getsignal(signal.SIGINT)]
