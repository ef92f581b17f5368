"""Signals as a request to stop: heard once, looked at in time or not at all."""

import os
import signal
import time

import pytest

from ray_precheck.runtime import stop_signal
from ray_precheck.runtime.stop_signal import interrupted_by_signals, stop_on_signal

pytestmark = pytest.mark.unit


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_a_request_that_nobody_looks_at_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_signal, "_PATIENCE_S", 1)
    begin = time.monotonic()

    def wait() -> None:
        send(signal.SIGTERM)
        time.sleep(30)

    with stop_on_signal(), pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() - begin < 10


def test_one_that_was_looked_at_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_signal, "_PATIENCE_S", 1)
    alarm = signal.getsignal(signal.SIGALRM)
    with stop_on_signal() as stop:
        send(signal.SIGHUP)
        assert stop.is_set()
        time.sleep(1.5)
    assert signal.getsignal(signal.SIGALRM) is alarm


def test_repetitions_of_sigterm_interrupt_neither_the_end_of_a_run_nor_that_of_a_command() -> None:
    with interrupted_by_signals(is_own=False):
        with stop_on_signal() as stop:
            send(signal.SIGTERM)
            assert stop.is_set()
            send(signal.SIGTERM)
        send(signal.SIGTERM)
    with interrupted_by_signals(is_own=False):
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)
        send(signal.SIGHUP)


def test_an_ignored_sighup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            send(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
