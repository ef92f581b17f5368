"""The bell between a check process and the one who waits for it."""

import os
import select
import threading

import pytest

from ray_precheck.runtime.workers.bell import Bell, Ringer

pytestmark = pytest.mark.unit

FOREVER_S = 1e6
# Who has not woken after this time will not wake any more.
HANGS_S = 120.0


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


def waiting(bell: Bell) -> threading.Thread:
    """Return a thread that waits for the bell, in effect without end."""
    thread = threading.Thread(target=bell.wait, args=(FOREVER_S,), daemon=True)
    thread.start()
    return thread


def test_who_waits_wakes_when_it_rings_and_not_before() -> None:
    bell, ringer, _ = connected()
    ringer.sent(is_last=False, is_large=False)
    thread = waiting(bell)
    thread.join(0.2)
    assert thread.is_alive()
    ringer.sent(is_last=True, is_large=False)
    thread.join(HANGS_S)
    assert not thread.is_alive()


def test_who_waits_wakes_when_the_other_end_is_gone() -> None:
    bell, _, handle = connected()
    thread = waiting(bell)
    os.close(handle)
    thread.join(HANGS_S)
    assert not thread.is_alive()


def test_to_ring_where_nobody_hears_is_no_error() -> None:
    bell, ringer, _ = connected()
    bell.close()
    bell.close()
    with pytest.raises(OSError, match="closed"):
        bell.wait(0.0)
    ringer.sent(is_last=True, is_large=False)
