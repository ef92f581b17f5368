"""Actors as threads: the protocol that the driver is used to from Ray."""

import threading
import time
from collections.abc import Mapping
from typing import ClassVar

import pytest

from ray_precheck.runtime.actors import ActorLost, CallFailed
from ray_precheck.runtime.local_actors import LocalActors

LONG_S = 60.0


class Counter:
    """An actor with a thread for `told` beside that of the other methods."""

    THREADS: ClassVar[Mapping[str, tuple[int, tuple[str, ...]]]] = {"news": (1, ("told",))}

    def __init__(self, closed: threading.Event, *, first: int) -> None:
        self._count = first
        self._closed = closed
        self._told = threading.Event()

    def add(self, number: int) -> int:
        self._count += number
        return self._count

    def wait(self) -> bool:
        return self._told.wait(LONG_S)

    def told(self) -> None:
        self._told.set()

    def fail(self) -> None:
        raise ValueError("no such number\nand more")

    def close(self) -> None:
        self._closed.set()
        self._told.set()


@pytest.fixture
def closed() -> threading.Event:
    return threading.Event()


def test_calls_are_answered_in_turn_and_an_answer_is_an_argument(closed: threading.Event) -> None:
    actors = LocalActors()
    counter = actors.start(Counter, "", closed, first=10)
    first = actors.call(counter, "add", 1)
    second = actors.call(counter, "add", first)
    third = actors.call(counter, "add", actors.put(5))
    assert set(actors.wait([third], LONG_S)) == {third}
    assert [actors.result(answer) for answer in (first, second, third)] == [11, 22, 27]
    actors.kill(counter)


def test_a_method_of_another_group_is_answered_while_a_long_one_runs(
    closed: threading.Event,
) -> None:
    actors = LocalActors()
    counter = actors.start(Counter, "", closed, first=0)
    long, behind = actors.call(counter, "wait"), actors.call(counter, "add", 1)
    assert actors.wait([long, behind], 0.1) == []
    told = actors.call(counter, "told")
    assert actors.wait([told], LONG_S) == [told]
    while len(actors.wait([long, behind], LONG_S)) < 2:
        pass
    assert actors.result(long) is True
    actors.kill(counter)


def test_what_a_method_raises_is_told_and_the_actor_lives(closed: threading.Event) -> None:
    actors = LocalActors()
    counter = actors.start(Counter, "", closed, first=0)
    failed = actors.call(counter, "fail")
    assert actors.wait([failed], LONG_S) == [failed]
    with pytest.raises(CallFailed) as told:
        actors.result(failed)
    assert told.value.reason == "no such number"
    assert isinstance(told.value.cause, ValueError)
    after = actors.call(counter, "add", 1)
    actors.wait([after], LONG_S)
    assert actors.result(after) == 1
    actors.kill(counter)


def test_an_actor_that_is_ended_closes_what_it_has_and_answers_nothing(
    closed: threading.Event,
) -> None:
    actors = LocalActors()
    counter = actors.start(Counter, "", closed, first=0)
    made = actors.call(counter, "add", 1)
    actors.wait([made], LONG_S)
    running = actors.call(counter, "wait")
    actors.kill(counter)
    actors.kill(counter)
    late = actors.call(counter, "add", 1)
    for answer in (running, late):
        assert actors.wait([answer], LONG_S) == [answer]
        with pytest.raises(ActorLost):
            actors.result(answer)
    assert closed.wait(LONG_S)
    assert actors.result(made) == 1  # what it had answered stays


def test_no_thread_is_left_of_an_actor(closed: threading.Event) -> None:
    actors = LocalActors()
    before = set(threading.enumerate())
    counter = actors.start(Counter, "", closed, first=0)
    actors.wait([actors.call(counter, "add", 1)], LONG_S)
    actors.kill(counter)
    until = time.monotonic() + LONG_S
    while set(threading.enumerate()) - before:
        assert time.monotonic() < until
        time.sleep(0.01)
