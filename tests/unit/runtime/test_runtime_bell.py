"""The bell between a check process and the one who waits for it."""

import os
import select
import threading
import time

import pytest

from ray_precheck.runtime.workers.bell import Bell, Ringer

pytestmark = pytest.mark.unit

LONG_S = 30.0


def connected() -> tuple[Bell, Ringer, int]:
    """A bell, who rings it, and the descriptor that the latter has."""
    bell = Bell()
    with bell.far_end() as handle:
        own = os.dup(handle)
    return bell, Ringer(own), own


def rings(bell: Bell) -> bool:
    """Whether it has rung since one last looked."""
    poll = select.poll()
    poll.register(bell._fd, select.POLLIN)
    has_rung = bool(poll.poll(0))
    bell.wait(0.0)
    return has_rung


def test_it_rings_for_the_last_answer() -> None:
    bell, ringer, _ = connected()
    ringer.sent(is_last=False, is_large=False)
    assert not rings(bell)
    ringer.sent(is_last=True, is_large=False)
    assert rings(bell)
    assert not rings(bell)


def test_it_rings_for_one_with_tensors() -> None:
    bell, ringer, _ = connected()
    ringer.sent(is_last=False, is_large=True)
    assert rings(bell)


def test_no_more_lie_unread_than_a_socket_holds() -> None:
    bell, ringer, _ = connected()
    for _ in range(15):
        ringer.sent(is_last=False, is_large=False)
    assert not rings(bell)
    ringer.sent(is_last=False, is_large=False)
    assert rings(bell)


def test_who_waits_wakes_at_once_and_when_the_other_end_is_gone() -> None:
    bell, ringer, handle = connected()
    for action in (lambda: ringer.sent(is_last=True, is_large=False), lambda: os.close(handle)):
        timer = threading.Timer(0.1, action)
        timer.start()
        begin = time.monotonic()
        bell.wait(LONG_S)
        assert time.monotonic() - begin < LONG_S / 2
        timer.join()


def test_to_ring_where_nobody_hears_is_no_error() -> None:
    bell, ringer, _ = connected()
    bell.close()
    bell.close()
    with pytest.raises(OSError, match="closed"):
        bell.wait(0.0)
    ringer.sent(is_last=True, is_large=False)
