"""Processes of this session's cluster: other sessions of the tests run beside it on the machine."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
from conftest import GO, MARKS


def own_processes(title: str) -> list[psutil.Process]:
    """Return the processes of this session's cluster whose command line has this text."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if title in " ".join(process.info["cmdline"] or []):
            with suppress(psutil.Error, ProcessLookupError):
                if (
                    process.environ().get("RAY_AUTH_TOKEN_PATH")
                    == os.environ["RAY_AUTH_TOKEN_PATH"]
                ):
                    found.append(process)
    return found


@contextmanager
def killing(title: str, times: int, number: signal.Signals = signal.SIGKILL) -> Iterator[list[int]]:
    """Kill a process of this cluster with this title by a signal, so often; yields the killed pids.

    The first is killed when a call is under way that waits for `GO`; such calls hold the run until all
    are dead.
    """
    killed: list[int] = []
    over = threading.Event()
    for mark in MARKS.glob("machine*"):
        mark.unlink()

    def hunt() -> None:
        while not (list(MARKS.glob("machine*")) or over.is_set()):
            time.sleep(0.01)
        while len(killed) < times and not over.is_set():
            for process in own_processes(title):
                if process.pid not in killed:
                    with suppress(psutil.Error, ProcessLookupError):  # It has just ended itself.
                        process.send_signal(number)
                        killed.append(process.pid)
                    time.sleep(1)
                    break
            time.sleep(0.05)
        GO.touch()

    thread = threading.Thread(target=hunt)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
        GO.unlink()
