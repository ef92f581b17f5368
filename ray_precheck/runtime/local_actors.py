"""Actors as threads of this process: the protocol of `runtime.actors` without Ray.

For a run on this machine that is over before Ray would have paid for its start. Workers watch the same check
processes as they do as actors of Ray, and the writer writes the same files, so rows, bytes and what an API
can break are the same. What is missing is what only processes have: a thread is not killed, but told to end
by the method `close` of its actor.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any

from ray_precheck.foreign import caught, first_line
from ray_precheck.runtime.actors import ActorLost, CallFailed
from ray_precheck.runtime.places.devices import Node, local_node

# A wait that returns so much too late was one of a process that stood still.
_STOOD_STILL_S = 5.0


class LocalActors:
    """The actors of a run in this process; it has one node, this machine."""

    def __init__(self) -> None:
        self._nodes = [local_node()]
        self._stood_s = 0.0

    def clock(self) -> float:
        """Return the monotonic time in seconds, without the time that this process was stopped."""
        return time.monotonic() - self._stood_s

    def start(self, actor: Any, node_id: str, *args: Any, **options: Any) -> "_Actor":
        """Start an actor; there is one node, so `node_id` says nothing."""
        return _Actor(actor, lambda: actor(*args, **options))

    def call(self, handle: "_Actor", method: str, *args: Any) -> "Future[Any]":
        """Call a method in a thread of its group; an answer among the arguments is waited for there."""
        return handle.call(method, args)

    def put(self, content: object) -> "Future[Any]":
        """Return an answer that is there."""
        answer: Future[Any] = Future()
        answer.set_result(content)
        return answer

    def wait(
        self, answers: Sequence["Future[Any]"], timeout_s: float, gather_s: float = 0.0
    ) -> list["Future[Any]"]:
        """Wait for one of the answers; return all that are there by then. Short of a cluster nothing is
        gained by gathering more."""
        if not answers:
            time.sleep(timeout_s)
            return []
        begin = time.monotonic()
        done = wait(answers, timeout_s, FIRST_COMPLETED).done
        late_s = time.monotonic() - begin - timeout_s
        if late_s > _STOOD_STILL_S:
            self._stood_s += late_s
        return [answer for answer in answers if answer in done]

    def result(self, answer: "Future[Any]") -> Any:
        """Return the value of an answer that has come.

        Raises:
            CallFailed: the method raised.
            ActorLost: the actor was ended.
        """
        error = answer.exception()
        if error is None:
            return answer.result()
        if isinstance(error, ActorLost):
            raise error
        raise CallFailed(first_line(error), error)

    def kill(self, handle: "_Actor") -> None:
        """End an actor: no call of it is answered any more."""
        handle.end()

    def nodes(self) -> list[Node]:
        """Return this machine."""
        return self._nodes


class _Actor:
    """An object and the threads that answer its calls: those of its `THREADS`, and one for all other methods,
    which also makes the object."""

    def __init__(self, actor: Any, make: Callable[[], Any]) -> None:
        self._made: Future[Any] = Future()
        self._pending: set[Future[Any]] = set()
        self._is_ended = False
        self._changing = threading.Lock()
        self._others = _threads(1)
        self._queue_of = {
            method: calls
            for threads, methods in actor.THREADS.values()
            for calls in [_threads(threads)]
            for method in methods
        }
        self._others.put((self._made, make))

    def call(self, method: str, args: Sequence[Any]) -> "Future[Any]":
        """Hand a call to a thread."""
        answer: Future[Any] = Future()
        with self._changing:
            if self._is_ended:
                answer.set_exception(ActorLost("it was ended"))
                return answer
            self._pending.add(answer)

        def body() -> Any:
            given = [each.result() if isinstance(each, Future) else each for each in args]
            return getattr(self._made.result(), method)(*given)

        answer.add_done_callback(self._forget)
        self._queue_of.get(method, self._others).put((answer, body))
        return answer

    def _forget(self, answer: "Future[Any]") -> None:
        with self._changing:
            self._pending.discard(answer)

    def end(self) -> None:
        """Answer no call any more, and have the object close what it has open; safe to call twice."""
        with self._changing:
            if self._is_ended:
                return
            self._is_ended = True
            pending = list(self._pending)
        for answer in pending:
            _settle(answer, None, ActorLost("it was ended"))
        for calls in {id(each): each for each in (*self._queue_of.values(), self._others)}.values():
            calls.put(None)
        # In a thread of its own: the others may wait for what is closed here.
        threading.Thread(target=self._close, daemon=True).start()

    def _close(self) -> None:
        caught(lambda: self._made.result().close())


def _threads(count: int) -> "queue.SimpleQueue[Any]":
    """Return a queue that so many threads serve."""
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(count):
        # Daemons: a thread may wait for a process that hangs in a driver, and the command ends all the same.
        threading.Thread(target=_serve, args=(calls,), daemon=True).start()
    return calls


def _serve(calls: "queue.SimpleQueue[Any]") -> None:
    """Answer the calls of a queue until it says None, which the other threads of the queue hear, too."""
    while (call := calls.get()) is not None:
        answer, body = call
        _settle(answer, *caught(body))
    calls.put(None)


def _settle(answer: "Future[Any]", value: Any, error: Exception | None) -> None:
    """Set the result of a call, unless its actor was ended meanwhile."""
    with suppress(InvalidStateError):
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)
