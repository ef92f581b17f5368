"""The wakeup between a check process and the one who waits for it."""

import os
import select
import threading

import pytest

from ray_precheck.runtime.workers.messages import Wakeup, WakeupSender

pytestmark = pytest.mark.unit

FOREVER_S = 1e6
# Who has not woken after this time will not wake any more.
HANGS_S = 120.0


def connected() -> tuple[Wakeup, WakeupSender, int]:
    """A wakeup, who rings it, and the descriptor that the latter has."""
    wakeup = Wakeup()
    with wakeup.far_end() as handle:
        own = os.dup(handle)
    return wakeup, WakeupSender(own), own


def rings(wakeup: Wakeup) -> bool:
    """Whether it has rung since one last looked."""
    poll = select.poll()
    poll.register(wakeup._fd, select.POLLIN)
    has_rung = bool(poll.poll(0))
    wakeup.wait(0.0)
    return has_rung


def test_it_rings_for_the_last_answer() -> None:
    wakeup, sender, _ = connected()
    sender.sent(is_last=False, is_large=False)
    assert not rings(wakeup)
    sender.sent(is_last=True, is_large=False)
    assert rings(wakeup)
    assert not rings(wakeup)


def test_it_rings_for_one_with_tensors() -> None:
    wakeup, sender, _ = connected()
    sender.sent(is_last=False, is_large=True)
    assert rings(wakeup)


def test_no_more_lie_unread_than_a_socket_holds() -> None:
    wakeup, sender, _ = connected()
    for _ in range(15):
        sender.sent(is_last=False, is_large=False)
    assert not rings(wakeup)
    sender.sent(is_last=False, is_large=False)
    assert rings(wakeup)


def waiting(wakeup: Wakeup) -> threading.Thread:
    """Return a thread that waits for the wakeup, in effect without end."""
    thread = threading.Thread(target=wakeup.wait, args=(FOREVER_S,), daemon=True)
    thread.start()
    return thread


def test_who_waits_wakes_when_it_rings_and_not_before() -> None:
    wakeup, sender, _ = connected()
    sender.sent(is_last=False, is_large=False)
    thread = waiting(wakeup)
    thread.join(0.2)
    assert thread.is_alive()
    sender.sent(is_last=True, is_large=False)
    thread.join(HANGS_S)
    assert not thread.is_alive()


def test_who_waits_wakes_when_the_other_end_is_gone() -> None:
    wakeup, _, handle = connected()
    thread = waiting(wakeup)
    os.close(handle)
    thread.join(HANGS_S)
    assert not thread.is_alive()


def test_to_ring_where_nobody_hears_is_no_error() -> None:
    wakeup, sender, _ = connected()
    wakeup.close()
    wakeup.close()
    with pytest.raises(OSError, match="closed"):
        wakeup.wait(0.0)
    sender.sent(is_last=True, is_large=False)
