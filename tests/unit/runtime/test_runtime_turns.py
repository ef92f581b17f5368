"""Batches of one actor on several threads, in the order of their numbers."""

import threading
import time
from collections.abc import Callable

import pytest

from ray_precheck.runtime.workers.worker import Turns

pytestmark = pytest.mark.unit


def begin(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("gate", ["handing_in", "running"])
def test_they_pass_a_gate_in_their_order(gate: str) -> None:
    turns = Turns()
    passed: list[int] = []

    def go(turn: int) -> None:
        with getattr(turns, gate)(turn) as counts:
            assert counts
            time.sleep(0.01)
            passed.append(turn)

    threads = [begin(lambda turn=turn: go(turn)) for turn in (4, 3, 2, 1)]  # type: ignore[misc]
    for thread in threads:
        thread.join(60)
    assert passed == [1, 2, 3, 4]


def test_one_is_handed_in_while_the_one_before_runs() -> None:
    turns = Turns()
    with turns.handing_in(1):
        pass
    with turns.running(1), turns.handing_in(2) as counts:
        assert counts


def test_the_next_goes_on_where_one_raises() -> None:
    turns = Turns()
    with pytest.raises(OSError, match="broken"), turns.handing_in(1):
        raise OSError("broken")
    with turns.handing_in(2) as counts:
        assert counts


def test_those_for_a_process_that_is_gone_do_not_count_and_hold_nobody_up() -> None:
    turns = Turns()
    turns.forget(3)
    with turns.handing_in(3) as late:
        assert not late
    with turns.handing_in(4) as counts, turns.running(4) as runs:
        assert counts
        assert runs


def test_one_that_waits_for_its_turn_hears_that_it_does_not_count_any_more() -> None:
    turns = Turns()
    heard: list[bool] = []

    def wait() -> None:
        with turns.running(2) as counts:
            heard.append(counts)

    thread = begin(wait)
    until = time.monotonic() + 60
    while not turns._changed._waiters:  # type: ignore[attr-defined]
        assert thread.is_alive()
        assert time.monotonic() < until
        time.sleep(0.001)
    assert not heard
    turns.forget(2)
    thread.join(60)
    assert heard == [False]
